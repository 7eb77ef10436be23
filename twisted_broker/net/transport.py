"""Both sides of a TCP connection, with fewer steps and copies than Twisted's.

Owns the socket calls of a server connection (read into the frame's buffer, send at once, send a
stretch of a file) and accepting; of a client's connection, the same but files.

1. With nothing queued, `write` sends in the same call; what the socket did not take is queued as
   Twisted does.
2. A failed send closes nothing: the reactor reports the loss, and the protocol is called once.
3. Bytes leave in the order of the calls: `send_file_range` sends nothing while anything is queued,
   and `write_parts` goes before what is written later.
4. Whoever is refused or closed sees the end of the stream, after all that was written. What it has
   sent is read meanwhile and dropped: with unread bytes the system would send a reset, which takes
   even the answers that are on their way. `Lingering` bounds that: so many connections, each for so
   long and for so many bytes; the oldest is closed for one more. A client's connection that is
   aborted waits for nothing, as Kafka's: what has come is dropped, and the stream ends.
5. Without a free descriptor, a port accepts nothing for a second: new connections wait in the
   backlog, and the reactor does not spin.

Source: `twisted.internet.tcp`, `Server` and `Client`; measured (docs/ARCHITECTURE.md 7). Not
here: TLS.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from twisted.internet import tcp
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.logger import Logger
from twisted.python.failure import Failure

# As Twisted reads: longer frames are read straight into their buffer (`receive_space`).
_READ_BYTES = 65536
_MSG_MORE = getattr(socket, "MSG_MORE", 0)
_DONE = ConnectionDone()
_ENDED = Failure(_DONE)
_LOST = ConnectionLost()
# The system takes 1,024; what is beyond goes with the next call.
_MOST_PIECES = 64
# A flood of connections must not starve those that are open; it goes on in the next turn.
_MAX_ACCEPTS, _ACCEPT_PAUSE_SECONDS = 50, 1.0

_LINGERING, _LINGER_SECONDS, _LINGER_BYTES = 32, 2.0, 1 << 20

_logger = Logger(namespace="replog.net")


class Lingering:
    """Connections of a process that were told to end, until they have."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._ends: dict[ServerTransport, Any] = {}

    def add(self, transport: ServerTransport) -> None:
        if len(self._ends) >= _LINGERING:
            next(iter(self._ends)).end_now()
        self._ends[transport] = self._reactor.callLater(_LINGER_SECONDS, transport.end_now)

    def remove(self, transport: ServerTransport) -> None:
        end = self._ends.pop(transport, None)
        if end is not None and end.active():
            end.cancel()

    def end_all(self) -> None:
        """Waits for none of them any longer."""
        for transport in [*self._ends]:
            transport.end_now()


class _Ending:
    """Stands before a protocol whose connection was told to end, and drops what comes for it; alone
    before none, for who is refused.
    """

    def __init__(self, transport: ServerTransport, protocol: Any) -> None:
        self._transport, self._protocol = transport, protocol
        self._dropped = 0

    def logPrefix(self) -> str:
        return "replog"

    def receive_space(self) -> None:
        """What comes goes nowhere."""

    def dataReceived(self, data: bytes) -> None:
        self._dropped += len(data)
        if self._dropped > _LINGER_BYTES:
            self._transport.end_now()

    def peer_hung_up(self) -> None:
        """It is about to end."""

    def connectionLost(self, reason: Any) -> None:
        if self._protocol is not None:
            self._protocol.connectionLost(reason)


