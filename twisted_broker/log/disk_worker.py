"""A thread per log directory for slow disk calls: sync, recovery scan, removal.

Owns `DiskThread`, the port `IDiskWorker` in production.

1. Jobs run one after another in the order given; each reports once, on the reactor's thread, through the function handed in.
2. `stop` lets what was submitted finish.

Ring 2. Source: DESIGN.md 2. Left out: the twins (`memory.InlineWorker`, `testing/sim_disk.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]


class DiskThread:
    """`from_thread(call, *arguments)` is `reactor.callFromThread`. The thread starts with the first job."""

    def __init__(self, from_thread: Callable[..., Any], name: str = "disk") -> None:
        self._from_thread, self._name = from_thread, name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put((job, done))

    def stop(self) -> None:
        """Waits for the jobs already submitted; their results are still reported."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()

    def _run(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, done = entry
            try:
                result = job()
            except Exception as error:
                self._from_thread(done, None, error)
            else:
                self._from_thread(done, result, None)
