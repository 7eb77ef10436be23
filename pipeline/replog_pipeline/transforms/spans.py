"""Rows of topics as spans of offsets: the gaps, repetitions and disorder of records that came over
the wire.

1. Rows of a partition arrive in order within a Spark partition; a span is what follows on, and it
   ends where another topic or partition begins.
2. Of a span stays where it begins and ends, how many records it has, and its first faults of each
   kind: few rows. The last one of a kind also says how many more there are. Gaps up to `allowed`
   offsets are no faults: one row (HOLE) has the sum of their offsets. Nor are gaps that control
   batches fill, as somebody else knows (`ITaken`): one row (MARKER) has the sum of theirs.
3. Spans of one partition, sorted, must follow on as records must (`joined`). What is out of order
   between two Spark partitions cannot be known.

Not here: which offsets ought to be there (`jobs.audit.topics` asks the cluster).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from replog_pipeline.flat_rows import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN: Final = 20
SPAN = (
    "kind string, topic string, partition int, first bigint, last bigint, records bigint, "
    "more bigint, more_records bigint"
)
SPANNED, HOLE, MARKER, GAP, DUPLICATE, ORDER = "span", "hole", "marker", "gap", "duplicate", "order"


class ITaken(Protocol):
    """Knows the offsets that no consumer is given."""

    def are_all(
        self, topic: str, partition: int, first: NDArray[np.int64], last: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """For each of these ranges, ascending, whether control batches take all of it."""
        ...

    def close(self) -> None: ...


class Span(NamedTuple):
    """A row of `SPAN`: `first` and `last` offsets with `records` records (kind SPANNED), or of a
    fault: missing, repeated, or gone back.

    `more` faults of its kind are not listed, of `more_records` offsets together.
    """

    kind: str
    topic: str
    partition: int
    first: int
    last: int
    records: int
    more: int = 0
    more_records: int = 0


def transform(
    rows: DataFrame, allowed: Mapping[str, int], taken: Callable[[], ITaken]
) -> DataFrame:
    """Rows with topic, partition and offset to rows of `SPAN`; `allowed`: topic -> the widest gap
    that is no fault, in offsets (none: 0).

    `taken` is called in each task.
    """
    return rows.select("topic", "partition", "offset").mapInArrow(
        lambda batches: spans(batches, allowed, taken()), SPAN
    )


def spans(
    batches: Iterable[pa.RecordBatch], allowed: Mapping[str, int], taken: ITaken
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: what comes next to one another is one span."""
    found: list[_Open] = []
    for batch in batches:
        for topic, partition, offsets in runs(batch):
            if not found or (found[-1].span.topic, found[-1].span.partition) != (topic, partition):
                found.append(_Open(topic, partition, offsets, allowed.get(topic, 0), taken))
            found[-1].extend(offsets)
    taken.close()
    rows = [span._asdict() for each in found for span in each.rows()]
    yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(SPAN))


class _Open:
    """A span that grows, and its faults: of each kind the first ones, and one that stands for
    all others.
    """

    def __init__(
        self, topic: str, partition: int, offsets: NDArray[np.int64], allowed: int, taken: ITaken
    ) -> None:
        self.allowed, self.taken = allowed, taken
        self.markers = Span(MARKER, topic, partition, int(offsets[0]), int(offsets[0]), 0)
        self.holes = Span(HOLE, topic, partition, int(offsets[0]), int(offsets[0]), 0)
        self.span = Span(SPANNED, topic, partition, int(offsets[0]), int(offsets[0]), 0)
        self.latest: int | None = None
        self.faults: dict[str, list[Span]] = {GAP: [], DUPLICATE: [], ORDER: []}

    def extend(self, offsets: NDArray[np.int64]) -> None:
        chain = offsets if self.latest is None else np.concatenate([[self.latest], offsets])
        step = np.diff(chain)
        for kind, found in (
            (GAP, self._gaps(chain, step)),
            (DUPLICATE, step == 0),
            (ORDER, step < 0),
        ):
            self._add(kind, chain, np.flatnonzero(found))
        accepted = int((step[(step > 1) & (step <= self.allowed + 1)] - 1).sum())
        self.holes = self.holes._replace(
            records=self.holes.records + accepted, last=int(offsets[-1])
        )
        lowest, highest = (
            min(self.span.first, int(offsets.min())),
            max(self.span.last, int(offsets.max())),
        )
        self.span = self.span._replace(
            first=lowest, last=highest, records=self.span.records + len(offsets)
        )
        self.latest = int(offsets[-1])

    def _gaps(self, chain: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.bool_]:
        """After which offsets something is missing that is no control batch's."""
        gaps = step > self.allowed + 1
        at = np.flatnonzero(gaps)
        if len(at):
            first, last = chain[at] + 1, chain[at + 1] - 1
            taken = self.taken.are_all(self.span.topic, self.span.partition, first, last)
            gaps[at[taken]] = False
            count = int((last - first + 1)[taken].sum())
            self.markers = self.markers._replace(
                records=self.markers.records + count, last=int(chain[-1])
            )
        return gaps

    def _add(self, kind: str, chain: NDArray[np.int64], at: NDArray[np.int64]) -> None:
        """Faults of one kind: what follows on `chain[at]` is not the next offset."""
        listed = self.faults[kind]
        room = SHOWN - len(listed)
        before, after = chain[at], chain[at + 1]
        first, last = (before + 1, after - 1) if kind == GAP else (after, after)
        names = kind, self.span.topic, self.span.partition
        listed += [
            Span(*names, int(a), int(b), int(b - a + 1))
            for a, b in zip(first[:room], last[:room], strict=True)
        ]
        if len(at) > room:
            rest = int((last[room:] - first[room:] + 1).sum())
            listed[-1] = listed[-1]._replace(
                more=listed[-1].more + len(at) - room, more_records=listed[-1].more_records + rest
            )

    def rows(self) -> list[Span]:
        accepted = [each for each in (self.holes, self.markers) if each.records]
        return [
            self.span,
            *accepted,
            *(fault for listed in self.faults.values() for fault in listed),
        ]


def runs(batch: pa.RecordBatch) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    """(topic, partition, offsets) of rows of the same partition next to one another."""
    if not batch.num_rows:
        return
    topics, partitions, offsets = (
        batch.column(0),
        batch.column(1).to_numpy(),
        batch.column(2).to_numpy(),
    )
    changes = pc.not_equal(topics[1:], topics[:-1]).to_numpy(zero_copy_only=False) | (
        partitions[1:] != partitions[:-1]
    )
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(offsets)]
    for start, end in pairwise(starts):
        yield topics[start].as_py(), int(partitions[start]), offsets[start:end]


def joined(found: Iterable[Span]) -> list[Span]:
    """Faults within and between the spans of one partition, in order of offsets; gaps between
    spans of any width.
    """
    all_of_them = list(found)
    faults = [span for span in all_of_them if span.kind not in (SPANNED, HOLE, MARKER)]
    end: int | None = None
    for span in sorted(
        (span for span in all_of_them if span.kind == SPANNED), key=lambda span: span.first
    ):
        if end is not None and span.first != end:
            kind, first, last = (
                (GAP, end, span.first - 1)
                if span.first > end
                else (DUPLICATE, span.first, min(end - 1, span.last))
            )
            faults.append(Span(kind, span.topic, span.partition, first, last, last - first + 1))
        end = max(end or 0, span.last + 1)
    return sorted(faults, key=lambda span: (span.first, span.kind))
