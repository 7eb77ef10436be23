"""Hostile bytes against the running broker: it answers or closes, stays small, logs no bug, and
serves the next client as before.
"""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.compat import clients, raw
from tests.compat.conftest import BrokerFactory
from tests.compat.test_idempotence import batch
from tests.wire.sampling import Sampler
from twisted_broker.api.routes import ROUTES, Route
from twisted_broker.wire.header import RequestHeader, encode_request_header
from twisted_broker.wire.schema import encode

MUTATIONS = int(os.environ.get("REPLOG_FUZZ_MUTATIONS", "6"))
ANSWER_SECONDS = 0.05
MAX_GROWTH_MB = 150
LARGEST_FRAME = 104857600
UNREGISTER_BROKER = 64
"""Obeyed when it names the one broker there is, which then serves nobody until it starts anew,
as in Kafka: no case for fuzzing.
"""


class Aimed(Sampler):
    """Random requests that often name what is there: the topic, its partitions, a group, a batch
    of records; waits are short.
    """

    def __init__(self, chance: random.Random, topic: str) -> None:
        super().__init__(chance)
        self.names = (topic, topic, "group", "member", "consumer", "range")

    def one(self, kind: Any, name: str, version: int) -> Any:
        if kind == "string" and self.random.random() < 0.7:
            return self.random.choice(self.names)
        if name.endswith("_ms") or "wait" in name:
            return self.random.randrange(50)
        if kind in ("int32", "int64") and self.random.random() < 0.7:
            return self.random.choice((-1, 0, 0, 1, 2))
        if kind == "record_bytes" and self.random.random() < 0.7:
            return batch(
                [b"value"] * self.random.randint(1, 3),
                self.random.choice((-1, 0, 1)),
                0,
                self.random.choice((-1, 0)),
            )
        return super().one(kind, name, version)


def frame_of(route: Route, version: int, message: Any) -> bytes:
    """Without its length."""
    return encode_request_header(RequestHeader(route.api_key, version, 1, "fuzz")) + encode(
        message, version
    )


def served() -> Iterator[tuple[Route, int]]:
    """Every API and version, but for the one that may end the broker."""
    for route in ROUTES:
        if route.api_key == UNREGISTER_BROKER:
            continue
        for version in range(route.broker.min, route.broker.max + 1):
            yield route, version


def mutate(frame: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, a stretch taken out or doubled, a length blown up, or the end cut off
    or made longer.
    """
    data = bytearray(frame)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(8, max(9, len(data)))
        kind = chance.randrange(6)
        if kind == 0 and at < len(data):
            data[at] = chance.randrange(256)
        elif kind == 1:
            data[at : at + 4] = struct.pack(
                ">i", chance.choice((-1, -2, 2**31 - 1, 65536, 1 << 24))
            )
        elif kind == 2:
            data[at:at] = b"\xff\xff\xff\xff\x0f"
        elif kind == 3:
            del data[at : at + chance.randint(1, 8)]
        elif kind == 4:
            data[at:at] = data[8 : 8 + chance.randint(1, 40)]
        else:
            data += chance.randbytes(chance.randint(1, 200))
    return bytes(data)


def send(address: tuple[str, int], data: bytes) -> None:
    """Sends and waits a moment for an answer, a close, or neither: a mutated request may ask for
    a long wait.
    """
    with socket.create_connection(address, 10) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.sendall(data)
            connection.recv(1 << 16)
        except (TimeoutError, ConnectionError):
            return


def assert_unhurt(broker: object, before_mb: float, topic: str) -> None:
    process = psutil.Process(broker.process.pid)  # type: ignore[attr-defined]
    assert process.memory_info().rss / 1e6 < before_mb + MAX_GROWTH_MB
    log = broker.log.read_text(errors="replace")  # type: ignore[attr-defined]
    assert "Traceback" not in log, log[log.index("Traceback") - 1500 :][:4000]
    rows: list[clients.Row] = [(b"k", b"v", ())]
    clients.KafkaPython().produce(broker.bootstrap, topic, "gzip", rows)  # type: ignore[attr-defined]
    assert clients.Confluent().consume(broker.bootstrap, topic, f"group-{topic}", 1) == rows  # type: ignore[attr-defined]


@pytest.mark.timeout(300)
def test_mutated_requests(new_broker: BrokerFactory, topic: str) -> None:
    """Every API and version, random and mutated by a seed (REPLOG_FUZZ_MUTATIONS each): no
    traceback, bounded memory, the next client is served.
    """
    broker = new_broker().start()
    before_mb = psutil.Process(broker.process.pid).memory_info().rss / 1e6
    with raw.Connection(broker.address) as connection:
        assert raw.create_topic(connection, topic, partitions=2) == 0
    chance = random.Random(5)
    sampler = Aimed(chance, topic)
    for route, version in served():
        for number in range(MUTATIONS):
            frame = frame_of(route, version, sampler.message(route.request_class(), version))
            send(broker.address, raw.sized(mutate(frame, chance) if number % 3 else frame))
    assert_unhurt(broker, before_mb, f"{topic}-after")


def test_default_requests_of_every_version(new_broker: BrokerFactory, topic: str) -> None:
    """A request with nothing but defaults is answered, in every version that is served."""
    broker = new_broker().start()
    for route, version in served():
        if route.name in ("Fetch", "JoinGroup", "Produce"):
            continue  # may wait, or (acks 0) has no answer
        if route.name == "DescribeAcls":
            continue  # Kafka closes the connection, too: a code of 0 stands for unknown
        with socket.create_connection(broker.address, 10) as connection:
            connection.sendall(raw.sized(frame_of(route, version, route.request_class()())))
            assert connection.recv(8), f"{route.name} v{version} has no answer"


def test_frames_that_never_come(new_broker: BrokerFactory, topic: str) -> None:
    """A hundred connections that announce 100 MiB each and send little of it cost little memory."""
    broker = new_broker().start()
    before_mb = psutil.Process(broker.process.pid).memory_info().rss / 1e6
    waiting = []
    for _ in range(100):
        waiting.append(socket.create_connection(broker.address, 10))
        waiting[-1].sendall(struct.pack(">i", LARGEST_FRAME) + bytes(10_000))
    assert_unhurt(broker, before_mb, topic)
    for connection in waiting:
        connection.close()
