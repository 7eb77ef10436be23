"""Who may commit offsets of a streams group. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `check_commit`.

1. A partition belongs to the task of its number in the subtopology that reads its topic. A late
   commit counts for tasks that the member still has as active and got at the epoch it names or
   before; one partition for which it does not count refuses the whole request.

Source: Apache Kafka 4.3.1 `StreamsGroup.validateOffsetCommit` (KIP-1251). Not here: a group that
does not exist, and groups of other kinds. Brother: `consumer/offsets.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted_broker.coordinator.member_epochs import member_of, stale
from twisted_broker.coordinator.streams.group import StreamsGroup
from twisted_broker.coordinator.streams.member import StreamsGroupMember
from twisted_broker.wire.errors import BrokerError, ErrorCode


def check_commit(
    group: StreamsGroup,
    member_id: str,
    member_epoch: int,
    partitions: Iterable[tuple[str, int]],
    knows_member_epochs: bool,
) -> None:
    """`partitions`: of the request, by the topics' names. `knows_member_epochs`: its version does,
    or it is of a transaction. Raises BrokerError.
    """
    if member_epoch < 0 and not group.members:
        return
    member: StreamsGroupMember = member_of(group, member_id)
    if not knows_member_epochs:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION,
            "OffsetCommit version 9 or above must be used by members using the streams group "
            "protocol",
        )
    if member_epoch == member.epoch:
        return
    if member_epoch > member.epoch or not all(
        _got_at(group, member, *each, member_epoch) for each in partitions
    ):
        raise stale(member_epoch, member)


def _got_at(
    group: StreamsGroup, member: StreamsGroupMember, topic: str, number: int, epoch: int
) -> bool:
    """Whether its task is the member's since that epoch or longer."""
    subtopology_id = None if group.topology is None else group.topology.sources.get(topic)
    if subtopology_id is None:
        return False
    task = subtopology_id, number
    got_at = member.assigned.active.get(task, member.pending.active.get(task))
    return got_at is not None and got_at <= epoch
