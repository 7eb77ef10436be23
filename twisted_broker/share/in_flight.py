"""The states of the records between a share partition's start and end offset.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `Run` (neighbours of one state), `InFlightBatch` (records acquired at once, as runs) and
`InFlight`, the batches by their offsets.

1. The runs of a batch cover it without holes or overlaps; batches do not overlap. Between batches
   may be holes: offsets that nobody acquired.
2. A batch is one run until something happens to a part of it. Neighbours become one run again
   when they are equal (`merge`): no object for each record where one for all will do.
3. A run of a write under way is never split, and never joined with another.

Source: GN 3.50; Apache Kafka 4.3.1 `InFlightBatch`, `InFlightState`, which keep one object for each
record of a batch as soon as two differ. Not here: what may become what (`share_partition.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = 0, 1, 2, 4
NOBODY = ""
_first = attrgetter("first")


class Run:
    """Offsets `first` to `last`. While `pending` its `state` is being persisted, and `member` and
    `lock_ends_ms` are still those of the acquisition, should the write fail.
    """

    __slots__ = ("count", "first", "last", "lock_ends_ms", "member", "pending", "state")

    def __init__(
        self,
        first: int,
        last: int,
        state: int,
        count: int,
        member: str = NOBODY,
        lock_ends_ms: int = 0,
    ) -> None:
        self.first, self.last, self.state, self.count = first, last, state, count
        self.member, self.lock_ends_ms = member, lock_ends_ms
        self.pending = False

    @property
    def is_free(self) -> bool:
        """Whether it may be acquired."""
        return self.state == AVAILABLE and not self.pending

    @property
    def is_held(self) -> bool:
        """Whether its holder may acknowledge it, and its lock may end."""
        return self.state == ACQUIRED and not self.pending

    @property
    def is_finished(self) -> bool:
        return self.state >= ACKNOWLEDGED

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def size_from(self, offset: int) -> int:
        """How many of its offsets are not below `offset`."""
        return max(0, self.last - max(self.first, offset) + 1)

    def acquire(self, member: str, lock_ends_ms: int) -> None:
        self.state, self.member, self.lock_ends_ms = ACQUIRED, member, lock_ends_ms
        self.count += 1

    def leave(self, state: int) -> None:
        """Nobody holds it any more."""
        self.state, self.member, self.lock_ends_ms = state, NOBODY, 0

    def equals(self, other: Run) -> bool:
        return (
            self.state == other.state
            and self.count == other.count
            and self.lock_ends_ms == other.lock_ends_ms
            and self.member == other.member
            and not self.pending
            and not other.pending
        )

    def __repr__(self) -> str:
        pending = "?" if self.pending else ""
        return f"<{self.first}-{self.last} {self.state}{pending} x{self.count} {self.member}>"


class InFlightBatch:
    """Offsets `first` to `last`."""

    __slots__ = ("first", "last", "runs")

    def __init__(self, first: int, last: int, runs: list[Run]) -> None:
        self.first, self.last, self.runs = first, last, runs

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def within(self, first: int, last: int) -> list[Run]:
        """The runs that have offsets between `first` and `last`."""
        runs = self.runs
        if len(runs) == 1:
            return runs[:] if runs[0].first <= last and runs[0].last >= first else []
        low = max(0, bisect_right(runs, first, key=_first) - 1)
        found = runs[low : bisect_right(runs, last, key=_first)]
        return found[1:] if found and found[0].last < first else found

    def cut(self, run: Run, first: int, last: int) -> Run:
        """The part of `run` between `first` and `last`, as a run of its own."""
        assert not run.pending
        if run.first >= first and run.last <= last:
            return run
        row = bisect_left(self.runs, run.first, key=_first)
        pieces = []
        if run.first < first:
            pieces.append(self._copy(run, run.first, first - 1))
        part = self._copy(run, max(first, run.first), min(last, run.last))
        pieces.append(part)
        if run.last > last:
            pieces.append(self._copy(run, last + 1, run.last))
        self.runs[row : row + 1] = pieces
        return part

    @staticmethod
    def _copy(run: Run, first: int, last: int) -> Run:
        return Run(first, last, run.state, run.count, run.member, run.lock_ends_ms)

    def merge(self) -> None:
        """Makes one of neighbours that are equal."""
        if len(self.runs) == 1:
            return
        before = self.runs[0]
        merged = [before]
        for run in self.runs[1:]:
            if run.equals(before):
                before.last = run.last
            else:
                merged.append(run)
                before = run
        self.runs = merged


class InFlight:
    """All batches, in the order of their offsets."""

    __slots__ = ("_firsts", "batches")

    def __init__(self) -> None:
        self.batches: list[InFlightBatch] = []
        self._firsts: list[int] = []

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[InFlightBatch]:
        return iter(self.batches)

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last

    def add(self, batch: InFlightBatch) -> None:
        row = bisect_left(self._firsts, batch.first)
        self._firsts.insert(row, batch.first)
        self.batches.insert(row, batch)

    def remove_first(self, count: int) -> None:
        del self._firsts[:count]
        del self.batches[:count]

    def floor(self, offset: int) -> InFlightBatch | None:
        """The last batch that does not begin behind `offset`."""
        row = bisect_right(self._firsts, offset) - 1
        return self.batches[row] if row >= 0 else None

    def beginning(self, first: int, last: int) -> list[InFlightBatch]:
        """The batches that begin between `first` and `last`."""
        return self.batches[bisect_left(self._firsts, first) : bisect_right(self._firsts, last)]

    def within(self, first: int, last: int) -> list[InFlightBatch]:
        """The batches that have offsets between `first` and `last`."""
        low = max(0, bisect_right(self._firsts, first) - 1)
        found = self.batches[low : bisect_right(self._firsts, last)]
        return found[1:] if found and found[0].last < first else found

    def next_first(self, offset: int) -> int:
        """Where the first batch behind `offset` begins; -1: there is none."""
        row = bisect_right(self._firsts, offset)
        return self._firsts[row] if row < len(self._firsts) else -1
