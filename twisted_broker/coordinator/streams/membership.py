"""Which member of a streams group sends a heartbeat, and whether it may.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `find_member`.

1. A group that is full takes no join, not even of a member that it has.
2. An epoch that is not the member's fences it, except the previous one with tasks that are all its
   own: then an answer was lost. To say nothing of its tasks is no reason to let it in.

Source: Apache Kafka 4.3.1 `GroupMetadataManager.getOrMaybeCreateDynamicStreamsGroupMember`,
`throwIfStreamsGroupMemberEpochIsInvalid`. Static members are refused before (`requests.py`).
"""

from __future__ import annotations

from twisted_broker.coordinator.member_epochs import member_of
from twisted_broker.coordinator.streams.group import StreamsGroup
from twisted_broker.coordinator.streams.member import JOIN_EPOCH, StreamsGroupMember
from twisted_broker.coordinator.streams.requests import HeartbeatRequest
from twisted_broker.wire.errors import BrokerError, ErrorCode


def find_member(
    group: StreamsGroup, request: HeartbeatRequest, max_size: int
) -> StreamsGroupMember | None:
    """The member as the group has it; None: it is new. Raises BrokerError."""
    if request.member_epoch == JOIN_EPOCH:
        if len(group.members) >= max_size:
            raise BrokerError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The streams group has reached its maximum capacity of {max_size} members.",
            )
        return group.members.get(request.member_id)
    member: StreamsGroupMember = member_of(group, request.member_id)
    _check_epoch(member, request)
    return member


def _check_epoch(member: StreamsGroupMember, request: HeartbeatRequest) -> None:
    received = request.member_epoch
    if received == member.epoch:
        return
    owned, assigned = request.owned, member.assigned
    if (
        received < member.epoch
        and received == member.previous_epoch
        and owned is not None
        and owned.active <= assigned.active.keys()
        and owned.standby <= assigned.standby
        and owned.warmup <= assigned.warmup
    ):
        return
    relation = "greater" if received > member.epoch else "smaller"
    raise BrokerError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The streams group member has a {relation} member epoch ({received}) than the one known "
        f"by the group coordinator ({member.epoch}). The member must abandon all its partitions "
        "and rejoin.",
    )
