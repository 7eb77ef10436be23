"""The assignor `range`: per topic, contiguous ranges of partitions to its subscribers in order.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `assign_ranges`.

1. Topics with equal counts of partitions and equal subscribers are co-partitioned.
2. Static members come first, by instance id: they keep their ranges over restarts.

Source: Apache Kafka 4.3.1 `RangeAssignor`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator

from twisted_broker.coordinator.consumer.assignor import (
    PARTITIONS_PER_STEP,
    AssignorMember,
    GroupSpec,
)
from twisted_broker.coordinator.consumer.partitions import Target, TopicIdPartition


def assign_ranges(spec: GroupSpec) -> Generator[None, None, dict[str, Target]]:
    """The target of every member, in steps."""
    given: dict[str, list[TopicIdPartition]] = {each.member_id: [] for each in spec.members}
    subscribers: defaultdict[bytes, list[str]] = defaultdict(list)
    work = 0
    for member in sorted(spec.members, key=_place):
        for topic_id in member.topics:
            subscribers[topic_id].append(member.member_id)
        work += len(member.topics)
        if work >= PARTITIONS_PER_STEP:
            work = 0
            yield
    for topic_id, members in subscribers.items():
        each, longer = divmod(spec.partitions[topic_id], len(members))
        start = 0
        for place, member_id in enumerate(members):
            end = start + each + (place < longer)
            given[member_id] += ((topic_id, number) for number in range(start, end))
            start = end
        work += start + len(members)
        if work >= PARTITIONS_PER_STEP:
            work = 0
            yield
    return {member_id: frozenset(partitions) for member_id, partitions in given.items()}


def _place(member: AssignorMember) -> tuple[bool, str]:
    if member.instance_id is None:
        return True, member.member_id
    return False, member.instance_id
