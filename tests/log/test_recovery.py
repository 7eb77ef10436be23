"""Loading a log: leftovers of interrupted swaps, strays, missing files, identities (RL 3.6;
RELIABILITY 3.2 LogLoaderTest).
"""

from __future__ import annotations

import posixpath

import pytest

from tests.log.batches import (
    DIRECTORY,
    NOW_MS,
    TOPIC_ID,
    TP,
    all_batches,
    batch,
    config,
    open_log,
    slice_bytes,
    values,
)
from twisted_broker.log.crash_cleanup import base_offset_of, clean_up_after_crash
from twisted_broker.log.recovery import load_log
from twisted_broker.log.segment import file_name
from twisted_broker.log_config import LogConfig
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Crash
from twisted_broker.simulation.file import SimInode
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import set_offsets_and_epoch

SMALL = config(segment_bytes=300, index_interval_bytes=100)


def disk_with_segments(count: int = 8) -> SimDisk:
    """A log of one batch of two records per segment, closed."""
    disk = SimDisk(1)
    disk.make_directories("/data")
    log = open_log(disk, settings=SMALL)
    for number in range(count):
        log.append_as_leader(
            batch(b"a%d" % number + bytes(80), b"b%d" % number + bytes(80)), 0, NOW_MS
        )
    assert len(log.segments) == count
    log.close()
    return disk


def swapped(disk: SimDisk) -> SimDisk:
    """As if the cleaner had replaced the segments 2, 4, 6 by one that holds the batches of 2 and
    6, all `.swap` files in place.
    """
    log = open_log(disk, settings=SMALL)
    kept = [one.to_bytes() for one in all_batches(log) if one.base_offset in (2, 6)]
    log.segments.close()
    for suffix, content in ((".log", b"".join(kept)), (".index", b""), (".timeindex", b"")):
        disk.open(f"{DIRECTORY}/{file_name(2, suffix)}.swap", create=True).write_at(0, (content,))
    disk.sync_all()
    return disk


EXPECTED = [0, 2, 6, 8, 10, 12, 14]


def offsets(disk: SimDisk, clean: bool = False) -> list[int]:
    log = open_log(
        disk, settings=config(segment_bytes=300, cleanup_policy=frozenset({"compact"})), clean=clean
    )
    assert not [
        name
        for name in disk.listdir(DIRECTORY)
        if name.endswith((".swap", ".cleaned", ".deleted", ".tmp"))
    ]
    return [one.base_offset for one in all_batches(log)]


@pytest.mark.parametrize("left", ["swap", "cleaned"])
def test_what_a_cleaner_left_out_below_its_leftovers_is_no_torn_tail(left: str) -> None:
    """Apache Kafka's checkpoints may be older than what it replaced: here they say nothing."""
    disk = swapped(disk_with_segments())
    log = open_log(disk, settings=SMALL)  # completes the swap
    (only,) = [one.to_bytes() for one in all_batches(log) if one.base_offset == 2]
    log.segments.close()
    # Of the segments 2, 4 and 6 the batch at 2 is left: offsets 4 to 7 are missing.
    if left == "swap":
        disk.open(f"{DIRECTORY}/{file_name(2, '.log')}.swap", create=True).write_at(0, (only,))
    else:
        segment = disk.open(f"{DIRECTORY}/{file_name(2, '.log')}")
        segment.truncate(len(only))
        disk.open(f"{DIRECTORY}/{file_name(8, '.log')}.cleaned", create=True).write_at(0, (only,))
    disk.sync_all()
    assert offsets(disk) == [0, 2, 8, 10, 12, 14]


@pytest.mark.parametrize("clean", [False, True])
def test_a_complete_swap_wins(clean: bool) -> None:
    """RL 3.6: a `.swap` segment replaces the ones it covers."""
    assert offsets(swapped(disk_with_segments()), clean) == EXPECTED


def test_a_swap_interrupted_anywhere_ends_the_same() -> None:
    """RL 3.6, 3.7: whatever prefix of the replacement was done before a crash, and wherever the
    repair itself crashes, one state comes out.
    """
    for at in range(200):
        disk = swapped(disk_with_segments())
        disk.operations, disk.crash_at = 0, at
        try:
            clean_up_after_crash(disk, DIRECTORY)
        except Crash:
            assert offsets(disk.after_kill()) == EXPECTED
        else:
            assert at > 5
            break


