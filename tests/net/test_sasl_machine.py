"""Handshakes, tokens, re-authentication and every API in any order, at a whole broker in memory.

What holds at any time: before authentication nothing but ApiVersions, SaslHandshake and
SaslAuthenticate is answered; whoever was let in stays who he is; nothing is booked for strangers,
and nothing is an error of ours.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from twisted.logger import globalLogPublisher

from tests.memory_broker import MemoryBroker
from tests.net.echo import framed
from tests.net.test_sasl import BAD, GOOD, SETTINGS, Client, client, near
from twisted_broker.api.routes import ROUTES
from twisted_broker.wire.header import RequestHeader, encode_request_header
from twisted_broker.wire.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from twisted_broker.wire.schema import encode

LIFETIME_MS = 5000
MECHANISM, AUTHENTICATE, VERSIONS = 17, 36, 18
LOGIN = (MECHANISM, AUTHENTICATE, VERSIONS)
LIMIT = 524_288
OTHER = b"\0bob\0bob-secret"
UNREGISTER_BROKER = 64
# Fetch and JoinGroup may wait; the last one would end the broker for all that follow.
SERVED = [r for r in ROUTES if r.broker.max >= 0 and r.api_key not in (1, 11, UNREGISTER_BROKER)]


@cache
def broker() -> MemoryBroker:
    key = "listener.name.clients.plain.connections.max.reauth.ms"
    return MemoryBroker(**SETTINGS, **{key: str(LIFETIME_MS)}).start()


class AnyOrder(RuleBasedStateMachine):
    """`user`: who the model says has been let in; `ends_at`: when the session is over."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = broker()
        self.bugs: list[Any] = []
        globalLogPublisher.addObserver(self._hear)
        self.client: Client = client(self.broker)
        self.side = near(self.broker)
        self.user = ""

    def _hear(self, event: Any) -> None:
        if event.get("log_failure") is not None:
            self.bugs.append(event["log_failure"].getTraceback())

    def teardown(self) -> None:
        self.client.transport.abortConnection()
        self.broker.pass_time(0.2)
        globalLogPublisher.removeObserver(self._hear)
        assert not self.bugs, self.bugs[0]

    def _send(self, key: int, data: bytes) -> bytes:
        """The answer's body, if there is one; nothing that needs a login has one before it."""
        was_in = bool(self.user)
        self.client.data = b""
        self.client.transport.write(data)
        self.broker.pass_time(0.0)
        found = self.client.data
        if found and key not in LOGIN:
            assert was_in, f"API {key} is answered before authentication"
        return found

    def _request(self, request: Any, version: int) -> bytes:
        header = RequestHeader(request.api_key, version, 5, "machine")
        return framed(encode_request_header(header) + encode(request, version))

    @rule(
        mechanism=st.sampled_from(["PLAIN", "PLAIN", "SCRAM-SHA-256", "GSSAPI", ""]),
        version=st.integers(0, 1),
    )
    def handshake(self, mechanism: str, version: int) -> None:
        self._send(MECHANISM, self._request(SaslHandshakeRequest(mechanism=mechanism), version))

    @rule(
        token=st.sampled_from([GOOD, GOOD, OTHER, BAD, b"n,,n=alice,r=abc", b"", b"\0\0\0"]),
        version=st.integers(0, 2),
    )
    def token(self, token: bytes, version: int) -> None:
        self._send(AUTHENTICATE, self._request(SaslAuthenticateRequest(auth_bytes=token), version))
        self._look()

    @initialize(tokens=st.lists(st.sampled_from([GOOD, OTHER]), max_size=2))
    def begin(self, tokens: list[bytes]) -> None:
        for token in tokens:
            self.log_in(token)

    @rule(token=st.sampled_from([GOOD, OTHER]))
    def log_in(self, token: bytes) -> None:
        """Also once more: a session may begin anew after a second."""
        self.broker.pass_time(2.0)
        self.handshake("PLAIN", 1)
        self.token(token, 1)

    @rule(token=st.sampled_from([GOOD, OTHER, BAD, b"n,,n=alice,r=abc"]))
    def bare_token(self, token: bytes) -> None:
        self._send(AUTHENTICATE, framed(token))
        self._look()

    def _look(self) -> None:
        """Who is let in is one of those whose password was sent, for the first time."""
        name = str(self.side.principal)
        if not self.user and name != "User:ANONYMOUS":
            assert name in ("User:alice", "User:bob")
            self.user = name

    @rule(route=st.sampled_from(SERVED), newest=st.booleans())
    def any_api(self, route: Any, newest: bool) -> None:
        version = route.broker.max if newest else route.broker.min
        if route.api_key not in LOGIN:
            self._send(route.api_key, self._request(route.request_class()(), version))

    @rule(version=st.integers(0, 5))
    def versions(self, version: int) -> None:
        head = RequestHeader(VERSIONS, version, 5, "machine")
        self._send(VERSIONS, framed(encode_request_header(head) + b"\2a\2b\0"))

    @rule(data=st.binary(min_size=1, max_size=40))
    def noise(self, data: bytes) -> None:
        self._send(-1, framed(data) if data[0] % 2 else data)
        self._look()

    @precondition(lambda self: not self.user)
    @rule()
    def a_long_frame(self) -> None:
        self._send(-1, LIMIT.to_bytes(4, "big") + bytes(40_000))

    @rule(seconds=st.sampled_from([0.2, 2.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.broker.pass_time(seconds)

    @invariant()
    def who_is_in_stays_so(self) -> None:
        assert str(self.side.principal) == (self.user or "User:ANONYMOUS")

    @invariant()
    def strangers_have_little(self) -> None:
        if not self.user:
            assert self.client.lost or self.side.frames.limit <= LIMIT
            assert self.side.frames.pending <= LIMIT + 4
            assert self.side.listener.request_bytes.used == 0 and not self.side.throttled
        assert not self.bugs, self.bugs[0]


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=20,
    stateful_step_count=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
