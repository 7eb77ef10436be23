"""A controller whose metadata is damaged, gone or older than its brokers': nothing of theirs is
deleted, and one line says what to do.
"""

from __future__ import annotations

from copy import deepcopy
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred

from tests.memory_broker import MemoryBroker
from tests.test_broker_joining import CONTROLLER, memory_broker, memory_controller
from twisted_broker.cluster.metadata_check import MetadataDamage, read_durable_end
from twisted_broker.cluster.observer import MetadataObserver
from twisted_broker.cluster.snapshots import list_snapshots
from twisted_broker.log.checkpoints import HIGH_WATERMARK, read_offsets, write_offsets
from twisted_broker.log.errors import CheckpointError, LogDirFailure
from twisted_broker.log.log_directory import LogDirMismatch
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from twisted_broker.server import shared_server
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Crash, Fault
from twisted_broker.topic_names import METADATA_TOPIC
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.log_dirs import DescribeLogDirsRequest
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from twisted_broker.wire.records import BatchBuilder

KAFKAS_BOOTSTRAP = Path(__file__).parent / "wire/golden/records/snapshot.bin"
METADATA = "/data/__cluster_metadata-0"
LOG = f"{METADATA}/{0:020d}.log"
ON_BOTH = CreatableReplicaAssignment(partition_index=0, broker_ids=[2, 1])
LONG = 200.0
"""seconds: long enough for a new log to pass an old offset, and for deleted files to go"""


class Pair:
    """A controller and a broker; the broker holds the only copy of one record."""

    def __init__(self) -> None:
        self.controller = memory_controller().start()
        self.broker = memory_broker(self.controller).start()
        self.create("other")
        self.older = deepcopy(self.controller.files.nodes), set(self.controller.files.directories)
        self.create("precious")
        self.produce(b"my only copy")
        self.broker.pass_time(5)

    def create(self, name: str) -> None:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        self.broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
        self.broker.pass_time(1)

    def produce(self, value: bytes) -> None:
        builder = BatchBuilder()
        builder.append(1_700_000_000_000, b"k", value)
        topic = TopicProduceData(
            topic_id=self.topic_id,
            partition_data=[PartitionProduceData(index=0, records=builder.build())],
        )
        answer = self.broker.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 13)
        assert answer.responses[0].partition_responses[0].error_code == 0

    @property
    def topic_id(self) -> bytes:
        return self.broker.broker.parts.metadata.image.topics_by_name["precious"].id

    def new_controller(self, files: MemoryFileSystem | None = None, **more: Any) -> MemoryBroker:
        self.controller = memory_controller(
            world=self.broker, files=files or self.controller.files, **more
        )
        return self.controller.start()

    def older_disk(self) -> MemoryFileSystem:
        """The controller's disk as it was before the topic."""
        files = MemoryFileSystem()
        files.nodes, files.directories = self.older
        return files

    def restart_broker(self) -> MemoryBroker:
        self.broker.stop()
        self.broker = memory_broker(self.controller, files=self.broker.files)
        return self.broker

    def keeps_everything(self) -> None:
        assert self.broker.files.is_directory("/data/precious-0")
        assert b"my only copy" in bytes(
            self.broker.files.nodes[f"/data/precious-0/{0:020d}.log"].data
        )
        assert not [
            name
            for name in self.broker.files.listdir("/data")
            if name.startswith(("precious", "other")) and not name.endswith("-0")
        ]

    def reads(self) -> bytes:
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topic = FetchTopic(topic_id=self.topic_id, partitions=[partition])
        answer = self.broker.ask(FetchRequest(max_wait_ms=0, max_bytes=1 << 20, topics=[topic]), 13)
        found = answer.responses[0].partitions[0]
        assert found.error_code == 0
        return bytes(found.records)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def stopped_by(broker: MemoryBroker, *words: str) -> str:
    """The one line with which a broker stops."""
    (line,) = broker.fatal
    assert "\n" not in line and all(word in line for word in words), line
    return line


