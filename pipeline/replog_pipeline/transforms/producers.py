"""What the batch headers of one partition say of its producers: sequences, epochs and transactions.

1. A producer's batches under one epoch carry sequences without a gap (modulo 2^31); a newer epoch
   begins at 0; an older one does not come again.
2. An end marker is a control batch of a producer and ends its transaction; it may bring a newer
   epoch (the coordinator's abort, and every end since transactions of version 2). Batches of a
   producer between two markers are one transaction.
3. A producer's first batch must be sequence 0 only in a partition that still has its beginning and
   no holes.
4. A compacted log may have lost whole batches: a sequence may jump there, but not go back.

Source: Kafka's ProducerAppendInfo and LogCleaner. Not here: whether a marker commits or aborts (its
record says, not its header); coordinator epochs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replog_pipeline.transforms.faults import Fault
from twisted_broker.wire.records import CONTROL_FLAG, TRANSACTIONAL_FLAG

Table = NDArray[np.void]
Mask = NDArray[np.bool_]
_SEQUENCES: Final = 1 << 31
_FAR: Final = 1 << 30  # a step beyond half of the circle is a step back


class Open(NamedTuple):
    """A transaction without an end marker: rows of its first and last batch."""

    first: int
    last: int


def sequence_faults(table: Table, *, complete: bool, compacted: bool) -> Iterator[Fault]:
    """Sequences that jump or come again.

    `complete`: nothing was deleted at the log's beginning; `compacted`: batches may be missing
    anywhere.
    """
    rows = _by_producer(
        table,
        np.flatnonzero(
            (table["producerId"] >= 0) & ~is_control(table) & (table["baseSequence"] >= 0)
        ),
    )
    found = table[rows]
    first, older = _first_of_producer(found), _older(found)
    begins = first | older
    begins[1:] |= found["producerEpoch"][1:] != found["producerEpoch"][:-1]
    sequence, due = _unrolled(found, begins)
    step = sequence - due
    wrong = (step != 0) & ~older
    if compacted or not complete:
        wrong &= ~first
    if compacted:
        wrong &= step < 0
    for at in np.flatnonzero(wrong):
        yield _sequence_fault(found[at], int(rows[at]), int(due[at] % _SEQUENCES), int(step[at]))


def _unrolled(found: Table, begins: Mask) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The base sequence of each batch counted on over 2^31, and the one due: after the highest
    so far of its producer and epoch.
    """
    base = found["baseSequence"].astype(np.int64)
    step = np.diff(base, prepend=0)
    step[begins] = 0
    wraps = np.cumsum((step < -_FAR).astype(np.int64) - (step > _FAR))
    run = np.cumsum(begins)
    at = np.flatnonzero(begins)
    base += _SEQUENCES * (wraps - wraps[at][run - 1])
    after = base + found["lastOffsetDelta"] + 1
    # Runs are kept apart by a distance that no sequence reaches, so that one accumulation serves
    # all.
    apart = run * (_SEQUENCES << 8)
    due = np.zeros(len(base), np.int64)
    due[1:] = (np.maximum.accumulate(after + apart) - apart)[:-1]
    due[begins] = 0
    return base, due


def _sequence_fault(batch: np.void, row: int, expected: int, step: int) -> Fault:
    who = f"producer {batch['producerId']} epoch {batch['producerEpoch']}"
    if step < 0:
        return Fault(
            "duplicate", row, f"{who} repeats sequence {batch['baseSequence']}, {expected} is due"
        )
    return Fault(
        "sequence", row, f"{who} jumps to sequence {batch['baseSequence']}, {expected} is due"
    )


