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
    """10,001 partitions assigned by hand are refused as 10,001 counted ones are; with them, as in
    Kafka, the whole request, whatever else is wrong with it.
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

    def counted(name: str, count: int) -> CreatableTopic:
        return CreatableTopic(name=name, num_partitions=count, replication_factor=1)

    def codes(*topics: CreatableTopic) -> list[int]:
        request = CreateTopicsRequest(topics=list(topics), timeout_ms=1000)
        return [topic.error_code for topic in house.ask(request, 7).topics]

    most, refused = MAX_PARTITIONS_PER_REQUEST, ErrorCode.POLICY_VIOLATION
    assert codes(by_hand("wide", most + 1), counted("a/b", 1)) == [refused, refused]
    assert codes(counted("a", 5), by_hand("b", most - 4)) == [refused, refused]
    assert codes(counted("twice", most), counted("twice", most), counted("a", -1)) == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    house.stop()
