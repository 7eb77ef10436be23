"""All logs of this broker.

Owns `LogManager`: the directories of `log.dirs`, the logs in them, their periodic care, a clean stop.

1. A partition has one log, in one directory; a new one goes to the directory with the fewest logs.
2. A failing directory takes its own logs offline and no others; `directory_failed(path, error)` hears of it once.
3. Loading, syncs, checkpoints and removal of files run on the directory's disk worker; nothing here waits for the disk but the making of
   a log and the very end of a stop.
4. A clean stop is: logs closed and synced, checkpoints, then the mark; a directory that failed gets no mark.

Source: Kafka's `LogManager`; RL 1.5, 1.12, 3.6-3.8. Left out: high-watermark checkpoints (`replication.high_watermarks`), the cleaner,
moving a log between directories.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from twisted_broker.config import BrokerConfig, LogConfig, topic_config
from twisted_broker.interfaces import IDelayedCall, IDiskWorker, Runtime, TopicPartition
from twisted_broker.log import checkpoints
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.log.log import Log
from twisted_broker.log.log_directory import DELETE_SUFFIX, STRAY_SUFFIX, LogDirectory
from twisted_broker.log.log_state import LogState
from twisted_broker.wire.errors import BrokerError, ErrorCode

_log = Logger()
_LONGEST_NAME = 255


class LogManager:
    """`config_of(topic)` gives a topic's settings while loading; without it the broker's own are used."""

    def __init__(
        self, runtime: Runtime, config: BrokerConfig, cluster_id: str, config_of: Callable[[str], LogConfig] | None = None,
        directory_failed: Callable[[str, OSError], None] | None = None,
    ) -> None:  # fmt: skip
        self.runtime, self.config, self.cluster_id = runtime, config, cluster_id
        self.config_of = config_of if config_of is not None else lambda topic: topic_config(config, {})
        self.directory_failed = directory_failed
        paths = list(dict.fromkeys(posixpath.normpath(path) for path in config.log_directories))
        share = max(8, config.integer("replog.max.open.segments") // len(paths))
        self.directories: dict[str, LogDirectory] = {
            path: LogDirectory(runtime.files, path, runtime.disk(path), share, runtime.random, self._warn) for path in paths
        }
        self.logs: dict[TopicPartition, Log] = {}
        self._loops: list[LoopingCall] = []
        self._delayed: set[IDelayedCall] = set()
        self._stopped = False

    def _warn(self, text: str) -> None:
        _log.warn("{text}", text=text)

    # -- start

    def start(self) -> Deferred[None]:
        """Claims all directories (LogDirMismatch, CheckpointError raise at once) and loads their logs; fires when all are loaded.

        Errbacks with LogDirFailure when no directory is left.
        """
        for directory in self.directories.values():
            try:
                directory.claim(self.config.node_id, self.cluster_id)
            except OSError as error:
                self._fail_directory(directory, error)
        waiting = [self._load(directory) for directory in self.online()]
        return gather(waiting).addCallback(self._loaded)

    def _load(self, directory: LogDirectory) -> Deferred[None]:
        loaded: Deferred[None] = Deferred()
        now_ms = self.runtime.wall_ms()

        def finish(logs: list[Log] | None, error: BaseException | None) -> None:
            if isinstance(error, OSError):
                self._fail_directory(directory, error)
            elif error is not None:
                loaded.errback(error)
                return
            for log in logs or ():
                self._take(directory, log)
            for path in directory.to_delete:
                self._remove_tree(directory, path)
            loaded.callback(None)

        directory.disk.submit(lambda: directory.load(self.config_of, now_ms, self._remover(directory)), finish)
        return loaded

    def _take(self, directory: LogDirectory, log: Log) -> None:
        if log.topic_partition in self.logs:
            other = self.logs[log.topic_partition].directory
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.topic_partition} is in {other} and in {log.directory}")
        log.disk = directory.disk
        log.truncated = self._was_truncated
        log.failing = self._log_failed
        self.logs[log.topic_partition] = log

    def _loaded(self, _: object) -> None:
        if not self.online():
            raise LogDirFailure(", ".join(self.directories))
        for interval_ms, task in (
            (self.config.integer("log.retention.check.interval.ms"), self.delete_old_segments),
            (self.config.integer("log.flush.offset.checkpoint.interval.ms"), self.checkpoint_recovery_points),
            (self.config.integer("log.flush.start.offset.checkpoint.interval.ms"), self.checkpoint_log_starts),
            (self.config.integer("producer.id.expiration.check.interval.ms"), self.expire_producers),
            (self.config.integer("log.flush.scheduler.interval.ms"), self.flush_dirty_logs),
        ):
            self._every(interval_ms, task)

    def _every(self, interval_ms: int, task: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                task()
            except Exception:
                _log.failure("a periodic task of the logs failed")

        if interval_ms < 2**40:
            loop = LoopingCall(guarded)
            loop.clock = self.runtime.clock  # type: ignore[assignment]
            loop.start(max(interval_ms, 1) / 1000, now=False)
            self._loops.append(loop)

    # -- directories

    def online(self) -> list[LogDirectory]:
        return [directory for directory in self.directories.values() if directory.failed is None]

    def offline(self) -> list[str]:
        return [path for path, directory in self.directories.items() if directory.failed is not None]

    def directory_of(self, log: LogState) -> LogDirectory:
        return self.directories[posixpath.dirname(log.directory)]

    def worker(self, directory: str) -> IDiskWorker:
        """The disk worker of a log directory."""
        return self.directories[directory].disk

    def fail_directory(self, path: str, error: OSError) -> None:
        """Takes a directory and its logs offline, for good."""
        self._fail_directory(self.directories[path], error)

    def _fail_directory(self, directory: LogDirectory, error: OSError) -> None:
        if directory.failed is not None:
            return
        directory.failed = error
        _log.error("log directory {path} is offline: {error}", path=directory.path, error=error)
        for log in [log for log in self.logs.values() if posixpath.dirname(log.directory) == directory.path]:
            log.fail(error)
        if self.directory_failed is not None:
            self.directory_failed(directory.path, error)

    def _log_failed(self, log: LogState) -> None:
        assert log.failed is not None
        self._fail_directory(self.directory_of(log), log.failed)

    # -- logs

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The log, offline or not; None when there is none."""
        return self.logs.get(topic_partition)

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self.logs.values()))

    def get_or_create(
        self, topic_partition: TopicPartition, topic_id: bytes | None, config: LogConfig, is_new: bool = False, directory_id: bytes | None = None
    ) -> Log:
        """The partition's log, made if need be.

        BrokerError KAFKA_STORAGE_ERROR: a replica that is not new may be in a directory that is offline, or the disk fails now;
        INCONSISTENT_TOPIC_ID: the log belongs to another topic of that name.
        """
        log = self.logs.get(topic_partition)
        if log is not None:
            if topic_id is not None and log.topic_id is not None and topic_id != log.topic_id:
                raise BrokerError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{topic_partition} is here with another topic id")
            if topic_id is not None and log.topic_id is None:
                self._give_id(log, topic_id)
            log.update_config(config)
            return log
        if not is_new and self.offline():
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic_partition} may be in a directory that is offline")
        return self._create(self._directory_for(directory_id), topic_partition, topic_id, config)

    def _directory_for(self, directory_id: bytes | None) -> LogDirectory:
        """The directory asked for, else the least loaded."""
        online = self.online()
        if not online:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "no log directory is left")
        for directory in online:
            if directory.directory_id == directory_id:
                return directory
        counts = dict.fromkeys((directory.path for directory in online), 0)
        for log in self.logs.values():
            parent = posixpath.dirname(log.directory)
            if parent in counts:
                counts[parent] += 1
        return min(online, key=lambda directory: counts[directory.path])

    def _create(self, directory: LogDirectory, topic_partition: TopicPartition, topic_id: bytes | None, config: LogConfig) -> Log:
        directory.recovery_points.pop(topic_partition, None)
        directory.log_starts.pop(topic_partition, None)
        try:
            log = directory.open(topic_partition, topic_id, config, self.runtime.wall_ms(), self._remover(directory), is_new=True)
        except OSError as error:
            self._fail_directory(directory, error)
            raise LogDirFailure(directory.path, error) from error
        self._take(directory, log)
        self._submit(directory, lambda: _sync_new(log))
        return log

    def _give_id(self, log: Log, topic_id: bytes) -> None:
        """Writes the id of a log that had none (made by an old broker)."""
        try:
            checkpoints.write_partition_metadata(self.runtime.files, log.directory, topic_id)
        except OSError as error:
            raise log.fail(error) from error
        log.topic_id = topic_id

    def delete(self, topic_partition: TopicPartition) -> None:
        """Takes the log out at once (directory renamed `-delete`); its files go after `file.delete.delay.ms`."""
        self._set_aside(topic_partition, DELETE_SUFFIX)

    def set_stray_aside(self, topic_partition: TopicPartition) -> None:
        """Takes a log out that the metadata does not know, and keeps its files as `-stray`."""
        self._set_aside(topic_partition, STRAY_SUFFIX)

    def _set_aside(self, topic_partition: TopicPartition, suffix: str) -> None:
        log = self.logs.pop(topic_partition, None)
        if log is None or log.failed is not None:
            return
        directory = self.directory_of(log)
        path = posixpath.join(directory.path, _aside_name(topic_partition, self.runtime.random.getrandbits(128), suffix))
        directory.recovery_points.pop(topic_partition, None)
        directory.log_starts.pop(topic_partition, None)
        log.truncated = log.failing = None
        try:
            log.rename_directory(path)
        except OSError as error:
            self._fail_directory(directory, error)
            return
        log.segments.close()
        log.failed = FileNotFoundError(f"{topic_partition} was deleted")
        self.checkpoint_recovery_points()
        self.checkpoint_log_starts()
        if suffix == DELETE_SUFFIX:
            self._later(log.config.file_delete_delay_ms / 1000, lambda: self._remove_tree(directory, path))

    def _remove_tree(self, directory: LogDirectory, path: str) -> None:
        self._submit(directory, lambda: self.runtime.files.remove_tree(path))

    def _remover(self, directory: LogDirectory) -> Callable[[list[str]], None]:
        """What a log calls with files that are renamed `.deleted`: they go after the delay."""
        delay = self.config.integer("log.segment.delete.delay.ms") / 1000

        def remove(paths: list[str]) -> None:
            for path in paths:
                if self.runtime.files.exists(path):
                    self.runtime.files.remove(path)

        return lambda paths: self._later(delay, lambda: self._submit(directory, lambda: remove(paths)))

    def _later(self, delay: float, call: Callable[[], None]) -> None:
        """Calls after `delay` seconds unless the broker stops before."""

        def due() -> None:
            self._delayed.discard(timer)
            call()

        timer = self.runtime.clock.callLater(delay, due)
        self._delayed.add(timer)

    def _submit(self, directory: LogDirectory, job: Callable[[], object]) -> None:
        def done(_: object, error: BaseException | None) -> None:
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                self._fail_directory(directory, error)
            elif error is not None and not isinstance(error, OSError):
                _log.error("disk job failed: {error!r}", error=error)

        if directory.failed is None:
            directory.disk.submit(job, done)

    # -- periodic care

    def _logs_of(self, directory: LogDirectory) -> list[Log]:
        return [log for log in self.logs.values() if log.failed is None and posixpath.dirname(log.directory) == directory.path]

    def checkpoint_recovery_points(self) -> None:
        """Writes the recovery points of every directory, on its worker."""
        for directory in self.online():
            self._checkpoint_recovery_points(directory)

    def _checkpoint_recovery_points(self, directory: LogDirectory) -> None:
        offsets = {log.topic_partition: log.recovery_point for log in self._logs_of(directory)}
        self._submit(directory, lambda: checkpoints.write_offsets(self.runtime.files, directory.path, checkpoints.RECOVERY_POINT, offsets))

    def checkpoint_log_starts(self) -> None:
        """Writes the log starts that differ from the first segment's base, on each directory's worker."""
        for directory in self.online():
            offsets = _log_starts(self._logs_of(directory))
            self._submit(
                directory,
                lambda directory=directory, offsets=offsets: checkpoints.write_offsets(  # type: ignore[misc]
                    self.runtime.files, directory.path, checkpoints.LOG_START_OFFSET, offsets
                ),
            )

    def _was_truncated(self, log: LogState) -> None:
        """RL 3.5: the recovery point of a cut log is on its way to the disk at once."""
        self._checkpoint_recovery_points(self.directory_of(log))

    def delete_old_segments(self) -> None:
        """Applies retention to every log."""
        for log in self:
            if log.failed is None:
                try:
                    log.delete_old_segments(self.runtime.wall_ms())
                except LogDirFailure:
                    _log.error("retention stopped on {log}", log=log.topic_partition)

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

    # -- stop

    def shutdown(self, broker_epoch: int = -1) -> Deferred[None]:
        """A clean stop: fires when every directory is closed, marked and unlocked (those that failed only unlocked)."""
        if self._stopped:
            return succeed(None)
        self._stopped = True
        for loop in self._loops:
            loop.stop()
        for timer in self._delayed:
            timer.cancel()
        waiting = [self._close(directory, broker_epoch) for directory in self.directories.values()]
        return gather(waiting).addCallback(self._all_closed)

    def _close(self, directory: LogDirectory, broker_epoch: int) -> Deferred[None]:
        closed: Deferred[None] = Deferred()
        logs = self._logs_of(directory)
        points = {log.topic_partition: log.log_end_offset for log in logs}
        starts = _log_starts(logs)

        def done(_: None, error: BaseException | None) -> None:
            if error is not None:
                _log.error("log directory {path} did not close cleanly: {error!r}", path=directory.path, error=error)
            for log in logs:
                log.release_files()
            directory.release()
            closed.callback(None)

        try:
            jobs = [log.finish() for log in logs]
        except OSError as error:
            directory.failed = error

        def job() -> None:
            for sync in jobs:
                sync()
            checkpoints.write_offsets(self.runtime.files, directory.path, checkpoints.RECOVERY_POINT, points)
            checkpoints.write_offsets(self.runtime.files, directory.path, checkpoints.LOG_START_OFFSET, starts)
            directory.leave_clean_mark(broker_epoch)

        if directory.failed is None:
            directory.disk.submit(job, done)
        else:
            done(None, directory.failed)
        return closed

    def _all_closed(self, _: object) -> None:
        self.logs.clear()
        for directory in self.directories.values():
            directory.disk.stop()


