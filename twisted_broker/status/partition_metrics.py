"""Metrics of each partition here, and of all together. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns one walk over the partitions, `PARTITIONS_PER_PIECE` at a time: Kafka's `Partition`, `Log` and
`ReplicaManager` gauges, and what kafka_exporter says of topics.

1. A partition is looked at once in a scrape: its own numbers agree with each other.
2. `kafka_topic_partition_..` is of the partitions that this broker leads, `kafka_topic_partitions`
   of the topics of which it leads the first partition: a sum over all brokers counts each once.
3. A partition that is gone has no series; nothing is kept between two scrapes.

Source: Kafka's `Partition`, `UnifiedLog`, `ReplicaManager` (MBeans); danielqsj/kafka_exporter.
Not here: groups (`group_metrics.py`), the cluster's counts (`cluster_metrics.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.status.metric_names import Kind, MBean
from twisted_broker.status.metric_text import Exposition, Family

# About a millisecond.
PARTITIONS_PER_PIECE = 50
_KEYS = ("topic", "partition")
_COUNTS = (
    ("PartitionCount", "Replicas held here."),
    ("LeaderCount", "Partitions led here."),
    ("UnderReplicatedPartitions", "Partitions led here with replicas out of sync."),
    ("UnderMinIsrPartitionCount", "Partitions led here with fewer in sync than the minimum."),
    ("AtMinIsrPartitionCount", "Partitions led here with just the minimum in sync."),
    ("OfflineReplicaCount", "Replicas whose log is offline."),
    ("ReassigningPartitions", "Partitions led here that are being reassigned."),
    (
        "PartitionsWithLateTransactionsCount",
        "Partitions led here with a transaction open for longer than any coordinator allows.",
    ),
)
_OF_ALL = (
    ("UnderReplicated", "1: led here with replicas out of sync."),
    ("UnderMinIsr", "1: led here with fewer in sync than the minimum."),
    ("AtMinIsr", "1: led here with just the minimum in sync."),
    ("InSyncReplicasCount", "Replicas in sync; 0 where this broker does not lead."),
    ("ReplicasCount", "Replicas that are assigned; 0 where this broker does not lead."),
    ("LastStableOffsetLag", "Offsets from the last stable offset to the high watermark."),
)
_OF_LOGS = (
    ("Size", "Bytes of the log here."),
    ("LogStartOffset", "The first offset of the log here."),
    ("LogEndOffset", "The next offset of the log here."),
    ("NumLogSegments", "Segments of the log here."),
)
_OF_LEADERS = (
    ("current_offset", "The high watermark: where a consumer that has read all stands."),
    ("oldest_offset", "The first offset that can be read."),
    ("replicas", "Replicas that are assigned."),
    ("in_sync_replica", "Replicas in sync."),
    ("leader", "Id of the broker that leads."),
    ("leader_is_preferred", "1: the first replica leads."),
    ("under_replicated_partition", "1: replicas are out of sync."),
)
Row = tuple[Any, ...]


def partitions(out: Exposition, replicas: Any, image: MetadataImage | None) -> Iterator[None]:
    """All of it, pausing after each piece."""
    counts = [0] * len(_COUNTS)
    wall_ms = replicas.runtime.wall_ms()
    longest_ms = replicas.config.integer("transaction.max.timeout.ms")
    families = (
        [_gauge(out, "cluster", "Partition", name, doc) for name, doc in _OF_ALL],
        [_gauge(out, "log", "Log", name, doc) for name, doc in _OF_LOGS],
        [out.family(f"kafka_topic_partition_{name}", "gauge", doc) for name, doc in _OF_LEADERS],
    )
    topics = out.family("kafka_topic_partitions", "gauge", "Partitions of the topic.")
    held = list(replicas.partitions.values())
    for start in range(0, len(held), PARTITIONS_PER_PIECE):
        rows: tuple[list[Row], list[Row], list[Row]] = ([], [], [])
        for each in held[start : start + PARTITIONS_PER_PIECE]:
            _look(each, counts, rows)
            led = each.leader_log
            if led is not None and led.producers.ongoing:
                counts[7] += led.producers.has_late_transaction(wall_ms, longest_ms)
            name, number = each.topic_partition
            if number == 0 and each.leader_log is not None and image is not None:
                topic = image.topics_by_name.get(name)
                if topic is not None:
                    topics.add(f'{{topic="{name}"}}', len(topic.partitions))
        for found, of_kind in zip(rows, families, strict=True):
            _add(of_kind, found)
        yield
    for (name, doc), number in zip(_COUNTS, counts, strict=True):
        out.bean(MBean("server", "ReplicaManager", name, Kind.GAUGE), doc, [((), number)])


def _gauge(out: Exposition, domain: str, kind: str, name: str, doc: str) -> Family:
    ((family, labels, _),) = out.of(MBean(domain, kind, name, Kind.GAUGE, _KEYS), doc)
    assert labels == _KEYS
    return family


def _add(families: list[Family], rows: list[Row]) -> None:
    """`rows`: labels, then a number for each of `families`."""
    for at, family in enumerate(families, 1) if rows else ():
        name = family.name
        family.lines.append("".join([f"{name}{row[0]} {row[at]}\n" for row in rows]))


def _look(each: Partition, counts: list[int], rows: tuple[list[Row], list[Row], list[Row]]) -> None:
    topic, number = each.topic_partition
    # A topic's name needs no escapes.
    labels = f'{{topic="{topic}",partition="{number}"}}'
    in_sync = assigned = under_replicated = under_minimum = at_minimum = 0
    led, log = each.leader_log, each.log
    if led is not None:
        in_sync, assigned, minimum = len(each.isr_state.isr), len(each.replicas), each.min_isr
        under_replicated = int(in_sync < assigned - len(each.adding))
        under_minimum, at_minimum = int(in_sync < minimum), int(in_sync == minimum)
        counts[1] += 1
        counts[2] += under_replicated
        counts[3] += under_minimum
        counts[4] += at_minimum
        counts[6] += bool(each.adding or each.removing)
        rows[2].append(
            (
                labels,
                led.high_watermark,
                led.log_start_offset,
                assigned,
                in_sync,
                each.leader_id,
                int(each.replicas[:1] == (each.leader_id,)),
                under_replicated,
            )
        )
    counts[0] += 1
    counts[5] += each.offline
    lag = 0
    if log is not None:
        lag = max(0, log.high_watermark - log.last_stable_offset)
        rows[1].append(
            (
                labels,
                log.size_in_bytes,
                log.log_start_offset,
                log.log_end_offset,
                len(log.segments),
            )
        )
    rows[0].append((labels, under_replicated, under_minimum, at_minimum, in_sync, assigned, lag))
