"""Batches of states of offsets, old and new, made one list. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `combine`.

1. Each offset has the state of the batch with the greatest (count, state) of those that hold it: a
   record is delivered again before it is finished for good.
2. The result is sorted, without overlaps; neighbours that are alike are one batch; nothing lies
   below the start offset. Batches that hold no offset count for nothing.

Source: Apache Kafka 4.3.1 `PersisterStateBatchCombiner`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise
from operator import attrgetter

from twisted_broker.coordinator.share_state.values import UNKNOWN_OFFSET, StateBatch

_FIRST_OFFSET, _LAST_OFFSET = attrgetter("first_offset"), attrgetter("last_offset")


def combine(
    so_far: tuple[StateBatch, ...], new: Sequence[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """`so_far`: the result of an earlier call."""
    new = [each for each in new if each.first_offset <= each.last_offset]
    if new:
        # Only what the new ones touch is looked at: a long list costs little more than a short one.
        lowest = min(each.first_offset for each in new) - 1
        highest = max(each.last_offset for each in new) + 1
        begin = bisect_left(so_far, lowest, key=_LAST_OFFSET)
        end = bisect_right(so_far, highest, key=_FIRST_OFFSET)
        so_far = so_far[:begin] + _merged((*so_far[begin:end], *new)) + so_far[end:]
    if start_offset == UNKNOWN_OFFSET:
        return so_far
    begin = bisect_left(so_far, start_offset, key=_LAST_OFFSET)
    if begin == len(so_far) or so_far[begin].first_offset >= start_offset:
        return so_far[begin:]
    return so_far[begin]._replace(first_offset=start_offset), *so_far[begin + 1 :]


def _merged(batches: Sequence[StateBatch]) -> tuple[StateBatch, ...]:
    batches = sorted(batches)
    borders = sorted(
        {each.first_offset for each in batches} | {each.last_offset + 1 for each in batches}
    )
    combined: list[StateBatch] = []
    # The greatest first; those that have ended are dropped when they come up.
    open_batches: list[tuple[int, int, int]] = []
    position = 0
    for begin, end in pairwise(borders):
        while position < len(batches) and batches[position].first_offset <= begin:
            each = batches[position]
            heappush(open_batches, (-each.delivery_count, -each.delivery_state, each.last_offset))
            position += 1
        while open_batches and open_batches[0][2] < begin:
            heappop(open_batches)
        if open_batches:
            _append(combined, begin, end - 1, -open_batches[0][1], -open_batches[0][0])
    return tuple(combined)


def _append(combined: list[StateBatch], first: int, last: int, state: int, count: int) -> None:
    if combined:
        before = combined[-1]
        if before[1:] == (first - 1, state, count):
            first = before.first_offset
            combined.pop()
    combined.append(StateBatch(first, last, state, count))
