"""A fetch's request and answer, between `api/fetch`, the replica manager and the partitions.

Owns `FetchParams` (one request), `FetchPartitionRequest` (one partition of it),
`FetchPartitionResult`, `FollowerId` and `ConsumerId`.

1. A result of an error carries -1 for the watermarks and no records (RL 5.1).
2. A result owns its file slice until `release()` is called or the connection took the slice over.

Source: Kafka's `FetchParams`, `FetchRequest.PartitionData`, `LogReadResult`. Not here: sessions
(`fetch_session`).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.offset_metadata import UNKNOWN, LogOffsetMetadata
from twisted_broker.log.segment_file import FileSlice
from twisted_broker.wire.errors import ErrorCode

CONSUMER = -1
DEBUGGING_CONSUMER = -2
FUTURE_LOCAL_REPLICA = -3

# What a reader may see: to the log end, to the high watermark, or to the last stable offset.
LOG_END, HIGH_WATERMARK, TXN_COMMITTED = 0, 1, 2

NO_EPOCH = -1

PartitionKey = tuple[object, int]
"""A partition's name within a fetch session: (topic id or name, number)."""


class FollowerId(NamedTuple):
    """A broker that fetches as a follower, and the broker epoch it names (-1: none)."""

    broker_id: int
    broker_epoch: int


class ConsumerId:
    """Who fetches as a consumer, and how, as far as an answer without records depends on it.
    `rules`: those under which it may read, of the authorizer.
    """

    __slots__ = ("client_host", "isolation", "principal", "rules")

    def __init__(
        self, principal: Hashable, client_host: str, isolation: int, rules: object
    ) -> None:
        self.principal, self.client_host = principal, client_host
        self.isolation, self.rules = isolation, rules

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ConsumerId)
            and self.rules is other.rules
            and self.isolation == other.isolation
            and self.principal == other.principal
            and self.client_host == other.client_host
        )

    __hash__ = None  # type: ignore[assignment]


class FetchParams:
    """One fetch.

    `max_bytes` bounds the answer; with `hard_max_bytes` (version <= 2) a partition's own limit
    truncates even its first batch.
    """

    __slots__ = (
        "hard_max_bytes",
        "isolation",
        "max_bytes",
        "max_wait_ms",
        "min_bytes",
        "only_leader",
        "rack",
        "replica_epoch",
        "replica_id",
    )

    def __init__(
        self,
        replica_id: int,
        replica_epoch: int,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        isolation: int,
        hard_max_bytes: bool = False,
        only_leader: bool = True,
        rack: str = "",
    ) -> None:
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.isolation = isolation
        self.hard_max_bytes = hard_max_bytes
        self.only_leader = only_leader
        self.rack = rack

    @property
    def from_follower(self) -> bool:
        return self.replica_id >= 0


class FetchPartitionRequest:
    """One partition of a fetch.

    `topic_partition.topic` is "" while its `topic_id` is not known here. Epochs are -1 when not
    sent.
    """

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int = NO_EPOCH,
        last_fetched_epoch: int = NO_EPOCH,
        log_start_offset: int = -1,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset

    @property
    def key(self) -> PartitionKey:
        """Its name within a session: by id when it came with one."""
        topic, partition = self.topic_partition
        return (self.topic_id or topic, partition)

    def __repr__(self) -> str:
        return (
            f"<fetch {self.topic_partition} from {self.fetch_offset} at most "
            f"{self.max_bytes} bytes>"
        )


class FetchPartitionResult:
    """What one partition answered. `fetch_offset`: where it was read, with segment and position,
    for a fetch that goes on to wait; `first_entry_incomplete`: the first batch is not whole;
    `converted`: the records in an old client's format, instead of the slice.
    """

    __slots__ = (
        "aborted_transactions",
        "converted",
        "diverging_epoch",
        "error",
        "fetch_offset",
        "first_entry_incomplete",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "preferred_read_replica",
        "request",
        "size",
        "slice",
    )

    def __init__(
        self,
        request: FetchPartitionRequest,
        error: ErrorCode,
        high_watermark: int = -1,
        last_stable_offset: int = -1,
        log_start_offset: int = -1,
        fetch_offset: LogOffsetMetadata = UNKNOWN,
    ) -> None:
        self.request = request
        self.error = error
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset
        self.fetch_offset = fetch_offset
        self.diverging_epoch: tuple[int, int] | None = None
        self.slice: FileSlice | None = None
        self.size = 0
        self.first_entry_incomplete = False
        self.converted: list[bytes] | None = None
        self.aborted_transactions: list[tuple[int, int]] | None = None
        self.preferred_read_replica = -1

    def release(self) -> None:
        """Gives the slice back: it is not sent."""
        if self.slice is not None:
            self.slice.release()
            self.slice = None
            self.size = 0
