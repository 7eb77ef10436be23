"""A consumer group: the state that its records give, and facts derived from that.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `ConsumerGroup`, a `ModernGroup` (`modern_group.py`).

1. A partition has an owner while some member has it assigned or pending. In a live group there is
   one at most; owners are counted, because a replay of a compacted log may pass through states
   that never were: the end is the same in any order of the records of different members.
2. The state is computed, never stored.

Source: Apache Kafka 4.3.1 `ConsumerGroup`, `ModernGroup`, `GroupMetadataManager.replay`. Not here:
what a request changes (`heartbeat.py`, `leaving.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from twisted_broker.coordinator.consumer.member import (
    STABLE,
    ConsumerGroupMember,
)
from twisted_broker.coordinator.consumer.partitions import NOTHING, Target, TopicIdPartition
from twisted_broker.coordinator.consumer.records import (
    current_tombstone,
    group_tombstone,
    member_tombstone,
    partition_metadata_tombstone,
    pattern_tombstone,
    target_epoch_tombstone,
    target_tombstone,
)
from twisted_broker.coordinator.consumer.subscriptions import Subscriptions
from twisted_broker.coordinator.modern_group import ModernGroup
from twisted_broker.coordinator.record_codec import StoredRecord
from twisted_broker.wire.messages import group_records as messages

NEVER_MS = -(2**62)


class ConsumerGroupState(Enum):
    """By the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class ResolvedPattern:
    """The topics that a pattern matched in the image of offset `version`."""

    topics: tuple[str, ...]
    version: int
    timestamp_ms: int


@dataclass(slots=True)
class PatternRefresh:
    """The last time that the patterns were resolved, and the image that showed their topics."""

    is_running: bool = False
    began_at_ms: int = NEVER_MS
    version: int = -1


