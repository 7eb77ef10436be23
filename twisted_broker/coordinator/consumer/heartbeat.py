"""The decision on a heartbeat: `heartbeat(group, request, environment)`.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns the steps of a heartbeat that is no leave, in order: the member, its pattern, the group epoch,
the target, the member's next step, the answer. `MemberChange` has those that a JoinGroup of a
classic member takes as well.

1. Nothing is changed: see `group_decision.py`. A heartbeat that changes nothing writes nothing.
2. The group epoch rises once at most, and the records stand in Kafka's order.
3. The target is computed when the group is ahead of it, and the interval since the last time is
   over: until then the old one stays in force, and some later heartbeat computes.

Source: Apache Kafka 4.3.1 `GroupMetadataManager.consumerGroupHeartbeat`. Not here: checks without
the group (`requests.py`), leaving (`leaving.py`), whether the group exists and of which kind it is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace

from twisted_broker.coordinator.consumer.decision import ConsumerGroupDecision, Environment
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.member import (
    JOIN_EPOCH,
    NO_TIMEOUT,
    UNREVOKED,
    ConsumerGroupMember,
)
from twisted_broker.coordinator.consumer.membership import Found, find_member
from twisted_broker.coordinator.consumer.partitions import Target
from twisted_broker.coordinator.consumer.patterns import must_resolve, pattern_change
from twisted_broker.coordinator.consumer.reconcile import reconcile
from twisted_broker.coordinator.consumer.records import (
    epoch_record,
    member_tombstones,
    partition_metadata_tombstone,
    target_epoch_record,
    target_record,
)
from twisted_broker.coordinator.consumer.requests import HeartbeatAnswer, HeartbeatRequest
from twisted_broker.coordinator.consumer.subscriptions import Subscriptions
from twisted_broker.coordinator.consumer.target import compute_targets
from twisted_broker.coordinator.group_decision import GroupTimer, TimerChange, is_assignment_due
from twisted_broker.wire.messages.group_records import ClassicMemberMetadata

# A record is some 10 us (`turns.py`, invariant 4).
TARGETS_PER_STEP = 100


def heartbeat(
    group: ConsumerGroup, request: HeartbeatRequest, environment: Environment
) -> Generator[None, None, ConsumerGroupDecision]:
    """The decision, in steps. `group` is one that was just made if the request creates it. Raises
    BrokerError.
    """
    return (yield from _Heartbeat(group, request, environment).decide())


class MemberChange:
    """A member's heartbeat; `_member` becomes the member as it is afterwards.
    `classic`: it is of the classic protocol.
    """

    def __init__(
        self,
        group: ConsumerGroup,
        request: HeartbeatRequest,
        environment: Environment,
        found: Found,
        classic: ClassicMemberMetadata | None = None,
    ) -> None:
        self._group, self._request, self._environment = group, request, environment
        self._classic = classic
        self._stored, self._found, self._member = found.stored, found.member, found.member
        self._is_replacement = found.is_replacement
        self._displaced = found.displaced
        self._decision = ConsumerGroupDecision()
        self._records = self._decision.records
        self._epoch, self._target_epoch = group.epoch, group.assignment_epoch
        self._target = Target() if self._stored is None else group.target(self._stored.member_id)
        self._resolved: Mapping[str, tuple[str, ...]] = group.resolved()
        self._subscription_changed = False

    def _change(self) -> Iterator[None]:
        """The member, its pattern, the group epoch."""
        if self._stored is not None and self._is_replacement:
            self._replace(self._stored)
        self._update()
        before, after = self._found, self._member
        pattern = pattern_change(self._group, before.pattern, after.pattern)
        self._records += pattern.records
        names_changed = set(before.names) != set(after.names)
        self._subscription_changed = names_changed or pattern.is_changed
        yield from self._follow_metadata(names_changed or pattern.is_resolved)

    def _move(self) -> Iterator[None]:
        """The target, and the member's next step towards it."""
        if self._epoch > self._target_epoch and self._is_due():
            yield from self._assign()
        self._reconcile()

    def _replace(self, replaced: ConsumerGroupMember) -> None:
        """Another member takes the place of a static one, with its target and its partitions."""
        group_id = self._group.group_id
        self._records += member_tombstones(group_id, replaced.member_id)
        self._decision.end_timers(replaced.member_id)
        self._records += (
            self._member.metadata_record(group_id),
            target_record(group_id, self._member.member_id, self._target),
            self._member.assignment_record(group_id),
        )

    def _update(self) -> None:
        """The member with the request's fields; those that it leaves out stay."""
        request, member = self._request, self._found
        timeout_ms = request.rebalance_timeout_ms
        self._member = replace(
            member,
            instance_id=_said(request.instance_id, member.instance_id),
            rack_id=_said(request.rack_id, member.rack_id),
            rebalance_timeout_ms=(
                member.rebalance_timeout_ms if timeout_ms == NO_TIMEOUT else timeout_ms
            ),
            assignor=_said(request.assignor, member.assignor),
            names=member.names if request.names is None else tuple(sorted({*request.names})),
            pattern=member.pattern if request.pattern is None else request.pattern,
            client_id=request.client_id,
            client_host=request.client_host,
            classic=self._classic,
        )
        if self._stored is None or self._member != member:
            self._records.append(self._member.metadata_record(self._group.group_id))

    def _follow_metadata(self, must_bump: bool) -> Iterator[None]:
        """Another group epoch, for a subscription or for topics that changed."""
        group = self._group
        if not must_bump and not group.must_compare_metadata:
            return
        self._decision.metadata_mark = group.metadata_mark()
        metadata_hash = yield from self._environment.hashes.of_group(
            self._environment.image, self._subscriptions().topics(self._resolved)
        )
        if must_bump or metadata_hash != group.metadata_hash:
            self._epoch = group.epoch + 1
            if group.has_partition_metadata:
                self._records.append(partition_metadata_tombstone(group.group_id))
            self._records.append(epoch_record(group.group_id, self._epoch, metadata_hash))

    def _subscriptions(self) -> Subscriptions:
        subscriptions = self._group.subscriptions.changed(self._stored, self._member)
        subscriptions.change(self._displaced, None)
        return subscriptions

    def _is_due(self) -> bool:
        environment = self._environment
        interval_ms = environment.settings.assignment_interval_ms
        return is_assignment_due(self._group, environment.wall_ms, interval_ms)

    def _assign(self) -> Iterator[None]:
        group, environment = self._group, self._environment
        subscriptions = self._subscriptions()
        targets = yield from compute_targets(
            self._members(),
            subscriptions,
            self._resolved,
            environment.image,
            subscriptions.preferred_assignor(environment.settings.assignors),
        )
        known = dict(group.targets)
        if self._is_replacement:
            known[self._member.member_id] = self._target
        for number, (member_id, target) in enumerate(targets.items(), 1):
            if known.get(member_id) != target:
                self._records.append(target_record(group.group_id, member_id, target))
            if number % TARGETS_PER_STEP == 0:
                yield
        self._records.append(target_epoch_record(group.group_id, self._epoch, environment.wall_ms))
        self._target_epoch, self._target = self._epoch, targets[self._member.member_id]

    def _members(self) -> Iterator[tuple[ConsumerGroupMember, Target]]:
        """All after this heartbeat, each with its target before it."""
        for member_id, member in self._group.members.items():
            if member is not self._stored and member is not self._displaced:
                yield member, self._group.target(member_id)
        yield self._member, self._target

    def _reconcile(self) -> None:
        before = self._member
        subscribed = {*before.names, *self._resolved.get(before.pattern, ())}
        topics = self._environment.image.topics_by_id

        def unsubscribed_from(topic_id: bytes) -> bool:
            topic = topics.get(topic_id)
            return topic is None or topic.name not in subscribed

        self._member = reconcile(
            before,
            self._target_epoch,
            self._target,
            self._request.owned,
            self._group.has_owner,
            unsubscribed_from,
            self._subscription_changed,
        )
        if self._member != before:
            self._records.append(self._member.assignment_record(self._group.group_id))


