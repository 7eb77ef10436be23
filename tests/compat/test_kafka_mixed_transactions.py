"""Transactions in a cluster of Apache Kafka 4.3 and ours: Java's controller, two brokers of
Java's and one of ours. Leaders and coordinators move between them within transactions.

KAFKA_JARS: a folder of Apache Kafka 4.3's jars (`make test-java`). About three minutes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.compat import bank, transactional
from tests.compat.kafka_processes import (
    JAVA,
    OURS,
    Copier,
    MixedCluster,
    Transactor,
    compiled,
    require,
    require_compiler,
    tool,
    transactors,
)
from twisted_broker.cli.verify_replicas import verify_replicas
from twisted_broker.coordinator.group_records import partition_for

pytestmark = [pytest.mark.clients, pytest.mark.long, pytest.mark.timeout(600)]
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
STATE, OFFSETS = "__transaction_state", "__consumer_offsets"
PARTITIONS = 3
WAIT_SECONDS = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    require("kafka-tools")
    made = MixedCluster(tmp_path_factory.mktemp("mixed"))
    try:
        yield made.start()
    finally:
        made.end()


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("kafka-tools")
    require_compiler()
    return compiled("Transactor", tmp_path_factory.mktemp("classes"))


class OfLibrdkafka:
    """librdkafka's producer under the steps of the Java one."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": 600_000,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(WAIT_SECONDS)

    def do(self, *words: Any) -> None:
        match words:
            case ("begin",):
                self._producer.begin_transaction()
            case ("send", topic, partition, value):
                self._producer.produce(topic, str(value).encode(), partition=partition)
                assert self._producer.flush(WAIT_SECONDS) == 0
            case ("offsets", group, topic, offset):
                consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": group})
                member = consumer.consumer_group_metadata()
                places = [TopicPartition(topic, 0, offset)]
                self._producer.send_offsets_to_transaction(places, member, WAIT_SECONDS)
            case ("commit",):
                self._producer.commit_transaction(WAIT_SECONDS)
            case ("abort",):
                self._producer.abort_transaction(WAIT_SECONDS)


Make = Callable[[str], Transactor | OfLibrdkafka]


@pytest.fixture(params=["java", "librdkafka"])
def producer(
    request: pytest.FixtureRequest, cluster: MixedCluster, classes: Path, tmp_path: Path
) -> Iterator[Make]:
    """Makes producers by their transactional id. Their first broker is ours."""
    addresses = cluster.of(OURS, *JAVA)
    if request.param == "librdkafka":
        yield lambda name: OfLibrdkafka(addresses, name)
    else:
        with transactors(classes, tmp_path, addresses) as make:
            yield make


def read(cluster: MixedCluster, topic: str, expected: list[str]) -> None:
    """These are read in this order, and then the end of the partition: nothing is held back."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reader",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    found: list[str] = []
    consumer.assign([TopicPartition(topic, 0, 0)])
    end: list[int] = []

    def at_end() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
        elif message is not None:
            # The end that read_committed sees, against the log's.
            _, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)
            end[:] = [int(message.offset() or 0), high]
        return bool(end) and end[0] == end[1] and len(found) >= len(expected)

    try:
        cluster.view.until(at_end, f"{expected} of {topic}")
    finally:
        consumer.close()
    assert found == expected


def committed(cluster: MixedCluster, group: str, topic: str) -> int:
    """The group's offset, once no transaction holds it."""
    settings = {"isolation.level": "read_committed", "log_level": 0, "group.id": group}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, **settings})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], WAIT_SECONDS)
        return int(found.offset)
    finally:
        consumer.close()


def test_a_leader_moves_within_a_transaction(
    cluster: MixedCluster, producer: Make, topic: str
) -> None:
    """From Java to ours and back; what was written under each is committed or aborted as one."""
    cluster.place(topic, [1, 2, OURS])
    one = producer(topic)
    for number, end in enumerate(("commit", "abort", "commit")):
        one.do("begin")
        for step, leader in enumerate((1, OURS, 2, OURS, 1)):
            cluster.lead(topic, 0, leader)
            one.do("send", topic, 0, f"{number}-{step}")
        one.do(end)
    read(cluster, topic, [f"{number}-{step}" for number in (0, 2) for step in range(5)])


