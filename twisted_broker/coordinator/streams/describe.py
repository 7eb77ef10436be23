"""A group as StreamsGroupDescribe shows it. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `describe`.

1. Where the topology is ready, its internal topics have the partitions that were decided.
2. A member's assignment: the tasks given to it, without those that it was told to give up.

Source: Apache Kafka 4.3.1 `StreamsGroup.asDescribedGroup`. Not here: who may see which topic, and
that only committed state is described (`group_runner.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass

from twisted_broker.coordinator.group_decision import Decision
from twisted_broker.coordinator.streams.configure import InternalTopic
from twisted_broker.coordinator.streams.group import StreamsGroup
from twisted_broker.coordinator.streams.member import StreamsGroupMember
from twisted_broker.coordinator.streams.tasks import Tasks
from twisted_broker.wire.messages.group_records import TopicInfo

# About a millisecond of one turn; a member counts as ten tasks.
TASKS_PER_STEP, MEMBER_COST = 1000, 10


@dataclass(frozen=True, slots=True)
class DescribedSubtopology:
    """Everything sorted by name."""

    subtopology_id: str
    sources: list[str]
    sinks: list[str]
    changelogs: list[InternalTopic]
    repartition_sources: list[InternalTopic]


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """`members`: each with its target. `topology_epoch` None: it has no topology."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    topology_epoch: int | None
    subtopologies: list[DescribedSubtopology]
    members: list[tuple[StreamsGroupMember, Tasks]]


def describe(group: StreamsGroup) -> Generator[None, None, Decision]:
    """A decision without records, whose answer is the group as it is; in steps."""
    decided: Mapping[str, int] = {}
    if group.configured is not None and group.configured.is_ready:
        decided = {
            topic.name: topic.partitions
            for each in group.configured.subtopologies.values()
            for topic in (*each.repartition_sources, *each.changelogs)
        }
    topology = group.topology
    subtopologies = [] if topology is None else topology.subtopologies.values()
    described = DescribedGroup(
        group.group_id,
        group.state.value,
        group.epoch,
        group.assignment_epoch,
        None if topology is None else topology.epoch,
        [
            DescribedSubtopology(
                each.subtopology_id,
                sorted(each.source_topics),
                sorted(each.repartition_sink_topics),
                _internal(each.state_changelog_topics, decided),
                _internal(each.repartition_source_topics, decided),
            )
            for each in subtopologies
        ],
        [],
    )
    work = 0
    for member in group.members.values():
        target = group.target(member.member_id)
        described.members.append((member, target))
        work += MEMBER_COST
        if work >= TASKS_PER_STEP:
            work = 0
            yield
    return Decision(answer=described)


def _internal(topics: Iterable[TopicInfo], decided: Mapping[str, int]) -> list[InternalTopic]:
    return [
        InternalTopic(
            each.name,
            decided.get(each.name, each.partitions),
            each.replication_factor,
            tuple((config.key, config.value) for config in each.topic_configs),
        )
        for each in sorted(topics, key=lambda each: each.name)
    ]
