"""Open files, slices, and the thread that syncs."""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from twisted_broker.log.disk_worker import DiskThread
from twisted_broker.log.errors import WorkerStopped
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.memory import InlineWorker, MemoryFileSystem
from twisted_broker.log.producer_snapshot_reader import let_go
from twisted_broker.log.producer_snapshot_writer import SLICE_PRODUCERS
from twisted_broker.log.segment_file import FileSlice, OpenFiles, SegmentFile, SliceGone
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Fault


def pool_with(count: int, capacity: int, files: Any = None) -> tuple[OpenFiles, list[SegmentFile]]:
    files = files if files is not None else MemoryFileSystem()
    files.make_directories("/d")
    pool = OpenFiles(files, capacity)
    made = [SegmentFile(pool, f"/d/{number}") for number in range(count)]
    for number, file in enumerate(made):
        file.create().write_at(0, (b"%d" % number,))
    return pool, made


def test_few_files_stay_open_and_all_are_usable() -> None:
    """many files, few descriptors; a closed one opens again by itself, and the recently used
    stay.
    """
    pool, files = pool_with(50, 8)
    assert len(pool) <= 8
    favourite = files[0]
    for number, file in enumerate(files):
        assert file.open().read_at(0, 9) == b"%d" % number
        assert favourite.open()
    assert len(pool) <= 8 and favourite.is_open


def test_a_file_that_is_gone_is_not_made_by_who_reads_it() -> None:
    """An empty one in its place would say that there were no records."""
    files = MemoryFileSystem()
    _, (file,) = pool_with(1, 8, files)
    file.close()
    files.remove("/d/0")
    with pytest.raises(FileNotFoundError):
        file.open()
    assert not files.exists("/d/0") and not file.is_open


def test_referenced_files_are_never_closed() -> None:
    """docs/ARCHITECTURE.md 7: with more references than the capacity, more stay open; then fewer
    again.
    """
    pool, files = pool_with(20, 4)
    slices = [FileSlice(file, 0, 1) for file in files]
    assert len(pool) == 20 and all(file.is_open for file in files)
    assert [one.read() for one in slices] == [b"%d" % number for number in range(10)] + [b"1"] * 10
    for one in slices:
        one.release()
    for file in files:
        file.open()
    pool._evict()
    assert len(pool) < 20


def test_a_fetch_that_references_thousands_of_files_looks_at_few_of_them() -> None:
    """Opening one looks at a bounded number, however many cannot be closed: 10,000 partitions in
    one fetch took twenty seconds. Later ones close what was too much.
    """
    pool, files = pool_with(600, 8)
    looked: list[SegmentFile] = []

    class Watched(deque[SegmentFile]):
        def popleft(self) -> SegmentFile:
            looked.append(self[0])
            return super().popleft()

    for file in files:
        file.shut()
    pool._open = Watched()
    slices = [FileSlice(file, 0, 1) for file in files]
    assert len(pool) == 600 and len(looked) <= 600 * 64
    for one in slices:
        one.release()
    for _ in range(3):
        for file in files[:100]:
            file.close()
            file.open()
    assert len(pool) <= 110


def test_running_out_of_descriptors_makes_room() -> None:
    """RELIABILITY 6.2: EMFILE lowers the number of files kept open, and the open is tried again."""
    disk = SimDisk(1)
    pool, files = pool_with(30, 100, disk)
    files[0].close()
    disk.faults.append(Fault(errno.EMFILE, "open", times=1))
    assert files[0].open().read_at(0, 1) == b"0"
    assert pool.capacity < 100


def test_slices() -> None:
    """docs/ARCHITECTURE.md 7: a slice reads its stretch in pieces, keeps a closed or removed
    file alive, and dies with a truncation. A file in use stays open behind its last slice.
    """
    _, (file, *_) = pool_with(3, 8)
    file.open().write_at(0, (b"0123456789",))
    FileSlice(file, 0, 1).release()
    assert file.is_open
    one = FileSlice(file, 2, 6)
    assert len(one) == one.length == 6 and one.fileno() == -1
    assert one.read() == b"234567"
    buffer = bytearray(4)
    assert one.read_into(buffer, 3) == 3 and buffer[:3] == b"567"
    file.remove()
    assert one.read() == b"234567"
    one.narrow(2)
    assert one.read() == b"23"
    one.release()
    one.release()
    assert not file.is_open
    with pytest.raises(SliceGone):
        one.read()


def test_a_truncated_or_short_file_ends_its_slices() -> None:
    """docs/ARCHITECTURE.md 7: after a truncation, and on a short read, SliceGone, never other
    bytes.
    """
    _, (file, other, *_) = pool_with(3, 8)
    file.open().write_at(0, (b"0123456789",))
    one = FileSlice(file, 0, 10)
    file.truncate(10)
    for call in (one.read, one.fileno, one.check, lambda: one.read_into(bytearray(5))):
        with pytest.raises(SliceGone):
            call()
    short = FileSlice(other, 0, 500)
    with pytest.raises(SliceGone):
        short.read()
    with pytest.raises(SliceGone):
        short.read_into(bytearray(500))


def test_a_slice_on_the_real_disk_has_a_descriptor(tmp_path: Path) -> None:
    """docs/ARCHITECTURE.md 7: `fileno` is what `sendfile` needs."""
    pool = OpenFiles(OsFileSystem(), 8)
    file = SegmentFile(pool, str(tmp_path / "f"))
    file.create().write_at(0, (b"abc",))
    one = FileSlice(file, 1, 2)
    assert one.fileno() >= 0 and one.read() == b"bc"
    one.release()
    file.close()


