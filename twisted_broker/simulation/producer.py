"""A producer that records the outcome of each batch.

Owns `Producer`.

1. An idempotent producer sends a batch again, with the same sequence, until it is acknowledged or
   refused for good; then it begins a new session. Of several in flight it sends again, in order,
   those that were not acknowledged.
2. Without idempotence it sends a batch a few times; it may be there twice then.
3. With acks=0 nobody knows what became of a batch; with acks=1 its leader had it, and it is owed
   only while that leader leads.

Not here: transactions (`simulation/transactional_producer.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.simulation.checks.history import Fate
from twisted_broker.simulation.client import Address, Client
from twisted_broker.simulation.client_notes import Attempt, Notes
from twisted_broker.simulation.run_options import Options
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import produce, producer_ids
from twisted_broker.wire.messages.produce import PartitionProduceResponse
from twisted_broker.wire.records import BatchBuilder, BatchView

TIMEOUT_MS = 4_000
"""What a broker may take to replicate a batch."""
_OLDEST_MS = 20_000
_MANY_IN_FLIGHT = 5
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
_BY_NAME, _BY_ID = 9, 13


class Producer(Client):
    """Sends batches to partitions, `in_flight` of them to one at a time.

    `by_id`: topics that are deleted and made again; they are named by their id.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        brokers: Sequence[Address],
        notes: Notes,
        partitions: Sequence[TopicPartition],
        idempotent: bool,
        options: Options,
    ) -> None:
        super().__init__(runtime, name, brokers, notes)
        self.partitions, self.idempotent = list(partitions), idempotent
        self.pace_seconds, self.in_flight = options.pace_seconds, options.in_flight
        self.acks, self.codecs = options.acks, options.codecs
        self.old_timestamps = options.old_timestamps
        self.by_id = {topic.name for topic in options.churn}
        self.session = (-1, -1)
        self.sessions = 0
        self._sequences: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, Attempt] = {}
        self._count = 0

    async def main(self) -> None:
        while not self.stopped and await self.next_action(self._gap):
            partition = self.random.choice(self.partitions)
            self.actor.acts(f"produces to {partition}")
            await self.produce(partition)

    def _gap(self, random: Random) -> float:
        """Seconds: the more it sends at once, the rarer."""
        return random.expovariate(2 / (self.pace_seconds * (1 + self.in_flight)))

    async def produce(self, partition: TopicPartition) -> None:
        """A few batches, until each is acknowledged or refused, or nobody can know."""
        if self.idempotent and self.session[0] < 0 and not await self._begin_session():
            return
        fact = await self._fact_name(partition)
        if fact is None:
            return
        sequence = self._sequences.get(fact, 0)
        sent: list[_Sent] = []
        last = self._last.get(fact)
        for _ in range(self.random.randint(1, self.in_flight)):
            sent.append(self._make(partition, fact, sequence, last))
            last = sent[-1].attempt
            sequence += len(last.values)
        tries = 40 if self.idempotent else self.random.choice((1, 3))
        while not self.stopped and (open_ones := [each for each in sent if each.is_open]):
            await self._send_all(open_ones)
            made_anew = partition.topic in self.by_id and fact != self.name_with_id(
                partition, self.topic_ids[partition.topic]
            )
            for each in open_ones:
                if each.is_open and (made_anew or each.attempt.sent >= tries):
                    each.attempt.fate = Fate.UNKNOWN
            if any(each.is_open for each in sent):
                await self.pause(0.1)
        self._settled(fact, sequence, [each.attempt for each in sent])

    def _settled(self, fact: TopicPartition, sequence: int, attempts: list[Attempt]) -> None:
        if all(attempt.was_answered for attempt in attempts):
            self._sequences[fact], self._last[fact] = sequence, attempts[-1]
        else:
            self.session = (-1, -1)  # the next batch must not follow one that may be missing
        for attempt in attempts:
            if attempt.fate is None:
                attempt.fate = Fate.UNKNOWN

    async def _fact_name(self, partition: TopicPartition) -> TopicPartition | None:
        """What facts of it are noted under: of a topic that may be made again, with its id."""
        if partition.topic not in self.by_id:
            return partition
        await self.epoch_of_leader(partition)
        known = self.topic_ids.get(partition.topic)
        if known is None:
            await self.pause(0.2)
            return None
        return self.name_with_id(partition, known)

    def _make(
        self, partition: TopicPartition, fact: TopicPartition, sequence: int, last: Attempt | None
    ) -> _Sent:
        values = [self._value() for _ in range(self.random.randint(1, 4))]
        acks = self.random.choice(self.acks)
        attempt = Attempt(fact, values, self.idempotent, acks, after=last)
        self.notes.attempts.append(attempt)
        return _Sent(attempt, self._request(partition, attempt, self._batch(values, sequence)))

    def _request(self, partition: TopicPartition, attempt: Attempt, batch: bytes) -> Any:
        data = produce.PartitionProduceData(index=partition.partition, records=batch)
        topic = produce.TopicProduceData(
            name=partition.topic,
            topic_id=self.topic_ids.get(partition.topic, bytes(16)),
            partition_data=[data],
        )
        return partition, produce.ProduceRequest(
            acks=attempt.acks, timeout_ms=TIMEOUT_MS, topic_data=[topic]
        )

    def _value(self) -> bytes:
        self._count += 1
        return f"{self.name}-{self._count}".encode()

    def _batch(self, values: list[bytes], sequence: int) -> bytes:
        producer: dict[str, Any] = {}
        if self.idempotent:
            producer = {
                "producer_id": self.session[0],
                "producer_epoch": self.session[1],
                "base_sequence": sequence,
            }
        builder = BatchBuilder(codec=self.random.choice(self.codecs), **producer)
        timestamp_ms = self.runtime.wall_ms()
        if self.old_timestamps:
            timestamp_ms -= self.random.randrange(_OLDEST_MS)
        for value in values:
            builder.append(timestamp_ms, None, value)
        return bytes(builder.build())

    async def _send_all(self, sent: list[_Sent]) -> None:
        """All on one connection, in order; then their answers."""
        epoch = await self.epoch_of_leader(sent[0].request[0])
        answers: list[Deferred[Any]] = []
        if len(sent) == _MANY_IN_FLIGHT:
            self.notes.reached("five batches in flight")
        for each in sent:
            each.attempt.sent += 1
            each.attempt.asked = self.leaders.get(each.request[0], (-1, -1))
            answers.append(ensureDeferred(self._send(each)))
        is_first = True
        for each, coming in zip(sent, answers, strict=True):
            answer = await coming
            if each.attempt.acks == 0:
                each.attempt.fate = Fate.UNKNOWN
                each.attempt.was_answered = answer is not None
                if each.attempt.was_answered:
                    self.notes.reached("batch without an answer")
            elif answer is None:
                self.forget_leader(each.request[0])
            else:
                found = answer.responses[0].partition_responses[0]
                self._answered(each, found, epoch, is_first)
                if each.attempt.was_answered:
                    self._reached(each)
            is_first = is_first and each.attempt.was_answered

    def _reached(self, each: _Sent) -> None:
        """Of an acknowledged batch."""
        if each.attempt.acks == 1:
            self.notes.reached("batch of its leader alone")
        _, request = each.request
        if BatchView(request.topic_data[0].partition_data[0].records).codec:
            self.notes.reached("compressed batch")

    async def _send(self, each: _Sent) -> Any:
        partition, request = each.request
        version = _BY_ID if partition.topic in self.by_id else _BY_NAME
        if each.attempt.acks == 0:
            return await self.send_unanswered(partition, request, version)
        return await self.send_to_leader(partition, request, version)

    def _answered(
        self, each: _Sent, found: PartitionProduceResponse, epoch: int, is_first: bool
    ) -> None:
        """`epoch`: of the leader that answered; `is_first`: all sent before it were answered."""
        attempt, code = each.attempt, error_of(found.error_code)
        if code is ErrorCode.NONE:
            attempt.base_offset, attempt.epoch = found.base_offset, epoch
            attempt.was_answered = True
            attempt.fate = Fate.ACKED if attempt.acks == -1 else Fate.UNKNOWN
            self.notes.acked_records += len(attempt.values)
            self.notes.acked(attempt)
        elif code in _NEW_SESSION and not is_first:
            return  # one before it is missing: both are sent again
        elif code in _NEW_SESSION or not code.retriable:
            attempt.fate = (
                Fate.UNKNOWN if attempt.sent > 1 or code in _MAYBE_THERE else Fate.REFUSED
            )
            self.note(f"{attempt!r}: {code.name}")
            if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self.notes.out_of_order(attempt)
            self.notes.refused("produce", code.name)
        elif code not in _MAYBE_THERE:
            self.forget_leader(each.request[0])
            self.notes.refused("produce", code.name)

    async def _begin_session(self) -> bool:
        answer = await self.send_to_any(
            producer_ids.InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=60_000
            ),
            4,
        )
        if answer is None or answer.error_code or answer.producer_id < 0:
            return False
        self.session = (answer.producer_id, answer.producer_epoch)
        self.sessions += 1
        self._sequences, self._last = {}, {}
        return True


class _Sent:
    """An attempt and its (partition, request)."""

    __slots__ = ("attempt", "request")

    def __init__(self, attempt: Attempt, request: Any) -> None:
        self.attempt, self.request = attempt, request

    @property
    def is_open(self) -> bool:
        return self.attempt.fate is None
