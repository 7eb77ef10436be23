"""One partition as a consumer holds it, and the bounded queue that its records wait in.

Owns `PartitionTopicInfo` (fetched and consumed offset), `FetchedDataChunk` (what one answer held)
and `ChunkQueue`.

1. A chunk goes in only at the fetched offset, which moves to its end; anything else is an error.
2. The consumed offset is what a restart would begin at; only who hands records out moves it, and a
   reset when nothing waits.
3. A queue holds at most `max_chunks` chunks of a partition: a partition with as many is not fetched
   until one was taken. Its memory is bounded by partitions x `max_chunks` x
   `fetch.message.max.bytes` (or the one batch that is larger).
4. A failed partition has one last chunk, with the error.
5. What belongs to a partition that was released is dropped, wherever it waits.

Source: RL 7.3; Kafka 0.8's `PartitionTopicInfo`, whose queue stopped a whole fetcher when it was
full. Not here: fetching (`consumer_fetcher_manager`), records. A restart begins
empty: nothing of this is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from twisted.internet.defer import Deferred

from twisted_broker.consumer.errors import OffsetMismatch
from twisted_broker.interfaces import Buffer, TopicPartition

INVALID_OFFSET = -1  # `auto.offset.reset` says where to begin
NO_TOPIC_ID = bytes(16)


class FetchedDataChunk(NamedTuple):
    """Whole batches of one answer, as the leader sent them.

    `records` from `fetch_offset`, which may lie within the first batch, up to `next_offset`;
    `last_epoch`: the leader epoch of the last batch; `aborted`: (producer id, first offset) of
    aborted transactions, with read_committed. With an `error` there is nothing else.
    """

    info: PartitionTopicInfo
    records: Buffer
    fetch_offset: int
    next_offset: int
    last_epoch: int = -1
    high_watermark: int = -1
    aborted: Sequence[tuple[int, int]] = ()
    error: Exception | None = None


class PartitionTopicInfo:
    """Begins at `offset` (INVALID_OFFSET: by `auto.offset.reset`), after a record of leader epoch
    `last_epoch` (-1: not known); of the topic `topic_id`, where the caller knows it.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        queue: ChunkQueue,
        offset: int,
        last_epoch: int = -1,
        topic_id: bytes = NO_TOPIC_ID,
    ) -> None:
        self.topic_partition = topic_partition
        self.fetched_offset = self.consumed_offset = offset
        self.last_epoch = last_epoch
        self.topic_id = topic_id
        self.leader_epoch = -1  # the newest that the metadata named
        self.high_watermark = self.log_start_offset = -1
        self.released = False
        self.queued = 0  # chunks of it in the queue
        self._queue = queue

    @property
    def is_paused(self) -> bool:
        """Whether as much of it waits as may."""
        return self.queued >= self._queue.max_chunks

    @property
    def lag(self) -> int | None:
        """Records between the consumed offset and the high watermark; None: not known yet."""
        if self.high_watermark < 0 or self.consumed_offset < 0:
            return None
        return max(0, self.high_watermark - self.consumed_offset)

    def enqueue(self, chunk: FetchedDataChunk) -> None:
        """RL 7.3. Raises `OffsetMismatch`."""
        if chunk.fetch_offset != self.fetched_offset:
            raise OffsetMismatch(
                f"{self.topic_partition}: records came for offset {chunk.fetch_offset}, to be "
                f"fetched next is {self.fetched_offset}"
            )
        self.fetched_offset = chunk.next_offset
        self.last_epoch = chunk.last_epoch if chunk.last_epoch >= 0 else self.last_epoch
        self._queue.put(chunk)

    def reset(self, offset: int, last_epoch: int = -1) -> None:
        """RL 7.3: it goes on at `offset`, and the consumed offset once what waits is consumed."""
        self.fetched_offset, self.last_epoch = offset, last_epoch
        if not self.queued:
            self.consumed_offset = offset

    def fail(self, error: Exception) -> None:
        """Its reader gets `error`, after the records that are there."""
        self._queue.put(FetchedDataChunk(self, b"", -1, -1, error=error))


class ChunkQueue:
    """Of all partitions of one stream, in the order of arrival. `on_room(partition)`: it may be
    fetched again. Used in the reactor's thread only.
    """

    def __init__(self, max_chunks: int, on_room: Callable[[PartitionTopicInfo], None]) -> None:
        self.max_chunks = max_chunks
        self.closed = False
        self._on_room = on_room
        self._chunks: deque[FetchedDataChunk] = deque()
        self._waiters: list[Deferred[None]] = []

    def __len__(self) -> int:
        return len(self._chunks)

    def put(self, chunk: FetchedDataChunk) -> None:
        """Called by `PartitionTopicInfo` only."""
        if self.closed or chunk.info.released:
            return
        self._chunks.append(chunk)
        chunk.info.queued += 1
        self._fire()

    def poll(self) -> FetchedDataChunk | None:
        """The next chunk, None when there is none."""
        if not self._chunks:
            return None
        chunk = self._chunks.popleft()
        was_paused = chunk.info.is_paused
        chunk.info.queued -= 1
        if was_paused:
            self._on_room(chunk.info)
        return chunk

    def wait(self) -> Deferred[None]:
        """Fires when there is a chunk, or the queue is closed."""
        waiter: Deferred[None] = Deferred(self._forget)
        if self._chunks or self.closed:
            waiter.callback(None)
        else:
            self._waiters.append(waiter)
        return waiter

    def release(self, partitions: Iterable[PartitionTopicInfo]) -> None:
        """Nothing of them is handed out any more."""
        for info in partitions:
            info.released, info.queued = True, 0
        self._chunks = deque(each for each in self._chunks if not each.info.released)

    def close(self) -> None:
        """Drops what is in it; nothing comes in any more."""
        self.closed = True
        self.release({id(each.info): each.info for each in self._chunks}.values())
        self._fire()

    def _fire(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.called:
                waiter.callback(None)

    def _forget(self, waiter: Deferred[None]) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
