"""How many partitions the topics of a topology have, and what keeps it from running.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `configure`, `ConfiguredTopology`, `Status` and its codes.

1. Topics that exist count as they are. A repartition topic without a number gets the most that the
   subtopology reads which writes it; in a copartition group all get the same; a changelog gets the
   most that its subtopology reads.
2. While topics are missing or do not fit, the group has no tasks. What is missing and can be made
   is in `to_create`.

Source: Apache Kafka 4.3.1 `InternalTopicManager`, `RepartitionTopics`, `ChangelogTopics`,
`CopartitionedTopicsEnforcer`. Not here: the creation (`api/streams_groups.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from twisted_broker.coordinator.streams.topology import Topology, read_by
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.group_records import Subtopology, TopicInfo

MOST_NAMED = 3
# About a millisecond of one turn.
SUBTOPOLOGIES_PER_STEP = 100
NOT_SET = 0


class StatusCode(IntEnum):
    """The parts of a heartbeat's answer besides the tasks."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


@dataclass(frozen=True, slots=True)
class Status:
    """`detail` is for people."""

    code: StatusCode
    detail: str


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """One that the group needs, and its clients may have made for them. `replication_factor` 0:
    the broker's default.
    """

    name: str
    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ConfiguredSubtopology:
    """`tasks`: how many it has. `sources`: all topics that it reads."""

    tasks: int
    sources: tuple[str, ...]
    repartition_sources: tuple[InternalTopic, ...]
    changelogs: tuple[InternalTopic, ...]

    @property
    def is_stateful(self) -> bool:
        return bool(self.changelogs)


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    """`subtopologies` by their ids, in order; empty when it is not known how many tasks there are.
    `problem`: why it has no tasks.
    """

    subtopologies: Mapping[str, ConfiguredSubtopology] = field(default_factory=dict)
    to_create: tuple[InternalTopic, ...] = ()
    problem: Status | None = None

    @property
    def is_ready(self) -> bool:
        return self.problem is None


