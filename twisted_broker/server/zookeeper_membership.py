"""Membership of an Apache Kafka 3.9 cluster with ZooKeeper.

Owns `ZooKeeperMembership`: what is made instead of the metadata log's parts, and the order of
joining.

1. The session comes first, with a check of the ensemble's cluster id; it ends before the logs are
   closed, and with it this broker's node: the cluster hears of it at once.
2. Settings are read before the ports are bound; connections are accepted once the broker's node is
   registered; it is ready with the controller's first UpdateMetadata.
3. Nothing of this, nor kazoo, is loaded without `zookeeper.connect`.

Ring 2. Source: RL 0, KRAFT 2; Kafka 3.9's `KafkaServer`. Not here: roles (`zookeeper`), the parts
that serve (`broker_server.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_broker.api.routes import Route, served_with_zookeeper
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.alter_partition_manager import AlterPartitionManager
from twisted_broker.cluster.controller_channel import ControllerChannel
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.server.membership import Links
from twisted_broker.settings import ConfigError
from twisted_broker.zookeeper.acl_watch import AclWatch
from twisted_broker.zookeeper.cluster_state import ClusterState
from twisted_broker.zookeeper.config_watch import ConfigWatch
from twisted_broker.zookeeper.confirmed_roles import ConfirmedRoles
from twisted_broker.zookeeper.control_requests import ControlRequests
from twisted_broker.zookeeper.entity_writes import EntityWrites
from twisted_broker.zookeeper.forwarding import ZooKeeperForwarding
from twisted_broker.zookeeper.isr_state_writes import IsrStateWrites
from twisted_broker.zookeeper.leader_endpoint import endpoint_class
from twisted_broker.zookeeper.membership import CONNECT, Membership
from twisted_broker.zookeeper.port import IZooKeeper
from twisted_broker.zookeeper.protocol_versions import SETTING, protocol_of

if TYPE_CHECKING:
    from twisted_broker.image.metadata_image import MetadataDelta
    from twisted_broker.replication.replica_manager import ReplicaManager
    from twisted_broker.server.metadata_publisher import BrokerMetadataPublisher
    from twisted_broker.server.shared_server import SharedServer
    from twisted_broker.server.socket_server import SocketServer

_logger = Logger(namespace="replog")
_WAITING_SECONDS = 10


def kazoo_client(runtime: Runtime, config: BrokerConfig) -> IZooKeeper:
    """Raises ConfigError where kazoo is not installed."""
    try:
        from twisted_broker.zookeeper.kazoo_client import KazooZooKeeper
    except ImportError as error:
        from twisted_broker.installed import install

        raise ConfigError(
            CONNECT,
            str(config[CONNECT]),
            "",
            f"{error.name} is not installed: {install('zookeeper')}",
        ) from None
    from twisted.internet import reactor

    return KazooZooKeeper(
        reactor, str(config[CONNECT]), config.integer("zookeeper.session.timeout.ms")
    )


class ZooKeeperMembership:
    """`IMembership`. `zookeeper(runtime, config)` makes the client."""

    def __init__(
        self,
        shared: SharedServer,
        sockets: SocketServer,
        zookeeper: Callable[[Runtime, BrokerConfig], IZooKeeper] = kazoo_client,
    ) -> None:
        runtime, config = shared.runtime, shared.config
        self._shared, self._sockets = shared, sockets
        self.protocol = protocol_of(str(config[SETTING]))
        self.zookeeper = zookeeper(runtime, config)
        self.state = ClusterState(config.node_id, sockets.plan.inter_broker)
        self.configs = ConfigWatch(runtime, self.zookeeper, self.state)
        self.acls = AclWatch(runtime, self.zookeeper, self.state)
        self.registration = Membership(
            runtime,
            config,
            self.zookeeper,
            self.state,
            self.protocol,
            self._load,
            shared.on_fatal,
        )
        self.confirmed_roles = ConfirmedRoles(
            runtime.clock, self.zookeeper, self.state, config.node_id
        )
        self._isr_writes: IsrStateWrites | None = None
        self._links: Links | None = None
        self._first_metadata: Deferred[None] = Deferred()

    async def connect(self, cluster_id: str) -> str:
        """The ensemble's cluster. Raises ConfigError where it is not `cluster_id`."""
        return await self.registration.connect(cluster_id)

    def routes(self) -> dict[int, Route]:
        return served_with_zookeeper()

    def make_links(self, located: Callable[[TopicPartition], bytes | None]) -> Links:
        runtime, config, state = self._shared.runtime, self._shared.config, self.state
        self._shared.check_directories()

        def channel(purpose: str) -> ControllerChannel:
            return ControllerChannel(
                runtime,
                state,
                f"broker-{config.node_id}-{purpose}",
                connector=self._sockets.security.to_brokers,
            )

        self.registration.use_channel(channel("lifecycle"))
        alter_partition: AlterPartitionManager | IsrStateWrites
        if self.protocol.alter_partition:
            alter_partition = AlterPartitionManager(
                runtime, config.node_id, channel("alter-partition"), self.registration
            )
        else:
            alter_partition = self._isr_writes = IsrStateWrites(
                runtime,
                config.node_id,
                self.zookeeper,
                lambda name: state.controller_epochs.get(name, state.controller_epoch),
            )
        self._links = Links(
            state,
            self.registration,
            alter_partition,
            ZooKeeperForwarding(
                runtime,
                config.node_id,
                channel("forwarding"),
                self.registration,
                None if self.protocol.allocate_producer_ids else self.zookeeper,
            ),
            self.confirmed_roles,
            config.integer("zookeeper.session.timeout.ms"),
            endpoint_class(self.protocol),
            {},
        )
        return self._links

    def control_requests(self, replica_manager: ReplicaManager) -> ControlRequests:
        """Roles come as requests of the controller."""
        return ControlRequests(
            self.state,
            replica_manager,
            self._shared.log_manager,
            self._shared.turns,
            self.configs.load_topics,
            EntityWrites(self._shared.runtime, self.zookeeper, self.acls),
        )

    async def follow(self, publisher: BrokerMetadataPublisher) -> None:
        def image_changed(delta: MetadataDelta) -> None:
            """An image has no roles here: settings, and which brokers are alive."""
            publisher.take(delta)
            if delta.brokers and not self._first_metadata.called:
                self._first_metadata.callback(None)

        self.state.subscribe(image_changed)
        await self._load()
        if self._isr_writes is not None:
            self._isr_writes.start()

    async def join(
        self, publisher: BrokerMetadataPublisher, let_clients_in: Callable[[], None]
    ) -> None:
        await self.registration.register(self._sockets.endpoints())
        # Not before: a controller may read the node of the process before this one, and command
        # that one, which had what this one may have lost.
        let_clients_in()
        waiting = self._shared.runtime.clock.callLater(_WAITING_SECONDS, self._log_waiting)
        await self._first_metadata
        if waiting.active():
            waiting.cancel()
        publisher.caught_up = True

    async def _load(self) -> None:
        await self.configs.load()
        if self._shared.config.text("authorizer.class.name"):
            await self.acls.load()

    def _log_waiting(self) -> None:
        _logger.warn(
            "registered, but the cluster's controller has sent nothing yet: is an Apache Kafka "
            "broker of it running, and can it connect to {listeners}?",
            listeners=self._shared.config["advertised.listeners"],
        )

    async def stop(self) -> None:
        links = self._links
        assert links is not None
        links.alter_partition.stop()
        links.forwarding.stop()
        self.confirmed_roles.stop()
        self.configs.stop()
        self.acls.stop()
        self.registration.stop()
        # Before the logs are closed: the cluster hears of it at once.
        await self.close()

    async def close(self) -> None:
        """Ends the session."""
        await self.zookeeper.stop()
