"""Snappy as Kafka's clients use it: xerial's stream framing around raw blocks; read also without
the framing.

1. A block's declared length is checked against what is left of the limit before the block is
   touched.
2. We always write the framing, in blocks of 32 KiB as the Java client does.

Source: Kafka's record formats "snappy, lz4"; snappy-java's SnappyCodec, SnappyOutputStream. Not
here: snappy's own framing format, which Kafka does not use.
"""

from __future__ import annotations

import struct
from typing import Final

from .corrupt_record import InvalidRecordError, OutputLimitError

Buffer = bytes | bytearray | memoryview

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_BLOCK_BYTES: Final = 32 * 1024
_LENGTH: Final = struct.Struct(">i")


def snappy_compress(data: Buffer) -> bytes:
    """`data` as xerial's header and a length and a raw block per 32 KiB."""
    from cramjam import snappy

    parts: list[bytes] = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(view), _BLOCK_BYTES):
        block = bytes(snappy.compress_raw(view[start : start + _BLOCK_BYTES]))
        parts.append(_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def snappy_decompress(data: Buffer, max_output_bytes: int) -> bytes:
    """What framed or raw snappy decompresses to.

    `InvalidRecordError` when broken, `OutputLimitError` when it declares more than the limit.
    """
    view = memoryview(data)
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _inflate_block(view, max_output_bytes, max_output_bytes)
    out: list[bytes] = []
    left = max_output_bytes
    position, end = len(_XERIAL_HEADER), len(view)
    if position > end:
        raise InvalidRecordError("snappy: the stream header ends too early")
    while position < end:
        if end - position < 4:
            raise InvalidRecordError("snappy: a block's length ends too early")
        size = _LENGTH.unpack_from(view, position)[0]
        position += 4
        if size < 0 or size > end - position:
            raise InvalidRecordError(f"snappy: block of {size} bytes, {end - position} are left")
        out.append(_inflate_block(view[position : position + size], left, max_output_bytes))
        left -= len(out[-1])
        position += size
    return b"".join(out)


def _inflate_block(block: memoryview, left: int, max_output_bytes: int) -> bytes:
    from cramjam import DecompressionError, snappy

    try:
        if snappy.decompress_raw_len(block) > left:
            raise OutputLimitError(max_output_bytes)
        return bytes(snappy.decompress_raw(block))
    except DecompressionError as error:
        raise InvalidRecordError(f"snappy: {error}") from None
