"""A share group: the state that its records give, and facts derived from that.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `ShareGroup`, a `ModernGroup`.

1. Only partitions that have a state with the share coordinator are assigned.
2. When the initialising of a topic began is not stored: after a load it begins anew.
3. A group may have states of partitions and nothing else: its offsets were set before anybody
   joined.

Source: Apache Kafka 4.3.1 `ShareGroup`, `GroupMetadataManager.replay`,
`initializedAssignmentPending`. Not here: what a request changes (`heartbeat.py`, `states.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from enum import Enum
from typing import Any, ClassVar

from twisted_broker.coordinator.consumer.partitions import NOTHING, Target
from twisted_broker.coordinator.modern_group import FIRST_EPOCH, ModernGroup
from twisted_broker.coordinator.record_codec import StoredRecord
from twisted_broker.coordinator.share.member import ShareGroupMember
from twisted_broker.coordinator.share.records import (
    ShareStates,
    group_tombstones,
    member_tombstones,
    read,
    read_states,
)
from twisted_broker.wire.messages import group_records as messages


class ShareGroupState(Enum):
    """By the names that clients see."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


class ShareGroup(ModernGroup):
    """One group. `states` None: it has no record of them; `initializing_at`: when the initialising
    of a topic began, by its id.
    """

    group_type: ClassVar[str] = "share"
    protocol_type: ClassVar[str] = "share"
    key_type = messages.ShareGroupMetadataKey
    __slots__ = ("_lacks_target", "initializing_at", "members", "names", "states", "targets")

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.members: dict[str, ShareGroupMember] = {}
        self.targets: dict[str, Target] = {}
        # How many members subscribe to each.
        self.names: Counter[str] = Counter()
        self.states: ShareStates | None = None
        self.initializing_at: dict[bytes, int] = {}
        self._lacks_target: bool | None = None

    @property
    def state(self) -> ShareGroupState:
        if self.is_dead:
            return ShareGroupState.DEAD
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def is_unwritten(self) -> bool:
        return not self.members and self.epoch == FIRST_EPOCH and self.states is None

    @property
    def holds_anything(self) -> bool:
        return bool(self.members) or self.states is not None

    @property
    def known_states(self) -> ShareStates:
        return self.states or ShareStates()

    def target(self, member_id: str) -> Target:
        return self.targets.get(member_id, NOTHING)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.names

    def topics_changed(self, names: Set[str]) -> None:
        few, many = (names, self.names) if len(names) < len(self.names) else (self.names, names)
        if any(each in many for each in few):
            self.metadata_changed()

    def names_after(
        self, before: ShareGroupMember | None, after: ShareGroupMember | None
    ) -> Counter[str]:
        """The subscriptions when the one member has become the other."""
        names = self.names.copy()
        _change(names, before, after)
        return names

    @property
    def lacks_target(self) -> bool:
        """Whether partitions with a state are in nobody's target, or the reverse."""
        if self._lacks_target is None:
            self._lacks_target = self._is_target_lacking()
        return self._lacks_target

    def _is_target_lacking(self) -> bool:
        if not self.members:
            return False
        assigned: dict[bytes, set[int]] = {}
        for topic_id, number in frozenset().union(*self.targets.values()):
            assigned.setdefault(topic_id, set()).add(number)
        return any(
            topic.name in self.names and assigned.get(topic_id) != set(topic.partitions)
            for topic_id, topic in self.known_states.initialized.items()
        )

    def tombstones(self) -> Iterator[StoredRecord]:
        for member_id in {**self.members, **self.targets}:
            yield from member_tombstones(self.group_id, member_id)
        yield from group_tombstones(self.group_id)

    # records
    def apply(self, record: StoredRecord) -> None:
        super().apply(record)
        self._lacks_target = None

    def _apply_member(
        self,
        key: messages.ShareGroupMemberMetadataKey,
        value: messages.ShareGroupMemberMetadataValue | None,
    ) -> None:
        before = self.members.get(key.member_id)
        if value is not None:
            known = before or ShareGroupMember(key.member_id)
            self._put(before, known.with_metadata(value))
        elif before is not None:
            self._put(before, None)

    def _apply_current(
        self,
        key: messages.ShareGroupCurrentMemberAssignmentKey,
        value: messages.ShareGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        before = self.members.get(key.member_id)
        if value is not None:
            known = before or ShareGroupMember(key.member_id)
            self._put(before, known.with_assignment(value))
        elif before is not None:
            self._put(before, before.without_assignment())

    def _apply_target(
        self,
        key: messages.ShareGroupTargetAssignmentMemberKey,
        value: messages.ShareGroupTargetAssignmentMemberValue | None,
    ) -> None:
        if value is None:
            self.targets.pop(key.member_id, None)
        else:
            self.targets[key.member_id] = read(value.topic_partitions)

    def _apply_states(
        self, key: Any, value: messages.ShareGroupStatePartitionMetadataValue | None
    ) -> None:
        self.states = None if value is None else read_states(value)
        initializing = self.known_states.initializing
        for topic_id in [each for each in self.initializing_at if each not in initializing]:
            del self.initializing_at[topic_id]

    def _put(self, before: ShareGroupMember | None, after: ShareGroupMember | None) -> None:
        _change(self.names, before, after)
        if after is not None:
            self.members[after.member_id] = after
        elif before is not None:
            del self.members[before.member_id]

    apply_by_type: ClassVar[Mapping[int, Any]] = {
        messages.ShareGroupMemberMetadataKey.record_type: _apply_member,
        messages.ShareGroupMetadataKey.record_type: ModernGroup._apply_epoch,
        messages.ShareGroupTargetAssignmentMetadataKey.record_type: ModernGroup._apply_target_epoch,
        messages.ShareGroupTargetAssignmentMemberKey.record_type: _apply_target,
        messages.ShareGroupCurrentMemberAssignmentKey.record_type: _apply_current,
        messages.ShareGroupStatePartitionMetadataKey.record_type: _apply_states,
    }


def _change(
    names: Counter[str], before: ShareGroupMember | None, after: ShareGroupMember | None
) -> None:
    for member, count in ((before, -1), (after, 1)):
        for name in () if member is None else member.names:
            names[name] += count
            if not names[name]:
                del names[name]
