"""A shard's entry for a group id: the group and its offsets.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `GroupEntry`.

1. While `is_being_deleted` nobody may change the group: it lasts until each of its tombstones is
   decided.
2. Only a classic group is ever idle: it may be forgotten without a record. Any other goes with its
   tombstones alone, for its epochs must not begin again while the log has higher ones.

Source: Apache Kafka 4.3.1 keeps groups and offsets in two maps (`GroupMetadataManager.groups`,
`OffsetMetadataManager.offsets`); here they come and go together.
"""

from __future__ import annotations

from twisted_broker.coordinator.classic_group import ClassicGroup
from twisted_broker.coordinator.group_offsets import GroupOffsets
from twisted_broker.coordinator.modern_group import ModernGroup

Group = ClassicGroup | ModernGroup
"""Of any protocol. Both have: group_id, group_type, protocol_type, state, members, is_empty,
is_dead, is_subscribed_to.
"""


class GroupEntry:
    """A group with its committed offsets."""

    __slots__ = ("group", "is_being_deleted", "offsets")

    def __init__(self, group: Group, offsets: GroupOffsets | None = None) -> None:
        self.group = group
        self.offsets = offsets or GroupOffsets()
        self.is_being_deleted = False

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing that anybody could miss."""
        group = self.group
        return (
            isinstance(group, ClassicGroup)
            and group.is_empty
            and not group.pending_joins
            and self.offsets.is_empty()
        )
