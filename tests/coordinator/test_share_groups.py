"""Share groups in the group coordinator: their states with the share coordinator, what they are to
the other kinds, restarts, deletion (GN 3.1, 3.7, 3.10-3.14, 3.91, 3.92).
"""

from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from tests.coordinator.broker_run import BrokerRun
from tests.coordinator.consumer.topics import TA, TB, image, topic
from tests.coordinator.memory_store import MemoryStore
from tests.coordinator.share.share_run import stored
from tests.coordinator.test_group_coordinator import now
from tests.coordinator.test_group_records import GOLDEN
from twisted_broker.coordinator.classic_group import ClassicGroup
from twisted_broker.coordinator.consumer.requests import HeartbeatRequest
from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.coordinator.offset_metadata_manager import CommitRequest, OffsetToCommit
from twisted_broker.coordinator.share.group import ShareGroup
from twisted_broker.coordinator.share.records import ShareStates
from twisted_broker.coordinator.share.requests import ShareHeartbeatRequest
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.errors import ErrorCode as E

ONE, TWO = topic("ta", TA, [[None]] * 4), topic("tb", TB, [[None]] * 2)


class Persister:
    """Answers at once, or when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.held: list[Deferred[None]] | None = None
        self.refuse: E | None = None

    def initialize(self, key: Any, state_epoch: int, start_offset: int) -> Deferred[None]:
        return self._answer("initialize", *key, state_epoch, start_offset)

    def delete(self, key: Any) -> Deferred[None]:
        return self._answer("delete", *key)

    def _answer(self, *asked: Any) -> Deferred[None]:
        self.asked.append(asked)
        answer: Deferred[None] = Deferred()
        if self.held is not None:
            self.held.append(answer)
        elif self.refuse is not None:
            answer.errback(BrokerError(self.refuse))
        else:
            answer.callback(None)
        return answer

    def release(self) -> None:
        held, self.held = self.held or [], None
        for each in held:
            each.callback(None)


class Run(BrokerRun):
    def __init__(self, *args: Any, **settings: Any) -> None:
        self.image, self.persister = image(ONE, TWO, offset=10), Persister()
        super().__init__(*args, **{"lead": False} | settings)
        context: Any = self.coordinator.context
        context.image, context.persister = (lambda: self.image), self.persister
        share = context.settings.share
        share = replace(share, defaults=replace(share.defaults, assignment_interval_ms=0))
        self.coordinator.update_settings(replace(context.settings, share=share))
        self.lead_all()

    def again(self) -> "Run":
        self.coordinator.stop()
        return Run(self.store, self.clock)

    def start(self, member: str, epoch: int, names: Any = None, group: str = "g") -> Any:
        request = ShareHeartbeatRequest(group, member, epoch, names=names)
        return self.coordinator.share_heartbeat(request)

    def beat(self, member: str = "a", epoch: int = 0, names: Any = None, group: str = "g") -> Any:
        names = ("ta",) if epoch == 0 and names is None else names
        waiting = self.start(member, epoch, names, group)
        self.settle()
        return now(waiting)

    def joined(self, group: str = "g") -> Any:
        epoch = self.beat(group=group).member_epoch
        return self.beat("a", epoch, group=group)

    def group(self, name: str = "g") -> Any:
        for shard in self.coordinator.runtime.shards.values():
            if name in shard.groups:
                return shard.groups[name].group
        return None

    def get(self, waiting: Any) -> Any:
        """What it fires with, without any time passing."""
        self.settle()
        return now(waiting)

    def code(self, call: Any) -> E:
        """The error of what raises or fails."""
        try:
            found = self.get(call())
        except BrokerError as error:
            return error.code
        return found if isinstance(found, E) else E.NONE

    def types(self, name: str = "g") -> list[int]:
        return [int.from_bytes(key[:2], "big") for key, _ in self.records(name) if key]


@pytest.fixture
def run() -> Run:
    return Run()


def test_states_are_asked_for_when_the_heartbeat_is_committed(run):
    """GN 3.10."""
    run.store.held = []
    waiting = run.start("a", 0, ("ta",))
    run.settle()
    assert not waiting.called and not run.persister.asked
    run.store.release()
    run.settle()
    run.store.release()
    run.store.held = None
    assert run.get(waiting).assignment == frozenset()
    assert sorted(run.persister.asked) == [
        ("initialize", "g", TA, number, 2, -1) for number in range(4)
    ]
    assert run.coordinator.share_states("g").initialized[TA].partitions == {0, 1, 2, 3}
    assert run.beat("a", 2).assignment == {(TA, number) for number in range(4)}


def test_a_heartbeat_does_not_wait_for_the_share_coordinator(run):
    run.persister.held = []
    assert run.beat().member_epoch == 2
    assert run.beat("a", 2).assignment is None
    assert len(run.persister.asked) == 4
    run.persister.release()
    run.settle()
    assert run.beat("a", 2).member_epoch == 3


def test_what_the_share_coordinator_refuses_is_asked_again(run):
    run.persister.refuse = E.COORDINATOR_NOT_AVAILABLE
    run.beat()
    assert run.coordinator.share_states("g").initializing == {}
    run.persister.refuse = None
    run.beat("a", 2)
    assert len(run.persister.asked) == 8
    assert run.beat("a", 2).member_epoch == 3


def test_without_a_way_to_the_share_coordinator_nothing_is_assigned(run):
    run.coordinator.context.persister = None
    assert run.beat().assignment == frozenset()
    assert run.beat("a", 2).member_epoch == 2


def test_a_session_that_ends_removes_its_member(run):
    """GN 3.7."""
    run.joined()
    run.pass_ms(44_000)
    run.beat("a", 3)
    run.pass_ms(44_000)
    assert run.group().members
    run.pass_ms(2_000)
    assert not run.group().members and run.group().state.value == "Empty"


def test_a_restart_goes_on_where_it_was(run):
    run.joined()
    before = stored(run.group())
    run = run.again()
    assert stored(run.group()) == before
    assert run.beat("a", 3).member_epoch == 3
    run.pass_ms(46_000)
    assert not run.group().members


def test_logs_that_kafka_wrote_are_loaded():
    """GN 3.11, 3.13: both groups end empty, one of them deleted."""
    store = MemoryStore()
    for name, group in (("members", "sg1"), ("offsets", "sg2")):
        content = (GOLDEN / f"share-group-{name}.log").read_bytes()
        store.load_file(partition_for(group, 50), content)
    run = Run(store)
    found = run.group("sg1")
    assert isinstance(found, ShareGroup)
    assert (found.epoch, found.state.value, found.protocol_type) == (5, "Empty", "share")
    (states,) = found.states.initialized.values()
    assert states.name == "ts1" and run.group("sg2") is None


def test_kinds_do_not_change(run):
    """GN 3.1, 3.14: a share group stays one also without members, and takes nobody's place."""
    run.joined()
    run.beat("a", -1)
    consumer = HeartbeatRequest("g", "c", 0, names=("ta",), rebalance_timeout_ms=1)
    assert (
        run.code(lambda: run.coordinator.consumer_heartbeat(consumer, lambda name: True))
        is E.GROUP_ID_NOT_FOUND
    )
    assert run.get(run.join()).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert run.coordinator.heartbeat("g", "a", None, 1) is E.UNKNOWN_MEMBER_ID
    (left,) = run.get(run.coordinator.leave("g", [("a", None)]))
    assert left.error is E.UNKNOWN_MEMBER_ID
    assert run.coordinator.describe("g") is None
    assert run.code(lambda: run.coordinator.describe_consumer_group("g")) is E.GROUP_ID_NOT_FOUND
    (listed,) = [row for rows in run.coordinator.listings() for row in rows]
    assert (listed.group_type, listed.protocol_type, listed.state) == ("share", "share", "Empty")


