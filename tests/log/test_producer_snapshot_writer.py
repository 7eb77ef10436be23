"""Snapshots of many producers: a slice a turn, and what they hold all the same (RL 3.2)."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.log.batches import DIRECTORY, NOW_MS, batch, config, open_log
from tests.log.manual_worker import ManualWorker
from twisted_broker.log import producer_rebuild, producer_snapshot_writer, producer_state
from twisted_broker.log.errors import CheckpointError
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.producer_snapshot import (
    ProducerEntry,
    decode_snapshot,
    encode_row,
    encode_snapshot,
)
from twisted_broker.log.producer_snapshot_writer import SLICE_PRODUCERS
from twisted_broker.log.producer_state import ProducerStateManager, snapshot_name
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.wire.errors import BrokerError


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of three."""
    monkeypatch.setattr(producer_state, "SLICE_PRODUCERS", 3)
    monkeypatch.setattr(producer_snapshot_writer, "SLICE_PRODUCERS", 3)


def disk() -> SimDisk:
    files = SimDisk(1)
    files.make_directories("/data")
    return files


def raise_error(error: OSError) -> None:
    raise error


def path(offset: int) -> str:
    return f"{DIRECTORY}/{snapshot_name(offset)}"


def whole(files: MemoryFileSystem, offset: int) -> bytes:
    file = files.open(path(offset), read_only=True)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def sent(sequence: int, producer: int, **more: Any) -> bytes:
    return batch(b"v", producer_id=producer, producer_epoch=0, base_sequence=sequence, **more)


def state_of(number: int) -> tuple[MemoryFileSystem, ProducerStateManager]:
    files = MemoryFileSystem()
    files.make_directories(DIRECTORY)
    state = ProducerStateManager(files, DIRECTORY, 86_400_000)
    for producer in range(number):
        state.add_data(producer, 0, 0, producer, 0, NOW_MS, False)
    state.map_end_offset = number
    return files, state


def log_of(producers: int, files: SimDisk, **settings: Any) -> tuple[Log, ManualWorker]:
    """Each wrote two batches; the log was rolled, and one slice of the snapshot is on its way."""
    log = open_log(files, settings=config(**settings))
    for sequence in (0, 1):
        for producer in range(producers):
            log.append_as_leader(sent(sequence, producer), 0, NOW_MS)
    worker = log.durability.disk = ManualWorker()
    log.roll(NOW_MS)
    return log, worker


def described(log: Log) -> object:
    return {
        number: (entry.producer_epoch, entry.batches, entry.current_txn_first_offset)
        for number, entry in log.producers.producers.items()
    }


def test_no_turn_encodes_more_than_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """RL 3.2: of however many producers."""
    rows = 0

    def counted(entry: ProducerEntry) -> bytes:
        nonlocal rows
        rows += 1
        return encode_row(entry)

    monkeypatch.setattr(producer_snapshot_writer, "encode_row", counted)
    number = 2 * SLICE_PRODUCERS + 1
    files, state = state_of(number)
    expected = encode_snapshot(list(state.producers.values()))
    worker, turns = ManualWorker(), list[int]()
    assert state.take_snapshot(worker, raise_error) == number
    turns.append(rows)
    while worker.jobs:
        assert state.snapshots == set()
        with pytest.raises(CheckpointError):
            decode_snapshot("snapshot", whole(files, number))
        rows = 0
        worker.run_one()
        turns.append(rows)
    assert turns == [SLICE_PRODUCERS, SLICE_PRODUCERS, 1, 0]
    assert state.snapshots == {number} and state.writer is None
    assert whole(files, number) == expected


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_what_changes_meanwhile_is_in_it_as_it_was(before: int) -> None:
    """RL 3.2: whatever slice it is in, and of one that expired and came again, too."""
    files, state = state_of(10)
    state.add_data(9, 0, 1, 10, 0, NOW_MS, True)
    state.map_end_offset = 11
    expected = encode_snapshot(list(state.producers.values()))
    worker = ManualWorker()
    assert state.take_snapshot(worker, raise_error) == 11
    for _ in range(before):
        worker.run_one()
    for offset, producer in enumerate((0, 4, 5, 9, 11, 11), 11):
        state.add_data(producer, 1, 0, offset, 0, NOW_MS + 90_000_000, False)
        state.add_data(producer, 1, 1, offset, 0, NOW_MS + 90_000_000, False)
    state.add_marker(9, 1, 3, 20, NOW_MS + 90_000_000, True)
    number = len(state.producers)
    state.expire(list(state.producers), NOW_MS + 90_000_000)
    assert len(state.producers) == number - 6
    for producer in (1, 6, 8):
        state.add_data(producer, 2, 0, 21, 0, NOW_MS, False)
        state.add_data(producer, 2, 1, 22, 0, NOW_MS, False)
    worker.run_all()
    assert whole(files, 11) == expected


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["²", "٣", "00000000000000000٠16", "-1", "x", ""])
def test_a_file_whose_name_is_no_offset_is_no_snapshot(name: str) -> None:
    """`isdigit` takes a superscript, which is no number: the log could not be loaded."""
    files = disk()
    log, worker = log_of(8, files)
    worker.run_all()
    log.producers.find_snapshots()
    before = set(log.producers.snapshots)
    files.open(f"{log.directory}/{name}.snapshot", create=True).close()
    log.producers.find_snapshots()
    assert log.producers.snapshots == before


