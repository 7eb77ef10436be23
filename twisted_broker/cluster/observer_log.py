"""A broker's metadata log: `__cluster_metadata-0` in its log directory, an observer's replica.

Owns `ObserverLog`: the batches that the controller sent, byte for byte, snapshots, and
how far a damaged log of before is known to have gone.

1. It holds committed records only: what contradicts them is a fault of the controller, and
   truncates nothing here. A snapshot from the controller replaces the whole log.
2. Nothing waits for a sync. The log is synced every `SYNC_MS` while records come, with snapshots
   and at a clean end, and its durable end moves then; a loss of power takes no more than the
   newest part of it.
3. Beside each snapshot that this broker wrote stands its last batch (`last_batch.py`): a log that
   ends at its snapshot is compared by it. For a snapshot from the controller there is none.
4. A damaged log is renamed; the newest `MOST_DAMAGED_LOGS` are kept. The new log is empty. Its
   durable end, synced before it takes the name, is where the damaged log ended (`known_end`): the
   metadata went at least that far. It stays until the new log has reached it.
5. A disk that fails ends the log (`on_fatal`); the broker follows on without one.

Source: Kafka's brokers, which are observers of the metadata log with a log of their own; KIP-595,
KIP-630. Not here: following (`observer.py`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable

from twisted_broker.cluster.last_batch import LastBatch, read_last_batch, remove_last_batches
from twisted_broker.cluster.metadata_check import (
    EMPTY_LOG,
    NOT_APPLIED,
    Applied,
    LogEnd,
    MetadataDamage,
    durable_end_text,
    known_end,
    read_durable_end,
    write_durable_end,
)
from twisted_broker.cluster.metadata_store import MetadataStore, Opened, open_directory
from twisted_broker.cluster.quorum_state import NAME as QUORUM_STATE
from twisted_broker.cluster.snapshots import SnapshotId
from twisted_broker.image.metadata_image import MetadataImage, Removals
from twisted_broker.interfaces import IDiskWorker, IFileSystem
from twisted_broker.log.checkpoints import write_aside
from twisted_broker.log.errors import LogDirFailure, is_out_of_descriptors
from twisted_broker.log.log_directory import STRAY_SUFFIX
from twisted_broker.topic_names import METADATA_DIRECTORY
from twisted_broker.wire.errors import BrokerError
from twisted_broker.wire.records import BatchView

SYNC_MS = 10_000
MOST_DAMAGED_LOGS = 3
_DAMAGED_LOG = re.compile(re.escape(METADATA_DIRECTORY) + r"\.[0-9a-f]{32}" + STRAY_SUFFIX)


def open_observer_log(
    files: IFileSystem,
    disk: IDiskWorker,
    log_directory: str,
    wall_ms: Callable[[], int],
    unique: int,
    on_fatal: Callable[[BaseException], None] = lambda error: None,
    warn: Callable[[str], None] = lambda text: None,
    applied: Applied = NOT_APPLIED,
) -> tuple[ObserverLog, MetadataImage, str]:
    """The log in a log directory, its image, and one line about a damaged one that was put
    aside, "" otherwise. Slow. Raises OSError.

    `unique`: 128 random bits for the name of a damaged one. `applied`: how far this broker is known
    to have applied the metadata; the log may lack the end of it after a loss of power.
    """
    directory, warning = posixpath.join(log_directory, METADATA_DIRECTORY), ""
    _finish_replacing(files, directory)
    try:
        own_log, image = _open(files, disk, log_directory, wall_ms, on_fatal, warn)
    except MetadataDamage as damage:
        warning = _put_aside(files, directory, unique, damage)
        own_log, image = _open(files, disk, log_directory, wall_ms, on_fatal, warn)
    if applied.end_offset > max(own_log.end_offset, own_log.known_end.end_offset):
        own_log.known_end = LogEnd(applied.end_offset, -1)
    return own_log, image, warning


def _open(
    files: IFileSystem,
    disk: IDiskWorker,
    log_directory: str,
    wall_ms: Callable[[], int],
    on_fatal: Callable[[BaseException], None],
    warn: Callable[[str], None],
) -> tuple[ObserverLog, MetadataImage]:
    """Raises MetadataDamage, OSError."""
    try:
        opened = open_directory(files, disk, log_directory, wall_ms(), is_observer=True)
        own_log = ObserverLog(opened, wall_ms, on_fatal, warn)
        try:
            return own_log, own_log.replay()
        except MetadataDamage:
            opened.log.release_files()
            raise
    except LogDirFailure as failure:
        raise failure.cause or OSError(str(failure)) from failure


def _new_name(directory: str) -> str:
    return f"{directory}.new"


def _finish_replacing(files: IFileSystem, directory: str) -> None:
    """What a crash between the two renames of `_put_aside` left."""
    new = _new_name(directory)
    if not files.is_directory(new):
        return
    if files.is_directory(directory):
        files.remove_tree(new)
    else:
        files.rename(new, directory)
        files.sync_directory(posixpath.dirname(directory))


def _put_aside(files: IFileSystem, directory: str, unique: int, damage: MetadataDamage) -> str:
    """An empty log takes its place, with the durable end of the damaged one."""
    reached = known_end(files, directory).end_offset
    _remove_old_damaged_logs(files, posixpath.dirname(directory))
    new, aside = _new_name(directory), f"{directory}.{unique:032x}{STRAY_SUFFIX}"
    files.make_directories(new)
    write_durable_end(files, new, reached)
    files.rename(directory, aside)
    files.rename(new, directory)
    files.sync_directory(posixpath.dirname(directory))
    return (
        "this broker's metadata log is damaged and kept as "
        f"{posixpath.basename(aside)}; it is fetched anew, "
        f"from a controller that reaches offset {reached}: {damage}"
    )


def _remove_old_damaged_logs(files: IFileSystem, log_directory: str) -> None:
    """A disk that rots must not fill up. What was a controller's log is not touched."""
    damaged = [
        posixpath.join(log_directory, name)
        for name in files.listdir(log_directory)
        if _DAMAGED_LOG.fullmatch(name)
    ]
    damaged = [path for path in damaged if not files.exists(posixpath.join(path, QUORUM_STATE))]
    damaged.sort(key=lambda path: read_durable_end(files, path) or 0, reverse=True)
    for path in damaged[MOST_DAMAGED_LOGS - 1 :]:
        files.remove_tree(path)


