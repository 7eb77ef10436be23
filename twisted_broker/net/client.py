"""The client side of a connection between brokers (and of tests): one connection, pipelined
requests.

Owns correlation ids, the order of answers, and timeouts. Connects on the first `send` and again on
the first one after a loss; back-off is up to the caller.

1. Answers come in the order of the requests; an answer with another correlation id closes the
   connection.
2. A request without an answer in time closes the connection and fails all requests in flight:
   whether the broker processed them is unknown.
3. Before a request times out, everything that has arrived is read. A reactor runs its timers before
   it reads its sockets: after a stall of this process (SIGSTOP, garbage collection, a slow disk)
   the answer may have arrived already.
4. After `close()` nothing is sent and every waiting Deferred has failed.
5. Before a SASL session ends, the connection authenticates itself again, once no request is in
   flight; new requests wait meanwhile.

Source: Kafka's `NetworkClient` (whose `poll` reads before it looks for expired requests). Not here:
choice of a broker, back-off, authentication
(`net/sasl_connector.py`). The connection timeout is Twisted's own and may end
early after a stall: callers connect again anyway.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import CancelledError, Deferred, fail, maybeDeferred
from twisted.internet.error import (
    ConnectingCancelledError,
    ConnectionClosed,
    ConnectionDone,
    ConnectionLost,
    TimeoutError,
)
from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.python.failure import Failure

from twisted_broker.interfaces import IDelayedCall, Runtime
from twisted_broker.net.connector import PLAIN, Connector
from twisted_broker.net.frames import FrameReader
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError, error_of
from twisted_broker.wire.header import RequestHeader, decode_response_header, encode_request_header
from twisted_broker.wire.schema import decode, encode_parts

if TYPE_CHECKING:
    from twisted_broker.net.sasl_connector import SaslSession

# Bounds what a broken peer may announce, not memory: a frame is allocated as its bytes arrive.
_FRAME_LIMIT = 256 << 20
# Answers of a fetcher are of one size, and there are few such connections.
_REMEMBERED = 8 << 20
# Joining less costs less than a piece of its own.
_COPIED = 16384


class RequestTimedOut(TimeoutError):
    """The other side did not answer within the request timeout."""

    def __init__(self, words: str) -> None:
        Exception.__init__(self, words)

    def __str__(self) -> str:
        return str(self.args[0])


class _InFlightRequest:
    """One request whose answer has not come."""

    __slots__ = ("answer", "correlation_id", "timer")

    def __init__(self, correlation_id: int, answer: Deferred[Any]) -> None:
        self.correlation_id = correlation_id
        self.answer = answer
        self.timer: IDelayedCall | None = None


class _ResponseProtocol(Protocol):
    """Cuts the stream into answers and hands them to the connection's owner. `session`: of SASL,
    where it ends some time.
    """

    session: SaslSession | None = None

    def __init__(self, owner: BrokerConnection) -> None:
        self.owner = owner
        self.frames = FrameReader(_FRAME_LIMIT, remembered=_REMEMBERED)
        self.bytes_received = 0
        self._marks = owner._runtime.marks
        self._answers = f"an answer from {owner.host}:{owner.port} to {owner.client_id}"

    def connectionMade(self) -> None:
        set_no_delay = getattr(self.transport, "setTcpNoDelay", None)
        if set_no_delay is not None:
            set_no_delay(True)

    def dataReceived(self, data: bytes) -> None:
        self.bytes_received += len(data)
        self.frames.feed(data)
        self._take_frames()

    def receive_space(self) -> memoryview | None:
        """Where the transport may put bytes itself; then it calls `received`, else
        `dataReceived`.
        """
        return self.frames.space()

    def received(self, count: int) -> None:
        self.bytes_received += count
        self.frames.filled(count)
        self._take_frames()

    def _take_frames(self) -> None:
        self._marks.what = self._answers
        try:
            while (frame := self.frames.next_frame()) is not None:
                self.owner._frame_received(frame)
                frame = None  # a view of the frame would keep its buffer out of the pool
        except WireError:
            # Nothing behind a malformed frame can be trusted: all requests in flight fail.
            self.owner._connection_lost(self, Failure())
            self.transport.abortConnection()  # type: ignore[union-attr]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.owner._connection_lost(self, reason)


class _ResponseFactory(ClientFactory):
    noisy = False

    def __init__(self, owner: BrokerConnection) -> None:
        self.owner = owner

    def buildProtocol(self, addr: Any) -> _ResponseProtocol:
        return _ResponseProtocol(self.owner)


class BrokerConnection:
    """A connection to the broker at `host`:`port`.

    All times in ms. Deferreds fail with Twisted's connection errors or `TimeoutError`. Counted
    since it was made: `requests` and `answers`, `bytes_out` and `bytes_in`.
    """

    def __init__(
        self,
        runtime: Runtime,
        host: str,
        port: int,
        client_id: str | None,
        *,
        request_timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        connector: Connector = PLAIN,
    ) -> None:
        self.host = host
        self.port = port
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self.connect_timeout_ms = connect_timeout_ms
        self.api_versions: dict[int, tuple[int, int]] = {}
        self.features_epoch = -1
        self.requests = self.answers = self.bytes_in = self.bytes_out = 0
        self._runtime, self._connector = runtime, connector
        self._protocol: _ResponseProtocol | None = None
        self._connecting: Deferred[Any] | None = None
        self._connect_waiters: list[Deferred[None]] = []
        self._in_flight: deque[_InFlightRequest] = deque()
        self._correlation_id = 0
        self._closed = False
        # What waits until the connection has authenticated itself again.
        self._held: list[tuple[_InFlightRequest, Sequence[Any], int]] = []
        self._authenticates_again = False

    @property
    def connected(self) -> bool:
        return self._protocol is not None

    @property
    def in_flight(self) -> int:
        """Requests sent and not answered."""
        return len(self._in_flight)

    def connect(self) -> Deferred[None]:
        """Fires when connected; several callers share one attempt."""
        if self._closed:
            return fail(ConnectionDone("this connection was closed by its owner"))
        waiter: Deferred[None] = Deferred()
        if self._protocol is not None:
            waiter.callback(None)
            return waiter
        self._connect_waiters.append(waiter)
        if self._connecting is None:
            attempt = maybeDeferred(
                self._connector.connect,
                self._runtime.network,
                self.host,
                self.port,
                _ResponseFactory(self),
                self.connect_timeout_ms / 1000,
            )
            self._connecting = attempt
            attempt.addCallbacks(self._on_connected, self._on_connect_failed)
        return waiter

    def send(self, request: Any, version: int, *, timeout_ms: int | None = None) -> Deferred[Any]:
        """Sends a message at `version`; the Deferred gives its answer's message."""
        correlation_id = self.next_correlation_id()
        api_key: int = request.api_key
        header = encode_request_header(
            RequestHeader(api_key, version, correlation_id, self.client_id)
        )
        answer = self._send_parts(
            correlation_id, [header, *encode_parts(request, version)], timeout_ms
        )
        answer.addCallback(_decode_response, type(request), api_key, version)
        return answer

    def next_correlation_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def negotiate(
        self,
        software_name: str = "twisted-broker",
        software_version: str = "0",
        *,
        timeout_ms: int | None = None,
    ) -> Deferred[dict[int, tuple[int, int]]]:
        """Asks which versions the other side serves; the answer stays in `api_versions` until
        the connection is lost, and in `features_epoch` how far it knows its cluster (-1: not yet).
        """
        from twisted_broker.wire.messages.api_versions import ApiVersionsRequest

        request = ApiVersionsRequest(
            client_software_name=software_name, client_software_version=software_version
        )
        return self.send(request, 3, timeout_ms=timeout_ms).addCallback(self._on_api_versions)

    def highest_version(self, api_key: int, ours: int) -> int:
        """The highest version that both sides know, `ours` at most.

        Raises BrokerError(UNSUPPORTED_VERSION).
        """
        low, high = self.api_versions.get(api_key, (0, -1))
        if min(ours, high) < low:
            raise BrokerError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.host}:{self.port} does not serve API {api_key} up to version {ours}",
            )
        return min(ours, high)

    def close(self) -> None:
        """Closes for good."""
        self._closed = True
        self.disconnect()

    def disconnect(self) -> None:
        """Drops the connection; a later `send` makes a new one."""
        protocol, attempt = self._protocol, self._connecting
        # Cancelling fires `_on_connect_failed`, which fails the waiters.
        if attempt is not None:
            attempt.cancel()
        if protocol is not None:
            self._connection_lost(protocol, Failure(ConnectionDone("closed by its owner")))
            protocol.transport.abortConnection()  # type: ignore[union-attr]

    def _send_parts(
        self, correlation_id: int, parts: Sequence[Any], timeout_ms: int | None
    ) -> Deferred[Any]:
        waiting = _InFlightRequest(correlation_id, Deferred())
        timeout = self.request_timeout_ms if timeout_ms is None else timeout_ms
        protocol = self._protocol
        if protocol is not None:
            if protocol.session is None:
                self._write(waiting, parts, timeout)
            else:
                self._send_in_session(protocol.session, waiting, parts, timeout)
        else:
            self.connect().addCallbacks(
                lambda _: self._write(waiting, parts, timeout), waiting.answer.errback
            )
        return waiting.answer

    def _send_in_session(
        self, session: SaslSession, waiting: _InFlightRequest, parts: Sequence[Any], timeout: int
    ) -> None:
        if not self._held and not session.is_due():
            self._write(waiting, parts, timeout)
            return
        self._held.append((waiting, parts, timeout))
        if not self._in_flight:
            self._authenticate_again(session)

    def _authenticate_again(self, session: SaslSession) -> None:
        """Nothing is in flight: the other side takes nothing else meanwhile. A failure ends the
        connection, and with it what waits.
        """
        if not self._authenticates_again:
            self._authenticates_again = True
            session.authenticate_again().addCallbacks(self._authenticated_again, lambda _: None)

    def _authenticated_again(self, _: Any) -> None:
        self._authenticates_again = False
        held, self._held = self._held, []
        for each in held:
            self._write(*each)

    def _write(self, waiting: _InFlightRequest, parts: Sequence[Any], timeout_ms: int) -> None:
        protocol = self._protocol
        if protocol is None:
            waiting.answer.errback(Failure(ConnectionLost("lost before the request was sent")))
            return
        # Before the write: over a connection in memory the answer may come within it.
        self._in_flight.append(waiting)
        waiting.timer = self._runtime.clock.callLater(
            timeout_ms / 1000, self._timed_out, protocol, waiting, timeout_ms
        )
        length = sum(map(len, parts))
        self.requests += 1
        self.bytes_out += length + 4
        transport: Any = protocol.transport
        pieces = (length.to_bytes(4, "big"), *parts)
        write_parts = getattr(transport, "write_parts", None)
        if write_parts is None:
            transport.write(b"".join(pieces))
        else:
            write_parts(pieces if length > _COPIED else (b"".join(pieces),))

    def _on_connected(self, protocol: _ResponseProtocol) -> None:
        self._connecting = None
        if self._closed:
            protocol.transport.abortConnection()  # type: ignore[union-attr]
        else:
            self._protocol = protocol
        waiters, self._connect_waiters = self._connect_waiters, []
        for waiter in waiters:
            waiter.callback(None)

    def _on_connect_failed(self, reason: Failure) -> None:
        """An attempt that `disconnect` cancels fails like a connection that is lost: its waiters
        were not cancelled themselves.
        """
        if reason.check(CancelledError, ConnectingCancelledError):
            reason = Failure(ConnectionDone("closed by its owner"))
        self._connecting = None
        waiters, self._connect_waiters = self._connect_waiters, []
        for waiter in waiters:
            waiter.errback(reason)

    def _frame_received(self, frame: bytes | memoryview) -> None:
        if not self._in_flight or len(frame) < 4:
            raise WireError("an answer without a request")
        waiting = self._in_flight[0]
        if int.from_bytes(frame[:4], "big", signed=True) != waiting.correlation_id:
            raise WireError("an answer out of order")
        self._in_flight.popleft()
        self.answers += 1
        self.bytes_in += len(frame) + 4
        assert waiting.timer is not None
        waiting.timer.cancel()
        if self._held and not self._in_flight:
            session = None if self._protocol is None else self._protocol.session
            if session is not None:
                self._authenticate_again(session)
        if not waiting.answer.called:
            waiting.answer.callback(frame)

    def _timed_out(
        self, protocol: _ResponseProtocol, waiting: _InFlightRequest, timeout_ms: int
    ) -> None:
        """One turn of the reactor for what has arrived; one more for as long as turns bring
        anything (an answer may be many reads long).
        """
        waiting.timer = self._runtime.clock.callLater(
            0, self._expire, protocol, waiting, timeout_ms, protocol.bytes_received
        )

    def _expire(
        self, protocol: _ResponseProtocol, waiting: _InFlightRequest, timeout_ms: int, received: int
    ) -> None:
        if protocol.bytes_received != received:
            self._timed_out(protocol, waiting, timeout_ms)
            return
        self._connection_lost(
            protocol,
            Failure(
                RequestTimedOut(f"{self.host}:{self.port} did not answer within {timeout_ms} ms")
            ),
        )
        protocol.transport.abortConnection()  # type: ignore[union-attr]

    def _connection_lost(self, protocol: _ResponseProtocol, reason: Failure) -> None:
        # A late event of an earlier connection must not fail the requests of this one.
        if protocol is not self._protocol:
            return
        self._protocol = None
        self.api_versions = {}
        # An aborted connection is a lost one for whoever waits.
        if isinstance(reason.value, ConnectionClosed) and not isinstance(
            reason.value, ConnectionDone
        ):
            reason = Failure(ConnectionLost(*reason.value.args))
        waiting, self._in_flight = self._in_flight, deque()
        waiting.extend(each for each, _, _ in self._held)
        self._held, self._authenticates_again = [], False
        # All timers first: a callback below may send again on a new connection.
        for each in waiting:
            if each.timer is not None and each.timer.active():
                each.timer.cancel()
        for each in waiting:
            if not each.answer.called:
                each.answer.errback(reason)

    def _on_api_versions(self, response: Any) -> dict[int, tuple[int, int]]:
        if response.error_code:
            raise BrokerError(error_of(response.error_code))
        self.api_versions = {
            each.api_key: (each.min_version, each.max_version) for each in response.api_keys
        }
        self.features_epoch = response.finalized_features_epoch
        return self.api_versions


def _decode_response(
    frame: bytes | memoryview, request_class: type[Any], api_key: int, version: int
) -> Any:
    """The answer's message; its class lies beside the request's."""
    response_class = getattr(
        sys.modules[request_class.__module__],
        request_class.__name__.removesuffix("Request") + "Response",
    )
    return decode(
        response_class, frame, version, decode_response_header(frame, api_key, version)[1]
    )
