"""Where a follower's log stops agreeing with its leader's.

Owns the request for an epoch's end and its answer (`LeaderEpochRequest`, `EpochEnd`), where to
truncate (`truncation_for`), and where to go on when the leader no longer has what is requested
(`offset_reset_for`).

1. A truncation never goes above the own end, and never above the leader's end of an epoch that both
   know.
2. When the leader answers with an epoch that the own log lacks, the log is truncated to the end of
   its next older epoch. That is not complete: the next request is about the older epoch.
3. An offset reset truncates to the leader's end, drops the whole log, or keeps all of it.

Called by `fetched_logs` (`_truncation`, `offset_reset_for`); `replica_fetcher` then calls
`Partition.truncate_to` or `truncate_fully_and_start_at`.

Source: RL 6.3, 6.5; KIP-101, KIP-279; Kafka's `AbstractFetcherThread.getOffsetTruncationState`,
`fetchOffsetAndApplyTruncateAndBuild`. Not here: when, and for whom (`fetcher`,
`fetcher_state`), the truncation itself (`Partition.truncate_to`).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from twisted_broker.wire.errors import ErrorCode


class LeaderEpochRequest(NamedTuple):
    """A request for the end of `epoch`, under the leader epoch that the follower knows."""

    leader_epoch: int
    epoch: int


class EpochEnd(NamedTuple):
    """(epoch, end offset) as the leader knows them, -1 where it does not."""

    error: ErrorCode
    epoch: int = -1
    end_offset: int = -1


class OwnLog(Protocol):
    """What truncation must know of the own log."""

    @property
    def log_end_offset(self) -> int: ...

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch up to `epoch`, its end), (-1, -1) when it is not known."""
        ...


class OffsetTruncationState(NamedTuple):
    """Truncation to `offset`; not `complete`: the logs may still differ below."""

    offset: int
    complete: bool


OUT_OF_RANGE = "its log end is out of the leader's range"


class OffsetReset(NamedTuple):
    """Where to go on after OFFSET_OUT_OF_RANGE, or for another `reason`: `truncate` the own log
    there first, or drop all of it (`truncate_fully`).
    """

    offset: int
    truncate: bool
    truncate_fully: bool
    lag: int
    reason: str = OUT_OF_RANGE


def truncation_for(leader: EpochEnd, fetch_offset: int, own: OwnLog) -> OffsetTruncationState:
    """RL 6.3: where the own log stops agreeing with the leader's, by the leader's end of an
    epoch.
    """
    own_end = own.log_end_offset
    if leader.end_offset < 0:
        # `fetch_offset` is the high watermark then: fetching begins there without agreed epochs.
        return OffsetTruncationState(min(fetch_offset, own_end), True)
    # An old leader answers without an epoch: its end is all that is known.
    if leader.epoch < 0:
        return OffsetTruncationState(min(leader.end_offset, own_end), True)
    epoch, end_offset = own.end_offset_for_epoch(leader.epoch)
    # The own log knows no epoch as old as the leader's answer.
    if end_offset < 0:
        return OffsetTruncationState(min(leader.end_offset, own_end), True)
    # Neither log has the other's epoch: what both may share ends here, and the next request is
    # about that older epoch (KIP-279).
    if epoch != leader.epoch:
        return OffsetTruncationState(min(end_offset, own_end), False)
    return OffsetTruncationState(min(end_offset, leader.end_offset, own_end), True)


def offset_reset_for(own_end: int, leader_end: int, leader_start: int | None) -> OffsetReset:
    """RL 6.5.

    `leader_start` is needed, and not None, only when `leader_end` is not below the own end.
    """
    if leader_end < own_end:
        return OffsetReset(leader_end, True, False, 0)
    assert leader_start is not None
    if leader_start > own_end:
        return OffsetReset(leader_start, False, True, max(0, leader_end - leader_start))
    return OffsetReset(own_end, False, False, max(0, leader_end - own_end))
