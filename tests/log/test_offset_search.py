"""Finding an offset by time among records that were partly deleted (RL 3.4), in pieces."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.log.batches import NOW_MS, all_records, batch, config, open_log
from twisted_broker.log import segment as segment_module
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.offset_search import Search
from twisted_broker.wire.batch_header import set_max_timestamp
from twisted_broker.wire.records import CREATE_TIME, BatchBuilder, build_empty_batch
from twisted_broker.wire.schema import run_whole


def log_of(*timestamps: int, starts_at: int = 0, **more: object) -> Log:
    """One record for each, in milliseconds after NOW_MS."""
    files = MemoryFileSystem()
    files.make_directories("/data")
    log = open_log(files, settings=config(index_interval_bytes=0, **more))
    for each in timestamps:
        log.append_as_leader(batch(timestamp=NOW_MS + each), 0, NOW_MS)
    start_at(log, starts_at)
    return log


def start_at(log: Log, offset: int) -> None:
    log.set_high_watermark(log.log_end_offset)
    log.increment_log_start_offset(offset)


def found(search: Search) -> tuple[int, int] | None:
    """Milliseconds after NOW_MS, and the offset."""
    record = run_whole(search)
    return None if record is None else (record.timestamp - NOW_MS, record.offset)


def test_the_largest_timestamp_is_one_of_a_record_that_lives() -> None:
    """Also where the record that had the largest was deleted, in its segment and in others."""
    assert found(log_of(9, 3, 5, 4, starts_at=1).max_timestamp_offset()) == (5, 2)
    assert found(log_of(9, 3, 5, 4, starts_at=3).max_timestamp_offset()) == (4, 3)
    assert found(log_of(9, 3, 5, 4, starts_at=4).max_timestamp_offset()) is None
    of_two = log_of(3, 9, 4, 6, segment_bytes=150, starts_at=2)
    assert len(of_two.segments) == 2 and found(of_two.max_timestamp_offset()) == (6, 3)


def test_a_look_up_by_time_goes_on_to_later_segments() -> None:
    """Where the segment whose largest timestamp is late enough has no such record any more, Kafka
    answers -1, and a consumer that seeks to a time begins at the end: it misses what is later.
    """
    log = log_of(9, 1, 2, 8, segment_bytes=150, starts_at=1)
    assert len(log.segments) == 2
    assert log.segments.first.largest_timestamp() == NOW_MS + 9
    assert found(log.find_offset_by_timestamp(NOW_MS + 5)) == (8, 3)
    assert found(log.find_offset_by_timestamp(NOW_MS + 9)) is None


BATCHES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 6), min_size=1, max_size=3),
        st.sampled_from(["kept", "kept", "emptied", "lies"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(BATCHES, st.integers(0, 40), st.booleans(), st.sampled_from([150, 400, 4000]))
def test_a_search_by_time_finds_what_a_look_at_every_record_does(
    batches: list[tuple[list[int], str]], start: int, restart: bool, segment_bytes: int
) -> None:
    """Whatever was deleted, compacted away or claimed by a header, before and after a restart."""
    files = MemoryFileSystem()
    files.make_directories("/data")
    chosen = config(index_interval_bytes=100, segment_bytes=segment_bytes)
    log = open_log(files, settings=chosen)
    lies = 0
    for times, kind in batches:
        end = log.log_end_offset
        if kind == "emptied":
            data = build_empty_batch(
                end, end + len(times) - 1, 0, 0, NOW_MS + max(times), 7, 0, end, False, False
            )
        else:
            builder = BatchBuilder(base_offset=end)
            for each in times:
                builder.append(NOW_MS + each, b"k", b"v")
            data = builder.build()
            if kind == "lies" and (lies := lies + 1) < segment_module._CLAIMS:
                changed = bytearray(data)
                set_max_timestamp(changed, CREATE_TIME, NOW_MS + 7)
                data = bytes(changed)
        log.append_as_follower(data, 0, NOW_MS)
    start_at(log, min(start, log.log_end_offset))
    if restart:
        start_of, log = log.log_start_offset, open_log(files, settings=chosen)
        start_at(log, start_of)
    live = [each for each in all_records(log) if each.offset >= log.log_start_offset]
    largest = max(live, key=lambda each: each.timestamp, default=None)
    assert found(log.max_timestamp_offset()) == (
        None if largest is None else (largest.timestamp - NOW_MS, largest.offset)
    )
    for asked in range(8):
        first = next((each for each in live if each.timestamp >= NOW_MS + asked), None)
        assert found(log.find_offset_by_timestamp(NOW_MS + asked)) == (
            None if first is None else (first.timestamp - NOW_MS, first.offset)
        )


def pieces(monkeypatch: pytest.MonkeyPatch, headers: int) -> None:
    monkeypatch.setattr(segment_module, "HEADERS_PER_STEP", headers)


SEARCHES: list[Callable[[Log], Search]] = [
    lambda log: log.max_timestamp_offset(),
    lambda log: log.find_offset_by_timestamp(NOW_MS + 5),
]


@pytest.mark.parametrize("search", SEARCHES)
def test_a_long_walk_pauses(
    search: Callable[[Log], Search], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest was deleted, so that no index helps: 100 headers, ten at a time."""
    pieces(monkeypatch, 10)
    log = log_of(9, *[1] * 98, 6, starts_at=1)
    steps = search(log)
    pauses = 0
    with pytest.raises(StopIteration) as end:
        while True:
            next(steps)
            pauses += 1
    assert end.value.value.offset == 99
    assert pauses >= 9


@pytest.mark.parametrize("search", SEARCHES)
def test_a_log_that_changes_in_a_pause_is_searched_anew(
    search: Callable[[Log], Search], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record that would be found is truncated, and another is written in its place."""
    pieces(monkeypatch, 10)
    log = log_of(9, *[1] * 98, 6, starts_at=1)
    steps = search(log)
    next(steps)
    log.set_high_watermark(50)
    log.truncate_to(60, NOW_MS)
    log.append_as_leader(batch(timestamp=NOW_MS + 7), 1, NOW_MS)
    assert found(steps) == (7, 60)


@pytest.mark.parametrize("search", SEARCHES)
def test_a_segment_that_is_deleted_in_a_pause_is_searched_no_more(
    search: Callable[[Log], Search], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are gone: to read them would take the log offline."""
    pieces(monkeypatch, 3)
    log = log_of(9, *[1] * 20, 6, segment_bytes=800, starts_at=1)
    steps = search(log)
    next(steps)
    log.increment_log_start_offset(log.segments.bases()[1])
    assert log.delete_old_segments(NOW_MS) == 1
    assert found(steps) == (6, 21) and log.failed is None
