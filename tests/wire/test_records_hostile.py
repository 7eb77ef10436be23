"""Record bytes from the worst of peers: every flipped bit, every cut, every inner field that
lies (RELIABILITY 5.3 varints, record batches).
"""

from __future__ import annotations

import contextlib
import struct
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_broker.wire import records as r
from twisted_broker.wire.batch_header import HEADER_BYTES
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.record_builder import append_varint, build_batch
from twisted_broker.wire.record_walk import read_varint, walk_key_values

from .record_samples import small_batch

LIMIT = 1 << 20


def varint(value: int) -> bytes:
    out = bytearray()
    append_varint(out, value)
    return bytes(out)


def record(body: bytes) -> bytes:
    return varint(len(body)) + body


def batch_of(
    payload: bytes, count: int = 1, last_offset_delta: int | None = None, codec: int = 0
) -> r.BatchView:
    """A batch with a right CRC around whatever records."""
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    return r.BatchView(build_batch(0, 0, codec, delta, 1000, 1000, -1, -1, -1, count, payload))


GOOD = b"\x00" + varint(0) + varint(0) + varint(1) + b"k" + varint(2) + b"vv" + varint(0)
START = b"\x00\x00\x00"  # attributes, timestamp delta, offset delta

BROKEN = {
    "length negative": (varint(-1), 1),
    "length beyond the batch": (varint(100) + b"\x00" * 20, 1),
    "length 2^31-1": (varint(2**31 - 1) + b"\x00" * 20, 1),
    "length shorter than the fields": (varint(len(GOOD) - 1) + GOOD, 1),
    "length longer than the fields": (varint(len(GOOD) + 1) + GOOD + b"\x00", 1),
    "length over-long varint": (b"\xff\xff\xff\xff\xff\x01" + b"\x00" * 20, 1),
    "key beyond the record": (record(START + varint(50) + b"k" + b"\x01\x00"), 1),
    "key 2^31-1": (record(START + varint(2**31 - 1) + b"k\x01\x00"), 1),
    "key into the next record": (record(START + varint(5) + b"\x01\x00") + record(GOOD), 2),
    "value beyond the record": (record(START + b"\x01" + varint(50) + b"v\x00"), 1),
    "value missing": (record(START + b"\x01"), 1),
    "header count negative": (record(START + b"\x01\x01" + varint(-1)), 1),
    "header count beyond the record": (record(START + b"\x01\x01" + varint(1000)), 1),
    "header count 2^31-1": (record(START + b"\x01\x01" + varint(2**31 - 1)), 1),
    "header key negative": (record(START + b"\x01\x01" + varint(1) + varint(-1) + varint(-1)), 1),
    "header key beyond the record": (
        record(START + b"\x01\x01" + varint(1) + varint(9) + b"h\x01"),
        1,
    ),
    "header value beyond the record": (
        record(START + b"\x01\x01" + varint(1) + varint(1) + b"h" + varint(9) + b"x"),
        1,
    ),
    "header missing": (record(START + b"\x01\x01" + varint(1)) + b"\x00" * 10, 1),
    "timestamp delta over-long": (record(b"\x00" + b"\xff" * 10 + b"\x01\x00\x01\x01\x00"), 1),
    "timestamp leaves 64 bits": (record(b"\x00" + varint(2**63 - 1) + b"\x00\x01\x01\x00"), 1),
    "offset delta over-long": (record(b"\x00\x00" + b"\xff" * 5 + b"\x01\x01\x01\x00"), 1),
    "offset delta wrong": (record(b"\x00\x00" + varint(1) + b"\x01\x01\x00"), 1),
    "offset delta repeated": (record(GOOD) + record(GOOD), 2),
    "trailing bytes": (record(GOOD) + b"\x00", 1),
    "fewer records than the count": (record(GOOD), 2),
    "more records than the count": (record(GOOD) + record(b"\x00\x00\x02\x01\x01\x00"), 1),
    "no bytes at all": (b"", 1),
    "count 2^31-1": (record(GOOD), 2**31 - 1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_record_is_typed(name: str) -> None:
    """Each way in which records can lie is an INVALID_RECORD, not another exception, and not a
    wrong record.
    """
    payload, count = BROKEN[name]
    with pytest.raises(r.InvalidRecordError) as caught:
        list(batch_of(payload, count).records(LIMIT, sequential=True))
    assert caught.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("length beyond the batch", "record length 100, 20 bytes are left"),
        ("key beyond the record", "key of 50 bytes in a record with 3 left"),
        ("value beyond the record", "value of 50 bytes in a record with 2 left"),
        ("length longer than the fields", "a record's fields end -1 bytes behind its length"),
        ("offset delta wrong", "record 0 of the batch has offset delta 1"),
        ("trailing bytes", "1 bytes after the last record"),
    ],
)
def test_a_broken_record_is_described(name: str, text: str) -> None:
    """Who wrote it can see what is wrong."""
    payload, count = BROKEN[name]
    with pytest.raises(r.InvalidRecordError) as caught:
        list(batch_of(payload, count).records(LIMIT, sequential=True))
    assert text in str(caught.value)


