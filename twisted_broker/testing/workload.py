"""Clients that load a simulated cluster and remember what they were told.

Owns `History`, the clients' memory, and `Client`, `Producer`, `Consumer`, `Admin`, which speak the protocol and nothing else.

1. Every record's value is written once in a run by this workload; what the log holds twice, the broker (or a retry without idempotence) made.
2. A batch is acknowledged, refused, or unknown (no answer, or an answer after which it may still be there); only these three.
3. An idempotent producer sends a batch again, with the same sequence, until it is acknowledged or refused for good; then it begins a new session.
4. A consumer notes every record and every mark it was shown, in order.

Leaves out: groups, transactions; what the histories must satisfy (`checkers`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from random import Random
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.internet.error import ConnectError, ConnectionClosed, TimeoutError
from twisted.internet.task import deferLater

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.net.client import BrokerConnection, error_of
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import configs, produce, producer_ids, topics
from twisted_broker.wire.messages import fetch as fetching
from twisted_broker.wire.messages import list_offsets as offsets
from twisted_broker.wire.messages import metadata as meta
from twisted_broker.wire.records import BatchBuilder, iterate_batches

_LOST = (ConnectionClosed, ConnectError, TimeoutError, CancelledError)
_REQUEST_TIMEOUT_MS, _PRODUCE_TIMEOUT_MS = 6_000, 4_000
_MAYBE_THERE = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.UNKNOWN_SERVER_ERROR})
_NEW_SESSION = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH})
Address = tuple[str, int]


class Fate(Enum):
    """What a producer knows of a batch."""

    PENDING = "pending"
    ACKED = "acknowledged"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Attempt:
    """One batch of a producer. `base_offset` once acknowledged; `sent` counts the times it went out."""

    __slots__ = ("base_offset", "epoch", "fate", "idempotent", "partition", "sent", "values")

    def __init__(self, partition: TopicPartition, values: list[bytes], idempotent: bool) -> None:
        self.partition, self.values, self.idempotent = partition, values, idempotent
        self.fate = Fate.PENDING
        self.base_offset = self.epoch = -1
        self.sent = 0

    def __repr__(self) -> str:
        return f"{self.values[0].decode()}..{len(self.values)} to {self.partition}: {self.fate.value} at {self.base_offset}"


class History:
    """What clients know. The callables are told of each new fact as it becomes known."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.acked_records = self.consumed_records = 0
        self.acked: Callable[[Attempt], None] = lambda attempt: None
        self.consumed: Callable[[str, TopicPartition, int, int, int, int, Sequence[bytes]], None] = lambda *facts: None
        """(consumer, partition, base offset, last offset, leader epoch, batch CRC, values)"""
        self.mark_seen: Callable[[str, TopicPartition, int, int], None] = lambda *facts: None
        """(consumer, partition, leader epoch asked, high watermark) of a fetch answer"""
        self.out_of_range: Callable[[str, TopicPartition, int, int], None] = lambda *facts: None
        """(consumer, partition, leader epoch, offset) of a fetch that was told OFFSET_OUT_OF_RANGE"""
        self.note: Callable[[str, str], None] = lambda who, what: None


