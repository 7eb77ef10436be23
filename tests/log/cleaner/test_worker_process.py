"""The process that cleans: what goes there and back, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.batches import NOW_MS
from tests.log.cleaner.rounds import append, clean_log, new_log, plan, result_of, settings
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.cleaner import worker_process
from twisted_broker.log.cleaner.batch_filter import LastRecord
from twisted_broker.log.cleaner.cleaning import CannotBeCleaned, CleaningPlan, CleaningResult
from twisted_broker.log.cleaner.worker_process import (
    CleanerProcess,
    decode_answer,
    decode_plan,
    encode_error,
    encode_plan,
    encode_result,
)
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.log import Log
from twisted_broker.log.recovery import load_log
from twisted_broker.log.segment_file import OpenFiles
from twisted_broker.log.txn_index import AbortedTxn


class Worker:
    """A process, and what it reports."""

    def __init__(self) -> None:
        self.reports: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = SimpleQueue()
        self.process = CleanerProcess(lambda call, *values: self.reports.put((call, values)))
        self.found: list[tuple[CleaningResult | None, BaseException | None]] = []

    def run(self, todo: CleaningPlan) -> tuple[CleaningResult | None, BaseException | None]:
        self.process.submit(todo, 1e18, lambda *found: self.found.append(found))
        call, values = self.reports.get(timeout=30)
        call(*values)
        return self.found[-1]


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.process.stop()


def log_on_disk(path: Path) -> Log:
    return load_log(
        OpenFiles(OsFileSystem(), 16),
        str(path / "events-0"),
        TopicPartition("events", 0),
        None,
        settings(),
        wall_ms=NOW_MS,
    )


def filled(path: Path, count: int = 60) -> Log:
    log = log_on_disk(path)
    for number in range(count):
        append(log, (b"k%d" % (number % 3), b"v%d" % number))
    return log


def test_it_does_what_is_done_here(worker: Worker, tmp_path: Path) -> None:
    """The same files and the same result; one process serves all rounds."""
    here, there = filled(tmp_path / "here"), filled(tmp_path / "there")
    expected = result_of(here, plan(here))
    result, error = worker.run(plan(there))
    assert error is None and result == expected
    for name in sorted(os.listdir(here.directory)):
        if name.endswith(".cleaned"):
            content = Path(there.directory, name).read_bytes()
            assert Path(here.directory, name).read_bytes() == content
    first = worker.process._process
    assert worker.run(plan(there))[1] is None
    assert worker.process._process is first


def test_what_it_meets_comes_back(worker: Worker, tmp_path: Path) -> None:
    log = filled(tmp_path)
    todo = plan(log)
    result, error = worker.run(todo._replace(directory="/nowhere"))
    assert result is None and isinstance(error, FileNotFoundError)
    with open(log.segments.first.log.path, "r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    result, error = worker.run(todo)
    assert isinstance(error, CannotBeCleaned) and "is damaged" in str(error)


def test_a_process_that_somebody_killed_is_replaced(worker: Worker, tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert worker.run(plan(log))[1] is None
    process = worker.process._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert worker.run(plan(log))[1] is None


@pytest.mark.parametrize(
    "refusal",
    [
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),  # RLIMIT_NPROC
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", sys.executable),
    ],
)
def test_a_process_that_cannot_be_started_is_no_error_of_the_disk(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: OSError
) -> None:
    """The round is delayed: as an error of the log's files it would take the directory offline, or
    pass for a log that was deleted.
    """
    todo = plan(filled(tmp_path))

    def refused(*arguments: Any, **more: Any) -> None:
        raise refusal

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", refused)
        result, error = worker.run(todo)
    assert result is None and isinstance(error, InterruptedError)
    assert str(refusal) in str(error)
    assert worker.run(todo)[1] is None


def test_without_a_thread_a_round_is_delayed(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that never ends would keep retention from the log, and all others from being cleaned."""
    todo = plan(filled(tmp_path))

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        result, error = worker.run(todo)
    assert result is None and isinstance(error, InterruptedError)
    assert worker.run(todo)[1] is None


def test_it_ends_with_its_broker(worker: Worker, tmp_path: Path) -> None:
    """However the broker ends: its end of the pipe is closed then."""
    assert worker.run(plan(filled(tmp_path)))[1] is None
    process = worker.process._process
    assert process is not None and process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=30) == 0


