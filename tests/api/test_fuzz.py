"""Every API at every version, fed with seeded strange messages and broken bytes: a typed answer, a
wait, or a closed connection; never a bug.

The rows of RELIABILITY 5.3 that name classes of input are in tests/net and tests/wire; here the
whole broker stands behind the wire, in memory. A failure prints the seed and the request;
FUZZ_SEEDS says how many of them each version gets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from twisted.internet.protocol import ClientFactory
from twisted.logger import LogLevel, globalLogPublisher

from tests.api.random_messages import mutated, random_message
from tests.memory_broker import MemoryBroker
from tests.net.echo import Far
from twisted_broker.api.routes import ROUTES, Route
from twisted_broker.wire.header import RequestHeader, decode_response_header, encode_request_header
from twisted_broker.wire.messages.api_versions import ApiVersionsRequest
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from twisted_broker.wire.schema import decode, encode

SEEDS = int(os.environ.get("FUZZ_SEEDS", "20"))
PORTS = {False: 9092, True: 9093}
ROWS = [
    (route, is_controller)
    for route in ROUTES
    for is_controller in (False, True)
    if route.versions(is_controller).max >= 0
]


class Bugs:
    """Collects what was logged as a failure."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def __call__(self, event: Any) -> None:
        if event.get("log_failure") is not None or event.get("log_level") is LogLevel.critical:
            failure = event.get("log_failure")
            self.found.append(
                failure.getTraceback() if failure is not None else event.get("log_format")
            )


@pytest.fixture
def bugs() -> Iterator[Bugs]:
    observer = Bugs()
    globalLogPublisher.addObserver(observer)
    yield observer
    globalLogPublisher.removeObserver(observer)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    made = MemoryBroker(auto_create_topics_enable="false").start()
    made.ask(
        CreateTopicsRequest(
            topics=[CreatableTopic(name="t", num_partitions=2, replication_factor=1)],
            timeout_ms=1000,
        ),
        7,
        port=9093,
    )
    made.pass_time(0.1)
    yield made
    made.stop()


class Asker:
    """One connection for one frame."""

    def __init__(self, broker: MemoryBroker, port: int, frame: bytes) -> None:
        made: list[Any] = []
        broker.network.connect("127.0.0.1", port, ClientFactory.forProtocol(Far), 1).addCallback(
            made.append
        )
        broker.pass_time(0)
        self.far: Far = made[0]
        self.far.transport.write(len(frame).to_bytes(4, "big") + frame)
        broker.pass_time(0.02)
        self.lost = self.far.lost
        self.data = self.far.data
        self.far.transport.abortConnection()
        broker.pass_time(0)


def still_served(broker: MemoryBroker, port: int) -> bool:
    return bool(
        broker.ask(
            ApiVersionsRequest(client_software_name="fuzz", client_software_version="1"),
            3,
            port=port,
        ).error_code
        == 0
    )


def ids_of(broker: MemoryBroker) -> tuple[bytes, ...]:
    return tuple(broker.broker.parts.metadata.image.topics_by_id)


def requests(
    route: Route, is_controller: bool, broker: MemoryBroker, kind: str, client_id: str
) -> Iterator[tuple[Random, str, Any, int, bytes]]:
    """(what else is drawn from it, what it is called, the request, its version, its frame) for
    each version and seed of a route.
    """
    versions = route.versions(is_controller)
    for version in range(versions.min, versions.max + 1):
        for seed in range(SEEDS):
            random = Random(f"{kind}{route.name} {version} {seed}")
            request = random_message(random, route.request_class(), version, ids_of(broker))
            frame = encode_request_header(
                RequestHeader(route.api_key, version, 77, client_id)
            ) + encode(request, version)
            yield random, f"{route.name} v{version} seed {seed}", request, version, frame


def check_broker(broker: MemoryBroker, port: int) -> None:
    """The next client is served; nothing was written that does not belong there."""
    assert still_served(broker, port)
    assert not broker.fatal
    assert broker.files.listdir("/") == ["data"]


both_roles = pytest.mark.parametrize(
    ("route", "is_controller"),
    ROWS,
    ids=[f"{route.name}-{'controller' if it else 'broker'}" for route, it in ROWS],
)


@both_roles
def test_strange_messages_get_a_typed_answer(
    route: Route, is_controller: bool, broker: MemoryBroker, bugs: Bugs
) -> None:
    """Well-formed requests with hostile values: whatever is answered decodes as that API's
    answer, and nothing is logged as a bug.
    """
    for _, name, request, version, frame in requests(route, is_controller, broker, "", "fu\nzz"):
        asked = Asker(broker, PORTS[is_controller], frame)
        told = f"{name}: {request!r}"
        assert not bugs.found, f"{told}\n{bugs.found[0]}"
        assert not asked.lost or not asked.data, told
        if asked.data:
            answer = asked.data[4:]
            assert len(answer) == int.from_bytes(asked.data[:4], "big"), told
            correlation_id, offset = decode_response_header(answer, route.api_key, version)
            assert correlation_id == 77, told
            decode(route.response_class(), answer, version, offset)
    check_broker(broker, PORTS[is_controller])


@both_roles
def test_broken_bytes_are_answered_or_refused(
    route: Route, is_controller: bool, broker: MemoryBroker, bugs: Bugs
) -> None:
    """Frames with flipped, cut, inserted and overflowing bytes: an answer, a wait or a closed
    connection, and the next client is served.
    """
    for random, name, _, _, frame in requests(route, is_controller, broker, "bytes ", "fuzz"):
        head = random.choice((4, len(frame)))
        broken = (
            frame[:head] + mutated(random, frame[head:]) if head == 4 else mutated(random, frame)
        )
        Asker(broker, PORTS[is_controller], broken)
        assert not bugs.found, f"{name}: {broken!r}\n{bugs.found[0]}"
    check_broker(broker, PORTS[is_controller])
