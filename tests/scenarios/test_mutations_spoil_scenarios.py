"""The scenarios bite: each mistake that the simulation must catch (RELIABILITY 2.5) spoils a
scenario, at the line that tells of it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.replication import test_partition
from tests.simulation.mutations import MUTATIONS, switched_on
from twisted_broker.coordinator.transaction.transaction_marker_sender import (
    PendingCompletion,
    TransactionMarkerSender,
)
from twisted_broker.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TxnTransitMetadata,
)
from twisted_broker.log import log, producer_append
from twisted_broker.log.watermarks import Watermarks
from twisted_broker.simulation.scenario.__main__ import ScenarioFailed, run_scenario

SPOILED = (
    ("truncate_to_the_high_watermark", "kip_101_lost_record", "expected end 2, found end 1"),
    (
        "fetch_is_not_fenced",
        "kip_320_left_behind_leader",
        "expected UNKNOWN_LEADER_EPOCH, found records none",
    ),
    # ... and by replicas alone, without a client that asks for it:
    (
        "fetch_is_not_fenced",
        "kip_320_left_behind_follower",
        "expected fetcher failed, found fetcher fetching",
    ),
    (
        "high_watermark_over_the_committed_isr",
        "isr_expansion_waits_for_the_controller",
        "expected hw 2, found hw 3",
    ),
    (
        "expansion_without_the_epochs_start",
        "isr_expansion_waits_for_the_epochs_start",
        "expected end 3, found end 2",
    ),
    (
        "produce_completed_on_the_log_end",
        "delayed_produce_waits_for_the_isr",
        "expected p to wait, found at 0",
    ),
    (
        "epoch_cache_not_cut",
        "epochs_are_truncated_with_the_log",
        "expected epochs 0@0, found epochs 0@0 2@1",
    ),
    (
        "isr_change_without_partition_epoch",
        "isr_race_partition_epoch",
        "expected INVALID_UPDATE_VERSION, found isr 2 4",
    ),
    ("high_watermark_below_the_minimum_isr", "min_isr_lowered", "expected hw 0, found hw 1"),
    (
        "old_incarnation_counted",
        "old_incarnation_does_not_join",
        "expected records a b, found records a",
    ),
    (
        "pending_offsets_are_shown",
        "transaction_offsets",
        "expected UNSTABLE_OFFSET_COMMIT, found offset none",
    ),
    (
        "tombstone_cleaned_too_early",
        "compaction",
        "expected records a=2 c=1 b= c=2, found records a=2 c=1 c=2",
    ),
    (
        "cleaned_above_the_last_stable_offset",
        "compaction",
        "expected records a=2 c=4 a=3 c=5 c=6, found",
    ),
    ("last_sequence_cleaned_away", "compaction", "expected at 0, found at 13"),
)


def test_what_spoils_a_scenario_is_a_mutation() -> None:
    """Thirteen of them; the others are of the disk, of producers and of the controller."""
    spoiling = {name for name, _, _ in SPOILED}
    assert spoiling <= set(MUTATIONS) and len(spoiling) == 13


@pytest.mark.parametrize(("mutation", "scenario", "found"), SPOILED)
def test_a_mutation_spoils_its_scenario(mutation: str, scenario: str, found: str) -> None:
    path = Path(__file__).parent / f"{scenario}.txt"
    with switched_on(mutation), pytest.raises(ScenarioFailed) as failure:
        run_scenario(path)
    assert found in str(failure.value)


_prepare, _send = TransactionMetadata.prepare_abort_or_commit, TransactionMarkerSender.send


def _keeps_its_epoch(self: TransactionMetadata, *arguments: Any, **more: Any) -> TxnTransitMetadata:
    made = _prepare(self, *arguments, **more)
    return replace(made, producer_epoch=self.producer_epoch)


def _sends_nothing(self: TransactionMarkerSender, pending: PendingCompletion) -> None:
    pending.metadata.partitions = set()
    _send(self, pending)


TRANSACTION_MISTAKES = (
    (
        "no_epoch_bump",
        (TransactionMetadata, "prepare_abort_or_commit", _keeps_its_epoch),
        "transaction_late_add",
        "expected epoch 1, found epoch 0",
    ),
    (
        "complete_before_the_markers",
        (TransactionMarkerSender, "send", _sends_nothing),
        "transaction_states",
        "expected at 2, found at 1",
    ),
    (
        "no_verification",
        (producer_append, "_check_verified", lambda *arguments: None),
        "transaction_answer_behind_the_marker",
        "expected INVALID_TXN_STATE, found at 1",
    ),
    (
        "no_transaction_version_in_the_marker_check",
        (log, "check_end_marker", lambda *arguments: None),
        "transaction_late_marker",
        "expected INVALID_PRODUCER_EPOCH, found written",
    ),
    (
        "no_coordinator_epoch_in_the_marker_check",
        (producer_append, "_check_coordinator_epoch", lambda *arguments: None),
        "transaction_late_marker",
        "expected TRANSACTION_COORDINATOR_FENCED, found written",
    ),
    (
        "last_stable_offset_is_the_high_watermark",
        (Watermarks, "last_stable_metadata", Watermarks.high_watermark_metadata),
        "transaction_late_marker",
        "expected records none, found records a, stable 0",
    ),
)
"""Issue 14, section 4."""


@pytest.mark.parametrize(
    ("planted", "scenario", "found"),
    [each[1:] for each in TRANSACTION_MISTAKES],
    ids=[each[0] for each in TRANSACTION_MISTAKES],
)
def test_a_mistake_about_transactions_spoils_its_scenario(
    monkeypatch: pytest.MonkeyPatch, planted: tuple[Any, str, Any], scenario: str, found: str
) -> None:
    owner, name, mistaken = planted
    monkeypatch.setattr(owner, name, mistaken)
    with pytest.raises(ScenarioFailed) as failure:
        run_scenario(Path(__file__).parent / f"{scenario}.txt")
    assert found in str(failure.value)


@pytest.mark.parametrize(
    ("epoch", "code"), [(4, "FENCED_LEADER_EPOCH"), (6, "UNKNOWN_LEADER_EPOCH")]
)
def test_unfenced_fetches_spoil_the_replica_layers_own_test(epoch: int, code: str) -> None:
    """A mistake in the replica layer is found there, before any cluster runs."""
    with switched_on("fetch_is_not_fenced"), pytest.raises(AssertionError):
        test_partition.test_a_followers_fetch_under_another_epoch_counts_nothing(epoch, code)
