"""How a connection of ours authenticates itself to another node, and again before its session ends.

Owns `SaslConnector` and `SaslSession`.

1. `connect` fires when the connection is authenticated: until then no request is sent.
2. A failure is one line, which names the setting to look at and no secret, and a `ConnectError`:
   the caller tries again as after any other.
3. An authentication takes no longer than its caller's time to connect.
4. Once it is over, what is received goes to the connection's own protocol without a call more.

Source: Kafka's `SaslClientAuthenticator`, KIP-368 (from 85 to 95 % of a session). Not here: the
messages (`security/sasl/client.py`), who waits while it authenticates again (`net/client.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_urlsafe
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import TimeoutError
from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.broker_config import ListenerConfig
from twisted_broker.event_lines import EventLines
from twisted_broker.interfaces import IClock, IDelayedCall, INetwork
from twisted_broker.net.connector import Connector, PeerRefused
from twisted_broker.net.frames import FrameReader
from twisted_broker.security.sasl.client import ClientAuthenticator, ClientMechanism
from twisted_broker.security.sasl.errors import SaslFailure
from twisted_broker.security.sasl.scram import NONCE_BYTES
from twisted_broker.security.sasl.settings import OAUTHBEARER, NewClient
from twisted_broker.wire.errors import WireError

_FRAME_LIMIT = 1 << 20
_OF_A_SESSION = 0.9
_AGAIN_SECONDS = 10.0
_JAAS = "sasl.jaas.config"
_SETTINGS = {OAUTHBEARER: "sasl.oauthbearer.token.endpoint.url"}
_logger = Logger(namespace="replog.net")


class CannotAuthenticate(PeerRefused):
    """The other node refused this one, or did not prove who it is."""

    by_sasl = True


class SaslConnector:
    """`inner` makes the connections; `login` begins an authentication of this node."""

    def __init__(self, inner: Connector, login: NewClient, clock: IClock, client_id: str) -> None:
        self.protocol, self.config = inner.protocol, inner.config
        self._inner, self._login, self._clock, self._client_id = inner, login, clock, client_id
        self._lines = EventLines(_logger, clock)

    def connect(
        self, network: INetwork, host: str, port: int, factory: Any, timeout: float
    ) -> Deferred[Any]:
        """Fires with the protocol of `factory`, which has a `session` if that ends some time."""
        exchanges = _ExchangeFactory(self, factory, f"{host}:{port}")
        ends = self._clock.seconds() + timeout
        connecting = self._inner.connect(network, host, port, exchanges, timeout)

        def connected(_: Any) -> Deferred[Any]:
            exchange = exchanges.made
            assert exchange is not None
            return exchange.authenticate(max(0.1, ends - self._clock.seconds()))

        return connecting.addCallback(connected)

    def begin(self) -> ClientAuthenticator:
        """The client's side of an authentication that begins now."""
        mechanism: ClientMechanism = self._login(token_urlsafe(NONCE_BYTES))
        return ClientAuthenticator(mechanism, self._client_id)

    def failed(self, address: str, reason: str, mechanism: str) -> None:
        """One line for the operator."""
        name = self.config.name if isinstance(self.config, ListenerConfig) else ""
        setting = _SETTINGS.get(mechanism, _JAAS)
        self._lines.warn(
            "authentication to another node failed",
            node=address,
            listener=name,
            reason=reason,
            see=f"listener.name.{name.lower()}.{mechanism.lower()}.{setting}",
        )

    @property
    def clock(self) -> IClock:
        return self._clock


class SaslSession:
    """An authentication, and until when it holds."""

    __slots__ = ("_again", "_clock", "_due")

    def __init__(self, clock: IClock, lifetime_ms: int, again: Callable[[], Deferred[Any]]) -> None:
        self._clock, self._again = clock, again
        self._due = clock.seconds() + lifetime_ms / 1000 * _OF_A_SESSION

    def is_due(self) -> bool:
        """Whether to authenticate again before the next request."""
        return self._clock.seconds() >= self._due

    def authenticate_again(self) -> Deferred[Any]:
        """While no request is in flight; the protocol has another session then. Fails with
        ConnectError, and the connection is lost.
        """
        return self._again()


