"""Descriptors that are short are no failing disk: what a log, a directory and the file system do
at EMFILE and ENFILE.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import capturedLogs, formatEvent

from tests.log.batches import NOW_MS, all_batches, batch, marker, values
from tests.log.manual_worker import ManualWorker
from tests.log.test_log_manager import CLUSTER, A, B, World, create, failure, fill
from tests.log.test_mirrored import at
from twisted_broker.log import checkpoints
from twisted_broker.log.errors import LogDirFailure, OutOfDescriptors
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.log_checkpoints import LogCheckpoints
from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.schema import run_whole

SHORT = [errno.EMFILE, errno.ENFILE]


@pytest.mark.parametrize("error", SHORT)
def test_an_append_that_cannot_open_its_file_is_refused_and_the_next_one_goes_on(
    error: int,
) -> None:
    """Nothing was written, nothing is offline: the client is told KAFKA_STORAGE_ERROR, which it
    tries again.
    """
    world = World()
    manager = world.manager()
    log = create(manager)
    fill(log, 3)
    log.segments.close()
    world.files.faults.append(Fault(error, "open"))
    with pytest.raises(OutOfDescriptors) as refused:
        fill(log, 1)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    world.files.faults.clear()
    fill(log, 2)
    assert log.log_end_offset == 5 and log.failed is None and world.failed == []


@pytest.mark.parametrize("skip", range(8))
def test_a_roll_that_stops_anywhere_for_want_of_descriptors_is_done_again(skip: int) -> None:
    """Whichever of its files could not be opened: the next append rolls, and every record is
    there, also after a restart.
    """
    world = World()
    log = create(world.manager(), segment_bytes=200)
    fill(log, 2)
    refusals = 0
    for number in range(20):
        log.segments.close()
        world.files.faults.append(Fault(errno.EMFILE, "open", skip=skip, times=3))
        try:
            log.append_as_leader(batch(b"%d" % number), 0, NOW_MS)
        except OutOfDescriptors:
            refusals += 1
            world.files.faults.clear()
            log.append_as_leader(batch(b"%d" % number), 0, NOW_MS)
        world.files.faults.clear()
    assert log.log_end_offset == 22 and len(log.segments) > 3 and world.failed == []
    again = World(world.files.after_kill()).manager().get(A)
    assert again is not None and again.segments.first.base_offset == 0
    assert refusals or skip > 4


@pytest.mark.parametrize("error", [*SHORT, errno.EIO])
def test_an_offset_by_time_that_cannot_be_read_is_refused_as_any_read(error: int) -> None:
    """RL 1.12, 3.4: KAFKA_STORAGE_ERROR of its partition; a disk that fails is found so, too."""
    world = World()
    log = create(world.manager(), segment_bytes=200)
    fill(log, 12)
    for search in (lambda: log.find_offset_by_timestamp(NOW_MS), log.max_timestamp_offset):
        log.segments.close()
        world.files.faults.append(Fault(error, "open"))
        with pytest.raises(LogDirFailure if error == errno.EIO else OutOfDescriptors):
            run_whole(search())
        world.files.faults.clear()
    assert world.failed == (["/d1"] if error == errno.EIO else [])
    assert error == errno.EIO or run_whole(log.find_offset_by_timestamp(NOW_MS)) is not None


def test_a_truncation_left_midway_fails_the_directory() -> None:
    """RL 1.12: half a cut is no state to go on from, whatever stopped it."""
    world = World()
    log = create(world.manager(), segment_bytes=200)
    fill(log, 12)
    log.segments.close()
    world.files.faults.append(Fault(errno.EMFILE, "open"))
    with pytest.raises(LogDirFailure):
        log.truncate_to(1, NOW_MS)
    assert world.failed == ["/d1"]


@pytest.mark.parametrize("error", SHORT)
def test_what_a_follower_wrote_before_a_roll_that_cannot_open_a_file_counts(error: int) -> None:
    """One answer of a leader, for two segments: the follower goes on behind the first (seed
    449607).
    """
    world = World()
    log = create(world.manager(), segment_bytes=200)
    one = [at(number, batch(b"x" * 50)) for number in range(3)]
    world.files.faults.append(Fault(error, "open", ".log"))
    info = log.append_as_follower(b"".join(one), 0, NOW_MS)
    assert 0 <= info.last_offset < 2 and log.log_end_offset == info.last_offset + 1
    assert info.bytes == sum(map(len, one[: log.log_end_offset]))
    left = b"".join(one[log.log_end_offset :])
    with pytest.raises(OutOfDescriptors):
        log.append_as_follower(left, 0, NOW_MS)
    world.files.faults.clear()
    assert log.append_as_follower(left, 0, NOW_MS).last_offset == 2
    assert len(all_batches(log)) == 3 and log.failed is None


@pytest.mark.parametrize("error", SHORT)
@pytest.mark.parametrize("kind", [".index", ".timeindex"])
def test_what_a_follower_wrote_counts_without_its_index_entries(error: int, kind: str) -> None:
    """Batches are in the log, the file for their entries cannot be opened (seed 449607)."""
    world = World()
    log = create(world.manager(), index_interval_bytes=0)
    assert log.append_as_follower(at(0, batch(b"x")), 0, NOW_MS).last_offset == 0
    index = log.segments.active.offset_index if kind == ".index" else log.segments.active.time_index
    index.file.close()
    world.files.faults.append(Fault(error, "open", kind))
    info = log.append_as_follower(b"".join(at(n, batch(b"x")) for n in (1, 2, 3)), 0, NOW_MS)
    assert info.last_offset == 3 and log.log_end_offset == 4 and info.records_count == 3
    world.files.faults.clear()
    assert log.append_as_follower(at(4, batch(b"x")), 0, NOW_MS).last_offset == 4
    assert [batch.base_offset for batch in all_batches(log)] == [0, 1, 2, 3, 4]
    assert log.failed is None


@pytest.mark.parametrize("error", SHORT)
@pytest.mark.parametrize("kind", [".index", ".timeindex"])
def test_what_a_leader_wrote_counts_without_its_index_entries(error: int, kind: str) -> None:
    """A batch that was refused behind its write left its bytes where the next one of that offset
    and epoch went; a loss of power brought them back, and two replicas differed unnoticed (seed
    971015). Entries come with the next batch.
    """
    world = World()
    log = create(world.manager(), index_interval_bytes=0)
    fill(log, 2)
    segment = log.segments.active
    index = segment.offset_index if kind == ".index" else segment.time_index
    index.close()
    world.files.faults.append(Fault(error, "open", kind))
    fill(log, 2)
    assert log.log_end_offset == 4 and log.failed is None
    world.files.faults.clear()
    assert (len(segment.offset_index.pairs()), segment.size) == (1, segment.log.open().size())
    log.append_as_leader(batch(b"x", timestamp=NOW_MS + 1), 0, NOW_MS)
    assert [offset for offset, _ in segment.offset_index.pairs()] == [1, 4]
    assert [offset for _, offset in segment.time_index.pairs()][-1] == 4
    assert [batch.base_offset for batch in all_batches(log)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("error", SHORT)
@pytest.mark.parametrize("what", [LogCheckpoints.recovery_points, LogCheckpoints.log_starts])
def test_a_checkpoint_comes_again(what: Any, error: int) -> None:
    """Its write failed for want of descriptors: the directory stays, and the next interval
    writes it.
    """
    world = World()
    manager = world.manager()
    log = create(manager)
    fill(log, 3)
    log.roll(NOW_MS)
    log.set_high_watermark(3)
    log.increment_log_start_offset(2)
    world.files.faults.append(Fault(error, "open", "checkpoint"))
    what(manager.checkpoints)
    assert manager.directories.offline() == [] and world.failed == []
    world.files.faults.clear()
    world.clock.advance(61)
    assert checkpoints.read_offsets(world.files, "/d1", checkpoints.RECOVERY_POINT) == {A: 3}
    assert checkpoints.read_offsets(world.files, "/d1", checkpoints.LOG_START_OFFSET) == {A: 2}


def test_an_append_that_waits_for_a_sync_waits_for_descriptors_too() -> None:
    """`flush.messages`: one line says why, the directory stays, and a second later it is tried
    again.
    """
    world = World()
    manager = world.manager()
    log = create(manager, flush_messages=1)
    fill(log, 1)
    assert log.durability.awaiting_sync is None
    world.files.faults.append(Fault(errno.EMFILE, "open", times=3))
    with capturedLogs() as lines:
        fill(log, 1)
        world.clock.advance(0)
    assert [formatEvent(line) for line in lines if "open files" in formatEvent(line)]
    assert log.durability.awaiting_sync is not None and world.failed == []
    for _ in range(4):
        world.clock.advance(1)
    assert log.durability.awaiting_sync is None
    assert log.durability.recovery_point == log.log_end_offset == 2


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
def test_who_waits_for_a_sync_hears_of_it_where_what_came_meanwhile_cannot_be_read(
    error: int,
) -> None:
    """More came while the sync ran than is remembered, and the file is not open any more: the
    next sync begins all the same. A disk that fails takes the log offline, and nobody waits.
    """
    world, worker = World(log_dirs="/d1"), ManualWorker()
    manager = world.manager()
    log = create(manager, flush_messages=1)
    log.durability.disk = worker
    synced: list[int] = []
    log.on_synced = lambda each: synced.append(each.durability.recovery_point)
    fill(log, 300)
    (job, report) = worker.jobs.pop()
    log.durability.when_synced(1, lambda: synced.append(-1))
    job()
    log.segments.close()  # the pool gave its files up
    world.files.faults.append(Fault(error, "open", ".log"))
    report(None, None)
    if error == errno.EIO:
        worker.run_all()
        assert synced == [-1] and log.failed is not None
        assert log.durability.awaiting_sync is None
        return
    assert synced == [-1, 1] and log.durability.acknowledgeable_end.offset == 1
    world.files.faults.clear()
    worker.run_all()
    assert synced == [-1, 1, 300] and log.durability.awaiting_sync is None


def test_a_log_that_cannot_be_made_is_made_later() -> None:
    """OutOfDescriptors, and what was left of the first try is taken over; the topic's id is
    written when it can be.
    """
    world = World()
    manager = world.manager()
    for skip in range(3):
        world.files.faults[:] = [Fault(errno.EMFILE, "open", "b-0/", skip=skip)]
        with pytest.raises(OutOfDescriptors):
            create(manager, B)
        assert manager.get(B) is None
        world.files.faults.clear()
        log = create(manager, B)
        fill(log, 2)
        assert manager.directories.offline() == [] and log.log_end_offset == 2
        manager.delete(B)
    create(manager, B)
    world.files.faults.append(Fault(errno.EMFILE, "open", "partition.metadata"))
    log = create(manager, A)
    assert manager.directories.offline() == []
    world.files.faults.clear()
    world.clock.advance(1.1)
    assert world.files.exists(f"{log.directory}/partition.metadata")


def test_a_start_for_which_descriptors_are_short_is_refused() -> None:
    """No directory goes offline for it: the start fails, and the marks of the clean stop stay."""
    world = World()
    manager = world.manager()
    fill(create(manager), 3)
    world.stop(manager, 9)
    world.files.faults.append(Fault(errno.EMFILE, "open", "recovery-point"))
    again = world.manager(start=False)
    error = failure(again)
    assert isinstance(error, OSError) and error.errno == errno.EMFILE and world.failed == []
    world.files.faults.clear()
    world.stop(again, None)
    assert checkpoints.read_clean_shutdown(world.files, "/d1") == 9


@pytest.mark.parametrize("error", SHORT)
def test_the_reserve_is_given_for_files_and_fills_again(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that may open `free` more files still writes checkpoints: each open takes one of
    the reserve while others hold the rest.
    """
    real_open, real_close = os.open, os.close
    free = [3]

    def opened(path: str, flags: int, mode: int = 0o777) -> int:
        if free[0] <= 0:
            raise OSError(error, os.strerror(error), path)
        free[0] -= 1
        return real_open(path, flags, mode)

    def closed(fd: int) -> None:
        free[0] += 1
        real_close(fd)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "close", closed)
    files = OsFileSystem(reserve=3)
    assert free == [0] and len(files._kept) == 3
    for _ in range(5):
        checkpoints.write_aside(files, str(tmp_path / "checkpoint"), b"content")
    held = [files.open(str(tmp_path / f"{number}"), create=True) for number in range(3)]
    with pytest.raises(OSError):
        files.open(str(tmp_path / "one too many"), create=True)
    for each in held:
        each.close()
    files.open(str(tmp_path / "again"), create=True).close()
    files.sync_directory(str(tmp_path))
    assert len(files._kept) == 2
    files.close()
    assert free == [3] and not files._kept


