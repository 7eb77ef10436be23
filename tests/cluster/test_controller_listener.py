"""What a controller serves to the nodes of its cluster, on a listener of its own, even with one
node (RL 8.1).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.fixtures import Fixture
from tests.compare.side import built
from tests.memory_broker import MemoryBroker
from twisted_broker.security.principal import Principal, encode_principal
from twisted_broker.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from twisted_broker.wire.header import RequestHeader, encode_request_header
from twisted_broker.wire.messages import broker_lifecycle as lifecycle
from twisted_broker.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from twisted_broker.wire.messages.fetch import FetchRequest
from twisted_broker.wire.messages.log_dirs import AssignReplicasToDirsRequest
from twisted_broker.wire.messages.producer_ids import AllocateProducerIdsRequest
from twisted_broker.wire.messages.quorum import FetchSnapshotRequest
from twisted_broker.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from twisted_broker.wire.schema import encode

FOR_NODES = {
    "Fetch": 1,
    "AlterPartition": 56,
    "Envelope": 58,
    "FetchSnapshot": 59,
    "BrokerRegistration": 62,
    "BrokerHeartbeat": 63,
    "AllocateProducerIds": 67,
    "AssignReplicasToDirs": 73,
}
LEVELS = {
    "metadata.version": 30,
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker().start()


def asked(broker: MemoryBroker, port: int) -> ApiVersionsResponse:
    answer: ApiVersionsResponse = broker.ask(
        ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4, port
    )
    assert answer.error_code == 0
    return answer


def test_a_controller_listener_serves_what_nodes_ask(broker: MemoryBroker) -> None:
    """RL 8.1: each API by which Kafka's nodes follow, register, beat, change ISRs, take ids,
    place replicas and forward.
    """
    on_controller = {each.api_key for each in asked(broker, 9093).api_keys}
    on_broker = {each.api_key for each in asked(broker, 9092).api_keys}
    assert set(FOR_NODES.values()) <= on_controller
    assert set(FOR_NODES.values()) & on_broker == {FOR_NODES["Fetch"]}


def test_each_request_of_a_node_is_served_on_that_listener() -> None:
    """RL 8.1: over the network and to the effect: broker 7, which is no part of this process,
    registers, beats, takes producer ids, names its directory and changes an ISR; a client's
    request comes in an envelope; the log and its snapshot are read.
    """
    broker = MemoryBroker(metadata_log_max_record_bytes_between_snapshots="1").start()
    controller = broker.broker.parts.controller
    assert controller is not None

    def ask(request: Any, version: int) -> Any:
        answer = broker.ask(request, version, 9093)
        assert getattr(answer, "error_code", 0) == 0, answer
        broker.pass_time(1.0)
        return answer

    of_seven = Fixture().registration(7, cluster_id=broker.broker.cluster_id)
    epoch = ask(of_seven, 4).broker_epoch
    assert controller.image.brokers[7].epoch == epoch and controller.image.brokers[7].fenced
    beat = {"broker_id": 7, "broker_epoch": epoch}
    ask(lifecycle.BrokerHeartbeatRequest(current_metadata_offset=epoch, **beat), 1)
    assert not controller.image.brokers[7].fenced

    placed = [CreatableReplicaAssignment(partition_index=0, broker_ids=[7, 1])]
    topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=placed)
    inside = CreateTopicsRequest(topics=[topic], timeout_ms=1_000)
    header = encode_request_header(RequestHeader(inside.api_key, 7, 99, "client"))
    envelope = lifecycle.EnvelopeRequest(
        request_data=header + encode(inside, 7),
        request_principal=encode_principal(Principal("User", "alice")),
        client_host_address=bytes(4),
    )
    assert ask(envelope, 0).response_data
    created = controller.image.topics_by_name["t"]
    assert created.partitions[0].leader == 7

    first = controller.image.next_producer_id
    assert ask(AllocateProducerIdsRequest(**beat), 0).producer_id_start == first
    assert controller.image.next_producer_id == first + 1_000
    held = {"topics": [{"topic_id": created.id, "partitions": [{"partition_index": 0}]}]}
    directory = of_seven.log_dirs[0]
    ask(
        built(AssignReplicasToDirsRequest, 0, beat | {"directories": [{"id": directory} | held]}), 0
    )
    assert controller.image.topics_by_name["t"].partitions[0].directory_of(7) == directory
    state = controller.image.topics_by_name["t"].partitions[0]
    alone = {
        "partition_index": 0,
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
        "new_isr_with_epochs": [beat],
    }
    change = {"topics": [{"topic_id": created.id, "partitions": [alone]}]}
    ask(built(lifecycle.AlterPartitionRequest, 3, beat | change), 3)
    assert controller.image.topics_by_name["t"].partitions[0].isr == (7,)

    leader = {"partition": 0, "current_leader_epoch": 1}
    newest = controller.log.snapshots[-1]
    wanted = {"end_offset": newest.end_offset, "epoch": newest.epoch}
    named = {"name": METADATA_TOPIC, "partitions": [leader | {"snapshot_id": wanted}]}
    (piece,) = ask(built(FetchSnapshotRequest, 1, {"topics": [named]}), 1).topics[0].partitions
    assert piece.error_code == 0 and piece.size == len(piece.unaligned_records) > 0
    at = {
        "fetch_offset": newest.end_offset,
        "last_fetched_epoch": 1,
        "partition_max_bytes": 1 << 20,
    }
    log = {"topic_id": METADATA_TOPIC_ID, "partitions": [leader | at]}
    (read,) = ask(built(FetchRequest, 17, {"topics": [log]}), 17).responses[0].partitions
    assert (read.error_code, read.current_leader.leader_id) == (0, 1)
    assert read.high_watermark >= newest.end_offset > epoch
    broker.stop()


def test_a_new_cluster_says_its_levels(broker: MemoryBroker) -> None:
    """RL 8.1: metadata.version 30, ELR, group.version, share.version and streams.version 1,
    transaction.version 2 are finalised, as soon as the broker follows; other features are at 0 and
    not said.
    """
    answer = asked(broker, 9092)
    assert {each.name: each.max_version_level for each in answer.finalized_features} == LEVELS
    supported = {
        each.name: (each.min_version, each.max_version) for each in answer.supported_features
    }
    assert (
        all(
            low <= LEVELS[name] <= high for name, (low, high) in supported.items() if name in LEVELS
        )
        and LEVELS.keys() <= supported.keys()
    )
