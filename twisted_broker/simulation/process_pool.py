"""Work in several processes, for the long runs of tests: each item in a forked process, a few at a
time.

Owns `run_all` and `Died`.

1. A process that dies, raises or takes longer than its limit costs its item only; another process
   takes its place.
2. Ctrl-C reaches the caller alone: the processes ignore it, and are ended when the caller leaves.
   One that was killed ends nothing: they leave themselves, each behind its item.
3. Forked, so what the caller patched holds in the processes, too.

Not here: what the work is (`simulation/many_seeds.py`).
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")
_FORK = get_context("fork")
_TICK_SECONDS = 0.5


class Died(NamedTuple):
    """No result came: the process raised, died, or was ended at its limit."""

    why: str


class _Worker(Generic[T]):
    """One process and what it works on."""

    def __init__(self, work: Callable[[T], Any]) -> None:
        self.connection, far = _FORK.Pipe()
        self.process = _FORK.Process(target=_serve, args=(far, work, os.getpid()), daemon=True)
        self.process.start()
        far.close()
        self.item: T
        self.began = 0.0

    def give(self, item: T) -> None:
        self.item, self.began = item, time.monotonic()
        self.connection.send(item)

    def take(self) -> Any:
        """The result, or how it died."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.end()
            return Died(f"the process ended with status {self.process.exitcode}")

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def run_all(
    items: Iterable[T],
    work: Callable[[T], R],
    jobs: int,
    limit_seconds: float,
    each_its_own: bool = False,
) -> Generator[tuple[T, R | Died] | None, None, None]:
    """Each item with what `work` made of it, in the order of finishing; None every half second.

    `limit_seconds`: of one item; `each_its_own`: no process works on a second item. Close the
    iterator to end the processes.
    """
    left = iter(items)
    busy: dict[Connection, _Worker[T]] = {}

    def give_next(worker: _Worker[T] | None = None) -> None:
        item = next(left, None)
        if item is None:
            if worker is not None:
                worker.end()
            return
        if worker is None or not worker.process.is_alive():
            worker = _Worker(work)
        busy[worker.connection] = worker
        worker.give(item)

    try:
        for _ in range(jobs):
            give_next()
        while busy:
            for connection in wait(list(busy), _TICK_SECONDS):
                worker = busy.pop(connection)  # type: ignore[call-overload]
                item, result = worker.item, worker.take()
                if each_its_own:
                    worker.end()
                give_next(worker)
                yield item, result
            for worker in [each for each in busy.values() if _age(each) > limit_seconds]:
                del busy[worker.connection]
                worker.end()
                give_next()
                yield worker.item, Died(f"not finished after {limit_seconds:.0f} s")
            yield None
    finally:
        for worker in busy.values():
            worker.end()


def _age(worker: _Worker[Any]) -> float:
    return time.monotonic() - worker.began


def _serve(connection: Connection, work: Callable[[Any], Any], caller: int) -> None:
    """The process: takes items until the caller is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            # Its end of the pipe is open in the processes that were forked behind this one, too.
            while not connection.poll(_TICK_SECONDS):
                if os.getppid() != caller:
                    return
            item = connection.recv()
        except (EOFError, OSError):
            return
        try:
            result = work(item)
        except Exception:
            result = Died(traceback.format_exc())
        try:
            connection.send(result)
        except OSError:
            return
