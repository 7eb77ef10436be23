"""Consumer groups of KIP-848 with stock clients: librdkafka's consumer and admin client, and Java's
console tools.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.compat import clients
from tests.compat.raw import Connection, address, create_topic
from tests.compat.test_groups import LIMIT_SECONDS
from tests.compat.test_kafka_tools import jars, tool
from twisted_broker.testing import Cluster

__all__ = ["jars"]
RECORDS = 60
# Short, so that a test takes a second or two.
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.assignment.interval.ms": "100",
}
REBALANCING = {KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION}
ALL = {0, 1, 2, 3, 4, 5}


@pytest.fixture(scope="module")
def quick() -> Iterator[Cluster]:
    with Cluster(1, SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def filled(quick: Cluster, topic: str) -> str:
    """A topic of six partitions."""
    with Connection(address(quick.bootstrap)) as connection:
        assert create_topic(connection, topic, partitions=len(ALL)) == 0
    rows = [(b"%d" % n, b"value %d" % n, ()) for n in range(RECORDS)]
    clients.Confluent().produce(quick.bootstrap, topic, "none", rows)
    return topic


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


class Members:
    """Consumers of one group, polled in turn by the test."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.bootstrap, self.group = bootstrap, group
        self.consumers: dict[str, Consumer] = {}
        self.seen: list[tuple[int, int]] = []

    def join(self, name: str, *topics: str, **settings: Any) -> None:
        self.consumers[name] = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "group.protocol": "consumer",
                "client.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **settings,
            }
        )
        self.consumers[name].subscribe(list(topics))

    def owned(self, name: str) -> set[int]:
        return {each.partition for each in self.consumers[name].assignment()}

    def poll(self) -> None:
        for consumer in self.consumers.values():
            for message in consumer.consume(100, 0.01):
                assert message.error() is None, message.error()
                self.seen.append((message.partition(), message.offset()))
                try:
                    consumer.commit(message=message, asynchronous=False)
                except KafkaException as error:
                    # A classic member in a rebalance: whoever gets the partition reads it again.
                    assert error.args[0].code() in REBALANCING, error

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, what
            self.poll()

    def read(self, records: int) -> None:
        self.until(lambda: len(set(self.seen)) == records, f"{records} are read")

    def share(self, *names: str) -> bool:
        """Whether these own everything, equally, and each partition once."""
        owned = [self.owned(name) for name in names]
        return set().union(*owned) == ALL and all(
            len(each) == len(ALL) // len(names) for each in owned
        )

    def leave(self, name: str) -> None:
        self.consumers.pop(name).close()


@pytest.fixture
def members(quick: Cluster, group: str) -> Iterator[Members]:
    made = Members(quick.bootstrap, group)
    yield made
    for name in list(made.consumers):
        made.leave(name)


