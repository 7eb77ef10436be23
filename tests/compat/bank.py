"""A bank: transfers are read, and booked in transactions together with the offsets that they were
read at, by programs that run side by side as one group; an auditor adds up what is committed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

ACCOUNTS, TRANSFERS_AT_ONCE = 100, 5
WAIT_SECONDS = 30
STEP_SECONDS, STUCK_SECONDS = 5, 20
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
    """A transactional id and the program that has it now. `watch` replaces one that is stuck (as
    librdkafka's `send_offsets_to_transaction` may be while brokers die) by a new instance, as an
    operator would: it takes the id over, and what the old one may still do is fenced.
    """

    def __init__(self, bootstrap: str, number: int) -> None:
        self.bootstrap, self.number = bootstrap, number
        self.committed = self.aborted = self.restarts = self.replaced = 0
        self.errors: list[str] = []
        self._program = Program(self)

    def __str__(self) -> str:
        counts = f"{self.committed} committed, {self.aborted} aborted, {self.restarts} restarts"
        step = self._program.step
        return (
            f"teller {self.number}: {counts}, {self.replaced} replaced, {step}; {self.errors[-4:]}"
        )

    def start(self) -> Teller:
        self._program.start()
        return self

    def watch(self) -> None:
        if self._program.is_stuck:
            self.replace()

    def replace(self) -> None:
        """A new instance takes the id over, whatever the old one is doing."""
        self.replaced += 1
        self.errors.append(f"replaced in {self._program.step}")
        self._program.leave()
        self._program = Program(self, self.replaced)
        self._program.start()

    def stop(self) -> None:
        """One that is stuck is left: its calls end with its process."""
        self._program.leave()
        self._program.join()


class Program:
    """Reads, books and commits; what fails is aborted and read again. Now and then it aborts by
    itself.
    """

    def __init__(self, teller: Teller, replaced: int = 0) -> None:
        self.bootstrap, self.number, self._teller = teller.bootstrap, teller.number, teller
        self.step = "new"
        self._step_began = time.monotonic()
        self._chance = random.Random(teller.number + 1000 * replaced)
        self._left = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        """Nothing more is begun."""
        self._left.set()

    def join(self) -> None:
        self._thread.join(STUCK_SECONDS)

    @property
    def is_stuck(self) -> bool:
        return time.monotonic() - self._step_began > STUCK_SECONDS

    def _run(self) -> None:
        while not self._left.is_set():
            try:
                self._work()
            except KafkaException as error:
                # Fenced, or beyond what the producer can mend: a new one takes the id over.
                self._teller.restarts += 1
                self._teller.errors.append(str(error))
                self._left.wait(0.2)

    def _begin_step(self, name: str) -> None:
        self.step, self._step_began = (
            f"{name} since {time.strftime('%H:%M:%S')}",
            time.monotonic(),
        )

    def _work(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": f"teller-{self.number}",
                "transaction.timeout.ms": 10_000,
                "log_level": 0,
            }
        )
        self._again("init", lambda: producer.init_transactions(STEP_SECONDS))
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": GROUP,
                "session.timeout.ms": 6_000,
                # One that is stuck gives its partitions up.
                "max.poll.interval.ms": 12_000,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        consumer.subscribe([TRANSFERS])
        try:
            while not self._left.is_set():
                self._begin_step("read")
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
                producer.flush(STEP_SECONDS)
                self._abort(producer, consumer)
                return
            self._again(
                "send offsets",
                lambda: producer.send_offsets_to_transaction(
                    consumer.position(consumer.assignment()),
                    consumer.consumer_group_metadata(),
                    STEP_SECONDS,
                ),
            )
            self._again("commit", lambda: producer.commit_transaction(STEP_SECONDS))
            self._teller.committed += 1
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._teller.errors.append(str(error))
            self._abort(producer, consumer)

    def _abort(self, producer: Any, consumer: Any) -> None:
        self._again("abort", lambda: producer.abort_transaction(STEP_SECONDS))
        self._teller.aborted += 1
        assigned = consumer.assignment()
        if assigned:
            for each in consumer.committed(assigned, timeout=STEP_SECONDS):
                start = each.offset if each.offset >= 0 else 0
                # A partition that a rebalance takes just now cannot be sought, nor need it be.
                with suppress(KafkaException):
                    consumer.seek(TopicPartition(each.topic, each.partition, start))

    def _again(self, name: str, step: Any) -> None:
        """A step of a transaction, again while the client says that it may be tried again, until
        this program is replaced.
        """
        self._begin_step(name)
        while True:
            try:
                step()
                self._begin_step(f"after {name}")
                return
            except KafkaException as error:
                self._teller.errors.append(f"{self.step}: {error}")
                if not error.args[0].retriable() or self._left.is_set():
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

    def look_until(self, bookings: int, seconds: float, staff: Sequence[Teller] = ()) -> None:
        """Whoever of the staff is stuck meanwhile is replaced."""
        until = time.monotonic() + seconds
        while self.bookings < bookings and time.monotonic() < until:
            self.look()
            for teller in staff:
                teller.watch()

    def close(self) -> None:
        self._consumer.close()


def expected(wanted: list[Transfer]) -> dict[int, int]:
    """Every transfer booked once."""
    balances = dict.fromkeys(range(ACCOUNTS), 0)
    for payer, payee, amount in wanted:
        balances[payer] -= amount
        balances[payee] += amount
    return balances
