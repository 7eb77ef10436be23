"""A transactional producer: it writes to several partitions, commits offsets, ends its
transactions, and notes what it was answered.

Owns `TransactionalProducer`, one instance of a transactional id; there may be another one of the
same id, and whichever begins later fences the other.

1. A batch is sent again, with the same sequence, until it is acknowledged; where that does not come
   about, the transaction is aborted. So all of a committed one was acknowledged.
2. It may be committed only once EndTxn was sent to commit it; from then on, until the answer, it is
   either.
3. Now and then an instance goes away in the middle, or does nothing until its transaction has timed
   out and goes on as if nothing were; or a batch comes when its transaction was aborted already.
4. Most transactions follow one another without a pause: the next one begins with the answer to the
   EndTxn of the one before, whose markers are still to be written.

`version` 1 adds each partition itself; 2 leaves that to the partition's leader, and takes a new
epoch from each EndTxn (KIP-890). Not here: what must hold (`simulation/checks/transactions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.simulation.checks.history import Fate
from twisted_broker.simulation.client import Address, Client
from twisted_broker.simulation.client_notes import Attempt, Notes
from twisted_broker.simulation.run_options import Options
from twisted_broker.simulation.transaction_notes import (
    Outcome,
    Transaction,
    TransactionNotes,
    keyed,
    keyed_value,
)
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import offsets, produce, producer_ids, transactions
from twisted_broker.wire.records import BatchBuilder

KEYS = 6
TOMBSTONES = 0.2
_TIMEOUT_MS = 4_000
_TRIES, _PAUSE_SECONDS = 40, 0.1
_COMMITS, _LEAVES, _STALLS, _WITH_OFFSETS, _LATE = 0.75, 0.06, 0.06, 0.3, 0.5
_GROUP, _TRANSACTION = 0, 1
_COORDINATOR_ERRORS = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_AGAIN = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
_MAYBE_THERE = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
_NEW_SEQUENCES = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


def group_of(transactional_id: str) -> str:
    """The group for which an id's transactions commit offsets."""
    return f"g-{transactional_id}"


