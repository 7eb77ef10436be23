"""Whole rounds on whole logs, and crashes in them (RL 3.6; Kafka's CleanerTest as behaviours)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.batches import DIRECTORY, NOW_MS, all_batches, marker, open_log
from tests.log.cleaner.rounds import (
    Pair,
    append,
    batch_of,
    clean_log,
    new_log,
    plan,
    result_of,
    settings,
)
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.cleaner import selection
from twisted_broker.log.cleaner.batch_filter import LastRecord
from twisted_broker.log.cleaner.cleaning import CannotBeCleaned
from twisted_broker.log.cleaner.selection import log_to_clean
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.reading import aborted_transactions
from twisted_broker.log.segment import LogSegment
from twisted_broker.log.verification import NOT_REQUIRED
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Crash
from twisted_broker.wire.compression import GZIP
from twisted_broker.wire.legacy import build_message_set, iterate_entries
from twisted_broker.wire.record_walk import Record
from twisted_broker.wire.records import (
    NO_TIMESTAMP,
    BatchView,
    iterate_batches,
    set_offsets_and_epoch,
)
from twisted_broker.wire.schema import run_whole

DAY_MS = 86_400_000


def rows(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of all records, read as a follower reads them."""
    return [
        (each.offset, each.key, each.value) for one in all_batches(log) for each in one.records()
    ]


def newest(written: list[tuple[int, bytes | None, bytes | None]]) -> dict[bytes, bytes | None]:
    return {key: value for _, key, value in written if key is not None}


def test_the_newest_value_of_each_key_is_left() -> None:
    log = new_log()
    for number in range(60):
        append(log, (b"k%d" % (number % 5), b"v%d" % number))
    written = rows(log)
    first_dirty = clean_log(log)
    assert first_dirty == log.segments.active.base_offset
    assert newest(rows(log)) == newest(written)
    below = [row for row in rows(log) if row[0] < first_dirty]
    # Each key once, below the active segment; and the last batch of the range.
    assert len(below) <= 5 and set(below) <= set(written)
    assert plan(log, first_dirty).upper_bound == first_dirty  # nothing is dirty any more


def test_segments_that_became_small_are_one() -> None:
    """Within `segment.bytes`, in the round after the one that made them small: as in Kafka, groups
    go by the sizes before.
    """
    log = new_log(segment_bytes=500)
    for number in range(100):
        append(log, (b"%03d" % number, b"x" * 20))
    before = log.segments.bases()
    upper = clean_log(log)
    assert log.segments.bases() == before  # nothing went, and no two fit into one
    for number in range(100):
        append(log, (b"%03d" % (number % 95), b"y"))
    upper = clean_log(log, upper)
    small = [each for each in log.segments if each.size < 200]
    assert len(small) > 10
    append(log, (b"last", b"z" * 400))
    append(log, (b"last", b"z" * 400))
    clean_log(log, upper)
    assert all(each.size <= 500 for each in log.segments)
    assert len([each for each in log.segments if each.size < 200]) <= 2
    assert newest(rows(log)).keys() == {b"%03d" % number for number in range(100)} | {b"last"}


def test_very_many_small_segments_become_one_in_several_rounds() -> None:
    """What becomes one is replaced in one turn."""
    log = new_log(segment_bytes=100)
    for number in range(50):
        append(log, (b"a", b"%d" % number))
    log.update_config(settings(segment_bytes=10**6))
    log.roll(NOW_MS)
    bounds = []
    for _ in range(3):
        bounds.append([segment.base_offset for segment in log.segments])
        clean_log(log)
    assert bounds == [list(range(51)), [0, 20, 40, 50], [0, 50]]


