"""How far a replay has come in one partition of its target, and the proof that all of it is the
replay's.

1. `position` is the number of records written: the end offset of a partition that was empty at the
   first one.
2. The proof is the last batch: our producer id, and base sequence equal to base offset. Sequences
   have no holes (the broker sees to it), so a foreign record anywhere before would have moved the
   offset of every later batch away from its sequence.
3. The last record's content goes back to the caller, who has the source's: another source, or one
   that lost its first records, differs there.
"""

from __future__ import annotations

from dataclasses import dataclass

from replog_pipeline.errors import PipelineError
from replog_pipeline.replay import identity
from replog_pipeline.replay.cluster import Cluster, NotNowError, check
from twisted_broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from twisted_broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from twisted_broker.wire.records import BatchView, Record

EARLIEST, LATEST = -2, -1
FETCH_BYTES = 1 << 20
ANOTHER = "replay into an empty topic (one that does not exist is created)"


@dataclass(frozen=True)
class Position:
    """`offset`: of the next record to write. `last`: the record before it, None at 0."""

    offset: int
    last: Record | None


def position(cluster: Cluster, partition: int) -> Position:
    """Raises PipelineError for foreign or deleted records; OSError when the leader cannot be
    asked now.
    """
    name = f"{cluster.topic}-{partition}"
    start, end = offset(cluster, partition, EARLIEST), offset(cluster, partition, LATEST)
    if start:
        raise PipelineError(
            f"{name} begins at offset {start}: records were deleted from it; {ANOTHER} with "
            "retention.ms=-1"
        )
    return Position(end, proven(cluster, partition, end)) if end else Position(0, None)


def offset(cluster: Cluster, partition: int, which: int) -> int:
    asked = ListOffsetsTopic(
        name=cluster.topic,
        partitions=[ListOffsetsPartition(partition_index=partition, timestamp=which)],
    )
    answer = cluster.leader(partition).call(
        ListOffsetsRequest(replica_id=-1, topics=[asked]), ListOffsetsResponse
    )
    told = answer.topics[0].partitions[0]
    check(told.error_code, f"{cluster.topic}-{partition}")
    return told.offset


def proven(cluster: Cluster, partition: int, end: int) -> Record:
    """The record before `end`, from a batch that must be the replay's."""
    batch = last_batch(cluster, partition, end)
    own = batch.producer_id == identity.producer_id(cluster.described().id)
    if not own or batch.base_sequence != identity.sequence(batch.base_offset):
        raise PipelineError(
            f"{cluster.topic}-{partition} holds records that no replay wrote (at or before "
            f"offset {end - 1}): {ANOTHER}"
        )
    return next(record for record in batch.records() if record.offset == end - 1)


def last_batch(cluster: Cluster, partition: int, end: int) -> BatchView:
    """The batch that ends before `end`."""
    asked = FetchPartition(
        partition=partition, fetch_offset=end - 1, partition_max_bytes=FETCH_BYTES
    )
    request = FetchRequest(
        max_wait_ms=1000,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        topics=[FetchTopic(topic=cluster.topic, partitions=[asked])],
    )
    told = cluster.leader(partition).call(request, FetchResponse).responses[0].partitions[0]
    check(told.error_code, f"{cluster.topic}-{partition}")
    if not told.records:
        raise NotNowError(f"{cluster.topic}-{partition}: offset {end - 1} was not given")
    return BatchView(bytes(told.records))
