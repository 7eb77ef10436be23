"""What may be appended next: without Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog_pipeline.errors import PipelineError
from replog_pipeline.lake.guards import Gap, check_mode, limited, missed, plan
from replog_pipeline.lake.ledger import Ledger, from_text
from replog_pipeline.sources.extents import Extent

ID, OTHER = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
A, B = ("flights", 0), ("flights", 1)


def extent(start: int = 0, end: int = 10, topic_id: str | None = ID) -> Extent:
    return Extent({"flights": topic_id}, {A: start, B: start}, {A: end, B: end})


def ledger(first: int, second: int, topic_id: str | None = ID) -> Ledger:
    return Ledger(3, {"flights": topic_id}, {A: first, B: second}, "x")


def refusal(known: Ledger, found: Extent) -> str:
    with pytest.raises(PipelineError) as raised:
        plan(known, found, "/lake")
    return str(raised.value)


def test_a_new_table_begins_at_the_log_start() -> None:
    found = plan(Ledger(), extent(4, 10), "/lake")
    assert (found.start, found.end, found.gaps) == ({A: 4, B: 4}, {A: 10, B: 10}, ())


def test_what_a_new_table_begins_without_is_one_line_per_topic() -> None:
    start = {
        ("b", 0): 0,
        ("a", 2): 1_000,
        ("a", 0): 7,
        ("a", 1): 0,
        **{("c", number): 10 for number in range(9)},
    }
    assert [str(each) for each in missed(Ledger(), start)] == [
        (
            "a: 1,007 records (by their offsets) had been deleted before the archive began: "
            "partition 0 begins at offset 7, 2 begins at offset 1,000"
        ),
        "c: 90 records (by their offsets) had been deleted before the archive began: "
        "partition 0 begins at offset 10, 1 begins at offset 10, 2 begins at offset 10 and 6 more",
    ]
    assert missed(ledger(5, 5), {A: 5, B: 5}) == [] == missed(Ledger(), {A: 0, B: 0})


def test_a_batch_begins_where_the_table_ends() -> None:
    found = plan(ledger(7, 10), extent(), "/lake")
    assert (found.start, found.end, found.offsets) == ({A: 7, B: 10}, {A: 10, B: 10}, 3)


def test_a_partition_that_was_added_begins_at_zero() -> None:
    known = Ledger(1, {"flights": ID}, {A: 5}, "x")
    assert plan(known, extent(), "/lake").start == {A: 5, B: 0}


def test_a_topic_that_was_created_anew_stops() -> None:
    text = refusal(ledger(5, 5), extent(topic_id=OTHER))
    assert "created anew" in text and ID in text and OTHER in text and "another table" in text


@pytest.mark.parametrize(("known", "found"), [(None, ID), (ID, None)])
def test_an_id_that_one_side_lacks_is_no_proof(known: str | None, found: str | None) -> None:
    assert plan(ledger(5, 5, known), extent(topic_id=found), "/lake").offsets == 10


def test_an_end_below_the_table_stops() -> None:
    text = refusal(ledger(5, 11), extent())
    assert "flights-1 ends at offset 10, below the 11" in text


def test_the_table_of_another_topic_stops() -> None:
    text = refusal(Ledger(1, {"orders": ID}, {("orders", 0): 1}, "x"), extent())
    assert "is the table of orders, not of flights" in text


def test_a_partition_that_is_gone_stops() -> None:
    known = Ledger(1, {"flights": ID}, {A: 1, B: 1, ("flights", 2): 0}, "x")
    assert "holds partition 2 of flights, which the source lacks" in refusal(known, extent())


def test_what_retention_took_stops_unless_allowed() -> None:
    assert (
        "offsets 5 to 7 were deleted before they were archived (and 1 more partitions)"
        in refusal(ledger(5, 6), extent(8))
    )
    found = plan(ledger(5, 6), extent(8), "/lake", allow_gaps=True)
    assert found.gaps == (Gap("flights", 0, 5, 7), Gap("flights", 1, 6, 7)) and found.start == {
        A: 8,
        B: 8,
    }


def test_a_goal_bounds_the_batch_and_never_moves_it_back() -> None:
    assert plan(ledger(7, 2), extent(), "/lake", goal={A: 5, B: 5}).end == {A: 7, B: 5}


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6),
    st.integers(1, 80),
)
def test_a_limit_is_used_up_exactly_and_never_passes_an_end(
    ranges: list[tuple[int, int]], most: int
) -> None:
    start = {("t", number): first for number, (first, _) in enumerate(ranges)}
    end = {("t", number): first + size for number, (first, size) in enumerate(ranges)}
    taken = limited(start, end, most)
    assert all(start[key] <= taken[key] <= end[key] for key in start)
    assert sum(taken.values()) - sum(start.values()) == min(most, sum(size for _, size in ranges))


def test_a_ledger_is_the_same_after_text() -> None:
    before = ledger(5, 6).after({"flights": None}, {A: 9, B: 6})
    assert before.batch == 4 and before.ids == {"flights": ID} and before.next == {A: 9, B: 6}
    assert from_text(before.to_text()) == before


@pytest.mark.parametrize(("decoded", "upsert"), [(True, False), (False, True), (True, True)])
def test_what_a_table_holds_goes_from_ledger_to_ledger(decoded: bool, upsert: bool) -> None:
    before = replace(ledger(5, 6), decoded=decoded, upsert=upsert).after({}, {})
    assert from_text(before.to_text()) == before
    assert (before.decoded, before.upsert) == (decoded, upsert)
    # Who only knows version 1 appends to no table of last values.
    assert before.to_json()["version"] == (2 if upsert else 1)


def test_a_table_has_every_record_or_the_last_values() -> None:
    every, last = ledger(5, 6), replace(ledger(5, 6), upsert=True)
    check_mode(Ledger(), True, "/lake")
    check_mode(last, True, "/lake")
    check_mode(every, False, "/lake")
    with pytest.raises(PipelineError, match="holds every record"):
        check_mode(every, True, "/lake")
    with pytest.raises(PipelineError, match="give --mode upsert"):
        check_mode(last, False, "/lake")


@pytest.mark.parametrize(
    "text", [None, "", "no json", "[1]", "{}", '{"replog": 1}', '{"job": "somebody else\'s"}']
)
def test_what_others_write_is_no_ledger(text: str | None) -> None:
    assert from_text(text) is None


def test_a_ledger_of_a_later_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 9"):
        from_text('{"replog": {"version": 9}}')
