"""The header checksum of an lz4 frame, right and wrong: message format 0 carries the wrong one on
purpose.

1. Right: the second byte of XXH32 over the frame descriptor. Wrong, as the first clients wrote it
   and format 0 keeps: over magic and descriptor.
2. On reading format 0 the byte is not checked, it is corrected; what is no lz4 frame passes
   through, for the decoder to refuse.

Source: KIP-57, Kafka's Lz4BlockInputStream and Lz4BlockOutputStream. Not here: the blocks.
"""

from __future__ import annotations

from typing import Final

Buffer = bytes | bytearray | memoryview

FRAME_MAGIC: Final = b"\x04\x22\x4d\x18"
_FLAGS_AT: Final = 4
_CONTENT_SIZE_FLAG: Final = 0x08
_DICTIONARY_FLAG: Final = 0x01
_MASK: Final = 0xFFFFFFFF


def standard_to_broken(frame: bytes) -> bytes:
    """The frame with the checksum that format 0 carries."""
    at = _checksum_at(frame)
    return frame[:at] + bytes((xxh32_of_short(frame[:at]) >> 8 & 0xFF,)) + frame[at + 1 :]


def broken_to_standard(frame: Buffer) -> bytes:
    """The frame with the right checksum, whatever it had."""
    out = bytes(frame)
    if len(out) < 7 or out[:_FLAGS_AT] != FRAME_MAGIC:
        return out
    at = _checksum_at(out)
    return out[:at] + bytes((xxh32_of_short(out[_FLAGS_AT:at]) >> 8 & 0xFF,)) + out[at + 1 :]


def _checksum_at(frame: bytes) -> int:
    flags = frame[_FLAGS_AT]
    return 6 + (8 if flags & _CONTENT_SIZE_FLAG else 0) + (4 if flags & _DICTIONARY_FLAG else 0)


def xxh32_of_short(data: bytes) -> int:
    """XXH32 with seed 0 of fewer than 16 bytes: all that a frame descriptor needs."""
    assert len(data) < 16
    value = (374761393 + len(data)) & _MASK
    position = 0
    while position + 4 <= len(data):
        value = (
            value + int.from_bytes(data[position : position + 4], "little") * 3266489917
        ) & _MASK
        value = _rotate(value, 17) * 668265263 & _MASK
        position += 4
    for byte in data[position:]:
        value = (value + byte * 374761393) & _MASK
        value = _rotate(value, 11) * 2654435761 & _MASK
    value = (value ^ value >> 15) * 2246822519 & _MASK
    value = (value ^ value >> 13) * 3266489917 & _MASK
    return value ^ value >> 16


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
