"""All share partitions whose logs this broker leads: loaded at their first fetch, read,
acknowledged, written, dropped. Ring 1.

Owns `SharePartitionManager`: the share partitions that are held, the share sessions, a timer for
the locks of each share partition, and its writes.

1. One write of a share partition is under way; what changes meanwhile goes together into the next.
   So no write overtakes another, and a persister that stalls makes nothing longer than the window.
2. A share partition is dropped when this broker ceases to lead its log, when its topic goes or its
   log fails, when the persister says that it is another leader's or another life's (`FENCING`),
   when its state cannot be read, and when its group has no session here any more and nothing is
   being written. What waits for it is answered; the next fetch loads it anew.
3. A lock's end is looked at after what had arrived was read. Ends within `LEAST_WAIT` of each other
   may be noticed together.
4. A lost connection gives back at once the records that its sessions' members hold.
5. A fetch that waits holds no share partition; one that reads gives it back however that ends.

Bounds: share partitions are held only of groups with state, one each; sessions by their setting;
what waits by its connections. A restart begins with none: see `share_partition.py`.

Source: GN 3.35, 3.41-3.46, 3.64, 3.75, 3.76; Apache Kafka 4.3.1 `SharePartitionManager`. Unlike
there writes are joined, and a session's end by its own request drops the group's share partitions,
too. Not here: states (`share_partition.py`), the wire (`api/share_fetch.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.features import serves_share_groups
from twisted_broker.coordinator.share_state.persister import IPersister
from twisted_broker.coordinator.share_state.values import (
    UNKNOWN_OFFSET,
    ReadState,
    SharePartitionKey,
    StateBatch,
    WriteState,
)
from twisted_broker.image.metadata_image import GROUP_RESOURCE
from twisted_broker.interfaces import IDelayedCall, Runtime, TopicPartition
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.log.offset_metadata import UNKNOWN, LogOffsetMetadata
from twisted_broker.log.segment_file import SliceGone
from twisted_broker.replication.live_brokers import ImageSource
from twisted_broker.replication.partition.fetch_data import (
    HIGH_WATERMARK,
    FetchParams,
    FetchPartitionRequest,
    FetchPartitionResult,
)
from twisted_broker.replication.partition.offset_lookup import EARLIEST, LATEST, list_offset
from twisted_broker.share.share_fetch import (
    DelayedShareFetch,
    FetchedPartition,
    HeldSharePartition,
    ShareFetch,
    cut_to,
    read_headers,
)
from twisted_broker.share.share_group_config import (
    BY_DURATION,
    ShareGroupConfig,
    ShareGroupSettings,
    share_group_config,
)
from twisted_broker.share.share_group_config import EARLIEST as FROM_EARLIEST
from twisted_broker.share.share_partition import (
    ACKNOWLEDGE_TYPES,
    Acknowledgement,
    PendingWrite,
    SharePartition,
)
from twisted_broker.share.share_session import SessionKey, SharePartitionId, ShareSessionCache
from twisted_broker.turns import Turns
from twisted_broker.wire.corrupt_record import CorruptRecordError
from twisted_broker.wire.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from twisted_broker.image.metadata_image import MetadataDelta
    from twisted_broker.replication.replica_manager import ReplicaManager

LEAST_WAIT = 0.01
"""Seconds between two looks at the locks of one share partition."""
_NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
_AS_SEEN_BY_CLIENTS = {
    ErrorCode.NOT_COORDINATOR: _NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
FENCING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_logger = Logger()


class SharePartitionManager:
    """A `LeadershipListener` of the replica manager and a subscriber of the metadata image."""

    def __init__(
        self,
        runtime: Runtime,
        replicas: ReplicaManager,
        image_source: ImageSource,
        persister: IPersister,
        config: ShareGroupConfig,
        most_sessions: int,
        turns: Turns,
    ) -> None:
        self._runtime, self._replicas, self._image_source = runtime, replicas, image_source
        self._persister, self._config, self._turns = persister, config, turns
        self.sessions = ShareSessionCache(most_sessions)
        self.held: dict[SharePartitionKey, HeldSharePartition] = {}
        self._to_wake: dict[Hashable, None] = {}
        self._wake_call: IDelayedCall | None = None
        self._is_stopped = False
        # For the metrics: records by the type of their acknowledgement, since the start.
        self.acknowledged = [0] * ACKNOWLEDGE_TYPES

    def settings(self, group_id: str) -> ShareGroupSettings:
        """Those of one group at this moment."""
        own = self._image_source.image.config(GROUP_RESOURCE, group_id)
        return self._config.of_group(own)

    def stop(self) -> None:
        """Nothing is read or written any more; what waits is answered by the replica manager."""
        self._is_stopped = True
        for held in list(self.held.values()):
            self._drop(held, BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        if self._wake_call is not None:
            self._wake_call.cancel()
            self._wake_call = None

    # what changes around it
    def leadership_gained(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """Share partitions are loaded when they are fetched."""

    def leadership_lost(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        for held in list(self.held.values()):
            if held.partition.topic_partition == topic_partition:
                self._drop(held, BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def image_changed(self, delta: MetadataDelta) -> None:
        if delta.removed_topics:
            for held in list(self.held.values()):
                if held.key.topic_id in delta.removed_topics:
                    self._drop(held, BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if self.held and not serves_share_groups(delta.after):
            self.sessions.clear()
            for held in list(self.held.values()):
                self._drop(held, BrokerError(ErrorCode.UNSUPPORTED_VERSION))

    def connection_lost(self, connection: Hashable) -> None:
        """Its sessions end, and their members hold nothing any more."""
        for key in self.sessions.of_connection(connection):
            self.sessions.evictions += 1
            self.end_session(key)

    # sessions
    def end_session(self, key: SessionKey) -> list[tuple[SharePartitionId, Deferred[Any]]]:
        """Releases the records that the member holds in the session's partitions; each Deferred
        fires with the error, if there is one.
        """
        session = self.sessions.remove(key)
        released: list[tuple[SharePartitionId, Deferred[Any]]] = []
        for partition in () if session is None else session.partitions:
            held = self.held.get(SharePartitionKey(key.group_id, *partition))
            if held is None or held.share is None:
                continue
            write = held.share.release(key.member_id, self.settings(key.group_id).limits)
            released.append((partition, self._store(held, write)))
        if not self.sessions.members_of(key.group_id):
            for held in [each for each in self.held.values() if each.key[0] == key.group_id]:
                self._drop_unused(held)
        return released

    def _drop_unused(self, held: HeldSharePartition) -> None:
        if (
            not self.sessions.members_of(held.key.group_id)
            and not held.is_writing
            and not held.is_fetching
            and held.share is not None
        ):
            self._drop(held, BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    # acknowledging
    def acknowledge(
        self,
        key: SharePartitionKey,
        member_id: str,
        acknowledgements: Sequence[Acknowledgement],
    ) -> Deferred[BrokerError | None]:
        """Fires with the error, if there is one, when it is persisted."""
        held = self.held.get(key)
        if held is None or not held.is_led:
            return succeed(self._refusal(key))
        if held.share is None:
            return succeed(
                BrokerError(
                    ErrorCode.INVALID_RECORD_STATE,
                    "Batch record not found. The request batch offsets are not found in the cache.",
                )
            )
        limits = self.settings(key.group_id).limits
        try:
            write = held.share.acknowledge(
                member_id, acknowledgements, self._runtime.now_ms(), limits
            )
        except BrokerError as refusal:
            return succeed(refusal)
        for first, last, types in acknowledgements:
            records = last - first + 1 if len(types) == 1 else 1
            for each in types:
                self.acknowledged[each] += records
        return self._store(held, write)

    def _refusal(self, key: SharePartitionKey) -> BrokerError:
        """Of a share partition that is not held here."""
        topic = self._image_source.image.topics_by_id.get(key.topic_id)
        state = None if topic is None else topic.partitions.get(key.partition)
        is_elsewhere = state is not None and state.leader != self._replicas.node_id
        return BrokerError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER
            if is_elsewhere
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )

    # writing
    def _store(self, held: HeldSharePartition, write: PendingWrite) -> Deferred[BrokerError | None]:
        if not write.runs:
            return succeed(None)
        answer: Deferred[BrokerError | None] = Deferred()
        held.waiting.append((write, answer))
        held.to_write += write.batches
        self._write_on(held)
        return answer

    def _write_on(self, held: HeldSharePartition) -> None:
        share = held.share
        if share is None or held.is_writing or not held.to_write:
            return
        batches, waiting = held.take_unwritten()
        held.is_writing = True
        state = WriteState(
            share.state_epoch,
            held.leader_epoch,
            share.start_offset,
            share.complete_count,
            tuple(batches),
        )
        done = self._persister.write(held.key, state)
        done.addCallbacks(
            lambda _: self._written(held, waiting, None),
            lambda failure: self._written(held, waiting, self._error_of(failure, held.key)),
        )
        done.addErrback(
            lambda failure: _logger.failure(
                "the step after a write of share partition {key} failed", failure, key=held.key
            )
        )

    def _written(
        self, held: HeldSharePartition, waiting: list[Any], error: BrokerError | None
    ) -> None:
        share = held.share
        assert share is not None
        held.is_writing = False
        now_ms = self._runtime.now_ms()
        may_acquire = False
        for write, _ in waiting:
            may_acquire |= share.finish_write(write, error is None, now_ms)
        if error is not None and error.code in FENCING:
            self._drop(held, error)
        else:
            self._write_on(held)
            if error is not None:
                self._arm(held)
            if may_acquire:
                self._wake(held.key)
            self._drop_unused(held)
        for _, answer in waiting:
            answer.callback(error)

    def _raise_as_seen(self, failure: Any, key: SharePartitionKey) -> NoReturn:
        raise self._error_of(failure, key)

    @staticmethod
    def _error_of(failure: Any, key: SharePartitionKey) -> BrokerError:
        error = failure.value
        if not isinstance(error, BrokerError):
            _logger.failure("the persister of {key} failed", failure, key=key)
            return BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR)
        code = _AS_SEEN_BY_CLIENTS.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR)
        return BrokerError(code, error.message)

    # locks
    def _arm(self, held: HeldSharePartition) -> None:
        """Sets its timer to the first end of a lock; one that is set is left where it is early
        enough.
        """
        end_ms = None if held.share is None else held.share.next_lock_end_ms
        if end_ms is not None:
            self._arm_at(held, end_ms)

    def _arm_at(self, held: HeldSharePartition, end_ms: int) -> None:
        if held.error is not None or (held.timer is not None and held.timer_ms <= end_ms):
            return
        seconds = max(LEAST_WAIT, (end_ms - self._runtime.now_ms()) / 1000)
        held.set_timer(self._runtime.clock.callLater(seconds, self._locks_due, held), end_ms)

    def _locks_due(self, held: HeldSharePartition) -> None:
        # A reactor runs its timers before it reads: an acknowledgement may lie there unread.
        held.set_timer(self._runtime.clock.callLater(0, self._end_locks, held), held.timer_ms)

    def _end_locks(self, held: HeldSharePartition) -> None:
        held.set_timer(None)
        if held.share is None or held.error is not None:
            return
        limits = self.settings(held.key.group_id).limits
        ended: list[StateBatch] = held.share.end_locks(self._runtime.now_ms(), limits)
        if ended:
            held.timeouts += sum(batch.last_offset - batch.first_offset + 1 for batch in ended)
            held.to_write += ended
            self._write_on(held)
            self._wake(held.key)
        self._arm(held)

    # life
    def _hold(self, key: SharePartitionKey, name: TopicPartition) -> HeldSharePartition:
        """The share partition, which is loaded if it was not there. Raises BrokerError."""
        held = self.held.get(key)
        if held is not None and not held.is_led:
            self._drop(held, BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            held = None
        if held is None:
            partition = self._replicas.partition(name)
            if not partition.is_leader:
                raise partition.refusal()
            if partition.topic_id != key.topic_id:
                raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if self._is_stopped:
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            held = self.held[key] = HeldSharePartition(key, partition)
            ensureDeferred(self._load(held))
        return held

    async def _load(self, held: HeldSharePartition) -> None:
        try:
            reading = self._persister.read(held.key, held.leader_epoch)
            state = await reading.addErrback(self._raise_as_seen, held.key)
            start = state.start_offset
            if start == UNKNOWN_OFFSET:
                start = await self._first_offset(held)
            if held.error is None:
                held.share = _loaded(held.key, state, start)
        except BrokerError as refusal:
            self._drop(held, refusal)
        except Exception:
            _logger.failure("loading the share partition {key} failed", key=held.key)
            self._drop(held, BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR))
        self._wake(held.key)

    async def _first_offset(self, held: HeldSharePartition) -> int:
        """Where a group begins that has no offset (GN 3.45). Raises BrokerError."""
        settings = self.settings(held.key.group_id)
        timestamp = LATEST
        if settings.reset == FROM_EARLIEST:
            timestamp = EARLIEST
        elif settings.reset == BY_DURATION:
            timestamp = max(0, self._runtime.wall_ms() - settings.reset_ms)
        search = list_offset(held.partition, timestamp, HIGH_WATERMARK, -1, True)
        while True:
            try:
                next(search)
            except StopIteration as end:
                if end.value.offset < 0:
                    raise BrokerError(ErrorCode.OFFSET_NOT_AVAILABLE) from None
                return int(end.value.offset)
            await self._turns.next_turn()

    def _drop(self, held: HeldSharePartition, error: BrokerError) -> None:
        """Drops it and its unwritten states; requests that wait for it are answered."""
        if held.error is not None:
            return
        held.error = error
        if self.held.get(held.key) is held:
            del self.held[held.key]
        held.set_timer(None)
        _, waiting = held.take_unwritten()
        for _, answer in waiting:
            answer.callback(error)
        self._wake(held.key)

    def _wake(self, key: Hashable) -> None:
        """In the next turn: a fetch that ends lets the next one begin, and many may wait."""
        if self._is_stopped or not self._replicas.share_fetch_purgatory.waiting:
            return
        self._to_wake[key] = None
        if self._wake_call is None:
            self._wake_call = self._runtime.clock.callLater(0, self._wake_all)

    def _wake_all(self) -> None:
        self._wake_call = None
        keys, self._to_wake = self._to_wake, {}
        for key in keys:
            self._replicas.share_fetch_purgatory.check_and_complete(key)

    # fetching
    async def fetch(self, fetch: ShareFetch) -> list[FetchedPartition]:
        """One answer for each of its partitions, in their order."""
        answers: dict[SharePartitionId, FetchedPartition] = {}
        held: list[HeldSharePartition] = []
        for partition, name in fetch.partitions:
            answers[partition] = FetchedPartition(partition, name)
            try:
                held.append(self._hold(SharePartitionKey(fetch.group_id, *partition), name))
            except BrokerError as refusal:
                answers[partition].error = refusal
        if held:
            has_error = len(held) < len(answers)
            await self._fetch(fetch, held, answers, has_error)
        return list(answers.values())

    async def _fetch(
        self,
        fetch: ShareFetch,
        held: list[HeldSharePartition],
        answers: dict[SharePartitionId, FetchedPartition],
        has_error: bool,
    ) -> None:
        waits = DelayedShareFetch(
            fetch, held, lambda: self.settings(fetch.group_id).limits, self._place_of
        )
        try:
            waiting = self._replicas.share_fetch_purgatory.try_complete_else_watch(
                waits, waits.keys, 0 if has_error else max(0, fetch.params.max_wait_ms)
            )
            if waiting is not None:
                await waiting
            for each in held:
                if each.error is not None:
                    answers[each.key[1:]].error = each.error
            # What nobody would get is not acquired.
            if waits.locked and fetch.is_wanted():
                await self._read(fetch, waits.locked, answers)
        except BaseException:
            for answer in answers.values():
                answer.release()
            raise
        finally:
            for each in waits.locked:
                each.is_fetching = False
                self._wake(each.key)
                self._drop_unused(each)

    async def _read(
        self,
        fetch: ShareFetch,
        held: Sequence[HeldSharePartition],
        answers: dict[SharePartitionId, FetchedPartition],
    ) -> None:
        params = fetch.params
        most = max(1, params.max_bytes // max(1, len(held)))
        results = self._replicas.fetch(
            params,
            [
                FetchPartitionRequest(
                    each.partition.topic_partition,
                    each.key.topic_id,
                    0 if each.share is None else each.share.next_fetch_offset,
                    most,
                )
                for each in held
            ],
            record_progress=False,
        )
        left = fetch.max_records
        try:
            for each, result in zip(held, results, strict=True):
                answer = answers[each.key[1:]]
                try:
                    await self._acquire(fetch, each, result, answer, left)
                except (BrokerError, OSError, SliceGone, CorruptRecordError) as error:
                    answer.error = self._read_error(each, error)
                left -= sum(last - first + 1 for first, last, _ in answer.acquired)
        finally:
            for result in results:
                result.release()

    def _read_error(self, held: HeldSharePartition, error: Exception) -> BrokerError:
        if isinstance(error, LogDirFailure):
            self._replicas.directory_failed(error.directory, error.cause)
        if isinstance(error, BrokerError):
            if error.code in FENCING:
                self._drop(held, error)
            return error
        _logger.warn(
            "the records of {name} cannot be read: {error}",
            name=held.partition.topic_partition,
            error=error,
        )
        return BrokerError(
            ErrorCode.CORRUPT_MESSAGE
            if isinstance(error, CorruptRecordError)
            else ErrorCode.KAFKA_STORAGE_ERROR
        )

    async def _acquire(
        self,
        fetch: ShareFetch,
        held: HeldSharePartition,
        result: FetchPartitionResult,
        answer: FetchedPartition,
        left: int,
    ) -> None:
        share = held.share
        assert share is not None
        if result.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            log = held.partition.log
            if log is not None:
                share.move_to_log_start(log.log_start_offset)
            return
        if result.error != ErrorCode.NONE:
            raise BrokerError(result.error)
        if result.slice is None or left <= 0:
            return
        at = result.request.fetch_offset
        log_batches = await read_headers(result.slice, at, max(at, share.end_offset) + left)
        if held.error is not None or not held.is_led:
            raise held.error or BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        now_ms = self._runtime.now_ms()
        limits = self.settings(fetch.group_id).limits
        answer.acquired = share.acquire(
            fetch.member_id,
            fetch.mode,
            fetch.batch_size,
            left,
            at,
            log_batches,
            now_ms,
            limits,
            result.aborted_transactions or (),
        )
        if answer.acquired:
            answer.slice, result.slice = result.slice, None
            cut_to(answer.slice, log_batches, answer.acquired)
            self._arm_at(held, now_ms + limits.record_lock_duration_ms)

    def _place_of(
        self, held: HeldSharePartition, offset: int, params: FetchParams
    ) -> LogOffsetMetadata:
        """Where an offset lies in the log; not known where it cannot be read."""
        try:
            result = held.partition.read(
                FetchPartitionRequest(held.partition.topic_partition, None, offset, 1),
                params,
                1,
                True,
                0,
                False,
            )
        except BrokerError:
            return UNKNOWN
        held.partition.uncount_read(params, result.size)
        result.release()
        return result.fetch_offset


def _loaded(key: SharePartitionKey, state: ReadState, start: int) -> SharePartition:
    try:
        return SharePartition.from_state(state, start)
    except ValueError as error:
        _logger.error("the state of {key} is not possible: {error}", key=key, error=error)
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR) from None


def build_share_partition_manager(
    runtime: Runtime,
    config: BrokerConfig,
    replicas: ReplicaManager,
    image_source: Any,
    persister: IPersister,
    turns: Turns,
) -> SharePartitionManager:
    """It follows what these replicas lead from now on. `image_source` is a MetadataObserver
    (`image`, `subscribe`).
    """
    manager = SharePartitionManager(
        runtime,
        replicas,
        image_source,
        persister,
        share_group_config(config),
        config.integer("group.share.max.share.sessions"),
        turns,
    )
    replicas.subscribe(manager)
    image_source.subscribe(manager.image_changed)
    return manager
