"""Batch headers of a segment as one numpy table: the scan that looks at 61 bytes of every batch and
at nothing else.

1. `HEADER` has the fields of the header in native byte order and `position`, the byte where the
   batch begins. Rows are in file order.
2. The scan goes from batch to batch by their lengths and stops at the first bytes that are no whole
   batch; it says why (`Stop`).
3. Only lengths and magics are trusted before a CRC was checked: a length leads at most to the end
   of the data.
4. The result holds no reference to the data: a mapped file may be closed.

Source: FILE_FORMATS 2; Kafka's FileLogInputStream. Not here: the records (`records`), what a gap or
a CRC mismatch means (audit, compare).
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twisted_broker.wire.records import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    Buffer,
    CorruptRecordError,
    batch_crc,
)

_FIELDS: Final = (
    ("baseOffset", "i8"),
    ("length", "i4"),
    ("leaderEpoch", "i4"),
    ("magic", "i1"),
    ("crc", "u4"),
    ("attributes", "i2"),
    ("lastOffsetDelta", "i4"),
    ("baseTimestamp", "i8"),
    ("maxTimestamp", "i8"),
    ("producerId", "i8"),
    ("producerEpoch", "i2"),
    ("baseSequence", "i4"),
    ("recordCount", "i4"),
)
_ON_DISK: Final = np.dtype([(name, ">" + kind) for name, kind in _FIELDS])
HEADER: Final = np.dtype([*_FIELDS, ("position", "i8")])
_SHORTEST: Final = HEADER_BYTES - LOG_OVERHEAD
_LENGTH_AND_MAGIC: Final = struct.Struct(">i4xb")
_BATCHES_AT_ONCE: Final = 65536


class Stop(enum.Enum):
    """Why a scan ended where it ended."""

    END = "the data ends with a batch"
    CUT_SHORT = "the last batch is cut short"
    ZEROS = "preallocated zeros follow"
    LEGACY = "message format 0 or 1 follows"
    NO_BATCH = "bytes that are no batch follow"


class Scan(NamedTuple):
    """The headers found; the byte after the last whole batch; why there was no more."""

    headers: NDArray[np.void]
    end: int
    stop: Stop


def scan(data: Buffer, start: int = 0, end: int | None = None) -> Scan:
    """The headers of the whole batches in `data[start:end]` (positions count from the beginning
    of `data`). Never raises for what it reads.
    """
    limit = len(data) if end is None else min(end, len(data))
    positions, stopped, reason = _chain(data, start, limit)
    table = np.empty(len(positions), HEADER)
    table["position"] = positions
    raw = np.frombuffer(data, np.uint8)
    for first in range(0, len(table), _BATCHES_AT_ONCE):
        _fill(table[first : first + _BATCHES_AT_ONCE], raw)
    return Scan(table, stopped, reason)


def headers(data: Buffer) -> NDArray[np.void]:
    """The headers of all batches (dtype `HEADER`).

    A tail truncated or of zeros is left out; `CorruptRecordError` for other bytes.
    """
    found = scan(data)
    refuse(found)
    return found.headers


def refuse(found: Scan) -> None:
    """`CorruptRecordError` unless the scan ended where a segment may end: after a batch, in one
    truncated, at preallocated zeros.
    """
    if found.stop in (Stop.LEGACY, Stop.NO_BATCH):
        raise CorruptRecordError(found.stop.value, found.end)


def crc_ok(data: Buffer, table: NDArray[np.void]) -> NDArray[np.bool_]:
    """For each header whether the CRC over its batch in `data` is the one it says.

    Reads every byte, copies none.
    """
    sizes = (table["length"].astype(np.int64) + LOG_OVERHEAD).tolist()
    found = np.fromiter(
        map(batch_crc, [data] * len(table), table["position"].tolist(), sizes),
        np.uint32,
        len(table),
    )
    return np.asarray(found == table["crc"])


def codecs(table: NDArray[np.void]) -> NDArray[np.int16]:
    """The codec number of each batch."""
    return np.asarray(table["attributes"] & CODEC_MASK)


def last_offsets(table: NDArray[np.void]) -> NDArray[np.int64]:
    """The last offset of each batch."""
    return np.asarray(table["baseOffset"] + table["lastOffsetDelta"])


def _chain(data: Buffer, position: int, limit: int) -> tuple[list[int], int, Stop]:
    """The positions of the whole batches, the byte after them, and why they end there."""
    positions: list[int] = []
    unpack, last = _LENGTH_AND_MAGIC.unpack_from, limit - HEADER_BYTES
    while position <= last:
        length, magic = unpack(data, position + 8)
        if magic != MAGIC or length < _SHORTEST:
            break
        after = position + LOG_OVERHEAD + length
        if after > limit:
            break
        positions.append(position)
        position = after
    return positions, position, _reason(data, position, limit)


def _reason(data: Buffer, position: int, limit: int) -> Stop:
    if position >= limit:
        return Stop.END
    rest = bytes(data[position : min(limit, position + HEADER_BYTES)])
    if not any(rest):
        return Stop.ZEROS
    if len(rest) < HEADER_BYTES and (len(rest) < LOG_OVERHEAD + 5 or rest[16] == MAGIC):
        return Stop.CUT_SHORT
    length, magic = _LENGTH_AND_MAGIC.unpack_from(rest, 8)
    if magic == MAGIC and length >= _SHORTEST:
        return Stop.CUT_SHORT
    return Stop.LEGACY if magic in (0, 1) and length >= 14 else Stop.NO_BATCH


def _fill(table: NDArray[np.void], raw: NDArray[np.uint8]) -> None:
    """Read the headers at the table's positions into its other fields."""
    if len(table):
        at = table["position"][:, None] + np.arange(HEADER_BYTES)
        found = raw[at].view(_ON_DISK)[:, 0]
        for name, _ in _FIELDS:
            table[name] = found[name]
