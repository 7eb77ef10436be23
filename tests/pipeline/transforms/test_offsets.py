"""Offsets and counts of batch headers."""

from __future__ import annotations

from replog_pipeline.transforms.offsets import (
    count_faults,
    misplaced,
    offset_faults,
    shows_compaction,
)
from tests.pipeline.header_tables import batch, table
from twisted_broker.wire.records import DELETE_HORIZON_FLAG


def kinds(faults):
    return [(fault.kind, fault.row) for fault in faults]


def test_offsets_one_after_the_other_are_fine():
    assert (
        kinds(offset_faults(table(batch(5), batch(15), batch(25, 1), batch(26)), compacted=False))
        == []
    )


def test_a_hole_is_a_gap_unless_the_log_is_compacted():
    rows = table(batch(0), batch(12), batch(22))
    (fault,) = offset_faults(rows, compacted=False)
    assert fault == ("gap", 1, "offsets 10..11 are missing")
    assert kinds(offset_faults(rows, compacted=True)) == []


def test_offsets_that_come_twice_and_offsets_that_go_back():
    rows = table(batch(0), batch(10), batch(10), batch(20), batch(0), batch(30))
    assert kinds(offset_faults(rows, compacted=False)) == [("duplicate", 2), ("order", 4)]
    assert kinds(offset_faults(rows, compacted=True)) == [("duplicate", 2), ("order", 4)]


def test_counts_must_fit_the_offsets_and_a_cleaner_takes_some():
    rows = table(
        batch(0), batch(10, recordCount=9), batch(20, recordCount=11), batch(30, recordCount=0)
    )
    assert kinds(count_faults(rows, compacted=False)) == [("count", 1), ("count", 2), ("count", 3)]
    assert kinds(count_faults(rows, compacted=True)) == [("count", 2)]


def test_a_segment_has_the_offsets_of_its_name():
    rows = table(batch(90), batch(100), batch(195))
    assert kinds(misplaced(rows, 100, 200)) == [("order", 0), ("order", 2)]
    assert kinds(misplaced(rows, 90, None)) == []


def test_what_only_a_cleaner_does_shows():
    assert not shows_compaction(table(batch(0), batch(10)))
    assert shows_compaction(table(batch(0), batch(10, recordCount=3)))
    assert shows_compaction(table(batch(0, attributes=DELETE_HORIZON_FLAG)))
