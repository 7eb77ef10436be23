"""The partitions of `__share_group_state` that this broker leads: load, serve, prune, unload.
Ring 1.

Owns `ShareCoordinator`, which is an `IPersister`, its settings, and `IShareStateStore`.

1. A share partition is served by the shard that its key hashes to, while this broker leads that
   partition: else NOT_COORDINATOR, also while that is in doubt after a stop of the process; while
   the partition is read, or its records are not committed, COORDINATOR_LOAD_IN_PROGRESS.
2. A request for a share partition is decided, appended and applied in one turn; a record that is
   refused changes nothing. The answer leaves when the last record of that share partition is
   committed (`coordinator/commits.py`).
3. Share partitions of topics that are not in the metadata are deleted: when a topic goes, when a
   partition was loaded, and before each pruning, so that a refused deletion is tried again.
4. Pruning moves the start of the log up to the first record that counts, once all that was in the
   log when this was looked up is committed: a snapshot that may still be lost replaces nothing.
5. A closed shard appends nothing, and a partition that cannot be read is not served until its next
   leader epoch. All state here is in the log: a restart reads it.
6. Memory: `share_state.py`, line 5.

Source: Apache Kafka 4.3.1 `ShareCoordinatorService`, `ShareCoordinatorConfig`. Not here: permission
and the wire (`api/share_state.py`), what is decided (`share_state.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.bucket_dict import BucketDict
from twisted_broker.coordinator.commits import Commits
from twisted_broker.coordinator.coordinator_context import (
    IOffsetsStore,
    append_error,
    refusal,
)
from twisted_broker.coordinator.coordinator_loader import LogReplay, read_partition
from twisted_broker.coordinator.coordinator_shard import CoordinatorState
from twisted_broker.coordinator.group_records import MalformedRecord, batch_of, fits_record
from twisted_broker.coordinator.offsets_topic import CoordinatorTopic
from twisted_broker.coordinator.record_codec import StoredRecord, encode_record
from twisted_broker.coordinator.share_state.records import (
    decode_record,
    snapshot_record,
    state_partition_for,
)
from twisted_broker.coordinator.share_state.share_state import SharePartitionState, ShareState
from twisted_broker.coordinator.share_state.values import (
    ReadState,
    SharePartitionKey,
    StateSummary,
    WriteState,
)
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import IClock
from twisted_broker.periodic import PeriodicTask
from twisted_broker.topic_names import SHARE_STATE_TOPIC
from twisted_broker.turns import Steps, Turns
from twisted_broker.wire.errors import BrokerError, ErrorCode

# About a millisecond of one turn.
CHECKED_PER_STEP = 500
TOMBSTONES_PER_BATCH = 50
TIMES_KEPT = 512
_logger = Logger()


class IShareStateStore(IOffsetsStore, Protocol):
    """The partitions of `__share_group_state` that this broker leads."""

    def delete_records(self, index: int, offset: int) -> None:
        """Moves the log start of partition `index` up. Raises BrokerError."""
        ...


@dataclass(frozen=True, slots=True)
class ShareCoordinatorSettings:
    """All times in ms."""

    updates_per_snapshot: int = 500
    write_timeout_ms: int = 5_000
    load_buffer_bytes: int = 5 * 1024 * 1024
    prune_interval_ms: int = 300_000
    cold_snapshot_interval_ms: int = 300_000


def share_coordinator_settings(config: BrokerConfig) -> ShareCoordinatorSettings:
    """Of a broker's configuration."""

    def number(name: str) -> int:
        return config.integer(f"share.coordinator.{name}")

    return ShareCoordinatorSettings(
        updates_per_snapshot=number("snapshot.update.records.per.snapshot"),
        write_timeout_ms=number("write.timeout.ms"),
        load_buffer_bytes=number("load.buffer.size"),
        prune_interval_ms=number("state.topic.prune.interval.ms"),
        cold_snapshot_interval_ms=number("cold.partition.snapshot.interval.ms"),
    )