class _Unfit(Exception):
    """The topics as they are do not fit the topology."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(code, detail)


def configure(
    topology: Topology, image: MetadataImage
) -> Generator[None, None, ConfiguredTopology]:
    """In steps. Raises BrokerError for a topology that never can run."""
    try:
        return (yield from _Configuration(topology, image).configured())
    except _Unfit as unfit:
        return ConfiguredTopology(problem=unfit.status)


def summary(names: Collection[str]) -> str:
    """A few of the names, and how many more there are."""
    shown = ", ".join(sorted(names)[:MOST_NAMED])
    left = len(names) - MOST_NAMED
    return f"{shown} and {left} additional topics" if left > 0 else shown


class _Configuration:
    """`_decided`: partitions of internal topics."""

    def __init__(self, topology: Topology, image: MetadataImage) -> None:
        self._topology, self._image = topology, image
        self._subtopologies = topology.subtopologies
        self._decided: dict[str, int] = {}

    def configured(self) -> Generator[None, None, ConfiguredTopology]:
        missing = {
            topic
            for each in self._subtopologies.values()
            for topic in each.source_topics
            if topic not in self._image.topics_by_name
        }
        if missing:
            raise _Unfit(
                StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {summary(missing)} are missing."
            )
        yield from self._count_repartition_topics()
        self._copartition()
        self._count_changelogs()
        subtopologies = {}
        for number, (subtopology_id, each) in enumerate(self._subtopologies.items(), 1):
            subtopologies[subtopology_id] = self._subtopology(each)
            if number % SUBTOPOLOGIES_PER_STEP == 0:
                yield
        to_create = self._missing_internal(subtopologies.values())
        if not to_create:
            return ConfiguredTopology(subtopologies)
        names = summary([each.name for each in to_create])
        return ConfiguredTopology(
            subtopologies,
            to_create,
            Status(StatusCode.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {names}"),
        )

    def _count(self, topic: str) -> int | None:
        """The partitions of a topic: those that it has, else those decided."""
        found = self._image.topics_by_name.get(topic)
        return self._decided.get(topic) if found is None else len(found.partitions)

    # repartition topics
    def _count_repartition_topics(self) -> Generator[None, None, None]:
        """In rounds: a subtopology that writes one may read another."""
        counts = {
            topic.name: topic.partitions
            for each in self._subtopologies.values()
            for topic in each.repartition_source_topics
            if topic.partitions != NOT_SET
        }
        writers = [each for each in self._subtopologies.values() if each.repartition_sink_topics]
        is_undecided = True
        while is_undecided:
            is_undecided = has_progress = False
            for writer in writers:
                for topic in writer.repartition_sink_topics:
                    if topic in counts:
                        continue
                    count = self._most_read(writer, counts)
                    if count is None:
                        is_undecided = True
                    else:
                        counts[topic] = count
                        has_progress = True
            if is_undecided and not has_progress:
                raise _invalid(
                    "Failed to compute number of partitions for all repartition topics. There may "
                    "be loops in the topology that cannot be resolved."
                )
            if is_undecided:
                yield
        for each in self._subtopologies.values():
            if any(topic.name not in counts for topic in each.repartition_source_topics):
                raise _invalid(
                    "Failed to compute number of partitions for all repartition topics, because a "
                    "repartition source topic is never used as a sink topic."
                )
        self._decided.update(counts)

    def _most_read(self, subtopology: Subtopology, counts: Mapping[str, int]) -> int | None:
        internal = (counts.get(each.name) for each in subtopology.repartition_source_topics)
        external = (self._count(each) for each in subtopology.source_topics)
        known = [each for of_kind in (internal, external) for each in of_kind if each is not None]
        return max(known, default=None)

    # copartition groups
    def _copartition(self) -> None:
        fixed: set[str] = set()
        flexible: set[str] = set()
        for each in self._subtopologies.values():
            for topic in each.repartition_source_topics:
                (flexible if topic.partitions == NOT_SET else fixed).add(topic.name)
        for each in self._subtopologies.values():
            for group in each.copartition_groups:
                names = {each.source_topics[number] for number in group.source_topics}
                names.update(
                    each.repartition_source_topics[number].name
                    for number in group.repartition_source_topics
                )
                self._enforce(names, fixed, flexible)

    def _enforce(self, names: set[str], fixed: set[str], flexible: set[str]) -> None:
        """The topics of one group get one number."""
        counts = {name: self._count(name) or 0 for name in sorted(names)}
        internal = {name: n for name, n in counts.items() if name in fixed or name in flexible}
        external = {name: n for name, n in counts.items() if name not in internal}
        if external:
            count = _same(external, external)
        elif fixed:
            # As Kafka: all of the topology, not of this group alone.
            count = _same({name: self._count(name) or 0 for name in sorted(fixed)}, internal)
        else:
            count = max(internal.values(), default=0)
        for name, before in internal.items():
            self._decided[name] = count
            if name in fixed and before != count:
                raise _Unfit(
                    StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Number of partitions [{before}] of repartition topic [{name}] doesn't match "
                    f"number of partitions [{count}] of the source topic.",
                )

    # changelogs
    def _count_changelogs(self) -> None:
        found = {}
        for subtopology_id, each in self._subtopologies.items():
            count = max((self._count(topic) or 0 for topic in read_by(each)), default=None)
            if count is None:
                raise _invalid(f"No source topics found for subtopology {subtopology_id}")
            for topic in each.state_changelog_topics:
                found[topic.name] = count
        self._decided.update(found)

    def _subtopology(self, subtopology: Subtopology) -> ConfiguredSubtopology:
        sources = tuple(sorted(set(read_by(subtopology))))
        return ConfiguredSubtopology(
            max(self._count(topic) or 0 for topic in sources),
            sources,
            self._internal(subtopology.repartition_source_topics),
            self._internal(subtopology.state_changelog_topics),
        )

    def _internal(self, topics: Iterable[TopicInfo]) -> tuple[InternalTopic, ...]:
        return tuple(
            InternalTopic(
                each.name,
                self._decided[each.name] if each.partitions == NOT_SET else each.partitions,
                each.replication_factor,
                tuple((config.key, config.value) for config in each.topic_configs),
            )
            for each in sorted(topics, key=lambda each: each.name)
        )

    def _missing_internal(
        self, subtopologies: Iterable[ConfiguredSubtopology]
    ) -> tuple[InternalTopic, ...]:
        wanted = {
            topic.name: topic
            for each in subtopologies
            for topic in (*each.repartition_sources, *each.changelogs)
        }
        missing = []
        for name, topic in sorted(wanted.items()):
            found = self._image.topics_by_name.get(name)
            if found is None:
                missing.append(topic)
            elif len(found.partitions) != topic.partitions:
                raise _Unfit(
                    StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Existing topic {name} has different number of partitions: expected "
                    f"{topic.partitions}, found {len(found.partitions)}",
                )
        return tuple(missing)


def _same(counts: Mapping[str, int], shown: Mapping[str, int]) -> int:
    first = next(iter(counts.values()))
    if any(count != first for count in counts.values()):
        listed = ", ".join(f"{name}={count}" for name, count in sorted(shown.items()))
        raise _Unfit(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{listed}}}]",
        )
    return first


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
