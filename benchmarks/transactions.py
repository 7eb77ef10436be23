"""`python -m benchmarks.transactions`: transactions of one producer, beside Apache Kafka.

confluent-kafka against one node of each, in turn, measure by measure and round by round, as
`benchmarks.compare` does (`ours`, `kafka`, `commit:REV`, `HOST:PORT:PID`). One transaction is open
at a time, so a figure is mostly how long its requests take: AddPartitionsToTxn where the client
sends it, Produce, the offsets, EndTxn with its markers.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.compare import Samples, add, note, report
from benchmarks.load import Figures, percentile_ms
from benchmarks.meter import Meter
from benchmarks.requests import Connection
from benchmarks.servers import Commit, Program, program

SECONDS, WARM_SECONDS = 4.0, 3.0
PARTITIONS = 10
RECORDS = 10
VALUE = b"x" * 100
# The first transaction waits for the topics of the coordinators.
FIRST_SECONDS = 60.0


class Bench:
    """One server under transactions."""

    def __init__(self, server: Program, scale: float) -> None:
        self.server, self.scale = server, scale
        self.made = 0
        self.others: list[float] = []

    def settings(self, **more: object) -> dict[str, Any]:
        host, port = self.server.address
        return {
            "bootstrap.servers": f"{host}:{port}",
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def topic(self, partitions: int) -> str:
        self.made += 1
        name = f"transactions-{os.getpid()}-{self.made}"
        with Connection(self.server.address) as connection:
            connection.create(name, partitions)
        return name

    def producer(self) -> Producer:
        self.made += 1
        producer = Producer(
            self.settings(transactional_id=f"bench-{os.getpid()}-{self.made}", linger_ms=0)
        )
        producer.init_transactions(FIRST_SECONDS)
        return producer

    def loop(self, transaction: Callable[[], None], seconds: float = SECONDS) -> Figures:
        """As many as there are in that time, one after the other."""
        transaction()
        took: list[float] = []
        with Meter(self.server.pids) as meter:
            began = now = time.perf_counter()
            while now - began < seconds * self.scale:
                transaction()
                before, now = now, time.perf_counter()
                took.append(now - before)
        self.others.append(meter.other_cores)
        return {
            "transactions/s": len(took) / meter.seconds,
            "p50 ms": percentile_ms(took, 0.5),
            "p99 ms": percentile_ms(took, 0.99),
            "server CPU s per 10,000": meter.server_cpu_s / len(took) * 10_000,
        }

    # measures
    def writes(self, partitions: int, seconds: float = SECONDS) -> Figures:
        """A record to each partition, then the commit."""
        topic, producer = self.topic(partitions), self.producer()

        def transaction() -> None:
            producer.begin_transaction()
            for number in range(partitions):
                producer.produce(topic, VALUE, partition=number)
            producer.commit_transaction(FIRST_SECONDS)

        return self.loop(transaction, seconds)

    def read_process_write(self, seconds: float = SECONDS) -> Figures:
        """`RECORDS` in, as many out, their offsets in the transaction."""
        source, target, producer = self.topic(1), self.topic(1), self.producer()
        settings = self.settings(
            group_id=f"group-{source}",
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        settings["fetch.wait.max.ms"] = 10
        filler = Producer(self.settings(linger_ms=5))
        consumer = Consumer(settings)

        def fill() -> None:
            for _ in range(50_000):
                filler.produce(source, VALUE, partition=0)
            assert filler.flush(FIRST_SECONDS) == 0, "the input was not written"

        fill()
        consumer.subscribe([source])
        left = 50_000

        def transaction() -> None:
            nonlocal left
            if left < RECORDS:
                raise RuntimeError("the input is used up: shorten the measure")
            found = consumer.consume(RECORDS, FIRST_SECONDS)
            if len(found) < RECORDS or any(each.error() for each in found):
                raise RuntimeError(f"{len(found)} of {RECORDS} records came")
            left -= RECORDS
            producer.begin_transaction()
            for each in found:
                producer.produce(target, each.value(), partition=0)
            producer.send_offsets_to_transaction(
                [TopicPartition(source, 0, max(each.offset() or 0 for each in found) + 1)],
                consumer.consumer_group_metadata(),
                FIRST_SECONDS,
            )
            producer.commit_transaction(FIRST_SECONDS)

        try:
            return self.loop(transaction, seconds)
        finally:
            consumer.close()


MEASURES: dict[str, Callable[[Bench, float], Figures]] = {
    "1 partition": lambda bench, seconds: bench.writes(1, seconds),
    f"{PARTITIONS} partitions": lambda bench, seconds: bench.writes(PARTITIONS, seconds),
    "read-process-write": lambda bench, seconds: bench.read_process_write(seconds),
}


def measured(servers: list[Program], options: argparse.Namespace, samples: Samples) -> list[float]:
    """All measures, in turn; what other programs used meanwhile."""
    benches = {server.name: Bench(server, options.scale) for server in servers}
    for server in servers:
        server.start()
    chosen = {name: MEASURES[name] for name in options.only or MEASURES}
    for name, bench in benches.items():
        for work in chosen.values():  # a JVM compiles what runs often
            work(bench, WARM_SECONDS)
        bench.others.clear()
        note(f"{name} is warm")
    for round_number in range(options.rounds):
        for measure, work in chosen.items():
            for name, bench in benches.items():
                figures = work(bench, SECONDS)
                add(samples, name, {f"{measure}: {key}": each for key, each in figures.items()})
            note(f"round {round_number + 1} of {options.rounds}: {measure}")
    return [cores for bench in benches.values() for cores in bench.others]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    kafka = bool(os.environ.get("KAFKA_HOME") or os.environ.get("KAFKA_JARS"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", default=["ours", *(["kafka"] if kafka else [])])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="shortens every measure")
    parser.add_argument("--only", nargs="*", choices=list(MEASURES), help="these measures alone")
    options = parser.parse_args(arguments)
    servers = [program(text) for text in options.programs]
    samples: Samples = {}
    try:
        others = measured(servers, options, samples)
    except KafkaException as refusal:
        sys.exit(f"a transaction failed: {refusal}")
    finally:
        for server in servers:
            with suppress(OSError):
                server.stop()
            if isinstance(server, Commit):
                server.remove()
    report(servers, samples, others)


if __name__ == "__main__":
    main()