class _Exchange(Protocol):
    """Stands before the connection's own protocol while it authenticates."""

    def __init__(self, connector: SaslConnector, inner: Any, address: str) -> None:
        self._connector, self._inner, self._address = connector, inner, address
        self._frames = FrameReader(_FRAME_LIMIT)
        self._done: Deferred[Any] | None = None
        self._authenticator: ClientAuthenticator | None = None
        self._timer: IDelayedCall | None = None

    def connectionMade(self) -> None:
        self._inner.makeConnection(self.transport)

    def authenticate(self, timeout: float) -> Deferred[Any]:
        """Fires with the connection's own protocol."""
        self.__dict__.pop("dataReceived", None)
        done = self._done = Deferred(self._given_up)
        self._timer = self._connector.clock.callLater(timeout, self._too_late)
        try:
            self._authenticator = self._connector.begin()
        except SaslFailure as failure:  # of a token that is not there
            self._fail(str(failure), failure)
        else:
            self._write(self._authenticator.begin())
        return done

    def _write(self, data: bytes) -> None:
        transport: Any = self.transport
        transport.write(data)

    def dataReceived(self, data: bytes) -> None:
        self._frames.feed(data)
        authenticator = self._authenticator
        assert authenticator is not None
        try:
            while self._done is not None and (frame := self._frames.next_frame()) is not None:
                answer = authenticator.received(frame)
                if answer is None:
                    self._over(authenticator)
                else:
                    self._write(answer)
        except (SaslFailure, WireError) as failure:
            self._fail(str(failure), failure)

    def _over(self, authenticator: ClientAuthenticator) -> None:
        clock = self._connector.clock
        self._inner.session = (
            SaslSession(clock, authenticator.lifetime_ms, lambda: self.authenticate(_AGAIN_SECONDS))
            if authenticator.lifetime_ms
            else None
        )
        # What comes from now on is the other protocol's, without a call more.
        self.dataReceived = self._inner.dataReceived  # type: ignore[method-assign]
        done = self._ended()
        done.callback(self._inner)

    def _ended(self) -> Deferred[Any]:
        done, self._done, self._authenticator = self._done, None, None
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        assert done is not None
        return done

    def _given_up(self, _: Deferred[Any]) -> None:
        """Its owner has no use for it any more, and nobody else would close it."""
        self._ended()
        transport: Any = self.transport
        transport.abortConnection()

    def _too_late(self) -> None:
        # No matter of trust: the other side is cut off, or stands still.
        done = self._ended()
        transport: Any = self.transport
        transport.abortConnection()
        done.errback(TimeoutError())

    def _fail(self, reason: str, cause: Exception | None = None) -> None:
        self._report_failure(reason)
        done = self._ended()
        transport: Any = self.transport
        transport.abortConnection()
        line = f"{self._address} did not authenticate: {reason}"
        done.errback(CannotAuthenticate(line, reason, cause))

    def _report_failure(self, reason: str) -> None:
        # Without an authenticator there was no token to begin with.
        authenticator = self._authenticator
        mechanism = OAUTHBEARER if authenticator is None else authenticator.mechanism
        self._connector.failed(self._address, reason, mechanism)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._done is not None:
            text = "the connection ended while it was authenticated"
            self._report_failure(text)
            self._ended().errback(CannotAuthenticate(f"{self._address}: {text}", text))
        self._inner.connectionLost(reason)


class _ExchangeFactory(ClientFactory):
    noisy = False

    def __init__(self, connector: SaslConnector, inner: Any, address: str) -> None:
        self._connector, self._inner, self._address = connector, inner, address
        self.made: _Exchange | None = None

    def buildProtocol(self, addr: Any) -> _Exchange:
        inner = self._inner.buildProtocol(addr)
        self.made = _Exchange(self._connector, inner, self._address)
        return self.made
