"""Many seeds of a scenario, and what is told of those that fail.

Owns `Seeds`. Each seed runs in a forked process of its own. The first seed of each kind of failure
is made short: faults are left out while it fails in the same way.

Source: our own. Not here: a run (`run.py`), leaving out (`simulation/shrink.py`).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO

from twisted_broker.simulation.process_pool import Died, run_all
from twisted_broker.simulation.progress import Progress
from twisted_broker.simulation.schedule import Action
from twisted_broker.simulation.shrink import leave_out, rule_of
from twisted_broker.testing.simulated.controlled import Controlled
from twisted_broker.testing.simulated.run import Outcome, Scenario, run_seed

_RUN_SECONDS, _SHRINK_SECONDS = 300.0, 60.0
_MOST_SHORT = 3
_MOST_LINES = 30
_OF_BROKERS = re.compile(r"^ *[\d.]+ (broker|controller)")
_INTERNAL = re.compile(r"__consumer_offsets|__transaction_state")


class Seeds:
    """`source`: the file, for the line that runs a seed again; `folder`: of schedules."""

    def __init__(
        self,
        scenario: Scenario,
        controlled: Controlled,
        out: TextIO,
        source: str,
        folder: Path,
        jobs: int,
    ) -> None:
        self._scenario, self._controlled, self._out = scenario, controlled, out
        self._source, self._folder, self._jobs = source, folder, jobs
        self.failed: dict[int, str] = {}
        self.refused = ""
        self.seconds = 0.0

    def run(self, seeds: range, digests: bool) -> None:
        """Runs them all; tells what failed."""
        progress = Progress(self._out, "seeds", len(seeds))
        began = time.monotonic()
        for found in self._outcomes([(seed, None) for seed in seeds]):
            if found is None:
                progress.write(f"{len(self.failed)} failed")
                continue
            self._count(found)
            progress.add()
            if digests:
                self._print(f"seed {found.seed} {found.digest}")
            if self.refused:
                return
        took = time.monotonic() - began
        passed, failed = len(seeds) - len(self.failed), len(self.failed)
        virtual = f"{self.seconds:,.0f} virtual s in {took:.0f} s"
        self._print(f"{passed} passed, {failed} failed: {virtual}")
        self._print_failures()

    def run_one(self, seed: int, kept: Sequence[Action] | None) -> None:
        """Runs it, and tells its story."""
        for found in self._outcomes([(seed, kept)]):
            if found is not None:
                self._count(found)
                lines = found.story if found.failure else found.story[-_MOST_LINES:]
                self._print(f"seed {seed}, {found.seconds:.1f} virtual s, digest {found.digest}")
                self._print("\n".join(lines))
                self._print(found.failure or "passed")

    def _count(self, found: Outcome) -> None:
        self.seconds += found.seconds
        self.refused = self.refused or found.refused
        if found.failure:
            self.failed[found.seed] = found.failure

    def _print(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()

    def _outcomes(self, runs: Sequence[tuple[int, Sequence[Action] | None]]) -> Any:
        """Of each run, in the order of finishing; None now and then."""

        def work(number: int) -> Outcome:
            seed, kept = runs[number]
            # What has kept the standard output from before the run prints into it for nobody.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for descriptor in (1, 2):
                os.dup2(nowhere, descriptor)
            return run_seed(self._scenario, seed, self._controlled, kept)

        made = run_all(range(len(runs)), work, self._jobs, _RUN_SECONDS, each_its_own=True)
        with closing(made):
            for each in made:
                if each is None:
                    yield None
                    continue
                number, result = each
                if isinstance(result, Died):
                    result = Outcome(runs[number][0], result.why, "", 0.0, 0, "", [], [])
                yield result

    # failures

    def _print_failures(self) -> None:
        first: dict[str, int] = {}
        for seed in sorted(self.failed):
            first.setdefault(rule_of(_last_line(self.failed[seed])), seed)
        for seed in [*first.values()][:_MOST_SHORT]:
            self._print_story(seed)
        told = {*[*first.values()][:_MOST_SHORT]}
        if self.failed.keys() - told:
            rest = ", ".join(str(seed) for seed in sorted(self.failed.keys() - told))
            self._print(f"failed too: {rest}")

    def _print_story(self, seed: int) -> None:
        whole = self._once(seed, None)
        short = self._made_short(whole) if whole.actions else whole
        path = self._folder / f"{Path(self._source.partition('::')[0]).stem}.seed-{seed}.json"
        save_schedule(path, seed, short.actions)
        self._print(f"\nseed {seed}: {_last_line(short.failure)}")
        left = f"{len(short.actions)} of {len(whole.actions)} faults"
        self._print(f"after {short.seconds:.1f} virtual s, with {left} (the others do not matter):")
        self._print("\n".join(_for_people(short.story)))
        self._print(short.failure)
        self._print(f"again: replog simulate {self._source} --schedule {path}")

    def _once(self, seed: int, kept: Sequence[Action] | None) -> Outcome:
        found: Outcome = next(each for each in self._outcomes([(seed, kept)]) if each is not None)
        return found

    def _made_short(self, whole: Outcome) -> Outcome:
        until = time.monotonic() + _SHRINK_SECONDS
        rule = rule_of(_last_line(whole.failure))
        best = whole

        def tries(actions: Sequence[Action]) -> Sequence[Action] | None:
            nonlocal best
            if time.monotonic() > until:
                return None
            found = self._once(whole.seed, actions)
            if rule_of(_last_line(found.failure)) != rule:
                return None
            best = found
            return found.actions

        leave_out(whole.actions, tries, lambda: time.monotonic() < until)
        return best


def save_schedule(path: Path, seed: int, actions: Sequence[Action]) -> None:
    """A seed, and the faults that alone are done: a line each, to be read and edited."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"seed": seed, "faults": [str(action) for action in actions]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def load_schedule(path: Path) -> tuple[int, list[Action]]:
    """Raises ValueError with one line when it is not such a file."""
    try:
        content = json.loads(path.read_text())
        return int(content["seed"]), [Action.of(text) for text in content["faults"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no schedule of `replog simulate`: {error!r}") from error


def _last_line(failure: str) -> str:
    lines = failure.strip().splitlines()
    return lines[-1] if lines else ""


def _for_people(story: Sequence[str]) -> list[str]:
    """All of faults, programs and the scenario; of brokers' lines the last ones."""
    lines = [line for line in story if not _INTERNAL.search(line)]
    of_brokers = [number for number, line in enumerate(lines) if _OF_BROKERS.match(line)]
    left_out = {*of_brokers[:-_MOST_LINES]}
    return [line for number, line in enumerate(lines) if number not in left_out]
