"""What an observer has read of the metadata log, and the image it makes of it.

Owns the place to read from next, the batches above the high watermark, and open transactions. No
network: bytes in, deltas out.

1. Nothing is applied before the high watermark has passed it.
2. Everything that one answer brings is applied at once and gives one delta.
3. After a snapshot, or when the reader must start over, the delta comes from comparing images; the
   published image never goes back in between.

Source: Kafka's `MetadataLoader`; KRAFT 3.2; `RL 8.2`. Left out: asking (`observer.py`).
"""

from __future__ import annotations

from collections import deque

from twisted_broker.cluster.records import TransactionBuffer, batch_records
from twisted_broker.cluster.snapshots import SnapshotId, image_of
from twisted_broker.image.metadata_image import EMPTY, MetadataDelta, MetadataImage
from twisted_broker.wire.primitives import Buffer
from twisted_broker.wire.records import CorruptRecordError, iterate_batches
from twisted_broker.wire.schema import Record


class MetadataLoader:
    """`image` is what was published last; `fetch_offset` and `last_epoch` say where to read on."""

    def __init__(self) -> None:
        self.image = EMPTY
        self.high_watermark = 0
        self._start_over(EMPTY)

    def _start_over(self, base: MetadataImage) -> None:
        self.fetch_offset, self.last_epoch = base.offset + 1, max(base.epoch, 0)
        self._built = base
        self._compare = base is not self.image
        self._pending: deque[tuple[int, int, int, list[Record]]] = deque()
        self._transactions = TransactionBuffer()

    def batches(self, data: Buffer, high_watermark: int) -> MetadataDelta | None:
        """Takes an answer's batches; gives what may be published now.

        WireError for what is not understood, CorruptRecordError for damage.
        """
        whole = 0
        for whole, batch in enumerate(iterate_batches(data, partial_tail=True, check_crc=True), 1):
            if batch.last_offset < self.fetch_offset:
                continue
            records = [] if batch.is_control else batch_records(batch)
            self._pending.append(
                (batch.last_offset, batch.partition_leader_epoch, batch.max_timestamp, records)
            )
            self.fetch_offset, self.last_epoch = batch.last_offset + 1, batch.partition_leader_epoch
        if not whole:  # asked again at once, it would come again at once
            raise CorruptRecordError(
                f"an answer of {len(data)} bytes for offset {self.fetch_offset} holds no "
                "whole batch"
            )
        return self.advance(high_watermark)

    def advance(self, high_watermark: int) -> MetadataDelta | None:
        """The high watermark is here; what lies below it is applied.

        None when nothing new is below it.
        """
        self.high_watermark = max(self.high_watermark, high_watermark)
        ready: list[Record] = []
        last: tuple[int, int, int, list[Record]] | None = None
        while self._pending and self._pending[0][0] < self.high_watermark:
            last = self._pending.popleft()
            ready += self._transactions.pass_through(last[3])
        if last is None:
            return None
        self._built, delta = self._built.apply(ready, last[0], last[1], last[2])
        return self._publish(delta)

    def _publish(self, delta: MetadataDelta) -> MetadataDelta | None:
        """Not while starting over has not come as far as what is published, and nothing before the
        first catch-up: the past (a topic that was deleted and made anew) must not be acted upon as
        if it were news.
        """
        if self._built.offset < self.image.offset:
            return None
        if self.image is EMPTY and self.fetch_offset < self.high_watermark:
            self._compare = True
            return None
        if self._compare:
            delta, self._compare = MetadataDelta.between(self.image, self._built), False
        self.image = self._built
        return delta

    def snapshot(self, content: Buffer, snapshot: SnapshotId) -> MetadataDelta | None:
        """Takes a whole snapshot in place of the log before it. WireError, CorruptRecordError."""
        self._start_over(image_of(content, snapshot))
        self.high_watermark = max(self.high_watermark, snapshot.end_offset)
        self._compare = True
        return self._publish(MetadataDelta(self.image, self._built))

    def diverged(self, end_offset: int) -> None:
        """The leader's log differs from `end_offset` on.

        What was not applied is dropped; if that is not enough, reading starts over.
        """
        if end_offset > self._built.offset:
            self._pending = deque(entry for entry in self._pending if entry[0] < end_offset)
            last = self._pending[-1] if self._pending else None
            self.fetch_offset = (last[0] if last else self._built.offset) + 1
            self.last_epoch = last[1] if last else max(self._built.epoch, 0)
        else:
            self.high_watermark = 0
            self._start_over(EMPTY)
