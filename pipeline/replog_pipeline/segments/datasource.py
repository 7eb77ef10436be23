"""`kafka-segments`: log directories as a Spark data source, batch and streaming, with no broker
running.

1. One task is one segment file, or a piece of a large one. `.schema("offset long, value binary")`
   reads only these columns: Spark tells a source of no others.
2. Filters on topic, partition and offset leave out files and batches; `register` switches on what
   Spark needs for that.
3. A stream reads segments that are closed, never the active one; its offsets are
   {"TOPIC-PARTITION": next offset}.
4. Everything here runs in Python workers: executors need this package, and must see the
   directories.

Source: pyspark.sql.datasource of Spark 4.2. Not here: options (`options`), files
(`plan`), rows (`rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from replog_pipeline.columns import ALL_COLUMNS, SQL_TYPES, ddl
from replog_pipeline.decoder import FAIL
from replog_pipeline.errors import PipelineError
from replog_pipeline.segments.filters import Pruning
from replog_pipeline.segments.options import ONLY_IN_BATCHES, SegmentOptions, parse_options
from replog_pipeline.segments.plan import FileTask, plan
from replog_pipeline.segments.rows import segment_rows
from replog_pipeline.segments.stream import (
    Positions,
    bounded,
    closed_ends,
    first_positions,
    stream_plan,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

NAME = "kafka-segments"
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


_registered: WeakSet[SparkSession] = WeakSet()
"""Sessions that know the source: Spark warns of one that is registered again."""


def register(spark: SparkSession) -> None:
    """Make `kafka-segments` known to this session, unless it is, and let Spark push filters down
    to it: without that Spark refuses a source that takes them.
    """
    spark.conf.set(PUSH_DOWN, "true")
    if spark not in _registered:
        spark.dataSource.register(KafkaSegments)
        _registered.add(spark)


class KafkaSegments(DataSource):
    """The data source; see `options` for its options."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return ddl(ALL_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        return SegmentsReader(parse_options(self.options), checked_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_options(self.options)
        if options.only_named:
            raise PipelineError(ONLY_IN_BATCHES)
        return SegmentsStreamReader(options, checked_columns(schema))


class SegmentsReader(DataSourceReader):
    """A batch query: filters come first, then the list of files, then the rows of each in a
    worker.
    """

    def __init__(self, options: SegmentOptions, columns: Sequence[str]) -> None:
        self.options, self.columns, self.pruning = options, columns, Pruning()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return self.pruning.push(filters, exact_offsets=self.options.crc == FAIL)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in plan(self.options, self.columns, self.pruning)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(partition)


class SegmentsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over closed segments."""

    def __init__(self, options: SegmentOptions, columns: Sequence[str]) -> None:
        self.options, self.columns = options, columns
        self.target: Positions | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def initialOffset(self) -> Positions:
        return first_positions(self.options)

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = closed_ends(self.options, {})

    def latestOffset(self, start: Positions, limit: ReadLimit) -> Positions:
        ends = closed_ends(self.options, start)
        return ends if self.target is None else bounded(ends, start, self.target)

    def partitions(self, start: Positions, end: Positions) -> Sequence[InputPartition]:
        return [
            InputPartition(task) for task in stream_plan(self.options, self.columns, start, end)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(partition)


def rows_of(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task; none for the empty one that Spark makes when there are no files."""
    task: FileTask | None = partition.value
    if task is not None:
        yield from segment_rows(*task)


def checked_columns(schema: StructType) -> tuple[str, ...]:
    """The names in a schema.

    PipelineError for a column that there is none of, or of another type.
    """
    for column in schema.fields:
        if column.name not in SQL_TYPES:
            raise PipelineError(
                f"schema: there is no column {column.name!r}: choose from {', '.join(SQL_TYPES)}"
            )
        kind = column.dataType.simpleString()
        if kind != SQL_TYPES[column.name]:
            raise PipelineError(
                f"schema: {column.name} is {SQL_TYPES[column.name]}, not {kind}: read it so "
                "and cast it"
            )
    return tuple(schema.fieldNames())