class ObserverLog(MetadataStore):
    """`known_end`: how far the metadata is known to have gone, where that is beyond what is here.
    `warn(line)`: it is not written any more, though the disk is well.
    """

    def __init__(
        self,
        opened: Opened,
        wall_ms: Callable[[], int],
        on_fatal: Callable[[BaseException], None],
        warn: Callable[[str], None],
    ) -> None:
        # Above the log end it is that of a damaged log, whose place this one took.
        reached = opened.durable_end > opened.log.log_end_offset
        super().__init__(opened, wall_ms, on_fatal)
        self._warn = warn
        self.removals = Removals()
        self.known_end = LogEnd(opened.durable_end, -1) if reached else EMPTY_LOG
        self._end_at_open = 0 if reached else opened.durable_end
        if self.snapshots:  # the replay finds a later one, where the log goes on behind it
            self.last_batch = read_last_batch(self.files, self.directory, self.snapshots[-1])
        self._installing = 0
        self._syncing, self._synced = False, -1
        self._last_sync_ms: int | None = None
        self._waiting: list[bytes] = []
        self._last_snapshot_ms: int | None = None

    def take_removals(self) -> Removals | None:
        """What the replay found."""
        found, self.removals = self.removals, None
        return found

    def append(self, batches: bytes) -> None:
        """Whole batches of committed records, the next ones. Never raises: `on_fatal` is called."""
        if self._installing:
            self._waiting.append(batches)
        elif self.failed is None:
            try:
                self._begin_within(BatchView(batches))
                self.log.append_as_follower(batches, -1, self.wall_ms())
            except LogDirFailure as error:
                self._fail(error.cause or error)
                return
            except BrokerError as error:
                self.failed = error
                self._warn(
                    f"this broker's metadata log in {self.directory} is not written until "
                    f"its next start, which fetches it anew: {error}"
                )
                return
            self.log.set_high_watermark(self.end_offset)
            self._bytes_since_snapshot += len(batches)

    def _begin_within(self, first: BatchView) -> None:
        """A snapshot may end within a batch (old controllers' do): the log behind it begins with
        that batch, as Kafka's followers do it.
        """
        start = self.log.log_start_offset
        if first.base_offset < start == self.end_offset <= first.last_offset:
            self.log.truncate_fully_and_start_at(first.base_offset, self.wall_ms())

    def install(self, content: bytes, snapshot: SnapshotId) -> None:
        """The controller's snapshot takes the place of all that is here; what comes meanwhile
        waits for it.
        """
        if self.failed is not None:
            return
        self._installing += 1
        self._waiting.clear()

        def done(_: None, error: BaseException | None) -> None:
            self._installing -= 1
            if error is not None:
                self._fail(error)
            elif not self._installing and self.failed is None:
                self._installed(snapshot)

        self.disk.submit(
            lambda: write_aside(self.files, self.snapshot_path(snapshot), content), done
        )

    def _installed(self, snapshot: SnapshotId) -> None:
        old, self.snapshots = [each for each in self.snapshots if each != snapshot], [snapshot]
        try:
            self.log.truncate_fully_and_start_at(snapshot.end_offset, self.wall_ms())
        except LogDirFailure as error:
            self._fail(error.cause or error)
            return
        self._bytes_since_snapshot = 0
        self._remove_snapshots(old)
        waiting, self._waiting = self._waiting, []
        for batches in waiting:
            self.append(batches)

    def consider_snapshot(
        self,
        image: MetadataImage,
        last: LastBatch | None,
        now_ms: int,
        most_bytes: int,
        interval_ms: int,
    ) -> None:
        """Writes a snapshot of `image`, if that includes everything here, and `most_bytes` came or
        `interval_ms` passed since the last one; syncs when that is due. Not to be called within a
        metadata transaction. `last`: the batch that `image` ends with, None not known.
        """
        if self._last_snapshot_ms is None:
            self._last_snapshot_ms = now_ms
        self._sync_by_time(now_ms)
        due = interval_ms > 0 and now_ms - self._last_snapshot_ms >= interval_ms
        if (
            self._installing
            or self.failed is not None
            or image.offset + 1 != self.end_offset
            or not self._bytes_since_snapshot
        ):
            return
        if due or self._bytes_since_snapshot >= most_bytes:
            self._last_snapshot_ms = now_ms
            self.write_snapshot(image, last)

    def _remove_snapshots(self, snapshots: Iterable[SnapshotId]) -> None:
        super()._remove_snapshots(snapshots)
        newest = self.snapshots[-1]
        self.disk.submit(
            lambda: remove_last_batches(self.files, self.directory, newest), lambda _, error: None
        )

    def _sync_by_time(self, now_ms: int) -> None:
        if self._last_sync_ms is None:
            self._last_sync_ms = now_ms
        end = self.end_offset
        if self._syncing or self._installing or self.failed is not None or end <= self._synced:
            return
        if now_ms - self._last_sync_ms < SYNC_MS:
            return
        self._syncing, self._last_sync_ms = True, now_ms
        job = self.log.durability.sync_job(end)

        def sync() -> None:
            job()
            self._raise_durable_end(end)

        def done(_: None, error: BaseException | None) -> None:
            self._syncing = False
            if error is None:
                self._synced = end
            elif not is_out_of_descriptors(error):
                self._fail(error)

        self.disk.submit(sync, done)

    def finish(self) -> None:
        """A clean end, in the background: syncs everything, and writes the durable end."""
        if self.failed is not None or self._installing:
            return
        try:
            job, end = self.log.finish(), self.end_offset
        except OSError as error:
            self._fail(error)
            return

        def sync() -> None:
            try:
                job()
                if end >= self._durable_end:
                    self._durable_end_file.write(durable_end_text(end), sync=True)
            finally:
                self._durable_end_file.close()

        self.failed = OSError("the log is closed")
        self.disk.submit(sync, lambda _, error: self.log.release_files())
