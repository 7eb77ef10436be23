"""Our broker as a member of an Apache Kafka 3.9 cluster with ZooKeeper: two Java brokers and ours.

KAFKA39_JARS: see `kafka_processes.py`. One protocol takes about a minute, ten rounds of kills about
five.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ElectionType, Message, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from tests.compare.side import Line
from tests.compat.broker_process import BrokerProcess
from tests.compat.kafka_processes import (
    JARS39,
    compiled,
    require,
    require39,
    require_compiler,
    tool,
)
from tests.compat.kafka_processes import (
    java as java_command,
)
from tests.compat.zookeeper_cluster import (
    OURS,
    PATIENCE_SECONDS,
    JavaCluster,
    View,
    differences,
)
from tests.zookeeper.test_java_requests import CHOSEN

pytestmark = [pytest.mark.clients, pytest.mark.timeout(400)]
TOPIC = "shared"


@pytest.fixture(params=["3.9", "2.6"])
def java(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JavaCluster]:
    require39()
    # A broker is frozen for up to four seconds, and pings come every third of its session: on a
    # busy machine 6 s ended, and with that its place in the ISR.
    cluster = JavaCluster(
        tmp_path,
        request.param,
        zookeeper_session_timeout_ms="12000",
        transaction_state_log_replication_factor="1",
        transaction_state_log_min_isr="1",
    )
    try:
        cluster.start()
        yield cluster
    finally:
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
    first = View(java.bootstrap[1], TOPIC)
    first.until(lambda: first.brokers() == {1, 2}, "two Java brokers")
    ours.start()
    first.until(lambda: first.brokers() == {1, 2, OURS}, "our broker is a member")
    controller = int(first.admin.describe_cluster().result(PATIENCE_SECONDS).controller.id)
    other = 3 - controller
    view, own = View(java.bootstrap[controller], TOPIC), View(ours.bootstrap, TOPIC)
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
    assert not differences([Path(ours.data), java.data(1), java.data(2)])


def test_a_java_coordinator_ends_transactions_on_a_partition_of_ours(
    java: JavaCluster, ours: BrokerProcess
) -> None:
    """At 2.6 by WriteTxnMarkers 0: committed and aborted, nothing holds the readers back."""
    view = View(java.bootstrap[1], TOPIC)
    view.until(lambda: view.brokers() == {1, 2}, "two Java brokers")
    settings = {"bootstrap.servers": java.bootstrap[1], "log_level": 0, "transactional.id": "x"}
    producer = Producer(settings | {"transaction.timeout.ms": 60_000})
    # Before ours is there: its coordinator stays a Java broker.
    producer.init_transactions(PATIENCE_SECONDS)
    ours.start()
    view.until(lambda: view.brokers() == {1, 2, OURS}, "our broker is a member")
    topic = NewTopic(TOPIC, 1, replica_assignment=[[OURS, 1]])
    view.admin.create_topics([topic])[TOPIC].result(PATIENCE_SECONDS)
    view.until(lambda: view.partitions() == [(OURS, [1, OURS])], "we lead it")
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction) * 2):
        producer.begin_transaction()
        producer.produce(TOPIC, b"%d" % number, partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0
        end(PATIENCE_SECONDS)
    consumer = Consumer(
        {
            "bootstrap.servers": ours.bootstrap,
            "group.id": "committed",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    ends: list[int] = []

    def is_read() -> bool:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message.value())
        elif message is not None:
            ends.append(message.offset())
        return bool(ends) and ends[-1] == 8

    view.until(is_read, "all is stable")
    consumer.close()
    assert found == [b"0", b"2"]


@pytest.mark.parametrize("java", ["2.6"], indirect=True)
def test_the_protocol_is_raised_broker_by_broker(java: JavaCluster, ours: BrokerProcess) -> None:
    """From 2.6 to 3.9, as Kafka's upgrade does it, ours last: topics get ids from the new
    controller while we follow and lead them; nothing leaves the ISR for long, nothing is lost.
    """
    first = View(java.bootstrap[1], TOPIC)
    first.until(lambda: first.brokers() == {1, 2}, "two Java brokers")
    ours.start()
    first.until(lambda: first.brokers() == {1, 2, OURS}, "our broker is a member")
    placed = [[1, 2, OURS], [OURS, 1, 2]]
    topic = NewTopic(TOPIC, 2, replica_assignment=placed, config={"min.insync.replicas": "2"})
    first.admin.create_topics([topic])[TOPIC].result(PATIENCE_SECONDS)
    views = {node: View(address, TOPIC) for node, address in java.bootstrap.items()}
    every = [1, 2, OURS]

    def whole(view: View, what: str) -> None:
        view.until(lambda: [isr for _, isr in view.partitions()] == [every] * 2, what)

    whole(first, "all are in sync")
    first.produce(400)
    for node in (1, 2):
        java.stop(node)
        java.nodes[node].set({"inter.broker.protocol.version": "3.9"})
        java.start_broker(node)
        whole(views[3 - node], f"broker {node} is back at 3.9, and all are in sync")
        first.produce(400)
    # Under the leader epoch that it began at 2.6.
    assert first.consume("by-id") == 1200
    ours.stop()
    ours.settings["inter.broker.protocol.version"] = "3.9"
    ours.start()
    whole(first, "ours is back at 3.9, and all are in sync")
    first.produce(400)
    assert first.consume("at-the-end") == 1600
    ours.stop()
    java.stop(2)
    java.stop(1)
    assert not differences([Path(ours.data), java.data(1), java.data(2)])


@pytest.mark.parametrize("java", ["3.9"], indirect=True)
def test_quotas_that_a_java_broker_was_told(java: JavaCluster, ours: BrokerProcess) -> None:
    """They are in ZooKeeper; ours slows the client down by them, and no more when they are gone."""
    first = View(java.bootstrap[1], TOPIC)
    first.until(lambda: first.brokers() == {1, 2}, "two Java brokers")
    ours.start()
    first.until(lambda: first.brokers() == {1, 2, OURS}, "our broker is a member")
    topic = NewTopic(TOPIC, 2, replica_assignment=[[OURS], [OURS]])
    first.admin.create_topics([topic])[TOPIC].result(PATIENCE_SECONDS)

    def quota(**op: object) -> None:
        line = Line(*first.bootstrap.split(":"))
        entity = [{"entity_type": "client-id", "entity_name": "slow"}]
        entry = {"entity": entity, "ops": [{"key": "producer_byte_rate", **op}]}
        answer = line.call("AlterClientQuotas", 1, {"entries": [entry]})
        assert answer.entries[0].error_code == 0, answer
        line.hang_up()

    def is_slowed() -> bool:
        waits: list[float] = []
        producer = Producer(
            {
                "bootstrap.servers": ours.bootstrap,
                "client.id": "slow",
                "throttle_cb": lambda event: waits.append(event.throttle_time),
                "log_level": 0,
            }
        )
        for partition in (0, 1):
            producer.produce(TOPIC, bytes(5_000), partition=partition)
            assert producer.flush(PATIENCE_SECONDS) == 0
        producer.poll(0)
        return max(waits, default=0) > 0

    assert not is_slowed()
    quota(value=1_000.0)
    first.until(is_slowed, "the quota is kept")
    quota(value=0.0, remove=True)
    first.until(lambda: not is_slowed(), "the quota is gone")


@pytest.mark.parametrize("java", ["3.9", "2.6"], indirect=True)
def test_kafkas_tools_alter_settings_through_ours(
    java: JavaCluster, ours: BrokerProcess, tmp_path: Path
) -> None:
    """Settings of a topic, of our broker and of all, a user's quota, by `kafka-configs` of 3.9, as
    a Java broker then has them; a credential that ours then has; and a throttled
    move to ours, which takes its throttles away.
    """
    require("kafka-tools")
    first = View(java.bootstrap[1], TOPIC)
    first.until(lambda: first.brokers() == {1, 2}, "two Java brokers")
    ours.start()
    first.until(lambda: first.brokers() == {1, 2, OURS}, "our broker is a member")
    topic = NewTopic(TOPIC, 2, replica_assignment=[[1], [1]])
    first.admin.create_topics([topic])[TOPIC].result(PATIENCE_SECONDS)
    own = View(ours.bootstrap, TOPIC)
    own.until(lambda: len(own.partitions()) == 2, "ours knows the topic")
    first.produce(400)

    def configs(bootstrap: str, *arguments: str) -> str:
        said = ("--bootstrap-server", bootstrap, *arguments)
        return tool("kafka.admin.ConfigCommand", *said, jars=JARS39)

    def alter(*entity: str, change: str) -> None:
        assert "Completed" in configs(ours.bootstrap, "--alter", *entity, "--add-config", change)

    alter("--topic", TOPIC, change="retention.ms=1234567,cleanup.policy=[compact,delete]")
    alter("--broker", str(OURS), change="log.cleaner.threads=2")
    alter("--broker-defaults", change="message.max.bytes=1048577")
    alter("--user", "u v", change="producer_byte_rate=5000")

    def told(*arguments: str) -> str:
        return configs(java.bootstrap[1], "--describe", *arguments)

    first.until(lambda: "retention.ms=1234567" in told("--topic", TOPIC), "Java has the topic's")
    assert "cleanup.policy=compact,delete" in told("--topic", TOPIC)
    first.until(
        lambda: "message.max.bytes=1048577" in told("--broker-defaults"), "Java has all brokers'"
    )
    assert "producer_byte_rate=5000.0" in told("--user", "u v")
    assert "log.cleaner.threads=2" in configs(ours.bootstrap, "--describe", "--broker", str(OURS))

    credential = "SCRAM-SHA-512=[iterations=8192,password=a-secret]"
    configs(java.bootstrap[1], "--alter", "--user", "alice", "--add-config", credential)
    first.until(
        lambda: (
            "SCRAM-SHA-512=iterations=8192"
            in configs(ours.bootstrap, "--describe", "--user", "alice")
        ),
        "ours has a user's credential that Java's controller made",
    )

    moves = [{"topic": TOPIC, "partition": number, "replicas": [OURS]} for number in (0, 1)]
    plan = tmp_path / "moves.json"
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))

    def reassign(*arguments: str) -> str:
        said = ("--bootstrap-server", ours.bootstrap, "--reassignment-json-file", str(plan))
        return tool("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", *said, *arguments)

    assert "Successfully started" in reassign("--execute", "--throttle", "10000000")
    first.until(lambda: first.partitions() == [(OURS, [OURS])] * 2, "both partitions moved to ours")
    first.until(lambda: "still in progress" not in reassign("--verify"), "the move is complete")
    assert "throttled" not in told("--topic", TOPIC)
    assert "throttled" not in configs(ours.bootstrap, "--describe", "--broker", str(OURS))


@pytest.mark.parametrize("java", ["2.6"], indirect=True)
def test_records_of_an_old_format_are_followed(java: JavaCluster, ours: BrokerProcess) -> None:
    """Magic 0 and 1, compressed or not, as Java's leader has them; ours then serves and leads them,
    and Java follows ours.
    """
    first = View(java.bootstrap[1], TOPIC)
    first.until(lambda: first.brokers() == {1, 2}, "two Java brokers")
    ours.start()
    first.until(lambda: first.brokers() == {1, 2, OURS}, "our broker is a member")
    formats = {"of-0": "0.9.0", "of-1": "0.10.2"}
    for name, version in formats.items():
        topic = NewTopic(
            name, 2, replica_assignment=[[1], [1]], config={"message.format.version": version}
        )
        first.admin.create_topics([topic])[name].result(PATIENCE_SECONDS)
        View(java.bootstrap[1], name).produce(400)
        producer = Producer({"bootstrap.servers": java.bootstrap[1], "compression.type": "gzip"})
        for number in range(400):
            producer.produce(name, b"z%d" % number, partition=number % 2)
        assert producer.flush(PATIENCE_SECONDS) == 0
        # Java makes the topic of the groups: its brokers count its partitions at their start.
        assert View(java.bootstrap[1], name).consume(f"java-{name}") == 800
    began = int(time.time() * 1000)
    line = Line(*java.bootstrap[controller_of(first)].split(":"))
    topics = [
        {
            "name": name,
            "partitions": [{"partition_index": n, "replicas": [OURS, 1]} for n in (0, 1)],
        }
        for name in formats
    ]
    answer = line.call("AlterPartitionReassignments", 0, {"timeout_ms": 30_000, "topics": topics})
    assert answer.error_code == 0, answer
    line.hang_up()
    views = {name: View(ours.bootstrap, name) for name in formats}
    for name, view in views.items():
        view.until(
            partial(_have_members, view),
            f"ours is in sync with {name}",
        )
        if view.partitions() != [(OURS, [1, OURS])] * 2:
            wanted = [TopicPartition(name, number) for number in (0, 1)]
            first.admin.elect_leaders(ElectionType.PREFERRED, wanted).result(PATIENCE_SECONDS)
        view.until(partial(_are_led_by_ours, view), "ours leads")
        assert view.consume(f"old-{name}") == 800
        view.produce(10)
        assert view.consume(f"new-{name}") == 810
    by_time = Consumer({"bootstrap.servers": ours.bootstrap, "group.id": "by-time"})
    early, late = (
        by_time.offsets_for_times([TopicPartition("of-1", 0, when)], timeout=30)[0].offset
        for when in (1, began)
    )
    assert (early, late) == (0, 400)  # what was produced to ours is later
    by_time.close()
    ours.stop()
    java.stop(2)
    java.stop(1)
    assert not differences([Path(ours.data), java.data(1), java.data(2)])


def _have_members(view: View) -> bool:
    return [isr for _, isr in view.partitions()] == [[1, OURS]] * 2


def _are_led_by_ours(view: View) -> bool:
    return view.partitions() == [(OURS, [1, OURS])] * 2


def controller_of(view: View) -> int:
    return int(view.admin.describe_cluster().result(PATIENCE_SECONDS).controller.id)


def test_kafka_acls_through_ours(tmp_path: Path) -> None:
    """What `kafka-acls` of 3.9 makes through ours a Java broker has, and the other way round."""
    require39()
    guarded = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    java = JavaCluster(
        tmp_path, "3.9", (1,), **{key.replace(".", "_"): value for key, value in guarded.items()}
    )
    settings = {
        "broker.id": str(OURS),
        "zookeeper.connect": java.zookeeper,
        "zookeeper.connection.timeout.ms": "60000",
        **guarded,
    }
    ours = BrokerProcess(tmp_path / "ours", settings)

    def acls(bootstrap: str, *arguments: str) -> str:
        said = ("--bootstrap-server", bootstrap, *arguments)
        return tool("kafka.admin.AclCommand", *said, jars=JARS39)

    def says(bootstrap: str, words: str, count: int) -> bool:
        return acls(bootstrap, "--list").count(words) == count

    try:
        java.start()
        first = View(java.bootstrap[1], TOPIC)
        first.until(lambda: first.brokers() == {1}, "a Java broker")
        ours.start()
        first.until(lambda: first.brokers() == {1, OURS}, "our broker is a member")
        both = (java.bootstrap[1], ours.bootstrap)
        alice = ("--allow-principal", "User:alice", "--operation", "Read")
        prefixed = ("--topic", "pre", "--resource-pattern-type", "prefixed")
        acls(ours.bootstrap, "--add", *alice, "--topic", TOPIC)
        acls(ours.bootstrap, "--add", *alice, *prefixed)
        bob = ("--deny-principal", "User:bob", "--operation", "All")
        acls(java.bootstrap[1], "--add", *bob, "--group", "*")
        for each in both:
            first.until(partial(says, each, "User:bob", 1), "what Java made is there")
            assert says(each, "principal=User:alice, host=*, operation=READ", 2)
            assert says(each, "name=pre, patternType=PREFIXED", 1)
        acls(ours.bootstrap, "--remove", "--force", "--group", "*")
        acls(java.bootstrap[1], "--remove", "--force", *prefixed)
        for each in both:
            first.until(partial(says, each, "User:bob", 0), "what ours removed is gone")
            first.until(partial(says, each, "PREFIXED", 0), "what Java removed is gone")
            assert says(each, "User:alice", 1)
    finally:
        ours.kill()
        java.end()


class Load:
    """Records with acks=all, one after another, until it is stopped: what was acknowledged."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self.acked: dict[tuple[int, int], bytes] = {}
        self.failed: list[str] = []
        self._partitions = partitions
        self._stopped = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 5,
                "request.timeout.ms": 10_000,
                "message.timeout.ms": PATIENCE_SECONDS * 1000,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        number = 0
        while not self._stopped.is_set():
            value = b"%d" % number
            self._producer.produce(
                TOPIC,
                value,
                partition=number % self._partitions,
                on_delivery=self._delivered,
            )
            number += 1
            self._producer.poll(0)
            self._stopped.wait(0.005)
        self._producer.flush(PATIENCE_SECONDS)

    def _delivered(self, error: object, message: Message) -> None:
        partition, offset, value = message.partition(), message.offset(), message.value()
        if error is not None:
            self.failed.append(str(error))
        elif partition is not None and offset is not None and value is not None:
            self.acked[partition, offset] = bytes(value)

    def stop(self) -> None:
        """What is under way is waited for."""
        self._stopped.set()
        self._thread.join()


