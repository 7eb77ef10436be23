"""Conversion up on produce and down on fetch (Kafka's LogValidator and RecordsUtil.downConvert;
RELIABILITY 3.2 LogValidatorTest).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_broker.wire import legacy as m
from twisted_broker.wire.compression import compress_legacy
from twisted_broker.wire.corrupt_record import (
    CorruptRecordError,
    InvalidRecordError,
    OutputLimitError,
    UnsupportedCodecError,
)
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.records import (
    LOG_APPEND_TIME,
    BatchBuilder,
    BatchView,
    Record,
    build_end_marker,
)

from .record_samples import fill, golden_record, row_lists

MIB = 1 << 20
NOW = 1_800_000_000_000


def plain(count: int, base: int = 0, timestamp: int | None = None) -> list[Record]:
    return [
        golden_record(index, base + index, timestamp, with_headers=False) for index in range(count)
    ]


def deep(pieces: Any) -> list[Record]:
    return [
        record
        for piece in pieces
        for message in m.iterate_messages(piece, check_crc=True)
        for record in message.records(MIB, check_crc=True)
    ]


@pytest.mark.parametrize(
    ("magic", "codec"), [(magic, codec) for magic in (0, 1) for codec in range(4)]
)
def test_up_is_one_batch(magic: int, codec: int) -> None:
    """A message set becomes one valid v2 batch of its codec, offsets from 0; v1 keeps its
    timestamps, v0 has none.
    """
    batch = BatchView(m.convert_up(m.build_message_set(plain(6, base=1000), magic, codec)))
    assert batch.is_valid_crc()
    assert list(batch.records(sequential=True)) == plain(6, 0, None if magic else -1)
    assert (batch.codec, batch.producer_id, batch.base_sequence, batch.max_timestamp) == (
        codec,
        -1,
        -1,
        plain(6)[-1].timestamp if magic else -1,
    )


def test_up_as_the_topic_wants() -> None:
    """The topic's codec, timestamp type, first offset and leader epoch go in at once."""
    raw = m.convert_up(
        m.build_message_set(plain(3), 1, 1),
        codec=4,
        timestamp_type=LOG_APPEND_TIME,
        log_append_time_ms=NOW,
        base_offset=50,
        leader_epoch=9,
    )
    batch = BatchView(raw)
    assert (
        batch.codec,
        batch.timestamp_type,
        batch.base_offset,
        batch.partition_leader_epoch,
        batch.max_timestamp,
    ) == (
        4,
        LOG_APPEND_TIME,
        50,
        9,
        NOW,
    )
    assert list(batch.records()) == plain(3, 50, NOW)


def test_up_numbers_anew() -> None:
    """Inner offsets that some old clients got wrong do not matter: the records are numbered in
    their order.
    """
    inner = b"".join(m.build_message(5, 1, 0, 1000, b"k%d" % index, None) for index in range(3))
    raw = m.build_message(0, 1, 1, 1000, None, compress_legacy(1, inner, 1))
    assert [
        (record.offset, record.key)
        for record in BatchView(m.convert_up(raw)).records(sequential=True)
    ] == [(0, b"k0"), (1, b"k1"), (2, b"k2")]


