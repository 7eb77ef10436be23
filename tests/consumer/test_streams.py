"""Streams out of clusters in memory: what is handed out and committed (RL 7.4, 7.5)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred
from twisted.internet.error import ConnectionLost
from twisted.logger import LogLevel, capturedLogs, formatEvent

from tests.consumer.memory_cluster import MemoryCluster, batch
from tests.consumer.test_consumer_fetchers import T0, T1, delete_records, numbered
from twisted_broker.consumer import group_membership, group_offsets
from twisted_broker.consumer.consumer_config import ConsumerConfig
from twisted_broker.consumer.errors import (
    BrokersUnreachable,
    ConsumerError,
    ConsumerTimeout,
    InvalidSetting,
    OffsetGone,
)
from twisted_broker.consumer.group_membership import CommitFailed
from twisted_broker.consumer.partition_topic_info import (
    ChunkQueue,
    FetchedDataChunk,
    PartitionTopicInfo,
)
from twisted_broker.consumer.record_iterator import records_of
from twisted_broker.consumer.streams import (
    ConsumerConnector,
    ConsumerStream,
    DecoderFailed,
    MessageAndMetadata,
    as_bytes,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.compression import GZIP
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import groups, offsets
from twisted_broker.wire.records import build_end_marker


class Program:
    """A Twisted program that reads all streams of a consumer; what it got is in `got`."""

    def __init__(
        self, cluster: MemoryCluster, topics: dict[str, int] | None = None, **settings: Any
    ) -> None:
        self.cluster = cluster
        values = {name.replace("_", "."): value for name, value in settings.items()}
        self.connector = ConsumerConnector(
            {"bootstrap.servers": cluster.servers, "group.id": "g", "auto.offset.reset": "smallest"}
            | values,
            cluster.runtime,
        )
        self.got: list[MessageAndMetadata] = []
        self.ended: list[Any] = []
        self.streams: list[ConsumerStream] = []
        streams = cluster.run(self.connector.create_message_streams(topics or {"t": 1}))
        for each in [stream for found in streams.values() for stream in found]:
            self.streams.append(each)
            ensureDeferred(self._read(each)).addBoth(self.ended.append)

    async def _read(self, stream: ConsumerStream) -> None:
        async for message in stream:
            self.got.append(message)

    def places(self) -> list[tuple[int, int]]:
        return [(each.partition, each.offset) for each in self.got]

    @property
    def owned(self) -> set[TopicPartition]:
        return set(self.connector.fetchers.partitions)

    def wait_for(self, count: int) -> None:
        self.cluster.wait_until(lambda: len(self.got) >= count)

    def stop(self) -> None:
        self.cluster.run(self.connector.shutdown())

    def crash(self) -> None:
        """Without a word to the group."""
        membership = self.connector.membership
        assert membership is not None and membership._running is not None
        membership._running.cancel()
        if self.connector._committing is not None:
            self.connector._committing.cancel()
        self.connector._end(None)


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    made = MemoryCluster()
    yield made
    made.close()


def committed(cluster: MemoryCluster, group: str = "g", topic: str = "t") -> dict[int, int]:
    asked = offsets.OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 1, 2, 3])
    coordinator = cluster.leads(TopicPartition("__consumer_offsets", 0))
    request = offsets.OffsetFetchRequest(group_id=group, topics=[asked])
    answer = cluster.ask(request, 5, coordinator)
    return {
        each.partition_index: each.committed_offset
        for each in answer.topics[0].partitions
        if each.committed_offset >= 0
    }


def stream_of(cluster: MemoryCluster, **more: Any) -> tuple[ConsumerStream, ChunkQueue]:
    queue = ChunkQueue(10, lambda info: None)
    options: dict[str, Any] = {"key_decoder": as_bytes, "value_decoder": as_bytes} | more
    timeout_ms = options.pop("timeout_ms", -1)
    return ConsumerStream("c-0", "t", queue, cluster.runtime, timeout_ms, **options), queue


def put(info: PartitionTopicInfo, records: bytes, end: int) -> None:
    info.enqueue(FetchedDataChunk(info, records, info.fetched_offset, end))


async def one(stream: ConsumerStream) -> MessageAndMetadata:
    return await stream.__anext__()


def test_records_come_in_order_with_all_that_they_have(cluster: MemoryCluster) -> None:
    """RL 7.4: topic, partition, offset, key and value by their decoders."""
    stream, queue = stream_of(cluster, key_decoder=len, value_decoder=lambda value: value.decode())
    info = PartitionTopicInfo(T1, queue, 0)
    put(info, batch(b"a", b"b", codec=GZIP), 2)
    put(info, batch(b"c", base_offset=2), 3)
    got = [cluster.run(one(stream)) for _ in range(3)]
    assert [(each.topic, each.partition, each.offset) for each in got] == [
        ("t", 1, 0),
        ("t", 1, 1),
        ("t", 1, 2),
    ]
    assert [(each.key, each.value) for each in got] == [(2, "a"), (2, "b"), (2, "c")]
    assert got[0].timestamp == 1_700_000_000_000 and got[0].headers == []


def test_what_is_below_the_consumed_offset_is_skipped(cluster: MemoryCluster) -> None:
    """RL 7.4: a compressed batch is fetched whole; the consumed offset moves with each record that
    is handed out, not when it is fetched.
    """
    stream, queue = stream_of(cluster)
    info = PartitionTopicInfo(T0, queue, 2)
    put(info, batch(*numbered(0, 1, 2, 3), codec=GZIP), 4)
    assert (info.fetched_offset, info.consumed_offset) == (4, 2)
    assert cluster.run(one(stream)).offset == 2
    assert info.consumed_offset == 3
    assert cluster.run(one(stream)).offset == 3
    assert info.consumed_offset == 4


def test_a_timeout_is_raised_and_the_stream_goes_on(cluster: MemoryCluster) -> None:
    """RL 7.4: `consumer.timeout.ms` -1 waits, else it is raised after that time."""
    stream, queue = stream_of(cluster, timeout_ms=300)
    info = PartitionTopicInfo(T0, queue, 0)
    began = cluster.controller.clock.seconds()
    with pytest.raises(ConsumerTimeout, match=r"c-0: no record within consumer.timeout.ms=300"):
        cluster.run(one(stream))
    assert 0.299 < cluster.controller.clock.seconds() - began < 0.4
    put(info, batch(b"a"), 1)
    assert cluster.run(one(stream)).offset == 0
    patient, queue = stream_of(cluster)
    waiting = ensureDeferred(one(patient))
    cluster.pass_time(20)
    assert not waiting.called
    put(PartitionTopicInfo(T0, queue, 0), batch(b"a"), 1)
    assert cluster.run(waiting).offset == 0


def test_aborted_transactions_and_control_batches_are_left_out() -> None:
    """RL 7.4: only what was committed, by the fetch answer's list; markers never."""
    transactional = {"producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    records = b"".join(
        [
            batch(b"0", producer_id=7, **transactional),
            batch(b"1", base_offset=1, producer_id=8, **transactional),
            batch(b"2", base_offset=2),
            marker(7, False, 3),
            batch(b"4", base_offset=4, producer_id=7, **transactional),
            marker(8, True, 5),
            marker(7, True, 6),
        ]
    )
    assert [each.offset for each in records_of(records, 0, [(7, 0)])] == [1, 2, 4]
    assert [each.offset for each in records_of(records, 2, [(7, 0)])] == [2, 4]
    assert [each.offset for each in records_of(records, 0)] == [0, 1, 2, 4]
    later = [(8, 1), (7, 0), (7, 4)]
    aborted = records[: records.rindex(marker(7, True, 6))] + marker(7, False, 6)
    aborted = aborted.replace(marker(8, True, 5), marker(8, False, 5))
    assert [each.offset for each in records_of(aborted, 0, later)] == [2]


def marker(producer_id: int, committed: bool, offset: int) -> bytes:
    return build_end_marker(producer_id, 0, committed, 0, 1_700_000_000_000, base_offset=offset)


def test_one_stream_reads_all_from_the_committed_offsets(cluster: MemoryCluster) -> None:
    """RL 7.5: both offsets begin at the committed one; a stop commits what was handed out, and the
    next consumer of the group goes on there.
    """
    cluster.create("t", [1], [1])
    cluster.produce("t", *numbered(0, 1, 2))
    first = Program(cluster)
    first.wait_for(3)
    first.stop()
    assert first.ended == [None] and committed(cluster) == {0: 3, 1: 0}
    cluster.produce("t", *numbered(3, 4))
    cluster.produce("t", b"x", partition=1)
    second = Program(cluster)
    second.wait_for(3)
    assert sorted(second.places()) == [(0, 3), (0, 4), (1, 0)]
    second.stop()
    assert committed(cluster) == {0: 5, 1: 1}


def test_one_thread_id_is_one_queue_is_one_stream(cluster: MemoryCluster) -> None:
    """RL 7.5: so many streams of a topic as were asked for, each with a queue of its own, and the
    partitions spread over them.
    """
    cluster.create("t", [1], [1], [1])
    for partition in range(3):
        cluster.produce("t", b"a", partition=partition)
    program = Program(cluster, {"t": 2})
    program.wait_for(3)
    streams = program.connector.streams["t"]
    assert (
        len({each.thread_id for each in streams}) == len({id(each.queue) for each in streams}) == 2
    )
    owned: dict[int, list[int]] = {id(each.queue): [] for each in streams}
    for info in program.connector.fetchers.partitions.values():
        owned[id(info._queue)].append(info.topic_partition.partition)
    assert [owned[id(each.queue)] for each in streams] == [[0, 1], [2]]
    with pytest.raises(ConsumerError, match="created once"):
        cluster.run(program.connector.create_message_streams({"t": 1}))
    program.stop()


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_members_share_and_hand_over(cluster: MemoryCluster, strategy: str) -> None:
    """RL 7.5: a second member takes over partitions only after the first stopped fetching them and
    committed; nothing is skipped, nothing is handed out twice; when it leaves they come back.
    """
    cluster.create("t", [1], [1], [1], [1])
    settings = {"partition_assignment_strategy": strategy, "auto_commit_interval_ms": 3_600_000}
    first = Program(cluster, **settings)
    cluster.wait_until(lambda: len(first.owned) == 4)
    total = 0

    def produce() -> None:
        nonlocal total
        for partition in range(4):
            cluster.produce("t", b"%d" % total, partition=partition)
            total += 1

    produce()
    first.wait_for(4)
    second = Program(cluster, **settings)
    while len(second.owned) != 2 or len(first.owned) != 2:
        produce()
        cluster.pass_time(0.5)
        assert not first.owned & second.owned
    produce()
    cluster.wait_until(lambda: len(first.got) + len(second.got) == total)
    second.stop()
    produce()
    cluster.wait_until(lambda: len(first.owned) == 4)
    produce()
    cluster.wait_until(lambda: len(first.got) + len(second.got) == total)
    places = first.places() + second.places()
    assert len(places) == len(set(places)) == total
    assert second.got
    first.stop()
    assert committed(cluster) == {partition: total // 4 for partition in range(4)}


def failing_commits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many more commits fail, 20 at first; each counts it down."""
    real, failing = group_offsets.commit_offsets, [20]

    async def commit_offsets(*arguments: Any) -> None:
        failing[0] -= 1
        if failing[0] >= 0:
            raise ConnectionLost("cut")
        await real(*arguments)

    monkeypatch.setattr(group_membership, "commit_offsets", commit_offsets)
    return failing


def test_a_handover_waits_for_its_commit(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 7.5: a coordinator that cannot be reached as partitions are revoked is tried until the
    offsets are committed; only then does another member get them. A stop tries three times.
    """
    cluster.create("t", [1], [1])
    first = Program(cluster, auto_commit_interval_ms=3_600_000)
    for partition in range(2):
        cluster.produce("t", b"a", partition=partition)
    first.wait_for(2)
    failing = failing_commits(monkeypatch)
    second = Program(cluster, auto_commit_interval_ms=3_600_000)
    cluster.wait_until(lambda: len(first.owned) == len(second.owned) == 1)
    assert failing == [-1] and committed(cluster) == {0: 1, 1: 1}
    cluster.produce("t", b"b", partition=0)
    cluster.produce("t", b"b", partition=1)
    cluster.wait_until(lambda: len(first.got) + len(second.got) == 4)
    failing[0] = 20
    with capturedLogs() as lines:
        second.stop()
        first.stop()
    assert failing == [14]
    warned = [formatEvent(each) for each in lines if each["log_level"] is LogLevel.warn]
    assert len([each for each in warned if each and "were not committed: Conn" in each]) == 2


def test_a_stop_lets_the_commit_of_a_handover_end(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 7.5: it began in a rebalance and is tried again as the stop comes; the member that takes
    over reads nothing twice.
    """
    cluster.create("t", [1])
    first = Program(cluster, auto_commit_interval_ms=3_600_000)
    cluster.produce("t", b"a")
    first.wait_for(1)
    failing = failing_commits(monkeypatch)
    second = Program(cluster, auto_commit_interval_ms=3_600_000)
    cluster.wait_until(lambda: failing[0] < 20)
    first.stop()
    assert failing == [-1] and committed(cluster) == {0: 1}
    cluster.produce("t", b"b")
    second.wait_for(1)
    assert second.places() == [(0, 1)]
    second.stop()


def test_a_member_that_dies_loses_its_partitions(cluster: MemoryCluster) -> None:
    """After its session timeout the other one reads on from what it committed."""
    cluster.create("t", [1], [1])
    first = Program(cluster, session_timeout_ms=6_000)
    second = Program(cluster, session_timeout_ms=6_000)
    cluster.wait_until(lambda: len(first.owned) == len(second.owned) == 1)
    for partition in range(2):
        cluster.produce("t", b"a", partition=partition)
    cluster.wait_until(lambda: len(first.got) == len(second.got) == 1)
    cluster.run(first.connector.commit_offsets())
    first.crash()
    cluster.produce("t", b"b", partition=0)
    cluster.produce("t", b"b", partition=1)
    cluster.wait_until(lambda: len(second.owned) == 2)
    second.wait_for(3)
    assert sorted(first.places() + second.places()) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    second.stop()


def test_partitions_that_are_added_are_read(cluster: MemoryCluster) -> None:
    """RL 7.5: the group's leader sees them within metadata.max.age.ms, while streams run."""
    cluster.create("t", [1])
    cluster.produce("t", b"a")
    program = Program(cluster, metadata_max_age_ms=10_000)
    program.wait_for(1)
    cluster.add_partitions("t", 3)
    cluster.produce("t", b"b", partition=2)
    program.wait_for(2)
    cluster.produce("t", b"c")
    program.wait_for(3)
    assert sorted(program.places()) == [(0, 0), (0, 1), (2, 0)]
    program.stop()


def test_a_topic_moves_through_brokers_that_stop() -> None:
    """Leaders move and the coordinator does: nothing is skipped, nothing is handed out twice."""
    cluster = MemoryCluster(3, offsets_topic_replication_factor="3")
    cluster.create("t", [1, 2, 3], [2, 3, 1])
    program = Program(cluster)
    total = 0
    for broker in (1, 2, 3):
        for partition in range(2):
            cluster.produce("t", b"%d" % total, b"x", partition=partition)
            total += 2
        cluster.stop(broker)
        for partition in range(2):
            cluster.produce("t", b"%d" % total, b"x", partition=partition)
            total += 2
        cluster.start_again(broker)
        program.wait_for(total - 4)
    program.wait_for(total)
    assert len(program.got) == len(set(program.places())) == total
    program.stop()
    assert committed(cluster) == {0: total // 2, 1: total // 2}
    cluster.close()


def test_auto_commit_and_commit_by_hand(cluster: MemoryCluster) -> None:
    """Every `auto.commit.interval.ms` what was handed out; with auto.commit.enable=false only what
    `commit_offsets` is called for, also at a stop.
    """
    cluster.create("t")
    cluster.produce("t", *numbered(0, 1))
    program = Program(cluster, auto_commit_interval_ms=2_000)
    program.wait_for(2)
    cluster.pass_time(2.5)
    assert committed(cluster) == {0: 2}
    program.stop()
    by_hand = Program(cluster, group_id="h", auto_commit_enable=False)
    by_hand.wait_for(2)
    cluster.pass_time(10)
    assert committed(cluster, "h") == {}
    cluster.run(by_hand.connector.commit_offsets())
    assert committed(cluster, "h") == {0: 2}
    cluster.produce("t", b"x")
    by_hand.wait_for(3)
    by_hand.stop()
    assert committed(cluster, "h") == {0: 2}


def test_a_commit_of_an_old_generation_fails_by_name(cluster: MemoryCluster) -> None:
    """A member that the group has replaced must not move its offsets."""
    cluster.create("t")
    cluster.produce("t", b"a")
    program = Program(cluster, auto_commit_enable=False)
    program.wait_for(1)
    membership = program.connector.membership
    assert membership is not None
    leave = groups.LeaveGroupRequest(group_id="g", member_id=membership.member_id)
    assert cluster.ask(leave, 2).error_code == 0
    with pytest.raises(CommitFailed, match="the group g were not committed: UNKNOWN_MEMBER_ID"):
        cluster.run(program.connector.commit_offsets())
    cluster.wait_until(lambda: membership.rebalances == 2)  # and it joins again
    program.wait_for(2)
    program.stop()


def test_what_is_gone_is_reset_or_raised(cluster: MemoryCluster) -> None:
    """A committed offset that retention took: by `auto.offset.reset`, or raised from the stream."""
    cluster.create("t")
    cluster.produce("t", *numbered(0, 1, 2))
    cluster.produce("t", *numbered(3))
    program = Program(cluster)
    program.wait_for(4)
    program.stop()
    commit(cluster, 1)
    delete_records(cluster, 3)
    refusing = Program(cluster, auto_offset_reset="none")
    cluster.wait_until(lambda: refusing.ended)
    assert isinstance(refusing.ended[0].value, OffsetGone)
    refusing.stop()
    resetting = Program(cluster)
    resetting.wait_for(1)
    assert resetting.places() == [(0, 3)]
    resetting.stop()


def commit(cluster: MemoryCluster, offset: int) -> None:
    partition = offsets.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    topic = offsets.OffsetCommitRequestTopic(name="t", partitions=[partition])
    answer = cluster.ask(offsets.OffsetCommitRequest(group_id="g", topics=[topic]), 7)
    assert answer.topics[0].partitions[0].error_code == 0


def test_a_decoder_that_fails_names_the_record(cluster: MemoryCluster) -> None:
    """One line with the offset; the stream goes on behind it."""
    stream, queue = stream_of(cluster, value_decoder=int)
    info = PartitionTopicInfo(T0, queue, 0)
    put(info, batch(b"1", b"x", b"3"), 3)
    assert cluster.run(one(stream)).value == 1
    with pytest.raises(DecoderFailed, match="t-0: the decoder failed at offset 1: ValueError"):
        cluster.run(one(stream))
    assert cluster.run(one(stream)).value == 3


def test_a_stream_gives_way_to_the_reactor(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that never waits lets others run after some milliseconds."""
    stream, queue = stream_of(cluster)
    info = PartitionTopicInfo(T0, queue, 0)
    put(info, batch(*[b"x"] * 1000), 1000)
    monkeypatch.setattr("twisted_broker.consumer.streams.SLICE_SECONDS", 0.0)
    got: list[int] = []

    async def read() -> None:
        async for message in stream:
            got.append(message.offset)  # noqa: PERF401

    reading = ensureDeferred(read())
    assert 0 < len(got) < 100
    cluster.wait_until(lambda: len(got) == 1000)
    stream.end()
    cluster.run(reading)


class ThreadClock:
    """The cluster's clock as a reactor: calls from threads run when the test steps."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.calls: list[Any] = []

    def seconds(self) -> float:
        seconds: float = self._clock.seconds()
        return seconds

    def callLater(self, delay: float, call: Any, *arguments: Any, **more: Any) -> Any:
        return self._clock.callLater(delay, call, *arguments, **more)

    def callFromThread(self, call: Any, *arguments: Any, **more: Any) -> None:
        self.calls.append(lambda: call(*arguments, **more))


def test_blocking_iteration_in_another_thread(cluster: MemoryCluster) -> None:
    """RL 7.4: a thread iterates with `for`; what it waits for runs in the reactor's; a timeout and
    the end reach it, and in the reactor's own thread it is refused.
    """
    clock = ThreadClock(cluster.controller.clock)
    runtime = cluster.runtime.__class__(
        clock,
        *[
            getattr(cluster.runtime, name)
            for name in ("wall_ms", "network", "files", "disk", "random")
        ],
    )
    queue = ChunkQueue(10, lambda info: None)
    stream = ConsumerStream("c-0", "t", queue, runtime, 500, as_bytes, as_bytes)
    info = PartitionTopicInfo(T0, queue, 0)
    put(info, batch(*numbered(0, 1)), 2)
    got: list[Any] = []

    def read() -> None:
        while True:
            try:
                for message in stream:
                    got.append(message.offset)  # noqa: PERF401
            except ConsumerTimeout as error:
                got.append(error)
                continue
            got.append("end")
            return

    thread = threading.Thread(target=read, daemon=True)
    thread.start()

    def until(condition: Any) -> None:
        for _ in range(100_000):
            while clock.calls:
                clock.calls.pop(0)()
            if condition():
                return
            thread.join(0.001)
        raise AssertionError("the condition never came")

    until(lambda: got == [0, 1] and queue._waiters)
    put(info, batch(b"2", base_offset=2), 3)
    until(lambda: got == [0, 1, 2] and queue._waiters)
    cluster.pass_time(0.6)
    until(lambda: isinstance(got[-1], ConsumerTimeout) and queue._waiters)
    stream.end()
    until(lambda: got[-1] == "end")
    thread.join(10)
    assert not thread.is_alive() and info.consumed_offset == 3


def test_bad_input_is_one_clear_line(cluster: MemoryCluster) -> None:
    """No such broker, topic, setting or value: what is wrong, and a way on."""
    cluster.create("t")
    servers = {"bootstrap.servers": cluster.servers, "group.id": "g"}
    for settings, words in (
        ({}, "bootstrap.servers: must be set"),
        ({"bootstrap.servers": "nowhere"}, "must be a list of HOST:PORT"),
        ({"bootstrap.servers": "h:1"}, "group.id: must be set"),
        (
            servers | {"group.idd": "x"},
            "group.idd: no consumer has this setting; did you mean group.id",
        ),
        (
            servers | {"auto.offset.reset": "begin"},
            "auto.offset.reset=begin: must be one of smallest",
        ),
        (servers | {"fetch.min.bytes": "x"}, "fetch.min.bytes=x: must be a whole number from 0"),
        (servers | {"check.crcs": "maybe"}, "check.crcs=maybe: must be true or false"),
        (
            servers | {"partition.assignment.strategy": "sticky"},
            "must be a list of range, roundrobin",
        ),
        (servers | {"heartbeat.interval.ms": 50_000}, "must be less than session.timeout.ms=45000"),
    ):
        with pytest.raises(InvalidSetting, match=words) as raised:
            ConsumerConnector(settings, cluster.runtime)
        assert "\n" not in str(raised.value)
    missing = ConsumerConnector(servers, cluster.runtime)
    with pytest.raises(ConsumerError, match="there is no topic nothing at 127"):
        cluster.run(missing.create_message_streams({"nothing": 1}))
    nobody = ConsumerConnector(servers | {"bootstrap.servers": "127.0.0.1:1"}, cluster.runtime)
    with pytest.raises(
        BrokersUnreachable, match=r"no broker of bootstrap.servers=127.0.0.1:1 answered"
    ):
        cluster.run(nobody.create_message_streams({"t": 1}))
    refused = Program(cluster, session_timeout_ms=4_000)
    cluster.wait_until(lambda: refused.ended)
    error = refused.ended[0].value
    assert "INVALID_SESSION_TIMEOUT; set session.timeout.ms within" in str(error)
    assert (
        ConsumerConfig(servers | {"enable.auto.commit": "false"}).boolean("auto.commit.enable")
        is False
    )
    for each in (missing, nobody, refused.connector):
        cluster.run(each.shutdown())


def test_a_refused_group_ends_the_streams(cluster: MemoryCluster) -> None:
    """Another protocol than the other members': one line from every stream."""
    cluster.create("t")
    first = Program(cluster, partition_assignment_strategy="range")
    cluster.wait_until(lambda: first.owned)
    second = Program(cluster, partition_assignment_strategy="roundrobin")
    cluster.wait_until(lambda: second.ended)
    assert "INCONSISTENT_GROUP_PROTOCOL" in str(second.ended[0].value)
    assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL.name in str(second.ended[0].value)
    second.stop()
    first.stop()


def test_a_stop_in_any_state_leaves_nothing(cluster: MemoryCluster) -> None:
    """While it joins, while it waits: no timer, no connection, no member is left."""
    cluster.create("t")
    for seconds in (0.0, 0.001, 0.5, 5.0):
        program = Program(cluster)
        cluster.pass_time(seconds)
        program.stop()
        assert program.ended == [None]
        cluster.pass_time(1)
        described = cluster.ask(groups.DescribeGroupsRequest(groups=["g"]), 4).groups[0]
        assert described.members == []


def test_a_stop_does_not_wait_for_a_rebalance(cluster: MemoryCluster) -> None:
    """Its JoinGroup waits for a member that is silent, and answers of a connection come in order:
    it leaves over another one.
    """
    cluster.create("t")
    first = Program(cluster, session_timeout_ms=30_000)
    cluster.wait_until(lambda: first.owned)
    silent = first.connector.membership
    assert silent is not None and silent._running is not None
    silent._running.cancel()
    second = Program(cluster, session_timeout_ms=30_000)
    cluster.pass_time(1)
    began = cluster.controller.clock.seconds()
    second.stop()
    assert cluster.controller.clock.seconds() - began < 1 and second.ended == [None]
    described = cluster.ask(groups.DescribeGroupsRequest(groups=["g"]), 4).groups[0]
    assert [each.member_id for each in described.members] == [silent.member_id]
    first.crash()
