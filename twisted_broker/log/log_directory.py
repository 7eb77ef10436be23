"""One entry of `log.dirs`: whose it is, what is in it, whether it still works.

Owns `LogDirectory`: lock, meta.properties, the clean shutdown file, what the checkpoints said at
the start, loading all logs of the directory, and the topic ids of new ones; `partition_of`,
`log_starts`, `make_directory`, `sync_names`.

1. One process at a time: the lock is taken first and held to the end.
2. The clean shutdown file is removed before anything is loaded: a crash while loading counts as
   unclean. Loading that fails puts it back.
3. Only what is named like a partition is opened, and its future log (`-future`). `-delete`
   is finished, `-stray` is left alone.
4. A directory fails as a whole and alone.
5. Rows of the offset checkpoints have no topic id. A new log's topic id is written only when no row
   of an older log of its name is left; after an unclean stop the rows of a log without a topic id
   do not count. A future log without one, or that lost offsets in a crash, is begun again.
   Where a future log lies beside a log of its partition, which a move replaced, the recovery point
   is that of the future log: both are checked whole.
6. No offset of the cleaner is above the end of its log.

Source: Kafka's `LogManager.loadLogs`, `MetaPropertiesEnsemble`; RL 1.12, 3.6, 3.8. Not here: which
partition lives where (`log_manager.py`).
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections import deque
from collections.abc import Callable, Iterable
from errno import EACCES, EINVAL, ENOENT, EPERM, EROFS
from functools import partial

from twisted_broker.interfaces import IDiskWorker, IFileSystem, IRandom, TopicPartition
from twisted_broker.log import checkpoints
from twisted_broker.log.errors import CheckpointError
from twisted_broker.log.future_logs import FUTURE_SUFFIX, future_config
from twisted_broker.log.log import Log
from twisted_broker.log.meta_properties import NAME as META_PROPERTIES
from twisted_broker.log.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from twisted_broker.log.recovery import load_log, new_log
from twisted_broker.log.segment import OpenFiles
from twisted_broker.log_config import LogConfig
from twisted_broker.topic_names import METADATA_TOPIC
from twisted_broker.wire.primitives import new_uuid

LOCK = ".lock"
_NOT_OURS = frozenset({EACCES, EPERM, EINVAL, EROFS})
_MOST_LINES = 20
_NAMES_AT_ONCE = 16
"""Topic ids that one job syncs. The next job is submitted by the reactor in a turn of its own:
threads that sync one file after another take the interpreter from a reactor that is busy, eight
times for each time that it gets it.
"""
DELETE_SUFFIX, STRAY_SUFFIX = "-delete", "-stray"
_RENAMED = re.compile(r"(.+)\.[0-9a-f]{32}(-delete|-stray|-future)$")
_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-([0-9]{1,10})$")


class LogDirMismatch(Exception):
    """A log directory belongs to another node or cluster, or is locked: the broker must not
    start.
    """


def partition_of(name: str) -> TopicPartition | None:
    """The partition that a directory's name means, None when it means none."""
    found = _PARTITION.fullmatch(name)
    if found is None or found[1] in (".", "..") or str(int(found[2])) != found[2]:
        return None
    return TopicPartition(found[1], int(found[2]))


def log_starts(logs: Iterable[Log]) -> dict[TopicPartition, int]:
    """Rows of the log start checkpoint: those that do not follow from the first segment."""
    return {
        log.topic_partition: log.log_start_offset
        for log in logs
        if log.log_start_offset > log.segments.first.base_offset
    }


def make_directory(files: IFileSystem, path: str) -> None:
    """Makes a directory and those above it that are missing, each durably. Raises OSError."""
    if files.is_directory(path):
        return
    parent = posixpath.dirname(path)
    make_directory(files, parent)
    files.make_directories(path)
    files.sync_directory(parent)


def sync_names(files: IFileSystem, path: str) -> None:
    """Syncs the names of a directory and of those above it: a process may have been killed between
    making one and syncing its name. Raises OSError.
    """
    while path != posixpath.dirname(path):
        path = posixpath.dirname(path)
        try:
            files.sync_directory(path)
        except OSError as error:
            # One that this user may not read, or of a file system that syncs none, is not ours.
            if error.errno not in _NOT_OURS:
                raise


