"""What a replay reads: one topic of a table, of log directories or of a cluster.

1. Of a source with several topics the caller names one.
2. A table is known by its ledger: none of its rows is read to find its topics and partitions.
3. What a table has forgotten is not read from it, though its rows came back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from replog_pipeline import sources
from replog_pipeline.columns import Offsets
from replog_pipeline.errors import PipelineError
from replog_pipeline.kafka_cluster import PLAINTEXT, ClientConfig
from replog_pipeline.lake import forgotten, guards, table
from replog_pipeline.sources import KafkaSource, Wanted, extents
from twisted_broker.wire.primitives import uuid_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNKNOWN_ID = uuid_text(bytes(16))
"""What a cluster says that knows no topic ids."""
NEEDED = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")


@dataclass(frozen=True)
class Origin:
    """One topic of the source: its id where that is known and it is no table's, how many partitions
    it has, its rows, and their day or time, as an SQL column.
    """

    topic: str
    id: str | None
    partitions: int
    rows: DataFrame
    age: str


def check_origin(place: str, topic: str | None, client: ClientConfig = PLAINTEXT) -> str | None:
    """What can be known of it without Spark: the id of the topic that is read. PipelineError."""
    if place.startswith(("kafka:", "segments:")):
        source = sources.parse(place, client=client)
        if isinstance(source, KafkaSource):
            chosen({(name, 0): 0 for name in source.topics}, place, topic)
        found = extents.check(source)
        if not found:
            return None
        return found.ids[chosen(dict.fromkeys(found.partitions, 0), place, topic)[0]]
    ledger = table.check_from(place)
    if ledger is not None:
        guards.check_complete(ledger, place)
        chosen(ledger.next, place, topic)
    return None


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
        topic_id = extent.ids[name]
        return Origin(name, topic_id, partitions, rows.where(rows.topic == name), "timestamp")
    lake = table.existing(spark, place)
    ledger = lake.ledger()
    guards.check_complete(ledger, place)
    name, partitions = chosen(ledger.next, place, topic)
    rows = forgotten.without(lake.read(), lake.files)
    return Origin(name, None, partitions, rows.where(rows.topic == name), "date")


def check_other(topic_id: str | None, target_id: str | None, to: str) -> None:
    """PipelineError where a topic would be replayed into itself."""
    if topic_id == target_id and topic_id not in (None, UNKNOWN_ID):
        raise PipelineError(
            f"--to {to} is the topic of --from itself: name another, it is created if it is not "
            "there"
        )


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
