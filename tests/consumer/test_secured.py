"""A consumer and its cluster over TLS and SASL, in memory: who comes in, and the one line that
names the property where nobody does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.error import ConnectError
from twisted.logger import capturedLogs, formatEvent

from tests.memory_broker import MemoryBroker
from tests.security import certificates
from twisted_broker.consumer import AuthenticationFailed, InvalidSetting, SimpleConsumer
from twisted_broker.consumer.cluster_client import ClusterClient
from twisted_broker.consumer.consumer_config import ConsumerConfig
from twisted_broker.consumer.errors import BrokersUnreachable
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.net.client_connector import _token_bytes
from twisted_broker.security.client_security import ClientSecurity
from twisted_broker.security.sasl import jaas
from twisted_broker.security.sasl.errors import SaslFailure

PLAIN, TLS, SASL, BOTH, NAMED = 9092, 9094, 9095, 9096, 9097
LISTENERS = {
    "listeners": f"PLAINTEXT://127.0.0.1:{PLAIN},CONTROLLER://127.0.0.1:9093,"
    f"TLS://127.0.0.1:{TLS},SASL://127.0.0.1:{SASL},BOTH://127.0.0.1:{BOTH},"
    f"NAMED://127.0.0.1:{NAMED}",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,"
    "SASL:SASL_PLAINTEXT,BOTH:SASL_SSL,NAMED:SSL",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.named.ssl.keystore.location": "/tls/named-broker.pem",
}
USERS = f'{jaas.PLAIN} required user_alice="alice-secret";'
SCRAM = f'{jaas.SCRAM} required username="alice" password="alice-secret";'
TRUST = {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/tls/ca.pem"}
PASSWORD = {"sasl.username": "alice", "sasl.password": "alice-secret"}
NEVER = ("alice-secret", "wrong-secret")


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    files = MemoryFileSystem()
    files.make_directories("/tls")
    for name, directory in (("", "first"), ("other-", "other"), ("named-", "named")):
        hosts = ("elsewhere",) if directory == "named" else ("127.0.0.1", "localhost")
        for path in certificates.made(directory, hosts).iterdir():
            put(files, f"/tls/{name}{path.name}", path.read_bytes())
    put(files, "/tls/token", b"no.token\n")
    settings = LISTENERS | certificates.settings(Path("/tls"))
    for listener in ("sasl", "both"):
        settings[f"listener.name.{listener}.plain.sasl.jaas.config"] = USERS
    made = MemoryBroker(files, **settings).start()
    add_user(made)
    yield made
    made.stop()


def put(files: MemoryFileSystem, path: str, data: bytes) -> None:
    file = files.open(path, create=True)
    file.write_at(0, [data])
    file.close()


def content(files: MemoryFileSystem, path: str) -> bytes:
    file = files.open(path, read_only=True)
    return file.read_at(0, file.size())


def add_user(broker: MemoryBroker) -> None:
    """alice, for both hashes."""
    from twisted_broker.security.sasl.scram import MECHANISMS, salted_password
    from twisted_broker.wire.messages import sasl

    for number, name in ((1, "SCRAM-SHA-256"), (2, "SCRAM-SHA-512")):
        wanted = sasl.ScramCredentialUpsertion(
            name="alice",
            mechanism=number,
            iterations=4096,
            salt=b"salt",
            salted_password=salted_password(MECHANISMS[name], "alice-secret", b"salt", 4096),
        )
        request = sasl.AlterUserScramCredentialsRequest(deletions=[], upsertions=[wanted])
        assert not broker.ask(request, 0).results[0].error_code
    broker.pass_time(1)


def client(broker: MemoryBroker, port: int, host: str = "127.0.0.1", **more: Any) -> ClusterClient:
    settings = {"bootstrap.servers": f"{host}:{port}"}
    settings |= {name.replace("_", "."): value for name, value in more.items()}
    return ClusterClient(broker.runtime, ConsumerConfig(settings))


def of(protocol: str, mechanism: str = "", **more: str) -> dict[str, str]:
    found = {"security.protocol": protocol, **more}
    if "SSL" in protocol.upper():
        found = TRUST | found
    if mechanism:
        found["sasl.mechanism"] = mechanism
    return found


@pytest.mark.parametrize(
    ("port", "settings"),
    [
        (TLS, of("SSL")),
        (TLS, of("ssl")),
        (SASL, of("SASL_PLAINTEXT", "PLAIN") | PASSWORD),
        (SASL, of("SASL_PLAINTEXT", "SCRAM-SHA-256") | {"sasl.jaas.config": SCRAM}),
        (BOTH, of("SASL_SSL", "SCRAM-SHA-512") | PASSWORD),
        (BOTH, of("SASL_SSL", "PLAIN") | PASSWORD),
    ],
)
def test_whoever_has_what_the_listener_wants_comes_in(
    broker: MemoryBroker, port: int, settings: dict[str, str]
) -> None:
    made = client(broker, port, **settings)
    found = broker.run(made.metadata([]))
    # The brokers of the metadata are those of the same listener.
    assert {each.port for each in found.brokers.values()} == {port}
    made.close()


WRONG_PASSWORD = PASSWORD | {"sasl.password": "wrong-secret"}


@pytest.mark.parametrize(
    ("port", "settings", "words"),
    [
        (
            SASL,
            of("SASL_PLAINTEXT", "PLAIN") | WRONG_PASSWORD,
            ["127.0.0.1:9095: authentication failed: ", "; look at sasl.username"],
        ),
        (
            BOTH,
            of("SASL_SSL", "SCRAM-SHA-256")
            | {"sasl.jaas.config": SCRAM.replace("alice-secret", "wrong-secret")},
            ["authentication failed: ", "; look at sasl.jaas.config"],
        ),
        (
            SASL,
            of("SASL_PLAINTEXT", "OAUTHBEARER")
            | {"sasl.oauthbearer.token.endpoint.url": "file:///tls/token"},
            ["does not offer OAUTHBEARER, but PLAIN, SCRAM-SHA-256", "; look at sasl.mechanism"],
        ),
        (
            PLAIN,
            of("SASL_PLAINTEXT", "PLAIN") | PASSWORD,
            ["this listener has no SASL: look at security.protocol=SASL_PLAINTEXT"],
        ),
        (
            TLS,
            of("SASL_PLAINTEXT", "PLAIN") | PASSWORD,
            ["does this listener speak SASL_PLAINTEXT? Look at security.protocol"],
        ),
        (
            TLS,
            of("SSL") | {"ssl.truststore.location": "/tls/other-ca.pem"},
            [
                "no TLS connection: its certificate is refused: its authority is not in the trust ",
                "; set ssl.truststore.location to the authority of the broker's certificate",
            ],
        ),
        (
            PLAIN,
            of("SSL"),
            ["during the handshake: does it speak TLS?", "; look at security.protocol"],
        ),
        (
            SASL,
            of("SSL"),
            ["during the handshake: does it speak TLS?", "; look at security.protocol"],
        ),
    ],
)
def test_whoever_has_not_is_told_the_setting_in_one_line(
    broker: MemoryBroker, port: int, settings: dict[str, str], words: list[str]
) -> None:
    made = client(broker, port, **settings)
    with pytest.raises(AuthenticationFailed) as refused:
        broker.run(made.metadata([]))
    line = str(refused.value)
    for part in words:
        assert part in line
    assert "\n" not in line and not any(secret in line for secret in NEVER)
    made.close()


@pytest.mark.parametrize(
    ("port", "settings"), [(TLS, {}), (SASL, {}), (BOTH, {}), (BOTH, of("SSL"))]
)
def test_whoever_says_too_little_sees_which_protocol_was_spoken(
    broker: MemoryBroker, port: int, settings: dict[str, str]
) -> None:
    """A listener with TLS or SASL closes a connection that speaks without: no more can be known."""
    made = client(broker, port, **settings)
    with pytest.raises(BrokersUnreachable) as refused:
        broker.run(made.metadata([]))
    protocol = settings.get("security.protocol", "PLAINTEXT")
    assert f"(does this listener speak {protocol}? Look at security.protocol)" in str(refused.value)
    made.close()


def test_a_broker_that_is_gone_is_no_matter_of_security(broker: MemoryBroker) -> None:
    made = client(broker, 9999, **of("SASL_SSL", "PLAIN"), **PASSWORD)
    with pytest.raises(BrokersUnreachable) as refused:
        broker.run(made.metadata([]))
    assert not isinstance(refused.value, AuthenticationFailed)
    assert "security.protocol" not in str(refused.value)
    made.close()


def test_a_certificate_for_another_name(broker: MemoryBroker) -> None:
    """One line with its names and how to accept any; with that setting it is accepted."""
    settings = of("SSL") | {"ssl.truststore.location": "/tls/named-ca.pem"}
    made = client(broker, NAMED, **settings)
    with pytest.raises(AuthenticationFailed) as refused:
        broker.run(made.metadata([]))
    line = str(refused.value)
    assert "its certificate is not for 127.0.0.1, but for elsewhere" in line
    assert line.endswith("or set ssl.endpoint.identification.algorithm= (empty) to accept any")
    made.close()
    made = client(broker, NAMED, **settings, **{"ssl.endpoint.identification.algorithm": ""})
    assert broker.run(made.metadata([])).brokers
    made.close()


def test_a_renewed_trust_store_counts_for_the_next_connection(broker: MemoryBroker) -> None:
    """A program that runs for months is not started again for it."""
    first, other = (content(broker.files, f"/tls/{name}ca.pem") for name in ("", "other-"))
    put(broker.files, "/tls/mine.pem", other)
    made = client(broker, TLS, **of("SSL", **{"ssl.truststore.location": "/tls/mine.pem"}))
    with pytest.raises(AuthenticationFailed):
        broker.run(made.metadata([]))
    broker.files.remove("/tls/mine.pem")
    put(broker.files, "/tls/mine.pem", first)
    broker.files.set_modified_ms("/tls/mine.pem", 9)
    with capturedLogs() as logs:
        assert broker.run(made.metadata([])).brokers
    assert [formatEvent(each) for each in logs] == ["this client: new keys and certificates"]
    made.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"security.protocol": "TLS"}, "security.protocol='TLS' is refused: it takes one of"),
        ({"security.protocl": "SSL"}, "did you mean security.protocol?"),
        ({"ssl.truststore.locaton": "x"}, "did you mean ssl.truststore.location?"),
        ({"ssl.provider": "x"}, ""),
        (of("SSL", **{"ssl.truststore.location": "/none"}), "ssl.truststore.location='/none'"),
        (of("SSL", **{"ssl.keystore.location": "/none"}), "ssl.keystore.location='/none'"),
        (of("SASL_SSL"), "Kerberos (GSSAPI, Kafka's default) is not supported; set PLAIN, SCRAM"),
        (of("SASL_SSL", "MD5"), "sasl.mechanism='MD5' is refused"),
        (of("SASL_SSL", "PLAIN"), "sasl.jaas.config='' is refused: it takes org.apache.kafka"),
        (
            of("SASL_SSL", "PLAIN") | {"sasl.jaas.config": SCRAM},
            "PlainLoginModule, the login module of PLAIN",
        ),
        (
            of("SASL_SSL", "PLAIN") | {"sasl.jaas.config": SCRAM[:-1]},
            "sasl.jaas.config='[hidden]' is refused: it takes one login module, and a semicolon",
        ),
        (
            of("SASL_SSL", "PLAIN") | PASSWORD | {"sasl.jaas.config": USERS},
            "no value where sasl.username is set",
        ),
        (of("SASL_SSL", "PLAIN") | {"sasl.username": "alice"}, "sasl.password='' is refused"),
        (of("SASL_SSL", "OAUTHBEARER"), "sasl.oauthbearer.token.endpoint.url=None is refused"),
        (
            of("SASL_SSL", "PLAIN") | PASSWORD | {"sasl.login.class": "a.B"},
            "no class is ever loaded by its name",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_sent(
    broker: MemoryBroker, settings: dict[str, str], words: str
) -> None:
    if not words:
        client(broker, PLAIN, **settings).close()
        return
    with pytest.raises(InvalidSetting) as refused:
        client(broker, PLAIN, **settings)
    line = str(refused.value)
    assert words in line and "\n" not in line and not any(each in line for each in NEVER)


@pytest.mark.parametrize("token_authenticated", [False, True])
def test_a_delegation_token_says_that_it_is_one(token_authenticated: bool) -> None:
    """As in a Java client's JAAS line: without the extension a broker looks for a user."""
    line = SCRAM.replace(";", ' tokenauth="true";') if token_authenticated else SCRAM
    made = ClientSecurity(of("SASL_PLAINTEXT", "SCRAM-SHA-256") | {"sasl.jaas.config": line})
    first = made.login(lambda path: b"")("nonce").first()
    assert first.endswith(b",tokenauth=true" if token_authenticated else b",r=nonce")


