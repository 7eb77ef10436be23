"""One replica's log: appends, reads, watermarks, transactions, truncation (RL 3.2 to 3.5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.log.batches import (
    NOW_MS,
    TP,
    all_batches,
    batch,
    config,
    marker,
    open_log,
    slice_bytes,
    values,
)
from tests.log.manual_worker import ManualWorker
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.errors import OffsetsOutOfOrder, UnexpectedAppendOffset
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFile, MemoryFileSystem
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log.reading import aborted_transactions
from twisted_broker.log.segment_file import SliceGone
from twisted_broker.log.verification import NOT_REQUIRED
from twisted_broker.log_config import LogConfig
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import BatchView, iterate_batches, set_offsets_and_epoch
from twisted_broker.wire.schema import run_whole


def new_log(**settings_: object) -> Log:
    files = MemoryFileSystem()
    files.make_directories("/data")
    return open_log(files, settings=config(**settings_))


def refused(code: ErrorCode, call: Callable[[], object]) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        call()
    assert caught.value.code == code
    return caught.value


def replicated(log: Log, offset: int, *contents: bytes, epoch: int = 0, **fields: object) -> bytes:
    """A batch as a leader's log holds it."""
    data = bytearray(batch(*contents, **fields))
    set_offsets_and_epoch(data, offset, epoch)
    return bytes(data)


# -- appends


def test_leader_gives_offsets_and_epoch_and_touches_nothing_else() -> None:
    """RL 3.2: base offset and leader epoch are rewritten; every other byte is the producer's."""
    log = new_log()
    sent = [batch(b"a", b"b"), batch(b"c", codec=4), batch(b"d", timestamp=NOW_MS - 5)]
    infos = [log.append_as_leader(one, 7, NOW_MS) for one in sent]
    assert [(info.first_offset, info.last_offset, info.log_append_time_ms) for info in infos] == [
        (0, 1, -1),
        (2, 2, -1),
        (3, 3, -1),
    ]
    kept = all_batches(log)
    assert [one.partition_leader_epoch for one in kept] == [7, 7, 7]
    for ours, theirs in zip(kept, sent, strict=True):
        whole = ours.to_bytes()
        assert whole[8:12] + whole[16:] == theirs[8:12] + theirs[16:]
    assert log.leader_epochs.entries() == [(7, 0)]


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_is_appended_and_left_alone(wrap: Callable[[bytes], bytes]) -> None:
    """RL 3.2: records may come as any buffer; the caller's bytes are not changed."""
    log, sent = new_log(), batch(b"a")
    log.append_as_leader(batch(b"first"), 0, NOW_MS)
    buffer = wrap(sent)
    log.append_as_leader(buffer, 3, NOW_MS)
    assert bytes(buffer) == sent and values(log) == [b"first", b"a"]


def test_control_batches_and_markers() -> None:
    """RL 3.2, 3.3: an end marker from the coordinator takes an offset; one of an old coordinator
    or producer epoch is refused.
    """
    log = new_log()
    open_transaction(log, 5, epoch=2)
    info = log.append_as_leader(
        marker(5, commit=True, epoch=2, coordinator_epoch=4),
        0,
        NOW_MS,
        origin=AppendOrigin.COORDINATOR,
    )
    assert info.first_offset == 1 and log.log_end_offset == 2
    refused(
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        lambda: log.append_as_leader(
            marker(5, commit=True, epoch=2, coordinator_epoch=3),
            0,
            NOW_MS,
            origin=AppendOrigin.COORDINATOR,
        ),
    )
    refused(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        lambda: log.append_as_leader(
            marker(5, commit=True, epoch=1, coordinator_epoch=5),
            0,
            NOW_MS,
            origin=AppendOrigin.COORDINATOR,
        ),
    )


def open_transaction(log: Log, producer_id: int, epoch: int = 0, sequence: int = 0) -> int:
    fields = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "base_sequence": sequence,
        "is_transactional": True,
    }
    return log.append_as_leader(batch(b"tx", **fields), 0, NOW_MS, guard=NOT_REQUIRED).first_offset


def end(log: Log, producer_id: int, commit: bool, epoch: int = 0) -> int:
    return log.append_as_leader(
        marker(producer_id, commit, epoch), 0, NOW_MS, origin=AppendOrigin.COORDINATOR
    ).first_offset


