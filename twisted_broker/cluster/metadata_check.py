"""Whether `__cluster_metadata-0` still holds all that it is known to have held.

Owns the durable mark (how far the log was synced), and the check of a directory before it is
opened.

1. Everything below the mark was synced once: whatever lacks there, or cannot be read, is damage.
   Above it a loss of power may have left anything: recovery truncates that, as in every log.
2. A directory without a mark (an older version's, Apache Kafka's) is damaged where good batches
   follow a bad one.
3. Checking changes nothing on the disk.

Source: Kafka's rule that nothing below the high watermark is truncated (`KafkaRaftLog`); the mark
is
ours, in the form of a checkpoint. Not here: what is done about damage (`metadata_log.py`,
`metadata_copy.py`, `metadata_recovery.py`).
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from twisted_broker.cluster.snapshots import SnapshotId, list_snapshots, load_snapshot
from twisted_broker.image.metadata_image import EMPTY, MetadataImage
from twisted_broker.interfaces import IFile, IFileSystem, TopicPartition
from twisted_broker.log.batch_scan import valid_batches
from twisted_broker.log.checkpoints import HIGH_WATERMARK, read_offsets, write_aside
from twisted_broker.log.crash_cleanup import base_offset_of
from twisted_broker.log.errors import CheckpointError
from twisted_broker.topic_names import METADATA_TOPIC
from twisted_broker.wire.errors import BrokerError, WireError
from twisted_broker.wire.records import HEADER_BYTES, BatchView, CorruptRecordError

METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
DIRECTORY_NAME = str(METADATA_PARTITION)
_LOG = ".log"
_MAGIC_AT = 16
_SEARCH_BYTES = 1 << 22


def recover_hint(source: str = "A_BROKERS_LOG_DIR", target: str = "THE_CONTROLLERS_LOG_DIR") -> str:
    """The command that rebuilds a controller's metadata."""
    return f"`replog metadata recover --from {source} --to {target}`"


class MetadataDamage(Exception):
    """Metadata that was durable is not there any more, or cannot be read: `path`, `position`
    (-1: the whole file), `offset`.
    """

    def __init__(self, path: str, reason: str, position: int = -1, offset: int = -1) -> None:
        place = path if position < 0 else f"{path} at byte {position}"
        at = f" (offset {offset})" if offset >= 0 else ""
        super().__init__(f"{place}{at}: {reason}")
        self.path, self.reason, self.position, self.offset = path, reason, position, offset


class Reach(NamedTuple):
    """How far metadata went: the offset behind the last batch, and the newest epoch seen."""

    end_offset: int
    epoch: int


def read_mark(files: IFileSystem, directory: str) -> int | None:
    """Everything below it was synced. None: not known. OSError."""
    try:
        return read_offsets(files, directory, HIGH_WATERMARK).get(METADATA_PARTITION)
    except CheckpointError:
        return None


def make_mark(files: IFileSystem, directory: str, offset: int) -> None:
    """A mark that is durable itself. OSError."""
    write_aside(files, posixpath.join(directory, HIGH_WATERMARK), _mark_text(offset))


def move_mark(files: IFileSystem, directory: str, offset: int) -> None:
    """Writes the mark in its place, without a sync of its own: an older one is true as well.
    OSError. For the disk worker.
    """
    file = files.open(posixpath.join(directory, HIGH_WATERMARK), create=True)
    try:
        file.write_at(0, (_mark_text(offset),))
    finally:
        file.close()


def _mark_text(offset: int) -> bytes:
    """Always of the same length, within one sector: never torn."""
    return f"0\n1\n{METADATA_TOPIC} 0 {offset:020d}\n".encode()


def is_empty(files: IFileSystem, directory: str) -> bool:
    """Whether a directory holds neither log, nor snapshot, nor mark, or is not there. OSError."""
    if not files.is_directory(directory):
        return True
    names = files.listdir(directory)
    return not any(name.endswith((_LOG, ".checkpoint")) or name == HIGH_WATERMARK for name in names)


def check_metadata(files: IFileSystem, directory: str) -> MetadataImage:
    """The image of the newest snapshot (EMPTY without one), when all is there. MetadataDamage,
    OSError.
    """
    mark = read_mark(files, directory)
    snapshots = list_snapshots(files, directory)
    image = _load(files, directory, snapshots[-1]) if snapshots else EMPTY
    walk = _Walk(files, directory, image.offset + 1, mark)
    walk.run()
    return image


