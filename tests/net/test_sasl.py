"""A SASL listener and connections to it: a whole broker in memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.error import ConnectError, ConnectionClosed, TimeoutError
from twisted.internet.protocol import ClientFactory
from twisted.logger import capturedLogs, formatEvent

from tests.memory_broker import MemoryBroker
from tests.net.echo import Far, framed
from twisted_broker.api.routes import ROUTES
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.event_lines import MOST_LINES
from twisted_broker.net.client import BrokerConnection
from twisted_broker.net.connector import PlainConnector
from twisted_broker.net.request_bytes import STRANGERS_LIMIT
from twisted_broker.net.sasl_connector import SaslConnector
from twisted_broker.security.sasl import jaas
from twisted_broker.security.sasl.errors import SaslFailure
from twisted_broker.security.sasl.plain import PlainClient
from twisted_broker.security.sasl.settings import client_login, server_settings
from twisted_broker.security.security_protocol import SASL_TO_BROKERS
from twisted_broker.settings import ConfigError
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.header import RequestHeader, encode_request_header
from twisted_broker.wire.messages.api_versions import ApiVersionsRequest
from twisted_broker.wire.messages.metadata import MetadataRequest
from twisted_broker.wire.messages.quotas import (
    AlterClientQuotasRequest,
    AlteredEntry,
    OpData,
    QuotaEntityData,
)
from twisted_broker.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from twisted_broker.wire.schema import decode, encode

PORT = 9094
GOOD, BAD = b"\0alice\0alice-secret", b"\0alice\0wrong"
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093,"
    f"CLIENTS://127.0.0.1:{PORT}",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
    "CLIENTS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.clients.plain.sasl.jaas.config": f"{jaas.PLAIN} required "
    'username="alice" password="alice-secret" user_alice="alice-secret" user_bob="bob-secret";',
}


def started(**more: str) -> MemoryBroker:
    return MemoryBroker(**SETTINGS, **more).start()


@pytest.fixture(scope="module")
def shared() -> Iterator[MemoryBroker]:
    made = started()
    yield made
    made.stop()


class Client(Far):
    """Speaks frames by hand."""

    broker: MemoryBroker
    number = 0

    def ask(self, request: Any, version: int) -> None:
        self.number += 1
        header = RequestHeader(request.api_key, version, self.number, "hand")
        self.transport.write(framed(encode_request_header(header) + encode(request, version)))
        self.broker.pass_time(0.0)

    def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> Any:
        self.ask(SaslHandshakeRequest(mechanism=mechanism), version)
        return self.answer(SaslHandshakeResponse, version, 4)

    def authenticate(self, token: bytes = GOOD) -> Any:
        self.ask(SaslAuthenticateRequest(auth_bytes=token), 1)
        return self.answer(SaslAuthenticateResponse, 1, 4)

    def answer(self, cls: Any, version: int, header: int) -> Any:
        """None where there is none yet."""
        data, self.data = self.data, b""
        return decode(cls, data[4:], version, header) if data else None

    def serves(self) -> bool:
        self.data = b""
        self.ask(MetadataRequest(topics=[]), 4)
        return len(self.data) > 20


def client(broker: MemoryBroker, port: int = PORT) -> Client:
    found: list[Any] = []
    broker.network.connect("127.0.0.1", port, ClientFactory.forProtocol(Client), 1).addBoth(
        found.append
    )
    broker.pass_time(0.0)
    made: Client = found[0]
    made.broker = broker
    return made


def of_clients(broker: MemoryBroker) -> Any:
    """The factory of their listener."""
    return next(each for each in broker.broker.sockets.factories if each.name == "CLIENTS")


def near(broker: MemoryBroker) -> Any:
    """The broker's side of the newest connection of clients."""
    return list(of_clients(broker).connections)[-1]


def lines(logs: Any, text: str) -> list[str]:
    found = [formatEvent(event) for event in logs]
    return [line for line in found if text in line]


def test_a_client_comes_in_and_costs_no_more_than_another(shared: MemoryBroker) -> None:
    one = client(shared)
    one.ask(ApiVersionsRequest(), 0)
    assert b"\0\x11" in one.data
    one.data = b""
    assert one.handshake().mechanisms == ["PLAIN", "SCRAM-SHA-256"]
    answer = one.authenticate()
    assert not answer.error_code and answer.session_lifetime_ms == 0
    connection = near(shared)
    assert str(connection.principal) == "User:alice"
    assert connection._dispatch is connection.listener.dispatch
    assert one.serves() and not one.lost


