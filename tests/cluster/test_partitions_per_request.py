"""The limit of partitions per request holds however they are placed, over all topics of the
request.
"""

from __future__ import annotations

from tests.memory_broker import MemoryBroker
from twisted_broker.cluster.topic_changes import MAX_PARTITIONS_PER_REQUEST
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)


def test_a_manual_assignment_keeps_to_the_limit() -> None:
    """10,001 partitions assigned by hand are refused as 10,001 counted ones are; so is what a
    counted topic before it leaves no room for.
    """
    house = MemoryBroker().start()

    def by_hand(name: str, count: int) -> CreatableTopic:
        chosen = [
            CreatableReplicaAssignment(partition_index=number, broker_ids=[1])
            for number in range(count)
        ]
        return CreatableTopic(
            name=name, num_partitions=-1, replication_factor=-1, assignments=chosen
        )

    counted = CreatableTopic(name="counted", num_partitions=5, replication_factor=1)
    topics = [
        by_hand("wide", MAX_PARTITIONS_PER_REQUEST + 1),
        counted,
        by_hand("rest", MAX_PARTITIONS_PER_REQUEST - 4),
        by_hand("fits", 3),
    ]
    answer = house.ask(CreateTopicsRequest(topics=topics, validate_only=True, timeout_ms=1000), 7)
    refused = ErrorCode.POLICY_VIOLATION
    assert [topic.error_code for topic in answer.topics] == [refused, 0, refused, 0]
    house.stop()


def test_more_topics_than_that_are_refused_together() -> None:
    house = MemoryBroker().start()
    wanted = [
        CreatableTopic(name=f"t{number}", num_partitions=1, replication_factor=1)
        for number in range(MAX_PARTITIONS_PER_REQUEST + 1)
    ]
    answer = house.ask(CreateTopicsRequest(topics=wanted, timeout_ms=1000), 7)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.POLICY_VIOLATION}
    assert [topic.name for topic in answer.topics] == [topic.name for topic in wanted]
    assert not house.broker.parts.metadata.image.topics_by_name
    house.stop()
