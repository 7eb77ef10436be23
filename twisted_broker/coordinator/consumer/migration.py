"""A group of one protocol that becomes one of the other while it has members.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `check_upgrade`, `NotUpgraded` and `Upgrade` (classic to consumer), `downgrade` (back).

      classic group  --> consumer group    a heartbeat joins it; its members stay, and are classic
      consumer group --> classic group     the last member of the consumer protocol goes

1. Nobody loses anything: members, their assignments and the offsets are those of before. The
   generation becomes the group epoch, and the other way.
2. All records of a change are one batch, with those of the decision that caused it: tombstones of
   the one kind, then the values of the other.
3. A group that cannot be changed is left as it is: a consumer group goes on with classic members
   alone.

Source: Apache Kafka 4.3.1 `ConsumerGroup.fromClassicGroup`, `ClassicGroup.fromConsumerGroup`,
`GroupMetadataManager.validateOnlineUpgrade`, `validateOnlineDowngradeWithFencedMembers`. Not here:
what classic members request of a consumer group (`classic_members.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from itertools import chain

from twisted_broker.coordinator.classic_group import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicGroupMember,
    ClassicGroupState,
)
from twisted_broker.coordinator.consumer.decision import ConsumerGroupSettings, Environment
from twisted_broker.coordinator.consumer.embedded import (
    UnknownUserData,
    owned_partitions,
    read_assignment,
    read_subscription,
    version_of,
    write_assignment,
)
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.member import STABLE, UNREVOKED, ConsumerGroupMember
from twisted_broker.coordinator.consumer.partitions import NOTHING
from twisted_broker.coordinator.consumer.records import (
    epoch_record,
    target_epoch_record,
    target_record,
)
from twisted_broker.coordinator.group_decision import GroupTimer, TimerChange
from twisted_broker.coordinator.group_records import MOST_MEMBER_BYTES, member_bytes
from twisted_broker.coordinator.modern_group import NEVER_ASSIGNED_MS
from twisted_broker.coordinator.record_codec import StoredRecord
from twisted_broker.coordinator.subscription import MalformedSubscription
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.group_records import ClassicMemberMetadata, ClassicProtocol

# Each is read and written: some 50 us (`turns.py`, invariant 4).
MEMBERS_PER_STEP = 20
RECORDS_PER_STEP = 50


# classic to consumer
def check_upgrade(group: ClassicGroup, settings: ConsumerGroupSettings) -> None:
    """Whether a heartbeat may make a consumer group of it. Raises GROUP_ID_NOT_FOUND."""
    if not settings.may_upgrade:
        why = "online upgrade is disabled"
    elif group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        why = "the group does not use the consumer embedded protocol"
    elif len(group.members) > settings.max_size:
        why = "the group size exceeds the consumer group maximum size"
    else:
        return
    raise NotUpgraded(group.group_id, f"{why}.")


class NotUpgraded(BrokerError):
    """GROUP_ID_NOT_FOUND, in Kafka's words; `for_operators`: whose fault it is, and the remedy."""

    def __init__(self, group_id: str, why: str, for_operators: str = "") -> None:
        super().__init__(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {group_id} to consumer group because {why}",
        )
        self.for_operators = for_operators or why