def test_nothing_else_comes_in_before(shared: MemoryBroker) -> None:
    for first in (0, 1, 2):
        one = client(shared)
        side = near(shared)
        if first:
            one.handshake()
        if first == 2:
            assert one.authenticate(BAD) is None
        with capturedLogs() as logs:
            assert not one.serves()
        if first < 2:
            assert one.lost and len(lines(logs, "before authentication")) == 1
            assert not side.has_requested  # so it makes way for others


def test_a_failure_is_answered_late_and_ends_the_connection(shared: MemoryBroker) -> None:
    one = client(shared)
    one.handshake()
    with capturedLogs() as logs:
        assert one.authenticate(BAD) is None
        shared.pass_time(0.09)
        assert not one.data and not one.lost
        one.ask(SaslAuthenticateRequest(auth_bytes=GOOD), 1)  # too late
        shared.pass_time(0.02)
    answer = decode(SaslAuthenticateResponse, one.data[4:], 1, 4)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message and "alice" not in answer.error_message
    assert one.lost
    (line,) = lines(logs, "authentication failed")
    assert "listener=CLIENTS" in line and "alice" in line and "wrong'" not in line


def test_one_clients_failures_do_not_hide_anothers() -> None:
    """A flood is three lines of a user and a reason, and one that counts the rest."""
    broker = started()
    with capturedLogs() as logs:
        for token in [BAD] * 25 + [b"\0bob\0wrong"]:
            one = client(broker)
            one.handshake()
            one.authenticate(token)
        found = lines(logs, "authentication failed")
        assert len(found) == 4 and "alice" in found[2] and "bob" in found[3]
        broker.pass_time(61)
    broker.stop()
    more = lines(logs, "authentication failed")[4:]
    assert len(more) == 1 and "alice" in more[0] and more[0].endswith(" count=22")
    assert more[0].startswith("authentication failed, more in that minute: listener=CLIENTS client")


def test_a_mechanism_that_is_not_offered(shared: MemoryBroker) -> None:
    one = client(shared)
    assert one.handshake("GSSAPI") is None
    shared.pass_time(0.2)
    answer = one.answer(SaslHandshakeResponse, 1, 4)
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256"] and one.lost


def test_who_wants_sasl_where_there_is_none_is_one_line(shared: MemoryBroker) -> None:
    one = client(shared, 9092)
    with capturedLogs() as logs:
        assert one.handshake().error_code == ErrorCode.ILLEGAL_SASL_STATE
    (line,) = lines(logs, "SASL")
    assert "listener=PLAINTEXT" in line and "client=127.0.0.1" in line
    assert "listener PLAINTEXT is PLAINTEXT: set the client's security.protocol=PLAINTEXT" in line


def test_bare_tokens(shared: MemoryBroker) -> None:
    one, other = client(shared), client(shared)
    for each in (one, other):
        assert not each.handshake(version=0).error_code
    one.transport.write(framed(GOOD))
    other.transport.write(framed(BAD))
    shared.pass_time(0.2)
    assert one.data == bytes(4) and one.serves()
    assert other.data == b"" and other.lost


def test_frames_are_short_before_authentication(shared: MemoryBroker) -> None:
    one = client(shared)
    with capturedLogs() as logs:
        one.transport.write((524_289).to_bytes(4, "big"))
        shared.pass_time(0.0)
    assert one.lost and lines(logs, "frame of 524289 bytes")
    two = client(shared)
    two.handshake()
    two.authenticate()
    two.transport.write((524_289).to_bytes(4, "big"))
    shared.pass_time(0.0)
    assert not two.lost


def test_a_second_authentication_without_an_end_of_session_is_refused(shared: MemoryBroker) -> None:
    one = client(shared)
    one.handshake()
    one.authenticate()
    assert one.handshake().error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert one.authenticate().error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert one.serves()


