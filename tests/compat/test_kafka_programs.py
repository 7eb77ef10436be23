"""Programs of Apache Kafka's on three brokers of ours: Streams with exactly_once_v2, the copier of
Kafka's own system tests, Connect with its compacted topics. They and a broker are killed.

KAFKA_JARS: a folder of Apache Kafka 4.3's jars (`make test-java`). About three minutes.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource

from tests.compat.cluster_processes import Cluster, View
from tests.compat.kafka_processes import (
    Copier,
    JavaProcess,
    compiled,
    require,
    require_compiler,
)
from tests.compat.test_kafka_cleaner import free_port

pytestmark = [pytest.mark.clients, pytest.mark.long, pytest.mark.timeout(600)]
WAIT_SECONDS = 60
KILLS = 10
WORDS = [f"word{number}" for number in range(40)]
Row = tuple[str | None, str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require("kafka-tools")
    made = Cluster(
        tmp_path_factory.mktemp("ours"),
        group_streams_min_session_timeout_ms="6000",
        group_streams_session_timeout_ms="6000",
        group_streams_min_heartbeat_interval_ms="1000",
        group_streams_heartbeat_interval_ms="1000",
    )
    try:
        yield made.start()
    finally:
        made.end()


@pytest.fixture
def view(cluster: Cluster) -> Iterator[View]:
    yield View(cluster.bootstrap)
    cluster.make_whole()


def kill_a_broker(cluster: Cluster, view: View, number: int, topic: str) -> None:
    """It comes back when it is no longer in sync, and is in sync again at the end."""
    broker = cluster.brokers[number]
    broker.kill()
    view.until(lambda: number not in view.in_sync(topic), f"{number} is out")
    broker.start()
    view.until(lambda: number in view.in_sync(topic), f"{number} is in sync")


class Reader:
    """What read_committed sees of a topic, from its beginning."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        partitions = self._consumer.list_topics(topic, WAIT_SECONDS).topics[topic].partitions
        self._count = len(partitions)
        self._consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        self.rows: list[Row] = []

    def read(self, count: int, seconds: float = 120) -> list[Row]:
        """Until `count` rows have come, or that time has passed; then what else is there: up to
        the end of every partition.
        """
        until = time.monotonic() + seconds
        ended: set[int] = set()
        while time.monotonic() < until:
            message = self._consumer.poll(0.5)
            if message is not None and message.error() is None:
                key = message.key()
                self.rows.append((key.decode() if key else None, message.value().decode()))
                ended.discard(message.partition())
            elif message is not None:
                ended.add(message.partition())
            if len(self.rows) >= count and len(ended) == self._count:
                break
        return self.rows

    def close(self) -> None:
        self._consumer.close()


def read(bootstrap: str, topic: str, count: int) -> list[Row]:
    reader = Reader(bootstrap, topic)
    try:
        return reader.read(count)
    finally:
        reader.close()


def write(bootstrap: str, topic: str, values: list[str], partition: int = -1) -> None:
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
    producer = Producer(settings)
    where: dict[str, Any] = {} if partition < 0 else {"partition": partition}
    for value in values:
        producer.produce(topic, value.encode(), **where)
    assert producer.flush(WAIT_SECONDS) == 0


@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_streams_counts_words_exactly_once(
    cluster: Cluster, view: View, tmp_path: Path, protocol: str
) -> None:
    """Killed and started again three times, a broker once: each word has its counts 1 to n, once
    and in order. In a group of either protocol.
    """
    lines, counts = f"lines-{protocol}", f"counts-{protocol}"
    require("kafka-streams")
    require_compiler()
    for topic in (lines, counts):
        view.create(topic, 3, 3, min_insync_replicas="2")
    counting = JavaProcess(
        tmp_path / "streams", ["WordCount", cluster.bootstrap, str(tmp_path / "state"), protocol]
    )
    counting.classes = compiled("WordCount", tmp_path / "classes")
    chance, expected = random.Random(3), dict.fromkeys(WORDS, 0)

    def write_lines(count: int) -> None:
        written = [" ".join(chance.choices(WORDS, k=5)) for _ in range(count)]
        for word in " ".join(written).split():
            expected[word] += 1
        write(cluster.bootstrap, lines, written)

    reader = Reader(cluster.bootstrap, counts)
    try:
        for number in range(4):
            write_lines(400)
            counting.spawn()
            # More has been counted, and there is more to count.
            reader.read(len(reader.rows) + 100)
            write_lines(400)
            if number == 1:
                kill_a_broker(cluster, view, 2, lines)
            if number < 3:
                counting.kill()
        rows = reader.read(sum(expected.values()))
        counting.stop()
        rows = reader.read(sum(expected.values()))
    finally:
        counting.kill()
        reader.close()
    found: dict[str | None, list[int]] = defaultdict(list)
    for word, count in rows:
        found[word].append(int(count))
    assert found == {word: list(range(1, count + 1)) for word, count in expected.items()}


