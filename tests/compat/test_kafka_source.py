"""Apache Kafka 3.9 and 4.3 as what `replog mirror` and `twisted_broker.consumer` read from.

KAFKA39_JARS, KAFKA_JARS: folders of their jars (`make test-java`). Half a minute each.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.compat.conftest import BrokerFactory
from tests.compat.test_kafka_cleaner import free_port
from tests.compat.test_mirror import mirror_killed_three_times

PATIENCE_SECONDS = 120.0
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


class JavaSource:
    """One node of Apache Kafka, broker and controller."""

    def __init__(self, jars: str, directory: Path) -> None:
        directory.mkdir()
        self.jars, self.directory, self.data = jars, directory, directory / "data"
        self.bootstrap, controller = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.process: subprocess.Popen[bytes] | None = None
        values = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data),
            "log.segment.bytes": "1048576",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        lines = "".join(f"{name}={value}\n" for name, value in values.items())
        (directory / "server.properties").write_text(lines)
        format_it = ["kafka.tools.StorageTool", "format", "-t", "c291cmNlLWNsdXN0ZXIxMQ", "-c"]
        formatted = self._java(*format_it)
        assert formatted.wait(PATIENCE_SECONDS) == 0, (directory / "log").read_text()

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-cp", f"{self.jars}/*", *arguments]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [*command, str(self.directory / "server.properties")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
            )

    def start(self) -> None:
        self.process = self._java("kafka.Kafka")
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                if admin.list_topics(timeout=5).brokers:
                    return
            except KafkaException:
                assert self.process.poll() is None, (self.directory / "log").read_text()
                assert time.monotonic() < deadline, "it does not serve"

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_SECONDS) in (0, 143)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module", params=["KAFKA39_JARS", "KAFKA_JARS"])
def source(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaSource]:
    jars = os.environ.get(request.param, "")
    if not jars or shutil.which("java") is None:
        pytest.skip(f"Apache Kafka: set {request.param} to a folder of its jars, and have java")
    made = JavaSource(jars, tmp_path_factory.mktemp("source") / "java")
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_a_dozen_lines_consume_while_partitions_are_added(source: JavaSource) -> None:
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
    source: JavaSource, new_broker: BrokerFactory, tmp_path: Path
) -> None:
    """No gap, no duplicate: the directories are the same, leader epochs aside. Stops it: last."""
    target = new_broker()
    target.start()
    mirror_killed_three_times(source, target, tmp_path)
