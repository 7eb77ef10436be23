"""AlterConfigs (33), IncrementalAlterConfigs (44), AlterClientQuotas (49), CreateAcls (30) and
DeleteAcls (31) of a member of a ZooKeeper cluster: any broker carries them out.

1. A resource changes as a whole or not at all, decided on by what its node holds at that moment.
2. Topics and brokers only, as in 3.9: such a cluster has no settings of groups or client metrics.
3. A broker's passwords are refused: the other brokers read them encoded with
   `password.encoder.secret`.

4. ACLs change resource by resource; which ones a filter may match is decided by what this broker
   has read, what is removed by what the nodes hold.

Source: Kafka 3.9's `ZkAdminManager`, `AclAuthorizer`. Not here: the checks of values
(`cluster/config_changes.py`, `cluster/quota_changes.py`), the nodes (`zookeeper/entity_writes.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from twisted_broker.api import audit, configs
from twisted_broker.api import controller_permissions as permissions
from twisted_broker.api.acls import check_authorizer
from twisted_broker.api.context import RequestContext
from twisted_broker.cluster import acl_changes, config_changes, quota_changes
from twisted_broker.cluster.cluster_view import ClusterView
from twisted_broker.config import BROKER_SETTINGS, override_row
from twisted_broker.image.metadata_image import BROKER_RESOURCE, TOPIC_RESOURCE
from twisted_broker.security.acl import Operation, PatternType, ResourceType
from twisted_broker.settings import Type
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import acls, quotas
from twisted_broker.wire.messages import configs as messages
from twisted_broker.wire.messages.metadata_records import AccessControlEntryRecord as Acl
from twisted_broker.zookeeper.acl_znodes import Pattern, acl_record
from twisted_broker.zookeeper.entity_writes import EntityWrites
from twisted_broker.zookeeper.znodes import DEFAULT_ENTITY, ZnodeError, quota_path, quotas_of

_TYPES = {TOPIC_RESOURCE: "topics", BROKER_RESOURCE: "brokers"}
_SPECIFIC = (PatternType.LITERAL, PatternType.PREFIXED)
_ACL_ELEMENTS = 200  # one step of a decision
Values = Mapping[str, str]


def _writes(context: RequestContext) -> EntityWrites:
    requests = context.broker.control_requests
    assert requests is not None
    return requests.writes


async def alter_configs(
    context: RequestContext, request: messages.AlterConfigsRequest
) -> messages.AlterConfigsResponse:
    return await configs.alter_configs_by(context, request, _alter)


async def incremental_alter_configs(
    context: RequestContext, request: messages.IncrementalAlterConfigsRequest
) -> messages.IncrementalAlterConfigsResponse:
    return await configs.incremental_alter_configs_by(context, request, _alter_incrementally)


async def _alter(
    context: RequestContext, request: messages.AlterConfigsRequest
) -> messages.AlterConfigsResponse:
    counts = _counts(request)
    refused = await permissions.refuse_alter(context, request, counts)
    response = messages.AlterConfigsResponse(
        responses=[
            messages.AlterConfigsResponseAlterConfigsResourceResponse(**each)
            for each in await _changed(
                context, request, counts, lambda each, _: config_changes.replaced(each)
            )
        ]
    )
    _audit(context, request, response)
    response.responses += refused
    return response


async def _alter_incrementally(
    context: RequestContext, request: messages.IncrementalAlterConfigsRequest
) -> messages.IncrementalAlterConfigsResponse:
    counts = _counts(request)
    refused = await permissions.refuse_incremental(context, request, counts)

    def wanted(resource: Any, current: Values) -> Values:
        config_changes.check_names(resource.configs)
        return config_changes.edited(
            current, resource.configs, _view(context), resource.resource_type
        )

    response = messages.IncrementalAlterConfigsResponse(
        responses=[
            messages.IncrementalAlterConfigsResponseAlterConfigsResourceResponse(**each)
            for each in await _changed(context, request, counts, wanted)
        ]
    )
    _audit(context, request, response)
    response.responses += refused
    return response


def _counts(request: Any) -> Counter[tuple[int, str]]:
    return Counter((each.resource_type, each.resource_name) for each in request.resources)


def _audit(context: RequestContext, request: Any, response: Any) -> None:
    if not request.validate_only:
        audit.settings_changed(context, request.resources, response)


def _view(context: RequestContext) -> ClusterView:
    image = context.metadata.image
    return ClusterView(image, configs.config_now(context, image))


async def _changed(
    context: RequestContext,
    request: Any,
    counts: Mapping[tuple[int, str], int],
    wanted: Callable[[Any, Values], Values],
) -> list[dict[str, Any]]:
    """The fields of an answer for each resource. `wanted(resource, current)`: its settings as they
    are to be.
    """
    found = []
    async for resource in context.each(request.resources):
        key = resource.resource_type, resource.resource_name
        code, message = ErrorCode.NONE, None
        try:
            config_changes.check_once(counts, key)
            await _change(context, key, request.validate_only, resource, wanted)
        except BrokerError as error:
            code, message = error.code, error.message
        except ZnodeError as error:
            code, message = ErrorCode.INVALID_CONFIG, str(error)
        found.append(
            {
                "error_code": code,
                "error_message": message,
                "resource_type": key[0],
                "resource_name": key[1],
            }
        )
    return found


async def _change(
    context: RequestContext,
    key: tuple[int, str],
    validate_only: bool,
    resource: Any,
    wanted: Callable[[Any, Values], Values],
) -> None:
    def decide(current: Values) -> Values | None:
        after = dict(wanted(resource, current))
        config_changes.check_values(_view(context), key, current, after)
        secret = next(
            (name for name in after if _is_password(name) and current.get(name) != after[name]),
            None,
        )
        if secret is not None:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"setting {secret} cannot be written into ZooKeeper by this broker: set it in its "
                "configuration file and restart",
            )
        return None if validate_only else after

    if key[0] not in _TYPES:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            "a ZooKeeper cluster has settings of topics and brokers only, none of resources of "
            f"type {key[0]}",
        )
    if key[0] == TOPIC_RESOURCE:
        # A name that is no topic's must not become a path.
        config_changes.check_topic(_view(context), key[1])
    await _writes(context).change(_TYPES[key[0]], key[1] or DEFAULT_ENTITY, decide)


def _is_password(name: str) -> bool:
    row = override_row(name) or BROKER_SETTINGS.get(name)
    return row is not None and row.type is Type.PASSWORD


async def alter_client_quotas(
    context: RequestContext, request: quotas.AlterClientQuotasRequest
) -> quotas.AlterClientQuotasResponse:
    if not context.may_on_cluster(Operation.ALTER_CONFIGS):
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    quota_changes.check_count(request.entries)
    results: quota_changes.Results = {}
    async for entry in context.each(request.entries):
        entity = quota_changes.entity_of(entry.entity)
        try:
            if entity in results:
                raise quota_changes.twice(entity)
            quota_changes.keys_of(entity)  # not to make a path of what is no entity
            await _alter_quotas(context, entity, entry, request.validate_only)
            results[entity] = None
        except BrokerError as refused:
            results[entity] = refused
        except ZnodeError as error:
            results[entity] = BrokerError(ErrorCode.INVALID_CONFIG, str(error))
    if not request.validate_only:
        audit.quotas_changed(context, results)
    return quota_changes.answer(results)


async def _alter_quotas(
    context: RequestContext, entity: Any, entry: quotas.AlteredEntry, validate_only: bool
) -> None:
    def decide(current: Values) -> Values | None:
        image = replace(context.metadata.image, client_quotas={entity: quotas_of(current)})
        records, results = quota_changes.alter_client_quotas(image, [entry])
        refused = results[entity]
        if refused is not None:
            raise refused
        after = dict(current)
        for record in records:
            if record.remove:  # type: ignore[attr-defined]
                after.pop(record.key, None)  # type: ignore[attr-defined]
            else:
                after[record.key] = quota_changes.text_of(record.key, record.value)  # type: ignore[attr-defined]
        return None if validate_only else after

    await _writes(context).change(*quota_path(entity), decide)


async def create_acls(
    context: RequestContext, request: acls.CreateAclsRequest
) -> acls.CreateAclsResponse:
    acl_changes.check_creations(request.creations)
    _check_alter(context)
    results: list[acls.AclCreationResult] = []
    wanted: dict[Pattern, list[tuple[int, Acl]]] = {}
    for number, each in enumerate(request.creations):
        reason = acl_changes.refusal_of(each)
        if reason is None:
            pattern = Pattern(
                PatternType(each.resource_pattern_type),
                ResourceType(each.resource_type),
                each.resource_name,
            )
            if pattern.fits:
                made = acl_record(
                    pattern, each.principal, each.host, each.operation, each.permission_type
                )
                wanted.setdefault(pattern, []).append((number, made))
            else:
                reason = f"no node of ZooKeeper can have the name {each.resource_name!r}"
        results.append(
            acls.AclCreationResult(
                error_code=ErrorCode.NONE if reason is None else ErrorCode.INVALID_REQUEST,
                error_message=reason,
            )
        )
    async for pattern, numbered in context.each(wanted.items()):
        added = [acl for _, acl in numbered]
        try:
            await _writes(context).change_acls(pattern, partial(_with_added, added))
        except (BrokerError, ZnodeError) as error:
            refused = _refusal(error)
            for number, _ in numbered:
                results[number] = acls.AclCreationResult(
                    error_code=refused.code, error_message=refused.message
                )
        else:
            for acl in added:
                audit.acl_changed(context, "acl created", acl)
    return acls.CreateAclsResponse(results=results)


def _with_added(added: list[Acl], current: list[Acl]) -> list[Acl] | None:
    there = {bytes(acl.id) for acl in current}
    new = {bytes(acl.id): acl for acl in added if bytes(acl.id) not in there}
    return [*current, *new.values()] if new else None


async def delete_acls(
    context: RequestContext, request: acls.DeleteAclsRequest
) -> acls.DeleteAclsResponse:
    acl_changes.check_filters(request.filters)
    _check_alter(context)
    await _writes(context).acls.read_again(_only_patterns(request.filters))
    found = await context.in_slices(
        acl_changes.delete_acls(context.metadata.image.acls, request.filters), _ACL_ELEMENTS
    )
    gone: dict[Pattern, set[bytes]] = {}
    for acl in found.removed:
        pattern = Pattern(
            PatternType(acl.pattern_type), ResourceType(acl.resource_type), acl.resource_name
        )
        gone.setdefault(pattern, set()).add(bytes(acl.id))
    refusals: dict[tuple[int, int, str], BrokerError] = {}
    async for pattern, ids in context.each(gone.items()):
        try:
            await _writes(context).change_acls(pattern, partial(_without, ids))
        except (BrokerError, ZnodeError) as error:
            refusals[pattern] = _refusal(error)
    for result in found.results:
        for each in result.matching_acls:
            refused = refusals.get((each.pattern_type, each.resource_type, each.resource_name))
            if refused is not None:
                each.error_code, each.error_message = refused.code, refused.message
    for acl in found.removed:
        if (acl.pattern_type, acl.resource_type, acl.resource_name) not in refusals:
            audit.acl_changed(context, "acl deleted", acl)
    return acls.DeleteAclsResponse(filter_results=found.results)


def _only_patterns(filters: Iterable[acls.DeleteAclsFilter]) -> list[Pattern]:
    """Of filters that name one resource: what was just created elsewhere is deleted, too."""
    found = []
    for each in filters:
        name = each.resource_name_filter
        with suppress(ValueError):
            kind = PatternType(each.pattern_type_filter)
            resource = ResourceType(each.resource_type_filter)
            if name and kind in _SPECIFIC and resource > ResourceType.ANY:
                pattern = Pattern(kind, resource, name)
                found += [pattern] if pattern.fits else []
    return found


def _without(ids: set[bytes], current: list[Acl]) -> list[Acl] | None:
    left = [acl for acl in current if bytes(acl.id) not in ids]
    return left if len(left) < len(current) else None


def _refusal(error: BrokerError | ZnodeError) -> BrokerError:
    if isinstance(error, BrokerError):
        return error
    return BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))


def _check_alter(context: RequestContext) -> None:
    if not context.may_on_cluster(Operation.ALTER):
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    check_authorizer(context)
