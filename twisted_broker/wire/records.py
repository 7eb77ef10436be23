"""Record batches (magic 2) as views: bytes stay where they are, fields are read from the header,
records are walked only when requested.

1. A view copies nothing; `records()` copies the record section once (uncompressed from a `bytes`
   buffer: not at all).
2. A batch is trusted only after `is_valid_crc()`; the walk checks what it reads either way.
3. Decompression never makes more than the limit given.

This is the module to import from: it names what its neighbours own (`batch_header`, `record_walk`,
`record_builder`, `control_batch`). Source: Kafka's record formats, RELIABILITY 5.3; Kafka's
DefaultRecordBatch, ByteBufferLogInputStream. Not here: message sets v0/v1 (`legacy`), what a leader
accepts (the log's validation).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .batch_header import (
    CODEC_MASK,
    CONTROL_FLAG,
    CREATE_TIME,
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    batch_crc,
    batch_head,
    check_first_entry,
    is_incomplete,
    peek_magic,
    peek_offset_and_length,
    read_batch_header,
    read_valid_batch,
    set_log_append_time,
    set_max_timestamp,
    set_offsets_and_epoch,
)
from .compression import NONE, decompress
from .control_batch import (
    build_control_batch,
    build_end_marker,
    control_key,
    control_record_type,
    end_marker_coordinator_epoch,
)
from .corrupt_record import (
    CorruptRecordError,
    InvalidRecordError,
    OutputLimitError,
    UnsupportedCodecError,
)
from .record_builder import BatchBuilder, build_batch, build_empty_batch
from .record_walk import Headers, Record, walk_key_values, walk_records
from .records_count import SMALLEST_RECORD, check_records_count

__all__ = [
    "CODEC_MASK",
    "CONTROL_FLAG",
    "CREATE_TIME",
    "DELETE_HORIZON_FLAG",
    "HEADER_BYTES",
    "LOG_APPEND_TIME",
    "LOG_APPEND_TIME_FLAG",
    "LOG_OVERHEAD",
    "MAGIC",
    "MAGIC_AT",
    "MAX_OUTPUT_BYTES",
    "NO_LEADER_EPOCH",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "SMALLEST_RECORD",
    "TRANSACTIONAL_FLAG",
    "BatchBuilder",
    "BatchHeader",
    "BatchView",
    "Buffer",
    "CorruptRecordError",
    "Headers",
    "InvalidRecordError",
    "OutputLimitError",
    "Record",
    "UnsupportedCodecError",
    "batch_crc",
    "batch_head",
    "build_batch",
    "build_control_batch",
    "build_empty_batch",
    "build_end_marker",
    "check_first_entry",
    "check_records_count",
    "control_key",
    "control_record_type",
    "end_marker_coordinator_epoch",
    "is_incomplete",
    "iterate_batches",
    "next_sequence",
    "peek_magic",
    "peek_offset_and_length",
    "read_batch_header",
    "read_valid_batch",
    "set_log_append_time",
    "set_max_timestamp",
    "set_offsets_and_epoch",
    "walk_key_values",
]

MAX_OUTPUT_BYTES: Final = (
    128 * 1024 * 1024
)  # what one batch may decompress to, where the caller names no limit
MAX_SEQUENCE: Final = 2**31 - 1


def next_sequence(sequence: int, increment: int) -> int:
    """`sequence` advanced by `increment`; after 2^31 - 1 comes 0."""
    return (sequence + increment) & MAX_SEQUENCE


class BatchView:
    """One batch in a buffer, by its header's fields. The buffer must not change under it."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "buffer",
        "crc",
        "last_offset_delta",
        "length",
        "magic",
        "max_timestamp",
        "offset",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
        "records_count",
    )

    def __init__(self, buffer: Buffer, offset: int = 0) -> None:
        """View the batch at byte `offset`.

        `CorruptRecordError` when its header cannot be one, or its bytes are not all there.
        """
        self.buffer = buffer
        self.offset = offset
        (
            self.base_offset,
            self.length,
            self.partition_leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.records_count,
        ) = read_batch_header(buffer, offset)
        if offset + LOG_OVERHEAD + self.length > len(buffer):
            raise CorruptRecordError(
                f"batch of {LOG_OVERHEAD + self.length} bytes, but only "
                f"{len(buffer) - offset} are there",
                offset,
            )

    @property
    def size_in_bytes(self) -> int:
        return LOG_OVERHEAD + self.length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Where the next batch may begin: after the last offset, whether or not there is a
        record under it.
        """
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def timestamp_type(self) -> int:
        return LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_FLAG else CREATE_TIME

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the cleaner may drop this batch's tombstones; it stands where the base timestamp
        was.
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        return (
            NO_SEQUENCE
            if self.base_sequence == NO_SEQUENCE
            else next_sequence(self.base_sequence, self.last_offset_delta)
        )

    def is_valid_crc(self) -> bool:
        return batch_crc(self.buffer, self.offset, LOG_OVERHEAD + self.length) == self.crc

    def to_bytes(self) -> bytes:
        """A copy of the whole batch."""
        return bytes(self.buffer[self.offset : self.offset + LOG_OVERHEAD + self.length])

    def records(
        self, max_output_bytes: int = MAX_OUTPUT_BYTES, sequential: bool = False
    ) -> Iterator[Record]:
        """The records, decoded lazily. `sequential`: offset deltas must be 0..n-1, as in every
        batch a producer sends.

        `InvalidRecordError` at the first broken record, `UnsupportedCodecError`,
        `OutputLimitError`.
        """
        if sequential and self.records_count != self.last_offset_delta + 1:
            raise InvalidRecordError(
                f"{self.records_count} records, but the last offset delta is "
                f"{self.last_offset_delta}",
                self.offset,
            )
        start, end = self.offset + HEADER_BYTES, self.offset + LOG_OVERHEAD + self.length
        codec = self.attributes & CODEC_MASK
        data = self.buffer
        if codec != NONE:
            data = decompress(codec, memoryview(data)[start:end], max_output_bytes)
            start, end = 0, len(data)
        elif not isinstance(data, bytes):
            data = bytes(data[start:end])
            start, end = 0, len(data)
        return walk_records(
            data,
            start,
            end,
            self.records_count,
            self.base_offset,
            self.base_timestamp,
            self.max_timestamp if self.attributes & LOG_APPEND_TIME_FLAG else None,
            sequential,
        )

    def key_values(
        self, max_output_bytes: int = MAX_OUTPUT_BYTES
    ) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """(offset delta, key, value) of each record: `walk_key_values`. Raises what `records`
        does.
        """
        start, end = self.offset + HEADER_BYTES, self.offset + LOG_OVERHEAD + self.length
        data = self.buffer
        if self.codec != NONE:
            data = decompress(self.codec, memoryview(data)[start:end], max_output_bytes)
            start, end = 0, len(data)
        elif not isinstance(data, bytes):
            data = bytes(data[start:end])
            start, end = 0, len(data)
        return walk_key_values(data, start, end, self.records_count)

    def __repr__(self) -> str:
        return (
            f"BatchView(offsets={self.base_offset}..{self.last_offset}, "
            f"leader_epoch={self.partition_leader_epoch}, size={self.size_in_bytes}, "
            f"count={self.records_count}, attributes={self.attributes:#x}, "
            f"producer={self.producer_id}/{self.producer_epoch}/{self.base_sequence})"
        )


def iterate_batches(
    buffer: Buffer,
    start: int = 0,
    end: int | None = None,
    *,
    partial_tail: bool = False,
    check_crc: bool = False,
) -> Iterator[BatchView]:
    """The batches in `buffer[start:end]`, one after the other.

    `CorruptRecordError` (with its position) at the first that is not a batch, after the good ones
    before it. `partial_tail`: a last batch truncated ends the walk instead, as Kafka's fetch
    answers allow.
    """
    limit = len(buffer) if end is None else end
    position = start
    while position < limit:
        if partial_tail and is_incomplete(buffer, position, limit):
            return
        batch = BatchView(buffer, position)
        position += batch.size_in_bytes
        if position > limit:
            raise CorruptRecordError(
                f"batch of {batch.size_in_bytes} bytes, but only {limit - batch.offset} are there",
                batch.offset,
            )
        if check_crc and not batch.is_valid_crc():
            raise CorruptRecordError("CRC mismatch", batch.offset)
        yield batch
