"""The deletion of a group: tombstones for its offsets and for itself, then the group is removed.
Ring 1.

Owns `GroupDeletion`.

1. A batch of tombstones is a step of its own; none is waited for before all are appended. The last
   one carries the group's own tombstone, so that a group never comes back without its offsets.
2. Nobody may change the group (`is_being_deleted`) until each batch is stored or refused, which may
   be after the answer.
3. It begins when no record of the group waits to be encoded or is being decided: the tombstone is
   the last one. Where somebody has joined by then, it fails with NON_EMPTY_GROUP.
4. When storage refuses, the group stays, without those offsets whose tombstones were stored.

Source: Apache Kafka 4.3.1 `GroupCoordinatorShard.deleteGroups`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twisted.internet.defer import Deferred, DeferredList
from twisted.python.failure import Failure

from twisted_broker.coordinator.coordinator_shard import CoordinatorShard, CoordinatorState
from twisted_broker.coordinator.group_entry import Group, GroupEntry
from twisted_broker.coordinator.group_offsets import TopicPartition
from twisted_broker.coordinator.group_records import KeyValue, group_record
from twisted_broker.coordinator.modern_group import ModernGroup
from twisted_broker.coordinator.offset_metadata_manager import in_batches
from twisted_broker.coordinator.record_codec import encode_record
from twisted_broker.wire.errors import BrokerError, ErrorCode


class GroupDeletion:
    """One deletion; `done` fires when all is stored, or fails with BrokerError."""

    __slots__ = ("_are_stored", "_entry", "_shard", "_undecided", "done")

    def __init__(self, shard: CoordinatorShard, entry: GroupEntry) -> None:
        self._shard, self._entry = shard, entry
        self._undecided, self._are_stored = 0, True
        self.done: Deferred[None] = Deferred()

    def start(self) -> Deferred[None]:
        """Runs the first step, which is the whole deletion of a group of few offsets; the others
        follow. Very many offsets are gathered in steps, too.
        """
        self._entry.is_being_deleted = True
        self._shard.context.turns.start(self._steps())
        return self.done

    def _steps(self) -> Iterator[None]:
        entry, group_id = self._entry, self._entry.group.group_id
        # Behind the tombstone, a record of the group would bring it back at the next load.
        while self._shard.is_being_changed(entry.group):
            yield
            if self._shard.state is CoordinatorState.CLOSED:
                self.done.errback(BrokerError(ErrorCode.NOT_COORDINATOR))
                return
        if not entry.group.is_empty or self._shard.groups.get(group_id) is not entry:
            entry.is_being_deleted = False
            self.done.errback(
                BrokerError(
                    ErrorCode.GROUP_ID_NOT_FOUND
                    if entry.group.is_empty
                    else ErrorCode.NON_EMPTY_GROUP
                )
            )
            return
        batches: list[Sequence[TopicPartition]] = []
        for number, part in enumerate(entry.offsets.partitions()):
            if number:
                yield
                if self._shard.state is CoordinatorState.CLOSED:
                    self.done.errback(BrokerError(ErrorCode.NOT_COORDINATOR))
                    return
            batches += in_batches(part)
        batches = batches or [[]]
        self._undecided = len(batches)
        failures: list[Failure] = []
        writes: list[Deferred[None]] = []
        for number, batch in enumerate(batches, 1):
            is_last = number == len(batches)
            write = self._shard.offsets.write(
                group_id,
                entry.offsets,
                [(topic_partition, None) for topic_partition in batch],
                _tombstones(entry.group) if is_last else [],
                self._decided,
            )
            writes.append(write.addErrback(failures.append))
            if not is_last:
                yield
                if self._shard.state is CoordinatorState.CLOSED:
                    self.done.errback(BrokerError(ErrorCode.NOT_COORDINATOR))
                    return
        DeferredList(writes).addCallback(
            lambda _: self.done.errback(failures[0]) if failures else self.done.callback(None)
        )

    def _decided(self, is_stored: bool) -> None:
        """One batch is stored, or never will be."""
        self._undecided -= 1
        self._are_stored = self._are_stored and is_stored
        if self._undecided:
            return
        self._entry.is_being_deleted = False
        if self._are_stored and self._shard.groups.get(self._entry.group.group_id) is self._entry:
            self._shard.remove(self._entry)


def _tombstones(group: Group) -> list[KeyValue]:
    """Of the group itself, which has no members."""
    if isinstance(group, ModernGroup):
        return [encode_record(each) for each in group.tombstones()]
    return [group_record(group.group_id, None)]
