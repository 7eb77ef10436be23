"""Many seeds: in processes, stopped and continued, failures made short."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from twisted_broker.simulation.many_seeds import ManySeeds, Outcome, file_of
from twisted_broker.simulation.options import Options, options_of
from twisted_broker.simulation.scenario_file import RecordedRun
from twisted_broker.simulation.schedule import Action

# Forks: in a process that has run all unit tests a lock may be held by another thread.
pytestmark = pytest.mark.clients
ACTIONS = [Action(float(n), "p0", n) for n in range(1, 40)]


def run_seed(seed: int) -> tuple[Outcome, RecordedRun]:
    """Every seventh breaks one of two rules; the 30th ends its process."""
    if seed == 30:
        os.kill(os.getpid(), signal.SIGKILL)
    rule = "lost" if seed % 2 else "twice"
    violation = f"t0-0: {seed} {rule}" if seed % 7 == 6 else ""
    outcome = Outcome(violation, f"seed {seed}: {violation}", {"steps": 10, "rolls": seed})
    return outcome, RecordedRun(options_of(seed), ACTIONS, violation)


def replay(options: Options, actions: Sequence[Action]) -> RecordedRun:
    outcome, _ = run_seed(options.seed)
    bad = any(action.number == 21 for action in actions)
    return RecordedRun(options, list(actions), outcome.violation if bad else "")


def many(out: io.StringIO, directory: Path | None, run=run_seed, jobs: int = 2) -> ManySeeds:
    return ManySeeds(run, replay, out, directory, jobs)


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Python's own: a reactor that ran in this process before has left another one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_counts_of_all_seeds_are_added_up() -> None:
    out = io.StringIO()
    seeds = many(out, None)
    assert seeds.run(range(20), {}, quiet=False)
    assert seeds.total.counts == {"steps": 200, "rolls": sum(range(20))}
    assert seeds.failed == [6, 13]
    lines = out.getvalue().splitlines()
    assert [f"seed {seed}: " in lines for seed in range(20)].count(False) == 2
    assert "seed 13: t0-0: 13 lost" in lines


def test_a_seed_that_ends_its_process_has_failed() -> None:
    out = io.StringIO()
    seeds = many(out, None)
    assert seeds.run(range(28, 33), {}, quiet=True)
    assert seeds.failed == [30]
    assert out.getvalue() == "seed 30\n  FAILED: the process ended with status -9\n"


@pytest.mark.usefixtures("_interruptible")
def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """Ctrl-C in the middle: what was finished is not run again; all of them are counted."""
    ran, state = tmp_path / "ran", tmp_path / "state"
    ran.mkdir()

    def stopping(seed: int) -> tuple[Outcome, RecordedRun]:
        if seed == 12:
            # The answer of the one before may be on its way yet.
            while '"item": 11,' not in (state / "seeds.jsonl").read_text():
                time.sleep(0.01)
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(600)
        (ran / str(seed)).touch(exist_ok=False)
        return run_seed(seed)

    def going_on(seed: int) -> tuple[Outcome, RecordedRun]:
        (ran / str(seed)).touch(exist_ok=False)
        return run_seed(seed)

    out = io.StringIO()
    first = many(out, state, stopping, jobs=1)
    assert not first.run(range(20), {"brokers": 3}, quiet=True)
    assert sorted(first.outcomes) == list(range(12))
    assert out.getvalue().endswith(
        "stopped: 12 of 20 finished; the same command goes on from here\n"
    )
    out = io.StringIO()
    second = many(out, state, going_on)
    assert second.run(range(20), {"brokers": 3}, quiet=True)
    assert out.getvalue().startswith(f"{state / 'seeds.jsonl'}: goes on, 12 are finished\n")
    assert len(list(ran.iterdir())) == 20
    assert second.total.counts == {"steps": 200, "rolls": sum(range(20))}
    assert second.failed == [6, 13]


def test_one_seed_of_each_rule_is_made_a_short_file(tmp_path: Path) -> None:
    out = io.StringIO()
    assert many(out, tmp_path).run(range(28), {}, quiet=True)
    assert sorted(path.name for path in tmp_path.glob("seed-*")) == ["seed-13.json", "seed-6.json"]
    short = RecordedRun.load(file_of(tmp_path, 13))
    assert [action.number for action in short.actions] == [21]
    assert f"39 actions made 1: python -m twisted_broker.simulation --replay {tmp_path}" in (
        out.getvalue()
    )


def test_a_long_run_shows_how_far_it_is() -> None:
    """A line now and then, none for a seed that passed; the last says all."""
    out = io.StringIO()
    assert many(out, None).run([*range(28), *range(31, 131)], {}, quiet=False)
    lines = out.getvalue().splitlines()
    assert not any(line.startswith("seed 5:") for line in lines)
    assert lines[-1].startswith("128 of 128 seeds, ") and lines[-1].endswith(" 0 s left, 18 failed")


def test_what_is_kept_is_a_line_for_each_seed(tmp_path: Path) -> None:
    many(io.StringIO(), tmp_path).run(range(3), {}, quiet=True)
    rows = [json.loads(line) for line in (tmp_path / "seeds.jsonl").read_text().splitlines()]
    assert sorted(row["item"] for row in rows[1:-1]) == [0, 1, 2]
    assert sorted(row["result"][1] for row in rows[1:-1]) == ["seed 0: ", "seed 1: ", "seed 2: "]