def test_an_unfinished_cleaning_never_happened() -> None:
    """RL 3.6: `.cleaned` files go, and so do `.swap` files at or above the smallest of them."""
    disk = swapped(disk_with_segments())
    disk.open(f"{DIRECTORY}/{file_name(2, '.log')}.cleaned", create=True).write_at(0, (b"half",))
    assert offsets(disk) == list(range(0, 16, 2))
    disk = swapped(disk_with_segments())
    disk.open(f"{DIRECTORY}/{file_name(8, '.log')}.cleaned", create=True)
    assert offsets(disk) == EXPECTED


@pytest.mark.parametrize(
    "foreign",
    [
        "notes.cleaned",
        "copy.log.swap",
        file_name(2, ".copy.log.cleaned"),
        file_name(8, ".copy.log.swap"),
        file_name(8, ".copy.log"),
    ],
)
def test_foreign_files_decide_about_no_segment(foreign: str) -> None:
    """RL 3.6: a name that no broker gives says nothing of a cleaner. Kafka's loader fails."""
    disk = swapped(disk_with_segments())
    for base in (2, 4, 6):  # the crash came after this
        disk.remove(f"{DIRECTORY}/{file_name(base, '.log')}")
    records = disk.content(f"{DIRECTORY}/{file_name(14, '.log')}")
    disk.open(f"{DIRECTORY}/{foreign}", create=True).write_at(0, (records,))
    disk.sync_all()
    clean_up_after_crash(disk, DIRECTORY)
    assert [one.base_offset for one in all_batches(open_log(disk, settings=SMALL))] == EXPECTED
    assert disk.content(f"{DIRECTORY}/{foreign}") == records


def test_deleted_files_and_orphans_go() -> None:
    """RL 3.6: `.deleted` files, aside files and indexes without a log are removed; foreign names
    are left.
    """
    disk = disk_with_segments()
    for name in (
        file_name(99, ".index"),
        file_name(0, ".log") + ".deleted",
        file_name(14, ".snapshot") + ".deleted",
        "leader-epoch-checkpoint.tmp",
        "partition.metadata.tmp",
        "notes.txt",
        "7.log",
    ):
        disk.open(f"{DIRECTORY}/{name}", create=True)
    assert offsets(disk) == list(range(0, 16, 2))
    assert {"notes.txt", "7.log"} == {
        name for name in disk.listdir(DIRECTORY) if base_offset_of(name) < 0
    } - {
        "leader-epoch-checkpoint",
        "partition.metadata",
    }


@pytest.mark.parametrize(
    "foreign",
    [
        "notes.deleted",
        "notes.cleaned",
        "notes.tmp",
        "notes.index",
        "7.log.deleted",
        "partition.metadata.deleted",
        file_name(2, ".log.tmp"),
        file_name(99, ".notes.index"),
        file_name(2, ".notes.deleted"),
        file_name(2, ".notes.cleaned"),
    ],
)
def test_what_no_broker_writes_is_not_removed(foreign: str) -> None:
    """RL 3.6: Kafka's loader removes whatever ends with `.deleted`."""
    disk = disk_with_segments()
    disk.open(f"{DIRECTORY}/{foreign}", create=True).write_at(0, (b"theirs",))
    log = open_log(disk, settings=SMALL)
    assert [one.base_offset for one in all_batches(log)] == list(range(0, 16, 2))
    assert disk.content(f"{DIRECTORY}/{foreign}") == b"theirs"


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_missing_index_is_made_anew_even_after_a_clean_stop(suffix: str) -> None:
    """RL 3.6: missing indexes are rebuilt, the bytes equal to those that were lost."""
    disk = disk_with_segments()
    before = {
        name: disk.content(f"{DIRECTORY}/{name}")
        for name in disk.listdir(DIRECTORY)
        if name.endswith(suffix)
    }
    for name in before:
        disk.remove(f"{DIRECTORY}/{name}")
    assert offsets(disk, clean=True) == list(range(0, 16, 2))
    assert {name: disk.content(f"{DIRECTORY}/{name}") for name in before} == before


