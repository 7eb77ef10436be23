"""confluent-kafka (librdkafka): an idempotent producer, a consumer on its own, a member of a group
that commits as it goes, and transactional programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.faults.clients import transactions
from tests.faults.clients.job import (
    HEARTBEAT_MS,
    MECHANISM,
    PASSWORD,
    PATIENCE_MS,
    REQUEST_MS,
    SESSION_MS,
    USER,
    Work,
)

_MOST_OF_A_POLL = 200


def _settings(work: Work) -> dict[str, Any]:
    return {
        "bootstrap.servers": work.job.bootstrap,
        "client.id": work.job.name,
        "socket.timeout.ms": REQUEST_MS,
        "reconnect.backoff.max.ms": 1000,
        "topic.metadata.refresh.interval.ms": 5000,
        **(_security(work.job.authority) if work.job.authority else {}),
    }


def _security(authority: str) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": authority,
        "sasl.mechanism": MECHANISM,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }


def produce(work: Work) -> None:
    safety = {"acks": work.job.acks, "enable.idempotence": work.job.idempotent}
    producer = Producer(
        _settings(work) | safety | {"linger.ms": 5, "message.timeout.ms": PATIENCE_MS}
    )

    def told(error: Any, message: Message, value: str) -> None:
        if error is None:
            work.acknowledged(value, message.offset() or 0)
        else:
            work.given_up(value)

    while not work.enough.wait(work.job.pace_seconds):
        for partition, value in work.burst():
            producer.produce(
                work.job.topic,
                value.encode(),
                partition=partition,
                on_delivery=partial(told, value=value),
            )
        producer.poll(0)
    producer.flush(PATIENCE_MS / 1000)


class _Reading:
    """Notes records poll by poll, and what was polled before partitions change hands."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.found: dict[tuple[str, int], list[tuple[int, str]]] = {}
        self.consumer = Consumer(
            _settings(work)
            | {
                "group.id": work.job.group or work.job.name,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": bool(work.job.group),
                "enable.auto.offset.store": False,
                "auto.commit.interval.ms": 500,
                "fetch.wait.max.ms": 300,
                "isolation.level": work.job.isolation,
            }
        )

    def changed(self, consumer: Any, partitions: Any) -> None:
        self.note()
        self.work.recorder.assigned()

    def note(self) -> None:
        found, self.found = self.found, {}
        self.work.recorder.poll(found)
        ends = [
            TopicPartition(topic, partition, records[-1][0] + 1)
            for (topic, partition), records in found.items()
        ]
        if ends and self.work.job.group:
            with suppress(KafkaException):  # they have gone to another member meanwhile
                self.consumer.store_offsets(offsets=ends)

    def poll(self) -> None:
        """What is there, one by one: a batch could hold what came before partitions changed
        hands.
        """
        wait = 0.2
        for _ in range(_MOST_OF_A_POLL):
            message = self.consumer.poll(wait)
            if message is None:
                break
            wait = 0.0
            if message.error() is None:
                place = (message.topic() or "", message.partition() or 0)
                self.found.setdefault(place, []).append(
                    (message.offset() or 0, (message.value() or b"").decode())
                )
        self.note()


def consume(work: Work) -> None:
    reading = _Reading(work)
    if work.job.group:
        reading.consumer.subscribe(
            [work.job.topic],
            on_assign=reading.changed,
            on_revoke=reading.changed,
            on_lost=reading.changed,
        )
    else:
        reading.consumer.assign(
            [
                TopicPartition(topic, number, OFFSET_BEGINNING)
                for topic in work.job.topics
                for number in range(work.job.partitions)
            ]
        )
        work.recorder.assigned()
    while not work.enough.is_set():
        reading.poll()
    reading.consumer.close()


class _Program:
    """See `transactions.Transactional`. Its consumer is a member of its group: several programs
    share it, and an older generation's offsets are refused (KIP-447).
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.answered: list[int] = []
        self.producer = self._opened()
        self.consumer: Consumer | None = None
        self.found: list[Message] = []
        if work.job.group:
            self.consumer = Consumer(
                _settings(work)
                | {
                    "group.id": work.job.group,
                    "session.timeout.ms": SESSION_MS,
                    "heartbeat.interval.ms": HEARTBEAT_MS,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed",
                }
            )
            self.consumer.subscribe(
                [work.job.topic],
                on_assign=self._changed,
                on_revoke=self._changed,
                on_lost=self._changed,
            )

    def _opened(self) -> Producer:
        producer = Producer(
            _settings(self.work)
            | {
                "transactional.id": self.work.job.transactional_id,
                "transaction.timeout.ms": transactions.TIMEOUT_MS,
                "linger.ms": 5,
            }
        )
        self._again(producer.init_transactions)
        return producer

    def _changed(self, consumer: Any, partitions: Any) -> None:
        """Whoever has the partition now reads it from what is committed."""
        self.found = []

    def _again(self, step: Callable[[float], object]) -> None:
        """As long as the library says that it may be tried again."""
        until = time.monotonic() + transactions.LIMIT_SECONDS
        while True:
            try:
                step(5.0)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until:
                    raise

    def begin(self) -> None:
        self.answered = []
        self.producer.begin_transaction()

    def send(self, place: transactions.Place) -> None:
        topic, partition, value = place
        number = len(self.answered)
        self.answered.append(-1)
        answered = self.answered

        def told(error: Any, message: Message) -> None:
            if error is None:
                answered[number] = message.offset() or 0

        self.producer.produce(topic, value.encode(), partition=partition, on_delivery=told)

    def flush(self) -> None:
        self.producer.flush(transactions.LIMIT_SECONDS)

    def send_offsets(self) -> None:
        assert self.consumer is not None
        metadata = self.consumer.consumer_group_metadata()
        ends = {each.partition() or 0: (each.offset() or 0) + 1 for each in self.found}
        positions = [TopicPartition(self.work.job.topic, *each) for each in ends.items()]
        self._again(
            lambda limit: self.producer.send_offsets_to_transaction(positions, metadata, limit)
        )

    def commit(self) -> None:
        self._again(self.producer.commit_transaction)

    def abort(self) -> None:
        self._again(self.producer.abort_transaction)
        if -1 in self.answered:
            # librdkafka 2.16.0 gives the sequence numbers of messages that it purged to the next
            # ones, though a broker may have stored the purged ones: the next ones are answered as
            # duplicates, by Apache Kafka too, and lost. A new producer has a new epoch.
            self.producer = self._opened()

    def offsets(self) -> list[int]:
        return self.answered

    def read(self, most: int) -> list[tuple[int, str]]:
        """One by one: a batch could hold what came before partitions changed hands."""
        assert self.consumer is not None
        self.found, wait = [], 0.2
        for _ in range(most):
            message = self.consumer.poll(wait)
            if message is None:
                break
            wait = 0.0
            if message.error() is None:
                self.found.append(message)
        return [(each.partition() or 0, (each.value() or b"").decode()) for each in self.found]

    def rewind(self) -> None:
        assert self.consumer is not None
        assigned = self.consumer.assignment()
        for each in self.consumer.committed(assigned, timeout=5) if assigned else []:
            # A partition that a rebalance takes just now cannot be sought, nor need it be.
            with suppress(KafkaException):
                self.consumer.seek(TopicPartition(each.topic, each.partition, max(each.offset, 0)))

    def pause(self, seconds: float) -> None:
        self.work.enough.wait(seconds)

    def close(self) -> None:
        if self.consumer is not None:
            self.consumer.close()


def transact(work: Work) -> None:
    transactions.transact(work, _Program)


def copy(work: Work) -> None:
    transactions.copy(work, _Program)
