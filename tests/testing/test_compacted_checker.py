"""What a cleaner must not take is noticed when it is gone."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest

from tests.log.batches import NOW_MS, TOPIC_ID, config
from tests.testing.test_replica_contents import mirror
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.log import Log
from twisted_broker.log.recovery import load_log
from twisted_broker.log.segment import OpenFiles
from twisted_broker.simulation.checks.committed_state import CommittedState, Violation
from twisted_broker.simulation.checks.compacted import CompactedChecker
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.wire.control_batch import build_end_marker
from twisted_broker.wire.records import BatchBuilder

NAME, KEY = TopicPartition("k", 0), (b"i" * 16, 0)
RETENTION_MS = 10_000


def data(key: bytes, value: bytes | None, producer_id: int = -1) -> bytes:
    """One record; with a producer it is transactional."""
    producer: dict[str, Any] = {}
    if producer_id >= 0:
        producer = {
            "producer_id": producer_id,
            "producer_epoch": 0,
            "base_sequence": 0,
            "is_transactional": True,
        }
    builder = BatchBuilder(**producer)
    builder.append(NOW_MS, key, value)
    return bytes(builder.build())


def marker(producer_id: int, is_commit: bool) -> bytes:
    return bytes(build_end_marker(producer_id, 0, is_commit, 0, NOW_MS))


def idempotent(sequence: int) -> bytes:
    builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=sequence)
    builder.append(NOW_MS, b"a", b"%d" % sequence)
    return bytes(builder.build())


class World:
    """A partition of which so much was exposed, and replicas that hold these batches of it."""

    def __init__(self, *batches: bytes) -> None:
        self.batches = batches
        self.truth = CommittedState(lambda what: None)
        self.truth.keys[NAME], self.truth.names[KEY] = KEY, NAME
        self.checks = CompactedChecker(self.truth)
        log, disk = self.replica(range(len(batches)))
        self.checks.exposed(KEY, log, disk, len(batches), 1.0)

    def replica(
        self, offsets: Any, *, shift: int = 0, known_upto: int | None = None
    ) -> tuple[Log, SimDisk]:
        """A log of these offsets only, as it is after cleaning; `known_upto`: its high watermark,
        else its end.
        """
        disk = SimDisk()
        disk.make_directories("/d")
        settings = config(cleanup_policy=frozenset({"compact"}), delete_retention_ms=RETENTION_MS)
        log = load_log(OpenFiles(disk), "/d/k-0", NAME, TOPIC_ID, settings, random=Random(1))
        for offset in offsets:
            batch = bytearray(self.batches[offset])
            batch[:8] = (offset + shift).to_bytes(8, "big")
            batch[12:16] = bytes(4)
            log.append_as_follower(bytes(batch), 0, NOW_MS)
        log.set_high_watermark(log.log_end_offset if known_upto is None else known_upto)
        return log, disk

    def check(self, *offsets: int, upto: int, now: float = 1.0, shift: int = 0) -> str:
        """What is wrong with a replica that was cleaned so far."""
        self.truth.line(KEY).cleaned_upto = upto
        try:
            self.checks.check(KEY, *self.replica(offsets, shift=shift), now, "n1")
        except Violation as violation:
            return str(violation)
        return ""


def test_the_last_value_of_each_key_stays() -> None:
    """RL 9.2: compacted: below the cleaner's offset a record goes when a newer one of its key is
    there, and for no other reason; above it all of them stay.
    """
    world = World(data(b"a", b"1"), data(b"b", b"1"), data(b"a", b"2"), data(b"c", b"1"))
    assert not world.check(1, 2, 3, upto=3)
    assert not world.check(0, 1, 2, 3, upto=3)
    assert "b'1') at 1 is gone" in world.check(2, 3, upto=3)
    assert "b'2') at 2 is gone" in world.check(0, 1, 3, upto=3)
    assert "b'1') at 0 is gone" in world.check(1, 2, 3, upto=2)


def test_what_is_not_known_to_be_committed_does_not_count() -> None:
    """A deposed leader's last records: its leader has it truncate them."""
    world = World(data(b"a", b"1"), data(b"b", b"1"), data(b"c", b"1"))
    world.truth.line(KEY).cleaned_upto = 3
    log, disk = world.replica((0, 2), known_upto=1)
    world.checks.check(KEY, log, disk, 1.0, "n1")
    log.set_high_watermark(3)
    with pytest.raises(Violation, match="at 1 is gone"):
        world.checks.check(KEY, log, disk, 1.0, "n1")


