"""`archive` on Spark: every record once in the table, whatever happened before; and what it
refuses.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from kafka import KafkaAdminClient, TopicPartition

from replog_pipeline import sources
from replog_pipeline.cli import pipeline
from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs import archive
from replog_pipeline.jobs.archive.signals import Stopper
from replog_pipeline.lake import timestamps
from replog_pipeline.lake.delta import DeltaTable
from replog_pipeline.lake.ledger import Ledger
from replog_pipeline.lake.parquet import ParquetTable
from replog_pipeline.progress import Progress
from replog_pipeline.sources import extents
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.conftest import KafkaFiles
from tests.pipeline.jobs import tables
from tests.pipeline.records import OLD_MS, Written, numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = pytest.mark.parametrize("form", ["delta", "parquet"])


class Killed(BaseException):
    """As if the process had ended here."""


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    """The URL of a topic of two partitions with 40 records."""
    tables.create(broker.bootstrap, topic, 2)
    produce(broker.bootstrap, topic, numbered(40, 2))
    return f"kafka://{broker.bootstrap}/{topic}"


def more(broker: BrokerProcess, topic: str) -> None:
    produce(broker.bootstrap, topic, numbered(20, 2, first=40))


@FORMATS
def test_a_table_grows_by_what_is_new(
    spark: SparkSession, broker: BrokerProcess, topic: str, filled: str, tmp_path: Path, form: str
) -> None:
    config = archive.ArchiveConfig(filled, str(tmp_path / "lake"), form, max_records=30)
    first = archive.run(spark, config)
    assert (first.rows, first.batches, first.findings) == (40, 2, [])
    assert archive.run(spark, config).batches == 0
    more(broker, topic)
    assert archive.run(spark, config).rows == 20
    assert tables.table_rows(spark, tmp_path / "lake") == tables.expected(numbered(60, 2))
    assert sorted(path.name for path in (tmp_path / "lake").glob("date=*")) == ["date=2023-01-01"]


def timestamp_types(lake: Path) -> list[pa.DataType]:
    return sorted(
        {pq.read_schema(file).field("timestamp").type for file in lake.glob("date=*/*.parquet")},
        key=str,
    )


@FORMATS
def test_timestamps_are_microseconds_in_utc_and_older_files_are_read_still(
    spark: SparkSession,
    broker: BrokerProcess,
    topic: str,
    filled: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    lake, int96 = tmp_path / "lake", pa.timestamp("ns")
    with monkeypatch.context() as patch:
        patch.setattr(timestamps, "MICROSECONDS", "INT96")  # as tables were written before
        archive.run(spark, archive.ArchiveConfig(filled, str(lake), form))
    assert timestamp_types(lake) == [int96]
    more(broker, topic)
    archive.run(spark, archive.ArchiveConfig(filled, str(lake)))
    assert timestamp_types(lake) == [int96, pa.timestamp("us", tz="UTC")]
    assert tables.table_rows(spark, lake) == tables.expected(numbered(60, 2))
    assert spark.conf.get(timestamps.SETTING) == "INT96"


def test_a_lost_ledger_of_a_parquet_table_is_one_line_and_nothing_is_written(
    spark: SparkSession, filled: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    archive.run(spark, archive.ArchiveConfig(filled, str(lake), "parquet", max_records=25))
    newest = sorted((lake / "_replog" / "ledger").glob("*.json"))[-1]
    kept = newest.read_bytes()
    newest.unlink()
    before = sorted(lake.rglob("*"))
    assert f"_replog/ledger/{newest.name} was lost" in refused("--from", filled, "--to", str(lake))
    assert sorted(lake.rglob("*")) == before
    newest.write_bytes(kept)
    assert archive.run(spark, archive.ArchiveConfig(filled, str(lake))).rows == 0
    assert tables.table_rows(spark, lake) == tables.expected(numbered(40, 2))


@FORMATS
def test_a_partition_that_is_added_before_the_read_comes_with_the_next_batch(
    spark: SparkSession,
    broker: BrokerProcess,
    topic: str,
    filled: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    """The batch's ledger does not know it: read now, its records would be read again."""
    extent, to = extents.extent, tmp_path / "lake"
    added = [Written(2, b"key", b"%d" % number, OLD_MS) for number in range(3)]

    def overtaken(*given: Any) -> extents.Extent:
        found = extent(*given)
        tables.grow(broker.bootstrap, topic, 3)
        produce(broker.bootstrap, topic, added)
        return found

    config = archive.ArchiveConfig(filled, str(to), form)
    with monkeypatch.context() as patch:
        patch.setattr(extents, "extent", overtaken)
        assert archive.run(spark, config).rows == 40
    assert archive.run(spark, config).rows == len(added)
    assert tables.table_rows(spark, to) == tables.expected([*numbered(40, 2), *added])


