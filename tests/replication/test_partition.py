"""One partition: roles, the high watermark, the ISR, epochs (RL 1.10, 1.14, 2)."""

from __future__ import annotations

import pytest

from tests.replication.fixtures import (
    LOCAL,
    MAX_LAG_MS,
    TP,
    WALL_MS,
    PartitionFixture,
    batch,
    code_of,
    proposed_again,
    registration,
)
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log_config import LogConfig
from twisted_broker.replication.partition.events import IsrChangeWanted
from twisted_broker.replication.partition.fetch_data import (
    HIGH_WATERMARK,
    FetchParams,
    FetchPartitionRequest,
)
from twisted_broker.replication.partition.isr_state import (
    CommittedIsr,
    IsrAnswer,
    PendingExpand,
    PendingShrink,
)
from twisted_broker.wire.errors import ErrorCode


def answered(
    fixture: PartitionFixture, error: ErrorCode = ErrorCode.NONE, isr=(), partition_epoch: int = 11
) -> bool:
    pending = fixture.partition.isr_state
    leader_epoch = fixture.partition.leader_epoch
    answer = IsrAnswer(error, LOCAL, leader_epoch, frozenset(isr), 0, partition_epoch)
    return proposed_again(fixture, pending, answer)


# the high watermark


def test_alone_the_high_watermark_follows_the_log_end():
    """RL 1.14: with an ISR of one an append is committed at once, and everything that waits is
    tried.
    """
    fixture = PartitionFixture(replicas=(1,))
    info = fixture.append(3)
    assert (info.first_offset, info.last_offset, fixture.log.high_watermark) == (0, 2, 3)
    assert fixture.happened() == ["HighWatermarkAdvanced"]


def test_with_followers_only_the_log_end_moves():
    """RL 1.14: the high watermark did not move: only delayed fetches are tried."""
    fixture = PartitionFixture()
    fixture.append(3)
    assert fixture.log.high_watermark == 0
    assert fixture.happened() == ["LogEndChanged"]


def test_it_is_the_least_log_end_of_the_isr():
    """RL 2.3, 1.10: the minimum over the ISR; only forward."""
    fixture = PartitionFixture()
    fixture.append(10)
    fixture.follower_fetches(2, 10)
    assert fixture.log.high_watermark == 0
    fixture.follower_fetches(3, 7)
    assert fixture.log.high_watermark == 7
    fixture.follower_fetches(3, 5)
    assert fixture.log.high_watermark == 7
    fixture.follower_fetches(3, 10)
    assert fixture.log.high_watermark == 10


def test_a_follower_outside_the_isr_but_caught_up_holds_it_back():
    """RL 2.3: eligible replicas caught up within replica.lag.time.max.ms count, so that they can
    join; others do not.
    """
    fixture = PartitionFixture(isr=(1, 2))
    fixture.append(10)
    fixture.partition.remote_replicas[3].fetched(LogOffsetMetadata(4), 0, fixture.now_ms, 4, 103)
    fixture.follower_fetches(2, 10)
    assert fixture.log.high_watermark == 4
    fixture.now_ms += MAX_LAG_MS + 1
    fixture.follower_fetches(2, 9)
    fixture.follower_fetches(2, 10)
    assert fixture.log.high_watermark == 10


def test_a_fenced_follower_outside_the_isr_does_not_hold_it_back():
    """RL 2.3: only replicas that could join count."""
    fixture = PartitionFixture(isr=(1, 2))
    fixture.append(10)
    fixture.partition.remote_replicas[3].fetched(LogOffsetMetadata(4), 0, fixture.now_ms, 4, 103)
    fixture.brokers.ineligible.add(3)
    fixture.follower_fetches(2, 10)
    assert fixture.log.high_watermark == 10


def test_it_stays_below_the_minimum_isr():
    """RL 2.3 (KIP-966): below min.insync.replicas it does not move, though every ISR member has
    the records.
    """
    fixture = PartitionFixture(isr=(1,), config=LogConfig(min_insync_replicas=2))
    fixture.append(5)
    assert fixture.log.high_watermark == 0
    assert fixture.happened() == ["LogEndChanged"]


