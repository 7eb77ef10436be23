"""Primitive types: known bytes, round trips, and what is refused."""

import struct
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_broker.wire import primitives as p
from twisted_broker.wire.errors import WireError

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


UNSIGNED = [
    (0, "00"),
    (127, "7f"),
    (128, "8001"),
    (300, "ac02"),
    (2**31 - 1, "ffffffff07"),
    (2**32 - 1, "ffffffff0f"),
]
ZIGZAG = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (-64, "7f"),
    (64, "8001"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
]


@pytest.mark.parametrize(("value", "raw"), UNSIGNED)
def test_unsigned_varints(value: int, raw: str) -> None:
    assert p.uvarint(value).hex() == raw
    assert p.read_uvarint(bytes.fromhex(raw), 0) == (value, len(raw) // 2)


@pytest.mark.parametrize(("value", "raw"), ZIGZAG)
def test_zigzag_varints(value: int, raw: str) -> None:
    assert p.varint(value).hex() == raw
    assert p.varlong(value).hex() == raw
    assert p.read_varint(bytes.fromhex(raw), 0) == (value, len(raw) // 2)


@given(INT32, INT64)
def test_varints_round_trip(small: int, large: int) -> None:
    """Sizes are known without writing."""
    assert p.read_varint(b"x" + p.varint(small), 1) == (small, 1 + p.varint_size(small))
    assert p.read_varlong(b"x" + p.varlong(large), 1) == (large, 1 + p.varlong_size(large))
    assert p.uvarint_size(abs(small)) == len(p.uvarint(abs(small)))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80" * 5 + b"\0",
        b"\xff" * 5 + b"\1",
        b"\xff\xff\xff\xff\x1f",
        b"\x80\x80\x80\x80\x10",  # 2^32
        b"\xff" * 2000,
    ],
)
def test_over_long_varints_are_refused(raw: bytes) -> None:
    """At most five bytes and 32 bits; numbers never grow."""
    for read in (p.read_uvarint, p.read_varint):
        with pytest.raises(WireError):
            read(raw, 0)


@pytest.mark.parametrize("raw", [b"\x80" * 10 + b"\0", b"\xff" * 9 + b"\2", b"\xff" * 2000])
def test_over_long_varlongs_are_refused(raw: bytes) -> None:
    """At most ten bytes and 64 bits."""
    with pytest.raises(WireError):
        p.read_varlong(raw, 0)


@given(st.none() | st.text(max_size=200))
def test_strings_round_trip(text: str | None) -> None:
    assert p.read_nullable_string(p.string(text), 0) == (text, len(p.string(text)))
    assert p.read_compact_nullable_string(p.compact_string(text), 0) == (
        text,
        len(p.compact_string(text)),
    )
    if text is not None:
        assert (
            p.read_string(p.string(text), 0)[0]
            == p.read_compact_string(p.compact_string(text), 0)[0]
            == text
        )


@given(st.none() | st.binary(max_size=200))
def test_bytes_round_trip(raw: bytes | None) -> None:
    assert p.read_nullable_bytes(p.byte_string(raw), 0) == (raw, len(p.byte_string(raw)))
    assert p.read_compact_nullable_bytes(p.compact_bytes(raw), 0) == (
        raw,
        len(p.compact_bytes(raw)),
    )
    if raw is not None:
        assert (
            p.read_bytes(p.byte_string(raw), 0)[0]
            == p.read_compact_bytes(memoryview(p.compact_bytes(raw)), 0)[0]
            == raw
        )


READERS = [
    (p.read_string, ">h"),
    (p.read_nullable_string, ">h"),
    (p.read_bytes, ">i"),
    (p.read_nullable_bytes, ">i"),
]


@pytest.mark.parametrize(("read", "letter"), READERS)
def test_bad_lengths_are_refused(read: object, letter: str) -> None:
    """Negative and beyond the end; -1 only where null is not allowed."""
    bad = [-2, 4, 32767] + ([-1] if read in (p.read_string, p.read_bytes) else [])
    for length in bad:
        with pytest.raises(WireError):
            read(struct.pack(letter, length) + b"abc", 0)  # type: ignore[operator]


def test_bad_compact_lengths_are_refused() -> None:
    for read in (p.read_compact_string, p.read_compact_bytes):
        for raw in (b"\0abc", b"\5abc"):
            with pytest.raises(WireError):
                read(raw, 0)


def test_strings_that_are_not_utf_8_are_mended() -> None:
    """U+FFFD in place of what does not fit, in both forms of a string."""
    assert p.read_compact_string(b"\3a\xe9", 0) == ("a\ufffd", 3)
    assert p.read_nullable_string(b"\0\2\xe9b", 0) == ("\ufffdb", 4)


def test_uuids_as_text() -> None:
    """As Kafka prints them: 22 letters of URL-safe base64."""
    assert p.uuid_text(p.NULL_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    raw = bytes(range(0xF0, 0x100))
    assert p.uuid_text(raw) == "8PHy8_T19vf4-fr7_P3-_w"
    assert p.uuid_from_text(p.uuid_text(raw)) == raw


@pytest.mark.parametrize("byte", [0x00, 0x5A, 0xFF])
def test_a_new_uuid_is_of_version_4(byte: int) -> None:
    """As Kafka's `Uuid.randomUuid`, whatever the random bytes are."""
    raw = p.new_uuid(lambda count: bytes([byte]) * count)
    assert (UUID(bytes=raw).version, UUID(bytes=raw).variant) == (4, RFC_4122)
    assert raw[:6] == bytes([byte]) * 6


def test_a_new_uuid_does_not_look_like_an_option() -> None:
    """Kafka's tools take an id that begins with a dash for one."""
    drawn = iter([b"\xf8" * 16, b"\x11" * 16])
    assert p.uuid_text(p.new_uuid(lambda count: next(drawn)))[0] == "E"


@pytest.mark.parametrize(
    "text",
    ["", "AAAA", "AAAAAAAAAAAAAAAAAAAAAAAA", "!AAAAAAAAAAAAAAAAAAAAA", "8PHy8/T19vf4+fr7/P3+/w"],
)
def test_what_is_not_a_uuid(text: str) -> None:
    with pytest.raises(ValueError):
        p.uuid_from_text(text)
