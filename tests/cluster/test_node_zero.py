"""A broker whose `node.id` is 0, which Kafka allows: where -1 means nobody, 0 is somebody."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.test_three_brokers import Three
from twisted_broker.simulation.cluster import SimCluster
from twisted_broker.simulation.network import NetworkConditions
from twisted_broker.simulation.node import SimNode
from twisted_broker.wire.messages import offsets, reassignment
from twisted_broker.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)

FOLLOWER, CONTROLLER = {0: 2, 1: 1, 2: 3}, {0: 1, 1: 2, 2: 3}
"""node id -> the number of its machine; the first machine is the controller, too"""
SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "4000",
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.num.partitions": "6",
}


class Numbered(Three):
    """The three machines under other node ids."""

    def __init__(self, cluster: SimCluster, machines: dict[int, int]) -> None:
        self.machines = machines
        for number, machine in machines.items():
            node = cluster.nodes[f"n{machine}"]
            node.settings = {**node.settings, "node.id": str(number)}
        super().__init__(cluster)

    def node(self, number: int) -> SimNode:
        return super().node(self.machines[number])


@pytest.fixture
def three(request: pytest.FixtureRequest) -> Iterator[Numbered]:
    with SimCluster(5, 3, SETTINGS, NetworkConditions(), shuffle=False) as cluster:
        yield Numbered(cluster, request.param)


def with_ids(*machines: dict[int, int]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("three", machines, indirect=True)


@with_ids(FOLLOWER)
def test_it_leads_follows_and_comes_back(three: Numbered) -> None:
    """RL 1.6, 1.13, 2.2, 8.3: it leads, is fetched from, loses its leadership, follows, and is
    elected again; what it reads as a follower is replication.
    """
    assigned = [CreatableReplicaAssignment(partition_index=0, broker_ids=[0, 1, 2])]
    topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assigned)
    three.ask(1, CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
    three.until(three.all_in_sync, "all in sync")
    assert three.partitions()[0].leader == 0 and three.produce(0, b"one") == 0
    three.node(0).kill()
    three.until(lambda: three.partitions()[0].leader in (1, 2), "another leads")
    assert three.produce(0, b"two") == 1
    three.node(0).start()
    three.until(three.all_in_sync, "0 is in the ISR again")
    assert three.produce(0, b"three") == 2 and three.log(0).log_end_offset == 3
    for number in (0, 1, 2):
        stats = three.node(number).broker.broker_server.replica_manager.stats.topics["t"]
        assert stats.bytes_out == 0
        assert bool(stats.replication_bytes_out) is (number == three.partitions()[0].leader)
    asked = [reassignment.TopicPartitions(topic="t", partitions=[0])]
    three.ask(1, reassignment.ElectLeadersRequest(election_type=0, topic_partitions=asked), 2)
    assert three.partitions()[0].leader == 0 and three.produce(0, b"four") == 3


@with_ids(FOLLOWER, CONTROLLER)
def test_it_coordinates_groups(three: Numbered) -> None:
    """A client is sent to it, and it takes the group's commits."""
    three.create()
    found: list[str] = []

    def coordinated() -> bool:
        """Groups whose coordinator it is: of ten there are some."""
        names = [f"group-{number}" for number in range(10)]
        answer = three.ask(1, offsets.FindCoordinatorRequest(coordinator_keys=names), 4)
        found[:] = [each.key for each in answer.coordinators if each.node_id == 0]
        return all(each.error_code == 0 for each in answer.coordinators)

    three.until(coordinated, "all groups have a coordinator")
    committed = offsets.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=7, committed_metadata=""
    )
    request = offsets.OffsetCommitRequest(
        group_id=found[0],
        topics=[offsets.OffsetCommitRequestTopic(name="t", partitions=[committed])],
    )
    three.until(
        lambda: three.ask(0, request, 8).topics[0].partitions[0].error_code == 0, "it has loaded"
    )
