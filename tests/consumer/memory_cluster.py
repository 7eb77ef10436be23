"""A cluster in memory for consumers: a controller, brokers, topics and what is produced to them.

Time passes when the test says so; clients speak the protocol over the memory network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, cast

from tests.memory_broker import MemoryBroker
from tests.test_broker_joining import memory_broker, memory_controller
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.messages import topics as topic_messages
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.records import BatchBuilder

FIRST_PORT = 9100
SETTINGS = {"offsets_topic_num_partitions": "1", "group_initial_rebalance_delay_ms": "0"}


def batch(*values: bytes, codec: int = 0, **fields: Any) -> bytes:
    builder = BatchBuilder(codec=codec, **fields)
    for value in values:
        builder.append(1_700_000_000_000, b"k" + value, value)
    return builder.build()


class MemoryCluster:
    """Brokers 1 to `brokers`, on ports from FIRST_PORT + 1 on."""

    def __init__(self, brokers: int = 1, **settings: str) -> None:
        self.controller = memory_controller().start()
        self.settings = SETTINGS | settings
        self.starts = 0
        self.brokers: dict[int, MemoryBroker] = {}
        for broker_id in range(1, brokers + 1):
            self.start(broker_id)
        self.files: dict[int, Any] = {}

    def start(self, broker_id: int, **more: Any) -> None:
        broker = memory_broker(
            self.controller, broker_id, FIRST_PORT + broker_id, **self.settings, **more
        )
        self.starts += 1
        # Ids of directories and of incarnations differ.
        cast(Random, broker.runtime.random).seed(self.starts)
        self.brokers[broker_id] = broker.start()

    def stop(self, broker_id: int) -> None:
        broker = self.brokers.pop(broker_id)
        broker.stop()
        self.files[broker_id] = broker.files

    def start_again(self, broker_id: int) -> None:
        self.start(broker_id, files=self.files.pop(broker_id))

    def close(self) -> None:
        for broker_id in list(self.brokers):
            self.stop(broker_id)
        self.controller.stop()

    @property
    def runtime(self) -> Any:
        return self.controller.runtime

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{FIRST_PORT + each}" for each in sorted(self.brokers))

    def run(self, work: Any, seconds: float = 60.0) -> Any:
        return self.controller.run(work, seconds)

    def pass_time(self, seconds: float) -> None:
        self.controller.pass_time(seconds)

    def wait_until(self, condition: Callable[[], Any], seconds: float = 60.0) -> None:
        end = self.controller.clock.seconds() + seconds
        while not condition():
            self.controller.step()
            assert self.controller.clock.seconds() < end, "the condition never came"

    def ask(self, request: Any, version: int, broker_id: int | None = None) -> Any:
        """The answer of a broker, any by default."""
        broker_id = next(iter(self.brokers)) if broker_id is None else broker_id
        return self.controller.ask(request, version, FIRST_PORT + broker_id)

    # topics
    def create(self, topic: str, *replicas: Sequence[int], **configs: str) -> None:
        """With these replicas of its partitions, the leader first; one partition on broker 1."""
        assignments = [
            topic_messages.CreatableReplicaAssignment(partition_index=index, broker_ids=list(ids))
            for index, ids in enumerate(replicas or [[1]])
        ]
        created = topic_messages.CreatableTopic(
            name=topic,
            num_partitions=-1,
            replication_factor=-1,
            assignments=assignments,
            configs=[
                topic_messages.CreatableTopicConfig(name=name.replace("_", "."), value=value)
                for name, value in configs.items()
            ],
        )
        request = topic_messages.CreateTopicsRequest(topics=[created], timeout_ms=5000)
        (answer,) = self.ask(request, 7).topics
        assert answer.error_code == 0, answer
        self.wait_until(lambda: self.leads(TopicPartition(topic, len(assignments) - 1)))

    def delete(self, topic: str) -> None:
        request = topic_messages.DeleteTopicsRequest(topic_names=[topic], timeout_ms=5000)
        assert self.ask(request, 5).responses[0].error_code == 0
        self.pass_time(0.5)

    def add_partitions(self, topic: str, count: int) -> None:
        added = topic_messages.CreatePartitionsTopic(name=topic, count=count, assignments=None)
        request = topic_messages.CreatePartitionsRequest(topics=[added], timeout_ms=5000)
        assert self.ask(request, 3).results[0].error_code == 0
        self.wait_until(lambda: self.leads(TopicPartition(topic, count - 1)))

    def leads(self, name: TopicPartition) -> int | None:
        """The broker that leads, as brokers themselves know it."""
        for broker_id, broker in self.brokers.items():
            held = broker.broker.parts.replica_manager.partitions.get(name)
            if held is not None and held.is_leader:
                return broker_id
        return None

    def partition(self, name: TopicPartition) -> Any:
        """Its leader's `Partition`."""
        leader = self.leads(name)
        assert leader is not None
        return self.brokers[leader].broker.parts.replica_manager.partitions[name]

    # records
    def produce(self, topic: str, *values: bytes, partition: int = 0, **fields: Any) -> int:
        return self.produce_bytes(topic, batch(*values, **fields), partition)

    def produce_bytes(self, topic: str, records: bytes, partition: int = 0) -> int:
        data = TopicProduceData(
            name=topic, partition_data=[PartitionProduceData(index=partition, records=records)]
        )
        self.wait_until(lambda: self.leads(TopicPartition(topic, partition)))
        request = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data])
        answer = self.ask(request, 7, self.leads(TopicPartition(topic, partition)))
        found = answer.responses[0].partition_responses[0]
        assert found.error_code == 0, answer
        offset: int = found.base_offset
        return offset
