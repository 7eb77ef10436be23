"""A consumer that records every record and every high watermark that it was sent, in order.

Owns `Consumer`: one partition, from its beginning, for ever. Not here: groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.testing.sim.client import Address, Client
from twisted_broker.testing.sim.client_notes import Notes
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import fetch as fetching
from twisted_broker.wire.messages import list_offsets as offsets
from twisted_broker.wire.records import iterate_batches


class Consumer(Client):
    """Reads one partition from its beginning, for ever."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        brokers: Sequence[Address],
        notes: Notes,
        partition: TopicPartition,
    ) -> None:
        super().__init__(runtime, name, brokers, notes)
        self.partition = partition
        self.position = 0
        self.end_seen = -1

    async def main(self) -> None:
        while not self.stopped:
            if self.random.random() < 0.05:
                await self._ask_end()
            if not await self._fetch():
                self.forget_leader(self.partition)
                await self.pause(0.2)

    async def _fetch(self) -> bool:
        """False when the leader is to be looked for again."""
        epoch = await self.epoch_of_leader(self.partition)
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
            topics=[fetching.FetchTopic(topic=self.partition.topic, partitions=[asked])],
        )
        answer = await self.ask_leader(self.partition, request, 11)
        if answer is None or answer.error_code:
            return False
        return self._take(answer.responses[0].partitions[0], epoch)

    def _take(self, found: fetching.PartitionData, epoch: int) -> bool:
        code = error_of(found.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.notes.out_of_range(self.name, self.partition, epoch, self.position)
            self.position = max(0, found.log_start_offset)
            return False
        if code is not ErrorCode.NONE:
            return False
        self.notes.mark_seen(self.name, self.partition, epoch, found.high_watermark)
        for batch in iterate_batches(found.records or b"", partial_tail=True):
            values = [bytes(record.value or b"") for record in batch.records(1 << 20)]
            if batch.last_offset < self.position:
                continue
            self.notes.consumed_records += len(values)
            self.notes.consumed(
                self.name,
                self.partition,
                batch.base_offset,
                batch.last_offset,
                batch.partition_leader_epoch,
                batch.crc,
                values,
            )
            self.position = batch.last_offset + 1
        return True

    async def _ask_end(self) -> None:
        """ListOffsets: what it says must never go back."""
        epoch = await self.epoch_of_leader(self.partition)
        asked = offsets.ListOffsetsPartition(
            partition_index=self.partition.partition, current_leader_epoch=epoch, timestamp=-1
        )
        topic = offsets.ListOffsetsTopic(name=self.partition.topic, partitions=[asked])
        answer = await self.ask_leader(
            self.partition, offsets.ListOffsetsRequest(replica_id=-1, topics=[topic]), 5
        )
        if answer is not None and not answer.topics[0].partitions[0].error_code:
            self.notes.mark_seen(
                f"{self.name} end", self.partition, epoch, answer.topics[0].partitions[0].offset
            )
