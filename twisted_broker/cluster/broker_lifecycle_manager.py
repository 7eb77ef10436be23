"""A broker's membership: registration, heartbeats, controlled shutdown.

Owns `BrokerLifecycleManager`.

    starting --(registered, caught up)--> recovery --(ready, answered unfenced)-----> running
                                                                                          |
    stopped <--(answer: shut down now, or waited enough)- shutting down <--(stop signal)+

1. The broker epoch comes from the registration and holds until this process ends, or the controller
   does not know the broker any more: then it registers again (`registration.py`), and goes through
   recovery again.
2. A change that others wait for (caught up, ready, stopping, a lost directory) is sent at once, not
   with the next heartbeat.
3. A registration is sent again, under the same broker epoch, when it was written before the
   metadata named log directories and metadata.version rises to where it does (Kafka's
   `BrokerRegistrationTracker`), and when this broker's listeners changed.
4. One heartbeat is in flight at a time. One that is not answered within half a session is given up
   with its connection: the connection may have died for one side only, and the controller be well.

Source: Kafka's `BrokerLifecycleManager`, `BrokerRegistrationTracker`; KRAFT 3.5; `RL 8.2`. Not
here: what a registration says (`registration.py`), how long a controlled shutdown may take
(`broker_controlled_shutdown.py`), the controller's side (`broker_registry.py`), the clean-shutdown
file (`server/shared_server.py` writes and reads it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.broker_controlled_shutdown import ControlledShutdown
from twisted_broker.cluster.controller_channel import ControllerChannel, check_answer
from twisted_broker.cluster.denials import Denials
from twisted_broker.cluster.observer import MetadataObserver
from twisted_broker.cluster.records import CORDON_LEVEL, DIRECTORIES_LEVEL
from twisted_broker.cluster.registration import Registration
from twisted_broker.cluster.unexpected_errors import UnexpectedErrors
from twisted_broker.image.entries import Endpoint, FeatureRange
from twisted_broker.image.metadata_image import METADATA_VERSION, MetadataDelta
from twisted_broker.interfaces import IDelayedCall, Runtime
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import broker_lifecycle as broker_lifecycle_messages

_logger = Logger()
# While the broker waits to be unfenced, or to leave, it sends heartbeats more often than usual.
_EAGER_INTERVAL_MS, _RETRY_MS = 50, 200


class BrokerState(Enum):
    """Kafka's states of a broker, with the numbers that metrics show."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


def _stopped(failure: Failure) -> None:
    """`stop` cancels what is under way, wherever it waits; anything else is a bug and logged."""
    failure.trap(CancelledError)


