"""ShareGroupHeartbeat, ShareGroupDescribe, DescribeShareGroupOffsets, AlterShareGroupOffsets,
DeleteShareGroupOffsets (KIP-932): the wire's side of share groups and of their states.

1. They are served while share.version is finalised as 1 or more; else the answer is
   UNSUPPORTED_VERSION, in a well-formed answer.
2. Permission first: READ on the group and DESCRIBE on every topic that a heartbeat names; DESCRIBE
   on the group, and on the topics that are shown; READ, for deleting DELETE, on the group and READ
   on each topic whose offsets change. What can be said against a heartbeat without its group comes
   before who coordinates it.
3. All wait until what they answer is committed. The offsets are the share coordinator's.
4. The lag is -1 where there is no start offset, or the end of the log is not known. Describing
   offsets by their topics asks the share coordinator alone, whatever kind of group that is.

Source: Apache Kafka 4.3.1 `KafkaApis.handleShareGroupHeartbeat`, `handleShareGroupDescribe`,
`handleDescribeShareGroupOffsetsRequest`, `handleAlterShareGroupOffsetsRequest`,
`handleDeleteShareGroupOffsetsRequest`; `GroupCoordinatorService`. Not here: what is decided
(`coordinator/share`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from twisted.internet.defer import Deferred

from twisted_broker.api.consumer_groups import (
    BYTES_OF_A_PARTITION,
    NOT_SHOWN,
    checked_names,
)
from twisted_broker.api.context import RequestContext
from twisted_broker.api.groups import BYTES_OF_A_MEMBER, check_group
from twisted_broker.api.modern_groups import check_shown, described_groups, message_of
from twisted_broker.cluster.features import serves_share_groups
from twisted_broker.coordinator.consumer.partitions import by_topic
from twisted_broker.coordinator.consumer.requests import HeartbeatAnswer
from twisted_broker.coordinator.share.describe import DescribedShareGroup as Described
from twisted_broker.coordinator.share.requests import (
    MOST_ID_CHARACTERS,
    ShareHeartbeatRequest,
    check_request,
)
from twisted_broker.coordinator.share_state.values import SharePartitionKey, StateSummary
from twisted_broker.interfaces import TopicPartition
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    DescribedShareGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
    ShareGroupDescribeAssignment,
    ShareGroupDescribeMember,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupDescribeTopicPartitions,
    ShareGroupHeartbeatAssignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatTopicPartitions,
)

NO_STATE = "There is no offset information to delete."
_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _check_served(context: RequestContext) -> None:
    if not serves_share_groups(context.metadata.image):
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION)


# heartbeat
async def share_group_heartbeat(
    context: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse:
    try:
        return _heartbeat_response(await _heartbeat(context, request))
    except BrokerError as refusal:
        return ShareGroupHeartbeatResponse(
            error_code=refusal.code, error_message=message_of(refusal)
        )


async def _heartbeat(
    context: RequestContext, request: ShareGroupHeartbeatRequest
) -> HeartbeatAnswer:
    _check_served(context)
    check_group(context, request.group_id, Operation.READ)
    if not 0 < len(request.member_id) <= MOST_ID_CHARACTERS:
        raise BrokerError(ErrorCode.INVALID_REQUEST)
    names = request.subscribed_topic_names
    if names is not None:
        names = await checked_names(context, names)
    asked = ShareHeartbeatRequest(
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.rack_id,
        None if names is None else tuple(names),
        context.client_id or "",
        f"/{context.client_host}",
    )
    check_request(asked)
    answer: HeartbeatAnswer = await context.groups.share_heartbeat(asked)
    return answer


def _heartbeat_response(answer: HeartbeatAnswer) -> ShareGroupHeartbeatResponse:
    response = ShareGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
    )
    if answer.assignment is not None:
        response.assignment = ShareGroupHeartbeatAssignment(
            topic_partitions=[
                ShareGroupHeartbeatTopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in by_topic(answer.assignment)
            ]
        )
    return response


# description
async def share_group_describe(
    context: RequestContext, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    groups = await described_groups(
        context, request, DescribedShareGroup, lambda group: _fill(context, group)
    )
    return ShareGroupDescribeResponse(groups=groups)


async def _described(context: RequestContext, group_id: str) -> Described:
    """Raises BrokerError."""
    _check_served(context)
    check_group(context, group_id, Operation.DESCRIBE)
    found: Described = await context.groups.describe_share_group(group_id)
    seen = {name for member in found.members for _, name, _ in member.assignment}
    await check_shown(context, seen, NOT_SHOWN)
    return found


async def _fill(context: RequestContext, group: DescribedShareGroup) -> int:
    """About how many bytes that takes. Raises BrokerError."""
    found = await _described(context, group.group_id)
    group.group_state, group.assignor_name = found.state, found.assignor
    group.group_epoch, group.assignment_epoch = found.group_epoch, found.assignment_epoch
    size = 0
    async for each in context.each(found.members):
        member = each.member
        group.members.append(
            ShareGroupDescribeMember(
                member_id=member.member_id,
                rack_id=member.rack_id,
                member_epoch=member.epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=list(member.names),
                assignment=ShareGroupDescribeAssignment(
                    topic_partitions=[
                        ShareGroupDescribeTopicPartitions(
                            topic_id=topic_id, topic_name=name, partitions=numbers
                        )
                        for topic_id, name, numbers in each.assignment
                    ]
                ),
            )
        )
        partitions = sum(len(numbers) for _, _, numbers in each.assignment)
        context.elements_left -= partitions // 10
        size += BYTES_OF_A_MEMBER + sum(map(len, member.names)) + partitions * BYTES_OF_A_PARTITION
    return size


# offsets
async def describe_share_group_offsets(
    context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    groups = []
    for asked in request.groups:
        group = DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id)
        try:
            await _describe_offsets(context, asked, group)
        except BrokerError as refusal:
            group.error_code, group.error_message = refusal.code, message_of(refusal)
        groups.append(group)
    return DescribeShareGroupOffsetsResponse(groups=groups)


async def _describe_offsets(
    context: RequestContext,
    asked: DescribeShareGroupOffsetsRequestGroup,
    group: DescribeShareGroupOffsetsResponseGroup,
) -> None:
    """Raises BrokerError."""
    _check_served(context)
    check_group(context, asked.group_id, Operation.DESCRIBE)
    image = context.metadata.image
    wanted: dict[str, Iterable[int]] = {}
    if asked.topics is None:
        states = context.groups.share_states(asked.group_id)
        for topic_id, state in states.initialized.items():
            topic = image.topics_by_id.get(topic_id)
            if topic is not None and context.may(
                Operation.DESCRIBE, ResourceType.TOPIC, topic.name
            ):
                wanted[topic.name] = sorted(state.partitions)
    else:
        wanted = {each.topic_name: each.partitions for each in asked.topics}
    waiting = []
    for name, numbers in wanted.items():
        topic = image.topics_by_name.get(name)
        may_see = context.may(Operation.DESCRIBE, ResourceType.TOPIC, name)
        result = DescribeShareGroupOffsetsResponseTopic(topic_name=name)
        if topic is not None and may_see:
            result.topic_id = topic.id
        async for number in context.each(numbers):
            partition = DescribeShareGroupOffsetsResponsePartition(
                partition_index=number, start_offset=-1
            )
            if not may_see:
                _refuse(partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            elif topic is not None:
                key = SharePartitionKey(asked.group_id, topic.id, number)
                waiting.append((name, partition, _summary(context, key)))
            result.partitions.append(partition)
        group.topics.append(result)
    begun: dict[
        TopicPartition, tuple[DescribeShareGroupOffsetsResponsePartition, StateSummary]
    ] = {}
    for name, partition, summary in waiting:
        try:
            found = await summary
        except BrokerError as refusal:
            _refuse(partition, refusal.code)
            continue
        partition.start_offset, partition.leader_epoch = found.start_offset, found.leader_epoch
        if found.start_offset >= 0 and found.delivery_complete_count >= 0:
            begun[TopicPartition(name, partition.partition_index)] = partition, found
    end_offsets = context.groups.context.end_offsets
    known = {} if end_offsets is None else await end_offsets.of(begun)
    for named, end_offset in known.items():
        partition, found = begun[named]
        partition.lag = end_offset - found.start_offset - found.delivery_complete_count


def _summary(context: RequestContext, key: SharePartitionKey) -> Deferred[StateSummary]:
    persister = context.groups.context.persister
    if persister is None:
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return persister.summary(key)


def _refuse(partition: DescribeShareGroupOffsetsResponsePartition, error: ErrorCode) -> None:
    partition.error_code, partition.error_message = error, error.sentence


async def alter_share_group_offsets(
    context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    response = AlterShareGroupOffsetsResponse()
    try:
        _check_served(context)
        check_group(context, request.group_id, Operation.READ)
        starts: dict[str, Mapping[int, int]] = {}
        for topic in request.topics:
            error = ErrorCode.NONE
            if not context.may(Operation.READ, ResourceType.TOPIC, topic.topic_name):
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif topic.topic_name not in context.metadata.image.topics_by_name:
                error = _UNKNOWN
            numbers = {each.partition_index: each.start_offset for each in topic.partitions}
            context.elements_left -= len(numbers)
            if error is ErrorCode.NONE:
                starts[topic.topic_name] = numbers
            else:
                response.responses.append(
                    _altered(context, topic.topic_name, dict.fromkeys(numbers, error))
                )
        for answer in await context.groups.alter_share_offsets(request.group_id, starts):
            assert answer.partitions is not None
            response.responses.append(_altered(context, answer.name, answer.partitions))
    except BrokerError as refusal:
        return AlterShareGroupOffsetsResponse(
            error_code=refusal.code, error_message=refusal.message
        )
    return response


def _altered(
    context: RequestContext, name: str, errors: Mapping[int, ErrorCode]
) -> AlterShareGroupOffsetsResponseTopic:
    result = AlterShareGroupOffsetsResponseTopic(topic_name=name)
    topic = context.metadata.image.topics_by_name.get(name)
    if topic is not None:
        result.topic_id = topic.id
    result.partitions = [
        AlterShareGroupOffsetsResponsePartition(
            partition_index=number,
            error_code=error,
            error_message=error.sentence if error else None,
        )
        for number, error in errors.items()
    ]
    return result


async def delete_share_group_offsets(
    context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    response = DeleteShareGroupOffsetsResponse()
    try:
        _check_served(context)
        check_group(context, request.group_id, Operation.DELETE)
        names: list[str] = []
        async for topic in context.each(request.topics):
            if context.may(Operation.READ, ResourceType.TOPIC, topic.topic_name):
                names.append(topic.topic_name)
            else:
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                response.responses.append(_deleted(topic.topic_name, error, error.sentence))
        await _delete(context, request.group_id, names, response)
    except BrokerError as refusal:
        return DeleteShareGroupOffsetsResponse(
            error_code=refusal.code, error_message=refusal.message
        )
    return response


async def _delete(
    context: RequestContext,
    group_id: str,
    names: Sequence[str],
    response: DeleteShareGroupOffsetsResponse,
) -> None:
    for answer in await context.groups.delete_share_offsets(group_id, names):
        message = None
        if answer.error is not ErrorCode.NONE:
            has_no_state = answer.topic_id is not None and answer.error is _UNKNOWN
            message = NO_STATE if has_no_state else answer.error.sentence
        result = _deleted(answer.name, answer.error, message)
        if answer.error is ErrorCode.NONE and answer.topic_id is not None:
            result.topic_id = answer.topic_id
        response.responses.append(result)


def _deleted(
    name: str, error: ErrorCode, message: str | None
) -> DeleteShareGroupOffsetsResponseTopic:
    return DeleteShareGroupOffsetsResponseTopic(
        topic_name=name, error_code=error, error_message=message
    )
