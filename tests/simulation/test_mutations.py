"""The simulation bites: each known mistake (RELIABILITY 2.5) is caught, by the seed recorded
here or one soon after it.
"""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS, search
from twisted_broker.testing.sim.__main__ import run_seed

RECORDED = {
    "truncate_to_the_high_watermark": 0,
    "fetch_is_not_fenced": 6,
    "high_watermark_over_the_committed_isr": 2,
    "expansion_without_the_epochs_start": 17,
    "produce_completed_on_the_log_end": 0,
    "epoch_cache_not_cut": 0,
    "isr_change_without_partition_epoch": 2,
    "high_watermark_below_the_minimum_isr": 4,
    "old_incarnation_counted": 69,
}
WINDOW = 64
"""A change of the production code makes every seed another run: the mistake must then be caught by
one of these many seeds. The search ends at the first that catches it, so the window costs nothing
while the recorded one does.
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_recorded_seed_catches_it(name: str) -> None:
    """The recorded seed, or one of its neighbours, breaks with the mutation."""
    found = search(name, WINDOW, RECORDED[name])
    assert found is not None, (
        f"{name} is not caught from seed {RECORDED[name]} on: search again (python -m "
        f"tests.simulation.mutations {name})"
    )
    seed, verdict = found
    assert "not healed" not in str(verdict.violation) or name == "epoch_cache_not_cut", (
        verdict.violation
    )
    assert run_seed(seed).violation is None, "the seed fails without the mutation, too"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_200_seeds_catch_it(name: str) -> None:
    """Nothing is recorded: from seed 0 on, each mutation is caught within 200 seeds."""
    assert search(name) is not None
