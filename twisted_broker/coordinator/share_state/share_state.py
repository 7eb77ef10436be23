"""The share partitions of one partition of `__share_group_state`: what its records say, and what a
request decides. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `ShareState` and `SharePartitionState`. `apply` alone changes them; it serves the live path and
the replay of a log.

1. A request decides against the state, and changes nothing: its record is appended, then applied.
2. Fencing: a leader epoch below the highest that was ever seen, a state epoch below the present
   one. A read with a higher leader epoch writes it down first, so that what the leader before it
   writes is refused from then on. Initialising begins at leader epoch 0, but fences as before.
3. A write is an update, until there are as many as the settings say; then it is a snapshot with
   everything merged.
4. Everything before the oldest snapshot that counts is redundant: the log may begin there. A share
   partition that is not written to holds the others' records, so that it gets a snapshot, once,
   when its last one is old.
5. Memory: a share partition stays until it is deleted or its topic is. Its batches fit a record, or
   no snapshot of it can be written.

Source: Apache Kafka 4.3.1 `ShareCoordinatorShard`, `ShareGroupOffset`,
`ShareCoordinatorOffsetsManager`. Not here: appending and loading (`share_coordinator.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from twisted_broker.coordinator.record_codec import StoredRecord
from twisted_broker.coordinator.share_state.batches import combine
from twisted_broker.coordinator.share_state.records import (
    batches_of,
    snapshot_record,
    stored_batches,
    update_record,
)
from twisted_broker.coordinator.share_state.values import (
    NO_EPOCH,
    UNKNOWN_COUNT,
    UNKNOWN_OFFSET,
    ReadState,
    SharePartitionKey,
    StateBatch,
    StateSummary,
    WriteState,
)
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateValue,
)

NOT_INITIALIZED = "{} operation on uninitialized share partition not allowed."


class SharePartitionState(NamedTuple):
    """`fence`: the highest leader epoch seen; `updates`: records since the last snapshot, which
    lies at `snapshot_offset`; `created_ms`, `written_ms`: differ in a snapshot that was made only
    because the one before was old.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]
    created_ms: int
    written_ms: int
    snapshot_offset: int
    fence: int
    updates: int = 0

    def snapshot(self, key: SharePartitionKey) -> StoredRecord:
        """The record that says all of it, with the next epoch."""
        return snapshot_record(
            key,
            ShareSnapshotValue(
                snapshot_epoch=self.snapshot_epoch + 1,
                state_epoch=self.state_epoch,
                leader_epoch=self.leader_epoch,
                start_offset=self.start_offset,
                delivery_complete_count=self.delivery_complete_count,
                create_timestamp=self.created_ms,
                write_timestamp=self.written_ms,
                state_batches=stored_batches(self.batches),
            ),
        )

    def changed(
        self,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: tuple[StateBatch, ...],
    ) -> SharePartitionState:
        """With the values of an update."""
        start_offset = self.start_offset if start_offset == UNKNOWN_OFFSET else start_offset
        return self._replace(
            leader_epoch=self.leader_epoch if leader_epoch == NO_EPOCH else leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=delivery_complete_count,
            batches=combine(self.batches, batches, start_offset),
        )


