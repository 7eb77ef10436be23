"""The gate of a SASL listener: what comes in before a connection is authenticated, and after.

Owns `SaslListener`, for all connections of one listener, and each connection's `SaslGate`.

1. A gate stands before the dispatcher until the connection is authenticated. Then it is gone, and
   costs nothing, unless sessions are limited in time: then it checks each request against the end
   of the session.
2. A frame before authentication is no longer than `sasl.server.max.receive.size`.
3. A failure is answered after `connection.failed.authentication.delay.ms`, with one line in the
   log; meanwhile nothing is read, and then the connection ends. What breaks the protocol before
   authentication ends it at once, with a line within the same bound.
4. No line holds a password, a key or a token. Names that the client sent are quoted, and the lines
   are bounded in a flood: none hides the failures of another client or user.
5. A connection that is not authenticated counts as one that never sent a request: on a controller's
   listener it makes way for others.
6. A connection that is not authenticated `LOGIN_SECONDS` after it was opened is closed, with one
   line: bytes that lead nowhere keep no place.

Source: Kafka's `SaslServerAuthenticator`, `KafkaChannel`. Not here: the states
(`security/sasl/authenticator.py`), the requests and answers (`api/sasl.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from secrets import token_urlsafe
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_broker.event_lines import EventLines
from twisted_broker.interfaces import IDelayedCall, Runtime
from twisted_broker.net.connection import Answer, Dispatch, KafkaConnection, PendingResponse
from twisted_broker.security.principal import Principal, TokenPrincipal
from twisted_broker.security.sasl.authenticator import (
    API_VERSIONS,
    ServerAuthenticator,
    ServerMechanism,
    State,
    Step,
)
from twisted_broker.security.sasl.errors import SaslFailure
from twisted_broker.security.sasl.plain import MECHANISM as PLAIN
from twisted_broker.security.sasl.plain import PlainServer
from twisted_broker.security.sasl.scram import (
    MECHANISMS,
    NONCE_BYTES,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    TokenLogin,
)
from twisted_broker.security.sasl.settings import OAUTHBEARER, ServerSettings
from twisted_broker.wire.errors import WireError

if TYPE_CHECKING:
    from twisted_broker.net.jwks import JwksKeys

# Lines a minute of one client's failures for one reason, which names the user where there is one.
_COUNTED_BY, _MOST_LINES = ("client", "mechanism", "reason"), 3
_logger = Logger(namespace="replog.net")
# As long as a handshake of TLS may take.
LOGIN_SECONDS = 30.0
Lookup = Callable[[ScramMechanism, str], ScramCredential | None]
TokenLookup = Callable[[ScramMechanism, str], TokenLogin | None]


class SaslListener:
    """What the connections of one listener share. `lookup` finds users of SCRAM, `token` delegation
    tokens that hold now; `jwks`: the keys of OAUTHBEARER. Since the start: `successes` and
    `failures`.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        settings: ServerSettings,
        lookup: Lookup,
        jwks: JwksKeys | None = None,
        token: TokenLookup = lambda mechanism, token_id: None,
    ) -> None:
        self._jwks, self._token = jwks, token
        self.runtime, self.settings = runtime, settings
        self.successes = self.failures = 0
        self.lines = EventLines(
            _logger, runtime.clock, by=_COUNTED_BY, most=_MOST_LINES, listener=name
        )
        self.mechanisms: Mapping[str, Callable[[], ServerMechanism]] = {
            each: self._factory(each, lookup) for each in settings.mechanisms
        }

    def _factory(self, mechanism: str, lookup: Lookup) -> Callable[[], ServerMechanism]:
        if mechanism == PLAIN:
            return lambda: PlainServer(self.settings.users)
        if mechanism == OAUTHBEARER:
            return self._oauth()
        scram = MECHANISMS[mechanism]
        return lambda: ScramServer(
            scram,
            lambda name: lookup(scram, name),
            token_urlsafe(NONCE_BYTES),
            lambda token_id: self._token(scram, token_id),
        )

    def _oauth(self) -> Callable[[], ServerMechanism]:
        from twisted_broker.security.sasl.oauthbearer import JwtValidator, OAuthServer

        jwks, oauth = self._jwks, self.settings.oauth
        assert jwks is not None and oauth is not None
        validator = JwtValidator(
            lambda: jwks.keys,
            audience=oauth.audience,
            issuer=oauth.issuer,
            skew_ms=oauth.skew_ms,
            name_claim=oauth.name_claim,
            unknown_key=jwks.load_again,
        )
        return lambda: OAuthServer(validator, self.runtime.wall_ms)

    def gate(self, connection: KafkaConnection, dispatch: Dispatch) -> SaslGate:
        """Of a new connection."""
        return SaslGate(self, connection, dispatch)

    def stop(self) -> None:
        """What was counted is written; no keys are read any more."""
        self.lines.stop()
        if self._jwks is not None:
            self._jwks.stop()


