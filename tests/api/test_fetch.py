"""Fetch over every version: guards, limits, sessions, conversion, waiting (RL 1.8, 1.9, 5.1,
5.2).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.api.data_plane import Api, DenyList
from tests.replication.fixtures import TOPIC_ID, Fixture, batch, broker_registration, registration
from twisted_broker.api.fetch import fetch, fetch_at_once
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.image.entries import Endpoint
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetch_session import FINAL_EPOCH, INITIAL_EPOCH
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.legacy import iterate_entries
from twisted_broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)

ALL = range(19)
OTHER = TopicPartition("other", 0)
OTHER_ID = bytes(reversed(range(16)))
IDS = {"t": TOPIC_ID, "other": OTHER_ID}


def asked(
    *partitions,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    replica=-1,
    version: int = 11,
    **fields,
) -> FetchRequest:
    """`partitions`: (topic, partition, offset) or (topic, partition, offset, {fields})."""
    request = FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, **fields
    )
    if version >= 15:
        request.replica_state = ReplicaState(
            replica_id=replica, replica_epoch=-1 if replica < 0 else 100 + replica
        )
    else:
        request.replica_id = replica
    for topic, partition, offset, *more in partitions:
        wanted = FetchPartition(
            partition=partition,
            fetch_offset=offset,
            **{"partition_max_bytes": 1 << 20, **(more[0] if more else {})},
        )
        request.topics.append(
            FetchTopic(topic=topic, topic_id=IDS.get(topic, b"?" * 16), partitions=[wanted])
        )
    return request


def made(authorizer=None, states=None) -> Api:
    fixture = Fixture()
    fixture.topic(states=states)
    fixture.topic("other", None, OTHER_ID)
    return Api(fixture, authorizer)


def got(api: Api, *partitions, version: int = 11, **options) -> FetchResponse:
    """The answer, which is the same by both ways where the shorter one is taken."""
    request = asked(*partitions, version=version, **options)
    answer = api.now(fetch, FetchResponse, request, version)
    if request.session_epoch < 0 and max(request.replica_id, request.replica_state.replica_id) < 0:
        assert api.now(fetch_at_once, FetchResponse, request, version) == answer
    return answer


def parts(answer: FetchResponse):
    return [partition for topic in answer.responses for partition in topic.partitions]


def values(records) -> list[bytes | None]:
    return [
        record.value
        for entry in iterate_entries(bytes(records), partial_tail=True)
        for record in entry.records(1 << 20)
    ]


@pytest.mark.parametrize("version", ALL)
def test_every_version_reads(version):
    """The records come in the client's format: magic 0 for 0-1, magic 1 for 2-3, batches from 4
    on.
    """
    api = made()
    api.fixture.produce(2, value=b"one")
    api.fixture.produce(1, value=b"two")
    answer = got(api, ("t", 0, 0), version=version)
    (topic,) = answer.responses
    (partition,) = topic.partitions
    assert (topic.topic_id if version >= 13 else topic.topic) == (
        TOPIC_ID if version >= 13 else "t"
    )
    assert (partition.error_code, partition.high_watermark) == (0, 3)
    magics = {entry.magic for entry in iterate_entries(bytes(partition.records), partial_tail=True)}
    assert magics == {0 if version < 2 else 1 if version < 4 else 2}
    assert values(partition.records) == [b"one", b"one", b"two"]
    if version >= 5:
        assert (partition.last_stable_offset, partition.log_start_offset) == (3, 0)


@pytest.mark.parametrize("codec", [1, 2, 3])
@pytest.mark.parametrize("version", [1, 3])
def test_compressed_batches_go_down(version, codec):
    """Old formats, compressed: the records are the same."""
    api = made()
    api.fixture.produce(5, codec=codec)
    (partition,) = parts(got(api, ("t", 0, 0), version=version))
    assert values(partition.records) == [b"v"] * 5


@pytest.mark.parametrize("version", [0, 3])
def test_zstd_does_not_go_down(version):
    """KIP-110: old formats know no zstd: UNSUPPORTED_COMPRESSION_TYPE for that partition, the
    other is served.
    """
    api = made()
    api.fixture.produce(codec=4)
    api.fixture.produce(tp=OTHER)
    first, second = parts(got(api, ("t", 0, 0), ("other", 0, 0), version=version))
    assert (first.error_code, bytes(first.records)) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, b"")
    assert values(second.records) == [b"v"]


def test_a_topic_may_forbid_conversion():
    """`message.downconversion.enable=false` in a 3.9 cluster: UNSUPPORTED_VERSION for what the
    client cannot read, and no other.
    """
    api = made()
    tp = TopicPartition("t", 0)
    for each in (tp, OTHER):
        api.fixture.produce(tp=each)
    log = api.fixture.replicas.partitions[tp].log
    log.update_config(replace(log.config, message_downconversion_enable=False))
    first, second = parts(got(api, ("t", 0, 0), ("other", 0, 0), version=3))
    assert (first.error_code, bytes(first.records)) == (ErrorCode.UNSUPPORTED_VERSION, b"")
    assert values(second.records) == [b"v"]
    (newer,) = parts(got(api, ("t", 0, 0), version=4))
    assert values(newer.records) == [b"v"]


def test_a_large_conversion_takes_turns():
    """RELIABILITY 5.3: converting 2 MiB for an old client leaves the reactor in between; a
    client that hangs up meanwhile holds no file.
    """
    api = made()
    for _ in range(8):
        api.fixture.produce(250, value=b"x" * 1000)
    file = api.fixture.partition().log.segments.active.log
    request = asked(("t", 0, 0, {"partition_max_bytes": 1 << 22}), max_bytes=1 << 22)
    answers = api.ask(fetch, FetchResponse, request, 3)
    assert answers == []
    turns = 0
    while not answers:
        assert api.fixture.clock.getDelayedCalls()
        api.fixture.advance(0)
        turns += 1
    assert len(values(parts(answers[0])[0].records)) == 2000
    assert turns >= 1
    api.ask(fetch, FetchResponse, request, 3)
    api.last.cancel()
    assert file.references == 0


@pytest.mark.parametrize(
    ("version", "code"), [(9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (10, ErrorCode.NONE)]
)
def test_zstd_topics_need_version_10(version, code):
    """KIP-110: a topic set to zstd is not read by a version below 10."""
    api = made()
    api.fixture.topic(overrides={"compression.type": "zstd"})
    api.fixture.produce()
    (partition,) = parts(got(api, ("t", 0, 0), version=version))
    assert partition.error_code == code


@pytest.mark.parametrize("version", [0, 1, 2])
def test_hard_limits_cut_what_does_not_fit(version):
    """RL 1.8: version <= 2: the first batch is cut at the limit, so that the client sees that
    its limit is too small.
    """
    api = made()
    api.fixture.produce(value=b"x" * 1000)
    (partition,) = parts(got(api, ("t", 0, 0, {"partition_max_bytes": 100}), version=version))
    assert len(partition.records) == 100
    assert int.from_bytes(bytes(partition.records[8:12]), "big") > 100


def test_a_small_limit_gives_one_whole_batch_from_version_3_on():
    """KIP-74: progress however small the limits; the second partition gets nothing then."""
    api = made()
    api.fixture.produce(value=b"x" * 1000)
    api.fixture.produce(tp=OTHER)
    first, second = parts(
        got(api, ("t", 0, 0, {"partition_max_bytes": 1}), ("other", 0, 0), version=3, max_bytes=1)
    )
    assert values(first.records) == [b"x" * 1000]
    assert bytes(second.records) == b""


@pytest.mark.parametrize("version", ALL)
def test_errors_carry_minus_one(version):
    """RL 5.1: an error partition has -1 for the watermarks and no records; the others are
    served.
    """
    api = made()
    api.fixture.produce()
    out_of_range, unknown = parts(got(api, ("t", 0, 9), ("t", 5, 0), version=version))
    unknown_too, good = parts(got(api, ("t", 5, 0), ("t", 0, 0), version=version))
    assert (out_of_range.error_code, unknown.error_code, good.error_code) == (
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
    )
    assert unknown_too.error_code == unknown.error_code
    assert (out_of_range.high_watermark, unknown.high_watermark, bytes(unknown.records or b"")) == (
        -1,
        -1,
        b"",
    )
    assert values(good.records) == [b"v"]


def test_a_partition_that_is_named_twice_is_read_once():
    """Kafka's request is a map: the last mention counts, at the place of the first."""
    api = made()
    api.fixture.produce()
    answer = got(api, ("t", 0, 9), ("t", 5, 0), ("t", 0, 0))
    good, unknown = parts(answer)
    assert (good.error_code, unknown.error_code) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert values(good.records) == [b"v"]


