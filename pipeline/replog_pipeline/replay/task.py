"""What one Spark task does: rows, sorted by partition and offset, go to their partitions of the
target.

1. The n-th row of a partition is offset n. Rows that are in the target already are skipped; the
   last of them must be equal to the target's last.
2. A task may be killed and run again, or run twice at once: see the package's card.
3. Offsets must grow: a source that holds an offset twice is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from replog_pipeline.errors import PipelineError
from replog_pipeline.kafka_cluster import KafkaCluster
from replog_pipeline.replay.batches import Batcher, Row, rows_of
from replog_pipeline.replay.cluster import Cluster
from replog_pipeline.replay.target import ANOTHER
from replog_pipeline.replay.writer import PartitionWriter
from twisted_broker.wire.records import Record

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Orders:
    """Where to, and how: `codec` by its number, `batch_bytes` before compression."""

    cluster: KafkaCluster
    topic: str
    codec: int
    batch_bytes: int


@dataclass(frozen=True)
class Done:
    """Of one partition: records of the source, and how many of them this task wrote."""

    partition: int
    records: int
    written: int


def replay(orders: Orders, pieces: Iterable[pa.RecordBatch]) -> Iterator[Done]:
    """Raises PipelineError; whatever was acknowledged stays."""
    with Cluster(orders.cluster, orders.topic) as cluster:
        current: PartitionReplay | None = None
        for piece in pieces:
            for partition, part in by_partition(piece):
                if current is None or current.partition != partition:
                    if current:
                        yield current.finish()
                    current = PartitionReplay(orders, cluster, partition)
                current.take(part)
        if current:
            yield current.finish()


def by_partition(piece: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Runs of rows of the same partition."""
    import numpy as np

    numbers = piece.column("partition").to_numpy(zero_copy_only=False)
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, end in pairwise(bounds):
        if end > start:
            yield int(numbers[start]), piece.slice(start, end - start)


class PartitionReplay:
    """One partition, from its first row to its last."""

    def __init__(self, orders: Orders, cluster: Cluster, partition: int) -> None:
        self.partition = partition
        self.writer = PartitionWriter(cluster, partition, orders.codec)
        self.begin = self.writer.written
        self.batcher = Batcher(self.begin, orders.batch_bytes)
        self.seen = 0
        self.offset = -1

    def take(self, piece: pa.RecordBatch) -> None:
        """The next rows."""
        self.check_order(piece)
        first, self.seen = self.seen, self.seen + piece.num_rows
        if first < self.begin <= self.seen:
            self.check_last(rows_of(piece.slice(self.begin - 1 - first, 1))[0])
        if self.seen > self.begin:
            for batch in self.batcher.add(rows_of(piece.slice(max(0, self.begin - first)))):
                self.writer.write(batch)

    def check_order(self, piece: pa.RecordBatch) -> None:
        import numpy as np

        offsets = piece.column("offset").to_numpy(zero_copy_only=False)
        if offsets[0] <= self.offset or (np.diff(offsets) <= 0).any():
            raise PipelineError(
                f"the source holds an offset of partition {self.partition} twice: look at it "
                "with `replog pipeline audit`"
            )
        self.offset = int(offsets[-1])

    def check_last(self, row: Row) -> None:
        last = self.writer.last
        if last is None or (last.timestamp, last.key, last.value, plain(last)) != row:
            raise PipelineError(
                f"{self.writer.name}: its record at offset {self.begin - 1} is not the "
                f"source's: another source was replayed into it; {ANOTHER}"
            )

    def finish(self) -> Done:
        if self.seen < self.begin:
            found = f"{self.writer.name} holds {self.begin} records, its source only {self.seen}"
            raise PipelineError(f"{found}: another source was replayed into it; {ANOTHER}")
        self.writer.write(self.batcher.close())
        self.writer.flush()
        return Done(self.partition, self.seen, self.seen - self.begin)


def plain(record: Record) -> list[tuple[str, bytes | None]]:
    return [
        (name if isinstance(name, str) else name.decode(), content)
        for name, content in record.headers
    ]
