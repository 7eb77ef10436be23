"""The events of a partition: the left column of the event table in `replica_manager`.

A partition calls its listeners and puts the event into the queue it was given; effects run after
it returned, first in, first out. Source: docs/ARCHITECTURE.md 4.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from twisted_broker.replication.partition.isr_state import PendingIsr
    from twisted_broker.replication.partition.partition import Partition
    from twisted_broker.replication.partition.remote_replica import RemoteReplica


class LogEndChanged(NamedTuple):
    """Records were appended or truncated, and the high watermark did not advance; or the last
    stable offset is known again.
    """

    partition: Partition


class HighWatermarkAdvanced(NamedTuple):
    """More records may be shown to consumers and are acknowledged."""

    partition: Partition


class LogSynced(NamedTuple):
    """A sync that appends waited for (`flush.messages`) is done."""

    partition: Partition


class LogStartAdvanced(NamedTuple):
    """The log start moved here, or the low watermark over all live replicas did."""

    partition: Partition


class LogTruncated(NamedTuple):
    """The end of a log that moves to another directory is gone; its future log may have it."""

    partition: Partition


class LogReplaced(NamedTuple):
    """The future log in another directory took the log's place: same offsets, other files."""

    partition: Partition


class IsrChangeWanted(NamedTuple):
    """The leader proposes another ISR; `pending` is the state it went into."""

    partition: Partition
    pending: PendingIsr


class IsrChanged(NamedTuple):
    """The controller confirmed another ISR. `grew`: it counts as an expansion, else as a shrink."""

    partition: Partition
    grew: bool


class LeaderEpochBegan(NamedTuple):
    """The leader leads on, under a new leader epoch: whoever waits under the old one is fenced."""

    partition: Partition


class BecameFollower(NamedTuple):
    """This broker follows it under a new leader epoch, or led it until now: requests that wait
    under the old epoch cannot be satisfied here.
    """

    partition: Partition


class ReplicaStopped(NamedTuple):
    """This broker does not hold it any more: requests that wait for it cannot be satisfied here."""

    partition: Partition


class PartitionFailed(NamedTuple):
    """Its directory went offline, or an effect on it raised."""

    partition: Partition
    reason: str


Event = (
    LogEndChanged
    | HighWatermarkAdvanced
    | LogSynced
    | LogStartAdvanced
    | LogTruncated
    | LogReplaced
    | IsrChangeWanted
    | IsrChanged
    | LeaderEpochBegan
    | BecameFollower
    | ReplicaStopped
    | PartitionFailed
)
Events = deque[Event]


class PartitionListener(Protocol):
    """Who hears of a partition's changes as they happen, before their effects. It takes note and
    does nothing else: the partition is in the middle of its transition.
    """

    def partition_changed(self) -> None:
        """What a read would say may have changed. The subscription ends with this call."""
        ...

    def follower_fetched(self, replica: RemoteReplica) -> None:
        """A follower reads it now; the subscription goes on."""
        ...