def test_the_minimum_isr_is_never_above_the_replicas():
    """RL 2.1: min(min.insync.replicas, assigned replicas)."""
    fixture = PartitionFixture(replicas=(1,), config=LogConfig(min_insync_replicas=3))
    fixture.append(5, acks=-1)
    assert fixture.log.high_watermark == 5


def test_min_isr_acts_while_running():
    """RL 1.11: a changed topic setting acts on the next append."""
    fixture = PartitionFixture(isr=(1,))
    fixture.append(1, acks=-1)
    fixture.log.update_config(LogConfig(min_insync_replicas=2))
    assert code_of(fixture.append, 1, acks=-1) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert fixture.log.log_end_offset == 1


def test_not_enough_replicas_writes_nothing_but_only_for_acks_all():
    """RL 1.6: NOT_ENOUGH_REPLICAS with acks=-1, nothing written; acks=1 is let through."""
    fixture = PartitionFixture(isr=(1,), config=LogConfig(min_insync_replicas=2))
    assert code_of(fixture.append, 1, acks=-1) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert fixture.log.log_end_offset == 0
    fixture.append(1, acks=1)
    assert fixture.log.log_end_offset == 1


def test_enough_replicas_reached():
    """RL 1.7: undecided below the offset; then NONE, or NOT_ENOUGH_REPLICAS_AFTER_APPEND when
    the ISR shrank below the minimum.
    """
    fixture = PartitionFixture(isr=(1, 2), config=LogConfig(min_insync_replicas=2))
    fixture.append(5, acks=-1)
    assert fixture.partition.enough_replicas_reached(5) is None
    fixture.follower_fetches(2, 5)
    assert fixture.partition.enough_replicas_reached(5) == ErrorCode.NONE
    fixture.partition.isr_state = CommittedIsr(frozenset({1}))
    assert (
        fixture.partition.enough_replicas_reached(5) == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    )
    fixture.partition.make_follower(registration(2, (1, 2, 3), (2, 3), 6, 11), fixture.log)
    assert fixture.partition.enough_replicas_reached(5) == ErrorCode.NOT_LEADER_OR_FOLLOWER


# roles


def test_make_leader_writes_the_epoch_and_its_start():
    """RL 2.2: epoch and start offset go to the epoch cache; the high watermark becomes a full
    place.
    """
    fixture = PartitionFixture(replicas=(1,))
    fixture.append(4)
    fixture.partition.make_leader(
        registration(LOCAL, (1,), (1,), 8, 12), fixture.log, fixture.now_ms
    )
    assert fixture.partition.leader_epoch_start_offset == 4
    assert list(fixture.log.leader_epochs.entries()) == [(5, 0), (8, 4)]
    assert fixture.log.watermarks.high_watermark_metadata.known


def test_make_leader_resets_what_it_knew_of_followers():
    """RL 2.2: caught up now for ISR members, never for others."""
    fixture = PartitionFixture(isr=(1, 2), lead=False)
    fixture.partition.make_leader(
        registration(LOCAL, (1, 2, 3), (1, 2), 5, 10), fixture.log, fixture.now_ms
    )
    member, other = fixture.partition.remote_replicas[2], fixture.partition.remote_replicas[3]
    assert member.is_caught_up(7, fixture.now_ms, MAX_LAG_MS)
    assert not other.is_caught_up(7, fixture.now_ms, MAX_LAG_MS)
    assert member.log_end_offset == other.log_end_offset == -1


def test_led_again_under_a_new_epoch_it_keeps_their_offsets():
    """A leader that stays leader under a new epoch keeps the followers' ends; the epoch starts
    at its end.
    """
    fixture = PartitionFixture()
    fixture.append(4)
    fixture.follower_fetches(2, 4)
    assert not fixture.partition.make_leader(
        registration(LOCAL, (1, 2, 3), None, 6, 11), fixture.log, fixture.now_ms
    )
    assert fixture.partition.remote_replicas[2].log_end_offset == 4
    assert fixture.partition.leader_epoch_start_offset == 4


