"""Simulated time for several machines.

Owns `SimClock`, the one queue of all scheduled calls, and `NodeClock`, the `IReactorTime` of one
machine.

1. Calls run one at a time, by due time. Calls due together run in the order of scheduling, or in an
   order that the seed draws (`shuffle`).
2. Every call belongs to a machine. One that was switched off runs none of its calls; a paused one
   runs them when it resumes.
3. After each call `after(machine, call)` is called; nothing else ever runs.
4. Monotonic time is the same everywhere; each machine's calendar (`wall_ms`) has its own skew.

Source: the simulations of FoundationDB and TigerBeetle; `twisted.internet.task.Clock`, whose
`advance` runs late what was due early. Not here: what the calls do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any

from twisted.internet.error import AlreadyCalled, AlreadyCancelled

from twisted_broker.simulation.disk_faults import Crash

START_WALL_MS = 1_700_000_000_000


class SimCall:
    """A timer that was set: Twisted's `IDelayedCall`."""

    __slots__ = (
        "arguments",
        "called",
        "cancelled",
        "clock",
        "due",
        "entry",
        "function",
        "keywords",
    )

    def __init__(
        self,
        clock: NodeClock,
        due: float,
        function: Callable[..., Any],
        arguments: Any,
        keywords: Any,
    ) -> None:
        self.clock, self.due = clock, due
        self.function, self.arguments, self.keywords = function, arguments, keywords
        self.called = self.cancelled = False
        self.entry = 0

    def getTime(self) -> float:
        return self.due

    def active(self) -> bool:
        return not (self.called or self.cancelled)

    def cancel(self) -> None:
        self._check()
        self.cancelled = True

    def reset(self, seconds_from_now: float) -> None:
        self._check()
        self.due = self.clock.sim.now + seconds_from_now
        self.clock.sim.push(self)

    def delay(self, seconds_later: float) -> None:
        self._check()
        self.due += seconds_later
        self.clock.sim.push(self)

    def _check(self) -> None:
        if self.cancelled:
            raise AlreadyCancelled
        if self.called:
            raise AlreadyCalled

    def __repr__(self) -> str:
        return name_of(self.function)


class NodeClock:
    """The clock of one machine, from switching it on to switching it off."""

    def __init__(self, sim: SimClock, name: str, skew_ms: int = 0) -> None:
        self.sim, self.name, self.skew_ms = sim, name, skew_ms
        self.dead = self.paused = False
        self._held: list[SimCall] = []

    def seconds(self) -> float:
        return self.sim.now

    def wall_ms(self) -> int:
        return START_WALL_MS + self.skew_ms + int(self.sim.now * 1000)

    def callLater(
        self, delay: float, call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> SimCall:
        assert delay >= 0, delay
        timer = SimCall(self, self.sim.now + delay, call, args, kwargs)
        if not self.dead:
            self.sim.push(timer)
        return timer

    def getDelayedCalls(self) -> list[SimCall]:
        return [
            entry[3]
            for entry in sorted(self.sim.queue, key=lambda entry: entry[:3])
            if entry[3].clock is self and entry[3].active()
        ]

    def switch_off(self) -> None:
        """Nothing runs here any more."""
        self.dead = True
        self._held.clear()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """What fell due meanwhile runs now, in its order."""
        self.paused = False
        held, self._held = self._held, []
        for call in held:
            if call.active():
                call.due = self.sim.now
                self.sim.push(call)

    def hold(self, call: SimCall) -> None:
        self._held.append(call)


class SimClock:
    """`shuffle`: calls due at the same time run in a drawn order.

    `after` may raise to end the run.
    """

    def __init__(self, seed: int = 0, shuffle: bool = False) -> None:
        self.now = 0.0
        self.queue: list[tuple[float, float, int, SimCall]] = []
        self.steps = 0
        self.running: NodeClock | None = None
        self.after: Callable[[NodeClock, SimCall], None] = lambda clock, call: None
        self.failed: Callable[[NodeClock, SimCall, BaseException], None] = _raise
        self._draw = Random(f"clock {seed}").random if shuffle else None
        self._count = 0

    def push(self, call: SimCall) -> None:
        self._count = call.entry = count = self._count + 1
        drawn = 0.0 if self._draw is None else self._draw()
        heappush(self.queue, (call.due, drawn, count, call))

    def step(self, until: float) -> bool:
        """Runs the next call that is due by `until`; False when there is none (the time is
        `until` then).
        """
        queue = self.queue
        while queue and queue[0][0] <= until:
            due, _, entry, call = heappop(queue)
            clock = call.clock
            # A call that was reset is in the heap twice; only its newest entry counts.
            if call.cancelled or call.entry != entry or clock.dead:
                continue
            if clock.paused:
                clock.hold(call)
                continue
            # A call that a pause held back is due in the past; time never goes back.
            if due > self.now:
                self.now = due
            self._run(clock, call)
            return True
        self.now = max(self.now, until)
        return False

    def _run(self, clock: NodeClock, call: SimCall) -> None:
        call.called = True
        self.steps += 1
        self.running = clock
        try:
            call.function(*call.arguments, **call.keywords)
        except (Exception, Crash) as error:  # a Crash is no Exception: no handler may swallow it
            self.failed(clock, call, error)
        finally:
            self.running = None
        self.after(clock, call)

    def run_until(self, when: float) -> None:
        while self.step(when):
            pass


def _raise(clock: NodeClock, call: SimCall, error: BaseException) -> None:
    raise error


def name_of(function: Callable[..., Any]) -> str:
    """What a call is called in a trace: never an address."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", None) or type(function).__qualname__