class Upgrade:
    """A classic group as it was when the heartbeat came: `records()` makes the consumer group."""

    __slots__ = ("_generation", "_group_id", "_late", "_members", "_protocol")

    def __init__(self, group: ClassicGroup) -> None:
        self._group_id, self._protocol = group.group_id, group.protocol_name
        self._generation = max(group.generation, 0)
        self._members = [(each, each.assignment) for each in group.members.values()]
        self._late = frozenset(group.pending_syncs)

    def records(self, environment: Environment) -> Generator[None, None, list[StoredRecord]]:
        """Of all that the consumer group begins with, in steps. Raises GROUP_ID_NOT_FOUND."""
        members = []
        for number, (each, assignment) in enumerate(self._members, 1):
            members.append(self._member(each, assignment, environment))
            if number % MEMBERS_PER_STEP == 0:
                yield
        names = {name for each in members for name in each.names}
        metadata_hash = yield from environment.hashes.of_group(environment.image, names)
        group_id, epoch = self._group_id, self._generation
        made: tuple[Iterable[StoredRecord], ...] = (
            (each.metadata_record(group_id) for each in members),
            [epoch_record(group_id, epoch, metadata_hash)],
            (target_record(group_id, each.member_id, each.assigned) for each in members),
            [target_epoch_record(group_id, epoch, NEVER_ASSIGNED_MS)],
            (each.assignment_record(group_id) for each in members),
        )
        return (yield from _listed(chain(*made)))

    def timers(self) -> list[TimerChange]:
        """The session of each member begins."""
        return [
            TimerChange(GroupTimer.SESSION, each.member_id, each.session_timeout_ms)
            for each, _ in self._members
        ]

    def _member(
        self, member: ClassicGroupMember, assignment: bytes, environment: Environment
    ) -> ConsumerGroupMember:
        # Before the first generation no protocol is chosen.
        chosen = (
            self._protocol if self._protocol in member.protocols else next(iter(member.protocols))
        )
        who = f"member {member.member_id} of client {member.client_id}, strategy {chosen}"
        try:
            subscription = read_subscription(member.protocols[chosen or ""])
            assigned = read_assignment(assignment, environment.image)
            # It has not heard of its assignment, and may still read what that takes from it. Kafka
            # gives that to others at once.
            owned = owned_partitions(subscription, environment.image)
            pending = owned - assigned if member.member_id in self._late else NOTHING
        except UnknownUserData:
            raise NotUpgraded(
                self._group_id,
                "an unsupported custom assignor is in use. Please refer to the documentation or "
                "switch to a default assignor before re-attempting the upgrade.",
                f"{who}: its assignment has user data, which librdkafka's cooperative-sticky puts "
                "there; change to range or roundrobin first, or stop all members",
            ) from None
        except MalformedSubscription as error:
            raise NotUpgraded(
                self._group_id, "the embedded consumer protocol is malformed.", f"{who}: {error}"
            ) from None
        return ConsumerGroupMember(
            member.member_id,
            member.instance_id,
            subscription.rack_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            tuple(sorted(set(subscription.topics))),
            classic=ClassicMemberMetadata(
                session_timeout_ms=member.session_timeout_ms,
                supported_protocols=[
                    ClassicProtocol(name=name, metadata=metadata)
                    for name, metadata in member.protocols.items()
                ],
            ),
            epoch=self._generation,
            previous_epoch=self._generation,
            state=UNREVOKED if pending else STABLE,
            assigned=dict.fromkeys(assigned, self._generation),
            pending=dict.fromkeys(pending, self._generation),
        )


def _listed(records: Iterable[StoredRecord]) -> Generator[None, None, list[StoredRecord]]:
    """In steps."""
    listed = []
    for number, record in enumerate(records, 1):
        listed.append(record)
        if number % RECORDS_PER_STEP == 0:
            yield
    return listed


# consumer to classic
def downgrade(
    group: ConsumerGroup,
    leaving: Collection[str],
    environment: Environment,
    joining: ConsumerGroupMember | None = None,
    epoch: int | None = None,
) -> Generator[None, None, ClassicGroup | None]:
    """The classic group that `group` becomes without the members `leaving`, Stable, in steps; None:
    it stays as it is. `joining` takes the target of the one that leaves; `epoch`: if it is
    another one than the group's by now.
    """
    settings = environment.settings
    staying = [each for each in group.members.values() if each.member_id not in leaving]
    if joining is not None:
        staying.append(joining)
    if (
        not staying
        or any(each.classic is None for each in staying)
        or not settings.may_downgrade
        or len(staying) > settings.classic_max_size
    ):
        return None
    classic = ClassicGroup(group.group_id, environment.wall_ms)
    classic.generation = group.epoch if epoch is None else epoch
    for number, each in enumerate(staying, 1):
        classic.add(_classic_member(each), CONSUMER_PROTOCOL_TYPE)
        if number % RECORDS_PER_STEP == 0:
            yield
    # In a log that others wrote the members may have no protocol in common.
    if len(staying) not in classic.supported_protocols.values():
        return None
    chosen = classic.protocol_name = classic.select_protocol()
    for number, member in enumerate(classic.members.values(), 1):
        is_successor = joining is not None and member.member_id == joining.member_id
        target = group.target(next(iter(leaving)) if is_successor else member.member_id)
        try:
            version = version_of(member.protocols[chosen])
        except MalformedSubscription:
            return None
        member.assignment = write_assignment(target, environment.image, version)
        if number % MEMBERS_PER_STEP == 0:
            yield
    classic.state = classic.previous_state = ClassicGroupState.STABLE
    classic.subscribed_topics = classic.compute_subscribed_topics()
    return classic if member_bytes(classic.metadata()) <= MOST_MEMBER_BYTES else None


def _classic_member(member: ConsumerGroupMember) -> ClassicGroupMember:
    assert member.classic is not None
    return ClassicGroupMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        {each.name: each.metadata for each in member.classic.supported_protocols},
    )
