"""The consumer groups of one shard at work: decisions are made one after the other, written, and
only then in force. Ring 1.

Owns `ConsumerGroupRunner`.

1. What is asked of one group waits in line, first in, first out, while a decision is computed in
   steps; other groups do not wait. A decision sees the state that the one before it left.
2. The records of a decision are one batch. An append that is refused leaves the group as it was; a
   batch that is in the log is applied at once, whether or not its commit is answered in time.
3. An answer leaves when the records of its decision are committed; one without records when the
   last records of its group before it are. While it is not known whether they are, it is an error.
4. Timers are set by decisions that are carried out, a session's also by a heartbeat whose records
   were refused. A member whose timer fires is removed by a decision; where its records are refused
   it is tried again after `AGAIN_SECONDS`.
5. Memory: a line, a commit and a refresh exist while something waits for them.
6. After `close` nothing is written and every request is answered NOT_COORDINATOR. Timers, lines and
   when patterns were resolved are not stored: a load begins them anew (`group_loaded`).

Source: Apache Kafka 4.3.1 `CoordinatorRuntime`, `GroupMetadataManager`. Not here: what is decided
(`coordinator/consumer`), which groups there are and of which kind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.coordinator.consumer.decision import (
    ConsumerGroupSettings,
    ConsumerTimer,
    Decision,
    Environment,
    TimerChange,
)
from twisted_broker.coordinator.consumer.describe import DescribedGroup, describe
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.heartbeat import heartbeat
from twisted_broker.coordinator.consumer.leaving import leave, leave_several, remove_members
from twisted_broker.coordinator.consumer.member import UNREVOKED
from twisted_broker.coordinator.consumer.metadata_hash import TopicHashes
from twisted_broker.coordinator.consumer.patterns import patterns_resolved, resolve_patterns
from twisted_broker.coordinator.consumer.records import encode_record
from twisted_broker.coordinator.consumer.requests import HeartbeatAnswer, HeartbeatRequest
from twisted_broker.coordinator.coordinator_context import (
    AppendUndecided,
    CoordinatorContext,
    append_error,
    refusal,
)
from twisted_broker.coordinator.group_records import KeyValue, batch_in_steps
from twisted_broker.coordinator.group_requests import LeaveAnswer
from twisted_broker.coordinator.session_timer import SessionTimer
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.turns import Steps
from twisted_broker.wire.errors import BrokerError, ErrorCode

AGAIN_SECONDS = 0.5
# About a millisecond of one turn.
RECORDS_PER_STEP = 64
_logger = Logger()
_Decide = Callable[[], Generator[None, None, Decision]]
_TimerKey = tuple[ConsumerGroup, ConsumerTimer, str]


def _sees_all(topic: str) -> bool:
    return True


def _ignore(group: ConsumerGroup) -> None:
    """Nobody needs to know."""


@dataclass(slots=True)
class _Job:
    """One thing asked of a group. `may_describe`: whether the one who asks may see a topic;
    `refused`: what follows when its records are not written.
    """

    decide: _Decide
    answer: Deferred[Any] | None = None
    may_describe: Callable[[str], bool] = _sees_all
    refused: Callable[[], None] | None = None


@dataclass(slots=True)
class _Commit:
    """Records of a group that are in the log, and the answers that wait until they are
    committed. `undecided`: the error of those that waited too long; the records may still be lost
    to another leader, so nothing that rests on them is answered.
    """

    undecided: ErrorCode = ErrorCode.NONE
    waiting: list[tuple[Deferred[Any], Any]] = field(default_factory=list)

    def end(self, error: ErrorCode) -> None:
        waiting, self.waiting = self.waiting, []
        for answer, content in waiting:
            if error is ErrorCode.NONE:
                answer.callback(content)
            else:
                answer.errback(BrokerError(error))


class ConsumerGroupRunner:
    """`append` is the shard's, `image` gives the present metadata, `settings` those of a group by
    its id, at the moment of a decision. `line_over(group)` is called when all that was asked of a
    group is decided.
    """

    __slots__ = (
        "_append",
        "_commits",
        "_context",
        "_hashes",
        "_image",
        "_is_closed",
        "_leading",
        "_line_over",
        "_lines",
        "_settings",
        "_timers",
        "topics_created_version",
    )

    def __init__(
        self,
        context: CoordinatorContext,
        append: Callable[[bytes], Deferred[int]],
        image: Callable[[], MetadataImage],
        settings: Callable[[str], ConsumerGroupSettings],
        line_over: Callable[[ConsumerGroup], None] = _ignore,
    ) -> None:
        self._context, self._append = context, append
        self._image, self._settings, self._line_over = image, settings, line_over
        self._leading: dict[ConsumerGroup, Sequence[KeyValue]] = {}
        self._hashes = TopicHashes()
        self._lines: dict[ConsumerGroup, deque[_Job]] = {}
        self._commits: dict[ConsumerGroup, list[_Commit]] = {}
        self._timers: dict[_TimerKey, SessionTimer] = {}
        self._is_closed = False
        # The offset of the last image in which topics were new.
        self.topics_created_version = -1

    # what is asked
    def heartbeat(
        self,
        group: ConsumerGroup,
        request: HeartbeatRequest,
        may_describe: Callable[[str], bool] = _sees_all,
    ) -> Deferred[HeartbeatAnswer]:
        """Fires with the answer, or fails with BrokerError. The request has passed
        `check_request`.
        """
        answer: Deferred[HeartbeatAnswer] = Deferred()
        decide = leave if request.member_epoch < 0 else heartbeat
        self._ask(
            group,
            _Job(lambda: decide(group, request, self._environment(group)), answer, may_describe),
        )
        return answer

    def leave_several(
        self, group: ConsumerGroup, leavers: Sequence[tuple[str, str | None]]
    ) -> Deferred[list[LeaveAnswer]]:
        """A LeaveGroup: (member id, instance id) each. Fires, or fails with BrokerError."""
        answer: Deferred[list[LeaveAnswer]] = Deferred()
        self._ask(
            group,
            _Job(lambda: leave_several(group, leavers, self._environment(group)), answer),
        )
        return answer

    def describe(self, group: ConsumerGroup) -> Deferred[DescribedGroup]:
        """Fires with the group once that is committed, or fails with BrokerError."""
        answer: Deferred[DescribedGroup] = Deferred()
        self._ask(group, _Job(lambda: describe(group, self._environment(group)), answer))
        return answer

    def begin_with(self, group: ConsumerGroup, leading: Sequence[KeyValue]) -> None:
        """The first batch of the group is to begin with these: the tombstone of a group of
        another kind, whose place it takes.
        """
        self._leading[group] = leading

    def group_loaded(self, group: ConsumerGroup) -> None:
        """Starts the timers of all its members."""
        for member in group.members.values():
            session_ms = self._settings(group.group_id).session_timeout_ms
            self._set_timer(group, TimerChange(ConsumerTimer.SESSION, member.member_id, session_ms))
            if member.state is UNREVOKED:
                self._set_timer(
                    group,
                    TimerChange(
                        ConsumerTimer.REBALANCE,
                        member.member_id,
                        member.rebalance_timeout_ms,
                        member.epoch,
                    ),
                )

    def lives(self, group: ConsumerGroup, member_id: str) -> None:
        """The session of the member, if it is one, begins anew."""
        if member_id in group.members:
            session_ms = self._settings(group.group_id).session_timeout_ms
            self._set_timer(group, TimerChange(ConsumerTimer.SESSION, member_id, session_ms))

    def is_in_line(self, group: ConsumerGroup) -> bool:
        """Whether something asked of it is not decided."""
        return group in self._lines

    def is_busy(self, group: ConsumerGroup) -> bool:
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
        commits, self._commits = self._commits, {}
        for line in lines.values():
            for job in line:
                _refuse(job, ErrorCode.NOT_COORDINATOR)
        for commit in chain.from_iterable(commits.values()):
            commit.end(ErrorCode.NOT_COORDINATOR)

    # one after the other
    def _ask(self, group: ConsumerGroup, job: _Job) -> None:
        if self._is_closed or group.is_dead:
            _refuse(job, ErrorCode.NOT_COORDINATOR)
            return
        line = self._lines.get(group)
        if line is not None:
            line.append(job)
            return
        self._lines[group] = deque([job])
        self._context.turns.start(self._line_steps(group))

    def _line_steps(self, group: ConsumerGroup) -> Steps:
        line = self._lines[group]
        while True:
            yield from self._do(group, line[0])
            if self._is_closed:
                return
            line.popleft()
            if not line:
                del self._lines[group]
                self._leading.pop(group, None)
                self._line_over(group)
                return
            yield None

    def _do(self, group: ConsumerGroup, job: _Job) -> Generator[None, None, None]:
        try:
            decision = yield from job.decide()
            batch = b""
            if decision.records:
                batch = yield from batch_in_steps(
                    chain(self._leading.get(group, ()), map(encode_record, decision.records)),
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

    def _write(self, group: ConsumerGroup, job: _Job, decision: Decision, batch: bytes) -> None:
        outcome = self._append(batch)
        refused = refusal(outcome)
        if refused is not None:
            error = append_error(refused)
            outcome.addErrback(lambda _: None)
            self._set_timers(group, decision, sessions_only=True)
            _refuse(job, error)
            return
        self._leading.pop(group, None)
        commit = _Commit()
        self._commits.setdefault(group, []).append(commit)
        self._carry_out(group, job, decision)
        outcome.addCallbacks(
            lambda _: self._committed(ErrorCode.NONE, group, commit),
            lambda failure: self._not_committed(failure, group, commit),
        )

    def _committed(self, error: ErrorCode, group: ConsumerGroup, commit: _Commit) -> None:
        if not self._is_closed:
            self._commits[group].remove(commit)
            if not self._commits[group]:
                del self._commits[group]
            commit.end(error)

    def _not_committed(self, failure: Failure, group: ConsumerGroup, commit: _Commit) -> None:
        error = append_error(failure)
        if isinstance(failure.value, AppendUndecided) and not self._is_closed:
            commit.end(error)
            commit.undecided = error
            failure.value.outcome().addBoth(lambda _: self._committed(error, group, commit))
        else:
            self._committed(error, group, commit)

    def _carry_out(self, group: ConsumerGroup, job: _Job, decision: Decision) -> None:
        decision.apply(group)
        self._set_timers(group, decision)
        if job.answer is not None and decision.answer is not None:
            commits = self._commits.get(group)
            if commits is None:
                job.answer.callback(decision.answer)
            elif commits[-1].undecided is not ErrorCode.NONE:
                job.answer.errback(BrokerError(commits[-1].undecided))
            else:
                commits[-1].waiting.append((job.answer, decision.answer))
        if decision.resolves_patterns and not self._is_closed:
            self._begin_refresh(group, job.may_describe)

    def _environment(self, group: ConsumerGroup) -> Environment:
        return Environment(
            self._image(),
            self._hashes,
            self._context.wall_ms(),
            self._settings(group.group_id),
            self.topics_created_version,
        )

    # patterns
    def _begin_refresh(self, group: ConsumerGroup, may_describe: Callable[[str], bool]) -> None:
        group.pattern_refresh.is_running = True
        group.pattern_refresh.began_at_ms = self._context.wall_ms()
        self._context.turns.start(self._refresh_steps(group, may_describe))

    def _refresh_steps(self, group: ConsumerGroup, may_describe: Callable[[str], bool]) -> Steps:
        image = self._image()
        try:
            resolved = yield from resolve_patterns(
                tuple(group.subscriptions.patterns), image, may_describe, self._context.wall_ms()
            )
        except Exception:
            _logger.failure("the patterns of group {group} stay", group=group.group_id)
            return
        finally:
            group.pattern_refresh.is_running = False
        group.pattern_refresh.version = image.offset
        self._ask(group, _Job(lambda: patterns_resolved(group, resolved, self._environment(group))))

    # timers
    def _set_timers(
        self, group: ConsumerGroup, decision: Decision, sessions_only: bool = False
    ) -> None:
        for change in decision.timers:
            is_session = change.kind is ConsumerTimer.SESSION
            if change.delay_ms is None and not sessions_only:
                self._end_timer((group, change.kind, change.member_id))
            elif change.member_id in group.members and (is_session or not sessions_only):
                self._set_timer(group, change)

    def _set_timer(self, group: ConsumerGroup, change: TimerChange) -> None:
        if change.delay_ms is None or self._is_closed:
            return
        key = (group, change.kind, change.member_id)
        running = self._timers.get(key)
        if running is not None and change.epoch is None:
            running.reset(change.delay_ms / 1000)
            return
        self._end_timer(key)
        self._timers[key] = SessionTimer(
            self._context.clock, change.delay_ms / 1000, self._expired, key, change
        )

    def _end_timer(self, key: _TimerKey) -> None:
        running = self._timers.pop(key, None)
        if running is not None:
            running.cancel()

    def _expired(self, key: _TimerKey, change: TimerChange) -> None:
        # Before anything else: what follows may set the same timer again.
        del self._timers[key]
        group = key[0]

        def again() -> None:
            if key not in self._timers and change.member_id in group.members:
                delay_ms = int(AGAIN_SECONDS * 1000)
                self._set_timer(
                    group, TimerChange(change.kind, change.member_id, delay_ms, change.epoch)
                )

        self._ask(group, _Job(lambda: self._remove_if_still(key, change), refused=again))

    def _remove_if_still(
        self, key: _TimerKey, change: TimerChange
    ) -> Generator[None, None, Decision]:
        """Not if a heartbeat that stood in line before has set the timer again."""
        group = key[0]
        member = group.members.get(change.member_id)
        has_moved = member is not None and change.epoch not in (None, member.epoch)
        if member is None or has_moved or key in self._timers:
            return Decision()
        members: Collection[str] = [member.member_id]
        return (yield from remove_members(group, members, self._environment(group)))


def _refuse(job: _Job, error: ErrorCode) -> None:
    if job.answer is not None:
        job.answer.errback(BrokerError(error))
    if job.refused is not None:
        job.refused()
