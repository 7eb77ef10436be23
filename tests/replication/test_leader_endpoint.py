"""A leader over the wire: versions, what requests say, what answers mean, and its session (RL
6.2, 8.6).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, fail, succeed
from twisted.internet.error import ConnectionLost

from tests.replication.fixtures import TOPIC_ID, batch
from tests.replication.test_requested_partitions import put_exactly
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetcher.fetch_session_handler import (
    RequestedPartition,
    RequestedPartitions,
)
from twisted_broker.replication.fetcher.leader_endpoint import (
    EARLIEST,
    LATEST,
    BrokerEndPoint,
    FetchLimits,
    RemoteLeaderEndPoint,
    fetch_version,
    list_offsets_version,
)
from twisted_broker.replication.fetcher.truncation_decision import EpochEnd, LeaderEpochRequest
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import fetch as fetch_wire
from twisted_broker.wire.messages import list_offsets as offsets_wire
from twisted_broker.wire.messages import offset_for_leader_epoch as epochs_wire
from twisted_broker.wire.schema import decode, encode

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
OTHER, OTHER_ID = TopicPartition("other", 0), bytes(reversed(range(16)))
LATEST_LEVEL = 30


class Wire:
    """A connection whose other side is a function; everything goes through the codec, both ways."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, int]] = []
        self.answer: Callable[[Any], Any] = lambda request: fetch_wire.FetchResponse(session_id=7)
        self.closed = False

    def send(self, request: Any, version: int) -> Deferred:
        seen = decode(type(request), encode(request, version), version)
        self.sent.append((seen, version))
        answer = self.answer(seen)
        if isinstance(answer, Exception):
            return fail(answer)
        return succeed(decode(type(answer), encode(answer, version), version))

    def close(self) -> None:
        self.closed = True


class Asker:
    def __init__(self, level: int = LATEST_LEVEL) -> None:
        self.wire, self.level, self.epoch = Wire(), level, 42
        self.requested = RequestedPartitions(
            [*(TopicPartition("t", number) for number in range(4)), OTHER]
        )
        limits = FetchLimits(500, 1, 10 << 20, 1 << 20)
        self.leader = RemoteLeaderEndPoint(
            BrokerEndPoint(2, "h", 1), self.wire, 1, lambda: self.epoch, lambda: self.level, limits
        )

    def run(self, coroutine) -> Any:
        found: list = []
        ensureDeferred(coroutine).addBoth(found.append)
        if isinstance(found[0], Exception) or hasattr(found[0], "raiseException"):
            found[0].raiseException()
        return found[0]

    def fetch(self, **offsets: int) -> Any:
        return self.ask(
            {TopicPartition("t", int(name[1:])): ask(offset) for name, offset in offsets.items()}
        )

    def ask(self, wanted: dict[TopicPartition, RequestedPartition]) -> Any:
        return self.run(self.leader.fetch(put_exactly(self.requested, wanted)))


def ask(offset: int, topic_id: bytes = TOPIC_ID) -> RequestedPartition:
    return RequestedPartition(topic_id, offset, 5, 4, 0, 1 << 20)


@pytest.mark.parametrize(
    ("level", "fetch", "list_offsets"),
    [
        (7, 13, 7),
        (8, 13, 7),
        (9, 14, 8),
        (10, 15, 8),
        (18, 15, 8),
        (19, 16, 8),
        (20, 16, 8),
        (21, 17, 9),
        (24, 17, 9),
        (25, 17, 10),
        (26, 17, 10),
        (27, 18, 10),
        (28, 18, 10),
        (29, 18, 11),
        (30, 18, 11),
    ],
)
def test_versions_follow_from_the_metadata_version(
    level: int, fetch: int, list_offsets: int
) -> None:
    """RL 8.6: nothing is negotiated between brokers; the table of Apache Kafka 4.3.1's
    MetadataVersion.
    """
    assert (fetch_version(level), list_offsets_version(level)) == (fetch, list_offsets)


def test_what_a_fetch_says() -> None:
    """RL 6.2: replica id and epoch, leader epoch, last fetched epoch, log start, the limits; the
    high watermark stays at its default (RL 8.1).
    """
    asker = Asker()
    asker.ask({A: ask(3), B: ask(9), OTHER: ask(1, OTHER_ID)})
    request, version = asker.wire.sent[0]
    assert version == 18
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level) == (
        500,
        1,
        10 << 20,
        0,
    )
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (1, 42)
    assert (request.session_id, request.session_epoch, request.cluster_id) == (0, 0, None)
    assert [
        (topic.topic_id, [each.partition for each in topic.partitions]) for topic in request.topics
    ] == [(TOPIC_ID, [0, 1]), (OTHER_ID, [0])]
    assert request.topics[0].partitions[0] == fetch_wire.FetchPartition(
        partition=0,
        current_leader_epoch=5,
        fetch_offset=3,
        last_fetched_epoch=4,
        log_start_offset=0,
        partition_max_bytes=1 << 20,
    )


