"""Turns of the reactor that a broker's log calls slow (`reactor_watch.py`), and which of them count
against it.

1. More than `MOST_MS` of the processor's work in one turn is a fault, however busy the machine is.
2. A turn that waited that long for something else, a disk, is a fault only where nothing else
   explains it: a process that was stopped (SIGSTOP) worked as little, and beside others a disk is
   slow. Time in which others had the processor never counts.
3. Before a broker is ready, `STARTING_SECONDS` count: its modules are loaded then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from twisted_broker.reactor_watch import STARTING, STARTING_SECONDS

MOST_MS = 200
_LINE = re.compile(
    r"the reactor was busy for (?P<took>\d+) ms with (?P<what>.*) "
    r"\(processor (?P<worked>\d+) ms, waited for it (?P<waited>\d+) ms"
)


class SlowTurn(NamedTuple):
    """One line, times in ms."""

    took: int
    worked: int
    waited: int
    what: str

    @property
    def blocked(self) -> int:
        return self.took - self.worked - self.waited

    @property
    def most(self) -> int:
        """What it may have worked."""
        return int(STARTING_SECONDS * 1000) if self.what.startswith(STARTING) else MOST_MS

    def __str__(self) -> str:
        return (
            f"{self.took} ms with {self.what} (processor {self.worked}, waited for it "
            f"{self.waited}, blocked {self.blocked})"
        )


def slow_turns(log: Path) -> list[SlowTurn]:
    """All that the log of a process names."""
    if not log.exists():
        return []
    found = _LINE.finditer(log.read_text(errors="replace"))
    return [
        SlowTurn(int(each["took"]), int(each["worked"]), int(each["waited"]), each["what"])
        for each in found
    ]


def is_machine_idle() -> bool:
    """Whether fewer processes wanted a processor in the last minutes than there are."""
    return os.getloadavg()[1] < (os.cpu_count() or 1)


def too_slow(turns: Iterable[SlowTurn], is_idle: bool) -> list[SlowTurn]:
    """Those that count; `is_idle`: nothing but the brokers can have kept them waiting."""
    return [
        each
        for each in turns
        if each.worked > each.most or (is_idle and each.worked + each.blocked > each.most)
    ]
