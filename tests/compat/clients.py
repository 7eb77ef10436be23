"""Stock clients under one interface: `produce(bootstrap, topic, codec, rows)` and
`consume(bootstrap, topic, group, count)`.

A row is (key, value, headers). Consumers join a group, read from the start and commit; they stop at
`count` rows, or after 90 s.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Sequence

Headers = tuple[tuple[str, bytes], ...]
Row = tuple[bytes | None, bytes | None, Headers]
LIMIT_SECONDS = 90
HANGING_SECONDS = 20


def row(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]] | None) -> Row:
    return key, value, tuple((name, text) for name, text in headers or ())


class KafkaPython:
    name = "kafka-python"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(self, bootstrap: str, topic: str, codec: str, rows: Sequence[Row]) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all",
            linger_ms=5,
        )
        try:
            for sent in [
                producer.send(topic, key=key, value=value, headers=list(headers))
                for key, value, headers in rows
            ]:
                sent.get(LIMIT_SECONDS)
        finally:
            producer.close()

    def consume(self, bootstrap: str, topic: str, group: str, count: int) -> list[Row]:
        """A member of 3.0.12 may hang as it joins, under Apache Kafka 4.3.1 too: one that got
        nothing for a while is left, and another one joins.
        """
        deadline = time.monotonic() + LIMIT_SECONDS
        found: list[Row] = []
        while not found and time.monotonic() < deadline:
            found = self._consume(bootstrap, topic, group, count, deadline)
        return found

    def _consume(
        self, bootstrap: str, topic: str, group: str, count: int, deadline: float
    ) -> list[Row]:
        from kafka import KafkaConsumer

        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
        )
        found: list[Row] = []
        hanging = min(deadline, time.monotonic() + HANGING_SECONDS)
        try:
            while len(found) < count and time.monotonic() < (deadline if found else hanging):
                for records in consumer.poll(timeout_ms=500).values():
                    found += [row(r.key, r.value, r.headers) for r in records]
            if found:
                consumer.commit()
        finally:
            consumer.close(autocommit=False, timeout_ms=5000)
        return found


class Confluent:
    name = "confluent-kafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(self, bootstrap: str, topic: str, codec: str, rows: Sequence[Row]) -> None:
        from confluent_kafka import Producer

        failed: list[str] = []
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 5,
            }
        )
        for key, value, headers in rows:
            producer.produce(
                topic,
                key=key,
                value=value,
                headers=list(headers),
                on_delivery=lambda e, m: failed.append(str(e)) if e else None,
            )
        left = producer.flush(LIMIT_SECONDS)
        assert not left and not failed, (left, failed)

    def consume(self, bootstrap: str, topic: str, group: str, count: int) -> list[Row]:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([topic])
        found: list[Row] = []
        deadline = time.monotonic() + LIMIT_SECONDS
        try:
            while len(found) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(found), 0.5):
                    assert message.error() is None, message.error()
                    found.append(row(message.key(), message.value(), message.headers()))
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return found


class AioKafka:
    name = "aiokafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(self, bootstrap: str, topic: str, codec: str, rows: Sequence[Row]) -> None:
        asyncio.run(self._produce(bootstrap, topic, codec, rows))

    async def _produce(self, bootstrap: str, topic: str, codec: str, rows: Sequence[Row]) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
        )
        await producer.start()
        try:
            for sent in [
                await producer.send(topic, key=key, value=value, headers=list(headers))
                for key, value, headers in rows
            ]:
                await sent
        finally:
            await producer.stop()

    def consume(self, bootstrap: str, topic: str, group: str, count: int) -> list[Row]:
        return asyncio.run(self._consume(bootstrap, topic, group, count))

    async def _consume(self, bootstrap: str, topic: str, group: str, count: int) -> list[Row]:
        from aiokafka import AIOKafkaConsumer

        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        found: list[Row] = []
        deadline = time.monotonic() + LIMIT_SECONDS
        try:
            while len(found) < count and time.monotonic() < deadline:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found += [row(r.key, r.value, r.headers) for r in records]
            await consumer.commit()
        finally:
            await consumer.stop()
        return found


class Kcat:
    """Debian's kcat.

    It sets the same headers for a whole run, and gives out its rows as JSON, so keys and values
    here are text.
    """

    name = "kcat"
    codecs = ("none", "gzip", "snappy", "lz4")

    @staticmethod
    def is_there() -> bool:
        return shutil.which("kcat") is not None

    def produce(self, bootstrap: str, topic: str, codec: str, rows: Sequence[Row]) -> None:
        headers = [
            part for name, value in rows[0][2] for part in ("-H", f"{name}={value.decode()}")
        ]
        assert all(r[2] == rows[0][2] for r in rows)
        text = b"".join((key or b"") + b"\t" + (value or b"") + b"\n" for key, value, _ in rows)
        command = ["kcat", "-b", bootstrap, "-P", "-t", topic, "-K", "\t", "-z", codec, *headers]
        subprocess.run(command, input=text, check=True, timeout=LIMIT_SECONDS, capture_output=True)

    def consume(self, bootstrap: str, topic: str, group: str, count: int) -> list[Row]:
        command = [
            "kcat",
            "-b",
            bootstrap,
            "-q",
            "-J",
            "-c",
            str(count),
            "-X",
            "auto.offset.reset=earliest",
            "-G",
            group,
            topic,
        ]
        done = subprocess.run(command, check=True, timeout=LIMIT_SECONDS, capture_output=True)
        return [self.parse(line) for line in done.stdout.splitlines()]

    def parse(self, line: bytes) -> Row:
        found = json.loads(line)
        flat = found.get("headers") or []
        headers = [
            (name, value.encode()) for name, value in zip(flat[::2], flat[1::2], strict=True)
        ]
        return row(found["key"].encode(), found["payload"].encode(), headers)


ALL = (KafkaPython(), Confluent(), AioKafka(), Kcat())
