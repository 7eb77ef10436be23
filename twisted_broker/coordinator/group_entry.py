"""What a shard holds under a group id: the group and its offsets.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `GroupEntry`.

1. While `is_being_deleted` nobody may change the group: it lasts until each of its tombstones is
   decided.

Source: Apache Kafka 4.3.1 keeps groups and offsets in two maps (`GroupMetadataManager.groups`,
`OffsetMetadataManager.offsets`); here they come and go together.
"""

from __future__ import annotations

from twisted_broker.coordinator.classic_group import EMPTY, ClassicGroup
from twisted_broker.coordinator.group_offsets import GroupOffsets


class GroupEntry:
    """A group with its committed offsets."""

    __slots__ = ("group", "is_being_deleted", "offsets")

    def __init__(self, group: ClassicGroup, offsets: GroupOffsets | None = None) -> None:
        self.group = group
        self.offsets = offsets or GroupOffsets()
        self.is_being_deleted = False

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing that anybody could miss."""
        return (
            self.group.state is EMPTY and not self.group.pending_joins and self.offsets.is_empty()
        )
