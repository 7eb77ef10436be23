"""The decision on a heartbeat of a share group, and on a member that leaves.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `heartbeat`, `leave`, `remove_members`.

1. Nothing is changed: see `group_decision.py`. A heartbeat that changes nothing writes nothing.
2. The group epoch rises once at most, and the records stand in Kafka's order.
3. A member that names its present epoch, its previous one (an answer was lost) or 0 is let in: it
   says nothing of partitions that it has.
4. A target is computed when the group is ahead of it, and the interval since the last time is over.
   While it is not, partitions that are new raise no epoch: that waits, too.
5. Partitions of topics that somebody subscribes to get a state (`states.py`).

Source: Apache Kafka 4.3.1 `GroupMetadataManager.shareGroupHeartbeat`, `shareGroupLeave`,
`shareGroupFenceMember`, `ShareGroupAssignmentBuilder`. Not here: checks without the group
(`requests.py`), whether the group exists and of which kind it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterator
from dataclasses import replace

from twisted_broker.coordinator.consumer.member import JOIN_EPOCH
from twisted_broker.coordinator.consumer.partitions import Target
from twisted_broker.coordinator.consumer.requests import HeartbeatAnswer
from twisted_broker.coordinator.group_decision import (
    Decision,
    GroupTimer,
    TimerChange,
    is_assignment_due,
)
from twisted_broker.coordinator.member_epochs import member_of
from twisted_broker.coordinator.share.decision import ShareEnvironment, ShareGroupDecision
from twisted_broker.coordinator.share.group import ShareGroup
from twisted_broker.coordinator.share.member import ShareGroupMember
from twisted_broker.coordinator.share.records import (
    epoch_record,
    member_tombstones,
    target_epoch_record,
    target_record,
)
from twisted_broker.coordinator.share.requests import ShareHeartbeatRequest
from twisted_broker.coordinator.share.simple import assign_simply
from twisted_broker.coordinator.share.states import begin_initializing, to_initialize
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.wire.errors import BrokerError, ErrorCode

# A record is some 10 us (`turns.py`, invariant 4).
TARGETS_PER_STEP = 100
NEW_START = -1


def heartbeat(
    group: ShareGroup, request: ShareHeartbeatRequest, environment: ShareEnvironment
) -> Generator[None, None, ShareGroupDecision]:
    """The decision, in steps. `group` is one that was just made if the request creates it. Raises
    BrokerError.
    """
    return (yield from _Heartbeat(group, request, environment).decide())


class _Heartbeat:
    """One heartbeat; `_member` becomes what it makes of the member."""

    def __init__(
        self, group: ShareGroup, request: ShareHeartbeatRequest, environment: ShareEnvironment
    ) -> None:
        self._group, self._request, self._environment = group, request, environment
        self._stored = _find_member(group, request, environment.settings.max_size)
        self._found = self._stored or ShareGroupMember(request.member_id)
        self._member = self._found
        self._decision = ShareGroupDecision()
        self._records = self._decision.records
        self._epoch, self._target_epoch = group.epoch, group.assignment_epoch
        self._target = group.target(request.member_id)
        self._names: Counter[str] = group.names

    def decide(self) -> Generator[None, None, ShareGroupDecision]:
        group, environment = self._group, self._environment
        self._update()
        has_bumped = yield from self._follow_metadata()
        if self._epoch > self._target_epoch and is_assignment_due(
            group, environment.wall_ms, environment.settings.assignment_interval_ms
        ):
            yield from self._assign()
        self._reconcile(has_bumped)
        self._decision.timers.append(
            TimerChange(
                GroupTimer.SESSION,
                self._member.member_id,
                environment.settings.session_timeout_ms,
            )
        )
        self._initialize()
        self._decision.answer = self._answer()
        return self._decision

    def _update(self) -> None:
        """The member with the request's fields; those that it leaves out stay."""
        request, member = self._request, self._found
        self._member = replace(
            member,
            rack_id=member.rack_id if request.rack_id is None else request.rack_id,
            names=member.names if request.names is None else tuple(sorted({*request.names})),
            client_id=request.client_id,
            client_host=request.client_host,
        )
        if self._stored is None or self._member != member:
            self._records.append(self._member.metadata_record(self._group.group_id))

    def _follow_metadata(self) -> Generator[None, None, bool]:
        """Another group epoch, for a subscription, topics or states that changed. Whether."""
        group = self._group
        must_bump = self._member.names != self._found.names or (
            group.assignment_epoch >= group.epoch and group.lacks_target
        )
        if not must_bump and not group.must_compare_metadata:
            return False
        self._decision.metadata_mark = group.metadata_mark()
        self._names = group.names_after(self._stored, self._member)
        metadata_hash = yield from self._environment.hashes.of_group(
            self._environment.image, self._names
        )
        if not must_bump and metadata_hash == group.metadata_hash:
            return False
        self._epoch = group.epoch + 1
        self._records.append(epoch_record(group.group_id, self._epoch, metadata_hash))
        return True

    def _assign(self) -> Iterator[None]:
        group, image = self._group, self._environment.image
        members = {member_id: member.names for member_id, member in group.members.items()}
        members[self._member.member_id] = self._member.names
        topic_ids = {names: _topic_ids(names, image) for names in set(members.values())}
        states = group.known_states
        targets = yield from assign_simply(
            {
                member_id: (topic_ids[names], group.target(member_id))
                for member_id, names in members.items()
            },
            {
                topic_id: topic.partitions
                for topic_id, topic in states.initialized.items()
                if topic_id in image.topics_by_id
            },
        )
        for number, (member_id, target) in enumerate(targets.items(), 1):
            if group.targets.get(member_id) != target:
                self._records.append(target_record(group.group_id, member_id, target))
            if number % TARGETS_PER_STEP == 0:
                yield
        self._records.append(
            target_epoch_record(group.group_id, self._epoch, self._environment.wall_ms)
        )
        self._target_epoch, self._target = self._epoch, targets[self._member.member_id]

    def _reconcile(self, has_bumped: bool) -> None:
        """The member has its target at once."""
        before = self._member
        if before.epoch == self._target_epoch and not has_bumped:
            return
        subscribed = _topic_ids(before.names, self._environment.image)
        assigned = Target(each for each in self._target if each[0] in subscribed)
        if before.epoch != self._target_epoch:
            self._member = replace(
                before,
                epoch=self._target_epoch,
                previous_epoch=before.epoch,
                assigned=assigned,
            )
        else:
            self._member = replace(before, assigned=assigned)
        if self._member != before:
            self._records.append(self._member.assignment_record(self._group.group_id))

    def _initialize(self) -> None:
        topics = to_initialize(self._group, self._names, self._environment)
        if not topics:
            return
        begin_initializing(self._group, topics, self._decision, self._environment.wall_ms)
        self._decision.state_epoch = self._epoch
        self._decision.initialize = {
            (topic_id, number): NEW_START
            for topic_id, topic in topics.items()
            for number in topic.partitions
        }

    def _answer(self) -> HeartbeatAnswer:
        member, request = self._member, self._request
        has_assignment = (
            request.member_epoch == JOIN_EPOCH
            or request.names is not None
            or member.assigned != self._found.assigned
        )
        return HeartbeatAnswer(
            member.member_id,
            member.epoch,
            self._environment.settings.heartbeat_interval_ms,
            member.assigned if has_assignment else None,
        )


