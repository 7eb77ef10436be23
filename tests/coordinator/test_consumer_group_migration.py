"""Groups that change their protocol while they have members (GN 2.110 to 2.122): the cases of
Kafka's GroupMetadataManagerTest and ConsumerProtocolMigrationTest, on a whole coordinator.
"""

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, globalLogPublisher

from tests.coordinator.consumer.test_heartbeats_as_kafka import whole_batches
from tests.coordinator.consumer.topics import TA
from tests.coordinator.memory_store import MemoryStore
from tests.coordinator.test_consumer_groups import Run, refused
from tests.coordinator.test_group_coordinator import now
from twisted_broker.coordinator.classic_group import COMPLETING, PREPARING, STABLE, ClassicGroup
from twisted_broker.coordinator.consumer.embedded import read_assignment, write_assignment
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.member import MemberState
from twisted_broker.coordinator.consumer.migration import Upgrade
from twisted_broker.coordinator.group_records import (
    GroupRecord,
    batch_of,
    partition_for,
    read_record,
)
from twisted_broker.coordinator.group_requests import JoinAnswer, JoinRequest, SyncRequest
from twisted_broker.coordinator.offset_metadata_manager import CommitRequest, OffsetToCommit
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from twisted_broker.wire.schema import encode

SESSION_MS, REBALANCE_MS = 10_000, 15_000
EAGER, COOPERATIVE = "range", "cooperative-sticky"


def tas(*numbers: int) -> frozenset[tuple[bytes, int]]:
    return frozenset((TA, number) for number in numbers)


def metadata(topics: tuple[str, ...] = ("ta",), owned: Any = (), version: int = 3) -> bytes:
    said = ConsumerProtocolSubscription(topics=list(topics))
    if version and owned:
        numbers = sorted(number for _, number in owned)
        said.owned_partitions = [
            ConsumerProtocolSubscriptionTopicPartition(topic="ta", partitions=numbers)
        ]
    return version.to_bytes(2, "big") + encode(said, version)


class Consumer:
    """A classic consumer as clients are; `owned` is what it reads."""

    def __init__(
        self, run: "Migration", instance: str | None = None, strategy: str = COOPERATIVE
    ) -> None:
        self.run, self.instance, self.strategy = run, instance, strategy
        self.member = ""
        self.generation = -1
        self.owned: frozenset[Any] = frozenset()
        self.waiting: Any = None

    def ask(self, **changes: Any) -> Any:
        """A JoinGroup; what waits for its answer."""
        if self.strategy == EAGER:
            self.owned = frozenset()
        fields: dict[str, Any] = {
            "member_id": self.member,
            "new_member_id": "",
            "instance_id": self.instance,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": {self.strategy: metadata(owned=self.owned)},
            "requires_known_member_id": self.instance is None,
        } | changes
        self.waiting = self.run.coordinator.join("g", JoinRequest(**fields))
        self.run.settle()
        if self.waiting.called and now(self.waiting).error is E.MEMBER_ID_REQUIRED:
            return self.ask(**changes, member_id=now(self.waiting).member_id)
        return self.waiting

    def answered(self) -> JoinAnswer:
        answer = now(self.waiting)
        if answer.error is E.NONE:
            self.member, self.generation = answer.member_id, answer.generation
        return answer

    def join(self, **changes: Any) -> JoinAnswer:
        self.ask(**changes)
        return self.answered()

    def sync(self, assignments: dict[str, bytes] | None = None, **changes: Any) -> E:
        fields: dict[str, Any] = {
            "member_id": self.member,
            "instance_id": self.instance,
            "generation": self.generation,
            "protocol_type": "consumer",
            "protocol_name": self.strategy,
            "assignments": assignments or {},
        } | changes
        answer = self.run.coordinator.sync("g", SyncRequest(**fields))
        self.run.settle()
        answered = now(answer)
        if answered.error is E.NONE:
            self.owned = read_assignment(answered.assignment, self.run.image)
        return answered.error

    def beat(self, generation: int | None = None) -> E:
        known = self.generation if generation is None else generation
        error = self.run.coordinator.heartbeat("g", self.member, self.instance, known)
        return error if isinstance(error, E) else now(error)

    def live(self) -> E:
        """A heartbeat, and what a client does then."""
        error = self.beat()
        if error is not E.NONE:
            if error is not E.REBALANCE_IN_PROGRESS:
                self.generation = -1
                if error is E.UNKNOWN_MEMBER_ID:
                    self.member = ""
                self.owned = frozenset()
            if self.ask().called and self.answered().error is E.NONE:
                self.sync()
        return error


