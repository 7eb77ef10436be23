"""DescribeConfigs (32), ListConfigResources (74); AlterConfigs (33) and IncrementalAlterConfigs
(44), of which a broker carries out the changes of its own loggers and passes the rest on to the
controller.

1. A resource that may not be seen, is not there, or is no resource of this broker has its own
   error; the others are described.
2. Every answer is derived from the settings tables and the image.
3. Levels of loggers are this process's own and never reach the controller. Settings of a broker are
   changed through that broker.

Source: Kafka's `ConfigHelper`, `ConfigAdminManager`, `KafkaApis.handleListConfigResources`;
KIP-133, KIP-226, KIP-412, KIP-569, KIP-1142. Not here: the decisions (`cluster/config_changes.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from twisted_broker.api import audit, broker_loggers
from twisted_broker.api.context import RequestContext
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.cluster_view import ClusterView
from twisted_broker.cluster.config_changes import check_names, check_once, edited, replaced
from twisted_broker.cluster.config_entries import (
    CLUSTER_SOURCE,
    DEFAULT_SOURCE,
    LOGGER_SOURCE,
    ConfigEntry,
    broker_entries,
    client_metrics_entries,
    default_entries,
    group_entries,
    topic_entries,
)
from twisted_broker.config import LISTENER_PREFIX
from twisted_broker.event_lines import some
from twisted_broker.image.metadata_image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
)
from twisted_broker.java_numbers import parse_whole
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.settings import ConfigError
from twisted_broker.topic_names import name_problem
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.header import RequestHeader, encode_request_header
from twisted_broker.wire.messages import configs as configs_messages
from twisted_broker.wire.schema import encode

_OF_LISTENERS = ("listeners", "listener.security.protocol.map")
CarryOut = Callable[[RequestContext, Any], Awaitable[Any]]


async def describe_configs(
    context: RequestContext, request: configs_messages.DescribeConfigsRequest
) -> configs_messages.DescribeConfigsResponse:
    """Waits for nothing but its turns."""
    results = []
    # A resource that is named a thousand times is in memory once.
    known: dict[tuple[Any, ...], configs_messages.DescribeConfigsResult] = {}
    for resource in request.resources:
        keys = tuple(resource.configuration_keys or ())
        key = (resource.resource_type, resource.resource_name, keys)
        result = known.get(key)
        if result is None:
            result = known[key] = _result(context, request, resource)
        results.append(result)
        if context.turn_is_over(
            1 + len(resource.configuration_keys or ()) // 8 + len(result.configs)
        ):
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
        entries = _config_entries(context, resource)
    except BrokerError as error:
        result.error_code, result.error_message = error.code, error.message
        return result
    wanted = set(resource.configuration_keys) if resource.configuration_keys else None
    result.configs = [
        _described(context.version, request, entry)
        for entry in entries
        if wanted is None or entry.name in wanted
    ]
    return result


def _config_entries(
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
        return topic_entries(config_now(context, image), image.config(TOPIC_RESOURCE, name))
    if kind == GROUP_RESOURCE:
        if not context.may(Operation.DESCRIBE_CONFIGS, ResourceType.GROUP, name):
            raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not name:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "a group needs a name")
        return group_entries(config_now(context, image), image.config(kind, name))
    if not context.may_on_cluster(Operation.DESCRIBE_CONFIGS):
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if kind == BROKER_RESOURCE:
        if name == "":
            return default_entries(image.config(BROKER_RESOURCE, ""), CLUSTER_SOURCE)
        if name != str(context.broker.node_id):
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, f"this is broker {context.broker.node_id}, not {name}"
            )
        return broker_entries(config_now(context, image))
    if kind == BROKER_LOGGER_RESOURCE:
        check_own(context, name)
        return [
            ConfigEntry(logger, level, False, LOGGER_SOURCE, [], 0, None)
            for logger, level in broker_loggers.levels().items()
        ]
    if kind == CLIENT_METRICS_RESOURCE:
        if not name:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "a subscription needs a name")
        return client_metrics_entries(config_now(context, image), image.config(kind, name))
    raise BrokerError(ErrorCode.INVALID_REQUEST, f"resources of type {kind} cannot be described")


def config_now(context: RequestContext, image: MetadataImage) -> BrokerConfig:
    """The broker's settings under the dynamic ones."""
    return context.broker.config.with_stored(
        image.config(BROKER_RESOURCE, ""),
        image.config(BROKER_RESOURCE, str(context.broker.node_id)),
    )[0]