def test_a_bad_segment_in_the_middle_ends_the_log() -> None:
    """RL 3.6: above the recovery point damage cuts the segment and deletes all later ones; below
    it nothing is touched.
    """
    for recovery_point, end in ((0, 6), (5, 6), (8, 16), (16, 16)):
        disk = disk_with_segments()
        path = f"{DIRECTORY}/{file_name(6, '.log')}"
        disk.flip_bit(path, 70)
        log = open_log(disk, settings=SMALL, recovery_point=recovery_point)
        assert log.log_end_offset == end, recovery_point
        assert len(
            [name for name in disk.listdir(DIRECTORY) if name.endswith(".log")]
        ) == end // 2 + (end == 6)


def test_only_segments_from_the_recovery_point_are_scanned() -> None:
    """RL 3.6: after an unclean stop damage below the recovery point's segment is not even looked
    at: only ends of segments are read there.
    """
    disk = disk_with_segments()
    for base in range(0, 10, 2):
        disk.flip_bit(f"{DIRECTORY}/{file_name(base, '.log')}", 90)
    assert open_log(disk, settings=SMALL, recovery_point=13).log_end_offset == 16
    assert open_log(disk, settings=SMALL, recovery_point=9).log_end_offset == 8


@pytest.mark.parametrize(
    ("clean", "recovery_point", "scanned"),
    [(True, 0, 0), (True, 10**6, 0), (False, 60, 4), (False, 120, 2), (False, 0, 6)],
)
def test_what_a_start_reads_of_records(
    clean: bool, recovery_point: int, scanned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 3.6: after a clean stop no segment is read whole; after an unclean one those from the
    recovery point on are. Of the others a few kilobytes, of the active one the headers, too.
    """
    large = config(segment_bytes=300_000)
    disk = SimDisk(1)
    disk.make_directories("/data")
    log = open_log(disk, settings=large)
    for _ in range(168):
        log.append_as_leader(batch(10_000), 0, NOW_MS)
    bases = log.segments.bases()
    assert bases == [0, 29, 58, 87, 116, 145]
    log.close()
    read_bytes = dict.fromkeys(bases, 0)
    read = SimDisk.read

    def counted(self: SimDisk, path: str, node: SimInode, position: int, length: int) -> None:
        if path.endswith(".log"):
            read_bytes[base_offset_of(posixpath.basename(path))] += length
        read(self, path, node, position, length)

    monkeypatch.setattr(SimDisk, "read", counted)
    found = open_log(disk, settings=large, clean=clean, recovery_point=recovery_point)
    sizes = {segment.base_offset: segment.size for segment in found.segments}
    assert [base for base in bases if read_bytes[base] >= sizes[base]] == bases[6 - scanned :]
    trusted = bases[: 6 - scanned][:5]
    assert all(0 < read_bytes[base] < 16_384 for base in trusted), read_bytes


def test_a_recovery_point_above_the_log_end_proves_nothing() -> None:
    """RL 6.6: its checkpoint is older than a truncation, so what is below it may never have been
    synced: every segment is checked.
    """
    disk = disk_with_segments()
    log = open_log(disk, settings=SMALL, recovery_point=16)
    log.truncate_to(6, NOW_MS)
    for number in range(3):
        log.append_as_leader(batch(b"n%d" % number + bytes(80), bytes(80)), 3, NOW_MS)
    assert log.segments.bases()[-3:] == [6, 8, 10] and log.log_end_offset == 12
    log.segments.close()
    path = f"{DIRECTORY}/{file_name(8, '.log')}"
    disk.damage(path, disk.size(path) - 50, b"\xff" * 50)
    found = open_log(disk.after_kill(), settings=SMALL, recovery_point=16)
    assert found.log_end_offset == 8 and len(values(found)) == 8
    assert found.durability.recovery_point <= 8
    # Below a recovery point that is in the log, files are trusted.
    disk = disk_with_segments()
    disk.damage(path, disk.size(path) - 50, b"\xff" * 50)
    assert open_log(disk, settings=SMALL, recovery_point=16).log_end_offset == 16


def test_damage_in_trusted_files_does_not_stop_the_start() -> None:
    """RL 3.6: a clean directory with rotten headers, without snapshots and epochs, still opens;
    only readers of the damage see it.
    """
    disk = disk_with_segments()
    for name in disk.listdir(DIRECTORY):
        if name.endswith(".snapshot"):
            disk.remove(f"{DIRECTORY}/{name}")
    disk.remove(f"{DIRECTORY}/leader-epoch-checkpoint")
    for base in (0, 4, 14):
        disk.damage(f"{DIRECTORY}/{file_name(base, '.log')}", 8, b"\xff" * 20)
    log = open_log(disk, settings=SMALL, clean=True, recovery_point=16)
    assert log.log_end_offset == 14 and slice_bytes(log.read(2, 100))
    with pytest.raises(BrokerError) as caught:
        log.read(4, 100)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_a_log_end_below_the_log_start_starts_over() -> None:
    """RL 3.6: when the checkpointed log start lies above what is left, one empty segment begins
    there.
    """
    log = open_log(disk_with_segments(), settings=SMALL, log_start_offset=50)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark, len(log.segments)) == (
        50,
        50,
        50,
        1,
    )
    assert log.dropped_at_load == (
        "/data/events-0: the log of events-0 ended at offset 16, below its log start 50 "
        "(log-start-offset-checkpoint): all its records were deleted, and it begins empty at 50; "
        "segment files are missing, or the checkpoint is wrong; where another replica leads, "
        "records are fetched again, else restore its files from a backup"
    )


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kept", [0, 3])
def test_a_line_says_that_the_last_segments_are_missing(clean: bool, kept: int) -> None:
    """The log goes on below its recovery point. After an unclean stop a truncation may have had
    the same effect, but for that it leaves a file.
    """
    disk = disk_with_segments()
    bases = sorted(int(name[:20]) for name in disk.listdir(DIRECTORY) if name.endswith(".log"))
    for base in bases[kept:]:
        disk.remove(f"{DIRECTORY}/{file_name(base, '.log')}")
    log = open_log(disk, settings=SMALL, clean=clean, recovery_point=16)
    end = bases[kept] if kept else 0
    assert log.log_end_offset == end < 16
    if clean or not kept:
        assert log.dropped_at_load is not None and log.dropped_at_load.startswith(
            f"/data/events-0: the log of events-0 ends at offset {end}, but was on the disk up to "
            "16 (recovery-point-offset-checkpoint): segment files are missing, and it goes on from "
        )
    else:
        assert log.dropped_at_load is None
    disk.sync_all()
    assert open_log(disk, settings=SMALL, clean=True, recovery_point=end).dropped_at_load is None


def test_a_line_says_what_recovery_dropped_and_that_nothing_is_left() -> None:
    """Both: the one is the cause, the other the effect."""
    disk = disk_with_segments()
    disk.damage(f"{DIRECTORY}/{file_name(4, '.log')}", 8, b"\xff" * 20)
    log = open_log(disk, settings=SMALL, log_start_offset=12)
    assert log.dropped_at_load is not None and log.log_start_offset == log.log_end_offset == 12
    assert "recovery dropped" in log.dropped_at_load
    assert "ended at offset 4, below its log start 12" in log.dropped_at_load


def test_the_log_start_is_at_least_the_first_segment() -> None:
    """RL 3.6: log start = max(checkpoint, first segment)."""
    disk = disk_with_segments()
    assert open_log(disk, settings=SMALL, log_start_offset=5).log_start_offset == 5
    for suffix in (".log", ".index", ".timeindex"):
        disk.remove(f"{DIRECTORY}/{file_name(0, suffix)}")
    assert open_log(disk, settings=SMALL).log_start_offset == 2


def test_topic_ids() -> None:
    """RL 1.3: the id is written with a new log, read with an old one, and another one is
    refused.
    """
    disk = SimDisk(1)
    disk.make_directories("/data")
    log = open_log(disk)
    assert load_log(log.pool, DIRECTORY, TP, None, config(), wall_ms=NOW_MS).topic_id == TOPIC_ID
    with pytest.raises(BrokerError) as caught:
        load_log(log.pool, DIRECTORY, TP, bytes(16), config(), wall_ms=NOW_MS)
    assert caught.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
    disk.remove(f"{DIRECTORY}/partition.metadata")
    load_log(log.pool, DIRECTORY, TP, TOPIC_ID, config(), wall_ms=NOW_MS)
    assert disk.exists(f"{DIRECTORY}/partition.metadata")


def test_epochs_lost_with_their_file_are_found_in_the_batches() -> None:
    """RL 3.6: without a good leader-epoch checkpoint the epochs come from the batch headers,
    clean stop or not.
    """
    disk = SimDisk(1)
    disk.make_directories("/data")
    log = open_log(disk, settings=SMALL)
    for epoch in (0, 0, 3, 3, 4):
        log.append_as_leader(batch(200), epoch, NOW_MS)
    expected = log.leader_epochs.entries()
    log.close()
    disk.remove(f"{DIRECTORY}/leader-epoch-checkpoint")
    again = open_log(disk, settings=SMALL, clean=True, recovery_point=5)
    assert again.leader_epochs.entries() == expected == [(0, 0), (3, 2), (4, 4)]
    assert values(again) == [bytes(200)] * 5


@pytest.mark.parametrize("settings", [SMALL, config()])
@pytest.mark.parametrize("start", [1, 3, 5])
@pytest.mark.parametrize("clean", [False, True])
def test_epochs_below_a_log_start_that_was_lost(
    settings: LogConfig, start: int, clean: bool
) -> None:
    """RL 3.6: the leader epochs were trimmed to a log start that was not checkpointed when the disk
    failed: those of the batches that are still there are found again (simulation, one broker, seed
    19).
    """
    disk = SimDisk(1)
    log = open_log(disk, settings=settings)
    for epoch in (-1, 0, 3, 3, 4):
        log.append_as_leader(batch(200), epoch, NOW_MS)
    expected = log.leader_epochs.entries()
    log.set_high_watermark(5)
    log.increment_log_start_offset(start)
    assert log.leader_epochs.entries() != expected or start == 1
    disk.sync_all()
    left = disk.after_kill()
    again = open_log(left, settings=settings, clean=clean, recovery_point=5)
    assert again.log_start_offset == 0 and again.leader_epochs.entries() == expected
    assert len(values(again)) == 5
    kept = open_log(left, settings=settings, clean=clean, recovery_point=5, log_start_offset=2)
    assert kept.leader_epochs.entries() == [(3, 2), (4, 4)]


def test_batches_of_an_older_epoch_behind_a_newer_one_are_what_a_lost_truncation_left() -> None:
    """RL 3.6: the write after a truncation survived a crash, the truncation did not: the log
    ends where leader epochs go back.
    """
    disk = SimDisk()
    log = open_log(disk)
    for value in (b"a", b"b", b"c"):
        log.append_as_leader(batch(value), 3, NOW_MS)
    disk.sync_all()
    path = log.segments.active.log.path
    old = disk.content(path)
    log.truncate_to(1, NOW_MS)
    log.append_as_leader(batch(b"B"), 7, NOW_MS)
    new = disk.content(path)
    disk.damage(path, len(new), old[len(new) :])
    found = open_log(disk.after_kill(), clean=False)
    assert values(found) == [b"a", b"B"] and found.leader_epochs.entries() == [(3, 0), (7, 1)]


def test_a_truncation_that_was_lost_below_the_recovery_point_takes_its_epoch_along() -> None:
    """RL 3.6: the checkpoint of recovery points was older than a truncation when the power went,
    that of leader epochs was not: the batches that came back keep their epoch, so that the
    replica finds again where it diverges (simulation, seed 45).
    """
    disk = SimDisk(1)
    log = open_log(disk)
    for value in (b"a", b"b", b"c"):
        log.append_as_leader(batch(value), 3, NOW_MS)
    path = log.segments.active.log.path
    old = disk.content(path)
    log.truncate_to(1, NOW_MS)
    log.append_as_leader(batch(b"B"), 7, NOW_MS)
    log.close()
    disk.damage(path, 0, old)
    found = open_log(disk.after_kill(), clean=False, recovery_point=3)
    assert values(found) == [b"a", b"b", b"c"] and found.leader_epochs.entries() == [(3, 0)]


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("recovery_point", [0, 4, 6, 9])
@pytest.mark.parametrize("start", [0, 3])
def test_no_flipped_bit_in_the_checkpoint_of_epochs_costs_a_record(
    start: int, recovery_point: int, clean: bool
) -> None:
    """RL 3.6: whether leader epochs go back is for the batches to say (simulation, seed 1092326).
    Where all is looked at, the epochs known are theirs.
    """
    disk = SimDisk(1)
    log = open_log(disk, settings=config(segment_bytes=250))
    for epoch in (1, 1, 2, 2, 2, 4, 4, 11, 11):
        log.append_as_leader(batch(bytes(20)), epoch, NOW_MS)
    log.set_high_watermark(9)
    log.increment_log_start_offset(start)
    log.delete_old_segments(NOW_MS)
    kept, expected = len(values(log)), log.leader_epochs.entries()
    assert kept == 9 - start and len(log.segments) > 2
    log.close()
    disk.sync_all()
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    for position in range(len(disk.content(path))):
        for bit in range(8):
            left = disk.after_kill()
            left.flip_bit(path, position, bit)
            found = open_log(
                left, clean=clean, recovery_point=recovery_point, log_start_offset=start
            )
            assert len(values(found)) == kept, (position, bit)
            assert found.dropped_at_load is None
            if not clean and not recovery_point:
                assert found.leader_epochs.entries() == expected, (position, bit)


@pytest.mark.parametrize("segment_bytes", [250, 10_000])
def test_a_truncation_ends_where_its_first_batch_began(segment_bytes: int) -> None:
    """RL 3.5: batches are dropped whole; below the end there is no hole."""
    log = open_log(SimDisk(1), settings=config(segment_bytes=segment_bytes))
    for number in range(5):
        log.append_as_leader(batch(b"%d" % number, b"x", b"y"), 0, NOW_MS)
    assert [log.end_below(offset) for offset in (0, 1, 5, 6, 8, 14, 15)] == [0, 0, 3, 6, 6, 12, 15]


def test_a_truncation_before_a_batch_that_claims_to_lie_far_above() -> None:
    """Where offsets are left out, the end is that of the batch before (simulation, seed 107)."""
    disk = SimDisk(1)
    log = open_log(disk)
    for number in range(3):
        log.append_as_leader(batch(b"%d" % number), 0, NOW_MS)
    path, size = log.segments.active.log.path, log.segments.active.size
    last = size - size // 3
    log.close()
    disk.damage(path, last, (2048).to_bytes(8, "big"))
    compacted = config(cleanup_policy=frozenset({"compact"}))
    found = open_log(disk.after_kill(), clean=False, settings=compacted)
    assert found.log_end_offset == 2049 and found.end_below(7) == 2


def test_batches_without_a_leader_epoch_are_not_old_ones() -> None:
    """RL 3.6: epoch -1 (written by an old broker, or under an old format) says nothing about
    order: such batches are kept.
    """
    disk = SimDisk()
    disk.make_directories("/data")
    leader, log = open_log(SimDisk()), open_log(disk)
    for value in (b"a", b"b", b"c", b"d"):
        leader.append_as_leader(batch(value), 0, NOW_MS)
    for one, epoch in zip(all_batches(leader), (3, -1, 3, -1), strict=True):
        data = bytearray(one.to_bytes())
        set_offsets_and_epoch(data, one.base_offset, epoch)
        log.append_as_follower(bytes(data), -1, NOW_MS)
    found = open_log(disk.after_kill(), clean=False)
    assert values(found) == [b"a", b"b", b"c", b"d"] and found.leader_epochs.entries() == [(3, 0)]


def test_a_clean_stop_makes_durable_that_recovery_dropped_everything() -> None:
    """RL 3.6: a loss of power after it must not bring damage back that nothing checks any more
    (simulation, seed 301375).
    """
    disk = SimDisk(1)
    log = open_log(disk)
    log.append_as_leader(batch(b"a"), 0, NOW_MS)
    log.close()
    disk.sync_all()
    disk.flip_bit(log.segments.active.log.path, 66, 3)
    found = open_log(disk, clean=False)
    assert found.log_end_offset == 0
    found.close()
    again = open_log(disk.after_power_loss(keep=0), clean=True)
    assert again.log_end_offset == 0
