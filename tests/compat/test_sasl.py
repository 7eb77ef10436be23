"""SASL with stock clients: one broker, and three that authenticate themselves to each other."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer

from tests.compat.broker_process import BrokerProcess

pytestmark = pytest.mark.clients

PLAIN, SHA_256, SHA_512 = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"
PASSWORD, SECRET = "admin-password", "alice-password"
SECRETS = (PASSWORD, SECRET, "bob-password", "wrong-password")
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
ADMIN = f'username="admin" password="{PASSWORD}"'
PATIENCE = 60.0


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
    made = BrokerProcess(
        directory,
        settings_of()
        | {
            "node.id": "1",
            "listeners": "CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "offsets.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
            "listener.name.clients.plain.connections.max.reauth.ms": "1500",
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
    before = broker.log.read_text().count("authentication failed")
    assert not gets_in(wrong)
    lines = broker.log.read_text()
    assert lines.count("authentication failed") > before
    line = next(each for each in lines.splitlines() if f"mechanism={mechanism} " in each)
    assert "listener=CLIENTS" in line and "alice" in line


def test_confluent_kafka_gets_the_reason(broker: BrokerProcess) -> None:
    errors: list[Any] = []
    wrong = confluent(broker, SHA_512, "alice", "wrong-password")
    client = AdminClient(wrong | {"error_cb": errors.append})
    until(lambda: client.poll(0.1) or errors, "an error")
    assert any("Authentication failed" in each.str() for each in errors)


def test_a_mechanism_that_is_not_offered(broker: BrokerProcess) -> None:
    errors: list[Any] = []
    options = confluent(broker, "OAUTHBEARER", "", "") | {
        "enable.sasl.oauthbearer.unsecure.jwt": True,
        "sasl.oauthbearer.config": "principal=alice",
    }
    del options["sasl.username"], options["sasl.password"]
    client = AdminClient(options | {"error_cb": errors.append})
    until(lambda: client.poll(0.1) or errors, "an error")
    until(lambda: "wants mechanism 'OAUTHBEARER'" in broker.log.read_text(), "a line")


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
    described = admin.describe_user_scram_credentials(["carol"])["carol"].result(PATIENCE)
    assert [each.iterations for each in described.scram_credential_infos] == [4096]
    deletion = UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([deletion])["carol"].result(PATIENCE)
    until(lambda: not gets_in(second), "the user is gone")


def test_no_setting_shows_a_password(broker: BrokerProcess) -> None:
    admin = AdminClient(confluent(broker, SHA_256, "admin", PASSWORD))
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    futures: Any = admin.describe_configs([resource])
    found = futures[resource].result(PATIENCE)
    text = str([(each.name, each.value, each.synonyms) for each in found.values()])
    assert "sasl.enabled.mechanisms" in text
    assert not [secret for secret in SECRETS if secret in text]
    assert found["sasl.jaas.config"].is_sensitive
