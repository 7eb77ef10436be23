"""One node, the composition root: makes its parts, starts and stops them.

Owns the order of starting and stopping, and which part gets which collaborators.

1. Start: directories claimed and logs loaded; controller (its listener, then its epoch); metadata
   followed; the broker's ports bound, still closed to clients; registration, caught up, unfenced;
   then clients are let in, and `start` ends.
2. Stop, as Kafka does: controlled shutdown (the whole way:
   `cluster/broker_controlled_shutdown.py`), listeners closed, coordinators, replica manager with
   its high-watermark checkpoint, controller, logs closed cleanly, with their clean shutdown file.
   Each step happens whatever became of the one before.
3. A broker talks to its controller over the network only, also when both are in one process.
4. A start that fails stops what it started.

Ring 2. Source: Kafka's `BrokerServer`, `ControllerServer`. Not here: options (`tap.py`), the
service around it (`broker_service.py`).
"""

from __future__ import annotations

import posixpath
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.error import CannotListenError
from twisted.logger import Logger

from twisted_broker.api import broker_loggers
from twisted_broker.api.audit import audit_lines
from twisted_broker.api.context import BrokerParts
from twisted_broker.api.dispatch import BoundRoute, Dispatcher
from twisted_broker.api.routes import Route, load_steps, served
from twisted_broker.cluster.metadata_check import MetadataDamage, recover_hint
from twisted_broker.config import BrokerConfig, LiveConfig
from twisted_broker.config_validation import super_users
from twisted_broker.interfaces import Health, IDelayedCall, Runtime, TopicPartition
from twisted_broker.java_numbers import is_digits
from twisted_broker.log.errors import CheckpointError, LogDirFailure, is_out_of_descriptors
from twisted_broker.log.log_directory import LOCK, LogDirMismatch
from twisted_broker.log.log_manager import LogManager
from twisted_broker.log.meta_properties import read_meta_properties
from twisted_broker.net.client import BrokerConnection
from twisted_broker.net.connection_limits import (
    ConnectionCounts,
    ConnectionFactory,
    DescriptorShares,
)
from twisted_broker.net.dynamic_listener_config import DynamicListenerConfig
from twisted_broker.net.listener_security import ListenerSecurity
from twisted_broker.net.listeners import (
    ConfiguredListener,
    Listener,
    ListenerName,
    ListenerPlan,
    OpenListeners,
    check_sasl,
    plan_listeners,
    sasl_settings,
)
from twisted_broker.net.request_bytes import RequestBytes
from twisted_broker.security.acl import AllowAll, Authorizer
from twisted_broker.security.quota.connection_rates import ConnectionRates
from twisted_broker.security.quota.quotas import quotas_of
from twisted_broker.settings import INT_MAX, ConfigError
from twisted_broker.topic_names import METADATA_DIRECTORY
from twisted_broker.turns import SECONDS_PER_TURN, Turns
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.primitives import new_uuid, uuid_text

if TYPE_CHECKING:
    from twisted_broker.api.routes import Route
    from twisted_broker.cluster.alter_partition_manager import AlterPartitionManager
    from twisted_broker.cluster.broker_lifecycle_manager import BrokerLifecycleManager
    from twisted_broker.cluster.controller import Controller
    from twisted_broker.cluster.directory_assignments import DirectoryAssignments
    from twisted_broker.cluster.forwarding_manager import ForwardingManager
    from twisted_broker.cluster.metadata_check import Applied
    from twisted_broker.cluster.metadata_copy import MetadataCopy
    from twisted_broker.cluster.observer import MetadataObserver
    from twisted_broker.cluster.stale_roles import StaleRoles
    from twisted_broker.coordinator.add_partitions_to_txn_manager import (
        AddPartitionsToTxnManager,
    )
    from twisted_broker.coordinator.group_coordinator import GroupCoordinator
    from twisted_broker.coordinator.transaction.transaction_coordinator import (
        TransactionCoordinator,
    )
    from twisted_broker.image.entries import Endpoint
    from twisted_broker.image.metadata_image import MetadataDelta, MetadataImage
    from twisted_broker.net.sasl_gate import SaslListener
    from twisted_broker.replication.fetcher.fetcher_manager import ReplicaFetcherManager
    from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
    from twisted_broker.replication.replica_manager import ReplicaManager
    from twisted_broker.security.sasl.scram import ScramCredential, ScramMechanism, TokenLogin
    from twisted_broker.zookeeper.role_requests import RoleRequests

_logger = Logger(namespace="replog")
T = TypeVar("T")

# Making the log of a new partition takes a millisecond, opening an old one 30 us. A turn is over
# after its time; the number is for a clock that stands still within a turn.
_PARTITIONS_A_PIECE, _PIECES_A_TURN = 10, 5

# What a leader needs for a request besides its wait for replicas, and the way there and back.
_ANSWER_MS = 2_000

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


@dataclass(frozen=True, slots=True)
class BrokerComponents:
    """What a node with the role `broker` consists of besides its logs."""

    observer: MetadataObserver
    lifecycle: BrokerLifecycleManager
    alter_partition: AlterPartitionManager
    replica_manager: ReplicaManager
    fetchers: ReplicaFetcherManager
    forwarding: ForwardingManager
    assignments: DirectoryAssignments
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    add_partitions_to_txn: AddPartitionsToTxnManager
    stale_roles: StaleRoles | None
    copy: MetadataCopy | None


