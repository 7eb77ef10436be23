"""A member of a consumer group. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `ConsumerGroupMember`, its states, and what records of types 5 and 8 say of it.

1. A member is a value: a change makes another one.
2. A partition is assigned, or pending revocation: told to be given up, and not yet known to be
   without this owner. Both map it to the target epoch at which the member first got it.

Source: Apache Kafka 4.3.1 `ConsumerGroupMember`, `MemberState`, `ModernGroupMember`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType

from twisted_broker.coordinator.consumer.partitions import Epochs, by_topic
from twisted_broker.coordinator.record_codec import StoredRecord
from twisted_broker.wire.messages.group_records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    TopicPartitions,
)

JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2
UNKNOWN_EPOCH = -1
NO_TIMEOUT = -1
NO_PARTITIONS: Epochs = MappingProxyType({})


class MemberState(IntEnum):
    """How far a member is towards its target."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


STABLE, UNREVOKED, UNRELEASED = (
    MemberState.STABLE,
    MemberState.UNREVOKED_PARTITIONS,
    MemberState.UNRELEASED_PARTITIONS,
)


@dataclass(frozen=True, slots=True)
class ConsumerGroupMember:
    """`names` are sorted. `pattern` is "" where there is none."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = NO_TIMEOUT
    names: tuple[str, ...] = ()
    pattern: str = ""
    assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    epoch: int = JOIN_EPOCH
    previous_epoch: int = UNKNOWN_EPOCH
    state: MemberState = STABLE
    assigned: Epochs = field(default_factory=lambda: NO_PARTITIONS)
    pending: Epochs = field(default_factory=lambda: NO_PARTITIONS)

    @property
    def is_revoking(self) -> bool:
        """Whether it was told to give up some, and has not said that it did."""
        return self.state is UNREVOKED

    def moved_to(
        self, epoch: int, state: MemberState, assigned: Epochs, pending: Epochs = NO_PARTITIONS
    ) -> ConsumerGroupMember:
        """The member after a step of its reconciliation."""
        return replace(
            self,
            previous_epoch=self.epoch,
            epoch=epoch,
            state=state,
            assigned=assigned,
            pending=pending,
        )

    def metadata_record(self, group_id: str) -> StoredRecord:
        """Type 5: the member's own words: subscription, host, timeout."""
        key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=self.member_id)
        return key, ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=list(self.names),
            subscribed_topic_regex=self.pattern,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=self.classic,
        )

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> ConsumerGroupMember:
        """The member as a record of type 5 says."""
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            names=tuple(sorted(set(value.subscribed_topic_names))),
            pattern=value.subscribed_topic_regex or "",
            assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def assignment_record(self, group_id: str) -> StoredRecord:
        """Type 8: the assignment that the member was told."""
        key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=self.member_id)
        return key, ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=_written(self.assigned),
            partitions_pending_revocation=_written(self.pending),
        )

    def with_assignment(
        self, value: ConsumerGroupCurrentMemberAssignmentValue
    ) -> ConsumerGroupMember:
        """The member as a record of type 8 says."""
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=_state(value.state),
            assigned=_read(value.assigned_partitions, value.member_epoch),
            pending=_read(value.partitions_pending_revocation, value.member_epoch),
        )

    def without_assignment(self) -> ConsumerGroupMember:
        """The member as the tombstone of its type 8 leaves it."""
        return replace(
            self,
            epoch=LEAVE_EPOCH,
            previous_epoch=LEAVE_EPOCH,
            state=STABLE,
            assigned=NO_PARTITIONS,
            pending=NO_PARTITIONS,
        )


def _written(partitions: Epochs) -> list[TopicPartitions]:
    return [
        TopicPartitions(
            topic_id=topic_id,
            partitions=numbers,
            assignment_epochs=[partitions[topic_id, number] for number in numbers],
        )
        for topic_id, numbers in by_topic(partitions)
    ]


def _read(topics: list[TopicPartitions], member_epoch: int) -> Epochs:
    """Kafka 4.2 and older wrote no epochs: then they count as given at the member's."""
    return {
        (topic.topic_id, number): epoch
        for topic in topics
        for number, epoch in zip(
            topic.partitions,
            topic.assignment_epochs or [max(member_epoch, 0)] * len(topic.partitions),
            strict=False,
        )
    }


def _state(byte: int) -> MemberState:
    try:
        return MemberState(byte)
    except ValueError:
        return MemberState.UNKNOWN  # of a newer version
