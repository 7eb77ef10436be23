"""Metadata and DescribeTopicPartitions of a whole broker in memory."""

from __future__ import annotations

import pytest

from tests.memory_broker import MemoryBroker
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import cluster as described
from twisted_broker.wire.messages import metadata as metadata_messages
from twisted_broker.wire.messages import topics
from twisted_broker.wire.messages.broker_lifecycle import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
)
from twisted_broker.wire.messages.topics import CreatableTopic
from twisted_broker.wire.primitives import NULL_UUID

VERSIONS = range(14)


@pytest.fixture(scope="module")
def broker() -> MemoryBroker:
    """One broker with topics `a` (3 partitions) and `b`."""
    made = MemoryBroker().start()
    create(made, "a", 3)
    create(made, "b", 1)
    return made


def create(broker: MemoryBroker, name: str, partitions: int) -> bytes:
    topic = topics.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    answer = broker.ask(topics.CreateTopicsRequest(topics=[topic]), 7)
    assert answer.topics[0].error_code == 0
    broker.pass_time(0)
    found: bytes = answer.topics[0].topic_id
    return found


def named(*names: str) -> list[metadata_messages.MetadataRequestTopic]:
    return [metadata_messages.MetadataRequestTopic(name=name) for name in names]


def ask(
    broker: MemoryBroker,
    asked: list[metadata_messages.MetadataRequestTopic] | None,
    version: int,
    **more: bool,
) -> metadata_messages.MetadataResponse:
    answer: metadata_messages.MetadataResponse = broker.ask(
        metadata_messages.MetadataRequest(topics=asked, **more), version
    )
    return answer


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_is_where_its_leader_is(broker: MemoryBroker, version: int) -> None:
    """Metadata v0-13: brokers at the address of the listener, each partition with leader,
    replicas and ISR, and what each version adds.
    """
    answer = ask(broker, named("a"), version)
    assert [(each.node_id, each.host, each.port) for each in answer.brokers] == [
        (1, "127.0.0.1", 9092)
    ]
    (topic,) = answer.topics
    assert (topic.error_code, topic.name, topic.is_internal) == (0, "a", False)
    assert [
        (p.error_code, p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes)
        for p in topic.partitions
    ] == [(0, number, 1, [1], [1]) for number in range(3)]
    assert answer.controller_id == (1 if version >= 1 else -1)
    assert answer.cluster_id == (broker.broker.cluster_id if version >= 2 else None)
    assert topic.partitions[0].leader_epoch == (0 if version >= 7 else -1)
    assert (topic.topic_id != NULL_UUID) == (version >= 10)


@pytest.mark.parametrize(
    ("version", "asked", "names"),
    [(0, [], ["a", "b"]), (1, None, ["a", "b"]), (1, [], []), (12, None, ["a", "b"]), (12, [], [])],
)
def test_all_topics_or_none(
    broker: MemoryBroker,
    version: int,
    asked: list[metadata_messages.MetadataRequestTopic] | None,
    names: list[str],
) -> None:
    """Invariant 4: version 0 has no null: there an empty list means all."""
    assert [topic.name for topic in ask(broker, asked, version).topics] == names


