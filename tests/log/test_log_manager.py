"""All logs of a broker: directories, clean and unclean starts, deletion, failing directories (RL
1.5, 1.12, 3.6, 3.8).
"""

from __future__ import annotations

import errno
import posixpath
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent

from tests.coordinator.broker_run import TurnClock
from tests.log.batches import NOW_MS, TOPIC_ID, all_batches, batch, config, values
from tests.log.manual_worker import ManualWorker
from tests.log.test_golden import unpack
from tests.log.test_segment_file import Reactor, threads_named
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.interfaces import IFileSystem, Runtime, TopicPartition
from twisted_broker.log import (
    checkpoints,
    clean_stop,
    log_directory,
    log_manager,
    producer_rebuild,
    producer_snapshot,
    producer_snapshot_writer,
    producer_state,
)
from twisted_broker.log.checkpoints import read_whole
from twisted_broker.log.disk_worker import DiskThread
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.log.gaps import Gap
from twisted_broker.log.log import Log
from twisted_broker.log.log_directory import LogDirMismatch, partition_of
from twisted_broker.log.log_manager import LogManager
from twisted_broker.log.memory import InlineWorker
from twisted_broker.log.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from twisted_broker.log.segment import file_name
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.simulation.stalling_worker import StallingWorker
from twisted_broker.wire.errors import BrokerError, ErrorCode

CLUSTER = "cluster-of-tests"
A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class World:
    """A disk and a clock that outlive the managers on them."""

    def __init__(self, files: IFileSystem | None = None, **settings: str) -> None:
        self.clock = Clock()
        self.files: Any = files if files is not None else SimDisk(3)
        self.settings = {"log.dirs": "/d1,/d2", "node.id": "1"} | {
            name.replace("_", "."): value for name, value in settings.items()
        }
        self.failed: list[str] = []

    def manager(
        self,
        worker: Callable[[str], Any] = lambda directory: InlineWorker(),
        start: bool = True,
        cluster: str = CLUSTER,
    ) -> LogManager:
        runtime = Runtime(self.clock, self.wall_ms, None, self.files, worker, Random(5))
        manager = LogManager(
            runtime,
            BrokerConfig(self.settings),
            on_directory_failure=lambda path, error: self.failed.append(path),
        )
        if start:
            results: list[object] = []
            manager.start(cluster).addBoth(results.append)
            assert results == [None], results
        return manager

    def wall_ms(self) -> int:
        return NOW_MS + int(self.clock.seconds() * 1000)

    def stop(self, manager: LogManager, epoch: int | None = 4) -> None:
        stopped: list[object] = []
        manager.shutdown(epoch).addBoth(stopped.append)
        assert stopped == [None]


def fill(log: Log, count: int) -> None:
    for number in range(count):
        log.append_as_leader(batch(b"%d" % number), 0, NOW_MS)


def create(manager: LogManager, partition: TopicPartition = A, **settings: Any) -> Log:
    return manager.get_or_create(partition, TOPIC_ID, config(**settings), is_new=True)


def failure(manager: LogManager) -> Any:
    """What `start` fails with."""
    found: list[Any] = []
    try:
        manager.start(CLUSTER).addErrback(found.append)
    except Exception as error:
        return error
    return found[0].value


def test_a_new_directory_is_formatted_once() -> None:
    """RL 3.6, FILE_FORMATS 1: meta.properties with node, cluster and a directory id that stays the
    same over restarts.
    """
    world = World()
    manager = world.manager()
    ids = [directory.directory_id for directory in manager.directories.online()]
    assert len(set(ids)) == 2
    assert read_meta_properties(world.files, "/d1") == MetaProperties(CLUSTER, 1, ids[0])
    world.stop(manager)
    assert [directory.directory_id for directory in world.manager().directories.online()] == ids


@pytest.mark.parametrize(
    "other",
    [MetaProperties("another-cluster", 1, bytes(16)), MetaProperties(CLUSTER, 2, bytes(16))],
)
def test_a_directory_of_somebody_else_is_refused(other: MetaProperties) -> None:
    """FILE_FORMATS 1: another cluster's or node's directory stops the start."""
    world = World()
    world.files.make_directories("/d1")
    write_meta_properties(world.files, "/d1", other)
    assert isinstance(failure(world.manager(start=False)), LogDirMismatch)


def test_an_id_of_a_directory_begins_with_no_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's tools would take it for an option; such a draw is drawn again."""
    drawn = [
        bytes([0xF8]) + bytes(15),
        bytes([0xFB]) + bytes(15),
        bytes([0xF4]) + bytes([255]) * 15,
    ]

    class Drawing(Random):
        def randbytes(self, n: int) -> bytes:
            return drawn.pop(0)

    monkeypatch.setattr(sys.modules[__name__], "Random", Drawing)
    (directory,) = World(log_dirs="/d1").manager().directories.online()
    assert not drawn
    assert directory.directory_id is not None
    assert directory.directory_id[:7] == b"\xf4" + b"\xff" * 5 + b"\x4f"
    assert directory.directory_id[8] == 0xBF, "version 4, as RFC 9562 has it"


def test_a_directory_in_use_is_refused() -> None:
    """RL 3.6: the lock is held from start to stop; two managers on one directory are refused."""
    world = World()
    first = world.manager()
    assert isinstance(failure(world.manager(start=False)), LogDirMismatch)
    world.stop(first)
    world.manager()


def test_logs_survive_a_clean_stop_without_a_scan() -> None:
    """RL 3.6: after a clean stop the mark carries the broker epoch, is removed at start, and
    records are not looked at: a scan would end the log where one of them is damaged.
    """
    world = World()
    manager = world.manager()
    log = create(manager)
    fill(log, 20)
    log.set_high_watermark(20)
    fill(create(manager, B), 3)
    world.stop(manager, epoch=77)
    assert checkpoints.read_clean_shutdown(world.files, "/d1") == 77
    assert checkpoints.read_offsets(world.files, "/d1", checkpoints.RECOVERY_POINT) == {A: 20}
    damaged = world.files.after_kill()
    damaged.flip_bit("/d1/a-0/" + file_name(0, ".log"), 64)  # in the first record
    assert World(damaged).manager().logs[A].log_end_offset == 20
    again = world.manager()
    assert checkpoints.read_clean_shutdown(world.files, "/d1") is None
    assert [directory.previous_broker_epoch for directory in again.directories.online()] == [77, 77]
    log = again.logs[A]
    assert (
        log.log_end_offset == 20
        and log.topic_id == TOPIC_ID
        and values(log) == [b"%d" % number for number in range(20)]
    )


def test_logs_survive_a_kill_and_a_power_loss_after_a_stop() -> None:
    """RL 3.6: a killed broker's logs are recovered; after a clean stop nothing is lost by a
    power failure.
    """
    world = World()
    manager = world.manager()
    fill(create(manager), 20)
    manager.logs[A].append_as_leader(
        batch(b"p", producer_id=1, producer_epoch=0, base_sequence=0), 0, NOW_MS
    )
    killed = World(world.files.after_kill())
    log = killed.manager().get(A)
    assert log is not None and log.log_end_offset == 21
    world.stop(manager)
    unpowered = World(world.files.after_power_loss(keep=0))
    again = unpowered.manager()
    log = again.get(A)
    assert log is not None and log.log_end_offset == 21 and again.directories.online()[0].was_clean
    assert log.producers.last_snapshot_offset == 21 and 1 in log.producers.producers


