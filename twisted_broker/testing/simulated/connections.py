"""Connections of a simulated program: asyncio's transport over one in memory.

Owns `connect` and `LoopTransport`. What goes over a connection is traced, as a client's of a live
cluster is.

Source: `asyncio.Transport`. Not here: delays and losses (`simulation/transport.py`).
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.error import ConnectionDone
from twisted.internet.error import TimeoutError as TwistedTimeout
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure

from twisted_broker.simulation.network import HostNetwork
from twisted_broker.testing.trace import Peer

if TYPE_CHECKING:
    from twisted_broker.testing.simulated.loop import SimulatedLoop

_PATIENCE_SECONDS = 127.0  # Linux: six SYNs


async def connect(
    loop: SimulatedLoop,
    host_network: HostNetwork,
    host: str,
    port: int,
    make_protocol: Callable[[], Any],
) -> tuple[LoopTransport, Any]:
    """The transport and its protocol. Raises OSError."""
    if host not in loop.network.names:
        raise socket.gaierror(socket.EAI_NONAME, f"{host} is no machine of the simulation")
    factory = Factory.forProtocol(lambda: _Bridge(loop, make_protocol))
    factory.noisy = False
    made = loop.create_future()
    connecting = host_network.connect(host, port, factory, _PATIENCE_SECONDS)

    def failed(reason: Failure) -> None:
        if not made.done():
            number = errno.ETIMEDOUT if reason.check(TwistedTimeout) else errno.ECONNREFUSED
            made.set_exception(OSError(number, f"{os.strerror(number)}: {host}:{port}"))

    def connected(bridge: _Bridge) -> None:
        if not made.done():
            made.set_result(bridge)

    connecting.addCallbacks(connected, failed)
    try:
        bridge = await made
    except asyncio.CancelledError:
        connecting.cancel()
        raise
    return bridge.outer, bridge.outer.get_protocol()


class _Bridge(Protocol):
    """The protocol of the connection in memory."""

    outer: LoopTransport

    def __init__(self, loop: SimulatedLoop, make_protocol: Callable[[], Any]) -> None:
        self._loop, self._make_protocol = loop, make_protocol

    def connectionMade(self) -> None:
        transport: Any = self.transport
        here, there = transport.getHost(), transport.getPeer()
        self._trace = self._loop.network.trace
        self.number = self._trace.opened(
            Peer(there.host, (here.host, here.port), (there.host, there.port))
        )
        protocol = self._make_protocol()
        self.outer = LoopTransport(self, transport, protocol)
        transport.registerProducer(self, True)
        self._loop.call_soon(protocol.connection_made, self.outer)

    def pauseProducing(self) -> None:
        self._loop.call_soon(self.outer.get_protocol().pause_writing)

    def resumeProducing(self) -> None:
        self._loop.call_soon(self.outer.get_protocol().resume_writing)

    def stopProducing(self) -> None:
        """Nothing of its own is under way."""

    def sent(self, data: bytes) -> None:
        """To the broker."""
        self._trace.fed(self._loop.time(), self.number, True, data)

    def dataReceived(self, data: bytes) -> None:
        self._trace.fed(self._loop.time(), self.number, False, data)
        self._loop.call_soon(self._arrived, data)

    def _arrived(self, data: bytes) -> None:
        if not self.outer.is_closing():
            self.outer.get_protocol().data_received(data)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        self._trace.closed(self.number)
        self._loop.call_soon(self._ended, reason.check(ConnectionDone) is not None)

    def _ended(self, in_order: bool) -> None:
        protocol = self.outer.get_protocol()
        was_closing = self.outer.is_closing()
        self.outer.closed()
        if in_order and not was_closing:
            protocol.eof_received()
        error = None if in_order or was_closing else ConnectionResetError(errno.ECONNRESET, "reset")
        protocol.connection_lost(error)


class LoopTransport(asyncio.Transport):
    """What a program writes to."""

    def __init__(self, bridge: _Bridge, transport: Any, protocol: Any) -> None:
        here, there = transport.getHost(), transport.getPeer()
        super().__init__({"peername": (there.host, there.port), "sockname": (here.host, here.port)})
        self._bridge, self._transport, self._protocol = bridge, transport, protocol
        self._is_closing = False

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def write(self, data: Any) -> None:
        if not self._is_closing:
            content = bytes(data)
            self._bridge.sent(content)
            self._transport.write(content)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return int(self._transport.in_window)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return 0, 65536

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The window of the connection decides."""

    def can_write_eof(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return bool(self._transport.reading)

    def pause_reading(self) -> None:
        self._transport.pauseProducing()

    def resume_reading(self) -> None:
        self._transport.resumeProducing()

    def is_closing(self) -> bool:
        return self._is_closing

    def closed(self) -> None:
        """By the other side."""
        self._is_closing = True

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._transport.loseConnection()

    def abort(self) -> None:
        self._is_closing = True
        self._transport.abortConnection()
