"""Where the production code is watched while a simulated run goes: what happened is counted.

Owns `Probes`, a context: within it a few functions of the production code are wrapped, in this
process only; the production code itself has no hook and pays nothing. What a function is called is
checked when it is wrapped: one that was renamed fails every run.

1. A wrapped function does what it did; its probe looks at what it was given and what it returned.
2. What an image says is counted from images (`simulation/image_counts.py`), not here.

Not here: the kinds (`simulation/reach.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import getattr_static
from typing import Any, Self

from twisted_broker.cluster import metadata_log
from twisted_broker.cluster.metadata_log import MetadataLog
from twisted_broker.cluster.metadata_store import MetadataStore
from twisted_broker.cluster.observer_log import ObserverLog
from twisted_broker.cluster.stale_roles import StaleRoles
from twisted_broker.coordinator.coordinator_runtime import CoordinatorRuntime
from twisted_broker.coordinator.coordinator_shard import CoordinatorShard
from twisted_broker.coordinator.group_runner import GroupRunner
from twisted_broker.coordinator.membership import Membership
from twisted_broker.coordinator.modern_group import ModernGroup
from twisted_broker.coordinator.offsets_topic import CoordinatorTopic
from twisted_broker.coordinator.rebalance import Rebalance
from twisted_broker.coordinator.share_state.share_coordinator import ShareCoordinator
from twisted_broker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from twisted_broker.coordinator.transaction.transaction_marker_sender import (
    TransactionMarkerSender,
)
from twisted_broker.coordinator.transaction.transaction_state_manager import (
    TransactionStateManager,
)
from twisted_broker.image.metadata_delta import Removals
from twisted_broker.log import recovery, retention
from twisted_broker.log.cleaner.batch_filter import BatchFilter
from twisted_broker.log.cleaner.cleaning import CleaningPlan, CleaningResult
from twisted_broker.log.cleaner.log_cleaner import LogCleaner
from twisted_broker.log.durability import Durability
from twisted_broker.log.log import Log
from twisted_broker.log.log_directories import LogDirectories
from twisted_broker.log.log_manager import LogManager
from twisted_broker.log.producer_state import ProducerStateManager
from twisted_broker.log.segments import LogSegments
from twisted_broker.log.verification import VerificationStateEntry
from twisted_broker.replication.fetcher.alter_log_dirs_manager import ReplicaAlterLogDirsManager
from twisted_broker.replication.fetcher.fetcher_state import FetcherState, FetchOutcome
from twisted_broker.replication.fetcher.replica_fetcher import FollowedReplicas, ReplicaFetcher
from twisted_broker.replication.fetcher.truncation_decision import OUT_OF_RANGE, OffsetReset
from twisted_broker.replication.high_watermark_checkpoint import HighWatermarkCheckpoint
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.replication.partition.partition_history import PartitionHistory, Truncation
from twisted_broker.replication.replica_manager import ReplicaManager
from twisted_broker.share import share_partition_manager
from twisted_broker.share.share_partition import SharePartition
from twisted_broker.simulation.reach import Reach
from twisted_broker.topic_names import METADATA_TOPIC

_METADATA = f"/{METADATA_TOPIC}-"
_RETENTION = {
    "_by_size": "retention by size",
    "_by_time": "retention by time",
    "delete_old_segments": "retention by log start",
}
_OUTCOMES = {
    FetchOutcome.FENCED: "fetch fenced",
    FetchOutcome.TRUNCATE: "fetch diverged",
    FetchOutcome.OUT_OF_RANGE: "fetch out of range",
    FetchOutcome.STALE: "fetch stale",
    FetchOutcome.RETRY: "fetch refused",
}


class Probes:
    """Counts into `reach` from entering to leaving. `replacing(log, bases)` is called before a
    cleaner's result takes the place of segments, `taking(log, upto)` before the first of a round,
    which knew all records below `upto`, `markers_sent(sender)` once a transaction's
    markers are on their way.
    """

    def __init__(
        self,
        reach: Reach,
        replacing: Callable[[Log, Sequence[int]], None] = lambda log, bases: None,
        taking: Callable[[Log, int], None] = lambda log, upto: None,
        markers_sent: Callable[[TransactionMarkerSender], None] = lambda sender: None,
    ) -> None:
        self._count, self._replacing, self._markers_sent = reach.count, replacing, markers_sent
        self._taking = taking
        self._undo: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Self:
        try:
            self._watch_logs()
            self._watch_recovery()
            self._watch_replication()
            self._watch_cluster()
            self._watch_groups()
            self._watch_transactions()
            self._watch_migration()
            self._watch_share_groups()
            self._watch_cleaning()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for owner, name, function in reversed(self._undo):
            setattr(owner, name, function)
        self._undo.clear()

    def _wrap(self, owner: Any, name: str, probe: Callable[[Callable[..., Any]], Any]) -> None:
        """Puts `probe(function)` in the place of a function."""
        function = getattr_static(owner, name)
        self._undo.append((owner, name, function))
        setattr(owner, name, probe(function))

    def _after(self, owner: Any, name: str, look: Callable[..., None]) -> None:
        """Calls `look(result, *arguments)` after each call that returned."""

        def probe(function: Callable[..., Any]) -> Callable[..., Any]:
            def watched(*arguments: Any, **keywords: Any) -> Any:
                result = function(*arguments, **keywords)
                look(result, *arguments)
                return result

            return watched

        self._wrap(owner, name, probe)

    # logs

    def _watch_logs(self) -> None:
        self._after(LogSegments, "should_roll", self._rolls)
        self._after(ProducerStateManager, "take_snapshot", self._snapshot_taken)
        self._after(ProducerStateManager, "loaded", self._snapshot_loaded)
        self._after(
            ProducerStateManager, "begin_rebuild", lambda *_: self._count("producers rebuilt later")
        )
        self._after(Log, "_duplicate_info", lambda *_: self._count("duplicate"))
        self._after(Log, "increment_log_start_offset", self._log_start_moved)
        self._after(Log, "_end_at", self._truncated)
        self._after(Durability, "_move_recovery_point", self._synced)
        self._after(retention, "_delete_while", self._retained)
        self._wrap(LogSegments, "remove_above", self._removing)
        self._after(
            LogManager,
            "delete",
            lambda _, manager, name: self._count("replica deleted"),
        )
        self._after(
            Removals,
            "has",
            lambda found, *_: self._count("replica deleted at a start", int(found)),
        )
        self._after(LogDirectories, "fail", self._directory_failed)

    def _rolls(
        self, rolls: bool, segments: LogSegments, size: int, last: int, *times: object
    ) -> None:
        if not rolls or _METADATA in segments.active.log.path:
            return
        active = segments.active
        if active.size > segments.config.segment_bytes - size:
            self._count("roll by size")
        elif active.offset_index.is_full:
            self._count("roll by index")
        elif active.time_index.is_full:
            self._count("roll by time index")
        else:
            self._count("roll by time")

    def _snapshot_taken(self, offset: int, producers: ProducerStateManager, *_: object) -> None:
        if offset >= 0 and producers.producers:
            self._count("producer snapshot")

    def _snapshot_loaded(self, _: None, producers: ProducerStateManager, *rest: object) -> None:
        if producers.producers:
            self._count("producer snapshot loaded")

    def _log_start_moved(self, moved: bool, log: Log, offset: int) -> None:
        if moved and _METADATA not in log.directory:
            self._count("log start moved")

    def _truncated(self, _: None, log: Log, offset: int, start: int) -> None:
        if offset == start and log.segments.first.base_offset == offset:
            self._count("full truncation", int(_METADATA not in log.directory))

    def _removing(self, function: Callable[..., None]) -> Callable[..., None]:
        def watched(segments: LogSegments, offset: int) -> None:
            before = len(segments)
            function(segments, offset)
            if 0 < len(segments) < before:
                self._count("truncation over segments")

        return watched

    def _synced(
        self, _: None, durability: Durability, upto: int, generation: int, error: object
    ) -> None:
        if error is None:
            self._count("sync of a log")

    def _retained(self, deleted: int, log: Log, is_old: Any, *rest: object) -> None:
        if deleted and _METADATA not in log.directory:
            self._count(_RETENTION[is_old.__qualname__.partition(".")[0]])

    def _directory_failed(
        self, _: None, directories: LogDirectories, path: str, *rest: Any
    ) -> None:
        if directories.by_path[path].failed is not None and directories.online():
            self._count("directory failed")

    # recovery

    def _watch_recovery(self) -> None:
        self._after(recovery, "_load_segments", self._loaded)
        self._after(recovery, "recover_segment", self._recovered)
        self._after(HighWatermarkCheckpoint, "_read", self._high_watermarks_read)

    def _loaded(
        self,
        found: recovery.LoadedSegments,
        log: Log,
        point: int,
        clean: bool,
        *rest: object,
    ) -> None:
        recovered = found.recovered
        if _METADATA in log.directory:
            return
        if clean:
            self._count("clean start")
        elif recovered:
            self._count("recovery")
        if len(recovered) > 1:
            self._count("recovery of several segments")

    def _recovered(self, found: tuple[int, int], *_: object) -> None:
        if found[0]:
            self._count("recovery dropped a tail")

    def _high_watermarks_read(self, found: dict[Any, int], *_: object) -> None:
        if any(found.values()):
            self._count("high watermark checkpoint read")

    # replication

    def _watch_replication(self) -> None:
        for name in ("outcome_of_fetch", "outcome_of_epoch_end"):
            self._after(FetcherState, name, self._outcome)
        self._wrap(FollowedReplicas, "truncate", self._truncating)
        self._after(FetcherState, "offset_reset", self._reset)
        self._wrap(Partition, "delete_records", self._deleting_records)
        self._after(Partition, "_truncated", self._below_high_watermark)
        self._after(
            Partition,
            "truncate_fully_and_start_at",
            lambda *_: self._count("truncation out of range"),
        )
        self._after(PartitionHistory, "isr_refused", lambda *_: self._count("ISR change refused"))
        self._after(
            ReplicaManager,
            "throttles_follower",
            lambda held, *_: self._count("throttled by the leader", int(held)),
        )
        self._after(
            ReplicaFetcher,
            "_is_held_back",
            lambda held, *_: self._count("throttled by the follower", int(held)),
        )
        self._watch_moves()

    def _watch_moves(self) -> None:
        moves = ReplicaAlterLogDirsManager
        self._after(moves, "_swap", lambda *_: self._count("replica moved"))
        self._wrap(moves, "begin", self._beginning)
        self._wrap(moves, "remove", self._ending)

    def _beginning(self, function: Callable[..., None]) -> Callable[..., None]:
        def watched(moves: ReplicaAlterLogDirsManager, partition: Partition) -> None:
            is_new = partition.topic_partition not in moves.moves
            future = partition.future_log
            copied = future is not None and is_new and future.log_end_offset > 0
            function(moves, partition)
            self._count("move began again", int(copied))

        return watched

    def _ending(self, function: Callable[..., None]) -> Callable[..., None]:
        def watched(moves: ReplicaAlterLogDirsManager, names: Any) -> None:
            before = len(moves.moves)
            function(moves, names)
            self._count("move ended before", before - len(moves.moves))

        return watched

    def _below_high_watermark(self, truncation: Truncation, *_: object) -> None:
        self._count("truncation below high watermark", int(truncation.below_high_watermark))

    def _reset(
        self, _: None, state: FetcherState, name: object, reset: OffsetReset, *__: object
    ) -> None:
        self._count("fetched again", int(reset.reason != OUT_OF_RANGE))

    def _outcome(self, outcome: FetchOutcome, *_: object) -> None:
        if outcome in _OUTCOMES:
            self._count(_OUTCOMES[outcome])

    def _truncating(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(replicas: Any, name: Any, fetch_offset: int, leader_end: Any) -> Any:
            log = replicas._log(name)
            before = log.truncations
            result = function(replicas, name, fetch_offset, leader_end)
            if log.truncations != before:
                by = "high watermark" if leader_end is None else "epoch"
                self._count(f"truncation by {by}")
            return result

        return watched

    def _deleting_records(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(partition: Partition, offset: int) -> Any:
            before = -1 if partition.log is None else partition.log.log_start_offset
            result = function(partition, offset)
            if partition.log is not None and partition.log.log_start_offset > before:
                self._count("DeleteRecords")
            return result

        return watched

    # the cluster

    def _watch_cluster(self) -> None:
        self._after(MetadataLog, "begin_epoch", lambda *_: self._count("controller started"))
        self._after(MetadataLog, "append", self._metadata_appended)
        self._after(MetadataStore, "_truncate_behind", self._snapshot_written)
        self._after(ObserverLog, "install", lambda *_: self._count("metadata snapshot fetched"))

    def _metadata_appended(self, _: int, log: MetadataLog, records: list[Any], *rest: Any) -> None:
        self._count("metadata transaction", int(len(records) > metadata_log.RECORDS_PER_BATCH))

    def _snapshot_written(self, _: None, store: MetadataStore, *rest: object) -> None:
        is_log = isinstance(store, MetadataLog)
        self._count("metadata snapshot" if is_log else "metadata snapshot of a broker")
        if len(store.log.segments) == 1 and not store.log.segments.active.size:
            self._count("roll of metadata")

    # groups

    def _watch_groups(self) -> None:
        self._after(Rebalance, "_complete_join", lambda *_: self._count("group rebalance"))
        self._after(Membership, "session_expired", lambda *_: self._count("member expired"))
        self._after(
            GroupRunner,
            "_expired",
            lambda *_: self._count("consumer group member expired"),
        )
        self._after(
            GroupRunner,
            "group_loaded",
            lambda *_: self._count("consumer group loaded"),
        )
        self._after(CoordinatorTopic, "_refused", lambda *_: self._count("offsets topic refused"))
        self._wrap(CoordinatorRuntime, "_load_steps", self._loading)
        self._wrap(CoordinatorRuntime, "unload", self._unloading)
        self._after(StaleRoles, "may_be", lambda stale, *_: self._count("stale roles", int(stale)))

    def _loading(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(runtime: CoordinatorRuntime, shard: Any) -> Any:
            yield from function(runtime, shard)
            if shard.groups:
                self._count("offsets loaded")

        return watched

    def _unloading(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(runtime: CoordinatorRuntime, index: int, *rest: Any) -> Any:
            shard = runtime.shards.get(index)
            held = shard is not None and bool(shard.groups)
            result = function(runtime, index, *rest)
            if held and index not in runtime.shards:
                self._count("coordinator moved")
            return result

        return watched

    # transactions

    def _watch_transactions(self) -> None:
        self._after(
            TransactionCoordinator, "_aborted", lambda *_: self._count("transaction timed out")
        )
        self._after(TransactionMarkerSender, "_later", self._markers_later)
        self._after(
            TransactionMarkerSender, "send", lambda _, sender, *more: self._markers_sent(sender)
        )
        self._after(VerificationStateEntry, "outlives", self._marker_beside_verification)
        self._wrap(TransactionStateManager, "_load_steps", self._loading_transactions)
        self._wrap(TransactionStateManager, "_close", self._unloading_transactions)
        self._wrap(TransactionStateManager, "_resume_steps", self._resuming)

    def _markers_later(
        self, _: None, sender: TransactionMarkerSender, entries: Iterable[Any], *rest: Any
    ) -> None:
        self._count("markers sent again", sum(not entry.pending.is_over for entry in entries))

    def _marker_beside_verification(self, outlives: bool, *_: object) -> None:
        self._count(f"verification {'outlived' if outlives else 'ended by'} a marker")

    def _loading_transactions(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(states: TransactionStateManager, shard: Any) -> Any:
            yield from function(states, shard)
            if shard.transactions:
                self._count("transactions loaded")

        return watched

    def _unloading_transactions(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(states: TransactionStateManager, shard: Any) -> None:
            self._count("transaction coordinator moved", int(bool(shard.transactions)))
            function(states, shard)

        return watched

    def _resuming(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(states: TransactionStateManager, shard: Any, prepared: Sequence[Any]) -> Any:
            self._count("markers after a failover", len(prepared))
            yield from function(states, shard, prepared)

        return watched

    # groups of both protocols

    def _watch_migration(self) -> None:
        self._wrap(CoordinatorShard, "first_decided", self._deciding_first)
        self._wrap(CoordinatorShard, "_has_begun", self._beginning_classic)
        self._after(CoordinatorShard, "downgraded", lambda *_: self._count("group downgraded"))

    def _deciding_first(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(shard: CoordinatorShard, group: Any, is_begun: bool) -> None:
            before = shard._predecessors.get(group)
            if is_begun and before is not None:
                self._count("group upgraded" if before.members else "empty group replaced")
            function(shard, group, is_begun)

        return watched

    def _beginning_classic(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(shard: CoordinatorShard, group: Any) -> None:
            before = shard._predecessors.get(group)
            self._count("empty group replaced", int(isinstance(before, ModernGroup)))
            function(shard, group)

        return watched

    # share groups

    def _watch_share_groups(self) -> None:
        self._after(SharePartition, "end_locks", self._locks_ended)
        self._after(share_partition_manager, "_loaded", self._share_loaded)
        self._wrap(ShareCoordinator, "_load_steps", self._loading_share_state)

    def _locks_ended(self, ended: Sequence[Any], *_: object) -> None:
        self._count("share lock timed out", int(bool(ended)))

    def _share_loaded(self, share: SharePartition, *_: object) -> None:
        self._count("share state read", int(bool(share.in_flight)))

    def _loading_share_state(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(coordinator: ShareCoordinator, shard: Any) -> Any:
            yield from function(coordinator, shard)
            self._count("share coordinator loaded", int(bool(shard.share.partitions)))

        return watched

    # cleaning

    def _watch_cleaning(self) -> None:
        self._wrap(LogCleaner, "_take", self._taking_round)
        self._wrap(Log, "replace_segments", self._replacing_segments)
        self._after(BatchFilter, "_is_over", self._horizon_looked_at)

    def _taking_round(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(
            cleaner: LogCleaner, log: Log, plan: CleaningPlan, result: CleaningResult, *rest: object
        ) -> Any:
            self._taking(log, result.first_dirty)
            return function(cleaner, log, plan, result, *rest)

        return watched

    def _replacing_segments(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(log: Log, bases: Sequence[int], wall_ms: int) -> None:
            self._replacing(log, bases)
            function(log, bases, wall_ms)
            self._count("log cleaned")
            self._count("segments merged by cleaning", int(len(bases) > 1))
            self._count("log of a coordinator cleaned", int(log.topic_partition.topic[:1] == "_"))

        return watched

    def _horizon_looked_at(self, is_over: bool, *_: object) -> None:
        self._count("delete horizon passed", int(is_over))