@pytest.mark.parametrize("leader", [1, OURS])
def test_a_transaction_ends_where_its_leader_has_moved(
    cluster: MixedCluster, producer: Make, topic: str, leader: int
) -> None:
    """All is written under one leader, its marker under another that never saw the producer."""
    other = OURS if leader == 1 else 1
    cluster.place(topic, [leader, 2, other])
    one = producer(topic)
    for number, end in enumerate(("commit", "abort", "commit")):
        cluster.lead(topic, 0, leader)
        one.do("begin")
        one.do("send", topic, 0, number)
        cluster.lead(topic, 0, other)
        one.do(end)
    read(cluster, topic, ["0", "2"])


def test_coordinators_move_within_a_transaction(
    cluster: MixedCluster, producer: Make, topic: str
) -> None:
    """The transaction's and the group's, between Java and ours and back, before each step."""
    group = f"group-{topic}"
    cluster.place(topic, [2, 1, OURS])
    one = producer(topic)
    mine, groups = partition_for(topic, PARTITIONS), partition_for(group, PARTITIONS)
    committed(cluster, group, topic)
    steps = [("begin",), ("send", topic, 0, "x"), ("offsets", group, topic, 7), ()]
    expected = []
    for number, (end, first, second) in enumerate(
        (("commit", 1, OURS), ("abort", OURS, 1), ("commit", OURS, 2), ("abort", 2, OURS))
    ):
        for step, words in enumerate(steps):
            cluster.lead(STATE, mine, second if step % 2 else first)
            cluster.lead(OFFSETS, groups, first if step % 2 else second)
            if words and words[0] == "send":
                one.do(*words[:3], number)
            elif words and words[0] == "offsets":
                one.do(*words[:3], 7 + number)
            else:
                one.do(*(words or (end,)))
        if end == "commit":
            expected.append(number)
        cluster.view.until(
            lambda: committed(cluster, group, topic) == 7 + expected[-1], "the offset is committed"
        )
    read(cluster, topic, [str(number) for number in expected])


def test_kafka_transactions_over_all(cluster: MixedCluster, producer: Make, topic: str) -> None:
    """Lists and describes what each coordinator has, finds no transaction that hangs."""
    cluster.place(topic, [OURS, 2, 1], [1, 2, OURS])
    names: dict[int, str] = {}
    number = 0
    while len(names) < PARTITIONS:
        name = f"{topic}-{number}"
        names.setdefault(partition_for(name, PARTITIONS), name)
        number += 1
    open_ones = {}
    for leader, (partition, name) in zip((1, 2, OURS), sorted(names.items()), strict=True):
        made = producer(name)
        cluster.lead(STATE, partition, leader)
        made.do("begin")
        made.do("send", topic, 0, name)
        made.do("send", topic, 1, name)
        open_ones[leader] = (name, made)
    for bootstrap in (cluster.of(OURS), cluster.of(1)):
        server = ("--bootstrap-server", bootstrap)
        listed = tool(TRANSACTIONS, *server, "list")
        for leader, (name, _) in open_ones.items():
            assert re.search(rf"^{name}\s+{leader}\s+\d+\s+Ongoing\s*$", listed, re.M), listed
            shown = tool(TRANSACTIONS, *server, "describe", "--transactional-id", name)
            assert re.search(rf"^{leader}\s+{name}\s+\d+\s+\d+\s+Ongoing\s", shown, re.M), shown
            # A coordinator of Java's gives them in any order.
            assert re.search(rf"{topic}-0\b", shown) and re.search(rf"{topic}-1\b", shown), shown
    for number in (*JAVA, OURS):
        server = ("--bootstrap-server", cluster.of(OURS))
        found = tool(TRANSACTIONS, *server, "find-hanging", "--broker-id", str(number))
        assert topic not in found, found
    for _, made in open_ones.values():
        made.do("commit")
    listed = tool(TRANSACTIONS, "--bootstrap-server", cluster.of(OURS), "list")
    for leader, (name, _) in open_ones.items():
        assert re.search(
            rf"^{name}\s+{leader}\s+\d+\s+(Prepare|Complete)Commit\s*$", listed, re.M
        ), listed