V0, V1 = m.build_message_set(plain(1), 0), m.build_message_set(plain(1), 1)
REFUSED = {
    "nothing": b"",
    "two wrappers": m.build_message_set(plain(2), 1, 1) * 2,
    "wrapper among messages": V1 + m.build_message_set(plain(2), 1, 1),
    "two formats": V0 + V1,
    "cut short": V1[:-1],
    "CRC": V1[:-1] + b"?",
    "a batch": fill(BatchBuilder(), plain(1)).build(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_up_refuses(name: str) -> None:
    """What no old client sends is refused with a code, as Kafka does."""
    with pytest.raises(CorruptRecordError):
        m.convert_up(REFUSED[name])


def test_up_with_timestamps_at_both_ends() -> None:
    """Two timestamps that are further apart than a batch can say are refused, not written as a
    batch that nobody can read.
    """
    raw = m.build_message(0, 1, 0, -(2**63), b"k", None) + m.build_message(
        1, 1, 0, 2**63 - 1, b"k", None
    )
    with pytest.raises(InvalidRecordError):
        m.convert_up(raw)


def test_up_within_the_limit() -> None:
    """A wrapper that inflates beyond the limit is MESSAGE_TOO_LARGE."""
    with pytest.raises(OutputLimitError):
        m.convert_up(
            m.build_message_set([Record(0, 0, None, bytes(MIB), [])], 1, 1), max_output_bytes=1000
        )


@pytest.mark.parametrize(
    ("magic", "codec"), [(magic, codec) for magic in (0, 1) for codec in range(4)]
)
def test_down(magic: int, codec: int) -> None:
    """Records of a v2 batch come out with their offsets, without headers; v1 keeps timestamps,
    the codec stays.
    """
    records = [golden_record(index, 500 + index) for index in range(6)]
    batch = fill(BatchBuilder(codec=codec, base_offset=500), records).build()
    pieces = list(m.convert_down(m.iterate_entries(batch), magic, 500))
    assert deep(pieces) == plain(6, 500, None if magic else -1)
    assert {message.codec for piece in pieces for message in m.iterate_messages(piece)} == {codec}


def test_down_from_the_middle() -> None:
    """Records below the wanted offset are dropped from an uncompressed batch and kept in a
    compressed one, and later batches stay whole.
    """
    for codec, first in ((0, 103), (1, 100)):
        log = (
            fill(BatchBuilder(codec=codec, base_offset=100), plain(6)).build()
            + fill(BatchBuilder(codec=codec, base_offset=106), plain(2)).build()
        )
        assert [
            record.offset for record in deep(m.convert_down(m.iterate_entries(log), 1, 103))
        ] == list(range(first, 108))
    nothing = fill(BatchBuilder(base_offset=100), plain(3)).build()
    assert list(m.convert_down(m.iterate_entries(nothing), 1, 103)) == []


def test_down_skips_control_batches() -> None:
    """Old clients know no transaction markers: they are left out; a log of markers alone gives
    nothing.
    """
    marker = build_end_marker(1, 0, True, 0, NOW, base_offset=2)
    log = (
        fill(BatchBuilder(base_offset=0), plain(2)).build()
        + marker
        + fill(BatchBuilder(base_offset=3), plain(1)).build()
    )
    assert [record.offset for record in deep(m.convert_down(m.iterate_entries(log), 1, 0))] == [
        0,
        1,
        3,
    ]
    assert list(m.convert_down(m.iterate_entries(marker), 1, 0)) == []


def test_down_refuses_zstd() -> None:
    """zstd cannot be expressed: UNSUPPORTED_COMPRESSION_TYPE, after what comes before it."""
    log = (
        fill(BatchBuilder(), plain(1)).build()
        + fill(BatchBuilder(codec=4, base_offset=1), plain(1)).build()
    )
    pieces = m.convert_down(m.iterate_entries(log), 1, 0)
    assert len(deep([next(pieces)])) == 1
    with pytest.raises(UnsupportedCodecError) as caught:
        next(pieces)
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_down_keeps_log_append_time() -> None:
    """LogAppendTime stays LogAppendTime in v1, compressed or not."""
    for codec in (0, 2):
        batch = fill(
            BatchBuilder(codec=codec, timestamp_type=LOG_APPEND_TIME, log_append_time_ms=NOW),
            plain(3),
        ).build()
        (piece,) = m.convert_down(m.iterate_entries(batch), 1, 0)
        assert {message.timestamp_type for message in m.iterate_messages(piece)} == {
            LOG_APPEND_TIME
        }
        assert deep([piece]) == plain(3, 0, NOW)


def test_down_in_pieces() -> None:
    """A large uncompressed batch comes out in pieces near 64 KiB, each of whole messages, made
    as they are asked for.
    """
    records = [Record(index, 1000, None, bytes(1000), []) for index in range(1000)]
    pieces = list(m.convert_down(m.iterate_entries(fill(BatchBuilder(), records).build()), 1, 0))
    assert len(pieces) > 10
    assert all(m.CHUNK_BYTES <= len(piece) < m.CHUNK_BYTES + 2000 for piece in pieces[:-1])
    assert [record.offset for record in deep(pieces)] == list(range(1000))


def test_down_of_an_old_log() -> None:
    """In a log that has lived through upgrades old messages pass through as they are, v1 goes
    down to v0, batches are converted.
    """
    v0, v1 = m.build_message_set(plain(2), 0), m.build_message_set(plain(2, 2), 1, 1)
    log = v0 + v1 + fill(BatchBuilder(base_offset=4), plain(2)).build()
    assert [entry.magic for entry in m.iterate_entries(log)] == [0, 0, 1, 2]
    pieces = list(m.convert_down(m.iterate_entries(log), 1, 0))
    assert b"".join(pieces).startswith(v0 + v1)
    pieces = list(m.convert_down(m.iterate_entries(log), 0, 0))
    assert {message.magic for piece in pieces for message in m.iterate_messages(piece)} == {0}
    assert [(record.offset, record.timestamp) for record in deep(pieces)] == [
        (index, -1) for index in range(6)
    ]


def test_entries_cut_short() -> None:
    """The walk over mixed formats ends at a cut entry where that is allowed, and refuses it
    elsewhere.
    """
    log = V0 + fill(BatchBuilder(), plain(1)).build()
    for cut in range(len(V0) + 1, len(log)):
        assert [entry.magic for entry in m.iterate_entries(log[:cut], partial_tail=True)] == [0]
        with pytest.raises(CorruptRecordError):
            list(m.iterate_entries(log[:cut]))
    with pytest.raises(CorruptRecordError):
        list(m.iterate_entries(log, end=len(log) - 1))


@given(row_lists, st.sampled_from([0, 1]), st.integers(0, 3))
def test_down_and_up_again(rows: list[Any], magic: int, codec: int) -> None:
    """Down and up again loses headers (and v0 the timestamps), nothing else."""
    batch = fill(
        BatchBuilder(codec=codec), [Record(index, *row) for index, row in enumerate(rows)]
    ).build()
    again = BatchView(m.convert_up(b"".join(m.convert_down(m.iterate_entries(batch), magic, 0))))
    assert list(again.records(sequential=True)) == [
        Record(index, timestamp if magic else -1, key, value, [])
        for index, (timestamp, key, value, _) in enumerate(rows)
    ]


def test_invalid_inside_a_batch_going_down() -> None:
    """A batch whose records are broken is an INVALID_RECORD when it is converted."""
    batch = bytearray(fill(BatchBuilder(), plain(2)).build())
    batch[61] = 0x7F
    with pytest.raises(InvalidRecordError):
        list(m.convert_down(m.iterate_entries(bytes(batch)), 1, 0))