def test_a_transactional_batch_needs_the_coordinators_word() -> None:
    """RL 3.2: unverified transactional records are refused; once the transaction is open here
    they go on.
    """
    log = new_log()
    fields = {"producer_id": 5, "producer_epoch": 0, "is_transactional": True}
    refused(
        ErrorCode.INVALID_TXN_STATE,
        lambda: log.append_as_leader(batch(b"x", base_sequence=0, **fields), 0, NOW_MS),
    )
    assert log.log_end_offset == 0
    open_transaction(log, 5)
    log.append_as_leader(batch(b"x", base_sequence=1, **fields), 0, NOW_MS)
    refused(
        ErrorCode.INVALID_TXN_STATE,
        lambda: log.append_as_leader(
            batch(b"plain", producer_id=5, producer_epoch=0, base_sequence=2), 0, NOW_MS
        ),
    )


def test_follower_keeps_offsets_and_epochs() -> None:
    """RL 3.2: a follower's append keeps what came, several batches in one write, gaps included,
    and fills the epoch cache.
    """
    log = new_log()
    sent = (
        replicated(log, 0, b"a", b"b")
        + replicated(log, 2, b"c", epoch=1)
        + replicated(log, 9, b"d", epoch=3)
    )
    info = log.append_as_follower(sent, 3, NOW_MS)
    assert (info.first_offset, info.last_offset, info.records_count, info.bytes) == (
        0,
        9,
        4,
        len(sent),
    )
    assert b"".join(one.to_bytes() for one in all_batches(log)) == sent
    assert log.leader_epochs.entries() == [(0, 0), (1, 2), (3, 9)]
    assert slice_bytes(log.read(5, 1000)).endswith(sent[-20:])


def test_follower_refuses_what_does_not_continue() -> None:
    """RL 3.2: offsets below the end, or going back, are refused; nothing is written."""
    log = new_log()
    log.append_as_follower(replicated(log, 0, b"a", b"b"), 0, NOW_MS)
    with pytest.raises(UnexpectedAppendOffset) as caught:
        log.append_as_follower(replicated(log, 1, b"x"), 0, NOW_MS)
    assert caught.value.first_offset == 1
    with pytest.raises(OffsetsOutOfOrder):
        log.append_as_follower(replicated(log, 5, b"x") + replicated(log, 4, b"y"), 0, NOW_MS)
    assert log.log_end_offset == 2


def test_follower_drops_a_partial_tail_and_checks_crcs() -> None:
    """RL 3.2: a batch cut short at the end of a fetch is left for the next; a wrong CRC is
    CORRUPT_MESSAGE.
    """
    log = new_log()
    first, second = replicated(log, 0, b"a"), replicated(log, 1, b"b")
    assert log.append_as_follower(first + second[:40], 0, NOW_MS).last_offset == 0
    nothing = log.append_as_follower(second[:5], 0, NOW_MS)
    assert (nothing.first_offset, nothing.last_offset, nothing.bytes) == (-1, -1, 0)
    assert (nothing.max_timestamp, nothing.log_append_time_ms, nothing.records_count) == (-1, -1, 0)
    broken = bytearray(second)
    broken[-1] ^= 1
    refused(ErrorCode.CORRUPT_MESSAGE, lambda: log.append_as_follower(bytes(broken), 0, NOW_MS))
    assert log.log_end_offset == 1


@pytest.mark.parametrize("own", [0, 3])
def test_follower_stops_before_a_newer_epoch(own: int) -> None:
    """RL 3.2: batches of an epoch above the fetch's own are left out, with all behind them
    (Kafka 4.3.1).
    """
    log = new_log()
    info = log.append_as_follower(
        replicated(log, 0, b"a", epoch=own) + replicated(log, 1, b"b", epoch=own + 1), own, NOW_MS
    )
    assert info.last_offset == 0 and log.log_end_offset == 1


# -- rolling


def test_rolls_by_size_and_names_segments_by_offset() -> None:
    """RL 3.1: a batch that does not fit starts a new segment, named by its first offset; a
    snapshot is left there.
    """
    log = new_log(segment_bytes=400)
    for _ in range(10):
        log.append_as_leader(batch(100), 0, NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6, 8]
    assert all(segment.size <= 400 for segment in log.segments)
    assert {2, 4, 6, 8} <= log.producers.snapshots
    refused(ErrorCode.RECORD_LIST_TOO_LARGE, lambda: log.append_as_leader(batch(500), 0, NOW_MS))


