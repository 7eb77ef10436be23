"""The small files of a log directory, read only: indexes, snapshots of producer state, checkpoints,
properties.

1. Every reader is a generator of rows and `Damage`; a truncated file gives its whole entries.
2. The zero tail of a preallocated index is room, not entries: it begins at the first all-zero entry
   and holds nothing else.
3. Nothing here opens a file for writing, so it may run beside the broker that owns the directory.

Source: Kafka's OffsetIndex, TimeIndex, AbortedTxn, ProducerStateManager, CheckpointFile,
PartitionMetadata, MetaProperties, FileQuorumStateStore; `cluster/last_batch.py`. Not here: whether
the entries agree with the log (`verify`).
"""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crc32c

from twisted_broker.cli.rows import Damage, Row, time_text
from twisted_broker.java_numbers import is_digits
from twisted_broker.wire.primitives import NULL_UUID, uuid_from_text

INDEX_ENTRY = struct.Struct(">ii")
TIME_INDEX_ENTRY = struct.Struct(">qi")
ABORTED_TRANSACTION = struct.Struct(">hqqqq")
SNAPSHOT_HEADER = struct.Struct(">hIi")
SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
SNAPSHOT_CRC_START = 6
LAST_BATCH = ("base_offset", "last_offset", "epoch", "size", "crc", "previous_epoch")
ENTRIES_AT_ONCE = 1024
TAIL_CHUNK = 1 << 16

Items = Iterator[Row | Damage]


def base_offset_of(path: Path) -> int:
    """The offset in a file's name, `00000000000000000042.index` -> 42; 0 when it has none."""
    digits = path.name.split(".", 1)[0].split("-", 1)[0]
    return int(digits) if is_digits(digits) else 0


def entries(
    path: Path, layout: struct.Struct, zero_tail: bool = False
) -> Iterator[tuple[int, tuple[int, ...]] | Damage]:
    """(position, values) of each fixed-size entry."""
    position = 0
    with path.open("rb") as file:
        while chunk := file.read(layout.size * ENTRIES_AT_ONCE):
            for at in range(0, len(chunk) - layout.size + 1, layout.size):
                if zero_tail and not any(chunk[at : at + layout.size]):
                    yield from tail_damage(path, file.fileno(), position)
                    return
                yield position, layout.unpack_from(chunk, at)
                position += layout.size
    size = path.stat().st_size
    if size % layout.size:
        yield Damage(
            str(path),
            size - size % layout.size,
            f"{size % layout.size} bytes where an entry has {layout.size}",
        )


def tail_damage(path: Path, descriptor: int, start: int) -> Iterator[Damage]:
    """Whatever is not zero from the byte `start` on; holes in the file are not read."""
    for begin, end in data_stretches(descriptor, start):
        for position in range(begin, end, TAIL_CHUNK):
            chunk = os.pread(descriptor, min(TAIL_CHUNK, end - position), position)
            if any(chunk):
                at = position + len(chunk) - len(chunk.lstrip(b"\0"))
                yield Damage(
                    str(path),
                    at,
                    f"bytes that are not zero, after the entries ended at byte {start}",
                )
                return


