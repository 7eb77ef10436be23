"""ShareFetch and ShareAcknowledge of a whole broker in memory (GN 3.30-3.63, 6.11)."""

import pytest

from tests.share.share_broker import Member, ShareBroker
from twisted_broker.wire.batch_header import read_batch_header
from twisted_broker.wire.errors import ErrorCode


@pytest.fixture
def broker():
    made = ShareBroker()
    yield made
    made.stop()


def test_records_are_acquired_once_and_finished_when_they_are_accepted(broker):
    broker.produce(3, 2)
    one, two = Member(broker), Member(broker, "m2")
    assert one.take(0) == "0-4x1"
    assert two.take(0) == ""
    assert one.acknowledge("0-4 accept") == (0, {0: 0})
    assert broker.stored() == (0, "0-4 ack x1")
    broker.produce(1)
    assert two.take() == "5-5x1"
    assert two.acknowledge("5-5 accept") == (0, {0: 0})
    assert broker.stored() == (5, "5-5 ack x1")


NONE = 0
INVALID = ErrorCode.INVALID_REQUEST


def test_an_answer_has_the_batches_of_what_was_acquired_and_no_others(broker):
    broker.produce(2, 2, 2, 2)
    member = Member(broker)
    found = member.fetch(0, max_wait_ms=100, max_records=4)
    assert found.acquired == {0: "0-3x1"}
    first = read_batch_header(found.records[0])
    second = read_batch_header(found.records[0], 12 + first[1])
    assert (first[0], second[0]) == (0, 2)
    assert len(found.records[0]) == 24 + first[1] + second[1]
    member.acknowledge("1-1 accept, 2-3 release")
    found = member.fetch(max_records=1)
    assert found.acquired == {0: "2-3x2"}
    assert read_batch_header(found.records[0])[0] == 2


def test_the_answer_names_the_lock_and_no_leader(broker):
    broker.produce(1)
    answer = Member(broker).fetch(0, max_wait_ms=100).answer
    assert answer.acquisition_lock_timeout_ms == 30_000
    (partition,) = answer.responses[0].partitions
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (-1, -1)


# sessions
def test_a_session_counts_its_requests_over_both_apis(broker):
    broker.produce(2)
    member = Member(broker)
    assert member.fetch(0, epoch=1).error == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge("0-0 accept", epoch=0)[0] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.acknowledge("0-0 accept", epoch=1)[0] == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.fetch(epoch=-1).error == ErrorCode.SHARE_SESSION_NOT_FOUND
    member.epoch = 0
    assert member.take(0) == "0-1x1"
    assert member.acknowledge("0-0 accept") == (NONE, {0: NONE})
    assert member.fetch(epoch=1).error == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch(epoch=2).error == NONE
    assert member.acknowledge("1-1 accept", epoch=3) == (NONE, {0: NONE})


def test_the_first_request_may_not_acknowledge(broker):
    assert Member(broker).fetch(acks={0: "0-0 accept"}).error == INVALID


def test_the_last_request_acknowledges_and_releases_the_rest(broker):
    broker.produce(4)
    one, two = Member(broker), Member(broker, "m2")
    one.take(0)
    found = one.fetch(acks={0: "0-1 accept"}, epoch=-1)
    assert (found.acknowledged, found.acquired) == ({0: NONE}, {})
    assert one.fetch(epoch=2).error == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert two.take(0) == "2-3x2"
    assert two.acknowledge("2-2 accept", epoch=-1) == (NONE, {0: NONE})
    broker.settle()
    assert broker.stored() == (3, "3-3 free x2")
    assert not broker.manager.held
    assert len(broker.manager.sessions) == 0


def test_a_lost_connection_gives_back_what_its_member_holds(broker):
    broker.produce(4)
    one, two = Member(broker), Member(broker, "m2")
    assert one.take(0) == "0-3x1"
    assert two.take(0) == ""
    waiting = two.begin_fetch(max_wait_ms=5000)
    one.connection.close()
    assert broker.run(waiting).responses[0].partitions[0].acquired_records[0].delivery_count == 2
    assert broker.clock.seconds() < 2000


