"""The chain of records inside batches, walked in lock-step: one numpy step moves every batch of a
group to its next record.

1. Batches are lanes, longest first, so that those still walking are a prefix; a lane has as many
   steps as its batch has records.
2. When few lanes are left a plain loop ends them: a step of numpy costs as much as some twenty of
   its rounds. So the work is bounded by the bytes, whatever a hostile batch says.
3. A lane that goes wrong is sent `BEYOND`; it is found because it does not end where its section
   ends.
4. Starts of all records are correct only if `walk` returned no bad lane.

Source: our own. Not here: what is in a record
(`fields`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from twisted_broker.wire.record_walk import read_varint
from twisted_broker.wire.records import InvalidRecordError

from .varints import BEYOND, SHORT, Bytes, Ints, next_two

FEW_LANES: Final = 24
_STEP: Final = np.where(
    (SHORT & 3 > 0) & (SHORT >> 2 >= 0), (SHORT >> 2) + (SHORT & 3), 0
)  # 0: look closer
_STEP_BY_KEY: Final[list[int]] = _STEP.tolist()


def walk(data: Bytes, starts: Ints, ends: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """The byte of each record's length, in order, for sections of `counts` records at
    `starts`..`ends`; and the indexes of broken sections.

    A count must have been checked against its section's bytes.
    """
    order = np.argsort(-counts, kind="stable")
    position, slot = starts[order], (np.cumsum(counts) - counts)[order]
    found = np.empty(int(counts.sum()), np.int64)
    done = _in_lockstep(data, position, slot, found, counts[order])
    text = data.data
    for lane in range(FEW_LANES):
        if lane < len(order) and counts[order[lane]] > done:
            position[lane] = _alone(
                text, int(position[lane]), found, int(slot[lane]), int(counts[order[lane]]) - done
            )
    return found, order[position != ends[order]]


def _in_lockstep(data: Bytes, position: Ints, slot: Ints, found: Ints, counts: Ints) -> int:
    """Move all lanes on while more than a few of them walk; the number of steps made.

    Changes `position`, `slot` and `found`.
    """
    steps = int(counts[FEW_LANES]) if len(counts) > FEW_LANES else 0
    walking = len(counts) - np.searchsorted(counts[::-1], np.arange(1, steps + 1))
    for active in walking.tolist():
        here, there = position[:active], slot[:active]
        found[there] = here
        there += 1
        step = _STEP.take(next_two(data, here), mode="clip")
        if np.count_nonzero(step) != active:
            _look_closer(data, here, step)
        here += step
    return steps


def _look_closer(data: Bytes, position: Ints, step: Ints) -> None:
    """Fill in the steps over records with a length of three bytes or more."""
    text = data.data
    for lane in np.flatnonzero(step == 0).tolist():
        here = int(position[lane])
        step[lane] = _next(text, here) - here


def _next(text: memoryview, position: int) -> int:
    """Where the record after the one at `position` begins; `BEYOND` when its length is none."""
    try:
        length, body = read_varint(text, position)
    except (InvalidRecordError, IndexError):
        return BEYOND
    return body + length if length >= 0 else BEYOND


def _alone(text: memoryview, position: int, found: Ints, slot: int, count: int) -> int:
    """Walk one lane to its end: the position there."""
    starts: list[int] = []
    end = len(text) - 2
    for _ in range(count):
        starts.append(position)
        short = _STEP_BY_KEY[text[position] | text[position + 1] << 8] if position < end else 0
        position = position + short if short else _next(text, position)
        if position >= BEYOND:
            return BEYOND
    found[slot : slot + count] = starts
    return position
