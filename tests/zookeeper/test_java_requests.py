"""What a Java broker of 3.9 sends to members of a ZooKeeper cluster, at each protocol from 2.6 on:
we serve it; and what we send at the two protocols that we know.

Kafka negotiates none of it. Source: Kafka 3.9's `MetadataVersion`, `ControllerChannelManager`,
`AddPartitionsToTxnRequest`, `SaslClientAuthenticator`.
"""

from __future__ import annotations

import pytest

from twisted_broker.api.routes import served_with_zookeeper
from twisted_broker.wire.messages.transactions import WriteTxnMarkersRequest
from twisted_broker.zookeeper.protocol_versions import protocol_of

CHOSEN = {
    "2.6-IV0": (11, 5, 3, 0),
    "2.7-IV0": (11, 5, 3, 0),
    "2.7-IV1": (12, 5, 3, 0),
    "2.7-IV2": (12, 5, 3, 0),
    "2.8-IV0": (12, 6, 4, 1),
    "2.8-IV1": (12, 6, 4, 1),
    "3.0-IV0": (12, 6, 4, 1),
    "3.0-IV1": (12, 7, 4, 1),
    "3.1-IV0": (13, 7, 4, 1),
    "3.2-IV0": (13, 7, 4, 1),
    "3.3-IV0": (13, 7, 4, 1),
    "3.4-IV0": (13, 7, 4, 1),
    "3.5-IV0": (14, 8, 4, 1),
    "3.5-IV1": (15, 8, 4, 1),
    "3.6-IV2": (15, 8, 4, 1),
    "3.7-IV3": (15, 8, 4, 1),
    "3.7-IV4": (16, 8, 4, 1),
    "3.8-IV0": (16, 8, 4, 1),
    "3.9-IV0": (17, 9, 4, 1),
}
"""Protocol -> Fetch, ListOffsets, OffsetForLeaderEpoch, WriteTxnMarkers: `MetadataVersion`."""
APIS = ("Fetch", "ListOffsets", "OffsetForLeaderEpoch", "WriteTxnMarkers")

FROM_THE_CONTROLLER = {
    "2.6-IV0": (4, 3, 6),
    "2.8-IV1": (5, 3, 7),
    "3.2-IV0": (6, 3, 7),
    "3.4-IV0": (7, 4, 8),
}
"""From this protocol on: LeaderAndIsr, StopReplica, UpdateMetadata."""
OF_THE_CONTROLLER = ("LeaderAndIsr", "StopReplica", "UpdateMetadata")

AT_ANY_PROTOCOL = {
    # Before a SASL exchange; then what the answer to the first allows.
    "ApiVersions": 0,
    "SaslHandshake": 1,
    "SaslAuthenticate": 2,
    # Verification: the newest one that the class knows. Kafka 3.6 and 3.7 know only 4.
    "AddPartitionsToTxn": 5,
}
"""AlterPartition, AllocateProducerIds, ControlledShutdown and Envelope go to the controller, a Java
broker."""


def serves(api: str, version: int) -> bool:
    (route,) = (route for route in served_with_zookeeper().values() if route.name == api)
    return route.versions(on_controller=False).min <= version <= route.versions(False).max


@pytest.mark.parametrize("protocol", CHOSEN)
def test_a_member_serves_what_java_brokers_send(protocol: str) -> None:
    refused = [
        (api, version)
        for api, version in zip(APIS, CHOSEN[protocol], strict=True)
        if not serves(api, version)
    ]
    assert not refused


@pytest.mark.parametrize("protocol", FROM_THE_CONTROLLER)
def test_a_member_serves_what_a_java_controller_sends(protocol: str) -> None:
    for api, version in zip(OF_THE_CONTROLLER, FROM_THE_CONTROLLER[protocol], strict=True):
        assert serves(api, version), api


def test_a_member_serves_what_does_not_depend_on_the_protocol() -> None:
    for api, version in AT_ANY_PROTOCOL.items():
        assert serves(api, version), api
    assert serves("AddPartitionsToTxn", 4)


@pytest.mark.parametrize("protocol", ["2.6", "3.9"])
def test_a_member_sends_what_java_brokers_of_its_protocol_send(protocol: str) -> None:
    """Of WriteTxnMarkers it takes what the other serves: a broker of Kafka 2.6 serves 0 only."""
    ours, java = protocol_of(protocol), CHOSEN[f"{protocol}-IV0"]
    assert (ours.fetch, ours.list_offsets, ours.offset_for_leader_epoch) == java[:3]
    assert WriteTxnMarkersRequest.versions.min == 0