def test_a_fetch_whose_client_has_gone_acquires_nothing(broker):
    one, two = Member(broker), Member(broker, "m2")
    one.take(0)
    one.begin_fetch(max_wait_ms=5000).addErrback(lambda _: None)
    broker.settle()
    one.connection.close()
    broker.settle()
    broker.produce(2)
    assert two.take(0) == "0-1x1"


def test_a_session_that_is_opened_anew_leaves_the_locks(broker):
    broker.produce(2)
    member = Member(broker)
    member.take(0)
    member.epoch = 0
    assert member.take(0) == ""
    assert member.acknowledge("0-1 accept") == (NONE, {0: NONE})


def test_without_room_a_session_is_refused_after_its_wait():
    broker = ShareBroker(group_share_max_share_sessions="1", group_share_max_size="1")
    try:
        Member(broker).take(0)
        before = broker.clock.seconds()
        error = Member(broker, "m2").fetch(0, max_wait_ms=700).error
        assert error == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert 0.7 <= broker.clock.seconds() - before < 1
    finally:
        broker.stop()


def test_partitions_are_added_forgotten_and_shown_when_they_must(broker):
    broker.produce(1)
    broker.produce(1, partition=1)
    member = Member(broker)
    assert member.fetch(0, max_wait_ms=100).partitions == [0]
    assert member.fetch().partitions == []
    assert member.fetch(1, max_wait_ms=100).acquired == {1: "0-0x1"}
    broker.produce(1)
    assert member.fetch(forget=[0]).partitions == []
    broker.produce(1, partition=1)
    assert member.fetch().acquired == {1: "1-1x1"}


@pytest.mark.parametrize("change", [{"group_id": None}, {"member_id": ""}, {"member_id": "m" * 37}])
def test_a_group_or_member_that_cannot_be_is_refused(broker, change):
    from twisted_broker.wire.messages.share_fetch import ShareAcknowledgeRequest, ShareFetchRequest

    given = {"group_id": "g", "member_id": "m"} | change
    for kind in (ShareFetchRequest, ShareAcknowledgeRequest):
        assert broker.ask(kind(**given), 2).error_code == INVALID


def test_a_closed_gate_is_answered(broker, monkeypatch):
    monkeypatch.setattr("twisted_broker.api.share_fetch.serves_share_groups", lambda image: False)
    assert Member(broker).fetch(0).error == ErrorCode.UNSUPPORTED_VERSION


# waiting
def test_a_fetch_waits_for_records(broker):
    member = Member(broker)
    assert member.take(0) == ""
    waiting = member.begin_fetch(max_wait_ms=30_000)
    broker.settle()
    assert not waiting.called
    broker.produce(2)
    assert broker.run(waiting).responses[0].partitions[0].acquired_records[0].last_offset == 1


def test_a_fetch_waits_for_so_many_bytes(broker):
    member = Member(broker)
    member.take(0)
    waiting = member.begin_fetch(max_wait_ms=30_000, min_bytes=250)
    for _ in range(3):
        broker.produce(1)
        broker.settle()
    assert not waiting.called
    broker.produce(1)
    broker.settle()
    assert waiting.called


def test_a_fetch_waits_no_longer_than_it_may(broker):
    member = Member(broker)
    member.take(0)
    before = broker.clock.seconds()
    assert member.fetch(max_wait_ms=3000).acquired == {}
    assert 3.0 <= broker.clock.seconds() - before < 3.2


def test_of_several_that_wait_one_gets_the_records_and_the_others_wait_on(broker):
    members = [Member(broker, f"m{number}") for number in range(4)]
    for member in members:
        member.take(0)
    waiting = [member.begin_fetch(max_wait_ms=30_000) for member in members]
    broker.settle()
    broker.produce(1)
    broker.settle()
    assert sorted(each.called for each in waiting) == [False, False, False, True]
    broker.produce(1, 1, 1)
    broker.settle()
    assert sorted(each.called for each in waiting) == [True] * 4


def test_a_release_wakes_who_waits(broker):
    broker.produce(2)
    one, two = Member(broker), Member(broker, "m2")
    one.take(0)
    two.take(0)
    waiting = two.begin_fetch(max_wait_ms=30_000)
    broker.settle()
    one.acknowledge("1-1 release")
    assert broker.run(waiting).responses[0].partitions[0].acquired_records[0].first_offset == 1


