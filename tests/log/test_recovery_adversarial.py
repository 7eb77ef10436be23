"""Loading a log whose files an adversary has changed (RL 3.6; RELIABILITY 6.2): torn tails, gaps,
overlaps, truncations that were lost, foreign files, epochs that go back, flipped header fields.

The oracle: loading never raises; after an unclean stop with nothing trusted, what is served has no
hole, no bad checksum, no leader epoch that goes back, and the epochs known are the batches'; what
lies before the first damage is there; a second load finds the same and changes no file; the log can
be used.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.log.batches import (
    DIRECTORY,
    NOW_MS,
    TOPIC_ID,
    TP,
    all_batches,
    batch,
    config,
)
from twisted_broker.log.gaps import resolve_gap
from twisted_broker.log.log import Log
from twisted_broker.log.recovery import load_log
from twisted_broker.log.segment import OpenFiles, file_name
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.records import set_offsets_and_epoch

_SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
_FIELDS = {"base offset": (0, 8), "length": (8, 4), "epoch": (12, 4), "magic": (16, 1)}
"""of a batch's header, outside its checksum: position, size"""
_FOREIGN = (
    "00000000000000000001.log.orig",
    "abc.log",
    "-1.log",
    "7.log",
    "00000000000000000003.snapshot",
    "00000000000000000900.index",
    "99999999999999999999.log",
    "00000000000000000002.log.deleted",
    "leader-epoch-checkpoint.tmp",
)

_history = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3), st.integers(0, 2)),
        st.tuples(st.just("foreign"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("roll"), st.just(0), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(1, 6), st.just(0)),
        st.tuples(st.just("truncation lost"), st.integers(1, 6), st.integers(1, 4)),
    ),
    min_size=1,
    max_size=10,
)
_damage = st.lists(
    st.one_of(
        st.tuples(st.just("cut"), st.integers(0, 9), st.floats(0, 1)),
        st.tuples(st.just("remove"), st.integers(0, 9), st.just(0.0)),
        st.tuples(st.just("zero"), st.integers(0, 9), st.floats(0, 1)),
        st.tuples(st.just("flip"), st.integers(0, 9), st.floats(0, 1)),
        st.tuples(st.just("tail"), st.integers(0, 9), st.floats(0, 1)),
        st.tuples(st.sampled_from(sorted(_FIELDS)), st.integers(0, 9), st.floats(0, 1)),
        st.tuples(st.just("foreign file"), st.integers(0, len(_FOREIGN) - 1), st.just(0.0)),
        st.tuples(st.just("epochs lost"), st.just(0), st.just(0.0)),
        st.tuples(st.just("epochs flip"), st.integers(0, 9999), st.just(0.0)),
        st.tuples(st.just("indexes lost"), st.integers(0, 9), st.just(0.0)),
    ),
    max_size=3,
)


