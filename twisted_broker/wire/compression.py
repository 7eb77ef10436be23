"""The five codecs of Kafka, by their number in the attributes, each with a limit on what it may
decompress to.

1. No decompressor makes more than `max_output_bytes` plus a bounded piece, whatever its input
   declares: `OutputLimitError` beyond it, after work bounded by the limit and the input's size.
2. What cannot be decompressed, or ends too early, is an `InvalidRecordError`; a number that is no
   codec an `UnsupportedCodecError`.
3. A library is loaded when its codec is first used.
4. What we write, the Java client reads: lz4 in independent blocks of 64 KiB without checksums,
   snappy in xerial's stream framing.

Three libraries, on purpose: cramjam has all codecs, compresses as fast and as small, but limits its
output only by a buffer of known size. Java's frames do not name theirs, so buffers have to be
guessed and the work repeated: measured, lz4 of 1 KB to 1 MB takes 2.8 to 1.2 times as long to read,
zstd 0.9 to 2.0 times.

Source: Kafka's record formats "snappy, lz4", RELIABILITY 5.3 "decompression bomb"; Kafka's
`compress` package. Not here: snappy's and old lz4's framing (`snappy_framing`, `lz4_framing`), when
to compress.
"""

from __future__ import annotations

import zlib
from typing import Final

from .corrupt_record import InvalidRecordError, OutputLimitError, UnsupportedCodecError
from .lz4_framing import broken_to_standard, standard_to_broken
from .snappy_framing import snappy_compress, snappy_decompress

Buffer = bytes | bytearray | memoryview

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
CODEC_IDS: Final = {
    "none": NONE,
    "uncompressed": NONE,
    "gzip": GZIP,
    "snappy": SNAPPY,
    "lz4": LZ4,
    "zstd": ZSTD,
}

