"""The headers of many records in lock-step, as `lanes` walks records: step k reads the k-th header
of every record that has one.

1. When few records are left that have so many headers, each is ended by the plain walk of the wire
   package.
2. A header key cannot be null; a negative value length is null and is kept as -1.
3. `first` has one more entry than there are records: the headers of record i are entries first[i]
   to first[i + 1].

Source: FILE_FORMATS 2 "record in v2"; `wire.record_walk`. Not here: text decoding of keys
(`arrow_columns`).
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from twisted_broker.wire.record_walk import read_varint
from twisted_broker.wire.records import InvalidRecordError

from .varints import BEYOND, INT_BYTES, Bytes, Ints, read

FEW_RECORDS: Final = 24


class RecordHeaders(NamedTuple):
    """The headers of some records, one after the other."""

    first: Ints
    key_at: Ints
    key_length: Ints
    value_at: Ints
    value_length: Ints

    @classmethod
    def none(cls, records: int) -> Self:
        """No headers at all for this many records."""
        nothing = np.empty(0, np.int64)
        return cls(np.zeros(records + 1, np.int64), nothing, nothing, nothing, nothing)

    def part(self, chosen: slice | NDArray[np.bool_]) -> Self:
        """The headers of the chosen records (a slice without step, or a mask)."""
        counts = np.diff(self.first)
        mask = np.zeros(len(counts), np.bool_)
        mask[chosen] = True
        entries = np.repeat(mask, counts)
        first = np.concatenate(([0], np.cumsum(counts[mask])))
        return type(self)(
            first,
            self.key_at[entries],
            self.key_length[entries],
            self.value_at[entries],
            self.value_length[entries],
        )


def walk_headers(
    data: Bytes, at: Ints, ends: Ints, counts: Ints
) -> tuple[RecordHeaders, NDArray[np.bool_]]:
    """`counts` headers of each record from `at` on, and for each record whether they do not end
    exactly at `ends`.

    The counts must have been checked against the bytes of their records.
    """
    order = np.argsort(-counts, kind="stable")
    first = np.concatenate(([0], np.cumsum(counts)))
    found = RecordHeaders(first, *(np.zeros(int(first[-1]), np.int64) for _ in range(4)))
    position, slot, counts = at[order], first[:-1][order], counts[order]
    done = _in_lockstep(data, position, slot, found, counts)
    text = data.data
    for lane in range(min(FEW_RECORDS, len(order))):
        if counts[lane] > done:
            position[lane] = _alone(
                text,
                int(position[lane]),
                int(ends[order[lane]]),
                found,
                int(slot[lane]),
                int(counts[lane]) - done,
            )
    wrong = np.zeros(len(order), np.bool_)
    wrong[order] = position != ends[order]
    return found, wrong


def _in_lockstep(
    data: Bytes, position: Ints, slot: Ints, found: RecordHeaders, counts: Ints
) -> int:
    """Read one header of every record after the other while more than a few records have one;
    the number of headers read of each.
    """
    steps = int(counts[FEW_RECORDS]) if len(counts) > FEW_RECORDS else 0
    walking = len(counts) - np.searchsorted(counts[::-1], np.arange(1, steps + 1))
    for active in walking.tolist():
        there = slot[:active]
        key_length, key_at = read(data, position[:active], INT_BYTES)
        value_length, value_at = read(data, key_at + np.maximum(key_length, 0), INT_BYTES)
        found.key_at[there], found.key_length[there] = key_at, key_length
        found.value_at[there], found.value_length[there] = value_at, np.maximum(value_length, -1)
        position[:active] = np.where(
            key_length < 0, BEYOND, np.minimum(value_at + np.maximum(value_length, 0), BEYOND)
        )
        there += 1
    return steps


def _alone(
    text: memoryview, position: int, end: int, found: RecordHeaders, slot: int, count: int
) -> int:
    """Read the remaining headers of one record: the position after them, `BEYOND` when they are
    broken.
    """
    try:
        for index in range(slot, slot + count):
            key_length, key_at = read_varint(text, position)
            value_length, value_at = read_varint(text, key_at + max(key_length, 0))
            position = value_at + max(value_length, 0)
            if key_length < 0 or position > end:
                return BEYOND
            found.key_at[index], found.key_length[index] = key_at, key_length
            found.value_at[index], found.value_length[index] = value_at, max(value_length, -1)
    except (InvalidRecordError, IndexError):
        return BEYOND
    return position
