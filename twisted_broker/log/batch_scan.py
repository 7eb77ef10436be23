"""Walking the batches of a segment file: by header only, or with every CRC checked.

Owns `scan` (where batches lie), `scan_headers` (their headers), `find_batch` and `place_at` (where
one is) and `valid_batches` (recovery's walk).

1. No batch is bigger than what is left of the file; a length that claims more is damage, and no
   memory is allocated for it.
2. `valid_batches` ends at the first damaged byte; `scan`, `scan_headers` and `find_batch` raise
   CorruptRecordError there.
3. One read takes the headers of many small batches.

Source: Kafka's `FileLogInputStream`, `LogSegment.recover`; RL 3.3, 3.6. Entries of magic 0 and 1
(left by old brokers) are walked too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from twisted_broker.interfaces import IFile
from twisted_broker.log.old_entries import OldEntry, old_header
from twisted_broker.wire.batch_fields import BASE_OFFSET, LAST_OFFSET_DELTA, LENGTH, MAGIC_FIELD
from twisted_broker.wire.batch_header import HEADER
from twisted_broker.wire.records import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    BatchHeader,
    BatchView,
    CorruptRecordError,
)

_HEAD = struct.Struct(">qiibIhi")
_unpack_place = struct.Struct(">qi4xb6xi").unpack_from
_SMALLEST_LENGTH = HEADER_BYTES - LOG_OVERHEAD
_SMALLEST_LEGACY = 14
_SMALLEST_ENTRY = LOG_OVERHEAD + _SMALLEST_LEGACY
_FIND_CHUNK = 4608  # the usual distance between two index entries, and a batch header
_SCAN_CHUNK = 8192
_HEADERS_CHUNK = 1 << 16
_SMALL_BATCH = (
    4096  # below it one read serves many headers; above it a header of its own is cheaper
)
# Recovery reads every byte: long reads are few system calls.
_RECOVERY_CHUNK = 4 << 20


class BatchPlace(NamedTuple):
    """Where a batch lies and which offsets it covers (magic 0 and 1: `base_offset` is the last
    one too).
    """

    position: int
    size_in_bytes: int
    base_offset: int
    last_offset: int
    magic: int


def _read_piece(file: IFile, position: int, wanted: int) -> bytes:
    """Up to `wanted` bytes from the first byte of a batch on. CorruptRecordError where the file
    ends within its head.
    """
    chunk = file.read_at(position, wanted)
    if len(chunk) == _SMALLEST_ENTRY:
        # A message of magic 0 without key and value is 26 bytes, a head 27: its last field is of
        # magic 2 only. A batch of magic 2 would reach beyond the end, and is refused for that.
        chunk += b"\0"
    if len(chunk) < _HEAD.size:
        raise CorruptRecordError("file ends within a batch header", position)
    return chunk


def place_at(buffer: bytes | memoryview, at: int, position: int, end: int) -> BatchPlace:
    """The place of the batch whose first 27 bytes are at `at` of `buffer` and at `position` of a
    file that ends at `end`.
    """
    base_offset, length, _, magic, _, _, delta = _HEAD.unpack_from(buffer, at)
    smallest = _SMALLEST_LENGTH if magic == 2 else _SMALLEST_LEGACY
    if (
        not 0 <= magic <= 2
        or length < smallest
        or position + LOG_OVERHEAD + length > end
        or base_offset < 0
    ):
        raise CorruptRecordError(
            f"no batch: magic {magic}, length {length}, offset {base_offset}", position
        )
    if magic < 2:
        return BatchPlace(position, LOG_OVERHEAD + length, base_offset, base_offset, magic)
    if delta < 0:
        raise CorruptRecordError(f"no batch: last offset delta {delta}", position)
    return BatchPlace(position, LOG_OVERHEAD + length, base_offset, base_offset + delta, magic)


def find_batch(file: IFile, position: int, end: int, offset: int) -> BatchPlace | None:
    """The first batch from `position` on whose last offset is `offset` or above; the tight loop
    of every read that is not at the tail.
    """
    chunk, start, size = b"", position, 0
    while position < end:
        at = position - start
        if at + _HEAD.size > size:
            chunk = _read_piece(file, position, min(_FIND_CHUNK, end - position))
            start, at, size = position, 0, len(chunk)
        base_offset, length, magic, delta = _unpack_place(chunk, at)
        following = position + LOG_OVERHEAD + length
        if (
            magic != 2
            or length < _SMALLEST_LENGTH
            or delta < 0
            or following > end
            or base_offset < 0
        ):
            delta = place_at(chunk, at, position, end).last_offset - base_offset
        if base_offset + delta >= offset:
            return BatchPlace(
                position, LOG_OVERHEAD + length, base_offset, base_offset + delta, magic
            )
        position = following
    return None


def scan(file: IFile, position: int, end: int) -> Iterator[BatchPlace]:
    """The places of all batches from `position` (a batch's first byte) to `end`, by header only."""
    chunk, start = b"", position
    while position < end:
        at = position - start
        if at + _HEAD.size > len(chunk):
            chunk = _read_piece(file, position, min(_SCAN_CHUNK, end - position))
            start, at = position, 0
        place = place_at(chunk, at, position, end)
        yield place
        position += place.size_in_bytes


def scan_headers(file: IFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every batch from `position` (a batch's first byte) to `end`; of an
    entry of magic 0 or 1 what it has of one (`old_header`).
    """
    unpack = HEADER.unpack_from
    chunk, start, size, wanted = b"", position, 0, _HEADERS_CHUNK
    while position < end:
        at = position - start
        if at + HEADER_BYTES > size and (not size or start + size < end):
            chunk, start, at = file.read_at(position, min(wanted, end - position)), position, 0
            size = len(chunk)
        if at + HEADER_BYTES <= size:
            header: BatchHeader = unpack(chunk, at)
            length = header[LENGTH]
            following = position + LOG_OVERHEAD + length
            if (
                header[MAGIC_FIELD] == 2
                and length >= _SMALLEST_LENGTH
                and header[LAST_OFFSET_DELTA] >= 0
                and following <= end
                and header[BASE_OFFSET] >= 0
            ):
                yield position, header
                # Long batches are skipped: a chunk would read bytes of which only a header is
                # wanted.
                wanted = _HEADERS_CHUNK if length < _SMALL_BATCH else HEADER_BYTES
                position = following
                continue
        elif at + _HEAD.size > size:
            chunk, start, at = _read_piece(file, position, end - position), position, 0
            size = len(chunk)
        place = place_at(chunk, at, position, end)
        if place.magic < 2:
            yield position, old_header(chunk, at)
        position += place.size_in_bytes


def valid_batches(
    file: IFile, end: int, position: int = 0
) -> Iterator[tuple[BatchPlace, BatchView | OldEntry]]:
    """Batches whose header and CRC are right, up to the first that is not."""
    chunk, start = b"", position
    while end - position >= _SMALLEST_ENTRY:
        at = position - start
        try:
            if at + _HEAD.size > len(chunk):
                chunk = _read_piece(file, position, min(_RECOVERY_CHUNK, end - position))
                start, at = position, 0
            place = place_at(chunk, at, position, end)
            if at + place.size_in_bytes > len(chunk):
                chunk, start, at = (
                    file.read_at(
                        position, max(place.size_in_bytes, min(_RECOVERY_CHUNK, end - position))
                    ),
                    position,
                    0,
                )
            batch = _checked(chunk, at, place)
        except (CorruptRecordError, struct.error):
            # The end of what is valid: the caller truncates there.
            return
        yield place, batch
        position += place.size_in_bytes


def _checked(chunk: bytes, at: int, place: BatchPlace) -> BatchView | OldEntry:
    if place.magic < 2:
        return OldEntry(chunk, at)
    batch = BatchView(chunk, at)
    if not batch.is_valid_crc():
        raise CorruptRecordError("CRC mismatch", place.position)
    return batch
