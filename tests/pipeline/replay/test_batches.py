"""Arrow rows to batches: without Spark."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog_pipeline.replay.batches import Batcher, cells, rows_of, size_of
from replog_pipeline.replay.task import by_partition
from twisted_broker.wire.records import BatchView

CELLS = st.lists(st.none() | st.binary(max_size=12), max_size=20)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@given(CELLS, st.integers(0, 20), st.integers(0, 20))
def test_cells_of_any_slice(
    kind: pa.DataType, content: list[bytes | None], first: int, count: int
) -> None:
    column = pa.array(content, kind).slice(min(first, len(content)), count)
    assert cells(column) == column.to_pylist()


def test_a_column_of_nulls_without_data() -> None:
    assert cells(pa.nulls(3, pa.binary())) == [None, None, None]


def test_times_before_1970_are_whole_milliseconds() -> None:
    """A record without a timestamp has -1 ms."""
    times = pa.array([-1000, -1, 1_999], pa.int64()).cast(pa.timestamp("us", "UTC"))
    nothing = pa.nulls(3, pa.binary())
    headers = pa.nulls(3, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    piece = pa.RecordBatch.from_arrays(
        [times, nothing, nothing, headers], ["timestamp", "key", "value", "headers"]
    )
    assert [row[0] for row in rows_of(piece)] == [-1, -1, 1]


@given(st.lists(st.integers(0, 300), max_size=60), st.integers(1, 1000), st.integers(0, 10**10))
def test_batches_keep_their_limit_and_number_on(sizes: list[int], limit: int, first: int) -> None:
    batcher = Batcher(first, limit)
    rows: list[tuple[int, bytes | None, bytes, list]] = [
        (number, None, b"v" * size, []) for number, size in enumerate(sizes)
    ]
    batches = [batch for batch in [*batcher.add(rows), batcher.close()] if batch.rows]
    assert [row for batch in batches for row in batch.rows] == rows
    expected = first
    for batch in batches:
        assert batch.first == expected
        assert len(batch.rows) == 1 or sum(map(size_of, batch.rows)) <= limit
        view = BatchView(batch.encoded(7, 0))
        assert (view.producer_id, view.base_sequence, view.records_count) == (
            7,
            batch.first & 0x7FFFFFFF,
            len(batch.rows),
        )
        assert view.size_in_bytes <= 61 + sum(map(size_of, batch.rows))
        expected = batch.after


@given(st.lists(st.integers(0, 3), max_size=30))
def test_runs_of_a_partition(numbers: list[int]) -> None:
    piece = pa.RecordBatch.from_arrays([pa.array(numbers, pa.int32())], ["partition"])
    runs = list(by_partition(piece))
    assert [number for partition, part in runs for number in [partition] * part.num_rows] == numbers
    assert all(one[0] != other[0] for one, other in itertools.pairwise(runs))