def test_each_request_carries_the_broker_epoch_and_version_of_its_moment() -> None:
    """RL 6.2, 8.6: both may change while the fetcher lives.

    Below 15 the replica id travels alone.
    """
    asker = Asker(level=9)
    asker.fetch(p0=0)
    asker.level, asker.epoch = 30, 77
    asker.fetch(p0=0)
    (old, old_version), (new, new_version) = asker.wire.sent
    assert (old_version, old.replica_id, old.replica_state.replica_epoch) == (14, 1, -1)
    assert (new_version, new.replica_state) == (
        18,
        fetch_wire.ReplicaState(replica_id=1, replica_epoch=77),
    )


def test_what_an_answer_says() -> None:
    """RL 6.3, 6.4: records, marks, errors and the diverging epoch, by the topic's name; a topic
    that was not asked is passed over.
    """
    asker = Asker()
    records = batch(2)
    data = [
        fetch_wire.PartitionData(
            partition_index=0, high_watermark=8, log_start_offset=2, records=records
        ),
        fetch_wire.PartitionData(
            partition_index=1,
            high_watermark=9,
            diverging_epoch=fetch_wire.EpochEndOffset(epoch=3, end_offset=6),
            records=None,
        ),
        fetch_wire.PartitionData(
            partition_index=2,
            error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER),
            high_watermark=-1,
            records=None,
        ),
        fetch_wire.PartitionData(
            partition_index=3, error_code=9999, high_watermark=-1, records=None
        ),
    ]
    answer = fetch_wire.FetchResponse(
        session_id=7,
        responses=[
            fetch_wire.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=data),
            fetch_wire.FetchableTopicResponse(topic_id=OTHER_ID, partitions=data[:1]),
        ],
    )
    asker.wire.answer = lambda request: answer
    found = asker.fetch(p0=0, p1=0, p2=0, p3=0)
    assert sorted(found) == [TopicPartition("t", number) for number in range(4)]
    assert (
        bytes(found[A].records),
        found[A].high_watermark,
        found[A].log_start_offset,
        found[A].diverging_epoch,
    ) == (records, 8, 2, None)
    assert (found[B].diverging_epoch, bytes(found[B].records)) == ((3, 6), b"")
    assert [found[TopicPartition("t", number)].error for number in (2, 3)] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ]


def test_an_answer_about_another_topic_of_the_same_name_is_passed_over() -> None:
    """KIP-516: while a topic is being made anew its partitions may be asked under different ids,
    and each answer is about one of them.
    """
    asker = Asker()
    data = [
        fetch_wire.PartitionData(partition_index=number, high_watermark=8, records=None)
        for number in (0, 1)
    ]
    topics = [
        fetch_wire.FetchableTopicResponse(topic_id=topic_id, partitions=data)
        for topic_id in (TOPIC_ID, OTHER_ID)
    ]
    asker.wire.answer = lambda request: fetch_wire.FetchResponse(session_id=7, responses=topics[1:])
    assert list(asker.ask({A: ask(0), B: ask(0, OTHER_ID)})) == [B]
    assert list(asker.ask({A: ask(0, OTHER_ID)})) == [A]
    asker.wire.answer = lambda request: fetch_wire.FetchResponse(session_id=7, responses=topics[:1])
    assert list(asker.ask({A: ask(0, OTHER_ID)})) == []


def test_names_are_kept_of_topics_that_are_asked_only() -> None:
    """A fetcher lives as long as its leader: what was deleted or moved away meanwhile leaves
    nothing behind.
    """
    asker = Asker()
    asker.ask({A: ask(0), OTHER: ask(0, OTHER_ID)})
    asker.ask({A: ask(1)})
    assert asker.leader._names == {TOPIC_ID: "t"}
    asker.wire.answer = lambda request: ConnectionLost()
    with pytest.raises(ConnectionLost):
        asker.ask({OTHER: ask(0, OTHER_ID)})
    asker.wire.answer = lambda request: fetch_wire.FetchResponse(session_id=7)
    asker.ask({A: ask(1)})
    assert asker.leader._names == {TOPIC_ID: "t"}


