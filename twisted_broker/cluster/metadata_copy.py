"""A broker's own copy of the metadata log: `__cluster_metadata-0` in its log directory.

Owns `MetadataCopy`: the batches that the controller sent, byte for byte, snapshots, and what is
known
of a copy that was damaged.

1. It holds committed records only: whatever contradicts it is a fault, and is never truncated here.
2. Nothing waits for a sync. The copy is synced with snapshots and at a clean end; a loss of power
   takes the newest part of it, no more.
3. A damaged copy is kept under another name; `floor` says how far it went, and the new one begins
   with a mark of that offset until it has reached it.
4. A disk that fails ends the copy (`on_fatal`); the broker follows on without one.

Source: Kafka's brokers, which are observers of the metadata log with a log of their own; KIP-595,
KIP-630. Not here: following (`observer.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from twisted_broker.cluster.metadata_check import (
    DIRECTORY_NAME,
    MetadataDamage,
    Reach,
    make_mark,
    reach_of,
    read_mark,
)
from twisted_broker.cluster.metadata_store import MetadataStore, Opened, open_directory
from twisted_broker.cluster.snapshots import SnapshotId, list_snapshots
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import IDiskWorker, IFileSystem
from twisted_broker.log.checkpoints import write_aside
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.log.log_directory import STRAY_SUFFIX
from twisted_broker.wire.errors import BrokerError

NOTHING = Reach(0, -1)


def open_metadata_copy(
    files: IFileSystem,
    disk: IDiskWorker,
    log_directory: str,
    wall_ms: Callable[[], int],
    unique: int,
    on_fatal: Callable[[BaseException], None] = lambda error: None,
    warn: Callable[[str], None] = lambda text: None,
) -> tuple[MetadataCopy, MetadataImage, str]:
    """The copy in a log directory, its image, and one line about a damaged one that was put
    aside, "" otherwise. Slow. OSError.

    `unique`: 128 random bits for the name of a damaged one.
    """
    directory = posixpath.join(log_directory, DIRECTORY_NAME)
    floor, warning = _begun_floor(files, directory), ""
    if floor is None:
        try:
            copy = MetadataCopy(
                open_directory(files, disk, log_directory, wall_ms()),
                wall_ms,
                NOTHING,
                on_fatal,
                warn,
            )
            return copy, copy.replay(), ""
        except (MetadataDamage, LogDirFailure) as damage:
            if isinstance(damage, LogDirFailure):
                raise damage.cause or OSError(str(damage)) from damage
            floor, warning = _put_aside(files, directory, unique, damage)
    opened = open_directory(files, disk, log_directory, wall_ms())
    copy = MetadataCopy(opened._replace(mark=0), wall_ms, floor, on_fatal, warn)
    return copy, MetadataImage(), warning


def _begun_floor(files: IFileSystem, directory: str) -> Reach | None:
    """What an empty copy that replaced a damaged one must reach; None for any other, or none at
    all.
    """
    if not files.is_directory(directory) or list_snapshots(files, directory):
        return None
    mark = read_mark(files, directory)
    logs = [name for name in files.listdir(directory) if name.endswith(".log")]
    if not mark or any(files.size(posixpath.join(directory, name)) for name in logs):
        return None
    make_mark(files, directory, 0)  # while it is opened: it holds nothing
    return Reach(mark, -1)


def _put_aside(
    files: IFileSystem, directory: str, unique: int, damage: MetadataDamage
) -> tuple[Reach, str]:
    floor = reach_of(files, directory)
    aside = f"{directory}.{unique:032x}{STRAY_SUFFIX}"
    files.rename(directory, aside)
    files.sync_directory(posixpath.dirname(directory))
    warning = (
        "this broker's copy of the metadata is damaged and kept as "
        f"{posixpath.basename(aside)}; it is fetched anew, "
        f"from a controller that reaches offset {floor.end_offset}: {damage}"
    )
    return floor, warning


class MetadataCopy(MetadataStore):
    """`floor`: how far the metadata is known to have gone, beyond what is here. `warn(line)`: it is
    not written any more, though the disk is well.
    """

    def __init__(
        self,
        opened: Opened,
        wall_ms: Callable[[], int],
        floor: Reach,
        on_fatal: Callable[[BaseException], None],
        warn: Callable[[str], None],
    ) -> None:
        super().__init__(opened, wall_ms, on_fatal)
        self._warn = warn
        self.floor = floor
        self._installing = 0
        self._waiting: list[bytes] = []
        self._last_snapshot_ms: int | None = None
        if floor.end_offset:
            make_mark(self.files, self.directory, floor.end_offset)

    def append(self, batches: bytes) -> None:
        """Whole batches of committed records, the next ones. Never raises: `on_fatal` is called."""
        if self._installing:
            self._waiting.append(batches)
        elif self.failed is None:
            try:
                self.log.append_as_follower(batches, -1, self.wall_ms())
            except LogDirFailure as error:
                self._fail(error.cause or error)
                return
            # a snapshot ended within a batch, as old controllers' may: the next start fetches it
            except BrokerError as error:
                self.failed = error
                self._warn(
                    f"this broker's copy of the metadata in {self.directory} is not written until "
                    f"its next start, which fetches it anew: {error}"
                )
                return
            self.log.set_high_watermark(self.end_offset)
            self._bytes_since_snapshot += len(batches)

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
        self, image: MetadataImage, now_ms: int, most_bytes: int, interval_ms: int
    ) -> None:
        """A snapshot of `image`, which includes everything here, when enough came or time
        passed. Not within a metadata transaction.
        """
        if self._last_snapshot_ms is None:
            self._last_snapshot_ms = now_ms
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
            self.write_snapshot(image)

    def finish(self) -> None:
        """A clean end, in the background: everything durable, and the mark says so."""
        if self.failed is not None or self._installing:
            return
        try:
            job, end = self.log.finish(), self.end_offset
        except OSError as error:
            self._fail(error)
            return

        def sync() -> None:
            job()
            if end >= self.floor.end_offset:
                make_mark(self.files, self.directory, end)

        self.failed = OSError("the copy is closed")
        self.disk.submit(sync, lambda _, error: self.log.release_files())
