"""Rows of a topic as spans of offsets, and what the spans say of a cluster's partitions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from replog_pipeline.jobs.audit.cleanup import Policy
from replog_pipeline.jobs.audit.topics import ANY, judged
from replog_pipeline.transforms.spans import (
    DUPLICATE,
    GAP,
    HOLE,
    MARKER,
    ORDER,
    SHOWN,
    SPANNED,
    Span,
    joined,
    runs,
    spans,
)

DELETE = {"t": Policy(frozenset({"delete"}), "the cluster")}
COMPACT = {"t": Policy(frozenset({"compact"}), "the cluster")}


class Taken:
    """These offsets are control batches'; whoever asks closes it."""

    def __init__(self, *offsets):
        self.offsets, self.is_closed = set(offsets), False

    def are_all(self, topic, partition, first, last):
        return np.array(
            [self.offsets.issuperset(range(a, b + 1)) for a, b in zip(first, last, strict=True)],
            np.bool_,
        )

    def close(self):
        self.is_closed = True


def rows(*parts):
    """A batch of (topic, partition, offsets)."""
    columns = [
        [topic for topic, _, offsets in parts for _ in offsets],
        [number for _, number, offsets in parts for _ in offsets],
        [offset for _, _, offsets in parts for offset in offsets],
    ]
    types = (pa.string(), pa.int32(), pa.int64())
    return pa.RecordBatch.from_arrays(
        [pa.array(c, t) for c, t in zip(columns, types, strict=True)],
        names=["topic", "partition", "offset"],
    )


def spanned(*batches, allowed=0, markers=()):
    taken = Taken(*markers)
    found = [
        Span(**row)
        for made in spans(iter(batches), {"t": allowed}, taken)
        for row in made.to_pylist()
    ]
    assert taken.is_closed
    return found


def span(first, last, records=None, kind=SPANNED):
    return Span(kind, "t", 0, first, last, last - first + 1 if records is None else records)


def test_rows_are_cut_where_topic_or_partition_change():
    found = [
        (topic, number, offsets.tolist())
        for topic, number, offsets in runs(rows(("t", 0, [1, 2]), ("t", 1, [3]), ("u", 1, [4, 5])))
    ]
    assert found == [("t", 0, [1, 2]), ("t", 1, [3]), ("u", 1, [4, 5])]
    assert list(runs(rows())) == []


def test_a_span_goes_on_over_batches():
    assert spanned(rows(("t", 0, [3, 4])), rows(), rows(("t", 0, [5])), rows(("t", 0, [6, 7]))) == [
        span(3, 7)
    ]


def test_no_rows_are_no_spans():
    assert spanned() == []


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ([1, 2], [5, 6], Span(GAP, "t", 0, 3, 4, 2)),
        ([1, 2], [2, 3], Span(DUPLICATE, "t", 0, 2, 2, 1)),
        ([1, 2, 3], [2, 4], Span(ORDER, "t", 0, 2, 2, 1)),
    ],
)
def test_a_fault_is_the_same_within_a_batch_and_between_two(before, after, fault):
    assert fault in spanned(rows(("t", 0, [*before, *after])))
    assert fault in spanned(rows(("t", 0, before)), rows(("t", 0, after)))


def test_many_gaps_are_few_rows_that_count_all():
    found = spanned(*(rows(("t", 0, [3 * number])) for number in range(1000)))
    gaps = [each for each in found if each.kind == GAP]
    assert len(gaps) == SHOWN
    assert sum(each.records + each.more_records for each in gaps) == 2 * 999
    assert sum(1 + each.more for each in gaps) == 999
    assert [each for each in found if each.kind == SPANNED] == [span(0, 2997, 1000)]


def test_holes_that_are_allowed_are_one_row_however_many():
    many = rows(("t", 0, [3 * number for number in range(1000)] + [5000]))
    assert spanned(many, allowed=2) == [
        span(0, 5000, 1001),
        span(0, 5000, 2 * 999, HOLE),
        span(2998, 4999, kind=GAP),
    ]


