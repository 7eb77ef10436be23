"""Finding an offset by time.

Owns the search over segments for ListOffsets by timestamp and for the largest timestamp.

1. Only records that live count: at or above the log start, and not compacted away. What a segment
   knows as its largest timestamp is a bound; the record that had it may be gone.
2. A search pauses after a few milliseconds: a segment whose timestamps do not grow is walked,
   header by header. SliceGone: what it read changed in a pause, and it must begin again.

Source: Kafka's `UnifiedLog.fetchOffsetByTimestamp`; RL 3.4. Not here: the special timestamps that
name watermarks (`replication`).
"""

from __future__ import annotations

from collections.abc import Generator

from twisted_broker.log.append_info import TimestampAndOffset
from twisted_broker.log.segment import LogSegment
from twisted_broker.log.segment_file import SliceGone
from twisted_broker.log.segments import LogSegments

Search = Generator[None, None, TimestampAndOffset | None]


def find_by_timestamp(segments: LogSegments, target_ms: int, log_start_offset: int) -> Search:
    """The first record at or above the log start with a timestamp of at least `target_ms`."""
    for segment in _live(segments, log_start_offset):
        if (yield from _bound(segments, segment)) >= target_ms:
            found = yield from segment.find_by_timestamp(target_ms, log_start_offset)
            # Without one a later segment has it. Kafka looks no further.
            if found is not None:
                return found
    return None


def find_max_timestamp(segments: LogSegments, log_start_offset: int) -> Search:
    """The first record that carries the largest timestamp of those that live."""
    live = _live(segments, log_start_offset)
    for segment in live:
        yield from _bound(segments, segment)
    best: TimestampAndOffset | None = None
    # Usually the first has it, and is the only one that is searched.
    for segment in sorted(live, key=lambda each: (-each.max_timestamp, each.base_offset)):
        bound = segment.max_timestamp
        if bound < 0 or (
            best is not None and (bound, -segment.base_offset) < (best.timestamp, -best.offset)
        ):
            break
        _check(segments, segment)
        found = yield from segment.find_by_timestamp(bound, log_start_offset)
        if found is None:
            found = yield from segment.find_largest_timestamp(log_start_offset)
        if found is not None and (
            best is None or (found.timestamp, -found.offset) > (best.timestamp, -best.offset)
        ):
            best = found
    return best


def _live(segments: LogSegments, log_start_offset: int) -> list[LogSegment]:
    """Those that may hold records at or above the log start."""
    return segments.between(log_start_offset, segments.log_end_offset + 1)


def _bound(segments: LogSegments, segment: LogSegment) -> Generator[None, None, int]:
    """No record in it has a larger timestamp; -1 without records."""
    _check(segments, segment)
    if not segment.knows_timestamps:
        yield from segment.load_timestamps_in_steps()
        yield  # after a restart none is known, and there may be thousands
        _check(segments, segment)
    return segment.max_timestamp


def _check(segments: LogSegments, segment: LogSegment) -> None:
    """That it was not removed in a pause: its files may be gone."""
    if segments.at(segments.row_of(segment.base_offset)) is not segment:
        raise SliceGone(segment.log.path)
