"""One task of `compare`: a range of offsets of one partition, read from every replica's files and
laid side by side.

1. Only headers are read; a task returns one row that says how much it read and, if the replicas
   part, one row per replica.
2. A segment that retention took meanwhile makes the piece one row that says so: what is left cannot
   be held against the others.
3. Rows are plain values: what a driver needs to say where (file, byte), what (offsets, CRC, size)
   and under which leader epoch.

Left out: which files and offsets belong together (`ranges`), what rows of many tasks mean together
(`compare`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twisted_broker.pipeline.decoder import HEADER, Stop
from twisted_broker.pipeline.segments.chunks import headers
from twisted_broker.pipeline.transforms.replicas import NONE, Parting, parting, within
from twisted_broker.wire.records import LOG_OVERHEAD

PIECE = (
    "topic string, partition int, start bigint, end bigint, copies "
    "array<struct<directory:string,files:array<string>>>"
)
ROW = (
    "kind string, topic string, partition int, start bigint, directory string, offset bigint, "
    "file string, position bigint, base bigint, "
    "last bigint, epoch int, crc bigint, size int, differing bigint, stop string, batches "
    "bigint, bytes bigint"
)
READ, PARTED, COMMON, GONE = "read", "parted", "common", "gone"


class Copy(NamedTuple):
    """What one replica holds of a range: headers, the number of the file of each, and where
    reading a file ended before its end.
    """

    directory: str
    files: Sequence[str]
    table: NDArray[np.void]
    file: NDArray[np.int32]
    stop: str
    bytes: int


def compare_piece(piece: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of one piece."""
    names = {name: piece[name] for name in ("topic", "partition", "start")}
    try:
        copies = [
            read_copy(copy["directory"], copy["files"], piece["start"], piece["end"])
            for copy in piece["copies"]
        ]
    except FileNotFoundError as error:
        yield names | {"kind": GONE, "file": error.filename}
        return
    batches, size = sum(len(copy.table) for copy in copies), sum(copy.bytes for copy in copies)
    last = _described(copies[0], len(copies[0].table) - 1)  # -1 is NONE: nothing there
    yield names | last | {"kind": READ, "batches": batches, "bytes": size}
    found = parting([copy.table for copy in copies])
    if found is not None:
        yield from (names | row for row in _rows(copies, found))


def _rows(copies: Sequence[Copy], found: Parting) -> Iterator[dict[str, Any]]:
    """Per replica what it has where they part; before that the last batch that all have."""
    if found.common != NONE:
        yield _described(copies[0], found.common) | {"kind": COMMON}
    for copy, row, differing in zip(copies, found.rows, found.differing, strict=True):
        yield _described(copy, row) | {
            "kind": PARTED,
            "directory": copy.directory,
            "offset": found.offset,
            "differing": differing,
            "stop": copy.stop,
        }


def _described(copy: Copy, row: int) -> dict[str, Any]:
    """File, byte, offsets, epoch, CRC and size of a batch; nothing for no batch."""
    if row == NONE:
        return {}
    batch = copy.table[row]
    base = int(batch["baseOffset"])
    return {
        "file": copy.files[copy.file[row]],
        "position": int(batch["position"]),
        "base": base,
        "last": base + int(batch["lastOffsetDelta"]),
        "epoch": int(batch["leaderEpoch"]),
        "crc": int(batch["crc"]),
        "size": int(batch["length"]) + LOG_OVERHEAD,
    }


def read_copy(directory: str, files: Sequence[str], start: int, end: int) -> Copy:
    """The headers of a replica's batches within [start, end), from these files of its."""
    tables, numbers, stop, read = [np.empty(0, HEADER)], [np.empty(0, np.int32)], "", 0
    for number, file in enumerate(files):
        whole, after, why = headers(file)
        table = within(whole, start, end)
        tables.append(table)
        numbers.append(np.full(len(table), number, np.int32))
        read += int(table["length"].sum(dtype=np.int64)) + LOG_OVERHEAD * len(table)
        if why is not Stop.END and not stop:
            stop = f"{Path(file).name} at byte {after}: {why.value}"
    return Copy(directory, files, np.concatenate(tables), np.concatenate(numbers), stop, read)
