"""Which replica a consumer should read: the one in its own rack.

Owns the choice that a leader makes for a consumer that names its rack (KIP-392), when
`replica.selector.class` says so.

1. Only replicas in the ISR that are not fenced and hold the requested offset come into question.
2. The leader itself when it is in that rack, or when no replica is; else the one furthest ahead,
   then the one caught up last, then the highest id.

Source: RL 2.7; Kafka's `ReplicaManager.findPreferredReadReplica`, `RackAwareReplicaSelector`.
Not here: selectors of other names (no class is ever loaded), the reading itself (`partition`).
"""

from __future__ import annotations

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.replication.live_brokers import LiveBrokers
from twisted_broker.replication.partition.fetch_data import (
    FetchPartitionRequest,
    FetchPartitionResult,
)
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.wire.errors import ErrorCode

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_ONLY = "org.apache.kafka.common.replica.LeaderSelector"


def reads_nearby(config: BrokerConfig) -> bool:
    """Whether consumers are sent to their own rack."""
    return config.text("replica.selector.class") == RACK_AWARE


def nearest_replica(
    partition: Partition, rack: str, fetch_offset: int, brokers: LiveBrokers
) -> int:
    """The id of the follower to read instead, -1 for none: this leader serves."""
    if not partition.is_leader or brokers.rack_of(partition.node_id) == rack:
        return -1
    best = (-1, -1, -1)
    for broker_id in partition.isr_state.isr:
        replica = partition.remote_replicas.get(broker_id)
        if (
            replica is None
            or not replica.log_start_offset <= fetch_offset <= replica.log_end.offset
            or brokers.rack_of(broker_id) != rack
        ):
            continue
        best = max(best, (replica.log_end.offset, replica.last_caught_up_ms, broker_id))
    return best[2]


def redirected(
    partition: Partition, request: FetchPartitionRequest, rack: str, brokers: LiveBrokers
) -> FetchPartitionResult | None:
    """The answer that names a nearer replica and carries no records; None: read here. Raises
    `BrokerError` for a wrong leader epoch.
    """
    nearest = nearest_replica(partition, rack, request.fetch_offset, brokers)
    if nearest < 0 or request.topic_id not in (None, partition.topic_id):
        return None
    log = partition.log_for(request.current_leader_epoch, True)
    result = FetchPartitionResult(
        request, ErrorCode.NONE, log.high_watermark, log.last_stable_offset, log.log_start_offset
    )
    result.preferred_read_replica = nearest
    return result
