"""All fetchers of one kind: which partition belongs to which.

Owns `FetcherManager`: the fetchers by leader broker and number, the hash that places partitions,
the partitions that failed. And `ReplicaFetcherManager`, that of this broker's followers: it gives
partitions that began to follow to fetchers, and knows the addresses of their leaders.

1. A partition is with one fetcher at most: adding it takes it out of any other first.
2. Fetchers are made for the first partition and shut down when they are idle.
3. A fetcher whose leader has moved to another address is replaced; its partitions go along.
4. A follower is taken out of its fetcher before its initial offset is read: no answer in flight may
   move its log meanwhile.
5. A leader that is not known, is fenced, or has no listener of the inter-broker name, is not
   fetched from until the metadata changes.
6. The client id is `broker-<id>-fetcher-<n>`.

Source: RL 1.4, 6.1, 6.2, 7.1; Kafka's `AbstractFetcherManager`, `ReplicaFetcherManager`,
`ReplicaManager.applyLocalFollowersDelta`. Not here: what a fetcher does (`fetcher`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.collaborators import IReplicas
from twisted_broker.replication.fetcher.fetcher import Fetcher
from twisted_broker.replication.fetcher.fetcher_state import InitialFetchState
from twisted_broker.replication.fetcher.leader_endpoint import (
    BrokerEndPoint,
    Connection,
    FetchLimits,
    RemoteLeaderEndPoint,
)
from twisted_broker.replication.fetcher.replica_fetcher import (
    FollowedReplicas,
    ReplicaFetcher,
    initial_fetch_offset,
)
from twisted_broker.replication.live_brokers import ImageSource
from twisted_broker.replication.partition.partition import Partition

_logger = Logger()
_SMALLEST = -(2**31)
METADATA_VERSION = "metadata.version"
Connect = Callable[[BrokerEndPoint, str], Connection]


class FollowedPartition(NamedTuple):
    """From which broker to fetch a partition, and where to begin."""

    leader: BrokerEndPoint
    initial: InitialFetchState


def fetcher_number(topic_partition: TopicPartition, fetchers: int) -> int:
    """RL 6.1: the same in every process and in Java: the 31-multiplier hash of the name's
    UTF-16, and the sum, in wrapping 32 bits.
    """
    code = 0
    units = topic_partition.topic.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        # Java's String.hashCode, over UTF-16 units.
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    total = (31 * code + topic_partition.partition) & 0xFFFFFFFF
    signed = total - 2**32 if total >= 2**31 else total
    return (0 if signed == _SMALLEST else abs(signed)) % fetchers


class FetcherManager:
    """`create(number, leader, failed)` makes a fetcher that is not started yet; `count`: fetchers
    per leader broker.
    """

    def __init__(
        self, count: int, create: Callable[[int, BrokerEndPoint, set[TopicPartition]], Fetcher]
    ) -> None:
        self.count = count
        self.fetchers: dict[tuple[int, int], Fetcher] = {}
        self.failed: set[TopicPartition] = set()
        self._create = create
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
                # Two fetchers of one partition would append in turn: it leaves its old one first.
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
        # The broker moved to another address: the connection is of no use, the offsets reached are.
        if known is not None:
            known.shutdown()
        made = self.fetchers[key] = self._create(key[1], leader, self.failed)
        made.add(moved)
        made.start()
        return made

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They are fetched no more, and no longer count as failed."""
        names = list(topic_partitions)
        for fetcher in self.fetchers.values():
            fetcher.remove(names)
        self.failed.difference_update(names)

    def log_start_moved(self, topic_partition: TopicPartition) -> None:
        """RL 2.8, 6.2: the next fetch says where its own log starts."""
        for fetcher in self.fetchers.values():
            fetcher.state.mark_changed(topic_partition)

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
        _logger.info(
            "num.replica.fetchers changed from {before} to {after}", before=self.count, after=count
        )
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


def fetch_limits(config: BrokerConfig) -> FetchLimits:
    """The limits of one replica fetch."""
    return FetchLimits(
        config.integer("replica.fetch.wait.max.ms"),
        config.integer("replica.fetch.min.bytes"),
        config.integer("replica.fetch.response.max.bytes"),
        config.integer("replica.fetch.max.bytes"),
    )


