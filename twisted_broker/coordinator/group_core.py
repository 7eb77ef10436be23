"""The decisions of a classic group, request by request: join, sync, heartbeat, leave. Ring 0.

Owns `GroupCore`, the only writer of a `Group`. Every public method takes the time as an argument
and returns consequences (`effects.py`), or a plain answer together with them.

1. A generation becomes stable only when its record is stored.
2. A new dynamic member counts when it comes back with the id it was given (from JoinGroup v4 on).
3. Of two members with one instance id the later one has the place; the earlier one is fenced.

Source: Apache Kafka 4.3.1 `GroupMetadataManager`, methods `classicGroup*` (KIP-345, 394, 814).
Leaves out group look-up and checks that need no group (`group_coordinator.py`), and consumer groups
of KIP-848.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from twisted_broker.coordinator.effects import (
    AssignmentStored,
    Consequence,
    GroupCreated,
    GroupWrite,
    JoinAnswer,
    LeaveAnswer,
    Purpose,
    StaticMemberReplaced,
    SyncAnswer,
    TimerKind,
    Token,
)
from twisted_broker.coordinator.group_state import (
    COMPLETING,
    DEAD,
    EMPTY,
    PREPARING,
    STABLE,
    Member,
)
from twisted_broker.coordinator.rebalance import Rebalance
from twisted_broker.wire.errors import BrokerError, ErrorCode

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup as the core sees it; `new_member_id` is the id to give a member that has none
    yet.
    """

    member_id: str
    new_member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: dict[str, bytes]
    requires_known_member_id: bool = True
    can_skip_assignment: bool = True


@dataclass(frozen=True, slots=True)
class SyncRequest:
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


def _refused(request: JoinRequest, error: ErrorCode, member_id: str = "") -> JoinAnswer:
    return JoinAnswer(error=error, member_id=member_id)


