"""Metrics of the consumer groups that this broker coordinates: states, offsets, lag.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns Kafka's `GroupMetadataManager` and `group-coordinator-metrics` gauges, and kafka_exporter's
series of groups.

1. A group is shown by its coordinator alone: a sum over all brokers counts it once.
2. The lag of a partition is up to the high watermark as this broker knows it, so only where it
   holds a replica (a follower's is behind by a fetch); never below 0. `kafka_consumergroup_lag_sum`
   is of those partitions.
3. Of a group at most `MOST_OFFSETS` partitions have series, of all groups `MOST_SERIES`; how many
   were left out is said (`replog_metrics_omitted_offsets`).
4. `NumGroups` and its states are of classic groups, as in Kafka; groups of either protocol are
   counted by `group-count`.

Source: Kafka's `GroupMetadataManager` (MBeans), `GroupCoordinatorMetrics`;
danielqsj/kafka_exporter. Not here: what a group is (`coordinator`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from twisted_broker.interfaces import TopicPartition
from twisted_broker.status.metric_names import Kind, MBean
from twisted_broker.status.metric_rates import Rates
from twisted_broker.status.metric_text import Exposition, labels_text

MOST_OFFSETS, MOST_SERIES = 20_000, 100_000
# About a millisecond.
OFFSETS_PER_PIECE = 200
_STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
_CONSUMER_STATES = ("Empty", "Assigning", "Reconciling", "Stable", "Dead")
_SHARE_STATES = ("Empty", "Stable", "Dead")
_STREAMS_STATES = ("Empty", "NotReady", "Assigning", "Reconciling", "Stable", "Dead")
# Of classic groups those that have ended; of the others each new epoch that a member caused.
_REBALANCES = {
    "classic": "group-completed-rebalance",
    "consumer": "consumer-group-rebalance",
    "share": "share-group-rebalance",
    "streams": "streams-group-rebalance",
}
_Counts = Counter[tuple[str, str]]
"""Groups by their protocol and state."""


def groups(out: Exposition, coordinator: Any, replicas: Any, rates: Rates) -> Iterator[None]:
    """All of it, pausing after each piece."""
    _rebalances(out, coordinator.context.rebalances, rates)
    coordinated(out, "group-coordinator-metrics", "__consumer_offsets", coordinator.runtime.shards)
    series = _Series(out, replicas.partitions)
    states: _Counts = Counter()
    offsets = 0
    for shard in list(coordinator.runtime.shards.values()):
        if shard.state.name != "ACTIVE":
            continue
        for part in shard.groups.parts():
            for name in part:
                entry = shard.groups.get(name)
                if entry is None:
                    continue  # it went meanwhile
                states[entry.group.group_type, entry.group.state.value] += 1
                offsets += len(entry.offsets.committed)
                yield from series.add(name, entry)
    _counts(out, states, offsets)
    out.add(
        "replog_metrics_omitted_offsets",
        "gauge",
        "Committed offsets that have no series here: there are too many.",
        (),
        [((), series.omitted)],
    )


def coordinated(out: Exposition, kind: str, topic: str, shards: Mapping[int, Any]) -> None:
    """Partitions of a coordinator's topic. One that is only read from is still loading."""
    states = Counter(shard.state.value for shard in shards.values())
    states["loading"] += states.pop("readable", 0)
    bean = MBean("server", kind, "num-partitions", Kind.ATTRIBUTE, ("state",))
    doc = f"Partitions of {topic} by their state."
    out.bean(bean, doc, [((state,), states[state]) for state in ("loading", "active", "failed")])


def _rebalances(out: Exposition, counts: Mapping[str, int], rates: Rates) -> None:
    kind = "group-coordinator-metrics"
    for group_type, name in _REBALANCES.items():
        count = counts[group_type]
        doc = f"Rebalances of {group_type} groups."
        bean = MBean("server", kind, f"{name}-count", Kind.TOTAL)
        out.bean(bean, f"{doc} Since the start.", [((), count)])
        rate = rates.of(("rebalances", group_type), count)
        if rate is not None:
            bean = MBean("server", kind, f"{name}-rate", Kind.ATTRIBUTE)
            out.bean(bean, f"{doc} Per second, since the scrape before.", [((), rate)])