def test_led_again_after_an_epoch_between_it_forgets_their_offsets():
    """RL 2.2: another broker led in the epoch between, which came merged into this change, and the
    follower truncated there what it had fetched here: nothing of it counts for acks=all.
    """
    fixture = PartitionFixture(isr=(1, 2, 3))
    fixture.append(4)
    fixture.follower_fetches(2, 4)
    before = fixture.log.high_watermark
    assert fixture.partition.make_leader(
        registration(LOCAL, (1, 2, 3), (1, 2), 7, 12), fixture.log, fixture.now_ms
    )
    assert fixture.partition.remote_replicas[2].log_end_offset == -1
    assert fixture.log.high_watermark == before < 4
    fixture.follower_fetches(2, 4)
    assert fixture.log.high_watermark == 4


def test_older_news_changes_nothing():
    """Leader updates may come late: a lower partition epoch is passed over, in both roles."""
    fixture = PartitionFixture()
    assert not fixture.partition.make_leader(
        registration(LOCAL, (1,), (1,), 4, 9), fixture.log, fixture.now_ms
    )
    assert not fixture.partition.make_follower(registration(2, (1, 2), (2,), 4, 9), fixture.log)
    assert (
        fixture.partition.is_leader,
        fixture.partition.leader_epoch,
        fixture.partition.replicas,
    ) == (True, 5, (1, 2, 3))


def test_missed_updates_in_between_are_fine():
    """An epoch that jumped is taken as it is, also from leader to leader."""
    fixture = PartitionFixture()
    fixture.partition.make_leader(
        registration(LOCAL, (1, 2), (1, 2), 50, 90), fixture.log, fixture.now_ms
    )
    assert (
        fixture.partition.leader_epoch,
        fixture.partition.partition_epoch,
        sorted(fixture.partition.remote_replicas),
    ) == (50, 90, [2])


def test_make_follower():
    """RL 2.1: the ISR is empty, the start offset cleared; it says whether the leader epoch is
    new; who waited is told.
    """
    fixture = PartitionFixture()
    assert fixture.partition.make_follower(registration(2, (1, 2, 3), (2, 3), 6, 11), fixture.log)
    assert fixture.partition.isr_state.isr == frozenset()
    assert fixture.partition.leader_epoch_start_offset == -1
    assert fixture.happened() == ["BecameFollower"]
    assert not fixture.partition.make_follower(registration(2, (1, 2, 3), (2,), 6, 12), fixture.log)
    assert fixture.happened() == []
    assert code_of(fixture.append) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_line_of_the_log_says_what_a_partition_is():
    """An effect that fails is reported with it."""
    fixture = PartitionFixture()
    assert repr(fixture.partition).startswith("<partition t-0 leads at epoch 5 ")
    fixture.partition.make_follower(registration(2, (1, 2), None, 6, 11), fixture.log, 0)
    assert repr(fixture.partition).startswith("<partition t-0 follows 2 at epoch 6 ")
    fixture.partition.fail("disk")
    assert repr(fixture.partition).startswith("<partition t-0 offline at epoch 6 ")


def test_append_as_follower_and_the_leaders_watermark():
    """RL 6.4: offsets as they came; the high watermark is min(own end, the leader's)."""
    leader = PartitionFixture(replicas=(1,))
    leader.append(4)
    whole = leader.log.read(0, 1 << 20)
    fixture = PartitionFixture(lead=False)
    fixture.partition.make_follower(registration(2, (1, 2), (1, 2), 5, 10), fixture.log)
    fixture.happened()
    fixture.partition.append_as_follower(whole.slice.read(), 5, WALL_MS)
    assert fixture.partition.follow_high_watermark(3)
    assert not fixture.partition.follow_high_watermark(3)
    assert fixture.partition.follow_high_watermark(9)
    assert (fixture.log.log_end_offset, fixture.log.high_watermark) == (4, 4)
    assert fixture.happened() == [
        "LogEndChanged",
        "HighWatermarkAdvanced",
        "HighWatermarkAdvanced",
    ]


