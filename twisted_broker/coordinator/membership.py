"""Who is a member of a classic group: join, heartbeat, leave, the end of a session.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `Membership`.

1. A new dynamic member counts when it comes back with the id it was given (from JoinGroup v4 on).
2. An instance id that is taken means that its member comes back (`static_members.py`).
3. `group.max.size` refuses new members; in a group that is larger already, it refuses those that
   join last. So does `MOST_METADATA_BYTES`, of all members together. At most `MOST_PENDING` ids
   wait for their members.

Source: Apache Kafka 4.3.1 `GroupMetadataManager`, methods `classicGroup*` (KIP-394). Not here:
finding the group, checks that need no group (`group_coordinator.py`); groups of KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted_broker.coordinator.classic_group import (
    COMPLETING,
    DEAD,
    EMPTY,
    PREPARING,
    STABLE,
    ClassicGroup,
    ClassicGroupMember,
    Token,
    size_of,
)
from twisted_broker.coordinator.effects import GroupEffects, TimerKind
from twisted_broker.coordinator.group_requests import JoinAnswer, JoinRequest, LeaveAnswer
from twisted_broker.coordinator.rebalance import GroupSettings, Rebalance, generation_answer
from twisted_broker.coordinator.static_members import StaticMembers
from twisted_broker.wire.errors import BrokerError, ErrorCode

# Kafka's CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
# The leader's answer holds it all, for one protocol: about a millisecond of one turn for each MiB.
MOST_METADATA_BYTES = 32 << 20
MOST_PENDING = 3_000


class Membership:
    """The membership of one shard's groups. `settings` gives those of this moment."""

    __slots__ = ("_effects", "_rebalance", "_settings", "_static_members")

    def __init__(
        self,
        effects: GroupEffects,
        rebalance: Rebalance,
        static_members: StaticMembers,
        settings: Callable[[], GroupSettings],
    ) -> None:
        self._effects, self._rebalance = effects, rebalance
        self._static_members, self._settings = static_members, settings

    # join
    def join(self, group: ClassicGroup, request: JoinRequest, token: Token, wall_ms: int) -> None:
        """Answers a JoinGroup, or lets it wait for the generation."""
        member_id = request.member_id
        if not self._has_room_for(group, member_id) or not _has_bytes_for(group, request):
            was_member = member_id in group.members
            self._rebalance.remove_member(group, member_id, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._refuse(token, ErrorCode.GROUP_MAX_SIZE_REACHED)
            if was_member:  # its partitions go to the others
                self._rebalance.members_changed(group, wall_ms, "a member's metadata is too large")
            else:
                self._rebalance.maybe_complete_join(group, wall_ms)
        elif group.state is DEAD:
            self._refuse(token, ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id)
        elif not group.supports_protocols(request.protocol_type, request.protocols):
            self._refuse(token, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        elif not member_id:
            self._join_without_id(group, request, token, wall_ms)
        elif member_id in group.pending_joins and request.instance_id is None:
            self._add_member(group, request, member_id, token, wall_ms)
        else:
            self._join_with_id(group, request, token, wall_ms)

    def _has_room_for(self, group: ClassicGroup, member_id: str) -> bool:
        limit = self._settings().max_size
        member = group.members.get(member_id)
        if group.state is PREPARING:
            # Joins are counted, not members: in a group that is too large, the first to join stay.
            return (
                member is not None and member.awaiting_join is not None
            ) or group.awaiting_join_count < limit
        if group.state in (COMPLETING, STABLE):
            return member is not None or len(group.members) < limit
        return True

    def _refuse(self, token: Token, error: ErrorCode, member_id: str = "") -> None:
        self._effects.complete(token, JoinAnswer(error, member_id))

    def _join_without_id(
        self, group: ClassicGroup, request: JoinRequest, token: Token, wall_ms: int
    ) -> None:
        if request.instance_id is not None:
            old_member_id = group.static_members.get(request.instance_id)
            if old_member_id is not None:
                self._static_members.replace(group, request, old_member_id, token, wall_ms)
            else:
                self._add_member(group, request, request.new_member_id, token, wall_ms)
        elif request.requires_known_member_id:
            # KIP-394: a member counts only when it comes back with its id, so that a join whose
            # answer was lost and that is sent again does not leave a second, silent member.
            if len(group.pending_joins) >= MOST_PENDING:
                self._refuse(token, ErrorCode.GROUP_MAX_SIZE_REACHED)
                return
            group.add_pending_join(request.new_member_id)
            self._effects.schedule(
                group, TimerKind.SESSION, request.session_timeout_ms, request.new_member_id
            )
            self._refuse(token, ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id)
        else:
            self._add_member(group, request, request.new_member_id, token, wall_ms)

    def _join_with_id(
        self, group: ClassicGroup, request: JoinRequest, token: Token, wall_ms: int
    ) -> None:
        try:
            group.validate_member(request.member_id, request.instance_id)
        except BrokerError as refusal:
            self._refuse(token, refusal.code, request.member_id)
            return
        member = group.members[request.member_id]
        unchanged = list(member.protocols.items()) == list(request.protocols.items())
        is_leader = group.leader == request.member_id
        if (group.state is COMPLETING and unchanged) or (
            group.state is STABLE and unchanged and not is_leader
        ):
            # The answer to its last join was lost, or nothing changed for it: it gets the same
            # generation. A leader of a stable group rejoins to have the group assigned again.
            self._effects.complete(token, generation_answer(group, member, with_members=is_leader))
        else:
            self._rebalance.gather_join(group, member, request, token)
            reason = f"member {request.member_id} joined again"
            self._rebalance.prepare_or_complete_join(group, wall_ms, reason)

    def _add_member(
        self, group: ClassicGroup, request: JoinRequest, member_id: str, token: Token, wall_ms: int
    ) -> None:
        member = ClassicGroupMember(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
        )
        member.is_new, member.awaiting_join = True, token
        # Prolongs the initial delay (see `Rebalance.join_expired`).
        if group.state is PREPARING and group.previous_state is EMPTY:
            group.new_member_added = True
        group.add(member, request.protocol_type)
        # A new member waits for the whole rebalance; its session starts with its first answer.
        self._effects.schedule(group, TimerKind.SESSION, NEW_MEMBER_JOIN_TIMEOUT_MS, member_id)
        self._rebalance.prepare_or_complete_join(group, wall_ms, f"member {member_id} joined")

    # heartbeat, commit
    def heartbeat(
        self, group: ClassicGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        if group.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            group.validate_member(member_id, instance_id)
        except BrokerError as refusal:
            return refusal.code
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._effects.restart_session(group, group.members[member_id])
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is PREPARING else ErrorCode.NONE

    def offsets_committed(self, group: ClassicGroup, member_id: str) -> None:
        """A commit that was accepted counts as a heartbeat."""
        member = group.members.get(member_id)
        if member is not None and group.state in (STABLE, PREPARING):
            self._effects.restart_session(group, member)

    # leave, session
    def leave(
        self, group: ClassicGroup, leavers: list[tuple[str, str | None]], wall_ms: int
    ) -> list[LeaveAnswer]:
        """Removes (member id, instance id) each; an empty member id with an instance id means
        whoever holds it. Raises BrokerError.
        """
        if group.state is DEAD:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        answers = [
            LeaveAnswer(member_id, instance_id, self._leave_one(group, member_id, instance_id))
            for member_id, instance_id in leavers
        ]
        gone = [each for each in answers if each.error is ErrorCode.NONE]
        if gone:
            first = gone[0].member_id or gone[0].instance_id
            who = (
                f"member {first}" if len(gone) == 1 else f"member {first} and {len(gone) - 1} more"
            )
            self._rebalance.members_changed(group, wall_ms, f"{who} left")
        return answers

    def _leave_one(self, group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
        if not member_id and instance_id is not None:
            member_id = group.static_members.get(instance_id, "")
        # A pending id is no member yet: there is nothing to validate.
        if member_id not in group.pending_joins:
            try:
                group.validate_member(member_id, instance_id)
            except BrokerError as refusal:
                return refusal.code
        self._rebalance.remove_member(group, member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return ErrorCode.NONE

    def session_expired(self, group: ClassicGroup, member_id: str, wall_ms: int) -> None:
        """Removes a member that was silent, or a pending one that never came back."""
        member = group.members.get(member_id)
        if group.state is DEAD or (member is None and member_id not in group.pending_joins):
            return
        # It waits for an answer of ours: a client sends no heartbeat then.
        if member is not None and member.has_satisfied_heartbeat():
            self._effects.restart_session(group, member)
            return
        self._rebalance.remove_member(group, member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if member is None:
            self._rebalance.maybe_complete_join(group, wall_ms)
        else:
            reason = f"the session of member {member_id} expired"
            self._rebalance.members_changed(group, wall_ms, reason)


def _has_bytes_for(group: ClassicGroup, request: JoinRequest) -> bool:
    before = group.members.get(request.member_id)
    held = group.metadata_bytes - (size_of(before.protocols) if before is not None else 0)
    return held + size_of(request.protocols) <= MOST_METADATA_BYTES
