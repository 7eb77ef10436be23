"""All fetchers of one kind: which partition belongs to which.

Owns the fetchers by (leader broker, number), the hash that places partitions, and the partitions
that failed.

1. A partition is with one fetcher at most: adding it takes it out of any other first.
2. Fetchers are made for the first partition and shut down when they are idle.
3. A fetcher whose leader has moved to another address is replaced; its partitions go along.

Source: RL 6.1, 7.1; Kafka's `AbstractFetcherManager`. Leaves out: what a fetcher does (`fetcher`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from twisted.logger import Logger

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetcher.fetcher import Fetcher
from twisted_broker.replication.fetcher.fetcher_state import InitialFetchState
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint

_log = Logger()
_SMALLEST = -(2**31)


class FollowedPartition(NamedTuple):
    """Whom to fetch a partition from, and from where on."""

    leader: BrokerEndPoint
    initial: InitialFetchState


def fetcher_number(topic_partition: TopicPartition, fetchers: int) -> int:
    """RL 6.1: the same in every process and in Java: the 31-multiplier hash of the name's
    UTF-16, and the sum, in wrapping 32 bits.
    """
    code = 0
    units = topic_partition.topic.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    total = (31 * code + topic_partition.partition) & 0xFFFFFFFF
    signed = total - 2**32 if total >= 2**31 else total
    return (0 if signed == _SMALLEST else abs(signed)) % fetchers


class FetcherManager:
    """`make(number, leader, failed)` makes a fetcher that is not started yet; `count`: fetchers
    per leader broker.
    """

    def __init__(
        self, count: int, make: Callable[[int, BrokerEndPoint, set[TopicPartition]], Fetcher]
    ) -> None:
        self.count = count
        self.fetchers: dict[tuple[int, int], Fetcher] = {}
        self.failed: set[TopicPartition] = set()
        self._make = make
        self._stopped = False

    def add(self, partitions: Mapping[TopicPartition, FollowedPartition]) -> None:
        """RL 6.1: grouped by leader and number; a partition already there under the same leader
        epoch keeps its state.
        """
        if self._stopped:
            return
        groups: dict[tuple[BrokerEndPoint, int], dict[TopicPartition, InitialFetchState]] = (
            defaultdict(dict)
        )
        for topic_partition, (leader, initial) in partitions.items():
            groups[leader, fetcher_number(topic_partition, self.count)][topic_partition] = initial
        for (leader, number), initials in groups.items():
            key = (leader.id, number)
            for other_key, other in self.fetchers.items():
                if other_key != key:
                    other.remove(initials)
            self._fetcher(key, leader).add(initials)

    def _fetcher(self, key: tuple[int, int], leader: BrokerEndPoint) -> Fetcher:
        known = self.fetchers.get(key)
        if known is not None and known.leader.endpoint == leader:
            return known
        moved = (
            {}
            if known is None
            else {
                name: state.initial
                for name, state in known.remove(list(known.state.partitions)).items()
            }
        )
        if known is not None:
            known.shutdown()
        made = self.fetchers[key] = self._make(key[1], leader, self.failed)
        made.add(moved)
        made.start()
        return made

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They are fetched no more, and no longer count as failed."""
        names = list(topic_partitions)
        for fetcher in self.fetchers.values():
            fetcher.remove(names)
        self.failed.difference_update(names)

    def ask_anew(self, topic_partition: TopicPartition) -> None:
        """RL 2.8, 6.2: its own log start moved, and the leader is told where it is: with the
        next fetch.
        """
        for fetcher in self.fetchers.values():
            fetcher.state.mark(topic_partition)

    def is_fetching(self, topic_partition: TopicPartition) -> bool:
        return any(
            topic_partition in fetcher.state.partitions for fetcher in self.fetchers.values()
        )

    def shutdown_idle(self) -> None:
        """RL 6.1: fetchers without partitions end."""
        for key in [key for key, fetcher in self.fetchers.items() if fetcher.is_idle]:
            self.fetchers.pop(key).shutdown()

    def resize(self, count: int) -> None:
        """`num.replica.fetchers` changed: every partition goes to its new fetcher and goes on
        there.
        """
        if count == self.count:
            return
        _log.info("{before} fetchers per leader become {after}", before=self.count, after=count)
        self.count = count
        moving: dict[TopicPartition, FollowedPartition] = {}
        for fetcher in self.fetchers.values():
            for name, state in fetcher.remove(list(fetcher.state.partitions)).items():
                moving[name] = FollowedPartition(fetcher.leader.endpoint, state.initial)
        self.add(moving)
        self.shutdown_idle()

    def shutdown(self) -> None:
        """All end; nothing is added any more."""
        self._stopped = True
        fetchers, self.fetchers = self.fetchers, {}
        for fetcher in fetchers.values():
            fetcher.shutdown()

    @property
    def max_lag(self) -> int:
        """MaxLag."""
        return max((fetcher.state.max_lag for fetcher in self.fetchers.values()), default=0)