class BrokerLifecycleManager:
    """`caught_up`: the image includes our registration; `unfenced`: clients may be served. The
    first fails when the registration is refused for good.

    `on_fatal(reason)`: a broker that served may not go on.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        observer: MetadataObserver,
        channel: ControllerChannel,
        on_fatal: Callable[[str], None] = lambda reason: None,
        cordoned: Callable[[], list[bytes]] = list,
    ) -> None:
        self._cordoned = cordoned
        self.state = BrokerState.NOT_RUNNING
        self.broker_epoch = -1
        self.caught_up: Deferred[None] = Deferred()
        self.unfenced: Deferred[None] = Deferred()
        self._on_fatal = on_fatal
        self._runtime, self._config, self._observer, self._channel = (
            runtime,
            config,
            observer,
            channel,
        )
        self._registration = Registration(runtime, config, observer, channel)
        self._interval_ms = config.integer("broker.heartbeat.interval.ms")
        self._heartbeat_timeout_ms = config.integer("broker.session.timeout.ms") // 2
        self._offline: list[bytes] = []
        self._ready = False
        self._timer: IDelayedCall | None = None
        self._heartbeat_in_flight = self._send_again = False
        self._refused_with: ErrorCode | None = None
        self._denials = Denials(most_ms=self._interval_ms)
        self._unexpected_errors = UnexpectedErrors("heartbeats")
        self._controlled_shutdown = ControlledShutdown(runtime, config, observer, self._shut_down)
        self._registering: Deferred[None] | None = None
        self._amending = False
        self._amended: tuple[int, int, list[Endpoint]] = (-1, -1, [])
        """the broker epoch, metadata.version and listeners that it was last amended for: once for
        each
        """
        observer.subscribe(self._metadata_changed)

    def start(
        self,
        cluster_id: str,
        incarnation_id: bytes,
        listeners: Sequence[Endpoint],
        features: Mapping[str, FeatureRange],
        directories: Sequence[bytes],
        previous_broker_epoch: int = -1,
    ) -> None:
        """Begins to register (see `Registration.describe`)."""
        self.state = BrokerState.STARTING
        self._registration.describe(
            cluster_id, incarnation_id, listeners, features, directories, previous_broker_epoch
        )
        self._registering = ensureDeferred(self._register()).addErrback(_stopped)

    async def _register(self) -> None:
        try:
            epoch = await self._registration.first()
        except BrokerError as error:
            self._give_up(error)
            return
        await self._registered(epoch)

    async def _register_again(self) -> None:
        _logger.warn(
            "the controller does not know this broker any more (it was unregistered, or its "
            "broker epoch is old): registering again"
        )
        epoch = await self._granted_again()
        if epoch is not None:
            await self._registered(epoch)

    async def _granted_again(self) -> int | None:
        """The broker epoch; None where this broker may not go on."""
        try:
            epoch = await self._registration.again()
        except BrokerError as error:
            if self.state is not BrokerState.SHUTTING_DOWN:
                self.state = BrokerState.NOT_RUNNING
                self._on_fatal(error.message or str(error))
            return None
        if epoch != self.broker_epoch:
            _logger.info("registered again, under broker epoch {epoch}", epoch=epoch)
        return epoch

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        if METADATA_VERSION in delta.features or self._config.node_id in delta.brokers:
            self._amend_if_needed()

    def _amend_if_needed(self) -> None:
        """Registers again where the registration names other listeners; or no log directories,
        and may: the controller left them out under an older metadata.version.
        """
        image = self._observer.image
        own = image.brokers.get(self._config.node_id)
        if own is None or own.epoch != self.broker_epoch or not self._serves or self._amending:
            return
        listeners = self._registration.listeners
        amended = (own.epoch, image.metadata_version, listeners)
        if self._amended == amended:
            return
        if not own.directories and image.metadata_version >= DIRECTORIES_LEVEL:
            _logger.info("metadata.version includes log directories now: registering them")
        elif own.listeners != {each.name: each for each in listeners}:
            _logger.info("the listeners changed: registering them")
        else:
            return
        self._amended, self._amending = amended, True
        self._registering = ensureDeferred(self._amend()).addErrback(_stopped)

    def listeners_changed(self, listeners: Sequence[Endpoint]) -> None:
        """Registers these."""
        self._registration.set_listeners(listeners)
        self._amend_if_needed()

    async def _amend(self) -> None:
        try:
            epoch = await self._granted_again()
        finally:
            self._amending = False
        # Another epoch: it was unregistered meanwhile.
        if epoch is not None and epoch != self.broker_epoch and self._serves:
            self.state = BrokerState.STARTING
            await self._registered(epoch)
        else:  # the listeners may have changed meanwhile
            self._amend_if_needed()

    @property
    def _serves(self) -> bool:
        return self.state in (BrokerState.RECOVERY, BrokerState.RUNNING)

    async def _registered(self, epoch: int) -> None:
        """Takes the broker epoch, and goes on when the metadata includes the registration.

        If metadata at that offset lacks it, the broker was unregistered right away, or the
        controller's log was set back and the observer is about to end this broker. By such metadata
        the broker would lead under an old leader epoch.
        """
        self.broker_epoch = epoch
        self._schedule(self._interval_ms)
        await self._observer.reaches(epoch)
        pause_ms = _RETRY_MS
        while self.state is BrokerState.STARTING and not self._is_in_metadata:
            await self._channel.pause(pause_ms)
            pause_ms = min(2 * pause_ms, self._interval_ms)
            granted = await self._granted_again()
            if granted is None:
                return
            self.broker_epoch = granted
            await self._observer.reaches(granted)
        if self.state is BrokerState.STARTING:
            self.state = BrokerState.RECOVERY
            if not self.caught_up.called:
                self.caught_up.callback(None)
            self.send_heartbeat()
            self._amend_if_needed()

    @property
    def _is_in_metadata(self) -> bool:
        own = self._observer.image.brokers.get(self._config.node_id)
        return own is not None and own.epoch == self.broker_epoch

    def _give_up(self, error: BrokerError) -> None:
        self.state = BrokerState.NOT_RUNNING
        self.caught_up.errback(error)

    def ready_to_unfence(self) -> None:
        """Logs are loaded and the first image is applied: clients may come."""
        self._ready = True
        self.send_heartbeat()

    def directory_failed(self, directory_id: bytes) -> None:
        """Reports to the controller that a log directory cannot be used any more."""
        if directory_id not in self._offline:
            self._offline.append(directory_id)
            self.send_heartbeat()

    def settings_changed(self) -> None:
        """Reports other cordoned directories at once."""
        if self._cordoned_to_report() is not None:
            self.send_heartbeat()

    # heartbeats

    def _schedule(self, delay_ms: int) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = self._runtime.clock.callLater(delay_ms / 1000, self.send_heartbeat)

    def send_heartbeat(self) -> None:
        """Sends a heartbeat now, or as soon as the one under way is answered."""
        if self.broker_epoch < 0 or self.state in (
            BrokerState.NOT_RUNNING,
            BrokerState.SHUTTING_DOWN,
        ):
            return
        # One at a time: an older beat that arrives late would take back what a newer one said.
        if self._heartbeat_in_flight:
            self._send_again = True
            return
        self._heartbeat_in_flight, self._send_again = True, False
        ensureDeferred(self._heartbeat()).addErrback(_stopped)

    async def _heartbeat(self) -> None:
        is_shutting_down = self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
        cordoned = self._cordoned_to_report()
        request = broker_lifecycle_messages.BrokerHeartbeatRequest(
            broker_id=self._config.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._observer.image.offset,
            want_fence=not (self._ready and self.state is not BrokerState.STARTING),
            want_shut_down=is_shutting_down,
            offline_log_dirs=list(self._offline),
            cordoned_log_dirs=cordoned,
        )
        delay_ms, refused_ms = _RETRY_MS, 0
        try:
            version = 1 if cordoned is None else 2
            response = await self._channel.send_once(request, version, self._heartbeat_timeout_ms)
            check_answer(response.error_code)
            delay_ms = self._answered(response, is_shutting_down)
            self._refused_with = None
            self._denials.succeeded()
            self._unexpected_errors.worked()
        except BrokerError as error:
            self._heartbeat_refused(error)
            refused_ms = self._denials.pause_ms(error, _RETRY_MS)
        except CancelledError:
            raise
        except Exception as error:
            self._unexpected_errors.failed(error)
        finally:
            self._heartbeat_in_flight = False
        if is_shutting_down and delay_ms == _RETRY_MS:
            self._controlled_shutdown.controller_is_away()
        if self._send_again:
            self.send_heartbeat()
        elif self.state not in (BrokerState.SHUTTING_DOWN, BrokerState.NOT_RUNNING):
            self._schedule(max(delay_ms, refused_ms))

    def _cordoned_to_report(self) -> list[bytes] | None:
        """KIP-1066: the directories that take no new replica, when the metadata has others; None
        when it has the same, or metadata.version does not include them.
        """
        image = self._observer.image
        own = image.brokers.get(self._config.node_id)
        if own is None or image.metadata_version < CORDON_LEVEL:
            return None
        cordoned = self._cordoned()
        return None if cordoned == sorted(own.cordoned or ()) else cordoned

    def _heartbeat_refused(self, error: BrokerError) -> None:
        """Logged once for each reason.

        STALE_BROKER_EPOCH: a broker that is shutting down may go, one that serves registers again.
        """
        if (
            error.code is ErrorCode.STALE_BROKER_EPOCH
            and self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
        ):
            self._shut_down()
        elif error.code is ErrorCode.STALE_BROKER_EPOCH and self._serves and not self._amending:
            self.state = BrokerState.STARTING
            self._registering = ensureDeferred(self._register_again()).addErrback(_stopped)
        elif error.code not in (
            ErrorCode.NOT_CONTROLLER,
            ErrorCode.STALE_BROKER_EPOCH,
            self._refused_with,
        ):
            self._refused_with = error.code
            _logger.warn("the controller refuses heartbeats, retrying: {error}", error=error)

    def _answered(
        self, response: broker_lifecycle_messages.BrokerHeartbeatResponse, is_shutting_down: bool
    ) -> int:
        """Takes an answer in; the pause before the next beat, in ms."""
        if is_shutting_down and response.should_shut_down:
            _logger.info(
                "controlled shutdown: confirmed by the controller after {ms} ms",
                ms=self._controlled_shutdown.lasted_ms,
            )
            self._shut_down()
            return 0
        if self.state is BrokerState.RECOVERY and not response.is_fenced:
            self.state = BrokerState.RUNNING
            if not self.unfenced.called:
                self.unfenced.callback(None)
        if is_shutting_down:
            return _EAGER_INTERVAL_MS
        waiting_to_serve = self.state is BrokerState.RECOVERY and self._ready
        return _EAGER_INTERVAL_MS if waiting_to_serve else self._interval_ms

    # controlled shutdown

    def controlled_shutdown(self) -> Deferred[None]:
        """Requests a controlled shutdown; fires when the controller has moved all leaders away, or
        when the wait is over. Never fails.
        """
        if self.state in (BrokerState.RUNNING, BrokerState.RECOVERY):
            self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
            self._controlled_shutdown.begin()
            self.send_heartbeat()
        elif self.state is not BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            self._shut_down()
        return self._controlled_shutdown.done

    def skip_controlled_shutdown(self) -> None:
        """A controlled shutdown under way ends at once."""
        self._controlled_shutdown.skip()

    def _shut_down(self) -> None:
        self.state = BrokerState.SHUTTING_DOWN
        self._controlled_shutdown.end()

    def stop(self) -> None:
        """Sends no heartbeat any more."""
        self._shut_down()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._registering is not None:
            self._registering.cancel()
        self._channel.close()
