"""The topic that a replay writes to: created if it is missing, and checked before anything is
sent.

1. A new topic has the source's number of partitions; when the source's oldest records are older
   than Kafka's default retention it keeps them for ever (`retention.ms=-1`), else the brokers would
   delete what was just written. Where its bounds of timestamps (`message.timestamp.before.max.ms`,
   `.after.max.ms`) would refuse the source's oldest or newest, they are lifted.
2. An existing topic must take and keep all records: create times, no compaction, no retention and
   no bounds narrower than the records' times; and it must be empty, or have nothing but the
   beginning of this replay.
3. It is not the topic that is read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs.replay.origin import Origin, check_other
from replog_pipeline.progress import Progress
from replog_pipeline.replay import target
from replog_pipeline.replay.cluster import Cluster
from replog_pipeline.replay.writer import PartitionWriter
from replog_pipeline.sources import KafkaSource, kafka_admin
from twisted_broker.wire.primitives import uuid_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 24 * 3_600_000
LONG_MAX = (1 << 63) - 1
BEFORE, AFTER = (f"message.timestamp.{each}.max.ms" for each in ("before", "after"))
DEFAULT_RETENTION_MS = 7 * DAY_MS


def prepare(
    spark: SparkSession, to: KafkaSource, origin: Origin, replication: int, progress: Progress
) -> int:
    """The topic, ready to be written; the bytes that a batch may have.

    Raises PipelineError with the remedy.
    """
    topic, (age, ahead) = to.topics[0], edges_ms(origin)
    is_new = not kafka_admin.exists(spark, to.cluster, topic)
    if is_new:
        kafka_admin.create_topic(
            spark,
            to.cluster,
            topic,
            origin.partitions,
            replication,
            kept(topic, origin, age, progress),
        )
    config = kafka_admin.topic_config(spark, to.cluster, topic)
    narrow = narrow_bounds(config, age, ahead)
    if is_new and narrow:
        kafka_admin.alter_topic(spark, to.cluster, topic, dict.fromkeys(narrow, str(LONG_MAX)))
        progress.say(f"replay: {' and '.join(narrow)} of {topic} lifted for the source's times")
        narrow = []
    check_settings(topic, config, age, narrow)
    check_partitions(spark, to, origin, progress)
    return int(config["max.message.bytes"]) * 7 // 8


def edges_ms(origin: Origin) -> tuple[int, int]:
    """How old the oldest record is, and how far ahead of now the newest; (0, 0) without records.
    Where the source knows days without reading records, the oldest one's day counts, and only
    records of today and later are looked at for the newest.
    """
    from pyspark.sql import functions as f

    def ms(which: Any) -> Any:
        return f.unix_millis(which(origin.age).cast("timestamp"))

    now = int(time.time() * 1000)
    oldest, newest = origin.rows.agg(ms(f.min), ms(f.max)).collect()[0]
    today = now - now % DAY_MS
    if origin.age == "date" and newest is not None and newest >= today:
        late = origin.rows.where(f.col("date") >= f.timestamp_millis(f.lit(today)).cast("date"))
        newest = late.agg(f.unix_millis(f.max("timestamp"))).collect()[0][0]
    return max(0, now - (oldest or now)), max(0, (newest or now) - now)


def narrow_bounds(config: dict[str, str], age: int, ahead: int) -> list[str]:
    """The settings of the topic that would refuse these; clusters before 3.6 have none."""
    return [
        name
        for name, needed in ((BEFORE, age), (AFTER, ahead))
        if int(config.get(name, LONG_MAX)) < needed
    ]


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


def check_settings(
    topic: str, config: dict[str, str], age: int, narrow: Sequence[str] = ()
) -> None:
    """A topic that would refuse, change or delete what it gets is refused."""
    if narrow:
        raise PipelineError(
            f"topic {topic} would refuse the source's timestamps ({narrow[0]}="
            f"{config[narrow[0]]}): set it to {LONG_MAX} of this topic"
        )
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
        check_other(origin.id, uuid_text(cluster.described().id), str(to))
        there = sum(PartitionWriter(cluster, number, codec=0).written for number in numbers)
    if there:
        progress.say(f"replay: {there:,} records are there already")
