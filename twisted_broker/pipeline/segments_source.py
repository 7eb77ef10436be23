"""Reads log directories through the `kafka-segments` data source: the counterpart of `connector`.

What can be found wrong without reading records is found before Spark plans anything, and is one line.
Source: SPARK.md 9. Left out: the data source (`datasource`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from twisted_broker.pipeline.columns import COLUMNS, SQL_TYPES, ddl
from twisted_broker.pipeline.errors import PipelineError
from twisted_broker.pipeline.log_view import HIGH_WATERMARK, committed_end, unique_folders
from twisted_broker.pipeline.segment_options import Offsets, offsets_option, parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from twisted_broker.pipeline.sources import SegmentsSource

FORMAT = "kafka-segments"


def read(
    spark: SparkSession,
    source: SegmentsSource,
    *,
    columns: Sequence[str] = COLUMNS,
    start: Offsets | None = None,
    end: Offsets | None = None,
    isolation: str = "read_uncommitted",
    options: Mapping[str, str],
) -> DataFrame:
    """What the directories hold between `start` and `end`; see `sources.read`."""
    settings = _settings(source, columns, start, end, isolation, options)
    return spark.read.format(FORMAT).schema(ddl(columns)).options(**settings).load()


def read_stream(
    spark: SparkSession,
    source: SegmentsSource,
    *,
    columns: Sequence[str] = COLUMNS,
    start: Offsets | None = None,
    isolation: str = "read_uncommitted",
    options: Mapping[str, str],
) -> DataFrame:
    """The closed segments of the directories from `start` on, and those that will be closed; see `sources.read_stream`."""
    settings = _settings(source, columns, start, None, isolation, options)
    return spark.readStream.format(FORMAT).schema(ddl(columns)).options(**settings).load()


def _settings(
    source: SegmentsSource, columns: Sequence[str], start: Offsets | None, end: Offsets | None, isolation: str, options: Mapping[str, str]
) -> dict[str, str]:
    unknown = [name for name in columns if name not in SQL_TYPES]
    if unknown:
        raise PipelineError(f"columns: there is no column {unknown[0]!r}: choose from {', '.join(SQL_TYPES)}")
    settings = {"path": ",".join(source.directories), "topics": ",".join(source.topics), "isolation": isolation} | dict(options)
    if start:
        settings["startingOffsets"] = offsets_option(start)
    if end:
        settings["endingOffsets"] = offsets_option(end)
    _check(settings)
    return settings


def _check(settings: Mapping[str, str]) -> None:
    """PipelineError for a wrong option, directory or topic."""
    parsed = parse_options(settings)
    for folder in unique_folders(parsed.directories, parsed.topics):
        if parsed.upto == HIGH_WATERMARK:
            committed_end(folder)
