"""What the simulated disk forgets, and when it fails."""

from __future__ import annotations

import errno

import pytest
from twisted.internet.task import Clock

from twisted_broker.log.errors import WorkerStopped
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Crash, Fault
from twisted_broker.simulation.stalling_worker import StallingWorker


def disk_with(data: bytes, **options: int) -> SimDisk:
    """A disk that holds `/d/f` durably."""
    disk = SimDisk(1, **options)
    disk.make_directories("/d")
    disk.open("/d/f", create=True).write_at(0, (data,))
    disk.sync_all()
    return disk


def test_unsynced_writes_may_be_lost_and_synced_ones_never_are() -> None:
    """RELIABILITY 6.2: with nothing kept, a power loss leaves exactly what was synced; a mere
    kill leaves all.
    """
    disk = disk_with(b"durable")
    file = disk.open("/d/f")
    file.write_at(7, (b" and not",))
    killed = disk.after_kill()
    assert killed.content("/d/f") == b"durable and not"
    assert killed.after_power_loss(keep=0).content("/d/f") == b"durable"
    assert disk.after_power_loss(keep=0).content("/d/f") == b"durable"
    file.sync()
    assert disk.after_power_loss(keep=0).content("/d/f") == b"durable and not"


def test_any_subset_of_unsynced_writes_can_survive() -> None:
    """Over the seeds, an earlier write is lost while a later one is kept, and the newest is
    torn.
    """
    seen = set()
    for seed in range(200):
        disk = disk_with(b"....")
        disk.random.seed(seed)
        file = disk.open("/d/f")
        file.write_at(0, (b"A",))
        file.write_at(1, (b"BCD",))
        seen.add(disk.after_power_loss(0.5, torn_at_byte=True).content("/d/f"))
    assert {b"....", b"A...", b".BCD", b"ABCD", b"AB.."} <= seen


def test_old_bytes_never_lie_before_newer_ones_of_a_lost_truncation() -> None:
    """Blocks that a truncation freed are given to nobody before it is durable: where it is lost,
    what was written after it survives from its beginning on, or not at all.
    """
    seen = set()
    for seed in range(200):
        disk = disk_with(b"....")
        disk.random.seed(seed)
        file = disk.open("/d/f")
        file.truncate(1)
        file.write_at(1, (b"A",))
        file.write_at(2, (b"B",))
        seen.add(disk.after_power_loss(0.5, torn_at_byte=True).content("/d/f"))
    assert {b"....", b".A..", b".AB.", b".AB", b".", b".\0B"} <= seen and b"..B." not in seen


def test_names_need_a_directory_sync() -> None:
    """A new, renamed or removed name is back to its old state after a power loss until the
    directory was synced.
    """
    for synced, expected in ((False, ["f"]), (True, ["g", "new"])):
        disk = disk_with(b"x")
        disk.open("/d/new", create=True).sync()
        disk.rename("/d/f", "/d/g")
        if synced:
            disk.sync_directory("/d")
        assert disk.after_power_loss(keep=0).listdir("/d") == expected


def test_a_directory_made_anew_is_not_the_old_one() -> None:
    """Renamed away and made anew: whatever a power loss keeps, no directory holds names of both,
    and what was synced in the new one is in no other.
    """
    seen = set()
    for seed in range(100):
        for synced in (False, True):
            disk = disk_with(b"x")
            disk.random.seed(seed)
            disk.rename("/d", "/old")
            disk.make_directories("/d")
            disk.open("/d/g", create=True).sync()
            if synced:
                disk.sync_directory("/d")
            left = disk.after_power_loss(keep=0.5)
            found = {
                path: tuple(left.listdir(path))
                for path in ("/d", "/old")
                if left.is_directory(path)
            }
            assert all(len(names) < 2 for names in found.values()), found
            assert "g" not in found.get("/old", ())
            seen.add(tuple(sorted(found.items())))
    assert (("/d", ("f",)),) in seen and (("/d", ("g",)), ("/old", ("f",))) in seen


