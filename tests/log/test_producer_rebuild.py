"""Producers after a cut: nothing long in the reactor, and the same state in the end (RL 3.5)."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.log.batches import DIRECTORY, NOW_MS, all_batches, batch, config, marker, open_log
from tests.log.manual_worker import ManualWorker
from twisted_broker.log import (
    producer_batch_recovery,
    producer_rebuild,
    producer_snapshot,
    producer_snapshot_reader,
    producer_snapshot_writer,
    producer_state,
)
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.log import Log
from twisted_broker.log.memory import InlineWorker, Inode, MemoryFile, MemoryFileSystem
from twisted_broker.log.reading import aborted_transactions
from twisted_broker.log.verification import NOT_REQUIRED
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import BatchBuilder, set_offsets_and_epoch

_INLINE = InlineWorker()
SLICED = (
    producer_batch_recovery,
    producer_snapshot_reader,
    producer_snapshot_writer,
    producer_state,
)


class CountingFile(MemoryFile):
    reads = 0

    def read_at(self, position: int, length: int) -> bytes:
        CountingFile.reads += 1
        return super().read_at(position, length)


class CountingFiles(MemoryFileSystem):
    def _opened(self, path: str, node: Inode, read_only: bool) -> MemoryFile:
        return CountingFile(path, node, read_only)


def disk() -> SimDisk:
    files = SimDisk(1)
    files.make_directories("/data")
    return files


def sent(sequence: int, producer: int = 1, count: int = 1, **more: Any) -> bytes:
    return batch(
        *[b"v"] * count, producer_id=producer, producer_epoch=0, base_sequence=sequence, **more
    )


def described(log: Log) -> object:
    """Producers with all batches known, open transactions, the index of aborted ones."""
    entries = {
        number: (entry.producer_epoch, entry.batches)
        for number, entry in log.producers.producers.items()
    }
    return entries, log.producers.ongoing, aborted_transactions(log.segments, 0, log.log_end_offset)


def found_anew(log: Log, files: SimDisk) -> object:
    """The same of a log that is read from its first byte on."""
    other = files.after_kill()
    for name in other.listdir(DIRECTORY):
        if name.endswith(".snapshot"):
            other.remove(f"{DIRECTORY}/{name}")
    return described(open_log(other, settings=log.config))


def test_a_truncation_where_nobody_has_a_producer_id_reads_next_to_nothing() -> None:
    """RL 3.5: producers that wrote nothing of what was cut stay as they are; timestamps are
    found from the last index entry on.
    """
    files = CountingFiles()
    files.make_directories("/data")
    log = open_log(files)
    log.append_as_leader(sent(0), 0, NOW_MS)
    for number in range(3000):
        log.append_as_leader(batch(b"x" * 40, timestamp=NOW_MS - 5000 + number), 0, NOW_MS)
    before = described(log)
    for end in (3000, 2999, 10):
        CountingFile.reads = 0
        assert log.truncate_to(end, NOW_MS)
        assert CountingFile.reads < 20, end
        newest = max(one.max_timestamp for one in all_batches(log, max(0, end - 200)))
        segment = log.segments.active
        assert segment.max_timestamp == max(newest, NOW_MS) and segment.offset_of_max_timestamp == 0
    assert described(log) == before and log.producers.map_end_offset == 10


@pytest.mark.parametrize("back", [0, 1, 2500])
def test_the_largest_timestamp_after_a_truncation(back: int) -> None:
    """RL 3.5: where the newest record was cut the largest timestamp of the rest is found behind
    the last index entry.
    """
    files = CountingFiles()
    files.make_directories("/data")
    log = open_log(files)
    log.append_as_leader(batch(timestamp=NOW_MS), 0, NOW_MS)
    for _ in range(3000):
        log.append_as_leader(batch(b"x" * 40, timestamp=NOW_MS - 1), 0, NOW_MS)
    log.append_as_leader(batch(timestamp=NOW_MS + 7), 0, NOW_MS)
    CountingFile.reads = 0
    assert log.truncate_to(3001 - back, NOW_MS)
    assert (log.segments.active.max_timestamp, log.segments.active.offset_of_max_timestamp) == (
        NOW_MS,
        0,
    )
    assert CountingFile.reads < 20


def test_a_time_index_that_lacks_entries_is_not_relied_on() -> None:
    """RL 3.5: a power failure may take the end of a time index: the largest timestamp is found
    in the batches then.
    """
    files = disk()
    log = open_log(files)
    for number in range(200):
        log.append_as_leader(
            batch(b"x" * 100, timestamp=NOW_MS + (500 if number == 40 else number)), 0, NOW_MS
        )
    log.append_as_leader(batch(timestamp=NOW_MS + 1000), 0, NOW_MS)
    log.close()
    files.shorten(log.segments.active.time_index.file.path, 0)
    log = open_log(files, clean=True, recovery_point=201)
    log.truncate_to(200, NOW_MS)
    assert (log.segments.active.max_timestamp, log.segments.active.offset_of_max_timestamp) == (
        NOW_MS + 500,
        40,
    )


def test_a_long_way_is_gone_in_slices() -> None:
    """RL 3.5: a cut of one of many idempotent batches reads none of them in the reactor; the
    worker reads so many at a time.
    """
    files = disk()
    log = open_log(files)
    for number in range(6000):
        log.append_as_leader(sent(number), 0, NOW_MS)
    worker = log.durability.disk = ManualWorker()
    assert log.truncate_to(5999, NOW_MS) and log.producers.is_rebuilding and len(worker.jobs) == 1
    slices = 0
    while worker.jobs:
        worker.run_one()
        slices += 1
    assert slices == -(-5999 // producer_rebuild.SLICE_HEADERS)
    assert not log.producers.is_rebuilding and described(log) == found_anew(log, files)
    assert log.append_as_leader(sent(5998), 0, NOW_MS).duplicate
    assert log.append_as_leader(sent(5999), 0, NOW_MS).first_offset == 5999


def test_a_short_way_is_gone_at_once() -> None:
    """RL 3.5: up to `AT_ONCE_BYTES` nobody waits."""
    files = disk()
    log = open_log(files)
    for number in range(100):
        log.append_as_leader(sent(number), 0, NOW_MS)
    worker = log.durability.disk = ManualWorker()
    log.truncate_to(99, NOW_MS)
    assert (
        not log.producers.is_rebuilding
        and not worker.jobs
        and described(log) == found_anew(log, files)
    )


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_rebuild, "AT_ONCE_BYTES", 0)
    monkeypatch.setattr(producer_rebuild, "SLICE_HEADERS", 2)


@pytest.mark.usefixtures("tiny")
def test_a_batch_that_holds_the_log_start_is_found() -> None:
    """RL 3.5, 2.8: in slices as well: its producer is not forgotten."""
    files = disk()
    log = open_log(files)
    log.append_as_leader(sent(0, producer=3, count=5), 0, NOW_MS)
    for number in range(10):
        log.append_as_leader(sent(number), 0, NOW_MS)
    log.set_high_watermark(5)
    log.increment_log_start_offset(2)
    worker = log.durability.disk = ManualWorker()
    log.truncate_to(14, NOW_MS)
    assert log.producers.is_rebuilding
    while worker.jobs:
        worker.run_one()
    assert described(log) == found_anew(log, files)
    assert log.append_as_leader(sent(0, producer=3, count=5), 0, NOW_MS).duplicate


def behind(files: SimDisk, **settings: Any) -> tuple[Log, ManualWorker]:
    """A log of ten batches of a producer, cut at 9, whose producers are not found yet."""
    log = open_log(files, settings=config(**settings))
    for number in range(10):
        log.append_as_leader(sent(number), 0, NOW_MS)
    for offset in list(log.producers.snapshots):
        log.producers.remove_snapshot(offset)
    worker = ManualWorker()
    log.durability.disk = worker
    log.truncate_to(9, NOW_MS)
    assert log.producers.is_rebuilding
    return log, worker


@pytest.mark.usefixtures("tiny")
def test_a_marker_that_nobody_can_read_ends_nothing() -> None:
    """A leader has it: its follower takes it, and what comes behind it; a rebuild goes past it."""
    files = disk()
    log = open_log(files)
    builder = BatchBuilder(
        base_offset=1, producer_id=7, producer_epoch=0, is_control=True, is_transactional=True
    )
    builder.append(NOW_MS, b"", b"")
    behind_it = bytearray(sent(1))
    set_offsets_and_epoch(behind_it, 2, 0)
    log.append_as_follower(sent(0) + builder.build() + behind_it, 0, NOW_MS)
    assert log.log_end_offset == log.producers.map_end_offset == 3
    log.append_as_leader(sent(2), 0, NOW_MS)
    for offset in list(log.producers.snapshots):
        log.producers.remove_snapshot(offset)
    worker = log.durability.disk = ManualWorker()
    log.truncate_to(3, NOW_MS)
    assert log.producers.is_rebuilding
    while worker.jobs:
        worker.run_one()
    assert not log.producers.is_rebuilding and described(log) == found_anew(log, files)
    assert log.append_as_leader(sent(1), 0, NOW_MS).duplicate


@pytest.mark.usefixtures("tiny")
def test_a_leader_refuses_producers_until_they_are_known() -> None:
    """RL 3.5: no duplicate may slip in meanwhile: idempotent producers are told to come again,
    others are served; both ways go on.
    """
    files = disk()
    log, worker = behind(files)
    with pytest.raises(BrokerError) as caught:
        log.append_as_leader(sent(8), 1, NOW_MS)
    assert caught.value.code == ErrorCode.LEADER_NOT_AVAILABLE and log.log_end_offset == 9
    assert log.append_as_leader(batch(), 1, NOW_MS).first_offset == 9
    worker.run_all()
    assert log.append_as_leader(sent(8), 1, NOW_MS).duplicate
    assert log.append_as_leader(sent(9), 1, NOW_MS).first_offset == 10
    assert described(log) == found_anew(log, files)


@pytest.mark.usefixtures("tiny")
def test_no_snapshot_is_taken_of_what_is_not_known() -> None:
    """RL 3.5: a roll or a clean stop meanwhile leaves no snapshot; the next start reads further
    back.
    """
    files = disk()
    log, _ = behind(files)
    log.roll(NOW_MS)
    log.finish()()
    assert not [name for name in files.listdir(DIRECTORY) if name.endswith(".snapshot")]
    assert (
        open_log(files.after_kill(), clean=True, recovery_point=9)
        .producers.producers[1]
        .last_sequence
        == 8
    )


@pytest.mark.usefixtures("tiny")
def test_a_failing_read_takes_the_log_offline() -> None:
    """RL 1.12: what cannot be read is a disk error like any other."""
    files = disk()
    log, worker = behind(files)
    files.faults.append(Fault(errno.EIO, "open", ".log"))
    worker.run_all()
    with pytest.raises(BrokerError) as caught:
        log.check_online()
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    # What the operator reads is the disk's own error.
    assert isinstance(log.failed, OSError) and log.failed.errno == errno.EIO


@pytest.mark.usefixtures("tiny")
def test_retention_meanwhile_takes_what_was_still_to_be_read() -> None:
    """RL 3.7: segments that go while producers are looked for are passed over."""
    files = disk()
    log, worker = behind(files, segment_bytes=200)
    worker.run_one()
    job, done = worker.jobs.pop()
    log.set_high_watermark(9)
    log.increment_log_start_offset(6)
    assert log.delete_old_segments(NOW_MS) > 2
    _INLINE.submit(job, done)
    worker.run_all()
    assert not log.producers.is_rebuilding and log.failed is None
    assert log.producers.producers[1].last_sequence == 8
    assert log.append_as_leader(sent(9), 0, NOW_MS).first_offset == 9


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("jobs", range(3))
def test_a_log_that_gets_another_name_meanwhile_goes_on(jobs: int) -> None:
    """RL 3.8: the slice that is on its way finds no file of the old name; snapshots have the new
    one.
    """
    files = disk()
    log = open_log(files)
    for number in range(10):
        if number == 5:
            log.roll(NOW_MS, 20)  # compaction may leave such a hole
        log.append_as_leader(sent(number), 0, NOW_MS)
    log.producers.remove_snapshot(20)
    worker = log.durability.disk = ManualWorker()
    log.truncate_to(24, NOW_MS)
    for _ in range(jobs):
        worker.run_one()
    log.rename_directory(f"{DIRECTORY}-renamed")
    worker.run_all()
    assert log.failed is None and not log.producers.is_rebuilding
    assert log.producers.producers[1].last_sequence == 8
    assert log.producers.snapshots == {20} and files.exists(log.producers.path(20))


@pytest.mark.usefixtures("tiny")
def test_an_abort_that_is_replicated_meanwhile_reaches_the_index() -> None:
    """RL 3.3, 3.5: its transaction began before the cut.

    Until that is found nothing there counts as decided; then it is in the index, once.
    """
    files = disk()
    leader, log = open_log(disk()), open_log(files)
    leader.append_as_leader(batch(b"a"), 0, NOW_MS)
    leader.append_as_leader(sent(0, 7, is_transactional=True), 0, NOW_MS, guard=NOT_REQUIRED)
    leader.append_as_leader(marker(7, commit=False), 0, NOW_MS, origin=AppendOrigin.COORDINATOR)
    for one in all_batches(leader):
        log.append_as_follower(one.to_bytes(), 0, NOW_MS)
    worker = log.durability.disk = ManualWorker()
    log.truncate_to(2, NOW_MS)
    log.append_as_follower(all_batches(leader)[2].to_bytes(), 0, NOW_MS)
    log.set_high_watermark(3)
    assert log.last_stable_offset == 0 and not aborted_transactions(log.segments, 0, 3)
    log.durability.recovery_point = 3
    worker.run_all()
    assert log.last_stable_offset == 3 and [
        one.producer_id for one in aborted_transactions(log.segments, 0, 3)
    ] == [7]
    assert log.durability.recovery_point == 0
    assert described(log) == found_anew(log, files)


def with_an_abort_not_indexed(files: SimDisk, rolled_at: int = -1) -> tuple[Log, ManualWorker]:
    """Of a transaction that began before the cut; its marker was replicated behind it."""
    leader, log = open_log(disk()), open_log(files)
    for number in range(12):
        leader.append_as_leader(sent(number, 3), 0, NOW_MS)
    leader.append_as_leader(sent(0, 7, is_transactional=True), 0, NOW_MS, guard=NOT_REQUIRED)
    leader.append_as_leader(marker(7, commit=False), 0, NOW_MS, origin=AppendOrigin.COORDINATOR)
    for one in all_batches(leader):
        if one.base_offset == rolled_at:
            log.roll(NOW_MS)
        log.append_as_follower(one.to_bytes(), 0, NOW_MS)
    worker = log.durability.disk = ManualWorker()
    log.truncate_to(13, NOW_MS)
    log.append_as_follower(all_batches(leader)[13].to_bytes(), 0, NOW_MS)
    log.set_high_watermark(14)
    assert log.producers.is_rebuilding and not aborted_transactions(log.segments, 0, 14)
    return log, worker


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("jobs", range(9))
def test_an_abort_that_is_not_in_the_index_at_a_clean_stop_is_found_by_the_next_start(
    jobs: int,
) -> None:
    """RL 3.5, 3.6, 9: readers of committed records would be given its records."""
    files = disk()
    log, worker = with_an_abort_not_indexed(files)
    for _ in range(jobs):
        worker.run_one()
    files.sync_all()
    log.finish()()
    log.release_files()
    again = open_log(files.after_power_loss(keep=0), clean=True, recovery_point=14)
    assert [one.producer_id for one in aborted_transactions(again.segments, 0, 14)] == [7]
    assert again.log_end_offset == 14 and set(again.producers.producers) == {3, 7}


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("jobs", range(12))
def test_an_abort_that_is_not_in_the_index_at_a_kill_is_found_by_the_next_start(jobs: int) -> None:
    """RL 3.5, 3.6, 9: the sync of a roll is done before the last slices, and the checkpoint said
    that nothing needs to be looked at.
    """
    files = disk()
    log, worker = with_an_abort_not_indexed(files)
    log.roll(NOW_MS)
    for _ in range(jobs):
        worker.run_one()
    point, _ = log.durability.point_in_write()
    again = open_log(files.after_kill(), recovery_point=point)
    assert [one.producer_id for one in aborted_transactions(again.segments, 0, 14)] == [7]


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("jobs", range(6))
def test_nothing_is_written_behind_a_clean_stop(jobs: int) -> None:
    """RL 3.6: the directory may be another process's by then."""
    files = disk()
    log, worker = with_an_abort_not_indexed(files)
    for _ in range(jobs):
        worker.run_one()
    log.finish()()
    log.release_files()
    before = {name: files.size(f"{DIRECTORY}/{name}") for name in files.listdir(DIRECTORY)}
    worker.run_all()
    assert before == {name: files.size(f"{DIRECTORY}/{name}") for name in files.listdir(DIRECTORY)}


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("skip", range(9))
@pytest.mark.parametrize("name", [".log", ".index", ".txnindex"])
@pytest.mark.parametrize("rolled_at", [-1, 10])
def test_where_descriptors_are_short_wherever_it_is_nothing_is_lost(
    name: str, skip: int, rolled_at: int
) -> None:
    """RL 3.5: for the worker's slice, for the transaction index, for batches before a snapshot."""
    files = disk()
    log, worker = with_an_abort_not_indexed(files, rolled_at)
    files.faults.append(Fault(errno.EMFILE, "open", name, skip, times=2))
    for _ in range(20):
        log.segments.close()
        log.rebuild.resume()
        worker.run_one()
    files.faults.clear()
    assert log.failed is None and not worker.jobs
    assert not log.producers.is_rebuilding and described(log) == found_anew(log, files)