def test_rolls_by_time_of_records_and_jitter() -> None:
    """RL 3.1: age is the time between the first batch and the next one's largest timestamp, less
    the jitter.
    """
    log = new_log(segment_ms=1000)
    log.append_as_leader(batch(1, timestamp=NOW_MS), 0, NOW_MS)
    log.append_as_leader(batch(1, timestamp=NOW_MS + 1000), 0, NOW_MS)
    assert len(log.segments) == 1
    log.append_as_leader(batch(1, timestamp=NOW_MS + 1001), 0, NOW_MS)
    assert len(log.segments) == 2
    log.segments.active.jitter_ms = 500
    log.append_as_leader(batch(1, timestamp=NOW_MS + 1502), 0, NOW_MS)
    assert len(log.segments) == 3


def test_rolls_by_age_when_records_carry_no_time() -> None:
    """RL 3.1: without timestamps the segment's own age counts."""
    log = new_log(segment_ms=1000)
    log.append_as_leader(batch(1, timestamp=-1), 0, NOW_MS)
    log.append_as_leader(batch(1, timestamp=-1), 0, NOW_MS + 1001)
    assert len(log.segments) == 2


def test_rolls_when_an_index_is_full() -> None:
    """RL 3.1: a full index starts a new segment."""
    log = new_log(segment_index_bytes=36, index_interval_bytes=0)
    for number in range(12):
        log.append_as_leader(batch(10, timestamp=NOW_MS + number), 0, NOW_MS + number)
    assert len(log.segments) > 2
    assert all(
        segment.offset_index.entries <= 4 and segment.time_index.entries <= 3
        for segment in log.segments
    )


@pytest.mark.parametrize("late_ms", [0, 1])
def test_a_segment_is_as_old_after_a_restart(late_ms: int) -> None:
    """RL 3.1: `segment.ms` counts from the first batch's time, which is read from the file."""
    log = new_log(segment_ms=1000)
    for later_ms in (0, 500):
        log.append_as_leader(batch(1, timestamp=NOW_MS + later_ms), 0, NOW_MS + later_ms)
    log.close()
    again = open_log(
        log.pool.files, settings=log.config, clean=True, recovery_point=2, wall_ms=NOW_MS + 900
    )
    at_ms = NOW_MS + 1000 + late_ms
    again.append_as_leader(batch(1, timestamp=at_ms), 0, at_ms)
    assert len(again.segments) == 1 + late_ms


def test_rolls_when_a_relative_offset_would_not_fit() -> None:
    """RL 3.1: offsets more than 2^31-1 above the base go to a new segment."""
    log = new_log()
    log.append_as_follower(replicated(log, 0, b"a"), 0, NOW_MS)
    log.append_as_follower(replicated(log, 2**31 - 1, b"b"), 0, NOW_MS)
    assert len(log.segments) == 1
    log.append_as_follower(replicated(log, 2**31, b"c"), 0, NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 2**31]
    assert values(log) == [b"a", b"b", b"c"]
    log = new_log()
    fetched = [replicated(log, offset, b"v") for offset in (0, 2**31 - 1, 2**31)]
    log.append_as_follower(b"".join(fetched), 0, NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 2**31], "in one answer"


def test_roll_of_an_empty_segment_changes_nothing() -> None:
    """RL 3.1: an empty active segment is not rolled."""
    log = new_log()
    log.roll(NOW_MS)
    assert len(log.segments) == 1
    log.append_as_leader(batch(1), 0, NOW_MS)
    log.roll(NOW_MS)
    log.roll(NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_index_entries_follow_the_interval() -> None:
    """RL 3.2: an entry comes with the first batch after more than the interval; it says last
    offset and first byte.
    """
    log = new_log(index_interval_bytes=250)
    sizes = [
        log.append_as_leader(batch(b"x" * 50, b"y"), 0, NOW_MS + number).bytes
        for number in range(12)
    ]
    size = sizes[0]
    per_entry = 250 // size + 1
    assert log.segments.active.offset_index.pairs() == [
        (2 * row + 1, row * size) for row in range(per_entry, 12, per_entry)
    ]


# -- reads


def test_read_bounds() -> None:
    """RL 3.3: the end is empty, outside is OFFSET_OUT_OF_RANGE, above the reader's bound is
    empty.
    """
    log = new_log()
    for _ in range(5):
        log.append_as_leader(batch(10), 0, NOW_MS)
    assert log.read(5, 100).slice is None
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: log.read(6, 100))
    log.set_high_watermark(3)
    log.increment_log_start_offset(2)
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: log.read(1, 100))
    bound = log.watermarks.high_watermark_metadata
    assert [one.base_offset for one in iterate_batches(slice_bytes(log.read(2, 1000, bound)))] == [
        2
    ]
    assert log.read(3, 100, bound).slice is None and log.read(4, 100, bound).slice is None
    assert log.read(3, 100, bound).fetch_offset_metadata == bound
    assert log.read(2, 1000, LogOffsetMetadata(3)).slice is not None


