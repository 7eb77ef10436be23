"""Metrics of share groups' records: what this broker leads, and what its share coordinator stores.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns Kafka's MBeans `SharePartitionMetrics`, `ShareGroupMetrics`, `ShareSessionCache`,
`DelayedShareFetchMetrics` and `share-coordinator-metrics`.

1. At most `MOST_SERIES` share partitions have series; how many were left out is said.
2. Times of writes are of the last that the coordinator keeps, and left out where there are none.

Kafka's histograms of fetch locks, of batch sizes and of load times are not there: nothing here
waits for a lock.

Source: Kafka's MBeans (KIP-932). Not here: the groups themselves (`group_metrics.py`), requests and
purgatories (`metrics.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from twisted_broker.status.group_metrics import coordinated
from twisted_broker.status.metric_names import Kind, MBean
from twisted_broker.status.metric_rates import Rates
from twisted_broker.status.metric_text import Exposition

MOST_SERIES = 10_000
# About a millisecond.
_PER_PIECE = 200
# Acknowledge types, as the tag names them.
_ACK_TYPES = {1: "Accept", 2: "Release", 3: "Reject", 4: "Renew"}
_COORDINATOR = "share-coordinator-metrics"


def share_partitions(out: Exposition, manager: Any, replicas: Any) -> Iterator[None]:
    """Of what this broker leads, pausing after each piece."""
    for name, doc, kind, number in (
        ("ShareSessionsCount", "Share sessions.", Kind.GAUGE, len(manager.sessions)),
        (
            "SharePartitionsCount",
            "Share partitions in share sessions.",
            Kind.GAUGE,
            manager.sessions.partitions,
        ),
        (
            "ShareSessionEvictionsPerSec",
            "Share sessions that ended with their connection.",
            Kind.METER,
            manager.sessions.evictions,
        ),
    ):
        out.bean(MBean("server", "ShareSessionCache", name, kind), doc, [((), number)])
    expired = replicas.share_fetch_purgatory.expired_count
    bean = MBean("server", "DelayedShareFetchMetrics", "ExpiresPerSec", Kind.METER)
    out.bean(bean, "Share fetches that waited until their time was up.", [((), expired)])
    name = "RecordAcknowledgementsPerSec"
    bean = MBean("server", "ShareGroupMetrics", name, Kind.METER, ("ackType",))
    rows = [((name,), manager.acknowledged[number]) for number, name in _ACK_TYPES.items()]
    out.bean(bean, "Records that were acknowledged.", rows)
    yield
    yield from _in_flight(out, list(islice(manager.held.values(), MOST_SERIES)))
    out.add(
        "replog_metrics_omitted_share_partitions",
        "gauge",
        "Share partitions that have no series here: there are too many.",
        (),
        [((), max(0, len(manager.held) - MOST_SERIES))],
    )


def _in_flight(out: Exposition, held: list[Any]) -> Iterator[None]:
    keys = ("group", "topic", "partition")
    for start in range(0, len(held), _PER_PIECE):
        some = [
            ((each.key.group_id, *each.partition.topic_partition), each)
            for each in held[start : start + _PER_PIECE]
            if each.share is not None
        ]
        for name, kind, doc, numbers in (
            (
                "InFlightMessageCount",
                Kind.GAUGE,
                "Offsets that are given out or may be again.",
                [each.share.window for _, each in some],
            ),
            (
                "InFlightBatchCount",
                Kind.GAUGE,
                "Batches that are in flight.",
                [len(each.share.in_flight) for _, each in some],
            ),
            (
                "AcquisitionLockTimeoutPerSec",
                Kind.METER,
                "Records whose lock ended by its time.",
                [each.timeouts for _, each in some],
            ),
        ):
            bean = MBean("server", "SharePartitionMetrics", name, kind, keys)
            rows = zip(some, numbers, strict=True)
            out.bean(bean, doc, [(labels, number) for (labels, _), number in rows])
        yield


def share_coordinator(out: Exposition, coordinator: Any, rates: Rates) -> None:
    """Of the share partitions whose states this broker stores."""
    bean = MBean("server", _COORDINATOR, "write-total", Kind.TOTAL)
    out.bean(bean, "States of share partitions that were written.", [((), coordinator.writes)])
    rate = rates.of("share state writes", coordinator.writes)
    took = coordinator.write_times_ms
    rows = [("write-rate", "The same per second, since the scrape before.", rate)]
    if took:
        rows += [
            ("write-latency-avg", "Time of a write, in ms.", sum(took) / len(took)),
            ("write-latency-max", "The longest write, in ms.", max(took)),
        ]
    for name, doc, number in rows:
        if number is not None:
            bean = MBean("server", _COORDINATOR, name, Kind.ATTRIBUTE)
            out.bean(bean, doc, [((), round(number, 3))])
    coordinated(out, _COORDINATOR, "__share_group_state", coordinator.shards)
    pruned = [
        (("__share_group_state", str(index)), shard.pruned_to)
        for index, shard in sorted(coordinator.shards.items())
        if shard.pruned_to
    ]
    if pruned:
        keys = ("topic", "partition")
        bean = MBean("server", _COORDINATOR, "last-pruned-offset", Kind.ATTRIBUTE, keys)
        out.bean(bean, "Up to where the partition was pruned.", pruned)
