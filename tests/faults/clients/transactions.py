"""Transactional programs, whatever the library: one that writes, and one that reads, writes and
commits what it read with what it wrote.

1. A transaction is noted before it begins; that its commit is sent, before it is; its end, when the
   library returns. It is refused only where no commit was sent and its abort was answered.
2. What fails is aborted. Where that fails too a new producer takes the transactional id over, which
   ends what the one before left, and the program goes on from what is committed.
3. The last transaction, when the program is told to stop, has a value for each partition and is
   tried until it is committed: what was left undecided before is decided below it.
4. A call that does not return within `STUCK_SECONDS` ends the process, and who started it starts
   another: kafka-python (3.0.12) drops a request of a transaction whose coordinator's connection
   cannot be made, and waits for its answer without a limit.
"""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Protocol

from tests.faults.clients.job import Work
from twisted_broker.simulation.checks.history import Fate, copy_of

LIMIT_SECONDS, STUCK_SECONDS = 20, 30
STUCK = 75
"""The exit status of who is stuck."""
TIMEOUT_MS = 15_000
"""`transaction.timeout.ms`: longer than a fault takes, shorter than a round."""
MOST_PER_TRANSACTION = 25
IN_A_ROW = 10
"""Transactions that begin as soon as the one before has ended; then one pause for all of them."""
ABORTED_SHARE = 0.15
_AGAIN_SECONDS = 0.3

Place = tuple[str, int, str]
"""(topic, partition, value)"""


class Transactional(Protocol):
    """A library's producer under its transactional id, and its consumer. All calls wait, and raise
    an Exception of the library's.
    """

    def begin(self) -> None: ...

    def send(self, place: Place) -> None: ...

    def flush(self) -> None: ...

    def send_offsets(self) -> None:
        """Of what was read last, into the transaction."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def offsets(self) -> list[int]:
        """Of the transaction's sends, in order, as they were answered; -1 where one was not."""

    def read(self, most: int) -> list[tuple[int, str]]:
        """(partition, value)s; none after a moment without."""

    def rewind(self) -> None:
        """To what is committed."""

    def pause(self, seconds: float) -> None: ...

    def close(self) -> None:
        """Raises nothing, and returns soon."""


Open = Callable[[Work], Transactional]


def transact(work: Work, open_: Open) -> None:
    """Writes until it is told to stop."""
    begun = 0

    def step(program: Transactional) -> None:
        nonlocal begun
        if begun % IN_A_ROW == 0:
            program.pause(IN_A_ROW * work.job.pace_seconds)
        begun += 1
        _transaction(work, program, [(work.job.topic, *each) for each in work.records()])

    _run(work, open_, work.job.topic, step)


def copy(work: Work, open_: Open) -> None:
    """Passes on what is committed in `topic` to the same partition of `target`."""

    def step(program: Transactional) -> None:
        found = program.read(MOST_PER_TRANSACTION)
        if found:
            records = [
                (work.job.target, partition, copy_of(value, work.name()))
                for partition, value in found
            ]
            if not _transaction(work, program, records, reads=True):
                program.rewind()

    _run(work, open_, work.job.target, step)


def _run(work: Work, open_: Open, topic: str, step: Callable[[Transactional], None]) -> None:
    last_is_committed = False
    watch = _Watch()
    while not last_is_committed:
        program = None
        try:
            watch.step_began = time.monotonic()
            program = open_(work)
            while not work.enough.is_set():
                watch.step_began = time.monotonic()
                step(program)
            watch.step_began = time.monotonic()
            last = [(topic, number, work.name()) for number in range(work.job.partitions)]
            last_is_committed = _transaction(work, program, last, may_abort=False)
        except Exception as error:
            print(f"begins anew after {error!r}", flush=True)
            work.enough.wait(_AGAIN_SECONDS)
        finally:
            if program is not None:
                program.close()


def _transaction(
    work: Work,
    program: Transactional,
    records: Sequence[Place],
    may_abort: bool = True,
    reads: bool = False,
) -> bool:
    """Whether it is committed. Raises what the abort raised."""
    op, fate = work.recorder.begin(records), Fate.UNKNOWN
    committing = False
    try:
        try:
            program.begin()
            for each in records:
                program.send(each)
            if may_abort and work.chance() < ABORTED_SHARE:
                program.flush()
                raise _Aborts
            if reads:
                program.send_offsets()
            work.recorder.committing(op)
            committing = True
            program.commit()
            fate = Fate.ACKED
        except Exception as error:
            if not isinstance(error, _Aborts):
                print(f"aborts after {error!r}", flush=True)
            program.abort()
            if not committing:
                fate = Fate.REFUSED
    finally:
        work.recorder.end(op, fate, program.offsets() if fate is Fate.ACKED else [])
    return fate is Fate.ACKED


class _Watch(Thread):
    """Ends the process when a step takes too long."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.step_began = time.monotonic()
        self.start()

    def run(self) -> None:
        while (left := self.step_began + STUCK_SECONDS - time.monotonic()) > 0:
            time.sleep(left)
        print(f"stuck for {STUCK_SECONDS} s", flush=True)
        faulthandler.dump_traceback()
        os._exit(STUCK)


class _Aborts(Exception):
    """The program's own wish."""
