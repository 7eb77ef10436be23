"""What `report` counts, as tables: the Spark half. Each function makes one table from a source.

1. Records are read twice: by minute and partition, and by key. Segments are read once more, as
   batches.
2. What comes to the driver does not grow with the records, nor with the time that they span.
3. Where a source cannot answer (batches of a cluster, committed offsets that are elsewhere), the
   answer is empty.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from replog_pipeline import sources
from replog_pipeline.jobs.report import batch_sizes
from replog_pipeline.report import bins
from replog_pipeline.report.numbers import minute_text
from replog_pipeline.report.tables import Table
from replog_pipeline.segments import log_view
from replog_pipeline.segments.log_folder import folders
from replog_pipeline.sources import KafkaSource, SegmentsSource, Source, Wanted, kafka_admin
from replog_pipeline.sources.extents import Extent
from replog_pipeline.transforms import group_offsets, totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
MOST_BINS, MOST_TOPICS = 2_000, 20
"""Of the table of traffic: a day by minutes, a year by six hours."""
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


class Traffic(NamedTuple):
    """`minutes`: topic, time, minute, records, bytes, a row for each bin of `width` minutes, named
    by its first; at most MOST_BINS of each of at most MOST_TOPICS topics, the others being one.
    `partitions`: topic, partition, records, bytes, first_offset, last_offset. `first` and `last`:
    the minutes of the oldest and the newest record with a timestamp, None if there is none.
    `busiest`: the most records that a topic got in a minute.
    """

    minutes: Table
    partitions: Table
    width: int = 1
    first: int | None = None
    last: int | None = None
    busiest: int = 0


def traffic(spark: SparkSession, source: Source, within: Extent) -> Traffic:
    """Spark keeps every partition's every minute; only what is shown leaves it."""
    each = totals.by_minute(read(spark, source, within)).persist()
    try:
        partitions = {key: (0, 0, None, None) for key in sorted(within.start)}
        found = collected(totals.by_partition(each))
        partitions |= {
            (row["topic"], row["partition"]): (
                row["records"],
                row["bytes"],
                row["first"],
                row["last"],
            )
            for row in found
        }
        first = min(
            (row["first_minute"] for row in found if row["first_minute"] is not None), default=None
        )
        last = max(
            (row["last_minute"] for row in found if row["last_minute"] is not None), default=None
        )
        width = 1 if first is None or last is None else bins.width(first, last, MOST_BINS)
        bin_rows = collected(totals.by_bin(each, width, largest(found), bins.OTHERS))
        (busiest,) = collected(totals.busiest_minute(each))
    finally:
        each.unpersist()
    in_order = sorted(
        bin_rows, key=lambda row: (row["topic"], -1 if row["minute"] is None else row["minute"])
    )
    timed = [
        (
            row["topic"],
            None if row["minute"] is None else minute_text(row["minute"]),
            row["minute"],
            row["records"],
            row["bytes"],
        )
        for row in in_order
    ]
    return Traffic(
        Table("minutes", ("topic", "time", "minute", "records", "bytes"), timed),
        Table(
            "partitions",
            ("topic", "partition", "records", "bytes", "first_offset", "last_offset"),
            [(*k, *v) for k, v in partitions.items()],
        ),
        width,
        first,
        last,
        busiest["records"],
    )


def largest(partitions: list[Row]) -> list[str]:
    """The MOST_TOPICS topics with the most records."""
    records: dict[str, int] = {}
    for row in partitions:
        records[row["topic"]] = records.get(row["topic"], 0) + row["records"]
    return sorted(records, key=lambda topic: (-records[topic], topic))[:MOST_TOPICS]


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
        if (folder.topic, folder.partition) in within.start  # else it came since
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
        there = kafka_admin.exists(spark, source.cluster, group_offsets.TOPIC)
        return replace(source, topics=(group_offsets.TOPIC,)) if there else None
    holding = [directory for directory in source.directories if has_offsets(directory)]
    return SegmentsSource(tuple(holding), (group_offsets.TOPIC,)) if holding else None


def has_offsets(directory: str) -> bool:
    return any(folder.topic == group_offsets.TOPIC for folder in folders(directory, internal=True))


def read(spark: SparkSession, source: Source, within: Extent) -> DataFrame:
    return sources.read(
        spark, source, Wanted(totals.COLUMNS, within.start, within.end, only_named=True)
    )


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
