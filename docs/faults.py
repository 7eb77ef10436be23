"""Writes `FAULTS.md`: what clients do when a request of theirs fails. Each cell is run.

    KAFKA_JARS=.. python docs/faults.py      (Java's client where KAFKA_JARS names Kafka's jars)

A producer sends three records to one partition, one after the other; the fault strikes the second
one. A cell says what is in the topic then, and what the producer was told.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from twisted_broker.testing import Cluster, ClusterTimeout

HERE = Path(__file__).parent
JARS = os.environ.get("KAFKA_JARS", "")
REQUEST_MS, DELIVERY_MS = 1500, 6000
VALUES = ["0", "1", "2"]
TOPIC = "orders"
LATE = "after the time-out"
Send = Callable[[str], str]
"""Sends one record: "ok", or the name of the error"""


class Row(NamedTuple):
    """`strike(cluster)`: puts the fault in force."""

    title: str
    strike: Callable[[Cluster], Any]


def _refused(error: str, times: int = 1, applied: bool = False) -> Callable[[Cluster], Any]:
    return lambda cluster: cluster.fail(
        "Produce", error, topic="orders", times=times, applied=applied
    )


ROWS = [
    Row("answer lost", lambda c: c.lose_answer("Produce", topic="orders", times=1)),
    Row("request lost", lambda c: c.lose_request("Produce", topic="orders", times=1)),
    Row("no answer", lambda c: c.silence("Produce", topic="orders", times=1)),
    Row("answer after the time-out", lambda c: c.delay("Produce", "2s", topic="orders", times=1)),
    Row("throttled for 1 s", lambda c: c.throttle("1s", "Produce", topic="orders", times=1)),
    Row("REQUEST_TIMED_OUT, applied", _refused("REQUEST_TIMED_OUT", applied=True)),
    Row(
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        _refused("NOT_ENOUGH_REPLICAS_AFTER_APPEND", applied=True),
    ),
    Row("NOT_ENOUGH_REPLICAS x 3", _refused("NOT_ENOUGH_REPLICAS", 3)),
    Row("NOT_LEADER_OR_FOLLOWER", _refused("NOT_LEADER_OR_FOLLOWER")),
    Row("UNKNOWN_TOPIC_OR_PARTITION", _refused("UNKNOWN_TOPIC_OR_PARTITION")),
    Row("KAFKA_STORAGE_ERROR", _refused("KAFKA_STORAGE_ERROR")),
    Row("MESSAGE_TOO_LARGE", _refused("MESSAGE_TOO_LARGE")),
    Row("TOPIC_AUTHORIZATION_FAILED", _refused("TOPIC_AUTHORIZATION_FAILED")),
    Row("UNKNOWN_SERVER_ERROR", _refused("UNKNOWN_SERVER_ERROR")),
]


@contextmanager
def confluent(bootstrap: str, is_idempotent: bool, topic: str = TOPIC) -> Iterator[Send]:
    """A producer of confluent-kafka."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": is_idempotent,
            "request.timeout.ms": REQUEST_MS,
            "message.timeout.ms": DELIVERY_MS,
            "log_level": 0,
        }
    )

    def send(value: str) -> str:
        found = ["no answer"]

        def answered(error: Any, message: Any) -> None:
            found[0] = "ok" if error is None else error.name()

        try:
            producer.produce(topic, value, partition=0, on_delivery=answered)
        except Exception as error:
            return type(error).__name__
        producer.flush(DELIVERY_MS / 1000 + 2)
        return found[0]

    yield send