def test_on_a_listener_without_sasl(shared: MemoryBroker) -> None:
    one = client(shared, 9092)
    assert one.handshake().error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert one.authenticate().error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_a_session_that_is_over_ends_the_connection() -> None:
    key = "listener.name.clients.plain.connections.max.reauth.ms"
    broker = started(**{key: "5000"})
    one, other = client(broker), client(broker)
    for each in (one, other):
        each.handshake()
        assert each.authenticate().session_lifetime_ms == 5000
    broker.pass_time(4.0)
    assert one.serves() and other.serves()
    one.data = b""
    assert not one.handshake().error_code
    assert not one.authenticate().error_code
    broker.pass_time(2.0)
    assert one.serves()
    with capturedLogs() as logs:
        assert not other.serves()
    assert other.lost and lines(logs, "over")
    broker.stop()


# strangers


def test_nothing_is_booked_before_authentication() -> None:
    """Long requests of strangers keep nobody waiting, and release only what they took."""
    broker = started(**{"queued.max.request.bytes": str(1 << 20)})
    for _ in range(5):
        client(broker).transport.write((500_000).to_bytes(4, "big") + bytes(10))
        broker.pass_time(0.0)
    booked = near(broker).listener.request_bytes
    assert booked.used == 0
    one = client(broker)
    one.handshake()
    # begun before authentication, and authenticates
    header = RequestHeader(36, 1, 2, "x" * 32_767)
    request = encode(SaslAuthenticateRequest(auth_bytes=GOOD), 1)
    frame = framed(encode_request_header(header) + request)
    for piece in (frame[:32_700], frame[32_700:]):
        one.transport.write(piece)
        broker.pass_time(0.0)
    assert str(near(broker).principal) == "User:alice" and booked.used == 0
    one.transport.write((500_000).to_bytes(4, "big") + bytes(50_000))
    broker.pass_time(0.0)
    assert 50_000 <= booked.used <= 100_000 and booked.strangers.used <= 5 * 20
    one.transport.abortConnection()
    # whole, and held behind the answer to a failure
    other = client(broker)
    other.handshake("GSSAPI")
    for piece in (frame[:32_700], frame[32_700:]):
        other.transport.write(piece)
        broker.pass_time(0.0)
    assert near(broker).is_request_queued
    broker.pass_time(0.2)
    assert other.lost and booked.used == 0
    broker.stop()


def test_long_requests_of_strangers_are_bounded_together() -> None:
    """A flood of them, each as long as a login may be, keeps no more memory than a few."""
    broker = started()
    many = [client(broker) for _ in range(70)]
    for each in many:
        for piece in (500_000).to_bytes(4, "big") + bytes(33_000), bytes(450_000):
            each.transport.write(piece)
            broker.pass_time(0.0)
    booked = near(broker).listener.request_bytes
    held = [each for each in of_clients(broker).connections if each.frames.pending]
    assert STRANGERS_LIMIT <= booked.strangers.used <= STRANGERS_LIMIT + 500_000
    assert len(held) == 70 and booked.used == 0
    one = client(broker)  # a login as long as a token of OAUTHBEARER waits until they are ended
    header = encode_request_header(RequestHeader(18, 3, 1, "x" * 32_767))
    frame = framed(header + encode(ApiVersionsRequest(), 3))
    for piece in (frame[:32_700], frame[32_700:]):
        one.transport.write(piece)
        broker.pass_time(0.0)
    assert not one.data
    broker.pass_time(2.0)
    assert one.data and not one.lost and any(each.lost for each in many)
    for each in many:
        each.transport.abortConnection()
    broker.pass_time(0.0)
    one = client(broker)  # its first long one is over when it begins another, and when it is in
    for _ in range(2):
        for piece in (frame[:32_700], frame[32_700:]):
            one.transport.write(piece)
            broker.pass_time(0.0)
    one.data = b""
    one.handshake()
    one.authenticate()
    assert booked.strangers.used == 0 and one.serves()
    broker.stop()


def test_who_does_not_authenticate_in_time_is_closed() -> None:
    broker = started()
    one, other = client(broker), client(broker)
    other.handshake()
    other.authenticate()
    with capturedLogs() as logs:
        for _ in range(3):
            # an answer with an error: it may come again
            one.ask(ApiVersionsRequest(client_software_name="", client_software_version=""), 3)
            assert not one.lost
            broker.pass_time(10.0)
        assert one.lost
    (line,) = lines(logs, "not authenticated within 30 s")
    assert "listener=CLIENTS" in line
    broker.pass_time(60.0)
    many = [client(broker) for _ in range(MOST_LINES + 5)]
    with capturedLogs() as logs:
        broker.pass_time(30.0)
    assert all(each.lost for each in many)
    assert len(lines(logs, "not authenticated within 30 s")) == 3  # a reason of an address
    assert other.serves()
    broker.stop()


