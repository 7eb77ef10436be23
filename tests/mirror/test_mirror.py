"""A mirror between two clusters in memory: what travels, what follows, what ends it."""

from __future__ import annotations

import copy
import errno
import re
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol

from tests.mirror.world import SOURCE, TARGET, World, some_batch
from twisted_broker.api.routes import routes_for
from twisted_broker.consumer.cluster_client import (
    ClusterClient,
    ClusterMetadata,
    PartitionMetadata,
)
from twisted_broker.image.entries import RECOVERED, RECOVERING
from twisted_broker.interfaces import TopicPartition
from twisted_broker.mirror import source_epochs
from twisted_broker.mirror.errors import MirrorError, SourceLost
from twisted_broker.replication import replica_manager
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.server import kraft_membership
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.header import APPEND_MIRRORED
from twisted_broker.wire.messages import topics


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.end()


def test_batches_travel_as_they_are(world: World) -> None:
    world.create(partitions=2)
    sent = [
        some_batch(b"a", b"b"),
        some_batch(b"c" * 500, codec=4),
        some_batch(b"d", producer_id=5, producer_epoch=1, base_sequence=0),
    ]
    for data in sent:
        assert world.produce(data) == "NONE"
    world.produce(some_batch(b"x"), partition=1)
    world.start()
    world.caught_up()
    for partition in (0, 1):
        assert world.content(world.target, "t", partition) == (
            world.content(world.source, "t", partition)
        )
    assert world.produce(some_batch(b"e"), port=TARGET) == "POLICY_VIOLATION"
    world.produce(some_batch(b"e"))
    world.caught_up()
    assert len(world.content(world.target)) == 4
    assert not world.lines


def test_settings_partitions_and_new_topics_follow(world: World) -> None:
    world.create("t1", retention_ms="1234567", cleanup_policy="delete")
    mirror = world.start()
    world.caught_up()
    assert world.log(world.target, "t1").config.retention_ms == 1234567
    world.alter("t1", retention_ms=None, segment_ms="7000000")
    asked = topics.CreatePartitionsTopic(name="t1", count=3, assignments=None)
    world.ask(topics.CreatePartitionsRequest(topics=[asked]), 3, SOURCE)
    world.create("t2")
    world.create("other")
    world.until(lambda: len(mirror.partitions) == 4)
    for number in (0, 1, 2):
        world.produce(some_batch(b"%d" % number), "t1", number)
    world.caught_up()
    config = world.log(world.target, "t1").config
    assert (config.retention_ms, config.segment_ms) == (604800000, 7000000)
    assert {name.topic for name in mirror.partitions} == {"t1", "t2"}
    assert [each.lag for each in mirror.progress()] == [0, 0, 0, 0]


@pytest.mark.parametrize("seed", range(4))
def test_kills_of_the_mirror_and_restarts_of_the_target(world: World, seed: int) -> None:
    """Killed anywhere, also between a request and its answer: no gap, no duplicate."""
    random = Random(seed)
    world.create(partitions=2, segment_bytes="1048576")
    number = 0
    for _ in range(6):
        for _ in range(random.randrange(1, 8)):
            number += 1
            data = some_batch(*[b"%d" % number] * random.randrange(1, 4))
            assert world.produce(data, partition=random.randrange(2)) == "NONE"
        world.start(chunk_bytes=random.choice([100, 1 << 20]))
        for _ in range(random.randrange(0, 120)):
            world.step()
        if random.random() < 0.3:
            world.restart_target()
        assert not world.failures, world.failures
        world.kill()
    world.start()
    world.caught_up()
    for partition in (0, 1):
        assert world.content(world.target, "t", partition) == (
            world.content(world.source, "t", partition)
        )


def test_two_mirrors_of_one_topic_do_no_harm(world: World) -> None:
    world.create()
    for number in range(30):
        world.produce(some_batch(b"%d" % number))
    first, second = world.start(chunk_bytes=100), world.start(chunk_bytes=150)
    world.caught_up()
    world.until(lambda: first.has_caught_up and second.has_caught_up)
    assert world.content(world.target) == world.content(world.source)
    first.stop()


def test_a_source_that_starts_above(world: World) -> None:
    """Its log start is ours, inside a batch too; and follows when it moves."""
    world.create()
    for number in range(6):
        world.produce(some_batch(b"%d" % number, b"second"))
    world.delete_records(5)
    world.start()
    world.caught_up()
    world.until(lambda: world.log(world.target).log_start_offset == 5)
    assert world.content(world.target) == world.content(world.source)
    world.delete_records(8)
    world.until(lambda: world.log(world.target).log_start_offset == 8)
    assert not world.lines


