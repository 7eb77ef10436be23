"""Commits, fetches, deletes and expiry of offsets."""

from typing import Any

import pytest
from twisted.internet.defer import succeed

from tests.coordinator.broker_run import WALL_MS, BrokerRun
from tests.coordinator.test_group_coordinator import now, waiting
from twisted_broker import turns
from twisted_broker.coordinator import group_coordinator, offset_cleanup
from twisted_broker.coordinator.group_records import (
    CommittedOffset,
    ProducerIdAndEpoch,
    offset_record,
    partition_for,
)
from twisted_broker.coordinator.offset_metadata_manager import CommitRequest, OffsetToCommit
from twisted_broker.log.verification import VerificationStateEntry
from twisted_broker.settings import LONG_MAX
from twisted_broker.wire.control_batch import build_end_marker
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.errors import ErrorCode as E
from twisted_broker.wire.primitives import NULL_UUID
from twisted_broker.wire.records import BatchBuilder

DAY_MS = 24 * 60 * 60 * 1000
WEEK_MS = 7 * DAY_MS
ID_A, ID_B = b"A" * 16, b"B" * 16


def one(
    offset: int, topic: str = "t", partition: int = 0, topic_id: bytes = bytes(16)
) -> OffsetToCommit:
    return OffsetToCommit(topic, partition, offset, topic_id=topic_id)


# who may commit
def test_a_simple_consumer_commits_without_joining():
    """No member, no generation: the group is empty and has no protocol type."""
    run = BrokerRun()
    assert now(run.commit(one(5))) == {("t", 0): E.NONE}
    assert run.fetched() == {("t", 0): 5}
    assert [(g.group_id, g.protocol_type, g.state) for g in run.listed()] == [("g", "", "Empty")]


def test_a_member_commits_in_its_generation_only():
    """Wrong generation, wrong member, no member at all: refused while the group has members."""
    run = BrokerRun()
    member = run.stable()
    assert now(run.commit(one(5), member=member, generation=1)) == {("t", 0): E.NONE}
    for refused, error in [
        ({"member": member, "generation": 0}, "ILLEGAL_GENERATION"),
        ({"member": "stranger", "generation": 1}, "UNKNOWN_MEMBER_ID"),
        ({}, "UNKNOWN_MEMBER_ID"),
    ]:
        with pytest.raises(BrokerError, match=error):
            run.commit(one(6), **refused)
    assert run.fetched() == {("t", 0): 5}


def test_a_generation_of_an_unknown_group_is_refused():
    """ILLEGAL_GENERATION, which clients from v9 on are told as GROUP_ID_NOT_FOUND."""
    run = BrokerRun()
    with pytest.raises(BrokerError, match="ILLEGAL_GENERATION"):
        run.commit(one(1), member="m", generation=3)
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        run.commit(one(1), member="m", generation=3, unknown_group_error=E.GROUP_ID_NOT_FOUND)
    assert run.listed() == []


def test_nobody_commits_before_the_assignment_but_everybody_may_while_joining():
    """REBALANCE_IN_PROGRESS in CompletingRebalance; in PreparingRebalance members may still save
    what they did.
    """
    run = BrokerRun()
    answer = run.join()
    run.settle()
    member = now(answer).member_id
    with pytest.raises(BrokerError, match="REBALANCE_IN_PROGRESS"):
        run.commit(one(1), member=member, generation=1)
    now(run.sync(member, 1, {}))
    run.join(known=False)
    assert run.coordinator.heartbeat("g", member, None, 1) is E.REBALANCE_IN_PROGRESS
    assert now(run.commit(one(1), member=member, generation=1)) == {("t", 0): E.NONE}


def test_a_commit_keeps_the_session_alive():
    """A busy consumer that only commits is not thrown out."""
    run = BrokerRun()
    member = run.stable()
    run.pass_ms(9_000)
    now(run.commit(one(1), member=member, generation=1))
    run.pass_ms(9_000)
    assert run.coordinator.heartbeat("g", member, None, 1) is E.NONE