def test_what_was_pending_in_a_directory_goes_with_it() -> None:
    """Its own rename is durable, a name in it is not yet: synced or not, the name never comes into
    a directory that is made anew in its place (seed 402395).
    """
    for keep in (0.0, 1.0):
        disk = disk_with(b"x")
        disk.open("/d/late", create=True).sync()
        disk.rename("/d", "/old")
        disk.sync_directory("/")
        disk.make_directories("/d")
        disk.open("/d/g", create=True).sync()
        disk.sync_directory("/")
        disk.sync_directory("/d")
        left = disk.after_power_loss(keep=keep)
        assert left.listdir("/d") == ["g"]
        assert left.listdir("/old") == (["f", "late"] if keep else ["f"])


def test_crash_at_an_operation_stops_the_world() -> None:
    """The changing operation number n does not complete; the ones before it did."""
    disk = disk_with(b"x")
    disk.crash_at = disk.operations + 1
    file = disk.open("/d/f")
    file.write_at(0, (b"y",))
    with pytest.raises(Crash):
        file.write_at(0, (b"z",))
    assert disk.after_kill().content("/d/f") == b"y"


def test_faults_strike_where_they_are_set() -> None:
    """A fault names operation, path, how many to let through and how often it strikes."""
    disk = disk_with(b"x")
    disk.faults.append(Fault(errno.EIO, "write", "f", skip=1, times=1))
    file = disk.open("/d/f")
    file.write_at(0, (b"1",))
    with pytest.raises(OSError) as caught:
        file.write_at(0, (b"2",))
    assert caught.value.errno == errno.EIO
    file.write_at(0, (b"3",))
    assert disk.content("/d/f") == b"3"


def test_a_full_disk_takes_what_fits() -> None:
    """ENOSPC leaves the part that fitted, as a real disk does."""
    disk = disk_with(b"1234", capacity_bytes=6)
    with pytest.raises(OSError) as caught:
        disk.open("/d/f").write_at(4, (b"5678",))
    assert caught.value.errno == errno.ENOSPC
    assert disk.content("/d/f") == b"123456"


def test_a_stalled_worker_holds_jobs_and_order() -> None:
    """Jobs wait out a stall and then run in order, each after its delay."""
    clock = Clock()
    worker = StallingWorker(clock, lambda: 10)
    done: list[tuple[str, float]] = []
    worker.stalled = True
    worker.submit(lambda: "a", lambda result, error: done.append((str(result), clock.seconds())))
    worker.submit(lambda: "b", lambda result, error: done.append((str(result), clock.seconds())))
    clock.advance(30)
    assert done == []
    worker.resume()
    clock.pump([0.01, 0.01])
    assert done == [("a", pytest.approx(30.01)), ("b", pytest.approx(30.02))]


def test_a_stopped_worker_runs_no_job() -> None:
    """As `DiskThread`: it is told in a later turn, whatever stalls."""
    clock = Clock()
    worker = StallingWorker(clock, lambda: 10)
    worker.stalled = True
    worker.stop()
    ran: list[int] = []
    told: list[object] = []
    worker.submit(lambda: ran.append(1), lambda result, error: told.append(type(error)))
    assert not told
    clock.advance(0)
    worker.resume()
    clock.advance(1)
    assert told == [WorkerStopped] and not ran


def test_the_same_seed_loses_the_same() -> None:
    """Two disks of one seed and history leave the same bytes."""

    def run() -> bytes:
        disk = disk_with(b"-" * 40)
        file = disk.open("/d/f")
        for number in range(20):
            file.write_at(number * 2, (bytes([65 + number]),))
        return disk.after_power_loss().content("/d/f")

    assert run() == run()