def test_kafkas_transactional_message_copier(cluster: Cluster, view: View, tmp_path: Path) -> None:
    """Killed ten times, and three brokers meanwhile: each record is copied once, in order."""
    count = 6_000
    for topic in ("source", "copy"):
        view.create(topic, 1, 3, min_insync_replicas="2")
    write(cluster.bootstrap, "source", [str(number) for number in range(count)], 0)
    copier = Copier(
        tmp_path / "copier",
        cluster.bootstrap,
        "source",
        "copy",
        "--transaction-size=20",
        "--use-group-metadata",
        "--enable-random-aborts",
    )
    try:
        for number in range(KILLS):
            copies = copier.progress(5)
            copier.spawn()
            view.until(copies, "it copies")
            assert not copier.has_ended()
            if number % 4 == 2:
                kill_a_broker(cluster, view, number % 3 + 1, "source")
            copier.kill()
        copied = len(read(cluster.bootstrap, "copy", 0))
        assert 0 < copied < count
        copier.spawn()
        until = time.monotonic() + 300
        while not copier.has_ended():
            assert time.monotonic() < until, copier.log_tail()
            time.sleep(0.1)
    finally:
        copier.kill()
    found = read(cluster.bootstrap, "copy", count)
    assert [value for _, value in found] == [str(number) for number in range(count)]


class Worker(JavaProcess):
    """A worker of Connect in distributed mode, by its REST interface."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        serializer = "org.apache.kafka.connect.storage.StringConverter"
        values = {
            "bootstrap.servers": bootstrap,
            "group.id": "connect",
            "key.converter": serializer,
            "value.converter": serializer,
            "exactly.once.source.support": "enabled",
            "offset.flush.interval.ms": "500",
            "offset.storage.topic": "connect-offsets",
            "offset.storage.partitions": "3",
            "config.storage.topic": "connect-configs",
            "status.storage.topic": "connect-status",
            "status.storage.partitions": "2",
            "listeners": f"http://{self.address}",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "0",
            "plugin.discovery": "service_load",
        }
        for name in ("offset", "config", "status"):
            values[f"{name}.storage.replication.factor"] = "3"
        directory.mkdir()
        properties = directory / "worker.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        name = "org.apache.kafka.connect.cli.ConnectDistributed"
        super().__init__(directory, [name, str(properties)], "384m")

    def call(self, path: str, body: object = None) -> Any:
        """GET, or PUT of a body; None: refused or not there yet."""
        connection = HTTPConnection(self.address, timeout=30)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                kind = {"Content-Type": "application/json"}
                connection.request("PUT", path, json.dumps(body), kind)
            answer = connection.getresponse()
            return json.loads(answer.read()) if answer.status < 300 else None
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()

    def runs(self, *connectors: str) -> Callable[[], bool]:
        def all_run() -> bool:
            for name in connectors:
                status = self.call(f"/connectors/{name}/status")
                if status is None or [each["state"] for each in status["tasks"]] != ["RUNNING"]:
                    return False
            return True

        return all_run


def test_connect_distributed_keeps_its_offsets(
    cluster: Cluster, view: View, tmp_path: Path
) -> None:
    """Lines of a file go into a topic in transactions, and from there into a file. The worker is
    killed, stopped, and a broker killed: connectors and offsets are kept in compacted topics,
    each line is in the topic once.
    """
    require("connect-runtime", "connect-file")
    source, target = tmp_path / "lines.txt", tmp_path / "copied.txt"
    lines = [f"line {number}" for number in range(1200)]
    view.create("from-file", 1, 3, min_insync_replicas="2")
    worker = Worker(tmp_path / "worker", cluster.bootstrap)

    def append(first: int, last: int) -> None:
        with source.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines[first:last]))

    reader = Reader(cluster.bootstrap, "from-file")

    def arrives(count: int) -> None:
        assert [value for _, value in reader.read(count)] == lines[:count], worker.log_tail()
        view.until(
            lambda: target.exists() and lines[count - 1] in target.read_text().split("\n"),
            f"{count} lines are written",
        )

    try:
        append(0, 300)
        worker.spawn()
        view.until(lambda: worker.call("/connectors") == [], "Connect answers")
        file_class = "org.apache.kafka.connect.file.FileStream"
        reads = {"connector.class": f"{file_class}SourceConnector", "topic": "from-file"}
        reads |= {"file": str(source), "tasks.max": "1"}
        writes = {"connector.class": f"{file_class}SinkConnector", "topics": "from-file"}
        writes |= {"file": str(target), "tasks.max": "1"}
        writes["consumer.override.isolation.level"] = "read_committed"
        writes["consumer.override.auto.offset.reset"] = "earliest"
        for name, config in (("reads", reads), ("writes", writes)):
            # Refused while the group of workers is being formed.
            made = partial(worker.call, f"/connectors/{name}/config", config)
            view.until(made, f"{name} is made")
        view.until(worker.runs("reads", "writes"), "both run")
        arrives(300)
        worker.kill()
        append(300, 600)
        worker.spawn()
        view.until(worker.runs("reads", "writes"), "both run after a kill")
        arrives(600)
        kill_a_broker(cluster, view, 1, "from-file")
        append(600, 900)
        arrives(900)
        worker.stop()
        written = target.read_text()
        append(900, 1200)
        worker.spawn()
        view.until(worker.runs("reads", "writes"), "both run after a stop")
        arrives(1200)
        # A clean stop committed what the sink had written.
        assert target.read_text() == written + "".join(f"{line}\n" for line in lines[900:])
        offsets = worker.call("/connectors/reads/offsets")["offsets"]
        assert [each["offset"] for each in offsets] == [{"position": source.stat().st_size}]
        assert set(worker.call("/connectors")) == {"reads", "writes"}
    finally:
        worker.kill()
        reader.close()
    for topic in ("connect-offsets", "connect-configs", "connect-status"):
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        (found,) = view.admin.describe_configs([resource]).values()
        assert found.result(WAIT_SECONDS)["cleanup.policy"].value == "compact"