@pytest.mark.parametrize("why", ["truncated", "recovered"])
def test_entries_that_a_clean_stop_dropped_do_not_come_back(why: str) -> None:
    """What an index lost before the stop was truncated, not rewritten: a loss of power afterwards
    must not bring it back, for a clean start believes the file.
    """
    world = World()
    manager = world.manager()
    log = create(manager, index_interval_bytes=0)
    fill(log, 20)
    log.durability.flush()
    manager.checkpoints.recovery_points()
    world.files.sync_all()
    if why == "recovered":  # the records behind the first were lost, their index entries were not
        path = log.segments.active.log.path
        world = World(world.files.after_kill())
        world.files.open(path).truncate(2 * log.segments.active.size // 20)
        world.files.sync_all()
        manager = world.manager()
        log = manager.logs[A]
    else:
        log.truncate_to(2)
    assert log.log_end_offset == 2
    world.stop(manager)
    again = World(world.files.after_power_loss(keep=0)).manager()
    assert again.directories.online()[0].was_clean
    log = again.logs[A]
    assert log.log_end_offset == 2
    assert log.segments.active.offset_index.last_offset < 2
    assert log.segments.active.time_index.last_entry[1] < 2
    fill(log, 3)
    assert values(log)[2:] == [b"0", b"1", b"2"]


def test_holes_of_compaction_survive_a_start_that_knows_no_topic_settings() -> None:
    """RL 3.6: at start the topics' settings are not known yet: a compacted log (of a Java
    broker, say) keeps all its segments.
    """
    world = World()
    manager = world.manager()
    log = create(manager, segment_bytes=300)
    fill(log, 12)
    middle = log.segments.bases()[1]
    for suffix in (".log", ".index", ".timeindex"):
        world.files.remove(f"/d1/a-0/{middle:020d}{suffix}")
    again = World(world.files.after_kill()).manager().get(A)
    assert again is not None and again.log_end_offset == 12


def test_a_second_crash_while_loading_is_unclean() -> None:
    """RL 3.6: the clean mark is gone before the first log is opened."""
    world = World()
    world.stop(world.manager())
    world.manager()
    assert World(world.files.after_kill()).manager().directories.online()[0].was_clean is False


@pytest.mark.parametrize(("state", "end"), [("clean", 140), ("killed", 161)])
def test_a_whole_directory_of_kafka_opens(state: str, end: int) -> None:
    """RL 3.1: the log manager takes over a log directory that Kafka 4.3.1 left, with its
    identity, checkpoints and clean mark.
    """
    files = unpack(state)
    found = read_meta_properties(files, f"/{state}")
    assert found is not None and found.cluster_id is not None
    world = World(files, log_dirs=f"/{state}")
    manager = world.manager(cluster=found.cluster_id)
    assert (
        manager.directories.online()[0].was_clean == (state == "clean")
        and manager.directories.online()[0].directory_id == found.directory_id
    )
    log = manager.get(TopicPartition("rich", 0))
    assert log is not None and (log.log_start_offset, log.log_end_offset) == (3, end)
    world.stop(manager)
    assert read_meta_properties(files, f"/{state}") == found


def test_new_logs_go_to_the_least_loaded_directory() -> None:
    """RL 3.8: fewest logs first; a directory that is asked for by id wins."""
    world = World()
    manager = world.manager()
    places = [create(manager, TopicPartition("t", number)).directory for number in range(4)]
    assert places == ["/d1/t-0", "/d2/t-1", "/d1/t-2", "/d2/t-3"]
    wanted = manager.directories.by_path["/d2"].directory_id
    log = manager.get_or_create(A, TOPIC_ID, config(), is_new=True, directory_id=wanted)
    assert log.directory == "/d2/a-0"
    assert manager.get_or_create(A, TOPIC_ID, config()) is log


def test_a_log_belongs_to_one_topic_id() -> None:
    """RL 1.3: the same name under another id is INCONSISTENT_TOPIC_ID."""
    manager = World().manager()
    create(manager)
    with pytest.raises(BrokerError) as caught:
        manager.get_or_create(A, bytes(16), config())
    assert caught.value.code == ErrorCode.INCONSISTENT_TOPIC_ID


def test_deletion_renames_at_once_and_removes_later() -> None:
    """RL 1.5: the directory is renamed `-delete`, the name is free again, and the files go after
    the topic's `file.delete.delay.ms`; slices are read meanwhile.
    """
    world = World()
    manager = world.manager()
    log = create(manager, file_delete_delay_ms=7_000)
    fill(log, 3)
    held = log.read(0, 1000).slice
    assert held is not None
    manager.delete(A)
    assert manager.get(A) is None
    renamed = [name for name in world.files.listdir("/d1") if name.endswith("-delete")]
    assert len(renamed) == 1 and renamed[0].startswith("a-0.")
    assert len(held.read()) == held.length
    fill(create(manager), 1)
    world.clock.advance(6.9)
    assert [n for n in world.files.listdir("/d1") if n.endswith("-delete")] == renamed
    world.clock.advance(0.1)
    assert not [name for name in world.files.listdir("/d1") if name.endswith("-delete")]
    assert len(held.read()) == held.length
    held.release()
    with pytest.raises(LogDirFailure):
        log.append_as_leader(batch(b"x"), 0, NOW_MS)


def deleted(world: World) -> list[str]:
    names = world.files.listdir("/d1")
    for name in [*names]:
        if world.files.is_directory(f"/d1/{name}"):
            names += world.files.listdir(f"/d1/{name}")
    return [name for name in names if name.endswith(("-delete", ".deleted"))]


@pytest.mark.parametrize("of_topic", [True, False])
def test_a_shorter_delay_acts_on_what_waits_already(of_topic: bool) -> None:
    """A disk that is full of removed files need not be so for a week."""
    week_ms = 7 * 86_400_000
    world = World(log_segment_delete_delay_ms=str(week_ms))
    manager = world.manager()
    log = create(manager, file_delete_delay_ms=week_ms, segment_bytes=300, retention_bytes=0)
    fill(log, 12)
    log.set_high_watermark(log.log_end_offset)
    if of_topic:
        log.delete_old_segments(world.wall_ms())
    else:
        manager.delete(A)
    for _ in range(60):
        world.clock.advance(60)
    assert deleted(world)
    if of_topic:
        log.update_config(replace(log.config, file_delete_delay_ms=60_000))
    else:
        manager.config = BrokerConfig(world.settings | {"log.segment.delete.delay.ms": "60000"})
    world.clock.advance(60)
    assert not deleted(world)


def test_a_deleted_topic_keeps_the_delay_of_its_own() -> None:
    world = World(log_segment_delete_delay_ms="60000")
    manager = world.manager()
    fill(create(manager, file_delete_delay_ms=200_000), 3)
    manager.delete(A)
    for _ in range(3):
        world.clock.advance(60)
    assert deleted(world)
    world.clock.advance(20)
    assert not deleted(world)


def test_a_deletion_that_the_disk_refuses_is_known() -> None:
    """The log is out, its files are where they were: StopReplica answers KAFKA_STORAGE_ERROR."""
    world = World()
    manager = world.manager()
    log = create(manager)
    manager.delete(A)
    assert manager.is_set_aside(log)
    log = create(manager)
    with patch.object(world.files, "rename", side_effect=OSError(5, "I/O")):
        manager.delete(A)
    assert not manager.is_set_aside(log) and manager.get(A) is None


def test_a_deletion_that_the_disk_refuses_keeps_nobody_waiting() -> None:
    """A follower waits for the checkpoint behind its truncation, and that is not written any more:
    the log that is out is offline for whoever holds it, as those of the directory are.
    """
    world = World(log_dirs="/d1")
    worker = ManualWorker()
    manager = world.manager(lambda directory: worker, start=False)
    manager.start(CLUSTER)
    worker.run_all()
    log = create(manager)
    fill(log, 5)
    log.roll(NOW_MS)
    log.set_high_watermark(5)
    worker.run_all()
    manager.checkpoints.recovery_points()
    worker.run_all()
    log.truncate_to(2, NOW_MS)
    assert log.durability.is_checkpoint_above
    called: list[bool] = []
    log.durability.when_synced(0, lambda: called.append(True))
    world.files.faults.append(Fault(errno.EIO))
    manager.delete(A)
    assert not called and world.failed == ["/d1"]
    worker.run_all()
    assert called and log.failed is not None
    with pytest.raises(LogDirFailure):
        log.append_as_leader(batch(b"x"), 0, NOW_MS)


@pytest.mark.parametrize(("number", "stays"), [(errno.EIO, False), (errno.EMFILE, True)])
def test_a_deletion_whose_name_cannot_be_synced(number: int, stays: bool) -> None:
    """A disk that fails takes its directory offline, and the files count as there; where
    descriptors are short the sync comes again.
    """
    world = World()
    manager = world.manager()
    log = create(manager)
    manager.delete(A)
    synced: list[object] = []
    with patch.object(world.files, "sync_directory", side_effect=OSError(number, "no")):
        manager.names.sync_renames([log]).addBoth(synced.append)
    assert len(synced) == (not stays) and manager.is_set_aside(log) is stays
    world.clock.advance(60)
    assert synced == [None]


def test_producers_are_looked_for_again_where_descriptors_were_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RL 3.5: nobody with a producer id may come any more, and readers of committed records would
    wait for ever for what plain producers write.
    """
    monkeypatch.setattr(producer_rebuild, "AT_ONCE_BYTES", 0)
    read = producer_rebuild._read_slice
    world = World()
    manager = world.manager()
    log = create(manager)
    for number in range(4):
        with_id = batch(b"v", producer_id=1, producer_epoch=0, base_sequence=number)
        log.append_as_leader(with_id, 0, NOW_MS)

    def short(*arguments: Any) -> Any:
        monkeypatch.setattr(producer_rebuild, "_read_slice", read)
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(producer_rebuild, "_read_slice", short)
    log.durability.disk = StallingWorker(world.clock)
    log.truncate_to(3, NOW_MS)
    world.clock.pump([0] * 10)
    log.append_as_leader(batch(b"plain"), 1, NOW_MS)
    log.set_high_watermark(4)
    assert log.producers.is_rebuilding and log.last_stable_offset < 4
    world.clock.pump([1, *[0] * 10])
    assert not log.producers.is_rebuilding and log.last_stable_offset == 4
    assert log.failed is None and not world.failed


@pytest.mark.parametrize("mount_point_stays", [False, True])
def test_no_log_is_made_where_a_directory_has_vanished(mount_point_stays: bool) -> None:
    """RL 1.12: a disk that is unmounted under a broker (`umount -l`): a new log would fill the disk
    above. The directory fails; the next log goes to another one.
    """
    world = World()
    manager = world.manager()
    create(manager)
    for name in world.files.listdir("/d2"):
        world.files.remove(f"/d2/{name}")
    if not mount_point_stays:
        world.files.remove_tree("/d2")
    with pytest.raises(LogDirFailure, match="/d2"):
        create(manager, B)
    assert not world.files.exists("/d2/b-0")
    assert [str(each.failed) for each in manager.directories.claimed() if each.failed] == [
        "[Errno 2] it is gone; was its disk unmounted?: '/d2'"
    ]
    assert create(manager, B).directory == "/d1/b-0"


def test_an_interrupted_deletion_is_finished_at_start() -> None:
    """RL 1.5: `-delete` directories found at start are removed; `-stray` and foreign ones are
    left.
    """
    world = World()
    manager = world.manager()
    create(manager)
    create(manager, B)
    manager.delete(A)
    manager.set_stray_aside(B)
    again = World(world.files.after_kill())
    again.files.make_directories("/d1/lost+found")
    manager = again.manager()
    names = again.files.listdir("/d1") + again.files.listdir("/d2")
    assert not [name for name in names if name.endswith("-delete")]
    assert [name for name in names if name.endswith("-stray")] and "lost+found" in names
    assert not manager.logs


def test_long_topic_names_fit_when_deleted() -> None:
    """FILE_FORMATS 1: the name of a deleted directory is cut to 255 characters."""
    world = World()
    manager = world.manager()
    partition = TopicPartition("x" * 249, 1234)
    create(manager, partition)
    manager.delete(partition)
    assert [len(name) for name in world.files.listdir("/d1") if name.endswith("-delete")] == [255]


def test_a_failing_directory_takes_only_its_own_logs() -> None:
    """RL 1.12: an I/O error in one directory is told once; its logs answer KAFKA_STORAGE_ERROR,
    the others go on.
    """
    world = World()
    manager = world.manager()
    first, other, second = (
        create(manager),
        create(manager, B),
        create(manager, TopicPartition("c", 0)),
    )
    world.files.faults.append(Fault(errno.EIO, "write", "/d1/a-0"))
    with pytest.raises(LogDirFailure):
        fill(first, 1)
    assert world.failed == ["/d1"] and manager.directories.offline() == ["/d1"]
    with pytest.raises(LogDirFailure):
        fill(second, 1)
    fill(other, 3)
    assert create(manager, TopicPartition("d", 0)).directory == "/d2/d-0"
    with pytest.raises(BrokerError) as caught:
        manager.get_or_create(TopicPartition("e", 0), TOPIC_ID, config(), is_new=False)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    world.files.faults.clear()
    world.stop(manager)
    assert checkpoints.read_clean_shutdown(world.files, "/d1") is None
    assert checkpoints.read_clean_shutdown(world.files, "/d2") == 4


def test_no_directory_left_is_an_error() -> None:
    """RL 1.12: when no directory can be claimed the start fails."""
    world = World()
    world.files.faults.append(Fault(errno.EIO, "mkdir"))
    refused = failure(world.manager(start=False))
    assert (
        isinstance(refused, LogDirFailure)
        and refused.cause is not None
        and str(refused.cause) in str(refused)
    )


def test_checkpoints_are_written_while_running() -> None:
    """RL 3.6: recovery points and log starts reach their checkpoints every minute, by the disk
    worker.
    """
    world = World()
    manager = world.manager()
    log = create(manager, segment_bytes=300)
    fill(log, 10)
    log.set_high_watermark(10)
    log.increment_log_start_offset(1)
    world.clock.advance(60)
    assert checkpoints.read_offsets(world.files, "/d1", checkpoints.LOG_START_OFFSET) == {A: 1}
    assert checkpoints.read_offsets(world.files, "/d1", checkpoints.RECOVERY_POINT) == {
        A: log.durability.recovery_point
    }
    assert 0 < log.durability.recovery_point < 10


def test_a_truncation_is_checkpointed() -> None:
    """RL 3.5, 6.6: after a truncation the recovery-point checkpoint follows without waiting for
    its turn: the segment that was truncated is to be synced again.
    """
    world = World()
    manager = world.manager()
    log = create(manager)
    fill(log, 3)
    log.roll(NOW_MS)
    fill(log, 7)
    log.set_high_watermark(4)
    log.durability.flush()
    manager.checkpoints.recovery_points()
    log.truncate_to(4, NOW_MS)
    assert checkpoints.read_offsets(world.files, "/d1", checkpoints.RECOVERY_POINT) == {A: 3}
    log.durability.flush()
    assert log.durability.recovery_point == 4


def test_many_truncations_want_one_checkpoint() -> None:
    """What waits for the worker writes what is the case when it runs; one that comes after its
    beginning is written behind it: each log back to the segment that it was truncated in. A log
    that was deleted meanwhile leaves no row.
    """
    world = World()
    manager = world.manager()
    worker = ManualWorker()
    logs = []
    for number in range(20):
        log = create(manager, TopicPartition("t", number))
        fill(log, 4)
        log.roll(NOW_MS)
        fill(log, 10)
        log.set_high_watermark(6)
        log.durability.flush()
        logs.append(log)
    directories = manager.directories.online()
    for directory in directories:
        directory.disk = worker
    for log in logs:
        log.truncate_to(6, NOW_MS)
    assert len(worker.jobs) == len(directories)
    logs[0].truncate_to(2, NOW_MS)
    assert len(worker.jobs) == len(directories)
    manager.delete(logs[1].topic_partition)
    worker.run_all()
    rows: dict[TopicPartition, int] = {}
    for directory in directories:
        rows |= checkpoints.read_offsets(world.files, directory.path, checkpoints.RECOVERY_POINT)
    expected = {log.topic_partition: 4 for log in logs[2:]}
    assert rows == expected | {logs[0].topic_partition: 0}
    logs[2].truncate_to(1, NOW_MS)
    assert len(worker.jobs) == 1


def test_a_step_of_the_calendar_delays_no_sync_by_age() -> None:
    """`flush.ms` is an interval: the clock on the wall may be set back by a day."""
    world = World(log_flush_scheduler_interval_ms="1000")
    steps = [0]
    world.wall_ms = lambda: NOW_MS - steps[0]
    manager = world.manager()
    log = create(manager, flush_ms=5000)
    world.clock.advance(10)
    steps[0] = 24 * 3600 * 1000
    fill(log, 3)
    for _ in range(6):
        world.clock.advance(1)
    assert log.durability.recovery_point == 3


def test_retention_looks_at_a_few_logs_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk over ten thousand is a tenth of a second; one that is deleted meanwhile is left
    alone, and the next walk waits for the end of this one.
    """
    monkeypatch.setattr("twisted_broker.log.log_upkeep.RETENTION_PER_STEP", 3)
    monkeypatch.setattr("twisted_broker.turns.PIECES_PER_TURN", 1)
    world = World()
    world.clock = clock = TurnClock()
    manager = world.manager()
    logs = []
    for number in range(10):
        log = create(manager, TopicPartition("t", number), segment_bytes=300, retention_ms=1000)
        fill(log, 10)
        log.set_high_watermark(log.log_end_offset)
        logs.append(log)
    world.clock.rightNow += 3600
    manager.upkeep.delete_old_segments()
    done = [sum(log.log_start_offset > 0 for log in logs)]
    manager.delete(logs[9].topic_partition)
    while done[-1] < 9:
        manager.upkeep.delete_old_segments()
        clock.turn()
        done.append(sum(log.log_start_offset > 0 for log in logs))
    assert done[0] == 3 and max(b - a for a, b in pairwise(done)) <= 3
    clock.turn()
    assert logs[9].log_start_offset == 0 and not manager.upkeep._is_deleting


def test_retention_that_changes_during_a_walk_counts_for_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody raises it because too much is being deleted."""
    monkeypatch.setattr("twisted_broker.log.log_upkeep.RETENTION_PER_STEP", 1)
    monkeypatch.setattr("twisted_broker.log.log_upkeep.SEGMENTS_PER_STEP", 1)
    monkeypatch.setattr("twisted_broker.turns.PIECES_PER_TURN", 1)
    world = World()
    world.clock = clock = TurnClock()
    manager = world.manager()
    logs = [
        create(manager, TopicPartition("t", number), segment_bytes=300, retention_ms=1000)
        for number in range(2)
    ]
    for log in logs:
        fill(log, 10)
        log.set_high_watermark(log.log_end_offset)
    world.clock.rightNow += 3600
    manager.upkeep.delete_old_segments()
    clock.turn()
    before = [log.log_start_offset for log in logs]
    assert 0 < before[0] < logs[0].log_end_offset - 1 and before[1] == 0
    for log in logs:
        log.update_config(replace(log.config, retention_ms=10**9))
    while manager.upkeep._is_deleting:
        clock.turn()
    assert [log.log_start_offset for log in logs] == before


@pytest.mark.parametrize("beside", [False, True])
def test_a_future_log_beside_the_log_that_a_move_replaced_has_its_row(beside: bool) -> None:
    """RL 3.8: moved away and back again before the first move's end. Rows name the partition alone:
    by the copy's recovery point records of the other would count as synced that never were.
    """
    world = World(log_dirs="/d1")
    manager = world.manager()
    log = create(manager)
    for _ in range(2):
        fill(log, 10)
        log.roll(NOW_MS)
    if beside:
        manager.moves.create(log, manager.directories.of(log))
    world.files = world.files.after_kill()
    checkpoints.write_offsets(world.files, "/d1", checkpoints.RECOVERY_POINT, {A: 20})
    path = f"{log.directory}/{file_name(0, '.log')}"
    world.files.flip_bit(path, world.files.size(path) - 1)
    found = world.manager()
    assert found.logs[A].log_end_offset == (9 if beside else 20)
    assert (A in found.moves.futures) is beside


def test_a_future_log_whose_place_is_taken_is_not_the_log_itself() -> None:
    """A directory that somebody left there under the copy's name is opened, not the log's own."""
    manager = World(log_dirs="/d1").manager()
    log = create(manager)
    fill(log, 3)
    directory = manager.directories.of(log)
    name = f"{A}.{7:032x}-future"
    directory.create(A, TOPIC_ID, log.config, NOW_MS, name).release_files()
    copy = directory.create(A, TOPIC_ID, log.config, NOW_MS, name)
    assert copy.directory == f"/d1/{name}" and copy.log_end_offset == 0
    assert directory.create(A, TOPIC_ID, log.config, NOW_MS).log_end_offset == 3


def test_retention_deletes_a_few_segments_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One log may have ten thousand that are old at once: their time was made shorter."""
    monkeypatch.setattr("twisted_broker.log.log_upkeep.SEGMENTS_PER_STEP", 3)
    monkeypatch.setattr("twisted_broker.turns.PIECES_PER_TURN", 1)
    world = World()
    world.clock = clock = TurnClock()
    manager = world.manager()
    log = create(manager, segment_bytes=200, retention_ms=1000)
    fill(log, 20)
    log.set_high_watermark(20)
    count = len(log.segments)
    world.clock.rightNow += 3600
    with capturedLogs() as lines:
        manager.upkeep.delete_old_segments()
        left = [len(log.segments)]
        while manager.upkeep._is_deleting:
            clock.turn()
            left.append(len(log.segments))
        manager._lines.stop()
    assert left[0] == count - 3 and all(a - b <= 3 for a, b in pairwise(left)), left
    assert log.log_start_offset == 20 and len(log.segments) == 1
    (line,) = [text for each in lines if "retention deleted" in (text := formatEvent(each) or "")]
    assert f"segments={count}" in line


def test_what_is_wanted_behind_a_stop_touches_no_directory() -> None:
    """disk_worker 2: a round of the cleaner that was being taken asks for checkpoints once more;
    another process may own the directory by then.
    """
    reactor = Reactor()
    world = World()
    manager = world.manager(lambda path: DiskThread(reactor.from_thread, "of a manager"), False)

    def wait_for(deferred: Any) -> None:
        ended: list[object] = []
        deferred.addBoth(ended.append)
        while not ended:
            reactor.run_one()
        assert ended == [None], ended

    wait_for(manager.start(CLUSTER))
    fill(create(manager), 3)
    wait_for(manager.shutdown(4))
    before = world.files.operations
    with capturedLogs() as lines:
        manager.checkpoints.recovery_points()
        manager.checkpoints.log_starts()
        while not reactor.calls.empty():
            reactor.run_one()
    assert world.files.operations == before and not world.failed
    assert not lines and not threads_named("of a manager")


def test_producers_expire_a_few_logs_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may know a million."""
    monkeypatch.setattr("twisted_broker.log.log_upkeep.PRODUCERS_PER_STEP", 4)
    monkeypatch.setattr("twisted_broker.turns.PIECES_PER_TURN", 1)
    world = World()
    world.clock = clock = TurnClock()
    manager = world.manager()
    logs = [create(manager, TopicPartition("t", number)) for number in range(5)]
    for log in logs:
        for producer_id in range(3):
            log.producers.add_data(producer_id, 0, 0, producer_id, 0, NOW_MS, False)
    world.clock.rightNow += 10**6

    def known() -> int:
        return sum(len(log.producers.producers) for log in logs)

    manager.upkeep.expire_producers()
    manager.upkeep.expire_producers()
    assert known() == 12
    for left in (9, 6, 3, 0):
        clock.turn()
        assert known() == left
    clock.turn()
    assert not manager.upkeep._is_expiring


def test_many_producers_of_one_log_expire_a_few_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may know a million, and all of one log; who writes again meanwhile stays."""
    monkeypatch.setattr("twisted_broker.log.log_upkeep.PRODUCERS_PER_STEP", 4)
    monkeypatch.setattr("twisted_broker.turns.PIECES_PER_TURN", 1)
    world = World()
    world.clock = clock = TurnClock()
    manager = world.manager()
    producers = create(manager).producers
    for producer_id in range(13):
        producers.add_data(producer_id, 0, 0, producer_id, 0, NOW_MS, False)
    world.clock.rightNow += 10**6
    manager.upkeep.expire_producers()
    known = [len(producers.producers)]
    producers.add_data(12, 0, 1, 13, 0, world.wall_ms(), False)
    while manager.upkeep._is_expiring:
        clock.turn()
        known.append(len(producers.producers))
    assert known == [9, 5, 1, 1] and list(producers.producers) == [12]


def test_an_expiry_that_changes_during_a_walk_counts_for_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("twisted_broker.log.log_upkeep.PRODUCERS_PER_STEP", 4)
    monkeypatch.setattr("twisted_broker.turns.PIECES_PER_TURN", 1)
    world = World()
    world.clock = clock = TurnClock()
    log = create(manager := world.manager())
    for producer_id in range(13):
        log.producers.add_data(producer_id, 0, 0, producer_id, 0, NOW_MS, False)
    world.clock.rightNow += 10**6
    manager.upkeep.expire_producers()
    left = len(log.producers.producers)
    log.update_config(replace(log.config, producer_id_expiration_ms=2**40))
    while manager.upkeep._is_expiring:
        clock.turn()
    assert len(log.producers.producers) == left == 9


def _stop_in_turns(world: World, manager: LogManager, worker: ManualWorker) -> list[int]:
    """How many producers and logs each turn of a stop is busy with: a log counts as ten."""
    busy, logs = [0], list(manager)
    encode, finish = producer_snapshot.encode_row, Log.finish

    def encoded(entry: producer_snapshot.ProducerEntry) -> bytes:
        busy[-1] += 1
        return encode(entry)

    def finished(log: Log) -> Callable[[], None]:
        busy[-1] += 10
        return finish(log)

    stopped: list[object] = []
    with (
        patch.object(producer_snapshot, "encode_row", encoded),
        patch.object(producer_snapshot_writer, "encode_row", encoded),
        patch.object(Log, "finish", finished),
    ):
        manager.shutdown(4).addBoth(stopped.append)
        while worker.jobs:
            assert checkpoints.read_clean_shutdown(world.files, "/d1") is None
            busy.append(0)
            worker.run_one()
    assert stopped == [None] and sum(busy) >= 10 * len(logs)
    return busy


@pytest.fixture
def small_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_stop, "FINISHED_PER_STEP", 20)
    monkeypatch.setattr(clean_stop, "LOG_IN_PRODUCERS", 10)
    monkeypatch.setattr(producer_state, "SLICE_PRODUCERS", 3)
    monkeypatch.setattr(producer_snapshot_writer, "SLICE_PRODUCERS", 3)


