"""Kafka's primitive types: what the generated readers and writers, the headers and the record
batches are made of.

Owns the byte layout of unsigned varints, compact strings, arrays of numbers, uuids and the section
of tagged fields.
1. A reader takes (buffer, position) and returns (value, next position); it raises WireError,
   IndexError or struct.error on what is not there. Entry points (`schema.decode`,
   `header.decode_request_header`) turn the last two into WireError.
2. No reader allocates for a declared length before it has seen that the bytes are there.
3. Unknown tagged fields are stepped over by their length; nothing of them is kept (CVE-2026-111115
   is what happens otherwise).
4. Bytes of a string that are not UTF-8 become U+FFFD, here and in the generated readers, as in
   Kafka: an old client with a Latin-1 group id would otherwise lose its connection and come back
   for ever. Writing gives U+FFFD's own bytes. An encoded surrogate becomes up to three of them;
   Java makes it one.
Source: Kafka protocol guide, KIP-482 (compact types, tagged fields); Kafka's ByteUtils for the
varints. Not here: messages (schema.py), record batches (records.py).
"""

import base64
from collections.abc import Callable
from struct import Struct, pack, unpack_from
from typing import Any, TypeAlias

from twisted_broker.wire.errors import ManyElements, WireError

Buffer: TypeAlias = bytes | bytearray | memoryview

NULL_UUID = bytes(16)
# Tags are handed out from 0 upwards by Kafka's own schemas, a dozen in the largest one. An honest
# peer of any later version stays far below this; without a limit a 100 MiB frame of empty tags
# would hold the reactor for seconds.
MAX_TAGGED_FIELDS = 1024
# Elements of all arrays of one request: far above a fetch of every partition a broker can host, and
# 100 MB of objects at most.
MAX_ELEMENTS = 100_000
# A few ms of decoding; a usual fetch of a follower stays below, and is read in one go.
FEW_ELEMENTS = 2_000
MAX_UINT32 = 0xFFFFFFFF

BYTES = tuple(bytes((number,)) for number in range(256))
_SHORT = 17
INT8_READERS, INT16_READERS, INT32_READERS, INT64_READERS = (
    tuple(Struct(f">{count}{letter}").unpack_from for count in range(_SHORT)) for letter in "bhiq"
)
INT8_WRITERS, INT16_WRITERS, INT32_WRITERS, INT64_WRITERS = (
    tuple(Struct(f">{count}{letter}").pack for count in range(_SHORT)) for letter in "bhiq"
)


def bad_length(field: str, length: int, remaining: int) -> WireError:
    """For a length or count that is negative, null where null is not allowed, or larger than
    what is left of the frame.
    """
    return WireError(f"{field}: length {length} with {remaining} bytes left")


def many_elements(field: str) -> WireError:
    """A request that is read in slices."""
    return ManyElements(f"{field}: more than {FEW_ELEMENTS} elements")


# Varints


def more_uvarint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint whose first byte (above 127) was already read; at most five
    bytes and 32 bits in all.
    """
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            if value > MAX_UINT32:
                break
            return value, position
    raise WireError("unsigned varint longer than 32 bits")


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Unsigned, 32 bits, at most five bytes."""
    first = buffer[position]
    if first < 128:
        return first, position + 1
    return more_uvarint(buffer, position + 1, first)


def uvarint(value: int) -> bytes:
    """The bytes of an unsigned varint; `value` is 0 or more."""
    if value < 128:
        return BYTES[value]
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Strings


def take(buffer: Buffer, position: int, length: int) -> tuple[bytes, int]:
    """`length` bytes, copied."""
    stop = position + length
    if length < 0 or stop > len(buffer):
        raise bad_length("bytes", length, len(buffer) - position)
    return bytes(buffer[position:stop]), stop


def read_compact_string(buffer: Buffer, position: int) -> tuple[str, int]:
    length, position = read_uvarint(buffer, position)
    raw, position = take(buffer, position, length - 1)
    return str(raw, "utf-8", "replace"), position


def compact_string(value: str | None) -> bytes:
    return b"\0" if value is None else compact_bytes(value.encode())


def compact_bytes(value: Buffer | None) -> bytes:
    return b"\0" if value is None else uvarint(len(value) + 1) + value


# Arrays of numbers, a letter of `struct` naming the element


def read_numbers(buffer: Buffer, position: int, count: int, letter: str) -> list[Any]:
    """`count` big-endian numbers; the caller has looked that they are there, and steps over
    them.
    """
    return list(unpack_from(f">{count}{letter}", buffer, position))


def numbers(values: list[Any], letter: str) -> bytes:
    return pack(f">{len(values)}{letter}", *values)


# Tagged fields


def tag_count(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """The number of tagged fields, whose first byte was already read; refuses a number no honest
    peer sends.
    """
    count = first
    if first > 127:
        count, position = more_uvarint(buffer, position, first)
    if count > MAX_TAGGED_FIELDS:
        raise WireError(f"{count} tagged fields")
    return count, position


def skip_tagged_fields(buffer: Buffer, position: int, first: int) -> int:
    """Steps over a section of tagged fields none of which is known, its first byte already read;
    the position after it.
    """
    count, position = tag_count(buffer, position, first)
    end = len(buffer)
    last = -1
    for _ in range(count):
        tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if tag <= last or position > end:
            raise bad_tag(tag)
        last = tag
    return position


def bad_tag(tag: int) -> WireError:
    """For a tagged field out of order, given twice, reaching beyond the frame, or not as long as
    it says.
    """
    return WireError(f"tagged field {tag} is misplaced or of a wrong length")


# Uuids: 16 bytes inside, 22 letters of URL-safe base64 for people and files, as in Kafka


def new_uuid(randbytes: Callable[[int], bytes]) -> bytes:
    """A random id (version 4) that is none of the reserved ones; `randbytes(count)` gives bytes."""
    while True:
        raw = bytearray(randbytes(16))
        raw[6], raw[8] = raw[6] & 0x0F | 0x40, raw[8] & 0x3F | 0x80
        # In text such an id begins with a dash, which Kafka's tools take for an option.
        if raw[0] >> 2 != 62:
            return bytes(raw)


def uuid_text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value)[:22].decode()


def uuid_from_text(text: str) -> bytes:
    """The 16 bytes; ValueError when `text` is no such uuid."""
    value = base64.b64decode(f"{text}==".encode(), b"-_", validate=True)
    if len(value) != 16 or not {"+", "/"}.isdisjoint(text):
        raise ValueError(f"not a uuid: {text!r}")
    return value