class Migration(Run):
    """A coordinator with the group `g`."""

    def classic(self, *numbers: tuple[int, ...], **how: Any) -> list[Consumer]:
        """A stable classic group: a consumer for each list of partitions that it has."""
        instances = how.pop("instances", [None] * len(numbers))
        consumers = [Consumer(self, instance, **how) for instance in instances]
        for consumer in consumers:
            consumer.ask()
        if len(consumers) > 1:
            consumers[0].answered()
            consumers[0].ask()
        for consumer in consumers:
            consumer.answered()
        leader = self.group().leader
        assignments = {
            each.member: write_assignment(tas(*owned), self.image, 3)
            for each, owned in zip(consumers, numbers, strict=True)
        }
        for consumer in sorted(consumers, key=lambda each: each.member != leader):
            assert consumer.sync(assignments) is E.NONE
        assert self.group().state is STABLE
        return consumers

    def again(self) -> "Migration":
        self.coordinator.stop()
        return Migration(self.store, self.clock)

    def told(self, member: str, epoch: int, **fields: Any) -> Any:
        """The answer to a heartbeat of the consumer protocol."""
        waiting = self.beat(member, epoch, **fields)
        self.settle()
        return now(waiting)

    def leave(self, *members: str) -> list[E]:
        waiting = self.coordinator.leave("g", [(member, None) for member in members])
        self.settle()
        return [each.error for each in now(waiting)]

    def stored(self) -> Any:
        """The last record of the group as a classic one."""
        found = [read_record(*each, 0) for each in self.records("g") if each[0] is not None]
        return [each for each in found if isinstance(each, GroupRecord)][-1].value


@pytest.fixture
def run() -> Migration:
    return Migration()


# upgrade
def test_a_heartbeat_upgrades_a_stable_group_and_nobody_loses_anything(run):
    """GN 2.110 to 2.112."""
    one, two = run.classic((0, 1), (2, 3))
    now(run.commit(OffsetToCommit("ta", 0, 7), member=one.member, generation=one.generation))
    before = len(run.records("g"))
    joined = run.member("new")
    assert (joined.member_epoch, joined.assignment) == (one.generation + 1, frozenset())
    kinds = run.kinds()[before:]
    assert kinds[:9] == [
        (2, False),
        *[(5, True)] * 2,
        (3, True),
        *[(7, True)] * 2,
        (6, True),
        *[(8, True)] * 2,
    ]
    group = run.group()
    assert isinstance(group, ConsumerGroup) and run.fetched() == {("ta", 0): 7}
    for each in (one, two):
        member = group.members[each.member]
        assert set(member.assigned) == each.owned and member.epoch == each.generation
        assert member.classic.session_timeout_ms == SESSION_MS
        assert each.beat() is E.REBALANCE_IN_PROGRESS
    again = run.again()
    assert again.group().members.keys() == {one.member, two.member, "new"}


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_an_upgraded_group_balances_and_no_partition_has_two_owners(run, strategy):
    """GN 2.115 to 2.117."""
    consumers = run.classic((0, 1), (2, 3), strategy=strategy)
    epoch, owned = run.member("new").member_epoch, tas()
    for _ in range(4):
        for consumer in consumers:
            consumer.live()
        told = run.told("new", epoch, owned=owned)
        epoch = told.member_epoch
        owned = owned if told.assignment is None else told.assignment
        all_owned = [*owned, *(each for consumer in consumers for each in consumer.owned)]
        assert len(all_owned) == len(set(all_owned))
    assert set(all_owned) == tas(0, 1, 2, 3) and owned
    assert all(consumer.beat() is E.NONE for consumer in consumers)
    assert run.group().state.value == "Stable"
    described = now(run.coordinator.describe_consumer_group("g"))
    types = {each.member.member_id: each.member_type for each in described.members}
    assert types == {"new": 1} | {consumer.member: 0 for consumer in consumers}


def test_joins_that_wait_in_a_rebalance_are_answered(run):
    """GN 2.111, 2.113: in PreparingRebalance, with the assignment that each had."""
    one, two = run.classic((0, 1), (2, 3))
    waiting = one.ask(protocols={COOPERATIVE: metadata(("ta", "tb"))})
    if run.group().state is STABLE:
        waiting = two.ask(protocols={COOPERATIVE: metadata(("ta", "tb"))})
    assert run.group().state is PREPARING and not waiting.called
    run.member("new")
    assert now(waiting).error is E.REBALANCE_IN_PROGRESS
    members = run.group().members
    assert set(members[one.member].assigned) == tas(0, 1)
    assert set(members[two.member].assigned) == tas(2, 3)
    assert {each.beat() for each in (one, two)} == {E.REBALANCE_IN_PROGRESS}


