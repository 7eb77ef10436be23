"""Consumer groups beside classic ones: which kind a name is, restarts, deletion, offsets."""

from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from tests.coordinator.broker_run import BrokerRun
from tests.coordinator.consumer.consumer_run import stored
from tests.coordinator.consumer.topics import TA, TB, image, topic
from tests.coordinator.test_group_coordinator import now
from twisted_broker.coordinator.classic_group import ClassicGroup
from twisted_broker.coordinator.consumer import target
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.requests import HeartbeatAnswer, HeartbeatRequest
from twisted_broker.coordinator.coordinator_publisher import CoordinatorPublisher
from twisted_broker.coordinator.group_records import (
    ProducerIdAndEpoch,
    batch_of,
    partition_for,
)
from twisted_broker.coordinator.offset_metadata_manager import CommitRequest, OffsetToCommit
from twisted_broker.image.metadata_delta import MetadataDelta
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.errors import ErrorCode as E

ONE, TWO = topic("ta", TA, [[None]] * 4), topic("tb", TB, [[None]] * 3)
SESSION_MS = 45_000


class Run(BrokerRun):
    def __init__(self, *args: Any, **settings: Any) -> None:
        self.image = image(ONE, TWO, offset=10)
        super().__init__(*args, **{"lead": False} | settings)
        self.coordinator.context.image = lambda: self.image
        self.set_interval(0)
        self.lead_all()

    def set_interval(self, milliseconds: int) -> None:
        self.set_up(assignment_interval_ms=milliseconds)

    def set_up(self, **consumer: Any) -> None:
        settings = self.coordinator.context.settings
        defaults = replace(settings.consumer.defaults, **consumer)
        changed = replace(settings.consumer, defaults=defaults)
        self.coordinator.update_settings(replace(settings, consumer=changed))

    def again(self) -> "Run":
        self.coordinator.stop()
        return Run(self.store, self.clock)

    def beat(self, member: str, epoch: int, group: str = "g", **fields: Any) -> Any:
        request = HeartbeatRequest(group, member, epoch, **fields)
        return self.coordinator.consumer_heartbeat(request, lambda topic: True)

    def start(self, member: str = "a", group: str = "g", **fields: Any) -> Any:
        fields = {"names": ("ta",), "owned": frozenset(), "rebalance_timeout_ms": 10_000} | fields
        return self.beat(member, 0, group, **fields)

    def member(self, member: str = "a", group: str = "g", **fields: Any) -> HeartbeatAnswer:
        waiting = self.start(member, group, **fields)
        self.settle()
        return now(waiting)

    def group(self, name: str = "g") -> Any:
        for shard in self.coordinator.runtime.shards.values():
            if name in shard.groups:
                return shard.groups[name].group
        return None

    def kinds(self, name: str = "g") -> list[tuple[int, bool]]:
        """Type and whether it has a value, of each record."""
        return [
            (int.from_bytes(key[:2], "big"), value is not None)
            for key, value in self.records(name)
            if key is not None
        ]


@pytest.fixture
def run() -> Run:
    return Run()


def refused(call: Any) -> E:
    with pytest.raises(BrokerError) as error:
        waiting = call()
        now(waiting)
    return error.value.code


# which kind a group is
def test_a_heartbeat_that_is_refused_leaves_no_group(run):
    assert refused(lambda: run.start(names=None, pattern="(")) is E.INVALID_REGULAR_EXPRESSION
    assert run.group() is None and run.records("g") == [] and run.listed() == []
    assert run.member().member_epoch == 2
    assert [(e.group_id, e.group_type, e.protocol_type) for e in run.listed()] == [
        ("g", "consumer", "consumer")
    ]


def test_groups_of_the_other_kind_are_not_found_with_members(run):
    """GN 2.10, 2.51, 2.132, and a JoinGroup, under the policy `disabled`."""
    run.set_up(may_upgrade=False, may_downgrade=False)
    run.stable("classic")
    assert refused(lambda: run.start(group="classic")) is E.GROUP_ID_NOT_FOUND
    assert refused(lambda: run.beat("a", -1, "classic")) is E.GROUP_ID_NOT_FOUND
    assert refused(lambda: run.beat("a", 3, "nobody")) is E.GROUP_ID_NOT_FOUND
    assert refused(lambda: run.beat("a", -1, "nobody")) is E.GROUP_ID_NOT_FOUND
    run.member()
    assert now(run.join()).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert now(run.sync("a", 2)).error is E.UNKNOWN_MEMBER_ID
    assert now(run.coordinator.heartbeat("g", "a", None, 2)) is E.UNKNOWN_MEMBER_ID
    assert run.coordinator.describe("g") is None


