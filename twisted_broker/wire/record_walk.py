"""The records inside a batch (magic 2): a lazy walk over uncompressed record bytes, and the varints
they are made of.

1. A record's fields end exactly where its length says; all records together end exactly where the
   section ends. Anything else is an `InvalidRecordError`.
2. A length, a count or a varint allocates nothing before it is checked against the bytes that are
   left. An int is at most 5 varint bytes and 32 bits, a long 10 and 64: Python's integers do not
   grow with the input.
3. Any negative key or value length is null, as Kafka reads it; a header key cannot be null.
4. Header keys are text; bytes that are not UTF-8 pass through unchanged (surrogateescape), so that
   a rewritten batch is the same bytes.

Source: Kafka's record formats "record in v2", RELIABILITY 5.3 "varints", "record batches"; Kafka's
DefaultRecord. Not here: decompression, the header.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .corrupt_record import InvalidRecordError

Headers = list[tuple[str, bytes | None]]

MAX_INT64: Final = 2**63 - 1
MIN_INT64: Final = -(2**63)


class Record:
    """One record as a reader sees it: absolute offset, timestamp in ms, `None` for a null key or
    value.
    """

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    def __init__(
        self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        same_place = self.offset == other.offset and self.timestamp == other.timestamp
        return (
            same_place
            and self.key == other.key
            and self.value == other.value
            and self.headers == other.headers
        )

    def __repr__(self) -> str:
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )


def _read_raw(data: bytes | memoryview, position: int, most_bytes: int) -> tuple[int, int]:
    """A varint before zigzag, of at most 5 bytes (32 bits) or 10 (64): (number, position after
    it).
    """
    byte = data[position]
    number = byte & 0x7F
    shift = 7
    last_shift = 7 * (most_bytes - 1)
    while byte & 0x80:
        position += 1
        byte = data[position]
        number |= (byte & 0x7F) << shift
        # The last byte holds the top 4 bits of an int (1 of a long); a set continuation bit is
        # above both limits, so this ends the loop, too.
        if shift >= last_shift and byte > (0x0F if most_bytes == 5 else 0x01):
            raise InvalidRecordError(
                f"a varint is longer than {32 if most_bytes == 5 else 64} bits", position
            )
        shift += 7
    return number, position + 1


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """A zigzag int of at most 5 bytes: (value, position after it). `InvalidRecordError` when
    longer, `IndexError` when the bytes end.
    """
    number, position = _read_raw(data, position, 5)
    return (number >> 1) ^ -(number & 1), position


def walk_records(
    data: bytes,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int | None,
    sequential: bool = False,
) -> Iterator[Record]:
    """The `count` records in `data[start:end]`, in order, decoded as they are consumed.

    `log_append_time` (ms), when given, is every record's timestamp. `sequential`: the offset deltas
    must be exactly 0, 1, 2 ..., as a producer must number them; otherwise (compacted batches have
    holes) they are taken as they come. Raises `InvalidRecordError` at the first record that is
    broken, after the good ones before it.
    """
    # A count from outside allocates nothing before this check. The smallest record has 7 bytes:
    # length, attributes, two deltas, two null lengths, header count.
    if count < 0 or count > (end - start) // 7:
        raise InvalidRecordError(f"{count} records cannot be in {end - start} bytes", start)
    position = start
    first = 0
    try:
        # One body for all fields, and varints of one or two bytes read in line: a call costs as
        # much as the rest of a field.
        for index in range(count):
            first = position
            number = data[position]
            position += 1
            if number >= 0x80:
                following = data[position]
                if following < 0x80:
                    number += (following << 7) - 0x80
                    position += 1
                else:
                    number, position = _read_raw(data, first, 5)
            record_end = position + (number >> 1)
            if number & 1 or record_end > end:
                raise InvalidRecordError(
                    f"record length {(number >> 1) ^ -(number & 1)}, {end - position} bytes "
                    "are left",
                    first,
                )
            position += 1  # attributes: unused, whatever they say

            number = data[position]
            position += 1
            if number >= 0x80:
                following = data[position]
                if following < 0x80:
                    number += (following << 7) - 0x80
                    position += 1
                else:
                    number, position = _read_raw(data, position - 1, 10)
            timestamp = base_timestamp + ((number >> 1) ^ -(number & 1))
            if log_append_time is not None:
                timestamp = log_append_time
            elif timestamp > MAX_INT64 or timestamp < MIN_INT64:
                raise InvalidRecordError("a record's timestamp leaves 64 bits", first)

            number = data[position]
            position += 1
            if number >= 0x80:
                following = data[position]
                if following < 0x80:
                    number += (following << 7) - 0x80
                    position += 1
                else:
                    number, position = _read_raw(data, position - 1, 5)
            offset_delta = (number >> 1) ^ -(number & 1)
            if sequential and offset_delta != index:
                raise InvalidRecordError(
                    f"record {index} of the batch has offset delta {offset_delta}", first
                )

            key: bytes | None = None
            number = data[position]
            position += 1
            if number >= 0x80:
                number, position = _read_raw(data, position - 1, 5)
            if not number & 1:
                field_end = position + (number >> 1)
                if field_end > record_end:
                    raise InvalidRecordError(
                        f"key of {number >> 1} bytes in a record with {record_end - position} left",
                        first,
                    )
                key = data[position:field_end]
                position = field_end

            value: bytes | None = None
            number = data[position]
            position += 1
            if number >= 0x80:
                following = data[position]
                if following < 0x80:
                    number += (following << 7) - 0x80
                    position += 1
                else:
                    number, position = _read_raw(data, position - 1, 5)
            if not number & 1:
                field_end = position + (number >> 1)
                if field_end > record_end:
                    raise InvalidRecordError(
                        f"value of {number >> 1} bytes in a record with "
                        f"{record_end - position} left",
                        first,
                    )
                value = data[position:field_end]
                position = field_end

            headers: Headers = []
            if data[position]:
                position = _read_headers(data, position, record_end, headers)
            else:
                position += 1
            if position != record_end:
                raise InvalidRecordError(
                    f"a record's fields end {position - record_end} bytes behind its length", first
                )
            yield Record(base_offset + offset_delta, timestamp, key, value, headers)
    except IndexError:
        raise InvalidRecordError("a record goes on beyond its batch", first) from None
    if position != end:
        raise InvalidRecordError(f"{end - position} bytes after the last record", position)


def walk_key_values(
    data: bytes, start: int, end: int, count: int
) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """(offset delta, key, value) of the `count` records in `data[start:end]`: for who reads
    millions and needs nothing else.

    Timestamps and headers are stepped over unseen. Raises `InvalidRecordError` at the first record
    that is broken.
    """
    if count < 0 or count > (end - start) // 7:
        raise InvalidRecordError(f"{count} records cannot be in {end - start} bytes", start)
    position = first = start
    try:
        for _ in range(count):
            first = position
            number = data[position]
            position += 1
            if number >= 0x80:
                following = data[position]
                if following < 0x80:
                    number += (following << 7) - 0x80
                    position += 1
                else:
                    number, position = _read_raw(data, first, 5)
            record_end = position + (number >> 1)
            if number & 1 or record_end > end:
                raise InvalidRecordError(
                    f"record length {(number >> 1) ^ -(number & 1)}, {end - position} bytes "
                    "are left",
                    first,
                )
            position += 1  # attributes
            while data[position] >= 0x80:  # the timestamp's delta
                position += 1
            delta = data[position + 1]
            position += 2
            if delta >= 0x80:
                following = data[position]
                if following < 0x80:
                    delta += (following << 7) - 0x80
                    position += 1
                else:
                    delta, position = _read_raw(data, position - 1, 5)
            key: bytes | None = None
            number = data[position]
            position += 1
            if number >= 0x80:
                number, position = _read_raw(data, position - 1, 5)
            if not number & 1:
                field_end = position + (number >> 1)
                key = data[position:field_end]
                position = field_end
            value: bytes | None = None
            number = data[position]
            position += 1
            if number >= 0x80:
                following = data[position]
                if following < 0x80:
                    number += (following << 7) - 0x80
                    position += 1
                else:
                    number, position = _read_raw(data, position - 1, 5)
            if not number & 1:
                field_end = position + (number >> 1)
                value = data[position:field_end]
                position = field_end
            if position >= record_end:  # at least the number of headers follows
                raise InvalidRecordError("a record's fields end beyond its length", first)
            yield (delta >> 1) ^ -(delta & 1), key, value
            position = record_end
    except IndexError:
        raise InvalidRecordError("a record goes on beyond its batch", first) from None
    if position != end:
        raise InvalidRecordError(f"{end - position} bytes after the last record", position)


def _read_headers(data: bytes, position: int, end: int, headers: Headers) -> int:
    """Read the header count and the headers into `headers`; the position after them."""
    count, position = read_varint(data, position)
    if count < 0 or count > (end - position) // 2:  # the smallest header: empty key, null value
        raise InvalidRecordError(
            f"{count} headers in a record with {end - position} bytes left", position
        )
    for _ in range(count):
        number = data[position]
        position += 1
        if number >= 0x80:
            number, position = _read_raw(data, position - 1, 5)
        field_end = position + (number >> 1)
        if number & 1 or field_end > end:
            raise InvalidRecordError(
                f"header key length {(number >> 1) ^ -(number & 1)}, {end - position} bytes "
                "are left",
                position,
            )
        key = data[position:field_end].decode("utf-8", "surrogateescape")
        number = data[field_end]
        position = field_end + 1
        if number >= 0x80:
            number, position = _read_raw(data, position - 1, 5)
        if number & 1:
            headers.append((key, None))
            continue
        field_end = position + (number >> 1)
        if field_end > end:
            raise InvalidRecordError(
                f"header value length {number >> 1}, {end - position} bytes are left", position
            )
        headers.append((key, data[position:field_end]))
        position = field_end
    return position
