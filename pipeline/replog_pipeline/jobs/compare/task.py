"""One task of `compare`: a range of offsets of one partition, read from every replica's files and
compared.

1. Only headers are read; a task returns one row with the bytes it read and, if the replicas
   diverge, one row per replica.
2. When retention deleted a segment meanwhile, the piece is one row that says so, and is not
   compared.
3. A batch in a segment that its offsets do not belong to is a row of its own and not
   compared: it may lie in a piece of other offsets.
4. Rows are plain values: file, byte, offsets, CRC, size, leader epoch.

Not here: which files and offsets belong together (`ranges`), what rows of many tasks mean together
(`compare`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replog_pipeline.decoder import HEADER, Stop
from replog_pipeline.segments.chunks import headers
from replog_pipeline.transforms.replicas import NONE, Parting, parting, within
from twisted_broker.wire.records import LOG_OVERHEAD

FILE = "struct<path:string,base:bigint,after:bigint>"
PIECE = (
    "topic string, partition int, start bigint, end bigint, upto bigint, copies "
    f"array<struct<directory:string,files:array<{FILE}>>>"
)
"""Offsets from `start` to `end`, of a partition that is compared up to `upto`; a file's are from
`base` to before `after`, the next one's base.
"""
ROW = (
    "kind string, topic string, partition int, start bigint, directory string, offset bigint, "
    "file string, position bigint, base bigint, "
    "last bigint, epoch int, crc bigint, size int, again string, differing bigint, stop "
    "string, batches bigint, bytes bigint, replicas int"
)
READ, PARTED, COMMON, GONE, MISPLACED = "read", "parted", "common", "gone", "misplaced"


class Copy(NamedTuple):
    """What one replica holds of a range: headers, the number of the file of each, and where reading
    a file ended before its end.

    `misplaced`: batches of these files that belong into other ones, whatever their range.
    """

    directory: str
    files: Sequence[str]
    table: NDArray[np.void]
    file: NDArray[np.int32]
    misplaced: Sequence[dict[str, Any]]
    stop: str
    bytes: int


def compare_piece(piece: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of one piece."""
    names = {name: piece[name] for name in ("topic", "partition", "start")}
    try:
        copies = [
            read_copy(copy["directory"], copy["files"], piece["start"], piece["end"], piece["upto"])
            for copy in piece["copies"]
        ]
    except FileNotFoundError as error:
        yield names | {"kind": GONE, "file": error.filename}
        return
    batches, size = sum(len(copy.table) for copy in copies), sum(copy.bytes for copy in copies)
    last = _described(copies[0], len(copies[0].table) - 1)  # -1 is NONE: nothing there
    yield names | last | {"kind": READ, "batches": batches, "bytes": size, "replicas": len(copies)}
    yield from (
        names | row | {"kind": MISPLACED, "directory": copy.directory}
        for copy in copies
        for row in copy.misplaced
    )
    found = parting([copy.table for copy in copies])
    if found is not None:
        yield from (names | row for row in _rows(copies, found))


def _rows(copies: Sequence[Copy], found: Parting) -> Iterator[dict[str, Any]]:
    """Per replica what it has where they part; before that the last batch that all have."""
    if found.common != NONE:
        yield _described(copies[0], found.common) | {"kind": COMMON}
    for copy, row, again, differing in zip(
        copies, found.rows, found.again, found.differing, strict=True
    ):
        twice = _described(copy, again)
        yield _described(copy, row) | {
            "kind": PARTED,
            "directory": copy.directory,
            "offset": found.offset,
            "differing": differing,
            "stop": copy.stop,
            "again": f"{twice['file']} at byte {twice['position']}" if twice else None,
        }


def _described(copy: Copy, row: int) -> dict[str, Any]:
    """File, byte, offsets, epoch, CRC and size of a batch; nothing for no batch."""
    if row == NONE:
        return {}
    return _batch(copy.files[copy.file[row]], copy.table[row])


def _batch(file: str, batch: np.void) -> dict[str, Any]:
    base = int(batch["baseOffset"])
    return {
        "file": file,
        "position": int(batch["position"]),
        "base": base,
        "last": base + int(batch["lastOffsetDelta"]),
        "epoch": int(batch["leaderEpoch"]),
        "crc": int(batch["crc"]),
        "size": int(batch["length"]) + LOG_OVERHEAD,
    }


def read_copy(
    directory: str, files: Sequence[Mapping[str, Any]], start: int, end: int, upto: int
) -> Copy:
    """The headers of a replica's batches within [start, end), from these files of its."""
    tables, numbers, misplaced, stop, read = (
        [np.empty(0, HEADER)],
        [np.empty(0, np.int32)],
        list[dict[str, Any]](),
        "",
        0,
    )
    for number, file in enumerate(files):
        whole, after, why = headers(file["path"])
        astray = _astray(whole["baseOffset"], file)
        misplaced += [
            _batch(file["path"], batch)
            for batch in whole[astray & _before_end(whole["baseOffset"], upto)]
        ]
        table = within(whole[~astray], start, end)
        tables.append(table)
        numbers.append(np.full(len(table), number, np.int32))
        read += int(table["length"].sum(dtype=np.int64)) + LOG_OVERHEAD * len(table)
        if why is not Stop.END and not stop:
            stop = f"{Path(file['path']).name} at byte {after}: {why.value}"
    paths = [file["path"] for file in files]
    return Copy(
        directory, paths, np.concatenate(tables), np.concatenate(numbers), misplaced, stop, read
    )


def _astray(base: NDArray[np.int64], file: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Which batches of a file do not belong into it."""
    after = np.iinfo(np.int64).max if file["after"] is None else file["after"]
    return np.asarray((base < file["base"]) | (base >= after))


def _before_end(base: NDArray[np.int64], upto: int) -> NDArray[np.bool_]:
    """Which batches lie before the first one of the file that is past the compared end: the
    others are not looked at.
    """
    return np.logical_and.accumulate(base < upto)
