"""The fetcher of replicas: what they do with answers, and how they truncate.

Owns `ReplicaFetcher`.

1. A truncation or an append happens only for a partition that is here under the epoch that was
   asked: see `fetcher_state`.
2. Where epochs are known the leader is asked where one of them ends, until the logs agree; where
   none are, the high watermark is where to cut.
3. A partition that cannot be truncated or appended to fails, and only that one; a failed directory
   is the replica manager's.
4. A log with records of a newer leader epoch than its leader's is neither cut nor appended to: its
   metadata is older than it is.

Source: RL 6.3-6.5; Kafka's `ReplicaFetcherThread`. Leaves out: rounds, pauses and lost connections
(`fetcher`), where to cut (`truncation`), the change to the log itself (`follower_log`), follower
quotas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import LogAppendInfo
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.replication.fetcher import follower_log
from twisted_broker.replication.fetcher.fetcher import Fetcher
from twisted_broker.replication.fetcher.fetcher_state import (
    FetchedPartition,
    InitialFetchState,
    PartitionFetchState,
    Verdict,
)
from twisted_broker.replication.fetcher.leader_endpoint import EARLIEST, LATEST, LeaderEndPoint
from twisted_broker.replication.fetcher.requested_partitions import RequestedPartition
from twisted_broker.replication.fetcher.truncation import (
    EpochEnd,
    LeaderEpochRequest,
    OffsetTruncationState,
    Restart,
    restart_at,
    truncation_for,
)
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.replication.partition.partition_history import older_metadata
from twisted_broker.wire.errors import BrokerError

if TYPE_CHECKING:
    from twisted_broker.log.log import Log
    from twisted_broker.replication.replica_manager import ReplicaManager

_log = Logger()


class ReplicaFetcher(Fetcher):
    """Brings the partitions that this broker follows up to their leader.

    `refuse_unclean`: `replog.refuse.unclean.truncation`, asked anew.
    """

    def __init__(
        self,
        name: str,
        replicas: ReplicaManager,
        leader: LeaderEndPoint,
        backoff_ms: int,
        partition_max_bytes: int,
        failed: set[TopicPartition] | None = None,
        refuse_unclean: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(name, replicas.runtime, leader, backoff_ms, failed)
        self._replicas = replicas
        self._partition_max_bytes = partition_max_bytes
        self._refuse_unclean = refuse_unclean
        self._unsettled: list[tuple[Log, int]] = []
        # Where one went on that was refused within the leader's range.
        self._restarted: dict[TopicPartition, int] = {}

    def add(self, partitions: Mapping[TopicPartition, InitialFetchState]) -> None:
        super().add(partitions)
        for topic_partition, initial in partitions.items():
            self._restarted.pop(topic_partition, None)
            if topic_partition not in self.state.partitions:
                continue
            newest = self.latest_epoch(topic_partition)
            if newest > initial.leader_epoch:
                reason = f"its leader leads at epoch {initial.leader_epoch}"
                self.partition_failed(topic_partition, older_metadata(newest, reason))

    def _followed(self, topic_partition: TopicPartition) -> tuple[Partition, Log]:
        partition = self._replicas.partition(topic_partition)
        return partition, follower_log.own_log(partition)

    def latest_epoch(self, topic_partition: TopicPartition) -> int:
        return self._followed(topic_partition)[1].leader_epochs.latest_epoch

    def ask(
        self, topic_partition: TopicPartition, state: PartitionFetchState
    ) -> RequestedPartition:
        log_start = self._followed(topic_partition)[1].log_start_offset
        return RequestedPartition(
            state.topic_id,
            state.fetch_offset,
            state.leader_epoch,
            state.last_fetched_epoch,
            log_start,
            self._partition_max_bytes,
        )

    def process_partition_data(
        self, topic_partition: TopicPartition, asked: RequestedPartition, answer: FetchedPartition
    ) -> LogAppendInfo | None:
        partition = self._replicas.partition(topic_partition)
        info = follower_log.take_in(partition, asked, answer, self._runtime.wall_ms())
        log = partition.log
        if info is not None and log is not None and log.sync_due is not None:
            self._unsettled.append((log, info.last_offset + 1))
        return info

    async def settled(self) -> None:
        """With `flush.messages`: to ask for what follows says that all before is held, so the next
        round waits for the syncs of this one.

        Kafka's fetcher thread waits within the append.
        """
        waiting, self._unsettled = self._unsettled, []
        for log, end in waiting:
            done: Deferred[None] = Deferred()
            log.when_settled(end, lambda done=done: None if done.called else done.callback(None))  # type: ignore[misc]
            await done

    def partition_failed(
        self, topic_partition: TopicPartition, reason: BaseException | str
    ) -> None:
        super().partition_failed(topic_partition, reason)
        held = self._replicas.partitions.get(topic_partition)
        if held is not None:
            held.history.following_failed(str(reason), self._runtime.now_ms())
        if isinstance(reason, LogDirFailure):
            self._replicas.directory_failed(reason.directory, reason.cause)

    def round_done(self) -> None:
        self._replicas.drain()

    # truncation
    async def truncate(self) -> bool:
        """RL 6.3: all that are truncating and not delayed: by epochs where the own log knows
        any, else to the high watermark.
        """
        asks: dict[TopicPartition, LeaderEpochRequest] = {}
        done = False
        for name, state in self.state.truncating(self._runtime.now_ms()):
            try:
                epoch = self.latest_epoch(name)
            except BrokerError:
                self.partitions_with_errors([name])
                continue
            if epoch >= 0:
                asks[name] = LeaderEpochRequest(state.leader_epoch, epoch)
            else:
                done = self._cut_to(name, OffsetTruncationState(state.fetch_offset, True)) or done
        if asks:
            done = await self._truncate_by_epochs(asks) or done
        if done:
            self.round_done()
        return done

    async def _truncate_by_epochs(self, asks: Mapping[TopicPartition, LeaderEpochRequest]) -> bool:
        try:
            answers = await self.leader.epoch_ends(asks)
        except CancelledError:
            raise
        except Exception as error:
            self.connection_failed(error)
            return False
        errors: list[TopicPartition] = [name for name in asks if name not in answers]
        for name, answer in answers.items():
            asked = asks.get(name)
            if asked is None or self._stopped:
                continue
            verdict = self.state.judge_epoch_end(name, asked, answer)
            if verdict is Verdict.DIVERGED:
                self.cut(name, answer)
            else:
                self.refused(name, verdict, answer.error, errors)
        self.partitions_with_errors(errors)
        return True

    def cut(self, topic_partition: TopicPartition, diverging: EpochEnd) -> None:
        """RL 6.3: cuts where the logs part."""
        try:
            log = self._followed(topic_partition)[1]
        except BrokerError as error:
            self.partition_failed(topic_partition, error)
            return
        self._cut_to(
            topic_partition,
            truncation_for(diverging, self.state.partitions[topic_partition].fetch_offset, log),
        )

    def _cut_to(self, topic_partition: TopicPartition, truncation: OffsetTruncationState) -> bool:
        try:
            partition, log = self._followed(topic_partition)
            follower_log.truncate(partition, truncation.offset, self._runtime.wall_ms())
        except Exception as error:
            self.partition_failed(topic_partition, error)
            return False
        self.state.truncated(
            topic_partition,
            truncation,
            log.leader_epochs.latest_epoch,
            self.leader.truncates_on_fetch,
        )
        return True

    # out of range
    async def out_of_range(
        self, topic_partition: TopicPartition, asked: RequestedPartition
    ) -> bool:
        """RL 6.5: to the leader's end when that is below ours, else to its start when that is
        beyond ours.
        """
        leader_end = await self.leader.offset_at(topic_partition, asked.leader_epoch, LATEST)
        own_end = self._own_end(topic_partition, asked)
        leader_start = None
        if own_end is not None and leader_end >= own_end:
            leader_start = await self.leader.offset_at(
                topic_partition, asked.leader_epoch, EARLIEST
            )
            own_end = self._own_end(topic_partition, asked)
        if own_end is None:
            return True  # it went elsewhere while the leader was asked
        restart = restart_at(own_end, leader_end, leader_start)
        if restart.cut and self._refuse_unclean():
            self.partition_failed(
                topic_partition,
                (
                    f"its leader ends at {leader_end}, below our {own_end}, and "
                    "replog.refuse.unclean.truncation is on"
                ),
            )
            return True
        if not restart.cut and not restart.fully:
            if self._restarted.get(topic_partition) == restart.offset:
                return (
                    False  # it was refused there again: told already, asked again after the backoff
                )
            self._restarted[topic_partition] = restart.offset
        return self._restart_at(topic_partition, restart)

    def _own_end(self, topic_partition: TopicPartition, asked: RequestedPartition) -> int | None:
        """None when the partition is not fetched here any more as it was when it was asked."""
        state = self.state.partitions.get(topic_partition)
        if (
            self._stopped
            or state is None
            or (state.leader_epoch, state.fetch_offset) != (asked.leader_epoch, asked.fetch_offset)
        ):
            return None
        return self._followed(topic_partition)[1].log_end_offset

    def _restart_at(self, topic_partition: TopicPartition, restart: Restart) -> bool:
        partition, log = self._followed(topic_partition)
        wall_ms = self._runtime.wall_ms()
        _log.warn(
            "{partition} is out of its leader's range: it goes on from {offset}",
            partition=topic_partition,
            offset=restart.offset,
        )
        try:
            if restart.cut:
                follower_log.truncate(partition, restart.offset, wall_ms)
            elif restart.fully:
                follower_log.truncate_fully(partition, restart.offset, wall_ms)
        except Exception as error:
            self.partition_failed(topic_partition, error)
            return True
        self.state.restarted(topic_partition, restart, log.leader_epochs.latest_epoch)
        return True
