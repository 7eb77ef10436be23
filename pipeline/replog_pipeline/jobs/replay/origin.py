"""What a replay reads: one topic of a table, of log directories or of a cluster.

1. Of a source with several topics the caller names one.
2. A table is known by its ledger: none of its rows is read to find its topics and partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from replog_pipeline import sources
from replog_pipeline.columns import Offsets
from replog_pipeline.errors import PipelineError
from replog_pipeline.kafka_cluster import PLAINTEXT, ClientConfig
from replog_pipeline.lake import guards, table
from replog_pipeline.sources import KafkaSource, Wanted, extents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NEEDED = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")


@dataclass(frozen=True)
class Origin:
    """One topic of the source: how many partitions it has, its rows, and its oldest day or time,
    as an SQL column.
    """

    topic: str
    partitions: int
    rows: DataFrame
    age: str


def check_origin(place: str, topic: str | None, client: ClientConfig = PLAINTEXT) -> None:
    """What can be known of it without Spark. PipelineError."""
    if place.startswith(("kafka:", "segments:")):
        source = sources.parse(place, client=client)
        if isinstance(source, KafkaSource):
            chosen({(name, 0): 0 for name in source.topics}, place, topic)
        found = extents.check(source)
        if found:
            chosen(dict.fromkeys(found.partitions, 0), place, topic)
        return
    ledger = table.check_from(place)
    if ledger is not None:
        guards.check_complete(ledger, place)
        chosen(ledger.next, place, topic)


def found_origin(
    spark: SparkSession, place: str, topic: str | None, client: ClientConfig = PLAINTEXT
) -> Origin:
    """The source's one topic.

    PipelineError when there is none, or several and `--topic` does not choose.
    """
    if place.startswith(("kafka:", "segments:")):
        source = sources.parse(place, client=client)
        extent = extents.extent(spark, source)
        name, partitions = chosen(extent.end, place, topic)
        rows = sources.read(
            spark, source, Wanted(NEEDED, extent.start, extent.end, only_named=True)
        )
        return Origin(name, partitions, rows.where(rows.topic == name), "timestamp")
    lake = table.existing(spark, place)
    ledger = lake.ledger()
    guards.check_complete(ledger, place)
    name, partitions = chosen(ledger.next, place, topic)
    rows = lake.read()
    return Origin(name, partitions, rows.where(rows.topic == name), "date")


def chosen(offsets: Offsets, place: str, topic: str | None) -> tuple[str, int]:
    """(topic, its number of partitions)."""
    topics = sorted({name for name, _ in offsets})
    name = topic or (topics[0] if len(topics) == 1 else None)
    if name is None:
        raise PipelineError(
            f"--from {place} holds {', '.join(topics) or 'no topic'}: choose one with --topic"
        )
    if name not in topics:
        raise PipelineError(
            f"--topic {name}: --from {place} holds {', '.join(topics) or 'no topic'}"
        )
    return name, max(partition for each, partition in offsets if each == name) + 1
