"""A consumer group and clients that obey it, while appends are refused, commits wait, answers are
lost and the coordinator moves: no two clients own one partition, and all comes to rest.

A client owns what it was given in an answer, until the heartbeat that no longer lists it is sent
(GN 6.23). One that falls silent has crashed and owns nothing.
"""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.coordinator.consumer.topics import TA, TB, image, topic
from tests.coordinator.test_consumer_group_runner import INDEX, RunnerRun
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.records import decode_record
from twisted_broker.coordinator.group_replay import GroupReplay
from twisted_broker.wire.errors import ErrorCode

HEARTBEAT_SECONDS, REBALANCE_MS = 4, 10_000
REJOIN = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)


class Client:
    """A consumer as clients are: full heartbeats after an error, epoch 0 after being fenced."""

    def __init__(self, run, member_id, names, instance_id=None):
        self.run, self.member_id = run, member_id
        self.names = self.said = names
        self.instance_id = instance_id
        self.epoch, self.owned = 0, set()
        self.given: frozenset[Any] = frozenset()
        self.asked, self.is_full, self.is_lost = None, True, False

    def heartbeat(self):
        """Reads the answer to the last one, and sends the next if that has come."""
        self.read()
        if self.asked is not None:
            return
        fields: dict[str, Any] = {}
        if self.is_full or self.owned != self.given:
            fields["owned"] = self.given
        if self.is_full:
            fields |= {"names": self.names, "rebalance_timeout_ms": REBALANCE_MS}
            self.said = self.names
        if "owned" in fields:
            self.owned = set(self.given)
        self.asked = self.run.send(
            self.member_id, self.epoch, instance_id=self.instance_id, **fields
        )
        self.read()

    def read(self):
        if self.asked is None or self.asked.is_waiting:
            return
        asked, self.asked = self.asked, None
        if self.is_lost:
            self.is_full, self.is_lost = True, False
        elif asked.error in REJOIN:
            self.abandon()
        elif asked.error is not None:
            self.is_full = True
        else:
            # What it subscribes to may have changed while the answer was on its way.
            self.epoch, self.is_full = asked.answer.member_epoch, self.names != self.said
            if asked.answer.assignment is not None:
                self.given = asked.answer.assignment
                self.owned |= self.given

    def abandon(self):
        self.epoch, self.owned, self.given, self.is_full = 0, set(), frozenset(), True


class AnyOrder(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.run = RunnerRun()
        self.clients = {}
        self.made = 0
        self.committed = b""
        self.undecided = []

    # clients
    @rule(names=st.sampled_from([("ta",), ("ta", "tb"), ()]))
    def start_client(self, names):
        if len(self.clients) < 5:
            self.made += 1
            self.clients[self.made] = Client(self.run, f"m{self.made}", names)

    @rule(which=st.integers(0, 9))
    def heartbeat(self, which):
        if self.clients:
            list(self.clients.values())[which % len(self.clients)].heartbeat()

    @rule(which=st.integers(0, 9), names=st.sampled_from([("ta",), ("tb",)]))
    def subscribe(self, which, names):
        if self.clients:
            client = list(self.clients.values())[which % len(self.clients)]
            client.names, client.is_full = names, True

    @rule(which=st.integers(0, 9))
    def lose_the_answer(self, which):
        if self.clients:
            client = list(self.clients.values())[which % len(self.clients)]
            client.is_lost = client.asked is not None

    @rule(which=st.integers(0, 9), leaves=st.booleans())
    def end_client(self, which, leaves):
        """It leaves, or crashes."""
        if self.clients:
            client = self.clients.pop(list(self.clients)[which % len(self.clients)])
            if leaves:
                self.run.send(client.member_id, -1)

    @rule(rounds=st.integers(1, 4))
    def time_goes_by(self, rounds):
        """Clients that live are heard of in time."""
        for _ in range(rounds):
            self.undecided += self.run.store.time_out() if self.run.store.held else []
            self.run.pass_seconds(HEARTBEAT_SECONDS)
            for client in self.clients.values():
                client.heartbeat()

    # the world
    @rule(refused=st.booleans())
    def refuse(self, refused):
        self.run.store.refuse = ErrorCode.NOT_ENOUGH_REPLICAS if refused else None

    @rule()
    def hold(self):
        if self.run.store.held is None:
            self.committed = bytes(self.run.store.logs.get(INDEX, b""))
            self.run.store.held = []

    @rule()
    def release(self):
        undecided, self.undecided = self.undecided, []
        for outcome in undecided:
            outcome.callback(0)
        self.run.store.release()
        self.run.store.held = None

    @rule(ta=st.integers(1, 6), tb=st.integers(0, 3))
    def change_topics(self, ta, tb):
        self.run.image = image(topic("ta", TA, [[None]] * ta), topic("tb", TB, [[None]] * tb))
        self.run.group.metadata_changed()

    @rule(keeps=st.booleans())
    def move_the_coordinator(self, keeps):
        """`keeps`: what was not committed is in the log of the next one as well."""
        run = self.run
        run.runner.close()
        self.undecided.clear()
        held, run.store.held = run.store.held, None
        if held is not None and not keeps:
            run.store.logs[INDEX] = bytearray(self.committed)
        replay = GroupReplay(ConsumerGroup)
        for key, value in run.store.records(INDEX):
            replay.apply(decode_record(key, value))
        replay.finish()
        run.group = replay.groups.get("g") or ConsumerGroup("g")
        run.runner = run.new_runner()
        run.runner.group_loaded(run.group)

    @invariant()
    def no_partition_has_two_owners(self):
        if not hasattr(self, "clients"):
            return
        owned = [each for client in self.clients.values() for each in client.owned]
        assert len(owned) == len(set(owned)), {k: c.owned for k, c in self.clients.items()}
        assert set(self.run.group._owners.values()) <= {1}

    def teardown(self):
        if not hasattr(self, "clients"):
            return
        run = self.run
        run.store.refuse = None
        self.release()
        for _ in range(25):
            self.time_goes_by(1)
            self.no_partition_has_two_owners()
        run.check()
        assert run.group.members.keys() == {each.member_id for each in self.clients.values()}
        subscribed = {name for client in self.clients.values() for name in client.names}
        expected = {
            (each.id, number)
            for name, each in run.image.topics_by_name.items()
            for number in each.partitions
            if name in subscribed
        }
        owned = {each for client in self.clients.values() for each in client.owned}
        assert owned == expected
        run.runner.close()


AnyOrder.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestConsumerGroupsAnyOrder = AnyOrder.TestCase
