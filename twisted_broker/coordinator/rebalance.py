"""One round of a classic group: gather the joins, start a generation, spread its assignment. Ring
0.

Owns `Rebalance`: the part of a group's decisions that no request enters by itself; `group_core.py`
adds the requests.

1. Every parked request is answered exactly once: by completion, by an error when its member goes,
   or at unload.
2. Every member and every pending one has a session timer running.
3. While PreparingRebalance the join timer runs; while a generation has members that did not sync,
   the sync timer.
4. At the initial delay's end new arrivals prolong it, up to the rebalance timeout altogether.

Source: Apache Kafka 4.3.1 `GroupMetadataManager`, methods `*ClassicGroup*` (KIP-62, 134, 559).
Leaves out requests and records' fate.
"""

from __future__ import annotations

from dataclasses import dataclass

from twisted_broker.coordinator.effects import (
    Answered,
    Consequence,
    GroupEmptied,
    GroupWrite,
    JoinAnswer,
    SyncAnswer,
    TimerCancelled,
    TimerKind,
    TimerSet,
    Token,
)
from twisted_broker.coordinator.group_state import (
    COMPLETING,
    DEAD,
    EMPTY,
    PREPARING,
    STABLE,
    Group,
    Member,
)
from twisted_broker.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Live settings that decide in a group."""

    initial_rebalance_delay_ms: int = 3000
    max_size: int = 2**31 - 1


class Rebalance:
    """A group's rounds. `_out` collects the consequences of the call that is running."""

    __slots__ = ("_out", "group", "settings")

    def __init__(self, group: Group, settings: GroupSettings) -> None:
        self.group, self.settings = group, settings
        self._out: list[Consequence] = []

    def _taken(self) -> list[Consequence]:
        out, self._out = self._out, []
        return out

    # the rebalance
    def _rebalance_or_complete(self, now_ms: int) -> None:
        if self.group.can_rebalance():
            self._prepare_rebalance(now_ms)
        else:
            self._maybe_complete_join(now_ms)

    def _prepare_rebalance(self, now_ms: int) -> None:
        group = self.group
        if group.state is COMPLETING:
            self._spread_assignment({}, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        self._cancel_timer(TimerKind.SYNC)
        is_initial = group.state is EMPTY
        group.transition_to(PREPARING, now_ms)
        if is_initial:
            delay_ms = self.settings.initial_rebalance_delay_ms
            group.new_member_added = False
            group.initial_delay_left_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
            self._set_timer(TimerKind.JOIN, delay_ms)
        elif group.has_all_joined():
            self._complete_join(now_ms)
        else:
            self._set_timer(TimerKind.JOIN, group.rebalance_timeout_ms())

    def _maybe_complete_join(self, now_ms: int) -> None:
        group = self.group
        if (
            group.state is PREPARING
            and group.initial_delay_left_ms is None
            and group.has_all_joined()
        ):
            self._complete_join(now_ms)

    def _join_time_is_over(self, now_ms: int) -> None:
        group = self.group
        if group.state is not PREPARING:
            return
        left_ms = group.initial_delay_left_ms
        if left_ms is not None and group.new_member_added and left_ms > 0:
            group.new_member_added = False
            delay_ms = min(self.settings.initial_rebalance_delay_ms, left_ms)
            group.initial_delay_left_ms = max(left_ms - delay_ms, 0)
            self._set_timer(TimerKind.JOIN, delay_ms)
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        group = self.group
        group.initial_delay_left_ms = None
        self._cancel_timer(TimerKind.JOIN)
        for member in [
            m for m in group.members.values() if m.awaiting_join is None and m.instance_id is None
        ]:
            self._cancel_timer(TimerKind.SESSION, member.member_id)
            group.remove(member.member_id)
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none came: their sessions decide how long they are
            # waited for.
            self._set_timer(TimerKind.JOIN, group.rebalance_timeout_ms())
            return
        group.start_generation(now_ms)
        if group.state is EMPTY:
            self._out.append(GroupWrite(group.snapshot(), GroupEmptied()))
            return
        self._answer_joins()
        self._set_timer(TimerKind.SYNC, group.rebalance_timeout_ms())

    def _answer_joins(self) -> None:
        group = self.group
        for member in group.members.values():
            self._answer_join(
                member, self._joined(member, with_members=group.leader == member.member_id)
            )
            self._set_timer(TimerKind.SESSION, member.session_timeout_ms, member.member_id)
            member.is_new = False
            group.pending_syncs[member.member_id] = None

    def _joined(self, member: Member, with_members: bool) -> JoinAnswer:
        group = self.group
        return JoinAnswer(
            member_id=member.member_id,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=group.leader or "",
            members=group.member_list() if with_members else (),
        )

    def _spread_assignment(self, assignment: dict[str, bytes], error: ErrorCode) -> None:
        group = self.group
        for member in group.members.values():
            member.assignment = assignment.get(member.member_id, b"")
            answer = (
                SyncAnswer(error)
                if error
                else SyncAnswer(error, group.protocol_type, group.protocol_name, member.assignment)
            )
            if self._answer_sync(member, answer):
                self._set_timer(TimerKind.SESSION, member.session_timeout_ms, member.member_id)

    def _sync_time_is_over(self, now_ms: int) -> None:
        group = self.group
        if group.state in (COMPLETING, STABLE) and group.pending_syncs:
            for member_id in list(group.pending_syncs):
                self._drop(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
            self._prepare_rebalance(now_ms)

    # members and time
    def touch(self, member: Member) -> None:
        """Starts the member's session anew."""
        self._set_timer(TimerKind.SESSION, member.session_timeout_ms, member.member_id)

    def _drop(self, member_id: str, error: ErrorCode) -> None:
        """Takes a member or a pending one out, answering what it has parked."""
        member = self.group.members.get(member_id)
        if member is None and member_id not in self.group.pending_joins:
            return
        self._cancel_timer(TimerKind.SESSION, member_id)
        if member is not None:
            self._answer_join(member, JoinAnswer(error))
            self._answer_sync(member, SyncAnswer(error))
        self.group.remove(member_id)

    def timer_fired(self, kind: TimerKind, member_id: str, now_ms: int) -> list[Consequence]:
        if kind is TimerKind.JOIN:
            self._join_time_is_over(now_ms)
        elif kind is TimerKind.SYNC:
            self._sync_time_is_over(now_ms)
        else:
            self._session_is_over(member_id, now_ms)
        return self._taken()

    def _session_is_over(self, member_id: str, now_ms: int) -> None:
        group = self.group
        member = group.members.get(member_id)
        if group.state is DEAD or (member is None and member_id not in group.pending_joins):
            return
        if member is not None and member.has_satisfied_session():
            self._set_timer(TimerKind.SESSION, member.session_timeout_ms, member_id)
            return
        self._drop(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if member is not None and group.state in (STABLE, COMPLETING):
            self._prepare_rebalance(now_ms)
        else:
            self._maybe_complete_join(now_ms)

    # consequences
    def _answer(self, token: Token, answer: JoinAnswer | SyncAnswer) -> None:
        self._out.append(Answered(token, answer))

    def _answer_join(self, member: Member, answer: JoinAnswer) -> None:
        token = self.group.park_join(member, None)
        if token is not None:
            self._answer(token, answer)

    def _answer_sync(self, member: Member, answer: SyncAnswer) -> bool:
        token, member.awaiting_sync = member.awaiting_sync, None
        if token is not None:
            self._answer(token, answer)
        return token is not None

    def _set_timer(self, kind: TimerKind, delay_ms: int, member_id: str = "") -> None:
        self._out.append(TimerSet(kind, member_id, delay_ms))

    def _cancel_timer(self, kind: TimerKind, member_id: str = "") -> None:
        self._out.append(TimerCancelled(kind, member_id))
