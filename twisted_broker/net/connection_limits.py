"""Taking connections at one listener: how many, for how long, and from whom.

Owns the open connections of a listener.

1. At most `max.connections` in all and `max.connections.per.ip` from one address: the next one is
   closed at once. What open files of the logs leave of the process's descriptors bounds them, too
   (`DescriptorShares`).
2. A connection without traffic and without a waiting request for `connections.max.idle.ms` is
   closed, at most a tenth of that late; so is one whose peer hung up and whose request waits that
   long. One timer serves all connections of the listener. A round that comes late counts for
   nobody: this process stood still, and what was sent to it meanwhile is not read yet.
3. Where others wait for room (`request_bytes.py`), a connection that stops in the midst of a long
   request is closed after a tenth of that.
4. A controller's listener has a share of its own. When that is taken, a newcomer takes the place of
   the oldest connection that never asked anything: a flood keeps no broker out.

Source: Kafka's `SocketServer`, `ConnectionQuotas`, `Selector.IdleExpiryManager`. Leaves out: rates
of new connections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from twisted.internet.protocol import Factory

from twisted_broker.config import BrokerConfig
from twisted_broker.interfaces import IDelayedCall, Runtime
from twisted_broker.net.connection import Dispatch, KafkaConnection
from twisted_broker.net.request_bytes import RequestBytes
from twisted_broker.settings import INT_MAX
from twisted_broker.stalls import SILENCE_STALL_SECONDS

_ROUNDS = 10
_OTHERS, _OF_A_DIRECTORY, _MOST_OF_CONTROLLER = 64, 12, 4096
"""Besides logs and accepted connections: connections to other brokers, listeners, the reactor's,
the reserve; workers of a directory.
"""


class DescriptorShares:
    """How the descriptors that one broker may use are shared out.

    The limit for clients follows from what is open now: segments that answers still refer to are
    open beyond what logs may hold.
    """

    __slots__ = ("_others", "controller", "files", "limit")

    def __init__(self, limit: int, directories: int = 1) -> None:
        self.limit = limit
        self._others = min(_OTHERS + _OF_A_DIRECTORY * directories, limit // 4)
        self.controller = min(max(limit // 8, 1), _MOST_OF_CONTROLLER)
        self.files = max(limit // 3, 1)

    def clients(self, open_files: int) -> int:
        """What is left for clients while logs hold, or may hold, `open_files`."""
        return max(self.limit - self._others - self.controller - open_files, 1)


def _no_limit() -> int:
    return INT_MAX


class ConnectionCounts:
    """Open connections by address, over all listeners of a broker.

    `most()`: what descriptors allow now.
    """

    __slots__ = ("by_host", "maximum", "maximum_per_host", "most", "total")

    def __init__(
        self, maximum: int, maximum_per_host: int, most: Callable[[], int] = _no_limit
    ) -> None:
        self.maximum = maximum
        self.maximum_per_host = maximum_per_host
        self.most = most
        self.total = 0
        self.by_host: Counter[str] = Counter()

    def settings_changed(self, config: BrokerConfig) -> None:
        """Holds for the connections that come from now on, as in Kafka."""
        self.maximum = config.integer("max.connections")
        self.maximum_per_host = config.integer("max.connections.per.ip")

    def has_room(self, host: str) -> bool:
        return (
            self.total < self.maximum
            and self.by_host.get(host, 0) < self.maximum_per_host
            and self.total < self.most()
        )

    def add(self, host: str) -> None:
        self.total += 1
        self.by_host[host] += 1

    def remove(self, host: str) -> None:
        self.total -= 1
        self.by_host[host] -= 1
        if not self.by_host[host]:
            del self.by_host[host]


class ConnectionFactory(Factory):
    """The factory of one listener. `idle_ms` of 0 or less keeps connections for ever."""

    noisy = False

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
    ) -> None:
        self.runtime = runtime
        self.dispatch = dispatch
        self.counts = counts
        self.frame_limit = frame_limit
        self.idle_ms = idle_ms
        self.on_controller = on_controller
        self.request_bytes = RequestBytes(0) if request_bytes is None else request_bytes
        self.connections: dict[KafkaConnection, None] = {}
        self._watch: IDelayedCall | None = None
        self._look_at = 0.0

    def logPrefix(self) -> str:
        return "replog controller" if self.on_controller else "replog"

    def buildProtocol(self, addr: Any) -> KafkaConnection | None:
        host = getattr(addr, "host", "memory")
        if self.counts.has_room(host) or (self.on_controller and self._displace()):
            return KafkaConnection(self, host)
        return None

    def _displace(self) -> bool:
        """Ends the oldest connection that never asked anything."""
        for connection in self.connections:
            if not connection.asked and not connection.closing:
                connection.close()
                return True
        return False

    def opened(self, connection: KafkaConnection) -> None:
        self.counts.add(connection.client_host)
        self.connections[connection] = None
        if self._watch is None and self.idle_ms > 0:
            self._watch_later()

    def closed(self, connection: KafkaConnection) -> None:
        self.counts.remove(connection.client_host)
        self.connections.pop(connection, None)

    def close_all(self) -> None:
        """Closes every connection, answered or not."""
        if self._watch is not None and self._watch.active():
            self._watch.cancel()
        self._watch = None
        for connection in list(self.connections):
            connection.close()

    def _watch_later(self) -> None:
        round_s = self.idle_ms / _ROUNDS / 1000
        self._look_at = self.runtime.clock.seconds() + round_s
        self._watch = self.runtime.clock.callLater(round_s, self._look)

    def _look(self) -> None:
        self._watch = None
        if self.runtime.clock.seconds() - self._look_at < min(
            SILENCE_STALL_SECONDS, self.idle_ms / _ROUNDS / 1000
        ):
            self._close_silent()
        if self.connections:
            self._watch_later()

    def _close_silent(self) -> None:
        for connection in list(self.connections):
            if connection.active or (
                connection.busy and not connection.output.full and not connection.hung_up
            ):
                connection.active = False
                connection.silent_rounds = 0
                continue
            connection.silent_rounds += 1
            if connection.coming_bytes and self.request_bytes.waiting:
                connection.close()  # others wait for the memory of a request that does not come
                continue
            if connection.silent_rounds >= _ROUNDS:
                connection.close()
