"""Where a large segment is split, so that several tasks read it: at batches that its offset index
names.

1. An index is a hint: an entry counts only when the header of a batch lies where it points, of
   offsets that belong there. Where none does, there is no cut, and one task reads on.
2. The pieces of a segment are ranges of offsets that follow on, so no row is lost or comes twice; a
   piece begins with the first byte of a batch.
3. The index of a segment that one task reads is not opened. A segment that cannot be read is not
   split: the task that reads it reports the error.

Source: FILE_FORMATS 2 "offset index"; Kafka's OffsetIndex. Not here: what of a segment is wanted
(`plan`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replog_pipeline.segments.filters import MAX_OFFSET
from replog_pipeline.segments.log_folder import Segment
from twisted_broker.wire.batch_fields import BASE_OFFSET, LAST_OFFSET_DELTA, LENGTH
from twisted_broker.wire.records import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    CorruptRecordError,
    read_batch_header,
)

LARGE_BYTES = 256 << 20
TASK_BYTES = 128 << 20
_ENTRY: Final = np.dtype([("offset", ">i4"), ("position", ">i4")])
"""An offset relative to the segment's, and the byte where a batch begins that ends with it (or
before, where several came in one append).
"""


class Piece(NamedTuple):
    """Offsets `start` to `end` (exclusive) of a segment; none of them is in a batch before the
    byte `position`.
    """

    start: int
    end: int
    position: int = 0


def pieces(segment: Segment, start: int, end: int) -> Iterator[Piece]:
    """The offsets `start` to `end` of the segment, in pieces of about `TASK_BYTES` when it has
    more than `LARGE_BYTES`.
    """
    begins = [
        (segment.base_offset, 0),
        *(splits(segment) if segment.size > LARGE_BYTES else ()),
        (MAX_OFFSET, segment.size),
    ]
    for (first, position), (after, _) in pairwise(begins):
        if max(start, first) < min(end, after):
            yield Piece(max(start, first), min(end, after), position)


def splits(segment: Segment) -> list[tuple[int, int]]:
    """(first offset, byte) of batches about `TASK_BYTES` apart, the last piece being no mere
    rest.
    """
    try:
        entries = indexed(Path(segment.path).with_suffix(".index"))
        wanted = np.arange(TASK_BYTES, segment.size - TASK_BYTES // 2, TASK_BYTES)
        chosen = np.unique(np.searchsorted(entries["position"], wanted))
        with open(segment.path, "rb", buffering=0) as file:
            return list(
                checked(file.fileno(), segment, entries[chosen[chosen < len(entries)]].tolist())
            )
    except OSError:
        return []


def checked(
    file: int, segment: Segment, entries: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """(first offset, byte) of the batches that these entries name, as far as they are true."""
    before = segment.base_offset
    for relative, position in entries:
        first = first_offset(file, segment, before, relative, position)
        if first is not None:
            yield first, position
            before = first


def first_offset(
    file: int, segment: Segment, before: int, relative: int, position: int
) -> int | None:
    """The first offset of the batch at `position`; None when what lies there is none that begins
    after `before` and ends by the entry's offset.
    """
    try:
        header = read_batch_header(os.pread(file, HEADER_BYTES, position))
    except CorruptRecordError:
        return None
    base, length, delta = header[BASE_OFFSET], header[LENGTH], header[LAST_OFFSET_DELTA]
    fits = (
        before < base <= base + delta <= segment.base_offset + relative
        and position + LOG_OVERHEAD + length <= segment.size
    )
    return base if fits else None


def indexed(path: Path) -> NDArray[np.void]:
    """The entries of an offset index up to the first that does not grow (space taken in advance
    is zeros). OSError.
    """
    data = path.read_bytes()
    entries = np.frombuffer(data, _ENTRY, len(data) // _ENTRY.itemsize)
    grows = (np.diff(entries["offset"], prepend=-1) > 0) & (
        np.diff(entries["position"], prepend=0) > 0
    )
    return entries if grows.all() else entries[: int(grows.argmin())]