SIX_BYTES = b"\x80\x80\x80\x80\x80\x00"  # 0, in more bytes than a number of 32 bits may have
OVER_LONG = {
    "length": SIX_BYTES,
    "offset delta": record(b"\x00\x00" + SIX_BYTES + b"\x01\x01\x00"),
    "key": record(START + SIX_BYTES + b"\x01\x00"),
    "value": record(START + b"\x01" + SIX_BYTES + b"\x00"),
}


@pytest.mark.parametrize("name", OVER_LONG)
def test_an_over_long_number_is_refused_wherever_it_stands(name: str) -> None:
    """By the cleaner's walk too: what it kept, no consumer could read."""
    batch = batch_of(OVER_LONG[name] + bytes(8))
    for walk in (batch.key_values(), batch.records(LIMIT)):
        with pytest.raises(r.InvalidRecordError, match="a varint is longer than 32 bits"):
            list(walk)


@pytest.mark.parametrize("count", [-1, 2, 2**31 - 1])
def test_more_records_than_the_bytes_can_hold_are_not_walked(count: int) -> None:
    """Seven bytes are the least: whatever the count, nothing is read."""
    payload = record(GOOD)
    assert len(payload) < 14
    with pytest.raises(r.InvalidRecordError) as caught:
        list(walk_key_values(payload, 0, len(payload), count))
    assert f"{count} records cannot be in {len(payload)} bytes" in str(caught.value)
    assert list(walk_key_values(payload, 0, len(payload), 1)) == [(0, b"k", b"vv")]


@pytest.mark.parametrize(
    ("count", "delta"), [(1, 1), (2, 0), (0, -5), (1, -1), (1, 2**31 - 1), (-1, -2)]
)
def test_count_must_match_last_offset_delta(count: int, delta: int) -> None:
    """A producer's batch has as many records as offsets, never a negative number."""
    with pytest.raises(r.InvalidRecordError):
        list(batch_of(record(GOOD), count, delta).records(LIMIT, sequential=True))


def test_batch_without_records() -> None:
    """Count 0 with last offset delta -1 is readable as nothing; what a leader accepts is the
    log's to say.
    """
    assert list(batch_of(b"", 0).records(LIMIT, sequential=True)) == []


def test_negative_lengths_are_null() -> None:
    """As in Kafka, any negative key, value or header value length is null."""
    payload = record(START + varint(-7) + varint(-2) + varint(1) + varint(1) + b"h" + varint(-3))
    (read,) = batch_of(payload).records(LIMIT)
    assert (read.key, read.value, read.headers) == (None, None, [("h", None)])


def test_header_key_that_is_no_text() -> None:
    """Bytes of a header key that are not UTF-8 survive being read and written again."""
    body = START + b"\x01\x01" + varint(1) + varint(2) + b"\xff\xc0" + varint(-1)
    (read,) = batch_of(record(body)).records(LIMIT)
    builder = r.BatchBuilder(leader_epoch=0)
    builder.append(1000, read.key, read.value, read.headers)
    assert builder.build() == batch_of(record(body)).to_bytes()


def test_good_records_before_the_broken_one() -> None:
    """The walk is lazy: it fails at the broken record, not before."""
    walk = batch_of(record(GOOD) + varint(100) + b"\x00" * 9, 2).records(LIMIT)
    assert next(walk).key == b"k"
    with pytest.raises(r.InvalidRecordError):
        next(walk)


@pytest.mark.parametrize("codec", range(5))
def test_every_flipped_bit_is_found(codec: int) -> None:
    """One bit flipped anywhere: outside base offset and leader epoch the batch is refused; those
    two change nothing else.
    """
    batch = small_batch(codec)
    for position in range(len(batch)):
        for bit in range(8):
            flipped = bytearray(batch)
            flipped[position] ^= 1 << bit
            if position < 8 or 12 <= position < 16:
                assert r.read_valid_batch(flipped)[4] == r.BatchView(batch).crc
            else:
                with pytest.raises(r.CorruptRecordError):
                    r.read_valid_batch(flipped)


@pytest.mark.parametrize("codec", range(5))
def test_flipped_bits_with_a_right_crc(codec: int) -> None:
    """A liar who computes the CRC too gets a typed error or some records, never another
    exception or unbounded memory.
    """
    batch = small_batch(codec)
    for position in range(21, len(batch)):
        for bit in range(8):
            flipped = bytearray(batch)
            flipped[position] ^= 1 << bit
            flipped[17:21] = struct.pack(">I", r.batch_crc(flipped, 0, len(flipped)))
            try:
                found = list(r.BatchView(bytes(flipped)).records(LIMIT, sequential=True))
            except r.CorruptRecordError:
                continue
            assert len(found) == 3


