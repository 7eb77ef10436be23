"""Apache Kafka's own tools over our files and our port.

KAFKA_HOME (a distribution) or KAFKA_JARS (a folder of its jars) says where they are.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.compat import clients, raw, transactional
from tests.compat.broker_process import BrokerProcess
from tests.compat.conftest import BrokerFactory
from tests.compat.test_restart import free_port
from twisted_broker.cli.verify import verify_directory
from twisted_broker.testing import Cluster
from twisted_broker.wire.records import BatchBuilder

LIMIT_SECONDS = 90


@pytest.fixture(scope="module")
def jars() -> str:
    """The class path, or a skip."""
    home, folder = os.environ.get("KAFKA_HOME"), os.environ.get("KAFKA_JARS")
    if not (home or folder) or shutil.which("java") is None:
        pytest.skip("Apache Kafka's tools: set KAFKA_HOME or KAFKA_JARS, and have java")
    return f"{folder or Path(str(home)) / 'libs'}/*"


def tool(jars: str, name: str, *arguments: str, text: str | None = None) -> str:
    """What it prints; `text` is its input."""
    command = [
        "java",
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        jars,
        name,
        *arguments,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, input=text
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    return done.stdout


def test_dump_log_agrees(new_broker: BrokerFactory, topic: str, jars: str) -> None:
    """kafka-dump-log reads our segments, indexes and snapshots without a complaint and finds
    every record; so does `replog verify`.
    """
    broker = new_broker().start()
    count = 0
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        for client in (clients.KafkaPython(), clients.Confluent(), clients.AioKafka()):
            client.produce(
                broker.bootstrap,
                topic,
                codec,
                [(b"k%d" % n, os.urandom(700), (("h", b"x"),)) for n in range(60)],
            )
            count += 60
    clients.Confluent().consume(broker.bootstrap, topic, "readers", count)
    broker.stop()
    directory = Path(broker.data) / f"{topic}-0"
    segments = sorted(str(path) for path in directory.glob("*.log"))
    text = tool(
        jars,
        "org.apache.kafka.tools.DumpLogSegments",
        "--deep-iteration",
        "--files",
        ",".join(segments),
    )
    assert len(re.findall(r"^\| offset: ", text, re.M)) == count
    assert not re.search(r"isvalid: false|corrupt|mismatch|non-consecutive|not found", text, re.I)
    for pattern in ("*.index", "*.timeindex", "*.snapshot"):
        files = sorted(str(path) for path in directory.glob(pattern))
        text = tool(jars, "org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(files))
        assert not re.search(r"mismatch|corrupt|out of order|not found", text, re.I), text[-1000:]
    metadata = sorted(
        str(path) for path in (Path(broker.data) / "__cluster_metadata-0").glob("*.log")
    )
    text = tool(
        jars,
        "org.apache.kafka.tools.DumpLogSegments",
        "--cluster-metadata-decoder",
        "--files",
        ",".join(metadata),
    )
    assert f'"name":"{topic}"' in text and "Could not decode" not in text
    offsets = [
        str(path)
        for path in sorted(Path(broker.data).glob("__consumer_offsets-*/*.log"))
        if path.stat().st_size
    ]
    text = tool(
        jars,
        "org.apache.kafka.tools.DumpLogSegments",
        "--offsets-decoder",
        "--files",
        ",".join(offsets),
    )
    assert "readers" in text and topic in text
    assert [
        str(finding) for finding in verify_directory(Path(broker.data), with_records=True).findings
    ] == []


@contextmanager
def apache_kafka(jars: str, directory: Path, port: int) -> Iterator[str]:
    """Apache Kafka, broker and controller in one, on a data directory that is there already;
    gives its address.
    """
    controller = free_port()
    settings = directory.parent / "server.properties"
    settings.write_text(
        f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\nlog.dirs={directory}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\ncontroller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\noffsets.topic.replication.factor=1\n"
        "group.initial.rebalance.delay.ms=0\n"
    )
    with (directory.parent / "kafka.log").open("wb") as log:
        process = subprocess.Popen(
            ["java", "-Xmx384m", "-cp", jars, "kafka.Kafka", str(settings)],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for_metadata(("127.0.0.1", port), process)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(LIMIT_SECONDS)


def wait_for_metadata(address: tuple[str, int], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, "Apache Kafka ended"
        with suppress(OSError), raw.Connection(address) as connection:
            if all(leader >= 0 for _, leader in raw.leaders(connection, "__consumer_offsets")):
                return
        time.sleep(0.1)
    raise TimeoutError("Apache Kafka does not serve")


def test_kafka_opens_our_directory_and_gives_it_back(
    new_broker: BrokerFactory, topic: str, jars: str
) -> None:
    """RL 3.1: Apache Kafka starts on what we leave, metadata log and all, serves records and
    offsets, writes; then we start on what it leaves.
    """
    broker = new_broker().start()
    ours: list[clients.Row] = [(b"k%d" % n, b"ours %d" % n, (("h", b"x"),)) for n in range(100)]
    theirs: list[clients.Row] = [(b"k%d" % n, b"theirs %d" % n, ()) for n in range(100)]
    clients.Confluent().produce(broker.bootstrap, topic, "lz4", ours)
    clients.Confluent().consume(broker.bootstrap, topic, "readers", 100)
    broker.stop()
    with apache_kafka(jars, Path(broker.data), broker.port) as bootstrap:
        assert clients.Confluent().consume(bootstrap, topic, "others", 100) == ours
        clients.Confluent().produce(bootstrap, topic, "zstd", theirs)
        assert clients.Confluent().consume(bootstrap, topic, "readers", 100) == theirs
    assert [
        str(finding) for finding in verify_directory(Path(broker.data), with_records=True).findings
    ] == []
    broker.start()
    assert clients.KafkaPython().consume(broker.bootstrap, topic, "new", 200) == ours + theirs
    last: list[clients.Row] = [(None, b"after both", ())]
    clients.AioKafka().produce(broker.bootstrap, topic, "gzip", last)
    assert clients.Confluent().consume(broker.bootstrap, topic, "readers", 1) == last


def test_command_line_tools(broker: object, topic: str, jars: str) -> None:
    """kafka-topics, kafka-configs, kafka-get-offsets and kafka-consumer-groups do their work."""
    server = ("--bootstrap-server", broker.bootstrap)  # type: ignore[attr-defined]
    tool(
        jars,
        "org.apache.kafka.tools.TopicCommand",
        *server,
        "--create",
        "--topic",
        topic,
        "--partitions",
        "3",
    )
    assert "PartitionCount: 3" in tool(
        jars, "org.apache.kafka.tools.TopicCommand", *server, "--describe", "--topic", topic
    )
    rows: list[clients.Row] = [(b"k%d" % n, b"v", ()) for n in range(30)]
    clients.Confluent().produce(broker.bootstrap, topic, "zstd", rows)  # type: ignore[attr-defined]
    clients.Confluent().consume(broker.bootstrap, topic, f"group-{topic}", 30)  # type: ignore[attr-defined]
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tool(
        jars,
        "kafka.admin.ConfigCommand",
        *server,
        "--alter",
        *entity,
        "--add-config",
        "retention.ms=1000000",
    )
    assert "retention.ms=1000000" in tool(
        jars, "kafka.admin.ConfigCommand", *server, "--describe", *entity
    )
    offsets = tool(jars, "org.apache.kafka.tools.GetOffsetShell", *server, "--topic", topic)
    assert (
        sum(int(line.rpartition(":")[2]) for line in offsets.splitlines() if line.startswith(topic))
        == 30
    )
    group = tool(
        jars,
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *server,
        "--describe",
        "--group",
        f"group-{topic}",
    )
    assert group.count(topic) >= 3


def test_a_replica_moves_between_directories(topic: str, jars: str, tmp_path: Path) -> None:
    """kafka-reassign-partitions with `log_dirs`, and kafka-log-dirs (RL 3.8)."""
    paths = [str(tmp_path / name) for name in "ab"]
    broker = BrokerProcess(tmp_path / "broker", data=",".join(paths)).start()
    try:
        move_replica(broker, topic, jars, tmp_path, paths)
    finally:
        broker.stop()


def move_replica(
    broker: BrokerProcess, topic: str, jars: str, tmp_path: Path, paths: list[str]
) -> None:
    """To the other directory, and all records are read from there."""
    server = ("--bootstrap-server", broker.bootstrap)
    clients.Confluent().produce(
        broker.bootstrap, topic, "none", [(b"k%d" % n, bytes(500), ()) for n in range(100)]
    )

    def places() -> list[str]:
        """The directories that kafka-log-dirs finds it in."""
        lines = tool(
            jars,
            "org.apache.kafka.tools.LogDirsCommand",
            *server,
            *("--describe", "--topic-list", topic),
        ).splitlines()
        (found,) = (json.loads(line) for line in lines if line.startswith("{"))
        (node,) = found["brokers"]
        assert sorted(each["logDir"] for each in node["logDirs"]) == paths
        return [each["logDir"] for each in node["logDirs"] if each["partitions"]]

    (before,) = places()
    (target,) = {*paths} - {before}
    plan = tmp_path / "plan.json"
    wanted = {"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [target]}
    plan.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
    reassign = (
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        *server,
        *("--reassignment-json-file", str(plan)),
    )
    tool(jars, *reassign, "--execute")
    end = time.monotonic() + LIMIT_SECONDS
    while "is still in progress" in (told := tool(jars, *reassign, "--verify")):
        assert time.monotonic() < end, told
    assert "completed successfully" in told and places() == [target]
    assert clients.Confluent().consume(broker.bootstrap, topic, f"{topic}-readers", 100)


@pytest.mark.kafka(settings={"transaction.partition.verification.enable": False})
def test_a_hanging_transaction_is_found_and_ended(kafka: Cluster, topic: str, jars: str) -> None:
    """KIP-664: kafka-transactions finds the transaction that no coordinator knows, shows its
    producer and ends it; committed records behind it can be read again.
    """
    producer_id, an_hour_ago = 4711, int(time.time() * 1000) - 3_600_000
    builder = BatchBuilder(
        producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    builder.append(an_hour_ago, None, b"hangs")
    clients.KafkaPython().produce(kafka.bootstrap, topic, "none", [(None, b"before", ())])
    with raw.Connection(raw.address(kafka.bootstrap)) as connection:
        body = raw.string("forgotten") + raw.produce_body(topic, 0, bytes(builder.build()))
        answer = connection.call(raw.PRODUCE, 3, body)
    answer.take("i"), answer.string(), answer.take("i")
    assert answer.take("ihq") == (0, 0, 1)

    server = ("--bootstrap-server", kafka.bootstrap)
    command = "org.apache.kafka.tools.TransactionsCommand"
    found = tool(jars, command, *server, "find-hanging", "--broker-id", "1")
    assert re.search(rf"{topic}\s+0\s+{producer_id}\s+0\s+", found), found
    place = ("--topic", topic, "--partition", "0")
    shown = tool(jars, command, *server, "describe-producers", *place)
    assert re.search(rf"^{producer_id}\s+0\s+-1\s+0\s+{an_hour_ago}\s+1\s*$", shown, re.M), shown
    tool(jars, command, *server, "abort", *place, "--start-offset", "1")
    left = tool(jars, command, *server, "find-hanging", "--broker-id", "1")
    assert str(producer_id) not in left
    shown = tool(jars, command, *server, "describe-producers", *place)
    assert re.search(rf"^{producer_id}\s+.*None\s*$", shown, re.M), shown


def test_kafka_features_changes_levels(kafka: Cluster, jars: str) -> None:
    """A downgrade, a dry run, an upgrade; transactions under each level of transaction.version."""

    def features(*arguments: str) -> str:
        command = "org.apache.kafka.tools.FeatureCommand"
        return tool(jars, command, "--bootstrap-server", kafka.bootstrap, *arguments)

    version = "transaction.version"
    client = transactional.Confluent()
    for level in (1, 0):
        assert f"{version} was downgraded to {level}." in features(
            "downgrade", "--feature", f"{version}={level}"
        )
        rounds = [([b"a"], True), ([b"b"], False), ([b"c"], True)]
        client.produce(kafka.bootstrap, "x", f"under-{level}", rounds)
        assert client.read_committed(kafka.bootstrap, f"under-{level}", 2) == [b"a", b"c"]
    said = features("upgrade", "--feature", f"{version}=2", "--dry-run")
    assert f"{version} can be upgraded to 2." in said
    features("upgrade", "--feature", f"{version}=2")
    client.produce(kafka.bootstrap, "x", "under-2", [([b"a"], True)])
    (line,) = [each for each in features("describe").splitlines() if version in each]
    assert re.search(r"SupportedMaxVersion: 2\s+FinalizedVersionLevel: 2\s", line), line


def test_kafka_configs_sets_and_shows_quotas(kafka: Cluster, jars: str) -> None:
    """Of clients, users and addresses."""
    where = ("--bootstrap-server", kafka.bootstrap)
    name = "kafka.admin.ConfigCommand"
    for kind, who, quota in (
        ("clients", ("--entity-name", "slow"), "producer_byte_rate=1000.0"),
        ("users", ("--entity-default",), "controller_mutation_rate=0.5"),
        ("ips", ("--entity-name", "192.0.2.1"), "connection_creation_rate=5.0"),
    ):
        entity = ("--entity-type", kind, *who)
        tool(jars, name, *where, "--alter", *entity, "--add-config", quota)
        assert quota in tool(jars, name, *where, "--describe", *entity)
        key = quota.partition("=")[0]
        tool(jars, name, *where, "--alter", *entity, "--delete-config", key)
        assert quota not in tool(jars, name, *where, "--describe", *entity)
