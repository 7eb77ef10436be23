"""Compacted logs and rounds of cleaning for the tests of the cleaner."""

from __future__ import annotations

from typing import Any

from tests.log.batches import NOW_MS, config, open_log
from twisted_broker.interfaces import IFileSystem
from twisted_broker.log.cleaner.cleaning import CleaningPlan, CleaningResult, clean
from twisted_broker.log.cleaner.selection import log_to_clean, plan_for
from twisted_broker.log.log import Log
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.verification import NOT_REQUIRED
from twisted_broker.log_config import LogConfig
from twisted_broker.wire.records import BatchBuilder
from twisted_broker.wire.schema import run_whole

COMPACT = frozenset({"compact"})
Pair = tuple[bytes | None, bytes | None]


def settings(**values: Any) -> LogConfig:
    """Of a compacted topic with small segments."""
    return config(**({"cleanup_policy": COMPACT, "segment_bytes": 400} | values))


def new_log(files: IFileSystem | None = None, **values: Any) -> Log:
    files = files if files is not None else MemoryFileSystem(wall_ms=lambda: NOW_MS)
    if not files.is_directory("/data"):
        files.make_directories("/data")
    return open_log(files, settings=settings(**values))


def batch_of(*pairs: Pair, timestamp: int = NOW_MS, **fields: Any) -> bytes:
    """A batch of (key, value) records."""
    builder = BatchBuilder(**fields)
    for key, value in pairs:
        builder.append(timestamp, key, value)
    return builder.build()


def append(log: Log, *pairs: Pair, **fields: Any) -> None:
    log.append_as_leader(batch_of(*pairs, **fields), 0, NOW_MS, guard=NOT_REQUIRED)
    log.set_high_watermark(log.log_end_offset)


def plan(
    log: Log, checkpoint: int | None = None, wall_ms: int = NOW_MS, slots: int = 10_000
) -> CleaningPlan:
    """The round that would be next."""
    return run_whole(plan_for(log_to_clean(log, checkpoint, wall_ms), wall_ms, slots, 0.9))


def result_of(log: Log, todo: CleaningPlan) -> CleaningResult:
    """Runs the round; nothing of the log is changed."""
    found = list(clean(log.pool.files, todo))
    assert isinstance(found[-1], CleaningResult)
    return found[-1]


def clean_log(
    log: Log, checkpoint: int | None = None, wall_ms: int = NOW_MS, slots: int = 10_000
) -> int:
    """One whole round; where the next one begins."""
    result = result_of(log, plan(log, checkpoint, wall_ms, slots))
    for group in result.groups:
        log.replace_segments(group.bases, wall_ms)
    return result.first_dirty
