"""A classic group's rebalance: gather the members' joins, start a generation, hand out its
assignment. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `Rebalance`: when a rebalance begins, how long it waits for members, when it ends, and how a
member leaves the group in it.

      prepare --> joins are gathered --> generation starts --> leader's SyncGroup --> assignment
                  (join timer)                                 (sync timer)

1. Every waiting request is answered exactly once: by completion, by an error when its member goes,
   or when the group is unloaded.
2. Every member and every pending one has a session timer running.
3. While PreparingRebalance the join timer runs; while a generation has members that did not sync,
   the sync timer.
4. At the initial delay's end new arrivals prolong it, up to the rebalance timeout altogether.

Source: Apache Kafka 4.3.1 `GroupMetadataManager`, methods `*ClassicGroup*` (KIP-62, 134, 559).
Not here: requests (`membership.py`, `assignment.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twisted_broker.coordinator.classic_group import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    ClassicGroup,
    ClassicGroupMember,
    Token,
)
from twisted_broker.coordinator.effects import GroupEffects, GroupEmptied, TimerKind
from twisted_broker.coordinator.group_requests import JoinAnswer, JoinRequest, SyncAnswer
from twisted_broker.wire.errors import ErrorCode

# A generation begins for all members in one turn, about 10 us each; their answers follow.
MOST_MEMBERS = 3_000


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings that decide in a group."""

    initial_rebalance_delay_ms: int = 3000
    max_size: int = MOST_MEMBERS


def generation_answer(
    group: ClassicGroup, member: ClassicGroupMember, with_members: bool
) -> JoinAnswer:
    """The JoinGroup answer of a member of the current generation."""
    return JoinAnswer(
        member_id=member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        members=group.member_list() if with_members else (),
    )


