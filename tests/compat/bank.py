"""A bank: transfers are read, and booked in transactions together with the offsets that they were
read at, by programs that run side by side as one group; an auditor adds up what is committed.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from threading import Event, Thread
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

ACCOUNTS, TRANSFERS_AT_ONCE = 100, 5
WAIT_SECONDS = 30
GROUP, TRANSFERS, LEDGER = "bank", "transfers", "ledger"
Transfer = tuple[int, int, int]


def transfers(count: int, seed: int) -> list[Transfer]:
    """(from, to, amount) each."""
    chance = random.Random(seed)
    return [
        (*chance.sample(range(ACCOUNTS), 2), chance.randrange(1, 100))  # type: ignore[misc]
        for _ in range(count)
    ]


def order(bootstrap: str, wanted: list[Transfer]) -> None:
    """Writes the transfers that are to be booked."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for each in wanted:
        producer.produce(TRANSFERS, b"%d %d %d" % each)
    assert not producer.flush(WAIT_SECONDS)


class Teller:
    """A program that reads, books and commits; what fails is aborted and read again. Now and then
    it aborts by itself.
    """

    def __init__(self, bootstrap: str, number: int) -> None:
        self.bootstrap, self.number = bootstrap, number
        self.committed = self.aborted = self.restarts = 0
        self.errors: list[str] = []
        self._chance = random.Random(number)
        self._stopped = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> Teller:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(2 * WAIT_SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._work()
            except KafkaException as error:
                # Fenced, or beyond what the producer can mend: a new one takes the id over.
                self.restarts += 1
                self.errors.append(str(error))
                self._stopped.wait(0.2)

    def _work(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": f"teller-{self.number}",
                "transaction.timeout.ms": 10_000,
                "log_level": 0,
            }
        )
        producer.init_transactions(WAIT_SECONDS)
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": GROUP,
                "session.timeout.ms": 6_000,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        consumer.subscribe([TRANSFERS])
        try:
            while not self._stopped.is_set():
                messages = consumer.consume(TRANSFERS_AT_ONCE, timeout=0.3)
                found = [message for message in messages if message.error() is None]
                if found:
                    self._book(producer, consumer, found)
        finally:
            consumer.close()

    def _book(self, producer: Any, consumer: Any, messages: list[Any]) -> None:
        producer.begin_transaction()
        try:
            for message in messages:
                payer, payee, amount = map(int, message.value().split())
                for account, change in ((payer, -amount), (payee, amount)):
                    producer.produce(LEDGER, b"%d" % change, b"%d" % account, partition=0)
                    producer.produce(f"{LEDGER}-by-account", b"%d" % change, b"%d" % account)
            if self._chance.random() < 0.1:
                producer.flush(WAIT_SECONDS)
                self._abort(producer, consumer)
                return
            _again(
                lambda: producer.send_offsets_to_transaction(
                    consumer.position(consumer.assignment()),
                    consumer.consumer_group_metadata(),
                    WAIT_SECONDS,
                )
            )
            _again(lambda: producer.commit_transaction(WAIT_SECONDS))
            self.committed += 1
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.errors.append(str(error))
            self._abort(producer, consumer)

    def _abort(self, producer: Any, consumer: Any) -> None:
        _again(lambda: producer.abort_transaction(WAIT_SECONDS))
        self.aborted += 1
        assigned = consumer.assignment()
        if assigned:
            for each in consumer.committed(assigned, timeout=WAIT_SECONDS):
                start = each.offset if each.offset >= 0 else 0
                # A partition that a rebalance takes just now cannot be sought, nor need it be.
                with suppress(KafkaException):
                    consumer.seek(TopicPartition(each.topic, each.partition, start))


def _again(step: Any) -> None:
    """A step of a transaction, again while the client says that it may be tried again."""
    until = time.monotonic() + 2 * WAIT_SECONDS
    while True:
        try:
            step()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > until:
                raise


class Auditor:
    """Reads what is committed, from the beginning; `looks` counts the reads up to the end, at each
    of which the sum over all accounts was 0.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.balances = dict.fromkeys(range(ACCOUNTS), 0)
        self.bookings = self.looks = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"auditor of {topic}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        partitions = self._consumer.list_topics(topic, WAIT_SECONDS).topics[topic].partitions
        self._is_one = len(partitions) == 1
        self._consumer.assign([TopicPartition(topic, each, 0) for each in partitions])

    def look(self, seconds: float = 0.5) -> None:
        for message in self._consumer.consume(500, timeout=seconds):
            error = message.error()
            if error is None:
                self.bookings += 1
                self.balances[int(message.key())] += int(message.value())
            elif error.code() == KafkaError._PARTITION_EOF and self._is_one:
                # The last stable offset: each transaction is there as a whole, or not at all.
                assert sum(self.balances.values()) == 0, self.balances
                self.looks += 1

    def look_until(self, bookings: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.bookings < bookings and time.monotonic() < until:
            self.look()

    def close(self) -> None:
        self._consumer.close()


def expected(wanted: list[Transfer]) -> dict[int, int]:
    """Every transfer booked once."""
    balances = dict.fromkeys(range(ACCOUNTS), 0)
    for payer, payee, amount in wanted:
        balances[payer] -= amount
        balances[payee] += amount
    return balances
