"""The small text files of a log directory, and the way every small file is replaced.

Owns `write_aside`, offset checkpoints (recovery point, log start, high watermark, cleaner), the
leader-epoch checkpoint's text, `partition.metadata` and `.kafka_cleanshutdown`.

1. A reader sees the old content or the new one, whole: written to `.tmp`, synced, renamed,
   directory synced (`sync=False`: not synced).
2. A file of another version, or whose count does not match, is a `CheckpointError`; an absent one
   is empty.

Source: Kafka's `CheckpointFile`, `OffsetCheckpointFile`, `LeaderEpochCheckpointFile`,
`PartitionMetadata`, `CleanShutdownFileHandler`; FILE_FORMATS 1, 2.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections.abc import Iterable, Mapping

from twisted_broker.interfaces import IFileSystem, TopicPartition
from twisted_broker.java_numbers import INT_MAX, INT_MIN, parse_whole
from twisted_broker.log.errors import CheckpointError
from twisted_broker.topic_names import METADATA_TOPIC
from twisted_broker.wire.primitives import uuid_from_text, uuid_text

RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET = "log-start-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
CLEANER_OFFSET = "cleaner-offset-checkpoint"
LEADER_EPOCH = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
_METADATA_AGAIN = TopicPartition(METADATA_TOPIC, 1)  # there is no such partition
_VERSION = "0"
# To search a checkpoint for so few names is faster than to take 20,000 rows apart, which is 5 ms.
_FEW_ROWS = 32


def write_aside(files: IFileSystem, path: str, content: bytes, sync: bool = True) -> None:
    """Replaces the file at `path` by `content`, in one step for every reader and every crash.

    Raises OSError.
    """
    aside = path + ".tmp"
    file = files.open(aside, create=True)
    try:
        if file.size():
            file.truncate(0)
        file.write_at(0, (content,))
        if sync:
            file.sync()
    finally:
        file.close()
    files.rename(aside, path)
    if sync:
        files.sync_directory(posixpath.dirname(path))


def sync_path(files: IFileSystem, path: str) -> None:
    """Syncs a file that may have been removed meanwhile. Raises OSError."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return
    try:
        file.sync()
    finally:
        file.close()


def read_whole(files: IFileSystem, path: str) -> bytes | None:
    """The content of a small file, None when it does not exist."""
    try:
        file = files.open(path, read_only=True)
    except FileNotFoundError:
        return None
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def _rows(path: str, content: bytes, columns: int) -> list[list[str]]:
    """The rows of a checkpoint: version 0, their number, then `columns` words each."""
    try:
        lines = [line.split() for line in content.decode("utf-8").split("\n")]
    except UnicodeDecodeError as error:
        raise CheckpointError(path, "is not text") from error
    while lines and not lines[-1]:
        lines.pop()
    if not lines or lines[0] != [_VERSION]:
        raise CheckpointError(path, "does not start with version 0")
    rows = lines[2:]
    if len(lines) < 2 or lines[1] != [str(len(rows))] or any(len(row) != columns for row in rows):
        raise CheckpointError(path, "does not hold the rows it announces")
    if not content.endswith(b"\n"):
        raise CheckpointError(path, "ends within a row")
    return rows


def _text(rows: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in (_VERSION, str(len(rows)), *rows)).encode()


def read_offsets(files: IFileSystem, directory: str, name: str) -> dict[TopicPartition, int]:
    """An offset checkpoint of a log directory; empty when absent or without content.

    Raises CheckpointError, OSError.
    """
    path = posixpath.join(directory, name)
    content = read_whole(files, path)
    if not content:  # Kafka makes the file before it first writes it
        return {}
    try:
        return {
            TopicPartition(topic, parse_whole(partition, INT_MIN, INT_MAX)): parse_whole(offset)
            for topic, partition, offset in _rows(path, content, 3)
        }
    except ValueError as error:
        raise CheckpointError(path, "holds a word that is not a number") from error


