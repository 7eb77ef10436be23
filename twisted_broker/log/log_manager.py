"""All logs of this broker.

Owns `LogManager`: loading, making and deleting logs, and a clean stop, over `LogDirectories` and
`LogCare`.

1. A partition has one log, in one directory; a new one goes to the directory with the fewest logs.
2. Loading, syncs, checkpoints and removal of files run on the directory's disk worker; nothing here
   waits for the disk but the making of a log and the very end of a stop.
3. A clean stop is: logs closed and synced, checkpoints, then the mark; a directory that failed, or
   was never loaded, gets no mark.
4. The mark carries the broker epoch of the registration; a process that never registered leaves the
   epoch that it found.

Source: Kafka's `LogManager`; RL 1.5, 1.12, 3.6-3.8. Left out: high-watermark checkpoints
(`replication/high_watermark_checkpoint.py`), the cleaner, moving a log between directories.
"""

from __future__ import annotations

import contextlib
import posixpath
from functools import partial

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from twisted_broker.config import LogConfig, topic_config
from twisted_broker.interfaces import IFileSystem, TopicPartition
from twisted_broker.log import checkpoints
from twisted_broker.log.errors import LogDirFailure, OutOfDescriptors, is_out_of_descriptors
from twisted_broker.log.log import Log
from twisted_broker.log.log_care import LogCare, log_starts
from twisted_broker.log.log_directory import DELETE_SUFFIX, STRAY_SUFFIX, LogDirectory
from twisted_broker.wire.errors import BrokerError, ErrorCode

_log = Logger()
_LONGEST_NAME = 255


