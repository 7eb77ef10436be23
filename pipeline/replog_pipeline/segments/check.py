"""Everything that can be checked in one segment alone: CRCs, and that each batch has the records
that its header counts.

1. Every byte is read once: CRC over the batch as it lies, then (inflated where compressed) the
   chain of its records.
2. A batch whose CRC is wrong is reported as such, and its records are not read.
3. `inflated` is the size of a batch's records before compression, in bytes; -1 where they
   cannot be read.

Source: Kafka's DefaultRecordBatch.ensureValid and iterator. Not here: what holds between batches
(`transforms`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replog_pipeline.decoder import HEADER, Stop, crc_ok
from replog_pipeline.decoder.lanes import walk
from replog_pipeline.decoder.sections import groups
from replog_pipeline.segments.chunks import Chunk, chunks
from replog_pipeline.transforms.faults import Fault
from twisted_broker.wire.records import CorruptRecordError

CHUNK_BYTES: Final = (
    16 << 20
)  # the walk over records is in lock-step over batches: many batches, few steps


class Checked(NamedTuple):
    """A segment: headers, sizes of its records, the faults found (rows of `headers`), the byte
    after the last whole batch, why there is no more.
    """

    headers: NDArray[np.void]
    inflated: NDArray[np.int64]
    faults: list[Fault]
    end: int
    stop: Stop


def check(path: str | Path) -> Checked:
    """Reads the segment at `path` whole. OSError when it cannot be read."""
    tables: list[NDArray[np.void]] = [np.empty(0, HEADER)]
    sizes: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    faults: list[Fault] = []
    rows, end, stop = 0, 0, Stop.END
    for chunk in chunks(path, CHUNK_BYTES):
        size, found = check_chunk(chunk)
        faults.extend(fault._replace(row=fault.row + rows) for fault in found)
        tables.append(chunk.headers)
        sizes.append(size)
        rows, end, stop = rows + len(chunk.headers), chunk.end, chunk.stop or stop
    return Checked(np.concatenate(tables), np.concatenate(sizes), faults, end, stop)


def check_chunk(chunk: Chunk) -> tuple[NDArray[np.int64], list[Fault]]:
    """Sizes of the records of each batch, and what is wrong with batches (rows of the chunk's
    headers).
    """
    table = chunk.headers.copy()
    table["position"] -= chunk.position
    good = crc_ok(chunk.data, table)
    faults = [
        Fault("crc", int(row), "the CRC is not that of the batch") for row in np.flatnonzero(~good)
    ]
    sizes = np.full(len(table), -1, np.int64)
    faults.extend(_measure(chunk.data, table, np.flatnonzero(good), sizes))
    return sizes, faults


def _measure(
    data: memoryview, table: NDArray[np.void], rows: NDArray[np.int64], sizes: NDArray[np.int64]
) -> Iterator[Fault]:
    """Fills in the sizes of these batches' records; the faults of those that cannot be read,
    found by halves when one spoils the rest.
    """
    done = 0
    try:
        for group in groups(data, table[rows]):
            here = rows[done : done + len(group.counts)]
            sizes[here] = group.ends - group.starts
            for lane in walk(group.data, group.starts, group.ends, group.counts)[1]:
                yield Fault(
                    "records",
                    int(here[lane]),
                    f"its bytes are not those of {group.counts[lane]} records",
                )
            done += len(here)
    except CorruptRecordError as error:
        rest = rows[done:]
        if len(rest) == 1:
            yield Fault("records", int(rest[0]), error.message.partition(" (at byte")[0])
            return
        for half in np.array_split(rest, 2):
            yield from _measure(data, table, half, sizes)
