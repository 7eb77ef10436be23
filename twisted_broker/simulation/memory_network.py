"""The network in memory where nothing goes wrong: listening, connecting and bytes that travel on a
clock.

Owns the ports that are listened on and the pipes between transports. The production protocols run
on it unchanged.

1. Bytes arrive in the order in which they were written, `latency_seconds` after, never in the same
   call.
2. A transport whose far side does not read keeps at most `window_bytes` before it pauses its
   producer.
3. A side that closes gets `ConnectionDone`, its peer too, after the bytes that were on the way;
   an abort drops them.

The twin of `net/network.py` for tests of one broker. Not here: delays of its own, loss,
partitions (`simulation/network.py`).
"""

from __future__ import annotations

from errno import EADDRINUSE
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import (
    CannotListenError,
    ConnectionAborted,
    ConnectionDone,
    ConnectionRefusedError,
)
from twisted.python.failure import Failure

from twisted_broker.interfaces import IClock, IFile
from twisted_broker.net.network import copy_slice

_FIRST_FREE_PORT = 20_000


class MemoryTransport:
    """One side of a connection."""

    def __init__(self, network: MemoryNetwork, here: IPv4Address, there: IPv4Address) -> None:
        self.network = network
        self.protocol: Any = None
        self.peer: MemoryTransport = None  # type: ignore[assignment]
        self.producer: Any = None
        self.connected = True
        self.disconnecting = False
        self.reading = True
        self.producer_paused = False
        self.in_window = 0
        self.waiting: list[bytes] = []
        self._here, self._there = here, there

    def getHost(self) -> IPv4Address:
        return self._here

    def getPeer(self) -> IPv4Address:
        return self._there

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Nothing waits here."""

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Nothing is lost here."""

    def write(self, data: bytes) -> None:
        if not self.connected or self.disconnecting or not data:
            return
        self.in_window += len(data)
        self.network.later(self.peer.arrive, bytes(data))
        if (
            self.in_window > self.network.window_bytes
            and self.producer is not None
            and not self.producer_paused
        ):
            self.producer_paused = True
            self.producer.pauseProducing()

    def writeSequence(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        assert streaming
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None

    def pauseProducing(self) -> None:
        self.reading = False

    def resumeProducing(self) -> None:
        self.reading = True
        while self.reading and self.waiting and self.connected:
            self._deliver(self.waiting.pop(0))

    def stopProducing(self) -> None:
        self.loseConnection()

    def arrive(self, data: bytes) -> None:
        if not self.connected:
            return
        if self.waiting or not self.reading:
            self.waiting.append(data)
        else:
            self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        self.peer.read_by_peer(len(data))
        self.protocol.dataReceived(data)

    def read_by_peer(self, count: int) -> None:
        self.in_window -= count
        if self.producer_paused and not self.in_window and self.producer is not None:
            self.producer_paused = False
            self.network.later(self._resume)

    def _resume(self) -> None:
        if self.producer is not None and self.connected:
            self.producer.resumeProducing()

    def loseConnection(self) -> None:
        if self.connected and not self.disconnecting:
            self.disconnecting = True
            self.network.later(self.lost, ConnectionDone())
            self.network.later(self.peer.lost, ConnectionDone())

    def abortConnection(self) -> None:
        if self.connected:
            self.disconnecting = True
            self.network.later(self.lost, ConnectionAborted())
            self.network.later(self.peer.lost, ConnectionDone())

    def lost(self, reason: Exception) -> None:
        if self.connected:
            self.connected = False
            self.producer = None
            protocol, self.protocol = self.protocol, None  # as Twisted's: no cycle is left
            protocol.connectionLost(Failure(reason))


class MemoryPort:
    """A port that is listened on; while it does not read, who connects waits in its backlog."""

    def __init__(self, network: MemoryNetwork, address: IPv4Address, factory: Any) -> None:
        self.network, self.address, self.factory = network, address, factory
        self.reading = True
        self.backlog: list[tuple[Any, Deferred[Any]]] = []

    def stopReading(self) -> None:
        self.reading = False

    def startReading(self) -> None:
        self.reading = True
        backlog, self.backlog = self.backlog, []
        for factory, answer in backlog:
            self.network.later(
                self.network._connect, self.address.host, self.address.port, factory, answer
            )

    def getHost(self) -> IPv4Address:
        return self.address

    def stopListening(self) -> Deferred[None]:
        self.network.ports.pop((self.address.host, self.address.port), None)
        return succeed(None)


class MemoryNetwork:
    """Implements `INetwork` for all that share it."""

    def __init__(
        self, clock: IClock, latency_seconds: float = 0.0, window_bytes: int = 65536
    ) -> None:
        self.clock = clock
        self.latency_seconds = latency_seconds
        self.window_bytes = window_bytes
        self.ports: dict[tuple[str, int], MemoryPort] = {}
        self._next_port = _FIRST_FREE_PORT

    def listen(self, host: str, port: int, factory: Any) -> Deferred[Any]:
        number = port or self._free_port()
        if (host, number) in self.ports:
            return fail(CannotListenError(host, number, OSError(EADDRINUSE, "in use")))
        self.ports[host, number] = MemoryPort(self, IPv4Address("TCP", host, number), factory)
        return succeed(self.ports[host, number])

    def connect(self, host: str, port: int, factory: Any, timeout: float) -> Deferred[Any]:
        answer: Deferred[Any] = Deferred()
        self.later(self._connect, host, port, factory, answer)
        return answer

    def _connect(self, host: str, port: int, factory: Any, answer: Deferred[Any]) -> None:
        listening = self.ports.get((host, port))
        if listening is not None and not listening.reading:
            listening.backlog.append((factory, answer))
            return
        here, there = (
            IPv4Address("TCP", "127.0.0.1", self._free_port()),
            IPv4Address("TCP", host, port),
        )
        accepted = None if listening is None else listening.factory.buildProtocol(here)
        if accepted is None:
            answer.errback(Failure(ConnectionRefusedError()))
            return
        near, far = MemoryTransport(self, here, there), MemoryTransport(self, there, here)
        near.peer, far.peer = far, near
        near.protocol, far.protocol = factory.buildProtocol(there), accepted
        far.protocol.makeConnection(far)
        near.protocol.makeConnection(near)
        answer.callback(near.protocol)

    def send_slice(self, transport: Any, file: IFile, position: int, length: int) -> int:
        return copy_slice(transport, file, position, length)

    def later(self, call: Any, *arguments: Any) -> None:
        # Also with a latency of 0 in a later call: no protocol is entered from its peer's write.
        self.clock.callLater(self.latency_seconds, call, *arguments)

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port
