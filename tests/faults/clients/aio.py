"""aiokafka: an idempotent producer, a consumer on its own, and a member of a group that commits
as it goes.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.helpers import create_ssl_context

from tests.faults.clients.job import (
    HEARTBEAT_MS,
    MECHANISM,
    PACE_SECONDS,
    PASSWORD,
    REQUEST_MS,
    SESSION_MS,
    USER,
    Work,
)

_EXPIRY_MS = 60_000
"""A batch that finds no leader for as long as a request may take is dropped, sequence and all:
that must be longer than any fault.
"""


def _settings(work: Work, request_ms: int = REQUEST_MS) -> dict[str, Any]:
    return {
        "bootstrap_servers": work.job.bootstrap,
        "client_id": work.job.name,
        "request_timeout_ms": request_ms,
        "metadata_max_age_ms": 5000,
        **(_security(work.job.authority) if work.job.authority else {}),
    }


def _security(authority: str) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_SSL",
        "ssl_context": create_ssl_context(cafile=authority),
        "sasl_mechanism": MECHANISM,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }


def produce(work: Work) -> None:
    asyncio.run(_produce(work))


async def _produce(work: Work) -> None:
    acks: Any = work.job.acks if work.job.idempotent else int(work.job.acks)
    producer = AIOKafkaProducer(
        acks=acks,
        enable_idempotence=work.job.idempotent,
        linger_ms=5,
        max_batch_size=1 << 18,
        **_settings(work, _EXPIRY_MS),
    )
    await producer.start()

    def told(sent: Future[Any], value: str) -> None:
        if sent.cancelled() or sent.exception() is not None:
            work.given_up(value)
        else:
            work.acknowledged(value, sent.result().offset)

    while not work.enough.is_set():
        await asyncio.sleep(PACE_SECONDS)
        for partition, value in work.burst():
            try:
                sent = await producer.send(work.job.topic, value.encode(), partition=partition)
            except KafkaError:
                work.given_up(value)
            else:
                sent.add_done_callback(lambda sent, value=value: told(sent, value))
    await producer.flush()
    await producer.stop()


class _Listener(ConsumerRebalanceListener):
    def __init__(self, work: Work) -> None:
        self.work = work

    async def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.work.recorder.assigned()


def consume(work: Work) -> None:
    asyncio.run(_consume(work))


async def _consume(work: Work) -> None:
    job = work.job
    group: dict[str, Any] = {
        "group_id": job.group or None,
        "enable_auto_commit": bool(job.group),
        "auto_commit_interval_ms": 500,
    }
    times = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": HEARTBEAT_MS}
    consumer = AIOKafkaConsumer(auto_offset_reset="earliest", **group, **times, **_settings(work))
    if job.group:
        consumer.subscribe([job.topic], listener=_Listener(work))
        await consumer.start()
    else:
        partitions = [TopicPartition(job.topic, number) for number in range(job.partitions)]
        consumer.assign(partitions)
        await consumer.start()
        await consumer.seek_to_beginning(*partitions)
        work.recorder.assigned()
    while not work.enough.is_set():
        found = await consumer.getmany(timeout_ms=200)
        work.recorder.poll(
            {
                (tp.topic, tp.partition): [(each.offset, each.value.decode()) for each in records]
                for tp, records in found.items()
            }
        )
    await consumer.stop()
