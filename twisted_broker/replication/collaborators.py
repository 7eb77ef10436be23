"""The parts around the replica manager, as it sees them.

Owns the protocols `IAlterPartitionManager` (met by `cluster.alter_partition_manager`),
`IDirectoryAssignments` (met by `cluster.directory_assignments`) and `LeadershipListener` (met by
the coordinators); and `IReplicas`, what fetchers need of the replica
manager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from twisted.internet.defer import Deferred

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.replication.partition.isr_state import IsrAnswer, IsrProposal
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.replication.replication_quota import ReplicationQuota


class IAlterPartitionManager(Protocol):
    """Takes ISR changes to the controller (AlterPartition)."""

    def submit(self, proposal: IsrProposal) -> Deferred[IsrAnswer]:
        """Fires with the controller's answer. It never fails: a request that is lost, or refused as
        a whole, is sent again.
        """
        ...

    def withdraw(self, topic_id: bytes, partition: int) -> None:
        """The partition is no longer led here: its submitted change need not be sent any more."""
        ...

    def stop(self) -> None:
        """Nothing is sent any more."""
        ...


class LeadershipListener(Protocol):
    """Whoever must know which partitions this broker leads: the coordinators."""

    def leadership_gained(self, topic_partition: TopicPartition, leader_epoch: int) -> None: ...

    def leadership_lost(self, topic_partition: TopicPartition, leader_epoch: int) -> None: ...


class IDirectoryAssignments(Protocol):
    """Tells the controller in which directory a replica lies (AssignReplicasToDirs, KIP-858)."""

    def assign(
        self,
        topic_id: bytes,
        topic_partition: TopicPartition,
        directory_id: bytes,
        accepted: Callable[[], None],
    ) -> None:
        """The replica is about to move to that directory. This is sent until the controller has
        accepted it; then `accepted` is called.
        """
        ...

    def moved(self, topic_id: bytes, topic_partition: TopicPartition) -> None:
        """The replica lies in the assigned directory now."""
        ...

    def revert(self, topic_id: bytes, topic_partition: TopicPartition, directory_id: bytes) -> None:
        """It stays where it was; `accepted` is not called any more."""
        ...

    def failed(self, topic_id: bytes, topic_partition: TopicPartition) -> None:
        """It serves nothing until this broker starts again; its directory goes on."""
        ...


class IReplicas(Protocol):
    """What fetchers need of the replica manager."""

    node_id: int
    runtime: Runtime
    config: BrokerConfig
    partitions: dict[TopicPartition, Partition]
    follower_quota: ReplicationQuota

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """Raises `BrokerError` for one that is not held here."""
        ...

    def directory_failed(self, directory: str, error: OSError | None) -> None: ...

    def drain(self) -> None:
        """Runs the effects of what happened."""
        ...
