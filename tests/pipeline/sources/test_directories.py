"""`kafka-segments` in Spark: the same rows as through the connector, push-down, pruning,
streaming; one line for what is wrong.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from replog_pipeline import sources
from replog_pipeline.columns import ALL_COLUMNS, COLUMNS
from replog_pipeline.errors import PipelineError, raised_in_task
from replog_pipeline.kafka_cluster import KafkaCluster
from replog_pipeline.segments import datasource
from replog_pipeline.sources import kafka_admin
from tests.pipeline.decoding import Row, expected, unpack_golden
from tests.pipeline.kafka_files import TOPICS
from tests.pipeline.records import numbered, produce

PATIENCE_SECONDS = 180


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_golden(tmp_path_factory.mktemp("golden"))


def segments(*directories: object, topics: tuple[str, ...] = ()) -> sources.SegmentsSource:
    return sources.SegmentsSource(tuple(map(str, directories)), topics)


def rows(frame) -> list[Row]:
    """Every column as plain values, in order; timestamps as Spark writes them."""
    text = [
        f"cast({name} as string) {name}" if name == "timestamp" else name for name in frame.columns
    ]
    found = [row.asDict(recursive=True) for row in frame.selectExpr(*text).collect()]
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_both_sources_give_the_same_rows_of_kafkas_files(
    spark, kafka_files, isolation: str
) -> None:
    """All codecs, headers, transactions that committed, aborted and stayed open, a log start
    behind the first record.
    """
    wire = sources.read(
        spark,
        sources.KafkaSource(kafka_files.broker.bootstrap, TOPICS),
        sources.Wanted(isolation=isolation),
    )
    disk = sources.read(
        spark,
        segments(kafka_files.directory, topics=TOPICS),
        sources.Wanted(isolation=isolation, options={"upto": "log_end"}),
    )
    assert disk.schema == wire.schema
    assert rows(disk) == rows(wire) != []


def test_both_sources_give_the_same_rows_of_our_broker(spark, broker, topic: str) -> None:
    """While the broker runs: everything up to the high watermark, as soon as its checkpoint says
    so.
    """
    kafka_admin.create_topic(
        spark, KafkaCluster(broker.bootstrap), topic, 3, config={"retention.ms": "-1"}
    )
    for codec in ("gzip", "snappy", "lz4", "zstd", None):
        produce(broker.bootstrap, topic, numbered(30, 3), compression_type=codec)
    await_checkpoint(Path(broker.data), topic, {0: 50, 1: 50, 2: 50})
    wire = sources.read(spark, sources.KafkaSource(broker.bootstrap, (topic,)))
    assert rows(sources.read(spark, segments(broker.data, topics=(topic,)))) == rows(wire)


def await_checkpoint(directory: Path, topic: str, offsets: dict[int, int]) -> None:
    """Wait until the high-watermark checkpoint has these offsets."""
    wanted = {f"{topic} {partition} {offset}" for partition, offset in offsets.items()}
    deadline = time.monotonic() + PATIENCE_SECONDS
    path = directory / "replication-offset-checkpoint"
    while not (path.exists() and wanted <= set(path.read_text().splitlines())):
        assert time.monotonic() < deadline, f"{path} has not got {wanted}"
        time.sleep(0.1)


@pytest.fixture(autouse=True)
def known(spark) -> None:
    """As in a notebook: the tests name the source itself, too."""
    datasource.register(spark)


def test_all_columns_arrive_with_their_types(spark, golden: Path) -> None:
    frame = spark.read.format("kafka-segments").option("control", "true").load(str(golden))
    assert tuple(frame.columns) == ALL_COLUMNS
    found = rows(frame)
    transactions = [row for row in found if row["topic"] == "transactions"]
    assert (
        sum(row["control"] for row in transactions) == 5
        and sum(row["aborted"] for row in transactions) == 8
    )
    assert {row["codec"] for row in found if row["topic"] == "codecs"} == {
        "none",
        "gzip",
        "snappy",
        "lz4",
        "zstd",
    }
    assert all(row["crcOk"] for row in found) and len(
        [row for row in found if not row["control"]]
    ) == len(expected())


FILTERS = {
    "topic = 'codecs'": 15,
    "topic in ('codecs', 'appended') and partition = 0": 4,
    "topic = 'codecs' and partition > 1 and partition <= 3 and offset >= 16": 4,
    "topic = 'codecs' and offset = 20": 5,
    "topic = 'codecs' and offset > 3 and offset < 17": 10,
    "topic = 'codecs' and offset is not null and partition <=> 4 and offset <= 15": 1,
}
KEPT_BY_SPARK = (
    "topic like 'c%s'",
    "offset in (3, 30) and topic = 'codecs'",
    "topic <> 'codecs'",
    "partition = 1 or offset = 3",
)


@pytest.mark.parametrize("condition", FILTERS)
def test_filters_are_pushed_down_and_prune_files(spark, golden: Path, condition: str) -> None:
    """Spark applies no filter of its own, reads the files that can match, and the rows are those
    of the filter.
    """
    frame = sources.read(spark, segments(golden)).where(condition)
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "Filter" not in plan.replace("RuntimeFilters", "").replace("PushedFilters", "")
    assert frame.rdd.getNumPartitions() == FILTERS[condition]
    assert rows(frame) == unpushed(spark, golden, condition) != []


@pytest.mark.parametrize("condition", KEPT_BY_SPARK)
def test_other_filters_are_left_to_spark(spark, golden: Path, condition: str) -> None:
    assert (
        rows(sources.read(spark, segments(golden)).where(condition))
        == unpushed(spark, golden, condition)
        != []
    )


def unpushed(spark, golden: Path, condition: str) -> list[Row]:
    """The rows under a filter that Spark applies to a table of its own."""
    frame = sources.read(spark, segments(golden))
    return rows(spark.createDataFrame(frame.collect(), frame.schema).where(condition))


def test_nothing_matches_nothing(spark, golden: Path) -> None:
    assert sources.read(spark, segments(golden)).where("topic = 'nowhere'").count() == 0


def test_offset_filters_on_flagged_rows_are_exact(spark, golden: Path, tmp_path: Path) -> None:
    """A row that stands for a damaged batch is filtered like any other."""
    shutil.copytree(golden, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "codecs-1" / "00000000000000000016.log"
    path.write_bytes(path.read_bytes()[:70] + bytes(20) + path.read_bytes()[90:])
    wanted = sources.Wanted(
        columns=("partition", "offset", "value", "crcOk"), options={"crc": "flag"}
    )
    frame = sources.read(spark, segments(tmp_path, topics=("codecs",)), wanted)
    damaged = frame.where("not crcOk").collect()
    assert [(row.partition, row.offset, row.value) for row in damaged] == [(1, 16, None)]
    assert (
        frame.where("partition = 1 and offset > 16 and offset < 20").where("not crcOk").count() == 0
    )


def test_a_schema_names_the_columns_that_are_read(spark, golden: Path) -> None:
    frame = (
        spark.read.format("kafka-segments").schema("offset long, codec string").load(str(golden))
    )
    assert frame.columns == ["offset", "codec"] and frame.count() == len(expected())


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("ofset long", {}, "there is no column 'ofset'"),
        ("offset int", {}, "offset is bigint, not int"),
        ("offset long", {"crc": "maybe"}, "option crc: 'maybe' is none of fail, flag"),
    ],
)
def test_a_wrong_reader_is_one_line(
    spark, golden: Path, schema: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        spark.read.format("kafka-segments").schema(schema).options(**options).load(
            str(golden)
        ).count()


def test_damage_in_a_task_names_file_and_byte(spark, golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "appended-0" / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(
        Exception,
        match=r"00000000000000000000.log, byte \d+: a batch has a wrong CRC at offset \d+",
    ) as raised:
        sources.read(spark, segments(tmp_path, topics=("appended",))).count()
    assert raised_in_task(raised.value).startswith("segments: ")


def test_what_is_not_there_is_found_before_spark_plans(spark, golden: Path) -> None:
    for source, message in (
        (segments("/nowhere"), "is no directory"),
        (segments(golden, topics=("nothing",)), "no partition of nothing"),
    ):
        with pytest.raises(PipelineError, match=message):
            sources.read(spark, source)
    with pytest.raises(PipelineError, match="there is no column 'ofset'"):
        sources.read(spark, segments(golden), sources.Wanted(columns=("ofset",)))


def test_a_stream_reads_closed_segments_once(spark, golden: Path, tmp_path: Path) -> None:
    """Up to the active segment; after that was closed, what came with it, and nothing twice."""
    log, table, checkpoint = tmp_path / "log", tmp_path / "table", tmp_path / "checkpoint"
    shutil.copytree(golden, log)
    closed = log / "codecs-0" / "00000000000000000048.log"

    def offsets() -> list[tuple[int, int]]:
        stream = sources.read_stream(
            spark,
            segments(log, topics=("codecs",)),
            sources.Wanted(columns=("partition", "offset")),
        )
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(table))
        )
        assert query.awaitTermination(PATIENCE_SECONDS)
        return sorted(
            (row.partition, row.offset) for row in spark.read.parquet(str(table)).collect()
        )

    before = [(partition, offset) for partition in range(5) for offset in range(32)]
    assert offsets() == before
    assert offsets() == before
    closed.write_bytes(b"")
    assert offsets() == sorted([*before, *((0, offset) for offset in range(32, 48))])


def test_a_stream_whose_topic_was_made_anew_stops(spark, golden: Path, tmp_path: Path) -> None:
    log, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    shutil.copytree(golden, log)

    def run() -> None:
        stream = sources.read_stream(
            spark, segments(log, topics=("codecs",)), sources.Wanted(columns=("offset",))
        )
        query = (
            stream.writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_SECONDS)

    run()
    offsets = checkpoint / "offsets" / "0"
    head, _, positions = offsets.read_text().rpartition("\n")
    offsets.write_text(head + "\n" + json.dumps({name: 1000 for name in json.loads(positions)}))
    (checkpoint / "commits" / "0").unlink()
    for crc in (*checkpoint.rglob(".*.crc"),):
        crc.unlink()
    with pytest.raises(Exception, match="no closed segment up to offset 1000"):
        run()


def test_columns_are_those_of_the_connector(spark, golden: Path) -> None:
    assert sources.read(spark, segments(golden)).columns == list(COLUMNS)
