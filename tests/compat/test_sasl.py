"""SASL with stock clients: one broker, and three that authenticate themselves to each other."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import ec
from kafka import KafkaConsumer, KafkaProducer
from twisted.internet.error import ConnectError

from tests.compat.broker_process import BrokerProcess
from tests.compat.cluster_processes import Cluster
from tests.net.echo import framed
from twisted_broker.cli.command_config import run_in_reactor
from twisted_broker.cli.tls import make_certificates
from twisted_broker.consumer import SimpleConsumer
from twisted_broker.interfaces import Runtime
from twisted_broker.wire.header import RequestHeader, encode_request_header
from twisted_broker.wire.messages.sasl import SaslHandshakeRequest
from twisted_broker.wire.schema import encode

pytestmark = pytest.mark.clients

PLAIN, SHA_256, SHA_512 = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"
PASSWORD, SECRET = "admin-password", "alice-password"
SECRETS = (PASSWORD, SECRET, "bob-password", "wrong-password")
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
ADMIN = f'username="admin" password="{PASSWORD}"'
PATIENCE = 60.0
ISSUER, STRANGER = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))


def settings_of(protocol: str = "SASL_PLAINTEXT", mechanism: str = SHA_256) -> dict[str, str]:
    """Of a node that offers all mechanisms, and is `admin` to others."""
    jaas = "sasl.jaas.config"
    return {
        "listener.security.protocol.map": f"CLIENTS:{protocol},CONTROLLER:{protocol}",
        "inter.broker.listener.name": "CLIENTS",
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": f"{PLAIN},{SHA_256},{SHA_512}",
        "sasl.mechanism.inter.broker.protocol": mechanism,
        "sasl.mechanism.controller.protocol": mechanism,
        f"listener.name.clients.plain.{jaas}": f"{PLAIN_MODULE} required {ADMIN} "
        f'user_admin="{PASSWORD}" user_bob="bob-password";',
        f"listener.name.controller.plain.{jaas}": f"{PLAIN_MODULE} required {ADMIN} "
        f'user_admin="{PASSWORD}";',
        f"listener.name.clients.scram-sha-256.{jaas}": f"{SCRAM_MODULE} required {ADMIN};",
        f"listener.name.controller.scram-sha-256.{jaas}": f"{SCRAM_MODULE} required {ADMIN};",
    }


def format_storage(directory: Path, node_id: int, *more: str) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "twisted_broker.cli.main", "format"),
            *("--data", str(directory / "data"), "--set", f"node.id={node_id}"),
            *("--add-scram", f"{SHA_256}=[name=admin,password={PASSWORD}]", *more),
        ],
        check=True,
        capture_output=True,
    )


def store_of(directory: Path) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.truststore.type": "PEM",
        "ssl.keystore.location": str(directory / "tls/broker.pem"),
        "ssl.truststore.location": str(directory / "tls/ca.pem"),
    }


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("sasl")
    format_storage(directory, 1)
    jwks = directory / "jwks.json"
    entry = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(ISSUER.public_key()))
    jwks.write_text(json.dumps({"keys": [entry | {"kid": "one"}]}))
    make_certificates(directory / "tls", ("127.0.0.1",), "client", 1)
    settings = settings_of() | store_of(directory)
    settings["listener.security.protocol.map"] += ",SECURE:SASL_SSL"
    settings["listener.name.secure.sasl.enabled.mechanisms"] = f"{SHA_256},{SHA_512}"
    made = BrokerProcess(
        directory,
        settings
        | {
            "node.id": "1",
            "listeners": "CLIENTS://127.0.0.1:0,SECURE://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin",
            "allow.everyone.if.no.acl.found": "true",
            "offsets.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
            "listener.name.clients.plain.connections.max.reauth.ms": "1500",
            "listener.name.clients.sasl.enabled.mechanisms": f"{PLAIN},{SHA_256},{SHA_512},"
            "OAUTHBEARER",
            "listener.name.clients.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
            "listener.name.clients.oauthbearer.sasl.oauthbearer.expected.audience": "kafka",
        },
    )
    try:
        made.start()
        admin = AdminClient(confluent(made, SHA_256, "admin", PASSWORD))
        set_user(admin, "alice", SHA_256, SECRET)
        set_user(admin, "alice", SHA_512, SECRET)
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE)
        yield made
    finally:
        made.stop()
    text = made.log.read_text()
    assert not [secret for secret in SECRETS if secret in text]
    assert "Traceback" not in text, text


def set_user(admin: AdminClient, name: str, mechanism: str, password: str) -> None:
    kind = {SHA_256: ScramMechanism.SCRAM_SHA_256, SHA_512: ScramMechanism.SCRAM_SHA_512}
    info = ScramCredentialInfo(kind[mechanism], 4096)
    change = UserScramCredentialUpsertion(name, info, password.encode())
    admin.alter_user_scram_credentials([change])[name].result(PATIENCE)


def confluent(broker: Any, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


def kafka_python(broker: Any, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


USERS = [(PLAIN, "bob", "bob-password"), (SHA_256, "alice", SECRET), (SHA_512, "alice", SECRET)]


@pytest.mark.parametrize(("mechanism", "user", "password"), USERS)
def test_kafka_python(broker: BrokerProcess, mechanism: str, user: str, password: str) -> None:
    options = kafka_python(broker, mechanism, user, password)
    producer = KafkaProducer(**options)
    sent = producer.send("t", mechanism.encode()).get(PATIENCE)
    producer.close()
    consumer = KafkaConsumer(
        "t", **options, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    assert next(each.value for each in consumer if each.offset == sent.offset) == (
        mechanism.encode()
    )
    consumer.close()


@pytest.mark.parametrize(("mechanism", "user", "password"), USERS)
def test_confluent_kafka(broker: BrokerProcess, mechanism: str, user: str, password: str) -> None:
    """With a group, so that its coordinator is found and asked over SASL, too."""
    options = confluent(broker, mechanism, user, password)
    producer = Producer(options)
    producer.produce("t", mechanism)
    assert producer.flush(PATIENCE) == 0
    group = {"group.id": f"g-{mechanism}", "auto.offset.reset": "earliest"}
    consumer = Consumer(options | group)
    consumer.subscribe(["t"])
    found = until(lambda: consumer.poll(0.2), "a record")
    assert found.error() is None
    consumer.close()


@pytest.mark.parametrize(("mechanism", "user", "password"), USERS)
def test_aiokafka(broker: BrokerProcess, mechanism: str, user: str, password: str) -> None:
    async def produce() -> int:
        producer = AIOKafkaProducer(**kafka_python(broker, mechanism, user, password))
        await producer.start()
        try:
            return (await producer.send_and_wait("t", b"aiokafka")).offset
        finally:
            await producer.stop()

    assert asyncio.run(produce()) >= 0


def test_sasl_ssl(broker: BrokerProcess) -> None:
    """The same users over TLS, and PLAIN is not offered there."""
    brokers: Any = broker.run()["brokers"]
    ca = str(broker.directory / "tls/ca.pem")
    options = kafka_python(broker, SHA_512, "alice", SECRET) | {
        "bootstrap_servers": brokers["1"]["listeners"]["SECURE"],
        "security_protocol": "SASL_SSL",
    }
    producer = KafkaProducer(**options, ssl_cafile=ca)
    assert producer.send("t", b"over TLS").get(PATIENCE).offset >= 0
    producer.close()
    context = ssl.create_default_context(cafile=ca)
    assert gets_in(options | {"ssl_context": context})
    assert not gets_in(options | {"ssl_context": context, "sasl_plain_password": "wrong-password"})
    plain = {"sasl_mechanism": PLAIN, "sasl_plain_username": "bob"}
    assert not gets_in(options | plain | {"ssl_context": context})


def gets_in(options: dict[str, Any]) -> bool:
    """aiokafka says at once what kafka-python tries again for half a minute."""

    async def start() -> None:
        producer = AIOKafkaProducer(**options)
        try:
            await producer.start()
        finally:
            await producer.stop()

    try:
        asyncio.run(start())
    except AioKafkaError:
        return False
    return True


@pytest.mark.parametrize("mechanism", [PLAIN, SHA_256, SHA_512])
def test_a_wrong_password_is_the_clients_own_error(broker: BrokerProcess, mechanism: str) -> None:
    wrong = kafka_python(broker, mechanism, "alice", "wrong-password")
    before = len(broker.log.read_text())
    assert not gets_in(wrong)
    (line, *_) = [
        each
        for each in broker.log.read_text()[before:].splitlines()
        if "authentication failed" in each
    ]
    assert "listener=CLIENTS" in line and f"mechanism={mechanism} " in line and "alice" in line


def test_confluent_kafka_gets_the_reason(broker: BrokerProcess) -> None:
    errors: list[Any] = []
    wrong = confluent(broker, SHA_512, "alice", "wrong-password")
    client = AdminClient(wrong | {"error_cb": errors.append})
    until(lambda: client.poll(0.1) or errors, "an error")
    assert any("Authentication failed" in each.str() for each in errors)


def test_a_mechanism_that_is_not_offered(broker: BrokerProcess) -> None:
    with socket.create_connection(broker.address, PATIENCE) as raw:
        request = SaslHandshakeRequest(mechanism="GSSAPI")
        head = encode_request_header(RequestHeader(17, 1, 1, "hand"))
        raw.sendall(framed(head + encode(request, 1)))
        answer = raw.makefile("rb").read()  # to the end of the connection
    assert b"SCRAM-SHA-512" in answer
    until(lambda: "wants mechanism 'GSSAPI'" in broker.log.read_text(), "a line")


def token(key: Any = ISSUER, seconds: float = 60.0) -> tuple[str, float]:
    now = time.time()
    claims = {"sub": "olga", "iat": int(now), "exp": int(now + seconds), "aud": "kafka"}
    return jwt.encode(claims, key, algorithm="ES256", headers={"kid": "one"}), now + seconds


def oauth(broker: BrokerProcess, key: Any) -> dict[str, Any]:
    options = confluent(broker, "OAUTHBEARER", "", "")
    del options["sasl.username"], options["sasl.password"]
    return options | {"oauth_cb": lambda _: token(key)}


def test_tokens_of_oauthbearer(broker: BrokerProcess) -> None:
    producer = Producer(oauth(broker, ISSUER))
    producer.poll(0)
    producer.produce("t", "by a token")
    assert producer.flush(PATIENCE) == 0

    errors: list[Any] = []
    client = AdminClient(oauth(broker, STRANGER) | {"error_cb": errors.append})
    until(lambda: client.poll(0.1) or errors, "an error")
    until(lambda: "the token's signature is wrong" in broker.log.read_text(), "a line")


def test_our_own_client_with_a_token(broker: BrokerProcess, tmp_path: Path) -> None:
    """Of a callable, and of a file; a stranger's is refused in one line without it."""
    file = tmp_path / "token"
    file.write_text(token(ISSUER)[0] + "\n")
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    of_a_file = settings | {"sasl.oauthbearer.token.endpoint.url": file.as_uri()}
    strange = token(STRANGER)[0]

    async def work(runtime: Runtime) -> None:
        for wanted, source in ((settings, lambda: token(ISSUER)[0]), (of_a_file, None)):
            one = SimpleConsumer(
                *broker.address, runtime=runtime, settings=wanted, oauth_token=source
            )
            assert (await one.topic_metadata(["t"])).topics["t"].partitions
            one.close()
        one = SimpleConsumer(
            *broker.address, runtime=runtime, settings=settings, oauth_token=lambda: strange
        )
        with pytest.raises(ConnectError, match=r"authentication failed: .*; look at ") as refused:
            await one.topic_metadata(["t"])
        assert strange not in str(refused.value)
        one.close()

    run_in_reactor(work)