class SaslGate:
    """Of one connection; called like a dispatcher."""

    __slots__ = ("_connection", "_dispatch", "_listener", "_timer", "authenticator")

    def __init__(
        self, listener: SaslListener, connection: KafkaConnection, dispatch: Dispatch
    ) -> None:
        self._listener, self._connection, self._dispatch = listener, connection, dispatch
        self.authenticator = ServerAuthenticator(
            listener.mechanisms, listener.settings.lifetimes_ms
        )
        connection.frames.limit = min(connection.frames.limit, listener.settings.receive_bytes)
        self._timer: IDelayedCall | None = None

    def opened(self) -> None:
        """The connection is there: its time to authenticate begins."""
        clock = self._listener.runtime.clock
        self._timer = clock.callLater(LOGIN_SECONDS, self._too_late)

    def closed(self) -> None:
        """The connection is gone."""
        self._stop_timer()

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _too_late(self) -> None:
        self._timer = None
        if not self._connection.closing:
            self._log_failure(f"not authenticated within {LOGIN_SECONDS:g} s")
            self._connection.close()

    def __call__(
        self, connection: KafkaConnection, frame: bytes | memoryview
    ) -> Answer | PendingResponse:
        authenticator = self.authenticator
        state = authenticator.state
        if state is not State.AUTHENTICATED:
            connection.has_requested = False
            if state is State.BARE_TOKENS:
                return self._bare_token(bytes(frame))
            if state is State.FAILED:
                return PendingResponse(None, False)  # its end is near: nothing more is read
        if len(frame) < 2:
            raise WireError(f"a frame of {len(frame)} bytes is too short for a request")
        api_key = int.from_bytes(frame[:2], "big", signed=True)
        authenticator.check(api_key, self._now_ms())
        outcome = self._dispatch(connection, frame)
        if api_key == API_VERSIONS and state is State.BEGIN and _is_good(outcome):
            authenticator.versions_given()
        return outcome

    def _now_ms(self) -> int:
        return self._listener.runtime.now_ms()

    def refuses_again(self) -> bool:
        """Whether an authenticated connection may not authenticate again now."""
        return self.authenticator.refuses_again(self._now_ms())

    def handshake(self, mechanism: str, version: int) -> None:
        """Raises SaslFailure."""
        self.authenticator.handshake(mechanism, version, self._now_ms())

    def step(self, token: bytes) -> Step:
        """A message of the mechanism. Raises SaslFailure."""
        runtime = self._listener.runtime
        step = self.authenticator.step(token, self._now_ms(), runtime.wall_ms())
        if step.complete:
            self._let_in()
        return step

    def _let_in(self) -> None:
        user = self.authenticator.user
        assert user is not None
        self._stop_timer()
        self._listener.successes += 1
        gone = None if self.authenticator.session_ends else self._dispatch
        principal = TokenPrincipal if self.authenticator.token_authenticated else Principal
        self._connection.authenticated(principal("User", user), gone)

    async def failed(self, failure: SaslFailure) -> None:
        """One line; ends when the delay is over. Then the connection ends, after the answer that
        comes at once.
        """
        self._log_failure(failure)
        clock = self._listener.runtime.clock
        waiter: Deferred[None] = Deferred()
        clock.callLater(self._listener.settings.delay_ms / 1000, waiter.callback, None)
        await waiter
        clock.callLater(0, self._connection.close)

    def broken(self, reason: Exception) -> None:
        """One line for a stranger that sent what cannot be served, and is closed now."""
        if self.authenticator.mechanism:  # it had its handshake: its protocol is right
            self._log_failure(reason)
            return
        listener = self._connection.listener
        protocol = listener.protocol.name
        remedy = f"listener {listener.name} is {protocol}: set the client's "
        self._log_failure(reason, remedy=f"{remedy}security.protocol={protocol}")

    def _log_failure(self, failure: object, **more: object) -> None:
        self._stop_timer()  # the end is certain: at once, or after the delay
        self._listener.failures += 1
        authenticator = self.authenticator
        self._listener.lines.warn(
            "re-authentication failed" if authenticator.again else "authentication failed",
            client=self._connection.client_host,
            mechanism=authenticator.mechanism or "-",
            reason=str(failure),
            **more,
        )

    def _bare_token(self, token: bytes) -> Answer | PendingResponse:
        """After a handshake of version 0; a failure has no answer."""
        try:
            step = self.step(token)
        except SaslFailure as failure:
            self._log_failure(failure)
            clock = self._listener.runtime.clock
            clock.callLater(self._listener.settings.delay_ms / 1000, self._connection.close)
            return PendingResponse(None, False)
        return len(step.token).to_bytes(4, "big") + step.token


def _is_good(outcome: Answer | PendingResponse) -> bool:
    """Whether an answer to ApiVersions carries no error."""
    answer = outcome.answer if isinstance(outcome, PendingResponse) else outcome
    return isinstance(answer, bytes) and answer[8:10] == b"\0\0"
