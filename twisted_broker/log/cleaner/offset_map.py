"""The newest offset of each key in the part of a log that is cleaned next.

Owns `OffsetMap`.

1. Its memory is fixed when it is made: 24 bytes a slot, 16 for the key's hashes and 8 for the
   offset. No key is kept.
2. It never fills up: the caller stops at its load factor. Two keys of the same hashes would count
   as one, as in Kafka; with 128 bits nobody has seen that. 64 of them are Python's own hash, whose
   secret differs from process to process: nobody can choose keys that collide.
3. `marks`, where it can be had in as much memory again, says the same by offset: what is the newest
   of its key is known without the key.

Source: Kafka's `SkimpyOffsetMap`, which takes MD5. Not here: which records are put (`cleaning.py`).
"""

from __future__ import annotations

from typing import Final

from xxhash import xxh3_64_intdigest

SLOT_BYTES: Final = 24
_WORDS: Final = 3
NEWEST: Final = 1
TOMBSTONE: Final = 2


class OffsetMap:
    """`latest_offset`: up to there the log was looked at, -1 at first. `marks` has a byte for each
    offset from `first` to the one before `end`: NEWEST, once `mark_newest` was called, and
    TOMBSTONE; None where that would be too much memory.
    """

    __slots__ = ("_hashes", "_table", "_words", "first", "latest_offset", "marks", "size", "slots")

    def __init__(self, slots: int, first: int = 0, end: int = 0) -> None:
        assert slots > 0
        self.slots, self.size, self.latest_offset = slots, 0, -1
        self._table = bytearray(slots * SLOT_BYTES)
        # One word of a slot is unsigned.
        self._words, self._hashes = (
            memoryview(self._table).cast("q"),
            memoryview(self._table).cast("Q"),
        )
        self.first = first
        length = max(0, end - first)
        self.marks = bytearray(length) if 0 < length <= slots * SLOT_BYTES else None

    def put(self, key: bytes, offset: int) -> None:
        """Notes the newest offset of a key; offsets come in order."""
        words, hashes = self._words, self._hashes
        own, other = hash(key), xxh3_64_intdigest(key)
        at = own % self.slots * _WORDS
        # A free slot has 0 for the offset: they are one higher there.
        while words[at + 2]:
            if words[at] == own and hashes[at + 1] == other:
                words[at + 2] = offset + 1
                return
            at += _WORDS
            if at == len(words):
                at = 0
        assert self.size < self.slots - 1, "the caller stops at the load factor"
        self.size += 1
        words[at], hashes[at + 1], words[at + 2] = own, other, offset + 1

    def get(self, key: bytes) -> int:
        """The newest offset of the key, -1 when it was not put."""
        words, hashes = self._words, self._hashes
        own, other = hash(key), xxh3_64_intdigest(key)
        at = own % self.slots * _WORDS
        while words[at + 2]:
            if words[at] == own and hashes[at + 1] == other:
                return words[at + 2] - 1
            at += _WORDS
            if at == len(words):
                at = 0
        return -1

    def mark_newest(self) -> None:
        """All is put."""
        marks, first = self.marks, self.first + 1
        if marks is not None:
            for found in self._words[2::_WORDS]:
                if found:
                    marks[found - first] |= NEWEST