class ShareState:
    """`partitions` by key; `next_offset`: of the log, behind the applied records."""

    __slots__ = ("next_offset", "partitions")

    def __init__(self) -> None:
        self.partitions: dict[SharePartitionKey, SharePartitionState] = {}
        self.next_offset = 0

    # records
    def apply(self, record: StoredRecord, offset: int) -> None:
        """The record at `offset` of the log."""
        name, value = record
        read: Any = name
        key = SharePartitionKey(read.group_id, bytes(read.topic_id), read.partition)
        if isinstance(name, ShareSnapshotKey):
            self._apply_snapshot(key, value, offset)
        elif isinstance(value, ShareUpdateValue):
            self._apply_update(key, value)
        self.next_offset = offset + 1

    def _apply_snapshot(self, key: SharePartitionKey, value: Any, offset: int) -> None:
        if value is None:
            self.partitions.pop(key, None)
            return
        before = self.partitions.get(key)
        self.partitions[key] = SharePartitionState(
            value.snapshot_epoch,
            value.state_epoch,
            value.leader_epoch,
            value.start_offset,
            value.delivery_complete_count,
            batches_of(value),
            value.create_timestamp,
            value.write_timestamp,
            offset,
            value.leader_epoch if before is None else max(before.fence, value.leader_epoch),
        )

    def _apply_update(self, key: SharePartitionKey, value: ShareUpdateValue) -> None:
        before = self.partitions.get(key)
        if before is None:
            return  # the log begins behind its snapshot: a newer one follows, or a tombstone
        self.partitions[key] = before.changed(
            value.leader_epoch,
            value.start_offset,
            value.delivery_complete_count,
            batches_of(value),
        )._replace(fence=max(before.fence, value.leader_epoch), updates=before.updates + 1)

    def first_needed_offset(self) -> int:
        """Where the log may begin."""
        return min(
            (each.snapshot_offset for each in self.partitions.values()), default=self.next_offset
        )

    # requests
    def initialize(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        start_offset: int,
        image: MetadataImage,
        wall_ms: int,
    ) -> StoredRecord | None:
        """Begins anew; None: it has begun. Raises BrokerError."""
        _check_partition(key)
        known = self.partitions.get(key)
        if known is not None and NO_EPOCH != state_epoch < known.state_epoch:
            raise BrokerError(ErrorCode.FENCED_STATE_EPOCH)
        _check_exists(key, image)
        if known is not None and NO_EPOCH != state_epoch == known.state_epoch and start_offset < 0:
            # A try of a group coordinator that asked again meanwhile: members may have accepted
            # records since. Kafka forgets them (seed 447959).
            return None
        return snapshot_record(
            key,
            ShareSnapshotValue(
                snapshot_epoch=0 if known is None else known.snapshot_epoch + 1,
                state_epoch=state_epoch,
                leader_epoch=0,
                start_offset=start_offset,
                delivery_complete_count=UNKNOWN_COUNT if start_offset == UNKNOWN_OFFSET else 0,
                create_timestamp=wall_ms,
                write_timestamp=wall_ms,
                state_batches=[],
            ),
        )

    def read(
        self,
        key: SharePartitionKey,
        leader_epoch: int,
        image: MetadataImage,
        wall_ms: int,
        updates_per_snapshot: int,
    ) -> tuple[StoredRecord | None, ReadState]:
        """The record is of a leader epoch that is new. Raises BrokerError."""
        known = self._known(key, "Read")
        _check_leader(known, leader_epoch)
        _check_exists(key, image)
        found = ReadState(known.state_epoch, known.start_offset, known.batches)
        if leader_epoch in (NO_EPOCH, known.fence):
            return None, found
        record = _written(
            key,
            known,
            leader_epoch,
            known.start_offset,
            known.delivery_complete_count,
            (),
            wall_ms,
            updates_per_snapshot,
        )
        return record, found

    def write(
        self,
        key: SharePartitionKey,
        state: WriteState,
        image: MetadataImage,
        wall_ms: int,
        updates_per_snapshot: int,
    ) -> StoredRecord:
        """Raises BrokerError."""
        known = self._known(key, "Write")
        _check_leader(known, state.leader_epoch)
        if NO_EPOCH != state.state_epoch < known.state_epoch:
            raise BrokerError(ErrorCode.FENCED_STATE_EPOCH)
        _check_exists(key, image)
        return _written(
            key,
            known,
            known.leader_epoch,
            state.start_offset,
            state.delivery_complete_count,
            state.batches,
            wall_ms,
            updates_per_snapshot,
        )

    def delete(self, key: SharePartitionKey, image: MetadataImage) -> StoredRecord | None:
        """None when there is nothing. Raises BrokerError."""
        _check_partition(key)
        _check_exists(key, image)
        return snapshot_record(key, None) if key in self.partitions else None

    def summary(self, key: SharePartitionKey, image: MetadataImage) -> StateSummary:
        """Raises BrokerError."""
        _check_partition(key)
        _check_exists(key, image)
        known = self.partitions.get(key)
        if known is None:
            return StateSummary()
        return StateSummary(
            known.state_epoch, known.leader_epoch, known.start_offset, known.delivery_complete_count
        )

    # what nobody asks for
    def cold_snapshots(self, wall_ms: int, interval_ms: int) -> Iterator[StoredRecord]:
        """Of those whose last snapshot is older; none while no share partition was written to since
        it got one in this way.
        """
        if all(each.created_ms != each.written_ms for each in self.partitions.values()):
            return
        for key in list(self.partitions):
            known = self.partitions.get(key)
            if known is not None and wall_ms - known.written_ms >= interval_ms:
                yield known._replace(written_ms=wall_ms).snapshot(key)

    def _known(self, key: SharePartitionKey, operation: str) -> SharePartitionState:
        _check_partition(key)
        known = self.partitions.get(key)
        if known is None:
            raise BrokerError(ErrorCode.INVALID_REQUEST, NOT_INITIALIZED.format(operation))
        return known


def _check_partition(key: SharePartitionKey) -> None:
    if key.partition < 0:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number."
        )


def _check_leader(known: SharePartitionState, leader_epoch: int) -> None:
    if NO_EPOCH != leader_epoch < known.fence:
        raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH)


def _check_exists(key: SharePartitionKey, image: MetadataImage) -> None:
    topic = image.topics_by_id.get(key.topic_id)
    if topic is None or key.partition not in topic.partitions:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _written(
    key: SharePartitionKey,
    known: SharePartitionState,
    leader_epoch: int,
    start_offset: int,
    delivery_complete_count: int,
    batches: tuple[StateBatch, ...],
    wall_ms: int,
    updates_per_snapshot: int,
) -> StoredRecord:
    """An update, or a snapshot when it is time for one."""
    if known.updates >= updates_per_snapshot:
        whole = known.changed(leader_epoch, start_offset, delivery_complete_count, batches)
        return whole._replace(created_ms=wall_ms, written_ms=wall_ms).snapshot(key)
    return update_record(
        key,
        ShareUpdateValue(
            snapshot_epoch=known.snapshot_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=delivery_complete_count,
            state_batches=stored_batches(combine((), batches, start_offset)),
        ),
    )
