"""A group as ConsumerGroupDescribe shows it. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `describe`, `described_topics`.

1. A member's assignment: the partitions given to it, and those that it is to give up and still has.
2. Topics that are gone are left out.

Source: Apache Kafka 4.3.1 `ConsumerGroup.asDescribedGroup`. Not here: who may see which topic, and
that only committed state is described (`consumer_group_runner.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from twisted_broker.coordinator.consumer.decision import Environment
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.member import ConsumerGroupMember
from twisted_broker.coordinator.consumer.partitions import TopicIdPartition, by_topic
from twisted_broker.coordinator.group_decision import Decision
from twisted_broker.image.metadata_image import MetadataImage

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
# About a millisecond of one turn; a member counts as ten partitions.
PARTITIONS_PER_STEP, MEMBER_COST = 1000, 10
DescribedTopics = list[tuple[bytes, str, list[int]]]
"""Id, name and partitions of each topic."""


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """`member_type` as in version 1."""

    member: ConsumerGroupMember
    assignment: DescribedTopics
    target: DescribedTopics
    member_type: int


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """`assignor`: the one that would be used now."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: list[DescribedMember]


def describe(group: ConsumerGroup, environment: Environment) -> Generator[None, None, Decision]:
    """A decision without records, whose answer is the group as it is; in steps."""
    image = environment.image
    described = DescribedGroup(
        group.group_id,
        group.state.value,
        group.epoch,
        group.assignment_epoch,
        group.subscriptions.preferred_assignor(environment.settings.assignors),
        [],
    )
    work = 0
    for member in group.members.values():
        described.members.append(
            DescribedMember(
                member,
                described_topics(member.assigned.keys() | member.pending.keys(), image),
                described_topics(group.target(member.member_id), image),
                CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
            )
        )
        work += MEMBER_COST + len(member.assigned) + len(group.target(member.member_id))
        if work >= PARTITIONS_PER_STEP:
            work = 0
            yield
    return Decision(answer=described)


def described_topics(
    partitions: Iterable[TopicIdPartition], image: MetadataImage
) -> DescribedTopics:
    """The partitions of topics that there are."""
    return [
        (topic_id, image.topics_by_id[topic_id].name, numbers)
        for topic_id, numbers in by_topic(partitions)
        if topic_id in image.topics_by_id
    ]
