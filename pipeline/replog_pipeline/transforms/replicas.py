"""Where replicas of a partition part: their batch headers laid side by side.

1. Replicas hold the same batches: a follower appends what it fetched, byte for byte. Two batches
   are the same when base offset, last offset delta, leader epoch, CRC and length agree
   (`IDENTITY`); what the CRC covers is then the same too, as far as 32 bits can say.
2. Tables are in the order of the files and stand for the same range of offsets; a cleaned range has
   no business here (cleaners act each in its own time). A damaged log may hold a batch twice, or
   batches out of order: how often and in which order counts too.
3. The first replica is the measure. Of a difference the first offset is reported, and how many
   batches of a replica are not the measure's.

Source: RL 9; the intent of Kafka's ReplicaVerificationTool. Not here: which range may be compared
(`jobs.compare`), damage within a batch (audit).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.void]
IDENTITY: Final = ("baseOffset", "lastOffsetDelta", "leaderEpoch", "crc", "length")
NONE: Final = -1


class Parting(NamedTuple):
    """Where replicas part: the first offset that is not the same in all; what each has there; how
    much differs.

    `rows` per replica: the row that holds `offset`, or NONE; `again`: the next row that holds it
    too, or NONE. `differing` per replica: base offsets at which it and the first have not the same
    batches. `common`: the last row of the first replica before all of that, or NONE.
    """

    offset: int
    rows: tuple[int, ...]
    again: tuple[int, ...]
    differing: tuple[int, ...]
    common: int


def within(table: Table, start: int, end: int) -> Table:
    """The batches that begin at `start` or later and end before `end`."""
    bases = table["baseOffset"]
    found: Table = table[(bases >= start) & (bases + table["lastOffsetDelta"] < end)]
    return found


def parting(tables: Sequence[Table]) -> Parting | None:
    """The first difference between the tables, each against the first; None when all hold the
    same batches.
    """
    offsets, differing = [], [0]
    for table in tables[1:]:
        others = _odd(tables[0], table)
        differing.append(len(others))
        if len(others):
            offsets.append(int(others.min()))
    if not offsets:
        return None
    offset = min(offsets)
    holding = [_holding(table, offset) for table in tables]
    rows, again = (
        tuple(int(found[nth]) if len(found) > nth else NONE for found in holding) for nth in (0, 1)
    )
    before = np.flatnonzero(tables[0]["baseOffset"] < offset)
    return Parting(offset, rows, again, tuple(differing), int(before[-1]) if len(before) else NONE)


def _odd(ours: Table, theirs: Table) -> NDArray[np.int64]:
    """The base offsets at which the two do not hold the same batches, as often and in the same
    order.
    """
    if len(ours) == len(theirs) and all(
        np.array_equal(ours[name], theirs[name]) for name in IDENTITY
    ):
        return np.empty(0, np.int64)
    one, other = (table[np.argsort(table["baseOffset"], kind="stable")] for table in (ours, theirs))
    bases = np.union1d(one["baseOffset"], other["baseOffset"])
    as_often = _times(one, bases) == _times(other, bases)
    # Of the base offsets that both have equally often the rows lie side by side.
    mine, others = (
        table[as_often[np.searchsorted(bases, table["baseOffset"])]] for table in (one, other)
    )
    unlike = np.zeros(len(mine), np.bool_)
    for name in IDENTITY:
        unlike |= mine[name] != others[name]
    odd = np.union1d(bases[~as_often], mine["baseOffset"][unlike])
    if len(odd):
        return odd
    moved = ours["baseOffset"] != theirs["baseOffset"]  # the same batches, so it is their order
    return np.union1d(ours["baseOffset"][moved], theirs["baseOffset"][moved])


def _times(table: Table, bases: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many batches of a sorted table begin at each of these."""
    found = table["baseOffset"]
    return np.searchsorted(found, bases, side="right") - np.searchsorted(found, bases, side="left")


def _holding(table: Table, offset: int) -> NDArray[np.int64]:
    """The rows of the batches that hold the offset."""
    base = table["baseOffset"]
    return np.flatnonzero((base <= offset) & (base + table["lastOffsetDelta"] >= offset))
