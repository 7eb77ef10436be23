"""Our broker as a member of an Apache Kafka 3.9 cluster with ZooKeeper: two Java brokers and ours.

KAFKA39_JARS: a folder of Kafka 3.9's jars and those that it needs (with `slf4j-reload4j`). One
protocol takes about a minute.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.broker_process import BrokerProcess

pytestmark = [pytest.mark.clients, pytest.mark.timeout(400)]
JARS = os.environ.get("KAFKA39_JARS", "")
OURS, TOPIC = 101, "shared"
PATIENCE_SECONDS = 90
REPLOG = Path(sys.executable).parent / "replog"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class JavaCluster:
    """ZooKeeper, and brokers 1 and 2."""

    def __init__(self, directory: Path, protocol: str) -> None:
        self.directory = directory
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.zookeeper = f"127.0.0.1:{free_port()}"
        self.bootstrap = {node: f"127.0.0.1:{free_port()}" for node in (1, 2)}
        host, _, port = self.zookeeper.partition(":")
        self._write(
            "zookeeper",
            dataDir=str(directory / "zookeeper"),
            clientPort=port,
            clientPortAddress=host,
            tickTime="500",
            **{"admin.enableServer": "false"},
        )
        for node, address in self.bootstrap.items():
            self._write(
                f"broker-{node}",
                **{
                    "broker.id": str(node),
                    "listeners": f"PLAINTEXT://{address}",
                    "log.dirs": str(self.data(node)),
                    "zookeeper.connect": self.zookeeper,
                    "zookeeper.connection.timeout.ms": "60000",
                    "inter.broker.protocol.version": protocol,
                    "offsets.topic.replication.factor": "2",
                    "offsets.topic.num.partitions": "3",
                    "group.initial.rebalance.delay.ms": "0",
                    "auto.leader.rebalance.enable": "false",
                },
            )

    def data(self, node: int) -> Path:
        return self.directory / f"data-{node}"

    def _write(self, name: str, **values: str) -> None:
        lines = [f"{key}={value}" for key, value in values.items()]
        (self.directory / f"{name}.properties").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        self._spawn("zookeeper", "org.apache.zookeeper.server.quorum.QuorumPeerMain")
        for node in self.bootstrap:
            self._spawn(f"broker-{node}", "kafka.Kafka")

    def _spawn(self, name: str, main: str) -> None:
        command = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-cp", f"{JARS}/*", main]
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*command, str(self.directory / f"{name}.properties")],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
            )

    def signal(self, node: int, number: signal.Signals) -> None:
        self.processes[f"broker-{node}"].send_signal(number)

    def stop(self, node: int) -> None:
        self.signal(node, signal.SIGTERM)
        self.processes[f"broker-{node}"].wait(PATIENCE_SECONDS)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


class View:
    """What clients of one broker see."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def partitions(self) -> list[tuple[int, list[int]]]:
        """(leader, ISR in order of id) of each partition."""
        found = self.admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
        return [(found[number].leader, sorted(found[number].isrs)) for number in sorted(found)]

    def brokers(self) -> set[int]:
        return set(self.admin.list_topics(timeout=10).brokers)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline, last = time.monotonic() + PATIENCE_SECONDS, ""
        while time.monotonic() < deadline:
            try:
                if holds():
                    return
            except KafkaException as error:
                last = str(error)
            time.sleep(0.1)
        raise TimeoutError(f"{what}; {last or self.partitions()}")

    def produce(self, count: int, acks: str = "all") -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": acks, "log_level": 0})
        failed: list[str] = []
        for number in range(count):
            producer.produce(
                TOPIC,
                b"%d" % number,
                partition=number % 2,
                on_delivery=lambda error, message: failed.append(str(error)) if error else None,
            )
        assert producer.flush(PATIENCE_SECONDS) == 0 and not failed

    def consume(self, group: str) -> int:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        consumer.subscribe([TOPIC])
        ended: set[int] = set()
        count, deadline = 0, time.monotonic() + PATIENCE_SECONDS
        while len(ended) < 2 and time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None and message.error():
                ended.add(message.partition())
            elif message is not None:
                count += 1
        consumer.commit(asynchronous=False)
        consumer.close()
        return count


