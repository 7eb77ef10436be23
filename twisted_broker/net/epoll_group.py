"""Many connections behind one entry of the reactor.

Owns an epoll descriptor that the reactor watches as one reader. An event of a connection then costs
no turn of the reactor (and no logging context), and one turn serves several rounds of events.

1. A connection's events go to the connection's own `doRead` and `doWrite`, in the order in which
   epoll gives them.
2. A turn ends with the poll (of `_MOST_EVENTS` events at most) after which `_TURN_SECONDS` are
   over: timers and other readers never starve, nor do connections.
3. After the last event it polls for `_SPIN_SECONDS` more before the reactor may sleep: when the
   next request of a waiting client comes within that time, nobody has to be woken. A broker without
   events does not spin: the reactor calls this only for an event.
4. An exception from a connection is logged and closes that connection.
5. When the peer of a connection that is not read from hangs up, `hung_up` is called once; a
   connection that is broken is lost at once.

Source: measured (docs/ARCHITECTURE.md 7). Not here: systems without epoll, where Twisted's reactor
serves.
"""

from __future__ import annotations

import select
from time import perf_counter
from typing import Any

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_broker.reactor_watch import ReactorWatch

# About the time in which a waiting client answers on loopback; waking a sleeping process takes
# longer.
_SPIN_SECONDS = 0.00003
# Well below the 10 ms that anything may hold the reactor for.
_TURN_SECONDS = 0.002
_MOST_EVENTS = 16
"""Events of one poll: 16 handshakes of TLS take about 15 ms. The system reports connections that it
has just reported after the others, so when a turn ends after some of a thousand, the next one goes
on with the rest.
"""
_HANG_UP = getattr(select, "EPOLLRDHUP", 0x2000)
HANG_UP_REPORTED = 1 << 40
"""Only in our own masks, never in epoll's: the hang-up was reported. So no mask is ever 0."""
_DONE = Failure(ConnectionDone())
_LOST = Failure(ConnectionLost())


_logger = Logger(namespace="replog.net")


@implementer(IReadDescriptor)
class EpollGroup:
    """What its transports take for the reactor: `addReader` and the like are its own, `callLater`
    and all else the real one's.
    """

    def __init__(self, reactor: Any, watch: ReactorWatch | None = None) -> None:
        self._reactor = reactor
        self._watch = watch or ReactorWatch(0)
        self._epoll = select.epoll()
        self._masks: dict[int, int] = {}
        self._transports: dict[int, Any] = {}

    def start(self) -> None:
        self._reactor.addReader(self)

    def has_transports(self) -> bool:
        return bool(self._transports)

    def stop(self) -> None:
        """Call when no transport is left."""
        self._reactor.removeReader(self)
        self._epoll.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def logPrefix(self) -> str:
        return "-"

    def connectionLost(self, reason: Failure) -> None:
        """The reactor stops."""
        for transport in list(self._transports.values()):
            self._drop(transport, reason)

    def addReader(self, transport: Any) -> None:
        self._change(transport, select.EPOLLIN, 0)

    def addWriter(self, transport: Any) -> None:
        self._change(transport, select.EPOLLOUT, 0)

    def removeReader(self, transport: Any) -> None:
        self._change(transport, 0, select.EPOLLIN)

    def removeWriter(self, transport: Any) -> None:
        self._change(transport, 0, select.EPOLLOUT)

    def _change(self, transport: Any, add: int, remove: int) -> None:
        descriptor = transport.fileno()
        if descriptor < 0:
            return  # closed already: the kernel has dropped it from the epoll set
        before = self._masks.get(descriptor, 0)
        mask = (before | add) & ~remove
        if not before:
            if not add:
                return
            self._transports[descriptor] = transport
            # Watched while it is not read from, too: else a client that went away while its
            # request waits would be noticed only when its answer is sent.
            mask |= _HANG_UP
            self._epoll.register(descriptor, mask)
        elif not transport.connected and not mask & (select.EPOLLIN | select.EPOLLOUT):
            # Unregistered only when the connection ends: reading is stopped and started again
            # often, and modifying an entry costs less than a new one.
            self._epoll.unregister(descriptor)
            del self._masks[descriptor], self._transports[descriptor]
            return
        elif mask == before:
            return
        else:
            self._epoll.modify(descriptor, mask & ~HANG_UP_REPORTED)
        self._masks[descriptor] = mask

    def doRead(self) -> None:
        poll, serve, notable = self._epoll.poll, self._serve, self._watch.notable
        started = last = perf_counter()
        while True:
            events = poll(0, _MOST_EVENTS)
            now = perf_counter()
            if events:
                for descriptor, event in events:
                    serve(descriptor, event)
                    last = perf_counter()
                    if last - now >= notable:
                        self._watch.piece(last - now)
                    now = last
                if now - started > _TURN_SECONDS:
                    return
            elif now - last > _SPIN_SECONDS:
                return

    def _serve(self, descriptor: int, event: int) -> None:
        transport = self._transports.get(descriptor)
        if transport is None:
            return  # dropped by an earlier event of the same round
        try:
            why = None
            if event & select.EPOLLIN:
                # Reading first, also when the peer has hung up: its last requests may lie in the
                # socket.
                why = transport.doRead()
            elif event & (select.EPOLLHUP | select.EPOLLERR):
                why = _LOST.value
            elif event & _HANG_UP:
                # Level-triggered: the event would come again in each round.
                self._change(transport, HANG_UP_REPORTED, _HANG_UP)
                why = transport.hung_up()
            # Reading may have stopped the interest in writing, or ended the connection.
            if (
                why is None
                and event & select.EPOLLOUT
                and self._masks.get(descriptor, 0) & select.EPOLLOUT
            ):
                why = transport.doWrite()
        except Exception:
            _logger.failure("serving a connection failed; it is closed")
            why = _LOST.value
        if why is not None:
            self._drop(transport, _DONE if isinstance(why, ConnectionDone) else _LOST)

    def _drop(self, transport: Any, reason: Failure) -> None:
        # Twisted deletes `socket` when a connection is lost: it must not be lost twice.
        if hasattr(transport, "socket"):
            transport.connectionLost(reason)