def test_an_empty_classic_group_becomes_a_consumer_group_and_keeps_its_offsets(run):
    """GN 2.10: its tombstone leads the records."""
    member = run.stable()
    now(run.coordinator.leave("g", [(member, None)]))
    run.settle()
    now(run.commit(OffsetToCommit("ta", 0, 7)))
    before = len(run.records("g"))
    run.member()
    assert run.kinds()[before:][:2] == [(2, False), (5, True)]
    for _ in range(2):
        assert isinstance(run.group(), ConsumerGroup) and run.fetched() == {("ta", 0): 7}
        run = run.again()


def test_a_refused_heartbeat_leaves_an_empty_classic_group_as_it_was(run):
    now(run.commit(OffsetToCommit("ta", 0, 7)))
    before = run.group()
    assert refused(lambda: run.start(names=None, pattern="(")) is E.INVALID_REGULAR_EXPRESSION
    assert run.group() is before
    run.store.refuse = E.NOT_ENOUGH_REPLICAS
    assert refused(run.start) is E.COORDINATOR_NOT_AVAILABLE
    assert run.group() is before and run.fetched() == {("ta", 0): 7}
    run.store.refuse = None
    run.member()
    assert run.kinds()[1:3] == [(2, False), (5, True)]


def test_the_tombstone_of_a_classic_group_leads_the_first_batch_and_no_other(run):
    """The first of two joins at once is refused: the second one's batch has it."""
    now(run.commit(OffsetToCommit("ta", 0, 7)))
    run.start(names=None, pattern="(").addErrback(lambda _: None)
    run.member("b")
    run.member("c")
    assert [key for key in run.kinds() if key[0] == 2] == [(2, False)]


def test_an_empty_consumer_group_becomes_a_classic_one(run):
    """GN 2.121: its tombstones, in the order of 2.101, and then the record of the classic one."""
    run.member()
    now(run.commit(OffsetToCommit("ta", 0, 7), member="a", generation=2, knows_member_epochs=True))
    now(run.beat("a", -1))
    before = len(run.records("g"))
    run.stable()
    written = run.kinds()[before:]
    assert written[:5] == [(6, False), (4, False), (3, False), (2, True), (2, True)]
    for _ in range(2):
        assert isinstance(run.group(), ClassicGroup) and run.group().members
        assert run.fetched() == {("ta", 0): 7}
        assert run.listed()[0].group_type == "classic"
        run = run.again()


def test_a_consumer_group_comes_back_where_the_classic_ones_record_is_refused(run):
    run.member()
    now(run.beat("a", -1))
    epoch = run.group().epoch
    run.store.refuse = E.NOT_ENOUGH_REPLICAS
    assert now(run.join(known=False)).error is E.COORDINATOR_NOT_AVAILABLE
    assert isinstance(run.group(), ConsumerGroup) and run.group().epoch == epoch
    run.store.refuse = None
    assert run.member().member_epoch == epoch + 1


def test_a_join_that_is_refused_leaves_the_empty_consumer_group(run):
    run.member()
    now(run.beat("a", -1))
    before = run.group()
    assert now(run.join(member="who")).error is E.UNKNOWN_MEMBER_ID
    assert now(run.join(kind="")).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert run.group() is before


# the broker
def test_a_restart_goes_on_where_it_was(run):
    """GN 0.5, 2.80: the same state, epochs, and a session for each member."""
    run.member("a")
    run.member("b")
    now(run.beat("a", 2, owned=frozenset()))
    before = stored(run.group())
    run = run.again()
    assert stored(run.group()) == before
    assert now(run.beat("a", 3)).member_epoch == 3
    run.pass_ms(SESSION_MS - 1_000)
    now(run.beat("a", 3))
    run.pass_ms(5_000)
    assert set(run.group().members) == {"a"}


def test_an_unload_answers_who_waits(run):
    run.store.held = []
    waiting = run.start()
    run.coordinator.runtime.unload_all()
    assert refused(lambda: waiting) is E.NOT_COORDINATOR
    assert refused(run.start) is E.NOT_COORDINATOR
    run.store.release()


def test_topics_that_change_reach_the_groups_that_subscribe_to_them(run):
    """GN 2.70: and no others."""
    run.member("a")
    run.member("a", "other", names=("tb",))
    publisher = CoordinatorPublisher(run.coordinator)
    grown = image(topic("ta", TA, [[None]] * 6), TWO, offset=11)
    delta = MetadataDelta.between(run.image, grown)
    run.image = grown
    publisher.image_changed(delta)
    assert run.group().must_compare_metadata and not run.group("other").must_compare_metadata
    answer = now(run.beat("a", 2))
    assert answer.member_epoch == 3 and len(answer.assignment) == 6


