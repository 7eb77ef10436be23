"""A whole broker in memory that starts again (RL 1.12, 8.1)."""

from __future__ import annotations

from tests.memory_broker import MemoryBroker
from tests.replication.fixtures import batch
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)

TP = TopicPartition("t", 0)


def create(house: MemoryBroker) -> None:
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=5000
    )
    assert house.ask(request, 7).topics[0].error_code == 0


def produce(house: MemoryBroker, count: int) -> int:
    data = TopicProduceData(
        name="t", partition_data=[PartitionProduceData(index=0, records=batch(count))]
    )
    answer = house.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), 9)
    return answer.responses[0].partition_responses[0].base_offset


def read(house: MemoryBroker):
    topic = FetchTopic(
        topic="t",
        partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)],
    )
    return (
        house.ask(
            FetchRequest(max_bytes=1 << 20, min_bytes=1, session_epoch=-1, topics=[topic]), 11
        )
        .responses[0]
        .partitions[0]
    )


def test_a_topic_that_was_deleted_and_made_anew_keeps_its_records():
    """The metadata log tells of the old topic first: what is in the new one's log must survive
    that, and be served under the same watermark.
    """
    house = MemoryBroker().start()
    create(house)
    produce(house, 5)
    house.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=5000), 6)
    create(house)
    assert produce(house, 3) == 0
    house.stop()
    again = MemoryBroker(house.files).start()
    found = read(again)
    assert (found.error_code, found.high_watermark) == (0, 3)
    assert produce(again, 1) == 3
    assert [name for name in again.files.listdir("/data") if "stray" in name] == []
    assert again.broker.parts.replica_manager.partitions[TP].leader_epoch > 0
    again.stop()
