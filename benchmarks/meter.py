"""What a server and the rest of the machine used while something ran, from Linux's /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of the processes so far."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def resident_mb(pids: list[int]) -> float:
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * PAGE / 1e6


def busy_seconds() -> float:
    """What all cores of the machine did so far."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS


class Meter:
    """After the block: `seconds`, `server_cpu_s`, and `other_cores`, used by neither the server
    nor this process.
    """

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids

    def __enter__(self) -> Meter:
        self.start = self.now()
        return self

    def now(self) -> tuple[float, float, float, float]:
        own = os.times()
        return time.perf_counter(), cpu_seconds(self.pids), own.user + own.system, busy_seconds()

    def __exit__(self, *exc: object) -> None:
        self.seconds, self.server_cpu_s, own, busy = (
            after - before for before, after in zip(self.start, self.now(), strict=True)
        )
        self.other_cores = max(0.0, busy - own - self.server_cpu_s) / self.seconds
