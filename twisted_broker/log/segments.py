"""The segments of one log, in order, and where the log ends.

Owns `LogSegments`: the log end, finding an offset, when to roll, removing from either end, and the
cleaned segment that replaces others.

1. There is always at least one segment; the last one is written ("active").
2. Base offsets grow strictly; every batch of a segment lies at or above its base and below the next
   one's.
3. Segments above a truncation go from the top down, those below the log start from the bottom up:
   a crash in between leaves no hole.
4. The log end is moved by whoever writes or truncates, when that is done.

Source: Kafka's `LogSegments`, `LocalLog`, `LogSegment.shouldRoll`; RL 3.1. Not here: watermarks
(`watermarks.py`), producers (`producer_state.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from twisted_broker.interfaces import IRandom
from twisted_broker.log.crash_cleanup import base_offset_of
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log.segment import LOG, LogSegment, OpenFiles
from twisted_broker.log_config import LogConfig

_INT_MAX = 2**31 - 1
RemoveLater = Callable[[list[str], Callable[[], float]], None]


class LogSegments:
    """Files of removed segments go at once; when the log is online (`attach`), after
    `file.delete.delay.ms`.
    """

    __slots__ = (
        "_all",
        "_bases",
        "_end",
        "_random",
        "_remove_later",
        "active",
        "config",
        "directory",
        "log_end_offset",
        "pool",
    )

    def __init__(
        self,
        pool: OpenFiles,
        directory: str,
        config: LogConfig,
        random: IRandom | None = None,
    ) -> None:
        self.pool, self.directory, self.config, self._random = pool, directory, config, random
        self._remove_later: RemoveLater | None = None
        self._bases: list[int] = []
        self._all: list[LogSegment] = []
        self.active: LogSegment
        self.log_end_offset = 0
        self._end = LogOffsetMetadata(0)

    def attach(self, remove_later: RemoveLater | None) -> None:
        """`remove_later(paths, delay)` takes renamed files from now on; None: they are removed at
        once. `delay()` says for how many seconds they stay, as it is set by then.
        """
        self._remove_later = remove_later

    @property
    def log_end(self) -> LogOffsetMetadata:
        """The log end with its place; followers of an idle log need it again and again, so it
        is made once for each end.
        """
        active, known = self.active, self._end
        if (
            known.offset != self.log_end_offset
            or known.position != active.size
            or known.segment_base_offset != active.base_offset
        ):
            known = self._end = LogOffsetMetadata(
                self.log_end_offset, active.base_offset, active.size
            )
        return known

    def place_of(self, offset: int) -> LogOffsetMetadata:
        """`offset` with its place: the first byte of its batch, or of the next one.

        OSError; BrokerError CORRUPT_MESSAGE where the file is damaged.
        """
        if offset == self.log_end_offset:
            return self.log_end
        row = self.row_of(offset)
        while (segment := self.at(row)) is not None:
            place = segment.locate(offset)
            if place is not None:
                return LogOffsetMetadata(offset, segment.base_offset, place.position)
            row += 1
        # Nothing is left from there on: compaction took it.
        return self.log_end

    def make(self, base_offset: int, wall_ms: int) -> LogSegment:
        """A segment object over files that may exist; not yet one of the log's."""
        config = self.config
        jitter = min(config.segment_jitter_ms, config.max_segment_ms)
        jitter_ms = self._random.randrange(jitter) if self._random is not None and jitter > 0 else 0
        return LogSegment(
            self.pool,
            self.directory,
            base_offset,
            config.segment_index_bytes,
            config.index_interval_bytes,
            wall_ms,
            jitter_ms,
        )

    def add(self, segment: LogSegment) -> None:
        """Takes a segment above all others; it is the active one now."""
        assert not self._bases or segment.base_offset > self._bases[-1], (
            segment.base_offset,
            self._bases[-1],
        )
        self._bases.append(segment.base_offset)
        self._all.append(segment)
        self.active = segment

    def create(self, base_offset: int, wall_ms: int) -> LogSegment:
        """Makes a new, empty, active segment. Raises OSError."""
        segment = self.make(base_offset, wall_ms)
        try:
            segment.create(self.config.segment_bytes if self.config.preallocate else 0)
        except OSError:
            # Where descriptors are short the log stays online and may go on in the segment before:
            # a recovery would find this one among its records, and end the log there.
            with suppress(OSError):
                for file in segment.files():
                    file.remove()
            raise
        self.add(segment)
        return segment

    def __len__(self) -> int:
        return len(self._all)

    def __bool__(self) -> bool:
        return bool(self._all)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._all)

    def __reversed__(self) -> Iterator[LogSegment]:
        return reversed(self._all)

    @property
    def first(self) -> LogSegment:
        return self._all[0]

    @property
    def size_in_bytes(self) -> int:
        return sum(segment.size for segment in self._all)

    def row_of(self, offset: int) -> int:
        """Row of the segment that may hold `offset`, -1 below all of them."""
        if offset >= self._bases[-1]:
            return len(self._bases) - 1
        return bisect_right(self._bases, offset) - 1

    def at(self, row: int) -> LogSegment | None:
        return self._all[row] if 0 <= row < len(self._all) else None

    def between(self, start: int, end: int) -> list[LogSegment]:
        """Segments that may hold offsets in [start, end)."""
        return [
            segment
            for segment in self._all[max(0, self.row_of(start)) :]
            if segment.base_offset < end
        ]

    def bases(self) -> list[int]:
        return list(self._bases)

    def should_roll(
        self, size_in_bytes: int, last_offset: int, max_timestamp: int, wall_ms: int
    ) -> bool:
        """Whether records of this size must go to a new segment."""
        active, config = self.active, self.config
        size = active.size
        if (
            size > config.segment_bytes - size_in_bytes
            or last_offset - active.base_offset > _INT_MAX
        ):
            return True
        # An empty segment rolls for its size only: it has no age.
        if size == 0:
            return False
        if active.full:
            return True
        first = active.first_timestamp()
        age_ms = (
            max_timestamp - first
            if first >= 0 and max_timestamp >= 0
            else wall_ms - active.created_ms
        )
        return age_ms > config.max_segment_ms - active.jitter_ms

    def remove_above(self, offset: int) -> None:
        """Deletes the segments whose base offset is above `offset`; their slices raise SliceGone.

        Raises OSError.
        """
        # From the top: after a crash in between, what is left is the beginning of the log without a
        # hole.
        while self._bases and self._bases[-1] > offset:
            segment = self._all[-1]
            # Slices that wait to be sent must not send bytes that the log no longer has.
            segment.log.generation += 1
            self._delete(segment)
            self._drop(len(self._all) - 1)

    def set_aside_above(self, offset: int, suffix: str) -> int:
        """As `remove_above`, but keeps the record files under another name; returns their number.

        Raises OSError.
        """
        count, files = 0, self.pool.files
        # From the top down: a crash in between leaves no hole.
        for segment in reversed(self._all):
            if segment.base_offset > offset and files.exists(segment.log.path):
                segment.log.generation += 1
                segment.log.close()
                files.rename(segment.log.path, segment.log.path + suffix)
                count += 1
        self.remove_above(offset)
        return count

    def set_aside_not_loaded(self, base_offset: int, wall_ms: int, suffix: str) -> int:
        """Renames the record files of segments from `base_offset` on that were not loaded, to keep
        them for good; returns their number. Raises OSError.
        """
        files = self.pool.files
        bases = [
            base_offset_of(name) for name in files.listdir(self.directory) if name.endswith(LOG)
        ]
        # From the top down: a crash in between leaves no hole.
        found = sorted(
            (base for base in bases if base >= base_offset and base not in self._bases),
            reverse=True,
        )
        for base in found:
            segment = self.make(base, wall_ms)
            files.rename(segment.log.path, segment.log.path + suffix)
            for path in segment.mark_deleted():
                files.remove(path)
        files.sync_directory(self.directory)
        return len(found)

    def remove_all(self) -> None:
        """Deletes every segment; `create` must follow. Raises OSError."""
        self.remove_above(-1)

    def remove_first(self) -> LogSegment:
        """Deletes the oldest segment; its slices stay readable. Raises OSError."""
        segment = self._all[0]
        self._drop(0)
        self._delete(segment)
        return segment

    def replace(self, bases: Sequence[int], wall_ms: int) -> LogSegment:
        """Puts the cleaned segment (`.cleaned` files, synced) of the first base in place of the
        segments of all these bases, neighbours below the active one; slices of them stay readable.

        Raises OSError. A crash at any step leaves the old segments or the new one
        (`crash_cleanup.py`).
        """
        row = self._bases.index(bases[0])
        old = self._all[row : row + len(bases)]
        cleaned = self.make(bases[0], wall_ms)
        cleaned.take_cleaned_files()
        # From the top down: where a crash ends this midway, no hole is left below.
        for segment in reversed(old):
            self._delete(segment)
        cleaned.drop_swap_suffix()
        cleaned.open()
        self._bases[row : row + len(bases)] = [bases[0]]
        self._all[row : row + len(bases)] = [cleaned]
        return cleaned

    def _drop(self, row: int) -> None:
        del self._bases[row], self._all[row]
        if self._all:
            self.active = self._all[-1]

    def _delete(self, segment: LogSegment) -> None:
        paths = segment.mark_deleted()
        segment.close()
        if self._remove_later is not None:
            self._remove_later(paths, self._delete_delay)
        else:
            for path in paths:
                self.pool.files.remove(path)

    def _delete_delay(self) -> float:
        return self.config.file_delete_delay_ms / 1000

    def move(self, directory: str) -> None:
        self.directory = directory
        for segment in self._all:
            segment.move(directory)

    def close(self) -> None:
        for segment in self._all:
            segment.close()
