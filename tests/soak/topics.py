"""The topics of a soak of the archive: their load, and whether a table is what its topic is.

1. Every record says which of its topic's it is, so what was lost or came twice is seen in the topic
   itself, before the table is compared with it.
2. A table is read as its Delta log says, without Spark; the topic by a consumer, partition by
   partition. Both are compared in order, row by row, with all that a record has.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from itertools import chain
from random import Random
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.faults.clients.job import MECHANISM, PASSWORD, PATIENCE_MS, USER
from tests.pipeline.stores.s3_server import S3Server
from tests.soak.in_thread import InThread

PARTITIONS = 3
_PACE_SECONDS, _PATIENCE_SECONDS = 0.1, 300
_KEYS, _FILL_BYTES = 500, 120
_COLUMNS = ("partition", "offset", "key", "value", "timestamp", "headers")
_PIECE_ROWS = 10_000

Row = tuple[int, int, bytes | None, bytes | None, int, tuple[tuple[str, bytes], ...]]


def client(bootstrap: str, authority: str) -> dict[str, Any]:
    """What librdkafka is told of a cluster with SASL_SSL."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": authority,
        "log_level": 2,
    }


class Load(InThread):
    """An idempotent producer that sends `rate` records a second to all topics in turn. Use as a
    context; on leaving all answers are awaited.
    """

    def __init__(self, client: dict[str, Any], topics: Sequence[str], rate: int) -> None:
        super().__init__("load")
        self._client, self._topics, self._rate = client, topics, rate
        self.sent, self.acknowledged = dict.fromkeys(topics, 0), 0
        self.failures: list[str] = []

    def run(self) -> None:
        producer = Producer(
            {
                **self._client,
                "enable.idempotence": True,
                "linger.ms": 50,
                "compression.type": "lz4",
                "message.timeout.ms": PATIENCE_MS,
            }
        )
        chance, began, count = Random(1), time.monotonic(), 0
        while not self.enough.wait(_PACE_SECONDS):
            while count < (time.monotonic() - began) * self._rate:
                topic = self._topics[count % len(self._topics)]
                number = self.sent[topic]
                value = value_of(number, chance)
                try:
                    producer.produce(
                        topic,
                        value,
                        b"key-%d" % (number % _KEYS),
                        headers=[("number", b"%d" % number)],
                        on_delivery=self._done,
                    )
                except BufferError:
                    break
                self.sent[topic] += 1
                count += 1
            producer.poll(0)
        left = producer.flush(_PATIENCE_SECONDS)
        if left:
            self.failures.append(f"{left} records have no answer")

    def _done(self, error: object, message: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failures.append(str(error))


class Compared(NamedTuple):
    """`problems`: of one topic and its table, none where they are equal. `ends`: of the topic's
    partitions.
    """

    rows: int
    ends: dict[int, int]
    problems: list[str]
    files: int = 0


def compare(
    client: dict[str, Any], topic: str, sent: int, server: S3Server, table: str
) -> Compared:
    """The table beside the topic, which must hold each of the `sent` records once."""
    files = server.live_files(table)
    records = chain.from_iterable(topic_rows(client, topic, number) for number in range(PARTITIONS))
    found = judged(topic, records, table_rows(server, files), sent)
    return found._replace(files=len(files))


def judged(topic: str, records: Iterable[Row], rows: Iterator[Row], sent: int) -> Compared:
    """The first difference of `records`, which the topic has, and `rows`; and which of the `sent`
    records the topic has not once.
    """
    times = bytearray(sent)
    count, ends = 0, dict.fromkeys(range(PARTITIONS), 0)
    problems: list[str] = []
    for record in records:
        partition, offset = record[:2]
        row = next(rows, None)
        if not problems and offset != ends[partition]:
            problems.append(f"{topic}-{partition}: {offset} stands where {ends[partition]} must")
        if not problems and row != record:
            problems.append(f"the table of {topic} has {row} where the topic has {record}")
        times[number_of(record)] += 1
        ends[partition] = offset + 1
        count += 1
    extra = next(rows, None)
    if extra is not None and not problems:
        problems.append(f"the table of {topic} has {extra}, the topic has not")
    for how, which in (
        ("never", [at for at, found in enumerate(times) if found == 0]),
        ("more than once", [at for at, found in enumerate(times) if found > 1]),
    ):
        if which:
            problems.append(f"{topic}: {len(which)} records come {how}, the first is {which[0]}")
    return Compared(count, ends, problems)


def value_of(number: int, chance: Random) -> bytes:
    return b"%d " % number + chance.randbytes(_FILL_BYTES)


def number_of(record: Row) -> int:
    """Which of its topic's records it is, by its value."""
    return int((record[3] or b"").partition(b" ")[0])


def table_rows(server: S3Server, files: Sequence[str]) -> Iterator[Row]:
    """By partition and offset."""
    pieces = [
        pyarrow.parquet.read_table(BytesIO(server.content(name))).select(_COLUMNS) for name in files
    ]
    if not pieces:
        return
    whole = pyarrow.concat_tables(pieces)
    whole = whole.sort_by([("partition", "ascending"), ("offset", "ascending")])
    times = whole["timestamp"].cast("timestamp[ms]").cast("int64")
    whole = whole.set_column(whole.column_names.index("timestamp"), "timestamp", times)
    for batch in whole.to_batches(_PIECE_ROWS):
        for row in batch.to_pylist():
            headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
            yield (*(row[name] for name in _COLUMNS[:5]), headers)


def topic_rows(client: dict[str, Any], topic: str, partition: int) -> Iterator[Row]:
    """What a consumer gets of a partition, up to the end that it has now. TimeoutError."""
    consumer = Consumer({**client, "group.id": "none", "enable.auto.commit": False})
    try:
        end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)[1]
        consumer.assign([TopicPartition(topic, partition, 0)])
        reached, deadline = 0, time.monotonic() + _PATIENCE_SECONDS
        while reached < end:
            found: list[Any] = consumer.consume(1000, timeout=1)
            for message in found:
                if message.error():
                    raise KafkaException(message.error())
                reached = message.offset() + 1
                headers = tuple((name, value) for name, value in message.headers() or ())
                record = (message.key(), message.value(), message.timestamp()[1], headers)
                yield (partition, message.offset(), *record)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}-{partition}: {reached} of {end}")
    finally:
        consumer.close()


def committed(
    client: dict[str, Any], group: str, topics: Sequence[str]
) -> dict[str, dict[int, int]]:
    """The offsets of a group."""
    consumer = Consumer({**client, "group.id": group, "enable.auto.commit": False})
    try:
        asked = [TopicPartition(name, number) for name in topics for number in range(PARTITIONS)]
        found: dict[str, dict[int, int]] = {name: {} for name in topics}
        for each in consumer.committed(asked, timeout=60):
            found[each.topic][each.partition] = each.offset
        return found
    finally:
        consumer.close()
