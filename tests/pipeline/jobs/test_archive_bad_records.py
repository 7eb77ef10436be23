"""`archive --on-bad-record`: a record that cannot be a row stops no table unless it is to, none is
lost without a word, and what was bad is counted by reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from replog_pipeline.decoder import Request
from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs import archive, replay
from replog_pipeline.jobs.archive import bad_records
from replog_pipeline.jobs.archive.figures import Figures
from replog_pipeline.jobs.archive.metrics import FiguresCollector
from replog_pipeline.kafka_cluster import KafkaCluster
from replog_pipeline.lake.delta import DeltaTable
from replog_pipeline.replay.cluster import Cluster
from replog_pipeline.segments.filters import Pruning
from replog_pipeline.segments.options import SegmentOptions
from replog_pipeline.segments.plan import plan
from replog_pipeline.segments.rows import segment_rows
from replog_pipeline.sources import SegmentsSource, extents, own_fetches
from replog_pipeline.values.convert import CODES
from replog_pipeline.values.settings import decoding
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.conftest import KafkaFiles
from tests.pipeline.jobs import tables
from tests.pipeline.records import OLD_MS, Written, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST = (2**63 - 1) // 1000
SENT = [
    *(Written(1, b"k", value, at) for value, at in ((b"a", OLD_MS), (b"b", MOST + 1))),
    *(Written(0, b"k", value, OLD_MS) for value in (b"c", b"d")),
]


@pytest.fixture
def late(broker: BrokerProcess, topic: str) -> str:
    """A topic with a record that no table holds as it is."""
    tables.create(broker.bootstrap, topic, 2, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    produce(broker.bootstrap, topic, SENT)
    return f"kafka://{broker.bootstrap}/{topic}"


def dead_letters(spark: SparkSession, lake: Path) -> list[tuple[Any, ...]]:
    found = spark.read.parquet(str(lake / bad_records.FOLDER))
    rows = found.select("batch", "partition", "offset", "value", "timestampMs", "reason").collect()
    return sorted((*row[:3], bytes(row[3]), *row[4:]) for row in rows)


def test_a_timestamp_that_spark_cannot_hold_is_null(
    spark: SparkSession, late: str, tmp_path: Path
) -> None:
    """And the rest goes on as ever, also back into a topic: there it has none."""
    lake, figures = tmp_path / "lake", Figures()
    config = archive.ArchiveConfig(late, str(lake), "parquet", on_bad_record="null")
    result = archive.run(spark, config, figures=figures)
    assert (result.rows, result.bad) == (4, {"timestamp": 1})
    rows = tables.table_rows(spark, lake)
    assert [(row[3], row[4]) for row in rows] == [
        (b"c", OLD_MS),
        (b"d", OLD_MS),
        (b"a", OLD_MS),
        (b"b", None),
    ]
    registry = CollectorRegistry()
    registry.register(FiguresCollector(figures))
    metric = b'replog_archive_bad_records_total{reason="timestamp"} 1.0'
    assert metric in generate_latest(registry) and "bad records: timestamp 1" in str(figures)
    assert replay.run(spark, replay.ReplayConfig(str(lake), f"{late}-again")).written == 4


def test_a_dead_letter_is_beside_the_table_once_however_the_run_ended(
    spark: SparkSession, late: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    config = archive.ArchiveConfig(late, str(lake), on_bad_record="dead-letter")

    def killed(*given: object) -> int:
        raise PipelineError("killed before the commit")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "append", killed)
        with pytest.raises(PipelineError, match="killed"):
            archive.run(spark, config)
    assert archive.run(spark, config).bad == {"timestamp": 1}
    assert [row[3] for row in tables.table_rows(spark, lake)] == [b"c", b"d", b"a"]
    assert dead_letters(spark, lake) == [(1, 1, 1, b"b", MOST + 1, "timestamp")]


def test_values_that_do_not_decode(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """Counted; or not in the table; or a line with place and
    reason, and nothing written.
    """
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"properties": {"id": {"type": "integer"}}}))
    values = [b'{"id": 1}', b'{"id": "HUSH"}', b'{"HUSH', None]
    tables.create(broker.bootstrap, topic, 1)
    produce(broker.bootstrap, topic, [Written(0, b"k", value, OLD_MS) for value in values])
    source, chosen = f"kafka://{broker.bootstrap}/{topic}", decoding("json", str(schema))

    def run(choice: str) -> archive.ArchiveResult:
        lake = str(tmp_path / choice)
        return archive.run(
            spark,
            archive.ArchiveConfig(source, lake, "parquet", decoding=chosen, on_bad_record=choice),
        )

    with pytest.raises(PipelineError, match=r"-0 at offset [12] cannot be a row") as refused:
        run("fail")
    assert "HUSH" not in str(refused.value) and not (tmp_path / "fail" / "_replog/ledger").exists()
    kept = run("null")
    assert (kept.rows, kept.bad) == (4, {"malformed": 1, "type": 1})
    letters = run("dead-letter")
    assert (letters.rows, letters.bad) == (2, {"malformed": 1, "type": 1})
    assert [row[5] for row in dead_letters(spark, tmp_path / "dead-letter")] == [
        "type",
        "malformed",
    ]


def test_records_without_a_key_of_an_upsert(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """They are left out and counted; not said, they stop it."""
    tables.create(broker.bootstrap, topic, 1)
    keys = (b"a", None, b"a", None)
    produce(broker.bootstrap, topic, [Written(0, key, b"v", OLD_MS) for key in keys])
    source, lake = f"kafka://{broker.bootstrap}/{topic}", tmp_path / "lake"
    config = archive.ArchiveConfig(source, str(lake), upsert=True, on_bad_record="null")
    result = archive.run(spark, config)
    assert (result.rows, result.bad) == (1, {"key": 2})
    assert [row[1] for row in tables.table_rows(spark, lake)] == [2]


def test_the_reasons_are_those_of_the_decoder() -> None:
    assert bad_records.VALUE_CODES == CODES


def test_a_choice_that_there_is_not_is_one_line() -> None:
    with pytest.raises(PipelineError, match="--on-bad-record: 'skip' is none of fail, null"):
        bad_records.check("skip")


def test_bad_records_of_batches_add_up() -> None:
    first = bad_records.together({}, {"type": 2, "key": 1})
    assert bad_records.together(first, {"timestamp": 1, "type": 1}) == {
        "timestamp": 1,
        "key": 1,
        "type": 3,
    }
    assert bad_records.said({"type": 1_000}) == "type 1,000"


@pytest.mark.parametrize("committed", [False, True])
def test_requests_of_our_own_give_the_rows_of_the_log_directory(
    kafka_files: KafkaFiles, committed: bool
) -> None:
    """All codecs, headers, transactions that committed, aborted and stayed open."""
    columns = ("partition", "offset", "key", "value", "timestamp", "timestampMs", "headers")
    isolation = "read_committed" if committed else "read_uncommitted"
    folders = (str(kafka_files.directory),)
    extent = extents.of_directories(SegmentsSource(folders), isolation)
    address, seen = KafkaCluster(kafka_files.broker.bootstrap), 0
    for (name, number), start in sorted(extent.start.items()):
        end = extent.end[name, number]
        asked = Request(columns, name, number, start, end, committed_only=committed, lenient=True)
        with Cluster(address, name) as cluster:
            pieces = list(own_fetches.fetched(cluster, asked))
        found = [row for piece in pieces for row in piece.to_pylist()]
        options = SegmentOptions(
            folders,
            (name,),
            isolation,
            start={(name, number): start},
            end={(name, number): end},
            only_named=True,
            lenient=True,
        )
        tasks = plan(options, columns, Pruning())
        there = [
            row for task in tasks for piece in segment_rows(*task) for row in piece.to_pylist()
        ]
        assert found == there
        seen += len(found)
    assert seen > 100