POINTS: list[tuple[str, type, str, bool]] = [
    ("delta", DeltaTable, "committed_rows", False),
    ("parquet", ParquetTable, "commit", False),
    ("parquet", ParquetTable, "commit", True),
    ("parquet", ParquetTable, "publish", True),
]


@pytest.mark.parametrize(("form", "kind", "method", "after"), POINTS)
def test_a_run_that_ends_at_any_point_is_started_again(
    spark: SparkSession,
    filled: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    kind: type,
    method: str,
    after: bool,
) -> None:
    config = archive.ArchiveConfig(filled, str(tmp_path / "lake"), form, max_records=25)
    with monkeypatch.context() as patch:
        patch.setattr(kind, method, killing(getattr(kind, method), after))
        with pytest.raises(Killed):
            archive.run(spark, config)
    archive.run(spark, config)
    assert tables.table_rows(spark, tmp_path / "lake") == tables.expected(numbered(40, 2))


def killing(method: Callable[..., Any], after: bool) -> Callable[..., Any]:
    def killed(*args: Any, **named: Any) -> None:
        if after:
            method(*args, **named)
        raise Killed

    return killed


@FORMATS
def test_of_two_writers_each_record_comes_from_one(
    spark: SparkSession,
    topic: str,
    filled: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    """Another one commits batch 1, the first two records of each partition, right before ours."""
    kind = DeltaTable if form == "delta" else ParquetTable
    append, turns = kind.append, iter([True])
    end = {(topic, 0): 2, (topic, 1): 2}
    theirs = archive.transform(sources.read(spark, sources.parse(filled), sources.Wanted(end=end)))

    def overtaken(self: Any, records: DataFrame, after: Ledger) -> int:
        if next(turns, False):
            append(self, theirs, Ledger().after(after.ids, end))
        return append(self, records, after)

    monkeypatch.setattr(kind, "append", overtaken)
    assert (
        archive.run(spark, archive.ArchiveConfig(filled, str(tmp_path / "lake"), form)).rows == 36
    )
    assert tables.table_rows(spark, tmp_path / "lake") == tables.expected(numbered(40, 2))


@FORMATS
def test_a_continuous_archive_takes_what_comes_and_ends_after_a_batch(
    spark: SparkSession, broker: BrokerProcess, topic: str, filled: str, tmp_path: Path, form: str
) -> None:
    class Told(Stopper):
        """Records come after the first look; told to stop after the second."""

        looks = 0

        def wait(self, seconds: float) -> bool:
            self.looks += 1
            if self.looks == 1:
                more(broker, topic)
            return self.looks == 2

    result = archive.run(
        spark,
        archive.ArchiveConfig(filled, str(tmp_path / "lake"), form, interval=0.1),
        stopper=Told(),
    )
    assert (result.rows, result.batches) == (60, 2)
    assert tables.table_rows(spark, tmp_path / "lake") == tables.expected(numbered(60, 2))


def test_a_topic_that_was_created_anew_stops(
    spark: SparkSession, broker: BrokerProcess, topic: str, filled: str, tmp_path: Path
) -> None:
    config = archive.ArchiveConfig(filled, str(tmp_path / "lake"))
    archive.run(spark, config)
    tables.delete(broker.bootstrap, topic)
    tables.create(broker.bootstrap, topic, 2)
    produce(broker.bootstrap, topic, numbered(60, 2))
    with pytest.raises(PipelineError, match="was created anew"):
        archive.run(spark, config)
    assert tables.table_rows(spark, tmp_path / "lake") == tables.expected(numbered(40, 2))


@pytest.mark.long
def test_delta_without_the_commits_of_archive_still_knows_where_it_ends(
    spark: SparkSession, broker: BrokerProcess, topic: str, filled: str, tmp_path: Path
) -> None:
    """Somebody joined the small files; then Delta cleaned its log of what is older than its
    checkpoint.
    """
    lake = tmp_path / "lake"
    config = archive.ArchiveConfig(filled, str(lake), max_records=15)
    archive.run(spark, config)
    spark.sql(f"OPTIMIZE delta.`{lake}`")
    logs = spark._jvm.org.apache.spark.sql.delta.DeltaLog
    logs.forTable(spark._jsparkSession, str(lake)).checkpoint()
    for path in sorted((lake / "_delta_log").glob("*.json"))[:-1]:
        path.unlink()
    logs.clearCache()
    shutil.rmtree(lake / "_replog" / "reached")  # as a table of an earlier version
    more(broker, topic)
    assert archive.run(spark, config).rows == 20
    assert tables.table_rows(spark, lake) == tables.expected(numbered(60, 2))


def test_delta_whose_newest_rows_and_commits_are_gone_takes_no_record_again(
    spark: SparkSession, broker: BrokerProcess, topic: str, filled: str, tmp_path: Path
) -> None:
    """Somebody deleted them; then Delta cleaned its log of what is older than its checkpoint. The
    largest offsets of the rows are below those that were reached.
    """
    lake = tmp_path / "lake"
    config = archive.ArchiveConfig(filled, str(lake))
    archive.run(spark, config)
    spark.sql(f"delete from delta.`{lake}` where offset >= 10").collect()  # noqa: S608
    logs = spark._jvm.org.apache.spark.sql.delta.DeltaLog
    logs.forTable(spark._jsparkSession, str(lake)).checkpoint()
    for path in sorted((lake / "_delta_log").glob("*.json"))[:-1]:
        path.unlink()
    logs.clearCache()
    more(broker, topic)
    result = archive.run(spark, config)
    assert result.rows == 20 and result.ledger.ids[topic] is not None
    expected = [row for row in tables.expected(numbered(60, 2)) if not 10 <= row[1] < 20]
    assert tables.table_rows(spark, lake) == expected


def test_a_first_batch_that_begins_above_zero_says_what_was_deleted_and_a_later_one_nothing(
    spark: SparkSession, kafka_files: KafkaFiles, tmp_path: Path
) -> None:
    said = io.StringIO()
    config = archive.ArchiveConfig(
        f"segments:{kafka_files.directory}?topics=rich", str(tmp_path / "lake"), max_records=20
    )
    result = archive.run(spark, config, Progress(stream=said))
    line = (
        "archive: rich: 3 records (by their offsets) had been deleted before the archive "
        "began: partition 0 begins at offset 3\n"
    )
    assert result.batches > 1 and said.getvalue().count(line) == 1 == said.getvalue().count(
        "deleted"
    )
    assert result.to_json()["deleted_before"] == {"rich": {"0": 3}} and result.findings == []


def test_read_committed_is_the_same_over_both_sources(
    spark: SparkSession, kafka_files: KafkaFiles, tmp_path: Path
) -> None:
    urls = {
        "wire": f"kafka://{kafka_files.broker.bootstrap}/rich",
        "disk": f"segments:{kafka_files.directory}?topics=rich",
    }
    found = {}
    for name, url in urls.items():
        archive.run(
            spark, archive.ArchiveConfig(url, str(tmp_path / name), isolation="read_committed")
        )
        found[name] = tables.table_rows(spark, tmp_path / name)
    everything = tables.rows(sources.read(spark, sources.parse(urls["wire"])))
    assert found["wire"] == found["disk"]
    assert 0 < len(found["wire"]) < len(everything)


def refused(*arguments: str) -> str:
    """The one line of an archive that ends with status 2."""
    result = CliRunner().invoke(pipeline, ["archive", "--quiet", *arguments])
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1
    return result.stderr


def test_what_cannot_be_archived_is_one_line_and_nothing_is_written(
    spark: SparkSession, filled: str, tmp_path: Path
) -> None:
    lake, bootstrap = str(tmp_path / "lake"), filled.split("/")[2]
    (tmp_path / "file").write_text("")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("")
    assert "is no source" in refused("--from", "mysql://x", "--to", lake)
    assert "is not on the brokers" in refused(
        "--from", f"kafka://{bootstrap}/nothing", "--to", lake
    )
    assert "is no directory" in refused("--from", f"segments:{tmp_path}/none", "--to", lake)
    assert "is a file, not a table" in refused("--from", filled, "--to", str(tmp_path / "file"))
    assert "holds a.txt and is no table" in refused(
        "--from", filled, "--to", str(tmp_path / "notes")
    )
    assert "exclude one another" in refused(
        "--from", filled, "--to", lake, "--continuous", "--available-now"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "notes"]


def test_a_delta_commit_that_was_cut_short_is_one_line(
    spark: SparkSession, filled: str, tmp_path: Path
) -> None:
    """By our own reading of the log, and by Spark's when the table is read."""
    lake = tmp_path / "lake"
    archive.run(spark, archive.ArchiveConfig(filled, str(lake)))
    newest = sorted((lake / "_delta_log").glob("*.json"))[-1]
    newest.write_bytes(newest.read_bytes()[:-40])
    assert f"{newest} is cut short" in refused("--from", filled, "--to", str(lake))
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    again = CliRunner().invoke(
        pipeline, ["replay", "--from", str(lake), "--to", f"{filled}-again", "--quiet"]
    )
    assert again.exit_code == 2 and len(again.stderr.splitlines()) == 1, again.output


@FORMATS
def test_a_damaged_segment_stops_and_nothing_is_committed(
    spark: SparkSession, broker: BrokerProcess, topic: str, filled: str, tmp_path: Path, form: str
) -> None:
    """Delta leaves files that no commit names; a Parquet table has none that a reader could take
    for its own.
    """
    copy = tmp_path / f"{topic}-0"
    copy.mkdir()
    raw = bytearray((Path(broker.data) / f"{topic}-0" / f"{0:020d}.log").read_bytes())
    raw[-1] ^= 1
    (copy / f"{0:020d}.log").write_bytes(raw)
    (tmp_path / "replication-offset-checkpoint").write_text(f"0\n1\n{topic} 0 20\n")
    lake = tmp_path / "lake"
    assert (
        "crc"
        in refused("--from", f"segments:{tmp_path}", "--to", str(lake), "--format", form).lower()
    )
    assert [*lake.glob("_delta_log/*.json"), *lake.glob("_replog/ledger/*")] == []
    assert form == "delta" or list(lake.rglob("*.parquet")) == []
    (copy / f"{0:020d}.log").write_bytes(
        (Path(broker.data) / f"{topic}-0" / f"{0:020d}.log").read_bytes()
    )
    archive.run(spark, archive.ArchiveConfig(f"segments:{tmp_path}", str(lake)))
    assert tables.table_rows(spark, lake) == [
        row for row in tables.expected(numbered(40, 2)) if row[0] == 0
    ]


def test_the_command_prints_its_result_as_json(
    spark: SparkSession, topic: str, filled: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    result = CliRunner().invoke(
        pipeline,
        [
            "archive",
            "--from",
            filled,
            "--to",
            str(lake),
            "--format",
            "parquet",
            "--json",
            "--quiet",
        ],
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["rows"], told["batches"], told["format"]) == (40, 1, "parquet")
    assert told["topics"][topic]["next"] == {"0": 20, "1": 20}
    assert "--format delta: the table" in refused(
        "--from", filled, "--to", str(lake), "--format", "delta"
    )


def drop(broker: BrokerProcess, topic: str) -> None:
    """All records of both partitions."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        admin.delete_records({TopicPartition(topic, number): -1 for number in (0, 1)})
    finally:
        admin.close()


@pytest.mark.parametrize(
    ("form", "mode"), [("delta", "append"), ("parquet", "append"), ("delta", "upsert")]
)
def test_a_loss_is_told_when_nothing_remains_to_read(
    spark: SparkSession,
    broker: BrokerProcess,
    topic: str,
    tmp_path: Path,
    form: str,
    mode: str,
) -> None:
    """By an empty batch, which brings the table past it: told once."""
    keyed = [Written(number % 2, b"%d" % number, b"v", OLD_MS) for number in range(60)]
    tables.create(broker.bootstrap, topic, 2)
    produce(broker.bootstrap, topic, keyed[:40])
    source, lake = f"kafka://{broker.bootstrap}/{topic}", str(tmp_path / "lake")
    config = archive.ArchiveConfig(source, lake, form, upsert=mode == "upsert", allow_gaps=True)
    before = archive.run(spark, config).rows
    produce(broker.bootstrap, topic, keyed[40:])
    drop(broker, topic)
    with pytest.raises(PipelineError, match="--allow-gaps"):
        archive.run(spark, replace(config, allow_gaps=False))
    found = archive.run(spark, config)
    assert (found.rows, found.batches, len(found.findings)) == (0, 1, 2)
    assert found.ledger.next == {(topic, 0): 30, (topic, 1): 30} and before == 40
    again = archive.run(spark, config)
    assert (again.batches, again.findings) == (0, [])
    produce(broker.bootstrap, topic, [Written(0, b"new", b"v", OLD_MS)])
    assert archive.run(spark, config).rows == 1


def test_a_first_batch_of_what_was_all_deleted_says_so(
    spark: SparkSession, broker: BrokerProcess, topic: str, filled: str, tmp_path: Path
) -> None:
    drop(broker, topic)
    found = archive.run(spark, archive.ArchiveConfig(filled, str(tmp_path / "lake")))
    assert (found.rows, found.batches) == (0, 1)
    assert found.to_json()["deleted_before"] == {topic: {"0": 20, "1": 20}}


def test_a_table_keeps_its_isolation(
    spark: SparkSession, broker: BrokerProcess, topic: str, filled: str, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    archive.run(spark, archive.ArchiveConfig(filled, lake, isolation="read_committed"))
    more(broker, topic)
    assert "--read-committed: give it again" in refused("--from", filled, "--to", lake)
