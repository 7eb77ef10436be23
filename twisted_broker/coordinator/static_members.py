"""A static member that comes back: the same instance id under a new member id.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `StaticMembers`: the replacement in memory, its record, and the way back when that fails.

1. Of two members with one instance id the later one has the place; the earlier one is fenced.
2. In a stable group whose protocol stays the same nobody else notices: no rebalance, the generation
   stays. The answer waits for the record.

Source: Apache Kafka 4.3.1 `GroupMetadataManager.updateStaticMemberThenRebalanceOrCompleteJoin`
(KIP-345, 814).
"""

from __future__ import annotations

from dataclasses import replace

from twisted_broker.coordinator.classic_group import STABLE, ClassicGroup, Token
from twisted_broker.coordinator.effects import GroupEffects, StaticMemberReplaced, TimerKind
from twisted_broker.coordinator.group_requests import JoinAnswer, JoinRequest, SyncAnswer
from twisted_broker.coordinator.rebalance import Rebalance, generation_answer
from twisted_broker.wire.errors import ErrorCode


class StaticMembers:
    """The static members of one shard's groups."""

    __slots__ = ("_effects", "_rebalance")

    def __init__(self, effects: GroupEffects, rebalance: Rebalance) -> None:
        self._effects, self._rebalance = effects, rebalance

    def replace(
        self,
        group: ClassicGroup,
        request: JoinRequest,
        old_member_id: str,
        token: Token,
        wall_ms: int,
    ) -> None:
        """The instance of `old_member_id` joins as `request.new_member_id`."""
        assert request.instance_id is not None
        leader_before = group.leader or ""
        fenced, effects = group.members[old_member_id], self._effects
        effects.complete_join(
            group, fenced, JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, old_member_id)
        )
        effects.complete_sync(fenced, SyncAnswer(ErrorCode.FENCED_INSTANCE_ID))
        effects.cancel(group, TimerKind.SESSION, old_member_id)
        member = group.replace_static_member(
            request.instance_id, old_member_id, request.new_member_id
        )
        old = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        self._rebalance.gather_join(group, member, request, token)
        effects.restart_session(group, member)
        if group.state is STABLE and group.select_protocol() == group.protocol_name:
            effects.write(
                group,
                group.metadata(),
                StaticMemberReplaced(
                    request.instance_id,
                    old_member_id,
                    member.member_id,
                    token,
                    leader_before,
                    *old,
                    request.can_skip_assignment,
                ),
            )
        else:
            # Others wait for this place in a rebalance, or the generation's protocol has changed.
            self._rebalance.members_changed(
                group, wall_ms, f"static member {request.instance_id} came back"
            )

    def write_ended(
        self, group: ClassicGroup, purpose: StaticMemberReplaced, error: ErrorCode
    ) -> None:
        """The replacement's record is stored (NONE), or could not be: then the old id has its
        place back.
        """
        member = group.members.get(purpose.new_member_id)
        if member is None or member.awaiting_join is not purpose.token or group.state is not STABLE:
            return  # a rebalance began meanwhile, and answers
        if error:
            self._effects.complete_join(
                group,
                member,
                JoinAnswer(
                    error,
                    "",
                    group.generation,
                    group.protocol_type,
                    group.protocol_name,
                    purpose.leader_before,
                ),
            )
            group.update(
                member, purpose.protocols, purpose.rebalance_timeout_ms, purpose.session_timeout_ms
            )
            self._effects.cancel(group, TimerKind.SESSION, member.member_id)
            restored = group.replace_static_member(
                purpose.instance_id, member.member_id, purpose.old_member_id
            )
            self._effects.restart_session(group, restored)
        elif purpose.can_skip_assignment:
            is_leader = group.leader == member.member_id
            self._effects.complete_join(
                group,
                member,
                replace(
                    generation_answer(group, member, with_members=is_leader),
                    skip_assignment=is_leader,
                ),
            )
        else:
            # A client too old to skip the assignment must not think that it leads, or it would
            # assign again.
            self._effects.complete_join(
                group,
                member,
                replace(
                    generation_answer(group, member, with_members=False),
                    leader=purpose.leader_before,
                ),
            )