class Reactor:
    """Stands for the reactor's thread: calls wait until they are run."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()

    def from_thread(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.calls.put((call, arguments))

    def run_one(self) -> None:
        call, arguments = self.calls.get(timeout=60)
        call(*arguments)


def test_the_disk_thread() -> None:
    """interfaces: jobs run in order off the reactor's thread; results and errors come back on
    it; stop finishes what waits.
    """
    reactor = Reactor()
    worker = DiskThread(reactor.from_thread, seconds=lambda: 0.0)
    seen: list[object] = []
    gate = threading.Event()
    here = threading.get_ident()

    def failing() -> None:
        raise OSError(errno.EIO, "no")

    worker.submit(lambda: gate.wait(10), lambda result, error: seen.append("first"))
    worker.submit(failing, lambda result, error: seen.append(type(error)))
    worker.submit(
        lambda: threading.get_ident() != here,
        lambda result, error: seen.append((result, threading.get_ident() == here)),
    )
    assert seen == []
    gate.set()
    worker.stop()
    reactor.run_one()
    assert reactor.calls.empty()  # three reports, one waking
    assert seen == ["first", OSError, (True, True)]


@pytest.mark.parametrize("had_jobs", [False, True])
def test_a_stopped_disk_thread_runs_no_job(had_jobs: bool) -> None:
    """disk_worker 2: the directory may be another process's by then. Who submitted hears of it, in
    a later turn as ever, and no thread is there again.
    """
    reactor = Reactor()
    worker = DiskThread(reactor.from_thread, "stopped before")
    if had_jobs:
        worker.submit(lambda: None, lambda result, error: None)
    worker.stop()
    while not reactor.calls.empty():
        reactor.run_one()
    ran: list[object] = []
    seen: list[object] = []
    worker.submit(lambda: ran.append(1), lambda result, error: seen.append((result, type(error))))
    assert seen == []
    reactor.run_one()
    assert seen == [(None, WorkerStopped)] and not ran
    assert not threads_named("stopped before")
    worker.stop()


def test_a_large_map_that_is_let_go_leaves_no_thread_behind_a_stop() -> None:
    """Each slice submits the next: those behind the stop free the rest, a slice in a turn."""
    reactor = Reactor()
    worker = DiskThread(reactor.from_thread, "letting go", seconds=lambda: 0.0)
    count = 3 * SLICE_PRODUCERS
    entries: dict[int, Any] = dict.fromkeys(range(count))
    let_go(entries, worker)
    worker.stop()
    left = [len(entries)]
    while not reactor.calls.empty():
        reactor.run_one()
        left.append(len(entries))
    assert left[0] == count - SLICE_PRODUCERS and left[-1] == 0, left
    assert not threads_named("letting go")


def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_many_reports_take_several_turns() -> None:
    """disk_worker 3: nobody waits until all are delivered; they keep their order."""
    reactor = Reactor()
    now = [0.0]
    worker = DiskThread(reactor.from_thread, seconds=lambda: now[0])
    seen: list[object] = []

    def report(result: int | None, error: BaseException | None) -> None:
        now[0] += 0.002
        seen.append(result)

    for number in range(7):
        worker.submit(lambda number=number: number, report)  # type: ignore[misc]
    worker.stop()
    counts = []
    while not reactor.calls.empty():
        reactor.run_one()
        counts.append(len(seen))
    assert seen == list(range(7)) and counts == [3, 6, 7]


def test_a_job_has_things_done_side_by_side() -> None:
    """interfaces: all are done when the job goes on, none waits for another's end, and the first
    error comes out at the end.
    """
    reactor = Reactor()
    worker = DiskThread(reactor.from_thread)
    together = threading.Barrier(2, timeout=60)
    seen: list[object] = []

    def failing() -> None:
        together.wait()
        raise OSError(errno.EIO, "no")

    def job() -> None:
        worker.side_by_side(
            [
                lambda: (together.wait(), seen.append("one")),
                failing,
                *[lambda: seen.append("more")] * 20,
            ]
        )

    worker.submit(job, lambda result, error: seen.append(type(error)))
    worker.stop()
    reactor.run_one()
    assert sorted(map(str, seen[:-1])) == ["more"] * 20 + ["one"] and seen[-1] is OSError


def test_where_the_system_has_no_thread_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job fails; the worker is there again when the system has one. Who waited for a worker
    that never began would wait for ever.
    """
    reactor = Reactor()
    worker = DiskThread(reactor.from_thread)
    seen: list[object] = []

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def report(result: int | None, error: BaseException | None) -> None:
        seen.append(result if error is None else error)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        worker.submit(lambda: 1, report)
    reactor.run_one()
    (error,) = seen
    assert isinstance(error, OSError) and error.errno == errno.EAGAIN
    worker.submit(lambda: 2, report)
    worker.stop()
    reactor.run_one()
    assert seen[1:] == [2]


@pytest.mark.parametrize("most", [0, 1])
def test_side_by_side_on_as_many_threads_as_there_are(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, left = threading.Thread.start, [most]

    def started(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    done: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", started)
    DiskThread(lambda call: None).side_by_side(
        [lambda number=number: done.append(number) for number in range(20)]  # type: ignore[misc]
    )
    assert sorted(done) == list(range(20))


def test_the_inline_worker_reports_results_and_errors() -> None:
    """interfaces: the twin without a thread."""
    seen: list[object] = []
    InlineWorker().submit(lambda: 5, lambda result, error: seen.append((result, error)))
    InlineWorker().submit(lambda: 1 // 0, lambda result, error: seen.append(type(error)))
    assert seen == [(5, None), ZeroDivisionError]