@pytest.mark.parametrize("skip", range(4))
def test_the_next_try_takes_the_directory_of_the_first(skip: int) -> None:
    """The first try left a directory behind, and by now another one has fewer logs: two of one
    name would stop the next start (simulation, three brokers, seed 100000).
    """
    world = World()
    manager = world.manager()
    world.files.faults[:] = [Fault(errno.EMFILE, "open", "/b-0/", skip=skip)]
    with contextlib.suppress(OutOfDescriptors):
        create(manager, B)
    create(manager, A)
    world.files.faults.clear()
    log = create(manager, B)
    fill(log, 2)
    places = [path for path in ("/d1", "/d2") if world.files.exists(f"{path}/b-0")]
    assert [f"{path}/b-0" for path in places] == [log.directory]
    world.stop(manager)
    assert values(world.manager().logs[B]) == [b"0", b"1"]


@pytest.mark.parametrize("skip", range(4))
@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_run_whose_indexes_cannot_be_written_leaves_files_and_memory_the_same(
    is_loaded: bool, skip: int
) -> None:
    """Whichever of its files could not be opened: entries are missing, no more; those of the
    batches that come later are written, and stand where they belong.
    """
    world = World()
    log = create(world.manager(), index_interval_bytes=1)
    segment = log.segments.active
    indexes = segment.offset_index, segment.time_index
    sent = [at(n, batch(b"v", timestamp=NOW_MS + n)) for n in range(16)]
    log.append_as_follower(b"".join(sent[:4]), 0, NOW_MS)
    for each in (segment.log, *(index.file for index in indexes)):
        each.close()
    if not is_loaded:
        log.segments.close()
    world.files.faults.append(Fault(errno.EMFILE, "open", skip=skip))
    with contextlib.suppress(OutOfDescriptors):
        log.append_as_follower(b"".join(sent[4:8]), 0, NOW_MS)
    world.files.faults.clear()
    for one in sent[log.log_end_offset : 10]:
        log.append_as_follower(one, 0, NOW_MS)
    log.append_as_follower(b"".join(sent[10:]), 0, NOW_MS)
    assert log.log_end_offset == 16 and world.failed == []
    for index in indexes:
        held = index.pairs()
        index.unload()
        assert index.pairs() == held and index.is_sound()
    assert segment.offset_index.last_offset == 15 and segment.time_index.last_entry[1] == 15


