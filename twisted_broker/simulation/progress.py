"""How far a long run is: a line every few seconds, for a terminal and for a log file alike.

Owns `Progress`. Not here: what is counted.
"""

from __future__ import annotations

import time
from typing import TextIO

_EVERY_SECONDS = 5.0


class Progress:
    """`finished` of `total` before it began; only what is finished after that makes its rate."""

    def __init__(self, out: TextIO, what: str, total: int, finished: int = 0) -> None:
        self._out, self._what, self._total = out, what, total
        self._finished = self._before = finished
        self._began = self._written = time.monotonic()

    def add(self) -> None:
        """One more is finished."""
        self._finished += 1

    def write(self, failures: str, at_once: bool = False) -> None:
        """The line, when it is time. `failures`: how many of what."""
        now = time.monotonic()
        if now - self._written < _EVERY_SECONDS and not at_once:
            return
        self._written = now
        rate = (self._finished - self._before) / max(now - self._began, 0.001)
        left = _duration((self._total - self._finished) / rate) if rate else "?"
        self._out.write(
            f"{self._finished:,} of {self._total:,} {self._what}, {rate:.1f}/s, {left} left, "
            f"{failures}\n"
        )
        self._out.flush()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
