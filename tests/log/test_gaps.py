"""A missing middle segment: refused, ended before, or no gap at all (RL 3.6; RELIABILITY 6.2)."""

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
    values,
)
from tests.log.test_recovery import SMALL, disk_with_segments
from tests.memory_broker import MemoryBroker
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.gaps import Gap, end_of, resolve_gap
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.recovery import load_log
from twisted_broker.log.segment import OpenFiles, file_name
from twisted_broker.replication.explain.explanation import explain
from twisted_broker.replication.explain.reasons import Moment
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Crash
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from twisted_broker.wire.records import set_offsets_and_epoch


def without(disk: SimDisk, *bases: int) -> SimDisk:
    """Segments of two offsets each, those at `bases` gone."""
    for base in bases:
        for suffix in (".log", ".index", ".timeindex"):
            disk.remove(f"{DIRECTORY}/{file_name(base, suffix)}")
    return disk


def loaded(disk: SimDisk, **more: object) -> Log:
    return load_log(OpenFiles(disk), DIRECTORY, TP, TOPIC_ID, SMALL, wall_ms=NOW_MS, **more)


def contents(disk: SimDisk) -> dict[str, bytes]:
    return {path: disk.content(path) for path in disk.nodes}


@pytest.mark.parametrize(
    "more",
    [
        {"clean": True, "recovery_point": 16},
        {"clean": True},
        {"recovery_point": 16},
        {"recovery_point": 8},
    ],
)
def test_a_file_that_was_whole_is_missed(more: dict[str, object]) -> None:
    """RL 3.6: after a clean stop, or below the recovery point, a gap refuses the log: the
    message names file and remedy, no file is touched.
    """
    disk = without(disk_with_segments(), 6)
    loaded(disk, **more)
    before = contents(disk)
    log = loaded(disk, **more)
    assert log.gap == Gap(6, 8, False)
    with pytest.raises(BrokerError) as caught:
        resolve_gap(log, True, NOW_MS)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert caught.value.message is not None and "\n" not in caught.value.message
    for part in (
        "offsets 6 to 7 are missing",
        f"{DIRECTORY}/{file_name(8, '.log')}",
        f"put {file_name(6, '.log')} back",
    ):
        assert part in caught.value.message
    assert contents(disk) == before and log.log_end_offset == 16


def test_an_unclean_stop_may_have_taken_it() -> None:
    """RELIABILITY 6.2: above the recovery point of a replicated partition the log ends at the
    gap; what lies behind is kept aside.
    """
    disk = without(disk_with_segments(), 6)
    behind = {
        base: disk.content(f"{DIRECTORY}/{file_name(base, '.log')}") for base in range(8, 16, 2)
    }
    log = loaded(disk, recovery_point=4)
    line = resolve_gap(log, True, NOW_MS)
    assert line is not None and "the log ends at 6" in line and "4 files are kept" in line
    assert log.log_end_offset == 6 and log.gap is None and len(values(log)) == 6
    assert {
        base: disk.content(f"{DIRECTORY}/{file_name(base, '.log')}.aside") for base in behind
    } == behind
    log.append_as_leader(batch(b"new"), 1, NOW_MS)
    again = open_log(disk.after_kill(), settings=SMALL)
    assert again.gap is None and again.log_end_offset == 7 and values(again)[-1] == b"new"
    assert disk.after_kill().content(f"{DIRECTORY}/{file_name(8, '.log')}.aside") == behind[8]


def test_a_kill_while_segments_are_set_aside_makes_no_further_hole() -> None:
    """RL 3.6: a follower of a compacted topic sets aside what lies behind a torn hole. Killed in
    between, and elected, it keeps what is left there: the lower part, without another hole.
    """
    compacted = config(segment_bytes=300, cleanup_policy=frozenset({"compact"}))
    found = set()
    for at in range(200):
        disk = without(disk_with_segments(), 6)
        log = loaded(disk, recovery_point=4)
        log.update_config(compacted)
        before = values(log)
        disk.operations, disk.crash_at = 0, at
        try:
            resolve_gap(log, True, NOW_MS)
        except Crash:
            killed = disk.after_kill()
            led = loaded(killed, recovery_point=4)
            led.update_config(compacted)
            resolve_gap(led, False, NOW_MS)
            assert values(led) == before[: len(values(led))], at
            found.add(len(values(led)))
        else:
            break
    assert found == {6, 8, 10, 12, 14}


