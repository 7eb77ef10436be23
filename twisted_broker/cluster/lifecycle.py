"""A broker's membership: registration, heartbeats, leaving.

Owns `BrokerLifecycle`.

    starting --(registered, caught up)--> recovery --(ready, beat answered unfenced)--> running
                                                                                          |
    stopped <--(answer: shut down now, or waited enough)- shutting down <--(asked to stop)+

1. The broker epoch comes from the registration and is good until this process ends, or the
   controller knows the broker no more: then it registers anew (`registering.py`), and goes through
   recovery again.
2. A change that others wait for (caught up, ready, stopping, a lost directory) is told at once, not
   with the next beat.
3. One heartbeat is under way at a time; a session is lost by silence, never by haste. One that is
   not answered within half a session is given up with its connection: behind a connection that died
   for one side only, a controller may be well.

Source: Kafka's `BrokerLifecycleManager`; KRAFT 3.5; `RL 8.2`. Left out: what a registration says
(`registering.py`), how long leaving may take (`leaving.py`), the clean-shutdown file (the
composition writes and reads it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.cluster.controlled_shutdown import ControlledShutdown
from twisted_broker.cluster.controller_channel import ControllerChannel, check_answer
from twisted_broker.cluster.observer import MetadataObserver
from twisted_broker.cluster.registration import Registration
from twisted_broker.cluster.unexpected_errors import UnexpectedErrors
from twisted_broker.config import BrokerConfig
from twisted_broker.image.entries import Endpoint, FeatureRange
from twisted_broker.interfaces import IDelayedCall, Runtime
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import broker_lifecycle as broker_lifecycle_messages

_log = Logger()
_SHUTDOWN_BEAT_MS, _FAILED_BEAT_MS = 50, 200


class BrokerState(Enum):
    """Kafka's states of a broker, with the numbers that metrics show."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


def _stopped(failure: Failure) -> None:
    """`stop` cancels what is under way, wherever it waits; anything else is a bug, and told as
    one.
    """
    failure.trap(CancelledError)


