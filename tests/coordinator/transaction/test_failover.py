"""Two brokers in memory: the coordinator moves in the middle of a transaction."""

from __future__ import annotations

from typing import Any

from tests.memory_broker import MemoryBroker
from tests.test_broker_joining import memory_broker, memory_controller
from twisted_broker.topic_names import TRANSACTIONS_TOPIC
from twisted_broker.wire.control_batch import COMMIT, control_record_type
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.offsets import FindCoordinatorRequest
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.producer_ids import InitProducerIdRequest
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from twisted_broker.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
)
from twisted_broker.wire.records import BatchBuilder, iterate_batches

SETTINGS = {
    "transaction_state_log_num_partitions": "1",
    "transaction_state_log_replication_factor": "2",
    "transaction_state_log_min_isr": "1",
}


class Two:
    """A controller and brokers 1 and 2; `ask` sends to broker `node_id`."""

    def __init__(self) -> None:
        self.controller = memory_controller().start()
        self.brokers: dict[int, MemoryBroker] = {}
        for node_id in (1, 2):
            broker = memory_broker(self.controller, node_id, 9190 + node_id, **SETTINGS)
            random: Any = broker.runtime.random
            random.seed(node_id)  # no two directories of one id
            self.brokers[node_id] = broker.start()

    def ask(self, node_id: int, request: Any, version: int) -> Any:
        return self.brokers[node_id].ask(request, version, 9190 + node_id)

    def until(self, attempt: Any, accept: Any) -> Any:
        """Again and again, as clients do."""
        for _ in range(40):
            found = attempt()
            if accept(found):
                return found
            self.controller.pass_time(0.5)
        raise AssertionError(found)

    def coordinator(self, through: int) -> int:
        request = FindCoordinatorRequest(key="id", key_type=1)
        found = self.until(
            lambda: self.ask(through, request, 3), lambda answer: not answer.error_code
        )
        return int(found.node_id)

    def leader(self, topic: str, through: int) -> int:
        image = self.brokers[through].broker.parts.metadata.image
        return int(image.topics_by_name[topic].partitions[0].leader)

    def stop(self, node_id: int) -> None:
        self.brokers.pop(node_id).stop()

    def end(self) -> None:
        for node_id in list(self.brokers):
            self.stop(node_id)
        self.controller.stop()


def produce(two: Two, node_id: int, producer: Any) -> ErrorCode:
    builder = BatchBuilder(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    builder.append(1_700_000_000_000, b"key", b"value")
    data = PartitionProduceData(index=0, records=builder.build())
    request = ProduceRequest(
        transactional_id="id",
        acks=-1,
        timeout_ms=5_000,
        topic_data=[TopicProduceData(name="t", partition_data=[data])],
    )
    (topic,) = two.ask(node_id, request, 8).responses
    return error_of(topic.partition_responses[0].error_code)


def committed_batches(two: Two, node_id: int) -> list[Any]:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        isolation_level=1,
        topics=[FetchTopic(topic="t", partitions=[partition])],
    )
    (topic,) = two.ask(node_id, request, 11).responses
    return list(iterate_batches(bytes(topic.partitions[0].records or b"")))


def test_the_coordinator_moves_in_the_middle_of_a_transaction() -> None:
    """RL 1.3: the coordinators of transactions learn what they gained and lost: the next one ends
    what the first one began, and its markers reach whoever leads then.
    """
    two = Two()
    topics = [CreatableTopic(name="t", num_partitions=1, replication_factor=2)]
    two.ask(1, CreateTopicsRequest(topics=topics, timeout_ms=1000), 5)
    first = two.coordinator(1)
    other = 3 - first
    begin = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
    producer = two.until(lambda: two.ask(first, begin, 4), lambda answer: not answer.error_code)
    assert two.ask(other, begin, 4).error_code == ErrorCode.NOT_COORDINATOR
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="id",
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )
    (added,) = two.ask(first, add, 3).results_by_topic_v3_and_below
    assert added.results_by_partition[0].partition_error_code == 0
    leader = two.leader("t", first)
    two.until(lambda: produce(two, leader, producer), lambda error: error is ErrorCode.NONE)
    assert not committed_batches(two, leader)

    two.stop(first)
    assert two.coordinator(other) == other
    assert two.leader(TRANSACTIONS_TOPIC, other) == other
    end = EndTxnRequest(
        transactional_id="id",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=True,
    )
    two.until(lambda: two.ask(other, end, 4), lambda answer: not answer.error_code)
    describe = DescribeTransactionsRequest(transactional_ids=["id"])
    two.until(
        lambda: two.ask(other, describe, 0).transaction_states[0].transaction_state,
        lambda state: state == "CompleteCommit",
    )
    data, marker = committed_batches(two, other)
    assert [record.value for record in data.records()] == [b"value"] and marker.is_control
    assert [control_record_type(record.key) for record in marker.records()] == [COMMIT]
    two.end()
