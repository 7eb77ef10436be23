"""The fetcher of followed replicas: what a fetch brings into their partitions, what is truncated
from them, and which of them wait for the follower's quota.

Owns `ReplicaFetcher` and its `FetchTarget`, `FollowedReplicas`.

1. Records are appended only at the own log end; the one exception is the first batch of an empty
   log, which may begin below it. Anything else fails the partition.
2. The high watermark is min(own end, the leader's); the log start follows the leader's, after the
   high watermark.
3. Every truncation is logged; one below the high watermark is a warning, for a consumer may have
   seen what is gone (unless it is only to be fetched again).
4. A partition that cannot be truncated or appended to fails, and only that one; a failed directory
   is the replica manager's.
5. A replica is held back while it is throttled, not in sync, and the rate is above its bound. It is
   looked at again in every round, and forgotten in the fetch session meanwhile. One in sync is
   always fetched: otherwise it would leave the ISR. Before its first answer it does not count as in
   sync. Truncation is not held back, and costs no bytes.

Source: RL 5.3, 6.2-6.5; Kafka's `ReplicaFetcherThread`,
`RemoteLeaderEndPoint.shouldFollowerThrottle`. Not here: when to do it (`fetcher`), where to
truncate (`truncation_decision`), the change itself (`partition`), which replicas are throttled and
what counts (`replication_quota`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.log.append_info import LogAppendInfo
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.replication.collaborators import IReplicas
from twisted_broker.replication.fetcher.fetch_session_handler import RequestedPartition
from twisted_broker.replication.fetcher.fetched_logs import FetchedLogs, FetchOffsetMismatch
from twisted_broker.replication.fetcher.fetcher import Fetcher, FetchTarget
from twisted_broker.replication.fetcher.fetcher_state import (
    FetchedPartition,
    PartitionFetchState,
    RequestFor,
)
from twisted_broker.replication.fetcher.leader_endpoint import LeaderEndPoint
from twisted_broker.replication.fetcher.truncation_decision import (
    OUT_OF_RANGE,
    EpochEnd,
    OffsetReset,
    OffsetTruncationState,
)
from twisted_broker.replication.long_appends import fire
from twisted_broker.replication.partition.partition_history import Truncation
from twisted_broker.replication.replication_quota import ReplicationQuota

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

_logger = Logger()


class UncleanTruncationRefused(Exception):
    """`replog.refuse.unclean.truncation` is on, and the leader ends below the own log end."""


def initial_fetch_offset(log: Log, truncates_on_fetch: bool) -> int:
    """RL 1.4: where fetching begins: at the high watermark, or at the log end when fetch answers
    say where to truncate and epochs are known.
    """
    return (
        log.log_end_offset if truncates_on_fetch and len(log.leader_epochs) else log.high_watermark
    )


class ReplicaFetcher(Fetcher):
    """`quota`: the one that all replica fetchers of this broker share."""

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        leader: LeaderEndPoint,
        target: FetchTarget,
        backoff_ms: int,
        partition_max_bytes: int,
        failed: set[TopicPartition] | None,
        quota: ReplicationQuota,
    ) -> None:
        super().__init__(name, runtime, leader, target, backoff_ms, partition_max_bytes, failed)
        self._quota = quota

    def _requests(self, now_ms: int) -> RequestFor:
        quota = self._quota
        # Partitions that were held back before are looked at in each round anyway.
        if not quota.topics or not quota.is_exceeded(now_ms):
            return self._request_for
        for name, state in self.state.partitions.items():
            if self._is_held_back(name, state):
                self.state.mark_changed(name)
        return self._request_unless_held_back

    def _is_held_back(self, name: TopicPartition, state: PartitionFetchState) -> bool:
        return not state.is_in_sync and self._quota.is_throttled(name)

    def _request_unless_held_back(
        self, topic_partition: TopicPartition, state: PartitionFetchState
    ) -> RequestedPartition | None:
        if self._is_held_back(topic_partition, state):
            return None
        return self._request_for(topic_partition, state)


class FollowedReplicas(FetchedLogs):
    """Those of one fetcher. `refuse_unclean`: `replog.refuse.unclean.truncation`, as it is set at
    each call; `quota`: where bytes of throttled replicas count.
    """

    __slots__ = ("_quota", "_refuse_unclean", "_unsynced")

    def __init__(
        self,
        replicas: IReplicas,
        refuse_unclean: Callable[[], bool] = lambda: False,
        quota: ReplicationQuota | None = None,
    ) -> None:
        super().__init__(replicas)
        self._quota = quota
        self._refuse_unclean = refuse_unclean
        self._unsynced: list[tuple[Log, int]] = []

    def _log(self, topic_partition: TopicPartition) -> Log:
        return self._replicas.partition(topic_partition).followed_log()

    def added(self, topic_partition: TopicPartition) -> None:
        log = self._log(topic_partition)
        if log.durability.awaiting_sync is not None or log.durability.is_checkpoint_above:
            self._unsynced.append((log, log.log_end_offset))

    def process_partition_data(
        self,
        topic_partition: TopicPartition,
        requested: RequestedPartition,
        fetched: FetchedPartition,
    ) -> LogAppendInfo | None:
        """RL 6.4: appends an answer's records (up to the leader epoch requested) and follows the
        leader's watermarks.
        """
        quota = self._quota
        # First: what is refused below was sent all the same, and is sent again.
        if quota is not None and quota.topics and quota.is_throttled(topic_partition):
            quota.record(len(fetched.records), self._replicas.runtime.now_ms())
        partition = self._replicas.partition(topic_partition)
        log = partition.followed_log()
        if requested.fetch_offset != log.log_end_offset:
            raise FetchOffsetMismatch(
                f"{topic_partition} was fetched at {requested.fetch_offset}, but ends at "
                f"{log.log_end_offset}"
            )
        info = None
        if len(fetched.records):
            wall_ms = self._replicas.runtime.wall_ms()
            info = partition.append_as_follower(fetched.records, requested.leader_epoch, wall_ms)
            if 0 <= info.first_offset < requested.fetch_offset:
                _logger.info(
                    "{log} starts at offset {first}: the leader's batch there holds offset {end}",
                    log=topic_partition,
                    first=info.first_offset,
                    end=requested.fetch_offset,
                )
        partition.follow_high_watermark(fetched.high_watermark)
        partition.follow_log_start(fetched.log_start_offset)
        if info is None or info.last_offset < 0:
            return None  # it held no whole batch
        if log.durability.awaiting_sync is not None:
            self._unsynced.append((log, info.last_offset + 1))
        return info

    async def wait_for_syncs(self) -> None:
        """With `flush.messages`: the next request says that all before its offset is held, so it
        waits for the syncs of this round. After a truncation below the recovery point or log start
        on disk: what is appended must not be taken for what was synced there before.

        Kafka's fetcher thread waits within the append.
        """
        while self._unsynced:  # some may be added meanwhile
            waiting, self._unsynced = self._unsynced, []
            for log, end in waiting:
                done: Deferred[None] = Deferred()
                log.durability.when_synced(end, partial(fire, done))
                await done

    # truncation
    def truncate(
        self, topic_partition: TopicPartition, fetch_offset: int, leader_end: EpochEnd | None
    ) -> OffsetTruncationState:
        """RL 6.3."""
        partition = self._replicas.partition(topic_partition)
        truncation = self._truncation(partition.followed_log(), fetch_offset, leader_end)
        done = partition.truncate_to(truncation.offset, self._replicas.runtime.wall_ms())
        if done is not None:
            self._truncated(partition.followed_log(), done)
        return truncation

    def reset_offset(self, topic_partition: TopicPartition, reset: OffsetReset) -> None:
        """RL 6.5."""
        partition = self._replicas.partition(topic_partition)
        if reset.truncate and reset.reason == OUT_OF_RANGE and self._refuse_unclean():
            raise UncleanTruncationRefused(
                f"the leader's log ends at {reset.offset}, below the own log end "
                f"{partition.followed_log().log_end_offset}; not truncated, because "
                "replog.refuse.unclean.truncation is true"
            )
        _logger.warn(
            "{partition}: {reason}, fetching from {offset}",
            partition=topic_partition,
            reason=reset.reason,
            offset=reset.offset,
        )
        wall_ms = self._replicas.runtime.wall_ms()
        reason = "" if reset.reason == OUT_OF_RANGE else reset.reason
        if reset.truncate:
            done = partition.truncate_to(reset.offset, wall_ms, reason)
        elif reset.truncate_fully:
            done = partition.truncate_fully_and_start_at(reset.offset, wall_ms, reason)
        else:
            return
        if done is not None:
            self._truncated(partition.followed_log(), done)

    def _truncated(self, log: Log, done: Truncation) -> None:
        if log.durability.is_checkpoint_above:
            self._unsynced.append((log, 0))
        _log_truncation(done)

    # after it
    def partition_failed(
        self, topic_partition: TopicPartition, reason: BaseException | str
    ) -> None:
        partition = self._replicas.partitions.get(topic_partition)
        if partition is not None:
            partition.following_failed(str(reason), self._replicas.runtime.now_ms())
        if isinstance(reason, LogDirFailure):
            self._replicas.directory_failed(reason.directory, reason.cause)


def _log_truncation(truncation: Truncation) -> None:
    if truncation.below_high_watermark and not truncation.reason:
        _logger.warn("{truncation}", truncation=truncation)
    else:
        _logger.info("{truncation}", truncation=truncation)