@pytest.mark.usefixtures("small_stop")
@pytest.mark.parametrize("begun", [False, True])
def test_a_clean_stop_takes_many_turns(begun: bool) -> None:
    """RL 3.8: for a log of very many producers, of which the snapshot of a roll may be unfinished,
    and for very many logs; each snapshot is whole before the clean shutdown file is there.
    """
    world, worker = World(log_dirs="/d1"), ManualWorker()
    manager = world.manager()
    logs = [create(manager, TopicPartition("t", number)) for number in range(9)]
    for log, count in zip(logs, (1, 40, 2, 3, 0, 0, 0, 20, 0), strict=True):
        log.durability.disk = manager.directories.of(log).disk = worker
        for producer in range(count):
            log.append_as_leader(
                batch(b"v", producer_id=producer, producer_epoch=0, base_sequence=0), 0, NOW_MS
            )
    if begun:
        logs[1].roll(NOW_MS)
        log = logs[1]
        log.append_as_leader(
            batch(b"v", producer_id=40, producer_epoch=0, base_sequence=0), 0, NOW_MS
        )
    known = [set(log.producers.producers) for log in logs]
    busy = _stop_in_turns(world, manager, worker)
    assert max(busy) <= 26, busy
    for log, producers in zip(logs, known, strict=True):
        end = log.log_end_offset
        if end:
            path = f"{log.directory}/{end:020d}.snapshot"
            found = producer_snapshot.decode_snapshot(path, read_whole(world.files, path) or b"")
            assert {each.producer_id for each in found} == producers
    again = world.manager()
    assert [set(log.producers.producers) for log in again] == known