def test_a_flipped_bit_in_the_controllers_log(pair: Pair) -> None:
    """The controller does not start on it; the broker goes on with what it has."""
    files = pair.controller.files
    pair.controller.stop()
    data = files.nodes[LOG].data
    data[len(data) // 2] ^= 1
    damaged = bytes(data)
    with pytest.raises(MetadataDamage, match=f"{LOG} at byte .*offset .*replog metadata recover"):
        pair.new_controller()
    assert bytes(files.nodes[LOG].data) == damaged
    pair.broker.pass_time(LONG)
    assert pair.broker.fatal == []
    pair.keeps_everything()
    assert b"my only copy" in pair.reads()


def test_a_controllers_metadata_is_gone(pair: Pair) -> None:
    """Its directory bears a cluster's id: it founds nothing in its place."""
    files = pair.controller.files
    pair.controller.stop()
    files.remove_tree(METADATA)
    with pytest.raises(
        MetadataDamage,
        match=f"{METADATA}: the metadata of cluster .* is gone.*replog metadata recover",
    ):
        pair.new_controller()
    assert not files.exists(METADATA)
    pair.broker.pass_time(LONG)
    assert pair.broker.fatal == []
    pair.keeps_everything()


def test_the_metadata_directory_of_several_is_gone() -> None:
    """Another log directory still bears the cluster's id: the node founds nothing either."""
    node = MemoryBroker(log_dirs="/data,/more").start()
    node.stop()
    node.files.remove_tree("/data")
    with pytest.raises(MetadataDamage, match="is gone"):
        MemoryBroker(files=node.files, log_dirs="/data,/more").start()
    assert not node.files.exists("/data/meta.properties")


def test_an_empty_controller_founds_another_cluster(pair: Pair) -> None:
    """Its brokers stop and say whose it is, whose they are; nobody is told to empty a broker's
    directory.
    """
    old = pair.controller.broker.cluster_id
    pair.controller.stop()
    other = pair.new_controller(MemoryFileSystem(), cluster_id="b3RoZXItY2x1c3Rlci1oZQ")
    pair.broker.pass_time(LONG)
    line = stopped_by(
        pair.broker,
        "127.0.0.1:9093",
        other.broker.cluster_id,
        old,
        "/data",
        "replog metadata recover",
    )
    assert "empty" not in line
    pair.keeps_everything()


def test_a_founder_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, when it is done; a second start founds nothing."""
    told: list[str] = []
    monkeypatch.setattr(
        shared_server._logger, "info", lambda text, **fields: told.append(text.format(**fields))
    )
    first = memory_controller().start()
    assert told == [f"formatted /data as new cluster {first.broker.cluster_id}"]
    first.stop()
    memory_controller(files=first.files).start()
    assert len(told) == 1


def test_an_empty_directory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that was replaced, or is not mounted: a node whose other directory is formatted says
    which one was not.
    """
    told: list[str] = []
    node = MemoryBroker(log_dirs="/data,/more").start()
    node.stop()
    node.files.remove_tree("/more")
    monkeypatch.setattr(
        shared_server._logger, "info", lambda text, **fields: told.append(text.format(**fields))
    )
    again = MemoryBroker(files=node.files, log_dirs="/data,/more").start()
    line = f"formatted /more for node 1 of cluster {again.broker.cluster_id}: it was empty"
    assert [each for each in told if "formatted" in each] == [line]
    again.stop()
    told.clear()
    MemoryBroker(files=node.files, log_dirs="/data,/more").start().stop()
    assert not [each for each in told if "formatted" in each]


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_a_crash_while_a_cluster_is_founded_is_no_lost_directory(keep: float) -> None:
    """At whatever operation the power goes: the next start founds the cluster, or goes on with
    it, and never takes it for a lost one.
    """
    settings = {
        "log_dirs": "/data,/more",
        "metadata_log_dir": "/more",
        "process_roles": "controller",
        "node_id": "100",
        "listeners": CONTROLLER,
    }

    def start(disk: SimDisk) -> MemoryBroker:
        return MemoryBroker(files=disk, **settings).start()

    whole = SimDisk(1)
    start(whole)
    founding = whole.operations
    assert founding > 20
    for at in range(founding):
        disk = SimDisk(at, crash_at=at)
        with pytest.raises(Crash):
            start(disk)
        again = start(disk.after_power_loss(keep))
        assert again.broker.parts.controller.image.features
        again.stop()


def test_a_kill_while_a_cluster_is_founded_and_a_loss_of_power_later() -> None:
    """What the process that was killed made, and had not synced, is there for the next one: that
    syncs it before anything is acknowledged. Else the power takes the cluster.
    """
    settings = {"log_dirs": "/srv/cluster/data", "process_roles": "controller", "node_id": "100"}

    def start(disk: SimDisk) -> MemoryBroker:
        return MemoryBroker(files=disk, listeners=CONTROLLER, **settings).start()

    whole = SimDisk(1)
    start(whole)
    for at in range(whole.operations):
        killed = SimDisk(at, crash_at=at)
        with pytest.raises(Crash):
            start(killed)
        disk = killed.after_kill()
        before = start(disk).broker.parts.controller.image
        found = start(disk.after_power_loss(keep=0)).broker.parts.controller.image
        assert before.offset < found.offset and found.epoch == before.epoch + 1, at


def test_an_empty_controller_takes_the_clusters_id_over(pair: Pair) -> None:
    """`--cluster-id`: the broker has applied more than the new log holds, or another log: it
    stops, deletes nothing.
    """
    cluster_id = pair.controller.broker.cluster_id
    applied = pair.broker.broker.parts.metadata.image.offset + 1
    pair.controller.stop()
    pair.new_controller(MemoryFileSystem(), cluster_id=cluster_id)
    pair.broker.pass_time(LONG)
    stopped_by(
        pair.broker,
        f"up to offset {applied}",
        "of epoch 1",
        "Nothing was deleted",
        "replog metadata recover --from /data",
    )
    pair.keeps_everything()


def test_another_log_that_is_longer_under_the_same_epochs(pair: Pair) -> None:
    """The broker was away while the new log passed its offset, in the same epoch: the last batch
    tells.
    """
    cluster_id = pair.controller.broker.cluster_id
    pair.controller.stop()
    applied = pair.broker.broker.parts.metadata.image.offset
    pair.broker.stop()
    pair.new_controller(MemoryFileSystem(), cluster_id=cluster_id)
    pair.controller.pass_time(LONG)
    assert pair.controller.broker.parts.controller.log.end_offset > applied + 20
    again = memory_broker(pair.controller, files=pair.broker.files)
    pair.broker = again
    ensureDeferred(again.broker.start()).addErrback(lambda failure: None)
    again.pass_time(60)
    stopped_by(again, "has another batch at offset", "Nothing was deleted")
    again.stop()
    pair.keeps_everything()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_controller_restored_from_an_older_copy(pair: Pair, restarted: bool) -> None:
    """A living broker, and one that starts: its own metadata log knows."""
    if restarted:
        pair.broker.stop()
    applied = pair.broker.broker.parts.metadata.image.offset + 1
    pair.controller.stop()
    pair.new_controller(pair.older_disk())
    if restarted:
        pair.broker = memory_broker(pair.controller, files=pair.broker.files)
        ensureDeferred(pair.broker.broker.start()).addErrback(lambda failure: None)
    pair.broker.pass_time(LONG)
    stopped_by(
        pair.broker, f"up to offset {applied}", "ends below that, or differs", "Nothing was deleted"
    )
    pair.broker.stop()
    pair.keeps_everything()


def test_an_older_copy_that_leads_an_older_epoch(pair: Pair) -> None:
    """A controller that started several times since: the older copy leads an epoch that is over.
    Answers of a node that has only not heard of
    its successor would end; these do not.
    """
    for _ in range(4):
        pair.controller.stop()
        pair.new_controller()
        pair.broker.pass_time(5)
    assert pair.broker.broker.parts.metadata.leader_epoch == 5
    pair.controller.stop()
    pair.new_controller(pair.older_disk())
    pair.broker.pass_time(5)
    assert pair.broker.fatal == []
    pair.broker.pass_time(LONG)
    stopped_by(pair.broker, "is led under an older epoch", "Nothing was deleted")
    pair.keeps_everything()


def test_a_broker_starts_from_its_own_log(pair: Pair) -> None:
    """Nothing is wrong: the same controller, restarted or not; the broker's data is served on."""
    pair.restart_broker().start()
    assert pair.broker.files.exists(LOG)
    pair.controller.stop()
    pair.new_controller()
    pair.broker.pass_time(20)
    assert pair.broker.fatal == [] and b"my only copy" in pair.reads()
    pair.produce(b"and one more")
    pair.restart_broker().start()
    assert b"and one more" in pair.reads()
    found = read_meta_properties(pair.broker.files, "/data")
    assert found is not None and found.node_id == 1


def folders(pair: Pair) -> list[str]:
    return [name for name in pair.broker.files.listdir("/data") if name.startswith("precious")]


def delete_through(broker: MemoryBroker, port: int = 9092, again: bool = False) -> None:
    """`again`: and makes a topic of that name."""
    answer = broker.ask(DeleteTopicsRequest(topic_names=["precious"], timeout_ms=1000), 4, port)
    assert answer.responses[0].error_code == 0
    if again:
        topic = CreatableTopic(
            name="precious", num_partitions=-1, replication_factor=-1, assignments=[ON_BOTH]
        )
        answer = broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7, port)
        assert answer.topics[0].error_code == 0
    broker.pass_time(1)


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_deleted_while_its_broker_was_away_goes_with_its_records(
    pair: Pair, again: bool
) -> None:
    """The record of its removal is in the metadata log; its folder was kept for ever."""
    second = memory_broker(pair.controller, node_id=2, port=9094, seed=8).start()
    pair.broker.stop()
    delete_through(second, 9094, again)
    pair.restart_broker().start()
    pair.broker.pass_time(5)
    found = folders(pair)
    assert [name.endswith("-delete") for name in found] == ([False, True] if again else [True])
    server = pair.broker.broker.broker_server
    assert server is not None and server.own_log is not None
    assert isinstance(server.observer, MetadataObserver)
    assert server.observer.take_removals() is server.own_log.removals is None  # nothing grows on
    pair.broker.pass_time(LONG)
    assert folders(pair) == (["precious-0"] if again else [])
    assert not again or not pair.broker.files.nodes[f"/data/precious-0/{0:020d}.log"].data


