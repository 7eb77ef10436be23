"""This broker's session with ZooKeeper, its registration there, and its leave.

Owns `Membership`: the node `/brokers/ids/N`, the broker epoch, controlled shutdown.

    starting --(connected, the right cluster)--> registered --(session expired)--> registering again
                                                      |
                    stopped <--(controller moved all leaders, or tried enough)--(stop signal)

1. The broker epoch is the transaction that created the node (czxid). A new session has a new node,
   hence a new epoch, and the controller gives all roles again.
2. A node of this id that another session owns is never removed: it may be a broker that lives. It
   is waited for as long as a session of ours lives at most; then the start fails.
3. The cluster is the one of `meta.properties`, and no KRaft controller migrates it.

Source: KRAFT 2.1, 2.3; Kafka 3.9's `KafkaZkClient.registerBroker`,
`KafkaServer.controlledShutdown`. Not here: the session itself (`port.py`), roles
(`control_requests.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.broker_lifecycle_manager import BrokerState
from twisted_broker.cluster.controller_channel import ControllerChannel, check_answer
from twisted_broker.image.entries import Endpoint
from twisted_broker.interfaces import Runtime
from twisted_broker.settings import ConfigError
from twisted_broker.wire.messages.zookeeper_controller import ControlledShutdownRequest
from twisted_broker.zookeeper.cluster_state import ClusterState
from twisted_broker.zookeeper.port import (
    IZooKeeper,
    NodeExistsError,
    NoNodeError,
    SessionEvent,
    ZooKeeperError,
)
from twisted_broker.zookeeper.protocol_versions import InterBrokerProtocol
from twisted_broker.zookeeper.znodes import (
    CLUSTER_ID,
    LOG_DIR_EVENT,
    MIGRATION,
    broker_json,
    broker_path,
    is_being_migrated,
    log_dir_event_json,
    read_cluster_id,
)

_logger = Logger()
CONNECT = "zookeeper.connect"
_RETRY_MS, _NO_SESSION = 500, 0
_CONTROLLED_SHUTDOWN_VERSION = 3


class Membership:
    """`new_session()`: what must be read again. `on_fatal(reason)`: it cannot go on."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        zookeeper: IZooKeeper,
        state: ClusterState,
        protocol: InterBrokerProtocol,
        new_session: Callable[[], Awaitable[None]],
        on_fatal: Callable[[str], None],
    ) -> None:
        self.state = BrokerState.NOT_RUNNING
        self._runtime, self._config, self._zookeeper = runtime, config, zookeeper
        self._cluster, self._protocol = state, protocol
        self._new_session, self._on_fatal = new_session, on_fatal
        self._channel: ControllerChannel | None = None
        self._connected: Deferred[None] | None = None
        self._listeners: Sequence[Endpoint] = ()
        self._registered_session = 0
        self._is_registered = self._is_suspended = False
        self._registering: Deferred[None] | None = None
        self._leaving: Deferred[None] | None = None
        self._work: Deferred[None] | None = None

    @property
    def broker_epoch(self) -> int:
        """-1 before the registration."""
        return self._cluster.broker_epoch

    # starting

    async def connect(self, cluster_id: str) -> str:
        """The cluster's id. Raises ConfigError, in one line: nobody answers, no Kafka cluster, or
        not `cluster_id` (where that is not empty).
        """
        address = str(self._config[CONNECT])
        if self.state is BrokerState.NOT_RUNNING:
            self.state = BrokerState.STARTING
            self._connected = Deferred()
            self._zookeeper.start(self._session_changed)
            wait_ms = self._config["zookeeper.connection.timeout.ms"] or self._config.integer(
                "zookeeper.session.timeout.ms"
            )
            assert isinstance(wait_ms, int)
            await self._within(self._connected, wait_ms, address)
        found = await self._read_cluster_id(address)
        if cluster_id and found != cluster_id:
            raise ConfigError(
                CONNECT,
                address,
                "",
                f"that ensemble is of Kafka cluster {found}, but log.dirs of cluster {cluster_id}: "
                "name the ensemble and path of that cluster, or other directories",
            )
        await self._check_migration(address)
        return found

    def _within(self, work: Deferred[None], wait_ms: int, address: str) -> Deferred[None]:
        def too_late(result: object, seconds: float) -> Failure:
            return Failure(
                ConfigError(
                    CONNECT,
                    address,
                    "",
                    f"no ZooKeeper answered there within {wait_ms} ms: start the ensemble, or name "
                    "its HOST:PORT list (zookeeper.connection.timeout.ms)",
                )
            )

        return work.addTimeout(wait_ms / 1000, self._runtime.clock, too_late)  # type: ignore[arg-type]

    async def _read_cluster_id(self, address: str) -> str:
        try:
            data, _ = await self._zookeeper.get(CLUSTER_ID)
        except NoNodeError:
            raise ConfigError(
                CONNECT,
                address,
                "",
                f"there is no Kafka cluster at that path ({CLUSTER_ID} is missing): start its "
                "Apache Kafka brokers first, or add the path, as in HOST:PORT/kafka",
            ) from None
        except ZooKeeperError as error:
            raise ConfigError(
                CONNECT, address, "", f"reading {CLUSTER_ID} failed: {error}"
            ) from None
        return read_cluster_id(data)

    async def _check_migration(self, address: str) -> None:
        try:
            data, _ = await self._zookeeper.get(MIGRATION)
        except ZooKeeperError:
            return
        if is_being_migrated(data):
            raise ConfigError(CONNECT, address, "", MIGRATED)

    async def register(self, listeners: Sequence[Endpoint]) -> None:
        """Makes the node. Raises ConfigError when the id is taken."""
        self._listeners = listeners
        limit_ms = self._runtime.now_ms() + 2 * self._config.integer("zookeeper.session.timeout.ms")
        said = False
        while True:
            try:
                if await self._create():
                    if self.state is BrokerState.STARTING:
                        self.state = BrokerState.RUNNING
                    return
            except ZooKeeperError as error:
                _logger.debug("registering in ZooKeeper again: {error}", error=error)
            else:
                if not said:
                    said = True
                    _logger.info(
                        "{path} is another session's: waiting for it to end",
                        path=broker_path(self._config.node_id),
                    )
                if self._runtime.now_ms() >= limit_ms:
                    raise ConfigError(
                        "broker.id",
                        str(self._config.node_id),
                        "",
                        "a broker of that id is alive in this cluster: stop it, or take another id",
                    )
            await self._pause(_RETRY_MS)

    async def _create(self) -> bool:
        """False while another session has the node."""
        path = broker_path(self._config.node_id)
        session = self._zookeeper.session_id
        content = broker_json(
            self._listeners,
            self._config.text("broker.rack"),
            self._runtime.wall_ms(),
            self._protocol.features,
        )
        try:
            _, stat = await self._zookeeper.create(path, content, ephemeral=True)
        except NodeExistsError:
            try:
                _, stat = await self._zookeeper.get(path)
            except NoNodeError:
                return False  # it went just now
            if stat.ephemeral_owner == self._registered_session != session != _NO_SESSION:
                await self._zookeeper.delete(path)  # of our own session before this one
                return await self._create()
            if stat.ephemeral_owner != session:
                return False
            # Ours: the answer to the first try was lost.
        self._registered_session, self._is_registered = session, True
        self._cluster.broker_epoch = stat.czxid
        _logger.info(
            "registered in ZooKeeper under broker epoch {epoch}", epoch=self._cluster.broker_epoch
        )
        return True

    # the session

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._is_registered = False
            if self.state is BrokerState.RUNNING:
                _logger.warn(
                    "the session with ZooKeeper expired: the controller counts this broker as dead "
                    "until it is registered again"
                )
            elif self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
                # The controller refuses the request of a broker that is not registered.
                _logger.info(
                    "controlled shutdown: the session with ZooKeeper expired, so the controller "
                    "moves all leaderships away by itself"
                )
                self._left()
            return
        if event is SessionEvent.SUSPENDED:
            if self.state is BrokerState.RUNNING:
                self._is_suspended = True
                _logger.warn("the connection to ZooKeeper is lost, connecting again")
            return
        if self._is_suspended:
            self._is_suspended = False
            same = self._zookeeper.session_id == self._registered_session
            _logger.info(
                "the connection to ZooKeeper is back, in {session}",
                session="the same session" if same else "a new session",
            )
        connected, self._connected = self._connected, None
        if connected is not None:
            if not connected.called:
                connected.callback(None)
        else:
            self._register_new_session()

    def _register_new_session(self) -> None:
        if (
            self.state is BrokerState.RUNNING
            and self._zookeeper.session_id not in (_NO_SESSION, self._registered_session)
            and self._registering is None
        ):
            self._registering = ensureDeferred(self._register_again())
            self._registering.addCallbacks(self._registered, self._cannot_register)

    async def _register_again(self) -> None:
        await self._check_migration(str(self._config[CONNECT]))
        await self.register(self._listeners)
        await self._new_session()

    def _registered(self, result: object) -> None:
        self._registering = None
        self._register_new_session()  # this one may have ended, and another begun, meanwhile

    def _cannot_register(self, failure: Failure) -> None:
        self._registering = None
        if failure.check(CancelledError) is None:
            self._on_fatal(str(failure.value))

    def directory_failed(self, directory_id: bytes) -> None:
        """The controller reads what is offline here, by LeaderAndIsr."""
        created = self._zookeeper.create(
            LOG_DIR_EVENT, log_dir_event_json(self._config.node_id), sequence=True
        )
        created.addErrback(
            lambda failure: _logger.error(
                "a failed log directory could not be reported: {error}", error=failure.value
            )
        )

    # leaving

    def use_channel(self, channel: ControllerChannel) -> None:
        """To the controller."""
        self._channel = channel

    def controlled_shutdown(self) -> Deferred[None]:
        """Fires when the controller moved all leaderships away, or that was tried often enough.
        Never fails.
        """
        if self._leaving is None:
            running = self.state is BrokerState.RUNNING and self._is_registered
            if self._registering is not None:
                self._registering.cancel()
            self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
            self._leaving = Deferred()
            if not running:
                self._left()
                return self._leaving
            self._work = ensureDeferred(self._leave())
            self._work.addErrback(_ended).addBoth(lambda result: self._left())
        return self._leaving

    async def _leave(self) -> None:
        assert self._channel is not None
        request = ControlledShutdownRequest(
            broker_id=self._config.node_id, broker_epoch=self.broker_epoch
        )
        backoff_ms = self._config.integer("controlled.shutdown.retry.backoff.ms")
        tries = max(1, self._config.integer("controlled.shutdown.max.retries"))
        for number in range(tries):
            try:
                answer = await self._channel.send_until_answered(
                    request, _CONTROLLED_SHUTDOWN_VERSION
                )
                check_answer(answer.error_code)
                if not answer.remaining_partitions:
                    _logger.info("controlled shutdown: confirmed by the controller")
                    return
                why = f"{len(answer.remaining_partitions)} partition(s) are still led here"
            except CancelledError:
                raise
            except Exception as error:
                why = str(error)
            _logger.info(
                "controlled shutdown, try {number} of {tries}: {why}",
                number=number + 1,
                tries=tries,
                why=why,
            )
            if number + 1 < tries:
                await self._pause(backoff_ms)
        _logger.warn("controlled shutdown: not confirmed, this broker stops without it")

    def _left(self) -> None:
        self.state = BrokerState.SHUTTING_DOWN
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
        if self._leaving is not None and not self._leaving.called:
            self._leaving.callback(None)

    def skip_controlled_shutdown(self) -> None:
        """A controlled shutdown under way ends at once."""
        if self._leaving is not None:
            self._left()

    def stop(self) -> None:
        """Nothing is sent any more; the session is ended by its owner."""
        self.state = BrokerState.SHUTTING_DOWN
        if self._registering is not None:
            self._registering.cancel()
        if self._channel is not None:
            self._channel.close()

    def _pause(self, ms: int) -> Deferred[None]:
        return deferLater(self._runtime.clock, ms / 1000, lambda: None)  # type: ignore[arg-type]


MIGRATED = (
    "the cluster is being migrated to KRaft: a broker of ours takes no part in that; start it as a "
    "member of the KRaft cluster afterwards (process.roles, controller.quorum.bootstrap.servers)"
)


def _ended(failure: Failure) -> None:
    if failure.check(CancelledError) is None:
        _logger.failure("the controlled shutdown failed", failure)
