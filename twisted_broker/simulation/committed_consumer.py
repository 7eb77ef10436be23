"""Consumers that read only what is committed: one partition for ever, or a compacted one from its
start again and again; and the offsets that transactions committed.

Owns `CommittedConsumer`, `KeyedReader` and `OffsetsReader`. What an answer lists as aborted is
skipped as clients do. Not here: what must hold (`simulation/checks/transactions.py`,
`simulation/checks/compacted.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.simulation.client import Address, Client
from twisted_broker.simulation.client_notes import Notes
from twisted_broker.simulation.transaction_notes import TransactionNotes
from twisted_broker.simulation.transactional_producer import group_of
from twisted_broker.wire.control_batch import ABORT, control_record_type
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import fetch as fetching
from twisted_broker.wire.messages import list_offsets as offsets
from twisted_broker.wire.messages import offsets as committed
from twisted_broker.wire.record_walk import Record
from twisted_broker.wire.records import iterate_batches

_READ_BYTES = 1 << 20


class CommittedConsumer(Client):
    """Reads one partition from its beginning, for ever, with isolation level 1."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        brokers: Sequence[Address],
        notes: Notes,
        known: TransactionNotes,
        partition: TopicPartition,
    ) -> None:
        super().__init__(runtime, name, brokers, notes)
        self.known, self.partition = known, partition
        self.position = 0
        self._is_lost = False

    async def main(self) -> None:
        while not self.stopped:
            if not await (self._find_start() if self._is_lost else self._fetch()):
                self.forget_leader(self.partition)
                await self.pause(0.2)

    async def _fetch(self) -> bool:
        """False when the leader is to be looked for again."""
        epoch = await self.epoch_of_leader(self.partition)
        wanted = fetching.FetchPartition(
            partition=self.partition.partition,
            current_leader_epoch=epoch,
            fetch_offset=self.position,
            partition_max_bytes=4096,
        )
        request = fetching.FetchRequest(
            max_wait_ms=1000,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=1,
            topics=[fetching.FetchTopic(topic=self.partition.topic, partitions=[wanted])],
        )
        answer = await self.send_to_leader(self.partition, request, 11)
        if answer is None or answer.error_code:
            return False
        found = answer.responses[0].partitions[0]
        code = error_of(found.error_code)
        if code is not ErrorCode.NONE:
            self._is_lost = code is ErrorCode.OFFSET_OUT_OF_RANGE
            return False
        self.known.stable_seen(
            self.name, self.partition, epoch, found.last_stable_offset, found.high_watermark
        )
        self._take(found, epoch)
        return True

    def _take(self, found: fetching.PartitionData, epoch: int) -> None:
        for record in self._committed(found):
            self._record(record)

    def _record(self, record: Record) -> None:
        value = bytes(record.value or b"")
        self.known.delivered(self.name, self.partition, record.offset, value)

    def _committed(self, found: fetching.PartitionData) -> Iterator[Record]:
        """The records behind the position that are of no aborted transaction."""
        aborted = sorted(
            found.aborted_transactions or [], key=lambda each: each.first_offset, reverse=True
        )
        ongoing: set[int] = set()
        for batch in iterate_batches(found.records or b"", partial_tail=True):
            while aborted and aborted[-1].first_offset <= batch.last_offset:
                ongoing.add(aborted.pop().producer_id)
            if batch.is_control:
                for record in batch.records(_READ_BYTES):
                    if control_record_type(record.key) == ABORT:
                        ongoing.discard(batch.producer_id)
            elif batch.is_transactional and batch.producer_id in ongoing:
                self.known.counted("aborted records skipped")
            else:
                for record in batch.records(_READ_BYTES):
                    if record.offset >= self.position:
                        yield record
            self.position = max(self.position, batch.next_offset)

    async def _find_start(self) -> bool:
        """Reads on from where the log begins; False when that was not answered."""
        epoch = await self.epoch_of_leader(self.partition)
        wanted = offsets.ListOffsetsPartition(
            partition_index=self.partition.partition, current_leader_epoch=epoch, timestamp=-2
        )
        topic = offsets.ListOffsetsTopic(name=self.partition.topic, partitions=[wanted])
        answer = await self.send_to_leader(
            self.partition, offsets.ListOffsetsRequest(replica_id=-1, topics=[topic]), 5
        )
        if answer is None or answer.topics[0].partitions[0].error_code:
            return False
        self.position, self._is_lost = int(answer.topics[0].partitions[0].offset), False
        return True


