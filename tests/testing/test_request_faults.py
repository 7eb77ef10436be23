"""Requests of real clients that are refused, lost, left without an answer or delayed."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from twisted_broker.testing import AsyncCluster, Cluster, ClusterError, ClusterTimeout, leader
from twisted_broker.testing.request_names import names_of
from twisted_broker.wire.messages import groups, metadata, offsets, transactions
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

clients = pytest.mark.clients
SOON = {"log_level": 0, "retry.backoff.ms": 20, "reconnect.backoff.ms": 20}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(topics={"orders": 2, "payments": 1}) as made:
        yield made


def sent(producer: Producer, partition: int, topic: str = "orders") -> list[str]:
    """The outcome of one record, once it has one: `ok`, or the error's name."""
    found: list[str] = []
    producer.produce(
        topic,
        b"%d" % partition,
        partition=partition,
        on_delivery=lambda error, _: found.append("ok" if error is None else error.name()),
    )
    return found


def producer_of(cluster: Cluster, **more: Any) -> Producer:
    return Producer({"bootstrap.servers": cluster.bootstrap, **SOON, **more})


def count(cluster: Cluster, partition: int) -> int:
    return sum(each.partition == partition for each in cluster.topic("orders").records())


@clients
def test_a_refused_partition_is_not_written_and_the_rest_of_its_request_is(
    cluster: Cluster,
) -> None:
    producer = producer_of(cluster, **{"linger.ms": 100})
    fault = cluster.fail("Produce", "MESSAGE_TOO_LARGE", topic="orders", partition=1)
    outcomes = [sent(producer, 0), sent(producer, 1), sent(producer, 0, "payments")]
    assert producer.flush(10) == 0
    assert outcomes == [["ok"], ["MSG_SIZE_TOO_LARGE"], ["ok"]]
    assert (fault.hits, count(cluster, 0), count(cluster, 1)) == (1, 1, 0)
    fault.lift()
    last = sent(producer, 1)
    assert producer.flush(10) == 0
    assert last == ["ok"] and fault.hits == 1


@clients
@pytest.mark.parametrize(
    ("action", "written"),
    [("fail", 1), ("applied", 2), ("lose_request", 1), ("lose_answer", 2)],
)
def test_what_a_client_that_tries_again_has_written(
    cluster: Cluster, action: str, written: int
) -> None:
    """Once where the work was not done, twice where only the answer went: without idempotence."""
    producer = producer_of(cluster)
    if action == "applied":
        fault = cluster.fail("Produce", "REQUEST_TIMED_OUT", applied=True, times=1)
    elif action == "fail":
        fault = cluster.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=1)
    else:
        fault = getattr(cluster, action)("Produce", times=1)
    outcome = sent(producer, 0)
    assert producer.flush(10) == 0
    assert outcome == ["ok"] and fault.hits == 1 and count(cluster, 0) == written


@clients
def test_idempotence_writes_once_all_the_same(cluster: Cluster) -> None:
    producer = producer_of(cluster, **{"enable.idempotence": True})
    with cluster.lose_answer("Produce", times=1) as fault:
        outcome = sent(producer, 0)
        assert producer.flush(10) == 0
        fault.wait(1, within=0)
    assert outcome == ["ok"] and count(cluster, 0) == 1


@clients
def test_silence_delays_and_throttling(cluster: Cluster) -> None:
    producer = producer_of(cluster, **{"message.timeout.ms": 1000, "linger.ms": 0})
    with cluster.silence("Produce"):
        outcome = sent(producer, 0)
        producer.flush(10)
        assert outcome == ["_MSG_TIMED_OUT"] and count(cluster, 0) == 0
    producer = producer_of(cluster, **{"client.id": "slow"})
    for fault in (
        cluster.delay("Produce", "200ms", client_id="slow"),
        cluster.throttle("200ms", "Produce", client_id="slow"),
    ):
        with fault:
            began = time.monotonic()
            for _ in range(2):
                sent(producer, 0)
                assert producer.flush(10) == 0
            assert time.monotonic() - began > 0.2


