"""The removal of committed offsets that no client requests: expiry, and the deletion of topics.
Ring 1.

Owns `OffsetCleanup`, which walks over all groups of all shards.

1. A walk goes in steps of `CHECKED_PER_STEP` offsets or one write, with `WRITES_AT_ONCE` writes
   under way at most: others are served between two of them.
2. What is to go is decided and written in one step, so that a commit between two steps counts.
3. A group goes with its last offset when it is empty and nothing of it is undecided.
4. One walk of a kind runs at a time; topics that are deleted meanwhile wait for the next. A write
   that fails is tried again with the next walk over expired offsets, and so is an offset of a
   deleted topic whose commit was in flight, or in its steps before that; but where topics have no
   ids (a ZooKeeper cluster below inter-broker protocol 2.8) that offset stays until it expires.
5. Offsets of a deleted topic go out of open transactions, too. A partition of `__consumer_offsets`
   that was being read when a topic was deleted is walked over once it is served. Where it had no
   leader then, those offsets stay until they expire, as in Kafka.
6. What was committed for a later topic of the same name stays.

Source: Apache Kafka 4.3.1 `GroupCoordinatorShard.cleanupGroupMetadata`, `onPartitionsDeleted`,
`OffsetMetadataManager.cleanupExpiredOffsets` (KIP-211). Not here: which offset has expired
(`group_offsets.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.coordinator.coordinator_context import CoordinatorContext
from twisted_broker.coordinator.coordinator_shard import (
    CoordinatorShard,
    CoordinatorState,
    DeletedTopics,
)
from twisted_broker.coordinator.group_deletion import GroupDeletion
from twisted_broker.coordinator.group_entry import GroupEntry
from twisted_broker.coordinator.group_offsets import TopicPartition
from twisted_broker.coordinator.offset_metadata_manager import TOMBSTONES_PER_BATCH, in_batches
from twisted_broker.coordinator.share.group import ShareGroup
from twisted_broker.periodic import PeriodicTask
from twisted_broker.wire.primitives import NULL_UUID

# About a millisecond of one turn (`turns.py`).
CHECKED_PER_STEP = 500
# Bounds the batches that wait for replicas, and their waiters, while many groups expire.
WRITES_AT_ONCE = 100
Walk = Iterator["Deferred[None] | None"]
_logger = Logger()


class OffsetCleanup:
    """`shards` are those of the runtime, by partition."""

    def __init__(self, context: CoordinatorContext, shards: Mapping[int, CoordinatorShard]) -> None:
        self._context, self._shards = context, shards
        self._expiry = PeriodicTask(context.clock, self._start_expiry, "the expiry of offsets")
        self._is_expiring = False
        self._again: list[tuple[CoordinatorShard, DeletedTopics]] = []
        self._is_removing_topics = False

    def start(self) -> None:
        """Looks for expired offsets every `offsets.retention.check.interval.ms` from now on."""
        self._expiry.start(self._context.settings.retention_check_interval_ms / 1000)

    def stop(self) -> None:
        if self._expiry.running:
            self._expiry.stop()

    def restart(self) -> None:
        """The interval has changed."""
        if self._expiry.running:
            self._expiry.stop()
            self.start()

    def topics_deleted(self, topics: dict[str, bytes]) -> None:
        """Topics (name to id) are gone: removes what was committed for them."""
        deleted = {name: {topic_id, NULL_UUID} for name, topic_id in topics.items()}
        for shard in self._shards.values():
            shard.deleted_topics.append(deleted)
        self._start_removal()

    def shard_loaded(self, shard: CoordinatorShard) -> None:
        """The shard is served from now on: removes what went while it was read."""
        if shard.deleted_topics:
            self._start_removal()

    def _start_removal(self) -> None:
        if not self._is_removing_topics:
            self._is_removing_topics = True
            self._context.turns.start(self._remove_topics())

    def _start_expiry(self) -> None:
        again, self._again = self._again, []
        for shard, topics in again:
            if shard.state is CoordinatorState.ACTIVE:
                shard.deleted_topics.append(topics)
                self._start_removal()
        if not self._is_expiring:
            self._is_expiring = True
            self._context.turns.start(self._expire_all())

    def _expire_all(self) -> Walk:
        pace = Pace()
        try:
            for shard in list(self._shards.values()):
                yield from expire_offsets(shard, pace)
        finally:
            self._is_expiring = False

    def _remove_topics(self) -> Walk:
        pace = Pace()
        try:
            # More topics may be deleted while this walk goes, and more partitions served.
            while shards := [each for each in self._shards.values() if _has_deleted(each)]:
                for shard in shards:
                    topics = _merged(shard.deleted_topics)
                    shard.deleted_topics.clear()
                    yield from remove_topics(
                        shard, topics, pace, partial(self._remove_again, shard)
                    )
        finally:
            self._is_removing_topics = False

    def _remove_again(self, shard: CoordinatorShard, topics: DeletedTopics) -> None:
        # Of a topic without an id nothing tells then what was committed for its successor.
        known = {name: ids for name, ids in topics.items() if ids != {NULL_UUID}}
        if known and shard.state is CoordinatorState.ACTIVE:
            self._again.append((shard, known))


class Pace:
    """When a walk lets others run, and how many of its writes may be under way."""

    __slots__ = ("_left", "_writes")

    def __init__(self) -> None:
        self._left = CHECKED_PER_STEP
        self._writes: deque[Deferred[None]] = deque()

    def checked(self, count: int) -> Iterator[None]:
        self._left -= count
        if self._left <= 0:
            self._left = CHECKED_PER_STEP
            yield

    def written(self, write: Deferred[None]) -> Iterator[Deferred[None] | None]:
        """A write is a step of its own; beyond `WRITES_AT_ONCE` the first of them is waited for."""
        if not write.called:
            self._writes.append(write)
        while self._writes and self._writes[0].called:
            self._writes.popleft()
        yield self._writes.popleft() if len(self._writes) >= WRITES_AT_ONCE else None


def _groups(shard: CoordinatorShard) -> Iterator[GroupEntry]:
    """The groups of the shard; ends when the shard is no longer active. A group that is deleted
    before it is reached is left out.
    """
    for part in shard.groups.parts():
        for group_id in part:
            entry = shard.groups.get(group_id)
            if shard.state is not CoordinatorState.ACTIVE:
                return
            if entry is not None and not entry.is_being_deleted:
                yield entry


def _is_present(shard: CoordinatorShard, entry: GroupEntry) -> bool:
    return (
        shard.state is CoordinatorState.ACTIVE
        and shard.groups.get(entry.group.group_id) is entry
        and not entry.is_being_deleted
    )


def expire_offsets(shard: CoordinatorShard, pace: Pace) -> Walk:
    """Removes what has expired from one shard, and with its last offset an empty group."""
    for entry in _groups(shard):
        for batch in _batches(entry) if _has_many(entry) else ():
            yield from _expire_some(shard, entry, batch, pace)
            if not _is_present(shard, entry):
                break
        else:
            yield from _expire(shard, entry, pace)


def _has_many(entry: GroupEntry) -> bool:
    return len(entry.offsets.committed) > TOMBSTONES_PER_BATCH


def _batches(entry: GroupEntry) -> Iterator[Sequence[TopicPartition]]:
    for part in entry.offsets.parts():
        yield from in_batches(part)


def _expire(shard: CoordinatorShard, entry: GroupEntry, pace: Pace) -> Walk:
    """A group of few offsets, or what is left of many: in one decision."""
    group, offsets = entry.group, entry.offsets
    if not _has_many(entry):
        partitions = list(
            offsets.expired(
                group, shard.context.wall_ms(), shard.context.settings.offsets_retention_ms
            )
        )
        is_last = len(partitions) == len(offsets.committed) and not offsets.has_unsettled()
        # The group's own record goes with its last offset, in one batch. One of shares has none: it
        # holds the places up to which its partitions are read.
        may_go = group.is_empty and not isinstance(group, ShareGroup)
        if is_last and may_go and shard.is_settled(entry):
            yield from pace.written(
                GroupDeletion(shard, entry).start().addErrback(_log_failure, shard.index)
            )
        elif partitions:
            yield from pace.written(
                shard.offsets.write_tombstones(entry, partitions).addErrback(
                    _log_failure, shard.index
                )
            )
    yield from pace.checked(1 + len(offsets.committed))


def _expire_some(
    shard: CoordinatorShard, entry: GroupEntry, partitions: Sequence[TopicPartition], pace: Pace
) -> Walk:
    """Some of many offsets: what has expired is decided and written in one step, so that a
    commit between two steps counts.
    """
    expired = list(
        entry.offsets.expired(
            entry.group,
            shard.context.wall_ms(),
            shard.context.settings.offsets_retention_ms,
            partitions,
        )
    )
    if expired:
        yield from pace.written(
            shard.offsets.write_tombstones(entry, expired).addErrback(_log_failure, shard.index)
        )
    yield from pace.checked(len(partitions))


def _has_deleted(shard: CoordinatorShard) -> bool:
    return bool(shard.deleted_topics) and shard.state is CoordinatorState.ACTIVE


def _merged(deletions: Sequence[DeletedTopics]) -> DeletedTopics:
    if len(deletions) == 1:
        return deletions[0]
    merged: DeletedTopics = {}
    for topics in deletions:
        for name, ids in topics.items():
            merged.setdefault(name, set()).update(ids)
    return merged


def remove_topics(
    shard: CoordinatorShard,
    topics: DeletedTopics,
    pace: Pace,
    again: Callable[[DeletedTopics], None],
) -> Walk:
    """Removes what was committed for deleted topics. `again(topics)` is called for those of which
    something was in flight, may come from a commit in steps, or could not be removed.
    """

    def failed(failure: Failure, partitions: Sequence[TopicPartition]) -> None:
        _log_failure(failure, shard.index)
        again({name: topics[name] for name, _ in partitions})

    # Now, not at the end: a commit that ends meanwhile may be of a group that was walked over
    # before.
    in_flight = set(topics) if shard.offsets.commits_in_steps else set[str]()
    for entry in _groups(shard):
        yield from pace.checked(1)
        for batch in chain.from_iterable(map(in_batches, entry.offsets.partitions())):
            if not _is_present(shard, entry):
                break
            gone = []
            for each in batch:
                deleted = topics.get(each[0])
                if deleted is None:
                    continue
                if entry.offsets.is_in_flight(each):
                    # The topic id in flight is not known here; a tombstone would lie behind it in
                    # the log.
                    in_flight.add(each[0])
                elif (ids := entry.offsets.topic_ids(each)) and ids <= deleted:
                    gone.append(each)
            if gone:
                yield from pace.written(
                    shard.offsets.write_tombstones(entry, gone).addErrback(failed, gone)
                )
            yield from pace.checked(len(batch))
    if in_flight:
        again({name: topics[name] for name in in_flight})


def _log_failure(failure: Failure, index: int) -> None:
    _logger.warn(
        "__consumer_offsets-{index}: removing offsets failed, retrying: {error}",
        index=index,
        error=failure.value,
    )