@pytest.mark.parametrize("has_record", [True, False])
def test_a_folder_of_a_deleted_topic_that_comes_back_goes(pair: Pair, has_record: bool) -> None:
    """A loss of power took the new name of the folder back: the removal is in the broker's own log
    of the metadata, unless a snapshot hides it.
    """
    files = pair.broker.files
    before = {
        path: deepcopy(node)
        for path, node in files.nodes.items()
        if path.startswith("/data/precious-0/")
    }
    if not has_record:
        pair.broker.stop()
        pair.broker = memory_broker(
            pair.controller, files=files, metadata_log_max_record_bytes_between_snapshots="1"
        ).start()
    delete_through(pair.broker)
    pair.broker.pass_time(LONG)
    assert folders(pair) == [] and bool(list_snapshots(files, METADATA)) != has_record
    pair.broker.stop()
    files.make_directories("/data/precious-0")
    files.nodes.update(before)
    pair.restart_broker().start()
    pair.broker.pass_time(5)
    (found,) = folders(pair)
    assert found.endswith("-delete" if has_record else "-stray")


def test_a_topic_whose_removal_a_snapshot_hides_is_kept(pair: Pair) -> None:
    """An older controller that went on alone looks the same: nothing says that it was deleted."""
    applied = pair.broker.broker.parts.metadata.image.offset
    second = memory_broker(pair.controller, node_id=2, port=9094, seed=8).start()
    pair.broker.stop()
    delete_through(second, 9094)
    pair.controller.stop()
    pair.new_controller(metadata_log_max_snapshot_interval_ms="20000")
    second.pass_time(LONG)
    assert pair.controller.broker.parts.controller.log.log.log_start_offset > applied
    pair.restart_broker().start()
    pair.broker.pass_time(5)
    (found,) = folders(pair)
    assert found.endswith("-stray")
    assert b"my only copy" in bytes(pair.broker.files.nodes[f"/data/{found}/{0:020d}.log"].data)