def test_nodes_that_log_in_by_tokens(tmp_path: Path) -> None:
    """A broker to its controller, in sessions of two seconds."""
    jwks, file = tmp_path / "jwks.json", tmp_path / "token"
    entry = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(ISSUER.public_key()))
    jwks.write_text(json.dumps({"keys": [entry | {"kid": "one"}]}))
    own, _ = token(seconds=600)
    file.write_text(own)
    settings = settings_of(mechanism="OAUTHBEARER") | {
        "node.id": "1",
        "listeners": "CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:olga",
        "listener.name.controller.oauthbearer.connections.max.reauth.ms": "2000",
    }
    for name in ("clients", "controller"):
        prefix = f"listener.name.{name}.oauthbearer.sasl.oauthbearer."
        settings[f"{prefix}jwks.endpoint.url"] = jwks.as_uri()
        settings[f"{prefix}token.endpoint.url"] = file.as_uri()
    made = BrokerProcess(tmp_path, settings).start()
    try:
        admin = AdminClient(oauth(made, ISSUER))
        admin.poll(0)
        deadline, number = time.monotonic() + 4, 0  # longer than a session
        while time.monotonic() < deadline:
            number += 1
            admin.create_topics([NewTopic(f"t{number}", 1, 1)])[f"t{number}"].result(PATIENCE)
        # Before it stops: that may come amid an authentication, which fails then.
        assert "authentication" not in made.log.read_text()
    finally:
        made.stop()
    assert own not in made.log.read_text()


