"""Which modules are mutated, and which tests are to notice: the deciding modules of five packages.

Owns `modules_of` and `TESTS`.

Source: the import contract of ring 0 in `pyproject.toml`. Not here: where in a module
(`tests/mutants/sites.py`).
"""

from __future__ import annotations

import tomllib
from pathlib import Path

PACKAGE = "twisted_broker"
MUTATED = tuple(
    f"{PACKAGE}.{name}" for name in ("wire", "log", "replication", "cluster", "coordinator")
)
TESTS = (
    "tests/wire",
    "tests/log",
    "tests/replication",
    "tests/cluster",
    "tests/coordinator",
    "tests/cli/test_storage.py",
    "tests/net/test_cold_slices.py",
    "tests/testing/test_sim_disk.py",
    "tests/scenarios/test_scenarios.py",
    "tests/image",
    "tests/api",
)
"""The unit tests of what is mutated and of what calls it; the simulation comes after them. Tests
with processes, clients or Spark do not count: they are too slow to be the first to notice.
"""
MARKERS = "not clients and not spark and not long"


def modules_of(root: Path) -> list[str]:
    """The paths of the modules that are mutated, relative to the root of the checkout."""
    linter = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    contract = next(each for each in linter["contracts"] if each["name"].startswith("ring 0"))
    found: set[str] = set()
    for name in contract["source_modules"]:
        if not any(name == each or name.startswith(f"{each}.") for each in MUTATED):
            continue
        path = root / name.replace(".", "/")
        paths = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
        found.update(each.relative_to(root).as_posix() for each in paths)
    return sorted(found)
