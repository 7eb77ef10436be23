"""Simulated clusters with three controllers under seeds, every rule checked after every step (QU
7.4), and the mistakes that this must notice.
"""

from __future__ import annotations

import io
from functools import cache

import pytest

from tests.simulation.quorum_mutations import MUTATIONS, search
from twisted_broker.simulation.__main__ import main, run_seed
from twisted_broker.simulation.checks.committed_state import Violation
from twisted_broker.simulation.options import options_of
from twisted_broker.simulation.quorum.options import quorum_options_of

RECORDED = {
    "standby_applies_all_it_has": 2,
    "sessions_outlive_the_lead": 4,
    "decides_on_after_it_renounced": 2,
}
"""Mistake -> a seed that notices it."""
WINDOW = 30
"""A change of the production code makes every seed another run."""


@cache
def violation_of(seed: int) -> Violation | None:
    """Without a mistake."""
    return run_seed(seed, options=quorum_options_of(seed)).violation


def test_every_mistake_has_a_seed() -> None:
    assert RECORDED.keys() == MUTATIONS.keys()


@pytest.mark.more
@pytest.mark.forked
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "sessions_outlive_the_lead" else pytest.mark.long)
        for name in sorted(RECORDED)
    ],
)
def test_a_recorded_seed_with_three_controllers_notices_it(name: str) -> None:
    """QU 7.4: the seed breaks a rule with the mistake, and none without it."""
    found = search(name, WINDOW, RECORDED[name])
    assert found is not None, f"search again: python -m tests.simulation.quorum_mutations {name}"
    assert violation_of(found[0]) is None, "the seed fails without the mistake, too"


@pytest.mark.long
@pytest.mark.timeout(14_400)
def test_a_hundred_seeds_with_three_controllers() -> None:
    """QU 7.4: whoever leads dies, is cut off, is slow; all that the table names was reached."""
    out = io.StringIO()
    assert main(["--controllers", "3", "--seeds", "100", "--quiet"], out) == 0, out.getvalue()


def test_what_a_seed_with_three_controllers_is() -> None:
    """The seed's cluster, its clients and faults, and faults of controllers; in a liveness run two
    controllers stay healthy, so none is struck.
    """
    for seed in range(32):
        one, three = options_of(seed), quorum_options_of(seed)
        assert (one.controllers, three.controllers) == (1, 3) and not one.controller_faults
        assert (three.topics, three.faults) == (one.topics, one.faults)
        assert bool(three.controller_faults) is not three.liveness
        assert "damage metadata" not in three.damages
        if three.controller_only:
            assert three.broker_ids == [4, 5, 6]
