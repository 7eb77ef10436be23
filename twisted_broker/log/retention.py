"""Which segments are old enough to go.

Owns retention by log start, size and time, and `age_from`.

1. Only from the oldest on, without gaps; never one that reaches above the high watermark.
2. When all may go, the active one rolls first: a log always keeps a segment.
3. The log start rises before files go.

Source: Kafka's `UnifiedLog.deleteOldSegments`; RL 3.7. Not here: compaction.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from twisted_broker.log.segment import LogSegment
from twisted_broker.settings import INT_MAX

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

_Old = Callable[[LogSegment, LogSegment | None], bool]


def delete_old_segments(log: Log, wall_ms: int, most: int = INT_MAX) -> int:
    """Applies all rules that the log's policy allows; returns the number of segments deleted,
    `most` at the most: then there may be more.

    Raises BrokerError.
    """
    log.check_online()
    try:
        deleted = _delete_while(
            log,
            lambda segment, following: (
                following is not None and following.base_offset <= log.log_start_offset
            ),
            wall_ms,
            most,
        )
        if log.config.delete:
            deleted += _delete_while(log, _by_size(log), wall_ms, most - deleted)
            deleted += _delete_while(log, _by_time(log, wall_ms), wall_ms, most - deleted)
    except OSError as error:
        raise log.fail(error) from error
    return deleted


def _by_time(log: Log, wall_ms: int) -> _Old:
    retention_ms = log.config.retention_ms
    if retention_ms < 0:
        return lambda segment, following: False
    return lambda segment, following: wall_ms - age_from(log, segment) > retention_ms


def age_from(log: Log, segment: LogSegment) -> int:
    """Its largest timestamp, in ms; where no record has one, when its file was modified. Raises
    OSError.
    """
    largest = segment.largest_timestamp()
    return largest if largest >= 0 else log.pool.files.modified_ms(segment.log.path)


def _by_size(log: Log) -> _Old:
    excess = (
        log.size_in_bytes - log.config.retention_bytes if log.config.retention_bytes >= 0 else -1
    )

    def is_old(segment: LogSegment, following: LogSegment | None) -> bool:
        nonlocal excess
        if excess - segment.size < 0:
            return False
        excess -= segment.size
        return True

    return is_old


def _deletable(log: Log, is_old: _Old, most: int) -> list[LogSegment]:
    found: list[LogSegment] = []
    for row, segment in enumerate(islice(log.segments, most)):
        following = log.segments.at(row + 1)
        upper = following.base_offset if following is not None else log.log_end_offset
        if (
            log.high_watermark < upper
            or (following is None and segment.size == 0)
            or not is_old(segment, following)
        ):
            break
        found.append(segment)
    return found


def _delete_while(log: Log, is_old: _Old, wall_ms: int, most: int) -> int:
    """Deletes from the oldest on while `is_old(segment, next one)`."""
    found = _deletable(log, is_old, most)
    if not found:
        return 0
    # A log always has an active segment.
    if len(found) == len(log.segments):
        log.roll(wall_ms)
    kept = log.segments.at(len(found))
    assert kept is not None
    # Before the files go: readers never find the log start in a segment that is not there.
    log.increment_log_start_offset(min(kept.base_offset, log.high_watermark))
    for segment in found:
        log.segments.remove_first()
        log.producers.remove_snapshot(segment.base_offset)
    return len(found)