def test_read_sizes() -> None:
    """RL 3.3: at least one whole batch when asked so, else a first batch that is cut and says
    so; more batches are cut at the limit.
    """
    log = new_log()
    size = log.append_as_leader(batch(100), 0, NOW_MS).bytes
    log.append_as_leader(batch(100), 0, NOW_MS)
    assert len(slice_bytes(log.read(0, 1))) == size
    cut = log.read(0, size - 1, min_one_message=False)
    assert cut.first_entry_incomplete and len(slice_bytes(cut)) == size - 1
    assert not log.read(2, size - 1, min_one_message=False).first_entry_incomplete
    assert log.read(0, 0, min_one_message=False).slice is None
    assert len(slice_bytes(log.read(0, size + 30))) == size + 30
    assert len(slice_bytes(log.read(0, 10 * size))) == 2 * size


def test_a_read_stays_in_one_segment() -> None:
    """RL 3.3: however much is asked for, it ends with the segment; the next read begins there."""
    log = new_log(segment_bytes=300)
    while len(log.segments) < 3:
        log.append_as_leader(batch(100), 0, NOW_MS)
    read: list[BatchView] = []
    offset = 0
    for segment in list(log.segments):
        found = slice_bytes(log.read(offset, 1 << 20))
        assert len(found) == segment.size
        read += list(iterate_batches(found))
        offset = read[-1].last_offset + 1
    assert [one.base_offset for one in read] == list(range(log.log_end_offset))


def test_a_read_loads_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """RL 3.3: only headers are read to find the place; the bytes are read from the slice, and are
    those of the file at that time.
    """
    log = new_log(index_interval_bytes=1 << 20)
    for _ in range(20):
        log.append_as_leader(batch(10_000), 0, NOW_MS)
    loaded: list[int] = []
    real = MemoryFile.read_at
    monkeypatch.setattr(
        MemoryFile,
        "read_at",
        lambda self, at, length: loaded.append(length) or real(self, at, length),
    )
    found = log.read(15, 1 << 20)
    assert found.slice is not None and found.slice.length > 50_000
    assert sum(loaded) < 20_000
    loaded.clear()
    assert BatchView(slice_bytes(found)).base_offset == 15
    assert sum(loaded) == found.slice.length


def test_read_finds_the_batch_that_holds_an_offset() -> None:
    """RL 3.3: reading from the middle of a batch gives the whole batch; of a gap, the batch
    behind it.
    """
    log = new_log(index_interval_bytes=100, segment_bytes=2000)
    offset = 0
    for number in range(40):
        log.append_as_follower(replicated(log, offset, *[b"v%d" % number] * 3), 0, NOW_MS)
        offset += 3 + number % 2 * 4
    bases = [one.base_offset for one in all_batches(log)]
    for wanted in range(offset - 1 if 39 % 2 == 0 else log.log_end_offset):
        found = BatchView(slice_bytes(log.read(wanted, 1)))
        assert found.base_offset == max(
            (base for base in bases if base <= wanted), default=0
        ) or found.base_offset == min(base for base in bases if base >= wanted)
        assert found.last_offset >= wanted


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=60),
    interval=st.sampled_from([0, 100, 4096]),
    segment_bytes=st.sampled_from([600, 5000, 1 << 20]),
    seed=st.randoms(use_true_random=False),
)
def test_every_offset_is_found_in_every_state(
    counts: list[int], interval: int, segment_bytes: int, seed: object
) -> None:
    """RL 3.3: whatever the batches, segments and indexes, before and after a reload, offset o is
    read from the batch that holds it.
    """
    files = MemoryFileSystem()
    files.make_directories("/data")
    chosen = config(index_interval_bytes=interval, segment_bytes=segment_bytes)
    log = open_log(files, settings=chosen)
    for number, count in enumerate(counts):
        log.append_as_leader(batch(*[b"%d" % number] * count), 0, NOW_MS)
    owners = [number for number, count in enumerate(counts) for _ in range(count)]
    for current in (
        log,
        open_log(files, settings=chosen),
        open_log(files, settings=chosen, clean=True),
    ):
        assert current.log_end_offset == len(owners)
        for offset, owner in enumerate(owners):
            info = current.read(offset, 1)
            assert next(BatchView(slice_bytes(info)).records()).value == b"%d" % owner
            assert current.offset_metadata(offset) == info.fetch_offset_metadata


