"""Records of consumer groups in `__consumer_offsets`: bytes <-> keys and values.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns the types of records of these groups, 3 to 8 and 16, and their tombstones. Those of a member's
own state, 5 and 8, are made in `member.py`.

1. Keys and values are the messages of `wire/messages/group_records.py`. Both are written as version
   0; a tombstone is a null value.
2. A value of a newer version is read as far as version 0 goes: the fields are flexible.
3. A key of another type is left alone (None).

Source: Apache Kafka 4.3.1 `GroupCoordinatorRecordHelpers`, `CoordinatorRecordSerde`. Not here: what
a record does to a group (`group.py`); offsets and classic groups (`coordinator/group_records.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from twisted_broker.coordinator.consumer.partitions import TopicIdPartition, by_topic
from twisted_broker.coordinator.group_records import KeyValue, MalformedRecord
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.messages import group_records as messages
from twisted_broker.wire.schema import decode, decode_from, encode
from twisted_broker.wire.structs import Record

ConsumerGroupRecord = tuple[Record, Record | None]
"""A key and its value; None: a tombstone."""

_TYPES: dict[int, tuple[type[Record], type[Record]]] = {
    key.record_type: (key, value)
    for key, value in (
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
}
_SHORT = struct.Struct(">h")
_VERSION = 0


def encode_record(record: ConsumerGroupRecord) -> KeyValue:
    """The bytes of a record."""
    key, value = record
    return (
        _SHORT.pack(key.record_type) + encode(key, _VERSION),
        None if value is None else _SHORT.pack(_VERSION) + encode(value, _VERSION),
    )


def decode_record(key: bytes | None, value: bytes | None) -> ConsumerGroupRecord | None:
    """One record; None when its key is of a type that is not ours. Raises MalformedRecord."""
    if key is None or len(key) < _SHORT.size:
        raise MalformedRecord("a record without a key")
    types = _TYPES.get(_SHORT.unpack_from(key)[0])
    if types is None:
        return None
    if value is not None and (len(value) < _SHORT.size or _SHORT.unpack_from(value)[0] < 0):
        raise MalformedRecord("a value without a version")
    of_key, of_value = types
    try:
        name = decode(of_key, key, _VERSION, _SHORT.size)
        if value is None:
            return name, None
        return name, decode_from(of_value, value, _VERSION, _SHORT.size)[0]
    except WireError as error:
        raise MalformedRecord(str(error)) from None


# records of a group
def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> ConsumerGroupRecord:
    """Type 3."""
    return messages.ConsumerGroupMetadataKey(group_id=group_id), (
        messages.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    )


def target_epoch_record(group_id: str, epoch: int, wall_ms: int) -> ConsumerGroupRecord:
    """Type 6."""
    return messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), (
        messages.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=wall_ms
        )
    )


def target_record(
    group_id: str, member_id: str, target: Iterable[TopicIdPartition]
) -> ConsumerGroupRecord:
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
) -> ConsumerGroupRecord:
    """Type 16."""
    key = messages.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
    return key, messages.ConsumerGroupRegularExpressionValue(
        topics=list(topics), version=version, timestamp=wall_ms
    )


def partition_metadata_tombstone(group_id: str) -> ConsumerGroupRecord:
    """Type 4."""
    return messages.ConsumerGroupPartitionMetadataKey(group_id=group_id), None


def pattern_tombstone(group_id: str, pattern: str) -> ConsumerGroupRecord:
    """Type 16."""
    key = messages.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
    return key, None


def current_tombstone(group_id: str, member_id: str) -> ConsumerGroupRecord:
    """Type 8."""
    key = messages.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
    return key, None


def target_tombstone(group_id: str, member_id: str) -> ConsumerGroupRecord:
    """Type 7."""
    key = messages.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return key, None


def member_tombstone(group_id: str, member_id: str) -> ConsumerGroupRecord:
    """Type 5."""
    key = messages.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
    return key, None


def member_tombstones(group_id: str, member_id: str) -> list[ConsumerGroupRecord]:
    """Of all that a member has."""
    return [
        current_tombstone(group_id, member_id),
        target_tombstone(group_id, member_id),
        member_tombstone(group_id, member_id),
    ]


def group_tombstone(group_id: str) -> ConsumerGroupRecord:
    """Type 3."""
    return messages.ConsumerGroupMetadataKey(group_id=group_id), None


def target_epoch_tombstone(group_id: str) -> ConsumerGroupRecord:
    """Type 6."""
    return messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None
