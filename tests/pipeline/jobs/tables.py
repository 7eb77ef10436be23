"""What the tests of archive and replay compare, and the topics they make."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kafka import KafkaAdminClient
from kafka.admin import NewPartitions, NewTopic

from replog_pipeline.errors import PipelineError
from replog_pipeline.lake import table
from replog_pipeline.sources import SegmentsSource, extents
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.records import PATIENCE_SECONDS, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Fields = tuple[int, int, bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]


def create(bootstrap: str, topic: str, partitions: int, **settings: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=settings)])
    finally:
        admin.close()


def await_files(broker: BrokerProcess, topic: str, records: int) -> None:
    """Until `segments:` has all of them: it reads up to the high watermark that was last stored."""
    source = SegmentsSource((str(broker.data),), (topic,))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while end(source) < records:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def end(source: SegmentsSource) -> int:
    """Of all partitions together; 0 before anything was stored."""
    try:
        return sum(extents.of_directories(source).end.values())
    except PipelineError:
        return 0


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    """To so many partitions."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_partitions({topic: NewPartitions(partitions)})
    finally:
        admin.close()


def delete(bootstrap: str, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.delete_topics([topic])
    finally:
        admin.close()


def rows(frame: DataFrame) -> list[Fields]:
    """All records, by partition and offset."""
    from pyspark.sql.functions import col, unix_millis

    found = frame.select(
        "partition", "offset", "key", "value", unix_millis(col("timestamp")).alias("ms"), "headers"
    ).collect()
    taken = [
        (
            row.partition,
            row.offset,
            binary(row.key),
            binary(row.value),
            row.ms,
            headers(row.headers),
        )
        for row in found
    ]
    return sorted(taken, key=lambda each: each[:2])


def table_rows(spark: SparkSession, place: Path) -> list[Fields]:
    return rows(table.existing(spark, str(place)).read())


def expected(written: Iterable[Written]) -> list[Fields]:
    """What a topic holds that was empty before `written`."""
    found: list[Fields] = []
    ends: dict[int, int] = {}
    for each in written:
        offset = ends.get(each.partition, 0)
        ends[each.partition] = offset + 1
        found.append((each.partition, offset, each.key, each.value, each.timestamp, each.headers))
    return sorted(found, key=lambda each: each[:2])


def binary(content: bytearray | None) -> bytes | None:
    return None if content is None else bytes(content)


def headers(found: list | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((each["key"], binary(each["value"])) for each in found or ())
