"""A partition of a mirrored topic, which `replog mirror` fills from another cluster.

Owns what only such a leader does: it appends at the source's offsets, and truncates what the source
lost.

1. The log is truncated only with a leader epoch that begins at that offset, granted by the
   controller with the leader alone in the ISR: followers diverge there, as after an unclean
   election.

Source: our own; docs/MIRRORING.md. Not here: which batches are those that are there
(`log/mirrored_batches.py`), the state itself (`partition.py`).
"""

from __future__ import annotations

from twisted_broker.image.entries import RECOVERING, PartitionRegistration
from twisted_broker.interfaces import Buffer
from twisted_broker.log.append_info import LogAppendInfo
from twisted_broker.log.mirrored_batches import first_offset_of, not_mirrored
from twisted_broker.replication.partition.isr_state import CommittedIsr, PendingShrink
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.replication.partition.partition_history import Truncation
from twisted_broker.wire.errors import BrokerError, ErrorCode


def append_mirrored(
    partition: Partition,
    records: Buffer | None,
    leader_epoch: int,
    log_end_offset: int,
    source_log_start: int,
    wall_ms: int,
    now_ms: int,
) -> LogAppendInfo | None:
    """Appends what `replog mirror` brought, with the source's offsets, if the log ends at
    `log_end_offset` or holds the records already. None when there are no `records`. The log
    start follows `source_log_start` (-1: not known) as far as the high watermark.

    Raises `BrokerError`: those of `log_for`, NOT_ENOUGH_REPLICAS, OFFSET_OUT_OF_RANGE where
    the log ends elsewhere, or what the log refuses.
    """
    log = partition.log_for(leader_epoch, True)
    info = None
    if records is not None:
        partition.stats.produces += 1
        if len(partition.isr_state.isr) < partition.min_isr:
            raise partition.not_enough_replicas()
        # The mirror may know a lower log end: it sends again what was not answered. Records
        # that begin at the own end then would leave those in between unchecked.
        end = log.log_end_offset
        if log_end_offset > end or (log_end_offset < end <= first_offset_of(records)):
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{partition.topic_partition} ends at {log.log_end_offset}, not {log_end_offset}",
            )
        info = log.append_mirrored(records, partition.leader_epoch, wall_ms)
        partition.stats.messages_in += info.records_count
        partition.leader_appended(info, now_ms)
    elif not log.config.replog_mirror_source:
        raise not_mirrored(log)
    partition.delete_up_to(log, source_log_start)
    return info


def truncate_mirrored(partition: Partition, offset: int, leader_epoch: int, now_ms: int) -> None:
    """`replog mirror --follow-loss`: proposes a new leader epoch that begins at `offset`, with
    the leader alone in the ISR (as after an unclean election). The log is truncated when that
    epoch begins (`truncate_as_granted`); until then nothing has changed.

    Raises `BrokerError`: those of `log_for` (FENCED_LEADER_EPOCH when it is done),
    POLICY_VIOLATION where the topic is no mirror, LEADER_NOT_AVAILABLE while the controller has
    not granted it, INVALID_REQUEST where the controller refused.
    """
    log = partition.log_for(leader_epoch, True)
    if not log.config.replog_mirror_source:
        raise not_mirrored(log)
    if offset >= log.log_end_offset:
        return
    state = partition.isr_state
    if isinstance(state, CommittedIsr):
        if state.truncation_refused:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"the controller refuses to begin a leader epoch at offset {offset} of "
                f"{partition.topic_partition} (only one of twisted-broker does so): delete the "
                "topic in the target to copy it anew",
            )
        partition.propose_isr(state.truncate(partition.node_id, offset), now_ms)
    raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "the truncation is on its way")


def truncate_as_granted(
    partition: Partition, state: PartitionRegistration, wall_ms: int
) -> Truncation | None:
    """Called before `make_leader`: truncates what `truncate_mirrored` proposed, when the
    controller granted it with the leader epoch that begins now. Raises LogDirFailure.
    """
    pending, log = partition.isr_state, partition.leader_log
    if (
        log is None
        or not isinstance(pending, PendingShrink)
        or pending.truncate_to < 0
        or state.leader_epoch <= partition.leader_epoch
        # The record is of another change: the mirror requests the truncation again.
        or state.leader_recovery_state != RECOVERING
        or tuple(state.isr) != (partition.node_id,)
    ):
        return None
    return partition.truncate_led_log(pending.truncate_to, wall_ms)
