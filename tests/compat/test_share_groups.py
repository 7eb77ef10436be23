"""Share groups (KIP-932) through librdkafka's share consumer, and a broker that starts again."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.compat import clients
from tests.compat.broker_process import BrokerProcess
from tests.compat.raw import Connection, create_topic

SETTINGS = {"share.coordinator.state.topic.num.partitions": "1"}
SECONDS = 30


def consumer(broker: BrokerProcess) -> ShareConsumer:
    made = ShareConsumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    made.subscribe(["t"])
    return made


def values(member: ShareConsumer, count: int) -> list[bytes]:
    """So many; each poll acknowledges what the one before gave."""
    found: list[bytes] = []
    end = time.monotonic() + SECONDS
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count}"
        for message in member.poll(timeout=0.5) or ():
            assert message.error() is None
            found.append(message.value())
    return found


def test_what_was_accepted_does_not_come_again_after_a_restart(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, SETTINGS)
    broker.start()
    try:
        with Connection(broker.address) as connection:
            assert create_topic(connection, "t", partitions=1) == 0
        first = [(None, b"a%d" % number, ()) for number in range(20)]
        clients.Confluent().produce(broker.bootstrap, "t", "none", first)
        entry = ConfigEntry(
            "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
        )
        group = ConfigResource(ResourceType.GROUP, "g", incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for changed in admin.incremental_alter_configs([group]).values():
            changed.result(SECONDS)
        member = consumer(broker)
        assert sorted(values(member, 20)) == sorted(value for _, value, _ in first)
        member.commit_sync()
        member.close()
        broker.stop()
        broker.start()
        second = [(None, b"b%d" % number, ()) for number in range(20)]
        clients.Confluent().produce(broker.bootstrap, "t", "none", second)
        member = consumer(broker)
        assert sorted(values(member, 20)) == sorted(value for _, value, _ in second)
        member.close()
    finally:
        broker.stop()
