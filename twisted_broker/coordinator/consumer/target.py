"""The target of a group: which member should own what. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `compute_targets`.

1. It sees the members after the heartbeat that computes, each with its present target.
2. Topics that do not exist count for nothing.

Source: Apache Kafka 4.3.1 `TargetAssignmentBuilder`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping

from twisted_broker.coordinator.consumer.assignor import Assignor, AssignorMember, GroupSpec
from twisted_broker.coordinator.consumer.member import ConsumerGroupMember
from twisted_broker.coordinator.consumer.partitions import Target
from twisted_broker.coordinator.consumer.range import assign_ranges
from twisted_broker.coordinator.consumer.subscriptions import Subscriptions
from twisted_broker.coordinator.consumer.uniform import assign_uniformly
from twisted_broker.image.metadata_image import MetadataImage

ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
# A step of about a millisecond (`turns.py`, invariant 4).
NAMES_PER_STEP = 2_000
_Resolved = Mapping[str, tuple[str, ...]]


def compute_targets(
    members: Iterable[tuple[ConsumerGroupMember, Target]],
    subscriptions: Subscriptions,
    resolved: _Resolved,
    image: MetadataImage,
    assignor: str,
) -> Generator[None, None, dict[str, Target]]:
    """The target of each member, by its id, in steps. `members`: each with its present target;
    `subscriptions` are theirs.
    """
    # Members that subscribe to the same share one set.
    topics: dict[tuple[tuple[str, ...], str], frozenset[bytes]] = {}
    of_assignor = []
    work = 0
    for member, target in sorted(members, key=lambda each: each[0].member_id):
        subscribed = member.names, member.pattern
        if subscribed not in topics:
            topics[subscribed] = _topic_ids(member, resolved, image)
            work += len(topics[subscribed])
        work += 1
        if work >= NAMES_PER_STEP:
            work = 0
            yield
        of_assignor.append(
            AssignorMember(member.member_id, member.instance_id, topics[subscribed], target)
        )
    counts = {
        topic_id: len(image.topics_by_id[topic_id].partitions)
        for topic_id in frozenset().union(*topics.values())
    }
    spec = GroupSpec(tuple(of_assignor), counts, subscriptions.are_alike())
    return (yield from ASSIGNORS[assignor](spec))


def _topic_ids(
    member: ConsumerGroupMember, resolved: _Resolved, image: MetadataImage
) -> frozenset[bytes]:
    found = (
        image.topics_by_name.get(name)
        for names in (member.names, resolved.get(member.pattern, ()))
        for name in names
    )
    return frozenset(topic.id for topic in found if topic is not None)
