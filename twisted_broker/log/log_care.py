"""What logs need now and then.

Owns `LogCare`: retention, checkpoints of recovery points and log starts, expiry of producers, syncs
by age.

1. A task that fails is logged and comes again; none waits for the disk.
2. After a cut the recovery point is on its way to the disk at once (RL 3.5).

Ring 1. Source: Kafka's `LogManager.startup`; RL 3.2, 3.6, 3.7. Left out: the cleaner,
high-watermark checkpoints (`replication`).
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from twisted_broker.interfaces import TopicPartition
from twisted_broker.log import checkpoints
from twisted_broker.log.errors import LogDirFailure, OutOfDescriptors
from twisted_broker.log.log import Log
from twisted_broker.log.log_directories import LogDirectories
from twisted_broker.log.log_directory import LogDirectory
from twisted_broker.log.log_state import LogState
from twisted_broker.periodic import PeriodicTasks

_log = Logger()
_NEVER_MS = 2**40


class LogCare(LogDirectories):
    """Directories whose logs are looked after once `start_care` was called."""

    _tasks: PeriodicTasks | None = None
    log_start_moved: Callable[[Log], None] | None = None
    """told of each log that retention cut at its beginning"""

    log_synced: Callable[[Log], None] | None = None
    """told of each log where a sync that appends waited for is done"""

    def start_care(self) -> None:
        config = self.config
        tasks = (
            (config.integer("log.retention.check.interval.ms"), self.delete_old_segments),
            (
                config.integer("log.flush.offset.checkpoint.interval.ms"),
                self.checkpoint_recovery_points,
            ),
            (
                config.integer("log.flush.start.offset.checkpoint.interval.ms"),
                self.checkpoint_log_starts,
            ),
            (config.integer("producer.id.expiration.check.interval.ms"), self.expire_producers),
            (config.integer("log.flush.scheduler.interval.ms"), self.flush_dirty_logs),
        )
        self._tasks = PeriodicTasks(self.runtime.clock)
        for interval_ms, task in tasks:
            if interval_ms < _NEVER_MS:
                self._tasks.every(max(interval_ms, 1) / 1000, task, "a periodic task of the logs")

    def stop_care(self) -> None:
        if self._tasks is not None:
            self._tasks.stop()
            self._tasks = None

    def checkpoint_recovery_points(self) -> None:
        """Writes the recovery points of every directory, on its worker."""
        for directory in self.online():
            self._checkpoint_recovery_points(directory)

    def _checkpoint_recovery_points(self, directory: LogDirectory) -> None:
        offsets = {log.topic_partition: log.recovery_point for log in self._logs_of(directory)}
        self._submit(
            directory,
            lambda: checkpoints.write_offsets(
                self.runtime.files, directory.path, checkpoints.RECOVERY_POINT, offsets
            ),
            lambda: self._checkpoint_recovery_points(directory),
        )

    def checkpoint_log_starts(self) -> None:
        """Writes the log starts that differ from the first segment's base, on each directory's
        worker.
        """
        for directory in self.online():
            offsets = log_starts(self._logs_of(directory))
            self._submit(
                directory,
                lambda directory=directory, offsets=offsets: checkpoints.write_offsets(  # type: ignore[misc]
                    self.runtime.files, directory.path, checkpoints.LOG_START_OFFSET, offsets
                ),
            )

    def _was_truncated(self, log: LogState) -> None:
        """RL 3.5: the recovery point of a cut log is on its way to the disk at once."""
        self._checkpoint_recovery_points(self.directory_of(log))

    def _was_synced(self, log: LogState) -> None:
        if self.log_synced is not None:
            self.log_synced(self.logs[log.topic_partition])

    def delete_old_segments(self) -> None:
        """Applies retention to every log."""
        for log in list(self):
            before = log.log_start_offset
            if log.failed is None:
                try:
                    log.delete_old_segments(self.runtime.wall_ms())
                except OutOfDescriptors:
                    pass  # it comes again
                except LogDirFailure:
                    _log.error("retention stopped on {log}", log=log.topic_partition)
            if log.log_start_offset != before and self.log_start_moved is not None:
                self.log_start_moved(log)

    def expire_producers(self) -> None:
        for log in self:
            log.producers.expire(self.runtime.wall_ms())

    def flush_dirty_logs(self) -> None:
        """Syncs logs that are older than `flush.ms`."""
        now_ms = self.runtime.wall_ms()
        for log in self:
            if log.failed is None and now_ms - log.last_flush_ms >= log.config.flush_ms:
                log.last_flush_ms = now_ms
                log.flush(log.disk)


def log_starts(logs: list[Log]) -> dict[TopicPartition, int]:
    """The log starts that do not follow from the first segment."""
    return {
        log.topic_partition: log.log_start_offset
        for log in logs
        if log.log_start_offset > log.segments.first.base_offset
    }
