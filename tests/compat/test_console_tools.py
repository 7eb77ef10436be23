"""Command line tools with each protocol and mechanism: kcat, and Java's console tools."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.broker_process import BrokerProcess
from tests.compat.clients import Kcat
from tests.compat.test_kafka_tools import jars, tool
from tests.compat.test_sasl import (
    ISSUER,
    PASSWORD,
    PATIENCE,
    PLAIN,
    SCRAM_MODULE,
    SECRET,
    SHA_256,
    SHA_512,
    confluent,
    format_storage,
    set_user,
    settings_of,
    store_of,
    token,
)
from tests.compat.test_sasl import PLAIN_MODULE as MODULE_OF_PLAIN
from twisted_broker.cli.tls import make_certificates

__all__ = ["jars"]
pytestmark = pytest.mark.clients
BOB, OAUTHBEARER = "bob-password", "OAUTHBEARER"
# Listener, protocol, mechanism, user, password.
WAYS = {
    "PLAINTEXT": ("OPEN", "PLAINTEXT", "", "", ""),
    "SSL": ("TLS", "SSL", "", "", ""),
    "SASL_PLAINTEXT-PLAIN": ("CLIENTS", "SASL_PLAINTEXT", PLAIN, "bob", BOB),
    "SASL_PLAINTEXT-SHA-256": ("CLIENTS", "SASL_PLAINTEXT", SHA_256, "alice", SECRET),
    "SASL_PLAINTEXT-SHA-512": ("CLIENTS", "SASL_PLAINTEXT", SHA_512, "alice", SECRET),
    "SASL_SSL-PLAIN": ("SECURE", "SASL_SSL", PLAIN, "bob", BOB),
    "SASL_SSL-SHA-256": ("SECURE", "SASL_SSL", SHA_256, "alice", SECRET),
    "SASL_SSL-SHA-512": ("SECURE", "SASL_SSL", SHA_512, "alice", SECRET),
}
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLogin"
OAUTH_WAYS = {
    "SASL_PLAINTEXT-OAUTHBEARER": ("CLIENTS", "SASL_PLAINTEXT", OAUTHBEARER, "", ""),
    "SASL_SSL-OAUTHBEARER": ("SECURE", "SASL_SSL", OAUTHBEARER, "", ""),
}
"""Java's only: kcat's own tokens have no signature, and Debian's has no token endpoint."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With a listener of each protocol."""
    directory = tmp_path_factory.mktemp("tools")
    format_storage(directory, 1)
    make_certificates(directory / "tls", ("127.0.0.1",), "client", 1)
    settings = settings_of() | store_of(directory)
    settings["listener.security.protocol.map"] += ",SECURE:SASL_SSL,TLS:SSL,OPEN:PLAINTEXT"
    jaas = "plain.sasl.jaas.config"
    jwks, oauth = directory / "jwks.json", "oauthbearer.sasl.oauthbearer."
    entry = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(ISSUER.public_key()))
    jwks.write_text(json.dumps({"keys": [entry | {"kid": "one"}]}))
    for name in ("clients", "secure"):
        settings |= {
            f"listener.name.{name}.sasl.enabled.mechanisms": f"{PLAIN},{SHA_256},{SHA_512},"
            f"{OAUTHBEARER}",
            f"listener.name.{name}.{oauth}jwks.endpoint.url": jwks.as_uri(),
            f"listener.name.{name}.{oauth}expected.audience": "kafka",
        }
    made = BrokerProcess(
        directory,
        settings
        | {
            "node.id": "1",
            "listeners": "CLIENTS://127.0.0.1:0,SECURE://127.0.0.1:0,TLS://127.0.0.1:0,"
            "OPEN://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "listener.name.tls.ssl.client.auth": "required",
            f"listener.name.secure.{jaas}": settings[f"listener.name.clients.{jaas}"],
            "offsets.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
        },
    )
    try:
        made.start()
        admin = AdminClient(confluent(made, SHA_256, "admin", PASSWORD))
        for mechanism in (SHA_256, SHA_512):
            set_user(admin, "alice", mechanism, SECRET)
        java = (f"java-{way}" for way in (*WAYS, *OAUTH_WAYS))
        for topic in (*(f"kcat-{way}" for way in WAYS), *java):
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE)
        yield made
    finally:
        made.stop()
    text = made.log.read_text()
    assert "Traceback" not in text and SECRET not in text and BOB not in text


