"""Where a log begins and ends.

Owns `LogExtent`: rolling, truncation, the log start, retention's entry, closing, moving, deleting.

1. After a cut nothing speaks of what was cut: epochs, producers, snapshots, indexes, recovery
   point, high watermark.
2. A cut costs the reactor what was cut and a bounded rest: producers that are far from a snapshot
   are found behind it.
3. Files are taken away so that a crash in between leaves no hole (`segments.py`).

Source: Kafka's `UnifiedLog.truncateTo`, `LocalLog.roll`; RL 3.1, 3.5, 3.7. Left out: when to roll
on an append (`log.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from twisted_broker.config import LogConfig
from twisted_broker.log import producer_rebuild, retention
from twisted_broker.log.gaps import ASIDE, Gap
from twisted_broker.log.log_reading import LogReading
from twisted_broker.log.validation import needs_preparation
from twisted_broker.wire.errors import BrokerError, ErrorCode


class LogExtent(LogReading):
    """The extent of a log."""

    __slots__ = ()

    def roll(self, now_ms: int, expected_next_offset: int = 0) -> None:
        """Starts a new segment at the log end (or the offset expected next, if above); nothing
        on an empty active one.
        """
        self.check_online()
        try:
            self._roll(now_ms, expected_next_offset)
        except OSError as error:
            raise self.fail(error) from error

    def _roll(self, now_ms: int, expected_next_offset: int) -> None:
        base = max(expected_next_offset, self.log_end_offset)
        active = self.segments.active
        if active.base_offset == base:
            assert active.size == 0, (base, active.size)
            active.create()
            active.created_ms = now_ms
            return
        active.become_inactive()
        self.producers.map_end_offset = base
        self.producers.take_snapshot()
        self.segments.create(base, now_ms)
        self.log_end_offset = base
        self.flush(self.disk, base)

    def truncate_to(self, offset: int, now_ms: int = 0) -> bool:
        """Drops everything from `offset` on (RL 3.5); False when there is nothing."""
        self.check_online()
        assert offset >= 0
        if offset >= self.log_end_offset:
            self.leader_epochs.truncate_from_end(
                self.log_end_offset
            )  # an epoch that was begun here and never written to
            return False
        if offset < self.segments.first.base_offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return True
        try:
            self.segments.remove_above(offset)
            self.segments.active.truncate_to(offset, now_ms)
            self._end_at(offset)
            self.log_start_offset = min(self.log_start_offset, offset)
            self.leader_epochs.truncate_from_end(offset)
            self._cut_producers(now_ms)
        except OSError as error:
            raise self.fail(error, midway=True) from error
        self._after_cut()
        return True

    def truncate_fully_and_start_at(
        self, offset: int, now_ms: int = 0, log_start_offset: int | None = None
    ) -> None:
        """Deletes everything and begins one segment at `offset`; the log start becomes `offset`
        unless given.
        """
        self.check_online()
        try:
            self.segments.remove_all()
            self.segments.create(offset, now_ms)
            self._end_at(offset)
            self.log_start_offset = offset if log_start_offset is None else log_start_offset
            self.leader_epochs.clear()
            self.rebuild = None
            self.producers.reset(offset)
        except OSError as error:
            raise self.fail(error, midway=True) from error
        self._after_cut()

    def _end_at(self, offset: int) -> None:
        self._cuts += 1
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.unflushed_since = min(self.unflushed_since, offset)

    def _after_cut(self) -> None:
        self._unstable_metadata = None
        self.find_first_unstable()
        self._settle()
        self.set_high_watermark(
            max(self.log_start_offset, min(self.high_watermark, self.log_end_offset))
        )
        if self.truncated is not None:
            self.truncated(self)

    def end_before_gap(self, gap: Gap, now_ms: int) -> int:
        """Ends the log where offsets are missing; the record files behind are renamed and kept.

        Their number.
        """
        self.check_online()
        try:
            kept = self.segments.set_aside_above(gap.offset, ASIDE)
        except OSError as error:
            raise self.fail(error) from error
        self.truncate_to(gap.offset, now_ms)
        return kept

    def increment_log_start_offset(self, offset: int) -> bool:
        """Raises the log start (DeleteRecords, retention, the leader's word).

        OFFSET_OUT_OF_RANGE above the high watermark.
        """
        self.check_online()
        if offset > self.high_watermark:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"log start {offset} would pass the high watermark {self.high_watermark}",
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producers.on_log_start_moved(offset)
        self.find_first_unstable()
        return True

    def rebuild_producers(self, now_ms: int, recovered: frozenset[int] = frozenset()) -> None:
        """Brings the producer state to the log end: newest snapshot, the batches since, and those
        before that may be sent again. OSError.

        Slow where much was written since that snapshot. `recovered` are base offsets of segments
        whose transaction index is empty and must be filled again.
        """
        self.producers.truncate_and_reload(self.log_start_offset, self.log_end_offset, now_ms)
        producer_rebuild.replay(self, recovered)

    def _cut_producers(self, now_ms: int) -> None:
        """As `rebuild_producers` after a cut, but what takes long goes on behind it, in slices."""
        producers, end = self.producers, self.log_end_offset
        # What is in the transaction indexes: all below the cut, as far as an unfinished rebuild
        # before had filled them.
        filled = end if self.rebuild is None else min(end, self.rebuild.filled)
        self.rebuild = None
        if not producers.truncate_and_reload(self.log_start_offset, end, now_ms):
            self.find_first_unstable()
        elif self.disk is None or (
            filled == end and producer_rebuild.is_short(self, producers.map_end_offset)
        ):
            producer_rebuild.replay(self)
            producers.behind = False
        else:
            self.rebuild = producer_rebuild.ProducerRebuild(self, self.disk, filled)
            self.rebuild.run()

    def delete_old_segments(self, now_ms: int) -> int:
        """Applies retention (RL 3.7); returns the number of segments deleted."""
        return retention.delete_old_segments(self, now_ms)

    def update_config(self, config: LogConfig) -> None:
        """Acts at once; index sizes from the next segment on."""
        self.config = self.segments.config = config
        self._prepare = needs_preparation(config)
        self.producers.expiration_ms = config.producer_id_expiration_ms
        self.segments.active.index_interval_bytes = config.index_interval_bytes

    def finish(self) -> Callable[[], None]:
        """Completes indexes and leaves a producer snapshot; returns what must then run on the disk
        worker. OSError.

        When that has run, records, epochs, transactions and producers are durable; `release_files`
        comes last. Indexes are not synced: lost ones are made anew. With the recovery point at the
        end nothing is left to do: an epoch that began since has no records.
        """
        if self.failed is not None:
            return _nothing
        self.segments.active.become_inactive()
        self.producers.take_snapshot()
        if self.recovery_point >= self.log_end_offset:
            return _nothing
        return self._sync_job(self.log_end_offset + 1, without_indexes=True)

    def release_files(self) -> None:
        self.segments.close()

    def close(self) -> None:
        """A clean end in one go. OSError; slow."""
        self.finish()()
        if self.failed is None:
            self.recovery_point = self.log_end_offset
        self.release_files()

    def rename_directory(self, directory: str) -> None:
        """Moves the log to another name in the same log directory; slices stay readable.

        OSError.
        """
        self.pool.files.rename(self.directory, directory)
        self.directory = self.producers.directory = directory
        self.segments.move(directory)

    def delete(self) -> None:
        """Closes and deletes all files. OSError; slow."""
        self.segments.close()
        self.failed = self.failed or OSError("the log is deleted")
        if self.pool.files.exists(self.directory):
            self.pool.files.remove_tree(self.directory)


def _nothing() -> None:
    """All is durable."""
