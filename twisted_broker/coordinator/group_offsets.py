"""A group's committed offsets: what a reader sees, what is in flight, what has expired.
Ring 0 (pure: docs/ARCHITECTURE.md 1).

Owns `GroupOffsets` and the rule of expiry.

1. `committed` holds only what is stored: a commit enters when its record is replicated, later
   records over earlier ones.
2. Between append and replication a partition counts as in flight; a reader that wants stable
   offsets is refused for now.
3. An offset of an open transaction is invisible until the commit marker and gone with the abort
   marker; the marker's offsets win over a plain commit only when their record is the later one.
4. An offset expires when its own expiry has passed (old clients), or when retention has passed:
   since the group became empty; since the commit, where the group only holds offsets or does not
   subscribe to the topic. Never while in flight or in a transaction.

Source: Apache Kafka 4.3.1 `OffsetMetadataManager`, `ClassicGroup.offsetExpirationCondition`
(KIP-211). Not here: records and storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twisted_broker.coordinator.classic_group import (
    CONSUMER_PROTOCOL_TYPE,
    EMPTY,
    STABLE,
    ClassicGroup,
)
from twisted_broker.coordinator.group_records import NO_EXPIRY, CommittedOffset
from twisted_broker.wire.primitives import NULL_UUID

TopicPartition = tuple[str, int]


class GroupOffsets:
    """Offsets of one group by (topic, partition)."""

    __slots__ = ("_in_flight", "committed", "transactional")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.transactional: dict[int, dict[TopicPartition, CommittedOffset]] = {}
        self._in_flight: dict[TopicPartition, int] = {}

    def start_write(self, partition: TopicPartition) -> None:
        self._in_flight[partition] = self._in_flight.get(partition, 0) + 1

    def end_write(self, partition: TopicPartition) -> None:
        left = self._in_flight[partition] - 1
        if left:
            self._in_flight[partition] = left
        else:
            del self._in_flight[partition]

    def put(self, partition: TopicPartition, committed: CommittedOffset) -> bool:
        """Stores unless a later record is there; whether the partition had none."""
        before = self.committed.get(partition)
        if before is not None and before.record_offset > committed.record_offset:
            return False
        self.committed[partition] = committed
        return before is None

    def remove(self, partition: TopicPartition, record_offset: int) -> bool:
        """A tombstone at `record_offset`: removes what is older than it, in transactions too;
        whether something visible went.
        """
        for offsets in self.transactional.values():
            offsets.pop(partition, None)
        before = self.committed.get(partition)
        if before is None or before.record_offset > record_offset >= 0:
            return False
        del self.committed[partition]
        return True

    def replay(
        self, partition: TopicPartition, committed: CommittedOffset | None, record_offset: int
    ) -> None:
        """Does what the stored record at `record_offset` says; None is a tombstone."""
        if committed is None:
            self.remove(partition, record_offset)
        else:
            self.put(
                partition,
                CommittedOffset(
                    committed.offset,
                    committed.leader_epoch,
                    committed.metadata,
                    committed.commit_timestamp_ms,
                    committed.expire_timestamp_ms,
                    committed.topic_id,
                    record_offset,
                ),
            )

    def put_transactional(
        self, producer_id: int, partition: TopicPartition, committed: CommittedOffset
    ) -> None:
        self.transactional.setdefault(producer_id, {})[partition] = committed

    def end_transaction(self, producer_id: int, is_commit: bool) -> int:
        """A transaction's marker; the number of partitions that had none before."""
        offsets = self.transactional.pop(producer_id, {})
        return (
            sum(self.put(partition, committed) for partition, committed in offsets.items())
            if is_commit
            else 0
        )

    def is_unstable(self, partition: TopicPartition) -> bool:
        return partition in self._in_flight or any(
            partition in offsets for offsets in self.transactional.values()
        )

    def get(self, partition: TopicPartition, topic_id: bytes = NULL_UUID) -> CommittedOffset | None:
        """The offset, unless it was committed for another topic of the same name."""
        found = self.committed.get(partition)
        if found is None or (
            topic_id != NULL_UUID != found.topic_id and topic_id != found.topic_id
        ):
            return None
        return found

    def has_unsettled(self) -> bool:
        """Whether anything is in flight or in a transaction: the group's last record may still
        change it.
        """
        return bool(self._in_flight or self.transactional)

    def partitions(self) -> list[TopicPartition]:
        """All that a record was written for: committed, in a transaction, in flight."""
        if not self.transactional and not self._in_flight:
            return list(self.committed)  # there may be a million, and to merge them takes a while
        found: dict[TopicPartition, None] = dict.fromkeys(self.committed)
        for offsets in self.transactional.values():
            found |= dict.fromkeys(offsets)
        return list(found | dict.fromkeys(self._in_flight))

    def is_empty(self) -> bool:
        return not self.committed and not self.transactional and not self._in_flight

    def expired(
        self,
        group: ClassicGroup,
        wall_ms: int,
        retention_ms: int,
        among: Sequence[TopicPartition] | None = None,
    ) -> Iterator[TopicPartition]:
        """Partitions whose offsets are to be removed now, of all or of those `among`."""
        if group.protocol_type is None:
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
