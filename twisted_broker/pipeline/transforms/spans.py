"""Rows of topics as spans of offsets: the gaps, repetitions and disorder of records that came over the wire.

1. Rows of a partition arrive in order within a Spark partition; a span is what follows on, and it ends where another topic or partition begins.
2. Of a span stays where it begins and ends, how many records it has, how many offsets are missing, and its first faults: few rows.
3. Spans of one partition, sorted, must follow on as records must (`joined`). What is out of order between two Spark partitions cannot be known.

Left out: which offsets ought to be there (`jobs.audit_rows` asks the cluster).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from twisted_broker.pipeline.flat_rows import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN: Final = 20
SPAN = "kind string, topic string, partition int, first bigint, last bigint, records bigint"
SPANNED, GAP, DUPLICATE, ORDER = "span", "gap", "duplicate", "order"


class Span(NamedTuple):
    """A row of `SPAN`: `first` and `last` offsets with `records` records (kind SPANNED), or of a fault: missing, repeated, or gone back."""

    kind: str
    topic: str
    partition: int
    first: int
    last: int
    records: int


def transform(rows: DataFrame) -> DataFrame:
    """Rows with topic, partition and offset to rows of `SPAN`."""
    return rows.select("topic", "partition", "offset").mapInArrow(spans, SPAN)


def spans(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: what comes next to one another is one span."""
    found: list[Span] = []
    open_span: Span | None = None
    for batch in batches:
        for topic, partition, offsets in runs(batch):
            if open_span is not None and (open_span.topic, open_span.partition) == (topic, partition):
                found.extend(_between(open_span, int(offsets[0])))
            else:
                found.extend([open_span] if open_span else [])
                open_span = Span(SPANNED, topic, partition, int(offsets[0]), int(offsets[0]), 0)
            found.extend(_faults(topic, partition, offsets))
            lowest, highest = min(open_span.first, int(offsets.min())), max(open_span.last, int(offsets.max()))
            open_span = open_span._replace(first=lowest, last=highest, records=open_span.records + len(offsets))
    found.extend([open_span] if open_span else [])
    schema = arrow_schema(SPAN)
    yield pa.RecordBatch.from_pylist([span._asdict() for span in _first_ones(found)], schema=schema)


def runs(batch: pa.RecordBatch) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    """(topic, partition, offsets) of rows of the same partition next to one another."""
    if not batch.num_rows:
        return
    topics, partitions, offsets = batch.column(0), batch.column(1).to_numpy(), batch.column(2).to_numpy()
    changes = pc.not_equal(topics[1:], topics[:-1]).to_numpy(zero_copy_only=False) | (partitions[1:] != partitions[:-1])
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(offsets)]
    for start, end in pairwise(starts):
        yield topics[start].as_py(), int(partitions[start]), offsets[start:end]


def _faults(topic: str, partition: int, offsets: NDArray[np.int64]) -> Iterator[Span]:
    step = np.diff(offsets)
    for at in np.flatnonzero(step != 1):
        yield _fault(topic, partition, int(offsets[at]), int(offsets[at + 1]))


def _between(span: Span, offset: int) -> Iterator[Span]:
    if span.records and offset != span.last + 1:
        yield _fault(span.topic, span.partition, span.last, offset)


def _fault(topic: str, partition: int, before: int, offset: int) -> Span:
    """What it is when `offset` follows on `before` and is not the next."""
    if offset > before:
        return Span(GAP, topic, partition, before + 1, offset - 1, offset - before - 1)
    return Span(DUPLICATE if offset == before else ORDER, topic, partition, offset, offset, 1)


def _first_ones(found: Sequence[Span]) -> Iterator[Span]:
    """All spans, and of each partition's faults the first of a kind; the last of these stands for the rest with their records."""
    rest: dict[tuple[str, str, int], list[Span]] = {}
    for span in found:
        if span.kind == SPANNED:
            yield span
        else:
            rest.setdefault(span[:3], []).append(span)
    for same in rest.values():
        yield from same[: SHOWN - 1]
        if len(same) >= SHOWN:
            others = same[SHOWN - 1 :]
            yield others[0]._replace(last=others[-1].last, records=sum(span.records for span in others))


def joined(found: Iterable[Span]) -> list[Span]:
    """Faults within and between the spans of one partition, in order of offsets."""
    all_of_them = list(found)
    faults = [span for span in all_of_them if span.kind != SPANNED]
    end: int | None = None
    for span in sorted((span for span in all_of_them if span.kind == SPANNED), key=lambda span: span.first):
        if end is not None and span.first != end:
            kind, first, last = (GAP, end, span.first - 1) if span.first > end else (DUPLICATE, span.first, min(end - 1, span.last))
            faults.append(Span(kind, span.topic, span.partition, first, last, last - first + 1))
        end = max(end or 0, span.last + 1)
    return sorted(faults, key=lambda span: (span.first, span.kind))
