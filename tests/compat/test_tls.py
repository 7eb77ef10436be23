"""TLS with stock clients: a controller and three brokers, with certificates between all of them."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.helpers import create_ssl_context
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from cryptography.x509 import load_der_x509_certificate
from kafka import KafkaProducer

from tests.compat.broker_process import BrokerProcess
from tests.compat.cluster_processes import Cluster
from twisted_broker.cli.tls import make_certificates

pytestmark = pytest.mark.clients
PATIENCE = 60.0
VALUES = [bytes([65 + number]) * 200_000 for number in range(20)]


class TlsCluster(Cluster):
    """Clients, brokers and the controller show certificates of one authority."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.certificates = directory / "certificates"
        make_certificates(self.certificates, client="alice")
        self.controller.settings |= self.tls()

    def tls(self) -> dict[str, str]:
        return {
            "listener.security.protocol.map": "CLIENTS:SSL,CONTROLLER:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates / "ca.pem"),
            "ssl.client.auth": "required",
        }

    def new_broker(self, node_id: int, name: str = "") -> BrokerProcess:
        made = super().new_broker(node_id, name)
        made.settings |= self.tls() | {
            "listeners": "CLIENTS://127.0.0.1:0",
            "inter.broker.listener.name": "CLIENTS",
        }
        return made

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def confluent(self, **settings: Any) -> dict[str, Any]:
        own = str(self.certificates / "client.pem")
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.certificates / "ca.pem"),
            "ssl.certificate.location": own,
            "ssl.key.location": own,
            **settings,
        }

    def kafka_python(self, **settings: Any) -> dict[str, Any]:
        own = str(self.certificates / "client.pem")
        return {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": "SSL",
            "ssl_cafile": str(self.certificates / "ca.pem"),
            "ssl_certfile": own,
            "ssl_keyfile": own,
            **settings,
        }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    made = TlsCluster(tmp_path_factory.mktemp("tls"))
    try:
        yield made.start()  # type: ignore[misc]
    finally:
        made.end()


def until(found: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while True:
        value = found()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.02)


def address(broker: BrokerProcess) -> tuple[str, int]:
    host, _, port = broker.bootstrap.rpartition(":")
    return host, int(port)


def serial_shown(cluster: TlsCluster, broker: BrokerProcess) -> int:
    """Of the certificate that a new client is shown."""
    context = ssl.create_default_context(cafile=str(cluster.certificates / "ca.pem"))
    context.load_cert_chain(str(cluster.certificates / "client.pem"))
    with (
        socket.create_connection(address(broker), PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        return load_der_x509_certificate(tls.getpeercert(True) or b"").serial_number


def line_of(broker: BrokerProcess, words: str) -> str:
    def found() -> str:
        return next((x for x in broker.log.read_text().splitlines() if words in x), "")

    line: str = until(found, f"the line {words!r}")
    return line


def test_records_pass_between_clients_and_replicas(cluster: TlsCluster) -> None:
    """kafka-python to all three replicas, confluent-kafka in a group, aiokafka by itself."""
    admin = AdminClient(cluster.confluent())
    admin.create_topics([NewTopic("t", 3, 3)])["t"].result(PATIENCE)
    producer = KafkaProducer(**cluster.kafka_python(acks="all", request_timeout_ms=60_000))
    for number, value in enumerate(VALUES):
        producer.send("t", value, partition=number % 3)
    producer.flush(PATIENCE)
    producer.close()
    topic = until(
        lambda: list(admin.list_topics("t", PATIENCE).topics["t"].partitions.values()), "the topic"
    )
    assert all(len(each.isrs) == 3 for each in topic)
    consumer = Consumer(cluster.confluent(**{"group.id": "g", "auto.offset.reset": "earliest"}))
    consumer.subscribe(["t"])
    got: list[bytes] = []

    def poll() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            got.append(message.value() or b"")
        return len(got) == len(VALUES)

    until(poll, "the records")
    consumer.close()
    assert sorted(got) == VALUES

    async def read() -> list[bytes]:
        own = str(cluster.certificates / "client.pem")
        context = create_ssl_context(
            cafile=str(cluster.certificates / "ca.pem"), certfile=own, keyfile=own
        )
        other = AIOKafkaConsumer(
            "t",
            bootstrap_servers=cluster.bootstrap,
            security_protocol="SSL",
            ssl_context=context,
            auto_offset_reset="earliest",
        )
        await other.start()
        try:
            return [(await other.getone()).value or b"" for _ in VALUES]
        finally:
            await other.stop()

    assert sorted(asyncio.run(asyncio.wait_for(read(), PATIENCE))) == VALUES


def test_who_is_refused_gets_one_line_and_others_are_served(cluster: TlsCluster) -> None:
    broker = cluster.brokers[2]
    stalled = socket.create_connection(address(broker), PATIENCE)
    plain = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    plain.poll(0)
    assert "it does not speak TLS: set its security.protocol to SSL" in line_of(broker, "speak TLS")
    trust = {"security.protocol": "SSL", "ssl.ca.location": str(cluster.certificates / "ca.pem")}
    nobody = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, **trust})
    nobody.poll(0)
    assert "listener CLIENTS: no TLS connection with 127.0.0.1: it has no certificate" in line_of(
        broker, "ssl.client.auth=required"
    )
    sent: list[Any] = []
    producer = Producer(cluster.confluent(**{"acks": "all"}))
    producer.produce("t", b"served", on_delivery=lambda error, message: sent.append(error))
    assert producer.flush(PATIENCE) == 0 and sent == [None]
    stalled.close()
    assert "Traceback" not in broker.log.read_text()


def test_certificates_are_renewed_while_records_flow(cluster: TlsCluster) -> None:
    """New files of the same authority, and `kafka-configs` that names them: a new client is shown
    the new certificate, and no record is lost.
    """
    before = {number: serial_shown(cluster, each) for number, each in cluster.brokers.items()}
    errors: list[Any] = []
    producer = Producer(cluster.confluent(**{"acks": "all"}))

    def produce() -> None:
        producer.produce("t", b"x", on_delivery=lambda error, message: errors.append(error))
        producer.poll(0)

    make_certificates(cluster.certificates, client="alice")
    admin = AdminClient(cluster.confluent())
    for number, broker in cluster.brokers.items():
        name = "listener.name.clients.ssl.keystore.location"
        entry = ConfigEntry(
            name,
            str(cluster.certificates / "broker.pem"),
            incremental_operation=AlterConfigOpType.SET,
        )
        resource = ConfigResource(ResourceType.BROKER, str(number), incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE)

        def renewed(number: int = number, broker: BrokerProcess = broker) -> bool:
            produce()
            return serial_shown(cluster, broker) != before[number]

        until(renewed, "the new certificate")
    assert producer.flush(PATIENCE) == 0
    assert len(errors) >= 3 and set(errors) == {None}