@pytest.mark.parametrize("version", [13, 18])
def test_topic_ids(version):
    """KIP-516: an id nobody has: UNKNOWN_TOPIC_ID."""
    first, second = parts(got(made(), ("none", 0, 0), ("t", 0, 0), version=version))
    assert (first.error_code, second.error_code) == (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NONE)


def test_permission_comes_before_existence():
    """RL 5.1: Read on the topic, asked before anything is looked up; the others are served."""
    api = made(DenyList(("READ", "t"), ("READ", "none")))
    api.fixture.produce(tp=OTHER)
    answer = got(api, ("t", 0, 0), ("none", 0, 0), ("other", 0, 0))
    assert [partition.error_code for partition in parts(answer)] == [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED
    ] * 2 + [ErrorCode.NONE]


def test_with_nothing_left_nothing_is_read(monkeypatch):
    """RL 5.1: with none left the replica manager is not touched, and the answer is immediate."""
    api = made(DenyList(("READ", "t")))
    monkeypatch.setattr(type(api.fixture.replicas), "fetch", lambda *_, **__: 1 / 0)
    assert [
        partition.error_code for partition in parts(got(api, ("t", 0, 0), max_wait_ms=500))
    ] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


@pytest.mark.parametrize("replica", [0, 2])
def test_followers_need_cluster_action(replica):
    """RL 5.1, CVE-2018-1288: nobody poses as a follower without ClusterAction; Read on the topic
    does not help.
    """
    denying = DenyList(("CLUSTER_ACTION", "kafka-cluster"))
    api = made(denying)
    (partition,) = parts(got(api, ("t", 0, 0), replica=replica))
    assert partition.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert ("READ", "t") not in denying.asked


