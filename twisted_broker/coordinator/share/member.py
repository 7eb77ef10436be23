"""A member of a share group. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `ShareGroupMember`, and what records of types 10 and 14 say of it.

1. A member is a value: a change makes another one.
2. It is given its target at once: nobody must give up a partition before another reads it, too.

Source: Apache Kafka 4.3.1 `ShareGroupMember`, `ModernGroupMember`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from twisted_broker.coordinator.consumer.member import JOIN_EPOCH, LEAVE_EPOCH, UNKNOWN_EPOCH
from twisted_broker.coordinator.consumer.partitions import NOTHING, Target
from twisted_broker.coordinator.record_codec import StoredRecord
from twisted_broker.coordinator.share.records import read, stored
from twisted_broker.wire.messages.group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
)

_STABLE = 0


@dataclass(frozen=True, slots=True)
class ShareGroupMember:
    """`names` are sorted."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    names: tuple[str, ...] = ()
    epoch: int = JOIN_EPOCH
    previous_epoch: int = UNKNOWN_EPOCH
    assigned: Target = NOTHING

    is_revoking = False

    def metadata_record(self, group_id: str) -> StoredRecord:
        """Type 10: the member's own words: subscription and host."""
        key = ShareGroupMemberMetadataKey(group_id=group_id, member_id=self.member_id)
        return key, ShareGroupMemberMetadataValue(
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=list(self.names),
        )

    def with_metadata(self, value: ShareGroupMemberMetadataValue) -> ShareGroupMember:
        """The member as a record of type 10 says."""
        return replace(
            self,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            names=tuple(sorted(set(value.subscribed_topic_names))),
        )

    def assignment_record(self, group_id: str) -> StoredRecord:
        """Type 14: the assignment that the member was told."""
        key = ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=self.member_id)
        return key, ShareGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=_STABLE,
            assigned_partitions=stored(self.assigned),
        )

    def with_assignment(self, value: ShareGroupCurrentMemberAssignmentValue) -> ShareGroupMember:
        """The member as a record of type 14 says."""
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            assigned=read(value.assigned_partitions),
        )

    def without_assignment(self) -> ShareGroupMember:
        """The member as the tombstone of its type 14 leaves it."""
        return replace(self, epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH, assigned=NOTHING)
