"""How partitions of topics are named in consumer groups. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `TopicIdPartition`, `Epochs`, `Target`, `by_topic`.

1. A partition is named by its topic's id: a topic that was deleted and made again is another one.

Source: Apache Kafka 4.3.1 `Assignment`, `TopicIdPartition`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

TopicIdPartition = tuple[bytes, int]
Epochs = Mapping[TopicIdPartition, int]
"""Partitions with the target epoch at which their member first got each."""
Target = frozenset[TopicIdPartition]
NOTHING: Target = frozenset()


def by_topic(partitions: Iterable[TopicIdPartition]) -> list[tuple[bytes, list[int]]]:
    """The partitions as records and answers list them: topics by id, numbers ascending."""
    return [
        (topic_id, [number for _, number in of_topic])
        for topic_id, of_topic in groupby(sorted(partitions), key=lambda each: each[0])
    ]