def test_a_slice_outlives_retention_but_not_truncation() -> None:
    """docs/ARCHITECTURE.md 7: a referenced slice of a deleted segment is still read; one of a
    cut segment is gone.
    """
    log = new_log(segment_bytes=300)
    for number in range(6):
        log.append_as_leader(batch(b"%03d" % number + bytes(97)), 0, NOW_MS)
    old, new = log.read(0, 1).slice, log.read(5, 1).slice
    assert old is not None and new is not None
    log.set_high_watermark(6)
    log.increment_log_start_offset(4)
    assert log.delete_old_segments(NOW_MS) == 4
    assert next(BatchView(old.read()).records()).value == b"000" + bytes(97)
    log.truncate_to(4, NOW_MS)
    with pytest.raises(SliceGone):
        new.read()
    for one in (old, new):
        one.release()
        one.release()


def test_a_slice_never_shows_what_was_written_over_it() -> None:
    """docs/ARCHITECTURE.md 7: after a cut and new appends of the same size the old slice is
    gone, however well its length fits.
    """
    log = new_log()
    log.append_as_leader(batch(b"old"), 0, NOW_MS)
    held = log.read(0, 1000).slice
    assert held is not None
    log.truncate_to(0, NOW_MS)
    log.append_as_leader(batch(b"new"), 1, NOW_MS)
    with pytest.raises(SliceGone):
        held.read()
    held.release()


def test_publishing_comes_after_writing() -> None:
    """RL 3.3: bytes behind the published end are never read, even when they are in the file."""
    log = new_log()
    log.append_as_leader(batch(10), 0, NOW_MS)
    active = log.segments.active
    active.log.open().write_at(active.size, (b"\xff" * 500,))
    assert len(slice_bytes(log.read(0, 10_000))) == active.size
    log.append_as_leader(batch(20), 0, NOW_MS)
    assert len(all_batches(log)) == 2


# -- watermarks and transactions


def test_high_watermark_stays_within_the_log() -> None:
    """RL 2.2: the high watermark is clamped to [log start, log end]; its place is looked up when
    only the offset is known.
    """
    log = new_log()
    for _ in range(4):
        log.append_as_leader(batch(10), 0, NOW_MS)
    log.set_high_watermark(99)
    assert (
        log.high_watermark == 4 and log.watermarks.high_watermark_metadata == log.segments.log_end
    )
    log.set_high_watermark(2)
    assert (
        log.watermarks.high_watermark_metadata == log.offset_metadata(2)
        and log.watermarks.high_watermark_metadata.known
    )
    log.increment_log_start_offset(2)
    log.set_high_watermark(0)
    assert log.high_watermark == 2


def test_last_stable_offset() -> None:
    """RL 3.3: readers of committed data stop at the first open transaction, or one whose marker
    is not below the high watermark.
    """
    log = new_log()
    log.append_as_leader(batch(1), 0, NOW_MS)
    open_transaction(log, 1)
    open_transaction(log, 2)
    log.set_high_watermark(log.log_end_offset)
    assert (log.last_stable_offset, log.high_watermark) == (1, 3)
    assert log.watermarks.last_stable_metadata == log.offset_metadata(1)
    end(log, 1, commit=True)
    assert log.last_stable_offset == 1
    log.set_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 2
    end(log, 2, commit=False)
    log.set_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.high_watermark == 5
    assert [
        (entry.first_offset, entry.last_offset, entry.last_stable_offset)
        for entry in aborted_transactions(log.segments, 0, 5)
    ] == [(2, 4, 5)]