@pytest.fixture(params=["3.9", "2.6"])
def java(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JavaCluster]:
    if not JARS or shutil.which("java") is None:
        pytest.skip("Apache Kafka 3.9: set KAFKA39_JARS to a folder of its jars, and have java")
    cluster = JavaCluster(tmp_path, request.param)
    cluster.start()
    yield cluster
    cluster.end()


@pytest.fixture
def ours(
    java: JavaCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[BrokerProcess]:
    settings = {
        "broker.id": str(OURS),
        "zookeeper.connect": java.zookeeper,
        "zookeeper.connection.timeout.ms": "60000",
        "zookeeper.session.timeout.ms": "6000",
        "inter.broker.protocol.version": request.node.callspec.params["java"],
        "replica.lag.time.max.ms": "2500",
        "offsets.topic.replication.factor": "2",
    }
    broker = BrokerProcess(tmp_path / "ours", settings)
    yield broker
    broker.kill()


def test_a_member_among_java_brokers(java: JavaCluster, ours: BrokerProcess) -> None:
    """RL 0.2: it follows, leads, shrinks and expands the ISR, hands over at SIGTERM, loses its
    session, is killed; at the end all directories hold the same.
    """
    first = View(java.bootstrap[1])
    first.until(lambda: first.brokers() == {1, 2}, "two Java brokers")
    ours.start()
    first.until(lambda: first.brokers() == {1, 2, OURS}, "our broker is a member")
    controller = int(first.admin.describe_cluster().result(PATIENCE_SECONDS).controller.id)
    other = 3 - controller
    view, own = View(java.bootstrap[controller]), View(ours.bootstrap)
    topic = NewTopic(
        TOPIC,
        2,
        replica_assignment=[[controller, OURS], [OURS, other]],
        config={"min.insync.replicas": "2"},
    )
    view.admin.create_topics([topic])[TOPIC].result(PATIENCE_SECONDS)
    whole = [(controller, sorted([controller, OURS])), (OURS, sorted([OURS, other]))]
    view.until(lambda: view.partitions() == whole, "we follow one partition and lead the other")
    view.produce(400)
    assert (view.consume("of-java"), own.consume("of-ours")) == (400, 400)

    def lead_again() -> None:
        in_sync = [isr for _, isr in whole]
        view.until(
            lambda: [isr for _, isr in view.partitions()] == in_sync, "our replicas are in sync"
        )
        if view.partitions() != whole:
            wanted = [TopicPartition(TOPIC, 1)]
            view.admin.elect_leaders(ElectionType.PREFERRED, wanted).result(PATIENCE_SECONDS)
        view.until(lambda: view.partitions() == whole, "we lead again")

    # SIGTERM: leadership moves before the process ends.
    ours.stop()
    assert "controlled shutdown: confirmed by the controller" in ours.log.read_text()
    assert view.partitions() == [(controller, [controller]), (other, [other])]
    ours.start()
    lead_again()

    # The ISR of what we lead: the follower is frozen for less than its session, and comes back.
    java.signal(other, signal.SIGSTOP)
    own.produce(2, acks="1")
    view.until(lambda: view.partitions()[1] == (OURS, [OURS]), "we shrank the ISR")
    java.signal(other, signal.SIGCONT)
    view.until(lambda: view.partitions() == whole, "we expanded the ISR")
    view.produce(400)

    # Killed.
    ours.kill()
    view.until(
        lambda: view.partitions() == [(controller, [controller]), (other, [other])],
        "leadership moved when our session ended",
    )
    ours.start()
    lead_again()

    # The session is lost, the process is not.
    assert ours.process is not None
    ours.process.send_signal(signal.SIGSTOP)
    view.until(lambda: OURS not in view.brokers(), "our session expired")
    ours.process.send_signal(signal.SIGCONT)
    view.until(lambda: OURS in view.brokers(), "we registered again")
    assert "the session with ZooKeeper expired" in ours.log.read_text()
    lead_again()
    view.produce(400)
    assert own.consume("again") == 1202

    ours.stop()
    java.stop(other)
    java.stop(controller)
    directories = [Path(ours.data), java.data(1), java.data(2)]
    done = subprocess.run(
        [str(REPLOG), "verify", "--replicas", *map(str, directories)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
