"""The groups of one newer kind in one shard at work: decisions are made one after the other,
written, and only then in force. Ring 1.

Owns `GroupRunner`, and `Job`, one thing asked of a group.

1. Requests for one group wait in line, first in, first out, while a decision is computed in
   steps; other groups do not wait. A decision sees the state that the one before it left.
2. The records of a decision are one batch. An append that is refused leaves the group as it was; a
   batch that is in the log is applied at once, whether or not its commit is answered in time.
3. An answer leaves when the records of its decision are committed; one without records when the
   last records of its group before it are. While it is not known whether they are, it is an error.
4. Timers are set by decisions that are carried out, a session's also by a heartbeat whose records
   were refused. A member whose timer fires is removed by a decision; where its records are refused
   it is tried again after `AGAIN_SECONDS`.
5. Memory: a line and a commit exist while something waits for them.
6. A group that a request has made is the group's once its first batch is in the log. If its first
   decision is refused it is given up, and who stands in line behind gets COORDINATOR_NOT_AVAILABLE;
   so do those behind a decision that makes a classic group of it.
7. After `close` nothing is written and every request is answered NOT_COORDINATOR. Timers and lines
   are not stored: a load begins them anew (`group_loaded`).

Source: Apache Kafka 4.3.1 `CoordinatorRuntime`, `GroupMetadataManager`. Not here: what is decided
(`coordinator/consumer`, `coordinator/streams`), which groups there are and of which kind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_broker.coordinator.classic_group import ClassicGroup
from twisted_broker.coordinator.commits import Commits
from twisted_broker.coordinator.coordinator_context import (
    CoordinatorContext,
    append_error,
    refusal,
)
from twisted_broker.coordinator.group_decision import Decision, GroupTimer, TimerChange
from twisted_broker.coordinator.group_records import (
    KeyValue,
    batch_in_steps,
    group_record_in_steps,
)
from twisted_broker.coordinator.modern_group import ModernGroup
from twisted_broker.coordinator.record_codec import encode_record
from twisted_broker.coordinator.session_timer import SessionTimer
from twisted_broker.turns import Steps
from twisted_broker.wire.errors import BrokerError, ErrorCode

AGAIN_SECONDS = 0.5
# About a millisecond of one turn.
RECORDS_PER_STEP = 64
_logger = Logger()
_Decide = Callable[[], Generator[None, None, Decision]]
G = TypeVar("G", bound=ModernGroup)


def ignore(what: Any) -> None:
    """Nobody needs to know."""


class GroupKeeper(Protocol):
    """Who holds the groups."""

    def first_decided(self, group: Any, is_begun: bool) -> None:
        """The first decision on a group that a request has made is carried out, or refused."""

    def downgraded(self, group: Any, successor: ClassicGroup, rebalances: bool) -> None:
        """A classic group takes the place of `group`."""


@dataclass(slots=True)
class Job:
    """One thing asked of a group. `refused`: called when its records are not written;
    `carried_out`: called when they are.
    """

    decide: _Decide
    answer: Deferred[Any] | None = None
    refused: Callable[[], None] | None = None
    carried_out: Callable[[Decision], None] = ignore


class GroupRunner(Generic[G]):
    """`append` is the shard's."""

    __slots__ = (
        "_append",
        "_commits",
        "_context",
        "_is_closed",
        "_keeper",
        "_leading",
        "_lines",
        "_timers",
    )

    def __init__(
        self,
        context: CoordinatorContext,
        append: Callable[[bytes], Deferred[int]],
        keeper: GroupKeeper,
    ) -> None:
        self._context, self._append, self._keeper = context, append, keeper
        # Groups that are not begun, with the records that the first batch of each begins with.
        self._leading: dict[G, Sequence[KeyValue]] = {}
        self._lines: dict[G, deque[Job]] = {}
        self._commits: Commits[G] = Commits()
        self._timers: dict[tuple[G, GroupTimer, str], SessionTimer] = {}
        self._is_closed = False

    # decisions of a kind of group
    def _session_ms(self, group: G, member: Any) -> int:
        """A session of the member at this moment."""
        raise NotImplementedError

    def _remove(self, group: G, member_ids: Sequence[str]) -> Generator[None, None, Decision]:
        """The decision that these members are gone."""
        raise NotImplementedError

    # groups
    def begin(self, group: G, leading: Sequence[KeyValue] = ()) -> None:
        """A request has made the group; it is asked next. The first batch is to begin with
        `leading`: the tombstone of a group of another kind, whose place it takes.
        """
        self._leading[group] = leading

    def is_begun(self, group: G) -> bool:
        """Whether its first batch is in the log."""
        return group not in self._leading

    def group_loaded(self, group: G) -> None:
        """Starts the timers of all its members."""
        for member in group.members.values():
            self._begin_session(group, member.member_id)
            if member.is_revoking:
                timeout_ms = member.rebalance_timeout_ms
                self._set_timer(
                    group,
                    TimerChange(GroupTimer.REBALANCE, member.member_id, timeout_ms, member.epoch),
                )

    def lives(self, group: G, member_id: str) -> None:
        """The session of the member, if it is one, begins anew."""
        if member_id in group.members:
            self._begin_session(group, member_id)

    def _begin_session(self, group: G, member_id: str) -> None:
        session_ms = self._session_ms(group, group.members[member_id])
        self._set_timer(group, TimerChange(GroupTimer.SESSION, member_id, session_ms))

    def is_in_line(self, group: G) -> bool:
        """Whether something asked of it is not decided."""
        return group in self._lines

    def is_busy(self, group: G) -> bool:
        """Whether something asked of it is not decided, or not committed."""
        return group in self._lines or group in self._commits

    def close(self) -> None:
        """The partition is led elsewhere, or this broker ends."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._leading.clear()
        lines, self._lines = self._lines, {}
        for line in lines.values():
            for job in line:
                _refuse(job, ErrorCode.NOT_COORDINATOR)
        self._commits.close()

    # one after the other
    def _ask(self, group: G, job: Job) -> None:
        if self._is_closed or group.is_dead:
            _refuse(job, ErrorCode.NOT_COORDINATOR)
            return
        line = self._lines.get(group)
        if line is not None:
            line.append(job)
            return
        self._lines[group] = deque([job])
        self._context.turns.start(self._line_steps(group))

    def _line_steps(self, group: G) -> Steps:
        line = self._lines[group]
        while True:
            yield from self._do(group, line[0])
            if self._is_closed:
                return
            line.popleft()
            is_given_up = self._leading.pop(group, None) is not None
            if not line or is_given_up or group.is_dead:
                del self._lines[group]
                if is_given_up:
                    self._keeper.first_decided(group, False)
                for behind in line:
                    _refuse(behind, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                return
            yield None

    def _do(self, group: G, job: Job) -> Generator[None, None, None]:
        try:
            decision = yield from job.decide()
            batch = b""
            if decision.records:
                trailing = yield from _successor_record(decision)
                batch = yield from batch_in_steps(
                    chain(
                        self._leading.get(group, ()),
                        map(encode_record, decision.records),
                        trailing,
                    ),
                    self._context.wall_ms(),
                    RECORDS_PER_STEP,
                )
        except BrokerError as error:
            if not self._is_closed and job.answer is not None:
                job.answer.errback(error)
            return
        except Exception:
            _logger.failure("a decision on group {group} failed", group=group.group_id)
            if not self._is_closed:
                _refuse(job, ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        if self._is_closed:
            return
        if batch:
            self._write(group, job, decision, batch)
        else:
            self._carry_out(group, job, decision)

    def _write(self, group: G, job: Job, decision: Decision, batch: bytes) -> None:
        outcome = self._append(batch)
        refused = refusal(outcome)
        if refused is not None:
            error = append_error(refused)
            outcome.addErrback(lambda _: None)
            if self.is_begun(group):
                self._set_timers(group, decision, sessions_only=True)
            _refuse(job, error)
            return
        if self._leading.pop(group, None) is not None:
            self._keeper.first_decided(group, True)
        self._commits.add(group, outcome)
        self._carry_out(group, job, decision)

    def _carry_out(self, group: G, job: Job, decision: Decision) -> None:
        if decision.successor is None:
            epoch, members = group.epoch, len(group.members)
            decision.apply(group)
            # Kafka counts no rebalance where a member goes: that of the others follows.
            if group.epoch > epoch and len(group.members) >= members:
                self._context.rebalances[group.group_type] += 1
        self._set_timers(group, decision)
        if decision.successor is not None:
            # Its tombstones are not applied: nobody looks at it any more.
            self._keeper.downgraded(group, decision.successor, decision.must_rebalance)
        if job.answer is not None and decision.answer is not None:
            self._commits.answer(group, job.answer, decision.answer)
        job.carried_out(decision)

    # timers
    def _set_timers(self, group: G, decision: Decision, sessions_only: bool = False) -> None:
        for change in decision.timers:
            is_session = change.kind is GroupTimer.SESSION
            if change.delay_ms is None and not sessions_only:
                self._end_timer((group, change.kind, change.member_id))
            elif change.member_id in group.members and (is_session or not sessions_only):
                self._set_timer(group, change)

    def _set_timer(self, group: G, change: TimerChange) -> None:
        if change.delay_ms is None or self._is_closed:
            return
        key = (group, change.kind, change.member_id)
        running = self._timers.get(key)
        if running is not None and change.if_absent:
            return
        if running is not None and change.epoch is None:
            running.reset(change.delay_ms / 1000)
            return
        self._end_timer(key)
        self._timers[key] = SessionTimer(
            self._context.clock, change.delay_ms / 1000, self._expired, key, change
        )

    def _end_timer(self, key: tuple[G, GroupTimer, str]) -> None:
        running = self._timers.pop(key, None)
        if running is not None:
            running.cancel()

    def _expired(self, key: tuple[G, GroupTimer, str], change: TimerChange) -> None:
        # Before anything else: the next step may set the same timer again.
        del self._timers[key]
        group = key[0]

        def again() -> None:
            if key not in self._timers and change.member_id in group.members:
                delay_ms = int(AGAIN_SECONDS * 1000)
                self._set_timer(
                    group, TimerChange(change.kind, change.member_id, delay_ms, change.epoch)
                )

        self._ask(group, Job(lambda: self._remove_if_still(key, change), refused=again))

    def _remove_if_still(
        self, key: tuple[G, GroupTimer, str], change: TimerChange
    ) -> Generator[None, None, Decision]:
        """Not if a heartbeat that stood in line before has set the timer again."""
        group = key[0]
        member = group.members.get(change.member_id)
        has_moved = member is not None and change.epoch not in (None, member.epoch)
        if member is None or has_moved or key in self._timers:
            return Decision()
        return (yield from self._remove(group, [change.member_id]))


def _successor_record(decision: Decision) -> Generator[None, None, list[KeyValue]]:
    """Of the classic group that the decision makes."""
    if decision.successor is None:
        return []
    return [(yield from group_record_in_steps(decision.successor.metadata()))]


def _refuse(job: Job, error: ErrorCode) -> None:
    if job.answer is not None:
        job.answer.errback(BrokerError(error))
    if job.refused is not None:
        job.refused()
