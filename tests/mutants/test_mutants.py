"""Mutants: the same sample for a seed, none that nothing evaluates; one that a test notices and one
that none does; a run that was stopped goes on.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from coverage import CoverageData

from tests.mutants.equivalents import equivalents
from tests.mutants.lines_of_tests import LinesOfTests, carry_over, state_of
from tests.mutants.ring_0 import modules_of
from tests.mutants.session import Choice, Session
from tests.mutants.sites import Key, Mutant, is_other_code, key_of, mutants_of, mutated, sample
from tests.mutants.trial import (
    BY_TEST,
    PASSED,
    SURVIVED,
    Outcome,
    OutOfTime,
    in_order,
    limited,
    planted,
)

ROOT = Path(__file__).parents[2]
PYPROJECT = """
[[tool.importlinter.contracts]]
name = "ring 0"
source_modules = ["twisted_broker.log.some"]
"""
SOURCE = """\
from __future__ import annotations
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Alias = 1 + 2

LIMIT: int | None = 3


class Counter:
    most: list[int] | None

    @property
    def first(self) -> int | str:
        return 1


    @first.setter
    def first(self, to: int | str) -> None:
        self.seen = to if to else 2


def total(values: list[int] | None = None, *, more: bytes = b"") -> int | None:
    def one(value: int | str) -> int:
        return value + 5

    return sum(one(value) for value in values or ())
