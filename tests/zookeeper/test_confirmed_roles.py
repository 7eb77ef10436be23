"""What a member of a ZooKeeper cluster may answer by its roles after its process stood still."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred

from tests.zookeeper.fixtures import CONTROLLER, CONTROLLER_EPOCH, role
from tests.zookeeper.test_zookeeper_broker import Member
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import zookeeper_controller as messages
from twisted_broker.zookeeper.znodes import broker_path

STOP_SECONDS = 20.0  # longer than zookeeper.session.timeout.ms


class Coordinator(Member):
    """Registered, and given roles by the controller."""

    def __init__(self, **settings: str) -> None:
        super().__init__(**settings)
        self.ensemble.end_session(99)
        self.starting = ensureDeferred(self.broker.start())
        self.pass_time(2.0)
        self.sender = self.connection()
        self.roles = self.broker.broker_server.stale_roles
        self.zookeeper = self.broker.membership.zookeeper
        self.command()
        self.pass_time(1.0)

    @property
    def epoch(self) -> int:
        return self.ensemble.node(broker_path(1)).czxid

    def command(self, topic: str = "t") -> None:
        """To lead the one partition of a topic, and that all know of it."""
        of = {
            "controller_id": CONTROLLER,
            "controller_epoch": CONTROLLER_EPOCH,
            "broker_epoch": self.epoch,
        }
        state, topic_id = role(replicas=[1]), topic.encode().ljust(16, b"_")[:16]
        led = messages.LeaderAndIsrTopicState(
            topic_name=topic, topic_id=topic_id, partition_states=[state]
        )
        known = messages.UpdateMetadataTopicState(
            topic_name=topic,
            topic_id=topic_id,
            partition_states=[
                messages.UpdateMetadataPartitionState(
                    partition_index=0, leader=1, leader_epoch=1, isr=[1], replicas=[1]
                )
            ],
        )
        for request, version in (
            (messages.LeaderAndIsrRequest(**of, topic_states=[led]), 7),
            (messages.UpdateMetadataRequest(**of, topic_states=[known]), 8),
        ):
            answer = self.run(self.sender.send(request, version))
            assert answer.error_code == ErrorCode.NONE

    def stand_still(self, seconds: float = STOP_SECONDS) -> None:
        """No timer runs and no socket is read meanwhile."""
        self.clock.rightNow += seconds

    def end(self) -> None:
        self.sender.close()
        self.roles.stop()
        self.broker.membership.confirmed_roles.stop()
        self.starting.addErrback(lambda failure: None).cancel()


@pytest.fixture
def member() -> Any:
    made = Coordinator()
    yield made
    made.end()


def test_in_the_same_session_roles_are_stale_until_the_ensemble_has_answered(member: Any) -> None:
    assert not member.roles.may_be()
    member.stand_still()
    assert member.roles.may_be()
    member.pass_time(0.1)
    assert not member.roles.may_be()


def test_after_another_session_they_are_stale_until_the_controller_gave_them(member: Any) -> None:
    before = member.epoch
    member.stand_still()
    member.ensemble.end_session(member.zookeeper.session_id)
    assert member.roles.may_be()
    member.pass_time(0.1)
    member.zookeeper.expire()
    member.pass_time(3.0)
    assert member.roles.may_be()
    member.zookeeper.connect()
    member.pass_time(3.0)
    assert member.epoch > before and member.roles.may_be()
    member.command()
    member.pass_time(1.0)
    assert not member.roles.may_be()


def test_an_ensemble_that_is_away_confirms_nothing_after_a_stop(member: Any) -> None:
    """A broker that runs and is cut off goes on, as in Kafka."""
    member.zookeeper.disconnect()
    member.pass_time(60.0)
    assert not member.roles.may_be()
    member.stand_still()
    member.pass_time(60.0)
    assert member.roles.may_be()
    member.zookeeper.connect()
    member.pass_time(1.0)
    assert not member.roles.may_be()


def test_a_short_stop_is_none(member: Any) -> None:
    member.stand_still(5.0)
    assert not member.roles.may_be()


def test_no_group_or_transaction_has_its_coordinator_meanwhile(member: Any) -> None:
    for topic in ("__consumer_offsets", "__transaction_state"):
        member.command(topic)
    member.pass_time(1.0)
    transactions, groups = (
        member.broker.broker_server.transactions,
        member.broker.broker_server.groups,
    )
    assert groups.fetch_offsets("g", []) == []
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        transactions.describe("t")
    member.stand_still()
    for ask in (lambda: groups.fetch_offsets("g", []), lambda: transactions.describe("t")):
        with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
            ask()
    member.pass_time(1.0)
    assert groups.fetch_offsets("g", []) == []
