"""What a process takes, over time, and whether it grows.

1. A series is of one process: a restart begins a new one.
2. Growth is the median of the slopes between all pairs of samples (Theil and Sen) after the warm-up
   times its time: single peaks and steps back do not count, a leak does.
"""

from __future__ import annotations

import os
import statistics
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.faults.node import Node
from tests.soak.in_thread import InThread

WARM_UP_SHARE = 0.4
ALLOWED = {"memory": 4.0, "descriptors": 8.0, "threads": 2.0}
"""What may be added after the warm-up: MiB, or a number; of memory a part as well."""
ALLOWED_PART = 0.05
_MOST_PAIRED = 300


class Sample(NamedTuple):
    """At `seconds` since the start: MiB, open descriptors, threads; of the reactor its turns so far
    and the seconds that they took (-1 where it did not say).
    """

    seconds: float
    memory: float
    descriptors: int
    threads: int
    turns: float = -1
    busy: float = -1


@dataclass
class Series:
    """One process of a node."""

    node: str
    pid: int
    samples: list[Sample] = field(default_factory=list)

    def of(self, name: str) -> list[tuple[float, float]]:
        return [(each.seconds, float(getattr(each, name))) for each in self.samples]

    def turn_ms(self) -> list[tuple[float, float]]:
        """The mean length of a turn between two samples."""
        said = [each for each in self.samples if each.turns >= 0]
        return [
            (after.seconds, (after.busy - before.busy) * 1000 / (after.turns - before.turns))
            for before, after in pairwise(said)
            if after.turns > before.turns
        ]


def growth(points: Sequence[tuple[float, float]]) -> float:
    """How much is added from the first to the last point, by the slope in the middle."""
    step = len(points) // _MOST_PAIRED + 1
    chosen = points[::step]
    slopes = [
        (y - other_y) / (x - other_x)
        for index, (x, y) in enumerate(chosen)
        for other_x, other_y in chosen[:index]
        if x > other_x
    ]
    return statistics.median(slopes) * (points[-1][0] - points[0][0]) if slopes else 0.0


def growing(series: Series) -> list[str]:
    """What is not flat after the warm-up, one line each."""
    found = []
    start = series.samples[0].seconds
    warm = start + (series.samples[-1].seconds - start) * WARM_UP_SHARE
    for name, allowed in ALLOWED.items():
        points = [point for point in series.of(name) if point[0] >= warm]
        usual = statistics.median(value for _, value in points)
        if name == "memory":
            allowed = max(allowed, usual * ALLOWED_PART)
        added = growth(points)
        if added > allowed:
            minutes = (points[-1][0] - points[0][0]) / 60
            found.append(
                f"node {series.node}: {name} grew by {added:.1f} in {minutes:.0f} minutes, from "
                f"about {usual:.1f} (allowed {allowed:.1f})"
            )
    return found


def process_sample(pid: int, seconds: float) -> Sample:
    """Raises OSError when it is gone."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    if "VmRSS" not in status:
        raise ProcessLookupError(pid)
    return Sample(
        seconds,
        int(status["VmRSS"].split()[0]) / 1024,
        len(os.listdir(f"/proc/{pid}/fd")),
        int(status["Threads"]),
    )


class Sampler(InThread):
    """Looks at all nodes every `pace` seconds, in a thread. Use as a context."""

    def __init__(self, nodes: Sequence[Node], pace: float = 2.0) -> None:
        super().__init__("sampler")
        self.series: list[Series] = []
        self.began = time.monotonic()
        self._nodes, self._pace = nodes, pace

    def run(self) -> None:
        while not self.enough.wait(self._pace):
            for node in self._nodes:
                process = node.process
                if process is not None:
                    try:
                        self._look(node, process.pid)
                    except (OSError, ValueError, KeyError):
                        continue  # it starts, or is gone

    def _look(self, node: Node, pid: int) -> None:
        sample = process_sample(pid, time.monotonic() - self.began)
        address = str(node.run()["status"])
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
            numbers = dict(
                line.rsplit(" ", 1)
                for line in answer.read().decode().splitlines()
                if line.startswith("replog_reactor_")
            )
        sample = sample._replace(
            turns=float(numbers["replog_reactor_turns_total"]),
            busy=float(numbers["replog_reactor_busy_seconds_total"]),
        )
        for series in self.series:
            if series.pid == pid and series.node == node.name:
                series.samples.append(sample)
                return
        self.series.append(Series(node.name, pid, [sample]))

    def survivors(self) -> list[Series]:
        """Of each node that was never restarted: that of its only process."""
        names = [each.node for each in self.series]
        return [each for each in self.series if names.count(each.node) == 1]
