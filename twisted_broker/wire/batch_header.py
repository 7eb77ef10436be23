"""The 61-byte header of a record batch (magic 2): layout, one-struct read, CRC, and the three
patches a leader makes.

1. Base offset and partition leader epoch lie outside the CRC: the leader writes both without
   computing it again.
2. The CRC is CRC-32C of every byte from the attributes to the batch's end.
3. `size_in_bytes` always means the whole batch, `length` the field: the bytes after it
   (`size_in_bytes` = 12 + `length`).
4. Nothing here copies record bytes.

Source: Kafka's record formats; Kafka's DefaultRecordBatch. Not here: the records
(`record_walk`), the older formats (`legacy`), what a leader accepts (the log's validation).
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from .batch_fields import CRC, LENGTH, MAGIC_FIELD
from .corrupt_record import CorruptRecordError, InvalidRecordError

Buffer = bytes | bytearray | memoryview
# base_offset, length, partition_leader_epoch, magic, crc, attributes, last_offset_delta,
# base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, records_count
BatchHeader = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]

MAGIC: Final = 2
BASE_OFFSET_AT: Final = 0
LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
PRODUCER_EPOCH_AT: Final = 51
BASE_SEQUENCE_AT: Final = 53
RECORDS_COUNT_AT: Final = 57
HEADER_BYTES: Final = 61
LOG_OVERHEAD: Final = 12  # base offset and length: common to all formats
MIN_LENGTH: Final = HEADER_BYTES - LOG_OVERHEAD
SMALLEST_LENGTH: Final = 14  # an empty message of magic 0

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_HEAD: Final = struct.Struct(">qii")
_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
_BASE_OFFSET: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_INT16: Final = struct.Struct(">h")

_unpack_header = HEADER.unpack_from


def read_batch_header(buffer: Buffer, offset: int = 0) -> BatchHeader:
    """The 13 header fields (see `BatchHeader`). `CorruptRecordError`: fewer than 61 bytes, a length
    too small for the header, another magic.

    The record bytes need not be in the buffer; neither they nor the CRC are looked at.
    """
    try:
        header: BatchHeader = _unpack_header(buffer, offset)
    except struct.error:
        raise CorruptRecordError("fewer bytes than a batch header", offset) from None
    if header[MAGIC_FIELD] != MAGIC:
        raise CorruptRecordError(f"magic {header[MAGIC_FIELD]} where {MAGIC} is expected", offset)
    if header[LENGTH] < MIN_LENGTH:
        raise CorruptRecordError(
            f"batch length {header[LENGTH]} is smaller than its header", offset
        )
    return header


def read_valid_batch(buffer: Buffer, offset: int = 0) -> BatchHeader:
    """The header of a batch that is wholly in the buffer and whose CRC is right; else
    `CorruptRecordError`.
    """
    header = read_batch_header(buffer, offset)
    end = offset + LOG_OVERHEAD + header[LENGTH]
    if end > len(buffer):
        raise CorruptRecordError(
            f"batch of {end - offset} bytes, but only {len(buffer) - offset} are there", offset
        )
    crc = crc32c(memoryview(buffer)[offset + ATTRIBUTES_AT : end])
    if crc != header[CRC]:
        raise CorruptRecordError(f"CRC is {crc}, the header says {header[CRC]}", offset)
    return header


def batch_crc(buffer: Buffer, offset: int, size_in_bytes: int) -> int:
    """CRC-32C of the batch of `size_in_bytes` at `offset`, as it must stand in its header.

    Copies nothing.
    """
    return crc32c(memoryview(buffer)[offset + ATTRIBUTES_AT : offset + size_in_bytes])


def peek_magic(buffer: Buffer, offset: int = 0) -> int:
    """The format of the entry at `offset`: 2 for a batch, 0 or 1 for a message set.

    `CorruptRecordError` when the buffer ends before it.
    """
    if offset + MAGIC_AT >= len(buffer):
        raise CorruptRecordError("fewer bytes than any batch or message has", offset)
    return buffer[offset + MAGIC_AT]


def peek_offset_and_length(buffer: Buffer, offset: int = 0) -> tuple[int, int]:
    """The first two fields of an entry of any format: (base) offset, and the length of what
    follows them.
    """
    try:
        base_offset, length = _OFFSET_AND_LENGTH.unpack_from(buffer, offset)
    except struct.error:
        raise CorruptRecordError("fewer bytes than an offset and a length", offset) from None
    return base_offset, length


def is_incomplete(buffer: Buffer, position: int, end: int) -> bool:
    """Whether the entry at `position`, of any format, goes on beyond `end`: the last one of a
    fetch answer may.
    """
    if end - position < LOG_OVERHEAD:
        return True
    return position + LOG_OVERHEAD + max(peek_offset_and_length(buffer, position)[1], 0) > end


def last_whole_entry(buffer: Buffer) -> int:
    """Where the last entry begins that is all there, by their lengths alone; 0 where none is.

    `CorruptRecordError` for a length that no entry has.
    """
    unpack, end = _OFFSET_AND_LENGTH.unpack_from, len(buffer)
    last = position = 0
    while end - position >= LOG_OVERHEAD:
        length = unpack(buffer, position)[1]
        if length < SMALLEST_LENGTH:
            raise CorruptRecordError(f"length {length} is smaller than any entry's", position)
        if position + LOG_OVERHEAD + length > end:
            break
        last = position
        position += LOG_OVERHEAD + length
    return last


def check_first_entry(records: Buffer) -> int:
    """The magic of the first entry of what a producer sent.

    `InvalidRecordError` where there is no whole entry, `CorruptRecordError` for a length or magic
    that no entry has: what Kafka's reader of record bytes makes of them, in its order. Nothing else
    is looked at.
    """
    size = len(records)
    if size < LOG_OVERHEAD:
        raise InvalidRecordError("no batch")
    length = _INT32.unpack_from(records, LENGTH_AT)[0]
    if length < SMALLEST_LENGTH:
        raise CorruptRecordError(f"length {length} is smaller than any entry's")
    if size <= MAGIC_AT:
        raise InvalidRecordError("no whole batch")
    magic = records[MAGIC_AT]
    if magic > MAGIC:
        raise CorruptRecordError(
            f"magic {magic - 256 if magic > 127 else magic} is none of 0, 1 and 2"
        )
    if LOG_OVERHEAD + length > size:
        raise InvalidRecordError(
            f"no whole batch: it says that it has {LOG_OVERHEAD + length} bytes, {size} came"
        )
    return magic


def batch_head(base_offset: int, length: int, leader_epoch: int) -> bytes:
    """The first 16 bytes of a batch, for a vectored write in front of untouched bytes from 16
    on.
    """
    return _HEAD.pack(base_offset, length, leader_epoch)


def set_offsets_and_epoch(
    buffer: bytearray | memoryview, base_offset: int, leader_epoch: int, position: int = 0
) -> None:
    """Write base offset and partition leader epoch of the batch at `position`; the CRC stays
    right.
    """
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + LEADER_EPOCH_AT, leader_epoch)


def set_max_timestamp(
    buffer: bytearray | memoryview, timestamp_type: int, max_timestamp: int, position: int = 0
) -> None:
    """Write timestamp type and max timestamp of the whole batch at `position`; the CRC is
    computed again if either changed.
    """
    attributes: int = _INT16.unpack_from(buffer, position + ATTRIBUTES_AT)[0]
    wanted = (
        attributes | LOG_APPEND_TIME_FLAG
        if timestamp_type == LOG_APPEND_TIME
        else attributes & ~LOG_APPEND_TIME_FLAG
    )
    if (
        wanted == attributes
        and _BASE_OFFSET.unpack_from(buffer, position + MAX_TIMESTAMP_AT)[0] == max_timestamp
    ):
        return
    _INT16.pack_into(buffer, position + ATTRIBUTES_AT, wanted)
    _BASE_OFFSET.pack_into(buffer, position + MAX_TIMESTAMP_AT, max_timestamp)
    size_in_bytes = LOG_OVERHEAD + _INT32.unpack_from(buffer, position + LENGTH_AT)[0]
    _UINT32.pack_into(buffer, position + CRC_AT, batch_crc(buffer, position, size_in_bytes))


def set_log_append_time(
    buffer: bytearray | memoryview, log_append_time_ms: int, position: int = 0
) -> None:
    """Make the batch at `position` one of LogAppendTime: all its records then carry
    `log_append_time_ms`.
    """
    set_max_timestamp(buffer, LOG_APPEND_TIME, log_append_time_ms, position)
