"""Copies of logs that move to another directory: what a read brings into them, and what is
truncated from them.

Owns `FutureReplicas`, the `FetchTarget` of moves.

1. Records are appended only at the copy's end, but for the first batch of an empty copy, which may
   begin below it.
2. The copy's high watermark and log start are the log's, as far as the copy reaches.
3. What was truncated from the log is truncated from the copy, by epochs.
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
    """`appended(name, bytes)` is called after each answer, `failed(name, reason)` when a copy
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
        return self._replicas.partition(topic_partition).copy()

    def added(self, topic_partition: TopicPartition) -> None:
        """A move may begin again with a copy that was truncated: its checkpoint is waited for."""
        self._was_truncated(self._log(topic_partition))

    def process_partition_data(
        self,
        topic_partition: TopicPartition,
        requested: RequestedPartition,
        fetched: FetchedPartition,
    ) -> LogAppendInfo | None:
        """RL 3.8: appends, follows the watermarks, and has it swapped where that is due."""
        partition = self._replicas.partition(topic_partition)
        copy = partition.copy()
        if requested.fetch_offset != copy.log_end_offset:
            raise FetchOffsetMismatch(
                f"{topic_partition} was read at {requested.fetch_offset}, but its copy ends at "
                f"{copy.log_end_offset}"
            )
        info = None
        if len(fetched.records):
            wall_ms = self._replicas.runtime.wall_ms()
            info = partition.append_to_copy(fetched.records, requested.leader_epoch, wall_ms)
        partition.follow_in_copy(fetched.high_watermark, fetched.log_start_offset)
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
        """After a truncation only, as `FollowedReplicas` does: nobody is told how far a copy
        goes.
        """
        waiting, self._truncated = self._truncated, []
        for copy in waiting:
            done: Deferred[None] = Deferred()
            copy.durability.when_synced(0, partial(fire, done))
            await done

    def _was_truncated(self, copy: Log) -> None:
        if copy.durability.is_checkpoint_above:
            self._truncated.append(copy)

    def truncate(
        self, topic_partition: TopicPartition, fetch_offset: int, leader_end: EpochEnd | None
    ) -> OffsetTruncationState:
        copy = self._log(topic_partition)
        truncation = self._truncation(copy, fetch_offset, leader_end)
        if copy.truncate_to(truncation.offset, self._replicas.runtime.wall_ms()):
            self._was_truncated(copy)
        return truncation

    def reset_offset(self, topic_partition: TopicPartition, reset: OffsetReset) -> None:
        copy, wall_ms = self._log(topic_partition), self._replicas.runtime.wall_ms()
        if reset.truncate:
            copy.truncate_to(reset.offset, wall_ms)
        elif reset.truncate_fully:
            copy.truncate_fully_and_start_at(reset.offset, wall_ms)
        self._was_truncated(copy)

    def partition_failed(
        self, topic_partition: TopicPartition, reason: BaseException | str
    ) -> None:
        self._failed(topic_partition, str(reason))
        if isinstance(reason, LogDirFailure):
            self._replicas.directory_failed(reason.directory, reason.cause)
