"""Durability by itself: syncs, the recovery point and the leader-epoch checkpoint, without a log
around them.
"""

from __future__ import annotations

import errno

from tests.log.batches import config
from tests.log.manual_worker import ManualWorker
from twisted_broker.log import checkpoints
from twisted_broker.log.durability import Durability
from twisted_broker.log.leader_epochs import LeaderEpochFileCache
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log.producer_state import ProducerStateManager
from twisted_broker.log.segment_file import OpenFiles
from twisted_broker.log.segments import LogSegments
from twisted_broker.log.watermarks import Watermarks
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.wire.errors import BrokerError, ErrorCode

DIRECTORY = "/data/t-0"
CHECKPOINT = f"{DIRECTORY}/{checkpoints.LEADER_EPOCH}"


class Parts:
    """An empty log's parts, over a disk that waits to be told."""

    def __init__(
        self, flush_messages: int = 2**63 - 1, made: type[Durability] = Durability
    ) -> None:
        self.files = SimDisk(1)
        self.files.make_directories(DIRECTORY)
        self.segments = LogSegments(OpenFiles(self.files), DIRECTORY, config())
        self.segments.create(0, 0)
        self.files.sync_all()
        producers = ProducerStateManager(self.files, DIRECTORY, 1000)
        self.watermarks = Watermarks(self.segments, producers, LogOffsetMetadata)
        self.epochs = LeaderEpochFileCache([], self.leader_epochs_changed)
        self.errors: list[OSError] = []
        self.synced = 0
        self.durability = made(
            self.segments,
            self.watermarks,
            producers,
            self.epochs,
            flush_messages,
            self.fail,
            self.count_sync,
        )
        self.worker = ManualWorker()
        self.durability.attach(self.worker)

    def leader_epochs_changed(self) -> None:
        self.durability.write_leader_epochs()

    def fail(self, error: OSError) -> None:
        self.errors.append(error)
        self.durability.stopped = True
        self.durability.update_awaiting_sync()

    def count_sync(self) -> None:
        self.synced += 1

    def append(self, count: int = 1) -> None:
        first = LogOffsetMetadata(self.segments.log_end_offset)
        self.segments.log_end_offset += count
        self.durability.sync_if_due(first)

    def checkpoint(self) -> list[tuple[int, int]]:
        return checkpoints.read_epochs(self.files, CHECKPOINT)


def test_one_sync_runs_and_one_waits() -> None:
    """RL 3.6: what is wanted while a sync runs is one more after it."""
    parts = Parts()
    parts.append(10)
    for upto in (3, 5, 8):
        parts.durability.flush(upto)
    assert len(parts.worker.jobs) == 1
    parts.worker.run_one()
    assert parts.durability.recovery_point == 3 and len(parts.worker.jobs) == 1
    parts.worker.run_one()
    assert parts.durability.recovery_point == 8 and not parts.worker.jobs
    parts.durability.flush(8)
    assert not parts.worker.jobs


def test_what_was_truncated_before_a_sync_was_asked_for_is_not_synced_by_it() -> None:
    """RL 3.5: the recovery point is at the log's end at most, or what is appended next would count
    as synced.
    """
    parts = Parts()
    parts.append(10)
    parts.segments.log_end_offset = 4
    parts.durability.truncated_to(4)
    parts.durability.flush(10)
    parts.worker.run_all()
    assert parts.durability.recovery_point == 4
    parts.append(2)
    parts.durability.flush()
    assert parts.worker.jobs


def test_a_sync_that_a_truncation_overtook_moves_nothing() -> None:
    """RL 3.5: what it synced is not what is in the log now."""
    parts = Parts()
    parts.append(10)
    parts.durability.flush()
    parts.segments.log_end_offset = 4
    parts.durability.truncated_to(4)
    parts.append(6)
    parts.worker.run_one()
    assert parts.durability.recovery_point == 0
    parts.durability.flush()
    parts.worker.run_all()
    assert parts.durability.recovery_point == 10


def test_a_truncation_is_synced_and_the_high_watermark_waits_for_it() -> None:
    """RL 3.5: what was cut off may come back by a loss of power, and was not committed: the
    checkpoint does not say so before the cut is durable (seed 403406).
    """
    parts = Parts()
    parts.append(10)
    parts.watermarks.set_high_watermark(LogOffsetMetadata(10))
    parts.durability.flush()
    parts.worker.run_all()
    mark = parts.durability.high_watermark_to_checkpoint
    assert mark(10) == 10
    for end in (6, 7):
        parts.segments.log_end_offset = end
        parts.durability.truncated_to(end)
        parts.durability.point_written(*parts.durability.point_in_write())
        parts.append(3)
    assert mark(5) == 5 and mark(8) == 6
    parts.worker.run_one()
    assert mark(8) == 6, "that sync began before the second one"
    parts.worker.run_all()
    assert mark(8) == 8 and parts.durability.recovery_point == 10


