"""Which batch of a simulated producer follows which: what an answer that it is out of order is
judged by.
"""

from __future__ import annotations

from collections.abc import Awaitable
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, succeed

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.history import Fate
from twisted_broker.simulation.client_notes import Attempt, Notes
from twisted_broker.simulation.options import options_of
from twisted_broker.simulation.producer import Producer
from twisted_broker.simulation.transaction_notes import Transaction, TransactionNotes
from twisted_broker.simulation.transactional_producer import TransactionalProducer
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import produce
from twisted_broker.wire.records import BatchView

PLACE = TopicPartition("t", 0)
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
LATER = ErrorCode.NOT_ENOUGH_REPLICAS


class AsTold:
    """The leader: (producer id, sequence) of each batch that came, and what it is answered next."""

    def __init__(self, *codes: ErrorCode) -> None:
        self.codes, self.end = list(codes), 0
        self.came: list[tuple[int, int]] = []

    async def epoch_of_leader(self, partition: TopicPartition) -> int:
        return 3

    async def send_to_leader(self, partition: TopicPartition, request: Any, version: int) -> Any:
        batch = BatchView(request.topic_data[0].partition_data[0].records)
        self.came.append((batch.producer_id, batch.base_sequence))
        code = self.codes.pop(0)
        base = -1 if code is not ErrorCode.NONE else self.end
        self.end += batch.records_count
        found = produce.PartitionProduceResponse(error_code=code.value, base_offset=base)
        return produce.ProduceResponse(
            responses=[produce.TopicProduceResponse(partition_responses=[found])]
        )


class World(NamedTuple):
    notes: Notes
    refused: list[Attempt]
    runtime: Any


def world() -> World:
    notes, refused = Notes(), list[Attempt]()
    notes.out_of_order = refused.append
    return World(notes, refused, SimpleNamespace(random=Random(1), wall_ms=lambda: 1000))


def done(what: Awaitable[Any]) -> Any:
    found: list[Any] = []
    ensureDeferred(what).addCallback(found.append)
    return found[0]


def at_once(seconds: float) -> Deferred[None]:
    return succeed(None)


def plain(monkeypatch: pytest.MonkeyPatch, leader: AsTold, batches: int) -> tuple[World, Producer]:
    """A producer that sends so many batches together; its sessions are 1, 2, 3."""
    made, options = world(), options_of(1)
    options.in_flight, options.acks, options.codecs, options.churn = batches, [-1], [0], []
    producer = Producer(made.runtime, "p", [], made.notes, [PLACE], True, options)
    monkeypatch.setattr(producer.random, "randint", lambda low, high: high)

    async def send_to_any(request: Any, version: int) -> Any:
        return SimpleNamespace(error_code=0, producer_id=producer.sessions + 1, producer_epoch=0)

    for name in ("epoch_of_leader", "send_to_leader"):
        monkeypatch.setattr(producer, name, getattr(leader, name))
    monkeypatch.setattr(producer, "send_to_any", send_to_any)
    monkeypatch.setattr(producer, "pause", at_once)
    return made, producer


def test_it_is_the_one_just_before_not_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that were sent together the second was taken first, the first then refused (seed
    450888).
    """
    leader = AsTold(ErrorCode.NONE, LATER, ErrorCode.NONE, OUT_OF_ORDER)
    made, producer = plain(monkeypatch, leader, 1)
    done(producer.produce(PLACE))
    producer.in_flight = 2
    done(producer.produce(PLACE))
    before, first, second = made.notes.attempts
    assert made.refused == [first] and first.fate is Fate.UNKNOWN
    assert first.after is before and before.fate is Fate.ACKED
    assert second.after is first and second.fate is Fate.ACKED
    assert leader.came == [(1, 0), (1, 4), (1, 8), (1, 4)]


def test_a_later_one_is_not_out_of_order_while_one_before_it_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = AsTold(LATER, OUT_OF_ORDER, ErrorCode.NONE, ErrorCode.NONE)
    made, producer = plain(monkeypatch, leader, 2)
    done(producer.produce(PLACE))
    assert made.refused == [] and [each.fate for each in made.notes.attempts] == [Fate.ACKED] * 2


def test_a_new_session_follows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = AsTold(ErrorCode.NONE, OUT_OF_ORDER, OUT_OF_ORDER)
    made, producer = plain(monkeypatch, leader, 1)
    for _ in range(3):
        done(producer.produce(PLACE))
    first, second, third = made.notes.attempts
    assert (first.after, second.after, third.after) == (None, first, None)
    assert made.refused == [second, third]
    assert leader.came == [(1, 0), (1, 4), (2, 0)]


def transactional(leader: AsTold) -> tuple[World, TransactionalProducer]:
    made, options = world(), options_of(1)
    options.compacted = []
    producer = TransactionalProducer(
        made.runtime, "x0a", [], made.notes, TransactionNotes(), "x0", 2, [PLACE], options
    )
    producer.epoch_of_leader = leader.epoch_of_leader
    producer.send_to_leader = leader.send_to_leader
    producer._given(SimpleNamespace(producer_id=1, producer_epoch=0))
    return made, producer


def test_one_of_a_transaction_follows_the_one_before() -> None:
    """And nothing when its producer begins anew."""
    leader = AsTold(ErrorCode.NONE, OUT_OF_ORDER, OUT_OF_ORDER)
    made, producer = transactional(leader)
    transaction = Transaction("x0", "x0a", 0)
    assert done(producer._write(transaction)) and not done(producer._write(transaction))
    producer._forget()
    producer._given(SimpleNamespace(producer_id=1, producer_epoch=1))
    assert not done(producer._write(transaction))
    first, second, third = made.notes.attempts
    assert made.refused == [second, third]
    assert second.after is first and first.fate is Fate.ACKED and third.after is None
