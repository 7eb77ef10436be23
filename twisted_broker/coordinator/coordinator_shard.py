"""One partition of `__consumer_offsets` that this broker leads: its groups, and the running of what
is decided about them. Ring 1.

Owns `CoordinatorShard`.

1. Effects run after the decision has returned: a request that is answered may be followed by the
   next one at once, and then finds the group in its new state. Timers are set at once, so that they
   always fit the newest decision. Answers and records go first in, first out: up to `AT_ONCE` at
   once, the rest (a rebalance may have thousands) in turns of their own. A large record
   (`LARGE_MEMBERS`, `LARGE_BYTES`) is encoded in steps, in turns of its own; what comes after it
   waits.
2. A record that cannot be made is a failed write like any other; the queue goes on.
3. What an append answers after the shard is closed changes nothing.
4. A closed shard appends nothing: the next leader may have read the partition already.
5. A group may become one of another protocol: while it has no members, and with them as
   `consumer/migration.py` says. Its tombstones are in the batch of the successor's first record;
   until that is in the log the group can come back, and its timers wait.

Source: Apache Kafka 4.3.1 `GroupCoordinatorShard`, `CoordinatorRuntime.CoordinatorContext`. Not
here: what is decided (`group_metadata_manager.py`), offsets (`offset_metadata_manager.py`),
reading the partition (`coordinator_loader.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Set
from enum import Enum
from typing import Any

from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed

from twisted_broker.coordinator.bucket_dict import BucketDict
from twisted_broker.coordinator.classic_group import ClassicGroup
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.migration import Upgrade
from twisted_broker.coordinator.consumer.requests import HeartbeatAnswer, HeartbeatRequest
from twisted_broker.coordinator.consumer_group_runner import ConsumerGroupRunner
from twisted_broker.coordinator.coordinator_context import (
    CoordinatorContext,
    append_error,
    refusal,
)
from twisted_broker.coordinator.coordinator_timer import CoordinatorTimer
from twisted_broker.coordinator.effects import (
    AssignmentStored,
    CancelTimer,
    CompleteRequest,
    GroupEmptied,
    Purpose,
    RebalanceStarted,
    ScheduleTimer,
    TimerKind,
    WriteGroup,
)
from twisted_broker.coordinator.group_entry import Group, GroupEntry
from twisted_broker.coordinator.group_metadata_manager import GroupMetadataManager
from twisted_broker.coordinator.group_offsets import GroupOffsets
from twisted_broker.coordinator.group_records import (
    KeyValue,
    batch_of,
    group_record,
    group_record_in_steps,
    member_bytes,
)
from twisted_broker.coordinator.group_runner import GroupRunner
from twisted_broker.coordinator.modern_group import ModernGroup
from twisted_broker.coordinator.offset_metadata_manager import OffsetMetadataManager
from twisted_broker.coordinator.record_codec import encode_record
from twisted_broker.coordinator.share.group import ShareGroup
from twisted_broker.coordinator.share_group_runner import ShareGroupRunner
from twisted_broker.coordinator.streams.group import StreamsGroup
from twisted_broker.coordinator.streams_group_runner import StreamsGroupRunner
from twisted_broker.log.append_info import EndMarker
from twisted_broker.log.verification import Guard
from twisted_broker.wire.errors import BrokerError, ErrorCode

# Each may answer waiting requests: about a millisecond.
UNLOADED_PER_STEP = 200
# An answer is a tenth of a millisecond: it is encoded and sent.
AT_ONCE, RUN_PER_STEP = 20, 5
# Each compares the names that its members subscribe to.
TOLD_PER_STEP = 100
SUSPENDED_TIMER_MS = 500
# A group's record costs some 10 us for each member, and 4 ms for each MiB.
LARGE_MEMBERS, LARGE_BYTES = 300, 1 << 20


class CoordinatorState(Enum):
    """Requests are served while it is ACTIVE; while it is READABLE those that read what is
    committed.
    """

    LOADING = "loading"
    READABLE = "readable"
    ACTIVE = "active"
    CLOSED = "closed"


def _is_large(effect: CompleteRequest | WriteGroup) -> bool:
    """Whether it is a record that is encoded in steps."""
    return isinstance(effect, WriteGroup) and (
        len(effect.metadata.members) > LARGE_MEMBERS or member_bytes(effect.metadata) > LARGE_BYTES
    )


DeletedTopics = dict[str, set[bytes]]
"""Topic ids by name. With the null id, offsets that were committed without a topic id go, too."""


def _forget_steps(groups: BucketDict[str, GroupEntry]) -> Iterator[None]:
    number = 0
    while groups:
        yield from groups.popitem()[1].offsets.forget_steps()
        number += 1
        if number % UNLOADED_PER_STEP == 0:
            yield


class CoordinatorShard:
    """The groups of one partition, led here at `leader_epoch`. `deleted_topics`: topics deleted
    since the load began, whose offsets are still to be removed. `undecided_groups`: while it is
    READABLE, those whose last record may still be lost. `modern_groups`: the names
    of those that are not classic.
    """

    __slots__ = (
        "_has_steps",
        "_is_running_effects",
        "_predecessors",
        "_runners",
        "_timer",
        "_waiting",
        "consumers",
        "context",
        "deleted_topics",
        "groups",
        "index",
        "leader_epoch",
        "manager",
        "modern_groups",
        "offsets",
        "shares",
        "state",
        "streams",
        "undecided_groups",
    )

    def __init__(self, context: CoordinatorContext, index: int, leader_epoch: int) -> None:
        self.context, self.index, self.leader_epoch = context, index, leader_epoch
        self.state = CoordinatorState.LOADING
        self.deleted_topics: list[DeletedTopics] = []
        self.undecided_groups: set[str] = set()
        self.groups: BucketDict[str, GroupEntry] = BucketDict()
        self.manager = GroupMetadataManager(lambda: context.settings.group)
        self.offsets = OffsetMetadataManager(context, self.append, self.append_end_marker)
        self.consumers = ConsumerGroupRunner(
            context, self.append, context.image, context.consumer_settings, self
        )
        self.shares = ShareGroupRunner(
            context,
            self.append,
            context.image,
            context.share_settings,
            lambda: context.persister,
            self,
        )
        self.streams = StreamsGroupRunner(
            context, self.append, context.image, context.streams_settings, self
        )
        self._runners: dict[type[ModernGroup], GroupRunner[Any]] = {
            ConsumerGroup: self.consumers,
            ShareGroup: self.shares,
            StreamsGroup: self.streams,
        }
        self.modern_groups: BucketDict[str, None] = BucketDict()
        # By a group whose first record is not in the log yet: whose place it takes, None: nobody's.
        self._predecessors: dict[Group, Group | None] = {}
        self._timer = CoordinatorTimer(context.clock, self._timer_expired)
        self._is_running_effects = self._has_steps = False
        self._waiting: deque[CompleteRequest | WriteGroup] = deque()

    # groups
    def entry_to_change(self, group_id: str) -> GroupEntry | None:
        """None when there is no such group; raises COORDINATOR_NOT_AVAILABLE while it is being
        deleted.
        """
        entry = self.groups.get(group_id)
        if entry is not None and entry.is_being_deleted:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return entry

    def create(self, group_id: str) -> GroupEntry:
        assert group_id not in self.groups
        group = ClassicGroup(group_id, self.context.wall_ms())
        entry = self.groups[group_id] = GroupEntry(group)
        return entry

    def load_modern_group(self, group: ModernGroup, offsets: GroupOffsets | None) -> None:
        self.groups[group.group_id] = GroupEntry(group, offsets)
        self.modern_groups[group.group_id] = None

    def runner_of(self, group: ModernGroup) -> GroupRunner[Any]:
        """Of the group's kind."""
        return self._runners[type(group)]

    def begin_modern_group(self, group: ModernGroup, entry: GroupEntry | None) -> None:
        """`group` is for a heartbeat that joins; in the place of the classic one of `entry`. If the
        heartbeat is refused, all is as it was.
        """
        group_id = group.group_id
        if entry is None:
            self.groups[group_id] = GroupEntry(group)
            self._predecessors[group] = None
            self.runner_of(group).begin(group)
        else:
            self.runner_of(group).begin(group, [group_record(group_id, None)])
            self._predecessors[group] = entry.group
            entry.group = group
        self.modern_groups[group_id] = None

    def upgraded(
        self,
        entry: GroupEntry,
        before: ClassicGroup,
        request: HeartbeatRequest,
        may_describe: Callable[[str], bool],
    ) -> Deferred[HeartbeatAnswer]:
        """The answer to a heartbeat that makes a consumer group of the classic one of `entry`,
        which has members.
        """
        upgrade, group = Upgrade(before), ConsumerGroup(before.group_id)
        self.begin_modern_group(group, entry)
        # Whoever waits for a generation joins the consumer group instead.
        self.manager.ask_to_join_again(before)
        self.run_effects()
        return self.consumers.upgrade(group, upgrade, request, may_describe)

    def standing(self, entry: GroupEntry) -> Group:
        """The group of `entry`, or while that is not begun the one whose place it is to take."""
        group = entry.group
        before = self._predecessors.get(group) if isinstance(group, ModernGroup) else None
        return before or group

    def first_decided(self, group: ModernGroup, is_begun: bool) -> None:
        """See `GroupKeeper`."""
        before = self._predecessors.pop(group, None)
        if is_begun:
            if isinstance(before, ClassicGroup):
                self._forget(before)
                if before.members:
                    self._log_change("group upgraded", before)
            return
        del self.modern_groups[group.group_id]
        entry = self.groups[group.group_id]
        group.is_dead = True
        if before is not None:
            entry.group = before
        elif entry.offsets.is_empty():
            del self.groups[group.group_id]
        else:
            entry.group = ClassicGroup(group.group_id, self.context.wall_ms())

    def downgraded(self, group: ModernGroup, successor: ClassicGroup, rebalances: bool) -> None:
        """See `GroupKeeper`."""
        group.is_dead = True
        self.modern_groups.pop(group.group_id, None)
        self.groups[group.group_id].group = successor
        self._log_change("group downgraded", successor)
        self.manager.group_downgraded(successor, rebalances, self.context.wall_ms())
        self.run_effects()

    def begin_classic_group(self, entry: GroupEntry) -> ClassicGroup:
        """A group for a JoinGroup, in the place of the empty group of `entry`."""
        before = entry.group
        entry.group = group = ClassicGroup(before.group_id, self.context.wall_ms())
        self._predecessors[group] = before
        return group

    def refused_to_join(self, entry: GroupEntry) -> None:
        """A JoinGroup made the group of `entry`, and then was refused, or its first record was."""
        group = entry.group
        if not isinstance(group, ClassicGroup) or group.members or group.pending_joins:
            return
        before = self._predecessors.pop(group, None)
        if before is not None:
            entry.group = before
        elif entry.is_idle and self.groups.get(group.group_id) is entry:
            del self.groups[group.group_id]

    def _tombstones_before(self, group: ClassicGroup) -> list[KeyValue]:
        before = self._predecessors.get(group)
        if not isinstance(before, ModernGroup):
            return []
        return [encode_record(each) for each in before.tombstones()]

    def _has_begun(self, group: ClassicGroup) -> None:
        """Its first record is in the log."""
        before = self._predecessors.pop(group, None)
        if isinstance(before, ModernGroup):
            before.is_dead = True
            self.modern_groups.pop(group.group_id, None)

    def topics_changed_steps(self, names: Set[str]) -> Iterator[None]:
        """Tells the groups that subscribe to one of them, in steps."""
        number = 0
        for part in self.modern_groups.parts():
            for group_id in part:
                entry = self.groups.get(group_id)
                if entry is not None and isinstance(entry.group, ModernGroup):
                    entry.group.topics_changed(names)
                    if isinstance(entry.group, ShareGroup):
                        self.shares.topics_gone(entry.group)
                number += 1
                if number % TOLD_PER_STEP == 0:
                    yield

    def group_loaded(self, group: Group) -> None:
        """Starts the sessions of its members."""
        if isinstance(group, ModernGroup):
            self.runner_of(group).group_loaded(group)
        else:
            self.manager.group_loaded(group, self.context.wall_ms())
            self.run_effects()

    def is_settled(self, entry: GroupEntry) -> bool:
        """Whether nobody is about to join or to leave."""
        group = entry.group
        if isinstance(group, ModernGroup):
            return not self.runner_of(group).is_busy(group)
        return not group.pending_joins

    def is_being_changed(self, group: Group) -> bool:
        """Whether a record of the group was decided on, or is being decided, and is not in the log
        yet.
        """
        if isinstance(group, ModernGroup):
            return self.runner_of(group).is_in_line(group)
        return any(
            isinstance(effect, WriteGroup) and effect.group is group for effect in self._waiting
        )

    def remove(self, entry: GroupEntry) -> None:
        """Drops a group from memory; its waiting requests are answered NOT_COORDINATOR."""
        if self.groups.get(entry.group.group_id) is entry:
            del self.groups[entry.group.group_id]
        self._forget(entry.group)

    def _forget(self, group: Group) -> None:
        if isinstance(group, ModernGroup):
            group.is_dead = True
            self.modern_groups.pop(group.group_id, None)
            return
        self._predecessors.pop(group, None)
        self.manager.group_unloaded(group, ErrorCode.NOT_COORDINATOR, self.context.wall_ms())
        self.run_effects()

    def unload_steps(self) -> Iterator[None]:
        """Another broker leads the partition: closed with the first step, empty with the last."""
        # First: what is answered below may come back as a new request, which must be refused.
        self.state = CoordinatorState.CLOSED
        self._timer.close()
        for runner in self._runners.values():
            runner.close()
        number = 0
        while self.groups:
            _, entry = self.groups.popitem()
            group = entry.group
            # Without a member there is no timer and no waiting request.
            if isinstance(group, ModernGroup) or group.members or group.pending_joins:
                self.remove(entry)
            yield from entry.offsets.forget_steps()
            number += 1
            if number % UNLOADED_PER_STEP == 0:
                yield

    def clear(self) -> None:
        """What was loaded, and is to be loaded anew, is freed in steps. No session has begun."""
        # Whoever walks over these groups sees that they are not the shard's any more.
        groups, self.groups = self.groups, BucketDict()
        self.modern_groups = BucketDict()
        self.undecided_groups = set()
        self.context.turns.start(_forget_steps(groups))

    # effects
    def run_effects(self) -> None:
        """Runs what was decided: up to `AT_ONCE` answers and records now, the rest in later turns.
        A call from inside an effect leaves its effects to the outer call.
        """
        if self._is_running_effects:
            return
        self._run_effects(AT_ONCE)
        if self._waiting and not self._has_steps:
            self._has_steps = True
            self.context.turns.start(self._effect_steps())

    def run_all_effects(self) -> None:
        """As `run_effects`, whatever that takes: for the end, after which there is no turn."""
        while self._waiting or self.manager.effects.queue:
            self._run_effects(AT_ONCE, large_too=True)

    def _effect_steps(self) -> Iterator[None]:
        try:
            while self._waiting:
                write = self._waiting[0]
                if isinstance(write, WriteGroup) and _is_large(write):
                    yield from self._write_in_steps(write)
                    continue
                self._run_effects(RUN_PER_STEP)
                yield
        finally:
            self._has_steps = False

    def _write_in_steps(self, write: WriteGroup) -> Iterator[None]:
        """The record stays first in the queue until it is encoded, unless the broker stops."""
        yield  # not in the turn of the decision
        record: Deferred[KeyValue]
        try:
            record = succeed((yield from group_record_in_steps(write.metadata)))
        except BrokerError as error:
            record = fail(error)
        yield
        if self._waiting and self._waiting[0] is write:
            self._waiting.popleft()
            self._append_group(write, record)

    def _run_effects(self, most: int, large_too: bool = False) -> None:
        """Sets all timers, and runs at most `most` answers and records."""
        self._is_running_effects = True
        queue, waiting = self.manager.effects.queue, self._waiting
        try:
            while True:
                while queue:
                    effect = queue.popleft()
                    if isinstance(effect, ScheduleTimer):
                        self._timer.schedule(effect)
                    elif isinstance(effect, CancelTimer):
                        self._timer.cancel(effect)
                    elif isinstance(effect, RebalanceStarted):
                        self._log_rebalance_started(effect)
                    else:
                        waiting.append(effect)
                if not waiting or not most or not (large_too or not _is_large(waiting[0])):
                    break
                most -= 1
                self._run(waiting.popleft())
        finally:
            self._is_running_effects = False

    def _run(self, effect: CompleteRequest | WriteGroup) -> None:
        if isinstance(effect, WriteGroup):
            self._write_group(effect)
        else:
            assert isinstance(effect.token, Deferred)
            effect.token.callback(effect.answer)

    def _timer_expired(self, group: ClassicGroup, kind: TimerKind, member_id: str) -> None:
        entry = self.groups.get(group.group_id)
        if entry is not None and entry.group is not group and not group.is_dead:
            # A consumer group is about to take its place.
            self._timer.schedule(ScheduleTimer(group, kind, member_id, SUSPENDED_TIMER_MS))
            return
        self.manager.timer_expired(group, kind, member_id, self.context.wall_ms())
        self.run_effects()

    def _write_group(self, write: WriteGroup) -> None:
        record = maybeDeferred(group_record, write.metadata.group_id, write.metadata)
        self._append_group(write, record)

    def _append_group(self, write: WriteGroup, record: Deferred[KeyValue]) -> None:
        group = write.group

        def append(made: KeyValue) -> Deferred[int]:
            records = [*self._tombstones_before(group), made]
            outcome = self.append(batch_of(records, self.context.wall_ms()))
            if refusal(outcome) is None:
                self._has_begun(group)
            return outcome

        record.addCallback(append).addCallbacks(lambda _: ErrorCode.NONE, append_error).addCallback(
            self._group_written, group, write.purpose
        )

    def _group_written(self, error: ErrorCode, group: ClassicGroup, purpose: Purpose) -> None:
        # A write that ends after the unload decides nothing here: the new coordinator has read it.
        if self.state is not CoordinatorState.CLOSED:
            if error is ErrorCode.NONE:
                self._log_rebalance_completed(group, purpose)
            self.manager.write_ended(group, purpose, error, self.context.wall_ms())
            self.run_effects()
            entry = self.groups.get(group.group_id)
            if group in self._predecessors and entry is not None and entry.group is group:
                self.refused_to_join(entry)

    def _log_change(self, what: str, group: ClassicGroup) -> None:
        self.context.lines.add(
            what, group=group.group_id, generation=group.generation, members=len(group.members)
        )

    def _log_rebalance_started(self, effect: RebalanceStarted) -> None:
        self.context.lines.add(
            "rebalance started",
            group=effect.group_id,
            generation=effect.generation,
            members=effect.members,
            reason=effect.reason,
        )

    def _log_rebalance_completed(self, group: ClassicGroup, purpose: Purpose) -> None:
        """A rebalance is over when its assignment is stored."""
        if isinstance(purpose, AssignmentStored):
            self.context.rebalances[group.group_type] += 1
            self.context.lines.add(
                "rebalance completed",
                group=group.group_id,
                generation=purpose.generation,
                members=len(group.members),
                protocol=group.protocol_name,
                leader=group.leader,
            )
        elif isinstance(purpose, GroupEmptied):
            self.context.lines.add(
                "group is empty", group=group.group_id, generation=group.generation
            )

    def append(self, batch: bytes, guard: Guard = None) -> Deferred[int]:
        """Fires with the batch's base offset, fails with BrokerError. `guard`: see
        `IOffsetsStore`.
        """
        if self.state is CoordinatorState.CLOSED:
            return fail(BrokerError(ErrorCode.NOT_COORDINATOR))
        return self.context.store.append(
            self.index, batch, self.context.settings.commit_timeout_ms, guard
        )

    def append_end_marker(self, marker: EndMarker) -> Deferred[int]:
        """As `append`."""
        if self.state is CoordinatorState.CLOSED:
            return fail(BrokerError(ErrorCode.NOT_COORDINATOR))
        return self.context.store.append_end_marker(
            self.index, marker, self.context.settings.commit_timeout_ms
        )