@pytest.mark.usefixtures("tiny")
def test_an_index_of_aborted_transactions_that_cannot_be_written_takes_the_log_offline() -> None:
    """RL 1.12, 9."""
    files = disk()
    log, worker = with_an_abort_not_indexed(files)
    files.faults.append(Fault(errno.EIO, "write", ".txnindex"))
    worker.run_all()
    assert log.failed is not None and log.failed.errno == errno.EIO


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_where_descriptors_were_short_the_next_producer_resumes_it(error: int) -> None:
    """The log stays online, the rebuild waits; who is refused meanwhile makes it go on."""
    files = disk()
    log, worker = behind(files)
    _, done = worker.jobs.pop(0)
    done(None, OSError(error, "too many open files"))
    assert log.failed is None and log.producers.is_rebuilding and not worker.jobs
    with pytest.raises(BrokerError) as caught:
        log.append_as_leader(sent(9), 1, NOW_MS)
    assert caught.value.code == ErrorCode.LEADER_NOT_AVAILABLE and len(worker.jobs) == 1
    worker.run_all()
    assert log.append_as_leader(sent(8), 1, NOW_MS).duplicate
    assert log.append_as_leader(sent(9), 1, NOW_MS).first_offset == 9
    assert described(log) == found_anew(log, files)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of three producers."""
    for module in SLICED:
        monkeypatch.setattr(module, "SLICE_PRODUCERS", 3)


def of_many(
    files: SimDisk, number: int = 20, transactions: bool = False
) -> tuple[Log, ManualWorker]:
    """Each producer wrote a batch before each of two rolls, and one behind them."""
    log = open_log(files)
    for sequence in range(3):
        for producer in range(number):
            data = sent(sequence, producer, is_transactional=transactions)
            log.append_as_leader(data, 0, NOW_MS, guard=NOT_REQUIRED)
        if sequence < 2:
            log.roll(NOW_MS)
    assert log.producers.snapshots == {number, 2 * number}
    worker = log.durability.disk = ManualWorker()
    return log, worker


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("transactions", [False, True])
def test_of_many_producers_no_turn_loads_or_forgets_more_than_a_slice(
    transactions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 3.5: a cut of one batch behind a snapshot; and no transaction counts as decided before it
    is known which were open.
    """
    files = disk()
    log, worker = of_many(files, transactions=transactions)
    log.set_high_watermark(log.log_end_offset)
    decoded, layout = [0], producer_snapshot._ENTRY

    class Counting:
        """The layout of a row, which counts those that it takes apart."""

        pack = layout.pack

        @staticmethod
        def iter_unpack(rows: memoryview) -> Iterator[tuple[Any, ...]]:
            for row in layout.iter_unpack(rows):
                decoded[-1] += 1
                yield row

    monkeypatch.setattr(producer_snapshot, "_ENTRY", Counting)
    old = log.producers.producers
    log.truncate_to(59, NOW_MS)
    left = [20, len(old)]
    assert log.producers.is_rebuilding and log.last_stable_offset == 0
    while worker.jobs:
        decoded.append(0)
        worker.run_one()
        left.append(len(old))
        if log.producers.is_rebuilding:
            assert log.last_stable_offset in (0, 40 - 40 * transactions)
    assert max(decoded) == 3 and sum(decoded) == 20
    assert not old and max(before - after for before, after in pairwise(left)) == 3
    monkeypatch.undo()
    assert not log.producers.is_rebuilding and described(log) == found_anew(log, files)
    assert log.last_stable_offset == (0 if transactions else 59)
    assert log.append_as_leader(sent(1, 19), 0, NOW_MS).duplicate


