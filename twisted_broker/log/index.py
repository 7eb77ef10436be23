"""The two sparse indexes of a segment: offset -> position and timestamp -> offset.

Owns `OffsetIndex` (`.index`, entries of 8 bytes) and `TimeIndex` (`.timeindex`, 12 bytes), base
`Index`.

1. Entries grow strictly in every column but the time index's offsets, which never fall. Loading
   stops at the first entry that does not, so a preallocated or torn tail counts as no entries.
2. In memory an index is two compact arrays, loaded on first use and droppable; the file holds
   exactly the entries, but for those between `hold` and `write_held`. A large one that is only
   looked up is not loaded: a few entries are read where they lie.
3. An index is a hint: wrong or missing entries cost a longer scan or a rebuild, never a wrong
   record.

Source: Kafka's `OffsetIndex`, `TimeIndex`, `AbstractIndex`; RL 3.1. Not here: preallocation (Kafka
maps its files into memory; we write ours), when an entry is due (`segment.py`).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter
from typing import Any

from twisted_broker.log.segment_file import SegmentFile
from twisted_broker.log.stored_entries import StoredEntries

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_INT_MAX = 2**31 - 1
_KEY, _VALUE = itemgetter(0), itemgetter(1)
LOADED_BYTES = 1 << 15
"""Of a larger file a look-up reads about 20 entries. To load the index of a full segment would take
up to 0.1 s, and as much memory as the file has bytes, for each segment ever read or searched by
time.
"""


class Index:
    """Rows of (`keys`, `values`) beside a file.

    Offsets are relative to `base_offset` in both kinds, absolute in every answer.
    """

    __slots__ = (
        "_entry",
        "_key_type",
        "_keys",
        "_values",
        "base_offset",
        "file",
        "held_from",
        "max_entries",
    )

    def __init__(
        self,
        file: SegmentFile,
        base_offset: int,
        max_bytes: int,
        entry: struct.Struct,
        key_type: str,
    ) -> None:
        self.file, self.base_offset = file, base_offset
        self._entry, self._key_type = entry, key_type
        self.max_entries = max_bytes // entry.size
        self._keys: array[int] | None = None
        self._values: array[int] = array("i")
        self.held_from = -1

    def create(self) -> None:
        """Empties it, in memory and on disk, without reading the file: it is new or worthless."""
        self._keys, self._values = array(self._key_type), array("i")
        file = self.file.create()
        if file.size():
            file.truncate(0)

    def _load(self) -> array[int]:
        """Reads the file's good entries; a missing file has none."""
        keys, values = array(self._key_type), array("i")
        data = self._read()
        usable = len(data) - len(data) % self._entry.size
        for key, value in self._entry.iter_unpack(memoryview(data)[:usable]):
            if not self._follows(keys, values, key, value):
                break
            keys.append(key)
            values.append(value)
        self._keys, self._values = keys, values
        return keys

    def _read(self) -> bytes:
        if not self.file.exists():
            return b""
        file = self.file.open()
        return file.read_at(0, file.size())

    def _follows(self, keys: array[int], values: array[int], key: int, value: int) -> bool:
        raise NotImplementedError

    def _rows(self) -> array[int]:
        keys = self._keys
        return keys if keys is not None else self._load()

    def load(self) -> None:
        """Loads the entries of an index that is to be written."""
        self._rows()

    def _stored(self) -> StoredEntries | None:
        """The entries in a large file that is not loaded; None: use those in memory (`_rows`)."""
        if self._keys is not None or not self.file.exists():
            return None
        file = self.file.open()
        count = file.size() // self._entry.size
        if count * self._entry.size <= LOADED_BYTES:
            return None
        stored = StoredEntries(file, self._entry, count)
        keys, values = array(self._key_type), array("i")
        # A preallocated or torn tail: loading finds where the entries end.
        for key, value in (stored[0], stored[count - 1]):
            if not self._follows(keys, values, key, value):
                return None
            keys.append(key)
            values.append(value)
        return stored

    @property
    def entries(self) -> int:
        stored = self._stored()
        return len(self._rows() if stored is None else stored)

    @property
    def is_full(self) -> bool:
        return self.entries >= self.max_entries

    def pairs(self) -> list[tuple[int, int]]:
        """All entries as stored, offsets relative."""
        return list(zip(self._rows(), self._values, strict=True))

    def hold(self) -> None:
        """Until `write_held`, entries that are added are in memory only."""
        self.held_from = len(self._rows())

    def write_held(self) -> None:
        """Writes the held entries in one write. Raises OSError: then `drop_from` must follow."""
        start, self.held_from = self.held_from, -1
        if start < 0:
            return
        keys = self._rows()
        if start < len(keys):
            pack = self._entry.pack
            entries = map(pack, keys[start:], self._values[start:])
            self.file.create().write_at(start * self._entry.size, (b"".join(entries),))

    def drop_from(self, start: int) -> None:
        """Forgets the entries from row `start` on, as `held_from` was (-1: none were held): those
        that come later are written over what is in the file.
        """
        self.held_from = -1
        if start >= 0 and self._keys is not None:
            del self._keys[start:]
            del self._values[start:]
            with suppress(OSError):
                self.trim()

    def _write(self, key: int, value: int) -> None:
        keys = self._rows()
        if self.held_from < 0:
            entry = self._entry.pack(key, value)
            self.file.create().write_at(len(keys) * self._entry.size, (entry,))
        keys.append(key)
        self._values.append(value)

    def truncate_to_entries(self, count: int) -> None:
        """Keeps the first `count` entries, in memory and on disk."""
        keys = self._rows()
        del keys[count:]
        del self._values[count:]
        self.trim()

    def trim(self) -> None:
        """Truncates the file to its entries (a missing one is made)."""
        size = len(self._rows()) * self._entry.size
        file = self.file.create()
        if file.size() != size:
            file.truncate(size)

    def is_sound(self) -> bool:
        """Whether the file is there and holds whole, growing entries and nothing else."""
        if not self.file.exists():
            return False
        return len(self._rows()) * self._entry.size == self.file.open().size()

    def unload(self) -> None:
        """Drops the rows from memory; the next use loads them."""
        self._keys = None
        self._values = array("i")

    def close(self) -> None:
        self.unload()
        self.file.close()


