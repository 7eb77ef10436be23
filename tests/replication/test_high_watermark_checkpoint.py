"""The high-watermark checkpoint (RL 1.12)."""

from __future__ import annotations

import errno
import sys
from typing import Any

import pytest

from tests.replication.fixtures import TOPIC_ID, TP, batch, make_log, registration
from tests.replication.moving import Moving
from twisted_broker.image.entries import TopicImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.checkpoints import (
    HIGH_WATERMARK,
    metadata_offset,
    read_offsets,
    read_whole,
    write_offsets,
)
from twisted_broker.log.errors import LogDirFailure, OutOfDescriptors
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.replication.high_watermark_checkpoint import HighWatermarkCheckpoint
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Fault

OTHER = TopicPartition("other", 3)


class SlowWorker:
    """Jobs that run when told."""

    def __init__(self) -> None:
        self.jobs: list = []

    def submit(self, job, done) -> None:
        self.jobs.append((job, done))

    def stop(self) -> None:
        self.run()

    def run(self) -> None:
        while self.jobs:
            job, done = self.jobs.pop(0)
            try:
                result = job()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)


class Checkpoints:
    def __init__(self, *directories: str) -> None:
        self.files = MemoryFileSystem()
        for directory in directories:
            self.files.make_directories(directory)
        self.workers = {directory: SlowWorker() for directory in directories}
        self.failed: list[str] = []
        self.marks = HighWatermarkCheckpoint(
            self.files,
            self.workers.__getitem__,
            lambda directory, error: self.failed.append(directory),
        )

    def log(self, tp: TopicPartition = TP, directory: str = "/a", records: int = 5):
        log = make_log(files=self.files, tp=tp, directory=directory)
        if records:
            log.append_as_leader(batch(records), 0, 1_700_000_000_000)
        return log

    def on_disk(self, directory: str = "/a") -> dict:
        return read_offsets(self.files, directory, HIGH_WATERMARK)


def test_one_file_per_directory():
    """RL 1.12: each directory holds the high watermarks of its own logs."""
    broker = Checkpoints("/a", "/b")
    first, second = broker.log(), broker.log(OTHER, "/b")
    first.set_high_watermark(3)
    broker.marks.write([first, second], 0)
    for worker in broker.workers.values():
        worker.run()
    assert (broker.on_disk("/a"), broker.on_disk("/b")) == ({TP: 3}, {OTHER: 0})
    written = read_whole(broker.files, "/a/replication-offset-checkpoint")
    assert written is not None and written.endswith(b"\nt 0 3\n")


def test_the_metadata_goes_with_the_partitions():
    """Invariant 4: it moves twice a second, and makes no write due; a start gives it to no log."""
    broker = Checkpoints("/a")
    log = broker.log()
    broker.marks.write([log], 70)
    broker.workers["/a"].run()
    assert metadata_offset(broker.on_disk()) == 70
    broker.marks.write([log], 80)
    broker.workers["/a"].run()
    assert metadata_offset(broker.on_disk()) == 70
    log.set_high_watermark(2)
    broker.marks.write([log], 90)
    broker.workers["/a"].run()
    assert metadata_offset(broker.on_disk()) == 90
    again = HighWatermarkCheckpoint(broker.files, broker.workers.__getitem__, lambda *_: None)
    again.start(log)
    again.write([log], 0)
    broker.workers["/a"].run()
    assert broker.on_disk() == {TP: 2}


def test_metadata_that_nothing_else_keeps_makes_a_write_due():
    """Invariant 4: its copy has failed, and no high watermark moves any more. One that did not move
    since makes none.
    """
    broker = Checkpoints("/a")
    log = broker.log()
    for end, is_kept, expected in ((70, True, 70), (80, True, 70), (90, False, 90)):
        broker.marks.write([log], end, is_kept)
        broker.workers["/a"].run()
        assert metadata_offset(broker.on_disk()) == expected
    broker.files.remove("/a/replication-offset-checkpoint")
    broker.marks.write([log], 90, False)
    broker.workers["/a"].run()
    assert not broker.files.exists("/a/replication-offset-checkpoint")


