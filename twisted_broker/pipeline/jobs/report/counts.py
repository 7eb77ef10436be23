"""What `report` counts, as tables: the Spark half. Each function asks one question of a source.

1. Records are read twice: by minute and partition, and by key. Segments are read once more, as
   batches.
2. Where a source cannot answer (batches of a cluster, committed offsets that are elsewhere), the
   answer is empty.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twisted_broker.pipeline import sources
from twisted_broker.pipeline.jobs.report import batch_sizes
from twisted_broker.pipeline.report.numbers import minute_text
from twisted_broker.pipeline.report.tables import Table
from twisted_broker.pipeline.segments import log_view
from twisted_broker.pipeline.segments.log_folder import folders
from twisted_broker.pipeline.sources import KafkaSource, SegmentsSource, Source, Wanted, kafka_admin
from twisted_broker.pipeline.sources.extents import Extent
from twisted_broker.pipeline.transforms import group_offsets, totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
KEYS = ("topic", "rank", "key", "records", "bytes")
COMPACTION = (
    "topic",
    "partition",
    "records",
    "bytes",
    "keys",
    "without_key",
    "live",
    "live_bytes",
    "deleted",
)


def traffic(spark: SparkSession, source: Source, within: Extent) -> tuple[Table, Table]:
    """By minute: topic, time, minute, records, bytes.

    By partition: topic, partition, records, bytes, first_offset, last_offset.
    """
    rows = collected(totals.by_minute(read(spark, source, within)))
    minutes: dict[tuple[str, int | None], list[int]] = {}
    partitions = {key: [0, 0, None, None] for key in sorted(within.start)}
    for row in rows:
        add(minutes.setdefault((row["topic"], row["minute"]), [0, 0]), row)
        partition = partitions[row["topic"], row["partition"]]
        add(partition, row)
        partition[2] = row["first"] if partition[2] is None else min(partition[2], row["first"])
        partition[3] = row["last"] if partition[3] is None else max(partition[3], row["last"])
    in_order = sorted(
        minutes.items(), key=lambda item: (item[0][0], -1 if item[0][1] is None else item[0][1])
    )
    timed = [
        (topic, None if minute is None else minute_text(minute), minute, *counts)
        for (topic, minute), counts in in_order
    ]
    return (
        Table("minutes", ("topic", "time", "minute", "records", "bytes"), timed),
        Table(
            "partitions",
            ("topic", "partition", "records", "bytes", "first_offset", "last_offset"),
            [(*k, *v) for k, v in partitions.items()],
        ),
    )


def add(counts: list[Any], row: Row) -> None:
    counts[0] += row["records"]
    counts[1] += row["bytes"]


def keys(spark: SparkSession, source: Source, within: Extent) -> tuple[Table, Table]:
    """The top keys, and what compaction would leave."""
    counted = totals.by_key(read(spark, source, within)).persist()
    try:
        return table("keys", totals.top_keys(counted), KEYS), table(
            "compaction", totals.compaction(counted), COMPACTION
        )
    finally:
        counted.unpersist()


def batches(spark: SparkSession, source: Source, within: Extent) -> list[Row]:
    """Rows of `batch_sizes.SIZES`; none for a cluster."""
    if isinstance(source, KafkaSource):
        return []
    rows = [
        (
            folder.topic,
            folder.partition,
            segment.path,
            within.start[folder.topic, folder.partition],
            within.end[folder.topic, folder.partition],
        )
        for folder in log_view.unique_folders(source.directories, source.topics)
        for segment in folder.segments
    ]
    tasks = max(1, min(len(rows), 4 * spark.sparkContext.defaultParallelism))
    return collected(
        batch_sizes.transform(spark.createDataFrame(rows, batch_sizes.SEGMENT).repartition(tasks))
    )


def lag(spark: SparkSession, source: Source, within: Extent) -> Table | None:
    """group, topic, partition, committed, end, lag, written; None when the source has no
    `__consumer_offsets`.
    """
    committed = offsets_source(spark, source)
    if committed is None:
        return None
    rows = sources.read(
        spark, committed, Wanted(group_offsets.COLUMNS, isolation=log_view.COMMITTED)
    )
    found = sorted(
        collected(group_offsets.transform(rows)),
        key=lambda row: (row["group"], row["topic"], row["partition"]),
    )
    told = []
    for row in found:
        end = within.end.get((row["topic"], row["partition"]))
        if end is not None:
            behind = max(0, end - row["committed"])
            told.append(
                (
                    row["group"],
                    row["topic"],
                    row["partition"],
                    row["committed"],
                    end,
                    behind,
                    minute_text(row["written"] // 60_000),
                )
            )
    return Table("lag", ("group", "topic", "partition", "committed", "end", "lag", "written"), told)


def offsets_source(spark: SparkSession, source: Source) -> Source | None:
    """Where the groups' offsets are: beside the topics, or nowhere."""
    if isinstance(source, KafkaSource):
        there = kafka_admin.exists(spark, source.bootstrap, group_offsets.TOPIC)
        return replace(source, topics=(group_offsets.TOPIC,)) if there else None
    holding = [directory for directory in source.directories if has_offsets(directory)]
    return SegmentsSource(tuple(holding), (group_offsets.TOPIC,)) if holding else None


def has_offsets(directory: str) -> bool:
    return any(folder.topic == group_offsets.TOPIC for folder in folders(directory, internal=True))


def read(spark: SparkSession, source: Source, within: Extent) -> DataFrame:
    return sources.read(spark, source, Wanted(totals.COLUMNS, within.start, within.end))


def table(name: str, frame: DataFrame, columns: tuple[str, ...]) -> Table:
    """The rows by the first two columns."""
    rows = [tuple(map(row.get, columns)) for row in collected(frame)]
    return Table(name, columns, sorted(rows, key=lambda row: row[:2]))


def collected(frame: DataFrame) -> list[Row]:
    """The rows by column; Spark's bytearrays as bytes."""
    rows = [row.asDict() for row in frame.collect()]
    return [
        {
            name: bytes(value) if isinstance(value, bytearray) else value
            for name, value in row.items()
        }
        for row in rows
    ]
