"""Groups of very many members, protocols and bytes: no turn is long, and what bounds them."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import pytest

from tests.coordinator.broker_run import BrokerRun, TurnClock, subscription
from tests.coordinator.group_run import GroupRun
from twisted_broker import turns
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator import (
    bucket_dict,
    classic_group,
    coordinator_loader,
    coordinator_shard,
    group_coordinator,
    group_deletion,
    group_offsets,
    group_records,
    membership,
    offset_metadata_manager,
)
from twisted_broker.coordinator.classic_group import ClassicGroup, ClassicGroupMember
from twisted_broker.coordinator.coordinator_context import coordinator_settings
from twisted_broker.coordinator.group_entry import GroupEntry
from twisted_broker.coordinator.group_offsets import GroupOffsets
from twisted_broker.coordinator.group_records import CommittedOffset, partition_for
from twisted_broker.coordinator.offset_metadata_manager import OffsetToCommit
from twisted_broker.coordinator.rebalance import MOST_MEMBERS, GroupSettings
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.schema import run_whole

MEMBERS = 100
EACH_SECONDS = 0.001


def joined(run: BrokerRun, answered: list[float]) -> list[Any]:
    """Members that wait for their generation; answering one takes a millisecond."""

    def answer(result: Any) -> Any:
        run.clock.rightNow += EACH_SECONDS
        answered.append(run.clock.seconds())
        return result

    return [
        run.join(instance=f"i{n}", session_ms=6_000).addCallback(answer) for n in range(MEMBERS)
    ]


def turns_until(run: BrokerRun, is_done: Any) -> list[float]:
    """How long each turn took."""
    took: list[float] = []
    while not is_done():
        began = run.clock.seconds()
        run.clock.turn()
        took.append(run.clock.seconds() - began)
        if took[-1] == 0:
            run.clock.rightNow += 0.001
    return took


def test_the_answers_of_a_rebalance_are_sent_in_turns() -> None:
    """Of JoinGroup and of SyncGroup: a turn ends a few answers after its time is over."""
    answered: list[float] = []
    run = BrokerRun(clock=TurnClock(), initial_rebalance_delay_ms=1000)
    waiting = joined(run, answered)
    most = (coordinator_shard.AT_ONCE + 2 * coordinator_shard.RUN_PER_STEP) * EACH_SECONDS
    assert max(turns_until(run, lambda: len(answered) == MEMBERS)) <= most
    answers = [each.result for each in waiting]
    leader = next(each for each in answers if each.leader == each.member_id)
    assert len(leader.members) == MEMBERS and {each.generation for each in answers} == {1}
    synced: list[Any] = []

    def note(result: Any) -> Any:
        run.clock.rightNow += EACH_SECONDS
        synced.append(result)
        return result

    ids = [each.member_id for each in answers]
    for member_id in sorted(ids, key=lambda each: each == leader.member_id):
        given = {each: each.encode() for each in ids} if member_id == leader.member_id else None
        run.sync(member_id, 1, given).addCallback(note)
    assert max(turns_until(run, lambda: len(synced) == MEMBERS)) <= most
    assert sorted(each.assignment.decode() for each in synced) == sorted(ids)


def test_a_member_whose_answer_waits_for_its_turn_keeps_its_session() -> None:
    """The session begins with the decision, not with the answer that may come later."""
    answered: list[float] = []
    run = BrokerRun(clock=TurnClock(), initial_rebalance_delay_ms=1000)
    waiting = joined(run, answered)
    while len(answered) < coordinator_shard.AT_ONCE:
        run.clock.rightNow += 0.1
        run.clock.turn()
    last = next(each for each in waiting if not each.called)
    run.pass_ms(5_900)
    assert last.called
    member = last.result.member_id
    assert run.coordinator.heartbeat("g", member, f"i{waiting.index(last)}", 1) is E.NONE


def test_who_waits_for_an_answer_when_the_broker_stops_gets_one() -> None:
    """The end does not wait for turns, and nothing is answered twice."""
    answered: list[float] = []
    run = BrokerRun(clock=TurnClock(), initial_rebalance_delay_ms=1000)
    waiting = joined(run, answered)
    while not answered:
        run.clock.rightNow += 0.1
        run.clock.turn()
    assert len(answered) < MEMBERS
    run.coordinator.stop()
    assert len(answered) == MEMBERS and all(each.called for each in waiting)


def test_a_groups_size_is_bounded_whatever_is_set() -> None:
    """`group.max.size` is 2^31-1 unless it is set."""
    assert coordinator_settings(BrokerConfig({})).group.max_size == MOST_MEMBERS
    assert coordinator_settings(BrokerConfig({"group.max.size": "7"})).group.max_size == 7


def test_ids_that_wait_for_their_members_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks for ids and never joins; who has one still joins."""
    monkeypatch.setattr(membership, "MOST_PENDING", 3)
    run = GroupRun(GroupSettings(initial_rebalance_delay_ms=0))
    given = [run.join().join for _ in range(4)]
    assert [each.error for each in given] == [E.MEMBER_ID_REQUIRED] * 3 + [E.GROUP_MAX_SIZE_REACHED]
    assert len(run.group.pending_joins) == 3
    run.join(given[0].member_id)
    assert given[0].member_id in run.group.members


