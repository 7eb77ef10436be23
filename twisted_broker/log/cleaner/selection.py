"""Which log is cleaned next, and which part of it.

Owns `LogToClean`, `log_to_clean`, `dirtiest` and `plan_for`.

1. A log is cleaned from its start to its first segment that may not be: the active one, one that
   reaches above the last stable offset (so above the high watermark), one with a record younger
   than `min.compaction.lag.ms` (a file younger than that where records have no timestamps). After
   a restart nothing is cleaned until the high watermark has reached the producer snapshot that was
   loaded.
2. The dirtiest log is next: the one with the largest share of bytes that were never cleaned, if it
   is above `min.cleanable.dirty.ratio`, or has dirty records older than `max.compaction.lag.ms`.
3. Where the offset in the checkpoint is outside the log, the whole log is dirty.

Source: Kafka's `LogCleanerManager`, `LogToClean`. Not here: the round itself (`cleaning.py`), the
checkpoint (`log_cleaner.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import NamedTuple

from twisted_broker.log.cleaner.batch_filter import LastRecord
from twisted_broker.log.cleaner.cleaning import CleaningPlan, SegmentPart
from twisted_broker.log.log import Log
from twisted_broker.log.retention import age_from
from twisted_broker.log.segment import LogSegment
from twisted_broker.log.txn_index import AbortedTxn
from twisted_broker.settings import LONG_MAX

PRODUCERS_PER_STEP = 500


class LogToClean(NamedTuple):
    """`first_dirty`: where cleaning begins to look; `upper_bound`: the base offset of the first
    segment that stays as it is. `is_overdue`: dirty records are older than the largest lag.
    """

    log: Log
    first_dirty: int
    upper_bound: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        """The dirty share of what may be cleaned, 0 to 1."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        if self.is_overdue and self.cleanable_bytes:
            return True
        return self.ratio > self.log.config.min_cleanable_dirty_ratio


def first_dirty_offset(log: Log, checkpoint: int | None) -> int:
    """The offset up to which the log was cleaned."""
    if checkpoint is None or not log.log_start_offset <= checkpoint <= log.log_end_offset:
        return log.log_start_offset
    return checkpoint


def log_to_clean(log: Log, checkpoint: int | None, wall_ms: int) -> LogToClean:
    """What cleaning this log would be. Raises OSError."""
    first_dirty = first_dirty_offset(log, checkpoint)
    dirty = [
        segment
        for segment in log.segments.between(first_dirty, log.segments.active.base_offset)
        if segment is not log.segments.active
    ]
    stable = min(log.last_stable_offset, log.segments.active.base_offset)
    if not log.producers.knows_what_is_decided(log.high_watermark):
        # After a restart: a transaction may count as committed by a marker that may still be
        # truncated. Older records of its keys must stay until then; Kafka removes them.
        stable = first_dirty
    upper = max(first_dirty, min(stable, _too_young(log, dirty, wall_ms)))
    # Segments are cleaned whole: the one that holds the bound is not.
    upper = _segment_start(log, upper)
    clean_bytes = cleanable_bytes = 0
    for segment in log.segments:
        if segment.base_offset >= upper:
            break
        if segment.base_offset < first_dirty and _end(log, segment) <= first_dirty:
            clean_bytes += segment.size
        else:
            cleanable_bytes += segment.size
    return LogToClean(
        log, first_dirty, upper, clean_bytes, cleanable_bytes, _is_overdue(log, dirty, wall_ms)
    )


def _too_young(log: Log, dirty: list[LogSegment], wall_ms: int) -> int:
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for segment in dirty:
            if age_from(log, segment) > wall_ms - lag_ms:
                return segment.base_offset
    return log.segments.active.base_offset


def _is_overdue(log: Log, dirty: list[LogSegment], wall_ms: int) -> bool:
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms >= LONG_MAX:
        # The usual case; no file is looked at.
        return False
    firsts = [segment.first_timestamp() for segment in dirty]
    return any(0 < first < wall_ms - lag_ms for first in firsts)


def _segment_start(log: Log, offset: int) -> int:
    """The base offset of the segment that holds `offset`."""
    segment = log.segments.at(log.segments.row_of(offset))
    return log.segments.first.base_offset if segment is None else segment.base_offset


def _end(log: Log, segment: LogSegment) -> int:
    following = log.segments.at(log.segments.row_of(segment.base_offset) + 1)
    return log.log_end_offset if following is None else following.base_offset


def dirtiest(candidates: Iterable[LogToClean]) -> LogToClean | None:
    """The one to clean next, None when none is due."""
    due = [each for each in candidates if each.is_due]
    return max(due, key=lambda each: each.ratio, default=None)


def plan_for(
    chosen: LogToClean, wall_ms: int, map_slots: int, load_factor: float
) -> Generator[None, None, CleaningPlan]:
    """The round, as plain values; pauses where there are many producers. Raises OSError."""
    log = chosen.log
    parts = tuple(
        SegmentPart(segment.base_offset, segment.size)
        for segment in log.segments
        if segment.base_offset < chosen.upper_bound
    )
    # Segments are written anew from their beginning, which may be below the log start; a crash may
    # take that back.
    start, upper = log.segments.first.base_offset, chosen.upper_bound
    config, aborted = log.config, _aborted(log, start, upper)
    last_records, uncertain = yield from _last_records(log, upper)
    return CleaningPlan(
        log.directory,
        parts,
        chosen.first_dirty,
        upper,
        aborted,
        last_records,
        uncertain,
        config.segment_bytes,
        config.segment_index_bytes,
        config.index_interval_bytes,
        config.delete_retention_ms,
        wall_ms,
        map_slots,
        load_factor,
    )


def _last_records(
    log: Log, upper: int
) -> Generator[None, None, tuple[dict[int, LastRecord], tuple[int, ...]]]:
    """The last records below the high watermark of producers that have them below `upper`, and the
    producers whose last record there must be looked up in the log. Records above the high watermark
    do not count, for they may still be truncated; in Kafka they do.

    What a producer writes between two steps lies above `upper`: its last record here stays, or a
    later one is committed.
    """
    found: dict[int, LastRecord] = {}
    uncertain: list[int] = []
    for number, producer_id in enumerate(list(log.producers.producers), 1):
        if number % PRODUCERS_PER_STEP == 0:
            yield
        entry, high_watermark = log.producers.producers.get(producer_id), log.high_watermark
        if entry is None:  # it expired meanwhile
            continue
        last = next((each[1] for each in reversed(entry.batches) if each[1] < high_watermark), -1)
        if last >= 0 or log.producers.newest_offset < high_watermark:
            # What lies above the range is no batch of it; without data a marker may be.
            if last < upper:
                found[producer_id] = LastRecord(last, entry.producer_epoch)
        else:
            # Its epoch may have begun above the high watermark, by data or by a marker; or more of
            # its batches are there than are remembered.
            uncertain.append(producer_id)
    return found, tuple(uncertain)


def _aborted(log: Log, start: int, upper: int) -> tuple[AbortedTxn, ...]:
    found: list[AbortedTxn] = []
    for segment in log.segments:
        if segment.txn_index.collect(start, upper, found):
            break
    return tuple(found)
