"""Programs of Apache Kafka as processes, of 4.3 where nothing else is said: nodes, tools, programs
of Java; and a cluster of Java's controller, two Java brokers and one of ours.

KAFKA_JARS: the folder of Kafka's jars (`libs` of its distribution). KAFKA39_JARS: of Kafka 3.9's,
and those that it needs (with `slf4j-reload4j`).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import NewTopic
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition as KafkaPartition

from tests.compat.broker_process import BrokerProcess
from tests.compat.cluster_processes import SESSION_MS, View
from tests.compat.test_kafka_cleaner import free_port

JARS, JARS39 = os.environ.get("KAFKA_JARS", ""), os.environ.get("KAFKA39_JARS", "")
SOURCES = Path(__file__).parent / "java"
PATIENCE_SECONDS = 100
CONTROLLER, OURS = 100, 3
JAVA = (1, 2)
CLUSTER_ID = "bWl4ZWQtY2x1c3Rlci0xMQ"
TAIL_BYTES = 6000


def require(*jars: str) -> None:
    """Skips where Java or one of Kafka's jars (by the beginning of its name) is not there."""
    if not JARS or shutil.which("java") is None:
        pytest.skip("Apache Kafka 4.3: set KAFKA_JARS to a folder of its jars, and have java")
    for jar in jars:
        if not list(Path(JARS).glob(f"{jar}-4.*.jar")):
            pytest.skip(f"Apache Kafka 4.3: {jar} is not in KAFKA_JARS")


def require_compiler() -> None:
    if shutil.which("javac") is None:
        pytest.skip("a Java program of these tests: needs javac (a JDK)")


def require39() -> None:
    """Skips where Java or Kafka 3.9's jars are not there."""
    if not JARS39 or shutil.which("java") is None:
        pytest.skip("Apache Kafka 3.9: set KAFKA39_JARS to a folder of its jars, and have java")


