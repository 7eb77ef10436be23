"""`make mutants`: how many random mutants of ring 0 the unit tests, the scenarios and 50 seeds of
the simulation notice.

Owns the command line, and the copy of the checkout that everything runs in. The state directory has
the copy (`copy`), which test runs which line (`lines.db`, `tests.jsonl`), and what became of each
mutant (`mutants.jsonl`). Exit status 1: fewer than 95 % of those that can be noticed were.

Source: docs/RELIABILITY.md 2.6. Not here: the mutants (`tests/mutants/sites.py`), the processes
(`tests/mutants/session.py`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from twisted.logger import globalLogBeginner

from tests.mutants.equivalents import equivalents
from tests.mutants.lines_of_tests import QUIETLY, SEEDS, LinesOfTests, collect
from tests.mutants.ring_0 import MARKERS, PACKAGE, TESTS, modules_of
from tests.mutants.session import EQUIVALENT, WANTED, Choice, Session
from tests.mutants.sites import sample
from tests.mutants.trial import SURVIVED

ROOT = Path(__file__).parents[2]
COPIED = (PACKAGE, "tests", "docs", "benchmarks", "pyproject.toml", "setup.cfg")
_STOPPED = 130


def copy_checkout(root: Path, copy: Path) -> None:
    """What the tests need, as it is now; compiled modules stay behind."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for name in COPIED:
        if (root / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(root / name, copy / name, ignore=ignored)
        else:
            shutil.copy2(root / name, copy / name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__)
    parser.add_argument("--mutants", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--state", type=Path, default=Path("build/mutants"))
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of tests for each mutant, at most"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[PACKAGE],
        metavar="PATH",
        help="draw from the modules under these",
    )
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATH", help="these only")
    parser.add_argument(
        "--simulate", type=int, default=SEEDS, metavar="SEEDS", help="how many seeds, from 0 on"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument(
        "--again", action="store_true", help="try those again that survived the last run"
    )
    parser.add_argument(
        "--control", action="store_true", help="mutate nothing: every mutant must survive"
    )
    for step in ("--measure", "--try"):
        parser.add_argument(step, action="store_true", help=argparse.SUPPRESS)
    return parser


def main(arguments: list[str]) -> int:
    """The command."""
    chosen = _parser().parse_args(arguments)
    directory = chosen.state.absolute()
    if chosen.measure:
        return _measure(directory, chosen)
    if getattr(chosen, "try"):
        return _try(directory, chosen)
    copy_checkout(ROOT, directory / "copy")
    command = [sys.executable, "-m", "tests.mutants.run", *arguments, "--state", str(directory)]
    # What runs the tests to measure them is of no use for mutants any more: a process for each.
    for step in ("--measure", "--try"):
        status = _run([*command, step], directory / "copy")
        if status:
            return status
    return 0


def _run(command: list[str], copy: Path) -> int:
    """In the copy, which comes first in the path; Ctrl-C reaches the process by itself."""
    environment = os.environ | {"PYTHONPATH": str(copy)}
    with subprocess.Popen(command, cwd=copy, env=environment) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def _measure(directory: Path, chosen: argparse.Namespace) -> int:
    """Which test runs which line."""
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    try:
        status = collect(directory, chosen.tests, chosen.simulate)
    except KeyboardInterrupt:
        status = pytest.ExitCode.INTERRUPTED
    if status == pytest.ExitCode.INTERRUPTED:
        print("stopped; the same command goes on from here", flush=True)
        return _STOPPED
    # A test that fails here is left out.
    return 0 if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else int(status)


def _try(directory: Path, chosen: argparse.Namespace) -> int:
    """The mutants."""
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    root = Path.cwd()
    modules = [module for module in modules_of(root) if module.startswith(tuple(chosen.only))]
    mutants = sample(root, modules, chosen.mutants, chosen.seed)
    lines = LinesOfTests(directory, chosen.tests)
    choice = Choice(chosen.seed, chosen.seconds, chosen.again, chosen.jobs, chosen.control)
    session = Session(root, directory, mutants, equivalents(), choice, lines)
    status = pytest.main([*QUIETLY, "-s", "-m", MARKERS, *chosen.tests], plugins=[session])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return int(status)
    if session.stopped:
        return _STOPPED
    if chosen.control:
        return _control(session)
    print("\n".join(session.report()), flush=True)
    return int(session.share < WANTED)


def _control(session: Session) -> int:
    """Nothing was mutated: what was noticed is a test that fails by itself."""
    found = [
        f"{name}: {outcome.verdict}, {outcome.by}"
        for name, outcome in session.outcomes.items()
        if outcome.verdict not in (SURVIVED, EQUIVALENT)
    ]
    print("\n".join([*found, f"{len(found)} noticed, and nothing was mutated"]), flush=True)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
