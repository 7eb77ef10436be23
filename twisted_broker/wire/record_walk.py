"""The records inside a batch (magic 2): a lazy walk over uncompressed record bytes, and the varints they are made of.

1. A record's fields end exactly where its length says; all records together end exactly where the section ends. Anything else is an
   `InvalidRecordError`.
2. A length, a count or a varint allocates nothing before it is checked against the bytes that are left. An int is at most 5 varint bytes and 32
   bits, a long 10 and 64: Python's integers do not grow with the input.
3. Any negative key or value length is null, as Kafka reads it; a header key cannot be null.
4. Header keys are text; bytes that are not UTF-8 pass through unchanged (surrogateescape), so that a rewritten batch is the same bytes.

Source: FEATURES 5.2 "record in v2", RELIABILITY 5.3 "varints", "record batches"; Kafka's DefaultRecord. Left out: decompression, the header.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .corrupt_record import InvalidRecordError

Headers = list[tuple[str, bytes | None]]

MAX_INT64: Final = 2**63 - 1
MIN_INT64: Final = -(2**63)


class Record:
    """One record as a reader sees it: absolute offset, timestamp in ms, `None` for a null key or value."""

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    def __init__(self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        same_place = self.offset == other.offset and self.timestamp == other.timestamp
        return same_place and self.key == other.key and self.value == other.value and self.headers == other.headers

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag int of at most 5 bytes: (value, position after it). `InvalidRecordError` when longer, `IndexError` when the bytes end."""
    byte = data[position]
    raw = byte & 0x7F
    shift = 7
    while byte & 0x80:
        position += 1
        byte = data[position]
        raw |= (byte & 0x7F) << shift
        shift += 7
        if shift >= 35 and byte > 0x0F:
            raise InvalidRecordError("a varint is longer than 32 bits", position)
    return (raw >> 1) ^ -(raw & 1), position + 1


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag long of at most 10 bytes: (value, position after it). `InvalidRecordError` when longer, `IndexError` when the bytes end."""
    byte = data[position]
    raw = byte & 0x7F
    shift = 7
    while byte & 0x80:
        position += 1
        byte = data[position]
        raw |= (byte & 0x7F) << shift
        shift += 7
        if shift >= 70 and byte > 0x01:
            raise InvalidRecordError("a varlong is longer than 64 bits", position)
    return (raw >> 1) ^ -(raw & 1), position + 1


def walk_records(
    data: bytes, start: int, end: int, count: int, base_offset: int, base_timestamp: int, log_append_time: int | None, sequential: bool = False
) -> Iterator[Record]:
    """The `count` records in `data[start:end]`, in order, decoded as they are asked for.

    `log_append_time` (ms), when given, is every record's timestamp. `sequential`: the offset deltas must be exactly 0, 1, 2 ..., as a producer
    must number them; otherwise (compacted batches have holes) they are taken as they come.
    Raises `InvalidRecordError` at the first record that is broken, after the good ones before it.
    """
    if count < 0 or count > (end - start) // 7:  # the smallest record: length, attributes, two deltas, two null lengths, header count
        raise InvalidRecordError(f"{count} records cannot be in {end - start} bytes", start)
    position = start
    for index in range(count):
        try:
            record, position = _read_record(data, position, end, base_offset, base_timestamp, log_append_time)
        except IndexError:
            raise InvalidRecordError("a record goes on beyond its batch", position) from None
        if sequential and record.offset != base_offset + index:
            raise InvalidRecordError(f"record {index} of the batch has offset delta {record.offset - base_offset}", position)
        yield record
    if position != end:
        raise InvalidRecordError(f"{end - position} bytes after the last record", position)


def _read_record(data: bytes, start: int, section_end: int, base_offset: int, base_timestamp: int, log_append_time: int | None) -> tuple[Record, int]:
    """One record and the position after it. The one-byte varints are read in line: most are, and a call costs as much as the rest."""
    position = start + 1
    length = data[start]
    if length < 0x80:
        length = (length >> 1) ^ -(length & 1)
    else:
        length, position = read_varint(data, start)
    end = position + length
    if length < 0 or end > section_end:
        raise InvalidRecordError(f"record length {length}, {section_end - position} bytes are left", start)
    position += 1  # attributes: unused, whatever they say

    delta = data[position]
    if delta < 0x80:
        position += 1
        timestamp = base_timestamp + ((delta >> 1) ^ -(delta & 1))
    else:
        delta, position = read_varlong(data, position)
        timestamp = base_timestamp + delta
    if log_append_time is not None:
        timestamp = log_append_time
    elif timestamp > MAX_INT64 or timestamp < MIN_INT64:
        raise InvalidRecordError("a record's timestamp leaves 64 bits", start)

    offset_delta = data[position]
    if offset_delta < 0x80:
        position += 1
        offset_delta = (offset_delta >> 1) ^ -(offset_delta & 1)
    else:
        offset_delta, position = read_varint(data, position)

    size = data[position]
    if size < 0x80:
        position += 1
        size = (size >> 1) ^ -(size & 1)
    else:
        size, position = read_varint(data, position)
    key: bytes | None = None
    if size >= 0:
        if size > end - position:
            raise InvalidRecordError(f"key of {size} bytes in a record with {end - position} left", start)
        key = data[position : position + size]
        position += size

    size = data[position]
    if size < 0x80:
        position += 1
        size = (size >> 1) ^ -(size & 1)
    else:
        size, position = read_varint(data, position)
    value: bytes | None = None
    if size >= 0:
        if size > end - position:
            raise InvalidRecordError(f"value of {size} bytes in a record with {end - position} left", start)
        value = data[position : position + size]
        position += size

    headers: Headers = []
    if data[position]:
        position = _read_headers(data, position, end, headers)
    else:
        position += 1
    if position != end:
        raise InvalidRecordError(f"record of length {length} whose fields take {length + position - end} bytes", start)
    return Record(base_offset + offset_delta, timestamp, key, value, headers), end


def _read_headers(data: bytes, position: int, end: int, headers: Headers) -> int:
    """Read the header count and the headers into `headers`; the position after them."""
    count, position = read_varint(data, position)
    if count < 0 or count > (end - position) // 2:  # the smallest header: empty key, null value
        raise InvalidRecordError(f"{count} headers in a record with {end - position} bytes left", position)
    for _ in range(count):
        size, position = read_varint(data, position)
        if size < 0 or size > end - position:
            raise InvalidRecordError(f"header key length {size}, {end - position} bytes are left", position)
        key = data[position : position + size].decode("utf-8", "surrogateescape")
        position += size
        size, position = read_varint(data, position)
        if size < 0:
            headers.append((key, None))
            continue
        if size > end - position:
            raise InvalidRecordError(f"header value length {size}, {end - position} bytes are left", position)
        headers.append((key, data[position : position + size]))
        position += size
    return position
