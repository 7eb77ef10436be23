"""One segment as Arrow record batches: which batches of it, in which state, and the rows of each.

1. Offsets are `start` to `end` (exclusive); control records come only when requested, aborted ones
   not when `committed_only`.
2. Every byte below `sure_to` must be right (None: every byte of the data). The first damage at or
   above it ends the data without an error: the torn tail of a segment that was being written.
3. `crc="fail"`: one `CorruptRecordError` at the first damage. `crc="flag"`: rows with crcOk = false
   for what can be read, one row without key, value and timestamp for a batch that cannot, and one
   such row for bytes that are no batch. Message formats 0 and 1 are refused in either case.

Source: our own. Not here: the rows of the batches (`rows`), files and directories
(`log_folder`), transactions (`transactions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twisted_broker.wire.records import Buffer, CorruptRecordError

from .arrow_types import schema
from .headers import HEADER, Scan, Stop, crc_ok, last_offsets, scan
from .rows import FAIL, Request, damaged_row, rows
from .sections import at_byte, parts


def decode_segment(data: Buffer, request: Request) -> Iterator[pa.RecordBatch]:
    """The rows of the segment in `data`, in order, in record batches of at most `ROWS` rows.

    `CorruptRecordError` for what is damaged or of an old format: its `position` is the byte, its
    message names the offset. `ValueError` for a column that there is none of.
    """
    yield from decode_pieces(((data, scan(data)),), request)


def decode_pieces(
    pieces: Iterable[tuple[Buffer, Scan]], request: Request
) -> Iterator[pa.RecordBatch]:
    """As `decode_segment` for a segment in pieces that were scanned already; only the last may end
    otherwise than with `Stop.END`.

    Nothing is kept of a piece once the next one is read; an error's `position` is the byte in
    its piece.
    """
    wanted, after = schema(request.columns), request.start
    for data, found in pieces:
        for part in parts(_in_range(found.headers, request)):
            right = crc_ok(data, part)
            if request.crc == FAIL and not right.all():
                first = int(right.argmin())
                yield from rows(data, part[:first], right[:first], request, wanted)
                return end_at(
                    int(part["baseOffset"][first]),
                    int(part["position"][first]),
                    "a batch has a wrong CRC",
                    request,
                )
            yield from rows(data, part, right, request, wanted)
        if len(found.headers):
            after = int(last_offsets(found.headers[-1:])[0]) + 1
        if request.end is not None and after >= request.end:
            return
        yield from _tail(found, request, wanted, after)


def _in_range(table: NDArray[np.void], request: Request) -> NDArray[np.void]:
    """The batches that may hold wanted offsets.

    Last offsets are not believed, no CRC has been checked; nor is their order.
    """
    base = table["baseOffset"]
    following = np.append(base[1:], request.start + 1)
    before = (base < following) & (following <= request.start)
    return table[~before if request.end is None else ~before & (base < request.end)]


def _tail(found: Scan, request: Request, wanted: pa.Schema, after: int) -> Iterator[pa.RecordBatch]:
    """What is to be said about the bytes after the last whole batch."""
    if found.stop is Stop.END:
        return
    if found.stop is Stop.LEGACY:
        raise at_byte(
            CorruptRecordError(
                f"{Stop.LEGACY.value} at offset {after}: only format 2 (Kafka 0.11 and later) "
                "can be read"
            ),
            found.end,
        )
    if request.crc != FAIL and (request.sure_to is None or after < request.sure_to):
        nowhere = np.zeros(1, HEADER)
        nowhere["baseOffset"], nowhere["position"], nowhere["producerId"] = after, found.end, -1
        yield damaged_row(nowhere, request, wanted)
        return
    end_at(after, found.end, found.stop.value, request)


def end_at(offset: int, position: int, problem: str, request: Request) -> None:
    """End the data without an error at this offset if what follows may be torn, else raise."""
    if request.sure_to is None or offset < request.sure_to:
        raise at_byte(CorruptRecordError(f"{problem} at offset {offset}"), position)
