"""One group with consumers of both protocols that come and go, while appends are refused and the
coordinator moves: no two of them own one partition, and all comes to rest, of whichever kind the
group is then.

A consumer owns what it was given until it has said that it gives it up. Classic ones act on
answers at once, or sync a while later; one that is fenced has lost what it had.
"""

from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.coordinator.consumer.topics import TA, TB, image, topic
from tests.coordinator.test_consumer_group_migration import (
    COOPERATIVE,
    EAGER,
    REBALANCE_MS,
    SESSION_MS,
    Migration,
    metadata,
)
from twisted_broker.coordinator.classic_group import ClassicGroup
from twisted_broker.coordinator.consumer.embedded import (
    owned_partitions,
    read_assignment,
    read_subscription,
    write_assignment,
)
from twisted_broker.coordinator.group_requests import JoinRequest, SyncRequest
from twisted_broker.wire.errors import ErrorCode as E

HEARTBEAT_MS = 2_000


class Modern:
    """A consumer of the consumer protocol."""

    def __init__(self, machine: Any, name: str) -> None:
        self.machine, self.name = machine, name
        self.epoch, self.is_full = 0, True
        self.owned: frozenset[Any] = frozenset()
        self.given: frozenset[Any] = frozenset()
        self.is_waiting = False

    def live(self) -> None:
        if self.is_waiting:
            return
        self.is_waiting = True
        fields: dict[str, Any] = {"owned": self.given}
        if self.is_full:
            fields |= {"names": ("ta",), "rebalance_timeout_ms": REBALANCE_MS}
        self.owned = self.given
        try:
            answer = self.machine.run.beat(self.name, self.epoch, **fields)
        except Exception as error:
            self.refused(error)
        else:
            answer.addCallbacks(self.answered, lambda failure: self.refused(failure.value))

    def answered(self, answer: Any) -> None:
        self.is_waiting, self.is_full, self.epoch = False, False, answer.member_epoch
        if answer.assignment is not None:
            self.given = answer.assignment
            self.owned |= self.given

    def refused(self, error: Any) -> None:
        self.is_waiting, self.is_full = False, True
        # The coordinator has no such member, or no such group any more.
        if error.code in (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND):
            self.epoch, self.owned, self.given = 0, frozenset(), frozenset()

    def leave(self) -> None:
        self.owned = frozenset()
        if self.epoch:
            self.machine.quietly(lambda: self.machine.run.beat(self.name, -1))