def test_a_leader_takes_no_replicated_records():
    """A fetch answer that comes after this broker became leader is refused."""
    fixture = PartitionFixture()
    assert (
        code_of(fixture.partition.append_as_follower, b"", 5, WALL_MS)
        == ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


def test_offline():
    """RL 1.12: a failed partition answers KAFKA_STORAGE_ERROR to everything, and tells those who
    wait once.
    """
    fixture = PartitionFixture(replicas=(1,))
    fixture.partition.fail("disk")
    fixture.partition.fail("disk")
    assert fixture.happened() == ["PartitionFailed"]
    assert code_of(fixture.append) == ErrorCode.KAFKA_STORAGE_ERROR
    assert code_of(fixture.partition.log_for, -1, False) == ErrorCode.KAFKA_STORAGE_ERROR
    assert fixture.partition.enough_replicas_reached(0) == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(-1, "NONE"), (4, "FENCED_LEADER_EPOCH"), (5, "NONE"), (6, "UNKNOWN_LEADER_EPOCH")],
)
def test_leader_epoch_of_a_request(epoch, code):
    """RL 2.6: older is fenced, newer is unknown, none or the same is served."""
    assert code_of(PartitionFixture().partition.log_for, epoch, True) == ErrorCode[code]


@pytest.mark.parametrize(
    ("epoch", "code"), [(4, "FENCED_LEADER_EPOCH"), (6, "UNKNOWN_LEADER_EPOCH")]
)
def test_a_followers_fetch_under_another_epoch_counts_nothing(epoch, code):
    """RL 2.6, KIP-320: it is refused before anything is noted of it: the high watermark stands,
    though it names the leader's end.
    """
    fixture = PartitionFixture(replicas=(1, 2), isr=(1, 2))
    fixture.append(3)
    assert code_of(fixture.follower_fetches, 2, 3, leader_epoch=epoch) == ErrorCode[code]
    assert (fixture.log.high_watermark, fixture.partition.remote_replicas[2].log_end_offset) == (
        0,
        -1,
    )


# followers


def test_caught_up_now_and_caught_up_then():
    """RL 1.10: at the leader's end: now; at the leader's end of its previous fetch: at that
    fetch's time.
    """
    fixture = PartitionFixture()
    fixture.append(10)
    start = fixture.now_ms
    fixture.now_ms = start + 100
    fixture.follower_fetches(2, 10)
    assert fixture.partition.remote_replicas[2].last_caught_up_ms == start + 100
    fixture.append(10)
    fixture.now_ms = start + 200
    fixture.follower_fetches(2, 12)
    assert fixture.partition.remote_replicas[2].last_caught_up_ms == start + 100
    fixture.append(10)
    fixture.now_ms = start + 300
    fixture.follower_fetches(2, 20)
    assert fixture.partition.remote_replicas[2].last_caught_up_ms == start + 200


@pytest.mark.parametrize("now_ms", [1, 1000, 1_000_000])
def test_a_replica_that_never_caught_up_holds_nothing_back(now_ms):
    """RL 2.3, on a machine that has just booted as well: its monotonic clock is near 0."""
    fixture = PartitionFixture(replicas=(1, 2, 3), isr=(1, 2))
    fixture.append(10)
    fixture.now_ms = now_ms
    fixture.follower_fetches(2, 10)
    fixture.follower_fetches(3, 0)
    fixture.append(5)
    fixture.follower_fetches(2, 15)
    new = fixture.partition.remote_replicas[3]
    assert not new.is_caught_up(15, now_ms, 30_000) and fixture.log.high_watermark == 15
    fixture.now_ms += 1
    fixture.follower_fetches(3, 15)
    assert new.is_caught_up(16, now_ms + 2, 1) and not new.is_caught_up(16, now_ms + 3, 1)


def test_a_failed_read_counts_for_nothing():
    """ReplicaManagerTest: a follower's state is not updated when its read failed."""
    fixture = PartitionFixture()
    fixture.append(4)
    assert code_of(fixture.follower_fetches, 2, 9) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fixture.partition.remote_replicas[2].log_end_offset == -1


def test_a_diverging_read_counts_for_nothing():
    """RL 1.10: not when it diverges; the answer names the epoch and its end."""
    fixture = PartitionFixture()
    fixture.append(4)
    fixture.partition.make_leader(
        registration(LOCAL, (1, 2, 3), None, 8, 11), fixture.log, fixture.now_ms
    )
    fixture.append(4)
    result = fixture.follower_fetches(2, 6, last_epoch=5)
    assert result.diverging_epoch == (5, 4)
    assert fixture.partition.remote_replicas[2].log_end_offset == -1
    assert fixture.follower_fetches(2, 4, last_epoch=5).diverging_epoch is None
    assert fixture.partition.remote_replicas[2].log_end_offset == 4


