"""The consumer of docs/CONSUMER.md against a broker process: the page's program, and a group that
it shares with kafka-python.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer

from tests.compat import clients
from tests.compat.broker_process import BrokerProcess
from tests.compat.raw import Connection, create_topic
from tests.compat.test_groups import until
from twisted_broker.testing import Cluster

PAGE = (Path(__file__).parents[2] / "docs" / "CONSUMER.md").read_text()
PROGRAM, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MEMBER = """
import sys
from twisted.internet import reactor
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import LoopingCall, react
from twisted_broker.consumer import ConsumerConnector

async def main(reactor, servers, topic, group):
    settings = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "smallest"}
    consumer = ConsumerConnector(settings | {"heartbeat.interval.ms": 200})
    (stream,) = (await consumer.create_message_streams({topic: 1}))[topic]
    shown = [None]
    def show():
        owned = sorted(each.partition for each in consumer.fetchers.partitions)
        if shown[0] != owned:
            shown[0] = owned
            print("owns", *owned, flush=True)
    LoopingCall(show).start(0.02)
    reactor.addSystemEventTrigger(
        "before", "shutdown", lambda: ensureDeferred(consumer.shutdown())
    )
    async for message in stream:
        print("read", message.partition, message.offset, flush=True)

react(main, sys.argv[1:])
"""


class Member:
    """Our consumer in a process of its own."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.owned: set[int] = set()
        self.read: list[tuple[int, int]] = []
        self.others: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, bootstrap, topic, group],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.thread = threading.Thread(target=self._follow)
        self.thread.start()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            if words[:1] == ["owns"]:
                self.owned = {int(each) for each in words[1:]}
            elif words[:1] == ["read"]:
                self.read.append((int(words[1]), int(words[2])))
            else:
                self.others.append(line)

    def progress(self) -> Callable[[], bool]:
        """A condition: records have been read that were not when this was called."""
        before = len(self.read)
        return lambda: len(self.read) > before + 20

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.thread.join(30)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class OtherMember:
    """kafka-python's consumer, on a thread; one poll outlasts a rebalance."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
        )
        self.read: list[tuple[int, int]] = []
        self.stopping = False
        self.thread = threading.Thread(target=self._poll)
        self.thread.start()

    def _poll(self) -> None:
        while not self.stopping:
            for records in self.consumer.poll(3000).values():
                self.read += [(each.partition, each.offset) for each in records]
        self.consumer.close()

    def stop(self) -> None:
        self.stopping = True
        self.thread.join(30)


@pytest.fixture
def started() -> Iterator[Callable[..., Member | OtherMember]]:
    made: list[Member | OtherMember] = []

    def start(kind: type[Member | OtherMember], *arguments: str) -> Member | OtherMember:
        made.append(kind(*arguments))
        return made[-1]

    yield start
    for each in made:
        each.stop()


def produce(bootstrap: str, topic: str, *values: bytes) -> None:
    # With keys: without them all of a moment go to one partition.
    clients.Confluent().produce(bootstrap, topic, "lz4", [(each, each, ()) for each in values])


def test_the_pages_program(kafka: Cluster) -> None:
    """Issue 13: a Twisted program that consumes a topic in a dozen lines, as the page has it."""
    assert len([line for line in PROGRAM.splitlines() if line]) <= 13
    produce(kafka.bootstrap, "greetings", b"hello", b"bye")
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("127.0.0.1:9092", kafka.bootstrap)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert (said.stdout, said.returncode) == ("0 0 hello\n0 1 bye\n", 0)


def test_a_group_shared_with_kafka_python(
    broker: BrokerProcess, topic: str, started: Callable[..., Member | OtherMember]
) -> None:
    """RL 7.5: the other client gets half of the partitions once ours has stopped and committed, and
    ours gets them back; every record is read once.
    """
    group = f"shared-{topic}"
    with Connection(broker.address) as connection:
        assert create_topic(connection, topic, partitions=4) == 0
    ours = started(Member, broker.bootstrap, topic, group)
    assert isinstance(ours, Member)
    until(lambda: ours.owned == {0, 1, 2, 3}, f"ours owns everything: {ours.others}")
    produce(broker.bootstrap, topic, *[b"%d" % number for number in range(200)])
    theirs = started(OtherMember, broker.bootstrap, topic, group)
    until(lambda: len(ours.owned) == 2, "both own two")
    produce(broker.bootstrap, topic, *[b"%d" % number for number in range(200)])
    until(lambda: len(ours.read) + len(theirs.read) >= 400, "all is read")
    theirs.stop()
    until(lambda: ours.owned == {0, 1, 2, 3}, "ours owns everything again")
    produce(broker.bootstrap, topic, *[b"%d" % number for number in range(100)])
    until(lambda: len(ours.read) + len(theirs.read) >= 500, "all is read again")
    ours.stop()
    assert ours.process.returncode == 0 and ours.others == []
    read = ours.read + theirs.read
    assert len(read) == len(set(read)) == 500 and len(theirs.read) > 0
    looking = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    found = looking.committed([TopicPartition(topic, number) for number in range(4)], 30)
    looking.close()
    assert sum(each.offset for each in found) == 500
