"""Two Java brokers of Apache Kafka 3.9 and their ZooKeeper, and what clients of them see.

KAFKA39_JARS: a folder of Kafka 3.9's jars and those that it needs (with `slf4j-reload4j`).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

JARS = os.environ.get("KAFKA39_JARS", "")
MISSING = (
    ""
    if JARS and shutil.which("java") is not None
    else "Apache Kafka 3.9: set KAFKA39_JARS to a folder of its jars, and have java"
)
OURS = 101
PATIENCE_SECONDS = 180
REPLOG = Path(sys.executable).parent / "replog"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class JavaCluster:
    """ZooKeeper, and brokers 1 and 2."""

    def __init__(self, directory: Path, protocol: str, **settings: str) -> None:
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
                    **{name.replace("_", "."): value for name, value in settings.items()},
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
            self.start_broker(node)

    def start_broker(self, node: int) -> None:
        self._spawn(f"broker-{node}", "kafka.Kafka")

    def kill(self, node: int) -> None:
        self.signal(node, signal.SIGKILL)
        self.processes[f"broker-{node}"].wait(PATIENCE_SECONDS)

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
