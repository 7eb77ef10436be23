"""The load: one function per measure, each returns figures by name. MB and GB are powers of ten and
count whole record batches.

A client with prebuilt frames over plain sockets and epoll costs little, so that the server is what
is measured; one request is in flight on each connection, except in the bulk produce (five). Server
CPU per unit of work holds up when other programs run; rates and p99 do not.
"""

from __future__ import annotations

import math
import os
import select
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from benchmarks.meter import Meter, cpu_seconds, resident_mb
from benchmarks.requests import (
    Address,
    Connection,
    Opener,
    batch,
    fetch,
    fetch_error_at,
    fetched_records,
    list_offsets,
    list_offsets_error_at,
    next_offset,
    open_plain,
    produce,
    produce_error_at,
)

Figures = dict[str, float]
CONNECTIONS = (1, 10, 50)
# Kafka's producer: max.in.flight.requests.per.connection.
IN_FLIGHT = 5
BULK_BYTES = 300e6
RATE_SECONDS = 3.0
# A JVM compiles what runs often: without this Kafka would be measured while it warms up.
WARM_PRODUCE, WARM_FETCH, WARM_BYTES = 40_000, 30_000, 200e6
LATENCY_RATE, LATENCY_RECORDS = 200, 1000
IDLE_CONNECTIONS, MANY_PARTITIONS = 1000, 1000


class Target:
    """A server under load. `scale` shortens every measure."""

    def __init__(
        self,
        address: Address,
        pids: list[int],
        scale: float = 1.0,
        opener: Opener = open_plain,
    ) -> None:
        self.address, self.pids, self.scale = address, pids, scale
        self.opener = opener
        self.topics = 0
        self.other_cores: list[float] = []

    def connect(self, buffer_bytes: int = 1 << 16) -> Connection:
        return Connection(self.address, buffer_bytes, self.opener)

    @contextmanager
    def topic(self, partitions: int = 1) -> Iterator[str]:
        self.topics += 1
        name = f"load-{os.getpid()}-{self.topics}"
        with self.connect() as connection:
            connection.create(name, partitions)
            yield name
            connection.delete(name)

    @contextmanager
    def meter(self) -> Iterator[Meter]:
        with Meter(self.pids) as meter:
            yield meter
        self.other_cores.append(meter.other_cores)


def percentile_ms(seconds: list[float], part: float) -> float:
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)] * 1000


def closed_loop(
    address: Address,
    request: bytes,
    connections: int,
    seconds: float,
    error_at: int,
    most: float = math.inf,
    opener: Opener = open_plain,
) -> list[float]:
    """Seconds that each request took; every connection sends its next request when the last one
    is answered.
    """
    poll = select.epoll()
    sockets = {}
    for _ in range(connections):
        connected = opener(address)
        sockets[connected.fileno()] = connected
        poll.register(connected.fileno(), select.EPOLLIN)
    latencies: list[float] = []
    sent, partial = {}, dict[int, bytes]()
    clock = time.perf_counter
    now = clock()
    end = now + seconds
    for number, connected in sockets.items():
        sent[number] = clock()
        connected.sendall(request)
    while now < end and len(latencies) < most:
        for number, _ in poll.poll(10):
            connected = sockets[number]
            data = partial.pop(number, b"") + connected.recv(1 << 18)
            if len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                partial[number] = data
                continue
            if data[error_at : error_at + 2] != b"\0\0":
                raise RuntimeError(
                    f"error {int.from_bytes(data[error_at : error_at + 2], 'big', signed=True)} "
                    "under load"
                )
            now = clock()
            latencies.append(now - sent[number])
            sent[number] = now
            connected.sendall(request)
    for connected in sockets.values():
        connected.close()
    poll.close()
    return latencies


def rates(
    address: Address,
    metered: Callable[[], AbstractContextManager[Meter]],
    scale: float,
    name: str,
    request: bytes,
    error_at: int,
    opener: Opener = open_plain,
) -> Figures:
    """Requests/s, p99 and server CPU of one request on 1, 10 and 50 connections to `address`."""
    figures: Figures = {}
    for connections in CONNECTIONS:
        with metered() as meter:
            latencies = closed_loop(
                address, request, connections, RATE_SECONDS * scale, error_at, opener=opener
            )
        label = f"{name}, {connections} connection{'s' if connections > 1 else ''}"
        figures[f"{label}: requests/s"] = len(latencies) / meter.seconds
        figures[f"{label}: p99 ms"] = percentile_ms(latencies, 0.99)
        figures[f"{label}: server CPU s per 10,000"] = meter.server_cpu_s / len(latencies) * 1e4
    return figures


