"""Which member answers questions about which partitions (interactive queries).
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `EndpointPartitions`, `endpoints_of`.

1. A member without an endpoint is left out. One has all partitions that its tasks read, and no
   number that a topic has not.

Source: Apache Kafka 4.3.1 `EndpointToPartitionsManager` (which lists the first partitions of a
topic that has fewer than the member has tasks).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from twisted_broker.coordinator.streams.configure import ConfiguredTopology
from twisted_broker.coordinator.streams.member import StreamsGroupMember
from twisted_broker.coordinator.streams.tasks import Task, by_subtopology
from twisted_broker.image.metadata_image import MetadataImage

# A step of about a millisecond (`turns.py`, invariant 4).
TASKS_PER_STEP = 1_000
Partitions = list[tuple[str, list[int]]]


class EndpointPartitions(NamedTuple):
    """Partitions of each topic, of active and of standby tasks."""

    host: str
    port: int
    active: Partitions
    standby: Partitions


def endpoints_of(
    members: Iterable[StreamsGroupMember], configured: ConfiguredTopology, image: MetadataImage
) -> Iterator[EndpointPartitions | None]:
    """Of those who have one; None: a step is over."""
    work = 0
    for member in members:
        if member.endpoint is None:
            continue
        yield EndpointPartitions(
            *member.endpoint,
            _partitions(member.assigned.active, configured, image),
            _partitions(member.assigned.standby, configured, image),
        )
        work += len(member.assigned.active) + len(member.assigned.standby) + 1
        if work >= TASKS_PER_STEP:
            work = 0
            yield None


def _partitions(
    tasks: Iterable[Task], configured: ConfiguredTopology, image: MetadataImage
) -> Partitions:
    found = []
    for subtopology_id, numbers in by_subtopology(tasks):
        subtopology = configured.subtopologies.get(subtopology_id)
        for name in () if subtopology is None else subtopology.sources:
            topic = image.topics_by_name.get(name)
            if topic is not None:
                found.append((name, [each for each in numbers if each < len(topic.partitions)]))
    return found