@pytest.mark.parametrize("client", transactional.ALL, ids=lambda each: each.name)
def test_stock_clients(
    cluster: MixedCluster, topic: str, client: transactional.TransactionalClient
) -> None:
    """Their documentation's code, with ours and with Java as first broker, where each leads."""
    copied = f"{topic}-copy"
    cluster.place(topic, [1, 2, OURS], [OURS, 1, 2], [2, OURS, 1])
    cluster.place(copied, [OURS, 1, 2])
    numbers = [b"v%d" % number for number in range(30)]
    client.produce(cluster.of(OURS), topic, topic, [(numbers, True), ([b"no"], False)])
    for bootstrap in (cluster.of(OURS), cluster.of(1)):
        names = (f"{topic}-copier", f"{topic}-group", topic, copied)
        assert client.copy(bootstrap, *names, 30) == 30
        client.produce(cluster.of(1), f"{topic}-in", topic, [([b"no"], False), (numbers, True)])
    found = client.read_committed(cluster.of(OURS), copied, 60)
    assert sorted(found) == sorted(value.upper() for value in numbers * 2)
    fenced = f"{topic}-fenced"
    cluster.place(fenced, [OURS, 1, 2])
    assert client.fence(cluster.of(OURS), fenced, fenced)
    assert client.read_committed(cluster.of(1), fenced, 1) == [b"of the second"]


def test_transaction_version_changes(cluster: MixedCluster, producer: Make, topic: str) -> None:
    """Down to 1 and 0 and up to 2 while ours is a member: transactions of each level, under each
    coordinator, with each leader. One that was open at the change ends.
    """
    cluster.place(topic, [1, 2, OURS])
    mine = partition_for(topic, PARTITIONS)
    one = producer(topic)
    expected = []
    server = ("--bootstrap-server", cluster.bootstrap)
    for level, way in ((1, "downgrade"), (0, "downgrade"), (1, "upgrade"), (2, "upgrade")):
        one.do("begin")
        one.do("send", topic, 0, f"open-at-{level}")
        tool(
            "org.apache.kafka.tools.FeatureCommand",
            *server,
            way,
            "--feature",
            f"transaction.version={level}",
        )
        one.do("commit")
        expected.append(f"open-at-{level}")
        # A client learns the level as it connects. One that does not know of a downgrade gets
        # UNSUPPORTED_VERSION from Java's coordinator, which cannot write what it asks for.
        one = producer(topic)
        for coordinator, leader in ((OURS, 1), (1, OURS), (OURS, OURS)):
            cluster.lead(STATE, mine, coordinator)
            cluster.lead(topic, 0, leader)
            for end in ("commit", "abort"):
                value = f"{level}-{coordinator}-{leader}-{end}"
                one.do("begin")
                one.do("send", topic, 0, value)
                one.do("offsets", f"group-{topic}", topic, len(expected))
                one.do(end)
                if end == "commit":
                    expected.append(value)
    read(cluster, topic, expected)
    assert committed(cluster, f"group-{topic}", topic) == len(expected) - 1
    last = transactional.Confluent()
    last.produce(cluster.bootstrap, "another", f"{topic}-last", [([b"a"], True)])
    assert last.read_committed(cluster.of(OURS), f"{topic}-last", 1) == [b"a"]