def test_what_was_evicted_is_waited_for_once() -> None:
    """A read of it would block the reactor; afterwards it is in memory, as after a write."""
    disk = disk_with(b"x" * 10_000)
    file = disk.open("/d/f")
    assert file.is_resident(0, 10_000) and file.read_resident(0, 3) == b"xxx"
    disk.evict()
    assert not file.is_resident(0, 1) and file.read_resident(5000, 10) is None
    assert disk.blocked == []
    assert file.read_at(5000, 10) == b"x" * 10
    assert disk.blocked == [("read", "/d/f")]
    assert file.is_resident(5000, 100) and not file.is_resident(4000, 100)
    file.write_at(0, (b"y" * 4096,))
    assert file.is_resident(0, 5000)
    assert file.read_at(0, 5000)[:1] == b"y" and len(disk.blocked) == 1


def test_what_is_not_synced_cannot_be_evicted() -> None:
    disk = disk_with(b"x")
    file = disk.open("/d/f")
    file.write_at(1, (b"y",))
    disk.evict("/d")
    assert file.is_resident(0, 2)
    file.sync()
    disk.evict("/other")
    assert file.is_resident(0, 2)
    disk.evict("/d")
    assert not file.is_resident(0, 2)


def test_a_write_waits_when_too_much_is_not_synced() -> None:
    """As under a kernel's limit of dirty memory."""
    disk = disk_with(b"")
    disk.dirty_limit_bytes = 10
    seen: list[str] = []
    disk.on_blocked = lambda operation, path: seen.append(operation)
    file = disk.open("/d/f")
    file.write_at(0, (b"12345",))
    file.write_at(5, (b"12345",))
    assert disk.blocked == []
    file.write_at(10, (b"6",))
    assert disk.blocked == [("write", "/d/f")] and seen == ["write"]
    file.sync()
    file.write_at(11, (b"7",))
    assert len(disk.blocked) == 1


def test_a_worker_may_wait_for_the_disk() -> None:
    disk = disk_with(b"x" * 10)
    clock = Clock()
    worker = StallingWorker(clock)
    disk.is_in_worker = lambda: worker.in_job
    disk.evict()
    read: list[object] = []
    worker.submit(lambda: disk.open("/d/f").read_at(0, 10), lambda *done: read.append(done))
    clock.advance(0)
    assert read == [(b"x" * 10, None)] and disk.blocked == [] and not worker.in_job


def test_a_lost_directory_is_gone_for_good_and_a_flipped_bit_stays() -> None:
    """Whatever was synced; what is made anew under the name is there."""
    disk = disk_with(b"AB")
    disk.make_directories("/e")
    disk.open("/e/f", create=True).sync()
    disk.sync_all()
    disk.flip_bit("/d/f", 1)
    assert disk.after_power_loss(keep=0).content("/d/f") == b"AC"
    disk = disk_with(b"A")
    disk.make_directories("/d/in")
    disk.sync_all()
    disk.lose("/d")
    assert not disk.exists("/d/f") and not disk.is_directory("/d/in")
    disk.make_directories("/d")
    disk.open("/d/g", create=True).sync()
    disk.sync_directory("/d")
    disk.sync_directory("/")
    assert disk.after_power_loss(keep=0).listdir("/d") == ["g"]


def test_what_is_put_there_is_durable_and_needs_no_room() -> None:
    """An operator's copy: neither a full disk nor a fault of it is in the way."""
    disk = disk_with(b"A")
    disk.lose("/d")
    disk.capacity_bytes = 0
    disk.faults.append(Fault(errno.EIO))
    disk.put("/d/in/f", b"copy")
    disk.faults.clear()
    assert disk.content("/d/in/f") == b"copy"
    assert disk.after_power_loss(keep=0).content("/d/in/f") == b"copy"


def test_a_disk_that_is_quick_again_keeps_nobody_waiting() -> None:
    disk = disk_with(b"x" * 10)
    told: list[str] = []
    disk.on_blocked = lambda operation, path: told.append(operation)
    disk.evict()
    disk.dirty_limit_bytes = 0
    disk.open("/d/f").write_at(4096, (b"y",))
    assert told == ["write"]
    disk.quick()
    disk.open("/d/f").read_at(0, 10)
    disk.open("/d/f").write_at(0, (b"y",))
    assert told == ["write"]
