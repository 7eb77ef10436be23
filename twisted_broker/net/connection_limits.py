"""The limits of one listener's connections: how many, how long idle, how many from one address.

Owns the open connections of a listener.

1. At most `max.connections` in all and `max.connections.per.ip` from one address, or what
   `max.connections.per.ip.overrides` says of that address: the next one is closed at once. They are
   also limited to the descriptors that the logs leave free (`DescriptorShares`). One line a minute
   names the limit that was reached, and how many it cost.
2. A connection without traffic, a request in progress or a wait for its quota for
   `connections.max.idle.ms` is closed, at most a tenth of that late; so is one whose peer hung up
   and that has waited so long. Traffic is a whole request, `LEAST_RATE` of one that is under
   way, or what a client reads of an answer that it does not take at once: bytes that drip keep no
   connection. One timer serves all connections of the listener. A check that runs late closes
   nothing: this process was stopped, and has not read yet what was sent to it meanwhile.
3. A controller's listener has a share of its own, and so has the listener that other brokers use
   where clients have another one; `max.connections` does not keep them out of it, and no flood
   does. Where there is no place left, a new connection to either takes that of another:
   a. first of the oldest one, on any listener, that never logged in or, where nobody has to, never
      sent a request;
   b. then, where clients have a listener of their own, of the one there that is silent the longest;
   c. at the limit of its own listener: as (a), on that listener only.
   Where brokers and clients share a listener, (a) only: before it has spoken nobody knows which
   is which.
4. A listener may have `max.connections` of its own (`listener.name.NAME.max.connections`).
5. Above a rate of new connections the listener accepts none for a while (`accept_pause`). Above the
   rate of its address a connection is held without being served, and closed after its wait; at most
   `_MOST_HELD` are held, one more is closed at once.

Source: Kafka's `SocketServer`, `ConnectionQuotas`, `Selector.IdleExpiryManager`. Not here: the
rates (`security/quota/connection_rates.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.config_validation import connections_by_address
from twisted_broker.event_lines import EventLines
from twisted_broker.interfaces import IDelayedCall, Runtime
from twisted_broker.net.connection import Dispatch, KafkaConnection
from twisted_broker.net.request_bytes import RequestBytes
from twisted_broker.security.quota.connection_rates import ConnectionRates
from twisted_broker.security.security_protocol import SecurityProtocol
from twisted_broker.settings import INT_MAX, ConfigError
from twisted_broker.stall_tolerance import SILENCE_STALL_SECONDS

if TYPE_CHECKING:
    from twisted_broker.net.sasl_gate import SaslListener

# A connection is idle after this many checks without traffic: a counter costs less than a time
# stamp on each read.
_ROUNDS = 10
LEAST_RATE = 1024
"""Bytes a second of a request that is under way; less is no traffic. On a line that slow, the
client's own time limit has ended the request before.
"""
_LINE_SECONDS = 60
# Lines a minute of one address for one reason why its connections are closed.
_MOST_LINES = 3
_MOST_HELD = 256
_MAXIMUM, _PER_HOST = "max.connections is reached", "max.connections.per.ip is reached"
_OF_LISTENER = "max.connections of the listener is reached"
_IP_RATE = "the quota connection_creation_rate of its address is used up"
_DESCRIPTORS = "no more descriptors are free for connections; raise ulimit -n (LimitNOFILE)"
_logger = Logger()
_OTHERS, _OF_A_DIRECTORY, _MOST_OF_CONTROLLER, _MOST_OF_BROKERS = 64, 12, 4096, 1024
"""Descriptors beyond logs and clients: for connections to other brokers, listeners, the reactor and
the reserve; for the workers of each directory; the most for connections to a controller, and for
those of other brokers to a listener that clients do not use.
"""


class DescriptorShares:
    """How the descriptors that one broker may use are shared out.

    The limit for clients follows from what is open now: segments that answers still refer to are
    open beyond what logs may hold.
    """

    __slots__ = ("_others", "brokers", "controller", "files", "limit")

    def __init__(self, limit: int, directories: int = 1) -> None:
        self.limit = limit
        self._others = min(_OTHERS + _OF_A_DIRECTORY * directories, limit // 4)
        self.controller = min(max(limit // 8, 1), _MOST_OF_CONTROLLER)
        self.brokers = min(max(limit // 16, 1), _MOST_OF_BROKERS)
        self.files = max(limit // 3, 1)

    def clients(self, open_files: int) -> int:
        """What is left for clients while logs hold, or may hold, `open_files`; `brokers` of them
        are for other brokers where these have a listener of their own.
        """
        return max(self.limit - self._others - self.controller - open_files, 1)


def _unlimited() -> int:
    return INT_MAX


class ConnectionCounts:
    """Open connections by address, over all listeners of a broker.

    `descriptor_limit()`: what descriptors allow now, `of_brokers` of them for `inter_broker`, the
    listener of other brokers, if it is not the only one. `listeners`: those that may have a limit
    of their own. `held`: connections that wait for being closed, which are in no other count.
    """

    __slots__ = (
        "_number",
        "_open",
        "_refused",
        "_silent_until",
        "_unused",
        "by_host",
        "by_listener",
        "descriptor_limit",
        "held",
        "inter_broker",
        "listeners",
        "maximum",
        "maximum_of_listeners",
        "maximum_per_host",
        "of_brokers",
        "overrides",
        "rates",
        "total",
    )

    def __init__(
        self,
        maximum: int,
        maximum_per_host: int,
        descriptor_limit: Callable[[], int] = _unlimited,
        listeners: Sequence[str] = (),
        rates: ConnectionRates | None = None,
        inter_broker: str = "",
        of_brokers: int = 0,
    ) -> None:
        self._open: dict[KafkaConnection, None] = {}
        self._unused: dict[str, dict[KafkaConnection, int]] = {}
        """of each listener those of which no use is known, the oldest first, and their numbers"""
        self._number = 0
        self._refused: Counter[str] = Counter()
        self._silent_until: dict[str, float] = {}
        self.maximum = maximum
        self.maximum_per_host = maximum_per_host
        self.overrides: dict[str, int] = {}
        self.descriptor_limit = descriptor_limit
        self.total = self.held = 0
        self.by_host: Counter[str] = Counter()
        self.by_listener: Counter[str] = Counter()
        self.maximum_of_listeners: dict[str, int] = {}
        self.rates = rates or ConnectionRates()
        self.inter_broker, self.of_brokers = inter_broker, of_brokers
        self.serve(listeners)

    def serve(self, listeners: Sequence[str]) -> None:
        """Those that may have a limit of their own, from the next `settings_changed` on."""
        self.listeners = listeners
        self.rates.protect(self.protected)

    @property
    def protected(self) -> str:
        """The listener of other brokers, where clients have another one."""
        return self.inter_broker if len(self.listeners) > 1 else ""

    def settings_changed(self, config: BrokerConfig) -> None:
        """Holds for the connections that come from now on, as in Kafka."""
        self.maximum = config.integer("max.connections")
        self.maximum_per_host = config.integer("max.connections.per.ip")
        own = [(name, config.listener_config(name)) for name in self.listeners]
        self.maximum_of_listeners = {
            name: of_listener.integer("max.connections") for name, of_listener in own
        }
        self.rates.set_limits(
            config.integer("max.connection.creation.rate"),
            {
                name: of_listener.integer("max.connection.creation.rate")
                for name, of_listener in own
                if of_listener.overrides("max.connection.creation.rate")
            },
        )
        try:
            self.overrides = connections_by_address(config)
        except ConfigError as error:  # the start checked the file's: an operator changed it
            _logger.warn("{error}; the limits of before stay", error=error)

    def limit_reached(self, host: str, listener: str = "") -> str | None:
        """What keeps one more connection from `host` out, for a log line; None for nothing."""
        if self.by_listener[listener] >= self.maximum_of_listeners.get(listener, INT_MAX):
            return _OF_LISTENER
        if self.by_host.get(host, 0) >= self.overrides.get(host, self.maximum_per_host):
            return _PER_HOST
        used, free, protected = self.total + self.held, self.descriptor_limit(), self.protected
        is_protected = listener == protected != ""
        if protected and not is_protected:
            used -= min(self.by_listener[protected], self.of_brokers)
            free -= self.of_brokers
        is_full = used >= max(free, 1)
        if self.total >= self.maximum and not (is_full and is_protected):
            return _MAXIMUM
        return _DESCRIPTORS if is_full else None

    def refuses(self, host: str, listener: str) -> str | None:
        """What keeps one more out, as above. Ends another to let in one that may be a broker."""
        limit = self.limit_reached(host, listener)
        if limit in (None, _PER_HOST) or listener != self.inter_broker:
            return limit
        of = [listener] if limit == _OF_LISTENER else [*self._unused]
        reason = f"a broker may take its place: {limit}"
        has_ended = self._end_unused(of, reason) or (
            limit != _OF_LISTENER and bool(self.protected) and self._end_silent(reason)
        )
        # What other brokers may have is bounded by descriptors alone.
        return None if has_ended or (limit == _MAXIMUM and self.protected) else limit

    def _end_unused(self, listeners: Sequence[str], reason: str) -> bool:
        found = [each for each in map(self._oldest_unused, listeners) if each is not None]
        if found:
            min(found)[1].give_way(reason)
        return bool(found)

    def _oldest_unused(self, listener: str) -> tuple[int, KafkaConnection] | None:
        unused = self._unused.get(listener, {})
        while unused:
            connection, number = next(iter(unused.items()))
            if connection.is_unused and not connection.closing:
                return number, connection
            del unused[connection]
        return None

    def _end_silent(self, reason: str) -> bool:
        silent = max(
            (each for each in self._open if each.listener.name != self.protected),
            key=lambda each: (not each.closing, not each.busy, each.idle_rounds),
            default=None,
        )
        if silent is None or silent.closing:
            return False
        silent.give_way(reason)
        return True

    def opened(self, connection: KafkaConnection) -> None:
        listener = connection.listener.name
        self._number += 1
        self._open[connection] = None
        self._unused.setdefault(listener, {})[connection] = self._number
        self.add(connection.client_host, listener)

    def closed(self, connection: KafkaConnection) -> None:
        listener = connection.listener.name
        self._open.pop(connection, None)
        self._unused[listener].pop(connection, None)
        self.remove(connection.client_host, listener)

    def refused(self, host: str, limit: str, seconds: float) -> None:
        """One was kept out at `seconds`, monotonic: a line for the first, and for all of each
        minute that follows.
        """
        self._refused[limit] += 1
        if seconds < self._silent_until.get(limit, seconds):
            return
        self._silent_until[limit] = seconds + _LINE_SECONDS
        _logger.warn(
            "refused {count} connection(s), the last one from {host}: {limit} ({total} are open, "
            "{from_host} from there)",
            count=self._refused.pop(limit),
            host=host,
            limit=limit,
            total=self.total,
            from_host=self.by_host.get(host, 0),
        )

    def add(self, host: str, listener: str = "") -> None:
        self.total += 1
        self.by_host[host] += 1
        self.by_listener[listener] += 1

    def remove(self, host: str, listener: str = "") -> None:
        self.total -= 1
        self.by_listener[listener] -= 1
        self.by_host[host] -= 1
        if not self.by_host[host]:
            del self.by_host[host]


class HeldConnection(Protocol):
    """A connection that is not served, not read from, and closed after a while."""

    def __init__(self, factory: ConnectionFactory, seconds: float) -> None:
        self._factory, self._seconds = factory, seconds
        self._end: IDelayedCall | None = None

    def logPrefix(self) -> str:
        return "replog"

    def connectionMade(self) -> None:
        transport: Any = self.transport
        transport.pauseProducing()
        self._factory.held[self] = None
        self._factory.counts.held += 1
        self._end = self._factory.runtime.clock.callLater(self._seconds, self.close)

    def peer_hung_up(self) -> None:
        """It is not read from; its place is free at once."""
        self.close()

    def close(self) -> None:
        transport: Any = self.transport
        transport.loseConnection()

    def connectionLost(self, reason: Any = None) -> None:
        if self._end is not None and self._end.active():
            self._end.cancel()
        if self._factory.held.pop(self, self) is None:
            self._factory.counts.held -= 1


class ConnectionFactory(Factory):
    """The factory of one listener. `idle_ms` of 0 or less keeps connections for ever."""

    noisy = False
    protocol: SecurityProtocol  # type: ignore[assignment]  # Factory's is for other factories

    def __init__(
        self,
        runtime: Runtime,
        dispatch: Dispatch,
        counts: ConnectionCounts,
        *,
        frame_limit: int,
        idle_ms: int,
        on_controller: bool = False,
        request_bytes: RequestBytes | None = None,
        name: str = "PLAINTEXT",
        protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
        sasl: SaslListener | None = None,
    ) -> None:
        self.runtime = runtime
        self.sasl = sasl
        self.name, self.protocol = name, protocol
        self.dispatch = dispatch
        self.counts = counts
        self.frame_limit = frame_limit
        self.idle_ms = idle_ms
        self.on_controller = on_controller
        self.request_bytes = request_bytes or RequestBytes(0, runtime.clock)
        self.connections: dict[KafkaConnection, None] = {}
        self.created = self.failed_handshakes = 0  # since the start; the latter of TLS
        self.held: dict[HeldConnection, None] = {}
        self.lines = EventLines(
            _logger, runtime.clock, by=("client", "reason"), most=_MOST_LINES, listener=name
        )
        self._pause_ms = 0
        self._idle_check: IDelayedCall | None = None
        self._check_due = 0.0

    def logPrefix(self) -> str:
        return "replog controller" if self.on_controller else "replog"

    def buildProtocol(self, addr: Any) -> KafkaConnection | HeldConnection | None:
        host = getattr(addr, "host", "memory")
        if self.counts.rates.active:
            self._pause_ms, wait_ms = self.counts.rates.opened(
                self.name, host, self.runtime.now_ms()
            )
            if wait_ms:
                return self._held(host, wait_ms)
        limit = self.counts.refuses(host, self.name)
        if limit is None:
            return KafkaConnection(self, host)
        if self.on_controller and limit == _MAXIMUM:
            limit = _DESCRIPTORS
        self.counts.refused(host, limit, self.runtime.clock.seconds())
        return None

    def accept_pause(self) -> float:
        """For how many seconds the port is to accept no connection after the last one."""
        pause_ms, self._pause_ms = self._pause_ms, 0
        return pause_ms / 1000

    def _held(self, host: str, wait_ms: int) -> HeldConnection | None:
        counts = self.counts
        counts.refused(host, _IP_RATE, self.runtime.clock.seconds())
        if counts.held >= _MOST_HELD or counts.total + counts.held >= counts.descriptor_limit():
            return None
        return HeldConnection(self, wait_ms / 1000)

    def opened(self, connection: KafkaConnection) -> None:
        self.counts.opened(connection)
        self.created += 1
        self.connections[connection] = None
        if self._idle_check is None and self.idle_ms > 0:
            self._schedule_check()

    def closed(self, connection: KafkaConnection) -> None:
        self.counts.closed(connection)
        self.connections.pop(connection, None)

    def close_all(self) -> None:
        """Closes every connection, answered or not; lines that were counted are written."""
        self.lines.stop()
        if self._idle_check is not None and self._idle_check.active():
            self._idle_check.cancel()
        self._idle_check = None
        for connection in [*self.connections]:
            connection.close()
        for held in [*self.held]:
            held.close()

    def _schedule_check(self) -> None:
        round_s = self.idle_ms / _ROUNDS / 1000
        self._check_due = self.runtime.clock.seconds() + round_s
        self._idle_check = self.runtime.clock.callLater(round_s, self._check_idle)

    def _check_idle(self) -> None:
        self._idle_check = None
        if self.runtime.clock.seconds() - self._check_due < min(
            SILENCE_STALL_SECONDS, self.idle_ms / _ROUNDS / 1000
        ):
            self._close_idle()
        if self.connections:
            self._schedule_check()

    def _close_idle(self) -> None:
        round_ms = self.idle_ms / _ROUNDS
        for connection in list(self.connections):
            # Without a whole request since the last check, the bytes that wait are of the same one.
            before, connection.seen_bytes = connection.seen_bytes, connection.frames.pending
            if connection.active or (
                (connection.busy or connection.throttled)
                and not connection.output.full
                and not connection.hung_up
            ):
                connection.active = False
                connection.idle_rounds = 0
                continue
            arrived = connection.seen_bytes - before
            if arrived and (not before or arrived * 1000 >= LEAST_RATE * round_ms):
                connection.idle_rounds = 0
            else:
                connection.idle_rounds += 1
            if connection.idle_rounds >= _ROUNDS:
                if arrived:
                    self.lines.warn(
                        "closing the connection",
                        client=connection.client_host,
                        reason=f"a request comes too slowly: less than {LEAST_RATE} bytes a second",
                    )
                connection.close()
