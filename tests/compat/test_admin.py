"""Topics, settings, offsets and descriptions through stock admin clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka import KafkaAdminClient

from tests.compat import clients
from tests.compat.broker_process import BrokerProcess

LIMIT_SECONDS = 90


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def python_admin(broker: BrokerProcess) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


def create(admin: AdminClient, topic: str, partitions: int = 1, **config: str) -> None:
    new = NewTopic(
        topic,
        partitions,
        1,
        config={name.replace("_", "."): value for name, value in config.items()},
    )
    admin.create_topics([new], operation_timeout=LIMIT_SECONDS)[topic].result(LIMIT_SECONDS)


def until(condition: Callable[[], object], what: str) -> None:
    """A change is answered when the controller has it; the broker that is asked next may hear of
    it a moment later.
    """
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {LIMIT_SECONDS} s: {what}"
        time.sleep(0.02)


def partitions_of(admin: AdminClient, topic: str) -> int:
    """0: there is no such topic."""
    found = admin.list_topics(timeout=LIMIT_SECONDS).topics.get(topic)
    return 0 if found is None else len(found.partitions)


def settings_of(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(
        LIMIT_SECONDS
    )
    return found


def test_a_topic_from_birth_to_death(admin: AdminClient, topic: str) -> None:
    """Create, see, grow, refuse to create twice or to shrink, delete, and create again under
    another id.
    """
    create(admin, topic, 2)
    until(lambda: partitions_of(admin, topic) == 2, "it is seen")
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        create(admin, topic, 2)
    admin.create_partitions([NewPartitions(topic, 5)], operation_timeout=LIMIT_SECONDS)[
        topic
    ].result(LIMIT_SECONDS)
    until(lambda: partitions_of(admin, topic) == 5, "it has grown")
    with pytest.raises(KafkaException, match="INVALID_PARTITIONS"):
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(LIMIT_SECONDS)
    admin.delete_topics([topic], operation_timeout=LIMIT_SECONDS)[topic].result(LIMIT_SECONDS)
    until(lambda: partitions_of(admin, topic) == 0, "it is gone")
    create(admin, topic, 1)


def test_settings_of_a_topic(admin: AdminClient, topic: str) -> None:
    """Given at creation, changed one by one, taken back to the default; a wrong value is refused
    and changes nothing.
    """
    create(admin, topic, 1, retention_ms="60000", cleanup_policy="compact")
    until(lambda: partitions_of(admin, topic) == 1, "it is seen")
    found = settings_of(admin, topic)
    assert found["retention.ms"].value == "60000" and not found["retention.ms"].is_default
    assert found["cleanup.policy"].value == "compact" and found["max.message.bytes"].is_default
    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
            ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.APPEND),
        ],
    )
    admin.incremental_alter_configs([change])[change].result(LIMIT_SECONDS)
    until(
        lambda: settings_of(admin, topic)["max.message.bytes"].value == "2000", "the change is seen"
    )
    found = settings_of(admin, topic)
    assert found["max.message.bytes"].value == "2000" and found["retention.ms"].is_default
    assert set(found["cleanup.policy"].value.split(",")) == {"compact", "delete"}
    bad = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("retention.ms", "soon", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        admin.incremental_alter_configs([bad])[bad].result(LIMIT_SECONDS)
    assert settings_of(admin, topic)["retention.ms"].is_default


def test_a_setting_takes_effect(admin: AdminClient, broker: BrokerProcess, topic: str) -> None:
    """After max.message.bytes was lowered, a larger record is refused."""
    create(admin, topic, 1, max_message_bytes="1000")
    clients.Confluent().produce(broker.bootstrap, topic, "none", [(None, b"x" * 500, ())])
    with pytest.raises(AssertionError, match=r"MSG_SIZE_TOO_LARGE|too large"):
        clients.Confluent().produce(broker.bootstrap, topic, "none", [(None, b"x" * 2000, ())])


def test_records_are_deleted_and_offsets_found(
    admin: AdminClient, broker: BrokerProcess, topic: str
) -> None:
    """DeleteRecords moves the earliest offset; earliest, latest and by time answer what was
    asked.
    """
    create(admin, topic)
    clients.Confluent().produce(
        broker.bootstrap, topic, "none", [(None, b"%d" % n, ()) for n in range(10)]
    )
    partition = TopicPartition(topic, 0, 4)
    assert admin.delete_records([partition])[partition].result(LIMIT_SECONDS).low_watermark == 4
    asked = TopicPartition(topic, 0)
    for spec, offset in (
        (OffsetSpec.earliest(), 4),
        (OffsetSpec.latest(), 10),
        (OffsetSpec.for_timestamp(0), 4),
    ):
        assert admin.list_offsets({asked: spec})[asked].result(LIMIT_SECONDS).offset == offset
    read = clients.KafkaPython().consume(broker.bootstrap, topic, f"group-{topic}", 6)
    assert [value for _, value, _ in read] == [b"%d" % n for n in range(4, 10)]


def test_the_cluster_describes_itself(
    admin: AdminClient, broker: BrokerProcess, topic: str
) -> None:
    """DescribeCluster, DescribeTopics, broker settings and log directories agree with each
    other.
    """
    create(admin, topic, 3)
    cluster = admin.describe_cluster().result(LIMIT_SECONDS)
    assert cluster.cluster_id and len(cluster.nodes) == 1
    node = cluster.nodes[0]
    assert f"{node.host}:{node.port}" == broker.bootstrap
    resource = ConfigResource(ResourceType.BROKER, str(node.id))
    assert (
        int(admin.describe_configs([resource])[resource].result(LIMIT_SECONDS)["node.id"].value)
        == node.id
    )


def test_log_directories(python_admin: KafkaAdminClient, broker: BrokerProcess, topic: str) -> None:
    """DescribeLogDirs knows the size of what was written."""
    clients.KafkaPython().produce(broker.bootstrap, topic, "none", [(None, b"x" * 1000, ())] * 10)
    text = str(python_admin.describe_log_dirs())
    assert topic in text


def test_a_topic_comes_into_being_by_its_use(broker: BrokerProcess, topic: str) -> None:
    """auto.create.topics.enable is on, as in Kafka."""
    clients.KafkaPython().produce(broker.bootstrap, topic, "none", [(None, b"first", ())])
    assert clients.Confluent().consume(broker.bootstrap, topic, f"group-{topic}", 1) == [
        (None, b"first", ())
    ]
