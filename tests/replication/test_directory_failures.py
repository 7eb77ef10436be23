"""A disk that fails under an append, a read, a deletion or a fetcher: its partitions go offline,
no others (RL 1.12; LogDirFailureTest).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.replication.fixtures import LOCAL, TP, Fixture, at, batch, consumer, registration
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.log.log import Log
from twisted_broker.wire.errors import ErrorCode

SAME_DISK, OTHER_DISK = TopicPartition("t", 1), TopicPartition("t", 2)


def broken(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the disk of `TP` and `SAME_DISK` fails in a log's `method`."""
    real = getattr(Log, method)

    def call(log: Log, *arguments: Any, **options: Any) -> Any:
        if log.topic_partition != OTHER_DISK:
            raise LogDirFailure("/data", OSError("EIO"))
        return real(log, *arguments, **options)

    monkeypatch.setattr(Log, method, call)


def append(fixture: Fixture, partition: TopicPartition) -> ErrorCode:
    return fixture.replicas.produce([(partition, batch())], 1)[0].error


def read(fixture: Fixture, partition: TopicPartition) -> ErrorCode:
    (result,) = fixture.replicas.fetch(consumer(), [at(0, partition)])
    result.release()
    return result.error


def delete(fixture: Fixture, partition: TopicPartition) -> ErrorCode:
    return fixture.replicas.delete_records([(partition, 1)])[0].error


@pytest.mark.parametrize(
    ("method", "act"),
    [("append_as_leader", append), ("read", read), ("increment_log_start_offset", delete)],
    ids=["append", "read", "delete"],
)
def test_whatever_meets_the_failure_takes_the_disks_partitions_offline(
    method: str,
    act: Callable[[Fixture, TopicPartition], ErrorCode],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RL 1.12, 1.6: KAFKA_STORAGE_ERROR for the one that met it and from then on for its directory;
    who waits there is answered; the rest serves.
    """
    fixture = Fixture()
    fixture.topic(states={number: registration(LOCAL, (1,)) for number in range(3)})
    for partition in (TP, SAME_DISK, OTHER_DISK):
        assert append(fixture, partition) == ErrorCode.NONE
    fixture.files.make_directories("/elsewhere/t-2")
    fixture.partition(OTHER_DISK).log.segments.directory = "/elsewhere/t-2"
    waiting: list[object] = []
    params = consumer(max_wait_ms=60_000)
    fixture.replicas.delayed_fetch(
        params, fixture.replicas.fetch(params, [at(1, SAME_DISK)])
    ).addCallback(waiting.append)
    broken(method, monkeypatch)
    assert act(fixture, TP) == ErrorCode.KAFKA_STORAGE_ERROR
    fixture.advance(0)
    assert waiting, "an empty fetch that waited on the same disk hears of it"
    assert [fixture.partition(each).offline for each in (TP, SAME_DISK, OTHER_DISK)] == [
        True,
        True,
        False,
    ]
    for again in (append, read, delete):
        assert again(fixture, SAME_DISK) == ErrorCode.KAFKA_STORAGE_ERROR
        assert again(fixture, OTHER_DISK) == ErrorCode.NONE
