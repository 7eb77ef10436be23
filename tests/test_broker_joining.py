"""Nodes of one cluster in memory: a controller alone, brokers that join it, and what a broker
makes of the history it reads at its start.
"""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred
from twisted.internet.protocol import Factory, Protocol

from tests.memory_broker import MemoryBroker
from twisted_broker.cluster import observer
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.log_directory import LogDirMismatch
from twisted_broker.log.meta_properties import read_meta_properties
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.wire.errors import BrokerError, error_of
from twisted_broker.wire.messages.api_versions import ApiVersionsRequest
from twisted_broker.wire.messages.cluster import DescribeClusterRequest
from twisted_broker.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from twisted_broker.wire.primitives import uuid_text

CONTROLLER = "CONTROLLER://127.0.0.1:9093"


def memory_controller(**more: Any) -> MemoryBroker:
    return MemoryBroker(process_roles="controller", node_id="100", listeners=CONTROLLER, **more)


def memory_broker(
    other: MemoryBroker, node_id: int = 1, port: int = 9092, **more: Any
) -> MemoryBroker:
    """A broker on the same clock and network as another node."""
    settings = {
        "process_roles": "broker",
        "node_id": str(node_id),
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }
    return MemoryBroker(
        world=other, controller_quorum_bootstrap_servers="127.0.0.1:9093", **settings, **more
    )


def test_an_empty_broker_adopts_its_controllers_cluster() -> None:
    """A new directory is formatted with the id that the controller tells (KIP-919)."""
    controller = memory_controller().start()
    broker = memory_broker(controller).start()
    assert broker.broker.cluster_id == controller.broker.cluster_id
    found = read_meta_properties(broker.files, "/data")
    assert found is not None and (found.cluster_id, found.node_id) == (
        controller.broker.cluster_id,
        1,
    )
    broker.stop()
    controller.stop()


def test_an_empty_broker_waits_for_its_controller() -> None:
    """It may be started first; until then nothing is formatted."""
    controller = memory_controller()
    broker = memory_broker(controller)
    starting = ensureDeferred(broker.broker.start())
    broker.pass_time(3)
    assert not starting.called and not broker.files.exists("/data/meta.properties")
    controller.start()
    broker.run(starting)
    assert broker.broker.cluster_id == controller.broker.cluster_id
    broker.stop()
    controller.stop()


def test_stopped_before_its_controller_came_it_ends() -> None:
    """The wait ends with the broker, and leaves nothing behind."""
    controller = memory_controller()
    broker = memory_broker(controller)
    starting = ensureDeferred(broker.broker.start())
    broker.pass_time(1)
    broker.stop()
    with pytest.raises(BrokerError):
        broker.run(starting)
    assert not broker.files.exists("/data/meta.properties")


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
def test_stopped_while_its_controller_says_nothing_it_ends_at_once(pause_s: float) -> None:
    """Neither the request that waits nor the pause after a failed one outlives the stop."""
    controller = memory_controller()
    if not pause_s:
        controller.network.listen("127.0.0.1", 9093, Factory.forProtocol(Protocol))
    broker = memory_broker(controller)
    starting = ensureDeferred(broker.broker.start())
    broker.pass_time(1 + pause_s)
    assert broker.clock.getDelayedCalls()
    stopped = ensureDeferred(broker.broker.stop())
    broker.pass_time(0.01)
    assert stopped.called and starting.called
    assert broker.clock.getDelayedCalls() == []
    with pytest.raises(BrokerError):
        broker.run(starting)


def test_a_named_cluster_must_be_the_directorys() -> None:
    """`--cluster-id` of another cluster than the directory's is refused before anything is
    opened.
    """
    controller = memory_controller().start()
    broker = memory_broker(controller).start()
    broker.stop()
    controller.stop()
    with pytest.raises(LogDirMismatch):
        memory_broker(controller, files=broker.files, cluster_id=uuid_text(bytes(range(16))))