class Classic:
    """A consumer of the classic protocol; as a leader it assigns."""

    def __init__(self, machine: Any, strategy: str) -> None:
        self.machine, self.strategy = machine, strategy
        self.member, self.generation = "", -1
        self.owned: frozenset[Any] = frozenset()
        self.is_joining = self.is_gone = self.is_slow = False
        self.to_sync: dict[str, bytes] | None = None
        self.must_join = True

    @property
    def coordinator(self) -> Any:
        return self.machine.run.coordinator

    def live(self) -> None:
        if self.to_sync is not None:
            self.sync(self.to_sync)
        if self.is_joining:
            return
        if not self.must_join:
            error = self.coordinator.heartbeat("g", self.member, None, self.generation)
            if isinstance(error, E):
                self.beaten(error)
            else:
                error.addCallback(self.beaten)
        if self.must_join and not self.is_joining:
            self.join()

    def beaten(self, error: E) -> None:
        if error is E.REBALANCE_IN_PROGRESS:
            self.must_join = True
        elif error in (E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION):
            self.lose(error)

    def lose(self, error: E) -> None:
        self.owned, self.generation, self.must_join = frozenset(), -1, True
        if error is E.UNKNOWN_MEMBER_ID:
            self.member = ""

    def join(self) -> None:
        if self.strategy == EAGER:
            self.owned = frozenset()
        self.is_joining = True
        known = metadata(owned=self.owned)
        self.coordinator.join(
            "g",
            JoinRequest(
                self.member,
                "",
                None,
                "c",
                "/127.0.0.1",
                SESSION_MS,
                REBALANCE_MS,
                "consumer",
                {self.strategy: known},
            ),
        ).addCallback(self.joined)

    def joined(self, answer: Any) -> None:
        self.is_joining = False
        if self.is_gone:
            return
        if answer.error is E.MEMBER_ID_REQUIRED:
            self.member = answer.member_id
            self.join()
        elif answer.error is E.UNKNOWN_MEMBER_ID:
            self.lose(answer.error)
        elif answer.error is E.NONE:
            self.member, self.generation = answer.member_id, answer.generation
            self.must_join, self.is_joining = False, True
            self.to_sync = self.assignments(answer) if answer.leader == self.member else {}
            if not self.is_slow:
                self.sync(self.to_sync)

    def sync(self, assignments: dict[str, bytes]) -> None:
        self.to_sync = None
        self.coordinator.sync(
            "g", SyncRequest(self.member, None, self.generation, assignments=assignments)
        ).addCallback(self.synced)

    def assignments(self, answer: Any) -> dict[str, bytes]:
        """As a sticky cooperative assignor: what somebody else owns is given to nobody."""
        image = self.machine.run.image
        everything = {(TA, number) for number in image.topics_by_name["ta"].partitions}
        given = {
            member: set(owned_partitions(read_subscription(said), image))
            for member, _, said in answer.members
        }
        free = everything.difference(*given.values())
        most = -(-len(everything) // len(given))
        given = {member: set(sorted(owned)[:most]) for member, owned in given.items()}
        for each in sorted(free):
            min(given.values(), key=len).add(each)
        return {member: write_assignment(owned, image, 3) for member, owned in given.items()}

    def synced(self, answer: Any) -> None:
        self.is_joining = False
        if answer.error is E.NONE:
            given = read_assignment(answer.assignment, self.machine.run.image)
            self.must_join = bool(self.owned - given)
            self.owned = given
        elif answer.error in (E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION):
            self.lose(answer.error)
        else:
            self.must_join = True

    def leave(self) -> None:
        self.owned, self.is_gone = frozenset(), True
        if self.member:
            self.machine.quietly(lambda: self.coordinator.leave("g", [(self.member, None)]))


class AnyOrder(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.run = Migration()
        self.clients: list[Any] = []
        self.made = self.moved = 0

    def quietly(self, call):
        """Whatever becomes of it."""
        try:
            call().addErrback(lambda _: None)
        except Exception:
            return

    # clients
    @rule(kind=st.sampled_from(["modern", EAGER, COOPERATIVE]))
    def start_client(self, kind):
        # One strategy for all classic ones: they must have one in common.
        kinds = {each.strategy for each in self.clients if isinstance(each, Classic)}
        if len(self.clients) < 5 and (kind == "modern" or kinds <= {kind}):
            self.made += 1
            client = Modern(self, f"m{self.made}") if kind == "modern" else Classic(self, kind)
            self.clients.append(client)
            client.live()

    @rule(which=st.integers(0, 9))
    def one_lives(self, which):
        if self.clients:
            self.clients[which % len(self.clients)].live()

    @rule(which=st.integers(0, 9), leaves=st.booleans())
    def end_client(self, which, leaves):
        """It leaves, or crashes."""
        if self.clients:
            client = self.clients.pop(which % len(self.clients))
            if leaves:
                client.leave()
            client.is_gone = True

    @rule(which=st.integers(0, 9), is_slow=st.booleans())
    def be_slow(self, which, is_slow):
        """It syncs a while after it has joined."""
        if self.clients:
            self.clients[which % len(self.clients)].is_slow = is_slow

    @rule()
    def turns(self):
        self.run.settle()

    @rule(rounds=st.integers(1, 4))
    def time_goes_by(self, rounds):
        for _ in range(rounds):
            self.run.pass_ms(HEARTBEAT_MS)
            for client in self.clients:
                client.live()
            self.run.settle()

    # the world
    @rule(refused=st.booleans())
    def refuse(self, refused):
        self.run.store.refuse = E.NOT_ENOUGH_REPLICAS if refused else None

    @rule(number=st.integers(2, 5))
    def change_topics(self, number):
        topics = topic("ta", TA, [[None]] * number), topic("tb", TB, [[None]])
        self.run.image = image(*topics, offset=self.run.image.offset + 1)
        self.run.coordinator.topics_changed({"ta"}, has_new=False)

    @rule()
    def move_the_coordinator(self):
        self.run = self.run.again()
        self.moved += 1
        self.run.coordinator.context.random = Random(1000 + self.moved)  # other ids than any before
        for client in self.clients:
            client.is_waiting = False

    @invariant()
    def no_partition_has_two_owners(self):
        if not hasattr(self, "clients"):
            return
        owned = [each for client in self.clients for each in client.owned]
        assert len(owned) == len(set(owned)), [client.owned for client in self.clients]

    def teardown(self):
        if not hasattr(self, "clients"):
            return
        self.run.store.refuse = None
        for _ in range(40):
            self.time_goes_by(1)
            self.no_partition_has_two_owners()
        group = self.run.group()
        modern = [each for each in self.clients if isinstance(each, Modern)]
        if self.clients:
            names = {getattr(each, "name", "") or each.member for each in self.clients}
            assert group.members.keys() == names
            if modern:
                assert not isinstance(group, ClassicGroup)
                partitions = self.run.image.topics_by_name["ta"].partitions
                owned = {each for client in self.clients for each in client.owned}
                assert owned == {(TA, number) for number in partitions}
        self.run.coordinator.stop()


AnyOrder.TestCase.settings = settings(
    max_examples=8,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestMigrationsAnyOrder = AnyOrder.TestCase