class LogManager(LogCare):
    """All logs by partition; `start` first, `shutdown` last."""

    _stopped = _checkpoint_due = False

    def start(self) -> Deferred[None]:
        """Claims all directories (LogDirMismatch, CheckpointError raise at once) and loads their
        logs; fires when all are loaded.

        Errbacks with LogDirFailure when no directory is left.
        """
        for directory in sorted(
            self.directories.values(), key=lambda each: each.before_format is None
        ):
            try:
                directory.claim(self.config.node_id, self.cluster_id)
            except OSError as error:
                if is_out_of_descriptors(error):
                    raise
                self._fail_directory(directory, error)
        waiting = [self._load(directory) for directory in self.online()]
        return gather(waiting).addCallback(self._loaded)

    def _load(self, directory: LogDirectory) -> Deferred[None]:
        loaded: Deferred[None] = Deferred()
        now_ms, default = self.runtime.wall_ms(), topic_config(self.config, {})

        def finish(logs: list[Log] | None, error: BaseException | None) -> None:
            if isinstance(error, OSError) and not is_out_of_descriptors(error):
                self._fail_directory(directory, error)
            elif error is not None:
                loaded.errback(error)
                return
            try:
                for log in logs or ():
                    self._take(directory, log)
            except BrokerError as refusal:
                loaded.errback(refusal)
                return
            for path in directory.to_delete:
                self._remove_tree(directory, path)
            loaded.callback(None)

        directory.disk.submit(lambda: directory.load(self.config_of, default, now_ms), finish)
        return loaded

    def _take(self, directory: LogDirectory, log: Log) -> None:
        if log.topic_partition in self.logs:
            other = self.logs[log.topic_partition].directory
            raise BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{log.topic_partition} is in {other} and in {log.directory}",
            )
        log.disk, log.segments.remove_later = directory.disk, self._remover(directory)
        log.truncated = self._was_truncated
        log.failing = self._log_failed
        log.synced = self._was_synced
        self.logs[log.topic_partition] = log

    def _loaded(self, _: object) -> None:
        if not self.online():
            causes = [directory.failed for directory in self.directories.values()]
            raise LogDirFailure(", ".join(self.directories), causes[0])
        self.start_care()

    def get_or_create(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        config: LogConfig,
        is_new: bool = False,
        directory_id: bytes | None = None,
    ) -> Log:
        """The partition's log, made if need be.

        BrokerError KAFKA_STORAGE_ERROR: a replica that is not new may be in a directory that is
        offline, or the disk fails now, or (OutOfDescriptors) no file can be opened for now;
        INCONSISTENT_TOPIC_ID: the log belongs to another topic of that name.
        """
        log = self.logs.get(topic_partition)
        if log is not None:
            if topic_id is not None and log.topic_id is not None and topic_id != log.topic_id:
                raise BrokerError(
                    ErrorCode.INCONSISTENT_TOPIC_ID,
                    f"{topic_partition} is here with another topic id",
                )
            if topic_id is not None and log.topic_id is None:
                self._give_id(log, topic_id)
            log.update_config(config)
            return log
        if not is_new and self.offline():
            raise BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{topic_partition} may be in a directory that is offline",
            )
        return self._create(self._directory_for(directory_id), topic_partition, topic_id, config)

    def _directory_for(self, directory_id: bytes | None) -> LogDirectory:
        """The directory asked for, else the least loaded."""
        online = self.online()
        if not online:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "no log directory is left")
        for directory in online:
            if directory.directory_id == directory_id or len(online) == 1:
                return directory
        counts = dict.fromkeys((directory.path for directory in online), 0)
        for log in self.logs.values():
            parent = posixpath.dirname(log.directory)
            if parent in counts:
                counts[parent] += 1
        return min(online, key=lambda directory: counts[directory.path])

    def _create(
        self,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        config: LogConfig,
    ) -> Log:
        directory.recovery_points.pop(topic_partition, None)
        directory.log_starts.pop(topic_partition, None)
        try:
            log = directory.create(topic_partition, topic_id, config, self.runtime.wall_ms())
        except OSError as error:
            self._fail_directory(directory, error)
            if is_out_of_descriptors(error):
                raise OutOfDescriptors(directory.path, error) from error
            raise LogDirFailure(directory.path, error) from error
        self._take(directory, log)
        directory.without_id.append(log)
        if len(directory.without_id) == 1:
            self._submit_topic_ids(directory)
        return log

    def _submit_topic_ids(self, directory: LogDirectory) -> None:
        self._submit(
            directory,
            lambda: _write_topic_ids(directory),
            lambda: self._submit_topic_ids(directory),
        )

    def _give_id(self, log: Log, topic_id: bytes) -> None:
        """Writes the id of a log that had none (made by an old broker)."""
        try:
            checkpoints.write_partition_metadata(self.runtime.files, log.directory, topic_id)
        except OSError as error:
            raise log.fail(error) from error
        log.topic_id = topic_id

    def delete(self, topic_partition: TopicPartition) -> None:
        """Takes the log out at once (directory renamed `-delete`); its files go after
        `file.delete.delay.ms`.
        """
        self._set_aside(topic_partition, DELETE_SUFFIX)

    def set_stray_aside(self, topic_partition: TopicPartition) -> None:
        """Takes a log out that the metadata does not know, and keeps its files as `-stray`."""
        self._set_aside(topic_partition, STRAY_SUFFIX)

    def _set_aside(self, topic_partition: TopicPartition, suffix: str) -> None:
        log = self.logs.pop(topic_partition, None)
        if log is None or log.failed is not None:
            return
        directory = self.directory_of(log)
        path = posixpath.join(
            directory.path,
            _aside_name(topic_partition, self.runtime.random.getrandbits(128), suffix),
        )
        directory.recovery_points.pop(topic_partition, None)
        directory.log_starts.pop(topic_partition, None)
        log.truncated = log.failing = log.synced = None
        try:
            log.rename_directory(path)
        except OSError as error:
            self._fail_directory(directory, error)
            return
        log.segments.close()
        log.failed = FileNotFoundError(f"{topic_partition} was deleted")
        self._checkpoint_soon()
        if suffix == DELETE_SUFFIX:
            self._later(
                log.config.file_delete_delay_ms / 1000, lambda: self._remove_tree(directory, path)
            )

    def _checkpoint_soon(self) -> None:
        """The checkpoints without what was taken out: once for all that goes in this turn."""
        if not self._checkpoint_due:
            self._checkpoint_due = True
            self._later(0, self._checkpoint)

    def _checkpoint(self) -> None:
        self._checkpoint_due = False
        self.checkpoint_recovery_points()
        self.checkpoint_log_starts()

    def shutdown(self, broker_epoch: int | None = None) -> Deferred[None]:
        """A clean stop: fires when every directory is closed, marked and unlocked (those that
        failed, or were not loaded, only unlocked).

        `broker_epoch` None: this process never registered, so each directory's mark keeps the epoch
        that was read from it.
        """
        if self._stopped:
            return succeed(None)
        self._stopped = True
        self.stop_care()
        for timer in self._delayed:
            timer.cancel()
        waiting = [self._close(directory, broker_epoch) for directory in self.directories.values()]
        return gather(waiting).addCallback(self._all_closed)

    def _close(self, directory: LogDirectory, broker_epoch: int | None) -> Deferred[None]:
        closed: Deferred[None] = Deferred()
        logs = self._logs_of(directory)
        points = {log.topic_partition: log.log_end_offset for log in logs}
        starts = log_starts(logs)

        def done(_: None, error: BaseException | None) -> None:
            if error is not None:
                _log.error(
                    "log directory {path} did not close cleanly: {error!r}",
                    path=directory.path,
                    error=error,
                )
            for log in logs:
                log.release_files()
            directory.release()
            closed.callback(None)

        try:
            jobs = [log.finish() for log in logs]
        except OSError as error:
            directory.failed = error

        def job() -> None:
            directory.disk.side_by_side(jobs)
            checkpoints.write_offsets(
                self.runtime.files, directory.path, checkpoints.RECOVERY_POINT, points
            )
            checkpoints.write_offsets(
                self.runtime.files, directory.path, checkpoints.LOG_START_OFFSET, starts
            )
            directory.leave_clean_mark(
                directory.previous_broker_epoch if broker_epoch is None else broker_epoch
            )

        if directory.failed is None and directory.loaded:
            directory.disk.submit(job, done)
        else:
            done(None, directory.failed)  # nothing is written to what is perhaps another process's
        return closed

    def _all_closed(self, _: object) -> None:
        self.logs.clear()
        for directory in self.directories.values():
            directory.disk.stop()


