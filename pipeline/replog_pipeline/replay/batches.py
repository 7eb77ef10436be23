"""Records of one partition as batches for its target: from Arrow columns to the bytes of a Produce.

1. Every batch says where it belongs: base sequence = sequence of its first offset. Key, value,
   headers and timestamp (ms) are the source's; null stays null, empty stays empty.
2. A batch is closed before it outgrows `limit` bytes, uncompressed; a record larger than that is
   alone in its batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from replog_pipeline.replay import identity
from twisted_broker.wire.records import NO_TIMESTAMP, BatchBuilder

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""(timestamp in ms, key, value, headers)"""

RECORD_OVERHEAD = 24  # lengths and deltas of a record, at most


@dataclass(frozen=True)
class Batch:
    """Rows for the offsets from `first` on."""

    first: int
    rows: list[Row]

    @property
    def after(self) -> int:
        return self.first + len(self.rows)

    def from_offset(self, offset: int) -> Batch:
        """What of it lies at or after `offset`."""
        return Batch(max(offset, self.first), self.rows[max(0, offset - self.first) :])

    def encoded(self, producer_id: int, codec: int) -> bytes:
        builder = BatchBuilder(
            codec=codec,
            producer_id=producer_id,
            producer_epoch=identity.EPOCH,
            base_sequence=identity.sequence(self.first),
        )
        for timestamp, key, value, headers in self.rows:
            builder.append(timestamp, key, value, headers)
        return builder.build()


def rows_of(table: pa.RecordBatch) -> list[Row]:
    """The rows of a piece with the columns timestamp (µs), key, value, headers. A timestamp that is
    null (of a table that an archive was told to keep without it) is none to Kafka: -1.
    """
    times = table.column("timestamp").cast("int64").fill_null(NO_TIMESTAMP * 1000)
    timestamps = (times.to_numpy() // 1000).tolist()
    keys, values = cells(table.column("key")), cells(table.column("value"))
    column = table.column("headers")
    if column.null_count == len(column):
        return [(*each, []) for each in zip(timestamps, keys, values, strict=True)]
    headers = [
        [(each["key"], each["value"]) for each in found or ()] for found in column.to_pylist()
    ]
    return list(zip(timestamps, keys, values, headers, strict=True))


def cells(column: pa.Array) -> list[bytes | None]:
    """A binary column as a list; Arrow's own `to_pylist` takes ten times as long."""
    import numpy as np

    whole = column.cast("large_binary")
    _, bounds, data = whole.buffers()
    offsets = np.frombuffer(bounds, np.int64)[whole.offset : whole.offset + len(whole) + 1]
    start = int(offsets[0])
    raw = b"" if data is None else bytes(memoryview(data)[start : int(offsets[-1])])
    found: list[bytes | None] = [
        raw[one:after] for one, after in pairwise((offsets - start).tolist())
    ]
    for index in np.flatnonzero(whole.is_null().to_numpy(zero_copy_only=False)).tolist():
        found[index] = None
    return found


def size_of(row: Row) -> int:
    """An upper bound of the bytes a row takes in a batch."""
    _, key, value, headers = row
    size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += 10 + 4 * len(name) + len(content or b"")
    return size


class Batcher:
    """Collects the rows for the offsets from `first` on."""

    def __init__(self, first: int, limit: int) -> None:
        self.first, self.limit = first, limit
        self._rows: list[Row] = []
        self._size = 0

    def add(self, rows: list[Row]) -> Iterator[Batch]:
        """The batches that these rows fill."""
        for row in rows:
            size = size_of(row)
            if self._rows and self._size + size > self.limit:
                yield self.close()
            self._rows.append(row)
            self._size += size

    def close(self) -> Batch:
        """What is collected, as a batch; it may be empty."""
        batch = Batch(self.first, self._rows)
        self.first, self._rows, self._size = batch.after, [], 0
        return batch