def test_what_the_source_deleted_before_it_was_mirrored_is_one_line(world: World) -> None:
    world.create()
    world.produce(some_batch(b"a", b"b"))
    world.start()
    world.caught_up()
    world.kill()
    for number in range(6):
        world.produce(some_batch(b"%d" % number))
    world.delete_records(5)
    world.start()
    world.caught_up()
    assert world.lines == [
        "t-0: the source deleted offsets 2 to 4 before they were mirrored; going on at 5"
    ]
    world.until(lambda: world.log(world.target).log_start_offset == 5)
    assert world.content(world.target) == world.content(world.source)


@pytest.mark.parametrize("how", ["running", "at a start", "without the side file"])
def test_a_source_that_lost_records_ends_it(world: World, how: str) -> None:
    """Known by the leader epochs, or, without the side file, by the last batch's bytes."""
    world.create()
    world.produce(some_batch(b"a"))
    before = world.stop_source()
    world.start_source(copy.deepcopy(before))
    world.produce(some_batch(b"lost", b"lost"))
    world.start()
    world.caught_up()
    held = world.content(world.target)
    if how != "running":
        world.kill()
    world.stop_source()
    world.start_source(before)
    if how == "without the side file":
        world.files.remove_tree("/side")
    else:
        world.stop_source()
        world.start_source(before)  # under a leader epoch of its own
    for number in range(5):
        world.produce(some_batch(b"%d" % number))
    if how != "running":
        world.start()
    with pytest.raises(SourceLost, match="t-0: the source lost records that were mirrored"):
        world.until(lambda: False)
    assert world.content(world.target) == held


@pytest.mark.parametrize("how", ["running", "at a start", "without the side file"])
@pytest.mark.parametrize("more", [0, 12])
def test_what_the_source_lost_is_dropped(world: World, how: str, more: int) -> None:
    """`follow_loss`: under a new leader epoch, recorded as unclean; known by epochs, or searched in
    the batches. `more`: records after the loss, beyond what was mirrored or not.
    """
    world.create(partitions=2)
    for number in range(3):
        world.produce(some_batch(b"%d" % number, b"second"))
    world.produce(some_batch(b"other"), partition=1)
    before = world.stop_source()
    world.start_source(copy.deepcopy(before))
    for number in range(5):
        world.produce(some_batch(b"lost %d" % number))
    mirror = world.start(follow_loss=True)
    world.caught_up()
    name = TopicPartition("t", 0)
    epoch = world.replicas(world.target).partitions[name].leader_epoch
    if how != "running":
        world.kill()
    world.stop_source()
    world.start_source(before)
    if how == "without the side file":
        world.files.remove_tree("/side")
    else:
        world.stop_source()
        world.start_source(before)  # under a leader epoch of its own
    for number in range(more):
        world.produce(some_batch(b"%d" % number))
    if how != "running":
        mirror = world.start(follow_loss=True)
    world.until(lambda: world.content(world.target) == world.content(world.source))
    world.caught_up()
    partition = world.replicas(world.target).partitions[name]
    assert partition.leader_epoch > epoch
    assert partition.history.truncations[0].to_offset == 6
    held = world.target.broker.parts.metadata.image.topics_by_name["t"].partitions
    assert [each.leader_recovery_state for each in held.values()] == [RECOVERING, RECOVERED]
    assert next(line for line in world.lines if "dropping" in line) == (
        "t-0: the source lost records that were mirrored: it differs from offset 6 on; "
        "dropping 6 to 10 in the target"
    )
    world.produce(some_batch(b"after"))
    world.until(lambda: world.content(world.target) == world.content(world.source))
    world.pass_time(5)
    assert partition.leader_epoch == epoch + 1 and mirror.has_caught_up


def test_a_compacted_topic_is_not_taken_for_a_loss(world: World) -> None:
    """Both sides compact on their own: the last batch may be another."""
    world.create("t", cleanup_policy="compact")
    world.produce(some_batch(b"a"))
    world.start()
    world.caught_up()
    world.kill()
    world.files.remove_tree("/side")
    world.start()
    world.produce(some_batch(b"b"))
    world.caught_up()
    assert world.content(world.target) == world.content(world.source)
    assert world.mirror is not None
    (partition,) = world.mirror.partitions.values()
    assert partition.bytes == len(some_batch(b"b")) and partition.compacted


