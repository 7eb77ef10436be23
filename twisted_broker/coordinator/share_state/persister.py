"""The interface of a keeper of share partitions' states. Ring 1.

Owns `IPersister`.

Source: Apache Kafka 4.3.1 `Persister`. Not here: the share coordinator, which is one
(`share_coordinator.py`).
"""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred

from twisted_broker.coordinator.share_state.values import (
    ReadState,
    SharePartitionKey,
    StateSummary,
    WriteState,
)


class IPersister(Protocol):
    """Keeps the state of share partitions. Its Deferreds fail with BrokerError."""

    def initialize(
        self, key: SharePartitionKey, state_epoch: int, start_offset: int
    ) -> Deferred[None]:
        """Begins anew."""
        ...

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Deferred[ReadState]:
        """For the leader of that epoch: who led before is fenced."""
        ...

    def write(self, key: SharePartitionKey, state: WriteState) -> Deferred[None]:
        """Adds the changes to the state."""
        ...

    def delete(self, key: SharePartitionKey) -> Deferred[None]:
        """Fires where there is nothing, too."""
        ...

    def summary(self, key: SharePartitionKey) -> Deferred[StateSummary]:
        """For a description of the group."""
        ...