def epoch_faults(table: Table) -> Iterator[Fault]:
    """Batches under an older epoch than the batch before them: of their producer, or of the
    partition's leader.
    """
    rows = _by_producer(table, np.flatnonzero(table["producerId"] >= 0))
    found = table[rows]
    for at in np.flatnonzero(_older(found)):
        after, before = found["producerEpoch"][at], found["producerEpoch"][at - 1]
        yield Fault(
            "epoch",
            int(rows[at]),
            f"producer {found['producerId'][at]} writes under epoch {after} after {before}",
        )
    epochs = table["leaderEpoch"]
    for at in np.flatnonzero(epochs[1:] < epochs[:-1]) + 1:
        yield Fault("epoch", int(at), f"leader epoch {epochs[at]} after {epochs[at - 1]}")


def transactions(table: Table) -> tuple[list[Open], list[Fault]]:
    """The transactions that are still open at the table's end, and the faults of torn ones."""
    writers = np.unique(table["producerId"][is_transactional(table)])
    rows = _by_producer(table, np.flatnonzero(np.isin(table["producerId"], writers[writers >= 0])))
    if not len(rows):
        return [], []
    found = table[rows]
    begins = _first_of_producer(found)
    begins[1:] |= is_control(found)[:-1]
    starts = np.flatnonzero(begins)
    opened: list[Open] = []
    torn: list[Fault] = []
    for run in _unusual(found, starts):
        at = np.arange(starts[run], starts[run + 1] if run + 1 < len(starts) else len(found))
        data = at[~is_control(found[at])]
        transactional = data[is_transactional(found[data])]
        torn.extend(_torn(found, rows, data, transactional))
        if len(data) == len(at):
            opened.append(Open(int(rows[transactional[0]]), int(rows[transactional[-1]])))
    return opened, torn


def _unusual(found: Table, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which runs need a look: those with records of a transaction that have no end, several
    epochs, or batches outside of the transaction too.
    """
    control, inside = is_control(found), is_transactional(found)
    epochs = found["producerEpoch"].astype(np.int64)
    ended = np.maximum.reduceat(control, starts)
    highest = np.maximum.reduceat(np.where(inside, epochs, -1), starts)
    lowest = np.minimum.reduceat(np.where(inside, epochs, 1 << 16), starts)
    outside = np.maximum.reduceat(~inside & ~control, starts)
    return np.flatnonzero((highest >= 0) & (~ended | (highest != lowest) | outside))


def _torn(
    found: Table, rows: NDArray[np.int64], data: NDArray[np.int64], transactional: NDArray[np.int64]
) -> Iterator[Fault]:
    """Batches that do not belong inside the transaction which their producer has open."""
    who = f"producer {found['producerId'][data[0]]}"
    epochs = found["producerEpoch"][transactional]
    for at in np.flatnonzero(epochs[1:] != epochs[:-1]) + 1:
        problem = (
            f"{who} begins a transaction under epoch {epochs[at]}, that of epoch "
            f"{epochs[at - 1]} has no end"
        )
        yield Fault("torn transaction", int(rows[transactional[at]]), problem)
    plain = data[(data > transactional[0]) & ~is_transactional(found[data])]
    if len(plain):
        yield Fault(
            "torn transaction",
            int(rows[plain[0]]),
            f"{who} has a batch outside of any transaction within its open one",
        )


def _by_producer(table: Table, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows[np.argsort(table["producerId"][rows], kind="stable")]


def _first_of_producer(found: Table) -> Mask:
    first = np.ones(len(found), np.bool_)
    first[1:] = found["producerId"][1:] != found["producerId"][:-1]
    return first


def _older(found: Table) -> Mask:
    older = np.zeros(len(found), np.bool_)
    older[1:] = (found["producerId"][1:] == found["producerId"][:-1]) & (
        found["producerEpoch"][1:] < found["producerEpoch"][:-1]
    )
    return older


def is_control(table: Table) -> Mask:
    """Which batches are control batches."""
    return np.asarray(table["attributes"] & CONTROL_FLAG != 0)


def is_transactional(table: Table) -> Mask:
    """Which batches hold records of a transaction (end markers are not records of it)."""
    return np.asarray((table["attributes"] & TRANSACTIONAL_FLAG != 0) & ~is_control(table))