@pytest.mark.parametrize("epoch", [0, 1, -1])
def test_other_groups_are_no_share_groups(run, epoch):
    run.get(run.commit(OffsetToCommit("ta", 0, 5)))
    assert run.code(lambda: run.start("a", epoch, ("ta",))) is E.GROUP_ID_NOT_FOUND
    assert isinstance(run.group(), ClassicGroup)
    assert run.code(lambda: run.coordinator.describe_share_group("g")) is E.GROUP_ID_NOT_FOUND
    assert run.code(lambda: run.coordinator.alter_share_offsets("g", {})) is E.GROUP_ID_NOT_FOUND


def test_offsets_are_not_kept_by_share_groups(run):
    """GN 3.13."""
    run.joined()
    commit = CommitRequest("g", "", None, -1, offsets=(OffsetToCommit("ta", 0, 5),))
    assert run.code(lambda: run.coordinator.commit(commit)) is E.GROUP_ID_NOT_FOUND
    run.coordinator.check_fetch("g", "nobody", 7)
    (fetched,) = run.coordinator.fetch_offsets("g", [("ta", 0, TA)])
    assert fetched.committed is None
    assert (
        run.code(lambda: succeed(run.coordinator.check_delete_offsets("g"))) is E.GROUP_ID_NOT_FOUND
    )


