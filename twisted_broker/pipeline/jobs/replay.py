"""`replay`: a table, a log directory or a topic back into a topic: key, value, headers, timestamp, partition and order as they were.

1. Each partition's records go to the partition of the same number, in the order of their offsets; offsets in the target count from 0.
2. Started again after any failure it goes on where the target ends, and repeats nothing: how, says the card of `pipeline.replay`.
3. What can be wrong with the target is looked at before the first record is sent.
4. One shuffle by partition and a sort within: a partition is written by one task, in order.

Source: issue 5; SPARK.md 7. Left out: offsets of consumer groups; log append times (they come back as create times).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from twisted_broker.pipeline import sources
from twisted_broker.pipeline.errors import PipelineError, raised_in_task
from twisted_broker.pipeline.jobs import replay_target
from twisted_broker.pipeline.lake import extents, table
from twisted_broker.pipeline.lake.ledger import Offsets
from twisted_broker.pipeline.progress import Progress
from twisted_broker.pipeline.replay.task import Orders
from twisted_broker.wire.compression import CODEC_IDS, CODEC_NAMES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NEEDED = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
DONE = "partition int, records bigint, written bigint"
LARGEST_BATCH = 900_000  # below the default of max.message.bytes, 1,048,588


@dataclass(frozen=True)
class ReplayConfig:
    """`source`: a table's path, segments: or kafka://. `topic`: which of the source's topics, needed when it has several."""

    source: str
    to: str
    topic: str | None = None
    compression: str = "none"
    replication: int = -1


@dataclass(frozen=True)
class ReplayResult:
    """`records` of the source, of which `written` were written by this run."""

    to: str
    topic: str
    partitions: int
    records: int
    written: int

    @property
    def findings(self) -> list[str]:
        return []

    def to_json(self) -> dict[str, object]:
        return {
            "to": self.to, "topic": self.topic, "partitions": self.partitions, "records": self.records, "written": self.written, "findings": [],
        }  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """One topic of the source: how many partitions it has, its rows, and its oldest day or time, as an SQL column."""

    topic: str
    partitions: int
    rows: DataFrame
    age: str


def transform(rows: DataFrame, partitions: int) -> DataFrame:
    """All rows of a partition in one task, in the order of their offsets."""
    return rows.repartition(partitions, "partition").sortWithinPartitions("partition", "offset")


def run(spark: SparkSession, config: ReplayConfig, progress: Progress | None = None) -> ReplayResult:
    """Replay. Raises PipelineError; what is in the target by then is a correct beginning."""
    progress = progress or Progress(quiet=True)
    to = destination(config.to)
    origin = found_origin(spark, config)
    batch_bytes = min(LARGEST_BATCH, replay_target.prepare(spark, to, origin, config.replication, progress))
    orders = Orders(to.bootstrap, to.topics[0], CODEC_IDS[config.compression], batch_bytes)
    with progress.step(f"replay: {origin.topic} to {config.to}", spark):
        done = write(transform(origin.rows, origin.partitions), orders)
    records, written = sum(each["records"] for each in done), sum(each["written"] for each in done)
    return ReplayResult(config.to, origin.topic, origin.partitions, records, written)


def destination(url: str) -> sources.KafkaSource:
    found = sources.parse(url, "--to")
    if not isinstance(found, sources.KafkaSource) or len(found.topics) != 1:
        raise PipelineError(f"--to: {url!r} must name one topic: kafka://HOST:PORT/TOPIC")
    return found


def found_origin(spark: SparkSession, config: ReplayConfig) -> Origin:
    """The source's one topic. PipelineError when there is none, or several and `--topic` does not choose."""
    if config.source.startswith(("kafka:", "segments:")):
        source = sources.parse(config.source)
        extent = extents.extent(spark, source, "read_uncommitted")
        name, partitions = chosen(extent.end, config)
        rows = sources.read(spark, source, columns=NEEDED, start=extent.start, end=extent.end)
        return Origin(name, partitions, rows.where(rows.topic == name), "timestamp")
    lake = table.existing(spark, config.source)
    name, partitions = chosen(lake.ledger().next, config)
    rows = lake.read()
    return Origin(name, partitions, rows.where(rows.topic == name), "date")


def chosen(offsets: Offsets, config: ReplayConfig) -> tuple[str, int]:
    """(topic, its number of partitions)."""
    topics = sorted({topic for topic, _ in offsets})
    name = config.topic or (topics[0] if len(topics) == 1 else None)
    if name is None:
        raise PipelineError(f"--from {config.source} holds {', '.join(topics) or 'no topic'}: choose one with --topic")
    if name not in topics:
        raise PipelineError(f"--topic {name}: --from {config.source} holds {', '.join(topics) or 'no topic'}")
    return name, max(partition for topic, partition in offsets if topic == name) + 1


def write(rows: DataFrame, orders: Orders) -> list[dict[str, int]]:
    """Runs the tasks; what each partition came to."""

    def tasks(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from twisted_broker.pipeline.replay.task import replay

        done = list(replay(orders, pieces))
        columns = [[each.partition for each in done], [each.records for each in done], [each.written for each in done]]
        types = [pa.int32(), pa.int64(), pa.int64()]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, ["partition", "records", "written"])

    try:
        return [row.asDict() for row in rows.mapInArrow(tasks, DONE).collect()]
    except Exception as error:
        if raised_in_task(error):
            raise PipelineError(raised_in_task(error)) from None
        raise


@click.command("replay")
@click.option("--from", "source", required=True, metavar="SOURCE", help="A table's PATH, segments:DIRECTORY or kafka://HOST:PORT/TOPIC.")
@click.option("--to", required=True, metavar="URL", help="kafka://HOST:PORT/TOPIC; the topic is created if it is not there.")
@click.option("--topic", help="Which of the source's topics, when it holds several.")
@click.option("--compression", type=click.Choice(CODEC_NAMES), default="none", show_default=True)
@click.option("--replication", type=int, default=-1, help="Replicas of a topic that is created; the cluster's default unless said.")
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress.")
def command(source: str, to: str, topic: str | None, compression: str, replication: int, as_json: bool, quiet: bool) -> None:
    """Produce a table or a log directory back into a topic: keys, values, headers, timestamps, partitions and order as they were.

    Run it again after any failure: it goes on where the target ends, and no record is written twice.
    """
    from twisted_broker.pipeline import session

    destination(to)
    progress = Progress(quiet)
    spark = session.build("replog replay", formats=("kafka", "delta"), tell=progress.say)
    result = run(spark, ReplayConfig(source, to, topic, compression, replication), progress)
    there = result.records - result.written
    click.echo(json.dumps(result.to_json()) if as_json else f"{result.written:,} records written to {to}, {there:,} were there")
