"""Our own clients and real processes over SASL_SSL, under ACLs: `replog mirror`, `unregister`, the
consumer.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.compat.broker_process import BrokerProcess
from tests.compat.test_mirror import batches
from twisted_broker.cli.command_config import run_in_reactor
from twisted_broker.cli.tls import make_certificates
from twisted_broker.consumer import ConsumerConnector
from twisted_broker.interfaces import Runtime
from twisted_broker.security.sasl import jaas

REPLOG = Path(sys.executable).parent / "replog"
PATIENCE = 60.0
SECRET = "mirror-secret"  # noqa: S105  a test's
SETTINGS = {
    "listeners": "CLIENTS://127.0.0.1:0,INSIDE://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:SASL_SSL,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.clients.plain.sasl.jaas.config": f"{jaas.PLAIN} required "
    f'user_mirror="{SECRET}";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # who comes by the listener INSIDE
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
}
READS = ("READ", "DESCRIBE_CONFIGS")
WRITES = ("CREATE", "WRITE", "ALTER", "ALTER_CONFIGS", "DESCRIBE_CONFIGS", "READ")


class Secured(NamedTuple):
    """A broker whose clients come over SASL_SSL as `mirror`, and their properties."""

    process: BrokerProcess
    properties: Path
    inside: str

    @property
    def clients(self) -> str:
        return listener(self.process, "CLIENTS")


def listener(process: BrokerProcess, name: str) -> str:
    brokers: Any = process.run()["brokers"]
    return str(brokers["1"]["listeners"][name])


def started(directory: Path, operations: tuple[str, ...], mechanism: str) -> Secured:
    """`operations`: what `mirror` may do with topics."""
    tls = directory / "tls"
    make_certificates(tls, ("127.0.0.1",), "client", 1)
    process = BrokerProcess(
        directory,
        SETTINGS | {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(tls / "broker.pem")},
    ).start()
    inside = listener(process, "INSIDE")
    admin = AdminClient({"bootstrap.servers": inside})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    user = UserScramCredentialUpsertion("mirror", info, SECRET.encode())
    admin.alter_user_scram_credentials([user])["mirror"].result(PATIENCE)
    wanted = [(ResourceType.TOPIC, "orders", each) for each in operations]
    wanted.append((ResourceType.GROUP, "readers", "READ"))
    rules = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL,
            "User:mirror",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for kind, name, operation in wanted
    ]
    for made in admin.create_acls(rules).values():
        made.result(PATIENCE)
    properties = directory / "client.properties"
    properties.write_text(
        "security.protocol=SASL_SSL\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={tls / 'ca.pem'}\n"
        f"sasl.mechanism={mechanism}\nsasl.username=mirror\nsasl.password={SECRET}\n"
    )
    return Secured(process, properties, inside)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Secured, Secured]]:
    """The source and the target."""
    found: list[Secured] = []
    try:
        for name, operations, mechanism in (
            ("source", READS, "PLAIN"),
            ("target", WRITES, "SCRAM-SHA-512"),
        ):
            directory = tmp_path_factory.mktemp(name)
            found.append(started(directory, operations, mechanism))
        source, target = found
        admin = AdminClient({"bootstrap.servers": source.inside})
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(PATIENCE)
        producer = Producer({"bootstrap.servers": source.inside})
        for number in range(100):
            producer.produce("orders", b"value %d" % number, b"%d" % number)
        assert producer.flush(PATIENCE) == 0
        yield source, target
    finally:
        for each in found:
            each.process.stop()
    for each in found:
        text = each.process.log.read_text()
        assert SECRET not in text and "Traceback" not in text, text


def replog(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [REPLOG, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE
    )


def test_a_mirror_and_its_reader(clusters: tuple[Secured, Secured], tmp_path: Path) -> None:
    """Both sides over SASL_SSL, the target with a SCRAM user who has no more than the page names;
    a group reads the copy.
    """
    source, target = clusters
    command = ("mirror", "--from", source.clients, "--to", target.clients, "--topics", "orders")
    state = ("--state", tmp_path / "state", "--once")
    configs = ("--from-config", source.properties, "--to-config", target.properties)
    done = replog(*command, *state, *configs)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stderr
    folder = "orders-0"
    expected = batches(Path(source.process.data) / folder)
    assert expected and batches(Path(target.process.data) / folder) == expected

    settings = dict(line.split("=", 1) for line in target.properties.read_text().splitlines())
    settings |= {"bootstrap.servers": target.clients, "group.id": "readers"}
    settings["auto.offset.reset"] = "smallest"

    async def read(runtime: Runtime) -> list[bytes]:
        consumer = ConsumerConnector(settings, runtime)
        streams = await consumer.create_message_streams({"orders": 1})
        found: list[bytes] = []
        async for message in streams["orders"][0]:
            found.append(message.value)
            if len(found) == 100:
                break
        await consumer.shutdown()
        return found

    assert run_in_reactor(read) == [b"value %d" % number for number in range(100)]


def test_a_mirror_that_is_not_let_in(clusters: tuple[Secured, Secured], tmp_path: Path) -> None:
    """One line, which names the option and the property; exit status 1."""
    source, target = clusters
    wrong = tmp_path / "wrong.properties"
    wrong.write_text(target.properties.read_text().replace(SECRET, "wrong-secret"))
    command = ("mirror", "--from", source.clients, "--to", target.clients, "--topics", "orders")
    state = ("--state", tmp_path / "state", "--once")
    done = replog(*command, *state, "--from-config", source.properties, "--to-config", wrong)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"--to-config: {target.clients}: authentication failed: ")
    assert done.stderr.endswith("; look at sasl.username\n") and done.stderr.count("\n") == 1
    assert "secret" not in done.stderr


def test_unregister(clusters: tuple[Secured, Secured]) -> None:
    """Comes in, and is not permitted: ALTER on the cluster is what Kafka wants."""
    source, _ = clusters
    address = ("--bootstrap-server", source.clients, "--id", 4)
    done = replog("unregister", *address, "--command-config", source.properties)
    assert done.returncode == 1
    assert done.stderr.startswith("the cluster refuses: CLUSTER_AUTHORIZATION_FAILED")
    done = replog("unregister", *address)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "does this listener speak PLAINTEXT? Look at security.protocol" in done.stderr