def test_no_timer_stays_behind(shared: MemoryBroker) -> None:
    ended = client(shared), client(shared), client(shared)
    sides = list(near(shared).listener.connections)[-3:]
    ended[0].handshake()
    ended[0].authenticate()
    ended[1].handshake()
    ended[1].authenticate(BAD)
    ended[2].transport.abortConnection()
    shared.pass_time(0.0)
    assert [side.sasl._timer for side in sides] == [None, None, None]


def test_strangers_cost_nobody_a_quota() -> None:
    broker = started()
    entity = [QuotaEntityData(entity_type="user", entity_name=None)]
    operation = OpData(key="request_percentage", value=0.000_001, remove=False)
    entry = AlteredEntry(entity=entity, ops=[operation])
    broker.ask(AlterClientQuotasRequest(entries=[entry]), 1)
    broker.pass_time(1.0)
    quotas = of_clients(broker).dispatch.quotas
    assert quotas.active
    before = len(quotas.request)
    one = client(broker)
    one.ask(ApiVersionsRequest(), 0)
    one.data = b""
    one.handshake()
    one.authenticate()
    assert len(quotas.request) == before and not near(broker).throttled
    one.serves()
    assert len(quotas.request) == before + 1
    broker.stop()


def test_lines_of_strangers_are_bounded() -> None:
    broker = started()
    with capturedLogs() as logs:
        for _ in range(MOST_LINES):
            assert not client(broker).serves()
            one = client(broker)
            one.transport.write(framed(b"\0"))
            broker.pass_time(0.0)
            assert one.lost
    found = [*lines(logs, "before authentication"), *lines(logs, "too short")]
    assert len(found) == 2 * 3 and not lines(logs, "closing the connection")
    remedy = "listener CLIENTS is SASL_PLAINTEXT: set the client's security.protocol=SASL_PLAINTEXT"
    assert all(remedy in line for line in found)
    with capturedLogs() as logs:
        broker.pass_time(60.0)
    more = lines(logs, "more in that minute")
    assert len(more) == 2 and all(line.endswith(f" count={MOST_LINES - 3}") for line in more)
    broker.stop()


# our side


def connection(broker: MemoryBroker, password: str = "alice-secret") -> BrokerConnection:
    config = BrokerConfig(SETTINGS).listener_config("CLIENTS")
    inner = PlainConnector(config=config)
    connector = SaslConnector(
        inner, lambda nonce: PlainClient("alice", password), broker.clock, "me"
    )
    return BrokerConnection(broker.runtime, "127.0.0.1", PORT, "me", connector=connector)


def test_our_side_is_authenticated_before_its_first_request(shared: MemoryBroker) -> None:
    ours = connection(shared)
    answer = shared.run(ours.send(MetadataRequest(topics=[]), 4))
    assert answer.brokers and str(near(shared).principal) == "User:alice"
    ours.close()


def test_our_side_without_a_token_is_one_line(shared: MemoryBroker) -> None:
    """It fails before it says anything."""

    def login(nonce: str) -> Any:
        raise SaslFailure("there is no access token")

    inner = PlainConnector(config=BrokerConfig(SETTINGS).listener_config("CLIENTS"))
    connector = SaslConnector(inner, login, shared.clock, "me")
    ours = BrokerConnection(shared.runtime, "127.0.0.1", PORT, "me", connector=connector)
    with capturedLogs() as logs, pytest.raises(ConnectError, match="no access token"):
        shared.run(ours.send(MetadataRequest(topics=[]), 4))
    (line,) = lines(logs, "authentication to another node failed")
    assert "see=listener.name.clients.oauthbearer.sasl.oauthbearer.token.endpoint.url" in line
    ours.close()


def test_our_side_is_refused_in_one_line(shared: MemoryBroker) -> None:
    ours = connection(shared, "wrong-secret")
    with capturedLogs() as logs, pytest.raises(ConnectError, match="wrong user name or password"):
        shared.run(ours.send(MetadataRequest(topics=[]), 4))
    (line,) = lines(logs, "authentication to another node failed")
    assert "see=listener.name.clients.plain.sasl.jaas.config" in line
    assert "sasl.jaas.config" in line and "127.0.0.1:9094" in line
    assert not lines(logs, "secret")
    assert not ours.connected


