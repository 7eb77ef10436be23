"""What a source holds now, as the guards want it: asked of the brokers, or of the log directories.

Under read_committed a log ends at its first open transaction: what comes after is not committed yet, and must not be counted as read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_broker.pipeline import kafka_admin, log_view
from twisted_broker.pipeline.lake.guards import Extent
from twisted_broker.pipeline.sources import KafkaSource, SegmentsSource, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def extent(spark: SparkSession, source: Source, isolation: str) -> Extent:
    """Raises PipelineError for a topic or directory that is not there."""
    if isinstance(source, KafkaSource):
        return of_cluster(spark, source, isolation)
    return of_directories(source, isolation)


def of_cluster(spark: SparkSession, source: KafkaSource, isolation: str) -> Extent:
    ids = kafka_admin.topic_ids(spark, source.bootstrap, source.topics)
    start = kafka_admin.offsets(spark, source.bootstrap, source.topics, "earliest")
    return Extent(ids, start, kafka_admin.offsets(spark, source.bootstrap, source.topics, "latest", isolation))


def of_directories(source: SegmentsSource, isolation: str) -> Extent:
    ids = {folder.topic: folder.topic_id for folder in log_view.unique_folders(source.directories, source.topics)}
    spans = log_view.extents(source.directories, source.topics, isolation)
    return Extent(ids, {key: start for key, (start, _) in spans.items()}, {key: end for key, (_, end) in spans.items()})