def data_stretches(descriptor: int, start: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of what is stored of a sparse file from `start` on."""
    while True:
        try:
            begin = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError as error:
            # No data behind this point: the rest is a hole.
            if error.errno == errno.ENXIO:
                return
            raise
        start = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, start


def index_rows(path: Path) -> Items:
    """`.index`: where in the segment the batch that ends with an offset begins."""
    base = base_offset_of(path)
    for item in entries(path, INDEX_ENTRY, zero_tail=True):
        if isinstance(item, Damage):
            yield item
        else:
            yield {"kind": "index", "offset": base + item[1][0], "position": item[1][1]}


def time_index_rows(path: Path) -> Items:
    """`.timeindex`: the largest timestamp up to an offset."""
    base = base_offset_of(path)
    for item in entries(path, TIME_INDEX_ENTRY, zero_tail=True):
        if isinstance(item, Damage):
            yield item
        else:
            timestamp, relative = item[1]
            yield {
                "kind": "timeindex",
                "timestamp": timestamp,
                "time": time_text(timestamp),
                "offset": base + relative,
            }


def transaction_index_rows(path: Path) -> Items:
    """`.txnindex`: the aborted transactions whose marker is in the segment."""
    for item in entries(path, ABORTED_TRANSACTION):
        if isinstance(item, Damage):
            yield item
            continue
        position, (version, producer_id, first, last, stable) = item
        if version != 0:
            yield Damage(
                str(path), position, f"version {version} of an aborted transaction is unknown"
            )
            return
        yield {
            "kind": "aborted",
            "producer_id": producer_id,
            "first_offset": first,
            "last_offset": last,
            "last_stable_offset": stable,
        }


def snapshot_rows(path: Path) -> Items:
    """`.snapshot`: the producers as they stood before the offset in the name."""
    data = path.read_bytes()
    if len(data) < SNAPSHOT_HEADER.size:
        yield Damage(str(path), len(data), f"{len(data)} bytes are too few for a producer snapshot")
        return
    version, crc, count = SNAPSHOT_HEADER.unpack_from(data)
    yield {"kind": "snapshot", "version": version, "producers": count}
    if version != 1:
        yield Damage(str(path), 0, f"version {version} of a producer snapshot is unknown")
        return
    actual = crc32c.crc32c(data[SNAPSHOT_CRC_START:])
    if crc != actual:
        yield Damage(str(path), 2, f"CRC is {crc:#010x}, the bytes give {actual:#010x}")
    body = data[SNAPSHOT_HEADER.size :]
    if len(body) != count * SNAPSHOT_ENTRY.size:
        yield Damage(
            str(path),
            SNAPSHOT_HEADER.size,
            f"{len(body)} bytes of entries, {count} producers need {count * SNAPSHOT_ENTRY.size}",
        )
    for position in range(0, len(body) - SNAPSHOT_ENTRY.size + 1, SNAPSHOT_ENTRY.size):
        yield snapshot_row(SNAPSHOT_ENTRY.unpack_from(body, position))


def snapshot_row(values: tuple[int, ...]) -> Row:
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, transaction = values
    return {
        "kind": "producer",
        "producer_id": producer_id,
        "epoch": epoch,
        "last_sequence": sequence,
        "last_offset": offset,
        "offset_delta": delta,
        "timestamp": timestamp,
        "time": time_text(timestamp),
        "coordinator_epoch": coordinator_epoch,
        "transaction_first_offset": transaction,
    }


def checkpoint_entries(path: Path, columns: int) -> Iterator[tuple[int, list[str]] | Damage]:
    """(position, words) of each line of a checkpoint: a version `0`, a count, then the entries.

    Kafka makes it empty before it first writes it.
    """
    data = path.read_bytes()
    if not data:
        return
    position, lines = 0, []
    for line in data.split(b"\n"):
        if line.strip():
            lines.append((position, line.decode("utf-8", "replace").split()))
        position += len(line) + 1
    head = [words for _, words in lines[:2]]
    if head[:1] != [["0"]]:
        yield Damage(str(path), 0, "a checkpoint begins with the version 0")
        return
    if len(head) < 2 or len(head[1]) != 1 or not is_digits(head[1][0]):
        yield Damage(str(path), min(2, len(data)), "the number of entries is missing")
        return
    good = 0
    for position, words in lines[2:]:
        if len(words) != columns or not all(
            is_digits(word.removeprefix("-")) for word in words[columns - 2 :]
        ):
            yield Damage(str(path), position, f"{' '.join(words)[:100]!r} is not an entry")
            continue
        good += 1
        yield position, words
    if good != int(head[1][0]):
        yield Damage(str(path), 2, f"{head[1][0]} entries are announced, {good} are there")


def offset_checkpoint_rows(path: Path) -> Items:
    """`recovery-point-offset-checkpoint` and its sisters: an offset for each partition."""
    for item in checkpoint_entries(path, 3):
        if isinstance(item, Damage):
            yield item
        else:
            topic, partition, offset = item[1]
            yield {
                "kind": "checkpoint",
                "topic": topic,
                "partition": int(partition),
                "offset": int(offset),
            }


def leader_epoch_rows(path: Path) -> Items:
    """`leader-epoch-checkpoint`: the first offset of each leader epoch."""
    for item in checkpoint_entries(path, 2):
        if isinstance(item, Damage):
            yield item
        else:
            yield {"kind": "epoch", "epoch": int(item[1][0]), "start_offset": int(item[1][1])}


def is_uuid(text: str) -> bool:
    try:
        return len(text) == 22 and uuid_from_text(text) != NULL_UUID
    except ValueError:
        return False


def partition_metadata_rows(path: Path) -> Items:
    """`partition.metadata`: the topic's id."""
    fields = dict(
        line.split(": ", 1)
        for line in path.read_text(errors="replace").splitlines()
        if ": " in line
    )
    yield {"kind": "partition", **fields}
    if fields.get("version") != "0":
        yield Damage(str(path), 0, f"version {fields.get('version')} is unknown")
    if not is_uuid(fields.get("topic_id", "")):
        yield Damage(str(path), -1, f"topic_id {fields.get('topic_id')!r} is not an id")


def properties(path: Path) -> dict[str, str]:
    """A Java properties file of plain `name=value` lines."""
    out = {}
    for line in path.read_text(errors="replace").splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and name[:1] not in ("#", "!"):
            out[name.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    return out


def meta_properties_rows(path: Path) -> Items:
    """`meta.properties`: whose directory this is."""
    fields = properties(path)
    yield {"kind": "meta", **fields}
    version = fields.get("version")
    if version not in ("0", "1"):
        yield Damage(str(path), -1, f"version {version!r} is unknown")
    for name in ("cluster.id", "node.id") if version == "1" else ():
        if not fields.get(name):
            yield Damage(str(path), -1, f"{name} is missing")
    node = fields.get("node.id", fields.get("broker.id", "0"))
    if not is_digits(node):
        yield Damage(str(path), -1, f"the node id {node!r} is not a number")
    if "directory.id" in fields and not is_uuid(fields["directory.id"]):
        yield Damage(str(path), -1, f"directory.id {fields['directory.id']!r} is not an id")


def json_rows(path: Path, kind: str) -> Items:
    data: Any
    try:
        data = json.loads(path.read_bytes() or b"{}")
    except ValueError as error:
        yield Damage(str(path), getattr(error, "pos", 0), f"no JSON: {error}")
        return
    if isinstance(data, dict):
        yield {"kind": kind, **data}
    else:
        yield Damage(str(path), 0, "no JSON object")


def quorum_state_rows(path: Path) -> Items:
    """`quorum-state`: the controller epoch and the vote."""
    for item in json_rows(path, "quorum"):
        yield item
        if isinstance(item, dict):
            missing = [
                name
                for name in ("data_version", "leaderId", "leaderEpoch", "votedId")
                if name not in item
            ]
            yield from (Damage(str(path), -1, f"{name} is missing") for name in missing)


def last_batch_rows(path: Path) -> Items:
    """`.last-batch`: the batch that a broker's own snapshot of the metadata ends with."""
    words, _, crc = path.read_bytes().removesuffix(b"\n").rpartition(b" ")
    version, *numbers = words.split(b" ")
    if crc != b"%d" % crc32c.crc32c(words):
        yield Damage(str(path), 0, "does not match its CRC")
    elif version != b"0" or len(numbers) != len(LAST_BATCH):
        yield Damage(str(path), 0, f"version {version.decode()} is unknown")
    else:
        yield {"kind": "last_batch", **dict(zip(LAST_BATCH, map(int, numbers), strict=True))}


def clean_shutdown_rows(path: Path) -> Items:
    """`.kafka_cleanshutdown`: the stop was clean, and the broker epoch that ended.

    Older brokers leave it empty.
    """
    yield from json_rows(path, "clean_shutdown")