def test_a_controllers_listener_describes_controllers() -> None:
    """KIP-919: DescribeCluster on the controller's listener: the cluster's id, the controller's
    address; brokers are not told there.
    """
    controller = memory_controller().start()
    answer = controller.ask(DescribeClusterRequest(endpoint_type=2), 1, port=9093)
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (
        0,
        controller.broker.cluster_id,
        100,
    )
    assert [(each.broker_id, each.host, each.port) for each in answer.brokers] == [
        (100, "127.0.0.1", 9093)
    ]
    assert answer.cluster_authorized_operations == -(2**31)
    asked = DescribeClusterRequest(endpoint_type=2, include_cluster_authorized_operations=True)
    assert controller.ask(asked, 1, port=9093).cluster_authorized_operations > 0
    for version, kind, code in (
        (0, 1, "INVALID_REQUEST"),
        (1, 1, "MISMATCHED_ENDPOINT_TYPE"),
        (2, 3, "UNSUPPORTED_ENDPOINT_TYPE"),
    ):
        refused = controller.ask(DescribeClusterRequest(endpoint_type=kind), version, port=9093)
        assert error_of(refused.error_code).name == code, "as Kafka 4.3.1 answers"
    controller.stop()


def test_controllers_and_brokers_claim_the_same_features() -> None:
    """QU 4.19, 6.3: both serve kraft.version 1; a new cluster has none finalised."""
    controller = memory_controller().start()
    broker = memory_broker(controller).start()
    claimed = {}
    for node, port in ((controller, 9093), (broker, 9092)):
        answer = node.ask(
            ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4, port=port
        )
        claimed[port] = {
            each.name: (each.min_version, each.max_version) for each in answer.supported_features
        }
    assert claimed[9093] == claimed[9092]
    assert claimed[9092]["kraft.version"] == (0, 1)
    assert claimed[9092]["metadata.version"] == (7, 30)
    registered = controller.broker.parts.controller.image.brokers[1].features
    assert registered["kraft.version"].contains(1) and registered.keys() == claimed[9092].keys()
    broker.stop()
    controller.stop()


def test_history_is_not_lived_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """RL 1.3, 8.2: a broker that starts takes its roles as of its registration.

    Old leaderships in the metadata log begin no epoch anew.
    """
    controller = memory_controller().start()
    broker = memory_broker(controller).start()
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5)
    for _ in range(3):
        broker.stop()
        broker = memory_broker(controller, files=broker.files).start()
    broker.stop()
    before = broker.broker.parts.replica_manager.partitions[TopicPartition("t", 0)].leader_epoch
    monkeypatch.setattr(observer, "_FETCH_BYTES", 200)  # the history comes in many pieces
    taken: list[int] = []
    real = Partition.make_leader
    monkeypatch.setattr(
        Partition,
        "make_leader",
        lambda self, state, *rest: (taken.append(state.leader_epoch), real(self, state, *rest))[1],
    )
    broker = memory_broker(controller, files=broker.files).start()
    assert taken == [
        broker.broker.parts.replica_manager.partitions[TopicPartition("t", 0)].leader_epoch
    ]
    assert taken[0] >= before >= 3
    broker.stop()
    controller.stop()


def test_the_minimum_isr_of_a_brokers_own_file_is_below_the_clusters() -> None:
    """A cluster begins with its controller's `min.insync.replicas` as the one of all brokers
    (KIP-966); the same values, sources and order as from Apache Kafka 4.3.1 with these two files.
    """
    controller = memory_controller().start()
    broker = memory_broker(controller, min_insync_replicas="2").start()
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5)
    cluster, own, default = ("1", 3), ("2", 4), ("1", 5)
    expected = {
        (2, "t"): [cluster, own, default],
        (4, str(broker.broker.config.node_id)): [cluster, own, default],
        (4, ""): [cluster],
    }
    for (kind, name), synonyms in expected.items():
        asked = DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=["min.insync.replicas"]
        )
        answer = broker.ask(DescribeConfigsRequest(resources=[asked], include_synonyms=True), 4)
        (found,) = answer.results[0].configs
        assert (found.value, found.config_source) == cluster
        assert [(each.value, each.source) for each in found.synonyms] == synonyms
    partition = broker.broker.parts.replica_manager.partition(TopicPartition("t", 0))
    assert partition.log.config.min_insync_replicas == 1
    broker.stop()
    controller.stop()
