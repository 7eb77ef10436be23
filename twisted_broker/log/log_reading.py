"""Reading a log.

Owns `LogReading`: batches from an offset as a file slice, the aborted transactions in them, offsets
by time and by leader epoch.

1. Never past the published end of the active segment, nor the bound given; one segment per read.
2. Nothing is loaded but batch headers: a slice says where the bytes are.

Source: Kafka's `LocalLog.read`, `UnifiedLog.collectAbortedTransactions`; RL 3.3, 3.4.
"""

from __future__ import annotations

from twisted_broker.log.append_info import FetchDataInfo, TimestampAndOffset
from twisted_broker.log.log_state import LogState
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log.offset_search import find_by_timestamp, find_max_timestamp
from twisted_broker.log.segment import FileSlice, Segment
from twisted_broker.log.txn_index import AbortedTxn


class LogReading(LogState):
    """The readers' side of a log."""

    __slots__ = ()

    def read(
        self,
        offset: int,
        max_bytes: int,
        upto: LogOffsetMetadata | None = None,
        min_one_message: bool = True,
        read_committed: bool = False,
    ) -> FetchDataInfo:
        """Batches from the one that holds `offset` on, up to `upto` (the log end), about
        `max_bytes` of one segment.

        With `min_one_message` a first batch beyond `max_bytes` comes whole; else it is cut
        (`first_entry_incomplete`). BrokerError OFFSET_OUT_OF_RANGE. The slice must be released.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset or self.failed is not None:
            self._check_range(offset)
        segments = self.segments
        row = segments.row_of(offset)
        segment = segments.at(row)
        if upto is None:
            limit_base, limit, limit_offset = (
                segments.active.base_offset,
                segments.active.size,
                self.log_end_offset,
            )
        else:
            if upto.position < 0 and upto.offset > offset:
                upto = self.offset_metadata(upto.offset)
            limit_base, limit, limit_offset = upto.segment_base_offset, upto.position, upto.offset
        if offset >= limit_offset:
            return self._nothing(offset, upto, read_committed)
        while segment is not None and segment.base_offset <= limit_base:
            place = self._locate(segment, offset)
            end = limit if segment.base_offset == limit_base else segment.size
            if place is not None and place[0] < end:
                return self._slice(
                    segment, row, offset, place, end, max_bytes, min_one_message, read_committed
                )
            row += 1
            segment = segments.at(row)
        return self._nothing(offset, upto, read_committed)

    def _nothing(
        self, offset: int, upto: LogOffsetMetadata | None, read_committed: bool
    ) -> FetchDataInfo:
        if upto is not None and upto.offset == offset and upto.position >= 0:
            metadata = upto
        else:
            metadata = (
                self.log_end if offset == self.log_end_offset else self.offset_metadata(offset)
            )
        return FetchDataInfo(metadata, None, False, [] if read_committed else None)

    def _slice(
        self,
        segment: Segment,
        row: int,
        offset: int,
        place: tuple[int, int],
        end: int,
        max_bytes: int,
        min_one_message: bool,
        read_committed: bool,
    ) -> FetchDataInfo:
        position, first_size = place
        metadata = LogOffsetMetadata(offset, segment.base_offset, position)
        incomplete = max_bytes < first_size
        wanted = first_size if incomplete and min_one_message else max_bytes
        length = min(end - position, wanted)
        if length <= 0:
            return FetchDataInfo(metadata, None, incomplete, [] if read_committed else None)
        try:
            file_slice = FileSlice(segment.log, position, length)
        except OSError as error:
            raise self.fail(error) from error
        aborted = self._aborted(segment, row, offset, position + length) if read_committed else None
        return FetchDataInfo(metadata, file_slice, incomplete and not min_one_message, aborted)

    def _aborted(self, segment: Segment, row: int, offset: int, end: int) -> list[AbortedTxn]:
        """Aborted transactions among the batches from `offset` to byte `end` of the segment."""
        upper = segment.upper_bound_offset(end)
        if upper < 0:
            following = self.segments.at(row + 1)
            upper = following.base_offset if following is not None else self.log_end_offset
        return self.aborted_transactions(offset, upper)

    def aborted_transactions(self, offset: int, upper_bound: int) -> list[AbortedTxn]:
        """Aborted transactions that touch [offset, upper_bound)."""
        found: list[AbortedTxn] = []
        row = max(0, self.segments.row_of(offset))
        while (segment := self.segments.at(row)) is not None and not segment.txn_index.collect(
            offset, upper_bound, found
        ):
            row += 1
        return found

    def find_offset_by_timestamp(
        self, target_ms: int, upto_offset: int | None = None
    ) -> TimestampAndOffset | None:
        """The first record with a timestamp of at least `target_ms`, below `upto_offset`."""
        self.check_online()
        found = find_by_timestamp(self.segments, target_ms, self.log_start_offset)
        return (
            found
            if found is not None and (upto_offset is None or found.offset < upto_offset)
            else None
        )

    def max_timestamp_offset(self) -> TimestampAndOffset | None:
        """The record with the largest timestamp (ListOffsets -3)."""
        self.check_online()
        return find_max_timestamp(self.segments, self.log_start_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch at or below the one asked, (-1, -1) when it
        cannot be told.
        """
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)
