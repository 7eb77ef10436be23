"""The world that the machines of a simulated cluster share: time, network, randomness, and a trace.

Owns `SimWorld` and `Trace`.

1. Use it as a context: then a failure that production code logs, or that a call raises, goes to
   `bug(text)`.
2. Clients have machines of their own, which no fault hits.

Not here: the brokers' machines (`simulation/node.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Self

from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher
from twisted.python.failure import Failure

from twisted_broker.interfaces import Runtime
from twisted_broker.simulation.clock import NodeClock, SimCall, SimClock
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Crash
from twisted_broker.simulation.network import NetworkConditions, SimNetwork
from twisted_broker.simulation.stalling_worker import StallingWorker


class Trace:
    """What happened, a line each; kept only when `wanted`."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.lines: list[str] = []

    def note(self, now: float, who: str, what: str) -> None:
        if self.wanted:
            self.lines.append(f"{now:11.6f} {who:8} {what}")


class SimWorld:
    """`after_step(clock)` is called after each call, `gone(machine)` for each process that ends;
    `bugs` are the failures so far.
    """

    def __init__(
        self, seed: int, conditions: NetworkConditions, *, shuffle: bool, trace: bool
    ) -> None:
        self.seed = seed
        self.random = Random(f"cluster {seed}")
        self.sim = SimClock(seed, shuffle)
        self.sim.after, self.sim.failed = self._after_call, self._raised
        self.network = SimNetwork(self.sim, Random(f"network {seed}"), conditions)
        self.trace = Trace(trace)
        self.after_step: Callable[[NodeClock], None] = lambda clock: None
        self.gone: Callable[[Any], None] = lambda node: None
        self.bugs: list[str] = []

    def __enter__(self) -> Self:
        globalLogPublisher.addObserver(self._logged)  # type: ignore[arg-type]
        return self

    def __exit__(self, *error: object) -> None:
        globalLogPublisher.removeObserver(self._logged)  # type: ignore[arg-type]

    def client_runtime(self, name: str) -> Runtime:
        """A machine for clients: never killed, without a disk."""
        clock = NodeClock(self.sim, name)
        network, random = self.network.switch_on(clock), Random(f"{self.seed} {name}")
        return Runtime(
            clock,
            clock.wall_ms,
            network,
            SimDisk(),
            lambda directory: StallingWorker(clock),
            random,
        )

    def run_until(self, when: float) -> None:
        self.sim.run_until(when)

    def note(self, who: str, what: str) -> None:
        self.trace.note(self.sim.now, who, what)

    def bug(self, text: str) -> None:
        self.note("bug", text)
        self.bugs.append(text)

    def _after_call(self, clock: NodeClock, call: SimCall) -> None:
        if self.trace.wanted:
            self.trace.note(self.sim.now, clock.name, repr(call))
        self.after_step(clock)

    def _raised(self, clock: NodeClock, call: SimCall, error: BaseException) -> None:
        if not clock.dead:
            self.bug(f"{clock.name}: {call!r} raised {Failure(error).getTraceback()}")

    def _logged(self, event: LogEvent) -> None:
        running = self.sim.running
        if running is None or running.dead:
            return
        failure = event.get("log_failure")
        if failure is not None and not failure.check(Crash):
            self.bug(f"{running.name} logged: {formatEvent(event)}\n{failure.getTraceback()}")
        elif self.trace.wanted and event["log_level"] >= LogLevel.info:
            self.note(running.name, f"log: {formatEvent(event)}")
