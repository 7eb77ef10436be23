"""Requests of classic members of a consumer group.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `classic_join`, `classic_sync`, `classic_heartbeat`: JoinGroup, SyncGroup and Heartbeat.

1. Such a member is a member as any other: a JoinGroup is its full heartbeat, and names its
   partitions. Its generation is its member epoch, and no member leads.
2. It is told to join again when its target is ahead of it, when it has to give something up, and
   when the partitions that it waits for are free. It has its rebalance timeout to join, and as much
   again to sync.
3. The static member that replaces the last one of the consumer protocol makes the group classic.

Source: Apache Kafka 4.3.1 `GroupMetadataManager.classicGroupJoinToConsumerGroup`,
`classicGroupSyncToConsumerGroup`, `classicGroupHeartbeatToConsumerGroup`. Not here: LeaveGroup
(`leaving.py`), how a group changes its kind (`migration.py`).
"""

from __future__ import annotations

from collections.abc import Generator

from twisted_broker.coordinator.classic_group import CONSUMER_PROTOCOL_TYPE, size_of
from twisted_broker.coordinator.consumer.decision import Environment
from twisted_broker.coordinator.consumer.embedded import (
    owned_partitions,
    read_subscription,
    version_of,
    write_assignment,
)
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.heartbeat import MemberChange
from twisted_broker.coordinator.consumer.member import (
    JOIN_EPOCH,
    STABLE,
    UNRELEASED,
    UNREVOKED,
    ConsumerGroupMember,
)
from twisted_broker.coordinator.consumer.membership import (
    check_member,
    check_size,
    find_classic_member,
)
from twisted_broker.coordinator.consumer.migration import downgrade
from twisted_broker.coordinator.consumer.requests import MOST_NAMES, HeartbeatRequest
from twisted_broker.coordinator.group_decision import (
    Decision,
    GroupTimer,
    TimerChange,
    is_assignment_due,
)
from twisted_broker.coordinator.group_requests import (
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
)
from twisted_broker.coordinator.membership import MOST_METADATA_BYTES
from twisted_broker.coordinator.subscription import MalformedSubscription
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.group_records import ClassicMemberMetadata, ClassicProtocol


# join
def classic_join(
    group: ConsumerGroup, request: JoinRequest, environment: Environment
) -> Generator[None, None, Decision]:
    """The decision, in steps. Raises BrokerError."""
    if group.is_empty:
        # The last member has gone while this stood in line: it makes a classic group next time.
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    settings = environment.settings
    if not (settings.may_upgrade or settings.may_downgrade):
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    member_id = request.member_id or request.new_member_id
    check_size(group, member_id, settings.max_size)
    _check_protocols(group, member_id, request)
    if not request.member_id and request.instance_id is None and request.requires_known_member_id:
        return Decision(answer=JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id))
    return (yield from _ClassicJoin(group, member_id, request, environment).decide())


def _check_protocols(group: ConsumerGroup, member_id: str, request: JoinRequest) -> None:
    others = [each.classic for each in group.members.values() if each.classic is not None]
    known = [{each.name for each in other.supported_protocols} for other in others]
    if (
        request.protocol_type != CONSUMER_PROTOCOL_TYPE
        or not request.protocols
        or not any(all(name in names for names in known) for name in request.protocols)
    ):
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    held = sum(
        len(protocol.metadata)
        for member in group.members.values()
        if member.classic is not None and member.member_id != member_id
        for protocol in member.classic.supported_protocols
    )
    if held + size_of(request.protocols) > MOST_METADATA_BYTES:
        raise BrokerError(ErrorCode.GROUP_MAX_SIZE_REACHED)


