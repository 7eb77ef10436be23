"""Fetch, FetchSnapshot and DescribeQuorum as observers see them."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.cluster.fixtures import CLUSTER_ID, Fixture, StalledWorker
from twisted_broker.cluster.snapshots import SnapshotId, list_snapshots
from twisted_broker.interfaces import IFile
from twisted_broker.raft import leader_state
from twisted_broker.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import cluster, fetch, quorum
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from twisted_broker.wire.records import iterate_batches
from twisted_broker.wire.schema import decode, encode

BEHIND_NOTHING = 2**63 - 1


def request(
    version: int = 18, wait_ms: int = 0, topic_id: bytes = METADATA_TOPIC_ID, **partition: Any
) -> fetch.FetchRequest:
    values = {
        "partition": 0,
        "current_leader_epoch": 1,
        "fetch_offset": 0,
        "last_fetched_epoch": 0,
        "partition_max_bytes": 1 << 20,
    } | partition
    topics = [
        fetch.FetchTopic(
            topic=METADATA_TOPIC, topic_id=topic_id, partitions=[fetch.FetchPartition(**values)]
        )
    ]
    message = fetch.FetchRequest(cluster_id=CLUSTER_ID, max_wait_ms=wait_ms, topics=topics)
    if version >= 15:
        message.replica_state = fetch.ReplicaState(replica_id=7)
    else:
        message.replica_id = 7
    return message


def ask(fixture: Fixture, version: int = 18, **values: Any) -> Any:
    return fixture.ask("fetch", request(version, **values), version).responses[0].partitions[0]


def caught_up(fixture: Fixture, **values: Any) -> fetch.FetchRequest:
    end = fixture.controller.log.high_watermark
    return request(
        wait_ms=500, fetch_offset=end, last_fetched_epoch=1, **({"high_watermark": end} | values)
    )


@pytest.mark.parametrize("version", [12, 13, 17, 18])
def test_the_log_is_read_from_the_start(fixture: Fixture, version: int) -> None:
    """KRAFT 3.2: batches, the high watermark and the leader, in every version that observers
    send.
    """
    answer = ask(fixture, version)
    assert answer.error_code == 0 and answer.high_watermark == fixture.controller.log.high_watermark
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (1, 1)
    batches = list(iterate_batches(answer.records.read()))
    assert batches[0].is_control and batches[-1].last_offset == answer.high_watermark - 1


def test_an_apache_kafka_replica_gets_more_than_one_batch(fixture: Fixture) -> None:
    """QU 9.1: it sends 0 as the partition's limit; the request's counts, and one whole batch."""
    fixture.join()
    end = ask(fixture).high_watermark
    answer = ask(fixture, partition_max_bytes=0)
    assert [*iterate_batches(answer.records.read())][-1].last_offset == end - 1
    small = request(partition_max_bytes=0)
    small.max_bytes = 1
    answer = fixture.ask("fetch", small, 18).responses[0].partitions[0]
    assert len([*iterate_batches(answer.records.read())]) == 1


@pytest.mark.parametrize(
    ("epoch", "code"), [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_another_epoch_learns_the_leader_and_its_address(
    fixture: Fixture, epoch: int, code: ErrorCode
) -> None:
    """RL 8.2, KRAFT 1.1, 3.2: leader discovery in one round trip."""
    response = fixture.ask("fetch", request(current_leader_epoch=epoch), 18)
    answer = response.responses[0].partitions[0]
    assert answer.error_code == code and answer.records is None
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (1, 1)
    assert [(e.node_id, e.host, e.port) for e in response.node_endpoints] == [
        (1, "127.0.0.1", 9093)
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"fetch_offset": -1},
        {"last_fetched_epoch": -1},
        {"current_leader_epoch": -1},
        {"last_fetched_epoch": 2},
        {"wait_ms": -1},
    ],
)
def test_numbers_that_cannot_be(fixture: Fixture, wrong: dict[str, int]) -> None:
    """KRAFT 3.2: invalid if wait, offset or an epoch is below 0, or the last epoch above the
    current one.
    """
    assert ask(fixture, **wrong).error_code == ErrorCode.INVALID_REQUEST


def test_another_cluster_or_topic_is_refused(fixture: Fixture) -> None:
    """KRAFT 3.2: INCONSISTENT_CLUSTER_ID for all of it; this listener serves one partition and
    no other.
    """
    foreign = request()
    foreign.cluster_id = "x" * 22
    for wrong, code in (
        (foreign, ErrorCode.INCONSISTENT_CLUSTER_ID),
        (request(topic_id=b"t" * 16), ErrorCode.INVALID_REQUEST),
    ):
        with pytest.raises(BrokerError) as caught:
            fixture.ask("fetch", wrong, 18)
        assert caught.value.code is code


def test_a_fetch_at_the_end_waits_for_news(fixture: Fixture) -> None:
    """Invariant 1: answered at once when the high watermark moves, with what is new, not at the
    next tick.
    """
    waiting = fixture.send("fetch", caught_up(fixture), 18)
    assert not waiting.called
    fixture.register()
    answer = waiting.result.responses[0].partitions[0]
    (batch,) = iterate_batches(answer.records.read())
    assert batch.last_offset == answer.high_watermark - 1 == fixture.controller.image.offset
    assert fixture.clock.seconds() == 0


def test_a_fetch_at_the_end_gives_up_after_its_wait(fixture: Fixture) -> None:
    """KRAFT 3.2: an empty answer after max_wait_ms; nothing stays behind."""
    quiet = Fixture(settings={"metadata.max.idle.interval.ms": "0"}).start()
    waiting = quiet.send("fetch", caught_up(quiet), 18)
    quiet.advance(0.5)
    answer = waiting.result.responses[0].partitions[0]
    assert answer.records is None and answer.error_code == 0
    assert quiet.controller.log.raft._fetches._parked == []


def test_a_fetch_that_is_given_up_leaves_nothing(fixture: Fixture) -> None:
    """The client went: its timer goes too, and the next move of the high watermark does not
    care.
    """
    timers = len(fixture.clock.getDelayedCalls())
    waiting = fixture.send("fetch", caught_up(fixture), 18)
    waiting.addErrback(lambda failure: None)
    waiting.cancel()
    assert len(fixture.clock.getDelayedCalls()) == timers
    fixture.register()


def test_an_observer_whose_high_watermark_is_behind_is_answered_at_once(fixture: Fixture) -> None:
    """RL 8.1, KIP-1166: v18 says what the observer knows; earlier versions cannot, and wait, as
    does the field's default.
    """
    end = fixture.controller.log.high_watermark
    waiting = {}
    for version in (13, 17, 18):
        behind = caught_up(fixture, version=version, high_watermark=end - 1)
        decoded = decode(fetch.FetchRequest, encode(behind, version), version)
        waiting[version] = fixture.send("fetch", decoded, version)
    answered = waiting.pop(18)
    assert answered.called and answered.result.responses[0].partitions[0].high_watermark == end
    waiting[0] = fixture.send("fetch", caught_up(fixture, high_watermark=BEHIND_NOTHING), 18)
    assert not any(each.called for each in waiting.values())
    fixture.register()
    for each in waiting.values():
        assert each.result.responses[0].partitions[0].high_watermark > end


def test_what_is_not_durable_is_not_served() -> None:
    """RL 8.1: above the high watermark there is nothing to read."""
    worker = StalledWorker()
    fixture = Fixture(worker).start()
    worker.run()
    fixture.send("broker_registration", fixture.registration(), 4)
    answer = ask(fixture)
    last = list(iterate_batches(answer.records.read()))[-1].last_offset
    assert last == answer.high_watermark - 1 < fixture.controller.log.end_offset - 1


def test_a_reader_of_another_history_learns_where_it_diverges(fixture: Fixture) -> None:
    """KRAFT 3.2: beyond the end of its epoch here, or from an epoch that is not known."""
    end = fixture.controller.log.high_watermark
    beyond = ask(fixture, fetch_offset=end + 5, last_fetched_epoch=1)
    assert (beyond.diverging_epoch.epoch, beyond.diverging_epoch.end_offset) == (1, end)
    fixture.restart()
    old = ask(fixture, current_leader_epoch=2, fetch_offset=end + 5, last_fetched_epoch=1)
    assert (old.diverging_epoch.epoch, old.diverging_epoch.end_offset) == (1, end)
    assert (
        ask(
            fixture, current_leader_epoch=2, fetch_offset=end, last_fetched_epoch=1
        ).diverging_epoch.epoch
        == -1
    )


@pytest.fixture
def cut() -> Fixture:
    """A controller whose log begins with a snapshot."""
    fixture = Fixture(settings={"metadata.log.max.record.bytes.between.snapshots": "2000"}).start()
    fixture.join(1)
    topic = CreatableTopic(name="t", num_partitions=100, replication_factor=1)
    fixture.ask("create_topics", CreateTopicsRequest(topics=[topic]), 7)
    fixture.advance(0.5)
    return fixture


def ask_behind(fixture: Fixture, snapshot: SnapshotId) -> Any:
    """What a reader gets that has read the snapshot."""
    return ask(
        fixture,
        current_leader_epoch=2,
        fetch_offset=snapshot.end_offset,
        last_fetched_epoch=snapshot.epoch,
    )


def test_a_reader_from_the_start_is_sent_to_the_snapshot(cut: Fixture) -> None:
    """KRAFT 3.2: also one that stands before the log's start; after the snapshot it reads on."""
    (snapshot,) = list_snapshots(cut.files, cut.controller.log.directory)
    for offset, epoch in ((0, 0), (5, 1)):
        answer = ask(cut, fetch_offset=offset, last_fetched_epoch=epoch)
        assert (
            answer.snapshot_id.end_offset,
            answer.snapshot_id.epoch,
        ) == snapshot and answer.records is None
    cut.restart()
    after = ask_behind(cut, snapshot)
    assert after.snapshot_id.end_offset == -1 and after.diverging_epoch.epoch == -1
    assert next(iter(iterate_batches(after.records.read()))).base_offset == snapshot.end_offset


