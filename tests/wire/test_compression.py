"""The codecs: round trips, what other libraries write, limits against bombs, laziness
(RELIABILITY 5.3 decompression bomb).
"""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kafka import codec as kafka_python

from twisted_broker.wire import compression as c
from twisted_broker.wire.corrupt_record import (
    CorruptRecordError,
    InvalidRecordError,
    OutputLimitError,
    UnsupportedCodecError,
)
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.lz4_framing import broken_to_standard, standard_to_broken
from twisted_broker.wire.message_set import MessageView

from .record_samples import GOLDEN

MIB = 1 << 20
CODECS = [c.GZIP, c.SNAPPY, c.LZ4, c.ZSTD]
TEXT = b"a line of a log that repeats itself, %d times\n" * 5000
THEIRS = {
    c.GZIP: (kafka_python.gzip_encode, kafka_python.gzip_decode),
    c.SNAPPY: (kafka_python.snappy_encode, kafka_python.snappy_decode),
    c.LZ4: (kafka_python.lz4_encode, kafka_python.lz4_decode),
    c.ZSTD: (kafka_python.zstd_encode, kafka_python.zstd_decode),
}


@given(st.integers(0, 4), st.binary(max_size=3000), st.integers(1, 40))
def test_round_trip(codec: int, data: bytes, times: int) -> None:
    """What is compressed comes back, and the limit is exact: its size is enough, one byte less
    is not.
    """
    data *= times
    payload = c.compress(codec, data)
    assert c.decompress(codec, payload, len(data)) == data
    assert c.decompress(codec, memoryview(payload), len(data) + 1) == data
    if data:
        with pytest.raises(OutputLimitError) as caught:
            c.decompress(codec, payload, len(data) - 1)
        assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_agrees(codec: int) -> None:
    """kafka-python inflates ours, and we inflate its."""
    encode, decode = THEIRS[codec]
    assert bytes(decode(c.compress(codec, TEXT))) == TEXT
    assert c.decompress(codec, bytes(encode(TEXT)), len(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("codec", "low", "high"), [(c.GZIP, 1, 9), (c.LZ4, 1, 12), (c.ZSTD, -5, 19)]
)
def test_levels(codec: int, low: int, high: int) -> None:
    """A higher level makes it smaller, and every level is read."""
    small, large = (
        c.compress(codec, TEXT[: 64 * 1024], high),
        c.compress(codec, TEXT[: 64 * 1024], low),
    )
    assert len(small) <= len(large)
    assert c.decompress(codec, small, MIB) == c.decompress(codec, large, MIB) == TEXT[: 64 * 1024]


def test_other_shapes_are_read() -> None:
    """Raw snappy, snappy in one block, lz4 with linked blocks, sizes and checksums, streamed
    zstd without a size, several members.
    """
    assert c.decompress(c.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), len(TEXT)) == TEXT
    assert (
        c.decompress(
            c.SNAPPY, bytes(kafka_python.snappy_encode(TEXT, xerial_blocksize=MIB)), len(TEXT)
        )
        == TEXT
    )
    linked = lz4.frame.compress(
        TEXT, block_size=lz4.frame.BLOCKSIZE_MAX4MB, content_checksum=True, block_checksum=True
    )
    assert c.decompress(c.LZ4, linked, len(TEXT)) == TEXT
    stream = zstandard.ZstdCompressor(level=22).compressobj()
    assert c.decompress(c.ZSTD, stream.compress(TEXT) + stream.flush(), len(TEXT)) == TEXT
    assert c.decompress(c.GZIP, gzip.compress(b"one ") + gzip.compress(b"two"), 100) == b"one two"
    assert (
        c.decompress(c.ZSTD, c.compress(c.ZSTD, b"one ") + c.compress(c.ZSTD, b"two"), 100)
        == b"one two"
    )


@pytest.mark.parametrize("codec", CODECS)
def test_cut_anywhere(codec: int) -> None:
    """A payload cut at any byte is an INVALID_RECORD; for snappy a cut between two blocks is a
    shorter payload.
    """
    payload = c.compress(codec, b"some text " * 20 + bytes(range(256)))
    for cut in range(len(payload)):
        if codec == c.SNAPPY and cut == 16:
            continue
        with pytest.raises(InvalidRecordError):
            c.decompress(codec, payload[:cut], MIB)


@given(st.integers(1, 4), st.binary(max_size=100), st.integers(0, 40))
def test_noise_is_typed(codec: int, noise: bytes, kept: int) -> None:
    """Noise, alone and behind a good beginning, raises only our errors."""
    for payload in (noise, c.compress(codec, b"0123456789" * 5)[:kept] + noise):
        try:
            assert len(c.decompress(codec, payload, MIB)) <= MIB
        except CorruptRecordError:
            continue


@pytest.mark.parametrize("codec", CODECS)
def test_rubbish_behind(codec: int) -> None:
    """Bytes after the end of the payload are refused: nobody writes them."""
    with pytest.raises(InvalidRecordError):
        c.decompress(codec, c.compress(codec, b"text") + b"\x07\x07\x07\x07\x07\x07\x07", MIB)


def test_many_members() -> None:
    """Ten thousand empty members in one payload are refused early: each would cost a
    decompressor.
    """
    for codec in (c.GZIP, c.ZSTD):
        with pytest.raises(InvalidRecordError):
            c.decompress(codec, c.compress(codec, b"") * 10_000, MIB)