def test_the_only_replica_ends_there_too() -> None:
    """RL 3.6: a loss of power may take what an only replica had not synced, but leaves no hole in
    its offsets; the line says what is lost and what is kept (simulation, one broker, seed 15).
    """
    disk = without(disk_with_segments(), 6)
    behind = disk.content(f"{DIRECTORY}/{file_name(8, '.log')}")
    log = loaded(disk)
    assert log.gap == Gap(6, 8, True)
    line = resolve_gap(log, False, NOW_MS)
    assert line is not None and "\n" not in line
    for part in ("offsets 6 to 7", "no other replica", "ends at 6", "offsets 8 to 15", "4 files"):
        assert part in line
    assert log.log_end_offset == 6 and log.gap is None and len(values(log)) == 6
    assert disk.content(f"{DIRECTORY}/{file_name(8, '.log')}.aside") == behind
    again = open_log(disk.after_kill(), settings=SMALL)
    assert again.gap is None and again.log_end_offset == 6


def test_the_first_gap_counts() -> None:
    """RL 3.6: one that is no torn tail is not hidden by a later one that may be."""
    assert loaded(without(disk_with_segments(), 4, 10), recovery_point=7).gap == Gap(
        4, 6, False, Gap(10, 12, True)
    )
    assert loaded(without(disk_with_segments(), 4, 6, 10)).gap == Gap(4, 8, True)


def lost_truncation(end: int) -> tuple[SimDisk, dict[int, bytes]]:
    """A follower truncated to 4 and went on up to `end` under a newer epoch; a loss of power
    brought the removed segments back: the disk, and the content of the old ones.
    """
    disk = disk_with_segments()
    old = {base: disk.content(f"{DIRECTORY}/{file_name(base, '.log')}") for base in range(6, 16, 2)}
    log = open_log(disk, settings=config(segment_bytes=2000), recovery_point=4)
    log.truncate_to(4, NOW_MS)
    for number in range(4, end):
        log.append_as_leader(batch(b"new%d" % number), 5, NOW_MS)
    assert [segment.base_offset for segment in log.segments][-1] == 4
    log.close()
    for base, content in old.items():
        disk.open(f"{DIRECTORY}/{file_name(base, '.log')}", create=True).write_at(0, (content,))
    return disk, old


# replicated, the segment behind is empty, the log end
COMPACTED_AND_TORN = [(True, False, 6), (True, True, 6), (False, True, 6), (False, False, 16)]


@pytest.mark.parametrize("compact", [False, True])
def test_a_segment_that_begins_below_the_end_of_the_one_before(compact: bool) -> None:
    """A loss of power took the removal of segments back that a truncation had dropped, but not
    what was appended since (simulation, seed 77): they are set aside.
    """
    disk, old = lost_truncation(9)
    log = loaded(disk, recovery_point=4)
    if compact:
        log.update_config(config(segment_bytes=2000, cleanup_policy=frozenset({"compact"})))
    assert log.gap == Gap(9, 6, True) and log.log_end_offset == 9
    line = resolve_gap(log, True, NOW_MS)
    assert line is not None and "the log ends at 9" in line and "5 files are kept" in line
    new = [b"new%d" % number for number in range(4, 9)]
    assert values(log)[4:] == new and log.gap is None
    assert log.leader_epochs.entries() == [(0, 0), (5, 4)]
    for base, content in old.items():
        assert disk.content(f"{DIRECTORY}/{file_name(base, '.log')}.aside") == content
    log.update_config(SMALL)
    log.append_as_leader(batch(b"later"), 5, NOW_MS)
    again = open_log(disk.after_power_loss(), settings=SMALL)
    assert again.gap is None and again.log_end_offset <= 10
    again = open_log(disk.after_kill(), settings=SMALL)
    assert again.gap is None and values(again)[4:] == [*new, b"later"]