def address(broker: BrokerProcess, listener: str) -> str:
    brokers: Any = broker.run()["brokers"]
    return str(brokers["1"]["listeners"][listener])


def librdkafka() -> tuple[int, ...]:
    """kcat's."""
    text = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", text)
    assert found is not None, text
    return tuple(map(int, found.groups()))


@pytest.mark.skipif(not Kcat.is_there(), reason="kcat is not installed (Debian: kcat)")
@pytest.mark.parametrize("way", WAYS)
def test_kcat(broker: BrokerProcess, way: str) -> None:
    """Writes, and reads in a group."""
    listener, protocol, mechanism, user, password = WAYS[way]
    settings = {"security.protocol": protocol}
    if protocol.endswith("SSL"):
        settings["ssl.ca.location"] = str(broker.directory / "tls/ca.pem")
    if protocol == "SSL":
        own = str(broker.directory / "tls/client.pem")
        settings |= {"ssl.certificate.location": own, "ssl.key.location": own}
    if mechanism:
        settings |= {
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }
    options = [part for each in settings.items() for part in ("-X", "=".join(each))]
    common = ["kcat", "-b", address(broker, listener), *options]
    topic = f"kcat-{way}"
    write = [*common, "-P", "-t", topic]
    if mechanism.startswith("SCRAM") and librdkafka() < (2, 6, 1):
        # It breaks RFC 5802, which Apache Kafka 4 does not accept either.
        refused = subprocess.run(
            [*write, "-X", "message.timeout.ms=1500"],
            input=b"a\nb\n",
            timeout=PATIENCE,
            capture_output=True,
        )
        assert refused.returncode
        assert "librdkafka before 2.6.1 sends its own twice" in broker.log.read_text()
        return
    subprocess.run(write, input=b"a\nb\n", check=True, timeout=PATIENCE)
    group = ["-q", "-c", "2", "-X", "auto.offset.reset=earliest", "-G", topic, topic]
    read = subprocess.run([*common, *group], check=True, timeout=PATIENCE, capture_output=True)
    assert read.stdout.split() == [b"a", b"b"]


@pytest.mark.parametrize("way", WAYS | OAUTH_WAYS)
def test_javas_console_tools(
    broker: BrokerProcess,
    way: str,
    jars: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kafka-console-producer and kafka-console-consumer, by a file of settings."""
    listener, protocol, mechanism, user, password = (WAYS | OAUTH_WAYS)[way]
    lines = [f"security.protocol={protocol}"]
    if protocol.endswith("SSL"):
        lines += ["ssl.truststore.type=PEM"]
        lines += [f"ssl.truststore.location={broker.directory / 'tls/ca.pem'}"]
    if protocol == "SSL":
        lines += ["ssl.keystore.type=PEM"]
        lines += [f"ssl.keystore.location={broker.directory / 'tls/client.pem'}"]
    if mechanism == OAUTHBEARER:
        file = tmp_path / "token"
        file.write_text(token()[0])
        # Java reads tokens of allowed addresses only.
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={file.as_uri()}"
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", allowed)
        lines += [
            f"sasl.mechanism={mechanism}",
            f"sasl.jaas.config={OAUTH_MODULE}Module required;",
            f"sasl.login.callback.handler.class={OAUTH_MODULE}CallbackHandler",
            f"sasl.oauthbearer.token.endpoint.url={file.as_uri()}",
        ]
    elif mechanism:
        module = MODULE_OF_PLAIN if mechanism == PLAIN else SCRAM_MODULE
        lines += [
            f"sasl.mechanism={mechanism}",
            f'sasl.jaas.config={module} required username="{user}" password="{password}";',
        ]
    settings = tmp_path / "client.properties"
    settings.write_text("\n".join(lines) + "\n")
    common = ["--bootstrap-server", address(broker, listener), "--topic", f"java-{way}"]
    common += ["--command-config", str(settings)]
    tool(jars, "org.apache.kafka.tools.ConsoleProducer", *common, text="a\nb\n")
    reading = ["--from-beginning", "--max-messages", "2", "--group", f"java-{way}"]
    found = tool(jars, "org.apache.kafka.tools.consumer.ConsoleConsumer", *common, *reading)
    assert found.split() == ["a", "b"]
