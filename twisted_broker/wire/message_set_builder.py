"""Writing message sets (magic 0 and 1): single messages, and a wrapper around several.

1. In format 1 a wrapper's inner offsets count from its first record and its own offset is the last
   one's; in format 0 all are absolute.
2. A wrapper's timestamp is the largest inside, or the append time.

Source: Kafka's record formats "v0/v1 entry"; Kafka's LegacyRecord.write, MemoryRecordsBuilder. Not
here: headers, producers, zstd: these formats have none.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final
from zlib import crc32

from .batch_header import CREATE_TIME, LOG_APPEND_TIME, LOG_APPEND_TIME_FLAG, NO_TIMESTAMP
from .compression import NONE, compress_legacy
from .record_walk import Record

_OFFSET_SIZE_CRC: Final = struct.Struct(">qiI")
_V0: Final = struct.Struct(">bB")
_V1: Final = struct.Struct(">bBq")
_SIZE: Final = struct.Struct(">i")
_NULL: Final = b"\xff\xff\xff\xff"


def build_message(
    offset: int, magic: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None
) -> bytes:
    """One message of format `magic`; `timestamp` (ms) is dropped in format 0."""
    head = _V1.pack(magic, attributes, timestamp) if magic else _V0.pack(magic, attributes)
    body = b"".join((head, _nullable(key), _nullable(value)))
    return _OFFSET_SIZE_CRC.pack(offset, len(body) + 4, crc32(body)) + body


def build_message_set(
    records: Sequence[Record],
    magic: int,
    codec: int = NONE,
    timestamp_type: int = CREATE_TIME,
    log_append_time_ms: int = NO_TIMESTAMP,
    level: int | None = None,
) -> bytes:
    """These records as single messages, or with a codec as one wrapper.

    Headers are lost; `UnsupportedCodecError` for zstd.
    """
    is_append_time = magic == 1 and timestamp_type == LOG_APPEND_TIME
    flag = LOG_APPEND_TIME_FLAG if is_append_time else 0
    base = records[0].offset if codec != NONE and magic == 1 and records else 0
    messages = b"".join(
        build_message(
            record.offset - base,
            magic,
            flag,
            log_append_time_ms if is_append_time else record.timestamp,
            record.key,
            record.value,
        )
        for record in records
    )
    if codec == NONE or not records:
        return messages
    timestamp = (
        log_append_time_ms if is_append_time else max(record.timestamp for record in records)
    )
    return build_message(
        records[-1].offset,
        magic,
        codec | flag,
        timestamp,
        None,
        compress_legacy(codec, messages, magic, level),
    )


def _nullable(content: bytes | None) -> bytes:
    return _NULL if content is None else _SIZE.pack(len(content)) + content