def test_offsets_and_contents_stay_what_they_were() -> None:
    """RL 9.2: replicas that were cleaned at different times agree on what both keep."""
    world = World(data(b"a", b"1"), data(b"b", b"1"), data(b"a", b"2"))
    assert "1 holds (b'a', b'1'), committed was (b'b', b'1')" in world.check(0, shift=1, upto=3)


def test_damage_is_a_violation_wherever_it_is_read() -> None:
    """A batch whose checksum is wrong, below the committed end or behind it."""
    world = World(data(b"a", b"1"), data(b"b", b"1"))
    held = World(data(b"a", b"1"), data(b"b", b"1"), data(b"c", b"1"))
    log, disk = held.replica(range(3))
    disk.nodes[log.segments.active.log.path].data[-1] ^= 1
    with pytest.raises(Violation, match=r"k-0/0+\.log: a compacted log is damaged: .*CRC"):
        world.checks.copied("n1", KEY, log, 1.0)
    world.truth.line(KEY).cleaned_upto = 2
    with pytest.raises(Violation, match="a compacted log is damaged"):
        world.checks.check(KEY, log, disk, 1.0, "n1")


@pytest.mark.parametrize(("seconds", "is_broken"), [(5.0, True), (6.0, False)])
def test_a_tombstone_stays_for_its_time(seconds: float, is_broken: bool) -> None:
    """As long as two clocks may differ is not counted."""
    world = World(data(b"a", b"1"), data(b"a", None), data(b"b", b"1"))
    assert not world.check(1, 2, upto=3, now=1.0 + seconds)
    assert ("None) at 1 is gone" in world.check(2, upto=3, now=1.0 + seconds)) is is_broken


def test_a_transaction_counts_as_it_was_decided() -> None:
    """An aborted record replaces nothing, and may go; a committed one is as any other."""
    for is_commit in (True, False):
        end = bytes(build_end_marker(7, 1, is_commit, 0, NOW_MS))
        world = World(data(b"a", b"1"), data(b"a", b"2", 7), end, data(b"b", b"1"))
        assert bool(world.check(1, 2, 3, upto=4)) is not is_commit
        assert bool(world.check(0, 2, 3, upto=4)) is is_commit


def test_the_last_batch_of_each_producer_stays() -> None:
    """RL 9.2: without records, too; of an epoch without data its marker."""
    batches = [idempotent(0), idempotent(1), data(b"a", b"1"), data(b"b", b"1", 8), marker(8, True)]
    world = World(*batches, bytes(build_end_marker(8, 1, False, 0, NOW_MS)), data(b"c", b"1"))
    assert not world.check(1, 2, 3, 5, 6, upto=7)
    assert "the last batch of producer 7, to 1, is gone" in world.check(2, 3, 5, 6, upto=7)
    # Who copied the log without it never knew; who had it does.
    assert not world.check(1, 2, 3, 6, upto=7)
    log, disk = world.replica((1, 2, 3, 6))
    known = log.producers.producers[8]
    known.producer_epoch = 1
    known.batches.clear()
    with pytest.raises(Violation, match="the marker of producer 8, epoch 1, is gone"):
        world.checks.check(KEY, log, disk, 1.0, "n1")
    # Above what was cleaned nothing may be missing anyway.
    assert not world.check(1, 2, 3, 4, upto=5)


