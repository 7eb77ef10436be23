"""An entry of magic 0 or 1, which an old broker wrote, by its first bytes alone.

Owns `OldEntry` and `old_header`.

1. Its names are those of a batch: it has no leader epoch, no producer, no transaction. One offset
   is known, that of the last record in it; magic 0 has no time.
2. What it holds is neither looked at nor changed.

Source: Kafka's `AbstractLegacyRecordBatch`. Not here: its records (`wire.message_set`).
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from twisted_broker.interfaces import Buffer
from twisted_broker.wire.message_set import OVERHEAD_V0, OVERHEAD_V1
from twisted_broker.wire.records import (
    CREATE_TIME,
    LOG_OVERHEAD,
    MAGIC_AT,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptRecordError,
)

_HEAD: Final = struct.Struct(">qiIbb")  # offset, length, CRC, magic, attributes
_TIMESTAMP: Final = struct.Struct(">q")
_TIMESTAMP_AT: Final = 18


def old_header(buffer: Buffer, at: int) -> BatchHeader:
    """The header that a batch of its record would have, of an entry whose first 26 bytes are at
    `at`.
    """
    offset, length, crc, magic, _ = _HEAD.unpack_from(buffer, at)
    timestamp = NO_TIMESTAMP
    if magic == 1 and length >= OVERHEAD_V1:
        timestamp = _TIMESTAMP.unpack_from(buffer, at + _TIMESTAMP_AT)[0]
    return (
        offset,
        length,
        NO_LEADER_EPOCH,
        magic,
        crc,
        CREATE_TIME,
        0,
        timestamp,
        timestamp,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        1,
    )


class OldEntry:
    """One that is all there and whose CRC is right; `offset` is its first byte in the buffer."""

    __slots__ = ("last_offset", "max_timestamp", "offset", "size_in_bytes")
    attributes = last_offset_delta = 0
    is_control = False
    partition_leader_epoch = NO_LEADER_EPOCH
    producer_id = NO_PRODUCER_ID
    records_count = 1

    def __init__(self, buffer: Buffer, at: int) -> None:
        """Raises CorruptRecordError."""
        self.offset = at
        if len(buffer) - at < LOG_OVERHEAD + OVERHEAD_V0:
            raise CorruptRecordError("fewer bytes than any message has", at)
        header = old_header(buffer, at)
        self.last_offset, length, _, magic, crc, *_ = header
        self.max_timestamp = header[8]
        self.size_in_bytes = LOG_OVERHEAD + length
        end = at + self.size_in_bytes
        if magic not in (0, 1) or length < OVERHEAD_V0 or end > len(buffer):
            raise CorruptRecordError(f"no message: magic {magic}, length {length}", at)
        if zlib.crc32(memoryview(buffer)[at + MAGIC_AT : end]) != crc:
            raise CorruptRecordError("CRC mismatch", at)

    @property
    def base_offset(self) -> int:
        """The last one, too: a wrapper does not say where it begins."""
        return self.last_offset

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1