class ReplicaFetcherManager(FetcherManager):
    """`connect(endpoint, client id)` makes a connection; `broker_epoch` is our registration's;
    `listener` the inter-broker one's name; `endpoint_class` sends what the leader understands.
    """

    def __init__(
        self,
        replicas: IReplicas,
        image_source: ImageSource,
        listener: str,
        broker_epoch: Callable[[], int],
        connect: Connect,
        endpoint_class: type[RemoteLeaderEndPoint] = RemoteLeaderEndPoint,
    ) -> None:
        super().__init__(replicas.config.integer("num.replica.fetchers"), self._create_fetcher)
        self._replicas = replicas
        self._image_source = image_source
        self._listener = listener
        self._broker_epoch = broker_epoch
        self._connect = connect
        self._endpoint_class = endpoint_class
        self._refused = self._refuses_unclean()

    def settings_changed(self, config: BrokerConfig) -> None:
        """Partitions that failed are tried again once nothing refuses to truncate them."""
        self.resize(config.integer("num.replica.fetchers"))
        before, self._refused = self._refused, self._refuses_unclean()
        if before and not self._refused:
            held = self._replicas.partitions
            self.follow([held[name] for name in sorted(self.failed) if name in held])

    def follow(self, partitions: Iterable[Partition]) -> None:
        """RL 1.4: fetching starts again, at each partition's initial offset."""
        followed = [
            partition
            for partition in partitions
            if partition.log is not None and not partition.offline
        ]
        # Out of `failed`, too: a new leader epoch is a new chance.
        self.remove(partition.topic_partition for partition in followed)
        starting: dict[TopicPartition, FollowedPartition] = {}
        for partition in followed:
            leader = self._endpoint(partition.leader_id)
            log = partition.log
            if leader is None or log is None:
                continue
            offset = initial_fetch_offset(log, self._endpoint_class.truncates_on_fetch)
            initial = InitialFetchState(partition.topic_id, partition.leader_epoch, offset)
            starting[partition.topic_partition] = FollowedPartition(leader, initial)
        self._log_waiting([each for each in followed if each.topic_partition not in starting])
        self.add(starting)

    def _log_waiting(self, waiting: list[Partition]) -> None:
        """RL 1.4.

        Partitions without a leader are not logged: the metadata says so, and at a stop of the whole
        cluster it is all of them.
        """
        led = [str(each.topic_partition) for each in waiting if each.leader_id >= 0]
        if led:
            _logger.info(
                "{count} partition(s) are not fetched, their leader is fenced or unknown: "
                "{first} ...",
                count=len(led),
                first=", ".join(led[:3]),
            )

    def _endpoint(self, broker_id: int) -> BrokerEndPoint | None:
        broker = self._image_source.image.brokers.get(broker_id)
        listener = None if broker is None or broker.fenced else broker.listeners.get(self._listener)
        return None if listener is None else BrokerEndPoint(broker_id, listener.host, listener.port)

    def _create_fetcher(
        self, number: int, leader: BrokerEndPoint, failed: set[TopicPartition]
    ) -> Fetcher:
        replicas = self._replicas
        node_id, limits = replicas.node_id, fetch_limits(replicas.config)
        connection = self._connect(leader, f"broker-{node_id}-fetcher-{number}")
        remote = self._endpoint_class(
            leader, connection, node_id, self._broker_epoch, self._metadata_version, limits
        )
        backoff_ms = replicas.config.integer("replica.fetch.backoff.ms")
        name = f"replica fetcher {number} of broker {node_id} from broker {leader.id}"
        quota = replicas.follower_quota
        return ReplicaFetcher(
            name,
            replicas.runtime,
            remote,
            FollowedReplicas(replicas, self._refuses_unclean, quota),
            backoff_ms,
            limits.partition_max_bytes,
            failed,
            quota,
        )

    def _metadata_version(self) -> int:
        return self._image_source.image.features.get(METADATA_VERSION, 0)

    def _refuses_unclean(self) -> bool:
        return self._replicas.config.boolean("replog.refuse.unclean.truncation")
