"""A consumer that records every record and every high watermark that it was sent, in order.

Owns `Consumer`: one partition, from its beginning, for ever. Not here: groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.simulation.client import Address, Client
from twisted_broker.simulation.client_notes import Notes
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import fetch as fetching
from twisted_broker.wire.messages import list_offsets as offsets
from twisted_broker.wire.records import iterate_batches

_LATEST, _EARLIEST = -1, -2


class Consumer(Client):
    """Reads one partition from its beginning, for ever.

    `by_id`: its topic may be made again; it is named by its id, and read from its beginning then.
    `fact`: what facts are noted under.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        brokers: Sequence[Address],
        notes: Notes,
        partition: TopicPartition,
        by_id: bool = False,
    ) -> None:
        super().__init__(runtime, name, brokers, notes)
        self.partition, self.by_id = partition, by_id
        self.fact = partition
        self.position = 0
        self._is_lost = False

    async def main(self) -> None:
        while not self.stopped:
            if not self.by_id and self.random.random() < 0.05:  # ListOffsets knows names only
                await self._list_end_offset()
            if not await (self._find_start() if self._is_lost else self._fetch()):
                self.forget_leader(self.partition)
                await self.pause(0.2)

    async def _fetch(self) -> bool:
        """False when the leader is to be looked for again."""
        epoch = await self.epoch_of_leader(self.partition)
        self._learn_id()
        asked = fetching.FetchPartition(
            partition=self.partition.partition,
            current_leader_epoch=epoch,
            fetch_offset=self.position,
            partition_max_bytes=4096,
        )
        request = fetching.FetchRequest(
            max_wait_ms=1000,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[
                fetching.FetchTopic(
                    topic=self.partition.topic,
                    topic_id=self.topic_ids.get(self.partition.topic, bytes(16)),
                    partitions=[asked],
                )
            ],
        )
        fact = self.fact
        answer = await self.send_to_leader(self.partition, request, 13 if self.by_id else 11)
        if answer is None or answer.error_code or fact != self.fact:
            return False
        return self._take(answer.responses[0].partitions[0], epoch)

    def _learn_id(self) -> None:
        known = self.topic_ids.get(self.partition.topic)
        if self.by_id and known is not None:
            fact = self.name_with_id(self.partition, known)
            if fact != self.fact:
                self.fact, self.position, self._is_lost = fact, 0, False
                self.notes.began_anew(self.name, fact)

    def _take(self, found: fetching.PartitionData, epoch: int) -> bool:
        code = error_of(found.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.notes.out_of_range(self.name, self.fact, epoch, self.position)
            self._is_lost = True
            return False
        if code is not ErrorCode.NONE:
            return False
        self.notes.mark_seen(self.name, self.fact, epoch, found.high_watermark)
        for batch in iterate_batches(found.records or b"", partial_tail=True):
            if batch.last_offset < self.position:
                continue
            values = [
                bytes(record.value or b"")
                for record in (() if batch.is_control else batch.records(1 << 20))
                if record.offset >= self.position
            ]
            self.notes.consumed_records += len(values)
            self.notes.consumed(
                self.name,
                self.fact,
                max(batch.base_offset, self.position),
                batch.last_offset,
                batch.partition_leader_epoch,
                batch.crc,
                values,
            )
            self.position = batch.last_offset + 1
        return True

    async def _list_end_offset(self) -> None:
        """ListOffsets: what it says must never go back."""
        epoch = await self.epoch_of_leader(self.partition)
        end = await self._list_offset(_LATEST, epoch)
        if end is not None:
            self.notes.mark_seen(f"{self.name} end", self.partition, epoch, end)

    async def _find_start(self) -> bool:
        """Reads on from where the log begins; False when that was not answered."""
        start = await self._list_offset(_EARLIEST, await self.epoch_of_leader(self.partition))
        if start is None:
            return False
        self.position, self._is_lost = start, False
        return True

    async def _list_offset(self, timestamp: int, epoch: int) -> int | None:
        asked = offsets.ListOffsetsPartition(
            partition_index=self.partition.partition,
            current_leader_epoch=epoch,
            timestamp=timestamp,
        )
        topic = offsets.ListOffsetsTopic(name=self.partition.topic, partitions=[asked])
        answer = await self.send_to_leader(
            self.partition, offsets.ListOffsetsRequest(replica_id=-1, topics=[topic]), 5
        )
        if answer is None or answer.topics[0].partitions[0].error_code:
            return None
        return int(answer.topics[0].partitions[0].offset)
