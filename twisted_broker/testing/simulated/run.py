"""One run of a scenario under a seed, from empty disks to its result.

Owns `Scenario`, `run_seed` and `Outcome`.

1. A run is a function of the seed and of what is left of its faults: two processes have the same
   `digest`. It is made in a process of its own, which nothing outlives.
2. It fails when the scenario raises, when it is not finished after `most_seconds` of virtual time,
   or when a machine spins without a pause.
3. What the program does that no seed controls ends the run: it is `refused`, and proves nothing.

Source: our own. Not here: many seeds (`many.py`).
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher
from twisted.python.failure import Failure

from twisted_broker.simulation.clock import NodeClock, SimCall, name_of
from twisted_broker.simulation.schedule import Action, Schedule
from twisted_broker.start_checks import StartError
from twisted_broker.testing.running_cluster import RunningCluster
from twisted_broker.testing.simulated.cluster import SimulatedCluster, settings_of
from twisted_broker.testing.simulated.controlled import Controlled
from twisted_broker.testing.simulated.loop import SimulatedLoop
from twisted_broker.testing.simulated.virtual_world import VirtualClock, VirtualWorld

MOST_SECONDS = 3600.0
_MOST_STEPS_AT_ONCE = 200_000
_MOST_LINES = 2000
_SCENARIO = "test"
SETTINGS = {
    "replog.status.port": "-1",  # it would be a port of the system
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
}


@dataclass(frozen=True)
class Scenario:
    """`simulate(kafka)`, and the cluster that it gets."""

    simulate: Callable[[SimulatedCluster], Coroutine[Any, Any, None]]
    brokers: int = 3
    settings: Mapping[str, object] = field(default_factory=dict)
    topics: Mapping[str, int] = field(default_factory=dict)
    most_seconds: float = MOST_SECONDS


@dataclass(frozen=True)
class Outcome:
    """`failure`: "" when all went well; `seconds`: virtual; `story`: a line for each event;
    `actions`: the faults that were drawn.
    """

    seed: int
    failure: str
    refused: str
    seconds: float
    steps: int
    digest: str
    story: list[str]
    actions: list[Action]


class _Story(logging.Handler):
    """What happened, for people: what brokers and programs log, what programs print, and notes."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(logging.INFO)
        self._clock = clock
        self._said, self._begun = ("", ""), ""
        self.lines: list[str] = []

    def note(self, who: str, what: str) -> None:
        if (who, what) == self._said:  # clients repeat themselves for seconds
            return
        self._said = who, what
        self.lines.append(f"{self._clock.now:9.3f} {who:10} {what}")
        if len(self.lines) > _MOST_LINES:
            del self.lines[0]

    @property
    def _who(self) -> str:
        running = self._clock.running
        return _SCENARIO if running is None else running.name

    def logged(self, event: LogEvent) -> None:
        """By a broker."""
        if self._clock.running is not None and event["log_level"] >= LogLevel.info:
            self.note(self._who, formatEvent(event).splitlines()[0])

    def emit(self, record: logging.LogRecord) -> None:
        self.note(self._who, f"{record.levelname} {record.getMessage()}".splitlines()[0])

    def write(self, text: str) -> int:
        """As a file that is printed to."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if line.strip():
                self.note(self._who, line)
        return len(text)


class _Run:
    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        kept: Sequence[Action] | None,
        controlled: Controlled,
    ) -> None:
        self._scenario, self._controlled = scenario, controlled
        self.schedule = Schedule(seed, kept)
        world = self._world = VirtualWorld(seed)
        self.clock = world.clock
        self.story = _Story(self.clock)
        self.hashed = hashlib.sha256()
        self.clock.after = self._after
        self._at_once = 0
        controlled.seconds = lambda: self.clock.now
        # A program's own calendar goes on, also where that of the brokers stands.
        controlled.wall_ns = lambda: (
            (self.clock.outside_ms() + int(self.clock.calendar_ahead * 1000)) * 10**6
        )

    def _after(self, machine: NodeClock, call: SimCall) -> None:
        self.hashed.update(f"{self.clock.now!r} {machine.name} {name_of(call.function)}\n".encode())

    def run(self) -> str:
        """Why it failed, "" if it did not."""
        globalLogPublisher.addObserver(self.story.logged)  # type: ignore[arg-type]
        logging.getLogger().addHandler(self.story)
        self._controlled.begin(self.schedule.seed)
        try:
            with redirect_stdout(self.story), redirect_stderr(self.story):
                return self._run()
        finally:
            self._controlled.end()
            globalLogPublisher.removeObserver(self.story.logged)  # type: ignore[arg-type]

    def _run(self) -> str:
        scenario, world = self._scenario, self._world
        settings = {**SETTINGS, **settings_of(scenario.settings)}
        try:
            running = RunningCluster(
                scenario.brokers, settings, None, scenario.topics, world.made_for
            )
        except StartError as error:
            return str(error)
        found: list[Any] = []
        ensureDeferred(running.start()).addBoth(found.append)
        lack = self._until(lambda: bool(found), "the cluster has not started")
        if lack or isinstance(found[0], Failure):
            return lack or str(found[0].value)
        self.story.lines.clear()  # every run starts alike
        kafka = SimulatedCluster(running, world, self._controlled, self.schedule, self.story.note)
        machine = NodeClock(self.clock, _SCENARIO)
        world.network.names.add(_SCENARIO)
        loop = SimulatedLoop(
            machine, world.network, self._controlled, partial(self.story.note, "scenario")
        )
        tasks: list[asyncio.Task[None]] = []
        loop.call_soon(lambda: tasks.append(loop.create_task(scenario.simulate(kafka))))
        lack = self._until(lambda: bool(tasks) and tasks[0].done(), "simulate() has not returned")
        if lack or self._controlled.refused:
            return lack
        raised = tasks[0].exception()
        return "" if raised is None else "".join(traceback.format_exception(raised)).rstrip()

    def _until(self, is_done: Callable[[], bool], lack: str) -> str:
        clock, ends = self.clock, self._scenario.most_seconds
        at, since = clock.now, clock.steps
        while not is_done() and not self._controlled.refused:
            if not clock.step(ends):
                return f"{lack} after {ends:g} s"
            if clock.now != at:
                at, since = clock.now, clock.steps
            elif clock.steps - since > _MOST_STEPS_AT_ONCE:
                return f"a program spins: {_MOST_STEPS_AT_ONCE} turns without a wait"
        return ""

    def digest(self) -> str:
        """Of all steps, and of all that went between clients and brokers."""
        for frame in self._world.network.trace.frames:
            self.hashed.update(frame.content)
        return self.hashed.hexdigest()[:16]


def run_seed(
    scenario: Scenario, seed: int, controlled: Controlled, kept: Sequence[Action] | None = None
) -> Outcome:
    """`kept`: the faults that alone are done; None: all that are drawn."""
    gc.disable()  # what a dead process left must not run when the collector happens to come by
    run = _Run(scenario, seed, kept, controlled)
    failure = run.run()
    return Outcome(
        seed,
        failure,
        controlled.refused,
        run.clock.now,
        run.clock.steps,
        run.digest(),
        run.story.lines,
        run.schedule.done,
    )