@pytest.mark.parametrize("version", [12, 13])
def test_topics_by_id(broker: MemoryBroker, version: int) -> None:
    """KIP-516: by id alone; an unknown one is UNKNOWN_TOPIC_ID, without a name."""
    known = ask(broker, named("b"), 12).topics[0].topic_id
    asked = [
        metadata_messages.MetadataRequestTopic(name=None, topic_id=known),
        metadata_messages.MetadataRequestTopic(name=None, topic_id=b"?" * 16),
    ]
    found, unknown = ask(broker, asked, version).topics
    assert (found.name, found.error_code, found.topic_id) == ("b", 0, known)
    both = metadata_messages.MetadataRequestTopic(name="a", topic_id=known)
    assert [topic.name for topic in ask(broker, [both], version).topics] == ["b"]
    # As Kafka: beside an id, a name alone is not looked at, and none is a creation.
    mixed = [*named("a", "in/valid", "new"), both, metadata_messages.MetadataRequestTopic(name="")]
    assert [topic.name for topic in ask(broker, mixed, version).topics] == ["b"]
    assert "new" not in broker.broker.parts.metadata.image.topics_by_name
    assert (unknown.name, unknown.error_code, unknown.topic_id) == (
        None,
        ErrorCode.UNKNOWN_TOPIC_ID,
        b"?" * 16,
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_names_that_are_not_there(broker: MemoryBroker, version: int) -> None:
    """Unknown when nothing may be created; a name that no topic can have is
    INVALID_TOPIC_EXCEPTION.
    """
    more = {"allow_auto_topic_creation": False} if version >= 4 else {}
    asked = named("nope", "in/valid") if version >= 4 else named("in/valid")
    codes = [topic.error_code for topic in ask(broker, asked, version, **more).topics]
    assert (
        codes
        == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION][-len(asked) :]
    )
    assert "nope" not in broker.broker.parts.metadata.image.topics_by_name


def test_a_topic_is_created_when_it_is_named() -> None:
    """auto.create.topics.enable: the first answer says unknown, soon after it is there, with the
    broker's defaults.
    """
    broker = MemoryBroker(num_partitions="4").start()
    assert (
        ask(broker, named("fresh"), 12).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    broker.pass_time(0.01)
    (topic,) = ask(broker, named("fresh"), 12).topics
    assert topic.error_code == 0 and [p.leader_id for p in topic.partitions] == [1] * 4


@pytest.mark.parametrize(
    ("own", "wanted"),
    [({}, (-1, -1)), ({"num_partitions": "3", "default_replication_factor": "2"}, (3, 2))],
)
def test_a_topic_is_created_as_the_brokers_own_file_says(
    own: dict[str, str], wanted: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's AutoTopicCreationManager: the controller may have other numbers in its file."""
    broker = MemoryBroker(**own).start()
    asked: list[CreatableTopic] = []
    monkeypatch.setattr(
        broker.broker.parts.forwarding,
        "create_in_background",
        lambda context, topics: asked.extend(topics),
    )
    ask(broker, named("fresh"), 12)
    assert [(each.num_partitions, each.replication_factor) for each in asked] == [wanted]


def test_creation_can_be_switched_off() -> None:
    """auto.create.topics.enable=false: unknown stays unknown."""
    broker = MemoryBroker(auto_create_topics_enable="false").start()
    ask(broker, named("fresh"), 12)
    broker.pass_time(0.1)
    assert broker.broker.parts.metadata.image.topics_by_name == {}


def test_an_internal_topic_is_made_as_it_must_be() -> None:
    """`__consumer_offsets`: 50 partitions, compacted, marked internal."""
    broker = MemoryBroker().start()
    ask(broker, named("__consumer_offsets"), 12)
    broker.pass_time(0.1)
    (topic,) = ask(broker, named("__consumer_offsets"), 12).topics
    assert (topic.error_code, topic.is_internal, len(topic.partitions)) == (0, True, 50)
    assert (
        broker.broker.parts.metadata.image.config(2, "__consumer_offsets")["cleanup.policy"]
        == "compact"
    )


@pytest.mark.parametrize("version", [0, 12])
def test_a_partition_whose_leader_is_gone(version: int) -> None:
    """RL 8.3: LEADER_NOT_AVAILABLE, leader -1; the replica is offline from version 5 on, and
    left out in version 0.
    """
    broker = MemoryBroker().start()
    register_another(broker)
    assignment = topics.CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 5])
    topic = topics.CreatableTopic(
        name="t", num_partitions=-1, replication_factor=-1, assignments=[assignment]
    )
    assert broker.ask(topics.CreateTopicsRequest(topics=[topic]), 7).topics[0].error_code == 0
    broker.pass_time(0)
    partition = ask(broker, named("t"), version).topics[0].partitions[0]
    if version == 0:
        assert (partition.error_code, partition.replica_nodes) == (
            ErrorCode.REPLICA_NOT_AVAILABLE,
            [1],
        )
    else:
        assert (partition.error_code, partition.replica_nodes, partition.offline_replicas) == (
            0,
            [1, 5],
            [5],
        )
    epoch = broker.broker.parts.metadata.image.brokers[1].epoch
    broker.ask(
        BrokerHeartbeatRequest(
            broker_id=1, broker_epoch=epoch, current_metadata_offset=1 << 40, want_fence=True
        ),
        1,
        port=9093,
    )
    broker.pass_time(0)
    partition = ask(broker, named("t"), version).topics[0].partitions[0]
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


