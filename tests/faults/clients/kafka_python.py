"""kafka-python: an idempotent producer, a consumer on its own, a member of a group that commits as
it goes, and transactional programs.
"""

from __future__ import annotations

from typing import Any

from kafka import (
    ConsumerRebalanceListener,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    TopicPartition,
)
from kafka.errors import KafkaError

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
    while not work.enough.wait(work.job.pace_seconds):
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
            group_id=None,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level=job.isolation,
            **_settings(work),
        )
        consumer.assign(
            [
                TopicPartition(topic, number)
                for topic in job.topics
                for number in range(job.partitions)
            ]
        )
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


class _Program:
    """See `transactions.Transactional`. Its consumer assigns itself all partitions: one program is
    its group.
    """

    def __init__(self, work: Work) -> None:
        job = work.job
        self.work = work
        self.producer = KafkaProducer(
            transactional_id=job.transactional_id,
            transaction_timeout_ms=transactions.TIMEOUT_MS,
            max_block_ms=transactions.LIMIT_SECONDS * 1000,
            **_settings(work),
        )
        self.consumer: Any = None
        self.sent: list[Any] = []
        self.ends: dict[TopicPartition, OffsetAndMetadata] = {}
        try:
            self.producer.init_transactions()
            if job.group:
                self.consumer = KafkaConsumer(
                    group_id=job.group,
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                    isolation_level="read_committed",
                    **_settings(work),
                )
                partitions = range(job.partitions)
                self.consumer.assign([TopicPartition(job.topic, each) for each in partitions])
                self.rewind()
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        self.sent = []
        self.producer.begin_transaction()

    def send(self, place: transactions.Place) -> None:
        topic, partition, value = place
        self.sent.append(self.producer.send(topic, value.encode(), partition=partition))

    def flush(self) -> None:
        self.producer.flush(transactions.LIMIT_SECONDS)

    def send_offsets(self) -> None:
        self.producer.send_offsets_to_transaction(self.ends, self.consumer.group_metadata())

    def commit(self) -> None:
        self.producer.commit_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()

    def offsets(self) -> list[int]:
        return [
            each.get(0).offset if each.succeeded() else -1  # what is committed was answered
            for each in self.sent
        ]

    def read(self, most: int) -> list[tuple[int, str]]:
        found = self.consumer.poll(timeout_ms=200, max_records=most)
        self.ends = {
            partition: OffsetAndMetadata(records[-1].offset + 1, "", -1)
            for partition, records in found.items()
        }
        return [
            (each.partition, each.value.decode()) for records in found.values() for each in records
        ]

    def rewind(self) -> None:
        for partition in self.consumer.assignment():
            self.consumer.seek(partition, self.consumer.committed(partition) or 0)

    def pause(self, seconds: float) -> None:
        self.work.enough.wait(seconds)

    def close(self) -> None:
        self.producer.close(timeout=1)
        if self.consumer is not None:
            self.consumer.close(autocommit=False)


def transact(work: Work) -> None:
    transactions.transact(work, _Program)


def copy(work: Work) -> None:
    transactions.copy(work, _Program)
