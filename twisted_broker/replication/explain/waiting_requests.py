"""The conditions of the requests that wait for a partition, found on demand.

Owns `WaitingRequest` and the function that finds it, out of the operations in the purgatories.

1. Operations carry nothing for this: what they need to decide is what is shown.

Source: RL 1.7, 1.9, 2.8. Not here: waiting (`purgatory`), the conditions (`delayed_operations`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.explain.reasons import broker_names, duration
from twisted_broker.replication.partition.fetch_data import HIGH_WATERMARK, TXN_COMMITTED
from twisted_broker.replication.purgatory.delayed_operations import (
    DelayedDeleteRecords,
    DelayedFetch,
    DelayedProduce,
)

if TYPE_CHECKING:
    from twisted_broker.log.log import Log
    from twisted_broker.replication.partition.partition import Partition

WAITING_SHOWN = 100
_READERS = {HIGH_WATERMARK: "the high watermark", TXN_COMMITTED: "the last stable offset"}


@runtime_checkable
class SaysItself(Protocol):
    """An operation of a package that this one may not know."""

    def waits_for(self, name: TopicPartition) -> tuple[str, int, int, str]:
        """What a `WaitingRequest` has first, and the reason, without the time that is left."""


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that waits.

    `needs` and `has` are offsets (Produce, DeleteRecords) or bytes (Fetch); `broker`: the follower
    that fetches, or -1.
    """

    request: str
    needs: int
    has: int
    broker: int
    brokers: list[int]
    left_ms: int
    why: str


def waiting_requests(
    partition: Partition, watching: Sequence[tuple[Any, int]]
) -> list[WaitingRequest]:
    """RL 1.7, 1.9, 2.8: what the operations (with the ms that are left to each) wait for in this
    partition; the first `WAITING_SHOWN`.
    """
    log = partition.log
    if log is None:
        return []
    found = (
        _waiting(partition, log, operation, left_ms)
        for operation, left_ms in watching[:WAITING_SHOWN]
    )
    return [each for each in found if each is not None]


def _waiting(partition: Partition, log: Log, operation: Any, left_ms: int) -> WaitingRequest | None:
    if isinstance(operation, DelayedProduce):
        return _waiting_produce(partition, log, operation, left_ms)
    if isinstance(operation, DelayedFetch):
        return _waiting_fetch(partition, operation, left_ms)
    if isinstance(operation, DelayedDeleteRecords):
        return _waiting_delete(partition, operation, left_ms)
    if isinstance(operation, SaysItself):
        request, needs, has, why = operation.waits_for(partition.topic_partition)
        return WaitingRequest(
            request, needs, has, -1, [], left_ms, f"{why}; {duration(left_ms)} left"
        )
    return None


def _waiting_produce(
    partition: Partition, log: Log, operation: DelayedProduce, left_ms: int
) -> WaitingRequest | None:
    ends = [
        outcome.last_offset + 1
        for outcome in operation.unsatisfied
        if outcome.topic_partition == partition.topic_partition
    ]
    if not ends:
        return None
    needed, members = max(ends), partition.isr_state.maximal_isr
    if operation.acks == 1:
        synced_to = log.durability.acknowledgeable_end.offset
        return WaitingRequest(
            "Produce",
            needed,
            synced_to,
            -1,
            [],
            left_ms,
            (
                f"acks=1: the leader must sync its log up to {needed} (flush.messages), it is "
                f"synced up to {synced_to}; {duration(left_ms)} left"
            ),
        )
    remote = partition.remote_replicas
    brokers = sorted(
        broker
        for broker, replica in remote.items()
        if broker in members and replica.log_end.offset < needed
    )
    for_whom = f", which waits for {broker_names(brokers)}" if brokers else ""
    return WaitingRequest(
        "Produce",
        needed,
        log.high_watermark,
        -1,
        brokers,
        left_ms,
        (
            f"acks=all: the high watermark must reach {needed}, it is at "
            f"{log.high_watermark}{for_whom}; {duration(left_ms)} left"
        ),
    )


def _waiting_fetch(partition: Partition, operation: DelayedFetch, left_ms: int) -> WaitingRequest:
    params = operation.params
    offset, readable = operation.offset_in(partition.topic_partition), operation.readable_bytes()
    reader = f"follower {params.replica_id}" if params.from_follower else "a consumer"
    upto = "the log end" if params.from_follower else _READERS.get(params.isolation, "the log end")
    why = (
        f"{reader} reads from {offset} up to {upto}: {readable} of {params.min_bytes} bytes "
        "are there, over all its partitions"
    )
    broker = params.replica_id if params.from_follower else -1
    return WaitingRequest(
        "Fetch", params.min_bytes, readable, broker, [], left_ms, f"{why}; {duration(left_ms)} left"
    )


def _waiting_delete(
    partition: Partition, operation: DelayedDeleteRecords, left_ms: int
) -> WaitingRequest | None:
    needed = [
        outcome.required_offset
        for outcome in operation.unsatisfied
        if outcome.topic_partition == partition.topic_partition
    ]
    if not needed or not partition.is_leader:
        return None
    required = max(needed)
    behind = [
        broker
        for broker, replica in partition.remote_replicas.items()
        if replica.log_start_offset < required and partition.brokers.is_alive(broker)
    ]
    low = partition.low_watermark()
    return WaitingRequest(
        "DeleteRecords",
        required,
        low,
        -1,
        sorted(behind),
        left_ms,
        (
            f"the log start must reach {required} on every live replica, "
            f"{broker_names(behind)} missing; {duration(left_ms)} left"
        ),
    )
