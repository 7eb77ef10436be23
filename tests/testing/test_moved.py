"""What is done as Kafka's own parts do it: brokers fenced or stale, elections, rebalances."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from twisted_broker.testing import (
    AsyncCluster,
    Cluster,
    ClusterError,
    group,
    in_sync,
    isr,
    leader,
)

pytestmark = pytest.mark.clients
SMALL = {"offsets.topic.num.partitions": 1}


def leaders_at(cluster: Cluster, node: int) -> dict[int, int]:
    """As that broker says."""
    address = cluster.bootstrap.split(",")[node - 1]
    admin = AdminClient({"bootstrap.servers": address})
    # A client that has asked one broker goes on with the brokers of its answer: ask once.
    found = admin.list_topics("orders", timeout=10).topics["orders"].partitions
    return {number: each.leader for number, each in found.items()}


def test_a_stale_broker_says_what_it_knew() -> None:
    with Cluster(3, SMALL, topics={"orders": 1}) as cluster:
        old = cluster.leader("orders", 0).id
        stale = next(each for each in cluster.brokers if each != old)
        with cluster.broker(stale).stale():
            new = next(each for each in cluster.brokers if each not in (old, stale))
            cluster.move_leader("orders", 0, to=new)
            cluster.wait_until(leader("orders", 0) == new, within="10s")
            assert leaders_at(cluster, stale) == {0: old}
            with pytest.raises(ClusterError, match="is stale: a snapshot"):
                cluster.snapshot()
        assert leaders_at(cluster, stale) == {0: new}
        cluster.wait_until(in_sync(), within="10s")
        with pytest.raises(ClusterError, match="cannot be stale"):
            cluster.controller.go_stale()


def test_a_fenced_broker_is_out_until_it_is_not() -> None:
    with Cluster(3, SMALL, topics={"orders": 1}) as cluster:
        old = cluster.leader("orders", 0)
        with old.fenced():
            cluster.wait_until(~(leader("orders", 0) == old.id), within="10s")
            cluster.topic("orders").produce([b"one"])
        cluster.wait_until(isr("orders", 0) == {1, 2, 3}, within="10s")
        with pytest.raises(ClusterError, match="is the controller"):
            cluster.controller.fence()


def test_an_unclean_election_loses_what_only_the_dead_had() -> None:
    with Cluster(2, {**SMALL, "min.insync.replicas": 1}, topics={"orders": 1}) as cluster:
        first = cluster.leader("orders", 0)
        other = next(each for each in cluster.brokers if each != first.id)
        with pytest.raises(ClusterError, match="has a leader"):
            cluster.elect_uncleanly("orders", 0)
        cluster.topic("orders").produce([b"kept"])
        cluster.broker(other).kill()
        cluster.clock.advance("10s")
        cluster.topic("orders").produce([b"lost"])
        first.kill()
        cluster.clock.advance("10s")
        cluster.broker(other).restart()
        cluster.elect_uncleanly("orders", 0)
        assert [each.value for each in cluster.topic("orders").records()] == [b"kept"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_join_anew_and_have_what_they_had(protocol: str) -> None:
    with Cluster(1, SMALL, topics={"orders": 2}) as cluster:
        settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "shop"}
        more = {"client.id": "till", "group.protocol": protocol}
        if protocol == "classic":
            more["heartbeat.interval.ms"] = "200"
        seen: list[str] = []
        consumer = Consumer({**settings, **more})
        consumer.subscribe(
            ["orders"],
            on_assign=lambda *_: seen.append("assigned"),
            on_revoke=lambda *_: seen.append("revoked"),
        )
        all_of_it = group("shop").assigned("till") == {("orders", 0), ("orders", 1)}
        while seen != ["assigned"]:
            consumer.poll(0.1)
        cluster.wait_until(all_of_it & (group("shop").state == "Stable"), within="20s")
        cluster.rebalance("shop")
        # The new protocol takes nothing from who keeps it.
        while protocol == "classic" and ("revoked" not in seen or seen[-1] != "assigned"):
            consumer.poll(0.1)
        cluster.wait_until(all_of_it, within="20s")
        assert [each.client_id for each in cluster.group("shop").members] == ["till"]
        with pytest.raises(ClusterError, match="has no members"):
            cluster.rebalance("nobody")
        consumer.close()


def test_calls_of_asyncio_do_not_wait_for_each_other() -> None:
    async def program() -> None:
        async with AsyncCluster(topics={"orders": 1}) as cluster:
            orders = await cluster.topic("orders")
            before = await cluster.snapshot()
            waiting = asyncio.create_task(orders.records(at_least=1, within="20s"))
            await asyncio.sleep(0)
            await orders.produce([b"one"])
            assert [each.value for each in await waiting] == [b"one"]
            lost = asyncio.create_task(orders.records(at_least=9, within="20s"))
            await asyncio.sleep(0)
            await cluster.restore(before)
            with pytest.raises(ClusterError, match="restored meanwhile"):
                await lost
            assert await orders.records() == []

    asyncio.run(program())
