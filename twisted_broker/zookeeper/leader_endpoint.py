"""Leaders in a ZooKeeper cluster: the versions of requests to them follow from
`inter.broker.protocol.version`.

1. At 2.6 topics are named, and truncation is by OffsetForLeaderEpoch.
2. At 3.9 a topic without an id is named, too: the controller is at 2.6 until it was restarted.

Source: KRAFT 2.4; Kafka 3.9's `RemoteLeaderEndPoint`. Not here: the requests themselves
(`replication/fetcher/leader_endpoint.py`).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetcher.fetch_session_handler import RequestedPartitions
from twisted_broker.replication.fetcher.fetcher_state import FetchedPartition
from twisted_broker.replication.fetcher.leader_endpoint import RemoteLeaderEndPoint
from twisted_broker.wire.primitives import NULL_UUID
from twisted_broker.zookeeper.protocol_versions import IBP_2_6, IBP_3_9, InterBrokerProtocol

_LAST_BY_NAME = 12


class LeaderEndPoint39(RemoteLeaderEndPoint):
    """At protocol 3.9."""

    protocol = IBP_3_9
    truncates_on_fetch = IBP_3_9.truncates_on_fetch
    offset_for_leader_epoch_version = IBP_3_9.offset_for_leader_epoch

    def fetch_version(self) -> int:
        return self.protocol.fetch

    def fetch(
        self, requested: RequestedPartitions
    ) -> Coroutine[Any, Any, dict[TopicPartition, FetchedPartition]]:
        version = self.fetch_version()
        if any(each.topic_id == NULL_UUID for each in requested.current.values()):
            version = min(version, _LAST_BY_NAME)
        return self._fetch(requested, version)

    def list_offsets_version(self) -> int:
        return self.protocol.list_offsets


class LeaderEndPoint26(LeaderEndPoint39):
    """At protocol 2.6."""

    protocol = IBP_2_6
    truncates_on_fetch = IBP_2_6.truncates_on_fetch
    offset_for_leader_epoch_version = IBP_2_6.offset_for_leader_epoch


def endpoint_class(protocol: InterBrokerProtocol) -> type[RemoteLeaderEndPoint]:
    """Of this protocol."""
    return LeaderEndPoint39 if protocol.truncates_on_fetch else LeaderEndPoint26
