"""The reads of one ShareFetch, while it waits and at its end. Ring 1.

Owns `ShareFetch` (the request), `HeldSharePartition` (a share partition as its leader keeps it),
`DelayedShareFetch` (the purgatory's operation), `read_headers` and `cut_to`.

1. A share partition is read by one fetch at a time. The one whose condition is met takes it
   (`is_fetching`) in the same look: others that wait for it wait on. It is given back by the one
   that reads, however that ends.
2. It is complete when the records that it may acquire have `min_bytes`, when a share partition of
   it has an error or is led no more, or when its time is up.
3. Records leave as slices of files; of these only batch headers are read, and no more of them than
   can matter. Bytes that are not in memory are loaded by the reader thread of the log directory
   first.

Source: GN 3.40-3.44; Apache Kafka 4.3.1 `DelayedShareFetch`, `ShareFetchUtils`. Not here: who may
read, when a share partition is dropped (`share_partition_manager.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from twisted.internet.defer import Deferred

from twisted_broker.coordinator.share_state.values import SharePartitionKey, StateBatch
from twisted_broker.interfaces import IDelayedCall, TopicPartition
from twisted_broker.log.offset_metadata import UNKNOWN, LogOffsetMetadata
from twisted_broker.log.segment_file import FileSlice
from twisted_broker.replication.partition.fetch_data import FetchParams
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.share.share_partition import (
    AcquiredRecords,
    LogBatch,
    PendingWrite,
    ShareLimits,
    SharePartition,
)
from twisted_broker.share.share_session import SharePartitionId
from twisted_broker.wire.batch_header import (
    CONTROL_FLAG,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    TRANSACTIONAL_FLAG,
    peek_offset_and_length,
    read_batch_header,
)
from twisted_broker.wire.errors import BrokerError

_PIECE = 65536
"""Bytes of a slice that are looked at together, while its batches are small."""
_ATTRIBUTES, _LAST_OFFSET_DELTA, _PRODUCER_ID = 5, 6, 9


class ShareFetch(NamedTuple):
    """`partitions`: in the order in which they are read; `is_wanted`: whether its client is still
    there.
    """

    group_id: str
    member_id: str
    params: FetchParams
    mode: int
    batch_size: int
    max_records: int
    partitions: Sequence[tuple[SharePartitionId, TopicPartition]]
    is_wanted: Callable[[], bool] = lambda: True


class FetchedPartition:
    """What one partition answers: an error, or records that were acquired."""

    __slots__ = ("acquired", "error", "id", "slice", "topic_partition")

    def __init__(
        self, partition: SharePartitionId, name: TopicPartition, error: BrokerError | None = None
    ) -> None:
        self.id, self.topic_partition, self.error = partition, name, error
        self.acquired: list[AcquiredRecords] = []
        self.slice: FileSlice | None = None

    @property
    def size(self) -> int:
        """Bytes of its records."""
        return 0 if self.slice is None else self.slice.length

    def release(self) -> None:
        """Its records are not sent."""
        if self.slice is not None:
            self.slice.release()
            self.slice = None


Waiting = tuple[PendingWrite, "Deferred[BrokerError | None]"]


class HeldSharePartition:
    """A share partition of a partition that is led here. `share` is None while its state is read;
    `error`: why it is of no use any more. `to_write` and `waiting` go with the next write.
    """

    __slots__ = (
        "error",
        "generation",
        "is_fetching",
        "is_writing",
        "key",
        "leader_epoch",
        "partition",
        "place",
        "share",
        "timeouts",
        "timer",
        "timer_ms",
        "to_write",
        "waiting",
    )

    def __init__(self, key: SharePartitionKey, partition: Partition) -> None:
        self.key, self.partition = key, partition
        self.leader_epoch = partition.leader_epoch
        self.generation = partition.leadership_generation
        self.share: SharePartition | None = None
        self.error: BrokerError | None = None
        self.is_fetching = self.is_writing = False
        self.timer: IDelayedCall | None = None
        self.timer_ms = 0
        # Records whose lock ended by its time.
        self.timeouts = 0
        self.place = UNKNOWN
        self.to_write: list[StateBatch] = []
        self.waiting: list[Waiting] = []

    def take_unwritten(self) -> tuple[list[StateBatch], list[Waiting]]:
        """What goes with a write that begins now, and who waits for it."""
        taken = self.to_write, self.waiting
        self.to_write, self.waiting = [], []
        return taken

    def set_timer(self, timer: IDelayedCall | None, due_ms: int = 0) -> None:
        """Instead of the one that it has."""
        if self.timer is not None and self.timer.active():
            self.timer.cancel()
        self.timer, self.timer_ms = timer, due_ms

    @property
    def is_led(self) -> bool:
        """Whether this broker has led its log without a pause since."""
        partition = self.partition
        return partition.is_leader and partition.leadership_generation == self.generation


class DelayedShareFetch:
    """Waits until there is enough to acquire. `locked`: the share partitions that it reads then.
    `place_of` reads where in the log an offset lies.
    """

    __slots__ = ("_fetch", "_held", "_limits", "_place_of", "locked")

    def __init__(
        self,
        fetch: ShareFetch,
        held: Sequence[HeldSharePartition],
        limits: Callable[[], ShareLimits],
        place_of: Callable[[HeldSharePartition, int, FetchParams], LogOffsetMetadata],
    ) -> None:
        self._fetch, self._held, self._limits = fetch, held, limits
        self._place_of = place_of
        self.locked: list[HeldSharePartition] = []

    @property
    def keys(self) -> list[Hashable]:
        """Of each: the partition, for its records, and the share partition, for its states."""
        keys: list[Hashable] = [held.key for held in self._held]
        return keys + [held.partition.topic_partition for held in self._held]

    def is_complete(self, changed: Hashable = None) -> bool:
        limits = self._limits()
        if changed is not None and len(self._held) > 1 and not self._concerns(changed, limits):
            return False
        total = 0
        ready = []
        for held in self._held:
            found = self._readable(held, limits)
            if found:
                ready.append(held)
                total += found
                if found < 0:
                    return self._take(ready)
        return total >= self._fetch.params.min_bytes and bool(ready) and self._take(ready)

    def _concerns(self, changed: Hashable, limits: ShareLimits) -> bool:
        return any(
            self._readable(held, limits)
            for held in self._held
            if changed in (held.key, held.partition.topic_partition)
        )

    def waits_for(self, name: TopicPartition) -> tuple[str, int, int, str]:
        """What it needs of a partition that it fetches, in bytes, and why (`explain`)."""
        fetch, limits = self._fetch, self._limits()
        held = next(each for each in self._held if each.partition.topic_partition == name)
        who = f"member {fetch.member_id} of the share group {fetch.group_id}"
        return (
            "ShareFetch",
            fetch.params.min_bytes,
            max(0, self._readable(held, limits)),
            f"{who} {_wants(held, limits)}",
        )

    def expire(self) -> None:
        """What there is is taken."""
        limits = self._limits()
        self._take([held for held in self._held if self._readable(held, limits)])

    def _take(self, ready: list[HeldSharePartition]) -> bool:
        for held in ready:
            if held.share is not None and held.error is None and held.is_led:
                held.is_fetching = True
                self.locked.append(held)
        return True

    def _readable(self, held: HeldSharePartition, limits: ShareLimits) -> int:
        """Bytes that it may acquire, about; -1: it has something else to say, or more than can be
        counted.
        """
        if held.error is not None or not held.is_led:
            return -1
        share = held.share
        if share is None or held.is_fetching or not share.can_acquire(limits):
            return 0
        params = self._fetch.params
        offset, end = share.next_fetch_offset, held.partition.end_for(params.isolation)
        log = held.partition.log
        if log is not None and offset < log.log_start_offset:
            return -1
        if offset >= end.offset:
            return 0
        if params.min_bytes <= 1:
            return 1
        if held.place.offset != offset:
            held.place = self._place_of(held, offset, params)
        if not held.place.on_same_segment(end):
            return -1
        return max(1, min(end.position_difference(held.place), params.max_bytes))


def _wants(held: HeldSharePartition, limits: ShareLimits) -> str:
    share = held.share
    if share is None:
        return "waits until the state of the share partition is read"
    if not share.can_acquire(limits):
        return f"gets nothing: all that is given out, {share.window} offsets, is locked"
    if held.is_fetching:
        return "waits until another fetch has read the share partition"
    return f"wants records from {share.next_fetch_offset} on"


async def read_headers(records: FileSlice, offset: int, upto: int) -> list[LogBatch]:
    """The batches of a slice that are whole, until one reaches offset `upto`; `offset`: where the
    read began. Raises OSError, SliceGone, CorruptRecordError.
    """
    found: list[LogBatch] = []
    position, size_before = 0, 0
    piece, begins = b"", 0
    while position + HEADER_BYTES <= records.length:
        at = position - begins
        if at < 0 or at + HEADER_BYTES > len(piece):
            wanted = HEADER_BYTES if size_before > _PIECE // 2 else _PIECE
            wanted = min(wanted, records.length - position)
            piece, begins, at = await _bytes_of(records, position, wanted), position, 0
        if piece[at + MAGIC_AT] != MAGIC:
            # Of an old format: its last offset comes first.
            last, length = peek_offset_and_length(piece, at)
            size = LOG_OVERHEAD + length
            batch = LogBatch(found[-1].last_offset + 1 if found else min(offset, last), last, size)
        else:
            header = read_batch_header(piece, at)
            attributes = header[_ATTRIBUTES]
            size = LOG_OVERHEAD + header[1]
            batch = LogBatch(
                header[0],
                header[0] + header[_LAST_OFFSET_DELTA],
                size,
                header[_PRODUCER_ID],
                bool(attributes & TRANSACTIONAL_FLAG),
                bool(attributes & CONTROL_FLAG),
            )
        if size <= 0 or position + size > records.length:
            break
        found.append(batch)
        if batch.last_offset >= upto:
            break
        position += size
        size_before = size
    return found


async def _bytes_of(records: FileSlice, skip: int, length: int) -> bytes:
    if not records.is_resident(skip, length):
        loaded: Deferred[None] = Deferred()

        def done(error: BaseException | None) -> None:
            if error is None:
                loaded.callback(None)
            else:
                loaded.errback(error)

        records.load(skip, length, done)
        await loaded
    buffer = bytearray(length)
    records.read_into(buffer, skip)
    return bytes(buffer)


def cut_to(
    records: FileSlice, log: Sequence[LogBatch], acquired: Sequence[AcquiredRecords]
) -> None:
    """Narrows the slice to the batches that have acquired offsets."""
    first, last = acquired[0].first_offset, acquired[-1].last_offset
    skip = length = 0
    for batch in log:
        if batch.base_offset > last:
            break
        if batch.base_offset <= first:
            # The one before does not have the first one: there is always one batch left.
            skip, length = skip + length, 0
        length += batch.size_in_bytes
    records.narrow(length or log[0].size_in_bytes, skip)