def test_a_newer_batch_that_is_not_committed_replaces_none() -> None:
    """It may be truncated yet (seed 458766)."""
    world = World(idempotent(0), data(b"a", b"1"))
    world.batches = (*world.batches, idempotent(1))
    world.truth.line(KEY).cleaned_upto = 2
    for offsets, is_broken in (((0, 1, 2), False), ((1, 2), True)):
        log, disk = world.replica(offsets, known_upto=2)
        assert log.producers.producers[7].last_offset == 2
        try:
            world.checks.check(KEY, log, disk, 1.0, "n1")
        except Violation as violation:
            assert is_broken and "the last batch of producer 7, to 0, is gone" in str(violation)
        else:
            assert not is_broken


def test_nothing_is_cleaned_above_what_is_decided() -> None:
    world = World(data(b"a", b"1"), data(b"a", b"2", 7), data(b"a", b"3"))
    log, _ = world.replica(range(3))
    log.roll(NOW_MS)
    world.checks.replacing(KEY, log, [0], 1.0)
    assert "cleaned up to 3, but a transaction at 1 is not decided" in world.checks.broken
    assert world.truth.line(KEY).cleaned_upto == 3


def test_a_marker_above_the_high_watermark_decides_nothing_for_a_cleaner() -> None:
    """It may be truncated yet (seed 974158). Readers of committed records see the transaction after
    a restart, as in Kafka (seed 410510).
    """
    world = World(data(b"a", b"1"), data(b"a", b"2", 7), data(b"a", b"3"))
    world.batches = (*world.batches, marker(7, is_commit=True))
    log, _ = world.replica(range(3))
    log.roll(NOW_MS)
    found = bytearray(world.batches[3])
    found[:8], found[12:16] = (3).to_bytes(8, "big"), bytes(4)
    log.append_as_follower(bytes(found), 0, NOW_MS)
    world.checks.copied("n1", KEY, log, 0.0)
    for offset, value in ((1, b"2"), (2, b"3")):
        world.checks.delivered("v", NAME, offset, b"a", value)
    assert not world.checks.broken
    world.checks.replacing(KEY, log, [0], 1.0)
    assert "a transaction at 1 is not decided" in world.checks.broken


def test_a_reader_from_the_start_sees_the_last_of_each_key() -> None:
    """Or nothing where that is a tombstone; never an older value behind a newer one."""
    world = World(data(b"a", b"1"), data(b"b", b"1"), data(b"a", b"2"), data(b"b", None))
    ended = partial(world.checks.pass_ended, now=1.0)
    ended("v", NAME, 4, 0.5, {b"a": 2, b"b": 3})
    ended("v", NAME, 4, 0.5, {b"a": 2})
    ended("v", NAME, 3, 0.5, {b"a": 2, b"b": 1})
    world.checks.delivered("v", NAME, 2, b"a", b"2")
    world.checks.acked(NAME, 4, [])
    assert not world.checks.broken
    for seen in ({b"a": 0}, {b"b": 3}, {b"a": 2, b"b": 1}):
        world.checks.broken = ""
        ended("v", NAME, 4, 0.5, seen)
        assert "its last below 4" in world.checks.broken
    world.checks.broken = ""
    world.checks.delivered("v", NAME, 2, b"a", b"1")
    assert "read b'1' of b'a' at 2" in world.checks.broken
    world.checks.broken = ""
    world.checks.acked(NAME, 2, [b"a:lost"])
    assert "was acknowledged at 2" in world.checks.broken


def test_a_reader_may_come_after_a_cleaner() -> None:
    """The last of a key below the end of its pass was replaced, and cleaned, while it read: the
    newer one lies behind that end (seeds 340014, 340015).
    """
    world = World(data(b"a", b"1"), data(b"b", b"1"), data(b"a", b"2"), data(b"c", b"1"))
    world.truth.line(KEY).cleaned_upto = 2
    world.checks.pass_ended("v", NAME, 2, 0.5, {b"b": 1}, 1.0)
    assert "its last below 2 is at 0" in world.checks.broken
    world.checks.broken, world.truth.line(KEY).cleaned_upto = "", 3
    world.checks.pass_ended("v", NAME, 2, 0.5, {b"b": 1}, 1.0)
    assert not world.checks.broken