def test_no_repr_shows_a_secret() -> None:
    config = ConsumerConfig(
        {"bootstrap.servers": "h:1"} | of("SASL_SSL", "SCRAM-SHA-256") | PASSWORD
    )
    assert "sasl.password" in repr(config.security) and "alice-secret" not in repr(config.security)


def test_a_token_in_no_regular_file_is_refused(tmp_path: Path) -> None:
    """To open a FIFO would hold the reactor until somebody writes it."""
    os.mkfifo(tmp_path / "fifo")
    security = ClientSecurity(
        of("SASL_PLAINTEXT", "OAUTHBEARER")
        | {"sasl.oauthbearer.token.endpoint.url": (tmp_path / "fifo").as_uri()}
    )
    login = security.login(lambda path: _token_bytes(OsFileSystem(), path))
    with pytest.raises(SaslFailure, match="no regular file"):
        login("nonce").first()


def test_a_token_is_requested_for_each_authentication(broker: MemoryBroker) -> None:
    """A program's tokens run out: each connection has a new one. What the program raises fails
    the connection only.
    """
    asked: list[int] = []

    def token() -> str:
        asked.append(1)
        if len(asked) > 1:
            raise TimeoutError("alice-secret")
        return "a.token"

    settings = of("SASL_PLAINTEXT", "OAUTHBEARER")
    one = SimpleConsumer("127.0.0.1", SASL, "c", broker.runtime, 5000, settings, token)
    for words in ("does not offer OAUTHBEARER", "the program has no token: TimeoutError; look at"):
        with pytest.raises(ConnectError) as refused:
            broker.run(one.topic_metadata([]))
        assert words in str(refused.value) and "alice-secret" not in str(refused.value)
    one.close()


def test_a_simple_consumer(broker: MemoryBroker) -> None:
    settings = of("SASL_SSL", "PLAIN") | PASSWORD
    one = SimpleConsumer("127.0.0.1", BOTH, runtime=broker.runtime, settings=settings)
    assert broker.run(one.topic_metadata([])).brokers
    one.close()
    with pytest.raises(InvalidSetting, match=r"group\.id: this is no setting of TLS or SASL"):
        SimpleConsumer("127.0.0.1", BOTH, runtime=broker.runtime, settings={"group.id": "g"})