class OffsetIndex(Index):
    """Last offset of a batch -> position of its first byte."""

    __slots__ = ()

    def __init__(self, file: SegmentFile, base_offset: int, max_bytes: int) -> None:
        super().__init__(file, base_offset, max_bytes, _OFFSET_ENTRY, "i")

    def _follows(self, keys: array[int], values: array[int], key: int, value: int) -> bool:
        if not keys:
            return key >= 0 and value > 0
        return key > keys[-1] and value > values[-1]

    @property
    def last_offset(self) -> int:
        """The last indexed offset, the base offset without entries."""
        keys = self._rows()
        return self.base_offset + keys[-1] if keys else self.base_offset

    @property
    def last_position(self) -> int:
        stored = self._stored()
        if stored is not None:
            return _position(stored[len(stored) - 1])
        return self._values[-1] if self._rows() else 0

    def positions(self) -> array[int]:
        self._rows()
        return self._values

    def positions_backwards(self) -> Iterator[int]:
        """From the last entry on; nothing may be written meanwhile."""
        stored = self._stored()
        if stored is None:
            yield from reversed(self.positions())
            return
        for row in range(len(stored) - 1, -1, -1):
            yield _position(stored[row])

    def offset_from(self, position: int) -> int:
        """The offset of the first entry at `position` or above, -1 without one."""
        stored = self._stored()
        if stored is not None:
            row = bisect_left(stored, position, key=_VALUE)
            return self.base_offset + stored[row][0] if row < len(stored) else -1
        keys = self._rows()
        row = bisect_left(self._values, position)
        return self.base_offset + keys[row] if row < len(keys) else -1

    def append(self, offset: int, position: int) -> None:
        relative, keys = offset - self.base_offset, self._rows()
        assert 0 <= relative <= _INT_MAX and (not keys or relative > keys[-1]), (
            offset,
            self.base_offset,
        )
        self._write(relative, position)

    def lookup(self, offset: int) -> int:
        """Position from which a scan finds `offset`: that of the last entry at or below it, else
        0.
        """
        relative, stored = offset - self.base_offset, self._stored()
        if stored is not None:
            row = bisect_right(stored, relative, key=_KEY) - 1
            return _position(stored[row]) if row >= 0 else 0
        row = bisect_right(self._rows(), relative) - 1
        return self._values[row] if row >= 0 else 0

    def truncate_to(self, offset: int) -> None:
        """Drops entries for `offset` and above."""
        self.truncate_to_entries(bisect_left(self._rows(), offset - self.base_offset))


def _position(entry: tuple[Any, ...]) -> int:
    """Of an entry that nothing has checked: below 0, by a flipped bit, there is nothing to read."""
    return max(0, int(entry[1]))


class TimeIndex(Index):
    """Largest timestamp so far, ms -> last offset of its batch."""

    __slots__ = ()

    def __init__(self, file: SegmentFile, base_offset: int, max_bytes: int) -> None:
        super().__init__(file, base_offset, max_bytes, _TIME_ENTRY, "q")

    def _follows(self, keys: array[int], values: array[int], key: int, value: int) -> bool:
        if not keys:
            return key >= 0 and value >= 0 and (key > 0 or value > 0)
        return key > keys[-1] and value >= values[-1]

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset), (-1, base offset) without entries."""
        stored = self._stored()
        if stored is not None:
            return self._absolute(*stored[len(stored) - 1])
        keys = self._rows()
        return self._absolute(keys[-1], self._values[-1]) if keys else (-1, self.base_offset)

    def _absolute(self, timestamp: int, relative: int) -> tuple[int, int]:
        return timestamp, self.base_offset + relative

    def append(self, timestamp: int, offset: int, even_if_full: bool = False) -> None:
        """Adds an entry if the timestamp grew; the last slot is kept for `even_if_full` (roll
        and close).
        """
        keys, relative = self._rows(), offset - self.base_offset
        if len(keys) >= self.max_entries - (0 if even_if_full else 1):
            return
        if self._follows(keys, self._values, timestamp, relative):
            self._write(timestamp, relative)

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """(timestamp, offset) of the last entry at or below `timestamp`, (-1, base offset)
        without one.
        """
        stored = self._stored()
        if stored is not None:
            row = bisect_right(stored, timestamp, key=_KEY) - 1
            return self._absolute(*stored[row]) if row >= 0 else (-1, self.base_offset)
        keys = self._rows()
        row = bisect_right(keys, timestamp) - 1
        if row < 0:
            return -1, self.base_offset
        return self._absolute(keys[row], self._values[row])

    @property
    def is_full(self) -> bool:
        return self.entries >= self.max_entries - 1

    def truncate_to(self, offset: int) -> None:
        """Drops entries for `offset` and above."""
        self._rows()
        self.truncate_to_entries(bisect_left(self._values, offset - self.base_offset))