"""
NAME = "some/module.py"


def found_in(source: str) -> dict[Key, Mutant]:
    return {
        key_of(source, mutant): mutant
        for mutants in mutants_of(NAME, source).values()
        for mutant in mutants
        if is_other_code(source, mutated(source, mutant))
    }


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Python's own: a reactor that ran in this process before has left another one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_annotations_and_imports_for_types_are_not_mutated() -> None:
    assert {(key.scope, key.code) for key in found_in(SOURCE)} == {
        ("", "LIMIT: int | None = 3"),
        ("Counter.first", "@property"),
        ("Counter.first", "return 1"),
        ("Counter.first", "@first.setter"),
        ("Counter.first", "self.seen = to if to else 2"),
        ("total.one", "return value + 5"),
        ("total", "return sum(one(value) for value in values or ())"),
    }
    changed = {key.mutant for key in found_in(SOURCE) if key.code == "LIMIT: int | None = 3"}
    assert changed == {"LIMIT: int | None = 4", "LIMIT: int | None = 2"}


def test_a_key_outlives_its_line() -> None:
    moved = SOURCE.replace("LIMIT", "# A comment.\n\nLIMIT")
    assert found_in(SOURCE).keys() == found_in(moved).keys()
    assert set(found_in(SOURCE).values()) != set(found_in(moved).values())


def test_a_seed_is_a_sample(tmp_path: Path) -> None:
    """The same for the same seed, another for another; more of them begin with the same."""
    for number in range(4):
        (tmp_path / f"m{number}.py").write_text(SOURCE)
    modules = [f"m{number}.py" for number in range(4)]
    first = sample(tmp_path, modules, 12, 1)
    assert first == sample(tmp_path, reversed(modules), 12, 1) and len(first) == 12
    assert first == sample(tmp_path, modules, 20, 1)[:12]
    assert first != sample(tmp_path, modules, 12, 2)
    assert len({mutant.place for mutant in first}) == 12
    (tmp_path / "m2.py").write_text(SOURCE.replace("LIMIT", "# A comment.\nMORE = 4\nLIMIT"))
    keys = [key_of(SOURCE, mutant) for mutant in first if mutant.place.module != "m2.py"]
    again = sample(tmp_path, modules, 12, 1)
    assert (
        keys[:4]
        == [key_of(SOURCE, mutant) for mutant in again if mutant.place.module != "m2.py"][:4]
    ), "a change of one module redraws that one only"
    assert not any(mutant.place.start[0] == 6 for mutant in sample(tmp_path, modules, 99, 1))


def test_ring_0_is_what_the_contract_says() -> None:
    modules = modules_of(ROOT)
    assert "twisted_broker/wire/messages/fetch.py" in modules
    assert "twisted_broker/replication/partition/isr_state.py" in modules
    assert "twisted_broker/log/filesystem.py" not in modules
    assert "twisted_broker/config.py" not in modules and len(modules) > 100


# one mutant


def loaded(path: Path, source: str) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_code_is_put_in_place_wherever_it_is_used(tmp_path: Path) -> None:
    """A name that was imported before, an object that was made before, the right one of two
    functions of one name.
    """
    path = tmp_path / "mutated_module.py"
    module = loaded(path, SOURCE)
    source = path.read_text()
    total, counter = module.total, module.Counter()
    by_code = {key.mutant: mutant for key, mutant in found_in(source).items()}
    for line in ("return value - 5", "self.seen = to if not to else 2"):
        mutant = by_code[line]
        assert planted(path, mutant.place, mutated(source, mutant))
    assert total([10, 20]) == 20
    counter.first = 7
    assert counter.seen == 2 and counter.first == 1
    constant = by_code["LIMIT: int | None = 4"]
    assert not planted(path, constant.place, mutated(source, constant))


def test_lines_that_move_keep_their_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured holds on when a module changes: a new line has the tests of the one above
    it. Only changed files of tests are run again.
    """
    root, state = tmp_path / "root", tmp_path / "state"
    module, test = "twisted_broker/log/some.py", "tests/log/test_some.py"
    for path, text in (
        ("pyproject.toml", PYPROJECT),
        (module, "a = 1\nb = 2\nc = 3\nd = 4\n"),
        (test, ""),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    state.mkdir()
    monkeypatch.chdir(root)
    carry_over(state, root)
    data = CoverageData(str(state / "lines.db"))
    for name, lines in (("one", [2]), ("two", [4])):
        data.set_context(f"{test}::{name}")
        data.add_lines({str(root / module): lines})
    data.write()
    kept, digests = state_of(state, root, [test])
    kept.add(test, [digests[test], {f"{test}::{name}": 0.1 for name in ("one", "two")}])
    kept.close()
    (root / module).write_text("first = 0\na = 1\nb = 2\nnew = 0\nc = 3\nd = 5\n")
    carry_over(state, root)
    known = LinesOfTests(state, [test])
    assert [list(known.of(module, line, line)[0]) for line in range(1, 7)] == [
        *([], [], [f"{test}::one"], [f"{test}::one"], [], [f"{test}::two"]),
    ]


def test_nothing_of_ring_0_is_imported_before_it_is_measured() -> None:
    """Else nobody would be seen to run what an import runs: no test would meet its mutants."""
    code = (
        "import sys, tests.mutants.run\n"
        "from pathlib import Path\n"
        "from tests.mutants.ring_0 import modules_of\n"
        "names = {module[:-3].replace('/', '.') for module in modules_of(Path())}\n"
        "print(sorted(names & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == "[]\n", run.stdout + run.stderr


def test_each_file_of_tests_has_an_equal_share() -> None:
    """The module's own tests first; then what runs most lines of it for its time, from all files
    in turn: a costly file does not keep the others back.
    """
    seconds = {
        **{f"tests/log/test_index.py::{name}": 0.1 for name in "ab"},
        **{f"tests/log/test_log.py::{name}": 0.2 for name in "abc"},
        **{f"tests/api/test_fetch.py::{name}": 0.35 for name in "ab"},
        "tests/wire/test_named.py::a": 5.0,
    }
    lines = dict.fromkeys(seconds, 10) | {"tests/log/test_log.py::c": 40}
    found = in_order("twisted_broker/log/index.py", lines, seconds, {"tests/wire/test_named.py"})
    assert [name.rpartition("test_")[2] for name in found] == [
        *("index.py::a", "index.py::b", "named.py::a"),
        *("log.py::c", "fetch.py::a", "log.py::a", "log.py::b", "fetch.py::b"),
    ]


def test_an_endless_loop_ends() -> None:
    with pytest.raises(OutOfTime), limited(0.1):
        while True:
            pass
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_what_is_named_equivalent_is_there() -> None:
    """Each entry is a mutant of the code as it is, and has a reason."""
    known = {}
    for key, reason in equivalents().items():
        source = (ROOT / key.module).read_text()
        lines = [line.strip() for line in source.splitlines()]
        if key.module not in known:
            known[key.module] = mutants_of(key.module, source)
        candidates = [
            mutant
            for place, mutants in known[key.module].items()
            if place.scope == key.scope and lines[place.start[0] - 1] in key.code.splitlines()
            for mutant in mutants
            if mutant.operator == key.operator
        ]
        assert any(key == key_of(source, mutant) for mutant in candidates), f"no mutant: {key}"
        assert len(reason) > 20


# runs. They fork: in a process that has run all unit tests a lock may be held by another thread


def session_of(tmp_path: Path, out: io.StringIO, again: bool = False, named=None) -> Session:
    (tmp_path / "some").mkdir(exist_ok=True)
    (tmp_path / NAME).write_text(SOURCE)
    mutants = sample(tmp_path, [NAME], 8, 1)
    choice = Choice(seed=1, seconds=1.0, again=again, jobs=1, control=False)
    lines = LinesOfTests.__new__(LinesOfTests)
    return Session(tmp_path, tmp_path, mutants, named or {}, choice, lines, out)


@pytest.mark.clients
@pytest.mark.usefixtures("_interruptible")
def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """Ctrl-C in the middle of the tests, then of the seeds; a mutant is not tried twice."""
    tried = tmp_path / "tried"
    tried.mkdir()

    def trying(what: str, verdict: str, stop_after: int):
        def run(mutant: Mutant) -> Outcome:
            if len(list(tried.glob(f"{what}*"))) == stop_after:
                os.kill(os.getppid(), signal.SIGINT)
                time.sleep(600)
            (tried / f"{what} {mutant.operator} {mutant.occurrence}").touch(exist_ok=False)
            return Outcome(verdict, what)

        return run

    for tests, seeds, line in (
        (3, 99, "stopped: 3 mutants: 3 passed its tests"),
        (99, 5, "stopped: 8 mutants: 3 passed its tests, 5 survive"),
        (99, 99, "8 mutants: 8 survive"),
    ):
        out = io.StringIO()
        session = session_of(tmp_path, out)
        session.run(trying("tests", PASSED, tests), trying("seeds", SURVIVED, seeds))
        assert line in out.getvalue()
        assert session.stopped == (line.startswith("stopped"))
    assert len(list(tried.iterdir())) == 16
    assert session.share == 0.0


@pytest.mark.clients
def test_survivors_are_tried_again_and_equivalents_are_not(tmp_path: Path) -> None:
    def nothing_notices(mutant: Mutant) -> Outcome:
        return Outcome(PASSED, "")

    def survives(mutant: Mutant) -> Outcome:
        return Outcome(SURVIVED, "3 tests, 4 seeds")

    first = session_of(tmp_path, io.StringIO())
    first.run(nothing_notices, survives)
    report = "\n".join(first.report())
    assert report.endswith("8 mutants: 8 survive\n0.0% of those that can be noticed were")
    one = next(iter(first.outcomes))
    named = {first.key(first._mutants[one]): "It makes no difference."}
    again = session_of(tmp_path, io.StringIO(), True, named)
    again.run(lambda mutant: Outcome(BY_TEST, "test_one"), survives)
    assert again.figures() == "8 mutants: 7 dead by tests, 1 named equivalent"
    assert again.share == 1.0
    kept = session_of(tmp_path, io.StringIO())
    kept.run(survives, survives)
    assert kept.figures() == "8 mutants: 7 dead by tests, 1 survive"


@pytest.mark.clients
def test_an_error_of_the_run_is_no_verdict(tmp_path: Path) -> None:
    def raising(mutant: Mutant) -> Outcome:
        raise ZeroDivisionError(mutant)

    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        session_of(tmp_path, io.StringIO()).run(raising, raising)


ONLY = "twisted_broker/log/watermarks.py"
TESTS = "tests/log/test_retention.py"


@pytest.mark.clients
@pytest.mark.timeout(600)
def test_the_command(tmp_path: Path) -> None:
    """Its own copy; one module and tests that are about another: some mutants die, some survive.
    With nothing mutated all survive, those that need another import, too.
    """
    command = [sys.executable, "-m", "tests.mutants.run", "--state", str(tmp_path / "state")]
    command += ["--only", ONLY, "--tests", TESTS, "--simulate", "0", "--mutants", "6"]

    def verdicts(status: int, *more: str) -> list[str]:
        run = subprocess.run(
            [*command, *more], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert run.returncode == status, run.stdout + run.stderr
        rows = [json.loads(line) for line in (tmp_path / "state" / "mutants.jsonl").open()]
        found = sorted({row["item"]: row["result"][0] for row in rows[1:]}.values())
        assert len(found) == 6 and f"{found.count(SURVIVED)} survive" in run.stdout
        return found

    found = verdicts(1)
    assert {BY_TEST, SURVIVED} <= set(found) and PASSED not in found
    assert verdicts(1) == found, "the same mutants; nothing is tried again"
    assert verdicts(0, "--control") == [SURVIVED] * 6
    assert (ROOT / ONLY).read_text() == (tmp_path / "state" / "copy" / ONLY).read_text()
