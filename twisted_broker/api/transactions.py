"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn; DescribeTransactions, ListTransactions: the wire's
side of transactions.

1. Permission first: WRITE on the transactional id to change its transaction, WRITE on each topic
   and READ on the group to add them; DESCRIBE on the id, and on each topic, to see them.
2. AddPartitionsToTxn from version 4 on is for brokers alone (CLUSTER_ACTION), who checked their
   clients; it names many transactions, each with an answer of its own.
3. One partition that is refused refuses the transaction's others: OPERATION_NOT_ATTEMPTED.
4. Clients before version 2 know PRODUCER_FENCED as INVALID_PRODUCER_EPOCH.
5. The version of AddPartitionsToTxn and EndTxn says whether the producer knows an epoch for every
   transaction: from 4 and from 5 on.
6. A partition is added only when this broker's metadata have it, that of a group's offsets, too:
   AddOffsetsToTxn waits a second at most for the topic. Kafka adds it unseen, and sends no marker
   where it is not known yet when the transaction ends.
7. Every loop over what a client named, or over all ids, is in slices (`turns.py`).

Source: Apache Kafka 4.3.1 `KafkaApis`, `TransactionVersion`; KIP-98, KIP-664, KIP-890, KIP-994,
KIP-1152. Not here: InitProducerId (`api/producer_ids.py`), TxnOffsetCommit, WriteTxnMarkers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from twisted.internet.defer import Deferred, ensureDeferred, gatherResults

from twisted_broker.api.context import RequestContext
from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.coordinator.transaction.transaction_coordinator import TransactionListing
from twisted_broker.coordinator.transaction.transaction_decisions import ProducerIdAndEpoch
from twisted_broker.coordinator.transaction.transaction_metadata import (
    EPOCH_BUMP_VERSION,
    TransactionState,
)
from twisted_broker.image.metadata_image import TOPIC_RESOURCE
from twisted_broker.interfaces import TopicPartition
from twisted_broker.linear_pattern import LinearPattern
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.topic_names import INTERNAL_TOPICS, OFFSETS_TOPIC
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TopicData,
)

FIRST_BETWEEN_BROKERS = 4
FIRST_END_WITH_EPOCH = 5
FIRST_WITH_PRODUCER_FENCED = 2
_STATES = {state.text: state for state in TransactionState}

Errors = dict[TopicPartition, ErrorCode]


@contextmanager
def older_codes(is_older: bool) -> Iterator[None]:
    """What a client too old for PRODUCER_FENCED gets instead."""
    try:
        yield
    except BrokerError as refusal:
        if is_older and refusal.code is ErrorCode.PRODUCER_FENCED:
            raise BrokerError(ErrorCode.INVALID_PRODUCER_EPOCH) from None
        raise


def check_transactional_id(context: RequestContext, name: str, operation: Operation) -> None:
    """Raises TRANSACTIONAL_ID_AUTHORIZATION_FAILED."""
    if not context.may(operation, ResourceType.TRANSACTIONAL_ID, name):
        raise BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