def test_syncs_that_wait_in_a_rebalance_are_answered(run):
    """GN 2.111, 2.113: in CompletingRebalance; ids that were only handed out are dropped."""
    one, two = run.classic((0, 1), (2, 3))
    stranger = run.join(known=True, protocols={COOPERATIVE: metadata()})
    assert now(stranger).error is E.MEMBER_ID_REQUIRED
    leader, other = (one, two) if run.group().leader == one.member else (two, one)
    now(run.coordinator.leave("g", [(now(stranger).member_id, None)]))
    leader.ask()
    other.ask()
    other.answered(), leader.answered()
    assert run.group().state is COMPLETING
    syncing = run.sync(other.member, other.generation)
    assert not syncing.called
    run.member("new")
    assert now(syncing).error is E.REBALANCE_IN_PROGRESS
    assert run.group().members.keys() == {one.member, two.member, "new"}
    assert leader.sync() is E.REBALANCE_IN_PROGRESS


def test_a_member_that_has_not_synced_still_has_what_it_said_it_owns(run):
    """*Ours*: its assignment is stored, and takes something from it; it does not know that yet."""
    one, two = run.classic((0, 1), (2, 3))
    leader, other = (one, two) if run.group().leader == one.member else (two, one)
    kept, lost = sorted(other.owned)
    leader.ask()
    if not other.ask().called:
        leader.ask()
    leader.answered(), other.answered()
    assignments = {
        leader.member: write_assignment(leader.owned, run.image, 3),
        other.member: write_assignment({kept}, run.image, 3),
    }
    assert leader.sync(assignments) is E.NONE and run.group().state is STABLE
    run.member("new")
    member = run.group().members[other.member]
    assert (set(member.assigned), set(member.pending)) == ({kept}, {lost})
    assert not run.group().members["new"].assigned
    assert other.sync(generation=other.generation) is E.NONE and other.owned == {kept}
    for _ in range(3):
        leader.live(), other.live()
        run.told("new", run.group().members["new"].epoch, owned=frozenset())
    assert lost in {each for each in run.group().members["new"].assigned} | leader.owned


def test_a_group_whose_first_generation_has_not_begun_is_upgraded():
    """GN 2.112, 2.113: its generation is 0, and nobody was given anything."""
    run = Migration(initial_rebalance_delay_ms=3_000)
    one = Consumer(run, "i")
    assert not one.ask().called
    run.member("new")
    assert now(one.waiting).error is E.REBALANCE_IN_PROGRESS
    assert one.join().error is E.NONE and one.sync() is E.NONE
    assert run.group().static["i"] == one.member


@pytest.mark.parametrize(
    ("strategy_metadata", "assigned"),
    [
        (b"\xff\xff" + metadata()[2:], None),
        (b"", None),
        (b"\0\1\0\0", None),
        (metadata(), write_assignment(tas(0), Run().image, 1)[:-4] + b"\0\0\0\1x"),
        (metadata(), b"\0\0\0"),
    ],
    ids=["version below 0", "empty", "cut", "user data", "assignment that ends"],
)
def test_a_group_whose_metadata_is_not_a_consumers_is_not_upgraded(
    run, strategy_metadata, assigned
):
    """GN 2.110."""
    one = Consumer(run)
    one.ask(protocols={"own": strategy_metadata}, requires_known_member_id=False)
    one.answered()
    synced = run.sync(one.member, one.generation, {one.member: assigned or b""})
    assert now(synced).error is E.NONE
    before = run.group(), len(run.records("g"))
    assert refused(lambda: run.start("new")) is E.GROUP_ID_NOT_FOUND
    assert (run.group(), len(run.records("g"))) == before
    assert one.beat() is E.NONE


@pytest.fixture
def warnings():
    found = []

    def keep(event):
        if event["log_level"] is LogLevel.warn:
            found.append(event["log_format"].format(**event))

    globalLogPublisher.addObserver(keep)
    yield found
    globalLogPublisher.removeObserver(keep)


def test_a_warning_says_whose_user_data_keeps_a_group_from_its_upgrade(run, warnings):
    one = Consumer(run)
    one.ask(protocols={"cooperative-sticky": metadata()}, requires_known_member_id=False)
    one.answered()
    assigned = write_assignment(tas(0), Run().image, 1)[:-4] + b"\0\0\0\1x"
    now(run.sync(one.member, one.generation, {one.member: assigned}))
    assert refused(lambda: run.start("new")) is E.GROUP_ID_NOT_FOUND
    (line,) = warnings
    assert line.startswith("group not upgraded group=g members=1 joining=")
    assert f'reason="member {one.member} of client ' in line
    assert "strategy cooperative-sticky: its assignment has user data" in line
    assert line.endswith('or stop all members"'), "it is whole"


