"""The limit of partitions per request holds however they are placed, over all topics of the
request.
"""

from __future__ import annotations

import pytest

from tests.memory_broker import MemoryBroker
from twisted_broker.api.controller import _AT_A_TIME
from twisted_broker.cluster.topic_changes import MAX_PARTITIONS_PER_REQUEST
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
)


def test_a_manual_assignment_keeps_to_the_limit() -> None:
    """10,001 partitions assigned by hand are refused as 10,001 counted ones are; with them, as in
    Kafka, the whole request, whatever else is wrong with it.
    """
    broker = MemoryBroker().start()

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
        return [topic.error_code for topic in broker.ask(request, 7).topics]

    most, refused = MAX_PARTITIONS_PER_REQUEST, ErrorCode.POLICY_VIOLATION
    assert codes(by_hand("wide", most + 1), counted("a/b", 1)) == [refused, refused]
    assert codes(counted("a", 5), by_hand("b", most - 4)) == [refused, refused]
    assert codes(counted("twice", most), counted("twice", most), counted("a", -1)) == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    broker.stop()


@pytest.mark.parametrize("validate_only", [True, False])
def test_the_limit_counts_over_all_parts_of_a_request(validate_only: bool) -> None:
    """Also where nothing is written: what is validated is what would be done."""
    broker = MemoryBroker().start()
    names = [f"t{number}" for number in range(_AT_A_TIME + 1)]
    made = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    broker.ask(CreateTopicsRequest(topics=made, timeout_ms=1000), 7)
    counts = [MAX_PARTITIONS_PER_REQUEST - len(names) + 3, *[2] * (len(names) - 2), 3]
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsTopic(name=name, count=count, assignments=None)
            for name, count in zip(names, counts, strict=True)
        ],
        timeout_ms=1000,
        validate_only=validate_only,
    )
    refused = [each.error_code for each in broker.ask(request, 3).results]
    assert refused == [*[0] * (len(names) - 1), ErrorCode.POLICY_VIOLATION]
    broker.stop()
