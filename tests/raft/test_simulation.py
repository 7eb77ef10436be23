"""The quorum under random faults, by seed; what a few hundred seeds must reach. More seeds, and the
mutations that take long to find, are in `test_many_seeds.py`.
"""

from __future__ import annotations

import pytest

from tests.raft import mutations
from tests.raft.faults import run_seed

FOUND: dict[mutations.Mutation, int] = {
    mutations.answer_before_the_disk: 0,
    mutations.vote_is_forgotten: 0,
    mutations.vote_is_given_twice: 0,
    mutations.older_epoch_is_committed: 1,
    mutations.half_is_a_majority: 0,
    mutations.fetch_before_sync: 0,
    mutations.leader_counts_unsynced: 0,
    mutations.does_not_truncate: 1,
    mutations.pre_vote_is_kept: 0,
    mutations.candidate_keeps_its_epoch: 0,
    mutations.restarted_leader_leads_on: 0,
}
"""Mutations of the core, and a seed that finds each."""


@pytest.mark.parametrize("seed", range(21))
def test_the_invariants_hold(seed: int) -> None:
    run_seed(seed)


@pytest.mark.parametrize("mutation", FOUND, ids=lambda mutation: mutation.__name__)
def test_a_mutation_of_the_core_is_found(
    mutation: mutations.Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    with pytest.raises(AssertionError):
        run_seed(FOUND[mutation])