def test_a_truncation_while_the_checkpoints_point_is_read() -> None:
    """RL 3.5: the disk worker's thread has read the recovery point, and nobody has seen yet that it
    is about to write it.
    """

    class Overtaken(Durability):
        def point_to_checkpoint(self, synced_upto: int | None = None) -> int:
            point = super().point_to_checkpoint(synced_upto)
            if parts.segments.log_end_offset == 10:
                cut_at(parts, 6)
            return point

    parts = Parts(made=Overtaken)
    parts.append(10)
    parts.watermarks.set_high_watermark(LogOffsetMetadata(10))
    parts.durability.flush()
    parts.worker.run_all()
    point, truncations = parts.durability.point_in_write()
    assert point <= 6
    parts.durability.point_written(point, truncations)
    assert not parts.durability.is_checkpoint_above


def cut_at(parts: Parts, offset: int) -> None:
    parts.segments.log_end_offset = offset
    parts.durability.truncated_to(offset)


def test_a_sync_below_the_cut_does_not_end_it() -> None:
    """RL 3.5: one that a roll wanted before the truncation comes after it."""
    parts = Parts()
    parts.append(20)
    parts.watermarks.set_high_watermark(LogOffsetMetadata(20))
    parts.durability.flush(5)
    parts.durability.flush(10)
    cut_at(parts, 15)
    parts.append(5)
    parts.worker.run_one()
    assert len(parts.worker.jobs) == 1 and parts.durability.high_watermark_to_checkpoint(20) == 15
    parts.worker.run_all()
    assert parts.durability.high_watermark_to_checkpoint(20) == 20
    parts.segments.log_end_offset = 15
    parts.durability.truncated_to(15)
    parts.durability.flush(10)
    parts.worker.run_one()
    assert parts.durability.high_watermark_to_checkpoint(20) == 15


def test_a_cut_at_the_recovery_point_is_synced() -> None:
    """RL 3.5: nothing is left to sync but the names, and that the active segment is empty."""
    parts = Parts()
    cut_at(parts, 0)
    parts.durability.point_written(*parts.durability.point_in_write())
    assert parts.durability.high_watermark_to_checkpoint(3) == 0
    file = parts.segments.active.log.open()
    file.write_at(0, (b"x",))
    file.truncate(0)
    parts.worker.run_all()
    assert parts.durability.high_watermark_to_checkpoint(3) == 3
    assert parts.files.after_power_loss(keep=0).content(parts.segments.active.log.path) == b""


def test_a_cut_that_empties_the_active_segment_is_synced_with_those_below() -> None:
    """RL 3.5: the recovery point is in a segment below it. Not before the file is synced may the
    checkpoint count as committed what has the offsets of the cut (seed 1031664).
    """
    parts = Parts()
    parts.append(10)
    parts.segments.create(10, 0)
    file = parts.segments.active.log.open()
    file.write_at(0, (b"x",))
    parts.files.sync_all()
    file.truncate(0)
    cut_at(parts, 10)
    parts.durability.flush(5)
    parts.worker.run_one()
    assert parts.durability.recovery_point == 5
    assert parts.durability.high_watermark_to_checkpoint(13) == 0
    parts.worker.run_all()
    assert parts.durability.recovery_point == 10
    assert parts.durability.high_watermark_to_checkpoint(13) == 13
    assert parts.files.after_power_loss(keep=0).content(parts.segments.active.log.path) == b""


def test_a_log_that_begins_anew_above_its_end() -> None:
    """RL 3.5: what it had comes back with the old names, up to no more than was committed of it."""
    parts = Parts()
    parts.append(5)
    parts.watermarks.set_high_watermark(LogOffsetMetadata(4))
    cut_at(parts, 100)
    assert parts.durability.high_watermark_to_checkpoint(100) == 4
    parts.durability.flush()
    parts.worker.run_all()
    assert parts.durability.high_watermark_to_checkpoint(100) == 100


def test_what_is_rewritten_is_not_synced_any_more() -> None:
    """RL 3.5: a transaction index that is filled later takes the recovery point back."""
    parts = Parts()
    parts.append(10)
    parts.durability.flush()
    parts.worker.run_all()
    parts.durability.rewritten_from(6)
    assert parts.durability.recovery_point == 6


