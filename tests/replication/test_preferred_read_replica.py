"""Consumers read from the replica in their rack: whom a leader names, and what a follower shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.replication.fixtures import (
    TP,
    Fixture,
    at,
    batch,
    broker_registration,
    consumer,
    follower,
    registration,
)
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.image.entries import BrokerRegistration
from twisted_broker.replication.partition.fetch_data import FetchPartitionResult
from twisted_broker.replication.preferred_read_replica import LEADER_ONLY, RACK_AWARE
from twisted_broker.settings import ConfigError
from twisted_broker.wire.errors import ErrorCode


def in_rack(node: int, rack: str | None, fenced: bool = False) -> BrokerRegistration:
    return broker_registration(node)._replace(rack=rack, fenced=fenced)


def led(selector: str = RACK_AWARE) -> Fixture:
    """Broker 1 in rack a leads, 2 and 3 in rack b follow; ten records on all of them."""
    fixture = Fixture(replica_selector_class=selector)
    fixture.image = replace(
        fixture.image, brokers={1: in_rack(1, "a"), 2: in_rack(2, "b"), 3: in_rack(3, "b")}
    )
    fixture.topic(states={0: registration(1, (1, 2, 3))})
    fixture.produce(10)
    fetched(fixture, 2, 10)
    fetched(fixture, 3, 10)
    return fixture


def fetched(fixture: Fixture, broker: int, offset: int) -> None:
    for result in fixture.replicas.fetch(follower(broker), [at(offset, log_start_offset=0)]):
        result.release()


def ask(fixture: Fixture, rack: str, offset: int = 0, **options: object) -> FetchPartitionResult:
    params = consumer(only_leader=False, rack=rack)
    (result,) = fixture.replicas.fetch(params, [at(offset, **options)])
    result.release()
    return result


def test_a_consumer_is_sent_to_its_own_rack() -> None:
    """RL 2.7, 1.8, KIP-392: another rack's consumer gets a name, not records, at once; the leader's
    own rack, no rack or nobody's rack: served here.
    """
    fixture = led()
    result = ask(fixture, "b")
    assert (result.error, result.preferred_read_replica, result.size, result.high_watermark) == (
        ErrorCode.NONE,
        3,
        0,
        10,
    )
    assert fixture.replicas.answers_at_once(consumer(rack="b"), [result])
    for rack in ("a", "", "c"):
        (here,) = fixture.replicas.fetch(consumer(rack=rack, only_leader=False), [at(0)])
        assert here.preferred_read_replica == -1 and here.size
        here.release()


@pytest.mark.parametrize("selector", ["", LEADER_ONLY])
def test_without_the_selector_the_leader_serves(selector: str) -> None:
    """KIP-392: nobody is sent away unless `replica.selector.class` says so."""
    assert ask(led(selector), "b").preferred_read_replica == -1


def test_an_unknown_selector_is_refused() -> None:
    """No class is loaded by name."""
    with pytest.raises(ConfigError):
        BrokerConfig({"node.id": "1", "replica.selector.class": "com.example.Mine"})


def test_only_members_that_live_and_hold_the_offset_are_named() -> None:
    """RL 2.7: in the ISR, alive, the offset between its log's start and end; the one furthest
    ahead.
    """
    fixture = led()
    fixture.produce(5)
    fetched(fixture, 2, 15)
    assert ask(fixture, "b", 0).preferred_read_replica == 2
    assert ask(fixture, "b", 12).preferred_read_replica == 2
    assert ask(fixture, "b", 10).preferred_read_replica == 2
    fixture.publish(brokers={**fixture.image.brokers, 2: in_rack(2, "b", fenced=True)})
    assert ask(fixture, "b", 10).preferred_read_replica == 3
    assert ask(fixture, "b", 12).preferred_read_replica == -1
    fixture.topic(states={0: registration(1, (1, 2, 3), (1, 2), partition_epoch=1)})
    assert ask(fixture, "b", 0).preferred_read_replica == -1


def test_a_redirected_fetch_is_fenced_like_any_other() -> None:
    """RL 2.6: the leader epoch is checked first."""
    assert ask(led(), "b", current_leader_epoch=7).error is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_follower_shows_what_is_below_its_high_watermark() -> None:
    """RL 2.7: above it up to its end is empty, beyond its end is OFFSET_OUT_OF_RANGE; old
    consumers are sent to the leader.
    """
    fixture = led()
    fixture.topic(states={0: registration(2, (1, 2, 3), leader_epoch=1, partition_epoch=1)})
    log = fixture.partition().log
    assert log is not None and not fixture.partition().is_leader
    log.set_high_watermark(0)
    for offset in (0, 5, 10):
        result = ask(fixture, "a", offset)
        assert (result.error, result.size, result.high_watermark) == (ErrorCode.NONE, 0, 0)
    assert ask(fixture, "a", 11).error is ErrorCode.OFFSET_OUT_OF_RANGE
    fixture.partition().follow_high_watermark(10)
    (result,) = fixture.replicas.fetch(consumer(only_leader=False), [at(0)])
    assert result.size
    result.release()
    (old,) = fixture.replicas.fetch(consumer(), [at(0)])
    assert old.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_waiting_consumer_of_a_follower_wakes_with_its_high_watermark() -> None:
    """RL 1.9: records that a follower holds are shown when its own high watermark passes them."""
    fixture = led()
    fixture.topic(states={0: registration(2, (1, 2, 3), leader_epoch=1, partition_epoch=1)})
    log = fixture.partition().log
    assert log is not None
    log.set_high_watermark(4)
    params = consumer(only_leader=False, rack="a")
    first = fixture.replicas.fetch(params, [at(10, TP)])
    woken: list[object] = []
    fixture.replicas.delayed_fetch(params, first).addCallback(woken.append)
    assert not woken
    fixture.wall_ms += 1
    fixture.partition().append_as_follower(
        batch(1, base_offset=10, leader_epoch=1), 1, fixture.wall_ms
    )
    fixture.replicas.drain()
    assert not woken
    fixture.partition().follow_high_watermark(11)
    fixture.replicas.drain()
    assert woken
