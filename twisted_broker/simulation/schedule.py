"""The schedule of a run: the actions of clients, of the administrator and of the faults.

Owns `Action`, `Actor` and `Schedule`.

1. An action has a generator of its own, made of the seed, its actor and its number: what it draws
   is the same whichever others are done.
2. A run records its actions as they begin. A run that is given actions does these alone, each at
   its time, or as soon as its actor is free; given all, it is the same run.
3. Everything else (delays, ties, what a loss of power leaves) is drawn by others.

Not here: what an action does (`Producer`, `Run`, `Faults`); which are kept
(`simulation/shrink.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Action:
    """The `number`th of an actor, from 1.

    `at`: the simulated second at which it begins; `what` is for a reader.
    """

    at: float
    actor: str
    number: int
    what: str = ""

    def __str__(self) -> str:
        return f"{self.at:.6f} {self.actor} {self.number} {self.what}".rstrip()

    @classmethod
    def of(cls, text: str) -> Action:
        """The action that `str` gave. Raises ValueError."""
        at, actor, number, *what = text.split(" ", 3)
        return cls(float(at), actor, int(number), *what)


class Actor:
    """One who acts, one action after another."""

    def __init__(self, schedule: Schedule, name: str, kept: Sequence[Action] | None) -> None:
        self.name, self._schedule = name, schedule
        self._kept = None if kept is None else deque(kept)
        self._number, self._at = 0, 0.0

    def next(self, now: float, gap: Callable[[Random], float]) -> tuple[float, Random] | None:
        """How long to wait for its next action, in seconds, and the generator of what it draws;
        None when it has no more.

        `gap`: draws the time between this action and the one before.
        """
        if self._kept is None:
            number, at = self._number + 1, None
        elif self._kept:
            found = self._kept.popleft()
            number, at = found.number, found.at
        else:
            return None
        self._number = number
        random = Random(f"{self._schedule.seed} {self.name} {number}")
        drawn = gap(random)
        # As precise as a file is, so that a run from a file is the run that was recorded.
        self._at = round(now + drawn, 6) if at is None else at
        return max(0.0, self._at - now), random

    def acts(self, what: str) -> None:
        """Its action begins."""
        self._schedule.done.append(Action(self._at, self.name, self._number, what))


class Schedule:
    """`kept`: what alone is done; None: all that is drawn. `done` is what began so far."""

    def __init__(self, seed: int, kept: Sequence[Action] | None = None) -> None:
        self.seed, self.kept = seed, kept
        self.done: list[Action] = []

    def actor(self, name: str) -> Actor:
        kept = None if self.kept is None else [each for each in self.kept if each.actor == name]
        return Actor(self, name, kept)
