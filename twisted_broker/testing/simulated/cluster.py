"""The cluster of a simulated run, as its scenario sees it.

Owns `SimulatedCluster`: `AsyncCluster`'s names in virtual time, and programs, faults and notes.

Source: our own. Not here: what a cluster can do (`awaited.py`), a run (`run.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.python.failure import Failure

from twisted_broker.simulation.schedule import Schedule
from twisted_broker.testing.handles import in_seconds
from twisted_broker.testing.here import ClusterHere
from twisted_broker.testing.in_force import with_line
from twisted_broker.testing.running_cluster import RunningCluster
from twisted_broker.testing.simulated.controlled import Controlled
from twisted_broker.testing.simulated.faults import KINDS, DrawnFaults
from twisted_broker.testing.simulated.program import Note, Program
from twisted_broker.testing.simulated.virtual_world import VirtualWorld


class SimulatedCluster(ClusterHere):
    """What `simulate(kafka)` gets. `random`: of the seed, for the scenario's own choices."""

    def __init__(
        self,
        running: RunningCluster,
        world: VirtualWorld,
        controlled: Controlled,
        schedule: Schedule,
        note: Note,
    ) -> None:
        super().__init__(running)
        self._world, self._controlled = world, controlled
        self._schedule, self._note = schedule, note
        self.seed = schedule.seed
        self.random = Random(f"scenario {schedule.seed}")
        self.programs: dict[str, Program] = {}
        self._drawn = 0

    def _called(self, name: str, /, **arguments: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()

        def failed(failure: Failure) -> None:
            if not future.done():
                future.set_exception(failure.value or RuntimeError(str(failure)))

        def done(result: Any) -> None:
            if not future.done():
                future.set_result(result)

        ensureDeferred(self._running.call(name, with_line(name, arguments))).addCallbacks(
            done, failed
        )
        return future

    # what is the simulation's

    def start(
        self,
        name: str,
        program: Callable[..., Coroutine[Any, Any, Any]],
        *arguments: Any,
        restart: bool = True,
        **keywords: Any,
    ) -> Program:
        """Runs `await program(*arguments, **keywords)` on a machine called `name`. `restart`: also
        after it ended by itself. Raises ValueError: there is a machine of that name.
        """
        if name in self._world.network.names:
            raise ValueError(f"there is a machine {name!r} already: give the program another name")
        if not asyncio.iscoroutinefunction(program):
            raise ValueError(
                f"{program!r} is no coroutine function: give what asyncio.run() would be given"
            )
        made = self.programs[name] = Program(
            name,
            lambda: program(*arguments, **keywords),
            self._world.network,
            self._controlled,
            self._note,
            restart,
        )
        made.start()
        return made

    def faults(self, *kinds: str, every: str | float = "4s") -> DrawnFaults:
        """`async with kafka.faults():` draws faults from the seed, `every` so often in the mean.
        When it ends all is healed. `kinds`: some of `FAULTS`; none named: all. Raises ValueError.
        """
        for each in kinds:
            if each not in KINDS:
                raise ValueError(f"{each!r} is no fault: there are {', '.join(KINDS)}")
        self._drawn += 1
        actor = self._schedule.actor(f"faults{self._drawn}")
        return DrawnFaults(self, self._world.network, actor, kinds, in_seconds(every), self._note)

    def note(self, text: str) -> None:
        """A line of the scenario's own in the story of a run that fails."""
        self._note("scenario", text)


def settings_of(given: Mapping[str, object]) -> dict[str, str]:
    """As Kafka writes them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
    }