@pytest.mark.parametrize("roles", ["broker,controller", "broker"])
def test_the_metadata_has_a_directory_of_its_own(roles: str) -> None:
    """As in Kafka: it is locked and formatted like the others, holds no partition, is no log
    directory of the broker's, and is found again.
    """
    controller = memory_controller().start()
    own = {"metadata_log_dir": "/meta", "log_dirs": "/data,/more"}

    def node(files: MemoryFileSystem | None = None) -> MemoryBroker:
        if roles == "broker":
            return memory_broker(controller, files=files, **own)
        return MemoryBroker(files=files, **own)

    first = node().start()
    topic = CreatableTopic(name="t", num_partitions=5, replication_factor=1)
    first.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    first.pass_time(2)
    files = first.files
    with pytest.raises(BlockingIOError):
        files.lock("/meta/.lock")
    first.stop()
    assert files.listdir("/meta") == [".lock", "__cluster_metadata-0", "meta.properties"]
    assert not files.exists(METADATA) and not files.exists("/more/__cluster_metadata-0")
    again = node(files).start()
    assert again.broker.parts.metadata.image.topics_by_name["t"]
    directories = {each.log_dir for each in again.ask(DescribeLogDirsRequest(), 4).results}
    assert directories == {"/data", "/more"}
    (registered,) = again.broker.parts.metadata.image.brokers.values()
    assert len(registered.directories) == 2
    again.stop()