async def _all(waiting: list[Deferred[None]]) -> None:
    errors: list[Exception] = []
    for deferred in waiting:
        try:
            await deferred
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def gather(waiting: list[Deferred[None]]) -> Deferred[None]:
    """Fires when all have; errbacks then with the first error in their order."""
    return Deferred.fromCoroutine(_all(waiting))


def _aside_name(topic_partition: TopicPartition, unique: int, suffix: str) -> str:
    """`topic-partition.<32 hex>-delete`, the topic cut so that the name is not too long."""
    tail = f"-{topic_partition.partition}.{unique:032x}{suffix}"
    return topic_partition.topic[: _LONGEST_NAME - len(tail)] + tail


def _write_topic_ids(directory: LogDirectory) -> None:
    """Writes `partition.metadata` of new logs, durably: on the disk worker, for all that came
    since.

    A log whose records outlive a power failure and whose topic id does not would be taken for one
    of another topic of its name.
    """
    waiting, written = directory.without_id, list[Log]()
    while waiting:
        log = waiting[0]
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            if log.topic_id is not None:
                checkpoints.write_partition_metadata(
                    directory.files, log.directory, log.topic_id, sync=False
                )
            written.append(log)
        # last: a log that comes before this needs no job of its own, one that comes after it gets
        # one
        waiting.popleft()
    directory.disk.side_by_side(
        [partial(_sync_name, directory.files, log.directory) for log in written]
    )
    directory.files.sync_directory(directory.path)
    for log in written:
        log.named = True


def _sync_name(files: IFileSystem, directory: str) -> None:
    checkpoints.sync_path(files, posixpath.join(directory, checkpoints.PARTITION_METADATA))
    with contextlib.suppress(FileNotFoundError):
        files.sync_directory(directory)
