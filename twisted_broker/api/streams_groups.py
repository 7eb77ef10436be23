"""StreamsGroupHeartbeat and StreamsGroupDescribe (KIP-1071): the wire's side of streams groups.

1. They are served while streams.version is finalised as 1 or more, and the broker has `streams`
   among its protocols; else the answer is UNSUPPORTED_VERSION, in a well-formed answer.
2. Permission first: READ on the group, and DESCRIBE on every topic that a topology names. What can
   be said against a heartbeat without its group comes before who coordinates it.
3. Both wait until what they answer is committed.
4. Internal topics that a group lacks are created in the name of the client whose heartbeat found it
   out, with its permission; why that failed is told with the next answers.
5. A topology is bounded (`MOST_SUBTOPOLOGIES`, `MOST_TOPICS`): it is looked at in a few steps.

Source: Apache Kafka 4.3.1 `KafkaApis.handleStreamsGroupHeartbeat`, `handleStreamsGroupDescribe`.
Not here: what a heartbeat decides (`coordinator/streams`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from twisted_broker.api.context import RequestContext
from twisted_broker.api.groups import BYTES_OF_A_MEMBER, check_group
from twisted_broker.api.modern_groups import check_shown, described_groups, message_of
from twisted_broker.cluster.features import serves_streams_groups
from twisted_broker.coordinator.streams.configure import InternalTopic, Status, StatusCode
from twisted_broker.coordinator.streams.describe import DescribedGroup, DescribedSubtopology
from twisted_broker.coordinator.streams.endpoints import EndpointPartitions, Partitions
from twisted_broker.coordinator.streams.member import StreamsGroupMember
from twisted_broker.coordinator.streams.requests import (
    HeartbeatAnswer,
    HeartbeatRequest,
    check_request,
)
from twisted_broker.coordinator.streams.tasks import Task, Tasks, by_subtopology
from twisted_broker.coordinator.streams.topology import named_topics
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.topic_names import INTERNAL_TOPICS, name_problem
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import streams_groups as messages
from twisted_broker.wire.messages.group_records import (
    ClientTag,
    StreamsGroupTopologyValue,
    TaskIds,
    TopicConfig,
    TopicInfo,
    UserEndpoint,
)

MOST_SUBTOPOLOGIES, MOST_TOPICS = 1_000, 10_000
MOST_ERRORS_TOLD = 3
# How long a failed creation counts, in heartbeats.
HEARTBEATS_OF_AN_ERROR = 2
BYTES_OF_A_TASK, BYTES_OF_A_TOPIC = 4, 100
_NOT_SHOWN = "The described group uses topics that the client is not authorized to describe."


def _is_served(context: RequestContext) -> bool:
    return (
        serves_streams_groups(context.metadata.image)
        and context.groups.context.settings.streams.is_served
    )


# heartbeat
async def streams_group_heartbeat(
    context: RequestContext, request: messages.StreamsGroupHeartbeatRequest
) -> messages.StreamsGroupHeartbeatResponse:
    try:
        answer = await _heartbeat(context, request)
    except BrokerError as refusal:
        return messages.StreamsGroupHeartbeatResponse(
            error_code=refusal.code, error_message=message_of(refusal)
        )
    if answer.to_create:
        answer = _with_creation(context, request.group_id, answer)
    return _heartbeat_response(answer)


async def _heartbeat(
    context: RequestContext, request: messages.StreamsGroupHeartbeatRequest
) -> HeartbeatAnswer:
    if not _is_served(context):
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION)
    check_group(context, request.group_id, Operation.READ)
    topology = None
    if request.topology is not None:
        topology = StreamsGroupTopologyValue(
            epoch=request.topology.epoch, subtopologies=request.topology.subtopologies
        )
        await _check_topics(context, topology)
    endpoint, tags = request.user_endpoint, request.client_tags
    asked = HeartbeatRequest(
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.endpoint_information_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        topology,
        await _owned(context, request.active_tasks),
        await _owned(context, request.standby_tasks),
        await _owned(context, request.warmup_tasks),
        request.process_id,
        None if endpoint is None else (endpoint.host, endpoint.port),
        None if tags is None else tuple(sorted({each.key: each.value for each in tags}.items())),
        request.task_offsets is not None,
        request.task_end_offsets is not None,
        request.shutdown_application,
        context.client_id or "",
        f"/{context.client_host}",
    )
    check_request(asked)
    answer: HeartbeatAnswer = await context.groups.streams_heartbeat(asked)
    return answer


async def _check_topics(context: RequestContext, topology: StreamsGroupTopologyValue) -> None:
    """Raises BrokerError."""
    if len(topology.subtopologies) > MOST_SUBTOPOLOGIES:
        raise BrokerError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            f"A topology has {MOST_SUBTOPOLOGIES} subtopologies at most.",
        )
    names: dict[str, None] = {}
    count = 0
    async for name in context.each(named_topics(topology)):
        names[name] = None
        count += 1
        if count > MOST_TOPICS:
            raise BrokerError(
                ErrorCode.STREAMS_INVALID_TOPOLOGY,
                f"A topology names {MOST_TOPICS} topics at most.",
            )
    internal = [name for name in names if name in INTERNAL_TOPICS]
    if internal:
        raise BrokerError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is "
            "prohibited.",
        )
    invalid = [name for name in names if name_problem(name) is not None]
    if invalid:
        raise BrokerError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            f"Topic names {','.join(invalid)} are not valid topic names.",
        )
    async for name in context.each(names):
        if not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


async def _owned(context: RequestContext, lists: list[TaskIds] | None) -> frozenset[Task] | None:
    if lists is None:
        return None
    owned: set[Task] = set()
    for each in lists:
        async for number in context.each(each.partitions):
            owned.add((each.subtopology_id, number))
    return frozenset(owned)


def _with_creation(
    context: RequestContext, group_id: str, answer: HeartbeatAnswer
) -> HeartbeatAnswer:
    """Has the missing topics created; the answer names the obstacles to that."""
    topics = answer.to_create
    denied = (
        []
        if context.may_on_cluster(Operation.CREATE, noted=False)
        else [
            each.name
            for each in topics
            if not context.may(Operation.CREATE, ResourceType.TOPIC, each.name)
        ]
    )
    if denied:
        return _with_detail(answer, f"; Unauthorized to CREATE on topics {', '.join(denied)}.")
    internal_topics = context.groups.internal_topics
    error_seconds = (
        context.groups.context.streams_settings(group_id).heartbeat_interval_ms
        * HEARTBEATS_OF_AN_ERROR
        / 1000
    )
    internal_topics.create(
        topics, error_seconds, lambda request: context.forwarding.create_for(context, request)
    )
    errors = internal_topics.errors(each.name for each in topics)
    if not errors:
        return answer
    shown = ", ".join(f"{name} ({why})" for name, why in [*errors.items()][:MOST_ERRORS_TOLD])
    left = len(errors) - MOST_ERRORS_TOLD
    more = f" and {left} more" if left > 0 else ""
    return _with_detail(answer, f"; Creation failed: {shown}{more}.")


def _with_detail(answer: HeartbeatAnswer, detail: str) -> HeartbeatAnswer:
    return replace(
        answer,
        status=tuple(
            Status(each.code, each.detail + detail)
            if each.code is StatusCode.MISSING_INTERNAL_TOPICS
            else each
            for each in answer.status
        ),
    )


def _heartbeat_response(answer: HeartbeatAnswer) -> messages.StreamsGroupHeartbeatResponse:
    response = messages.StreamsGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        status=[
            messages.HeartbeatStatus(status_code=each.code, status_detail=each.detail)
            for each in answer.status
        ],
        endpoint_information_epoch=answer.endpoint_epoch,
    )
    if answer.tasks is not None:
        response.active_tasks = _task_ids(answer.tasks.active)
        response.standby_tasks = _task_ids(answer.tasks.standby)
        response.warmup_tasks = _task_ids(answer.tasks.warmup)
    if answer.endpoints is not None:
        response.partitions_by_user_endpoint = [_endpoint(each) for each in answer.endpoints]
    return response


def _task_ids(tasks: Iterable[Task]) -> list[TaskIds]:
    return [
        TaskIds(subtopology_id=subtopology_id, partitions=numbers)
        for subtopology_id, numbers in by_subtopology(tasks)
    ]


def _endpoint(endpoint: EndpointPartitions) -> messages.EndpointToPartitions:
    return messages.EndpointToPartitions(
        user_endpoint=UserEndpoint(host=endpoint.host, port=endpoint.port),
        active_partitions=_partitions(endpoint.active),
        standby_partitions=_partitions(endpoint.standby),
    )


def _partitions(partitions: Partitions) -> list[messages.StreamsGroupHeartbeatTopicPartition]:
    return [
        messages.StreamsGroupHeartbeatTopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in partitions
    ]


# description
async def streams_group_describe(
    context: RequestContext, request: messages.StreamsGroupDescribeRequest
) -> messages.StreamsGroupDescribeResponse:
    groups = await described_groups(
        context, request, messages.DescribedStreamsGroup, lambda group: _fill(context, group)
    )
    return messages.StreamsGroupDescribeResponse(groups=groups)


async def _described(context: RequestContext, group_id: str) -> DescribedGroup:
    """Raises BrokerError."""
    if not _is_served(context):
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION)
    check_group(context, group_id, Operation.DESCRIBE)
    found: DescribedGroup = await context.groups.describe_streams_group(group_id)
    for subtopology in found.subtopologies:
        await check_shown(context, _topics(subtopology), _NOT_SHOWN)
    return found


def _topics(subtopology: DescribedSubtopology) -> list[str]:
    internal = (*subtopology.changelogs, *subtopology.repartition_sources)
    return [*subtopology.sources, *subtopology.sinks, *(each.name for each in internal)]


async def _fill(context: RequestContext, group: messages.DescribedStreamsGroup) -> int:
    """About how many bytes that takes. Raises BrokerError."""
    found = await _described(context, group.group_id)
    group.group_state = found.state
    group.group_epoch, group.assignment_epoch = found.group_epoch, found.assignment_epoch
    size = 0
    if found.topology_epoch is not None:
        group.topology = messages.StreamsGroupDescribeTopology(
            epoch=found.topology_epoch,
            subtopologies=[_subtopology(each) for each in found.subtopologies],
        )
        size += BYTES_OF_A_TOPIC * sum(len(_topics(each)) for each in found.subtopologies)
    async for member, target in context.each(found.members):
        group.members.append(_member(member, target))
        tasks = sum(map(len, (*member.assigned, *target)))
        context.elements_left -= tasks // 10
        size += BYTES_OF_A_MEMBER + tasks * BYTES_OF_A_TASK
    return size


def _subtopology(described: DescribedSubtopology) -> messages.StreamsGroupDescribeSubtopology:
    return messages.StreamsGroupDescribeSubtopology(
        subtopology_id=described.subtopology_id,
        source_topics=described.sources,
        repartition_sink_topics=described.sinks,
        state_changelog_topics=_internal(described.changelogs),
        repartition_source_topics=_internal(described.repartition_sources),
    )


def _internal(topics: Sequence[InternalTopic]) -> list[TopicInfo]:
    return [
        TopicInfo(
            name=each.name,
            partitions=each.partitions,
            replication_factor=each.replication_factor,
            topic_configs=[TopicConfig(key=key, value=value) for key, value in each.configs],
        )
        for each in topics
    ]


def _member(member: StreamsGroupMember, target: Tasks) -> messages.StreamsGroupDescribeMember:
    endpoint = member.endpoint
    return messages.StreamsGroupDescribeMember(
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=(
            None if endpoint is None else UserEndpoint(host=endpoint[0], port=endpoint[1])
        ),
        client_tags=[ClientTag(key=key, value=value) for key, value in member.tags],
        assignment=_assignment(member.assigned.without_epochs()),
        target_assignment=_assignment(target),
    )


def _assignment(tasks: Tasks) -> messages.StreamsGroupDescribeAssignment:
    return messages.StreamsGroupDescribeAssignment(
        active_tasks=_task_ids(tasks.active),
        standby_tasks=_task_ids(tasks.standby),
        warmup_tasks=_task_ids(tasks.warmup),
    )
