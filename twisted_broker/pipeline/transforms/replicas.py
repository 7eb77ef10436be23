"""Where replicas of a partition part: their batch headers laid side by side.

1. Replicas hold the same batches: a follower appends what it fetched, byte for byte. Two batches
   are the same when base offset, last offset delta, leader epoch, CRC and length agree
   (`IDENTITY`); what the CRC covers is then the same too, as far as 32 bits can say.
2. Tables are sorted by base offset and stand for the same range of offsets; a cleaned range has no
   business here (cleaners act each in its own time).
3. The first replica is the measure. Of a difference the first offset is told, and how many batches
   of a replica are not the measure's.

Source: RL 9; the intent of Kafka's ReplicaVerificationTool. Left out: which range may be compared
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

    `rows` per replica: the row that holds `offset`, or NONE. `differing` per replica: base offsets
    at which it and the first have not the same batch. `common`: the last row of the first replica
    before all of that, or NONE.
    """

    offset: int
    rows: tuple[int, ...]
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
    common = int(np.searchsorted(tables[0]["baseOffset"], offset)) - 1
    return Parting(
        offset, tuple(_holding(table, offset) for table in tables), tuple(differing), common
    )


def _odd(ours: Table, theirs: Table) -> NDArray[np.int64]:
    """The base offsets at which the two do not hold the same batch."""
    if len(ours) == len(theirs) and all(
        np.array_equal(ours[name], theirs[name]) for name in IDENTITY
    ):
        return np.empty(0, np.int64)
    _, mine, other = np.intersect1d(ours["baseOffset"], theirs["baseOffset"], return_indices=True)
    same = np.ones(len(mine), np.bool_)
    for name in IDENTITY:
        same &= ours[name][mine] == theirs[name][other]
    agreed = ours["baseOffset"][mine][same]
    return np.setdiff1d(np.union1d(ours["baseOffset"], theirs["baseOffset"]), agreed)


def _holding(table: Table, offset: int) -> int:
    """The row of the batch that holds the offset, NONE if there is none."""
    row = int(np.searchsorted(table["baseOffset"], offset, side="right")) - 1
    holds = (
        row >= 0 and int(table["baseOffset"][row]) + int(table["lastOffsetDelta"][row]) >= offset
    )
    return row if holds else NONE
