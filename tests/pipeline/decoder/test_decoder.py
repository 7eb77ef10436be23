"""The vectors of the decoder against the plain walk of the wire package, record by record and
fault by fault.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replog_pipeline.columns import ALL_COLUMNS, COLUMNS
from replog_pipeline.decoder import (
    FLAG,
    HEADER,
    AbortedTransaction,
    Stop,
    TransactionLog,
    crc_ok,
    headers,
    scan,
)
from replog_pipeline.decoder.arrow_types import TYPES
from tests.pipeline.decoding import FIRST_MS, decoded, segment, walked, with_crc
from twisted_broker.wire.control_batch import build_end_marker
from twisted_broker.wire.legacy import build_message_set
from twisted_broker.wire.record_builder import append_varint, build_batch
from twisted_broker.wire.records import BatchBuilder, CorruptRecordError, Record, iterate_batches

SEEDS = st.integers(0, 2**32)


def batch(count: int = 3, base_offset: int = 0, value: bytes = b"v", **more: object) -> bytes:
    builder = BatchBuilder(base_offset=base_offset, **more)
    for index in range(count):
        builder.append(FIRST_MS + index, b"k", value)
    return builder.build()


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_every_column_is_what_the_plain_walk_says(seed: int) -> None:
    """All codecs, nulls, headers, holes, LogAppendTime, producers; enough batches to walk in
    lock-step.
    """
    data = segment(seed)
    assert decoded(data) == walked(data)


@settings(max_examples=30, deadline=None)
@given(
    SEEDS,
    st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, unique=True),
    st.integers(0, 6000),
    st.integers(0, 6000),
)
def test_columns_and_offsets_are_cut_exactly(
    seed: int, columns: list[str], start: int, end: int
) -> None:
    data = segment(seed, batches=30, most_records=4)
    wanted = [
        {name: row[name] for name in columns}
        for row in walked(data)
        if start <= row["offset"] < end
    ]
    assert decoded(data, columns, start=start, end=end) == wanted


def test_offsets_come_from_headers_where_no_offset_is_missing() -> None:
    """A batch whose records cannot even be inflated has its offsets told; its values are
    refused.
    """
    whole = bytearray(batch(5, codec=1))
    whole[70:80] = bytes(10)
    data = batch(2) + with_crc(whole)
    assert [row["offset"] for row in decoded(data, ("partition", "offset"))] == [
        0,
        1,
        0,
        1,
        2,
        3,
        4,
    ]
    with pytest.raises(CorruptRecordError, match="the batch of offset 0 cannot be read: gzip"):
        decoded(data, ("value",))


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.data())
def test_changed_bytes_are_refused_exactly_when_the_plain_walk_refuses(
    seed: int, chosen: st.DataObject
) -> None:
    """Bytes of records changed under a right CRC: the same rows, or an error in both."""
    batches = [
        bytearray(each.to_bytes())
        for each in iterate_batches(segment(seed, batches=30, most_records=3))
    ]
    for _ in range(chosen.draw(st.integers(1, 3))):
        victim = chosen.draw(st.sampled_from(batches))
        victim[chosen.draw(st.integers(57, min(len(victim), 140) - 1))] = chosen.draw(
            st.integers(0, 255)
        )
    data = b"".join(map(with_crc, batches))
    assert outcome(decoded, data) == outcome(walked, data)


def outcome(read, data: bytes):
    try:
        return read(data)
    except CorruptRecordError:
        return "refused"


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_rows_or_one_error(data: bytes) -> None:
    for crc in ("fail", FLAG):
        assert outcome(lambda data, crc=crc: decoded(data, crc=crc), data) is not None


def varint(value: int) -> bytes:
    out = bytearray()
    append_varint(out, value)
    return bytes(out)


INFLATING = batch(1, value=bytes(4 << 20), codec=4)
GREEDY = {
    "records without bytes": build_batch(0, 0, 0, 2**31 - 2, 0, 0, -1, -1, -1, 2**31 - 1, b""),
    "records in a small gzip": bytes(batch(1, codec=1)[:57])
    + struct.pack(">i", 2**31 - 1)
    + batch(1, codec=1)[61:],
    "headers without bytes": build_batch(
        0,
        0,
        0,
        0,
        0,
        0,
        -1,
        -1,
        -1,
        1,
        varint(20) + b"\x00\x00\x00\x01\x01" + varint(2**31 - 1) + bytes(10),
    ),
    "a value beyond the batch": build_batch(
        0,
        0,
        0,
        0,
        0,
        0,
        -1,
        -1,
        -1,
        1,
        varint(12) + b"\x00\x00\x00\x01" + varint(2**31 - 1) + bytes(3),
    ),
    "zeros that inflate without end": INFLATING[:57] + struct.pack(">i", 2**30) + INFLATING[61:],
}


@pytest.mark.parametrize("name", GREEDY)
@pytest.mark.parametrize("columns", [ALL_COLUMNS, ("partition",), ("offset", "value")])
def test_what_a_batch_claims_allocates_nothing(name: str, columns: tuple[str, ...]) -> None:
    data = with_crc(bytearray(GREEDY[name]))
    tracemalloc.start()
    try:
        found = outcome(lambda data: decoded(data, columns), data)
        assert found == "refused" or (len(found) == 1 and "value" not in columns)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_timestamp_that_no_table_holds_is_refused() -> None:
    builder = BatchBuilder()
    builder.append(2**62, None, b"v")
    with pytest.raises(CorruptRecordError, match="4611686018427387904 ms"):
        decoded(builder.build())
    assert decoded(builder.build(), ("value",)) == [{"value": b"v"}]


def test_a_tail_cut_anywhere_is_left_out_where_it_may_be_torn() -> None:
    first, second = batch(3), batch(2, 3)
    for size in range(len(first) + 1, len(first) + len(second)):
        torn = (first + second)[:size]
        assert [row["offset"] for row in decoded(torn, ("offset",), sure_to=3)] == [0, 1, 2]
        with pytest.raises(CorruptRecordError):
            decoded(torn, ("offset",), sure_to=4)
        with pytest.raises(CorruptRecordError):
            decoded(torn, ("offset",))


def test_preallocated_zeros_end_the_active_segment() -> None:
    data = batch(3) + bytes(1000)
    assert len(decoded(data, ("offset",), sure_to=3)) == 3
    assert scan(data).stop is Stop.ZEROS and len(headers(data)) == 1


def test_a_wrong_crc_fails_with_offset_and_byte() -> None:
    data = bytearray(batch(3) + batch(3, 3) + batch(3, 6))
    size = len(batch(3))
    data[size + 65] ^= 1
    with pytest.raises(CorruptRecordError, match="wrong CRC at offset 3") as raised:
        decoded(bytes(data))
    assert raised.value.position == size
    assert [row["offset"] for row in decoded(bytes(data), ("offset",), sure_to=3)] == [0, 1, 2]
    assert list(crc_ok(bytes(data), headers(bytes(data)))) == [True, False, True]


def test_a_length_that_damage_hid_from_the_range_is_still_found() -> None:
    """A last offset delta is believed only after the CRC: a damaged one does not put its batch
    outside the range.
    """
    data = bytearray(batch(3) + batch(3, 3))
    data[23:27] = (-1000).to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptRecordError, match="wrong CRC at offset 0"):
        decoded(bytes(data), start=1)


def test_damage_is_flagged_row_by_row() -> None:
    """A changed value still reads; a batch that does not is one row; so are bytes that are none;
    others are untouched.
    """
    changed = bytearray(batch(2))
    changed[-2] ^= 1
    broken = bytearray(batch(2, 2))
    broken[61] = 0xFF
    data = bytes(changed + broken) + batch(1, 4) + b"no batch" * 20
    rows = decoded(data, crc=FLAG)
    assert [(row["offset"], row["crcOk"], row["value"] is None) for row in rows] == [
        (0, False, False),
        (1, False, False),
        (2, False, True),
        (4, True, False),
        (5, False, True),
    ]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("crc", ["fail", FLAG])
def test_old_formats_are_refused(magic: int, crc: str) -> None:
    old = build_message_set([Record(0, FIRST_MS, b"k", b"v", [])], magic)
    for data in (old, batch(1) + old):
        with pytest.raises(CorruptRecordError, match=r"format 0 or 1 .*only format 2 \(Kafka 0.11"):
            decoded(data, crc=crc)


def test_control_records_and_aborted_ones_come_when_asked_for() -> None:
    data = (
        batch(2, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
        + batch(1, 2, producer_id=8, producer_epoch=0, base_sequence=0, is_transactional=True)
        + build_end_marker(7, 0, False, 0, FIRST_MS, base_offset=3)
        + batch(1, 4, producer_id=7, producer_epoch=0, base_sequence=2, is_transactional=True)
        + build_end_marker(7, 0, True, 0, FIRST_MS, base_offset=5)
    )
    log = TransactionLog()
    log.follow(data, headers(data))
    assert log.aborted == [AbortedTransaction(7, 0, 3)] and log.open == {8: 2}
    rows = decoded(data, control=True, aborted=log.aborted)
    assert [(row["offset"], row["control"], row["aborted"]) for row in rows] == [
        (0, False, True),
        (1, False, True),
        (2, False, False),
        (3, True, False),
        (4, False, False),
        (5, True, False),
    ]
    assert [row["offset"] for row in decoded(data, aborted=log.aborted, committed_only=True)] == [
        2,
        4,
    ]


def test_many_small_and_few_large_batches() -> None:
    """More rows than one Arrow batch has, in one batch alone and in thousands."""
    alone = batch(40_000, value=b"x" * 3)
    many = b"".join(batch(3, base * 3) for base in range(4000))
    for data in (alone, many):
        assert decoded(data, ("offset", "value", "key")) == [
            {name: row[name] for name in ("offset", "value", "key")} for row in walked(data)
        ]


def test_headers_are_the_fields_of_the_batch_view() -> None:
    data = segment(5)
    table, views = headers(data), list(iterate_batches(data))
    assert table.dtype == HEADER and len(table) == len(views)
    for row, view in zip(table, views, strict=True):
        assert (row["baseOffset"], row["crc"], row["producerId"], row["position"]) == (
            view.base_offset,
            view.crc,
            view.producer_id,
            view.offset,
        )
        assert (row["maxTimestamp"], row["recordCount"], row["attributes"]) == (
            view.max_timestamp,
            view.records_count,
            view.attributes,
        )


def test_a_column_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="there is no column 'ofset'"):
        decoded(batch(1), ("ofset",))


def test_types_are_there_for_every_column() -> None:
    assert tuple(TYPES) == ALL_COLUMNS and ALL_COLUMNS[: len(COLUMNS)] == COLUMNS


def test_the_decoder_imports_only_wire_of_ours_and_no_spark() -> None:
    code = "import sys, replog_pipeline.decoder; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not [name for name in loaded if name.split(".")[0] in ("pyspark", "twisted", "pandas")]
    allowed = ("twisted_broker.wire", "replog_pipeline.decoder")
    ours = {
        name
        for name in loaded
        if name.startswith(("twisted_broker", "replog_pipeline")) and not name.startswith(allowed)
    }
    assert ours == {"twisted_broker", "replog_pipeline"}