def test_a_node_that_does_not_answer(shared: MemoryBroker) -> None:
    """It takes no longer than any connection. It may be cut off: no line names a password."""
    shared.network.listen("127.0.0.1", 7777, ClientFactory.forProtocol(Far))
    ours = connection(shared)
    ours.port = 7777
    with capturedLogs() as logs, pytest.raises(TimeoutError):
        shared.run(ours.send(MetadataRequest(topics=[]), 4), seconds=11)
    assert not lines(logs, "authentication to another node failed")


def test_a_connection_that_is_given_up_while_it_authenticates_is_closed(
    shared: MemoryBroker,
) -> None:
    """A leader that moved, a fetcher that ends: nobody else would ever close it on our side."""
    made: list[Any] = []

    class Silent(Far):
        def connectionMade(self) -> None:
            super().connectionMade()
            made.append(self)

    shared.network.listen("127.0.0.1", 7778, ClientFactory.forProtocol(Silent))
    ours = connection(shared)
    ours.port = 7778
    ended: list[Any] = []
    ours.send(MetadataRequest(topics=[]), 4).addBoth(ended.append)
    shared.pass_time(0.0)
    (far,) = made
    assert not ended and not far.lost
    timers = len(shared.clock.getDelayedCalls())
    with capturedLogs() as logs:
        ours.close()
        shared.pass_time(0.0)
    assert far.lost and ended[0].check(ConnectionClosed)
    assert len(shared.clock.getDelayedCalls()) == timers - 1
    assert not lines(logs, "authentication to another node failed")


def test_our_side_authenticates_again() -> None:
    """Before the session ends, and when it was idle for longer; requests wait for it in order."""
    key = "listener.name.clients.plain.connections.max.reauth.ms"
    broker = started(**{key: "5000"})
    ours = connection(broker)
    for seconds in (0.0, 4.0, 1.0, 3.9, 20.0):
        broker.pass_time(seconds)
        first, second = (ours.send(MetadataRequest(topics=[]), 4) for _ in range(2))
        assert broker.run(first).brokers and broker.run(second).brokers
    (factory,) = [each for each in broker.broker.sockets.factories if each.sasl is not None]
    assert factory.sasl.successes == 3 and ours.answers == 10
    assert factory.created == 1
    broker.stop()


def test_what_waits_for_an_authentication_fails_with_it() -> None:
    key = "listener.name.clients.plain.connections.max.reauth.ms"
    broker = started(**{key: "5000"})
    ours = connection(broker)
    broker.run(ours.send(MetadataRequest(topics=[]), 4))
    broker.pass_time(4.9)
    (listener,) = [each.sasl for each in broker.broker.sockets.factories if each.sasl is not None]
    users: Any = listener.settings.users
    users["alice"] = "new"
    with pytest.raises(ConnectionClosed):
        broker.run(ours.send(MetadataRequest(topics=[]), 4))
    assert not ours.connected and not ours.in_flight
    broker.stop()


# settings


def config(**more: str) -> Any:
    values = SETTINGS | {name.replace("_", "."): value for name, value in more.items()}
    return BrokerConfig(values).listener_config("CLIENTS")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("sasl.enabled.mechanisms", "GSSAPI", "Kerberos"),
        ("sasl.enabled.mechanisms", "", "PLAIN"),
        ("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-1", "SCRAM-SHA-1"),
        ("listener.name.clients.plain.sasl.jaas.config", "", "PlainLoginModule required"),
        (
            "listener.name.clients.plain.sasl.jaas.config",
            f'{jaas.PLAIN} required username="top-secret";',
            "user_NAME",
        ),
        (
            "listener.name.clients.plain.sasl.jaas.config",
            'com.sun.security.auth.module.JndiLoginModule required x="top-secret";',
            "one of the login modules",
        ),
        (
            "listener.name.clients.plain.sasl.jaas.config",
            f'{jaas.SCRAM} required user_x="top-secret";',
            "login module of PLAIN",
        ),
        ("sasl.enabled.mechanisms", "OAUTHBEARER", "jwks.endpoint.url"),
        (
            "listener.name.clients.plain.sasl.server.callback.handler.class",
            "com.example.Mine",
            "no class is ever loaded",
        ),
    ],
)
def test_settings_that_are_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        server_settings(config(**{name: value}))
    assert "top-secret" not in str(refused.value)


