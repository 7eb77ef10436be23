"""What a broker may answer by its roles after its process stood still."""

from __future__ import annotations

import pytest

from tests.cluster.controller_fixture import ControllerFixture, MemberSide, served
from tests.memory_broker import MemoryBroker
from twisted_broker.cluster.stale_roles import StaleRoles
from twisted_broker.wire.errors import BrokerError


class Member:
    """A broker that has joined, with its look at stops."""

    def __init__(self) -> None:
        self.fixture: ControllerFixture = served()
        self.member = MemberSide(self.fixture, 2).follow().join()
        self.are_applied = True
        self.roles = StaleRoles(
            self.fixture.clock, self.member.observer, 9000, lambda: self.are_applied
        )
        self.roles.start()
        self.fixture.pass_time(5.0)

    def stand_still(self, seconds: float) -> None:
        """No timer runs and no socket is read meanwhile."""
        self.fixture.clock.rightNow += seconds


def test_after_a_stop_roles_are_stale_until_the_metadata_has_caught_up() -> None:
    """Asked first, before any timer of this process ran; the round trip needs no time."""
    one = Member()
    assert not one.roles.may_be()
    one.stand_still(12.0)
    assert one.roles.may_be()
    at = one.fixture.clock.seconds()
    one.fixture.join(7)
    one.fixture.settle()
    assert not one.roles.may_be() and one.fixture.clock.seconds() - at <= 0.5
    assert 7 in one.member.observer.image.brokers


def test_what_was_on_its_way_before_the_stop_proves_nothing() -> None:
    """The answer that lay in the socket was made before the session expired."""
    one = Member()
    one.stand_still(12.0)
    assert one.roles.may_be()
    one.member.observer.caught_up_as_of = one.fixture.clock.seconds() - 0.001
    assert one.roles.may_be()


def test_roles_that_are_not_taken_over_yet_are_stale() -> None:
    one = Member()
    one.are_applied = False
    one.stand_still(12.0)
    assert one.roles.may_be()
    one.fixture.settle()
    one.fixture.pass_time(1.0)
    assert one.roles.may_be()
    one.are_applied = True
    assert not one.roles.may_be()


def test_a_short_stop_is_none() -> None:
    """Less than half a session: the session has not expired."""
    one = Member()
    one.stand_still(3.0)
    assert not one.roles.may_be()


def test_a_controller_that_is_away_makes_no_roles_stale() -> None:
    """A broker that runs and hears nothing goes on, as in Kafka; after a stop it waits for one."""
    one = Member()
    one.fixture.controller.stop()
    one.member.observer.stop()
    one.fixture.pass_time(60.0)
    assert not one.roles.may_be()
    one.stand_still(12.0)
    assert one.roles.may_be()
    one.fixture.pass_time(60.0)
    assert one.roles.may_be()


def test_a_broker_that_stood_still_coordinates_nothing_until_it_has_caught_up() -> None:
    """Groups and transactional ids: what is answered from memory may be old."""
    node = MemoryBroker().start()
    server = node.broker.broker_server
    assert server is not None
    for topic in (server.groups.offsets_topic, server.transactions.topic):
        assert topic is not None
        topic.create()
    node.pass_time(2.0)
    assert server.groups.fetch_offsets("g", []) == []
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        server.transactions.describe("t")
    node.clock.rightNow += 12.0
    for ask in (
        lambda: server.groups.fetch_offsets("g", []),
        lambda: server.transactions.describe("t"),
    ):
        with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
            ask()
    node.pass_time(2.0)
    assert server.groups.fetch_offsets("g", []) == []
    node.stop()
