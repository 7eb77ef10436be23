"""A bug on the way to the controller is told as one; what networks do is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.error import ConnectionLost, ConnectionRefusedError, TimeoutError
from twisted.logger import capturedLogs

from tests.cluster.controller_fixture import ControllerFixture, MemberSide, served
from twisted_broker.cluster.unexpected_errors import UnexpectedErrors
from twisted_broker.interfaces import TopicPartition
from twisted_broker.net.client import BrokerConnection, RequestTimedOut
from twisted_broker.replication.partition.isr_state import IsrProposal
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError
from twisted_broker.wire.messages.broker_lifecycle import (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
)
from twisted_broker.wire.messages.producer_ids import AllocateProducerIdsRequest


class Broken:
    """Sending requests of this class ends in a bug, while `broken`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, request_class: type[Any]) -> None:
        self.broken, self.times = True, 0
        send = BrokerConnection.send

        def sent(connection: BrokerConnection, request: Any, version: int, **options: Any) -> Any:
            if self.broken and type(request) is request_class:
                self.times += 1
                raise LookupError("no such field")
            return send(connection, request, version, **options)

        monkeypatch.setattr(BrokerConnection, "send", sent)


@pytest.fixture
def fixture() -> ControllerFixture:
    return served()


def tracebacks(events: list[Any]) -> list[str]:
    return [
        event["what"]
        for event in events
        if "log_failure" in event and "LookupError" in event["log_failure"].getTraceback()
    ]


def ask_producer_ids(member: MemberSide) -> None:
    """Asks until the deadline."""
    request = AllocateProducerIdsRequest(
        broker_id=member.node, broker_epoch=member.lifecycle.broker_epoch
    )
    asked: Deferred[Any] = ensureDeferred(
        member.channel("test").send_until_answered(request, 0, 3000)
    )
    asked.addErrback(lambda failure: failure.trap(BrokerError))


def beat(member: MemberSide) -> None:
    member.lifecycle.send_heartbeat()


def propose(member: MemberSide) -> None:
    member.isr_changes.submit(
        IsrProposal(TopicPartition("t", 0), bytes(16), 5, 7, ((1, 42), (2, 43)), 0)
    )


@pytest.mark.parametrize(
    ("request_class", "act"),
    [
        (BrokerHeartbeatRequest, beat),
        (AllocateProducerIdsRequest, ask_producer_ids),
        (AlterPartitionRequest, propose),
    ],
)
def test_a_bug_is_logged_once_until_it_works_again(
    fixture: ControllerFixture,
    monkeypatch: pytest.MonkeyPatch,
    request_class: type[Any],
    act: Callable[[MemberSide], None],
) -> None:
    """However often it is tried again: one traceback; after a success the next bug is told anew."""
    member = MemberSide(fixture, 2).follow().join()
    bug = Broken(monkeypatch, request_class)
    for _ in range(2):
        bug.broken, bug.times = True, 0
        with capturedLogs() as events:
            act(member)
            fixture.pass_time(2.0)
            assert bug.times > 2 and len(tracebacks(events)) == 1
            bug.broken = False
            act(member)
            fixture.pass_time(5.0)
    member.stop()


def test_a_controller_that_is_away_is_no_bug(fixture: ControllerFixture) -> None:
    """A crash and a return: no traceback of anybody."""
    member = MemberSide(fixture, 2).follow().join()
    with capturedLogs() as events:
        fixture.crash()
        ask_producer_ids(member)
        propose(member)
        fixture.pass_time(6.0)
        fixture.restart()
        fixture.serve()
        fixture.pass_time(6.0)
    assert [event for event in events if "log_failure" in event] == []
    member.stop()


@pytest.mark.parametrize(
    "error",
    [
        BrokerError(ErrorCode.NOT_CONTROLLER),
        WireError("short"),
        ConnectionRefusedError(),
        ConnectionLost(),
        TimeoutError(),
        RequestTimedOut("late"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_networks_do_is_expected(error: Exception) -> None:
    with capturedLogs() as events:
        UnexpectedErrors("heartbeats").failed(error)
    assert events == []
