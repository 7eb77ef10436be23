"""The fetchers of this broker's followers: one per leader broker and number, each over a connection
of its own.

Owns `ReplicaFetcherManager`: from partitions that began to follow to fetchers that bring them up,
and where other brokers are reached.

1. A partition is taken out of its fetcher before its initial offset is read: no answer in flight
   may move its log meanwhile.
2. A leader that is not known, or has no listener of the inter-broker name, is not fetched from
   until the controller's next word.
3. The client id is `broker-<id>-fetcher-<n>`.

Source: RL 1.4, 6.1, 6.2; Kafka's `ReplicaFetcherManager`,
`ReplicaManager.applyLocalFollowersDelta`. Leaves out: rounds (`fetcher`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from twisted.logger import Logger

from twisted_broker.config import BrokerConfig
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetcher.fetcher import Fetcher
from twisted_broker.replication.fetcher.fetcher_manager import FetcherManager, FollowedPartition
from twisted_broker.replication.fetcher.fetcher_state import InitialFetchState
from twisted_broker.replication.fetcher.follower_log import initial_offset
from twisted_broker.replication.fetcher.leader_endpoint import (
    BrokerEndPoint,
    Connection,
    FetchLimits,
    RemoteLeaderEndPoint,
)
from twisted_broker.replication.fetcher.replica_fetcher import ReplicaFetcher
from twisted_broker.replication.live_brokers import ImageSource
from twisted_broker.replication.partition.partition import Partition

if TYPE_CHECKING:
    from twisted_broker.replication.replica_manager import ReplicaManager

_log = Logger()
METADATA_VERSION = "metadata.version"
Connect = Callable[[BrokerEndPoint, str], Connection]


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
    `listener` the inter-broker one's name.
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        image_source: ImageSource,
        listener: str,
        broker_epoch: Callable[[], int],
        connect: Connect,
    ) -> None:
        super().__init__(replicas.config.integer("num.replica.fetchers"), self._make_fetcher)
        self._replicas = replicas
        self._image_source = image_source
        self._listener = listener
        self._broker_epoch = broker_epoch
        self._connect = connect

    def follow(self, partitions: Iterable[Partition]) -> None:
        """RL 1.4: fetching begins anew, at each partition's initial offset."""
        followed = [
            partition
            for partition in partitions
            if partition.log is not None and not partition.offline
        ]
        self.remove(partition.topic_partition for partition in followed)
        starting: dict[TopicPartition, FollowedPartition] = {}
        for partition in followed:
            leader = self._endpoint(partition.leader_id)
            log = partition.log
            if leader is None or log is None:
                continue
            offset = initial_offset(log, RemoteLeaderEndPoint.truncates_on_fetch)
            initial = InitialFetchState(partition.topic_id, partition.leader_epoch, offset)
            starting[partition.topic_partition] = FollowedPartition(leader, initial)
        self._tell_waiting([each for each in followed if each.topic_partition not in starting])
        self.add(starting)

    def _tell_waiting(self, waiting: list[Partition]) -> None:
        """RL 1.4.

        Those that nobody leads are no news: the metadata says so, and at a stop of the whole
        cluster it is all of them.
        """
        led = [str(each.topic_partition) for each in waiting if each.leader_id >= 0]
        if led:
            _log.info(
                "{count} partition(s) wait for a leader that is not there: {first} ...",
                count=len(led),
                first=", ".join(led[:3]),
            )

    def _endpoint(self, broker_id: int) -> BrokerEndPoint | None:
        broker = self._image_source.image.brokers.get(broker_id)
        listener = None if broker is None or broker.fenced else broker.listeners.get(self._listener)
        return None if listener is None else BrokerEndPoint(broker_id, listener.host, listener.port)

    def _make_fetcher(
        self, number: int, leader: BrokerEndPoint, failed: set[TopicPartition]
    ) -> Fetcher:
        replicas = self._replicas
        node_id, limits = replicas.node_id, fetch_limits(replicas.config)
        connection = self._connect(leader, f"broker-{node_id}-fetcher-{number}")
        remote = RemoteLeaderEndPoint(
            leader, connection, node_id, self._broker_epoch, self._metadata_version, limits
        )
        backoff_ms = replicas.config.integer("replica.fetch.backoff.ms")
        name = f"replica fetcher {number} of broker {node_id} from broker {leader.id}"
        return ReplicaFetcher(
            name,
            replicas,
            remote,
            backoff_ms,
            limits.partition_max_bytes,
            failed,
            self._refuses_unclean,
        )

    def _metadata_version(self) -> int:
        return self._image_source.image.features.get(METADATA_VERSION, 0)

    def _refuses_unclean(self) -> bool:
        return self._replicas.config.boolean("replog.refuse.unclean.truncation")
