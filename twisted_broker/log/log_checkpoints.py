"""The checkpoints of logs: recovery points and log starts, one file of each in every directory.

Owns `LogCheckpoints`: when they are written, on the directory's worker.

1. After a truncation, and after a start that found less than was checkpointed, the recovery point
   is on its way to the disk at once (RL 3.5); so is a log start that a truncation lowered.
2. One job waits in a directory at a time: it reads the points of its own time.

Source: RL 3.5; Kafka's `LogManager.checkpointLogRecoveryOffsets`, `checkpointLogStartOffsets`. Not
here: what a log may say of its disk (`durability.py`), the files (`checkpoints.py`), high
watermarks (`replication.high_watermark_checkpoint`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from twisted_broker.interfaces import IFileSystem
from twisted_broker.log import checkpoints
from twisted_broker.log.log import Log
from twisted_broker.log.log_directories import LogDirectories
from twisted_broker.log.log_directory import LogDirectory, log_starts


class LogCheckpoints:
    """`logs_in(directory)`: its logs that have not failed, future logs among them."""

    def __init__(
        self,
        files: IFileSystem,
        directories: LogDirectories,
        logs_in: Callable[[LogDirectory], list[Log]],
    ) -> None:
        self._files, self._directories, self._logs_in = files, directories, logs_in
        self._is_due = False

    def loaded(self, directory: LogDirectory) -> None:
        """After an unclean stop rows may be above what was found whole, after a clean one where a
        file was damaged since: what is appended there would count as synced if this broker crashed
        again before the next checkpoint.
        """
        rows, is_above = directory.recovery_points, False
        for log in self._logs_in(directory):
            log.durability.found_checkpoint(rows.get(log.topic_partition, 0))
            is_above |= log.durability.is_checkpoint_above
        if is_above:
            self.write_recovery_points(directory)

    def soon(self) -> None:
        """The checkpoints without what was taken out: once for all that goes in this turn."""
        if not self._is_due:
            self._is_due = True
            self._directories.call_later(0, self._write)

    def _write(self) -> None:
        self._is_due = False
        self.recovery_points()
        self.log_starts()

    def recovery_points(self) -> None:
        """Writes the recovery points of every directory, on its worker."""
        for directory in self._directories.online():
            self.write_recovery_points(directory)

    def write_recovery_points(self, directory: LogDirectory) -> None:
        """On its worker."""
        # A job that still waits will read the points of its own time: a thousand logs that are
        # truncated together need one checkpoint of all logs, not a thousand.
        if directory.is_checkpoint_waiting:
            return
        directory.is_checkpoint_waiting = True
        logs = self._logs_in(directory)
        points: list[tuple[Log, int, int]] = []

        def job() -> None:
            # First: a change from here on needs another job.
            directory.is_checkpoint_waiting = False
            points.extend(
                (log, *log.durability.point_in_write())
                for log in logs
                if log.failed is None  # set aside meanwhile: its name may be another log's by now
            )
            offsets = {log.topic_partition: point for log, point, _ in points}
            checkpoints.write_offsets(
                self._files, directory.path, checkpoints.RECOVERY_POINT, offsets
            )

        def written() -> None:
            for log, point, truncations in points:
                log.durability.point_written(point, truncations)

        again = partial(self.write_recovery_points, directory)
        self._directories.submit(directory, job, again, written)

    def log_starts(self) -> None:
        """Writes the log starts that differ from the first segment's base, on each directory's
        worker.
        """
        for directory in self._directories.online():
            self._write_log_starts(directory)

    def _write_log_starts(self, directory: LogDirectory) -> None:
        logs = self._logs_in(directory)
        offsets = log_starts(logs)
        lowered = [
            (log, truncations)
            for log in logs
            if (truncations := log.durability.start_to_write) is not None
        ]

        def written() -> None:
            for log, truncations in lowered:
                log.durability.start_written(truncations)

        self._directories.submit(
            directory,
            lambda: checkpoints.write_offsets(
                self._files, directory.path, checkpoints.LOG_START_OFFSET, offsets
            ),
            # What is written each minute comes again anyway.
            partial(self._write_log_starts, directory) if lowered else None,
            written,
        )

    def truncated(self, log: Log) -> None:
        """RL 3.5: the recovery point at once, and the log start where that went back."""
        directory = self._directories.of(log)
        if log.durability.start_to_write is not None:
            self._write_log_starts(directory)
        self.write_recovery_points(directory)
