"""The 15 cases of Kafka's ReplicaAlterLogDirsThreadTest, one by one: `CASES` names the test of
each. What a whole move shows is in `test_directory_moves.py`; the rest is here.
"""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred

from tests.replication import test_directory_moves
from tests.replication.fixtures import LOCAL, TOPIC_ID, TP, registration
from tests.replication.moving import Moving
from tests.replication.test_directory_moves import SLOW, filled
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.log import Log
from twisted_broker.replication.fetcher.directory_move import Assignment
from twisted_broker.replication.fetcher.fetch_session_handler import RequestedPartition
from twisted_broker.replication.fetcher.fetcher_state import FetcherState, InitialFetchState
from twisted_broker.replication.fetcher.future_replicas import FutureReplicas
from twisted_broker.replication.fetcher.local_leader_endpoint import (
    LocalLeaderEndPoint,
    MoveThrottle,
)
from twisted_broker.replication.fetcher.truncation_decision import (
    EpochEnd,
    LeaderEpochRequest,
    OffsetTruncationState,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode

OTHER = TopicPartition("t", 1)
CASES = {
    "shouldNotAddPartitionIfFutureLogIsNotDefined": "test_nothing_is_filled_without_a_future_log",
    "shouldUpdateLeaderEpochAfterFencedEpochError": (
        "test_a_fenced_move_begins_again_with_the_next_epoch"
    ),
    "shouldReplaceCurrentLogDirWhenCaughtUp": (
        "test_a_future_log_takes_the_logs_place_and_the_old_one_is_deleted"
    ),
    "shouldReplaceCurrentLogDirWhenCaughtUpWithAfterAssignmentRequestHasBeenCompleted": (
        "test_the_swap_waits_for_the_controller"
    ),
    "shouldRevertAnyScheduledAssignmentRequestIfAssignmentIsCancelled": (
        "test_the_directory_where_it_is_cancels_the_move"
    ),
    "shouldRevertReassignmentsForIncompleteFutureReplicaPromotions": (
        "test_only_what_the_controller_may_have_heard_is_reverted"
    ),
    "issuesEpochRequestFromLocalReplica": "test_epochs_end_where_the_log_says",
    "fetchEpochsFromLeaderShouldHandleExceptionFromGetLocalReplica": (
        "test_an_epoch_request_answers_for_each_partition"
    ),
    "shouldTruncateToReplicaOffset": "test_a_future_log_longer_than_its_log_goes_back",
    "shouldTruncateToEndOffsetOfLargestCommonEpoch": (
        "test_a_future_log_that_was_away_while_its_log_was_truncated"
    ),
    "shouldTruncateToInitialFetchOffsetIfReplicaReturnsUndefinedOffset": (
        "test_without_epochs_a_future_log_goes_back_to_where_it_began"
    ),
    "shouldPollIndefinitelyIfReplicaNotAvailable": "test_a_log_that_is_not_available_is_tried_on",
    "shouldFetchLeaderEpochOnFirstFetchOnly": "test_epochs_are_compared_once",
    "shouldFetchOneReplicaAtATime": "test_one_move_at_a_time_in_the_order_of_names",
    "shouldFetchNonDelayedAndNonTruncatingReplicas": (
        "test_what_is_delayed_or_truncating_is_not_read"
    ),
}


def test_every_case_has_its_test() -> None:
    """Each exists, and its docstring names the case."""
    here = globals() | vars(test_directory_moves)
    assert len(CASES) == 15
    assert [
        case
        for case, name in CASES.items()
        if case not in "".join((here[name].__doc__ or "").split())
    ] == []


def endpoint(moving: Moving) -> LocalLeaderEndPoint:
    return LocalLeaderEndPoint(
        moving.replicas, MoveThrottle(lambda: 1000), lambda name: False, 1 << 20
    )


def answered(moving: Moving, work: Any) -> Any:
    found: list[Any] = []
    ensureDeferred(work).addCallbacks(found.append, lambda failure: failure.raiseException())
    moving.turns(2)
    return found[0]


def copying(records: int = 5) -> tuple[Moving, Log]:
    """A move that is slow: its copy holds something, not all."""
    moving = filled(records * 6, **SLOW)
    moving.move(moving.other)
    while True:
        moving.clock.advance(0.1)
        future = moving.partition.future_log
        assert future is not None
        if future.log_end_offset >= records:
            return moving, future


def test_nothing_is_filled_without_a_future_log() -> None:
    """shouldNotAddPartitionIfFutureLogIsNotDefined."""
    moving = filled(3)
    moving.replicas.moves.begin(moving.partition)
    assert not moving.replicas.moves.moves and not moving.replicas.moves.fetchers


@pytest.mark.parametrize(
    ("state", "is_reverted"),
    [
        (Assignment.NONE, False),
        (Assignment.QUEUED, True),
        (Assignment.ACCEPTED, True),
    ],
)
def test_only_what_the_controller_may_have_heard_is_reverted(
    state: Assignment, is_reverted: bool
) -> None:
    """shouldRevertReassignmentsForIncompleteFutureReplicaPromotions; after the swap there is
    nothing to revert.
    """
    moving, _ = copying()
    source_id = moving.log_manager.directories.by_path[moving.place].directory_id
    moving.replicas.moves.moves[TP].assignment = state
    moving.replicas.moves.remove([TP])
    assert moving.assignments.reverted == [source_id] * is_reverted
    moved = filled()
    moved.move(moved.other)
    moved.settle()
    moved.replicas.moves.remove([TP])
    assert moved.assignments.done == 1 and not moved.assignments.reverted


def test_epochs_end_where_the_log_says() -> None:
    """issuesEpochRequestFromLocalReplica: under the epoch requested, whoever leads."""
    moving = filled(3)
    moving.take_role(registration(LOCAL, (1, 2), (1,), leader_epoch=4, partition_epoch=1))
    moving.produce(2)
    moving.take_role(registration(2, (1, 2), (2,), leader_epoch=5, partition_epoch=2))
    for epoch, end in ((0, EpochEnd(ErrorCode.NONE, 0, 3)), (4, EpochEnd(ErrorCode.NONE, 4, 5))):
        ends = answered(
            moving, endpoint(moving).fetch_epoch_ends({TP: LeaderEpochRequest(5, epoch)})
        )
        assert ends == {TP: end}


def test_an_epoch_request_answers_for_each_partition() -> None:
    """fetchEpochsFromLeaderShouldHandleExceptionFromGetLocalReplica: one that is not there takes
    no other along.
    """
    moving = filled(3)
    requests = {OTHER: LeaderEpochRequest(0, 0), TP: LeaderEpochRequest(0, 0)}
    assert answered(moving, endpoint(moving).fetch_epoch_ends(requests)) == {
        OTHER: EpochEnd(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        TP: EpochEnd(ErrorCode.NONE, 0, 3),
    }
    fenced = answered(moving, endpoint(moving).fetch_epoch_ends({TP: LeaderEpochRequest(7, 0)}))
    assert fenced[TP].error is ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("leader_end", [None, EpochEnd(ErrorCode.NONE, -1, -1)])
def test_without_epochs_a_future_log_goes_back_to_where_it_began(
    leader_end: EpochEnd | None,
) -> None:
    """shouldTruncateToInitialFetchOffsetIfReplicaReturnsUndefinedOffset."""
    moving, future = copying()
    target = FutureReplicas(moving.replicas, lambda *_: None, lambda *_: None)
    done = target.truncate(TP, 2, leader_end)
    assert done == OffsetTruncationState(2, True) and future.log_end_offset == 2


def test_a_log_that_is_not_available_is_tried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """shouldPollIndefinitelyIfReplicaNotAvailable: after each backoff, and the move is no failed
    one.
    """
    moving, future = copying()
    before, calls = future.log_end_offset, [0]

    def away(*_: object) -> Any:
        calls[0] += 1
        raise BrokerError(ErrorCode.REPLICA_NOT_AVAILABLE)

    with monkeypatch.context() as patched:
        patched.setattr(type(moving.replicas), "partition", away)
        moving.settle(20)
        assert 10 <= calls[0] <= 25
        assert future.log_end_offset == before
        assert not moving.replicas.moves.failed and not moving.replicas.moves.moves[TP].error
    target = moving.other
    moving.settle(60)
    assert moving.place == target


def test_epochs_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """shouldFetchLeaderEpochOnFirstFetchOnly: when the copy has epochs; then it is filled, over
    many reads.
    """
    moving, future = copying()
    before = future.log_end_offset
    asked: list[object] = []
    real = LocalLeaderEndPoint.fetch_epoch_ends

    async def counted(self: LocalLeaderEndPoint, epochs: Any) -> Any:
        asked.append(epochs)
        return await real(self, epochs)

    monkeypatch.setattr(LocalLeaderEndPoint, "fetch_epoch_ends", counted)
    again = Moving(moving.stop(), **SLOW).start()
    target = again.other
    again.settle(5)
    assert again.place != target
    again.settle(60)
    assert again.place == target and again.log.log_end_offset > before
    assert asked == [{TP: LeaderEpochRequest(0, 0)}]


def test_what_is_delayed_or_truncating_is_not_read() -> None:
    """shouldFetchNonDelayedAndNonTruncatingReplicas: the first by name of those that are ready."""
    moving = filled(3)
    leader, state = endpoint(moving), FetcherState()

    def next_read(now_ms: int) -> dict[TopicPartition, int]:
        state.update_requested(
            now_ms,
            lambda name, each: RequestedPartition(TOPIC_ID, each.fetch_offset, 0, -1, 0, 100),
        )
        if not leader.has_request(state.requested):
            return {}
        name = leader._in_progress
        assert name is not None
        return {name: state.requested.current[name].fetch_offset}

    for name, offset in ((TP, 1), (OTHER, 2)):
        state.add(name, InitialFetchState(TOPIC_ID, 0, offset), -1, leader.truncates_on_fetch)
    assert next_read(0) == {}
    state.truncated(OTHER, OffsetTruncationState(2, True), -1, leader.truncates_on_fetch)
    assert next_read(0) == {OTHER: 2}
    state.truncated(TP, OffsetTruncationState(1, True), -1, leader.truncates_on_fetch)
    assert next_read(0) == {OTHER: 2}, "it goes on with the one in progress"
    state.delay([OTHER], 5000, 0)
    assert next_read(0) == {TP: 1}
    state.delay([TP], 5000, 0)
    assert next_read(0) == {}
    assert next_read(5000) == {TP: 1}