def test_an_overlap_below_the_log_start() -> None:
    """The log begins anew at its start: the segment that it has now is not set aside."""
    disk, old = lost_truncation(9)
    log = loaded(disk, recovery_point=4, log_start_offset=12)
    assert log.gap == Gap(9, 6, True) and log.segments.bases() == [12]
    resolve_gap(log, True, NOW_MS)
    log.append_as_leader(batch(b"new"), 9, NOW_MS)
    again = open_log(disk.after_kill(), settings=SMALL, log_start_offset=12)
    assert values(again) == [b"new"] and again.log_start_offset == 12
    kept = [name for name in disk.listdir(DIRECTORY) if name.endswith(".log.aside")]
    assert kept == [file_name(base, ".log.aside") for base in old if base != 12]


def test_an_index_that_leads_astray_before_an_overlap() -> None:
    """The segment that is the last one then is trusted, and its end has to be found."""
    disk, _ = lost_truncation(9)
    log = open_log(disk, settings=config(segment_bytes=2000), clean=True)
    index = log.segments.at(log.segments.row_of(4)).offset_index.file.path
    size = log.segments.at(log.segments.row_of(4)).size
    log.segments.close()
    disk.shorten(index, 0)
    disk.damage(index, 0, (1).to_bytes(4, "big") + (size - 7).to_bytes(4, "big"))
    found = loaded(disk, recovery_point=6)
    assert found.gap == Gap(9, 6, True) and found.log_end_offset == 9


def test_an_overlapping_segment_that_cannot_be_read() -> None:
    """Its first batch is damaged: nobody can tell which segment is the newer one, so the log starts
    with the first, and the other is set aside as ever.
    """
    disk, _ = lost_truncation(9)
    disk.damage(f"{DIRECTORY}/{file_name(6, '.log')}", 8, b"\xff\xff\xff\xff")
    log = loaded(disk, recovery_point=4)
    assert log.gap == Gap(9, 6, True) and log.log_end_offset == 9
    assert values(log)[4:] == [b"new%d" % number for number in range(4, 9)]


def test_a_segment_that_was_dropped_and_fits() -> None:
    """As above, where the log had grown exactly up to it: leader epochs go back."""
    disk, _ = lost_truncation(6)
    log = loaded(disk, recovery_point=4)
    assert log.gap is None and log.log_end_offset == 6
    assert values(log)[4:] == [b"new4", b"new5"]
    assert log.leader_epochs.entries() == [(0, 0), (5, 4)]


def test_the_end_of_a_segment_that_a_lost_truncation_brought_back() -> None:
    """A truncation dropped the end of one segment, the log went on in a new one, and the loss of
    power took the truncation back: the newer leader epoch counts (simulation, seed 45).
    """
    disk = SimDisk(1)
    log = open_log(disk, settings=config(segment_bytes=2000))
    for number in range(6):
        log.append_as_leader(batch(b"old%d" % number), 3, NOW_MS)
    path = log.segments.active.log.path
    old = disk.content(path)
    log.truncate_to(4, NOW_MS)
    log.update_config(config(segment_bytes=300))
    log.append_as_leader(batch(b"new"), 5, NOW_MS)
    assert log.segments.bases() == [0, 4]
    log.close()
    disk.damage(path, 0, old)
    disk.sync_all()
    again = loaded(disk, recovery_point=4)
    assert again.gap is None and again.leader_epochs.entries() == [(3, 0), (5, 4)]
    assert values(again) == [b"old0", b"old1", b"old2", b"old3", b"new"]
    assert disk.after_power_loss(keep=0).content(path) == old[: again.segments.first.size]


def test_two_segments_with_the_same_offsets_in_the_only_replica() -> None:
    """Where the leader epochs do not show that the second one is the newer, the log had grown past
    it: it is set aside here, too.
    """
    disk, old = lost_truncation(9)
    log = loaded(disk, recovery_point=4)
    line = resolve_gap(log, False, NOW_MS)
    assert line is not None and "begins below offset 9" in line and "5 files are kept" in line
    assert "leader" not in line and values(log)[4:] == [b"new%d" % n for n in range(4, 9)]
    for base, content in old.items():
        assert disk.content(f"{DIRECTORY}/{file_name(base, '.log')}.aside") == content