def test_a_disk_that_fails_under_the_metadata_log_alone_fails_no_log_directory() -> None:
    """The log ends, and the broker serves on."""
    controller = memory_controller().start()
    disk = SimDisk(3)
    node = memory_broker(controller, files=disk, metadata_log_dir="/meta").start()
    disk.faults.append(Fault(EIO, "write", "/meta/__cluster_metadata-0"))
    topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1)
    node.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    node.pass_time(5)
    assert node.broker.log_manager.directories.offline() == [] and node.fatal == []
    assert node.broker.broker_server.own_log.failed is not None
    assert "t" in node.broker.parts.metadata.image.topics_by_name
    node.stop()


def test_a_disk_that_fails_under_the_metadata_log_fails_its_directory() -> None:
    """As under any log: the directory is offline, the metadata is followed on, the other
    directory serves.
    """
    controller = memory_controller().start()
    disk = SimDisk(3)
    node = memory_broker(controller, files=disk, log_dirs="/data,/more").start()
    disk.faults.append(Fault(EIO, "write", "/data/__cluster_metadata-0"))
    topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1)
    node.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    node.pass_time(5)
    assert node.broker.log_manager.directories.offline() == ["/data"] and node.fatal == []
    assert (
        node.broker.parts.metadata.image.offset
        == controller.broker.parts.controller.log.high_watermark - 1
    )
    node.stop()


@pytest.mark.parametrize("lost", ["/data", "/more"])
def test_a_disk_that_cannot_be_read_at_the_start(lost: str) -> None:
    """One of several, the first too, which holds the metadata log: it is offline, the other serves.
    With no other one that says whose the node is, nothing starts.
    """
    controller = memory_controller().start()
    disk = SimDisk(3)
    memory_broker(controller, files=disk, log_dirs="/data,/more").start().stop()
    disk.faults.append(Fault(EIO, "open", f"{lost}/meta.properties"))
    disk.faults.append(Fault(EIO, "open", f"{lost}/.lock"))
    node = memory_broker(controller, files=disk, log_dirs="/data,/more").start()
    assert node.broker.log_manager.directories.offline() == [lost] and node.fatal == []
    node.stop()
    with pytest.raises(OSError, match=r"meta\.properties"):
        memory_broker(controller, files=disk, log_dirs=lost).start()


