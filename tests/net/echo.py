"""A listener whose requests are answered by a test: the pieces that connection tests share."""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.protocol import ClientFactory, Protocol
from twisted.internet.task import Clock

from twisted_broker.interfaces import Runtime
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.net.connection import PendingResponse
from twisted_broker.net.connection_limits import ConnectionCounts, ConnectionFactory
from twisted_broker.net.request_bytes import RequestBytes
from twisted_broker.simulation.memory_network import MemoryNetwork

PORT = 9092


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


class DelayedOperation(PendingResponse):
    """A turn that the test finishes."""

    __slots__ = ("abandoned", "can_follow", "connection", "frame")

    def __init__(self, connection: Any, frame: bytes, can_follow: bool) -> None:
        PendingResponse.__init__(self, None, False)
        self.connection, self.frame, self.can_follow, self.abandoned = (
            connection,
            frame,
            can_follow,
            False,
        )

    @property
    def appended(self) -> bool:
        return self.can_follow

    def abandon(self) -> None:
        self.abandoned = True
        PendingResponse.abandon(self)

    def finish(self, answer: Any) -> None:
        self.answer, self.done = answer, True
        self.connection.response_ready()


class Far(Protocol):
    """The client's side: collects what comes."""

    def __init__(self) -> None:
        self.data = b""
        self.lost = False

    def dataReceived(self, data: bytes) -> None:
        self.data += data

    def connectionLost(self, reason: Any = None) -> None:
        self.lost = True


class MemoryListener:
    """A memory network with one listener; `dispatch` decides."""

    def __init__(
        self,
        dispatch: Any,
        *,
        idle_ms: int = 0,
        maximum: int = 1000,
        per_host: int = 1000,
        frame_limit: int = 1 << 20,
        request_bytes: int = 0,
    ) -> None:
        self.clock = Clock()
        self.network = MemoryNetwork(self.clock)
        self.files = MemoryFileSystem()
        runtime = Runtime(
            clock=self.clock,
            wall_ms=lambda: 0,
            network=self.network,
            files=self.files,
            disk=None,
            random=Random(1),
        )
        self.factory = ConnectionFactory(
            runtime,
            dispatch,
            ConnectionCounts(maximum, per_host),
            frame_limit=frame_limit,
            idle_ms=idle_ms,
            request_bytes=RequestBytes(request_bytes, self.clock),
        )
        self.network.listen("127.0.0.1", PORT, self.factory)

    def client(self) -> Far:
        made: list[Any] = []
        self.network.connect("127.0.0.1", PORT, ClientFactory.forProtocol(Far), 1).addBoth(
            made.append
        )
        self.run()
        client: Far = made[0]
        return client

    def run(self) -> None:
        """Everything that is due now."""
        while any(call.getTime() <= self.clock.seconds() for call in self.clock.getDelayedCalls()):
            self.clock.advance(0)
