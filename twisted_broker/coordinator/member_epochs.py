"""Members of groups of the newer kinds and their epochs, as requests name them.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `member_of`, `stale`, and `check_fetch`: who may fetch the group's offsets.

Source: Apache Kafka 4.3.1 `ConsumerGroup.validateOffsetFetch`, `StreamsGroup.validateOffsetFetch`.
Not here: who may commit (`consumer/offsets.py`, `streams/offsets.py`).
"""

from __future__ import annotations

from typing import Any

from twisted_broker.coordinator.modern_group import ModernGroup
from twisted_broker.wire.errors import BrokerError, ErrorCode


def check_fetch(group: ModernGroup, member_id: str | None, member_epoch: int) -> None:
    """Raises BrokerError."""
    if member_id is None and member_epoch < 0:
        return
    member = member_of(group, member_id or "")
    if member_epoch != member.epoch:
        raise stale(member_epoch, member)


def member_of(group: ModernGroup, member_id: str) -> Any:
    """Raises UNKNOWN_MEMBER_ID."""
    member = group.members.get(member_id)
    if member is None:
        raise BrokerError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member {member_id} is not a member of group {group.group_id}.",
        )
    return member


def stale(received: int, member: Any) -> BrokerError:
    """A member named an epoch that is not its own; a classic one knows it as a generation."""
    return BrokerError(
        ErrorCode.ILLEGAL_GENERATION
        if getattr(member, "classic", None) is not None
        else ErrorCode.STALE_MEMBER_EPOCH,
        f"The received member epoch {received} does not match the expected member epoch "
        f"{member.epoch}.",
    )