@dataclass(slots=True)
class ShareCoordinatorContext:
    """`image` gives the present metadata; `has_stale_roles`: whether others may lead what this
    broker led (`cluster/stale_roles.py`).
    """

    clock: IClock
    wall_ms: Callable[[], int]
    store: IShareStateStore
    settings: ShareCoordinatorSettings
    turns: Turns
    image: Callable[[], MetadataImage]
    has_stale_roles: Callable[[], bool] = bool


class _Replay(LogReplay):
    """Share partitions: an update rests on what stands before it."""

    __slots__ = ("share",)

    def __init__(self, position: int, one_by_one: bool = False) -> None:
        super().__init__(position, one_by_one)
        self.share = ShareState()

    def held(self) -> Sequence[BucketDict[str, Any]]:
        return ()

    def _is_at_once(self) -> bool:
        return True

    def _replay_record(
        self, key: bytes | None, value: bytes | None, record_offset: int, producer_id: int
    ) -> None:
        try:
            record = decode_record(key, value)
        except MalformedRecord:
            self.skipped += 1
            return
        if record is not None:
            self.share.apply(record, record_offset)


class ShareShard:
    """One partition, led here at `leader_epoch`."""

    __slots__ = (
        "_context",
        "commits",
        "index",
        "is_pruning",
        "leader_epoch",
        "pruned_to",
        "share",
        "state",
    )

    def __init__(self, context: ShareCoordinatorContext, index: int, leader_epoch: int) -> None:
        self._context, self.index, self.leader_epoch = context, index, leader_epoch
        self.state = CoordinatorState.LOADING
        self.share = ShareState()
        self.commits: Commits[SharePartitionKey] = Commits()
        self.pruned_to = 0
        self.is_pruning = False

    @property
    def is_active(self) -> bool:
        return self.state is CoordinatorState.ACTIVE

    def append(self, records: Sequence[StoredRecord]) -> Deferred[int]:
        """One batch, applied if it is in the log. Raises BrokerError if it is refused."""
        store = self._context.store
        offset = store.bounds(self.index)[1]
        outcome = store.append(
            self.index,
            batch_of([encode_record(each) for each in records], self._context.wall_ms()),
            self._context.settings.write_timeout_ms,
        )
        refused = refusal(outcome)
        if refused is not None:
            outcome.addErrback(lambda _: None)
            raise BrokerError(append_error(refused))
        for number, record in enumerate(records):
            self.share.apply(record, offset + number)
        return outcome

    def close(self) -> None:
        self.state = CoordinatorState.CLOSED
        self.commits.close()


_Decided = tuple[StoredRecord | None, Any]


