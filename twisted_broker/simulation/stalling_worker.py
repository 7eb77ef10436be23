"""A disk worker on a simulated clock: its jobs take time, and it may stall.

Owns `StallingWorker`, the twin of `log/disk_worker.py`; jobs side by side run one after another
here. Not here: jobs that fail (`simulation/disk_faults.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from twisted_broker.interfaces import IClock
from twisted_broker.log.errors import WorkerStopped
from twisted_broker.log.memory import InlineWorker

T = TypeVar("T")
_INLINE = InlineWorker()


class StallingWorker:
    """A disk worker whose jobs take `delay_ms` of simulated time each, one after another;
    `stalled` holds all back. `in_job`: what a disk sees now is done by it (`SimDisk.is_in_worker`).
    """

    def __init__(self, clock: IClock, delay_ms: Callable[[], int] = lambda: 0) -> None:
        self._clock, self._delay_ms = clock, delay_ms
        self._jobs: list[tuple[Callable[[], object], Callable[..., None]]] = []
        self._running = self._is_stopped = False
        self.stalled = self.in_job = False

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    def submit(
        self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        if self._is_stopped:
            self._clock.callLater(0, done, None, WorkerStopped("the worker was stopped before"))
            return
        self._jobs.append((job, done))
        self._next()

    def side_by_side(self, jobs: Sequence[Callable[[], object]]) -> None:
        for job in jobs:
            job()

    def resume(self) -> None:
        """Ends a stall."""
        self.stalled = False
        self._next()

    def _next(self) -> None:
        if self._jobs and not self._running and not self.stalled:
            self._running = True
            self._clock.callLater(self._delay_ms() / 1000, self._run)

    def _run(self) -> None:
        self._running = False
        if self.stalled or not self._jobs:
            return
        job, done = self._jobs.pop(0)
        self._do(job, done)
        self._next()

    def _do(self, job: Callable[[], object], done: Callable[..., None]) -> None:
        _INLINE.submit(partial(self._in_job, job), done)

    def _in_job(self, job: Callable[[], T]) -> T:
        self.in_job = True
        try:
            return job()
        finally:
            self.in_job = False

    def stop(self) -> None:
        """Jobs that wait never run, nor what comes later."""
        self._is_stopped = True
        self._jobs.clear()
