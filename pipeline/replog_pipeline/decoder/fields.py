"""Where the fields of many records lie: vectors of positions, lengths and numbers for a whole group
of batches.

1. A record's fields end exactly where its length says, those of a batch exactly where its section
   ends; else one error, the plain walk's own.
2. A negative key or value length is null and is kept as -1.
3. Headers are looked at only when they are requested; then every header lies inside its record.
4. No array is longer than the group has records or headers, and neither can be more than its bytes
   allow.

Source: FILE_FORMATS 2 "record in v2"; `wire.record_walk`, whose findings these are, vector by
vector. Not here: columns (`arrow_columns`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from twisted_broker.wire.record_walk import walk_records
from twisted_broker.wire.records import CorruptRecordError

from .header_walk import RecordHeaders, walk_headers
from .lanes import walk
from .sections import Group, refusal
from .varints import BEYOND, INT_BYTES, LONG_BYTES, Bytes, Ints, read

# so many that numpy's calls cost nothing, so few that the vectors stay in the processor's cache
ROWS: Final = 32768
SPAN_BYTES: Final = (
    64 * 1024 * 1024
)  # and of so few bytes that 32 bits hold every position: a record alone has fewer than 2 GiB


class Fields(NamedTuple):
    """One entry per record, in order; `batch` is the row of its batch in the group's headers,
    lengths are -1 for null, positions are in `data`.
    """

    data: Bytes
    batch: Ints
    ends: Ints
    timestamp_delta: Ints
    offset_delta: Ints
    key_at: Ints
    key_length: Ints
    value_at: Ints
    value_length: Ints
    headers: RecordHeaders | None

    def part(self, chosen: slice | NDArray[np.bool_]) -> Self:
        """The chosen records."""
        headers = None if self.headers is None else self.headers.part(chosen)
        return self._replace(
            **{name: getattr(self, name)[chosen] for name in _PER_RECORD}, headers=headers
        )


_PER_RECORD = tuple(name for name in Fields._fields if name not in ("data", "headers"))


def locate(group: Group, with_headers: bool) -> Iterator[Fields]:
    """The fields of the group's records, `ROWS` at a time.

    `InvalidRecordError` naming the first batch that is broken.
    """
    starts, broken = walk(group.data, group.starts, group.ends, group.counts)
    if len(broken):
        _explain(group, int(broken.min()))
    batch = np.repeat(np.arange(len(group.counts)), group.counts)
    ends = _ends(starts, group)
    first = 0
    while first < len(starts):
        full = int(np.searchsorted(ends, starts[first] + SPAN_BYTES))
        rows = slice(first, max(first + 1, min(first + ROWS, full)))
        yield _locate_some(group, starts[rows], ends[rows], batch[rows], with_headers)
        first = rows.stop


def _ends(starts: Ints, group: Group) -> Ints:
    """Where each record ends: where the next one begins, or its section ends."""
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:]
    last = np.cumsum(group.counts) - 1
    full = group.counts > 0
    ends[last[full]] = group.ends[full]
    return ends


def _locate_some(group: Group, starts: Ints, ends: Ints, batch: Ints, with_headers: bool) -> Fields:
    data = group.data
    _, at = read(data, starts, INT_BYTES)
    at += 1  # attributes: unused
    timestamp_delta, at = read(data, at, LONG_BYTES)
    offset_delta, at = read(data, at, INT_BYTES)
    key_length, key_at = read(data, at, INT_BYTES)
    value_length, value_at = read(data, key_at + np.maximum(key_length, 0), INT_BYTES)
    headers_at = value_at + np.maximum(value_length, 0)
    headers, wrong = _headers(data, headers_at, ends, with_headers)
    if wrong.any():
        _explain(group, int(batch[wrong.argmax()]))
    return Fields(
        data,
        batch,
        ends,
        timestamp_delta,
        offset_delta,
        key_at,
        np.maximum(key_length, -1),
        value_at,
        np.maximum(value_length, -1),
        headers,
    )


def _headers(
    data: Bytes, at: Ints, ends: Ints, wanted: bool
) -> tuple[RecordHeaders | None, NDArray[np.bool_]]:
    """The records' headers if they are wanted, and for each record whether its fields do not end
    where it does.
    """
    count, after = read(data, np.minimum(at, BEYOND), INT_BYTES)
    bare = count == 0
    wrong = (at > ends) | np.where(bare, after != ends, (count < 0) | (after + 2 * count > ends))
    if not wanted or wrong.any():
        return None, wrong
    if bare.all():
        return RecordHeaders.none(len(at)), wrong
    headers, wrong_inside = walk_headers(data, after, ends, count)
    return headers, wrong_inside


def _explain(group: Group, index: int) -> None:
    """Raise what the plain walk finds in this batch of the group."""
    start, end = int(group.starts[index]), int(group.ends[index])
    section = group.data[start:end].tobytes()
    try:
        for _ in walk_records(section, 0, len(section), int(group.counts[index]), 0, 0, 0):
            pass
    except CorruptRecordError as error:
        raise refusal(group.headers[index], error) from None
    raise refusal(group.headers[index], "the fields of a record do not end with it")
