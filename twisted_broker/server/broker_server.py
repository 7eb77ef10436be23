"""A node's role `broker`: the parts that serve clients, from the replicas to the coordinators.

Owns `BrokerServer`: which part gets which collaborators, and the order of starting and stopping
them.

1. Start: the metadata followed; the ports bound, still closed to clients; then `IMembership.join`
   registers, and lets clients in.
2. Stop, as Kafka does: controlled shutdown, listeners closed, coordinators, replica manager with
   its high-watermark checkpoint; then the membership.

Ring 1. Source: Kafka's `BrokerServer`; the whole way of a controlled shutdown:
`cluster/broker_controlled_shutdown.py`. Not here: how it joins (`membership.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from twisted_broker.api import broker_loggers
from twisted_broker.cluster.stale_roles import StaleRoles
from twisted_broker.coordinator.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from twisted_broker.coordinator.coordinator_context import coordinator_settings
from twisted_broker.coordinator.coordinator_publisher import build_group_coordinator
from twisted_broker.coordinator.end_offsets import EndOffsets
from twisted_broker.coordinator.share_state.records import coordinator_key
from twisted_broker.coordinator.share_state.share_publisher import build_share_coordinator
from twisted_broker.coordinator.share_state.values import SharePartitionKey
from twisted_broker.coordinator.transaction.transaction_publisher import (
    build_transaction_coordinator,
)
from twisted_broker.image.entries import LOST
from twisted_broker.image.metadata_image import MetadataDelta
from twisted_broker.interfaces import TopicPartition
from twisted_broker.net.client import BrokerConnection
from twisted_broker.replication.fetcher.fetcher_manager import ReplicaFetcherManager
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.replication.replica_manager import ReplicaManager
from twisted_broker.server.membership import IMembership
from twisted_broker.server.metadata_publisher import BrokerMetadataPublisher
from twisted_broker.server.shared_server import SharedServer
from twisted_broker.server.socket_server import SocketServer
from twisted_broker.share.persister import Persister
from twisted_broker.share.share_partition_manager import build_share_partition_manager
from twisted_broker.telemetry.instances import ClientInstances

# What a leader needs for a request besides its wait for replicas, and the way there and back.
_ANSWER_MS = 2_000


class BrokerServer:
    """The parts are made with it, once the logs are loaded; `start` starts them."""

    def __init__(
        self, shared: SharedServer, sockets: SocketServer, membership: IMembership
    ) -> None:
        broker_loggers.apply()
        self._shared, self._sockets, self._membership = shared, sockets, membership
        runtime, config, turns = shared.runtime, shared.config, shared.turns
        links = membership.make_links(self._directory_of)
        self.observer, self.lifecycle = links.metadata, links.lifecycle
        self.alter_partition, self.forwarding = links.alter_partition, links.forwarding
        self.assignments, self.own_log = links.assignments, links.own_log
        self.features = links.features
        self.replica_manager = ReplicaManager(
            config.node_id,
            runtime,
            config,
            shared.log_manager,
            links.metadata,
            links.alter_partition,
            lambda replicas: ReplicaFetcherManager(
                replicas,
                links.metadata,
                sockets.plan.inter_broker,
                lambda: links.lifecycle.broker_epoch,
                self._connect_to_leader,
                links.endpoint_class,
            ),
            self._redeliver,
            links.assignments,
            links.is_metadata_kept,
            turns,
        )
        self.publisher = BrokerMetadataPublisher(
            runtime.clock,
            config,
            turns,
            shared.quotas,
            self.replica_manager,
            links.assignments,
        )
        fetchers = self.replica_manager.fetchers
        assert fetchers is not None
        self.fetchers = fetchers
        config.subscribe(fetchers.settings_changed)
        self.stale_roles = StaleRoles(
            runtime.clock, links.confirmed, links.session_ms, lambda: not self.publisher.is_behind
        )
        self.share_state = build_share_coordinator(
            runtime,
            config,
            self.replica_manager,
            links.metadata,
            links.forwarding.create_topics,
            turns,
            self.stale_roles.may_be,
        )
        self.persister = Persister(
            config.node_id,
            runtime.clock,
            runtime.random,
            self.share_state,
            self._share_coordinator_of,
            self._connect_to_coordinator,
        )
        self.groups = build_group_coordinator(
            runtime,
            config,
            self.replica_manager,
            links.metadata,
            links.forwarding.create_topics,
            turns,
            self.stale_roles.may_be,
            self.persister,
        )
        config.subscribe(lambda live: self.groups.update_settings(coordinator_settings(live)))
        self.transactions = build_transaction_coordinator(
            runtime,
            config,
            self.replica_manager,
            links.metadata,
            links.forwarding.create_topics,
            links.forwarding.producer_ids.next,
            sockets.plan.inter_broker,
            self._connect_for_markers,
            turns,
            self.stale_roles.may_be,
        )
        self.share_partitions = build_share_partition_manager(
            runtime, config, self.replica_manager, links.metadata, self.persister, turns
        )
        self.telemetry = ClientInstances()
        self.groups.context.end_offsets = EndOffsets(
            lambda: links.metadata.image,
            self._end_offset,
            sockets.plan.inter_broker,
            self._connect_to_leader,
        )
        self.add_partitions_to_txn = AddPartitionsToTxnManager(
            config.node_id,
            links.metadata,
            sockets.plan.inter_broker,
            self._connect_to_coordinator,
            runtime.clock.seconds,
        )
        self.control_requests = membership.control_requests(self.replica_manager)

    def _redeliver(self, delta: MetadataDelta) -> None:
        """Roles that are tried again go to all who apply deltas."""
        self.publisher.take(delta)

    async def start(self, controlled_shutdown: Callable[[], Awaitable[None]]) -> None:
        """Ends when clients are served. `controlled_shutdown()`: what a stop begins with."""
        self._shared.on_stop(self._stop_membership)
        await self._membership.follow(self.publisher)

        async def stop_serving() -> None:
            await controlled_shutdown()
            await self._stop_serving()

        self._shared.on_stop(stop_serving)
        for endpoint in self._sockets.plan.broker:
            await self._sockets.listen(endpoint, is_controller=False)
        self._sockets.set_advertised_listeners()
        await self._membership.join(self.publisher, self._let_clients_in)

    def _let_clients_in(self) -> None:
        self.stale_roles.start()
        self.groups.start()
        self.transactions.start()
        self.share_state.start()
        self._sockets.start_accepting()

    def fenced(self) -> str:
        """Why no leadership is given to a broker that was registered; empty when it is served."""
        own = self.observer.image.brokers.get(self._shared.config.node_id)
        if own is None:
            return "the controller does not know it any more; it registers again"
        if own.fenced:
            return "it is fenced: the controller has no heartbeat from it, or has not answered yet"
        return ""

    def _directory_of(self, topic_partition: TopicPartition) -> bytes | None:
        """The id of the directory that holds a replica; LOST for one that none could take; None
        when there is none.
        """
        partition = self.replica_manager.partitions.get(topic_partition)
        found = self._shared.log_manager.get(topic_partition)
        if partition is not None and partition.offline and (found is None or partition.log is None):
            return LOST  # one that is there is not the replica's: an older one, perhaps
        return (
            None if found is None else self._shared.log_manager.directories.of(found).directory_id
        )

    def directory_failed(self, path: str, error: OSError) -> None:
        """Its replicas go offline, and the controller is informed."""
        self.replica_manager.directory_failed(path, error)
        directories = self._shared.log_manager.directories
        self.lifecycle.directory_failed(directories.by_path[path].directory_id)

    def _end_offset(self, topic_partition: TopicPartition) -> int | None:
        """The high watermark of one that is led here."""
        partition = self.replica_manager.partitions.get(topic_partition)
        log = None if partition is None else partition.leader_log
        return None if log is None else log.high_watermark

    # connections to other brokers

    def _connect_to_leader(self, leader: BrokerEndPoint, client_id: str) -> BrokerConnection:
        """A follower's connection."""
        return self._connection_to(leader, client_id, "replica.socket.timeout.ms")

    def _connect_for_markers(self, host: str, port: int) -> BrokerConnection:
        """A connection for transaction markers, to a leader."""
        # A leader waits that long for replicas, then says which markers are written and which may
        # be: a connection that is closed before would leave all of them to be sent again.
        timeout_ms = self._shared.config.integer("request.timeout.ms") + _ANSWER_MS
        return BrokerConnection(
            self._shared.runtime,
            host,
            port,
            f"broker-{self._shared.config.node_id}-txn-marker-sender",
            request_timeout_ms=timeout_ms,
            connector=self._sockets.security.to_brokers,
        )

    def _share_coordinator_of(self, key: SharePartitionKey) -> BrokerEndPoint | None:
        topic = self.share_state.topic
        assert topic is not None
        found = topic.coordinator(coordinator_key(key), self._sockets.plan.inter_broker)
        return None if found is None else BrokerEndPoint(found[0], found[1].host, found[1].port)

    def _connect_to_coordinator(
        self, coordinator: BrokerEndPoint, client_id: str
    ) -> BrokerConnection:
        """A connection to a coordinator of transactions or of share partitions."""
        return self._connection_to(coordinator, client_id, "request.timeout.ms")

    def _connection_to(
        self, broker: BrokerEndPoint, client_id: str, setting: str
    ) -> BrokerConnection:
        """`setting` has its time-out."""
        timeout_ms = self._shared.config.integer(setting)
        return BrokerConnection(
            self._shared.runtime,
            broker.host,
            broker.port,
            client_id,
            request_timeout_ms=timeout_ms,
            connect_timeout_ms=min(timeout_ms, 10_000),
            connector=self._sockets.security.to_brokers,
        )

    # stopping

    async def controlled_shutdown(self) -> None:
        """Waits until the controller has moved the leaderships, then stops following."""
        await self.lifecycle.controlled_shutdown()
        self.fetchers.shutdown()

    async def _stop_serving(self) -> None:
        """The listeners and what is behind them."""
        await self._sockets.stop(on_controller=False)
        self.transactions.stop()
        self.share_state.stop()
        self.share_partitions.stop()
        self.persister.close()
        self.add_partitions_to_txn.close()
        self.groups.stop()
        self.stale_roles.stop()
        self.replica_manager.shutdown()

    async def _stop_membership(self) -> None:
        self.publisher.stop()
        await self._membership.stop()
