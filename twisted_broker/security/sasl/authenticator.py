"""The state of one connection to a SASL listener: what it may send next, and who it is.

Owns `ServerAuthenticator`.

1. Before it is authenticated a connection may send ApiVersions, once, then SaslHandshake, once,
   then the mechanism's messages, and nothing else.
2. After a failure nothing more is accepted.
3. An authenticated connection may authenticate again only where its session ends (KIP-368), once a
   second at most, with the same mechanism, as the same user; until that is done it may send nothing
   else. When the session is over, nothing else is accepted.
4. A handshake of version 0 is followed by bare messages of the mechanism, without headers.

Source: Kafka's `SaslServerAuthenticator`, `KafkaChannel`; KIP-43, KIP-152, KIP-368. Not here: the
requests and answers (`api/sasl.py`), the mechanisms, the delay after a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

from twisted_broker.security.sasl.errors import SaslFailure
from twisted_broker.wire.errors import WireError

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
_SHORTEST_BETWEEN_MS = 1_000


class ServerMechanism(Protocol):
    """One authentication by one mechanism, the broker's side.

    `authorization_id`, `expires_wall_ms` (None: never) and `token_authenticated` (a delegation
    token) hold once it is `complete`. `refused`: why it fails with the client's next
    message; empty while it does not.
    """

    @property
    def name(self) -> str: ...

    @property
    def complete(self) -> bool: ...

    @property
    def authorization_id(self) -> str: ...

    @property
    def expires_wall_ms(self) -> int | None: ...

    @property
    def token_authenticated(self) -> bool: ...

    @property
    def refused(self) -> str: ...

    def respond(self, token: bytes) -> bytes:
        """Raises SaslFailure."""
        ...


class State(Enum):
    """Of a connection."""

    BEGIN = auto()
    HANDSHAKE = auto()
    AUTHENTICATE = auto()
    BARE_TOKENS = auto()
    AUTHENTICATED = auto()
    FAILED = auto()


class Step(NamedTuple):
    """What a message of the mechanism led to. `lifetime_ms`: of the session, 0 without an end."""

    token: bytes
    complete: bool = False
    lifetime_ms: int = 0


class ServerAuthenticator:
    """`mechanisms`: what begins an authentication, by the mechanism's name. `lifetimes_ms`:
    `connections.max.reauth.ms` by mechanism; 0 or absent: a session ends with the credential only.
    """

    __slots__ = (
        "_began_ms",
        "_exchange",
        "_expires_ms",
        "_lifetimes",
        "_mechanisms",
        "_previous",
        "state",
        "token_authenticated",
        "user",
    )

    def __init__(
        self,
        mechanisms: Mapping[str, Callable[[], ServerMechanism]],
        lifetimes_ms: Mapping[str, int],
    ) -> None:
        self._mechanisms, self._lifetimes = mechanisms, lifetimes_ms
        self._exchange: ServerMechanism | None = None
        self._expires_ms: float | None = None
        self._began_ms: float | None = None
        # Mechanism and user of before, while it authenticates again.
        self._previous: tuple[str, str] | None = None
        self.state = State.BEGIN
        self.user: str | None = None
        self.token_authenticated = False

    @property
    def enabled(self) -> Sequence[str]:
        """The mechanisms that are offered."""
        return list(self._mechanisms)

    @property
    def mechanism(self) -> str:
        """Empty before a handshake."""
        return "" if self._exchange is None else self._exchange.name

    @property
    def session_ends(self) -> bool:
        """Whether what was authenticated holds for some time only."""
        return self._expires_ms is not None

    @property
    def again(self) -> bool:
        """Whether it authenticates again."""
        return self._previous is not None

    def check(self, api_key: int, now_ms: float) -> None:
        """Whether a request of this API may come now. Raises WireError."""
        state = self.state
        if state is State.AUTHENTICATED:
            if api_key != SASL_HANDSHAKE and self._is_over(now_ms):
                raise WireError(
                    f"the session of user {self.user!r} is over, and it did not authenticate again"
                )
            return
        if state is State.AUTHENTICATE:
            expected: tuple[int, ...] = (SASL_AUTHENTICATE,)
        elif state is State.BEGIN:
            expected = (API_VERSIONS, SASL_HANDSHAKE)
        elif state is State.HANDSHAKE:
            expected = (SASL_HANDSHAKE,)
        else:
            expected = ()
        if api_key not in expected:
            self.state = State.FAILED
            if self._exchange is not None and self._exchange.refused:
                # aiokafka takes the refusal of OAUTHBEARER for the end of a login, and goes on.
                raise WireError(self._exchange.refused)
            raise WireError(
                f"API {api_key} is not served before authentication ({state.name.lower()})"
            )

    def _is_over(self, now_ms: float) -> bool:
        return self._expires_ms is not None and now_ms > self._expires_ms

    def versions_given(self) -> None:
        """ApiVersions was answered without an error."""
        if self.state is State.BEGIN:
            self.state = State.HANDSHAKE

    def handshake(self, mechanism: str, version: int, now_ms: float) -> bool:
        """Whether the mechanism is offered. None of it is when the connection may not authenticate
        (again): see `refuses_again`.

        Raises SaslFailure.
        """
        if self.state is State.AUTHENTICATED:
            assert self.user is not None
            self._previous = (self.mechanism, self.user)
            self._began_ms = now_ms
        begin = self._mechanisms.get(mechanism)
        if begin is None:
            self.state = State.FAILED
            raise SaslFailure(
                f"the client wants mechanism {mechanism!r}; sasl.enabled.mechanisms has "
                f"{', '.join(self._mechanisms)}"
            )
        self._exchange = begin()
        self.state = State.AUTHENTICATE if version else State.BARE_TOKENS
        return True

    def refuses_again(self, now_ms: float) -> bool:
        """Whether an authenticated connection may not authenticate again now. Then its handshake
        is answered with ILLEGAL_SASL_STATE, and it goes on as before.
        """
        return self.state is State.AUTHENTICATED and (
            self._expires_ms is None
            or (self._began_ms is not None and now_ms - self._began_ms < _SHORTEST_BETWEEN_MS)
        )

    def step(self, token: bytes, now_ms: float, wall_ms: int) -> Step:
        """A message of the mechanism. Raises SaslFailure."""
        exchange = self._exchange
        if exchange is None or self.state not in (State.AUTHENTICATE, State.BARE_TOKENS):
            self.state = State.FAILED
            raise SaslFailure("a message of a mechanism before the handshake")
        try:
            if self._previous is not None and exchange.name != self._previous[0]:
                raise SaslFailure(
                    f"the client changed from {self._previous[0]} to {exchange.name}",
                    f"Authentication failed: a connection that began with {self._previous[0]} "
                    f"cannot go on with {exchange.name}",
                )
            answer = exchange.respond(token)
            if not exchange.complete:
                return Step(answer)
            self._check_same_user(exchange.authorization_id)
        except SaslFailure:
            self.state = State.FAILED
            raise
        self.user, self._previous = exchange.authorization_id, None
        self.token_authenticated = exchange.token_authenticated
        self.state = State.AUTHENTICATED
        return Step(answer, True, self._begin_session(exchange, now_ms, wall_ms))

    def _check_same_user(self, user: str) -> None:
        if self._previous is not None and user != self._previous[1]:
            raise SaslFailure(
                f"the client changed from user {self._previous[1]!r} to {user!r}",
                "Authentication failed: a connection cannot become another user's",
            )

    def _begin_session(self, exchange: ServerMechanism, now_ms: float, wall_ms: int) -> int:
        """Its length in ms, 0 for one without an end."""
        longest = self._lifetimes.get(exchange.name, 0)
        expires = exchange.expires_wall_ms
        if expires is None and longest <= 0:
            self._expires_ms = None
            return 0
        lifetime = longest if expires is None else max(0, expires - wall_ms)
        if longest > 0:
            lifetime = min(lifetime, longest)
        self._expires_ms = now_ms + lifetime
        return lifetime