class ShareCoordinator:
    """An `IPersister` for the share partitions that it `serves`. `start` and `stop` are the
    broker's.
    """

    def __init__(
        self, context: ShareCoordinatorContext, topic: CoordinatorTopic | None = None
    ) -> None:
        self.context, self.topic = context, topic
        self.shards: dict[int, ShareShard] = {}
        self._tasks = (
            PeriodicTask(context.clock, self._start_pruning, "pruning the share state"),
            PeriodicTask(context.clock, self._start_snapshots, "snapshots of the share state"),
        )
        self._is_making_snapshots = False
        # For the metrics.
        self.writes = 0
        self.write_times_ms: deque[float] = deque(maxlen=TIMES_KEPT)

    def start(self) -> None:
        settings = self.context.settings
        pruning, snapshots = self._tasks
        pruning.start(settings.prune_interval_ms / 1000)
        snapshots.start(settings.cold_snapshot_interval_ms / 1000)

    def stop(self) -> None:
        """Ends all that runs; waiting requests are answered NOT_COORDINATOR."""
        for task in self._tasks:
            task.stop()
        for index in list(self.shards):
            self.shards.pop(index).close()

    # leadership
    def load(self, index: int, leader_epoch: int) -> None:
        """This broker leads partition `index` from `leader_epoch` on: reads it, then serves it."""
        before = self.shards.get(index)
        if before is not None and before.leader_epoch >= leader_epoch:
            return
        if before is not None:
            before.close()
        shard = self.shards[index] = ShareShard(self.context, index, leader_epoch)
        self.context.turns.start(self._load_steps(shard))

    def unload(self, index: int, leader_epoch: int) -> None:
        """Another broker leads partition `index`, or nobody, since `leader_epoch`."""
        shard = self.shards.get(index)
        if shard is not None and leader_epoch >= shard.leader_epoch:
            self.shards.pop(index).close()

    def _load_steps(self, shard: ShareShard) -> Steps:
        context = self.context
        reading = read_partition(
            context.store,
            shard.index,
            context.settings.load_buffer_bytes,
            _Replay,
            SHARE_STATE_TOPIC,
            [],
            context.clock,
        )
        try:
            while True:
                try:
                    pause = next(reading)
                except StopIteration as end:
                    shard.share = end.value.share
                    break
                yield pause
                if shard.state is CoordinatorState.CLOSED:
                    return
            shard.share.next_offset = context.store.bounds(shard.index)[1]
            # An answer from records that are lost with this leader would be taken back.
            committed: list[bool] = []
            caught_up = context.store.committed(shard.index).addCallback(committed.append)
            if not committed:
                yield caught_up
        except Exception as error:
            if not isinstance(error, BrokerError):
                _logger.failure("loading __share_group_state-{index} failed", index=shard.index)
            _logger.error(
                "__share_group_state-{index} cannot be read; its share partitions are not served "
                "until its leader changes or this broker restarts: {error}",
                index=shard.index,
                error=error,
            )
            if self.shards.get(shard.index) is shard:
                self.shards.pop(shard.index).close()
            return
        if shard.state is CoordinatorState.CLOSED:
            return
        if not committed[0]:  # it is led no more, or its directory failed
            self.unload(shard.index, shard.leader_epoch)
            return
        shard.state = CoordinatorState.ACTIVE
        if shard.share.partitions:
            _logger.info(
                "__share_group_state-{index}: {count} share partitions loaded",
                index=shard.index,
                count=len(shard.share.partitions),
            )
        yield from self._orphan_steps(shard)

    # requests
    def serves(self, key: SharePartitionKey) -> bool:
        """Whether this broker coordinates the share partition, or is about to."""
        count = self.context.store.partitions_count()
        return state_partition_for(key, count) in self.shards

    def initialize(
        self, key: SharePartitionKey, state_epoch: int, start_offset: int
    ) -> Deferred[None]:
        """See `IPersister`."""

        def decide(share: ShareState) -> _Decided:
            context = self.context
            return share.initialize(
                key, state_epoch, start_offset, context.image(), context.wall_ms()
            ), None

        return self._do(key, decide)

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Deferred[ReadState]:
        """See `IPersister`."""

        def decide(share: ShareState) -> _Decided:
            context = self.context
            return share.read(
                key,
                leader_epoch,
                context.image(),
                context.wall_ms(),
                context.settings.updates_per_snapshot,
            )

        return self._do(key, decide)

    def write(self, key: SharePartitionKey, state: WriteState) -> Deferred[None]:
        """See `IPersister`."""

        def decide(share: ShareState) -> _Decided:
            context = self.context
            return share.write(
                key,
                state,
                context.image(),
                context.wall_ms(),
                context.settings.updates_per_snapshot,
            ), None

        began = self.context.clock.seconds()
        self.writes += 1

        def written(result: Any) -> Any:
            self.write_times_ms.append(1000 * (self.context.clock.seconds() - began))
            return result

        return self._do(key, decide).addBoth(written)

    def delete(self, key: SharePartitionKey) -> Deferred[None]:
        """See `IPersister`."""
        return self._do(key, lambda share: (share.delete(key, self.context.image()), None))

    def summary(self, key: SharePartitionKey) -> Deferred[StateSummary]:
        """See `IPersister`."""
        return self._do(key, lambda share: (None, share.summary(key, self.context.image())))

    def known(self, key: SharePartitionKey) -> SharePartitionState | None:
        """What this broker stores of it, whether or not that is committed."""
        shard = self.shards.get(state_partition_for(key, self.context.store.partitions_count()))
        return None if shard is None else shard.share.partitions.get(key)

    def _do(
        self, key: SharePartitionKey, decide: Callable[[ShareState], _Decided]
    ) -> Deferred[Any]:
        try:
            shard = self._shard_of(key)
            record, content = decide(shard.share)
            if record is not None:
                shard.commits.add(key, shard.append([record]))
        except BrokerError as refused:
            return fail(refused)
        answer: Deferred[Any] = Deferred()
        shard.commits.answer(key, answer, content)
        return answer

    def _shard_of(self, key: SharePartitionKey) -> ShareShard:
        if not fits_record(key.group_id):
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        count = self.context.store.partitions_count()
        shard = self.shards.get(state_partition_for(key, count))
        if shard is None or self.context.has_stale_roles():
            raise BrokerError(ErrorCode.NOT_COORDINATOR)
        if not shard.is_active:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    # what nobody asks for
    def topics_deleted(self) -> None:
        """Topics are gone, and so are their states."""
        for shard in self.shards.values():
            if shard.is_active and shard.share.partitions:
                self.context.turns.start(self._orphan_steps(shard))

    def _orphan_steps(self, shard: ShareShard) -> Steps:
        """Deletes the share partitions of topics that there are not."""
        orphans: list[SharePartitionKey] = []
        for number, key in enumerate(list(shard.share.partitions), 1):
            if key.topic_id not in self.context.image().topics_by_id:
                orphans.append(key)
            if number % CHECKED_PER_STEP == 0:
                yield None
        for begin in range(0, len(orphans), TOMBSTONES_PER_BATCH):
            some = orphans[begin : begin + TOMBSTONES_PER_BATCH]
            if not self._append_unasked(shard, [snapshot_record(key, None) for key in some]):
                return
            yield None

    def _append_unasked(self, shard: ShareShard, records: Sequence[StoredRecord]) -> bool:
        """Whether they are in the log; a refused one is tried again with the next pruning."""
        if not shard.is_active:
            return False
        try:
            shard.append(records).addErrback(lambda _: None)
        except BrokerError as error:
            _logger.warn(
                "__share_group_state-{index}: snapshots that let it be pruned were not written, "
                "trying again later: {error}",
                index=shard.index,
                error=error,
            )
            return False
        return True

    def _start_snapshots(self) -> None:
        if not self._is_making_snapshots:
            self._is_making_snapshots = True
            self.context.turns.start(self._snapshot_steps())

    def _snapshot_steps(self) -> Steps:
        context = self.context
        try:
            for shard in list(self.shards.values()):
                if not shard.is_active:
                    continue
                for record in shard.share.cold_snapshots(
                    context.wall_ms(), context.settings.cold_snapshot_interval_ms
                ):
                    if not self._append_unasked(shard, [record]):
                        break
                    yield None
                yield None
        finally:
            self._is_making_snapshots = False

    def _start_pruning(self) -> None:
        for shard in self.shards.values():
            if shard.is_active and not shard.is_pruning:
                shard.is_pruning = True
                self.context.turns.start(self._prune_steps(shard))

    def _prune_steps(self, shard: ShareShard) -> Steps:
        try:
            yield from self._orphan_steps(shard)
            if shard.is_active:
                yield from self._prune(shard)
        finally:
            shard.is_pruning = False

    def _prune(self, shard: ShareShard) -> Steps:
        offset = shard.share.first_needed_offset()
        if offset <= shard.pruned_to:
            return
        store = self.context.store
        try:
            committed: list[bool] = []
            caught_up = store.committed(shard.index).addCallback(committed.append)
            if not committed:
                yield caught_up
            if shard.is_active and committed[0]:
                store.delete_records(shard.index, offset)
                shard.pruned_to = offset
        except BrokerError as error:
            _logger.warn(
                "__share_group_state-{index} was not pruned, trying again later: {error}",
                index=shard.index,
                error=error,
            )
