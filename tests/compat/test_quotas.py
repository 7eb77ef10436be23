"""Stock clients above their quota: slowed down, and nothing lost. One broker with short windows."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.compare.side import Line
from tests.compat import raw
from twisted_broker.testing import Cluster

RATE, RECORD_BYTES, RECORDS = 20_000, 5_000, 8
# One window of a second is used up by the first 20,000 bytes; the others come at the rate.
LEAST_SECONDS = (RECORDS * RECORD_BYTES - RATE) / RATE - 0.5


@pytest.fixture(scope="module")
def slow() -> Iterator[Cluster]:
    """Client id `slow` has a quota for both directions."""
    with Cluster(1, {"quota.window.num": 2}) as cluster:
        alter(cluster, "client-id", "slow", producer_byte_rate=RATE, consumer_byte_rate=RATE)
        yield cluster


def alter(broker: Cluster, kind: str, name: str, **values: float) -> None:
    line = Line(*raw.address(broker.bootstrap))
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name}],
        "ops": [{"key": key, "value": float(value)} for key, value in values.items()],
    }
    answer = line.call("AlterClientQuotas", 1, {"entries": [entry]})
    assert answer.entries[0].error_code == 0, answer
    line.hang_up()


def test_kafka_python_waits(slow: Cluster, topic: str) -> None:
    took = {}
    for client_id in ("fast", "slow"):
        producer = KafkaProducer(bootstrap_servers=slow.bootstrap, client_id=client_id, acks="all")
        began = time.monotonic()
        for _ in range(RECORDS):
            producer.send(topic, bytes(RECORD_BYTES), partition=0).get(30)
        took[client_id] = time.monotonic() - began
        waited = producer.metrics()["producer-metrics"]["throttle-time-max"]
        assert (waited > 0) is (client_id == "slow")
        producer.close()
    assert took["slow"] > LEAST_SECONDS
    consumer = KafkaConsumer(
        bootstrap_servers=slow.bootstrap,
        client_id="slow",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=2 * RECORD_BYTES,
    )
    consumer.assign([TopicPartition(topic, 0)])
    began, found = time.monotonic(), 0
    while found < RECORDS:
        assert time.monotonic() < began + 30
        found += sum(map(len, consumer.poll(1000).values()))
    assert time.monotonic() - began > LEAST_SECONDS
    consumer.close()


def test_librdkafka_waits(slow: Cluster, topic: str) -> None:
    waits: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": slow.bootstrap,
            "client.id": "slow",
            "throttle_cb": lambda event: waits.append(event.throttle_time),
            "batch.num.messages": 1,
        }
    )
    began = time.monotonic()
    for _ in range(RECORDS):
        producer.produce(topic, bytes(RECORD_BYTES), partition=0)
    assert producer.flush(30) == 0
    assert time.monotonic() - began > LEAST_SECONDS
    producer.poll(0)
    assert max(waits) > 0
    consumer = Consumer(
        {
            "bootstrap.servers": slow.bootstrap,
            "client.id": "fast",
            "group.id": topic,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    deadline, found = time.monotonic() + 30, 0
    while found < RECORDS:
        assert time.monotonic() < deadline
        message = consumer.poll(1)
        found += message is not None and message.error() is None
    consumer.close()


def test_an_address_above_its_rate_of_connections_is_not_served(slow: Cluster) -> None:
    """A held connection ends without an answer; afterwards the address is served again."""
    alter(slow, "ip", "127.0.0.1", connection_creation_rate=4)
    ends = 0
    for _ in range(8):
        with socket.create_connection(raw.address(slow.bootstrap), 10) as made:
            made.settimeout(0.2)
            try:
                ends += made.recv(1) == b""
            except TimeoutError:
                continue
    deadline = time.monotonic() + 20
    while True:
        line = Line(*raw.address(slow.bootstrap))
        answer = line.call("ApiVersions", 0, {})
        line.hang_up()
        if hasattr(answer, "api_keys"):
            break
        ends += 1
        assert time.monotonic() < deadline
    assert ends > 0