@pytest.mark.parametrize("clean", [False, True])
def test_an_empty_file_in_the_middle_is_a_gap(clean: bool) -> None:
    """A loss of power kept the names of two segments and the records of the second only."""
    disk = disk_with_segments()
    disk.shorten(f"{DIRECTORY}/{file_name(6, '.log')}", 0)
    log = loaded(disk, clean=clean)
    assert log.gap == Gap(6, 8, not clean)


def test_compacted_topics_have_gaps_and_keep_them() -> None:
    """RL 3.6: what the cleaner took is not missed."""
    log = loaded(without(disk_with_segments(), 6), clean=True)
    log.update_config(config(segment_bytes=300, cleanup_policy=frozenset({"compact"})))
    assert resolve_gap(log, False, NOW_MS) is None and log.gap is None
    assert [one.base_offset for one in all_batches(log)] == [0, 2, 4, 8, 10, 12, 14]


@pytest.mark.parametrize("mirror", ["", "cluster/topic"])
@pytest.mark.parametrize("clean", [True, False])
def test_offsets_that_a_leader_does_not_have_are_no_missing_file(mirror: str, clean: bool) -> None:
    """Of a topic that was compacted before its policy changed: where a follower, or a mirror,
    rolls at them, the partition was refused after its next start, on each new replica.
    """
    files = MemoryFileSystem()
    files.make_directories("/data")
    log = open_log(files, settings=config(segment_bytes=200, replog_mirror_source=mirror))
    for offset in (0, 1, 10, 11, 20, 23, 24):
        data = bytearray(batch(b"x" * 60))
        set_offsets_and_epoch(data, offset, 0)
        if mirror:
            log.append_mirrored(bytes(data), 0, NOW_MS)
        else:
            log.append_as_follower(bytes(data), 0, NOW_MS)
    held = [one.base_offset for one in all_batches(log)]
    assert len(log.segments) > 3
    log.close()
    again = load_log(
        OpenFiles(files),
        DIRECTORY,
        TP,
        TOPIC_ID,
        log.config,
        wall_ms=NOW_MS,
        clean=clean,
        recovery_point=log.log_end_offset,
    )
    assert again.gap is None and resolve_gap(again, False, NOW_MS) is None
    assert [one.base_offset for one in all_batches(again)] == held


def test_offsets_too_far_for_an_index_begin_a_segment() -> None:
    log = open_log(SimDisk(1), settings=config(segment_bytes=200))
    for offset in (0, 2**31 + 5):
        data = bytearray(batch(b"x" * 60))
        set_offsets_and_epoch(data, offset, 0)
        log.append_as_follower(bytes(data), 0, NOW_MS)
    assert log.segments.bases() == [0, 2**31 + 5]


@pytest.mark.parametrize(("replicated", "empty", "end"), COMPACTED_AND_TORN)
def test_a_torn_tail_of_a_compacted_topic(replicated: bool, empty: bool, end: int) -> None:
    """RL 3.6: a loss of power took the end of a segment and left the next one: the replica fetches
    again from there (simulation, seed 300087: it went on behind the hole).
    """
    disk = without(disk_with_segments(), 6, *((8, 10, 12) if empty else ()))
    if empty:
        disk.shorten(f"{DIRECTORY}/{file_name(14, '.log')}", 0)
    log = loaded(disk, recovery_point=4)
    log.update_config(config(segment_bytes=300, cleanup_policy=frozenset({"compact"})))
    line = resolve_gap(log, replicated, NOW_MS)
    assert log.gap is None and log.log_end_offset == end
    assert line is None if end == 16 else line is not None and "ends at 6" in line


