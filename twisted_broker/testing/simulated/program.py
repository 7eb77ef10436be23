"""A program under test: a process on a machine of its own.

Owns `Program`.

1. Killed, its connections are reset and nothing of it runs any more. It knows nothing when it is
   started again: it is the same function, called anew. Files and modules' globals are not its own.
2. One that ends is started again after a pause that doubles, as Kubernetes does; unless `restart`
   is off.

Source: our own. Not here: when it is killed (`faults.py`).
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from twisted_broker.simulation.clock import NodeClock
from twisted_broker.testing.live_network import LiveNetwork
from twisted_broker.testing.simulated.controlled import Controlled, NotSimulated
from twisted_broker.testing.simulated.loop import SimulatedLoop

_RESTART_SECONDS, _MOST_RESTART_SECONDS = 1.0, 30.0
Note = Callable[[str, str], None]
"""who, and what"""


class Program:
    """`work()` makes the coroutine that it runs. `exits`: how it ended by itself, each time: "" in
    order, else its exception.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], Coroutine[Any, Any, Any]],
        network: LiveNetwork,
        controlled: Controlled,
        note: Note,
        restart: bool,
    ) -> None:
        self.name, self.exits = name, list[str]()
        self._work, self._network, self._controlled = work, network, controlled
        self._note, self._restart = note, restart
        self._loop: SimulatedLoop | None = None
        self._supervisor = NodeClock(network.sim, f"{name} supervisor")
        # What a dead process left: freed, its `finally` blocks would run.
        self._graves: list[SimulatedLoop] = []
        self._main: asyncio.Task[Any] | None = None
        self._pause = _RESTART_SECONDS
        network.names.add(name)

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def start(self) -> None:
        """Nothing for one that runs."""
        if self._loop is not None:
            return
        self._note(self.name, "starts")
        clock = NodeClock(self._network.sim, self.name)
        self._loop = SimulatedLoop(
            clock, self._network, self._controlled, partial(self._note, self.name)
        )
        self._loop.on_exit = lambda reason: self._ended(f"SystemExit: {reason}")
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        assert self._loop is not None
        self._main = self._loop.create_task(self._work(), name=self.name)
        self._main.add_done_callback(self._done)

    def kill(self) -> None:
        """Nothing for one that does not run."""
        if self._loop is not None:
            self._note(self.name, "is killed")
            self._end()

    def _end(self) -> None:
        assert self._loop is not None
        self._loop.clock.switch_off()
        self._network.switch_off(self.name, silent=False)
        self._graves.append(self._loop)
        self._loop = None

    def _done(self, main: asyncio.Task[Any]) -> None:
        error = main.exception() if not main.cancelled() else asyncio.CancelledError()
        if not isinstance(error, NotSimulated):
            self._ended("" if error is None else _text_of(error))

    def _ended(self, why: str) -> None:
        if self._loop is None:
            return
        self.exits.append(why)
        self._note(self.name, f"ends: {why}" if why else "ends")
        self._end()
        if self._restart:
            self._supervisor.callLater(self._pause, self.start)
            self._pause = min(self._pause * 2, _MOST_RESTART_SECONDS)


def _text_of(error: BaseException) -> str:
    """With the line that raised it."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
