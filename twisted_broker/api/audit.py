"""Lines for audit: which client changed what, and what a client was denied. Ring 1.

Owns the kinds of these lines, and what each line begins with: the principal, the client id, the
client's address.

1. A change is a line once it is done: a change of the metadata when its records are durable. What
   was refused, or only validated, changed nothing.
2. Each element of a request (a topic, resource or group; of DeleteRecords a partition) is a line of
   its own; the denials of one request share one line for each operation on a kind of resource.
3. Names come from clients: `event_lines.py` quotes them, and bounds a storm: each principal has its
   own budget, so that none hides what another does.
4. Values of settings are not written: they may be secret.

What a broker requests on its own (topics that are created automatically) has that broker's client
id. Source: Kafka's `kafka.authorizer.logger`, request log. Not here: what became of the cluster
(`cluster/metadata_events.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from twisted_broker.api.routes import ROUTES
from twisted_broker.event_lines import EventLines, some
from twisted_broker.interfaces import IClock
from twisted_broker.security.acl import Operation, PatternType, PermissionType, ResourceType
from twisted_broker.wire.primitives import uuid_text

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext

_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_RESOURCES = {2: "topic", 4: "broker", 8: "broker-logger", 16: "client-metrics", 32: "group"}
_NAMES = {route.api_key: route.name for route in ROUTES}
_logger = Logger(namespace="replog.audit")


def audit_lines(clock: IClock, node_id: int) -> EventLines:
    """The audit lines of one node; to be stopped when the node stops."""
    return EventLines(_logger, clock, by=("principal",), node=node_id)


def changed(context: RequestContext, what: str, **parts: object) -> None:
    """The client of `context` changed something: `audit WHAT principal=.. key=value ..`."""
    context.broker.audit.add(f"audit {what}", **_client(context), **parts)


def denied(context: RequestContext) -> None:
    """Writes what the client of `context` was denied, and forgets it: a line for each operation on
    a kind of resource.
    """
    denials, context.denials = context.denials, None
    for (operation, resource), (names, count) in (denials or {}).items():
        context.broker.audit.warn(
            "audit denied",
            **_client(context),
            api=_NAMES.get(context.api_key, str(context.api_key)),
            operation=operation.name,
            resource=resource.name,
            count=count,
            names=",".join(names) + (f",+{count - len(names)}" if count > len(names) else ""),
        )


def sasl_refused(context: RequestContext) -> None:
    """The client wants to authenticate itself on a listener without SASL."""
    protocol = context.listener.protocol.name
    context.broker.audit.warn(
        "audit SASL refused",
        **_client(context),
        listener=context.listener.name,
        remedy=f"listener {context.listener.name} is {protocol}: set the client's "
        f"security.protocol={protocol}",
    )


def _client(context: RequestContext) -> dict[str, object]:
    return {
        "principal": str(context.principal),
        "client_id": context.client_id or "",
        "client": context.client_host,
    }


def offsets_deleted(
    context: RequestContext, group: str, topic: str, partitions: Sequence[int]
) -> None:
    """Of one topic."""
    changed(
        context,
        "offsets deleted",
        group=group,
        topic=topic,
        count=len(partitions),
        partitions=some(partitions),
    )


def directories_altered(
    context: RequestContext, topic: str, path: str, partitions: Sequence[int]
) -> None:
    """Partitions of one topic whose moves to this directory began, or went on."""
    changed(
        context,
        "log directory altered",
        topic=topic,
        count=len(partitions),
        partitions=some(partitions),
        directory=path,
    )


# what the controller was requested, from its answers


def acl_changed(context: RequestContext, what: str, acl: Any) -> None:
    """Of an AccessControlEntryRecord."""
    changed(
        context,
        what,
        permission=PermissionType(acl.permission_type).name,
        operation=Operation(acl.operation).name,
        resource=ResourceType(acl.resource_type).name,
        pattern=PatternType(acl.pattern_type).name,
        name=acl.resource_name,
        to=acl.principal,
        host=acl.host,
    )


def scram_credentials_altered(
    context: RequestContext, changes: Iterable[Any], response: Any
) -> None:
    """Of the changes of an AlterUserScramCredentialsRequest; never a key or a salt."""
    refused = {each.user for each in response.results if each.error_code}
    for change in changes:
        if change.name not in refused:
            changed(
                context,
                "SCRAM credential " + ("set" if getattr(change, "iterations", 0) else "deleted"),
                user=change.name,
                mechanism=_MECHANISMS.get(change.mechanism, change.mechanism),
            )


def topics_created(context: RequestContext, response: Any) -> None:
    """Of a CreateTopicsResponse."""
    for each in response.topics:
        if not each.error_code:
            changed(
                context,
                "topic created",
                topic=each.name,
                partitions=each.num_partitions,
                replication_factor=each.replication_factor,
            )


def topics_deleted(context: RequestContext, response: Any) -> None:
    """Of a DeleteTopicsResponse."""
    for each in response.responses:
        if not each.error_code:
            changed(context, "topic deleted", topic=topic_text(each))


def quotas_changed(context: RequestContext, results: Mapping[Any, object]) -> None:
    """The entities of an AlterClientQuotas, each with its refusal or None."""
    for entity, refused in results.items():
        if refused is None:
            names = {kind.replace("-", "_"): name or "<default>" for kind, name in entity}
            changed(
                context, "client quotas altered", **{f"of_{kind}": n for kind, n in names.items()}
            )


def topic_text(each: Any) -> str:
    """The topic's name; its id where the request has only that."""
    return uuid_text(bytes(each.topic_id)) if each.name is None else str(each.name)


