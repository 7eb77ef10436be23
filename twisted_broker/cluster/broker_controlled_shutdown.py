"""Controlled shutdown, the broker's wait: how long a broker that stops waits until the controller
has moved its leaderships, and what it logs meanwhile.

Owns `ControlledShutdown`, of one broker. The whole way:

    KafkaServer.stop -> KafkaServer.controlled_shutdown               kafka_server.py
      -> BrokerLifecycleManager.controlled_shutdown                   broker_lifecycle_manager.py
           starts the wait (`begin`) and sends heartbeats that want the shutdown
      -> heartbeat: moves the leaders, then confirms                  heartbeat_decision.py
      -> the answer, or the end of the wait (`over`) -> `end`: `done` fires, the broker goes on

1. It waits `replog.controlled.shutdown.timeout.ms` at most, whatever the controller does. Every
   second it logs what it waits for.
2. Without a controller it waits for `controller.quorum.fetch.timeout.ms` only: when each address at
   which one may be found has refused the connection for so long, without a pause. A refused
   connection means that the process is gone, not that the network is down: nobody can elect other
   leaders, and waiting helps only if a controller starts just now. A controller that does not
   answer may be well: it gets the whole time.
3. `skip` ends the wait at once: the broker stops in order, and what it leads then has no leader
   until the controller has fenced it.

Source: Kafka's `BrokerServer.shutdown` waits five minutes for its controller, alive or not, which
has no setting. Supervisors kill sooner than that (docker after 10 s, Kubernetes after 30 s), and a
broker that is killed must recover its logs. Not here: the heartbeats, and the controller's side.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.observer import MetadataObserver
from twisted_broker.interfaces import IDelayedCall, Runtime

_logger = Logger()
_PROGRESS_MS = 1000
_SETTING = "replog.controlled.shutdown.timeout.ms"


class ControlledShutdown:
    """`over` is called once, when the wait has ended without the controller's confirmation.

    `done` fires when the broker may leave, for whatever reason.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        observer: MetadataObserver,
        over: Callable[[], None],
    ) -> None:
        self.done: Deferred[None] = Deferred()
        self._runtime, self._observer, self._over = runtime, observer, over
        self._own_id = config.node_id
        self._timeout_ms = config.integer(_SETTING)
        self._refused_ms = config.integer("controller.quorum.fetch.timeout.ms")
        self._since_ms = 0
        self._timer: IDelayedCall | None = None

    def begin(self) -> None:
        """Starts the timer of the wait; the caller sends the heartbeats."""
        self._since_ms = self._runtime.now_ms()
        _logger.info("controlled shutdown: {led} partition(s) still to hand over", led=self._led())
        self._next()

    @property
    def lasted_ms(self) -> int:
        return self._runtime.now_ms() - self._since_ms

    def controller_is_away(self) -> None:
        """A heartbeat failed: it reached no controller, or was refused. Ends the wait when all
        addresses have refused connections for long enough.
        """
        refused_ms = self._observer.refused_ms
        if self._timer is not None and refused_ms is not None and refused_ms >= self._refused_ms:
            words = (
                "no controller is alive (connections refused for {ms} ms): nobody can "
                "take over the {led} partition(s) led here"
            )
            self._give_up(words, ms=refused_ms, led=self._led())

    def skip(self) -> None:
        """The process got a second stop signal: ends the wait at once."""
        if self._timer is not None:
            self._give_up(
                "second signal: this broker stops without handing over {led} partition(s)",
                led=self._led(),
            )

    def end(self) -> None:
        """The wait is over."""
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()
        if not self.done.called:
            self.done.callback(None)

    def _next(self) -> None:
        left_ms = self._timeout_ms - self.lasted_ms
        self._timer = self._runtime.clock.callLater(
            max(min(left_ms, _PROGRESS_MS), 0) / 1000, self._log_progress
        )

    def _log_progress(self) -> None:
        """Each second, and at the end of the time."""
        left_ms = self._timeout_ms - self.lasted_ms
        if left_ms <= 0:
            words = (
                "the controller did not confirm it within {ms} ms ({setting}): "
                "{led} partition(s) are not handed over"
            )
            self._give_up(words, ms=self._timeout_ms, setting=_SETTING, led=self._led())
            return
        where = (
            "no controller answers"
            if self._observer.unreachable
            else "the controller has not confirmed it yet"
        )
        words = (
            "controlled shutdown: {led} partition(s) still to hand over; {where}, waiting "
            "up to {ms} ms more ({setting})"
        )
        _logger.info(words, led=self._led(), where=where, ms=left_ms, setting=_SETTING)
        self._next()

    def _give_up(self, words: str, **values: object) -> None:
        _logger.warn("controlled shutdown: " + words, **values)
        self._over()

    def _led(self) -> int:
        topics = self._observer.image.topics_by_id.values()
        return sum(
            partition.leader == self._own_id
            for topic in topics
            for partition in topic.partitions.values()
        )
