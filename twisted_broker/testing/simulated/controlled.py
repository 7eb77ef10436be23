"""The system as a simulated program sees it: time, chance, threads, sockets and processes.

Owns `Controlled`, which stands in front of the standard library from before the program's imports
(they bind functions as defaults) to the end of the process, and `NotSimulated`.

1. While a run (or the program's import) is `active`, time is the run's and chance is the seed's;
   else everything is as it was.
2. What would leave the simulation is refused with a line that names it: threads, processes, sockets
   of one's own, a sleep that holds the loop, clients whose threads are in C.
3. Files are the machine's: they are not controlled, and outlive a kill.

Source: our own; `time-machine` for the calendar, which is read in C. Not here: the event loop
(`loop.py`).
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from random import Random
from typing import Any

REFUSED_CLIENTS = {
    "confluent_kafka": "confluent-kafka works in threads of C, which no seed controls",
    "kafka": "kafka-python works in threads, which no seed controls",
}
_FIRST_NS = 1_700_000_000 * 10**9


class NotSimulated(BaseException):
    """The program did what no seed controls; `str()` says what, and what to do instead. No
    `Exception`: a program must not catch it.
    """


class _RefusedClients(MetaPathFinder):
    def __init__(self, refuse: Callable[[str], None]) -> None:
        self._refuse = refuse

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        if name in REFUSED_CLIENTS:
            self._refuse(f"import {name}: {REFUSED_CLIENTS[name]}; use aiokafka, or FastStream")


class _SeededRandom(Random):
    """`random.Random()` without a seed takes one of the run."""

    controlled: Controlled

    def __init__(self, x: Any = None) -> None:
        super().__init__(x)

    def seed(self, a: Any = None, version: int = 2) -> None:
        if a is None and self.controlled.active:
            a = self.controlled.drawn.getrandbits(64)
        super().seed(a, version)


class Controlled:
    """`seconds()` and `wall_ns()`: the run's; `drawn`: its chance; `refused`: what was refused
    first, "" if nothing was.
    """

    def __init__(self) -> None:
        self.active = False
        self.seconds: Callable[[], float] = lambda: 0.0
        self.wall_ns: Callable[[], int] = lambda: _FIRST_NS
        self.drawn = Random(0)
        self.refused = ""
        self._traveller: Any = None
        self._calendar: Any = None
        self._shown = 0

    # from when to when

    def install(self) -> None:
        """Before the program is imported. Raises ImportError: `time-machine` is missing."""
        import time_machine

        self._travel = time_machine.travel
        os.environ["AIOKAFKA_NO_EXTENSIONS"] = "1"  # its builder of batches in C reads the clock
        self._time()
        self._chance()
        self._refusals()

    def begin(self, seed: int) -> None:
        """All is the run's from now on."""
        self.drawn = Random(f"program {seed}")
        random.seed(f"random {seed}")
        self._shown = self.wall_ns()
        self._traveller = self._travel(self._shown / 10**9, tick=False)
        self._calendar = self._traveller.start()
        self.active = True

    def end(self) -> None:
        """All is as it was."""
        self.active = False
        self._traveller.stop()

    def show_time(self) -> None:
        """The calendar shows the time of the run: before each turn of a program."""
        now = self.wall_ns()
        if now != self._shown:
            self._shown = now
            self._calendar.move_to(now / 10**9, tick=False)

    def refuse(self, what: str) -> None:
        """Raises NotSimulated, while a run is active."""
        if self.active:
            self.refused = self.refused or what
            raise NotSimulated(what)

    # what is replaced

    def _time(self) -> None:
        for name in ("monotonic", "perf_counter"):
            self._replace_clock(name, getattr(time, name), getattr(time, f"{name}_ns"))
        slept = time.sleep

        def sleep(seconds: Any, /) -> None:
            self.refuse("time.sleep() holds every task of the program: use asyncio.sleep()")
            slept(seconds)

        time.sleep = sleep

    def _replace_clock(
        self, name: str, real: Callable[[], float], real_ns: Callable[[], int]
    ) -> None:
        def seconds() -> float:
            return self.seconds() if self.active else real()

        def nanoseconds() -> int:
            return int(self.seconds() * 10**9) if self.active else real_ns()

        setattr(time, name, seconds)
        setattr(time, f"{name}_ns", nanoseconds)

    def _chance(self) -> None:
        real = os.urandom

        def urandom(size: int, /) -> bytes:
            return self.drawn.randbytes(size) if self.active else real(size)

        os.urandom = urandom
        random._urandom = urandom  # type: ignore[attr-defined]
        _SeededRandom.controlled = self
        random.Random = _SeededRandom  # type: ignore[misc]
        # Both come from a library in C, which reads the clock and the network's card.
        uuid._generate_time_safe = None  # type: ignore[attr-defined]
        uuid._node = 1  # type: ignore[attr-defined]

    def _refusals(self) -> None:
        sys.meta_path.insert(0, _RefusedClients(self.refuse))
        self._guard(
            threading.Thread, "start", "a thread: run it in the event loop (asyncio.to_thread does)"
        )
        self._guard(
            subprocess.Popen, "__init__", "another process: it would not be in the simulation"
        )
        for name in ("connect", "connect_ex", "bind", "sendto"):
            self._guard(
                socket.socket, name, f"socket.{name}(): connect by the event loop, as aiokafka does"
            )

    def _guard(self, owner: Any, name: str, what: str) -> None:
        real = getattr(owner, name)

        def guarded(*arguments: Any, **keywords: Any) -> Any:
            self.refuse(what)
            return real(*arguments, **keywords)

        setattr(owner, name, guarded)
