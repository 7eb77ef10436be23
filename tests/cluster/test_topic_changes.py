"""CreateTopics, CreatePartitions and DeleteTopics as the controller answers them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.cluster.fixtures import Fixture
from twisted_broker.security.acl import AllowAll, Operation, ResourceType
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import topics as topics_messages


@pytest.fixture
def three(fixture: Fixture) -> Fixture:
    """Three live brokers."""
    for broker in (1, 2, 3):
        fixture.join(broker)
    return fixture


def topic(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    configs: dict[str, str | None] | None = None,
    **assigned: Any,
) -> topics_messages.CreatableTopic:
    entries = [
        topics_messages.CreatableTopicConfig(name=key, value=value)
        for key, value in (configs or {}).items()
    ]
    assignments = [
        topics_messages.CreatableReplicaAssignment(partition_index=n, broker_ids=ids)
        for n, ids in assigned.get("by_hand", [])
    ]
    return topics_messages.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=entries,
        assignments=assignments,
    )


def test_a_topic_is_created_with_everything_that_was_asked(three: Fixture) -> None:
    """RL 8.5: partitions on the live brokers, leader first in the ISR, the topic's settings, its
    id in the answer.
    """
    (result,) = three.create_topics(
        topic("orders", 6, 3, {"retention.ms": "1000", "cleanup.policy": "compact,delete"})
    )
    assert (result.error_code, result.error_message) == (0, None)
    assert (result.num_partitions, result.replication_factor) == (6, 3)
    made = three.controller.image.topics_by_name["orders"]
    assert made.id == result.topic_id and sorted(made.partitions) == list(range(6))
    for partition in made.partitions.values():
        assert sorted(partition.replicas) == [1, 2, 3]
        assert (partition.leader, partition.isr) == (partition.replicas[0], partition.replicas)
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert three.controller.image.config(2, "orders") == {
        "retention.ms": "1000",
        "cleanup.policy": "compact,delete",
    }
    told = {entry.name: entry for entry in result.configs or []}
    assert (told["retention.ms"].value, told["retention.ms"].config_source) == ("1000", 1)
    assert (told["segment.bytes"].value, told["segment.bytes"].config_source) == ("1073741824", 5)


def test_defaults_come_from_the_controllers_settings() -> None:
    """CreateTopics v4: -1 partitions and -1 replicas mean num.partitions and
    default.replication.factor.
    """
    fixture = Fixture(settings={"num.partitions": "4", "default.replication.factor": "2"}).start()
    fixture.join(1)
    fixture.join(2)
    (result,) = fixture.create_topics(topic("t", -1, -1))
    assert (result.num_partitions, result.replication_factor) == (4, 2)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("here.too"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("here_too"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (topic("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (topic("t", 0), ErrorCode.INVALID_PARTITIONS),
        (topic("t", -2), ErrorCode.INVALID_PARTITIONS),
        (topic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", 1, 1, {"retention.ms": "long"}), ErrorCode.INVALID_CONFIG),
        (topic("t", 1, 1, {"no.such.setting": "1"}), ErrorCode.INVALID_CONFIG),
        (topic("t", 1, 4, {"no.such.setting": "1"}), ErrorCode.INVALID_CONFIG),
        (topic("t", 1, 1, {"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (topic("t", 1, 1, by_hand=[(0, [1])]), ErrorCode.INVALID_REQUEST),
        (topic("t", -1, -1, by_hand=[(0, [1]), (2, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", -1, -1, by_hand=[(0, [1]), (0, [2])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", -1, -1, by_hand=[(0, [1]), (1, [1, 2])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", -1, -1, by_hand=[(0, [9])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", -1, -1, by_hand=[(0, [])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_topics_that_are_refused(
    three: Fixture, wanted: topics_messages.CreatableTopic, code: ErrorCode
) -> None:
    """RL 8.5: each refusal has its code and a sentence; the other topic of the request is
    created.
    """
    three.create_topics(topic("here_too"))
    refused, made = three.create_topics(wanted, topic("good"))
    assert refused.error_code == code and refused.error_message
    assert made.error_code == 0
    assert sorted(three.controller.image.topics_by_name) == ["good", "here_too"]


def test_a_name_twice_in_one_request_is_refused_twice(three: Fixture) -> None:
    """Kafka's ControllerApis: neither of the two is created."""
    assert [result.error_code for result in three.create_topics(topic("t"), topic("t", 3))] == [
        ErrorCode.INVALID_REQUEST
    ] * 2
    assert three.controller.image.topics_by_name == {}


def test_two_new_topics_may_not_collide_with_each_other(three: Fixture) -> None:
    """`.` and `_` are one in metric names, also inside one request."""
    assert [result.error_code for result in three.create_topics(topic("a.b"), topic("a_b"))] == [
        0,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]


def test_validate_only_answers_and_writes_nothing(three: Fixture) -> None:
    """CreateTopics v1: all checks, no records."""
    before = three.controller.image
    good, bad = three.create_topics(topic("t", 3, 2), topic("u", 1, 9), validate_only=True)
    assert (good.error_code, good.num_partitions, bad.error_code) == (
        0,
        3,
        ErrorCode.INVALID_REPLICATION_FACTOR,
    )
    assert three.controller.image is before