def write_offsets(
    files: IFileSystem, directory: str, name: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Writes an offset checkpoint durably. Raises OSError."""
    rows = [f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())]
    write_aside(files, posixpath.join(directory, name), _text(rows))


def drop_rows(files: IFileSystem, directory: str, partitions: Iterable[TopicPartition]) -> None:
    """Takes what the offset checkpoints of a log directory say of these partitions out of them,
    durably. A file that does not name them is only read. Raises OSError.
    """
    dropped = {f"{each.topic} {each.partition}".encode() for each in partitions}
    for name in (RECOVERY_POINT, LOG_START_OFFSET, HIGH_WATERMARK, CLEANER_OFFSET):
        path = posixpath.join(directory, name)
        content = read_whole(files, path) or b""
        if len(dropped) <= _FEW_ROWS and not any(b"\n%b " % each in content for each in dropped):
            continue
        lines = content.splitlines()
        # Words are as we write them; a damaged file counts as empty for whoever reads its rows.
        kept = [line for line in lines[2:] if line.rpartition(b" ")[0] not in dropped]
        if len(kept) < len(lines) - 2:
            write_aside(files, path, _text([line.decode("utf-8", "replace") for line in kept]))


def metadata_rows(offset: int) -> dict[TopicPartition, int]:
    """How far the metadata goes, as rows of a checkpoint: twice, for no checksum covers them."""
    return dict.fromkeys((METADATA_PARTITION, _METADATA_AGAIN), offset)


def metadata_offset(offsets: Mapping[TopicPartition, int]) -> int | None:
    """What `metadata_rows` wrote: the lower of the two is never too high, whichever a flipped bit
    changed. None: there are none.
    """
    rows = (METADATA_PARTITION, _METADATA_AGAIN)
    return min((offsets[row] for row in rows if row in offsets), default=None)


def epochs_text(epochs: list[int], start_offsets: list[int]) -> bytes:
    """The content of a leader-epoch checkpoint."""
    return _text([f"{epoch} {start}" for epoch, start in zip(epochs, start_offsets, strict=True)])


def read_epochs(files: IFileSystem, path: str) -> list[tuple[int, int]]:
    """(epoch, start offset) rows of a leader-epoch checkpoint; empty when absent or without
    content. Raises CheckpointError, OSError.
    """
    content = read_whole(files, path)
    if not content:  # Kafka makes the file before it first writes it
        return []
    try:
        return [
            (parse_whole(epoch, INT_MIN, INT_MAX), parse_whole(start))
            for epoch, start in _rows(path, content, 2)
        ]
    except ValueError as error:
        raise CheckpointError(path, "holds a word that is not a number") from error


def write_partition_metadata(
    files: IFileSystem, directory: str, topic_id: bytes, sync: bool = True
) -> None:
    """Writes the topic id of the partition in `directory`. Raises OSError."""
    write_aside(
        files,
        posixpath.join(directory, PARTITION_METADATA),
        f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode(),
        sync,
    )


def read_partition_metadata(files: IFileSystem, directory: str) -> bytes | None:
    """The topic id, None without the file, or where a loss of power took its content.
    Raises CheckpointError, OSError.
    """
    path = posixpath.join(directory, PARTITION_METADATA)
    content = read_whole(files, path)
    if content is None or not content.strip(b"\0"):
        return None
    fields = dict(
        line.split(": ", 1)
        for line in content.decode("utf-8", "replace").splitlines()
        if ": " in line
    )
    if fields.get("version") != _VERSION or "topic_id" not in fields:
        raise CheckpointError(path, "lacks version 0 and a topic id")
    try:
        return uuid_from_text(fields["topic_id"])
    except Exception as error:
        raise CheckpointError(path, "holds no topic id") from error


def write_clean_shutdown(files: IFileSystem, directory: str, broker_epoch: int) -> None:
    """Writes the clean shutdown file. Raises OSError."""
    content = json.dumps(
        {"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")
    ).encode()
    write_aside(files, posixpath.join(directory, CLEAN_SHUTDOWN), content)


def read_clean_shutdown(files: IFileSystem, directory: str) -> int | None:
    """The broker epoch in the clean shutdown file, -1 when it holds none, None without the file.

    Raises OSError.
    """
    content = read_whole(files, posixpath.join(directory, CLEAN_SHUTDOWN))
    if content is None:
        return None
    # A file that cannot be read counts as an unclean stop, which only costs checks.
    with contextlib.suppress(ValueError, KeyError, TypeError):
        found = json.loads(content)
        if found["version"] == 0 and isinstance(found["brokerEpoch"], int):
            return int(found["brokerEpoch"])
    return -1
