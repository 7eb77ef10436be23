"""Counts of the records and requests of a topic on this broker.

Owns the counters that appends and reads raise.

1. A counter is a slot of a topic's `TopicStats`, shared by its partitions here; raising it is one
   addition.
2. When the last partition of a topic leaves, its counts go into `gone`: the total never falls.

Source: RL 1.13; Kafka's `BrokerTopicStats`. Not here: names and rates (`status.metrics`).
"""

from __future__ import annotations

COUNTERS = (
    "bytes_in",
    "bytes_out",
    "bytes_rejected",
    "failed_fetches",
    "failed_produces",
    "fetches",
    "messages_in",
    "produces",
    "reassignment_bytes_in",
    "reassignment_bytes_out",
    "replication_bytes_in",
    "replication_bytes_out",
)


class TopicStats:
    """Counts since the start.

    Bytes are those of record batches; requests are counted per partition named, before any check.
    """

    __slots__ = (*COUNTERS, "partitions")

    def __init__(self) -> None:
        self.partitions = 0
        self.messages_in = self.bytes_in = self.bytes_out = self.bytes_rejected = 0
        self.produces = self.fetches = self.failed_produces = self.failed_fetches = 0
        self.replication_bytes_in = self.replication_bytes_out = self.reassignment_bytes_in = (
            self.reassignment_bytes_out
        ) = 0

    def add(self, other: TopicStats) -> None:
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class BrokerStats:
    """`topics`: those with partitions here; `gone`: what was counted for others;
    `follower_fetches`: the Fetch requests of followers.
    """

    __slots__ = ("follower_fetches", "gone", "topics")

    def __init__(self) -> None:
        self.follower_fetches = 0
        self.topics: dict[str, TopicStats] = {}
        self.gone = TopicStats()

    def hold(self, topic: str) -> TopicStats:
        """For one more partition of `topic`."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicStats()
        found.partitions += 1
        return found

    def release(self, topic: str) -> None:
        """One partition less."""
        found = self.topics[topic]
        found.partitions -= 1
        if not found.partitions:
            self.gone.add(self.topics.pop(topic))

    def of(self, topic: str) -> TopicStats:
        """Where a request for `topic` is counted, held here or not."""
        return self.topics.get(topic, self.gone)

    def total(self) -> TopicStats:
        total = TopicStats()
        for stats in (self.gone, *self.topics.values()):
            total.add(stats)
        return total
