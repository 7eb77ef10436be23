"""The index of aborted transactions of a segment.

Owns `AbortedTxn` and `TransactionIndex` (`.txnindex`, 34 bytes an entry).

1. An entry is in the segment of its abort marker; last offsets grow within a file, and the last
   stable offsets never fall.
2. The file is made with its first entry; no file means no entries.
3. Entries are loaded on first use, which is the start, and kept: what becomes of the file
   meanwhile is read by the next start. But of a segment that is written no more `MOST_KEPT` at
   most: of more, each look reads some where they lie. A torn tail counts as none, and `is_sound`
   says so. Entries have no checksum: a flipped bit that leaves them possible (a producer id, the
   low bits of a first offset) goes unnoticed below the recovery point, as in Kafka, which checks
   less; `replog verify` finds it.

Source: Kafka's `TransactionIndex`, `AbortedTxn`; RL 3.3. Not here: who computes the last stable
offset (`producer_state.py`).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, overload

from twisted_broker.interfaces import IFile
from twisted_broker.log.segment_file import SegmentFile

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_LAST_OFFSET = attrgetter("last_offset")
MOST_KEPT = 1000
"""In memory each takes five times what it has in the file: a million, 0.2 GB."""
_READ_ROWS = 128


class AbortedTxn(NamedTuple):
    """Offsets of the first record and of the marker, and the last stable offset when the marker
    was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


_NONE = AbortedTxn(-1, -1, -1, -1)


def _follows(entry: AbortedTxn, before: AbortedTxn) -> bool:
    """Whether it can be an entry behind `before`."""
    return (
        entry.producer_id >= 0
        and 0 <= entry.first_offset <= entry.last_offset
        and before.last_offset < entry.last_offset
        and before.last_stable_offset <= entry.last_stable_offset <= entry.last_offset + 1
    )


class _Stored(Sequence[AbortedTxn]):
    """The entries of a file, some of them read at a time."""

    __slots__ = ("_count", "_file", "_first", "_rows")

    def __init__(self, file: IFile, count: int) -> None:
        self._file, self._count = file, count
        self._rows: list[AbortedTxn] = []
        self._first = 0

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> AbortedTxn: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[AbortedTxn]: ...
    def __getitem__(self, row: int | slice) -> AbortedTxn | Sequence[AbortedTxn]:
        assert isinstance(row, int)
        if not self._first <= row < self._first + len(self._rows):
            self._first = row - row % _READ_ROWS
            count = min(_READ_ROWS, self._count - self._first)
            data = self._file.read_at(self._first * _ENTRY.size, count * _ENTRY.size)
            self._rows = [AbortedTxn(*fields) for _, *fields in _ENTRY.iter_unpack(data)]
        return self._rows[row - self._first]


class TransactionIndex:
    """Aborted transactions in order of their markers."""

    __slots__ = ("_entries", "base_offset", "file")

    def __init__(self, file: SegmentFile, base_offset: int) -> None:
        self.file, self.base_offset = file, base_offset
        self._entries: list[AbortedTxn] | None = None

    def entries(self) -> list[AbortedTxn]:
        found = self._entries
        if found is None:
            found = self._entries = self._load()
        return found

    def unload(self) -> None:
        """Of a segment that is written no more: many entries leave memory."""
        if self._entries is not None and len(self._entries) > MOST_KEPT:
            self._entries = None

    def _stored(self) -> _Stored | None:
        """Many that are not in memory; None: they are, or shall be."""
        if self._entries is not None or not self.file.exists():
            return None
        file = self.file.open()
        count = file.size() // _ENTRY.size
        return _Stored(file, count) if count > MOST_KEPT else None

    def _load(self) -> list[AbortedTxn]:
        if not self.file.exists():
            return []
        file = self.file.open()
        data = file.read_at(0, file.size())
        loaded: list[AbortedTxn] = []
        for version, *fields in _ENTRY.iter_unpack(
            memoryview(data)[: len(data) - len(data) % _ENTRY.size]
        ):
            entry = AbortedTxn(*fields)
            if version != _VERSION or not _follows(entry, loaded[-1] if loaded else _NONE):
                break
            loaded.append(entry)
        return loaded

    def append(self, entry: AbortedTxn) -> None:
        entries = self.entries()
        assert not entries or entry.last_offset > entries[-1].last_offset, entry
        self.file.create().write_at(len(entries) * _ENTRY.size, (_ENTRY.pack(_VERSION, *entry),))
        entries.append(entry)

    def collect(self, fetch_offset: int, upper_bound: int, found: list[AbortedTxn]) -> bool:
        """Adds transactions that touch [fetch_offset, upper_bound); True when no later segment
        can hold another.
        """
        entries = self._stored() or self.entries()
        # Last offsets grow: those that end below are passed over unseen, however many there are.
        start = bisect_left(entries, fetch_offset, key=_LAST_OFFSET)
        for row in range(start, len(entries)):
            entry = entries[row]
            if entry.first_offset < upper_bound:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound:
                return True
        return False

    def truncate_to(self, offset: int) -> None:
        """Drops transactions whose marker is at `offset` or above."""
        kept = [entry for entry in self.entries() if entry.last_offset < offset]
        if self.file.exists():
            self.file.open().truncate(len(kept) * _ENTRY.size)
        self._entries = kept

    def reset(self) -> None:
        """Drops all entries, without reading them."""
        if self.file.exists():
            self.file.open().truncate(0)
        self._entries = []

    def is_sound(self, upper_bound: int | None = None) -> bool:
        """Whether the file, if any, holds whole, growing entries of this segment, which ends below
        `upper_bound`, and nothing else.
        """
        if not self.file.exists():
            return True
        entries = self.entries()
        return len(entries) * _ENTRY.size == self.file.open().size() and (
            not entries
            or (
                entries[0].last_offset >= self.base_offset
                and (upper_bound is None or entries[-1].last_offset < upper_bound)
            )
        )

    def close(self) -> None:
        self._entries = None
        self.file.close()
