"""Records of streams groups in `__consumer_offsets`. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns the types of records of these groups, 17 and 19 to 23, and their tombstones. Those of a
member's own state, 19 and 22, are made in `member.py`.

Source: Apache Kafka 4.3.1 `StreamsCoordinatorRecordHelpers`. Not here: what a record does to a
group (`group.py`); bytes (`record_codec.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from twisted_broker.coordinator.record_codec import RecordTypes, StoredRecord
from twisted_broker.coordinator.streams.tasks import Task, Tasks, by_subtopology
from twisted_broker.wire.messages import group_records as messages

_TYPES = RecordTypes(
    (messages.StreamsGroupMetadataKey, messages.StreamsGroupMetadataValue),
    (messages.StreamsGroupMemberMetadataKey, messages.StreamsGroupMemberMetadataValue),
    (
        messages.StreamsGroupTargetAssignmentMetadataKey,
        messages.StreamsGroupTargetAssignmentMetadataValue,
    ),
    (
        messages.StreamsGroupTargetAssignmentMemberKey,
        messages.StreamsGroupTargetAssignmentMemberValue,
    ),
    (
        messages.StreamsGroupCurrentMemberAssignmentKey,
        messages.StreamsGroupCurrentMemberAssignmentValue,
    ),
    (messages.StreamsGroupTopologyKey, messages.StreamsGroupTopologyValue),
)
decode_record = _TYPES.decode


def epoch_record(
    group_id: str,
    epoch: int,
    metadata_hash: int,
    validated_topology_epoch: int,
    assignment_configs: Mapping[str, str],
) -> StoredRecord:
    """Type 17."""
    return messages.StreamsGroupMetadataKey(group_id=group_id), messages.StreamsGroupMetadataValue(
        epoch=epoch,
        metadata_hash=metadata_hash,
        validated_topology_epoch=validated_topology_epoch,
        last_assignment_configs=[
            messages.LastAssignmentConfig(key=key, value=value)
            for key, value in sorted(assignment_configs.items())
        ],
    )


def target_epoch_record(group_id: str, epoch: int, wall_ms: int) -> StoredRecord:
    """Type 20."""
    return messages.StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), (
        messages.StreamsGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=wall_ms
        )
    )


def target_record(group_id: str, member_id: str, target: Tasks) -> StoredRecord:
    """Type 21."""
    key = messages.StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return key, messages.StreamsGroupTargetAssignmentMemberValue(
        active_tasks=_lists(target.active),
        standby_tasks=_lists(target.standby),
        warmup_tasks=_lists(target.warmup),
    )


def _lists(tasks: Iterable[Task]) -> list[messages.TaskIds]:
    return [
        messages.TaskIds(subtopology_id=subtopology_id, partitions=numbers)
        for subtopology_id, numbers in by_subtopology(tasks)
    ]


def topology_record(group_id: str, topology: messages.StreamsGroupTopologyValue) -> StoredRecord:
    """Type 23."""
    return messages.StreamsGroupTopologyKey(group_id=group_id), topology


def current_tombstone(group_id: str, member_id: str) -> StoredRecord:
    """Type 22."""
    key = messages.StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
    return key, None


def target_tombstone(group_id: str, member_id: str) -> StoredRecord:
    """Type 21."""
    key = messages.StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return key, None


def member_tombstone(group_id: str, member_id: str) -> StoredRecord:
    """Type 19."""
    return messages.StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None


def member_tombstones(group_id: str, member_id: str) -> list[StoredRecord]:
    """Of all that a member has."""
    return [
        current_tombstone(group_id, member_id),
        target_tombstone(group_id, member_id),
        member_tombstone(group_id, member_id),
    ]


def target_epoch_tombstone(group_id: str) -> StoredRecord:
    """Type 20."""
    return messages.StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), None


def group_tombstone(group_id: str) -> StoredRecord:
    """Type 17."""
    return messages.StreamsGroupMetadataKey(group_id=group_id), None


def topology_tombstone(group_id: str) -> StoredRecord:
    """Type 23."""
    return messages.StreamsGroupTopologyKey(group_id=group_id), None
