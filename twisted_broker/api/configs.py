"""DescribeConfigs (32), ListConfigResources (74); AlterConfigs (33) and IncrementalAlterConfigs
(44) are passed on.

1. A resource that may not be seen, is not there, or is no resource of this broker has its own
   error; the others are described.
2. Every answer is derived from the settings table and the image.

Source: Kafka's `ConfigHelper`, `KafkaApis.handleListConfigResources`; KIP-133, KIP-226, KIP-569,
KIP-1142. Not here: loggers.
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted_broker.api.context import RequestContext
from twisted_broker.cluster.config_entries import (
    CLUSTER_SOURCE,
    DEFAULT_SOURCE,
    ConfigEntry,
    broker_entries,
    client_metrics_entries,
    default_entries,
    group_entries,
    topic_entries,
)
from twisted_broker.config import BrokerConfig
from twisted_broker.image.metadata_image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
)
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.topic_names import name_problem
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import configs as configs_messages


async def describe_configs(
    context: RequestContext, request: configs_messages.DescribeConfigsRequest
) -> configs_messages.DescribeConfigsResponse:
    """Waits for nothing but its turns."""
    results = []
    for resource in request.resources:
        result = _result(context, request, resource)
        results.append(result)
        context.room -= 1 + len(resource.configuration_keys or ()) // 8 + len(result.configs)
        if context.room < 0:
            await context.next_turn()
    return configs_messages.DescribeConfigsResponse(results=results)


def _result(
    context: RequestContext,
    request: configs_messages.DescribeConfigsRequest,
    resource: configs_messages.DescribeConfigsResource,
) -> configs_messages.DescribeConfigsResult:
    result = configs_messages.DescribeConfigsResult(
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    try:
        entries = _entries(context, resource)
    except BrokerError as error:
        result.error_code, result.error_message = error.code, error.message
        return result
    wanted = set(resource.configuration_keys) if resource.configuration_keys else None
    result.configs = [
        _told(context.version, request, entry)
        for entry in entries
        if wanted is None or entry.name in wanted
    ]
    return result


def _entries(
    context: RequestContext, resource: configs_messages.DescribeConfigsResource
) -> Iterable[ConfigEntry]:
    """Raises BrokerError."""
    kind, name = resource.resource_type, resource.resource_name
    image: MetadataImage = context.metadata.image
    if kind == TOPIC_RESOURCE:
        if not context.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name):
            raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        problem = name_problem(name)
        if problem is not None:
            raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name not in image.topics_by_name:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic_entries(_config_now(context, image), image.config(TOPIC_RESOURCE, name))
    if kind == GROUP_RESOURCE:
        if not context.may(Operation.DESCRIBE_CONFIGS, ResourceType.GROUP, name):
            raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not name:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "a group has a name")
        return group_entries(_config_now(context, image), image.config(kind, name))
    if not context.may_on_cluster(Operation.DESCRIBE_CONFIGS):
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if kind == BROKER_RESOURCE:
        if name == "":
            return default_entries(image.config(BROKER_RESOURCE, ""), CLUSTER_SOURCE)
        if name != str(context.node_id):
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, f"this is broker {context.node_id}, not {name}"
            )
        return broker_entries(_config_now(context, image))
    if kind == CLIENT_METRICS_RESOURCE:
        if not name:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "a subscription has a name")
        return client_metrics_entries(_config_now(context, image), image.config(kind, name))
    raise BrokerError(ErrorCode.INVALID_REQUEST, f"resources of type {kind} are not described here")


def _config_now(context: RequestContext, image: MetadataImage) -> BrokerConfig:
    """The broker's settings under the dynamic ones."""
    return context.config.with_dynamic(
        image.config(BROKER_RESOURCE, ""), image.config(BROKER_RESOURCE, str(context.node_id))
    )


def _told(
    version: int, request: configs_messages.DescribeConfigsRequest, entry: ConfigEntry
) -> configs_messages.DescribeConfigsResourceResult:
    result = configs_messages.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        config_type=entry.type,
        is_sensitive=entry.sensitive,
        documentation=None,
    )
    if version == 0:
        result.is_default = entry.source == DEFAULT_SOURCE
    if request.include_synonyms:
        result.synonyms = [
            configs_messages.DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source)
            for s in entry.synonyms
        ]
    if request.include_documentation:
        result.documentation = entry.documentation
    return result


async def list_config_resources(
    context: RequestContext, request: configs_messages.ListConfigResourcesRequest
) -> configs_messages.ListConfigResourcesResponse:
    """Names of what can be configured; version 0 knows client metrics only."""
    if not context.may_on_cluster(Operation.DESCRIBE_CONFIGS):
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    image: MetadataImage = context.metadata.image
    names: dict[int, Iterable[str]] = {
        TOPIC_RESOURCE: sorted(image.topics_by_name),
        BROKER_RESOURCE: [str(node) for node in sorted(image.brokers)],
        CLIENT_METRICS_RESOURCE: sorted(
            name for kind, name in image.configs if kind == CLIENT_METRICS_RESOURCE
        ),
        GROUP_RESOURCE: sorted(name for kind, name in image.configs if kind == GROUP_RESOURCE),
    }
    asked = (
        list(dict.fromkeys(request.resource_types) or sorted(names))
        if context.version >= 1
        else [CLIENT_METRICS_RESOURCE]
    )
    unknown = [kind for kind in asked if kind not in names]
    if unknown:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION, f"resources of type {unknown[0]} are not listed here"
        )
    found = []
    for kind in asked:
        for name in names[kind]:
            context.room -= 1
            if context.room < 0:
                await context.next_turn()
            found.append(configs_messages.ConfigResource(resource_name=name, resource_type=kind))
    return configs_messages.ListConfigResourcesResponse(config_resources=found)
