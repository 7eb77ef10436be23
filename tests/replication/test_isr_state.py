"""The states of an ISR, and what the controller's answer makes of them (RL 2.5)."""

from __future__ import annotations

import pytest

from twisted_broker.replication.partition.isr_state import (
    CommittedIsr,
    IsrAnswer,
    PendingExpand,
    PendingShrink,
    Reaction,
    reaction_to,
)
from twisted_broker.wire.errors import ErrorCode

EPOCH, PARTITION_EPOCH = 5, 10


def test_an_expansion_counts_for_the_maximal_isr_only() -> None:
    """RL 2.5: until it is confirmed the joining replica may or may not be a member."""
    committed = CommittedIsr(frozenset({1, 2}))
    pending = committed.expand(3)
    assert isinstance(pending, PendingExpand) and pending.in_flight
    assert pending.isr == {1, 2}
    assert pending.maximal_isr == pending.proposed == {1, 2, 3}
    assert pending.last_committed is committed


def test_a_shrink_counts_the_leaving_until_it_is_confirmed() -> None:
    """RL 2.5: they may still be members."""
    committed = CommittedIsr(frozenset({1, 2, 3}))
    pending = committed.shrink(frozenset({2, 3}))
    assert isinstance(pending, PendingShrink) and pending.in_flight
    assert pending.isr == pending.maximal_isr == {1, 2, 3}
    assert pending.proposed == {1}
    assert pending.last_committed is committed


@pytest.mark.parametrize(
    ("error", "reaction"),
    [
        (ErrorCode.OPERATION_NOT_ATTEMPTED, Reaction.REVERT),
        (ErrorCode.INELIGIBLE_REPLICA, Reaction.REVERT),
        (ErrorCode.FENCED_LEADER_EPOCH, Reaction.WAIT),
        (ErrorCode.INVALID_UPDATE_VERSION, Reaction.WAIT),
        (ErrorCode.NEW_LEADER_ELECTED, Reaction.WAIT),
        (ErrorCode.INVALID_REQUEST, Reaction.WAIT),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Reaction.WAIT),
        (ErrorCode.UNKNOWN_TOPIC_ID, Reaction.WAIT),
        (ErrorCode.NOT_CONTROLLER, Reaction.RETRY),
        (ErrorCode.UNKNOWN_SERVER_ERROR, Reaction.RETRY),
    ],
)
def test_an_error_reverts_waits_or_is_tried_again(error: ErrorCode, reaction: Reaction) -> None:
    """RL 2.5, as Kafka's `handleAlterPartitionError`."""
    assert reaction_to(IsrAnswer(error), EPOCH, PARTITION_EPOCH) is reaction


@pytest.mark.parametrize(
    ("leader_epoch", "partition_epoch", "reaction"),
    [
        (EPOCH, PARTITION_EPOCH + 1, Reaction.CONFIRM),
        (EPOCH, PARTITION_EPOCH, Reaction.CONFIRM),  # granted before, its answer was lost
        (EPOCH, PARTITION_EPOCH - 1, Reaction.WAIT),
        (EPOCH + 1, PARTITION_EPOCH + 1, Reaction.WAIT),
        (EPOCH - 1, PARTITION_EPOCH + 1, Reaction.WAIT),
    ],
)
def test_only_an_answer_of_this_epoch_confirms(
    leader_epoch: int, partition_epoch: int, reaction: Reaction
) -> None:
    """RL 2.5: what the metadata log brought meanwhile is newer."""
    isr = frozenset({1, 2})
    answer = IsrAnswer(ErrorCode.NONE, 1, leader_epoch, isr, 0, partition_epoch)
    assert reaction_to(answer, EPOCH, PARTITION_EPOCH) is reaction
