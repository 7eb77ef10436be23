"""What `net/client.py` promises, against a hand-fed far side."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.error import (
    ConnectingCancelledError,
    ConnectionDone,
    ConnectionLost,
    TimeoutError,
)
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from twisted_broker.interfaces import Runtime
from twisted_broker.net.client import BrokerConnection
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.header import decode_request_header, encode_response_header
from twisted_broker.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from twisted_broker.wire.schema import encode


class OneSide:
    """A network whose connections end in a `StringTransport` each."""

    def __init__(self) -> None:
        self.protocols: list[Any] = []

    def connect(self, host: str, port: int, factory: Any, timeout: float) -> Deferred[Any]:
        protocol = factory.buildProtocol(None)
        protocol.makeConnection(StringTransport())
        self.protocols.append(protocol)
        return succeed(protocol)


@pytest.fixture
def network() -> OneSide:
    return OneSide()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connection(network: OneSide, clock: Clock) -> BrokerConnection:
    runtime = Runtime(
        clock=clock, wall_ms=lambda: 0, network=network, files=None, disk=None, random=Random(1)
    )
    return BrokerConnection(runtime, "127.0.0.1", 9092, "tester")


def answer_bytes(correlation_id: int, *keys: tuple[int, int, int]) -> bytes:
    body = encode(
        ApiVersionsResponse(
            api_keys=[ApiVersion(api_key=k, min_version=a, max_version=b) for k, a, b in keys]
        ),
        3,
    )
    frame = encode_response_header(correlation_id, 18, 3) + body
    return len(frame).to_bytes(4, "big") + frame


def result(deferred: Deferred[Any]) -> Any:
    got: list[Any] = []
    deferred.addBoth(got.append)
    assert got, "no result yet"
    if isinstance(got[0], Failure):
        got[0].raiseException()
    return got[0]


def test_pipelined_requests_get_their_own_answers(
    connection: BrokerConnection, network: OneSide
) -> None:
    """Two requests go out at once; answers are matched by order, also when their bytes come
    split.
    """
    first, second = (
        connection.send(ApiVersionsRequest(), 3),
        connection.send(ApiVersionsRequest(), 3),
    )
    sent = network.protocols[0].transport.value()
    header, _ = decode_request_header(sent[4:])
    assert (header.api_key, header.api_version, header.client_id) == (18, 3, "tester")
    stream = answer_bytes(1, (0, 0, 9)) + answer_bytes(2, (1, 0, 12))
    for at in range(0, len(stream), 7):
        network.protocols[0].dataReceived(stream[at : at + 7])
    assert result(first).api_keys[0].max_version == 9
    assert result(second).api_keys[0].max_version == 12
    assert connection.in_flight == 0


def test_silence_closes_the_connection_and_fails_all(
    connection: BrokerConnection, network: OneSide, clock: Clock
) -> None:
    """A request without an answer in time takes the connection and every other request with it;
    the next one connects anew.
    """
    slow, other = (
        connection.send(ApiVersionsRequest(), 3, timeout_ms=100),
        connection.send(ApiVersionsRequest(), 3),
    )
    clock.advance(0.1)
    for each in (slow, other):
        with pytest.raises(TimeoutError):
            result(each)
    assert (
        network.protocols[0].transport.disconnecting or network.protocols[0].transport.disconnected
    )
    assert not connection.connected and not clock.getDelayedCalls()
    again = connection.send(ApiVersionsRequest(), 3)
    network.protocols[1].dataReceived(answer_bytes(3))
    assert result(again).error_code == 0


@pytest.mark.parametrize("pieces", [1, 3])
def test_an_answer_that_arrived_during_a_stall_is_read_before_the_verdict(
    connection: BrokerConnection, network: OneSide, clock: Clock, pieces: int
) -> None:
    """This process stood still past the time-out: its reactor runs the timer first and reads the
    sockets after it, a piece in each turn.
    """
    asked = connection.send(ApiVersionsRequest(), 3, timeout_ms=100)
    stream = answer_bytes(1, (0, 0, 9))
    size = -(-len(stream) // pieces)

    def turn_reads(at: int) -> None:
        network.protocols[0].dataReceived(stream[at : at + size])
        if at + size < len(stream):
            clock.callLater(0, turn_reads, at + size)

    clock.callLater(0.1, turn_reads, 0)  # due with the time-out, and after it
    clock.advance(5.0)
    assert result(asked).api_keys[0].max_version == 9
    assert connection.connected and not clock.getDelayedCalls()


def test_bytes_that_came_before_the_verdict_do_not_put_it_off(
    connection: BrokerConnection, network: OneSide, clock: Clock
) -> None:
    """Half an answer, and then nothing: a turn that brings nothing is the end."""
    asked = connection.send(ApiVersionsRequest(), 3, timeout_ms=100)
    network.protocols[0].dataReceived(answer_bytes(1)[:9])
    clock.advance(0.1)
    with pytest.raises(TimeoutError, match=r"127\.0\.0\.1:9092 did not answer within 100 ms"):
        result(asked)


def test_a_wrong_correlation_id_ends_the_connection(
    connection: BrokerConnection, network: OneSide
) -> None:
    """An answer that does not belong to the oldest request is a broken peer."""
    asked = connection.send(ApiVersionsRequest(), 3)
    network.protocols[0].dataReceived(answer_bytes(7))
    with pytest.raises(WireError):
        result(asked)


def test_a_loss_fails_what_waits(connection: BrokerConnection, network: OneSide) -> None:
    """What was asked on a connection that is lost fails with ConnectionLost and leaves no timer."""
    asked = connection.send(ApiVersionsRequest(), 3)
    network.protocols[0].connectionLost(Failure(ConnectionLost()))
    with pytest.raises(ConnectionLost):
        result(asked)
    assert connection.in_flight == 0


@pytest.mark.parametrize("told", [CancelledError(), ConnectingCancelledError(None)])
def test_dropped_while_it_connects(
    connection: BrokerConnection, network: OneSide, told: Exception
) -> None:
    """Whoever waits hears that the connection is gone, as if it had stood: a coroutine that
    waits for it is not cancelled.
    """
    network.connect = lambda *arguments: Deferred(lambda attempt: attempt.errback(told))
    asked = connection.send(ApiVersionsRequest(), 3)
    connection.close()
    with pytest.raises(ConnectionDone):
        result(asked)


def test_negotiation_picks_the_highest_common_version(
    connection: BrokerConnection, network: OneSide
) -> None:
    """`negotiate` remembers the other side's ranges; `highest_version` refuses what does not
    overlap.
    """
    asked = connection.negotiate()
    network.protocols[0].dataReceived(answer_bytes(1, (1, 4, 17), (62, 3, 4)))
    assert result(asked)[1] == (4, 17)
    assert connection.highest_version(1, 16) == 16
    with pytest.raises(Exception, match="UNSUPPORTED_VERSION"):
        connection.highest_version(62, 2)
