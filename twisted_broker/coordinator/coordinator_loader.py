"""Reading a partition of `__consumer_offsets` back into groups, in slices. Ring 1.

Owns `load_steps`, a generator: each step is bounded work, and the reactor runs between two of them.

1. The log is replayed up to the end that it had when the load began, batch after batch, last value
   per key winning.
2. Offsets of a transaction stay apart until its marker; those of an aborted one never show.
3. Records that cannot be read are counted and skipped; a batch that cannot be read ends the load
   with BrokerError.
4. Groups appear (and their sessions start) only when all is read.

Source: Apache Kafka 4.3.1 `CoordinatorLoaderImpl`, `GroupMetadataManager.onLoaded`,
`OffsetMetadataManager.replay*`.
"""

from __future__ import annotations

from collections.abc import Iterator

from twisted.logger import Logger

from twisted_broker.coordinator.coordinator_shard import CoordinatorShard, GroupEntry
from twisted_broker.coordinator.effects import GroupSnapshot
from twisted_broker.coordinator.group_core import GroupCore
from twisted_broker.coordinator.group_records import (
    GroupRecord,
    MalformedRecord,
    OffsetRecord,
    read_record,
)
from twisted_broker.coordinator.group_state import Group, group_from_snapshot
from twisted_broker.coordinator.offsets import GroupOffsets
from twisted_broker.wire.control_batch import ABORT, COMMIT, control_record_type
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import BatchView, Record, iterate_batches

SLICE_BYTES = 128 * 1024
GROUPS_PER_STEP = 1000
_log = Logger()


class _Picture:
    """What the log says so far."""

    __slots__ = ("offsets", "open_transactions", "skipped", "snapshots")

    def __init__(self) -> None:
        self.snapshots: dict[str, GroupSnapshot] = {}
        self.offsets: dict[str, GroupOffsets] = {}
        self.open_transactions: dict[int, set[str]] = {}
        self.skipped = 0

    def replay_batch(self, batch: BatchView) -> None:
        if batch.is_control:
            self._end_transaction(batch)
            return
        producer_id = batch.producer_id if batch.is_transactional else -1
        for record in batch.records():
            try:
                self._replay_record(record, producer_id)
            except MalformedRecord:
                self.skipped += 1

    def _replay_record(self, record: Record, producer_id: int) -> None:
        read = read_record(record.key, record.value, record.offset)
        if isinstance(read, GroupRecord):
            if read.value is None:
                self.snapshots.pop(read.group_id, None)
            else:
                self.snapshots[read.group_id] = read.value
        elif isinstance(read, OffsetRecord):
            self._replay_offset(read, record.offset, producer_id)

    def _replay_offset(self, read: OffsetRecord, record_offset: int, producer_id: int) -> None:
        offsets = self.offsets.setdefault(read.group_id, GroupOffsets())
        place = (read.topic, read.partition)
        if read.value is None:
            offsets.remove(place, record_offset)
        elif producer_id < 0:
            offsets.put(place, read.value)
        else:
            offsets.put_transactional(producer_id, place, read.value)
            self.open_transactions.setdefault(producer_id, set()).add(read.group_id)

    def _end_transaction(self, batch: BatchView) -> None:
        for record in batch.records():
            kind = control_record_type(record.key)
            if kind in (ABORT, COMMIT):
                for group_id in self.open_transactions.pop(batch.producer_id, ()):
                    self.offsets[group_id].end_transaction(batch.producer_id, kind == COMMIT)


def load_steps(shard: CoordinatorShard) -> Iterator[None]:
    """Fills `shard.groups` step by step; the caller makes the shard active at the end.

    Raises BrokerError.
    """
    store, picture = shard.parts.store, _Picture()
    position, end = store.bounds(shard.index)
    if position < end:
        # whoever made us leader is in the middle of something: reading comes in a turn of its own
        yield
    slice_bytes = min(SLICE_BYTES, shard.parts.settings.load_buffer_bytes)
    while position < end:
        try:
            data = store.read(shard.index, position, slice_bytes)
        except BrokerError as error:
            start = store.bounds(shard.index)[0]
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE or start <= position:
                raise
            position = start  # retention moved the start meanwhile
            continue
        before = position
        for batch in iterate_batches(data, partial_tail=True):
            picture.replay_batch(batch)
            position = max(position, batch.next_offset)
        if position == before:
            break  # compaction took the tail
        yield
    yield from _raise_groups(shard, picture)


def _raise_groups(shard: CoordinatorShard, picture: _Picture) -> Iterator[None]:
    if picture.skipped:
        _log.warn(
            "__consumer_offsets-{index}: {count} unreadable records skipped",
            index=shard.index,
            count=picture.skipped,
        )
    shard.open_transactions = picture.open_transactions
    names = list(
        picture.snapshots
        | {name: None for name, offsets in picture.offsets.items() if not offsets.is_empty()}
    )
    for number, name in enumerate(names, 1):
        core = GroupCore(
            _group(shard, name, picture.snapshots.get(name)), shard.parts.settings.group
        )
        shard.groups[name] = GroupEntry(core, picture.offsets.get(name))
        if number % GROUPS_PER_STEP == 0:
            yield


def _group(shard: CoordinatorShard, group_id: str, snapshot: GroupSnapshot | None) -> Group:
    now_ms = shard.parts.wall_ms()
    if snapshot is None:
        return Group(group_id, now_ms)
    try:
        return group_from_snapshot(snapshot, now_ms)
    except ValueError as error:
        _log.warn(
            "__consumer_offsets-{index}: {error}; the group starts empty",
            index=shard.index,
            error=error,
        )
        return Group(group_id, now_ms)