class GroupCore(Rebalance):
    """One group's answers to its requests."""

    __slots__ = ()

    # join
    def join(self, request: JoinRequest, token: Token, now_ms: int) -> list[Consequence]:
        """Answers or parks one JoinGroup."""
        group = self.group
        if not self._has_room_for(request.member_id):
            self._drop(request.member_id, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._answer(token, _refused(request, ErrorCode.GROUP_MAX_SIZE_REACHED))
            self._maybe_complete_join(now_ms)
        elif group.state is DEAD:
            self._answer(
                token, _refused(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)
            )
        elif not group.supports(request.protocol_type, request.protocols):
            self._answer(
                token, _refused(request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
            )
        elif not request.member_id:
            self._join_unknown(request, token, now_ms)
        elif request.member_id in group.pending_joins and request.instance_id is None:
            self._add_member(request, request.member_id, token, now_ms)
        else:
            self._join_known(request, token, now_ms)
        return self._taken()

    def _has_room_for(self, member_id: str) -> bool:
        group, limit = self.group, self.settings.max_size
        member = group.members.get(member_id)
        if group.state is PREPARING:
            return (
                member is not None and member.awaiting_join is not None
            ) or group.awaiting_join_count < limit
        if group.state in (COMPLETING, STABLE):
            return member is not None or len(group.members) < limit
        return True

    def _join_unknown(self, request: JoinRequest, token: Token, now_ms: int) -> None:
        group = self.group
        if request.instance_id is not None:
            before = group.static_members.get(request.instance_id)
            if before is not None:
                self._replace_static(request, before, token, now_ms)
            else:
                self._add_member(request, request.new_member_id, token, now_ms)
        elif request.requires_known_member_id:
            # KIP-394: a member counts only when it comes back with its id, so that retries of lost
            # answers leave no ghosts.
            group.pending_joins[request.new_member_id] = None
            self._set_timer(TimerKind.SESSION, request.session_timeout_ms, request.new_member_id)
            self._answer(
                token, _refused(request, ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id)
            )
        else:
            self._add_member(request, request.new_member_id, token, now_ms)

    def _join_known(self, request: JoinRequest, token: Token, now_ms: int) -> None:
        group = self.group
        try:
            group.check_member(request.member_id, request.instance_id)
        except BrokerError as refusal:
            self._answer(token, _refused(request, refusal.code, request.member_id))
            return
        member = group.members[request.member_id]
        unchanged = list(member.protocols.items()) == list(request.protocols.items())
        is_leader = group.leader == request.member_id
        if (group.state is COMPLETING and unchanged) or (
            group.state is STABLE and unchanged and not is_leader
        ):
            # The answer to its last join was lost, or it asks again in vain: it gets the same
            # generation.
            self._answer(token, self._joined(member, with_members=is_leader))
        else:
            self._rejoin(member, request, token)
            self._rebalance_or_complete(now_ms)

    def _rejoin(self, member: Member, request: JoinRequest, token: Token) -> None:
        self.group.update(
            member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms
        )
        before = self.group.park_join(member, token)
        if before is not None:
            self._answer(before, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id))

    def _add_member(self, request: JoinRequest, member_id: str, token: Token, now_ms: int) -> None:
        group = self.group
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
        )
        member.is_new, member.awaiting_join = True, token
        if group.state is PREPARING and group.previous_state is EMPTY:
            group.new_member_added = True
        group.add(member, request.protocol_type)
        # A new member waits for the whole rebalance; its session starts with its first answer.
        self._set_timer(TimerKind.SESSION, NEW_MEMBER_JOIN_TIMEOUT_MS, member_id)
        self._rebalance_or_complete(now_ms)

    def _replace_static(self, request: JoinRequest, before: str, token: Token, now_ms: int) -> None:
        """KIP-345: the same instance under a new id; KIP-814: without a rebalance where nothing
        else changed.
        """
        group = self.group
        assert request.instance_id is not None
        leader_before = group.leader or ""
        self._fence(group.members[before])
        self._cancel_timer(TimerKind.SESSION, before)
        member = group.rename_static(request.instance_id, before, request.new_member_id)
        old = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        self._rejoin(member, request, token)
        self._set_timer(TimerKind.SESSION, member.session_timeout_ms, member.member_id)
        if group.state is STABLE and group.select_protocol() == group.protocol_name:
            self._out.append(
                GroupWrite(
                    group.snapshot(),
                    StaticMemberReplaced(
                        request.instance_id,
                        before,
                        member.member_id,
                        token,
                        leader_before,
                        *old,
                        request.can_skip_assignment,
                    ),
                )
            )
        elif group.state in (STABLE, COMPLETING):
            self._prepare_rebalance(now_ms)
        else:
            self._maybe_complete_join(now_ms)

    def _fence(self, member: Member) -> None:
        self._answer_join(member, JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, member.member_id))
        self._answer_sync(member, SyncAnswer(ErrorCode.FENCED_INSTANCE_ID))

    # sync
    def sync(self, request: SyncRequest, token: Token) -> list[Consequence]:
        """Answers or parks one SyncGroup; the leader's is stored."""
        group = self.group
        error = self._sync_error(request)
        if error is not ErrorCode.NONE:
            self._answer(token, SyncAnswer(error))
        elif group.state is PREPARING:
            self._answer(token, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
        else:
            member = group.members[request.member_id]
            group.pending_syncs.pop(request.member_id, None)
            if group.state is STABLE:
                self._answer(
                    token,
                    SyncAnswer(
                        ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment
                    ),
                )
            else:
                self._park_sync(member, request, token)
        return self._taken()

    def _sync_error(self, request: SyncRequest) -> ErrorCode:
        group = self.group
        if group.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            group.check_member(request.member_id, request.instance_id)
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

    def _park_sync(self, member: Member, request: SyncRequest, token: Token) -> None:
        group = self.group
        before, member.awaiting_sync = member.awaiting_sync, token
        if before is not None:
            self._answer(before, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        if group.leader == request.member_id:
            given = dict(request.assignments)
            assignment = {member_id: given.get(member_id, b"") for member_id in group.members}
            self._out.append(
                GroupWrite(
                    group.snapshot(assignment), AssignmentStored(group.generation, assignment)
                )
            )

    # heartbeat, leave
    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ErrorCode, list[Consequence]]:
        group = self.group
        if group.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        try:
            group.check_member(member_id, instance_id)
        except BrokerError as refusal:
            return refusal.code, []
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION, []
        self.touch(group.members[member_id])
        return (
            ErrorCode.REBALANCE_IN_PROGRESS if group.state is PREPARING else ErrorCode.NONE
        ), self._taken()

    def commits_offsets(self, member_id: str) -> list[Consequence]:
        """An accepted commit of a member is a sign of life."""
        member = self.group.members.get(member_id)
        if member is not None and self.group.state in (STABLE, PREPARING):
            self.touch(member)
        return self._taken()

    def leave(
        self, leavers: list[tuple[str, str | None]], now_ms: int
    ) -> tuple[ErrorCode, list[LeaveAnswer], list[Consequence]]:
        """Removes (member id, instance id) each; an empty member id with an instance id means
        whoever holds it.
        """
        group = self.group
        if group.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, [], []
        answers = [
            LeaveAnswer(member_id, instance_id, self._leave_one(member_id, instance_id))
            for member_id, instance_id in leavers
        ]
        if any(answer.error is ErrorCode.NONE for answer in answers):
            if group.state in (STABLE, COMPLETING):
                self._prepare_rebalance(now_ms)
            else:
                self._maybe_complete_join(now_ms)
        return ErrorCode.NONE, answers, self._taken()

    def _leave_one(self, member_id: str, instance_id: str | None) -> ErrorCode:
        group = self.group
        if not member_id and instance_id is not None:
            member_id = group.static_members.get(instance_id, "")
        if member_id not in group.pending_joins:
            try:
                group.check_member(member_id, instance_id)
            except BrokerError as refusal:
                return refusal.code
        self._drop(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return ErrorCode.NONE

    # records
    def created(self) -> list[Consequence]:
        """The record of a group that a join has just made."""
        members = self.group.members or self.group.pending_joins
        snapshot = replace(
            self.group.snapshot({}),
            protocol_type="",
            protocol=None,
            leader=None,
            generation=0,
            members=(),
        )
        return [GroupWrite(snapshot, GroupCreated(next(iter(members), "")))]

    def written(self, purpose: Purpose, error: ErrorCode, now_ms: int) -> list[Consequence]:
        """The record of `purpose` is stored (NONE) or could not be; `error` is already what
        members may be told.
        """
        if isinstance(purpose, AssignmentStored):
            self._assignment_written(purpose, error, now_ms)
        elif isinstance(purpose, StaticMemberReplaced):
            self._replacement_written(purpose, error)
        elif isinstance(purpose, GroupCreated) and error:
            self._drop(purpose.member_id, error)
            self._maybe_complete_join(now_ms)
        return self._taken()

    def _assignment_written(self, purpose: AssignmentStored, error: ErrorCode, now_ms: int) -> None:
        group = self.group
        if group.state is not COMPLETING or group.generation != purpose.generation:
            return
        self._spread_assignment({} if error else purpose.assignment, error)
        if error:
            self._prepare_rebalance(now_ms)
        else:
            group.transition_to(STABLE, now_ms)

    def _replacement_written(self, purpose: StaticMemberReplaced, error: ErrorCode) -> None:
        group = self.group
        member = group.members.get(purpose.new_member_id)
        if member is None or member.awaiting_join is not purpose.token or group.state is not STABLE:
            return
        if error:
            self._answer_join(
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
            self._cancel_timer(TimerKind.SESSION, member.member_id)
            self.touch(
                group.rename_static(purpose.instance_id, member.member_id, purpose.old_member_id)
            )
        elif purpose.can_skip_assignment:
            is_leader = group.leader == member.member_id
            self._answer_join(
                member,
                replace(self._joined(member, with_members=is_leader), skip_assignment=is_leader),
            )
        else:
            # A client that cannot be told to skip must not think that it leads, or it would assign
            # anew.
            self._answer_join(
                member,
                replace(self._joined(member, with_members=False), leader=purpose.leader_before),
            )

    # loading and unloading
    def loaded(self, now_ms: int) -> list[Consequence]:
        """Starts every session; a group that is too large now has to gather anew, unless it does
        already.
        """
        for member in self.group.members.values():
            self.touch(member)
        if len(self.group.members) > self.settings.max_size and self.group.can_rebalance():
            self._prepare_rebalance(now_ms)
        return self._taken()

    def unloaded(self, error: ErrorCode, now_ms: int) -> list[Consequence]:
        """The group is gone from this broker: everything parked is answered, every timer ends."""
        group = self.group
        self._cancel_timer(TimerKind.JOIN)
        self._cancel_timer(TimerKind.SYNC)
        for member_id in [*group.members, *group.pending_joins]:
            self._cancel_timer(TimerKind.SESSION, member_id)
        for member in group.members.values():
            self._answer_join(member, JoinAnswer(error, member.member_id))
            self._answer_sync(member, SyncAnswer(error))
        if group.state is not DEAD:
            group.transition_to(DEAD, now_ms)
        return self._taken()
