"""Who may create, change and delete: the controller decides it, with the principal of the client
itself.

1. Permission is checked before existence: a refusal does not show what exists.
2. What may not be done is taken out of the request and answered with its own error; the rest goes
   on.
3. What is wrong with the request itself (a name twice, a kind that is not known) shows nothing of
   the cluster, and is answered before the permission.

Source: Kafka's `ControllerApis`; `RL 5.1`. Not here: stored ACLs (`security/acl.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from twisted_broker.api.context import RequestContext
from twisted_broker.image.metadata_image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
)
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.topic_names import METADATA_TOPIC
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import configs, topics
from twisted_broker.wire.primitives import NULL_UUID

_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_KINDS = (TOPIC_RESOURCE, BROKER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE)
Resource = TypeVar("Resource", bound=Any)
Answer = TypeVar("Answer")


async def refuse_creations(
    context: RequestContext, request: topics.CreateTopicsRequest, counts: Counter[str]
) -> list[topics.CreatableTopicResult]:
    """CREATE on the cluster, or on the topic."""
    if context.may_on_cluster(Operation.CREATE, noted=False):
        return []
    request.topics, refused = await _split(
        context,
        request.topics,
        Operation.CREATE,
        lambda topic: counts[topic.name] > 1 or topic.name == METADATA_TOPIC,
    )
    return [
        topics.CreatableTopicResult(
            name=each.name, error_code=_REFUSED, error_message=_REFUSED.sentence
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
            result.configs = []


async def refuse_growth(
    context: RequestContext, request: topics.CreatePartitionsRequest, counts: Counter[str]
) -> list[topics.CreatePartitionsTopicResult]:
    """ALTER on the topic."""
    request.topics, refused = await _split(
        context, request.topics, Operation.ALTER, lambda topic: counts[topic.name] > 1
    )
    return [
        topics.CreatePartitionsTopicResult(
            name=each.name, error_code=_REFUSED, error_message=_REFUSED.sentence
        )
        async for each in context.each(refused)
    ]


async def refuse_deletions(
    context: RequestContext,
    request: topics.DeleteTopicsRequest,
    version: int,
    image: MetadataImage,
    named: Counter[str | bytes],
) -> list[topics.DeletableTopicResult]:
    """DELETE on the cluster; or DESCRIBE on the topic, and DELETE if it is there. A topic that was
    named by its id is answered with its name only to those who may describe it.
    """
    if context.may_on_cluster(Operation.DELETE, noted=False):
        return []
    results: list[topics.DeletableTopicResult] = []
    shown: str | None
    if version < 6:
        kept_names: list[str] = []
        async for name in context.each(request.topic_names):
            if named[name] > 1 or _may_delete(context, name, name in image.topics_by_name):
                kept_names.append(name)
            else:
                results.append(_undeletable(name, NULL_UUID))
        request.topic_names = kept_names
        return results
    kept: list[topics.DeleteTopicState] = []
    async for state in context.each(request.topics):
        topic_id = bytes(state.topic_id)
        if state.name is not None:
            # a topic that is named by both is refused later, for that
            may = topic_id != NULL_UUID or named[state.name] > 1
            may = may or _may_delete(context, state.name, state.name in image.topics_by_name)
            shown = state.name
        else:
            topic = image.topics_by_id.get(topic_id) if named[topic_id] == 1 else None
            may = topic is None or context.may(Operation.DELETE, ResourceType.TOPIC, topic.name)
            shown = None if topic is None else _shown_name(context, topic.name, may)
        if may:
            kept.append(state)
        else:
            results.append(_undeletable(shown, topic_id))
    request.topics = kept
    return results


def _may_delete(context: RequestContext, name: str, is_there: bool) -> bool:
    """Whether the request goes on, were it only to hear that there is no such topic."""
    return context.may(Operation.DESCRIBE, ResourceType.TOPIC, name) and (
        not is_there or context.may(Operation.DELETE, ResourceType.TOPIC, name)
    )


def _shown_name(context: RequestContext, name: str, may_delete: bool) -> str | None:
    if may_delete or context.may(Operation.DESCRIBE, ResourceType.TOPIC, name, noted=False):
        return name
    return None


def _undeletable(name: str | None, topic_id: bytes) -> topics.DeletableTopicResult:
    return topics.DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=_REFUSED, error_message=_REFUSED.sentence
    )


def may_alter_configs(context: RequestContext, resource_type: int, name: str) -> ErrorCode:
    """NONE when the principal may: ALTER_CONFIGS on the topic or group, for the rest on the
    cluster. Also for an unknown kind, which is refused later, as unknown.
    """
    if resource_type not in _KINDS:
        return ErrorCode.NONE
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
    context: RequestContext,
    request: configs.IncrementalAlterConfigsRequest,
    counts: Counter[tuple[int, str]],
) -> list[configs.IncrementalAlterConfigsResponseAlterConfigsResourceResponse]:
    """As `refuse_alter`."""
    request.resources, refused = await _apart(
        context,
        request.resources,
        counts,
        configs.IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
    )
    return refused


async def refuse_alter(
    context: RequestContext,
    request: configs.AlterConfigsRequest,
    counts: Counter[tuple[int, str]],
) -> list[configs.AlterConfigsResponseAlterConfigsResourceResponse]:
    """The answers about resources whose settings the principal may not change; the request keeps
    the others.
    """
    request.resources, refused = await _apart(
        context, request.resources, counts, configs.AlterConfigsResponseAlterConfigsResourceResponse
    )
    return refused


async def _apart(
    context: RequestContext,
    resources: list[Resource],
    counts: Counter[tuple[int, str]],
    answer: Callable[..., Answer],
) -> tuple[list[Resource], list[Answer]]:
    """Those that may be changed, and the refusals of the others."""
    kept: list[Resource] = []
    refused: list[Answer] = []
    async for each in context.each(resources):
        if counts[each.resource_type, each.resource_name] > 1:
            code = ErrorCode.NONE  # the repetition is refused later, whoever asks
        else:
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
    is_wrong: Callable[[Resource], bool],
) -> tuple[list[Resource], list[Resource]]:
    """Those whose topic the principal may do this with, and the others. The first include what is
    wrong in itself: it is refused later, whoever asks.
    """
    kept: list[Resource] = []
    refused: list[Resource] = []
    async for each in context.each(requested):
        may = is_wrong(each) or context.may(operation, ResourceType.TOPIC, each.name)
        (kept if may else refused).append(each)
    return kept, refused