def produce_rates(target: Target) -> Figures:
    """acks=1, one record of 100 B in a request."""
    with target.topic() as topic:
        return rates(
            target.address,
            target.meter,
            target.scale,
            "produce",
            produce(topic, batch(1, 100), 1),
            produce_error_at(topic),
            target.opener,
        )


def fetch_rates(target: Target) -> Figures:
    """About 1 KiB from the start of the log, no waiting."""
    with target.topic() as topic, target.connect() as connection:
        for _ in range(100):
            connection.socket.sendall(produce(topic, batch(1, 100), 1))
            connection.receive()
        return rates(
            target.address,
            target.meter,
            target.scale,
            "fetch",
            fetch(topic, 0, 1024),
            fetch_error_at(topic),
            target.opener,
        )


def offset_rates(target: Target) -> Figures:
    """The end of one partition's log: what a Spark job of default settings asks twice per 500
    records.
    """
    with target.topic() as topic:
        return rates(
            target.address,
            target.meter,
            target.scale,
            "list offsets",
            list_offsets(topic),
            list_offsets_error_at(topic),
            target.opener,
        )


def fill(
    connection: Connection, topic: str, total_bytes: float, records: int = 900, partition: int = 0
) -> int:
    """Batches of `records` KiB (about 0.94 MB), acks=all, five in flight; the bytes sent."""
    data = batch(records, 1024)
    request = produce(topic, data, -1, partition)
    at = produce_error_at(topic) - 4
    count = max(1, int(total_bytes / len(data)))
    for number in range(count + IN_FLIGHT):
        if number < count:
            connection.socket.sendall(request)
        if number >= IN_FLIGHT and bytes(connection.receive()[at : at + 2]) != b"\0\0":
            raise RuntimeError("Produce failed under load")
    return count * len(data)


def read_through(connection: Connection, topic: str, seconds: float) -> int:
    """The log from its start, again and again, 1 MiB a fetch; the bytes read."""
    total, offset = 0, 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        connection.socket.sendall(fetch(topic, offset, 1 << 20))
        records = fetched_records(connection.receive(), topic)
        total += len(records)
        offset = next_offset(records, offset) if len(records) else 0
    return total


def bulk(target: Target) -> Figures:
    """Batches of 0.94 MB in and out over one connection."""
    figures: Figures = {}
    with target.topic() as topic, target.connect(4 << 20) as connection:
        for name, work in (
            ("bulk produce", lambda: fill(connection, topic, BULK_BYTES * target.scale)),
            ("bulk fetch", lambda: read_through(connection, topic, RATE_SECONDS * target.scale)),
        ):
            with target.meter() as meter:
                size = work()
            figures[f"{name}: MB/s"] = size / meter.seconds / 1e6
            figures[f"{name}: server CPU s per GB"] = meter.server_cpu_s / size * 1e9
    return figures


def latency(target: Target) -> Figures:
    """200 records of 100 B a second, acks=all: from the sending of each to its arrival in a
    fetch that waits for it.
    """
    with (
        target.topic() as topic,
        target.connect() as reader,
        target.connect() as writer,
    ):
        arrivals = list(follow(topic, reader, writer, max(50, int(LATENCY_RECORDS * target.scale))))
    return {
        "end to end: p50 ms": percentile_ms(arrivals, 0.5),
        "end to end: p99 ms": percentile_ms(arrivals, 0.99),
    }