def test_spans_of_several_readers_follow_on_or_do_not():
    assert joined([span(10, 19), span(0, 9)]) == []
    assert joined([span(12, 19), span(0, 9)]) == [span(10, 11, kind=GAP)]
    assert joined([span(8, 19), span(0, 9)]) == [span(8, 9, kind=DUPLICATE)]


def test_gaps_that_markers_fill_are_one_row_and_others_stay_gaps():
    found = spanned(rows(("t", 0, [0, 2, 3, 6])), rows(("t", 0, [9, 11])), markers=[1, 4, 5, 8])
    assert found == [
        span(0, 11, 6),
        span(0, 11, 3, MARKER),
        span(7, 8, kind=GAP),
        span(10, 10, kind=GAP),
    ]
    assert joined(found) == found[2:]


def told(found, start, end, policies=DELETE, allowed=0):
    findings, (summary,), _, _ = judged(
        found, {("t", 0): start}, {("t", 0): end}, policies, {"t": allowed}, Taken()
    )
    return [(finding.kind, finding.offset) for finding in findings], summary


def test_all_that_the_cluster_named_must_be_there():
    assert told([span(5, 9), span(10, 14)], 5, 15)[0] == []
    assert told([span(6, 14)], 5, 15)[0] == [("gap", 5)]
    assert told([span(5, 13)], 5, 15)[0] == [("gap", 14)]
    assert told([], 5, 15)[0] == [("gap", 5)]
    assert told([], 5, 5)[0] == []


def test_a_compacted_topic_may_have_holes_but_nothing_twice():
    found, summary = told(
        [span(5, 9), span(12, 14), span(14, 19), span(14, 19, 3, HOLE)], 0, 30, COMPACT, ANY
    )
    assert found == [("duplicate", 14)]
    assert (summary.holes, summary.policy, summary.batches) == (5 + 2 + 10 + 3, "compact", -1)


def test_what_is_not_listed_is_counted():
    gaps = [span(10 * at, 10 * at, kind=GAP) for at in range(SHOWN + 5)]
    gaps[-1] = gaps[-1]._replace(more=7, more_records=70)
    findings, (summary,), _, _ = judged(
        [span(0, 999, 900), *gaps], {("t", 0): 0}, {("t", 0): 1000}, DELETE, {"t": 0}, Taken()
    )
    assert (len(findings), findings[-1].more, summary.holes) == (SHOWN, 5 + 7, SHOWN + 5 + 70)


def test_markers_at_the_ends_and_between_spans_are_no_gaps():
    taken = Taken(0, 5, 9)
    known = [span(1, 4), span(6, 8), span(1, 4, 2, MARKER)]
    findings, (summary,), _, markers = judged(
        known, {("t", 0): 0}, {("t", 0): 11}, DELETE, {"t": 0}, taken
    )
    assert [(each.offset, each.problem) for each in findings] == [
        (10, "offsets 10..10 are missing (1)")
    ]
    assert (markers, summary.holes, taken.is_closed) == ({"t": 5}, 2 + 2 + 2, True)


def test_holes_as_wide_as_allowed_are_passed_over():
    hole = [span(0, 9), span(11, 20), span(23, 29)]
    assert told(hole, 0, 30)[0] == [("gap", 10), ("gap", 21)]
    assert told(hole, 0, 30, allowed=1)[0] == [("gap", 21)]
    assert told(hole, 0, 30, allowed=2)[0] == []


def test_random_rows_are_summed_up_as_by_a_plain_loop():
    rng = np.random.default_rng(11)
    offsets = np.cumsum(rng.choice([1, 1, 1, 1, 0, 3, -2], 500)).tolist()
    cuts = sorted(rng.choice(500, 20, replace=False).tolist())
    batches = [rows(("t", 0, offsets[a:b])) for a, b in zip([0, *cuts], [*cuts, 500], strict=True)]
    plain = sum(max(0, after - before - 1) for before, after in pairwise(offsets))
    found = spanned(*batches)
    records = sum(each.records for each in found if each.kind == SPANNED)
    assert (records, len([each for each in found if each.kind == SPANNED])) == (500, 1)
    assert sum(each.records + each.more_records for each in found if each.kind == GAP) == plain > 0
    assert sum(each.records + each.more for each in found if each.kind == ORDER) == sum(
        after < before for before, after in pairwise(offsets)
    )
