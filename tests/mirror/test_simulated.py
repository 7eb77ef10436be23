"""Two simulated clusters of two brokers each, a mirror between them, and faults under a seed: at
the end the target's bytes are the source's, leader epochs aside, on every replica.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from twisted.python.failure import Failure

from tests.mirror.world import batches_of, some_batch
from twisted_broker.config import SAMPLE_VALUES
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.mirror.mirror import Mirror, MirrorOptions
from twisted_broker.net.client import BrokerConnection
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.network import NetworkConditions
from twisted_broker.simulation.node import CLIENT_PORT, CONTROLLER_PORT, SimNode
from twisted_broker.simulation.world import SimWorld
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest

PARTITIONS = 4
PATIENCE_SECONDS = 180.0
FAULTS = ("mirror", "source", "target", "target", "stop", "cut", "cut", "one way", "none")
SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "4000",
    "offsets.topic.replication.factor": "1",
}


def settings_of(number: int) -> dict[str, str]:
    """n1 and n2 are the source, n3 and n4 the target; the first of each is the controller too."""
    first = number - 1 + number % 2
    values = dict(SAMPLE_VALUES) | SETTINGS | {"node.id": str(number), "log.dirs": "/data"}
    values["listeners"] = f"PLAINTEXT://n{number}:{CLIENT_PORT}"
    if number == first:
        values["listeners"] += f",CONTROLLER://n{first}:{CONTROLLER_PORT}"
    else:
        values |= {
            "process.roles": "broker",
            "controller.quorum.bootstrap.servers": f"n{first}:{CONTROLLER_PORT}",
        }
    return values


class TwoClusters(SimWorld):
    """`reached`: what the faults did, by kind."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, NetworkConditions(), shuffle=True, trace=False)
        self.nodes = {n: SimNode(self, n, settings_of(n)) for n in (1, 2, 3, 4)}
        for number in (3, 4):
            self.nodes[number].cluster_id = "dGhlLXRhcmdldC1jbHVzdA"
        self.client = self.client_runtime("client")
        self.disk = SimDisk()
        self.mirror: Mirror | None = None
        self.lines: list[str] = []
        self.failures: list[Any] = []
        self.reached: Counter[str] = Counter()
        self.runs = 0

    def until(self, condition: Any, what: str) -> None:
        end = self.sim.now + PATIENCE_SECONDS
        while not condition():
            assert self.sim.now < end, (what, self.lines, self.state())
            self.run_until(self.sim.now + 0.05)
            assert not self.bugs, self.bugs
            assert not self.failures, self.failures

    def state(self) -> list[Any]:
        refusals = [node.refusals for node in self.nodes.values()]
        return [refusals, *(self.mirror.progress() if self.mirror is not None else ())]

    def ask(self, number: int, request: Any, version: int) -> Any:
        """The answer, None when none came."""
        connection = BrokerConnection(
            self.client, f"n{number}", CLIENT_PORT, "client", request_timeout_ms=5000
        )
        found: list[Any] = []
        connection.send(request, version).addBoth(found.append)
        self.until(lambda: found, "an answer")
        connection.close()
        return None if hasattr(found[0], "raiseException") else found[0]

    def begin(self) -> None:
        self.all_up()
        made = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=2)
        asked = CreateTopicsRequest(topics=[made], timeout_ms=30_000)
        self.until(
            lambda: (answer := self.ask(1, asked, 7)) and not answer.topics[0].error_code,
            "the topic is made",
        )

    def all_up(self) -> None:
        self.run_until(self.sim.now + 0.1)  # what was started a moment ago has a process then
        for node in self.nodes.values():
            if not node.is_up:
                node.start()
        self.until(lambda: all(node.ready for node in self.nodes.values()), "all are ready")

    def partition(self, number: int, index: int) -> Any:
        broker = self.nodes[number].broker
        manager = None if broker is None else broker.parts.replica_manager
        return None if manager is None else manager.partitions.get(TopicPartition("t", index))

    def leader(self, numbers: tuple[int, ...], index: int) -> int | None:
        return next(
            (
                number
                for number in numbers
                if (found := self.partition(number, index)) is not None and found.is_leader
            ),
            None,
        )

    def produce(self, index: int, data: bytes) -> None:
        """Until it is acknowledged; it may be there twice, as with any producer of this kind."""

        def is_done() -> bool:
            leader = self.leader((1, 2), index)
            if leader is None:
                return False
            part = PartitionProduceData(index=index, records=data)
            asked = ProduceRequest(
                acks=-1,
                timeout_ms=3000,
                topic_data=[TopicProduceData(name="t", partition_data=[part])],
            )
            answer = self.ask(leader, asked, 9)
            return answer is not None and not answer.responses[0].partition_responses[0].error_code

        self.until(is_done, "it is produced")

    def start_mirror(self, random: Random, *, follow_loss: bool = False) -> None:
        self.runs += 1
        runtime = self.client_runtime(f"mirror{self.runs}")
        runtime = Runtime(
            runtime.clock,
            runtime.wall_ms,
            runtime.network,
            self.disk,
            runtime.disk,
            runtime.random,
        )
        options = MirrorOptions(
            f"n1:{CLIENT_PORT},n2:{CLIENT_PORT}",
            f"n3:{CLIENT_PORT},n4:{CLIENT_PORT}",
            "t",
            "/side",
            2,
            2000,
            random.choice([120, 1000, 1 << 20]),
            follow_loss=follow_loss,
        )
        self.mirror = Mirror(runtime, options, self.lines.append)
        self.mirror.ended.addErrback(self._mirror_failed)
        self.mirror.start()

    def _mirror_failed(self, failure: Failure) -> None:
        self.failures.append(failure.value)

    def fault(self, random: Random, kind: str) -> None:
        self.network.heal()
        self.reached[kind] += 1
        if kind == "mirror" and self.mirror is not None:
            self.mirror.stop()
            self.start_mirror(random)
        elif kind in ("cut", "one way"):  # until the next fault
            one, other = random.sample([f"mirror{self.runs}", *map("n{}".format, self.nodes)], 2)
            self.network.block(one, other)
            if kind == "cut":
                self.network.block(other, one)
            self.run_until(self.sim.now + 8 * random.random())
        elif kind in ("source", "target", "stop"):
            numbers = {"source": (1, 2), "target": (3, 4), "stop": (2, 4)}[kind]
            node = self.nodes[random.choice(numbers)]
            if node.ready and not node.stopping:
                if kind == "stop":
                    node.stop()
                    self.until(lambda: not node.is_up, "it is stopped")
                else:
                    node.kill()
                if random.random() < 0.5:
                    self.run_until(self.sim.now + 6 * random.random())
                node.start()

    def stop_all(self, numbers: tuple[int, ...]) -> None:
        for number in sorted(numbers, reverse=True):  # the controller last
            self.nodes[number].stop()
            self.until(lambda node=self.nodes[number]: not node.is_up, "it is stopped")

    def is_equal(self) -> bool:
        return all(
            (found := self.partition(n, index)) is not None and found.log is not None
            for n in self.nodes
            for index in range(PARTITIONS)
        ) and all(
            len({len(content) for content in contents}) == 1 and contents.count(contents[0]) == 4
            for index in range(PARTITIONS)
            for contents in [[self.content(n, index) for n in self.nodes]]
        )

    def content(self, number: int, index: int) -> list[bytes]:
        return batches_of(self.partition(number, index).log)


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(12, 200))]
)
def test_faults_on_both_sides(seed: int) -> None:
    """Brokers of both sides die, leave and return, leaders move, ways between any two are cut, the
    mirror is killed: nothing is missed, nothing is there twice.
    """
    random = Random(f"mirror {seed}")
    with TwoClusters(seed) as world:
        world.begin()
        world.start_mirror(random)
        number = 0
        for kind in ["cut", *random.choices(FAULTS, k=9)]:
            for _ in range(random.randrange(1, 6)):
                number += 1
                data = some_batch(*[b"%d" % number * 20] * random.randrange(1, 4))
                world.produce(random.randrange(PARTITIONS), data)
            world.fault(random, kind)
        world.network.heal()
        world.all_up()
        world.until(world.is_equal, "all replicas of both sides are equal")
        assert number and sum(world.reached.values()) == 10
        assert all(world.partition(n, 0).log.high_watermark >= 0 for n in (3, 4))
        world.mirror.stop()


