"""A process that cleans logs, so that no thread takes the interpreter from the reactor.

Owns `CleanerProcess`, the broker's end, and `main`, the process.

1. A round goes there as one line of JSON and comes back as one; the process knows the files and
   nothing else.
2. It starts with the first round and ends with the broker, however that ends: its standard input is
   closed then, and it stops at once, in the middle of a round.
3. Where it cannot be started, or is killed, the round is only delayed (InterruptedError). So is one
   for which there is not enough memory (MemoryError).
4. It has a lower priority than the broker, and keeps to `log.cleaner.io.max.bytes.per.second` as it
   was when the round began: `end` kills it, and the next round has the new rate.

Ring 2. Source: our own; Apache Kafka has threads. Not here: the round (`cleaning.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from itertools import islice
from queue import SimpleQueue
from typing import IO, Any

from twisted_broker.log.cleaner.batch_filter import LastRecord
from twisted_broker.log.cleaner.cleaning import (
    CannotBeCleaned,
    CleanedGroup,
    CleaningPlan,
    CleaningResult,
    SegmentPart,
    clean,
)
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.txn_index import AbortedTxn

_Done = Callable[[CleaningResult | None, BaseException | None], None]
_NICE = 5
_ROWS_AT_ONCE = 500


class CleanerProcess:
    """`from_thread(call, *arguments)` is `reactor.callFromThread`."""

    def __init__(self, from_thread: Callable[..., Any]) -> None:
        self._from_thread = from_thread
        self._jobs: SimpleQueue[tuple[CleaningPlan, float, _Done] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None
        self._is_stopped = self._is_ended = False

    def submit(self, plan: CleaningPlan, bytes_per_second: float, done: _Done) -> None:
        """Runs the round; later calls `done` on the reactor's thread."""
        self._is_ended = False
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="cleaner", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self._from_thread(done, None, _not_started(error))
                return
            self._thread = thread
        self._jobs.put((plan, bytes_per_second, done))

    def end(self) -> None:
        """Ends the process; the next round starts another."""
        self._is_ended = True
        self._kill()

    def _kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """Ends the process at once."""
        self._is_stopped = True
        self._kill()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            plan, bytes_per_second, done = job
            try:
                result = self._exchange(encode_plan(plan, bytes_per_second))
            except Exception as error:
                self._from_thread(done, None, error)
            else:
                self._from_thread(done, result, None)
        self._end()

    def _exchange(self, line: str) -> CleaningResult:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._start()
        if self._is_stopped or self._is_ended:
            # `stop` or `end` may have come before there was a process to kill.
            self._end()
            raise InterruptedError("the round was ended before it began")
        assert process.stdin is not None and process.stdout is not None
        answer = ""
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            # It was killed: said below.
            pass
        if not answer:
            self._end()
            raise InterruptedError("the process that cleans logs was ended")
        return decode_answer(answer)

    def _start(self) -> subprocess.Popen[str]:
        if self._is_stopped:
            raise InterruptedError("the broker stops")
        try:
            return subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                # What a terminal sends to the broker's group (Ctrl-C) is the broker's affair.
                start_new_session=True,
            )
        except OSError as error:
            raise _not_started(error) from error

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was not written yet has no reader
                        pipe.close()


def _not_started(error: Exception) -> InterruptedError:
    """Of a system that has no process, no thread or no memory to give, or whose Python is gone: no
    matter of the log's files. The round comes again.
    """
    return InterruptedError(f"the process that cleans logs cannot be started: {error}")


# -- what goes to the process and back


def encode_plan(plan: CleaningPlan, bytes_per_second: float) -> str:
    """One line."""
    values = {"bytes_per_second": bytes_per_second, **plan._asdict()}
    rows: dict[str, Iterable[Any]] = {
        "segments": plan.segments,
        "aborted": plan.aborted,
        "last_records": ([number, *last] for number, last in plan.last_records.items()),
        "uncertain": plan.uncertain,
    }
    for name in rows:
        del values[name]
    long = "".join(f', "{name}": [{_in_pieces(each)}]' for name, each in rows.items())
    return json.dumps(values)[:-1] + long + "}"


def _in_pieces(rows: Iterable[Any]) -> str:
    """Elements of an array. The reactor may go on between two pieces: `json` has the interpreter to
    itself until it is done.
    """
    left = iter(rows)
    pieces = iter(lambda: list(islice(left, _ROWS_AT_ONCE)), [])
    return ", ".join(json.dumps(piece)[1:-1] for piece in pieces)


def decode_plan(line: str) -> tuple[CleaningPlan, float]:
    """The plan and its bytes per second."""
    values = json.loads(line)
    bytes_per_second = values.pop("bytes_per_second")
    values["segments"] = tuple(SegmentPart(*each) for each in values["segments"])
    values["aborted"] = tuple(AbortedTxn(*each) for each in values["aborted"])
    values["last_records"] = {number: LastRecord(*last) for number, *last in values["last_records"]}
    values["uncertain"] = tuple(values["uncertain"])
    return CleaningPlan(**values), bytes_per_second


def encode_result(result: CleaningResult) -> str:
    """One line."""
    return json.dumps(result._asdict())


def encode_error(error: Exception) -> str:
    """One line, from which `decode_answer` raises an equivalent error."""
    if isinstance(error, CannotBeCleaned):
        return json.dumps({"cannot": str(error)})
    if isinstance(error, MemoryError):
        return json.dumps({"memory": str(error)})
    if isinstance(error, OSError):
        return json.dumps(
            {"errno": error.errno, "text": error.strerror, "path": str(error.filename)}
        )
    return json.dumps({"unexpected": repr(error)})


def decode_answer(line: str) -> CleaningResult:
    """Raises CannotBeCleaned, MemoryError, OSError, RuntimeError as the process met them."""
    values = json.loads(line)
    if "cannot" in values:
        raise CannotBeCleaned(values["cannot"])
    if "memory" in values:
        raise MemoryError(values["memory"])
    if "errno" in values:
        raise OSError(values["errno"], values["text"], values["path"])
    if "unexpected" in values:
        raise RuntimeError(values["unexpected"])
    values["groups"] = tuple(CleanedGroup(tuple(bases), size) for bases, size in values["groups"])
    return CleaningResult(**values)


# -- the process


def main(lines: IO[str], answers: IO[str]) -> None:
    """Cleans what each line of `lines` says, until they end."""
    os.nice(_NICE)
    rounds: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        for line in lines:
            rounds.put(line)
        os._exit(0)  # the broker is gone, or does not want the round any more

    threading.Thread(target=read, daemon=True).start()
    files = OsFileSystem()
    while True:
        plan, bytes_per_second = decode_plan(rounds.get())
        try:
            answer = encode_result(_clean(files, plan, bytes_per_second))
        except Exception as error:
            answer = encode_error(error)
        answers.write(answer + "\n")
        answers.flush()


def _clean(files: OsFileSystem, plan: CleaningPlan, bytes_per_second: float) -> CleaningResult:
    began, count = time.monotonic(), 0
    for found in clean(files, plan):
        if isinstance(found, CleaningResult):
            return found
        count += found
        ahead = count / bytes_per_second - (time.monotonic() - began)
        if ahead > 0:
            time.sleep(ahead)
    raise AssertionError("a round ends with its result")


if __name__ == "__main__":
    main(sys.stdin, sys.stdout)
