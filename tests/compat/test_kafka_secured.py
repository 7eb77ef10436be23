"""One cluster of Apache Kafka 4.3 and ours with SASL_SSL between all of them: a controller and a
broker of Java's in one process, and our broker, which leads and follows.

KAFKA_JARS: see `kafka_processes.py` (`make test-java`). About half a minute.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.broker_process import BrokerProcess
from tests.compat.kafka_processes import JavaNode, require
from tests.compat.test_kafka_cleaner import free_port
from twisted_broker.cli.tls import make_certificates

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]
JAVA, OURS, STRANGER = 1, 2, 3
TOPIC = "shared"
PATIENCE_SECONDS = 90
REPLOG = Path(sys.executable).parent / "replog"
PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="node" password="node-secret" user_node="node-secret" user_app="app-secret";'
)


def security(certificates: Path) -> dict[str, str]:
    """Of a node, Java's or ours; the authority is the one of that directory."""
    return {
        "listener.security.protocol.map": "INSIDE:SASL_SSL,CONTROLLER:SASL_SSL",
        "inter.broker.listener.name": "INSIDE",
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.inside.plain.sasl.jaas.config": PLAIN,
        "listener.name.controller.plain.sasl.jaas.config": PLAIN,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates / "ca.pem"),
    }


def java_node(directory: Path, certificates: Path) -> JavaNode:
    """Controller and broker in one process."""
    address, controller = (f"127.0.0.1:{free_port()}" for _ in range(2))
    values = security(certificates) | {
        "process.roles": "broker,controller",
        "node.id": str(JAVA),
        "controller.quorum.voters": f"{JAVA}@{controller}",
        "listeners": f"INSIDE://{address},CONTROLLER://{controller}",
        "offsets.topic.replication.factor": "2",
        "offsets.topic.num.partitions": "3",
        "group.initial.rebalance.delay.ms": "0",
        "auto.leader.rebalance.enable": "false",
        "broker.session.timeout.ms": "6000",
    }
    node = JavaNode(directory, values)
    node.format()
    return node


class Mixed:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certificates = directory / "certificates"
        make_certificates(self.certificates)
        self.java = java_node(directory / "java", self.certificates)
        self.controller = self.java.values["controller.quorum.voters"].partition("@")[2]
        self.ours = self.broker(OURS, self.certificates)
        self.client: dict[str, Any] = {
            "bootstrap.servers": self.java.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "app",
            "sasl.password": "app-secret",
            "ssl.ca.location": str(self.certificates / "ca.pem"),
            "log_level": 0,
        }

    def broker(self, node_id: int, certificates: Path) -> BrokerProcess:
        port = free_port()
        settings = security(certificates) | {
            "process.roles": "broker",
            "node.id": str(node_id),
            "controller.quorum.bootstrap.servers": self.controller,
            "listeners": f"INSIDE://127.0.0.1:{port}",
            "broker.heartbeat.interval.ms": "500",
            "replica.fetch.backoff.ms": "200",
        }
        return BrokerProcess(self.directory / f"broker-{node_id}", settings, port=port)

    def start(self) -> None:
        self.java.spawn()
        self.ours.spawn(wait=False)
        self.admin = AdminClient(self.client)
        self.until(
            lambda: set(self.admin.list_topics(timeout=5).brokers) == {JAVA, OURS}, "both serve"
        )

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline, last = time.monotonic() + PATIENCE_SECONDS, ""
        while time.monotonic() < deadline:
            if self.ours.process is not None:
                self.ours.ended(0)
            try:
                if holds():
                    return
            except KafkaException as error:
                last = str(error)
            time.sleep(0.1)
        raise TimeoutError(f"{what}; {last}\n{self.ours.log_tail()}")

    def partitions(self) -> list[tuple[int, list[int]]]:
        """(leader, ISR in order of id) of each partition."""
        found = self.admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
        return [(found[number].leader, sorted(found[number].isrs)) for number in sorted(found)]

    def produce(self, count: int) -> None:
        producer = Producer({**self.client, "acks": "all", "linger.ms": 5})
        failed: list[str] = []
        for number in range(count):
            producer.produce(
                TOPIC,
                b"%d" % number + b"." * 500,
                partition=number % 2,
                on_delivery=lambda error, message: failed.append(str(error)) if error else None,
            )
        assert producer.flush(PATIENCE_SECONDS) == 0 and not failed

    def count(self) -> int:
        """Records that a reader of both partitions finds."""
        consumer = Consumer({**self.client, "group.id": "none", "enable.partition.eof": True})
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in (0, 1)])
        ended: set[int | None] = set()
        found, deadline = 0, time.monotonic() + PATIENCE_SECONDS
        while len(ended) < 2 and time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None and message.error():
                ended.add(message.partition())
            elif message is not None:
                found += 1
        consumer.close()
        return found

    def end(self) -> None:
        self.ours.kill()
        self.java.kill()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    require()
    made = Mixed(tmp_path_factory.mktemp("mixed"))
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_another_authority_is_one_line(mixed: Mixed, tmp_path: Path) -> None:
    """A broker of ours that trusts somebody else's: its log says whom it does not trust, and why;
    the cluster goes on without it.
    """
    make_certificates(tmp_path)
    stranger = mixed.broker(STRANGER, tmp_path)
    stranger.spawn(wait=False)
    try:
        wanted = (
            f"no TLS connection with {mixed.controller}: its certificate is refused: its "
            "authority is not in the trust store"
        )
        mixed.until(lambda: wanted in stranger.log.read_text(), "the line")
    finally:
        stranger.kill()
    lines = re.findall("certificate is refused", stranger.log.read_text())
    assert len(lines) < 5
    assert set(mixed.admin.list_topics(timeout=10).brokers) == {JAVA, OURS}


def test_ours_leads_and_follows_beside_java_over_sasl_ssl(mixed: Mixed) -> None:
    """Records that both led, while ours was away too, are the same in both directories."""
    mixed.admin.create_topics([NewTopic(TOPIC, 2, 2)])[TOPIC].result(60)
    both = [JAVA, OURS]
    mixed.until(
        lambda: sorted(mixed.partitions()) == [(JAVA, both), (OURS, both)], "each leads one"
    )
    mixed.produce(2000)
    mixed.ours.stop()
    mixed.until(lambda: mixed.partitions() == [(JAVA, [JAVA])] * 2, "Java leads both")
    mixed.produce(2000)
    mixed.ours.start()
    mixed.until(lambda: mixed.partitions() == [(JAVA, both)] * 2, "ours has caught up")
    parts = [TopicPartition(TOPIC, number) for number in (0, 1)]
    mixed.admin.elect_leaders(ElectionType.PREFERRED, parts).result(60)
    mixed.until(
        lambda: sorted(mixed.partitions()) == [(JAVA, both), (OURS, both)], "each leads one again"
    )
    mixed.produce(2000)
    assert mixed.count() == 6000
    mixed.ours.stop()
    mixed.java.stop()
    command = [str(REPLOG), "verify", "--replicas", mixed.ours.data, mixed.java.data]
    compared = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert re.search(r"[1-9]\d* batches", compared.stdout), compared.stdout