def test_the_bytes_of_all_members_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted as members join, change and go; who comes back with as much has room."""
    monkeypatch.setattr(membership, "MOST_METADATA_BYTES", 1000)
    run = GroupRun(GroupSettings(initial_rebalance_delay_ms=0))
    large, small = {"range": bytes(800)}, {"range": bytes(200)}
    first = run.stable(protocols=large)[0]
    assert run.group.metadata_bytes == 800
    assert run.join(known=False, protocols=large).join.error is E.GROUP_MAX_SIZE_REACHED
    assert run.group.metadata_bytes == 800 and list(run.group.members) == [first]
    assert run.join(first, protocols=large).join.error is E.NONE
    run.sync(first, assignments={first: b""})
    run.join(first, protocols=small)
    assert run.group.metadata_bytes == 200
    run.leave((first, None))
    assert run.group.metadata_bytes == 0


def test_a_member_that_comes_back_with_too_much_leaves_its_partitions_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a member that left: the others rebalance, the last one leaves an empty group."""
    monkeypatch.setattr(membership, "MOST_METADATA_BYTES", 1000)
    run = GroupRun(GroupSettings(initial_rebalance_delay_ms=0))
    first, second = run.stable(2, protocols={"range": bytes(100)})
    assert run.join(first, protocols={"range": bytes(950)}).join.error is E.GROUP_MAX_SIZE_REACHED
    assert list(run.group.members) == [second]
    assert run.group.state.value == "PreparingRebalance"


def test_a_record_of_too_many_bytes_is_refused_before_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the error of a record that the topic refuses."""
    monkeypatch.setattr(group_records, "MOST_MEMBER_BYTES", 100)
    run = BrokerRun()
    waiting: Any = run.join(instance="i")
    run.pass_ms(10)
    member, before = waiting.result.member_id, len(run.records("g"))
    synced: Any = run.sync(member, 1, {member: bytes(100)})
    run.pass_ms(10)
    assert synced.result.error is E.UNKNOWN_SERVER_ERROR
    assert len(run.records("g")) == before


def test_the_record_of_a_large_group_is_encoded_in_turns_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not in the turn of the leader's SyncGroup; what was decided later waits for it, and the
    record is the same.
    """
    monkeypatch.setattr(coordinator_shard, "LARGE_MEMBERS", MEMBERS - 1)
    run = BrokerRun(clock=TurnClock(), initial_rebalance_delay_ms=1000)
    answered: list[float] = []
    waiting = joined(run, answered)
    turns_until(run, lambda: len(answered) == MEMBERS)
    answers = [each.result for each in waiting]
    leader = next(each for each in answers if each.leader == each.member_id)
    before = len(run.records("g"))
    given = {each.member_id: each.member_id.encode() for each in answers}
    synced: Any = run.sync(leader.member_id, 1, given)
    other = run.join(known=True)
    assert len(run.records("g")) == before and not synced.called and not other.called
    turns_until(run, lambda: synced.called)
    assert other.called and synced.result.assignment == leader.member_id.encode()
    key, value = run.records("g")[-1]
    read = group_records.read_record(key, value)
    assert isinstance(read, group_records.GroupRecord) and read.value is not None
    assert {m.member_id: m.assignment for m in read.value.members} == given
    assert group_records.group_record("g", read.value) == (key, value)


