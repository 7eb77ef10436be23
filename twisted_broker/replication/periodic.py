"""Tasks that run again and again on a clock.

1. A task that raises is logged and runs again: a bare `LoopingCall` would stop for good.
2. The clock is the one handed in, never the global reactor.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from twisted_broker.interfaces import IClock

_log = Logger()


class PeriodicTasks:
    """A set of tasks that stop together."""

    __slots__ = ("_clock", "_loops")

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._loops: list[LoopingCall] = []

    @property
    def running(self) -> bool:
        return bool(self._loops)

    def every(self, seconds: float, task: Callable[[], None]) -> None:
        """Runs `task` every `seconds`, first in `seconds` from now."""
        loop = LoopingCall(_guarded, task)
        loop.clock = self._clock  # type: ignore[assignment]
        self._loops.append(loop)
        loop.start(seconds, now=False)

    def stop(self) -> None:
        for loop in self._loops:
            loop.stop()
        self._loops = []


def _guarded(task: Callable[[], None]) -> None:
    try:
        task()
    except Exception:
        _log.failure("a periodic task failed")
