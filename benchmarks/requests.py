"""A few requests as bytes and a blocking connection: what the load sends.

Independent of `twisted_broker`, so that any commit of it and any broker can be measured.

Produce v7 and Fetch v11, Metadata v1, ListOffsets v1, CreateTopics v2, DeleteTopics v1: versions
that brokers of all ages share.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import Any

import crc32c

Address = tuple[str, int]
Opener = Callable[[Address], socket.socket]
"""Gives a blocking socket that takes requests: over TLS and authenticated where that is wanted."""
PRODUCE, FETCH, LIST_OFFSETS, METADATA, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 2, 3, 19, 20
PRODUCE_VERSION, FETCH_VERSION, LIST_OFFSETS_VERSION = 7, 11, 5
BATCH_HEAD = struct.Struct(">qi")
LAST_DELTA_AT = 23


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def zigzag(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def batch(count: int, value_bytes: int) -> bytes:
    """A batch of `count` records with incompressible values."""
    now = int(time.time() * 1000)
    records = bytearray()
    for delta in range(count):
        body = (
            b"\0"
            + zigzag(0)
            + zigzag(delta)
            + zigzag(-1)
            + zigzag(value_bytes)
            + os.urandom(value_bytes)
            + zigzag(0)
        )
        records += zigzag(len(body)) + body
    tail = struct.pack(">hiqqqhii", 0, count - 1, now, now, -1, -1, -1, count) + bytes(records)
    return struct.pack(">qiibI", 0, 9 + len(tail), -1, 2, crc32c.crc32c(tail)) + tail


def frame(api_key: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhi", api_key, version, 1) + string("load")
    return struct.pack(">i", len(head) + len(body)) + head + body


def produce(topic: str, records: bytes, acks: int, partition: int = 0) -> bytes:
    body = (
        struct.pack(">hhii", -1, acks, 30_000, 1)
        + string(topic)
        + struct.pack(">iii", 1, partition, len(records))
        + records
    )
    return frame(PRODUCE, PRODUCE_VERSION, body)


def produce_error_at(topic: str) -> int:
    """Where in a Produce answer (with its length) the partition's error stands."""
    return 4 + 4 + 4 + 2 + len(topic) + 4 + 4


def fetch(
    topic: str, offset: int, max_bytes: int, max_wait_ms: int = 0, partition: int = 0
) -> bytes:
    body = struct.pack(">iiiibii", -1, max_wait_ms, 1, max_bytes + 65_536, 0, 0, -1)
    body += (
        struct.pack(">i", 1)
        + string(topic)
        + struct.pack(">iiiqqi", 1, partition, -1, offset, -1, max_bytes)
    )
    return frame(FETCH, FETCH_VERSION, body + struct.pack(">i", 0) + string(""))


def fetch_error_at(topic: str) -> int:
    return 4 + 4 + 4 + 2 + 4 + 4 + 2 + len(topic) + 4 + 4


def list_offsets(topic: str, timestamp: int = -1) -> bytes:
    """Asks for the end of partition 0 (-2: its start), as a client that reads uncommitted
    records.
    """
    body = struct.pack(">ibi", -1, 0, 1) + string(topic) + struct.pack(">iiiq", 1, 0, -1, timestamp)
    return frame(LIST_OFFSETS, LIST_OFFSETS_VERSION, body)


def list_offsets_error_at(topic: str) -> int:
    """Where in a ListOffsets answer (with its length) the partition's error stands."""
    return 4 + 4 + 4 + 4 + 2 + len(topic) + 4 + 4


def fetched_records(answer: memoryview, topic: str) -> memoryview:
    """The record bytes in a Fetch answer (without its length); raises on an error."""
    at = fetch_error_at(topic) - 4
    error = struct.unpack_from(">h", answer, at)[0]
    if error:
        raise RuntimeError(f"Fetch: error {error}")
    at += 2 + 8 + 8 + 8
    aborted = struct.unpack_from(">i", answer, at)[0]
    at += 4 + 16 * max(0, aborted) + 4
    size = max(0, struct.unpack_from(">i", answer, at)[0])
    return answer[at + 4 : at + 4 + size]


def next_offset(records: memoryview, offset: int) -> int:
    """The offset behind the last whole batch."""
    at = 0
    while at + 61 <= len(records):
        base, length = BATCH_HEAD.unpack_from(records, at)
        if at + 12 + length > len(records):
            break
        offset = base + struct.unpack_from(">i", records, at + LAST_DELTA_AT)[0] + 1
        at += 12 + length
    return offset


