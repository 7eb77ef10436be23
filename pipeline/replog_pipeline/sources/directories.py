"""Reads log directories through the `kafka-segments` data source: the counterpart of `connector`.

1. The data source is made known to the session by who reads: other jobs start a second sooner.
2. What can be found wrong without reading records is found before Spark plans anything, and is one
   line.

Source: our own. Not here: the data source (`datasource`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from replog_pipeline.columns import SQL_TYPES, ddl
from replog_pipeline.errors import PipelineError
from replog_pipeline.segments.log_view import HIGH_WATERMARK, committed_end, unique_folders
from replog_pipeline.segments.options import offsets_option, parse_options
from replog_pipeline.sources.urls import SegmentsSource
from replog_pipeline.sources.wanted import Wanted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, source: SegmentsSource, wanted: Wanted) -> DataFrame:
    """What the directories hold between start and end; see `sources.read`."""
    from replog_pipeline.segments import datasource

    datasource.register(spark)
    return (
        spark.read.format(datasource.NAME)
        .schema(ddl(known(wanted)))
        .options(**settings(source, wanted))
        .load()
    )


def read_stream(spark: SparkSession, source: SegmentsSource, wanted: Wanted) -> DataFrame:
    """The closed segments of the directories from start on, and those that will be closed; see
    `sources.read_stream`.
    """
    from replog_pipeline.segments import datasource

    datasource.register(spark)
    return (
        spark.readStream.format(datasource.NAME)
        .schema(ddl(known(wanted)))
        .options(**settings(source, wanted))
        .load()
    )


def known(wanted: Wanted) -> Sequence[str]:
    """The columns. PipelineError for one that there is none of."""
    unknown = [name for name in wanted.columns if name not in SQL_TYPES]
    if unknown:
        raise PipelineError(
            f"columns: there is no column {unknown[0]!r}: choose from {', '.join(SQL_TYPES)}"
        )
    return wanted.columns


def settings(source: SegmentsSource, wanted: Wanted) -> dict[str, str]:
    """The data source's options, checked against what lies there; the caller's own win, but for
    offsets.
    """
    found = {
        "path": ",".join(source.directories),
        "topics": ",".join(source.topics),
        "isolation": wanted.isolation,
        "timestamps": "null" if wanted.lenient else "fail",
    } | dict(wanted.options)
    if wanted.start:
        found["startingOffsets"] = offsets_option(wanted.start)
    if wanted.only_named:
        found["onlyNamed"] = "true"
    if wanted.end:
        found["endingOffsets"] = offsets_option(wanted.end)
    check(found)
    return found


def check(settings: Mapping[str, str]) -> None:
    """PipelineError for a wrong option, directory or topic."""
    parsed = parse_options(settings)
    for folder in unique_folders(parsed.directories, parsed.topics):
        if parsed.upto == HIGH_WATERMARK:
            committed_end(folder)
