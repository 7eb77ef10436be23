"""A group as ShareGroupDescribe shows it. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `describe`.

1. Topics that are gone are left out.

Source: Apache Kafka 4.3.1 `ShareGroup.asDescribedGroup`. Not here: who may see which topic, and
that only committed state is described (`share_group_runner.py`).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from twisted_broker.coordinator.consumer.describe import (
    MEMBER_COST,
    PARTITIONS_PER_STEP,
    DescribedTopics,
    described_topics,
)
from twisted_broker.coordinator.group_decision import Decision
from twisted_broker.coordinator.share.group import ShareGroup
from twisted_broker.coordinator.share.member import ShareGroupMember
from twisted_broker.image.metadata_image import MetadataImage

ASSIGNOR = "simple"


@dataclass(frozen=True, slots=True)
class DescribedShareMember:
    """A member with its partitions by topic."""

    member: ShareGroupMember
    assignment: DescribedTopics


@dataclass(frozen=True, slots=True)
class DescribedShareGroup:
    """A group with its members."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    members: list[DescribedShareMember]
    assignor: str = ASSIGNOR


def describe(group: ShareGroup, image: MetadataImage) -> Generator[None, None, Decision]:
    """A decision without records, whose answer is the group as it is; in steps."""
    described = DescribedShareGroup(
        group.group_id, group.state.value, group.epoch, group.assignment_epoch, []
    )
    work = 0
    for member in group.members.values():
        described.members.append(
            DescribedShareMember(member, described_topics(member.assigned, image))
        )
        work += MEMBER_COST + len(member.assigned)
        if work >= PARTITIONS_PER_STEP:
            work = 0
            yield
    return Decision(answer=described)
