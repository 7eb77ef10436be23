"""Followed replicas: what a fetch brings into their partitions, and what is truncated from them.

Owns `FollowedReplicas`, the `FetchTarget` of this broker's followers.

1. Records are appended only at the own log end; the one exception is the first batch of an empty
   log, which may begin below it. Anything else fails the partition.
2. The high watermark is min(own end, the leader's); the log start follows the leader's, after the
   high watermark.
3. Every truncation is logged; one below the high watermark is a warning, for a consumer may have
   seen what is gone (unless it is only to be copied again).
4. A partition that cannot be truncated or appended to fails, and only that one; a failed directory
   is the replica manager's.

Source: RL 6.3-6.5; Kafka's `ReplicaFetcherThread`. Not here: when to do it (`fetcher`), where to
truncate (`truncation_decision`), the change itself (`partition`), who waits for the follower's
quota (`replica_fetcher`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import LogAppendInfo
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.replication.collaborators import IReplicas
from twisted_broker.replication.fetcher.fetch_session_handler import RequestedPartition
from twisted_broker.replication.fetcher.fetcher_state import FetchedPartition
from twisted_broker.replication.fetcher.truncation_decision import (
    OUT_OF_RANGE,
    EpochEnd,
    OffsetReset,
    OffsetTruncationState,
    offset_reset_for,
    truncation_for,
)
from twisted_broker.replication.long_appends import fire
from twisted_broker.replication.partition.partition_history import Truncation
from twisted_broker.replication.replication_quota import ReplicationQuota
from twisted_broker.wire.errors import BrokerError

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

_logger = Logger()


class FetchOffsetMismatch(Exception):
    """Records came for another offset than the own log end: they must not be appended."""


class UncleanTruncationRefused(Exception):
    """`replog.refuse.unclean.truncation` is on, and the leader ends below the own log end."""


def initial_fetch_offset(log: Log, truncates_on_fetch: bool) -> int:
    """RL 1.4: where fetching begins: at the high watermark, or at the log end when fetch answers
    say where to truncate and epochs are known.
    """
    return (
        log.log_end_offset if truncates_on_fetch and len(log.leader_epochs) else log.high_watermark
    )


class FollowedReplicas:
    """Those of one fetcher. `refuse_unclean`: `replog.refuse.unclean.truncation`, as it is set at
    each call; `quota`: where bytes of throttled replicas count.
    """

    __slots__ = ("_quota", "_refuse_unclean", "_replicas", "_unsynced")

    def __init__(
        self,
        replicas: IReplicas,
        refuse_unclean: Callable[[], bool] = lambda: False,
        quota: ReplicationQuota | None = None,
    ) -> None:
        self._quota = quota
        self._replicas = replicas
        self._refuse_unclean = refuse_unclean
        self._unsynced: list[tuple[Log, int]] = []

    def _log(self, topic_partition: TopicPartition) -> Log:
        return self._replicas.partition(topic_partition).followed_log()

    def latest_epoch(self, topic_partition: TopicPartition) -> int:
        return self._log(topic_partition).leader_epochs.latest_epoch

    def log_start_offset(self, topic_partition: TopicPartition) -> int:
        return self._log(topic_partition).log_start_offset

    def added(self, topic_partition: TopicPartition) -> None:
        log = self._log(topic_partition)
        if log.durability.awaiting_sync is not None or log.durability.is_checkpoint_above:
            self._unsynced.append((log, log.log_end_offset))

    def log_at(self, topic_partition: TopicPartition, offset: int) -> Log | None:
        """Only one that ends there, and is followed."""
        try:
            log = self._replicas.partition(topic_partition).followed_log()
        except BrokerError:
            return None  # whoever appends says so
        return log if log.log_end_offset == offset else None

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
        truncation = (
            OffsetTruncationState(fetch_offset, True)
            if leader_end is None
            else truncation_for(leader_end, fetch_offset, partition.followed_log())
        )
        # Batches are dropped whole: fetching goes on where the first of them began.
        end = partition.followed_log().end_below(truncation.offset)
        done = partition.truncate_to(end, self._replicas.runtime.wall_ms())
        if done is not None:
            self._truncated(partition.followed_log(), done)
        return truncation._replace(offset=end)

    def offset_reset_for(
        self, topic_partition: TopicPartition, leader_end: int, leader_start: int | None
    ) -> OffsetReset | None:
        """RL 6.5: at the leader's end when that is below ours, else at its start when that is
        beyond ours.
        """
        log = self._log(topic_partition)
        own_end = log.log_end_offset
        if leader_start is None and leader_end >= own_end:
            return None
        reset = offset_reset_for(own_end, leader_end, leader_start)
        # As in `truncate`.
        return reset._replace(offset=log.end_below(reset.offset)) if reset.truncate else reset

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

    def answers_processed(self) -> None:
        self._replicas.drain()


def _log_truncation(truncation: Truncation) -> None:
    if truncation.below_high_watermark and not truncation.reason:
        _logger.warn("{truncation}", truncation=truncation)
    else:
        _logger.info("{truncation}", truncation=truncation)