def test_a_read_of_committed_data_lists_the_aborted_transactions_in_it() -> None:
    """RL 3.3: the aborted transactions that touch the bytes read, over segments, and no others
    far behind.
    """
    log = new_log(segment_bytes=300, index_interval_bytes=0)
    for producer_id in range(1, 13):
        open_transaction(log, producer_id)
        end(log, producer_id, commit=producer_id % 2 == 0)
    log.set_high_watermark(log.log_end_offset)
    everything = aborted_transactions(log.segments, 0, log.log_end_offset)
    assert [entry.producer_id for entry in everything] == [1, 3, 5, 7, 9, 11]
    info = log.read(8, 1, log.watermarks.last_stable_metadata, read_committed=True)
    assert info.aborted is not None and 5 in {entry.producer_id for entry in info.aborted}
    assert len(info.aborted) <= 2
    slice_bytes(info)
    assert (
        log.read(
            log.log_end_offset, 1, log.watermarks.last_stable_metadata, read_committed=True
        ).aborted
        == []
    )
    plain = log.read(8, 1)
    assert plain.aborted is None
    slice_bytes(plain)


def test_truncation_reopens_a_transaction() -> None:
    """RL 3.5: cutting a marker away makes its transaction open again and drops the aborted
    entry.
    """
    log = new_log()
    open_transaction(log, 1)
    end(log, 1, commit=False)
    log.set_high_watermark(2)
    assert log.last_stable_offset == 2
    log.truncate_to(1, NOW_MS)
    assert aborted_transactions(log.segments, 0, 9) == [] and log.producers.ongoing == {0: 1}
    log.set_high_watermark(1)
    assert log.last_stable_offset == 0


def test_log_start_passes_an_open_transaction() -> None:
    """RL 3.3: the last stable offset never lies below the log start."""
    log = new_log()
    open_transaction(log, 1)
    log.append_as_leader(batch(1), 0, NOW_MS)
    log.append_as_leader(batch(1), 0, NOW_MS)
    log.set_high_watermark(3)
    log.increment_log_start_offset(2)
    assert log.last_stable_offset == 2


# -- offsets by time


def test_offset_by_timestamp() -> None:
    """RL 3.4: the first record with a timestamp at or above the one asked, inside batches, over
    segments, below the bound.
    """
    log = new_log(segment_bytes=500, index_interval_bytes=0)
    for number in range(20):
        log.append_as_leader(
            batch(b"a" * 40, b"b" * 40, timestamp=NOW_MS + number * 10, step_ms=5), 3, NOW_MS
        )
    for asked, offset in (
        (0, 0),
        (NOW_MS + 1, 1),
        (NOW_MS + 5, 1),
        (NOW_MS + 100, 20),
        (NOW_MS + 195, 39),
    ):
        found = run_whole(log.find_offset_by_timestamp(asked))
        assert found is not None and (found.offset, found.leader_epoch) == (offset, 3)
    assert run_whole(log.find_offset_by_timestamp(NOW_MS + 196)) is None
    assert run_whole(log.find_offset_by_timestamp(NOW_MS + 195, 39)) is None
    log.set_high_watermark(30)
    log.increment_log_start_offset(7)
    found = run_whole(log.find_offset_by_timestamp(0))
    assert found is not None and (found.offset, found.timestamp) == (7, NOW_MS + 35)


def test_offset_of_the_largest_timestamp() -> None:
    """RL 3.4: ListOffsets -3 names the first record with the largest timestamp, wherever it is."""
    log = new_log(segment_bytes=400)
    assert run_whole(log.max_timestamp_offset()) is None
    for timestamp in (5, 9, 3, 9, 1):
        log.append_as_leader(batch(100, timestamp=NOW_MS + timestamp), 0, NOW_MS)
    found = run_whole(log.max_timestamp_offset())
    assert found is not None and (found.offset, found.timestamp) == (1, NOW_MS + 9)


# -- truncation and log start