class Client:
    """Knows the brokers, the leaders as of the last time it asked, and keeps a connection to each broker."""

    def __init__(self, runtime: Runtime, name: str, brokers: Sequence[Address], history: History) -> None:
        self.runtime, self.name, self.brokers, self.history = runtime, name, list(brokers), history
        self.random: Random = runtime.random
        self.leaders: dict[TopicPartition, tuple[int, int]] = {}
        self.addresses: dict[int, Address] = {}
        self.stopped = False
        self._connections: dict[Address, BrokerConnection] = {}

    def connection(self, address: Address) -> BrokerConnection:
        found = self._connections.get(address)
        if found is None:
            found = BrokerConnection(self.runtime, *address, self.name, request_timeout_ms=_REQUEST_TIMEOUT_MS, connect_timeout_ms=2_000)
            self._connections[address] = found
        return found

    async def ask(self, address: Address, request: Any, version: int) -> Any:
        """The answer, None when none came."""
        try:
            return await self.connection(address).send(request, version)
        except _LOST:
            return None

    async def ask_any(self, request: Any, version: int) -> Any:
        return await self.ask(self.random.choice(self.brokers), request, version)

    async def epoch_of_leader(self, partition: TopicPartition) -> int:
        """The leader epoch to ask under, -1 when no leader is known; looks for one first."""
        if self.leaders.get(partition, (-1, -1))[0] not in self.addresses:
            await self.refresh(partition.topic)
        leader, epoch = self.leaders.get(partition, (-1, -1))
        return epoch if leader in self.addresses else -1

    async def ask_leader(self, partition: TopicPartition, request: Any, version: int) -> Any:
        """The answer of the leader whose epoch `epoch_of_leader` gave."""
        address = self.addresses.get(self.leaders.get(partition, (-1, -1))[0])
        if address is None:
            await self.pause(0.2)
            return None
        return await self.ask(address, request, version)

    async def refresh(self, topic: str) -> None:
        """Learns the leaders of a topic; older news than what is known changes nothing."""
        request = meta.MetadataRequest(topics=[meta.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        answer = await self.ask_any(request, 9)
        if answer is None:
            return
        self.addresses |= {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        for found in answer.topics:
            for each in found.partitions:
                partition = TopicPartition(topic, each.partition_index)
                if each.leader_epoch >= self.leaders.get(partition, (-1, -1))[1]:
                    self.leaders[partition] = (each.leader_id, each.leader_epoch)

    def forget_leader(self, partition: TopicPartition) -> None:
        _, epoch = self.leaders.get(partition, (-1, -1))
        self.leaders[partition] = (-1, epoch)

    def pause(self, seconds: float) -> Deferred[None]:
        paused: Deferred[None] = deferLater(self.runtime.clock, seconds, lambda: None)  # type: ignore[arg-type]
        return paused

    def run(self, work: Any) -> None:
        ensureDeferred(work)

    def note(self, what: str) -> None:
        self.history.note(self.name, what)


class Admin(Client):
    """Makes topics and changes their settings; tries until it is done."""

    async def create(self, name: str, partitions: int, replicas: int, settings: dict[str, str]) -> bool:
        wanted = topics.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replicas,
            configs=[topics.CreatableTopicConfig(name=key, value=value) for key, value in sorted(settings.items())],
        )  # fmt: skip
        while not self.stopped:
            answer = await self.ask_any(topics.CreateTopicsRequest(topics=[wanted], timeout_ms=_REQUEST_TIMEOUT_MS), 7)
            code = ErrorCode.REQUEST_TIMED_OUT if answer is None else error_of(answer.topics[0].error_code)
            self.note(f"create {name}: {code.name}")
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return True
            await self.pause(0.3)
        return False

    async def change(self, topic: str, name: str, value: str) -> None:
        """One try: it may have been done when no answer came."""
        resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2,
            resource_name=topic,
            configs=[configs.IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=0, value=value)],
        )
        answer = await self.ask_any(configs.IncrementalAlterConfigsRequest(resources=[resource]), 1)
        code = "no answer" if answer is None else error_of(answer.responses[0].error_code).name
        self.note(f"{topic} {name}={value}: {code}")


