"""Records for the tests of the pipeline, written by stock clients in the one place where that is
done.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kafka import KafkaProducer

PATIENCE_SECONDS = 60
DAY_MS = 86_400_000
OLD_MS = 1_672_531_200_000
"""2023-01-01: older than any retention by age."""


@dataclass(frozen=True)
class Written:
    """One record as it was sent. `timestamp`: milliseconds since 1970."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


def numbered(count: int, partitions: int = 1, first: int = 0) -> list[Written]:
    """`count` records round the partitions, a second apart from 2023-01-01 on; every seventh a
    tombstone, every fifth other without key, every third with headers.
    """
    return [
        Written(
            partition=number % partitions,
            key=None if number % 5 == 0 and number % 7 else f"key-{number % 17}".encode(),
            value=None if number % 7 == 0 else f"value-{number}".encode(),
            timestamp=OLD_MS + number * 1000,
            headers=(("number", str(number).encode()), ("empty", b"")) if number % 3 == 0 else (),
        )
        for number in range(first, first + count)
    ]


def produce(bootstrap: str, topic: str, records: Iterable[Written], **settings: object) -> None:
    """Sends in order and waits until all are acknowledged."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", **settings)
    try:
        sent = [
            producer.send(
                topic,
                each.value,
                each.key,
                list(each.headers),
                partition=each.partition,
                timestamp_ms=each.timestamp,
            )
            for each in records
        ]
        for future in sent:
            future.get(PATIENCE_SECONDS)
    finally:
        producer.close()