class ConsumerGroup(ModernGroup):
    """One group."""

    group_type: ClassVar[str] = "consumer"
    protocol_type: ClassVar[str] = "consumer"
    key_type = messages.ConsumerGroupMetadataKey
    __slots__ = (
        "_owners",
        "has_partition_metadata",
        "members",
        "pattern_refresh",
        "patterns",
        "static",
        "subscriptions",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        # A record of type 4, which Kafka 4.0 wrote, is still there.
        self.has_partition_metadata = False
        self.members: dict[str, ConsumerGroupMember] = {}
        self.static: dict[str, str] = {}
        self.targets: dict[str, Target] = {}
        self.patterns: dict[str, ResolvedPattern] = {}
        self.pattern_refresh = PatternRefresh()
        self.subscriptions = Subscriptions()
        self._owners: Counter[TopicIdPartition] = Counter()

    @property
    def state(self) -> ConsumerGroupState:
        if self.is_dead:
            return ConsumerGroupState.DEAD
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(
            each.state is STABLE and each.epoch == self.assignment_epoch
            for each in self.members.values()
        ):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def has_owner(self, partition: TopicIdPartition) -> bool:
        """Whether some member has it assigned or pending revocation."""
        return partition in self._owners

    def target(self, member_id: str) -> Target:
        return self.targets.get(member_id, NOTHING)

    def resolved(self) -> Mapping[str, tuple[str, ...]]:
        """The topics of each pattern that is resolved."""
        return {pattern: each.topics for pattern, each in self.patterns.items()}

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member names it, or has a pattern that matched it."""
        return topic in self.subscriptions.names or any(
            topic in self.patterns[each].topics
            for each in self.subscriptions.patterns
            if each in self.patterns
        )

    def topics_changed(self, names: Set[str]) -> None:
        subscribed = self.subscriptions.names
        few, many = (names, subscribed) if len(names) < len(subscribed) else (subscribed, names)
        if any(each in many for each in few) or any(
            not names.isdisjoint(each.topics) for each in self.patterns.values()
        ):
            self.metadata_changed()

    def tombstones(self, replaced: Mapping[str, str] | None = None) -> Iterator[StoredRecord]:
        """`replaced`: ids in whose place there are others by now."""
        others = replaced or {}
        members = [others.get(each, each) for each in self.members]
        for member_id in members:
            yield current_tombstone(self.group_id, member_id)
        for member_id in self.targets:
            yield target_tombstone(self.group_id, others.get(member_id, member_id))
        yield target_epoch_tombstone(self.group_id)
        for member_id in members:
            yield member_tombstone(self.group_id, member_id)
        for pattern in self.patterns:
            yield pattern_tombstone(self.group_id, pattern)
        yield partition_metadata_tombstone(self.group_id)
        yield group_tombstone(self.group_id)

    def _apply_partition_metadata(self, key: Any, value: Any) -> None:
        self.has_partition_metadata = value is not None

    def _apply_member(
        self,
        key: messages.ConsumerGroupMemberMetadataKey,
        value: messages.ConsumerGroupMemberMetadataValue | None,
    ) -> None:
        before = self.members.get(key.member_id)
        if value is None:
            self._put(before, None)
        else:
            known = before or ConsumerGroupMember(key.member_id)
            self._put(before, known.with_metadata(value))

    def _apply_current(
        self,
        key: messages.ConsumerGroupCurrentMemberAssignmentKey,
        value: messages.ConsumerGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        before = self.members.get(key.member_id)
        if value is not None:
            known = before or ConsumerGroupMember(key.member_id)
            self._put(before, known.with_assignment(value))
        elif before is not None:
            self._put(before, before.without_assignment())

    def _apply_target(
        self,
        key: messages.ConsumerGroupTargetAssignmentMemberKey,
        value: messages.ConsumerGroupTargetAssignmentMemberValue | None,
    ) -> None:
        if value is None:
            self.targets.pop(key.member_id, None)
        else:
            self.targets[key.member_id] = frozenset(
                (each.topic_id, number)
                for each in value.topic_partitions
                for number in each.partitions
            )

    def _apply_pattern(
        self,
        key: messages.ConsumerGroupRegularExpressionKey,
        value: messages.ConsumerGroupRegularExpressionValue | None,
    ) -> None:
        if value is None:
            self.patterns.pop(key.regular_expression, None)
        else:
            self.patterns[key.regular_expression] = ResolvedPattern(
                tuple(value.topics), value.version, value.timestamp
            )

    def _put(self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None) -> None:
        self.subscriptions.change(before, after)
        self._count_owners(_owned(before), _owned(after))
        if before is not None:
            if self.static.get(before.instance_id or "") == before.member_id:
                del self.static[before.instance_id or ""]
            if after is None:
                del self.members[before.member_id]
        if after is not None:
            self.members[after.member_id] = after
            if after.instance_id is not None:
                self.static[after.instance_id] = after.member_id

    def _count_owners(self, before: Set[TopicIdPartition], after: Set[TopicIdPartition]) -> None:
        """One member that had `before` has `after`: mostly the same."""
        self._owners.update(after - before)
        for each in before - after:
            if self._owners[each] > 1:
                self._owners[each] -= 1
            else:
                del self._owners[each]

    apply_by_type: ClassVar[Mapping[int, Any]] = {
        messages.ConsumerGroupMetadataKey.record_type: ModernGroup._apply_epoch,
        messages.ConsumerGroupPartitionMetadataKey.record_type: _apply_partition_metadata,
        messages.ConsumerGroupMemberMetadataKey.record_type: _apply_member,
        messages.ConsumerGroupTargetAssignmentMetadataKey.record_type: (
            ModernGroup._apply_target_epoch
        ),
        messages.ConsumerGroupTargetAssignmentMemberKey.record_type: _apply_target,
        messages.ConsumerGroupCurrentMemberAssignmentKey.record_type: _apply_current,
        messages.ConsumerGroupRegularExpressionKey.record_type: _apply_pattern,
    }


def _owned(member: ConsumerGroupMember | None) -> Set[TopicIdPartition]:
    if member is None:
        return NOTHING
    return member.assigned.keys() | member.pending.keys()