# what is committed
def test_metadata_that_is_too_long_is_refused_alone():
    """offset.metadata.max.bytes counts per partition; the others are committed."""
    run = BrokerRun()
    answer = now(
        run.commit(
            OffsetToCommit("t", 0, 1, metadata="x" * 4097),
            OffsetToCommit("t", 1, 1, metadata="x" * 4096),
        )
    )
    assert answer == {
        ("t", 0): E.OFFSET_METADATA_TOO_LARGE,
        ("t", 1): E.NONE,
    } and run.fetched() == {("t", 1): 1}


def test_an_offset_is_seen_when_it_is_replicated():
    """Until then readers see the one before, and those who want stable offsets are told to wait."""
    run = BrokerRun()
    now(run.commit(one(1)))
    run.store.held = []
    answer = run.commit(one(2))
    assert (
        waiting(answer)
        and run.fetched() == {("t", 0): 1}
        and run.fetched(require_stable=True) == {("t", 0): E.UNSTABLE_OFFSET_COMMIT}
    )
    run.store.release()
    assert now(answer) == {("t", 0): E.NONE} and run.fetched(require_stable=True) == {("t", 0): 2}


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.MESSAGE_TOO_LARGE, E.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
def test_a_commit_that_cannot_be_stored_changes_nothing(refusal, told):
    """The committed offset stays, nothing is left in flight, and the error is the coordinator's."""
    run = BrokerRun()
    now(run.commit(one(1)))
    run.store.held = []
    answer = run.commit(one(2))
    run.store.release(refusal)
    assert now(answer) == {("t", 0): told} and run.fetched(require_stable=True) == {("t", 0): 1}


def test_a_commit_that_timed_out_is_in_flight_until_it_is_decided():
    """Refused to its client, seen as soon as it is replicated; a later record that was faster is
    not turned back.
    """
    run = BrokerRun()
    run.store.held = []
    first, second = run.commit(one(1)), run.commit(OffsetToCommit("t", 1, 1))
    of_first, of_second = run.store.time_out()
    assert now(first) == {("t", 0): E.COORDINATOR_NOT_AVAILABLE} and now(second) == {
        ("t", 1): E.COORDINATOR_NOT_AVAILABLE
    }
    unstable = [
        f.error
        for f in run.coordinator.fetch_offsets(
            "g", [("t", 0, bytes(16)), ("t", 1, bytes(16))], True
        )
    ]
    assert unstable == [E.UNSTABLE_OFFSET_COMMIT] * 2 and run.fetched() == {}
    run.store.held = None
    now(run.commit(one(2)))
    of_first.callback(0)
    of_second.errback(BrokerError(E.NOT_LEADER_OR_FOLLOWER))
    assert run.fetched(require_stable=True) == {("t", 0): 2}


def test_a_group_whose_deletion_timed_out_is_left_alone_until_it_is_decided():
    """Its tombstones may be replicated yet: what was committed meanwhile would be lost with the
    next load.
    """
    run = BrokerRun()
    now(run.commit(one(1)))
    run.store.held = []
    deleted = run.coordinator.delete_group("g")
    (outcome,) = run.store.time_out()
    run.store.held = None
    assert now(deleted) is E.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(BrokerError, match="COORDINATOR_NOT_AVAILABLE"):
        run.commit(one(2))
    outcome.callback(1)
    assert run.coordinator.describe("g") is None
    now(run.commit(one(3)))
    assert run.fetched() == run.restarted().fetched() == {("t", 0): 3}


def test_answers_that_overtake_each_other_do_not_turn_an_offset_back():
    """The record that lies later in the log wins, whatever is replicated first."""
    run = BrokerRun()
    run.store.held = []
    first, second = run.commit(one(1)), run.commit(one(2))
    run.store.held.reverse()
    run.store.release()
    assert now(first) == now(second) == {("t", 0): E.NONE} and run.fetched() == {("t", 0): 2}


