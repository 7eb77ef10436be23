"""How connections of the simulated network begin: listening ports, and attempts to reach them.

Owns `Port` and `Connecting`.

1. A machine without power, and a blocked direction, leave an attempt unanswered: it is repeated
   until its timeout. A machine where nothing listens refuses.
2. A port that does not accept leaves attempts in its backlog until it accepts again.

Not here: the bytes afterwards (`simulation/transport.py`).
"""

from __future__ import annotations

from typing import Any, Protocol

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionLost, ConnectionRefusedError, TimeoutError
from twisted.python.failure import Failure

from twisted_broker.simulation.clock import NodeClock
from twisted_broker.simulation.transport import SimTransport

_SYN_AGAIN_SECONDS = 0.25


class _Network(Protocol):
    """What connecting needs of the network (`SimNetwork`)."""

    ports: dict[tuple[str, int], Port]
    machines: dict[str, NodeClock]
    without_power: set[str]
    blocked: set[tuple[str, str]]

    def delay(self, extra: float = 0.0) -> float: ...
    def free_port(self) -> int: ...
    def join(
        self, near_clock: NodeClock, far_clock: NodeClock, here: IPv4Address, there: IPv4Address
    ) -> tuple[SimTransport, SimTransport]: ...
    def reset(self, side: SimTransport) -> None: ...


class Port:
    """A port that is listened on.

    Twisted's `IListeningPort`, with a backlog while it does not read.
    """

    def __init__(
        self, network: _Network, clock: NodeClock, address: IPv4Address, factory: Any
    ) -> None:
        self.network, self.clock, self.address, self.factory = network, clock, address, factory
        self.reading = True

    def getHost(self) -> IPv4Address:
        return self.address

    def stopReading(self) -> None:
        self.reading = False

    def startReading(self) -> None:
        self.reading = True

    def stopListening(self) -> Deferred[None]:
        self.network.ports.pop((self.address.host, self.address.port), None)
        return succeed(None)


class Connecting:
    """One try to connect."""

    def __init__(
        self,
        network: _Network,
        clock: NodeClock,
        host: str,
        port: int,
        factory: Any,
        timeout: float,
    ) -> None:
        self.network, self.clock, self.host, self.port, self.factory = (
            network,
            clock,
            host,
            port,
            factory,
        )
        self.answer: Deferred[Any] = Deferred(self._cancelled)
        self.over = False
        self.timer = clock.callLater(timeout, self._fail, TimeoutError())
        self._syn()

    def _syn(self) -> None:
        """Tries to reach the other machine, again and again."""
        if self.over:
            return
        goal = self.network.machines.get(self.host)
        if goal is None:
            if self.host in self.network.without_power:
                self.clock.callLater(_SYN_AGAIN_SECONDS, self._syn)
            else:
                self.clock.callLater(self.network.delay(), self._fail, ConnectionRefusedError())
        elif (self.clock.name, self.host) in self.network.blocked:
            self.clock.callLater(_SYN_AGAIN_SECONDS, self._syn)
        else:
            goal.callLater(self.network.delay(), self._in_backlog, goal)
            self.clock.callLater(_SYN_AGAIN_SECONDS * 4, self._syn_lost, goal)

    def _syn_lost(self, goal: NodeClock) -> None:
        """The machine went away while the call travelled."""
        if goal.dead:
            self._syn()

    def _in_backlog(self, goal: NodeClock) -> None:
        if self.over or self.clock.dead:
            return
        listening = self.network.ports.get((self.host, self.port))
        if listening is not None and not listening.reading:
            goal.callLater(_SYN_AGAIN_SECONDS, self._in_backlog, goal)
            return
        here = IPv4Address("TCP", self.clock.name, self.network.free_port())
        accepted = None if listening is None else listening.factory.buildProtocol(here)
        if accepted is None:
            self.clock.callLater(self.network.delay(), self._fail, ConnectionRefusedError())
            return
        near, far = self.network.join(
            self.clock, goal, here, IPv4Address("TCP", self.host, self.port)
        )
        far.protocol = accepted
        far.pipe.send(self._established, near)
        accepted.makeConnection(far)

    def _established(self, near: SimTransport) -> None:
        if self.over:
            self.network.reset(near)
            return
        if not near.connected:  # reset before anybody had it
            self._fail(ConnectionLost())
            return
        self._end()
        near.protocol = self.factory.buildProtocol(near.getPeer())
        near.protocol.makeConnection(near)
        self.answer.callback(near.protocol)

    def _fail(self, reason: Exception) -> None:
        if not self.over:
            self._end()
            self.answer.errback(Failure(reason))

    def _cancelled(self, _: Any) -> None:
        if not self.over:
            self._end()

    def _end(self) -> None:
        self.over = True
        if self.timer.active():
            self.timer.cancel()