MAX_FRAMES: Final = 16  # concatenated gzip members or frames in one payload: no producer writes two
# 15 bits of window, plus 16: zlib's way to say "gzip header and trailer".
_GZIP_WINDOW: Final = 31
_ZSTD_PIECE: Final = 1024  # a piece decompresses to 32 MiB at most (4 bytes to a 128 KiB block)
_ZSTD_MAX_WINDOW: Final = 1 << 27  # what a zstd decoder accepts by default, and level 22 asks for
_FIRST_OUTPUT: Final = 64 * 1024


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` as one payload of this codec.

    `level`: gzip 1-9 (-1 default), lz4 1-17, zstd up to 22; None is the library's default.
    """
    if codec == GZIP:
        return _gzip_compress(data, level)
    if codec == SNAPPY:
        return snappy_compress(data)
    if codec == LZ4:
        return _lz4_compress(data, level)
    if codec == ZSTD:
        return _zstd_compress(data, level)
    if codec == NONE:
        return bytes(data)
    raise UnsupportedCodecError(f"there is no codec {codec}")


def decompress(codec: int, data: Buffer, max_output_bytes: int) -> bytes:
    """What `data` decompresses to.

    `OutputLimitError` beyond `max_output_bytes`, `InvalidRecordError`, `UnsupportedCodecError`.
    """
    if codec == GZIP:
        return _gzip_decompress(data, max_output_bytes)
    if codec == SNAPPY:
        return snappy_decompress(data, max_output_bytes)
    if codec == LZ4:
        return _lz4_decompress(data, max_output_bytes)
    if codec == ZSTD:
        return _zstd_decompress(data, max_output_bytes)
    if codec == NONE:
        if len(data) > max_output_bytes:
            raise OutputLimitError(max_output_bytes)
        return bytes(data)
    raise UnsupportedCodecError(f"there is no codec {codec}")


def compress_legacy(codec: int, data: Buffer, magic: int, level: int | None = None) -> bytes:
    """As `compress`, for a message set: no zstd, and lz4 in format 0 with the header checksum
    that old clients expect.
    """
    if codec == ZSTD:
        raise UnsupportedCodecError(f"zstd is not allowed in message format {magic}")
    payload = compress(codec, data, level)
    return standard_to_broken(payload) if codec == LZ4 and magic == 0 else payload


def decompress_legacy(codec: int, data: Buffer, magic: int, max_output_bytes: int) -> bytes:
    """As `decompress`, for a message set: no zstd, and in format 0 any lz4 header checksum."""
    if codec == ZSTD:
        raise UnsupportedCodecError(f"zstd is not allowed in message format {magic}")
    return decompress(
        codec, broken_to_standard(data) if codec == LZ4 and magic == 0 else data, max_output_bytes
    )


def _gzip_compress(data: Buffer, level: int | None) -> bytes:
    stream = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
    return stream.compress(data) + stream.flush()


def _gzip_decompress(data: Buffer, max_output_bytes: int) -> bytes:
    out: list[bytes] = []
    left = max_output_bytes
    for _ in range(MAX_FRAMES):
        stream = zlib.decompressobj(_GZIP_WINDOW)
        try:
            # One byte more than allowed shows that the limit is exceeded, without making the rest.
            piece = stream.decompress(data, left + 1)
        except zlib.error as error:
            raise InvalidRecordError(f"gzip: {error}") from None
        left -= len(piece)
        if left < 0:
            raise OutputLimitError(max_output_bytes)
        out.append(piece)
        if not stream.eof:
            raise InvalidRecordError("gzip: the stream ends too early")
        data = stream.unused_data
        if not data:
            return out[0] if len(out) == 1 else b"".join(out)
    raise InvalidRecordError(f"gzip: more than {MAX_FRAMES} members")


def _lz4_compress(data: Buffer, level: int | None) -> bytes:
    import lz4.frame

    return bytes(
        lz4.frame.compress(
            data,
            compression_level=level or 0,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
    )


def _lz4_decompress(data: Buffer, max_output_bytes: int) -> bytes:
    import lz4.frame

    stream = lz4.frame.LZ4FrameDecompressor()
    out: list[bytes] = []
    made, asked = 0, max(_FIRST_OUTPUT, 4 * len(data))
    while not stream.eof:
        try:
            piece = stream.decompress(data, max_length=min(asked, max_output_bytes - made + 1))
        except RuntimeError as error:
            raise InvalidRecordError(f"lz4: {error}") from None
        made += len(piece)
        if made > max_output_bytes:
            raise OutputLimitError(max_output_bytes)
        out.append(piece)
        # All input was given at once: a frame that wants more is truncated.
        if not stream.eof and (stream.needs_input or not piece):
            raise InvalidRecordError("lz4: the frame ends too early")
        data = b""
        # Few calls for a large payload, and never more memory than twice what came out.
        asked *= 2
    if stream.unused_data:
        raise InvalidRecordError("lz4: bytes after the frame")
    return out[0] if len(out) == 1 else b"".join(out)


def _zstd_compress(data: Buffer, level: int | None) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)


def _zstd_decompress(data: Buffer, max_output_bytes: int) -> bytes:
    import zstandard

    context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
    out: list[bytes] = []
    left, frames = max_output_bytes, 1
    stream = context.decompressobj()
    view = memoryview(data)
    try:
        # The stream has no output limit of its own: small pieces of input bound what one call
        # makes.
        for start in range(0, len(view), _ZSTD_PIECE):
            piece: Buffer = view[start : start + _ZSTD_PIECE]
            while piece:
                if stream.eof:
                    stream, frames = context.decompressobj(), frames + 1
                    if frames > MAX_FRAMES:
                        raise InvalidRecordError(f"zstd: more than {MAX_FRAMES} frames")
                inflated = stream.decompress(piece)
                left -= len(inflated)
                if left < 0:
                    raise OutputLimitError(max_output_bytes)
                if inflated:
                    out.append(inflated)
                piece = stream.unused_data if stream.eof else b""
    except zstandard.ZstdError as error:
        raise InvalidRecordError(f"zstd: {error}") from None
    if not stream.eof:
        raise InvalidRecordError("zstd: the frame ends too early")
    return out[0] if len(out) == 1 else b"".join(out)
