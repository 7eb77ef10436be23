"""Writing record batches (magic 2): records one by one, control batches, and the empty batch that
compaction leaves.

1. The bytes are those Kafka writes for the same records; what a codec makes of them may differ,
   what it decompresses to does not.
2. The base timestamp is the first record's. With LogAppendTime the max timestamp is the append
   time, else the largest of the records.
3. A batch holds at least one record; only `build_empty_batch` writes one without.

Source: Kafka's record formats; Kafka's MemoryRecordsBuilder, DefaultRecordBatch.writeHeader and
writeEmptyHeader. Not here: batch size limits, the values of
control records (`control_batch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from .batch_header import (
    ATTRIBUTES_AT,
    CONTROL_FLAG,
    CRC_AT,
    CREATE_TIME,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
)
from .compression import NONE, compress
from .corrupt_record import InvalidRecordError
from .record_walk import MAX_INT64, MIN_INT64

MAX_INT32: Final = 2**31 - 1

HeaderItems = Sequence[tuple[str | bytes, bytes | None]]


def append_varint(out: bytearray, value: int) -> None:
    """Append an int or long in zigzag form; the caller keeps it within 64 bits."""
    raw = value << 1 if value >= 0 else (~value << 1) | 1
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


def append_record(
    out: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: HeaderItems,
) -> None:
    """Append one record with its length in front."""
    body = bytearray(1)  # attributes
    append_varint(body, timestamp_delta)
    append_varint(body, offset_delta)
    _append_nullable(body, key)
    _append_nullable(body, value)
    append_varint(body, len(headers))
    for name, content in headers:
        _append_nullable(
            body, name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")
        )
        _append_nullable(body, content)
    append_varint(out, len(body))
    out += body


def _append_nullable(out: bytearray, content: bytes | None) -> None:
    if content is None:
        out.append(1)
        return
    size = len(content)
    if size < 64:
        out.append(size << 1)
    else:
        append_varint(out, size)
    out += content


class BatchBuilder:
    """Collects records and builds one batch.

    All times are ms; `log_append_time_ms` is needed when `timestamp_type` is LogAppendTime.
    """

    __slots__ = (
        "_records",
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "codec",
        "count",
        "last_offset_delta",
        "leader_epoch",
        "level",
        "log_append_time_ms",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
    )

    def __init__(
        self,
        *,
        base_offset: int = 0,
        codec: int = NONE,
        level: int | None = None,
        timestamp_type: int = CREATE_TIME,
        log_append_time_ms: int = NO_TIMESTAMP,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
        is_control: bool = False,
        leader_epoch: int = NO_LEADER_EPOCH,
        delete_horizon_ms: int | None = None,
    ) -> None:
        if is_transactional and producer_id == NO_PRODUCER_ID:
            raise ValueError("a transactional batch needs a producer id")
        if is_control and codec != NONE:
            raise ValueError("control records are never compressed")
        self.base_offset = base_offset
        self.codec = codec
        self.level = level
        self.attributes = batch_attributes(
            codec, timestamp_type, is_transactional, is_control, delete_horizon_ms is not None
        )
        self.log_append_time_ms = log_append_time_ms
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.leader_epoch = leader_epoch
        self.base_timestamp = delete_horizon_ms
        self.max_timestamp = NO_TIMESTAMP
        self.last_offset_delta = -1
        self.count = 0
        self._records = bytearray()

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: HeaderItems = (),
        offset_delta: int | None = None,
    ) -> None:
        """Add a record at `offset_delta` (default: the one after the last), which must grow."""
        if offset_delta is None:
            offset_delta = self.last_offset_delta + 1
        elif offset_delta <= self.last_offset_delta or offset_delta > MAX_INT32:
            raise ValueError(f"offset delta {offset_delta} after {self.last_offset_delta}")
        # Deltas count from the first record, as Kafka's: a later one may be earlier.
        if self.base_timestamp is None:
            self.base_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        timestamp_delta = timestamp - self.base_timestamp
        if timestamp_delta > MAX_INT64 or timestamp_delta < MIN_INT64:
            raise InvalidRecordError(
                f"timestamps {self.base_timestamp} and {timestamp} are too far apart for one batch"
            )
        append_record(self._records, timestamp_delta, offset_delta, key, value, headers)
        self.last_offset_delta = offset_delta
        self.count += 1

    def build(self, last_offset_delta: int | None = None) -> bytes:
        """The batch.

        `last_offset_delta` overrides the last record's: compaction keeps the one of the batch it
        rewrites.
        """
        if self.count == 0 or self.base_timestamp is None:
            raise ValueError("a batch without records")
        payload = (
            self._records if self.codec == NONE else compress(self.codec, self._records, self.level)
        )
        return build_batch(
            self.base_offset,
            self.leader_epoch,
            self.attributes,
            self.last_offset_delta if last_offset_delta is None else last_offset_delta,
            self.base_timestamp,
            self.log_append_time_ms
            if self.attributes & LOG_APPEND_TIME_FLAG
            else self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
            payload,
        )


def batch_attributes(
    codec: int,
    timestamp_type: int,
    is_transactional: bool,
    is_control: bool,
    has_delete_horizon: bool = False,
) -> int:
    """The attribute bits of a batch."""
    bits = codec
    if timestamp_type == LOG_APPEND_TIME:
        bits |= LOG_APPEND_TIME_FLAG
    if is_transactional:
        bits |= TRANSACTIONAL_FLAG
    if is_control:
        bits |= CONTROL_FLAG
    return bits | DELETE_HORIZON_FLAG if has_delete_horizon else bits


def build_batch(
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
    payload: bytes | bytearray,
) -> bytes:
    """A batch from its fields and its (already compressed) records; length and CRC follow from
    them.
    """
    size_in_bytes = HEADER_BYTES + len(payload)
    out = bytearray(
        HEADER.pack(
            base_offset,
            size_in_bytes - LOG_OVERHEAD,
            leader_epoch,
            MAGIC,
            0,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
    )
    crc = crc32c(payload, crc32c(memoryview(out)[ATTRIBUTES_AT:]))
    out[CRC_AT:ATTRIBUTES_AT] = crc.to_bytes(4, "big")
    return b"".join((out, payload))


def build_empty_batch(
    base_offset: int,
    last_offset: int,
    leader_epoch: int,
    timestamp_type: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    is_transactional: bool,
    is_control: bool,
) -> bytes:
    """The header alone that compaction keeps, so that a producer's last sequence and the range
    of offsets survive its records.
    """
    attributes = batch_attributes(NONE, timestamp_type, is_transactional, is_control)
    return build_batch(
        base_offset,
        leader_epoch,
        attributes,
        last_offset - base_offset,
        NO_TIMESTAMP,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        0,
        b"",
    )