def test_fenced_replicas_are_assigned_but_not_in_sync(three: Fixture) -> None:
    """RL 8.3: a fenced broker may be a replica, never in the ISR nor leader; only fenced ones
    are no assignment.
    """
    three.advance(9.5)
    epoch = three.register(2, b"x" * 16)
    three.beat(2, epoch)
    good, bad = three.create_topics(
        topic("t", -1, -1, by_hand=[(0, [1, 2])]), topic("u", -1, -1, by_hand=[(0, [1, 3])])
    )
    made = three.controller.image.topics_by_name["t"].partitions[0]
    assert good.error_code == 0 and (made.replicas, made.isr, made.leader) == ((1, 2), (2,), 2)
    assert bad.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_no_broker_no_topic(fixture: Fixture) -> None:
    """Kafka: with all brokers fenced a topic cannot be placed."""
    fixture.register()
    assert fixture.create_topics(topic("t"))[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_thousand_partitions_take_well_under_a_second(fixture: Fixture) -> None:
    """The controller's own share of a large CreateTopics; the limit is ten times what it needs."""
    fixture.join(1)
    start = time.process_time()
    (result,) = fixture.create_topics(topic("big", 1000))
    assert result.error_code == 0
    assert time.process_time() - start < 0.5


def grow(
    fixture: Fixture, name: str, count: int, assignments: list[list[int]] | None = None
) -> topics_messages.CreatePartitionsTopicResult:
    given = (
        None
        if assignments is None
        else [topics_messages.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    )
    request = topics_messages.CreatePartitionsRequest(
        topics=[topics_messages.CreatePartitionsTopic(name=name, count=count, assignments=given)]
    )
    answer: topics_messages.CreatePartitionsResponse = fixture.ask("create_partitions", request, 3)
    return answer.results[0]


def test_a_topic_grows(three: Fixture) -> None:
    """RL 8.5: with as many replicas as it has, placed or by hand; the old partitions stay as
    they were.
    """
    three.create_topics(topic("t", 2, 2))
    before = three.controller.image.topics_by_name["t"].partitions
    assert grow(three, "t", 4).error_code == 0
    assert grow(three, "t", 5, [[3, 1]]).error_code == 0
    after = three.controller.image.topics_by_name["t"].partitions
    assert [len(after[number].replicas) for number in range(5)] == [2] * 5
    assert after[4].replicas == (3, 1) and after[0] == before[0]


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("nope", 3, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 2, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 1, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 4, [[1, 2]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 10_003, None, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_growth_that_is_refused(
    three: Fixture, name: str, count: int, assignments: list[list[int]] | None, code: ErrorCode
) -> None:
    """RL 8.5: unknown topics, no increase, assignments that do not fit."""
    three.create_topics(topic("t", 2, 2))
    assert grow(three, name, count, assignments).error_code == code
    assert len(three.controller.image.topics_by_name["t"].partitions) == 2


def test_topics_are_deleted_by_name_and_by_id(three: Fixture) -> None:
    """RL 8.5: with their settings; unknown ones have their own errors; naming one twice refuses
    both.
    """
    first, second = three.create_topics(topic("a", configs={"retention.ms": "1"}), topic("b"))
    request = topics_messages.DeleteTopicsRequest(
        topics=[
            topics_messages.DeleteTopicState(name="a"),
            topics_messages.DeleteTopicState(name=None, topic_id=b"?" * 16),
            topics_messages.DeleteTopicState(name="nope"),
            topics_messages.DeleteTopicState(name=None, topic_id=bytes(16)),
            topics_messages.DeleteTopicState(name=None, topic_id=second.topic_id),
            topics_messages.DeleteTopicState(name="b"),
        ]
    )
    codes = [result.error_code for result in three.ask("delete_topics", request, 6).responses]
    invalid = ErrorCode.INVALID_REQUEST
    assert codes == [
        0,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        invalid,
        invalid,
        invalid,
    ]
    image = three.controller.image
    assert (
        sorted(image.topics_by_name) == ["b"]
        and image.config(2, "a") == {}
        and first.topic_id not in image.topics_by_id
    )


def test_deletion_by_names_in_older_versions(three: Fixture) -> None:
    """DeleteTopics v5 and below carry names only."""
    three.create_topics(topic("a"))
    answer = three.ask(
        "delete_topics", topics_messages.DeleteTopicsRequest(topic_names=["a", "z"]), 5
    )
    assert [result.error_code for result in answer.responses] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


@pytest.mark.parametrize(
    ("version", "code"), [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)]
)
def test_deletion_can_be_switched_off(version: int, code: ErrorCode) -> None:
    """delete.topic.enable=false."""
    fixture = Fixture(settings={"delete.topic.enable": "false"}).start()
    with pytest.raises(BrokerError) as caught:
        fixture.ask(
            "delete_topics", topics_messages.DeleteTopicsRequest(topic_names=["a"]), version
        )
    assert caught.value.code is code


class Only(AllowAll):
    """Allows only what touches topics whose name begins with `mine`."""

    def authorize(
        self, principal: Any, host: str, operation: Operation, resource: ResourceType, name: str
    ) -> bool:
        return resource == ResourceType.TOPIC and name.startswith("mine")


def test_permission_comes_before_existence(three: Fixture) -> None:
    """What may not be touched is refused alike, there or not; the rest of the request is
    done.
    """
    (theirs,) = three.create_topics(topic("theirs"))
    three.authorizer = Only()
    results = {
        result.name: result.error_code
        for result in three.create_topics(topic("mine"), topic("theirs"), topic("new"))
    }
    assert results == {
        "mine": 0,
        "theirs": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "new": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    assert (
        grow(three, "theirs", 5).error_code
        == grow(three, "nope", 5).error_code
        == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    by_id = topics_messages.DeleteTopicsRequest(
        topics=[
            topics_messages.DeleteTopicState(name=None, topic_id=theirs.topic_id),
            topics_messages.DeleteTopicState(name="theirs"),
        ]
    )
    answers = three.ask("delete_topics", by_id, 6).responses
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert [(each.name, each.error_code) for each in answers] == [
        (None, refused),
        ("theirs", refused),
    ]
