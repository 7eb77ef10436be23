"""Delegation tokens on a whole broker in memory: who may have one, the login by it, its end."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.error import ConnectError
from twisted.logger import capturedLogs, formatEvent

from tests.api.test_acls import AUTHORIZER, created
from tests.cluster.test_acl_changes import creation
from tests.compare.side import built
from tests.memory_broker import MemoryBroker
from twisted_broker.api.context import BrokerParts, ListenerName, RequestContext
from twisted_broker.api.tokens import may_request
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.net.client import BrokerConnection
from twisted_broker.net.connector import PlainConnector
from twisted_broker.net.sasl_connector import SaslConnector
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.security.principal import ANONYMOUS, Principal, TokenPrincipal
from twisted_broker.security.sasl import jaas
from twisted_broker.security.sasl.plain import PlainClient
from twisted_broker.security.sasl.scram import SHA_256, ScramClient
from twisted_broker.security.security_protocol import SecurityProtocol
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import tokens
from twisted_broker.wire.messages.metadata import MetadataRequest

PORT = 9094
SECRET = "the-secret-of-the-cluster"
USERS = ("alice", "bob", "carol")
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093,"
    f"CLIENTS://127.0.0.1:{PORT}",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
    "CLIENTS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.clients.plain.sasl.jaas.config": f"{jaas.PLAIN} required "
    + " ".join(f'user_{each}="{each}-secret"' for each in USERS)
    + ";",
    "delegation.token.secret.key": SECRET,
    "delegation.token.expiry.time.ms": "600000",
    "delegation.token.max.lifetime.ms": "1200000",
    "delegation.token.expiry.check.interval.ms": "60000",
    "authorizer.class.name": AUTHORIZER,
    "super.users": "User:ANONYMOUS",
}
CODES = ErrorCode


class TokenBroker(MemoryBroker):
    """Asks as a user of PLAIN, or by a token."""

    def connect(self, user: str = "alice", hmac: bytes | None = None) -> BrokerConnection:
        def login(nonce: str) -> Any:
            if hmac is None:
                return PlainClient(user, f"{user}-secret")
            return ScramClient(
                SHA_256, user, b64encode(hmac).decode(), nonce, token_authenticated=True
            )

        inner = PlainConnector(config=BrokerConfig(SETTINGS).listener_config("CLIENTS"))
        connector = SaslConnector(inner, login, self.clock, "me")
        return BrokerConnection(self.runtime, "127.0.0.1", PORT, "me", connector=connector)

    def asked(self, api: str, user: str = "alice", hmac: bytes | None = None, **more: Any) -> Any:
        cls = getattr(tokens, f"{api}DelegationTokenRequest")
        version = 3 if api in ("Create", "Describe") else 2
        connection = self.connect(user, hmac)
        try:
            return self.run(connection.send(built(cls, version, more), version))
        finally:
            connection.close()

    def token(self, user: str = "alice", *renewers: str, owner: str | None = None) -> Any:
        answer = self.asked("Create", user, **wanted(*renewers, owner=owner))
        self.pass_time(1)  # the broker has read it
        return answer

    def described(self, user: str = "alice", owners: Any = None) -> set[str]:
        answer = self.asked("Describe", user, owners=owners)
        assert not answer.error_code
        return {each.token_id for each in answer.tokens}


def wanted(*renewers: str, owner: str | None = None) -> dict[str, Any]:
    return {
        "owner_principal_type": None if owner is None else "User",
        "owner_principal_name": owner,
        "renewers": [{"principal_type": "User", "principal_name": each} for each in renewers],
        "max_lifetime_ms": -1,
    }


def started(files: Any = None, **more: str) -> TokenBroker:
    made = TokenBroker(files, **(SETTINGS | more))
    made.start()
    return made


@pytest.fixture(scope="module")
def broker() -> Iterator[TokenBroker]:
    made = started()
    yield made
    made.stop()


def test_a_token_is_a_login_that_is_handed_on(broker: TokenBroker, lines: list[str]) -> None:
    token = broker.token("alice", "bob")
    assert token.error_code == 0 and len(token.token_id) == 22 and len(token.hmac) == 64
    requester = (token.token_requester_principal_type, token.token_requester_principal_name)
    assert (token.principal_type, token.principal_name) == requester == ("User", "alice")
    assert token.expiry_timestamp_ms - token.issue_timestamp_ms == 600_000
    assert token.max_timestamp_ms - token.issue_timestamp_ms == 1_200_000
    (line,) = lines
    assert "audit delegation token created node=1 principal=User:alice" in line
    assert f"token={token.token_id} owner=User:alice" in line

    line_by_token = broker.connect(token.token_id, token.hmac)
    with capturedLogs() as logs:
        answer = broker.run(line_by_token.send(MetadataRequest(topics=[]), 4))
    assert answer.brokers
    (listener,) = [each for each in broker.broker.sockets.factories if each.name == "CLIENTS"]
    near: Any = list(listener.connections)[-1]
    assert str(near.principal) == "User:alice" and near.principal.token_authenticated
    ends = near.sasl.authenticator._expires_ms - broker.runtime.now_ms()
    assert 590_000 < ends <= 600_000  # the session ends with the token
    line_by_token.close()
    text = "".join(map(formatEvent, logs)) + "".join(lines)
    assert SECRET not in text and b64encode(token.hmac).decode() not in text

    with pytest.raises(ConnectError), capturedLogs() as logs:
        broker.run(broker.connect(token.token_id, b"x" * 64).send(MetadataRequest(), 4))
    assert any("the HMAC is wrong" in formatEvent(each) for each in logs)


def test_who_came_by_a_token_gets_no_further(broker: TokenBroker) -> None:
    """By any of the four: a token would be renewed for ever, or make others."""
    token = broker.token()
    token_authenticated = {"user": token.token_id, "hmac": token.hmac}
    refused = CODES.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    answer = broker.asked("Create", **token_authenticated, **wanted())
    assert (answer.error_code, answer.issue_timestamp_ms, answer.hmac) == (refused, -1, b"")
    assert broker.asked("Describe", **token_authenticated, owners=None).error_code == refused
    connection = broker.connect(token.token_id, token.hmac)
    for cls, name in (
        (tokens.RenewDelegationTokenRequest, "renew_period_ms"),
        (tokens.ExpireDelegationTokenRequest, "expiry_time_period_ms"),
    ):
        answer = broker.run(connection.send(cls(**{"hmac": token.hmac, name: -1}), 2))
        assert (answer.error_code, answer.expiry_timestamp_ms) == (refused, -1)
    connection.close()


def test_without_authentication_nobody_has_a_token(broker: TokenBroker) -> None:
    request = tokens.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
    for port in (9092, 9093):
        answer = broker.ask(request, 3, port)
        assert answer.error_code == CODES.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert answer.principal_name == "ANONYMOUS"


@pytest.mark.parametrize(
    ("protocol", "principal", "may"),
    [
        (SecurityProtocol.PLAINTEXT, Principal("User", "alice"), False),
        (SecurityProtocol.SSL, ANONYMOUS, False),
        (SecurityProtocol.SSL, Principal("User", "CN=alice"), True),
        (SecurityProtocol.SASL_PLAINTEXT, Principal("User", "alice"), True),
        (SecurityProtocol.SASL_SSL, Principal("User", "alice"), True),
        (SecurityProtocol.SASL_SSL, TokenPrincipal("User", "alice"), False),
    ],
)
def test_which_connections_may(
    broker: TokenBroker, protocol: Any, principal: Any, may: bool
) -> None:
    parts: BrokerParts = broker.broker.parts
    where = ListenerName("L", False, protocol)
    context = RequestContext(parts, where, 38, 3, 1, "c", principal=principal)
    assert may_request(context) is may


def test_for_another_it_needs_a_permission(broker: TokenBroker, lines: list[str]) -> None:
    answer = broker.token("carol", owner="alice")
    assert answer.error_code == CODES.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert "operation=CREATE_TOKENS resource=USER count=1 names=User:alice" in lines[-1]
    granted = creation(
        "User:alice",
        resource_type=int(ResourceType.USER),
        operation=int(Operation.CREATE_TOKENS),
        principal="User:carol",
    )
    assert created(broker, granted) == [0]
    answer = broker.token("carol", owner="alice")
    assert answer.error_code == 0
    assert (answer.principal_name, answer.token_requester_principal_name) == ("alice", "carol")


def test_who_sees_a_token(broker: TokenBroker) -> None:
    """Owner, requester, renewers; others by one of two permissions; of the owners requested."""
    token = broker.token("bob", "carol").token_id
    assert token in broker.described("bob") & broker.described("carol")
    assert token not in broker.described("alice")
    alice = {"principal_type": "User", "principal_name": "alice"}
    assert token not in broker.described("bob", [alice])
    assert token in broker.described("bob", [alice, {**alice, "principal_name": "carol"}])
    assert broker.described("bob", []) == set()
    by_owner = creation(
        "User:bob",
        resource_type=int(ResourceType.USER),
        operation=int(Operation.DESCRIBE_TOKENS),
        principal="User:alice",
    )
    assert created(broker, by_owner) == [0]
    assert token in broker.described("alice")


def test_renewed_and_ended(broker: TokenBroker, lines: list[str]) -> None:
    token = broker.token("alice", "bob")
    broker.pass_time(10)
    connections = {each: broker.connect(each) for each in ("alice", "bob", "carol")}

    def ask(user: str, cls: Any, **more: Any) -> Any:
        return broker.run(connections[user].send(cls(hmac=token.hmac, **more), 2))

    renew, expire = tokens.RenewDelegationTokenRequest, tokens.ExpireDelegationTokenRequest
    answer = ask("carol", renew, renew_period_ms=-1)
    assert answer.error_code == CODES.DELEGATION_TOKEN_OWNER_MISMATCH
    answer = ask("bob", renew, renew_period_ms=-1)
    assert answer.error_code == 0
    assert answer.expiry_timestamp_ms >= token.expiry_timestamp_ms + 10_000
    answer = ask("alice", expire, expiry_time_period_ms=-1)
    assert answer.error_code == 0
    assert [line.split(" node=")[0] for line in lines[-2:]] == [
        "audit delegation token expiry set",
        "audit delegation token removed",
    ]
    answer = ask("alice", expire, expiry_time_period_ms=-1)
    assert answer.error_code == CODES.DELEGATION_TOKEN_NOT_FOUND
    for each in connections.values():
        each.close()
    broker.pass_time(1)
    with pytest.raises(ConnectError):
        broker.run(broker.connect(token.token_id, token.hmac).send(MetadataRequest(), 4))


def test_what_expired_is_refused_at_once_and_removed_later() -> None:
    """Also after a restart; a token that holds is still there."""
    broker = started()
    token = broker.token()
    broker.stop()
    broker = started(broker.files)
    broker.run(broker.connect(token.token_id, token.hmac).send(MetadataRequest(topics=[]), 4))
    connection = broker.connect()
    request = tokens.ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=5_000)
    assert broker.run(connection.send(request, 2)).error_code == 0
    connection.close()
    broker.pass_time(6)
    controller = broker.broker._controller
    assert controller is not None and token.token_id in controller.image.tokens
    with pytest.raises(ConnectError):
        broker.run(broker.connect(token.token_id, token.hmac).send(MetadataRequest(), 4))
    broker.pass_time(61)
    assert not controller.image.tokens and not broker.described()
    broker.stop()


def test_without_the_secret_there_are_no_tokens() -> None:
    broker = started(**{"delegation.token.secret.key": ""})
    answer = broker.token()
    assert (answer.error_code, answer.issue_timestamp_ms) == (
        CODES.DELEGATION_TOKEN_AUTH_DISABLED,
        0,
    )
    answer = broker.asked("Describe", owners=None)
    assert answer.error_code == CODES.DELEGATION_TOKEN_AUTH_DISABLED
    broker.stop()