def test_an_old_topic_of_the_same_name_is_never_continued(world: World) -> None:
    """Deleted and created again in the source; deleted in the target: begun anew."""
    world.create()
    world.produce(some_batch(b"a"))
    world.start()
    world.caught_up()
    world.delete("t", TARGET)
    world.until(lambda: TopicPartition("t", 0) in world.replicas(world.target).partitions)
    world.caught_up()
    assert world.content(world.target) == world.content(world.source)
    world.delete("t", SOURCE)
    world.create()
    with pytest.raises(MirrorError, match="created again") as caught:
        world.until(lambda: False)
    assert "\n" not in str(caught.value)
    world.failures.clear()
    world.start()
    with pytest.raises(MirrorError, match=r"is a mirror of .*, the source is "):
        world.until(lambda: False)


def test_a_topic_that_is_deleted_in_the_source(world: World) -> None:
    world.create()
    world.start()
    world.caught_up()
    world.delete("t", SOURCE)
    with pytest.raises(MirrorError, match="topic t was deleted in the source"):
        world.until(lambda: False)


@pytest.mark.parametrize(
    ("topics", "line"),
    [("nothing", "no topic of .* has such a name"), ("own", "is in the target already")],
)
def test_what_cannot_be_mirrored_is_one_line(world: World, topics: str, line: str) -> None:
    world.create()
    world.create("own")
    world.create("own", port=TARGET)
    world.start(topics)
    with pytest.raises(MirrorError, match=line) as caught:
        world.until(lambda: False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("first", [True, False])
def test_a_directory_that_cannot_be_written_ends_it(
    world: World, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """One line that names the option; the copy goes on with the next start."""

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    world.create()
    world.produce(some_batch(b"a"))
    with monkeypatch.context() as disk:
        if first:
            disk.setattr(world.files, "make_directories", full)
        else:
            disk.setattr(source_epochs, "write_aside", lambda *_, **__: full())
        world.start()
        with pytest.raises(MirrorError, match=r"--state .* cannot be written: No sp") as caught:
            world.until(lambda: False)
    assert "\n" not in str(caught.value)
    world.failures.clear()
    world.start()
    world.caught_up()


def test_a_target_that_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(on_controller: bool) -> object:
        return {
            key: row for key, row in routes_for(on_controller).items() if key != APPEND_MIRRORED
        }

    monkeypatch.setattr(kraft_membership, "routes_for", without)
    world = World()
    world.create()
    world.start()
    with pytest.raises(MirrorError, match="the target is not ours"):
        world.until(lambda: False)
    assert not world.replicas(world.target).partitions
    world.end()


class _Stranger(Protocol):
    """No Kafka broker: it says this when it is spoken to."""

    def __init__(self, says: bytes) -> None:
        self.says = says

    def dataReceived(self, data: bytes) -> None:
        self.transport.write(self.says)


def stranger(world: World, says: bytes) -> int:
    """Its port."""
    factory: Any = Factory()
    factory.buildProtocol = lambda address: _Stranger(says)
    world.time.network.listen("127.0.0.1", 9555, factory)
    return 9555


@pytest.mark.parametrize("option", ["--from", "--to"])
def test_an_address_that_is_silent_is_named_before_it_ends(world: World, option: str) -> None:
    """A broker may need its time; what is known already is said after three seconds."""
    port = stranger(world, b"")
    world.start(**{"source" if option == "--from" else "target": port})
    world.pass_time(4)
    (line,) = world.lines
    assert re.fullmatch(
        rf"waiting for {option} 127\.0\.0\.1:{port}: it took the connection and has not answered "
        r"yet; is it a Kafka broker\?",
        line,
    )
    with pytest.raises(
        MirrorError,
        match=rf"no broker of {option} 127\.0\.0\.1:{port} answered \(127\.0\.0\.1:{port}: did not "
        r"answer within 30000 ms \(is it a Kafka broker\?\)\)",
    ):
        world.until(lambda: False)
    assert len(world.lines) == 1


def test_an_address_behind_a_firewall_is_named_before_it_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes back from there, not even a refusal."""
    real = world.time.network.connect

    def connect(host: str, port: int, factory: Any, timeout: float) -> Deferred[Any]:
        return Deferred() if port == SOURCE else real(host, port, factory, timeout)

    monkeypatch.setattr(world.time.network, "connect", connect)
    world.start()
    world.pass_time(4)
    assert world.lines == [
        f"waiting for --from 127.0.0.1:{SOURCE}: there is no connection yet; check the address"
    ]


def test_what_speaks_another_protocol_is_named_at_once(world: World) -> None:
    """A web server behind a wrong port."""
    port = stranger(world, b"HTTP/1.1 400 Bad Request\r\n\r\n")
    world.start(source=port)
    with pytest.raises(MirrorError, match=rf"no broker of --from .*:{port}: .* begins with 'HTTP'"):
        world.until(lambda: False, seconds=2)
    assert not world.lines


def test_a_broker_that_answers_in_time_is_not_suspected(world: World) -> None:
    """Nothing is said of it later."""
    world.create()
    world.start()
    world.caught_up()
    world.pass_time(10)
    assert not world.lines


def test_a_source_that_advertises_an_address_nobody_serves(world: World) -> None:
    """It answers at --from, and sends its clients elsewhere: said once, and mended without a
    restart of the mirror.
    """
    world.create()
    world.produce(some_batch(b"a"))
    files = world.stop_source()
    world.start_source(files, advertised_listeners="PLAINTEXT://elsewhere:9")
    world.start()
    world.pass_time(20)
    (line,) = world.lines
    assert line.startswith("the source's broker 1 at elsewhere:9 does not answer, retrying: ")
    assert line.endswith("; if that broker runs, look at its advertised.listeners")
    world.start_source(world.stop_source())
    world.caught_up()


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_partition_without_a_leader_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """Its replicas are away: the others are mirrored meanwhile, and it is when it has one."""
    world.create(partitions=3)
    for number in range(3):
        world.produce(some_batch(b"%d" % number), partition=number)
    real = ClusterClient.metadata
    port = SOURCE if side == "source" else TARGET

    async def metadata(self: ClusterClient, names: Any) -> ClusterMetadata:
        found = await real(self, names)
        if any(each.port == port for each in found.brokers.values()):
            for topic in found.topics.values():
                topic.partitions[1] = PartitionMetadata(None, -1)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(ClusterClient, "metadata", metadata)
        world.start()
        world.pass_time(20)
        (line,) = world.lines
        assert line == f"waiting for a leader in the {side}: t-1"
        assert world.content(world.target, partition=2) == world.content(world.source, partition=2)
        assert not world.content(world.target, partition=1)
    world.caught_up()


def test_either_side_may_be_away(world: World) -> None:
    """It waits, says so once, and goes on."""
    world.create()
    world.produce(some_batch(b"a"))
    world.start()
    world.caught_up()
    world.restart_target(away_seconds=20)
    files = world.stop_source()
    world.pass_time(20)
    world.start_source(files)
    for number in range(5):
        world.produce(some_batch(b"%d" % number))
    world.caught_up()
    assert world.content(world.target) == world.content(world.source)
    assert len(world.lines) <= 6, world.lines


def test_memory_is_bounded_where_the_target_stands_still(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than the queue's chunks and the one that is sent."""

    def refused(partition: Partition, records: object, *more: object) -> None:
        if records is not None:
            raise BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS)

    world.create()
    for number in range(40):
        world.produce(some_batch(b"%d" % number * 50))
    with monkeypatch.context() as patched:
        patched.setattr(replica_manager, "append_mirrored", refused)
        mirror = world.start(chunk_bytes=100)
        world.pass_time(20)
        (partition,) = mirror.partitions.values()
        assert partition.queue is not None and len(partition.queue) == 2
        assert partition.info is not None and partition.info.fetched_offset == 3
        assert world.lines == ["the target answers NOT_ENOUGH_REPLICAS, retrying: t-0"]
    world.caught_up()
    assert world.content(world.target) == world.content(world.source)


def test_refusals_that_pass_are_not_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that moves takes a moment; one that refuses again later is said again."""

    def refuse_for(seconds: float) -> None:
        def refused(partition: Partition, *arguments: object) -> None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)

        with monkeypatch.context() as patched:
            patched.setattr(replica_manager, "append_mirrored", refused)
            world.produce(some_batch(b"a"))
            world.produce(some_batch(b"b"), partition=1)
            world.pass_time(seconds)
        world.caught_up()

    world.create(partitions=2)
    world.start()
    world.caught_up()
    refuse_for(3)
    assert not world.lines
    refuse_for(20)
    (line,) = world.lines
    assert line.startswith("the target answers KAFKA_STORAGE_ERROR, retrying: t-")
    refuse_for(20)
    assert len(world.lines) == 2
