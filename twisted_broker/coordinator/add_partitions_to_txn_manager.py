"""Asks a transaction's coordinator whether a partition belongs to the transaction, or has it added
(KIP-890). Ring 1.

Owns `AddPartitionsToTxnManager`: per coordinating broker one connection and the transactions that
wait for the next request to it.

1. One AddPartitionsToTxn is under way per broker; what comes meanwhile goes into the next one. A
   request has at most `_MOST_PARTITIONS` partitions, unless its first transaction alone has more.
2. A transactional id waits once per broker. A second request of it replaces the first one, which is
   answered INVALID_PRODUCER_EPOCH when the second has a newer epoch, NETWORK_EXCEPTION (its
   producer sends again) when it has the same, or another producer id; an older epoch of the same
   id is refused at once.
3. Every call is answered, within `request.timeout.ms` of the request that carries it: a lost
   connection, a late or an incomplete answer are errors that a producer retries.
4. What waits is bounded by the produce requests and offset commits that wait for it.

Source: Kafka 4.3.1's `AddPartitionsToTxnManager`; KIP-890. Unlike there, a coordinator that is too
old for version 4 refuses a partition that was to be added (verification is skipped in both), and
epochs of different producer ids are not compared.
Not here: which appends need it (`log/producer_append.py`), what a client is answered
(`api/produce.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.logger import Logger

from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.topic_names import TRANSACTIONS_TOPIC
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError, error_of
from twisted_broker.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from twisted_broker.replication.live_brokers import ImageSource

_LOWEST, _HIGHEST = 4, 5
_MOST_PARTITIONS = 5_000
"""Of one request: encoding it and reading its answer take some ms."""
_KEPT = 512
_LOST = (ConnectError, ConnectionClosed, OSError, WireError)  # a time-out is a ConnectError
_logger = Logger()

Codes = dict[TopicPartition, ErrorCode]
"""One for each partition of a call; NONE: it belongs to the transaction."""


class Connection(Protocol):
    """What is used of a `BrokerConnection`."""

    api_versions: dict[int, tuple[int, int]]

    def negotiate(self) -> Deferred[Any]: ...

    def highest_version(self, api_key: int, ours: int) -> int: ...

    def send(self, request: Any, version: int) -> Deferred[Any]: ...

    def close(self) -> None: ...


class _Waiting:
    """One call that is not answered yet."""

    __slots__ = (
        "add",
        "answer",
        "began",
        "partitions",
        "producer_epoch",
        "producer_id",
        "transactional_id",
    )

    def __init__(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
        began: float,
    ) -> None:
        self.began = began
        self.transactional_id, self.producer_id = transactional_id, producer_id
        self.producer_epoch, self.partitions, self.add = producer_epoch, partitions, add
        self.answer: Deferred[Codes] = Deferred()

    def transaction(self) -> AddPartitionsToTxnTransaction:
        """As the request names it."""
        topics: dict[str, list[int]] = {}
        for name, index in self.partitions:
            topics.setdefault(name, []).append(index)
        return AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            verify_only=not self.add,
            topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in topics.items()
            ],
        )

    def all(self, code: ErrorCode) -> Codes:
        return dict.fromkeys(self.partitions, code)


class _Coordinator:
    """A broker that coordinates transactions, and what waits for the next request to it."""

    __slots__ = ("connection", "endpoint", "is_busy", "waiting")

    def __init__(self, endpoint: BrokerEndPoint, connection: Connection) -> None:
        self.endpoint, self.connection = endpoint, connection
        self.waiting: dict[str, _Waiting] = {}
        self.is_busy = False

    def take(self) -> list[_Waiting]:
        """What the next request carries, oldest first."""
        taken: list[_Waiting] = []
        left = _MOST_PARTITIONS
        for each in self.waiting.values():
            left -= len(each.partitions)
            if taken and left < 0:
                break
            taken.append(each)
        for each in taken:
            del self.waiting[each.transactional_id]
        return taken


class AddPartitionsToTxnManager:
    """`connect(endpoint, client id)` makes a connection; `listener` is the inter-broker one's name.
    Since the start: `failures`, partitions that were not verified or added; `answers`, transactions
    that were answered, and `total_ms`, the time of all. `times_ms`: the times of the last ones.
    """

    def __init__(
        self,
        node_id: int,
        image_source: ImageSource,
        listener: str,
        connect: Callable[[BrokerEndPoint, str], Connection],
        seconds: Callable[[], float],
    ) -> None:
        self._client_id = f"broker-{node_id}-add-partitions-to-txn"
        self._image_source, self._listener, self._connect = image_source, listener, connect
        self._coordinators: dict[int, _Coordinator] = {}
        self._closed = False
        self._seconds = seconds
        self.failures = self.answers = 0
        self.total_ms = 0.0
        self.times_ms: deque[float] = deque(maxlen=_KEPT)

    def verify_or_add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
    ) -> Deferred[Codes]:
        """Fires with a code for each partition, never fails. `add` False: only whether it is in
        the open transaction of that producer.

        PRODUCER_FENCED comes as INVALID_PRODUCER_EPOCH, which producers expect here.
        COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, NETWORK_EXCEPTION
        and CONCURRENT_TRANSACTIONS are temporary; TRANSACTION_ABORTABLE is for clients that know
        it.
        """
        call = _Waiting(
            transactional_id, producer_id, producer_epoch, partitions, add, self._seconds()
        )
        endpoint = None if self._closed else self._coordinator_of(transactional_id)
        if endpoint is None:
            return succeed(self._counted(call.all(ErrorCode.COORDINATOR_NOT_AVAILABLE)))
        coordinator = self._coordinator(endpoint)
        before = coordinator.waiting.get(transactional_id)
        # After the last epoch of an id comes another id at epoch 0.
        is_same = before is not None and before.producer_id == producer_id
        if before is not None and is_same and producer_epoch < before.producer_epoch:
            return succeed(self._counted(call.all(ErrorCode.INVALID_PRODUCER_EPOCH)))
        coordinator.waiting[transactional_id] = call
        if before is not None:
            self._answer(
                before,
                before.all(
                    ErrorCode.INVALID_PRODUCER_EPOCH
                    if is_same and before.producer_epoch < producer_epoch
                    else ErrorCode.NETWORK_EXCEPTION
                ),
            )
        if not coordinator.is_busy:
            ensureDeferred(self._send_waiting(coordinator))
        return call.answer

    def close(self) -> None:
        """All that waits is answered NETWORK_EXCEPTION; later calls find no coordinator."""
        self._closed = True
        for coordinator in list(self._coordinators.values()):
            self._drop(coordinator)

    def _coordinator_of(self, transactional_id: str) -> BrokerEndPoint | None:
        image = self._image_source.image
        topic = image.topics_by_name.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return None
        partition = topic.partitions.get(partition_for(transactional_id, len(topic.partitions)))
        broker = None if partition is None else image.brokers.get(partition.leader)
        listener = None if broker is None or broker.fenced else broker.listeners.get(self._listener)
        if broker is None or listener is None:
            return None
        return BrokerEndPoint(broker.id, listener.host, listener.port)

    def _coordinator(self, endpoint: BrokerEndPoint) -> _Coordinator:
        found = self._coordinators.get(endpoint.id)
        if found is not None and found.endpoint == endpoint:
            return found
        known = self._image_source.image.brokers
        # It came back with another address, or is new.
        for gone in [
            each
            for broker_id, each in self._coordinators.items()
            if each is found or broker_id not in known
        ]:
            self._drop(gone)
        # A caller that was answered may have called again at once, and made it.
        found = self._coordinators.get(endpoint.id)
        if found is None:
            connection = self._connect(endpoint, self._client_id)
            found = self._coordinators[endpoint.id] = _Coordinator(endpoint, connection)
        return found

    def _drop(self, coordinator: _Coordinator) -> None:
        if self._coordinators.get(coordinator.endpoint.id) is not coordinator:
            return  # dropped already: a caller that was answered called again
        del self._coordinators[coordinator.endpoint.id]
        waiting = list(coordinator.waiting.values())
        coordinator.waiting.clear()
        coordinator.connection.close()
        for each in waiting:
            self._answer(each, each.all(ErrorCode.NETWORK_EXCEPTION))

    async def _send_waiting(self, coordinator: _Coordinator) -> None:
        """Sends request after request until nothing waits."""
        coordinator.is_busy = True
        try:
            while coordinator.waiting:
                taken = coordinator.take()
                try:
                    answers = await self._ask(coordinator, taken)
                except Exception as error:
                    answers = self._failed(coordinator, taken, error)
                for each in taken:
                    self._answer(each, answers[each.transactional_id])
        finally:
            coordinator.is_busy = False

    async def _ask(self, coordinator: _Coordinator, taken: list[_Waiting]) -> dict[str, Codes]:
        """The codes of each transaction. Raises what the connection raises."""
        connection = coordinator.connection
        if not connection.api_versions:
            await connection.negotiate()
        version = connection.highest_version(AddPartitionsToTxnRequest.api_key, _HIGHEST)
        if version < _LOWEST:
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"it serves version {version}")
        request = AddPartitionsToTxnRequest(transactions=[each.transaction() for each in taken])
        response: AddPartitionsToTxnResponse = await connection.send(request, version)
        if response.error_code:
            code = error_of(response.error_code)
            _logger.error(
                "{coordinator} refused AddPartitionsToTxn: {code}",
                coordinator=coordinator.endpoint,
                code=code.name,
            )
            # No client may do anything about this broker's own permission.
            if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                code = ErrorCode.INVALID_TXN_STATE
            return {each.transactional_id: each.all(code) for each in taken}
        found = {each.transactional_id: each for each in response.results_by_transaction}
        return {each.transactional_id: _codes(each, found) for each in taken}

    def _failed(
        self, coordinator: _Coordinator, taken: list[_Waiting], error: Exception
    ) -> dict[str, Codes]:
        if isinstance(error, BrokerError) and error.code == ErrorCode.UNSUPPORTED_VERSION:
            _logger.warn(
                "{coordinator} is too old to verify transactions; their records are appended "
                "without that",
                coordinator=coordinator.endpoint,
            )
            return {
                each.transactional_id: each.all(
                    ErrorCode.INVALID_TXN_STATE if each.add else ErrorCode.NONE
                )
                for each in taken
            }
        if not isinstance(error, (BrokerError, *_LOST)):
            _logger.failure("verifying transactions failed; this is a bug")
        elif not self._closed:
            _logger.warn(
                "AddPartitionsToTxn to {coordinator} failed: {error}",
                coordinator=coordinator.endpoint,
                error=str(error) or type(error).__name__,
            )
        return {each.transactional_id: each.all(ErrorCode.NETWORK_EXCEPTION) for each in taken}

    def _answer(self, call: _Waiting, codes: Codes) -> None:
        took_ms = 1000 * (self._seconds() - call.began)
        self.answers += 1
        self.total_ms += took_ms
        self.times_ms.append(took_ms)
        call.answer.callback(self._counted(codes))

    def _counted(self, codes: Codes) -> Codes:
        self.failures += sum(code != ErrorCode.NONE for code in codes.values())
        return codes


def _codes(call: _Waiting, found: dict[str, AddPartitionsToTxnResult]) -> Codes:
    """What the answer says of one call; what it does not mention was not verified."""
    codes = call.all(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    result = found.get(call.transactional_id)
    for topic in () if result is None else result.topic_results:
        for each in topic.results_by_partition:
            topic_partition = TopicPartition(topic.name, each.partition_index)
            code = error_of(each.partition_error_code)
            if topic_partition in codes:
                codes[topic_partition] = (
                    ErrorCode.INVALID_PRODUCER_EPOCH if code == ErrorCode.PRODUCER_FENCED else code
                )
    return codes
