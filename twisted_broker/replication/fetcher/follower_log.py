"""What a follower does to its partitions with a fetch answer: append and follow the leader's
watermarks, or truncate.

1. Records go in only at the own log end, but for the batch that an empty log begins in; anything
   else fails the partition.
2. The high watermark is min(own end, the leader's); the log start follows the leader's, after the
   high watermark.
3. Every truncation is logged; one below the high watermark is a warning, for a consumer may have
   seen what is gone.

Source: RL 6.3, 6.4; Kafka's `ReplicaFetcherThread.processPartitionData`, `truncate`. Not here:
when to do it (`replica_fetcher`), the change itself (`partition`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

from twisted_broker.log.append_info import LogAppendInfo
from twisted_broker.replication.fetcher.fetcher_state import FetchedPartition
from twisted_broker.replication.fetcher.requested_partitions import RequestedPartition
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.replication.partition.partition_history import Truncation

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

_log = Logger()


class FetcherOutOfStep(Exception):
    """Records came for another offset than the own log end: they must not be appended."""


def initial_offset(log: Log, truncates_on_fetch: bool) -> int:
    """RL 1.4: where fetching begins: at the high watermark, or at the log end when fetch answers
    say where to truncate and epochs are known.
    """
    return (
        log.log_end_offset if truncates_on_fetch and len(log.leader_epochs) else log.high_watermark
    )


def process_partition_data(
    partition: Partition, requested: RequestedPartition, fetched: FetchedPartition, wall_ms: int
) -> LogAppendInfo | None:
    """RL 6.4: appends an answer's records (up to the leader epoch requested) and follows the
    leader's watermarks. None: it held no whole batch.

    Raises `BrokerError` and its kin, `FetcherOutOfStep`.
    """
    log = partition.followed_log()
    if requested.fetch_offset != log.log_end_offset:
        raise FetcherOutOfStep(
            f"{partition.topic_partition} was fetched at {requested.fetch_offset}, but ends at "
            f"{log.log_end_offset}"
        )
    info = None
    if len(fetched.records):
        info = partition.append_as_follower(fetched.records, requested.leader_epoch, wall_ms)
        if 0 <= info.first_offset < requested.fetch_offset:
            _log.info(
                "{log} begins at {first}, with the batch that {end} is in",
                log=log.topic_partition,
                first=info.first_offset,
                end=requested.fetch_offset,
            )
    partition.follow_high_watermark(fetched.high_watermark)
    partition.follow_log_start(fetched.log_start_offset)
    return info if info is not None and info.last_offset >= 0 else None


def truncate(partition: Partition, offset: int, wall_ms: int) -> None:
    """RL 6.3. Raises `BrokerError`."""
    truncation = partition.truncate_to(offset, wall_ms)
    if truncation is not None:
        _log_truncation(truncation)


def truncate_fully(partition: Partition, offset: int, wall_ms: int) -> None:
    """RL 6.5. Raises `BrokerError`."""
    _log_truncation(partition.truncate_fully_and_start_at(offset, wall_ms))


def _log_truncation(truncation: Truncation) -> None:
    if truncation.below_high_watermark:
        _log.warn("{truncation}", truncation=truncation)
    else:
        _log.info("{truncation}", truncation=truncation)