@pytest.mark.usefixtures("small_stop")
def test_a_stop_whose_snapshot_fails_is_not_clean() -> None:
    """RL 1.12: and ends all the same."""
    world, worker = World(log_dirs="/d1"), ManualWorker()
    manager = world.manager()
    log = create(manager)
    log.durability.disk = manager.directories.of(log).disk = worker
    for producer in range(9):
        log.append_as_leader(
            batch(b"v", producer_id=producer, producer_epoch=0, base_sequence=0), 0, NOW_MS
        )
    world.files.faults.append(Fault(errno.EIO, "write", ".snapshot"))
    stopped: list[object] = []
    manager.shutdown(4).addBoth(stopped.append)
    worker.run_all()
    assert stopped == [None]
    assert checkpoints.read_clean_shutdown(world.files, "/d1") is None


@pytest.mark.usefixtures("small_stop")
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC])
def test_a_stop_that_fails_writes_nothing_when_it_has_ended(error: int) -> None:
    """RL 3.6: the directory is unlocked then; another log's snapshot was being written."""
    world, worker = World(log_dirs="/d1"), ManualWorker()
    manager = world.manager()
    logs = [create(manager, TopicPartition("t", number)) for number in range(2)]
    for log in logs:
        log.durability.disk = manager.directories.of(log).disk = worker
        for producer in range(9):
            log.append_as_leader(
                batch(b"v", producer_id=producer, producer_epoch=0, base_sequence=0), 0, NOW_MS
            )
    logs[1].roll(NOW_MS)
    path = logs[1].producers.path(9)
    world.files.faults.append(Fault(error, "open", "t-0/00000000000000000009.snapshot"))
    stopped: list[object] = []
    with patch.object(ManualWorker, "stop"):  # a thread does what it was given
        manager.shutdown(4).addBoth(lambda _: stopped.append(read_whole(world.files, path)))
        worker.run_all()
    assert stopped == [read_whole(world.files, path)]
    assert checkpoints.read_clean_shutdown(world.files, "/d1") is None


def test_a_stop_behind_a_sync_that_fails_is_not_clean() -> None:
    """RL 1.12, 3.6: what the kernel could not write it has dropped, and the sync of the stop, which
    comes right behind, finds nothing left to write.
    """
    world, worker = World(log_dirs="/d1"), ManualWorker()
    manager = world.manager()
    log = create(manager)
    log.durability.disk = manager.directories.of(log).disk = worker
    fill(log, 3)
    log.durability.flush()
    world.files.faults.append(Fault(errno.EIO, "sync", ".log", times=1))
    stopped: list[object] = []
    manager.shutdown(4).addBoth(stopped.append)
    reports = []
    while worker.jobs:  # what a job found comes after the next one began
        job, done = worker.jobs.pop(0)
        try:
            found, error = job(), None
        except OSError as failure:
            found, error = None, failure
        reports.append(partial(done, found, error))
        if not worker.jobs or len(reports) > 1:
            reports.pop(0)()
        while reports and not worker.jobs:
            reports.pop(0)()
    assert stopped == [None] and world.failed == ["/d1"]
    assert checkpoints.read_clean_shutdown(world.files, "/d1") is None


def test_logs_are_counted_once_for_all_that_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """RL 3.8: each partition of a new topic would look at all logs of the broker. What came and
    went otherwise counts as well.
    """
    world = World()
    manager = world.manager()
    looked: list[str] = []
    dirname = posixpath.dirname
    monkeypatch.setattr(
        log_manager,
        "posixpath",
        SimpleNamespace(
            join=posixpath.join, dirname=lambda path: looked.append(path) or dirname(path)
        ),
    )
    for number in range(50):
        create(manager, TopicPartition("t", number))
    assert len(looked) < 100
    for number in range(0, 50, 2):
        manager.delete(TopicPartition("t", number))
    assert [dirname(create(manager, TopicPartition("u", n)).directory) for n in range(3)] == [
        "/d1"
    ] * 3