def test_an_epoch_that_is_not_known_is_out_of_range():
    """A last fetched epoch that is not known here cannot be compared: OFFSET_OUT_OF_RANGE."""
    fixture = PartitionFixture()
    fixture.append(4)
    assert fixture.log.end_offset_for_epoch(9) == (-1, -1)
    assert code_of(fixture.follower_fetches, 2, 3, last_epoch=9) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_replica_that_is_not_assigned():
    """RL 1.10: UNKNOWN_LEADER_EPOCH when it sent an epoch, NOT_LEADER_OR_FOLLOWER when it did
    not.
    """
    fixture = PartitionFixture(replicas=(1, 2))
    assert code_of(fixture.follower_fetches, 3, 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_of(fixture.follower_fetches, 3, 0, leader_epoch=5) == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_an_older_broker_epoch_is_refused():
    """RL 8.4, KIP-903: a fetch under an older epoch than the registered one changes nothing."""
    fixture = PartitionFixture()
    assert code_of(fixture.follower_fetches, 2, 0, epoch=101) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fixture.partition.remote_replicas[2].broker_epoch is None


# the ISR


def test_expand():
    """RL 2.4, 2.5, 1.10, 2.3: a follower at the high watermark joins; while that is in flight the
    high watermark counts it already.
    """
    fixture = PartitionFixture(isr=(1, 2))
    fixture.append(10)
    fixture.follower_fetches(2, 10)
    assert fixture.log.high_watermark == 10
    fixture.happened()
    fixture.append(5)
    fixture.follower_fetches(3, 10)
    state = fixture.partition.isr_state
    assert isinstance(state, PendingExpand)
    assert (sorted(state.isr), sorted(state.maximal_isr)) == ([1, 2], [1, 2, 3])
    fixture.follower_fetches(2, 15)
    assert fixture.log.high_watermark == 10
    assert not answered(fixture, isr=(1, 2, 3))
    assert fixture.isr == [1, 2, 3]
    assert fixture.partition.partition_epoch == 11
    assert fixture.happened() == [
        "LogEndChanged",
        "IsrChangeWanted",
        "LogStartAdvanced",
        "IsrChanged",
    ]


def test_the_proposal_names_broker_epochs():
    """RL 2.5, KIP-903: AlterPartition carries each member's broker epoch: the registered own one
    and those seen in fetches.
    """
    fixture = PartitionFixture(isr=(1, 2))
    fixture.follower_fetches(2, 0)
    fixture.follower_fetches(3, 0)
    wanted = next(event for event in fixture.events if isinstance(event, IsrChangeWanted))
    proposal = fixture.partition.isr_proposal(wanted.pending)
    assert proposal.members == ((1, 101), (2, 102), (3, 103))
    assert (proposal.leader_epoch, proposal.partition_epoch) == (5, 10)


def test_no_expansion_below_the_high_watermark():
    """RL 2.4: one record short it may not join, though it is assigned and alive."""
    fixture = PartitionFixture(isr=(1, 2))
    fixture.append(10)
    fixture.follower_fetches(2, 10)
    fixture.follower_fetches(3, 9)
    assert isinstance(fixture.partition.isr_state, CommittedIsr)
    fixture.follower_fetches(3, 10)
    assert isinstance(fixture.partition.isr_state, PendingExpand)


def test_no_expansion_below_the_epochs_start():
    """RL 2.4 (KAFKA-7128): at the high watermark but below the leader epoch's start it may not
    join.
    """
    fixture = PartitionFixture(isr=(1,))
    fixture.append(10)
    fixture.log.set_high_watermark(4)
    fixture.partition.make_leader(
        registration(LOCAL, (1, 2, 3), (1, 3), 7, 11), fixture.log, fixture.now_ms
    )
    fixture.happened()
    fixture.log.set_high_watermark(4)
    fixture.follower_fetches(2, 6)
    assert isinstance(fixture.partition.isr_state, CommittedIsr)
    fixture.follower_fetches(2, 10)
    assert isinstance(fixture.partition.isr_state, PendingExpand)


@pytest.mark.parametrize("why", ["fenced", "new incarnation"])
def test_no_expansion_of_an_ineligible_replica(why):
    """RL 2.4, 8.4, KRAFT 3.6: not fenced, not shutting down, and fetching under the registered
    broker epoch.
    """
    fixture = PartitionFixture(isr=(1,))
    if why == "fenced":
        fixture.brokers.ineligible.add(2)
        fixture.follower_fetches(2, 0)
    else:
        fixture.follower_fetches(2, 0, epoch=150)
    assert isinstance(fixture.partition.isr_state, CommittedIsr)


def test_one_change_in_flight():
    """RL 2.5: while one is in flight nobody else is proposed, and nothing shrinks."""
    fixture = PartitionFixture(isr=(1,))
    fixture.follower_fetches(2, 0)
    pending = fixture.partition.isr_state
    fixture.follower_fetches(3, 0)
    fixture.now_ms += 10 * MAX_LAG_MS
    fixture.partition.maybe_shrink_isr(fixture.now_ms)
    assert fixture.partition.isr_state is pending


def test_shrink():
    """RL 2.4, 2.5: those behind for longer than the limit leave; until the answer the high
    watermark still counts them.
    """
    fixture = PartitionFixture()
    fixture.append(10)
    fixture.follower_fetches(2, 10)
    fixture.now_ms += MAX_LAG_MS
    fixture.partition.maybe_shrink_isr(fixture.now_ms)
    assert fixture.isr == [1, 2, 3]
    assert isinstance(fixture.partition.isr_state, CommittedIsr)
    fixture.now_ms += 1
    fixture.partition.maybe_shrink_isr(fixture.now_ms)
    state = fixture.partition.isr_state
    assert isinstance(state, PendingShrink)
    assert (sorted(state.leaving), sorted(state.maximal_isr), fixture.log.high_watermark) == (
        [3],
        [1, 2, 3],
        0,
    )
    fixture.happened()
    answered(fixture, isr=(1, 2))
    assert (fixture.isr, fixture.log.high_watermark) == ([1, 2], 10)
    assert fixture.happened() == ["IsrChanged", "HighWatermarkAdvanced"]


def test_a_follower_at_the_leaders_end_never_leaves():
    """RL 2.4: never one whose log end equals the leader's, however long ago it fetched."""
    fixture = PartitionFixture()
    fixture.append(10)
    fixture.follower_fetches(2, 10)
    fixture.follower_fetches(3, 10)
    fixture.partition.maybe_shrink_isr(fixture.now_ms + 100 * MAX_LAG_MS)
    assert isinstance(fixture.partition.isr_state, CommittedIsr)


def test_it_never_shrinks_to_empty():
    """RL 2.4: the leader stays."""
    fixture = PartitionFixture()
    fixture.append(10)
    fixture.partition.maybe_shrink_isr(fixture.now_ms + 2 * MAX_LAG_MS)
    assert sorted(fixture.partition.isr_state.proposed) == [1]


@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_refusals_that_revert(error):
    """RL 2.5: the committed ISR is back, and another change may be proposed."""
    fixture = PartitionFixture(isr=(1,))
    fixture.follower_fetches(2, 0)
    assert not answered(fixture, error)
    assert isinstance(fixture.partition.isr_state, CommittedIsr)
    assert fixture.isr == [1]


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ],
)
def test_refusals_that_wait_for_the_controllers_word(error):
    """RL 2.5: the larger set stays in force until a new state comes."""
    fixture = PartitionFixture(isr=(1,))
    fixture.follower_fetches(2, 0)
    assert not answered(fixture, error)
    assert isinstance(fixture.partition.isr_state, PendingExpand)
    fixture.partition.make_leader(
        registration(LOCAL, (1, 2, 3), (1,), 5, 12), fixture.log, fixture.now_ms
    )
    assert isinstance(fixture.partition.isr_state, CommittedIsr)


