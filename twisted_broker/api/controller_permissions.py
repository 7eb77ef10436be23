"""Who may create, change and delete: the controller decides it, with the principal of the client
itself.

1. Permission is checked before existence: a refusal does not show what exists.
2. What may not be done is taken out of the request and answered with its own error; the rest goes
   on.

Source: Kafka's `ControllerApis`; `RL 5.1`. Not here: stored ACLs (`security/acl.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from twisted_broker.api.context import RequestContext
from twisted_broker.image.metadata_image import GROUP_RESOURCE, TOPIC_RESOURCE, MetadataImage
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import configs, topics
from twisted_broker.wire.primitives import NULL_UUID

_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
Resource = TypeVar("Resource", bound=Any)
Answer = TypeVar("Answer")


async def refuse_creations(
    context: RequestContext, request: topics.CreateTopicsRequest
) -> list[topics.CreatableTopicResult]:
    """CREATE on the cluster, or on the topic."""
    if context.may_on_cluster(Operation.CREATE):
        return []
    request.topics, refused = await _split(context, request.topics, Operation.CREATE)
    return [
        topics.CreatableTopicResult(
            name=each.name, error_code=_REFUSED, error_message=_REFUSED.sentence, configs=None
        )
        async for each in context.each(refused)
    ]


async def hide_configs(context: RequestContext, response: topics.CreateTopicsResponse) -> None:
    """The settings of a new topic are answered to those who may describe them."""
    async for result in context.each(response.topics):
        if result.error_code == ErrorCode.NONE and not context.may(
            Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, result.name
        ):
            result.topic_config_error_code = _REFUSED
            result.num_partitions = result.replication_factor = -1
            result.configs = None


async def refuse_growth(
    context: RequestContext, request: topics.CreatePartitionsRequest
) -> list[topics.CreatePartitionsTopicResult]:
    """ALTER on the topic."""
    request.topics, refused = await _split(context, request.topics, Operation.ALTER)
    return [
        topics.CreatePartitionsTopicResult(
            name=each.name, error_code=_REFUSED, error_message=_REFUSED.sentence
        )
        async for each in context.each(refused)
    ]


async def refuse_deletions(
    context: RequestContext, request: topics.DeleteTopicsRequest, version: int, image: MetadataImage
) -> list[topics.DeletableTopicResult]:
    """DELETE on the topic. An id whose topic may not even be described is unknown."""
    results = []
    if version < 6:
        request.topic_names, refused = await _split(
            context, request.topic_names, Operation.DELETE, lambda name: name
        )
        return [
            topics.DeletableTopicResult(
                name=name, error_code=_REFUSED, error_message=_REFUSED.sentence
            )
            async for name in context.each(refused)
        ]
    kept = []
    async for state in context.each(request.topics):
        topic = (
            image.topics_by_id.get(bytes(state.topic_id))
            if state.name is None and bytes(state.topic_id) != NULL_UUID
            else None
        )
        name = topic.name if topic is not None else state.name
        if name is None or context.may(Operation.DELETE, ResourceType.TOPIC, name):
            kept.append(state)
            continue
        hidden = topic is not None and not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name)
        code = ErrorCode.UNKNOWN_TOPIC_ID if hidden else _REFUSED
        results.append(
            topics.DeletableTopicResult(
                name=None if hidden else name,
                topic_id=state.topic_id,
                error_code=code,
                error_message=code.sentence,
            )
        )
    request.topics = kept
    return results


def may_alter_configs(context: RequestContext, resource_type: int, name: str) -> ErrorCode:
    """NONE when it may; ALTER_CONFIGS on the topic or group, for the rest on the cluster."""
    if resource_type == TOPIC_RESOURCE:
        return (
            ErrorCode.NONE
            if context.may(Operation.ALTER_CONFIGS, ResourceType.TOPIC, name)
            else _REFUSED
        )
    if resource_type == GROUP_RESOURCE:
        return (
            ErrorCode.NONE
            if context.may(Operation.ALTER_CONFIGS, ResourceType.GROUP, name)
            else ErrorCode.GROUP_AUTHORIZATION_FAILED
        )
    return (
        ErrorCode.NONE
        if context.may_on_cluster(Operation.ALTER_CONFIGS)
        else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    )


async def refuse_incremental(
    context: RequestContext, request: configs.IncrementalAlterConfigsRequest
) -> list[configs.IncrementalAlterConfigsResponseAlterConfigsResourceResponse]:
    """As `refuse_alter`."""
    request.resources, refused = await _apart(
        context,
        request.resources,
        configs.IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
    )
    return refused


async def refuse_alter(
    context: RequestContext, request: configs.AlterConfigsRequest
) -> list[configs.AlterConfigsResponseAlterConfigsResourceResponse]:
    """The answers about resources whose settings the principal may not change; the request keeps
    the others.
    """
    request.resources, refused = await _apart(
        context, request.resources, configs.AlterConfigsResponseAlterConfigsResourceResponse
    )
    return refused


async def _apart(
    context: RequestContext, resources: list[Resource], answer: Callable[..., Answer]
) -> tuple[list[Resource], list[Answer]]:
    """Those that may be changed, and the refusals of the others."""
    kept: list[Resource] = []
    refused: list[Answer] = []
    async for each in context.each(resources):
        code = may_alter_configs(context, each.resource_type, each.resource_name)
        if not code:
            kept.append(each)
            continue
        refused.append(
            answer(
                error_code=code,
                error_message=code.sentence,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
            )
        )
    return kept, refused


async def _split(
    context: RequestContext,
    requested: list[Resource],
    operation: Operation,
    name_of: Callable[[Resource], str] = lambda topic: topic.name,
) -> tuple[list[Resource], list[Resource]]:
    """Those whose topic the principal may do this with, and the others."""
    kept: list[Resource] = []
    refused: list[Resource] = []
    async for each in context.each(requested):
        may = context.may(operation, ResourceType.TOPIC, name_of(each))
        (kept if may else refused).append(each)
    return kept, refused