def test_a_pattern_finds_a_new_topic(run):
    """GN 2.64: only a heartbeat starts a refresh, and 10 s must have passed."""
    run.member(names=None, pattern="t.*")
    run.settle()
    assert len(now(run.beat("a", 1)).assignment) == 7
    publisher = CoordinatorPublisher(run.coordinator)
    third = topic("tc", b"c" * 16, [[None]] * 2)
    delta = MetadataDelta.between(run.image, grown := image(ONE, TWO, third, offset=11))
    run.image = grown
    publisher.image_changed(delta)
    run.pass_ms(11_000)
    now(run.beat("a", 2))
    run.settle()
    assert len(now(run.beat("a", 2)).assignment) == 9


# leaving by name, deletion, expiry
def test_an_admin_removes_members_in_one_bump(run):
    """GN 2.54: each has its own error; a static one is named by its instance."""
    run.member("a")
    run.member("b")
    run.member("c", instance_id="i")
    epoch = run.group().epoch
    leavers = [("a", None), ("nobody", None), ("", "i"), ("b", "i"), ("b", "other")]
    answers = now(run.coordinator.leave("g", leavers))
    assert [each.error for each in answers] == [
        E.NONE,
        E.UNKNOWN_MEMBER_ID,
        E.NONE,
        E.FENCED_INSTANCE_ID,
        E.UNKNOWN_MEMBER_ID,
    ]
    assert set(run.group().members) == {"b"} and run.group().epoch == epoch + 1
    assert [each.error for each in now(run.coordinator.leave("g", [("a", None)]))] == [
        E.UNKNOWN_MEMBER_ID
    ]


def test_a_group_is_deleted_with_its_offsets_and_its_tombstones(run):
    """GN 2.95, 2.101."""
    run.member()
    now(run.commit(OffsetToCommit("ta", 0, 7), member="a", generation=2, knows_member_epochs=True))
    assert refused(lambda: run.coordinator.delete_group("g")) is E.NON_EMPTY_GROUP
    now(run.beat("a", -1))
    before = len(run.records("g"))
    assert now(run.coordinator.delete_group("g")) is E.NONE
    assert run.kinds()[before:] == [(1, False), (6, False), (4, False), (3, False)]
    assert run.group() is None and run.again().group() is None


def test_a_deletion_behind_a_join_in_line_is_refused(run, monkeypatch):
    """The join was asked for before."""
    run.member()
    now(run.beat("a", -1))
    assign = target.ASSIGNORS["uniform"]

    def slowly(spec):
        for _ in range(3):
            yield
        return (yield from assign(spec))

    monkeypatch.setattr(target, "ASSIGNORS", {"uniform": slowly})
    joining = run.start("b")
    deleting = run.coordinator.delete_group("g")
    assert refused(lambda: run.start("c")) is E.COORDINATOR_NOT_AVAILABLE
    run.settle()
    assert now(joining).member_epoch > 0 and now(deleting) is E.NON_EMPTY_GROUP
    assert set(run.group().members) == {"b"}
    now(run.beat("b", now(joining).member_epoch))


def test_an_empty_group_goes_with_its_last_offset():
    """GN 2.96: offsets of topics without subscribers expire by their commit."""
    run = Run(offsets_retention_ms=60_000, retention_check_interval_ms=10_000)
    run.member()
    for name in ("ta", "tb"):
        offset = OffsetToCommit(name, 0, 7)
        now(run.commit(offset, member="a", generation=2, knows_member_epochs=True))
    for _ in range(3):
        run.pass_ms(30_000)
        now(run.beat("a", 2))
    assert run.fetched() == {("ta", 0): 7}
    now(run.beat("a", -1))
    run.pass_ms(10_000)
    assert run.group() is None and run.again().group() is None


