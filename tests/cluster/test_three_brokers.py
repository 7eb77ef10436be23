"""Three production brokers in one thread on simulated machines: what the loss of a directory and
a deletion in absence leave behind.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from errno import EIO
from functools import partial
from random import Random
from typing import Any

import pytest

from twisted_broker.image.entries import PartitionRegistration
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.net.client import BrokerConnection
from twisted_broker.simulation.cluster import SimCluster
from twisted_broker.simulation.network import NetworkConditions
from twisted_broker.simulation.node import CLIENT_PORT, SimNode
from twisted_broker.wire.messages import reassignment as reassignment_messages
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from twisted_broker.wire.records import BatchBuilder, iterate_batches

PATIENCE_SECONDS = 120.0


class Three:
    """The cluster and a client."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.runtime = cluster.client_runtime("client")
        cluster.start()
        self.until(lambda: all(node.ready for node in cluster.nodes.values()), "all are ready")

    def node(self, number: int) -> SimNode:
        return self.cluster.nodes[f"n{number}"]

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = self.cluster.sim.now + PATIENCE_SECONDS
        while not condition():
            assert self.cluster.sim.now < end, f"never: {what}"
            self.cluster.run_until(self.cluster.sim.now + 0.05)
        assert not self.cluster.bugs, self.cluster.bugs

    def ask(self, number: int, request: Any, version: int) -> Any:
        connection = BrokerConnection(self.runtime, self.node(number).name, CLIENT_PORT, "client")
        found: list[Any] = []
        connection.send(request, version).addBoth(found.append)
        self.until(lambda: found, f"an answer to {request!r}")
        connection.close()
        if hasattr(found[0], "raiseException"):
            found[0].raiseException()
        return found[0]

    @property
    def image(self) -> MetadataImage:
        """What the controller has decided and made durable."""
        broker = self.cluster.nodes["n1"].broker
        assert broker is not None
        image: MetadataImage = broker.parts.controller.image
        return image

    def partitions(self, topic: str = "t") -> dict[int, PartitionRegistration]:
        found = self.image.topics_by_name.get(topic)
        return {} if found is None else dict(found.partitions)

    def create(self, partitions: int = 1, topic: str = "t") -> None:
        asked = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=3)
        assert (
            self.ask(1, CreateTopicsRequest(topics=[asked], timeout_ms=30_000), 7)
            .topics[0]
            .error_code
            == 0
        )
        self.until(lambda: self.all_in_sync(topic), "all in sync")

    def all_in_sync(self, topic: str = "t") -> bool:
        return all(len(partition.isr) == 3 for partition in self.partitions(topic).values())

    def produce(self, partition: int, value: bytes) -> int:
        """With acks=all, to the leader; the offset."""
        leader = self.partitions()[partition].leader
        builder = BatchBuilder()
        builder.append(0, None, value)
        data = TopicProduceData(
            name="t",
            partition_data=[PartitionProduceData(index=partition, records=builder.build())],
        )
        answer = (
            self.ask(leader, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data]), 9)
            .responses[0]
            .partition_responses[0]
        )
        assert answer.error_code == 0, answer
        return int(answer.base_offset)

    def log(self, number: int, partition: int = 0) -> Any:
        broker = self.node(number).broker
        return None if broker is None else broker.log_manager.get(TopicPartition("t", partition))


@pytest.fixture
def three() -> Iterator[Three]:
    settings = {
        "log.dirs": "/a,/b",
        "metadata.log.dir": "/b",
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }
    settings["replica.lag.time.max.ms"] = (
        "4000"  # so long a replica that fell silent may hold the high watermark back
    )
    with SimCluster(11, 3, settings, NetworkConditions(), shuffle=False) as cluster:
        yield Three(cluster)


def test_a_lost_directory_takes_only_its_partitions(three: Three) -> None:
    """RL 1.12: what lay there is led by others; what lies in the broker's other directory keeps
    its leader and its place in the ISR.
    """
    three.create(partitions=12)
    for number in range(12):
        three.produce(number, b"before")
    before = three.partitions()
    lost = {number for number in before if three.log(2, number).directory.startswith("/a/")}
    assert 0 < len(lost) < 12 and any(before[number].leader == 2 for number in lost)
    broker = three.node(2).broker
    assert broker is not None
    broker.log_manager.directories.fail("/a", OSError(EIO, "broken"))
    three.until(
        lambda: all(2 not in three.partitions()[number].isr for number in lost),
        "the controller knows",
    )
    after = three.partitions()
    for number in range(12):
        moved = number in lost and before[number].leader == 2
        assert (
            after[number].leader in (1, 3)
            if moved
            else after[number].leader == before[number].leader
        )
        assert (2 in after[number].isr) is (number not in lost)
    assert not three.image.brokers[2].fenced and len(three.image.brokers[2].directories) == 1
    three.until(
        lambda: [three.produce(number, b"after") for number in range(12)] == [1] * 12,
        "all partitions take records",
    )


