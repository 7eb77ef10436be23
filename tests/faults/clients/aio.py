"""aiokafka: an idempotent producer, a consumer on its own, a member of a group that commits as it
goes, and transactional programs.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    KafkaError,
    NoError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    for_code,
)
from aiokafka.helpers import create_ssl_context

from tests.faults.clients import transactions
from tests.faults.clients.job import (
    HEARTBEAT_MS,
    MECHANISM,
    PASSWORD,
    REQUEST_MS,
    SESSION_MS,
    USER,
    Work,
)

T = TypeVar("T")
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
        await asyncio.sleep(work.job.pace_seconds)
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
    consumer = AIOKafkaConsumer(
        auto_offset_reset="none",
        isolation_level=job.isolation,
        **group,
        **times,
        **_settings(work),
    )
    if job.group:
        consumer.subscribe([job.topic], listener=_Listener(work))
        await consumer.start()
    else:
        partitions = [
            TopicPartition(topic, number)
            for topic in job.topics
            for number in range(job.partitions)
        ]
        consumer.assign(partitions)
        await consumer.start()
        await consumer.seek_to_beginning(*partitions)
        work.recorder.assigned()
    while not work.enough.is_set():
        found = await _polled(consumer)
        work.recorder.poll(
            {
                (tp.topic, tp.partition): [(each.offset, each.value.decode()) for each in records]
                for tp, records in found.items()
            }
        )
    await consumer.stop()


async def _polled(consumer: AIOKafkaConsumer) -> dict[TopicPartition, list[Any]]:
    """Its Fetch (0.14.0) names no leader epoch, so a replica that is behind cannot tell that the
    leader is another: it answers OFFSET_OUT_OF_RANGE (KIP-392), and the library would begin at the
    earliest offset. The position stays, and a log that is too short for it is read to no end.
    """
    try:
        return dict(await consumer.getmany(timeout_ms=200))
    except NoOffsetForPartitionError as error:
        await consumer.seek_to_beginning(*error.args)
    except OffsetOutOfRangeError as error:
        print(f"out of range: {error!r}", flush=True)
        await consumer._client.force_metadata_update()
    return {}


class _Program:
    """See `transactions.Transactional`. Its consumer assigns itself all partitions: one program is
    its group, and the library has no generation with a transaction's offsets.
    """

    def __init__(self, work: Work, loop: asyncio.AbstractEventLoop) -> None:
        self.work, self._loop = work, loop
        self.sent: list[Future[Any]] = []
        self.ends: dict[TopicPartition, int] = {}
        self.producer: Any = None
        self.consumer: Any = None
        try:
            self._wait(self._start())
        except BaseException:
            self.close()
            raise

    def _wait(self, step: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(step, transactions.LIMIT_SECONDS))

    async def _start(self) -> None:
        job = self.work.job
        self.producer = AIOKafkaProducer(
            transactional_id=job.transactional_id,
            transaction_timeout_ms=transactions.TIMEOUT_MS,
            **_settings(self.work, _EXPIRY_MS),
        )
        await self.producer.start()
        if job.group:
            self.consumer = AIOKafkaConsumer(
                group_id=job.group,
                auto_offset_reset="none",
                enable_auto_commit=False,
                isolation_level="read_committed",
                **_settings(self.work),
            )
            partitions = range(job.partitions)
            self.consumer.assign([TopicPartition(job.topic, each) for each in partitions])
            await self.consumer.start()
            _heed_errors(self.consumer._coordinator)
            await self._rewind()

    async def _rewind(self) -> None:
        for partition in self.consumer.assignment():
            self.consumer.seek(partition, await self.consumer.committed(partition) or 0)

    def begin(self) -> None:
        self.sent = []
        self._wait(self.producer.begin_transaction())

    def send(self, place: transactions.Place) -> None:
        topic, partition, value = place
        sending = self.producer.send(topic, value.encode(), partition=partition)
        self.sent.append(self._wait(sending))

    def flush(self) -> None:
        self._wait(self.producer.flush())

    def send_offsets(self) -> None:
        self._wait(self.producer.send_offsets_to_transaction(self.ends, self.work.job.group))

    def commit(self) -> None:
        self._wait(self.producer.commit_transaction())

    def abort(self) -> None:
        self._wait(self.producer.abort_transaction())

    def offsets(self) -> list[int]:
        return [
            each.result().offset
            if each.done() and not each.cancelled() and each.exception() is None
            else -1
            for each in self.sent
        ]

    def read(self, most: int) -> list[tuple[int, str]]:
        found = self._wait(self.consumer.getmany(timeout_ms=200, max_records=most))
        self.ends = {partition: records[-1].offset + 1 for partition, records in found.items()}
        return [
            (each.partition, each.value.decode()) for records in found.values() for each in records
        ]

    def rewind(self) -> None:
        self._wait(self._rewind())

    def pause(self, seconds: float) -> None:
        self._wait(asyncio.sleep(seconds))

    def close(self) -> None:
        for each in (self.producer, self.consumer):
            if each is not None:
                try:
                    self._loop.run_until_complete(asyncio.wait_for(each.stop(), 5))
                except Exception as error:
                    print(f"left with {error!r}", flush=True)


def _heed_errors(coordinator: Any) -> None:
    """aiokafka (0.14.0) overlooks the error of a whole OffsetFetch (NOT_COORDINATOR, since version
    2), and takes it for a group that has committed nothing: it would copy all once more.
    """
    send = coordinator._send_req

    async def heedful(request: Any) -> Any:
        response = await send(request)
        error = for_code(getattr(response, "error_code", 0))
        if error is not NoError:
            coordinator.coordinator_dead()
            raise error
        return response

    coordinator._send_req = heedful


def transact(work: Work) -> None:
    with asyncio.Runner() as runner:
        transactions.transact(work, lambda work: _Program(work, runner.get_loop()))


def copy(work: Work) -> None:
    with asyncio.Runner() as runner:
        transactions.copy(work, lambda work: _Program(work, runner.get_loop()))
