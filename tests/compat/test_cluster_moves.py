"""Partitions and leaders on the move in clusters of real processes: reassigned and elected under
load, read from the nearest replica.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition as KafkaPartition

from tests.compat.broker_process import BrokerProcess
from tests.compat.cluster_processes import PATIENCE_SECONDS, Cluster, View
from twisted_broker.cli.verify_replicas import verify_replicas

RACKS = {1: "north", 2: "south", 3: "south"}


class RackedCluster(Cluster):
    """Brokers in racks that send consumers to their own."""

    def new_broker(self, node_id: int, name: str = "") -> BrokerProcess:
        broker = super().new_broker(node_id, name)
        broker.settings["broker.rack"] = RACKS[node_id]
        broker.settings["replica.selector.class"] = (
            "org.apache.kafka.common.replica.RackAwareReplicaSelector"
        )
        return broker


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RackedCluster]:
    """A controller and three brokers; every test leaves them running."""
    made = RackedCluster(tmp_path_factory.mktemp("moves"))
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture
def view(cluster: RackedCluster) -> View:
    return View(cluster.bootstrap)


def place(view: View, topic: str, *replicas: list[int], **settings: str) -> None:
    """A topic whose partitions lie where they are told."""
    config = {name.replace("_", "."): value for name, value in settings.items()}
    view.admin.create_topics(
        [
            NewTopic(
                topic,
                num_partitions=len(replicas),
                replica_assignment=list(replicas),
                config=config,
            )
        ]
    )[topic].result(20)
    view.until(
        lambda: (
            [leader for leader, _ in view.partitions(topic).values()]
            == [each[0] for each in replicas]
        ),
        f"{topic} is there",
    )


def replicas_of(view: View, topic: str) -> list[list[int]]:
    found = view.admin.list_topics(topic, timeout=60).topics[topic].partitions
    return [found[number].replicas for number in sorted(found)]


def test_reassigned_under_load_nothing_is_lost(
    cluster: RackedCluster, view: View, topic: str
) -> None:
    """RL 8.5, KIP-455: leaders and followers change brokers while an idempotent producer writes;
    each record is there once, old copies go.
    """
    place(view, topic, [1, 2], [2, 3])
    mover = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        with view.producing(topic) as writer:
            view.until(writer.progress(), "records flow")
            for target in ([[3, 2], [1]], [[1, 2, 3], [3, 1, 2]]):
                mover.alter_partition_reassignments(
                    {KafkaPartition(topic, number): ids for number, ids in enumerate(target)}
                )
                view.until(
                    partial(lambda target: replicas_of(view, topic) == target, target),
                    f"replicas are {target}",
                )
                view.until(
                    partial(
                        lambda target: (
                            [isr for _, isr in view.partitions(topic).values()]
                            == [sorted(ids) for ids in target]
                        ),
                        target,
                    ),
                    "in sync",
                )
                assert not mover.list_partition_reassignments()
                view.until(writer.progress(), "records flow after it")
                if target[0] == [3, 2]:
                    view.until(
                        lambda: not (Path(cluster.brokers[1].data) / f"{topic}-0").exists(),
                        "the old copy is gone",
                    )
            elected = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
            view.admin.elect_leaders(ElectionType.PREFERRED, elected).result(20)
            view.until(lambda: view.leaders(topic) == {0: 1, 1: 3}, "the preferred ones lead")
            view.until(writer.progress(), "records flow under them")
        view.check_once(writer)
    finally:
        mover.close()
    findings = map(
        str, verify_replicas([Path(broker.data) for broker in cluster.brokers.values()]).findings
    )
    assert not [finding for finding in findings if " has " in finding]


def test_a_consumer_reads_in_its_own_rack(cluster: RackedCluster, view: View, topic: str) -> None:
    """RL 2.7, KIP-392: led in the north, a consumer of the south reads all of it from the south."""
    place(view, topic, [1, 3])
    view.until(lambda: view.in_sync(topic) == {1, 3}, "in sync")
    with view.producing(topic) as writer:
        view.until(writer.progress(), "records flow")
    told: list[int] = []

    def stats(text: str) -> None:
        partitions = json.loads(text)["topics"].get(topic, {}).get("partitions", {})
        told.extend(each["broker"] for number, each in partitions.items() if number == "0")

    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": topic,
        "client.rack": "south",
        "log_level": 0,
    }
    consumer = Consumer({**settings, "statistics.interval.ms": 50, "stats_cb": stats})
    consumer.assign([TopicPartition(topic, 0, 0)])
    missing = set(writer.acknowledged)

    def read_here() -> bool:
        missing.difference_update(
            message.value().decode()
            for message in consumer.consume(1000, 0.1)
            if message.error() is None
        )
        return not missing and 3 in told

    try:
        view.until(read_here, "all was read, from broker 3")
    finally:
        consumer.close()


def test_below_the_minimum_isr_acks_all_is_refused(
    cluster: RackedCluster, view: View, topic: str
) -> None:
    """RL 1.6: NOT_ENOUGH_REPLICAS, and nothing is written; with the replica back the same
    producer goes on.
    """
    place(view, topic, [1, 3], min_insync_replicas="2")
    view.until(lambda: view.in_sync(topic) == {1, 3}, "in sync")
    errors: list[KafkaError | None] = []
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "retries": 0, "log_level": 0}
    )

    def sent() -> KafkaError | None:
        producer.produce(topic, b"v", on_delivery=lambda error, _: errors.append(error))
        assert not producer.flush(PATIENCE_SECONDS)
        return errors[-1]

    assert sent() is None
    cluster.brokers[3].kill()
    try:
        # Of the leader itself: others may know earlier that 3 is gone.
        leader = View(cluster.brokers[1].bootstrap)
        leader.until(lambda: leader.partitions(topic)[0] == (1, [1]), "3 has left the ISR")
        refused = sent()
        assert refused is not None and refused.code() == KafkaError.NOT_ENOUGH_REPLICAS
    finally:
        cluster.brokers[3].start()
    view.until(lambda: view.in_sync(topic) == {1, 3}, "3 is back")
    assert sent() is None
    assert len(view.values(topic, {"v"})) == 2


def test_an_unclean_election_is_allowed_while_nobody_leads(
    cluster: RackedCluster, view: View, topic: str
) -> None:
    """RL 1.11, 8.3: with all in sync lost a topic has no leader, until its setting allows
    anyone; what comes back later follows that one.
    """
    place(view, topic, [1, 2])
    cluster.brokers[2].kill()
    view.until(lambda: view.partitions(topic)[0] == (1, [1]), "2 has left the ISR")
    with view.producing(topic) as writer:
        view.until(writer.progress(), "records flow that 2 does not have")
    cluster.brokers[1].kill()
    try:
        cluster.brokers[2].start()
        view.until(lambda: view.leaders(topic)[0] == -1, "nobody leads")
        allow = ConfigEntry(
            "unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[allow])
        view.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)
        view.until(lambda: view.leaders(topic)[0] == 2, "2 leads")
    finally:
        cluster.brokers[1].start()
    view.until(lambda: view.in_sync(topic) == {1, 2}, "1 follows it")
    again = View(cluster.bootstrap)
    with again.producing(topic) as writer:
        again.until(writer.progress(), "records flow")
    assert not writer.failed
    assert len(again.values(topic, set(writer.acknowledged))) >= len(writer.acknowledged)
