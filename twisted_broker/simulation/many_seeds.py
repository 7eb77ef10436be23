"""`make simulate` with many seeds: in parallel processes, stopped and continued, failures made
short.

Owns `Outcome`, what is kept of a seed, and `ManySeeds`.

1. Only finished seeds count. A seed that takes too long, or ends its process, has failed.
2. The counts of all seeds are added up.
3. Of each rule that was broken one seed is made a short file, a few of them at most.

Not here: a seed (`simulation/run.py`), what may be left out of one (`simulation/shrink.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from twisted_broker.simulation.fault_schedule import WANTED
from twisted_broker.simulation.options import Options
from twisted_broker.simulation.process_pool import Died, run_all
from twisted_broker.simulation.progress import Progress
from twisted_broker.simulation.reach import Total
from twisted_broker.simulation.run_state import RunState, source_of
from twisted_broker.simulation.scenario_file import RecordedRun
from twisted_broker.simulation.schedule import Action
from twisted_broker.simulation.shrink import rule_of, shrink

_SEED_SECONDS = 300.0
_SHRINK_SECONDS = 240.0
_MOST_SHRUNK = 4
_EACH_SEED = 100
"""So many seeds have a line each"""
_END = "end"
PACKAGE = Path(__file__).parents[2]


class Outcome(NamedTuple):
    """`violation`: "" when all was well; `text`: for a reader; `counts`: kind -> how often."""

    violation: str
    text: str
    counts: Mapping[str, int]


RunSeed = Callable[[int], tuple[Outcome, RecordedRun]]
Replay = Callable[[Options, Sequence[Action]], RecordedRun]


class ManySeeds:
    """`run_seed` and `replay` run in other processes. `directory`: keeps what is finished there,
    and short files of failures; None: neither. `wanted`: what the seeds must reach.
    """

    def __init__(
        self,
        run_seed: RunSeed,
        replay: Replay,
        out: TextIO,
        directory: Path | None,
        jobs: int,
        wanted: Mapping[str, str] = WANTED,
    ) -> None:
        self._run_seed, self._replay, self._out = run_seed, replay, out
        self._directory, self._jobs = directory, jobs
        self.outcomes: dict[int, Outcome] = {}
        self.total = Total(wanted)

    @property
    def failed(self) -> list[int]:
        return sorted(seed for seed, outcome in self.outcomes.items() if outcome.violation)

    def run(self, seeds: Collection[int], options: dict[str, Any], quiet: bool) -> bool:
        """Runs them; False when it was stopped before all were finished."""
        state = self._state(seeds, options)
        progress = Progress(self._out, "seeds", len(seeds), len(self.outcomes))
        left = [seed for seed in seeds if seed not in self.outcomes]
        results = run_all(left, lambda seed: self._run_seed(seed)[0], self._jobs, _SEED_SECONDS)
        try:
            with closing(results):
                for found in results:
                    if found is not None:
                        progress.add()
                        self._finished(state, *found, quiet or len(seeds) > _EACH_SEED)
                    if not quiet:
                        progress.write(f"{len(self.failed)} failed")
            if len(seeds) > _EACH_SEED and not quiet:
                progress.write(f"{len(self.failed)} failed", at_once=True)
            if state is not None:
                self._shrink(state)
                state.add(_END, None)
        except KeyboardInterrupt:
            kept = "" if state is None else "; the same command goes on from here"
            self._out.write(f"stopped: {len(self.outcomes):,} of {len(seeds):,} finished{kept}\n")
            return False
        finally:
            if state is not None:
                state.close()
        return True

    def include(self, others: ManySeeds) -> None:
        """Counts what they ran."""
        for seed, outcome in others.outcomes.items():
            self._count(seed, outcome)

    def _state(self, seeds: Collection[int], options: dict[str, Any]) -> RunState | None:
        if self._directory is None:
            return None
        run = {"source": source_of([PACKAGE]), **options}
        state = RunState(self._directory / "seeds.jsonl", run, [*seeds, _END])
        if state.began:
            self._out.write(f"{state.began}\n")
        for seed in state.finished.keys() & set(seeds):
            self._count(seed, Outcome(*state.finished[seed]))
        return state

    def _count(self, seed: int, outcome: Outcome) -> None:
        self.outcomes[seed] = outcome
        self.total.add(outcome.counts)

    def _finished(
        self, state: RunState | None, seed: int, found: Outcome | Died, quiet: bool
    ) -> None:
        if isinstance(found, Died):
            found = Outcome(found.why, f"seed {seed}\n  FAILED: {found.why}", {})
        self._count(seed, found)
        if state is not None:
            state.add(seed, found)
        if found.violation or not quiet:
            self._out.write(f"{found.text}\n")
            self._out.flush()

    # failures

    def _shrink(self, state: RunState) -> None:
        """A file for the first seed of each rule that was broken."""
        first: dict[str, int] = {}
        for seed in self.failed:
            first.setdefault(rule_of(self.outcomes[seed].violation), seed)
        chosen = [
            seed
            for seed in list(first.values())[:_MOST_SHRUNK]
            if _shrunk(seed) not in state.finished
        ]
        if chosen:
            self._out.write(f"makes short files of seeds {' '.join(map(str, chosen))}\n")
            self._out.flush()
        made = run_all(chosen, self._made_short, self._jobs, _SHRINK_SECONDS * 2)
        with closing(made):
            for found in made:
                if found is not None:
                    line = _line_of(found[1])
                    state.add(_shrunk(found[0]), line)
                    self._out.write(f"seed {found[0]}: {line}\n")
                    self._out.flush()

    def _made_short(self, seed: int) -> str:
        """What became of it; in another process."""
        assert self._directory is not None
        return made_short(
            self._run_seed(seed)[1], self._replay, file_of(self._directory, seed), _SHRINK_SECONDS
        )


def _shrunk(seed: int) -> str:
    """How the state calls a seed that was made short."""
    return f"short {seed}"


def file_of(directory: Path, seed: int) -> Path:
    """Where the short run of a seed is."""
    return directory / f"seed-{seed}.json"


def made_short(run: RecordedRun, replay: Replay, path: Path, seconds: float) -> str:
    """Writes the short run; what is to be said of it."""
    until = time.monotonic() + seconds

    def attempt(options: Options, actions: Sequence[Action]) -> tuple[str, list[Action]]:
        found = replay(options, actions)
        return found.violation, found.actions

    short = shrink(run, attempt, lambda: time.monotonic() < until)
    short.save(path)
    return (
        f"{len(run.actions)} actions made {len(short.actions)}: "
        f"python -m twisted_broker.simulation --replay {path}"
    )


def _line_of(result: str | Died) -> str:
    return f"could not be made short: {result.why}" if isinstance(result, Died) else result
