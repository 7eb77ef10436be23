"""`replay`: a table, a log directory or a topic back into a topic: key, value, headers, timestamp,
partition and order as they were.

1. Each partition's records go to the partition of the same number, in the order of their offsets;
   offsets in the target count from 0.
2. Started again after a failure it continues where the target ends, and repeats nothing (see the
   card of `replog_pipeline.replay`).
3. The target is checked before the first record is sent.
4. One shuffle by partition and a sort within: a partition is written by one task, in order.

Source: our own. Not here: offsets of consumer groups; log append times (they come back
as create times).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from replog_pipeline import flat_rows
from replog_pipeline.errors import PipelineError, as_pipeline_error, raised_in_task
from replog_pipeline.jobs.replay import target_topic
from replog_pipeline.jobs.replay.origin import found_origin
from replog_pipeline.kafka_cluster import PLAINTEXT, ClientConfig
from replog_pipeline.progress import Progress
from replog_pipeline.replay.task import Orders
from replog_pipeline.sources import KafkaSource, parse
from twisted_broker.wire.compression import CODEC_IDS, CODEC_NAMES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

DONE = "partition int, records bigint, written bigint"
LARGEST_BATCH = 900_000  # below the default of max.message.bytes, 1,048,588


@dataclass(frozen=True)
class ReplayConfig:
    """`source`: a table's path, segments: or kafka://.

    `topic`: which of the source's topics, needed when it has several. `client`: how clusters are
    reached; `source_client`: the source's, where it is another.
    """

    source: str
    to: str
    topic: str | None = None
    compression: str = "none"
    replication: int = -1
    client: ClientConfig = PLAINTEXT
    source_client: ClientConfig | None = None

    @property
    def reads_by(self) -> ClientConfig:
        """How the source is reached."""
        return self.client if self.source_client is None else self.source_client


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
            "to": self.to,
            "topic": self.topic,
            "partitions": self.partitions,
            "records": self.records,
            "written": self.written,
            "findings": [],
        }


def transform(rows: DataFrame, partitions: int) -> DataFrame:
    """All rows of a partition in one task, in the order of their offsets."""
    return rows.repartition(partitions, "partition").sortWithinPartitions("partition", "offset")


@as_pipeline_error
def run(
    spark: SparkSession, config: ReplayConfig, progress: Progress | None = None
) -> ReplayResult:
    """Replay. Raises PipelineError; what is in the target by then is a correct beginning."""
    progress = progress or Progress(quiet=True)
    to = destination(config.to, config.client)
    if config.compression not in CODEC_IDS:
        raise PipelineError(
            f"--compression: {config.compression!r} is none of {', '.join(CODEC_NAMES)}"
        )
    origin = found_origin(spark, config.source, config.topic, config.reads_by)
    batch_bytes = min(
        LARGEST_BATCH, target_topic.prepare(spark, to, origin, config.replication, progress)
    )
    orders = Orders(to.cluster, to.topics[0], CODEC_IDS[config.compression], batch_bytes)
    with progress.step(f"replay: {origin.topic} to {config.to}", spark):
        done = write(transform(origin.rows, origin.partitions), orders)
    records, written = sum(each["records"] for each in done), sum(each["written"] for each in done)
    return ReplayResult(config.to, origin.topic, origin.partitions, records, written)


def destination(url: str, client: ClientConfig = PLAINTEXT) -> KafkaSource:
    if not url.startswith("kafka://"):
        raise PipelineError(
            f"--to: {url!r} is no topic: write kafka://HOST:PORT/TOPIC (`archive` writes tables)"
        )
    found = parse(url, "--to", client)
    if not isinstance(found, KafkaSource) or len(found.topics) != 1:
        raise PipelineError(f"--to: {url!r} must name one topic: kafka://HOST:PORT/TOPIC")
    return found


def write(rows: DataFrame, orders: Orders) -> list[dict[str, int]]:
    """Runs the tasks; what each partition came to."""

    def tasks(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from replog_pipeline.replay.task import replay

        done = [
            {"partition": each.partition, "records": each.records, "written": each.written}
            for each in replay(orders, pieces)
        ]
        yield pa.RecordBatch.from_pylist(done, schema=flat_rows.arrow_schema(DONE))

    try:
        return [row.asDict() for row in rows.mapInArrow(tasks, DONE).collect()]
    except Exception as error:
        if raised_in_task(error):
            raise PipelineError(raised_in_task(error)) from None
        raise
