"""Tasks that run again and again on a clock.

1. A task that raises is logged and runs again: a bare `LoopingCall` would stop for good.
2. With `skip_late`, a run that comes late by more than `ROUND_STALL` of its interval is left out,
   and the next one comes a whole interval later: this process did not run, and what the others sent
   meanwhile is not read yet. Otherwise a leader would remove from the ISR every follower that it
   could not hear.
3. The clock is the one handed in, never the global reactor.

Ring 1. Source: Kafka's `KafkaScheduler`.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from twisted_broker.interfaces import IClock
from twisted_broker.stall_tolerance import ROUND_STALL

_logger = Logger(namespace="replog")


class PeriodicTask:
    """One task. `name` is for the log line about a run that raised, or was slow."""

    __slots__ = ("_clock", "_last", "_loop", "_seconds", "_skip_late", "_task", "name")

    def __init__(
        self, clock: IClock, task: Callable[[], None], name: str, *, skip_late: bool = False
    ) -> None:
        self._clock, self._task, self.name, self._skip_late = clock, task, name, skip_late
        self._last = self._seconds = 0.0
        self._loop = LoopingCall(self._run)
        self._loop.clock = clock  # type: ignore[assignment]  # it needs only what IClock names

    @property
    def running(self) -> bool:
        return self._loop.running

    def start(self, seconds: float) -> None:
        """Runs every `seconds`, first in `seconds` from now."""
        self._seconds, self._last = seconds, self._clock.seconds()
        self._loop.start(seconds, now=False)

    def stop(self) -> None:
        """Harmless when it does not run."""
        if self._loop.running:
            self._loop.stop()

    def _run(self) -> None:
        now = self._clock.seconds()
        late, self._last = now - self._last - self._seconds, now
        if self._skip_late and late > self._seconds * ROUND_STALL:
            self._loop.starttime = now
            return
        try:
            self._task()
        except Exception:
            _logger.failure("{name} failed", name=self.name)


class PeriodicTasks:
    """A set of tasks that stop together."""

    __slots__ = ("_clock", "_tasks")

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._tasks: list[PeriodicTask] = []

    @property
    def running(self) -> bool:
        return bool(self._tasks)

    def every(
        self, seconds: float, task: Callable[[], None], name: str, *, skip_late: bool = False
    ) -> None:
        """Runs `task` every `seconds`, first in `seconds` from now."""
        made = PeriodicTask(self._clock, task, name, skip_late=skip_late)
        self._tasks.append(made)
        made.start(seconds)

    def stop(self) -> None:
        for each in self._tasks:
            each.stop()
        self._tasks = []
