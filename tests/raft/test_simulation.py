"""The quorum under random faults, by seed; what a few hundred seeds must reach. More seeds, and the
mutations that take long to find, are in `test_many_seeds.py`.
"""

from __future__ import annotations

import pytest

from tests.raft import mutations
from tests.raft.faults import run_seed

FOUND: dict[mutations.Mutation, int] = {
    mutations.answer_before_the_disk: 0,
    mutations.candidate_keeps_its_epoch: 0,
    mutations.does_not_truncate: 0,
    mutations.fetch_before_sync: 0,
    mutations.half_is_a_majority: 2,
    mutations.leader_counts_unsynced: 0,
    mutations.pre_vote_is_kept: 0,
    mutations.restarted_leader_leads_on: 0,
    mutations.snapshot_without_voters: 0,
    mutations.two_changes_at_once: 2,
    mutations.voters_at_commit: 0,
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