def partitions_created(context: RequestContext, requested: Iterable[Any], response: Any) -> None:
    """Of a part of a CreatePartitionsRequest, and its answer."""
    counts = {each.name: each.count for each in requested}
    for each in response.results:
        if not each.error_code:
            changed(
                context, "partitions created", topic=each.name, partitions=counts.get(each.name)
            )


def settings_changed(context: RequestContext, requested: Iterable[Any], response: Any) -> None:
    """Of a part of an (Incremental)AlterConfigsRequest, and its answer."""
    names = {
        (each.resource_type, each.resource_name): [edit.name for edit in each.configs]
        for each in requested
    }
    for each in response.responses:
        if not each.error_code:
            changed(
                context,
                "settings changed",
                resource=_RESOURCES.get(each.resource_type, each.resource_type),
                name=each.resource_name,
                settings=some(names.get((each.resource_type, each.resource_name), ())),
            )


def leaders_elected(context: RequestContext, election_type: int, response: Any) -> None:
    """Of an ElectLeadersResponse: the partitions whose leader changed."""
    for each in response.replica_election_results:
        numbers = [one.partition_id for one in each.partition_result if not one.error_code]
        if numbers:
            changed(
                context,
                "leaders elected",
                topic=each.topic,
                count=len(numbers),
                partitions=some(numbers),
                type="unclean" if election_type else "preferred",
            )


def reassigned(
    context: RequestContext, topic: str, requested: Iterable[Any], response: Any
) -> None:
    """Of some partitions of one topic in an AlterPartitionReassignmentsRequest, and the answer."""
    done = {
        one.partition_index
        for each in response.responses
        for one in each.partitions
        if not one.error_code
    }
    begun = [each for each in requested if each.partition_index in done]
    for what, found in (
        ("reassignment requested", [each for each in begun if each.replicas is not None]),
        ("reassignment cancelled", [each for each in begun if each.replicas is None]),
    ):
        if found:
            replicas = {"replicas": found[0].replicas} if found[0].replicas else {}
            changed(
                context,
                what,
                topic=topic,
                count=len(found),
                partitions=some(each.partition_index for each in found),
                **(replicas if len(found) == 1 else {}),
            )
