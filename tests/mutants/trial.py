"""One mutant: tests that run its lines, nearest first, and then seeds, until one fails.

Owns `Trial`, `Outcome`, `in_order` and `planted`.

1. The tests are collected once, in the process that everything is forked from; a mutant gets a
   process of its own. There the code of the functions that it changes is put in place, which every
   reference to them sees.
2. What an import has run already (the body of a module or class, a function that one calls) cannot
   be put in place: the process imports the packages again, with the mutated module among them.
3. Nothing is written: neither here nor in the copy that the run works on.
4. An endless loop is noticed by a limit of the processor's time, which a busy machine does not
   change, and counts as noticed.

Source: `tests/simulation/mutations.py` plants by name; this by code. Not here: the processes
(`twisted_broker/simulation/process_pool.py`), the choice of mutants (`tests/mutants/sites.py`).
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest

from tests.mutants.lines_of_tests import QUIETLY, LinesOfTests
from tests.mutants.sites import Mutant, Place, mutated

PASSED, SURVIVED = "passed its tests", "survive"
BY_TEST, BY_SEED, TIMED_OUT = "dead by tests", "dead by seeds", "dead by time-out"
CRASHED = "ended its process"
_AGAIN, _OURS = ("twisted_broker", "tests"), "tests.mutants"
_LEAST_SECONDS = 5.0
_SEED_SECONDS = 30.0
_MEMORY = 4 << 30
_SLOW = ("Failed: Timeout", "OutOfTime")
"""Of pytest-timeout, for what waits and uses no time; and ours
"""


class Outcome(NamedTuple):
    """`verdict`: one of the words above; `by`: the test or seed that noticed, and how; for a
    survivor how many tests and seeds did not.
    """

    verdict: str
    by: str


class Trial:
    """Tries mutants. `items`: the tests, collected; `seconds`: the tests of one mutant take no
    longer together than this, as they were measured; `control`: nothing is changed, so that all of
    them must survive.
    """

    def __init__(
        self,
        root: Path,
        items: Sequence[pytest.Item],
        lines: LinesOfTests,
        seconds: float,
        control: bool = False,
    ) -> None:
        self._root, self._lines, self._seconds, self._control = root, lines, seconds, control
        self._items = {item.nodeid: item for item in items}

    def run_tests(self, mutant: Mutant) -> Outcome:
        """In a process of its own, which is of no use afterwards."""
        _quieten()
        tests, imported = self.tests_of(mutant)
        found = self._run_items(tests) if self._plant(mutant, imported) else self._run_again(tests)
        return found or Outcome(PASSED, f"{len(tests)} tests")

    def run_seeds(self, mutant: Mutant) -> Outcome:
        """The same."""
        _quieten()
        tests, imported = self.tests_of(mutant)
        seeds = self._lines.seeds_of(mutant.place.module, mutant.place.first, mutant.place.last)
        self._plant(mutant, imported)
        return _run_seeds(seeds) or Outcome(SURVIVED, f"{len(tests)} tests, {len(seeds)} seeds")

    def _plant(self, mutant: Mutant, imported: bool) -> bool:
        """False: the packages are imported again."""
        path = self._root / mutant.place.module
        code = path.read_text() if self._control else mutated(path.read_text(), mutant)
        if not imported and planted(path, mutant.place, code):
            return True
        _import_again(path, code)
        return False

    def tests_of(self, mutant: Mutant) -> tuple[list[str], bool]:
        """The tests that are to notice, in their order; whether the import runs it."""
        place = mutant.place
        known, imported = self._lines.of(place.module, place.first, place.last)
        seconds = self._lines.seconds
        tests = {test: count for test, count in known.items() if test in self._items}
        named = self._naming(place.scope) if imported else frozenset[str]()
        chosen: list[str] = []
        left = self._seconds
        for test in in_order(place.module, tests, seconds, named):
            # What costs more than is left is passed over: cheaper ones may follow.
            if seconds[test] <= left or not chosen:
                left -= seconds[test]
                chosen.append(test)
        return chosen, imported or not place.function

    def _naming(self, scope: str) -> frozenset[str]:
        """The files of tests that have the name of a class or function."""
        name = scope.partition(".")[0]
        files = {_file_of(test) for test in self._items}
        return frozenset(file for file in files if name and name in (self._root / file).read_text())

    def _run_items(self, tests: Sequence[str]) -> Outcome | None:
        """The collected tests, in this process."""
        items = [self._items[test] for test in tests]
        if not items:
            return None
        noticed = _Noticed(self._lines)
        items[0].config.pluginmanager.register(noticed)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if noticed.outcome is not None:
                return noticed.outcome
        return None

    def _run_again(self, tests: Sequence[str]) -> Outcome | None:
        """Collects them anew."""
        if not tests:
            return None
        noticed = _Noticed(self._lines)
        try:
            status = pytest.main([*QUIETLY, "-x", *tests], plugins=[noticed])
        except Exception as error:
            return Outcome(BY_TEST, f"collection: {error!r}"[:300])
        if noticed.outcome is None and status != pytest.ExitCode.OK:
            return Outcome(BY_TEST, f"collection: pytest ends with {status!r}")
        return noticed.outcome


class _Noticed:
    """The pytest plugin: the first test that fails, or takes far longer than it did."""

    def __init__(self, lines: LinesOfTests) -> None:
        self.outcome: Outcome | None = None
        self._lines = lines

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with limited(max(_LEAST_SECONDS, 10 * self._lines.seconds.get(item.nodeid, 0.0))):
            return (yield)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._look_at(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._look_at(report)

    def _look_at(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.failed and self.outcome is None:
            text = report.longreprtext.strip().splitlines() or [""]
            last = next((line for line in reversed(text) if line.startswith("E  ")), text[-1])
            slow = any(word in report.longreprtext for word in _SLOW)
            verdict = TIMED_OUT if slow else BY_TEST
            self.outcome = Outcome(verdict, f"{report.nodeid}: {last[4:].strip()}"[:300])


def in_order(
    module: str, tests: Mapping[str, int], seconds: Mapping[str, float], named: Collection[str]
) -> list[str]:
    """The order in which tests meet a mutant of a module. `tests`: test -> how many lines of the
    module it runs; `named`: files that name what is mutated.

    The module's own tests come first. Of the others each file has an equal share of the time: a
    mutant that hundreds of tests of one file pass may fail the first of another. In a file those
    come first that run most of the module for their time.
    """
    spent: dict[str, float] = {}
    keys: dict[str, tuple[int, float, int]] = {}
    for test in sorted(tests, key=lambda test: (seconds[test] / (1 + tests[test]), test)):
        file = _file_of(test)
        spent[file] = spent.get(file, 0.0) + seconds[test]
        distance = _distance(module, test, named)
        keys[test] = (min(distance, 1), spent[file], distance)
    return sorted(keys, key=lambda test: (keys[test], test))


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _distance(module: str, test: str, named: Collection[str]) -> int:
    """0 for the module's own tests and those in files that are `named`, 1 for those of its
    package, 2 for others.
    """
    file = _file_of(test)
    path, name = Path(file), Path(module)
    if path.stem == f"test_{name.stem}" or file in named:
        return 0
    return 1 if path.parts[1] == name.parts[1] else 2


def _quieten() -> None:
    """What the mutant prints is nobody's; what it allocates is bounded."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


