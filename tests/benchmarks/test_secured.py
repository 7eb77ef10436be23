"""`python -m benchmarks.secured`: one short run against a real broker of ours."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.secured", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)


@pytest.mark.clients
@pytest.mark.skipif(sys.platform != "linux", reason="the accounting reads /proc")
def test_a_short_run() -> None:
    """All measures give their figures, over TLS and over SASL_SSL."""
    done = run("ours", "--rounds", "1", "--scale", "0.01")
    assert done.returncode == 0, done.stderr[-2000:]
    figures = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", done.stdout, re.M))
    for name in (
        "50 handshakes: s",
        "50 handshakes: another client's longest ms",
        "TLS, bulk produce: MB/s",
        "TLS, bulk fetch: server CPU s per GB",
        "SASL_SSL, produce, 50 connections: requests/s",
        "SASL_SSL, fetch, 1 connection: p99 ms",
    ):
        assert float(figures[name].replace(",", "")) >= 0, name
    assert float(figures["50 handshakes: longest turn ms"]) >= 0


def test_an_unknown_program_is_one_line() -> None:
    """It names those that are known."""
    done = run("somewhere")
    assert done.returncode == 1
    assert done.stderr.strip() == "'somewhere' is none of ours, kafka, commit:REV"
