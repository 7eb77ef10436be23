"""Brokers of a test's cluster that are stopped and started one by one."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

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
    records,
)

pytestmark = pytest.mark.clients
AT_ONCE = 0.0
"""a wait that looks once"""


def refuses(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 10).close()
    except ConnectionRefusedError:
        return True
    return False


def test_each_broker_of_three_is_stopped_and_comes_back() -> None:
    """All that a call says holds when it returns: the waits afterwards look once."""
    with Cluster(3, {"min.insync.replicas": 2}, topics={"orders": 3}) as cluster:
        orders = cluster.topic("orders")
        for node, address in zip(cluster.brokers, cluster.bootstrap.split(","), strict=True):
            others = {1, 2, 3} - {node}
            cluster.broker(node).stop()
            for number in range(3):
                left = (isr("orders", number) == others) & ~(leader("orders", number) == node)
                cluster.wait_until(left, AT_ONCE)
            assert refuses(address)
            orders.produce([b"one"] * 3)
            cluster.broker(node).restart()
            cluster.wait_until(in_sync(), AT_ONCE)
            assert not refuses(address)
        assert len(orders.records(9)) == 9


def test_a_time_out_says_why_replication_waits() -> None:
    with Cluster(3, topics={"orders": 1}) as cluster:
        with cluster.broker(2).stopped():
            why = r"it is \{1, 3\}; broker 2 is out of sync for .*: it was (fenced|shutting down)"
            with pytest.raises(ClusterTimeout, match=why):
                cluster.wait_until(isr("orders", 0) == {1, 2, 3}, "50ms")
            with pytest.raises(ClusterTimeout, match="orders-0: broker 2 is out of sync"):
                cluster.wait_until(in_sync(), "50ms")
        cluster.wait_until(in_sync(), AT_ONCE)


def test_a_client_goes_on_after_a_restart_of_its_leader() -> None:
    with Cluster(3, topics={"orders": 1}) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
        for number in range(3):
            producer.produce("orders", b"%d" % number)
            assert producer.flush(30) == 0
            cluster.broker(number + 1).restart()
        producer.produce("orders", b"3")
        assert producer.flush(30) == 0
        found = cluster.topic("orders").records(4)
        assert [each.value for each in found] == [b"0", b"1", b"2", b"3"]


def test_the_only_broker_and_all_of_three() -> None:
    for brokers in (1, 3):
        with Cluster(brokers, topics={"orders": 1}) as cluster:
            cluster.topic("orders").produce([b"one"])
            for node in cluster.brokers:
                cluster.broker(node).stop()
                cluster.broker(node).stop()
            assert all(refuses(each) for each in cluster.bootstrap.split(","))
            with pytest.raises(ClusterTimeout, match="no broker runs; broker 1 is stopped"):
                cluster.wait_until(in_sync(), "20ms")
            for node in cluster.brokers[::-1]:
                cluster.broker(node).restart()
            cluster.wait_until(in_sync(), AT_ONCE)
            cluster.wait_until(records("orders") == 1, "10s")
            with pytest.raises(ValueError, match="there is no broker 100: there are 1"):
                cluster.broker(100)


def test_files_of_a_directory_outlive_a_stopped_broker(tmp_path: Path) -> None:
    for offset in (0, 1):
        with Cluster(3, data=tmp_path / "data", topics={"orders": 1}) as cluster:
            assert cluster.topic("orders").produce([b"one"]) == [(0, offset)]
            cluster.broker(2).stop()
    assert sorted(each.name for each in (tmp_path / "data").iterdir()) == [
        "broker-1",
        "broker-2",
        "broker-3",
        "controller",
    ]


def test_a_port_that_was_taken_meanwhile_is_one_line() -> None:
    with Cluster(2, topics={"orders": 1}) as one:
        one.broker(2).stop()
        host, _, port = one.bootstrap.split(",")[1].rpartition(":")
        with socket.socket() as taker:
            taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taker.bind((host, int(port)))
            taker.listen()
            with pytest.raises(ClusterError, match=r"broker 2 does not start again: .*in use"):
                one.broker(2).restart()
        one.broker(2).restart()
        one.wait_until(in_sync(), AT_ONCE)


def test_asyncio_programs() -> None:
    async def shop() -> None:
        async with AsyncCluster(3, topics={"orders": 1}) as cluster:
            async with cluster.broker(1).stopped():
                await cluster.wait_until(isr("orders", 0) == {2, 3}, AT_ONCE)
            await cluster.broker(3).restart()
            await cluster.wait_until(in_sync(), AT_ONCE)

    asyncio.run(shop())


TRIAL = """
from twisted.internet.defer import ensureDeferred
from twisted.trial.unittest import TestCase
from twisted_broker.testing import in_sync, isr, trial

class Shop(TestCase):
    async def started(self, brokers, data=None):
        self.cluster = trial.Cluster(brokers, topics={"orders": 1}, data=data)
        await self.cluster.start()
        self.addCleanup(lambda: ensureDeferred(self.cluster.stop()))

    async def test_one_of_three(self):
        await self.started(3)
        async with self.cluster.broker(1).stopped():
            await self.cluster.wait_until(isr("orders", 0) == {2, 3}, 0)
        await self.cluster.wait_until(in_sync(), 0)
        await self.cluster.broker(2).stop()  # and left so

    async def test_the_only_one(self):
        await self.started(1)
        await self.cluster.broker(1).restart()
        await self.cluster.broker(1).stop()

    async def test_files_in_a_directory(self):
        await self.started(3, self.mktemp())
        await self.cluster.broker(2).restart()
        await self.cluster.broker(3).stop()
"""


def test_twisteds_trial(tmp_path: Path) -> None:
    """The reactor is clean afterwards, also of a broker that was stopped before."""
    passes(tmp_path, TRIAL)
