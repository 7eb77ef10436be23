"""The difference between two images.

Owns `MetadataDelta`: made while records are applied, or by comparing images; `Removals`: what
records removed before there was somebody to act upon it.

1. The delta and the images agree: applying a delta's entries to `before` gives
   `after`.

Source: Kafka's `MetadataDelta`, `TopicsDelta`. Not here: how records change an image
(`image/metadata_image.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted_broker.image.entries import PartitionRegistration, TopicImage
from twisted_broker.wire.schema import run_whole

if TYPE_CHECKING:
    from twisted_broker.image.metadata_image import ConfigKey, MetadataImage, QuotaEntity

PARTITIONS_PER_STEP = 1000  # some two milliseconds of one turn
OTHER_TABLES = ("controllers", "client_quotas", "acls", "scram", "tokens", "next_producer_id")


class PartitionDelta(NamedTuple):
    """One partition's change; `before` None: new, `after` None: gone with its topic."""

    topic: str
    topic_id: bytes
    partition: int
    before: PartitionRegistration | None
    after: PartitionRegistration | None


@dataclass(slots=True)
class MetadataDelta:
    """The difference between two images.

    Keys that are here changed, appeared or vanished; look at `before` and `after`.
    """

    before: MetadataImage
    after: MetadataImage
    by_comparison: bool = False
    """Made without records, after a snapshot: no record says that what is not there was removed."""
    is_first_piece: bool = True
    """False for what `pieces` gives after the first one."""
    created_topics: dict[bytes, TopicImage] = field(default_factory=dict)
    removed_topics: dict[bytes, TopicImage] = field(default_factory=dict)
    partitions: dict[tuple[bytes, int], PartitionDelta] = field(default_factory=dict)
    brokers: set[int] = field(default_factory=set)
    configs: set[ConfigKey] = field(default_factory=set)
    features: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    """Names of further tables that changed: controllers, client_quotas, acls, scram, tokens,
    next_producer_id.
    """
    quotas: set[QuotaEntity] = field(default_factory=set)
    """The entities of client quotas that changed."""
    removed_ids: set[bytes] = field(default_factory=set)
    """The topics that records removed, also those of which neither image knows."""
    removals: Removals | None = None
    """Of the first delta of a start: what records removed while this broker was away."""

    def __bool__(self) -> bool:
        """Whether anything changed but the offset."""
        return bool(
            self.partitions
            or self.created_topics
            or self.removed_topics
            or self.brokers
            or self.configs
            or self.features
            or self.others
        )

    @classmethod
    def between(cls, before: MetadataImage, after: MetadataImage) -> MetadataDelta:
        """As `between_in_steps`, without a pause."""
        return run_whole(cls.between_in_steps(before, after))

    @classmethod
    def between_in_steps(
        cls, before: MetadataImage, after: MetadataImage
    ) -> Generator[None, None, MetadataDelta]:
        """By comparison: after a snapshot, where there are no records. Pauses after every
        `PARTITIONS_PER_STEP`.
        """
        delta = cls(before, after, by_comparison=True)
        delta.brokers = _differing(before.brokers, after.brokers)
        delta.configs = _differing(before.configs, after.configs)
        delta.features = _differing(before.features, after.features)
        delta.quotas = _differing(before.client_quotas, after.client_quotas)
        delta.others = {
            name
            for name in OTHER_TABLES
            if name != "acls" and getattr(before, name) != getattr(after, name)
        }
        yield
        # There may be a hundred thousand, and none changes under its id.
        if before.acls.keys() != after.acls.keys():
            delta.others.add("acls")
        for topic_id in sorted(_differing(before.topics_by_id, after.topics_by_id)):
            yield from delta.add_topic_in_steps(topic_id, None)
        return delta

    def pieces(self, size: int) -> Iterator[MetadataDelta]:
        """The same in deltas of at most `size` partitions, each between the same images. Removed
        partitions come first; the first piece has all that is no partition.
        """
        if len(self.partitions) <= size:
            yield self
            return
        # Removed partitions first: a topic may have been deleted and created again under its name.
        changes = sorted(self.partitions.items(), key=lambda item: item[1].after is not None)
        yield replace(self, partitions=dict(changes[:size]))
        for start in range(size, len(changes), size):
            yield MetadataDelta(
                self.before,
                self.after,
                self.by_comparison,
                is_first_piece=False,
                partitions=dict(changes[start : start + size]),
            )

    def add_topic_in_steps(
        self, topic_id: bytes, touched: Iterable[int] | None
    ) -> Generator[None, None, None]:
        """Notes what became of a topic's partitions; `touched` None looks at all of them. Pauses
        after every `PARTITIONS_PER_STEP`.
        """
        before, after = (
            self.before.topics_by_id.get(topic_id),
            self.after.topics_by_id.get(topic_id),
        )
        named = after or before
        if named is None:
            return
        if before is None:
            self.created_topics[topic_id] = named
        if after is None:
            self.removed_topics[topic_id] = named
        old, new = before.partitions if before else {}, after.partitions if after else {}
        looked_at = sorted(old.keys() | new.keys() if touched is None or after is None else touched)
        for number, partition in enumerate(looked_at, 1):
            if number % PARTITIONS_PER_STEP == 0:
                yield
            was, now = old.get(partition), new.get(partition)
            if was != now:
                self.partitions[topic_id, partition] = PartitionDelta(
                    named.name, topic_id, partition, was, now
                )


class Removals:
    """What records removed, as far back as they were read: topics, and single replicas. What a
    snapshot hides is not in it.

    Bounded by the metadata log behind its snapshot; gone once a start has acted upon it.
    """

    __slots__ = ("_replicas", "_topics")

    def __init__(self) -> None:
        self._topics: set[bytes] = set()
        self._replicas: set[tuple[bytes, int, int]] = set()

    def note(self, delta: MetadataDelta) -> None:
        """A delta that records made, in their order."""
        self._topics |= delta.removed_ids
        for (topic_id, number), change in delta.partitions.items():
            if change.before is None or change.after is None:
                continue
            before, after = change.before.replicas, change.after.replicas
            if before != after:
                self._replicas.update(
                    (topic_id, number, node) for node in before if node not in after
                )

    def snapshot(self) -> None:
        """A replica may have been added again in what it hides; no topic gets its id again."""
        self._replicas.clear()

    def has(
        self, topic_id: bytes | None, partition: int, node_id: int, image: MetadataImage
    ) -> bool:
        """Whether a record removed this replica, and `image`, the newest one, agrees."""
        if topic_id is None:
            return False
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            return topic_id in self._topics
        state = topic.partitions.get(partition)
        return (topic_id, partition, node_id) in self._replicas and (
            state is None or node_id not in state.replicas
        )


def _differing(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> set[Any]:
    return {
        key
        for key in before.keys() | after.keys()
        # Identity first: most values are the very same object, and comparing large ones is slow.
        if before.get(key) is not after.get(key) and before.get(key) != after.get(key)
    }