@clients
def test_faults_of_groups_fetches_and_transactions(cluster: Cluster) -> None:
    cluster.topic("orders").produce([b"1", b"2"])
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "shop",
            "auto.offset.reset": "earliest",
            "fetch.error.backoff.ms": 20,
            **SOON,
        }
    )
    consumer.subscribe(["orders"])
    joins = cluster.fail("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS", group="shop", times=1)
    other = cluster.fail("JoinGroup", "GROUP_AUTHORIZATION_FAILED", group="bank")
    reads = cluster.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", topic="orders", times=1)
    found: list[Any] = []
    while len(found) < 2:
        message = consumer.poll(10)
        assert message is not None and message.error() is None
        found.append(message.value())
    assert sorted(found) == [b"1", b"2"]
    assert (joins.hits, other.hits, reads.hits) == (1, 0, 1)
    with cluster.fail("OffsetCommit", "OFFSET_METADATA_TOO_LARGE", topic="orders", partition=1):
        with pytest.raises(KafkaException, match="OFFSET_METADATA_TOO_LARGE"):
            consumer.commit(offsets=[TopicPartition("orders", 1, 1)], asynchronous=False)
        consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    assert cluster.group("shop").offsets == {("orders", 0): 1}
    consumer.close()
    payments = producer_of(cluster, **{"transactional.id": "t1"})
    with (
        cluster.fail(
            "InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", transactional_id="t1"
        ),
        pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ):
        payments.init_transactions(10)


@clients
def test_chances_are_drawn_under_a_seed_and_requests_skipped(cluster: Cluster) -> None:
    topic = cluster.topic("orders")
    producer = producer_of(cluster)
    draw = random.Random(7)
    drawn = sum(draw.random() < 0.5 for _ in range(10))
    for how, hits in (({"skip": 3, "times": 2}, 2), ({"probability": 0.5, "seed": 7}, drawn)):
        fault = cluster.delay("Produce", "1ms", **how)
        for _ in range(10):
            sent(producer, 0)
            assert producer.flush(10) == 0
        topic.produce([b"own requests of the test are not struck"])
        assert fault.hits == hits
        with pytest.raises(ClusterTimeout, match=f"struck {hits} requests, not 99"):
            fault.wait(99, within="20ms")
        fault.lift()


@clients
def test_a_produce_behind_one_that_timed_out_is_written() -> None:
    """What timed out is there once or twice, as with any client; what was acknowledged is."""
    settings = {"min.insync.replicas": 3}
    with Cluster(brokers=3, topics={"orders": 1}, settings=settings) as cluster:
        topic = cluster.topic("orders")
        leads = cluster.leader("orders", 0).id
        with cluster.link(leads, leads % 3 + 1).cut_off(), pytest.raises(ClusterTimeout):
            topic.produce([b"first"], within="300ms")
        for value in (b"second", b"third"):
            ((_, offset),) = topic.produce([value])
            assert {each.offset: each.value for each in topic.records()}[offset] == value


@clients
def test_wrong_names_are_refused_with_the_right_ones(cluster: Cluster) -> None:
    for strike, said in (
        (lambda: cluster.fail("Prodcue", "NONE"), "no API 'Prodcue': did you mean Produce"),
        (
            lambda: cluster.fail("Produce", "NOT_LEADER"),
            "no error 'NOT_LEADER': did you mean NOT_L",
        ),
        (lambda: cluster.silence("Produce", topik="a"), "no filter 'topik': did you mean topic"),
        (lambda: cluster.silence("Produce", partition=1), "partition=1 needs a topic"),
        (lambda: cluster.silence("Produce", probability=2), "probability is between 0 and 1"),
        (lambda: cluster.silence("Produce", probability="0.5"), "probability is a number, not"),
        (lambda: cluster.silence("Produce", broker=9), "there is no broker 9"),
        (lambda: cluster.topic("orders").records(isolation="committed"), "isolation is read_unco"),
        (lambda: cluster.silence("Produce", times=0), "times is 0: a fault strikes once or more"),
        (
            lambda: cluster.fail("Produce", "NOT_LEADER_OR_FOLLOWER", applied=True),
            "after the work no broker answers NOT_LEADER_OR_FOLLOWER, but one of",
        ),
    ):
        with pytest.raises(ClusterError, match=said):
            strike()


@clients
def test_asyncio_programs_strike_requests_as_well() -> None:
    async def shop() -> None:
        async with AsyncCluster(topics={"orders": 1}) as cluster:
            async with await cluster.lose_answer("Produce", times=1) as fault:
                producer = Producer({"bootstrap.servers": cluster.bootstrap, **SOON})
                producer.produce("orders", b"1")
                await asyncio.to_thread(producer.flush, 10)
                await fault.wait(1)
                assert await fault.hits == 1
            orders = await cluster.topic("orders")
            assert len(await orders.records()) == 2

    asyncio.run(shop())


