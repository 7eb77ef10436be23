"""Future logs of logs that move to another directory: what a read brings into them, and what is
truncated from them.

Owns `FutureReplicas`, the `FetchTarget` of moves.

1. Records are appended only at the future log's end; the first batch of an empty one may
   begin below it.
2. The future log's high watermark and log start are the log's, as far as it reaches.
3. What was truncated from the log is truncated from the future log, by epochs.
4. An error fails the move, never the partition, unless the log's own directory has failed, too.

Source: RL 3.8; Kafka's `ReplicaAlterLogDirsThread`. Not here: when it takes the log's place
(`alter_log_dirs_manager`), reading (`local_leader_endpoint`), where to truncate
(`truncation_decision`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import LogAppendInfo
from twisted_broker.log.errors import LogDirFailure, OutOfDescriptors
from twisted_broker.replication.collaborators import IReplicas
from twisted_broker.replication.fetcher.fetch_session_handler import RequestedPartition
from twisted_broker.replication.fetcher.fetched_logs import FetchedLogs, FetchOffsetMismatch
from twisted_broker.replication.fetcher.fetcher_state import FetchedPartition
from twisted_broker.replication.fetcher.truncation_decision import (
    EpochEnd,
    OffsetReset,
    OffsetTruncationState,
)
from twisted_broker.replication.long_appends import fire

if TYPE_CHECKING:
    from twisted_broker.log.log import Log


class FutureReplicas(FetchedLogs):
    """`appended(name, bytes)` is called after each answer, `failed(name, reason)` when a future log
    cannot be filled.
    """

    __slots__ = ("_appended", "_failed", "_truncated")

    def __init__(
        self,
        replicas: IReplicas,
        appended: Callable[[TopicPartition, int], None],
        failed: Callable[[TopicPartition, str], None],
    ) -> None:
        super().__init__(replicas)
        self._appended = appended
        self._failed = failed
        self._truncated: list[Log] = []

    def _log(self, topic_partition: TopicPartition) -> Log:
        return self._replicas.partition(topic_partition).future_log_or_raise()

    def added(self, topic_partition: TopicPartition) -> None:
        """A move may begin again with a future log that was truncated: its checkpoint is waited
        for.
        """
        self._was_truncated(self._log(topic_partition))

    def process_partition_data(
        self,
        topic_partition: TopicPartition,
        requested: RequestedPartition,
        fetched: FetchedPartition,
    ) -> LogAppendInfo | None:
        """RL 3.8: appends, follows the watermarks, and has it swapped where that is due."""
        partition = self._replicas.partition(topic_partition)
        future = partition.future_log_or_raise()
        if requested.fetch_offset != future.log_end_offset:
            raise FetchOffsetMismatch(
                f"{topic_partition} was read at {requested.fetch_offset}, but its future log ends "
                f"at {future.log_end_offset}"
            )
        info = None
        if len(fetched.records):
            wall_ms = self._replicas.runtime.wall_ms()
            info = partition.append_to_future_log(fetched.records, requested.leader_epoch, wall_ms)
        partition.follow_in_future_log(fetched.high_watermark, fetched.log_start_offset)
        if info is not None and info.last_offset < 0:
            info = None
        try:
            self._appended(topic_partition, 0 if info is None else info.bytes)
        except OutOfDescriptors:
            if info is None:
                raise
            # The swap is tried again. The appended records count: the next read begins behind them.
        return info

    async def wait_for_syncs(self) -> None:
        """After a truncation only, as `FollowedReplicas` does: nobody is told how far a future log
        goes.
        """
        waiting, self._truncated = self._truncated, []
        for future in waiting:
            done: Deferred[None] = Deferred()
            future.durability.when_synced(0, partial(fire, done))
            await done

    def _was_truncated(self, future: Log) -> None:
        if future.durability.is_checkpoint_above:
            self._truncated.append(future)

    def truncate(
        self, topic_partition: TopicPartition, fetch_offset: int, leader_end: EpochEnd | None
    ) -> OffsetTruncationState:
        future = self._log(topic_partition)
        truncation = self._truncation(future, fetch_offset, leader_end)
        if future.truncate_to(truncation.offset, self._replicas.runtime.wall_ms()):
            self._was_truncated(future)
        return truncation

    def reset_offset(self, topic_partition: TopicPartition, reset: OffsetReset) -> None:
        future, wall_ms = self._log(topic_partition), self._replicas.runtime.wall_ms()
        if reset.truncate:
            future.truncate_to(reset.offset, wall_ms)
        elif reset.truncate_fully:
            future.truncate_fully_and_start_at(reset.offset, wall_ms)
        self._was_truncated(future)

    def partition_failed(
        self, topic_partition: TopicPartition, reason: BaseException | str
    ) -> None:
        self._failed(topic_partition, str(reason))
        if isinstance(reason, LogDirFailure):
            self._replicas.directory_failed(reason.directory, reason.cause)
