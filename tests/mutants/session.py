"""The run in the copy: pytest collects the tests once, and each mutant is tried in a fork.

Owns `Session`, the pytest plugin, and `Choice`, what was chosen on the command line.

1. First every mutant meets its tests; only those that pass them all meet the seeds.
2. What is finished is kept at once, so that a run can be stopped and continued. A changed package
   begins anew, changed tests do not: a survivor is tried again on demand.

Not here: the command line and the copy (`tests/mutants/run.py`), one mutant
(`tests/mutants/trial.py`).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TextIO

import pytest

from tests.mutants.lines_of_tests import LinesOfTests
from tests.mutants.sites import Key, Mutant, key_of
from tests.mutants.trial import CRASHED, PASSED, SURVIVED, TIMED_OUT, Outcome, Trial
from twisted_broker.simulation.process_pool import Died, run_all
from twisted_broker.simulation.progress import Progress
from twisted_broker.simulation.run_state import RunState, source_of

EQUIVALENT = "named equivalent"
WANTED = 0.95
"""The share of mutants that must be noticed, of those that can be"""
_TESTS_SECONDS, _SEEDS_SECONDS = 600.0, 1800.0
_NEVER = "end"


Try = Callable[[Mutant], Outcome]


class Choice(NamedTuple):
    """`seed`: of the sample; `seconds`: of tests for each mutant; `again`: survivors of an earlier
    run are tried again; `jobs`: processes; `control`: nothing is mutated.
    """

    seed: int
    seconds: float
    again: bool
    jobs: int
    control: bool


class Session:
    """`outcomes`: mutant -> what became of it."""

    def __init__(
        self,
        root: Path,
        directory: Path,
        mutants: Collection[Mutant],
        named: Mapping[Key, str],
        choice: Choice,
        lines: LinesOfTests,
        out: TextIO = sys.stdout,
    ) -> None:
        self._root, self._choice, self._out, self._named = root, choice, out, named
        self._directory, self._lines = directory, lines
        self._mutants = {str(mutant): mutant for mutant in mutants}
        self.outcomes: dict[str, Outcome] = {}
        self.stopped = False

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of the tests themselves."""
        choice = self._choice
        trial = Trial(self._root, session.items, self._lines, choice.seconds, choice.control)
        self.run(trial.run_tests, trial.run_seeds)
        return True

    def run(self, run_tests: Try, run_seeds: Try) -> None:
        """Tries what is not finished."""
        source, choice = source_of([self._root / "twisted_broker"]), self._choice
        run = {"source": source, "seed": choice.seed, "control": choice.control}
        # A finished run is shown again; survivors are tried again on demand.
        state = RunState(self._directory / "mutants.jsonl", run, [*self._mutants, _NEVER])
        if state.began:
            self._out.write(f"{state.began}\n")
        for name, mutant in self._mutants.items():
            self._begin(state, name, mutant)
        try:
            self._all(state, self._left(None), run_tests, _TESTS_SECONDS)
            self._all(state, self._left(PASSED), run_seeds, _SEEDS_SECONDS)
        except KeyboardInterrupt:
            self.stopped = True
            self._out.write(f"stopped: {self.figures()}; the same command goes on from here\n")
        finally:
            state.close()

    def _begin(self, state: RunState, name: str, mutant: Mutant) -> None:
        """What is known of a mutant already."""
        found = state.finished.get(name)
        reason = self._reason(mutant)
        if reason:
            self.outcomes[name] = Outcome(EQUIVALENT, reason)
        elif found is not None and not (self._choice.again and found[0] == SURVIVED):
            self.outcomes[name] = Outcome(*found)

    def _reason(self, mutant: Mutant) -> str:
        """Why it cannot be noticed; "" for most. A key costs the parsing of its module."""
        place = mutant.place
        if not any(key[:2] == (place.module, place.scope) for key in self._named):
            return ""
        return self._named.get(self.key(mutant), "")

    def _left(self, verdict: str | None) -> list[str]:
        found = ((name, self.outcomes.get(name)) for name in self._mutants)
        return [name for name, each in found if (each and each.verdict) == verdict]

    def _all(self, state: RunState, left: Collection[str], work: Try, limit: float) -> None:
        """One of the two passes."""
        progress = Progress(self._out, "mutants", len(left))
        results = run_all(
            left,
            lambda name: work(self._mutants[name]),
            self._choice.jobs,
            limit,
            each_its_own=True,
        )
        with closing(results):
            for found in results:
                if found is None:
                    continue
                name, outcome = found
                if isinstance(outcome, Died):
                    outcome = _outcome_of(outcome)
                self.outcomes[name] = outcome
                state.add(name, outcome)
                progress.add()
                if outcome.verdict == SURVIVED:
                    self._out.write(f"{name} survives\n")
                progress.write(self.figures())
        if left:
            progress.write(self.figures(), at_once=True)

    # what is said of it

    def key(self, mutant: Mutant) -> Key:
        return key_of((self._root / mutant.place.module).read_text(), mutant)

    @property
    def counts(self) -> Counter[str]:
        return Counter(each.verdict for each in self.outcomes.values())

    @property
    def share(self) -> float:
        """How many were noticed, of those that can be."""
        counts = self.counts
        able = counts.total() - counts[EQUIVALENT]
        return 1 - counts[SURVIVED] / able if able else 1.0

    def figures(self) -> str:
        counts = self.counts
        found = ", ".join(f"{counts[verdict]} {verdict}" for verdict in sorted(counts))
        return f"{counts.total()} mutants: {found}" if found else "none yet"

    def report(self) -> Iterable[str]:
        """The survivors, as entries of `equivalent.toml`, and the figures."""
        for name, outcome in self.outcomes.items():
            if outcome.verdict == SURVIVED:
                yield f"\n# {name}: {outcome.by}\n[[mutant]]"
                key = self.key(self._mutants[name])
                for field, value in key._asdict().items():
                    yield f"{field} = {json.dumps(value)}"
        yield f"\n{self.figures()}\n{self.share:.1%} of those that can be noticed were"


def _outcome_of(died: Died) -> Outcome:
    """What the end of a process says of its mutant; what the run itself raised is no outcome."""
    if "Traceback" in died.why:
        raise RuntimeError(died.why)
    late = died.why.startswith("not finished")
    return Outcome(TIMED_OUT if late else CRASHED, died.why)