def test_a_plain_client_is_one_line(broker: BrokerProcess) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=1)
    until(lambda: "before authentication" in broker.log.read_text(), "a line")


def test_a_client_authenticates_again(broker: BrokerProcess) -> None:
    """KIP-368: one connection, longer than its session."""
    errors: list[Any] = []
    options = confluent(broker, PLAIN, "bob", "bob-password")
    producer = Producer(options | {"error_cb": errors.append})
    deadline = time.monotonic() + 3.5
    sent = 0
    while time.monotonic() < deadline:
        producer.produce("t", b"again")
        assert producer.flush(PATIENCE) == 0
        sent += 1
        time.sleep(0.1)
    assert sent > 10 and not errors


def test_users_are_changed_while_they_are_used(broker: BrokerProcess) -> None:
    """A new password holds for new connections; the old one is refused; then the user goes."""
    admin = AdminClient(confluent(broker, SHA_256, "admin", PASSWORD))
    set_user(admin, "carol", SHA_256, "first")
    first, second = (kafka_python(broker, SHA_256, "carol", each) for each in ("first", "second"))
    assert gets_in(first)
    set_user(admin, "carol", SHA_256, "second")
    until(lambda: gets_in(second), "the new password")
    assert not gets_in(first)
    futures: Any = admin.describe_user_scram_credentials(["carol"])
    described = futures["carol"].result(PATIENCE)
    assert [each.iterations for each in described.scram_credential_infos] == [4096]
    deletion = UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([deletion])["carol"].result(PATIENCE)
    until(lambda: not gets_in(second), "the user is gone")


