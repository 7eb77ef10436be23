"""A whole broker in memory that starts again (RL 1.12, 8.1)."""

from __future__ import annotations

import errno
import posixpath

import pytest
from twisted.logger import LogLevel, capturedLogs, formatEvent

from tests.memory_broker import MemoryBroker
from tests.replication.fixtures import batch
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition.isr_state import CommittedIsr
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.simulation.stalling_worker import StallingWorker
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)

TP = TopicPartition("t", 0)


def create(broker: MemoryBroker) -> None:
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=5000
    )
    assert broker.ask(request, 7).topics[0].error_code == 0


def append(broker: MemoryBroker, records: bytes) -> int:
    data = TopicProduceData(
        name="t", partition_data=[PartitionProduceData(index=0, records=records)]
    )
    answer = broker.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), 9)
    found: int = answer.responses[0].partition_responses[0].base_offset
    return found


def produce(broker: MemoryBroker, count: int) -> int:
    return append(broker, batch(count))


def delete_below(broker: MemoryBroker, offset: int) -> None:
    wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsTopic(name="t", partitions=[wanted])
    answer = broker.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=1000), 2)
    assert answer.topics[0].partitions[0].low_watermark == offset


def fetched(broker: MemoryBroker, session_id: int = 0, session_epoch: int = -1):
    partition = FetchPartition(partition=0, fetch_offset=2, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="t", partitions=[partition])] if session_epoch <= 0 else []
    request = FetchRequest(
        max_bytes=1 << 20,
        min_bytes=0,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
    )
    return broker.ask(request, 11)


def read(broker: MemoryBroker):
    topic = FetchTopic(
        topic="t",
        partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)],
    )
    return (
        broker.ask(
            FetchRequest(max_bytes=1 << 20, min_bytes=1, session_epoch=-1, topics=[topic]), 11
        )
        .responses[0]
        .partitions[0]
    )


def test_a_topic_that_was_deleted_and_made_anew_keeps_its_records():
    """The metadata log tells of the old topic first: what is in the new one's log must survive
    that, and be served under the same watermark.
    """
    broker = MemoryBroker().start()
    create(broker)
    produce(broker, 5)
    broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=5000), 6)
    create(broker)
    assert produce(broker, 3) == 0
    broker.stop()
    again = MemoryBroker(broker.files).start()
    found = read(again)
    assert (found.error_code, found.high_watermark) == (0, 3)
    assert produce(again, 1) == 3
    assert [name for name in again.files.listdir("/data") if "stray" in name] == []
    assert again.broker.parts.replica_manager.partitions[TP].leader_epoch > 0
    again.stop()


def kept(broker: MemoryBroker) -> Partition:
    replicas = broker.broker.parts.replica_manager
    assert replicas is not None
    return replicas.partitions[TP]


@pytest.mark.parametrize("end", ["stop", "kill", "power"])
def test_what_a_restart_keeps_of_a_partition(end: str) -> None:
    """RL 1.12, 2.1-2.3, 3.6: log start, records, leader epochs and producers are what they were;
    the leader epoch is a new one, which begins at the log end; ISR and high watermark are all of
    the only replica's; nothing waits, nobody follows, no session and no ISR change is left.
    """
    disk = SimDisk(3)
    broker = MemoryBroker(disk, log_flush_interval_messages="1").start()
    create(broker)
    records = batch(5, producer_id=9, producer_epoch=0, base_sequence=0)
    assert append(broker, records) == 0
    delete_below(broker, 2)
    session = fetched(broker, session_epoch=0).session_id
    assert session > 0
    broker.pass_time(61)  # the checkpoints of log starts and recovery points
    assert produce(broker, 3) == 5
    before = kept(broker)
    epochs = before.log.leader_epochs.entries()
    assert (before.log.log_start_offset, before.log.high_watermark) == (2, 8)
    if end == "stop":
        broker.stop()
    left = disk
    if end != "stop":
        left = disk.after_kill() if end == "kill" else disk.after_power_loss(keep=0)
    again = MemoryBroker(left).start()
    found = kept(again)
    log = found.log
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (2, 8, 8)
    assert found.leader_epoch > before.leader_epoch and found.leader_epoch_start_offset == 8
    assert log.leader_epochs.entries() == [*epochs, (found.leader_epoch, 8)]
    assert isinstance(found.isr_state, CommittedIsr) and found.isr_state.isr == {1}
    assert found.remote_replicas == {}
    replicas = again.broker.parts.replica_manager
    assert len(replicas.sessions) == 0 and replicas.fetch_purgatory.waiting == 0
    assert fetched(again, session, 1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert append(again, records) == 0, "a duplicate, under its first offset"
    assert kept(again).log.log_end_offset == 8
    again.stop()


def test_what_failed_is_served_again_after_a_restart() -> None:
    """RL 1.12: a partition of a failed directory is offline until the broker starts again, on a
    disk that works: then it has what it had.
    """
    broker = MemoryBroker().start()
    create(broker)
    produce(broker, 5)
    kept(broker).fail("an effect of it raised")
    data = TopicProduceData(
        name="t", partition_data=[PartitionProduceData(index=0, records=batch(1))]
    )
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data])
    refused = broker.ask(request, 9).responses[0].partition_responses[0]
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.stop()
    again = MemoryBroker(broker.files).start()
    assert produce(again, 1) == 5
    again.stop()