# AddPartitionsToTxn
async def add_partitions_to_txn(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Waits until every transaction's step is stored, side by side."""
    if context.version < FIRST_BETWEEN_BROKERS:
        own = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        results = await _add_of_client(context, own)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
    if not context.may_on_cluster(Operation.CLUSTER_ACTION):
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    waiting: list[Deferred[AddPartitionsToTxnResult]] = []
    async for each in context.each(request.transactions):
        context.elements_left -= sum(len(topic.partitions) for topic in each.topics)
        waiting.append(ensureDeferred(_add_of_broker(context, each)))
    return AddPartitionsToTxnResponse(
        results_by_transaction=await gatherResults(waiting, consumeErrors=True)
    )


async def _add_of_client(
    context: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> list[AddPartitionsToTxnTopicResult]:
    try:
        check_transactional_id(context, transaction.transactional_id, Operation.WRITE)
    except BrokerError as refusal:
        return _results(transaction.topics, {}, refusal.code)
    may_write: dict[str, bool] = {}
    for topic in transaction.topics:
        if context.turn_is_over(1 + len(topic.partitions)):
            await context.next_turn()
        may_write[topic.name] = topic.name not in INTERNAL_TOPICS and context.may(
            Operation.WRITE, ResourceType.TOPIC, topic.name
        )
    return await _add(context, transaction, may_write)


async def _add_of_broker(
    context: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> AddPartitionsToTxnResult:
    results = await _add(context, transaction, None)
    return AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id, topic_results=results
    )


async def _add(
    context: RequestContext,
    transaction: AddPartitionsToTxnTransaction,
    may_write: dict[str, bool] | None,
) -> list[AddPartitionsToTxnTopicResult]:
    """`may_write` None: of a broker, which has checked that."""
    topics, image = transaction.topics, context.metadata.image
    partitions: list[TopicPartition] = []
    refused: Errors = {}
    for topic in topics:
        known = image.topics_by_name.get(topic.name)
        for index in topic.partitions:
            partition = TopicPartition(topic.name, index)
            if may_write is not None and not may_write[topic.name]:
                refused[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif known is None or index not in known.partitions:
                refused[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif image.config(TOPIC_RESOURCE, topic.name).get("replog.mirror.source"):
                # A marker would take an offset that is the source's.
                refused[partition] = ErrorCode.POLICY_VIOLATION
            else:
                partitions.append(partition)
    if refused:
        return _results(topics, refused, ErrorCode.OPERATION_NOT_ATTEMPTED)
    producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
    try:
        with older_codes(context.version < FIRST_WITH_PRODUCER_FENCED):
            if transaction.verify_only:
                found = context.transactions.verify_partitions(
                    transaction.transactional_id, producer, partitions
                )
                return _results(topics, found, ErrorCode.NONE)
            await context.transactions.add_partitions(
                transaction.transactional_id,
                producer,
                partitions,
                EPOCH_BUMP_VERSION if context.version >= FIRST_BETWEEN_BROKERS else 0,
                # The answer to another broker is that of many transactions.
                waits=context.version < FIRST_BETWEEN_BROKERS,
            )
    except BrokerError as refusal:
        return _results(topics, {}, refusal.code)
    return _results(topics, {}, ErrorCode.NONE)


def _results(
    topics: list[AddPartitionsToTxnTopic], errors: Errors, others: ErrorCode
) -> list[AddPartitionsToTxnTopicResult]:
    """`others`: of the partitions that `errors` does not name."""
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=errors.get(TopicPartition(topic.name, index), others),
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


# AddOffsetsToTxn, EndTxn
async def add_offsets_to_txn(
    context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Adds the group's partition of `__consumer_offsets` to the transaction, once the topic is
    known here.
    """
    check_transactional_id(context, request.transactional_id, Operation.WRITE)
    if not context.may(Operation.READ, ResourceType.GROUP, request.group_id):
        raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if OFFSETS_TOPIC not in context.metadata.image.topics_by_name:
        # As with any partition that is added: when the transaction ends, what is not known needs no
        # marker.
        topic = context.offsets_topic
        topic.create()
        await topic.wait_until_created()
        if OFFSETS_TOPIC not in context.metadata.image.topics_by_name:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    count = context.groups.context.store.partitions_count()
    with older_codes(context.version < FIRST_WITH_PRODUCER_FENCED):
        await context.transactions.add_partitions(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            [TopicPartition(OFFSETS_TOPIC, partition_for(request.group_id, count))],
            waits=True,
        )
    return AddOffsetsToTxnResponse()


async def end_txn(context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Waits until the outcome is stored, not for the markers."""
    check_transactional_id(context, request.transactional_id, Operation.WRITE)
    with older_codes(context.version < FIRST_WITH_PRODUCER_FENCED):
        after = await context.transactions.end_transaction(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            request.committed,
            EPOCH_BUMP_VERSION if context.version >= FIRST_END_WITH_EPOCH else 0,
        )
    return EndTxnResponse(producer_id=after.producer_id, producer_epoch=after.epoch)


# administration
async def describe_transactions(
    context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """One answer per id; waits for nothing but its turns."""
    response = DescribeTransactionsResponse()
    async for name in context.each(request.transactional_ids):
        described = _described(context, name)
        context.elements_left -= sum(len(topic.partitions) for topic in described.topics)
        response.transaction_states.append(described)
    return response


def _described(context: RequestContext, name: str) -> DescribedTransaction:
    try:
        check_transactional_id(context, name, Operation.DESCRIBE)
        found = context.transactions.describe(name)
    except BrokerError as refusal:
        return DescribedTransaction(error_code=refusal.code, transactional_id=name)
    topics: dict[str, list[int]] = {}
    for topic, partition in found.partitions:
        topics.setdefault(topic, []).append(partition)
    return DescribedTransaction(
        transactional_id=name,
        transaction_state=found.state.text,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer.producer_id,
        producer_epoch=found.producer.epoch,
        topics=[
            TopicData(topic=topic, partitions=partitions)
            for topic, partitions in topics.items()
            if context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        ],
    )


async def list_transactions(
    context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """The ids of this coordinator that the filters let through."""
    coordinator = context.transactions
    if not coordinator.is_active:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if coordinator.states.is_loading:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    names = dict.fromkeys(request.state_filters)
    response = ListTransactionsResponse(
        unknown_state_filters=[name for name in names if name not in _STATES]
    )
    accepted, pattern = _Filter(request, context.broker.runtime.wall_ms()), None
    if request.transactional_id_pattern:
        try:
            pattern = LinearPattern(request.transactional_id_pattern)
        except ValueError as error:
            raise BrokerError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None
    async for some in context.each(coordinator.listings(), cost=0):
        async for row in context.each(some):
            if (
                accepted(row)
                and (
                    pattern is None or await context.in_slices(pattern.steps(row.transactional_id))
                )
                and context.may(
                    Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, row.transactional_id
                )
            ):
                response.transaction_states.append(
                    ListedTransaction(
                        transactional_id=row.transactional_id,
                        producer_id=row.producer_id,
                        transaction_state=row.state.text,
                    )
                )
    return response


class _Filter:
    """Which ids a ListTransactions names: all filters that it has must let one through."""

    __slots__ = ("_duration_ms", "_producer_ids", "_states", "_wall_ms")

    def __init__(self, request: ListTransactionsRequest, wall_ms: int) -> None:
        self._states = frozenset(request.state_filters)
        self._producer_ids = frozenset(request.producer_id_filters)
        self._duration_ms, self._wall_ms = request.duration_filter, wall_ms

    def __call__(self, row: TransactionListing) -> bool:
        return (
            (not self._states or row.state.text in self._states)
            and (not self._producer_ids or row.producer_id in self._producer_ids)
            and (self._duration_ms < 0 or self._wall_ms - row.start_ms > self._duration_ms)
        )