def _load(files: IFileSystem, directory: str, snapshot: SnapshotId) -> MetadataImage:
    try:
        return load_snapshot(files, directory, snapshot)
    except (BrokerError, WireError, AssertionError, LookupError) as error:
        path = posixpath.join(directory, snapshot.file_name)
        raise MetadataDamage(
            path, f"the snapshot cannot be read: {error}", offset=snapshot.end_offset
        ) from error


class _Walk:
    """Goes over the segments from the one that holds `start` on."""

    def __init__(self, files: IFileSystem, directory: str, start: int, mark: int | None) -> None:
        self.files, self.directory, self.start, self.mark = files, directory, start, mark
        self.end, self.epoch = start, -1

    def run(self) -> None:
        bases = sorted(
            base_offset_of(name)
            for name in self.files.listdir(self.directory)
            if name.endswith(_LOG)
        )
        bases = [
            base
            for row, base in enumerate(bases)
            if row + 1 == len(bases) or bases[row + 1] > self.start
        ]
        for row, base in enumerate(bases):
            path = posixpath.join(self.directory, f"{base:020d}{_LOG}")
            if row == 0 and base <= self.start:
                self.end = base
            if base != self.end and row and self.mark is not None and self.end >= self.mark:
                break  # a loss of power took a name that was not durable yet
            if base != self.end:
                raise MetadataDamage(
                    path,
                    f"what lies between offset {self.end} and {base} is missing",
                    offset=self.end,
                )
            if not self._segment(path, is_last=row + 1 == len(bases)):
                break
        self.end = max(self.end, self.start)
        if self.mark is not None and self.end < self.mark:
            raise MetadataDamage(
                self.directory,
                f"the log ends at offset {self.end}, but was durable up to {self.mark}",
                offset=self.end,
            )

    def _segment(self, path: str, is_last: bool) -> bool:
        """False where recovery truncates: nothing behind it counts."""
        file = self.files.open(path, read_only=True)
        try:
            size, position = file.size(), 0
            for place, batch in valid_batches(file, size):
                if (
                    batch is None
                    or place.base_offset != self.end
                    or batch.partition_leader_epoch < self.epoch
                ):
                    break
                position += place.size_in_bytes
                self.end, self.epoch = place.last_offset + 1, batch.partition_leader_epoch
            if position == size:
                return True
            if self.mark is not None and self.end < self.mark:
                raise MetadataDamage(path, "a damaged batch, durable once", position, self.end)
            if self.mark is None and (not is_last or _goes_on(file, position + 1, size, self.end)):
                raise MetadataDamage(
                    path, "a damaged batch, with good ones behind it", position, self.end
                )
            return False
        finally:
            file.close()


def _goes_on(file: IFile, position: int, size: int, offset: int) -> bool:
    """Whether a good batch of a later offset begins anywhere from byte `position` on."""
    while size - position >= HEADER_BYTES:
        chunk = file.read_at(position, min(_SEARCH_BYTES, size - position))
        found = chunk.find(b"\x02", _MAGIC_AT)
        while found >= 0:
            at = found - _MAGIC_AT
            base, length = (
                int.from_bytes(chunk[at : at + 8], "big"),
                int.from_bytes(chunk[at + 8 : at + 12], "big"),
            )
            plausible = offset <= base < offset + (1 << 31) and length < size - position - at
            if plausible and _is_batch(file.read_at(position + at, 12 + length)):
                return True
            found = chunk.find(b"\x02", found + 1)
        position += max(1, len(chunk) - HEADER_BYTES)
    return False


def _is_batch(data: bytes) -> bool:
    try:
        return BatchView(data).is_valid_crc()
    except CorruptRecordError:
        return False


def reach_of(files: IFileSystem, directory: str) -> Reach:
    """How far damaged metadata is known to have gone: by mark, names, and every batch before the
    damage. OSError.
    """
    end, epoch = read_mark(files, directory) or 0, -1
    for snapshot in list_snapshots(files, directory):
        end, epoch = max(end, snapshot.end_offset), max(epoch, snapshot.epoch)
    for name in files.listdir(directory):
        if name.endswith(_LOG) and base_offset_of(name) >= 0:
            file = files.open(posixpath.join(directory, name), read_only=True)
            try:
                for place, batch in valid_batches(file, file.size()):
                    end = max(end, place.last_offset + 1)
                    epoch = max(epoch, -1 if batch is None else batch.partition_leader_epoch)
            finally:
                file.close()
    return Reach(end, epoch)