def _gzip_bomb() -> bytes:
    zeros = bytes(MIB)
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = stream.compress(zeros) + stream.flush(zlib.Z_FULL_FLUSH)
    body = stream.compress(zeros) + stream.flush(zlib.Z_FULL_FLUSH)
    return head + body * ((MIB - len(head)) // len(body))


def _lz4_bomb() -> bytes:
    frame: bytes = lz4.frame.compress(
        bytes(4 * MIB), block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False, store_size=False
    )
    block = frame[7:-4]
    return frame[:7] + block * (MIB // len(block)) + frame[-4:]


def _lz4_that_declares() -> bytes:
    frame = bytearray(lz4.frame.compress(bytes(64 * MIB), store_size=True))
    struct.pack_into("<Q", frame, 6, 2**63)
    return broken_to_standard(frame)


def _zstd_bomb() -> bytes:
    block = (
        struct.pack("<I", 131072 << 3 | 1 << 1)[:3] + b"\x00"
    )  # 128 KiB of one byte, not the last block
    return b"\x28\xb5\x2f\xfd\x00\x38" + block * (MIB // len(block))


def _snappy_bomb() -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(MIB)))
    framed = struct.pack(">i", len(block)) + block
    return b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + framed * (MIB // len(framed))


BOMBS = {
    "gzip": (c.GZIP, _gzip_bomb),
    "lz4": (c.LZ4, _lz4_bomb),
    "zstd": (c.ZSTD, _zstd_bomb),
    "snappy": (c.SNAPPY, _snappy_bomb),
    "snappy that declares 4 GiB": (c.SNAPPY, lambda: b"\xff\xff\xff\xff\x0f" + bytes(100)),
    "lz4 that declares 2^63 bytes": (c.LZ4, _lz4_that_declares),
    "zstd with its size in front": (
        c.ZSTD,
        lambda: zstandard.ZstdCompressor().compress(bytes(64 * MIB)),
    ),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("limit", [0, 1000, 8 * MIB])
def test_bomb(name: str, limit: int) -> None:
    """1 MiB that inflates to up to 32 GiB costs a bounded amount of memory and time, then
    MESSAGE_TOO_LARGE.
    """
    codec, make = BOMBS[name]
    payload = make()
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(OutputLimitError):
            c.decompress(codec, payload, limit)
        spent, peak = time.process_time() - started, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * limit + 80 * MIB
    assert spent < 5


def test_codecs_that_do_not_exist() -> None:
    """Numbers beyond the five, and zstd in message formats 0 and 1, are
    UNSUPPORTED_COMPRESSION_TYPE.
    """
    calls: list[Callable[[], bytes]] = [
        lambda: c.compress(5, b""),
        lambda: c.decompress(7, b"", 10),
        lambda: c.compress_legacy(c.ZSTD, b"", 1),
        lambda: c.decompress_legacy(c.ZSTD, b"", 0, 10),
    ]
    for call in calls:
        with pytest.raises(UnsupportedCodecError) as caught:
            call()
        assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    for codec in (5, 7):
        for call in (
            lambda codec=codec: c.compress_legacy(codec, b"", 1),
            lambda codec=codec: c.decompress_legacy(codec, b"", 1, 10),
        ):
            with pytest.raises(UnsupportedCodecError, match=f"there is no codec {codec}"):
                call()


def test_lz4_of_format_0() -> None:
    """Format 0 carries the wrong header checksum, the Java client's; it is read whatever that
    byte is, the other formats check it.
    """
    ours = c.compress_legacy(c.LZ4, TEXT, 0)
    standard = c.compress_legacy(c.LZ4, TEXT, 1)
    assert ours != standard
    assert broken_to_standard(ours) == standard
    theirs = MessageView((GOLDEN / "legacy-v0-lz4.bin").read_bytes()).value
    assert theirs is not None
    assert standard_to_broken(broken_to_standard(theirs)) == theirs
    assert (
        broken_to_standard(theirs)[:7]
        == (MessageView((GOLDEN / "legacy-v1-lz4.bin").read_bytes()).value or b"")[:7]
    )
    assert ours[:7] == theirs[:7]
    for payload in (ours, standard, ours[:6] + b"\x00" + ours[7:]):
        assert c.decompress_legacy(c.LZ4, payload, 0, len(TEXT)) == TEXT
    with pytest.raises(InvalidRecordError):
        c.decompress_legacy(c.LZ4, ours, 1, len(TEXT))


@pytest.mark.parametrize("cut", range(19))
def test_lz4_of_format_0_cut(cut: int) -> None:
    """A frame of format 0 that ends in its header is refused, not tripped over; so with content
    size and dictionary flags.
    """
    full = bytearray(c.compress_legacy(c.LZ4, b"text", 0))
    for flags in (full[4], full[4] | 0x09):
        full[4] = flags
        with pytest.raises(CorruptRecordError):
            c.decompress_legacy(c.LZ4, bytes(full[:cut]), 0, MIB)


def test_libraries_come_with_their_codec() -> None:
    """Importing the records loads no compression library: each comes with the first use of its
    codec (memory and start time).
    """
    code = (
        "import sys, twisted_broker.wire.legacy as m\n"
        "assert not {'lz4', 'zstandard', 'cramjam'} & set(sys.modules), sys.modules.keys()\n"
        "from twisted_broker.wire.compression import compress\n"
        "compress(4, b'x'); assert 'zstandard' in sys.modules and 'lz4' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