async def _all(waiting: list[Deferred[None]]) -> None:
    for deferred in waiting:
        await deferred


def gather(waiting: list[Deferred[None]]) -> Deferred[None]:
    """Fires when all have; errbacks with the first error in their order."""
    return Deferred.fromCoroutine(_all(waiting))


def _log_starts(logs: list[Log]) -> dict[TopicPartition, int]:
    return {log.topic_partition: log.log_start_offset for log in logs if log.log_start_offset > log.segments.first.base_offset}


def _aside_name(topic_partition: TopicPartition, unique: int, suffix: str) -> str:
    """`topic-partition.<32 hex>-delete`, the topic cut so that the name is not too long."""
    tail = f"-{topic_partition.partition}.{unique:032x}{suffix}"
    return topic_partition.topic[: _LONGEST_NAME - len(tail)] + tail


def _sync_new(log: Log) -> None:
    """Makes a new log's names and its `partition.metadata` durable."""
    files = log.pool.files
    path = posixpath.join(log.directory, checkpoints.PARTITION_METADATA)
    if files.exists(path):
        file = files.open(path)
        try:
            file.sync()
        finally:
            file.close()
    if files.is_directory(log.directory):
        files.sync_directory(log.directory)
        files.sync_directory(posixpath.dirname(log.directory))
