"""What `log/write_ahead.py` promises: a long batch is in the log as if it had been written at once,
whatever happens while its pieces are written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.log.batches import NOW_MS, all_batches, batch, config, open_log
from tests.log.test_log import replicated
from twisted_broker.interfaces import Buffer
from twisted_broker.log import log as log_module
from twisted_broker.log import write_ahead
from twisted_broker.log.errors import LogDirFailure, OutOfDescriptors
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFile, MemoryFileSystem
from twisted_broker.log.write_ahead import WriteAhead, portions
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.records import CorruptRecordError

PIECE = 1000


@pytest.fixture(autouse=True)
def _short_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "LONG_BYTES", 3 * PIECE)
    monkeypatch.setattr(write_ahead, "PIECE_BYTES", PIECE)


def new_log(files: MemoryFileSystem | SimDisk | None = None, **settings_: object) -> Log:
    files = files or MemoryFileSystem()
    files.make_directories("/data")
    return open_log(files, settings=config(**settings_))


def content(log: Log) -> bytes:
    """Of the active segment's file, with what is behind the log's end."""
    file = log.segments.active.log.open()
    return file.read_at(0, file.size())


def long(first: bytes = b"a") -> bytes:
    return batch(first, os.urandom(5 * PIECE))


def begin(log: Log, records: Buffer, is_clients: bool = True) -> tuple[WriteAhead, Iterator[None]]:
    """What a long append does first: all but the steps."""
    ahead = log.begin_ahead(records)
    assert ahead is not None
    if is_clients:
        log.check_ahead(ahead, NOW_MS, lambda: None)
    return ahead, log.write_ahead(ahead, NOW_MS)


def exhaust(steps: Iterator[None]) -> int:
    return sum(1 for _ in steps)


class Writes:
    """Bytes of each write to the active segment's file."""

    def __init__(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        file = log.segments.active.log.open()
        self.sizes: list[int] = []
        write_at = MemoryFile.write_at

        def counted(written: MemoryFile, position: int, buffers: Sequence[Buffer]) -> None:
            if written is file:
                self.sizes.append(sum(map(len, buffers)))
            write_at(written, position, buffers)

        monkeypatch.setattr(MemoryFile, "write_at", counted)


def test_an_append_writes_the_head_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No write is longer than a piece, and the file is as if it had been written at once."""
    log, other, records = new_log(), new_log(), long()
    for each in (log, other):
        each.append_as_leader(batch(b"before"), 0, NOW_MS)
    other.append_as_leader(records, 0, NOW_MS)
    writes = Writes(log, monkeypatch)
    ahead, pieces = begin(log, records)
    steps = exhaust(pieces)
    assert log.log_end_offset == 1, "nothing is published"
    info = log.append_as_leader(records, 0, NOW_MS)
    log.end_ahead(ahead)
    assert steps >= 5 and max(writes.sizes) <= PIECE and writes.sizes[-1] == 16
    assert (info.first_offset, info.last_offset) == (1, 2) and content(log) == content(other)


def test_what_a_leader_sent_is_written_ahead_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """In portions: several short batches, a long one, a part of one."""
    log, other = new_log(), new_log()
    sizes = [300, 300, 600, 5 * PIECE, 100]
    sent = b"".join(replicated(log, n, os.urandom(size)) for n, size in enumerate(sizes))
    sent += replicated(log, len(sizes), os.urandom(PIECE))[:500]
    other.append_as_follower(sent, 0, NOW_MS)
    writes = Writes(log, monkeypatch)
    parts = list(portions(sent))
    assert b"".join(parts) == sent
    for part in parts:
        ahead, pieces = begin(log, part, is_clients=False)
        exhaust(pieces)
        log.append_as_follower(part, 0, NOW_MS)
        log.end_ahead(ahead)
    assert max(writes.sizes) <= PIECE and content(log) == content(other)
    assert log.log_end_offset == len(sizes)


@given(st.binary(max_size=200), st.lists(st.integers(0, 3 * PIECE), max_size=8))
def test_portions_are_the_records(tail: bytes, sizes: list[int]) -> None:
    """Whatever comes: all of it, whole batches but for the last portion, none long but of one."""
    batches = [batch(bytes(size)) for size in sizes]
    records = b"".join(batches) + tail
    parts = list(portions(records))
    assert b"".join(parts) == records
    whole = {0}
    for each in batches:
        whole.add(max(whole) + len(each))
    at = 0
    for part in parts:
        assert at in whole or at >= max(whole)
        assert len(part) <= PIECE or at + len(part) in whole or at >= max(whole)
        at += len(part)


def test_another_append_comes_first() -> None:
    """The long batch is written as a whole then; nothing of the pieces stays."""
    log, other, records = new_log(), new_log(), long()
    ahead, steps = begin(log, records)
    next(steps)
    next(steps)
    for each in (log, other):
        each.append_as_leader(batch(b"between"), 0, NOW_MS)
    assert content(log) == content(other)
    assert exhaust(steps) == 0
    for each in (log, other):
        each.append_as_leader(records, 0, NOW_MS)
    log.end_ahead(ahead)
    assert content(log) == content(other)


def test_what_is_refused_leaves_nothing() -> None:
    """By the check, which then writes nothing; and by the append, after all was written."""
    log, records = new_log(), bytearray(long())
    log.append_as_leader(batch(b"before"), 0, NOW_MS)
    before = content(log)
    records[-1] ^= 1
    ahead, steps = begin(log, records)
    assert exhaust(steps) == 0
    with pytest.raises(CorruptRecordError):
        log.append_as_leader(records, 0, NOW_MS)
    log.end_ahead(ahead)
    late = batch(b"late", os.urandom(5 * PIECE), producer_id=7, producer_epoch=0, base_sequence=5)
    log.append_as_leader(batch(b"0", producer_id=7, producer_epoch=0, base_sequence=0), 0, NOW_MS)
    before = content(log)
    ahead, steps = begin(log, late)
    assert exhaust(steps) >= 5 and len(content(log)) > len(before)
    with pytest.raises(BrokerError, match="sequence"):
        log.append_as_leader(late, 0, NOW_MS)
    log.end_ahead(ahead)
    assert content(log) == before


class LateWorker:
    """Runs its jobs when told."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def submit(self, job: Callable[[], Any], done: Callable[[Any, Any], None]) -> None:
        self.jobs.append(lambda: done(job(), None))


def test_what_is_looked_into_is_looked_into_by_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records are walked, and stored with another codec, once and not by the append; under
    other settings by the append again.
    """
    log, other, records = (
        new_log(compression_type="gzip"),
        new_log(compression_type="gzip"),
        long(),
    )
    other.append_as_leader(records, 0, NOW_MS)
    for changes in (False, True):
        worker = LateWorker()
        log.pool.reader = worker  # type: ignore[assignment]
        ahead = log.begin_ahead(records)
        assert ahead is not None
        log.check_ahead(ahead, NOW_MS, lambda: None)
        assert not ahead.is_checked(records, log.config)
        worker.jobs.pop()()
        exhaust(log.write_ahead(ahead, NOW_MS))
        if changes:
            log.update_config(config(compression_type="lz4"))
            log.append_as_leader(records, 0, NOW_MS)
            assert [each.codec for each in all_batches(log)] == [1, 3]
        else:
            with monkeypatch.context() as without:
                without.setattr(log_module, "prepare", None)
                without.setattr(log_module, "check_header", None)
                log.append_as_leader(records, 0, NOW_MS)
            assert content(log) == content(other)
        log.end_ahead(ahead)


def test_what_cannot_be_cut_off_is_cut_off_before_the_next_append() -> None:
    """For want of a descriptor: a short batch must not stand before a piece of another one."""
    files = MemoryFileSystem()
    log, records = new_log(files), long()
    log.append_as_leader(batch(b"before"), 0, NOW_MS)
    ahead, steps = begin(log, records)
    next(steps)
    log.segments.active.log.close()
    with files_short(files):
        log.end_ahead(ahead)
        with pytest.raises(OutOfDescriptors):
            log.append_as_leader(batch(b"after"), 0, NOW_MS)
    log.append_as_leader(batch(b"after"), 0, NOW_MS)
    assert len(content(log)) == log.segments.active.size
    assert log.log_end_offset == 2


@contextmanager
def files_short(files: MemoryFileSystem) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:

        def refused(*_: object, **__: object) -> None:
            raise OSError(errno.EMFILE, "no descriptor")

        patch.setattr(files, "open", refused)
        yield


@pytest.mark.parametrize("how", ["deleted", "failed"])
def test_a_log_that_goes_offline_is_written_to_no_more(how: str) -> None:
    files = MemoryFileSystem()
    log, records = new_log(files), long()
    ahead, steps = begin(log, records)
    next(steps)
    file = log.segments.active.log.open()
    size = file.size()
    if how == "deleted":
        log.retire(OSError("deleted"))
    else:
        log.directory_failed(OSError("gone"))
    assert exhaust(steps) == 0 and file.size() == size
    log.end_ahead(ahead)


def test_a_full_disk_is_met_by_the_append(monkeypatch: pytest.MonkeyPatch) -> None:
    log, records = new_log(), long()
    log.append_as_leader(batch(b"before"), 0, NOW_MS)
    ahead, steps = begin(log, records)
    next(steps)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as disk:
        disk.setattr(MemoryFile, "write_at", full)
        exhaust(steps)
        assert log.failed is None and len(content(log)) == log.segments.active.size
        with pytest.raises(LogDirFailure):
            log.append_as_leader(records, 0, NOW_MS)
    log.end_ahead(ahead)
    assert len(content(log)) == log.segments.active.size


def test_a_log_that_is_closed_or_rolled_meanwhile_keeps_nothing() -> None:
    for rolls in (False, True):
        log, records = new_log(), long()
        log.append_as_leader(batch(b"before"), 0, NOW_MS)
        ahead, steps = begin(log, records)
        next(steps)
        first, end = log.segments.active, content(log)[: log.segments.active.size]
        if rolls:
            log.roll(NOW_MS)
        else:
            log.finish()()
        assert exhaust(steps) == 0
        assert first.log.open().read_at(0, 10_000) == end
        log.end_ahead(ahead)


def test_an_empty_segment_that_begins_again_has_no_holes() -> None:
    """Its file was emptied: the size alone does not say that the pieces are there."""
    log, records = new_log(), long()
    exhaust(begin(log, records)[1])
    log.roll(NOW_MS)
    log.append_as_leader(records, 0, NOW_MS)
    (kept,) = all_batches(log)
    assert kept.to_bytes()[16:] == records[16:]


def test_a_batch_that_needs_a_new_segment_begins_it() -> None:
    log, records = new_log(segment_bytes=1 << 20), long()
    log.append_as_leader(batch(bytes((1 << 20) - 2000)), 0, NOW_MS)
    assert exhaust(begin(log, records)[1]) >= 5
    log.append_as_leader(records, 0, NOW_MS)
    assert log.segments.active.base_offset == 1
    assert content(log)[16:] == records[16:]


def test_a_crash_before_the_append_loses_the_pieces_alone() -> None:
    disk = SimDisk()
    log, records = new_log(disk), long()
    log.append_as_leader(batch(b"before"), 0, NOW_MS)
    exhaust(begin(log, records)[1])
    end = log.segments.active.size
    again = open_log(disk, settings=config())
    assert again.log_end_offset == 1 and again.segments.active.size == end
    again.append_as_leader(records, 0, NOW_MS)
    assert [len(each.to_bytes()) for each in all_batches(again)] == [end, len(records)]


operations = st.lists(
    st.sampled_from(["ahead", "step", "append", "short", "roll", "truncate", "end"]), max_size=30
)


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(operations)
def test_whatever_happens_meanwhile_the_log_is_the_same(names: list[str]) -> None:
    """Beside a log to which all is written at once: the same bytes, file by file."""
    log, other = new_log(), new_log()
    steps: Iterator[None] = iter(())
    records, ahead = long(), None
    for name in names:
        if name == "ahead":
            records = long()
            if (begun := log.begin_ahead(records)) is not None:
                ahead = begun
                log.check_ahead(ahead, NOW_MS, lambda: None)
                steps = log.write_ahead(ahead, NOW_MS)
        elif name == "step":
            next(steps, None)
        elif name == "end" and ahead is not None:
            log.end_ahead(ahead)
        for each in (log, other):
            if name == "append":
                each.append_as_leader(records, 0, NOW_MS)
            elif name == "short":
                each.append_as_leader(batch(b"s"), 0, NOW_MS)
            elif name == "roll":
                each.roll(NOW_MS)
            elif name == "truncate":
                each.truncate_to(each.end_below(max(0, each.log_end_offset - 1)), NOW_MS)
    exhaust(steps)
    if ahead is not None:
        log.end_ahead(ahead)
    assert [each.to_bytes() for each in all_batches(log)] == [
        each.to_bytes() for each in all_batches(other)
    ]
    assert content(log) == content(other)
