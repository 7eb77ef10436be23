"""A share partition on its leader: which records a group's members hold, have finished, or may be
given. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `SharePartition`, `PendingWrite` (an acknowledgement until the persister has answered) and the
values that go in and out.

1. An offset from the start offset (SPSO) to the end offset (SPEO) has one state of GN 3.50;
   behind it nothing was given to anybody, below it all is finished and nothing is kept.
2. Two members never hold one offset under locks that have not ended. A record whose state is being
   persisted can neither be acquired nor acknowledged.
3. `acknowledge` and `release` check everything before they change anything. They take effect with
   `finish_write`; if the write failed its records go back to their holder, or, where the lock has
   ended meanwhile, are as if only that had happened.
4. A lock's end takes effect at once, and is written by its caller, also where that write fails.
5. The start offset never goes back. It passes finished records, and holes in which a read found no
   records.
6. `complete_count` is the number of finished offsets from the start offset on, those of writes
   under way included.

Bounds: once the window (SPEO - SPSO + 1) has `max_record_locks` offsets nothing new is acquired;
so it holds at most one batch of the log more. A client that never acknowledges costs each record
its deliveries, no memory. A restart, or another leader, begins from the state that the persister
was told (`from_state`): records that were acquired are available, with the count that was last
written.

Source: GN 3.50-3.73; Apache Kafka 4.3.1 `SharePartition`. Unlike there: nothing needs to be undone
(3); a hole behind which a read goes on does not stop the start offset; what a read archives is
passed by the start offset at once. Not here: reading (`share_fetch.py`), the persister, timers, the
life of a share partition (`share_partition_manager.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from twisted_broker.coordinator.share_state.values import ReadState, StateBatch
from twisted_broker.share.in_flight import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    InFlight,
    InFlightBatch,
    Run,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode

GAP, ACCEPT, RELEASE, REJECT, RENEW = 0, 1, 2, 3, 4
ACKNOWLEDGE_TYPES = 5
BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1
_RENEWED = -1
_TARGETS = {
    GAP: ARCHIVED,
    ACCEPT: ACKNOWLEDGED,
    RELEASE: AVAILABLE,
    REJECT: ARCHIVED,
    RENEW: _RENEWED,
}
_FEWEST_DELIVERIES_BEFORE_THROTTLE = 2
_STATES = frozenset({AVAILABLE, ACKNOWLEDGED, ARCHIVED})


class ShareLimits(NamedTuple):
    """The group's settings as they are now."""

    max_record_locks: int = 2000
    delivery_count_limit: int = 5
    record_lock_duration_ms: int = 30_000
    may_renew: bool = True

    @property
    def throttled_from(self) -> int:
        """The delivery count from which records are given out in ever smaller parts."""
        return max(_FEWEST_DELIVERIES_BEFORE_THROTTLE, -(-self.delivery_count_limit // 2))


class LogBatch(NamedTuple):
    """A batch's header in the log."""

    base_offset: int
    last_offset: int
    size_in_bytes: int = 0
    producer_id: int = -1
    is_transactional: bool = False
    is_control: bool = False


class AcquiredRecords(NamedTuple):
    """What one member was given, of one delivery count."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Acknowledgement(NamedTuple):
    """`types`: one for all, or one for each offset."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


class PendingWrite:
    """Runs on their way to another state, and the batches for the persister."""

    __slots__ = ("batches", "delivery_count_limit", "runs")

    def __init__(self, runs: list[Run], delivery_count_limit: int) -> None:
        self.runs, self.delivery_count_limit = runs, delivery_count_limit
        self.batches = [_written(run) for run in runs]


def _written(run: Run) -> StateBatch:
    return StateBatch(run.first, run.last, run.state, run.count)


class SharePartition:
    """Begins empty at `start_offset`; `from_state` begins with a persisted state."""

    __slots__ = (
        "_gap_end",
        "_gap_start",
        "_may_be_free",
        "complete_count",
        "end_offset",
        "in_flight",
        "start_offset",
        "state_epoch",
    )

    def __init__(self, start_offset: int, state_epoch: int) -> None:
        self.state_epoch = state_epoch
        self.start_offset = self.end_offset = start_offset
        self.complete_count = 0
        self.in_flight = InFlight()
        # Whether a batch has a run that is free; else nobody needs to look.
        self._may_be_free = False
        # The gap window (GN 3.72): holes from `_gap_start` on may have records that were never
        # acknowledged. It is over when the end offset leaves `_gap_end`.
        self._gap_start = self._gap_end = -1

    @classmethod
    def from_state(cls, state: ReadState, start_offset: int) -> SharePartition:
        """`start_offset`: that of the state, or where the group begins if it has none. Raises
        ValueError for batches that nobody can have written.
        """
        made = cls(start_offset, state.state_epoch)
        next_offset = start_offset
        for first, last, delivery_state, count in state.batches:
            if first < next_offset or last < first or delivery_state not in _STATES:
                raise ValueError(f"the persisted batch {first}-{last} of state {delivery_state}")
            if first > next_offset and made._gap_start < 0:
                made._gap_start = next_offset
            next_offset = last + 1
            run = Run(first, last, delivery_state, count)
            made.in_flight.add(InFlightBatch(first, last, [run]))
            if run.is_finished:
                made._count(run, 1)
        if state.batches:
            made.end_offset = made.in_flight.last_offset
            if made._gap_start >= 0:
                made._gap_end = made.end_offset
            made._may_be_free = True
            made._advance()
        return made

    # what may be acquired
    @property
    def window(self) -> int:
        return self.end_offset - self.start_offset + 1 if self.in_flight else 0

    @property
    def next_fetch_offset(self) -> int:
        """Where the next read begins: at the first free offset, else behind the end."""
        if not self.in_flight or self.start_offset > self.in_flight.last_offset:
            return self.end_offset
        if not self._may_be_free:
            return self.end_offset + 1
        hole = self._gap_start if self._gap_is_open else -1
        for batch in self.in_flight:
            if hole >= 0:
                if batch.first > hole:
                    return hole
                hole = max(hole, batch.last + 1)
            for run in batch.runs:
                if run.is_free:
                    return run.first
        self._may_be_free = False
        return self.end_offset + 1

    def can_acquire(self, limits: ShareLimits) -> bool:
        return (
            self.window < limits.max_record_locks or self.next_fetch_offset != self.end_offset + 1
        )

    @property
    def _gap_is_open(self) -> bool:
        return self._gap_start >= 0 and self._gap_end == self.end_offset

    def acquire(
        self,
        member: str,
        mode: int,
        batch_size: int,
        max_records: int,
        fetch_offset: int,
        log: Sequence[LogBatch],
        now_ms: int,
        limits: ShareLimits,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> list[AcquiredRecords]:
        """Gives `member` the records that it may have of `log`, the batches that a read at
        `fetch_offset` found (GN 3.52-3.57, 3.73). `aborted`: producer and first offset of the
        transactions that it must not see.
        """
        if max_records <= 0 or not log or log[-1].last_offset < self.start_offset:
            return []
        last = log[-1].last_offset
        most = min(max_records, limits.max_record_locks - self.window)
        if most <= 0:
            if fetch_offset > self.end_offset:
                return []
            # The window is full, but something in it was given back.
            most = min(max_records, self.end_offset - fetch_offset + 1)
            last = min(last, self.end_offset)
        self._archive_between(fetch_offset, log[0].base_offset)
        taking = _Taking(
            member,
            mode == RECORD_LIMIT,
            max(1, batch_size),
            most,
            now_ms + limits.record_lock_duration_ms,
            log,
            last,
            limits,
        )
        taken = self._take(taking)
        if aborted and taken:
            taken = self._without_aborted(taken, taking, _aborted_batches(log, aborted))
        self._advance()
        return taken

    def _take(self, taking: _Taking) -> list[AcquiredRecords]:
        first_base, last = taking.log[0].base_offset, taking.last
        base = first_base
        floor = self.in_flight.floor(base)
        if floor is None:
            base = max(base, self.start_offset)
        elif floor.last >= base:
            base = floor.first
        known = self.in_flight.beginning(min(base, first_base), last)
        hole = base
        is_whole = True
        for batch in known:
            if taking.left <= 0:
                is_whole = False
                break
            if self._gap_is_open:
                if hole < batch.first:
                    self._take_new(taking, hole, batch.first - 1)
                hole = batch.last + 1
                if taking.left <= 0:
                    is_whole = False
                    break
            runs = [run for run in batch.within(first_base, last) if run.is_free]
            if not runs:
                continue
            is_throttled = max(run.count for run in runs) >= taking.limits.throttled_from
            if is_throttled and taking.count:
                is_whole = False
                break
            self._take_free(taking, batch, runs)
            if is_throttled:
                is_whole = False
                break
        if is_whole and taking.left > 0:
            behind = known[-1].last + 1 if known else base
            if behind <= last:
                self._take_new(taking, behind, last)
        if is_whole and taking.left > 0:
            self._looked_at(last)
        elif taking.found:
            self._looked_at(taking.found[-1].last_offset)
        return taking.found

    def _take_free(self, taking: _Taking, batch: InFlightBatch, runs: list[Run]) -> None:
        """The available records of a known batch, in order; joined where the counts are equal."""
        limits = taking.limits
        limit, start = limits.delivery_count_limit, limits.throttled_from
        first_base, last, before = taking.log[0].base_offset, taking.last, taking.count
        most = -1
        found: list[AcquiredRecords] = []
        for run in runs:
            low, high, count = max(run.first, first_base), min(run.last, last), run.count
            here = taking.count - before
            is_last_try = limit > 2 and count == limit - 1
            if is_last_try and here:
                break  # it is delivered alone, by the next fetch
            if count >= start and most < 0:
                most = max(1, batch.size >> (count - start + 1))
            allowed = 1 if is_last_try else high - low + 1
            if taking.is_record_limit:
                allowed = min(allowed, taking.left)
            if most > here:
                allowed = min(allowed, most - here)
            part = batch.cut(run, low, low + allowed - 1)
            part.acquire(taking.member, taking.lock_ends_ms)
            taking.count += allowed
            if found and found[-1].last_offset + 1 == low and found[-1].delivery_count == count + 1:
                found[-1] = found[-1]._replace(last_offset=part.last)
            else:
                found.append(AcquiredRecords(low, part.last, count + 1))
            here = taking.count - before
            if is_last_try or here == most or (taking.is_record_limit and taking.left <= 0):
                break
        batch.merge()
        taking.found += found

    def _take_new(self, taking: _Taking, first: int, last: int) -> None:
        """Offsets that no batch in flight has. The last batch of the log is taken whole, in
        record-limit mode as far as it may go.
        """
        first = max(first, self.start_offset)
        if first > last:
            return
        stop = last
        if taking.left < last - first + 1:
            stop = _end_of_batch(taking.log, first + taking.left - 1)
            if self._gap_is_open:
                stop = min(stop, last)
            following = self.in_flight.next_first(first)
            if following >= 0:
                stop = min(stop, following - 1)
        ends = (
            [stop]
            if taking.is_record_limit
            else list(_ends_of_parts(taking.log, first, stop, taking.batch_size))
        )
        for end in ends:
            mine = min(end, first + taking.left - 1) if taking.is_record_limit else end
            runs = [Run(first, mine, ACQUIRED, 1, taking.member, taking.lock_ends_ms)]
            if mine < end:
                runs.append(Run(mine + 1, end, AVAILABLE, 0))
                self._may_be_free = True
            self.in_flight.add(InFlightBatch(first, end, runs))
            taking.found.append(AcquiredRecords(first, mine, 1))
            taking.count += mine - first + 1
            first = end + 1
        self.end_offset = max(self.end_offset, stop)

    def _looked_at(self, offset: int) -> None:
        """A read has reached `offset`: there are no holes to be read below."""
        if self._gap_start >= 0:
            if self._gap_is_open and offset + 1 <= self._gap_end:
                self._gap_start = max(self._gap_start, offset + 1)
            else:
                self._gap_start = self._gap_end = -1

    def _archive_between(self, first: int, end: int) -> None:
        """Of the offsets below `end`, which the log does not have any more (GN 3.71)."""
        if first < end:
            self._archive_free(first, end - 1)
            if self._gap_is_open:
                self._looked_at(end - 1)

    def _archive_free(self, first: int, last: int) -> None:
        for batch in self.in_flight.within(first, last):
            for run in batch.within(first, last):
                if run.is_free:
                    part = batch.cut(run, first, last)
                    part.leave(ARCHIVED)
                    self._count(part, 1)
            batch.merge()

    def _without_aborted(
        self, taken: list[AcquiredRecords], taking: _Taking, aborted: list[LogBatch]
    ) -> list[AcquiredRecords]:
        """Archives acquired records of aborted transactions; returns the rest."""
        left: list[AcquiredRecords] = []
        rows = iter(aborted)
        row = next(rows, None)
        for first, last, count in taken:
            while row is not None and row.base_offset <= last:
                if row.last_offset >= first:
                    low, high = max(first, row.base_offset), min(last, row.last_offset)
                    if first < low:
                        left.append(AcquiredRecords(first, low - 1, count))
                    self._archive_held(low, high, taking)
                    first = high + 1
                if row.last_offset > last:
                    break
                row = next(rows, None)
            if first <= last:
                left.append(AcquiredRecords(first, last, count))
        return left

    def _archive_held(self, first: int, last: int, taking: _Taking) -> None:
        for batch in self.in_flight.within(first, last):
            for run in batch.within(first, last):
                if run.is_held and run.member == taking.member:
                    part = batch.cut(run, first, last)
                    part.leave(ARCHIVED)
                    self._count(part, 1)
            batch.merge()

    # acknowledging
    def acknowledge(
        self,
        member: str,
        acknowledgements: Sequence[Acknowledgement],
        now_ms: int,
        limits: ShareLimits,
    ) -> PendingWrite:
        """Of one request, whose shape is right (GN 3.60). To be ended by `finish_write`, unless
        there is nothing to write. Raises `BrokerError` INVALID_REQUEST or INVALID_RECORD_STATE
        for any of them, and then nothing has changed (3.61).
        """
        parts: list[tuple[InFlightBatch, int, int, int]] = []
        for each in acknowledgements:
            if each.last_offset >= self.start_offset:
                parts += self._acknowledged(member, each, limits)
        changed: list[Run] = []
        ends_ms = now_ms + limits.record_lock_duration_ms
        renewed: dict[int, InFlightBatch] = {}
        for batch, first, last, target in parts:
            # One run, of which an earlier part may have been cut.
            (run,) = batch.within(first, last)
            part = batch.cut(run, first, last)
            if target == _RENEWED:
                part.lock_ends_ms = ends_ms
                renewed[batch.first] = batch
            else:
                changed.append(self._begin(part, target, limits))
        for batch in renewed.values():
            batch.merge()
        return PendingWrite(changed, limits.delivery_count_limit)

    def _acknowledged(
        self, member: str, each: Acknowledgement, limits: ShareLimits
    ) -> Iterator[tuple[InFlightBatch, int, int, int]]:
        """The acknowledged part of each run: first and last offset, and the new state."""
        batches = self.in_flight.within(each.first_offset, each.last_offset)
        if self.in_flight.floor(max(each.first_offset, self.start_offset)) is None:
            raise BrokerError(
                ErrorCode.INVALID_RECORD_STATE,
                "Batch record not found. The request batch offsets are not found in the cache.",
            )
        if not batches or each.last_offset > batches[-1].last:
            which = "last" if batches else "first"
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"Batch record not found. The {which} offset in request is past acquired records.",
            )
        for first, last, target in _of_one_target(each):
            first = max(first, self.start_offset)
            for batch in self.in_flight.within(first, last) if first <= last else ():
                for run in batch.within(first, last):
                    self._check_held(member, run, batch)
                    if target == _RENEWED and not limits.may_renew:
                        raise BrokerError(
                            ErrorCode.INVALID_RECORD_STATE,
                            "Renewing acquisition locks is not enabled for the group.",
                        )
                    yield batch, max(run.first, first), min(run.last, last), target

    @staticmethod
    def _check_held(member: str, run: Run, batch: InFlightBatch) -> None:
        what = "batch" if len(batch.runs) == 1 else "offset"
        if run.pending:
            problem = (
                "The record state is invalid. The acknowledgement of delivery could not be"
                " completed."
            )
        elif run.state != ACQUIRED:
            whose = (
                "batch is not in the acquired state"
                if what == "batch"
                else "offset is not acquired"
            )
            problem = f"The {what} cannot be acknowledged. The {whose}."
        elif run.member != member:
            problem = f"Member is not the owner of {'batch record' if what == 'batch' else what}"
        else:
            return
        raise BrokerError(ErrorCode.INVALID_RECORD_STATE, problem)

    def release(self, member: str, limits: ShareLimits) -> PendingWrite:
        """Gives back all that `member` holds. As `acknowledge`."""
        changed: list[Run] = []
        for batch in self.in_flight:
            for run in batch.runs[:]:
                if run.is_held and run.member == member:
                    changed += [
                        self._begin(part, AVAILABLE, limits) for part in self._parts(batch, run)
                    ]
        return PendingWrite(changed, limits.delivery_count_limit)

    def _parts(self, batch: InFlightBatch, run: Run) -> list[Run]:
        """The run, as two where the start offset lies in it."""
        if run.first < self.start_offset <= run.last:
            below = batch.cut(run, run.first, self.start_offset - 1)
            return [below, *batch.within(self.start_offset, run.last)]
        return [run]

    def _begin(self, run: Run, state: int, limits: ShareLimits) -> Run:
        run.state = (
            self._given_back(run, limits.delivery_count_limit) if state == AVAILABLE else state
        )
        run.pending = True
        if run.is_finished:
            self._count(run, 1)
        return run

    def _given_back(self, run: Run, delivery_count_limit: int) -> int:
        is_over = run.count >= delivery_count_limit or run.last < self.start_offset
        return ARCHIVED if is_over else AVAILABLE

    def finish_write(self, write: PendingWrite, succeeded: bool, now_ms: int) -> bool:
        """The persister has answered. Whether waiting fetches may have something to acquire."""
        start = self.start_offset
        for run in write.runs:
            run.pending = False
            if not succeeded:
                if run.is_finished:
                    self._count(run, -1)
                if run.lock_ends_ms > now_ms:
                    run.state = ACQUIRED
                    continue
                run.state = self._given_back(run, write.delivery_count_limit)
                if run.is_finished:
                    self._count(run, 1)
            run.leave(run.state)
            self._may_be_free |= run.state == AVAILABLE
        for batch in {
            batch.first: batch
            for run in write.runs
            for batch in self.in_flight.within(run.first, run.last)
        }.values():
            if batch.first < start:
                self._archive_free(batch.first, min(batch.last, start - 1))
            batch.merge()
        self._advance()
        return self._may_be_free or self.start_offset > start

    # locks
    @property
    def next_lock_end_ms(self) -> int | None:
        """When the first lock ends; None: nothing is held."""
        ends = [run.lock_ends_ms for batch in self.in_flight for run in batch.runs if run.is_held]
        return min(ends, default=None)

    def end_locks(self, now_ms: int, limits: ShareLimits) -> list[StateBatch]:
        """Takes back records under locks that have ended; returns the states to write."""
        ended: list[StateBatch] = []
        for batch in self.in_flight:
            before = len(ended)
            for run in batch.runs[:]:
                if run.is_held and run.lock_ends_ms <= now_ms:
                    for part in self._parts(batch, run):
                        part.leave(self._given_back(part, limits.delivery_count_limit))
                        self._may_be_free |= part.state == AVAILABLE
                        if part.is_finished:
                            self._count(part, 1)
                        ended.append(_written(part))
            if len(ended) > before:
                batch.merge()
        if ended:
            self._advance()
        return ended

    # the offsets
    def move_to_log_start(self, log_start_offset: int) -> None:
        """The log begins at `log_start_offset` now (GN 3.70)."""
        start = self.start_offset
        if log_start_offset <= start:
            return
        for batch in self.in_flight.within(start, log_start_offset - 1):
            for run in batch.within(start, log_start_offset - 1):
                if run.is_finished:
                    gone = run.size_from(start) - run.size_from(log_start_offset)
                    self.complete_count -= gone
        self.start_offset = log_start_offset
        if self.in_flight:
            self._archive_free(self.in_flight.batches[0].first, log_start_offset - 1)
        self.end_offset = max(self.end_offset, log_start_offset)
        self._looked_at(log_start_offset - 1)
        self._advance()

    def _count(self, run: Run, sign: int) -> None:
        self.complete_count += sign * run.size_from(self.start_offset)

    def _advance(self) -> None:
        """Moves the start offset over finished records, and forgets those below it."""
        self._pass_finished()
        batches = self.in_flight.batches
        done = 0
        # Who still holds one of them cannot do anything with it any more.
        while done < len(batches) and batches[done].last < self.start_offset:
            done += 1
        if done and done == len(batches):
            # It may have been all of the gap window; then nothing is left to be read in it.
            self.start_offset = self.end_offset = max(self.start_offset, batches[-1].last + 1)
            self.complete_count = 0
            self._gap_start = self._gap_end = -1
        self.in_flight.remove_first(done)

    def _pass_finished(self) -> None:
        if not self.in_flight:
            return
        start = self.start_offset
        for batch in self.in_flight.within(start, self.in_flight.last_offset):
            if batch.first > start:
                # A hole: its records were never acknowledged, unless reads found none there.
                if self._gap_is_open and self._gap_start < batch.first:
                    start = max(start, self._gap_start)
                    break
                start = batch.first
            is_finished = True
            for run in batch.within(start, batch.last):
                if run.pending or not run.is_finished:
                    is_finished = False
                    break
                self.complete_count -= run.size_from(start)
                start = run.last + 1
            if not is_finished:
                break
        self.start_offset = start


class _Taking:
    """One acquisition: its limits, and the records that it has."""

    __slots__ = (
        "batch_size",
        "count",
        "found",
        "is_record_limit",
        "last",
        "limits",
        "lock_ends_ms",
        "log",
        "member",
        "most",
    )

    def __init__(
        self,
        member: str,
        is_record_limit: bool,
        batch_size: int,
        most: int,
        lock_ends_ms: int,
        log: Sequence[LogBatch],
        last: int,
        limits: ShareLimits,
    ) -> None:
        self.member, self.is_record_limit, self.batch_size = member, is_record_limit, batch_size
        self.most, self.lock_ends_ms, self.log, self.last = most, lock_ends_ms, log, last
        self.limits = limits
        self.found: list[AcquiredRecords] = []
        self.count = 0

    @property
    def left(self) -> int:
        return self.most - self.count


def _end_of_batch(log: Sequence[LogBatch], offset: int) -> int:
    """The last offset of the batch that has `offset`; itself, where none has."""
    for batch in log:
        if batch.base_offset > offset:
            break
        if batch.last_offset >= offset:
            return batch.last_offset
    return offset


def _ends_of_parts(
    log: Sequence[LogBatch], first: int, last: int, batch_size: int
) -> Iterator[int]:
    """Where new records are split: at the log's batches, once a part has `batch_size`."""
    if last - first + 1 > batch_size:
        for batch in log:
            if batch.base_offset > last:
                break
            if batch.base_offset - first >= batch_size:
                yield batch.base_offset - 1
                first = batch.base_offset
    yield last


def _of_one_target(each: Acknowledgement) -> Iterator[tuple[int, int, int]]:
    """First and last offset of neighbours that are acknowledged alike, and what becomes of them."""
    if len(each.types) == 1:
        yield each.first_offset, each.last_offset, _TARGETS[each.types[0]]
        return
    first = each.first_offset
    for target, same in groupby(each.types, _TARGETS.__getitem__):
        last = first + sum(1 for _ in same) - 1
        yield first, last, target
        first = last + 1


def _aborted_batches(log: Sequence[LogBatch], aborted: Sequence[tuple[int, int]]) -> list[LogBatch]:
    """The batches of `log` whose transactions were aborted; `aborted`: producer, first offset."""
    waiting = sorted(((first, producer) for producer, first in aborted), reverse=True)
    producers: set[int] = set()
    found = []
    for batch in log:
        if batch.producer_id < 0:
            continue
        while waiting and waiting[-1][0] <= batch.last_offset:
            producers.add(waiting.pop()[1])
        if batch.is_control:
            producers.discard(batch.producer_id)
        elif batch.is_transactional and batch.producer_id in producers:
            found.append(batch)
    return found
