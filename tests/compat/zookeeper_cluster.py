"""Java brokers of Apache Kafka 3.9 and their ZooKeeper, and what clients of them see.

KAFKA39_JARS: see `kafka_processes.py`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.compat.kafka_processes import JARS39, JavaNode, JavaProcess
from tests.compat.test_kafka_cleaner import free_port

OURS = 101
PATIENCE_SECONDS = 180
REPLOG = Path(sys.executable).parent / "replog"


class JavaCluster:
    """ZooKeeper, and brokers 1 and 2 or those of `nodes`."""

    def __init__(
        self, directory: Path, protocol: str, nodes: Sequence[int] = (1, 2), **settings: str
    ) -> None:
        self.zookeeper = f"127.0.0.1:{free_port()}"
        host, _, port = self.zookeeper.partition(":")
        ensemble = {
            "dataDir": str(directory / "zookeeper" / "data"),
            "clientPort": port,
            "clientPortAddress": host,
            "tickTime": "500",
            "admin.enableServer": "false",
        }
        properties = directory / "zookeeper.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in ensemble.items()))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._ensemble = JavaProcess(
            directory / "zookeeper", [main, str(properties)], "384m", JARS39
        )
        self.nodes = {
            node: JavaNode(
                directory / f"broker-{node}",
                {
                    "broker.id": str(node),
                    "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
                    "zookeeper.connect": self.zookeeper,
                    "zookeeper.connection.timeout.ms": "60000",
                    "inter.broker.protocol.version": protocol,
                    "offsets.topic.replication.factor": str(min(2, len(nodes))),
                    "offsets.topic.num.partitions": "3",
                    "group.initial.rebalance.delay.ms": "0",
                    "auto.leader.rebalance.enable": "false",
                    **{name.replace("_", "."): value for name, value in settings.items()},
                },
                JARS39,
            )
            for node in nodes
        }
        self.bootstrap = {node: each.bootstrap for node, each in self.nodes.items()}

    def data(self, node: int) -> Path:
        return Path(self.nodes[node].data)

    def start(self) -> None:
        self._ensemble.spawn()
        for node in self.nodes:
            self.start_broker(node)

    def start_broker(self, node: int) -> None:
        self.nodes[node].spawn()

    def kill(self, node: int) -> None:
        self.nodes[node].kill()

    def signal(self, node: int, number: signal.Signals) -> None:
        process = self.nodes[node].process
        assert process is not None
        process.send_signal(number)

    def stop(self, node: int) -> None:
        self.nodes[node].stop()

    def end(self) -> None:
        for each in (*self.nodes.values(), self._ensemble):
            each.kill()


class View:
    """What clients of one broker see of one topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def partitions(self) -> list[tuple[int, list[int]]]:
        """(leader, ISR in order of id) of each partition."""
        found = self.admin.list_topics(self.topic, timeout=10).topics[self.topic].partitions
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
                self.topic,
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
        consumer.subscribe([self.topic])
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


def differences(directories: list[Path]) -> str:
    """What `replog verify --replicas` says where they are not equal; "" where they are."""
    done = subprocess.run(
        [str(REPLOG), "verify", "--replicas", *map(str, directories)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr
