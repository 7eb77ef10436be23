"""InitializeShareGroupState (83), ReadShareGroupState (84), WriteShareGroupState (85),
DeleteShareGroupState (86), ReadShareGroupStateSummary (87): other brokers keep the state of share
partitions with the share coordinator.

Guard: CLUSTER_ACTION on the cluster, before anything else.

1. Nothing that names nothing is done: an empty group, no topic, or one topic without partitions
   gets an answer without results.
2. Each partition is a decision of its own, with its own error; the answer comes when all are
   committed.
3. No feature level is asked: who may not use share groups does not come this far.

Source: Apache Kafka 4.3.1 `KafkaApis`, `ShareCoordinatorService`. Not here: what is decided
(`coordinator/share_state`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from twisted_broker.api.context import RequestContext
from twisted_broker.coordinator.share_state.values import (
    SharePartitionKey,
    StateBatch,
    WriteState,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.share_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStatePartitionResult,
    ReadStateSummaryPartitionResult,
    ReadStateSummaryTopicResult,
    ReadStateTopicResult,
    ShareGroupStateBatch,
    StatePartitionResult,
    StateTopicResult,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)

# The answer to a broker that must look for the coordinator elsewhere, or later.
_OF_THE_COORDINATOR = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
Ask = Callable[[SharePartitionKey, Any], "Deferred[Any]"]


async def initialize_share_group_state(
    context: RequestContext, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    def ask(key: SharePartitionKey, named: Any) -> Deferred[Any]:
        return context.share_state.initialize(key, named.state_epoch, named.start_offset)

    return InitializeShareGroupStateResponse(
        results=await _results(
            context, request, ask, StateTopicResult, StatePartitionResult, "initialize"
        )
    )


async def read_share_group_state(
    context: RequestContext, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse:
    def ask(key: SharePartitionKey, named: Any) -> Deferred[Any]:
        return context.share_state.read(key, named.leader_epoch)

    results = await _results(
        context, request, ask, ReadStateTopicResult, ReadStatePartitionResult, "read"
    )
    return ReadShareGroupStateResponse(results=results)


async def write_share_group_state(
    context: RequestContext, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    def ask(key: SharePartitionKey, named: Any) -> Deferred[Any]:
        batches = tuple(
            StateBatch(
                each.first_offset, each.last_offset, each.delivery_state, each.delivery_count
            )
            for each in named.state_batches
        )
        state = WriteState(
            named.state_epoch,
            named.leader_epoch,
            named.start_offset,
            named.delivery_complete_count,
            batches,
        )
        return context.share_state.write(key, state)

    return WriteShareGroupStateResponse(
        results=await _results(
            context, request, ask, StateTopicResult, StatePartitionResult, "write"
        )
    )


async def delete_share_group_state(
    context: RequestContext, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse:
    def ask(key: SharePartitionKey, named: Any) -> Deferred[Any]:
        return context.share_state.delete(key)

    return DeleteShareGroupStateResponse(
        results=await _results(
            context, request, ask, StateTopicResult, StatePartitionResult, "delete"
        )
    )


async def read_share_group_state_summary(
    context: RequestContext, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse:
    def ask(key: SharePartitionKey, named: Any) -> Deferred[Any]:
        return context.share_state.summary(key)

    results = await _results(
        context,
        request,
        ask,
        ReadStateSummaryTopicResult,
        ReadStateSummaryPartitionResult,
        "read the summary of",
    )
    return ReadShareGroupStateSummaryResponse(results=results)


async def _results(
    context: RequestContext,
    request: Any,
    ask: Ask,
    topic_result: Any,
    partition_result: Any,
    verb: str,
) -> list[Any]:
    if not request.group_id or not all(topic.partitions for topic in request.topics):
        return []
    asked: list[tuple[Any, Deferred[Any]]] = []
    results = []
    for topic in request.topics:
        result = topic_result(topic_id=topic.topic_id)
        async for named in context.each(topic.partitions):
            key = SharePartitionKey(request.group_id, bytes(topic.topic_id), named.partition)
            partition = partition_result(partition=named.partition)
            asked.append((partition, ask(key, named)))
            result.partitions.append(partition)
        results.append(result)
    for partition, waiting in asked:
        try:
            _fill(partition, await waiting)
        except BrokerError as error:
            partition.error_code = error.code
            partition.error_message = (
                f"Unable to {verb} share group state: {error.message}"
                if error.code in _OF_THE_COORDINATOR
                else error.message
            )
    return results


def _fill(result: Any, content: Any) -> None:
    """`content`: a `ReadState`, a `StateSummary`, or None."""
    if content is None:
        return
    for name, value in content._asdict().items():
        if name == "batches":
            result.state_batches = [ShareGroupStateBatch(**each._asdict()) for each in value]
        else:
            setattr(result, name, value)
