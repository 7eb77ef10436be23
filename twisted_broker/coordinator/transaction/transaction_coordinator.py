"""The transaction coordinator of one broker, request by request. Ring 1.

Owns `TransactionCoordinator`, whose methods the APIs of transactions call. It holds the partitions
(`states`), the markers (`markers`) and the topic itself (`topic`).

1. Decide, append, then answer: a client hears of a step when it is durable. EndTxn is answered when
   the outcome is durable, before the markers are written.
2. Markers are sent for what is durable in the log: a PREPARE_* step that was taken over, or one
   that a load found. COMPLETE_* is appended when all markers are written; a refused append is tried
   again while this broker leads the partition.
3. A request that waited for a producer id looks everything up again: meanwhile the transactional id
   may have another coordinator or another state.
4. A transaction that is open for longer than its timeout is aborted and its producer fenced, within
   `transaction.abort.timed.out.transaction.cleanup.interval.ms`.
5. A client that begins its next transaction while the markers of the one before are written waits
   for these, `END_WAIT_MS` at most: CONCURRENT_TRANSACTIONS would cost it 20 to 100 ms, which is
   what clients pause, for the millisecond that a marker takes. Kafka answers at once.
6. A call that raises does so with BrokerError.

Source: Apache Kafka 4.3.1 `TransactionCoordinator`. Not here: permission and the wire
(`api`), decisions (`transaction_decisions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.coordinator.coordinator_shard import CoordinatorState
from twisted_broker.coordinator.group_records import LONGEST_TEXT_BYTES, fits_record
from twisted_broker.coordinator.offsets_topic import CoordinatorTopic
from twisted_broker.coordinator.transaction.transaction_context import (
    TransactionContext,
    TransactionSettings,
)
from twisted_broker.coordinator.transaction.transaction_decisions import (
    NEEDS_PRODUCER_ID,
    ProducerIdAndEpoch,
    add_partitions,
    begin_producer,
    end_transaction,
    fence_and_abort,
    verify_partitions,
)
from twisted_broker.coordinator.transaction.transaction_marker_sender import (
    PendingCompletion,
    TransactionMarkerSender,
    retry_ms,
)
from twisted_broker.coordinator.transaction.transaction_metadata import (
    DEAD,
    EPOCH_BUMP_VERSION,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    TransactionMetadata,
    TransactionState,
    TxnTransitMetadata,
)
from twisted_broker.coordinator.transaction.transaction_state_manager import (
    TransactionShard,
    TransactionStateManager,
    in_steps,
)
from twisted_broker.interfaces import IDelayedCall, TopicPartition
from twisted_broker.periodic import PeriodicTask
from twisted_broker.turns import Steps
from twisted_broker.wire.errors import BrokerError, ErrorCode

# About a millisecond of one turn.
LISTED_PER_STEP = 500
# As long as a partition's leader tries again for newer clients, by default
# (`add.partitions.to.txn.retry.backoff.max.ms`).
END_WAIT_MS = 100
# Each is a record and, soon, markers.
ABORTED_PER_STEP = 20
_logger = Logger()

NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
_EXPECTED_AT_TIMEOUT = (
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)

Found = tuple[TransactionShard, TransactionMetadata]


class TransactionDescription(NamedTuple):
    """`partitions`: in order; once it is prepared, those that wait for their marker."""

    state: TransactionState
    producer: ProducerIdAndEpoch
    timeout_ms: int
    start_ms: int
    partitions: list[TopicPartition]


class TransactionListing(NamedTuple):
    """A row of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: TransactionState
    start_ms: int


