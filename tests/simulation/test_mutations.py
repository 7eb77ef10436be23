"""The tests notice each known mistake (RELIABILITY 2.5 and more): the simulation by the seed
recorded here or one soon after it; what the simulation does not reach yet, a test below it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache

import pytest

from tests.simulation.mutations import MUTATIONS, planted, search
from twisted_broker.simulation.__main__ import run_seed
from twisted_broker.simulation.checks.committed_state import Violation

RECORDED = {
    "truncate_to_the_high_watermark": 6,
    "fetch_is_not_fenced": 16,
    "high_watermark_over_the_committed_isr": 16,
    "expansion_without_the_epochs_start": 9,
    "isr_change_without_partition_epoch": 10,
    "high_watermark_below_the_minimum_isr": 9,
    "checkpoint_renamed_without_sync": 0,
    "produce_completed_on_the_log_end": 0,
    "duplicate_acknowledged_at_once": 8,
    "producers_forgotten_on_a_follower": 4,
    "metadata_not_synced": 0,
    "high_watermark_from_the_leaders_own_end": 0,
    "truncation_below_the_high_watermark": 6,
    "leader_epoch_not_raised": 0,
    "expansion_before_caught_up": 9,
    "old_leader_changes_the_isr": 10,
    "unclean_stop_forgotten": 13,
    "shrunk_isr_counts_before_the_answer": 2,
    "sequences_not_checked": 2,
    "old_incarnation_counted": 61,
    "epoch_cache_not_cut": 13,
    "followers_mark_beyond_its_end": 3,
    "metadata_applied_before_it_is_durable": 29,
    "elected_outside_the_isr": 7,
    "flush_never_syncs": 121,
    "clean_stop_syncs_nothing": 25,
    "snapshot_without_a_record": 6,
    "offset_commit_acknowledged_before_replication": 19,
    "aborted_transactions_forgotten": 15,
    "open_transactions_are_stable": 14,
    "open_transactions_forgotten_on_a_follower": 14,
    "new_instance_does_not_fence": 15,
    "completed_without_markers": 15,
    "timed_out_not_aborted": 31,
    "last_value_cleaned_away": 14,
    "cleaned_above_the_last_stable_offset": 15,
    "tombstone_cleaned_too_early": 15,
    "aborted_records_replace_others": 15,
    "offsets_change_in_cleaning": 14,
    "transactional_append_not_verified": 190,
    "marker_ends_the_next_verification": 62,
    "pending_offsets_are_shown": 15,
    "markers_of_an_old_coordinator_count": 158,
    "transactions_share_an_epoch": 14,
    "prepared_not_resumed": 30,
    "last_sequence_cleaned_away": 15,
    "recovery_point_before_the_flush": 207,
    "recovery_without_crc": 64,
    "partition_given_before_it_is_free": 11,
    "upgrade_forgets_the_generation": 20,
    "offsets_lost_with_an_upgrade": 17,
    "task_given_before_it_is_free": 18,
    "any_commit_of_a_streams_group": 55,
    "lock_not_checked": 44,
    "acceptance_answered_before_it_is_written": 38,
    "given_back_is_over": 12,
}
BELOW = {
    "duplicates_not_recalled": (
        "tests/log/test_idempotence.py::test_state_survives_a_reload",
        "64 seeds from 89 on did not any more: a producer must try again, after a restart, what is "
        "not its last batch",
    ),
    "failed_partitions_tell_nobody": (
        "tests/replication/test_replica_manager.py::"
        "test_what_follows_from_a_failed_directory_is_done_some_partitions_at_a_time",
        "200 seeds with failed directories did not: a follower's fetch must wait on nothing but "
        "partitions of that directory, for more calls than the check allows",
    ),
    "followers_remembered_over_a_leader_change": (
        "tests/replication/test_partition.py::test_make_leader_resets_what_it_knew_of_followers",
        "20 seeds with handovers and pauses did not: who leads again must expose something before "
        "a follower that truncated meanwhile has fetched",
    ),
    "late_fetch_answers_count": (
        "tests/replication/test_fetcher_state.py::test_an_answer_of_yesterday_counts_for_nothing",
        "20 seeds with pauses and late connections did not: an answer of the old leader, under way "
        "as the epoch changes, must begin where the truncated log ends",
    ),
    "recovery_point_moved_with_the_sync": (
        "tests/log/test_durability.py::test_one_sync_runs_and_one_waits",
        "25 seeds with rolls, slow disks and losses of power did not: a checkpoint that was due "
        "before the sync must be written behind its beginning, and what is torn lie below it",
    ),
}
"""What 200 seeds need not catch yet -> a test that fails with it, and what the simulation lacks to
catch it.
"""
WINDOW = 64
"""A change of the production code makes every seed another run: the mistake must then be caught by
one of these many seeds. The search ends at the first that catches it, so the window costs nothing
while the recorded one does.
"""
SHOWN_AS_NOT_HEALED = {
    "checkpoint_renamed_without_sync": "a broker does not start on the empty file that is left",
    "recovery_without_crc": "no follower takes the torn batch, so nothing is committed any more",
}
_OF_THE_MUTATION = re.compile(r"(TypeError|AttributeError|NameError|AssertionError)")
"""A mutation that breaks by itself is no mistake that was noticed."""


def test_each_mistake_is_to_be_noticed_somewhere() -> None:
    assert RECORDED.keys() | BELOW.keys() == MUTATIONS.keys() and len(MUTATIONS) >= 30


def test_a_mutation_of_nothing_fails() -> None:
    """No such function, other parameters, never called: each is an error, not a caught mistake."""
    with planted("fetch_is_not_fenced") as planting:
        with pytest.raises(AssertionError, match="never called"):
            planting.check_ran()
        with pytest.raises(KeyError):
            planting(planting.__class__, "no_such_function", lambda self: None)
        with pytest.raises(AssertionError, match="check_ran"):
            planting(planting.__class__, "check_ran", lambda self, other: None)


@cache
def violation_of(seed: int) -> Violation | None:
    """Without a mutation."""
    return run_seed(seed).violation


@pytest.mark.more
@pytest.mark.forked
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_a_recorded_seed_catches_it(name: str) -> None:
    """The recorded seed, or one of its neighbours, breaks with the mutation."""
    found = search(name, WINDOW, RECORDED[name])
    assert found is not None, (
        f"{name} is not caught from seed {RECORDED[name]} on: search again (python -m "
        f"tests.simulation.mutations {name})"
    )
    seed, verdict = found
    if name not in SHOWN_AS_NOT_HEALED:
        assert "not healed" not in str(verdict.violation), verdict.violation
    assert not _OF_THE_MUTATION.search(str(verdict.violation)), verdict.violation
    assert violation_of(seed) is None, "the seed fails without the mutation, too"


@pytest.mark.more
@pytest.mark.parametrize("name", sorted(BELOW))
def test_a_test_below_catches_it(name: str) -> None:
    """It passes without the mistake (it is a test of its own), and fails with it."""
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.simulation.planted", BELOW[name][0]],
        env=os.environ | {"REPLOG_MUTATION": name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == pytest.ExitCode.TESTS_FAILED, found.stdout[-3000:]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_200_seeds_catch_it(name: str) -> None:
    """Nothing is recorded: from seed 0 on, each mutation is caught within 200 seeds."""
    assert search(name) is not None