@pytest.mark.parametrize(
    ("request_", "partitions", "named_groups", "ids"),
    [
        (
            ProduceRequest(
                transactional_id="t",
                topic_data=[
                    TopicProduceData(
                        name="a", partition_data=[PartitionProduceData(index=i) for i in (0, 2)]
                    ),
                    TopicProduceData(
                        topic_id=b"\1" * 16, partition_data=[PartitionProduceData(index=1)]
                    ),
                ],
            ),
            {("a", 0), ("a", 2), ("named", 1)},
            set(),
            {"t"},
        ),
        (
            metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="a")]),
            {("a", None)},
            set(),
            set(),
        ),
        (
            offsets.OffsetFetchRequest(
                groups=[
                    offsets.OffsetFetchRequestGroup(
                        group_id="g",
                        topics=[offsets.OffsetFetchRequestTopics(name="a", partition_indexes=[3])],
                    )
                ]
            ),
            {("a", 3)},
            {"g"},
            set(),
        ),
        (groups.DescribeGroupsRequest(groups=["g", "h"]), set(), {"g", "h"}, set()),
        (offsets.FindCoordinatorRequest(key_type=1, coordinator_keys=["t"]), set(), set(), {"t"}),
        (offsets.FindCoordinatorRequest(key_type=0, key="g"), set(), {"g"}, set()),
        (
            transactions.EndTxnRequest(transactional_id="t", producer_id=1, producer_epoch=0),
            set(),
            set(),
            {"t"},
        ),
    ],
)
def test_what_a_request_is_about(
    request_: Any, partitions: set[Any], named_groups: set[str], ids: set[str]
) -> None:
    found = names_of(request_, lambda identity: "named")
    assert found == (partitions, named_groups, ids)


@clients
def test_leaders_and_coordinators_move_and_members_are_removed() -> None:
    with Cluster(3, topics={"orders": 1}) as cluster:
        cluster.topic("orders").produce([b"1"])
        first = cluster.leader("orders", 0).id
        cluster.move_leader("orders", 0)
        moved = cluster.leader("orders", 0).id
        assert moved != first
        cluster.move_leader("orders", 0, to=first)
        cluster.wait_until(leader("orders", 0) == first, within=0)
        config = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "client.id": "till"}
        consumer = Consumer({**config, "auto.offset.reset": "earliest", **SOON})
        consumer.subscribe(["orders"])
        assert consumer.poll(10) is not None
        cluster.move_coordinator("g")
        cluster.topic("orders").produce([b"2"])
        assert consumer.poll(10) is not None
        (_member,) = cluster.group("g").members
        cluster.remove_member("g", "till")
        assert cluster.group("g").members == []
        for strike, said in (
            (lambda: cluster.move_leader("orders", 0, to=9), "broker 9 has no replica of orders-0"),
            (lambda: cluster.move_leader("orders", 5), "there is no partition orders-5"),
            (cluster.move_coordinator, "of a group, or of a transactional id"),
            (lambda: cluster.remove_member("g", "x"), "group g has no member x: its clients are"),
        ):
            with pytest.raises(ClusterError, match=said):
                strike()
        consumer.close()


def docs_faults() -> Any:
    """The program that writes FAULTS.md."""
    path = Path(__file__).parents[2] / "docs/faults.py"
    spec = importlib.util.spec_from_file_location("docs_faults", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@clients
@pytest.mark.parametrize("title", ["answer lost", "MESSAGE_TOO_LARGE"])
@pytest.mark.parametrize("is_idempotent", [False, True])
def test_the_page_of_faults_says_what_clients_do(title: str, is_idempotent: bool) -> None:
    program = docs_faults()
    page = (Path(program.__file__).with_name("FAULTS.md")).read_text().split("## With")[1:]
    line = next(
        each for each in page[is_idempotent].splitlines() if each.startswith(f"| {title} |")
    )
    row = next(each for each in program.ROWS if each.title == title)
    told = [program.cell(row, client, is_idempotent) for client in program.CLIENTS.values()]
    assert [each.strip() for each in line.split("|")[2 : 2 + len(told)]] == told
