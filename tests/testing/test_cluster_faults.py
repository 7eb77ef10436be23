"""Machines, links and disks of a test's cluster that are struck, with real clients beside them."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.testing.trial_run import passes
from twisted_broker.testing import (
    AsyncCluster,
    Cluster,
    ClusterError,
    ClusterTimeout,
    in_sync,
    isr,
    leader,
    requests,
)

pytestmark = pytest.mark.clients
AT_ONCE = 0.0
"""a wait that looks once"""
SAFE = {"min.insync.replicas": 2}


def producer_of(cluster: Cluster, acks: str = "all", **more: Any) -> Producer:
    """One that tries again soon, and waits longer than its cluster's time is moved on."""
    config = {
        "bootstrap.servers": cluster.bootstrap,
        "acks": acks,
        "log_level": 0,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        "request.timeout.ms": 60_000,
        "retry.backoff.ms": 20,
        "retry.backoff.max.ms": 100,
        "topic.metadata.refresh.fast.interval.ms": 50,
    }
    return Producer(config | more)


def sent(producer: Producer, count: int, name: str = "r") -> list[bytes]:
    """Sends so many to `orders`, partition 0; the list grows by what is acknowledged."""
    acknowledged: list[bytes] = []

    def answered(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.append(message.value())

    for number in range(count):
        value = b"%s%d" % (name.encode(), number)
        producer.produce("orders", value, partition=0, on_delivery=answered)
    return acknowledged


def values(cluster: Cluster, at_least: int = 0) -> list[bytes | None]:
    return [each.value for each in cluster.topic("orders").records(at_least)]


def refuses(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 10).close()
    except ConnectionRefusedError:
        return True
    return False


def test_another_broker_leads_once_the_killed_leaders_session_is_over() -> None:
    with Cluster(3, SAFE, topics={"orders": 1}) as cluster:
        cluster.topic("orders").produce([b"1"])
        old = cluster.leader("orders", 0)
        address = cluster.bootstrap.split(",")[old.id - 1]
        with old.killed():
            assert refuses(address)
            cluster.clock.advance("5s")
            with pytest.raises(ClusterTimeout, match=f"broker {old.id} leads orders-0, and does"):
                cluster.wait_until(~(leader("orders", 0) == old.id), AT_ONCE)
            cluster.clock.advance("5s")
            cluster.wait_until(~(leader("orders", 0) == old.id), AT_ONCE)
            cluster.topic("orders").produce([b"2"])
            old.kill()  # a second time is nothing
        cluster.wait_until(in_sync(), AT_ONCE)
        assert not refuses(address)
        assert values(cluster) == [b"1", b"2"]


def test_a_process_that_is_killed_finds_what_it_wrote_and_one_without_power_does_not() -> None:
    with Cluster(topics={"orders": 1}) as cluster:
        cluster.topic("orders").produce([b"1", b"2"])
        cluster.broker(1).kill()
        cluster.broker(1).restart()
        assert values(cluster, 2) == [b"1", b"2"]
        with cluster.broker(1).crashed():
            assert not refuses(cluster.bootstrap), "a machine without power says nothing"
        assert values(cluster) == []
        cluster.topic("orders").produce([b"3"])
        cluster.broker(1).crash(lose_unsynced=False)
        cluster.broker(1).restart()
        assert values(cluster, 1) == [b"3"]
        assert cluster.controller.id == 1


@pytest.mark.parametrize("acks", ["1", "all"])
def test_a_leader_that_is_cut_off_loses_what_it_alone_acknowledged(acks: str) -> None:
    """It leads on for its clients, who cannot know better; acks=all waits for others, and so
    acknowledges nothing that is lost.
    """
    with Cluster(3, SAFE, topics={"orders": 1}) as cluster:
        old = cluster.leader("orders", 0).id
        others = [each for each in cluster.brokers if each != old]
        producer = producer_of(cluster, acks, **{"message.timeout.ms": 3000})
        before = sent(producer, 5, "before")
        producer.flush(10)
        assert len(before) == 5
        for each in (*others, 100):
            cluster.link(old, each).cut()
        meanwhile = sent(producer, 5, "meanwhile")
        producer.flush(1 if acks == "all" else 10)
        assert len(meanwhile) == (0 if acks == "all" else 5)
        cluster.clock.advance("10s")  # the others have a leader of their own
        for each in (*others, 100):
            cluster.link(old, each).heal()
        cluster.wait_until(in_sync() & ~(leader("orders", 0) == old), "10s")
        producer.flush(20)
        kept = values(cluster)
        lost = [each for each in before + meanwhile if each not in kept]
        assert lost == ([] if acks == "all" else meanwhile)


def test_without_its_controller_a_cluster_serves_and_elects_nobody() -> None:
    with Cluster(3, SAFE, topics={"orders": 1}) as cluster:
        orders, first = cluster.topic("orders"), cluster.leader("orders", 0)
        orders.produce([b"0"])
        with cluster.controller.killed():
            orders.produce([b"1"])
            first.kill()
            cluster.clock.advance("20s")
            with pytest.raises(ClusterTimeout):
                cluster.wait_until(~(leader("orders", 0) == first.id), AT_ONCE)
        cluster.clock.advance("20s")
        cluster.wait_until(~(leader("orders", 0) == first.id), AT_ONCE)
        orders.produce([b"2"])
        cluster.controller.restart()
        cluster.topic("payments").produce([b"3"])
        assert values(cluster) == [b"0", b"1", b"2"]


def test_a_frozen_broker_answers_late_and_loses_its_place() -> None:
    with Cluster(3, SAFE, topics={"orders": 1}) as cluster:
        frozen = cluster.leader("orders", 0)
        others = set(cluster.brokers) - {frozen.id}
        producer = producer_of(cluster)
        sent(producer, 1)
        producer.flush(10)
        with frozen.frozen():
            late = sent(producer, 1, "late")
            producer.flush(0.3)
            assert not late
            with pytest.raises(ClusterError, match="is frozen: thaw it, or kill it"):
                frozen.stop()
            cluster.clock.advance("10s")
            cluster.wait_until(isr("orders", 0) == others, AT_ONCE)
        cluster.wait_until(in_sync(), AT_ONCE)
        assert producer.flush(20) == 0
        assert late == [b"late0"] and values(cluster, 2) == [b"r0", b"late0"]


def test_one_way_of_a_link_is_enough_to_leave_the_isr() -> None:
    with Cluster(3, SAFE, topics={"orders": 1}) as cluster:
        ahead, follower, other = cluster.leader("orders", 0).id, *_followers(cluster)
        producer = producer_of(cluster)
        with cluster.link(ahead, follower).cut_off(one_way=True):
            acknowledged = sent(producer, 3)
            producer.flush(0.2)
            assert not acknowledged, "the follower is in the ISR yet"
            cluster.clock.advance("46s")  # replica.lag.time.max.ms is 30 s, looked at each 15
            cluster.wait_until(isr("orders", 0) == {ahead, other}, "5s")
            assert producer.flush(10) == 0 and len(acknowledged) == 3
        cluster.wait_until(in_sync(), "10s")


def _followers(cluster: Cluster) -> list[int]:
    first = cluster.leader("orders", 0).id
    return [each for each in cluster.brokers if each != first]


def test_links_that_are_slow_narrow_or_reset() -> None:
    with Cluster(3, SAFE, topics={"orders": 1}) as cluster:
        orders = cluster.topic("orders")
        orders.produce([b"0"])
        first, follower = cluster.leader("orders", 0).id, _followers(cluster)[0]
        producer = producer_of(cluster)
        sent(producer, 1)
        assert producer.flush(10) == 0
        with cluster.link("client", first).delayed("100ms"):
            sent(producer, 1)
            assert seconds(lambda: producer.flush(10)) > 0.1
            assert seconds(lambda: orders.produce([b"of the test itself"])) < 0.1
        for struck in (
            cluster.link(first, follower).delayed("100ms"),
            cluster.link(first, follower).narrowed(200_000),
        ):
            with struck:
                assert seconds(lambda: orders.produce([b"1" * 30_000])) > 0.1
        cluster.link("client", first).drop_connections()
        cluster.link(first, follower).drop_connections()
        orders.produce([b"2"])
        cluster.wait_until(in_sync(), "5s")


def seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def test_held_requests_of_a_client_are_answered_once_its_link_is_healed() -> None:
    with Cluster(topics={"orders": 1}) as cluster:
        producer = producer_of(cluster)
        sent(producer, 1)
        assert producer.flush(10) == 0
        for ends in (("client", 1), (1, "client")):
            with cluster.link(*ends).cut_off(one_way=True):
                acknowledged = sent(producer, 1)
                producer.flush(0.3)
                assert not acknowledged
            assert producer.flush(10) == 0 and len(acknowledged) == 1
        assert len(values(cluster)) == 3


def test_what_a_cut_link_held_is_delivered_or_its_connections_are_reset() -> None:
    with Cluster(topics={"orders": 1}) as cluster:
        for on_heal, written in (("deliver", 1), ("reset", 0)):
            producer = producer_of(cluster, **{"retries": 0})
            sent(producer, 1)  # it is connected then
            assert producer.flush(10) == 0
            before = len(values(cluster))
            link, waiting = cluster.link("client", 1), requests("Produce")
            count = len(cluster.trace.requests("Produce"))
            link.cut(one_way=True, on_heal=on_heal)
            sent(producer, 1)
            producer.poll(0)
            cluster.wait_until(waiting >= count + 1)
            link.heal()
            producer.flush(10)
            assert len(values(cluster)) - before == written
        with pytest.raises(ClusterError, match='on_heal is "deliver" or "reset"'):
            link.cut(on_heal="drop")


def test_a_slow_disk_is_slow_for_what_is_named() -> None:
    with Cluster(3, topics={"orders": 1}) as cluster:
        with cluster.disk(2).slowed("300ms", "fsync"):
            began = time.monotonic()
            cluster.broker(2).restart()
            assert time.monotonic() - began > 0.3
        with pytest.raises(ClusterError, match="nobody waits for 'write': slow are any, create"):
            cluster.disk(2).slow("1s", "write")


def test_disks_that_are_full_fail_or_stall() -> None:
    with Cluster(3, SAFE, topics={"orders": 1}) as cluster:
        orders = cluster.topic("orders")
        orders.produce([b"0"])
        first, follower = cluster.leader("orders", 0).id, _followers(cluster)[0]
        with cluster.disk(follower).stalled():
            orders.produce([b"1"])
        for struck in (
            cluster.disk(follower).filled(),
            cluster.disk(first).failing("write", "EIO"),
        ):
            with struck:
                orders.produce([b"2" * 1000] * 3)
                cluster.clock.advance("10s")
                assert not any("broker-None" in line for line in cluster.log.splitlines())
            cluster.wait_until(in_sync(), "10s")
        assert "broker 1 stops" in cluster.log or f"broker {first} stops" in cluster.log
        assert len(values(cluster)) == 8


def test_a_flipped_bit_is_one_replicas() -> None:
    with Cluster(3, SAFE, topics={"orders": 1}) as cluster:
        cluster.topic("orders").produce([b"1"])
        cluster.topic("orders").produce([b"2"])
        first, follower = cluster.leader("orders", 0).id, _followers(cluster)[0]
        cluster.disk(first).corrupt("orders", 0, 1)
        with pytest.raises(ClusterError):
            cluster.topic("orders").records(2, within="1s")
        cluster.move_leader("orders", 0, to=follower)
        assert values(cluster, 2) == [b"1", b"2"]
        with pytest.raises(ClusterError, match=r"has no offset 7 of orders-0 on its disk"):
            cluster.disk(first).corrupt("orders", 0, 7)


def test_what_cannot_be_struck_is_said_in_one_line(tmp_path: Path) -> None:
    with Cluster(2, topics={"orders": 1}, data=tmp_path / "data") as cluster:
        for strike, said in (
            (lambda: cluster.link(1, 7).cut(), "no machine 7: there are 1, 2, 100, and 'client'"),
            (lambda: cluster.link(1, 1).cut(), "a link has two ends, not broker-1 twice"),
            (lambda: cluster.link(1, 2).narrow(0), "cut it"),
            (lambda: cluster.disk(1).full(), "the disk is the system's"),
            (lambda: cluster.broker(1).crash(), "the disk is the system's"),
            (lambda: cluster.disk(3).heal(), "there is no broker 3: there are 1, 2"),
        ):
            with pytest.raises(ClusterError, match=said):
                strike()
        cluster.topic("orders").produce([b"1"])
        with cluster.broker(1).killed():
            cluster.clock.advance("10s")
            with pytest.raises(ClusterError, match="broker 1 does not run"):
                cluster.broker(1).freeze()
        cluster.wait_until(in_sync(), AT_ONCE)
        assert values(cluster) == [b"1"]
    with Cluster(topics={"orders": 1}) as cluster:
        with pytest.raises(ClusterError, match="'burn' is none of a disk's: any, create, fsync"):
            cluster.disk(1).fail("burn")
        with pytest.raises(ClusterError, match="'EWET' is no error of a system"):
            cluster.disk(1).fail("write", "EWET")
    own = {"security.inter.broker.protocol": "PLAINTEXT"}
    with Cluster(2, own, topics={"orders": 1}) as cluster:
        with pytest.raises(ClusterError, match="brokers talk by TCP here"):
            cluster.link(1, 2).cut()
        with cluster.broker(2).killed():
            cluster.clock.advance("10s")
            cluster.topic("orders").produce([b"1"])
        cluster.wait_until(in_sync(), AT_ONCE)


def drilled(seed: int) -> None:
    """200 records with acks=all, and a blow between any two pieces of them."""
    draw = random.Random(seed)
    with Cluster(3, SAFE, topics={"orders": 1}) as cluster:
        producer = producer_of(cluster, **{"enable.idempotence": True})
        acknowledged: list[list[bytes]] = []
        blows = [
            lambda: cluster.broker(draw.choice(cluster.brokers)).killed(),
            lambda: cluster.broker(draw.choice(cluster.brokers)).crashed(),
            lambda: cluster.broker(draw.choice(cluster.brokers)).frozen(),
            lambda: cluster.link(*draw.sample([1, 2, 3, 100], 2)).cut_off(),
            lambda: cluster.disk(draw.choice(cluster.brokers)).filled(),
            cluster.controller.killed,
        ]
        for piece in range(4):
            acknowledged.append(sent(producer, 25, f"{piece}a"))
            producer.flush(0.05)
            with draw.choice(blows)():
                acknowledged.append(sent(producer, 25, f"{piece}b"))
                producer.flush(0.05)
                cluster.clock.advance(draw.choice([10, 46]))
            cluster.wait_until(in_sync(), "20s")
        assert producer.flush(30) == 0
        wanted = [value for part in acknowledged for value in part]
        assert values(cluster) == wanted and len(wanted) == 200


def test_drills_lose_repeat_and_reorder_nothing() -> None:
    for seed in range(2):
        drilled(seed)


@pytest.mark.more
def test_fifty_drills() -> None:
    for seed in range(100, 150):
        drilled(seed)


def test_asyncio_programs_strike_as_well() -> None:
    async def shop() -> None:
        async with AsyncCluster(3, topics={"orders": 1}) as cluster:
            orders = await cluster.topic("orders")
            await orders.produce([b"0"])
            first = await cluster.leader("orders", 0)
            async with first.killed():
                await cluster.clock.advance("10s")
                assert (await cluster.leader("orders", 0)).id != first.id
            await cluster.link(1, 2).delay("1ms")
            await cluster.link(1, 2).heal()
            async with cluster.disk(1).slowed("10ms"), cluster.controller.frozen():
                await orders.produce([b"1"])
            await cluster.wait_until(in_sync(), "10s")

    asyncio.run(shop())


TRIAL = """
from twisted.internet.defer import ensureDeferred
from twisted.trial.unittest import TestCase
from twisted_broker.testing import in_sync, trial

class Shop(TestCase):
    async def test_it(self):
        self.cluster = trial.Cluster(3, topics={"orders": 1})
        await self.cluster.start()
        self.addCleanup(lambda: ensureDeferred(self.cluster.stop()))
        async with (await self.cluster.leader("orders", 0)).killed():
            await self.cluster.clock.advance("10s")
            await self.cluster.leader("orders", 0)
        await self.cluster.wait_until(in_sync(), 0)
        await self.cluster.broker(1).kill()  # and left so, as all of these
        await self.cluster.broker(2).crash()
        await self.cluster.broker(3).freeze()
        await self.cluster.controller.kill()
        await self.cluster.link(1, 2).cut()
        await self.cluster.disk(3).stall()
"""


def test_twisteds_trial_finds_a_clean_reactor_whatever_was_struck(tmp_path: Path) -> None:
    passes(tmp_path, TRIAL)


def test_who_is_silent_is_not_asked() -> None:
    """A request of the test's own goes to a broker that runs; it takes no time-out."""
    with Cluster(brokers=3) as cluster:
        cluster.broker(1).crash()
        cluster.broker(2).freeze()
        cluster.clock.advance("10s")
        for each in range(4):
            started = time.monotonic()
            cluster.topic(f"orders-{each}", partitions=1, replicas=1)
            assert time.monotonic() - started < 5
        cluster.broker(3).crash()
        with pytest.raises(ClusterError, match="no broker runs: restart one, or thaw it"):
            cluster.topic("more")


def test_a_stop_that_took_too_long_goes_on_or_is_cut_short() -> None:
    with Cluster(brokers=3) as cluster:
        for go_on in (True, False):
            cluster.controller.freeze()
            with pytest.raises(ClusterTimeout, match="broker 2 has not stopped after"):
                cluster.broker(2).stop(within=0.1)
            if go_on:
                with pytest.raises(ClusterTimeout, match="broker 2 has not stopped after"):
                    cluster.broker(2).restart(within=0.1)
            else:
                cluster.broker(2).kill()
            cluster.controller.thaw()
            cluster.clock.advance("10s")
            cluster.broker(2).restart()