def test_a_large_record_that_is_refused_or_overtaken_by_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refused: all rebalance, as with a small one. When the broker stops before it is encoded,
    nothing is written, then or later.
    """
    monkeypatch.setattr(coordinator_shard, "LARGE_BYTES", 99)
    run = BrokerRun(clock=TurnClock())
    waiting: Any = run.join(instance="i")
    turns_until(run, lambda: waiting.called)
    member, before = waiting.result.member_id, len(run.records("g"))
    with monkeypatch.context() as limits:
        limits.setattr(group_records, "MOST_MEMBER_BYTES", 100)
        refused: Any = run.sync(member, 1, {member: bytes(101)})
        turns_until(run, lambda: refused.called)
    assert refused.result.error is E.UNKNOWN_SERVER_ERROR and len(run.records("g")) == before
    again: Any = run.join(member=member, instance="i")
    turns_until(run, lambda: again.called)
    synced: Any = run.sync(member, again.result.generation, {member: bytes(101)})
    assert not synced.called
    run.coordinator.stop()
    assert synced.result.error is E.NOT_COORDINATOR
    while run.clock.getDelayedCalls():
        run.clock.turn()
    assert len(run.records("g")) == before


def test_a_group_that_is_deleted_while_its_record_waits_stays_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last record is the tombstone: what was decided before is written before."""
    monkeypatch.setattr(coordinator_shard, "LARGE_BYTES", 99)
    run = BrokerRun(clock=TurnClock())
    waiting: Any = run.join(known=False)
    turns_until(run, lambda: waiting.called)
    if waiting.result.error is E.MEMBER_ID_REQUIRED:
        waiting = run.join(member=waiting.result.member_id)
        turns_until(run, lambda: waiting.called)
    member = waiting.result.member_id
    synced: Any = run.sync(member, waiting.result.generation, {member: bytes(101)})
    assert not synced.called
    run.coordinator.leave("g", [(member, None)])
    deleted = run.coordinator.delete_group("g")
    shard = run.coordinator.runtime.shard_of("g")
    turns_until(run, lambda: deleted.called and not shard._waiting)
    assert deleted.result is E.NONE
    values = [
        read.value
        for read in (group_records.read_record(*each) for each in run.records("g"))
        if isinstance(read, group_records.GroupRecord)
    ]
    assert len(values) > 1 and values[-1] is None and None not in values[:-1]


def test_subscriptions_to_very_many_topics_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same one of several members counts once."""
    monkeypatch.setattr(classic_group, "MOST_TOPICS", 4)
    group = ClassicGroup("g", 0)

    def add(name: str, *topics: str) -> None:
        metadata = {"range": subscription(*topics)}
        group.add(ClassicGroupMember(name, None, "c", "/h", 1, 1, metadata), "consumer")
        group.protocol_name = "range"

    for name in "abc":
        add(name, "x", "y")
    assert group.compute_subscribed_topics() == {"x", "y"}
    add("d", "x", "y", "z")
    assert group.compute_subscribed_topics() is None


def test_many_offsets_of_a_group_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No commit moves them all, and what they say does not change."""
    monkeypatch.setattr(group_offsets, "MANY_OFFSETS", 10)
    offsets, plain = GroupOffsets(), {}
    for number in range(30):
        assert isinstance(offsets.committed, dict) is (number < 10)
        partition, committed = ("t", number % 20), CommittedOffset(number, record_offset=number)
        assert offsets.put(partition, committed) is (number < 20)
        plain[partition] = committed
    assert not offsets.put(("t", 3), CommittedOffset(1, record_offset=1))
    assert offsets.remove(("t", 3), 40) and not offsets.remove(("t", 4), 2)
    del plain["t", 3]
    assert dict(offsets.committed.items()) == plain == {each: offsets.get(each) for each in plain}
    assert sorted(chain.from_iterable(offsets.partitions())) == sorted(plain)
    for number in (*range(3), *range(4, 20)):
        assert offsets.remove(("t", number), 50)
    assert offsets.is_empty()


