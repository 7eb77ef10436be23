"""The effects of a partition's events: the event queue, the table, and the drain.

Owns `Effects` of one replica manager: the events of its partitions, which effects each kind has,
and the counts of ISR changes.

1. Effects run first in, first out, until the queue is empty, never inside a partition's transition.
   Callers drain before they return, or leave it to the reactor's next turn (`drain_soon`).
2. An effect that raises fails its partition only.

Source: our own; Kafka's `ReplicaManager` calls its purgatories from each place. Not here: what
partitions emit (`partition/events.py`), what an effect reaches (`replica_manager.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from twisted_broker.replication.collaborators import IAlterPartitionManager
from twisted_broker.replication.partition.events import (
    BecameFollower,
    Event,
    Events,
    HighWatermarkAdvanced,
    IsrChanged,
    IsrChangeWanted,
    LeaderEpochBegan,
    LogEndChanged,
    LogReplaced,
    LogStartAdvanced,
    LogSynced,
    LogTruncated,
    PartitionFailed,
    ReplicaStopped,
)
from twisted_broker.replication.partition.isr_state import IsrAnswer, PendingIsr
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.wire.errors import ErrorCode

if TYPE_CHECKING:
    from twisted_broker.interfaces import IDelayedCall
    from twisted_broker.replication.high_watermark_checkpoint import HighWatermarkCheckpoint
    from twisted_broker.replication.replica_manager import ReplicaManager

Effect = Callable[[Any], object]
_logger = Logger(namespace=__name__)


class Effects:
    """`alter_partition` may be None where nobody else can be in an ISR."""

    __slots__ = (
        "_alter_partition",
        "_drain_call",
        "_draining",
        "_high_watermarks",
        "_replicas",
        "_table",
        "events",
        "failed_isr_updates",
        "isr_expands",
        "isr_shrinks",
    )

    def __init__(
        self,
        replicas: ReplicaManager,
        alter_partition: IAlterPartitionManager | None,
        high_watermarks: HighWatermarkCheckpoint,
    ) -> None:
        self.events: Events = deque()
        self.isr_expands = self.isr_shrinks = self.failed_isr_updates = 0
        self._replicas, self._alter_partition = replicas, alter_partition
        self._high_watermarks = high_watermarks
        self._draining = False
        self._drain_call: IDelayedCall | None = None
        self._table = self.event_table()

    def event_table(self) -> dict[type[Any], tuple[Effect, ...]]:
        """The map of the system: event -> effects, in order.

        A partition's listeners (fetch sessions in which it is idle) were called before.
        """
        return {
            LogEndChanged: (self._complete_delayed_fetches,),
            HighWatermarkAdvanced: (self._complete_delayed_requests,),
            LogSynced: (self._complete_delayed_produces,),
            LogStartAdvanced: (
                self._log_start_advanced,
                self._complete_delayed_delete_records,
                self._complete_delayed_fetches,
            ),
            LogTruncated: (self._move_again,),
            LogReplaced: (self._complete_delayed_fetches, self._complete_delayed_delete_records),
            IsrChangeWanted: (self._submit_alter_partition,),
            IsrChanged: (
                self._mark_isr_rate,
                self._complete_delayed_produces,
                self._complete_delayed_fetches,
            ),
            LeaderEpochBegan: (self._complete_delayed_fetches,),
            BecameFollower: (self._withdraw_alter_partition, self._complete_delayed_requests),
            ReplicaStopped: (self._withdraw_alter_partition, self._complete_delayed_requests),
            PartitionFailed: (
                self._log_failure,
                self._keep_high_watermark,
                self._stop_fetcher,
                self._withdraw_alter_partition,
                self._complete_delayed_requests,
            ),
        }

    def drain(self) -> None:
        """Runs the effects of all that happened, and of what they make happen.

        Within a drain it leaves the rest to that one.
        """
        events = self.events
        if self._draining or not events:
            return
        self._draining = True
        try:
            while events:
                event = events.popleft()
                for effect in self._table[type(event)]:
                    try:
                        effect(event)
                    except Exception:
                        self._effect_failed(event)
        finally:
            self._draining = False

    def drain_soon(self) -> None:
        """In the next turn, unless it is done before."""
        if self.events and not self._draining and self._drain_call is None:
            self._drain_call = self._replicas.runtime.clock.callLater(0, self._drain_later)

    def _drain_later(self) -> None:
        self._drain_call = None
        self.drain()

    def stop(self) -> None:
        """The last drain is over."""
        if self._drain_call is not None:
            self._drain_call.cancel()
            self._drain_call = None

    def _effect_failed(self, event: Event) -> None:
        _logger.failure("an effect of {event} failed", event=event)
        # What an event should have caused may be missing: this partition stops rather than going on
        # with it.
        self._replicas.fail_alone(event.partition, "an effect failed")

    # what waits

    def _complete_delayed_requests(self, event: Event) -> None:
        """All four, in one call: every append that moves the high watermark comes through here."""
        replicas = self._replicas
        name = event.partition.topic_partition
        if replicas.produce_purgatory.waiting:
            replicas.produce_purgatory.check_and_complete(name)
        if replicas.fetch_purgatory.waiting:
            replicas.fetch_purgatory.check_and_complete(name)
        if replicas.share_fetch_purgatory.waiting:
            replicas.share_fetch_purgatory.check_and_complete(name)
        if replicas.delete_records_purgatory.waiting:
            replicas.delete_records_purgatory.check_and_complete(name)

    def _complete_delayed_produces(self, event: Event) -> None:
        if self._replicas.produce_purgatory.waiting:
            self._replicas.produce_purgatory.check_and_complete(event.partition.topic_partition)

    def _complete_delayed_fetches(self, event: Event) -> None:
        if self._replicas.fetch_purgatory.waiting:
            self._replicas.fetch_purgatory.check_and_complete(event.partition.topic_partition)
        if self._replicas.share_fetch_purgatory.waiting:
            self._replicas.share_fetch_purgatory.check_and_complete(event.partition.topic_partition)

    def _complete_delayed_delete_records(self, event: Event) -> None:
        if self._replicas.delete_records_purgatory.waiting:
            self._replicas.delete_records_purgatory.check_and_complete(
                event.partition.topic_partition
            )

    # followers and the ISR

    def _log_start_advanced(self, event: LogStartAdvanced) -> None:
        if self._replicas.fetchers is not None:
            self._replicas.fetchers.log_start_moved(event.partition.topic_partition)

    def _submit_alter_partition(self, event: IsrChangeWanted) -> None:
        if self._alter_partition is not None:
            self._log_isr_change(event.partition, event.pending)
            answer = self._alter_partition.submit(event.partition.isr_proposal(event.pending))
            answer.addCallback(self._alter_partition_answered, event.partition, event.pending)
            answer.addErrback(
                lambda failure: _logger.failure(
                    "taking the answer of AlterPartition failed", failure
                )
            )

    def _log_isr_change(self, partition: Partition, pending: PendingIsr) -> None:
        """When it is proposed, as Kafka does: its confirmation may come as metadata."""
        grows = len(pending.proposed) > len(pending.isr)
        self._replicas.lines.add(
            "expanding ISR" if grows else "shrinking ISR",
            partition=partition.topic_partition,
            isr=sorted(pending.proposed),
            before=sorted(pending.isr),
            leader_epoch=partition.leader_epoch,
        )

    def _withdraw_alter_partition(
        self, event: BecameFollower | ReplicaStopped | PartitionFailed
    ) -> None:
        if self._alter_partition is not None:
            self._alter_partition.withdraw(
                event.partition.topic_id, event.partition.topic_partition.partition
            )

    def _alter_partition_answered(
        self, answer: IsrAnswer, partition: Partition, pending: PendingIsr
    ) -> None:
        if answer.error is not ErrorCode.NONE:
            self.failed_isr_updates += 1
        partition.alter_partition_answered(pending, answer, self._replicas.runtime.now_ms())
        self.drain()

    def _mark_isr_rate(self, event: IsrChanged) -> None:
        if event.grew:
            self.isr_expands += 1
        else:
            self.isr_shrinks += 1

    # a partition that failed, or whose log was truncated

    def _log_failure(self, event: PartitionFailed) -> None:
        self._replicas.lines.error(
            "partition is offline",
            partition=event.partition.topic_partition,
            reason=event.reason,
        )

    def _keep_high_watermark(self, event: PartitionFailed) -> None:
        name = event.partition.topic_partition
        log = self._replicas.log_manager.get(name)
        is_here = self._replicas.partitions.get(name) is event.partition
        if is_here and log is not None and log.failed is None:
            self._high_watermarks.keep(log)

    def _stop_fetcher(self, event: PartitionFailed) -> None:
        name = event.partition.topic_partition
        # Another one of its name may be here by now, with a fetcher that must not stop.
        if self._replicas.partitions.get(name) is event.partition:
            self._replicas.stop_fetching([name])
            self._replicas.moves.remove([name])

    def _move_again(self, event: LogTruncated) -> None:
        self._replicas.moves.begin(event.partition)
