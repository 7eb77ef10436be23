"""What `report` counts in rows of topics: by minute, by partition, by key. Rows need topic,
partition, offset, timestamp, key and value.

1. Bytes are those of keys and values. Minutes are whole ones since the epoch; a record without a
   timestamp has none (null).
2. A key lives when its last record in its partition has a value; a record without a key is never
   another's successor, so it stays.

Source: our own. Not here: batches (`transforms.batch_sizes`), lag (`transforms.group_offsets`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")
TOP_KEYS = 20


def sized(rows: DataFrame) -> DataFrame:
    """topic, partition, offset, key, minute, bytes, empty (no value)."""
    from pyspark.sql import functions as f

    length = f.coalesce(f.octet_length("key"), f.lit(0)) + f.coalesce(
        f.octet_length("value"), f.lit(0)
    )
    minute = f.when(
        f.col("timestamp") >= f.lit("1970-01-01"), f.floor(f.unix_seconds("timestamp") / 60)
    )
    return rows.select(
        "topic",
        "partition",
        "offset",
        "key",
        minute.cast("bigint").alias("minute"),
        length.cast("bigint").alias("bytes"),
        f.isnull("value").alias("empty"),
    )


def by_minute(rows: DataFrame) -> DataFrame:
    """topic, partition, minute, records, bytes, first and last offset."""
    from pyspark.sql import functions as f

    return (
        sized(rows)
        .groupBy("topic", "partition", "minute")
        .agg(
            f.count("*").alias("records"),
            f.sum("bytes").alias("bytes"),
            f.min("offset").alias("first"),
            f.max("offset").alias("last"),
        )
    )


def by_partition(minutes: DataFrame) -> DataFrame:
    """`by_minute` to topic, partition, records, bytes, first and last offset, first_minute and
    last_minute.
    """
    from pyspark.sql import functions as f

    return minutes.groupBy("topic", "partition").agg(
        f.sum("records").alias("records"),
        f.sum("bytes").alias("bytes"),
        f.min("first").alias("first"),
        f.max("last").alias("last"),
        f.min("minute").alias("first_minute"),
        f.max("minute").alias("last_minute"),
    )


def by_bin(minutes: DataFrame, width: int, topics: Sequence[str], others: str) -> DataFrame:
    """`by_minute` to topic, minute (the first of its bin of `width` minutes), records, bytes;
    topics not named are one, `others`.
    """
    from pyspark.sql import functions as f

    minute = f.col("minute") - f.col("minute") % f.lit(width)
    topic = f.when(f.col("topic").isin(*topics), f.col("topic")).otherwise(f.lit(others))
    grouped = minutes.groupBy(topic.alias("topic"), minute.alias("minute"))
    return grouped.agg(f.sum("records").alias("records"), f.sum("bytes").alias("bytes"))


def busiest_minute(minutes: DataFrame) -> DataFrame:
    """`by_minute` to one row: `records`, the most that any topic got in a minute."""
    from pyspark.sql import functions as f

    whole = (
        minutes.where(f.col("minute").isNotNull())
        .groupBy("topic", "minute")
        .agg(f.sum("records").alias("records"))
    )
    return whole.agg(f.coalesce(f.max("records"), f.lit(0)).alias("records"))


def by_key(rows: DataFrame) -> DataFrame:
    """topic, partition, key, records, bytes, and of the last record: last_bytes, last_empty."""
    from pyspark.sql import functions as f

    last = f.max(f.struct("offset", "bytes", "empty"))
    grouped = (
        sized(rows)
        .groupBy("topic", "partition", "key")
        .agg(f.count("*").alias("records"), f.sum("bytes").alias("bytes"), last.alias("last"))
    )
    return grouped.select(
        "topic",
        "partition",
        "key",
        "records",
        "bytes",
        f.col("last.bytes").alias("last_bytes"),
        f.col("last.empty").alias("last_empty"),
    )


def compaction(keys: DataFrame) -> DataFrame:
    """`by_key` to what a cleaner would leave, per topic and partition.

    records, bytes, keys, without_key (records), live (keys), live_bytes, deleted (keys whose last
    record has no value).
    """
    from pyspark.sql import functions as f

    has_key = f.col("key").isNotNull()
    live = has_key & ~f.col("last_empty")
    stays = f.when(live, f.col("last_bytes")).when(~has_key, f.col("bytes"))
    return keys.groupBy("topic", "partition").agg(
        f.sum("records").alias("records"),
        f.sum("bytes").alias("bytes"),
        f.count("key").alias("keys"),
        f.coalesce(f.sum(f.when(~has_key, f.col("records"))), f.lit(0)).alias("without_key"),
        f.count_if(live).alias("live"),
        f.coalesce(f.sum(stays), f.lit(0)).alias("live_bytes"),
        f.count_if(has_key & f.col("last_empty")).alias("deleted"),
    )


def top_keys(keys: DataFrame, count: int = TOP_KEYS) -> DataFrame:
    """`by_key` to the keys with the most records, `count` per topic: topic, rank (from 1), key,
    records, bytes.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    whole = (
        keys.where(f.col("key").isNotNull())
        .groupBy("topic", "key")
        .agg(f.sum("records").alias("records"), f.sum("bytes").alias("bytes"))
    )
    most_first = Window.partitionBy("topic").orderBy(f.desc("records"), f.desc("bytes"), "key")
    ranked = whole.withColumn("rank", f.row_number().over(most_first)).where(f.col("rank") <= count)
    return ranked.select("topic", "rank", "key", "records", "bytes")
