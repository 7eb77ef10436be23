"""The topology of a streams group: its application's source, sink and state topics.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `Topology`.

1. It is the content of a record of type 23, unchanged, and facts derived from that.
2. Two subtopologies do not read the same topic in Kafka's applications; where they do, the last
   counts as its reader.

Source: Apache Kafka 4.3.1 `StreamsTopology`. Not here: how many partitions its topics have
(`configure.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from twisted_broker.wire.messages.group_records import StreamsGroupTopologyValue, Subtopology


class Topology:
    """`subtopologies` by their ids, in order; `sources`: the subtopology that reads a topic;
    `topics`: all that must exist.
    """

    __slots__ = ("sources", "subtopologies", "topics", "value")

    def __init__(self, value: StreamsGroupTopologyValue) -> None:
        self.value = value
        self.subtopologies: Mapping[str, Subtopology] = {
            each.subtopology_id: each
            for each in sorted(value.subtopologies, key=lambda each: each.subtopology_id)
        }
        self.sources: Mapping[str, str] = {
            topic: subtopology_id
            for subtopology_id, each in self.subtopologies.items()
            for topic in read_by(each)
        }
        changelogs = (
            topic.name
            for each in self.subtopologies.values()
            for topic in each.state_changelog_topics
        )
        self.topics = frozenset(self.sources).union(changelogs)

    @property
    def epoch(self) -> int:
        return self.value.epoch

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology):
            return NotImplemented
        return self.epoch == other.epoch and self.subtopologies == other.subtopologies

    __hash__ = None  # type: ignore[assignment]


def read_by(subtopology: Subtopology) -> Iterator[str]:
    """The topics that its tasks read."""
    yield from subtopology.source_topics
    for topic in subtopology.repartition_source_topics:
        yield topic.name


def named_topics(value: StreamsGroupTopologyValue) -> Iterator[str]:
    """Every topic that a topology names, some of them twice."""
    for subtopology in value.subtopologies:
        yield from read_by(subtopology)
        yield from subtopology.repartition_sink_topics
        for topic in subtopology.state_changelog_topics:
            yield topic.name