class _Heartbeat(MemberChange):
    """One heartbeat."""

    def __init__(
        self, group: ConsumerGroup, request: HeartbeatRequest, environment: Environment
    ) -> None:
        found = find_member(group, request, environment.settings.max_size)
        super().__init__(group, request, environment, found)

    def decide(self) -> Generator[None, None, ConsumerGroupDecision]:
        yield from self._change()
        said = self._member
        yield from self._move()
        if self._member != said:
            self._time_revocation()
        if self._found.classic is not None:
            self._decision.timers += (
                TimerChange(GroupTimer.JOIN, said.member_id),
                TimerChange(GroupTimer.SYNC, said.member_id),
            )
        self._decision.timers.append(
            TimerChange(
                GroupTimer.SESSION,
                said.member_id,
                self._environment.settings.session_timeout_ms,
            )
        )
        self._decision.resolves_patterns = must_resolve(
            self._group, said.pattern, self._environment
        )
        self._decision.answer = self._answer()
        return self._decision

    def _time_revocation(self) -> None:
        is_timed = self._member.state is UNREVOKED
        self._decision.timers.append(
            TimerChange(
                GroupTimer.REBALANCE,
                self._member.member_id,
                self._member.rebalance_timeout_ms if is_timed else None,
                self._member.epoch if is_timed else None,
            )
        )

    def _answer(self) -> HeartbeatAnswer:
        member = self._member
        has_assignment = (
            self._request.member_epoch == JOIN_EPOCH
            or self._request.is_full
            or member.assigned.keys() != self._found.assigned.keys()
        )
        return HeartbeatAnswer(
            member.member_id,
            member.epoch,
            self._environment.settings.heartbeat_interval_ms,
            Target(member.assigned) if has_assignment else None,
        )


def _said(new: str | None, known: str | None) -> str | None:
    return known if new is None else new