class BrokerLifecycle:
    """`caught_up`: the image includes our registration; `unfenced`: clients may be served. The
    first fails when registration is hopeless.

    `on_fatal(reason)`: a broker that served may not go on.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        observer: MetadataObserver,
        channel: ControllerChannel,
        on_fatal: Callable[[str], None] = lambda reason: None,
    ) -> None:
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
        self._registering = Registration(runtime, config, observer, channel)
        self._interval_ms = config.integer("broker.heartbeat.interval.ms")
        self._patience_ms = config.integer("broker.session.timeout.ms") // 2
        self._offline: list[bytes] = []
        self._ready = False
        self._timer: IDelayedCall | None = None
        self._beating = self._beat_again = False
        self._refused_with: ErrorCode | None = None
        self._surprises = UnexpectedErrors("heartbeats")
        self._leaving = ControlledShutdown(runtime, config, observer, self._leave)
        self._running: Deferred[None] | None = None

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
        self._registering.describe(
            cluster_id, incarnation_id, listeners, features, directories, previous_broker_epoch
        )
        self._running = ensureDeferred(self._join()).addErrback(_stopped)

    async def _join(self) -> None:
        try:
            epoch = await self._registering.first()
        except BrokerError as error:
            self._give_up(error)
            return
        await self._registered(epoch)

    async def _join_again(self) -> None:
        _log.warn(
            "the controller knows this broker no more (it was unregistered, or its epoch is "
            "old): it registers anew"
        )
        try:
            epoch = await self._registering.again()
        except BrokerError as error:
            self.state = BrokerState.NOT_RUNNING
            self._on_fatal(error.message or str(error))
            return
        _log.info("registered anew, under epoch {epoch}", epoch=epoch)
        await self._registered(epoch)

    async def _registered(self, epoch: int) -> None:
        """Under this epoch; goes on when the metadata tells of it."""
        self.broker_epoch = epoch
        self._schedule(self._interval_ms)
        await self._observer.reaches(epoch)
        if self.state is BrokerState.STARTING:
            self.state = BrokerState.RECOVERY
            if not self.caught_up.called:
                self.caught_up.callback(None)
            self.beat_now()

    def _give_up(self, error: BrokerError) -> None:
        self.state = BrokerState.NOT_RUNNING
        self.caught_up.errback(error)

    def ready_to_unfence(self) -> None:
        """Logs are loaded and the first image is applied: clients may come."""
        self._ready = True
        self.beat_now()

    def directory_failed(self, directory_id: bytes) -> None:
        """Tells the controller that a log directory cannot be used any more."""
        if directory_id not in self._offline:
            self._offline.append(directory_id)
            self.beat_now()

    # heartbeats

    def _schedule(self, delay_ms: int) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = self._runtime.clock.callLater(delay_ms / 1000, self.beat_now)

    def beat_now(self) -> None:
        """Sends a heartbeat now, or as soon as the one under way is answered."""
        if self.broker_epoch < 0 or self.state in (
            BrokerState.NOT_RUNNING,
            BrokerState.SHUTTING_DOWN,
        ):
            return
        if self._beating:
            self._beat_again = True
            return
        self._beating, self._beat_again = True, False
        ensureDeferred(self._beat()).addErrback(_stopped)

    async def _beat(self) -> None:
        leaving = self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
        request = broker_lifecycle_messages.BrokerHeartbeatRequest(
            broker_id=self._config.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._observer.image.offset,
            want_fence=not (self._ready and self.state is not BrokerState.STARTING),
            want_shut_down=leaving,
            offline_log_dirs=list(self._offline),
        )
        delay_ms = _FAILED_BEAT_MS
        try:
            response = await self._channel.ask_once(request, 1, self._patience_ms)
            check_answer(response.error_code)
            delay_ms = self._answered(response, leaving)
            self._refused_with = None
            self._surprises.worked()
        except BrokerError as error:
            self._beat_refused(error)
        except CancelledError:
            raise
        except Exception as error:
            self._surprises.failed(error)
        finally:
            self._beating = False
        if leaving and delay_ms == _FAILED_BEAT_MS:
            self._leaving.controller_is_away()
        if self._beat_again:
            self.beat_now()
        elif self.state not in (BrokerState.SHUTTING_DOWN, BrokerState.NOT_RUNNING):
            self._schedule(delay_ms)

    def _beat_refused(self, error: BrokerError) -> None:
        """Told once for each reason.

        An epoch that is not ours any more: whoever leaves may go, whoever serves registers anew.
        """
        if (
            error.code is ErrorCode.STALE_BROKER_EPOCH
            and self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
        ):
            self._leave()
        elif error.code is ErrorCode.STALE_BROKER_EPOCH and self.state in (
            BrokerState.RECOVERY,
            BrokerState.RUNNING,
        ):
            self.state = BrokerState.STARTING
            self._running = ensureDeferred(self._join_again()).addErrback(_stopped)
        elif error.code not in (
            ErrorCode.NOT_CONTROLLER,
            ErrorCode.STALE_BROKER_EPOCH,
            self._refused_with,
        ):
            self._refused_with = error.code
            _log.warn("the controller refuses heartbeats, trying on: {error}", error=error)

    def _answered(
        self, response: broker_lifecycle_messages.BrokerHeartbeatResponse, leaving: bool
    ) -> int:
        """Takes an answer in; the pause before the next beat, in ms."""
        if leaving and response.should_shut_down:
            _log.info(
                "leadership is handed over ({ms} ms): this broker leaves",
                ms=self._leaving.lasted_ms,
            )
            self._leave()
            return 0
        if self.state is BrokerState.RECOVERY and not response.is_fenced:
            self.state = BrokerState.RUNNING
            if not self.unfenced.called:
                self.unfenced.callback(None)
        if leaving:
            return _SHUTDOWN_BEAT_MS
        waiting_to_serve = self.state is BrokerState.RECOVERY and self._ready
        return _SHUTDOWN_BEAT_MS if waiting_to_serve else self._interval_ms

    # leaving

    def controlled_shutdown(self) -> Deferred[None]:
        """Asks to leave; fires when the controller moved all leaders away, or that was waited
        for long enough. Never fails.
        """
        if self.state in (BrokerState.RUNNING, BrokerState.RECOVERY):
            self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
            self._leaving.begin()
            self.beat_now()
        elif self.state is not BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            self._leave()
        return self._leaving.done

    def hurry(self) -> None:
        """Whoever is leaving waits no longer."""
        self._leaving.hurry()

    def _leave(self) -> None:
        self.state = BrokerState.SHUTTING_DOWN
        self._leaving.end()

    def stop(self) -> None:
        """Beats no more."""
        self._leave()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._running is not None:
            self._running.cancel()
        self._channel.close()
