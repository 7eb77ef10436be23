"""The segments of a log by themselves: the log end, places, and removal from either end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.log.batches import NOW_MS, batch, config
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.log.segment_file import OpenFiles
from twisted_broker.log.segments import LogSegments
from twisted_broker.simulation.disk import SimDisk

DIRECTORY = "/data/t-0"


def made(**settings: object) -> tuple[LogSegments, SimDisk]:
    files = SimDisk(1)
    files.make_directories(DIRECTORY)
    return LogSegments(OpenFiles(files), DIRECTORY, config(**settings)), files


def filled(*bases: int) -> tuple[LogSegments, SimDisk]:
    """Two batches of one record in each segment."""
    segments, files = made()
    for base in bases:
        segments.create(base, NOW_MS)
        for offset in (base, base + 1):
            written = batch(base_offset=offset)
            segments.active.write((written,))
            segments.active.publish(len(written), offset, NOW_MS)
            segments.log_end_offset = offset + 1
    return segments, files


def test_the_log_end_has_one_place_until_it_moves() -> None:
    """RL 2.2: followers of an idle log ask for it at every fetch."""
    segments, _ = filled(0)
    size = segments.active.size
    assert segments.log_end == LogOffsetMetadata(2, 0, size)
    assert segments.log_end is segments.log_end
    segments.create(2, NOW_MS)
    assert segments.log_end == LogOffsetMetadata(2, 2, 0)


def test_no_segment_is_added_below_the_active_one() -> None:
    """Two segments with one base offset, or out of order, would be read wrongly for ever."""
    segments, _ = filled(0, 4, 8)
    for base in (0, 3, 6, 8):
        with pytest.raises(AssertionError):
            segments.add(segments.make(base, NOW_MS))
    assert segments.bases() == [0, 4, 8]


def test_nothing_is_dropped_behind_the_end() -> None:
    segments, _ = filled(0)
    size = segments.active.size
    assert segments.active.truncate_to(2, NOW_MS) == 0 and segments.active.size == size
    assert segments.active.truncate_to(1, NOW_MS) == size // 2 == segments.active.size


@pytest.mark.parametrize(
    ("offset", "base", "batches"),
    [(0, 0, 0), (1, 0, 1), (2, 4, 0), (3, 4, 0), (5, 4, 1), (6, 4, 2)],
)
def test_a_place_is_that_of_the_batch_or_of_the_next_one(
    offset: int, base: int, batches: int
) -> None:
    """RL 2.2: offsets 2 and 3 are compacted away: whoever reads there gets the next segment."""
    segments, _ = filled(0, 4)
    size = segments.first.size // 2
    assert segments.place_of(offset) == LogOffsetMetadata(offset, base, batches * size)


def test_segments_are_found_by_their_bases() -> None:
    """RL 3.1: the one that may hold the offset, and those of a range."""
    segments, _ = filled(5, 10, 20)
    assert [segments.row_of(offset) for offset in (4, 5, 9, 10, 19, 20, 99)] == [
        -1,
        0,
        0,
        1,
        1,
        2,
        2,
    ]
    assert [each.base_offset for each in segments.between(7, 20)] == [5, 10]
    assert segments.at(3) is None and segments.at(-1) is None


def keep_first(segments: LogSegments) -> None:
    segments.remove_above(0)


def keep_last(segments: LogSegments) -> None:
    while len(segments) > 1:
        segments.remove_first()


@pytest.mark.parametrize("remove", [keep_first, keep_last])
def test_removal_leaves_no_hole_at_any_step(remove: Callable[[LogSegments], None]) -> None:
    """RL 3.5, 3.7: whenever a crash comes, the segments that are left follow one another."""
    bases = [0, 2, 4, 6]
    segments, files = filled(*bases)
    seen: list[list[int]] = []
    step = files.step

    def watched(kind: str, path: str, *more: Any) -> None:
        seen.append([int(name[:20]) for name in files.listdir(DIRECTORY) if name.endswith(".log")])
        step(kind, path, *more)

    files.step = watched  # type: ignore[assignment]
    remove(segments)
    assert len(seen) > 3
    for left in seen:
        at = bases.index(left[0])
        assert left == bases[at : at + len(left)], seen
    assert len(segments) == 1 and segments.active is segments.first


def test_a_roll_is_due_by_size_age_and_offsets() -> None:
    """RL 3.1: an empty segment rolls for no age."""
    segments, _ = made(segment_bytes=1000, segment_ms=100)
    segments.create(0, NOW_MS)
    assert not segments.should_roll(1000, 0, NOW_MS + 10**6, NOW_MS + 10**6)
    assert segments.should_roll(1001, 0, NOW_MS, NOW_MS)
    assert segments.should_roll(1, 2**31, NOW_MS, NOW_MS)
    segments.active.publish(500, 0, NOW_MS)
    assert not segments.should_roll(500, 1, NOW_MS + 100, NOW_MS)
    assert segments.should_roll(500, 1, NOW_MS + 101, NOW_MS)
    assert segments.should_roll(501, 1, NOW_MS, NOW_MS)


@pytest.mark.parametrize(
    ("policy", "lag_ms", "longest_ms"),
    [("compact", 50, 50), ("compact", 200, 100), ("delete", 50, 100)],
)
def test_a_segment_of_a_compacted_log_is_no_older_than_the_longest_lag(
    policy: str, lag_ms: int, longest_ms: int
) -> None:
    """KIP-354: what stays in the active segment is never cleaned, so it rolls in time. Jitter
    leaves something of that age.
    """
    settings = {
        "segment_ms": 100,
        "segment_jitter_ms": 10**6,
        "max_compaction_lag_ms": lag_ms,
        "cleanup_policy": frozenset({policy}),
    }
    files = made()[1]
    segments = LogSegments(OpenFiles(files), DIRECTORY, config(**settings), Random(1))
    jitters = [segments.make(base, NOW_MS).jitter_ms for base in range(200)]
    assert longest_ms // 2 < max(jitters) < longest_ms
    segments.create(0, NOW_MS)
    segments.active.jitter_ms = 0
    segments.active.publish(500, 0, NOW_MS)
    assert not segments.should_roll(1, 1, NOW_MS + longest_ms, NOW_MS)
    assert segments.should_roll(1, 1, NOW_MS + longest_ms + 1, NOW_MS)
