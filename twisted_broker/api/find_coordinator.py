"""FindCoordinator: which broker coordinates a group, a transactional id, or a share partition.

1. Permission first: DESCRIBE on the group or the transactional id.
2. A group's coordinator leads its partition of `__consumer_offsets`, a transactional id's that of
   `__transaction_state`; the first request creates the topic and waits a second at most for its
   leaders. Without a leader the answer is COORDINATOR_NOT_AVAILABLE, at which clients retry.
3. A share partition's coordinator leads its partition of `__share_group_state`. Its key reads
   `group:topic id:partition`; any other is INVALID_REQUEST, as all are before v6, which knows none.
   It needs CLUSTER_ACTION (else CLUSTER_AUTHORIZATION_FAILED).
4. Keys of kinds that do not exist are INVALID_REQUEST.

Source: Apache Kafka 4.3.1 `KafkaApis.getCoordinator` (KIP-699), `SharePartitionKey` (KIP-932).
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted_broker.api.context import RequestContext
from twisted_broker.coordinator.offsets_topic import CoordinatorTopic
from twisted_broker.coordinator.share_state.records import coordinator_key
from twisted_broker.coordinator.share_state.values import SharePartitionKey
from twisted_broker.java_numbers import INT_MAX, INT_MIN, parse_whole
from twisted_broker.security.acl import CLUSTER_NAME, Operation, ResourceType
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.offsets import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from twisted_broker.wire.primitives import uuid_from_text

GROUP_KEY = 0
TRANSACTION_KEY = 1
SHARE_KEY = 2
FIRST_WITH_SEVERAL_KEYS = 4
FIRST_WITH_SHARE_KEYS = 6
NO_COORDINATOR = (-1, "", -1)

_RESOURCES = {
    GROUP_KEY: (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    TRANSACTION_KEY: (
        ResourceType.TRANSACTIONAL_ID,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
}

Found = tuple[ErrorCode, tuple[int, str, int]]


async def find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if context.version >= FIRST_WITH_SEVERAL_KEYS else [request.key]
    found = await _find_all(context, request.key_type, keys)
    topic = _topic(context, request.key_type)
    if topic and any(error is ErrorCode.COORDINATOR_NOT_AVAILABLE for error, _ in found):
        await topic.wait_until_created()
        found = await _find_all(context, request.key_type, keys)
    if context.version >= FIRST_WITH_SEVERAL_KEYS:
        return FindCoordinatorResponse(
            coordinators=[
                _coordinator(key, each)
                async for key, each in context.each(zip(keys, found, strict=True))
            ]
        )
    error, (node_id, host, port) = found[0]
    return FindCoordinatorResponse(
        error_code=error, error_message=_sentence(error), node_id=node_id, host=host, port=port
    )


def _topic(context: RequestContext, key_type: int) -> CoordinatorTopic | None:
    if key_type == GROUP_KEY:
        return context.offsets_topic
    if key_type == SHARE_KEY and context.version >= FIRST_WITH_SHARE_KEYS:
        return context.share_state_topic
    return context.transactions_topic if key_type == TRANSACTION_KEY else None


async def _find_all(context: RequestContext, key_type: int, keys: Sequence[str]) -> list[Found]:
    found = []
    for key in keys:
        if context.turn_is_over():
            await context.next_turn()
        found.append(_find(context, key_type, key))
    return found


def _coordinator(key: str, found: Found) -> Coordinator:
    error, (node_id, host, port) = found
    return Coordinator(
        key=key,
        node_id=node_id,
        host=host,
        port=port,
        error_code=error,
        # Kafka's is empty where the permission is missing
        error_message="" if error in _REFUSALS else _sentence(error),
    )


_REFUSALS = frozenset(code for _, code in _RESOURCES.values())


def _sentence(error: ErrorCode) -> str | None:
    return error.sentence if error else None


def _find_share(context: RequestContext, key: str) -> Found:
    if context.version < FIRST_WITH_SHARE_KEYS:
        return ErrorCode.INVALID_REQUEST, NO_COORDINATOR
    if not context.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NO_COORDINATOR
    share_key = _share_key(key)
    if share_key is None:
        return ErrorCode.INVALID_REQUEST, NO_COORDINATOR
    return _named(context, context.share_state_topic, coordinator_key(share_key))


def _share_key(key: str) -> SharePartitionKey | None:
    """None where it does not read `group:topic id:partition`; the group's name may hold colons."""
    group_id, *rest = key.rsplit(":", 2)
    if len(rest) != 2 or not group_id.strip():
        return None
    try:
        return SharePartitionKey(
            group_id, uuid_from_text(rest[0]), parse_whole(rest[1], INT_MIN, INT_MAX)
        )
    except ValueError:
        return None


def _find(context: RequestContext, key_type: int, key: str) -> Found:
    if key_type == SHARE_KEY:
        return _find_share(context, key)
    topic = _topic(context, key_type)
    if topic is None:
        return ErrorCode.INVALID_REQUEST, NO_COORDINATOR
    resource, refusal = _RESOURCES[key_type]
    if not context.may(Operation.DESCRIBE, resource, key):
        return refusal, NO_COORDINATOR
    return _named(context, topic, key)


def _named(context: RequestContext, topic: CoordinatorTopic, key: str) -> Found:
    found = topic.coordinator(key, context.listener.name)
    if found is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_COORDINATOR
    node_id, endpoint = found
    return ErrorCode.NONE, (node_id, endpoint.host, endpoint.port)
