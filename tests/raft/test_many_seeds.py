"""Hundreds of seeds of the quorum's simulation, what they reach, and the mutations that only a rare
seed finds.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.raft import mutations
from tests.raft.faults import run_seed

pytestmark = pytest.mark.timeout(900)
SEEDS = 100
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
RARE: tuple[mutations.Mutation, ...] = (
    mutations.older_epoch_is_committed,
    mutations.snapshot_of_a_dropped_download,
    mutations.truncates_too_far,
    mutations.vote_for_a_shorter_log,
    mutations.vote_is_given_twice,
    mutations.voters_outlive_truncation,
)


def test_hundreds_of_seeds_reach_everything() -> None:
    reach: Counter[str] = Counter()
    for seed in range(SEEDS):
        reach += run_seed(seed)
    assert [each for each in REACHED if not reach[each]] == []


@pytest.mark.parametrize("mutation", RARE, ids=lambda mutation: mutation.__name__)
def test_a_mutation_of_the_core_is_found(
    mutation: mutations.Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(SEEDS):
            run_seed(seed)
