"""A leader in the same process: the memory twin of `leader_endpoint.RemoteLeaderEndPoint`.

Owns `MemoryLeaderEndPoint`, which answers out of another broker's `Partition` objects at once, as
its Fetch, ListOffsets and OffsetForLeaderEpoch would.

1. What it answers comes from the production partition, refusals included; only the wire is left
   out.
2. `broken` (an exception) is what every call raises while it is set; `held` keeps the next answers
   back until `release()`.

Source: RL 6.2, 7.1. Not here: sessions (`fetch_session_handler`), waiting for records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetcher.fetch_session_handler import (
    RequestedPartition,
    RequestedPartitions,
)
from twisted_broker.replication.fetcher.fetcher_state import FetchedPartition
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.replication.fetcher.truncation_decision import EpochEnd, LeaderEpochRequest
from twisted_broker.replication.partition.fetch_data import (
    LOG_END,
    FetchParams,
    FetchPartitionRequest,
)
from twisted_broker.replication.partition.offset_lookup import end_offset_for_epoch, list_offset
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.schema import run_whole


class MemoryLeaderEndPoint:
    """`partitions` are those of the leading broker; `now_ms` is its clock. `asked` keeps what
    was asked: ("fetch" | "offset" | "epochs", what).
    """

    def __init__(
        self,
        endpoint: BrokerEndPoint,
        partitions: Mapping[TopicPartition, Partition],
        replica_id: int,
        replica_epoch: int,
        now_ms: Callable[[], int],
        response_max_bytes: int = 10 << 20,
    ) -> None:
        self.endpoint = endpoint
        self.truncates_on_fetch = True
        self.asked: list[tuple[str, Any]] = []
        self.broken: Exception | None = None
        self.closed = False
        self._partitions = partitions
        self._params = FetchParams(replica_id, replica_epoch, 0, 1, response_max_bytes, LOG_END)
        self._now_ms = now_ms
        self._gate: Deferred[None] | None = None

    def hold(self) -> None:
        """Answers made from now on are kept back."""
        self._gate = Deferred()

    def release(self, hold_on: bool = False) -> None:
        """What was kept back arrives; `hold_on`: what comes after is kept back again."""
        gate, self._gate = self._gate, Deferred() if hold_on else None
        if gate is not None:
            gate.callback(None)

    def has_request(self, requested: RequestedPartitions) -> bool:
        return bool(requested.current)

    async def fetch(self, requested: RequestedPartitions) -> dict[TopicPartition, FetchedPartition]:
        requested.take_changes()
        asked = requested.in_order()
        self._note("fetch", asked)
        limit = self._params.max_bytes
        answers: dict[TopicPartition, FetchedPartition] = {}
        for name, ask in asked.items():
            answers[name] = answer = self._read(
                name, ask, limit, not any(len(each.records) for each in answers.values())
            )
            limit = max(0, limit - len(answer.records))
        if self._gate is not None:
            await self._gate
        return answers

    def _read(
        self, name: TopicPartition, ask: RequestedPartition, limit: int, min_one_message: bool
    ) -> FetchedPartition:
        epoch = ask.last_fetched_epoch if self.truncates_on_fetch else -1
        request = FetchPartitionRequest(
            name,
            ask.topic_id,
            ask.fetch_offset,
            ask.max_bytes,
            ask.leader_epoch,
            epoch,
            ask.log_start_offset,
        )
        try:
            result = self._partition(name).read(
                request,
                self._params,
                min(limit, ask.max_bytes),
                min_one_message,
                self._now_ms(),
                True,
            )
        except BrokerError as refusal:
            return FetchedPartition(refusal.code)
        records = b"" if result.slice is None else result.slice.read()
        result.release()
        return FetchedPartition(
            result.error,
            result.high_watermark,
            result.log_start_offset,
            records,
            result.diverging_epoch,
        )

    async def fetch_offset(
        self, topic_partition: TopicPartition, leader_epoch: int, timestamp: int
    ) -> int:
        self._note("offset", (topic_partition, leader_epoch, timestamp))
        partition = self._partition(topic_partition)
        return run_whole(list_offset(partition, timestamp, LOG_END, leader_epoch, True)).offset

    async def fetch_epoch_ends(
        self, epochs: Mapping[TopicPartition, LeaderEpochRequest]
    ) -> dict[TopicPartition, EpochEnd]:
        self._note("epochs", dict(epochs))
        answers = {name: self._epoch_end(name, request) for name, request in epochs.items()}
        if self._gate is not None:
            await self._gate
        return answers

    def _epoch_end(self, name: TopicPartition, ask: LeaderEpochRequest) -> EpochEnd:
        try:
            return EpochEnd(
                ErrorCode.NONE,
                *end_offset_for_epoch(self._partition(name), ask.leader_epoch, ask.epoch),
            )
        except BrokerError as refusal:
            return EpochEnd(refusal.code)

    def _partition(self, name: TopicPartition) -> Partition:
        found = self._partitions.get(name)
        if found is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    def _note(self, what: str, asked: object) -> None:
        self.asked.append((what, asked))
        if self.broken is not None:
            raise self.broken

    def close(self) -> None:
        self.closed = True
