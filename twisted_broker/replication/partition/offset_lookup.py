"""Questions about offsets of a partition: by timestamp, by leader epoch.

Owns ListOffsets and OffsetForLeaderEpoch for one partition, as functions over `Partition`.

1. A client sees nothing above its own end: the high watermark, or the last stable offset when it
   reads committed.
2. A leader whose high watermark is below the start of its epoch does not know a client's end yet:
   OFFSET_NOT_AVAILABLE (RL 2.7).

Source: RL 2.7, 3.4; Kafka's `Partition.fetchOffsetForTimestamp`,
`UnifiedLog.fetchOffsetByTimestamp`. Not here: the search (`log`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from twisted_broker.log.append_info import TimestampAndOffset
from twisted_broker.replication.partition.fetch_data import LOG_END
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.wire.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)
NOT_FOUND = TimestampAndOffset(-1, -1, -1)


def known_offset(
    partition: Partition,
    timestamp: int,
    isolation: int,
    current_leader_epoch: int,
    only_leader: bool,
) -> TimestampAndOffset | None:
    """As `list_offset`, at once; None for a timestamp that files are searched for."""
    log = _log(partition, current_leader_epoch, only_leader)
    if timestamp == LATEST:
        if _end_is_unsure(partition, log, isolation):
            raise _unsure(partition)
        return TimestampAndOffset(-1, partition.end_for(isolation).offset, partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        return TimestampAndOffset(-1, start, log.leader_epochs.epoch_for_offset(start))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOT_FOUND
    return None


def list_offset(
    partition: Partition,
    timestamp: int,
    isolation: int,
    current_leader_epoch: int,
    only_leader: bool,
) -> Generator[None, None, TimestampAndOffset]:
    """The offset for `timestamp` (ms, or one of the special ones); `NOT_FOUND` when there is
    none. Pauses while it searches files. Raises `BrokerError`: OFFSET_NOT_AVAILABLE, or as
    `Partition.log_for`.
    """
    known = known_offset(partition, timestamp, isolation, current_leader_epoch, only_leader)
    if known is not None:
        return known
    log = _log(partition, current_leader_epoch, only_leader)
    end_offset = partition.end_for(isolation).offset
    end_is_unsure = _end_is_unsure(partition, log, isolation)
    found = yield from (
        log.max_timestamp_offset()
        if timestamp == MAX_TIMESTAMP
        else log.find_offset_by_timestamp(timestamp, end_offset)
    )
    # In a pause its role may have ended.
    _log(partition, current_leader_epoch, only_leader)
    if found is not None and found.offset < end_offset:
        return found
    if end_is_unsure:
        raise _unsure(partition)
    return NOT_FOUND


def _end_is_unsure(partition: Partition, log: Log, isolation: int) -> bool:
    return isolation != LOG_END and partition.leader_epoch_start_offset > log.high_watermark


def _unsure(partition: Partition) -> BrokerError:
    return BrokerError(
        ErrorCode.OFFSET_NOT_AVAILABLE,
        f"the high watermark of {partition.topic_partition} has not reached its leader epoch yet",
    )


def end_offset_for_epoch(
    partition: Partition, current_leader_epoch: int, epoch: int
) -> tuple[int, int]:
    """(epoch, end offset) of the largest epoch up to `epoch`, (-1, -1) when it is not known.

    Raises `BrokerError`; leaders only.
    """
    return _log(partition, current_leader_epoch, True).end_offset_for_epoch(epoch)


def _log(partition: Partition, current_leader_epoch: int, only_leader: bool) -> Log:
    """Only -1 means no epoch (Kafka's `RequestUtils`); for a fetch any negative number does."""
    log = partition.log_for(current_leader_epoch, only_leader)
    if current_leader_epoch < -1:
        raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH)
    return log


def segment_offsets_before(
    partition: Partition, timestamp: int, max_offsets: int, ordinary: bool, wall_ms: int
) -> list[int]:
    """ListOffsets v0: the starts of segments last written at or before `timestamp`, newest first,
    after the log end, which counts as written now. `ordinary`: the request is a client's.
    """
    log = partition.log_for(-1, True)
    points = _segment_points(log, wall_ms)
    if timestamp == LATEST:
        last = len(points) - 1
    elif timestamp == EARLIEST:
        last = 0
    else:
        last = max(
            (index for index, (_, modified_ms) in enumerate(points) if modified_ms <= timestamp),
            default=-1,
        )
    offsets = [points[index][0] for index in range(last, -1, -1)][: max(0, max_offsets)]
    visible = log.high_watermark
    if not ordinary or all(offset <= visible for offset in offsets):
        return offsets
    return [visible, *(offset for offset in offsets if offset < visible)][: max(0, max_offsets)]


def _segment_points(log: Log, wall_ms: int) -> list[tuple[int, int]]:
    """(offset, last written at, in ms): the start of each segment, and the end of a last segment
    that is not empty. Raises BrokerError.
    """
    files = log.pool.files
    try:
        points = [
            (max(segment.base_offset, log.log_start_offset), files.modified_ms(segment.log.path))
            for segment in log.segments
        ]
    except OSError as error:
        raise log.fail(error) from error
    if points and log.log_end_offset > points[-1][0]:
        points.append((log.log_end_offset, wall_ms))
    return points