def test_a_heartbeat_that_is_refused_leaves_no_group(run):
    run.store.refuse = E.NOT_ENOUGH_REPLICAS
    assert run.code(lambda: run.start("a", 0, ("ta",))) is E.COORDINATOR_NOT_AVAILABLE
    assert run.group() is None
    run.store.refuse = None
    assert run.code(lambda: run.start("a", 1)) is E.GROUP_ID_NOT_FOUND
    assert run.code(lambda: run.coordinator.describe_share_group("g")) is E.GROUP_ID_NOT_FOUND


def test_a_description(run):
    run.joined()
    described = run.get(run.coordinator.describe_share_group("g"))
    assert (described.state, described.group_epoch, described.assignment_epoch) == ("Stable", 3, 3)
    (member,) = described.members
    assert member.assignment == [(TA, "ta", [0, 1, 2, 3])] and described.assignor == "simple"


def test_a_topic_that_is_deleted_is_forgotten(run):
    """GN 3.11."""
    run.joined()
    run.image = image(TWO)
    run.coordinator.topics_changed({"ta"}, False)
    run.settle()
    assert run.coordinator.share_states("g") == ShareStates()
    assert run.beat("a", 3).assignment == frozenset()


# administration
def test_a_group_is_deleted_with_its_states(run):
    """GN 3.12."""
    run.joined()
    assert run.code(lambda: run.coordinator.delete_group("g")) is E.NON_EMPTY_GROUP
    run.beat("a", -1)
    run.persister.asked.clear()
    count = len(run.types())
    assert run.code(lambda: run.coordinator.delete_group("g")) is E.NONE
    assert [each[0] for each in run.persister.asked] == ["delete"] * 4
    assert run.types()[count:] == [15, 15, 12, 15, 11]
    assert run.group() is None and run.again().group() is None


def test_a_group_whose_states_are_not_deleted_stays(run):
    run.joined()
    run.beat("a", -1)
    run.persister.refuse = E.COORDINATOR_NOT_AVAILABLE
    assert run.code(lambda: run.coordinator.delete_group("g")) is E.COORDINATOR_NOT_AVAILABLE
    assert set(run.coordinator.share_states("g").deleting) == {TA}
    run.persister.refuse = None
    assert run.code(lambda: run.coordinator.delete_group("g")) is E.NONE
    assert run.group() is None


def test_nobody_joins_a_group_while_its_states_are_deleted(run):
    run.joined()
    run.beat("a", -1)
    run.persister.held = []
    deleting = run.coordinator.delete_group("g")
    run.settle()
    assert run.code(lambda: run.start("a", 0, ("ta",))) is E.COORDINATOR_NOT_AVAILABLE
    run.persister.release()
    run.settle()
    assert run.get(deleting) is E.NONE
    assert run.beat().member_epoch == 2


