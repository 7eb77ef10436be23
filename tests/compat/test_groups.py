"""Consumer groups with stock clients: sharing, resuming, rebalancing, and looking at them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.compat import clients
from tests.compat.broker_process import BrokerProcess
from tests.compat.raw import Connection, create_topic

LIMIT_SECONDS = 90


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {LIMIT_SECONDS} s: {what}"
        time.sleep(0.01)


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    """A topic of four partitions with 200 records."""
    with Connection(broker.address) as connection:
        assert create_topic(connection, topic, partitions=4) == 0
    clients.Confluent().produce(
        broker.bootstrap, topic, "none", [(b"%d" % n, b"value %d" % n, ()) for n in range(200)]
    )
    return topic


class Member:
    """A consumer that polls on its own thread.

    Of librdkafka: kafka-python 3.0.12 loses an assignment that arrives as its poll times out.
    """

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 200,
            }
        )
        self.consumer.subscribe([topic])
        self.assigned: set[int] = set()
        self.seen: list[bytes] = []
        self.stopping = False
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self) -> None:
        while not self.stopping:
            self.seen += [
                message.value() or b""
                for message in self.consumer.consume(100, 0.05)
                if message.error() is None
            ]
            self.assigned = {partition.partition for partition in self.consumer.assignment()}
        self.consumer.close()

    def stop(self) -> None:
        self.stopping = True
        self.thread.join(LIMIT_SECONDS)


@pytest.fixture
def member(broker: BrokerProcess) -> Iterator[Callable[[str, str], Member]]:
    made: list[Member] = []

    def make(topic: str, group: str) -> Member:
        made.append(Member(broker.bootstrap, topic, group))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def test_a_group_shares_and_takes_over(filled: str, member: Callable[[str, str], Member]) -> None:
    """The first member has all partitions; a second one gets half; when it leaves, the first has
    all again.
    """
    group = f"shared-{filled}"
    first = member(filled, group)
    until(lambda: first.assigned == {0, 1, 2, 3}, "the first member owns everything")
    until(lambda: len(first.seen) == 200, "and reads everything")
    second = member(filled, group)
    until(lambda: len(first.assigned) == len(second.assigned) == 2, "both own two")
    assert first.assigned | second.assigned == {0, 1, 2, 3}
    second.stop()
    until(lambda: first.assigned == {0, 1, 2, 3}, "the first one owns everything again")


def test_a_group_resumes_where_it_committed(broker: BrokerProcess, filled: str) -> None:
    """A new consumer of the group gets what the last one did not commit, from whatever library."""
    group = f"resumed-{filled}"
    first = clients.AioKafka().consume(broker.bootstrap, filled, group, 200)
    clients.Confluent().produce(broker.bootstrap, filled, "lz4", [(None, b"late", ())])
    rest = clients.KafkaPython().consume(broker.bootstrap, filled, group, 1)
    assert len(first) == 200 and rest == [(None, b"late", ())]


def test_offsets_are_seen_and_changed_from_outside(broker: BrokerProcess, filled: str) -> None:
    """List, describe, read and alter offsets, and delete the group, through librdkafka's admin
    client.
    """
    group = f"seen-{filled}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    clients.Confluent().consume(broker.bootstrap, filled, group, 200)
    until(
        lambda: (
            group in {g.group_id for g in admin.list_consumer_groups().result(LIMIT_SECONDS).valid}
        ),
        "the group is listed",
    )
    described = admin.describe_consumer_groups([group])[group].result(LIMIT_SECONDS)
    until(
        lambda: not admin.describe_consumer_groups([group])[group].result(LIMIT_SECONDS).members,
        "its member has left",
    )
    assert described.group_id == group
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(filled, p) for p in range(4)])
    offsets = (
        admin.list_consumer_group_offsets([wanted])[group].result(LIMIT_SECONDS).topic_partitions
    )
    assert sum(p.offset for p in offsets) == 200
    back = ConsumerGroupTopicPartitions(group, [TopicPartition(filled, p, 0) for p in range(4)])
    admin.alter_consumer_group_offsets([back])[group].result(LIMIT_SECONDS)
    assert len(clients.Confluent().consume(broker.bootstrap, filled, group, 200)) == 200
    admin.delete_consumer_groups([group])[group].result(LIMIT_SECONDS)
    assert group not in {
        g.group_id for g in admin.list_consumer_groups().result(LIMIT_SECONDS).valid
    }


def test_a_static_member_keeps_its_share(broker: BrokerProcess, filled: str) -> None:
    """A consumer with `group.instance.id` that goes and comes back at once finds its assignment
    unchanged.
    """
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": f"static-{filled}",
        "group.instance.id": "one",
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 10_000,
    }
    seen = []
    for _ in range(2):
        consumer = Consumer(settings)
        consumer.subscribe([filled])
        until(lambda consumer=consumer: bool(consumer.consume(10, 0.1)), "records come")  # type: ignore[misc]
        seen.append({p.partition for p in consumer.assignment()})
        consumer.close()
    assert seen == [{0, 1, 2, 3}] * 2