@pytest.mark.parametrize("is_loaded", [True, False])
def test_an_entry_that_only_one_index_got_is_taken_back(is_loaded: bool) -> None:
    """The batch counts, and the next one has the entries."""
    world = World()
    log = create(world.manager(), index_interval_bytes=1)
    sent = [at(n, batch(b"v", timestamp=NOW_MS + n)) for n in range(6)]
    log.append_as_follower(sent[0], 0, NOW_MS)
    log.append_as_follower(sent[1], 0, NOW_MS)
    log.segments.active.time_index.file.close()
    world.files.faults.append(Fault(errno.EMFILE, "open", "timeindex"))
    assert log.append_as_follower(sent[2], 0, NOW_MS).last_offset == 2
    world.files.faults.clear()
    if not is_loaded:
        log.segments.close()
    for one in sent[3:]:
        log.append_as_follower(one, 0, NOW_MS)
    assert [each.base_offset for each in all_batches(log)] == list(range(6))
    assert [offset for offset, _ in log.segments.active.offset_index.pairs()] == [1, 3, 4, 5]


@pytest.mark.parametrize("skip", range(8))
def test_a_segment_that_was_not_made_leaves_no_file_amid_the_log(skip: int) -> None:
    """The next batch is small enough for the segment before it. A recovery that finds a file of the
    roll below the end would truncate there.
    """
    world = World()
    log = create(world.manager(), segment_bytes=300)
    fill(log, 3)
    log.segments.close()
    world.files.faults.append(Fault(errno.EMFILE, "open", skip=skip))
    with contextlib.suppress(OutOfDescriptors):
        log.append_as_leader(batch(b"x" * 150), 0, NOW_MS)
    world.files.faults.clear()
    fill(log, 8)
    end = log.log_end_offset
    again = World(world.files.after_kill()).manager().get(A)
    assert again is not None and again.log_end_offset == end


