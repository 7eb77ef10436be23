"""The state of one connection to a SASL listener, with messages in any order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from twisted_broker.security.sasl.authenticator import (
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    ServerAuthenticator,
    State,
)
from twisted_broker.security.sasl.errors import SaslFailure
from twisted_broker.security.sasl.plain import PlainServer
from twisted_broker.wire.errors import WireError

PRODUCE, METADATA = 0, 3
GOOD, OTHER_USER, BAD = b"\0alice\0secret", b"\0bob\0secret", b"\0alice\0wrong"


class OtherPlain(PlainServer):
    name = "OTHER"


def authenticator(lifetime_ms=0, expires=None):
    users = {"alice": "secret", "bob": "secret"}

    def begin():
        found = PlainServer(users)
        found.expires_wall_ms = expires
        return found

    mechanisms = {"PLAIN": begin, "OTHER": lambda: OtherPlain(users)}
    return ServerAuthenticator(mechanisms, {"PLAIN": lifetime_ms})


def authenticated(lifetime_ms=0, now_ms=0.0, **more):
    found = authenticator(lifetime_ms, **more)
    found.check(SASL_HANDSHAKE, now_ms)
    found.handshake("PLAIN", 1, now_ms)
    found.check(SASL_AUTHENTICATE, now_ms)
    step = found.step(GOOD, now_ms, 1_000_000)
    assert step.complete
    return found, step


@pytest.mark.parametrize("api_key", [PRODUCE, METADATA, SASL_AUTHENTICATE, 58, -1])
def test_nothing_else_comes_before_the_handshake(api_key):
    found = authenticator()
    with pytest.raises(WireError, match="before authentication"):
        found.check(api_key, 0)
    assert found.state is State.FAILED
    with pytest.raises(WireError):
        found.check(SASL_HANDSHAKE, 0)


def test_api_versions_comes_once():
    found = authenticator()
    found.check(API_VERSIONS, 0)
    found.versions_given()
    with pytest.raises(WireError):
        found.check(API_VERSIONS, 0)


def test_nothing_but_the_mechanism_comes_after_the_handshake():
    for api_key in (SASL_HANDSHAKE, API_VERSIONS, PRODUCE):
        found = authenticator()
        found.handshake("PLAIN", 1, 0)
        with pytest.raises(WireError):
            found.check(api_key, 0)


def test_a_mechanism_that_is_not_offered_ends_it():
    found = authenticator()
    with pytest.raises(SaslFailure, match="GSSAPI"):
        found.handshake("GSSAPI", 1, 0)
    assert found.state is State.FAILED


def test_a_failure_ends_it():
    found = authenticator()
    found.handshake("PLAIN", 1, 0)
    with pytest.raises(SaslFailure):
        found.step(BAD, 0, 0)
    with pytest.raises(SaslFailure):
        found.step(GOOD, 0, 0)
    with pytest.raises(WireError):
        found.check(METADATA, 0)
    assert found.user is None


def test_version_0_is_followed_by_bare_messages():
    found = authenticator()
    found.handshake("PLAIN", 0, 0)
    assert found.state is State.BARE_TOKENS
    assert found.step(GOOD, 0, 0).complete
    assert found.user == "alice"


def test_without_an_end_there_is_no_second_authentication():
    found, step = authenticated()
    assert step.lifetime_ms == 0 and not found.session_ends
    assert found.refuses_again(10_000_000)
    found.check(METADATA, 10_000_000)


def test_a_session_ends():
    found, step = authenticated(lifetime_ms=5000)
    assert step.lifetime_ms == 5000
    found.check(METADATA, 5000)
    with pytest.raises(WireError, match="over"):
        found.check(METADATA, 5001)
    found.check(SASL_HANDSHAKE, 5001)  # late, but it may still authenticate


def test_the_credential_ends_the_session_earlier():
    assert authenticated(lifetime_ms=5000, expires=1_002_000)[1].lifetime_ms == 2000
    assert authenticated(expires=1_002_000)[1].lifetime_ms == 2000
    found, step = authenticated(expires=999_000)
    assert step.lifetime_ms == 0
    with pytest.raises(WireError, match="over"):
        found.check(METADATA, 1)


def test_it_authenticates_again():
    found, _ = authenticated(lifetime_ms=5000)
    assert not found.refuses_again(4000)
    found.handshake("PLAIN", 1, 4000)
    assert found.again
    with pytest.raises(WireError):
        found.check(METADATA, 4000)


def test_it_authenticates_again_with_success():
    found, _ = authenticated(lifetime_ms=5000)
    found.handshake("PLAIN", 1, 4000)
    assert found.step(GOOD, 4500, 1_000_000).lifetime_ms == 5000
    found.check(METADATA, 9500)
    assert found.refuses_again(4900)  # less than a second after it began
    assert not found.refuses_again(5000)


def test_again_it_stays_the_same_user():
    found, _ = authenticated(lifetime_ms=5000)
    found.handshake("PLAIN", 1, 4000)
    with pytest.raises(SaslFailure, match="bob") as failed:
        found.step(OTHER_USER, 4500, 0)
    assert failed.value.public
    assert found.user == "alice" and found.state is State.FAILED


def test_again_it_keeps_the_mechanism():
    found, _ = authenticated(lifetime_ms=5000)
    found.handshake("OTHER", 1, 4000)
    with pytest.raises(SaslFailure, match="OTHER"):
        found.step(GOOD, 4500, 0)


class AnyOrder(RuleBasedStateMachine):
    """Whatever comes: nobody is somebody without the password, and after a failure nothing is
    served.
    """

    def __init__(self):
        super().__init__()
        self.auth = authenticator(lifetime_ms=3000)
        self.now = 0.0
        self.proved = False
        self.failed = False
        self.user = None

    @rule(ms=st.integers(0, 2000))
    def time_passes(self, ms):
        self.now += ms

    @rule(api_key=st.sampled_from([PRODUCE, METADATA, API_VERSIONS, SASL_AUTHENTICATE, 58]))
    def request(self, api_key):
        before = self.auth.state
        try:
            self.auth.check(api_key, self.now)
        except WireError:
            if before is not State.AUTHENTICATED:
                self.failed = True
            return
        assert not self.failed
        if api_key in (PRODUCE, METADATA, 58):
            assert self.proved and before is State.AUTHENTICATED
        if api_key == API_VERSIONS and not self.proved:
            self.auth.versions_given()

    @rule(mechanism=st.sampled_from(["PLAIN", "OTHER", "GSSAPI", ""]), version=st.integers(0, 1))
    def handshake(self, mechanism, version):
        try:
            self.auth.check(SASL_HANDSHAKE, self.now)
        except WireError:
            self.failed = True
            return
        if self.auth.refuses_again(self.now):
            assert self.proved
            return
        try:
            self.auth.handshake(mechanism, version, self.now)
        except SaslFailure:
            self.failed = True

    @rule(token=st.sampled_from([GOOD, OTHER_USER, BAD, b""]))
    def message(self, token):
        before = self.auth.state
        try:
            step = self.auth.step(token, self.now, 0)
        except SaslFailure:
            self.failed = True
            return
        assert before in (State.AUTHENTICATE, State.BARE_TOKENS) and not self.failed
        assert token in (GOOD, OTHER_USER) and step.complete
        user = "alice" if token == GOOD else "bob"
        assert self.user in (None, user)
        self.user, self.proved = user, True

    @invariant()
    def state_agrees(self):
        assert self.auth.user == self.user
        assert (self.auth.state is State.FAILED) == self.failed
        if self.auth.state is State.AUTHENTICATED:
            assert self.proved


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=50, stateful_step_count=20)
