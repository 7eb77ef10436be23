"""Requests as bytes over a blocking socket, built by hand: what no maintained client sends any
more, and what none should send.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable
from typing import Any

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS = 0, 1, 2, 3, 18, 19
CORRELATION_ID = 7


def string(text: str | None) -> bytes:
    return (
        struct.pack(">h", -1)
        if text is None
        else struct.pack(">h", len(text.encode())) + text.encode()
    )


def array(items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return struct.pack(">i", len(parts)) + b"".join(parts)


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def address(bootstrap: str) -> tuple[str, int]:
    """Of the first broker."""
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    return host, int(port)


class Reader:
    """Fields of an answer, in order."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, layout: str) -> Any:
        """One or several numbers by their `struct` letters."""
        values = struct.unpack_from(">" + layout, self.data, self.at)
        self.at += struct.calcsize(">" + layout)
        return values[0] if len(values) == 1 else values

    def bytes(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def string(self) -> str:
        return self.bytes(self.take("h")).decode()

    def assert_end(self) -> None:
        assert self.at == len(self.data), f"{len(self.data) - self.at} bytes too many"


class Connection:
    """One connection; `call` sends a request with header version 1 and reads its answer."""

    def __init__(self, address: tuple[str, int], timeout: float = 20) -> None:
        self.socket = socket.create_connection(address, timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, api_key: int, version: int, body: bytes) -> None:
        self.socket.sendall(
            sized(struct.pack(">hhi", api_key, version, CORRELATION_ID) + string("raw") + body)
        )

    def receive(self) -> Reader:
        reader = Reader(self.exactly(struct.unpack(">i", self.exactly(4))[0]))
        assert reader.take("i") == CORRELATION_ID
        return reader

    def exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return bytes(data)

    def call(self, api_key: int, version: int, body: bytes) -> Reader:
        self.send(api_key, version, body)
        return self.receive()

    def is_closed_by_peer(self) -> bool:
        """Waits for the end of the stream; False when bytes come instead. A reset is an error."""
        return self.socket.recv(1) == b""


def produce_body(topic: str, partition: int, records: bytes, acks: int = -1) -> bytes:
    """Produce v0-v2 (v3 and later begin with the transactional id)."""
    return struct.pack(">hi", acks, 10_000) + array(
        [string(topic) + array([struct.pack(">i", partition) + sized(records)])]
    )


def produced(reader: Reader, version: int) -> tuple[int, int]:
    """(error, base offset) of the single partition in an answer of v0-v2."""
    assert reader.take("i") == 1
    reader.string()
    assert reader.take("i") == 1
    _, error, offset = reader.take("ihq")
    if version >= 2:
        reader.take("q")
    if version >= 1:
        reader.take("i")
    reader.assert_end()
    return error, offset


def fetch_body(
    version: int,
    topic: str,
    partition: int,
    offset: int,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
) -> bytes:
    """Fetch v0-v4."""
    body = struct.pack(">iii", -1, max_wait_ms, min_bytes)
    if version >= 3:
        body += struct.pack(">i", max_bytes)
    if version >= 4:
        body += struct.pack(">b", 0)
    return body + array(
        [string(topic) + array([struct.pack(">iqi", partition, offset, max_bytes)])]
    )


def fetched(reader: Reader, version: int) -> tuple[int, int, bytes]:
    """(error, high watermark, records) of the single partition in an answer of v0-v4."""
    if version >= 1:
        reader.take("i")
    assert reader.take("i") == 1
    reader.string()
    assert reader.take("i") == 1
    _, error, high_watermark = reader.take("ihq")
    if version >= 4:
        reader.take("q")
        reader.bytes(16 * max(0, reader.take("i")))
    records = reader.bytes(max(0, reader.take("i")))
    reader.assert_end()
    return error, high_watermark, records


def leaders(connection: Connection, topic: str) -> list[tuple[int, int]]:
    """(error, leader) of each partition, by Metadata v1."""
    reader = connection.call(METADATA, 1, array([string(topic)]))
    for _ in range(reader.take("i")):
        reader.take("i")
        reader.string()
        reader.take("i")
        reader.bytes(max(0, reader.take("h")))
    reader.take("i")
    assert reader.take("i") == 1
    topic_error: int = reader.take("h")
    reader.string()
    reader.take("b")
    found = [] if not topic_error else [(topic_error, -1)]
    for _ in range(reader.take("i")):
        error, _, leader = reader.take("hii")
        reader.bytes(4 * reader.take("i"))
        reader.bytes(4 * reader.take("i"))
        found.append((error, leader))
    reader.assert_end()
    return found


def create_topic(
    connection: Connection, topic: str, partitions: int = 1, configs: dict[str, str] | None = None
) -> int:
    """CreateTopics v2; the error.

    Without one, every partition is served when it returns: a broker hears of a topic after its
    creation.
    """
    error = ask_for_topic(connection, topic, partitions, configs)
    deadline = time.monotonic() + 90
    while not error:
        found = leaders(connection, topic)
        if len(found) == partitions and all(not e and leader >= 0 for e, leader in found):
            asked = (
                connection.call(FETCH, 4, fetch_body(4, topic, partition, 0))
                for partition in range(partitions)
            )
            if all(fetched(answer, 4)[0] == 0 for answer in asked):
                break
        assert time.monotonic() < deadline, found
        time.sleep(0.005)
    return error


def ask_for_topic(
    connection: Connection, topic: str, partitions: int = 1, configs: dict[str, str] | None = None
) -> int:
    """CreateTopics v2 alone; the error."""
    settings = array(string(name) + string(value) for name, value in (configs or {}).items())
    one = string(topic) + struct.pack(">ih", partitions, 1) + array([]) + settings
    reader = connection.call(CREATE_TOPICS, 2, array([one]) + struct.pack(">ib", 10_000, 0))
    _, count = reader.take("ii")
    assert count == 1
    reader.string()
    error: int = reader.take("h")
    reader.bytes(max(0, reader.take("h")))
    reader.assert_end()
    return error
