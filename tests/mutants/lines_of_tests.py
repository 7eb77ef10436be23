"""Which tests run which lines of ring 0, and how long each test takes: found once, then kept.

Owns `LinesOfTests`, which answers, and `collect`, which finds out: each file of tests in turn under
`coverage`, whose dynamic context is the test; `carry_over`, for when lines have moved.

1. It can be stopped: what a finished file of tests ran is kept, and the next run goes on.
2. A changed file of tests is run again. In a changed module of ring 0 lines keep their tests where
   they are now, and new ones get those of their neighbours: to measure it all takes half an hour.
   The choice of tests needs no more; who wants it exact removes the directory.
3. A test counts only if it passed.

Not here: the mutants (`tests/mutants/sites.py`).
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import time
from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from difflib import SequenceMatcher
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import coverage
import pytest
from coverage.numbits import num_in_numbits, numbits_to_nums, nums_to_numbits

from tests.mutants.ring_0 import MARKERS, TESTS, modules_of
from twisted_broker.simulation.progress import Progress
from twisted_broker.simulation.run_state import RunState

SEEDS = 50
"""So many seeds of the simulation meet what survives the tests"""
_SEEDS = "seeds"
_NEVER = "end"
"""An item that is never finished: what is known of all files is kept."""


QUIETLY = ("-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:terminal")


def _digest(root: Path, paths: Collection[str]) -> str:
    digest = sha256()
    for path in sorted(paths):
        digest.update(f"{path}\n".encode() + (root / path).read_bytes())
    return digest.hexdigest()[:16]


def _files_of_tests(root: Path, chosen: Collection[str]) -> dict[str, str]:
    """The files of tests -> what is in each."""
    found: dict[str, str] = {}
    for name in chosen:
        path = root / name
        paths = [path] if path.is_file() else sorted(path.rglob("test_*.py"))
        names = [each.relative_to(root).as_posix() for each in paths]
        found.update({each: _digest(root, [each]) for each in names})
    return found


def _origins(before: Sequence[str], now: Sequence[str]) -> dict[int, set[int]]:
    """Line of a module as it is now -> its lines before, whose tests are likely to run it. A new
    line has those of the one above it.
    """
    found: dict[int, set[int]] = {}
    matcher = SequenceMatcher(None, before, now, autojunk=False)
    for kind, start, end, start_now, end_now in matcher.get_opcodes():
        for row in range(start_now, end_now):
            rows = {start + row - start_now} if kind == "equal" else set(range(start, end))
            found[row + 1] = {each + 1 for each in rows} or set(found.get(row, ()))
    return found


def carry_over(directory: Path, root: Path) -> None:
    """Brings what was measured to the modules as they are now, and keeps them for the next time."""
    lines, measured = directory / "lines.db", directory / "measured"
    modules = modules_of(root)
    changed = {
        module: (measured / module).read_text()
        for module in modules
        if (measured / module).exists()
        and (measured / module).read_bytes() != (root / module).read_bytes()
    }
    if changed and lines.exists():
        with closing(sqlite3.connect(lines)) as database:
            for module, before in changed.items():
                path = root / module
                _move(database, str(path.absolute()), before, path.read_text())
            database.commit()
        tests = directory / "tests.jsonl"
        # A seed that fails by itself now would notice every mutant: they are run again.
        kept = [row for row in tests.read_text().splitlines()[1:] if f'"{_SEEDS}"' not in row]
        tests.write_text("\n".join([json.dumps({"run": _run_of(root)}), *kept, ""]))
    shutil.rmtree(measured, ignore_errors=True)
    for module in modules:
        (measured / module).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / module, measured / module)


def _move(database: sqlite3.Connection, path: str, before: str, now: str) -> None:
    """Moves the lines of one module."""
    origin = _origins(before.splitlines(), now.splitlines())
    rows = database.execute(
        "select file_id, context_id, numbits from line_bits join file on file_id = file.id "
        "where path = ?",
        (path,),
    ).fetchall()
    for file, context, bits in rows:
        ran = set(numbits_to_nums(bits))
        moved = nums_to_numbits([line for line, olds in origin.items() if olds & ran])
        database.execute(
            "update line_bits set numbits = ? where file_id = ? and context_id = ?",
            (moved, file, context),
        )


class _Lines:
    """The pytest plugin: one context per test, a row per file of tests that is finished."""

    def __init__(
        self, measured: coverage.Coverage, state: RunState, digests: dict[str, str]
    ) -> None:
        self._measured, self._state, self._digests = measured, state, digests
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._progress = Progress(sys.stdout, "files of tests", len(digests), len(state.finished))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, Any, Any]:
        self._measured.switch_context(item.nodeid)
        began = time.process_time()
        result = yield
        self._seconds[item.nodeid] = round(time.process_time() - began, 4)
        file = _file_of(item)
        if nextitem is None or _file_of(nextitem) != file:
            self._finished(file)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self._failed.add(report.nodeid)

    def _finished(self, file: str) -> None:
        self._measured.save()
        passed = {test: each for test, each in self._seconds.items() if test not in self._failed}
        self._state.add(file, [self._digests[file], passed])
        self._seconds, self._failed = {}, set()
        self._progress.add()
        self._progress.write(f"{file}: {len(passed)} passed", at_once=True)


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


class LinesOfTests:
    """`seconds`: test -> how much of the processor's time it took, under coverage; `directory`:
    where it is kept.
    """

    def __init__(self, directory: Path, chosen: Collection[str] = TESTS) -> None:
        self._lines = directory / "lines.db"
        state, _ = state_of(directory, Path.cwd(), chosen)
        state.close()
        self.seconds: dict[str, float] = {}
        self._seeds: list[int] = state.finished.get(_SEEDS, [])
        for file, row in state.finished.items():
            if file not in (_SEEDS, _NEVER):
                self.seconds.update(row[1])

    def of(self, module: str, first: int, last: int) -> tuple[dict[str, int], bool]:
        """The tests that run one of these lines of a module -> how many of its lines they run, and
        whether its import does. A line that the import runs may be a table: any test may read it
        and run no line of its module.
        """
        found, imported = self._contexts(module, first, last)
        if imported:
            return {test: found.get(test, 0) for test in self.seconds}, True
        return {test: found[test] for test in found if test in self.seconds}, False

    def seeds_of(self, module: str, first: int, last: int) -> list[int]:
        """The seeds that run one of these lines; the same."""
        found, _ = self._contexts(module, first, last)
        return [seed for seed in self._seeds if _context_of(seed) in found]

    def _contexts(self, module: str, first: int, last: int) -> tuple[dict[str, int], bool]:
        with closing(sqlite3.connect(self._lines)) as lines:
            rows = lines.execute(
                "select context, numbits from line_bits join file on file_id = file.id "
                "join context on context_id = context.id where path = ?",
                (str(Path(module).absolute()),),
            ).fetchall()
        within = {
            context: len(numbits_to_nums(bits))
            for context, bits in rows
            if any(num_in_numbits(line, bits) for line in range(first, last + 1))
        }
        if "" in within:
            return {context: len(numbits_to_nums(bits)) for context, bits in rows}, True
        return within, False


def _context_of(seed: int) -> str:
    return f"seed {seed}"


def state_of(
    directory: Path, root: Path, chosen: Collection[str]
) -> tuple[RunState, dict[str, str]]:
    """What was kept, and the files of tests that are to be known."""
    digests = _files_of_tests(root, chosen)
    return RunState(directory / "tests.jsonl", _run_of(root), [*digests, _NEVER]), digests


def _run_of(root: Path) -> dict[str, str]:
    return {"source": _digest(root, modules_of(root))}


def collect(directory: Path, chosen: Collection[str] = TESTS, seeds: int = 0) -> int:
    """Runs the tests whose lines are not known yet, and the seeds if they are not; the exit status
    of pytest. The working directory is the root of the checkout.
    """
    root = Path.cwd()
    carry_over(directory, root)
    state, digests = state_of(directory, root, chosen)
    if not state.finished:
        (directory / "lines.db").unlink(missing_ok=True)
    left = [
        file
        for file, digest in digests.items()
        if file not in state.finished or state.finished[file][0] != digest
    ]
    measured = coverage.Coverage(
        data_file=str(directory / "lines.db"),
        include=[str(root / module) for module in modules_of(root)],
        config_file=False,
    )
    measured.load()
    measured.start()
    status = 0
    try:
        if left:
            plugin = _Lines(measured, state, digests)
            arguments = [*QUIETLY, "-m", MARKERS, *left]
            status = int(pytest.main(arguments, plugins=[plugin]))
        if seeds and _SEEDS not in state.finished:
            state.add(_SEEDS, _run_seeds(measured, seeds))
    finally:
        measured.stop()
        measured.save()
        state.close()
    return status


def _run_seeds(measured: coverage.Coverage, seeds: int) -> list[int]:
    """Those that pass."""
    # Here, for what is imported before the measuring begins is seen to be run by nobody.
    run_seed = import_module("twisted_broker.simulation.__main__").run_seed
    progress, passed = Progress(sys.stdout, "seeds", seeds), []
    for seed in range(seeds):
        measured.switch_context(_context_of(seed))
        if run_seed(seed).violation is None:
            passed.append(seed)
        progress.add()
        progress.write(f"{len(passed)} passed")
    measured.save()
    return passed
