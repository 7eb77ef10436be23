"""Primitive types: known bytes, round trips, and what is refused."""

from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_broker.wire import primitives as p
from twisted_broker.wire.errors import WireError

UNSIGNED = [
    (0, "00"),
    (127, "7f"),
    (128, "8001"),
    (300, "ac02"),
    (2**31 - 1, "ffffffff07"),
    (2**32 - 1, "ffffffff0f"),
]


@pytest.mark.parametrize(("value", "raw"), UNSIGNED)
def test_unsigned_varints(value: int, raw: str) -> None:
    assert p.uvarint(value).hex() == raw
    assert p.read_uvarint(bytes.fromhex(raw), 0) == (value, len(raw) // 2)


@given(st.integers(0, 2**32 - 1))
def test_unsigned_varints_round_trip(number: int) -> None:
    assert p.read_uvarint(b"x" + p.uvarint(number), 1) == (number, 1 + len(p.uvarint(number)))


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
    with pytest.raises(WireError):
        p.read_uvarint(raw, 0)


@given(st.text(max_size=200))
def test_strings_round_trip(text: str) -> None:
    raw = p.compact_string(text)
    assert p.read_compact_string(raw, 0) == (text, len(raw))


@pytest.mark.parametrize("raw", [b"\0abc", b"\5abc"])
def test_bad_lengths_are_refused(raw: bytes) -> None:
    """Null, which this reader does not allow, and beyond the end."""
    with pytest.raises(WireError):
        p.read_compact_string(raw, 0)


def test_strings_that_are_not_utf_8_are_mended() -> None:
    """U+FFFD in place of what does not fit."""
    assert p.read_compact_string(b"\3a\xe9", 0) == ("a\ufffd", 3)


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
