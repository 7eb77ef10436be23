"""The network of a test's cluster: links in memory between its machines, TCP for its clients.

Owns `LiveNetwork` (links and their faults), `MachineNetwork` (the network port of one machine) and
`TcpConnection`, which stands between a client's socket and what serves it.

1. A host whose name is a machine's is reached in memory; any other is the real network.
2. The way of a link is cut, delayed or narrowed; each direction is another one. What is sent on a
   way that is cut is held, and arrives when it is healed.
3. `CLIENTS` is the other end of all links to the outside: TCP connections of all clients.
4. A client's bytes and the end of its connection reach a machine only by its own clock: never one
   that is frozen or gone.

Source: our own. Not here: connections in memory (`simulation/network.py`), which machine is struck
(`machine.py`).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from twisted_broker.interfaces import IFile
from twisted_broker.net.network import ReactorNetwork, copy_slice
from twisted_broker.simulation.clock import NodeClock
from twisted_broker.simulation.network import HostNetwork, NetworkConditions, SimNetwork
from twisted_broker.simulation.transport import Pipe, SimTransport
from twisted_broker.testing.live_clock import LiveClock
from twisted_broker.testing.trace import Peer, Trace

CLIENTS = "client"
_AT_ONCE = struct.pack("ii", 1, 0)
Way = tuple[str, str]
"""(from, to): names of machines, or `CLIENTS`"""


class _LivePipe(Pipe):
    """As fast as its way is."""

    __slots__ = ("free_at",)
    network: LiveNetwork

    def __init__(self, network: LiveNetwork, way: Way, goal: NodeClock) -> None:
        super().__init__(network, way, goal, 0.0)
        self.free_at = 0.0

    def send(self, call: Callable[..., None], argument: Any) -> None:
        if self.is_cut:
            return
        self.travelling.append((call, argument))
        delay = self.network.delay(self.network.delays.get(self.way, 0.0))
        jitter = self.network.jitters.get(self.way)
        if jitter is not None:
            delay += self.network.random.random() * jitter
        rate = self.network.rates.get(self.way)
        if rate is not None:
            now = self.network.sim.now
            size = len(argument) if isinstance(argument, bytes) else 0
            self.free_at = max(self.free_at, now) + size / rate
            delay += self.free_at - now
        self.goal.callLater(delay, self.arrive)

    @property
    def is_direct(self) -> bool:
        """What is sent now may be handed over at once."""
        network, way = self.network, self.way
        return not (
            self.travelling
            or self.goal.paused
            or self.goal.dead
            or way in network.blocked
            or way in network.delays
            or way in network.rates
        )


class LiveNetwork(SimNetwork):
    """Of all machines of a cluster. By way: `delays`: seconds, `jitters`: seconds more, drawn for
    each piece, `rates`: bytes a second; `dead_after_cut`: what it held back is lost when it is
    healed.
    """

    sim: LiveClock

    def __init__(
        self, sim: LiveClock, random: Random, conditions: NetworkConditions | None = None
    ) -> None:
        at_once = NetworkConditions(0.0, 0.0, dead_after_heal=0.0)
        super().__init__(sim, random, at_once if conditions is None else conditions)
        self.names: set[str] = set()
        """of all machines, whether they run or not"""
        self.delays: dict[Way, float] = {}
        self.rates: dict[Way, float] = {}
        self.jitters: dict[Way, float] = {}
        self.dead_after_cut: set[Way] = set()
        self.outside = NodeClock(sim, CLIENTS)
        self.tcp: dict[TcpConnection, None] = {}
        self.ended_clients = False
        """some connection of a client was not ended by the client"""
        self.trace = Trace()

    def make_pipe(self, way: Way, goal: NodeClock, extra: float) -> Pipe:
        return _LivePipe(self, way, goal)

    def heal_ways(self, ways: Iterable[Way]) -> None:
        """As if nothing had been done to them; what they held arrives, or the connections that it
        was sent over are found dead.
        """
        for way in ways:
            if way in self.dead_after_cut:
                self._end_held(way)
            self.dead_after_cut.discard(way)
            self.blocked.discard(way)
            for each in (self.delays, self.jitters, self.rates):
                each.pop(way, None)
            for pipe in self._pipes(way):
                pipe.resume()

    def _end_held(self, way: Way) -> None:
        for near in [*self.connections]:
            if any(side.pipe.way == way and side.pipe.stalled for side in (near, near.peer)):
                self.break_connection(near)
        for each in [*self.tcp]:
            if any(pipe.way == way and pipe.stalled for pipe in (each.pipe, each.inward)):
                each.inward.clear()
                each.reset()

    def drop(self, one: str, other: str) -> None:
        """Resets the connections between them, at both ends."""
        ends = {one, other}
        for near in list(self.connections):
            if {near.clock.name, near.peer.clock.name} == ends:
                self.break_connection(near)
        for connection in [*self.tcp]:
            if {CLIENTS, connection.clock.name} == ends:
                connection.reset()

    def descriptors(self) -> list[int]:
        """Of the connections of clients."""
        return [each.transport.fileno() for each in self.tcp]  # type: ignore[union-attr]

    def reset_clients(self) -> None:
        """All of them, now, also where nothing more is run by the reactor."""
        for each in [*self.tcp]:
            transport: Any = each.transport
            transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            each.reset()

    def _pipes(self, way: Way) -> list[Pipe]:
        sides: list[SimTransport | TcpConnection] = [*self.tcp]
        for near in self.connections:
            sides += [near, near.peer]
        pipes = [side.pipe for side in sides]
        pipes += [each.inward for each in self.tcp]
        return [pipe for pipe in pipes if pipe.way == way]


class MachineNetwork:
    """The network port of one machine, while it runs: implements `INetwork`."""

    def __init__(self, network: LiveNetwork, clock: NodeClock, real: ReactorNetwork) -> None:
        self._network, self._clock, self._real = network, clock, real
        self._in_memory: HostNetwork = network.switch_on(clock)
        self.ports: list[tuple[Any, Any]] = []
        """those for clients, with their addresses"""

    def listen(self, host: str, port: int, factory: Any) -> Deferred[Any]:
        if host in self._network.names:
            return self._in_memory.listen(host, port, factory)
        listening = self._real.listen(
            host, port, _TcpFactory(self._network, self._clock, factory, CLIENTS)
        )
        return listening.addCallback(self._listens)

    def _listens(self, port: Any) -> Any:
        self.ports.append((port, port.getHost()))
        return port

    def connect(self, host: str, port: int, factory: Any, timeout: float) -> Deferred[Any]:
        if host in self._network.names:
            return self._in_memory.connect(host, port, factory, timeout)
        return self._real.connect(host, port, factory, timeout)

    def send_slice(self, transport: Any, file: IFile, position: int, length: int) -> int:
        return copy_slice(transport, file, position, length)


class _TcpFactory(Factory):
    """Puts a `TcpConnection` before each protocol of `factory`."""

    noisy = False

    def __init__(self, network: LiveNetwork, clock: NodeClock, factory: Any, peer: str) -> None:
        self._network, self._clock, self._factory, self._peer = network, clock, factory, peer

    def buildProtocol(self, address: Any) -> Protocol | None:
        # A machine without power says nothing, not even that.
        if self._clock.dead and self._clock.name not in self._network.without_power:
            return None
        return TcpConnection(self._network, self._clock, self._factory, self._peer, address)


class TcpConnection(Protocol):
    """A client's connection to a machine. It is the protocol of the socket, and the transport of
    what serves it.
    """

    def __init__(
        self, network: LiveNetwork, clock: NodeClock, factory: Any, peer: str, address: Any
    ) -> None:
        self.clock = clock
        self._network, self._factory, self._address = network, factory, address
        self._served: Any = None
        self._trace = network.trace
        self.pipe = _LivePipe(network, (clock.name, peer), network.outside)
        self.inward = _LivePipe(network, (peer, clock.name), clock)

    def receive_space(self) -> None:
        """All comes by `dataReceived`."""

    def connectionMade(self) -> None:
        self._network.tcp[self] = None
        transport: Any = self.transport
        client, served = transport.getPeer(), transport.getHost()
        self._number = self._trace.opened(
            Peer(self.clock.name, (client.host, client.port), (served.host, served.port))
        )
        self._hear(self._begin, None)

    def _begin(self, _: None) -> None:
        served = self._factory.buildProtocol(self._address)
        if served is None:
            self.reset()
            return
        self._served = served
        served.makeConnection(self)

    def dataReceived(self, data: bytes) -> None:
        self._trace.fed(self._network.sim.refresh(), self._number, True, data)
        self._hear(self._arrived, data)

    def _arrived(self, data: bytes) -> None:
        if self._served is not None:
            self._served.dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._network.tcp.pop(self, None)
        self._trace.closed(self._number)
        self.pipe.cut()
        self._hear(self._ended, reason)

    def _ended(self, reason: Failure) -> None:
        served, self._served = self._served, None
        if served is not None:
            served.connectionLost(reason)

    def peer_hung_up(self) -> None:
        self._hear(self._hung_up, None)

    def _hung_up(self, _: None) -> None:
        callback = getattr(self._served, "peer_hung_up", self.reset)
        callback()

    def _hear(self, call: Callable[[Any], None], argument: Any) -> None:
        self._network.sim.refresh()
        if self.inward.is_direct:
            call(argument)
        else:
            self.inward.send(call, argument)
        self._network.sim.ran(self.clock)

    def reset(self) -> None:
        """Now, whatever is on its way."""
        self._network.ended_clients = True
        self.pipe.cut()
        self.transport.abortConnection()  # type: ignore[union-attr]

    # the transport of what serves it

    def write(self, data: bytes) -> None:
        if not self.clock.dead:
            self._deliver(self._write, bytes(data))

    write_more = write

    def writeSequence(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))

    def _write(self, data: bytes) -> None:
        self._trace.fed(self._network.sim.now, self._number, False, data)
        self.transport.write(data)  # type: ignore[union-attr]

    def loseConnection(self, *_: Any) -> None:
        if not self.clock.dead:
            self._deliver(self._lose, None)

    def _lose(self, _: None) -> None:
        self._network.ended_clients = True
        self.transport.loseConnection()  # type: ignore[union-attr]

    def abortConnection(self) -> None:
        if not self.clock.dead:
            self.reset()

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self.transport.registerProducer(_Producer(self, producer), streaming)  # type: ignore[union-attr]

    def resume(self, producer: Any) -> None:
        self._hear(lambda _: producer.resumeProducing(), None)

    def _deliver(self, call: Callable[[Any], None], argument: Any) -> None:
        if self.pipe.is_direct:
            call(argument)
        else:
            self.pipe.send(call, argument)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


class _Producer:
    """What serves a client goes on when the socket has room, unless its machine is frozen."""

    def __init__(self, connection: TcpConnection, producer: Any) -> None:
        self._connection, self._producer = connection, producer

    def pauseProducing(self) -> None:
        self._producer.pauseProducing()

    def resumeProducing(self) -> None:
        self._connection.resume(self._producer)

    def stopProducing(self) -> None:
        self._producer.stopProducing()
