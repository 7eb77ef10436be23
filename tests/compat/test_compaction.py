"""Compacted topics with stock clients: what is left is the newest value of each key, through kills
and on replicas that are cleaned at different times.
"""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.compat.broker_process import BrokerProcess
from tests.compat.cluster_processes import Cluster, View
from tests.compat.conftest import BrokerFactory
from tests.compat.test_admin import create, until
from twisted_broker.cli.verify import verify_directory

LIMIT_SECONDS = 60
KEYS = 50
SETTINGS = {
    "cleanup_policy": "compact",
    "internal_segment_bytes": "20000",
    "min_cleanable_dirty_ratio": "0.1",
    "delete_retention_ms": "0",
}


def produce(bootstrap: str, topic: str, start: int, end: int) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 2, "batch.num.messages": 200}
    )
    failed: list[object] = []

    def note(error: object, message: object) -> None:
        if error is not None:
            failed.append(error)

    for number in range(start, end):
        value = None if number % KEYS == 7 else b"%d" % number
        producer.produce(topic, value, b"k%d" % (number % KEYS), on_delivery=note)
        if number % 500 == 0:
            producer.poll(0)
    assert producer.flush(LIMIT_SECONDS) == 0 and not failed, failed[:1]


def read(bootstrap: str, topic: str) -> list[tuple[int, bytes, bytes | None]]:
    """(offset, key, value) of all records from the start on."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[tuple[int, bytes, bytes | None]] = []
    until = time.monotonic() + LIMIT_SECONDS
    try:
        while time.monotonic() < until:
            message = consumer.poll(1)
            error = None if message is None else message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return found
            if message is not None and error is None:
                found.append((message.offset(), message.key(), message.value()))
    finally:
        consumer.close()
    raise AssertionError(f"the end was not reached, {len(found)} records")


def values(found: list[tuple[int, bytes, bytes | None]]) -> dict[bytes, bytes]:
    newest = {key: value for _, key, value in found}
    return {key: value for key, value in newest.items() if value is not None}


def await_cleaned(bootstrap: str, topic: str, most: int) -> list[tuple[int, bytes, bytes | None]]:
    until = time.monotonic() + LIMIT_SECONDS
    while len(found := read(bootstrap, topic)) > most:
        assert time.monotonic() < until, f"{len(found)} records are left"
    return found


def expected(count: int) -> dict[bytes, bytes]:
    return {
        b"k%d" % (number % KEYS): b"%d" % number
        for number in range(count - KEYS, count)
        if number % KEYS != 7
    }


def test_the_newest_values_are_left(new_broker: BrokerFactory, topic: str) -> None:
    """While it is written, cleaned, killed and started again; the files are as Kafka's rules want
    them.
    """
    broker = new_broker(**{"log.cleaner.backoff.ms": "200"}).start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    create(admin, topic, 1, **SETTINGS)
    produce(broker.bootstrap, topic, 0, 8_000)
    found = await_cleaned(broker.bootstrap, topic, 1500)
    assert values(found) == expected(8_000)
    broker.kill()
    broker.start()
    assert values(read(broker.bootstrap, topic)) == expected(8_000)
    produce(broker.bootstrap, topic, 8_000, 12_000)
    broker.kill()  # perhaps in the middle of a round
    broker.start()
    found = await_cleaned(broker.bootstrap, topic, 1500)
    assert values(found) == expected(12_000)
    assert [offset for offset, _, _ in found] == sorted(offset for offset, _, _ in found)
    broker.stop()
    assert not verify_directory(Path(broker.data)).findings


def test_a_rate_that_was_set_by_mistake_is_corrected(new_broker: BrokerFactory, topic: str) -> None:
    """At ten bytes a second the round would last for hours: the change ends it."""
    rate = "log.cleaner.io.max.bytes.per.second"
    broker = new_broker(**{"log.cleaner.backoff.ms": "200", rate: "10"}).start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    create(admin, topic, 1, **SETTINGS)
    produce(broker.bootstrap, topic, 0, 8_000)
    assert broker.process is not None
    tasks = Path(f"/proc/{broker.process.pid}/task")
    until(
        lambda: not tasks.exists() or any(each.read_text() for each in tasks.glob("*/children")),
        "a round runs",
    )
    change = ConfigResource(
        ResourceType.BROKER,
        "1",
        incremental_configs=[
            ConfigEntry(rate, "1e12", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    admin.incremental_alter_configs([change])[change].result(LIMIT_SECONDS)
    found = await_cleaned(broker.bootstrap, topic, 1500)
    assert values(found) == expected(8_000)


class CleanedCluster(Cluster):
    """Its brokers look for a log to clean five times a second."""

    def new_broker(self, node_id: int, name: str = "") -> BrokerProcess:
        broker = super().new_broker(node_id, name)
        broker.settings["log.cleaner.backoff.ms"] = "200"
        return broker


def test_replicas_agree_on_the_newest_values(tmp_path: Path, topic: str) -> None:
    """Each is cleaned in its own time; one that was away fetches from a leader that was cleaned,
    and leads later.
    """
    cluster = CleanedCluster(tmp_path)
    try:
        cluster.start()
        view = View(cluster.bootstrap)
        view.create(topic, 1, 3, **SETTINGS)
        produce(cluster.bootstrap, topic, 0, 3_000)
        leader, _ = view.partitions(topic)[0]
        away = next(each for each in cluster.brokers if each != leader)
        cluster.brokers[away].kill()
        produce(cluster.bootstrap, topic, 3_000, 8_000)
        assert values(await_cleaned(cluster.bootstrap, topic, 1500)) == expected(8_000)
        cluster.brokers[away].start()
        view.until(lambda: len(view.partitions(topic)[0][1]) == 3, "all are in sync")
        for each in cluster.brokers:
            if each != away:
                cluster.brokers[each].kill()
        view.until(lambda: view.partitions(topic)[0][0] == away, "it leads")
        found = read(cluster.brokers[away].bootstrap, topic)
        assert values(found) == expected(8_000)
    finally:
        cluster.end()
