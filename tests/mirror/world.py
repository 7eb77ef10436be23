"""Two clusters of one broker each and a mirror between them, in memory; time passes as the test
says.
"""

from __future__ import annotations

from typing import Any

from twisted.python.failure import Failure

from tests.memory_broker import MemoryBroker
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.mirror.mirror import Mirror, MirrorOptions
from twisted_broker.wire.errors import error_of
from twisted_broker.wire.messages import configs, topics
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.records import BatchBuilder, iterate_batches

SOURCE, TARGET = 9092, 9192
SOURCE_LISTENERS = f"PLAINTEXT://127.0.0.1:{SOURCE},CONTROLLER://127.0.0.1:{SOURCE + 1}"
TARGET_LISTENERS = f"PLAINTEXT://127.0.0.1:{TARGET},CONTROLLER://127.0.0.1:{TARGET + 1}"


def some_batch(*values: bytes, **fields: Any) -> bytes:
    builder = BatchBuilder(**fields)
    for value in values:
        builder.append(1_700_000_000_000, b"k", value, [("h", value)])
    return builder.build()


def batches_of(log: Any) -> list[bytes]:
    """All batches of a log, leader epochs aside."""
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 20)
        data = read.slice.read()
        read.slice.release()
        for batch in iterate_batches(data, partial_tail=True, check_crc=True):
            whole = batch.to_bytes()
            found.append(whole[:12] + whole[16:])
            offset = batch.next_offset
    return found


class World:
    """`lines`: what the mirror said."""

    def __init__(self) -> None:
        self.time = MemoryBroker()  # never started: the clock and the network
        self.start_source(None)
        self.start_target(None)
        self.files = MemoryFileSystem()
        self.lines: list[str] = []
        self.mirror: Mirror | None = None
        self.failures: list[BaseException] = []

    def start_source(self, files: MemoryFileSystem | None, **settings: str) -> None:
        self.source = MemoryBroker(
            files, world=self.time, listeners=SOURCE_LISTENERS, **settings
        ).start()

    def start_target(self, files: MemoryFileSystem | None) -> None:
        self.target = MemoryBroker(files, world=self.time, listeners=TARGET_LISTENERS).start()

    def stop_source(self) -> MemoryFileSystem:
        """What it leaves on its disk."""
        self.source.stop()
        return self.source.files

    def restart_target(self, away_seconds: float = 0) -> None:
        self.target.stop()
        self.pass_time(away_seconds)
        self.start_target(self.target.files)

    @property
    def clock(self) -> Any:
        return self.time.clock

    def step(self) -> None:
        self.time.step()

    def pass_time(self, seconds: float) -> None:
        self.time.pass_time(seconds)

    def ask(self, request: Any, version: int, port: int) -> Any:
        return self.time.ask(request, version, port)

    def delete(self, name: str, port: int) -> None:
        answer = self.ask(topics.DeleteTopicsRequest(topic_names=[name], timeout_ms=1000), 4, port)
        assert not answer.responses[0].error_code

    def delete_records(self, offset: int, name: str = "t") -> None:
        part = topics.DeleteRecordsPartition(partition_index=0, offset=offset)
        asked = topics.DeleteRecordsTopic(name=name, partitions=[part])
        answer = self.ask(topics.DeleteRecordsRequest(topics=[asked], timeout_ms=1000), 2, SOURCE)
        assert not answer.topics[0].partitions[0].error_code

    def replicas(self, node: MemoryBroker) -> Any:
        return node.broker.parts.replica_manager

    def create(
        self, name: str = "t", partitions: int = 1, port: int = SOURCE, **settings: str
    ) -> None:
        made = topics.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                topics.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in settings.items()
            ],
        )
        answer = self.ask(topics.CreateTopicsRequest(topics=[made]), 7, port)
        assert not answer.topics[0].error_code, answer.topics[0].error_message
        self.pass_time(1)

    def alter(self, name: str, port: int = SOURCE, **settings: str | None) -> None:
        resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2,
            resource_name=name,
            configs=[
                configs.IncrementalAlterConfigsRequestAlterableConfig(
                    name=key.replace("_", "."), config_operation=int(value is None), value=value
                )
                for key, value in settings.items()
            ],
        )
        answer = self.ask(configs.IncrementalAlterConfigsRequest(resources=[resource]), 1, port)
        assert not answer.responses[0].error_code, answer.responses[0].error_message

    def produce(self, data: bytes, name: str = "t", partition: int = 0, port: int = SOURCE) -> str:
        """The error's name."""
        part = PartitionProduceData(index=partition, records=data)
        asked = ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(name=name, partition_data=[part])],
        )
        answer = self.ask(asked, 9, port)
        return error_of(answer.responses[0].partition_responses[0].error_code).name

    def log(self, node: MemoryBroker, name: str = "t", partition: int = 0) -> Any:
        return self.replicas(node).partitions[TopicPartition(name, partition)].log

    def content(self, node: MemoryBroker, name: str = "t", partition: int = 0) -> list[bytes]:
        return batches_of(self.log(node, name, partition))

    # the mirror
    def start(
        self, topics: str = "t.*", source: int = SOURCE, target: int = TARGET, **more: Any
    ) -> Mirror:
        runtime = Runtime(
            self.clock,
            self.time.runtime.wall_ms,
            self.time.network,
            self.files,
            self.time.runtime.disk,
            self.time.runtime.random,
        )
        options = {"refresh_ms": 2000} | more
        self.mirror = Mirror(
            runtime,
            MirrorOptions(f"127.0.0.1:{source}", f"127.0.0.1:{target}", topics, "/side", **options),
            self.lines.append,
        )
        self.mirror.ended.addErrback(self._failed)
        self.mirror.start()
        return self.mirror

    def _failed(self, failure: Failure) -> None:
        self.failures.append(failure.value)

    def kill(self) -> None:
        """As a process that dies: its connections end, nothing is written."""
        assert self.mirror is not None
        self.mirror.stop()
        self.mirror = None

    def until(self, met: Any, seconds: float = 60.0) -> None:
        end = self.clock.seconds() + seconds
        while not met():
            if self.failures:
                raise self.failures[0]
            assert self.clock.seconds() < end, (self.lines, self.mirror and self.mirror.progress())
            self.step()

    def caught_up(self) -> None:
        """Until the target's logs end where the source's do."""
        assert self.mirror is not None
        mirror = self.mirror

        def is_there() -> bool:
            return mirror.has_caught_up and all(
                each.log_end == self.log(self.source, *each.name).log_end_offset
                for each in mirror.progress()
            )

        self.until(is_there)

    def end(self) -> None:
        if self.mirror is not None:
            self.mirror.stop()
        for node in (self.target, self.source):
            node.stop()