def _counts(out: Exposition, states: _Counts, offsets: int) -> None:
    totals = {
        kind: sum(count for (each, _), count in states.items() if each == kind)
        for kind in ("classic", "consumer", "share", "streams")
    }
    rows = [("NumGroups", "Classic groups that this broker coordinates.", totals["classic"])]
    rows += [
        (f"NumGroups{state}", f"Classic groups in state {state}.", states["classic", state])
        for state in _STATES
    ]
    rows.append(("NumOffsets", "Committed offsets of these groups.", offsets))
    for name, doc, number in rows:
        bean = MBean("coordinator_group", "GroupMetadataManager", name, Kind.GAUGE)
        out.bean(bean, doc, [((), number)])
    for name, key, doc, counted in (
        ("group-count", "protocol", "Groups by their protocol.", totals),
        (
            "consumer-group-count",
            "state",
            "Groups of the consumer protocol by their state.",
            {state.lower(): states["consumer", state] for state in _CONSUMER_STATES},
        ),
        (
            "share-group-count",
            "state",
            "Share groups by their state.",
            {state.lower(): states["share", state] for state in _SHARE_STATES},
        ),
        (
            "streams-group-count",
            "state",
            "Streams groups by their state.",
            {state.lower(): states["streams", state] for state in _STREAMS_STATES},
        ),
    ):
        out.bean(
            MBean("server", "group-coordinator-metrics", name, Kind.ATTRIBUTE, (key,)),
            doc,
            [((value,), number) for value, number in counted.items()],
        )


class _Series:
    """What kafka_exporter shows of groups."""

    def __init__(self, out: Exposition, partitions: Any) -> None:
        self._partitions = partitions
        self.omitted = self._used = self._since_pause = 0

        def family(name: str, doc: str) -> Any:
            return out.family(f"kafka_consumergroup_{name}", "gauge", doc)

        self._members = family("members", "Members of the group.")
        self._offset = family("current_offset", "The offset that the group committed.")
        self._lag = family("lag", "Offsets from there to the high watermark.")
        self._offset_sum = family("current_offset_sum", "Sum of the committed offsets of a topic.")
        self._lag_sum = family("lag_sum", "Sum of the lags of a topic.")

    def add(self, name: str, entry: Any) -> Iterator[None]:
        self._members.add(labels_text(("consumergroup",), (name,)), len(entry.group.members))
        count = len(entry.offsets.committed)
        most = min(count, MOST_OFFSETS, MOST_SERIES - self._used)
        self._used += most
        self.omitted += count - most
        sums: dict[str, list[int]] = {}
        group = labels_text(("consumergroup",), (name,))[:-1]
        for (topic, number), found in islice(entry.offsets.items(), most):
            labels = f'{group},topic="{topic}",partition="{number}"}}'
            self._offset.add(labels, found.offset)
            total = sums.setdefault(topic, [0, 0, 0])
            total[0] += found.offset
            partition = self._partitions.get(TopicPartition(topic, number))
            if partition is not None and partition.log is not None:
                lag = max(0, partition.log.high_watermark - found.offset)
                self._lag.add(labels, lag)
                total[1] += lag
                total[2] += 1
            self._since_pause += 1
            if self._since_pause >= OFFSETS_PER_PIECE:
                self._since_pause = 0
                yield
        for topic, (offset, lag, known) in sums.items():
            labels = f'{group},topic="{topic}"}}'
            self._offset_sum.add(labels, offset)
            if known:
                self._lag_sum.add(labels, lag)
        self._since_pause += 5
        if self._since_pause >= OFFSETS_PER_PIECE:
            self._since_pause = 0
            yield
