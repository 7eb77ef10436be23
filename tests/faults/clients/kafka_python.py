"""kafka-python: an idempotent producer, a consumer on its own, and a member of a group that
commits as it goes.
"""

from __future__ import annotations

from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

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


def _settings(work: Work) -> dict[str, Any]:
    return {
        "bootstrap_servers": work.job.bootstrap,
        "client_id": work.job.name,
        "request_timeout_ms": REQUEST_MS,
        "reconnect_backoff_max_ms": 1000,
        "metadata_max_age_ms": 5000,
        **(_security(work.job.authority) if work.job.authority else {}),
    }


def _security(authority: str) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_SSL",
        "ssl_cafile": authority,
        "sasl_mechanism": MECHANISM,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }


def produce(work: Work) -> None:
    acks: Any = work.job.acks if work.job.idempotent else int(work.job.acks)
    more = _settings(work) | {
        "delivery_timeout_ms": PATIENCE_MS,
        "max_block_ms": PATIENCE_MS,
        "linger_ms": 5,
    }
    producer = KafkaProducer(acks=acks, enable_idempotence=work.job.idempotent, **more)
    while not work.enough.wait(PACE_SECONDS):
        for partition, value in work.burst():
            sent = producer.send(work.job.topic, value.encode(), partition=partition)
            sent.add_callback(lambda told, value=value: work.acknowledged(value, told.offset))
            sent.add_errback(lambda error, value=value: work.given_up(value))
    producer.flush(PATIENCE_MS / 1000)
    producer.close()


class _Listener(ConsumerRebalanceListener):
    def __init__(self, work: Work) -> None:
        self.work = work

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.work.recorder.assigned()


def consume(work: Work) -> None:
    job = work.job
    if job.group:
        consumer = KafkaConsumer(
            group_id=job.group,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
            **_settings(work),
        )
        consumer.subscribe([job.topic], listener=_Listener(work))
    else:
        consumer = KafkaConsumer(
            group_id=None, auto_offset_reset="earliest", enable_auto_commit=False, **_settings(work)
        )
        consumer.assign([TopicPartition(job.topic, number) for number in range(job.partitions)])
        consumer.seek_to_beginning()
        work.recorder.assigned()
    while not work.enough.is_set():
        try:
            found = consumer.poll(timeout_ms=200)
        except KafkaError as error:
            if not error.retriable:
                raise
            print(f"polled again after {error!r}", flush=True)
            continue
        work.recorder.poll(
            {
                (tp.topic, tp.partition): [(each.offset, each.value.decode()) for each in records]
                for tp, records in found.items()
            }
        )
    consumer.close()