def test_corrupt_checkpoints_count_as_empty() -> None:
    """RELIABILITY 6.2: a cut recovery-point or log-start checkpoint at any byte never loses a
    record.
    """
    world = World()
    manager = world.manager()
    fill(create(manager), 5)
    world.stop(manager)
    for name in (checkpoints.RECOVERY_POINT, checkpoints.LOG_START_OFFSET):
        for size in range(world.files.size(f"/d1/{name}")):
            disk = world.files.after_kill()
            disk.shorten(f"/d1/{name}", size)
            log = World(disk).manager().get(A)
            assert log is not None and log.log_end_offset == 5


@pytest.mark.parametrize("logs", [1, 3])
def test_what_recovery_drops_is_a_line(monkeypatch: pytest.MonkeyPatch, logs: int) -> None:
    """A bit that flipped above the recovery point ends the log there, after an unclean stop: the
    file, the offset and the remedy, for so many logs of a directory; then their number.
    """
    monkeypatch.setattr(log_directory, "_MOST_LINES", 2)
    world = World(log_dirs="/d1")
    manager = world.manager()
    for number in range(logs):
        fill(create(manager, TopicPartition("a", number)), 5)
    disk = world.files.after_kill()
    for number in range(logs):
        path = f"/d1/a-{number}/{file_name(0, '.log')}"
        disk.flip_bit(path, disk.size(path) // 2, 3)
    with capturedLogs() as events:
        reopened = World(disk, log_dirs="/d1").manager().get(A)
    assert reopened is not None and reopened.log_end_offset == 2
    warned = [formatEvent(each) for each in events if each["log_level"] is LogLevel.warn]
    assert len(warned) == min(logs, 3)
    assert warned[0].startswith(f"/d1/a-0/{file_name(0, '.log')}: recovery dropped ")
    assert "from offset 2 on: " in warned[0] and "fetched again" in warned[0]
    assert logs < 3 or warned[2] == "/d1: recovery dropped the ends of 3 logs"


def test_retention_and_expiry_run_by_themselves() -> None:
    """RL 3.7, 3.2: every five minutes old segments go and silent producers are forgotten; the
    files go a minute later.
    """
    world = World(log_segment_delete_delay_ms="60000")
    manager = world.manager()
    log = create(manager, segment_bytes=300, retention_ms=1000, producer_id_expiration_ms=1000)
    fill(log, 10)
    log.append_as_leader(batch(b"p", producer_id=1, producer_epoch=0, base_sequence=0), 0, NOW_MS)
    log.set_high_watermark(log.log_end_offset)
    world.clock.advance(300)
    assert log.log_start_offset == 11 and len(log.segments) == 1
    assert [name for name in world.files.listdir(log.directory) if name.endswith(".deleted")]
    world.clock.advance(60)
    assert not [name for name in world.files.listdir(log.directory) if name.endswith(".deleted")]
    world.clock.advance(300)
    assert not log.producers.producers


def test_a_stalled_disk_stalls_neither_creation_nor_appends() -> None:
    """RELIABILITY 6.2: with every disk worker stuck, logs are made, written, rolled and deleted."""
    world = World()
    manager = world.manager()
    clock = world.clock
    workers = [StallingWorker(clock) for _ in manager.directories.online()]
    for worker, directory in zip(workers, manager.directories.online(), strict=True):
        worker.stalled = True
        directory.disk = worker
    for number in range(10):
        fill(create(manager, TopicPartition("t", number), segment_bytes=300), 10)
    manager.delete(TopicPartition("t", 3))
    manager.checkpoints.recovery_points()
    assert len(manager.logs) == 9 and all(worker.waiting for worker in workers)


def test_logs_load_on_the_worker() -> None:
    """docs/ARCHITECTURE.md 7: loading waits for the disk worker, the start's Deferred for all
    directories.
    """
    world = World()
    first = world.manager()
    fill(create(first), 3)
    world.stop(first)
    manager = world.manager(
        worker=lambda directory: StallingWorker(world.clock, lambda: 5), start=False
    )
    fired: list[object] = []
    manager.start(CLUSTER).addBoth(fired.append)
    assert not fired and not manager.logs
    world.clock.pump([0.005] * 3)
    assert fired == [None] and list(manager.logs) == [A]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a-0", A),
        ("a-b-12", TopicPartition("a-b", 12)),
        ("a", None),
        ("-0", None),
        ("a-01", None),
        ("a-x", None),
        ("..-1", None),
        ("a/../b-1", None),
        ("a-0.0123456789abcdef0123456789abcdef-delete", None),
        ("x" * 250 + "-0", None),
    ],
)
def test_directory_names(name: str, found: TopicPartition | None) -> None:
    """FILE_FORMATS 1: only `topic-partition` is a log."""
    assert partition_of(name) == found


def test_a_sync_that_was_waited_for_is_reported() -> None:
    """Kafka's flush.messages: the replica manager hears when a log's sync is done, once each,
    and not of logs that were deleted.
    """
    world = World()
    manager = world.manager()
    told: list[TopicPartition] = []

    class Listener:
        def log_synced(self, log: Log) -> None:
            told.append(log.topic_partition)

        def log_start_moved(self, log: Log) -> None:
            raise AssertionError("no retention here")

    manager.subscribe(Listener())
    log, other = create(manager, flush_messages=1), create(manager, B, flush_messages=1)
    for each in (log, other):
        each.durability.disk = ManualWorker()
        fill(each, 3)
    manager.delete(B)
    for each in (log, other):
        assert isinstance(each.durability.disk, ManualWorker)
        each.durability.disk.run_all()
    assert told == [A, A] and log.durability.recovery_point == 3


def test_a_directory_that_was_just_made_survives_a_power_failure() -> None:
    """RELIABILITY 6.2: every directory on the way to a new one is synced into the one above:
    what is synced below must not hang in the air.
    """
    world = World(log_dirs="/srv/kafka/data")
    log = create(world.manager())
    fill(log, 3)
    log.durability.flush()
    left = world.files.after_power_loss(keep=0)
    assert values(World(left, log_dirs="/srv/kafka/data").manager().logs[A]) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("seed", range(20))
def test_records_that_survive_a_power_failure_know_their_topic(seed: int) -> None:
    """RL 1.3: without `partition.metadata` a log would be taken for one of another topic of its
    name: it is durable soon after the log was made.
    """
    world = World(SimDisk(seed), log_dirs="/d1")
    manager = world.manager()
    logs = [create(manager, TopicPartition("a", number)) for number in range(5)]
    for log in logs:
        fill(log, 2)
    world.clock.advance(1)
    assert not any(log.durability.recovery_point for log in logs)
    again = World(world.files.after_power_loss(keep=0.7), log_dirs="/d1").manager()
    assert {log.topic_id for log in again} == {TOPIC_ID} and len(again.logs) == 5


@pytest.mark.parametrize("seed", range(8))
def test_a_topic_id_outlives_a_kill_and_a_power_loss_after_a_stop(seed: int) -> None:
    """RL 3.6: killed before the second was over that its topic id waits for its sync (seed 340072):
    the next process makes it durable with the first records.
    """
    world = World(SimDisk(seed), log_dirs="/d1")
    manager = world.manager()
    create(manager)
    world.files._locks.clear()
    again = World(world.files, log_dirs="/d1")  # a kill keeps all, durable or not
    manager = again.manager()
    log = manager.get(A)
    assert log is not None and log.topic_id == TOPIC_ID
    fill(log, 2)
    again.stop(manager)
    found = World(again.files.after_power_loss(keep=0.0), log_dirs="/d1").manager().get(A)
    assert found is not None and found.topic_id == TOPIC_ID and values(found) == [b"0", b"1"]


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize("known", ["first", "second", "neither"])
def test_two_topics_of_one_name(known: str, removed: bool) -> None:
    """A directory was away while a topic was deleted and made again: the broker starts, the
    metadata says which log counts, and the other one is deleted if a record removed it, else kept
    as a stray.
    """
    ids = {"first": TOPIC_ID, "second": bytes(15) + b"\x99", "neither": bytes(16)}
    world = World(log_dirs="/d1")
    for path, topic in (("/d1", "first"), ("/d2", "second")):
        world.settings["log.dirs"] = path
        manager = world.manager()
        fill(manager.get_or_create(A, ids[topic], config(), is_new=True), 3)
        world.stop(manager)
    world.settings["log.dirs"] = "/d1,/d2"
    manager = world.manager()
    other = ids["first" if known == "second" else "second"]
    manager.settle_rivals(lambda name: ids[known], lambda log: removed and log.topic_id == other)
    log = manager.get(A)
    assert log is not None and log.topic_id == ids["second" if known == "second" else "first"]
    assert values(log) == [b"0", b"1", b"2"]
    (aside,) = [
        name
        for path in ("/d1", "/d2")
        for name in world.files.listdir(path)
        if name.startswith(f"{A}.")
    ]
    assert aside.endswith("-delete" if removed else "-stray")
    world.stop(manager)
    assert world.manager().get(A) is not None


@pytest.mark.parametrize("filled", ["/d1", "/d2", ""])
def test_two_logs_of_one_name_without_an_id(filled: str) -> None:
    """A loss of power took both ids and brought back a deleted replica: where one has no records
    the broker starts with the other one, and deletes neither. Seed 447959.
    """
    world = World(log_dirs="/d1")
    for path in ("/d1", "/d2"):
        world.settings["log.dirs"] = path
        manager = world.manager()
        log = manager.get_or_create(A, TOPIC_ID, config(), is_new=True)
        if path == filled:
            fill(log, 3)
        world.stop(manager)
        world.files.remove(f"{path}/{A}/partition.metadata")
    world.settings["log.dirs"] = "/d1,/d2"
    manager = world.manager()
    manager.settle_rivals(lambda name: TOPIC_ID, lambda log: False)
    kept = manager.get(A)
    assert kept is not None and values(kept) == ([b"0", b"1", b"2"] if filled else [])
    strays = [
        name for path in ("/d1", "/d2") for name in world.files.listdir(path) if "-stray" in name
    ]
    assert len(strays) == 1
    world.stop(manager)
    assert world.manager().get(A) is not None


