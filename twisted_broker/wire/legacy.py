"""Old clients and old files: message sets (magic 0 and 1) to batches on produce, batches to message
sets on fetch.

1. Up: everything in one produced set becomes one batch, in order; v1 keeps its timestamps, v0 has
   none. Every CRC is checked, offsets are assigned again (some old clients number inner messages
   wrongly), and a compressed set must be one wrapper.
2. Down: headers are lost, control batches are skipped. Records below the wanted offset are dropped
   from uncompressed batches, for some versions of librdkafka count on it; a compressed batch keeps
   them.
3. Down works batch by batch, and never holds more than one decompressed batch: pieces come out as
   they are made.
4. zstd cannot go down: `UnsupportedCodecError`.

This is the module to import from: it names what `message_set` and `message_set_builder` own.
Source: RELIABILITY 3.2 LogValidatorTest, KIP-32, KIP-110; Kafka's LogValidator,
RecordsUtil.downConvert. Not here: bounds on timestamps, keys on compacted topics: the log validates
the batch that comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from .batch_header import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    Buffer,
    is_incomplete,
    peek_magic,
)
from .compression import NONE, ZSTD
from .corrupt_record import CorruptRecordError, InvalidRecordError, UnsupportedCodecError
from .message_set import MessageView, iterate_messages
from .message_set_builder import build_message, build_message_set
from .record_builder import BatchBuilder
from .record_walk import Record
from .records import MAX_OUTPUT_BYTES, BatchView

__all__ = [
    "CHUNK_BYTES",
    "Entry",
    "MessageView",
    "build_message",
    "build_message_set",
    "convert_down",
    "convert_up",
    "iterate_entries",
    "iterate_messages",
]

Entry = BatchView | MessageView
CHUNK_BYTES: Final = 64 * 1024  # of single messages in one piece of a down-conversion


def convert_up(
    buffer: Buffer,
    *,
    codec: int | None = None,
    level: int | None = None,
    timestamp_type: int = CREATE_TIME,
    log_append_time_ms: int = NO_TIMESTAMP,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
) -> bytes:
    """A produced message set as one batch. `codec` None keeps the set's own.

    Raises `CorruptRecordError` (CRC, size), `InvalidRecordError` (empty, several wrappers, broken
    inside), `OutputLimitError`.
    """
    # All before the first is converted: a set is taken as a whole or refused.
    messages = list(iterate_messages(buffer, check_crc=True))
    source = _only_codec(messages)
    builder = BatchBuilder(
        base_offset=base_offset,
        codec=source if codec is None else codec,
        level=level,
        timestamp_type=timestamp_type,
        log_append_time_ms=log_append_time_ms,
        leader_epoch=leader_epoch,
    )
    for message in messages:
        if message.magic != messages[0].magic:
            raise InvalidRecordError(
                f"magic {message.magic} after magic {messages[0].magic} in one set",
                message.position,
            )
        for record in message.records(max_output_bytes, check_crc=True):
            builder.append(
                log_append_time_ms if timestamp_type == LOG_APPEND_TIME else record.timestamp,
                record.key,
                record.value,
            )
    return builder.build()


def _only_codec(messages: list[MessageView]) -> int:
    if not messages:
        raise InvalidRecordError("a message set without messages")
    codecs = [message.codec for message in messages if message.codec != NONE]
    # Kafka's rule for producers; in log files old brokers mixed both.
    if codecs and len(messages) > 1:
        raise InvalidRecordError("a compressed message that is not alone in its set")
    return codecs[0] if codecs else NONE


def iterate_entries(
    buffer: Buffer, start: int = 0, end: int | None = None, *, partial_tail: bool = False
) -> Iterator[Entry]:
    """Batches and messages as they follow each other in a log that has lived through upgrades.

    Errors as in `iterate_batches`.
    """
    limit = len(buffer) if end is None else end
    position = start
    while position < limit:
        if partial_tail and is_incomplete(buffer, position, limit):
            return
        entry: Entry = (
            BatchView(buffer, position)
            if peek_magic(buffer, position) == MAGIC
            else MessageView(buffer, position)
        )
        if position + entry.size_in_bytes > limit:
            raise CorruptRecordError(
                f"entry of {entry.size_in_bytes} bytes, but only {limit - position} are there",
                position,
            )
        position += entry.size_in_bytes
        yield entry


def convert_down(
    entries: Iterable[Entry],
    to_magic: int,
    first_offset: int,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
) -> Iterator[bytes]:
    """The entries in format `to_magic` (0 or 1), piece by piece; each piece is whole messages.
    `first_offset` is the requested offset.

    There may be no piece at all (only control batches). Raises `UnsupportedCodecError` when it
    meets zstd, `InvalidRecordError`, `OutputLimitError`.
    """
    for entry in entries:
        # The client reads this format, or an older one, as it is.
        if entry.magic <= to_magic:
            yield entry.to_bytes()
        elif not (isinstance(entry, BatchView) and entry.is_control):
            yield from _convert_entry_down(entry, to_magic, first_offset, max_output_bytes)


def _convert_entry_down(
    entry: Entry, to_magic: int, first_offset: int, max_output_bytes: int
) -> Iterator[bytes]:
    codec = entry.codec
    if codec == ZSTD:
        raise UnsupportedCodecError(
            f"records compressed with zstd cannot be read in message format {to_magic}"
        )
    append_time_ms = _append_time(entry)
    records = entry.records(max_output_bytes)
    # A compressed batch is one wrapper again, so its records below the first offset stay.
    if codec != NONE:
        kept = list(records)
        if kept:
            yield build_message_set(kept, to_magic, codec, entry.timestamp_type, append_time_ms)
        return
    yield from _chunked(records, to_magic, first_offset, entry.timestamp_type, append_time_ms)


def _append_time(entry: Entry) -> int:
    if entry.timestamp_type != LOG_APPEND_TIME:
        return NO_TIMESTAMP
    return entry.max_timestamp if isinstance(entry, BatchView) else entry.timestamp


def _chunked(
    records: Iterator[Record],
    to_magic: int,
    first_offset: int,
    timestamp_type: int,
    append_time_ms: int,
) -> Iterator[bytes]:
    chunk: list[bytes] = []
    size = 0
    for record in records:
        # librdkafka counts on it: it hands out what it is sent.
        if record.offset < first_offset:
            continue
        chunk.append(build_message_set((record,), to_magic, NONE, timestamp_type, append_time_ms))
        size += len(chunk[-1])
        if size >= CHUNK_BYTES:
            yield b"".join(chunk)
            chunk, size = [], 0
    if chunk:
        yield b"".join(chunk)