def test_a_stop_ends_a_round(worker: Worker, tmp_path: Path) -> None:
    log = filled(tmp_path, 400)
    worker.process.submit(plan(log), 1.0, lambda *found: None)  # a byte a second
    worker.process.submit(plan(log), 1.0, lambda *found: None)
    worker.process.stop()
    assert worker.process._process is None


def test_an_ended_round_is_reported_and_the_next_one_runs(worker: Worker, tmp_path: Path) -> None:
    """At a byte a second it would last for hours. `end` may come before the process is there."""
    log = filled(tmp_path, 400)
    todo = plan(log)
    worker.process.submit(todo, 1.0, lambda *found: worker.found.append(found))
    worker.process.end()
    call, values = worker.reports.get(timeout=30)
    call(*values)
    result, error = worker.found[-1]
    assert result is None and isinstance(error, InterruptedError)
    assert worker.run(todo)[1] is None


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_round_that_runs_is_ended(worker: Worker, tmp_path: Path) -> None:
    """In the middle: it has a segment open, and waits for its rate."""
    log = filled(tmp_path, 400)
    todo = plan(log)
    assert worker.run(todo)[1] is None
    process = worker.process._process
    assert process is not None
    worker.process.submit(todo, 1.0, lambda *found: worker.found.append(found))
    deadline = time.monotonic() + 30
    while not opened(process.pid, log.segments.first.log.path):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    worker.process.end()
    call, values = worker.reports.get(timeout=30)
    call(*values)
    assert isinstance(worker.found[-1][1], InterruptedError)
    assert worker.run(todo)[1] is None


def opened(pid: int, path: str) -> bool:
    with contextlib.suppress(OSError):  # one was closed meanwhile
        return path in [os.readlink(each.path) for each in os.scandir(f"/proc/{pid}/fd")]
    return False


NUMBERS = st.integers(-1, 2**63 - 1)


@given(
    st.dictionaries(NUMBERS, st.tuples(NUMBERS, st.integers(0, 2**15 - 1)), max_size=5),
    st.lists(NUMBERS, max_size=5),
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=5),
    st.text(),
)
def test_a_plan_goes_there_whole(
    producers: dict[int, tuple[int, int]],
    uncertain: list[int],
    aborted: list[tuple[int, int, int, int]],
    name: str,
) -> None:
    log = new_log()
    for number in range(20):
        append(log, (b"a", b"%d" % number))
    todo = plan(log)
    todo = todo._replace(
        directory=name,
        last_records={number: LastRecord(*last) for number, last in producers.items()},
        uncertain=tuple(uncertain),
        aborted=tuple(AbortedTxn(*each) for each in aborted),
    )
    line = encode_plan(todo, 1.7976931348623157e308)
    assert "\n" not in line
    assert decode_plan(line) == (todo, 1.7976931348623157e308)


@pytest.mark.parametrize("count", [999, 1000, 1001])
def test_a_long_plan_is_encoded_in_pieces(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`json` lets nobody else run until it is done."""
    log = new_log()
    append(log, (b"a", b"1"))
    todo = plan(log)._replace(
        last_records={number: LastRecord(number, 0) for number in range(count)},
        uncertain=tuple(range(count)),
        aborted=tuple(AbortedTxn(number, 0, 1, 2) for number in range(count)),
    )
    longest: list[int] = []

    def dumps(value: Any) -> str:
        longest.append(len(value))
        return json.dumps(value)

    monkeypatch.setattr(worker_process, "json", SimpleNamespace(dumps=dumps))
    line = encode_plan(todo, 1.0)
    monkeypatch.undo()
    assert max(longest) == 500 and decode_plan(line) == (todo, 1.0)


def test_answers() -> None:
    log = new_log()
    for number in range(40):
        append(log, (b"a", b"%d" % number))
    result = result_of(log, plan(log))
    assert decode_answer(encode_result(result)) == result
    with pytest.raises(CannotBeCleaned, match="why"):
        decode_answer(encode_error(CannotBeCleaned("why")))
    with pytest.raises(OSError) as found:
        decode_answer(encode_error(OSError(errno.ENOSPC, "No space left on device", "/x")))
    assert (found.value.errno, found.value.filename) == (errno.ENOSPC, "/x")
    with pytest.raises(MemoryError):
        decode_answer(encode_error(MemoryError()))
    with pytest.raises(RuntimeError, match="KeyError"):
        decode_answer(encode_error(KeyError("x")))
    assert clean_log(log) == result.first_dirty
