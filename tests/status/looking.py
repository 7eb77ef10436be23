"""Looking at a broker in memory: its status port, and an HTTP client that says one thing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import ClientFactory, Protocol

from tests.memory_broker import MemoryBroker
from twisted_broker.interfaces import IClock
from twisted_broker.status.http_server import StatusPort


class Asking(Protocol):
    """Sends a request, and keeps what comes until the other side closes."""

    def __init__(self, request: bytes, answered: Deferred[bytes]) -> None:
        self.request, self.answered, self.data = request, answered, b""

    def connectionMade(self) -> None:
        self.transport.write(self.request)

    def dataReceived(self, data: bytes) -> None:
        self.data += data

    def connectionLost(self, reason: Any = None) -> None:
        self.answered.callback(self.data)


class Looking:
    """`get(path)` is (status, headers, body)."""

    def __init__(self, broker: MemoryBroker, port: int = 8080, clock: IClock | None = None) -> None:
        """`clock`: the status port's, where it is not the broker's."""
        self.broker = broker
        node, runtime = broker.broker, broker.runtime
        if clock is not None:
            runtime = replace(runtime, clock=clock)
        self.port = StatusPort(runtime, lambda: node.parts, node.bound_routes, port, node.health)
        broker.run(self.port.open())

    def ask(
        self, path: str, method: str = "GET", more: str = "", host: str | None = None
    ) -> Deferred[bytes]:
        """What the other side said until it closed."""
        assert self.port.address is not None
        answered: Deferred[bytes] = Deferred()
        factory: Any = ClientFactory()
        factory.noisy = False
        host = self.port.address if host is None else host
        request = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()
        factory.buildProtocol = lambda _: Asking(request, answered)
        address, port = self.port.address.split(":")
        self.broker.network.connect(address, int(port), factory, 10)
        return answered

    def get(
        self, path: str, method: str = "GET", more: str = "", host: str | None = None
    ) -> tuple[int, dict[str, str], str]:
        asked = self.ask(path, method, f"Connection: close\r\n{more}", host)
        head, _, body = self.broker.run(asked).partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
        }
        if headers.get("transfer-encoding") == "chunked":
            body = dechunked(body)
        return int(first.split()[1]), headers, body.decode()

    def json(self, path: str) -> Any:
        status, headers, body = self.get(path)
        assert (status, headers["content-type"]) == (200, "application/json"), body
        return json.loads(body)

    def numbers(self) -> dict[str, float]:
        """Each sample of /metrics, by its name with labels."""
        status, headers, body = self.get("/metrics")
        assert status == 200 and headers["content-type"].startswith("text/plain")
        return {
            name: float(value)
            for name, _, value in (
                line.rpartition(" ") for line in body.splitlines() if not line.startswith("#")
            )
        }


def dechunked(body: bytes) -> bytes:
    out = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        out, body = out + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return out
