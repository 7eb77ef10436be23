"""`python -m benchmarks.compare`: its table by itself, and one short run against a real broker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.compare import cell, table

ROOT = Path(__file__).parents[2]
SHORT = ("latency", "produce", "fetch", "offsets", "bulk", "memory", "connections")


def test_cells() -> None:
    """The median with the range, a lone sample without, nothing as a dash."""
    assert cell([]) == "-"
    assert cell([12345.6]) == "12,346"
    assert cell([3.0, 1.0, 2.0]) == "2 (1 to 3)"


def test_the_table() -> None:
    """Two programs give a ratio of medians; what only one of them has gives none."""
    samples = {"produce: MB/s": {"a": [30.0, 10.0, 20.0], "b": [10.0]}, "start: s": {"a": [0.5]}}
    assert table(samples, ["a", "b"]).splitlines() == [
        "| figure | a | b | ratio |",
        "|---|--:|--:|--:|",
        "| produce: MB/s | 20 (10 to 30) | 10 | 2.00 |",
        "| start: s | 0.5 | - | - |",
    ]


@pytest.mark.clients
@pytest.mark.skipif(sys.platform != "linux", reason="the accounting reads /proc")
def test_a_short_run() -> None:
    """Cold start and the short measures give their figures on this checkout."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.compare",
        "ours",
        "--rounds",
        "1",
        "--scale",
        "0.01",
        "--only",
        *SHORT,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", done.stdout, re.M))
    for name in (
        "start to first Metadata: s",
        "memory idle: MB",
        "produce, 50 connections: requests/s",
        "fetch, 1 connection: p99 ms",
        "list offsets, 10 connections: requests/s",
        "bulk produce: MB/s",
        "bulk fetch: server CPU s per GB",
        "end to end: p99 ms",
        "memory under load: MB",
        "1,000 connections: MB",
    ):
        assert float(figures[name].replace(",", "")) >= 0, name
