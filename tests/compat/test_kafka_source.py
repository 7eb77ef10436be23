"""Apache Kafka 3.9, with ZooKeeper and without, and 4.3 as what `replog mirror` and
`twisted_broker.consumer` read from.

KAFKA39_JARS, KAFKA_JARS: see `kafka_processes.py` (`make test-java`). Half a minute each.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.compat.cluster_processes import View
from tests.compat.conftest import BrokerFactory
from tests.compat.kafka_processes import (
    JARS,
    JARS39,
    JAVA,
    JavaNode,
    MixedCluster,
    require,
    require39,
)
from tests.compat.test_consumer import Member
from tests.compat.test_kafka_cleaner import free_port
from tests.compat.test_kafka_tools import tool
from tests.compat.test_mirror import mirror_killed_three_times
from tests.compat.zookeeper_cluster import JavaCluster

PATIENCE_SECONDS = 120.0
SETTINGS = {
    "log.segment.bytes": "1048576",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
CONSUMER = """
import sys
from twisted.internet.task import react
from twisted_broker.consumer import ConsumerConnector

async def main(reactor):
    settings = {"bootstrap.servers": sys.argv[1], "group.id": "readers",
                "auto.offset.reset": "smallest", "metadata.max.age.ms": 500}
    consumer = ConsumerConnector(settings)
    streams = await consumer.create_message_streams({"words": 1}, value_decoder=bytes.decode)
    left = int(sys.argv[2])
    async for message in streams["words"][0]:
        print(message.partition, message.offset, message.value, flush=True)
        left -= 1
        if not left:
            await consumer.shutdown()

react(main)
"""


KINDS = ("3.9", "3.9 with ZooKeeper", "2.6 with ZooKeeper", "4.3")
"""Kafka's version, or its inter-broker protocol: at 2.6 topics have no ids."""


def one_node(directory: Path, jars: str) -> JavaNode:
    """Broker and controller."""
    address, controller = (f"127.0.0.1:{free_port()}" for _ in range(2))
    node = JavaNode(
        directory,
        SETTINGS
        | {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        },
        jars,
    )
    node.format()
    return node


@pytest.fixture(scope="module", params=KINDS)
def source(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaNode]:
    """Serves."""
    version, _, zookeeper = request.param.partition(" ")
    if version == "4.3":
        require()
    else:
        require39()
    directory = tmp_path_factory.mktemp("source")
    cluster: JavaCluster | JavaNode
    if zookeeper:
        cluster = JavaCluster(directory, version, [1], **SETTINGS)
        node = cluster.nodes[1]
    else:
        cluster = node = one_node(directory / "java", JARS if version == "4.3" else JARS39)
    try:
        if isinstance(cluster, JavaCluster):
            cluster.start()
        else:
            node.spawn()
        view = View(node.bootstrap)
        view.until(lambda: bool(view.admin.list_topics(timeout=5).brokers), "it serves")
        yield node
    finally:
        if isinstance(cluster, JavaCluster):
            cluster.end()
        else:
            node.kill()


def test_a_dozen_lines_consume_while_partitions_are_added(source: JavaNode) -> None:
    """Nothing is skipped, nothing comes twice, in order, out of five partitions of which two came
    while the stream ran.
    """
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    admin.create_topics([NewTopic("words", 3, 1)])["words"].result(30)
    producer = Producer({"bootstrap.servers": source.bootstrap, "compression.type": "zstd"})
    count = 6000
    reading = subprocess.Popen(
        [sys.executable, "-c", CONSUMER, source.bootstrap, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        for number in range(count // 2):
            producer.produce("words", b"%d" % number, partition=number % 3)
        assert producer.flush(60) == 0
        assert reading.stdout is not None
        lines = [reading.stdout.readline()]
        admin.create_partitions([NewPartitions("words", 5)])["words"].result(30)
        producer = Producer({"bootstrap.servers": source.bootstrap})
        for number in range(count // 2, count):
            producer.produce("words", b"%d" % number, partition=number % 5)
        assert producer.flush(60) == 0
        lines += reading.stdout.read().splitlines()
        assert reading.wait(PATIENCE_SECONDS) == 0
    finally:
        reading.kill()
        reading.wait()
    ends = dict.fromkeys(range(5), 0)
    values = []
    for line in lines:
        partition, offset, value = map(int, line.split())
        assert offset == ends[partition]
        ends[partition] += 1
        values.append(value)
    assert sorted(values) == list(range(count))


def test_a_mirror_of_it_is_killed_three_times_under_load(
    source: JavaNode, new_broker: BrokerFactory, tmp_path: Path
) -> None:
    """No gap, no duplicate: the directories are the same, leader epochs aside. Stops it: last."""
    require()  # its kafka-dump-log
    target = new_broker()
    target.start()
    mirror_killed_three_times(source, target, tmp_path)
    told = tool(
        f"{JARS}/*",
        "org.apache.kafka.tools.DumpLogSegments",
        "--deep-iteration",
        "--files",
        ",".join(str(path) for path in Path(target.data).glob("events-*/*.log")),
    )
    assert re.search(r"^\| offset: ", told, re.M)
    assert not re.search(r"isvalid: false|corrupt|mismatch|non-consecutive", told, re.I)


@pytest.mark.timeout(400)
def test_streams_go_on_while_leaders_move_and_brokers_die(tmp_path: Path) -> None:
    """Two Java brokers (with the group's coordinator among them) and one of ours, each Java broker
    killed once: nothing is skipped, nothing comes twice, in order.
    """
    require()
    cluster = MixedCluster(tmp_path)
    member: Member | None = None
    try:
        view = cluster.start().view
        cluster.place("events", [1, 2, 3], [2, 1, 3], [1, 3, 2])
        member = Member(cluster.bootstrap, "events", "readers")
        read = member.read
        with view.producing("events") as writer:
            for number in JAVA:
                view.until(lambda: cluster.are_in_sync("events"), "all are in sync")
                cluster.lead("events", 2, number)
                cluster.brokers[number].kill()
                view.until(partial(cluster.is_out, number, "events"), f"{number} is out")
                view.until(writer.progress(), "records are acknowledged")
                view.until(member.progress(), "records are read")
                cluster.brokers[number].spawn()
        assert not writer.failed
        view.until(lambda: len(read) >= len(writer.acknowledged), "all is read")
        assert not member.others, "".join(member.others)
    finally:
        if member is not None:
            member.stop()
        cluster.end()
    for partition in range(3):
        offsets = [offset for number, offset in read if number == partition]
        assert offsets == list(range(len(offsets))), partition
    assert len(read) == len(writer.acknowledged)
