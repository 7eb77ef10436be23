"""The last batch of a metadata log: it tells the log from every other, which has another batch at
that offset.

Owns `LastBatch`, and the file that keeps it beside a broker's snapshot, for when the log before the
snapshot's end is gone.

1. `<end offset>-<epoch>.last-batch` is durable before the snapshot of that name is there, and is
   removed once a newer one is: a broker's own snapshot never lacks it, whenever the process ends.
2. A file that is damaged, or does not end where the snapshot does, counts as none: nothing is
   compared then, and no controller is refused for it.

Source: ours; Kafka's followers compare epochs only, and leave the file alone. Not here: who
compares (`metadata_loader.py`).
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from crc32c import crc32c

from twisted_broker.cluster.snapshots import SnapshotId
from twisted_broker.interfaces import IFileSystem
from twisted_broker.log.checkpoints import read_whole, write_aside
from twisted_broker.wire.records import BatchView

SUFFIX = ".last-batch"
_VERSION = 0


class LastBatch(NamedTuple):
    """The fields that tell a batch from any other at its offset. `previous_epoch`: of the batch
    before it, -1 unknown.
    """

    base_offset: int
    last_offset: int
    epoch: int
    size: int
    crc: int
    previous_epoch: int

    @staticmethod
    def of(batch: BatchView, previous_epoch: int) -> LastBatch:
        return LastBatch(
            batch.base_offset,
            batch.last_offset,
            batch.partition_leader_epoch,
            batch.size_in_bytes,
            batch.crc,
            previous_epoch,
        )

    def is_same(self, batch: BatchView) -> bool:
        return self == LastBatch.of(batch, self.previous_epoch)


def write_last_batch(
    files: IFileSystem, directory: str, snapshot: SnapshotId, last: LastBatch
) -> None:
    """Writes what `snapshot` ends with, durably. Raises OSError. For the disk worker."""
    write_aside(files, _path(directory, snapshot), _line(last))


def read_last_batch(files: IFileSystem, directory: str, snapshot: SnapshotId) -> LastBatch | None:
    """What `snapshot` ends with, None: not known. Raises OSError."""
    content = read_whole(files, _path(directory, snapshot)) or b""
    try:
        found = LastBatch(*map(int, content.split()[1:-1]))
    except (ValueError, TypeError):
        return None
    fits = (found.last_offset + 1, found.epoch) == snapshot
    return found if fits and content == _line(found) else None


def remove_last_batches(files: IFileSystem, directory: str, newest: SnapshotId) -> None:
    """Removes those of snapshots before `newest`; a snapshot that never came may have left one.
    Raises OSError. For the disk worker.
    """
    for name in files.listdir(directory):
        if name.endswith(SUFFIX) and name < posixpath.basename(_path(directory, newest)):
            files.remove(posixpath.join(directory, name))


def _path(directory: str, snapshot: SnapshotId) -> str:
    return posixpath.join(directory, posixpath.splitext(snapshot.file_name)[0] + SUFFIX)


def _line(last: LastBatch) -> bytes:
    """Version, the fields in order, and the CRC-32C of what precedes it."""
    words = " ".join(map(str, (_VERSION, *last))).encode()
    return b"%b %d\n" % (words, crc32c(words))