class Reader:
    def __init__(self, data: memoryview, at: int = 4) -> None:
        self.data, self.at = data, at

    def take(self, layout: str) -> Any:
        values = struct.unpack_from(">" + layout, self.data, self.at)
        self.at += struct.calcsize(">" + layout)
        return values[0] if len(values) == 1 else values

    def string(self) -> str:
        size = max(0, self.take("h"))
        self.at += size
        return bytes(self.data[self.at - size : self.at]).decode()


def open_plain(address: Address) -> socket.socket:
    made = socket.create_connection(address, 60)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class Connection:
    """Blocking; `receive` gives an answer without its length, valid until the next one."""

    def __init__(
        self, address: Address, buffer_bytes: int = 1 << 16, opener: Opener = open_plain
    ) -> None:
        self.socket = opener(address)
        # Python's TLS knows no flags, and gives one record at a time.
        self.flags = 0 if isinstance(self.socket, ssl.SSLSocket) else socket.MSG_WAITALL
        self.buffer = memoryview(bytearray(buffer_bytes))

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def receive(self) -> memoryview:
        size = struct.unpack(">i", self.exactly(4))[0]
        if size > len(self.buffer):
            self.buffer = memoryview(bytearray(size + (size >> 2)))
        return self.exactly(size)

    def exactly(self, size: int) -> memoryview:
        got = 0
        while got < size:
            more = self.socket.recv_into(self.buffer[got:size], size - got, self.flags)
            if not more:
                raise ConnectionError("closed by the server")
            got += more
        return self.buffer[:size]

    def call(self, api_key: int, version: int, body: bytes) -> Reader:
        self.socket.sendall(frame(api_key, version, body))
        return Reader(self.receive())

    def metadata(self, topic: str | None = None) -> tuple[int, list[int]]:
        """(brokers, leader of each partition of `topic`; -1 while it has none)."""
        brokers, partitions = self.describe(topic)
        return len(brokers), [leader for leader, _ in partitions]

    def describe(
        self, topic: str | None = None
    ) -> tuple[dict[int, Address], list[tuple[int, int]]]:
        """(brokers with their addresses, leader and number of replicas in sync of each partition
        of `topic`, in order).
        """
        reader = self.call(
            METADATA,
            1,
            struct.pack(">i", 0) if topic is None else struct.pack(">i", 1) + string(topic),
        )
        brokers: dict[int, Address] = {}
        for _ in range(reader.take("i")):
            node_id, host, port = reader.take("i"), reader.string(), reader.take("i")
            brokers[node_id] = (host, port)
            reader.string()
        reader.take("i")
        found: list[tuple[int, int, int]] = []
        for _ in range(reader.take("i")):
            reader.take("h")
            reader.string()
            reader.take("b")
            for _ in range(reader.take("i")):
                error, number, leader = reader.take("hii")
                replicas = reader.take("i")
                reader.at += 4 * replicas
                in_sync = reader.take("i")
                reader.at += 4 * in_sync
                found.append((number, -1 if error else leader, in_sync))
        return brokers, [(leader, in_sync) for _, leader, in_sync in sorted(found)]

    def create(self, topic: str, partitions: int = 1) -> float:
        """CreateTopics; the seconds until every partition has a leader and the first one is
        served.
        """
        began = time.perf_counter()
        error = self.ask_to_create(topic, partitions)
        if error:
            raise RuntimeError(f"CreateTopics: error {error}")
        while True:
            leaders = self.metadata(topic)[1]
            if len(leaders) == partitions and min(leaders) >= 0 and self.is_served(topic):
                return time.perf_counter() - began
            if time.perf_counter() - began > 60:
                raise TimeoutError(f"{topic} has {len(leaders)} partitions")
            time.sleep(0.005)

    def ask_to_create(self, topic: str, partitions: int = 1, replicas: int = 1) -> int:
        """CreateTopics; its error."""
        body = (
            struct.pack(">i", 1)
            + string(topic)
            + struct.pack(">ihiiib", partitions, replicas, 0, 0, 60_000, 0)
        )
        reader = self.call(CREATE_TOPICS, 2, body)
        reader.take("ii")
        reader.string()
        error: int = reader.take("h")
        return error

    def is_served(self, topic: str, partition: int = 0) -> bool:
        """Whether the partition answers a Fetch: a broker may know of its leadership a moment
        after Metadata tells it.
        """
        self.socket.sendall(fetch(topic, 0, 1024, partition=partition))
        at = fetch_error_at(topic) - 4
        return bytes(self.receive()[at : at + 2]) == b"\0\0"

    def delete(self, topic: str) -> None:
        self.call(
            DELETE_TOPICS, 1, struct.pack(">i", 1) + string(topic) + struct.pack(">i", 30_000)
        )
