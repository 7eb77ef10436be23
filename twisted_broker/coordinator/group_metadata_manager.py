"""The decisions on the classic groups of one shard, put together.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `GroupMetadataManager`: the parts that decide, and what happens to a group without a
request: timers, the end of a write, loading and unloading.

      requests --> Membership (join, heartbeat, leave) --> StaticMembers --.
               '-> Assignment (sync) -----------------------------------------> Rebalance
                                        all of them add effects to -----> GroupEffects

1. Every method leaves its effects in `effects`; the caller runs them afterwards.
2. Time is an argument, and calendar time: group records hold it.

Source: Apache Kafka 4.3.1 `GroupMetadataManager`. Not here: offsets (`offset_metadata_manager.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from twisted_broker.coordinator.assignment import Assignment
from twisted_broker.coordinator.classic_group import DEAD, ClassicGroup
from twisted_broker.coordinator.effects import (
    AssignmentStored,
    GroupCreated,
    GroupEffects,
    Purpose,
    StaticMemberReplaced,
    TimerKind,
)
from twisted_broker.coordinator.group_requests import JoinAnswer, SyncAnswer
from twisted_broker.coordinator.membership import Membership
from twisted_broker.coordinator.rebalance import GroupSettings, Rebalance
from twisted_broker.coordinator.static_members import StaticMembers
from twisted_broker.wire.errors import ErrorCode


class GroupMetadataManager:
    """`settings` gives those of this moment: they may change while a group lives."""

    __slots__ = (
        "_rebalance",
        "_settings",
        "_static_members",
        "assignment",
        "effects",
        "membership",
    )

    def __init__(self, settings: Callable[[], GroupSettings]) -> None:
        self._settings = settings
        self.effects = GroupEffects()
        self._rebalance = Rebalance(self.effects, settings)
        self._static_members = StaticMembers(self.effects, self._rebalance)
        self.assignment = Assignment(self.effects, self._rebalance)
        self.membership = Membership(self.effects, self._rebalance, self._static_members, settings)

    def timer_expired(
        self, group: ClassicGroup, kind: TimerKind, member_id: str, wall_ms: int
    ) -> None:
        if kind is TimerKind.JOIN:
            self._rebalance.join_expired(group, wall_ms)
        elif kind is TimerKind.SYNC:
            self._rebalance.sync_expired(group, wall_ms)
        else:
            self.membership.session_expired(group, member_id, wall_ms)

    def write_first_record(self, group: ClassicGroup) -> None:
        """The record of a group that a join has just made: empty, as Kafka's first one is."""
        members = group.members or group.pending_joins
        metadata = replace(
            group.metadata({}),
            protocol_type="",
            protocol=None,
            leader=None,
            generation=0,
            members=(),
        )
        self.effects.write(group, metadata, GroupCreated(next(iter(members), "")))

    def write_ended(
        self, group: ClassicGroup, purpose: Purpose, error: ErrorCode, wall_ms: int
    ) -> None:
        """The record of `purpose` is stored (NONE), or could not be; `error` is already the one
        that members get.
        """
        if isinstance(purpose, AssignmentStored):
            self.assignment.write_ended(group, purpose, error, wall_ms)
        elif isinstance(purpose, StaticMemberReplaced):
            self._static_members.write_ended(group, purpose, error)
        elif isinstance(purpose, GroupCreated) and error:
            self._rebalance.remove_member(group, purpose.member_id, error)
            self._rebalance.maybe_complete_join(group, wall_ms)

    def group_loaded(self, group: ClassicGroup, wall_ms: int) -> None:
        """Starts every session; a group that is too large by now rebalances, unless it does
        already.
        """
        for member in group.members.values():
            self.effects.restart_session(group, member)
        if len(group.members) > self._settings().max_size and group.can_rebalance():
            self._rebalance.prepare(group, wall_ms, "it has more members than group.max.size")

    def ask_to_join_again(self, group: ClassicGroup) -> None:
        """Answers all that wait for a generation: the group is to become another one."""
        again = ErrorCode.REBALANCE_IN_PROGRESS
        for member in group.members.values():
            self.effects.complete_join(group, member, JoinAnswer(again, member.member_id))
            self.effects.complete_sync(member, SyncAnswer(again))

    def group_downgraded(self, group: ClassicGroup, rebalances: bool, wall_ms: int) -> None:
        """A consumer group has become this one: every session begins."""
        for member in group.members.values():
            self.effects.restart_session(group, member)
        if rebalances:
            self._rebalance.prepare(group, wall_ms, "it was a consumer group")

    def group_unloaded(self, group: ClassicGroup, error: ErrorCode, wall_ms: int) -> None:
        """The group leaves this broker: waiting requests are answered with `error`, its timers
        end.
        """
        effects = self.effects
        effects.cancel(group, TimerKind.JOIN)
        effects.cancel(group, TimerKind.SYNC)
        for member_id in [*group.members, *group.pending_joins]:
            effects.cancel(group, TimerKind.SESSION, member_id)
        for member in group.members.values():
            effects.complete_join(group, member, JoinAnswer(error, member.member_id))
            effects.complete_sync(member, SyncAnswer(error))
        if group.state is not DEAD:
            group.transition_to(DEAD, wall_ms)
