"""The following side of a partition: what a fetch brings into it, and what is cut off it.

Owns appending what the leader sent, following its watermarks, and truncation, as functions over
`Partition`.

1. Records go in only at the own log end, but for the batch that an empty log begins in; anything
   else fails the partition.
2. The high watermark is min(own end, the leader's); the log start follows the leader's, after the
   high watermark.
3. What a cut took is told (`Truncation`); one below the high watermark is a warning, for a consumer
   may have seen what is gone.

Source: RL 6.3, 6.4; Kafka's `ReplicaFetcherThread.processPartitionData`, `truncate`. Leaves out:
when to do it (`replica_fetcher`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

from twisted_broker.log.append_info import LogAppendInfo
from twisted_broker.log.errors import UnexpectedAppendOffset
from twisted_broker.replication.fetcher.fetcher_state import FetchedPartition
from twisted_broker.replication.fetcher.requested_partitions import RequestedPartition
from twisted_broker.replication.partition.events import LogEndAdvanced, LogStartAdvanced
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.replication.partition.partition_history import Truncation

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

_log = Logger()


class FetcherOutOfStep(Exception):
    """Records came for another offset than the own log end: they must not be appended."""


def own_log(partition: Partition) -> Log:
    """The log of a partition that is followed here.

    Raises NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR.
    """
    log = partition.log
    if log is None or partition.is_leader or partition.offline:
        raise partition.refusal()
    log.check_online()
    return log


def initial_offset(log: Log, truncates_on_fetch: bool) -> int:
    """RL 1.4: where fetching begins: at the high watermark, or at the log end when fetch answers
    tell where to cut and epochs are known.
    """
    return (
        log.log_end_offset if truncates_on_fetch and len(log.leader_epochs) else log.high_watermark
    )


def take_in(
    partition: Partition, asked: RequestedPartition, answer: FetchedPartition, wall_ms: int
) -> LogAppendInfo | None:
    """RL 6.4: appends an answer's records (up to the leader epoch asked) and follows the leader's
    marks. None: it held no whole batch.

    Raises `BrokerError` and its kin, `FetcherOutOfStep`.
    """
    log = own_log(partition)
    if asked.fetch_offset != log.log_end_offset:
        raise FetcherOutOfStep(
            f"{partition.topic_partition} was fetched at {asked.fetch_offset}, but ends at "
            f"{log.log_end_offset}"
        )
    info = None
    if len(answer.records):
        info = _append(partition, log, asked, answer, wall_ms)
    partition.follow_high_watermark(answer.high_watermark)
    follow_log_start(partition, answer.log_start_offset)
    return info if info is not None and info.last_offset >= 0 else None


def _append(
    partition: Partition,
    log: Log,
    asked: RequestedPartition,
    answer: FetchedPartition,
    wall_ms: int,
) -> LogAppendInfo:
    """RL 6.4.

    The leader's log may start inside a batch (DeleteRecords): it sends all of it, and a log that
    holds nothing yet begins with it.
    """
    try:
        return partition.append_as_follower(answer.records, asked.leader_epoch, wall_ms)
    except UnexpectedAppendOffset as refusal:
        end = log.log_end_offset
        if log.log_start_offset != end or not refusal.first_offset < end <= refusal.last_offset:
            raise
        _log.info(
            "{log} begins at {first}, with the batch that {end} is in",
            log=log.topic_partition,
            first=refusal.first_offset,
            end=end,
        )
        log.truncate_fully_and_start_at(refusal.first_offset, wall_ms)
        return partition.append_as_follower(answer.records, asked.leader_epoch, wall_ms)


def follow_log_start(partition: Partition, leader_log_start: int) -> None:
    """RL 2.8: what the leader deleted is deleted here, as far as the own high watermark."""
    log = own_log(partition)
    start = min(leader_log_start, log.high_watermark)
    if start > log.log_start_offset and log.increment_log_start_offset(start):
        partition.emit(LogStartAdvanced(partition))


def truncate(partition: Partition, offset: int, wall_ms: int) -> Truncation | None:
    """RL 6.3: drops everything from `offset` on.

    None when there is nothing. Raises `BrokerError`.
    """
    log = own_log(partition)
    cut = _cut(partition, log, offset, wall_ms)
    return _told(partition, log, cut) if log.truncate_to(offset, wall_ms) else None


def truncate_fully(partition: Partition, offset: int, wall_ms: int) -> Truncation:
    """RL 6.5: drops everything and begins at `offset`. Raises `BrokerError`."""
    log = own_log(partition)
    cut = _cut(partition, log, log.log_start_offset, wall_ms)._replace(to_offset=offset)
    log.truncate_fully_and_start_at(offset, wall_ms)
    return _told(partition, log, cut)


def _cut(partition: Partition, log: Log, offset: int, wall_ms: int) -> Truncation:
    known = log.leader_epochs
    epochs = tuple(epoch for epoch, start in known.entries() if start >= offset)
    end, high_watermark = log.log_end_offset, log.high_watermark
    return Truncation(
        log.topic_partition,
        end,
        offset,
        epochs,
        high_watermark,
        known.latest_epoch,
        partition.leader_epoch,
        log.size_in_bytes,
        wall_ms,
    )


def _told(partition: Partition, log: Log, cut: Truncation) -> Truncation:
    """`cut` carries the log's size before it."""
    cut = cut._replace(size_in_bytes=cut.size_in_bytes - log.size_in_bytes)
    partition.history.cut(cut)
    if cut.below_high_watermark:
        _log.warn("{cut}", cut=cut)
    else:
        _log.info("{cut}", cut=cut)
    partition.emit(LogEndAdvanced(partition))  # readers beyond the new end must be told
    return cut