def moved_away(broker: MemoryBroker, disk: SimDisk) -> str:
    """The directory to which the only replica moved, with 5 records; 3 followed. The other
    directory failed as the log there was to be deleted.
    """
    log = kept(broker).log
    assert log is not None
    source = posixpath.dirname(log.directory)
    (target,) = {"/data", "/data2"} - {source}
    disk.faults.append(Fault(errno.EIO, "rename", f"{source}/t-0"))
    wanted = AlterReplicaLogDirTopic(name="t", partitions=[0])
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=target, topics=[wanted])])
    assert broker.ask(request, 2).results[0].partitions[0].error_code == 0
    broker.pass_time(2)
    disk.faults.clear()
    assert broker.broker.log_manager.directories.offline() == [source]
    assert produce(broker, 3) == 5
    return target


def test_an_older_log_does_not_lead_while_the_newer_one_is_offline() -> None:
    """KIP-858: nobody leads, and the controller hears of no other directory, until the directory
    with the partition's log is back.
    """
    settings = {"log_dirs": "/data,/data2", "metadata_log_dir": "/meta"}
    world = MemoryBroker()  # for its clock: the directory is to fail after the swap, not in it
    disk = SimDisk(3)
    broker = MemoryBroker(
        disk, None, world, lambda path: StallingWorker(world.clock), **settings
    ).start()
    create(broker)
    assert produce(broker, 5) == 0
    target = moved_away(broker, disk)
    broker.stop()
    disk.faults.append(Fault(errno.EIO, "", f"{target}/meta.properties"))
    with capturedLogs() as lines:
        without = MemoryBroker(disk, **settings).start()
        without.pass_time(5)
    assert without.broker.log_manager.directories.offline() == [target]
    assert kept(without).offline
    state = without.broker.broker_server.observer.image.partition("t", 0)
    assert state is not None and state.leader == -1
    assert read(without).error_code in (
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
    said = [formatEvent(line) for line in lines if line["log_level"] >= LogLevel.warn]
    assert len([line for line in said if "t-0" in line and target in line]) == 1
    without.stop()
    disk.faults.clear()
    again = MemoryBroker(disk, **settings).start()
    assert (read(again).error_code, read(again).high_watermark) == (0, 8)
    again.stop()


def test_the_controller_hears_of_a_log_that_is_refused() -> None:
    """KIP-858: where a segment is missing the partition has no leader (or another replica leads),
    and with the file back it has, under the same directory.
    """
    broker = MemoryBroker().start()
    create(broker)
    for _ in range(2):
        produce(broker, 3)
        log = kept(broker).log
        assert log is not None
        log.roll(broker.runtime.wall_ms())
    assert produce(broker, 3) == 6
    broker.stop()
    path = posixpath.join(log.directory, f"{3:020}.log")
    broker.files.rename(path, "/elsewhere")
    with capturedLogs() as lines:
        without = MemoryBroker(broker.files, seed=8).start()
        without.pass_time(5)
    assert kept(without).offline
    state = without.broker.broker_server.observer.image.partition("t", 0)
    assert state is not None and state.leader == -1
    said = [formatEvent(line) for line in lines if line["log_level"] >= LogLevel.warn]
    assert any("offsets 3 to 5 are missing" in line for line in said)
    without.stop()
    broker.files.rename("/elsewhere", path)
    again = MemoryBroker(broker.files, seed=9).start()
    assert (read(again).error_code, read(again).high_watermark) == (0, 9)
    again.stop()
