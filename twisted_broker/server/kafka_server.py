"""One node, the composition root: makes its parts, starts and stops them.

Owns the order of starting and stopping. Its parts: what both roles share (`shared_server.py`), the
listeners (`socket_server.py`), and each role (`controller_server.py`, `broker_server.py`).

1. Start: directories claimed and logs loaded; controller (its listener, then its epoch); metadata
   followed; the broker's ports bound, still closed to clients; registration, caught up, unfenced;
   then clients are let in, and `start` ends.
2. Stop, as Kafka does: the broker (controlled shutdown first), the controller, logs closed cleanly,
   with their clean shutdown file.
3. A start that fails stops what it started.

Ring 1. Source: Kafka's `KafkaRaftServer`; 3.9's `KafkaServer` for a member of a ZooKeeper cluster.
Not here: options (`tap.py`), the service around it (`broker_service.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from twisted.internet.error import CannotListenError

from twisted_broker.api.context import BrokerParts
from twisted_broker.api.dispatch import BoundRoute, Dispatcher
from twisted_broker.api.routes import load_steps, routes_for
from twisted_broker.broker_config import BrokerConfig, LiveConfig
from twisted_broker.cluster.metadata_check import MetadataDamage
from twisted_broker.config_validation import super_users
from twisted_broker.interfaces import Health, Runtime
from twisted_broker.known_settings import ZOOKEEPER_CONNECT
from twisted_broker.log.errors import CheckpointError, LogDirFailure
from twisted_broker.log.log_directory import LogDirMismatch
from twisted_broker.net.listeners import Listener, ListenerName
from twisted_broker.security.acl import AllowAll, Authorizer
from twisted_broker.server.membership import IMembership
from twisted_broker.server.shared_server import SharedServer
from twisted_broker.server.socket_server import SocketServer
from twisted_broker.settings import INT_MAX, ConfigError
from twisted_broker.wire.errors import BrokerError

if TYPE_CHECKING:
    from twisted_broker.api.routes import Route
    from twisted_broker.cluster.controller import Controller
    from twisted_broker.server.broker_server import BrokerServer
    from twisted_broker.server.controller_server import ControllerServer

Features = Mapping[str, tuple[int, int]]
STARTING_ERRORS = (
    BrokerError,
    CannotListenError,
    CheckpointError,
    ConfigError,
    LogDirFailure,
    LogDirMismatch,
    MetadataDamage,
    OSError,
)


def _membership(shared: SharedServer, sockets: SocketServer) -> IMembership:
    if ZOOKEEPER_CONNECT in shared.config.static:
        from twisted_broker.server.zookeeper_membership import ZooKeeperMembership

        return ZooKeeperMembership(shared, sockets)
    from twisted_broker.server.kraft_membership import KRaftMembership

    return KRaftMembership(shared, sockets)


class KafkaServer:
    """One node: broker, controller or both.

    `cluster_id` None: the directory's, or a new one. `descriptors`: how many it may use.
    `on_fatal(reason)`: it cannot go on. `membership`: makes what ties a broker to its cluster.
    """

    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        cluster_id: str | None = None,
        descriptors: int = INT_MAX,
        on_fatal: Callable[[str], None] = lambda reason: None,
        membership: Callable[[SharedServer, SocketServer], IMembership] = _membership,
    ) -> None:
        self.config, self.runtime = LiveConfig(config), runtime
        self.shared = SharedServer(
            self.config, runtime, cluster_id, descriptors, on_fatal, self._directory_failed
        )
        self.log_manager = self.shared.log_manager
        self.sockets = SocketServer(self.shared, self.make_dispatcher, lambda: self.parts)
        self.membership = membership(self.shared, self.sockets) if self._is_broker else None
        self._controller_server: ControllerServer | None = None
        self.broker_server: BrokerServer | None = None
        self.parts = self._make_parts({})
        self._started = self._leaving = False

    @property
    def roles(self) -> tuple[str, ...]:
        return self.shared.roles

    @property
    def _is_broker(self) -> bool:
        return "broker" in self.shared.roles

    @property
    def _controller(self) -> Controller | None:
        return None if self._controller_server is None else self._controller_server.controller

    @property
    def cluster_id(self) -> str:
        """Empty while only a remote controller knows it."""
        return self.shared.cluster_id

    @property
    def listeners(self) -> list[Listener]:
        """Those that are open."""
        return self.sockets.listeners

    @property
    def has_controller(self) -> bool:
        """Whether a controller is part of it, and its disk has not failed."""
        return self._controller is not None and self._controller.log.failed is None

    def _make_parts(self, features: Features) -> BrokerParts:
        """Of what is there by now: the controller's listener opens before a broker's parts are
        made.
        """
        broker = self.broker_server
        return BrokerParts(
            node_id=self.config.node_id,
            cluster_id=self.shared.cluster_id,
            config=self.config,
            runtime=self.runtime,
            authorizer=self._authorizer(),
            features=features,
            log_manager=self.log_manager,
            replica_manager=None if broker is None else broker.replica_manager,
            metadata=None if broker is None else broker.observer,
            forwarding=None if broker is None else broker.forwarding,
            groups=None if broker is None else broker.groups,
            transactions=None if broker is None else broker.transactions,
            share_state=None if broker is None else broker.share_state,
            share_partitions=None if broker is None else broker.share_partitions,
            telemetry=None if broker is None else broker.telemetry,
            add_partitions_to_txn=None if broker is None else broker.add_partitions_to_txn,
            controller=self._controller,
            turns=self.shared.turns,
            lifecycle=None if broker is None else broker.lifecycle,
            listening=self.sockets.factories,
            dynamic_listeners=self.sockets.dynamic,
            audit=self.shared.audit,
            control_requests=None if broker is None else broker.control_requests,
            quotas=self.shared.quotas,
            controller_quotas=self.shared.controller_quotas,
        )

    def _renew_parts(self, features: Features) -> None:
        self.parts = self._make_parts(features)

    def _authorizer(self) -> Authorizer:
        """The authorizer of the parts: it decides by the metadata that this role follows."""
        if not self.config.text("authorizer.class.name"):
            return AllowAll()
        from twisted_broker.security.standard_authorizer import NoMetadata, StandardAuthorizer

        return StandardAuthorizer(
            (self._controller if self.broker_server is None else self.broker_server.observer)
            or NoMetadata(),
            super_users(self.config),
            self.config.boolean("allow.everyone.if.no.acl.found"),
        )

    def make_dispatcher(self, name: ListenerName) -> Dispatcher:
        """The way in of a listener."""
        return Dispatcher(self.parts, name, self._routes(name.is_controller))

    def _routes(self, on_controller: bool) -> dict[int, Route]:
        if on_controller or self.membership is None:
            return routes_for(on_controller)
        return self.membership.routes()

    def load_steps(self) -> Iterator[None]:
        """Imports the modules of all APIs that this node serves."""
        if self._is_broker:
            yield from load_steps(self._routes(on_controller=False), False)
        if "controller" in self.roles:
            yield from load_steps(self._routes(on_controller=True), True)

    def bound_routes(self) -> list[BoundRoute]:
        """The APIs requested on its listeners so far, for their counts."""
        return self.sockets.bound_routes()

    # health

    def health(self) -> Health:
        """What probes are answered, as of now."""
        directories = self.log_manager.directories
        return Health(
            self.config.node_id,
            self.roles,
            self.shared.fatal,
            self._not_ready(),
            tuple((each.path, str(each.failed)) for each in directories.claimed() if each.failed),
        )

    def _not_ready(self) -> str:
        """Why clients are not served; empty when they are."""
        broker = self.broker_server
        if self._leaving or self.shared.stopping:
            return "it is shutting down"
        if self._started:
            if self._controller is not None and self._controller.log.failed is not None:
                return "the metadata log of its controller failed"
            return "" if broker is None else broker.fenced()
        if not self.shared.cluster_id:
            return "it waits for its controller, which knows the cluster's id"
        if broker is None:
            return (
                "its log directories are loaded"
                if self._controller is None
                else "its controller starts"
            )
        if broker.lifecycle.broker_epoch < 0:
            return "it waits for its controller to register it"
        if not broker.publisher.caught_up:
            return f"it reads the metadata: it is at offset {broker.observer.image.offset}"
        return broker.fenced() or "its listeners open"

    # starting

    async def start(self) -> None:
        """Ends when clients are served.

        When it fails, it stops what it started, then raises one of STARTING_ERRORS.
        """
        try:
            await self._connect()
            await self.shared.start_logs(self._broker_epoch)
            await self.sockets.security.start()
            if "controller" in self.roles:
                await self._start_controller()
            if self._is_broker:
                await self._start_broker()
            self._started = True
        except Exception:  # not when this coroutine is thrown away: nothing may run then
            await self.stop()
            raise

    async def _connect(self) -> None:
        """A broker of a cluster that others keep learns its id from them."""
        shared, membership = self.shared, self.membership
        if membership is not None:
            shared.on_stop(membership.close)
            shared.cluster_id = await membership.connect(shared.cluster_id)
            self._renew_parts({})

    def _broker_epoch(self) -> int:
        return -1 if self.broker_server is None else self.broker_server.lifecycle.broker_epoch

    async def _start_controller(self) -> None:
        from twisted_broker.server.controller_server import ControllerServer

        self._controller_server = ControllerServer(self.shared, self.sockets, self._renew_parts)
        await self._controller_server.start()

    async def _start_broker(self) -> None:
        from twisted_broker.server.broker_server import BrokerServer

        assert self.membership is not None
        broker = self.broker_server = BrokerServer(self.shared, self.sockets, self.membership)
        self._renew_parts(broker.features)
        await broker.start(self.controlled_shutdown)
        self.shared.on_stop(self.sockets.dynamic.stop)
        await self.sockets.dynamic.start()

    # while running

    def _directory_failed(self, path: str, error: OSError) -> None:
        """Without any directory the broker stops, as Kafka's does."""
        if self.broker_server is not None:
            self.broker_server.directory_failed(path, error)
        if not self.log_manager.directories.online() and self._started:
            self.shared.on_fatal(f"all log directories are offline: {error}")

    # stopping

    async def controlled_shutdown(self) -> None:
        """Waits until the controller has moved the leaderships of this broker, then stops
        following. `stop` begins with it.

        Nodes of one process do it side by side before any of them stops: none waits for one that
        leaves too, or fetches from one that is gone.
        """
        self._leaving = True
        broker, own = self.broker_server, self._controller
        if broker is None or not self.config.boolean("controlled.shutdown.enable"):
            return
        if own is not None and own.log.failed is not None and own.log.quorum.is_alone:
            # the only controller is this one, and its disk failed: it never decides again
            broker.lifecycle.stop()
        await broker.controlled_shutdown()

    def skip_controlled_shutdown(self) -> None:
        """A second stop signal, or all nodes stop: it waits for no other. A controlled shutdown
        under way ends at once, and leaderships not moved yet stay; so does the quorum's.

        The rest of the stop is as orderly as ever.
        """
        if self.broker_server is not None:
            self.broker_server.lifecycle.skip_controlled_shutdown()
        if self._controller_server is not None:
            self._controller_server.skip_hand_over()

    async def stop(self) -> None:
        """Takes back what was started, in the reverse order; never raises."""
        self.shared.stopping = True
        self.sockets.security.stop()
        await self.shared.take_back(0)
        for dispatcher in self.sockets.dispatchers:
            dispatcher.slow.stop()
        self.shared.audit.stop()

    async def stop_broker_role(self) -> None:
        """Stops what serves clients; its controller goes on until `stop`."""
        await self.shared.take_back(
            0 if self._controller_server is None else self._controller_server.steps
        )