def test_two_logs_with_records_and_without_an_id_are_the_operators() -> None:
    world = World(log_dirs="/d1")
    for path in ("/d1", "/d2"):
        world.settings["log.dirs"] = path
        manager = world.manager()
        fill(manager.get_or_create(A, TOPIC_ID, config(), is_new=True), 3)
        world.stop(manager)
        world.files.remove(f"{path}/{A}/partition.metadata")
    world.settings["log.dirs"] = "/d1,/d2"
    assert "move one of them away" in str(failure(world.manager(start=False)))


@pytest.mark.parametrize("lost", ["old", "new"])
def test_two_topics_of_one_name_one_without_its_id(lost: str) -> None:
    """As above, and the power went before `partition.metadata` of one of the two was durable: the
    broker starts, and nothing but a log of the metadata's topic, or one without an id, is served.
    Seed 330083.
    """
    ids = {"old": TOPIC_ID, "new": bytes(15) + b"\x99"}
    world = World(log_dirs="/d1")
    for path, topic in (("/d1", "old"), ("/d2", "new")):
        world.settings["log.dirs"] = path
        manager = world.manager()
        fill(manager.get_or_create(A, ids[topic], config(), is_new=True), 3)
        world.stop(manager)
        if topic == lost:
            world.files.remove(f"{path}/{A}/partition.metadata")
    world.settings["log.dirs"] = "/d1,/d2"
    manager = world.manager()
    manager.settle_rivals(lambda name: ids["new"], lambda log: False)
    log = manager.get(A)
    assert log is not None and log.directory == f"/d2/{A}"
    strays = [
        name for path in ("/d1", "/d2") for name in world.files.listdir(path) if "-stray" in name
    ]
    assert len(strays) == 1


def left_offline(world: World, has_id: bool = True) -> LogManager:
    """A replica with five records leaves while /d1 with its log is offline."""
    manager = world.manager()
    old = create(manager)
    fill(old, 5)
    old.durability.flush()
    if not has_id:
        world.files.remove(f"{old.directory}/partition.metadata")
    world.files.faults.append(Fault(errno.EIO, "write", "/d1/a-0"))
    with pytest.raises(LogDirFailure):
        fill(old, 1)
    world.files.faults.clear()
    manager.delete(A)
    return manager


def left_behind(world: World, count: int) -> tuple[LogManager, Log]:
    """A replica with five records left while /d1 with its log was offline, was added again, and
    has `count` records in /d2 now.
    """
    manager = left_offline(world)
    assert world.files.exists("/d1/a-0")
    new = create(manager)
    assert new.directory == "/d2/a-0"
    fill(new, count)
    world.clock.advance(1)
    new.durability.flush()
    return manager, new


@pytest.mark.parametrize(("count", "kept_in"), [(0, "/d1"), (2, "/d1"), (7, "/d2")])
@pytest.mark.parametrize("power_is_lost", [False, True])
def test_of_two_logs_of_a_replica_that_came_again_the_newer_counts(
    count: int, kept_in: str, power_is_lost: bool
) -> None:
    """The directory of the old log is back: what is committed is in the newer of the two. The other
    is kept as a stray once the metadata is known. Seed 1031776.
    """
    world = World()
    left_behind(world, count)
    world.files._locks.clear()
    again = World(world.files.after_power_loss(keep=0.0) if power_is_lost else world.files)
    manager = again.manager()
    manager.settle_rivals(lambda name: TOPIC_ID, lambda log: False)
    kept = manager.get(A)
    assert kept is not None and kept.directory == f"{kept_in}/a-0"
    assert kept.topic_id == TOPIC_ID and kept.log_end_offset == max(count, 5)
    other = "/d2" if kept_in == "/d1" else "/d1"
    (stray,) = [name for name in again.files.listdir(other) if name.startswith("a-0")]
    assert stray.endswith("-stray")
    assert again.files.exists(f"{other}/{stray}/{file_name(0, '.log')}")
    again.stop(manager)
    assert not again.failed
    found = World(again.files.after_power_loss(keep=0.0)).manager().get(A)
    assert found is not None and found.directory == kept.directory


def test_a_newer_leader_epoch_counts_before_length_and_what_was_deleted_before_both() -> None:
    """A tail that was never committed is longer; a log that begins behind the other's end has
    nothing left of what that one holds.
    """
    world = World()
    _, new = left_behind(world, 0)
    new.append_as_leader(batch(b"newer"), 7, NOW_MS)
    world.clock.advance(1)
    world.files._locks.clear()
    kept = World(world.files).manager().get(A)
    assert kept is not None and values(kept) == [b"newer"]
    world = World()
    _, new = left_behind(world, 0)
    new.truncate_fully_and_start_at(100, NOW_MS)
    world.clock.advance(1)
    world.files._locks.clear()
    kept = World(world.files).manager().get(A)
    assert kept is not None and kept.log_end_offset == 100


def test_two_logs_without_a_topic_id_are_refused() -> None:
    """They may be of two topics of one name: nobody here knows."""
    world = World()
    for path in ("/d1", "/d2"):
        world.settings["log.dirs"] = path
        manager = world.manager()
        fill(manager.get_or_create(A, None, config(), is_new=True), 3)
        world.stop(manager)
    world.settings["log.dirs"] = "/d1,/d2"
    assert "move one of them away" in str(failure(world.manager(start=False)))
    assert world.files.exists("/d1/a-0") and world.files.exists("/d2/a-0")


def test_a_new_topics_log_is_told_apart_though_the_disk_worker_is_stalled() -> None:
    """Its topic id does not wait: after a kill both directories are back, and the older log may
    have no topic id. Seed 2000471.
    """
    world = World()
    manager = left_offline(world, has_id=False)
    worker = StallingWorker(world.clock)
    worker.stalled = True
    manager.directories.by_path["/d2"].disk = worker
    new_id = bytes(15) + b"\x99"
    fill(manager.get_or_create(A, new_id, config(), is_new=True), 2)
    world.files._locks.clear()
    again = World(world.files).manager()
    again.settle_rivals(lambda name: new_id, lambda log: False)
    kept = again.get(A)
    assert kept is not None and kept.directory == "/d2/a-0" and kept.log_end_offset == 2
    (stray,) = [name for name in world.files.listdir("/d1") if name.startswith("a-0")]
    assert stray.endswith("-stray")


def test_a_log_that_cannot_be_told_apart_is_not_made() -> None:
    """Its directory refused the name of a file: it is taken offline, as by any other error."""
    world = World()
    manager, _ = left_behind(world, 1)
    manager.delete(A)
    world.files.faults.append(Fault(errno.EIO, "rename", "/d2/a-0/"))
    with pytest.raises(BrokerError):
        manager.get_or_create(A, TOPIC_ID, config(), is_new=True)
    assert manager.get(A) is None and manager.directories.offline() == ["/d1", "/d2"]


def stopped_elsewhere(world: World, moved: bool) -> tuple[bytes, bytes]:
    """The ids of two directories: an older log of five records in /d1, and its partition's log of
    seven in /d2, to which it moved, or where it was made anew.
    """
    if moved:
        manager = world.manager()
        fill(create(manager), 5)
        target = manager.directories.by_path["/d2"]
        copy = manager.moves.create(manager.logs[A], target)
        for each in all_batches(manager.logs[A]):
            copy.append_as_follower(each.to_bytes(), 0, NOW_MS)
        manager.moves.prepare_swap(A, lambda: None)
        world.files.faults.append(Fault(errno.EIO, "rename", "/d1/a-0"))
        fill(manager.moves.swap(A), 2)
        world.files.faults.clear()
    else:
        manager, _ = left_behind(world, 7)
    assert manager.directories.offline() == ["/d1"]
    world.stop(manager)
    first, second = manager.directories.by_path.values()
    return first.directory_id, second.directory_id


@pytest.mark.parametrize("moved", [False, True], ids=["made anew", "moved"])
@pytest.mark.parametrize("is_known", [False, True], ids=["unread", "read"])
def test_an_older_log_is_not_served_in_place_of_one_that_is_offline(
    moved: bool, is_known: bool
) -> None:
    """KIP-858: the metadata place the replica in a directory that is offline, and its older log is
    in one that is back. Seed 1031776.
    """
    world = World()
    ids = stopped_elsewhere(world, moved)
    # The directory's id is known where it fails later.
    path = "/d2/a-0" if is_known else "/d2/meta.properties"
    world.files.faults.append(Fault(errno.EIO, "open" if is_known else "", path))
    manager = world.manager()
    assert manager.directories.offline() == ["/d2"] and manager.directories.online()

    def opened(directory_id: bytes | None, is_new: bool = False) -> Log:
        return manager.get_or_create(A, TOPIC_ID, config(), is_new, directory_id)

    with pytest.raises(BrokerError, match="/d2") as refused:
        opened(ids[1])
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    # A directory of another id is not the one that is offline, if that one's is known.
    if is_known:
        assert opened(bytes(15) + b"\x77").log_end_offset == 5
    else:
        with pytest.raises(BrokerError, match="/d2"):
            opened(bytes(15) + b"\x77")
    # The metadata place it where its log is, know no directories (ZooKeeper), or the replica is
    # added now.
    for directory_id, is_new in ((ids[0], False), (None, False), (ids[1], True)):
        assert opened(directory_id, is_new).log_end_offset == 5
    world.stop(manager)
    world.files.faults.clear()
    found = world.manager().get(A)
    assert found is not None and found.log_end_offset == 7


