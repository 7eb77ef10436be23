"""A consumer group under clients that do as they please: its invariants hold after every decision
(`ConsumerRun.check`, GN 6.23, 6.25, 6.26), and with clients that obey it comes to rest.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.coordinator.consumer.consumer_run import ConsumerRun, stored
from tests.coordinator.consumer.topics import TA, TB, image, topic
from twisted_broker.coordinator.consumer.group import ConsumerGroupState
from twisted_broker.wire.errors import BrokerError

IDS = ["a", "b", "c", "d"]
INSTANCES = [None, None, "i", "j"]
NAMES = [None, (), ("ta",), ("ta", "tb"), ("tb", "nope")]
PATTERNS = [None, None, "", "t.*", "tb|x"]


class ConsumerGroupMachine(RuleBasedStateMachine):
    """`owned` is what a client has that obeys: what it was told, less what it gave up."""

    @initialize(interval_ms=st.sampled_from([0, 1_000]), size=st.sampled_from([3, 10]))
    def begin(self, interval_ms, size):
        self.run = ConsumerRun(self.topics(4, 3), assignment_interval_ms=interval_ms, max_size=size)
        self.owned = {}

    def topics(self, ta, tb):
        return image(
            topic("ta", TA, [[None]] * ta), topic("tb", TB, [["r1"]] * tb), offset=ta * 100 + tb
        )

    def send(self, call, member_id, *arguments, **fields):
        try:
            answer = call(member_id, *arguments, **fields)
        except BrokerError:
            return
        if answer.member_epoch < 0:
            self.owned.pop(member_id, None)
        elif answer.assignment is not None:
            self.owned[member_id] = answer.assignment

    @rule(
        member_id=st.sampled_from(IDS),
        instance=st.sampled_from(INSTANCES),
        names=st.sampled_from(NAMES),
        pattern=st.sampled_from(PATTERNS),
        assignor=st.sampled_from([None, "range", "uniform"]),
    )
    def join(self, member_id, instance, names, pattern, assignor):
        if names is None and pattern is None:
            names = ("ta",)
        self.send(
            self.run.join,
            member_id,
            names=names,
            pattern=pattern,
            instance_id=instance,
            assignor=assignor,
        )

    @rule(
        member_id=st.sampled_from(IDS),
        late=st.sampled_from([0, 0, 0, 1, 2, -1]),
        says=st.sampled_from(["nothing", "truth", "nothing owned", "too much"]),
        names=st.sampled_from([None, None, *NAMES]),
        pattern=st.sampled_from([None, None, *PATTERNS]),
    )
    def go_on(self, member_id, late, says, names, pattern):
        member = self.run.group.members.get(member_id)
        owned = {
            "nothing": None,
            "truth": self.owned.get(member_id, frozenset()),
            "nothing owned": frozenset(),
            "too much": frozenset((TA, number) for number in range(9)),
        }[says]
        epoch = 5 if member is None else max(member.epoch - late, 1)
        self.send(self.run.send, member_id, epoch, names=names, pattern=pattern, owned=owned)

    @rule(
        member_id=st.sampled_from(IDS),
        instance=st.sampled_from(INSTANCES),
        epoch=st.sampled_from([-1, -2]),
    )
    def leave(self, member_id, instance, epoch):
        if instance is None:
            epoch = -1
        self.send(self.run.send, member_id, epoch, instance_id=instance)

    @rule(which=st.integers(0, 9))
    def expire(self, which):
        if self.run.timers:
            kind, member_id = sorted(self.run.timers, key=str)[which % len(self.run.timers)]
            self.run.expire(kind, member_id)

    @rule(after_ms=st.sampled_from([100, 1_000, 20_000, -5_000]))
    def time_goes_by(self, after_ms):
        self.run.wall_ms += after_ms

    @rule(ta=st.integers(0, 6), tb=st.integers(1, 4))
    def change_topics(self, ta, tb):
        self.run.change_topics(self.topics(ta, tb))

    @rule(hidden=st.sampled_from(["", "ta"]))
    def resolve(self, hidden):
        self.run.resolve(lambda name: name != hidden)

    @invariant()
    def a_compacted_log_gives_the_same_group(self):
        """GN 2.105: only the last value of each key, each where it stood."""
        if not hasattr(self, "run"):
            return
        last: dict[bytes, bytes | None] = {}
        for batch in self.run.batches:
            for key, value in batch:
                last.pop(key, None)
                last[key] = value
        assert stored(self.run.replayed([last.items()])) == stored(self.run.group)

    def teardown(self):
        """GN 6.23: clients that obey own everything in a few heartbeats, each partition once."""
        if not hasattr(self, "run"):
            return
        run = self.run
        for kind, member_id in list(run.timers):
            if member_id in run.group.members and run.group.members[member_id].epoch < 0:
                run.expire(kind, member_id)
        run.wall_ms += 10_000_000
        run.resolve()
        for _ in range(6):
            for member_id, member in list(run.group.members.items()):
                run.wall_ms += 1_000
                told = run.send(member_id, member.epoch, owned=None)
                assigned = frozenset(run.group.members[member_id].assigned)
                run.send(member_id, told.member_epoch, owned=assigned)
        if not run.group.members:
            return
        assert run.group.state is ConsumerGroupState.STABLE
        subscribed = run.group.subscriptions.topics(run.group.resolved())
        expected = {
            (each.id, number)
            for name, each in run.image.topics_by_name.items()
            for number in each.partitions
            if name in subscribed
        }
        members = run.group.members.values()
        owned = [each for member in members for each in member.assigned]
        assert sorted(owned) == sorted(expected)


ConsumerGroupMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestConsumerGroupMachine = ConsumerGroupMachine.TestCase
