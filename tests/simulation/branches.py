"""`make reach SEEDS=n`: which branches of the deciding core no seed takes.

1. What counts are the modules of ring 0 (the contract in `pyproject.toml`) in `log`, `replication`,
   `cluster` and `coordinator`. The seeds run in processes of their own, each traced from before
   the first import.
2. A table, a line for each module; then what is dark, by function: the line where a branch begins
   and what it would have gone on with. Which groups of these stay dark, and why: RELIABILITY 2.8.

Not here: what happened in the runs (`simulation/reach.py`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TextIO

import coverage

ROOT = Path(__file__).parents[2]
PACKAGE = "twisted_broker"
PARTS = ("log", "replication", "cluster", "coordinator")
_NO_CODE = ["if TYPE_CHECKING:", r"^\s*\.\.\.$", r"\) -> .*: \.\.\.$", "raise NotImplementedError"]


class Module(NamedTuple):
    """`dark`: (function, branches as text) in the order of the file."""

    path: str
    branches: int
    taken: int
    dark: list[tuple[str, list[str]]]


def modules() -> list[Path]:
    """The files of ring 0 in these parts."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contract = next(each for each in linter["contracts"] if each["name"].startswith("ring 0"))
    found: list[Path] = []
    for name in contract["source_modules"]:
        if name.split(".")[1] in PARTS:
            path = ROOT.joinpath(*name.split("."))
            found += path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    return sorted(found)


def traced(data_file: Path) -> coverage.Coverage:
    made = coverage.Coverage(
        data_file=str(data_file),
        branch=True,
        config_file=False,
        include=[str(path) for path in modules()],
        messages=False,
    )
    made.set_option("report:exclude_also", _NO_CODE)
    return made


def run_traced(seeds: Sequence[int], data_file: Path) -> None:
    """One process: runs these seeds and keeps which branches they took."""
    assert importlib.util.find_spec(PACKAGE) is not None
    assert not any(name.startswith(f"{PACKAGE}.") for name in sys.modules), "imported untraced"
    tracer = traced(data_file)
    tracer.start()
    from twisted.logger import globalLogBeginner

    from twisted_broker.simulation.__main__ import run_seed

    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    for seed in seeds:
        run_seed(seed)
    tracer.stop()
    tracer.save()


def measure(seeds: Sequence[int], jobs: int) -> list[Module]:
    """Runs the seeds in so many processes. CalledProcessError when one of these fails."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        running = [
            subprocess.Popen(_command(seeds[row::jobs], directory / f"part.{row}"))
            for row in range(min(jobs, len(seeds)))
        ]
        for process in running:
            if process.wait():
                raise subprocess.CalledProcessError(process.returncode, process.args)
        whole = traced(directory / "whole")
        whole.combine([str(directory / f"part.{row}") for row in range(len(running))])
        whole.json_report(outfile=str(directory / "report.json"))
        found = json.loads((directory / "report.json").read_text())["files"]
    return [_module(path, each) for path, each in sorted(found.items())]


def _command(seeds: Sequence[int], data_file: Path) -> list[str]:
    part = ["--part", str(data_file), *map(str, seeds)]
    return [sys.executable, "-m", "tests.simulation.branches", *part]


def _module(path: str, report: dict[str, Any]) -> Module:
    found = Path(path) if Path(path).is_absolute() else Path.cwd() / path
    lines = found.read_text().splitlines()
    dark = []
    for name, function in report["functions"].items():
        branches = [_text(lines, *each) for each in function["missing_branches"]]
        if branches:
            dark.append((name or "the module", branches))
    total = report["summary"]
    return Module(
        str(found.relative_to(ROOT / PACKAGE)),
        total["num_branches"],
        total["covered_branches"],
        dark,
    )


def _text(lines: Sequence[str], start: int, end: int) -> str:
    """Where a branch begins, and where it would go: a negative line is the end of the function."""
    goal = "the end" if end < 0 else f"{end} `{lines[end - 1].strip()}`"
    return f"{start} `{lines[start - 1].strip()}` to {goal}"


def write(found: Sequence[Module], out: TextIO) -> None:
    """The table, and the dark branches."""
    width = max(len(each.path) for each in found)
    out.write(f"{'module':{width}} {'branches':>8} {'taken':>6} {'dark':>5}\n")
    for each in (*found, _sum(found)):
        share = 100 * each.taken / each.branches if each.branches else 100.0
        dark = each.branches - each.taken
        row = f"{each.path:{width}} {each.branches:8} {each.taken:6} {dark:5} {share:6.1f} %"
        out.write(f"{row}\n")
    for each in found:
        for name, branches in each.dark:
            out.write(f"\n{each.path} {name}\n")
            out.writelines(f"  {branch}\n" for branch in branches)


def _sum(found: Sequence[Module]) -> Module:
    return Module(
        "all", sum(each.branches for each in found), sum(each.taken for each in found), []
    )


def main(arguments: list[str] | None = None, out: TextIO = sys.stdout) -> int:
    parser = argparse.ArgumentParser(prog="reach", description="Branches that no seed takes.")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--part", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("chosen", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part is not None:
        run_traced(options.chosen, options.part)
        return 0
    write(measure(range(options.first, options.first + options.seeds), options.jobs), out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
