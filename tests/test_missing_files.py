"""A file of one log that is missing, or cannot be used, is that partition's: its log directory, and
all other partitions, go on.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from twisted.logger import capturedLogs

from tests.memory_broker import MemoryBroker
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from twisted_broker.wire.record_builder import BatchBuilder

BROKEN, WHOLE = TopicPartition("broken", 0), TopicPartition("whole", 0)
LARGE = 400_000


def produce(broker: MemoryBroker, topic: str) -> int:
    batch = BatchBuilder()
    batch.append(broker.runtime.wall_ms(), b"k", bytes(LARGE))
    data = PartitionProduceData(index=0, records=batch.build())
    request = ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    return int(broker.ask(request, 12).responses[0].partition_responses[0].error_code)


def fetch(broker: MemoryBroker, topic: str, offset: int) -> int:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=topic, partitions=[partition])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics)
    return int(broker.ask(request, 12).responses[0].partitions[0].error_code)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """Two topics of some segments each."""
    made = MemoryBroker(**{"log.cleaner.backoff.ms": "1000"}).start()
    size = CreatableTopicConfig(name="segment.bytes", value=str(1 << 20))
    made.ask(
        CreateTopicsRequest(
            topics=[
                CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=[size])
                for name in ("broken", "whole")
            ],
            timeout_ms=1000,
        ),
        7,
    )
    made.pass_time(1)
    for name in ("broken", "whole"):
        for _ in range(8):
            assert produce(made, name) == 0
    yield made
    made.stop()


def log(broker: MemoryBroker, name: TopicPartition) -> Any:
    return broker.broker.log_manager.logs[name]


def broken(broker: MemoryBroker) -> Any:
    return broker.broker.broker_server.replica_manager.partitions[BROKEN]


def close_segments(broker: MemoryBroker) -> None:
    """As other logs do that need the descriptors: the next read opens the file by its name."""
    for name in (BROKEN, WHOLE):
        for segment in log(broker, name).segments:
            if segment is not log(broker, name).segments.active:
                segment.close()


def only_broken_failed(broker: MemoryBroker, events: Any) -> str:
    """The line about it."""
    broker.pass_time(1)
    assert broker.fatal == []
    assert produce(broker, "broken") == ErrorCode.KAFKA_STORAGE_ERROR
    assert produce(broker, "whole") == 0 and fetch(broker, "whole", 0) == 0
    assert (
        broken(broker).offline and not broker.broker.log_manager.directories.by_path["/data"].failed
    )
    lines = [
        event["log_format"].format(**event)
        for event in events
        if event["log_level"].name in ("error", "critical")
    ]
    assert len(lines) == 1 and "/data/broken-0" in lines[0], lines
    return lines[0]


def test_a_missing_segment_is_its_partitions_alone(broker: MemoryBroker) -> None:
    close_segments(broker)
    broker.files.remove("/data/broken-0/00000000000000000000.log")
    with capturedLogs() as events:
        assert fetch(broker, "broken", 0) == ErrorCode.KAFKA_STORAGE_ERROR
        line = only_broken_failed(broker, events)
    assert "put the file back" in line
    assert (
        "put the file back"
        in broker.broker.broker_server.replica_manager.partitions[BROKEN].offline_because
    )


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOTDIR, errno.EISDIR, errno.EPERM])
def test_so_is_a_file_that_may_not_be_opened(
    broker: MemoryBroker, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_segments(broker)
    opened = broker.files.open

    def refused(path: str, *more: Any, **options: Any) -> Any:
        if path.startswith("/data/broken-0/0"):
            raise OSError(number, "no", path)
        return opened(path, *more, **options)

    monkeypatch.setattr(broker.files, "open", refused)
    with capturedLogs() as events:
        assert fetch(broker, "broken", 0) == ErrorCode.KAFKA_STORAGE_ERROR
        only_broken_failed(broker, events)


def test_a_disk_error_is_the_directorys(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_segments(broker)

    def failing(path: str, *more: Any, **options: Any) -> Any:
        raise OSError(errno.EIO, "no", path)

    monkeypatch.setattr(broker.files, "open", failing)
    assert fetch(broker, "broken", 0) == ErrorCode.KAFKA_STORAGE_ERROR
    broker.pass_time(1)
    assert broker.broker.log_manager.directories.by_path["/data"].failed is not None
    assert "all log directories are offline" in broker.fatal[0]


def test_a_directory_that_is_gone_as_a_whole_is_offline(broker: MemoryBroker) -> None:
    close_segments(broker)
    broker.files.remove("/data/broken-0/00000000000000000000.log")
    broker.files.remove("/data/meta.properties")
    assert fetch(broker, "broken", 0) == ErrorCode.KAFKA_STORAGE_ERROR
    broker.pass_time(1)
    assert broker.broker.log_manager.directories.by_path["/data"].failed is not None


def test_the_topic_of_a_failed_log_can_be_deleted_and_made_again(broker: MemoryBroker) -> None:
    close_segments(broker)
    broker.files.remove("/data/broken-0/00000000000000000000.log")
    fetch(broker, "broken", 0)
    broker.pass_time(1)
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="broken")], timeout_ms=1000)
    assert broker.ask(request, 6).responses[0].error_code == 0
    broker.pass_time(1)
    assert not broker.files.exists("/data/broken-0")
    topic = CreatableTopic(name="broken", num_partitions=1, replication_factor=1)
    assert (
        broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7).topics[0].error_code
        == 0
    )
    broker.pass_time(1)
    assert produce(broker, "broken") == 0


def test_the_cleaner_tells_of_a_missing_segment(broker: MemoryBroker) -> None:
    broker.files.remove("/data/broken-0/00000000000000000000.log")
    close_segments(broker)
    cleaner = broker.broker.log_manager.cleaner
    live = broker.broker.log_manager
    with capturedLogs() as events:
        for name in (BROKEN, WHOLE):
            log(broker, name).config = replace(
                log(broker, name).config,
                cleanup_policy=frozenset({"compact"}),
                min_cleanable_dirty_ratio=0.0,
            )
        cleaner.look()
        broker.pass_time(30)
        only_broken_failed(broker, events)
    assert live.directories.by_path["/data"].cleaner_offsets.get(WHOLE)