def java(
    *arguments: str, memory: str = "256m", classes: Path | None = None, jars: str = JARS
) -> list[str]:
    """The command; `classes`: a folder of compiled classes beside Kafka's jars."""
    path = f"{jars}/*" if classes is None else f"{classes}:{jars}/*"
    options = [f"-Xmx{memory}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return ["java", *options, "-cp", path, *arguments]


def compiled(name: str, directory: Path, jars: str = JARS) -> Path:
    """The folder of the classes of `java/NAME.java`."""
    command = ["javac", "-cp", f"{jars}/*", "-d", str(directory), str(SOURCES / f"{name}.java")]
    subprocess.run(command, check=True, timeout=PATIENCE_SECONDS)
    return directory


def tool(name: str, *arguments: str, jars: str = JARS) -> str:
    """What a tool of Kafka's prints."""
    done = subprocess.run(
        java(name, *arguments, jars=jars), capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    return done.stdout


class Member(Protocol):
    """A broker of a cluster, Java's or ours."""

    process: subprocess.Popen[bytes] | None
    bootstrap: str
    data: str

    def kill(self) -> object: ...
    def stop(self) -> object: ...
    def spawn(self, wait: bool = True) -> None: ...
    def log_tail(self) -> str: ...


class JavaProcess:
    """A Java program that runs until it ends or is killed; `log` has what it prints."""

    def __init__(
        self, directory: Path, arguments: list[str], memory: str = "256m", jars: str = JARS
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.log = directory, directory / "log"
        self.arguments, self.memory, self.jars = arguments, memory, jars
        self.classes: Path | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self, wait: bool = True) -> None:
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                java(*self.arguments, memory=self.memory, classes=self.classes, jars=self.jars),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
            )

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def stop(self) -> None:
        self.end(signal.SIGTERM)

    def end(self, number: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise TimeoutError(f"no end after {number.name}\n{self.log_tail()}") from None

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-TAIL_BYTES:] if self.log.exists() else ""


class JavaNode(JavaProcess):
    """A node of Apache Kafka; `values` are its settings, its first listener is the clients'."""

    def __init__(self, directory: Path, values: dict[str, str], jars: str = JARS) -> None:
        self.properties = directory / "server.properties"
        self.data = str(directory / "data")
        self.bootstrap = values["listeners"].partition("//")[2].partition(",")[0]
        super().__init__(directory, ["kafka.Kafka", str(self.properties)], "384m", jars)
        self.values: dict[str, str] = {}
        self.set(values | {"log.dirs": self.data})

    def set(self, values: dict[str, str]) -> None:
        """Settings, from its next start on."""
        self.values |= values
        lines = (f"{key}={value}\n" for key, value in self.values.items())
        self.properties.write_text("".join(lines))

    def format(self) -> None:
        """With the features that are Kafka's defaults."""
        said = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self.properties)]
        done = subprocess.run(
            java(*said, jars=self.jars), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def format_a_broker(self) -> None:
        """As the tool does, without the seconds that it takes."""
        Path(self.data).mkdir()
        (Path(self.data) / "meta.properties").write_text(
            f"version=1\ncluster.id={CLUSTER_ID}\nnode.id={self.values['node.id']}\n"
        )


class MixedCluster:
    """A controller of Java's, brokers 1 and 2 of Java's, and 3 of ours."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        address = f"127.0.0.1:{free_port()}"
        shared = {
            "controller.quorum.voters": f"{CONTROLLER}@{address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "broker.session.timeout.ms": str(SESSION_MS),
            "broker.heartbeat.interval.ms": "400",
            "auto.leader.rebalance.enable": "false",
            "num.partitions": "1",
        }
        internal = {
            "offsets.topic.replication.factor": "3",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.num.partitions": "3",
            "transaction.state.log.min.isr": "2",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
            "replica.fetch.backoff.ms": "200",
            "replica.lag.time.max.ms": "4000",
            "min.insync.replicas": "2",
            "group.initial.rebalance.delay.ms": "0",
        }
        role = {"process.roles": "controller", "node.id": str(CONTROLLER)}
        self.controller = JavaNode(
            directory / "controller",
            shared | internal | role | {"listeners": f"CONTROLLER://{address}"},
        )
        self.brokers: dict[int, Member] = {}
        for number in JAVA:
            listener = {"listeners": f"PLAINTEXT://127.0.0.1:{free_port()}"}
            role = {"process.roles": "broker", "node.id": str(number)}
            self.brokers[number] = JavaNode(
                directory / f"broker-{number}", shared | internal | role | listener
            )
        port = free_port()
        settings = internal | {
            "process.roles": "broker",
            "node.id": str(OURS),
            "controller.quorum.bootstrap.servers": address,
            "broker.heartbeat.interval.ms": "400",
        }
        ours = BrokerProcess(directory / f"broker-{OURS}", settings, port=port)
        ours.bootstrap = f"127.0.0.1:{port}"
        self.brokers[OURS] = self.ours = ours

    def start(self) -> MixedCluster:
        self.controller.format()
        self.controller.spawn()
        for number in JAVA:
            node = self.brokers[number]
            assert isinstance(node, JavaNode)
            node.format_a_broker()
            node.spawn()
        self.ours.spawn(wait=False)
        self.view = View(self.bootstrap)
        self.view.until(self.all_serve, "all brokers serve")
        return self

    def all_serve(self) -> bool:
        """Whether the controller has unfenced all that run."""
        for node in (self.controller, *self.brokers.values()):
            assert node.process is None or node.process.poll() is None, node.log_tail()
        running = {number for number, node in self.brokers.items() if node.process is not None}
        return set(self.view.admin.list_topics(timeout=5).brokers) == running

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.brokers.values())

    def of(self, *numbers: int) -> str:
        return ",".join(self.brokers[number].bootstrap for number in numbers)

    def place(self, topic: str, *replicas: list[int]) -> None:
        """A topic whose partitions have these replicas, the first one leads."""
        made = NewTopic(topic, num_partitions=len(replicas), replica_assignment=list(replicas))
        self.view.admin.create_topics([made])[topic].result(PATIENCE_SECONDS)
        self.view.until(
            lambda: list(self.view.leaders(topic).values()) == [each[0] for each in replicas],
            f"{topic} is there",
        )

    def lead(self, topic: str, partition: int, number: int) -> None:
        """Moves the leader there, as `kafka-reassign-partitions` and `kafka-leader-election` do."""
        order = [number, *(each for each in (*JAVA, OURS) if each != number)]
        mover = KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","))
        try:
            mover.alter_partition_reassignments({KafkaPartition(topic, partition): order})
        finally:
            mover.close()

        def is_ordered() -> bool:
            found = self.view.admin.list_topics(topic, timeout=10).topics[topic].partitions
            return found[partition].replicas == order

        self.view.until(is_ordered, f"{number} is the preferred leader")
        self.view.until(lambda: self.are_in_sync(topic), "all are in sync")
        self.prefer(topic, [partition])
        self.view.until(
            lambda: self.view.leaders(topic)[partition] == number, f"{number} leads {topic}"
        )

    def are_in_sync(self, topic: str) -> bool:
        return self.view.in_sync(topic) == {*JAVA, OURS}

    def is_out(self, number: int, topic: str) -> bool:
        """Of the ISR of a partition of that topic."""
        return number not in self.view.in_sync(topic)

    def prefer(self, topic: str, partitions: list[int]) -> None:
        """A preferred election. librdkafka's may fail with a connection to one that was killed."""
        chosen = [TopicPartition(topic, each) for each in partitions]

        def elected() -> bool:
            self.view.admin.elect_leaders(ElectionType.PREFERRED, chosen).result(PATIENCE_SECONDS)
            return True

        self.view.until(elected, f"preferred leaders of {topic}")

    def end(self) -> None:
        for node in (*self.brokers.values(), self.controller):
            node.kill()

    def log_tail(self) -> str:
        return "\n".join(
            f"--- {number}\n{node.log_tail()}"
            for number, node in ((CONTROLLER, self.controller), *self.brokers.items())
        )


class Copier(JavaProcess):
    """Kafka's TransactionalMessageCopier: copies what partition 0 of a topic has when it starts,
    from where its group is, in transactions with their offsets. It is killed and started again
    under the same transactional id.
    """

    def __init__(
        self, directory: Path, bootstrap: str, source: str, target: str, *more: str
    ) -> None:
        arguments = {
            "--broker-list": bootstrap,
            "--input-topic": source,
            "--input-partition": "0",
            "--output-topic": target,
            "--consumer-group": f"copier of {source}",
            "--transactional-id": f"copier-of-{source}",
            "--transaction-timeout": "10000",
        }
        words = [word for pair in arguments.items() for word in pair]
        super().__init__(
            directory, ["org.apache.kafka.tools.TransactionalMessageCopier", *words, *more]
        )
        self.failures: list[int] = []

    def _lines(self) -> int:
        """It prints one for each transaction."""
        if not self.log.exists():
            return 0
        return self.log.read_text(errors="replace").count('"remaining"')

    def progress(self, transactions: int = 1) -> Callable[[], bool]:
        """A condition: it has done so many more than when this was called."""
        wanted = self._lines() + transactions
        return lambda: self._lines() >= wanted

    def has_ended(self) -> bool:
        """At the end of its input. One that gave up is started again."""
        assert self.process is not None
        status = self.process.poll()
        if status:
            self.failures.append(status)
            assert len(self.failures) < 20, self.log_tail()
            self.spawn()
        return status == 0


class Transactor:
    """A transactional producer of Java's that is given its steps one by one."""

    def __init__(self, classes: Path, directory: Path, bootstrap: str, name: str) -> None:
        self._log = (directory / f"{name}.log").open("wb")
        self._process = subprocess.Popen(
            java("Transactor", bootstrap, name, classes=classes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def answer(self, *words: object) -> str:
        """`ok`, or the exception."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("= "):
                return line[2:].strip()
        raise AssertionError(f"the producer ended at {words}")

    def do(self, *words: object) -> None:
        assert (answered := self.answer(*words)) == "ok", (words, answered)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


@contextmanager
def transactors(
    classes: Path, directory: Path, bootstrap: str
) -> Iterator[Callable[[str], Transactor]]:
    """Makes producers, ended at the end."""
    made: list[Transactor] = []

    def make(name: str) -> Transactor:
        made.append(Transactor(classes, directory, bootstrap, name))
        made[-1].do("init")
        return made[-1]

    try:
        yield make
    finally:
        for each in made:
            each.end()