def values(bootstrap: str, topic: str, count: int, seconds: float) -> list[str]:
    """What read_committed sees of partition 0, at least `count` if they come, up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "values",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append(message.value().decode())
            elif message is not None and len(found) >= count:
                break
    finally:
        consumer.close()
    return found


def write(bootstrap: str, topic: str, values: list[str]) -> None:
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
    producer = Producer(settings)
    for value in values:
        producer.produce(topic, value.encode(), partition=0)
    assert producer.flush(WAIT_SECONDS) == 0


class Load:
    """Transactions of librdkafka's (a bank) and of Java's (Kafka's TransactionalMessageCopier).
    `go_on` gives them more whenever they have little left.
    """

    RECORDS, ORDERS = 2000, 50

    def __init__(self, cluster: MixedCluster, directory: Path) -> None:
        self._cluster = cluster
        topics = {"source": 1, "copy": 1, bank.TRANSFERS: 6, bank.LEDGER: 1}
        self.topics = topics | {f"{bank.LEDGER}-by-account": 3}
        for topic, partitions in self.topics.items():
            cluster.view.create(topic, partitions, 3)
        self._wanted = bank.transfers(50_000, seed=11)
        self.ordered = self.records = 0
        self.auditor = bank.Auditor(cluster.bootstrap, bank.LEDGER)
        self.tellers = [bank.Teller(cluster.bootstrap, each).start() for each in range(3)]
        self.copier = Copier(
            directory,
            cluster.bootstrap,
            "source",
            "copy",
            "--transaction-size=20",
            "--use-group-metadata",
            "--enable-random-aborts",
        )
        self._give_the_copier_more()

    def _give_the_copier_more(self) -> None:
        first, self.records = self.records, self.records + self.RECORDS
        write(self._cluster.bootstrap, "source", [str(n) for n in range(first, self.records)])
        self.copier.spawn()

    def go_on(self) -> None:
        self.auditor.look(0.1)
        for teller in self.tellers:
            teller.watch()
        if 2 * self.ordered - self.auditor.bookings < self.ORDERS:
            first, self.ordered = self.ordered, self.ordered + self.ORDERS
            bank.order(self._cluster.bootstrap, self._wanted[first : self.ordered])
        if self.copier.has_ended():
            self._give_the_copier_more()

    def progress(self) -> Callable[[], bool]:
        """A condition: the copier and the bank have done more than when this was called."""
        copied, booked = self.copier.progress(), self.auditor.bookings
        return lambda: copied() and self.auditor.bookings > booked

    def go_on_until(self, condition: Callable[[], Any], what: str) -> None:
        self._cluster.view.until(lambda: (self.go_on(), condition())[1], what)

    def finish(self) -> None:
        """Until all that was given is done. Each transaction is there once, and whole."""
        self._cluster.view.until(self.copier.has_ended, "the copier has ended")
        copied = values(self._cluster.bootstrap, "copy", self.records, WAIT_SECONDS)
        assert copied == [str(n) for n in range(self.records)]
        bookings, balances = 2 * self.ordered, bank.expected(self._wanted[: self.ordered])
        other = bank.Auditor(self._cluster.bootstrap, f"{bank.LEDGER}-by-account")
        for auditor in (self.auditor, other):
            auditor.look_until(bookings, 120, self.tellers)
            auditor.look(2)
            assert (auditor.bookings, auditor.balances) == (bookings, balances)
            auditor.close()
        assert self.auditor.looks > 0

    def __str__(self) -> str:
        staff = "\n".join(map(str, self.tellers))
        return f"{self.records} records, {self.ordered} orders; {self.copier.failures}\n{staff}"

    def stop(self) -> None:
        self.copier.kill()
        for teller in self.tellers:
            teller.stop()


@pytest.mark.timeout(1800)
def test_ten_rounds_of_kills_and_elections(tmp_path: Path) -> None:
    """Under transactions without a pause brokers of both kinds are killed, come back and lead
    again. Each committed transaction is seen once and whole; in the end all replicas are equal.
    """
    require("kafka-tools")
    cluster = MixedCluster(tmp_path)
    load = None
    try:
        view = cluster.start().view
        load = Load(cluster, tmp_path / "copier")
        began = time.monotonic()
        for number in range(10):
            load.go_on_until(load.progress(), "both go on")
            killed_id = (OURS, 1, 2)[number % 3]
            killed = cluster.brokers[killed_id]
            killed.kill()
            load.go_on_until(partial(cluster.is_out, killed_id, STATE), "it is out")
            killed.spawn(wait=False)
            load.go_on_until(cluster.all_serve, "it serves")
            for topic in (*load.topics, STATE, OFFSETS):
                load.go_on_until(partial(cluster.are_in_sync, topic), f"{topic} in sync")
                cluster.prefer(topic, list(view.leaders(topic)))
            print(f"round {number}: {time.monotonic() - began:.0f} s", load)
        load.finish()
        load.stop()
        for node in cluster.brokers.values():
            node.stop()
        report = verify_replicas([Path(node.data) for node in cluster.brokers.values()])
        assert [str(finding) for finding in report.findings] == []
    except BaseException:
        print(load, cluster.log_tail())
        raise
    finally:
        if load is not None:
            load.stop()
        cluster.end()