def test_one_session_of_incremental_fetches() -> None:
    """RL 6.2: the second request names what moved and forgets what is gone."""
    asker = Asker()
    asker.fetch(p0=0, p1=5)
    asker.fetch(p0=2)
    second = asker.wire.sent[1][0]
    assert (second.session_id, second.session_epoch) == (7, 1)
    assert [
        (topic.topic_id, [each.fetch_offset for each in topic.partitions])
        for topic in second.topics
    ] == [(TOPIC_ID, [2])]
    assert [(topic.topic_id, topic.partitions) for topic in second.forgotten_topics_data] == [
        (TOPIC_ID, [1])
    ]


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ],
)
def test_an_error_of_the_session_leads_back_to_a_full_fetch(error: ErrorCode) -> None:
    """RL 6.2: no partition is blamed: the answer is empty, the next request is full."""
    asker = Asker()
    asker.fetch(p0=0)
    asker.wire.answer = lambda request: fetch_wire.FetchResponse(error_code=int(error))
    assert asker.fetch(p0=1) == {}
    asker.fetch(p0=1)
    last = asker.wire.sent[-1][0]
    assert last.session_epoch == 0 and last.topics[0].partitions[0].fetch_offset == 1


def test_a_lost_connection_leads_back_to_a_full_fetch() -> None:
    """RL 6.2: and the error is the fetcher's."""
    asker = Asker()
    asker.fetch(p0=0)
    asker.wire.answer = lambda request: ConnectionLost()
    with pytest.raises(ConnectionLost):
        asker.fetch(p0=1)
    asker.wire.answer = lambda request: fetch_wire.FetchResponse()
    asker.fetch(p0=1)
    assert asker.wire.sent[-1][0].session_epoch == 0


def test_any_other_error_of_the_whole_answer_is_raised() -> None:
    """RL 6.5: all partitions of the fetcher are delayed then."""
    asker = Asker()
    asker.wire.answer = lambda request: fetch_wire.FetchResponse(
        error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    )
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        asker.fetch(p0=0)


@pytest.mark.parametrize("timestamp", [LATEST, EARLIEST])
def test_asking_for_an_end_of_the_log(timestamp: int) -> None:
    """RL 6.5: ListOffsets as a replica, under the leader epoch known here."""
    asker = Asker()

    def answer(request):
        partition = offsets_wire.ListOffsetsPartitionResponse(
            partition_index=1, offset=123, leader_epoch=5
        )
        return offsets_wire.ListOffsetsResponse(
            topics=[offsets_wire.ListOffsetsTopicResponse(name="t", partitions=[partition])]
        )

    asker.wire.answer = answer
    assert asker.run(asker.leader.fetch_offset(B, 5, timestamp)) == 123
    request, version = asker.wire.sent[0]
    (partition,) = request.topics[0].partitions
    assert (version, request.replica_id, partition.current_leader_epoch, partition.timestamp) == (
        11,
        1,
        5,
        timestamp,
    )


def test_a_refused_question_raises() -> None:
    """RL 6.5: the code of ListOffsets is the refusal; an answer without the partition is none."""
    asker = Asker()
    refused = offsets_wire.ListOffsetsPartitionResponse(
        partition_index=1, error_code=int(ErrorCode.FENCED_LEADER_EPOCH)
    )
    asker.wire.answer = lambda request: offsets_wire.ListOffsetsResponse(
        topics=[offsets_wire.ListOffsetsTopicResponse(name="t", partitions=[refused])]
    )
    with pytest.raises(BrokerError, match="FENCED_LEADER_EPOCH"):
        asker.run(asker.leader.fetch_offset(B, 5, LATEST))
    with pytest.raises(BrokerError, match="UNKNOWN_SERVER_ERROR"):
        asker.run(asker.leader.fetch_offset(A, 5, LATEST))


def test_asking_where_epochs_end() -> None:
    """RL 6.3: one OffsetForLeaderEpoch v4 for all, as a replica."""
    asker = Asker()

    def answer(request):
        ends = [
            epochs_wire.EpochEndOffset(
                partition=each.partition, leader_epoch=each.leader_epoch - 1, end_offset=50
            )
            for each in request.topics[0].partitions
        ]
        ends[1].error_code = int(ErrorCode.UNKNOWN_LEADER_EPOCH)
        return epochs_wire.OffsetForLeaderEpochResponse(
            topics=[epochs_wire.OffsetForLeaderTopicResult(topic="t", partitions=ends)]
        )

    asker.wire.answer = answer
    found = asker.run(
        asker.leader.fetch_epoch_ends({A: LeaderEpochRequest(5, 4), B: LeaderEpochRequest(5, 3)})
    )
    assert found == {
        A: EpochEnd(ErrorCode.NONE, 3, 50),
        B: EpochEnd(ErrorCode.UNKNOWN_LEADER_EPOCH, 2, 50),
    }
    request, version = asker.wire.sent[0]
    assert (version, request.replica_id) == (4, 1)
    assert [
        (each.current_leader_epoch, each.leader_epoch) for each in request.topics[0].partitions
    ] == [(5, 4), (5, 3)]
