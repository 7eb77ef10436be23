"""Which fetcher a partition belongs to, and when fetchers come and go (RL 6.1)."""

from __future__ import annotations

from random import Random

import pytest
from twisted.internet.task import Clock

from tests.replication.fixtures import TOPIC_ID
from tests.replication.memory_leader import MemoryLeaderEndPoint
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.log.memory import InlineWorker, MemoryFileSystem
from twisted_broker.replication.fetcher.fetcher import Fetcher
from twisted_broker.replication.fetcher.fetcher_manager import (
    FetcherManager,
    FollowedPartition,
    fetcher_number,
)
from twisted_broker.replication.fetcher.fetcher_state import InitialFetchState
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.wire.errors import BrokerError, ErrorCode

TWO, THREE = BrokerEndPoint(2, "h", 9002), BrokerEndPoint(3, "h", 9003)
NAMES = [TopicPartition("t", number) for number in range(6)]

# What Java computes: Utils.abs(31 * topic.hashCode() + partition) % fetchers.
JAVA = [
    ("t", 0, 7, 5),
    ("t", 3, 4, 3),
    ("t", 49, 7, 5),
    ("topic", 0, 4, 3),
    ("topic", 3, 7, 3),
    ("topic", 49, 4, 2),
    ("__consumer_offsets", 0, 7, 6),
    ("__consumer_offsets", 3, 7, 3),
    ("__consumer_offsets", 49, 4, 2),
    ("polygenelubricants", 0, 7, 0),
    ("polygenelubricants", 3, 7, 6),
    ("polygenelubricants", 49, 4, 3),
    ("orders-2024.eu_west", 0, 7, 2),
    ("orders-2024.eu_west", 3, 4, 3),
    ("orders-2024.eu_west", 49, 7, 2),
    ("bär", 3, 4, 3),
    ("bär", 49, 7, 0),
    ("\U0001f600", 0, 7, 6),
    ("\U0001f600", 49, 4, 2),
]


@pytest.mark.parametrize(("topic", "partition", "fetchers", "number"), JAVA)
def test_the_number_is_javas(topic: str, partition: int, fetchers: int, number: int) -> None:
    """RL 6.1: the 31-multiplier string hash and the sum in wrapping 32 bits; computed by Apache
    Kafka 4.3.1's own classes.
    """
    assert fetcher_number(TopicPartition(topic, partition), fetchers) == number


@pytest.mark.parametrize(
    ("topic", "partition"),
    [("polygenelubricants", 0), ("9iazipp", 0), ("v5b9a3i", 1), ("zw9qcb6", 2)],
)
def test_the_smallest_number_counts_as_0(topic: str, partition: int) -> None:
    """RL 6.1: abs of the smallest 32-bit number is 0."""
    assert [
        fetcher_number(TopicPartition(topic, partition), fetchers) for fetchers in (3, 7, 1000)
    ] == [0, 0, 0]


class NothingHeld:
    """A target of whose partitions nothing can be requested."""

    def log_start_offset(self, topic_partition):
        raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def latest_epoch(self, topic_partition) -> int:
        return 1

    def added(self, topic_partition) -> None:
        """Nothing is stored."""

    async def wait_for_syncs(self) -> None:
        """As above."""

    def partition_failed(self, topic_partition, reason) -> None:
        """Nothing is remembered."""


class Idle(Fetcher):
    """A fetcher that can ask for nothing."""

    def __init__(self, runtime, leader, failed) -> None:
        super().__init__("idle", runtime, leader, NothingHeld(), 1000, 1 << 20, failed)
        self.started = 0
        self.leader: MemoryLeaderEndPoint

    def start(self) -> None:
        self.started += 1
        super().start()


class Fetchers:
    """A manager, and all fetchers it ever made."""

    def __init__(self, count: int = 1) -> None:
        self.clock = Clock()
        self.runtime = Runtime(
            self.clock,
            lambda: 0,
            None,
            MemoryFileSystem(),
            lambda directory: InlineWorker(),
            Random(1),
        )
        self.made: list[Idle] = []
        self.manager = FetcherManager(count, self.make)

    def make(self, number: int, leader: BrokerEndPoint, failed) -> Idle:
        self.made.append(
            Idle(self.runtime, MemoryLeaderEndPoint(leader, {}, 1, 1, lambda: 0), failed)
        )
        return self.made[-1]

    def add(
        self, *names: TopicPartition, leader: BrokerEndPoint = TWO, epoch: int = 1, offset: int = 0
    ) -> None:
        self.manager.add(
            {
                name: FollowedPartition(leader, InitialFetchState(TOPIC_ID, epoch, offset))
                for name in names
            }
        )

    def held(self) -> dict[tuple[int, int], set[int]]:
        return {
            key: {name.partition for name in fetcher.state.partitions}
            for key, fetcher in self.manager.fetchers.items()
        }


