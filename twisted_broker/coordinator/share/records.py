"""Records of share groups in `__consumer_offsets`. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns the types of records of these groups, 10 to 15, and their tombstones. Those of a member's own
state, 10 and 14, are made in `member.py`.

1. Type 15 says at once which partitions have a state with the share coordinator, which are about to
   get one, and of which topics it is being deleted.

Source: Apache Kafka 4.3.1 `GroupCoordinatorRecordHelpers`. Not here: what a record does to a group
(`group.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from twisted_broker.coordinator.consumer.partitions import TopicIdPartition, by_topic
from twisted_broker.coordinator.record_codec import RecordTypes, StoredRecord
from twisted_broker.wire.messages import group_records as messages

decode_record = RecordTypes(
    (messages.ShareGroupMemberMetadataKey, messages.ShareGroupMemberMetadataValue),
    (messages.ShareGroupMetadataKey, messages.ShareGroupMetadataValue),
    (
        messages.ShareGroupTargetAssignmentMetadataKey,
        messages.ShareGroupTargetAssignmentMetadataValue,
    ),
    (messages.ShareGroupTargetAssignmentMemberKey, messages.ShareGroupTargetAssignmentMemberValue),
    (
        messages.ShareGroupCurrentMemberAssignmentKey,
        messages.ShareGroupCurrentMemberAssignmentValue,
    ),
    (
        messages.ShareGroupStatePartitionMetadataKey,
        messages.ShareGroupStatePartitionMetadataValue,
    ),
).decode


class StateTopic(NamedTuple):
    """Partitions of one topic."""

    name: str
    partitions: frozenset[int]


StateTopics = Mapping[bytes, StateTopic]
"""By topic id."""


class ShareStates(NamedTuple):
    """Which partitions have a state with the share coordinator. `deleting`: names by topic id."""

    initializing: StateTopics = {}
    initialized: StateTopics = {}
    deleting: Mapping[bytes, str] = {}


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> StoredRecord:
    """Type 11."""
    return messages.ShareGroupMetadataKey(group_id=group_id), messages.ShareGroupMetadataValue(
        epoch=epoch, metadata_hash=metadata_hash
    )


def target_epoch_record(group_id: str, epoch: int, wall_ms: int) -> StoredRecord:
    """Type 12."""
    return messages.ShareGroupTargetAssignmentMetadataKey(group_id=group_id), (
        messages.ShareGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=wall_ms
        )
    )


def target_record(
    group_id: str, member_id: str, target: Iterable[TopicIdPartition]
) -> StoredRecord:
    """Type 13."""
    key = messages.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return key, messages.ShareGroupTargetAssignmentMemberValue(topic_partitions=stored(target))


def states_record(group_id: str, states: ShareStates) -> StoredRecord:
    """Type 15."""
    return messages.ShareGroupStatePartitionMetadataKey(group_id=group_id), (
        messages.ShareGroupStatePartitionMetadataValue(
            initializing_topics=_stored_topics(states.initializing),
            initialized_topics=_stored_topics(states.initialized),
            deleting_topics=[
                messages.ShareTopicInfo(topic_id=topic_id, topic_name=name)
                for topic_id, name in sorted(states.deleting.items())
            ],
        )
    )


def read_states(value: messages.ShareGroupStatePartitionMetadataValue) -> ShareStates:
    """Of a record of type 15."""
    return ShareStates(
        _read_topics(value.initializing_topics),
        _read_topics(value.initialized_topics),
        {bytes(each.topic_id): each.topic_name for each in value.deleting_topics},
    )


def member_tombstones(group_id: str, member_id: str) -> list[StoredRecord]:
    """Of all that a member has: 14, 13, 10."""
    return [
        (key(group_id=group_id, member_id=member_id), None)
        for key in (
            messages.ShareGroupCurrentMemberAssignmentKey,
            messages.ShareGroupTargetAssignmentMemberKey,
            messages.ShareGroupMemberMetadataKey,
        )
    ]


def group_tombstones(group_id: str) -> list[StoredRecord]:
    """Of a group without members: 12, 15, 11."""
    return [
        (key(group_id=group_id), None)
        for key in (
            messages.ShareGroupTargetAssignmentMetadataKey,
            messages.ShareGroupStatePartitionMetadataKey,
            messages.ShareGroupMetadataKey,
        )
    ]


def stored(partitions: Iterable[TopicIdPartition]) -> list[messages.ShareTopicPartitions]:
    """As records hold them."""
    return [
        messages.ShareTopicPartitions(topic_id=topic_id, partitions=numbers)
        for topic_id, numbers in by_topic(partitions)
    ]


def read(topics: Iterable[messages.ShareTopicPartitions]) -> frozenset[TopicIdPartition]:
    """As a record holds them."""
    return frozenset(
        (bytes(topic.topic_id), number) for topic in topics for number in topic.partitions
    )


def _stored_topics(topics: StateTopics) -> list[messages.ShareTopicPartitionsInfo]:
    return [
        messages.ShareTopicPartitionsInfo(
            topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions)
        )
        for topic_id, topic in sorted(topics.items())
    ]


def _read_topics(topics: Iterable[messages.ShareTopicPartitionsInfo]) -> StateTopics:
    return {
        bytes(each.topic_id): StateTopic(each.topic_name, frozenset(each.partitions))
        for each in topics
    }
