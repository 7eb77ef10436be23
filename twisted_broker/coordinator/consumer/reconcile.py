"""One step of a member from the assignment it was told towards its target.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `reconcile`.

1. A member reaches no epoch before it gave up what that epoch's target takes from it, and nobody
   gets a partition before its owner said that it is without it, left, or was fenced.
2. A heartbeat that names no owned partitions (None) gives none of them up.
3. Whenever a step is made, the previous epoch is the one before it, which may be the same.

Source: Apache Kafka 4.3.1 `CurrentAssignmentBuilder`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from twisted_broker.coordinator.consumer.member import (
    STABLE,
    UNRELEASED,
    UNREVOKED,
    ConsumerGroupMember,
    MemberState,
)
from twisted_broker.coordinator.consumer.partitions import TopicIdPartition
from twisted_broker.wire.errors import BrokerError, ErrorCode

Partitions = AbstractSet[TopicIdPartition]


def reconcile(
    member: ConsumerGroupMember,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    has_owner: Callable[[TopicIdPartition], bool],
    unsubscribed_from: Callable[[bytes], bool],
    subscription_changed: bool,
) -> ConsumerGroupMember:
    """The member after this heartbeat; the same one if nothing moved. `has_owner`: whether
    somebody, be it this member, has the partition assigned or pending. Raises
    FENCED_MEMBER_EPOCH.
    """
    if member.state is STABLE and member.epoch == target_epoch:
        return _dropped(member, owned, unsubscribed_from) if subscription_changed else member
    if member.state is UNREVOKED and _owns_any(owned, member.pending):
        return _dropped(member, owned, unsubscribed_from) if subscription_changed else member
    if member.state is MemberState.UNKNOWN and (owned is None or owned):
        raise BrokerError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The state of the member is unknown here: it must give up all its partitions and "
            "join again.",
        )
    wanted = {each for each in target if not unsubscribed_from(each[0])}
    return _next(member, target_epoch, wanted, owned, has_owner)


def _next(
    member: ConsumerGroupMember,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    has_owner: Callable[[TopicIdPartition], bool],
) -> ConsumerGroupMember:
    assigned = {each: epoch for each, epoch in member.assigned.items() if each in target}
    to_revoke = {each: epoch for each, epoch in member.assigned.items() if each not in target}
    if to_revoke and _owns_any(owned, to_revoke):
        return member.moved_to(member.epoch, UNREVOKED, assigned, to_revoke)
    missing = [each for each in target if each not in member.assigned]
    # A partition that this member itself was to give up comes back without having been free.
    to_assign = [each for each in missing if each in member.pending or not has_owner(each)]
    assigned.update(dict.fromkeys(to_assign, target_epoch))
    state = UNRELEASED if len(to_assign) < len(missing) else STABLE
    return member.moved_to(target_epoch, state, assigned)


def _dropped(
    member: ConsumerGroupMember,
    owned: Partitions | None,
    unsubscribed_from: Callable[[bytes], bool],
) -> ConsumerGroupMember:
    """Without partitions of topics that it does not subscribe to any more."""
    dropped = {each: epoch for each, epoch in member.assigned.items() if unsubscribed_from(each[0])}
    if not dropped:
        return member
    kept = {each: epoch for each, epoch in member.assigned.items() if each not in dropped}
    pending = {**member.pending, **dropped}
    if _owns_any(owned, pending):
        return member.moved_to(member.epoch, UNREVOKED, kept, pending)
    return replace(member, previous_epoch=member.epoch, assigned=kept)


def _owns_any(owned: Partitions | None, partitions: Iterable[TopicIdPartition]) -> bool:
    return owned is None or any(each in owned for each in partitions)
