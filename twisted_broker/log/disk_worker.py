"""A thread for slow disk calls of a log directory: syncs, recovery, removals, reads.

Owns `DiskThread`, the port `IDiskWorker` in production.

1. Jobs run one after another in the order given; each reports once, in that order, on the reactor's
   thread, through the function handed in.
2. `stop` lets what was submitted finish. What comes later is not done, for the directory may be
   another process's by then; it is reported as `WorkerStopped`, in a later turn as ever.
3. Reports that come while the reactor is busy wake it once, not once each: a thousand new logs are
   a thousand jobs. One turn delivers for `_TURN_SECONDS`; the others follow in the next.
4. What one job wants done `side_by_side` runs on a few threads of their own and is done when the
   job goes on.
5. Where the system has no thread to give, a first job fails (EAGAIN) and the next one asks again;
   what is to be done `side_by_side` is done by those that there are.

Ring 2. Source: docs/ARCHITECTURE.md 7. Not here: its doubles in memory (`memory.InlineWorker`,
`simulation/disk.py`).
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import perf_counter
from typing import Any, TypeVar

from twisted.logger import Logger

from twisted_broker.interfaces import Marks
from twisted_broker.log.errors import WorkerStopped

T = TypeVar("T")
_Report = Callable[[Any, BaseException | None], None]
_Job = tuple[Callable[[], Any], _Report]
# More threads do not make one disk faster; syncs of small files wait for its latency.
_THREADS = 8
_TURN_SECONDS = 0.005
_logger = Logger()


class DiskThread:
    """`from_thread(call, *arguments)` is `reactor.callFromThread`.

    The thread starts with the first job.
    """

    def __init__(
        self,
        from_thread: Callable[..., Any],
        name: str = "disk",
        marks: Marks | None = None,
        seconds: Callable[[], float] = perf_counter,
    ) -> None:
        self._from_thread, self._name, self._seconds = from_thread, name, seconds
        self._marks = marks or Marks()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._reports: deque[tuple[_Report, Any, BaseException | None]] = deque()
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def submit(
        self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        if self._is_stopped:
            # A thread that starts now nobody would end.
            self._queue_report(done, None, WorkerStopped(f"{self._name} was stopped before"))
            return
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # The system has none to give. This job failed; the next one asks again.
                self._queue_report(done, None, OSError(errno.EAGAIN, str(error), self._name))
                return
            self._thread = thread
        self._jobs.put((job, done))

    def stop(self) -> None:
        """Waits for the jobs already submitted; their results are still reported."""
        self._is_stopped = True
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()

    def side_by_side(self, jobs: Sequence[Callable[[], object]]) -> None:
        """Runs all, in any order; raises the first error when all have ended.

        Only within a job: syncs of many files cost one wait each otherwise.
        """
        todo, errors = deque(jobs), list[Exception]()
        threads: list[threading.Thread] = []
        for _ in jobs[:_THREADS]:
            thread = threading.Thread(
                target=_work_off, args=(todo, errors), name=self._name, daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                _work_off(todo, errors)  # the system has no more to give: this one does the rest
                break
            threads.append(thread)
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def _run(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, report = entry
            try:
                result = job()
            except Exception as error:
                self._queue_report(report, None, error)
            else:
                self._queue_report(report, result, None)
            del entry, job, report  # what a job holds is not kept until the next one

    def _queue_report(self, report: _Report, result: Any, error: BaseException | None) -> None:
        self._reports.append((report, result, error))
        # One wake-up of the reactor for all reports that come until it runs.
        if len(self._reports) == 1:
            self._from_thread(self._deliver)

    def _deliver(self) -> None:
        """On the reactor's thread.

        A report leaves the queue last, so that one that comes meanwhile wakes nobody; what it
        raises stops no other.
        """
        reports, until = self._reports, self._seconds() + _TURN_SECONDS
        while reports:
            if self._seconds() >= until:
                self._from_thread(self._deliver)
                return
            report, result, error = reports[0]
            self._marks.what = report
            try:
                report(result, error)
            except Exception:
                _logger.failure("the callback of a disk job failed")
            reports.popleft()


def _work_off(todo: deque[Callable[[], object]], errors: list[Exception]) -> None:
    while True:
        try:
            job = todo.popleft()
        except IndexError:
            # Another thread took the last one.
            return
        try:
            job()
        except Exception as error:
            errors.append(error)