def test_what_may_not_be_cleaned() -> None:
    """RL 3.7: not above the high watermark, not the active segment, nothing younger than the
    lag.
    """
    log = new_log(segment_bytes=150)
    for number in range(10):
        log.append_as_leader(batch_of((b"a", b"%d" % number), timestamp=NOW_MS + number), 0, NOW_MS)
    bases = log.segments.bases()
    log.set_high_watermark(5)
    bound = plan(log).upper_bound
    assert bound == max(base for base in bases if base <= 5)
    log.set_high_watermark(10)
    assert plan(log).upper_bound == log.segments.active.base_offset
    log.update_config(settings(segment_bytes=150, min_compaction_lag_ms=6))
    young = plan(log, wall_ms=NOW_MS + 10).upper_bound
    segment = log.segments.at(log.segments.row_of(young))
    assert segment is not None and segment.largest_timestamp() > NOW_MS + 4
    assert young > 0


def test_records_without_a_timestamp_are_as_old_as_their_file() -> None:
    """RL 3.7: `min.compaction.lag.ms` counts from when the segment was modified."""
    log = new_log(segment_bytes=150, min_compaction_lag_ms=1000)
    for number in range(10):
        append(log, (b"a", b"%d" % number), timestamp=NO_TIMESTAMP)
    active = log.segments.active.base_offset
    assert plan(log, wall_ms=NOW_MS + 999).upper_bound == 0 < active
    assert plan(log, wall_ms=NOW_MS + 1000).upper_bound == active


