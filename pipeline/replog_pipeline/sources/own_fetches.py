"""Reads ranges of a cluster's topics by requests of our own, which Spark's tasks make: for records
that the connector cannot hand on, because Spark has no timestamp for them; and for many small
partitions, each of which is a task and a consumer to the connector.

1. A row is as the connector's: the decoder of log directories reads the batches that a leader
   sends. Control records are left out, aborted ones where `isolation` says so.
2. Every offset of a range was fetched, or the task fails; a range that begins below the log's start
   is an error, as `failOnDataLoss` is the connector's.
3. A task has several small ranges, one after another over the same connections.

Not here: which ranges (`lake.guards`); the connector's old calendar, which these rows never saw.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from replog_pipeline.columns import ddl
from replog_pipeline.decoder import AbortedTransaction, Request, decode_segment, scan
from replog_pipeline.errors import PipelineError
from replog_pipeline.replay.cluster import Cluster, NotNowError, check
from replog_pipeline.segments.log_view import COMMITTED
from replog_pipeline.sources import reachable
from replog_pipeline.sources.urls import KafkaSource
from replog_pipeline.sources.wanted import Wanted
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from twisted_broker.wire.records import CONTROL_FLAG, CorruptRecordError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

RANGES_A_TASK, OFFSETS_A_TASK = 256, 200_000
MANY_RANGES, SMALL_RANGE = 64, 1_000
"""So many ranges of so few offsets in the mean are read faster so."""
FETCH_BYTES = 4 << 20
PATIENCE_SECONDS, PAUSE_SECONDS = 60.0, 0.5
RANGES = "topic string, partition int, first bigint, after bigint"


def read(spark: SparkSession, source: KafkaSource, wanted: Wanted) -> DataFrame:
    """The ranges that `wanted` names: it names a start and an end for each partition."""
    ranges = [
        (*key, first, wanted.end[key])
        for key, first in sorted(wanted.start.items())
        if first < wanted.end[key]
    ]
    columns, cluster, is_committed = wanted.columns, source.cluster, wanted.isolation == COMMITTED

    def tasks(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from replog_pipeline.sources.own_fetches import fetched

        rows = [row for piece in pieces for row in piece.to_pylist()]
        for topic, group in groupby(rows, lambda row: str(row["topic"])):
            with Cluster(cluster, topic) as reached:
                for row in group:
                    asked = Request(
                        tuple(columns),
                        row["topic"],
                        row["partition"],
                        row["first"],
                        row["after"],
                        committed_only=is_committed,
                        lenient=True,
                    )
                    yield from fetched(reached, asked)

    sizes = [after - first for *_, first, after in ranges]
    count = slices(sizes, spark.sparkContext.defaultParallelism)
    # A data frame's own slices would be Arrow's, of 10,000 rows.
    rows = spark.createDataFrame(spark.sparkContext.parallelize(ranges, count), RANGES)
    return rows.mapInArrow(tasks, ddl(columns))


def slices(sizes: Sequence[int], cores: int) -> int:
    """Into how many tasks ranges of these sizes go."""
    wanted = max(cores, len(sizes) // RANGES_A_TASK, sum(sizes) // OFFSETS_A_TASK)
    return max(1, min(len(sizes), wanted))


def are_better(source: KafkaSource, wanted: Wanted) -> bool:
    """Whether these ranges are many and small, and the brokers understand this client."""
    sizes = [wanted.end.get(key, first) - first for key, first in wanted.start.items()]
    there = [size for size in sizes if size > 0]
    if not wanted.only_named or len(there) < MANY_RANGES or wanted.options:
        return False
    if sum(there) > len(there) * SMALL_RANGE or wanted.end.keys() < wanted.start.keys():
        return False
    try:
        return reachable.answered(source.cluster, ()) is not None
    except PipelineError:
        return False  # a property of the client that only Java's knows


def fetched(cluster: Cluster, asked: Request) -> Iterator[pa.RecordBatch]:
    """The rows of one range. PipelineError; OSError when the leader stays away."""
    assert asked.end is not None, "a range has an end"
    at, progress = asked.start, time.monotonic()
    while at < asked.end:
        try:
            told = fetch(cluster, asked, at)
        except (OSError, WireError):
            cluster.forget()
            if time.monotonic() - progress > PATIENCE_SECONDS:
                raise
            time.sleep(PAUSE_SECONDS)
            continue
        data = bytes(told.records or b"")
        found = scan(data)
        if not len(found.headers):
            raise PipelineError(
                f"{asked.topic}-{asked.partition}: offset {at} is not given, but its end is "
                f"{asked.end}: the log was truncated, or its records have a format before 2"
            )
        data = data[: found.end]
        part = asked._replace(start=at, aborted=aborted(told, found.headers))
        try:
            yield from decode_segment(data, part)
        except CorruptRecordError as error:
            raise PipelineError(
                f"{asked.topic}-{asked.partition}: {error.message}: `replog pipeline audit` "
                "of its log directory shows more"
            ) from error
        last = found.headers[-1]
        at, progress = int(last["baseOffset"] + last["lastOffsetDelta"]) + 1, time.monotonic()


def fetch(cluster: Cluster, asked: Request, at: int) -> PartitionData:
    """What the leader has from this offset on."""
    partition = FetchPartition(
        partition=asked.partition, fetch_offset=at, partition_max_bytes=FETCH_BYTES
    )
    request = FetchRequest(
        max_wait_ms=1000,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        isolation_level=int(asked.committed_only),
        topics=[FetchTopic(topic=asked.topic, partitions=[partition])],
    )
    told = cluster.leader(asked.partition).call(request, FetchResponse)
    check(told.error_code, str(cluster.address))
    found = told.responses[0].partitions[0]
    check(found.error_code, f"{asked.topic}-{asked.partition}")
    if not found.records and found.high_watermark <= at:
        raise NotNowError(f"{asked.topic}-{asked.partition}: offset {at} was not given")
    return found


def aborted(told: PartitionData, headers: NDArray[np.void]) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions of these batches: a leader names producer and first offset; the
    producer's next marker ends it, or it goes on beyond what was sent.
    """
    markers = headers[headers["attributes"] & CONTROL_FLAG != 0]
    beyond = int(headers["baseOffset"][-1] + headers["lastOffsetDelta"][-1]) + 1
    found = []
    for each in told.aborted_transactions or ():
        after = markers["baseOffset"][
            (markers["producerId"] == each.producer_id)
            & (markers["baseOffset"] > each.first_offset)
        ]
        last = int(after[0]) if len(after) else beyond
        found.append(AbortedTransaction(each.producer_id, each.first_offset, last))
    return tuple(found)