class KeyedReader(CommittedConsumer):
    """Reads a compacted partition from its start to the last stable offset, again and again.

    `began`: when the last pass that came to its end began, `end`: where that was; -1: none yet.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        brokers: Sequence[Address],
        notes: Notes,
        known: TransactionNotes,
        partition: TopicPartition,
    ) -> None:
        super().__init__(runtime, name, brokers, notes, known, partition)
        self.began, self.end = -1.0, -1
        self._begin()

    def _begin(self) -> None:
        self.position, self._end, self._epoch = 0, -1, -1
        self._since = self.runtime.clock.seconds()
        self._seen: dict[bytes, int] = {}

    async def main(self) -> None:
        while not self.stopped:
            if not await self._fetch():
                self.forget_leader(self.partition)
                self._begin()
                await self.pause(0.2)
            elif self.position >= self._end:
                seconds = self.runtime.clock.seconds() - self._since
                self.known.pass_ended(self.name, self.partition, self._end, seconds, self._seen)
                self.began, self.end = self._since, self._end
                await self.pause(1.0)
                self._begin()

    def _take(self, found: fetching.PartitionData, epoch: int) -> None:
        if self._end < 0:
            self._end, self._epoch = found.last_stable_offset, epoch
        if epoch != self._epoch:
            self._begin()  # another replica may have been cleaned at another time
            return
        super()._take(found, epoch)
        if not found.records:
            self.position = max(self.position, self._end)  # nothing is left below it

    def _record(self, record: Record) -> None:
        key = None if record.key is None else bytes(record.key)
        value = None if record.value is None else bytes(record.value)
        self.known.keyed_delivered(self.name, self.partition, record.offset, key, value)
        if key is not None:
            self._seen[key] = record.offset


class OffsetsReader(Client):
    """Fetches what the transactions of an id committed, where no offset is pending: now and then,
    and as soon as a commit was acknowledged, as a program that takes over does.

    `began`: when the last fetch that was answered so began, -1 before there is one; `last`: what it
    gave.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        brokers: Sequence[Address],
        notes: Notes,
        known: TransactionNotes,
        transactional_id: str,
        place: TopicPartition,
    ) -> None:
        super().__init__(runtime, name, brokers, notes)
        self.known, self.transactional_id, self.place = known, transactional_id, place
        self.began, self.last = -1.0, -1
        self._coordinator: Address | None = None

    async def main(self) -> None:
        while not self.stopped:
            await self.fetch()
            await self.pause(1.5)

    async def fetch(self) -> None:
        group, began = group_of(self.transactional_id), self.runtime.clock.seconds()
        if self._coordinator is None:
            request = committed.FindCoordinatorRequest(key=group, key_type=0)
            answer = await self.send_to_any(request, 3)
            if answer is None or answer.error_code:
                return
            self._coordinator = answer.host, answer.port
        floor = self.known.offset_floor(self.transactional_id)
        address, coordinator = self._coordinator, self.known.coordinator_of(group)
        topic = committed.OffsetFetchRequestTopic(
            name=self.place.topic, partition_indexes=[self.place.partition]
        )
        answer = await self.send(
            address,
            committed.OffsetFetchRequest(group_id=group, topics=[topic], require_stable=True),
            7,
        )
        if answer is None or answer.error_code:
            self._coordinator = None
            return
        found = answer.topics[0].partitions[0]
        if found.error_code:
            self.notes.refused("transactional fetch", error_of(found.error_code).name)
            return
        if began >= self.began:
            self.began, self.last = began, int(found.committed_offset)
        is_current = coordinator is not None and coordinator[0] == address[0]
        if not is_current or coordinator != self.known.coordinator_of(group):
            floor = -1
        self.known.offset_seen(self.transactional_id, int(found.committed_offset), floor)
