"""TLS between a transport and a protocol, on either side of a connection.

Owns one connection's handshake, and its bytes on their way through OpenSSL.

1. Nothing reaches the protocol, and nothing leaves, before the handshake is over and the other
   side was accepted. A server's protocol is connected at once, so that it counts as a connection; a
   client's when it can send.
2. Memory is bounded as without TLS: one read's worth of bytes on the way in, and on the way out
   what one `write` brought; the transport's pauses reach the protocol's producer.
3. Reads are handed on as they come, several records at a time, into the frame's own buffer where
   there is one. A write is encrypted 256 KiB at a time, each in one call of OpenSSL.
4. A handshake ends in time or the connection does. Why it failed is said once, to `Peer.failed`.

Ring 2. Source: `twisted.protocols.tls.TLSMemoryBIOProtocol`, which makes a call of the transport of
each record and a copy of each slice, and whose errors are OpenSSL's. Not here: keys and trust
(`net/tls_context.py`), what a peer must be (`net/tls.py`).
"""

from __future__ import annotations

from typing import Any, Protocol

from OpenSSL import SSL
from twisted.internet.error import ConnectionLost
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from twisted_broker.interfaces import IClock, IDelayedCall
from twisted_broker.net.tls_context import error_words

HANDSHAKE_SECONDS = 30.0
# A record holds this much at most; OpenSSL gives and takes one at a time.
_RECORD_BYTES = 16384
_OVERHEAD = 64
# Encrypted, and given to the transport, at once.
_PIECE_BYTES = 262144
_READ_BYTES = 65536
_TLS_HANDSHAKE = 0x16
_NO_MORE = SSL.WantReadError()


class Peer(Protocol):
    """Decides whether the other side is accepted, and hears how the handshake ended."""

    def established(self, tls: TlsProtocol) -> str | None:
        """The handshake is over; why the other side is refused, if it is."""
        ...

    def ready(self, tls: TlsProtocol) -> None:
        """The protocol is connected, and can send."""
        ...

    def failed(self, tls: TlsProtocol, words: str) -> None:
        """There will be no connection; `words` are one line. Called once at most."""
        ...


class _WriteSide:
    """What the transport pauses and resumes: the protocol's producer."""

    __slots__ = ("_producer",)

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def pauseProducing(self) -> None:
        self._producer.pauseProducing()

    def resumeProducing(self) -> None:
        self._producer.resumeProducing()

    def stopProducing(self) -> None:
        self._producer.stopProducing()


