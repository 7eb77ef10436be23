"""Arrow arrays from numpy vectors and raw bytes, without a Python loop over rows.

1. `slices` copies the wanted bytes once, next to one another, and nothing else: the bytes between
   them are the odd elements of an array over the raw buffer, and the even ones are filtered out of
   it.
2. Positions must grow, and all must lie within 2 GiB of the first.
3. Constant columns are made once for the most rows and sliced.

Source: Arrow's columnar format (variable-size binary, list, validity bitmaps).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .arrow_types import HEADER_ENTRY, HEADERS, TIMESTAMP
from .fields import ROWS
from .header_walk import RecordHeaders
from .varints import Bytes, Ints


def slices(data: Bytes, at: Ints, lengths: Ints) -> pa.Array:
    """`data[at : at + length]` for each pair as a `binary` array; null where the length is
    negative.
    """
    count = len(at)
    present = lengths >= 0
    nulls = count - int(np.count_nonzero(present))
    if nulls == count:
        return nothing(pa.binary(), count)
    first = int(at[0])
    bounds = np.empty(2 * count, np.int32)
    np.subtract(at, first, out=bounds[0::2], casting="unsafe")
    np.add(
        bounds[0::2],
        np.maximum(lengths, 0) if nulls else lengths,
        out=bounds[1::2],
        casting="unsafe",
    )
    raw = pa.py_buffer(data[first : first + int(bounds[-1])])
    packed = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), raw]
    ).filter(_even(count))
    if not nulls:
        return packed
    return pa.Array.from_buffers(pa.binary(), count, [_bits(present), *packed.buffers()[1:]], nulls)


def integers(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """A column of 32 or 64 bits without nulls."""
    packed = np.ascontiguousarray(values, np.int32 if kind == pa.int32() else np.int64)
    return pa.Array.from_buffers(kind, len(packed), [None, pa.py_buffer(packed)], 0)


def timestamps(milliseconds: Ints) -> pa.Array:
    """A column of timestamps; what leaves 64 bits in microseconds must not come here."""
    return integers(milliseconds * 1000, TIMESTAMP)


def booleans(values: NDArray[np.bool_]) -> pa.Array:
    """A column of truth values without nulls."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)], 0)


def constant(value: str | int, kind: pa.DataType, count: int) -> pa.Array:
    """`count` times the same."""
    return (
        _constant(value, kind).slice(0, count)
        if count <= ROWS
        else pa.repeat(pa.scalar(value, kind), count)
    )


def nothing(kind: pa.DataType, count: int) -> pa.Array:
    """`count` nulls."""
    return _nothing(kind).slice(0, count) if count <= ROWS else pa.nulls(count, kind)


def header_lists(data: Bytes, headers: RecordHeaders | None) -> pa.Array:
    """The headers of each record; null, as the connector has it, for a record without headers.

    They must have been located.
    """
    assert headers is not None, "the headers column was asked for without locating headers"
    count = len(headers.first) - 1
    if headers.first[-1] == 0:
        return nothing(HEADERS, count)
    keys, values = (
        text(slices(data, headers.key_at, headers.key_length)),
        slices(data, headers.value_at, headers.value_length),
    )
    entries = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_ENTRY))
    some = np.diff(headers.first) > 0
    offsets = pa.py_buffer(headers.first.astype(np.int32))
    return pa.Array.from_buffers(
        HEADERS,
        count,
        [_bits(some), offsets],
        count - int(np.count_nonzero(some)),
        children=[entries],
    )


def text(array: pa.Array) -> pa.Array:
    """Bytes as UTF-8; what is none has replacement characters, as Java's strings have."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([item.as_py().decode("utf-8", "replace") for item in array], pa.string())


def _bits(values: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


@functools.lru_cache(maxsize=32)
def _even(count: int) -> pa.Array:
    """A mask over 2 * count - 1 elements: the first, the third and so on."""
    mask = np.full((2 * count + 6) // 8, 0x55, np.uint8)
    return pa.Array.from_buffers(pa.bool_(), 2 * count - 1, [None, pa.py_buffer(mask)], 0)


@functools.lru_cache(maxsize=64)
def _constant(value: str | int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), ROWS)


@functools.lru_cache(maxsize=8)
def _nothing(kind: pa.DataType) -> pa.Array:
    return pa.nulls(ROWS, kind)
