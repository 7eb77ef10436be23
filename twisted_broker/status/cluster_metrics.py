"""Metrics of the controller, of the metadata log, and of the broker's life.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns Kafka's `KafkaController`, `ControllerStats`, `raft-metrics`, `raft-channel-metrics` and
`KafkaServer` gauges.

1. What concerns the cluster is said by the controller alone: a sum over all nodes is right.
2. The walk over all partitions is made once for an image, and in pieces.
3. There is one voter: it votes for itself, leads, and is never elected.

Source: Kafka's `QuorumControllerMetrics`, `ControllerMetadataMetrics`, `KafkaRaftMetrics`. Not
here: waiting times of requests to the controller (`metrics.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twisted_broker.image.entries import NO_LEADER
from twisted_broker.image.metadata_image import EMPTY, MetadataImage
from twisted_broker.status.metric_names import Kind, MBean
from twisted_broker.status.metric_rates import Rates
from twisted_broker.status.metric_text import Exposition

_PARTITIONS_PER_PIECE = 2000
_RAFT = "Of the metadata log: "


class PartitionCounts:
    """Of the image that was looked at last: partitions, those without a leader, those that
    another than the preferred one leads.
    """

    def __init__(self) -> None:
        self._image: MetadataImage = EMPTY
        self.partitions = self.offline = self.imbalanced = 0

    def look(self, image: MetadataImage) -> Iterator[None]:
        if image.topics_by_id is self._image.topics_by_id:
            return
        partitions = offline = imbalanced = since_pause = 0
        for topic in image.topics_by_id.values():
            for each in topic.partitions.values():
                partitions += 1
                offline += each.leader == NO_LEADER
                imbalanced += each.leader != each.replicas[0]
            since_pause += len(topic.partitions)
            if since_pause >= _PARTITIONS_PER_PIECE:
                since_pause = 0
                yield
        self._image = image
        self.partitions, self.offline, self.imbalanced = partitions, offline, imbalanced


def controller(
    out: Exposition, found: Any, counts: PartitionCounts, wall_ms: int
) -> Iterator[None]:
    """Of the controller that is in this process."""
    image: MetadataImage = found.committed
    yield from counts.look(image)
    active = len(image.live_brokers())
    for name, doc, number in (
        ("ActiveControllerCount", "1: this controller decides.", found.is_active),
        ("ActiveBrokerCount", "Brokers that are registered and not fenced.", active),
        ("FencedBrokerCount", "Brokers that are fenced.", len(image.brokers) - active),
        ("GlobalTopicCount", "Topics of the cluster.", len(image.topics_by_id)),
        ("GlobalPartitionCount", "Partitions of the cluster.", counts.partitions),
        ("OfflinePartitionsCount", "Partitions without a leader.", counts.offline),
        (
            "PreferredReplicaImbalanceCount",
            "Partitions that another than the preferred replica leads.",
            counts.imbalanced,
        ),
        ("MetadataErrorCount", "1: the metadata log failed.", found.log.failed is not None),
        ("LastAppliedRecordOffset", "The last record in force.", image.offset),
        ("LastCommittedRecordOffset", "The last durable record.", found.log.high_watermark - 1),
        ("LastAppliedRecordTimestamp", "When it was written, ms.", image.timestamp_ms),
        ("LastAppliedRecordLagMs", "How long ago that is.", max(0, wall_ms - image.timestamp_ms)),
    ):
        out.bean(MBean("controller", "KafkaController", name, Kind.GAUGE), doc, [((), number)])
    out.bean(
        MBean("controller", "ControllerStats", "UncleanLeaderElectionsPerSec", Kind.METER),
        "Leaders that were elected from outside of the ISR.",
        [((), found.unclean_elections)],
    )


def raft_leader(out: Exposition, found: Any, rates: Rates) -> None:
    """`found`: the controller of this process."""
    log = found.log
    leader = log.leader()
    latency = rates.ratio("commit", found.commit_seconds * 1000, found.commits)
    elections, raft = log.elections, log.raft
    is_leader = raft.quorum.is_leader
    leading: list[tuple[str, str, float]] = []
    if is_leader:
        _, observers = raft.quorum.state.described(found.runtime.now_ms())
        changed_at = log.history.voters_offset
        pending = changed_at is not None and changed_at >= max(0, log.high_watermark)
        leading = [
            ("number-of-observers", "nodes that fetch and do not vote.", len(observers)),
            ("uncommitted-voter-change", "1 while a change of the voters waits.", int(pending)),
        ]
    _raft(
        out,
        log.state,
        ("current-leader", "id of the node that leads, -1 unknown.", leader.leader_id),
        ("current-epoch", "epoch of the quorum.", leader.epoch),
        ("current-vote", "id of the node that this one voted for, -1 none.", log.voted_id),
        ("high-watermark", "the high watermark.", log.high_watermark),
        ("log-end-offset", "the next offset.", log.end_offset),
        (
            "append-records-rate",
            "records appended a second, since the scrape before.",
            (rates.of("append", log.end_offset) or 0.0) if is_leader else 0.0,
        ),
        (
            "fetch-records-rate",
            "records fetched a second, since the scrape before: the leader fetches none.",
            0.0 if is_leader else (rates.of("append", log.end_offset) or 0.0),
        ),
        ("number-of-voters", "nodes that vote.", len(raft.quorum.voters.ids)),
        *leading,
        (
            "election-latency-avg",
            "ms from the beginning of an election of this node until a leader is known, since the "
            "scrape before.",
            rates.ratio("election", elections.total_ms, elections.count),
        ),
        (
            "election-latency-max",
            "the longest of these since the start, in ms.",
            elections.most_ms,
        ),
        (
            "commit-latency-avg",
            "ms from the append of a change until it is durable, since the scrape before.",
            latency,
        ),
        (
            "commit-latency-max",
            "the longest of these since the start, in ms.",
            found.most_commit_seconds * 1000,
        ),
    )


def raft_observer(out: Exposition, observer: Any, rates: Rates) -> None:
    """Of a broker that follows the metadata log."""
    end = observer.image.offset + 1
    _raft(
        out,
        "observer",
        ("current-leader", "id of the node that leads, -1 unknown.", observer.leader_id),
        ("current-epoch", "epoch of the quorum.", observer.leader_epoch),
        ("current-vote", "id of the node that this one voted for, -1 none.", -1),
        ("high-watermark", "the high watermark.", end),
        ("log-end-offset", "the next offset.", end),
        ("append-records-rate", "records appended a second as the leader.", 0.0),
        (
            "fetch-records-rate",
            "records fetched a second, since the scrape before.",
            rates.of("fetch", end) or 0.0,
        ),
    )


def _raft(out: Exposition, state: str, *rows: tuple[str, str, float]) -> None:
    for name, doc, number in rows:
        out.bean(MBean("server", "raft-metrics", name, Kind.ATTRIBUTE), _RAFT + doc, [((), number)])
    # The state is text: each exporter makes a label of it.
    for name, label in (
        ("kafka_server_raft_metrics_current_state_info", "state"),
        ("kafka_server_raftmetrics_current_state", "current_state"),
    ):
        out.add(name, "gauge", f"{_RAFT}1, and the state of this node.", (label,), [((state,), 1)])


def raft_channel(out: Exposition, observer: Any) -> None:
    """Requests and answers by which a broker follows the metadata log of its controller."""
    for name, doc, number in zip(
        ("request-total", "response-total", "incoming-byte-total", "outgoing-byte-total"),
        ("requests sent.", "answers.", "bytes received.", "bytes sent."),
        observer.traffic,
        strict=True,
    ):
        out.bean(
            MBean("server", "raft-channel-metrics", name, Kind.TOTAL), _RAFT + doc, [((), number)]
        )


def broker_state(out: Exposition, state: Any) -> None:
    """`state`: a member of `BrokerState`."""
    out.bean(
        MBean("server", "KafkaServer", "BrokerState", Kind.GAUGE),
        "Kafka's number of the broker's state: 3 is running.",
        [((), state.value)],
    )