@pytest.mark.parametrize("codec", range(5))
def test_cut_at_every_byte(codec: int) -> None:
    """A batch cut at any byte is refused as a batch, and its records too when the length is made
    to agree.
    """
    batch = small_batch(codec)
    for cut in range(len(batch)):
        with pytest.raises(r.CorruptRecordError):
            r.read_valid_batch(batch[:cut])
        with pytest.raises(r.CorruptRecordError):
            r.BatchView(batch[:cut])
    for cut in range(HEADER_BYTES, len(batch)):
        shortened = bytearray(batch[:cut])
        struct.pack_into(">i", shortened, 8, cut - 12)
        with pytest.raises(r.CorruptRecordError):
            list(r.BatchView(bytes(shortened)).records(LIMIT))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codec_that_does_not_exist(codec: int) -> None:
    """Codec numbers 5 to 7 are UNSUPPORTED_COMPRESSION_TYPE."""
    with pytest.raises(r.UnsupportedCodecError) as caught:
        batch_of(record(GOOD), codec=codec).records(LIMIT)
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48, 2**31 - 1])
def test_lengths_that_cannot_be(length: int) -> None:
    """A length below the header's, or beyond the buffer, never moves the walk."""
    batch = bytearray(small_batch())
    struct.pack_into(">i", batch, 8, length)
    with pytest.raises(r.CorruptRecordError):
        list(r.iterate_batches(batch))


@pytest.mark.parametrize("magic", [-1, 0, 1, 3, 127])
def test_other_magic(magic: int) -> None:
    """Only magic 2 is a batch."""
    batch = bytearray(small_batch())
    struct.pack_into(">b", batch, 16, magic)
    with pytest.raises(r.CorruptRecordError):
        r.read_batch_header(batch)


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00", b"\xff\xff\x00\x01"])
def test_control_key_that_is_none(key: bytes | None) -> None:
    """A control record needs a version that is not negative, and a type."""
    with pytest.raises(r.InvalidRecordError):
        r.control_record_type(key)


def test_control_records_of_later_versions() -> None:
    """Longer keys and values of later versions are read by their leading fields; short and
    negative ones are refused.
    """
    assert r.control_record_type(b"\x00\x05\x00\x01more") == 1
    assert r.end_marker_coordinator_epoch(b"\x00\x01\x00\x00\x00\x07more") == 7
    for value in (None, b"\x00\x00\x00", b"\xff\xff\x00\x00\x00\x00"):
        with pytest.raises(r.InvalidRecordError):
            r.end_marker_coordinator_epoch(value)


@given(st.binary(max_size=200))
def test_noise_is_typed(noise: bytes) -> None:
    """Random bytes, as batches and as records, raise only our errors."""
    for walk in (r.iterate_batches(noise), batch_of(noise, max(1, len(noise) // 8)).records(LIMIT)):
        with contextlib.suppress(r.CorruptRecordError):
            list(walk)


@given(st.integers(-(2**31), 2**31 - 1))
def test_varints_round_trip(number: int) -> None:
    """A zigzag int takes at most 5 bytes, and comes back."""
    assert read_varint(varint(number) + b"\xff", 0) == (number, len(varint(number)))
    assert len(varint(number)) <= 5


@given(st.binary(min_size=11, max_size=11))
def test_varints_never_grow(noise: bytes) -> None:
    """Whatever the bytes, an int stays within 32 bits, or is refused."""
    try:
        value, position = read_varint(noise, 0)
    except r.InvalidRecordError:
        return
    assert -(2**31) <= value < 2**31
    assert position <= 5


@pytest.mark.parametrize("seed", range(30))
def test_keys_and_values_alone_are_what_the_whole_walk_gives(seed: int) -> None:
    """For whole batches the same; for broken ones InvalidRecordError, or what the stricter walk
    would give where it gives all.
    """
    random = Random(seed)
    builder = r.BatchBuilder(base_offset=random.randrange(1000))
    for _ in range(random.randrange(1, 6)):
        key, value = (
            random.choice([None, b"", random.randbytes(random.choice([3, 70, 9000]))]) for _ in "kv"
        )
        headers = [("h", b"v")] * random.randrange(3)
        builder.append(random.randrange(1 << 41), key, value, headers)
    batch = r.BatchView(builder.build())
    whole = [
        (record.offset - batch.base_offset, record.key, record.value) for record in batch.records()
    ]
    assert list(batch.key_values()) == whole
    for _ in range(300):
        raw = bytearray(batch.to_bytes())
        for _ in range(random.randrange(1, 3)):
            raw[random.randrange(HEADER_BYTES, min(len(raw), HEADER_BYTES + 60))] = (
                random.randrange(256)
            )
        broken = r.BatchView(bytes(raw))
        try:
            found = list(broken.key_values())
        except r.InvalidRecordError:
            with pytest.raises(r.InvalidRecordError):
                list(broken.records())
            continue
        try:
            walked = [
                (record.offset - batch.base_offset, record.key, record.value)
                for record in broken.records()
            ]
        except r.InvalidRecordError:
            continue
        assert found == walked