def test_a_lock_that_ends_wakes_who_waits_and_is_written():
    broker = ShareBroker(
        group_share_record_lock_duration_ms="1000", group_share_min_record_lock_duration_ms="1000"
    )
    try:
        broker.produce(2)
        one, two = Member(broker), Member(broker, "m2")
        one.take(0)
        two.take(0)
        before = broker.clock.seconds()
        found = two.fetch(max_wait_ms=30_000)
        assert found.acquired == {0: "0-1x2"}
        assert broker.clock.seconds() - before < 1.2
        assert broker.stored() == (0, "0-1 free x1")
        assert one.acknowledge("0-1 accept") == (NONE, {0: ErrorCode.INVALID_RECORD_STATE})
    finally:
        broker.stop()


def test_renewing_keeps_the_lock_and_fetches_nothing():
    broker = ShareBroker(
        group_share_record_lock_duration_ms="1000", group_share_min_record_lock_duration_ms="1000"
    )
    try:
        broker.produce(2, 1)
        member = Member(broker)
        assert member.take(0, max_records=2) == "0-1x1"
        assert member.fetch(acks={0: "0-0 renew"}, is_renew_ack=True).error == INVALID
        none = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
        broker.pass_time(0.8)
        found = member.fetch(acks={0: "0-1 renew"}, is_renew_ack=True, epoch=1, **none)
        assert (found.acknowledged, found.acquired) == ({0: NONE}, {})
        broker.pass_time(0.8)
        assert member.acknowledge("0-1 accept") == (NONE, {0: NONE})
    finally:
        broker.stop()


# refusals
def test_acknowledgements_of_a_wrong_shape_change_nothing(broker):
    broker.produce(6)
    member = Member(broker)
    member.take(0)
    for wrong in (
        "3-2 accept",
        "2-3 accept, 1-1 accept",
        "0-2 accept accept",
        "0-1",
        "0-1 renew",
        "2-2 accept, 2-3 accept",
    ):
        assert member.acknowledge(wrong) == (NONE, {0: INVALID}), wrong
    assert member.acknowledge("0-1 renew", version=1) == (NONE, {0: INVALID})
    assert member.acknowledge("8-9 accept") == (NONE, {0: INVALID})
    assert member.acknowledge("0-5 accept") == (NONE, {0: NONE})


def test_what_is_not_in_the_metadata_is_refused_alone(broker):
    broker.produce(1)
    member = Member(broker)
    found = member.fetch(0, 7, max_wait_ms=100)
    assert found.errors[7] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.topic_id, known = b"x" * 16, broker.topic_id
    other = Member(broker, "m2")
    found = other.fetch(0)
    assert (found.error, found.errors) == (NONE, {0: ErrorCode.UNKNOWN_TOPIC_ID})
    assert other.acknowledge("0-0 accept") == (NONE, {0: ErrorCode.UNKNOWN_TOPIC_ID})
    broker.topic_id = known


def test_a_group_that_was_not_initialised_is_an_error_and_is_not_kept(broker):
    member = Member(broker, group="other")
    found = member.fetch(0, max_wait_ms=10_000)
    assert found.errors == {0: ErrorCode.UNKNOWN_SERVER_ERROR}
    assert not broker.manager.held
    broker.initialize("other")
    broker.produce(1)
    assert member.fetch(max_wait_ms=100).acquired == {0: "0-0x1"}


def test_several_groups_each_get_all(broker):
    broker.initialize("h")
    broker.produce(3)
    assert Member(broker).take(0) == "0-2x1"
    assert Member(broker, group="h").take(0) == "0-2x1"


def test_nothing_wanted_is_answered_without_a_wait(broker):
    broker.produce(1)
    member = Member(broker)
    member.take(0)
    before = broker.clock.seconds()
    assert member.fetch(max_wait_ms=5000, max_records=0, acks={0: "0-0 accept"}).acknowledged == {
        0: NONE
    }
    assert broker.clock.seconds() - before < 0.1


