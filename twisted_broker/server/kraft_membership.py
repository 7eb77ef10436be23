"""Membership of a cluster with a KRaft controller: the metadata log, and the broker's registration.

Owns `KRaftMembership`: the observer with the broker's own log, the channels to the
controller, and the order of joining.

1. A broker talks to its controller over the network only, also when both are in one process.
2. It registers, reads the metadata to its end, takes its first roles, and asks for the end of its
   fence; then clients are let in.
3. A controller whose metadata cannot be that of this broker's data ends it; nothing is deleted.

Ring 1. Source: Kafka's `BrokerServer.startup`. Not here: what the metadata changes
(`metadata_publisher.py`), the parts that serve (`broker_server.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger

from twisted_broker.api.routes import Route, routes_for
from twisted_broker.cluster.alter_partition_manager import AlterPartitionManager
from twisted_broker.cluster.broker_lifecycle_manager import BrokerLifecycleManager
from twisted_broker.cluster.cluster_id import fetch_cluster_id, fetch_cluster_id_once
from twisted_broker.cluster.controller_channel import ControllerChannel
from twisted_broker.cluster.directory_assignments import DirectoryAssignments
from twisted_broker.cluster.features import SUPPORTED_FEATURES
from twisted_broker.cluster.forwarding_manager import ForwardingManager
from twisted_broker.cluster.metadata_check import recover_hint
from twisted_broker.cluster.metadata_loader import MetadataRegression
from twisted_broker.cluster.observer import MetadataObserver
from twisted_broker.cluster.observer_log import ObserverLog, open_observer_log
from twisted_broker.image.metadata_image import EMPTY, MetadataImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.java_numbers import is_digits
from twisted_broker.replication.fetcher.leader_endpoint import RemoteLeaderEndPoint
from twisted_broker.server.membership import Links
from twisted_broker.settings import ConfigError
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.primitives import new_uuid

if TYPE_CHECKING:
    from twisted_broker.replication.replica_manager import ReplicaManager
    from twisted_broker.server.metadata_publisher import BrokerMetadataPublisher
    from twisted_broker.server.shared_server import SharedServer
    from twisted_broker.server.socket_server import SocketServer

_logger = Logger(namespace="replog")


class KRaftMembership:
    """`IMembership`."""

    def __init__(self, shared: SharedServer, sockets: SocketServer) -> None:
        self._shared, self._sockets = shared, sockets
        self._adopting: Deferred[str] | None = None
        self._observer: MetadataObserver | None = None
        self._lifecycle: BrokerLifecycleManager | None = None
        self._links: Links | None = None

    async def connect(self, cluster_id: str) -> str:
        """A new broker belongs to the cluster of its controller."""
        if cluster_id:
            return cluster_id
        self._adopting = ensureDeferred(
            fetch_cluster_id(
                self._shared.runtime,
                self._controllers(),
                lambda: self._shared.stopping,
                self._sockets.security.to_controllers,
            )
        )
        return await self._adopting

    def routes(self) -> dict[int, Route]:
        return routes_for(on_controller=False)

    def make_links(self, located: Callable[[TopicPartition], bytes | None]) -> Links:
        shared = self._shared
        runtime, config = shared.runtime, shared.config
        connector = self._sockets.security.to_controllers
        own_log, base = self._open_own_log()
        shared.check_directories()
        observer = self._observer = MetadataObserver(
            runtime,
            config,
            shared.cluster_id,
            self._controllers(),
            shared.log_manager.directories.online()[0].directory_id,
            own_log,
            base,
            self._cannot_follow,
            connector,
        )

        def channel(purpose: str) -> ControllerChannel:
            return ControllerChannel(
                runtime,
                observer,
                f"broker-{config.node_id}-{purpose}",
                connector=connector,
            )

        lifecycle = self._lifecycle = BrokerLifecycleManager(
            runtime,
            config,
            observer,
            channel("lifecycle"),
            shared.on_fatal,
            shared.log_manager.cordoned,
        )
        config.subscribe(lambda live: lifecycle.settings_changed())
        self._links = Links(
            observer,
            lifecycle,
            AlterPartitionManager(runtime, config.node_id, channel("alter-partition"), lifecycle),
            ForwardingManager(runtime, config.node_id, channel("forwarding"), lifecycle),
            observer,
            config.integer("broker.session.timeout.ms"),
            RemoteLeaderEndPoint,
            SUPPORTED_FEATURES,
            lambda: (
                "controller" in shared.roles or (own_log is not None and own_log.failed is None)
            ),
            DirectoryAssignments(
                runtime, config.node_id, channel("directories"), lifecycle, located
            ),
            own_log,
        )
        return self._links

    def control_requests(self, replica_manager: ReplicaManager) -> None:
        """Roles come with the metadata."""

    async def follow(self, publisher: BrokerMetadataPublisher) -> None:
        assert self._observer is not None and self._lifecycle is not None
        lifecycle = self._lifecycle
        self._sockets.subscribe(lambda: lifecycle.listeners_changed(self._sockets.endpoints()))
        self._observer.subscribe(publisher.metadata_changed)
        self._observer.start()

    async def join(
        self, publisher: BrokerMetadataPublisher, let_clients_in: Callable[[], None]
    ) -> None:
        """Clients are let in once the controller lifted the fence."""
        observer, lifecycle = self._observer, self._lifecycle
        assert observer is not None and lifecycle is not None
        directories = self._shared.log_manager.directories
        lifecycle.start(
            self._shared.cluster_id,
            new_uuid(self._shared.runtime.random.randbytes),
            self._sockets.endpoints(),
            SUPPORTED_FEATURES,
            [each.directory_id for each in directories.online()],
            directories.previous_broker_epoch(),
        )
        await lifecycle.caught_up
        await publisher.first_publish(observer.image, observer.take_removals())
        lifecycle.ready_to_unfence()
        await lifecycle.unfenced
        let_clients_in()

    async def stop(self) -> None:
        links, observer = self._links, self._observer
        assert links is not None and observer is not None and links.assignments is not None
        links.alter_partition.stop()
        links.forwarding.stop()
        links.assignments.stop()
        links.lifecycle.stop()
        observer.stop()
        if links.own_log is not None:
            links.own_log.finish()

    async def close(self) -> None:
        if self._adopting is not None:
            self._adopting.cancel()

    def _open_own_log(self) -> tuple[ObserverLog | None, MetadataImage]:
        """This broker's own metadata log, where it is not the controller's own log; the
        image that it gives.
        """
        path = self._shared.metadata_directory
        directory = self._shared.log_manager.directories.at(path)
        if "controller" in self._shared.roles or directory.failed is not None:
            return None, EMPTY
        runtime = self._shared.runtime
        try:
            own_log, base, warning = open_observer_log(
                runtime.files,
                directory.disk,
                path,
                runtime.wall_ms,
                runtime.random.getrandbits(128),
                lambda error: self._own_log_failed(path, error),
                lambda text: _logger.warn("{text}", text=text),
                self._shared.applied(),
            )
        except OSError as error:
            self._shared.log_manager.directories.fail(path, error)
            return None, EMPTY
        if warning:
            _logger.error("{warning}", warning=warning)
        return own_log, base

    def _own_log_failed(self, path: str, error: BaseException) -> None:
        """The disk of that log has failed; the metadata is followed without it."""
        self._shared.log_manager.directories.fail(
            path, error if isinstance(error, OSError) else OSError(str(error))
        )

    def _cannot_follow(self, error: BaseException) -> None:
        assert self._observer is not None
        host, port = self._observer.address
        if isinstance(error, MetadataRegression):
            self._shared.on_fatal(
                f"the metadata of the controller at {host}:{port} cannot be that of this "
                f"broker's data: {error}. Nothing was deleted. "
                "A controller that lost its directory, or got an older copy of it, is "
                f"rebuilt with {recover_hint(self._shared.metadata_directory)}"
            )
        elif isinstance(error, BrokerError) and error.code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            ensureDeferred(self._belongs_elsewhere(host, port))
        else:
            self._shared.on_fatal(f"the metadata log cannot be followed: {error}")

    async def _belongs_elsewhere(self, host: str, port: int) -> None:
        """Ends this broker with a line that names the cluster of the controller."""
        shared, connector = self._shared, self._sockets.security.to_controllers
        try:
            found = await fetch_cluster_id_once(shared.runtime, host, port, connector)
            other = f"cluster {found}"
        except Exception:
            other = "another cluster"
        hint = recover_hint(shared.metadata_directory)
        shared.on_fatal(
            f"the controller at {host}:{port} belongs to {other}, this broker's "
            f"{', '.join(shared.config.log_directories)} to cluster "
            f"{shared.cluster_id}: name that cluster's controller; or, if the controller lost "
            f"its directory, rebuild it with {hint}"
        )

    def _controllers(self) -> list[tuple[str, int]]:
        """Where a controller may be found: here, or as configured. Raises ConfigError."""
        own = [(each.host, each.port) for each in self._sockets.listeners if each.is_controller]
        voters = self._shared.config.names("controller.quorum.voters")
        servers = self._shared.config.names("controller.quorum.bootstrap.servers")
        if own and len(voters) < 2 and not servers:
            return own
        named = [entry.rpartition("@")[2] for entry in voters]
        addresses = [_host_and_port(entry) for entry in (*named, *servers)]
        addresses += [each for each in own if each not in addresses]
        if not addresses:
            raise ConfigError(
                "controller.quorum.bootstrap.servers",
                "",
                "HOST:PORT of a controller, for a broker without one of its own",
            )
        return addresses


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not is_digits(port) or not host:
        raise ConfigError("controller.quorum.bootstrap.servers", text, "HOST:PORT")
    return host.strip("[]"), int(port)
