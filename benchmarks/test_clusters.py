"""What a cluster of a test costs, in seconds of the processor, the least of several rounds.

python -m benchmarks.test_clusters [--cold]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable

import psutil

from twisted_broker.testing import Cluster
from twisted_broker.testing.template_client import template

ROUNDS, COLD_ROUNDS = 5, 10
_ONE_COLD = "from benchmarks.test_clusters import cold; print(cold())"
_Measured = Callable[[], float]


def used(pid: int) -> float:
    """By a process, so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def start(brokers: int) -> float:
    """Until clients are served and a topic is there, in a fork of the template."""
    with Cluster(brokers, topics={"orders": 1}) as cluster:
        return used(cluster.pid)


def advance(by: str) -> float:
    """Three idle brokers."""
    with Cluster(3, topics={"orders": 1}) as cluster:
        before = used(cluster.pid)
        cluster.clock.advance(by)
        return used(cluster.pid) - before


def election() -> float:
    """The leader of three brokers is killed; until another one leads."""
    with Cluster(3, topics={"orders": 1}) as cluster:
        old, before = cluster.leader("orders", 0), used(cluster.pid)
        old.kill()
        cluster.clock.advance("10s")
        assert cluster.leader("orders", 0).id != old.id
        return used(cluster.pid) - before


def main() -> None:
    """Prints a row each."""
    found = [_cold_elsewhere() for _ in range(COLD_ROUNDS)]
    middle = statistics.median(found)
    print(f"cold, until a record is acknowledged: {min(found):.2f}, median {middle:.2f}")
    if "--cold" in sys.argv[1:]:
        return
    template()
    rows: list[tuple[str, _Measured]] = [
        ("one broker", lambda: start(1)),
        ("three brokers", lambda: start(3)),
        ("a killed leader, ten seconds on, another leads", election),
        ("three idle brokers, ten minutes on", lambda: advance("10m")),
        ("three idle brokers, seven days on", lambda: advance("7d")),
    ]
    for name, measured in rows:
        print(f"{name}: {min(measured() for _ in range(ROUNDS)):.2f}", flush=True)


def cold() -> float:
    """In the template's process and the cluster's, from nothing to the first record."""
    with Cluster() as cluster:
        parent = psutil.Process(cluster.pid).ppid()
        cluster.topic("orders").produce([b"1"])
        return used(parent) + used(cluster.pid)


def _cold_elsewhere() -> float:
    """In a process of tests of its own: one has one template."""
    found = subprocess.run(
        [sys.executable, "-c", _ONE_COLD], capture_output=True, text=True, check=True
    )
    return float(found.stdout)


if __name__ == "__main__":
    main()