@pytest.mark.usefixtures("small")
def test_a_snapshot_of_many_of_whom_few_are_left_is_loaded_in_slices() -> None:
    """RL 3.5: most have expired since."""
    files = disk()
    log, worker = of_many(files)
    log.producers.expire(range(3, 20), NOW_MS + log.config.producer_id_expiration_ms)
    assert len(log.producers.producers) == 3
    log.truncate_to(59, NOW_MS)
    assert log.producers.is_rebuilding
    worker.run_all()
    assert described(log) == found_anew(log, files)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("what", ["damaged", "both damaged", "removed", "gone", "renamed"])
def test_a_snapshot_of_many_that_cannot_be_loaded(what: str) -> None:
    """RL 3.5: the one before it is, or none."""
    files = disk()
    log, worker = of_many(files)
    log.truncate_to(59, NOW_MS)
    if "damaged" in what:
        for offset in (40, 20) if what == "both damaged" else (40,):
            files.flip_bit(log.producers.path(offset), files.size(log.producers.path(offset)) - 1)
    elif what == "removed":
        log.producers.remove_snapshot(40)
    elif what == "gone":
        files.remove(log.producers.path(40))
    else:
        log.rename_directory(f"{DIRECTORY}-renamed")
    worker.run_all()
    kept = {"both damaged": set(), "renamed": {20, 40}}.get(what, {20})
    assert log.failed is None and log.producers.snapshots == kept
    if what == "renamed":
        log.rename_directory(DIRECTORY)
    assert described(log) == found_anew(log, files)