def register_another(broker: MemoryBroker) -> None:
    """Broker 5 registers and stays fenced."""
    features = broker.broker.parts.metadata.image.brokers[1].features
    request = BrokerRegistrationRequest(
        broker_id=5,
        cluster_id=broker.broker.cluster_id,
        incarnation_id=b"5" * 16,
        listeners=[BrokerRegistrationRequestListener(name="PLAINTEXT", host="five", port=9092)],
        features=[
            BrokerRegistrationRequestFeature(
                name=name, min_supported_version=low, max_supported_version=high
            )
            for name, (low, high) in features.items()
        ],
        log_dirs=[b"5" * 16],
        rack="r5",
    )
    assert broker.ask(request, 4, port=9093).error_code == 0
    broker.pass_time(0)


def test_cluster_operations_are_listed_when_requested(broker: MemoryBroker) -> None:
    """KIP-430: only in versions 8 to 10 for the cluster; for topics from 8 on."""
    answer = ask(
        broker,
        named("a"),
        10,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    assert (
        answer.cluster_authorized_operations > 0
        and answer.topics[0].topic_authorized_operations > 0
    )
    silent = ask(broker, named("a"), 10)
    assert (
        silent.cluster_authorized_operations
        == silent.topics[0].topic_authorized_operations
        == -(2**31)
    )


def describe(
    broker: MemoryBroker, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> described.DescribeTopicPartitionsResponse:
    at = (
        None
        if cursor is None
        else described.DescribeTopicPartitionsRequestCursor(
            topic_name=cursor[0], partition_index=cursor[1]
        )
    )
    request = described.DescribeTopicPartitionsRequest(
        topics=[described.TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=at,
    )
    answer: described.DescribeTopicPartitionsResponse = broker.ask(request, 0)
    return answer


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
def test_partitions_come_in_pages(broker: MemoryBroker, limit: int) -> None:
    """KIP-966: pages by the cursor, each partition once, in order, whatever the limit."""
    seen: list[tuple[str | None, int]] = []
    cursor: tuple[str, int] | None = None
    for _ in range(10):
        page = describe(broker, limit=limit, cursor=cursor)
        found = [
            (topic.name, partition.partition_index)
            for topic in page.topics
            for partition in topic.partitions
        ]
        assert 0 < len(found) <= limit
        seen += found
        if page.next_cursor is None:
            break
        cursor = (page.next_cursor.topic_name, page.next_cursor.partition_index)
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]


def test_pages_of_what_is_not_there(broker: MemoryBroker) -> None:
    """An unknown name has its error; a cursor below 0, or at a topic that was not asked for, is
    INVALID_REQUEST; no limit is a limit of 1.
    """
    page = describe(broker, "nope", "b")
    assert [(topic.name, topic.error_code) for topic in page.topics] == [
        ("b", 0),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert page.topics[0].partitions[0].eligible_leader_replicas == []
    for cursor in (("a", -1), ("b", 0), ("A", 0)):
        refused = describe(broker, "a", cursor=cursor)
        assert [topic.error_code for topic in refused.topics] == [ErrorCode.INVALID_REQUEST]
    for limit in (0, -1, -(2**31)):
        page = describe(broker, "a", limit=limit)
        assert [len(topic.partitions) for topic in page.topics] == [1]
        assert page.next_cursor is not None
    assert describe(broker, cursor=("aa", 7)).topics[0].name == "b"
