"""`archive --since` and `--until`: a new table begins and ends there, and goes on from there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs import archive
from replog_pipeline.jobs.archive.bounds import Bound, parse, resolved
from replog_pipeline.lake import guards
from replog_pipeline.lake.ledger import Ledger
from replog_pipeline.sources import SegmentsSource
from replog_pipeline.sources.extents import Extent
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables
from tests.pipeline.records import OLD_MS, numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A, B = ("t", 0), ("t", 1)
EXTENT = Extent({"t": None}, {A: 5, B: 0}, {A: 20, B: 9})
SEGMENTS = SegmentsSource(("x",), ("t",))


def test_times_and_offsets() -> None:
    assert parse(None, "--since") is None
    for text in ("2023-01-01", "2023-01-01T00:00:00Z", "2023-01-01T01:00:00+01:00"):
        assert parse(text, "--since") == Bound("--since", OLD_MS)
    assert parse('{"1": 7}', "--until") == Bound("--until", None, {("", 1): 7})
    assert parse('{"t": {"1": 7}}', "--until") == Bound("--until", None, {("t", 1): 7})
    for text in (
        "",
        "noon",
        "{",
        "[]",
        '{"x": 1}',
        '{"0": -1}',
        '{"0": 1.5}',
        '{"t": {"0": null}}',
    ):
        with pytest.raises(PipelineError, match="write a time"):
            parse(text, "--since")


def test_offsets_of_the_source() -> None:
    def meant(text: str) -> dict[tuple[str, int], int]:
        return resolved(None, SEGMENTS, parse(text, "--since"), EXTENT)

    assert meant('{"1": 7}') == meant('{"t": {"1": 7}}') == {B: 7}
    for text, line in {
        '{"2": 0}': "t-2 is not there",
        '{"0": 21}': "t-0 ends at 20",
        "2023-01-01": "give offsets for segments:",
    }.items():
        with pytest.raises(PipelineError, match=line):
            meant(text)


def test_a_first_batch_begins_there_and_a_later_one_where_the_table_ends() -> None:
    first = guards.plan(Ledger(), EXTENT, "/lake", since={A: 3, B: 4})
    assert first.start == {A: 5, B: 4}
    ledger = Ledger(1, {"t": None}, {A: 6, B: 1})
    assert guards.plan(ledger, EXTENT, "/lake", since={B: 4}).start == {A: 6, B: 1}
    assert guards.bounded(EXTENT.end, {A: 7, B: 99}) == {A: 7, B: 9}


def test_a_table_of_a_range_of_time(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """Twice the same command is once the rows; without --until it goes on; a time that no record
    has reached is a beginning, too.
    """
    tables.create(broker.bootstrap, topic, 2)
    produce(broker.bootstrap, topic, numbered(40, 2))
    source, lake = f"kafka://{broker.bootstrap}/{topic}", tmp_path / "lake"
    since, until = (
        parse("2023-01-01T00:00:10Z", "--since"),
        parse("2023-01-01T00:00:30Z", "--until"),
    )
    config = archive.ArchiveConfig(source, str(lake), "parquet", since=since, until=until)
    first = archive.run(spark, config)
    assert (first.rows, first.missed, archive.run(spark, config).rows) == (20, [], 0)
    expected = [row for row in tables.expected(numbered(40, 2)) if row[1] >= 5]
    assert tables.table_rows(spark, lake) == [row for row in expected if row[1] < 15]
    assert archive.run(spark, archive.ArchiveConfig(source, str(lake))).rows == 10
    assert tables.table_rows(spark, lake) == expected
    late = archive.ArchiveConfig(
        source, str(tmp_path / "late"), "parquet", since=parse("2024-01-01", "--since")
    )
    assert (archive.run(spark, late).batches, archive.run(spark, late).batches) == (1, 0)