@pytest.mark.usefixtures("small")
def test_a_snapshot_of_many_that_the_disk_cannot_read_takes_the_log_offline() -> None:
    """RL 1.12."""
    files = disk()
    log, worker = of_many(files)
    log.truncate_to(59, NOW_MS)
    files.faults.append(Fault(errno.EIO, "open", ".snapshot"))
    worker.run_all()
    assert log.failed is not None and log.failed.errno == errno.EIO


@pytest.mark.usefixtures("small")
def test_a_snapshot_of_many_without_a_descriptor_is_read_later() -> None:
    files = disk()
    log, worker = of_many(files)
    log.truncate_to(59, NOW_MS)
    for job, done in worker.jobs[:]:
        worker.jobs.remove((job, done))
        done(None, OSError(errno.EMFILE, "too many open files"))
    worker.run_all()
    assert log.failed is None and log.producers.is_rebuilding
    with pytest.raises(BrokerError):
        log.append_as_leader(sent(2, 19), 0, NOW_MS)
    worker.run_all()
    assert described(log) == found_anew(log, files)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("jobs", range(12))
@pytest.mark.parametrize("end", [0, 15, 30, 45, 58])
def test_a_cut_while_many_are_loaded(jobs: int, end: int) -> None:
    """RL 3.5: below the snapshot, between two, or of all."""
    files = disk()
    log, worker = of_many(files)
    log.truncate_to(59, NOW_MS)
    for _ in range(jobs):
        worker.run_one()
    log.truncate_to(end, NOW_MS)
    worker.run_all()
    assert not log.producers.is_rebuilding and described(log) == found_anew(log, files)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("end", ["begun anew", "retired"])
