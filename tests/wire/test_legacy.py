"""Message sets v0 and v1, read and written; against bytes of Kafka's Java client, and
kafka-python.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatch, LegacyRecordBatchBuilder

from twisted_broker.wire import legacy as m
from twisted_broker.wire.compression import LZ4, compress_legacy
from twisted_broker.wire.corrupt_record import (
    CorruptRecordError,
    InvalidRecordError,
    OutputLimitError,
    UnsupportedCodecError,
)
from twisted_broker.wire.records import CREATE_TIME, LOG_APPEND_TIME, Record

from .record_samples import GOLDEN, content, golden_record

MIB = 1 << 20
CODECS = ["none", "gzip", "snappy", "lz4"]
APPEND_TIME = 1_700_000_099_000
FORMATS = [
    (magic, codec, append_time)
    for magic in (0, 1)
    for codec in range(4)
    for append_time in (False, True)[: magic + 1]
]
legacy_rows = st.lists(st.tuples(st.integers(0, 2**45), content, content), min_size=1, max_size=10)


def expected(magic: int, append_time: bool = False, count: int = 8) -> list[Record]:
    fixed = -1 if magic == 0 else APPEND_TIME if append_time else None
    return [golden_record(index, 100 + index, fixed, with_headers=False) for index in range(count)]


def deep(buffer: bytes, limit: int = MIB) -> list[Record]:
    return [
        record
        for message in m.iterate_messages(buffer, check_crc=True)
        for record in message.records(limit, check_crc=True)
    ]


@pytest.mark.parametrize(("magic", "codec", "append_time"), FORMATS)
def test_reads_what_the_java_client_wrote(magic: int, codec: int, append_time: bool) -> None:
    """Message sets of Kafka's own builder give back their records: absolute offsets, timestamps,
    with every codec (old lz4 framing too).
    """
    raw = (
        GOLDEN / f"legacy-v{magic}-{CODECS[codec]}{'-append-time' if append_time else ''}.bin"
    ).read_bytes()
    assert deep(raw) == expected(magic, append_time)
    messages = list(m.iterate_messages(raw))
    assert {(message.magic, message.codec) for message in messages} == {(magic, codec)}
    assert {message.timestamp_type for message in messages} == {
        LOG_APPEND_TIME if append_time else CREATE_TIME
    }
    assert messages[-1].last_offset == 107
    assert b"".join(message.to_bytes() for message in messages) == raw


@pytest.mark.parametrize(("magic", "codec", "append_time"), FORMATS)
def test_writes_the_java_clients_bytes(magic: int, codec: int, append_time: bool) -> None:
    """Uncompressed sets are the Java client's bytes; a wrapper has its offset, timestamp and
    attributes.
    """
    raw = (
        GOLDEN / f"legacy-v{magic}-{CODECS[codec]}{'-append-time' if append_time else ''}.bin"
    ).read_bytes()
    kind, time_ms = (LOG_APPEND_TIME, APPEND_TIME) if append_time else (CREATE_TIME, -1)
    ours = m.build_message_set(expected(magic), magic, codec, kind, time_ms)
    if codec == 0:
        assert ours == raw
    wrapper, theirs = m.MessageView(ours), m.MessageView(raw)
    assert (wrapper.offset, wrapper.attributes, wrapper.timestamp, wrapper.key) == (
        theirs.offset,
        theirs.attributes,
        theirs.timestamp,
        theirs.key,
    )
    assert deep(ours) == expected(magic, append_time)


@given(
    legacy_rows,
    st.sampled_from(
        [(magic, codec) for magic in (0, 1) for codec in range(4) if magic or codec != LZ4]
    ),
)
def test_kafka_python_agrees(rows: list[Any], kind: tuple[int, int]) -> None:
    """kafka-python reads what we write, and we read its; uncompressed bytes are equal.

    (lz4 in format 0 it leaves to another package.)
    """
    magic, codec = kind
    theirs = LegacyRecordBatchBuilder(magic, codec, 1 << 30)
    for index, (timestamp, key, value) in enumerate(rows):
        theirs.append(index, timestamp, key, value)
    their_bytes = bytes(theirs.build())
    records = [
        Record(index, timestamp if magic else -1, key, value, [])
        for index, (timestamp, key, value) in enumerate(rows)
    ]
    our_bytes = m.build_message_set(records, magic, codec)
    if codec == 0:
        assert our_bytes == their_bytes
    assert [(record.key, record.value, record.timestamp) for record in deep(their_bytes)] == [
        (record.key, record.value, record.timestamp) for record in records
    ]
    assert deep(our_bytes) == records
    read = [
        record
        for message in m.iterate_messages(our_bytes)
        for record in LegacyRecordBatch(message.to_bytes(), magic)
    ]
    assert [(record.offset, record.key, record.value, record.timestamp) for record in read] == [
        (record.offset, record.key, record.value, record.timestamp if magic else None)
        for record in records
    ]


def test_wrapper_offset_zero() -> None:
    """A v1 wrapper with offset 0, as some producers send it, leaves the inner offsets as they
    are.
    """
    raw = bytearray(m.build_message_set(expected(1), 1, 1))
    struct.pack_into(">q", raw, 0, 0)
    assert [record.offset for record in deep(bytes(raw))] == list(range(8))


def test_wrapper_offset_too_small() -> None:
    """A v1 wrapper whose offset is below its last inner one, and not 0, is refused."""
    raw = bytearray(m.build_message_set(expected(1), 1, 1))
    struct.pack_into(">q", raw, 0, 3)
    with pytest.raises(InvalidRecordError, match=r"offset 3 is below its last inner offset 7$"):
        deep(bytes(raw))


def wrap(inner: bytes | None, codec: int = 1, magic: int = 1) -> bytes:
    return m.build_message(
        7, magic, codec, 1000, None, None if inner is None else compress_legacy(codec, inner, magic)
    )


ONE = m.build_message(0, 1, 0, 1000, b"k", b"v")
BROKEN_WRAPPERS = {
    "null value": wrap(None),
    "no messages": wrap(b""),
    "inner compressed": wrap(wrap(ONE)),
    "inner magic differs": wrap(m.build_message(0, 0, 0, -1, b"k", b"v")),
    "inner cut short": wrap(ONE + ONE[:-1]),
    "inner CRC": wrap(ONE[:-1] + b"w"),
    "not compressed at all": m.build_message(7, 1, 1, 1000, None, ONE),
}


@pytest.mark.parametrize("name", BROKEN_WRAPPERS)
def test_broken_wrapper_is_typed(name: str) -> None:
    """A wrapper that is not what it says is refused with a code."""
    with pytest.raises(CorruptRecordError):
        deep(BROKEN_WRAPPERS[name])


def test_zstd_and_limits() -> None:
    """zstd does not exist in these formats, and wrappers inflate within the limit only."""
    with pytest.raises(UnsupportedCodecError):
        deep(m.build_message(7, 1, 4, 1000, None, b"whatever"))
    with pytest.raises(OutputLimitError):
        deep(wrap(m.build_message(0, 1, 0, 1, None, bytes(MIB))), 1000)


@pytest.mark.parametrize(
    ("magic", "codec"), [(magic, codec) for magic in (0, 1) for codec in range(4)]
)
def test_flipped_bits_and_cuts(magic: int, codec: int) -> None:
    """A flipped bit after the offset is refused (CRC, size or magic); a cut at any byte leaves
    the whole messages before it, or an error.
    """
    raw = m.build_message_set(expected(magic, count=2), magic, codec)
    starts = [message.position for message in m.iterate_messages(raw)]
    for position in range(len(raw)):
        if any(start <= position < start + 8 for start in starts):
            continue
        for bit in range(8):
            flipped = bytearray(raw)
            flipped[position] ^= 1 << bit
            with pytest.raises(CorruptRecordError):
                deep(bytes(flipped))
    for cut in range(1, len(raw)):
        assert len(list(m.iterate_messages(raw[:cut], partial_tail=True))) == sum(
            start <= cut for start in starts[1:]
        )
        if cut not in starts:
            with pytest.raises(CorruptRecordError):
                deep(raw[:cut])


@given(st.binary(max_size=100), st.integers(0, 3), st.sampled_from([0, 1]))
def test_noise_is_typed(noise: bytes, codec: int, magic: int) -> None:
    """Noise, bare and inside a wrapper with a right CRC, raises only our errors."""
    for raw in (
        noise,
        wrap(noise, codec, magic),
        m.build_message(7, magic, codec, 1000, None, noise),
    ):
        try:
            deep(raw)
        except CorruptRecordError:
            continue