@pytest.mark.parametrize("replica", [0, 2])
@pytest.mark.parametrize("version", [11, 17])
def test_a_follower_reads_to_the_log_end_and_counts(version, replica):
    """RL 1.8, 1.10: by replica id, or by ReplicaState from version 15 on; its progress moves the
    high watermark.
    """
    api = made(states={0: registration(1, (1, replica))})
    api.fixture.produce(3)
    (partition,) = parts(got(api, ("t", 0, 0), replica=replica, version=version))
    assert (values(partition.records), partition.high_watermark) == ([b"v"] * 3, 0)
    assert api.fixture.replicas.stats.follower_fetches == 1
    got(api, ("t", 0, 3), replica=replica, version=version)
    assert api.fixture.partition().log.high_watermark == 3
    (partition,) = parts(got(api, ("t", 0, 0), replica=3, version=version))
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("replica", [-3, -4])
def test_replica_ids_that_nobody_may_use(replica):
    """RL 1.8: -2 is served as a consumer, less is refused."""
    api = made()
    with pytest.raises(BrokerError) as caught:
        got(api, ("t", 0, 0), replica=replica)
    assert caught.value.code == ErrorCode.INVALID_REQUEST
    assert parts(got(api, ("t", 0, 0), replica=-2))[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [2, 11, 17])
