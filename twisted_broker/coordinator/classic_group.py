"""A classic group's state: members, protocols, generation, and the table of its states.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `ClassicGroup`, `ClassicGroupMember`, `ClassicGroupState`: the state of a group, and which
state may follow which. `membership.py`, `rebalance.py`, `assignment.py` and `static_members.py`
decide when, and are the only writers.

      Empty              --> PreparingRebalance    a member joins
      PreparingRebalance --> CompletingRebalance   all joined, or the time for it is over
      PreparingRebalance --> Empty                 no member is left
      CompletingRebalance --> Stable               the leader's assignment is stored
      CompletingRebalance --> PreparingRebalance   a member joins or leaves; a write fails
      Stable             --> PreparingRebalance    a member joins, leaves or dies
      Empty              --> Dead                  it is deleted, or its partition moved
      PreparingRebalance --> Dead                  its partition moved to another broker
      CompletingRebalance --> Dead                 its partition moved to another broker
      Stable             --> Dead                  its partition moved to another broker

1. A group with members has a protocol type, the same for all of them, and at least one protocol
   that all of them know.
2. A group with members has a leader, and the leader is a member.
3. `awaiting_join_count` is the number of members whose JoinGroup waits for its answer.
4. An instance id names exactly one member.
5. A generation is never used twice.
6. `metadata_bytes` is what all members' protocols hold. Subscriptions of more than `MOST_TOPICS`
   topics together are not read: the group counts as subscribed to everything.
7. A group without members and without ids that wait for their members holds no dict of its own:
   nearly all of a million groups are idle.

Source: Apache Kafka 4.3.1 `ClassicGroup`, `ClassicGroupMember`, `ClassicGroupState`. Not here:
time, timers, writing records.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import ClassVar

from twisted_broker.coordinator.empty_dict import EMPTY_DICT
from twisted_broker.coordinator.group_records import GroupMetadata, MemberSnapshot
from twisted_broker.coordinator.subscription import (
    MalformedSubscription,
    subscribed_topics,
    topics_count,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode

CONSUMER_PROTOCOL_TYPE = "consumer"
# Reading them takes some 20 ms of one turn. A group's record would have to be larger than a topic's
# `max.message.bytes` is by default, or the names be of a few letters.
MOST_TOPICS = 50_000
Token = object
"""Stands for a request that waits for its answer; nothing in ring 0 looks into it."""


class ClassicGroupState(Enum):
    """Kafka's states; the values are what ListGroups answers."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, PREPARING, COMPLETING = (
    ClassicGroupState.EMPTY,
    ClassicGroupState.PREPARING_REBALANCE,
    ClassicGroupState.COMPLETING_REBALANCE,
)
STABLE, DEAD = ClassicGroupState.STABLE, ClassicGroupState.DEAD

NEXT_STATES: dict[ClassicGroupState, frozenset[ClassicGroupState]] = {
    EMPTY: frozenset({PREPARING, DEAD}),
    PREPARING: frozenset({COMPLETING, EMPTY, DEAD}),
    COMPLETING: frozenset({STABLE, PREPARING, DEAD}),
    STABLE: frozenset({PREPARING, DEAD}),
    DEAD: frozenset(),
}


class ClassicGroupMember:
    """One member.

    `protocols` maps a protocol's name to the member's metadata for it, the preferred one first.
    """

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: dict[str, bytes],
        assignment: bytes = b"",
    ) -> None:
        self.member_id, self.instance_id = member_id, instance_id
        self.client_id, self.client_host = client_id, client_host
        self.rebalance_timeout_ms, self.session_timeout_ms = (
            rebalance_timeout_ms,
            session_timeout_ms,
        )
        self.protocols, self.assignment = protocols, assignment
        self.awaiting_join: Token | None = None
        self.awaiting_sync: Token | None = None
        self.is_new = False

    def vote(self, candidates: set[str]) -> str:
        """The member's most preferred protocol among those that all members know."""
        for name in self.protocols:
            if name in candidates:
                return name
        raise AssertionError(f"member {self.member_id} supports none of {sorted(candidates)}")

    def has_satisfied_heartbeat(self) -> bool:
        """Whether a waiting request shows that the member is alive.

        Not for a member that was never answered: its client may have given up long ago.
        """
        return not self.is_new and (
            self.awaiting_join is not None or self.awaiting_sync is not None
        )