# the mutant's code in the place of the original's


def planted(path: Path, place: Place, source: str) -> bool:
    """Puts the code of the function around a place there, wherever it is used; False when no such
    function is to be found.
    """
    codes = [
        code
        for code in _codes(compile(source, str(path), "exec"))
        if code.co_qualname == place.function and code.co_firstlineno <= place.start[0]
    ]
    if not codes:
        return False
    code = max(codes, key=lambda each: each.co_firstlineno)
    found = [
        each
        for each in gc.get_objects()
        if isinstance(each, FunctionType)
        and each.__code__.co_qualname == place.function
        and each.__code__.co_firstlineno == code.co_firstlineno
        and Path(each.__code__.co_filename) == path
    ]
    for each in found:
        each.__code__ = code
    return bool(found)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):  # type: ignore[misc]
    """Imports one module from another text."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        self._name, self._path, self._source = name, path, source

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def get_filename(self, fullname: str) -> str:
        return str(self._path)

    def get_data(self, path: str) -> bytes:
        return self._source.encode()


def _import_again(path: Path, source: str) -> None:
    """The next import of the packages is their first, with another text for one module."""
    root = Path.cwd()
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    for each in list(sys.modules):
        # Not ours: what is sent to the caller is of its classes.
        if each.partition(".")[0] in _AGAIN and not each.startswith(_OURS):
            del sys.modules[each]
    sys.meta_path.insert(0, _Finder(name, path, source))


# seeds


def _run_seeds(seeds: Sequence[int]) -> Outcome | None:
    """The first that fails."""
    if not seeds:
        return None
    run_seed = importlib.import_module("twisted_broker.simulation.__main__").run_seed
    for seed in seeds:
        try:
            with limited(_SEED_SECONDS):
                violation = run_seed(seed).violation
        except OutOfTime:
            return Outcome(TIMED_OUT, f"seed {seed}")
        except Exception as error:
            return Outcome(BY_SEED, f"seed {seed}: {error!r}"[:300])
        if violation is not None:
            return Outcome(BY_SEED, f"seed {seed}: {violation}"[:300])
    return None


class OutOfTime(BaseException):
    """Raised where the code is when its time is over."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Of the processor's time."""
    signal.signal(signal.SIGPROF, _out_of_time)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _out_of_time(number: int, frame: Any) -> None:
    raise OutOfTime