def test_what_a_user_may_do(broker: BrokerProcess) -> None:
    """The name that SASL proved is the one that ACLs are about, also at the controller."""
    admin = AdminClient(confluent(broker, SHA_256, "admin", PASSWORD))
    admin.create_topics([NewTopic("private", 1, 1)])["private"].result(PATIENCE)
    rule = AclBinding(
        *(ResourceType.TOPIC, "private", ResourcePatternType.LITERAL, "User:alice", "*"),
        *(AclOperation.ALL, AclPermissionType.ALLOW),
    )
    admin.create_acls([rule])[rule].result(PATIENCE)

    def written_by(mechanism: str, user: str, password: str) -> Any:
        found: list[Any] = []
        producer = Producer(confluent(broker, mechanism, user, password))
        producer.produce("private", b"x", on_delivery=lambda error, _: found.append(error))
        assert producer.flush(PATIENCE) == 0
        return found[0] and found[0].code()

    denied = KafkaError.TOPIC_AUTHORIZATION_FAILED
    until(lambda: written_by(PLAIN, "bob", "bob-password") == denied, "the rule has arrived")
    assert written_by(SHA_256, "alice", SECRET) is None
    bob = AdminClient(confluent(broker, PLAIN, "bob", "bob-password"))
    with pytest.raises(KafkaException) as refused:
        bob.create_partitions([NewPartitions("private", 2)])["private"].result(PATIENCE)
    assert refused.value.args[0].code() == denied


