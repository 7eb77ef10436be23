"""Hypothesis round trips of record batches, with kafka-python as the second opinion."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from twisted_broker.wire.records import (
    LOG_APPEND_TIME,
    BatchBuilder,
    BatchView,
    Record,
    set_log_append_time,
)

from .record_samples import fill, row_lists

codecs = st.integers(0, 4)


def as_records(rows: list[Any], base_offset: int = 0) -> list[Record]:
    return [Record(base_offset + index, *row) for index, row in enumerate(rows)]


@given(row_lists, codecs, st.integers(0, 2**62))
def test_what_is_built_is_read(rows: list[Any], codec: int, base_offset: int) -> None:
    """Build, read, build again: the same records and the same bytes."""
    expected = as_records(rows, base_offset)
    raw = fill(BatchBuilder(codec=codec, base_offset=base_offset), expected).build()
    batch = BatchView(raw)
    read = list(batch.records(sequential=True))
    assert read == expected
    assert batch.is_valid_crc()
    assert batch.max_timestamp == max(record.timestamp for record in expected)
    assert fill(BatchBuilder(codec=codec, base_offset=base_offset), read).build() == raw


@given(row_lists)
def test_same_bytes_as_kafka_python(rows: list[Any]) -> None:
    """An uncompressed batch is byte for byte kafka-python's."""
    theirs = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for index, (timestamp, key, value, headers) in enumerate(rows):
        theirs.append(index, timestamp, key, value, headers)
    assert fill(BatchBuilder(leader_epoch=0), as_records(rows)).build() == bytes(theirs.build())


@given(row_lists, codecs)
def test_kafka_python_reads_ours(rows: list[Any], codec: int) -> None:
    """kafka-python finds in our batches what we put in."""
    batch = DefaultRecordBatch(fill(BatchBuilder(codec=codec), as_records(rows)).build())
    assert batch.validate_crc()
    assert [
        (record.timestamp, record.key, record.value, record.headers) for record in batch
    ] == rows


@given(row_lists, codecs, st.integers(0, 2**45))
def test_log_append_time(rows: list[Any], codec: int, now_ms: int) -> None:
    """Patched to LogAppendTime, and built so, a batch gives every record that time."""
    patched = bytearray(fill(BatchBuilder(codec=codec), as_records(rows)).build())
    set_log_append_time(patched, now_ms)
    built = fill(
        BatchBuilder(codec=codec, timestamp_type=LOG_APPEND_TIME, log_append_time_ms=now_ms),
        as_records(rows),
    ).build()
    assert patched == built
    assert {record.timestamp for record in BatchView(built).records()} == {now_ms}