def test_without_the_directory_that_is_gone_the_older_log_is_served() -> None:
    """The remedy where that one does not come back: nothing is offline then."""
    for settings in ({"log.dirs": "/d1"}, {"log.dirs": "/d1,/d3"}):
        world = World()
        ids = stopped_elsewhere(world, moved=True)
        world.settings |= settings
        found = world.manager().get_or_create(A, TOPIC_ID, config(), False, ids[1])
        assert found.directory == "/d1/a-0" and found.log_end_offset == 5


def synced(world: World) -> list[str]:
    """The paths that were synced since the last call."""
    found = [path for operation, path in world.files.history if operation.startswith("sync")]
    world.files.history.clear()
    return found


def test_topic_ids_of_new_logs_are_synced_a_second_later() -> None:
    """A thousand logs are made at once: their topic ids are written then, and synced a second
    later, so that the syncs do not delay the making. A log made in between joins them.
    """
    world = World(log_dirs="/d1")
    manager = world.manager()
    synced(world)
    first = [create(manager, TopicPartition("a", number)) for number in range(3)]
    world.clock.advance(0.5)
    late = create(manager, B)
    assert all(world.files.exists(f"{log.directory}/partition.metadata") for log in [*first, late])
    assert not synced(world)
    assert not any(log.durability.name_is_durable for log in [*first, late])
    world.clock.advance(0.5)
    assert all(log.durability.name_is_durable for log in [*first, late])
    paths = synced(world)
    assert {f"{log.directory}/partition.metadata" for log in [*first, late]} < set(paths)
    assert paths.count("/d1") == 1
    world.clock.advance(5)
    assert not synced(world)


def test_ids_of_logs_that_had_none_are_written_and_synced_by_the_worker() -> None:
    """A cluster's topics get ids while it runs: the reactor syncs nothing, and what the
    checkpoints say of these logs stays.
    """
    world = World(log_dirs="/d1")
    worker = ManualWorker()
    manager = world.manager(lambda directory: worker, start=False)
    manager.start(CLUSTER)
    worker.run_all()
    partitions = [TopicPartition("a", number) for number in range(3)]
    logs = [manager.get_or_create(each, None, config(), is_new=True) for each in partitions]
    for log in logs:
        fill(log, 3)
        log.set_high_watermark(3)
        log.increment_log_start_offset(2)
    worker.run_all()
    world.clock.advance(1)
    worker.run_all()
    manager.checkpoints.log_starts()
    worker.run_all()
    starts = checkpoints.read_offsets(world.files, "/d1", checkpoints.LOG_START_OFFSET)
    assert set(starts.values()) == {2} and all(log.durability.name_is_durable for log in logs)
    synced(world)
    # A sync that was submitted before says nothing of the ids.
    logs[0].durability.flush()
    for log in logs:
        assert manager.get_or_create(log.topic_partition, TOPIC_ID, config()) is log
    assert not synced(world)
    worker.run_all()
    assert not any(log.durability.name_is_durable for log in logs)
    synced(world)
    world.clock.advance(1)
    worker.run_all()
    names = {f"{log.directory}/partition.metadata" for log in logs}
    assert names < set(synced(world)) and all(log.durability.name_is_durable for log in logs)
    assert checkpoints.read_offsets(world.files, "/d1", checkpoints.LOG_START_OFFSET) == starts
    world.files = world.files.after_power_loss(0.0)
    again = world.manager()
    assert {again.logs[each].topic_id for each in partitions} == {TOPIC_ID}


def test_the_id_of_a_log_that_had_none_is_written_once_descriptors_are_free() -> None:
    """Nothing fails, and it comes again."""
    world = World(log_dirs="/d1")
    manager = world.manager()
    log = manager.get_or_create(A, None, config(), is_new=True)
    world.clock.advance(1)
    world.files.faults.append(Fault(errno.EMFILE, "open", "partition.metadata", times=1))
    assert manager.get_or_create(A, TOPIC_ID, config()) is log and log.topic_id == TOPIC_ID
    assert not world.files.exists(f"{log.directory}/partition.metadata")
    world.clock.pump([1, 1, 1])
    assert log.durability.name_is_durable and not world.failed
    assert checkpoints.read_partition_metadata(world.files, log.directory) == TOPIC_ID


def test_a_log_in_a_directory_that_was_left_there_is_made_durable() -> None:
    """Its name may be as new as its topic id: both are synced, as those of any new log."""
    world = World(log_dirs="/d1")
    manager = world.manager()
    world.files.make_directories(f"/d1/{A}")
    synced(world)
    log = create(manager)
    assert not log.durability.name_is_durable
    world.clock.advance(1)
    assert log.durability.name_is_durable
    assert {f"{log.directory}/partition.metadata", "/d1"} <= set(synced(world))


def test_topic_ids_that_could_not_be_synced_are_synced_later() -> None:
    """No descriptor for the sync: nothing fails, and it comes again."""
    world = World(log_dirs="/d1")
    manager = world.manager()
    log = create(manager)
    world.files.faults.append(Fault(errno.EMFILE, "open", "partition.metadata", times=1))
    world.clock.advance(1)
    assert not log.durability.name_is_durable and not world.failed
    world.clock.advance(1)
    assert log.durability.name_is_durable


def test_topic_ids_of_many_logs_are_synced_a_few_in_a_turn() -> None:
    """Syncs on several threads starve a busy reactor: each turn allows a few of them only."""
    world = World(log_dirs="/d1")
    worker = ManualWorker()
    manager = world.manager(lambda directory: worker, start=False)
    manager.start(CLUSTER)
    worker.run_all()
    logs = [create(manager, TopicPartition("a", number)) for number in range(100)]
    worker.run_all()
    world.clock.advance(1)
    counts = [0]
    while counts[-1] < len(logs):
        worker.run_all()
        counts.append(sum(log.durability.name_is_durable for log in logs))
        assert counts[-1] - counts[-2] in range(1, 20)
        world.clock.advance(0)


def rows(files: Any) -> dict[str, dict[TopicPartition, int]]:
    names = (checkpoints.RECOVERY_POINT, checkpoints.LOG_START_OFFSET, checkpoints.HIGH_WATERMARK)
    return {name: checkpoints.read_offsets(files, "/d1", name) for name in names}


@pytest.mark.parametrize("jobs", range(6))
@pytest.mark.parametrize("crash", ["kill", "power"])
def test_rows_of_a_log_are_not_those_of_the_next_of_its_name(crash: str, jobs: int) -> None:
    """RL 1.12, 3.6: rows have no topic id: those of a topic that was deleted never give the log of
    the next one a high watermark, a log start or a recovery point, however late the disk is
    (simulation, three brokers, seed 78).
    """
    for seed in range(20):
        world = World(SimDisk(seed), log_dirs="/d1")
        worker = ManualWorker()
        manager = world.manager(lambda directory, worker=worker: worker, start=False)  # type: ignore[misc]
        manager.start(CLUSTER)
        worker.run_all()
        old = create(manager)
        fill(old, 5)
        create(manager, B)
        old.durability.flush()
        worker.run_all()
        old.set_high_watermark(5)
        old.increment_log_start_offset(3)
        manager.checkpoints.recovery_points()
        manager.checkpoints.log_starts()
        worker.run_all()
        checkpoints.write_offsets(world.files, "/d1", checkpoints.HIGH_WATERMARK, {A: 5, B: 0})
        assert all(A in found for found in rows(world.files).values())
        world.files.sync_all()
        manager.delete(A)
        new_id = bytes(15) + b"\x77"
        log = manager.get_or_create(A, new_id, config(), is_new=True)
        fill(log, 2)
        for _ in range(jobs):
            worker.run_one()
            world.clock.advance(0.5)
        left = world.files.after_kill() if crash == "kill" else world.files.after_power_loss()
        again = World(left, log_dirs="/d1").manager()
        found = again.get(A)
        if found is not None and found.topic_id != TOPIC_ID:
            assert (found.durability.recovery_point, found.log_start_offset) == (0, 0)
            assert rows(left)[checkpoints.HIGH_WATERMARK].get(A, 0) == 0
            assert values(found) == [b"0", b"1"][: found.log_end_offset]
            assert rows(left)[checkpoints.HIGH_WATERMARK][B] == 0


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("stop", ["checkpoint", "clean stop"])
def test_a_log_that_grew_past_an_old_recovery_point_is_checked(stop: str, seed: int) -> None:
    """RL 3.5, 3.6, 6.6: a truncation, and the log grows over several segments past where it ended
    before, while the worker stalls: no checkpoint says so. What a loss of power leaves of the new
    records must be checked, though it is below where the old ones were synced to: no row is above
    the high watermark, and nothing below that is truncated.
    """
    world = World(SimDisk(seed), log_dirs="/d1")
    manager = world.manager()
    log = create(manager)
    for _ in range(4):
        fill(log, 4)
        log.roll(NOW_MS)
    log.set_high_watermark(5)
    if stop == "checkpoint":
        manager.checkpoints.recovery_points()
    else:
        world.stop(manager)
        manager = world.manager()
        log = manager.logs[A]
        log.set_high_watermark(5)
    assert log.durability.recovery_point == (16 if stop == "checkpoint" else 5)
    world.files.sync_all()
    log.durability.disk = manager.directories.online()[0].disk = ManualWorker()
    log.truncate_to(6, NOW_MS)
    for number in range(6, 30):
        log.append_as_leader(batch(b"new %d" % number), 1, NOW_MS)
        if number % 3 == 2:
            log.roll(NOW_MS)
    again = World(world.files.after_power_loss(keep=0.7), log_dirs="/d1").manager().logs[A]
    expected = [b"0", b"1", b"2", b"3", b"0", b"1", *(b"new %d" % n for n in range(6, 30))]
    found = values(again)
    old = [*expected[:6], b"2", b"3", *[b"0", b"1", b"2", b"3"] * 2]
    assert found in (expected[: len(found)], old[: len(found)]) and len(found) >= 5


