"""All logs of this broker.

Owns `LogManager`: loading, making and deleting logs, and when periodic tasks run. Its
`directories`, `names`, `checkpoints`, `cleaner`, `moves` and `upkeep` have modules of their own, as
has the stop of a directory.

1. A partition has one log, in one directory; a new one goes to the directory with the fewest logs,
   not to a cordoned one. Two of different topic ids are found where a directory was away while a
   topic was deleted and made again (or its removal was lost with the power): the metadata settles
   which one counts. Two of one topic id are found where a replica left and came again while its
   directory was offline: the newer one counts (`future_logs.newer_of`), the other is kept as a
   stray. Kafka refuses to start with both.
2. Loading, syncs, checkpoints and removal of files run on the directory's disk worker. Here the
   reactor waits for the disk only at the start, to make or rename a log, and at the very end of a
   stop.
3. A log is loaded with the broker's own settings; the topic's come with `get_or_create`: they are
   known only when the metadata is.
4. A periodic task that fails is logged and runs again at its next time.
5. A stop happens once: after it no periodic task, round of the cleaner or removal begins.
6. The future log of a log that moves is loaded, checkpointed, failed and stopped as logs are.
7. A log is not served while the metadata says that its replica is in a directory that is offline.
   It may be an old copy: the replica moved, or left and came again, while this directory was away.
   Or it is the right one, and the broker stopped between the controller's answer to a move and the
   swap. The log itself does not tell which, so the replica is offline in both cases.

Ring 1. Source: Kafka's `LogManager`; RL 1.5, 1.12, 3.2, 3.5-3.8. Not here: the directories
(`log_directories.py`), their names (`directory_names.py`), checkpoints (`log_checkpoints.py`), the
cleaner (`cleaner/log_cleaner.py`), future logs and their swap
(`log_moves.py`), retention, expiry and syncs by age (`log_upkeep.py`), the stop of a directory
(`clean_stop.py`), high-watermark checkpoints (`replication.high_watermark_checkpoint`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.event_lines import EventLines
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.log.clean_stop import CleanStop
from twisted_broker.log.cleaner.log_cleaner import LogCleaner
from twisted_broker.log.directory_names import NAME_SYNC_SECONDS, DirectoryNames, gather
from twisted_broker.log.errors import (
    CheckpointError,
    LogDirFailure,
    is_of_a_name,
    is_out_of_descriptors,
)
from twisted_broker.log.free_space import FreeSpace
from twisted_broker.log.future_logs import LONGEST_NAME, newer_of, one_that_counts
from twisted_broker.log.log import Log
from twisted_broker.log.log_checkpoints import LogCheckpoints
from twisted_broker.log.log_directories import LogDirectories
from twisted_broker.log.log_directory import (
    DELETE_SUFFIX,
    STRAY_SUFFIX,
    LogDirectory,
)
from twisted_broker.log.log_moves import LogMoves
from twisted_broker.log.log_upkeep import LogUpkeep
from twisted_broker.log.meta_properties import read_meta_properties
from twisted_broker.log_config import LogConfig, topic_config
from twisted_broker.periodic import PeriodicTasks
from twisted_broker.settings import INT_MAX
from twisted_broker.turns import Turns
from twisted_broker.wire.errors import BrokerError, ErrorCode

_logger = Logger()
# 35 years: Kafka writes "never" as 2^63-1, which no timer of the reactor takes.
_NEVER_MS = 2**40


class LogListener(Protocol):
    """Who hears of all logs: the replica manager."""

    def log_start_moved(self, log: Log) -> None:
        """Retention raised its start."""
        ...

    def log_synced(self, log: Log) -> None:
        """A sync that appends waited for is done."""
        ...

    def producers_found(self, log: Log) -> None:
        """Its producers are known again after a truncation."""
        ...

    def future_log_created(self, log: Log) -> None:
        """Its move to another directory, whose future log a crash damaged, begins anew."""
        ...

    def log_failed(self, log: Log) -> None:
        """It failed alone: a file of it is missing or cannot be used."""
        ...


class LogManager:
    """All logs by partition; `start` first, `shutdown` last.

    `on_directory_failure(path, error)` is called once for each directory that goes offline.
    `most_files`: what the process's limit leaves for segments.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        on_directory_failure: Callable[[str, OSError], None] | None = None,
        most_files: int = INT_MAX,
        turns: Turns | None = None,
    ) -> None:
        self.runtime, self.config = runtime, config
        self._turns = turns or Turns(runtime.clock, runtime.marks)
        most_files = min(config.integer("replog.max.open.segments"), most_files)
        self.directories = LogDirectories(
            runtime,
            config.log_directories,
            most_files,
            self._fail_logs,
            config.text("metadata.log.dir") or "",
        )
        self.free_space = FreeSpace(runtime, config, self.directories)
        self.logs: dict[TopicPartition, Log] = {}
        self._listeners: list[LogListener] = []
        self.preferred: dict[TopicPartition, str] = {}
        """directories asked for before their replicas are here; for partitions of the cluster"""
        self._rivals: list[Log] = []
        """those of them that go in any case, each with the log that was made anew"""
        self._left: set[TopicPartition] = set()
        """logs that were to be deleted while their directories were offline: each once, so at most
        as many as these directories held as they failed, for they take no other in this process
        """
        self._on_directory_failure = on_directory_failure
        self._tasks = PeriodicTasks(runtime.clock)
        self._lines = EventLines(_logger, runtime.clock, broker=config.node_id)
        self.names = DirectoryNames(runtime.files, self.directories)
        self.checkpoints = LogCheckpoints(runtime.files, self.directories, self._logs_in)
        self.cleaner = LogCleaner(
            runtime,
            config,
            self.directories,
            lambda: self,
            self._turns,
            self._lines,
            self.checkpoints.write_recovery_points,
            self._is_moving,
        )
        self.moves = LogMoves(runtime, self.directories, self.cleaner, self._lines, self)
        self.upkeep = LogUpkeep(runtime, self._turns, self.cleaner, self.moves, self._lines, self)
        self._counts: dict[str, int] = {}
        self._counted = -1
        self._stopped = False

    def subscribe(self, listener: LogListener) -> None:
        self._listeners.append(listener)

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The log, offline or not; None when there is none."""
        return self.logs.get(topic_partition)

    def cordoned(self) -> list[bytes]:
        """The ids of the directories that take no new replica (KIP-1066), in order."""
        paths = self.config.cordoned_directories
        return sorted(each.directory_id for each in self.directories.online() if each.path in paths)

    def _is_moving(self, log: Log) -> bool:
        return log.topic_partition in self.moves.futures

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self.logs.values()))

    def _logs_in(self, directory: LogDirectory) -> list[Log]:
        return [
            log
            for log in (
                # First: another log may have its name here by now, and its rows must replace these.
                *self.moves.replaced,
                *self.logs.values(),
                *self.moves.futures.values(),
                *self._rivals,
            )
            if log.failed is None and log.directory.rpartition("/")[0] == directory.path
        ]

    def _fail_logs(self, directory: LogDirectory, error: OSError) -> None:
        for log in self._logs_in(directory):
            log.directory_failed(error)
        if self._on_directory_failure is not None:
            self._on_directory_failure(directory.path, error)

    def _log_failed(self, log: Log) -> None:
        assert log.failed is not None
        path = posixpath.dirname(log.directory)
        if not self._is_of_log(path, log.failed):
            self.directories.fail(path, log.failed)
            return
        log.fail_alone()
        for listener in self._listeners:
            listener.log_failed(log)

    def _is_of_log(self, path: str, error: OSError) -> bool:
        """Whether an error that came of a log's file says nothing of its directory at `path`."""
        try:
            return (
                is_of_a_name(error) and read_meta_properties(self.runtime.files, path) is not None
            )
        except (OSError, CheckpointError):
            return False

    # -- start

    def start(
        self, cluster_id: str, before_format: Mapping[str, Callable[[], None]] | None = None
    ) -> Deferred[None]:
        """Claims all directories for this node of the cluster (LogDirMismatch, CheckpointError
        raise at once) and loads their logs; fires when all are loaded. `before_format`: as of
        `LogDirectory.claim`, by path; these directories are claimed first.

        Errbacks with LogDirFailure when no directory is left.
        """
        first = before_format or {}
        for directory in sorted(
            self.directories.claimed(), key=lambda each: each.path not in first
        ):
            try:
                directory.claim(self.config.node_id, cluster_id, first.get(directory.path))
            except OSError as error:
                if is_out_of_descriptors(error):
                    raise
                self.directories.fail(directory.path, error)
        waiting = [self._load(directory) for directory in self.directories.online()]
        return gather(waiting).addCallback(self._loaded)

    def _load(self, directory: LogDirectory) -> Deferred[None]:
        loaded: Deferred[None] = Deferred()
        began_ms = self.runtime.now_ms()
        wall_ms, default = self.runtime.wall_ms(), topic_config(self.config, {})

        def finish(logs: list[Log] | None, error: BaseException | None) -> None:
            # Short of descriptors is no fault of the disk: then the start fails, and no replica
            # goes offline.
            if isinstance(error, OSError) and not is_out_of_descriptors(error):
                self.directories.fail(directory.path, error)
                directory.futures.clear()  # those that were loaded before it failed
            elif error is not None:
                loaded.errback(error)
                return
            try:
                for log in logs or ():
                    self._take(directory, log)
                for log in directory.futures:
                    self.moves.take_future(directory, log)
                self.checkpoints.loaded(directory)
            except (BrokerError, OSError) as refusal:
                # Two directories with one partition: which of them is right, only the operator
                # knows; or the mark that says so cannot be read.
                loaded.errback(refusal)
                return
            for path in directory.to_delete:
                self.directories.remove_tree(directory, path)
            if logs:
                self._lines.add(
                    "logs loaded" if directory.was_clean else "logs recovered, no clean shutdown",
                    directory=directory.path,
                    logs=len(logs),
                    ms=self.runtime.now_ms() - began_ms,
                )
            loaded.callback(None)

        directory.disk.submit(lambda: directory.load(default, wall_ms), finish)
        return loaded

    def _take(self, directory: LogDirectory, log: Log) -> None:
        other = self.logs.get(log.topic_partition)
        if other is not None:
            ids = {log.topic_id, other.topic_id}
            # A log without topic id and records may be of any topic that had the name: a loss of
            # power took both, or brought back what was deleted.
            may_be_rivals = len(ids) > 1 or (
                ids == {None} and 0 in (log.log_end_offset, other.log_end_offset)
            )
            if not may_be_rivals or (None in ids and one_that_counts(log, other) is not None):
                if None in ids or one_that_counts(log, other) is not None:
                    self.moves.finish_swap(directory, log, other)
                    return
                # No move: the replica left and came again while one of them was offline.
                self.attach(directory, log)
                kept = newer_of(log, other)
                self.take_place(kept)
                self._rivals.append(other if kept is log else log)
                return
        self.attach(directory, log)
        if other is None:
            self.logs[log.topic_partition] = log
        else:
            self._rivals.append(log)

    def attach(self, directory: LogDirectory, log: Log) -> None:
        """Puts it online."""
        log.attach(
            directory.disk,
            self.directories.remover(directory),
            on_truncated=self._was_truncated,
            on_fatal=self._log_failed,
            on_synced=self._was_synced,
            on_out_of_descriptors=self._sync_again,
            on_producers_found=self._producers_found,
        )

    def take_place(self, log: Log) -> None:
        """It is its partition's log from now on, in place of another one or of a lost one."""
        self.logs[log.topic_partition] = log
        self._counted = -1

    def future_log_created(self, log: Log) -> None:
        """Its move, whose future log a crash damaged, begins anew."""
        for listener in self._listeners:
            listener.future_log_created(log)

    def settle_rivals(
        self,
        topic_id_of: Callable[[TopicPartition], bytes | None],
        is_removed: Callable[[Log], bool],
    ) -> None:
        """Two topics had one name, one of them deleted while its directory was away: the log with
        the topic id that is given stays, else one that lost its id in a loss of power, preferably
        one with records. The other is kept as `-stray`, unless a record removed its replica.
        """

        def claim(log: Log) -> tuple[bool, bool, bool]:
            is_topics = log.topic_id == topic_id_of(log.topic_partition)
            return is_topics, log.topic_id is None, log.log_end_offset > 0

        rivals, self._rivals = self._rivals, []
        for log in rivals:
            current = self.logs.get(log.topic_partition)
            if current is not None and claim(log) > claim(current):
                self.take_place(log)
                log = current
            suffix = DELETE_SUFFIX if is_removed(log) else STRAY_SUFFIX
            if suffix == STRAY_SUFFIX:
                self._lines.warn(
                    "log renamed to *-stray and kept: another directory has the log that counts",
                    partition=log.topic_partition,
                    directory=log.directory,
                )
            self.set_log_aside(log, suffix)

    def _loaded(self, _: object) -> None:
        self.moves.all_loaded()
        if not self.directories.online():
            causes = [directory.failed for directory in self.directories.by_path.values()]
            raise LogDirFailure(", ".join(self.directories.by_path), causes[0])
        self._start_tasks()

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
        offline (also where a log is found elsewhere: invariant 8), or the disk fails now, or
        (OutOfDescriptors) no file can be opened for now;
        INCONSISTENT_TOPIC_ID: the log belongs to another topic of that name.
        """
        log = self.logs.get(topic_partition)
        if log is not None:
            if topic_id is not None and log.topic_id is not None and topic_id != log.topic_id:
                raise BrokerError(
                    ErrorCode.INCONSISTENT_TOPIC_ID,
                    f"the log of {topic_partition} has another topic id",
                )
            if not is_new and directory_id is not None:
                self._check_place(log, directory_id)
            if topic_id is not None and log.topic_id is None:
                self.names.give_id(log, topic_id)
            log.update_config(config)
            return log
        adopted = self.moves.adopt(topic_partition, topic_id, config, directory_id)
        if adopted is not None:
            return adopted
        if not is_new and self.directories.offline():
            raise BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{topic_partition} may be in a directory that is offline",
            )
        directory = self._directory_for(directory_id, topic_partition)
        return self._create(directory, topic_partition, topic_id, config)

    def _check_place(self, log: Log, directory_id: bytes) -> None:
        """Invariant 8. Raises BrokerError."""
        offline = self.directories.offline_in_place_of(directory_id)
        if offline:
            raise BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the metadata place it in a directory that is offline ({', '.join(offline)}), and "
                f"{log.directory} may be an older log of it: restart with that directory, or, if "
                "it is lost, with an empty one or without it in log.dirs",
            )

    def _directory_for(
        self, directory_id: bytes | None, topic_partition: TopicPartition
    ) -> LogDirectory:
        """The directory where a try that ended midway left something, else the one with this id,
        else the `preferred` one, else the one with the fewest logs that is not cordoned.
        """
        online = self.directories.online()
        if not online:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "all log directories are offline")
        if len(online) > 1:
            for directory in online:
                path = posixpath.join(directory.path, str(topic_partition))
                if self.runtime.files.is_directory(path):
                    return directory
        wanted = self.preferred.pop(topic_partition, None)
        for directory in online:
            # An id that is not here (its directory is gone) counts as none.
            if directory.directory_id == directory_id or len(online) == 1:
                return directory
        for directory in online:
            if directory.path == wanted:
                return directory
        cordoned = self.config.cordoned_directories
        # Placed here before the controller knew that all are cordoned: somewhere it must be.
        open_ones = [each for each in online if each.path not in cordoned] or online[:1]
        counts = self._logs_in_each()
        return min(open_ones, key=lambda directory: counts[directory.path])

    def _logs_in_each(self) -> dict[str, int]:
        """Number of logs by directory. Counted once for logs that are made one after the other:
        else each partition of a new topic would go through all logs of the broker.
        """
        if self._counted != len(self.logs):
            self._counted = len(self.logs)
            self._counts = dict.fromkeys(self.directories.by_path, 0)
            for log in self.logs.values():
                parent = posixpath.dirname(log.directory)
                if parent in self._counts:
                    self._counts[parent] += 1
        return self._counts

    def _create(
        self,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        config: LogConfig,
    ) -> Log:
        directory.forget_rows(topic_partition)
        try:
            log = directory.create(topic_partition, topic_id, config, self.runtime.wall_ms())
            if topic_partition in self._left:
                self._write_topic_id(directory, log)
        except OSError as error:
            raise self.directories.refusal(directory, error) from error
        self._take(directory, log)
        if self._counted == len(self.logs) - 1:
            self._counts[directory.path] += 1
            self._counted += 1
        self.names.created(directory, log)
        return log

    def _write_topic_id(self, directory: LogDirectory, log: Log) -> None:
        """Writes the topic id of a new log at once, not on the disk worker as `write_topic_ids`
        does. An older log of that name may be in a directory that is offline: after a kill and a
        start with both, only the id tells which one counts. Raises OSError.
        """
        try:
            directory.write_topic_id(log)
        except OSError:
            log.release_files()
            raise

    def delete(self, topic_partition: TopicPartition) -> None:
        """Takes the log out at once (directory renamed `-delete`); its files go after
        `file.delete.delay.ms`.
        """
        self.moves.drop(topic_partition)
        log = self.logs.get(topic_partition)
        if log is not None and self.directories.of(log).failed is not None:
            self._left.add(topic_partition)
        self._set_aside(topic_partition, DELETE_SUFFIX)

    def is_set_aside(self, log: Log) -> bool:
        """Whether the files of a log that was deleted have another name by now: not so when their
        directory is offline, or refused the name.
        """
        return log.directory.endswith(DELETE_SUFFIX) and self.directories.of(log).failed is None

    def set_stray_aside(self, topic_partition: TopicPartition) -> None:
        """Takes a log out that the metadata does not know, and keeps its files as `-stray`."""
        is_here = topic_partition in self.logs  # else its copy may be the only one
        self.moves.drop(topic_partition, DELETE_SUFFIX if is_here else STRAY_SUFFIX)
        self._set_aside(topic_partition, STRAY_SUFFIX)

    def _set_aside(self, topic_partition: TopicPartition, suffix: str) -> None:
        log = self.logs.pop(topic_partition, None)
        if log is not None:
            self.set_log_aside(log, suffix)
        self.moves.set_replaced_aside(topic_partition, suffix)

    def set_log_aside(self, log: Log, suffix: str) -> None:
        """Renames its directory; with DELETE_SUFFIX its files go later."""
        if log.failed is not None and not log.fails_alone:
            return
        topic_partition = log.topic_partition
        directory = self.directories.of(log)
        path = posixpath.join(
            directory.path,
            _aside_name(topic_partition, self.runtime.random.getrandbits(128), suffix),
        )
        directory.forget_rows(topic_partition)
        self.cleaner.forget(log)
        # Its late disk jobs must report nothing: a new log may have its name by then.
        log.detach()
        try:
            log.rename_directory(path)
        except OSError as error:
            if not self._is_of_log(directory.path, error):
                self.directories.fail(directory.path, error)
            # The directory's failure no longer finds it; who waits for its syncs would wait on.
            log.segments.close()
            log.retire(error)
            return
        log.segments.close()
        # A job or a read that still holds the log finds it failed, and creates no new file.
        log.retire(FileNotFoundError(f"{topic_partition} was deleted"))
        self.checkpoints.soon()
        if suffix == DELETE_SUFFIX:
            self.directories.call_after(
                self._delete_delay(log), lambda: self.directories.remove_tree(directory, path)
            )

    def _delete_delay(self, log: Log) -> Callable[[], float]:
        """In seconds. The broker's where the topic has none of its own: that one may change."""
        own_ms, of_broker = log.config.file_delete_delay_ms, "log.segment.delete.delay.ms"
        if own_ms != self.config.integer(of_broker):
            return lambda: own_ms / 1000
        return lambda: self.config.integer(of_broker) / 1000

    # -- periodic tasks

    def _start_tasks(self) -> None:
        config = self.config
        tasks = (
            (config.integer("log.retention.check.interval.ms"), self.upkeep.delete_old_segments),
            (
                config.integer("log.flush.offset.checkpoint.interval.ms"),
                self.checkpoints.recovery_points,
            ),
            (
                config.integer("log.flush.start.offset.checkpoint.interval.ms"),
                self.checkpoints.log_starts,
            ),
            (
                config.integer("producer.id.expiration.check.interval.ms"),
                self.upkeep.expire_producers,
            ),
            (config.integer("log.flush.scheduler.interval.ms"), self.upkeep.flush_dirty_logs),
        )
        for interval_ms, task in tasks:
            if interval_ms < _NEVER_MS:
                self._tasks.every(max(interval_ms, 1) / 1000, task, "a periodic task of the logs")
        self.cleaner.start()

    def _was_truncated(self, log: Log) -> None:
        self.checkpoints.truncated(log)
        self.cleaner.truncated(log)

    def _sync_again(self, log: Log, error: OSError) -> None:
        """No descriptor for a sync, or a slice of a rebuild: what waits for it waits a second
        more.
        """
        self.directories.fail(posixpath.dirname(log.directory), error)
        self.directories.call_later(NAME_SYNC_SECONDS, log.descriptors_may_be_free)

    def _was_synced(self, log: Log) -> None:
        for listener in self._listeners:
            listener.log_synced(log)

    def _producers_found(self, log: Log) -> None:
        for listener in self._listeners:
            listener.producers_found(log)

    def log_start_moved(self, log: Log) -> None:
        """Retention raised its start."""
        for listener in self._listeners:
            listener.log_start_moved(log)

    # -- stop

    def shutdown(self, broker_epoch: int | None = None) -> Deferred[None]:
        """A clean stop: fires when every directory is closed, has its clean shutdown file, and is
        unlocked (those that failed, or were not loaded, only unlocked).

        `broker_epoch` None: this process never registered, so each directory keeps the epoch that
        was read from its clean shutdown file.
        """
        if self._stopped:
            return succeed(None)
        self._stopped = True
        self._tasks.stop()
        self.names.stop()
        self.cleaner.stop()
        self.moves.stop()
        self.free_space.stop()
        self._lines.stop()
        # What was to be removed later stays: the next start finds it by its name.
        self.directories.cancel_delayed()
        waiting = [
            Deferred.fromCoroutine(
                CleanStop(directory, self._logs_in(directory), broker_epoch).run()
            )
            for directory in self.directories.claimed()
        ]
        return gather(waiting).addCallback(self._all_closed)

    def _all_closed(self, _: object) -> None:
        self.logs.clear()
        self.moves.futures.clear()
        for directory in self.directories.claimed():
            directory.stop_workers()


def _aside_name(topic_partition: TopicPartition, unique: int, suffix: str) -> str:
    """`topic-partition.<32 hex>-delete`, the topic shortened so that the name is not too long."""
    tail = f"-{topic_partition.partition}.{unique:032x}{suffix}"
    return topic_partition.topic[: LONGEST_NAME - len(tail)] + tail
