"""Finding an offset by time.

Owns the search over segments for ListOffsets by timestamp and for the largest timestamp.

Source: Kafka's `UnifiedLog.fetchOffsetByTimestamp`; RL 3.4. Not here: the special timestamps that
name watermarks (`replication`).
"""

from __future__ import annotations

from twisted_broker.log.append_info import TimestampAndOffset
from twisted_broker.log.segments import LogSegments


def find_by_timestamp(
    segments: LogSegments, target_ms: int, log_start_offset: int
) -> TimestampAndOffset | None:
    """The first record at or above the log start with a timestamp of at least `target_ms`."""
    for segment in segments:
        if segment.largest_timestamp() >= target_ms:
            found = segment.find_by_timestamp(target_ms, log_start_offset)
            if found is not None:
                return found
    return None


def find_max_timestamp(segments: LogSegments, log_start_offset: int) -> TimestampAndOffset | None:
    """The first record that carries the largest timestamp of the log."""
    largest = max(segments, key=lambda segment: segment.largest_timestamp())
    if largest.max_timestamp < 0:
        return None
    return largest.find_by_timestamp(largest.max_timestamp, log_start_offset)