def test_a_warning_says_that_the_policy_forbids_an_upgrade(run, warnings):
    run.classic((0, 1))
    run.set_up(may_upgrade=False)
    assert refused(lambda: run.start("new")) is E.GROUP_ID_NOT_FOUND
    assert len(warnings) == 1 and warnings[0].endswith('reason="online upgrade is disabled."')


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades", "joins"),
    [
        ("bidirectional", True, True, E.NONE),
        ("upgrade", True, False, E.NONE),
        ("downgrade", False, True, E.NONE),
        ("disabled", False, False, E.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_the_policy_says_what_is_changed(run, policy, upgrades, downgrades, joins):
    """GN 2.110, 2.114, 2.120."""
    run.set_up(may_upgrade=upgrades, may_downgrade=downgrades)
    run.classic((0, 1, 2, 3))
    if upgrades:
        assert run.member("new").member_epoch == 2
    else:
        assert refused(lambda: run.start("new")) is E.GROUP_ID_NOT_FOUND
        assert isinstance(run.group(), ClassicGroup)
        run = Migration()
        run.set_up(may_upgrade=upgrades, may_downgrade=downgrades)
        run.member("new")
    other = Consumer(run)
    assert other.join().error is joins
    run.told("new", -1)
    if joins is E.NONE:
        assert isinstance(run.group(), ClassicGroup if downgrades else ConsumerGroup)
    else:
        assert run.group().is_empty


def test_a_group_of_another_protocol_or_of_too_many_members_is_not_upgraded(run):
    """GN 2.110."""
    run.classic((0, 1), (2, 3))
    run.set_up(max_size=1)
    assert refused(lambda: run.start("new")) is E.GROUP_ID_NOT_FOUND
    run = Migration()
    run.stable(kind="connect")
    assert refused(lambda: run.start("new")) is E.GROUP_ID_NOT_FOUND


def test_a_refused_heartbeat_leaves_the_classic_group_and_its_sessions(run):
    """GN 0.5: the append is refused; GN 2.11: the group is full."""
    (one,) = run.classic((0, 1, 2, 3))
    before = run.group()
    run.set_up(max_size=1)
    assert refused(lambda: run.start("new")) is E.GROUP_MAX_SIZE_REACHED
    run.set_up(max_size=10)
    run.store.refuse = E.NOT_ENOUGH_REPLICAS
    assert refused(lambda: run.start("new")) is E.COORDINATOR_NOT_AVAILABLE
    run.store.refuse = None
    assert run.group() is before and one.beat() is E.NONE
    assert run.coordinator.describe("g").state == "Stable"
    run.pass_ms(SESSION_MS + 1)
    assert not before.members, "the classic session ran on"
    assert run.member("new").member_epoch == 2, "an empty group begins anew"


def test_an_upgrade_in_steps_lets_nobody_in_between(run, monkeypatch):
    """Requests stand in line meanwhile; a commit counts by the group that still stands."""
    monkeypatch.setattr("twisted_broker.coordinator.consumer.migration.MEMBERS_PER_STEP", 1)
    one, two = run.classic((0, 1), (2, 3))
    before = run.group()
    waiting = run.start("new")
    assert not waiting.called and run.coordinator.describe("g") is None
    assert refused(lambda: run.coordinator.describe_consumer_group("g")) is E.GROUP_ID_NOT_FOUND
    beat = run.coordinator.heartbeat("g", one.member, None, one.generation)
    committed = run.commit(OffsetToCommit("ta", 2, 5), member=two.member, generation=two.generation)
    assert now(committed) == {("ta", 2): E.NONE} and not before.is_dead
    run.settle()
    assert now(waiting).member_epoch == 3 and now(beat) is E.REBALANCE_IN_PROGRESS
    assert before.is_dead and run.fetched() == {("ta", 2): 5}


def test_classic_requests_behind_a_refused_upgrade_are_told_to_come_again(run, monkeypatch):
    monkeypatch.setattr("twisted_broker.coordinator.consumer.migration.MEMBERS_PER_STEP", 1)
    one, _ = run.classic((0, 1), (2, 3))
    before = run.group()
    run.store.refuse = E.NOT_ENOUGH_REPLICAS
    waiting = run.start("new")
    beat = run.coordinator.heartbeat("g", one.member, None, one.generation)
    other = run.start("other")
    run.settle()
    for each in (waiting, other):
        assert refused(lambda each=each: each) is E.COORDINATOR_NOT_AVAILABLE
    assert now(beat) is E.COORDINATOR_NOT_AVAILABLE
    assert run.group() is before and one.beat() is E.NONE


def test_the_classic_sessions_wait_while_a_consumer_group_is_to_take_the_place(run, monkeypatch):
    one, two = run.classic((0, 1), (2, 3))
    before, records = run.group(), Upgrade.records
    gate: Deferred[None] = Deferred()

    def slow(self: Upgrade, environment: Any) -> Any:
        yield gate
        return (yield from records(self, environment))

    monkeypatch.setattr(Upgrade, "records", slow)
    run.store.refuse = E.NOT_ENOUGH_REPLICAS
    waiting = run.start("new")
    run.pass_ms(2 * SESSION_MS)
    assert before.members.keys() == {one.member, two.member}
    gate.callback(None)
    run.settle()
    assert refused(lambda: waiting) is E.COORDINATOR_NOT_AVAILABLE
    run.pass_ms(1_000)
    assert run.group() is before and not before.members


# classic members
def test_join_in_the_order_of_its_checks(run):
    """GN 2.114."""
    run.member("new")
    one = Consumer(run)
    assert one.join(protocol_type="connect").error is E.INCONSISTENT_GROUP_PROTOCOL
    assert one.join(protocols={}).error is E.INCONSISTENT_GROUP_PROTOCOL
    told = now(run.join(topics=("ta",), known=True, protocols={COOPERATIVE: metadata()}))
    assert told.error is E.MEMBER_ID_REQUIRED and len(told.member_id) == 22
    assert [*run.group().members] == ["new"]
    joined = one.join()
    assert (joined.generation, joined.leader, joined.members) == (3, "", ())
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", COOPERATIVE)
    assert Consumer(run, strategy="other").join().error is E.INCONSISTENT_GROUP_PROTOCOL
    unknown = Consumer(run)
    unknown.member = "never-seen"
    assert unknown.join().error is E.NONE, "an unknown id joins as well"
    run.set_up(max_size=3)
    assert Consumer(run).join().error is E.GROUP_MAX_SIZE_REACHED
    assert one.join().error is E.NONE, "a member is let in"


def test_join_with_metadata_that_is_not_a_consumers_is_refused(run):
    run.member("new")
    one = Consumer(run, "i")
    assert one.join(protocols={"own": b"\0"}).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert [*run.group().members] == ["new"]


def test_static_classic_members(run):
    """GN 2.114."""
    run.member("new")
    one = Consumer(run, "i")
    one.member = "mine"
    assert one.join().error is E.UNKNOWN_MEMBER_ID
    one.member = ""
    assert one.join().error is E.NONE
    assert one.sync() is E.NONE and one.beat() is E.NONE
    thief = Consumer(run, "i")
    thief.member = "thief"
    assert thief.join().error is E.FENCED_INSTANCE_ID
    assert thief.sync() is E.FENCED_INSTANCE_ID and thief.beat() is E.FENCED_INSTANCE_ID
    again = Consumer(run, "i")
    epoch = run.group().epoch
    assert again.join().error is E.NONE and again.member != one.member
    assert run.group().epoch == epoch, "its place is the same"
    assert again.sync() is E.NONE and again.owned == one.owned
    assert one.beat() is E.FENCED_INSTANCE_ID


def test_a_consumer_member_takes_the_place_of_a_classic_static_one(run):
    """GN 2.15, whatever its state."""
    one, two = run.classic((0, 1), (2, 3), instances=["i", "j"])
    joined = run.member("new", instance_id="i")
    assert joined.assignment == one.owned, "its target and its partitions"
    assert one.member not in run.group().members and two.beat() is not E.UNKNOWN_MEMBER_ID


def test_sync_in_the_order_of_its_checks(run):
    """GN 2.116."""
    run.member("new")
    one = Consumer(run)
    one.join()
    assert one.sync(member_id="stranger") is E.UNKNOWN_MEMBER_ID
    assert one.sync(member_id="new", generation=2) is E.UNKNOWN_MEMBER_ID
    assert one.sync(instance_id="i") is E.UNKNOWN_MEMBER_ID
    assert one.sync(generation=one.generation - 1) is E.ILLEGAL_GENERATION
    assert one.sync(protocol_type="connect") is E.INCONSISTENT_GROUP_PROTOCOL
    assert one.sync(protocol_name="range") is E.INCONSISTENT_GROUP_PROTOCOL
    assert one.sync() is E.NONE
    assert one.sync(protocol_type=None, protocol_name=None) is E.NONE
    run.member("third")
    assert one.sync() is E.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("version", range(4))
def test_the_assignment_has_the_version_of_the_members_metadata(run, version):
    """GN 2.116."""
    run.member("new")
    one = Consumer(run)
    protocols = {COOPERATIVE: metadata(version=version)}
    for _ in range(3):
        now(one.ask(protocols=protocols))
        one.answered()
        run.told("new", run.group().members["new"].epoch, owned=tas(0, 1))
    joined = now(one.ask(protocols=protocols))
    synced = now(run.sync(one.member, joined.generation))
    assert synced.assignment[:2] == version.to_bytes(2, "big")
    assert read_assignment(synced.assignment, run.image) == tas(2, 3)


def test_heartbeat_in_the_order_of_its_checks(run):
    """GN 2.117, 2.132."""
    run.member("new")
    one = Consumer(run)
    one.join()
    for member, generation, expected in (
        ("stranger", 3, E.UNKNOWN_MEMBER_ID),
        ("new", 2, E.UNKNOWN_MEMBER_ID),
        (one.member, 2, E.ILLEGAL_GENERATION),
        (one.member, 4, E.ILLEGAL_GENERATION),
    ):
        assert now(run.coordinator.heartbeat("g", member, None, generation)) is expected
    assert one.beat() is E.NONE


def test_a_member_is_told_to_join_when_what_it_waits_for_is_free(run):
    """GN 2.117."""
    run.member("new")
    one = Consumer(run)
    one.join()
    assert run.group().members[one.member].state is MemberState.UNRELEASED_PARTITIONS
    assert one.sync() is E.NONE and one.owned == frozenset()
    assert one.beat() is E.NONE, "it waits"
    assert run.told("new", 2).assignment is not None
    run.told("new", 2, owned=tas(0, 1))
    assert one.beat() is E.REBALANCE_IN_PROGRESS
    assert one.join().generation == 3 and one.sync() is E.NONE and len(one.owned) == 2
    assert one.beat() is E.NONE


def test_during_the_assignment_interval_classic_members_go_on(run):
    """GN 2.118."""
    run.member("new")
    one = Consumer(run)
    one.join()
    one.sync()
    run.set_interval(15_000)
    run.member("third")
    assert run.group().state.value == "Assigning"
    assert one.beat() is E.NONE and one.sync() is E.NONE


def test_a_session_of_a_classic_member_is_its_own(run):
    """GN 2.80."""
    run.set_up(session_timeout_ms=60_000)
    run.member("new")
    one, two = Consumer(run), Consumer(run)
    for each in (one, two):
        each.join()
        each.sync()
    run.pass_ms(SESSION_MS - 1)
    assert one.beat() is not E.UNKNOWN_MEMBER_ID
    run.pass_ms(2)
    assert run.group().members.keys() == {"new", one.member}
    again = run.again()
    again.pass_ms(SESSION_MS + 1)
    assert [*again.group().members] == ["new"], "also after a load"


@pytest.mark.parametrize("syncs", [False, True])
def test_a_member_that_joined_must_sync_within_its_rebalance_timeout(run, syncs):
    """GN 2.118."""
    run.member("new")
    one = Consumer(run)
    one.join(session_timeout_ms=60_000)
    if syncs:
        one.sync()
    run.pass_ms(REBALANCE_MS + 1)
    assert (one.member in run.group().members) is syncs


def test_a_member_that_is_told_to_join_must_within_its_rebalance_timeout(run):
    """GN 2.117: later heartbeats give it no more time."""
    run.member("new")
    one, two = Consumer(run), Consumer(run)
    for each in (one, two):
        each.join(session_timeout_ms=60_000)
        each.sync()
    run.member("third")
    for each in (one, two):
        assert each.beat() is E.REBALANCE_IN_PROGRESS
    run.pass_ms(REBALANCE_MS - 1_000)
    assert one.beat() is E.REBALANCE_IN_PROGRESS
    two.join(session_timeout_ms=60_000)
    assert two.sync() is E.NONE
    run.pass_ms(1_001)
    assert run.group().members.keys() == {"new", "third", two.member}


def test_offsets_of_a_classic_member_go_by_its_generation(run):
    """GN 2.90, 2.119."""
    run.member("new")
    one = Consumer(run)
    one.join()
    offset = OffsetToCommit("ta", 0, 7, topic_id=TA)

    def commit(generation: int, member: str = one.member) -> Any:
        return lambda: run.coordinator.commit(
            CommitRequest("g", member, None, generation, offsets=(offset,))
        )

    assert now(commit(one.generation)()) == {("ta", 0): E.NONE}, "with any version"
    assert refused(commit(one.generation + 1)) is E.ILLEGAL_GENERATION
    assert refused(commit(one.generation - 1)) is E.ILLEGAL_GENERATION
    assert refused(commit(2, "new")) is E.UNSUPPORTED_VERSION
    run.coordinator.check_fetch("g", one.member, one.generation)
    assert refused(lambda: run.coordinator.check_fetch("g", one.member, 1)) is E.ILLEGAL_GENERATION
    assert refused(lambda: run.coordinator.check_fetch("g", "new", 1)) is E.STALE_MEMBER_EPOCH


def test_a_refused_join_changes_nothing(run):
    run.member("new")
    one = Consumer(run, "i")
    run.store.refuse = E.NOT_ENOUGH_REPLICAS
    assert one.join().error is E.COORDINATOR_NOT_AVAILABLE
    assert [*run.group().members] == ["new"]
    run.store.refuse = None
    assert one.join().error is E.NONE


# downgrade
def mixed(run: Migration, **how: Any) -> tuple[Consumer, Consumer]:
    """A group of a consumer member, `new`, and two classic ones, balanced."""
    run.member("new", **how)
    consumers = Consumer(run), Consumer(run)
    for each in consumers:
        each.join()
        each.sync()
    for _ in range(4):
        member = run.group().members["new"]
        run.told("new", member.epoch, owned=frozenset(member.assigned))
        for each in consumers:
            each.live()
    assert run.group().state.value == "Stable"
    return consumers


def leave(run: Migration) -> None:
    run.told("new", -1)


def be_removed(run: Migration) -> None:
    assert run.leave("new") == [E.NONE]


@pytest.mark.parametrize("go", [leave, be_removed])
def test_the_last_consumer_member_that_goes_leaves_a_classic_group(run, go):
    """GN 2.120: with the targets as assignments, and a rebalance at once."""
    one, two = mixed(run)
    epoch, targets = run.group().epoch, dict(run.group().targets)
    go(run)
    group, stored = run.group(), run.stored()
    assert isinstance(group, ClassicGroup) and group.state is PREPARING
    assert (stored.generation, stored.protocol, len(stored.members)) == (epoch, COOPERATIVE, 2)
    for member in stored.members:
        assert read_assignment(member.assignment, run.image) == targets[member.member_id]
        assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (
            SESSION_MS,
            REBALANCE_MS,
        )
    for each in (one, two):
        assert each.beat() in (E.REBALANCE_IN_PROGRESS, E.ILLEGAL_GENERATION)
    one.ask()
    two.ask()
    assert one.answered().generation == two.answered().generation == epoch + 1
    assert [each.group_type for each in run.listed()] == ["classic"]
    again = run.again()
    assert isinstance(again.group(), ClassicGroup)
    assert again.group().members.keys() == {one.member, two.member}


def test_a_session_that_ends_leaves_a_classic_group(run):
    """GN 2.53, 2.120."""
    run.set_up(session_timeout_ms=20_000)
    one, two = mixed(run)
    for _ in range(3):
        run.pass_ms(8_000)
        one.beat(), two.beat()
    assert isinstance(run.group(), ClassicGroup)
    assert run.group().members.keys() == {one.member, two.member}


def test_a_rebalance_timeout_leaves_a_classic_group(run):
    """GN 2.82, 2.120."""
    run.member("new")
    one = Consumer(run)
    one.join(session_timeout_ms=60_000)
    one.sync()
    run.told("new", 2)
    assert run.group().members["new"].state is MemberState.UNREVOKED_PARTITIONS
    run.pass_ms(10_001)
    assert isinstance(run.group(), ClassicGroup) and [*run.group().members] == [one.member]


def test_a_refused_downgrade_is_tried_again(run):
    """GN 2.83."""
    run.set_up(session_timeout_ms=20_000)
    run.member("new")
    one = Consumer(run)
    one.join(session_timeout_ms=60_000)
    one.sync()
    run.store.refuse = E.NOT_ENOUGH_REPLICAS
    left = run.beat("new", -1)
    run.settle()
    assert refused(lambda: left) is E.COORDINATOR_NOT_AVAILABLE
    run.pass_ms(20_001)
    assert isinstance(run.group(), ConsumerGroup) and len(run.group().members) == 2
    run.store.refuse = None
    run.pass_ms(600)
    assert isinstance(run.group(), ClassicGroup)


@pytest.mark.parametrize("why", ["size", "policy"])
def test_a_group_that_cannot_be_downgraded_goes_on_with_classic_members(run, why):
    """GN 2.120."""
    one, two = mixed(run)
    run.set_up(**({"classic_max_size": 1} if why == "size" else {"may_downgrade": False}))
    run.told("new", -1)
    assert run.group().members.keys() == {one.member, two.member}
    for _ in range(4):
        one.live()
        two.live()
    assert one.owned | two.owned == tas(0, 1, 2, 3) and not one.owned & two.owned
    assert isinstance(run.group(), ConsumerGroup)
    run.set_up(classic_max_size=10, may_downgrade=True)
    run.leave(one.member)
    assert isinstance(run.group(), ClassicGroup), "with the next that goes"


def test_the_last_member_of_all_leaves_an_empty_consumer_group(run):
    run.member("new")
    run.told("new", -1)
    assert isinstance(run.group(), ConsumerGroup) and run.group().is_empty


def test_several_that_leave_at_once_are_one_change(run):
    """GN 2.54."""
    one, two = mixed(run)
    assert run.leave(one.member, "new", "who") == [E.NONE, E.NONE, E.UNKNOWN_MEMBER_ID]
    assert isinstance(run.group(), ClassicGroup) and [*run.group().members] == [two.member]


@pytest.mark.parametrize(("topics", "state"), [(("ta",), STABLE), (("ta", "tb"), PREPARING)])
def test_a_classic_static_member_replaces_the_last_consumer_member(run, topics, state):
    """GN 2.120: it has the target of the one before; with another subscription all rebalance."""
    run.member("new", instance_id="i")
    before = run.group()
    one = Consumer(run, "i")
    joined = one.join(protocols={COOPERATIVE: metadata(topics)})
    group = run.group()
    assert isinstance(group, ClassicGroup) and group.state is state
    assert joined.error is E.NONE and [*group.members] == [one.member] and before.is_dead
    stored = run.stored()
    assert stored.generation == (2 if state is STABLE else 3)
    assert read_assignment(stored.members[0].assignment, run.image) == tas(0, 1, 2, 3)
    if state is STABLE:
        assert one.sync() is E.NONE and one.owned == tas(0, 1, 2, 3) and one.beat() is E.NONE
    else:
        assert one.sync() in (E.REBALANCE_IN_PROGRESS, E.ILLEGAL_GENERATION)
    again = run.again()
    assert isinstance(again.group(), ClassicGroup) and [*again.group().members] == [one.member]


def test_a_replacement_in_a_group_that_is_not_settled_rebalances(run):
    """*Ours*: who waits for a partition would wait in a classic group for ever."""
    run.member("new", instance_id="i")
    other = Consumer(run)
    other.join()
    assert other.sync() is E.NONE and other.owned == frozenset()
    one = Consumer(run, "i")
    assert one.join().error is E.NONE
    assert isinstance(run.group(), ClassicGroup) and run.group().state is PREPARING


def test_a_pattern_goes_with_the_member_that_a_classic_one_replaces(run):
    """GN 2.114 and section 6.2: also where others of the consumer protocol stay."""
    run.member("stays")
    run.member("new", names=None, pattern="t.", instance_id="i")
    run.settle()
    assert run.group().patterns.keys() == {"t."}
    assert Consumer(run, "i").join().error is E.NONE
    assert run.group().patterns == {}
    assert (16, False) in run.kinds()


def test_there_and_back_again(run):
    """A heartbeat joins what was downgraded a moment before."""
    one, two = mixed(run)
    run.told("new", -1)
    generation = run.group().generation
    joined = run.member("newer")
    assert isinstance(run.group(), ConsumerGroup) and joined.member_epoch == generation + 1
    epoch = joined.member_epoch
    for _ in range(4):
        one.live()
        two.live()
        epoch = run.told("newer", epoch, owned=frozenset()).member_epoch
    assert run.group().state.value == "Stable"
    members = run.group().members.keys()
    assert run.again().group().members.keys() == members


def test_a_heartbeat_behind_the_last_leave_is_told_to_come_again(run, monkeypatch):
    monkeypatch.setattr("twisted_broker.coordinator.consumer.migration.MEMBERS_PER_STEP", 1)
    one, _ = mixed(run)
    left = run.beat("new", -1)
    beat = run.coordinator.heartbeat("g", one.member, None, one.generation)
    run.settle()
    assert now(left).member_epoch == -1 and now(beat) is E.COORDINATOR_NOT_AVAILABLE
    assert one.beat() in (E.REBALANCE_IN_PROGRESS, E.ILLEGAL_GENERATION)


# logs of a Java broker
GROUP, ONE, NEW, TWO = (
    "u1",
    "probe-ceb5a8b9-c0ef-423c-a122-beeba811b99a",
    "n1",
    "Dny4vlaDScirtgtwM_MTIw",
)
AFTER_BATCHES: list[tuple[int, str, set[str]]] = [
    (2, "classic", {ONE}),
    (3, "consumer", {ONE, NEW}),
    (7, "consumer", {ONE, NEW}),
    (8, "consumer", {ONE, NEW, TWO}),
    (9, "classic", {ONE, TWO}),
    (10, "classic", set()),
]


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize(("batches", "kind", "members"), AFTER_BATCHES)
def test_a_log_of_kafka_is_loaded_wherever_it_ends(batches, kind, members, is_compacted):
    """The golden segment of an upgrade and a downgrade; compacted: the last value of each key, in
    the order of those, and the tombstones as well.
    """
    written = whole_batches("consumer-group-migrated", GROUP)[:batches]
    if is_compacted:
        last = {key: value for batch in written for key, value in batch}
        written = [[each] for each in sorted(last.items(), key=lambda each: each[0])]
    store = MemoryStore()
    for batch in written:
        store.append(partition_for(GROUP, store.partitions), batch_of(batch, 0), 0)
    run = Migration(store)
    group = run.group(GROUP)
    assert (group.group_type, group.members.keys()) == (kind, members)
    if kind == "consumer":
        assert group.members[ONE].classic.session_timeout_ms == SESSION_MS
        beat = run.coordinator.heartbeat(GROUP, ONE, None, group.members[ONE].epoch)
        assert now(beat) in (E.NONE, E.REBALANCE_IN_PROGRESS)
        run.pass_ms(SESSION_MS + 1)
        assert group.members.keys() == {NEW}, "each session is the member's own"