def test_an_aborted_transaction_without_its_entry_fails_the_log() -> None:
    """Its marker is in the log: readers of committed records would see what was aborted."""
    world = World()
    log = create(world.manager())
    fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    log.append_as_follower(at(0, batch(b"v", **fields)), 0, NOW_MS)
    world.files.faults.append(Fault(errno.EMFILE, "open", "txnindex"))
    with pytest.raises(LogDirFailure):
        log.append_as_follower(marker(5, False, offset=1), 0, NOW_MS)
    assert world.failed == ["/d1"]
    again = World(world.files.after_kill()).manager().get(A)
    assert again is not None and len(again.segments.active.txn_index.entries()) == 1


@pytest.mark.parametrize("skip", range(12))
def test_an_unclean_start_takes_no_descriptor_from_what_it_reads(skip: int) -> None:
    """The file that recovery goes over was closed for the sake of an index, and its directory was
    offline: a fault of the disk, by the line.
    """
    world = World()
    log = create(world.manager(), segment_bytes=200, index_interval_bytes=0)
    fill(log, 12)
    started = World(world.files.after_kill())
    started.files.faults.append(Fault(errno.EMFILE, "open", f"/{A}/", skip=skip, times=1))
    found: list[Any] = []
    started.manager(start=False).start(CLUSTER).addBoth(found.append)
    error = None if found[0] is None else found[0].value
    assert error is None or error.errno == errno.EMFILE
    assert started.failed == []


@pytest.mark.parametrize(
    "read",
    [
        lambda segment: segment.next_offset(),
        lambda segment: run_whole(segment.find_by_timestamp(NOW_MS, 3)).offset,
        lambda segment: len(list(segment.headers_from(3))),
        lambda segment: segment.load_timestamps(),
    ],
)
def test_an_index_takes_no_descriptor_from_the_file_that_is_read(read: Any) -> None:
    """It is opened first: the file would be closed for it, and the directory offline."""
    world = World()
    manager = world.manager()
    fill(create(manager, index_interval_bytes=0), 6)
    world.stop(manager)
    answers = []
    for short in (0, 1):
        again = World(world.files.after_kill())
        log = again.manager().get(A)
        assert log is not None
        log.segments.close()
        segment = log.segments.make(0, NOW_MS)
        segment.open()
        again.files.faults.append(Fault(errno.EMFILE, "open", "index", times=short))
        answers.append(read(segment))
        assert not short or again.files.faults[0].times < short
    assert answers[0] == answers[1]
