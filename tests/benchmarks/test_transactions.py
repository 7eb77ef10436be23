"""`python -m benchmarks.transactions`: one short run against a real broker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.clients
@pytest.mark.skipif(sys.platform != "linux", reason="the accounting reads /proc")
def test_a_short_run() -> None:
    """Every measure gives its figures on this checkout, and none waits for a client's pause after
    CONCURRENT_TRANSACTIONS, which is 100 ms in the offsets' case.
    """
    command = [sys.executable, "-m", "benchmarks.transactions", "ours", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--scale", "0.05"], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-2000:]
    figures = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", done.stdout, re.M))
    for measure in ("1 partition", "10 partitions", "read-process-write"):
        assert float(figures[f"{measure}: transactions/s"].replace(",", "")) > 0
    assert float(figures["read-process-write: p50 ms"]) < 95
