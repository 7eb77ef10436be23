"""Kafka clusters for tests: docs/TESTING.md.

Public and stable: the names of `__all__`, `twisted_broker.testing.trial`, and the fixtures `kafka`
and `kafka_cluster` of pytest. Nothing is imported before it is used: pytest loads this package in
every run.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twisted_broker.testing.async_cluster import AsyncCluster
    from twisted_broker.testing.awaited import AsyncGroup, AsyncTopic
    from twisted_broker.testing.cluster import Cluster, Group, Member, Record, Topic
    from twisted_broker.testing.conditions import (
        Condition,
        group,
        high_watermark,
        in_sync,
        isr,
        leader,
        log_end,
        records,
        requests,
        transaction,
    )
    from twisted_broker.testing.handles import (
        ClusterBroker,
        ClusterClock,
        ClusterTrace,
        Disk,
        Exchange,
        Fault,
        Link,
        Snapshot,
    )
    from twisted_broker.testing.template_client import ClusterError, ClusterTimeout

_HOMES = {
    "AsyncCluster": "async_cluster",
    "AsyncGroup": "awaited",
    "AsyncTopic": "awaited",
    "Cluster": "cluster",
    "ClusterBroker": "handles",
    "ClusterClock": "handles",
    "ClusterError": "template_client",
    "ClusterTimeout": "template_client",
    "ClusterTrace": "handles",
    "Condition": "conditions",
    "Disk": "handles",
    "Exchange": "handles",
    "Fault": "handles",
    "Group": "cluster",
    "Link": "handles",
    "Member": "cluster",
    "Record": "cluster",
    "Snapshot": "handles",
    "Topic": "cluster",
    "group": "conditions",
    "high_watermark": "conditions",
    "in_sync": "conditions",
    "isr": "conditions",
    "leader": "conditions",
    "log_end": "conditions",
    "records": "conditions",
    "requests": "conditions",
    "transaction": "conditions",
}
__all__ = [
    "AsyncCluster",
    "AsyncGroup",
    "AsyncTopic",
    "Cluster",
    "ClusterBroker",
    "ClusterClock",
    "ClusterError",
    "ClusterTimeout",
    "ClusterTrace",
    "Condition",
    "Disk",
    "Exchange",
    "Fault",
    "Group",
    "Link",
    "Member",
    "Record",
    "Snapshot",
    "Topic",
    "group",
    "high_watermark",
    "in_sync",
    "isr",
    "leader",
    "log_end",
    "records",
    "requests",
    "transaction",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
