"""Long requests in slices (`api/slices.py`): nobody waits for another's, and the answer is the
one that a short request would get.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from twisted.internet.task import Clock

from tests.memory_broker import MemoryBroker
from twisted_broker.api.slices import SLICE_ELEMENTS, Slices
from twisted_broker.wire.messages import (
    cluster,
    configs,
    groups,
    list_offsets,
    offsets,
    producers,
    topics,
)
from twisted_broker.wire.messages.api_versions import ApiVersionsRequest
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from twisted_broker.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.primitives import FEW_ELEMENTS, MAX_ELEMENTS
from twisted_broker.wire.schema import (
    decode,
    decode_few,
    decode_in_slices,
    encode,
    encode_in_slices,
    run_whole,
)

MANY = 6 * FEW_ELEMENTS


def test_one_slice_of_one_request_a_turn() -> None:
    """Ten long requests take turns: each turn of the reactor serves one of them, in the order in
    which they came.
    """
    clock = Clock()
    slices = Slices(clock)
    served: list[int] = []

    def next_one(number: int, _: None) -> None:
        go_on(number)

    def go_on(number: int) -> None:
        served.append(number)
        if served.count(number) < 3:
            slices.next_turn().addCallback(lambda _: go_on(number))

    for number in range(10):
        slices.next_turn().addCallback(partial(next_one, number))
    turns = 0
    while clock.getDelayedCalls():
        assert len(clock.getDelayedCalls()) == 1
        clock.calls.pop(0).func()
        turns += 1
        assert len(served) == turns
    assert served == [*range(10)] * 3


def test_a_waiter_whose_client_went_is_passed_over() -> None:
    """Its Deferred was cancelled; the others go on."""
    clock = Clock()
    slices = Slices(clock)
    first, second = slices.next_turn(), slices.next_turn()
    first.addErrback(lambda failure: None)
    first.cancel()
    clock.pump([0, 0])
    assert second.called


def worst() -> dict[str, tuple[Any, int]]:
    names = [f"n{number}" for number in range(MANY)]
    spread = list(range(MANY))
    gone = [list_offsets.ListOffsetsPartition(partition_index=9, timestamp=-1)] * MANY
    fetched = [
        FetchPartition(partition=number % 5000, partition_max_bytes=9) for number in range(MANY)
    ]
    return {
        "ListOffsets": (
            list_offsets.ListOffsetsRequest(
                topics=[list_offsets.ListOffsetsTopic(name="gone", partitions=gone)]
            ),
            1,
        ),
        "Fetch": (
            FetchRequest(
                max_wait_ms=0, max_bytes=1000, topics=[FetchTopic(topic="gone", partitions=fetched)]
            ),
            11,
        ),
        "Metadata": (
            MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names]),
            12,
        ),
        "Produce": (
            ProduceRequest(
                acks=1,
                timeout_ms=1,
                topic_data=[
                    TopicProduceData(
                        name="gone",
                        partition_data=[PartitionProduceData(index=0, records=b"")] * MANY,
                    )
                ],
            ),
            7,
        ),
        "DeleteRecords": (
            topics.DeleteRecordsRequest(
                timeout_ms=1,
                topics=[
                    topics.DeleteRecordsTopic(
                        name="t",
                        partitions=[
                            topics.DeleteRecordsPartition(partition_index=n) for n in spread
                        ],
                    )
                ],
            ),
            2,
        ),
        "OffsetForLeaderEpoch": (
            OffsetForLeaderEpochRequest(
                topics=[
                    OffsetForLeaderTopic(
                        topic="t", partitions=[OffsetForLeaderPartition(partition=9)] * MANY
                    )
                ]
            ),
            4,
        ),
        "DescribeProducers": (
            producers.DescribeProducersRequest(
                topics=[producers.TopicRequest(name="t", partition_indexes=spread)]
            ),
            0,
        ),
        "DescribeConfigs": (
            configs.DescribeConfigsRequest(
                resources=[
                    configs.DescribeConfigsResource(
                        resource_type=2, resource_name=name, configuration_keys=None
                    )
                    for name in names
                ]
            ),
            4,
        ),
        "OffsetFetch": (
            offsets.OffsetFetchRequest(
                group_id="g",
                topics=[offsets.OffsetFetchRequestTopic(name="t", partition_indexes=spread)],
            ),
            7,
        ),
        "DescribeGroups": (groups.DescribeGroupsRequest(groups=names), 5),
        "DescribeTopicPartitions": (
            cluster.DescribeTopicPartitionsRequest(
                topics=[cluster.TopicRequest(name=name) for name in names],
                response_partition_limit=2000,
                cursor=None,
            ),
            0,
        ),
        "CreateTopics": (
            topics.CreateTopicsRequest(
                topics=[
                    topics.CreatableTopic(name=f"a {name}", num_partitions=1, replication_factor=1)
                    for name in names
                ],
                timeout_ms=60_000,
            ),
            7,
        ),
        "DeleteTopics": (
            topics.DeleteTopicsRequest(
                topics=[topics.DeleteTopicState(name=name) for name in names], timeout_ms=60_000
            ),
            6,
        ),
        "IncrementalAlterConfigs": (
            configs.IncrementalAlterConfigsRequest(
                resources=[
                    configs.IncrementalAlterConfigsRequestAlterConfigsResource(
                        resource_type=2, resource_name=name
                    )
                    for name in names
                ]
            ),
            1,
        ),
    }


def one_turn(house: MemoryBroker) -> None:
    """As the reactor: what is due now, and not what that brings about."""
    clock = house.clock
    due: list[Any] = [call for call in clock.getDelayedCalls() if call.getTime() <= clock.seconds()]
    if not due:
        house.step()
    for call in due:
        if call.active():
            clock.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)


@pytest.fixture(scope="module")
def house() -> Any:
    made = MemoryBroker(auto_create_topics_enable="false", offsets_topic_num_partitions="1").start()
    made.ask(
        topics.CreateTopicsRequest(
            topics=[topics.CreatableTopic(name="t", num_partitions=2, replication_factor=1)],
            timeout_ms=1000,
        ),
        7,
    )
    made.ask(offsets.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    made.pass_time(2)
    yield made
    made.stop()


@pytest.mark.parametrize("name", worst())
def test_others_are_served_while_a_long_request_is_worked_on(
    name: str, house: MemoryBroker
) -> None:
    """12,000 elements: a neighbour asks again and again and is answered meanwhile."""
    request, version = worst()[name]
    long, other = house.connection(), house.connection()
    house.run(
        other.send(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
    )
    answers: list[Any] = []
    others: list[Any] = []
    asked = 0
    long.send(request, version).addBoth(answers.append)
    while not answers:
        if len(others) == asked:
            asked += 1
            other.send(
                ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3
            ).addCallback(others.append)
        one_turn(house)
    served = len(others)
    assert served >= 6
    assert not isinstance(answers[0], Exception) and hasattr(answers[0], "FIELDS"), answers
    for each in (long, other):
        each.close()
    house.pass_time(0.1)


def test_a_request_beyond_all_reason_ends_its_connection(house: MemoryBroker) -> None:
    """More elements than MAX_ELEMENTS are not read: Kafka has no such limit but its memory; ours
    is far above what anybody asks.
    """
    request = groups.DescribeGroupsRequest(groups=["g"] * (MAX_ELEMENTS + 1))
    connection = house.connection()
    ended: list[Any] = []
    connection.send(request, 5).addBoth(ended.append)
    house.pass_time(1)
    assert ended and not hasattr(ended[0], "FIELDS")


@pytest.mark.parametrize("name", worst())
def test_in_slices_is_the_same_message(name: str) -> None:
    """Read and written in slices or at a stroke: the same objects, the same bytes; each slice
    holds a bounded number of elements.
    """
    request, version = worst()[name]
    body = encode(request, version)
    assert (
        decode(type(request), body, version)
        == run_whole(decode_in_slices(type(request), body, version))
        == request
    )
    parts: list[Any] = []
    slices = sum(1 for _ in encode_in_slices(request, version, parts))
    assert b"".join(parts) == body
    assert name in ("DescribeProducers", "OffsetFetch") or slices == MANY // FEW_ELEMENTS
    with pytest.raises(Exception, match="more than 2000 elements"):
        decode_few(type(request), body, version)


def test_an_ordinary_request_never_waits_for_a_turn(house: MemoryBroker) -> None:
    """A few hundred elements are answered in the turn in which they came."""
    part = [
        list_offsets.ListOffsetsPartition(partition_index=number % 2, timestamp=-1)
        for number in range(SLICE_ELEMENTS // 4)
    ]
    request = list_offsets.ListOffsetsRequest(
        topics=[list_offsets.ListOffsetsTopic(name="t", partitions=part)]
    )
    house.ask(request, 1)
    slices = house.broker.parts.slices
    assert slices is None or not slices._waiting
    before = house.broker.parts.slices
    house.broker.parts.slices = None
    house.ask(request, 1)
    assert house.broker.parts.slices is None
    house.broker.parts.slices = before
