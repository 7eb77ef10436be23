"""Reads a segment from its first batch to its last, some megabytes at a time: each chunk holds
whole batches, and their headers.

1. Read with `pread`, not mapped: a broker may truncate the file meanwhile, and a mapping would then
   kill the process.
2. Memory is one chunk, or the largest batch; a length that leads beyond the file allocates nothing.
3. Positions in a chunk's headers count from the beginning of the file; `Chunk.data` begins at
   `Chunk.position`.
4. The last chunk says why there is no more (`Stop`); what follows its last whole batch is not
   read.

Source: our own. Not here: what the batches mean.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replog_pipeline.decoder import HEADER, Stop, scan
from twisted_broker.wire.records import HEADER_BYTES, LOG_OVERHEAD

CHUNK_BYTES: Final = 4 << 20


class Chunk(NamedTuple):
    """Whole batches of a segment.

    `data` is overwritten when the next chunk is taken; `stop` is None until the last chunk.
    """

    headers: NDArray[np.void]
    data: memoryview
    position: int
    stop: Stop | None

    @property
    def end(self) -> int:
        """The byte of the file after the last whole batch."""
        return self.position + len(self.data)


def chunks(path: str | Path, size: int = CHUNK_BYTES, position: int = 0) -> Iterator[Chunk]:
    """The segment from the batch at `position` on in chunks of about `size` bytes, at least one.

    OSError when the file cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        size = min(size, os.fstat(file.fileno()).st_size + HEADER_BYTES)
        buffer = memoryview(bytearray(size))
        while True:
            filled = _fill(file.fileno(), buffer, position)
            found = scan(buffer[:filled])
            missing = _missing(file.fileno(), buffer, filled, found.end, position)
            if missing and not found.end:
                buffer = memoryview(bytearray(missing))
                continue
            found.headers["position"] += position
            yield Chunk(
                found.headers, buffer[: found.end], position, None if missing else found.stop
            )
            if not missing:
                return
            position += found.end


def headers(path: str | Path) -> tuple[NDArray[np.void], int, Stop]:
    """All headers of a segment, the byte after the last whole batch, and why there is no more."""
    tables, end, stop = [], 0, Stop.END
    for chunk in chunks(path):
        tables.append(chunk.headers)
        end, stop = chunk.end, chunk.stop or stop
    return np.concatenate(tables) if tables else np.empty(0, HEADER), end, stop


def _fill(file: int, buffer: memoryview, position: int) -> int:
    """Reads until the buffer is full or the file ends: the number of bytes read."""
    filled = 0
    while filled < len(buffer):
        read = os.preadv(file, [buffer[filled:]], position + filled)
        if not read:
            break
        filled += read
    return filled


def _missing(file: int, buffer: memoryview, filled: int, end: int, position: int) -> int:
    """How many bytes from `end` on a reading must take in to show the next batch; 0 when there
    is none to be shown.
    """
    if filled < len(buffer):
        return 0
    rest = buffer[end:filled]
    if len(rest) < HEADER_BYTES:
        return max(HEADER_BYTES, len(buffer))
    length = LOG_OVERHEAD + int.from_bytes(rest[8:12], "big", signed=True)
    shown = len(rest) < length and rest[16] == 2
    return length if shown and position + end + length <= os.fstat(file).st_size else 0
