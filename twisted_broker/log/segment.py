"""One segment of a log: the record file and its three indexes.

Owns `LogSegment`, and the names of its files.

1. The published end is `size`: nothing behind it is ever read, and only whole batches lie before
   it.
2. An index entry is due when more than `index.interval.bytes` came since the last one, decided
   batch by batch; it holds the batch's last offset and first byte. While descriptors are short the
   entry stays due and the batch is accepted: its bytes are in the file already. If it were refused,
   the next batch would overwrite it with the same offset and epoch, and a loss of power might bring
   it back.
3. The places of the newest batches are kept while the segment is written (`_tail_*`), so a read
   near the end needs no scan.

Source: Kafka 4.3.1's `LogSegment`; RL 3.1, 3.3. Not here: when to roll (`segments.py`), what
recovery makes of a damaged one (`recovery.py`).
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from heapq import heappush, heappushpop
from operator import attrgetter

from twisted_broker.interfaces import Buffer
from twisted_broker.log.append_info import TimestampAndOffset
from twisted_broker.log.batch_scan import BatchPlace, find_batch, scan, scan_headers
from twisted_broker.log.errors import is_out_of_descriptors
from twisted_broker.log.index import OffsetIndex, TimeIndex
from twisted_broker.log.segment_file import FileSlice, OpenFiles, SegmentFile, SliceGone
from twisted_broker.log.txn_index import TransactionIndex
from twisted_broker.wire.batch_fields import (
    BASE_OFFSET,
    LAST_OFFSET_DELTA,
    LENGTH,
    MAGIC_FIELD,
    MAX_TIMESTAMP,
    PARTITION_LEADER_EPOCH,
    RECORDS_COUNT,
)
from twisted_broker.wire.message_set import MessageView
from twisted_broker.wire.records import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    MAX_OUTPUT_BYTES,
    BatchHeader,
    BatchView,
    CorruptRecordError,
    Record,
    read_batch_header,
)
from twisted_broker.wire.schema import run_whole

__all__ = ["FileSlice", "LogSegment", "OpenFiles", "SegmentFile", "SliceGone", "file_name"]

LOG, INDEX, TIME_INDEX, TXN_INDEX = ".log", ".index", ".timeindex", ".txnindex"
DELETED, CLEANED, SWAP = ".deleted", ".cleaned", ".swap"
# Batches: consumers at the tail and followers find their place without a read of the file.
_TAIL_KEPT = 128
HEADERS_PER_STEP = 500  # about two milliseconds where each batch is read for its header alone
_CLAIMS = 8
_UNKNOWN_TIMESTAMP = -2
_timestamp = attrgetter("timestamp")


def file_name(base_offset: int, suffix: str) -> str:
    """`00000000000000000042.log`."""
    return f"{base_offset:020d}{suffix}"


class LogSegment:
    """`base_offset` names the files; `max_timestamp` is -2 until `load_timestamps`; `full`: an
    index takes no more.
    """

    __slots__ = (
        "_bytes_since_index",
        "_first_timestamp",
        "_tail_lasts",
        "_tail_positions",
        "_time_index_lags",
        "base_offset",
        "created_ms",
        "full",
        "index_interval_bytes",
        "jitter_ms",
        "log",
        "max_timestamp",
        "offset_index",
        "offset_of_max_timestamp",
        "size",
        "time_index",
        "txn_index",
    )

    def __init__(
        self,
        pool: OpenFiles,
        directory: str,
        base_offset: int,
        index_bytes: int,
        index_interval_bytes: int,
        wall_ms: int,
        jitter_ms: int = 0,
    ) -> None:
        self.base_offset, self.index_interval_bytes = base_offset, index_interval_bytes
        self.created_ms, self.jitter_ms = wall_ms, jitter_ms
        self.log, index, time_index, txn_index = (
            SegmentFile(pool, posixpath.join(directory, file_name(base_offset, suffix)))
            for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX)
        )
        self.offset_index = OffsetIndex(index, base_offset, index_bytes)
        self.time_index = TimeIndex(time_index, base_offset, index_bytes)
        self.txn_index = TransactionIndex(txn_index, base_offset)
        self.size = self._bytes_since_index = 0
        self.full = self._time_index_lags = False
        self.max_timestamp, self.offset_of_max_timestamp = _UNKNOWN_TIMESTAMP, base_offset
        self._first_timestamp = _UNKNOWN_TIMESTAMP
        self._tail_lasts: list[int] = []
        self._tail_positions: list[int] = []

    # -- making and opening

    def create(self, preallocate_bytes: int = 0) -> None:
        """Makes the files, empty. Raises OSError."""
        file = self.log.create()
        # Left by a crash in the middle of a roll, or preallocated.
        if file.size():
            file.truncate(0)
        if preallocate_bytes:
            file.truncate(preallocate_bytes)
        self.offset_index.create()
        self.time_index.create()
        self.txn_index.reset()
        self.max_timestamp, self.full = -1, False

    def reset_indexes(self) -> None:
        """Empties all indexes and publishes nothing: `publish` fills them again. Raises OSError."""
        self.offset_index.create()
        self.time_index.create()
        self.txn_index.reset()
        self.size = self._bytes_since_index = 0
        self.full = self._time_index_lags = False
        self.max_timestamp, self.offset_of_max_timestamp = -1, self.base_offset
        self._first_timestamp = _UNKNOWN_TIMESTAMP
        self._tail_lasts, self._tail_positions = [], []

    def has_indexes(self, upper_bound: int | None = None) -> bool:
        """Whether both index files are there in a possible size, and the transaction index is
        whole, of a segment that ends below `upper_bound`.
        """
        files = self.log.pool.files
        for index, entry_bytes in ((self.offset_index, 8), (self.time_index, 12)):
            if not files.exists(index.file.path) or files.size(index.file.path) % entry_bytes:
                return False
        return self.txn_index.is_sound(upper_bound)

    def open(self) -> None:
        """Takes the size from the file. Raises OSError."""
        self.size = self.log.pool.files.size(self.log.path)

    def load_indexes(self) -> None:
        """Loads the indexes of a segment that is to be written. Slow. Raises OSError."""
        self.offset_index.load()
        self.time_index.load()

    def load_timestamps(self) -> None:
        """Finds the largest timestamp."""
        self.max_timestamp = _UNKNOWN_TIMESTAMP
        run_whole(self.load_timestamps_in_steps())

    def load_timestamps_in_steps(self) -> Generator[None, None, None]:
        """Finds the largest timestamp: the time index's last entry, and the batches since. Pauses;
        raises SliceGone as `_headers_in_steps`.
        """
        timestamp, offset = self.time_index.last_entry
        indexed = self.offset_index.last_position
        lags = False
        start = self.offset_index.lookup(offset)  # may open it: before the file that is read
        try:
            for step in self._headers_in_steps(start):
                if step is None:
                    yield
                    continue
                position, header = step
                if header[MAX_TIMESTAMP] > timestamp:
                    timestamp, offset = (
                        header[MAX_TIMESTAMP],
                        header[BASE_OFFSET] + header[LAST_OFFSET_DELTA],
                    )
                    # The time index lacks an entry: after a truncation its last one may be below
                    # the largest timestamp.
                    lags = lags or position <= indexed
        except CorruptRecordError:
            # Damage ends the walk: only what can be read counts.
            pass
        # Else somebody who could not wait found it in a pause.
        if self.max_timestamp == _UNKNOWN_TIMESTAMP:
            self._time_index_lags = lags
            self._found_timestamps(timestamp, offset)

    def _found_timestamps(self, timestamp: int, offset: int) -> None:
        self.max_timestamp, self.offset_of_max_timestamp = timestamp, offset
        self.full = self.offset_index.is_full or self.time_index.is_full

    def _find_timestamps_after_truncation(self, offset: int) -> None:
        """The largest timestamp after a truncation to `offset`, without a walk over the whole
        segment where timestamps do not grow.

        With each entry of the offset index the time index notes the largest timestamp so far: only
        batches after the last entry are read. More are read where the time index lacks entries.
        """
        if self.max_timestamp != _UNKNOWN_TIMESTAMP and self.offset_of_max_timestamp < offset:
            self._found_timestamps(self.max_timestamp, self.offset_of_max_timestamp)
            return
        if self._time_index_lags:
            self.load_timestamps()
            return
        timestamp, largest_at = self.time_index.last_entry
        start = self.offset_index.last_position
        try:
            for _, header in scan_headers(self.log.open(), start, self.size):
                if header[MAX_TIMESTAMP] > timestamp:
                    timestamp, largest_at = (
                        header[MAX_TIMESTAMP],
                        header[BASE_OFFSET] + header[LAST_OFFSET_DELTA],
                    )
        except CorruptRecordError:
            # As above.
            pass
        self._found_timestamps(timestamp, largest_at)

    @property
    def knows_timestamps(self) -> bool:
        return self.max_timestamp != _UNKNOWN_TIMESTAMP

    def largest_timestamp(self) -> int:
        """-1 without records."""
        if not self.knows_timestamps:
            self.load_timestamps()
        return self.max_timestamp

    # -- writing

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Writes bytes behind the published end, in one call.

        `publish` makes their batches visible. Raises OSError.
        """
        self.log.open().write_at(self.size, buffers)

    def publish(self, size_in_bytes: int, last_offset: int, max_timestamp: int) -> None:
        """Publishes the next batch of what was written. Raises OSError, but not for want of
        descriptors.
        """
        position = self.size
        if max_timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max_timestamp = max_timestamp, last_offset
        if self._bytes_since_index > self.index_interval_bytes:
            self._enter(last_offset, position)
        elif position == 0:
            self._first_timestamp = max_timestamp
        self._bytes_since_index += size_in_bytes
        self.size = position + size_in_bytes
        lasts = self._tail_lasts
        if len(lasts) >= 2 * _TAIL_KEPT:
            # Half at a time: each append shifting the whole list would cost more than the list
            # saves.
            del lasts[:_TAIL_KEPT]
            del self._tail_positions[:_TAIL_KEPT]
        lasts.append(last_offset)
        self._tail_positions.append(position)

    def _enter(self, last_offset: int, position: int) -> None:
        """Adds the entries of a batch. Raises OSError as `publish` does."""
        offsets, times, entries = self.offset_index, self.time_index, -1
        try:
            entries = offsets.entries
            offsets.append(last_offset, position)
            times.append(self.max_timestamp, self.offset_of_max_timestamp)
        except OSError as error:
            offsets.drop_from(entries)
            if not is_out_of_descriptors(error):
                raise
        else:
            self._bytes_since_index = 0
            self.full = offsets.is_full or times.is_full

    def hold_indexes(self) -> None:
        """From now on index entries stay in memory until `write_indexes` writes them together: one
        write for each costs as much as the batch's own. Raises OSError as `publish` does.
        """
        try:
            self.offset_index.hold()
            self.time_index.hold()
        except OSError as error:
            self.offset_index.drop_from(-1)
            if not is_out_of_descriptors(error):
                raise

    def write_indexes(self) -> None:
        """Writes the held entries. After an error neither index has them: later entries must not
        stand behind a hole. Raises OSError as `publish` does.
        """
        offsets, times = self.offset_index, self.time_index
        starts = offsets.held_from, times.held_from
        try:
            offsets.write_held()
            times.write_held()
        except OSError as error:
            offsets.drop_from(starts[0])
            times.drop_from(starts[1])
            if not is_out_of_descriptors(error):
                raise
            self._bytes_since_index = self.index_interval_bytes + 1
            self.full = offsets.is_full or times.is_full

    def first_timestamp(self) -> int:
        """Timestamp that starts the segment's age: the first batch's largest. -1: the segment is
        empty, or it has none (magic 0).
        """
        if self.size == 0:
            return -1
        if self._first_timestamp == _UNKNOWN_TIMESTAMP:
            self._first_timestamp = -1
            for _, header in scan_headers(self.log.open(), 0, self.size):
                self._first_timestamp = header[MAX_TIMESTAMP]
                break
        return self._first_timestamp

    def become_inactive(self) -> bool:
        """Completes and trims the indexes of a segment that is written no more. Returns whether a
        preallocated tail of the record file was truncated: no earlier sync covers that. Raises
        OSError.
        """
        if self.max_timestamp >= 0:
            self.time_index.append(
                self.max_timestamp, self.offset_of_max_timestamp, even_if_full=True
            )
        trimmed = self.trim()
        self.offset_index.unload()
        self.time_index.unload()
        self.txn_index.unload()
        self._tail_lasts, self._tail_positions = [], []
        return trimmed

    def trim(self) -> bool:
        """Truncates preallocated tails; whether the records had one. Raises OSError."""
        self.offset_index.trim()
        self.time_index.trim()
        if self.log.open().size() <= self.size:
            return False
        self.log.open().truncate(self.size)
        return True

    # -- finding

    def locate(self, offset: int) -> BatchPlace | None:
        """The first batch whose last offset is `offset` or above.

        BrokerError CORRUPT_MESSAGE when the file is damaged.
        """
        lasts = self._tail_lasts
        # Before the first remembered batch there may be others, unless it begins the segment.
        if lasts and (offset > lasts[0] or not self._tail_positions[0]):
            row = bisect_left(lasts, offset)
            if row == len(lasts):
                return None
            position = self._tail_positions[row]
            end = self._tail_positions[row + 1] if row + 1 < len(lasts) else self.size
            return BatchPlace(position, end - position, offset, lasts[row], 2)
        try:
            return self._scan_from(self.offset_index.lookup(offset), offset)
        except CorruptRecordError:
            # The entry of the index pointed into a batch, or the file is damaged: the walk from the
            # start shows which.
            return self._scan_from(0, offset)

    def end_below(self, offset: int) -> int:
        """One above the last offset of the batches that lie wholly below `offset`: where a
        truncation to it ends. `offset` itself where nothing lies at or above it.
        """
        place = self.locate(offset)
        if place is None:
            return offset
        positions = self.offset_index.positions()
        row = bisect_left(positions, place.position) - 1
        last = self.base_offset - 1
        start = positions[row] if row >= 0 else 0
        for batch in scan(self.log.open(), start, place.position):
            last = batch.last_offset
        return min(offset, last + 1)

    def epoch_at(self, offset: int) -> int | None:
        """The leader epoch of the batch that holds `offset`, or of the first one above; None where
        there is none, or it has no epoch (magic 0 and 1).
        """
        place = self.locate(offset)
        if place is None:
            return None
        start = self.log.open().read_at(place.position, HEADER_BYTES)
        if len(start) > MAGIC_AT and start[MAGIC_AT] != MAGIC:
            return None
        return read_batch_header(start)[PARTITION_LEADER_EPOCH]

    def _scan_from(self, position: int, offset: int) -> BatchPlace | None:
        if position >= self.size:
            position = 0
        place = find_batch(self.log.open(), position, self.size, offset)
        if (
            place is not None
            and position
            and place.base_offset > offset
            and place.position == position
        ):
            return self._scan_from(0, offset)  # the index pointed too far
        return place

    def upper_bound_offset(self, position: int) -> int:
        """An offset above all batches before `position`; -1: only the segment's end is known to
        be one.
        """
        return self.offset_index.offset_from(position)

    def next_offset(self) -> int:
        """One above the last offset in the segment."""
        last, start = self.base_offset - 1, self.offset_index.last_position
        for place in scan(self.log.open(), start if start < self.size else 0, self.size):
            last = place.last_offset
        return last + 1

    def find_by_timestamp(
        self, timestamp: int, start_offset: int
    ) -> Generator[None, None, TimestampAndOffset | None]:
        """The first record at or above `start_offset` with a timestamp of at least `timestamp`.
        Pauses; raises SliceGone as `_headers_in_steps`.
        """
        from_offset = max(self.time_index.lookup(timestamp)[1], start_offset)
        for step in self._headers_in_steps(self.offset_index.lookup(from_offset)):
            if step is None:
                yield
                continue
            position, header = step
            if (
                header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] < start_offset
                or header[MAX_TIMESTAMP] < timestamp
            ):
                continue
            for record in self._records(position, header):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return TimestampAndOffset(
                        record.timestamp, record.offset, header[PARTITION_LEADER_EPOCH]
                    )
        return None

    def find_largest_timestamp(
        self, start_offset: int
    ) -> Generator[None, None, TimestampAndOffset | None]:
        """The first record with the largest timestamp of those at or above `start_offset`, by the
        headers of all their batches: the indexes know also what was deleted. Pauses; raises
        SliceGone as `_headers_in_steps`.
        """
        claims: list[tuple[int, int, BatchHeader]] = []
        for step in self._headers_in_steps(self.offset_index.lookup(start_offset)):
            if step is None:
                yield
                continue
            position, header = step
            if (
                header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] < start_offset
                or header[MAX_TIMESTAMP] < 0
                or header[RECORDS_COUNT] == 0  # compaction left it for its producer's sequence
            ):
                continue
            claim = header[MAX_TIMESTAMP], -position, header
            if len(claims) < _CLAIMS:
                heappush(claims, claim)
            else:
                heappushpop(claims, claim)
        # The batch that the log start divides, and one whose producer lied, may have less than
        # their headers say.
        best: tuple[int, int] | None = None
        found = None
        for timestamp, place, header in sorted(claims, reverse=True):
            if best is not None and (timestamp, place) < best:
                break
            records = [
                record for record in self._records(-place, header) if record.offset >= start_offset
            ]
            largest = max(records, key=_timestamp, default=None)
            if largest is not None and (best is None or (largest.timestamp, place) > best):
                best = largest.timestamp, place
                found = TimestampAndOffset(
                    largest.timestamp, largest.offset, header[PARTITION_LEADER_EPOCH]
                )
        return found

    def _headers_in_steps(self, start: int) -> Iterator[tuple[int, BatchHeader] | None]:
        """Position and header of each batch from the one at `start` to the end as it is now. None
        after each HEADERS_PER_STEP of them: others may be served.

        Raises SliceGone after a pause in which the segment was truncated, deleted or moved.
        """
        end, path, generation = self.size, self.log.path, self.log.generation
        while True:
            left = HEADERS_PER_STEP
            # Opened anew after each pause: the file may have been closed meanwhile.
            for position, header in scan_headers(self.log.open(), start, end):
                if not left:
                    start = position
                    break
                left -= 1
                yield position, header
            else:
                return
            yield None
            if self.log.path != path or self.log.generation != generation:
                raise SliceGone(path)

    def _records(self, position: int, header: BatchHeader) -> Iterator[Record]:
        data = self._read(position, header)
        if header[MAGIC_FIELD] == MAGIC:
            return BatchView(data).records()
        return MessageView(data).records(MAX_OUTPUT_BYTES)

    def headers(self) -> Iterator[BatchHeader]:
        """The headers of all batches; ends at damage."""
        try:
            for _, header in scan_headers(self.log.open(), 0, self.size):
                yield header
        except CorruptRecordError:
            return

    def position_of(self, offset: int) -> int:
        """The first byte of the batch that holds `offset` or follows it; the end without one.

        Raises CorruptRecordError.
        """
        place = self.locate(offset) if self.size else None
        return self.size if place is None else place.position

    def headers_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from the one that holds `offset` on.

        Raises CorruptRecordError at damage.
        """
        start = self.position_of(offset)
        return scan_headers(self.log.open(), start, self.size)

    def load(self, position: int, header: BatchHeader) -> BatchView:
        """The whole batch (magic 2) of this header. Raises OSError."""
        return BatchView(self._read(position, header))

    def _read(self, position: int, header: BatchHeader) -> bytes:
        return self.log.open().read_at(position, LOG_OVERHEAD + header[LENGTH])

    # -- truncating and removing

    def truncate_to(self, offset: int, wall_ms: int) -> int:
        """Drops the batch that holds `offset` and all behind it; returns the bytes dropped.

        Raises OSError.
        """
        place = self.locate(offset)
        # Indexes before the file: an entry must never point behind the end.
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        if place is None:
            return 0
        dropped = self.size - place.position
        self.truncate_at(place.position)
        if self.size == 0:
            self.created_ms, self._first_timestamp = wall_ms, _UNKNOWN_TIMESTAMP
        self._find_timestamps_after_truncation(offset)
        return dropped

    def truncate_at(self, position: int) -> None:
        """Makes `position` the end. Raises OSError."""
        self.size = position
        self.log.truncate(position)
        self._bytes_since_index = 0
        keep = bisect_left(self._tail_positions, position)
        del self._tail_positions[keep:], self._tail_lasts[keep:]

    def files(self) -> tuple[SegmentFile, ...]:
        return self.log, self.offset_index.file, self.time_index.file, self.txn_index.file

    def own_files(self) -> tuple[SegmentFile, ...]:
        """Those that cannot be rebuilt from others."""
        return self.log, self.txn_index.file

    def close(self) -> None:
        self.log.close()
        self.offset_index.close()
        self.time_index.close()
        self.txn_index.close()

    def move(self, directory: str) -> None:
        """The directory was renamed: the files are there now."""
        for file in self.files():
            file.path = posixpath.join(directory, posixpath.basename(file.path))

    def take_cleaned_files(self) -> None:
        """Gives its `.cleaned` files the suffix `.swap`: from now on they win over what they
        replace. Raises OSError, before anything changed where there is no record file.
        """
        for file in self.files():
            path, file.path = file.path, file.path + CLEANED
            if file is self.log:
                # The first, and it must be there: what it replaces is deleted next.
                file.pool.files.size(file.path)
            file.rename(path + SWAP)

    def drop_swap_suffix(self) -> None:
        """Gives its `.swap` files their own names. Raises OSError."""
        for file in self.files():
            file.rename(file.path.removesuffix(SWAP))

    def mark_deleted(self) -> list[str]:
        """Renames the files to `.deleted`; returns their paths, to be removed later.

        Raises OSError.
        """
        paths = []
        for file in self.files():
            if file.pool.files.exists(file.path):
                file.close()
                file.rename(file.path + DELETED)
                paths.append(file.path)
        return paths
