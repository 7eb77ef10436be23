"""The topic that a replay writes to: created if it is missing, and checked before anything is
sent.

1. A new topic has the source's number of partitions; when the source's oldest records are older
   than Kafka's default retention it keeps them for ever (`retention.ms=-1`), else the brokers would
   delete what was just written.
2. An existing topic must keep all records: create times, no compaction, no retention shorter
   than the records' age; and it must be empty, or have nothing but the beginning of this replay.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs.replay.origin import Origin
from replog_pipeline.progress import Progress
from replog_pipeline.replay import target
from replog_pipeline.replay.cluster import Cluster
from replog_pipeline.replay.writer import PartitionWriter
from replog_pipeline.sources import KafkaSource, kafka_admin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 24 * 3_600_000
DEFAULT_RETENTION_MS = 7 * DAY_MS


def prepare(
    spark: SparkSession, to: KafkaSource, origin: Origin, replication: int, progress: Progress
) -> int:
    """The topic, ready to be written; the bytes that a batch may have.

    Raises PipelineError with the remedy.
    """
    topic, age = to.topics[0], age_ms(origin)
    if not kafka_admin.exists(spark, to.cluster, topic):
        kafka_admin.create_topic(
            spark,
            to.cluster,
            topic,
            origin.partitions,
            replication,
            kept(topic, origin, age, progress),
        )
    config = kafka_admin.topic_config(spark, to.cluster, topic)
    check_settings(topic, config, age)
    check_partitions(spark, to, origin, progress)
    return int(config["max.message.bytes"]) * 7 // 8


def age_ms(origin: Origin) -> int:
    """Of the oldest record; of its day, where the source knows that without reading records. 0
    without records.
    """
    from pyspark.sql import functions as f

    oldest = (
        origin.rows.agg(f.min(origin.age).cast("timestamp").alias("oldest"))
        .select(f.unix_millis("oldest"))
        .collect()[0][0]
    )
    return 0 if oldest is None else max(0, int(time.time() * 1000) - oldest)


def kept(topic: str, origin: Origin, age: int, progress: Progress) -> dict[str, str]:
    """Settings of a new topic under which its records stay."""
    if age < DEFAULT_RETENTION_MS:
        progress.say(f"replay: topic {topic} is created with {origin.partitions} partitions")
        return {}
    days = f"records are up to {age // DAY_MS:,} days old"
    progress.say(
        f"replay: topic {topic} is created with {origin.partitions} partitions and "
        f"retention.ms=-1, because {days}"
    )
    return {"retention.ms": "-1"}


def check_settings(topic: str, config: dict[str, str], age: int) -> None:
    """A topic that would change or delete what it gets is refused."""
    retention = int(config["retention.ms"])
    if "compact" in config["cleanup.policy"]:
        raise PipelineError(
            f"topic {topic} has cleanup.policy={config['cleanup.policy']}, which removes "
            "records: replay into one with delete"
        )
    if config["message.timestamp.type"] != "CreateTime":
        raise PipelineError(
            f"topic {topic} has message.timestamp.type=LogAppendTime, which replaces "
            "timestamps: set it to CreateTime"
        )
    if 0 <= retention < age:
        keeps = (
            f"keeps records {retention / DAY_MS:.3g} days (retention.ms), but the "
            f"source's are up to {age // DAY_MS:,} days old"
        )
        raise PipelineError(
            f"topic {topic} {keeps} and would be deleted: set retention.ms=-1 of it"
        )


def check_partitions(
    spark: SparkSession, to: KafkaSource, origin: Origin, progress: Progress
) -> None:
    """Enough partitions, each empty or a beginning of this replay as far as the target alone can
    tell.
    """
    topic = to.topics[0]
    numbers = kafka_admin.partitions(spark, to.cluster, [topic])[topic]
    if len(numbers) < origin.partitions:
        raise PipelineError(
            f"topic {topic} has {len(numbers)} partitions, the source {origin.partitions}: "
            f"add partitions, or {target.ANOTHER}"
        )
    with Cluster(to.cluster, topic) as cluster:
        there = sum(PartitionWriter(cluster, number, codec=0).written for number in numbers)
    if there:
        progress.say(f"replay: {there:,} records are there already")