class Made:
    """A log after a history, closed. `kept`: its batches as bytes."""

    def __init__(self, history: list[tuple[str, int, int]]) -> None:
        self.disk = SimDisk(1)
        self.log = load(self.disk)
        self.epoch, self._count = 0, 0
        lost: dict[str, bytes] = {}
        for what, number, more in history:
            if what == "append":
                self.epoch += more
                self.append(number, self.epoch)
            elif what == "foreign":
                # Of a broker that knew no epochs, and was replaced by one that does.
                self.append(number, -1 if not len(self.log.leader_epochs) else self.epoch)
            elif what == "roll":
                self.log.roll(NOW_MS)
            else:
                before = self.files()
                self.truncate(number)
                if what == "truncation lost":
                    self.epoch += 1
                    for _ in range(more):
                        self.append(1, self.epoch)
                    lost |= {path: data for path, data in before.items()}
        self.log.close()
        self.is_whole = not lost
        for path, data in lost.items():
            now = self.disk.content(path) if self.disk.exists(path) else b""
            if len(now) < len(data):
                # What was written since is there, behind it the old bytes are back.
                file = self.disk.open(path, create=True)
                file.write_at(len(now), (data[len(now) :],))
        self.disk.sync_all()

    def append(self, records: int, epoch: int) -> None:
        self._count += 1
        values = [b"%d-%d" % (self._count, row) + bytes(20) for row in range(records)]
        data = bytearray(batch(*values))
        set_offsets_and_epoch(data, self.log.log_end_offset, epoch)
        self.log.append_as_follower(bytes(data), max(epoch, self.epoch), NOW_MS)

    def truncate(self, records: int) -> None:
        end = self.log.end_below(max(0, self.log.log_end_offset - records))
        self.log.truncate_to(end, NOW_MS)

    def files(self) -> dict[str, bytes]:
        return {path: self.disk.content(path) for path in self.disk.nodes if path.endswith(".log")}

    def damaged(self, what: str, number: int, place: float) -> None:
        disk = self.disk
        if what == "foreign file":
            disk.open(f"{DIRECTORY}/{_FOREIGN[number]}", create=True).write_at(0, (b"foreign",))
            return
        checkpoint = f"{DIRECTORY}/leader-epoch-checkpoint"
        if what == "epochs lost":
            if disk.exists(checkpoint):
                disk.remove(checkpoint)
            return
        if what == "epochs flip":
            if disk.exists(checkpoint) and disk.size(checkpoint):
                at = number * 997 % (8 * disk.size(checkpoint))
                disk.flip_bit(checkpoint, at // 8, at % 8)
            return
        paths = sorted(self.files())
        path = paths[number % len(paths)]
        if what == "indexes lost":
            for suffix in (".index", ".timeindex"):
                if disk.exists(path[:-4] + suffix):
                    disk.remove(path[:-4] + suffix)
            return
        size = disk.size(path)
        at = int(place * max(0, size - 1))
        self.is_whole = False
        if what == "remove":
            if len(paths) > 1:
                disk.remove(path)
        elif what == "tail":
            disk.damage(path, size, bytes(int(place * 100) + 1))
        elif not size:
            return
        elif what == "cut":
            disk.shorten(path, at)
        elif what == "zero":
            disk.damage(path, at, bytes(min(64, size - at)))
        elif what == "flip":
            disk.flip_bit(path, at, int(place * 1000) % 8)
        else:
            position, length = _FIELDS[what]
            starts = batch_starts(disk.content(path))
            start = starts[int(place * (len(starts) - 1))] if starts else 0
            if start + position + length <= size:
                bit = int(place * 997) % (8 * length)
                disk.flip_bit(path, start + position + bit // 8, bit % 8)


def batch_starts(content: bytes) -> list[int]:
    found, at = [], 0
    while at + 12 <= len(content):
        found.append(at)
        at += 12 + max(0, int.from_bytes(content[at + 8 : at + 12], "big", signed=True))
    return found


def load(disk: SimDisk, **more: Any) -> Log:
    small = config(segment_bytes=260, index_interval_bytes=60)
    disk.make_directories("/data")
    return load_log(OpenFiles(disk, 16), DIRECTORY, TP, TOPIC_ID, small, wall_ms=NOW_MS, **more)


def epochs_of(log: Log) -> list[tuple[int, int]]:
    """(epoch, offset) where each begins, as the batches have it."""
    found: list[tuple[int, int]] = []
    for one in all_batches(log):
        epoch = one.partition_leader_epoch
        if epoch >= 0 and (not found or epoch > found[-1][0]):
            found.append((epoch, max(one.base_offset, log.log_start_offset)))
    return found


def contents(disk: SimDisk) -> dict[str, bytes]:
    """But for producer snapshots: one that a truncation wrote is not trusted by the next start."""
    return {path: disk.content(path) for path in disk.nodes if not path.endswith(".snapshot")}


def check_use(log: Log) -> None:
    """It takes, reads, and drops a record."""
    end, epoch = log.log_end_offset, max(0, log.leader_epochs.latest_epoch)
    log.append_as_leader(batch(b"new"), epoch, NOW_MS)
    assert all_batches(log, end)[-1].base_offset == end
    log.truncate_to(end, NOW_MS)
    assert log.log_end_offset == end


@_SETTINGS
@given(_history, _damage, st.booleans())
def test_nothing_trusted(
    history: list[tuple[str, int, int]], damage: list[tuple[str, int, float]], replicated: bool
) -> None:
    """RL 3.6: an unclean stop, and no recovery point."""
    made = Made(history)
    for each in damage:
        made.damaged(*each)
    log = load(made.disk)
    resolve_gap(log, replicated, NOW_MS)
    batches = all_batches(log)
    expected = log.log_start_offset
    newest = -1
    for one in batches:
        assert one.base_offset <= expected <= one.last_offset or one.base_offset == expected
        expected = one.next_offset
        assert one.is_valid_crc() and one.partition_leader_epoch >= -1
        if one.partition_leader_epoch >= 0:
            assert one.partition_leader_epoch >= newest
            newest = one.partition_leader_epoch
    assert expected == log.log_end_offset
    assert log.leader_epochs.entries() == epochs_of(log)
    assert log.durability.recovery_point <= log.log_end_offset
    log.segments.close()
    before = contents(made.disk)
    again = load(made.disk)
    assert again.gap is None
    assert resolve_gap(again, replicated, NOW_MS) is None
    assert [one.to_bytes() for one in all_batches(again)] == [one.to_bytes() for one in batches]
    assert again.leader_epochs.entries() == epochs_of(again)
    assert contents(made.disk) == before
    check_use(again)


@_SETTINGS
@given(_history, st.booleans())
def test_nothing_damaged(history: list[tuple[str, int, int]], clean: bool) -> None:
    """RL 3.6: no good batch goes, whichever leader epochs foreign files have (-1: none)."""
    made = Made([each for each in history if each[0] != "truncation lost"])
    written = [one.to_bytes() for one in all_batches(load(made.disk, clean=True))]
    again = load(made.disk, clean=clean, recovery_point=made.log.log_end_offset if clean else 0)
    assert again.gap is None and again.log_end_offset == made.log.log_end_offset
    assert [one.to_bytes() for one in all_batches(again)] == written
    assert again.leader_epochs.entries() == epochs_of(again)
    check_use(again)


@_SETTINGS
@given(_history, _damage, st.booleans(), st.booleans(), st.integers(0, 30), st.integers(0, 12))
def test_anything_trusted(
    history: list[tuple[str, int, int]],
    damage: list[tuple[str, int, float]],
    replicated: bool,
    clean: bool,
    recovery_point: int,
    log_start: int,
) -> None:
    """RL 3.6: whatever is trusted, loading does not raise, and twice is as once. What is refused
    is one line, and no file is changed.
    """
    made = Made(history)
    for each in damage:
        made.damaged(*each)
    more = {"clean": clean, "recovery_point": recovery_point, "log_start_offset": log_start}
    log = load(made.disk, **more)
    assert log.log_start_offset <= log.log_end_offset
    assert log.durability.recovery_point <= log.log_end_offset
    starts = log.leader_epochs.start_offsets
    assert not starts or (starts[0] >= log.log_start_offset and starts[-1] <= log.log_end_offset)
    before = contents(made.disk)
    try:
        resolve_gap(log, replicated, NOW_MS)
    except BrokerError as refusal:
        assert refusal.message is not None and "\n" not in refusal.message
        assert contents(made.disk) == before and log.gap is not None
        return
    log.segments.close()
    before = contents(made.disk)
    again = load(made.disk, **more)
    assert contents(made.disk) == before
    assert (again.log_start_offset, again.log_end_offset) == (
        log.log_start_offset,
        log.log_end_offset,
    )
    assert again.leader_epochs.entries() == log.leader_epochs.entries()


@_SETTINGS
@given(_history, st.integers(0, 9), st.floats(0, 1))
def test_what_lies_before_the_damage_stays(
    history: list[tuple[str, int, int]], segment: int, place: float
) -> None:
    """RL 3.6: a torn or zeroed place takes what is behind it, never what is before."""
    made = Made([each for each in history if each[0] != "truncation lost"])
    written = [one.to_bytes() for one in all_batches(load(made.disk, clean=True))]
    paths = sorted(made.files())
    row = segment % len(paths)
    size = made.disk.size(paths[row])
    at = int(place * size)
    made.disk.damage(paths[row], at, bytes(64))
    bases = [int(path[-24:-4]) for path in paths]
    whole = sum(made.disk.size(path) for path in paths[:row]) + at
    log = load(made.disk)
    resolve_gap(log, False, NOW_MS)
    found = [one.to_bytes() for one in all_batches(log)]
    assert found == written[: len(found)] and bases[0] == 0
    kept = 0
    for one in written:
        kept += len(one)
        if kept <= whole:
            assert one in found
    assert file_name(0, ".log") in made.disk.listdir(DIRECTORY)