def test_many_producers_that_are_gone_are_forgotten_in_slices(end: str) -> None:
    """RL 3.5, 3.6: a log that begins anew, or is deleted."""
    log, worker = of_many(disk())
    old = log.producers.producers
    if end == "begun anew":
        log.truncate_fully_and_start_at(100, NOW_MS)
        assert not log.producers.producers and len(old) == 17
    else:
        log.retire(OSError("the log is deleted"))
    while worker.jobs:
        before = len(old)
        worker.run_one()
        assert before - len(old) <= 3
    assert not old


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("slice_producers", [1, 4000])
def test_whatever_happens_meanwhile_the_state_is_that_of_the_log(
    seed: int, slice_producers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 3.5: cuts, appends both ways, rolls and slices in any order: in the end producers are
    those of a log that is read anew.
    """
    for module in SLICED:
        monkeypatch.setattr(module, "SLICE_PRODUCERS", slice_producers)
    chance = random.Random(seed)
    files = disk()
    log = open_log(files, settings=config(segment_bytes=900))
    worker = ManualWorker()
    log.durability.disk = worker
    cuts = 0
    for _ in range(120):
        step = chance.randrange(12)
        producer = chance.randrange(3)
        try:
            if step < 6:
                entry = log.producers.producers.get(producer)
                sequence = 0 if entry is None else entry.last_sequence + 1
                transactional = producer == 2
                data = sent(
                    sequence, producer, chance.randrange(1, 4), is_transactional=transactional
                )
                log.append_as_leader(data, 0, NOW_MS, guard=NOT_REQUIRED)
            elif step == 6:
                log.append_as_leader(batch(b"plain"), 0, NOW_MS)
            elif step == 7:
                log.append_as_leader(
                    marker(2, commit=chance.random() < 0.5),
                    0,
                    NOW_MS,
                    origin=AppendOrigin.COORDINATOR,
                )
            elif step == 8:
                begins = [one.base_offset for one in all_batches(log)][-6:]
                cuts += bool(begins) and log.truncate_to(chance.choice(begins), NOW_MS)
            elif step == 9:
                log.roll(NOW_MS)
            else:
                worker.run_one()
        except BrokerError as error:
            assert error.code == ErrorCode.LEADER_NOT_AVAILABLE and log.producers.is_rebuilding
    worker.run_all()
    assert cuts and not log.producers.is_rebuilding
    assert described(log) == found_anew(log, files)


def test_a_worker_that_answers_at_once_is_not_asked_again_while_descriptors_are_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RL 3.5: `InlineWorker`; it would be asked for ever, in one turn of the reactor."""
    monkeypatch.setattr(producer_rebuild, "AT_ONCE_BYTES", 0)
    read, asked = producer_rebuild._read_slice, list[int]()

    def short(*arguments: Any) -> Any:
        asked.append(1)
        if len(asked) > 2:
            raise AssertionError("asked without a pause")
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(producer_rebuild, "_read_slice", short)
    log = open_log(disk())
    for number in range(4):
        log.append_as_leader(sent(number), 0, NOW_MS)
    log.durability.disk = _INLINE
    log.truncate_to(3, NOW_MS)
    assert (len(asked), log.producers.is_rebuilding) == (1, True)
    log.descriptors_may_be_free()
    assert (len(asked), log.failed) == (2, None)
    monkeypatch.setattr(producer_rebuild, "_read_slice", read)
    log.descriptors_may_be_free()
    assert not log.producers.is_rebuilding
