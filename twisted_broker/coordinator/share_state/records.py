"""Records of `__share_group_state`. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns the two types of records, a tombstone, and which partition holds a share partition.

1. A snapshot (key type 0) has the whole state of a share partition; an update (1) the changes
   since. A tombstone is a snapshot without a value. The topic is not compacted: the order counts.
2. A share partition lives in one partition: Java's hash of `group:topic id:partition` modulo the
   number of partitions.

Source: Apache Kafka 4.3.1 `ShareStoredRecordHelpers`, `ShareCoordinatorService.partitionFor`.
Not here: their bytes (`coordinator/record_codec.py`), what they do (`share_state.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.coordinator.record_codec import RecordTypes, StoredRecord
from twisted_broker.coordinator.share_state.values import SharePartitionKey, StateBatch
from twisted_broker.wire.messages.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareStateBatch,
    ShareUpdateKey,
    ShareUpdateValue,
)
from twisted_broker.wire.primitives import uuid_text

decode_record = RecordTypes(
    (ShareSnapshotKey, ShareSnapshotValue), (ShareUpdateKey, ShareUpdateValue)
).decode


def coordinator_key(key: SharePartitionKey) -> str:
    """As FindCoordinator names it."""
    return f"{key.group_id}:{uuid_text(key.topic_id)}:{key.partition}"


def state_partition_for(key: SharePartitionKey, partitions_count: int) -> int:
    """The partition of `__share_group_state` that holds the share partition."""
    return partition_for(coordinator_key(key), partitions_count)


def snapshot_record(key: SharePartitionKey, value: ShareSnapshotValue | None) -> StoredRecord:
    """None: a tombstone."""
    return ShareSnapshotKey(
        group_id=key.group_id, topic_id=key.topic_id, partition=key.partition
    ), value


def update_record(key: SharePartitionKey, value: ShareUpdateValue) -> StoredRecord:
    """The changes since the last snapshot."""
    return ShareUpdateKey(
        group_id=key.group_id, topic_id=key.topic_id, partition=key.partition
    ), value


def batches_of(value: ShareSnapshotValue | ShareUpdateValue) -> tuple[StateBatch, ...]:
    """Those of a record."""
    return tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in value.state_batches
    )


def stored_batches(batches: Iterable[StateBatch]) -> list[ShareStateBatch]:
    """As a record holds them."""
    return [
        ShareStateBatch(
            first_offset=first, last_offset=last, delivery_state=state, delivery_count=count
        )
        for first, last, state, count in batches
    ]
