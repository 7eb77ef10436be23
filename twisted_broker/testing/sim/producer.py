"""A producer that notes what became of each batch.

Owns `Producer`.

1. An idempotent producer sends a batch again, with the same sequence, until it is acknowledged or
   refused for good; then it begins a new session.
2. Without idempotence it sends it a few times; it may be there twice then.

Not here: several batches in flight, transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.testing.checks.history import Fate
from twisted_broker.testing.sim.client import Address, Client
from twisted_broker.testing.sim.client_notes import Attempt, Notes
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import produce, producer_ids
from twisted_broker.wire.messages.produce import PartitionProduceResponse
from twisted_broker.wire.records import BatchBuilder

_TIMEOUT_MS = 4_000
_MAYBE_THERE = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
_NEW_SESSION = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)


class Producer(Client):
    """Sends batches to partitions one after another.

    `acks` -1; `pace_seconds` is the mean pause between batches.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        brokers: Sequence[Address],
        notes: Notes,
        partitions: Sequence[TopicPartition],
        idempotent: bool,
    ) -> None:
        super().__init__(runtime, name, brokers, notes)
        self.partitions, self.idempotent = list(partitions), idempotent
        self.pace_seconds = 0.2
        self.session = (-1, -1)
        self.sessions = 0
        self._sequences: dict[TopicPartition, int] = {}
        self._count = 0

    async def main(self) -> None:
        while not self.stopped and await self.next_action(
            lambda random: random.expovariate(1 / self.pace_seconds)
        ):
            partition = self.random.choice(self.partitions)
            self.actor.acts(f"produces to {partition}")
            await self.produce(partition)

    async def produce(self, partition: TopicPartition) -> None:
        """One batch, until it is acknowledged or refused, or nobody can know."""
        if self.idempotent and self.session[0] < 0 and not await self._begin_session():
            return
        values = [self._value() for _ in range(self.random.randint(1, 4))]
        attempt = Attempt(partition, values, self.idempotent)
        self.notes.attempts.append(attempt)
        batch = self._batch(partition, values)
        tries = 40 if self.idempotent else self.random.choice((1, 3))
        while attempt.fate is None and not self.stopped:
            attempt.sent += 1
            await self._send(attempt, batch)
            if attempt.fate is None:
                if attempt.sent >= tries:
                    attempt.fate = Fate.UNKNOWN
                await self.pause(0.1)
        self._settled(attempt)

    def _settled(self, attempt: Attempt) -> None:
        if attempt.fate is Fate.ACKED:
            self._sequences[attempt.partition] = self._sequences.get(attempt.partition, 0) + len(
                attempt.values
            )
        else:
            self.session = (-1, -1)  # the next batch must not follow one that may be missing
            if attempt.fate is None:
                attempt.fate = Fate.UNKNOWN

    def _value(self) -> bytes:
        self._count += 1
        return f"{self.name}-{self._count}".encode()

    def _batch(self, partition: TopicPartition, values: list[bytes]) -> bytes:
        producer: dict[str, Any] = {}
        if self.idempotent:
            producer = {
                "producer_id": self.session[0],
                "producer_epoch": self.session[1],
                "base_sequence": self._sequences.get(partition, 0),
            }
        builder = BatchBuilder(**producer)
        for value in values:
            builder.append(self.runtime.wall_ms(), None, value)
        return bytes(builder.build())

    async def _send(self, attempt: Attempt, batch: bytes) -> None:
        partition = attempt.partition
        data = produce.PartitionProduceData(index=partition.partition, records=batch)
        topic = produce.TopicProduceData(name=partition.topic, partition_data=[data])
        request = produce.ProduceRequest(acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=[topic])
        epoch = await self.epoch_of_leader(partition)
        answer = await self.ask_leader(partition, request, 9)
        if answer is None:
            self.forget_leader(partition)
        else:
            self._told(attempt, answer.responses[0].partition_responses[0], epoch)

    def _told(self, attempt: Attempt, found: PartitionProduceResponse, epoch: int) -> None:
        """`epoch`: of the leader that was asked."""
        code = error_of(found.error_code)
        if code is ErrorCode.NONE:
            attempt.fate, attempt.base_offset, attempt.epoch = Fate.ACKED, found.base_offset, epoch
            self.notes.acked_records += len(attempt.values)
            self.notes.acked(attempt)
        elif code in _NEW_SESSION or not code.retriable:
            attempt.fate = (
                Fate.UNKNOWN if attempt.sent > 1 or code in _MAYBE_THERE else Fate.REFUSED
            )
            self.note(f"{attempt!r}: {code.name}")
        elif code not in _MAYBE_THERE:
            self.forget_leader(attempt.partition)

    async def _begin_session(self) -> bool:
        answer = await self.ask_any(
            producer_ids.InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=60_000
            ),
            4,
        )
        if answer is None or answer.error_code or answer.producer_id < 0:
            return False
        self.session = (answer.producer_id, answer.producer_epoch)
        self.sessions += 1
        self._sequences = {}
        return True