def leave(
    group: ShareGroup, request: ShareHeartbeatRequest, environment: ShareEnvironment
) -> Generator[None, None, Decision]:
    """The decision on a heartbeat of epoch -1, in steps. Raises BrokerError."""
    member_of(group, request.member_id)
    decision = yield from remove_members(group, [request.member_id], environment)
    decision.answer = HeartbeatAnswer(request.member_id, request.member_epoch)
    return decision


def remove_members(
    group: ShareGroup, member_ids: Collection[str], environment: ShareEnvironment
) -> Generator[None, None, Decision]:
    """Members of the group are gone, by their own wish or not: one decision, in steps."""
    decision = Decision(metadata_mark=group.metadata_mark())
    names = group.names.copy()
    for member_id in member_ids:
        names -= Counter(group.members[member_id].names)
        decision.records += member_tombstones(group.group_id, member_id)
        decision.end_timers(member_id)
    metadata_hash = yield from environment.hashes.of_group(environment.image, names)
    decision.records.append(epoch_record(group.group_id, group.epoch + 1, metadata_hash))
    return decision


def _find_member(
    group: ShareGroup, request: ShareHeartbeatRequest, max_size: int
) -> ShareGroupMember | None:
    """None: it is new. Raises BrokerError."""
    if len(group.members) >= max_size and request.member_id not in group.members:
        raise BrokerError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The share group has reached its maximum capacity of {max_size} members.",
        )
    if request.member_epoch == JOIN_EPOCH:
        return group.members.get(request.member_id)
    member: ShareGroupMember = member_of(group, request.member_id)
    received = request.member_epoch
    if received in (member.epoch, member.previous_epoch):
        return member
    relation = "greater" if received > member.epoch else "smaller"
    previous = (
        ""
        if received > member.epoch
        else f", and it does not match the previous member epoch ({member.previous_epoch})"
    )
    raise BrokerError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The share group member has a {relation} member epoch ({received}) than the one known by "
        f"the group coordinator ({member.epoch}){previous}. The member must abandon all its "
        "partitions and rejoin.",
    )


def _topic_ids(names: tuple[str, ...], image: MetadataImage) -> frozenset[bytes]:
    found = (image.topics_by_name.get(name) for name in names)
    return frozenset(topic.id for topic in found if topic is not None)
