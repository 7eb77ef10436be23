"""One partition of `__consumer_offsets` at work: its groups, their timers, and the carrying out of
what the cores decide. Ring 1.

Owns `CoordinatorShard` and `GroupEntry`.

1. Consequences run first in, first out, from a queue, after the core's call has returned: an
   answered request may come back with the next one at once, and then finds the group in its new
   state.
2. A timer belongs to an entry; when the entry is closed none of them fires any more. What this
   process did not hear while it stood still is nobody's silence (`session_timer.py`).
3. A record that cannot be made is a failed write like any other; the queue goes on.
4. What an append answers after the shard is closed changes nothing.
5. Offsets enter `GroupOffsets.committed` when their record is stored, in log order, also when that
   is after their commit was refused because it took too long: until it is decided they count as in
   flight. A group whose tombstones are on their way stays `is_being_deleted` until each of them is
   decided.

Source: Apache Kafka 4.3.1 `CoordinatorRuntime` (its shard and timer), docs/ARCHITECTURE.md 4
(effects run from a queue).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.coordinator.collaborators import AppendUndecided, CoordinatorParts
from twisted_broker.coordinator.effects import (
    Answered,
    Consequence,
    GroupWrite,
    Purpose,
    TimerCancelled,
    TimerKind,
    TimerSet,
)
from twisted_broker.coordinator.group_core import GroupCore
from twisted_broker.coordinator.group_records import (
    CommittedOffset,
    KeyValue,
    batch_of,
    group_record,
    offset_record,
)
from twisted_broker.coordinator.group_state import EMPTY, Group
from twisted_broker.coordinator.offsets import GroupOffsets, TopicPartition
from twisted_broker.coordinator.session_timer import SessionTimer
from twisted_broker.wire.errors import BrokerError, ErrorCode

TOMBSTONES_PER_BATCH = 500
CLOSED_PER_STEP = 200
_log = Logger()

_GROUP_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def append_error(failure: Failure) -> ErrorCode:
    """What a client of the coordinator is told when a record could not be stored; anything but a
    refusal is logged.
    """
    error = failure.value
    if isinstance(error, BrokerError):
        return _GROUP_ERRORS.get(error.code, error.code)
    _log.failure("appending to __consumer_offsets failed", failure)
    return ErrorCode.UNKNOWN_SERVER_ERROR


class CoordinatorState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


class GroupEntry:
    """A group, its offsets and its timers. While `is_being_deleted` nobody may change it."""

    __slots__ = ("core", "is_being_deleted", "offsets", "timers")

    def __init__(self, core: GroupCore, offsets: GroupOffsets | None = None) -> None:
        self.core = core
        self.offsets = offsets or GroupOffsets()
        self.timers: dict[tuple[TimerKind, str], SessionTimer] = {}
        self.is_being_deleted = False

    @property
    def group(self) -> Group:
        return self.core.group

    @property
    def is_idle(self) -> bool:
        """Holds nothing that anybody could miss."""
        return (
            self.group.state is EMPTY and not self.group.pending_joins and self.offsets.is_empty()
        )


class CoordinatorShard:
    """The groups of one partition, led here at `leader_epoch`."""

    __slots__ = (
        "_draining",
        "_queue",
        "groups",
        "index",
        "leader_epoch",
        "open_transactions",
        "parts",
        "state",
    )

    def __init__(self, parts: CoordinatorParts, index: int, leader_epoch: int) -> None:
        self.parts, self.index, self.leader_epoch = parts, index, leader_epoch
        self.state = CoordinatorState.LOADING
        self.groups: dict[str, GroupEntry] = {}
        self.open_transactions: dict[int, set[str]] = {}
        self._queue: deque[tuple[GroupEntry, Consequence]] = deque()
        self._draining = False

    # groups
    def usable(self, group_id: str) -> GroupEntry | None:
        """The group's entry, None when there is none; raises COORDINATOR_NOT_AVAILABLE while it
        is being deleted.
        """
        entry = self.groups.get(group_id)
        if entry is not None and entry.is_being_deleted:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return entry

    def create(self, group_id: str) -> GroupEntry:
        assert group_id not in self.groups
        group = Group(group_id, self.parts.wall_ms())
        entry = self.groups[group_id] = GroupEntry(GroupCore(group, self.parts.settings.group))
        return entry

    def forget(self, entry: GroupEntry) -> None:
        """Drops an entry from memory; what it has parked is answered."""
        if self.groups.get(entry.group.group_id) is entry:
            del self.groups[entry.group.group_id]
        self.carry_out(entry, entry.core.unloaded(ErrorCode.NOT_COORDINATOR, self.parts.wall_ms()))

    def close_steps(self) -> Iterator[None]:
        """The partition is led elsewhere now: closed with the first step, empty with the last."""
        self.state = CoordinatorState.CLOSED
        number = 0
        while self.groups:
            _, entry = self.groups.popitem()
            if entry.timers or entry.group.members:  # without a timer nothing is parked
                self.forget(entry)
            number += 1
            if number % CLOSED_PER_STEP == 0:
                yield

    # consequences
    def carry_out(self, entry: GroupEntry, consequences: list[Consequence]) -> None:
        self._queue.extend((entry, consequence) for consequence in consequences)
        if self._draining:
            return
        self._draining = True
        try:
            while self._queue:
                self._do(*self._queue.popleft())
        finally:
            self._draining = False

    def _do(self, entry: GroupEntry, consequence: Consequence) -> None:
        if isinstance(consequence, Answered):
            assert isinstance(consequence.token, Deferred)
            consequence.token.callback(consequence.answer)
        elif isinstance(consequence, TimerSet):
            self._set_timer(entry, consequence)
        elif isinstance(consequence, TimerCancelled):
            timer = entry.timers.pop((consequence.kind, consequence.member_id), None)
            if timer is not None:
                timer.cancel()
        else:
            self._write_group(entry, consequence)

    def _set_timer(self, entry: GroupEntry, timer: TimerSet) -> None:
        if self.state is CoordinatorState.CLOSED:
            return
        key = (timer.kind, timer.member_id)
        running = entry.timers.get(key)
        if running is not None:
            running.reset(timer.delay_ms / 1000)
        else:
            entry.timers[key] = SessionTimer(
                self.parts.clock, timer.delay_ms / 1000, self._fired, entry, key
            )

    def _fired(self, entry: GroupEntry, key: tuple[TimerKind, str]) -> None:
        del entry.timers[key]
        if self.state is CoordinatorState.CLOSED:
            return
        entry.core.settings = self.parts.settings.group
        self.carry_out(entry, entry.core.timer_fired(*key, self.parts.wall_ms()))

    def _write_group(self, entry: GroupEntry, write: GroupWrite) -> None:
        written = maybeDeferred(
            lambda: self.append([group_record(write.snapshot.group_id, write.snapshot)])
        )
        written.addCallbacks(lambda _: ErrorCode.NONE, append_error).addCallback(
            self._group_written, entry, write.purpose
        )

    def _group_written(self, error: ErrorCode, entry: GroupEntry, purpose: Purpose) -> None:
        if self.state is not CoordinatorState.CLOSED:
            self.carry_out(entry, entry.core.written(purpose, error, self.parts.wall_ms()))

    # storage
    def append(self, records: Sequence[KeyValue]) -> Deferred[int]:
        """One batch; fires with its base offset, fails with BrokerError."""
        return self.parts.store.append(
            self.index,
            batch_of(records, self.parts.wall_ms()),
            self.parts.settings.commit_timeout_ms,
        )

    def write_offsets(
        self,
        entry: GroupEntry,
        changes: list[tuple[TopicPartition, CommittedOffset | None]],
        *tail: KeyValue,
    ) -> Deferred[None]:
        """Appends offsets (None: tombstones) and then `tail` in one batch; memory follows when
        it is stored. Fails with BrokerError.
        """
        return self._write_offsets(entry, changes, tail, lambda _: None)

    def _write_offsets(
        self,
        entry: GroupEntry,
        changes: list[tuple[TopicPartition, CommittedOffset | None]],
        tail: Sequence[KeyValue],
        decided: Callable[[bool], None],
    ) -> Deferred[None]:
        """`decided(is_stored)` is called once, at the latest when the shard closes; that may be
        long after the answer.
        """
        group_id = entry.group.group_id
        for place, _ in changes:
            entry.offsets.start_write(place)
        written = maybeDeferred(
            lambda: self.append(
                [offset_record(group_id, *place, committed) for place, committed in changes]
                + list(tail)
            )
        )

        def decide(result: int | Failure) -> None:
            for place, _ in changes:
                entry.offsets.end_write(place)
            if not isinstance(result, Failure):
                for delta, (place, committed) in enumerate(changes):
                    apply_offset(entry.offsets, place, committed, result + delta)
            decided(not isinstance(result, Failure))

        def settle(result: int | Failure) -> Failure | None:
            if isinstance(result, Failure):
                if isinstance(result.value, AppendUndecided):
                    result.value.outcome().addBoth(decide)
                else:
                    decide(result)
                return result
            decide(result)
            return None

        return written.addBoth(settle)

    def delete_group(self, entry: GroupEntry) -> Deferred[None]:
        """Tombstones for all offsets and the group itself, then forgets it; fails with
        BrokerError and the group is as before.
        """
        entry.is_being_deleted = True
        deleted: Deferred[None] = Deferred()
        self.parts.slices.start(self._delete_steps(entry, deleted))
        return deleted

    def _delete_steps(self, entry: GroupEntry, deleted: Deferred[None]) -> Iterator[None]:
        """A batch of tombstones at a step, none waited for before all are appended; the last one
        carries the group's own.
        """
        chunks = in_chunks(entry.offsets.places()) or [[]]
        undecided, are_stored = len(chunks), True

        def decided(is_stored: bool) -> None:
            nonlocal undecided, are_stored
            undecided, are_stored = undecided - 1, are_stored and is_stored
            if not undecided:
                entry.is_being_deleted = False
                if are_stored and self.groups.get(entry.group.group_id) is entry:
                    self.forget(entry)

        failures: list[Failure] = []
        writes: list[Deferred[None]] = []
        for number, chunk in enumerate(chunks, 1):
            tail = [group_record(entry.group.group_id, None)] if number == len(chunks) else []
            writes.append(
                self._write_offsets(
                    entry, [(place, None) for place in chunk], tail, decided
                ).addErrback(failures.append)
            )
            if number < len(chunks):
                yield
                if self.state is CoordinatorState.CLOSED:
                    deleted.errback(BrokerError(ErrorCode.NOT_COORDINATOR))
                    return
        DeferredList(writes).addCallback(
            lambda _: deleted.errback(failures[0]) if failures else deleted.callback(None)
        )

    def delete_offsets(self, entry: GroupEntry, places: Sequence[TopicPartition]) -> Deferred[None]:
        """Tombstones for these offsets, all appended before the first is waited for; fails with
        BrokerError.
        """
        failures: list[Failure] = []
        writes = [
            self.write_offsets(entry, [(place, None) for place in chunk]).addErrback(
                failures.append
            )
            for chunk in in_chunks(places)
        ]
        return DeferredList(writes).addCallback(lambda _: failures[0] if failures else None)


def in_chunks(places: Sequence[TopicPartition]) -> list[Sequence[TopicPartition]]:
    """Parts of `TOMBSTONES_PER_BATCH` places at most."""
    return [
        places[start : start + TOMBSTONES_PER_BATCH]
        for start in range(0, len(places), TOMBSTONES_PER_BATCH)
    ]


def apply_offset(
    offsets: GroupOffsets,
    place: TopicPartition,
    committed: CommittedOffset | None,
    record_offset: int,
) -> None:
    """What a stored record does to the offsets."""
    if committed is None:
        offsets.remove(place, record_offset)
    else:
        offsets.put(
            place,
            CommittedOffset(
                committed.offset,
                committed.leader_epoch,
                committed.metadata,
                committed.commit_timestamp_ms,
                committed.expire_timestamp_ms,
                committed.topic_id,
                record_offset,
            ),
        )
