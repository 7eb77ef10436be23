"""Batches of a segment or snapshot file, one after another, from a file that is only read.

1. Memory is one batch (and a read-ahead of 1 MiB), whatever the file's size.
2. A batch with a wrong checksum is damage and the walk goes on behind it; a length that cannot be
   ends the walk.
3. Zeros up to the end of the file are preallocated room; between batches they are damage.

Source: Kafka's DumpLogSegments and FileRecords. Not here: what a record's bytes mean
(`payloads`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from twisted_broker.cli.rows import Damage, Row, time_text
from twisted_broker.wire.compression import CODEC_NAMES
from twisted_broker.wire.message_set import MessageView
from twisted_broker.wire.records import LOG_APPEND_TIME, BatchView, CorruptRecordError, Record

PREFIX = struct.Struct(">qiib")
"""Base offset, length of what follows these two, leader epoch (magic 2) or CRC (magic 0, 1),
magic.
"""
LENGTH_END = 12
SMALLEST = {0: 26, 1: 34, 2: 61}
READ_AHEAD = 1 << 20
CHUNK = 1 << 16
# A damaged or hostile batch may claim to decompress to anything.
MAX_OUTPUT_BYTES = 1 << 30


class FileBatch:
    """One whole batch, or message of an older format: its place in the file and its bytes."""

    __slots__ = ("position", "size", "view")

    def __init__(self, position: int, data: bytes, magic: int) -> None:
        self.position = position
        self.size = len(data)
        self.view: BatchView | MessageView = (
            BatchView(data, 0) if magic == 2 else MessageView(data, 0)
        )

    def records(self) -> Iterator[Record]:
        return self.view.records(MAX_OUTPUT_BYTES)


def read_batches(path: Path, start: int = 0) -> Iterator[FileBatch | Damage]:
    """Everything from the byte `start` to the end of the file as it was when the walk began."""
    with path.open("rb", buffering=READ_AHEAD) as file:
        end = os.fstat(file.fileno()).st_size
        file.seek(start)
        position = start
        while position < end:
            found = read_one(file, path, position, end)
            if found is None:
                return
            yield found
            # Where the next batch begins is not known behind damage.
            if isinstance(found, Damage):
                return
            position += found.size


def read_one(file: BinaryIO, path: Path, position: int, end: int) -> FileBatch | Damage | None:
    """The batch at `position`; None when only zeros follow."""
    prefix = file.read(PREFIX.size)
    if not any(prefix) and only_zeros(file):
        return None
    if len(prefix) < PREFIX.size:
        return Damage(str(path), position, f"{end - position} bytes are too few for a batch")
    _, length, _, magic = PREFIX.unpack(prefix)
    size = LENGTH_END + length
    if magic not in SMALLEST:
        return Damage(str(path), position, f"magic {magic} is unknown")
    if size < SMALLEST[magic]:
        return Damage(
            str(path), position, f"a length of {length} is too short for a batch of magic {magic}"
        )
    if position + size > end:
        return Damage(
            str(path), position, f"the batch needs {size} bytes, the file has {end - position}"
        )
    try:
        return FileBatch(position, prefix + file.read(size - PREFIX.size), magic)
    except CorruptRecordError as error:
        # A finding, not the end of the program: the next file is shown all the same.
        return Damage(str(path), position, error.args[-1])


def only_zeros(file: BinaryIO) -> bool:
    while chunk := file.read(CHUNK):
        if any(chunk):
            return False
    return True


def checksum_damage(path: Path, found: FileBatch) -> Damage | None:
    """What is wrong with the checksum, or None."""
    view = found.view
    if view.is_valid_crc():
        return None
    offset = view.base_offset if isinstance(view, BatchView) else view.offset
    return Damage(
        str(path),
        found.position,
        f"the CRC {view.crc:#010x} of the batch at offset {offset} is not that of its bytes",
    )


def codec_name(codec: int) -> str:
    return CODEC_NAMES[codec] if codec < len(CODEC_NAMES) else f"unknown({codec})"


def timestamp_type_name(view: BatchView | MessageView) -> str:
    return "LogAppendTime" if view.timestamp_type == LOG_APPEND_TIME else "CreateTime"


def batch_row(found: FileBatch) -> Row:
    """One line about a batch or message."""
    view = found.view
    if isinstance(view, MessageView):
        return {
            "kind": "message",
            "position": found.position,
            "offset": view.offset,
            "bytes": found.size,
            "magic": view.magic,
            "codec": codec_name(view.codec),
            "timestamp_type": timestamp_type_name(view),
            "timestamp": view.timestamp,
            "crc": f"{view.crc:#010x}",
        }
    return {
        "kind": "batch",
        "position": found.position,
        "base_offset": view.base_offset,
        "last_offset": view.last_offset,
        "records": view.records_count,
        "bytes": found.size,
        "magic": view.magic,
        "codec": codec_name(view.codec),
        "leader_epoch": view.partition_leader_epoch,
        "timestamp_type": timestamp_type_name(view),
        "base_timestamp": view.base_timestamp,
        "max_timestamp": view.max_timestamp,
        "time": time_text(view.max_timestamp),
        "producer_id": view.producer_id,
        "producer_epoch": view.producer_epoch,
        "base_sequence": view.base_sequence,
        "transactional": view.is_transactional,
        "control": view.is_control,
        "crc": f"{view.crc:#010x}",
    }