def test_a_controller_that_starts_on_a_full_disk_names_its_directory() -> None:
    """The system's error of a write names no file."""
    disk = SimDisk(3)
    memory_controller(files=disk).start().stop()
    disk.faults.append(Fault(ENOSPC, "write", "__cluster_metadata-0"))
    with pytest.raises(LogDirFailure, match=r"log directory /data is offline: .*No space left"):
        memory_controller(files=disk).start()


def test_a_node_that_is_the_controller_too_keeps_one_log() -> None:
    """Its own; there is no copy beside it."""
    node = MemoryBroker().start()
    assert [
        name for name in node.files.listdir("/data") if name.startswith("__cluster_metadata")
    ] == ["__cluster_metadata-0"]
    assert node.broker.broker_server.own_log is None
    node.stop()


def test_an_older_controller_that_outgrew_the_broker_by_a_snapshot_deletes_nothing(
    pair: Pair,
) -> None:
    """Restored from an older copy, it went on alone until its snapshot passed what the broker
    applied: the topic is missing there, but no record removed it. Its log is kept as a stray.
    """
    applied = pair.broker.broker.parts.metadata.image.offset
    pair.controller.stop()
    alone = MemoryBroker(
        files=pair.older_disk(),
        process_roles="controller",
        node_id="100",
        listeners="CONTROLLER://127.0.0.1:9093",
        metadata_log_max_snapshot_interval_ms="20000",
    ).start()
    alone.pass_time(LONG)
    assert alone.broker.parts.controller.log.log.log_start_offset > applied
    alone.stop()
    pair.new_controller(alone.files)
    pair.broker.pass_time(LONG)
    kept = [name for name in pair.broker.files.listdir("/data") if name.startswith("precious-0")]
    assert len(kept) == 1 and not kept[0].endswith("-delete")


def test_an_older_controller_that_outgrew_an_own_log_that_ends_at_its_snapshot(pair: Pair) -> None:
    """It leads the epoch that the broker knows, by its next start, and its log goes beyond the
    broker's: the last batch that the snapshot holds tells.
    """
    pair.controller.stop()
    pair.new_controller()
    pair.broker.stop()
    pair.broker = memory_broker(
        pair.controller,
        files=pair.broker.files,
        metadata_log_max_record_bytes_between_snapshots="1",
    ).start()
    pair.create("newer")
    pair.broker.stop()
    (snapshot,) = list_snapshots(pair.broker.files, METADATA)
    assert read_durable_end(pair.broker.files, METADATA) == snapshot.end_offset
    pair.controller.stop()
    pair.new_controller(pair.older_disk())
    pair.controller.pass_time(LONG)
    older = pair.controller.broker.parts.controller
    assert older.epoch == snapshot.epoch and older.log.end_offset > snapshot.end_offset + 20
    pair.broker = memory_broker(pair.controller, files=pair.broker.files)
    ensureDeferred(pair.broker.broker.start()).addErrback(lambda failure: None)
    pair.broker.pass_time(60)
    stopped_by(pair.broker, "has another batch at offset", "Nothing was deleted")
    pair.broker.stop()
    pair.keeps_everything()


