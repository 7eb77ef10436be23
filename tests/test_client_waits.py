"""Every wait on behalf of a client ends before the client's own 30 s: here, what needs the
controller, while the controller is silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import formatEvent, globalLogPublisher

from tests.memory_broker import MemoryBroker
from twisted_broker.api.routes import ROUTES
from twisted_broker.event_lines import MOST_LINES
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.producer_ids import InitProducerIdRequest
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest

CLIENT_SECONDS = 30.0
"""request.timeout.ms of Java's clients and of kafka-python"""
PASSED_ON = [route for route in ROUTES if route.forward and route.broker is not None]


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    made = MemoryBroker().start()
    yield made
    made.stop()


@pytest.fixture
def silent(broker: MemoryBroker) -> Iterator[MemoryBroker]:
    """The controller takes requests and answers none."""
    server = broker.broker.broker_server
    assert server is not None
    channel: Any = server.forwarding.channel
    once = channel.send_once
    channel.send_once = lambda request, version, timeout_ms=None: Deferred()
    yield broker
    channel.send_once = once


def seconds_until(broker: MemoryBroker, request: Any, version: int) -> tuple[float, Any]:
    began = broker.clock.seconds()
    answer = broker.ask(request, version)
    return broker.clock.seconds() - began, answer


def test_a_producer_id_while_the_controller_is_away(silent: MemoryBroker) -> None:
    """Told in time to ask again, also when others wait already; nobody's wait is kept."""
    for _ in range(3):
        took, answer = seconds_until(silent, InitProducerIdRequest(transactional_id=None), 4)
        assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert took < 10.0


def test_a_block_that_comes_late_is_used(broker: MemoryBroker) -> None:
    """The request for a block goes on when its first client is answered: the next one has an id."""
    server = broker.broker.broker_server
    assert server is not None
    channel: Any = server.forwarding.channel
    once, sent = channel.send_once, []
    late: Deferred[Any] = Deferred()

    def send_once(request: Any, version: int, timeout_ms: int | None = None) -> Any:
        sent.append(request)
        return late

    channel.send_once = send_once
    _, answer = seconds_until(broker, InitProducerIdRequest(transactional_id=None), 4)
    assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    ensureDeferred(once(sent[0], 0)).addCallback(late.callback)
    broker.pass_time(1)
    _, answer = seconds_until(broker, InitProducerIdRequest(transactional_id=None), 4)
    assert (answer.error_code, answer.producer_id) == (0, 0) and len(sent) == 1
    channel.send_once = once


@pytest.mark.parametrize("route", PASSED_ON, ids=lambda route: route.name)
def test_what_is_passed_on_is_answered_in_time(
    route: Any, silent: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the request, and with REQUEST_TIMED_OUT where its answer has a place for it."""
    # A listener without authentication passes nothing about tokens on.
    monkeypatch.setattr("twisted_broker.api.tokens.may_request", lambda context: True)
    request = route.request_class()()
    took, answer = seconds_until(silent, request, route.broker[1])
    assert took < CLIENT_SECONDS - 5.0
    code = getattr(answer, "error_code", None)
    assert code in (None, ErrorCode.REQUEST_TIMED_OUT)


@pytest.mark.parametrize(("asked_ms", "most"), [(3_000, 3.5), (120_000, 25.0)])
def test_a_request_that_names_its_time(asked_ms: int, most: float, silent: MemoryBroker) -> None:
    """`timeout_ms` of the request, but never beyond the client's own."""
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=asked_ms)
    took, answer = seconds_until(silent, request, 7)
    assert took < most and answer.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.fixture
def lines() -> Iterator[list[str]]:
    found: list[str] = []

    def take(event: Any) -> None:
        found.append(formatEvent(event))

    globalLogPublisher.addObserver(take)
    yield found
    globalLogPublisher.removeObserver(take)


def test_what_waited_long_is_logged_with_what_it_waited_for(
    silent: MemoryBroker, lines: list[str]
) -> None:
    """Above `replog.request.slow.ms`, 10 s; a shorter wait is not."""
    request = CreateTopicsRequest(topics=[], timeout_ms=9_000)
    seconds_until(silent, request, 7)
    assert not [line for line in lines if line.startswith("slow request")]
    seconds_until(silent, CreateTopicsRequest(topics=[], timeout_ms=30_000), 7)
    assert [line for line in lines if line.startswith("slow request")] == [
        "slow request broker=1 api=CreateTopics version=7 client=127.0.0.1 client.id=test "
        'ms=20000 waited.for="the controller"'
    ]


def test_many_slow_requests_are_a_few_lines(lines: list[str]) -> None:
    """Bounded, whatever their clients do."""
    broker = MemoryBroker(replog_request_slow_ms="1").start()
    server = broker.broker.broker_server
    assert server is not None
    channel: Any = server.forwarding.channel
    once = channel.send_once
    channel.send_once = lambda request, version, timeout_ms=None: Deferred()
    for _ in range(MOST_LINES + 5):
        broker.ask(CreateTopicsRequest(topics=[], timeout_ms=1_000), 7)
    channel.send_once = once
    slow = [line for line in lines if line.startswith("slow request broker=1 api=CreateTopics")]
    assert len(slow) == MOST_LINES
    broker.stop()
    assert [line for line in lines if line.startswith("slow request, more in that minute")]
