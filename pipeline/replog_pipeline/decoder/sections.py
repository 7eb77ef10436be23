"""Groups of batches that are decoded together: their record sections in one buffer, inflated where
they are compressed.

1. A group ends with the batch that brings it to `GROUP_BYTES`; uncompressed groups are views of the
   file, others one new buffer.
2. A batch inflates to `MAX_OUTPUT_BYTES` at most, and its record count is checked against the bytes
   it has before anything is allocated for it.
3. Faults are the wire package's errors, with the position of the batch in the segment.

Source: RELIABILITY 5.3 "decompression bomb". Not here: CRCs (`segment`), records
(`fields`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from twisted_broker.wire.compression import NONE, decompress
from twisted_broker.wire.records import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAX_OUTPUT_BYTES,
    Buffer,
    CorruptRecordError,
    InvalidRecordError,
)

from .headers import codecs
from .varints import Bytes, Ints

GROUP_BYTES: Final = 32 * 1024 * 1024
_MOST_BATCHES: Final = 65536
SMALLEST_RECORD: Final = 7  # length, attributes, two deltas, two null lengths, header count


Error = TypeVar("Error", bound=CorruptRecordError)


class Group(NamedTuple):
    """Batches by their headers, and where in `data` the records of each begin and end."""

    headers: NDArray[np.void]
    data: Bytes
    starts: Ints
    ends: Ints
    counts: Ints


def parts(table: NDArray[np.void]) -> Iterator[NDArray[np.void]]:
    """The headers in order, so many at a time as have `GROUP_BYTES` on disk, and always at least
    one.
    """
    first = 0
    while first < len(table):
        sizes = np.cumsum(table["length"][first : first + _MOST_BATCHES], dtype=np.int64)
        part = table[first : first + int(np.searchsorted(sizes, GROUP_BYTES)) + 1]
        yield part
        first += len(part)


def groups(data: Buffer, table: NDArray[np.void]) -> Iterator[Group]:
    """The batches of the table, in order, in groups.

    `InvalidRecordError` for a section that cannot be what its header says.
    """
    while len(table):
        group = (
            _inflated(data, table)
            if codecs(table).any()
            else _in_place(np.frombuffer(data, np.uint8), table)
        )
        _check_counts(group)
        yield group
        table = table[len(group.headers) :]


def _in_place(raw: Bytes, part: NDArray[np.void]) -> Group:
    starts = part["position"] + HEADER_BYTES
    return Group(
        part,
        raw,
        starts,
        part["position"] + LOG_OVERHEAD + part["length"],
        part["recordCount"].astype(np.int64),
    )


def _inflated(data: Buffer, part: NDArray[np.void]) -> Group:
    """As many batches of `part` as inflate to a group, in a buffer of their own."""
    pieces: list[bytes] = []
    total = 0
    for index, codec in enumerate(codecs(part).tolist()):
        pieces.append(_section(data, codec, part[index]))
        total += len(pieces[-1])
        if total >= GROUP_BYTES:
            break
    part = part[: len(pieces)]
    sizes = np.fromiter(map(len, pieces), np.int64, len(pieces))
    ends = np.cumsum(sizes)
    return Group(
        part,
        np.frombuffer(b"".join(pieces), np.uint8),
        ends - sizes,
        ends,
        part["recordCount"].astype(np.int64),
    )


def _section(data: Buffer, codec: int, header: np.void) -> bytes:
    """The records of this batch, not compressed."""
    position = int(header["position"])
    payload = memoryview(data)[
        position + HEADER_BYTES : position + LOG_OVERHEAD + int(header["length"])
    ]
    try:
        return bytes(payload) if codec == NONE else decompress(codec, payload, MAX_OUTPUT_BYTES)
    except CorruptRecordError as error:
        raise refusal(header, error) from None


def refusal(header: np.void, problem: CorruptRecordError | str) -> InvalidRecordError:
    """The one error for records that cannot be read, naming batch and byte."""
    text = problem.message if isinstance(problem, CorruptRecordError) else problem
    return at_byte(
        InvalidRecordError(f"the batch of offset {header['baseOffset']} cannot be read: {text}"),
        int(header["position"]),
    )


def at_byte(error: Error, position: int) -> Error:
    """The same error, knowing its byte in the data without saying it: the data may be a piece of
    a file.
    """
    error.position = position
    return error


def _check_counts(group: Group) -> None:
    impossible = (group.counts < 0) | (group.counts * SMALLEST_RECORD > group.ends - group.starts)
    impossible |= (group.counts == 0) & (group.ends > group.starts)
    if impossible.any():
        index = int(impossible.argmax())
        size = int(group.ends[index] - group.starts[index])
        raise refusal(
            group.headers[index], f"{group.counts[index]} records cannot be in {size} bytes"
        )
