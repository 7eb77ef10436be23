"""The periodic work on logs.

Owns `LogUpkeep`: retention, expiry of producers, and syncs by age, of all logs.

1. Retention and expiry go over all logs, some at a time, and begin no second walk while one is on
   its way. Syncs by age begin together: the disk workers do them.
2. Retention leaves alone a log that failed, is cleaned, moves, or has a hole, and one that was
   taken out since the walk began.
3. A log whose disk fails is logged in one line, and the walk goes on. Where descriptors are short
   the next walk tries again.

Ring 1. Source: Kafka's `LogManager.cleanupLogs`, `flushDirtyLogs`, and the expiry of producer ids
that `UnifiedLog` schedules; RL 3.2, 3.8. Not here: when (`log_manager.py`); which segments are old
(`retention.py`), which producers are (`producer_state.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from twisted.logger import Logger

from twisted_broker.event_lines import EventLines
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.log.cleaner.log_cleaner import LogCleaner
from twisted_broker.log.errors import LogFailure, OutOfDescriptors
from twisted_broker.log.log import Log
from twisted_broker.log.log_moves import LogMoves
from twisted_broker.turns import Turns

_logger = Logger()
# About half a millisecond where there is nothing to delete.
RETENTION_PER_STEP = 100
# Some 0.15 ms each: its files get other names.
SEGMENTS_PER_STEP = 10
# About half a millisecond.
PRODUCERS_PER_STEP = 2000


class ILogs(Protocol):
    """All logs of the broker, without future logs."""

    def __iter__(self) -> Iterator[Log]: ...

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The partition's log; None: there is none."""
        ...

    def log_start_moved(self, log: Log) -> None:
        """Retention raised its start."""
        ...


class LogUpkeep:
    """Each method is one periodic task."""

    def __init__(
        self,
        runtime: Runtime,
        turns: Turns,
        cleaner: LogCleaner,
        moves: LogMoves,
        lines: EventLines,
        logs: ILogs,
    ) -> None:
        self._runtime, self._turns = runtime, turns
        self._cleaner, self._moves = cleaner, moves
        self._lines, self._logs = lines, logs
        self._is_deleting = self._is_expiring = False

    def delete_old_segments(self) -> None:
        """Applies retention to every log, a few at a time; not again while it does."""
        if not self._is_deleting:
            self._is_deleting = True
            self._turns.start(self._delete_old_segments())

    def _delete_old_segments(self) -> Iterator[None]:
        try:
            for number, log in enumerate(self._logs, 1):
                yield from self._delete_segments_of(log)
                if number % RETENTION_PER_STEP == 0:
                    yield
        finally:
            self._is_deleting = False

    def _delete_segments_of(self, log: Log) -> Iterator[None]:
        segments = size = 0
        while True:
            deleted, freed = self._delete_some_of(log)
            segments, size = segments + deleted, size + freed
            if deleted < SEGMENTS_PER_STEP:
                break
            yield
        if segments:
            self._lines.add(
                "retention deleted segments",
                partition=log.topic_partition,
                segments=segments,
                bytes=size,
                log_start_offset=log.log_start_offset,
            )

    def _delete_some_of(self, log: Log) -> tuple[int, int]:
        """Segments and bytes that were deleted."""
        deleted = freed = 0
        # It may have been deleted since the walk began.
        if self._logs.get(log.topic_partition) is log:
            before = log.log_start_offset
            if (
                log.failed is None
                and log.gap is None
                and not self._cleaner.is_cleaning(log)
                and log.topic_partition not in self._moves.futures
            ):
                size = log.size_in_bytes
                try:
                    deleted = log.delete_old_segments(self._runtime.wall_ms(), SEGMENTS_PER_STEP)
                    freed = size - log.size_in_bytes if deleted else 0
                except OutOfDescriptors:
                    pass  # it comes again
                except LogFailure as error:
                    _logger.error(
                        "retention of {log} failed: {error}",
                        log=log.topic_partition,
                        error=error,
                    )
            if log.log_start_offset != before:
                self._logs.log_start_moved(log)
        return deleted, freed

    def expire_producers(self) -> None:
        """Of every log, so many producers at a time; not again while it does."""
        if not self._is_expiring:
            self._is_expiring = True
            self._turns.start(self._expire_producers())

    def _expire_producers(self) -> Iterator[None]:
        try:
            seen = 0
            for log in (*self._logs, *self._moves.futures.values()):
                producers = log.producers
                producers.expire_verifications(self._runtime.wall_ms())
                seen += 1
                producer_ids = list(producers.producers)
                for start in range(0, max(1, len(producer_ids)), PRODUCERS_PER_STEP):
                    some = producer_ids[start : start + PRODUCERS_PER_STEP]
                    producers.expire(some, self._runtime.wall_ms())
                    seen += len(some)
                    if seen >= PRODUCERS_PER_STEP:
                        seen = 0
                        yield
        finally:
            self._is_expiring = False

    def flush_dirty_logs(self) -> None:
        """Syncs each log every `flush.ms`, by the monotonic clock."""
        now_ms = self._runtime.now_ms()
        for log in self._logs:
            durability = log.durability
            if (
                log.failed is None
                and log.gap is None
                and now_ms - durability.last_flush_ms >= log.config.flush_ms
            ):
                durability.last_flush_ms = now_ms
                durability.flush()
