"""WriteTxnMarkers (27): a transaction's coordinator writes its end marker to the leaders of its
partitions.

Guard: ALTER or CLUSTER_ACTION on the cluster (`kafka-transactions abort` is an administrator's).

1. A marker is appended as with acks=-1; the answer comes when all are on enough replicas, or after
   `request.timeout.ms`.
2. Those of `__consumer_offsets` are the group coordinator's: it writes them and decides the offsets
   of the transaction.
3. Every answer is a code that a coordinator knows. Any other code, which means that this broker
   cannot do it now, becomes NOT_LEADER_OR_FOLLOWER: a Java coordinator that gets an unknown code
   never sends the marker again.

Source: Kafka 4.3.1's `KafkaApis.handleWriteTxnMarkersRequest`,
`TransactionMarkerRequestCompletionHandler`. Not here: what a marker must meet
(`log/producer_append.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import EndMarker
from twisted_broker.security.acl import Operation
from twisted_broker.topic_names import OFFSETS_TOPIC
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext
    from twisted_broker.replication.purgatory.delayed_operations import AppendOutcome

_AT_A_TIME = 100
_VERSION_FROM = 2
_ALL_REPLICAS = -1
# Those after which a coordinator tries again, and those that end its tries.
_KNOWN = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)

Codes = dict[int, dict[TopicPartition, ErrorCode]]
"""producer id -> partition -> code"""


async def write_txn_markers(
    context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """One code for each producer and partition."""
    if not context.may_on_cluster(Operation.ALTER, noted=False) and not context.may_on_cluster(
        Operation.CLUSTER_ACTION
    ):
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    codes: Codes = {}
    entries: list[tuple[TopicPartition, EndMarker]] = []
    of_groups: list[tuple[int, TopicPartition, Deferred[ErrorCode]]] = []
    for named in request.markers:
        codes.setdefault(named.producer_id, {})
        version = named.transaction_version if context.version >= _VERSION_FROM else 0
        marker = EndMarker(
            named.producer_id,
            named.producer_epoch,
            named.coordinator_epoch,
            named.transaction_result,
            version,
        )
        for topic in named.topics:
            for index in topic.partition_indexes:
                if context.turn_is_over():
                    await context.next_turn()
                topic_partition = TopicPartition(topic.name, index)
                if marker.producer_id < 0 or marker.producer_epoch < 0:  # nobody's transaction
                    codes[marker.producer_id][topic_partition] = ErrorCode.INVALID_PRODUCER_EPOCH
                elif topic.name == OFFSETS_TOPIC:
                    done = _complete_in_groups(context, index, marker)
                    of_groups.append((marker.producer_id, topic_partition, done))
                else:
                    entries.append((topic_partition, marker))
    outcomes = await _append(context, entries)
    for (topic_partition, marker), outcome in zip(entries, outcomes, strict=True):
        codes[marker.producer_id][topic_partition] = _known(outcome.error)
    for producer_id, topic_partition, done in of_groups:
        codes[producer_id][topic_partition] = _known(await done)
    return WriteTxnMarkersResponse(
        markers=[_result(producer_id, found) for producer_id, found in codes.items()]
    )


def _complete_in_groups(
    context: RequestContext, index: int, marker: EndMarker
) -> Deferred[ErrorCode]:
    return context.groups.complete_transaction(
        index,
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        marker.is_commit,
        marker.transaction_version,
    )


async def _append(
    context: RequestContext, entries: list[tuple[TopicPartition, EndMarker]]
) -> list[AppendOutcome]:
    """What became of each, once it is on enough replicas or will not be in time."""
    replicas = context.replica_manager
    outcomes: list[AppendOutcome] = []
    for start in range(0, len(entries), _AT_A_TIME):
        if start:
            await context.next_turn()
        outcomes += replicas.append_end_markers(entries[start : start + _AT_A_TIME])
    delayed = replicas.delayed_produce(outcomes, _ALL_REPLICAS)
    if delayed is not None:
        timeout_ms = context.broker.config.integer("request.timeout.ms")
        await replicas.wait_for(delayed, timeout_ms)
    return outcomes


def _known(code: ErrorCode) -> ErrorCode:
    return code if code in _KNOWN else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _result(producer_id: int, codes: dict[TopicPartition, ErrorCode]) -> WritableTxnMarkerResult:
    topics: dict[str, WritableTxnMarkerTopicResult] = {}
    for (name, index), code in codes.items():
        if name not in topics:
            topics[name] = WritableTxnMarkerTopicResult(name=name, partitions=[])
        topics[name].partitions.append(
            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
        )
    return WritableTxnMarkerResult(producer_id=producer_id, topics=list(topics.values()))