@pytest.mark.parametrize(("lost", "empty"), [(12, (14,)), (10, (12, 14)), (None, (10, 12, 14))])
@pytest.mark.parametrize("waits", [False, True])
def test_who_leads_behind_a_hole_does_not_keep_the_end_of_empty_segments(
    lost: int | None, empty: tuple[int, ...], waits: bool
) -> None:
    """RL 3.6: it keeps the records between the two holes. Offsets that are in none of its files it
    gives again, under its epoch: else a follower would keep what it had there for ever.
    """
    disk = without(disk_with_segments(), 6, *([] if lost is None else [lost]))
    for base in empty:
        disk.shorten(f"{DIRECTORY}/{file_name(base, '.log')}", 0)
    log = loaded(disk, recovery_point=4)
    log.update_config(config(segment_bytes=300, cleanup_policy=frozenset({"compact"})))
    if waits:
        assert resolve_gap(log, False, NOW_MS, is_led=False) is None
        assert log.gap is not None and log.log_end_offset == 14
    line = resolve_gap(log, False, NOW_MS)
    end = lost or 10
    assert line is not None and f"ends at {end}" in line and log.log_end_offset == end
    assert [one.base_offset for one in all_batches(log)] == [0, 2, 4, *range(8, end, 2)]
    log.append_as_leader(batch(b"again", key=b"k"), 1, NOW_MS)
    assert values(log)[-1] == b"again" and log.log_end_offset == end + 1
    again = loaded(disk.after_kill(), recovery_point=4)
    assert again.log_end_offset == end + 1
    assert again.gap == Gap(6, 8, True)


@pytest.mark.parametrize(("replicated", "end"), [(True, 6), (False, 16)])
def test_while_nobody_leads_a_torn_tail_is_not_decided_about(replicated: bool, end: int) -> None:
    """RL 3.6: whoever leads later has the rest, or this log is what there is (simulation, seed
    953262: kept as the log of a candidate, and followed another one with the hole).
    """
    log = loaded(without(disk_with_segments(), 6), recovery_point=4)
    log.update_config(config(segment_bytes=300, cleanup_policy=frozenset({"compact"})))
    assert resolve_gap(log, False, NOW_MS, is_led=False) is None
    assert log.gap is not None and log.log_end_offset == 16
    resolve_gap(log, replicated, NOW_MS)
    assert log.gap is None and log.log_end_offset == end


def test_a_gap_of_a_compacted_topic_below_the_recovery_point_stays() -> None:
    """RL 3.6: an unclean stop takes nothing of what was synced: a cleaner did it."""
    log = loaded(without(disk_with_segments(), 6), recovery_point=8)
    log.update_config(config(segment_bytes=300, cleanup_policy=frozenset({"compact"})))
    assert resolve_gap(log, True, NOW_MS) is None and log.log_end_offset == 16


def test_a_torn_tail_behind_what_a_cleaner_left_out() -> None:
    """RL 3.6: the first gap of a compacted topic is the cleaner's; the hole behind it counts."""
    disk = without(disk_with_segments(), 2, 10)
    log = loaded(disk, recovery_point=6)
    assert log.gap == Gap(2, 4, False, Gap(10, 12, True))
    log.update_config(config(segment_bytes=300, cleanup_policy=frozenset({"compact"})))
    line = resolve_gap(log, True, NOW_MS)
    assert line is not None and "ends at 10" in line
    assert [one.base_offset for one in all_batches(log)] == [0, 4, 6, 8]


def test_a_gap_that_begins_below_the_log_start_leaves_an_empty_log() -> None:
    """RL 3.6: the log start does not go back to where the gap begins."""
    disk = without(disk_with_segments(), 6)
    log = loaded(disk, log_start_offset=7)
    assert log.gap == Gap(6, 8, True)
    resolve_gap(log, True, NOW_MS)
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)
    again = loaded(disk, log_start_offset=7)
    assert (again.gap, again.log_start_offset, again.log_end_offset) == (None, 7, 7)


def test_what_lies_below_the_log_start_is_not_missed() -> None:
    """RL 3.7: retention was on its way when the machine stopped."""
    disk = without(disk_with_segments(), 2)
    assert loaded(disk, log_start_offset=4, clean=True).gap is None
    assert loaded(disk, log_start_offset=3, clean=True).gap == Gap(2, 4, False)


@pytest.mark.parametrize("clean", [True, False])
def test_a_whole_log_has_none(clean: bool) -> None:
    """RL 3.6: neither has one whose ends cannot be read: that is told to the reader."""
    assert loaded(disk_with_segments(), clean=clean, recovery_point=16).gap is None
    disk = disk_with_segments()
    for base in (0, 4, 14):
        disk.damage(f"{DIRECTORY}/{file_name(base, '.log')}", 8, b"\xff" * 20)
    assert loaded(disk, clean=True, recovery_point=16).gap is None