def test_the_metadata_catches_up_with_an_answer_while_the_next_change_is_in_flight():
    """RL 2.3, 2.5: the high watermark waits for who was proposed since: for the controller it
    may be a member already, and leader next (simulation, seed 300617).
    """
    fixture = PartitionFixture(isr=(1,))
    fixture.append(2)
    fixture.follower_fetches(2, 2)
    answered(fixture, isr=(1, 2))
    fixture.follower_fetches(3, 2)
    pending = fixture.partition.isr_state
    assert isinstance(pending, PendingExpand)
    caught_up = registration(LOCAL, (1, 2, 3), (1, 2), 5, 11)
    fixture.partition.make_leader(caught_up, fixture.log, fixture.now_ms)
    assert fixture.partition.isr_state is pending
    fixture.append(2)
    fixture.follower_fetches(2, 4)
    assert fixture.log.high_watermark == 2
    answered(fixture, isr=(1, 2, 3), partition_epoch=12)
    assert fixture.isr == [1, 2, 3]
    # The record after it is the controller's word.
    fixture.now_ms += 2 * MAX_LAG_MS
    fixture.partition.maybe_shrink_isr(fixture.now_ms)
    assert fixture.partition.isr_state.in_flight
    newer = registration(LOCAL, (1, 2, 3), (1, 2, 3), 5, 13)
    fixture.partition.make_leader(newer, fixture.log, fixture.now_ms)
    assert isinstance(fixture.partition.isr_state, CommittedIsr)


