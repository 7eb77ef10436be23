"""The newest offset of each key in the part of a log that is cleaned next.

Owns `OffsetMap`.

1. Its memory is fixed when it is made: 24 bytes a slot, 16 for the key's hash and 8 for the offset.
   No key is kept.
2. It never fills up: the caller stops at its load factor. Two keys of the same hash would count as
   one, as in Kafka; with 128 bits nobody has seen that.

Source: Kafka's `SkimpyOffsetMap`. Not here: which records are put (`cleaning.py`).
"""

from __future__ import annotations

import struct
from hashlib import md5

SLOT_BYTES = 24
_HASH_BYTES = 16
_EMPTY = bytes(_HASH_BYTES)
_OFFSET = struct.Struct("<q")


class OffsetMap:
    """`latest_offset`: up to there the log was looked at, -1 at first."""

    __slots__ = ("_table", "latest_offset", "size", "slots")

    def __init__(self, slots: int) -> None:
        assert slots > 0
        self.slots, self.size, self.latest_offset = slots, 0, -1
        self._table = bytearray(slots * SLOT_BYTES)

    def put(self, key: bytes, offset: int) -> None:
        """Notes the newest offset of a key; offsets come in order."""
        at, digest = self._find(key)
        table = self._table
        if table[at : at + _HASH_BYTES] != digest:
            assert self.size < self.slots - 1, "the caller stops at the load factor"
            table[at : at + _HASH_BYTES] = digest
            self.size += 1
        _OFFSET.pack_into(table, at + _HASH_BYTES, offset)

    def get(self, key: bytes) -> int:
        """The newest offset of the key, -1 when it was not put."""
        at, digest = self._find(key)
        if self._table[at : at + _HASH_BYTES] != digest:
            return -1
        found: int = _OFFSET.unpack_from(self._table, at + _HASH_BYTES)[0]
        return found

    def _find(self, key: bytes) -> tuple[int, bytes]:
        """The first byte of the key's slot, or of the free one where it belongs, and its hash."""
        digest = md5(key, usedforsecurity=False).digest()
        if digest == _EMPTY:
            # What marks a free slot cannot be a hash.
            digest = b"\1" + digest[1:]
        table, slots = self._table, self.slots
        slot = int.from_bytes(digest[:8], "little") % slots
        while True:
            at = slot * SLOT_BYTES
            found = table[at : at + _HASH_BYTES]
            if found in (digest, _EMPTY):
                return at, digest
            slot = slot + 1 if slot + 1 < slots else 0
