"""The decision on a member that leaves or is removed. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `leave`, `leave_several`, `remove_members`.

1. Removal frees the member's partitions; the others get them by the next heartbeat that computes a
   target.
2. A static member that leaves for a while (epoch -2) keeps its partitions and its target until its
   session ends, which runs on.
3. Where the last one of the consumer protocol goes, the group becomes classic (`migration.py`).

Source: Apache Kafka 4.3.1 `GroupMetadataManager.consumerGroupLeave`, `consumerGroupFenceMembers`,
`classicGroupLeaveToConsumerGroup`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import replace

from twisted_broker.coordinator.classic_group import ClassicGroup
from twisted_broker.coordinator.consumer.decision import Environment
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.member import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    NO_PARTITIONS,
    ConsumerGroupMember,
)
from twisted_broker.coordinator.consumer.membership import check_member
from twisted_broker.coordinator.consumer.migration import downgrade
from twisted_broker.coordinator.consumer.records import (
    epoch_record,
    member_tombstones,
    pattern_tombstone,
)
from twisted_broker.coordinator.consumer.requests import HeartbeatAnswer, HeartbeatRequest
from twisted_broker.coordinator.group_decision import Decision, GroupTimer, TimerChange
from twisted_broker.coordinator.group_requests import LeaveAnswer
from twisted_broker.wire.errors import BrokerError, ErrorCode


def leave(
    group: ConsumerGroup, request: HeartbeatRequest, environment: Environment
) -> Generator[None, None, Decision]:
    """The decision on a heartbeat of epoch -1 or -2, in steps. Raises BrokerError."""
    member = check_member(group, request.member_id, request.instance_id)
    if request.member_epoch == LEAVE_STATIC_EPOCH:
        decision = _leave_for_a_while(group, member)
    else:
        decision = yield from remove_members(group, [member.member_id], environment)
    decision.answer = HeartbeatAnswer(member.member_id, request.member_epoch)
    return decision


def _leave_for_a_while(group: ConsumerGroup, member: ConsumerGroupMember) -> Decision:
    left = replace(
        member,
        epoch=LEAVE_STATIC_EPOCH,
        assigned=dict.fromkeys(member.assigned, JOIN_EPOCH),
        pending=NO_PARTITIONS,
    )
    return Decision(
        [left.assignment_record(group.group_id)],
        timers=[TimerChange(GroupTimer.REBALANCE, member.member_id)],
    )


def leave_several(
    group: ConsumerGroup, leavers: Sequence[tuple[str, str | None]], environment: Environment
) -> Generator[None, None, Decision]:
    """The decision on a LeaveGroup, (member id, instance id) each: an empty member id means the
    member that holds the instance. Its answer has an error for each.
    """
    answers = []
    gone: dict[str, None] = {}
    for member_id, instance_id in leavers:
        found_id = member_id or group.static.get(instance_id or "", "")
        try:
            gone[check_member(group, found_id, instance_id).member_id] = None
        except BrokerError as refusal:
            answers.append(LeaveAnswer(member_id, instance_id, refusal.code))
        else:
            answers.append(LeaveAnswer(member_id, instance_id, ErrorCode.NONE))
    decision = Decision()
    if gone:
        decision = yield from remove_members(group, gone, environment)
    decision.answer = answers
    return decision


def remove_members(
    group: ConsumerGroup, member_ids: Collection[str], environment: Environment
) -> Generator[None, None, Decision]:
    """Members of the group are gone, by their own wish or not: one decision, in steps."""
    successor = yield from downgrade(group, member_ids, environment)
    if successor is not None:
        return _ended(group, successor)
    decision = Decision(metadata_mark=group.metadata_mark())
    subscriptions = group.subscriptions.changed(None, None)
    for member_id in member_ids:
        member = group.members[member_id]
        subscriptions.change(member, None)
        decision.records += member_tombstones(group.group_id, member_id)
        if member.pattern and member.pattern not in subscriptions.patterns:
            decision.records.append(pattern_tombstone(group.group_id, member.pattern))
        decision.end_timers(member_id)
    metadata_hash = yield from environment.hashes.of_group(
        environment.image, subscriptions.topics(group.resolved())
    )
    decision.records.append(epoch_record(group.group_id, group.epoch + 1, metadata_hash))
    return decision


def _ended(group: ConsumerGroup, successor: ClassicGroup) -> Decision:
    """The members that stay go on in the classic group, and get the others' partitions."""
    decision = Decision(list(group.tombstones()), successor=successor, must_rebalance=True)
    for member_id in group.members:
        decision.end_timers(member_id)
    return decision
