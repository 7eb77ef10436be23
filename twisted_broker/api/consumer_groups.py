"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848): the wire's side of consumer groups.

1. They are served while group.version is finalised as 1 or more, and the broker has `consumer`
   among its protocols; else the answer is UNSUPPORTED_VERSION, in a well-formed answer, from which
   clients learn that they must use the classic protocol.
2. Permission first: READ on the group and DESCRIBE on every topic that is named. What
   can be said against a heartbeat without its group comes before who coordinates it.
3. Both wait until what they answer is committed.
4. The names that a member subscribes to are kept as the image has them, once.

Source: Apache Kafka 4.3.1 `KafkaApis.handleConsumerGroupHeartbeat`, `handleConsumerGroupDescribe`.
Not here: what a heartbeat decides (`coordinator/consumer`).
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted_broker.api.context import RequestContext
from twisted_broker.api.groups import BYTES_OF_A_MEMBER, check_group
from twisted_broker.api.modern_groups import check_shown, described_groups, message_of
from twisted_broker.cluster.features import serves_consumer_groups
from twisted_broker.coordinator.consumer.describe import (
    DescribedGroup,
    DescribedMember,
)
from twisted_broker.coordinator.consumer.partitions import Target, TopicIdPartition, by_topic
from twisted_broker.coordinator.consumer.requests import (
    MOST_NAMES,
    HeartbeatAnswer,
    HeartbeatRequest,
    check_request,
)
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseTopicPartitions,
    ConsumerGroupHeartbeatAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatTopicPartitions,
    DescribedConsumerGroup,
    Member,
)

FIRST_WITH_MEMBER_ID_OF_THE_CLIENT = 1
# One that subscribes to more can use a pattern.
BYTES_OF_A_PARTITION = 4
NOT_SHOWN = "The group has described topic(s) that the client is not authorized to describe."


def _is_served(context: RequestContext) -> bool:
    return (
        serves_consumer_groups(context.metadata.image)
        and context.groups.context.settings.consumer.is_served
    )


# heartbeat
async def consumer_group_heartbeat(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    try:
        return _heartbeat_response(await _heartbeat(context, request))
    except BrokerError as refusal:
        return ConsumerGroupHeartbeatResponse(
            error_code=refusal.code, error_message=message_of(refusal)
        )


async def _heartbeat(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> HeartbeatAnswer:
    if not _is_served(context):
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION)
    check_group(context, request.group_id, Operation.READ)
    names = request.subscribed_topic_names
    if names is not None:
        names = await checked_names(context, names)
    asked = HeartbeatRequest(
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        None if names is None else tuple(names),
        request.subscribed_topic_regex,
        request.server_assignor,
        None
        if request.topic_partitions is None
        else await _owned(context, request.topic_partitions),
        context.client_id or "",
        f"/{context.client_host}",
    )
    groups = context.groups
    check_request(
        asked,
        groups.context.settings.consumer.defaults.assignors,
        may_lack_member_id=context.version < FIRST_WITH_MEMBER_ID_OF_THE_CLIENT,
    )

    def may_describe(topic: str) -> bool:
        return context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic, noted=False)

    answer: HeartbeatAnswer = await groups.consumer_heartbeat(asked, may_describe)
    return answer


async def checked_names(context: RequestContext, names: list[str]) -> list[str]:
    """The names, as the image has them. Raises BrokerError."""
    topics = context.metadata.image.topics_by_name
    checked = []
    async for name in context.each(names):
        if not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        topic = topics.get(name)
        checked.append(name if topic is None else topic.name)
    if len(checked) > MOST_NAMES:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, f"A member subscribes to {MOST_NAMES} names at most."
        )
    return checked


async def _owned(
    context: RequestContext, topics: list[ConsumerGroupHeartbeatTopicPartitions]
) -> Target:
    owned: set[TopicIdPartition] = set()
    for topic in topics:
        topic_id = bytes(topic.topic_id)
        async for number in context.each(topic.partitions):
            owned.add((topic_id, number))
    return frozenset(owned)


def _heartbeat_response(answer: HeartbeatAnswer) -> ConsumerGroupHeartbeatResponse:
    response = ConsumerGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
    )
    if answer.assignment is not None:
        response.assignment = ConsumerGroupHeartbeatAssignment(
            topic_partitions=[
                ConsumerGroupHeartbeatTopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in by_topic(answer.assignment)
            ]
        )
    return response


# description
async def consumer_group_describe(
    context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    groups = await described_groups(
        context, request, DescribedConsumerGroup, lambda group: _fill(context, group)
    )
    return ConsumerGroupDescribeResponse(groups=groups)


async def _described(context: RequestContext, group_id: str) -> DescribedGroup:
    """Raises BrokerError."""
    if not _is_served(context):
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION)
    check_group(context, group_id, Operation.DESCRIBE)
    found: DescribedGroup = await context.groups.describe_consumer_group(group_id)
    seen: set[str] = set()
    for member in found.members:
        seen.update(name for _, name, _ in (*member.assignment, *member.target))
    await check_shown(context, seen, NOT_SHOWN)
    return found


async def _fill(context: RequestContext, group: DescribedConsumerGroup) -> int:
    """About how many bytes that takes. Raises BrokerError."""
    found = await _described(context, group.group_id)
    group.group_state, group.assignor_name = found.state, found.assignor
    group.group_epoch, group.assignment_epoch = found.group_epoch, found.assignment_epoch
    size = 0
    async for each in context.each(found.members):
        group.members.append(_member(each))
        partitions = sum(len(numbers) for _, _, numbers in (*each.assignment, *each.target))
        names = sum(map(len, each.member.names))
        context.elements_left -= partitions // 10
        size += BYTES_OF_A_MEMBER + names + partitions * BYTES_OF_A_PARTITION
    return size


def _member(described: DescribedMember) -> Member:
    member = described.member
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.names),
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(described.assignment),
        target_assignment=_assignment(described.target),
        member_type=described.member_type,
    )


def _assignment(
    topics: Iterable[tuple[bytes, str, list[int]]],
) -> ConsumerGroupDescribeResponseAssignment:
    return ConsumerGroupDescribeResponseAssignment(
        topic_partitions=[
            ConsumerGroupDescribeResponseTopicPartitions(
                topic_id=topic_id, topic_name=name, partitions=numbers
            )
            for topic_id, name, numbers in topics
        ]
    )
