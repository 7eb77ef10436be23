"""The index of aborted transactions of a segment.

Owns `AbortedTxn` and `TransactionIndex` (`.txnindex`, 34 bytes an entry).

1. An entry is in the segment of its abort marker; last offsets grow within a file, and the last
   stable offsets never fall.
2. The file is made with its first entry; no file means no entries.
3. Entries are loaded on first use, which is at the start, and kept in memory: the file is read
   again at the next start only. But if a segment that is written no more has above `MOST_KEPT`,
   they are not kept: each look-up reads some from the file. A torn tail counts as no entries, and
   `is_sound` is False then. Entries have no checksum: a flipped bit that leaves them possible (a
   producer id, the low bits of a first offset) goes unnoticed below the recovery point, as in
   Kafka, which checks less; `replog verify` finds it.

Source: Kafka's `TransactionIndex`, `AbortedTxn`; RL 3.3. Not here: who computes the last stable
offset (`producer_state.py`).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter, itemgetter
from typing import NamedTuple

from twisted_broker.log.segment_file import SegmentFile
from twisted_broker.log.stored_entries import StoredEntries

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_LAST_OFFSET, _STORED_LAST_OFFSET = attrgetter("last_offset"), itemgetter(3)
MOST_KEPT = 1000
"""In memory an entry takes five times its 34 bytes: a million take 0.2 GB."""
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
        """Frees the entries of a segment that is written no more, if there are many."""
        if self._entries is not None and len(self._entries) > MOST_KEPT:
            self._entries = None

    def _stored(self) -> StoredEntries | None:
        """The entries in the file, if there are many and they are not in memory; else None."""
        if self._entries is not None or not self.file.exists():
            return None
        file = self.file.open()
        count = file.size() // _ENTRY.size
        return StoredEntries(file, _ENTRY, count, _READ_ROWS) if count > MOST_KEPT else None

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
        for entry in self._ending_from(fetch_offset):
            if entry.first_offset < upper_bound:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound:
                return True
        return False

    def _ending_from(self, offset: int) -> Iterator[AbortedTxn]:
        """Those whose marker is at `offset` or above. Last offsets grow: the others are passed over
        unseen, however many there are.
        """
        stored = self._stored()
        if stored is None:
            entries = self.entries()
            for row in range(bisect_left(entries, offset, key=_LAST_OFFSET), len(entries)):
                yield entries[row]
        else:
            for row in range(bisect_left(stored, offset, key=_STORED_LAST_OFFSET), len(stored)):
                yield AbortedTxn(*stored[row][1:])

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
