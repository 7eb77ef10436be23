"""The decision on a member that leaves a streams group or is removed.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `leave`, `remove_members`.

1. Removal frees the member's tasks; the others get them by the next heartbeat that computes a
   target.

Source: Apache Kafka 4.3.1 `GroupMetadataManager.streamsGroupLeave`, `streamsGroupFenceMember`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator

from twisted_broker.coordinator.member_epochs import member_of
from twisted_broker.coordinator.streams.decision import Environment, StreamsGroupDecision
from twisted_broker.coordinator.streams.group import StreamsGroup
from twisted_broker.coordinator.streams.records import epoch_record, member_tombstones
from twisted_broker.coordinator.streams.requests import HeartbeatAnswer, HeartbeatRequest


def leave(
    group: StreamsGroup, request: HeartbeatRequest, environment: Environment
) -> Generator[None, None, StreamsGroupDecision]:
    """The decision on a heartbeat of epoch -1. Its epoch before is not compared. Raises
    BrokerError.
    """
    member = member_of(group, request.member_id)
    decision = yield from remove_members(group, [member.member_id])
    if request.shutdown_application:
        decision.shutdown_member_id = member.member_id
    decision.answer = HeartbeatAnswer(member.member_id, request.member_epoch)
    return decision


def remove_members(
    group: StreamsGroup, member_ids: Collection[str]
) -> Generator[None, None, StreamsGroupDecision]:
    """Members of the group are gone, by their own wish or not: one decision."""
    yield from ()
    decision = StreamsGroupDecision()
    for member_id in member_ids:
        decision.records += member_tombstones(group.group_id, member_id)
        decision.end_timers(member_id)
    decision.records.append(
        epoch_record(
            group.group_id,
            group.epoch + 1,
            group.metadata_hash,
            group.validated_topology_epoch,
            group.assignment_configs,
        )
    )
    return decision