def folders(three: Three) -> list[str]:
    """What is of the first partition on the third broker."""
    disk = three.node(3).disk
    found = [name for directory in ("/a", "/b") for name in disk.listdir(directory)]
    return [name for name in found if name.startswith("t-0")]


def test_a_topic_deleted_while_a_broker_is_away(three: Three) -> None:
    """RL 1.5, 8.5: on its return the old log is deleted, and a new topic of the same name begins
    empty on it.
    """
    three.create()
    three.produce(0, b"old")
    three.node(3).kill()
    three.until(
        lambda: three.partitions()[0].isr and 3 not in three.partitions()[0].isr,
        "3 has left the ISR",
    )
    old_id = three.image.topics_by_name["t"].id
    assert (
        three.ask(1, DeleteTopicsRequest(topic_names=["t"], timeout_ms=30_000), 4)
        .responses[0]
        .error_code
        == 0
    )
    asked = CreatableTopic(name="t", num_partitions=1, replication_factor=3)
    assert (
        three.ask(1, CreateTopicsRequest(topics=[asked], timeout_ms=30_000), 7).topics[0].error_code
        == 0
    )
    assert three.image.topics_by_name["t"].id != old_id
    assert three.produce(0, b"new") == 0
    three.node(3).start()
    three.until(
        lambda: three.all_in_sync() and three.log(3) is not None, "3 is in the new topic's ISR"
    )
    log = three.log(3)
    assert log.topic_id == three.image.topics_by_name["t"].id and log.log_end_offset == 1
    assert any(name.endswith("-delete") for name in folders(three))
    three.until(lambda: folders(three) == ["t-0"], "nothing is left of the old log")


def test_a_replica_that_moves_away_while_its_broker_is_down(three: Three) -> None:
    """RL 1.5: on its return the broker deletes it, as it had when it ran."""
    three.create()
    three.produce(0, b"kept by the others")
    three.node(3).kill()
    three.until(lambda: 3 not in three.partitions()[0].isr, "3 has left the ISR")
    moved = reassignment_messages.ReassignablePartition(partition_index=0, replicas=[1, 2])
    topic = reassignment_messages.ReassignableTopic(name="t", partitions=[moved])
    request = reassignment_messages.AlterPartitionReassignmentsRequest(
        timeout_ms=30_000, topics=[topic]
    )
    three.ask(1, request, 1)
    three.until(lambda: sorted(three.partitions()[0].replicas) == [1, 2], "it moved")
    three.node(3).start()
    three.until(lambda: three.node(3).ready, "3 is back")
    assert [name.endswith("-delete") for name in folders(three)] == [True]
    three.until(lambda: folders(three) == [], "its files are gone")


class Moving(Three):
    """Random reassignments, elections and deaths while a client writes; what it was told is safe
    must be everywhere at the end.
    """

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster)
        self.random = Random(cluster.seed)
        self.acknowledged: list[bytes] = []
        self.places: list[int] = []
        """The partition of each."""
        self.connections = {
            number: BrokerConnection(self.runtime, f"n{number}", CLIENT_PORT, "writer")
            for number in self.numbers
        }
        self.create()
        self.write()

    @property
    def numbers(self) -> list[int]:
        return [int(name[1:]) for name in self.cluster.nodes]

    def write(self) -> None:
        """One record after another, each until it is acknowledged."""
        self._send(b"%d" % len(self.acknowledged))

    def next_place(self) -> int:
        """The partition to write to."""
        return 0

    def _send(self, value: bytes) -> None:
        place = self.next_place()
        state = self.partitions()[place]
        if state.leader < 0:
            self.runtime.clock.callLater(0.05, self._send, value)
            return
        builder = BatchBuilder()
        builder.append(0, None, value)
        data = TopicProduceData(
            name="t", partition_data=[PartitionProduceData(index=place, records=builder.build())]
        )
        request = ProduceRequest(acks=-1, timeout_ms=3_000, topic_data=[data])
        self.connections[state.leader].send(request, 9, timeout_ms=4_000).addBoth(
            self._answered, value, place
        )

    def _answered(self, answer: Any, value: bytes, place: int) -> None:
        if (
            getattr(answer, "responses", None)
            and answer.responses[0].partition_responses[0].error_code == 0
        ):
            self.acknowledged.append(value)
            self.places.append(place)
            self.runtime.clock.callLater(0.01, self.write)
        else:
            self.runtime.clock.callLater(0.05, self._send, value)

    def act(self) -> None:
        """One thing that operators or fate do; n1 holds the controller and stays."""
        kind = self.random.choice(("reassign", "reassign", "cancel", "elect", "kill", "start"))
        chosen = self.random.choice(self.numbers[1:])
        if (
            kind == "kill"
            and self.node(chosen).is_up
            and sum(node.is_up for node in self.cluster.nodes.values()) > 2
        ):
            self.node(chosen).kill()
        elif kind == "start" and not self.node(chosen).is_up:
            self.node(chosen).start()
        elif kind == "elect":
            asked = [reassignment_messages.TopicPartitions(topic="t", partitions=[0])]
            self.ask(
                1,
                reassignment_messages.ElectLeadersRequest(election_type=0, topic_partitions=asked),
                2,
            )
        elif kind in ("reassign", "cancel"):
            self.reassign(
                self.random.sample(self.numbers, self.random.randint(1, 3))
                if kind == "reassign"
                else None
            )

    def reassign(self, replicas: list[int] | None) -> int:
        partitions = [
            reassignment_messages.ReassignablePartition(partition_index=0, replicas=replicas)
        ]
        request = reassignment_messages.AlterPartitionReassignmentsRequest(
            topics=[reassignment_messages.ReassignableTopic(name="t", partitions=partitions)]
        )
        return int(self.ask(1, request, 1).responses[0].partitions[0].error_code)

    def values(self, number: int, partition: int = 0) -> list[bytes | None]:
        """All records of a replica up to its log end."""
        log = self.log(number, partition)
        found: list[bytes | None] = []
        while log.log_start_offset + len(found) < log.log_end_offset:
            data = log.read(log.log_start_offset + len(found), 1 << 20, log.segments.log_end, True)
            found += [
                record.value
                for each in iterate_batches(data.slice.read())
                for record in each.records(1 << 20)
            ]
            data.slice.release()
        return found


