"""Twisted's trial in a process of its own, over one file of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[2]


def passes(tmp_path: Path, program: str) -> None:
    """Trial fails a test that leaves a port or a timer behind."""
    (tmp_path / "test_shop.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "twisted.trial", "test_shop"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PYTHONPATH": f"{HERE}:{tmp_path}"},
    )
    assert done.returncode == 0 and "PASSED" in done.stdout, done.stdout + done.stderr
