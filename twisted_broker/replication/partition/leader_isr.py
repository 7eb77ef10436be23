"""How a leader changes its in-sync replicas: who joins, who leaves, what the controller's answer
means.

    follower at the high watermark -> expand --. }-> IsrChangeWanted -> controller ->
                                                isr_change_answered -> IsrChanged, or back, or again
    follower behind for too long  -> shrink --'

1. At most one change is on its way (RL 2.5): while it is, nothing else is proposed.
2. A follower joins when its log end reached the high watermark and the start of the leader epoch;
   it leaves when it was not caught up for `replica.lag.time.max.ms`, but never while it stands at
   the leader's end. The leader itself never leaves.

Source: RL 2.4, 2.5; KRAFT 3.6; Kafka's `Partition.maybeExpandIsr`, `maybeShrinkIsr`,
`handleAlterPartitionUpdate`. Leaves out: the states (`isr`), the way to the controller
(`cluster.alter_partition_manager`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_broker.replication.partition.events import IsrChanged, IsrChangeWanted
from twisted_broker.replication.partition.isr import (
    CommittedIsr,
    IsrAnswer,
    IsrProposal,
    PendingExpand,
    PendingIsr,
    PendingShrink,
)
from twisted_broker.replication.partition.remote_replica import RemoteReplica
from twisted_broker.wire.errors import ErrorCode

if TYPE_CHECKING:
    from twisted_broker.replication.partition.partition import Partition

_REVERTS = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
_AWAITS_THE_CONTROLLER = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


def maybe_expand(partition: Partition, replica: RemoteReplica) -> None:
    """RL 2.4: proposes a follower that reached the high watermark and the leader epoch's start."""
    state, log = partition.isr_state, partition.leader_log
    if (
        log is None
        or not isinstance(state, CommittedIsr)
        or replica.broker_id in state.isr
        or not partition.is_eligible(replica)
    ):
        return
    if replica.log_end.offset >= max(log.high_watermark, partition.leader_epoch_start_offset):
        _propose(partition, PendingExpand(state, replica.broker_id), replica.last_fetch_ms)


def maybe_shrink(partition: Partition, now_ms: int) -> None:
    """RL 2.4: proposes to leave out the followers that have not been caught up for
    `replica.lag.time.max.ms`.
    """
    state, log = partition.isr_state, partition.leader_log
    if log is None or not isinstance(state, CommittedIsr):
        return
    leader_end = log.log_end_offset
    members = [
        replica for broker, replica in partition.remote_replicas.items() if broker in state.isr
    ]
    behind = frozenset(
        replica.broker_id
        for replica in members
        if not replica.is_caught_up(leader_end, now_ms, partition.max_lag_ms)
    )
    if behind:
        _propose(partition, PendingShrink(state, behind), now_ms)


def _propose(partition: Partition, pending: PendingIsr, now_ms: int) -> None:
    partition.isr_state = pending
    partition.history.proposed(partition, pending, now_ms)
    partition.events.append(IsrChangeWanted(partition, pending))


def proposal(partition: Partition, pending: PendingIsr) -> IsrProposal:
    """A pending change as AlterPartition says it, with the broker epoch of each member
    (KIP-903).
    """
    members = []
    for broker_id in sorted(pending.proposed):
        replica = partition.remote_replicas.get(broker_id)
        seen = partition.brokers.epoch_of(broker_id) if replica is None else replica.broker_epoch
        members.append((broker_id, -1 if seen is None else seen))
    return IsrProposal(
        partition.topic_partition,
        partition.topic_id,
        partition.leader_epoch,
        partition.partition_epoch,
        tuple(members),
        pending.last_committed.leader_recovery_state,
    )


def answered(partition: Partition, pending: PendingIsr, answer: IsrAnswer, now_ms: int) -> bool:
    """RL 2.5.

    True when it should be sent again. An answer to what is no longer pending changes nothing.
    """
    if partition.isr_state is not pending:
        return False
    if answer.error == ErrorCode.NONE:
        _confirmed(partition, pending, answer, now_ms)
        return False
    partition.history.refused(answer.error, now_ms)
    if answer.error in _REVERTS:
        partition.isr_state = pending.last_committed
    else:
        return answer.error not in _AWAITS_THE_CONTROLLER
    return False


def _confirmed(partition: Partition, pending: PendingIsr, answer: IsrAnswer, now_ms: int) -> None:
    if (
        answer.leader_epoch != partition.leader_epoch
        or answer.partition_epoch < partition.partition_epoch
    ):
        return
    partition.partition_epoch = answer.partition_epoch
    partition.isr_state = CommittedIsr(answer.isr, answer.leader_recovery_state)
    partition.history.confirmed(partition, pending, now_ms)
    partition.events.append(IsrChanged(partition, isinstance(pending, PendingExpand)))
    partition.advance_high_watermark(now_ms)