def test_a_role_that_is_put_off_keeps_the_high_watermark():
    """RL 1.12: for want of descriptors: with too few in sync what consumers have read already would
    be hidden from them, until more are.
    """
    stopped = Moving(state=registration(1, (1,)))
    stopped.start().produce(10)
    again = Moving(
        stopped.stop(),
        state=registration(1, (1, 2), (1,), leader_epoch=1, partition_epoch=1),
        overrides={"min.insync.replicas": "2"},
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Log, "offset_metadata", short)
        again.start()
    assert not again.partition.is_leader
    again.clock.advance(2)
    assert again.partition.is_leader and again.log.high_watermark == 10


def test_a_partition_that_failed_alone_keeps_its_high_watermark():
    """RL 1.12: its directory goes on, and is checkpointed many times before the next start."""
    stopped = Moving(log_dirs="/a").start()
    both = TopicImage("t", TOPIC_ID, {0: registration(), 1: registration()})
    stopped.publish(topics_by_name={"t": both}, topics_by_id={TOPIC_ID: both})
    stopped.produce(10)
    stopped.replicas.fail_alone(stopped.partition, "an effect failed")
    for _ in range(2):
        stopped.replicas.produce([(TopicPartition("t", 1), batch())], 1)
        stopped.clock.advance(5)
    again = Moving(
        stopped.stop(),
        state=registration(1, (1, 2), (1,), leader_epoch=1, partition_epoch=1),
        overrides={"min.insync.replicas": "2"},
        log_dirs="/a",
    )
    assert again.start().log.high_watermark == 10


def short(log: Log, offset: int) -> LogOffsetMetadata:
    raise OutOfDescriptors(log.directory, OSError(errno.EMFILE, "no"))


def test_one_write_at_a_time_and_none_without_change():
    """The next write waits for the one before; what did not change is not written again."""
    broker = Checkpoints("/a")
    log = broker.log()
    for mark in (1, 2):
        log.set_high_watermark(mark)
        broker.marks.write([log], 0)
    assert len(broker.workers["/a"].jobs) == 1
    broker.workers["/a"].run()
    assert broker.on_disk() == {TP: 2}
    broker.files.remove(f"/a/{HIGH_WATERMARK}")
    broker.marks.write([log], 0)
    broker.workers["/a"].run()
    assert not broker.files.exists(f"/a/{HIGH_WATERMARK}")
    log.set_high_watermark(3)
    broker.marks.write([log], 0)
    broker.workers["/a"].run()
    assert broker.on_disk() == {TP: 3}


def test_the_reactor_only_lists_the_logs():
    """Invariant 2: the worker reads the values and makes the rows; a row costs the reactor a
    handful of calls.
    """
    broker, many = Checkpoints("/a"), 500
    logs = [broker.log(TopicPartition("t", n), records=0) for n in range(many)]
    calls = [0]

    def count(frame: Any, event: str, argument: Any) -> None:
        calls[0] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        broker.marks.write(logs, 7)
    finally:
        sys.setprofile(None)
    assert calls[0] < 4 * many
    logs[3].set_high_watermark(0)
    broker.workers["/a"].run()
    assert len(broker.on_disk()) == many + 2


def test_the_last_write_comes_after_one_that_is_under_way():
    """At a stop the newest values are written behind what the worker still has to do, never
    beside it.
    """
    broker = Checkpoints("/a")
    log = broker.log()
    broker.marks.write([log], 0)
    log.set_high_watermark(5)
    broker.marks.write_last([log], 0)
    assert len(broker.workers["/a"].jobs) == 2
    broker.workers["/a"].run()
    assert broker.on_disk() == {TP: 5}


