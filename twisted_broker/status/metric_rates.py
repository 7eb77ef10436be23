"""Rates between two scrapes. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `Rates`: the counts at the scrape before.

1. Two looks less than a second apart see the same: several who scrape do not make each other's
   rates of a few milliseconds.
2. The program names the counts; one is forgotten when nobody looks at it any more.

Source: our own; Kafka's meters and sensors average over time instead. Not here: totals, of which
Prometheus makes rates itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

_LEAST_MS = 1000


class Rates:
    """`begin` first in each scrape."""

    __slots__ = ("_before", "_begun_ms", "_elapsed_ms", "_is_new", "_now", "_rates")

    def __init__(self) -> None:
        self._before: dict[Hashable, float] = {}
        self._now: dict[Hashable, float] = {}
        self._rates: dict[Hashable, float | None] = {}
        self._begun_ms: int | None = None
        self._elapsed_ms = 0
        self._is_new = False

    def begin(self, now_ms: int) -> None:
        elapsed_ms = 0 if self._begun_ms is None else now_ms - self._begun_ms
        self._is_new = self._begun_ms is None or elapsed_ms >= _LEAST_MS
        if self._is_new:
            self._begun_ms, self._elapsed_ms = now_ms, elapsed_ms
            self._before, self._now, self._rates = self._now, {}, {}

    def of(self, name: Hashable, count: float) -> float | None:
        """How much `count` grows a second; None at the first look."""
        grown = self._grown(name, count)
        return None if grown is None else grown * 1000 / self._elapsed_ms

    def _grown(self, name: Hashable, count: float) -> float | None:
        if self._is_new:
            self._now[name] = count
            before = self._before.get(name)
            self._rates[name] = None if before is None else count - before
        return self._rates.get(name)

    def ratio(self, name: str, amount: float, count: float) -> float:
        """By how much `amount` grew for each that `count` did; NaN where it did not."""
        grown, times = self._grown((name, 0), amount), self._grown((name, 1), count)
        return grown / times if grown is not None and times else float("nan")

    def least(self, counts: Mapping[Any, float]) -> float:
        """The smallest of some rates; 0 without any that is known."""
        found = [self.of(name, count) for name, count in counts.items()]
        return min((rate for rate in found if rate is not None), default=0.0)
