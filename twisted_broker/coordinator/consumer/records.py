"""Records of consumer groups in `__consumer_offsets`. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns the types of records of these groups, 3 to 8 and 16, and their tombstones. Those of a member's
own state, 5 and 8, are made in `member.py`.

Source: Apache Kafka 4.3.1 `GroupCoordinatorRecordHelpers`. Not here: what a record does to a group
(`group.py`); bytes (`record_codec.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twisted_broker.coordinator.consumer.partitions import TopicIdPartition, by_topic
from twisted_broker.coordinator.record_codec import RecordTypes, StoredRecord
from twisted_broker.wire.messages import group_records as messages

_TYPES = RecordTypes(
    (messages.ConsumerGroupMetadataKey, messages.ConsumerGroupMetadataValue),
    (messages.ConsumerGroupPartitionMetadataKey, messages.ConsumerGroupPartitionMetadataValue),
    (messages.ConsumerGroupMemberMetadataKey, messages.ConsumerGroupMemberMetadataValue),
    (
        messages.ConsumerGroupTargetAssignmentMetadataKey,
        messages.ConsumerGroupTargetAssignmentMetadataValue,
    ),
    (
        messages.ConsumerGroupTargetAssignmentMemberKey,
        messages.ConsumerGroupTargetAssignmentMemberValue,
    ),
    (
        messages.ConsumerGroupCurrentMemberAssignmentKey,
        messages.ConsumerGroupCurrentMemberAssignmentValue,
    ),
    (messages.ConsumerGroupRegularExpressionKey, messages.ConsumerGroupRegularExpressionValue),
)
decode_record = _TYPES.decode


# records of a group
def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> StoredRecord:
    """Type 3."""
    return messages.ConsumerGroupMetadataKey(group_id=group_id), (
        messages.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    )


def target_epoch_record(group_id: str, epoch: int, wall_ms: int) -> StoredRecord:
    """Type 6."""
    return messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), (
        messages.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=wall_ms
        )
    )


def target_record(
    group_id: str, member_id: str, target: Iterable[TopicIdPartition]
) -> StoredRecord:
    """Type 7."""
    key = messages.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return key, messages.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            messages.TopicPartition(topic_id=topic_id, partitions=numbers)
            for topic_id, numbers in by_topic(target)
        ]
    )


def pattern_record(
    group_id: str, pattern: str, topics: Sequence[str], version: int, wall_ms: int
) -> StoredRecord:
    """Type 16."""
    key = messages.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
    return key, messages.ConsumerGroupRegularExpressionValue(
        topics=list(topics), version=version, timestamp=wall_ms
    )


def partition_metadata_tombstone(group_id: str) -> StoredRecord:
    """Type 4."""
    return messages.ConsumerGroupPartitionMetadataKey(group_id=group_id), None


def pattern_tombstone(group_id: str, pattern: str) -> StoredRecord:
    """Type 16."""
    key = messages.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
    return key, None


def current_tombstone(group_id: str, member_id: str) -> StoredRecord:
    """Type 8."""
    key = messages.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
    return key, None


def target_tombstone(group_id: str, member_id: str) -> StoredRecord:
    """Type 7."""
    key = messages.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return key, None


def member_tombstone(group_id: str, member_id: str) -> StoredRecord:
    """Type 5."""
    key = messages.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
    return key, None


def member_tombstones(group_id: str, member_id: str) -> list[StoredRecord]:
    """Of all that a member has."""
    return [
        current_tombstone(group_id, member_id),
        target_tombstone(group_id, member_id),
        member_tombstone(group_id, member_id),
    ]


def group_tombstone(group_id: str) -> StoredRecord:
    """Type 3."""
    return messages.ConsumerGroupMetadataKey(group_id=group_id), None


def target_epoch_tombstone(group_id: str) -> StoredRecord:
    """Type 6."""
    return messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None