class _ClassicJoin(MemberChange):
    """One JoinGroup."""

    def __init__(
        self, group: ConsumerGroup, member_id: str, request: JoinRequest, environment: Environment
    ) -> None:
        self._join = request
        name, metadata = next(iter(request.protocols.items()))
        self._protocol = name
        try:
            subscription = read_subscription(metadata)
        except MalformedSubscription:
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
        if len(subscription.topics) > MOST_NAMES:
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        found = find_classic_member(
            group, member_id, request.instance_id, is_new_id=not request.member_id
        )
        super().__init__(
            group,
            HeartbeatRequest(
                group.group_id,
                member_id,
                JOIN_EPOCH,
                request.instance_id,
                subscription.rack_id,
                request.rebalance_timeout_ms,
                tuple(subscription.topics),
                "",
                None,
                owned_partitions(subscription, environment.image),
                request.client_id,
                request.client_host,
            ),
            environment,
            found,
            ClassicMemberMetadata(
                session_timeout_ms=request.session_timeout_ms,
                supported_protocols=[
                    ClassicProtocol(name=name, metadata=metadata)
                    for name, metadata in request.protocols.items()
                ],
            ),
        )

    def decide(self) -> Generator[None, None, Decision]:
        yield from self._change()
        has_become_classic = False
        replaced = self._stored
        if replaced is not None and self._is_replacement and replaced.classic is None:
            has_become_classic = yield from self._downgrade(replaced)
        if not has_become_classic:
            yield from self._move()
            self._set_timers()
        member = self._member
        self._decision.answer = JoinAnswer(
            member_id=member.member_id,
            generation=member.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=self._protocol,
        )
        return self._decision

    def _set_timers(self) -> None:
        member, timers = self._member, self._decision.timers
        timers += (
            TimerChange(GroupTimer.JOIN, member.member_id),
            TimerChange(GroupTimer.REBALANCE, member.member_id),
            TimerChange(GroupTimer.SESSION, member.member_id, self._join.session_timeout_ms),
            TimerChange(GroupTimer.SYNC, member.member_id, member.rebalance_timeout_ms),
        )

    def _downgrade(self, replaced: ConsumerGroupMember) -> Generator[None, None, bool]:
        """Whether the group is classic with this member in the place of `replaced`."""
        group, decision, member = self._group, self._decision, self._member
        successor = yield from downgrade(
            group, [replaced.member_id], self._environment, member, self._epoch
        )
        if successor is None:
            return False
        is_stale = self._target_epoch < self._epoch
        if not is_stale:
            self._reconcile()
        # Kafka rebalances only where the target is stale. A member that still waits for a partition
        # would then keep waiting, for a classic group has no word for that.
        others = (each for each in group.members.values() if each is not replaced)
        is_settled = not is_stale and all(
            each.state is STABLE and each.epoch == self._epoch for each in (*others, self._member)
        )
        decision.records += group.tombstones({replaced.member_id: member.member_id})
        for member_id in group.members:
            decision.end_timers(member_id)
        decision.timers = [each for each in decision.timers if each.delay_ms is None]
        decision.successor, decision.must_rebalance = successor, not is_settled
        return True


# sync, heartbeat
def classic_sync(
    group: ConsumerGroup, request: SyncRequest, environment: Environment
) -> Generator[None, None, Decision]:
    """The decision. Raises BrokerError."""
    member, classic = _classic_member(group, request.member_id, request.instance_id)
    _check_generation(member, request.generation)
    protocol = classic.supported_protocols[0]
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or (
        request.protocol_name not in (None, protocol.name)
    ):
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if member.epoch < group.assignment_epoch and member.state is not UNREVOKED:
        return Decision(
            answer=SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS), timers=[_join_timer(member)]
        )
    try:
        version = version_of(protocol.metadata)
    except MalformedSubscription:  # of a log that others wrote
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
    assignment = write_assignment(member.assigned, environment.image, version)
    return Decision(
        answer=SyncAnswer(ErrorCode.NONE, request.protocol_type, request.protocol_name, assignment),
        timers=[
            TimerChange(GroupTimer.SYNC, member.member_id),
            TimerChange(GroupTimer.SESSION, member.member_id, classic.session_timeout_ms),
        ],
    )
    yield


def classic_heartbeat(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    generation: int,
    environment: Environment,
) -> Generator[None, None, Decision]:
    """The decision, whose answer is an error. Raises BrokerError."""
    member, classic = _classic_member(group, member_id, instance_id)
    _check_generation(member, generation)
    decision = Decision(answer=ErrorCode.NONE)
    decision.timers.append(TimerChange(GroupTimer.SESSION, member_id, classic.session_timeout_ms))
    if (
        member.epoch < group.assignment_epoch
        or member.state is UNREVOKED
        or (member.state is UNRELEASED and not _waits(group, member))
        or _must_assign(group, environment)
    ):
        decision.answer = ErrorCode.REBALANCE_IN_PROGRESS
        decision.timers.append(_join_timer(member))
    return decision
    yield


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerGroupMember, ClassicMemberMetadata]:
    member = check_member(group, member_id, instance_id)
    if member.classic is None or not member.classic.supported_protocols:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member, member.classic


def _check_generation(member: ConsumerGroupMember, generation: int) -> None:
    if generation != member.epoch:
        raise BrokerError(ErrorCode.ILLEGAL_GENERATION)


def _join_timer(member: ConsumerGroupMember) -> TimerChange:
    return TimerChange(
        GroupTimer.JOIN, member.member_id, member.rebalance_timeout_ms, if_absent=True
    )


def _must_assign(group: ConsumerGroup, environment: Environment) -> bool:
    """Whether a new target is due, and no member of the consumer protocol is there whose heartbeat
    computes it. Kafka leaves such a group as it is until somebody joins.
    """
    return (
        (group.must_compare_metadata or group.epoch > group.assignment_epoch)
        and is_assignment_due(
            group, environment.wall_ms, environment.settings.assignment_interval_ms
        )
        and all(each.classic is not None for each in group.members.values())
    )


def _waits(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    """Whether somebody still has a partition of its target."""
    return any(
        each not in member.assigned and group.has_owner(each)
        for each in group.target(member.member_id)
    )