def test_the_records_of_all_partitions_together_are_bounded(broker):
    member = Member(broker)
    member.fetch(0, 1, max_wait_ms=100)
    broker.produce(3)
    broker.produce(3, partition=1)
    found = member.fetch(max_records=2)
    assert len(found.acquired) == 1
    assert list(member.fetch(max_records=2).acquired) != list(found.acquired)


# where a group begins
@pytest.mark.parametrize(
    ("reset", "taken"),
    [("latest", "3-3x1"), ("earliest", "0-2x1"), ("by_duration:PT1H", "0-2x1")],
)
def test_a_group_without_an_offset_begins_where_its_setting_says(broker, reset, taken, monkeypatch):
    broker.produce(3)
    broker.initialize("h", start=-1)
    settings = broker.manager._config.of_group({"share.auto.offset.reset": reset})
    monkeypatch.setattr(broker.manager, "settings", lambda group: settings)
    member = Member(broker, group="h")
    # One that wants no records loads nothing.
    assert member.take(0, max_records=0) == ""
    taken_now = member.take()
    broker.produce(1)
    assert (taken_now or member.take()) == taken
    assert broker.stored("h") == (-1, "")


def test_records_that_were_deleted_are_passed(broker):
    from twisted_broker.wire.messages.topics import (
        DeleteRecordsPartition,
        DeleteRecordsRequest,
        DeleteRecordsTopic,
    )

    broker.produce(3, 3)
    member = Member(broker)
    assert member.take(0, max_records=3) == "0-2x1"
    member.acknowledge("0-2 release")
    broker.ask(
        DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=3)]
                )
            ],
            timeout_ms=1000,
        ),
        2,
    )
    assert member.fetch().acquired == {}
    assert member.fetch().acquired == {0: "3-5x1"}


# what a leader's end, a topic's end and the coordinator do to it
def test_a_restart_knows_what_was_persisted():
    broker = ShareBroker()
    broker.produce(6)
    member = Member(broker)
    member.take(0)
    member.acknowledge("0-1 accept, 3-3 accept, 4-4 release")
    broker.stop()
    again = ShareBroker.__new__(ShareBroker)
    from tests.memory_broker import MemoryBroker

    MemoryBroker.__init__(
        again,
        files=broker.files,
        world=broker,
        seed=8,
        share_coordinator_state_topic_num_partitions="1",
    )
    again.start()
    again.topic_id = broker.topic_id
    try:
        member = Member(again)
        assert member.fetch(0, max_wait_ms=20_000).acquired == {0: "2-2x1 4-4x2 5-5x1"}
    finally:
        again.stop()


def test_a_deleted_topic_ends_its_fetches(broker):
    from twisted_broker.wire.messages.topics import DeleteTopicsRequest

    member = Member(broker)
    member.take(0)
    waiting = member.begin_fetch(max_wait_ms=60_000)
    broker.settle()
    broker.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000), 5)
    answer = broker.run(waiting)
    assert answer.responses[0].partitions[0].error_code in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
    assert not broker.manager.held


def test_another_life_of_the_state_fences_this_one(broker):
    broker.produce(3)
    member = Member(broker)
    member.take(0)
    broker.initialize("g", start=2, epoch=5)
    assert member.acknowledge("0-0 accept") == (NONE, {0: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    assert not broker.manager.held
    assert member.fetch(max_wait_ms=1000).acquired == {0: "2-2x1"}


def test_a_client_beyond_its_quota_gets_nothing_and_waits(broker):
    from twisted_broker.wire.messages.quotas import (
        AlterClientQuotasRequest,
        AlteredEntry,
        OpData,
        QuotaEntityData,
    )

    broker.produce(200)
    member = Member(broker)
    quota = AlteredEntry(
        entity=[QuotaEntityData(entity_type="client-id", entity_name="test")],
        ops=[OpData(key="consumer_byte_rate", value=200.0, remove=False)],
    )
    broker.ask(AlterClientQuotasRequest(entries=[quota], validate_only=False), 1)
    broker.settle()
    answer = member.fetch(0, max_wait_ms=100).answer
    assert answer.throttle_time_ms > 0
    assert answer.responses == []
