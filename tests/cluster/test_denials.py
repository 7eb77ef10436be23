"""A broker that the controller denies comes less and less often, says so once, and comes back when
it is allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock, deferLater
from twisted.logger import LogEvent, LogLevel, capturedLogs, formatEvent

from tests.cluster.controller_fixture import ControllerFixture, MemberSide
from twisted_broker.cluster.alter_partition_manager import AlterPartitionManager
from twisted_broker.cluster.broker_lifecycle_manager import BrokerState
from twisted_broker.cluster.denials import MOST_MS, Denials
from twisted_broker.cluster.directory_assignments import DirectoryAssignments
from twisted_broker.cluster.forwarding_manager import ProducerIdManager
from twisted_broker.interfaces import TopicPartition
from twisted_broker.net.connector import PeerRefused
from twisted_broker.replication.partition.isr_state import IsrProposal
from twisted_broker.security.acl import AllowAll, Operation, ResourceType
from twisted_broker.security.principal import Principal
from twisted_broker.wire.errors import BrokerError, ErrorCode

DENIED = BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "ask the operator")


class Switch(AllowAll):
    """Denies all while `denies`, and counts what it was asked then."""

    denies = False
    asked = 0

    def authorize(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource: ResourceType,
        name: str,
    ) -> bool:
        self.asked += self.denies
        return not self.denies


def lines_of(events: Sequence[LogEvent]) -> list[str]:
    """What an operator sees."""
    shown = [each for each in events if each["log_level"] is not LogLevel.debug]
    return [formatEvent(each) for each in shown]


@pytest.fixture
def fixture() -> ControllerFixture:
    found = ControllerFixture()
    found.authorizer = Switch()
    found.start()
    found.serve()
    return found


def test_the_pause_doubles_up_to_its_limit() -> None:
    """Only while it is denied; other errors keep their pause, and do not end that."""
    denials = Denials()
    assert denials.pause_ms(ConnectionLost(), 50) == 50
    assert [denials.pause_ms(DENIED, 50) for _ in range(8)] == [
        *(50, 100, 200, 400, 800, 1600),
        *(MOST_MS, MOST_MS),
    ]
    assert denials.pause_ms(BrokerError(ErrorCode.NOT_CONTROLLER), 50) == 50
    assert denials.pause_ms(PeerRefused("n1:1 refused: why", "why"), 50) == MOST_MS
    denials.succeeded()
    assert denials.pause_ms(DENIED, 50) == 50
    assert Denials(most_ms=10).pause_ms(DENIED, 50) == 50
    for _ in range(100):
        denials.pause_ms(DENIED, 50)
    assert denials.pause_ms(DENIED, 50) == MOST_MS


def test_a_broker_that_is_denied_from_the_start(fixture: ControllerFixture) -> None:
    """Its fetches of the metadata and its registration; two lines in a minute."""
    switch = fixture.authorizer
    switch.denies = True
    with capturedLogs() as told:
        member = MemberSide(fixture, 2, **{"initial.broker.registration.timeout.ms": "300000"})
        member.follow().join()
        fixture.pass_time(60.0)
    assert 20 < switch.asked < 60
    lines = [line for line in lines_of(told) if "super.users" in line]
    assert 1 <= len(lines) <= 2, lines
    switch.denies = False
    fixture.pass_time(15.0)
    assert member.lifecycle.state is BrokerState.RUNNING
    assert not fixture.controller.image.brokers[2].fenced


def test_a_broker_that_is_denied_while_it_runs(fixture: ControllerFixture) -> None:
    """Its heartbeats, and its fetches of the metadata."""
    switch, member = fixture.authorizer, MemberSide(fixture, 2).follow().join()
    switch.denies = True
    with capturedLogs() as told:
        fixture.pass_time(60.0)
    assert 20 < switch.asked < 90
    lines = Counter(line for line in lines_of(told) if "super.users" in line)
    assert set(lines.values()) == {1} and 1 <= len(lines) <= 2, lines
    switch.denies = False
    fixture.pass_time(5.0)
    assert member.lifecycle.state is BrokerState.RUNNING
    assert not fixture.controller.image.brokers[2].fenced


class Denying:
    """A channel whose every answer is a denial."""

    def __init__(self, clock: Clock) -> None:
        self.asked, self._clock = 0, clock

    async def send_once(self, request: Any, version: int) -> Any:
        self.asked += 1
        await deferLater(self._clock, 0.001)
        return SimpleNamespace(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    send_until_answered = send_once


def requests_of(
    name: str, runtime: Any, channel: Any, member: Any
) -> tuple[Callable[[], Any], float]:
    """What has such a request sent, and how often it does in a second."""
    topic_partition = TopicPartition("t", 0)
    if name == "AlterPartition":
        changes = AlterPartitionManager(runtime, 2, channel, member)
        proposal = IsrProposal(topic_partition, bytes(16), 0, 0, ((2, 1),), 0)
        return lambda: changes.submit(proposal), 0.0
    if name == "AssignReplicasToDirs":
        assignments = DirectoryAssignments(runtime, 2, channel, member, lambda _: bytes(16))
        return lambda: assignments.assign(bytes(16), topic_partition, b"d" * 16, lambda: None), 0.0
    ids = ProducerIdManager(runtime, 2, channel, member)
    return lambda: ensureDeferred(ids.next()).addErrback(lambda failure: None), 10.0


@pytest.mark.parametrize("name", ["AlterPartition", "AssignReplicasToDirs", "AllocateProducerIds"])
def test_what_a_broker_requests_of_its_own(name: str) -> None:
    """A minute of denials is some 35 requests and one line, however often it is wanted."""
    clock = Clock()
    channel = Denying(clock)
    runtime: Any = SimpleNamespace(clock=clock, now_ms=lambda: int(clock.seconds() * 1000))
    member = SimpleNamespace(broker_epoch=1)
    want, every_second = requests_of(name, runtime, channel, member)
    with capturedLogs() as told:
        want()
        for step in range(6000):
            if every_second and step % (100 / every_second) == 0:
                want()
            clock.advance(0.01)
    assert 28 < channel.asked < 45, channel.asked
    lines = [line for line in lines_of(told) if "super.users" in line]
    assert len(lines) == 1 and "retrying" in lines[0], lines


def test_a_block_of_producer_ids_that_is_answered_at_once() -> None:
    """Within the call that requested it: the next block is requested, too."""
    blocks = iter((0, 1000))

    class AtOnce:
        async def send_until_answered(self, request: Any, version: int) -> Any:
            return SimpleNamespace(error_code=0, producer_id_start=next(blocks), producer_id_len=2)

    runtime: Any = SimpleNamespace(clock=Clock(), now_ms=lambda: 0)
    channel: Any = AtOnce()
    member: Any = SimpleNamespace(broker_epoch=1)
    ids = ProducerIdManager(runtime, 2, channel, member)
    found: list[int] = []
    for _ in range(4):
        ensureDeferred(ids.next()).addCallback(found.append)
    assert found == [0, 1, 1000, 1001]
