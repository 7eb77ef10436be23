"""The base of the targets of a follower's and of a move's fetcher: logs that are filled.

Owns `FetchedLogs`: questions about a log, and where it is truncated.

Source: RL 6.3, 6.5; Kafka's `AbstractFetcherThread`. Not here: which log is filled, and what
follows (`replica_fetcher`, `future_replicas`), where logs diverge (`truncation_decision`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.collaborators import IReplicas
from twisted_broker.replication.fetcher.truncation_decision import (
    EpochEnd,
    OffsetReset,
    OffsetTruncationState,
    offset_reset_for,
    truncation_for,
)
from twisted_broker.wire.errors import BrokerError

if TYPE_CHECKING:
    from twisted_broker.log.log import Log


class FetchOffsetMismatch(Exception):
    """Records came for another offset than the own log end: they must not be appended."""


class FetchedLogs:
    """`_log(partition)`: the log that is filled; raises BrokerError where there is none."""

    __slots__ = ("_replicas",)

    def __init__(self, replicas: IReplicas) -> None:
        self._replicas = replicas

    def _log(self, topic_partition: TopicPartition) -> Log:
        raise NotImplementedError

    def latest_epoch(self, topic_partition: TopicPartition) -> int:
        return self._log(topic_partition).leader_epochs.latest_epoch

    def log_start_offset(self, topic_partition: TopicPartition) -> int:
        return self._log(topic_partition).log_start_offset

    def log_at(self, topic_partition: TopicPartition, offset: int) -> Log | None:
        """Only one that ends there."""
        try:
            log = self._log(topic_partition)
        except BrokerError:
            return None  # whoever appends says so
        return log if log.log_end_offset == offset else None

    def _truncation(
        self, log: Log, fetch_offset: int, leader_end: EpochEnd | None
    ) -> OffsetTruncationState:
        """Where to truncate (RL 6.3). Batches are dropped whole: fetching goes on where the first
        of them began.
        """
        truncation = (
            OffsetTruncationState(fetch_offset, True)
            if leader_end is None
            else truncation_for(leader_end, fetch_offset, log)
        )
        return truncation._replace(offset=log.end_below(truncation.offset))

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
        return reset._replace(offset=log.end_below(reset.offset)) if reset.truncate else reset

    def answers_processed(self) -> None:
        self._replicas.drain()
