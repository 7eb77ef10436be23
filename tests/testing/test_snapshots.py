"""A test's cluster is taken back to what it was, with clients that go on."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import CommitFailedError

from tests.testing.test_test_clusters import gone
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


def values(cluster: Cluster, at_least: int = 0) -> list[bytes | None]:
    return [each.value for each in cluster.topic("orders").records(at_least)]


def moved_on(cluster: Cluster) -> None:
    """Leaders move, records and ids come: what a restore takes back, or must not."""
    before = cluster.leader("orders", 0).id
    cluster.move_leader("orders", 0)
    cluster.move_leader("orders", 0)
    cluster.move_leader("orders", 0)
    assert cluster.leader("orders", 0).id != before
    cluster.topic("orders").produce([b"lost"])


def test_a_cluster_is_as_it_was_as_often_as_wanted() -> None:
    with Cluster(3, topics={"orders": 1}) as cluster:
        cluster.topic("orders").produce([b"kept"])
        cluster.group("shop").set_offsets({("orders", 0): 1})
        before, pid, address = cluster.snapshot(), cluster.pid, cluster.bootstrap
        for _ in range(3):
            cluster.topic("orders").produce([b"lost"])
            cluster.topic("made-since", 1).produce([b"lost"])
            cluster.group("shop").set_offsets({("orders", 0): 2})
            cluster.restore(before)
            assert gone(pid, 10.0) and cluster.pid != pid
            pid = cluster.pid
            assert values(cluster) == [b"kept"] and cluster.bootstrap == address
            assert cluster.group("shop").offsets == {("orders", 0): 1}
            assert cluster.topic("made-since", 1).records() == []
        cluster.wait_until(in_sync(), within="10s")


def test_snapshots_lead_to_each_other() -> None:
    with Cluster(topics={"orders": 1}) as cluster:
        empty = cluster.snapshot()
        cluster.topic("orders").produce([b"1"])
        one = cluster.snapshot()
        cluster.restore(empty)
        assert values(cluster) == []
        cluster.restore(one)
        assert values(cluster) == [b"1"]
        one.drop()
        with pytest.raises(ClusterError, match="was dropped"):
            cluster.restore(one)
        cluster.restore(empty)
        assert cluster.topic("orders").produce([b"2"]) == [(0, 0)]


def test_what_was_struck_since_is_whole_again() -> None:
    with Cluster(3, topics={"orders": 1}) as cluster:
        cluster.topic("orders").produce([b"1"])
        before = cluster.snapshot()
        for each in cluster.brokers:
            cluster.broker(each).kill()
        cluster.controller.freeze()
        cluster.restore(before)
        assert values(cluster) == [b"1"]
        cluster.broker(2).kill()
        cluster.clock.advance("10s")
        cluster.broker(2).restart()
        cluster.link(1, 3).cut()
        cluster.restore(before)
        for address in cluster.bootstrap.split(","):
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), 10).close()
        cluster.broker(2).kill()
        host, _, port = cluster.bootstrap.split(",")[1].rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), 10)
        cluster.clock.advance("10s")
        cluster.broker(2).restart()
        cluster.wait_until(isr("orders", 0) == {1, 2, 3}, within="10s")


def test_a_killed_broker_resets_connections_that_a_snapshot_has_seen() -> None:
    with Cluster() as cluster:
        host, _, port = cluster.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), 10) as connection:
            cluster.topic("orders", 1)  # it is accepted
            cluster.snapshot()
            cluster.broker(1).kill()
            connection.settimeout(10)
            with pytest.raises(ConnectionResetError):
                connection.recv(1)


def kafka_python(cluster: Cluster, idempotent: bool) -> Callable[[bytes], None]:
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap,
        enable_idempotence=idempotent,
        retry_backoff_ms=20,
        reconnect_backoff_ms=20,
    )
    return lambda value: producer.send("orders", value, partition=0).get(20)


def confluent(cluster: Cluster, idempotent: bool) -> Callable[[bytes], None]:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": idempotent,
            "log_level": 0,
            "message.timeout.ms": 20_000,
        }
    )

    def send(value: bytes) -> None:
        errors: list[Any] = []
        producer.produce("orders", value, partition=0, on_delivery=lambda e, _: errors.append(e))
        producer.flush(30)
        assert errors == [None]

    return send


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("client", [kafka_python, confluent])
def test_producers_of_before_go_on_where_leaders_moved(client: Any, idempotent: bool) -> None:
    with Cluster(3, topics={"orders": 1}) as cluster:
        early = client(cluster, idempotent)
        early(b"kept")
        before = cluster.snapshot()
        moved_on(cluster)
        late = client(cluster, idempotent)
        for number in range(3):
            early(b"lost early %d" % number)
            late(b"lost late %d" % number)
        cluster.restore(before)
        early(b"early")
        late(b"late")
        # It has an id that none of before has, and leads on.
        client(cluster, idempotent)(b"new")
        early(b"early again")
        assert values(cluster) == [b"kept", b"early", b"late", b"new", b"early again"]


@pytest.mark.parametrize("idempotent", [False, True])
def test_aiokafkas_producers_of_before_go_on(idempotent: bool) -> None:
    async def used() -> list[bytes | None]:
        async with AsyncCluster(3, topics={"orders": 1}) as cluster:
            how: dict[str, Any] = {"enable_idempotence": idempotent, "retry_backoff_ms": 20}
            async with (
                AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, **how) as early,
                AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, **how) as late,
            ):
                await early.send_and_wait("orders", b"kept", partition=0)
                before = await cluster.snapshot()
                for _ in range(3):
                    await cluster.move_leader("orders", 0)
                    await early.send_and_wait("orders", b"lost", partition=0)
                    await late.send_and_wait("orders", b"lost", partition=0)
                pid = cluster.pid
                await cluster.restore(before)
                assert cluster.pid != pid
                await early.send_and_wait("orders", b"early", partition=0)
                await late.send_and_wait("orders", b"late", partition=0)
                await before.drop()
            return [each.value for each in await (await cluster.topic("orders")).records()]

    assert asyncio.run(used()) == [b"kept", b"early", b"late"]


def confluents_new_consumer(cluster: Cluster) -> Callable[[], bytes]:
    return confluents_consumer(cluster, "consumer")


def confluents_consumer(cluster: Cluster, protocol: str = "classic") -> Callable[[], bytes]:
    consumer = Consumer(
        {
            "group.protocol": protocol,
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "shop",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe(["orders"])

    def read() -> bytes:
        while True:
            found = consumer.poll(30)
            assert found is not None
            if not found.error():
                with suppress(KafkaException):  # it is out of its group, and joins again
                    consumer.commit(message=found, asynchronous=False)
                return bytes(found.value())

    return read


def kafka_pythons_consumer(cluster: Cluster) -> Callable[[], bytes]:
    consumer = KafkaConsumer(
        "orders",
        bootstrap_servers=cluster.bootstrap,
        group_id="shop",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=30_000,
        heartbeat_interval_ms=200,
        reconnect_backoff_ms=20,
        retry_backoff_ms=20,
    )

    def read() -> bytes:
        found = bytes(next(consumer).value)
        with suppress(CommitFailedError):  # it is out of its group, and joins again
            consumer.commit()
        return found

    return read


@pytest.mark.parametrize(
    "client", [confluents_consumer, confluents_new_consumer, kafka_pythons_consumer]
)
def test_consumers_of_before_go_on_where_leaders_moved(client: Any) -> None:
    with Cluster(3, topics={"orders": 1}) as cluster:
        cluster.topic("orders").produce([b"kept"])
        read = client(cluster)
        assert read() == b"kept"
        before = cluster.snapshot()
        moved_on(cluster)
        cluster.move_coordinator("shop")
        assert read() == b"lost"
        cluster.restore(before)
        # The members of before are gone, and join again.
        cluster.topic("orders").produce([b"next"])
        assert read() == b"next"
        cluster.topic("orders").produce([b"last"])
        assert read() in (b"next", b"last")
        cluster.wait_until(group("shop").members == 1, within="10s")


def test_aiokafkas_consumer_of_before_goes_on() -> None:
    async def used() -> None:
        async with AsyncCluster(3, topics={"orders": 1}) as cluster:
            orders = await cluster.topic("orders")
            await orders.produce([b"kept"])
            async with AIOKafkaConsumer(
                "orders",
                bootstrap_servers=cluster.bootstrap,
                group_id="shop",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=200,
                retry_backoff_ms=20,
            ) as consumer:
                assert (await asyncio.wait_for(consumer.getone(), 30)).value == b"kept"
                await consumer.commit()
                before = await cluster.snapshot()
                await cluster.move_leader("orders", 0)
                await orders.produce([b"lost"])
                assert (await asyncio.wait_for(consumer.getone(), 30)).value == b"lost"
                await cluster.restore(before)
                await orders.produce([b"next"])
                assert (await asyncio.wait_for(consumer.getone(), 30)).value == b"next"

    asyncio.run(used())


def transactional(cluster: Cluster, name: str) -> Producer:
    made = Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "log_level": 0}
    )
    made.init_transactions(30)
    return made


def in_transaction(producer: Producer, value: bytes) -> None:
    producer.begin_transaction()
    producer.produce("orders", value, partition=0)
    producer.commit_transaction(30)


@pytest.mark.parametrize("moves", [False, True])
def test_transactional_producers_of_before_go_on(moves: bool) -> None:
    with Cluster(3, topics={"orders": 1}) as cluster:
        early = transactional(cluster, "early")
        in_transaction(early, b"kept")
        open_then = transactional(cluster, "open")
        open_then.begin_transaction()
        open_then.produce("orders", b"never", partition=0)
        open_then.flush(30)
        before = cluster.snapshot()
        if moves:
            moved_on(cluster)
            cluster.move_coordinator(transactional_id="early")
        late = transactional(cluster, "late")
        for number in range(3):
            in_transaction(early, b"lost %d" % number)
            in_transaction(late, b"lost %d" % number)
        cluster.restore(before)
        in_transaction(early, b"early")
        in_transaction(late, b"late")
        in_transaction(transactional(cluster, "open"), b"new")
        found = cluster.topic("orders").records(at_least=4, isolation="read_committed")
        assert [each.value for each in found] == [b"kept", b"early", b"late", b"new"]


def test_half_a_transaction_is_not_committed() -> None:
    with Cluster(topics={"orders": 1}) as cluster:
        producer = transactional(cluster, "t")
        before = cluster.snapshot()
        producer.begin_transaction()
        producer.produce("orders", b"first half", partition=0)
        producer.flush(30)
        cluster.restore(before)
        producer.produce("orders", b"second half", partition=0)
        with pytest.raises(Exception, match=r"_FENCED|PRODUCER|TRANSACTION|_STATE|INVALID"):
            producer.commit_transaction(30)
        in_transaction(transactional(cluster, "t"), b"whole")
        found = cluster.topic("orders").records(at_least=1, isolation="read_committed")
        assert [each.value for each in found] == [b"whole"]


def test_what_cannot_be_kept_is_one_line(tmp_path: Path) -> None:
    with Cluster(3) as cluster:
        cluster.broker(2).freeze()
        with pytest.raises(ClusterError, match=r"^broker 2 is frozen: a snapshot"):
            cluster.snapshot()
        cluster.broker(2).thaw()
        with cluster.link(1, 2).cut_off(), pytest.raises(ClusterError, match=r"^the link of"):
            cluster.snapshot()
    with Cluster(data=tmp_path / "data") as cluster:
        with pytest.raises(ClusterError, match=r"^with data= the files are the system's"):
            cluster.snapshot()
        with pytest.raises(ClusterError, match=r"^with data= the files are there"):
            cluster.save(tmp_path / "other")


def test_resets_leave_nothing() -> None:
    with Cluster(3, topics={"orders": 1}) as cluster:
        cluster.topic("orders").produce([b"1"])
        before = cluster.snapshot()
        own = psutil.Process()
        (template,) = (each for each in own.children() if "template" in "".join(each.cmdline()))

        def state() -> tuple[int, int, float]:
            alive = psutil.Process(cluster.pid)
            return (
                len(template.children(recursive=True)),
                alive.num_fds(),
                alive.memory_full_info().uss / 1e6,
            )

        cluster.restore(before)
        # The process that it was taken of has ended: what this one leaves is the template's.
        assert psutil.Process(psutil.Process(cluster.pid).ppid()).ppid() == template.pid
        first = state()
        for _ in range(50):
            cluster.restore(before)
        other = cluster.snapshot()
        other.drop()
        end = time.monotonic() + 10
        while (last := state())[:2] != first[:2]:  # those that were told to end are ending
            assert time.monotonic() < end, (first, last)
            time.sleep(0.01)
        assert last[2] < first[2] + 5
        pids = [each.pid for each in template.children(recursive=True)] + [cluster.pid]
    assert all(gone(each, 10.0) for each in pids if each != os.getpid())


def test_a_clock_goes_on_from_where_it_was() -> None:
    with Cluster(3, topics={"orders": 1}) as cluster:
        before = cluster.snapshot()
        cluster.clock.advance("20s")
        cluster.restore(before)
        cluster.topic("orders").produce([b"1"])
        cluster.leader("orders", 0).kill()
        cluster.clock.advance("10s")
        cluster.wait_until(~(leader("orders", 0) == None), within="10s")  # noqa: E711


def test_files_are_saved_and_gone_on_with(tmp_path: Path) -> None:
    home = tmp_path / "golden"
    few = {"offsets.topic.num.partitions": 1}
    with Cluster(3, few, topics={"orders": 2}) as cluster:
        cluster.topic("orders").produce([b"1", b"2", b"3"])
        cluster.group("shop").set_offsets({("orders", 0): 1})
        cluster.save(home)
        cluster.topic("orders").produce([b"4"])
        with pytest.raises(ClusterError, match="is not empty: name a directory that is new"):
            cluster.save(home)
    with Cluster(3, few, data=home) as cluster:
        assert sorted(values(cluster, 3)) == [b"1", b"2", b"3"]  # type: ignore[type-var]
        assert cluster.group("shop").offsets == {("orders", 0): 1}
        cluster.wait_until(in_sync(), within="20s")
