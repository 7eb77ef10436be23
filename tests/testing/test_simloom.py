"""A cluster in simloom: a shop whose machine loses power, under seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SHOP = Path(__file__).parent / "simloom_shop.py"
LOSES = ("2", "4")
pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(
        sys.version_info < (3, 12) or find_spec("simloom") is None,
        reason="simloom needs Python 3.12: pip install simloom",
    ),
]


def run(kind: str, *seeds: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(SHOP), kind, *seeds],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": str(SHOP.parents[2])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_naive_shop_loses_orders_the_same_in_two_processes() -> None:
    found = run("naive", *LOSES)
    assert all(line.partition(" lost ")[2] for line in found), found
    assert found == run("naive", *LOSES)


def test_a_careful_shop_loses_none() -> None:
    assert [line.split()[2:] for line in run("careful", *LOSES)] == [["lost"]] * len(LOSES)