@pytest.mark.parametrize("seed", range(6))
def test_moved_under_load_with_deaths_nothing_is_lost(seed: int) -> None:
    """RL 8.5, 9.1: through reassignments, cancellations, elections and kills every acknowledged
    record is in every replica, in order.
    """
    settings = {
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "300",
        "replica.lag.time.max.ms": "3000",
    }
    with SimCluster(seed, 4, settings, NetworkConditions(), shuffle=True) as cluster:
        moving = Moving(cluster)
        for _ in range(25):
            moving.act()
            cluster.run_until(cluster.sim.now + moving.random.choice((0.05, 0.5, 2.5)))
        for node in cluster.nodes.values():
            if not node.is_up:
                node.start()
        moving.until(lambda: all(node.ready for node in cluster.nodes.values()), "all are back")
        assert moving.reassign([2, 3, 4]) == 0
        written = len(moving.acknowledged)

        def settled() -> bool:
            found = moving.partitions()[0]
            return sorted(found.isr) == sorted(found.replicas) == [2, 3, 4]

        moving.until(settled, "the last reassignment is done")
        moving.until(lambda: len(moving.acknowledged) > written + 5, "records flow")
        assert moving.log(1) is None
        acknowledged = list(moving.acknowledged)
        for number in (2, 3, 4):
            missing = iter(moving.values(number))
            assert all(value in missing for value in acknowledged), (
                f"a record is not on {number}, or out of order"
            )
        assert len(acknowledged) > 50


class Growing(Moving):
    """The client writes to all partitions in turn, to new ones as soon as they are there; the
    broker `dying` dies as soon as it has acknowledged something.
    """

    dying = 0

    def next_place(self) -> int:
        return (self.places[-1] + 1) % len(self.partitions()) if self.places else 0

    def _answered(self, answer: Any, value: bytes, place: int) -> None:
        super()._answered(answer, value, place)
        leader = self.partitions()[place].leader
        if leader == self.dying and self.acknowledged[-1:] == [value]:
            self.node(leader).kill()
            self.dying = 0

    def wrote_to_all(self, count: int) -> bool:
        """Whether its last records went to all of so many partitions."""
        return set(self.places[-count:]) == set(range(count))

    def grow(self, count: int) -> None:
        grown = CreatePartitionsTopic(name="t", count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[grown], timeout_ms=30_000)
        assert self.ask(1, request, 3).results[0].error_code == 0


def test_grown_under_load_nothing_is_lost() -> None:
    """RL 8.5: a topic grows while it is written, others come and go beside it, and a broker dies:
    every acknowledged record is in every replica of its partition, in order.
    """
    settings = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"}
    with SimCluster(4, 3, settings, NetworkConditions(), shuffle=True) as cluster:
        growing = Growing(cluster)
        for count in (2, 3, 6):
            growing.create(2, f"beside-{count}")
            growing.grow(count)
            cluster.run_until(cluster.sim.now + 0.5)
            gone = DeleteTopicsRequest(topic_names=[f"beside-{count}"], timeout_ms=30_000)
            assert growing.ask(1, gone, 4).responses[0].error_code == 0
            growing.until(partial(growing.wrote_to_all, count), "all partitions take records")
            if count == 3:
                growing.dying = 3
        assert not growing.node(3).is_up
        growing.node(3).start()
        growing.until(lambda: growing.node(3).ready and growing.all_in_sync(), "all are back")
        acknowledged = list(zip(growing.places, growing.acknowledged, strict=True))
        for number, place in itertools.product((1, 2, 3), range(6)):
            held = iter(growing.values(number, place))
            assert all(value in held for at, value in acknowledged if at == place), (number, place)
        assert len(acknowledged) > 50