@pytest.mark.usefixtures("small")
def test_a_roll_while_one_is_written_takes_none() -> None:
    """RL 3.2: the next one does, and loading finds the same either way."""
    files = disk()
    log, worker = log_of(8, files)
    log.append_as_leader(sent(2, 0), 0, NOW_MS)
    log.roll(NOW_MS)
    worker.run_all()
    assert log.producers.snapshots == {16}
    assert described(open_log(files.after_kill(), settings=log.config)) == described(log)
    log.append_as_leader(sent(3, 0), 0, NOW_MS)
    log.roll(NOW_MS)
    worker.run_all()
    assert log.producers.snapshots == {16, 18}
    assert described(open_log(files.after_kill(), settings=log.config)) == described(log)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("jobs", range(5))
def test_a_kill_in_between_costs_nothing_but_a_longer_way(jobs: int) -> None:
    """RL 3.2, 3.5: an unfinished file is no snapshot."""
    files = disk()
    log, worker = log_of(8, files)
    log.append_as_leader(sent(2, 7), 0, NOW_MS)
    for _ in range(jobs):
        worker.run_one()
    assert described(open_log(files.after_kill(), settings=log.config)) == described(log)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("end", [0, 5, 15, 16])
@pytest.mark.parametrize("jobs", range(3))
def test_a_truncation_takes_it_along(end: int, jobs: int) -> None:
    """RL 3.5: nothing remembers what is gone; later jobs bring no file back."""
    files = disk()
    log, worker = log_of(8, files)
    log.append_as_leader(sent(2, 7), 0, NOW_MS)
    for _ in range(jobs):
        worker.run_one()
    log.truncate_to(end, NOW_MS)
    worker.run_all()
    assert not files.exists(path(16)) and log.producers.writer is None
    for producer in (100, 101):
        log.append_as_leader(sent(0, producer), 0, NOW_MS)
    log.roll(NOW_MS)
    worker.run_all()
    assert end + 2 in log.producers.snapshots
    assert described(open_log(files.after_kill(), settings=log.config)) == described(log)


@pytest.mark.usefixtures("small")
def test_a_log_that_begins_anew_has_none() -> None:
    """RL 3.5."""
    files = disk()
    log, worker = log_of(8, files)
    log.truncate_fully_and_start_at(40, NOW_MS)
    worker.run_all()
    assert not files.exists(path(16)) and log.producers.snapshots == set()
    assert log.producers.last_snapshot_offset == 0


@pytest.mark.usefixtures("small")
def test_retention_takes_it_with_its_segment() -> None:
    """RL 3.7."""
    files = disk()
    log, worker = log_of(8, files, retention_ms=1000)
    log.append_as_leader(sent(2, 7), 0, NOW_MS)
    log.roll(NOW_MS)
    log.set_high_watermark(log.log_end_offset)
    assert log.delete_old_segments(NOW_MS + 10_000) == 2
    worker.run_all()
    assert not files.exists(path(16)) and 16 not in log.producers.snapshots


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("jobs", range(4))
def test_a_clean_stop_leaves_a_whole_one(jobs: int) -> None:
    """RL 3.8: the map's end is where the unfinished one was begun."""
    files = disk()
    log, worker = log_of(8, files)
    for _ in range(jobs):
        worker.run_one()
    log.close()
    worker.run_one()  # what was on its way; the worker stops then
    assert log.producers.snapshots == {16}
    assert len(decode_snapshot("snapshot", whole(files, 16))) == 8


@pytest.mark.usefixtures("small")
def test_a_disk_that_fails_meanwhile_takes_the_log_offline() -> None:
    """RL 1.12: as where the snapshot is written at once."""
    files = disk()
    log, worker = log_of(8, files)
    worker.run_one()
    files.faults.append(Fault(errno.EIO, "write", ".snapshot"))
    worker.run_all()
    assert log.failed is not None and log.failed.errno == errno.EIO
    assert log.producers.writer is None and log.producers.snapshots == set()
    with pytest.raises(BrokerError):
        log.roll(NOW_MS)


@pytest.mark.usefixtures("small")
def test_a_log_that_fails_meanwhile_writes_no_further() -> None:
    """RL 1.12."""
    files = disk()
    log, worker = log_of(8, files)
    log.fail(OSError(errno.EIO, "bad"))
    worker.run_all()
    with pytest.raises(CheckpointError):
        decode_snapshot("snapshot", whole(files, 16))


@pytest.mark.usefixtures("small")
def test_a_rebuild_goes_on_while_one_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """RL 3.5: who takes over what a rebuild found, takes over its unfinished snapshot."""
    files = disk()
    log = open_log(files, settings=config())
    for sequence in range(4):
        if sequence == 2:
            log.roll(NOW_MS, 90)  # compaction may leave such a hole
        for producer in range(40):
            log.append_as_leader(sent(sequence, producer), 0, NOW_MS)
    log.producers.remove_snapshot(90)
    monkeypatch.setattr(producer_rebuild, "AT_ONCE_BYTES", 0)
    worker = log.durability.disk = ManualWorker()
    log.truncate_to(169, NOW_MS)
    assert log.producers.is_rebuilding
    while log.producers.is_rebuilding:
        worker.run_one()
    writer = log.producers.writer
    assert writer is not None and writer.offset == 90
    for producer in range(39, -1, -1):
        log.append_as_leader(sent(3 if producer == 39 else 4, producer), 0, NOW_MS)
    worker.run_all()
    assert log.producers.snapshots == {90} and log.producers.writer is None
    rows = {each.producer_id: each for each in decode_snapshot("snapshot", whole(files, 90))}
    assert {number: each.last_offset for number, each in rows.items()} == {
        number: 40 + number for number in range(40)
    }
