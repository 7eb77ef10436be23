"""Who may commit offsets of a consumer group. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `check_commit`.

1. A late commit counts for partitions that the member still has and got at the epoch it names or
   before: so commits made during a rebalance succeed. One partition for which it does not count
   refuses the whole request.

Source: Apache Kafka 4.3.1 `ConsumerGroup.validateOffsetCommit` (KIP-1251). Not here: a group that
does not exist, and groups of other kinds.
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.member import ConsumerGroupMember
from twisted_broker.coordinator.consumer.partitions import TopicIdPartition
from twisted_broker.coordinator.member_epochs import member_of, stale
from twisted_broker.wire.errors import BrokerError, ErrorCode

FIRST_VERSION_WITH_MEMBER_EPOCH = 9


def check_commit(
    group: ConsumerGroup,
    member_id: str,
    member_epoch: int,
    partitions: Iterable[TopicIdPartition],
    knows_member_epochs: bool,
) -> None:
    """`partitions`: of the request, by the topics' ids in the present image.
    `knows_member_epochs`: its version does, or it is of a transaction. Raises BrokerError.
    """
    if member_epoch < 0 and not group.members:
        return
    member = member_of(group, member_id)
    if not knows_member_epochs and member.classic is None:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Members of the consumer protocol commit with version "
            f"{FIRST_VERSION_WITH_MEMBER_EPOCH} or newer.",
        )
    if member_epoch == member.epoch:
        return
    if member_epoch > member.epoch or not all(
        _got_at(member, each, member_epoch) for each in partitions
    ):
        raise stale(member_epoch, member)


def _got_at(member: ConsumerGroupMember, partition: TopicIdPartition, epoch: int) -> bool:
    """Whether it has the partition since that epoch or longer."""
    got_at = member.assigned.get(partition, member.pending.get(partition))
    return got_at is not None and got_at <= epoch
