"""Where header tables of replicas part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.header_tables import batch, table
from twisted_broker.pipeline.transforms.replicas import IDENTITY, NONE, parting, within

SAME = [batch(0), batch(10), batch(20, 5), batch(25)]


def test_equal_replicas_do_not_part_wherever_their_segments_begin():
    other = table(*SAME)
    other["position"] += 1000
    assert parting([table(*SAME), other, table(*SAME)]) is None


@pytest.mark.parametrize("field", [name for name in IDENTITY if name != "baseOffset"])
def test_every_field_of_the_identity_counts(field):
    changed = [SAME[0], SAME[1], SAME[2] | {field: 3}, SAME[3]]
    found = parting([table(*SAME), table(*changed)])
    assert (found.offset, found.rows, found.differing, found.common) == (20, (2, 2), (0, 1), 1)


def test_one_of_three_that_went_another_way():
    diverged = [
        SAME[0],
        batch(10, leaderEpoch=1),
        batch(20, leaderEpoch=1),
        batch(30, leaderEpoch=1),
    ]
    found = parting([table(*SAME), table(*SAME), table(*diverged)])
    assert (found.offset, found.rows, found.common) == (10, (1, 1, 1), 0)
    assert found.differing == (0, 0, 4)  # at 10, 20, 25 and 30


def test_what_a_replica_lacks_in_the_middle_and_what_it_alone_has():
    found = parting([table(*SAME), table(SAME[0], *SAME[2:])])
    assert (found.offset, found.rows, found.differing) == (10, (1, NONE), (0, 1))
    found = parting([table(SAME[0], *SAME[2:]), table(*SAME)])
    assert (found.offset, found.rows, found.differing) == (10, (NONE, 1), (0, 1))


def test_a_batch_that_begins_earlier_still_holds_the_offset():
    longer = [batch(0, 15), batch(15, 10), SAME[3]]
    found = parting([table(*SAME), table(*longer)])
    assert (found.offset, found.rows, found.common) == (0, (0, 0), NONE)


@pytest.mark.parametrize(("at", "rows"), [(2, (1, 1)), (4, (1, 1))])
def test_a_batch_that_one_replica_holds_twice_is_seen_next_to_itself_and_later(at, rows):
    twice = [*SAME[:at], SAME[1], *SAME[at:]]
    found = parting([table(*SAME), table(*twice)])
    assert (found.offset, found.rows, found.again, found.differing, found.common) == (
        10,
        rows,
        (NONE, at),
        (0, 1),
        0,
    )
    found = parting([table(*twice), table(*SAME)])
    assert (found.offset, found.again, found.differing, found.common) == (10, (at, NONE), (0, 1), 0)


def test_a_batch_that_all_hold_twice_is_the_same_in_all():
    twice = table(*SAME[:2], *SAME[1:])
    assert parting([twice, twice.copy()]) is None


def test_twice_in_one_and_three_times_in_the_other_is_not_the_same():
    found = parting([table(*SAME[:2], *SAME[1:]), table(*SAME[:2], *[SAME[1]] * 2, *SAME[2:])])
    assert (found.offset, found.rows, found.again) == (10, (1, 1), (2, 2))


def test_the_same_batches_in_another_order_are_not_the_same():
    found = parting([table(*SAME), table(SAME[0], SAME[2], SAME[1], SAME[3])])
    assert (found.offset, found.rows, found.differing, found.common) == (10, (1, 2), (0, 2), 0)


@given(st.lists(st.integers(0, 5), max_size=8), st.lists(st.integers(0, 5), max_size=8))
def test_replicas_are_the_same_exactly_when_they_hold_the_same_batches_in_the_same_order(
    ours, theirs
):
    tables = [table(*(batch(10 * number) for number in numbers)) for numbers in (ours, theirs)]
    assert (parting(tables) is None) == (ours == theirs)


def test_nothing_at_all_parts_from_the_first_offset_on():
    assert parting([table(*SAME), table()]).rows == (0, NONE)
    assert parting([table(), table()]) is None


def test_a_range_takes_whole_batches_only():
    assert within(table(*SAME), 10, 25)["baseOffset"].tolist() == [10, 20]
    assert within(table(*SAME), 1, 24)["baseOffset"].tolist() == [10]


def test_a_planted_difference_is_found_among_many():
    rng = np.random.default_rng(5)
    whole = table(*[batch(10 * at) for at in range(2000)])
    for row in rng.integers(0, 2000, 20):
        other = whole.copy()
        other["crc"][row] ^= 1
        assert parting([whole, other]).offset == 10 * row