def test_truncate_to() -> None:
    """RL 3.5: segments above go, the active one is cut, epochs, producers, recovery point and
    high watermark follow.
    """
    log = new_log(segment_bytes=300)
    for number in range(12):
        log.append_as_leader(
            batch(
                b"%02d" % number + bytes(98), producer_id=1, producer_epoch=0, base_sequence=number
            ),
            number // 4,
            NOW_MS,
        )
    log.set_high_watermark(11)
    log.durability.flush()
    cuts: list[Log] = []
    log.on_truncated = cuts.append
    assert log.durability.recovery_point == 12
    assert log.truncate_to(5, NOW_MS)
    assert (log.log_end_offset, log.high_watermark, log.durability.recovery_point) == (5, 5, 5)
    assert log.leader_epochs.entries() == [(0, 0), (1, 4)]
    assert not log.truncate_to(5, NOW_MS)
    assert log.producers.producers[1].last_sequence == 4
    assert cuts == [log]
    assert max(log.producers.snapshots) <= 5
    info = log.append_as_leader(
        batch(b"again", producer_id=1, producer_epoch=0, base_sequence=5), 4, NOW_MS
    )
    assert info.first_offset == 5 and len(values(log)) == 6


def test_truncate_into_a_batch_drops_the_batch() -> None:
    """RL 3.5: a batch is whole or gone; the log end is still the offset asked, as in Kafka."""
    log = new_log()
    log.append_as_leader(batch(b"a", b"b", b"c"), 0, NOW_MS)
    log.append_as_leader(batch(b"d", b"e", b"f"), 0, NOW_MS)
    log.truncate_to(4, NOW_MS)
    assert log.log_end_offset == 4
    assert [one.base_offset for one in iterate_batches(slice_bytes(log.read(0, 1000)))] == [0]


def test_truncate_below_the_first_segment_and_fully() -> None:
    """RL 3.5: a cut below all segments, or `truncate_fully_and_start_at`, leaves one empty
    segment at the offset.
    """
    log = new_log(segment_bytes=300)
    for _ in range(8):
        log.append_as_leader(batch(100), 2, NOW_MS)
    log.truncate_fully_and_start_at(50, NOW_MS)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (
        50,
        50,
        50,
    ) and log.durability.recovery_point <= 50
    assert [segment.base_offset for segment in log.segments] == [50]
    assert log.leader_epochs.entries() == [] and not log.producers.snapshots
    log.append_as_leader(batch(100), 2, NOW_MS)
    log.truncate_to(20, NOW_MS)
    assert (log.log_start_offset, log.log_end_offset) == (20, 20)


def test_log_start() -> None:
    """RL 2.8: the log start only rises, never past the high watermark, and epochs follow."""
    log = new_log()
    for number in range(6):
        log.append_as_leader(batch(10), number // 2, NOW_MS)
    log.set_high_watermark(4)
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: log.increment_log_start_offset(5))
    assert log.increment_log_start_offset(3) and not log.increment_log_start_offset(3)
    assert log.leader_epochs.entries() == [(1, 3), (2, 4)]


def test_end_offset_for_epoch() -> None:
    """RL 6.3: the end of the epoch asked, or of the one below it."""
    log = new_log()
    for epoch in (1, 1, 4, 6):
        log.append_as_leader(batch(10), epoch, NOW_MS)
    assert [log.end_offset_for_epoch(epoch) for epoch in (0, 1, 2, 5, 6, 7, -1)] == [
        (0, 0),
        (1, 2),
        (1, 2),
        (4, 3),
        (6, 4),
        (-1, -1),
        (-1, -1),
    ]


def test_settings_act_while_running() -> None:
    """RL 1.11: a changed setting acts on the next append."""
    log = new_log()
    log.append_as_leader(batch(500), 0, NOW_MS)
    log.update_config(config(max_message_bytes=400))
    refused(ErrorCode.MESSAGE_TOO_LARGE, lambda: log.append_as_leader(batch(500), 0, NOW_MS))
    log.update_config(config(message_timestamp_type="LogAppendTime"))
    assert log.append_as_leader(batch(5), 0, NOW_MS + 7).log_append_time_ms == NOW_MS + 7


def test_flush_by_messages() -> None:
    """Kafka's flush.messages: after so many records the log syncs itself."""
    log = new_log(flush_messages=3)
    points = []
    for _ in range(7):
        log.append_as_leader(batch(10), 0, NOW_MS)
        points.append(log.durability.recovery_point)
    assert points == [0, 0, 3, 3, 3, 6, 6]