def test_no_settings_show_a_password() -> None:
    assert "secret" not in repr(server_settings(config()))


def test_our_own_credentials() -> None:
    assert client_login(config(**{SASL_TO_BROKERS: "PLAIN"}), SASL_TO_BROKERS)("n").first() == GOOD
    with pytest.raises(ConfigError, match="Kerberos"):
        client_login(config(), SASL_TO_BROKERS)
    with pytest.raises(ConfigError, match=r"PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"):
        client_login(config(**{SASL_TO_BROKERS: "SCRAM-SHA-1"}), SASL_TO_BROKERS)
    with pytest.raises(ConfigError, match="ScramLoginModule"):
        client_login(config(**{SASL_TO_BROKERS: "SCRAM-SHA-256"}), SASL_TO_BROKERS)
    key = "listener.name.clients.scram-sha-256.sasl.jaas.config"
    line = f'{jaas.SCRAM} required username="a";'
    with pytest.raises(ConfigError, match="password="):
        client_login(config(**{SASL_TO_BROKERS: "SCRAM-SHA-256", key: line}), SASL_TO_BROKERS)


def test_a_node_logs_in_by_a_delegation_token() -> None:
    key = "listener.name.clients.scram-sha-256.sasl.jaas.config"
    for option, expected in (("true", b"n,,n=id,r=n,tokenauth=true"), ("false", b"n,,n=id,r=n")):
        line = f'{jaas.SCRAM} required username="id" password="hmac" tokenauth="{option}";'
        ours = client_login(
            config(**{SASL_TO_BROKERS: "SCRAM-SHA-256", key: line}), SASL_TO_BROKERS
        )
        assert ours("n").first() == expected


# hostile input


@pytest.mark.parametrize("after_handshake", [False, True])
def test_no_api_is_served_before_authentication(
    shared: MemoryBroker, after_handshake: bool
) -> None:
    """RELIABILITY 5.3: every API at its lowest and highest version."""
    served = 0
    for route in ROUTES:
        if route.api_key in ((36,) if after_handshake else (17, 18)):
            continue
        for version in {max(route.broker.min, 0), max(route.broker.max, 0)}:
            one = client(shared)
            if after_handshake:
                one.handshake()
            one.transport.write(
                framed(route.api_key.to_bytes(2, "big") + bytes([0, version, 0, 0]))
            )
            shared.pass_time(0.0)
            assert one.lost and not one.data, route.name
            served += 1
    assert served > 60


HANDSHAKES = [framed(b"\0\x11\0" + bytes([v]) + b"\0\0\0\1\xff\xff\0\5PLAIN") for v in (0, 1)]
PIECES = st.sampled_from(
    [
        *HANDSHAKES,
        framed(b"\0\x11\0\1\0\0\0\1\xff\xff\0\6GSSAPI"),
        framed(b"\0\x12\0\0\0\0\0\1\xff\xff"),
        framed(b"\0\x24\0\0\0\0\0\1\xff\xff\0\0\0\5" + BAD[:5]),
        framed(b"\0\x24\0\0\0\0\0\1\xff\xff" + len(BAD).to_bytes(4, "big") + BAD),
        framed(BAD),
        framed(b""),
        framed(b"\0"),
        b"\xff\xff\xff\xff",
        b"\0\0\0",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(PIECES | st.binary(max_size=40), max_size=8), st.booleans())
def test_any_bytes_in_any_order_let_nobody_in(pieces: list[bytes], at_once: bool) -> None:
    """And none of them is an error of ours."""
    broker = any_order()
    one = client(broker)
    side = near(broker)
    with capturedLogs() as logs:
        for piece in [b"".join(pieces)] if at_once else pieces:
            one.transport.write(piece)
            broker.pass_time(0.0)
        broker.pass_time(1.0)
        assert str(side.principal) == "User:ANONYMOUS"
        assert not one.serves()
    assert not lines(logs, "Traceback") and not lines(logs, "failed\n")
    assert not any(event.get("log_failure") for event in logs)
    one.transport.abortConnection()
    broker.pass_time(0.0)


@cache
def any_order() -> MemoryBroker:
    return started()