class ClassicGroup:
    """One group."""

    group_type: ClassVar[str] = "classic"
    __slots__ = (
        "awaiting_join_count",
        "generation",
        "group_id",
        "initial_delay_left_ms",
        "leader",
        "members",
        "metadata_bytes",
        "new_member_added",
        "pending_joins",
        "pending_syncs",
        "previous_state",
        "protocol_name",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static_members",
        "subscribed_topics",
        "supported_protocols",
    )

    def __init__(self, group_id: str, wall_ms: int) -> None:
        self.group_id = group_id
        self.state = self.previous_state = EMPTY
        self.state_timestamp_ms = wall_ms
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.pending_joins: dict[str, None] = EMPTY_DICT
        self.awaiting_join_count = self.metadata_bytes = 0
        self._hold_no_members()
        self.subscribed_topics: frozenset[str] | None = None
        self.new_member_added = False
        self.initial_delay_left_ms: int | None = None

    def _hold_no_members(self) -> None:
        self.members: dict[str, ClassicGroupMember] = EMPTY_DICT
        self.static_members: dict[str, str] = EMPTY_DICT
        self.pending_syncs: dict[str, None] = EMPTY_DICT
        self.supported_protocols: dict[str, int] = EMPTY_DICT

    # states
    def transition_to(self, state: ClassicGroupState, wall_ms: int) -> None:
        assert state in NEXT_STATES[self.state], (
            f"group {self.group_id}: {self.state.value} to {state.value}"
        )
        self.previous_state, self.state = self.state, state
        self.state_timestamp_ms = wall_ms
        if state is EMPTY and not self.members:
            self._hold_no_members()

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    @property
    def is_dead(self) -> bool:
        return self.state is DEAD

    def can_rebalance(self) -> bool:
        return PREPARING in NEXT_STATES[self.state]

    # members
    def add(self, member: ClassicGroupMember, protocol_type: str) -> None:
        assert member.instance_id is None or member.instance_id not in self.static_members
        if not self.members:
            self.protocol_type = _shared(protocol_type)
        if self.members is EMPTY_DICT:
            self.members, self.static_members = {}, {}
            self.pending_syncs, self.supported_protocols = {}, {}
        assert protocol_type == self.protocol_type
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._count_support(member.protocols, 1)
        self.awaiting_join_count += member.awaiting_join is not None
        self._forget_pending_join(member.member_id)

    def add_pending_join(self, member_id: str) -> None:
        """An id was given out; its member has not joined with it yet."""
        if self.pending_joins is EMPTY_DICT:
            self.pending_joins = {}
        self.pending_joins[member_id] = None

    def _forget_pending_join(self, member_id: str) -> None:
        self.pending_joins.pop(member_id, None)
        if not self.pending_joins:
            self.pending_joins = EMPTY_DICT

    def remove(self, member_id: str) -> None:
        """Removes a member or a pending one, whose waiting requests must have been answered."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_support(member.protocols, -1)
            self.awaiting_join_count -= member.awaiting_join is not None
            if member.instance_id is not None:
                del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self._forget_pending_join(member_id)
        self.pending_syncs.pop(member_id, None)

    def update(
        self,
        member: ClassicGroupMember,
        protocols: dict[str, bytes],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        self._count_support(member.protocols, -1)
        member.protocols = protocols
        self._count_support(protocols, 1)
        member.rebalance_timeout_ms, member.session_timeout_ms = (
            rebalance_timeout_ms,
            session_timeout_ms,
        )

    def set_awaiting_join(self, member: ClassicGroupMember, token: Token | None) -> Token | None:
        """Sets the JoinGroup that the member waits with; returns the one it replaces."""
        before, member.awaiting_join = member.awaiting_join, token
        self.awaiting_join_count += (token is not None) - (before is not None)
        return before

    def replace_static_member(
        self, instance_id: str, old_member_id: str, new_member_id: str
    ) -> ClassicGroupMember:
        """Gives a static member's place to a new member id; its waiting requests must have been
        answered before.
        """
        old = self.members.pop(old_member_id)
        assert old.awaiting_join is None and old.awaiting_sync is None
        new = ClassicGroupMember(
            new_member_id,
            instance_id,
            old.client_id,
            old.client_host,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            old.protocols,
            old.assignment,
        )
        self.members[new_member_id] = new
        if self.leader == old_member_id:
            self.leader = new_member_id
        if old_member_id in self.pending_syncs:
            del self.pending_syncs[old_member_id]
            self.pending_syncs[new_member_id] = None
        self.static_members[instance_id] = new_member_id
        return new

    def validate_member(self, member_id: str, instance_id: str | None) -> None:
        """Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID when the instance id belongs to
        another member by now.
        """
        if instance_id is not None:
            owner = self.static_members.get(instance_id)
            if owner is None:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
            if owner != member_id:
                raise BrokerError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)

    def has_all_members_joined(self) -> bool:
        return self.awaiting_join_count == len(self.members) and not self.pending_joins

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Keeps the leader if it joined, else takes the first member that did; False when none of
        the members, of which there are some, joined.
        """
        assert self.leader is not None  # a group with members has one
        if self.members[self.leader].awaiting_join is not None:
            return True
        joined = next(
            (m.member_id for m in self.members.values() if m.awaiting_join is not None), None
        )
        self.leader = joined or self.leader
        return joined is not None

    # protocols
    def _count_support(self, protocols: dict[str, bytes], step: int) -> None:
        self.metadata_bytes += step * size_of(protocols)
        for name in protocols:
            count = self.supported_protocols.get(name, 0) + step
            if count:
                self.supported_protocols[name] = count
            else:
                del self.supported_protocols[name]

    def supports_protocols(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Whether a member with these could be in the group."""
        if self.state is EMPTY:
            return bool(protocol_type) and any(True for _ in protocols)
        return protocol_type == self.protocol_type and any(
            self.supported_protocols.get(name, 0) == len(self.members) for name in protocols
        )

    def select_protocol(self) -> str:
        """The protocol with most votes among those that all members know; of equals the one that
        was voted for first.
        """
        candidates = {
            name for name, count in self.supported_protocols.items() if count == len(self.members)
        }
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def start_generation(self, wall_ms: int) -> None:
        self.generation += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self.compute_subscribed_topics()
        self.transition_to(COMPLETING if self.members else EMPTY, wall_ms)
        self.pending_syncs.clear()

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """Topics of all members' subscriptions; None when that cannot be known."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        # Members often have the same one.
        subscriptions = {m.protocols[self.protocol_name] for m in self.members.values()}
        try:
            if sum(map(topics_count, subscriptions)) > MOST_TOPICS:
                return None
            return frozenset(topic for each in subscriptions for topic in subscribed_topics(each))
        except MalformedSubscription:
            # Not a consumer's metadata: which topics it reads is not known, so no offset may expire
            # by it.
            return None

    def is_subscribed_to(self, topic: str) -> bool:
        """A consumer group whose subscriptions cannot be read counts as subscribed to
        everything.
        """
        return (
            self.protocol_type == CONSUMER_PROTOCOL_TYPE
            if self.subscribed_topics is None
            else topic in self.subscribed_topics
        )

    # answers and records
    def member_list(self) -> tuple[tuple[str, str | None, bytes], ...]:
        name = self.protocol_name
        assert name is not None
        return tuple((m.member_id, m.instance_id, m.protocols[name]) for m in self.members.values())

    def metadata(self, assignment: dict[str, bytes] | None = None) -> GroupMetadata:
        """The group as a record, with `assignment` in place of the members' own where it is
        given.
        """
        members = []
        for m in self.members.values():
            given = m.assignment if assignment is None else assignment.get(m.member_id, b"")
            subscription = (
                m.protocols[self.protocol_name] if self.protocol_name is not None else b""
            )
            members.append(
                MemberSnapshot(
                    m.member_id,
                    m.instance_id,
                    m.client_id,
                    m.client_host,
                    m.rebalance_timeout_ms,
                    m.session_timeout_ms,
                    subscription,
                    given,
                )
            )
        return GroupMetadata(
            self.group_id,
            self.protocol_type or "",
            self.generation,
            self.protocol_name,
            self.leader,
            self.state_timestamp_ms,
            tuple(members),
        )


def _shared(protocol_type: str) -> str:
    """The one text of nearly all groups, instead of one for each."""
    return CONSUMER_PROTOCOL_TYPE if protocol_type == CONSUMER_PROTOCOL_TYPE else protocol_type


def size_of(protocols: dict[str, bytes]) -> int:
    """Bytes of a member's metadata for all of them."""
    return sum(map(len, protocols.values()))


def group_from_metadata(metadata: GroupMetadata, wall_ms: int) -> ClassicGroup:
    """A group as its last record says: Stable with members, else Empty.

    Raises ValueError for a record that contradicts itself.
    """
    group = ClassicGroup(metadata.group_id, wall_ms)
    group.generation, group.protocol_name = metadata.generation, metadata.protocol
    group.protocol_type = _shared(metadata.protocol_type) or None
    group.state_timestamp_ms = metadata.state_timestamp_ms
    if metadata.members and (metadata.protocol is None or not metadata.protocol_type):
        raise ValueError(f"group {metadata.group_id!r} has members and no protocol")
    for m in metadata.members:
        if m.member_id in group.members or (
            m.instance_id is not None and m.instance_id in group.static_members
        ):
            raise ValueError(f"group {metadata.group_id!r} has a member twice")
        assert metadata.protocol is not None
        group.add(
            ClassicGroupMember(
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                m.rebalance_timeout_ms,
                m.session_timeout_ms,
                {metadata.protocol: m.subscription},
                m.assignment,
            ),
            metadata.protocol_type,
        )
    if metadata.leader in group.members:
        group.leader = metadata.leader
    group.state = group.previous_state = STABLE if group.members else EMPTY
    group.subscribed_topics = group.compute_subscribed_topics()
    return group
