"""The requests to a classic group, and its answers. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns the requests and answers of JoinGroup, SyncGroup and LeaveGroup without their versions.

Source: Apache Kafka 4.3.1 `JoinGroupRequest`, `SyncGroupRequest`, `LeaveGroupResponse`. Not here:
the wire (`api/groups.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from twisted_broker.wire.errors import ErrorCode

NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup. `new_member_id` is the id to give to a member that has none yet."""

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
class JoinAnswer:
    """`members` is (member id, instance id, metadata) each, and filled for the leader only."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A SyncGroup. `assignments` is by member id; only the leader's count."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """What SyncGroup answers."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """What LeaveGroup answers for one member."""

    member_id: str
    instance_id: str | None
    error: ErrorCode
