"""What stays of a batch (Kafka's CleanerTest, MemoryRecordsTest as behaviours)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.batches import NOW_MS, marker
from tests.log.cleaner.rounds import batch_of
from twisted_broker.log.cleaner.batch_filter import BatchFilter, LastRecord
from twisted_broker.log.cleaner.cleaned_transactions import CleanedTransactions
from twisted_broker.log.cleaner.offset_map import TOMBSTONE, OffsetMap
from twisted_broker.log.txn_index import AbortedTxn
from twisted_broker.settings import LONG_MAX
from twisted_broker.wire.records import (
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchBuilder,
    BatchView,
)

RETENTION_MS = 1000
UPPER = 100


def filter_of(
    newest: dict[bytes, int] | None = None,
    latest: int = 99,
    aborted: Iterable[AbortedTxn] = (),
    last: dict[int, LastRecord] | None = None,
    wall_ms: int = NOW_MS,
    upper: int = UPPER,
    retention_ms: int = RETENTION_MS,
) -> BatchFilter:
    offsets = OffsetMap(64)
    for key, offset in (newest or {}).items():
        offsets.put(key, offset)
    offsets.latest_offset = latest
    transactions = CleanedTransactions(aborted)
    return BatchFilter(offsets, transactions, last or {}, upper, wall_ms, retention_ms)


def left(chosen: BatchFilter, data: bytes) -> BatchView | None:
    found = chosen.filter(BatchView(data))
    if found is None:
        return None
    view = BatchView(bytes(found))
    assert view.is_valid_crc()
    return view


def must_stay(chosen: BatchFilter, data: bytes) -> BatchView:
    found = left(chosen, data)
    assert found is not None
    return found


def records(view: BatchView) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(each.offset, each.key, each.value) for each in view.records()]


def test_a_batch_of_which_nothing_goes_keeps_its_bytes() -> None:
    data = batch_of((b"a", b"1"), (b"b", b"2"), base_offset=5, codec=2)
    found = left(filter_of({b"a": 5, b"b": 6}), data)
    assert found is not None and found.to_bytes() == data


KEYS = st.sampled_from([b"a", b"b", b"c", None])
PAIRS = st.lists(st.tuples(KEYS, st.sampled_from([b"1", None])), min_size=1, max_size=6)


@given(
    batches=st.lists(PAIRS, min_size=1, max_size=5), first=st.integers(0, 8), unread=st.booleans()
)
def test_marks_decide_as_the_records_do(
    batches: list[list[tuple[bytes | None, bytes | None]]], first: int, unread: bool
) -> None:
    """The same bytes with marks, which spare reading the records, and without; with tombstones,
    records without a key, batches that are partly clean or partly above the map.
    """
    base, written = 0, []
    for pairs in batches:
        written.append(batch_of(*pairs, base_offset=base))
        base += len(pairs)
    with_marks, without = OffsetMap(64, first, base), OffsetMap(64)
    every = [
        (offset, pair) for offset, pair in enumerate(pair for some in batches for pair in some)
    ]
    for offset, (key, value) in every[first : len(every) - unread]:
        for each in (with_marks, without):
            each.latest_offset = offset
            if key is not None:
                each.put(key, offset)
        if key is not None and value is None:
            assert with_marks.marks is not None
            with_marks.marks[offset - first] = TOMBSTONE
    with_marks.mark_newest()
    results: list[list[Any]] = []
    for offsets in (with_marks, without):
        chosen = BatchFilter(offsets, CleanedTransactions(()), {}, base, NOW_MS, RETENTION_MS)
        found = [chosen.filter(BatchView(each)) for each in written]
        results.append([each if each is None else bytes(each) for each in found])
        results.append([chosen.kept_records])
    assert results[:2] == results[2:]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_what_goes_leaves_offsets_sequences_and_epoch(codec: int) -> None:
    data = batch_of(
        (b"a", b"1"),
        (b"b", b"2"),
        (b"c", b"3"),
        base_offset=5,
        codec=codec,
        producer_id=7,
        producer_epoch=2,
        base_sequence=40,
        leader_epoch=3,
    )
    found = must_stay(filter_of({b"a": 50, b"b": 6, b"c": 51}), data)
    assert records(found) == [(6, b"b", b"2")]
    assert (found.base_offset, found.last_offset, found.records_count) == (5, 7, 1)
    assert (found.producer_id, found.producer_epoch) == (7, 2)
    assert (found.base_sequence, found.last_sequence) == (40, 42)
    assert (found.partition_leader_epoch, found.codec) == (3, codec)


def test_timestamps_stay() -> None:
    stamped: dict[str, Any] = {"timestamp_type": LOG_APPEND_TIME, "log_append_time_ms": 77}
    found = must_stay(filter_of({b"a": 9, b"b": 1}), batch_of((b"a", b""), (b"b", b""), **stamped))
    assert [each.timestamp for each in found.records()] == [77]
    assert found.max_timestamp == 77
    found = must_stay(filter_of({b"a": 9, b"b": 1}), batch_of((b"a", b""), (b"b", b"")))
    assert [each.timestamp for each in found.records()] == [NOW_MS]


def test_records_above_the_end_of_the_map_stay() -> None:
    """Their keys may be in it with newer offsets: the map ended in the middle of a batch."""
    data = batch_of((b"a", b"1"), (b"a", b"2"), base_offset=10)
    found = must_stay(filter_of({b"a": 11}, latest=9), data)
    assert len(records(found)) == 2


def test_a_record_without_a_key_goes() -> None:
    data = batch_of((None, b"1"), (b"a", b"2"))
    assert records(must_stay(filter_of({b"a": 1}), data)) == [(1, b"a", b"2")]


def test_a_tombstone_goes_when_its_horizon_is_over() -> None:
    """RL 3.7, KIP-534: the first round that meets it sets the horizon, a later one takes it."""
    first = must_stay(filter_of({b"a": 0}), batch_of((b"a", None)))
    assert first.delete_horizon_ms == NOW_MS + RETENTION_MS
    assert [each.timestamp for each in first.records()] == [NOW_MS]
    before = NOW_MS + RETENTION_MS - 1
    again = must_stay(filter_of({b"a": 0}, wall_ms=before), first.to_bytes())
    assert again.to_bytes() == first.to_bytes()
    assert left(filter_of({b"a": 0}, wall_ms=before + 1), first.to_bytes()) is None


def test_what_is_rebuilt_under_a_horizon_keeps_it() -> None:
    first = must_stay(filter_of({b"a": 0, b"b": 1}), batch_of((b"a", None), (b"b", b"2")))
    later = must_stay(filter_of({b"a": 0, b"b": 9}, wall_ms=NOW_MS + 10), first.to_bytes())
    assert records(later) == [(0, b"a", None)]
    assert later.delete_horizon_ms == first.delete_horizon_ms
    assert [each.timestamp for each in later.records()] == [NOW_MS]


@pytest.mark.parametrize("timestamp", [NO_TIMESTAMP, 0, NOW_MS, LONG_MAX])
def test_a_tombstone_that_stays_for_ever(timestamp: int) -> None:
    """`delete.retention.ms` up to 2^63-1: the horizon, and what lies between it and any timestamp,
    has a place in a batch.
    """
    data = batch_of((b"a", None), (b"b", b"1"), timestamp=timestamp)
    found = must_stay(filter_of(retention_ms=LONG_MAX), data)
    assert found.delete_horizon_ms == 2**62
    assert [each.timestamp for each in found.records()] == [timestamp] * 2
    assert must_stay(filter_of(wall_ms=NOW_MS + 10**15), found.to_bytes()).records_count == 2


def test_transactional_records_without_a_producer_are_written_anew() -> None:
    """Of a log that has them already: they are of no transaction."""
    builder = BatchBuilder()
    builder.attributes |= TRANSACTIONAL_FLAG
    for key in (b"a", b"b"):
        builder.append(NOW_MS, key, b"1")
    found = must_stay(filter_of({b"a": 9, b"b": 1}), builder.build())
    assert records(found) == [(1, b"b", b"1")] and not found.is_transactional


def test_times_that_a_producer_chose_2_63_ms_apart() -> None:
    """A topic takes them (`message.timestamp.before.max.ms`): what is replaced goes all the same,
    and the tombstone stays, as no horizon is within 2^63 of it.
    """
    builder, far_ms = BatchBuilder(), NOW_MS - LONG_MAX
    for timestamp, key, value in (
        (0, b"a", b"1"),
        (NOW_MS, b"b", b"2"),
        (far_ms, b"c", None),
        (far_ms, b"d", b"3"),
    ):
        builder.append(timestamp, key, value)
    data = builder.build()
    found = must_stay(filter_of({b"a": 9, b"b": 1, b"c": 2, b"d": 9}), data)
    assert records(found) == [(1, b"b", b"2"), (2, b"c", None)]
    assert [each.timestamp for each in found.records()] == [NOW_MS, far_ms]
    assert found.delete_horizon_ms is None and found.max_timestamp == NOW_MS
    much_later = filter_of({b"b": 9, b"c": 2}, wall_ms=NOW_MS + 10**15)
    again = must_stay(much_later, found.to_bytes())
    assert [(each.key, each.timestamp) for each in again.records()] == [(b"c", far_ms)]


def test_a_horizon_that_a_producer_chose() -> None:
    """Times begin at it in what it sent (a topic with LogAppendTime looks at none of them)."""
    builder = BatchBuilder(
        timestamp_type=LOG_APPEND_TIME, log_append_time_ms=NOW_MS, delete_horizon_ms=-(2**63)
    )
    for key, value in ((b"a", b"1"), (b"b", b"2"), (b"c", None)):
        builder.append(-(2**63), key, value)
    found = must_stay(filter_of({b"a": 9, b"b": 1, b"c": 2}), builder.build())
    assert records(found) == [(1, b"b", b"2")]
    assert [each.timestamp for each in found.records()] == [NOW_MS]


def test_the_last_batch_of_a_producer_stays_empty() -> None:
    data = batch_of((b"a", b"1"), producer_id=7, producer_epoch=1, base_sequence=3)
    found = must_stay(filter_of({b"a": 9}, last={7: LastRecord(0, 1)}), data)
    assert (found.records_count, found.last_sequence, found.producer_epoch) == (0, 3, 1)
    assert left(filter_of({b"a": 9}, last={7: LastRecord(5, 1)}), data) is None
    assert left(filter_of({b"a": 9}, last={8: LastRecord(0, 1)}), data) is None
    # An empty batch that is cleaned again.
    assert must_stay(filter_of(last={7: LastRecord(0, 1)}), found.to_bytes()).records_count == 0
    assert left(filter_of(last={7: LastRecord(5, 1)}), found.to_bytes()) is None


def test_the_last_batch_of_the_range_stays_empty() -> None:
    data = batch_of((b"a", b"1"), (b"a", b"2"), base_offset=8)
    found = must_stay(filter_of({b"a": 50}, upper=10), data)
    assert (found.base_offset, found.last_offset, found.records_count) == (8, 9, 0)


def test_records_of_an_aborted_transaction_go_and_its_marker_waits() -> None:
    """RL 3.7, KIP-98: the marker stays while a record of its transaction is below it; KIP-534: then
    for the time of a tombstone.
    """
    data = batch_of(
        (b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    end = marker(7, commit=False, offset=1)
    entry = AbortedTxn(7, 0, 1, 2)
    chosen = filter_of({b"a": 0}, aborted=[entry])
    assert left(chosen, data) is None
    assert must_stay(chosen, end).to_bytes() == end
    assert chosen._transactions.take_left() == [entry]
    # The next round meets no record of it.
    second = filter_of(aborted=[entry])
    found = must_stay(second, end)
    assert found.delete_horizon_ms == NOW_MS + RETENTION_MS
    assert not second._transactions.take_left()
    assert records(found) == records(BatchView(end))
    assert left(filter_of(wall_ms=NOW_MS + RETENTION_MS), found.to_bytes()) is None


def test_a_commit_marker_waits_for_its_records() -> None:
    data = batch_of(
        (b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    end = marker(7, commit=True, offset=1)
    chosen = filter_of({b"a": 0})
    assert must_stay(chosen, data).to_bytes() == data
    assert must_stay(chosen, end).to_bytes() == end
    assert must_stay(filter_of(), end).delete_horizon_ms == NOW_MS + RETENTION_MS


def test_the_marker_that_alone_holds_a_producers_epoch_stays() -> None:
    end = marker(7, commit=True, epoch=4, offset=1)
    first = must_stay(filter_of(last={7: LastRecord(-1, 4)}), end)
    late = NOW_MS + 10 * RETENTION_MS
    found = must_stay(filter_of(last={7: LastRecord(-1, 4)}, wall_ms=late), first.to_bytes())
    assert (found.records_count, found.producer_epoch, found.is_control) == (0, 4, True)
    assert left(filter_of(last={7: LastRecord(-1, 5)}, wall_ms=late), first.to_bytes()) is None
    # An empty control batch goes when nobody needs it.
    assert left(filter_of(last={7: LastRecord(-1, 5)}, wall_ms=late), found.to_bytes()) is None
