"""`python -m benchmarks.cluster`: one short run against real processes of ours."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import cluster
from benchmarks.clusters import Apart

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 280


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.cluster", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )


@pytest.mark.clients
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="the accounting reads /proc")
def test_a_short_run() -> None:
    """Start, stop and the measures that need no session to end give their figures; under load
    nobody falls out of sync.
    """
    done = run(
        "apart",
        "--rounds",
        "1",
        "--scale",
        "0.01",
        "--only",
        "bulk",
        "rates",
        "partitions",
        "leaving",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", done.stdout, re.M))
    for name in (
        "start to a topic on three brokers: s",
        "stop of all: s",
        "bulk: MB/s",
        "bulk: server CPU s per replicated GB",
        "produce, 50 connections: p99 ms",
        "20 partitions x 3, idle: % of a core",
        "20 partitions x 3, acks=all: p50 ms",
        "SIGTERM to the new leader: s",
    ):
        assert float(figures[name].replace(",", "")) >= 0, name
    assert figures["bulk: fewest replicas in sync"] == "3"


def test_a_slow_turn_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any node, in a log that a cold start has cleared away since, too; the line names the
    cluster and what ran.
    """
    one = Apart()
    line = "the reactor was busy for {0} ms with Fetch v17 (processor {0} ms, waited for it 0 ms)"

    def start() -> float:
        one.prepare()
        took = 450 if not one.slow_turns() else 90
        (one.directory / "log-2").write_text(line.format(took) + "\n")
        return 0.1

    monkeypatch.setattr(one, "start", start)
    monkeypatch.setattr(cluster, "CLUSTERS", {"apart": lambda: one})
    monkeypatch.setattr(cluster, "MEASURES", {})
    monkeypatch.setattr(cluster, "warm_up", lambda target: None)
    monkeypatch.setattr(cluster, "processes", lambda each: "")
    monkeypatch.setattr(sys, "argv", ["cluster", "apart", "--rounds", "1"])
    with pytest.raises(SystemExit) as ended:
        cluster.main()
    assert str(ended.value).splitlines() == [
        "ours apart: a turn of the reactor of 450 ms with Fetch v17 (processor 450, waited for it "
        "0, blocked 0)"
    ]
    assert not one.directory.exists()


def test_an_unknown_cluster_is_one_line() -> None:
    """It names those that are known."""
    done = run("apart", "somewhere")
    assert (
        done.returncode == 2
        and "'somewhere' is none of apart, together, processes, kafka" in done.stderr
    )
