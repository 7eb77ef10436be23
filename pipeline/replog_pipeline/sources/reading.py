"""A DataFrame of a source, by `connector` or `directories`; by `own_fetches` what the connector
cannot, or is slow at.

What cannot be read is one PipelineError, before Spark plans anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replog_pipeline.sources import connector, directories, own_fetches
from replog_pipeline.sources.urls import KafkaSource, Source
from replog_pipeline.sources.wanted import EVERYTHING, Wanted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, source: Source, wanted: Wanted = EVERYTHING) -> DataFrame:
    """A batch of what `source` holds now."""
    if not isinstance(source, KafkaSource):
        return directories.read(spark, source, wanted)
    if wanted.lenient or own_fetches.are_better(source, wanted):
        return own_fetches.read(spark, source, wanted)
    return connector.read(spark, source, wanted)


def read_stream(spark: SparkSession, source: Source, wanted: Wanted = EVERYTHING) -> DataFrame:
    """What `source` holds from the start offsets on, and what comes."""
    if isinstance(source, KafkaSource):
        return connector.read_stream(spark, source, wanted)
    return directories.read_stream(spark, source, wanted)