def test_the_end_of_a_segment_is_read_from_its_last_index_entry() -> None:
    """RL 3.6: a start looks at a few bytes of each segment; an index that leads astray is not
    followed.
    """
    disk = SimDisk(1)
    disk.make_directories("/data")
    log = open_log(disk, settings=config(segment_bytes=20_000, index_interval_bytes=500))
    for number in range(300):
        log.append_as_leader(batch(b"%04d" % number + bytes(100)), 0, NOW_MS)
    bases = [*log.segments.bases(), log.log_end_offset]
    for segment, following in zip(list(log.segments)[:-1], bases[1:], strict=False):
        assert end_of(segment) == following
    first = log.segments.first
    disk.damage(
        first.offset_index.file.path,
        disk.size(first.offset_index.file.path) - 4,
        (first.size - 7).to_bytes(4, "big"),
    )
    assert end_of(first) == bases[1]
    disk.remove(first.offset_index.file.path)
    assert end_of(first) == bases[1]


def produced(broker: MemoryBroker, topic: str) -> int:
    data = PartitionProduceData(index=0, records=batch(b"v" + bytes(60)))
    request = ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    code: int = broker.ask(request, 9).responses[0].partition_responses[0].error_code
    return code


def disk_with_a_lost_segment(clean: bool) -> MemoryFileSystem:
    """A broker with two topics of one replica stopped; segment 2 of t-0 is in another place."""
    broker = MemoryBroker().start()
    settings = [CreatableTopicConfig(name="internal.segment.bytes", value="200")]
    names = ("t", "other")
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=settings)
        for name in names
    ]
    broker.ask(CreateTopicsRequest(topics=topics, timeout_ms=1000), 7)
    broker.pass_time(1)
    assert [produced(broker, name) for _ in range(6) for name in names] == [0] * 12
    if clean:
        broker.stop()
    files = broker.files
    files._locks.clear()
    files.rename(posixpath.join("/data/t-0", file_name(2, ".log")), "/data/elsewhere")
    return files


def test_a_broker_refuses_the_partition_and_serves_the_others() -> None:
    """RL 1.12, 3.6: on the way that production takes: KAFKA_STORAGE_ERROR with the reason in
    `explain`; put back, the file serves again.
    """
    files = disk_with_a_lost_segment(clean=True)
    broker = again(files)
    assert produced(broker, "other") == 0 and produced(broker, "t") == ErrorCode.KAFKA_STORAGE_ERROR
    partition = broker.broker.parts.replica_manager.partitions[TopicPartition("t", 0)]
    told = explain(partition, Moment(0, 0))
    assert told.role == "offline" and "offsets 2 to 2 are missing" in told.offline_because
    broker.stop()
    files.rename("/data/elsewhere", posixpath.join("/data/t-0", file_name(2, ".log")))
    broker = again(files, seed=9)
    assert produced(broker, "t") == 0 and end_of_partition(broker) == 7
    broker.stop()


def test_a_broker_serves_what_an_unclean_stop_left_of_an_only_replica() -> None:
    """RL 3.6: nobody waits for an operator; what lay behind the gap is kept."""
    files = disk_with_a_lost_segment(clean=False)
    broker = again(files)
    assert produced(broker, "other") == 0 and produced(broker, "t") == 0
    assert end_of_partition(broker) == 3
    kept = [name for name in files.listdir("/data/t-0") if name.endswith(".log.aside")]
    assert kept == [file_name(base, ".log.aside") for base in (3, 4, 5)]
    broker.stop()
    broker = again(files)
    assert produced(broker, "t") == 0 and end_of_partition(broker) == 4
    broker.stop()


def end_of_partition(broker: MemoryBroker) -> int:
    partition = broker.broker.parts.replica_manager.partitions[TopicPartition("t", 0)]
    end: int = partition.log.log_end_offset
    return end


def again(files: MemoryFileSystem, seed: int = 8) -> MemoryBroker:
    broker = MemoryBroker(files, seed=seed).start()
    broker.pass_time(1)
    return broker