def test_an_offset_of_a_topic_of_the_same_name_is_not_shown():
    """With topic ids (v10) an offset committed for an earlier topic of that name is none."""
    run = BrokerRun()
    now(run.commit(one(9, topic_id=ID_A)))

    def ask(topic_id: bytes) -> CommittedOffset | None:
        return run.coordinator.fetch_offsets("g", [("t", 0, topic_id)])[0].committed

    assert ask(ID_B) is None
    assert all(found is not None and found.offset == 9 for found in (ask(ID_A), ask(bytes(16))))


def test_offsets_of_unknown_groups_and_places_are_none():
    """No error: a consumer then starts where auto.offset.reset says."""
    run = BrokerRun()
    for group in ("nobody", "g"):
        assert [
            (f.error, f.committed)
            for f in run.coordinator.fetch_offsets(group, [("t", 5, bytes(16))])
        ] == [(E.NONE, None)]
        now(run.commit(one(1)))


# transactions in the log
def test_offsets_of_transactions_count_from_their_marker_on():
    """Kafka's files may hold them: committed ones show, aborted ones never, open ones are
    unstable.
    """
    run = BrokerRun()
    now(run.commit(one(1, partition=0), one(1, partition=1), one(1, partition=2)))
    index = partition_for("g", 50)
    for producer_id, partition in ((11, 0), (12, 1), (13, 2)):
        builder = BatchBuilder(
            producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        builder.append(
            WALL_MS, *offset_record("g", "t", partition, CommittedOffset(50, -1, "", WALL_MS))
        )
        run.store.put(index, builder.build())
    run.store.put(index, build_end_marker(11, 0, True, 0, WALL_MS))
    run.store.put(index, build_end_marker(12, 0, False, 0, WALL_MS))
    after = run.restarted()
    assert after.fetched() == {("t", 0): 50, ("t", 1): 1, ("t", 2): 1}
    assert after.fetched(require_stable=True) == {
        ("t", 0): 50,
        ("t", 1): 1,
        ("t", 2): E.UNSTABLE_OFFSET_COMMIT,
    }


def test_a_deleted_groups_open_transaction_leaves_nothing() -> None:
    """A marker that comes after the deletion brings no offset of the group back."""
    run = BrokerRun()
    index = partition_for("g", 50)
    now(run.commit(one(1, partition=0)))
    builder = BatchBuilder(producer_id=11, producer_epoch=0, base_sequence=0, is_transactional=True)
    for partition in (0, 1):
        record = offset_record("g", "t", partition, CommittedOffset(50, -1, "", WALL_MS))
        builder.append(WALL_MS, *record)
    run.store.put(index, builder.build())
    again = run.restarted()
    assert now(again.coordinator.delete_group("g")) is E.NONE
    again.store.put(index, build_end_marker(11, 0, True, 0, WALL_MS))
    assert again.restarted().fetched() == {}


def test_a_marker_does_not_turn_back_a_later_commit():
    """A plain commit after the transaction's record outlives the marker."""
    run = BrokerRun()
    index = partition_for("g", 50)
    builder = BatchBuilder(producer_id=11, producer_epoch=0, base_sequence=0, is_transactional=True)
    builder.append(WALL_MS, *offset_record("g", "t", 0, CommittedOffset(50, -1, "", WALL_MS)))
    run.store.put(index, builder.build())
    now(run.commit(one(70)))
    run.store.put(index, build_end_marker(11, 0, True, 0, WALL_MS))
    assert run.restarted().fetched() == {("t", 0): 70}


# deleting
def test_offsets_of_subscribed_topics_are_not_deleted():
    """GROUP_SUBSCRIBED_TO_TOPIC for those; others go, missing ones are no error."""
    run = BrokerRun()
    member = run.stable(topics=("t",))
    now(run.commit(one(1), one(1, topic="old"), member=member, generation=1))
    answer = now(run.coordinator.delete_offsets("g", [("t", 0), ("old", 0), ("never", 0)]))
    assert answer == {
        ("t", 0): E.GROUP_SUBSCRIBED_TO_TOPIC,
        ("old", 0): E.NONE,
        ("never", 0): E.NONE,
    }
    assert run.fetched() == {("t", 0): 1}


@pytest.mark.parametrize(
    "metadata", [b"", b"\0", b"\0\0\0\0\0\1", b"\0\0\0\0\0\1\0\2\xff\xff", b"\xff\xff\0\0\0\0"]
)
def test_a_subscription_that_cannot_be_read_counts_as_all_topics(metadata):
    """Whatever a client calls its metadata, nothing is deleted by mistake and nothing fails."""
    run = BrokerRun()
    member = run.stable(protocols={"range": metadata})
    now(run.commit(one(1), member=member, generation=1))
    assert now(run.coordinator.delete_offsets("g", [("t", 0)])) == {
        ("t", 0): E.GROUP_SUBSCRIBED_TO_TOPIC
    }


def test_other_protocols_groups_must_be_empty_to_lose_offsets():
    """NON_EMPTY_GROUP where subscriptions have no meaning to us."""
    run = BrokerRun()
    member = run.stable(kind="connect")
    with pytest.raises(BrokerError, match="NON_EMPTY_GROUP"):
        run.coordinator.delete_offsets("g", [("t", 0)])
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        run.coordinator.delete_offsets("nobody", [("t", 0)])
    run.coordinator.leave("g", [(member, None)])
    assert now(run.coordinator.delete_offsets("g", [("t", 0)])) == {("t", 0): E.NONE}


def test_offsets_of_a_deleted_topic_go():
    """But not those of a later topic of that name."""
    run = BrokerRun()
    now(
        run.commit(
            one(1, topic_id=ID_A),
            one(1, partition=1, topic_id=ID_B),
            one(1, partition=2),
            one(1, topic="other", topic_id=ID_A),
        )
    )
    run.coordinator.cleanup.topics_deleted({"t": ID_A})
    assert run.fetched() == {("t", 1): 1, ("other", 0): 1}
    assert run.restarted().fetched() == {("t", 1): 1, ("other", 0): 1}


def test_a_deletion_takes_offsets_of_open_transactions():
    """`OffsetMetadataManager.onPartitionsDeleted`: whatever becomes of the transaction; not those
    of a later topic, nor what was committed before under the same name.
    """
    run = BrokerRun()
    pending = [one(5, topic_id=ID_A), one(5, partition=1, topic_id=ID_B)]
    now(run.commit(one(4, partition=1, topic_id=ID_A)))
    request = CommitRequest("g", offsets=tuple(pending), producer=ProducerIdAndEpoch(7, 3))
    verified = VerificationStateEntry(0, 3, -1, False)
    now(run.coordinator.commit_transactional(request, lambda index: succeed(verified)))
    run.coordinator.cleanup.topics_deleted({"t": ID_A})
    run.settle()
    index = partition_for("g", run.store.partitions)
    assert now(run.coordinator.complete_transaction(index, 7, 3, 0, True)) is E.NONE
    assert run.fetched() == {("t", 1): 5}
    assert run.restarted().fetched() == {("t", 1): 5}


def test_a_deletion_waits_for_a_partition_that_is_being_read():
    """Kafka drops it: `scheduleWriteAllOperation` refuses while a coordinator loads."""
    run = BrokerRun()
    now(run.commit(one(1, topic_id=ID_A), one(1, partition=1), one(1, partition=2, topic_id=ID_B)))
    run = run.restarted(lead=False)
    for index in range(run.store.partitions):
        run.coordinator.runtime.load(index, 1)
    assert run.coordinator.runtime.is_loading
    run.coordinator.cleanup.topics_deleted({"t": ID_A})
    run.settle()
    assert run.fetched() == {("t", 2): 1}
    assert run.restarted().fetched() == {("t", 2): 1}


def test_a_commit_in_flight_while_its_topic_goes():
    """It may be one for a later topic: it is looked at when it is stored."""
    run = BrokerRun()
    now(run.commit(one(1, topic_id=ID_A), one(1, partition=1, topic_id=ID_A)))
    run.store.held = []
    run.commit(one(2, topic_id=ID_B), one(2, partition=1, topic_id=ID_A))
    run.coordinator.cleanup.topics_deleted({"t": ID_A})
    run.settle()
    run.store.release()
    run.store.held = None
    run.settle()
    assert run.fetched() == {("t", 0): 2, ("t", 1): 2}
    run.pass_ms(600_000)
    assert run.fetched() == {("t", 0): 2}
    assert run.restarted().fetched() == {("t", 0): 2}


@pytest.mark.parametrize("is_refused", [False, True])
def test_offsets_of_a_topic_without_id_are_looked_at_once(is_refused):
    """Below inter-broker protocol 2.8 no topic has one: what is committed after the deletion is
    for its successor, which was to begin anew ten minutes later.
    """
    run = BrokerRun()
    now(run.commit(one(1)))
    if is_refused:
        run.store.refuse = E.NOT_ENOUGH_REPLICAS
    else:
        run.store.held = []
        run.commit(one(2))
    run.coordinator.cleanup.topics_deleted({"t": NULL_UUID, "other": ID_A})
    run.settle()
    run.store.refuse = None
    run.store.release()
    run.store.held = None
    run.settle()
    now(run.commit(one(9)))
    run.pass_ms(600_000)
    assert run.fetched() == {("t", 0): 9}


def test_a_removal_that_is_refused_is_tried_again():
    run = BrokerRun()
    now(run.commit(one(1, topic_id=ID_A)))
    run.store.refuse = E.NOT_ENOUGH_REPLICAS
    run.coordinator.cleanup.topics_deleted({"t": ID_A})
    run.settle()
    run.store.refuse = None
    assert run.fetched() == {("t", 0): 1}
    run.pass_ms(600_000)
    assert run.fetched() == {}


# expiry
def test_a_simple_groups_offsets_expire_one_by_one_and_the_group_with_the_last():
    """offsets.retention.minutes counts from each commit; the tombstones outlive a restart."""
    run = BrokerRun()
    now(run.commit(one(1)))
    run.pass_ms(DAY_MS)
    now(run.commit(one(1, partition=1)))
    run.pass_ms(WEEK_MS - DAY_MS)
    assert run.fetched() == {("t", 1): 1}
    run.pass_ms(DAY_MS + 600_000)
    assert run.fetched() == {} and run.listed() == []
    assert run.restarted().listed() == []


def test_a_consumer_groups_offsets_expire_a_week_after_it_became_empty():
    """However old the commit, retention counts from the moment the last member left."""
    run = BrokerRun()
    member = run.stable()
    now(run.commit(one(1), member=member, generation=1))
    for _ in range(WEEK_MS // 6_000_000 + 10):
        for _ in range(3):
            run.pass_ms(9_000)
            assert run.coordinator.heartbeat("g", member, None, 1) is E.NONE
        run.clock.rightNow += 6_000  # time passes while this member's heartbeats go on unwatched
        run.coordinator.heartbeat("g", member, None, 1)
    run.coordinator.leave("g", [(member, None)])
    run.pass_ms(WEEK_MS - 600_000)
    assert run.fetched() == {("t", 0): 1}
    run.pass_ms(1_200_000)
    assert run.fetched() == {}


def test_a_stable_group_loses_offsets_of_topics_that_it_left():
    """Offsets of topics without subscription expire, the others never while the group lives."""
    run = BrokerRun(offsets_retention_ms=60_000, retention_check_interval_ms=10_000)
    member = run.stable(topics=("t",))
    now(run.commit(one(1), one(1, topic="old"), member=member, generation=1))
    for _ in range(10):
        run.pass_ms(8_000)
        run.coordinator.heartbeat("g", member, None, 1)
    assert run.fetched() == {("t", 0): 1}


def test_an_old_clients_own_retention_counts():
    """OffsetCommit v2-4 may name a retention time."""
    run = BrokerRun()
    now(run.commit(one(1), retention_ms=DAY_MS))
    run.pass_ms(DAY_MS - 600_000)
    after = run.restarted()
    assert after.fetched() == {("t", 0): 1}
    after.pass_ms(1_200_000)
    assert after.fetched() == {}


def test_an_old_client_that_wants_its_offsets_for_ever():
    """By the largest number that there is: its expiry has a place in a record."""
    run = BrokerRun(offsets_retention_ms=60_000, retention_check_interval_ms=10_000)
    assert now(run.commit(one(1), retention_ms=LONG_MAX)) == {("t", 0): E.NONE}
    after = run.restarted(offsets_retention_ms=60_000, retention_check_interval_ms=10_000)
    after.pass_ms(DAY_MS)
    assert after.fetched() == {("t", 0): 1}


def test_an_expiry_that_cannot_be_stored_is_tried_again():
    """Offsets stay as they are until their tombstone is stored."""
    run = BrokerRun(offsets_retention_ms=60_000, retention_check_interval_ms=10_000)
    now(run.commit(one(1)))
    run.store.refuse = E.NOT_ENOUGH_REPLICAS
    run.pass_ms(120_000)
    assert run.fetched() == {("t", 0): 1}
    run.store.refuse = None
    run.pass_ms(10_000)
    assert run.fetched() == {}


def test_the_walk_over_expired_offsets_goes_in_steps():
    """A thousand groups take several turns of the reactor, and all of them are done."""
    run = BrokerRun(offsets_retention_ms=60_000, retention_check_interval_ms=100_000)
    run.store.partitions = 1
    for number in range(1000):
        now(run.commit(one(1), group=f"g{number}"))
    run.clock.rightNow += 100
    run.clock.turn()
    left = len(run.listed())
    assert 0 < left < 1000
    run.settle()
    assert run.listed() == []


def test_a_group_with_a_commit_on_its_way_does_not_expire():
    """The walk comes between a first commit's append and its replication: the offset is there
    afterwards, and after a restart.
    """
    run = BrokerRun(offsets_retention_ms=1000, retention_check_interval_ms=1000)
    run.store.held = []
    answer = run.commit(one(5))
    run.pass_ms(1500)
    run.store.release()
    run.store.held = None
    assert (
        now(answer) == {("t", 0): E.NONE}
        and run.fetched() == {("t", 0): 5} == run.restarted().fetched()
    )


def test_a_group_is_deleted_with_what_is_on_its_way():
    """A commit that was appended before the group's tombstones does not come back with the next
    load.
    """
    run = BrokerRun()
    run.store.held = []
    answer = run.commit(one(5))
    deleted = run.coordinator.delete_group("g")
    run.store.release()
    run.store.held = None
    assert now(answer) == {("t", 0): E.NONE} and now(deleted) is E.NONE
    assert (
        run.coordinator.describe("g") is None and run.restarted().coordinator.describe("g") is None
    )


def test_many_offsets_of_one_group_expire_in_steps(monkeypatch):
    """What is committed between two steps stays; the others go, and the group itself once
    nothing is left.
    """
    monkeypatch.setattr(turns, "PIECES_PER_TURN", 1)
    run = BrokerRun(offsets_retention_ms=10_000, retention_check_interval_ms=20_000)
    committed = run.commit(*(OffsetToCommit("t", n, n) for n in range(1200)))
    run.settle()
    now(committed)
    run.clock.rightNow += 20
    run.clock.turn()
    assert len(run.fetched()) == 700
    now(run.commit(OffsetToCommit("t", 1100, 7)))
    run.settle()
    after = run.restarted(offsets_retention_ms=10_000, retention_check_interval_ms=20_000)
    assert after.fetched() == {("t", 1100): 7}
    after.pass_ms(40_000)
    assert after.coordinator.describe("g") is None


def test_a_walk_has_few_writes_under_way(monkeypatch):
    """However many groups expire while replication is slow."""
    monkeypatch.setattr(offset_cleanup, "WRITES_AT_ONCE", 10)
    run = BrokerRun(offsets_retention_ms=10_000, retention_check_interval_ms=20_000)
    for number in range(50):
        now(run.commit(one(1), group=f"g{number}"))
    run.store.held = []
    run.pass_ms(20_000)
    left = 50
    while run.store.held:
        assert len(run.store.held) <= 10
        run.store.release()
        run.settle()
        left = len(run.listed())
    assert left == 0


def test_topics_are_forgotten_in_slices(monkeypatch):
    """The walk takes several turns; a topic that goes meanwhile has the next walk; a commit for
    a later topic of that name stays.
    """
    monkeypatch.setattr(turns, "PIECES_PER_TURN", 1)
    run = BrokerRun()
    for number in range(30):
        now(
            run.commit(
                OffsetToCommit("t", 0, 1, topic_id=ID_A),
                OffsetToCommit("u", 0, 1),
                group=f"g{number}",
            )
        )
    run.coordinator.cleanup.topics_deleted({"t": ID_A})
    held = [name for name in range(30) if ("t", 0) in run.fetched(f"g{name}")]
    assert 0 < len(held) < 30
    now(run.commit(OffsetToCommit("t", 0, 2, topic_id=ID_B), group=f"g{held[-1]}"))
    run.coordinator.cleanup.topics_deleted({"u": ID_B})
    run.settle()
    found = {name: run.fetched(f"g{name}") for name in range(30)}
    assert found.pop(held[-1]) == {("t", 0): 2} and not any(found.values())


# very many offsets
def test_a_long_commit_lets_others_be_served(monkeypatch):
    """Its records are made in steps and appended in one batch; others commit meanwhile."""
    monkeypatch.setattr(turns, "PIECES_PER_TURN", 1)
    run = BrokerRun()
    long = run.commit(*(one(n, partition=n) for n in range(2000)))
    steps = 0
    while not long.called:
        now(run.commit(one(steps, topic="other"), group="h"))
        run.clock.turn()
        steps += 1
    assert steps >= 8 and set(now(long).values()) == {E.NONE}
    assert len(run.fetched()) == len(run.restarted().fetched()) == 2000


def test_a_stored_commit_of_very_many_enters_in_turns_before_what_is_stored_later(monkeypatch):
    """Readers see it in flight until it has entered; a tombstone that is stored meanwhile enters
    behind it.
    """
    monkeypatch.setattr(turns, "PIECES_PER_TURN", 1)
    run = BrokerRun()
    run.store.held = []
    long = run.commit(*(one(n, partition=n) for n in range(2000)))
    while not run.store.held:
        run.clock.turn()
    run.store.release()
    run.store.held = None
    last = [("t", 1999, bytes(16))]
    seen = [run.coordinator.fetch_offsets("g", last, require_stable=True)[0]]
    assert seen[0].error is E.UNSTABLE_OFFSET_COMMIT and not long.called
    done = []
    run.commit(one(7, topic="u")).addCallback(lambda _: done.append("small"))
    run.coordinator.delete_offsets("g", [("t", 1)]).addCallback(lambda _: done.append("deleted"))

    def note(answer):
        done.append("long")
        return answer

    long.addCallback(note)
    per_turn, before = [], len(run.partitions())
    while len(done) < 3:
        run.clock.turn()
        per_turn.append(len(run.partitions()) - before)
        before += per_turn[-1]
    assert done == ["long", "small", "deleted"]
    assert max(per_turn) <= 501 and set(now(long).values()) == {E.NONE}
    assert len(run.partitions()) == 2000 and ("t", 1) not in run.partitions()
    fetched = run.fetched()
    assert run.restarted().fetched() == fetched


def test_all_that_is_committed_comes_in_order(monkeypatch):
    """However it was committed; sorted in steps."""
    monkeypatch.setattr(group_coordinator, "SORTED_PER_STEP", 3)
    run = BrokerRun()
    for topic, partition in [("b", 1), ("a", 2), ("c", 0), ("a", 10), ("b", 0), ("a", 1), ("d", 9)]:
        now(run.commit(one(1, topic, partition)))
    assert run.partitions() == sorted(run.partitions()) and len(run.partitions()) == 7
    assert len(list(run.coordinator.committed_partitions("g"))) == 3


def test_a_long_commit_of_a_member_that_left_meanwhile_is_refused(monkeypatch):
    """Who may commit is decided when the batch is appended: nothing of it is stored."""
    monkeypatch.setattr(turns, "PIECES_PER_TURN", 1)
    run = BrokerRun()
    member = run.stable()
    long = run.commit(*(one(n, partition=n) for n in range(2000)), member=member, generation=1)
    run.clock.turn()
    run.coordinator.leave("g", [(member, None)])
    run.settle()
    with pytest.raises(BrokerError, match="UNKNOWN_MEMBER_ID"):
        now(long)
    assert run.fetched() == {} == run.restarted().fetched()


@pytest.mark.parametrize("ends", ["deleted", "unloaded"])
def test_a_long_commit_to_a_group_that_goes_meanwhile_is_refused(monkeypatch, ends):
    """Its records must not follow the group's tombstone, nor what the next leader has read."""
    monkeypatch.setattr(turns, "PIECES_PER_TURN", 1)
    run = BrokerRun()
    now(run.commit(one(1)))
    long = run.commit(*(one(n, partition=n) for n in range(2000)))
    run.clock.turn()
    if ends == "deleted":
        run.coordinator.delete_group("g")
    else:
        run.coordinator.runtime.unload(partition_for("g", 50), 1)
    before = len(run.records("g"))
    run.settle()
    answer: Any = long.result
    long.addErrback(lambda _: None)
    if ends == "deleted":
        assert answer.value.code is E.COORDINATOR_NOT_AVAILABLE
    else:
        assert set(answer.values()) == {E.NOT_COORDINATOR}
    assert len(run.records("g")) == before


def test_a_topic_that_goes_while_a_long_commit_takes_its_steps(monkeypatch):
    """A later topic of the name must not get these offsets: they go with the next walk, as those
    do that were in flight.
    """
    monkeypatch.setattr(turns, "PIECES_PER_TURN", 1)
    run = BrokerRun()
    now(run.commit(one(1, "other")))
    long = run.commit(*(one(n, partition=n, topic_id=b"A" * 16) for n in range(2000)))
    run.clock.turn()
    run.coordinator.cleanup.topics_deleted({"t": b"A" * 16})
    run.settle()
    assert set(now(long).values()) == {E.NONE}
    run.pass_ms(600_000)
    assert run.fetched() == {("other", 0): 1} == run.restarted().fetched()


def test_a_long_deletion_of_offsets_lets_others_be_served(monkeypatch):
    """A batch of tombstones at a step."""
    monkeypatch.setattr(turns, "PIECES_PER_TURN", 1)
    run = BrokerRun()
    committed = run.commit(*(one(n, partition=n) for n in range(2000)))
    run.settle()
    now(committed)
    deleted = run.coordinator.delete_offsets("g", [("t", n) for n in range(2000)])
    assert not deleted.called and len(run.fetched()) == 1500
    run.settle()
    assert set(now(deleted).values()) == {E.NONE} and run.fetched() == {}


def test_a_group_that_goes_ends_a_long_deletion_of_offsets(monkeypatch):
    """The group is deleted between two steps: the rest is refused."""
    monkeypatch.setattr(turns, "PIECES_PER_TURN", 1)
    run = BrokerRun()
    committed = run.commit(*(one(n, partition=n) for n in range(2000)))
    run.settle()
    now(committed)
    deleted = run.coordinator.delete_offsets("g", [("t", n) for n in range(2000)])
    run.coordinator.delete_group("g")
    run.settle()
    with pytest.raises(BrokerError, match="COORDINATOR_NOT_AVAILABLE"):
        now(deleted)
    assert run.listed() == []
