"""Whether a batch (magic 2) can hold as many records as its header says. A plausible batch is not
read.

Owns `check_records_count`.

1. Uncompressed: a record has at least 7 bytes. Nothing else is checked: records are not walked
   here.
2. Compressed: a batch with no more records than payload bytes passes. One that claims more is
   refused when no payload of this codec can become so many bytes; else it is decompressed, and its
   records are counted one by one.
3. What is decompressed and counted is bounded, and so is the time that it takes: beyond
   `MOST_RECORDS` or `MOST_BYTES` it is MESSAGE_TOO_LARGE, at which producers split their batch.

Source: Kafka's LogValidator and DefaultRecordBatch (which walk every batch); RFC 1951 (1032:1),
LZ4's and snappy's block formats, RFC 8878 (a block of 4 bytes makes 128 KiB). Not here: what is in
the records (`record_walk`).
"""

from __future__ import annotations

from typing import Final

from .batch_header import HEADER_BYTES, Buffer
from .compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, decompress
from .corrupt_record import InvalidRecordError, OutputLimitError

SMALLEST_RECORD: Final = 7  # length, attributes, two deltas, two null lengths, header count
# Far above what producers send in a batch that is smaller than its record count.
MOST_RECORDS: Final = 1 << 16
MOST_BYTES: Final = 1 << 23
_MOST_FOR_A_BYTE: Final = {GZIP: 1032, SNAPPY: 64, LZ4: 256, ZSTD: 32768}
"""bytes that a payload byte decompresses to at the very most"""


def check_records_count(batch: Buffer, codec: int, count: int) -> None:
    """`InvalidRecordError` unless the bytes of `batch`, which ends with its buffer, can hold
    `count` records.

    `OutputLimitError` where that costs too much to find out.
    """
    payload = len(batch) - HEADER_BYTES
    if codec == NONE:
        if count * SMALLEST_RECORD > payload:
            raise InvalidRecordError(f"{count} records cannot be in {payload} bytes")
    elif count > payload:
        # A batch that compresses well below a byte per record is rare: only it is decompressed.
        _count_inflated(memoryview(batch)[HEADER_BYTES:], codec, count)


def _count_inflated(payload: memoryview, codec: int, count: int) -> None:
    if count * SMALLEST_RECORD > len(payload) * _MOST_FOR_A_BYTE.get(codec, 1):
        raise InvalidRecordError(f"{count} records cannot be in {len(payload)} compressed bytes")
    # Before decompressing: the cost of finding out must not be the sender's to choose.
    if count > MOST_RECORDS:
        raise OutputLimitError(MOST_BYTES)
    data = decompress(codec, payload, MOST_BYTES)
    found = _count(data)
    if found != count:
        raise InvalidRecordError(f"{count} records, but the batch holds {found}")


def _count(data: bytes) -> int:
    """The number of records by their lengths; ends above `MOST_RECORDS`.

    `InvalidRecordError` where one is shorter than any, or ends too late.
    """
    position, end, found = 0, len(data), 0
    try:
        while position < end and found <= MOST_RECORDS:
            number, shift = data[position], 7
            position += 1
            if number >= 0x80:
                number &= 0x7F
                while True:
                    byte = data[position]
                    position += 1
                    number |= (byte & 0x7F) << shift
                    if byte < 0x80:
                        break
                    shift += 7
                    if shift > 28:
                        raise InvalidRecordError("a record's length is longer than 32 bits")
            if number & 1 or number < 2 * (SMALLEST_RECORD - 1):
                raise InvalidRecordError("a record is shorter than any")
            position += number >> 1
            found += 1
    except IndexError:
        raise InvalidRecordError("a record goes on beyond its batch") from None
    if position > end:
        raise InvalidRecordError("a record goes on beyond its batch")
    return found
