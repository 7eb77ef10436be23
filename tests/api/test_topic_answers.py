"""Answers about topics are encoded once (`api/topic_answers.py`), and nobody can tell."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.api.test_metadata import VERSIONS, ask, create, named
from tests.memory_broker import MemoryBroker
from twisted_broker.api.topic_answers import MOST_BYTES, TopicAnswers
from twisted_broker.image.entries import TopicImage
from twisted_broker.wire.messages import cluster as described
from twisted_broker.wire.messages import metadata as metadata_messages
from twisted_broker.wire.messages.metadata_records import PartitionChangeRecord
from twisted_broker.wire.messages.topics import CreatePartitionsRequest, CreatePartitionsTopic
from twisted_broker.wire.schema import decode, encode

NEVER = -0x80000000


@pytest.fixture
def broker() -> MemoryBroker:
    made = MemoryBroker().start()
    create(made, "a", 3)
    create(made, "b", 1)
    return made


def grow(broker: MemoryBroker, name: str, count: int) -> None:
    wanted = CreatePartitionsTopic(name=name, count=count, assignments=None)
    answer = broker.ask(CreatePartitionsRequest(topics=[wanted], timeout_ms=1000), 3)
    assert answer.results[0].error_code == 0
    broker.pass_time(0)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_second_answer_is_the_first(broker: MemoryBroker, version: int) -> None:
    """In every version, with a topic that is not there among them; the bytes are those that the
    codec would write, none too many.
    """
    asked = named("b", "not a name", "a")
    first, second = (ask(broker, asked, version) for _ in "12")
    assert first == second and [len(each.partitions) for each in first.topics] == [1, 0, 3]
    whole = encode(first, version)
    assert decode(metadata_messages.MetadataResponse, whole, version) == first
    if version:
        assert ask(broker, None, version) == ask(broker, None, version)


@pytest.mark.parametrize("version", range(8, 14))
def test_operations_are_of_the_request_and_not_kept(broker: MemoryBroker, version: int) -> None:
    """One client wants them, the next one does not."""
    wants = [True, False, True]
    found = [
        ask(broker, named("a"), version, include_topic_authorized_operations=each).topics[0]
        for each in wants
    ]
    assert [each.topic_authorized_operations != NEVER for each in found] == wants


def test_a_change_of_a_topic_is_in_the_next_answer(broker: MemoryBroker) -> None:
    """What is kept of the others is kept further."""
    answers = broker.broker.parts.topic_answers
    ask(broker, named("a", "b"), 12)
    (kept,) = answers._kept.values()
    before = {topic.name: data for topic, data in kept.values()}
    grow(broker, "b", 2)
    assert [len(each.partitions) for each in ask(broker, named("a", "b"), 12).topics] == [3, 2]
    after = {topic.name: data for topic, data in kept.values()}
    assert after["a"] is before["a"] and after["b"] != before["b"]


@pytest.mark.parametrize("api", ["Metadata", "DescribeTopicPartitions"])
def test_a_change_of_a_partition_is_in_the_next_answer(broker: MemoryBroker, api: str) -> None:
    """Of its leader, say: as many partitions as before, and the same brokers."""

    def leaders() -> list[int]:
        if api == "Metadata":
            (topic,) = ask(broker, named("a"), 12).topics
        else:
            wanted = [described.TopicRequest(name="a")]
            (topic,) = broker.ask(described.DescribeTopicPartitionsRequest(topics=wanted), 0).topics
        return [each.leader_id for each in topic.partitions]

    assert leaders() == [1, 1, 1]
    image = broker.broker.parts.metadata.image
    topic_id = image.topics_by_name["a"].id
    change = PartitionChangeRecord(partition_id=1, topic_id=topic_id, leader=-1)
    broker.broker.parts.metadata = SimpleNamespace(image=image.apply([change])[0])
    assert leaders() == [1, -1, 1]


def test_partitions_are_described_as_before(broker: MemoryBroker) -> None:
    """The same from what is kept, for each limit; the cursor says where to go on."""

    def describe(limit: int, cursor=None) -> described.DescribeTopicPartitionsResponse:
        topics = [described.TopicRequest(name=n) for n in "abz"]
        request = described.DescribeTopicPartitionsRequest(
            topics=topics, response_partition_limit=limit, cursor=cursor
        )
        return broker.ask(request, 0)

    for limit in (1, 2, 3, 4, 5):
        first, second = describe(limit), describe(limit)
        assert first == second
        found = [
            (topic.name, each.partition_index)
            for topic in first.topics
            for each in topic.partitions
        ]
        assert found == [("a", 0), ("a", 1), ("a", 2), ("b", 0)][:limit]
    two = describe(2)
    assert (two.next_cursor.topic_name, two.next_cursor.partition_index) == ("a", 2)
    cursor = described.DescribeTopicPartitionsRequestCursor(topic_name="a", partition_index=2)
    rest = describe(9, cursor)
    assert [(t.name, len(t.partitions), t.error_code) for t in rest.topics] == [
        ("a", 1, 0),
        ("b", 1, 0),
        ("z", 0, 3),
    ]
    assert rest.next_cursor is None


def test_what_is_kept_is_bounded_and_goes_with_a_change_of_a_broker() -> None:
    """More than the bound: all is forgotten; so it is with another table of brokers."""
    answers, brokers = TopicAnswers(), {1: "broker"}
    topic, piece = TopicImage("t", b"i" * 16, {}), b"x" * (MOST_BYTES // 4)
    for number in range(12):
        kept = answers.of(brokers, "PLAINTEXT", 3, 12)
        answers.keep(kept, (b"i" * 16, 0, number), topic, piece)
        assert answers.size <= MOST_BYTES
    answers.keep(answers.of(brokers, "PLAINTEXT", 3, 12), (b"j" * 16, 0, 1), topic, b"one")
    answers.keep(answers.of(brokers, "PLAINTEXT", 3, 12), (b"j" * 16, 0, 1), topic, b"three")
    assert answers.of(brokers, "PLAINTEXT", 3, 12)[b"j" * 16, 0, 1] == (topic, b"three")
    assert not answers.of(brokers, "SSL", 3, 12) and not answers.of(brokers, "PLAINTEXT", 3, 11)
    assert not answers.of(dict(brokers), "PLAINTEXT", 3, 12) and answers.size == 0