def test_other_refusals_are_sent_again():
    """RL 2.5: others are retried."""
    fixture = PartitionFixture(isr=(1,))
    fixture.follower_fetches(2, 0)
    assert answered(fixture, ErrorCode.NOT_CONTROLLER)
    assert isinstance(fixture.partition.isr_state, PendingExpand)


def test_an_answer_to_an_older_proposal_changes_nothing():
    """RL 2.5: after the controller's word the answer to what was pending before is passed over."""
    fixture = PartitionFixture(isr=(1,))
    fixture.follower_fetches(2, 0)
    pending = fixture.partition.isr_state
    fixture.partition.make_leader(
        registration(LOCAL, (1, 2, 3), (1,), 6, 20), fixture.log, fixture.now_ms
    )
    answer = IsrAnswer(ErrorCode.NONE, LOCAL, 5, frozenset({1, 2}), 0, 11)
    assert not proposed_again(fixture, pending, answer)
    assert (fixture.isr, fixture.partition.partition_epoch) == ([1], 20)


# listeners


class Listener:
    """Notes what it hears, and what was in the queue then."""

    def __init__(self, fixture: PartitionFixture) -> None:
        self.fixture = fixture
        self.heard: list[tuple[object, int]] = []

    def partition_changed(self) -> None:
        self.heard.append(("changed", len(self.fixture.events)))

    def follower_fetched(self, replica) -> None:
        self.heard.append((replica.broker_id, len(self.fixture.events)))


def test_a_listener_hears_of_the_next_event_once_and_before_its_effects():
    """ARCHITECTURE 4: the subscription ends with the first event; nothing is queued then."""
    fixture = PartitionFixture()
    one, other = Listener(fixture), Listener(fixture)
    fixture.partition.subscribe(one)
    fixture.partition.subscribe(other)
    fixture.append()
    fixture.append()
    assert one.heard == other.heard == [("changed", 0)]
    assert fixture.partition.listeners == ()


def test_a_listener_hears_of_fetches_until_something_happens():
    """ARCHITECTURE 4: a fetch ends no subscription; who unsubscribed hears nothing."""
    fixture = PartitionFixture()
    fixture.follower_fetches(2, 0)
    fixture.follower_fetches(3, 0)  # the log starts of all are known: nothing more happens
    one, other = Listener(fixture), Listener(fixture)
    fixture.partition.subscribe(one)
    fixture.partition.subscribe(other)
    fixture.follower_fetches(2, 0)
    fixture.partition.unsubscribe(other)
    fixture.follower_fetches(3, 0)
    assert [who for who, _ in one.heard] == [2, 3]
    assert [who for who, _ in other.heard] == [2]


def test_listeners_hear_of_another_assignment_though_no_event_follows():
    """RL 2.2: under the same leader epoch nothing is queued, yet a read may say something else."""
    fixture = PartitionFixture(isr=(1, 2))
    one = Listener(fixture)
    fixture.partition.subscribe(one)
    fixture.partition.make_leader(
        registration(LOCAL, (1, 2, 3), (1, 2, 3), 5, 11), fixture.log, fixture.now_ms
    )
    assert one.heard == [("changed", 0)] and fixture.happened() == []