@pytest.mark.parametrize("seed", range(12))
def test_a_leader_of_what_was_truncated_below_the_checkpoint_waits_for_it(seed: int) -> None:
    """RL 3.5, 3.6: truncated below what was synced (an unclean election), and elected before the
    checkpoint says so. What it appended would count as synced after a loss of power, and segments
    that were removed would follow it. Its producers try again.
    """
    world = World(SimDisk(seed), log_dirs="/d1")
    manager = world.manager()
    log = create(manager)
    for _ in range(4):
        fill(log, 4)
        log.roll(NOW_MS)
    log.set_high_watermark(16)
    manager.checkpoints.recovery_points()
    world.files.sync_all()
    log.durability.disk = manager.directories.online()[0].disk = worker = ManualWorker()
    log.truncate_to(6, NOW_MS)
    refused: list[ErrorCode] = []
    for number in range(6, 30):
        try:
            log.append_as_leader(batch(b"new %d" % number), 2, NOW_MS)
        except BrokerError as refusal:
            refused.append(refusal.code)
            worker.run_one()
            log.append_as_leader(batch(b"new %d" % number), 2, NOW_MS)
        if number % 3 == 2:
            log.roll(NOW_MS)
    again = World(world.files.after_power_loss(keep=0.7), log_dirs="/d1").manager().logs[A]
    old = [b"0", b"1", b"2", b"3"]
    expected = [*old, b"0", b"1", *(b"new %d" % n for n in range(6, 30))]
    found = values(again)
    assert found in (expected[: len(found)], (4 * old)[: len(found)])
    assert refused == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize("seed", range(12))
def test_a_row_above_what_an_unclean_start_found_is_not_trusted(seed: int) -> None:
    """RL 3.6: the log lost its tail, the row still names it; what is appended there before the
    next checkpoint waits for one.
    """
    world = World(SimDisk(seed), log_dirs="/d1")
    manager = world.manager()
    log = create(manager)
    for _ in range(4):
        fill(log, 4)
        log.roll(NOW_MS)
    log.set_high_watermark(16)
    manager.checkpoints.recovery_points()
    log.truncate_to(6, NOW_MS)
    world.files.sync_all()
    checkpoints.write_offsets(world.files, "/d1", checkpoints.RECOVERY_POINT, {A: 16})
    world = World(world.files.after_power_loss(keep=1.0), log_dirs="/d1")
    manager = world.manager()
    log = manager.logs[A]
    assert log.log_end_offset == 6
    rows = checkpoints.read_offsets(world.files, "/d1", checkpoints.RECOVERY_POINT)
    assert rows == {A: log.durability.recovery_point} and rows[A] <= 6
    assert not log.durability.is_checkpoint_above


@pytest.mark.parametrize("failing", [False, True])
def test_what_was_truncated_below_the_high_watermark_waits_for_the_checkpoint(
    failing: bool,
) -> None:
    """RL 3.5, 3.6: after an unclean election a log is truncated below what the checkpoint says was
    synced, while the worker stalls. What is appended there was never synced: a follower waits until
    the checkpoint says less. A directory that fails is not waited for.
    """
    world = World(log_dirs="/d1,/d2")
    manager = world.manager()
    log = create(manager)
    fill(log, 9)
    log.roll(NOW_MS)
    log.set_high_watermark(9)
    manager.checkpoints.recovery_points()
    directory = manager.directories.of(log)
    log.durability.disk = directory.disk = worker = ManualWorker()
    called: list[int] = []
    log.truncate_to(4, NOW_MS)
    assert log.durability.is_checkpoint_above
    log.durability.when_synced(0, lambda: called.append(1))
    assert not called
    if failing:
        _, report = worker.jobs.pop(0)
        report(None, OSError(errno.EIO, "no"))
        assert not called  # whoever fails a log is in the middle of something
        worker.run_all()
        assert called == [1] and log.failed is not None
        return
    worker.run_one()
    assert called == [1] and not log.durability.is_checkpoint_above
    assert checkpoints.read_offsets(world.files, directory.path, checkpoints.RECOVERY_POINT) == {
        A: 0
    }
    worker.run_all()
    fill(log, 7)
    log.truncate_to(6, NOW_MS)  # what the checkpoint says is below that
    assert not log.durability.is_checkpoint_above


@pytest.mark.parametrize("is_full", [False, True])
def test_a_log_start_that_a_truncation_lowered_is_checkpointed_before_more_comes(
    is_full: bool,
) -> None:
    """RL 2.8, 3.5: records are deleted up to 50, and an unclean election makes a leader of one that
    ends at 30. By the log start of before the next start would drop what was replicated since.
    """
    world = World(log_dirs="/d1")
    manager = world.manager()
    log = create(manager)
    fill(log, 60)
    log.set_high_watermark(60)
    log.increment_log_start_offset(50)
    manager.checkpoints.log_starts()
    directory = manager.directories.of(log)
    log.durability.disk = directory.disk = worker = ManualWorker()
    called: list[int] = []
    if is_full:
        log.truncate_fully_and_start_at(30, NOW_MS)
    else:
        log.truncate_to(30, NOW_MS)
    log.durability.when_synced(0, lambda: called.append(log.log_start_offset))
    with pytest.raises(BrokerError) as refusal:
        fill(log, 1)
    assert refusal.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and not called
    world.files.faults.append(Fault(errno.EMFILE, "open", checkpoints.LOG_START_OFFSET, times=1))
    worker.run_all()
    assert not called, "it was not written"
    world.clock.advance(1)
    worker.run_all()
    assert called == [30]
    fill(log, 15)
    world.files = world.files.after_kill()
    found = world.manager().logs[A]
    assert (found.log_start_offset, found.log_end_offset) == (30, 45)


def test_a_start_that_drops_damage_after_a_clean_stop_lowers_the_recovery_point() -> None:
    """RL 3.6: an index is gone, and a batch was damaged: what is appended in its place was never
    synced, and the checkpoint does not say so.
    """
    world = World(log_dirs="/d1")
    manager = world.manager()
    log = create(manager)
    fill(log, 10)
    log.set_high_watermark(10)
    world.stop(manager)
    world.files.remove(f"/d1/a-0/{file_name(0, '.index')}")
    path = f"/d1/a-0/{file_name(0, '.log')}"
    world.files.flip_bit(path, world.files.size(path) - 1)
    assert checkpoints.read_offsets(world.files, "/d1", checkpoints.RECOVERY_POINT) == {A: 10}
    log = world.manager().logs[A]
    assert log.log_end_offset == 9 and not log.durability.is_checkpoint_above
    assert checkpoints.read_offsets(world.files, "/d1", checkpoints.RECOVERY_POINT) == {A: 0}


def test_a_truncation_while_the_checkpoint_is_written_wants_another() -> None:
    """RL 3.5: the one under way may say more than is left."""
    world = World(log_dirs="/d1")
    manager = world.manager()
    log = create(manager)
    fill(log, 9)
    log.roll(NOW_MS)
    log.set_high_watermark(9)
    directory = manager.directories.online()[0]
    log.durability.disk = directory.disk = worker = ManualWorker()
    manager.checkpoints.recovery_points()
    (job, done), *_ = worker.jobs
    worker.jobs.clear()
    job()
    log.truncate_to(4, NOW_MS)
    assert log.durability.is_checkpoint_above
    done(None, None)
    assert log.durability.is_checkpoint_above
    worker.run_all()
    assert not log.durability.is_checkpoint_above
    assert checkpoints.read_offsets(world.files, "/d1", checkpoints.RECOVERY_POINT) == {A: 0}


def test_a_start_without_roles_checks_no_more_at_the_next() -> None:
    """RL 1.12, 3.6: before a log has its role its high watermark is not known: the checkpoint keeps
    the recovery point that was read, or the whole log would be checked after the next crash.
    """
    world = World(log_dirs="/d1")
    manager = world.manager()
    log = create(manager)
    for _ in range(4):
        fill(log, 4)
        log.roll(NOW_MS)
    log.set_high_watermark(14)
    manager.checkpoints.recovery_points()
    point = {A: 14}
    for _ in range(2):
        assert checkpoints.read_offsets(world.files, "/d1", checkpoints.RECOVERY_POINT) == point
        world.files = world.files.after_kill()
        manager = world.manager()
        assert manager.logs[A].high_watermark == 0
        manager.checkpoints.recovery_points()
    manager.logs[A].truncate_to(9, NOW_MS)
    point = {A: 8}
    assert checkpoints.read_offsets(world.files, "/d1", checkpoints.RECOVERY_POINT) == point


@pytest.mark.parametrize("was_clean", [False, True])
def test_a_stop_before_a_gap_was_decided_about_is_not_clean(was_clean: bool) -> None:
    """RL 3.6: an unclean stop left a hole, and the broker stops before it has a role for the log:
    the next start still knows that the hole may be torn (simulation, one broker, seed 100009).
    """
    world = World(log_dirs="/d1")
    manager = world.manager()
    log = create(manager)
    for number in range(4):
        fill(log, 1)
        log.roll(NOW_MS + number)
    world.stop(manager)
    if not was_clean:
        world.files.remove("/d1/.kafka_cleanshutdown")
        checkpoints.write_offsets(world.files, "/d1", checkpoints.RECOVERY_POINT, {A: 1})
    for suffix in (".log", ".index", ".timeindex"):
        world.files.remove("/d1/a-0/" + file_name(1, suffix))
    expected = Gap(1, 2, not was_clean)
    for _ in range(2):
        manager = world.manager()
        log = manager.logs[A]
        assert log.gap == expected
        point, segments = log.durability.recovery_point, log.segments.bases()
        log.set_high_watermark(4)
        log.update_config(config(flush_ms=0, retention_ms=1))
        manager.upkeep.flush_dirty_logs()
        manager.upkeep.delete_old_segments()
        assert (log.durability.recovery_point, log.segments.bases()) == (point, segments)
        world.stop(manager)
        assert world.files.exists("/d1/.kafka_cleanshutdown") == was_clean
