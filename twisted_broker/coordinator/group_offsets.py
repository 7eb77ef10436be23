"""A group's committed offsets: those a reader sees, those in flight, and those that expired.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `GroupOffsets` and the rule of expiry.

1. `committed` holds stored offsets only: a commit enters when its record is replicated, later
   records over earlier ones.
2. Between append and replication a partition counts as in flight; a reader that wants stable
   offsets is refused for now.
3. An offset of an open transaction is invisible until the commit marker and gone with the abort
   marker; the marker's offsets win over a plain commit only when their record is the later one.
4. A marker ends what lies before it in the log, in whichever order the two enter memory: while a
   producer has offsets in flight, its markers are kept for them.
   So is a tombstone while its partition has other writes in flight.
5. A marker of very many offsets enters in steps; those that have not entered yet count as unstable.
6. An offset expires when its own expiry has passed (old clients), or when retention has passed:
   since the group became empty; since the commit, where the group only holds offsets, does not
   subscribe to the topic or is a consumer group. Never while in flight or in a transaction.
7. No step is as long as the number of offsets: from `MANY_OFFSETS` on they are in buckets
   (`bucket_dict.py`).

Source: Apache Kafka 4.3.1 `OffsetMetadataManager`, `ClassicGroup.offsetExpirationCondition`
(KIP-211). Not here: records and storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twisted_broker.coordinator.bucket_dict import BucketDict
from twisted_broker.coordinator.classic_group import (
    CONSUMER_PROTOCOL_TYPE,
    EMPTY,
    STABLE,
    ClassicGroup,
)
from twisted_broker.coordinator.empty_dict import EMPTY_DICT
from twisted_broker.coordinator.group_records import NO_EXPIRY, CommittedOffset
from twisted_broker.coordinator.modern_group import ModernGroup
from twisted_broker.wire.batch_header import NO_PRODUCER_ID
from twisted_broker.wire.primitives import NULL_UUID

TopicPartition = tuple[str, int]
Committed = dict[TopicPartition, CommittedOffset] | BucketDict[TopicPartition, CommittedOffset]
# So many are spread over buckets, in a step of 6 ms.
MANY_OFFSETS = 20_000
OFFSETS_PER_STEP = 500  # of what enters memory: about a millisecond


def _forget(
    offsets: dict[TopicPartition, CommittedOffset], partition: TopicPartition, record_offset: int
) -> bool:
    """A tombstone at `record_offset`: whether it removed a pending offset of a transaction before
    it.
    """
    found = offsets.get(partition)
    if found is None or found.record_offset > record_offset >= 0:
        return False
    del offsets[partition]
    return True


class GroupOffsets:
    """Offsets of one group by (topic, partition); `transactional` those of open transactions, by
    producer id.
    """

    __slots__ = (
        "_ended",
        "_ending",
        "_in_flight",
        "_removed",
        "_writes",
        "committed",
        "transactional",
    )

    def __init__(self) -> None:
        self.committed: Committed = {}
        self.transactional: dict[int, dict[TopicPartition, CommittedOffset]] = EMPTY_DICT
        self._in_flight: dict[TopicPartition, int] = EMPTY_DICT
        # Where the last tombstone of a partition lies that has writes in flight: one that timed out
        # may be older and enter later.
        self._removed: dict[TopicPartition, int] = EMPTY_DICT
        self._writes: dict[int, int] = EMPTY_DICT  # by producer id: its offsets in flight
        self._ended: dict[int, list[tuple[int, bool]]] = EMPTY_DICT
        self._ending: tuple[dict[TopicPartition, CommittedOffset], ...] = ()

    def start_write(self, partition: TopicPartition, producer_id: int = NO_PRODUCER_ID) -> None:
        if not self._in_flight:
            self._in_flight = {}
        self._in_flight[partition] = self._in_flight.get(partition, 0) + 1
        if producer_id >= 0:
            if not self._writes:
                self._writes = {}
            self._writes[producer_id] = self._writes.get(producer_id, 0) + 1

    def end_write(self, partition: TopicPartition, producer_id: int = NO_PRODUCER_ID) -> None:
        left = self._in_flight[partition] - 1
        if left:
            self._in_flight[partition] = left
        else:
            del self._in_flight[partition]
            if partition in self._removed:
                del self._removed[partition]
            if not self._in_flight:
                self._in_flight = self._removed = EMPTY_DICT
        if producer_id >= 0:
            self._writes[producer_id] -= 1
            if not self._writes[producer_id]:
                del self._writes[producer_id]
                self._ended.pop(producer_id, None)
                if not self._writes:
                    self._writes = self._ended = EMPTY_DICT

    def put(self, partition: TopicPartition, committed: CommittedOffset) -> bool:
        """Stores the offset unless a later record is there, or was. Returns whether the partition
        had none, and has one now.
        """
        if self._is_removed(partition, committed):
            return False
        before = self.committed.get(partition)
        if before is not None and before.record_offset > committed.record_offset:
            return False
        self.committed[partition] = committed
        if before is None and len(self.committed) == MANY_OFFSETS:
            self._spread()
        return before is None

    def _is_removed(self, partition: TopicPartition, committed: CommittedOffset) -> bool:
        return committed.record_offset < self._removed.get(partition, -1)

    def _spread(self) -> None:
        """There are many: a dict of a million grows in one step of 40 ms."""
        if isinstance(self.committed, dict):
            spread: BucketDict[TopicPartition, CommittedOffset] = BucketDict()
            spread.take_over(self.committed)
            self.committed = spread

    def remove(self, partition: TopicPartition, record_offset: int) -> bool:
        """A tombstone at `record_offset`: removes older offsets, those in transactions too.
        Returns whether a committed offset went.
        """
        if partition in self._in_flight:
            if not self._removed:
                self._removed = {}
            removed = self._removed
            if partition not in removed or removed[partition] < record_offset:
                removed[partition] = record_offset
        for producer_id, offsets in list(self.transactional.items()):
            if _forget(offsets, partition, record_offset) and not offsets:
                self._forget_transaction(producer_id)
        for offsets in self._ending:
            _forget(offsets, partition, record_offset)
        before = self.committed.get(partition)
        if before is None or before.record_offset > record_offset >= 0:
            return False
        del self.committed[partition]
        return True

    def replay(
        self,
        partition: TopicPartition,
        committed: CommittedOffset | None,
        record_offset: int,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Applies the stored record at `record_offset`; None is a tombstone."""
        if committed is None:
            self.remove(partition, record_offset)
            return
        stored = CommittedOffset(
            committed.offset,
            committed.leader_epoch,
            committed.metadata,
            committed.commit_timestamp_ms,
            committed.expire_timestamp_ms,
            committed.topic_id,
            record_offset,
        )
        if producer_id >= 0:
            self.put_transactional(producer_id, partition, stored)
        else:
            self.put(partition, stored)

    def put_transactional(
        self, producer_id: int, partition: TopicPartition, committed: CommittedOffset
    ) -> None:
        """The offset is pending from now on, unless the marker behind it in the log has entered
        already.
        """
        for marker_offset, is_commit in self._ended.get(producer_id, ()):
            if committed.record_offset < marker_offset:
                if is_commit:
                    self.put(partition, committed)
                return
        if self._is_removed(partition, committed):
            return
        if not self.transactional:
            self.transactional = {}
        pending = self.transactional.setdefault(producer_id, {})
        before = pending.get(partition)
        if before is None or before.record_offset <= committed.record_offset:
            pending[partition] = committed

    def _forget_transaction(self, producer_id: int) -> dict[TopicPartition, CommittedOffset]:
        pending = self.transactional.pop(producer_id, {})
        if not self.transactional:
            self.transactional = EMPTY_DICT
        return pending

    def end_transaction(
        self, producer_id: int, is_commit: bool, marker_offset: int | None = None
    ) -> None:
        """A transaction's stored marker: ends all that lies before it; None: all there is."""
        for _ in self.end_transaction_in_steps(producer_id, is_commit, marker_offset):
            pass

    def end_transaction_in_steps(
        self, producer_id: int, is_commit: bool, marker_offset: int | None = None
    ) -> Iterator[None]:
        """As `end_transaction`, pausing after every `OFFSETS_PER_STEP`. The part that the marker
        ends is decided with the first step.
        """
        if marker_offset is not None and producer_id in self._writes:
            if not self._ended:
                self._ended = {}
            self._ended.setdefault(producer_id, []).append((marker_offset, is_commit))
            self._ended[producer_id].sort()
        ending = self._forget_transaction(producer_id)
        if marker_offset is not None:
            # Nearly never any: a producer writes nothing more until its marker is answered.
            later = {p: c for p, c in ending.items() if c.record_offset > marker_offset}
            if later:
                if not self.transactional:
                    self.transactional = {}
                self.transactional[producer_id] = later
                for partition in later:
                    del ending[partition]
        if not is_commit or not ending:
            return
        self._ending += (ending,)
        left = OFFSETS_PER_STEP
        try:
            while ending:
                self.put(*ending.popitem())
                left -= 1
                if not left and ending:
                    left = OFFSETS_PER_STEP
                    yield
        finally:
            self._ending = tuple(each for each in self._ending if each is not ending)

    def is_unstable(self, partition: TopicPartition) -> bool:
        return (
            partition in self._in_flight
            or any(partition in offsets for offsets in self.transactional.values())
            or any(partition in offsets for offsets in self._ending)
        )

    def is_in_flight(self, partition: TopicPartition) -> bool:
        """Whether a record of it, an offset or a tombstone, is appended and not decided."""
        return partition in self._in_flight

    def topic_ids(self, partition: TopicPartition) -> set[bytes]:
        """The ids of the topics that the partition's stored offsets were committed for, those of
        transactions included.
        """
        stores = (self.committed, *self.transactional.values(), *self._ending)
        return {offsets[partition].topic_id for offsets in stores if partition in offsets}

    def is_in_transaction(self, producer_id: int) -> bool:
        """Whether the producer has offsets that no marker has ended, or in flight."""
        return producer_id in self.transactional or producer_id in self._writes

    def get(self, partition: TopicPartition, topic_id: bytes = NULL_UUID) -> CommittedOffset | None:
        """The offset, unless it was committed for another topic of the same name."""
        found = self.committed.get(partition)
        if found is None or (
            topic_id != NULL_UUID != found.topic_id and topic_id != found.topic_id
        ):
            return None
        return found

    def has_unsettled(self) -> bool:
        """Whether anything is in flight or in a transaction: the offsets may still change."""
        return bool(self._in_flight or self.transactional or self._ending)

    def partitions(self) -> Iterator[list[TopicPartition]]:
        """All partitions that a record was written for: first those in a transaction or in flight,
        then the committed ones in lists as of `parts`. A partition may be in two lists.
        """
        found: dict[TopicPartition, None] = {}
        if isinstance(self.committed, dict):
            found |= dict.fromkeys(self.committed)
        for offsets in (*self.transactional.values(), *self._ending):
            found |= dict.fromkeys(offsets)
        found |= dict.fromkeys(self._in_flight)
        yield list(found)
        if isinstance(self.committed, BucketDict):
            yield from self.committed.parts()

    def parts(self) -> Iterator[list[TopicPartition]]:
        """The committed offsets, in lists of `MANY_OFFSETS` at most; partitions may come and go
        between two of them.
        """
        if isinstance(self.committed, dict):
            yield list(self.committed)
        else:
            yield from self.committed.parts()

    def items(self) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        """The committed offsets with their partitions, which may come and go between two steps."""
        for part in self.parts():
            for partition in part:
                found = self.committed.get(partition)
                if found is not None:
                    yield partition, found

    def forget_steps(self) -> Iterator[None]:
        """The offsets are not used any more: frees very many in steps of `OFFSETS_PER_STEP`."""
        while isinstance(self.committed, BucketDict) and self.committed:
            for _ in range(min(OFFSETS_PER_STEP, len(self.committed))):
                self.committed.popitem()
            yield

    def is_empty(self) -> bool:
        return not self.committed and not self.has_unsettled()

    def expired(
        self,
        group: ClassicGroup | ModernGroup,
        wall_ms: int,
        retention_ms: int,
        among: Sequence[TopicPartition] | None = None,
    ) -> Iterator[TopicPartition]:
        """Partitions whose offsets are to be removed now, of all or of those `among`."""
        if isinstance(group, ModernGroup) or group.protocol_type is None:
            base_ms = None
        elif group.state is EMPTY:
            base_ms = group.state_timestamp_ms if group.state_timestamp_ms >= 0 else None
        elif (
            group.protocol_type == CONSUMER_PROTOCOL_TYPE
            and group.state is STABLE
            and group.subscribed_topics is not None
        ):
            base_ms = None
        else:
            return
        for partition in self.committed if among is None else among:
            committed = self.committed.get(partition)
            if (
                committed is None
                or (group.members and group.is_subscribed_to(partition[0]))
                or self.is_unstable(partition)
            ):
                continue
            if committed.expire_timestamp_ms != NO_EXPIRY:
                due = wall_ms >= committed.expire_timestamp_ms
            else:
                due = (
                    wall_ms - (committed.commit_timestamp_ms if base_ms is None else base_ms)
                    >= retention_ms
                )
            if due:
                yield partition