def test_a_reader_at_the_end_of_a_snapshot_is_right_though_the_log_was_lost(cut: Fixture) -> None:
    """KRAFT 3.2: the snapshot's end is a place in history even where no epoch entry is left to
    prove it.
    """
    directory = cut.controller.log.directory
    (snapshot,) = list_snapshots(cut.files, directory)
    for name in cut.files.listdir(directory):
        if name.endswith((".log", ".index", ".timeindex")) or name == "leader-epoch-checkpoint":
            cut.files.remove(f"{directory}/{name}")
    cut.restart()
    after = ask_behind(cut, snapshot)
    assert after.diverging_epoch.epoch == -1 and after.diverging_epoch.end_offset == -1
    assert next(iter(iterate_batches(after.records.read()))).base_offset == snapshot.end_offset


def piece(fixture: Fixture, position: int, max_bytes: int = 700, **changes: Any) -> Any:
    (snapshot,) = list_snapshots(fixture.files, fixture.controller.log.directory)
    wanted = quorum.FetchSnapshotRequestSnapshotId(
        end_offset=snapshot.end_offset + changes.pop("off", 0), epoch=snapshot.epoch
    )
    name = changes.pop("name", METADATA_TOPIC)
    values = {
        "partition": 0,
        "current_leader_epoch": 1,
        "snapshot_id": wanted,
        "position": position,
    } | changes
    topic = quorum.FetchSnapshotRequestTopicSnapshot(
        name=name, partitions=[quorum.FetchSnapshotRequestPartitionSnapshot(**values)]
    )
    message = quorum.FetchSnapshotRequest(
        cluster_id=CLUSTER_ID, replica_id=7, max_bytes=max_bytes, topics=[topic]
    )
    return fixture.ask("fetch_snapshot", message, 1).topics[0].partitions[0]