class Producer(Client):
    """Sends batches to partitions one after another. `acks` -1; `pace_seconds` is the mean pause between batches."""

    def __init__(
        self, runtime: Runtime, name: str, brokers: Sequence[Address], history: History, partitions: Sequence[TopicPartition], idempotent: bool
    ) -> None:
        super().__init__(runtime, name, brokers, history)
        self.partitions, self.idempotent = list(partitions), idempotent
        self.pace_seconds = 0.2
        self.session = (-1, -1)
        self.sessions = 0
        self._sequences: dict[TopicPartition, int] = {}
        self._count = 0

    async def main(self) -> None:
        while not self.stopped:
            await self.pause(self.random.expovariate(1 / self.pace_seconds))
            await self.produce(self.random.choice(self.partitions))

    async def produce(self, partition: TopicPartition) -> None:
        """One batch, until it is acknowledged or refused, or nobody can know."""
        if self.idempotent and self.session[0] < 0 and not await self._begin_session():
            return
        values = [self._value() for _ in range(self.random.randint(1, 4))]
        attempt = Attempt(partition, values, self.idempotent)
        self.history.attempts.append(attempt)
        batch = self._batch(partition, values)
        tries = 40 if self.idempotent else self.random.choice((1, 3))
        while attempt.fate is Fate.PENDING and not self.stopped:
            attempt.sent += 1
            await self._send(attempt, batch)
            if attempt.fate is Fate.PENDING:
                if attempt.sent >= tries:
                    attempt.fate = Fate.UNKNOWN
                await self.pause(0.1)
        self._settled(attempt)

    def _settled(self, attempt: Attempt) -> None:
        if attempt.fate is Fate.ACKED:
            self._sequences[attempt.partition] = self._sequences.get(attempt.partition, 0) + len(attempt.values)
        else:
            self.session = (-1, -1)  # the next batch must not follow one that may be missing
            if attempt.fate is Fate.PENDING:
                attempt.fate = Fate.UNKNOWN

    def _value(self) -> bytes:
        self._count += 1
        return f"{self.name}-{self._count}".encode()

    def _batch(self, partition: TopicPartition, values: list[bytes]) -> bytes:
        producer: dict[str, Any] = {}
        if self.idempotent:
            producer = {"producer_id": self.session[0], "producer_epoch": self.session[1], "base_sequence": self._sequences.get(partition, 0)}
        builder = BatchBuilder(**producer)
        for value in values:
            builder.append(self.runtime.wall_ms(), None, value)
        return bytes(builder.build())

    async def _send(self, attempt: Attempt, batch: bytes) -> None:
        partition = attempt.partition
        data = produce.PartitionProduceData(index=partition.partition, records=batch)
        topic = produce.TopicProduceData(name=partition.topic, partition_data=[data])
        request = produce.ProduceRequest(acks=-1, timeout_ms=_PRODUCE_TIMEOUT_MS, topic_data=[topic])
        epoch = await self.epoch_of_leader(partition)
        answer = await self.ask_leader(partition, request, 9)
        if answer is None:
            self.forget_leader(partition)
            return
        found = answer.responses[0].partition_responses[0]
        code = error_of(found.error_code)
        if code is ErrorCode.NONE:
            attempt.fate, attempt.base_offset, attempt.epoch = Fate.ACKED, found.base_offset, epoch
            self.history.acked_records += len(attempt.values)
            self.history.acked(attempt)
        elif code in _NEW_SESSION or not code.retriable:
            attempt.fate = Fate.UNKNOWN if attempt.sent > 1 or code in _MAYBE_THERE else Fate.REFUSED
            self.note(f"{attempt!r}: {code.name}")
        elif code not in _MAYBE_THERE:
            self.forget_leader(partition)

    async def _begin_session(self) -> bool:
        answer = await self.ask_any(producer_ids.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
        if answer is None or answer.error_code or answer.producer_id < 0:
            return False
        self.session = (answer.producer_id, answer.producer_epoch)
        self.sessions += 1
        self._sequences = {}
        return True


class Consumer(Client):
    """Reads one partition from its beginning, for ever."""

    def __init__(self, runtime: Runtime, name: str, brokers: Sequence[Address], history: History, partition: TopicPartition) -> None:
        super().__init__(runtime, name, brokers, history)
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
            partition=self.partition.partition, current_leader_epoch=epoch, fetch_offset=self.position, partition_max_bytes=4096
        )
        request = fetching.FetchRequest(
            max_wait_ms=1000, min_bytes=1, max_bytes=1 << 20, topics=[fetching.FetchTopic(topic=self.partition.topic, partitions=[asked])]
        )
        answer = await self.ask_leader(self.partition, request, 11)
        if answer is None or answer.error_code:
            return False
        return self._take(answer.responses[0].partitions[0], epoch)

    def _take(self, found: fetching.PartitionData, epoch: int) -> bool:
        code = error_of(found.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.history.out_of_range(self.name, self.partition, epoch, self.position)
            self.position = max(0, found.log_start_offset)
            return False
        if code is not ErrorCode.NONE:
            return False
        self.history.mark_seen(self.name, self.partition, epoch, found.high_watermark)
        for batch in iterate_batches(found.records or b"", partial_tail=True):
            values = [bytes(record.value or b"") for record in batch.records(1 << 20)]
            if batch.last_offset < self.position:
                continue
            self.history.consumed_records += len(values)
            self.history.consumed(self.name, self.partition, batch.base_offset, batch.last_offset, batch.partition_leader_epoch, batch.crc, values)
            self.position = batch.last_offset + 1
        return True

    async def _ask_end(self) -> None:
        """ListOffsets: what it says must never go back."""
        epoch = await self.epoch_of_leader(self.partition)
        asked = offsets.ListOffsetsPartition(partition_index=self.partition.partition, current_leader_epoch=epoch, timestamp=-1)
        topic = offsets.ListOffsetsTopic(name=self.partition.topic, partitions=[asked])
        answer = await self.ask_leader(self.partition, offsets.ListOffsetsRequest(replica_id=-1, topics=[topic]), 5)
        if answer is not None and not answer.topics[0].partitions[0].error_code:
            self.history.mark_seen(f"{self.name} end", self.partition, epoch, answer.topics[0].partitions[0].offset)
