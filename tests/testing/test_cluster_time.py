"""The time of a test's cluster is moved on, with real clients connected."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from twisted_broker.testing import AsyncCluster, Cluster, ClusterError, group, records, transaction

pytestmark = pytest.mark.clients
AT_ONCE = 0.0
SOON = {"log_level": 0}


def consumer_of(cluster: Cluster, client_id: str = "shop", **more: Any) -> Consumer:
    """One that has joined."""
    config = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "g",
        "client.id": client_id,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **SOON,
    }
    consumer = Consumer(config | more)
    consumer.subscribe(["orders"])
    assert consumer.poll(10) is not None
    return consumer


def test_a_calendar_that_stands_moves_by_advance_alone() -> None:
    settings = {"message.timestamp.type": "LogAppendTime", "retention.ms": 7 * 24 * 3600 * 1000}
    noon = int(datetime(2020, 1, 1, 12, tzinfo=UTC).timestamp() * 1000)
    with Cluster(topics={"orders": 1}) as cluster:
        cluster.clock.calendar("fix", at="2020-01-01T12:00")
        stamped, orders = cluster.topic("stamped", settings=settings), cluster.topic("orders")
        for topic in (stamped, orders):
            topic.produce([b"1"])
        assert cluster.clock.advance("10m") == []
        stamped.produce([b"2"])
        assert [each.timestamp - noon for each in stamped.records()] == [0, 600_000]
        assert [each.timestamp for each in orders.records()] == [noon]
        with cluster.broker(1).clock.skewed("-3s"):
            stamped.produce([b"3"])
        assert stamped.records()[2].timestamp == noon + 597_000
        assert "stamped-0: start 0 -> 3" in cluster.clock.advance("8d")
        cluster.clock.calendar("run")
        stamped.produce([b"4"])
        assert stamped.records()[0].timestamp > (time.time() + 8 * 24 * 3600) * 1000
        with pytest.raises(ClusterError, match='a calendar is set to "fix"'):
            cluster.clock.calendar("stop")


def test_what_bears_the_time_of_a_moved_calendar_is_as_old_as_that_says() -> None:
    settings = {"message.timestamp.type": "LogAppendTime", "retention.ms": 7 * 24 * 3600 * 1000}
    with Cluster() as cluster:
        cluster.clock.advance("30d")
        cluster.topic("stamped", settings=settings).produce([b"1"])
        assert cluster.clock.advance("8d") == ["stamped-0: start 0 -> 1"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_that_are_alive_stay_and_silent_ones_expire(protocol: str) -> None:
    with Cluster(topics={"orders": 1}) as cluster:
        cluster.topic("orders").produce([b"1"])
        consumer = consumer_of(cluster, **{"group.protocol": protocol})
        (member,) = cluster.group("g").members
        assert cluster.clock.advance("10m") == []
        cluster.wait_until((group("g").state == "Stable") & (group("g").members == 1), AT_ONCE)
        assert cluster.group("g").members == [member]
        assert cluster.clock.advance("40s", members="silent") == []
        told = cluster.clock.advance("6s", members=["other", "shop"])
        assert told == [f"g: member {member.id} of client shop expired"]
        assert cluster.group("g").members == []
        consumer.close()


def test_transactions_are_not_spared() -> None:
    with Cluster(topics={"orders": 1}) as cluster:
        config = {"bootstrap.servers": cluster.bootstrap, "transactional.id": "t", **SOON}
        producer = Producer(config)
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce("orders", b"1")
        producer.flush(10)
        assert cluster.clock.advance("55s") == []
        cluster.wait_until(transaction("t").state == "Ongoing", AT_ONCE)
        assert cluster.clock.advance("16s") == ["transactional id t: Ongoing -> CompleteAbort"]
        with pytest.raises(KafkaException):
            producer.commit_transaction(10)


def test_what_is_old_is_deleted_and_what_is_made_afterwards_is_not() -> None:
    """Records bear the time of the client, whose calendar did not move."""
    with Cluster(topics={"orders": 1}, settings={"retention.ms": "604800000"}) as cluster:
        orders = cluster.topic("orders")
        orders.produce([b"1", b"2"])
        assert cluster.clock.advance("6d") == []
        assert cluster.clock.advance("30h") == ["orders-0: start 0 -> 2"]
        orders.produce([b"3"])
        for _ in range(2):
            assert cluster.clock.advance("3d") == []
        cluster.wait_until(records("orders") == 1, AT_ONCE)
        assert cluster.clock.advance("30h") == ["orders-0: start 2 -> 3"]


def test_what_is_compacted_is_as_old_as_it_was_kept() -> None:
    kept = {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": 86_400_000,
        "segment.bytes": 1 << 20,
        "min.cleanable.dirty.ratio": "0.01",
    }
    with Cluster() as cluster:
        states = cluster.topic("states", 1, settings=kept)
        cluster.clock.advance("10d")
        for value in (b"1", b"2", b"3"):
            states.produce([("key", value * 700_000)])  # each closes the segment before it
        cluster.clock.advance("12h")
        assert len(states.records()) == 3, "twelve hours old, at a calendar that is ten days ahead"
        cluster.clock.advance("13h")
        assert [(each.value or b"")[:1] for each in states.records()] == [b"2", b"3"]


def test_seven_days_of_three_idle_brokers_fence_nobody() -> None:
    with Cluster(3, {"log.retention.ms": -1}, topics={"orders": 3}) as cluster:
        cluster.topic("orders").produce([b"1"])
        assert cluster.clock.advance("7d") == []
        assert "fencing broker" not in cluster.log


def test_time_only_goes_on() -> None:
    with Cluster() as cluster:
        began = time.monotonic()
        cluster.clock.advance("1h")
        assert time.monotonic() - began < 60
        for wrong in (-1, float("nan")):
            with pytest.raises(ValueError, match="write a number of seconds from 0 on"):
                cluster.clock.advance(wrong)
        with pytest.raises(ClusterError, match='members are "alive", "silent", or a list'):
            cluster.clock.advance(1, members="dead")


def test_asyncio_programs_move_time_as_well() -> None:
    async def shop() -> None:
        async with AsyncCluster(topics={"orders": 1}) as cluster:
            orders = await cluster.topic("orders")
            await orders.produce([b"1"])
            assert await cluster.clock.advance("8d") == ["orders-0: start 0 -> 1"]

    asyncio.run(shop())
