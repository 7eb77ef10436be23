"""A disk that fails under an append, a read, a deletion or a fetcher: its partitions go offline,
no others (RL 1.12; LogDirFailureTest).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.replication.fixtures import LOCAL, TP, Fixture, at, batch, consumer, registration
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.errors import LogDirFailure, OutOfDescriptors
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


def becomes_leader(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Fixture:
    """A follower that is made the leader while the place of its high watermark cannot be read."""
    fixture = Fixture()
    fixture.topic(states={0: registration(2, (1, 2), leader_epoch=5)})

    def fails(*arguments: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Log, "offset_metadata", fails)
        fixture.topic(states={0: registration(LOCAL, (1, 2), leader_epoch=6, partition_epoch=1)})
    return fixture


def test_a_leader_without_descriptors_leads_a_little_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RL 1.3: nothing of the role changes until then (simulation, seed 300246: it was offline until
    the broker's next start).
    """
    short = OutOfDescriptors("/data/t-0", OSError("EMFILE"))
    fixture = becomes_leader(monkeypatch, short)
    partition = fixture.partition(TP)
    assert not (partition.is_leader or partition.offline) and partition.leader_epoch == 5
    assert append(fixture, TP) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    fixture.advance(2)
    assert partition.is_leader and partition.leader_epoch == 6
    assert append(fixture, TP) == ErrorCode.NONE


def test_a_leader_whose_disk_fails_takes_its_directory_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RL 1.12: as whatever else meets the failure."""
    fixture = becomes_leader(monkeypatch, LogDirFailure("/data", OSError("EIO")))
    assert fixture.partition(TP).offline and not fixture.partition(TP).is_leader
    assert "directory" in str(fixture.partition(TP).offline_because)