@pytest.mark.parametrize("role", ["controller", "broker"])
def test_metadata_without_a_cluster_id_founds_no_other_cluster(pair: Pair, role: str) -> None:
    """`meta.properties` is lost: the node does not start, changes nothing, and goes on when it is
    told which cluster that is.
    """
    cluster_id = pair.controller.broker.cluster_id
    pair.broker.stop()
    broker = pair.broker
    if role == "controller":
        pair.controller.stop()
        broker = pair.controller
    broker.files.remove("/data/meta.properties")
    before = set(broker.files.nodes)
    with pytest.raises(LogDirMismatch, match=r"/data/meta.properties.*is missing.*--cluster-id"):
        pair.new_controller() if role == "controller" else pair.restart_broker()
    assert set(broker.files.nodes) == before
    if role == "controller":
        pair.new_controller(cluster_id=cluster_id)
    more = {"cluster_id": cluster_id} if role == "broker" else {}
    pair.broker = memory_broker(pair.controller, files=pair.broker.files, **more).start()
    pair.broker.pass_time(10)
    assert pair.broker.fatal == [] and b"my only copy" in pair.reads()


@pytest.mark.parametrize("role", ["controller", "broker"])
def test_a_flipped_bit_that_empties_the_cluster_id(pair: Pair, role: str) -> None:
    """No other setting is named for it, no other cluster is joined; the remedy works."""
    broker = getattr(pair, role)
    broker.stop()
    data = broker.files.nodes["/data/meta.properties"].data
    at = data.index(b"cluster.id=") + len(b"cluster.id=")
    first = bytes(data[at : at + 1])
    data[at : at + 1] = b"\n"  # of a J, one flipped bit
    with pytest.raises(CheckpointError, match=r"^/data/meta\.properties: .* no cluster\.id"):
        pair.new_controller() if role == "controller" else pair.restart_broker()
    data[at : at + 1] = first
    if role == "controller":
        pair.new_controller()
    pair.restart_broker().start()
    assert pair.broker.fatal == [] and b"my only copy" in pair.reads()


def test_a_brokers_log_is_not_led(pair: Pair) -> None:
    """The broker is restarted as a controller: what it lacks would be lost."""
    pair.broker.stop()
    pair.controller.stop()
    with pytest.raises(MetadataDamage, match=r"log of a broker.*recover --from /data --to /data"):
        MemoryBroker(files=pair.broker.files, node_id="1").start()
    pair.new_controller()
    pair.restart_broker().start()
    assert b"my only copy" in pair.reads()


def test_a_controllers_first_start_on_what_kafka_formatted() -> None:
    """`kafka-storage format` writes the id and the bootstrap records; the metadata comes with the
    first start. Lost after that, it is lost.
    """
    files = MemoryFileSystem()
    files.make_directories("/data")
    cluster_id = "b3RoZXItY2x1c3Rlci1oZQ"
    write_meta_properties(files, "/data", MetaProperties(cluster_id, 100, b"d" * 16))
    files.open("/data/bootstrap.checkpoint", create=True).write_at(
        0, (KAFKAS_BOOTSTRAP.read_bytes(),)
    )
    first = memory_controller(files=files).start()
    assert first.broker.cluster_id == cluster_id and first.broker.parts.controller.image.features
    first.stop()
    memory_controller(files=files).start().stop()
    files.remove_tree(METADATA)
    with pytest.raises(MetadataDamage, match="is gone"):
        memory_controller(files=files).start()


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_combined_node_whose_metadata_alone_is_an_older_copy(with_checkpoint: bool) -> None:
    """Its own logs contradict it, by how far the metadata was applied, or by their leader epochs:
    the node does not start, and sets no partition aside.
    """
    node = MemoryBroker().start()
    topic = CreatableTopic(name="old", num_partitions=1, replication_factor=1)
    node.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    older = deepcopy(
        {path: found for path, found in node.files.nodes.items() if path.startswith(METADATA)}
    )
    for number in range(2):
        node.stop()
        node = MemoryBroker(files=node.files).start()
        produce(node, "old", b"%d" % number)
    topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    node.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    node.stop()
    files = node.files
    files.remove_tree(METADATA)
    files.make_directories(METADATA)
    files.nodes.update(older)
    if not with_checkpoint:
        files.remove("/data/replication-offset-checkpoint")
    before = written(files)
    said = "replication-offset-checkpoint" if with_checkpoint else "/data/old-0: it has records"
    with pytest.raises(MetadataDamage, match=f"{said}.* older copy.*replog metadata recover"):
        MemoryBroker(files=files).start()
    assert written(files) == before
    assert not [name for name in files.listdir("/data") if "stray" in name]


