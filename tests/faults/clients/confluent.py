"""confluent-kafka (librdkafka): an idempotent producer, a consumer on its own, and a member of a
group that commits as it goes.
"""

from __future__ import annotations

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

from tests.faults.clients.job import (
    HEARTBEAT_MS,
    MECHANISM,
    PACE_SECONDS,
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

    while not work.enough.wait(PACE_SECONDS):
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
                TopicPartition(work.job.topic, number, OFFSET_BEGINNING)
                for number in range(work.job.partitions)
            ]
        )
        work.recorder.assigned()
    while not work.enough.is_set():
        reading.poll()
    reading.consumer.close()
