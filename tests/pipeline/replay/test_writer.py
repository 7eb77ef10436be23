"""A replay against a partition in memory: each record once, in order, whatever happens on the
way.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replog_pipeline.errors import PipelineError
from replog_pipeline.kafka_cluster import KafkaCluster
from replog_pipeline.replay import identity, task, writer
from tests.pipeline.replay.model_partition import FINE, TROUBLES, ModelCluster, ModelPartition
from twisted_broker.wire.records import BatchBuilder

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


def source(count: int, first: int = 0) -> pa.RecordBatch:
    """Records with offsets that have holes, nulls and headers here and there."""
    rows = [
        {
            "key": None if number % 5 == 0 else b"k%d" % number,
            "value": None if number % 7 == 0 else b"v%d" % number,
            "partition": 0,
            "offset": 3 * number,
            "timestamp": (1_400_000_000_000 + number) * 1000,
            "headers": [{"key": "n", "value": None}] if number % 3 == 0 else None,
        }
        for number in range(first, count)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def expected(count: int) -> list[tuple[object, ...]]:
    return [
        (
            number,
            1_400_000_000_000 + number,
            None if number % 5 == 0 else b"k%d" % number,
            None if number % 7 == 0 else b"v%d" % number,
            [("n", None)] if number % 3 == 0 else [],
        )
        for number in range(count)
    ]


def held(partition: ModelPartition) -> list[tuple[object, ...]]:
    return [
        (each.offset, each.timestamp, each.key, each.value, each.headers)
        for each in partition.records()
    ]


def run(
    partition: ModelPartition,
    pieces: list[pa.RecordBatch],
    arrivals: list[bool] | None = None,
    batch_bytes: int = 200,
) -> list[task.Done]:
    cluster = ModelCluster(partition, iter(arrivals or []))
    found = task.PartitionReplay(
        task.Orders(KafkaCluster(""), "t", 0, batch_bytes), cluster, 0
    )  # the model's cluster
    for piece in pieces:
        found.take(piece)
    return [found.finish()]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PAUSE_SECONDS", 0)


def test_all_records_as_they_were() -> None:
    partition = ModelPartition()
    assert run(partition, [source(30), source(60, 30)]) == [task.Done(0, 60, 60)]
    assert held(partition) == expected(60)


def test_a_second_run_writes_nothing_and_a_longer_source_the_rest() -> None:
    partition = ModelPartition()
    run(partition, [source(30)])
    assert run(partition, [source(30)]) == [task.Done(0, 30, 0)]
    assert run(partition, [source(50)]) == [task.Done(0, 50, 20)]
    assert held(partition) == expected(50)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(TROUBLES), max_size=12),
    st.lists(st.booleans(), max_size=40),
    st.integers(60, 400),
)
def test_whatever_is_lost_or_late_no_record_is_there_twice(
    troubles: list[str], arrivals: list[bool], batch_bytes: int
) -> None:
    partition = ModelPartition(troubles)
    run(partition, [source(25), source(40, 25)], arrivals, batch_bytes)
    partition.arrive()
    assert held(partition) == expected(40)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.sampled_from(TROUBLES), max_size=6),
    st.lists(st.booleans(), max_size=30),
    st.integers(60, 400),
)
def test_a_writer_that_was_killed_is_followed_by_one_that_cuts_its_batches_elsewhere(
    killed_after: int, troubles: list[str], arrivals: list[bool], batch_bytes: int
) -> None:
    partition = ModelPartition()
    cluster = ModelCluster(partition, iter([]))
    killed = task.PartitionReplay(
        task.Orders(KafkaCluster(""), "t", 0, 150), cluster, 0
    )  # the model's cluster
    killed.take(source(killed_after))
    unanswered = killed.batcher.close()
    if unanswered.rows:
        partition.late.append(unanswered.encoded(killed.writer.producer_id, 0))
    partition.troubles.extend(troubles)
    run(partition, [source(40)], arrivals, batch_bytes)
    partition.arrive()
    assert held(partition) == expected(40)


def foreign(count: int = 1) -> bytes:
    builder = BatchBuilder()
    for number in range(count):
        builder.append(0, None, b"foreign %d" % number)
    return builder.build()


def refusal(partition: ModelPartition, pieces: list[pa.RecordBatch]) -> str:
    with pytest.raises(PipelineError) as raised:
        run(partition, pieces)
    return str(raised.value)


def test_foreign_records_at_the_end_are_seen() -> None:
    partition = ModelPartition()
    run(partition, [source(10)])
    partition.append(foreign())
    before = held(partition)
    assert "t-0 holds records that no replay wrote" in refusal(partition, [source(20)])
    assert held(partition) == before


def test_foreign_records_that_came_between_are_seen_at_the_answer_and_for_ever_after() -> None:
    partition = ModelPartition()
    found = task.PartitionReplay(
        task.Orders(KafkaCluster(""), "t", 0, 100), ModelCluster(partition, iter([])), 0
    )
    found.take(source(10))
    found.writer.flush()
    partition.append(foreign(2))
    found.take(source(20, 10))
    with pytest.raises(PipelineError, match="somebody else produces to it"):
        found.finish()
    assert "holds records that no replay wrote" in refusal(partition, [source(20)])


def test_another_source_is_seen_by_the_last_record() -> None:
    partition = ModelPartition()
    run(partition, [source(10)])
    assert "its record at offset 9 is not the source's" in refusal(partition, [source(20, 1)])


def test_a_source_that_has_less_than_the_target_is_refused() -> None:
    partition = ModelPartition()
    run(partition, [source(10)])
    assert "holds 10 records, its source only 4" in refusal(partition, [source(4)])


def test_deleted_records_are_seen() -> None:
    partition = ModelPartition()
    run(partition, [source(10)])
    partition.start = 4
    assert "begins at offset 4" in refusal(partition, [source(10)])


def test_an_offset_that_the_source_holds_twice_is_refused() -> None:
    assert "holds an offset of partition 0 twice" in refusal(
        ModelPartition(), [source(10), source(10, 9)]
    )


def test_no_progress_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PATIENCE_SECONDS", 0)
    partition = ModelPartition([FINE, "request lost"])
    assert "t-0: no progress for" in refusal(partition, [source(30)])


@pytest.mark.parametrize(
    ("offset", "sequence"), [(0, 0), (2**31 - 1, 2**31 - 1), (2**31, 0), (2**32 + 5, 5)]
)
def test_sequences_wrap_as_kafkas_do(offset: int, sequence: int) -> None:
    assert identity.sequence(offset) == sequence


def test_producer_ids_lie_where_no_controller_comes_and_follow_the_topic_id() -> None:
    one, other = identity.producer_id(bytes(16)), identity.producer_id(b"\1" * 16)
    assert 2**62 < one < 2**63 and one != other == identity.producer_id(b"\1" * 16)
