"""What is sent to leaders of a ZooKeeper cluster: versions follow from the protocol of brokers."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, succeed

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetcher.fetch_session_handler import (
    RequestedPartition,
    RequestedPartitions,
)
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint, FetchLimits
from twisted_broker.replication.fetcher.truncation_decision import LeaderEpochRequest
from twisted_broker.wire.messages import fetch, list_offsets, offset_for_leader_epoch
from twisted_broker.wire.schema import decode, encode
from twisted_broker.zookeeper.leader_endpoint import endpoint_class
from twisted_broker.zookeeper.protocol_versions import IBP_2_6, IBP_3_9, InterBrokerProtocol

TOPIC_ID = bytes(range(16))
TP = TopicPartition("t", 0)


class Leader:
    """Takes requests through their bytes, and gives prepared answers."""

    def __init__(self, answer: Any) -> None:
        self.sent: list[tuple[Any, int]] = []
        self._answer = answer

    def send(self, request: Any, version: int) -> Deferred[Any]:
        self.sent.append((decode(type(request), encode(request, version), version), version))
        return succeed(decode(type(self._answer), encode(self._answer, version), version))

    def close(self) -> None:
        """Nothing is open."""


def endpoint(protocol: InterBrokerProtocol, answer: Any) -> tuple[Any, Leader]:
    leader = Leader(answer)
    made = endpoint_class(protocol)(
        BrokerEndPoint(2, "h", 9092), leader, 1, lambda: 70, lambda: 0, FetchLimits()
    )
    return made, leader


def result(work: Any) -> Any:
    found: list[Any] = []
    ensureDeferred(work).addBoth(found.append)
    return found[0]


@pytest.mark.parametrize(
    ("protocol", "version", "topic_id"),
    [(IBP_2_6, 11, bytes(16)), (IBP_3_9, 17, TOPIC_ID)],
    ids=["2.6", "3.9"],
)
def test_fetch(protocol: InterBrokerProtocol, version: int, topic_id: bytes) -> None:
    """At 2.6 topics are named and no epoch of the last record is said; both answers are found."""
    answer = fetch.FetchResponse(
        responses=[
            fetch.FetchableTopicResponse(
                topic="t",
                topic_id=TOPIC_ID,
                partitions=[fetch.PartitionData(partition_index=0, high_watermark=5)],
            )
        ]
    )
    made, leader = endpoint(protocol, answer)
    assert made.truncates_on_fetch is (protocol is IBP_3_9)
    requested = RequestedPartitions([TP])
    requested.put(TP, RequestedPartition(topic_id, 4, 3, 2, 0, 1000))
    found = result(made.fetch(requested))
    assert found[TP].high_watermark == 5
    request, sent_version = leader.sent[0]
    assert sent_version == version
    (partition,) = request.topics[0].partitions
    assert (partition.fetch_offset, partition.current_leader_epoch) == (4, 3)
    assert partition.last_fetched_epoch == (2 if protocol is IBP_3_9 else -1)
    if protocol is IBP_2_6:
        assert (request.topics[0].topic, request.replica_id) == ("t", 1)
    else:
        assert request.replica_state.replica_epoch == 70


@pytest.mark.parametrize(
    ("protocol", "topic_id", "version"), [(IBP_2_6, TOPIC_ID, 11), (IBP_3_9, bytes(16), 12)]
)
def test_fetch_while_the_protocol_is_raised(
    protocol: InterBrokerProtocol, topic_id: bytes, version: int
) -> None:
    """The controller is at another protocol than this broker: topics have ids and requests do not
    say them, or the other way round. By name then.
    """
    part = fetch.PartitionData(partition_index=0, high_watermark=5)
    answer = fetch.FetchResponse(
        responses=[fetch.FetchableTopicResponse(topic="t", partitions=[part])]
    )
    made, leader = endpoint(protocol, answer)
    requested = RequestedPartitions([TP])
    requested.put(TP, RequestedPartition(topic_id, 4, 3, 2, 0, 1000))
    assert result(made.fetch(requested))[TP].high_watermark == 5
    request, sent_version = leader.sent[0]
    assert (sent_version, request.replica_id, request.topics[0].topic) == (version, 1, "t")


@pytest.mark.parametrize("before", [bytes(16), TOPIC_ID])
def test_by_name_a_topic_with_another_id_is_not_forgotten(before: bytes) -> None:
    """KIP-516: it got its id, or was made anew. By name the leader would forget what the same
    request has just named, and answer nothing about it any more.
    """
    made, leader = endpoint(IBP_2_6, fetch.FetchResponse(session_id=7))
    gone = TopicPartition("u", 0)
    requested = RequestedPartitions([TP, gone])
    for name in (TP, gone):
        requested.put(name, RequestedPartition(before, 4, 3, 2, 0, 1000))
    result(made.fetch(requested))
    requested.put(TP, RequestedPartition(bytes(range(1, 17)), 0, 0, -1, 0, 1000))
    requested.remove(gone)
    result(made.fetch(requested))
    request, _ = leader.sent[1]
    assert (request.session_epoch, [topic.topic for topic in request.topics]) == (1, ["t"])
    assert [topic.topic for topic in request.forgotten_topics_data] == ["u"]


@pytest.mark.parametrize(("protocol", "version"), [(IBP_2_6, 5), (IBP_3_9, 9)])
def test_list_offsets(protocol: InterBrokerProtocol, version: int) -> None:
    answer = list_offsets.ListOffsetsResponse(
        topics=[
            list_offsets.ListOffsetsTopicResponse(
                name="t",
                partitions=[list_offsets.ListOffsetsPartitionResponse(partition_index=0, offset=8)],
            )
        ]
    )
    made, leader = endpoint(protocol, answer)
    assert result(made.fetch_offset(TP, 3, -2)) == 8
    assert leader.sent[0][1] == version


@pytest.mark.parametrize(("protocol", "version"), [(IBP_2_6, 3), (IBP_3_9, 4)])
def test_offset_for_leader_epoch(protocol: InterBrokerProtocol, version: int) -> None:
    answer = offset_for_leader_epoch.OffsetForLeaderEpochResponse(
        topics=[
            offset_for_leader_epoch.OffsetForLeaderTopicResult(
                topic="t",
                partitions=[
                    offset_for_leader_epoch.EpochEndOffset(
                        partition=0, leader_epoch=2, end_offset=7
                    )
                ],
            )
        ]
    )
    made, leader = endpoint(protocol, answer)
    found = result(made.fetch_epoch_ends({TP: LeaderEpochRequest(3, 2)}))
    assert found[TP].end_offset == 7 and leader.sent[0][1] == version
