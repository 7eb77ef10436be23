"""Hundreds of seeds of the quorum's simulation, what they reach, and the mutations that only a rare
seed finds.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.raft import mutations
from tests.raft.faults import run_seed

SEEDS = 200
REACHED = (
    "elected",
    "pre-vote refused",
    "truncation",
    "snapshot fetched",
    "no majority",
    "stopped in order",
    "voter added",
    "voter removed",
    "a voter no more",
    "kraft.version upgraded",
    "disk lost",
    "unsynced bytes lost",
    "message repeated",
)
FOUND: dict[mutations.Mutation, int] = {
    mutations.vote_for_a_shorter_log: 65,
    mutations.truncates_too_far: 0,
}


def test_hundreds_of_seeds_reach_everything() -> None:
    reach: Counter[str] = Counter()
    for seed in range(SEEDS):
        reach += run_seed(seed)
    assert [each for each in REACHED if reach[each] < 3] == []


@pytest.mark.parametrize("mutation", FOUND, ids=lambda mutation: mutation.__name__)
def test_a_mutation_of_the_core_is_found(
    mutation: mutations.Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    with pytest.raises(AssertionError):
        run_seed(FOUND[mutation])