class ServerTransport(tcp.Server):
    """Serves protocols that have `receive_space()` and `received(count)` besides `dataReceived`."""

    def doRead(self) -> Any:
        protocol: Any = self.protocol
        view = protocol.receive_space()
        try:
            if view is None:
                data = self.socket.recv(_READ_BYTES)
                if not data:
                    return _DONE
            else:
                count = self.socket.recv_into(view)
                view.release()  # the buffer cannot grow while a view of it is alive
                if not count:
                    return _DONE
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return _LOST
        if view is None:
            protocol.dataReceived(data)
        else:
            protocol.received(count)
        return None

    def hung_up(self) -> Any:
        """The peer sends no more, while nothing is read from it; a reason when the connection
        ends with that.
        """
        callback = getattr(self.protocol, "peer_hung_up", None)
        if callback is None:
            return _DONE
        callback()
        return None

    def loseConnection(self, *_: Any) -> None:
        """Sends what is queued, then ends the stream; waits for the peer's end, within bounds."""
        if not self.connected or self.disconnecting:
            return
        self.disconnecting = True
        transport: Any = self  # Twisted deletes the attribute: it stays one of Twisted's class
        transport.protocol = _Ending(self, self.protocol)
        self.producer, self.producerPaused = None, False
        transport.stopReading()
        transport.server.lingering.add(self)
        if self.dataBuffer or self._tempDataBuffer:
            transport.startWriting()
        else:
            self._postLoseConnection()

    def _postLoseConnection(self) -> None:
        transport: Any = self
        transport.stopWriting()
        self._writeDisconnected = True
        # A peer that is gone already is found by the next read.
        with suppress(OSError):
            transport.socket.shutdown(socket.SHUT_WR)
        transport.startReading()

    def end_now(self) -> None:
        """Of a connection that was told to end: waits for nothing any longer."""
        if not self.connected:
            return
        if not self._writeDisconnected:
            transport: Any = self
            transport.abortConnection()
            return
        with suppress(OSError):  # what is unread would become a reset
            self.socket.recv(_LINGER_BYTES)
        self.connectionLost(_ENDED)

    def connectionLost(self, reason: Any) -> None:
        if self.disconnecting:
            server: Any = self.server
            server.lingering.remove(self)
        tcp.Server.connectionLost(self, reason)

    def doWrite(self) -> Any:
        """With nothing queued the producer goes on at once: interest in writing stays while a
        file is on its way.
        """
        if (
            self.dataBuffer
            or self._tempDataBuffer
            or self.producer is None
            or not self.producerPaused
        ):
            return tcp.Server.doWrite(self)
        # Twisted would stop writing first and start again when the producer writes: two changes of
        # the epoll entry for each stretch of a file.
        self.producerPaused = False
        self.producer.resumeProducing()  # type: ignore[attr-defined]
        if self.producerPaused or self.dataBuffer or self._tempDataBuffer:
            return None
        reactor: Any = self.reactor
        reactor.removeWriter(self)
        return None

    def write(self, data: bytes) -> None:
        self._send(data, 0)

    def write_more(self, data: bytes) -> None:
        """As `write`, when more follows at once: the kernel may wait for it."""
        self._send(data, _MSG_MORE)

    def _send(self, data: bytes, flags: int) -> None:
        if not self.connected or self._writeDisconnected or not data:
            return
        if self._tempDataBuffer or self.dataBuffer:
            tcp.Server.write(self, data)
            return
        try:
            sent = self.socket.send(data, flags)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            # Closing here would call the protocol from inside its own write: the next read of the
            # socket reports the loss.
            return
        if sent < len(data):
            tcp.Server.write(self, data[sent:] if sent else data)

    def send_file_range(self, descriptor: int, position: int, length: int) -> int:
        """Sends from an open file; 0 when the socket is full: the producer is resumed when it is
        not. Raises EOFError, OSError (the file's).
        """
        if not self.connected:
            return 0
        if self._tempDataBuffer or self.dataBuffer:
            # sendfile would overtake the queued bytes.
            self.call_when_writable()
            return 0
        sent = 0
        try:
            sent = os.sendfile(self.socket.fileno(), descriptor, position, length)
        except (BlockingIOError, InterruptedError):
            self.call_when_writable()
            return 0
        except (BrokenPipeError, ConnectionError):
            # Not an error of the file: the reactor finds the socket dead when it is to be written.
            self.call_when_writable()
            return 0
        except OSError as error:
            if error.errno != errno.ENOTCONN:  # a lost connection, as macOS reports it
                raise
            self.call_when_writable()
            return 0
        if not sent:
            raise EOFError(f"the file ends before {position + length}")
        if sent < length:
            self.call_when_writable()
        return sent

    def call_when_writable(self) -> None:
        """The registered producer is paused, and resumed when the socket takes bytes again."""
        self.producerPaused = True
        if self.producer is not None:
            self.producer.pauseProducing()  # type: ignore[attr-defined]
        reactor: Any = self.reactor
        reactor.addWriter(self)


class ClientTransport(tcp.Client):
    """A connection to another broker. `receiver`: the protocol, where it has `receive_space()` and
    `received(count)`; what comes goes to it without the protocols that stand before it.
    """

    receiver: Any = None
    _is_over = False
    # Of `write`: Twisted's own 128 KiB are many turns for a batch of a megabyte over TLS.
    SEND_LIMIT = 1 << 20

    def __init__(self, *arguments: Any) -> None:
        self._unsent: deque[Any] = deque()
        """of `write_parts`; goes before what Twisted has queued"""
        tcp.Client.__init__(self, *arguments)

    def doRead(self) -> Any:
        view = None if self.receiver is None else self.receiver.receive_space()
        if view is None:
            return tcp.Client.doRead(self)
        try:
            count = self.socket.recv_into(view)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return _LOST
        finally:
            view.release()  # the buffer cannot grow while a view of it is alive
        if not count:
            return _DONE
        self.receiver.received(count)
        return None

    def write_parts(self, parts: Sequence[Any]) -> None:
        """Bytes, or views that do not change until they are sent: none is copied."""
        if not self.connected or self._writeDisconnected:
            return
        if self._tempDataBuffer or self.dataBuffer:
            tcp.Client.write(self, b"".join(parts))
            return
        is_first = not self._unsent
        self._unsent.extend(parts)
        if is_first:
            # A failure is the reactor's to find: closing here would call the protocol from inside
            # its own write.
            self._send_unsent()
            if self._unsent:
                reactor: Any = self.reactor
                reactor.addWriter(self)

    def _send_unsent(self) -> Any:
        """Until the socket is full; a reason when the connection ends with it."""
        unsent = self._unsent
        while unsent:
            try:
                sent = self.socket.sendmsg(islice(unsent, _MOST_PIECES))
            except (BlockingIOError, InterruptedError):
                return None
            except OSError:
                return _LOST
            while unsent and sent >= len(unsent[0]):
                sent -= len(unsent.popleft())
            if sent:
                unsent[0] = memoryview(unsent[0])[sent:]
        return None

    def doWrite(self) -> Any:
        if self._unsent:
            lost = self._send_unsent()
            if lost is not None or self._unsent:
                return lost
        return tcp.Client.doWrite(self)

    def abortConnection(self) -> None:
        """Ends the stream, after what the socket takes at once."""
        if not self.connected:
            tcp.Client.abortConnection(self)
        elif not self._is_over:
            self._is_over = True
            transport: Any = self
            self.producer = None
            self.doWrite()
            transport.stopReading()
            transport.stopWriting()
            self._writeDisconnected = True
            transport.reactor.callLater(0, self._end)

    def _end(self) -> None:
        """In a turn of its own: whoever aborts may be called by `doRead`."""
        if self.connected:
            with suppress(OSError):  # what is unread would become a reset
                self.socket.recv(_LINGER_BYTES)
            self.connectionLost(_ENDED)

    def connectionLost(self, reason: Any) -> None:
        self._unsent.clear()
        tcp.Client.connectionLost(self, reason)