def test_acknowledged_is_synced() -> None:
    """Kafka's flush.messages=2: the append that makes a sync due waits for it, and who waits is
    called once, in order.
    """
    parts = Parts(flush_messages=2)
    called: list[int] = []
    parts.append()
    parts.durability.when_synced(1, lambda: called.append(1))
    assert called == [1] and parts.durability.awaiting_sync is None
    parts.append()
    for offset in (1, 2):
        parts.durability.when_synced(offset, lambda offset=offset: called.append(10 * offset))  # type: ignore[misc]
    assert called == [1, 10] and parts.durability.acknowledgeable_end.offset == 1
    parts.worker.run_one()
    assert called == [1, 10, 20] and parts.synced == 1
    assert parts.durability.acknowledgeable_end == parts.segments.log_end


def test_a_failed_sync_stops_all() -> None:
    """RELIABILITY 6.1: it is not tried again, and who waits is called."""
    parts = Parts(flush_messages=1)
    called: list[str] = []
    parts.append()
    parts.durability.when_synced(1, lambda: called.append("released"))
    parts.append()
    parts.files.faults.append(Fault(errno.EIO, "sync"))
    parts.worker.run_one()
    assert [error.errno for error in parts.errors] == [errno.EIO] and not parts.worker.jobs
    assert called == ["released"] and parts.synced == 0 and parts.durability.recovery_point == 0
    assert parts.durability.awaiting_sync is None


def test_the_epochs_are_written_one_at_a_time_and_synced_before_the_recovery_point() -> None:
    """RL 3.5: the newest content wins; a sync that follows makes it durable."""
    parts = Parts()
    for epoch in range(5):
        parts.epochs.assign(epoch, epoch)
    assert len(parts.worker.jobs) == 1
    parts.worker.run_one()
    assert parts.checkpoint() == [(0, 0)] and len(parts.worker.jobs) == 1
    parts.append(5)
    parts.durability.flush()
    parts.worker.run_all()
    assert parts.durability.recovery_point == 5
    left = parts.files.after_power_loss(keep=0)
    assert checkpoints.read_epochs(left, CHECKPOINT) == parts.epochs.entries()


def test_a_checkpoint_of_a_directory_that_is_gone_is_no_failure() -> None:
    """RL 1.5: the log was deleted while the write waited."""
    parts = Parts()
    parts.epochs.assign(1, 0)
    parts.files.remove_tree(DIRECTORY)
    parts.worker.run_one()
    assert not parts.errors
    parts.files.make_directories(DIRECTORY)
    parts.files.faults.append(Fault(errno.EIO))
    parts.epochs.assign(2, 1)
    parts.worker.run_one()
    assert [error.errno for error in parts.errors] == [errno.EIO]


def test_without_a_descriptor_a_due_sync_waits_until_it_is_told_to_try_again() -> None:
    """It failed at once, and would at once again: nothing is submitted meanwhile, and one is told
    however often it fails.
    """
    parts, told = Parts(flush_messages=1), []
    parts.durability.detach(BrokerError(ErrorCode.NONE))  # the log goes on: no failure
    parts.durability.attach(parts.worker, lambda error: told.append(error.errno))
    parts.append()
    parts.files.faults.append(Fault(errno.EMFILE, "open", times=2))
    parts.segments.active.log.open().write_at(0, (b"x",))
    parts.worker.run_all()
    parts.append()
    parts.worker.run_all()
    assert told == [errno.EMFILE] and parts.durability.acknowledgeable_end.offset == 0
    parts.durability.sync_again()
    parts.worker.run_all()
    assert len(told) == 1 and parts.durability.recovery_point == 2
    assert parts.durability.awaiting_sync is None


def test_at_the_end_nothing_is_submitted_any_more() -> None:
    """RL 3.5: behind the last sync the directory is unlocked, and another process has it."""
    parts = Parts(flush_messages=1)
    parts.append()
    parts.append()
    parts.durability.truncated_to(1)
    parts.durability.end()
    parts.worker.run_all()
    assert parts.durability.awaiting_sync is not None
    point = parts.durability.point_in_write()
    parts.durability.point_written(*point)
    parts.epochs.assign(1, 1)
    parts.durability.flush()
    parts.durability.sync_again()
    assert not parts.worker.jobs


def test_what_a_killed_process_did_not_sync_is_due_when_the_log_is_used() -> None:
    """RL 3.6: else a producer's retry would be answered as a duplicate of what no disk has."""
    for flush_messages, is_due in ((1, True), (3, True), (4, False)):
        parts = Parts(flush_messages)
        parts.segments.log_end_offset = 5
        parts.durability.begin_at(2)
        parts.durability.unflushed_since = 2
        parts.durability.sync_what_was_loaded()
        assert (parts.durability.acknowledgeable_end.offset == 2) is is_due
        parts.worker.run_all()
        assert parts.durability.recovery_point == (5 if is_due else 2)
        assert parts.durability.awaiting_sync is None