def test_flush_by_messages_as_a_follower() -> None:
    """Kafka's flush.messages: what a replica fetches counts, too."""
    log = new_log(flush_messages=3)
    points = []
    for offset in range(7):
        log.append_as_follower(replicated(log, offset, b"v"), 0, NOW_MS)
        points.append(log.durability.recovery_point)
    assert points == [0, 0, 3, 3, 3, 6, 6]


def test_preallocated_segments_are_trimmed() -> None:
    """RL 3.1: with `preallocate` a segment's file has its full size while written and its own
    size once rolled or closed.
    """
    files = MemoryFileSystem()
    files.make_directories("/data")
    log = open_log(files, settings=config(preallocate=True, segment_bytes=2000))
    log.append_as_leader(batch(100), 0, NOW_MS)
    path = log.segments.active.log.path
    assert files.size(path) == 2000
    size = log.segments.active.size
    log.roll(NOW_MS)
    assert files.size(path) == size
    log.append_as_leader(batch(100), 0, NOW_MS)
    assert open_log(files, settings=LogConfig()).log_end_offset == 2


@pytest.mark.parametrize("end", ["roll", "close"])
def test_a_trimmed_tail_does_not_come_back(end: str) -> None:
    """RELIABILITY 6.2: what was synced before the segment was rolled (or closed) does not cover the
    trim; after a loss of power its file, which is trusted, ends with its records.
    """
    disk = SimDisk()
    disk.make_directories("/data")
    log = open_log(disk, settings=config(preallocate=True, segment_bytes=2000, flush_messages=1))
    log.append_as_leader(batch(100), 0, NOW_MS)
    size, path = log.segments.active.size, log.segments.active.log.path
    assert log.durability.recovery_point == 1
    disk.sync_all()
    if end == "roll":
        log.roll(NOW_MS)
    else:
        log.close()
    assert log.durability.recovery_point == 1
    assert len(disk.after_power_loss(keep=0).content(path)) == size


@pytest.mark.parametrize("is_killed_first", [False, True])
@pytest.mark.parametrize("change", ["trim", "truncation"])
def test_what_changed_with_a_roll_does_not_come_back(change: str, is_killed_first: bool) -> None:
    """RL 6.6, RELIABILITY 6.2: a segment ends where the recovery point was checkpointed, is changed
    and rolled there, and nothing is synced any more. Whatever comes then, no start trusts what a
    loss of power makes of its file (seed 453247).
    """
    disk, worker = SimDisk(), ManualWorker()
    disk.make_directories("/data")
    settings_ = config(preallocate=change == "trim", segment_bytes=2000, flush_messages=1)
    log = open_log(disk, settings=settings_)
    log.attach(worker, None)
    contents = [b"%d" % number for number in range(4)]
    for content in contents if change == "truncation" else contents[:2]:
        log.append_as_leader(batch(content), 0, NOW_MS)
        worker.run_all()
    log.set_high_watermark(2)
    checkpoint = log.durability.point_in_write()
    log.durability.point_written(*checkpoint)
    disk.sync_all()
    log.truncate_to(2)
    log.roll(NOW_MS)
    disk.sync_directory(log.directory)
    if is_killed_first:
        disk = disk.after_kill()
        log = open_log(disk, settings=settings_, recovery_point=checkpoint[0])
        log.append_as_leader(batch(b"new"), 1, NOW_MS)
        log.set_high_watermark(log.log_end_offset)
        checkpoint = log.durability.point_in_write()
        assert log.durability.recovery_point == 3
    disk = disk.after_power_loss(keep=0)
    log = open_log(disk, settings=config(), recovery_point=checkpoint[0])
    expected = [b"0", b"1", b"new"] if is_killed_first else contents
    assert values(log) == expected[: log.log_end_offset] and log.log_end_offset >= 2


def test_many_logs_share_few_open_files() -> None:
    """open segment files are bounded; what was closed is opened again when needed."""
    files = MemoryFileSystem()
    files.make_directories("/data")
    logs = [open_log(files, f"/data/events-{number}") for number in range(3)]
    pool = logs[0].pool
    for log in logs[1:]:
        log.pool = pool
    for round_ in range(30):
        logs[0].append_as_leader(batch(b"%d" % round_), 0, NOW_MS)
        logs[0].roll(NOW_MS)
    assert len(pool) <= pool.capacity + 4
    assert values(logs[0]) == [b"%d" % number for number in range(30)]
    assert str(TP) == "events-0"
