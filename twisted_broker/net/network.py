"""The network port over the real reactor.

Owns listening, connecting and the sending of file slices; `simulation/network.py` is its twin in
memory.

1. A slice goes by `sendfile` on our own transport, and by read and write on any other, where the
   file has no descriptor, or where system or file system have no `sendfile`.

Ring 2. Source: `interfaces.INetwork`.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable
from typing import Any

from twisted.internet.abstract import isIPv6Address
from twisted.internet.defer import Deferred, execute
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.task import deferLater

from twisted_broker.interfaces import IFile
from twisted_broker.net.epoll_group import EpollGroup
from twisted_broker.net.transport import (
    ClientConnector,
    ClientTransport,
    Lingering,
    ListeningPort,
    ServerTransport,
)
from twisted_broker.reactor_watch import ReactorWatch

# Read and copied in one piece, between two looks at whether the transport is full.
_COPIED_BYTES = 131072
# Bytes that a connection to another broker reads at once, where they do not go into a frame's
# buffer. With Twisted's own 64 KiB a read of bulk data takes a third more of the processor's time.
_COPIED_AT_ONCE = 1 << 18
_HAS_SENDFILE = hasattr(os, "sendfile")
_NO_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
SEND_BUFFER_BYTES = 204_800
"""Measured with `sendfile` on loopback: less wakes too often, above 256 KiB the rate falls into
one of two modes.
"""


class ReactorNetwork:
    """`send_buffer` and `receive_buffer` in bytes, 0 or less leaves them to the system.

    `inherited(host, port)`: a socket that listens there already, or None.
    """

    def __init__(
        self,
        reactor: Any,
        *,
        backlog: int = 50,
        send_buffer: int = SEND_BUFFER_BYTES,
        receive_buffer: int = -1,
        watch: ReactorWatch | None = None,
        inherited: Callable[[str, int], socket.socket | None] = lambda host, port: None,
    ) -> None:
        self._reactor = reactor
        self._inherited = inherited
        self._watch = watch
        self._backlog = backlog
        self._buffers = (send_buffer, receive_buffer)
        self._group: EpollGroup | None = None
        self._lingering = Lingering(reactor)

    def listen(self, host: str, port: int, factory: Any) -> Deferred[Any]:
        """Fires with the listening port; fails with `CannotListenError`."""
        return execute(self._listen, host, port, factory)

    def _listen(self, host: str, port: int, factory: Any) -> ListeningPort:
        if self._group is None and hasattr(select, "epoll"):
            self._group = EpollGroup(self._reactor, self._watch)
            self._group.start()
        inherited = self._inherited(host, port)
        if inherited is not None:
            host = inherited.getsockname()[0]
        listening = ListeningPort(
            port,
            factory,
            self._backlog,
            host,
            self._reactor,
            self._group,
            self._buffers,
            self._lingering,
        )
        if inherited is not None:
            listening.adopt(inherited)
        listening.startListening()
        return listening

    async def close(self) -> None:
        """For a program that goes on without a broker, whose ports and connections were closed:
        ends when the last connection is gone, and leaves nothing with the reactor.
        """
        self._lingering.end_all()
        group, self._group = self._group, None
        if group is not None:
            while group.has_transports():  # an aborted connection goes in the next turn
                await deferLater(self._reactor, 0)
            group.stop()

    def connect(self, host: str, port: int, factory: Any, timeout: float) -> Deferred[Any]:
        """`timeout` in seconds. Fires with the protocol; fails with Twisted's `ConnectError`s."""
        endpoint_class = TCP6ClientEndpoint if isIPv6Address(host) else TCP4ClientEndpoint
        connected: Deferred[Any] = endpoint_class(
            _Connecting(self._reactor), host, port, timeout=timeout
        ).connect(factory)
        return connected.addCallback(_received_directly)

    def send_slice(self, transport: Any, file: IFile, position: int, length: int) -> int:
        """Returns the bytes sent. 0: the socket is full; the transport's producer is resumed when
        it has room.

        Raises EOFError when the file is shorter, OSError.
        """
        descriptor = file.fileno()
        if descriptor >= 0 and _HAS_SENDFILE and isinstance(transport, ServerTransport):
            try:
                return transport.send_file_range(descriptor, position, length)
            except OSError as error:
                if error.errno not in _NO_SENDFILE:
                    raise
        return copy_slice(transport, file, position, length)


class _Connecting:
    """Stands in for the reactor towards Twisted's endpoints, whose connections are ours then."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    def connectTCP(
        self, host: str, port: int, factory: Any, timeout: float = 30, **more: Any
    ) -> ClientConnector:
        made = ClientConnector(host, port, factory, timeout, more.get("bindAddress"), self._reactor)
        made.connect()
        return made


def _received_directly(protocol: Any) -> Any:
    """Batches of a megabyte are usual between brokers and mirrors: they are received into their
    frame's buffer, past the endpoint's own protocol, which stands before this one. Where TLS or
    SASL stands before it, larger pieces are read instead.
    """
    transport = protocol.transport
    if isinstance(transport, ClientTransport):
        if hasattr(protocol, "receive_space") and not getattr(protocol, "is_wrapper", False):
            transport.receiver = protocol
        else:
            transport.bufferSize = _COPIED_AT_ONCE
    return protocol


def copy_slice(transport: Any, file: IFile, position: int, length: int) -> int:
    """Reads a piece and writes it to any transport; the transport pauses its producer when it
    has enough.
    """
    data = file.read_at(position, min(length, _COPIED_BYTES))
    if not data:
        raise EOFError(f"the file ends before {position + length}")
    transport.write(data)
    return len(data)