def test_an_unload_answers_who_waits(run):
    run.joined()
    run.beat("a", -1)
    run.persister.held = []
    deleting = run.coordinator.delete_group("g")
    altering = run.coordinator.alter_share_offsets("h", {"ta": {0: 5}})
    run.settle()
    for index in range(run.store.partitions):
        run.coordinator.runtime.unload(index)
    run.settle()
    run.persister.release()
    run.settle()
    assert run.code(lambda: deleting) is E.NOT_COORDINATOR
    assert run.code(lambda: altering) is E.NOT_COORDINATOR


def test_offsets_are_set_before_anybody_joins(run):
    """GN 3.91."""
    starts = {"ta": {0: 5, 9: 1}, "nobody": {0: 1}}
    known, unknown = run.get(run.coordinator.alter_share_offsets("g", starts))
    assert known.partitions == {0: E.NONE, 9: E.UNKNOWN_TOPIC_OR_PARTITION}
    assert unknown.partitions == {0: E.UNKNOWN_TOPIC_OR_PARTITION} and unknown.topic_id is None
    assert run.persister.asked == [("initialize", "g", TA, 0, 1, 5)]
    run = run.again()
    assert run.coordinator.share_states("g").initialized[TA].partitions == {0}
    run.beat()
    assert [each[3] for each in sorted(run.persister.asked)] == [1, 2, 3]
    assert run.code(lambda: run.coordinator.alter_share_offsets("g", starts)) is E.NON_EMPTY_GROUP


def test_offsets_that_cannot_be_set_say_why(run):
    run.persister.refuse = E.FENCED_STATE_EPOCH
    (answer,) = run.get(run.coordinator.alter_share_offsets("g", {"ta": {0: 5}}))
    assert answer.partitions == {0: E.FENCED_STATE_EPOCH}
    assert run.coordinator.share_states("g").initializing == {}


def test_setting_nothing_leaves_no_group(run):
    (answer,) = run.get(run.coordinator.alter_share_offsets("g", {"nobody": {0: 1}}))
    assert answer.partitions == {0: E.UNKNOWN_TOPIC_OR_PARTITION}
    assert run.group() is None and not run.records("g")


def test_offsets_of_topics_are_deleted(run):
    """GN 3.92."""
    delete = run.coordinator.delete_share_offsets
    assert run.code(lambda: delete("g", ["ta"])) is E.GROUP_ID_NOT_FOUND
    run.joined()
    assert run.code(lambda: delete("g", ["ta"])) is E.NON_EMPTY_GROUP
    run.beat("a", -1)
    run.persister.asked.clear()
    answers = run.get(delete("g", ["ta", "tb", "nobody"]))
    assert [(each.name, each.error) for each in answers] == [
        ("ta", E.NONE),
        ("tb", E.UNKNOWN_TOPIC_OR_PARTITION),
        ("nobody", E.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert len(run.persister.asked) == 4
    assert run.coordinator.share_states("g") == ShareStates()


def test_an_empty_group_stays_until_it_is_deleted(run):
    """GN 3.13: with it the places would go up to which its partitions are read."""
    run.joined()
    run.beat("a", -1)
    run.pass_ms(2 * run.coordinator.context.settings.retention_check_interval_ms)
    assert run.group() is not None
    assert run.coordinator.share_states("g").initialized[TA].partitions == {0, 1, 2, 3}


def test_a_topic_that_went_while_nobody_coordinated_raises_no_epoch_again_and_again(run):
    run.joined()
    run = run.again()
    run.image = image(TWO)
    first = run.beat("a", 3)
    assert first.assignment == frozenset()
    epochs = {run.beat("a", first.member_epoch).member_epoch for _ in range(3)}
    assert epochs == {first.member_epoch}
    assert run.coordinator.share_states("g") == ShareStates()
