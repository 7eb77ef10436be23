"""DeleteRecords: moves the log start up, and answers when all live replicas have moved.

Guards: per topic permission (Delete), then existence, internal topics, leadership, the cleanup
policy and the range.

Source: RL 2.8; Kafka's `KafkaApis.handleDeleteRecordsRequest`; KIP-107. Not here: deleting the
files (retention does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_broker.api import audit
from twisted_broker.interfaces import TopicPartition
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.topics import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext
    from twisted_broker.replication.purgatory.delayed_operations import DeleteOutcome

# Bounds one turn: each moves a log start, which may remove segments and complete delayed requests.
_AT_A_TIME = 200


async def delete_records(
    context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Answers when the low watermark of every partition reached its offset, or after
    `timeout_ms`.
    """
    response = DeleteRecordsResponse()
    offsets: list[tuple[TopicPartition, int]] = []
    awaited: list[DeleteRecordsPartitionResult] = []
    for topic in request.topics:
        allowed = context.may(Operation.DELETE, ResourceType.TOPIC, topic.name)
        results = []
        context.elements_left -= 1
        for requested in topic.partitions:
            if context.turn_is_over():
                await context.next_turn()
            result = DeleteRecordsPartitionResult(
                partition_index=requested.partition_index, low_watermark=-1
            )
            if allowed:
                offsets.append(
                    (TopicPartition(topic.name, requested.partition_index), requested.offset)
                )
                awaited.append(result)
            else:
                result.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            results.append(result)
        response.topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    replicas = context.replica_manager
    outcomes: list[DeleteOutcome] = []
    undecided: list[DeleteOutcome] = []
    for start in range(0, len(offsets), _AT_A_TIME):
        if start:
            await context.next_turn()
        some = replicas.delete_records(offsets[start : start + _AT_A_TIME])
        outcomes += some
        for (name, _), outcome in zip(offsets[start : start + _AT_A_TIME], some, strict=True):
            if not outcome.error:
                audit.changed(
                    context, "records deleted", partition=name, before=outcome.required_offset
                )
        undecided += [
            each for each in some if not each.error and each.low_watermark < each.required_offset
        ]
    await replicas.wait_for_deletion(undecided, context.bounded_wait(request.timeout_ms))
    async for result, outcome in context.each(zip(awaited, outcomes, strict=True)):
        result.error_code, result.low_watermark = outcome.error, outcome.low_watermark
    return response