@pytest.mark.parametrize("replica", [-1, -2])
def test_who_is_no_follower_reads_to_the_high_watermark(replica: int, version: int) -> None:
    """RL 1.8: a consumer, and the old debugging consumer, which is served as one: neither sees
    what is not committed, neither is a follower whose progress counts.
    """
    api = made(states={0: registration(1, (1, 2))})
    for value in (b"one", b"two", b"three"):
        api.fixture.produce(value=value)
    got(api, ("t", 0, 2), replica=2)
    before = api.fixture.partition().log.high_watermark
    (partition,) = parts(got(api, ("t", 0, 0), replica=replica, version=version))
    assert (before, values(partition.records)) == (2, [b"one", b"two"])
    (partition,) = parts(got(api, ("t", 0, 3), replica=replica, version=version))
    assert (partition.error_code, partition.high_watermark) == (ErrorCode.NONE, 2)
    assert api.fixture.partition().log.high_watermark == 2


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(-1, "NONE"), (2, "FENCED_LEADER_EPOCH"), (3, "NONE"), (4, "UNKNOWN_LEADER_EPOCH")],
)
def test_leader_epochs(epoch, code):
    """RL 2.6: the epoch in the request is checked."""
    api = made(states={0: registration(leader_epoch=3)})
    (partition,) = parts(got(api, ("t", 0, 0, {"current_leader_epoch": epoch})))
    assert partition.error_code == ErrorCode[code]


def test_divergence():
    """RL 6.3, KIP-595: a reader whose last epoch ended earlier here is told where, at once."""
    api = made()
    api.fixture.produce(3)
    api.fixture.topic(states={0: registration(leader_epoch=4, partition_epoch=1)})
    api.fixture.produce(3)
    (partition,) = parts(
        got(api, ("t", 0, 5, {"last_fetched_epoch": 0}), version=12, max_wait_ms=500)
    )
    assert (
        partition.diverging_epoch.epoch,
        partition.diverging_epoch.end_offset,
        bytes(partition.records),
    ) == (0, 3, b"")


@pytest.mark.parametrize("version", [12, 16])
def test_the_current_leader_is_named(version):
    """KIP-951: from version 16 on NOT_LEADER_OR_FOLLOWER says who leads and where."""
    api = made(states={0: registration(2, (2, 3), None, 4)})
    there = broker_registration(2)._replace(
        listeners={"PLAINTEXT": Endpoint("PLAINTEXT", "two", 9093)}
    )
    api.fixture.publish(brokers={**api.fixture.image.brokers, 2: there})
    answer = got(api, ("t", 0, 0), version=version)
    (partition,) = parts(answer)
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    named = [(node.node_id, node.host, node.port) for node in answer.node_endpoints]
    assert (partition.current_leader.leader_id, named) == (
        (2, [(2, "two", 9093)]) if version >= 16 else (-1, [])
    )


def test_read_committed():
    """Isolation 1: the list of aborted transactions is there (empty), isolation 0: null."""
    api = made()
    api.fixture.produce()
    assert parts(got(api, ("t", 0, 0), isolation_level=1))[0].aborted_transactions == []
    assert parts(got(api, ("t", 0, 0)))[0].aborted_transactions is None


# waiting


def test_a_waiting_fetch_is_answered_by_the_append():
    """RL 1.14: no clock moves between the append and the answer."""
    api = made()
    answers = api.ask(fetch, FetchResponse, asked(("t", 0, 0), max_wait_ms=500), 11)
    assert answers == []
    api.fixture.produce()
    assert values(parts(answers[0])[0].records) == [b"v"]


def test_min_bytes():
    """RL 1.9 G: it waits until min_bytes are there, over all of its partitions."""
    api = made()
    size = len(batch())
    answers = api.ask(
        fetch,
        FetchResponse,
        asked(("t", 0, 0), ("other", 0, 0), max_wait_ms=500, min_bytes=2 * size),
        11,
    )
    api.fixture.produce()
    assert answers == []
    api.fixture.produce(tp=OTHER)
    assert [len(partition.records) for partition in parts(answers[0])] == [size, size]


