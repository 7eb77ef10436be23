"""`--group NAME`: what the table has reached, as the committed offsets of a consumer group, so that
every tool which shows lag shows the archive's.

1. The ledger stays the truth: the offsets are committed after the batch, and never read.
2. Nobody else may use the group: one with members is refused before the first batch.
3. What a killed run did not commit the next one does; what is there is committed again after
   `RENEW_SECONDS`, before brokers forget it (`offsets.retention.minutes`).

Source: Kafka's `Admin.alterConsumerGroupOffsets`. Not here: the queries (`sources.kafka_admin`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from replog_pipeline.columns import Offsets
from replog_pipeline.kafka_cluster import KafkaCluster
from replog_pipeline.sources import kafka_admin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RENEW_SECONDS = 3_600.0


class Group:
    """The group `name` of a cluster. PipelineError where it has members."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: KafkaCluster,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spark, self.cluster, self.name, self.clock = spark, cluster, name, clock
        self.there: Offsets = {}
        self.renewed = clock()
        kafka_admin.check_group_is_free(spark, cluster, name)

    def reached(self, offsets: Offsets) -> None:
        """Commit what is not there yet."""
        now = self.clock()
        if now - self.renewed >= RENEW_SECONDS:
            self.there, self.renewed = {}, now
        new = {key: offset for key, offset in offsets.items() if self.there.get(key) != offset}
        if new:
            kafka_admin.commit_group(self.spark, self.cluster, self.name, new)
            self.there = {**self.there, **new}
