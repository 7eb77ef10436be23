"""All partitions of this broker: appends, fetches, what waits for them, and what follows from what
happened.

Owns the partitions, the four purgatories, the fetch sessions and the periodic tasks.

1. `produce`, `fetch`, timers and role changes drain the events of partitions before they return;
   `append` (for coordinators, in the middle of transitions of their own) leaves them to `drain`,
   which is called at the latest in the reactor's next turn.
2. A failing directory fails the partitions in it only.
3. Errors are per partition: the others of a request go on.

Source: RL 1; Kafka's `ReplicaManager`; docs/ARCHITECTURE.md 4. Not here: role changes
(`role_change`), what follows from an event (`effects`), the rules of one partition (`partition`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.event_lines import EventLines
from twisted_broker.interfaces import Buffer, Runtime, TopicPartition
from twisted_broker.log.append_info import AppendOrigin, EndMarker
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.log.mirrored_batches import Differs
from twisted_broker.log.verification import Guard, VerificationStateEntry
from twisted_broker.periodic import PeriodicTasks
from twisted_broker.replication import directory_moves, role_change
from twisted_broker.replication.collaborators import (
    IAlterPartitionManager,
    IDirectoryAssignments,
    IReplicas,
    LeadershipListener,
)
from twisted_broker.replication.effects import Effects
from twisted_broker.replication.fetch_session import SESSIONLESS, FetchContext, FetchSessionCache
from twisted_broker.replication.fetcher.alter_log_dirs_manager import ReplicaAlterLogDirsManager
from twisted_broker.replication.high_watermark_checkpoint import HighWatermarkCheckpoint
from twisted_broker.replication.idle_partitions import IdlePartitions
from twisted_broker.replication.live_brokers import ImageSource, LiveBrokers
from twisted_broker.replication.long_appends import LongAppends
from twisted_broker.replication.partition.events import Events, LogStartAdvanced, PartitionFailed
from twisted_broker.replication.partition.fetch_data import (
    FetchParams,
    FetchPartitionRequest,
    FetchPartitionResult,
)
from twisted_broker.replication.partition.mirrored_partition import (
    append_mirrored,
    truncate_mirrored,
)
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.replication.partition.topic_stats import BrokerStats
from twisted_broker.replication.preferred_read_replica import reads_nearby, redirected
from twisted_broker.replication.purgatory.delayed_operations import (
    AppendOutcome,
    DelayedDeleteRecords,
    DelayedFetch,
    DelayedProduce,
    DeleteOutcome,
)
from twisted_broker.replication.purgatory.purgatory import Purgatory
from twisted_broker.replication.purgatory.timing_wheel import TimingWheel
from twisted_broker.replication.replication_quota import (
    FOLLOWER_RATE,
    LEADER_RATE,
    WINDOW_SECONDS,
    WINDOWS,
    ReplicationQuota,
)
from twisted_broker.subclassed import mypyc_attr
from twisted_broker.topic_names import INTERNAL_TOPICS
from twisted_broker.turns import Turns
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.primitives import NULL_UUID

if TYPE_CHECKING:
    from twisted_broker.image.metadata_image import MetadataDelta, MetadataImage
    from twisted_broker.log.log import Log
    from twisted_broker.log.log_manager import LogManager
    from twisted_broker.replication.fetcher.fetcher_manager import ReplicaFetcherManager

_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
ReadAgain = Callable[[Sequence[FetchPartitionRequest]], "Deferred[list[FetchPartitionResult]]"]
MirroredRecords = tuple[TopicPartition, Buffer | None, int, int, int, int]
"""Partition, whole batches, the leader epoch known to the mirror (-1: any), the log end known to
it, the source's log start (-1: not known), and where to truncate (-1: not).
"""
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_CLIENT, _NONE = AppendOrigin.CLIENT, ErrorCode.NONE
# Each is proposed in some 40 us.
PROPOSED_PER_TURN = 200
# One to two milliseconds.
FAILED_PER_STEP = 250
_logger = Logger(namespace=__name__)


@mypyc_attr(allow_interpreted_subclasses=True)
class ReplicaManager:
    """See the module's card. `alter_partition` may be None where nobody else can be in an ISR,
    `create_fetchers` where nothing is followed. `redeliver`: hands a delta to all who apply deltas;
    None: to this alone. `is_metadata_kept()`: whether the metadata is on this node's disks.
    """

    __slots__ = (
        "_assignments",
        "_brokers",
        "_high_watermarks",
        "_is_metadata_kept",
        "_is_throttled",
        "_partition_of",
        "_periodic",
        "_shrink_call",
        "_turns",
        "_wheel",
        "config",
        "delete_records_purgatory",
        "drain",
        "effects",
        "events",
        "fetch_max_bytes",
        "fetch_purgatory",
        "fetchers",
        "follower_quota",
        "image_source",
        "leader_quota",
        "leadership_listeners",
        "lines",
        "log_manager",
        "long_appends",
        "moves",
        "node_id",
        "partitions",
        "produce_purgatory",
        "reads_nearby",
        "role_retries",
        "runtime",
        "sessions",
        "share_fetch_purgatory",
        "stats",
    )

    def __init__(
        self,
        node_id: int,
        runtime: Runtime,
        config: BrokerConfig,
        log_manager: LogManager,
        image_source: ImageSource,
        alter_partition: IAlterPartitionManager | None = None,
        create_fetchers: Callable[[IReplicas], ReplicaFetcherManager] | None = None,
        redeliver: Callable[[MetadataDelta], None] | None = None,
        assignments: IDirectoryAssignments | None = None,
        is_metadata_kept: Callable[[], bool] = lambda: True,
        turns: Turns | None = None,
    ) -> None:
        self.node_id = node_id
        self._turns = turns or Turns(runtime.clock, runtime.marks)
        self._is_metadata_kept = is_metadata_kept
        self.runtime = runtime
        self.config = config
        self.log_manager = log_manager
        self._assignments = assignments
        self.partitions: dict[TopicPartition, Partition] = {}
        self.long_appends = LongAppends()
        self.leadership_listeners: list[LeadershipListener] = []
        self.lines = EventLines(_logger, runtime.clock, broker=node_id)
        self.stats = BrokerStats()
        windows, window_ms = config.integer(WINDOWS), config.integer(WINDOW_SECONDS) * 1000
        self.leader_quota = ReplicationQuota(
            lambda: config.integer(LEADER_RATE), windows, window_ms, LEADER_RATE
        )
        self.follower_quota = ReplicationQuota(
            lambda: config.integer(FOLLOWER_RATE), windows, window_ms, FOLLOWER_RATE
        )
        self.image_source = image_source
        self._brokers = LiveBrokers(image_source)
        self._wheel = TimingWheel(runtime.clock)
        self.produce_purgatory = Purgatory(
            "Produce", self._wheel, config.integer("producer.purgatory.purge.interval.requests")
        )
        self.fetch_purgatory = Purgatory(
            "Fetch", self._wheel, config.integer("fetch.purgatory.purge.interval.requests")
        )
        self.delete_records_purgatory = Purgatory(
            "DeleteRecords",
            self._wheel,
            config.integer("delete.records.purgatory.purge.interval.requests"),
        )
        self.share_fetch_purgatory = Purgatory(
            "ShareFetch",
            self._wheel,
            config.integer("share.fetch.purgatory.purge.interval.requests"),
        )
        self.fetch_max_bytes = config.integer("fetch.max.bytes")
        self.reads_nearby = reads_nearby(config)
        self.sessions = FetchSessionCache(
            config.integer("max.incremental.fetch.session.cache.slots"),
            runtime.random,
            lambda: IdlePartitions(self.partitions, self._brokers, self.fetch_purgatory.also_watch),
        )
        self._high_watermarks = HighWatermarkCheckpoint(
            runtime.files, log_manager.directories.worker, log_manager.directories.fail
        )
        self._partition_of = self.partition  # one for all that waits
        self._is_throttled = self.throttles_follower
        self._shrink_call: Any = None
        self.role_retries = role_change.RoleRetries(
            self, redeliver or (lambda delta: self.apply_delta(delta, delta.after))
        )
        self.effects = Effects(self, alter_partition, self._high_watermarks)
        self.events: Events = self.effects.events
        self.drain = self.effects.drain
        self._periodic = PeriodicTasks(runtime.clock)
        self.fetchers = None if create_fetchers is None else create_fetchers(self)
        self.moves = ReplicaAlterLogDirsManager(self, log_manager, self.lines, assignments)
        log_manager.subscribe(self)

    def subscribe(self, listener: LeadershipListener) -> None:
        """It hears which partitions this broker begins and ceases to lead, from now on."""
        self.leadership_listeners.append(listener)

    def fail_alone(self, partition: Partition, reason: str) -> None:
        """It stops, its directory goes on: the controller hears of it, and another replica
        leads.
        """
        partition.fail(reason)
        is_here = self.partitions.get(partition.topic_partition) is partition
        if is_here and self._assignments is not None:
            self._assignments.failed(partition.topic_id, partition.topic_partition)

    # following
    def start_fetching(self, partitions: Iterable[Partition]) -> None:
        """RL 1.4: these follow a new leader epoch.

        Without fetchers (a lone broker, tests) nothing is fetched.
        """
        if self.fetchers is not None:
            self.fetchers.follow(partitions)
            self.fetchers.shutdown_idle()

    def stop_fetching(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """RL 1.4, 1.5: no answer in flight changes them any more."""
        if self.fetchers is not None:
            self.fetchers.remove(topic_partitions)

    # partitions
    def partition(self, topic_partition: TopicPartition) -> Partition:
        """The partition held here.

        Raises UNKNOWN_TOPIC_OR_PARTITION, or NOT_LEADER_OR_FOLLOWER when it exists elsewhere.
        """
        found = self.partitions.get(topic_partition)
        if found is None:
            known = (
                self.image_source.image.partition(topic_partition.topic, topic_partition.partition)
                is not None
            )
            raise BrokerError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        return found

    def image_knows(self, topic_partition: TopicPartition) -> bool:
        """Whether the cluster has it, wherever."""
        return self.image_source.image.partition(*topic_partition) is not None

    def new_partition(self, topic_partition: TopicPartition, topic_id: bytes) -> Partition:
        """A partition without a role, noted as held here."""
        max_lag_ms, stats = (
            self.config.integer("replica.lag.time.max.ms"),
            self.stats.hold(topic_partition.topic),
        )
        made = Partition(
            topic_partition, topic_id, self.node_id, self.events, self._brokers, max_lag_ms, stats
        )
        self.partitions[topic_partition] = made
        return made

    def drop_partition(self, topic_partition: TopicPartition) -> None:
        """It is no longer held here; what was counted for it stays counted."""
        del self.partitions[topic_partition]
        self.stats.release(topic_partition.topic)

    def start_log(self, log: Log) -> None:
        """Gives a log that was just opened its checkpointed high watermark (RL 1.12)."""
        self._high_watermarks.start(log)

    def stores_zstd(self, topic_partition: TopicPartition) -> bool:
        """Whether its topic is set to zstd: a reader too old for that is refused."""
        partition = self.partitions.get(topic_partition)
        return (
            partition is not None
            and partition.log is not None
            and partition.log.config.compression_type == "zstd"
        )

    def logs(self) -> Iterator[Log]:
        return (
            partition.log
            for partition in self.partitions.values()
            if partition.log is not None and not partition.offline
        )

    def _logs_to_checkpoint(self) -> Iterator[Log]:
        yield from self.logs()
        for move in self.moves.moves.values():
            if move.partition.future_log is not None:
                yield move.partition.future_log

    def leaders(self) -> list[Partition]:
        return [partition for partition in self.partitions.values() if partition.is_leader]

    def log_start_moved(self, log: Log) -> None:
        """Retention deleted segments: followers and those who wait for deletions hear of it as
        of any other move.
        """
        partition = self.partitions.get(log.topic_partition)
        if partition is not None and partition.log is log:
            partition.emit(LogStartAdvanced(partition))
            self.effects.drain_soon()

    def log_synced(self, log: Log) -> None:
        """What was appended is synced: it counts for the high watermark, and acks=1 is answered."""
        partition = self.partitions.get(log.topic_partition)
        if partition is not None and partition.leader_log is log:
            partition.log_synced(self.runtime.now_ms())
            self.drain()

    def producers_found(self, log: Log) -> None:
        """What is stable is known again: readers of committed records may see more."""
        partition = self.partitions.get(log.topic_partition)
        if partition is not None and partition.log is log:
            partition.producers_found()
            # A truncation may have found them at once, within a transition.
            self.effects.drain_soon()

    def log_failed(self, log: Log) -> None:
        """A file of it is missing or cannot be used: its partition stops, or its move."""
        name, partition = log.topic_partition, self.partitions.get(log.topic_partition)
        reason = str(log.failure)
        if partition is not None and partition.log is log:
            self.fail_alone(partition, reason)
            self.effects.drain_soon()
        elif self.log_manager.moves.future(name) is log:
            _logger.error("the move of {name} is given up: {reason}", name=name, reason=reason)
            directory_moves.future_log_failed(self, name)

    def future_log_created(self, log: Log) -> None:
        """A future log was made for this log. Its move begins when a role is applied, so the
        present one is applied again.
        """
        name = log.topic_partition
        partition = self.partitions.get(name)
        if partition is not None and partition.log is log:
            self.role_retries.add(name.topic, partition.topic_id, name.partition, is_new=False)

    def directory_failed(self, directory: str, error: OSError | None) -> None:
        """A log directory cannot be used any more: its partitions go offline, no others (RL
        1.12).
        """
        reason = f"log directory {directory} failed: {error}"
        # All of them now, for they must not serve; what follows from it, some at a time.
        failed = [
            partition
            for partition in self.partitions.values()
            if partition.log is not None
            and partition.log.directory.rpartition("/")[0] == directory
            and partition.go_offline(reason)
        ]
        directory_moves.directory_failed(self, directory)
        self._turns.start(self._stop_failed(failed, reason))
        self.effects.drain_soon()

    def _stop_failed(self, failed: list[Partition], reason: str) -> Iterator[None]:
        for start in range(0, len(failed), FAILED_PER_STEP):
            if start:
                yield
            for partition in failed[start : start + FAILED_PER_STEP]:
                # Another one of its name may be here by now, with a fetcher that must not stop.
                if self.partitions.get(partition.topic_partition) is partition:
                    partition.emit(PartitionFailed(partition, reason))
            if start:
                self.drain()

    def apply_delta(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """RL 1.3: takes over the roles and settings that a piece of the metadata log brought."""
        role_change.apply_delta(self, delta, image)
        self.drain()
        if self.delete_records_purgatory.waiting:
            # it waits for living replicas only (RL 2.8): one may have died, or left
            self.delete_records_purgatory.check_all()
        if not self._periodic.running:
            self._periodic.every(
                self.config.integer("replica.lag.time.max.ms") / 2000,
                self.shrink_isrs,
                "the shrinking of ISRs",
                skip_late=True,
            )
            self._periodic.every(
                self.config.integer("replica.high.watermark.checkpoint.interval.ms") / 1000,
                self.checkpoint_high_watermarks,
                "the checkpoint of high watermarks",
                skip_late=True,
            )

    # producing
    def produce(
        self,
        entries: Iterable[tuple[TopicPartition, Buffer]],
        acks: int,
        guards: Mapping[TopicPartition, Guard] | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> list[AppendOutcome]:
        """A client's append (RL 1.6); everything that follows from it has happened when it
        returns. `guards`: of its transaction, see `begin_verification`. `topic_ids`: which topics
        the client meant, by their names; UNKNOWN_TOPIC_ID where the partition is of another one.
        """
        outcomes = self._append(entries, acks, _CLIENT, guards, topic_ids)
        if self.events:
            self.drain()
        return outcomes

    def led_log(self, topic_partition: TopicPartition) -> Log | None:
        """Of a partition that is led here, if clients may append to it."""
        partition = self.partitions.get(topic_partition)
        is_internal = topic_partition.topic in INTERNAL_TOPICS
        return None if partition is None or is_internal else partition.leader_log

    def append(
        self,
        entries: Iterable[tuple[TopicPartition, Buffer]],
        acks: int,
        *,
        origin: AppendOrigin = _CLIENT,
        guards: Mapping[TopicPartition, Guard] | None = None,
    ) -> list[AppendOutcome]:
        """As `produce`, but what follows from it happens later: for callers in the middle of
        something.
        """
        outcomes = self._append(entries, acks, origin, guards)
        self.effects.drain_soon()
        return outcomes

    def begin_verification(
        self,
        topic_partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        supports_epoch_bump: bool,
    ) -> Guard:
        """The guard that the append of this batch must carry after the transaction coordinator has
        verified it; None: the batch continues an open transaction, and needs no verification.
        `sequence`: the batch's first, -1 for none. Raises `BrokerError` if it is not led here.
        """
        partition = self.partition(topic_partition)
        if partition.leader_log is None:
            raise partition.refusal()
        return partition.leader_log.begin_verification(
            producer_id, producer_epoch, sequence, supports_epoch_bump, self.runtime.wall_ms()
        )

    def end_verification(
        self,
        topic_partition: TopicPartition,
        producer_id: int,
        guard: VerificationStateEntry,
        producer_epoch: int,
    ) -> None:
        """The coordinator refused this epoch for good: nothing of it will be written under the
        guard.
        """
        partition = self.partitions.get(topic_partition)
        if partition is not None and partition.log is not None:
            partition.log.producers.end_verification(producer_id, guard, producer_epoch)

    def append_end_markers(
        self, entries: Iterable[tuple[TopicPartition, EndMarker]]
    ) -> list[AppendOutcome]:
        """Ends transactions, one outcome for each entry; `delayed_produce` comes next."""
        wall_ms = self.runtime.wall_ms()
        outcomes: list[AppendOutcome] = []
        for topic_partition, marker in entries:
            try:
                partition = self.partition(topic_partition)
                info = partition.append_end_marker(marker, wall_ms, self.runtime.now_ms())
            except Exception as error:
                outcomes.append(self._append_failed(topic_partition, error, 0))
                continue
            outcomes.append(
                AppendOutcome(
                    topic_partition,
                    _NONE,
                    info.first_offset,
                    info.last_offset,
                    partition=partition,
                )
            )
        self.drain()
        return outcomes

    def _append(
        self,
        entries: Iterable[tuple[TopicPartition, Buffer]],
        acks: int,
        origin: AppendOrigin,
        guards: Mapping[TopicPartition, Guard] | None,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> list[AppendOutcome]:
        if not -1 <= acks <= 1:
            return [
                AppendOutcome(topic_partition, ErrorCode.INVALID_REQUIRED_ACKS)
                for topic_partition, _ in entries
            ]
        wall_ms = self.runtime.wall_ms()
        outcomes: list[AppendOutcome] = []
        for topic_partition, records in entries:
            if origin is _CLIENT and topic_partition[0] in INTERNAL_TOPICS:
                self.stats.of(topic_partition[0]).produces += 1
                outcomes.append(AppendOutcome(topic_partition, ErrorCode.INVALID_TOPIC_EXCEPTION))
                continue
            try:
                partition = self.partitions.get(topic_partition) or self.partition(topic_partition)
                if topic_ids:
                    _check_topic_id(partition, topic_ids[topic_partition[0]])
                now_ms = self.runtime.now_ms() if partition.remote_replicas else 0
                info = partition.append_as_leader(
                    records,
                    acks,
                    wall_ms,
                    now_ms,
                    origin,
                    None if guards is None else guards.get(topic_partition),
                )
            except Exception as error:
                outcomes.append(self._append_failed(topic_partition, error, len(records)))
                continue
            start = info.log_start_offset
            outcomes.append(
                AppendOutcome(
                    topic_partition,
                    _NONE,
                    info.first_offset,
                    info.last_offset,
                    info.log_append_time_ms,
                    start,
                    partition=partition,
                )
            )
        return outcomes

    def append_mirrored(
        self, entries: Iterable[MirroredRecords], topic_id: bytes
    ) -> list[AppendOutcome]:
        """Appends what `replog mirror` brought from another cluster; everything that follows
        from it has happened when it returns. To be waited for as with acks=-1. Where other records
        are there `base_offset` is the offset of the first batch that differs. `topic_id`: as
        `topic_ids` of `produce`.
        """
        wall_ms, now_ms = self.runtime.wall_ms(), self.runtime.now_ms()
        outcomes = []
        for name, records, leader_epoch, end, source_log_start, truncate_to in entries:
            try:
                partition = self.partition(name)
                _check_topic_id(partition, topic_id)
                if truncate_to >= 0:
                    truncate_mirrored(partition, truncate_to, leader_epoch, now_ms)
                info = append_mirrored(
                    partition, records, leader_epoch, end, source_log_start, wall_ms, now_ms
                )
            except Exception as error:
                outcome = self._append_failed(name, error, len(records or b""))
                if isinstance(error, Differs):
                    outcome.base_offset = error.offset
                outcomes.append(outcome)
                continue
            outcome = AppendOutcome(name, _NONE, partition=partition)
            if info is not None:
                outcome.base_offset, outcome.last_offset = info.first_offset, info.last_offset
            outcomes.append(outcome)
        self.drain()
        return outcomes

    def _append_failed(
        self, topic_partition: TopicPartition, error: Exception, size: int
    ) -> AppendOutcome:
        partition = self.partitions.get(topic_partition)
        log = None if partition is None else partition.log
        self._count_failed_append(topic_partition, partition, error, size)
        if isinstance(error, BrokerError):
            if isinstance(error, LogDirFailure):
                self.directory_failed(error.directory, error.cause)
            start = -1 if log is None or error.code in _WITHOUT_LOG_START else log.log_start_offset
            message = None if error.message == error.code.sentence else error.message
            refused = getattr(error, "record_errors", ())
            return AppendOutcome(
                topic_partition,
                error.code,
                log_start_offset=start,
                error_message=message,
                record_errors=refused,
            )
        _logger.failure("an append to {partition} failed", partition=topic_partition)
        return AppendOutcome(topic_partition, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _count_failed_append(
        self,
        topic_partition: TopicPartition,
        partition: Partition | None,
        error: Exception,
        size: int,
    ) -> None:
        stats = self.stats.of(topic_partition.topic)
        if partition is None:
            stats.produces += 1  # else it counted itself
        code = error.code if isinstance(error, BrokerError) else ErrorCode.UNKNOWN_SERVER_ERROR
        if code in _TOO_LARGE:
            stats.bytes_rejected += size
        elif code not in _WITHOUT_LOG_START:
            stats.failed_produces += 1

    def delayed_produce(
        self, outcomes: Sequence[AppendOutcome], acks: int = -1
    ) -> DelayedProduce | None:
        """RL 1.7, after an append: what its answer must wait for, replicas or (acks=1) the leader's
        sync; None: nothing. With acks=-1 it settles the outcomes that need not wait.
        """
        if acks == -1:
            delayed = DelayedProduce(outcomes, self._partition_of)
            return None if delayed.is_complete() else delayed
        if acks != 1:
            return None
        for outcome in outcomes:  # no generator, no properties: every produce comes through here
            partition = self.partitions.get(outcome.topic_partition)
            log = None if partition is None else partition.leader_log
            if log is None or outcome.error is not _NONE:
                continue
            if log.durability.awaiting_sync is not None:
                return DelayedProduce(outcomes, self._partition_of, 1)
        return None

    def wait_for(
        self, delayed: DelayedProduce, timeout_ms: int, *, tried: bool = True
    ) -> Deferred[None]:
        """RL 1.7: fires when all is on enough replicas or refused, or after `timeout_ms`; the
        outcomes then say what became of each. `tried`: `delayed` was not complete just now.
        """
        return (
            self.produce_purgatory.try_complete_else_watch(
                delayed, delayed.keys, max(0, timeout_ms), tried
            )
            or _fired()
        )

    def wait_for_replicas(
        self, outcomes: Sequence[AppendOutcome], timeout_ms: int, acks: int = -1
    ) -> Deferred[None]:
        """As `wait_for`, of outcomes that were not asked about before."""
        delayed = DelayedProduce(outcomes, self._partition_of, acks)
        return self.wait_for(delayed, timeout_ms, tried=False)

    # fetching
    def fetch(
        self,
        params: FetchParams,
        requests: Sequence[FetchPartitionRequest],
        record_progress: bool = True,
        already_read: int = 0,
    ) -> list[FetchPartitionResult]:
        """RL 1.8: reads in the order of the request under the shrinking limit.

        Results own file slices. `record_progress` False: a second read; `already_read`: bytes that
        parts of the same fetch before this one gave.
        """
        # Only a follower's progress needs the time.
        now_ms = self.runtime.now_ms() if params.replica_id >= 0 else 0
        limit = max(0, params.max_bytes - already_read)
        min_one_message = not params.hard_max_bytes and not already_read
        rack = params.rack if self.reads_nearby and params.replica_id < 0 else ""
        throttled = self.leader_quota.topics if params.replica_id >= 0 else None
        results = []
        for request in requests:
            max_bytes = request.max_bytes
            try:
                partition = self.partitions.get(request.topic_partition) or self.partition(
                    request.topic_partition
                )
                nearer = redirected(partition, request, rack, self._brokers) if rack else None
                result = nearer or partition.read(
                    request,
                    params,
                    limit if limit < max_bytes else max_bytes,
                    min_one_message,
                    now_ms,
                    record_progress,
                )
            except Exception as error:
                result = self._read_failed(request, error)
            if result.size and throttled and self.throttles_follower(partition, params):
                self._uncount_read(params, result)
                result.release()
            if result.size:
                min_one_message = False
                limit = max(0, limit - result.size)
            results.append(result)
        if self.events:
            self.drain()
        return results

    def converts_down(self, name: TopicPartition) -> bool:
        """Whether clients of old formats get its records converted."""
        partition = self.partitions.get(name)
        log = None if partition is None else partition.log
        return log is None or log.config.message_downconversion_enable

    def throttles_follower(self, partition: Partition, params: FetchParams) -> bool:
        """RL 1.8: whether this follower gets no records of it now. One in the ISR always gets
        them: it would leave it otherwise.
        """
        quota = self.leader_quota
        return (
            bool(quota.topics)
            and params.replica_id not in partition.isr_state.isr
            and quota.is_throttled(partition.topic_partition)
            and quota.is_exceeded(self.runtime.now_ms())
        )

    def record_sent(self, results: Iterable[FetchPartitionResult]) -> None:
        """What a follower's fetch is answered with counts for the leader's throttle."""
        quota = self.leader_quota
        size = sum(
            result.size
            for result in results
            if result.size and quota.is_throttled(result.request.topic_partition)
        )
        if size:
            quota.record(size, self.runtime.now_ms())

    def _read_failed(
        self, request: FetchPartitionRequest, error: Exception
    ) -> FetchPartitionResult:
        stats = self.stats.of(request.topic_partition.topic)
        if request.topic_partition not in self.partitions:
            stats.fetches += 1  # else it counted itself
        if isinstance(error, BrokerError):
            if isinstance(error, LogDirFailure):
                self.directory_failed(error.directory, error.cause)
            return FetchPartitionResult(request, error.code)
        stats.failed_fetches += 1
        _logger.failure("a read of {partition} failed", partition=request.topic_partition)
        return FetchPartitionResult(request, ErrorCode.UNKNOWN_SERVER_ERROR)

    @staticmethod
    def answers_at_once(
        params: FetchParams,
        results: Sequence[FetchPartitionResult],
        session: FetchContext = SESSIONLESS,
    ) -> bool:
        """RL 1.8: whether a first read is the answer."""
        if params.max_wait_ms <= 0 or not (results or session.has_idle):
            return True
        readable = 0
        for result in results:
            if (
                result.error is not _NONE
                or result.diverging_epoch is not None
                or result.preferred_read_replica >= 0
            ):
                return True
            readable += result.size
        return readable >= params.min_bytes

    def delayed_fetch(
        self,
        params: FetchParams,
        first_read: Sequence[FetchPartitionResult],
        session: FetchContext = SESSIONLESS,
        read_again: ReadAgain | None = None,
    ) -> Deferred[list[FetchPartitionResult]]:
        """RL 1.9: waits until there is enough or time is up, and fires with the second read, which
        `read_again` does (None: in one go). Gives the slices of the first one back.
        """
        for result in first_read:
            if result.size:
                self._uncount_read(params, result)
            result.release()
        operation = DelayedFetch(
            params,
            first_read,
            self._partition_of,
            session,
            self.leader_quota.topics,
            self._is_throttled,
        )
        waiting = (
            self.fetch_purgatory.try_complete_else_watch(
                operation, operation.keys, params.max_wait_ms, tried=True
            )
            or _fired()
        )  # the read was the first try
        return waiting.addCallback(self._read_again, operation, read_again)

    def _read_again(
        self, _: None, operation: DelayedFetch, read_again: ReadAgain | None
    ) -> list[FetchPartitionResult] | Deferred[list[FetchPartitionResult]]:
        if operation.unchanged is not None:
            return list(operation.unchanged)
        requests = operation.requests_again()
        if read_again is not None:
            return read_again(requests)
        return self.fetch(operation.params, requests, record_progress=False)

    def _uncount_read(self, params: FetchParams, result: FetchPartitionResult) -> None:
        partition = self.partitions.get(result.request.topic_partition)
        if partition is not None:
            partition.uncount_read(params, result.size)

    # deleting records
    def delete_records(
        self, offsets: Iterable[tuple[TopicPartition, int]], internal_too: bool = False
    ) -> list[DeleteOutcome]:
        """RL 2.8: moves the log start of each partition up to its offset (-1: the high
        watermark). `internal_too`: the owner of an internal topic asks.
        """
        outcomes = [
            self._delete_records(topic_partition, offset, internal_too)
            for topic_partition, offset in offsets
        ]
        self.drain()
        return outcomes

    def _delete_records(
        self, topic_partition: TopicPartition, offset: int, internal_too: bool
    ) -> DeleteOutcome:
        if topic_partition.topic in INTERNAL_TOPICS and not internal_too:
            return DeleteOutcome(topic_partition, ErrorCode.INVALID_TOPIC_EXCEPTION)
        try:
            partition = self.partition(topic_partition)
            required, low_watermark = partition.delete_records(offset)
        except BrokerError as refusal:
            if isinstance(refusal, LogDirFailure):
                self.directory_failed(refusal.directory, refusal.cause)
            return DeleteOutcome(topic_partition, refusal.code, error_message=refusal.message)
        return DeleteOutcome(
            topic_partition, ErrorCode.NONE, low_watermark, required, partition=partition
        )

    def wait_for_deletion(
        self, outcomes: Sequence[DeleteOutcome], timeout_ms: int
    ) -> Deferred[None]:
        """Fires when all live replicas moved, or after `timeout_ms`."""
        operation = DelayedDeleteRecords(outcomes, self._partition_of)
        return (
            self.delete_records_purgatory.try_complete_else_watch(
                operation, operation.keys, max(0, timeout_ms)
            )
            or _fired()
        )

    # periodic tasks, stopping
    def shrink_isrs(self) -> None:
        """isr-expiration: looks for followers that fell behind (RL 1.1, 2.4). If very many
        partitions shrink, it goes on in later turns.

        A follower outside the ISR that stops fetching ceases to hold the high watermark back (RL
        2.3) after `replica.lag.time.max.ms`: no event shows that, only this look.
        """
        if self._shrink_call is None:
            self._shrink_some(iter(list(self.partitions.values())), self.runtime.now_ms())

    def _shrink_some(self, partitions: Iterator[Partition], now_ms: int) -> None:
        """`now_ms`: of the first turn. Time in which this process was stopped since counts against
        no follower (`periodic.py`).
        """
        self._shrink_call = None
        for partition in partitions:  # one that was dropped meanwhile leads nothing
            partition.maybe_shrink_isr(now_ms)
            log = partition.leader_log
            if log is not None and log.high_watermark < log.log_end_offset:
                partition.advance_high_watermark(now_ms)
            if len(self.events) >= PROPOSED_PER_TURN:
                self._shrink_call = self.runtime.clock.callLater(
                    0, self._shrink_some, partitions, now_ms
                )
                break
        self.drain()

    def checkpoint_high_watermarks(self) -> None:
        """highwatermark-checkpoint (RL 1.12)."""
        self._high_watermarks.write(
            self._logs_to_checkpoint(),
            self.image_source.image.offset + 1,
            self._is_metadata_kept(),
        )

    def shutdown(self) -> None:
        """Stops fetchers and the periodic tasks, answers all that waits as if its time were up,
        and has the high watermarks written.
        """
        if self.fetchers is not None:
            self.fetchers.shutdown()
        self.moves.shutdown()
        self._periodic.stop()
        self.lines.stop()
        for purgatory in (
            self.produce_purgatory,
            self.fetch_purgatory,
            self.delete_records_purgatory,
            self.share_fetch_purgatory,
        ):
            purgatory.complete_all()
        self.drain()
        self._wheel.stop()
        self.effects.stop()
        self.role_retries.stop()
        if self._shrink_call is not None:
            self._shrink_call.cancel()
            self._shrink_call = None
        # Last: nothing moves a high watermark after the drain.
        self._high_watermarks.write_last(
            self._logs_to_checkpoint(), self.image_source.image.offset + 1
        )


def _check_topic_id(partition: Partition, topic_id: bytes) -> None:
    """Raises UNKNOWN_TOPIC_ID. The name was found in the metadata of a moment: the partitions
    follow it in turns of their own, and a topic may be made anew while a request waits.
    """
    # Topics of an old cluster have no id.
    if partition.topic_id not in (topic_id, NULL_UUID):
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID)


def _fired() -> Deferred[None]:
    done: Deferred[None] = Deferred()
    done.callback(None)
    return done
