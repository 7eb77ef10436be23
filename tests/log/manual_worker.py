"""A disk worker that runs a job when it is told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted_broker.log.memory import InlineWorker

_INLINE = InlineWorker()


class ManualWorker:
    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[..., None]]] = []

    def submit(self, job: Callable[[], Any], done: Callable[..., None]) -> None:
        self.jobs.append((job, done))

    def side_by_side(self, jobs: Sequence[Callable[[], object]]) -> None:
        for job in jobs:
            job()

    def stop(self) -> None:
        self.jobs.clear()

    def run_one(self) -> None:
        if self.jobs:
            _INLINE.submit(*self.jobs.pop(0))

    def run_all(self) -> None:
        while self.jobs:
            self.run_one()
