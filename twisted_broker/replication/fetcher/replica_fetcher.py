"""The fetcher of followed replicas: it leaves out those that the follower's throttle holds back.

Owns `ReplicaFetcher`.

1. A replica is held back while it is throttled, not in sync, and the rate is above its bound. It is
   looked at again in every round, and forgotten in the fetch session meanwhile.
2. A replica in sync is always fetched: otherwise it would leave the ISR. Before its first answer it
   does not count as in sync.
3. Truncation is not held back, and costs no bytes.

Source: RL 5.3, 6.2; Kafka's `RemoteLeaderEndPoint.shouldFollowerThrottle`. Not here: which replicas
are throttled and what counts (`replication_quota`).
"""

from __future__ import annotations

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.replication.fetcher.fetch_session_handler import RequestedPartition
from twisted_broker.replication.fetcher.fetcher import Fetcher, FetchTarget
from twisted_broker.replication.fetcher.fetcher_state import PartitionFetchState, RequestFor
from twisted_broker.replication.fetcher.leader_endpoint import LeaderEndPoint
from twisted_broker.replication.replication_quota import ReplicationQuota


class ReplicaFetcher(Fetcher):
    """`quota`: the one that all replica fetchers of this broker share."""

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        leader: LeaderEndPoint,
        target: FetchTarget,
        backoff_ms: int,
        partition_max_bytes: int,
        failed: set[TopicPartition] | None,
        quota: ReplicationQuota,
    ) -> None:
        super().__init__(name, runtime, leader, target, backoff_ms, partition_max_bytes, failed)
        self._quota = quota

    def _requests(self, now_ms: int) -> RequestFor:
        quota = self._quota
        # Partitions that were held back before are looked at in each round anyway.
        if not quota.topics or not quota.is_exceeded(now_ms):
            return self._request_for
        for name, state in self.state.partitions.items():
            if self._is_held_back(name, state):
                self.state.mark_changed(name)
        return self._request_unless_held_back

    def _is_held_back(self, name: TopicPartition, state: PartitionFetchState) -> bool:
        return not state.is_in_sync and self._quota.is_throttled(name)

    def _request_unless_held_back(
        self, topic_partition: TopicPartition, state: PartitionFetchState
    ) -> RequestedPartition | None:
        if self._is_held_back(topic_partition, state):
            return None
        return self._request_for(topic_partition, state)
