"""The markers that end a transaction, to the leaders of its partitions. Ring 1.

Owns `TransactionMarkerSender`, `PendingCompletion`, and one queue for each destination broker.

1. A broker gets one request at a time, with all that waits for it meanwhile, up to
   `PARTITIONS_PER_REQUEST` partitions. This broker itself is one of them, over the network like the
   others.
2. A marker is sent until it is written, each time to the leader of that moment: after an answer
   that may change, or a connection that failed, later and later (`retry_ms`); where nobody leads,
   when the metadata name a leader, or the partition is gone. A change of the metadata costs nothing
   for what waits for other partitions. Kafka sends again as soon as a leader refuses. Here a marker
   waits about as long as it was refused before: an election costs little time, and a partition that
   lacks replicas for long costs a request each second, and a marker more in its log each time where
   that is found after the append (NOT_ENOUGH_REPLICAS_AFTER_APPEND).
3. It is no longer sent when the shard it comes from is closed: the next coordinator sends it again.
   Nor when a leader knows a newer coordinator: the transaction then is not completed here.
   A leader that holds a newer epoch of the producer and no newer coordinator (it is asked, with
   DescribeProducers) shows that this coordinator's own newest records were lost. A producer gets a
   newer epoch when its transaction is complete, so that partition has this marker already, and
   what is open there is a later transaction whose end nobody asked for, or whose end was lost: it
   is aborted with the epoch above, and COMPLETE_* carries a higher one still
   (`TxnTransitMetadata.fencing`). Nothing of it is remembered: after a crash it is done again.
4. A partition of a deleted topic needs no marker. While the image lacks the coordinator's own
   topic no topic counts as deleted.
5. `on_complete` is called when no partition of a transaction waits, once.
6. Memory: each prepared transaction waits here once for each of its brokers; that bounds it.

Source: Apache Kafka 4.3.1 `TransactionMarkerChannelManager`,
`TransactionMarkerRequestCompletionHandler`, which gives up where records were lost. Not here:
writing markers into logs, and the record that ends the transaction (`transaction_coordinator.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.coordinator.transaction.transaction_metadata import (
    LAST_EPOCH,
    PREPARE_COMMIT,
    TransactionMetadata,
    TxnTransitMetadata,
)
from twisted_broker.coordinator.transaction.transaction_state_manager import TransactionShard
from twisted_broker.interfaces import IClock, IDelayedCall, TopicPartition
from twisted_broker.topic_names import TRANSACTIONS_TOPIC
from twisted_broker.wire.errors import BrokerError, ErrorCode, error_of
from twisted_broker.wire.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from twisted_broker.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from twisted_broker.image.metadata_image import MetadataDelta
    from twisted_broker.replication.live_brokers import ImageSource

# Some milliseconds of one turn.
PARTITIONS_PER_REQUEST = 1_000
_RETRY_MS, _LONGEST_RETRY_MS = 100, 1_000
_WARN_AGAIN_SECONDS = 60.0
NEWEST_VERSION = 2
_NOBODY = -1
_WRITTEN = frozenset(
    {
        ErrorCode.NONE,
        # Nothing of the transaction can be there.
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
_EXPECTED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_logger = Logger()


class MarkerConnection(Protocol):
    """What is used of a `BrokerConnection`."""

    host: str
    port: int
    api_versions: dict[int, tuple[int, int]]

    def negotiate(self) -> Deferred[Any]: ...

    def highest_version(self, api_key: int, ours: int) -> int: ...

    def send(self, request: Any, version: int) -> Deferred[Any]: ...

    def close(self) -> None: ...


Connect = Callable[[str, int], MarkerConnection]
"""A connection to the broker at a host and port; it is made with the first request."""


@dataclass(eq=False, slots=True)
class PendingCompletion:
    """A prepared transaction of `shard`; `transit` follows when all markers are written."""

    shard: TransactionShard
    metadata: TransactionMetadata
    transit: TxnTransitMetadata
    is_done: bool = False

    @property
    def is_over(self) -> bool:
        """No marker of it is sent any more."""
        return self.is_done or self.shard.is_closed


@dataclass(slots=True)
class _Entry:
    """`refusals`: how often a leader has refused these partitions, one after the other.
    `abort_epoch`: what is open there is aborted with this epoch, whatever the outcome.
    """

    pending: PendingCompletion
    partitions: list[TopicPartition]
    refusals: int = 0
    abort_epoch: int | None = None

    @property
    def epoch(self) -> int:
        """Of its marker."""
        if self.abort_epoch is None:
            return self.pending.metadata.producer_epoch
        return self.abort_epoch


_Key = tuple[int, TopicPartition]


class _Outcome(NamedTuple):
    """By producer id and partition. `held`: the producer, where its leader refused the epoch; none
    where it does not say.
    """

    errors: dict[_Key, ErrorCode]
    held: dict[_Key, ProducerState]


class _BrokerQueue:
    """What waits for one broker."""

    __slots__ = ("connection", "entries", "failures", "is_sending", "warned")

    def __init__(self) -> None:
        self.entries: deque[_Entry] = deque()
        self.connection: MarkerConnection | None = None
        self.is_sending = False
        self.failures = 0
        self.warned: float | None = None

    def connected(self, host: str, port: int, connect: Connect) -> MarkerConnection:
        """The connection to where the broker is now."""
        found = self.connection
        if found is None or (found.host, found.port) != (host, port):
            if found is not None:
                found.close()
            found = self.connection = connect(host, port)
        return found


class TransactionMarkerSender:
    """`listener`: the name of the listener that brokers reach each other on."""

    def __init__(
        self,
        clock: IClock,
        image_source: ImageSource,
        listener: str,
        connect: Connect,
        on_complete: Callable[[PendingCompletion], None],
    ) -> None:
        self._clock, self._image_source, self._listener = clock, image_source, listener
        self._connect, self._on_complete = connect, on_complete
        self._queues: dict[int, _BrokerQueue] = {}
        self._leaderless: dict[TopicPartition, list[PendingCompletion]] = {}
        self._delayed: set[IDelayedCall] = set()
        self._is_stopped = False

    def send(self, pending: PendingCompletion) -> None:
        """Sends the markers of a prepared transaction."""
        # In order: a set has another one in every process.
        self._dispatch(_Entry(pending, sorted(pending.metadata.partitions)))
        self._complete_if_done(pending)

    def image_changed(self, delta: MetadataDelta) -> None:
        """The metadata image is a new one: there may be leaders where there were none."""
        waiting, before, after = self._leaderless, delta.before, delta.after
        topics, others = before.topics_by_name, after.topics_by_name
        if not waiting or (topics is others and before.brokers is after.brokers):
            return
        if topics.get(TRANSACTIONS_TOPIC) is not others.get(TRANSACTIONS_TOPIC):
            self._forget_closed()
        ready: dict[PendingCompletion, list[TopicPartition]] = {}
        # A broker that is there again may be the leader of any of them; and a ZooKeeper cluster's
        # delta of the image names no partitions.
        is_any = delta.brokers or not delta.partitions
        names = [(change.topic, change.partition) for change in delta.partitions.values()]
        for name in list(waiting) if is_any else names:
            partition = TopicPartition(*name)
            if partition in waiting and self._leader_of(partition) != _NOBODY:
                for pending in waiting.pop(partition):
                    ready.setdefault(pending, []).append(partition)
        for pending, partitions in ready.items():
            self._again(_Entry(pending, partitions))

    def _forget_closed(self) -> None:
        """What a closed shard left is not sent, and would wait for its leader's return."""
        for partition, waiting in list(self._leaderless.items()):
            left = [pending for pending in waiting if not pending.is_over]
            if left:
                self._leaderless[partition] = left
            else:
                del self._leaderless[partition]

    def stop(self) -> None:
        """Sends nothing any more."""
        self._is_stopped = True
        for call in self._delayed:
            call.cancel()
        self._delayed.clear()
        self._leaderless.clear()
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.entries.clear()
            if queue.connection is not None:
                queue.connection.close()

    @property
    def waiting(self) -> int:
        """Entries that are not sent yet: the markers of one transaction for one broker are one
        entry.
        """
        queued = sum(len(queue.entries) for queue in self._queues.values())
        return queued + self.leaderless

    @property
    def leaderless(self) -> int:
        """Transactions with a partition that nobody leads."""
        return len({pending for waiting in self._leaderless.values() for pending in waiting})

    # to the queues
    def _dispatch(self, entry: _Entry) -> None:
        """To the queues of the brokers that lead now."""
        if self._is_stopped or entry.pending.is_over:
            return
        by_broker: dict[int, list[TopicPartition]] = {}
        for partition in entry.partitions:
            leader = self._leader_of(partition)
            if leader is None:
                entry.pending.metadata.marker_written(partition)  # deleted meanwhile
            elif leader == _NOBODY:
                self._leaderless.setdefault(partition, []).append(entry.pending)
            else:
                by_broker.setdefault(leader, []).append(partition)
        for broker_id, partitions in by_broker.items():
            part = replace(entry, partitions=partitions)
            queue = self._queues.get(broker_id)
            if queue is None:
                queue = self._queues[broker_id] = _BrokerQueue()
            queue.entries.append(part)
            self._send_next(broker_id, queue)

    def _leader_of(self, partition: TopicPartition) -> int | None:
        """The broker that markers of the partition are sent to, `_NOBODY` for now; None: the
        partition is gone.
        """
        image = self._image_source.image
        found = image.partition(*partition)
        if found is None:
            # A broker that just joined a ZooKeeper cluster may lead partitions before it hears of
            # topics: it then lacks this one, too.
            return None if TRANSACTIONS_TOPIC in image.topics_by_name else _NOBODY
        leader = image.brokers.get(found.leader)
        is_there = leader is not None and not leader.fenced and self._listener in leader.listeners
        return found.leader if is_there else _NOBODY

    def _again(self, entry: _Entry) -> None:
        self._dispatch(entry)
        self._complete_if_done(entry.pending)

    def _later(self, entries: Iterable[_Entry], delay_ms: int) -> None:
        waiting = [entry for entry in entries if not entry.pending.is_over]
        if not waiting or self._is_stopped:
            return

        def due() -> None:
            self._delayed.discard(call)
            for entry in waiting:
                self._again(entry)

        call = self._clock.callLater(delay_ms / 1000, due)
        self._delayed.add(call)

    def _complete_if_done(self, pending: PendingCompletion) -> None:
        if not pending.is_over and not pending.metadata.partitions:
            pending.is_done = True
            self._on_complete(pending)

    # to the brokers
    def _send_next(self, broker_id: int, queue: _BrokerQueue) -> None:
        if queue.is_sending:
            return
        entries, left = list[_Entry](), PARTITIONS_PER_REQUEST
        while queue.entries and left > 0:
            entry = queue.entries.popleft()
            if entry.pending.is_over:
                continue
            if len(entry.partitions) > left:
                queue.entries.appendleft(replace(entry, partitions=entry.partitions[left:]))
                entry = replace(entry, partitions=entry.partitions[:left])
            left -= len(entry.partitions)
            entries.append(entry)
        if not entries:
            return
        queue.is_sending = True
        sent = ensureDeferred(self._send(broker_id, queue, entries))
        (
            sent.addCallback(lambda outcome: self._answered(queue, entries, outcome))
            .addErrback(lambda failure: self._not_answered(broker_id, queue, entries, failure))
            .addErrback(_failed)
            .addCallback(lambda _: self._sent(broker_id, queue))
        )

    def _sent(self, broker_id: int, queue: _BrokerQueue) -> None:
        queue.is_sending = False
        if not self._is_stopped:
            self._send_next(broker_id, queue)

    async def _send(self, broker_id: int, queue: _BrokerQueue, entries: list[_Entry]) -> _Outcome:
        connection = self._connection(broker_id, queue)
        if not connection.api_versions:
            await connection.negotiate()
        version = connection.highest_version(WriteTxnMarkersRequest.api_key, NEWEST_VERSION)
        response = await connection.send(_request(entries), version)
        assert isinstance(response, WriteTxnMarkersResponse)
        errors = {
            (marker.producer_id, TopicPartition(topic.name, partition.partition_index)): error_of(
                partition.error_code
            )
            for marker in response.markers
            for topic in marker.topics
            for partition in topic.partitions
        }
        held = dict[_Key, ProducerState]()
        for key, error in errors.items():
            if error is ErrorCode.INVALID_PRODUCER_EPOCH:
                try:
                    found = await _held(connection, *key)
                except Exception as failed:
                    # The markers beside it were answered.
                    found = None
                    self._warn(
                        queue,
                        f"{key[1]} does not say which epoch it holds (DescribeProducers, which "
                        f"needs Read on the topic): {failed}",
                    )
                if found is not None:
                    held[key] = found
        return _Outcome(errors, held)

    def _connection(self, broker_id: int, queue: _BrokerQueue) -> MarkerConnection:
        broker = self._image_source.image.brokers.get(broker_id)
        endpoint = None if broker is None else broker.listeners.get(self._listener)
        if endpoint is None:
            raise ConnectionError(f"broker {broker_id} is not registered any more")
        return queue.connected(endpoint.host, endpoint.port, self._connect)

    def _not_answered(
        self, broker_id: int, queue: _BrokerQueue, entries: list[_Entry], failure: Failure
    ) -> None:
        """Whether they were written is not known: written twice they change nothing."""
        if self._is_stopped:
            return
        delay_ms = retry_ms(queue.failures)
        queue.failures += 1
        self._warn(queue, f"broker {broker_id} does not answer: {failure.value}")
        # With whatever waits for this broker: it may lead none of them by then.
        entries = entries + list(queue.entries)
        queue.entries.clear()
        self._later(entries, delay_ms)

    def _answered(self, queue: _BrokerQueue, entries: list[_Entry], outcome: _Outcome) -> None:
        if self._is_stopped:
            return
        queue.failures = 0
        # Together where they wait equally long: one timer and one request for all of them.
        again: dict[int, list[_Entry]] = {}
        for entry in entries:
            left = self._take(queue, entry, outcome)
            if left:
                again.setdefault(retry_ms(entry.refusals), []).extend(left)
            self._complete_if_done(entry.pending)
        for delay_ms, refused_together in again.items():
            self._later(refused_together, delay_ms)

    def _take(self, queue: _BrokerQueue, entry: _Entry, outcome: _Outcome) -> list[_Entry]:
        """Takes the outcome for one transaction; returns what is sent again."""
        pending, metadata = entry.pending, entry.pending.metadata
        left, aborts = list[TopicPartition](), list[_Entry]()
        if pending.is_over:
            return aborts
        for partition in entry.partitions:
            key = (metadata.producer_id, partition)
            # A leader that says nothing of a partition has not written its marker.
            error = outcome.errors.get(key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if error in _WRITTEN:
                metadata.marker_written(partition)
            elif error is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                return _give_up(pending, partition, error.name)
            elif error is ErrorCode.INVALID_PRODUCER_EPOCH:
                held = outcome.held.get(key)
                if held is None or not _is_newer(held, entry.epoch):
                    left.append(partition)  # it may be another leader by now
                elif held.coordinator_epoch > pending.shard.leader_epoch:
                    return _give_up(pending, partition, error.name)
                elif held.producer_epoch >= LAST_EPOCH:
                    reason = f"{error.name} (it holds epoch {LAST_EPOCH}, no epoch is left)"
                    return _give_up(pending, partition, reason)
                else:
                    aborts.append(_abort(entry, partition, held.producer_epoch))
            else:
                left.append(partition)
                if error not in _EXPECTED:
                    self._warn(queue, f"{partition} answers {error.name}")
        if left:
            aborts.append(replace(entry, partitions=left, refusals=entry.refusals + 1))
        return aborts

    def _warn(self, queue: _BrokerQueue, reason: str) -> None:
        """Markers are sent again and again: a line a minute."""
        now = self._clock.seconds()
        if queue.warned is None or now - queue.warned >= _WARN_AGAIN_SECONDS:
            queue.warned = now
            _logger.warn("transaction markers wait: {reason}", reason=reason)


def retry_ms(failures: int) -> int:
    """How long to wait before the next try, after this many that failed before the last one."""
    return min(_LONGEST_RETRY_MS, _RETRY_MS << min(failures, 10))


def _give_up(pending: PendingCompletion, partition: TopicPartition, reason: str) -> list[_Entry]:
    pending.is_done = True
    _logger.error(
        "the transaction of {id!r} is not completed here: {partition} answers {reason}; if no "
        "other coordinator has taken over, move the leader of __transaction_state-{index}",
        id=pending.metadata.transactional_id,
        partition=str(partition),
        reason=reason,
        index=pending.shard.index,
    )
    return []


def _is_newer(held: ProducerState, epoch: int) -> bool:
    """Under version 2 a transaction may be open whose epoch is that of the last one's marker."""
    return held.producer_epoch > epoch or (
        held.producer_epoch == epoch and held.current_txn_start_offset >= 0
    )


def _abort(entry: _Entry, partition: TopicPartition, held: int) -> _Entry:
    """Ends what is open there; the next producer is above it, as soon as it may be written."""
    pending = entry.pending
    _logger.warn(
        "newer records of {id!r} in __transaction_state were lost: {partition} holds epoch {held} "
        "of its producer, its prepared transaction has epoch {epoch}; a transaction that is open "
        "there is aborted with epoch {above}",
        id=pending.metadata.transactional_id,
        partition=str(partition),
        held=held,
        epoch=pending.metadata.producer_epoch,
        above=held + 1,
    )
    pending.transit = pending.transit.fencing(held)
    return _Entry(pending, [partition], entry.refusals + 1, held + 1)


async def _held(
    connection: MarkerConnection, producer_id: int, partition: TopicPartition
) -> ProducerState | None:
    """What the leader holds of the producer. One partition each time: the answer has all of its
    producers. Raises BrokerError.
    """
    topic = TopicRequest(name=partition.topic, partition_indexes=[partition.partition])
    version = connection.highest_version(DescribeProducersRequest.api_key, 0)
    response = await connection.send(DescribeProducersRequest(topics=[topic]), version)
    assert isinstance(response, DescribeProducersResponse)
    (described,) = response.topics[0].partitions
    if described.error_code:
        raise BrokerError(error_of(described.error_code), described.error_message)
    found = (each for each in described.active_producers if each.producer_id == producer_id)
    return next(found, None)


def _failed(failure: Failure) -> None:
    _logger.failure("sending transaction markers failed", failure)


def _request(entries: list[_Entry]) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(markers=[_marker(entry) for entry in entries])


def _marker(entry: _Entry) -> WritableTxnMarker:
    metadata, topics = entry.pending.metadata, dict[str, list[int]]()
    for topic, partition in entry.partitions:
        topics.setdefault(topic, []).append(partition)
    return WritableTxnMarker(
        producer_id=metadata.producer_id,
        producer_epoch=entry.epoch,
        transaction_result=metadata.state is PREPARE_COMMIT and entry.abort_epoch is None,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ],
        coordinator_epoch=entry.pending.shard.leader_epoch,
        transaction_version=metadata.client_transaction_version,
    )
