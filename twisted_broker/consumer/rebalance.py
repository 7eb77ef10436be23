"""Who consumes what: range and round robin, and the bytes that members exchange about it.

Owns the assignors, and `subscription_bytes`, `assignment_bytes`, `assigned_partitions`.

1. Every partition of a subscribed topic goes to exactly one of its subscribers, the same in every
   process: members and topics are taken in sorted order.
2. The results are those of Kafka's assignors of the same names, so that a group may be of several
   clients, whichever leads.

Source: RL 7.5; Kafka's `RangeAssignor`, `RoundRobinAssignor`, `ConsumerProtocol` 0. Not here:
membership (`group_membership`), racks, sticky and cooperative assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)
from twisted_broker.wire.schema import decode_from, encode

Subscriptions = Mapping[str, Sequence[str]]
Assignment = dict[str, list[TopicPartition]]
_VERSION: Final = 0
_VERSION_BYTES: Final = 2


def assign_range(
    subscriptions: Subscriptions, partitions: Mapping[str, Sequence[int]]
) -> Assignment:
    """Of each topic a stretch to each subscriber, the first ones get one more where it does not
    divide. `partitions`: of each topic, sorted.
    """
    assigned: Assignment = {member: [] for member in subscriptions}
    for topic, numbers in sorted(partitions.items()):
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        if not members:
            continue
        each, more = divmod(len(numbers), len(members))
        for index, member in enumerate(members):
            start = each * index + min(index, more)
            length = each + (index < more)
            assigned[member] += [
                TopicPartition(topic, number) for number in numbers[start : start + length]
            ]
    return assigned


def assign_round_robin(
    subscriptions: Subscriptions, partitions: Mapping[str, Sequence[int]]
) -> Assignment:
    """All partitions in order, one after another to the next member that subscribes to its
    topic.
    """
    assigned: Assignment = {member: [] for member in subscriptions}
    members = sorted(subscriptions)
    subscribed = {topic for topics in subscriptions.values() for topic in topics}
    turn = 0
    for topic, numbers in sorted(partitions.items()):
        if topic not in subscribed:
            continue
        for number in numbers:
            while topic not in subscriptions[members[turn % len(members)]]:
                turn += 1
            assigned[members[turn % len(members)]].append(TopicPartition(topic, number))
            turn += 1
    return assigned


ASSIGNORS: Final[
    Mapping[str, Callable[[Subscriptions, Mapping[str, Sequence[int]]], Assignment]]
] = {"range": assign_range, "roundrobin": assign_round_robin}


def subscription_bytes(topics: Iterable[str]) -> bytes:
    """JoinGroup's metadata of a member that subscribes to these."""
    message = ConsumerProtocolSubscription(topics=sorted(topics))
    return _VERSION.to_bytes(_VERSION_BYTES, "big") + encode(message, _VERSION)


def assignment_bytes(partitions: Iterable[TopicPartition]) -> bytes:
    """SyncGroup's assignment of one member."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignmentTopicPartition(
                topic=topic, partitions=[each.partition for each in found]
            )
            for topic, found in groupby(sorted(partitions), key=lambda each: each.topic)
        ]
    )
    return _VERSION.to_bytes(_VERSION_BYTES, "big") + encode(message, _VERSION)


def assigned_partitions(assignment: bytes) -> list[TopicPartition]:
    """What a SyncGroup answer assigns; nothing without bytes. Raises `WireError`."""
    if not assignment:
        return []
    if len(assignment) < _VERSION_BYTES or assignment[0] & 0x80:
        raise WireError(f"no assignment in {len(assignment)} bytes")
    # Versions only append fields.
    found, _ = decode_from(ConsumerProtocolAssignment, assignment, _VERSION, _VERSION_BYTES)
    return [
        TopicPartition(each.topic, number)
        for each in found.assigned_partitions
        for number in each.partitions
    ]
