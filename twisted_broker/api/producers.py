"""DescribeProducers: the producers that a replica here remembers, leader or follower.

Guards: per topic its name, permission (Read), then existence and a replica here, whose producer
state is not being rebuilt (`log/producer_rebuild.py`).

Source: Kafka's `KafkaApis.handleDescribeProducersRequest`, `DescribeProducersHandler`; KIP-664. Not
here: the state itself (`log.producer_state`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.producer_append import being_rebuilt
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.topic_names import name_problem
from twisted_broker.turns import LOOK_ELEMENTS
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext
    from twisted_broker.log.producer_state import ProducerStateManager

# Each takes about a quarter of an element's time.
PRODUCERS_PER_STEP = 4 * LOOK_ELEMENTS


async def describe_producers(
    context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """One answer per partition; waits for nothing but its turns."""
    response = DescribeProducersResponse()
    for topic in request.topics:
        refusal = _refusal(context, topic.name)
        answers = []
        context.elements_left -= 1
        for index in topic.partition_indexes:
            answers.append(await _answer(context, TopicPartition(topic.name, index), refusal))
            if context.turn_is_over():
                await context.next_turn()
        response.topics.append(TopicResponse(name=topic.name, partitions=answers))
    return response


def _refusal(context: RequestContext, name: str) -> BrokerError | None:
    problem = name_problem(name)
    if problem is not None:
        return BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if not context.may(Operation.READ, ResourceType.TOPIC, name):
        return BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return None


async def _answer(
    context: RequestContext, topic_partition: TopicPartition, refused: BrokerError | None
) -> PartitionResponse:
    answer = PartitionResponse(partition_index=topic_partition.partition)
    try:
        if refused is not None:
            raise refused
        log = context.replica_manager.partition(topic_partition).log_for(-1, False)
        answer.active_producers = await _producers_of(context, log.producers)
    except BrokerError as refusal:
        answer.error_code, answer.error_message = refusal.code, refusal.message
    return answer


async def _producers_of(
    context: RequestContext, known: ProducerStateManager
) -> list[ProducerState]:
    """Raises UNKNOWN_TOPIC_OR_PARTITION while the producer state is being rebuilt."""
    _check_complete(known)
    found: list[ProducerState] = []
    producer_ids = list(known.producers)
    for start in range(0, len(producer_ids), PRODUCERS_PER_STEP):
        some = producer_ids[start : start + PRODUCERS_PER_STEP]
        entries = map(known.producers.get, some)
        found += [
            ProducerState(
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.current_txn_first_offset,
            )
            for entry in entries
            if entry is not None  # it expired since
        ]
        if context.turn_is_over(len(some) // 4):
            await context.next_turn()
            _check_complete(known)
    return found


def _check_complete(known: ProducerStateManager) -> None:
    """Some of the producers would look like all. In Kafka the request waits for the log's lock; its
    client retries at this code, also where it named the broker.
    """
    if known.is_rebuilding:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, being_rebuilt().message)