def _described(
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


async def incremental_alter_configs(
    context: RequestContext, request: configs_messages.IncrementalAlterConfigsRequest
) -> configs_messages.IncrementalAlterConfigsResponse:
    """Loggers here; the rest is answered when the controller's records are durable."""
    return await incremental_alter_configs_by(context, request, None)


async def incremental_alter_configs_by(
    context: RequestContext,
    request: configs_messages.IncrementalAlterConfigsRequest,
    carry_out: CarryOut | None,
) -> configs_messages.IncrementalAlterConfigsResponse:
    """As above; what is not here is answered as `carry_out(context, request)` says, if given."""
    answer = configs_messages.IncrementalAlterConfigsResponseAlterConfigsResourceResponse
    counts = Counter((each.resource_type, each.resource_name) for each in request.resources)

    def own(
        resource: configs_messages.IncrementalAlterConfigsRequestAlterConfigsResource,
    ) -> bool:
        if resource.resource_type != BROKER_LOGGER_RESOURCE:
            return False
        check_once(counts, (BROKER_LOGGER_RESOURCE, resource.resource_name))
        if not context.may_on_cluster(Operation.ALTER_CONFIGS):
            raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        check_own(context, resource.resource_name)
        check_names(resource.configs)
        broker_loggers.change(resource.configs, not request.validate_only)
        if not request.validate_only:
            audit.changed(
                context,
                "log levels changed",
                loggers=some(f"{each.name}:{each.value or 'default'}" for each in resource.configs),
            )
        return True

    return configs_messages.IncrementalAlterConfigsResponse(
        responses=await _altered(
            context,
            request,
            own,
            answer,
            configs_messages.IncrementalAlterConfigsResponse,
            carry_out,
        )
    )


async def alter_configs(
    context: RequestContext, request: configs_messages.AlterConfigsRequest
) -> configs_messages.AlterConfigsResponse:
    """As IncrementalAlterConfigs, but without loggers."""
    return await alter_configs_by(context, request, None)


async def alter_configs_by(
    context: RequestContext,
    request: configs_messages.AlterConfigsRequest,
    carry_out: CarryOut | None,
) -> configs_messages.AlterConfigsResponse:
    """As `incremental_alter_configs_by`, but without loggers."""
    return configs_messages.AlterConfigsResponse(
        responses=await _altered(
            context,
            request,
            lambda resource: False,
            configs_messages.AlterConfigsResponseAlterConfigsResourceResponse,
            configs_messages.AlterConfigsResponse,
            carry_out,
        )
    )


async def _altered(
    context: RequestContext,
    request: Any,
    own: Callable[[Any], bool],
    answer: Callable[..., Any],
    response_class: Any,
    carry_out: CarryOut | None,
) -> list[Any]:
    """The answers to all resources: what `own` did or refused, then what the controller says."""
    answers, others = [], []
    for resource in request.resources:
        if context.turn_is_over():
            await context.next_turn()
        code, message = ErrorCode.NONE, None
        try:
            if resource.resource_type == BROKER_RESOURCE and resource.resource_name:
                check_own(context, resource.resource_name)
                await _check_listeners(context, resource)
            if not own(resource):
                others.append(resource)
                continue
        except BrokerError as refusal:
            code, message = refusal.code, refusal.message
        answers.append(
            answer(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    if answers and not others:
        return answers
    request.resources = others
    if carry_out is not None:
        return [*answers, *(await carry_out(context, request)).responses]
    if answers:
        header = RequestHeader(
            context.api_key, context.version, context.correlation_id, context.client_id
        )
        context.raw_request = encode_request_header(header) + encode(request, context.version)
    passed_on = await context.forwarding.forward(context, response_class)
    return [*answers, *passed_on.responses]


async def _check_listeners(context: RequestContext, resource: Any) -> None:
    """Listeners that this broker cannot have, and keys and certificates of them, are refused at
    once: nobody else could look at its files and addresses. Raises BrokerError.
    """
    listeners = context.broker.dynamic_listeners
    named = [each for each in resource.configs if each.name in _OF_LISTENERS]
    of_one = any(each.name.startswith(LISTENER_PREFIX) for each in resource.configs)
    is_whole = isinstance(resource, configs_messages.AlterConfigsRequestAlterConfigsResource)
    if listeners is None or not (named or of_one or is_whole):
        return
    if not context.may_on_cluster(Operation.ALTER_CONFIGS):
        return  # the controller refuses it, and no file is read for it
    image: MetadataImage = context.metadata.image
    config, name = context.broker.config, resource.resource_name
    stored = image.config(BROKER_RESOURCE, name)
    if is_whole:
        wanted = replaced(resource)
    else:
        view = ClusterView(image, config)
        wanted = edited(stored, resource.configs, view, BROKER_RESOURCE)
    changed = [
        each
        for each in stored.keys() | wanted.keys()
        if stored.get(each) != wanted.get(each)
        and (each in _OF_LISTENERS or each.startswith(LISTENER_PREFIX))
    ]
    if not changed:
        return
    try:
        await listeners.check(config.with_dynamic(config.cluster, wanted), changed)
    except ConfigError as error:
        raise BrokerError(ErrorCode.INVALID_REQUEST, str(error)) from None


def check_own(context: RequestContext, name: str) -> None:
    """Raises INVALID_REQUEST for another broker's name, or none."""
    try:
        own = parse_whole(name) == context.broker.node_id
    except ValueError:
        own = False
    if not own:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, f"this is broker {context.broker.node_id}, not {name!r}"
        )


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
        BROKER_LOGGER_RESOURCE: [str(node) for node in sorted(image.brokers)],
        CLIENT_METRICS_RESOURCE: sorted(
            name for kind, name in image.configs if kind == CLIENT_METRICS_RESOURCE
        ),
        GROUP_RESOURCE: sorted(name for kind, name in image.configs if kind == GROUP_RESOURCE),
    }
    requested = (
        list(dict.fromkeys(request.resource_types) or sorted(names))
        if context.version >= 1
        else [CLIENT_METRICS_RESOURCE]
    )
    unknown = [kind for kind in requested if kind not in names]
    if unknown:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION, f"resources of type {unknown[0]} cannot be listed"
        )
    found = []
    for kind in requested:
        for name in names[kind]:
            if context.turn_is_over():
                await context.next_turn()
            found.append(configs_messages.ConfigResource(resource_name=name, resource_type=kind))
    return configs_messages.ListConfigResourcesResponse(config_resources=found)
