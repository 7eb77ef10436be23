"""Brokers that hold one partition each and follow one another through the production fetcher;
only the wire is left out.
"""

from __future__ import annotations

from collections import deque
from random import Random

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import Clock

from tests.replication.fixtures import (
    MAX_LAG_MS,
    TOPIC_ID,
    TP,
    WALL_MS,
    FakeBrokers,
    batch,
    make_log,
    registration,
)
from tests.replication.memory_leader import MemoryLeaderEndPoint
from twisted_broker.interfaces import Runtime
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.memory import InlineWorker
from twisted_broker.log_config import LogConfig
from twisted_broker.replication.fetcher.fetcher import Fetcher
from twisted_broker.replication.fetcher.fetcher_state import InitialFetchState
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.replication.fetcher.replica_fetcher import (
    FollowedReplicas,
    initial_fetch_offset,
)
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import iterate_batches

REPLICAS = (1, 2, 3)
BACKOFF_MS = 1000


class Node:
    """A broker with the partition `TP`.

    What a fetcher uses of a replica manager is here: `runtime`, `partition`, `drain`,
    `directory_failed`.
    """

    def __init__(self, node_id: int, clock: Clock, config: LogConfig | None = None) -> None:
        self.id = node_id
        self.clock = clock
        self.brokers = FakeBrokers(REPLICAS)
        self.events: deque = deque()
        self.log = make_log(config)
        self.held = Partition(TP, TOPIC_ID, node_id, self.events, self.brokers, MAX_LAG_MS)
        self.partitions = {TP: self.held}
        self.runtime = Runtime(
            clock,
            lambda: WALL_MS,
            None,
            self.log.pool.files,
            lambda directory: InlineWorker(),
            Random(node_id),
        )
        self.failed_directories: list[str] = []
        self.refuses_unclean = False
        self.fetcher: Fetcher | None = None
        self.leader: MemoryLeaderEndPoint | None = None
        self.values = 0

    # what a fetcher uses
    def partition(self, name) -> Partition:
        if name not in self.partitions:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.partitions[name]

    def drain(self) -> None:
        self.events.clear()

    def directory_failed(self, directory, error) -> None:
        self.failed_directories.append(directory)

    # roles
    def lead(self, epoch: int, isr=None) -> None:
        self.stop_following()
        self.held.make_leader(
            registration(self.id, REPLICAS, isr or (self.id,), epoch, epoch * 10),
            self.log,
            self.now_ms(),
        )

    def follow(
        self,
        other: Node,
        epoch: int,
        *,
        from_high_watermark: bool = False,
        truncates_on_fetch: bool = True,
        told: bool = True,
    ) -> Fetcher:
        """`told` False: the other broker does not know yet that it leads under this epoch."""
        self.stop_following()
        self.held.make_follower(
            registration(other.id, REPLICAS, (other.id,), epoch, epoch * 10), self.log
        )
        self.leader = MemoryLeaderEndPoint(
            BrokerEndPoint(other.id, "h", 1), other.partitions, self.id, 100 + self.id, self.now_ms
        )
        self.leader.truncates_on_fetch = truncates_on_fetch
        target = FollowedReplicas(self, lambda: self.refuses_unclean)
        self.fetcher = Fetcher(
            f"fetcher-{self.id}", self.runtime, self.leader, target, BACKOFF_MS, 1 << 20
        )
        offset = (
            self.log.high_watermark
            if from_high_watermark
            else initial_fetch_offset(self.log, truncates_on_fetch)
        )
        self.fetcher.add({TP: InitialFetchState(TOPIC_ID, epoch, offset)})
        return self.fetcher

    def stop_following(self) -> None:
        if self.fetcher is not None:
            self.fetcher.shutdown()
            self.fetcher = None

    def now_ms(self) -> int:
        return int(self.clock.seconds() * 1000)

    # time
    def round(self) -> None:
        """One round of the fetcher; it must come to its end."""
        finished: list = []
        ensureDeferred(self.fetcher.do_work()).addCallbacks(
            finished.append, lambda failure: failure.raiseException()
        )
        assert finished

    def catch_up(self, rounds: int = 20) -> None:
        for _ in range(rounds):
            self.round()

    @property
    def state(self):
        return self.fetcher.state.partitions.get(TP)

    # the log
    def append(self, count: int = 1) -> None:
        """`count` batches of one record, each with a value that no other broker or call writes."""
        for _ in range(count):
            self.values += 1
            value = f"{self.id}:{self.values}".encode()
            self.held.append_as_leader(
                batch(1, value=value), 1, WALL_MS, self.now_ms(), AppendOrigin.CLIENT
            )

    def content(self) -> list[tuple[int, int, bytes]]:
        """(offset, leader epoch, value) of every record."""
        found: list[tuple[int, int, bytes]] = []
        start = self.log.log_start_offset
        if start == self.log.log_end_offset:
            return found
        offset = start
        while offset < self.log.log_end_offset:
            data = self.log.read(offset, 1 << 20)
            for each in iterate_batches(data.slice.read()):
                found += [
                    (record.offset, each.partition_leader_epoch, bytes(record.value))
                    for record in each.records(1 << 20)
                ]
            data.slice.release()
            offset = found[-1][0] + 1
        return found

    def epochs(self) -> list[tuple[int, int]]:
        return self.log.leader_epochs.entries()


def nodes(count: int = 2, config: LogConfig | None = None) -> list[Node]:
    clock = Clock()
    clock.advance(100)
    return [Node(number + 1, clock, config) for number in range(count)]


def copied(records: int, epoch: int = 1, *, truncates_on_fetch: bool = True) -> list[Node]:
    """A leader under `epoch` with so many records, and a follower that holds them all."""
    a, b = nodes()
    a.lead(epoch)
    a.append(records)
    b.follow(a, epoch, truncates_on_fetch=truncates_on_fetch)
    b.catch_up(2)
    return [a, b]
