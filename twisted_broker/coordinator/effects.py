"""The effects of decisions on groups: requests answered, timers set, records written.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `GroupEffects`, the queue of one shard, and the effects in it.

1. `CoordinatorShard.run_effects` runs the effects after the decision has returned, so none sees a
   group in mid-change. Answers and records run in the order in which they were added; timers are
   set before them.
2. A waiting request (`Token`) is answered exactly once.
3. A `WriteGroup` comes back as one `GroupMetadataManager.write_ended`, when its record is
   replicated or refused. Its purpose says what depends on that.

Source: Apache Kafka 4.3.1 `CoordinatorResult`, `CoordinatorTimer`, as plain data.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from twisted_broker.coordinator.classic_group import ClassicGroup, ClassicGroupMember, Token
from twisted_broker.coordinator.group_records import GroupMetadata
from twisted_broker.coordinator.group_requests import JoinAnswer, SyncAnswer


class TimerKind(Enum):
    """What a group, or a member of it, may wait for."""

    SESSION = "session"
    JOIN = "join"
    SYNC = "sync"


@dataclass(frozen=True, slots=True)
class CompleteRequest:
    """Answers the waiting request `token`."""

    token: Token
    answer: JoinAnswer | SyncAnswer


@dataclass(frozen=True, slots=True)
class ScheduleTimer:
    """(Re)starts the group's timer of this kind; `member_id` is empty but for SESSION."""

    group: ClassicGroup
    kind: TimerKind
    member_id: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Ends a timer that may run."""

    group: ClassicGroup
    kind: TimerKind
    member_id: str


@dataclass(frozen=True, slots=True)
class GroupCreated:
    """First record of a group; a failure answers the join that caused it."""

    member_id: str


@dataclass(frozen=True, slots=True)
class GroupEmptied:
    """The last member is gone. A failure changes nothing in memory: the next record repairs it."""


@dataclass(frozen=True, slots=True)
class AssignmentStored:
    """The leader's assignment: success makes the generation stable, failure starts another
    rebalance.
    """

    generation: int
    assignment: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StaticMemberReplaced:
    """A static member came back under a new id without a rebalance; failure gives the old id its
    place back.
    """

    instance_id: str
    old_member_id: str
    new_member_id: str
    token: Token
    leader_before: str
    protocols: dict[str, bytes]
    rebalance_timeout_ms: int
    session_timeout_ms: int
    can_skip_assignment: bool


Purpose = GroupCreated | GroupEmptied | AssignmentStored | StaticMemberReplaced


@dataclass(frozen=True, slots=True)
class WriteGroup:
    """Appends the group's record."""

    group: ClassicGroup
    metadata: GroupMetadata
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class RebalanceStarted:
    """A line for the log: a rebalance begins, after `generation`, of so many members."""

    group_id: str
    generation: int
    members: int
    reason: str


Effect = CompleteRequest | ScheduleTimer | CancelTimer | WriteGroup | RebalanceStarted


class GroupEffects:
    """The effects of one shard's groups that are not run yet, the oldest first in `queue`."""

    __slots__ = ("queue",)

    def __init__(self) -> None:
        self.queue: deque[Effect] = deque()

    def complete(self, token: Token, answer: JoinAnswer | SyncAnswer) -> None:
        self.queue.append(CompleteRequest(token, answer))

    def complete_join(
        self, group: ClassicGroup, member: ClassicGroupMember, answer: JoinAnswer
    ) -> None:
        """Answers the member's JoinGroup if one waits."""
        token = group.set_awaiting_join(member, None)
        if token is not None:
            self.complete(token, answer)

    def complete_sync(self, member: ClassicGroupMember, answer: SyncAnswer) -> bool:
        """Answers the member's SyncGroup if one waits; returns whether one did."""
        token, member.awaiting_sync = member.awaiting_sync, None
        if token is not None:
            self.complete(token, answer)
        return token is not None

    def restart_session(self, group: ClassicGroup, member: ClassicGroupMember) -> None:
        """Gives the member its whole session timeout from now on."""
        self.schedule(group, TimerKind.SESSION, member.session_timeout_ms, member.member_id)

    def schedule(
        self, group: ClassicGroup, kind: TimerKind, delay_ms: int, member_id: str = ""
    ) -> None:
        self.queue.append(ScheduleTimer(group, kind, member_id, delay_ms))

    def cancel(self, group: ClassicGroup, kind: TimerKind, member_id: str = "") -> None:
        self.queue.append(CancelTimer(group, kind, member_id))

    def rebalance_started(self, group: ClassicGroup, reason: str) -> None:
        self.queue.append(
            RebalanceStarted(group.group_id, group.generation, len(group.members), reason)
        )

    def write(self, group: ClassicGroup, metadata: GroupMetadata, purpose: Purpose) -> None:
        self.queue.append(WriteGroup(group, metadata, purpose))