def test_many_offsets_are_walked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is spread between two parts is not walked twice, nor missed."""
    monkeypatch.setattr(group_offsets, "MANY_OFFSETS", 10)
    monkeypatch.setattr(bucket_dict, "EACH", 3)
    offsets = GroupOffsets()
    for number in range(9):
        offsets.put(("t", number), CommittedOffset(number))
    few = offsets.parts()
    found = next(few)
    for number in range(9, 40):
        offsets.put(("t", number), CommittedOffset(number))
    assert sorted(found) == [("t", number) for number in range(9)] and not list(few)
    parts = list(offsets.parts())
    assert len(parts) == 14 and max(map(len, parts)) < 10
    assert sorted(each for part in parts for each in part) == [("t", n) for n in range(40)]


@pytest.mark.parametrize("what", ["a partition that is led elsewhere", "a load for nothing"])
def test_many_offsets_are_freed_in_steps(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A million of them in one turn take half a second."""
    monkeypatch.setattr(group_offsets, "MANY_OFFSETS", 10)
    offsets = GroupOffsets()
    for number in range(1300):
        offsets.put(("t", number), CommittedOffset(number))
    if what == "a load for nothing":
        replay = coordinator_loader._Replay(0)
        replay.offsets["g"] = offsets
        steps = coordinator_loader.forget_steps([replay])
    else:
        shard = BrokerRun().coordinator.runtime.shard_of("g")
        shard.groups["g"] = GroupEntry(ClassicGroup("g", 0), offsets)
        steps = shard.unload_steps()
    left = [len(offsets.committed) for _ in steps]
    freed = [before - after for before, after in pairwise([1300, *left, len(offsets.committed)])]
    assert sum(freed) == 1300 and max(freed) <= group_offsets.OFFSETS_PER_STEP


def test_many_offsets_of_a_group_that_is_loaded_again_are_not_half_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Led elsewhere and here again between two steps of a list of them: it goes on in what is
    freed, and the new coordinator would answer for that.
    """
    monkeypatch.setattr(group_offsets, "MANY_OFFSETS", 10)
    monkeypatch.setattr(group_coordinator, "SORTED_PER_STEP", 100)
    run = BrokerRun()
    run.commit(*(OffsetToCommit("t", number, 1) for number in range(3 * bucket_dict.EACH)))
    run.settle()
    steps, index = run.coordinator.committed_partitions("g"), partition_for("g", 50)
    next(steps)
    run.coordinator.runtime.unload(index, 1)
    run.settle()
    run.coordinator.runtime.load(index, 2)
    run.settle()
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        run_whole(steps)
    assert len(run.partitions()) == 3 * bucket_dict.EACH


def test_a_group_of_many_offsets_is_deleted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathering a million of them in one turn takes 0.16 s; each has its tombstone, and the group's
    own comes last.
    """
    monkeypatch.setattr(group_offsets, "MANY_OFFSETS", 10)
    monkeypatch.setattr(turns, "PIECES_PER_TURN", 1)
    run = BrokerRun()
    entry = run.coordinator.runtime.shard_of("g").create("g")
    for number in range(3 * bucket_dict.EACH):
        entry.offsets.put(("t", number), CommittedOffset(number, record_offset=0))
    entry.offsets.put_transactional(7, ("t", -1), CommittedOffset(1, record_offset=0))
    gathered = [0]

    def count(partitions: Any, batches: Any = offset_metadata_manager.in_batches) -> Any:
        gathered[-1] += len(partitions)
        return batches(partitions)

    monkeypatch.setattr(group_deletion, "in_batches", count)
    deleted = run.coordinator.delete_group("g")
    while not deleted.called:
        gathered.append(0)
        run.clock.turn()
    assert deleted.result is E.NONE and max(gathered) <= 2 * bucket_dict.EACH
    read = [group_records.read_record(*each) for each in run.records("g")]
    names = [each.partition for each in read if isinstance(each, group_records.OffsetRecord)]
    assert sorted(names) == [-1, *range(3 * bucket_dict.EACH)]
    assert read[-1] == group_records.GroupRecord("g", None)
    assert run.coordinator.runtime.shard_of("g").groups.get("g") is None
