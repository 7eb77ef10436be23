"""Produce over every version: guards, acks, answers (RL 1.6, 1.7, 5.1)."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred, succeed

from tests.api.data_plane import Api, DenyList, Wire
from tests.log.manual_worker import ManualWorker
from tests.replication.fixtures import (
    LOCAL,
    TOPIC_ID,
    TP,
    WALL_MS,
    Fixture,
    at,
    batch,
    broker_registration,
    follower,
    registration,
)
from twisted_broker.api import produce as produce_module
from twisted_broker.api.context import RequestContext
from twisted_broker.api.produce import produce
from twisted_broker.image.entries import Endpoint
from twisted_broker.turns import Turns
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError
from twisted_broker.wire.legacy import build_message_set
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from twisted_broker.wire.record_walk import Record
from twisted_broker.wire.records import BatchBuilder

ALL = range(14)
BATCHES = range(3, 14)
OTHER_ID = bytes(reversed(range(16)))


def asked(
    *partitions,
    acks: int = 1,
    version: int = 9,
    topic_id: bytes = TOPIC_ID,
    transactional_id=None,
    timeout_ms: int = 1000,
) -> ProduceRequest:
    """`partitions`: (topic, partition, records)."""
    request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, transactional_id=transactional_id)
    for topic, index, records in partitions:
        data = PartitionProduceData(index=index, records=records)
        request.topic_data.append(
            TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])
        )
    return request


def made(states=None, authorizer=None, **settings) -> Api:
    fixture = Fixture(**settings)
    fixture.topic(states=states)
    return Api(fixture, authorizer)


def codes(answer: ProduceResponse) -> list[int]:
    return [
        partition.error_code
        for topic in answer.responses
        for partition in topic.partition_responses
    ]


def sent(api: Api, *partitions, version: int = 9, **options):
    return api.now(
        produce, ProduceResponse, asked(*partitions, version=version, **options), version
    )


def old_set(magic: int) -> bytes:
    return build_message_set(
        [Record(0, WALL_MS, b"k", b"v", []), Record(1, WALL_MS, b"k", b"w", [])], magic, 0
    )


@pytest.mark.parametrize("version", ALL)
def test_every_version_appends(version):
    """The answer names topic and partition as asked, the base offset and, where the version has
    them, log start and append time.
    """
    api = made()
    records = batch(2) if version >= 3 else old_set(1 if version >= 2 else 0)
    sent(api, ("t", 0, records), version=version)
    answer = sent(api, ("t", 0, records), version=version)
    (topic,) = answer.responses
    (partition,) = topic.partition_responses
    assert (topic.topic_id if version >= 13 else topic.name) == (TOPIC_ID if version >= 13 else "t")
    assert (partition.index, partition.error_code, partition.base_offset) == (0, 0, 2)
    if version >= 5:
        assert partition.log_start_offset == 0
    assert api.fixture.partition().log.log_end_offset == 4


def test_a_topics_id_is_not_another_topics_partition():
    """Partitions follow the metadata in turns of their own: what is meant for the topic that is
    made would go into the log that is deleted, acknowledged.
    """
    api = made()
    api.fixture.name_goes_to(OTHER_ID)
    assert codes(sent(api, ("t", 0, batch()), version=13, topic_id=OTHER_ID)) == [
        ErrorCode.UNKNOWN_TOPIC_ID
    ]
    assert api.fixture.partition().log.log_end_offset == 0


def test_a_topics_id_that_becomes_known_between_two_turns(monkeypatch):
    """Partitions that were refused before come again; the later ones are appended to."""
    api = made(states={number: registration() for number in range(2)})
    api.fixture.name_goes_to(OTHER_ID)
    monkeypatch.setattr(produce_module, "_AT_A_TIME", 1)

    class KnownAgain(Turns):
        def next_turn(self) -> Deferred[None]:
            api.fixture.name_goes_to(TOPIC_ID)
            return succeed(None)

    api.parts.turns = KnownAgain(api.fixture.clock)

    async def long(context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
        context.elements_left = -1
        await context.next_turn()
        api.fixture.clock.rightNow += 1  # the time of its slice is over
        context.elements_left = 1
        return await produce(context, request)

    request = asked(version=13)
    data = [PartitionProduceData(index=number, records=batch()) for number in range(2)]
    request.topic_data = [TopicProduceData(topic_id=TOPIC_ID, partition_data=data)]
    assert codes(api.now(long, ProduceResponse, request, 13)) == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NONE,
    ]


@pytest.mark.parametrize("version", [13])
def test_an_unknown_topic_id(version):
    """Version 13 names topics by id: UNKNOWN_TOPIC_ID for one that is not there."""
    api = made()
    assert codes(sent(api, ("t", 0, batch()), version=version, topic_id=b"?" * 16)) == [
        ErrorCode.UNKNOWN_TOPIC_ID
    ]


@pytest.mark.parametrize("version", BATCHES)
def test_old_formats_end_with_version_3(version):
    """ProduceRequest.validateRecords: from version 3 on only batches of magic 2, one per
    partition, never none.
    """
    api = made()
    assert codes(sent(api, ("t", 0, old_set(1)), version=version)) == [ErrorCode.INVALID_RECORD]
    assert codes(sent(api, ("t", 0, b""), version=version)) == [ErrorCode.INVALID_RECORD]
    assert codes(sent(api, ("t", 0, None), version=version)) == [ErrorCode.INVALID_RECORD]
    assert codes(sent(api, ("t", 0, batch() + batch()), version=version)) == [
        ErrorCode.INVALID_RECORD
    ]
    assert api.fixture.partition().log.log_end_offset == 0


@pytest.mark.parametrize("version", BATCHES)
def test_what_is_no_batch_at_all(version):
    """Kafka's ByteBufferLogInputStream: no whole batch is INVALID_RECORD, never to be sent
    again; a length or magic that none has CORRUPT_MESSAGE.
    """
    api = made()
    good = batch()

    def with_field(position, field):
        return good[:position] + field + good[position + len(field) :]

    invalid = [
        good[:5],
        good[:14],
        good[:40],
        good[:-1],
        with_field(8, b"\x7f\xff\xff\xff"),
        with_field(16, b"\x01"),
    ]
    corrupt = [
        with_field(16, b"\x03"),
        with_field(16, b"\xff"),
        with_field(8, bytes(4)),
        with_field(8, b"\xff" * 4),
        b"garbage" * 30,
        bytes(70),
    ]
    for records, code in [(each, ErrorCode.INVALID_RECORD) for each in invalid] + [
        (each, ErrorCode.CORRUPT_MESSAGE) for each in corrupt
    ]:
        assert codes(sent(api, ("t", 0, records), version=version)) == [code], records
    assert api.fixture.partition().log.log_end_offset == 0


@pytest.mark.parametrize("version", BATCHES)
def test_zstd_begins_with_version_7(version):
    """KIP-110: UNSUPPORTED_COMPRESSION_TYPE below."""
    api = made()
    expected = ErrorCode.NONE if version >= 7 else ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert codes(sent(api, ("t", 0, batch(codec=4)), version=version)) == [expected]


def test_a_transactional_batch_needs_a_transactional_id():
    """CVE-2018-17196: nobody's permission could be asked; nothing is written."""
    api = made()
    records = batch(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert codes(sent(api, ("t", 0, records))) == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    assert api.fixture.partition().log.log_end_offset == 0


@pytest.mark.parametrize("acks", [-1, 1])
def test_refusals_leave_the_others_alone(acks):
    """RL 1.6, 5.1: one bad partition, one forbidden topic, one unknown: the good one is
    appended.
    """
    api = made(authorizer=DenyList(("WRITE", "secret")))
    answer = sent(
        api,
        ("secret", 0, batch()),
        ("none", 0, batch()),
        ("t", 0, b"short"),
        ("t", 0, batch()),
        acks=acks,
    )
    assert codes(answer) == [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_RECORD,
        ErrorCode.NONE,
    ]
    assert [topic.partition_responses[0].base_offset for topic in answer.responses] == [
        -1,
        -1,
        -1,
        0,
    ]


def test_permission_comes_before_existence():
    """RL 5.1: who may not write learns nothing about whether the topic exists."""
    api = made(authorizer=DenyList(("WRITE", "t"), ("WRITE", "none")))
    assert (
        codes(sent(api, ("t", 0, batch()), ("none", 0, batch())))
        == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
    )


def test_the_transactional_id_is_asked_for_first():
    """RL 5.1: without Write on the transactional id the whole request is refused."""
    api = made(authorizer=DenyList(("WRITE", "x")))
    with pytest.raises(BrokerError) as caught:
        sent(api, ("t", 0, batch()), transactional_id="x")
    assert caught.value.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_invalid_acks():
    """RL 1.6: INVALID_REQUIRED_ACKS and base offset -1, where there is a partition."""
    api = made()
    answer = sent(api, ("t", 0, batch()), ("t", 9, batch()), acks=2)
    assert codes(answer) == [
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert answer.responses[0].partition_responses[0].base_offset == -1


@pytest.mark.parametrize("version", [0, 3, 9, 13])
def test_acks_0(version):
    """RL 1.6: no answer; with an error the connection closes."""
    api = made()
    records = batch() if version >= 3 else old_set(0)
    assert sent(api, ("t", 0, records), acks=0, version=version) is None
    assert api.fixture.partition().log.log_end_offset > 0
    with pytest.raises(WireError, match=r"first .+-9: [A-Z_]+$"):
        sent(api, ("t", 9, records), acks=0, version=version)


def test_record_errors_and_message():
    """KIP-467: from version 8 on the refused records are named, with why; below neither is
    there.
    """
    api = made()
    api.fixture.topic(overrides={"cleanup.policy": "compact"})
    builder = BatchBuilder()
    builder.append(WALL_MS, b"k", b"v")
    builder.append(WALL_MS, None, b"v")
    answer = sent(api, ("t", 0, builder.build()), version=8).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [1]
    assert answer.error_message
    assert (
        sent(api, ("t", 0, builder.build()), version=7)
        .responses[0]
        .partition_responses[0]
        .error_code
        == ErrorCode.INVALID_RECORD
    )


@pytest.mark.parametrize("version", ALL)
def test_log_append_time(version):
    """From version 2 on the answer says the broker's time on LogAppendTime topics."""
    api = made()
    api.fixture.topic(overrides={"message.timestamp.type": "LogAppendTime"})
    records = batch() if version >= 3 else old_set(0)
    answer = sent(api, ("t", 0, records), version=version).responses[0].partition_responses[0]
    assert answer.log_append_time_ms == (WALL_MS if version >= 2 else -1)


@pytest.mark.parametrize("version", [9, 10, 13])
def test_the_current_leader_is_named(version):
    """KIP-951: NOT_LEADER_OR_FOLLOWER from version 10 on says who leads and where it is."""
    api = made(states={0: registration(2, (2, 3), None, 4)})
    there = broker_registration(2)._replace(
        listeners={"PLAINTEXT": Endpoint("PLAINTEXT", "two", 9093)}, rack="r"
    )
    api.fixture.publish(brokers={**api.fixture.image.brokers, 2: there})
    answer = sent(api, ("t", 0, batch()), version=version)
    assert codes(answer) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    leader = answer.responses[0].partition_responses[0].current_leader
    if version < 10:
        assert (leader.leader_id, answer.node_endpoints) == (-1, [])
    else:
        (node,) = answer.node_endpoints
        assert (leader.leader_id, leader.leader_epoch) == (2, 4)
        assert (node.node_id, node.host, node.port, node.rack) == (2, "two", 9093, "r")


def test_acks_all_waits_for_the_followers():
    """RL 1.7: the answer comes with the fetch that moves the high watermark, or
    REQUEST_TIMED_OUT.
    """
    api = made(states={0: registration(LOCAL, (1, 2))})
    answers = api.ask(produce, ProduceResponse, asked(("t", 0, batch()), acks=-1), 9)
    assert answers == []
    api.fixture.replicas.fetch(follower(2), [at(1)])
    assert codes(answers[0]) == [ErrorCode.NONE]
    late = api.ask(produce, ProduceResponse, asked(("t", 0, batch()), acks=-1, timeout_ms=100), 9)
    api.fixture.advance(0.2)
    assert codes(late[0]) == [ErrorCode.REQUEST_TIMED_OUT]


@pytest.mark.parametrize("more", [0, 3000], ids=["at once", "in slices"])
def test_a_frame_is_not_held_while_its_records_wait_for_replicas(more):
    """A replica that is away would keep the memory of all long requests, for whoever sends one."""
    api = made(states={0: registration(LOCAL, (1, 2))})
    records = batch(value=bytes(100_000))
    wire = Wire(api)
    wire.send(asked(("t", 0, records), *[("none", 0, b"")] * more, acks=-1), 9)
    assert api.fixture.replicas.produce_purgatory.waiting and not wire.client.data
    wire.check_nothing_held()
    api.fixture.replicas.fetch(follower(2), [at(1)])
    wire.run()
    assert wire.client.data


def test_nothing_waits_alone():
    """RL 1.7: with an ISR of one acks=-1 is answered at once."""
    assert codes(sent(made(), ("t", 0, batch()), acks=-1)) == [ErrorCode.NONE]


def test_too_large_and_corrupt():
    """RL 1.6: MESSAGE_TOO_LARGE, CORRUPT_MESSAGE; nothing written."""
    api = made()
    api.fixture.topic(overrides={"max.message.bytes": "200"})
    damaged = bytearray(batch())
    damaged[-1] ^= 1
    assert codes(sent(api, ("t", 0, batch(value=b"x" * 300)), ("t", 0, bytes(damaged)))) == [
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
    ]
    assert api.fixture.partition().log.log_end_offset == 0


def test_duplicates_get_the_first_offset():
    """Idempotence: the same batch again answers with the offset of its first arrival; a gap is
    OUT_OF_ORDER_SEQUENCE_NUMBER.
    """
    api = made()
    first = batch(2, producer_id=7, producer_epoch=0, base_sequence=0)
    sent(api, ("t", 0, first))
    sent(api, ("t", 0, batch(1, producer_id=7, producer_epoch=0, base_sequence=2)))
    again = sent(api, ("t", 0, first)).responses[0].partition_responses[0]
    assert (again.error_code, again.base_offset) == (0, 0)
    assert codes(
        sent(api, ("t", 0, batch(1, producer_id=7, producer_epoch=0, base_sequence=9)))
    ) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert api.fixture.partition(TP).log.log_end_offset == 3


@pytest.mark.parametrize("acks", [1, -1])
def test_with_flush_messages_the_answer_waits_for_the_disk(acks):
    """Kafka's flush.messages=1: acknowledged means synced; the next Produce of the connection
    may be appended meanwhile.
    """
    api = made()
    api.fixture.topic(overrides={"flush.messages": "1"})
    log, worker = api.fixture.partition().log, ManualWorker()
    log.durability.disk, log.on_synced = worker, api.fixture.log_manager.log_synced
    first = api.ask(produce, ProduceResponse, asked(("t", 0, batch()), acks=acks), 9)
    second = api.ask(produce, ProduceResponse, asked(("t", 0, batch()), acks=acks), 9)
    assert first == second == [] and api.context.appended and log.log_end_offset == 2
    worker.run_one()
    assert codes(first[0]) == [ErrorCode.NONE] and second == []
    worker.run_one()
    assert (
        codes(second[0]) == [ErrorCode.NONE]
        and second[0].responses[0].partition_responses[0].base_offset == 1
    )