def test_partitions_are_grouped_by_leader_and_number() -> None:
    """RL 6.1: adding groups by (broker, fetcher); each fetcher is made once and started."""
    broker = Fetchers(2)
    broker.add(*NAMES[:4])
    broker.add(*NAMES[4:], leader=THREE)
    assert broker.held() == {(2, 0): {0, 2}, (2, 1): {1, 3}, (3, 0): {4}, (3, 1): {5}}
    broker.add(NAMES[0], epoch=2)
    assert [fetcher.started for fetcher in broker.made] == [1, 1, 1, 1]


def test_a_new_leader_takes_the_partition_over() -> None:
    """RL 6.1: a partition is with one fetcher at most."""
    broker = Fetchers()
    broker.add(*NAMES[:2])
    broker.add(NAMES[0], leader=THREE, epoch=2)
    assert broker.held() == {(2, 0): {1}, (3, 0): {0}}


def test_the_same_epoch_again_keeps_the_state() -> None:
    """RL 6.1."""
    broker = Fetchers()
    broker.add(NAMES[0])
    broker.made[0].state.appended(NAMES[0], 41, 1, 50)
    broker.add(NAMES[0])
    assert broker.made[0].state.partitions[NAMES[0]].fetch_offset == 42


def test_a_leader_at_another_address_gets_another_fetcher() -> None:
    """RL 6.1: reuses one whose endpoint is equal, replaces it otherwise; what the old one had
    goes along.
    """
    broker = Fetchers()
    broker.add(*NAMES[:2])
    broker.made[0].state.appended(NAMES[1], 41, 1, 50)
    broker.add(NAMES[0], leader=BrokerEndPoint(2, "h", 9999), epoch=2)
    old, new = broker.made
    assert old.leader.closed and not new.leader.closed
    assert broker.held() == {(2, 0): {0, 1}}
    assert new.state.partitions[NAMES[1]].fetch_offset == 42


def test_idle_fetchers_shut_down() -> None:
    """RL 6.1."""
    broker = Fetchers()
    broker.add(NAMES[0])
    broker.add(NAMES[1], leader=THREE)
    broker.manager.remove([NAMES[0]])
    broker.manager.shutdown_idle()
    assert broker.held() == {(3, 0): {1}} and broker.made[0].leader.closed


def test_removed_partitions_do_not_count_as_failed() -> None:
    """RL 6.5: `failed_partitions` are shared by all fetchers; removing or adding takes a
    partition out.
    """
    broker = Fetchers()
    broker.add(*NAMES[:2])
    broker.made[0].state.fail(NAMES[0])
    broker.made[0].state.fail(NAMES[1])
    assert broker.manager.failed == set(NAMES[:2])
    broker.manager.remove([NAMES[0]])
    broker.add(NAMES[1], epoch=2)
    assert broker.manager.failed == set()


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 4), (2, 2)])
def test_another_number_of_fetchers(before: int, after: int) -> None:
    """RL 6.1, `num.replica.fetchers` changed while running: every partition moves to its fetcher
    and goes on where it was.
    """
    broker = Fetchers(before)
    broker.add(*NAMES)
    for fetcher in broker.made:
        for name in list(fetcher.state.partitions):
            fetcher.state.appended(name, 10 + name.partition, 1, 100)
    broker.manager.resize(after)
    for (_, number), each in broker.manager.fetchers.items():
        for name, state in each.state.partitions.items():
            assert (
                fetcher_number(name, after) == number and state.fetch_offset == 11 + name.partition
            )
    assert sorted(set.union(*broker.held().values())) == list(range(6))
    assert all(partitions for partitions in broker.held().values())


def test_shutdown() -> None:
    """Nothing is fetched afterwards, nothing can be added; all timers are gone."""
    broker = Fetchers(2)
    broker.add(*NAMES)
    broker.manager.shutdown()
    broker.clock.advance(0)
    broker.add(*NAMES)
    assert broker.held() == {} and all(fetcher.leader.closed for fetcher in broker.made)
    assert broker.clock.getDelayedCalls() == []


def test_the_largest_lag() -> None:
    """RL 1.13: MaxLag over all fetchers."""
    broker = Fetchers()
    broker.add(NAMES[0])
    broker.add(NAMES[1], leader=THREE)
    broker.made[0].state.appended(NAMES[0], 1, 1, 10)
    broker.made[1].state.appended(NAMES[1], 1, 1, 30)
    assert broker.manager.max_lag == 28
