"""AppendMirrored: what the leader of a mirrored topic answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.data_plane import Api, DenyList, Wire
from tests.api.test_produce import OTHER_ID
from tests.log.test_mirrored import SOURCE, at, without_epoch
from tests.replication.fixtures import TOPIC_ID, TP, Fixture, batch, consumer, registration
from tests.replication.fixtures import at as from_offset
from twisted_broker.api import mirror as mirror_module
from twisted_broker.api.fetch import fetch
from twisted_broker.api.mirror import append_mirrored
from twisted_broker.api.produce import produce
from twisted_broker.image.entries import RECOVERING
from twisted_broker.log import log as log_module
from twisted_broker.log import write_ahead
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from twisted_broker.wire.messages.mirror import (
    AppendMirroredRequest,
    AppendMirroredResponse,
    MirroredPartition,
    MirroredPartitionResponse,
    MirroredTopic,
)
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)


def mirrored(source: str = SOURCE, **state: Any) -> Fixture:
    fixture = Fixture()
    fixture.topic(
        states={0: registration(**state)},
        overrides={"replog.mirror.source": source} if source else {},
    )
    return fixture


def request(
    records: bytes | None, end: int = 0, start: int = -1, partition: int = 0, **more: Any
) -> AppendMirroredRequest:
    part = MirroredPartition(
        partition=partition,
        records=records,
        log_end_offset=end,
        source_log_start_offset=start,
        **more,
    )
    return AppendMirroredRequest(
        timeout_ms=1000, topics=[MirroredTopic(topic_id=TOPIC_ID, partitions=[part])]
    )


def answer_to(api: Api, asked: AppendMirroredRequest) -> MirroredPartitionResponse:
    response = api.now(append_mirrored, AppendMirroredResponse, asked, 0)
    return response.topics[0].partitions[0]


def test_it_keeps_offsets_and_says_where_the_log_ends() -> None:
    api = Api(mirrored(leader_epoch=4))
    data = at(7, batch(2), epoch=90)
    answer = answer_to(api, request(data))
    assert (answer.error_code, answer.leader_epoch) == (0, 4)
    assert (answer.log_start_offset, answer.high_watermark, answer.log_end_offset) == (0, 9, 9)
    (found,) = api.fixture.replicas.fetch(consumer(), [from_offset(7)])
    assert found.slice is not None
    assert without_epoch(found.slice.read()) == without_epoch(data)
    found.release()
    described = answer_to(api, request(None))
    assert (described.error_code, described.log_end_offset) == (0, 9)


def test_a_topic_that_has_the_name_of_another_ones_partition_gets_nothing() -> None:
    """As with Produce: partitions follow the metadata in turns of their own."""
    api = Api(mirrored())
    api.fixture.name_goes_to(OTHER_ID)
    asked = request(at(0, batch(2)))
    asked.topics[0].topic_id = OTHER_ID
    assert answer_to(api, asked).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert api.fixture.partition().log.log_end_offset == 0


def test_a_waiting_consumer_is_answered_when_the_mirror_brings_records() -> None:
    """RL 1.9 G: as for a producer's records, without a clock that moves."""
    api = Api(mirrored())
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    reading = FetchRequest(
        max_wait_ms=500, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[wanted])]
    )
    answers = api.ask(fetch, FetchResponse, reading, 11)
    assert answers == []
    answer_to(api, request(at(0, batch(2))))
    assert answers[0].responses[0].partitions[0].high_watermark == 2


def test_the_log_start_follows_the_source_as_far_as_the_high_watermark() -> None:
    api = Api(mirrored())
    assert answer_to(api, request(at(7, batch(2)), start=5)).log_start_offset == 5
    assert answer_to(api, request(None, start=4)).log_start_offset == 5
    assert answer_to(api, request(None, start=50)).log_start_offset == 9


def test_a_producer_gets_policy_violation() -> None:
    api = Api(mirrored())
    data = PartitionProduceData(index=0, records=batch())
    asked = ProduceRequest(
        acks=-1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )
    response = api.now(produce, ProduceResponse, asked, 9)
    (answer,) = response.responses[0].partition_responses
    assert answer.error_code == ErrorCode.POLICY_VIOLATION
    assert SOURCE in (answer.error_message or "")


def test_an_ordinary_topic_takes_nothing_of_a_mirror() -> None:
    api = Api(mirrored(""))
    for records in (None, at(0, batch())):
        answer = answer_to(api, request(records))
        assert answer.error_code == ErrorCode.POLICY_VIOLATION
        assert "replog.mirror.source" in (answer.error_message or "")