# deleting records


def test_low_watermark_is_the_least_of_the_live():
    """RL 2.8: the low watermark waits for all live replicas; a dead one does not count."""
    fixture = PartitionFixture()
    fixture.append(10)
    for broker in (2, 3):
        fixture.follower_fetches(broker, 10)
    fixture.happened()
    assert fixture.partition.delete_records(6) == (6, 0)
    assert fixture.happened() == ["LogStartAdvanced"]
    fixture.follower_fetches(2, 10, log_start=6)
    assert fixture.partition.low_watermark() == 0
    fixture.brokers.alive.discard(3)
    assert fixture.partition.low_watermark() == 6


def test_a_followers_new_log_start_is_an_event():
    """RL 2.8: its fetch moves the low watermark: those who wait for the deletion are tried."""
    fixture = PartitionFixture(replicas=(1, 2))
    fixture.append(10)
    fixture.follower_fetches(2, 10)
    fixture.partition.delete_records(6)
    fixture.happened()
    fixture.follower_fetches(2, 10, log_start=6)
    assert fixture.happened() == ["LogStartAdvanced"]


def test_delete_records_limits():
    """RL 2.8: -1 is the high watermark; beyond it OFFSET_OUT_OF_RANGE; compacted topics
    POLICY_VIOLATION; leaders only.
    """
    fixture = PartitionFixture(replicas=(1,))
    fixture.append(4)
    assert code_of(fixture.partition.delete_records, 5) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert code_of(fixture.partition.delete_records, -2) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fixture.partition.delete_records(-1) == (4, 4)
    fixture.log.update_config(LogConfig(cleanup_policy=frozenset({"compact"})))
    assert code_of(fixture.partition.delete_records, -1) == ErrorCode.POLICY_VIOLATION
    fixture.partition.make_follower(registration(2, (1, 2), (2,), 6, 11), fixture.log)
    assert code_of(fixture.partition.delete_records, -1) == ErrorCode.NOT_LEADER_OR_FOLLOWER


# consumers


def consume(fixture: PartitionFixture, offset: int, only_leader: bool = True):
    params = FetchParams(-1, -1, 0, 1, 1 << 20, HIGH_WATERMARK, only_leader=only_leader)
    result = fixture.partition.read(
        FetchPartitionRequest(TP, None, offset, 1 << 20),
        params,
        1 << 20,
        True,
        fixture.now_ms,
        True,
    )
    result.release()
    return result


def test_consumers_see_up_to_the_high_watermark():
    """RL 1.8, 2.7: above it up to the end is empty, beyond is OFFSET_OUT_OF_RANGE."""
    fixture = PartitionFixture()
    fixture.append(4)
    fixture.append(4)
    for broker in (2, 3):
        fixture.follower_fetches(broker, 4)
    result = consume(fixture, 0)
    assert (result.high_watermark, result.last_stable_offset, result.log_start_offset) == (4, 4, 0)
    assert consume(fixture, 4).size == consume(fixture, 6).size == 0
    assert code_of(consume, fixture, 9) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_consumers_may_read_from_a_follower():
    """RL 2.7: with v11+ a follower serves consumers; older ones and followers must come to the
    leader.
    """
    fixture = PartitionFixture(replicas=(1,))
    fixture.append(4)
    fixture.partition.make_follower(registration(2, (1, 2), (2, 1), 6, 11), fixture.log)
    assert consume(fixture, 0, only_leader=False).high_watermark == 4
    assert code_of(consume, fixture, 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_appends_by_a_coordinator():
    """Origin is the log's business; leadership and the minimum ISR hold for coordinators too."""
    fixture = PartitionFixture(isr=(1,), config=LogConfig(min_insync_replicas=2))
    call = fixture.partition.append_as_leader
    assert (
        code_of(call, batch(), -1, WALL_MS, fixture.now_ms, AppendOrigin.COORDINATOR)
        == ErrorCode.NOT_ENOUGH_REPLICAS
    )