@pytest.fixture
def admin(quick: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": quick.bootstrap})


def described(admin: AdminClient, group: str) -> Any:
    return admin.describe_consumer_groups([group])[group].result(LIMIT_SECONDS)


def test_three_members_share_and_take_over(members: Members, filled: str) -> None:
    """All come, and one leaves: the others have what it had; every record is read once."""
    for name in "abc":
        members.join(name, filled)
    members.until(lambda: members.share("a", "b", "c"), "three own two each")
    members.until(lambda: len(members.seen) >= RECORDS, "all is read")
    assert len(members.seen) == len(set(members.seen)) == RECORDS
    members.leave("b")
    members.until(lambda: members.share("a", "c"), "two own three each")
    committed = members.consumers["a"].committed([TopicPartition(filled, p) for p in ALL])
    assert sum(each.offset for each in committed) == RECORDS


PROGRAM = """
import sys
from confluent_kafka import Consumer
bootstrap, group, topic = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group,
    "group.protocol": "consumer", "client.id": "killed", "enable.auto.commit": False})
consumer.subscribe([topic])
while True:
    consumer.poll(0.05)
    if consumer.assignment():
        print("owns", flush=True)
"""


def test_a_member_that_is_killed_is_replaced(
    members: Members, filled: str, quick: Cluster, group: str
) -> None:
    """Its session ends."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, quick.bootstrap, group, filled], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"owns\n"
        members.join("a", filled)
        members.until(lambda: len(members.owned("a")) == 3, "they share")
        process.kill()
        members.until(lambda: members.share("a"), "the other one has all")


def test_a_static_member_comes_back_to_its_partitions(
    members: Members, filled: str, admin: AdminClient, group: str
) -> None:
    """While it is away nobody else gets them, and nothing is assigned anew."""
    members.join("a", filled, **{"group.instance.id": "one"})
    members.join("b", filled)
    members.until(lambda: members.share("a", "b"), "they share")
    before = members.owned("a")
    members.leave("a")
    members.join("c", filled, **{"group.instance.id": "one"})
    members.until(lambda: bool(members.owned("c")), "it is back")
    assert members.owned("c") == before
    assert {m.client_id for m in described(admin, group).members} == {"b", "c"}


CLASSIC = {
    "group.protocol": "classic",
    "heartbeat.interval.ms": 100,
    "session.timeout.ms": 6_000,
    "partition.assignment.strategy": "range",
}


@pytest.mark.more
def test_members_are_restarted_one_by_one_with_the_other_protocol_and_back(
    members: Members, filled: str, quick: Cluster, admin: AdminClient, group: str
) -> None:
    """GN 2.110, 2.120: the group goes on; no record is lost."""
    members.join("a", filled, **CLASSIC)
    members.join("b", filled, **CLASSIC)
    members.until(lambda: members.share("a", "b"), "both are classic")
    rows = [(b"%d" % n, b"more %d" % n, ()) for n in range(RECORDS)]
    for number, (left, joins, settings, kind) in enumerate(
        [
            ("a", "c", {}, ConsumerGroupType.CONSUMER),
            ("b", "d", {}, ConsumerGroupType.CONSUMER),
            ("c", "e", CLASSIC, ConsumerGroupType.CONSUMER),
            ("d", "f", CLASSIC, ConsumerGroupType.CLASSIC),
        ]
    ):
        members.join(joins, filled, **settings)
        members.leave(left)
        clients.Confluent().produce(quick.bootstrap, filled, "none", rows)
        members.until(lambda: members.share(*members.consumers), f"after {left} all share")
        members.read(RECORDS * (number + 2))
        listed = {each.group_id: each.type for each in admin.list_consumer_groups().result().valid}
        assert listed[group] is kind


def test_a_pattern_is_resolved_by_the_broker(members: Members, filled: str) -> None:
    members.join("a", f"^{filled[:12]}.*")
    members.until(lambda: members.share("a"), "it owns what matches")
    members.until(lambda: len(members.seen) == RECORDS, "and reads it")


def test_the_admin_client_sees_the_group(
    members: Members, filled: str, admin: AdminClient, group: str
) -> None:
    """Described, listed by its type, refused to be deleted; its offsets altered once it is empty,
    and deleted.
    """
    members.join("a", filled)
    members.until(lambda: len(members.seen) == RECORDS, "it reads")
    found = described(admin, group)
    assert (found.state, found.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    assert (found.partition_assignor, len(found.members)) == ("uniform", 1)
    assert {p.partition for p in found.members[0].assignment.topic_partitions} == ALL

    def listed(kind: ConsumerGroupType) -> set[str]:
        answer = admin.list_consumer_groups(types={kind}).result(LIMIT_SECONDS)
        return {each.group_id for each in answer.valid}

    assert group in listed(ConsumerGroupType.CONSUMER) - listed(ConsumerGroupType.CLASSIC)
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([group])[group].result(LIMIT_SECONDS)
    members.leave("a")
    back = ConsumerGroupTopicPartitions(group, [TopicPartition(filled, p, 0) for p in ALL])
    admin.alter_consumer_group_offsets([back])[group].result(LIMIT_SECONDS)
    members.join("again", filled)
    members.until(lambda: len(members.seen) == 2 * RECORDS, "all is read again")
    members.leave("again")
    admin.delete_consumer_groups([group])[group].result(LIMIT_SECONDS)
    assert group not in listed(ConsumerGroupType.CONSUMER)


def test_members_go_on_after_a_restart_of_the_broker(
    members: Members, filled: str, quick: Cluster, admin: AdminClient, group: str
) -> None:
    """They keep their ids, and what they own."""
    members.join("a", filled)
    members.join("b", filled)
    members.until(lambda: members.share("a", "b"), "they share")
    members.until(lambda: len(members.seen) == RECORDS, "all is read")
    ids = {m.member_id: m.client_id for m in described(admin, group).members}
    quick.broker(1).stop()
    quick.broker(1).restart()
    clients.Confluent().produce(quick.bootstrap, filled, "none", [(b"k", b"late", ())])
    members.until(lambda: len(members.seen) == RECORDS + 1, "the late one is read, and no other")
    assert {m.member_id: m.client_id for m in described(admin, group).members} == ids


def test_javas_console_tools(quick: Cluster, filled: str, group: str, jars: str) -> None:
    read = tool(
        jars,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", quick.bootstrap, "--topic", filled, "--group", group),
        *("--from-beginning", "--max-messages", str(RECORDS)),
        *("--command-property", "group.protocol=consumer"),
    )
    assert len(set(read.split("\n")) - {""}) == RECORDS

    def groups(*arguments: str) -> str:
        return tool(
            jars,
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            *("--bootstrap-server", quick.bootstrap, *arguments),
        )

    listed = groups("--list", "--type", "consumer", "--state")
    assert re.search(rf"{group} +Consumer +Empty", listed), listed
    assert len(re.findall(filled, groups("--describe", "--group", group))) == len(ALL)
    earliest = (
        "--reset-offsets",
        "--group",
        group,
        "--topic",
        filled,
        "--to-earliest",
        "--execute",
    )
    assert len(re.findall(rf"{filled} +\d+ +0", groups(*earliest))) == len(ALL)
    assert "was successful" in groups("--delete", "--group", group)
