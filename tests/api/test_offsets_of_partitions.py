"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords and DescribeProducers over their versions (RL
2.6-2.8, 3.4).
"""

from __future__ import annotations

import errno

import pytest

from tests.api.data_plane import Api, DenyList
from tests.log.manual_worker import ManualWorker
from tests.replication.fixtures import TP, WALL_MS, Fixture, at, batch, follower, registration
from twisted_broker.api.context import RequestContext
from twisted_broker.api.delete_records import delete_records
from twisted_broker.api.list_offsets import list_offsets
from twisted_broker.api.offset_for_leader_epoch import offset_for_leader_epoch
from twisted_broker.api.producers import describe_producers
from twisted_broker.log import segment as segment_module
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.memory import MemoryFile, MemoryFileSystem
from twisted_broker.log.verification import NOT_REQUIRED
from twisted_broker.turns import LOOK_ELEMENTS
from twisted_broker.wire.errors import BrokerError, ErrorCode, error_of
from twisted_broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from twisted_broker.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from twisted_broker.wire.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from twisted_broker.wire.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)


def made(states=None, authorizer=None) -> Api:
    fixture = Fixture()
    fixture.topic(states=states)
    return Api(fixture, authorizer)


def listed(
    api: Api,
    timestamp: int,
    version: int = 11,
    replica: int = -1,
    isolation: int = 0,
    partition: int = 0,
    topic: str = "t",
    **fields,
):
    asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, **fields)
    request = ListOffsetsRequest(
        replica_id=replica, isolation_level=isolation if version >= 2 else 0
    )
    request.topics.append(ListOffsetsTopic(name=topic, partitions=[asked]))
    answer = api.now(list_offsets, ListOffsetsResponse, request, version)
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 12))
def test_the_special_offsets(version):
    """RL 3.4: latest, earliest, the largest timestamp from 7 on, earliest local from 8 on,
    tiered ones -1; before: UNSUPPORTED_VERSION.
    """
    api = made()
    api.fixture.produce(3, timestamp=WALL_MS)
    api.fixture.produce(3, timestamp=WALL_MS - 500)
    api.fixture.replicas.delete_records([(TP, 1)])

    def offset(timestamp: int) -> int | str:
        found = listed(api, timestamp, version)
        return found.offset if found.error_code == 0 else error_of(found.error_code).name

    assert (offset(LATEST), offset(EARLIEST)) == (6, 1)
    assert offset(MAX_TIMESTAMP) == (2 if version >= 7 else "UNSUPPORTED_VERSION")
    assert offset(EARLIEST_LOCAL) == (1 if version >= 8 else "UNSUPPORTED_VERSION")
    assert offset(LATEST_TIERED) == (-1 if version >= 9 else "UNSUPPORTED_VERSION")
    assert offset(PENDING_UPLOAD) == (-1 if version >= 11 else "UNSUPPORTED_VERSION")


def test_by_timestamp():
    """RL 3.4: the first record with a timestamp at or after the one asked, its epoch; none: -1,
    -1.
    """
    api = made()
    for number in range(4):
        api.fixture.produce(2, timestamp=WALL_MS + 1000 * number)
    found = listed(api, WALL_MS + 1001)
    assert (found.offset, found.timestamp, found.leader_epoch) == (3, WALL_MS + 1001, 0)
    found = listed(api, WALL_MS + 10_000)
    assert (found.offset, found.timestamp, found.error_code) == (-1, -1, 0)


def test_who_may_see_which_end():
    """RL 3.4: a follower the log end, a consumer the high watermark, or the last stable offset
    when it reads committed.
    """
    api = made({0: registration(1, (1, 2))})
    api.fixture.produce(2)
    open_transaction = batch(
        2, producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    api.fixture.replicas.append(
        [(TP, open_transaction)],
        1,
        origin=AppendOrigin.COORDINATOR,
        guards={TP: NOT_REQUIRED},
    )
    api.fixture.produce(3)
    api.fixture.replicas.fetch(follower(2), [at(5)])
    assert listed(api, LATEST, replica=2).offset == 7
    assert listed(api, LATEST).offset == 5
    assert listed(api, LATEST, isolation=1).offset == 2


def test_records_above_the_readers_end_are_not_found():
    """RL 3.4: a record above the high watermark is not told to a consumer."""
    api = made({0: registration(1, (1, 2))})
    api.fixture.produce(1, timestamp=WALL_MS + 50)
    assert listed(api, WALL_MS + 50).offset == -1
    assert listed(api, WALL_MS + 50, replica=2).offset == 0


@pytest.mark.parametrize("stays_leader", [True, False])
def test_a_long_search_by_time_lets_others_be_served(stays_leader, monkeypatch):
    """RL 3.4: in pieces; a leader that was deposed in between refuses, as at the beginning."""
    monkeypatch.setattr(segment_module, "HEADERS_PER_STEP", 1)
    api = made({0: registration(1, (1, 2), (1,))})
    for later_ms in (9, *[1] * 20, 5):
        api.fixture.produce(1, timestamp=WALL_MS + later_ms)
    api.fixture.replicas.delete_records([(TP, 1)])
    asked = ListOffsetsPartition(partition_index=0, timestamp=MAX_TIMESTAMP)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked])]
    )
    answers = api.ask(list_offsets, ListOffsetsResponse, request, 11)
    assert answers == []
    if not stays_leader:
        api.fixture.topic(states={0: registration(2, (1, 2), None, 3, 1)})
    while not answers:
        api.fixture.clock.advance(0)
    found = answers[0].topics[0].partitions[0]
    assert (error_of(found.error_code).name, found.offset) == (
        ("NONE", 21) if stays_leader else ("NOT_LEADER_OR_FOLLOWER", -1)
    )


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)]
)
def test_a_new_leader_does_not_know_the_end_yet(version, code):
    """RL 2.7: high watermark below the epoch's start: OFFSET_NOT_AVAILABLE (v5+),
    LEADER_NOT_AVAILABLE before; followers are served.
    """
    api = made({0: registration(1, (1, 2))})
    api.fixture.produce(4)
    api.fixture.topic(states={0: registration(1, (1, 2), None, 3, 1)})
    assert listed(api, LATEST, version).error_code == code
    assert listed(api, LATEST, version, replica=2).offset == 4
    assert listed(api, EARLIEST, version).offset == 0
    api.fixture.replicas.fetch(follower(2), [at(4)])
    assert listed(api, LATEST, version).offset == 4


@pytest.mark.parametrize("version", [0, 1, 4, 11])
def test_refusals(version):
    """RL 5.1, 2.6: forbidden, unknown, not led here, fenced, named twice, a replica id nobody
    may use.
    """
    api = made(
        {0: registration(1, leader_epoch=3), 1: registration(2, (2, 3))},
        DenyList(("DESCRIBE", "secret"), ("DESCRIBE", "none")),
    )
    assert (
        listed(api, LATEST, version, topic="secret").error_code
        == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    assert (
        listed(api, LATEST, version, topic="none").error_code
        == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    assert (
        listed(api, LATEST, version, partition=7).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert listed(api, LATEST, version, partition=1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version >= 4:
        assert (
            listed(api, LATEST, version, current_leader_epoch=2).error_code
            == ErrorCode.FENCED_LEADER_EPOCH
        )
        assert (
            listed(api, LATEST, version, current_leader_epoch=9).error_code
            == ErrorCode.UNKNOWN_LEADER_EPOCH
        )
        assert (
            listed(api, LATEST, version, current_leader_epoch=-2).error_code
            == ErrorCode.FENCED_LEADER_EPOCH
        )
    with pytest.raises(BrokerError):
        listed(api, LATEST, version, replica=-3)


@pytest.mark.parametrize("timestamp", [-7, -8, -(2**63)])
@pytest.mark.parametrize("version", [1, 6, 11])
def test_special_timestamps_that_no_version_knows(version, timestamp):
    """Below the last special timestamp nothing is searched: UNSUPPORTED_VERSION."""
    api = made()
    api.fixture.produce(3)
    found = listed(api, timestamp, version)
    assert (found.error_code, found.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)


def test_a_partition_named_twice():
    """ListOffsets v1+: INVALID_REQUEST for a partition that is named more than once; the others
    are answered.
    """
    api = made({0: registration(), 1: registration()})
    asked = [ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in (0, 1, 0)]
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=asked)]
    )
    answer = api.now(list_offsets, ListOffsetsResponse, request, 5)
    assert [partition.error_code for partition in answer.topics[0].partitions] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]


@pytest.mark.parametrize("version", [0, 7])
def test_a_partition_whose_files_cannot_be_read(version, monkeypatch):
    """RL 1.12: KAFKA_STORAGE_ERROR for that one; the others of the request are answered."""
    api = made({0: registration(), 1: registration()})
    for each in (TP, TP._replace(partition=1)):
        api.fixture.replicas.produce([(each, batch())], 1)

    def failing(real):
        def call(self, *arguments):
            path = arguments[0] if isinstance(self, MemoryFileSystem) else self.path
            if "/t-0/" in path:
                raise OSError(errno.EIO, "no")
            return real(self, *arguments)

        return call

    for owner, name in ((MemoryFileSystem, "modified_ms"), (MemoryFile, "read_at")):
        monkeypatch.setattr(owner, name, failing(getattr(owner, name)))
    asked = [
        ListOffsetsPartition(partition_index=index, timestamp=WALL_MS, max_num_offsets=1)
        for index in (0, 1)
    ]
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=asked)]
    )
    answer = api.now(list_offsets, ListOffsetsResponse, request, version)
    assert [each.error_code for each in answer.topics[0].partitions] == [
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NONE,
    ]


def test_version_0_lists_segments():
    """ListOffsets v0: starts of segments, newest first, the end before them; earliest is the log
    start, and a time gives those last written at or before it; at most as many as asked.
    """
    api = made()
    log = api.fixture.partition().log
    for _ in range(3):
        api.fixture.produce(2)
        log.roll(WALL_MS)
    api.fixture.produce(1)
    assert listed(api, LATEST, 0, max_num_offsets=10).old_style_offsets == [7, 6, 4, 2, 0]
    assert listed(api, LATEST, 0, max_num_offsets=2).old_style_offsets == [7, 6]
    assert listed(api, LATEST, 0).old_style_offsets == [7]
    assert listed(api, EARLIEST, 0, max_num_offsets=5).old_style_offsets == [0]
    nodes = api.fixture.files.nodes
    for number, segment in enumerate(log.segments):
        nodes[segment.log.path].modified_ms = WALL_MS - 100 + 10 * number
    assert listed(api, LATEST, 0, max_num_offsets=9).old_style_offsets == [7, 6, 4, 2, 0]
    for later_ms, starts in ((-1, []), (0, [0]), (15, [2, 0]), (20, [4, 2, 0])):
        found = listed(api, WALL_MS - 100 + later_ms, 0, max_num_offsets=9)
        assert found.old_style_offsets == starts


def test_version_0_ends_at_the_high_watermark():
    """ListOffsets v0: a client is shown the high watermark instead of what lies above it."""
    api = made({0: registration(1, (1, 2))})
    api.fixture.produce(5)
    api.fixture.replicas.fetch(follower(2), [at(3)])
    assert listed(api, LATEST, 0, max_num_offsets=10).old_style_offsets == [3, 0]
    assert listed(api, LATEST, 0, replica=2, max_num_offsets=10).old_style_offsets == [5, 0]


# OffsetForLeaderEpoch


def ended(
    api: Api,
    epoch: int,
    version: int = 4,
    partition: int = 0,
    topic: str = "t",
    current: int = -1,
    replica: int = -1,
):
    asked = OffsetForLeaderPartition(
        partition=partition, leader_epoch=epoch, current_leader_epoch=current
    )
    request = OffsetForLeaderEpochRequest(
        replica_id=replica, topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])]
    )
    answer = api.now(offset_for_leader_epoch, OffsetForLeaderEpochResponse, request, version)
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(5))
def test_where_an_epoch_ends(version):
    """KIP-101, KIP-279: the largest epoch up to the one asked and its end; the current one ends
    at the log end; unknown: -1, no error.
    """
    api = made()
    api.fixture.produce(3)
    api.fixture.topic(states={0: registration(leader_epoch=4, partition_epoch=1)})
    api.fixture.produce(2)

    def end(epoch: int):
        found = ended(api, epoch, version)
        assert found.error_code == 0
        return found.end_offset if version == 0 else (found.leader_epoch, found.end_offset)

    expected = [(0, 3), (0, 3), (4, 5), (-1, -1)]
    assert [end(epoch) for epoch in (0, 2, 4, 9)] == [
        offset if version == 0 else (epoch, offset) for epoch, offset in expected
    ]


def test_epoch_refusals():
    """RL 2.6, 5.1: Describe or ClusterAction; unknown, not led here, fenced."""
    denying = DenyList(
        ("DESCRIBE", "secret"), ("DESCRIBE", "t"), ("CLUSTER_ACTION", "kafka-cluster")
    )
    api = made({0: registration(leader_epoch=3), 1: registration(2, (2, 3))}, denying)
    assert ended(api, 0, topic="secret").error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert ended(api, 0).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    denying.denied.discard(("CLUSTER_ACTION", "kafka-cluster"))
    assert ended(api, 0).error_code == ErrorCode.NONE
    assert ended(api, 0, partition=1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ended(api, 0, partition=9).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ended(api, 0, current=2).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert ended(api, 0, current=-2).error_code == ErrorCode.FENCED_LEADER_EPOCH


# DeleteRecords


def delete_request(*offsets, timeout_ms: int = 1000) -> DeleteRecordsRequest:
    request = DeleteRecordsRequest(timeout_ms=timeout_ms)
    for topic, index, offset in offsets:
        request.topics.append(
            DeleteRecordsTopic(
                name=topic,
                partitions=[DeleteRecordsPartition(partition_index=index, offset=offset)],
            )
        )
    return request


@pytest.mark.parametrize("version", range(3))
def test_delete_records(version):
    """RL 2.8: alone it is done at once; -1 goes to the high watermark; refusals are per
    partition.
    """
    fixture = Fixture()
    fixture.topic()
    fixture.topic("__consumer_offsets", None, b"c" * 16)
    api = Api(fixture, DenyList(("DELETE", "secret")))
    fixture.produce(10)
    request = delete_request(
        ("t", 0, 4), ("secret", 0, 1), ("none", 0, 1), ("__consumer_offsets", 0, 0), ("t", 0, 11)
    )
    answer = api.now(delete_records, DeleteRecordsResponse, request, version)
    assert [
        (topic.partitions[0].error_code, topic.partitions[0].low_watermark)
        for topic in answer.topics
    ] == [
        (ErrorCode.NONE, 4),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, -1),
        (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
    ]
    answer = api.now(delete_records, DeleteRecordsResponse, delete_request(("t", 0, -1)), version)
    assert answer.topics[0].partitions[0].low_watermark == 10


def test_delete_records_waits():
    """RL 2.8: with a follower the answer comes when its log start moved, or as
    REQUEST_TIMED_OUT.
    """
    api = made({0: registration(1, (1, 2))})
    api.fixture.produce(10)
    api.fixture.replicas.fetch(follower(2), [at(10, log_start_offset=0)])
    answers = api.ask(delete_records, DeleteRecordsResponse, delete_request(("t", 0, 6)), 2)
    late = api.ask(
        delete_records, DeleteRecordsResponse, delete_request(("t", 0, 8), timeout_ms=100), 2
    )
    assert answers == late == []
    api.fixture.replicas.fetch(follower(2), [at(10, log_start_offset=6)])
    assert answers[0].topics[0].partitions[0].low_watermark == 6
    api.fixture.advance(0.2)
    assert late[0].topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT


# DescribeProducers


def test_describe_producers():
    """KIP-664: epoch, last sequence and time of every producer the leader remembers; refusals
    with their sentence.
    """
    api = made({0: registration(), 1: registration(2, (2, 3))}, DenyList(("READ", "secret")))
    api.fixture.produce(3, producer_id=7, producer_epoch=2, base_sequence=0)
    request = DescribeProducersRequest(
        topics=[
            TopicRequest(name="t", partition_indexes=[0, 1, 5]),
            TopicRequest(name="secret", partition_indexes=[0]),
            TopicRequest(name="no topic", partition_indexes=[0]),
        ]
    )
    first, second, third = api.now(describe_producers, DescribeProducersResponse, request, 0).topics
    (producer,) = first.partitions[0].active_producers
    assert (
        producer.producer_id,
        producer.producer_epoch,
        producer.last_sequence,
        producer.last_timestamp,
    ) == (7, 2, 2, WALL_MS + 2)
    assert producer.current_txn_start_offset == -1
    assert [partition.error_code for partition in first.partitions[1:]] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert third.partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert (second.partitions[0].error_code, bool(second.partitions[0].error_message)) == (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        True,
    )


def test_a_follower_describes_its_producers():
    """KIP-664: `kafka-transactions find-hanging --broker-id` queries a broker for all replicas
    that it has, not only for those that it leads.
    """
    api = made()
    api.fixture.produce(3, producer_id=7, producer_epoch=2, base_sequence=0)
    api.fixture.topic(states={0: registration(2, (1, 2), None, 1, 1)})
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    (topic,) = api.now(describe_producers, DescribeProducersResponse, request, 0).topics
    (found,) = topic.partitions
    assert found.error_code == ErrorCode.NONE
    assert [each.producer_id for each in found.active_producers] == [7]


@pytest.mark.parametrize("begins", ["before", "between two slices"])
def test_producers_that_are_being_found_again_are_described_later(begins, monkeypatch):
    """Half of them would read as all, and an open transaction as none. The code is the one at which
    Kafka's client comes again also where it named the broker.
    """
    monkeypatch.setattr("twisted_broker.log.producer_rebuild.AT_ONCE_BYTES", -1)
    api = made()
    for producer_id in (7, 8):
        api.fixture.produce(3, producer_id=producer_id, producer_epoch=2, base_sequence=0)
    log, worker = api.fixture.partition().log, ManualWorker()
    log.durability.disk = worker
    if begins == "before":
        log.truncate_to(5, WALL_MS)
    else:
        for producer_id in range(10, 50 * LOOK_ELEMENTS):
            log.producers.add_data(producer_id, 0, 0, 5, 5, WALL_MS, False)
        next_turn = RequestContext.next_turn

        async def truncated(context):
            log.truncate_to(5, WALL_MS)
            await next_turn(context)

        monkeypatch.setattr(RequestContext, "next_turn", truncated)
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    answers = api.ask(describe_producers, DescribeProducersResponse, request, 0)
    api.fixture.clock.pump([0.0] * 100)
    (found,) = answers[0].topics[0].partitions
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "rebuilt" in found.error_message and not found.active_producers
    worker.run_all()
    (topic,) = api.now(describe_producers, DescribeProducersResponse, request, 0).topics
    assert [each.producer_id for each in topic.partitions[0].active_producers] == [7]


def test_very_many_producers_of_one_partition_are_described_in_slices(monkeypatch):
    """Others are served in between; who expires meanwhile is left out."""
    number = 50 * LOOK_ELEMENTS
    api = made()
    log = api.fixture.partition().log
    for producer_id in range(number):
        log.producers.add_data(producer_id, 0, 0, producer_id, 0, WALL_MS, False)
    described = [0]

    def counted(**fields):
        described[-1] += 1
        return ProducerState(**fields)

    next_turn = RequestContext.next_turn

    async def noted(context):
        described.append(0)
        log.producers.producers.pop(number - 1, None)
        await next_turn(context)

    monkeypatch.setattr("twisted_broker.api.producers.ProducerState", counted)
    monkeypatch.setattr(RequestContext, "next_turn", noted)
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    answers = api.ask(describe_producers, DescribeProducersResponse, request, 0)
    api.fixture.clock.pump([0.0] * 100)
    (found,) = answers[0].topics[0].partitions
    assert [each.producer_id for each in found.active_producers] == list(range(number - 1))
    assert max(described) <= 8 * LOOK_ELEMENTS
