"""The clock of a test's cluster: real time, which may be moved on.

Owns `LiveClock`: the one queue of the timers of all machines, run by the reactor of the cluster's
process.

1. Time goes on as it does outside, ahead of it by what it was advanced.
2. To advance is to run all that falls due, timer by timer. Sockets have a turn after each step of
   it: a client's request is answered in between.
3. A paused machine's timers wait; those of one that is gone never run (`simulation/clock.py`).

Source: `twisted.internet.task.Clock`. Not here: the machines (`machine.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.simulation.clock import NodeClock, SimCall, SimClock, name_of

_STEP_SECONDS = 0.05
# A chain of calls that are due at once must not keep the sockets waiting for ever.
_MOST_CALLS = 10_000
_logger = Logger(namespace="replog.testing")


class LiveClock(SimClock):
    """`now`: seconds since it was made, as of the last event. `ran(machine)` is called after each
    of its calls, and after what a client sent it.
    """

    def __init__(self, reactor: Any) -> None:
        super().__init__()
        self.ahead = 0.0
        """seconds that it was advanced"""
        self.calendar_ahead = 0.0
        """seconds that only the calendar was"""
        self.fixed_ms: int | None = None
        """where the calendar stands"""
        self._reactor = reactor
        self._began = time.monotonic()
        self._wake: Any = None
        self._is_running = False
        self.failed = log_failure
        self.ran: Callable[[NodeClock], None] = nothing

    def _run(self, clock: NodeClock, call: SimCall) -> None:
        super()._run(clock, call)
        self.ran(clock)

    def refresh(self) -> float:
        """Reads the time, which everybody sees from now on."""
        self.now = max(self.now, time.monotonic() - self._began + self.ahead)
        return self.now

    @property
    def ahead_ms(self) -> int:
        """How far the calendar is ahead of the one outside."""
        if self.fixed_ms is not None:
            return self.fixed_ms - self.outside_ms()
        return int((self.ahead + self.calendar_ahead) * 1000)

    def outside_ms(self) -> int:
        """Of the calendar outside."""
        return time.time_ns() // 1_000_000

    def calendar_ms(self) -> int:
        """Of all machines."""
        return self.outside_ms() + self.ahead_ms if self.fixed_ms is None else self.fixed_ms

    def fix(self, at_ms: int | None) -> None:
        """The calendar stands; None: where it is."""
        self.fixed_ms = self.calendar_ms() if at_ms is None else at_ms

    def move_calendar(self, seconds: float) -> None:
        """The calendar alone."""
        self.calendar_ahead += seconds
        if self.fixed_ms is not None:
            self.fixed_ms += round(seconds * 1000)

    def slept(self, seconds: float) -> None:
        """The process did, of which nobody here is to know."""
        self._began += seconds

    def push(self, call: SimCall) -> None:
        super().push(call)
        if not self._is_running:
            self._wake_at(call.due)

    def _wake_at(self, due: float) -> None:
        delay = max(0.0, due - self.refresh())
        if self._wake is None:
            self._wake = self._reactor.callLater(delay, self._run_due)
        elif self._wake.getTime() > self._reactor.seconds() + delay:
            self._wake.reset(delay)

    def _run_due(self) -> None:
        """What is due now; what that makes due at once comes in a turn of its own."""
        self._wake = None
        self._run_some(self.refresh(), len(self.queue))

    def _run_some(self, until: float, most: int) -> None:
        self._is_running = True
        try:
            while most and self.step(until):
                most -= 1
        finally:
            self._is_running = False
            if self.queue:
                self._wake_at(self.queue[0][0])

    async def advance(self, seconds: float, between: Callable[[], None]) -> None:
        """Ends when all that falls due by then has run. `between()` is called before each step."""
        left = seconds
        while left > 0:
            between()
            step = min(left, _STEP_SECONDS)
            left -= step
            self.refresh()
            self.ahead += step
            if self.fixed_ms is not None:
                self.fixed_ms += round(step * 1000)
            self._run_some(self.now + step, _MOST_CALLS)
            await deferLater(self._reactor, 0)

    def stop(self) -> None:
        """Nothing runs any more."""
        self.queue.clear()
        if self._wake is not None and self._wake.active():
            self._wake.cancel()


def nothing(clock: NodeClock) -> None:
    """Nobody waits for what it did."""


def log_failure(clock: NodeClock, call: SimCall, error: BaseException) -> None:
    """A call of a machine that runs raised."""
    if not clock.dead:
        _logger.failure(
            "{machine}: {call} raised",
            Failure(error),
            machine=clock.name,
            call=name_of(call.function),
        )
