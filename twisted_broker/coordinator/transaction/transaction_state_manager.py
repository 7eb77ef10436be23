"""The partitions of `__transaction_state` that this broker leads: load, serve, append, expire,
unload. Ring 1.

Owns `TransactionStateManager` and `TransactionShard`, one partition's transactional ids.

1. An id is served by the shard it hashes to, while this broker leads that partition: else
   NOT_COORDINATOR, also while that is in doubt after a stop of the process; while the partition is
   read COORDINATOR_LOAD_IN_PROGRESS. The shard's leader epoch is the coordinator's epoch of its
   markers.
2. What was read is committed before it is served, in steps; then what was prepared is resumed.
   An id with a record above the high watermark is `held`, with COORDINATOR_LOAD_IN_PROGRESS: the
   high watermark stays while the ISR is below its minimum, which may be long. The others are served
   meanwhile. ListTransactions waits for all: tools take an id that is not listed for none.
3. A step of an id is taken over when its record is on all in-sync replicas, never before. A refusal
   withdraws it. An append that timed out is in the log all the same: the client gets
   COORDINATOR_NOT_AVAILABLE, and the step stays pending until its outcome is known.
4. A closed shard appends nothing, and what its appends answer changes nothing: the next leader may
   have read the partition already.
5. Memory is bounded: beyond `max_transactional_ids`, or `max_id_bytes` of ids, a new id is refused
   with COORDINATOR_NOT_AVAILABLE. What is loaded is never refused: it had been accepted.
6. An id expires `expiration_ms` after its last step, by a tombstone, never with a transaction open.
7. No step is as long as the number of ids: they are in buckets (`bucket_dict.py`).
8. A partition that cannot be read is not served, until its next leader epoch.

Source: Apache Kafka 4.3.1 `TransactionStateManager`. Not here: requests
(`transaction_coordinator.py`), markers (`transaction_marker_sender.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.coordinator.bucket_dict import BucketDict
from twisted_broker.coordinator.coordinator_context import AppendUndecided, append_error
from twisted_broker.coordinator.coordinator_loader import (
    FREEZE_EVERY,
    LogReplay,
    forget_steps,
    read_partition,
)
from twisted_broker.coordinator.coordinator_shard import CoordinatorState
from twisted_broker.coordinator.group_records import KeyValue, MalformedRecord, partition_for
from twisted_broker.coordinator.transaction.transaction_context import TransactionContext
from twisted_broker.coordinator.transaction.transaction_log import (
    batch_of,
    read_record,
    tombstone_bytes,
    transaction_record,
)
from twisted_broker.coordinator.transaction.transaction_metadata import (
    DEAD,
    NO_PRODUCER_EPOCH,
    ONGOING,
    PREPARED,
    TransactionMetadata,
    TxnTransitMetadata,
)
from twisted_broker.garbage_collection import freeze_loaded
from twisted_broker.topic_names import TRANSACTIONS_TOPIC
from twisted_broker.turns import Steps
from twisted_broker.wire.batch_header import HEADER_BYTES
from twisted_broker.wire.errors import BrokerError, ErrorCode

# About a millisecond of one turn (`turns.py`).
CHECKED_PER_STEP = 1_000
RESUMED_PER_STEP = 100
TOMBSTONES_PER_BATCH = 200
# As Kafka's, where the partition takes that many (`max.message.bytes`).
TOMBSTONE_BATCH_BYTES = 16 * 1024
_LOADS_KEPT = 200
_logger = Logger()


def _bytes_of(transactional_id: str) -> int:
    """What it takes in memory, at most."""
    # One wide character makes all of them wide, which UTF-8 does not show.
    return len(transactional_id) * (1 if transactional_id.isascii() else 4)


class TransactionShard:
    """The transactional ids of one partition, led here at `leader_epoch`; `ongoing`: those with an
    open transaction; `held`: what becomes of an id once its last record is committed, None where
    that is a tombstone.
    """

    __slots__ = ("held", "id_bytes", "index", "leader_epoch", "ongoing", "state", "transactions")

    def __init__(self, index: int, leader_epoch: int) -> None:
        self.index, self.leader_epoch = index, leader_epoch
        self.state = CoordinatorState.LOADING
        self.transactions: BucketDict[str, TransactionMetadata] = BucketDict()
        self.ongoing: BucketDict[str, TransactionMetadata] = BucketDict()
        self.held: dict[str, TransactionMetadata | None] = {}
        self.id_bytes = 0

    @property
    def is_closed(self) -> bool:
        return self.state is CoordinatorState.CLOSED

    def add(self, metadata: TransactionMetadata) -> None:
        self.transactions[metadata.transactional_id] = metadata
        self.loaded(metadata)

    def loaded(self, metadata: TransactionMetadata) -> None:
        """It is among `transactions` now, and was not before."""
        self.id_bytes += _bytes_of(metadata.transactional_id)
        if metadata.state is ONGOING:
            self.ongoing[metadata.transactional_id] = metadata

    def remove(self, transactional_id: str) -> None:
        if transactional_id in self.transactions:
            del self.transactions[transactional_id]
            self.id_bytes -= _bytes_of(transactional_id)
            self.forget_ongoing(transactional_id)

    def note(self, metadata: TransactionMetadata) -> None:
        """Its state is a new one."""
        if metadata.state is ONGOING:
            self.ongoing[metadata.transactional_id] = metadata
        else:
            self.forget_ongoing(metadata.transactional_id)

    def forget_ongoing(self, transactional_id: str) -> None:
        """It has no open transaction."""
        if transactional_id in self.ongoing:  # a `pop` of what is not there costs an exception
            del self.ongoing[transactional_id]


class _Replay(LogReplay):
    """Transactional ids, the last record of each."""

    __slots__ = ("transactions",)

    def __init__(self, position: int, one_by_one: bool = False) -> None:
        super().__init__(position, one_by_one)
        self.transactions: BucketDict[str, TransactionMetadata] = BucketDict()

    def held(self) -> Sequence[BucketDict[str, Any]]:
        return (self.transactions,)

    def _replay_record(
        self, key: bytes | None, value: bytes | None, record_offset: int, producer_id: int
    ) -> None:
        try:
            read = read_record(key, value)
        except MalformedRecord:
            self.skipped += 1
            return
        if read is None:
            return
        if read.value is None:
            if read.transactional_id in self.transactions:
                del self.transactions[read.transactional_id]
        else:
            self.transactions[read.transactional_id] = read.value


class _Names(LogReplay):
    """Which ids have records; tombstones count, too."""

    __slots__ = ("names",)

    def __init__(self, position: int, one_by_one: bool = False) -> None:
        super().__init__(position, one_by_one)
        self.names: dict[str, None] = {}

    def held(self) -> Sequence[BucketDict[str, Any]]:
        return ()

    def _replay_record(
        self, key: bytes | None, value: bytes | None, record_offset: int, producer_id: int
    ) -> None:
        try:
            read = read_record(key, value)
        except MalformedRecord:
            return  # it does not count
        if read is not None:
            self.names[read.transactional_id] = None


Resume = Callable[[TransactionShard, TransactionMetadata], None]
Then = Callable[[], None]
Refused = Callable[[Failure], None]
# How many ids at once, and why.
Refusals = list[tuple[int, object]]


class TransactionStateManager:
    """`shards` by partition. `resume` is called for each id that was prepared when it was loaded:
    its markers are to be written.
    """

    __slots__ = ("_context", "_is_limit_logged", "_resume", "load_times", "shards")

    def __init__(self, context: TransactionContext, resume: Resume) -> None:
        self._context, self._resume = context, resume
        self.shards: dict[int, TransactionShard] = {}
        self._is_limit_logged = False
        # (when, how long), both ms of the clock
        self.load_times: deque[tuple[float, float]] = deque(maxlen=_LOADS_KEPT)

    # leadership
    def load(self, index: int, leader_epoch: int) -> None:
        """This broker leads partition `index` from `leader_epoch` on: reads it, then serves it."""
        before = self.shards.get(index)
        if before is not None:
            if before.leader_epoch >= leader_epoch:
                return
            self._close(before)
        shard = self.shards[index] = TransactionShard(index, leader_epoch)
        self._context.turns.start(self._load_steps(shard))

    def unload(self, index: int, leader_epoch: int | None = None) -> None:
        """Another broker leads partition `index`, or nobody, since `leader_epoch`."""
        shard = self.shards.get(index)
        if shard is not None and (leader_epoch is None or leader_epoch >= shard.leader_epoch):
            self._close(shard)

    def unload_all(self) -> None:
        """At once: this broker ends."""
        for shard in self.shards.values():
            shard.state = CoordinatorState.CLOSED
        self.shards.clear()

    def _close(self, shard: TransactionShard) -> None:
        shard.state = CoordinatorState.CLOSED
        del self.shards[shard.index]
        if shard.transactions or shard.held:
            self._context.turns.start(_forget_steps(shard))

    def _load_steps(self, shard: TransactionShard) -> Steps:
        replays: list[LogReplay] = []
        yield from self._load(shard, replays)
        yield from forget_steps(replays)

    def _load(self, shard: TransactionShard, replays: list[LogReplay]) -> Steps:
        began = self._context.clock.seconds()
        try:
            loading = read_partition(
                self._context.store,
                shard.index,
                self._context.settings.load_buffer_bytes,
                _Replay,
                TRANSACTIONS_TOPIC,
                replays,
                self._context.clock,
            )
            while True:
                try:
                    pause = next(loading)
                except StopIteration as end:
                    replayed = end.value
                    break
                yield pause
                if shard.is_closed:
                    return
            # Kafka serves at once whatever it has read, and sends markers for it.
            committed: list[bool] = []
            caught_up = self._context.store.committed(shard.index).addCallback(committed.append)
            names: dict[str, None] = {}
            if not committed:
                for pause in self._held_steps(shard, names):
                    yield pause
                    if shard.is_closed:
                        return
            # The dictionary itself: nothing is moved. Nobody looks into a shard that is loading.
            shard.transactions = replayed.transactions
            replays.clear()
            for number, name in enumerate(names, 1):
                shard.held[name] = shard.transactions.pop(name, None)
                if number % CHECKED_PER_STEP == 0:
                    yield None
                    if shard.is_closed:
                        return
            prepared: list[TransactionMetadata] = []
            for number, metadata in enumerate(shard.transactions.each_value(), 1):
                shard.loaded(metadata)
                if metadata.state in PREPARED:
                    prepared.append(metadata)
                if number % FREEZE_EVERY == 0:
                    freeze_loaded()
                if number % CHECKED_PER_STEP == 0:
                    yield None
                    if shard.is_closed:
                        return
        except BrokerError as error:
            self._loading_failed(shard, error)
            return
        except Exception as error:
            _logger.failure("loading __transaction_state-{index} failed", index=shard.index)
            self._loading_failed(shard, error)
            return
        shard.state = CoordinatorState.ACTIVE
        ended = self._context.clock.seconds()
        self.load_times.append((1000 * ended, 1000 * (ended - began)))
        if shard.transactions:
            _logger.info(
                "__transaction_state-{index}: {count} transactional ids loaded",
                index=shard.index,
                count=len(shard.transactions),
            )
        yield from self._resume_steps(shard, prepared)
        if not committed:
            yield caught_up
        if shard.is_closed:
            return
        if not committed[0]:  # it is led no more, or its directory failed
            self.unload(shard.index)
            return
        yield from self._release_steps(shard)

    def _held_steps(self, shard: TransactionShard, names: dict[str, None]) -> Steps:
        """Adds the ids whose last record may still be lost to `names`."""
        context = self._context
        undecided = yield from read_partition(
            context.store,
            shard.index,
            context.settings.load_buffer_bytes,
            _Names,
            TRANSACTIONS_TOPIC,
            [],
            context.clock,
            begin=context.store.high_watermark(shard.index),
        )
        names |= undecided.names

    def _release_steps(self, shard: TransactionShard) -> Iterator[None]:
        """The last records of those that were held are committed."""
        number = 0
        while shard.held:
            _, metadata = shard.held.popitem()
            if metadata is not None:
                shard.add(metadata)
                if metadata.state in PREPARED:
                    yield from self._resume_steps(shard, [metadata])
            number += 1
            if number % RESUMED_PER_STEP == 0:
                yield
                if shard.is_closed:
                    return

    def _resume_steps(
        self, shard: TransactionShard, prepared: list[TransactionMetadata]
    ) -> Iterator[None]:
        for number, metadata in enumerate(prepared, 1):
            if shard.is_closed:
                return
            # Nothing else can have begun: requests find it prepared.
            try:
                self._resume(shard, metadata)
            except Exception:
                # One that another broker wrote wrongly keeps nobody else from completing.
                _logger.failure(
                    "__transaction_state-{index}: the prepared transaction of {id!r} is not "
                    "completed; kafka-transactions.sh abort ends what it left open",
                    index=shard.index,
                    id=metadata.transactional_id,
                )
            if number % RESUMED_PER_STEP == 0:
                yield None

    def _loading_failed(self, shard: TransactionShard, error: Exception) -> None:
        _logger.error(
            "__transaction_state-{index} cannot be read; its transactional ids are not served "
            "until its leader changes or this broker restarts: {error}",
            index=shard.index,
            error=error,
        )
        if self.shards.get(shard.index) is shard:
            self._close(shard)

    @property
    def is_loading(self) -> bool:
        """Whether a partition is still being read, or ids of it are held, so that not all of its
        ids are known.
        """
        return any(
            shard.state is CoordinatorState.LOADING or shard.held for shard in self.shards.values()
        )

    # ids
    def shard_of(self, transactional_id: str) -> TransactionShard:
        """The shard that serves the id. Raises BrokerError when there is none."""
        shard = self.shards.get(
            partition_for(transactional_id, self._context.store.partitions_count())
        )
        if shard is None or self._context.has_stale_roles():
            raise BrokerError(ErrorCode.NOT_COORDINATOR)
        if shard.state is CoordinatorState.LOADING or transactional_id in shard.held:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def add(self, shard: TransactionShard, metadata: TransactionMetadata) -> None:
        """A new id. Raises BrokerError(COORDINATOR_NOT_AVAILABLE) when there are too many."""
        settings, shards = self._context.settings, self.shards.values()
        ids_count = sum(len(each.transactions) for each in shards)
        if (
            ids_count >= settings.max_transactional_ids
            or sum(each.id_bytes for each in shards) + _bytes_of(metadata.transactional_id)
            > settings.max_id_bytes
        ):
            if not self._is_limit_logged:
                self._is_limit_logged = True
                _logger.error(
                    "new transactional ids are refused: this broker has {count}, its limit; lower "
                    "transactional.id.expiration.ms, or let programs keep their ids",
                    count=ids_count,
                )
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        shard.add(metadata)

    # records
    def append(
        self,
        shard: TransactionShard,
        metadata: TransactionMetadata,
        transit: TxnTransitMetadata,
        *,
        then: Then | None = None,
        refused: Refused | None = None,
    ) -> Deferred[ErrorCode]:
        """Stores the pending step of an id, and takes it over. Fires with the client's error.

        `then` is called when it is taken over, also when that is after the client's error;
        `refused` when nothing of it will ever be in the log, instead of withdrawing it.
        """
        record = transaction_record(
            metadata.transactional_id, transit, self._context.transaction_version()
        )
        timeout_ms = min(transit.timeout_ms, self._context.settings.append_timeout_ms)

        def stored() -> None:
            metadata.complete(transit)
            shard.note(metadata)
            if then is not None:
                then()

        def withdraw(_: Failure) -> None:
            metadata.withdraw()
            if metadata.producer_epoch == NO_PRODUCER_EPOCH:
                # Nothing of the id is in the log: it would be kept for days for nothing.
                shard.remove(metadata.transactional_id)

        return self._append(shard, [record], timeout_ms, stored, refused or withdraw)

    def _append(
        self,
        shard: TransactionShard,
        records: list[KeyValue],
        timeout_ms: int,
        stored: Then,
        refused: Refused,
    ) -> Deferred[ErrorCode]:
        if shard.is_closed:
            return succeed(ErrorCode.NOT_COORDINATOR)
        batch = batch_of(records, self._context.wall_ms())

        def is_stored(_: int) -> ErrorCode:
            if shard.is_closed:
                return ErrorCode.NOT_COORDINATOR
            stored()
            return ErrorCode.NONE

        def is_refused(failure: Failure) -> ErrorCode:
            error = append_error(failure)
            if isinstance(failure.value, AppendUndecided):
                failure.value.outcome().addCallbacks(is_stored, is_refused).addErrback(_failed)
            elif not shard.is_closed:
                refused(failure)
            return error

        appended = self._context.store.append(shard.index, batch, timeout_ms)
        return appended.addCallbacks(is_stored, is_refused)

    # expiry
    def timed_out(self, wall_ms: int) -> Iterator[tuple[TransactionShard, TransactionMetadata]]:
        """The transactions that are open for too long."""
        for shard in list(self.shards.values()):
            if shard.state is CoordinatorState.ACTIVE:
                for names in shard.ongoing.parts():
                    for name in names:
                        metadata = shard.ongoing.get(name)
                        if metadata is not None and metadata.is_timed_out(wall_ms):
                            yield shard, metadata

    def expire_steps(self) -> Steps:
        """Removes the ids that have expired. What is refused is tried again the next time."""
        for shard in list(self.shards.values()):
            refusals: Refusals = []
            yield from self._expire_of(shard, refusals)
            if refusals:
                _logger.warn(
                    "__transaction_state-{index}: expired transactional ids that could not be "
                    "removed: {count}, tried again later: {error}",
                    index=shard.index,
                    count=sum(count for count, _ in refusals),
                    error=refusals[-1][1],
                )

    def _expire_of(self, shard: TransactionShard, refusals: Refusals) -> Steps:
        """Removes the expired ids of one shard; adds what is refused to `refusals`."""
        for names in in_steps(shard.transactions, CHECKED_PER_STEP):
            if shard.state is not CoordinatorState.ACTIVE:
                break
            some = [
                metadata
                for name in names
                if (metadata := shard.transactions.get(name)) is not None
                and metadata.is_expired(
                    self._context.wall_ms(), self._context.settings.expiration_ms
                )
            ]
            yield None
            if not some or shard.is_closed:
                continue
            try:
                most_bytes = self._context.store.most_bytes(shard.index)
            except BrokerError as error:  # the directory has failed; it will be led elsewhere
                refusals.append((len(some), error))
                continue
            for batch in _in_batches(some, min(TOMBSTONE_BATCH_BYTES, most_bytes)):
                # One batch at a time: the waiters are bounded.
                yield self._expire(shard, batch, refusals)

    def _expire(
        self,
        shard: TransactionShard,
        some: list[TransactionMetadata],
        refusals: Refusals,
    ) -> Deferred[ErrorCode]:
        # A step may have begun since they were looked at.
        wall_ms, expiration_ms = self._context.wall_ms(), self._context.settings.expiration_ms
        expired = [
            metadata
            for metadata in some
            if shard.transactions.get(metadata.transactional_id) is metadata
            and metadata.is_expired(wall_ms, expiration_ms)
        ]
        if not expired or shard.is_closed:
            return succeed(ErrorCode.NONE)
        for metadata in expired:
            metadata.prepare_dead()
        tombstones = [
            transaction_record(each.transactional_id, None, self._context.transaction_version())
            for each in expired
        ]

        def stored() -> None:
            for metadata in expired:
                shard.remove(metadata.transactional_id)

        def refused(failure: Failure) -> None:
            refusals.append((len(expired), failure.value))
            for metadata in expired:
                if metadata.pending is DEAD:
                    metadata.withdraw()

        timeout_ms = self._context.settings.append_timeout_ms
        return self._append(shard, tombstones, timeout_ms, stored, refused)


def _failed(failure: Failure) -> None:
    _logger.failure("taking over a record of __transaction_state failed", failure)


def _in_batches(
    some: list[TransactionMetadata], most_bytes: int
) -> Iterator[list[TransactionMetadata]]:
    """At least one id each: one whose tombstone alone is larger than `most_bytes` is a batch of its
    own.
    """
    batch: list[TransactionMetadata] = []
    size = HEADER_BYTES
    for metadata in some:
        more = tombstone_bytes(metadata.transactional_id)
        if batch and (size + more > most_bytes or len(batch) == TOMBSTONES_PER_BATCH):
            yield batch
            batch, size = [], HEADER_BYTES
        batch.append(metadata)
        size += more
    if batch:
        yield batch


def in_steps(ids: BucketDict[str, TransactionMetadata], most: int) -> Iterator[list[str]]:
    """All ids, `most` at a time; they may come and go meanwhile."""
    for part in ids.parts():
        for start in range(0, len(part), most):
            yield part[start : start + most]


def _forget_steps(shard: TransactionShard) -> Iterator[None]:
    """A million of them do not all go in one turn."""
    yield
    while shard.transactions:
        for _ in range(min(CHECKED_PER_STEP, len(shard.transactions))):
            shard.forget_ongoing(shard.transactions.popitem()[0])
        yield
    while shard.held:
        for _ in range(min(CHECKED_PER_STEP, len(shard.held))):
            shard.held.popitem()
        yield
