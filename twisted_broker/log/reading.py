"""Reading the segments of a log.

Owns `read_segments`, batches from an offset as a file slice, and `aborted_transactions`.

1. Never past the bound given; one segment per read.
2. Nothing is loaded but batch headers: a slice says where the bytes are.

Source: Kafka's `LocalLog.read`, `UnifiedLog.collectAbortedTransactions`; RL 3.3. Not here: which
offsets may be read, and how far (`log.py`, `replication.partition`); offsets by time
(`offset_search.py`).
"""

from __future__ import annotations

from twisted_broker.log.append_info import FetchDataInfo
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log.segment import FileSlice, LogSegment
from twisted_broker.log.segments import LogSegments
from twisted_broker.log.txn_index import AbortedTxn


def read_segments(
    segments: LogSegments,
    offset: int,
    max_bytes: int,
    upto: LogOffsetMetadata,
    min_one_message: bool,
    read_committed: bool,
) -> FetchDataInfo:
    """Batches from the one that holds `offset` on, up to `upto`, about `max_bytes` of one segment.

    With `min_one_message` a first batch beyond `max_bytes` comes whole; else it is truncated
    (`first_entry_incomplete`). The slice must be released.
    Raises OSError, BrokerError CORRUPT_MESSAGE.
    """
    if offset >= upto.offset:
        return _nothing(segments, offset, upto, read_committed)
    row, last_base = segments.row_of(offset), upto.segment_base_offset
    # A segment may end below `offset` (compaction, or a roll at a higher offset): the reader gets
    # the first batch of the next one.
    while (segment := segments.at(row)) is not None and segment.base_offset <= last_base:
        place = segment.locate(offset)
        end = segment.size
        if segment.base_offset == last_base:
            # A place at the end of a segment may be older than its cleaning, which made it smaller.
            end = min(end, upto.position)
        if place is not None and place.position < end:
            position, first_size = place.position, place.size_in_bytes
            incomplete = max_bytes < first_size
            length = min(
                end - position, first_size if incomplete and min_one_message else max_bytes
            )
            metadata = LogOffsetMetadata(offset, segment.base_offset, position)
            if length <= 0:
                return FetchDataInfo(metadata, None, incomplete, [] if read_committed else None)
            aborted = (
                _aborted(segments, segment, row, offset, position + length)
                if read_committed
                else None
            )
            file_slice = FileSlice(segment.log, position, length)
            return FetchDataInfo(metadata, file_slice, incomplete and not min_one_message, aborted)
        row += 1
    return _nothing(segments, offset, upto, read_committed)


def _nothing(
    segments: LogSegments, offset: int, upto: LogOffsetMetadata, read_committed: bool
) -> FetchDataInfo:
    known = upto.offset == offset and upto.position >= 0
    metadata = upto if known else segments.place_of(offset)
    return FetchDataInfo(metadata, None, False, [] if read_committed else None)


def _aborted(
    segments: LogSegments, segment: LogSegment, row: int, offset: int, end: int
) -> list[AbortedTxn]:
    """Aborted transactions among the batches from `offset` to byte `end` of the segment."""
    upper = segment.upper_bound_offset(end)
    if upper < 0:
        following = segments.at(row + 1)
        upper = following.base_offset if following is not None else segments.log_end_offset
    return aborted_transactions(segments, offset, upper)


def aborted_transactions(segments: LogSegments, offset: int, upper_bound: int) -> list[AbortedTxn]:
    """Aborted transactions that touch [offset, upper_bound). Raises OSError."""
    found: list[AbortedTxn] = []
    row = max(0, segments.row_of(offset))
    while (segment := segments.at(row)) is not None and not segment.txn_index.collect(
        offset, upper_bound, found
    ):
        row += 1
    return found