@contextmanager
def _naming(directory: str) -> Iterator[None]:
    """The system's error of a write names no file: LogDirFailure names the directory."""
    try:
        yield
    except OSError as error:
        if is_out_of_descriptors(error):
            raise
        raise LogDirFailure(directory, error) from error


class KafkaServer:
    """One node: broker, controller or both.

    `cluster_id` None: the directory's, or a new one. `descriptors`: how many it may use.
    `on_fatal(reason)`: it cannot go on.
    """

    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        cluster_id: str | None = None,
        descriptors: int = INT_MAX,
        on_fatal: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.config = config = LiveConfig(config)
        self._fatal_listener = on_fatal
        self._fatal = ""
        self._shares = DescriptorShares(descriptors, len(config.log_directories))
        self.runtime = runtime
        self.plan: ListenerPlan = plan_listeners(config)
        check_sasl(config, self.plan)
        self._security = ListenerSecurity(runtime, config, self.plan)
        self._open = OpenListeners(runtime)
        self._dynamic_listeners = DynamicListenerConfig(
            config,
            self.plan,
            runtime.key_files or runtime.files,
            self._security,
            self._open.can_bind,
            self._listen_later,
            self._close_listener,
            self._listeners_changed,
        )
        self._to_brokers = self._security.to_brokers
        self._to_controllers = self._security.to_controllers
        self._is_formatted = False
        # before this process takes the lock: whether any did on what `kafka-storage format` made
        self._was_started = runtime.files.exists(posixpath.join(self.metadata_directory, LOCK))
        self.cluster_id = self._cluster_id(cluster_id)
        self._turns = Turns(runtime.clock, runtime.marks)
        self._audit = audit_lines(runtime.clock, config.node_id)
        self.log_manager = LogManager(
            runtime,
            config,
            on_directory_failure=self._directory_failed,
            most_files=self._shares.files,
            turns=self._turns,
        )
        self.listeners: list[Listener] = []
        self._factories: list[ConnectionFactory] = []
        self._dispatchers: list[Dispatcher] = []
        self._counts = ConnectionCounts(
            config.integer("max.connections"),
            config.integer("max.connections.per.ip"),
            lambda: self._shares.clients(self.log_manager.directories.descriptors()),
            [each.name for each in self.plan.broker],
            ConnectionRates(
                config.integer("quota.window.num"),
                config.integer("quota.window.size.seconds") * 1000,
            ),
            self.plan.inter_broker,
            self._shares.brokers,
        )
        self._request_bytes = RequestBytes(
            config.integer("queued.max.request.bytes"), runtime.clock
        )
        self._quotas = quotas_of(config, self._counts.rates.set_ip_rate)
        self._controller_quotas = quotas_of(config)
        self._undo: list[Callable[[], Awaitable[None]]] = []
        self._steps_of_controller = 0
        """the first of these: logs and controller, which go on where only the broker ends"""
        self._controller: Controller | None = None
        self.role: BrokerComponents | None = None
        self._role_requests: RoleRequests | None = None  # of a ZooKeeper cluster's member
        self.parts = self._make_parts({})
        self._started = self._leaving = self._stopping = self._caught_up = False
        self._deltas: deque[MetadataDelta] = deque()
        self._delta_call: IDelayedCall | None = None
        self._is_taking_deltas = False
        self._adopting: Deferred[str] | None = None
        self._counts.settings_changed(config)
        config.subscribe(self._counts.settings_changed)
        config.subscribe(lambda live: self.log_manager.cleaner.settings_changed())

    @property
    def roles(self) -> tuple[str, ...]:
        return self.config.names("process.roles")

    @property
    def has_controller(self) -> bool:
        """Whether a controller is part of it, and its disk has not failed."""
        return self._controller is not None and self._controller.log.failed is None

    def _make_parts(self, features: Mapping[str, tuple[int, int]]) -> BrokerParts:
        """Of what is there by now: the controller's listener opens before a broker's parts are
        made.
        """
        role = self.role
        return BrokerParts(
            node_id=self.config.node_id,
            cluster_id=self.cluster_id,
            config=self.config,
            runtime=self.runtime,
            authorizer=self._authorizer(),
            features=features,
            log_manager=self.log_manager,
            replica_manager=None if role is None else role.replica_manager,
            metadata=None if role is None else role.observer,
            forwarding=None if role is None else role.forwarding,
            groups=None if role is None else role.groups,
            transactions=None if role is None else role.transactions,
            add_partitions_to_txn=None if role is None else role.add_partitions_to_txn,
            controller=self._controller,
            turns=self._turns,
            lifecycle=None if role is None else role.lifecycle,
            listening=self._factories,
            dynamic_listeners=self._dynamic_listeners,
            audit=self._audit,
            roles=self._role_requests,
            quotas=self._quotas,
            controller_quotas=self._controller_quotas,
        )

    def _authorizer(self) -> Authorizer:
        """The authorizer of the parts: it decides by the metadata that this role follows."""
        if not self.config.text("authorizer.class.name"):
            return AllowAll()
        from twisted_broker.security.standard_authorizer import NoMetadata, StandardAuthorizer

        return StandardAuthorizer(
            (self._controller if self.role is None else self.role.observer) or NoMetadata(),
            super_users(self.config),
            self.config.boolean("allow.everyone.if.no.acl.found"),
        )

    def _cluster_id(self, wanted: str | None) -> str:
        """The cluster id of the log directories; "" when only a remote controller knows it.

        Raises LogDirMismatch when it is not `wanted`, and OSError when no directory that can be
        read has one: a disk that fails under one of several takes only that one offline, later.
        """
        unreadable: OSError | None = None
        for path in dict.fromkeys((*self.config.log_directories, self.metadata_directory)):
            try:
                found = read_meta_properties(self.runtime.files, path)
            except FileNotFoundError:
                continue
            except OSError as error:
                if path == self.metadata_directory and "controller" in self.roles:
                    raise
                unreadable = unreadable or error
                continue
            if found is not None and found.cluster_id is not None:
                if wanted not in (None, found.cluster_id):
                    raise LogDirMismatch(
                        f"{path} belongs to cluster {found.cluster_id}, not to {wanted}: "
                        "change --cluster-id or log.dirs"
                    )
                self._is_formatted = True
                return found.cluster_id
        if unreadable is not None:
            raise unreadable
        if wanted is None:
            self._check_unnamed()
        if wanted is None and "controller" not in self.roles:
            return ""
        return wanted or uuid_text(new_uuid(self.runtime.random.randbytes))

    def _check_unnamed(self) -> None:
        """No directory says which cluster it is of. LogDirMismatch where one holds its metadata."""
        from twisted_broker.cluster.metadata_check import holds_records

        for path in {*self.config.log_directories, self.metadata_directory}:
            directory = posixpath.join(path, METADATA_DIRECTORY)
            if holds_records(self.runtime.files, directory):
                raise LogDirMismatch(
                    f"{directory} holds a cluster's metadata, but {path}/meta.properties, which "
                    "says which, is missing: put it back, or name the cluster with --cluster-id "
                    "(another node's meta.properties has it)"
                )

    async def _adopt_cluster_id(self) -> None:
        """A new broker belongs to the cluster of its controller."""
        from twisted_broker.cluster.cluster_id import fetch_cluster_id

        self._adopting = ensureDeferred(
            fetch_cluster_id(
                self.runtime,
                self._controllers(),
                lambda: self._stopping,
                self._to_controllers,
            )
        )
        self.cluster_id = await self._adopting
        self.parts = self._make_parts({})

    def served(self) -> list[BoundRoute]:
        """The APIs requested on its listeners so far, for their counts."""
        return [each for dispatcher in self._dispatchers for each in dispatcher.served]

    # health

    def _on_fatal(self, reason: str) -> None:
        """It cannot go on."""
        self._fatal = self._fatal or reason
        self._fatal_listener(reason)

    def health(self) -> Health:
        """What probes are answered, as of now."""
        directories = self.log_manager.directories
        return Health(
            self.config.node_id,
            self.roles,
            self._fatal,
            self._not_ready(),
            tuple((each.path, str(each.failed)) for each in directories.claimed() if each.failed),
        )

    def _not_ready(self) -> str:
        """Why clients are not served; empty when they are."""
        role = self.role
        if self._leaving or self._stopping:
            return "it is shutting down"
        if self._started:
            if self._controller is not None and self._controller.log.failed is not None:
                return "the metadata log of its controller failed"
            return "" if role is None else self._fenced(role)
        if not self.cluster_id:
            return "it waits for its controller, which knows the cluster's id"
        if role is None:
            return (
                "its log directories are loaded"
                if self._controller is None
                else "its controller starts"
            )
        if role.lifecycle.broker_epoch < 0:
            return "it waits for its controller to register it"
        if not self._caught_up:
            return f"it reads the metadata: it is at offset {role.observer.image.offset}"
        return self._fenced(role) or "its listeners open"

    def _fenced(self, role: BrokerComponents) -> str:
        """Why no leadership is given to a broker that was registered; empty when it is served."""
        own = role.observer.image.brokers.get(self.config.node_id)
        if own is None:
            return "the controller does not know it any more; it registers again"
        if own.fenced:
            return "it is fenced: the controller has no heartbeat from it, or has not answered yet"
        return ""

    # starting

    async def start(self) -> None:
        """Ends when clients are served.

        When it fails, it stops what it started, then raises one of STARTING_ERRORS.
        """
        try:
            if not self.cluster_id:
                await self._adopt_cluster_id()
            await self._start_logs()
            await self._security.start()
            if "controller" in self.roles:
                await self._start_controller()
            if "broker" in self.roles:
                await self._start_broker()
                self._undo.append(self._dynamic_listeners.stop)
                await self._dynamic_listeners.start()
            self._started = True
        except Exception:  # not when this coroutine is thrown away: nothing may run then
            await self.stop()
            raise

    async def _start_logs(self) -> None:
        """Directories that were not loaded are only released: they may be another process's, so
        nothing is written to them.
        """
        is_controller = "controller" in self.roles
        try:
            await self.log_manager.start(
                self.cluster_id,
                {self.metadata_directory: self._format_metadata} if is_controller else None,
            )
        except GeneratorExit:  # this coroutine is thrown away: nothing may be waited for
            for directory in self.log_manager.directories.claimed():
                directory.stop_workers()
                directory.release()
            raise
        except BaseException:
            await self.log_manager.shutdown()
            raise
        self._undo.append(self._stop_logs)
        self._log_formatted()

    def _log_formatted(self) -> None:
        """A directory that was expected to hold data, and was empty, is seen by these lines."""
        founds = "controller" in self.roles and not self._is_formatted
        for directory in self.log_manager.directories.claimed():
            if founds and directory.path == posixpath.normpath(self.metadata_directory):
                _logger.info(
                    "formatted {path} as new cluster {id}", path=directory.path, id=self.cluster_id
                )
            elif directory.is_new:
                _logger.info(
                    "formatted {path} for node {node} of cluster {id}: it was empty",
                    path=directory.path,
                    node=self.config.node_id,
                    id=self.cluster_id,
                )

    def _format_metadata(self) -> None:
        """The metadata of a new cluster, before the directory bears its id.

        MetadataDamage: the cluster is not new, and its metadata is gone.
        """
        from twisted_broker.cluster.metadata_log import format_metadata

        format_metadata(
            self.runtime.files,
            self.metadata_directory,
            self.cluster_id,
            is_new=not self._is_formatted,
            was_started=self._was_started,
            others=self.config.log_directories,
        )

    async def _start_controller(self) -> None:
        from twisted_broker.cluster.bootstrap import read_bootstrap
        from twisted_broker.cluster.controller import Controller
        from twisted_broker.cluster.features import SUPPORTED_FEATURES
        from twisted_broker.cluster.metadata_log import MetadataLog, opened_in_steps
        from twisted_broker.image.entries import Endpoint

        broker_loggers.apply()  # to what was loaded just now
        directory = self.metadata_directory
        opening = opened_in_steps(
            self.runtime.files,
            self.log_manager.directories.worker(directory),
            directory,
            self.config.node_id,
            self.runtime.wall_ms(),
            applied=self._applied(),
        )
        with _naming(directory):
            opened = await self._turns.whole(self._until_stopped(opening))
            controller = self._controller = Controller(
                self.cluster_id,
                self.runtime,
                self.config,
                lambda on_committed, on_fatal: MetadataLog(
                    opened, self.config.node_id, self.runtime.wall_ms, on_committed, on_fatal
                ),
                lambda error: self._on_fatal(f"the metadata log failed: {error}"),
                self._check_image,
                partial(read_bootstrap, self.runtime.files, directory),
                self._turns,
                self._controller_quotas,
            )
        self.parts = self._make_parts(SUPPORTED_FEATURES)
        self._undo.append(self._stop_controller)
        with _naming(directory):
            replayed = await self._turns.whole(
                self._until_stopped(controller.log.replay_in_steps())
            )
        found = [
            await self._listen(endpoint, is_controller=True) for endpoint in self.plan.controller
        ]
        endpoints = [Endpoint(each.name, each.host, each.port, each.protocol) for each in found]
        with _naming(directory):
            await controller.start(endpoints, replayed)
        if any(each.name not in self.plan.early for each in found):
            self._open.start_accepting(lambda listener: listener.is_controller)
        self._steps_of_controller = len(self._undo)

    def _until_stopped(self, work: Generator[None, None, T]) -> Generator[None, None, T]:
        """Runs `work`; closes its directory where this broker was stopped meanwhile. Raises
        BrokerError.
        """
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            yield
            if self._stopping:
                work.close()
                raise BrokerError(ErrorCode.NOT_CONTROLLER, "stopped while it started")

    def _applied(self) -> Applied:
        """How far this node is known to have applied the metadata."""
        from twisted_broker.cluster.metadata_check import read_applied

        online = self.log_manager.directories.online()
        return read_applied(self.runtime.files, [each.path for each in online])

    def _check_image(self, image: MetadataImage) -> None:
        """Checks the metadata of this node's controller before it leads. Raises MetadataDamage
        where it is older than this node's logs.
        """
        from twisted_broker.cluster.metadata_check import check_logs

        check_logs(image, self.log_manager)

    @property
    def metadata_directory(self) -> str:
        return self.config.metadata_directory

    def _routes(self) -> dict[int, Route] | None:
        """The APIs to serve; None for the usual ones."""
        return None

    def load_steps(self) -> Iterator[None]:
        """Imports the modules of all APIs that this node serves."""
        if "broker" in self.roles:
            yield from load_steps(self._routes() or served(on_controller=False), False)
        if "controller" in self.roles:
            yield from load_steps(served(on_controller=True), True)

    async def _listen(self, endpoint: ConfiguredListener, is_controller: bool) -> Listener:
        """Opens a port; for a broker's port, clients wait until they are let in."""
        protocol = self.plan.protocols[endpoint.name]
        dispatcher = self._dispatcher(ListenerName(endpoint.name, is_controller, protocol))
        factory = ConnectionFactory(
            self.runtime,
            dispatcher,
            ConnectionCounts(self._shares.controller, INT_MAX, inter_broker=endpoint.name)
            if is_controller
            else self._counts,
            frame_limit=self.config.integer("socket.request.max.bytes"),
            idle_ms=self.config.integer("connections.max.idle.ms"),
            on_controller=is_controller,
            request_bytes=RequestBytes(
                self.config.integer("queued.max.request.bytes"), self.runtime.clock
            )
            if is_controller
            else self._request_bytes,
            name=endpoint.name,
            protocol=protocol,
            sasl=await self._sasl_listener(endpoint.name, is_controller),
        )
        listener = await self._open.open(
            endpoint,
            self._security.served(endpoint.name, factory),
            self.plan.advertised.get(endpoint.name, endpoint),
            is_controller,
            is_controller and endpoint.name in self.plan.early,
            protocol,
        )
        self._factories.append(factory)
        self.listeners.append(listener)
        return listener

    def _dispatcher(self, name: ListenerName) -> Dispatcher:
        """One that comes again goes on with its counts."""
        for dispatcher in self._dispatchers:
            if dispatcher.listener == name:
                return dispatcher
        self._dispatchers.append(self.make_dispatcher(name))
        return self._dispatchers[-1]

    def make_dispatcher(self, name: ListenerName) -> Dispatcher:
        """The way in of a listener."""
        return Dispatcher(self.parts, name, self._routes())

    # listeners that come and go while it runs

    async def _listen_later(self, plan: ListenerPlan, endpoint: ConfiguredListener) -> None:
        self.plan = plan
        self._security.add(endpoint.name, plan.protocols[endpoint.name])
        try:
            listener = await self._listen(endpoint, is_controller=False)
        except BaseException:
            self._security.remove(endpoint.name)
            raise
        self._open.start_accepting(lambda each: each is listener)

    async def _close_listener(self, name: str) -> None:
        """Its port, then its connections."""
        await self._open.close(lambda listener: listener.name == name)
        self.listeners[:] = [each for each in self.listeners if each.name != name]
        for factory in [each for each in self._factories if each.name == name]:
            self._factories.remove(factory)
            self._close_connections_of(factory)
        self._security.remove(name)

    def _listeners_changed(self) -> None:
        assert self.role is not None
        self.plan = self._dynamic_listeners.plan
        self._counts.serve([each.name for each in self.plan.broker])
        self._set_advertised_listeners()
        self.role.lifecycle.listeners_changed(self._endpoints())

    def _endpoints(self) -> list[Endpoint]:
        """What is registered."""
        from twisted_broker.image.entries import Endpoint

        return [
            Endpoint(each.name, each.host, each.port, each.protocol)
            for each in self.listeners
            if not each.is_controller
        ]

    async def _sasl_listener(self, name: str, is_controller: bool) -> SaslListener | None:
        if not self.plan.protocols[name].uses_sasl:
            return None
        settings = sasl_settings(self.config, name)
        from twisted_broker.cluster.scram_changes import stored_credential
        from twisted_broker.net.sasl_gate import SaslListener

        def lookup(mechanism: ScramMechanism, user: str) -> ScramCredential | None:
            # A broker reads the metadata only after its controller let it in.
            source = self.parts.controller if is_controller else self.parts.metadata
            return None if source is None else stored_credential(source.image, mechanism, user)

        def token(mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
            secret = self.parts.tokens.secret
            source = self.parts.controller if is_controller else self.parts.metadata
            if secret is None or source is None:
                return None
            from twisted_broker.cluster.token_changes import login_of

            return login_of(source.image, secret, mechanism, token_id, self.runtime.wall_ms())

        jwks = None
        if settings.oauth is not None:
            from twisted_broker.net.jwks import JwksKeys

            jwks = JwksKeys(settings.oauth.jwks_url, settings.oauth.refresh_ms, self.runtime.clock)
            await jwks.load()
        return SaslListener(self.runtime, name, settings, lookup, jwks, token)

    async def _start_broker(self) -> None:
        from twisted_broker.cluster.alter_partition_manager import AlterPartitionManager
        from twisted_broker.cluster.broker_lifecycle_manager import BrokerLifecycleManager
        from twisted_broker.cluster.controller_channel import ControllerChannel
        from twisted_broker.cluster.directory_assignments import DirectoryAssignments
        from twisted_broker.cluster.features import BROKER_FEATURES
        from twisted_broker.cluster.forwarding_manager import ForwardingManager
        from twisted_broker.cluster.observer import MetadataObserver
        from twisted_broker.cluster.stale_roles import StaleRoles
        from twisted_broker.replication.fetcher.fetcher_manager import ReplicaFetcherManager
        from twisted_broker.replication.replica_manager import ReplicaManager

        broker_loggers.apply()
        runtime, config = self.runtime, self.config
        copy, base = self._open_copy()
        if not self.log_manager.directories.online():
            raise LogDirFailure(", ".join(self.log_manager.directories.by_path), None)
        observer = MetadataObserver(
            runtime,
            config,
            self.cluster_id,
            self._controllers(),
            self.log_manager.directories.online()[0].directory_id,
            copy,
            base,
            self._cannot_follow,
            self._to_controllers,
        )

        def channel(purpose: str) -> ControllerChannel:
            return ControllerChannel(
                runtime,
                observer,
                f"broker-{config.node_id}-{purpose}",
                connector=self._to_controllers,
            )

        lifecycle = BrokerLifecycleManager(
            runtime,
            config,
            observer,
            channel("lifecycle"),
            self._on_fatal,
            self.log_manager.cordoned,
        )
        config.subscribe(lambda live: lifecycle.settings_changed())
        alter_partition = AlterPartitionManager(
            runtime, config.node_id, channel("alter-partition"), lifecycle
        )
        assignments = DirectoryAssignments(
            runtime, config.node_id, channel("directories"), lifecycle, self._directory_of
        )
        replica_manager = ReplicaManager(
            config.node_id,
            runtime,
            config,
            self.log_manager,
            observer,
            alter_partition,
            lambda replicas: ReplicaFetcherManager(
                replicas,
                observer,
                self.plan.inter_broker,
                lambda: lifecycle.broker_epoch,
                self._connect_to_leader,
            ),
            self._take_over,
            assignments,
            lambda: "controller" in self.roles or (copy is not None and copy.failed is None),
            self._turns,
        )
        fetchers = replica_manager.fetchers
        assert fetchers is not None
        config.subscribe(fetchers.settings_changed)
        forwarding = ForwardingManager(runtime, config.node_id, channel("forwarding"), lifecycle)
        stale_roles = StaleRoles(
            runtime.clock,
            observer,
            config.integer("broker.session.timeout.ms"),
            lambda: not self._deltas,
        )
        groups, transactions, add_partitions_to_txn = self._make_coordinators(
            replica_manager, observer, forwarding, stale_roles.may_be
        )
        self.role = BrokerComponents(
            observer,
            lifecycle,
            alter_partition,
            replica_manager,
            fetchers,
            forwarding,
            assignments,
            groups,
            transactions,
            add_partitions_to_txn,
            stale_roles,
            copy,
        )
        self.parts = self._make_parts(BROKER_FEATURES)
        observer.subscribe(self._metadata_changed)
        self._undo.append(self._stop_membership)
        observer.start()
        self._undo.append(self._stop_serving)
        for endpoint in self.plan.broker:
            await self._listen(endpoint, is_controller=False)
        self._set_advertised_listeners()
        await self._join(self.role)

    def _open_copy(self) -> tuple[MetadataCopy | None, MetadataImage]:
        """This broker's own copy of the metadata, where it is not the controller's own log; the
        image that it gives.
        """
        from twisted_broker.cluster.metadata_copy import open_metadata_copy
        from twisted_broker.image.metadata_image import EMPTY

        path = self.metadata_directory
        directory = self.log_manager.directories.at(path)
        if "controller" in self.roles or directory.failed is not None:
            return None, EMPTY
        runtime = self.runtime
        try:
            copy, base, warning = open_metadata_copy(
                runtime.files,
                directory.disk,
                path,
                runtime.wall_ms,
                runtime.random.getrandbits(128),
                lambda error: self._copy_failed(path, error),
                lambda text: _logger.warn("{text}", text=text),
                self._applied(),
            )
        except OSError as error:
            self.log_manager.directories.fail(path, error)
            return None, EMPTY
        if warning:
            _logger.error("{warning}", warning=warning)
        return copy, base

    def _copy_failed(self, path: str, error: BaseException) -> None:
        """The disk of the copy has failed; the metadata is followed without it."""
        self.log_manager.directories.fail(
            path, error if isinstance(error, OSError) else OSError(str(error))
        )

    def _cannot_follow(self, error: BaseException) -> None:
        from twisted_broker.cluster.metadata_loader import MetadataRegression

        assert self.role is not None
        host, port = self.role.observer.address
        if isinstance(error, MetadataRegression):
            self._on_fatal(
                f"the metadata of the controller at {host}:{port} cannot be that of this "
                f"broker's data: {error}. Nothing was deleted. "
                "A controller that lost its directory, or got an older copy of it, is "
                f"rebuilt with {recover_hint(self.metadata_directory)}"
            )
        elif isinstance(error, BrokerError) and error.code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            ensureDeferred(self._belongs_elsewhere(host, port))
        else:
            self._on_fatal(f"the metadata log cannot be followed: {error}")

    async def _belongs_elsewhere(self, host: str, port: int) -> None:
        """Ends this broker with a line that names the cluster of the controller."""
        from twisted_broker.cluster.cluster_id import fetch_cluster_id_once

        try:
            found = await fetch_cluster_id_once(self.runtime, host, port, self._to_controllers)
            other = f"cluster {found}"
        except Exception:
            other = "another cluster"
        hint = recover_hint(self.metadata_directory)
        self._on_fatal(
            f"the controller at {host}:{port} belongs to {other}, this broker's "
            f"{', '.join(self.config.log_directories)} to cluster "
            f"{self.cluster_id}: name that cluster's controller; or, if the controller lost "
            f"its directory, rebuild it with {hint}"
        )

    def _connect_to_leader(self, leader: BrokerEndPoint, client_id: str) -> BrokerConnection:
        """A follower's connection."""
        timeout_ms = self.config.integer("replica.socket.timeout.ms")
        return BrokerConnection(
            self.runtime,
            leader.host,
            leader.port,
            client_id,
            request_timeout_ms=timeout_ms,
            connect_timeout_ms=min(timeout_ms, 10_000),
            connector=self._to_brokers,
        )

    def _make_coordinators(
        self,
        replica_manager: ReplicaManager,
        image_source: Any,
        forwarding: Any,
        has_stale_roles: Callable[[], bool] = bool,
    ) -> tuple[GroupCoordinator, TransactionCoordinator, AddPartitionsToTxnManager]:
        """The coordinators of groups and of transactions, and the manager that asks the latter
        about partitions. `image_source` and `forwarding`: the metadata log's, or a ZooKeeper
        cluster's.
        """
        from twisted_broker.coordinator.add_partitions_to_txn_manager import (
            AddPartitionsToTxnManager,
        )
        from twisted_broker.coordinator.coordinator_context import coordinator_settings
        from twisted_broker.coordinator.coordinator_publisher import build_group_coordinator
        from twisted_broker.coordinator.transaction.transaction_publisher import (
            build_transaction_coordinator,
        )

        runtime, config = self.runtime, self.config
        groups = build_group_coordinator(
            runtime,
            config,
            replica_manager,
            image_source,
            forwarding.create_topics,
            self._turns,
            has_stale_roles,
        )
        config.subscribe(lambda live: groups.update_settings(coordinator_settings(live)))
        transactions = build_transaction_coordinator(
            runtime,
            config,
            replica_manager,
            image_source,
            forwarding.create_topics,
            forwarding.producer_ids.next,
            self.plan.inter_broker,
            self._connect_for_markers,
            self._turns,
            has_stale_roles,
        )
        add_partitions_to_txn = AddPartitionsToTxnManager(
            config.node_id,
            image_source,
            self.plan.inter_broker,
            self._connect_to_coordinator,
            runtime.clock.seconds,
        )
        return groups, transactions, add_partitions_to_txn

    def _connect_for_markers(self, host: str, port: int) -> BrokerConnection:
        """A connection for transaction markers, to a leader."""
        # A leader waits that long for replicas, then says which markers are written and which may
        # be: a connection that is closed before would leave all of them to be sent again.
        timeout_ms = self.config.integer("request.timeout.ms") + _ANSWER_MS
        return BrokerConnection(
            self.runtime,
            host,
            port,
            f"broker-{self.config.node_id}-txn-marker-sender",
            request_timeout_ms=timeout_ms,
            connector=self._to_brokers,
        )

    def _connect_to_coordinator(
        self, coordinator: BrokerEndPoint, client_id: str
    ) -> BrokerConnection:
        """A connection to a transaction coordinator."""
        timeout_ms = self.config.integer("request.timeout.ms")
        return BrokerConnection(
            self.runtime,
            coordinator.host,
            coordinator.port,
            client_id,
            request_timeout_ms=timeout_ms,
            connect_timeout_ms=min(timeout_ms, 10_000),
            connector=self._to_brokers,
        )

    def _set_advertised_listeners(self) -> None:
        """What is advertised becomes part of the configuration, with the ports that were found."""
        advertised = ",".join(
            str(ConfiguredListener(each.name, each.host, each.port))
            for each in self.listeners
            if not each.is_controller
        )
        self.config.replace(
            BrokerConfig(
                self.config.static | {"advertised.listeners": advertised},
                self.config.cluster,
                self.config.broker,
            )
        )

    def _directory_of(self, topic_partition: TopicPartition) -> bytes | None:
        """The id of the directory that holds a replica; LOST for one that none could take; None
        when there is none.
        """
        from twisted_broker.image.entries import LOST

        assert self.role is not None
        partition = self.role.replica_manager.partitions.get(topic_partition)
        found = self.log_manager.get(topic_partition)
        if partition is not None and partition.offline and (found is None or partition.log is None):
            return LOST  # one that is there is not the replica's: an older one, perhaps
        return None if found is None else self.log_manager.directories.of(found).directory_id

    def _controllers(self) -> list[tuple[str, int]]:
        """Where a controller may be found: here, or as configured. Raises ConfigError."""
        own = [(each.host, each.port) for each in self.listeners if each.is_controller]
        if own:
            return own
        named = [
            entry.rpartition("@")[2] for entry in self.config.names("controller.quorum.voters")
        ]
        found = [*named, *self.config.names("controller.quorum.bootstrap.servers")]
        addresses = [_host_and_port(entry) for entry in found]
        if not addresses:
            raise ConfigError(
                "controller.quorum.bootstrap.servers",
                "",
                "HOST:PORT of a controller, for a broker without one of its own",
            )
        return addresses

    async def _join(self, role: BrokerComponents) -> None:
        """Registers, waits until the metadata is here, and lets clients in once the controller
        lifted the fence.
        """
        from twisted_broker.cluster.features import BROKER_FEATURES
        from twisted_broker.image.metadata_image import MetadataDelta, MetadataImage

        lifecycle, directories = role.lifecycle, self.log_manager.directories.online()
        lifecycle.start(
            self.cluster_id,
            new_uuid(self.runtime.random.randbytes),
            self._endpoints(),
            BROKER_FEATURES,
            [each.directory_id for each in directories],
            self.log_manager.directories.previous_broker_epoch(),
        )
        await lifecycle.caught_up
        self._caught_up = True
        first = MetadataDelta.between(MetadataImage(), role.observer.image)
        first.removals = role.observer.take_removals()
        self._metadata_changed(first)
        while self._deltas:  # so that the reactor is not held by the logs of many partitions
            await self._turns.next_turn()
        lifecycle.ready_to_unfence()
        await lifecycle.unfenced
        assert role.stale_roles is not None
        role.stale_roles.start()
        role.groups.start()
        role.transactions.start()
        self._open.start_accepting()

    # while running

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        """A piece of the metadata log. What was before our registration is history: only its
        outcome counts.

        Many partitions are taken over in several turns: their files are made on the way, and
        heartbeats must not wait for a thousand of them.
        """
        if not self._caught_up:
            return
        self._deltas.extend(delta.pieces(_PARTITIONS_A_PIECE))
        if self._delta_call is None and not self._is_taking_deltas:
            self._next_deltas()

    def _next_deltas(self) -> None:
        """Takes over the deltas of one turn."""
        self._delta_call, self._is_taking_deltas = None, True
        until = self.runtime.clock.seconds() + SECONDS_PER_TURN
        try:
            for _ in range(_PIECES_A_TURN):
                self._take_delta(self._deltas.popleft())
                if not self._deltas or self.runtime.clock.seconds() >= until:
                    break
        finally:
            self._is_taking_deltas = False
            if self._deltas:
                self._delta_call = self.runtime.clock.callLater(0, self._next_deltas)

    def _take_delta(self, delta: MetadataDelta) -> None:
        """Settings first, then roles."""
        image = delta.after
        self._quotas.apply(delta.quotas, delta.before.client_quotas, image.client_quotas)
        if delta.configs & {(4, ""), (4, str(self.config.node_id))}:
            config, refused = self.config.with_stored(
                image.config(4, ""), image.config(4, str(self.config.node_id))
            )
            for line in refused:
                _logger.warn("a stored setting is refused: {reason}", reason=line)
            self.config.replace(config)
        self._take_over(delta, image)

    def _take_over(self, delta: MetadataDelta, image: MetadataImage) -> None:
        assert self.role is not None
        self.role.replica_manager.apply_delta(delta, image)
        self.role.assignments.apply_delta(delta)

    def _directory_failed(self, path: str, error: OSError) -> None:
        """Its replicas go offline, the controller is informed; without any directory the broker
        stops, as Kafka's does.
        """
        if self.role is not None:
            self.role.replica_manager.directory_failed(path, error)
            self.role.lifecycle.directory_failed(
                self.log_manager.directories.by_path[path].directory_id
            )
        if not self.log_manager.directories.online() and self._started:
            self._on_fatal(f"all log directories are offline: {error}")

    # stopping

    async def controlled_shutdown(self) -> None:
        """Waits until the controller has moved the leaderships of this broker, then stops
        following. `stop` begins with it.

        Nodes of one process do it side by side before any of them stops: none waits for one that
        leaves too, or fetches from one that is gone.
        """
        self._leaving = True
        role, own = self.role, self._controller
        if role is None or not self.config.boolean("controlled.shutdown.enable"):
            return
        if own is not None and own.log.failed is not None:
            # the only controller is this one, and its disk failed: it never decides again
            role.lifecycle.stop()
        await role.lifecycle.controlled_shutdown()
        role.fetchers.shutdown()

    def skip_controlled_shutdown(self) -> None:
        """A second stop signal: a controlled shutdown under way ends at once, and leaderships not
        moved yet stay.

        The rest of the stop is as orderly as ever.
        """
        if self.role is not None:
            self.role.lifecycle.skip_controlled_shutdown()

    async def stop(self) -> None:
        """Takes back what was started, in the reverse order; never raises."""
        self._stopping = True
        if self._adopting is not None:
            self._adopting.cancel()
        self._security.stop()
        await self._take_back(0)
        for dispatcher in self._dispatchers:
            dispatcher.slow.stop()
        self._audit.stop()

    async def stop_broker_role(self) -> None:
        """Stops what serves clients; its controller goes on until `stop`."""
        await self._take_back(self._steps_of_controller)

    async def _take_back(self, left: int) -> None:
        undo, self._undo = self._undo[left:], self._undo[:left]
        for step in reversed(undo):
            try:
                await step()
            except Exception:
                _logger.failure("a step of the shutdown failed; the shutdown continues")

    async def _stop_serving(self) -> None:
        await self.controlled_shutdown()
        await self._open.close(lambda listener: not listener.is_controller)
        self._close_connections(on_controller=False)
        assert self.role is not None
        self.role.transactions.stop()
        self.role.add_partitions_to_txn.close()
        self.role.groups.stop()
        if self.role.stale_roles is not None:
            self.role.stale_roles.stop()
        self.role.replica_manager.shutdown()

    async def _stop_membership(self) -> None:
        role = self.role
        assert role is not None
        role.alter_partition.stop()
        role.forwarding.stop()
        role.assignments.stop()
        role.lifecycle.stop()
        role.observer.stop()
        if role.copy is not None:
            role.copy.finish()
        if self._delta_call is not None:
            self._delta_call.cancel()

    async def _stop_controller(self) -> None:
        assert self._controller is not None
        self._controller.stop()
        await self._open.close(lambda listener: True)
        self._close_connections(on_controller=True)

    async def _stop_logs(self) -> None:
        epoch = self.role.lifecycle.broker_epoch if self.role is not None else -1
        await self.log_manager.shutdown(None if epoch < 0 else epoch)

    def _close_connections(self, on_controller: bool) -> None:
        for factory in self._factories:
            if factory.on_controller == on_controller:
                self._close_connections_of(factory)

    def _close_connections_of(self, factory: ConnectionFactory) -> None:
        factory.close_all()
        if factory.sasl is not None:
            factory.sasl.stop()


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not is_digits(port) or not host:
        raise ConfigError("controller.quorum.bootstrap.servers", text, "HOST:PORT")
    return host.strip("[]"), int(port)