class TransactionCoordinator:
    """All transactional ids whose partition of `__transaction_state` this broker leads. `start` and
    `stop` are the broker's. `make_sender` makes the sender of markers, whose `on_complete` it is
    given.
    """

    def __init__(
        self,
        context: TransactionContext,
        make_sender: Callable[[Callable[[PendingCompletion], None]], TransactionMarkerSender],
        topic: CoordinatorTopic | None = None,
    ) -> None:
        self.context, self.topic = context, topic
        self.markers = make_sender(self._markers_written)
        self.states = TransactionStateManager(context, self._resume)
        self._abort = PeriodicTask(context.clock, self._start_aborts, "the abort of transactions")
        self._expiry = PeriodicTask(context.clock, self._start_expiry, "the expiry of ids")
        self._is_aborting = self._is_expiring = False
        self._retries: set[IDelayedCall] = set()
        # By id; one for each request that waits, and a connection has one at a time.
        self._until_complete: dict[str, list[Deferred[None]]] = {}
        self.is_active = False

    def start(self) -> None:
        self.is_active = True
        settings = self.context.settings
        self._abort.start(settings.abort_interval_ms / 1000)
        self._expiry.start(settings.expiration_interval_ms / 1000)

    def stop(self) -> None:
        """Ends all that runs; a request that waits for an append is answered when that ends."""
        self.is_active = False
        self._abort.stop()
        self._expiry.stop()
        self.markers.stop()
        for call in self._retries:
            call.cancel()
        self._retries.clear()
        for transactional_id in list(self._until_complete):
            self._completed(transactional_id)
        self.states.unload_all()

    @property
    def retrying(self) -> int:
        """Ends of transactions whose append was refused, to be tried again."""
        return len(self._retries)

    def update_settings(self, settings: TransactionSettings) -> None:
        """Those that change while it runs are read when they are needed."""
        self.context.settings = settings

    # requests
    async def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
    ) -> ProducerIdAndEpoch:
        """The producer that may use the id from now on; earlier ones are fenced. `expected`: the id
        and epoch of a producer that continues after an error. Raises BrokerError.
        """
        if not transactional_id:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "a transactional id must not be empty")
        if not fits_record(transactional_id):
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"a transactional id has at most {LONGEST_TEXT_BYTES} bytes",
            )
        if not 0 < timeout_ms <= self.context.settings.max_timeout_ms:
            raise BrokerError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"transaction.timeout.ms must be 1 to {self.context.settings.max_timeout_ms} "
                "(transaction.max.timeout.ms of the brokers)",
            )
        new_producer_id: int | None = None
        while True:
            shard = self.states.shard_of(transactional_id)
            metadata = shard.transactions.get(transactional_id)
            if metadata is None and new_producer_id is not None:
                metadata = TransactionMetadata(
                    transactional_id,
                    new_producer_id,
                    timeout_ms=timeout_ms,
                    last_update_ms=self.context.wall_ms(),
                )
                self.states.add(shard, metadata)
            if metadata is not None:
                step = begin_producer(
                    metadata, timeout_ms, expected, self.context.wall_ms(), new_producer_id
                )
                if step is None:
                    await self._fence(transactional_id, metadata)
                    # The client comes again, when the markers are written.
                    raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
                if step is not NEEDS_PRODUCER_ID:
                    break
            new_producer_id = await self._next_producer_id()
        check(await self.states.append(shard, metadata, step))
        return ProducerIdAndEpoch(step.producer_id, step.producer_epoch)

    async def _next_producer_id(self) -> int:
        try:
            return await self.context.next_producer_id()
        except BrokerError as error:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error.message) from None

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        client_transaction_version: int = 0,
        waits: bool = False,
    ) -> None:
        """Adds them to the transaction, which begins with its first partition. `waits`: for the end
        of the transaction before. Raises BrokerError.
        """
        shard, metadata = self._find(transactional_id)
        is_its_own = producer == (metadata.producer_id, metadata.producer_epoch)
        if waits and self.is_active and is_its_own and metadata.state in PREPARED:
            await self._complete(transactional_id)
            shard, metadata = self._find(transactional_id)
        step = add_partitions(
            metadata, producer, partitions, client_transaction_version, self.context.wall_ms()
        )
        if step is not None:
            check(await self.states.append(shard, metadata, step))

    def _complete(self, transactional_id: str) -> Deferred[None]:
        """Fires when the transaction is complete, or has taken too long."""
        waiting: Deferred[None] = Deferred()
        self._until_complete.setdefault(transactional_id, []).append(waiting)

        def over(result: object) -> object:
            if call.active():
                call.cancel()
            others = self._until_complete.get(transactional_id, [])
            if waiting in others:
                others.remove(waiting)
                if not others:
                    del self._until_complete[transactional_id]
            return result

        call = self.context.clock.callLater(END_WAIT_MS / 1000, waiting.callback, None)
        return waiting.addBoth(over)

    def _completed(self, transactional_id: str) -> None:
        for waiting in self._until_complete.pop(transactional_id, ()):
            waiting.callback(None)

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether each belongs to the transaction. Raises BrokerError."""
        return verify_partitions(self._find(transactional_id)[1], producer, partitions)

    async def end_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        is_commit: bool,
        client_transaction_version: int = 0,
    ) -> ProducerIdAndEpoch:
        """Returns, when the outcome is durable, the id and epoch that the producer goes on with;
        NO_PRODUCER below version 2. Raises BrokerError.
        """
        new_producer_id: int | None = None
        while True:
            shard, metadata = self._find(transactional_id)
            step = end_transaction(
                metadata,
                producer,
                is_commit,
                client_transaction_version,
                self.context.wall_ms(),
                new_producer_id,
            )
            if step is not NEEDS_PRODUCER_ID:
                break
            new_producer_id = await self._next_producer_id()
        after = ProducerIdAndEpoch(metadata.producer_id, metadata.producer_epoch)
        if step is not None:
            after = _after(step)
            check(await self._end(shard, metadata, step))
        return after if client_transaction_version >= EPOCH_BUMP_VERSION else NO_PRODUCER

    async def _fence(
        self, transactional_id: str, metadata: TransactionMetadata, is_timeout: bool = False
    ) -> None:
        """Aborts what is open, without its producer; with `is_timeout` only while it is open for
        too long. Raises BrokerError.
        """
        producer = (metadata.producer_id, metadata.producer_epoch)
        new_producer_id: int | None = None
        while True:
            shard, found = self._find(transactional_id)
            wall_ms = self.context.wall_ms()
            # While a producer id was awaited another producer may have begun, or this one's next
            # transaction: nobody asked for that one's end.
            if (
                found is not metadata
                or producer != (metadata.producer_id, metadata.producer_epoch)
                or (is_timeout and not metadata.is_timed_out(wall_ms))
            ):
                raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
            step = fence_and_abort(
                metadata, self.context.transaction_version(), wall_ms, new_producer_id
            )
            if step is not NEEDS_PRODUCER_ID:
                break
            new_producer_id = await self._next_producer_id()
        check(await self._end(shard, metadata, step))

    def _find(self, transactional_id: str) -> Found:
        if not transactional_id:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "a transactional id must not be empty")
        shard = self.states.shard_of(transactional_id)
        metadata = shard.transactions.get(transactional_id)
        if metadata is None:
            raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return shard, metadata

    # the end of a transaction
    async def _end(
        self, shard: TransactionShard, metadata: TransactionMetadata, step: TxnTransitMetadata
    ) -> ErrorCode:
        return await self.states.append(
            shard, metadata, step, then=lambda: self._resume(shard, metadata)
        )

    def _resume(self, shard: TransactionShard, metadata: TransactionMetadata) -> None:
        """The outcome is durable: the markers follow."""
        transit = metadata.prepare_complete(self.context.wall_ms())
        self.markers.send(PendingCompletion(shard, metadata, transit))

    def _markers_written(self, pending: PendingCompletion, failures: int = 0) -> None:
        """No partition waits: the transaction is complete."""

        def refused(_: Failure) -> None:
            # The step stays pending, so that nothing else begins until it is appended.
            call = self.context.clock.callLater(retry_ms(failures) / 1000, again)
            self._retries.add(call)
            waiting.append(call)

        def again() -> None:
            self._retries.discard(waiting.pop())
            self._markers_written(pending, failures + 1)

        waiting: list[IDelayedCall] = []
        self.states.append(
            pending.shard,
            pending.metadata,
            pending.transit,
            then=lambda: self._completed(pending.metadata.transactional_id),
            refused=refused,
        ).addErrback(_failed)

    # time
    def _start_aborts(self) -> None:
        if not self._is_aborting:
            self._is_aborting = True
            self.context.turns.start(self._abort_steps())

    def _abort_steps(self) -> Steps:
        try:
            timed_out = self.states.timed_out(self.context.wall_ms())
            for number, (_, metadata) in enumerate(timed_out, 1):
                transactional_id = metadata.transactional_id
                fenced = ensureDeferred(self._fence(transactional_id, metadata, is_timeout=True))
                fenced.addCallbacks(self._aborted, self._not_aborted, (metadata,), {}, (metadata,))
                if number % ABORTED_PER_STEP == 0:
                    yield None
        finally:
            self._is_aborting = False

    def _aborted(self, _: None, metadata: TransactionMetadata) -> None:
        _logger.info(
            "the transaction of {id!r} is aborted after {timeout_ms} ms, its producer fenced",
            id=metadata.transactional_id,
            timeout_ms=metadata.timeout_ms,
        )

    def _not_aborted(self, failure: Failure, metadata: TransactionMetadata) -> None:
        error = failure.value
        if not isinstance(error, BrokerError):
            _failed(failure)
        elif error.code not in _EXPECTED_AT_TIMEOUT:
            _logger.warn(
                "the transaction of {id!r} timed out and is not aborted yet: {error}",
                id=metadata.transactional_id,
                error=error,
            )

    def _start_expiry(self) -> None:
        if not self._is_expiring:
            self._is_expiring = True
            self.context.turns.start(self._expiry_steps())

    def _expiry_steps(self) -> Steps:
        try:
            yield from self.states.expire_steps()
        finally:
            self._is_expiring = False

    # administration
    def describe(self, transactional_id: str) -> TransactionDescription:
        """Raises BrokerError."""
        if not transactional_id:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "a transactional id must not be empty")
        metadata = self.states.shard_of(transactional_id).transactions.get(transactional_id)
        if metadata is None or metadata.pending is DEAD:
            raise BrokerError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return TransactionDescription(
            metadata.state,
            ProducerIdAndEpoch(metadata.producer_id, metadata.producer_epoch),
            metadata.timeout_ms,
            metadata.start_ms,
            sorted(metadata.partitions),
        )

    def listings(self) -> Iterator[list[TransactionListing]]:
        """All ids served here, `LISTED_PER_STEP` at a time; they may come and go between two of
        them.
        """
        for shard in list(self.states.shards.values()):
            if shard.state is not CoordinatorState.ACTIVE:
                continue
            for names in in_steps(shard.transactions, LISTED_PER_STEP):
                yield [
                    TransactionListing(
                        metadata.transactional_id,
                        metadata.producer_id,
                        metadata.state,
                        metadata.start_ms,
                    )
                    for name in names
                    if (metadata := shard.transactions.get(name)) is not None
                    and metadata.pending is not DEAD
                ]


def _after(step: TxnTransitMetadata) -> ProducerIdAndEpoch:
    """What the producer of an ended transaction goes on with."""
    if step.next_producer_id != NO_PRODUCER_ID:
        return ProducerIdAndEpoch(step.next_producer_id, 0)
    return ProducerIdAndEpoch(step.producer_id, step.producer_epoch)


def check(error: ErrorCode) -> None:
    """Raises BrokerError unless it is NONE."""
    if error is not ErrorCode.NONE:
        raise BrokerError(error)


def _failed(failure: Failure) -> None:
    _logger.failure("a step of a transaction failed", failure)
