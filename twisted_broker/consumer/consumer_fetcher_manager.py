"""Consumer fetchers: the replica fetchers' loop with queues as its target.

Owns `ConsumedPartitions` (the `FetchTarget`), `ConsumerFetcher` (what is other than in a replica
fetcher) and `ConsumerFetcherManager` (the fetchers of one consumer, by leader and number).

    ConsumerFetcherManager.add -> LeaderFinder -> Fetcher.do_work -> ConsumedPartitions
        -> PartitionTopicInfo.enqueue -> ChunkQueue -> who reads the queue

1. There is one loop, `Fetcher`. A partition that cannot be fetched here goes back to the leader
   finder, with its fetched offset: only what the caller must decide fails it.
2. A partition with as many chunks as may wait is paused: it is not requested, the others are.
3. The last leader epoch fetched goes with each request: a leader with another history answers where
   it begins, and records of two histories never follow each other silently.
4. Chunks are whole batches with valid CRCs (`check.crcs`). What is corrupt is fetched again, at
   most `CORRUPT_TRIES` times in a row.
5. After `remove` nothing of a partition comes into its queue.

Source: RL 7.1-7.3; Kafka 0.8's `ConsumerFetcherManager`, `ConsumerFetcherThread`. Not here: who
leads (`leader_finder`), records, and where reading begins: who reads the queue knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from twisted.logger import Logger

from twisted_broker.consumer.cluster_client import ClusterClient
from twisted_broker.consumer.consumer_config import LARGEST, NONE, ConsumerConfig
from twisted_broker.consumer.consumer_endpoint import ConsumerEndPoint, FetchedRecords
from twisted_broker.consumer.errors import (
    ConsumerError,
    LogTruncated,
    OffsetGone,
    OffsetMismatch,
)
from twisted_broker.consumer.leader_finder import LeaderFinder
from twisted_broker.consumer.partition_topic_info import (
    FetchedDataChunk,
    PartitionTopicInfo,
)
from twisted_broker.interfaces import Buffer, Runtime, TopicPartition
from twisted_broker.log.append_info import LogAppendInfo
from twisted_broker.replication.fetcher.fetch_session_handler import RequestedPartition
from twisted_broker.replication.fetcher.fetcher import Fetcher
from twisted_broker.replication.fetcher.fetcher_manager import FetcherManager, FollowedPartition
from twisted_broker.replication.fetcher.fetcher_state import (
    FetchedPartition,
    FetchOutcome,
    PartitionFetchState,
)
from twisted_broker.replication.fetcher.leader_endpoint import (
    BrokerEndPoint,
    FetchLimits,
    LeaderEndPoint,
)
from twisted_broker.replication.fetcher.truncation_decision import (
    EpochEnd,
    OffsetReset,
    OffsetTruncationState,
)
from twisted_broker.wire.batch_header import last_whole_entry
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.legacy import iterate_entries
from twisted_broker.wire.records import BatchView, CorruptRecordError

_logger = Logger()
CORRUPT_TRIES: Final = 3
MOST_KEPT: Final = 8
"""A chunk may keep an answer of so many times its size in memory, which saves its copy."""
# What trying again does not change.
_REFUSALS = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)


class ConsumedPartitions:
    """Where the chunks of one consumer go. `partitions`: all that it consumes; `reset`:
    `auto.offset.reset`.
    """

    def __init__(
        self,
        partitions: Mapping[TopicPartition, PartitionTopicInfo],
        reset: str,
        check_crcs: bool,
    ) -> None:
        self._partitions = partitions
        self._reset = reset
        self._check_crcs = check_crcs
        self._corrupt: dict[TopicPartition, int] = {}

    def is_paused(self, topic_partition: TopicPartition) -> bool:
        info = self._partitions.get(topic_partition)
        return info is None or info.is_paused

    def latest_epoch(self, topic_partition: TopicPartition) -> int:
        return self._partitions[topic_partition].last_epoch

    def log_start_offset(self, topic_partition: TopicPartition) -> int:
        return -1  # no log

    def log_at(self, topic_partition: TopicPartition, offset: int) -> None:
        """An answer is one chunk of its queue."""

    def process_partition_data(
        self,
        topic_partition: TopicPartition,
        requested: RequestedPartition,
        fetched: FetchedPartition,
    ) -> LogAppendInfo | None:
        """RL 7.3: one chunk into the queue."""
        info = self._partitions[topic_partition]
        if requested.fetch_offset != info.fetched_offset:
            raise OffsetMismatch(
                f"{topic_partition}: fetched at {requested.fetch_offset}, to be fetched next is "
                f"{info.fetched_offset}"
            )
        info.high_watermark = fetched.high_watermark
        info.log_start_offset = fetched.log_start_offset
        try:
            size, last_offset, last_epoch = self._whole_batches(fetched.records)
        except CorruptRecordError as error:
            tries = self._corrupt[topic_partition] = self._corrupt.get(topic_partition, 0) + 1
            if tries < CORRUPT_TRIES:
                raise
            self._corrupt.pop(topic_partition)
            raise ConsumerError(
                f"{topic_partition}: the records from offset {requested.fetch_offset} on are "
                f"corrupt in {tries} answers ({error}); check the leader's disk, or commit an "
                "offset beyond them"
            ) from None
        self._corrupt.pop(topic_partition, None)
        if last_offset < requested.fetch_offset:
            return None  # it held no whole batch
        info.enqueue(
            FetchedDataChunk(
                info,
                _kept(fetched.records, size),
                requested.fetch_offset,
                last_offset + 1,
                last_epoch,
                fetched.high_watermark,
                fetched.aborted if isinstance(fetched, FetchedRecords) else (),
            )
        )
        first = requested.fetch_offset
        return LogAppendInfo(first, last_offset, -1, -1, -1, 0, size, last_epoch)

    def _whole_batches(self, records: bytes | bytearray | memoryview) -> tuple[int, int, int]:
        """(their bytes, last offset, its leader epoch); -1 where there is none."""
        last_offset = last_epoch = -1
        # Without CRCs only the last one says anything; whoever reads them checks the others.
        size = 0 if self._check_crcs else last_whole_entry(records)
        for entry in iterate_entries(records, size, partial_tail=True):
            if self._check_crcs and not entry.is_valid_crc():
                raise CorruptRecordError("CRC mismatch", size)
            size += entry.size_in_bytes
            last_offset = entry.last_offset
            last_epoch = entry.partition_leader_epoch if isinstance(entry, BatchView) else -1
        return size, last_offset, last_epoch

    def truncate(
        self, topic_partition: TopicPartition, fetch_offset: int, leader_end: EpochEnd | None
    ) -> OffsetTruncationState:
        """Invariant 3. Without epochs there is nothing to agree on."""
        if leader_end is None:
            return OffsetTruncationState(fetch_offset, True)
        info = self._partitions[topic_partition]
        error = LogTruncated(topic_partition, fetch_offset, leader_end.epoch, leader_end.end_offset)
        if self._reset == NONE:
            raise error
        offset = min(fetch_offset, leader_end.end_offset)
        _logger.warn(
            "{partition}: the cluster lost records that were fetched: the leader's log differs "
            "from offset {offset} on; fetching from there",
            partition=topic_partition,
            offset=offset,
        )
        info.reset(offset, leader_end.epoch)
        return OffsetTruncationState(offset, True)

    def offset_reset_for(
        self, topic_partition: TopicPartition, leader_end: int, leader_start: int | None
    ) -> OffsetReset | None:
        """RL 7.3: by `auto.offset.reset`."""
        if self._reset == LARGEST:
            return OffsetReset(leader_end, False, False, 0)
        if leader_start is None:
            return None
        if self._reset == NONE:
            info = self._partitions[topic_partition]
            error = OffsetGone(topic_partition, info.fetched_offset, leader_start, leader_end)
            return _NoPlace(error, leader_start)
        return OffsetReset(leader_start, False, False, max(0, leader_end - leader_start))

    def reset_offset(self, topic_partition: TopicPartition, reset: OffsetReset) -> None:
        """RL 7.3: both offsets."""
        if isinstance(reset, _NoPlace):
            raise reset.error
        info = self._partitions[topic_partition]
        if info.fetched_offset >= 0:
            _logger.warn(
                "{partition}: offset {before} is not there, fetching from {offset}",
                partition=topic_partition,
                before=info.fetched_offset,
                offset=reset.offset,
            )
        info.reset(reset.offset)

    def partition_failed(
        self, topic_partition: TopicPartition, reason: BaseException | str
    ) -> None:
        info = self._partitions.get(topic_partition)
        if info is not None:
            info.fail(reason if isinstance(reason, Exception) else ConsumerError(str(reason)))

    def added(self, topic_partition: TopicPartition) -> None:
        """Nothing is stored."""

    def answers_processed(self) -> None:
        """Nothing follows: who waits for chunks was served."""

    async def wait_for_syncs(self) -> None:
        """Nothing is stored."""


def _kept(records: Buffer, size: int) -> Buffer:
    """The first `size` bytes: where they are most of the answer that they came in, as they are."""
    if isinstance(records, bytes):
        return records[:size]
    view = memoryview(records)[:size]
    whole = view.obj
    if isinstance(whole, bytearray) and len(whole) <= size * MOST_KEPT:
        return view.toreadonly()
    return bytes(view)


class _NoPlace(OffsetReset):
    """There is none, and `auto.offset.reset` names none."""

    error: ConsumerError

    def __new__(cls, error: ConsumerError, offset: int) -> _NoPlace:
        made = super().__new__(cls, offset, False, False, 0)
        made.error = error
        return made


class ConsumerFetcher(Fetcher):
    """`leaderless(partitions)`: they cannot be fetched here, another leader is to be found;
    `unreachable(leader, error)`: it is not reached any more.
    """

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        leader: LeaderEndPoint,
        consumed: ConsumedPartitions,
        backoff_ms: int,
        partition_max_bytes: int,
        failed: set[TopicPartition],
        leaderless: Callable[[Iterable[TopicPartition]], None],
        unreachable: Callable[[BrokerEndPoint, Exception], None],
    ) -> None:
        super().__init__(name, runtime, leader, consumed, backoff_ms, partition_max_bytes, failed)
        self._consumed = consumed
        self._leaderless, self._on_unreachable = leaderless, unreachable

    def resume(self, topic_partition: TopicPartition) -> None:
        """It has room again; a waiting fetcher wakes."""
        if topic_partition in self.state.partitions:
            self._wake()

    def _request_for(
        self, topic_partition: TopicPartition, state: PartitionFetchState
    ) -> RequestedPartition | None:
        if self._consumed.is_paused(topic_partition):
            return None
        return super()._request_for(topic_partition, state)

    def partitions_with_errors(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """RL 7.2: back to the leader finder."""
        removed = self.remove(list(topic_partitions))
        if removed:
            self._leaderless(removed)

    def _connection_failed(self, error: Exception) -> None:
        if not self._stopped and not self._unreachable:
            self._on_unreachable(self.leader.endpoint, error)
        super()._connection_failed(error)

    def _refused(
        self,
        topic_partition: TopicPartition,
        outcome: FetchOutcome,
        error: ErrorCode,
        errors: list[TopicPartition],
    ) -> None:
        if outcome is not FetchOutcome.STALE and error in _REFUSALS:
            self.partition_failed(topic_partition, BrokerError(error))
        elif outcome is FetchOutcome.FENCED:
            errors.append(topic_partition)  # the metadata names a newer leader epoch
        else:
            super()._refused(topic_partition, outcome, error, errors)


class ConsumerFetcherManager(FetcherManager):
    """Fetches what is added, until it is removed; `name` is in logs and client ids;
    `unreachable(leader, error)`: for whoever shows no log.
    """

    def __init__(
        self,
        client: ClusterClient,
        config: ConsumerConfig,
        name: str,
        unreachable: Callable[[BrokerEndPoint, Exception], None] = lambda leader, error: None,
    ) -> None:
        super().__init__(config.integer("num.consumer.fetchers"), self._create_fetcher)
        self.partitions: dict[TopicPartition, PartitionTopicInfo] = {}
        self._client = client
        self._name, self._unreachable = name, unreachable
        self._backoff_ms = config.integer("refresh.leader.backoff.ms")
        self._limits = FetchLimits(
            config.integer("fetch.wait.max.ms"),
            config.integer("fetch.min.bytes"),
            config.integer("fetch.max.bytes"),
            config.integer("fetch.message.max.bytes"),
        )
        self._committed_only = config.reads_committed
        self._consumed = ConsumedPartitions(
            self.partitions, config.reset, config.boolean("check.crcs")
        )
        self.leader_finder = LeaderFinder(
            client,
            self._backoff_ms,
            config.reset != NONE,
            self.partitions,
            self._leaders_found,
            self._partition_failed,
        )

    def consume(self, partitions: Iterable[PartitionTopicInfo]) -> None:
        """They are fetched from their fetched offsets on, whoever leads them."""
        added = {info.topic_partition: info for info in partitions}
        self.partitions.update(added)
        self.failed.difference_update(added)
        self.leader_finder.add(added)

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Nothing of them comes into their queues any more."""
        names = list(topic_partitions)
        self.leader_finder.remove(names)
        super().remove(names)
        for name in names:
            self.partitions.pop(name, None)

    def resume(self, info: PartitionTopicInfo) -> None:
        """For a `ChunkQueue`: there is room for its next chunk."""
        for fetcher in self.fetchers.values():
            if isinstance(fetcher, ConsumerFetcher):
                fetcher.resume(info.topic_partition)

    def shutdown(self) -> None:
        self.leader_finder.stop()
        super().shutdown()
        self.partitions.clear()

    def _leaders_found(self, partitions: Mapping[TopicPartition, FollowedPartition]) -> None:
        self.add(partitions)
        self.shutdown_idle()

    def _partition_failed(self, topic_partition: TopicPartition, error: Exception) -> None:
        self.leader_finder.remove([topic_partition])
        self.failed.add(topic_partition)
        self._consumed.partition_failed(topic_partition, error)

    def _create_fetcher(
        self, number: int, leader: BrokerEndPoint, failed: set[TopicPartition]
    ) -> Fetcher:
        name = f"{self._name}-fetcher-{leader.id}-{number}"
        connection = self._client.connect(leader, name)
        return ConsumerFetcher(
            name,
            self._client.runtime,
            ConsumerEndPoint(connection, self._limits, self._committed_only),
            self._consumed,
            self._backoff_ms,
            self._limits.partition_max_bytes,
            failed,
            self.leader_finder.add,
            self._unreachable,
        )