def test_start_clamps():
    """RL 1.12, 6.6: min(checkpoint, log end), not below the log start; unknown: the log start."""
    broker = Checkpoints("/a")
    write_offsets(broker.files, "/a", HIGH_WATERMARK, {TP: 9})
    log, unknown = broker.log(), broker.log(OTHER)
    broker.marks.start(log)
    broker.marks.start(unknown)
    assert (log.high_watermark, unknown.high_watermark) == (5, 0)


def test_rows_of_logs_that_were_not_opened_yet_are_kept():
    """A write between two role changes at a start must not lose the high watermark of a log that
    is still to come.
    """
    broker = Checkpoints("/a")
    write_offsets(broker.files, "/a", HIGH_WATERMARK, {TP: 4, OTHER: 2})
    log = broker.log()
    broker.marks.start(log)
    broker.marks.write([log], 0)
    broker.workers["/a"].run()
    assert broker.on_disk() == {TP: 4, OTHER: 2}
    late = broker.log(OTHER)
    broker.marks.start(late)
    assert late.high_watermark == 2


def test_rows_beside_a_new_copy_are_kept():
    """A copy is made in a directory of which no log was opened yet: as above."""
    broker = Checkpoints("/a")
    write_offsets(broker.files, "/a", HIGH_WATERMARK, {OTHER: 2})
    broker.marks.write([broker.log()], 0)
    broker.workers["/a"].run()
    assert broker.on_disk() == {TP: 0, OTHER: 2}
    late = broker.log(OTHER)
    broker.marks.start(late)
    assert late.high_watermark == 2


def test_a_directory_that_cannot_be_written_is_reported():
    """RL 1.12: it is reported; the other directory is written all the same."""
    broker = Checkpoints("/a", "/b")
    first, second = broker.log(), broker.log(OTHER, "/b")
    broker.files.make_directories("/a/replication-offset-checkpoint.tmp")
    broker.marks.write([first, second], 0)
    for worker in broker.workers.values():
        worker.run()
    assert (broker.failed, broker.on_disk("/b")) == (["/a"], {OTHER: 0})


def test_a_relative_directory(tmp_path, monkeypatch):
    """ReplicaManagerTest: log.dirs may be relative to where the broker was started: the
    checkpoint is written there, and found again.
    """
    monkeypatch.chdir(tmp_path)
    broker = Checkpoints()
    files: Any = OsFileSystem()
    broker.files = files
    broker.files.make_directories("data")
    broker.workers["data"] = SlowWorker()
    broker.marks = HighWatermarkCheckpoint(
        broker.files,
        broker.workers.__getitem__,
        lambda directory, error: broker.failed.append(directory),
    )
    log = broker.log(directory="data")
    log.set_high_watermark(3)
    broker.marks.write_last([log], 0)
    broker.workers["data"].run()
    assert (tmp_path / "data" / HIGH_WATERMARK).read_text() == "0\n1\nt 0 3\n"
    again = HighWatermarkCheckpoint(
        broker.files, broker.workers.__getitem__, lambda directory, error: None
    )
    log.set_high_watermark(0)
    again.start(log)
    assert (log.high_watermark, broker.failed) == (3, [])
    log.close()


def test_no_descriptor_for_the_checkpoint():
    """EMFILE is not a disk failure: the log waits, and gets its high watermark later; another
    error is one of the directory.
    """
    broker = Checkpoints("/a")
    disk: Any = SimDisk()
    broker.files = disk
    disk.make_directories("/a")
    log = broker.log()
    write_offsets(disk, "/a", HIGH_WATERMARK, {TP: 3})
    marks = HighWatermarkCheckpoint(disk, broker.workers.__getitem__, lambda directory, error: None)
    for error, failure in ((errno.EMFILE, OutOfDescriptors), (errno.EIO, LogDirFailure)):
        disk.faults[:] = [Fault(error, "open", HIGH_WATERMARK)]
        with pytest.raises(failure):
            marks.start(log)
    disk.faults.clear()
    marks.start(log)
    assert log.high_watermark == 3