@pytest.mark.parametrize("seed", range(2))
def test_followers_of_the_target_follow_a_loss(seed: int) -> None:
    """The source's disks are set back: with `follow_loss` all replicas of the target drop what was
    lost, while one of them dies in the middle, and become the source's.
    """
    random = Random(f"loss {seed}")
    with TwoClusters(seed) as world:
        world.begin()
        for number in range(8):
            world.produce(number % 2, some_batch(b"%d" % number))
        world.stop_all((1, 2))
        before = {number: world.nodes[number].disk.after_power_loss(1.0) for number in (1, 2)}
        world.all_up()
        for number in range(8):
            world.produce(number % 2, some_batch(b"lost %d" % number))
        world.start_mirror(random, follow_loss=True)
        world.until(lambda: world.mirror is not None and world.mirror.has_caught_up, "all is there")
        world.stop_all((1, 2))
        for number, disk in before.items():
            world.nodes[number].disk = disk
        world.all_up()
        for number in range(4):
            world.produce(number % 2, some_batch(b"new %d" % number))
        world.nodes[4].kill()
        world.run_until(world.sim.now + 5 * random.random())
        world.all_up()
        world.until(world.is_equal, "all replicas of both sides are equal")
        assert any("dropping" in line for line in world.lines), world.lines
        dropped = [world.partition(number, 0).history.truncations for number in (3, 4)]
        assert any(dropped), "nobody truncated"
        world.mirror.stop()
