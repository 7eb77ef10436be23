"""Transactions of stock clients, as their documentation writes them, under one interface."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

LIMIT_SECONDS = 60
Value = bytes


class TransactionalClient(Protocol):
    """All calls wait for the broker."""

    name: str

    def produce(
        self, bootstrap: str, transactional_id: str, topic: str, rounds: Sequence[Round]
    ) -> None:
        """Each round is a transaction of one producer: (values, whether it commits)."""
        ...

    def copy(
        self, bootstrap: str, transactional_id: str, group: str, source: str, to: str, count: int
    ) -> int:
        """Reads what is committed in `source`, as a member of `group`, and writes it to `to` in
        upper case, transaction by transaction with its offsets, until it has `count`; how many.
        """
        ...

    def fence(self, bootstrap: str, transactional_id: str, topic: str) -> str:
        """A second instance begins while the first one's transaction is open, and commits; the
        name of the error that the first one's commit gets.
        """
        ...

    def read_committed(self, bootstrap: str, topic: str, count: int) -> list[Value]: ...


Round = tuple[Sequence[Value], bool]
MOST_PER_TRANSACTION = 7


class KafkaPython:
    name = "kafka-python"

    def _producer(self, bootstrap: str, transactional_id: str) -> Any:
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
        producer.init_transactions()
        return producer

    def _consumer(self, bootstrap: str, topic: str, group: str | None = None) -> Any:
        from kafka import KafkaConsumer

        return KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )

    def produce(
        self, bootstrap: str, transactional_id: str, topic: str, rounds: Sequence[Round]
    ) -> None:
        producer = self._producer(bootstrap, transactional_id)
        try:
            for values, commits in rounds:
                producer.begin_transaction()
                for value in values:
                    producer.send(topic, value)
                if commits:
                    producer.commit_transaction()
                else:
                    producer.flush()
                    producer.abort_transaction()
        finally:
            producer.close()

    def copy(
        self, bootstrap: str, transactional_id: str, group: str, source: str, to: str, count: int
    ) -> int:
        from kafka import OffsetAndMetadata, TopicPartition

        producer = self._producer(bootstrap, transactional_id)
        consumer = self._consumer(bootstrap, source, group)
        copied, until = 0, time.monotonic() + LIMIT_SECONDS
        try:
            while copied < count and time.monotonic() < until:
                found = consumer.poll(timeout_ms=500, max_records=MOST_PER_TRANSACTION)
                records = [record for each in found.values() for record in each]
                if not records:
                    continue
                producer.begin_transaction()
                for record in records:
                    producer.send(to, record.value.upper())
                offsets = {
                    TopicPartition(r.topic, r.partition): OffsetAndMetadata(r.offset + 1, "", -1)
                    for r in records
                }
                producer.send_offsets_to_transaction(offsets, group)
                producer.commit_transaction()
                copied += len(records)
        finally:
            consumer.close()
            producer.close()
        return copied

    def fence(self, bootstrap: str, transactional_id: str, topic: str) -> str:
        first = self._producer(bootstrap, transactional_id)
        first.begin_transaction()
        first.send(topic, b"of the first").get(LIMIT_SECONDS)
        second = self._producer(bootstrap, transactional_id)
        try:
            second.begin_transaction()
            second.send(topic, b"of the second")
            second.commit_transaction()
            try:
                first.send(topic, b"late").get(LIMIT_SECONDS)
                first.commit_transaction()
            except Exception as error:
                return type(error).__name__
            return ""
        finally:
            second.close()
            first.close(timeout=1)

    def read_committed(self, bootstrap: str, topic: str, count: int) -> list[Value]:
        consumer = self._consumer(bootstrap, topic)
        found: list[Value] = []
        until = time.monotonic() + LIMIT_SECONDS
        try:
            while len(found) < count and time.monotonic() < until:
                for records in consumer.poll(timeout_ms=500).values():
                    found += [record.value for record in records]
        finally:
            consumer.close()
        return found


class Confluent:
    name = "confluent-kafka"

    def _producer(self, bootstrap: str, transactional_id: str) -> Any:
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0}
        )
        producer.init_transactions(LIMIT_SECONDS)
        return producer

    def _consumer(self, bootstrap: str, topic: str, group: str) -> Any:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        consumer.subscribe([topic])
        return consumer

    def produce(
        self, bootstrap: str, transactional_id: str, topic: str, rounds: Sequence[Round]
    ) -> None:
        producer = self._producer(bootstrap, transactional_id)
        for values, commits in rounds:
            producer.begin_transaction()
            for value in values:
                producer.produce(topic, value)
            if commits:
                producer.commit_transaction(LIMIT_SECONDS)
            else:
                producer.flush(LIMIT_SECONDS)
                producer.abort_transaction(LIMIT_SECONDS)

    def copy(
        self, bootstrap: str, transactional_id: str, group: str, source: str, to: str, count: int
    ) -> int:
        producer = self._producer(bootstrap, transactional_id)
        consumer = self._consumer(bootstrap, source, group)
        copied, until = 0, time.monotonic() + LIMIT_SECONDS
        try:
            while copied < count and time.monotonic() < until:
                messages = [
                    message
                    for message in consumer.consume(MOST_PER_TRANSACTION, timeout=0.5)
                    if message.error() is None
                ]
                if not messages:
                    continue
                producer.begin_transaction()
                for message in messages:
                    producer.produce(to, message.value().upper())
                producer.send_offsets_to_transaction(
                    consumer.position(consumer.assignment()),
                    consumer.consumer_group_metadata(),
                    LIMIT_SECONDS,
                )
                producer.commit_transaction(LIMIT_SECONDS)
                copied += len(messages)
        finally:
            consumer.close()
        return copied

    def fence(self, bootstrap: str, transactional_id: str, topic: str) -> str:
        from confluent_kafka import KafkaException

        first = self._producer(bootstrap, transactional_id)
        first.begin_transaction()
        first.produce(topic, b"of the first")
        first.flush(LIMIT_SECONDS)
        second = self._producer(bootstrap, transactional_id)
        second.begin_transaction()
        second.produce(topic, b"of the second")
        second.commit_transaction(LIMIT_SECONDS)
        try:
            first.produce(topic, b"late")
            first.commit_transaction(LIMIT_SECONDS)
        except KafkaException as error:
            return str(error.args[0].name())
        return ""

    def read_committed(self, bootstrap: str, topic: str, count: int) -> list[Value]:
        consumer = self._consumer(bootstrap, topic, f"readers of {topic} {time.monotonic_ns()}")
        found: list[Value] = []
        until = time.monotonic() + LIMIT_SECONDS
        try:
            while len(found) < count and time.monotonic() < until:
                messages = consumer.consume(500, timeout=0.5)
                found += [message.value() for message in messages if message.error() is None]
        finally:
            consumer.close()
        return found


class AioKafka:
    name = "aiokafka"

    def produce(
        self, bootstrap: str, transactional_id: str, topic: str, rounds: Sequence[Round]
    ) -> None:
        asyncio.run(self._produce(bootstrap, transactional_id, topic, rounds))

    async def _produce(
        self, bootstrap: str, transactional_id: str, topic: str, rounds: Sequence[Round]
    ) -> None:
        from aiokafka import AIOKafkaProducer

        class Mistake(Exception):
            pass

        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
        await producer.start()
        try:
            for values, commits in rounds:
                try:
                    async with producer.transaction():
                        for value in values:
                            await producer.send_and_wait(topic, value)
                        if not commits:
                            raise Mistake
                except Mistake:
                    pass
        finally:
            await producer.stop()

    def copy(
        self, bootstrap: str, transactional_id: str, group: str, source: str, to: str, count: int
    ) -> int:
        return asyncio.run(self._copy(bootstrap, transactional_id, group, source, to, count))

    async def _copy(
        self, bootstrap: str, transactional_id: str, group: str, source: str, to: str, count: int
    ) -> int:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

        consumer = AIOKafkaConsumer(
            source,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
        await consumer.start()
        await producer.start()
        copied, until = 0, time.monotonic() + LIMIT_SECONDS
        try:
            while copied < count and time.monotonic() < until:
                found = await consumer.getmany(timeout_ms=500, max_records=MOST_PER_TRANSACTION)
                if not found:
                    continue
                async with producer.transaction():
                    offsets = {}
                    for partition, records in found.items():
                        for record in records:
                            await producer.send_and_wait(to, record.value.upper())
                        offsets[partition] = records[-1].offset + 1
                        copied += len(records)
                    await producer.send_offsets_to_transaction(offsets, group)
        finally:
            await consumer.stop()
            await producer.stop()
        return copied

    def fence(self, bootstrap: str, transactional_id: str, topic: str) -> str:
        return asyncio.run(self._fence(bootstrap, transactional_id, topic))

    async def _fence(self, bootstrap: str, transactional_id: str, topic: str) -> str:
        from aiokafka import AIOKafkaProducer

        first, second = (
            AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
            for _ in range(2)
        )
        await first.start()
        try:
            await first.begin_transaction()
            await first.send_and_wait(topic, b"of the first")
            await second.start()
            async with second.transaction():
                await second.send_and_wait(topic, b"of the second")
            try:
                await first.send_and_wait(topic, b"late")
                await first.commit_transaction()
            except Exception as error:
                return type(error).__name__
            return ""
        finally:
            await second.stop()
            await first.stop()

    def read_committed(self, bootstrap: str, topic: str, count: int) -> list[Value]:
        return asyncio.run(self._read_committed(bootstrap, topic, count))

    async def _read_committed(self, bootstrap: str, topic: str, count: int) -> list[Value]:
        from aiokafka import AIOKafkaConsumer

        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        found: list[Value] = []
        until = time.monotonic() + LIMIT_SECONDS
        try:
            while len(found) < count and time.monotonic() < until:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found += [record.value for record in records]
        finally:
            await consumer.stop()
        return found


ALL: tuple[TransactionalClient, ...] = (KafkaPython(), Confluent(), AioKafka())
