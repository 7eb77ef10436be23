"""Message sets, the formats before batches (magic 0 and 1), as views: shallow over the messages,
deep through compressed wrappers.

1. A message's CRC is the CRC-32 of its bytes from the magic on. Its key and value end exactly where
   its size says.
2. A wrapper's value is a message set of the same magic, itself never compressed. Inner offsets are
   absolute in format 0, relative in format 1, where the wrapper carries the last one; offset 0 on a
   wrapper of several means that its producer did not fill it in.
3. Under a wrapper with LogAppendTime every inner message has the wrapper's timestamp. Format 0 has
   no timestamps (-1).
4. A wrapper is decompressed whole, within the limit given: the offsets of format 1 are not
   known before its last message.

Source: Kafka's record formats "v0/v1 entry"; Kafka's LegacyRecord, AbstractLegacyRecordBatch. Not
here: writing (`message_set_builder`), conversion (`legacy`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final
from zlib import crc32

from .batch_header import (
    CODEC_MASK,
    CREATE_TIME,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    Buffer,
    is_incomplete,
    peek_offset_and_length,
)
from .compression import NONE, decompress_legacy
from .corrupt_record import CorruptRecordError, InvalidRecordError
from .record_walk import Record

CRC_AT: Final = 12
MAGIC_AT: Final = 16
KEY_AT_V0: Final = 18
KEY_AT_V1: Final = 26
OVERHEAD_V0: Final = 14  # of a message without key and value, after offset and size
OVERHEAD_V1: Final = 22

_CRC_MAGIC_ATTRIBUTES: Final = struct.Struct(">IbB")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


class MessageView:
    """One message, or one wrapper, in a buffer.

    `offset` is the message's own; `position` its first byte.
    """

    __slots__ = (
        "attributes",
        "buffer",
        "crc",
        "key",
        "length",
        "magic",
        "offset",
        "position",
        "timestamp",
        "value",
    )
    crc: int
    magic: int
    attributes: int
    timestamp: int

    def __init__(self, buffer: Buffer, position: int = 0) -> None:
        """View the message at byte `position`.

        `CorruptRecordError`: not all there, wrong size or magic; `InvalidRecordError`: key or
        value.
        """
        self.buffer = buffer
        self.position = position
        self.offset, self.length = peek_offset_and_length(buffer, position)
        if self.length < OVERHEAD_V0:
            raise CorruptRecordError(
                f"message size {self.length} is smaller than any message", position
            )
        if position + LOG_OVERHEAD + self.length > len(buffer):
            raise CorruptRecordError(
                f"message of {LOG_OVERHEAD + self.length} bytes, but only "
                f"{len(buffer) - position} are there",
                position,
            )
        self.crc, self.magic, self.attributes = _CRC_MAGIC_ATTRIBUTES.unpack_from(
            buffer, position + CRC_AT
        )
        if self.magic not in (0, 1):
            raise CorruptRecordError(f"magic {self.magic} in a message set", position)
        if self.length < (OVERHEAD_V1 if self.magic else OVERHEAD_V0):
            raise CorruptRecordError(
                f"message size {self.length} is too small for magic {self.magic}", position
            )
        self.timestamp = (
            _INT64.unpack_from(buffer, position + KEY_AT_V0)[0] if self.magic else NO_TIMESTAMP
        )
        end = position + LOG_OVERHEAD + self.length
        self.key, at = _read_nullable(
            buffer, position + (KEY_AT_V1 if self.magic else KEY_AT_V0), end
        )
        self.value, at = _read_nullable(buffer, at, end)
        if at != end:
            raise InvalidRecordError(f"{end - at} bytes after a message's value", position)

    @property
    def size_in_bytes(self) -> int:
        return LOG_OVERHEAD + self.length

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        return (
            LOG_APPEND_TIME
            if self.magic and self.attributes & LOG_APPEND_TIME_FLAG
            else CREATE_TIME
        )

    @property
    def last_offset(self) -> int:
        return self.offset

    def is_valid_crc(self) -> bool:
        return (
            crc32(
                memoryview(self.buffer)[
                    self.position + MAGIC_AT : self.position + self.size_in_bytes
                ]
            )
            == self.crc
        )

    def to_bytes(self) -> bytes:
        """A copy of the whole entry."""
        return bytes(self.buffer[self.position : self.position + self.size_in_bytes])

    def records(self, max_output_bytes: int, check_crc: bool = False) -> Iterator[Record]:
        """The message itself, or what its wrapper holds, with absolute offsets.

        Raises the errors of `decompress_legacy` and `MessageView`.
        """
        if self.attributes & CODEC_MASK == NONE:
            return iter((Record(self.offset, self.timestamp, self.key, self.value, []),))
        return iter(self._inner_records(max_output_bytes, check_crc))

    def _inner_records(self, max_output_bytes: int, check_crc: bool) -> list[Record]:
        if self.value is None:
            raise InvalidRecordError("a compressed message without value", self.position)
        data = decompress_legacy(self.codec, self.value, self.magic, max_output_bytes)
        shared_timestamp = self.timestamp if self.timestamp_type == LOG_APPEND_TIME else None
        records = [
            self._inner_record(message, shared_timestamp, check_crc)
            for message in iterate_messages(data)
        ]
        if not records:
            raise InvalidRecordError("a compressed message without messages", self.position)
        if self.magic == 1 and self.offset != 0:
            _make_absolute(records, self.offset)
        return records

    def _inner_record(
        self, message: MessageView, shared_timestamp: int | None, check_crc: bool
    ) -> Record:
        if message.magic != self.magic:
            raise InvalidRecordError(
                f"a message of magic {message.magic} in a wrapper of magic {self.magic}",
                self.position,
            )
        if message.codec != NONE:
            raise InvalidRecordError("a compressed message inside a compressed one", self.position)
        if check_crc and not message.is_valid_crc():
            raise CorruptRecordError("CRC mismatch of an inner message", self.position)
        return Record(
            message.offset,
            message.timestamp if shared_timestamp is None else shared_timestamp,
            message.key,
            message.value,
            [],
        )


def _make_absolute(records: list[Record], last_offset: int) -> None:
    base = last_offset - records[-1].offset
    if base < 0:
        raise InvalidRecordError(
            f"wrapper offset {last_offset} is below its last inner offset {records[-1].offset}"
        )
    for record in records:
        record.offset += base


def _read_nullable(buffer: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    if end - position < 4:
        raise InvalidRecordError("a message ends before its fields", position)
    size = _INT32.unpack_from(buffer, position)[0]
    position += 4
    if size < 0:
        return None, position
    if size > end - position:
        raise InvalidRecordError(
            f"field of {size} bytes in a message with {end - position} left", position
        )
    return bytes(buffer[position : position + size]), position + size


def iterate_messages(
    buffer: Buffer,
    start: int = 0,
    end: int | None = None,
    *,
    partial_tail: bool = False,
    check_crc: bool = False,
) -> Iterator[MessageView]:
    """The messages and wrappers in `buffer[start:end]`, shallow.

    Errors and `partial_tail` as in `records.iterate_batches`.
    """
    limit = len(buffer) if end is None else end
    position = start
    while position < limit:
        if partial_tail and is_incomplete(buffer, position, limit):
            return
        message = MessageView(buffer, position)
        position += message.size_in_bytes
        if position > limit:
            raise CorruptRecordError(
                f"message of {message.size_in_bytes} bytes, but only "
                f"{limit - message.position} are there",
                message.position,
            )
        if check_crc and not message.is_valid_crc():
            raise CorruptRecordError("CRC mismatch", message.position)
        yield message