class Rebalance:
    """The rebalances of one shard's groups. `settings` gives those of this moment."""

    __slots__ = ("_effects", "_settings")

    def __init__(self, effects: GroupEffects, settings: Callable[[], GroupSettings]) -> None:
        self._effects, self._settings = effects, settings

    # joins
    def prepare_or_complete_join(self, group: ClassicGroup, wall_ms: int, reason: str) -> None:
        """A member joined: begins a rebalance, or ends the running one if it was the last to
        come.
        """
        if group.can_rebalance():
            self.prepare(group, wall_ms, reason)
        else:
            self.maybe_complete_join(group, wall_ms)

    def prepare(self, group: ClassicGroup, wall_ms: int, reason: str) -> None:
        """Begins a rebalance: PreparingRebalance until all members have joined. `reason`: for
        the log.
        """
        effects = self._effects
        # Whoever waits in SyncGroup must join again.
        if group.state is COMPLETING:
            self.propagate_assignment(group, {}, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        effects.cancel(group, TimerKind.SYNC)
        is_initial = group.state is EMPTY
        group.transition_to(PREPARING, wall_ms)
        effects.rebalance_started(group, reason)
        if is_initial:
            # The first member of many that start together waits for the others, so that they do
            # not rebalance once for each (KIP-134).
            delay_ms = self._settings().initial_rebalance_delay_ms
            group.new_member_added = False
            group.initial_delay_left_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
            effects.schedule(group, TimerKind.JOIN, delay_ms)
        elif group.has_all_members_joined():
            self._complete_join(group, wall_ms)
        else:
            effects.schedule(group, TimerKind.JOIN, group.rebalance_timeout_ms())

    def maybe_complete_join(self, group: ClassicGroup, wall_ms: int) -> None:
        """Ends the gathering if nobody is missing and no initial delay runs."""
        if (
            group.state is PREPARING
            and group.initial_delay_left_ms is None
            and group.has_all_members_joined()
        ):
            self._complete_join(group, wall_ms)

    def gather_join(
        self, group: ClassicGroup, member: ClassicGroupMember, request: JoinRequest, token: Token
    ) -> None:
        """The member's JoinGroup waits for the generation; an earlier one of it is refused."""
        group.update(
            member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms
        )
        before = group.set_awaiting_join(member, token)
        if before is not None:
            self._effects.complete(
                before, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id)
            )

    def join_expired(self, group: ClassicGroup, wall_ms: int) -> None:
        """The join timer: prolongs the initial delay if members came, else goes on without those
        that did not.
        """
        if group.state is not PREPARING:
            return
        left_ms = group.initial_delay_left_ms
        if left_ms is not None and group.new_member_added and left_ms > 0:
            group.new_member_added = False
            delay_ms = min(self._settings().initial_rebalance_delay_ms, left_ms)
            group.initial_delay_left_ms = max(left_ms - delay_ms, 0)
            self._effects.schedule(group, TimerKind.JOIN, delay_ms)
        else:
            self._complete_join(group, wall_ms)

    def _complete_join(self, group: ClassicGroup, wall_ms: int) -> None:
        effects = self._effects
        group.initial_delay_left_ms = None
        effects.cancel(group, TimerKind.JOIN)
        # A static member keeps its place until its session ends: it may only be restarting.
        missing = [
            m for m in group.members.values() if m.awaiting_join is None and m.instance_id is None
        ]
        for member in missing:
            effects.cancel(group, TimerKind.SESSION, member.member_id)
            group.remove(member.member_id)
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none came: their sessions decide how long they are
            # waited for.
            effects.schedule(group, TimerKind.JOIN, group.rebalance_timeout_ms())
            return
        group.start_generation(wall_ms)
        if group.state is EMPTY:
            effects.write(group, group.metadata(), GroupEmptied())
            return
        for member in group.members.values():
            effects.complete_join(
                group,
                member,
                generation_answer(group, member, with_members=group.leader == member.member_id),
            )
            effects.restart_session(group, member)
            member.is_new = False
            group.pending_syncs[member.member_id] = None
        effects.schedule(group, TimerKind.SYNC, group.rebalance_timeout_ms())

    # assignment
    def propagate_assignment(
        self, group: ClassicGroup, assignment: dict[str, bytes], error: ErrorCode
    ) -> None:
        """Gives every member its part, or the error, and answers the SyncGroups that wait."""
        for member in group.members.values():
            member.assignment = assignment.get(member.member_id, b"")
            answer = (
                SyncAnswer(error)
                if error
                else SyncAnswer(error, group.protocol_type, group.protocol_name, member.assignment)
            )
            if self._effects.complete_sync(member, answer):
                self._effects.restart_session(group, member)

    def sync_expired(self, group: ClassicGroup, wall_ms: int) -> None:
        """The sync timer: members that did not sync are removed, the others rebalance."""
        if group.state in (COMPLETING, STABLE) and group.pending_syncs:
            late = list(group.pending_syncs)
            for member_id in late:
                self.remove_member(group, member_id, ErrorCode.UNKNOWN_MEMBER_ID)
            self.prepare(group, wall_ms, f"without SyncGroup in time: {len(late)}")

    # members that go
    def remove_member(self, group: ClassicGroup, member_id: str, error: ErrorCode) -> None:
        """Removes a member or a pending one; its waiting requests are answered with `error`."""
        member = group.members.get(member_id)
        if member is None and member_id not in group.pending_joins:
            return
        self._effects.cancel(group, TimerKind.SESSION, member_id)
        if member is not None:
            self._effects.complete_join(group, member, JoinAnswer(error))
            self._effects.complete_sync(member, SyncAnswer(error))
        group.remove(member_id)

    def members_changed(self, group: ClassicGroup, wall_ms: int, reason: str) -> None:
        """Members went or were replaced: a generation rebalances, a rebalance that waited for
        them may end.
        """
        if group.state in (STABLE, COMPLETING):
            self.prepare(group, wall_ms, reason)
        else:
            self.maybe_complete_join(group, wall_ms)
