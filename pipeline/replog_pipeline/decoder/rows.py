"""The rows of whole batches whose CRCs are known, as Arrow record batches.

1. Batches are decoded in groups; a record batch has `ROWS` rows at most and is never empty.
2. Columns that the batch header answers are made without a look at the records: offsets too, where
   a batch has as many records as offsets.
3. Under `crc="flag"` a group that cannot be read is read again batch by batch, and those at fault
   become one row each.

Source: our own. Not here: where a segment ends (`segment`), columns (`arrow_columns`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twisted_broker.wire.compression import CODEC_NAMES, NONE
from twisted_broker.wire.records import (
    CONTROL_FLAG,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    Buffer,
    CorruptRecordError,
)

from .arrow_columns import FROM_RECORD, Run, column
from .arrow_types import TYPES
from .fields import ROWS, locate
from .headers import codecs, last_offsets
from .sections import SMALLEST_RECORD, groups
from .transactions import AbortedTransaction, aborted_batches

FAIL: Final = "fail"
FLAG: Final = "flag"
TIMES: Final = frozenset({"timestamp", "timestampMs"})
_NUMBERED: Final = frozenset({"offset", "sequence"})
_MOST_INFLATION: Final = (
    1024  # a compressed batch that claims more records for its bytes is looked into
)


class Request(NamedTuple):
    """What is wanted of a segment; see `segment.decode_segment`."""

    columns: tuple[str, ...]
    topic: str = ""
    partition: int = 0
    start: int = 0
    end: int | None = None
    control: bool = False
    crc: str = FAIL
    aborted: Sequence[AbortedTransaction] = ()
    committed_only: bool = False
    sure_to: int | None = None
    lenient: bool = False

    def cuts(self, part: NDArray[np.void]) -> bool:
        """Whether some of these batches may have offsets outside the range."""
        return bool(
            (part["baseOffset"] < self.start).any()
            or (self.end is not None and (last_offsets(part) >= self.end).any())
        )


class Batches(NamedTuple):
    """Batches in the buffer `data`, and what is known of each."""

    data: Buffer
    headers: NDArray[np.void]
    crc_ok: NDArray[np.bool_]
    aborted: NDArray[np.bool_]

    def part(self, chosen: slice | NDArray[np.bool_]) -> Batches:
        return Batches(self.data, self.headers[chosen], self.crc_ok[chosen], self.aborted[chosen])


def rows(
    data: Buffer,
    part: NDArray[np.void],
    right: NDArray[np.bool_],
    request: Request,
    wanted: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """The rows of the batches of `part`, whose CRCs are `right` or not.

    `CorruptRecordError` under `crc="fail"`.
    """
    batches = Batches(data, part, right, aborted_batches(part, request.aborted))
    batches = batches.part(_kept(batches, request))
    if request.crc == FAIL:
        yield from _decoded(batches, request, wanted)
        return
    try:
        yield from list(_decoded(batches, request, wanted))
    except CorruptRecordError:
        yield from _one_by_one(batches, request, wanted)


def _kept(batches: Batches, request: Request) -> NDArray[np.bool_]:
    kept = batches.headers["recordCount"] != 0
    if not request.control:
        kept &= batches.headers["attributes"] & CONTROL_FLAG == 0
    if request.committed_only:
        kept &= ~batches.aborted
    return np.asarray(kept)


def _one_by_one(batches: Batches, request: Request, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    for index in range(len(batches.headers)):
        one = batches.part(slice(index, index + 1))
        try:
            yield from list(_decoded(one, request, wanted))
        except CorruptRecordError:
            yield damaged_row(one.headers, request, wanted)


def _decoded(batches: Batches, request: Request, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    runs = (
        _from_headers(batches, request)
        if _headers_answer(batches.headers, request)
        else _from_records(batches, request)
    )
    for run in runs:
        if request.cuts(run.headers):
            offsets = run.offsets
            run = run.part(
                (offsets >= request.start)
                & (offsets < (2**63 - 1 if request.end is None else request.end))
            )
        if len(run.batch):
            yield pa.RecordBatch.from_arrays(
                [column(run, name) for name in request.columns], schema=wanted
            )


def _from_records(batches: Batches, request: Request) -> Iterator[Run]:
    first = 0
    for group in groups(batches.data, batches.headers):
        here = batches.part(slice(first, first + len(group.headers)))
        for fields in locate(group, "headers" in request.columns):
            yield Run(
                request.topic,
                request.partition,
                here.headers,
                here.crc_ok,
                here.aborted,
                fields.batch,
                fields.offset_delta,
                fields,
                request.lenient,
            )
        first += len(group.headers)


def _headers_answer(part: NDArray[np.void], request: Request) -> bool:
    """Whether the headers of these batches hold all that is wanted of their records."""
    if not FROM_RECORD.isdisjoint(request.columns) or (codecs(part) >= len(CODEC_NAMES)).any():
        return False
    if (
        not TIMES.isdisjoint(request.columns)
        and not (part["attributes"] & LOG_APPEND_TIME_FLAG).all()
    ):
        return False
    counts = part["recordCount"].astype(np.int64)
    if (not _NUMBERED.isdisjoint(request.columns) or request.cuts(part)) and (
        counts != part["lastOffsetDelta"] + np.int64(1)
    ).any():
        return False
    room = (part["length"] - np.int64(HEADER_BYTES - LOG_OVERHEAD)) * np.where(
        codecs(part) == NONE, 1, _MOST_INFLATION
    )
    return bool(((counts >= 0) & (counts * SMALLEST_RECORD <= room)).all())


def _from_headers(batches: Batches, request: Request) -> Iterator[Run]:
    """All records of these batches by their number alone."""
    counts = batches.headers["recordCount"].astype(np.int64)
    ends = np.cumsum(counts)
    for first in range(0, int(counts.sum()), ROWS):
        low, high = np.searchsorted(ends, (first, min(first + ROWS, int(ends[-1])) - 1), "right")
        batch = np.repeat(np.arange(low, high + 1), counts[low : high + 1])
        skipped = first - int(ends[low] - counts[low])
        batch = batch[skipped : skipped + ROWS]
        delta = np.arange(first, first + len(batch)) - (ends - counts)[batch]
        yield Run(
            request.topic,
            request.partition,
            batches.headers,
            batches.crc_ok,
            batches.aborted,
            batch,
            delta,
            None,
            request.lenient,
        )


def damaged_row(header: NDArray[np.void], request: Request, wanted: pa.Schema) -> pa.RecordBatch:
    """The one row that stands for a batch that cannot be read: its header's claims, crcOk false,
    no key, value, timestamp or headers.
    """
    nothing = np.zeros(1, np.bool_)
    run = Run(
        request.topic,
        request.partition,
        header,
        nothing,
        nothing,
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
        None,
    )
    unknown = FROM_RECORD | TIMES | ({"codec"} if codecs(header)[0] >= len(CODEC_NAMES) else set())
    arrays = [
        pa.nulls(1, TYPES[name]) if name in unknown else column(run, name)
        for name in request.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