def test_at_its_time():
    """RL 1.9: at max_wait_ms with what is there."""
    api = made()
    answers = api.ask(
        fetch, FetchResponse, asked(("t", 0, 0), max_wait_ms=500, min_bytes=10_000), 11
    )
    api.fixture.produce()
    api.fixture.advance(0.499)
    assert answers == []
    api.fixture.advance(0.002)
    assert values(parts(answers[0])[0].records) == [b"v"]


def test_no_fetch_waits_longer_than_a_silent_connection_is_kept() -> None:
    """A wait of 24.8 days ends with `connections.max.idle.ms`, as Kafka closes the connection
    then; no setting makes it shorter than 30 s.
    """
    api = made()
    for idle_ms, seconds in ((600_000, 600), (3_000, 30), (-1, 600)):
        api.parts.config = BrokerConfig(
            {**api.fixture.config.static, "connections.max.idle.ms": str(idle_ms)}
        )
        answers = api.ask(
            fetch, FetchResponse, asked(("t", 0, 0), max_wait_ms=2**31 - 1, min_bytes=10_000), 11
        )
        api.fixture.advance(seconds - 1)
        assert not answers
        api.fixture.advance(2)
        assert len(answers) == 1


def test_refused_partitions_do_not_hurry_the_others():
    """As Kafka: a partition refused by the gates is in the answer, but does not end the wait."""
    api = made(DenyList(("READ", "other")))
    answers = api.ask(
        fetch, FetchResponse, asked(("other", 0, 0), ("t", 0, 0), max_wait_ms=500), 11
    )
    assert answers == []
    api.fixture.produce()
    assert [partition.error_code for partition in parts(answers[0])] == [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.NONE,
    ]


def test_no_slices_are_left_behind():
    """Every file reference of a first read, of a refused session epoch and of a converted answer
    is given back.
    """
    api = made()
    api.fixture.produce()
    file = api.fixture.partition().log.segments.active.log
    api.ask(fetch, FetchResponse, asked(("t", 0, 0), max_wait_ms=500, min_bytes=10_000), 11)
    assert file.references == 0
    api.last.cancel()
    got(api, ("t", 0, 0), version=3)
    got(api, ("t", 0, 0), version=11)
    assert file.references == 0


# sessions


def opened(api: Api, *partitions, version: int = 12) -> int:
    answer = got(api, *partitions, session_epoch=0, version=version)
    assert answer.session_id > 0
    return answer.session_id


@pytest.mark.parametrize("version", [7, 12, 13, 18])
def test_an_incremental_answer_holds_what_changed(version):
    """RL 5.2: partitions with data, errors or moved watermarks; the request names none."""
    api = made()
    session = opened(api, ("t", 0, 0), ("other", 0, 0), version=version)
    assert parts(got(api, session_id=session, session_epoch=1, version=version)) == []
    api.fixture.produce(tp=OTHER)
    answer = got(api, session_id=session, session_epoch=2, version=version)
    (topic,) = answer.responses
    assert (topic.topic_id if version >= 13 else topic.topic) == (
        OTHER_ID if version >= 13 else "other"
    )
    answer = got(api, ("other", 0, 1), session_id=session, session_epoch=3, version=version)
    assert (answer.session_id, parts(answer)) == (session, [])


def test_forgotten_topics():
    """RL 5.2: a forgotten partition is not read any more."""
    api = made()
    session = opened(api, ("t", 0, 0), ("other", 0, 0))
    forgotten = [ForgottenTopic(topic="t", partitions=[0])]
    got(api, session_id=session, session_epoch=1, forgotten_topics_data=forgotten, version=12)
    api.fixture.produce()
    assert parts(got(api, session_id=session, session_epoch=2, version=12)) == []


@pytest.mark.parametrize(("replica", "privileged"), [(-1, False), (0, True), (2, True)])
def test_followers_sessions_are_privileged(replica, privileged):
    """RL 1.9: broker 0 is a follower as any other."""
    api = made(states={0: registration(1, (1, replica)) if privileged else registration()})
    answer = got(api, ("t", 0, 0), replica=replica, session_epoch=0)
    session = api.fixture.replicas.sessions.get(answer.session_id)
    assert session is not None and session.privileged == privileged


