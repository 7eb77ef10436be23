"""What a group's core wants done: answers, timers, records. Ring 0.

Owns the vocabulary between the pure core (`rebalance.py`) and what carries it out
(`group_coordinator.py`).

1. A core call returns its consequences in the order in which they are to be carried out; it carries
   out none itself.
2. A `token` stands for one parked request. The core never looks into it and answers each exactly
   once.
3. A `GroupWrite` comes back as one `written(purpose, error)` call of the core, when the record is
   replicated or refused.

Source: Apache Kafka's `CoordinatorResult` and `CoordinatorTimer`, as plain data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from twisted_broker.wire.errors import ErrorCode

Token = object
NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """A JoinGroup answer: `members` is (member id, instance id, metadata) and filled for the
    leader only.
    """

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    member_id: str
    instance_id: str | None
    error: ErrorCode


class TimerKind(Enum):
    SESSION = "session"
    JOIN = "join"
    SYNC = "sync"


@dataclass(frozen=True, slots=True)
class Answered:
    """The parked request `token` is answered."""

    token: Token
    answer: JoinAnswer | SyncAnswer


@dataclass(frozen=True, slots=True)
class TimerSet:
    """(Re)starts the group's timer of this kind; `member_id` is empty but for SESSION."""

    kind: TimerKind
    member_id: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class TimerCancelled:
    kind: TimerKind
    member_id: str


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The content of one group record."""

    group_id: str
    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    state_timestamp_ms: int = -1
    members: tuple[MemberSnapshot, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupCreated:
    """First record of a group; a failure answers the join that caused it."""

    member_id: str


@dataclass(frozen=True, slots=True)
class GroupEmptied:
    """The last member is gone; a failure changes nothing in memory, the next record repairs it."""


@dataclass(frozen=True, slots=True)
class AssignmentStored:
    """The leader's assignment; success makes the generation stable, failure starts another
    round.
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
class GroupWrite:
    snapshot: GroupSnapshot
    purpose: Purpose


Consequence = Answered | TimerSet | TimerCancelled | GroupWrite