class LogDirectory:
    """`warn(text)` takes one-line warnings; `reader`: see `OpenFiles`.

    `failed` is the error that took it offline; `is_new`: this process formatted it. `without_id`
    are new logs without `partition.metadata`, `unsynced_names` those whose file of that name is not
    synced yet; `is_name_sync_due`: a timer for their sync runs. `is_checkpoint_waiting`: a job
    that writes the recovery points has not begun.
    """

    def __init__(
        self,
        files: IFileSystem,
        path: str,
        disk: IDiskWorker,
        open_files: int,
        random: IRandom,
        warn: Callable[[str], None],
        reader: IDiskWorker | None = None,
    ) -> None:
        self.files, self.path, self.disk, self.random, self.warn = files, path, disk, random, warn
        self.pool = OpenFiles(files, open_files, reader)
        self.directory_id = bytes(16)
        self.loaded = self.is_new = False
        self.was_clean = False
        self.previous_broker_epoch = -1
        self.recovery_points: dict[TopicPartition, int] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.cleaner_offsets: dict[TopicPartition, int] = {}
        self._sharing_rows: set[TopicPartition] = set()
        self.failed: OSError | None = None
        self.to_delete: list[str] = []
        self.futures: list[Log] = []
        """future logs that were loaded"""
        self.lost_futures: list[tuple[TopicPartition, bytes | None]] = []
        """future logs that a crash damaged, with their topic ids: to be begun anew"""
        self.without_id: deque[Log] = deque()
        """those of them whose partition has older logs in directories that are offline"""
        self.given_ids: deque[Log] = deque()
        """logs that were here without a topic id, and have one now that is not in a file yet"""
        self.unsynced_names: list[Log] = []
        self.is_name_sync_due = self.is_checkpoint_waiting = False
        self._release: Callable[[], None] | None = None

    def stop_workers(self) -> None:
        """What was submitted is finished."""
        self.disk.stop()
        if self.pool.reader is not None:
            self.pool.reader.stop()

    def claim(
        self, node_id: int, cluster_id: str, before_format: Callable[[], None] | None = None
    ) -> None:
        """Locks the directory and makes sure it is ours; formats a new one. `before_format` is
        called when it is known to be ours, before it has the cluster's id.

        Raises LogDirMismatch, CheckpointError, OSError.
        """
        if not self.files.is_directory(self.path):
            make_directory(self.files, self.path)
        try:
            self._release = self.files.lock(posixpath.join(self.path, LOCK))
        except BlockingIOError as error:
            raise LogDirMismatch(
                f"{self.path} is in use by another process; stop it, or change log.dirs"
            ) from error
        found = read_meta_properties(self.files, self.path)
        if found is None:
            sync_names(self.files, self.path)
        if found is not None and found.node_id not in (None, node_id):
            raise LogDirMismatch(
                f"{self.path} belongs to node {found.node_id}, this is node {node_id}: "
                "change node.id or log.dirs"
            )
        if found is not None and found.cluster_id not in (None, cluster_id):
            raise LogDirMismatch(
                f"{self.path} belongs to cluster {found.cluster_id}, this is cluster {cluster_id}: "
                "change log.dirs"
            )
        if before_format is not None:
            before_format()
        self.directory_id = (
            found.directory_id
            if found is not None and found.directory_id is not None
            else new_uuid(self.random.randbytes)
        )
        properties = MetaProperties(cluster_id, node_id, self.directory_id)
        if found != properties:
            write_meta_properties(self.files, self.path, properties)
        else:  # by a process, perhaps, that was killed before it synced the name
            self.files.sync_directory(self.path)
        self.is_new = found is None

    def load(self, config: LogConfig, wall_ms: int) -> list[Log]:
        """Opens every log of the directory, all with `config`.

        Slow: runs on the disk worker. Raises OSError.
        """
        logs = self._load_logs(config, wall_ms)
        self.loaded = True
        return logs

    def _load_logs(self, config: LogConfig, wall_ms: int) -> list[Log]:
        epoch = checkpoints.read_clean_shutdown(self.files, self.path)
        self.was_clean, self.previous_broker_epoch = (
            epoch is not None,
            -1 if epoch is None else epoch,
        )
        if self.was_clean:
            self.files.remove(posixpath.join(self.path, checkpoints.CLEAN_SHUTDOWN))
            self.files.sync_directory(self.path)
        try:
            return self._open_logs(config, wall_ms)
        except Exception:
            if self.was_clean:  # nothing was written to these logs since
                with contextlib.suppress(OSError):
                    self.write_clean_shutdown(self.previous_broker_epoch)
            raise

    def _open_logs(self, config: LogConfig, wall_ms: int) -> list[Log]:
        self.recovery_points = self._offsets(checkpoints.RECOVERY_POINT)
        self.log_starts = self._offsets(checkpoints.LOG_START_OFFSET)
        self.cleaner_offsets = self._offsets(checkpoints.CLEANER_OFFSET)
        logs = []
        without_id = []
        names = self.files.listdir(self.path)
        self._sharing_rows = {
            partition
            for name in names
            if (renamed := _RENAMED.fullmatch(name)) is not None
            and renamed[2] == FUTURE_SUFFIX
            and renamed[1] in names
            and (partition := partition_of(renamed[1])) is not None
        }
        for name in names:
            path = posixpath.join(self.path, name)
            if not self.files.is_directory(path):
                continue
            renamed = _RENAMED.fullmatch(name)
            if renamed is not None and renamed[2] == DELETE_SUFFIX:
                self.to_delete.append(path)
            elif renamed is not None and renamed[2] == FUTURE_SUFFIX:
                self._open_future(path, partition_of(renamed[1]), config, wall_ms)
            partition = partition_of(name) if renamed is None else None
            if partition is not None and partition.topic != METADATA_TOPIC:
                if not self.was_clean and not self._has_partition_metadata(path):
                    without_id.append(partition)
                    self.recovery_points.pop(partition, None)
                    self.log_starts.pop(partition, None)
                    self.cleaner_offsets.pop(partition, None)
                logs.append(self.open(partition, None, config, wall_ms))
        self._lower_cleaner_offsets(logs)
        self._warn_of_dropped_ends([log.dropped_at_load for log in logs if log.dropped_at_load])
        if without_id:
            # For the high watermarks, which are read later.
            checkpoints.drop_rows(self.files, self.path, without_id)
        return logs

    def _lower_cleaner_offsets(self, logs: list[Log]) -> None:
        """What is appended where recovery ended a log was not cleaned, whatever was there."""
        rows, is_lowered = self.cleaner_offsets, False
        for log in logs:
            if rows.get(log.topic_partition, 0) > log.log_end_offset:
                rows[log.topic_partition], is_lowered = log.log_end_offset, True
        if is_lowered:
            # Before anything is appended: a log that has outgrown its row would seem to be clean
            # after the next start.
            checkpoints.write_offsets(self.files, self.path, checkpoints.CLEANER_OFFSET, dict(rows))

    def _open_future(
        self, path: str, partition: TopicPartition | None, config: LogConfig, wall_ms: int
    ) -> None:
        if partition is None or partition.topic == METADATA_TOPIC:
            return
        if not self._has_partition_metadata(path):
            self._drop_future(path, partition, None)
            return
        log = self.open(partition, None, future_config(config), wall_ms, path=path)
        gap = log.gap
        if gap is None or not (gap.torn or gap.torn_tail):
            log.gap = None  # of a log that was cleaned
            self.futures.append(log)
        else:
            log.release_files()
            self._drop_future(path, partition, log.topic_id)

    def _drop_future(self, path: str, partition: TopicPartition, topic_id: bytes | None) -> None:
        self.to_delete.append(path)
        self.lost_futures.append((partition, topic_id))

    def _warn_of_dropped_ends(self, lines: list[str]) -> None:
        """Warns of `_MOST_LINES` logs at most: after a loss of power many may have a torn end."""
        for line in lines[:_MOST_LINES]:
            self.warn(line)
        if len(lines) > _MOST_LINES:
            self.warn(f"{self.path}: recovery dropped the ends of {len(lines)} logs")

    def _has_partition_metadata(self, path: str) -> bool:
        return self.files.exists(posixpath.join(path, checkpoints.PARTITION_METADATA))

    def _offsets(self, name: str) -> dict[TopicPartition, int]:
        try:
            return checkpoints.read_offsets(self.files, self.path, name)
        except CheckpointError as error:
            self.warn(f"{error}; it counts as empty")
            return {}

    def open(
        self,
        partition: TopicPartition,
        topic_id: bytes | None,
        config: LogConfig,
        wall_ms: int,
        is_new: bool = False,
        path: str = "",
    ) -> Log:
        """Opens or makes one log (`path`: where its name is another one); what it deletes while
        loading goes at once.

        Raises OSError, BrokerError INCONSISTENT_TOPIC_ID.
        """
        return load_log(
            self.pool,
            path or posixpath.join(self.path, str(partition)),
            partition,
            topic_id,
            config,
            log_start_offset=self.log_starts.get(partition, 0),
            recovery_point=0
            if partition in self._sharing_rows
            else self.recovery_points.get(partition, 0),
            clean=self.was_clean or is_new,
            wall_ms=wall_ms,
            random=self.random,
            sync=not is_new,
            cleaned_upto=self.cleaner_offsets.get(partition, 0),
        )

    def forget_rows(self, partition: TopicPartition) -> None:
        """Drops the rows that an older log of that name may have left: by them the records of a new
        log would count as synced.
        """
        for rows in (self.recovery_points, self.log_starts, self.cleaner_offsets):
            rows.pop(partition, None)

    def create(
        self,
        partition: TopicPartition,
        topic_id: bytes | None,
        config: LogConfig,
        wall_ms: int,
        name: str = "",
    ) -> Log:
        """A new log; one that somebody left in its place is opened.

        Raises OSError, BrokerError INCONSISTENT_TOPIC_ID.
        """
        # Where a disk was unmounted (`umount -l`), its open files still work, but this path is now
        # on the disk above.
        if not self.files.exists(posixpath.join(self.path, META_PROPERTIES)):
            raise FileNotFoundError(ENOENT, "it is gone; was its disk unmounted?", self.path)
        path = posixpath.join(self.path, name or str(partition))
        if self.files.exists(path):
            log = self.open(partition, topic_id, config, wall_ms, is_new=True, path=path)
            log.durability.name_is_durable = False
            return log
        return new_log(self.pool, path, partition, topic_id, config, wall_ms, self.random)

    def write_clean_shutdown(self, broker_epoch: int) -> None:
        """The last thing a clean stop writes. Raises OSError."""
        checkpoints.write_clean_shutdown(self.files, self.path, broker_epoch)

    def write_topic_id(self, log: Log) -> None:
        """Writes whose log a new one is; `sync_names` makes it durable. Raises OSError."""
        if log.topic_id is not None:
            checkpoints.write_partition_metadata(
                self.files, log.directory, log.topic_id, sync=False
            )

    def write_topic_ids(self) -> None:
        """Writes `partition.metadata` of new logs: on the disk worker, for all that came since,
        after what older logs of their names left in the checkpoints is gone. `sync_names` makes
        them durable. Raises OSError.
        """
        waiting = self.without_id
        ready: set[TopicPartition] = set()
        while waiting:
            log = waiting[0]
            if log.topic_partition not in ready:
                # Some may have come since the last time.
                ready = {waiting[row].topic_partition for row in range(len(waiting))}
                checkpoints.drop_rows(self.files, self.path, ready)
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                self.write_topic_id(log)
                self.unsynced_names.append(log)
            # last: a log that comes before this needs no job of its own, one that comes after it
            # gets one
            waiting.popleft()

    def write_given_ids(self) -> None:
        """`partition.metadata` of older logs that have a topic id now: on the disk worker. What
        the checkpoints say of them stays true. `sync_names` makes them durable. Raises OSError.
        """
        waiting = self.given_ids
        while waiting:
            log = waiting[0]
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                if log.topic_id is not None:
                    checkpoints.write_partition_metadata(
                        self.files, log.directory, log.topic_id, sync=False
                    )
                # A sync of the log that was submitted before the id was given may have said that
                # all of it is durable.
                log.durability.name_is_durable = False
                self.unsynced_names.append(log)
            waiting.popleft()  # last, as in `write_topic_ids`

    def write_future_id(self, log: Log) -> None:
        """`partition.metadata` of a new copy, not synced: on the disk worker, after what an older
        log of its name left in the checkpoints is gone. Raises OSError.
        """
        checkpoints.drop_rows(self.files, self.path, [log.topic_partition])
        if log.topic_id is not None:
            checkpoints.write_partition_metadata(
                self.files, log.directory, log.topic_id, sync=False
            )

    def sync_names(self) -> None:
        """Makes `partition.metadata` of some new logs durable: on the disk worker. Raises OSError.

        A log whose records outlive a power failure and whose topic id does not would be taken for
        one of another topic of its name.
        """
        written = self.unsynced_names[:_NAMES_AT_ONCE]
        todo = [log for log in written if not log.durability.name_is_durable]
        if todo:
            self.disk.side_by_side([partial(self._sync_name, log.directory) for log in todo])
            self.files.sync_directory(self.path)
        for log in todo:
            log.durability.name_is_durable = True
        del self.unsynced_names[: len(written)]  # last: after an error they are still there

    def _sync_name(self, directory: str) -> None:
        checkpoints.sync_path(self.files, posixpath.join(directory, checkpoints.PARTITION_METADATA))
        with contextlib.suppress(FileNotFoundError):
            self.files.sync_directory(directory)

    def release(self) -> None:
        """Gives the lock back."""
        release, self._release = self._release, None
        if release is not None:
            release()