def test_session_errors():
    """RL 5.2: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH,
    FETCH_SESSION_TOPIC_ID_ERROR: for the whole request.
    """
    api = made()
    session = opened(api, ("t", 0, 0))
    assert (
        got(api, session_id=session + 1, session_epoch=1).error_code
        == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )
    assert (
        got(api, session_id=session, session_epoch=7).error_code
        == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    )
    assert (
        got(api, session_id=session, session_epoch=1, version=13).error_code
        == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    )
    assert got(api, session_id=session, session_epoch=1).error_code == ErrorCode.NONE


def test_a_final_epoch_closes():
    """KIP-227: epoch -1 with a session id closes it and is answered in full without one."""
    api = made()
    session = opened(api, ("t", 0, 0))
    answer = got(api, ("t", 0, 0), session_id=session, session_epoch=-1)
    assert (answer.session_id, len(parts(answer)), len(api.fixture.replicas.sessions)) == (0, 1, 0)


def test_a_topic_that_comes_later_is_found_by_its_id():
    """KIP-516: a session's partition of an unknown id is an error until its topic exists."""
    api = made()
    session = opened(api, ("none", 0, 0), version=13)
    api.fixture.topic("none", None, b"?" * 16)
    api.fixture.produce(tp=TopicPartition("none", 0))
    (partition,) = parts(got(api, session_id=session, session_epoch=1, version=13))
    assert (partition.error_code, values(partition.records)) == (ErrorCode.NONE, [b"v"])


def test_a_recreated_topic_is_another_one():
    """ReplicaManagerTest: the id of the request is not the one held here: INCONSISTENT or
    UNKNOWN id, never the new topic's records.
    """
    api = made()
    session = opened(api, ("t", 0, 0), version=13)
    api.fixture.topic(topic_id=b"n" * 16)
    api.fixture.produce()
    (partition,) = parts(got(api, session_id=session, session_epoch=1, version=13))
    assert partition.error_code == ErrorCode.INCONSISTENT_TOPIC_ID


def test_no_room_no_session():
    """RL 5.2: with the cache full of young sessions an answer without a session is complete."""
    fixture = Fixture(max_incremental_fetch_session_cache_slots="1")
    fixture.topic()
    api = Api(fixture)
    opened(api, ("t", 0, 0))
    answer = got(api, ("t", 0, 0), session_epoch=0)
    assert (answer.session_id, len(parts(answer))) == (0, 1)


def test_an_empty_request():
    """ReplicaManagerTest: nothing asked is answered at once."""
    assert got(made(), max_wait_ms=500).responses == []


class BrokenImage:
    """Knows the topics, and fails where a leader is looked up."""

    def __init__(self, image) -> None:
        self.topics_by_id = image.topics_by_id

    def partition(self, *_):
        raise RuntimeError("a bug")


@pytest.mark.parametrize("step", ["the session", "the answer"])
def test_what_fails_on_the_way_to_an_answer_gives_its_records_back(step, monkeypatch):
    """docs/ARCHITECTURE 2: a slice holds its file open until it is released, also when no answer
    comes of it.
    """
    api = made()
    api.fixture.produce(2)
    api.fixture.topic("other", {0: registration(leader_epoch=1)}, OTHER_ID)

    def fails(*_):
        raise RuntimeError("a bug")

    if step == "the session":
        monkeypatch.setattr(api.fixture.runtime.random, "randrange", fails)
    else:
        monkeypatch.setattr(api.fixture, "image", BrokenImage(api.fixture.image))
    epoch = INITIAL_EPOCH if step == "the session" else FINAL_EPOCH
    with pytest.raises(RuntimeError):
        fenced = {"current_leader_epoch": 0}
        got(api, ("t", 0, 0), ("other", 0, 0, fenced), version=16, session_epoch=epoch)
    assert api.fixture.partition().log.segments.active.log.references == 0
