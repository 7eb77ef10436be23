"""Varints of many records at once: one table look-up for those of one or two bytes, a loop over
bytes for the few that are longer.

1. `read` never reads outside the data: a position beyond its end reads the last byte.
2. A varint that is too long advances by `BEYOND`, so that the caller's check of where the fields
   end must fail; nothing is raised here.
3. Values are as `wire.record_walk` reads them, over-long forms of small numbers included.

Source: FILE_FORMATS 2 "record in v2"; `wire.record_walk`. Not here: which fields there
are (`fields`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

INT_BYTES: Final = 5
LONG_BYTES: Final = 10
BEYOND: Final = (
    1 << 50
)  # further than any position, and far from overflow however many are added up
_SIZE_BITS: Final = 2
_SIZE_MASK: Final = (1 << _SIZE_BITS) - 1


def _short_varints() -> Ints:
    """By the next two bytes (little-endian): value << 2 | size of a varint of one or two bytes,
    0 for a longer one.
    """
    low, high = np.arange(65536, dtype=np.int64) & 0xFF, np.arange(65536, dtype=np.int64) >> 8
    size = np.where(low < 0x80, 1, np.where(high < 0x80, 2, 0))
    raw = np.where(size == 1, low, (low & 0x7F) | high << 7)
    value = (raw >> 1) ^ -(raw & 1)
    return np.where(size > 0, value << _SIZE_BITS | size, 0)


SHORT: Final = _short_varints()


def next_two(data: Bytes, at: Ints) -> NDArray[np.uint16]:
    """The two bytes at each position, as the key into `SHORT`."""
    key = data.take(at + 1, mode="clip").astype(np.uint16)
    key <<= 8
    key |= data.take(at, mode="clip")
    return key


def read(data: Bytes, at: Ints, most_bytes: int) -> tuple[Ints, Ints]:
    """The zigzag varints of at most `most_bytes` at these positions: (values, positions after
    them).
    """
    found = SHORT.take(next_two(data, at), mode="clip")
    size = found & _SIZE_MASK
    value = found >> _SIZE_BITS
    if np.count_nonzero(size) != len(size):
        longer = np.flatnonzero(size == 0)
        value[longer], size[longer] = _read_long(data, at[longer], most_bytes)
    size += at
    return value, size


def _read_long(data: Bytes, at: Ints, most_bytes: int) -> tuple[Ints, Ints]:
    """(values, sizes) of varints of any allowed length, byte by byte; `BEYOND` as the size of
    one that is too long.
    """
    raw, size = np.zeros(len(at), np.uint64), np.full(len(at), BEYOND)
    going = np.arange(len(at))
    for index in range(most_bytes):
        byte = data.take(at[going] + index, mode="clip")
        if index == most_bytes - 1:
            fits = byte <= (0x0F if most_bytes == INT_BYTES else 0x01)
            going, byte = going[fits], byte[fits]
        raw[going] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * index)
        ended = byte < 0x80
        size[going[ended]] = index + 1
        going = going[~ended]
    value = (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)
    return value, size
