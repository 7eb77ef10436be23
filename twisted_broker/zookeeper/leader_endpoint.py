"""Leaders in a ZooKeeper cluster: the versions of requests to them follow from
`inter.broker.protocol.version`.

At 2.6 topics are named, and truncation is by OffsetForLeaderEpoch.

Source: KRAFT 2.4; Kafka 3.9's `RemoteLeaderEndPoint`. Not here: the requests themselves
(`replication/fetcher/leader_endpoint.py`).
"""

from __future__ import annotations

from twisted_broker.replication.fetcher.leader_endpoint import RemoteLeaderEndPoint
from twisted_broker.zookeeper.protocol_versions import IBP_2_6, IBP_3_9, InterBrokerProtocol


class LeaderEndPoint39(RemoteLeaderEndPoint):
    """At protocol 3.9."""

    protocol = IBP_3_9
    truncates_on_fetch = IBP_3_9.truncates_on_fetch
    offset_for_leader_epoch_version = IBP_3_9.offset_for_leader_epoch

    def fetch_version(self) -> int:
        return self.protocol.fetch

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