def test_a_snapshot_that_no_descriptor_is_left_for(
    cut: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors are short: the reader gets an error after which it comes again (simulation, one
    broker, seeds 100009, 100055).
    """

    def no_descriptor(path: str, **_: object) -> IFile:
        raise OSError(errno.EMFILE, "Too many open files", path)

    with monkeypatch.context() as patch:
        patch.setattr(cut.files, "open", no_descriptor, raising=False)
        answer = piece(cut, 0)
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR and not answer.unaligned_records
    assert piece(cut, 0).error_code == 0


def test_a_snapshot_comes_in_pieces(cut: Fixture) -> None:
    """KRAFT 3.2: bytes by position, not aligned to batches; together they are the file."""
    content = b""
    first = piece(cut, 0)
    while len(content) < first.size:
        answer = piece(cut, len(content))
        assert (
            answer.error_code == 0
            and answer.position == len(content)
            and 0 < len(answer.unaligned_records) <= 700
        )
        content += answer.unaligned_records
    (snapshot,) = list_snapshots(cut.files, cut.controller.log.directory)
    file = cut.files.open(cut.controller.log.snapshot_path(snapshot))
    assert content == file.read_at(0, file.size())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"position": -1}, ErrorCode.POSITION_OUT_OF_RANGE),
        ({"position": 1 << 30}, ErrorCode.POSITION_OUT_OF_RANGE),
        ({"off": 1}, ErrorCode.SNAPSHOT_NOT_FOUND),
        ({"current_leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"name": "t"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_pieces_that_are_refused(cut: Fixture, changes: dict[str, Any], code: ErrorCode) -> None:
    """KIP-630: each with its code, and the leader."""
    answer = piece(cut, changes.pop("position", 0), **changes)
    assert answer.error_code == code and answer.current_leader.leader_epoch == 1


def test_the_quorum_is_described(fixture: Fixture) -> None:
    """KIP-595, KIP-836: the voter, observers that fetch with an id, how far they are; readers
    without an id leave no trace.
    """
    fixture.send("fetch", caught_up(fixture), 18)
    anonymous = caught_up(fixture)
    anonymous.replica_state = fetch.ReplicaState()
    fixture.send("fetch", anonymous, 18)
    first = cluster.DescribeQuorumRequestPartitionData(partition_index=0)
    asked = cluster.DescribeQuorumRequestTopicData(topic_name=METADATA_TOPIC, partitions=[first])
    answer = fixture.ask("describe_quorum", cluster.DescribeQuorumRequest(topics=[asked]), 2)
    partition = answer.topics[0].partitions[0]
    end = fixture.controller.log.high_watermark
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (1, 1, end)
    assert [(voter.replica_id, voter.log_end_offset) for voter in partition.current_voters] == [
        (1, end)
    ]
    assert [
        (o.replica_id, o.log_end_offset, o.last_caught_up_timestamp) for o in partition.observers
    ] == [(7, end, fixture.now())]
    assert [(node.node_id, node.listeners[0].port) for node in answer.nodes] == [(1, 9093)]


def test_made_up_observers_are_bounded(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """RELIABILITY 5.3: a flood of ids drives out those that are silent, not those that go on
    fetching.
    """
    monkeypatch.setattr(leader_state, "MOST_OBSERVERS", 10)
    for made_up in range(100, 400):
        for node in (7, made_up):
            asked = request(fetch_offset=1, last_fetched_epoch=1)
            asked.replica_state.replica_id = node
            fixture.ask("fetch", asked, 18)
    observers = described(fixture, 2).topics[0].partitions[0].observers
    assert [each.replica_id for each in observers] == [7, *range(391, 400)]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_version_of_the_quorum_can_be_written(fixture: Fixture, version: int) -> None:
    """KIP-836, KIP-853: what a version has no place for (the directories of observers, times) is
    left out.
    """
    told = caught_up(fixture)
    told.topics[0].partitions[0].replica_directory_id = b"d" * 16
    fixture.send("fetch", told, 18)
    partition = described(fixture, version).topics[0].partitions[0]
    observer = partition.observers[0]
    assert (observer.replica_id, observer.log_end_offset) == (
        7,
        fixture.controller.log.high_watermark,
    )
    assert (observer.last_fetch_timestamp == -1) == (version == 0)
    assert bytes(observer.replica_directory_id) == (b"d" * 16 if version == 2 else bytes(16))


def described(
    fixture: Fixture, version: int, topic: str = METADATA_TOPIC, *partitions: int
) -> cluster.DescribeQuorumResponse:
    """The answer as it comes over the wire."""
    asked = [
        cluster.DescribeQuorumRequestPartitionData(partition_index=number)
        for number in partitions or (0,)
    ]
    topics = [cluster.DescribeQuorumRequestTopicData(topic_name=topic, partitions=asked)]
    answer = fixture.ask("describe_quorum", cluster.DescribeQuorumRequest(topics=topics), version)
    return decode(cluster.DescribeQuorumResponse, encode(answer, version), version)


@pytest.mark.parametrize(
    ("topic", "partitions"), [("other", (0,)), (METADATA_TOPIC, (1,)), (METADATA_TOPIC, (0, 0))]
)
def test_there_is_one_quorum(fixture: Fixture, topic: str, partitions: tuple[int, ...]) -> None:
    """KIP-595: every partition named is unknown, and the request as a whole is not; so Kafka
    4.3.1 answers.
    """
    answer = described(fixture, 2, topic, *partitions)
    assert answer.error_code == 0 and answer.nodes == []
    found = [
        (each.topic_name, [(p.partition_index, p.error_code) for p in each.partitions])
        for each in answer.topics
    ]
    assert found == [
        (topic, [(number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for number in partitions])
    ]


def test_a_refused_fetch_carries_the_start_of_the_log(fixture: Fixture) -> None:
    """KRAFT 3.2: as Kafka 4.3.1 does; the high watermark it keeps to itself.

    Version 16 has a place for addresses, from 17 on they are told.
    """
    for version, endpoints in ((16, 0), (17, 1)):
        response = fixture.ask("fetch", request(version, current_leader_epoch=0), version)
        answer = response.responses[0].partitions[0]
        assert (answer.high_watermark, answer.log_start_offset) == (
            -1,
            fixture.controller.log.log.log_start_offset,
        )
        assert len(response.node_endpoints) == endpoints