class TransactionalProducer(Client):
    """`places`: what it writes to; those of topics in `compacted` get records with keys."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        brokers: Sequence[Address],
        notes: Notes,
        known: TransactionNotes,
        transactional_id: str,
        version: int,
        places: Sequence[TopicPartition],
        options: Options,
    ) -> None:
        super().__init__(runtime, name, brokers, notes)
        self.known, self.transactional_id, self.version = known, transactional_id, version
        self.places = list(places)
        self.compacted = {topic.name for topic in options.compacted}
        self.timeout_ms = options.transaction_timeout_ms
        self.at_once_chance = options.at_once_chance
        self.pace_seconds, self.pause_seconds = options.pace_seconds, options.batch_pause_seconds
        self.session: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, Attempt] = {}
        self._added: set[TopicPartition] = set()
        self._has_begun = self._ended = False
        """a partition was added; the last transaction was ended, and its session goes on"""
        self._coordinators: dict[int, Address] = {}
        self._count = 0

    async def main(self) -> None:
        while not self.stopped and await self.next_action(self._gap):
            self.actor.acts(f"a transaction of {self.transactional_id}")
            if self.session is None and not await self._begin_instance():
                continue
            await self._transaction()
            while self._begins_at_once():
                self.known.counted(f"transaction begun at once, version {self.version}")
                await self._transaction()

    def _begins_at_once(self) -> bool:
        if not self.at_once_chance or not self._ended or self.stopped:
            return False
        return self.random.random() < self.at_once_chance

    def _gap(self, random: Random) -> float:
        """Seconds: the second instance of an id takes over now and then."""
        mean = 0.2 + self.pace_seconds
        return random.expovariate(1 / (mean if self.name.endswith("a") else 10 * mean))

    # coordinators

    async def _find(self, kind: int) -> Address | None:
        key = self.transactional_id if kind == _TRANSACTION else group_of(self.transactional_id)
        answer = await self.send_to_any(offsets.FindCoordinatorRequest(key=key, key_type=kind), 3)
        if answer is None or answer.error_code:
            return None
        return answer.host, answer.port

    async def _call(
        self, kind: int, request: Any, version: int, code_of: Callable[[Any], int]
    ) -> tuple[ErrorCode | None, Any, bool]:
        """The code and the answer of the coordinator, None when none came in time; and whether an
        earlier try may have been taken.
        """
        unsure = False
        for _ in range(_TRIES):
            if self.stopped:
                break
            address = self._coordinators.get(kind) or await self._find(kind)
            if address is not None:
                self._coordinators[kind] = address
                answer = await self.send(address, request, version)
                code = None if answer is None else error_of(code_of(answer))
                if code is None or code in _COORDINATOR_ERRORS:
                    self._coordinators.pop(kind, None)
                    unsure = True
                elif code not in _AGAIN:
                    return code, answer, unsure
                if code is not None:
                    self.notes.refused("transaction", code.name)
            await self.pause(_PAUSE_SECONDS)
        return None, None, True

    # sessions

    async def _begin_instance(self, goes_on: bool = False) -> bool:
        """`goes_on`: with the epoch after its own (KIP-360), where nobody else has begun."""
        before = self.session if goes_on and self.session is not None else (-1, -1)
        request = producer_ids.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=before[0],
            producer_epoch=before[1],
        )
        code, answer, _ = await self._call(
            _TRANSACTION, request, 3 + self.version, lambda answer: answer.error_code
        )
        self._forget()
        if code is not ErrorCode.NONE:
            self._refused("init", code)
            return False
        self._given(answer)
        return True

    def _given(self, answer: Any) -> None:
        self.session = (answer.producer_id, answer.producer_epoch)
        self.notes.sessions[self.session] += 1

    def _forget(self) -> None:
        self.session, self._has_begun = None, False
        self._sequences, self._last = {}, {}

    def _refused(self, api: str, code: ErrorCode | None) -> None:
        if code is None:
            return
        self.notes.refused(f"transactional {api}", code.name)
        if code in FENCED:
            self.known.counted("transactional producer fenced")

    def _judge(self, code: ErrorCode | None) -> None:
        """Of what it writes."""
        if self.version > 1 and code is ErrorCode.INVALID_TXN_STATE:
            self.known.belongs_to_nothing(self.name)

    # a transaction

    async def _transaction(self) -> None:
        made = self.known.begin(self.transactional_id, self.name)
        self._added, self._has_begun, self._ended = set(), False, False
        is_sound, with_offset = True, self.random.random() < _WITH_OFFSETS
        for _ in range(self.random.randint(1, 4)):
            if not await self._write(made):
                is_sound = False
                break
            if self.pause_seconds:
                await self.pause(self.pause_seconds)
        if is_sound and with_offset:
            is_sound = await self._commit_offset(made)
        if self.stopped or self.session is None:
            return
        draw = self.random.random()
        if draw < _LEAVES:
            self.known.counted("transaction left open")
            self._forget()
            return
        if draw < _LEAVES + _STALLS:
            await self.pause((0.5 + 1.5 * self.random.random()) * self.timeout_ms / 1000)
        if not self._has_begun:
            self._forget()
            return
        await self._end(made, is_sound and self.random.random() < _COMMITS)

    async def _end(self, made: Transaction, is_commit: bool) -> None:
        assert self.session is not None
        if is_commit:
            made.outcome = Outcome.SENT
        request = transactions.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.session[0],
            producer_epoch=self.session[1],
            committed=is_commit,
        )
        code, answer, unsure = await self._call(
            _TRANSACTION, request, 3 + self.version, lambda answer: answer.error_code
        )
        self.note(f"{made!r}: {'commit' if is_commit else 'abort'} {code and code.name}")
        if code is not ErrorCode.NONE:
            self._refused("end", code)
            if is_commit and code is not None and not unsure:
                made.outcome = Outcome.ABORTED
            self._forget()
            return
        made.outcome = Outcome.COMMITTED if is_commit else Outcome.ABORTED
        self.known.counted("transaction committed" if is_commit else "transaction aborted")
        if is_commit and made.offset is not None:
            self.known.offset_acked(self.transactional_id)
        if not is_commit and self.random.random() < _LATE:
            await self._write_late(made)
        if self.version > 1:
            self._given(answer)
            self._sequences, self._last = {}, {}
        elif not is_commit:
            await self._begin_instance(goes_on=True)
        self._ended = self.session is not None

    # records

    async def _write(self, made: Transaction) -> bool:
        """One batch, until it is acknowledged; False: the transaction cannot be committed."""
        place = self.random.choice(self.places)
        if self.version == 1 and place not in self._added and not await self._add(place):
            return False
        assert self.session is not None
        values = [self._value(place) for _ in range(self.random.randint(1, 3))]
        attempt = Attempt(place, values, True, after=self._last.get(place))
        attempt.session = self.session
        is_keyed = place.topic in self.compacted
        for value in values:
            self.known.by_value[value] = made
        if not is_keyed:
            self.notes.attempts.append(attempt)
        request = self._produce_request(place, self._batch(place, values))
        self._has_begun = True
        while attempt.fate is None and attempt.sent < _TRIES and not self.stopped:
            await self._send_batch(place, attempt, request)
        if attempt.fate is not Fate.ACKED:
            attempt.fate = attempt.fate or Fate.UNKNOWN
            return False
        self._sequences[place] = self._sequences.get(place, 0) + len(values)
        self._last[place] = attempt
        made.records.append((place, attempt.base_offset, values))
        if is_keyed:
            self.known.keyed_acked(attempt)
        else:
            self.notes.acked_records += len(values)
            self.notes.acked(attempt)
        return True

    async def _send_batch(self, place: TopicPartition, attempt: Attempt, request: Any) -> None:
        epoch = await self.epoch_of_leader(place)
        if epoch < 0:
            await self.pause(_PAUSE_SECONDS)
            return
        attempt.sent += 1
        answer = await self.send_to_leader(place, request, 10 + self.version)
        if answer is None:
            self.forget_leader(place)
            return
        found = answer.responses[0].partition_responses[0]
        code = error_of(found.error_code)
        if code is ErrorCode.NONE:
            attempt.base_offset, attempt.epoch = found.base_offset, epoch
            attempt.was_answered, attempt.fate = True, Fate.ACKED
            return
        self.notes.refused("transactional produce", code.name)
        self._judge(code)
        if code in _NEW_SEQUENCES or code in FENCED or not code.retriable:
            is_unsure = attempt.sent > 1 or code in _MAYBE_THERE
            attempt.fate = Fate.UNKNOWN if is_unsure else Fate.REFUSED
            if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and place.topic not in self.compacted:
                self.notes.out_of_order(attempt)
            if code in FENCED:
                self.known.counted("transactional producer fenced")
                self._forget()
            return
        if code not in _MAYBE_THERE and code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            self.forget_leader(place)
        await self.pause(_PAUSE_SECONDS)

    async def _write_late(self, made: Transaction) -> None:
        """A batch of what was aborted, which the network held back: nobody may ever see it."""
        await self.pause(self.random.random() * 1.5)
        place = self.random.choice(self.places)
        values = [self._value(place)]
        self.known.by_value[values[0]] = made
        attempt = Attempt(place, values, True)
        attempt.session = self.session
        attempt.sent = 1
        if place.topic not in self.compacted:
            self.notes.attempts.append(attempt)
        request = self._produce_request(place, self._batch(place, values))
        await self._send_batch(place, attempt, request)
        self.known.counted("batch of an aborted transaction")
        attempt.fate = Fate.UNKNOWN

    def _value(self, place: TopicPartition) -> bytes:
        self._count += 1
        if place.topic in self.compacted:
            is_tombstone = self.random.random() < TOMBSTONES
            return keyed_value(self.random.randrange(KEYS), self.name, self._count, is_tombstone)
        return f"{self.name}-{self._count}".encode()

    def _batch(self, place: TopicPartition, values: list[bytes]) -> bytes:
        assert self.session is not None
        builder = BatchBuilder(
            producer_id=self.session[0],
            producer_epoch=self.session[1],
            base_sequence=self._sequences.get(place, 0),
            is_transactional=True,
        )
        for value in values:
            key, content = keyed(value) if place.topic in self.compacted else (None, value)
            builder.append(self.runtime.wall_ms(), key, content)
        return bytes(builder.build())

    def _produce_request(self, place: TopicPartition, batch: bytes) -> Any:
        data = produce.PartitionProduceData(index=place.partition, records=batch)
        topic = produce.TopicProduceData(name=place.topic, partition_data=[data])
        return produce.ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=_TIMEOUT_MS,
            topic_data=[topic],
        )

    async def _add(self, place: TopicPartition) -> bool:
        """AddPartitionsToTxn, as producers of version 1 do."""
        assert self.session is not None
        topic = transactions.AddPartitionsToTxnTopic(name=place.topic, partitions=[place.partition])
        request = transactions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.session[0],
            v3_and_below_producer_epoch=self.session[1],
            v3_and_below_topics=[topic],
        )
        self._has_begun = True
        code, _, _ = await self._call(
            _TRANSACTION,
            request,
            3,
            lambda answer: (
                answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            ),
        )
        if code is ErrorCode.NONE:
            self._added.add(place)
            return True
        self._refused("add", code)
        self._forget()
        return False

    # offsets

    async def _commit_offset(self, made: Transaction) -> bool:
        """Its number, as the offset of its group in the first partition."""
        assert self.session is not None
        if self.version == 1:
            adding = transactions.AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.session[0],
                producer_epoch=self.session[1],
                group_id=group_of(self.transactional_id),
            )
            code, _, _ = await self._call(_TRANSACTION, adding, 3, lambda answer: answer.error_code)
            if code is not ErrorCode.NONE:
                self._refused("add", code)
                self._forget()
                return False
        partition = transactions.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=made.number, committed_metadata=self.name
        )
        request = transactions.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_of(self.transactional_id),
            producer_id=self.session[0],
            producer_epoch=self.session[1],
            topics=[
                transactions.TxnOffsetCommitRequestTopic(
                    name=self.places[0].topic, partitions=[partition]
                )
            ],
        )
        code, _, _ = await self._call(
            _GROUP,
            request,
            3 + self.version,
            lambda answer: answer.topics[0].partitions[0].error_code,
        )
        if code is ErrorCode.NONE:
            made.offset = made.number
            self.known.counted("offset in a transaction")
            return True
        self._refused("offset", code)
        self._judge(code)
        if code in FENCED:
            self._forget()
        return False