def test_no_gap_where_the_log_ends_elsewhere() -> None:
    """The mirror believes more to be here than there is (an unclean election), or less and goes
    on behind what it does not know of: refused, with the end to go on from.
    """
    api = Api(mirrored())
    answer_to(api, request(at(0, batch(3))))
    for data, end in ((at(5, batch()), 5), (at(3, batch()), 2), (at(7, batch()), 0)):
        answer = answer_to(api, request(data, end))
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert answer.log_end_offset == 3
    assert answer_to(api, request(at(0, batch(3)), 0)).error_code == 0
    assert answer_to(api, request(at(5, batch()), 3)).log_end_offset == 6


def test_it_waits_for_the_in_sync_replicas() -> None:
    """As with acks=-1: the answer comes with the follower's fetch, or when the time is up."""
    api = Api(mirrored(replicas=(1, 2), isr=(1, 2)))
    answers = api.ask(append_mirrored, AppendMirroredResponse, request(at(4, batch())), 0)
    assert not answers and api.context.appended  # the connection's next one may start
    api.fixture.advance(1.1)
    (answer,) = answers[0].topics[0].partitions
    assert (answer.error_code, answer.log_end_offset) == (ErrorCode.REQUEST_TIMED_OUT, 5)
    wire = Wire(api)
    wire.send(request(at(5, batch(value=bytes(100_000))), 5), 0)
    assert api.fixture.replicas.produce_purgatory.waiting
    wire.check_nothing_held()


def test_what_is_long_goes_in_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they had come one after the other; after a refusal nothing more goes in, and the answer
    says where the log ends.
    """
    for module in (log_module, mirror_module):
        monkeypatch.setattr(module, "LONG_BYTES", 3000)
    monkeypatch.setattr(write_ahead, "PIECE_BYTES", 1000)
    monkeypatch.setattr(mirror_module, "_BYTES_OF_AN_ELEMENT", 0)
    parts = [at(7 + n, batch(value=bytes(size))) for n, size in enumerate([400] * 5 + [4000, 400])]
    for is_damaged in (False, True):
        api = Api(mirrored())
        log = api.fixture.partition().log
        data = bytearray(b"".join(parts))
        if is_damaged:
            data[-1] ^= 1
        answers = api.ask(append_mirrored, AppendMirroredResponse, request(bytes(data)), 0)
        assert not answers and not api.context.appended
        api.fixture.advance(0)
        (answer,) = answers[0].topics[0].partitions
        assert bool(answer.error_code) == is_damaged
        assert answer.log_end_offset == log.log_end_offset == 14 - is_damaged
        assert log.segments.active.log.open().size() == log.segments.active.size
        (found,) = api.fixture.replicas.fetch(consumer(), [from_offset(7)])
        assert found.slice is not None
        wanted = b"".join(parts[: len(parts) - is_damaged])
        assert without_epoch(found.slice.read()) == without_epoch(wanted)
        found.release()


def test_refusals() -> None:
    api = Api(mirrored(isr=(1,), replicas=(1, 2)))
    api.fixture.topic(
        states={0: registration(isr=(1,), replicas=(1, 2), partition_epoch=1)},
        overrides={"replog.mirror.source": SOURCE, "min.insync.replicas": "2"},
    )
    data = at(0, batch())
    assert answer_to(api, request(data)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert answer_to(api, request(data, leader_epoch=3)).error_code == (
        ErrorCode.UNKNOWN_LEADER_EPOCH
    )
    assert answer_to(api, request(data, partition=9)).error_code == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    asked = request(data)
    asked.topics[0].topic_id = bytes(15) + b"\1"
    assert answer_to(api, asked).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    for denied in ("WRITE", "ALTER"):
        closed = Api(api.fixture, DenyList((denied, "t")))
        assert answer_to(closed, request(None)).error_code == (ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert TP in api.fixture.replicas.partitions


def test_what_a_truncation_took_is_not_answered_by_what_came_after_it() -> None:
    """RL 1.7, `replog mirror --follow-loss`: one request waits for replicas while the leader drops
    what it brought; the high watermark passes its offsets on the records of a later one.
    """
    api = Api(mirrored(replicas=(1, 2), isr=(1, 2)))
    answers = api.ask(append_mirrored, AppendMirroredResponse, request(at(0, batch(5))), 0)
    assert answer_to(api, request(None, truncate_to=0)).error_code == ErrorCode.LEADER_NOT_AVAILABLE
    state = registration(
        isr=(1,), replicas=(1, 2), leader_epoch=1, partition_epoch=1, recovery=RECOVERING
    )
    api.fixture.topic(states={0: state}, overrides={"replog.mirror.source": SOURCE})
    assert api.fixture.partition().log.log_end_offset == 0
    api.ask(append_mirrored, AppendMirroredResponse, request(at(0, batch(9, value=b"others"))), 0)
    assert api.fixture.partition().log.high_watermark == 9
    (answer,) = answers[0].topics[0].partitions
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