@contextmanager
def kafka_python(bootstrap: str, is_idempotent: bool, topic: str = TOPIC) -> Iterator[Send]:
    """A producer of kafka-python."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=is_idempotent,
        acks="all",
        request_timeout_ms=REQUEST_MS,
        delivery_timeout_ms=DELIVERY_MS,
        max_in_flight_requests_per_connection=1,
    )

    def send(value: str) -> str:
        try:
            producer.send(topic, value.encode(), partition=0).get(DELIVERY_MS / 1000 + 2)
        except Exception as error:
            return type(error).__name__
        return "ok"

    yield send
    producer.close(timeout=0)


@contextmanager
def aiokafka(bootstrap: str, is_idempotent: bool, topic: str = TOPIC) -> Iterator[Send]:
    """A producer of aiokafka."""
    from aiokafka import AIOKafkaProducer

    loop = asyncio.new_event_loop()

    async def started() -> Any:
        made = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=is_idempotent,
            acks="all",
            request_timeout_ms=REQUEST_MS,
        )
        await made.start()
        return made

    producer = loop.run_until_complete(started())

    def send(value: str) -> str:
        sent = producer.send_and_wait(topic, value.encode(), partition=0)
        try:
            loop.run_until_complete(asyncio.wait_for(sent, DELIVERY_MS / 1000 + 2))
        except Exception as error:
            return type(error).__name__
        return "ok"

    yield send
    with suppress(Exception):  # what it could not send is in the table
        loop.run_until_complete(asyncio.wait_for(producer.stop(), 2))
    loop.close()


@contextmanager
def java(bootstrap: str, is_idempotent: bool, topic: str = TOPIC) -> Iterator[Send]:
    """A producer of Kafka's own client."""
    source = HERE.parent / "tests/compat/java/FaultedProducer.java"
    with tempfile.TemporaryDirectory() as classes:
        compiled = ["javac", "-cp", f"{JARS}/*", "-d", classes, str(source)]
        subprocess.run(compiled, check=True)
        settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": str(is_idempotent).lower(),
            "acks": "all",
            "request.timeout.ms": REQUEST_MS,
            "delivery.timeout.ms": DELIVERY_MS,
        }
        process = subprocess.Popen(
            [
                *("java", "-cp", f"{classes}:{JARS}/*", "FaultedProducer", topic),
                *(f"{name}={value}" for name, value in settings.items()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

        def send(value: str) -> str:
            assert process.stdin is not None and process.stdout is not None
            print(value, file=process.stdin, flush=True)
            return process.stdout.readline().strip()

        yield send
        process.kill()
        process.communicate()


CLIENTS: dict[str, Callable[[str, bool], Any]] = {
    "kafka-python": kafka_python,
    "confluent-kafka": confluent,
    "aiokafka": aiokafka,
}


def cell(row: Row, client: Callable[[str, bool], Any], is_idempotent: bool) -> str:
    """What comes of it, in words that no speed of a machine changes."""
    with Cluster(topics={TOPIC: 1}) as cluster, client(cluster.bootstrap, is_idempotent) as send:

        def found() -> list[str]:
            # A request that its client has given up may be done yet.
            with suppress(ClusterTimeout):
                cluster.topic(TOPIC).records(at_least=4, within="1s")
            return [(each.value or b"").decode() for each in cluster.topic(TOPIC).records()]

        return outcome(send, lambda: row.strike(cluster), lambda fault: bool(fault.hits), found)


def outcome(
    send: Send,
    strike: Callable[[], Any],
    has_struck: Callable[[Any], bool],
    written: Callable[[], list[str]],
) -> str:
    """Of three records, the second one under what `strike` puts in force; `has_struck` ends it."""
    told = [send(VALUES[0])]
    fault = strike()
    began = time.monotonic()
    told.append(send(VALUES[1]))
    seconds = time.monotonic() - began
    if not has_struck(fault):
        return "not struck"
    told.append(send(VALUES[2]))
    found = written()
    times = found.count(VALUES[1])
    words = ["once" if times == 1 else "**twice**" if times == 2 else f"{times} times"]
    if told[1] != "ok":
        said = "it is written" if times else "it is not written"
        words = [f"raises {told[1]}, {said}"]
    elif times == 0:
        words = ["**lost without a word**"]
    elif seconds > REQUEST_MS / 1000 * 0.9:
        words.append(LATE)
    if told[2] != "ok":
        words.append(f"**then every send fails: {told[2]}**")
    if found != sorted(found):
        words.append("**out of order**")
    return ", ".join(words)


def table(rows: list[Row], clients: dict[str, Callable[[str, bool], Any]], idem: bool) -> list[str]:
    """Lines of the page."""
    lines = [f"| fault, once | {' | '.join(clients)} |", "|---" * (len(clients) + 1) + "|"]
    for row in rows:
        cells = [cell(row, client, idem) for client in clients.values()]
        lines.append(f"| {row.title} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Runs all of them, and writes the page."""
    logging.disable(logging.CRITICAL)
    clients = dict(CLIENTS)
    versions = [f"{name} {version(name)}" for name in clients]
    if JARS:
        clients["Java"] = java
        jar = next(Path(JARS).glob("kafka-clients-*.jar"))
        versions.append(f"Java's client {jar.stem.removeprefix('kafka-clients-')}")
    page = [
        "# What clients do when a request fails",
        "",
        "Written by `docs/faults.py`, which runs every cell: a producer sends three records to one "
        "partition, one after the other, with acks=all; the",
        "fault strikes the second one, once. A cell says what is in the topic afterwards, and what "
        "the producer was told. [TESTING.md](TESTING.md) has the faults.",
        "",
        f"Clients: {', '.join(versions)}; their own settings but for a request time-out of "
        f"{REQUEST_MS / 1000:g} s and a delivery time-out of {DELIVERY_MS // 1000} s.",
        "",
        "The first four rows and MESSAGE_TOO_LARGE are the same on Apache Kafka 4.3.1, each cell "
        "of them (`tests/compat/test_faults_of_kafka.py`).",
        "",
        "## Without idempotence",
        "",
        *table(ROWS, clients, False),
        "",
        "## With idempotence",
        "",
        *table(ROWS, clients, True),
        "",
    ]
    (HERE / "FAULTS.md").write_text("\n".join(page))


if __name__ == "__main__":
    main()
