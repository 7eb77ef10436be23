"""Reads topics of a running cluster through Spark's official Kafka connector.

1. A range is fixed before the read: every partition has a start and an end offset in the connector's own JSON. A partition that vanished or was cut
   below its start fails the job (`failOnDataLoss`); nothing is passed over silently.
2. The consumer polls in large pieces. By default the connector asks ListOffsets twice for every 500 records; with
   `max.poll.records` raised it hardly does.
3. A topic that is not there, or a broker that does not answer, is found before Spark plans anything, and is one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from twisted_broker.pipeline import kafka_admin
from twisted_broker.pipeline.columns import COLUMNS
from twisted_broker.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from twisted_broker.pipeline.sources import KafkaSource, Offsets

POLLING = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(10 << 20),
    "kafka.fetch.max.bytes": str(50 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}
ISOLATION = ("read_uncommitted", "read_committed")


def read(
    spark: SparkSession,
    source: KafkaSource,
    *,
    columns: Sequence[str] = COLUMNS,
    start: Offsets | None = None,
    end: Offsets | None = None,
    isolation: str = "read_uncommitted",
    options: Mapping[str, str],
) -> DataFrame:
    """What the topics hold between `start` and `end`; see `sources.read`."""
    check_columns(columns)
    known = kafka_admin.partitions(spark, source.bootstrap, source.topics)
    reader = spark.read.format("kafka").options(**settings(source, columns, isolation, options))
    if "startingOffsets" not in options and "startingTimestamp" not in options:
        reader = reader.option("startingOffsets", offsets_json(known, start, EARLIEST))
    if "endingOffsets" not in options and "endingTimestamp" not in options:
        reader = reader.option("endingOffsets", offsets_json(known, end, LATEST))
    return reader.load().select(*columns)


def read_stream(
    spark: SparkSession,
    source: KafkaSource,
    *,
    columns: Sequence[str] = COLUMNS,
    start: Offsets | None = None,
    isolation: str = "read_uncommitted",
    options: Mapping[str, str],
) -> DataFrame:
    """What the topics hold from `start` on, and what comes; see `sources.read_stream`."""
    check_columns(columns)
    known = kafka_admin.partitions(spark, source.bootstrap, source.topics)
    first = {"startingOffsets": offsets_json(known, start, EARLIEST) if start else "earliest"}
    return spark.readStream.format("kafka").options(**first | settings(source, columns, isolation, options)).load().select(*columns)


EARLIEST, LATEST = -2, -1


def settings(source: KafkaSource, columns: Sequence[str], isolation: str, options: Mapping[str, str]) -> dict[str, str]:
    """The connector's options; those of the caller win."""
    if isolation not in ISOLATION:
        raise PipelineError(f"isolation: {isolation!r} is neither {ISOLATION[0]} nor {ISOLATION[1]}")
    own = {
        "kafka.bootstrap.servers": source.bootstrap,
        "subscribe": ",".join(source.topics),
        "includeHeaders": str("headers" in columns).lower(),
        "kafka.isolation.level": isolation,
    }
    return POLLING | own | dict(options)


def offsets_json(known: Mapping[str, Sequence[int]], given: Offsets | None, otherwise: int) -> str:
    """{"topic": {"0": 17, "1": -2}} over every known partition. Raises PipelineError for a partition that is not there."""
    given = given or {}
    for topic, partition in given:
        if partition not in known.get(topic, ()):
            raise PipelineError(f"offsets: {topic}-{partition} is no partition of the topics that are read")
    return json.dumps({topic: {str(number): given.get((topic, number), otherwise) for number in numbers} for topic, numbers in known.items()})


def check_columns(columns: Sequence[str]) -> None:
    """Raises PipelineError for a column that the wire does not carry."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        cure = f"read the log directory (segments:DIRECTORY), or one of {', '.join(COLUMNS)}"
        raise PipelineError(f"columns: {unknown[0]!r} cannot be read through a broker; {cure}")
