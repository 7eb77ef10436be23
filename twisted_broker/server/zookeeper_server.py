"""A broker that is a member of an Apache Kafka 3.9 cluster with ZooKeeper.

Owns what is made instead of the metadata log's parts, and the order of starting and stopping.

1. Start: the session, and a check of the ensemble's cluster id; logs; settings; ports bound; the
   broker's node registered; connections accepted; the controller's first UpdateMetadata. Then it is
   ready.
2. Stop: controlled shutdown, listeners, coordinators, replicas; then the session ends, and with it
   the node; then the logs are closed.
3. Nothing of this, nor kazoo, is loaded without `zookeeper.connect`.

Ring 2. Source: RL 0, KRAFT 2; Kafka 3.9's `KafkaServer`. Not here: roles (`zookeeper`), everything
below them (`kafka_server.py` has the rest).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_broker.api import broker_loggers
from twisted_broker.api.routes import Route, served_with_zookeeper
from twisted_broker.cluster.alter_partition_manager import AlterPartitionManager
from twisted_broker.cluster.controller_channel import ControllerChannel
from twisted_broker.cluster.stale_roles import StaleRoles
from twisted_broker.config import BrokerConfig
from twisted_broker.image.entries import Endpoint
from twisted_broker.interfaces import Runtime
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.replication.fetcher.fetcher_manager import ReplicaFetcherManager
from twisted_broker.replication.replica_manager import ReplicaManager
from twisted_broker.server.kafka_server import BrokerComponents, KafkaServer
from twisted_broker.settings import INT_MAX, ConfigError
from twisted_broker.zookeeper.acl_watch import AclWatch
from twisted_broker.zookeeper.cluster_state import ClusterState
from twisted_broker.zookeeper.config_watch import ConfigWatch
from twisted_broker.zookeeper.confirmed_roles import ConfirmedRoles
from twisted_broker.zookeeper.controller_requests import ZooKeeperForwarding
from twisted_broker.zookeeper.entity_writes import EntityWrites
from twisted_broker.zookeeper.isr_state_writes import IsrStateWrites
from twisted_broker.zookeeper.leader_endpoint import endpoint_class
from twisted_broker.zookeeper.membership import CONNECT, Membership
from twisted_broker.zookeeper.port import IZooKeeper
from twisted_broker.zookeeper.protocol_versions import SETTING, protocol_of
from twisted_broker.zookeeper.role_requests import RoleRequests

if TYPE_CHECKING:
    from twisted_broker.image.metadata_image import MetadataDelta, MetadataImage

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


class ZooKeeperBroker(KafkaServer):
    """`zookeeper(runtime, config)` makes the client."""

    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        cluster_id: str | None = None,
        descriptors: int = INT_MAX,
        on_fatal: Callable[[str], None] = lambda reason: None,
        zookeeper: Callable[[Runtime, BrokerConfig], IZooKeeper] = kazoo_client,
    ) -> None:
        super().__init__(config, runtime, cluster_id, descriptors, on_fatal)
        self.protocol = protocol_of(str(config[SETTING]))
        self.zookeeper = zookeeper(runtime, config)
        self.state = ClusterState(config.node_id, self.plan.inter_broker)
        self.configs = ConfigWatch(runtime, self.zookeeper, self.state)
        self.acls = AclWatch(runtime, self.zookeeper, self.state)
        self.membership = Membership(
            runtime,
            self.config,
            self.zookeeper,
            self.state,
            self.protocol,
            self._load,
            self._on_fatal,
        )
        self._isr_writes: IsrStateWrites | None = None
        self._confirmed_roles = ConfirmedRoles(
            runtime.clock, self.zookeeper, self.state, config.node_id
        )
        self._first_metadata: Deferred[None] = Deferred()
        self._connected = False

    def _routes(self) -> dict[int, Route]:
        return served_with_zookeeper()

    # starting

    async def _adopt_cluster_id(self) -> None:
        await self._connect()

    async def _start_logs(self) -> None:
        await self._connect()
        await super()._start_logs()

    async def _connect(self) -> None:
        if not self._connected:
            self._undo.append(self._end_session)
            self.cluster_id = await self.membership.connect(self.cluster_id)
            self._connected = True
            self.parts = self._make_parts({})

    async def _start_broker(self) -> None:
        broker_loggers.apply()
        if not self.log_manager.directories.online():
            raise LogDirFailure(", ".join(self.log_manager.directories.by_path), None)
        role = self.role = self._make_role()
        self._role_requests = RoleRequests(
            self.state,
            role.replica_manager,
            self.log_manager,
            self._turns,
            self.configs.load_topics,
            EntityWrites(self.runtime, self.zookeeper, self.acls),
        )
        self.parts = self._make_parts({})
        self.state.subscribe(self._image_changed)
        self._undo.append(self._stop_membership)
        await self._load()
        if self._isr_writes is not None:
            self._isr_writes.start()
        assert role.stale_roles is not None
        role.stale_roles.start()
        role.groups.start()
        role.transactions.start()
        self._undo.append(self._stop_serving)
        for endpoint in self.plan.broker:
            await self._listen(endpoint, is_controller=False)
        self._set_advertised_listeners()
        await self.membership.register(
            [Endpoint(each.name, each.host, each.port, each.protocol) for each in self.listeners]
        )
        # Not before: a controller may read the node of the process before this one, and command
        # that one, which had what this one may have lost.
        self._open.start_accepting()
        waiting = self.runtime.clock.callLater(_WAITING_SECONDS, self._log_waiting)
        await self._first_metadata
        if waiting.active():
            waiting.cancel()
        self._caught_up = True

    async def _load(self) -> None:
        await self.configs.load()
        if self.config.text("authorizer.class.name"):
            await self.acls.load()

    def _log_waiting(self) -> None:
        _logger.warn(
            "registered, but the cluster's controller has sent nothing yet: is an Apache Kafka "
            "broker of it running, and can it connect to {listeners}?",
            listeners=self.config["advertised.listeners"],
        )

    def _make_role(self) -> BrokerComponents:
        runtime, config, state = self.runtime, self.config, self.state
        membership: Any = self.membership
        observer: Any = state
        nothing: Any = None

        def channel(purpose: str) -> ControllerChannel:
            return ControllerChannel(
                runtime,
                state,
                f"broker-{config.node_id}-{purpose}",
                connector=self._to_brokers,
            )

        membership.use_channel(channel("lifecycle"))
        if self.protocol.alter_partition:
            alter_partition: Any = AlterPartitionManager(
                runtime, config.node_id, channel("alter-partition"), membership
            )
        else:
            alter_partition = self._isr_writes = IsrStateWrites(
                runtime,
                config.node_id,
                self.zookeeper,
                lambda name: state.controller_epochs.get(name, state.controller_epoch),
            )
        replica_manager = ReplicaManager(
            config.node_id,
            runtime,
            config,
            self.log_manager,
            state,
            alter_partition,
            lambda replicas: ReplicaFetcherManager(
                replicas,
                state,
                self.plan.inter_broker,
                lambda: membership.broker_epoch,
                self._connect_to_leader,
                endpoint_class(self.protocol),
            ),
            self._take_over,
            turns=self._turns,
        )
        fetchers = replica_manager.fetchers
        assert fetchers is not None
        config.subscribe(fetchers.settings_changed)
        forwarding = ZooKeeperForwarding(
            runtime,
            config.node_id,
            channel("forwarding"),
            membership,
            None if self.protocol.allocate_producer_ids else self.zookeeper,
        )
        stale_roles = StaleRoles(
            runtime.clock,
            self._confirmed_roles,
            config.integer("zookeeper.session.timeout.ms"),
            lambda: True,
        )
        groups, transactions, add_partitions_to_txn = self._make_coordinators(
            replica_manager, observer, forwarding, stale_roles.may_be
        )
        return BrokerComponents(
            observer,
            membership,
            alter_partition,
            replica_manager,
            fetchers,
            forwarding,
            nothing,
            groups,
            transactions,
            add_partitions_to_txn,
            stale_roles,
            nothing,
        )

    # while running

    def _image_changed(self, delta: MetadataDelta) -> None:
        """An image has no roles here: settings, and which brokers are alive."""
        self._take_delta(delta)
        if delta.brokers and not self._first_metadata.called:
            self._first_metadata.callback(None)

    def _take_over(self, delta: MetadataDelta, image: MetadataImage) -> None:
        assert self.role is not None
        self.role.replica_manager.apply_delta(delta, image)

    # stopping

    async def _stop_membership(self) -> None:
        role = self.role
        assert role is not None
        role.alter_partition.stop()
        role.forwarding.stop()
        self._confirmed_roles.stop()
        self.configs.stop()
        self.acls.stop()
        self.membership.stop()
        # Before the logs are closed: the cluster hears of it at once.
        await self._end_session()

    async def _end_session(self) -> None:
        await self.zookeeper.stop()