def written(files: MemoryFileSystem) -> dict[str, bytes]:
    """What holds records, or says which epochs were led."""
    return {
        path: bytes(found.data)
        for path, found in files.nodes.items()
        if path.endswith((".log", "quorum-state"))
    }


def produce(node: MemoryBroker, topic: str, value: bytes) -> None:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, b"k", value)
    data = TopicProduceData(
        topic_id=node.broker.parts.metadata.image.topics_by_name[topic].id,
        partition_data=[PartitionProduceData(index=0, records=builder.build())],
    )
    answer = node.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), 13)
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_a_lost_log_forgets_nothing(pair: Pair) -> None:
    """The broker's log is removed, its controller is an older one: what the broker applied stands
    beside its partitions as well.
    """
    pair.broker.stop()
    pair.broker.files.remove_tree(METADATA)
    pair.controller.stop()
    pair.new_controller(pair.older_disk())
    pair.broker = memory_broker(pair.controller, files=pair.broker.files)
    ensureDeferred(pair.broker.broker.start()).addErrback(lambda failure: None)
    pair.broker.pass_time(60)
    stopped_by(pair.broker, "ends below what", "Nothing was deleted")
    pair.broker.stop()
    pair.keeps_everything()


def test_an_own_log_that_is_not_written_any_more_forgets_nothing() -> None:
    """Its disk failed, the broker serves on, no high watermark moves, and it is killed: what it
    applied meanwhile stands beside its partitions.
    """
    controller = memory_controller().start()
    disk = SimDisk(3)
    node = memory_broker(controller, files=disk, metadata_log_dir="/meta").start()
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    node.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    disk.faults.append(Fault(EIO, "write", "/meta/__cluster_metadata-0"))
    node.pass_time(20)
    assert node.broker.broker_server is not None and node.broker.broker_server.own_log is not None
    assert node.broker.broker_server.own_log.failed is not None
    older = MemoryFileSystem()
    older.nodes, older.directories = (
        deepcopy(controller.files.nodes),
        set(controller.files.directories),
    )
    node.pass_time(20)
    left = disk.after_kill()
    for broker in (node, controller):
        broker.stop()
    controller = memory_controller(world=node, files=older).start()
    again = memory_broker(controller, files=left, metadata_log_dir="/meta")
    ensureDeferred(again.broker.start()).addErrback(lambda failure: None)
    again.pass_time(5)
    stopped_by(again, "ends below what", "Nothing was deleted")
    again.stop()


def test_a_broker_gives_up_what_its_controller_lost(pair: Pair) -> None:
    """KRAFT 3.9: its metadata log and the checkpoint's rows of the metadata are removed by hand. It
    follows the older controller then; partitions that this one does not know are kept as strays.
    """
    pair.broker.stop()
    files = pair.broker.files
    files.remove_tree(METADATA)
    rows = read_offsets(files, "/data", HIGH_WATERMARK)
    kept = {each: offset for each, offset in rows.items() if each.topic != METADATA_TOPIC}
    assert kept != rows
    write_offsets(files, "/data", HIGH_WATERMARK, kept)
    pair.controller.stop()
    pair.new_controller(pair.older_disk())
    pair.broker = memory_broker(pair.controller, files=files)
    pair.broker.start()
    pair.broker.pass_time(LONG)
    assert not pair.broker.fatal
    assert set(pair.broker.broker.parts.metadata.image.topics_by_name) == {"other"}
    (stray,) = (name for name in files.listdir("/data") if name.startswith("precious-0"))
    assert stray.endswith("-stray")
    assert b"my only copy" in bytes(files.nodes[f"/data/{stray}/{0:020d}.log"].data)
