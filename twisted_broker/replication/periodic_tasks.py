"""Tasks that run again and again on a clock.

1. A task that raises is logged and runs again: a bare `LoopingCall` would stop for good.
2. A run that comes late by more than half its interval is left out, and the next one comes a whole
   interval later: this process stood still, and what the others sent meanwhile is not read yet. A
   leader would else drop from the ISR everybody whom it could not hear.
3. The clock is the one handed in, never the global reactor.
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
        loop = _Rounds(self._clock, seconds, task).loop
        self._loops.append(loop)
        loop.start(seconds, now=False)

    def stop(self) -> None:
        for loop in self._loops:
            loop.stop()
        self._loops = []


class _Rounds:
    """One task: whether a run is in time, and what becomes of one that fails."""

    __slots__ = ("_clock", "_last", "_seconds", "_task", "loop")

    def __init__(self, clock: IClock, seconds: float, task: Callable[[], None]) -> None:
        self._clock, self._seconds, self._task = clock, seconds, task
        self._last = clock.seconds()
        self.loop = LoopingCall(self._run)
        self.loop.clock = clock  # type: ignore[assignment]

    def _run(self) -> None:
        now = self._clock.seconds()
        late, self._last = now - self._last - self._seconds, now
        if late > self._seconds / 2:
            self.loop.starttime = now
            return
        try:
            self._task()
        except Exception:
            _log.failure("a periodic task failed")
