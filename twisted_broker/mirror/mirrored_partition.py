"""One partition between its source and its target.

Owns `MirroredPartition`: what was fetched and waits, where the target's log ends, what the source's
epochs were.

    DESCRIBE --the target's log end is known--> COPY
    COPY --the target ends elsewhere, or the batches were corrupt--> DESCRIBE
    COPY --the source lost records, `--follow-loss`--> TRUNCATE --the target did it--> DESCRIBE

1. One chunk at a time is on its way to the target; it is kept until the target has it, and sent
   again as it is. A chunk that was there already counts once (the target compares).
2. Where to go on is known from the target's log alone: a restart begins at its end.
3. A new beginning reads the last batch again, unless the topic is compacted: the target compares it
   with what it has. So a source that came back with other records is noticed even without epochs.
4. Where the source lost records is known by epochs, or searched: backwards in growing steps, until
   a batch is the same on both sides. What is truncated is said to the target under the leader epoch
   that it was described with, which ends with the truncation: it is done once.
5. Memory: `queued.max.message.chunks` chunks in the queue, and the one that is sent.

Source: none, ours; docs/MIRROR.md. Not here: requests (`target_writer`), fetching (`consumer`).
"""

from __future__ import annotations

from collections.abc import Callable

from twisted_broker.consumer.partition_topic_info import (
    ChunkQueue,
    FetchedDataChunk,
    PartitionTopicInfo,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.mirrored_batches import first_offset_of
from twisted_broker.mirror.source_epochs import SourceEpochs
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.wire.messages.mirror import MirroredPartition as RequestedPartition
from twisted_broker.wire.messages.mirror import MirroredPartitionResponse


class NotifyingQueue(ChunkQueue):
    """Of one partition; `on_chunk()` is called when one came."""

    def __init__(
        self,
        max_chunks: int,
        on_room: Callable[[PartitionTopicInfo], None],
        on_chunk: Callable[[], None],
    ) -> None:
        super().__init__(max_chunks, on_room)
        self._on_chunk = on_chunk

    def put(self, chunk: FetchedDataChunk) -> None:
        super().put(chunk)
        self._on_chunk()


class MirroredPartition:
    """`topic_id`: the target's; `compacted`: by its settings as of the last look."""

    def __init__(
        self,
        name: TopicPartition,
        topic_id: bytes,
        source_topic_id: bytes,
        epochs: SourceEpochs,
        compacted: bool,
    ) -> None:
        self.name, self.topic_id, self.source_topic_id = name, topic_id, source_topic_id
        self.epochs, self.compacted = epochs, compacted
        self.leader: BrokerEndPoint | None = None  # of the target
        self.info: PartitionTopicInfo | None = None
        self.queue: NotifyingQueue | None = None
        self.chunk: FetchedDataChunk | None = None
        self.sent = False
        self.retry_at_ms = 0
        self.log_start = self.log_end = self.high_watermark = self.leader_epoch = -1
        self.truncate_to = -1
        self._has_matched = False
        self._search_step = 1
        self.bytes = 0
        self._start_sent = -1

    @property
    def is_described(self) -> bool:
        return self.log_end >= 0

    @property
    def lag(self) -> int | None:
        """Offsets that the source has and the target does not; None: not known yet."""
        if self.info is None or self.info.high_watermark < 0 or not self.is_described:
            return None
        return max(0, self.info.high_watermark - self.log_end)

    @property
    def source_end(self) -> int:
        """The source's high watermark; -1: not known yet."""
        return -1 if self.info is None else self.info.high_watermark

    def found_leader(self, leader: BrokerEndPoint | None) -> None:
        """Who leads it in the target; None: to be looked for."""
        self.leader = leader

    # towards the target
    def next_request(self) -> RequestedPartition | None:
        """What the target is to be sent now, None for nothing. A chunk that is an error is not
        sent: see `chunk`.
        """
        if self.sent:
            return None
        if not self.is_described:
            return RequestedPartition(partition=self.name.partition, log_end_offset=0)
        if self.truncate_to >= 0:
            return RequestedPartition(
                partition=self.name.partition,
                leader_epoch=self.leader_epoch,
                log_end_offset=0,
                truncate_to=self.truncate_to,
            )
        if self.chunk is None and self.queue is not None:
            self.chunk = self.queue.poll()
        start = -1 if self.info is None else self.info.log_start_offset
        if self.chunk is None:
            # The log start alone, once for each move.
            if not (self.log_start < start != self._start_sent):
                return None
            records = None
        elif self.chunk.error is not None:
            return None
        else:
            records = self.chunk.records
            self.epochs.note(records, self.chunk.last_epoch)
        self._start_sent = start
        return RequestedPartition(
            partition=self.name.partition,
            log_end_offset=self.log_end,
            source_log_start_offset=start,
            records=records,
        )

    def described(self, answer: MirroredPartitionResponse) -> None:
        """What the target says of its log; it has the chunk that was sent."""
        if self.chunk is not None and self.chunk.error is None:
            self.bytes += len(self.chunk.records)
            self.chunk = None
            self._has_matched = True
        self.log_start, self.leader_epoch = answer.log_start_offset, answer.leader_epoch
        self.high_watermark = answer.high_watermark
        self.log_end = answer.log_end_offset

    # from the source
    def begin(self, queue: NotifyingQueue) -> PartitionTopicInfo:
        """It is to be fetched from here on, into `queue`: the target was described."""
        self.epochs.begin(self.log_start, self.log_end)
        self._search_step = 1
        offset = self.log_end
        if not self.compacted and offset > self.log_start:
            offset -= 1
        return self.begin_at(offset, queue)

    def begin_at(self, offset: int, queue: NotifyingQueue) -> PartitionTopicInfo:
        """As `begin`, from another offset on."""
        epoch = self.epochs.epoch_at(offset - 1)
        self.queue, self.chunk, self._has_matched = queue, None, False
        self.info = PartitionTopicInfo(self.name, queue, offset, epoch, self.source_topic_id)
        return self.info

    # what the source lost
    def place_to_search(self, differs_at: int) -> int:
        """From where to read again, after the batch at `differs_at` was found to be another in the
        target; -1: it is the first such.
        """
        chunk, info = self.chunk, self.info
        lowest = max(self.log_start, -1 if info is None else info.log_start_offset)
        if (
            self._has_matched
            or differs_at <= lowest
            or chunk is None
            or differs_at > first_offset_of(chunk.records)
        ):
            return -1
        step, self._search_step = self._search_step, 2 * self._search_step
        return max(lowest, differs_at - step)

    def truncate(self, offset: int) -> None:
        """The target is to drop everything from `offset` on; what was fetched is dropped."""
        self.truncate_to = offset
        self._drop_fetched()

    def forget(self) -> None:
        """Where the target's log ends is not known any more; what was fetched is dropped."""
        self.log_end = self.truncate_to = -1
        self._drop_fetched()

    def _drop_fetched(self) -> None:
        self.chunk = None
        if self.queue is not None:
            self.queue.close()
        self.queue = None
