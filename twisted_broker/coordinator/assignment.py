"""The assignment of a generation: from the leader's SyncGroup over its record to every member.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `Assignment`.

1. A generation becomes Stable only when the record of its assignment is stored: nobody acts on an
   assignment that the next coordinator would not know.
2. A record of an earlier generation changes nothing.

Source: Apache Kafka 4.3.1 `GroupMetadataManager.classicGroupSync` (KIP-559).
"""

from __future__ import annotations

from twisted_broker.coordinator.classic_group import (
    COMPLETING,
    DEAD,
    PREPARING,
    STABLE,
    ClassicGroup,
    ClassicGroupMember,
    Token,
)
from twisted_broker.coordinator.effects import AssignmentStored, GroupEffects
from twisted_broker.coordinator.group_requests import SyncAnswer, SyncRequest
from twisted_broker.coordinator.rebalance import Rebalance
from twisted_broker.wire.errors import BrokerError, ErrorCode


class Assignment:
    """The assignments of one shard's groups."""

    __slots__ = ("_effects", "_rebalance")

    def __init__(self, effects: GroupEffects, rebalance: Rebalance) -> None:
        self._effects, self._rebalance = effects, rebalance

    def sync(self, group: ClassicGroup, request: SyncRequest, token: Token) -> None:
        """Answers a SyncGroup, or lets it wait; the leader's is stored."""
        error = _sync_error(group, request)
        if error is not ErrorCode.NONE:
            self._effects.complete(token, SyncAnswer(error))
            return
        if group.state is PREPARING:
            self._effects.complete(token, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
            return
        member = group.members[request.member_id]
        group.pending_syncs.pop(request.member_id, None)
        if group.state is STABLE:
            self._effects.complete(
                token,
                SyncAnswer(
                    ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment
                ),
            )
        else:
            self._await_assignment(group, member, request, token)

    def _await_assignment(
        self, group: ClassicGroup, member: ClassicGroupMember, request: SyncRequest, token: Token
    ) -> None:
        before, member.awaiting_sync = member.awaiting_sync, token
        if before is not None:
            self._effects.complete(before, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        if group.leader == request.member_id:
            given = request.assignments
            assignment = {member_id: given.get(member_id, b"") for member_id in group.members}
            self._effects.write(
                group, group.metadata(assignment), AssignmentStored(group.generation, assignment)
            )

    def write_ended(
        self, group: ClassicGroup, purpose: AssignmentStored, error: ErrorCode, wall_ms: int
    ) -> None:
        """`error` NONE: the record is stored, the group becomes Stable. Else it rebalances."""
        if group.state is not COMPLETING or group.generation != purpose.generation:
            return
        if error:
            self._rebalance.propagate_assignment(group, {}, error)
            self._rebalance.prepare(
                group, wall_ms, f"the assignment could not be stored: {error.name}"
            )
        else:
            self._rebalance.propagate_assignment(group, purpose.assignment, error)
            group.transition_to(STABLE, wall_ms)


def _sync_error(group: ClassicGroup, request: SyncRequest) -> ErrorCode:
    if group.state is DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    try:
        group.validate_member(request.member_id, request.instance_id)
    except BrokerError as refusal:
        return refusal.code
    if request.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if request.protocol_type not in (
        None,
        group.protocol_type,
    ) or request.protocol_name not in (None, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE
