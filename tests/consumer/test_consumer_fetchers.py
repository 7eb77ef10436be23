"""Chunks out of clusters in memory: the fetchers of a consumer, their leader finder, and bounded
queues (RL 7.1-7.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.logger import LogLevel, capturedLogs, formatEvent

from tests.consumer.memory_cluster import MemoryCluster
from tests.log.batches import batch
from tests.log.test_mirrored import at
from twisted_broker.consumer.cluster_client import ClientConnection, ClusterClient
from twisted_broker.consumer.consumer_config import ConsumerConfig
from twisted_broker.consumer.consumer_fetcher_manager import (
    ConsumedPartitions,
    ConsumerFetcherManager,
    _kept,
)
from twisted_broker.consumer.errors import (
    ConsumerError,
    LogTruncated,
    OffsetGone,
    OffsetMismatch,
    TopicRecreated,
)
from twisted_broker.consumer.partition_topic_info import (
    INVALID_OFFSET,
    ChunkQueue,
    FetchedDataChunk,
    PartitionTopicInfo,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.net.client import BrokerConnection
from twisted_broker.replication.fetcher.fetcher import Fetcher
from twisted_broker.replication.fetcher.fetcher_manager import FetcherManager
from twisted_broker.simulation.memory_network import MemoryTransport
from twisted_broker.wire.messages import topics as topic_messages
from twisted_broker.wire.records import CorruptRecordError, iterate_batches

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Reader:
    """The fetchers of one consumer, with one queue; what came is in `records`."""

    def __init__(self, cluster: MemoryCluster, chunks: int = 2, **settings: Any) -> None:
        self.cluster = cluster
        values = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = ConsumerConfig({"bootstrap.servers": cluster.servers} | values)
        self.client = ClusterClient(cluster.runtime, self.config)
        self.manager = ConsumerFetcherManager(self.client, self.config, "c")
        self.queue = ChunkQueue(chunks, self.manager.resume)
        self.records: list[tuple[TopicPartition, int, bytes]] = []
        self.errors: list[Exception] = []
        self.infos: dict[TopicPartition, PartitionTopicInfo] = {}

    def consume(self, name: TopicPartition = T0, offset: int = 0, **more: Any) -> Any:
        info = self.infos[name] = PartitionTopicInfo(name, self.queue, offset, **more)
        self.manager.consume([info])
        return info

    def take(self) -> None:
        """All that waits."""
        while (chunk := self.queue.poll()) is not None:
            if chunk.error is not None:
                self.errors.append(chunk.error)
                continue
            for found in iterate_batches(chunk.records):
                self.records += [
                    (chunk.info.topic_partition, each.offset, each.value or b"")
                    for each in found.records()
                    if each.offset >= chunk.fetch_offset
                ]
            chunk.info.consumed_offset = chunk.next_offset

    def read(self, count: int, seconds: float = 60.0) -> list[tuple[int, bytes]]:
        """Until so many records came in all: offsets and values of `T0`."""
        self.cluster.wait_until(lambda: self.take() or len(self.records) >= count, seconds)
        return [(offset, value) for name, offset, value in self.records if name == T0]

    def fail(self) -> Exception:
        self.cluster.wait_until(lambda: self.take() or self.errors)
        return self.errors[-1]

    def close(self) -> None:
        self.manager.shutdown()
        self.client.close()


class Rooms:
    """Makes clusters and readers, and ends them."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def cluster(self, brokers: int = 1, **settings: str) -> MemoryCluster:
        self.made.append(MemoryCluster(brokers, **settings))
        return self.made[-1]

    def reader(self, cluster: MemoryCluster, **settings: Any) -> Reader:
        self.made.append(Reader(cluster, **settings))
        return self.made[-1]

    def close(self) -> None:
        for each in reversed(self.made):
            each.close()


@pytest.fixture
def rooms() -> Iterator[Rooms]:
    made = Rooms()
    yield made
    made.close()


def values(*numbers: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in numbers]


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def test_one_base_serves_replicas_and_consumers(rooms: Rooms) -> None:
    """RL 7.1: a consumer's fetcher is a `Fetcher` of a `FetcherManager`, with another target; its
    rounds are the base's own, and it never truncates.
    """
    cluster = rooms.cluster()
    cluster.create("t")
    cluster.produce("t", *numbered(0, 1, 2))
    reader = rooms.reader(cluster)
    reader.consume()
    assert reader.read(3) == values(0, 1, 2)
    (fetcher,) = reader.manager.fetchers.values()
    assert isinstance(reader.manager, FetcherManager) and isinstance(fetcher, Fetcher)
    for name in ("_run", "do_work", "_process_answers", "_handle_out_of_range", "_wait"):
        assert getattr(type(fetcher), name) is getattr(Fetcher, name)


def test_a_consumers_request(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """RL 7.3: replica -1, the waits and limits of the settings, by their defaults."""
    cluster = rooms.cluster()
    cluster.create("t")
    reader = rooms.reader(cluster)
    sent: list[Any] = []
    real = BrokerConnection.send

    def send(self: Any, request: Any, version: int, **more: Any) -> Any:
        if type(request).__name__ == "FetchRequest" and self.client_id.startswith("c-"):
            sent.append((request, version))
        return real(self, request, version, **more)

    monkeypatch.setattr(BrokerConnection, "send", send)
    reader.consume()
    cluster.wait_until(lambda: len(sent) > 1)
    request, version = sent[0]
    assert version == 18 and request.replica_id == request.replica_state.replica_id == -1
    assert (request.max_wait_ms, request.min_bytes, request.isolation_level) == (100, 1, 0)
    assert request.topics[0].partitions[0].partition_max_bytes == 1 << 20
    assert reader.config.integer("num.consumer.fetchers") == 1
    assert reader.config.integer("queued.max.message.chunks") == 2


@pytest.mark.parametrize("highest", [4, 8, 11, 12, 13, 17])
def test_older_brokers_are_read_in_their_versions(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch, highest: int
) -> None:
    """Topics by name up to Fetch 12, by id from 13 on; sessions from 7 on."""
    real = ClientConnection.version

    async def version(self: ClientConnection, key: int, ours: int) -> int:
        found = await real(self, key, ours)
        return min(found, highest) if key == 1 else found

    monkeypatch.setattr(ClientConnection, "version", version)
    cluster = rooms.cluster()
    cluster.create("t", [1], [1])
    reader = rooms.reader(cluster)
    reader.consume(T0)
    reader.consume(T1)
    cluster.produce("t", *numbered(0, 1))
    reader.read(2)
    cluster.produce("t", *numbered(0, 1), partition=1)
    cluster.produce("t", *numbered(2))
    assert reader.read(5) == values(0, 1, 2)


def test_the_leader_finder_sleeps_until_a_partition_has_no_leader(rooms: Rooms) -> None:
    """RL 7.2: no pass while all are fetched; found ones go to fetchers at their fetched offset."""
    cluster = rooms.cluster()
    cluster.create("t")
    cluster.produce("t", *numbered(0, 1, 2, 3))
    reader = rooms.reader(cluster)
    cluster.pass_time(5)
    assert reader.manager.leader_finder.passes == 0
    reader.consume(offset=2)
    assert reader.read(2) == values(2, 3)
    cluster.pass_time(5)
    assert reader.manager.leader_finder.passes == 1
    assert len(reader.manager.leader_finder) == 0


def test_a_leader_that_moves_is_followed(rooms: Rooms) -> None:
    """RL 7.2: a failure comes back to the leader finder, which finds the new leader; nothing is
    skipped and nothing comes twice; the old leader's fetcher ends, for it is idle.
    """
    cluster = rooms.cluster(3)
    cluster.create("t", [1, 2, 3])
    reader = rooms.reader(cluster, fetch_message_max_bytes=100)
    reader.consume()
    for turn in range(3):
        for number in range(4):
            cluster.produce("t", *numbered(turn * 4 + number))
        reader.read(turn * 4 + 2)
        leader = cluster.leads(T0)
        assert leader is not None
        cluster.stop(leader)
        cluster.wait_until(lambda: cluster.leads(T0))
        cluster.start_again(leader)
    assert reader.read(12) == values(*range(12))
    cluster.pass_time(5)
    assert [leader for leader, _ in reader.manager.fetchers] == [cluster.leads(T0)]


def test_brokers_are_tried_in_turn_until_one_answers(rooms: Rooms) -> None:
    """RL 7.2: shuffled order, one that is gone is passed over; with none it is one line, and a
    pass every `refresh.leader.backoff.ms`.
    """
    cluster = rooms.cluster(2)
    cluster.create("t", [2])
    cluster.produce("t", *numbered(0))
    reader = rooms.reader(cluster)
    cluster.stop(1)
    reader.consume()
    assert reader.read(1) == values(0)
    with capturedLogs() as lines:
        cluster.stop(2)  # a pass may come while it stops
        before = reader.manager.leader_finder.passes
        cluster.pass_time(2.1)
    passes = reader.manager.leader_finder.passes - before
    assert 8 <= passes <= 11
    warnings = [formatEvent(each) for each in lines if each["log_level"] is LogLevel.warn]
    (line,) = [each for each in warnings if each and "no leader can be found" in each]
    assert "security.protocol" not in line  # a broker that stops is no matter of security
    cluster.start_again(2)
    cluster.produce("t", *numbered(1))
    assert reader.read(2) == values(0, 1)


def test_a_full_queue_pauses_its_partition_only(rooms: Rooms) -> None:
    """RL 7.3: with as many chunks as may wait a partition is not requested until one is taken;
    another partition of the same fetcher goes on.
    """
    cluster = rooms.cluster()
    cluster.create("t", [1], [1])
    for number in range(10):
        cluster.produce("t", *numbered(number))
    reader = rooms.reader(cluster, fetch_message_max_bytes=10)  # one batch a chunk
    first = reader.consume(T0)
    cluster.pass_time(1)
    assert (len(reader.queue), first.queued, first.fetched_offset) == (2, 2, 2)
    reader.consume(T1)
    cluster.produce("t", b"x", partition=1)
    cluster.wait_until(lambda: len(reader.queue) == 3)
    assert first.fetched_offset == 2
    chunk = reader.queue.poll()
    assert chunk is not None and (chunk.fetch_offset, chunk.next_offset) == (0, 1)
    cluster.pass_time(1)
    assert (first.queued, first.fetched_offset) == (2, 3)
    assert reader.read(10) == values(*range(1, 10))


def test_a_chunk_for_another_offset_is_an_error(rooms: Rooms) -> None:
    """RL 7.3: what is not the fetched offset would be a gap, or a record twice."""
    cluster = rooms.cluster()
    reader = rooms.reader(cluster)
    info = PartitionTopicInfo(T0, reader.queue, 5)
    for offset in (4, 6):
        with pytest.raises(OffsetMismatch, match=f"offset {offset}, to be fetched next is 5"):
            info.enqueue(FetchedDataChunk(info, b"", offset, offset + 1))
    info.enqueue(FetchedDataChunk(info, b"", 5, 7))
    assert (info.fetched_offset, info.consumed_offset) == (7, 5)


@pytest.mark.parametrize(
    ("reset", "offset"), [("smallest", 2), ("earliest", 2), ("largest", 5), ("latest", 5)]
)
@pytest.mark.parametrize("begin", [INVALID_OFFSET, 0, 9])
def test_out_of_range_resets_both_offsets(
    rooms: Rooms, reset: str, offset: int, begin: int
) -> None:
    """RL 7.3: by `auto.offset.reset`, fetched and consumed."""
    cluster = rooms.cluster()
    cluster.create("t")
    cluster.produce("t", *numbered(*range(5)))
    delete_records(cluster, 2)
    reader = rooms.reader(cluster, auto_offset_reset=reset, queued_max_message_chunks=2)
    info = reader.consume(offset=begin)
    cluster.wait_until(lambda: info.fetched_offset >= offset and info.consumed_offset == offset)
    cluster.produce("t", *numbered(5))
    assert reader.read(6 - offset) == values(*range(offset, 6))


@pytest.mark.parametrize(("begin", "words"), [(-1, "no committed offset"), (9, "offset 9 is not")])
def test_without_a_reset_it_is_an_error(rooms: Rooms, begin: int, words: str) -> None:
    """RL 7.3: auto.offset.reset=none: one line that names what the leader has."""
    cluster = rooms.cluster()
    cluster.create("t")
    cluster.produce("t", *numbered(*range(5)))
    reader = rooms.reader(cluster, auto_offset_reset="none")
    reader.consume(offset=begin)
    error = reader.fail()
    assert isinstance(error, OffsetGone) and (error.log_start, error.log_end) == (0, 5)
    assert words in str(error) and "0 to 5" in str(error) and "\n" not in str(error)
    assert reader.manager.failed == {T0}


def delete_records(cluster: MemoryCluster, before: int) -> None:
    topic = topic_messages.DeleteRecordsTopic(
        name="t",
        partitions=[topic_messages.DeleteRecordsPartition(partition_index=0, offset=before)],
    )
    request = topic_messages.DeleteRecordsRequest(topics=[topic], timeout_ms=5000)
    assert cluster.ask(request, 2).topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize("reset", ["smallest", "none"])
def test_another_history_is_noticed(rooms: Rooms, reset: str) -> None:
    """RL 7.3: the last epoch fetched goes along: a leader whose log differs below says where, and
    the reader begins there again, or is given the error.
    """
    cluster = rooms.cluster(2, unclean_leader_election_enable="true")
    cluster.create("t", [1, 2])
    cluster.produce("t", *numbered(0, 1))
    for broker in (1, 2, 1):  # epochs 1 and more, with records in the last only
        cluster.stop(broker)
        cluster.wait_until(lambda: cluster.leads(T0))
        cluster.start_again(broker)
        cluster.pass_time(5)
    leader = cluster.partition(T0)
    cluster.produce("t", *numbered(2, 3))
    reader = rooms.reader(cluster, auto_offset_reset=reset)
    # As one that fetched up to 4 from a leader of epoch 0 whose last records are lost.
    info = reader.consume(offset=4, last_epoch=leader.leader_epoch - 1)
    if reset == "none":
        error = reader.fail()
        assert isinstance(error, LogTruncated)
        assert (error.offset, error.end_offset, error.epoch) == (4, 2, 0)
    else:
        assert reader.read(2) == values(2, 3)
        assert info.fetched_offset == 4 and info.last_epoch == leader.leader_epoch


def test_a_consumer_truncates_nothing(rooms: Rooms) -> None:
    """RL 7.1: a log is what replicas truncate: a consumer begins at its offset, and sends no
    OffsetForLeaderEpoch.
    """
    cluster = rooms.cluster()
    cluster.create("t")
    cluster.produce("t", *numbered(0, 1, 2))
    reader = rooms.reader(cluster)
    sent: list[str] = []
    real = BrokerConnection.send

    def send(self: Any, request: Any, version: int, **more: Any) -> Any:
        if (self.client_id or "").startswith("c-"):
            sent.append(type(request).__name__)
        return real(self, request, version, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BrokerConnection, "send", send)
        reader.consume(offset=1)
        assert reader.read(2) == values(1, 2)
    assert set(sent) == {"ApiVersionsRequest", "FetchRequest"}


@pytest.mark.parametrize("reset", ["smallest", "none"])
def test_a_topic_that_was_created_again_begins_anew(rooms: Rooms, reset: str) -> None:
    """Its offsets mean nothing any more: by `auto.offset.reset`, or an error."""
    cluster = rooms.cluster()
    cluster.create("t")
    cluster.produce("t", *numbered(0, 1, 2))
    reader = rooms.reader(cluster, auto_offset_reset=reset)
    reader.consume()
    reader.read(3)
    cluster.delete("t")
    cluster.create("t")
    cluster.produce("t", *numbered(0, 1, 2, 3, 4))
    if reset == "none":
        assert isinstance(reader.fail(), TopicRecreated)
    else:
        assert reader.read(8)[3:] == values(0, 1, 2, 3, 4)


def test_corrupt_records_are_fetched_again_and_then_an_error(rooms: Rooms) -> None:
    """RL 7.3: a bit that flipped on the way is fetched again; one on the leader's disk ends the
    partition, by name, after three answers.
    """
    cluster = rooms.cluster()
    cluster.create("t")
    cluster.produce("t", *[b"a" * 50])
    reader = rooms.reader(cluster)
    flips = 2
    real = MemoryTransport.arrive

    def arrive(self: Any, data: bytes) -> None:
        nonlocal flips
        at = data.find(b"a" * 50)
        if at >= 0 and flips:
            flips -= 1
            data = data[: at + 5] + b"b" + data[at + 6 :]
        real(self, data)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MemoryTransport, "arrive", arrive)
        reader.consume()
        assert reader.read(1) == [(0, b"a" * 50)] and flips == 0
        flips = 10
        cluster_reader = rooms.reader(cluster)
        cluster_reader.consume()
        error = cluster_reader.fail()
    assert isinstance(error, ConsumerError) and "t-0" in str(error) and "corrupt" in str(error)
    assert flips == 7


def test_what_is_removed_comes_no_more(rooms: Rooms) -> None:
    """An answer in flight of a released partition is dropped, and its chunks with it."""
    cluster = rooms.cluster()
    cluster.create("t")
    reader = rooms.reader(cluster)
    info = reader.consume()
    cluster.produce("t", *numbered(0))
    cluster.wait_until(lambda: len(reader.queue) == 1)
    reader.manager.remove([T0])
    reader.queue.release([info])
    cluster.produce("t", *numbered(1))
    cluster.pass_time(2)
    assert len(reader.queue) == 0 and not reader.manager.partitions
    reader.consume(offset=0)
    assert reader.read(2) == values(0, 1)


def test_shutdown_leaves_no_timer_and_no_connection(rooms: Rooms) -> None:
    """Whoever ends a consumer has nothing left of it."""
    cluster = rooms.cluster()
    cluster.create("t")
    reader = rooms.reader(cluster)
    reader.consume()
    cluster.wait_until(lambda: reader.manager.is_fetching(T0))
    cluster.pass_time(1)
    reader.close()
    cluster.pass_time(1)
    assert reader.manager.fetchers == {} and reader.manager.leader_finder.passes == 1
    assert not [
        each for each in cluster.controller.clock.getDelayedCalls() if "Fetcher" in repr(each)
    ]


def test_a_chunk_that_is_most_of_its_answer_is_not_copied() -> None:
    """And a small part of a large one does not keep it in memory."""
    answer = bytearray(100_000)
    kept = _kept(memoryview(answer)[50:90_050], 80_000)
    assert isinstance(kept, memoryview) and kept.readonly and kept.obj is answer
    assert len(kept) == 80_000
    assert isinstance(_kept(memoryview(answer)[50:90_050], 12_499), bytes)
    assert _kept(b"abcdef", 4) == b"abcd"


def test_without_crcs_the_last_whole_batch_says_where_to_go_on() -> None:
    """`check.crcs=false`, as a mirror reads: whoever takes the records checks them."""
    consumed = ConsumedPartitions({}, "none", False)
    first, second = (at(n, batch(b"v" * 50), n) for n in (4, 9))
    whole = first + second
    for records in (whole, whole + first[:30], whole + first[:5]):
        assert consumed._whole_batches(memoryview(records)) == (len(whole), 9, 9)
    assert consumed._whole_batches(first + second[:-1]) == (len(first), 4, 4)
    assert consumed._whole_batches(first[:-1]) == (0, -1, -1)
    broken = bytearray(whole)
    broken[8:12] = bytes(4)
    with pytest.raises(CorruptRecordError):
        consumed._whole_batches(broken)
