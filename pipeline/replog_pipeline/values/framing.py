"""Confluent's wire format: what stands before a value that was written with a schema registry.

    magic byte 0; schema id, 4 bytes, big-endian; for Protobuf the message's indexes; the value

The indexes say which message of the file it is, from the outermost on: their number and each of
them as a zigzag varint; the single byte 0 is the first message.

Source: Confluent's documentation, "Wire format". Not here: what the id means (`registry`); schema
ids in headers, which leave the value as it is.
"""

from __future__ import annotations

from replog_pipeline.values.convert import FRAME, ConvertError

HEADER = 5
MAGIC = 0
MOST_INDEXES = 32
"""Messages within messages; no file nests so deep."""
LONGEST_VARINT = 5


def unframed(value: bytes) -> tuple[int, int]:
    """(schema id, where the rest begins). ConvertError for a value without the frame."""
    if len(value) < HEADER or value[0] != MAGIC:
        raise ConvertError(FRAME)
    return int.from_bytes(value[1:HEADER], "big"), HEADER


def message_indexes(value: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """(indexes, where the message begins)."""
    count, at = zigzag(value, at)
    if count == 0:
        return (0,), at
    if not 0 < count <= MOST_INDEXES:
        raise ConvertError(FRAME)
    found = []
    for _ in range(count):
        index, at = zigzag(value, at)
        found.append(index)
    return tuple(found), at


def zigzag(value: bytes, at: int) -> tuple[int, int]:
    """(number, where the next byte is)."""
    raw = shift = 0
    for position in range(at, min(len(value), at + LONGEST_VARINT)):
        raw |= (value[position] & 0x7F) << shift
        shift += 7
        if value[position] < 0x80:
            return (raw >> 1) ^ -(raw & 1), position + 1
    raise ConvertError(FRAME)
