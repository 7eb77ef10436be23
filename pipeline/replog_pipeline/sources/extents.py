"""The offsets that a source has now: from the brokers, or from the log directories.

Under read_committed a log ends at its first open transaction: what comes after is not committed
yet, and must not be counted as read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from replog_pipeline.columns import Offsets
from replog_pipeline.segments import log_view
from replog_pipeline.segments.log_view import UNCOMMITTED
from replog_pipeline.sources import kafka_admin, reachable
from replog_pipeline.sources.topics import Topics
from replog_pipeline.sources.urls import KafkaSource, SegmentsSource, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Extent:
    """Topic ids (None: not known), log starts and ends of all partitions."""

    ids: Mapping[str, str | None]
    start: Offsets
    end: Offsets

    @property
    def topics(self) -> Topics:
        return Topics(self.ids, frozenset(self.end))


def extent(spark: SparkSession, source: Source, isolation: str = UNCOMMITTED) -> Extent:
    """Raises PipelineError for a topic or directory that is not there."""
    if isinstance(source, KafkaSource):
        return of_cluster(spark, source, isolation)
    return of_directories(source, isolation)


def check(source: Source) -> Topics | None:
    """What can be known of a source without Spark: its topics, None where only the job can tell.

    PipelineError for directories that cannot be read or lack a topic, brokers that accept no
    connection, a topic that they do not have.
    """
    if isinstance(source, KafkaSource):
        return reachable.found(source)
    return of_directories(source).topics


def of_cluster(spark: SparkSession, source: KafkaSource, isolation: str = UNCOMMITTED) -> Extent:
    return Extent(*kafka_admin.spans(spark, source.cluster, source.topics, isolation))


def of_directories(source: SegmentsSource, isolation: str = UNCOMMITTED) -> Extent:
    """Reads no record; needs no Spark."""
    ids = {
        folder.topic: folder.topic_id
        for folder in log_view.unique_folders(source.directories, source.topics)
    }
    spans = log_view.extents(source.directories, source.topics, isolation)
    return Extent(
        ids,
        {key: start for key, (start, _) in spans.items()},
        {key: end for key, (_, end) in spans.items()},
    )