class TlsProtocol(TwistedProtocol):
    """To the transport a protocol, to `inner` a transport. `seconds`: for the handshake."""

    turn_bytes = 4 << 20
    """Of slices in one turn (`SendQueue`): about the 10 ms that encryption may take."""
    is_wrapper = True
    """What comes from the transport is never a frame's own bytes (`receive_space`)."""

    def __init__(
        self,
        inner: Any,
        connection: SSL.Connection,
        peer: Peer,
        clock: IClock,
        is_server: bool,
        seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self.inner = inner
        self.connection = connection
        self.noted: list[str] = []
        """why OpenSSL refused a certificate"""
        connection.set_app_data(self.noted)
        self._peer, self._clock, self._is_server = peer, clock, is_server
        self._seconds = seconds
        self._timer: IDelayedCall | None = None
        self._space = getattr(inner, "receive_space", None)
        self._unsent: list[bytes] = []
        self._inner_connected = self._established = self._closed = self._failed = False
        self._has_received = self._paused = self._more = False
        self._is_drained = self._is_one_record = False
        self._unread: int | None = 0
        self._reason: Failure | None = None

    # towards the transport

    def connectionMade(self) -> None:
        self._timer = self._clock.callLater(self._seconds, self._too_slow)
        if self._is_server:
            self._connect_inner()
        else:
            self._shake_hands()

    def _connect_inner(self) -> None:
        self._inner_connected = True
        self.inner.makeConnection(self)

    def receive_space(self) -> None:
        """The transport reads into a buffer of its own: what comes is not the frame's."""

    def dataReceived(self, data: bytes) -> None:
        if self._closed:
            return
        if not self._has_received:
            self._has_received = True
            if data[0] not in (_TLS_HANDSHAKE, 0x15):
                self._fail(
                    "it does not speak TLS: set its security.protocol to SSL or SASL_SSL"
                    if self._is_server
                    else "it does not speak TLS: is that a PLAINTEXT listener?"
                )
                return
        self._find_end(data)
        self.connection.bio_write(data)
        if not self._established and not self._shake_hands():
            return
        self._deliver()

    def _find_end(self, data: bytes) -> None:
        """Whether `data` is one record and all that OpenSSL has: a second read would find nothing.

        `_unread`: what is missing of the last record; None once a header came in parts.
        """
        at, size = self._unread, len(data)
        is_drained, self._is_drained, self._is_one_record = self._is_drained, False, False
        if at is None:
            return
        if not at and size > 4 and size == 5 + (data[3] << 8) + data[4]:
            self._is_one_record = is_drained
            return
        while at + 4 < size:
            at += 5 + (data[at + 3] << 8) + data[at + 4]
        self._unread = at - size if at >= size else None

    def _shake_hands(self) -> bool:
        """Whether the connection is established."""
        try:
            self.connection.do_handshake()
        except SSL.WantReadError:
            self._flush(_READ_BYTES)
            return False
        except SSL.Error as error:
            self._flush(_READ_BYTES)
            self._fail(self._words(error))
            return False
        self._flush(_READ_BYTES)
        self._established = True
        self._stop_timer()
        refusal = self._peer.established(self)
        if refusal is not None:
            self._fail(refusal)
        elif not self._closed:
            if not self._inner_connected:
                self._connect_inner()
            self._peer.ready(self)
        if self._closed:
            return False
        unsent, self._unsent = self._unsent, []
        for each in unsent:
            self.write(each)
        return not self._closed

    def _words(self, error: SSL.Error) -> str:
        if self.noted:
            return f"its certificate is refused: {self.noted[0]}"
        words = error_words(error)
        if "did not return a certificate" in words:
            return "it has no certificate, and ssl.client.auth=required wants one"
        if "alert" in words:
            return f"it refused us: {words}"
        return words

    def _deliver(self) -> None:
        """Hands on what has been decrypted, until there is no more or the protocol has enough."""
        while not self._closed and not self._paused:
            view = None if self._space is None else self._space()
            error = self._receive() if view is None else self._receive_into(view)
            if error is not None:
                self._more = False
                if isinstance(error, SSL.WantReadError):
                    self._is_drained = True
                else:
                    self._ended(error)
                return
        self._more = not self._closed

    def _receive(self) -> SSL.Error | None:
        """What stopped it; None when there may be more."""
        recv = self.connection.recv
        pieces: list[bytes] = []
        size = 0
        stopped: SSL.Error | None = None
        while size < _READ_BYTES:
            try:
                piece = recv(_RECORD_BYTES)
            except SSL.Error as error:
                stopped = error
                break
            pieces.append(piece)
            size += len(piece)
            if self._is_one_record:
                stopped = _NO_MORE
                break
        if pieces:
            self.inner.dataReceived(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        return stopped

    def _receive_into(self, view: memoryview) -> SSL.Error | None:
        """As above, into the frame that is under way."""
        size = len(view)
        filled = 0
        stopped: SSL.Error | None = None
        while filled < size:
            part = view[filled : filled + _RECORD_BYTES]
            try:
                filled += self.connection.recv_into(part)
            except SSL.Error as error:
                stopped = error
                break
            finally:
                part.release()
        view.release()  # the buffer cannot grow while a view of it is alive
        if filled:
            self.inner.received(filled)
        return stopped

    def _ended(self, error: SSL.Error) -> None:
        """The other side ended TLS, or broke it."""
        if self._closed:
            return
        if isinstance(error, SSL.ZeroReturnError):
            self.loseConnection()
            return
        # TLS 1.3: a server refuses a client's certificate after the client's handshake is over.
        self._fail(self._words(error))

    def _fail(self, words: str) -> None:
        self._report(words)
        if self._reason is None:
            self._reason = Failure(ConnectionLost(words))
        self._closed = True
        self._flush(_READ_BYTES)  # the alert
        self._transport().loseConnection()

    def _report(self, words: str) -> None:
        if not self._failed:
            self._failed = True
            self._peer.failed(self, words)

    def _too_slow(self) -> None:
        self._timer = None
        self._report(f"the handshake was not over within {self._seconds:g} s")
        self.loseConnection()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def peer_hung_up(self) -> None:
        """Of the server's transport."""
        callback = getattr(self.inner, "peer_hung_up", None)
        if callback is not None:
            callback()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._closed = True
        self._stop_timer()
        if not self._established and (self._has_received or not self._is_server):
            question = (
                "does it trust this broker's certificate?"
                if self._is_server
                else "does it speak TLS? Its log says why"
            )
            self._report(f"it closed the connection during the handshake: {question}")
        inner, self.inner, self._space = self.inner, None, None
        self._unsent = []
        if self._inner_connected:
            inner.connectionLost(self._reason or reason)

    # towards the protocol

    def write(self, data: bytes) -> None:
        self._encrypt(data)

    def write_more(self, data: bytes) -> None:
        """As `write`, when more follows at once."""
        self._encrypt(data, flush=False)

    def writeSequence(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def _encrypt(self, data: bytes, flush: bool = True) -> None:
        if self._closed:
            return
        if not self._established or self._unsent:
            self._unsent.append(bytes(data))
            return
        size = len(data)
        if size <= _PIECE_BYTES:
            if size:  # OpenSSL takes a write of nothing for an error
                self._send(data, size, flush)
            elif flush:
                self._flush(_READ_BYTES)
            return
        with memoryview(data) as view:
            for start in range(0, size, _PIECE_BYTES):
                end = min(start + _PIECE_BYTES, size)
                # What OpenSSL holds stays small, and in the processor's cache.
                self._send(view[start:end], end - start, flush or end < size)

    def _send(self, data: bytes | memoryview, size: int, flush: bool) -> None:
        if self._closed:
            return  # a piece before this one ended it
        try:
            # All of it (`_PARTIAL_WRITES`): the records go into memory.
            self.connection.send(data)
        except SSL.Error as error:
            self._ended(error)
            return
        if flush:
            self._flush(size + _OVERHEAD * (size // _RECORD_BYTES + 2))

    def _flush(self, size: int) -> None:
        """Sends what OpenSSL has made; about `size` bytes of it."""
        bio_read, transport = self.connection.bio_read, self._transport()
        try:
            while True:
                data = bio_read(size)
                transport.write(data)
                if len(data) < size:
                    return
        except SSL.Error:
            return  # there is no more

    def _transport(self) -> Any:
        return self.transport

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self._transport().registerProducer(_WriteSide(producer), streaming)

    def unregisterProducer(self) -> None:
        self._transport().unregisterProducer()

    def pauseProducing(self) -> None:
        self._paused = True
        self._transport().pauseProducing()

    def resumeProducing(self) -> None:
        self._paused = False
        self._transport().resumeProducing()
        if self._more:
            # In a turn of its own: the protocol may be in the middle of something.
            self._more = False
            self._clock.callLater(0, self._deliver_more)

    def _deliver_more(self) -> None:
        if not self._closed:
            self._deliver()

    def loseConnection(self) -> None:
        if not self._closed:
            self._end()
            self._transport().loseConnection()

    def abortConnection(self) -> None:
        if not self._closed:
            self._end()
        self._transport().abortConnection()

    def end_now(self) -> None:
        """Of a connection that was told to end, on a server."""
        self._transport().end_now()

    def _end(self) -> None:
        self._closed = True
        if self._established:
            try:
                self.connection.shutdown()
            except SSL.Error:
                return
            self._flush(_OVERHEAD * 16)

    def getPeer(self) -> Any:
        return self._transport().getPeer()

    def getHost(self) -> Any:
        return self._transport().getHost()

    def setTcpNoDelay(self, enabled: bool) -> None:
        set_no_delay = getattr(self.transport, "setTcpNoDelay", None)
        if set_no_delay is not None:
            set_no_delay(enabled)