def test_no_setting_shows_a_password(broker: BrokerProcess) -> None:
    admin = AdminClient(confluent(broker, SHA_256, "admin", PASSWORD))
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    futures: Any = admin.describe_configs([resource])
    found = futures[resource].result(PATIENCE)
    text = str([(each.name, each.value, each.synonyms) for each in found.values()])
    assert "sasl.enabled.mechanisms" in text
    assert not [secret for secret in SECRETS if secret in text]
    assert found["sasl.jaas.config"].is_sensitive


class SecureCluster(Cluster):
    """Three brokers and a controller, SASL_SSL and SCRAM between all of them."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        make_certificates(directory / "tls", ("127.0.0.1",), "client", 1)
        session = {"listener.name.clients.scram-sha-256.connections.max.reauth.ms": "3000"}
        self.secure = settings_of("SASL_SSL") | store_of(directory) | session
        format_storage(self.controller.directory, 100)
        self.controller.settings |= self.secure

    def new_broker(self, node_id: int, name: str = "") -> BrokerProcess:
        made = super().new_broker(node_id, name)
        made.settings |= self.secure | {"listeners": "CLIENTS://127.0.0.1:0"}
        return made

    def client(self, user: str, password: str) -> dict[str, Any]:
        return confluent(self, SHA_256, user, password) | {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.directory / "tls/ca.pem"),
        }


@pytest.mark.long
def test_three_brokers_with_sasl_ssl_between_all(tmp_path: Path) -> None:
    """Under load a user's password changes, sessions end and begin again, a leader is killed and
    comes back; then everything that was acknowledged is there, in order.
    """
    cluster = SecureCluster(tmp_path)
    try:
        cluster.start()
        admin = AdminClient(cluster.client("admin", PASSWORD))
        settings = {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic("t", 1, 3, config=settings)])["t"].result(PATIENCE)
        set_user(admin, "alice", SHA_256, SECRET)
        until(lambda: in_sync(admin) == 3, "all replicas in sync")
        producer = Producer(cluster.client("alice", SECRET) | {"enable.idempotence": True})
        errors: list[Any] = []
        sent = 0

        def send_for(seconds: float) -> None:
            nonlocal sent
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                producer.produce("t", str(sent), on_delivery=lambda error, _: errors.append(error))
                assert producer.flush(PATIENCE) == 0
                sent += 1

        send_for(4)  # longer than a session
        set_user(admin, "admin", SHA_256, "new-" + PASSWORD)
        set_user(admin, "admin", SHA_256, PASSWORD)
        leader = admin.list_topics("t").topics["t"].partitions[0].leader
        former = cluster.brokers[leader]
        former.kill()
        former.settings["listeners"] = f"CLIENTS://{former.bootstrap}"
        send_for(2)
        former.start()
        until(lambda: in_sync(admin) == 3, "the former leader is in sync again")
        send_for(4)

        group = {"group.id": "g", "auto.offset.reset": "earliest"}
        consumer = Consumer(cluster.client("alice", SECRET) | group)
        consumer.subscribe(["t"])
        found: list[int] = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < sent and time.monotonic() < deadline:
            found += [int(each.value()) for each in consumer.consume(1000, 0.5)]
        consumer.close()
        assert found == list(range(sent)) and errors == [None] * sent
        text = "\n".join(
            each.log.read_text() for each in (cluster.controller, *cluster.brokers.values())
        )
        assert not [secret for secret in SECRETS if secret in text]
        assert "Traceback" not in text
    except BaseException:
        print(cluster.log_tail())
        raise
    finally:
        cluster.end()


def in_sync(admin: AdminClient) -> int:
    return len(admin.list_topics("t", timeout=PATIENCE).topics["t"].partitions[0].isrs)
