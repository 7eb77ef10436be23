"""OffsetForLeaderEpoch: where a leader epoch ends in the leader's log.

Guards: per topic ClusterAction on the cluster, or Describe on the topic; then existence, leadership
and the epoch sent.

1. An epoch whose end is unknown is answered with -1 and -1, without an error.

Source: RL 2.6, 6.3; Kafka's `KafkaApis.handleOffsetForLeaderEpochRequest`; KIP-101, KIP-279,
KIP-320.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition.offset_lookup import end_offset_for_epoch
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext


async def offset_for_leader_epoch(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """One answer per partition; waits for nothing but its turns."""
    is_broker = context.may_on_cluster(Operation.CLUSTER_ACTION, noted=False)
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        allowed = is_broker or context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic)
        answers = []
        context.elements_left -= 1
        for requested in topic.partitions:
            if context.turn_is_over():
                await context.next_turn()
            answers.append(_answer(context, topic.topic, requested, allowed))
        response.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
    return response


def _answer(
    context: RequestContext, topic: str, requested: OffsetForLeaderPartition, allowed: bool
) -> EpochEndOffset:
    answer = EpochEndOffset(partition=requested.partition)
    if not allowed:
        answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return answer
    try:
        partition = context.replica_manager.partition(TopicPartition(topic, requested.partition))
        answer.leader_epoch, answer.end_offset = end_offset_for_epoch(
            partition, requested.current_leader_epoch, requested.leader_epoch
        )
    except BrokerError as refusal:
        answer.error_code = refusal.code
    return answer