# offsets
@pytest.mark.parametrize(
    ("member", "epoch", "knows", "error"),
    [
        ("a", 2, True, E.NONE),
        ("a", 2, False, E.UNSUPPORTED_VERSION),
        ("a", 3, True, E.STALE_MEMBER_EPOCH),
        ("a", 1, True, E.STALE_MEMBER_EPOCH),
        ("b", 2, True, E.UNKNOWN_MEMBER_ID),
        ("", -1, True, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_may_commit(run, member, epoch, knows, error):
    """GN 2.90."""
    run.member()
    offset = OffsetToCommit("ta", 0, 7, topic_id=TA)

    def commit() -> Any:
        return run.commit(offset, member=member, generation=epoch, knows_member_epochs=knows)

    if error is E.NONE:
        assert now(commit()) == {("ta", 0): E.NONE}
    else:
        assert refused(commit) is error


def test_a_commit_of_a_transaction_has_the_errors_of_one(run):
    """GN 2.93."""
    run.member()
    producer = ProducerIdAndEpoch(5, 0)

    def commit(member: str = "", epoch: int = -1) -> Any:
        run.coordinator._commit(
            CommitRequest(
                "g", member, None, epoch, offsets=(OffsetToCommit("ta", 0, 7),), producer=producer
            ),
            None,
        )

    commit()
    commit("a", 2)
    for member, epoch, error in (
        ("a", 1, E.ILLEGAL_GENERATION),
        ("a", 3, E.ILLEGAL_GENERATION),
        ("b", 2, E.UNKNOWN_MEMBER_ID),
    ):
        assert refused(lambda m=member, e=epoch: commit(m, e)) is error


def test_who_may_fetch(run):
    """GN 2.94: a group that does not exist, or is classic, asks nobody."""
    check = run.coordinator.check_fetch
    check("nobody", "a", 9)
    run.member()
    check("g", None, -1)
    check("g", "a", 2)
    for member, epoch, error in (
        ("a", 1, E.STALE_MEMBER_EPOCH),
        ("a", -1, E.STALE_MEMBER_EPOCH),
        ("b", 2, E.UNKNOWN_MEMBER_ID),
    ):
        assert refused(lambda m=member, e=epoch: check("g", m, e)) is error


def test_offsets_of_subscribed_topics_are_not_deleted(run):
    """GN 2.95."""
    run.member()
    deleted = run.coordinator.delete_offsets("g", [("ta", 0), ("tb", 0)])
    run.settle()
    assert now(deleted) == {("ta", 0): E.GROUP_SUBSCRIBED_TO_TOPIC, ("tb", 0): E.NONE}


# loading
def test_a_name_that_is_both_kinds_is_served_as_a_consumer_group(run):
    """GN 2.104: no broker writes that."""
    run.stable("g")
    other = Run()
    other.member("b")
    index = partition_for("g", run.store.partitions)
    run.store.put(index, bytes(other.store.logs[index]))
    run = run.again()
    assert isinstance(run.group(), ConsumerGroup) and set(run.group().members) == {"b"}


def test_a_record_that_cannot_be_read_is_skipped(run):
    """The older value of its key counts."""
    run.member()
    key = next(key for key, _ in run.records("g") if key[:2] == b"\0\5")
    index = partition_for("g", run.store.partitions)
    run.store.put(index, batch_of([(key, b"\0\0\x7f"), (b"\0\5\0", b"\0\0")], 0))
    before = stored(run.group())
    assert stored(run.again().group()) == before


def test_a_view_describes_what_is_committed(run):
    """A partition whose last records are not committed: a group with records there is not
    described, and no heartbeat is taken.
    """
    run.member()
    run.member("a", "other")
    index = partition_for("g", run.store.partitions)
    run.coordinator.runtime.unload(index)
    run.store.commits[index] = Deferred()
    run.store.high_watermarks[index] = 0
    run.coordinator.runtime.load(index, 5)
    run.pass_ms(1_500)
    assert refused(lambda: run.coordinator.describe_consumer_group("g")) is (
        E.COORDINATOR_LOAD_IN_PROGRESS
    )
    assert refused(lambda: run.beat("a", 2)) is E.COORDINATOR_LOAD_IN_PROGRESS
    run.store.high_watermarks.clear()
    run.store.commits.pop(index).callback(True)
    run.settle()
    assert now(run.coordinator.describe_consumer_group("g")).state == "Stable"


def test_a_description_waits_until_it_is_committed(run):
    """GN 2.130."""
    run.member()
    run.store.held = []
    joining = run.start("b")
    describing = run.coordinator.describe_consumer_group("g")
    assert not describing.called
    run.store.release()
    assert now(joining).member_epoch == 3 and len(now(describing).members) == 2


def test_an_empty_consumer_group_makes_room_for_another_group():
    """At the bound of groups: it goes with its tombstones, and the one who asks comes again."""
    run = Run(max_groups=2)
    run.member(group="kept")
    run.member(group="empty")
    now(run.beat("a", -1, "empty"))
    run.settle()
    run.store.held = []
    assert refused(lambda: run.start(group="third")) is E.COORDINATOR_NOT_AVAILABLE
    assert refused(lambda: run.start(group="third")) is E.COORDINATOR_NOT_AVAILABLE
    run.store.release()
    run.store.held = None
    run.settle()
    assert run.group("empty") is None and run.kinds("empty")[-1] == (3, False)
    assert run.member(group="third").member_epoch == 2
    assert refused(lambda: run.start(group="fourth")) is E.COORDINATOR_NOT_AVAILABLE
    assert run.group("kept") is not None and run.group("third") is not None


def test_an_empty_consumer_group_with_offsets_keeps_its_place():
    run = Run(max_groups=1)
    run.member()
    now(run.beat("a", -1))
    now(run.commit(OffsetToCommit("ta", 0, 7)))
    assert refused(lambda: run.start(group="other")) is E.COORDINATOR_NOT_AVAILABLE
    run.settle()
    assert run.fetched() == {("ta", 0): 7}
