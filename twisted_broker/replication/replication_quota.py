"""Throttles of replication: which replicas are throttled, and whether the rate is above its bound.

Owns `ReplicationQuota`, one for what a broker sends to followers, one for what it fetches as a
follower, one for the bytes that it moves between its directories; and `SimpleRate`, the rate that
it compares.

1. The bytes of all throttled replicas count, also of those that are in sync; only replicas that are
   not in sync wait, for one in sync would leave the ISR. The caller knows which are in sync.
2. A quota bounds the mean over its windows: a burst may exceed it, and later bytes wait for that.
3. One entry per topic that has throttled replicas: bounded by the settings of topics, which the
   controller bounds. Nothing of it outlives the process: the settings come again with the image.

Source: RL 1.8, 5.3, 6.2; KIP-73; Kafka's `ReplicationQuotaManager`, `SimpleRate`,
`TopicConfigHandler`. Pure. Not here: who waits (`replica_manager`,
`purgatory.delayed_operations`, `fetcher.replica_fetcher`), what the settings take (`config`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from twisted_broker.interfaces import TopicPartition
from twisted_broker.java_numbers import parse_whole
from twisted_broker.security.quota.rate import Rate

LEADER_RATE = "leader.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_RATE = "follower.replication.throttled.rate"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
WINDOWS = "replication.quota.window.num"
WINDOW_SECONDS = "replication.quota.window.size.seconds"
_EVERY = "*"


class SimpleRate(Rate):
    """Divides by the time since the oldest sample began, at least by one window: unlike in `Rate`,
    windows that are missing do not count as empty ones.
    """

    __slots__ = ()

    def elapsed_ms(self, now_ms: int) -> int:
        super().elapsed_ms(now_ms)  # drops old samples, makes the first
        return max(now_ms - min(self._starts), self.window_ms)


class ReplicationQuota:
    """`bound()`: bytes per second, as set at each call. `topics`: topic -> the partitions whose
    replica on this broker is throttled, None for all. While it is empty nothing is to be done.
    `setting`: what its reason names.
    """

    __slots__ = ("_bound", "_rate", "_setting", "topics")

    def __init__(
        self,
        bound: Callable[[], int],
        windows: int = 11,
        window_ms: int = 1000,
        setting: str = "",
    ) -> None:
        self._setting = setting
        self.topics: dict[str, frozenset[int] | None] = {}
        self._bound = bound
        self._rate = SimpleRate(windows, window_ms)

    def set_topic(self, topic: str, replicas: str, broker_id: int) -> None:
        """`replicas`: the topic's setting, `*` or partition:broker,..., "" for none. It was
        checked when it was set; malformed entries that another controller accepted are ignored.
        """
        entries = [entry.strip() for entry in replicas.split(",") if entry.strip()]
        if not entries:
            self.topics.pop(topic, None)
        elif entries == [_EVERY]:
            self.topics[topic] = None
        elif here := frozenset(_partitions_of(broker_id, entries)):
            self.topics[topic] = here
        else:
            self.topics.pop(topic, None)

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        """Whether this broker's replica is throttled."""
        topic, partition = topic_partition
        if topic not in self.topics:
            return False
        partitions = self.topics[topic]
        return partitions is None or partition in partitions

    def record(self, size: int, now_ms: int) -> None:
        """Bytes of throttled replicas, whether the rate is above its bound or not."""
        self._rate.record(size, now_ms)

    def is_exceeded(self, now_ms: int) -> bool:
        return self._rate.measure(now_ms) > self._bound()

    def throttle_ms(self, now_ms: int) -> int:
        """How long until the rate is back at its bound; 0: it is not above."""
        return self._rate.throttle_ms(self._bound(), now_ms)

    def byte_rate(self, now_ms: int) -> float:
        """Bytes per second of throttled replicas."""
        return self._rate.measure(now_ms)

    def reason(self, now_ms: int) -> str:
        """Why what is throttled waits; "" while it does not."""
        if not self.is_exceeded(now_ms):
            return ""
        rate = int(self.byte_rate(now_ms))
        return f"throttled: {rate:,} bytes a second, above {self._setting}={self._bound()}"

    def reason_for(self, topic_partition: TopicPartition, now_ms: int) -> str:
        """Why its replica waits, where that is not in sync; "" where it does not."""
        return self.reason(now_ms) if self.is_throttled(topic_partition) else ""


def _partitions_of(broker_id: int, entries: Iterable[str]) -> Iterator[int]:
    for entry in entries:
        number, _, broker = entry.partition(":")
        try:
            if parse_whole(broker) == broker_id:
                yield parse_whole(number)
        except ValueError:
            continue