def test_a_round_replaces_group_after_group() -> None:
    """Its first segments go by a newer record in one that it has not replaced yet, and perhaps
    never does (seed 430638).
    """
    batches = data(b"a", b"1"), data(b"b", b"1"), data(b"c", b"1"), data(b"a", b"2")
    for known_upto, may_go in ((3, False), (4, True)):
        world = World(*batches)
        log, _ = world.replica(range(2))
        log.roll(NOW_MS)
        world.checks.taking(KEY, known_upto)
        world.checks.replacing(KEY, log, [0], 1.0)
        assert world.truth.line(KEY).cleaned_upto == 2
        assert ("b'1') at 0 is gone" in world.check(1, 2, 3, upto=2)) is not may_go
        world.checks.pass_ended("v", NAME, 2, 0.5, {b"b": 1}, 1.0)
        assert ("its last below 2 is at 0" in world.checks.broken) is not may_go


def test_a_replica_that_came_after_a_tombstones_time_may_keep_what_it_deleted() -> None:
    """Kafka's too: the leader that it copied had dropped the tombstone by then (seed 404430)."""
    patience = RETENTION_MS / 1000 + 1
    for first, then, late in (
        ([0], [0, 2], True),
        ([0, 1], [0, 2], False),
        ([0], [0, 1, 2], False),
    ):
        world = World(data(b"a", b"1"), data(b"a", None), data(b"b", b"1"))
        for offsets, now in ((first, 2.0), (then, patience + 1.0)):
            log, _ = world.replica(offsets)
            world.checks.copied("n2", KEY, log, now)
        world.checks.pass_ended("v", NAME, 3, 0.5, {b"a": 0, b"b": 2}, 1.0)
        assert bool(world.checks.broken) is not late


def test_a_replica_that_cleans_late_takes_a_tombstone_with_what_it_deleted() -> None:
    """Kafka's too: the tombstone was copied with the time that the leader's cleaner had given it. A
    reader between the two sees what was deleted, once (seed 1100559).
    """
    over = RETENTION_MS / 1000 + 10
    for taken_at, ended_at, is_broken in (
        (over, over + 0.3, False),
        (over, over + 0.7, True),  # this reader began behind that
        (2.0, 2.3, True),  # its time is not over
    ):
        world = World(data(b"a", b"1"), data(b"a", None), data(b"b", b"1"))
        log, _ = world.replica(range(3))
        log.roll(NOW_MS)
        world.checks.replacing(KEY, log, [0], taken_at)
        world.checks.pass_ended("v", NAME, 3, 0.5, {b"a": 0, b"b": 2}, ended_at)
        assert bool(world.checks.broken) is is_broken
    # A tombstone that was gone before: what it deleted has come back.
    world = World(data(b"a", b"1"), data(b"a", None), data(b"b", b"1"))
    log, _ = world.replica((0, 2))
    log.roll(NOW_MS)
    world.checks.replacing(KEY, log, [0], over)
    world.checks.pass_ended("v", NAME, 3, 0.5, {b"a": 0, b"b": 2}, over + 0.3)
    assert world.checks.broken


def test_where_something_was_lost_nothing_is_owed() -> None:
    world = World(data(b"a", b"1"), data(b"b", b"1"))
    world.truth.line(KEY).has_lost = True
    assert not world.check(1, upto=2)


def test_replicas_are_compared_from_the_cleaned_offset_on() -> None:
    """RL 9.2: the same bytes above it."""
    world = World(data(b"a", b"1"), data(b"b", b"1"), data(b"a", b"2"), data(b"c", b"1"))
    one, other = mirror(*world.replica(range(4))), mirror(*world.replica((0, 2, 3)))
    line = world.truth.line(KEY)
    line.extend(one, 4)
    assert not line.agrees(other, 4)
    line.cleaned_upto = 2
    assert line.agrees(other, 4) and one.agrees(other, 4, line.floor)