def follow(topic: str, reader: Connection, writer: Connection, count: int) -> Iterator[float]:
    """Seconds from the sending of each record to its arrival."""
    poll = select.poll()
    for connection in (reader, writer):
        poll.register(connection.socket, select.POLLIN)
    request = produce(topic, batch(1, 100), -1)
    sent: list[float] = []
    offset, next_at = 0, time.perf_counter()
    reader.socket.sendall(fetch(topic, 0, 1 << 20, 500))
    while offset < count:
        if len(sent) < count and time.perf_counter() >= next_at:
            sent.append(time.perf_counter())
            writer.socket.sendall(request)
            next_at += 1 / LATENCY_RATE
        wait = 1000 if len(sent) == count else max(0.0, next_at - time.perf_counter()) * 1000
        for number, _ in poll.poll(wait):
            if number == writer.socket.fileno():
                writer.receive()
                continue
            records = fetched_records(reader.receive(), topic)
            now = time.perf_counter()
            after = next_offset(records, offset)
            yield from (now - at for at in sent[offset:after])
            offset = after
            reader.socket.sendall(fetch(topic, offset, 1 << 20, 500))


def memory(target: Target) -> Figures:
    """After all the load so far."""
    return {"memory under load: MB": resident_mb(target.pids)}


def idle_connections(target: Target) -> Figures:
    """1,000 connections that have asked for the versions and say no more."""
    before = resident_mb(target.pids)
    connections = []
    began = time.perf_counter()
    for _ in range(IDLE_CONNECTIONS):
        connections.append(target.connect(4096))
        connections[-1].call(18, 0, b"")
    took = time.perf_counter() - began
    grown = resident_mb(target.pids) - before
    for connection in connections:
        connection.socket.close()
    return {"1,000 connections: s": took, "1,000 connections: MB": grown}


def many_partitions(target: Target) -> Figures:
    """A topic of 1,000 partitions: until all have leaders, and what Metadata about it takes: at
    once, while the server still works on the creation, and when it is idle again.
    """
    name = f"many-{os.getpid()}-{time.monotonic_ns()}"
    with target.connect() as connection:
        created = connection.create(name, MANY_PARTITIONS)
        at_once = metadata_ms(connection, name)
        until_idle(target.pids)
        asked = metadata_ms(connection, name)
        connection.delete(name)
    return {
        "1,000 partitions: s to create": created,
        "1,000 partitions: Metadata ms, at once": at_once,
        "1,000 partitions: Metadata ms": asked,
    }


def metadata_ms(connection: Connection, topic: str) -> float:
    began = time.perf_counter()
    for _ in range(20):
        connection.metadata(topic)
    return (time.perf_counter() - began) / 20 * 1000


def until_idle(pids: list[int], limit_seconds: float = 30.0) -> None:
    """Returns when the server used less than a twentieth of a core for a second."""
    end = time.perf_counter() + limit_seconds
    used = cpu_seconds(pids)
    while time.perf_counter() < end:
        time.sleep(1.0)
        before, used = used, cpu_seconds(pids)
        if used - before < 0.05:
            return


MEASURES: dict[str, Callable[[Target], Figures]] = {
    "latency": latency,
    "produce": produce_rates,
    "fetch": fetch_rates,
    "offsets": offset_rates,
    "bulk": bulk,
    "memory": memory,
    "connections": idle_connections,
    "partitions": many_partitions,
}


def warm_up(target: Target) -> None:
    """So that a just-in-time compiler has seen the paths."""
    with target.topic() as topic, target.connect(4 << 20) as connection:
        closed_loop(
            target.address,
            produce(topic, batch(1, 100), 1),
            10,
            60,
            produce_error_at(topic),
            WARM_PRODUCE * target.scale,
            target.opener,
        )
        closed_loop(
            target.address,
            fetch(topic, 0, 1024),
            10,
            60,
            fetch_error_at(topic),
            WARM_FETCH * target.scale,
            target.opener,
        )
        fill(connection, topic, WARM_BYTES * target.scale)


def first_metadata(
    address: Address, limit_seconds: float = 120, opener: Opener = open_plain
) -> None:
    """Returns when a broker answers Metadata with itself in it."""
    end = time.perf_counter() + limit_seconds
    while True:
        try:
            with Connection(address, opener=opener) as connection:
                if connection.metadata()[0]:
                    return
        except (OSError, struct.error):
            # Not up yet.
            pass
        if time.perf_counter() > end:
            raise TimeoutError(f"no Metadata from {address} in {limit_seconds} s")
        time.sleep(0.005)
