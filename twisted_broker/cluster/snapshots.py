"""Snapshots of the metadata log: a whole image in a file, so that the log before it may go.

Owns the bytes of a snapshot (header, records, footer), its name, and the files in the log's
directory.

1. `<end offset>-<epoch>.checkpoint` says everything below the end offset. It appears under its name
   only when it is whole and durable.
2. Header and footer are control batches; a file without footer is no snapshot. At kraft.version 1
   the header's batch says who votes.
3. The one of offset 0 and epoch 0 is the bootstrap checkpoint, in which a storage tool leaves the
   first voters. It is none of the snapshots that are listed.

Source: Kafka's `Snapshots`, `RecordsSnapshotWriter`; KIP-630; FILE_FORMATS 3. Not here: when to
write one (`controller.py`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from twisted_broker.cluster.image_records import image_records
from twisted_broker.cluster.records import build_batch, decoded_in_steps
from twisted_broker.image.metadata_image import EMPTY, RECORDS_PER_STEP, MetadataImage
from twisted_broker.interfaces import Buffer, IFileSystem
from twisted_broker.log.checkpoints import read_whole, write_aside
from twisted_broker.raft.control_records import control_records, encode_control, of_quorum
from twisted_broker.raft.voter_history import ControlRecord
from twisted_broker.wire.control_batch import (
    SNAPSHOT_FOOTER,
    SNAPSHOT_HEADER,
    build_control_batch,
    build_control_records,
)
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.messages.control_records import SnapshotFooterRecord, SnapshotHeaderRecord
from twisted_broker.wire.records import control_record_type, iterate_batches
from twisted_broker.wire.schema import Record, decode, encode, run_whole

RECORDS_PER_BATCH = 1024
_NAME = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_RECORD_LIMIT = 1 << 24
_HEADER_BYTES = 1 << 20  # some thousands of voters


class SnapshotId(NamedTuple):
    """What a snapshot reaches: offsets below `end_offset`, the last of them written under
    `epoch`.
    """

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"


BOOTSTRAP = SnapshotId(0, 0)


def list_snapshots(files: IFileSystem, directory: str) -> list[SnapshotId]:
    """Complete snapshots in a directory, oldest first."""
    matches = [_NAME.fullmatch(name) for name in files.listdir(directory)]
    found = [SnapshotId(int(match[1]), int(match[2])) for match in matches if match is not None]
    return sorted(each for each in found if each != BOOTSTRAP)


def snapshot_bytes(
    image: MetadataImage, wall_ms: int, quorum: Sequence[ControlRecord] = ()
) -> Iterator[bytes]:
    """The batches of a snapshot of `image`, one after another: a header, its records, a footer.

    `wall_ms`: the time of the batches; `quorum`: who votes.
    """
    found, version = image_records(image), image.metadata_version
    return snapshot_frame(found, image.epoch, image.timestamp_ms, wall_ms, version, quorum)


def snapshot_frame(
    records: Iterable[Record],
    epoch: int,
    timestamp_ms: int,
    wall_ms: int,
    metadata_version: int,
    quorum: Sequence[ControlRecord] = (),
) -> Iterator[bytes]:
    """Records between a header and a footer. `timestamp_ms`: of the last record that they contain;
    `wall_ms`: of the batches; `quorum`: who votes, at kraft.version 1.
    """
    header = encode(SnapshotHeaderRecord(version=0, last_contained_log_timestamp=timestamp_ms), 0)
    first = [(SNAPSHOT_HEADER, header), *map(encode_control, quorum)]
    yield build_control_records(first, wall_ms, base_offset=0, leader_epoch=epoch)
    offset = len(first)
    remaining = iter(records)
    while chunk := list(islice(remaining, RECORDS_PER_BATCH)):
        yield build_batch(chunk, offset, epoch, wall_ms, metadata_version)
        offset += len(chunk)
    yield build_control_batch(
        SNAPSHOT_FOOTER,
        encode(SnapshotFooterRecord(version=0), 0),
        wall_ms,
        base_offset=offset,
        leader_epoch=epoch,
    )


def write_snapshot(
    files: IFileSystem,
    directory: str,
    image: MetadataImage,
    wall_ms: int,
    quorum: Sequence[ControlRecord] = (),
) -> SnapshotId:
    """Writes the snapshot of an image, durably. Raises OSError. Slow: for the disk worker."""
    snapshot = SnapshotId(image.offset + 1, image.epoch)
    write_aside(
        files,
        posixpath.join(directory, snapshot.file_name),
        b"".join(snapshot_bytes(image, wall_ms, quorum)),
    )
    return snapshot


def write_bootstrap_checkpoint(
    files: IFileSystem, directory: str, quorum: Sequence[ControlRecord], wall_ms: int
) -> None:
    """The first voters, durably. Raises OSError."""
    content = b"".join(snapshot_frame((), 0, wall_ms, wall_ms, 0, quorum))
    write_aside(files, posixpath.join(directory, BOOTSTRAP.file_name), content)


def quorum_of_snapshot(
    files: IFileSystem, directory: str, snapshot: SnapshotId, listener: str
) -> tuple[ControlRecord, ...] | None:
    """Who votes, as its header says; None where the file is not there. `listener`: the controllers'
    own. WireError or CorruptRecordError when the header is damaged, OSError.
    """
    try:
        file = files.open(posixpath.join(directory, snapshot.file_name), read_only=True)
    except FileNotFoundError:
        return None
    try:
        content = file.read_at(0, min(file.size(), _HEADER_BYTES))
    finally:
        file.close()
    return quorum_of_content(content, snapshot, listener)


def quorum_of_content(
    content: Buffer, snapshot: SnapshotId, listener: str
) -> tuple[ControlRecord, ...]:
    """Who votes, as the beginning of a snapshot says. WireError, CorruptRecordError."""
    first = next(iterate_batches(content, partial_tail=True, check_crc=True), None)
    if first is None or not first.is_control:
        raise WireError(f"snapshot {snapshot.file_name} has no header")
    return of_quorum(control_records(first, listener))


def load_snapshot(files: IFileSystem, directory: str, snapshot: SnapshotId) -> MetadataImage:
    """As `load_snapshot_in_steps`, without a pause."""
    return run_whole(load_snapshot_in_steps(files, directory, snapshot))


def load_snapshot_in_steps(
    files: IFileSystem, directory: str, snapshot: SnapshotId
) -> Generator[None, None, MetadataImage]:
    """The image that a snapshot says. Pauses after every `RECORDS_PER_STEP`.

    WireError or CorruptRecordError when it is damaged, OSError.
    """
    content = read_whole(files, posixpath.join(directory, snapshot.file_name))
    if content is None:
        raise FileNotFoundError(snapshot.file_name)
    return (yield from image_in_steps(content, snapshot))


def image_of(content: Buffer, snapshot: SnapshotId) -> MetadataImage:
    """As `image_in_steps`, without a pause."""
    return run_whole(image_in_steps(content, snapshot))


def image_in_steps(content: Buffer, snapshot: SnapshotId) -> Generator[None, None, MetadataImage]:
    """The image that the bytes of a snapshot say. Pauses after every `RECORDS_PER_STEP`.

    WireError when header or footer is missing or anything between is not understood.
    """
    name = f"snapshot {snapshot.file_name}"
    records, timestamp_ms = yield from _read_in_steps(content, name)
    image, _ = yield from EMPTY.apply_in_steps(
        records, snapshot.end_offset - 1, snapshot.epoch, timestamp_ms
    )
    return image


def read_records(content: Buffer, name: str) -> tuple[list[Record], int]:
    """As `_read_in_steps`, without a pause."""
    return run_whole(_read_in_steps(content, name))


def _read_in_steps(content: Buffer, name: str) -> Generator[None, None, tuple[list[Record], int]]:
    """What stands between the header and the footer of a snapshot of this `name`, and the time of
    the last record that it contains.

    WireError when the footer is missing or anything before it is not understood.
    """
    timestamp_ms = -1
    whole = False
    records: list[Record] = []
    expected = paused_at = 0
    for batch in iterate_batches(content, check_crc=True):
        if batch.base_offset != expected:  # no checksum covers it
            raise WireError(
                f"{name} has a batch of offset {batch.base_offset} where {expected} comes next"
            )
        expected = batch.last_offset + 1
        if not batch.is_control:
            records += yield from decoded_in_steps(batch)
            if len(records) - paused_at >= RECORDS_PER_STEP:
                paused_at = len(records)
                yield
            continue
        for record in batch.records(_RECORD_LIMIT):
            kind = control_record_type(record.key)
            if kind == SNAPSHOT_HEADER:
                timestamp_ms = decode(
                    SnapshotHeaderRecord, record.value or b"", 0
                ).last_contained_log_timestamp
            whole = whole or kind == SNAPSHOT_FOOTER
    if not whole:
        raise WireError(f"{name} has no end")
    return records, timestamp_ms


def remove_snapshots(files: IFileSystem, directory: str, snapshots: Iterable[SnapshotId]) -> None:
    """Deletes snapshots that a newer one replaces. Raises OSError."""
    for snapshot in snapshots:
        files.remove(posixpath.join(directory, snapshot.file_name))
