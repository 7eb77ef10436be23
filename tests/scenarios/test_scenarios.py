"""The scenarios of this directory are true.

`python -m twisted_broker.simulation.scenario.__main__ FILE` shows one as it happens.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from twisted_broker.simulation.scenario.__main__ import run_scenario

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


def test_there_are_enough() -> None:
    """Issue 4, section 3: at least 25 scenarios."""
    assert len(SCENARIOS) >= 25


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(scenario: Path) -> None:
    run_scenario(scenario)
