"""Retention by time, size and log start (RL 3.7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.log.batches import NOW_MS, batch, config, open_log
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFileSystem


def filled(count: int = 10, timestamp: int = NOW_MS, step_ms: int = 0, **settings: Any) -> Log:
    """One batch a segment, all replicated."""
    files = MemoryFileSystem(wall_ms=lambda: NOW_MS)
    files.make_directories("/data")
    log = open_log(files, settings=config(segment_bytes=200, **({"retention_ms": -1} | settings)))
    for number in range(count):
        log.append_as_leader(
            batch(100, timestamp=timestamp + number * step_ms if timestamp >= 0 else -1), 0, NOW_MS
        )
    log.set_high_watermark(log.log_end_offset)
    return log


def test_by_time() -> None:
    """RL 3.7: segments whose newest record is older than `retention.ms` go, oldest first; the
    log start follows.
    """
    log = filled(step_ms=1000, retention_ms=4500)
    assert log.delete_old_segments(NOW_MS + 9000) == 5
    assert log.log_start_offset == log.segments.first.base_offset == 5
    assert log.delete_old_segments(NOW_MS + 9000) == 0


def test_an_old_record_behind_a_young_one_waits() -> None:
    """RL 3.7: deletion stops at the first segment that stays: there are no holes."""
    log = filled(4, retention_ms=4500)
    log.append_as_leader(batch(100, timestamp=NOW_MS + 9000), 0, NOW_MS)
    log.append_as_leader(batch(100, timestamp=NOW_MS), 0, NOW_MS)
    log.set_high_watermark(6)
    assert log.delete_old_segments(NOW_MS + 9000) == 4


def test_an_expired_active_segment_rolls_first() -> None:
    """RL 3.7: when all is old, a new empty segment is made and everything goes; an empty log
    stays as it is.
    """
    log = filled(3, retention_ms=10)
    assert log.delete_old_segments(NOW_MS + 11) == 3
    assert (log.log_start_offset, log.log_end_offset, len(log.segments), log.size_in_bytes) == (
        3,
        3,
        1,
        0,
    )
    assert log.delete_old_segments(NOW_MS + 10**9) == 0
    assert log.append_as_leader(batch(1), 0, NOW_MS).first_offset == 3


def test_never_past_the_high_watermark() -> None:
    """RL 3.7: what is not replicated stays, however old."""
    log = filled(retention_ms=10)
    log.set_high_watermark(4)
    assert log.delete_old_segments(NOW_MS + 10**6) == 4
    assert log.log_start_offset == 4


@pytest.mark.parametrize("keep", [0, 1, 3, 10, 11])
def test_by_size(keep: int) -> None:
    """RL 3.7: oldest segments go while the log without them is still at least `retention.bytes`."""
    probe = filled()
    size = probe.segments.first.size
    log = filled(retention_bytes=keep * size)
    assert log.delete_old_segments(NOW_MS) == max(0, 10 - keep)
    assert len(log.segments) == max(1, min(10, keep))


def test_by_log_start_even_on_compacted_topics() -> None:
    """RL 3.7: segments wholly below the log start go under every policy; time and size count
    only with `delete`.
    """
    log = filled()
    log.update_config(
        config(
            segment_bytes=200,
            cleanup_policy=frozenset({"compact"}),
            retention_ms=1,
            retention_bytes=0,
        )
    )
    assert log.delete_old_segments(NOW_MS + 10**9) == 0
    log.increment_log_start_offset(4)
    assert log.delete_old_segments(NOW_MS + 10**9) == 4


def test_records_without_time_age_by_their_file() -> None:
    """RL 3.7: without timestamps the file's modification time counts."""
    log = filled(timestamp=-1, retention_ms=1000)
    assert log.delete_old_segments(NOW_MS + 1000) == 0
    assert log.delete_old_segments(NOW_MS + 1001) == 10


def test_files_are_renamed_and_left_to_the_remover() -> None:
    """RL 3.7: a removed segment's files carry `.deleted` until the remover takes them, after the
    topic's `file.delete.delay.ms`; a reload finishes what was left.
    """
    log = filled(step_ms=1000, retention_ms=4500, file_delete_delay_ms=7000)
    waiting: list[str] = []

    def remove_later(paths: list[str], delay: Callable[[], float]) -> None:
        assert delay() == 7
        waiting.extend(paths)

    log.segments.attach(remove_later)
    log.delete_old_segments(NOW_MS + 9000)
    files = log.pool.files
    assert len(waiting) == 15 and all(
        path.endswith(".deleted") and files.exists(path) for path in waiting
    )
    again = open_log(files, settings=log.config, log_start_offset=5)
    assert again.log_start_offset == 5 and not any(files.exists(path) for path in waiting)
