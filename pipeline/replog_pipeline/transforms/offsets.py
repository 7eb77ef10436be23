"""What the batch headers of one partition say of its offsets: holes, offsets that come twice,
disorder, batches in the wrong file.

1. Offsets of a log grow from batch to batch; without compaction they do so without a hole, and a
   batch has as many records as offsets.
2. A segment holds the offsets from the number in its name up to its successor's.

Source: Kafka's UnifiedLog and LogValidator. Not here: which offsets are of interest (`jobs.audit`
cuts at log start and high watermark).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from replog_pipeline.decoder.headers import last_offsets
from replog_pipeline.transforms.faults import Fault
from replog_pipeline.transforms.producers import Table
from twisted_broker.wire.records import DELETE_HORIZON_FLAG


def offset_faults(table: Table, *, compacted: bool) -> Iterator[Fault]:
    """Offsets that are missing, come twice or go back. Missing ones are none in a compacted log."""
    base = table["baseOffset"]
    due = np.maximum.accumulate(last_offsets(table) + 1)[:-1]
    for at in np.flatnonzero(base[1:] > due) + 1 if not compacted else ():
        yield Fault("gap", int(at), f"offsets {due[at - 1]}..{base[at] - 1} are missing")
    for at in np.flatnonzero(base[1:] < due) + 1:
        kind = "order" if base[at] < base[at - 1] else "duplicate"
        yield Fault(kind, int(at), f"offsets from {base[at]} on come after {due[at - 1] - 1}")


def count_faults(table: Table, *, compacted: bool) -> Iterator[Fault]:
    """Headers whose record count does not fit the offsets they span."""
    span = table["lastOffsetDelta"].astype(np.int64) + 1
    wrong = (
        (table["recordCount"] > span)
        | (table["recordCount"] < 0)
        | (table["recordCount"] != span if not compacted else False)
    )
    for at in np.flatnonzero(wrong):
        yield Fault("count", int(at), f"{table['recordCount'][at]} records for {span[at]} offsets")


def misplaced(table: Table, base: int, upto: int | None) -> Iterator[Fault]:
    """Batches whose offsets are not those of a segment named `base` with a successor named
    `upto`.
    """
    wrong = (table["baseOffset"] < base) | (
        last_offsets(table) >= upto if upto is not None else False
    )
    for at in np.flatnonzero(wrong):
        yield Fault(
            "order", int(at), f"offset {table['baseOffset'][at]} does not belong into this segment"
        )


def shows_compaction(table: Table) -> bool:
    """Whether a cleaner has been here: it alone takes records out of batches and sets a delete
    horizon.
    """
    return bool(
        (
            (table["recordCount"] < table["lastOffsetDelta"] + 1)
            | (table["attributes"] & DELETE_HORIZON_FLAG != 0)
        ).any()
    )
