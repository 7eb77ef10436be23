"""Which member of the group sends a heartbeat, and whether it may.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `find_member`, `find_classic_member`, `check_member`.

1. An epoch that is not the member's fences it, except the previous one with partitions that are all
   its own: then an answer was lost.
2. Epoch 0 is never fenced: the member keeps its epoch, target and partitions.
3. An instance id has one holder. Another member takes its place only after it left for a while
   (epoch -2), or where one of the two is of the classic protocol.

Source: Apache Kafka 4.3.1 `GroupMetadataManager.getOrMaybeSubscribeDynamicConsumerGroupMember`,
`getOrMaybeSubscribeStaticConsumerGroupMember`, `throwIfConsumerGroupMemberEpochIsInvalid`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.member import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupMember,
)
from twisted_broker.coordinator.consumer.requests import HeartbeatRequest
from twisted_broker.wire.errors import BrokerError, ErrorCode


class Found(NamedTuple):
    """`stored`: the member as the group has it, None if it is new; `member`: the same under the id
    of the request; `displaced`: one that had this id, when it takes over an instance from another.
    """

    stored: ConsumerGroupMember | None
    member: ConsumerGroupMember
    displaced: ConsumerGroupMember | None = None

    @property
    def is_replacement(self) -> bool:
        return self.stored is not None and self.stored is not self.member


def find_member(group: ConsumerGroup, request: HeartbeatRequest, max_size: int) -> Found:
    """Raises BrokerError."""
    check_size(group, request.member_id, max_size)
    if request.instance_id is None:
        return _find_dynamic(group, request)
    return _find_static(group, request, request.instance_id)


def check_size(group: ConsumerGroup, member_id: str, max_size: int) -> None:
    """Raises GROUP_MAX_SIZE_REACHED."""
    if len(group.members) >= max_size and member_id not in group.members:
        raise BrokerError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {max_size} members.",
        )


def find_classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, is_new_id: bool
) -> Found:
    """Who sends a JoinGroup. `is_new_id`: the request had none. Raises BrokerError."""
    stored = group.members.get(member_id)
    if instance_id is None:
        return Found(stored, stored or ConsumerGroupMember(member_id))
    if not is_new_id:
        holder = check_member(group, member_id, instance_id)
        return Found(holder, holder)
    holder_id = group.static.get(instance_id)
    if holder_id is None:
        return Found(stored, stored or ConsumerGroupMember(member_id))
    return _replacement(group, group.members[holder_id], member_id)


def _find_dynamic(group: ConsumerGroup, request: HeartbeatRequest) -> Found:
    stored = group.members.get(request.member_id)
    if stored is None:
        if request.member_epoch != JOIN_EPOCH:
            raise _unknown(group, request.member_id)
        return Found(None, ConsumerGroupMember(request.member_id))
    _check_epoch(stored, request)
    return Found(stored, stored)


def _find_static(group: ConsumerGroup, request: HeartbeatRequest, instance_id: str) -> Found:
    holder_id = group.static.get(instance_id)
    if holder_id is None:
        if request.member_epoch != JOIN_EPOCH:
            raise _unknown(group, request.member_id)
        stored = group.members.get(request.member_id)
        return Found(stored, stored or ConsumerGroupMember(request.member_id))
    holder = group.members[holder_id]
    if request.member_epoch != JOIN_EPOCH:
        _check_instance(holder, request.member_id, instance_id)
        _check_epoch(holder, request)
        return Found(holder, holder)
    if holder.epoch != LEAVE_STATIC_EPOCH and holder.classic is None:
        raise BrokerError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {instance_id} cannot join the "
            "group because the instance id is owned by another member.",
        )
    return _replacement(group, holder, request.member_id)


def _replacement(group: ConsumerGroup, holder: ConsumerGroupMember, member_id: str) -> Found:
    successor = replace(holder, member_id=member_id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
    before = group.members.get(member_id)
    return Found(holder, successor, None if before is holder else before)


def check_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> ConsumerGroupMember:
    """The member of that name. Its epoch is not compared. Raises BrokerError."""
    if instance_id is None:
        member = group.members.get(member_id)
        if member is None:
            raise _unknown(group, member_id)
        return member
    holder_id = group.static.get(instance_id)
    if holder_id is None:
        raise _unknown(group, member_id)
    _check_instance(group.members[holder_id], member_id, instance_id)
    return group.members[holder_id]


def _check_instance(holder: ConsumerGroupMember, member_id: str, instance_id: str) -> None:
    if holder.member_id != member_id:
        raise BrokerError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{holder.member_id}.",
        )


def _check_epoch(member: ConsumerGroupMember, request: HeartbeatRequest) -> None:
    received = request.member_epoch
    if received in (JOIN_EPOCH, member.epoch):
        return
    if (
        received < member.epoch
        and received == member.previous_epoch
        and request.owned is not None
        and all(each in member.assigned for each in request.owned)
    ):
        return
    relation = "greater" if received > member.epoch else "smaller"
    raise BrokerError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({received}) than the one known "
        f"by the group coordinator ({member.epoch}). The member must abandon all its partitions "
        "and rejoin.",
    )


def _unknown(group: ConsumerGroup, member_id: str) -> BrokerError:
    return BrokerError(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"Member {member_id} is not a member of group {group.group_id}.",
    )
