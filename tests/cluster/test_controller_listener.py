"""What a controller serves to the nodes of its cluster, on a listener of its own, even with one
node (RL 8.1).
"""

from __future__ import annotations

import pytest

from tests.memory_broker import MemoryBroker
from twisted_broker.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

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
LEVELS = {"metadata.version": 30, "eligible.leader.replicas.version": 1}


@pytest.fixture
def house() -> MemoryBroker:
    return MemoryBroker().start()


def asked(house: MemoryBroker, port: int) -> ApiVersionsResponse:
    answer: ApiVersionsResponse = house.ask(
        ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4, port
    )
    assert answer.error_code == 0
    return answer


def test_a_controller_listener_serves_what_nodes_ask(house: MemoryBroker) -> None:
    """RL 8.1: each API by which Kafka's nodes follow, register, beat, change ISRs, take ids,
    place replicas and forward.
    """
    on_controller = {each.api_key for each in asked(house, 9093).api_keys}
    on_broker = {each.api_key for each in asked(house, 9092).api_keys}
    assert set(FOR_NODES.values()) <= on_controller
    assert set(FOR_NODES.values()) & on_broker == {FOR_NODES["Fetch"]}


def test_a_new_cluster_says_its_levels(house: MemoryBroker) -> None:
    """RL 8.1: metadata.version 30 and ELR 1 are finalised, as soon as the broker follows; other
    features are at 0 and not said.
    """
    answer = asked(house, 9092)
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
    for feature in ("group.version", "transaction.version", "share.version", "streams.version"):
        assert supported.get(feature, (0, 0))[1] == 0, "what is not served is not claimed"
