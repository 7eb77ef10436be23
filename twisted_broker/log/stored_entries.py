"""Entries of an index file that are read where they lie.

Owns `StoredEntries`, rows of one size in a file, for looks into an index that is not loaded.

1. Rows are read `at_once` at a time, and those read last are kept: one suits a binary search, more
   suit a walk from there.
2. The caller knows how many rows there are, and that nobody writes meanwhile.

Not here: which indexes are loaded (`index.py`, `txn_index.py`).
"""

from __future__ import annotations

import struct
from typing import Any

from twisted_broker.interfaces import IFile


class StoredEntries:
    """Each entry is the fields of `entry`, as they are stored. Raises OSError."""

    __slots__ = ("_at_once", "_count", "_data", "_end", "_entry", "_file", "_first")

    def __init__(self, file: IFile, entry: struct.Struct, count: int, at_once: int = 1) -> None:
        self._file, self._entry, self._count, self._at_once = file, entry, count, at_once
        self._data, self._first, self._end = b"", 0, 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        size = self._entry.size
        if not self._first <= row < self._end:
            first = row - row % self._at_once
            end = min(first + self._at_once, self._count)
            self._data = self._file.read_at(first * size, (end - first) * size)
            self._first, self._end = first, end
        return self._entry.unpack_from(self._data, (row - self._first) * size)
