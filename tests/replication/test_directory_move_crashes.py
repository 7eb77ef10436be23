"""A move between directories that a crash, or a loss of power, ends at any operation of the disk
(RL 3.8): one consistent state is found after each.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.task import Clock

from tests.replication.fixtures import TOPIC_ID, TP, batch, registration
from tests.replication.moving import DIRECTORIES, Moving
from tests.replication.test_directory_moves import epoch_batch
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.checkpoints import HIGH_WATERMARK
from twisted_broker.log.future_logs import PROMOTED
from twisted_broker.log.log import Log
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Crash, Fault
from twisted_broker.simulation.stalling_worker import StallingWorker

LEFT: dict[str, Callable[[SimDisk], SimDisk]] = {
    "killed": lambda disk: disk.after_kill(),
    "power lost": lambda disk: disk.after_power_loss(0.0),
    "power half lost": lambda disk: disk.after_power_loss(0.5),
}
FLUSHED = {"flush.messages": "1"}


def prepared() -> tuple[SimDisk, int]:
    """A disk with three records, and how many operations a whole move takes from there."""
    disk = SimDisk(1)
    moving = Moving(disk, overrides=FLUSHED).start()
    moving.produce(3)
    moving.stop()
    disk.sync_all()
    whole = Run(disk.after_kill(), None)
    whole.go()
    assert whole.moving.place == "/b"
    assert whole.moving.names("/a") == [], whole.moving.names("/a")
    return disk, whole.disk.operations - whole.began


class Run:
    """A move under load from a prepared disk. `acknowledged`: values that a client was told of."""

    def __init__(self, disk: SimDisk, crash_after: int | None, left: str = "killed") -> None:
        self.disk = disk
        self.found: SimDisk | None = None
        self.acknowledged: list[bytes] = []
        self.moving = Moving(disk, worker=StallingWorker, overrides=FLUSHED).start()
        self.began = disk.operations
        if crash_after is not None:
            disk.crash_at = disk.operations + crash_after
        disk.crashed = lambda: self.crashed(left)

    def crashed(self, left: str) -> None:
        if self.found is None:
            self.found = LEFT[left](self.disk)

    def go(self) -> SimDisk | None:
        """What is left of it; None when it ended."""
        try:
            self.moving.move("/b")
            for number in range(12):
                if self.found is None and not self.moving.partition.offline:
                    self.produce(b"during %d" % number)
                self.moving.turns(2)
            self.moving.settle(3)
            self.moving.clock.advance(61)
            self.moving.turns(5)
        except Crash:
            pass
        return self.found

    def produce(self, value: bytes) -> None:
        replicas = self.moving.replicas
        outcomes = replicas.produce([(TP, batch(value=value))], 1)
        if outcomes[0].error:
            return

        def answered(_: Any) -> None:
            if self.found is None and not outcomes[0].error:
                self.acknowledged.append(value)

        if replicas.delayed_produce(outcomes, 1):
            replicas.wait_for_replicas(outcomes, 60_000, 1).addCallback(answered)
        else:
            answered(None)


@pytest.mark.parametrize(
    ("left", "step"), [("killed", 4), ("power lost", 1), ("power half lost", 4)]
)
def test_after_each_operation_one_consistent_state_is_found(left: str, step: int) -> None:
    """RL 3.8: all that was acknowledged as synced is there once, in order; the move goes on or is
    done; nothing of it is left over.
    """
    disk, operations = prepared()
    assert operations > 30
    places: set[str] = set()
    for number in range(0, operations, step):
        run = Run(disk.after_kill(), number, left)
        found = run.go()
        assert found is not None, number
        again = Moving(found, overrides=FLUSHED).start()
        places.add(again.place)
        values = check(again, run, number)
        # What the process before did not sync is not synced for that: the power may go now.
        dark = Moving(found.after_kill().after_power_loss(0.0), overrides=FLUSHED).start()
        check(dark, run, number)
        again.settle()
        again.clock.advance(61)
        again.turns(5)
        assert check(again, run, number) == values
        again.move("/b")
        again.settle()
        again.clock.advance(61)
        again.turns(5)
        assert again.place == "/b", number
        assert again.names("/b") == ["t-0"] and again.names("/a") == [], number
        assert check(again, run, number) == values
        again.produce()
    assert places == {"/a", "/b"}


def check(again: Moving, run: Run, number: int) -> list[bytes]:
    assert not again.partition.offline, (number, again.partition.offline_because)
    values = [data[data.index(b"k") + 2 :].rstrip(b"\0") for data in again.records()]
    during = [value for value in values if value.startswith(b"during")]
    assert values[:3] == [b"v"] * 3, (number, values)
    missing = [value for value in run.acknowledged if value not in during]
    assert not missing, (number, missing)
    numbers = [int(value.split()[1]) for value in during]
    assert numbers == list(range(len(numbers))), (number, values)
    return values


class Disks:
    """A worker for each directory; `stall_at_swap` lets one stall from the swap on."""

    def __init__(self) -> None:
        self._made: list[StallingWorker] = []

    def __call__(self, clock: Clock) -> StallingWorker:
        worker = StallingWorker(clock)
        self._made.append(worker)
        return worker

    def __getitem__(self, path: str) -> StallingWorker:
        return self._made[2 * DIRECTORIES.split(",").index(path)]  # each has one for reads, too

    def stall_at_swap(self, moving: Moving, path: str) -> None:
        swap = moving.log_manager.moves.swap

        def stalled(partition: TopicPartition) -> Log:
            self[path].stalled = True
            moving.log_manager.moves.swap = swap
            return swap(partition)

        moving.log_manager.moves.swap = stalled  # type: ignore[assignment]


def pass_time(moving: Moving, seconds: float) -> None:
    for _ in range(round(100 * seconds)):
        moving.clock.advance(0.01)


def values_of(moving: Moving) -> list[bytes]:
    return [data[data.index(b"k") + 2 :].rstrip(b"\0") for data in moving.records()]


def test_the_replaced_log_stays_until_a_restart_has_synced_the_future_log() -> None:
    """RL 3.8: killed between the rename of the copy and the removal of the log that it replaced,
    started again, then the power goes: what came after the mark was synced in that log alone.
    """
    disks, disk = Disks(), SimDisk(1)
    moving = Moving(disk, worker=disks, overrides=FLUSHED, answers=False).start()
    moving.produce(3)
    pass_time(moving, 0.1)
    source, target = moving.place, moving.other
    moving.move(target)
    pass_time(moving, 1)
    for number in range(5):
        moving.produce(value=b"after %d" % number)
    pass_time(moving, 0.5)
    expected = values_of(moving)
    assert moving.log.durability.recovery_point == len(expected) == 8
    disks.stall_at_swap(moving, target)
    moving.assignments.answer()
    pass_time(moving, 0.5)
    assert moving.names(source) == moving.names(target) == ["t-0"]
    again = Moving(disk.after_kill(), overrides=FLUSHED).start()
    again.turns(20)
    assert values_of(again) == expected and again.names(source) == ["t-0-delete"]
    dark = Moving(again.files.after_power_loss(0.0), overrides=FLUSHED).start()  # type: ignore[attr-defined]
    assert values_of(dark) == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_log_that_was_replaced_twice_comes_back_to_a_marked_one(seed: int) -> None:
    """RL 3.8: from /a to /b to /c, the disk of /a slow; a loss of power brings /a's log back. Of
    two without a mark nobody could say which one counts, and the start would be refused.
    """
    disks, disk = Disks(), SimDisk(seed)
    moving = Moving(disk, worker=disks, overrides=FLUSHED).start()
    moving.produce(4)
    pass_time(moving, 0.5)
    disks.stall_at_swap(moving, "/b")
    moving.move("/b")
    pass_time(moving, 1)
    moving.move("/c")
    pass_time(moving, 1)
    disks["/a"].stalled = True
    disks["/b"].resume()
    pass_time(moving, 1)
    assert moving.place == "/b", "it waits until the first is durably gone"
    again = Moving(disk.after_kill().after_power_loss(0.5), overrides=FLUSHED).start()
    assert values_of(again) == [b"v"] * 4
    disks["/a"].resume()
    moving.settle()
    pass_time(moving, 61)
    assert [moving.names(path) for path in ("/a", "/b", "/c")] == [[], [], ["t-0"]]
    assert not moving.files.exists(f"/c/{TP}/{PROMOTED}")
    assert not moving.log_manager.moves.is_replacing(TP)


def test_without_a_descriptor_at_the_swap_nothing_has_changed() -> None:
    """RL 3.8: appends that wait for a sync are looked up in the copy; then it takes the log's
    place at the next try.
    """
    disks, disk = Disks(), SimDisk(1)
    moving = Moving(disk, worker=disks, overrides=FLUSHED, answers=False).start()
    moving.produce(value=b"first")
    pass_time(moving, 0.5)
    moving.move("/b")
    pass_time(moving, 1)
    disks["/a"].stalled = True
    moving.produce(400)  # beyond what an index entry covers
    pass_time(moving, 3)
    swap, places = moving.log_manager.moves.swap, []

    def short(partition: TopicPartition) -> Log:
        # Other clients hold all descriptors, and the pool gave up its files.
        moving.log_manager.moves.futures[partition].segments.close()
        disk.faults.append(Fault(errno.EMFILE, "open"))
        moving.log_manager.moves.swap = swap
        try:
            return swap(partition)
        finally:
            disk.faults.clear()
            places.append(moving.log_manager.logs[partition].directory)

    moving.log_manager.moves.swap = short  # type: ignore[assignment]
    moving.assignments.answer()
    pass_time(moving, 1)
    assert places == [f"/a/{TP}"] and not moving.partition.offline
    pass_time(moving, 3)
    assert moving.place == "/b"
    disks["/a"].resume()
    moving.produce(value=b"later")
    pass_time(moving, 3)
    assert not moving.partition.offline and moving.log.durability.recovery_point == 402
    assert values_of(moving)[-1] == b"later" and moving.log.high_watermark == 402


def test_without_a_descriptor_at_the_swap_what_was_copied_counts() -> None:
    """RL 3.8: in the same turn a record came, and is in the copy: the next read begins behind it,
    and the move does not fail for that.
    """
    disks, disk = Disks(), SimDisk(1)
    moving = Moving(disk, worker=disks, overrides=FLUSHED, answers=False).start()
    moving.produce()
    pass_time(moving, 0.5)
    moving.move("/b")
    pass_time(moving, 1)
    disks["/a"].stalled = True
    moving.produce(400)
    pass_time(moving, 3)
    swap, ends = moving.log_manager.moves.swap, []

    def short(partition: TopicPartition) -> Log:
        moving.log_manager.moves.futures[partition].segments.close()
        disk.faults.append(Fault(errno.EMFILE, "open"))
        moving.log_manager.moves.swap = swap
        ends.append(moving.log_manager.moves.futures[partition].log_end_offset)
        try:
            return swap(partition)
        finally:
            disk.faults.clear()

    moving.log_manager.moves.swap = short  # type: ignore[assignment]
    moving.assignments.answer()
    moving.produce()
    pass_time(moving, 3)
    assert ends == [402] and moving.place == "/b" and not moving.replicas.moves.moves


@pytest.mark.parametrize("seed", range(24))
def test_a_future_log_that_was_truncated_is_marked_again(seed: int) -> None:
    """RL 3.8: a follower's copy is marked, then cut off below that. What the log synced after, and
    the copy did not, is in the log alone: a hole that a loss of power leaves in the copy there is
    no cleaner's.
    """
    disks, disk, state = Disks(), SimDisk(seed), registration(2, (2, 1))
    moving = Moving(disk, worker=disks, overrides=FLUSHED, answers=False, state=state).start()
    partition = moving.partition
    for offset in range(20):
        partition.append_as_follower(epoch_batch(offset, 0), 0, 0)
    moving.move("/b")
    pass_time(moving, 1)
    state = state._replace(leader_epoch=1, partition_epoch=1)
    moving.take_role(state)
    partition.truncate_to(5, 0)
    moving.replicas.drain()
    pass_time(moving, 1.5)
    for offset in range(5, 10):
        partition.append_as_follower(epoch_batch(offset, 1), 1, 0)
    pass_time(moving, 1.5)
    copy = partition.future_log
    assert copy is not None and copy.log_end_offset == partition.log.log_end_offset == 10
    assert partition.log.durability.recovery_point == 10
    disks.stall_at_swap(moving, "/b")
    moving.assignments.answer()
    pass_time(moving, 1)
    assert moving.place == "/b"
    partition.log.roll(0)
    for offset in range(10, 14):
        partition.append_as_follower(epoch_batch(offset, 1), 1, 0)
    dark = Moving(disk.after_power_loss(0.7), overrides=FLUSHED, state=state).start()
    assert dark.log.log_end_offset >= 10


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE])
def test_a_start_that_cannot_read_which_of_two_logs_counts_is_refused(error: int) -> None:
    """RL 3.8: the mark of a move. Nothing waits for a start that does not end."""
    disks, disk = Disks(), SimDisk(1)
    moving = Moving(disk, worker=disks, overrides=FLUSHED, answers=False).start()
    moving.produce(3)
    pass_time(moving, 0.1)
    moving.move("/b")
    pass_time(moving, 1)
    disks.stall_at_swap(moving, "/b")
    moving.assignments.answer()
    pass_time(moving, 0.5)
    assert moving.names("/a") == moving.names("/b") == ["t-0"]
    left = disk.after_kill()
    left.faults.append(Fault(error, "open", PROMOTED))
    again = Moving(left, overrides=FLUSHED)
    with pytest.raises(AssertionError, match=PROMOTED):
        again.start()
    left.faults.clear()
    assert len(Moving(left.after_kill(), overrides=FLUSHED).start().records()) == 3


def begun() -> SimDisk:
    """What a kill leaves of a move from /a to /b that was not accepted yet."""
    disk = SimDisk(1)
    moving = Moving(disk, answers=False).start()
    moving.produce(3)
    moving.move("/b")
    moving.settle(1)
    moving.replicas.checkpoint_high_watermarks()
    other = TopicPartition("u", 0)
    moving.log_manager.preferred[other] = "/b"
    moving.log_manager.get_or_create(other, TOPIC_ID, moving.log.config, is_new=True)
    return disk.after_kill()


def test_high_watermarks_that_cannot_be_read_end_a_move_only() -> None:
    """RL 3.8: those of the copy's directory, which goes offline. The replica has its role, and
    nothing keeps retention from it.
    """
    disk = begun()
    disk.faults.append(Fault(errno.EIO, "open", f"/b/{HIGH_WATERMARK}"))
    again = Moving(disk).start()
    assert again.failed == ["/b"] and again.partition.is_leader and not again.partition.offline
    assert again.partition.future_log is None and not again.log_manager.moves.futures
    again.produce()


def test_without_a_descriptor_for_high_watermarks_a_move_goes_on_later() -> None:
    """RL 3.8: those of the copy's directory: the role is there at once."""
    disk = begun()
    disk.faults.append(Fault(errno.EMFILE, "open", f"/b/{HIGH_WATERMARK}"))
    again = Moving(disk).start()
    assert again.failed == [] and again.partition.is_leader
    assert again.partition.future_log is None
    disk.faults.clear()
    pass_time(again, 2)
    again.settle()
    assert again.place == "/b" and len(again.records()) == 3


def test_a_future_log_in_a_directory_that_cannot_be_loaded_is_none() -> None:
    """RL 1.12, 3.8: it was loaded before the disk failed: the directory is offline."""
    disk = begun()
    disk.faults.append(Fault(errno.EIO, "open", "/b/u-0"))
    again = Moving(disk)
    again.log_manager._on_directory_failure = lambda path, error: again.failed.append(path)
    again.start()
    again.turns(20)
    assert again.failed == ["/b"] and again.partition.is_leader
    assert not again.log_manager.moves.futures and not again.replicas.moves.moves


def test_a_replica_whose_high_watermarks_cannot_be_read_is_reported() -> None:
    """RL 1.12: with its directory: another replica leads."""
    disk = begun()
    disk.faults.append(Fault(errno.EIO, "open", f"/a/{HIGH_WATERMARK}"))
    again = Moving(disk).start()
    assert again.partition.offline and again.failed == ["/a"]
