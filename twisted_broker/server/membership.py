"""How a broker belongs to its cluster: the one interface by which it learns metadata and roles.

Owns `IMembership` and `Links`. `KRaftMembership` follows the metadata log of a controller;
`ZooKeeperMembership` is a member of an Apache Kafka 3.9 cluster with ZooKeeper. Nothing else of
`server` knows which of them it has.

1. In this order: `connect`, `make_links` once the logs are loaded, `follow`, `join`; `stop` after
   the listeners are closed, `close` last, after a start that failed too.

Source: what Kafka's `BrokerServer` and 3.9's `KafkaServer` have in common. Not here: the parts that
follow from it (`broker_server.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from twisted_broker.api.routes import Route
    from twisted_broker.cluster.directory_assignments import DirectoryAssignments
    from twisted_broker.cluster.forwarding_manager import ForwardingManager
    from twisted_broker.cluster.membership import ILifecycle, IMetadata
    from twisted_broker.cluster.observer_log import ObserverLog
    from twisted_broker.cluster.stale_roles import Metadata
    from twisted_broker.interfaces import TopicPartition
    from twisted_broker.replication.collaborators import IAlterPartitionManager
    from twisted_broker.replication.fetcher.leader_endpoint import RemoteLeaderEndPoint
    from twisted_broker.replication.replica_manager import ReplicaManager
    from twisted_broker.server.metadata_publisher import BrokerMetadataPublisher
    from twisted_broker.zookeeper.control_requests import ControlRequests


@dataclass(frozen=True, slots=True)
class Links:
    """What ties a broker to its cluster. `confirmed`: as of when the roles are known;
    `endpoint_class`: what followers speak; `features`: what this broker supports;
    `is_metadata_kept()`: whether the metadata is on this node's disks. `assignments` and `own_log`
    are None where the cluster has none.
    """

    metadata: IMetadata
    lifecycle: ILifecycle
    alter_partition: IAlterPartitionManager
    forwarding: ForwardingManager
    confirmed: Metadata
    session_ms: int
    endpoint_class: type[RemoteLeaderEndPoint]
    features: Mapping[str, tuple[int, int]]
    is_metadata_kept: Callable[[], bool] = lambda: True
    assignments: DirectoryAssignments | None = None
    own_log: ObserverLog | None = None


class IMembership(Protocol):
    """See the module's card."""

    async def connect(self, cluster_id: str) -> str:
        """The id of the cluster, which is `cluster_id` where that is not empty."""
        ...

    def routes(self) -> dict[int, Route]:
        """The APIs that clients are served."""
        ...

    def make_links(self, located: Callable[[TopicPartition], bytes | None]) -> Links:
        """`located(partition)`: the id of the directory that holds a replica."""
        ...

    def control_requests(self, replica_manager: ReplicaManager) -> ControlRequests | None:
        """What carries out a controller's requests; None: roles come with the metadata."""
        ...

    async def follow(self, publisher: BrokerMetadataPublisher) -> None:
        """Changes of the metadata go to `publisher` from now on."""
        ...

    async def join(
        self, publisher: BrokerMetadataPublisher, let_clients_in: Callable[[], None]
    ) -> None:
        """Registers; ends when this broker has its roles and serves clients."""
        ...

    async def stop(self) -> None: ...

    async def close(self) -> None: ...