def read_all(bootstrap: str, partitions: int) -> dict[tuple[int, int], bytes]:
    """(partition, offset) -> value, from the beginning to the end."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0})
    ends = {
        number: consumer.get_watermark_offsets(TopicPartition(TOPIC, number), PATIENCE_SECONDS)[1]
        for number in range(partitions)
    }
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(partitions)])
    found: dict[tuple[int, int], bytes] = {}
    while len(found) < sum(ends.values()):
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None and not message.error(), (len(found), ends)
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None and offset is not None and value is not None
        found[partition, offset] = bytes(value)
    consumer.close()
    return found


_PARTITIONS = 3
_ROUNDS = (
    "ours is killed",
    "a Java broker is killed",
    "our session expires",
    "preferred leaders",
    "the controller is killed",
    "ours is killed",
    "our session expires",
    "a Java broker is killed",
    "preferred leaders",
    "ours is killed",
)


@pytest.mark.timeout(1800)
def test_ten_rounds_of_kills(java: JavaCluster, ours: BrokerProcess) -> None:
    """RL 0.2, 9.1: under load with acks=all and a minimum ISR of 2 nothing that was acknowledged is
    lost, whoever is killed; afterwards all directories hold the same.
    """
    views = {node: View(bootstrap, TOPIC) for node, bootstrap in java.bootstrap.items()}
    views[1].until(lambda: views[1].brokers() == {1, 2}, "two Java brokers")
    ours.start()
    views[OURS] = View(ours.bootstrap, TOPIC)
    every = [1, 2, OURS]
    views[1].until(lambda: views[1].brokers() == set(every), "our broker is a member")
    topic = NewTopic(
        TOPIC,
        _PARTITIONS,
        replica_assignment=[[1, 2, OURS], [2, OURS, 1], [OURS, 1, 2]],
        config={"min.insync.replicas": "2"},
    )
    views[1].admin.create_topics([topic])[TOPIC].result(PATIENCE_SECONDS)
    load = Load(",".join(view.bootstrap for view in views.values()), _PARTITIONS)

    def goes_on(view: View, what: str) -> None:
        goal = len(load.acked) + 100
        view.until(lambda: len(load.acked) >= goal, f"{what}: records are acknowledged")

    def whole(view: View, what: str) -> None:
        view.until(
            lambda: all(isr == every for _, isr in view.partitions()), f"{what}: all are in sync"
        )

    def kill_ours(what: str) -> None:
        ours.kill()
        views[1].until(lambda: OURS not in views[1].brokers(), f"{what}: our session ended")
        goes_on(views[1], what)
        ours.start()

    def kill_java(node: int, what: str) -> None:
        other = views[3 - node]
        java.kill(node)
        other.until(lambda: node not in other.brokers(), f"{what}: its session ended")
        goes_on(other, what)
        java.start_broker(node)

    def expire_ours(what: str) -> None:
        assert ours.process is not None
        ours.process.send_signal(signal.SIGSTOP)
        views[1].until(lambda: OURS not in views[1].brokers(), f"{what}")
        goes_on(views[1], what)
        ours.process.send_signal(signal.SIGCONT)

    try:
        for number, kind in enumerate(_ROUNDS):
            what = f"round {number}, {kind}"
            whole(views[1], what)
            goes_on(views[1], what)
            if kind == "ours is killed":
                kill_ours(what)
            elif kind == "our session expires":
                expire_ours(what)
            elif kind == "preferred leaders":
                wanted = [TopicPartition(TOPIC, each) for each in range(_PARTITIONS)]
                views[1].admin.elect_leaders(ElectionType.PREFERRED, wanted).result(
                    PATIENCE_SECONDS
                )
                views[1].until(
                    lambda: [leader for leader, _ in views[1].partitions()] == every, what
                )
            else:
                controller = views[1].admin.describe_cluster().result(PATIENCE_SECONDS).controller
                node = int(controller.id)
                kill_java(node if kind == "the controller is killed" else 3 - node, what)
        whole(views[1], "at the end")
        goes_on(views[1], "at the end")
    finally:
        load.stop()
    found = read_all(views[1].bootstrap, _PARTITIONS)
    lost = {where: value for where, value in load.acked.items() if found.get(where) != value}
    assert not lost, f"{len(lost)} of {len(load.acked)} acknowledged are lost: {sorted(lost)[:5]}"
    print(f"{len(load.acked)} acknowledged, {len(load.failed)} refused")
    whole(views[1], "before the stop")
    ours.stop()
    java.stop(2)
    java.stop(1)
    assert not differences([Path(ours.data), java.data(1), java.data(2)])


def test_kafkas_classes_choose_the_versions_of_our_table(tmp_path: Path) -> None:
    """`MetadataVersion` of 3.9, at each protocol from 2.6 on."""
    require39()
    require_compiler()
    classes = compiled("RequestVersions", tmp_path, JARS39)
    done = subprocess.run(
        java_command("RequestVersions", *CHOSEN, classes=classes, jars=JARS39),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    assert {row[0]: tuple(map(int, row[1:])) for row in rows} == CHOSEN