class ClientConnector(tcp.Connector):
    """Makes `ClientTransport`s."""

    def _makeTransport(self) -> ClientTransport:
        return ClientTransport(self.host, self.port, self.bindAddress, self, self.reactor)


class ListeningPort(tcp.Port):
    """A listening port whose connections are `ServerTransport`s, all in one group where the system
    has epoll. A factory's `accept_pause()` says after each connection for how many seconds no other
    is accepted.
    """

    transport = ServerTransport

    def __init__(
        self,
        port: int,
        factory: Any,
        backlog: int,
        interface: str,
        reactor: Any,
        group: Any,
        buffers: tuple[int, int],
        lingering: Lingering,
    ) -> None:
        tcp.Port.__init__(self, port, factory, backlog, interface, reactor)
        self.lingering = lingering
        self._accept_pause: Any = None
        self._pause_wanted = getattr(factory, "accept_pause", None)
        self._buffers = ((socket.SO_SNDBUF, buffers[0]), (socket.SO_RCVBUF, buffers[1]))
        if group is not None:
            self.transport = self._grouped  # type: ignore[assignment]
        self._group = group

    def adopt(self, listening: socket.socket) -> None:
        """Serves a socket that listens already, instead of one of its own; before it starts.

        Closing the port leaves it open for whoever else has it.
        """
        self._preexistingSocket = listening
        self._set_options(listening)

    def doRead(self) -> Any:
        """Accepts what has come, at most so many in a turn."""
        for _ in range(_MAX_ACCEPTS):
            try:
                accepted, address = self.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                # Nothing waits, or the client is gone already (ECONNABORTED).
                return
            except OSError as error:
                if error.errno == errno.EPERM:  # a firewall's refusal
                    continue
                # EMFILE and its like: the connection stays in the backlog, so the port would be
                # readable again at once and the reactor would spin.
                _logger.warn(
                    "port {port}: accepting no connections for one second: {error}; if files are "
                    "short, raise the limit of open files (ulimit -n, LimitNOFILE)",
                    port=self._realPortNumber,
                    error=error,
                )
                self._pause_accepting()
                return
            self._open_connection(accepted, address)
            pause = 0.0 if self._pause_wanted is None else self._pause_wanted()
            if pause > 0:
                self._pause_accepting(pause)
                return

    def _pause_accepting(self, seconds: float = _ACCEPT_PAUSE_SECONDS) -> None:
        port: Any = self
        port.stopReading()
        self._accept_pause = port.reactor.callLater(seconds, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._accept_pause = None
        port: Any = self
        port.startReading()

    def _open_connection(self, accepted: Any, address: Any) -> None:
        port: Any = self
        try:
            protocol = port.factory.buildProtocol(port._buildAddr(address))
            port.sessionno += 1
            transport = port.transport(
                accepted, protocol, address, port, port.sessionno - 1, port.reactor
            )
            # The factory has no room: closing at once costs the client one failed connection, not a
            # wait.
            if protocol is None:
                transport.loseConnection()
            else:
                protocol.makeConnection(transport)
        except Exception:
            _logger.failure("opening an accepted connection failed")
            accepted.close()

    def connectionLost(self, reason: Any) -> None:
        if self._accept_pause is not None:
            self._accept_pause.cancel()
            self._accept_pause = None
        tcp.Port.connectionLost(self, reason)

    def _grouped(
        self, accepted: Any, protocol: Any, address: Any, port: Any, number: int, reactor: Any
    ) -> ServerTransport:
        return ServerTransport(accepted, protocol, address, port, number, self._group)

    def createInternetSocket(self) -> Any:
        made = tcp.Port.createInternetSocket(self)
        self._set_options(made)
        return made

    def _set_options(self, made: Any) -> None:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, size in self._buffers:
            if size > 0:
                made.setsockopt(socket.SOL_SOCKET, option, size)