def test_an_open_transaction_ends_the_range() -> None:
    """Never past the last stable offset."""
    log = new_log(segment_bytes=150)
    append(log, (b"a", b"1"))
    append(
        log, (b"a", b"2"), producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    for number in range(5):
        append(log, (b"a", b"%d" % number))
    assert log.last_stable_offset == 1
    assert plan(log).upper_bound <= 1


def test_aborted_records_go_and_are_not_the_newest() -> None:
    """KIP-98: the value before the aborted one is the key's; the index of aborted transactions is
    the segment's while the marker waits.
    """
    log = new_log(segment_bytes=200)
    append(log, (b"a", b"1"))
    append(
        log, (b"a", b"2"), producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    log.append_as_leader(marker(7, commit=False), 0, NOW_MS, origin=AppendOrigin.COORDINATOR)
    for number in range(5):
        append(log, (b"other", b"%d" % number))
    upper = clean_log(log)
    left = [row for row in rows(log) if row[1] in (b"a", b"other")]
    assert (0, b"a", b"1") in left and (1, b"a", b"2") not in left
    assert [each.producer_id for each in aborted_transactions(log.segments, 0, upper)] == [7]


def transact(log: Log, producer: int, *keys: bytes) -> None:
    known = log.producers.producers.get(producer)
    append(
        log,
        *((key, b"%d" % (log.log_end_offset + row)) for row, key in enumerate(keys)),
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0 if known is None else known.last_sequence + 1,
        is_transactional=True,
    )


def finish(log: Log, producer: int, commit: bool) -> None:
    log.append_as_leader(
        marker(producer, commit=commit), 0, NOW_MS, origin=AppendOrigin.COORDINATOR
    )
    log.set_high_watermark(log.log_end_offset)


def committed(log: Log) -> dict[bytes, bytes | None]:
    """The newest value of each key, as a reader of committed records finds it."""
    aborted = aborted_transactions(log.segments, 0, log.log_end_offset)
    found: dict[bytes, bytes | None] = {}
    for one in all_batches(log):
        is_aborted = one.is_transactional and any(
            each.producer_id == one.producer_id
            and each.first_offset <= one.base_offset <= each.last_offset
            for each in aborted
        )
        if not (is_aborted or one.is_control):
            found |= {each.key: each.value for each in one.records() if each.key is not None}
    return found


def test_transactions_that_one_round_does_not_take_whole() -> None:
    """Kafka's `testMultiPassSegmentCleaningWithAbortedTransactions`: two producers in one segment,
    a map of three keys; after each round committed records, and no others, are visible.
    """
    log = new_log(segment_bytes=100_000)
    for number, (producer, other, is_committed) in enumerate(
        [(1, 2, False), (2, 1, True), (1, 2, True), (2, 1, False)]
    ):
        transact(log, other, b"c%d" % number)
        transact(log, producer, b"c%d" % number, b"d")
        transact(log, producer, b"a", b"b%d" % number)
        finish(log, producer, is_committed)
        finish(log, other, not is_committed)
    log.roll(NOW_MS)
    expected, upper = committed(log), log.segments.active.base_offset
    offset = rounds = 0
    while offset < upper:
        result = result_of(log, plan(log, offset, slots=16)._replace(load_factor=0.2))
        for group in result.groups:
            log.replace_segments(group.bases, NOW_MS)
        assert result.first_dirty > offset and committed(log) == expected
        offset, rounds = result.first_dirty, rounds + 1
    assert rounds >= 3


def test_a_key_of_the_bytes_of_a_markers_key() -> None:
    """Kafka's `testCleaningWithKeysConflictingWithTxnMarkerKeys`: neither replaces the other."""
    log = new_log(segment_bytes=100_000)
    transact(log, 1, b"a")
    finish(log, 1, commit=True)
    (end,) = BatchView(marker(1, commit=True)).records()
    assert end.key is not None
    transact(log, 2, end.key)
    finish(log, 2, commit=True)
    log.roll(NOW_MS)
    clean_log(log)
    assert [(one.base_offset, one.is_control) for one in all_batches(log)] == [
        (0, False),
        (1, True),
        (2, False),
        (3, True),
    ]
    assert [offset for offset, _, _ in rows(log)] == [0, 1, 2, 3]


def test_an_aborted_transaction_below_the_log_start_goes_with_its_segment() -> None:
    """The segment is written anew from its beginning; after a crash that lets the log start fall
    back the record would be visible, as one of no transaction.
    """
    files = MemoryFileSystem(wall_ms=lambda: NOW_MS)
    log = new_log(files, segment_bytes=500)
    append(
        log, (b"a", b"x"), producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    log.append_as_leader(marker(7, commit=False), 0, NOW_MS, origin=AppendOrigin.COORDINATOR)
    for number in range(10):
        append(log, (b"k%d" % number, b"v"))
    log.increment_log_start_offset(3)
    assert log.segments.at(1) is not None and log.segments.bases()[1] > 3
    clean_log(log)
    log.close()
    again = open_log(files, settings=settings(), clean=True)
    assert again.log_start_offset == 0
    aborted = aborted_transactions(again.segments, 0, again.log_end_offset)
    assert (0, b"a", b"x") not in rows(again) or [each.producer_id for each in aborted] == [7]


def test_a_small_map_takes_several_rounds() -> None:
    log = new_log()
    for number in range(80):
        append(log, (b"k%d" % (number % 40), b"v%d" % number))
    written, upper, offset, rounds = rows(log), log.segments.active.base_offset, 0, 0
    while offset < upper:
        following = clean_log(log, offset, slots=12)
        assert following > offset
        offset, rounds = following, rounds + 1
        assert newest(rows(log)) == newest(written)
    assert rounds > 2


@pytest.mark.parametrize("codec", [0, 1])
def test_a_batch_with_more_keys_than_the_map_takes(codec: int) -> None:
    """As in Kafka's `Cleaner.buildOffsetMap` a round ends in the middle of the batch."""
    log = new_log(segment_bytes=2000)
    for each in range(4):
        pairs = ((b"k%d" % number, b"v%d" % each) for number in range(30))
        append(log, *pairs, codec=codec)
    log.roll(NOW_MS)
    written, upper, offset, rounds = rows(log), log.segments.active.base_offset, 0, 0
    while offset < upper:
        following = clean_log(log, offset, slots=16)
        assert following > offset
        offset, rounds = following, rounds + 1
        assert newest(rows(log)) == newest(written)
    assert rounds > 4 and len(rows(log)) < len(written) / 2


@pytest.mark.parametrize("load_factor", [-1.0, 0.0, 0.01, 1.0, 7.0])
def test_any_load_factor_lets_a_round_go_on(load_factor: float) -> None:
    """Kafka's setting has no bounds: 0 divided by nothing, and 1 filled the last slot."""
    log = new_log()
    for number in range(80):
        append(log, (b"k%d" % (number % 40), b"v%d" % number))
    todo = plan(log, slots=2)._replace(load_factor=load_factor)
    assert result_of(log, todo).first_dirty > 0


def test_damage_is_not_rewritten() -> None:
    """A flipped bit would get a fresh CRC. The line names the file and the byte."""
    disk = SimDisk(1)
    log = new_log(disk)
    for number in range(40):
        append(log, (b"k%d" % (number % 3), b"v%d" % number))
    path = log.segments.first.log.path
    disk.flip_bit(path, 100)
    before = disk.content(path)
    with pytest.raises(CannotBeCleaned, match=rf"{path} is damaged at byte 7\d"):
        clean_log(log)
    assert disk.content(path) == before


def test_a_file_that_is_shorter_than_its_segment_is_damaged() -> None:
    """Kafka's `testCorruptMessageSizeLargerThanBytesAvailable`: whatever part of it is gone, the
    round ends.
    """
    for cut in (1, 30, 130):
        log = new_log()
        for number in range(20):
            append(log, (b"k%d" % (number % 3), b"v%d" % number))
        first = log.segments.first
        first.log.open().truncate(first.size - cut)
        with pytest.raises(CannotBeCleaned, match="is damaged at byte"):
            result_of(log, plan(log))


def test_a_batch_that_is_larger_than_what_is_read_at_once() -> None:
    """Kafka's `testMessageLargerThanMaxMessageSize`; between small ones, and twice."""
    log = new_log(segment_bytes=20_000_000, max_message_bytes=4_000_000)
    for number in range(2):
        append(log, (b"small", b"%d" % number))
        append(log, (b"large", bytes([number]) * 3_000_000))
    append(log, (b"last", b"v"))
    log.roll(NOW_MS)
    clean_log(log)
    assert rows(log) == [
        (2, b"small", b"1"),
        (3, b"large", bytes([1]) * 3_000_000),
        (4, b"last", b"v"),
    ]


def follow(log: Log, offset: int, *pairs: Pair) -> None:
    """Appends a batch at `offset`, as a leader with holes sends it."""
    data = bytearray(batch_of(*pairs))
    set_offsets_and_epoch(data, offset, 0)
    log.append_as_follower(bytes(data), 0, NOW_MS)
    log.set_high_watermark(log.log_end_offset)


def test_what_is_clean_goes_over_offsets_that_are_missing() -> None:
    """Kafka's `testCleaningBeyondMissingOffsets`: at the end of a segment and of the range; else
    the next round would begin there for ever.
    """
    log = new_log(segment_bytes=150)
    for offset in (0, 1, 20, 21, 50, 80):
        if offset:
            log.roll(NOW_MS, offset)  # Kafka names a follower's segment by its first batch
        follow(log, offset, (b"k%d" % offset, bytes(60)))
    upper = log.segments.active.base_offset
    assert upper == 80
    assert clean_log(log) == upper
    assert plan(log, upper).upper_bound == upper and not log_to_clean(log, upper, NOW_MS).is_due


@pytest.mark.parametrize(("third", "together"), [(2**31, 2), (2**31 + 1, 1), (2**31 + 5, 1)])
def test_no_segment_spans_more_offsets_than_an_index_holds(third: int, together: int) -> None:
    """Kafka's `testSegmentGroupingWithSparseOffsets`: small neighbours far apart stay apart, from
    the first offset on that is 2^31 above the segment's.
    """
    log = new_log(segment_bytes=100_000)
    starts = (0, 2**31 - 3, third, 2**31 + 90)
    for start in starts:
        if start:
            follow(log, start - 1, (b"end", b"v"))
            log.roll(NOW_MS)
        follow(log, start, (b"k%d" % start, b"v"))
    log.roll(NOW_MS)
    assert log.segments.bases()[:4] == list(starts)
    groups = [group.bases for group in result_of(log, plan(log)).groups]
    assert groups == [starts[:together], starts[together:]]


def test_without_its_cleaned_files_a_group_is_not_replaced() -> None:
    """Nothing goes for what is not there."""
    disk = SimDisk(1)
    log = new_log(disk)
    for number in range(40):
        append(log, (b"k%d" % (number % 3), b"v%d" % number))
    (group, *_) = result_of(log, plan(log)).groups
    before = [each.log.path for each in log.segments]
    disk.remove(before[0] + ".cleaned")
    with pytest.raises(LogDirFailure):
        log.replace_segments(group.bases, NOW_MS)
    assert all(disk.exists(path) for path in before)


def test_readers_of_the_old_segment_are_not_disturbed() -> None:
    log = new_log()
    for number in range(40):
        append(log, (b"k%d" % (number % 3), b"v%d" % number))
    info = log.read(0, 200)
    before = info.slice.read() if info.slice is not None else b""
    clean_log(log)
    assert info.slice is not None and info.slice.read() == before
    info.slice.release()


def test_a_high_watermark_at_the_end_of_a_cleaned_segment_is_read_up_to() -> None:
    """Its place was noted before the roll, and it stands still there: a follower is missing. The
    segment is smaller by then, and a slice of its former size has no bytes.
    """
    log = new_log()
    number = 0
    while len(log.segments) == 1:
        log.set_high_watermark(log.segments.log_end)
        log.append_as_leader(batch_of((b"k", b"%d" % number)), 0, NOW_MS, guard=NOT_REQUIRED)
        number += 1
    bound = log.watermarks.high_watermark_metadata
    assert bound.offset == log.segments.active.base_offset
    assert bound.segment_base_offset == 0  # where the log ended when it was noted
    clean_log(log)
    assert log.segments.first.size < bound.position
    info = log.read(0, 10_000, log.watermarks.high_watermark_metadata)
    assert info.slice is not None
    (batch,) = iterate_batches(info.slice.read())
    info.slice.release()
    assert batch.next_offset == bound.offset


def test_producers_know_their_sequences_after_cleaning_and_a_restart() -> None:
    """The last batch of a producer is left without records: its next batch is no gap, its last
    one a duplicate.
    """
    disk = SimDisk(1)
    log = new_log(disk)
    fields = {"producer_id": 7, "producer_epoch": 0}
    for number in range(3):
        append(log, (b"a", b"v"), base_sequence=number, **fields)
    for number in range(40):
        append(log, (b"a", b"v%d" % number))
    clean_log(log)
    log.producers.remove_strays(set())  # recovery reads the batches
    again = open_log(disk.after_kill(), settings=settings())
    assert again.producers.producers[7].last_sequence == 2
    duplicate = batch_of((b"a", b"v"), base_sequence=2, **fields)
    assert again.append_as_leader(duplicate, 0, NOW_MS).duplicate
    append(again, (b"a", b"v"), base_sequence=3, **fields)


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_batch_that_may_be_truncated_does_not_replace_a_producers_last_one(
    is_committed: bool,
) -> None:
    """Above the high watermark it may go again: then nothing of the producer would be left for
    whoever copies the log.
    """
    log = new_log()
    fields = {"producer_id": 7, "producer_epoch": 0}
    append(log, (b"a", b"v"), base_sequence=0, **fields)
    for number in range(40):
        append(log, (b"a", b"v%d" % number))
    newer = batch_of((b"a", b"w"), base_sequence=1, **fields)
    log.append_as_leader(newer, 0, NOW_MS, guard=NOT_REQUIRED)
    end = log.log_end_offset
    if is_committed:
        log.set_high_watermark(end)
    clean_log(log)
    log.truncate_to(log.high_watermark)
    left = [(one.producer_id, one.last_offset) for one in all_batches(log) if one.has_producer_id]
    assert left == [(7, end - 1 if is_committed else 0)]


def above(log: Log, data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
    """Appends what the high watermark does not pass."""
    log.append_as_leader(data, 0, NOW_MS, origin=origin, guard=NOT_REQUIRED)


def of_producer(epoch: int, sequence: int, key: bytes = b"a", **fields: Any) -> bytes:
    return batch_of(
        (key, b"w"), producer_id=7, producer_epoch=epoch, base_sequence=sequence, **fields
    )


def ended(log: Log, epoch: int) -> None:
    above(log, marker(7, commit=True, epoch=epoch), AppendOrigin.COORDINATOR)


def last_of(log: Log) -> list[tuple[int, int, bool]]:
    """(last offset, epoch, whether it is a marker) of each batch of producer 7."""
    return [
        (one.last_offset, one.producer_epoch, one.is_control)
        for one in all_batches(log)
        if one.producer_id == 7
    ]


def others(log: Log) -> None:
    """What replaces all before it, over several segments, and is committed."""
    for number in range(40):
        append(log, (b"a", b"v%d" % number))


def test_a_newer_epoch_that_may_be_truncated_does_not_replace_a_producers_last_batch() -> None:
    log = new_log()
    append(log, (b"a", b"v"), producer_id=7, producer_epoch=0, base_sequence=0)
    append(log, (b"a", b"v"), producer_id=7, producer_epoch=0, base_sequence=1)
    others(log)
    above(log, of_producer(1, 0))
    clean_log(log)
    log.truncate_to(log.high_watermark)
    assert last_of(log) == [(1, 0, False)]


def test_more_batches_than_are_remembered_may_be_truncated() -> None:
    """A follower's high watermark is a fetch behind, of a busy producer more than five batches."""
    log = new_log()
    append(log, (b"a", b"v"), producer_id=7, producer_epoch=0, base_sequence=0)
    others(log)
    for sequence in range(1, 10):
        above(log, of_producer(0, sequence))
    clean_log(log)
    log.truncate_to(log.high_watermark)
    assert last_of(log) == [(0, 0, False)]


@pytest.mark.parametrize("with_data", [True, False])
def test_a_transaction_that_may_be_truncated_does_not_replace_a_producers_last_marker(
    with_data: bool,
) -> None:
    """Once a marker's records are gone, it alone says the producer's epoch. The next transaction
    has data above the high watermark, or only its end is there.
    """
    log = new_log()
    above(log, of_producer(0, 0, is_transactional=True))
    ended(log, 1)
    others(log)
    first_dirty = clean_log(log, wall_ms=NOW_MS)
    clean_log(log, first_dirty, NOW_MS + 2 * DAY_MS)
    assert last_of(log) == [(1, 1, True)]
    if with_data:
        above(log, of_producer(1, 0, is_transactional=True))
    else:
        ended(log, 2)
    clean_log(log, first_dirty, NOW_MS + 4 * DAY_MS)
    log.truncate_to(log.high_watermark)
    assert last_of(log) == [(1, 1, True)]


def test_a_producers_last_batch_above_the_range_leaves_nothing_in_it() -> None:
    """Committed in the active segment: it stays, and alone."""
    log = new_log()
    append(log, (b"a", b"v"), producer_id=7, producer_epoch=0, base_sequence=0)
    others(log)
    append(log, (b"a", b"v"), producer_id=7, producer_epoch=0, base_sequence=1)
    above(log, batch_of((b"a", b"v")))
    clean_log(log)
    assert last_of(log) == [(41, 0, False)]


def test_a_plan_pauses_where_there_are_many_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one writes between two steps, or its expiry, leaves the last batch in the range, or a
    later one above it.
    """
    monkeypatch.setattr(selection, "PRODUCERS_PER_STEP", 1)
    log = new_log()
    for producer in range(4):
        append(log, (b"k", b"v"), producer_id=producer, producer_epoch=0, base_sequence=0)
    others(log)
    steps = selection.plan_for(log_to_clean(log, None, NOW_MS), NOW_MS, 100, 0.9)
    next(steps)
    next(steps)
    for producer in (0, 1):
        append(log, (b"k", b"w"), producer_id=producer, producer_epoch=0, base_sequence=1)
    del log.producers.producers[2]
    found = run_whole(steps)
    assert found.last_records == {0: LastRecord(0, 0), 3: LastRecord(3, 0)}
    assert found.uncertain == () and found.upper_bound <= log.log_end_offset - 2


def test_a_crash_at_any_step_leaves_the_old_log_or_the_new_one() -> None:
    """RL 3.6, 3.7: whatever step of the round or of the taking of its segments is the last one,
    every key keeps its newest value, and a second start changes nothing.
    """

    def filled(seed: int) -> tuple[SimDisk, Log]:
        disk = SimDisk(seed)
        log = new_log(disk, segment_bytes=300, file_delete_delay_ms=0)
        for number in range(14):
            append(log, (b"k%d" % (number % 3), b"v%d" % number))
        disk.sync_all()
        return disk, log

    disk, log = filled(0)
    written, before = rows(log), disk.operations
    clean_log(log)
    steps = disk.operations - before
    assert steps > 40
    for step in range(steps):
        for power_loss in (False, True):
            disk, log = filled(step)
            disk.crash_at = disk.operations + step
            with pytest.raises(Crash):
                clean_log(log)
            after = disk.after_power_loss() if power_loss else disk.after_kill()
            # The cleaner has that written first.
            synced = log.segments.active.base_offset
            again = open_log(after, settings=settings(segment_bytes=300), recovery_point=synced)
            assert newest(rows(again)) == newest(written), (step, power_loss)
            assert set(rows(again)) <= set(written), (step, power_loss)
            assert again.log_end_offset == 14, (step, power_loss)
            names = after.listdir(log.directory)
            assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
PAIRS = st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=30)))


@given(st.lists(st.lists(PAIRS, min_size=1, max_size=4), max_size=40), st.data())
def test_any_log_any_rounds(batches: list[list[Pair]], data: st.DataObject) -> None:
    """Whatever is written and whenever it is cleaned: a reader from the start ends with the same
    value of each key, a tombstone counting as none; offsets and order never change.
    """
    log, offset, wall_ms = new_log(segment_bytes=300, delete_retention_ms=DAY_MS), 0, NOW_MS
    written: list[tuple[int, bytes | None, bytes | None]] = []
    for pairs in batches:
        end = log.log_end_offset
        written += [(end + row, key, value) for row, (key, value) in enumerate(pairs)]
        append(log, *pairs)
        if data.draw(st.integers(0, 3)) == 0:
            wall_ms += data.draw(st.sampled_from([0, 1, DAY_MS]))
            slots = data.draw(st.sampled_from([9, 100]))
            offset = clean_log(log, offset, wall_ms, slots)
    left = rows(log)
    assert left == sorted(left) and set(left) <= set(written)
    assert {key: value for key, value in newest(left).items() if value is not None} == {
        key: value for key, value in newest(written).items() if value is not None
    }
    assert log.log_end_offset == len(written)


def old_log(*entries: bytes, clean: bytes = b"") -> Log:
    """A log whose first segments an old broker wrote: `clean`, then `entries`; the next append
    begins a segment.
    """
    files = MemoryFileSystem(wall_ms=lambda: NOW_MS)
    files.make_directories(DIRECTORY)
    base = 0
    for content in (clean, b"".join(entries)):
        if content:
            file = files.open(f"{DIRECTORY}/{base:020d}.log", create=True)
            file.write_at(0, (content,))
            file.close()
            base = [each.last_offset for each in iterate_entries(content)][-1] + 1
    log = open_log(files, settings=settings(segment_bytes=max(100, len(entries[0]))))
    append(log, (b"new", b"1"))
    return log


def entries_of(log: Log) -> list[tuple[int, int, list[tuple[int, bytes | None, bytes | None]]]]:
    """(magic, codec, records) of each entry below the active segment."""
    found = []
    for segment in list(log.segments)[:-1]:
        found += [
            (
                each.magic,
                each.codec,
                [(record.offset, record.key, record.value) for record in each.records(1 << 20)],
            )
            for each in iterate_entries(content_of(log, segment))
        ]
    return found


def content_of(log: Log, segment: LogSegment) -> bytes:
    file = log.pool.files.open(segment.log.path, read_only=True)
    try:
        return file.read_at(0, segment.size)
    finally:
        file.close()


@pytest.mark.parametrize("magic", [0, 1])
def test_entries_of_an_old_broker_are_cleaned_in_their_format(magic: int) -> None:
    """Single messages go; a wrapper is one wrapper of what is left; offsets are as they were."""
    single = [
        Record(number, NOW_MS, b"k%d" % (number % 2), b"v%d" % number, []) for number in range(4)
    ]
    inside = [
        Record(4, NOW_MS, b"k1", b"w", []),
        Record(5, NOW_MS, None, b"no key", []),
        Record(6, NOW_MS, b"k2", b"w", []),
        Record(7, NOW_MS, b"k1", b"x", []),
    ]
    log = old_log(build_message_set(single, magic) + build_message_set(inside, magic, GZIP))
    written = log.log_end_offset
    first_dirty = clean_log(log)
    assert (first_dirty, log.log_end_offset) == (8, written)
    assert entries_of(log) == [
        (magic, 0, [(2, b"k0", b"v2")]),
        (magic, GZIP, [(6, b"k2", b"w"), (7, b"k1", b"x")]),
    ]
    # What stays stays to the byte.
    before = [content_of(log, segment) for segment in log.segments]
    clean_log(log, 0)
    assert [content_of(log, segment) for segment in log.segments] == before


def test_tombstones_of_an_old_broker_go_with_the_age_of_their_segment() -> None:
    """`delete.retention.ms` before the last clean segment, by the files' times: they have no
    horizon.
    """
    tombstone = build_message_set([Record(0, NOW_MS, b"k", None, [])], 1)
    value = build_message_set([Record(1, NOW_MS, b"j", b"v", [])], 1)
    for age_ms, checkpoint, left in ((0, 2, [0, 1]), (2 * DAY_MS, 2, [1]), (2 * DAY_MS, 0, [0, 1])):
        log = old_log(value, clean=tombstone)
        append(log, (b"newer", b"1"))
        assert [segment.base_offset for segment in log.segments] == [0, 1, 2, 3]
        for base, ms in ((0, NOW_MS - age_ms), (1, NOW_MS)):
            log.pool.files.set_modified_ms(f"{DIRECTORY}/{base:020d}.log", ms)
        clean_log(log, checkpoint)  # from 0 on nothing is clean: all stay
        assert [row[0][0] for magic, _, row in entries_of(log) if magic < 2] == left


def test_damage_in_an_old_entry_is_not_rewritten() -> None:
    message = build_message_set([Record(0, NOW_MS, b"k", b"value", [])], 1)
    log = old_log(message)
    file = log.pool.files.open(f"{DIRECTORY}/{0:020d}.log")
    file.write_at(len(message) - 1, (b"x",))
    file.close()
    with pytest.raises(CannotBeCleaned, match="damaged at byte 0"):
        result_of(log, plan(log))
