"""One partition audited by its headers: every kind of finding planted, and nothing found where
nothing is wrong.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from replog_pipeline.decoder import Stop
from replog_pipeline.jobs.audit.check import SHOWN, Facts, Segment, check_partition
from replog_pipeline.transforms.faults import Fault
from tests.pipeline.header_tables import batch, data, marker, table

NOW = 10_000_000
SOUND = [data(0, 7, 0), data(10, 7, 10), batch(20), data(30, 7, 20, inside=False)]


def facts(**changes):
    known = Facts(
        "/log",
        "orders",
        3,
        0,
        None,
        compacted=False,
        assumed=True,
        now_ms=NOW,
        hanging_after_ms=900_000,
    )
    return replace(known, **changes)


def segment(*rows, base=0, faults=(), stop=Stop.END, torn=0):
    made = table(*rows)
    end = int((made["length"] + 12).sum())
    return Segment(
        base, f"/log/orders-3/{base:020d}.log", made, list(faults), end, end + torn, stop
    )


def found(*segments, **changes):
    findings, _ = check_partition(facts(**changes), segments)
    return [(finding.kind, finding.offset) for finding in findings]


def test_a_sound_log_over_two_segments():
    findings, summary = check_partition(
        facts(), [segment(*SOUND), segment(data(40, 7, 30), base=40)]
    )
    assert findings == []
    assert (
        summary.batches,
        summary.records,
        summary.end,
        summary.holes,
        summary.open,
        summary.policy,
    ) == (5, 50, 50, 0, 0, "delete")


def test_an_empty_log_is_sound():
    assert found(segment()) == []
    assert found() == []


def test_what_parts_segments_is_found_too():
    assert found(segment(*SOUND), segment(data(45, 7, 30), base=45)) == [("gap", 45)]
    assert found(segment(*SOUND), segment(data(40, 7, 35), base=40)) == [("sequence", 40)]
    assert found(segment(*SOUND), segment(data(40, 7, 30), base=41)) == [("order", 40)]


def test_a_finding_says_where():
    (finding,), _ = check_partition(
        facts(), [segment(*SOUND), segment(data(40, 7, 35), batch(50), base=40)]
    )
    assert (finding.file, finding.position, finding.producer_id, finding.leader_epoch) == (
        f"{40:020d}.log",
        0,
        7,
        0,
    )
    assert str(finding).startswith(
        "orders-3 offset 40: sequence: producer 7 epoch 0 jumps to sequence 35, 30 is due "
        "(/log/orders-3/000"
    )


@pytest.mark.parametrize("fault", [Fault("crc", 1, "wrong"), Fault("records", 1, "not so many")])
def test_faults_within_a_batch_are_reported_once_even_when_its_header_is_odd(fault):
    rows = [SOUND[0], SOUND[1] | {"producerEpoch": -5, "recordCount": 99}, *SOUND[2:]]
    assert found(segment(*rows, faults=[fault]))[:1] == [(fault.kind, 10)]


def test_what_lies_before_the_log_start_or_beyond_the_high_watermark_is_not_judged():
    gaps = [data(0, 7, 0), data(15, 7, 10), data(25, 7, 20), data(50, 7, 30)]
    assert found(segment(*gaps)) == [("gap", 15), ("gap", 50)]
    assert found(segment(*gaps), start=15, end=35) == []
    assert found(segment(*gaps, faults=[Fault("crc", 3, "wrong")]), start=15, end=35) == []


def test_a_log_that_does_not_begin_at_its_start():
    assert found(segment(batch(20), base=20), start=10) == [("gap", 20)]
    assert found(segment(batch(20), base=10), start=10, compacted=True) == []


def test_a_torn_tail_beyond_the_high_watermark_is_fine_and_before_it_is_not():
    torn = segment(*SOUND, stop=Stop.CUT_SHORT, torn=30)
    assert found(torn, end=40) == []
    assert found(torn, end=50) == [("short", 40), ("torn segment", 40)]
    assert found(torn) == []
    assert found(torn._replace(stop=Stop.NO_BATCH)) == [("torn segment", 40)]
    assert found(torn, segment(data(40, 7, 30), base=40)) == [("torn segment", 40)]


def test_preallocated_zeros_end_the_active_segment_only():
    zeros = segment(*SOUND, stop=Stop.ZEROS, torn=4096)
    assert found(zeros) == []
    assert found(zeros, segment(data(40, 7, 30), base=40)) == [("torn segment", 40)]


def test_a_log_shorter_than_its_high_watermark():
    assert found(segment(*SOUND), end=41) == [("short", 40)]


def test_compaction_by_policy_or_by_what_the_batches_show():
    holes = [data(0, 7, 0), data(100, 7, 100)]
    assert found(segment(*holes)) == [("gap", 100), ("sequence", 100)]
    assert found(segment(*holes), compacted=True, assumed=False) == []
    cleaned = [holes[0] | {"recordCount": 4}, holes[1]]
    assert found(segment(*cleaned)) == []
    assert found(segment(*cleaned), assumed=False) == [
        ("count", 0),
        ("gap", 100),
        ("sequence", 100),
    ]


def test_open_transactions_hang_after_a_while():
    rows = [
        data(0, 7, 0, inside=True),
        data(10, 7, 10, inside=True) | {"maxTimestamp": NOW - 1_000_000},
    ]
    assert found(segment(*rows)) == [("hanging transaction", 0)]
    findings, summary = check_partition(facts(hanging_after_ms=1_100_000), [segment(*rows)])
    assert (findings, summary.open) == ([], 1)


def test_an_end_marker_beyond_the_high_watermark_ends_a_transaction():
    assert found(segment(data(0, 7, 0, inside=True), marker(10, 7)), end=10) == []


def test_a_torn_transaction_and_a_fenced_producer():
    rows = [
        data(0, 7, 0, inside=True),
        data(10, 7, 0, epoch=1, inside=True),
        marker(20, 7, 1),
        data(21, 7, 10, epoch=0),
    ]
    assert found(segment(*rows)) == [("epoch", 21), ("torn transaction", 10)]


def test_coordinators_do_not_count_sequences():
    rows = [data(0, 7, 0, inside=True), data(10, 7, 0, inside=True), marker(20, 7)]
    assert found(segment(*rows)) == [("duplicate", 10)]
    assert found(segment(*rows), topic="__consumer_offsets") == []


def test_many_findings_of_a_kind_are_counted_not_listed():
    findings, summary = check_partition(facts(), [segment(*[batch(20 * at) for at in range(100)])])
    assert len(findings) == SHOWN
    assert findings[-1].more == 99 - SHOWN
    assert summary.holes == 990
