"""Runs that failed once, made short (`simulation/shrink.py`), each named for what it found.

What was found has a test in the layer that it was in; a file stays a run that must pass, whatever
its seed means by now.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from twisted_broker.simulation.__main__ import run_seed
from twisted_broker.simulation.scenario_file import RecordedRun

FILES = sorted((Path(__file__).parent / "recorded").glob("*.json"))


@pytest.mark.forked
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_run_that_failed_once(path: Path) -> None:
    """RL 9.1-9.5: its actions are done, and no rule is broken any more."""
    recorded = RecordedRun.load(path)
    verdict = run_seed(recorded.options.seed, options=recorded.options, kept=recorded.actions)
    assert recorded.violation and verdict.violation is None, verdict.failure()
    assert len(verdict.recorded.actions) == len(recorded.actions) > 0


def test_there_are_some() -> None:
    assert FILES
