"""Tells the share coordinator about this broker's roles and the metadata. Ring 1.

Owns `ShareStateTopic`, `SharePublisher` and `build_share_coordinator`, which puts a coordinator
together.

1. Of this broker's roles only those in `__share_group_state` count, of the metadata deleted topics.
2. The topic is kept for ever: the coordinator itself deletes redundant records.

Source: Apache Kafka 4.3.1 `BrokerMetadataPublisher`,
`ShareCoordinatorService.shareGroupStateTopicConfigs`. Not here: loading (`share_coordinator.py`),
when the topic is created (`coordinator/offsets_topic.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.offsets_store import ReplicaOffsetsStore
from twisted_broker.coordinator.offsets_topic import CoordinatorTopic, CreateTopics
from twisted_broker.coordinator.share_state.share_coordinator import (
    ShareCoordinator,
    ShareCoordinatorContext,
    share_coordinator_settings,
)
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.topic_names import SHARE_STATE_TOPIC
from twisted_broker.turns import Turns

if TYPE_CHECKING:
    from twisted_broker.image.metadata_image import MetadataDelta
    from twisted_broker.replication.replica_manager import ReplicaManager

_PARTITIONS = "share.coordinator.state.topic.num.partitions"


class ShareStateTopic(CoordinatorTopic):
    """`__share_group_state`."""

    __slots__ = ()

    name = SHARE_STATE_TOPIC
    partitions_setting = _PARTITIONS
    replication_setting = "share.coordinator.state.topic.replication.factor"
    loss = "no share group is served"

    def topic_settings(self) -> dict[str, str]:
        return {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "segment.bytes": str(self._config["share.coordinator.state.topic.segment.bytes"]),
            "min.insync.replicas": str(self._config["share.coordinator.state.topic.min.isr"]),
            "retention.ms": "-1",
        }


class SharePublisher:
    """A `LeadershipListener` of the replica manager and a subscriber of the metadata image, on
    behalf of the share coordinator.
    """

    __slots__ = ("_coordinator", "_topic")

    def __init__(self, coordinator: ShareCoordinator, topic: ShareStateTopic) -> None:
        self._coordinator, self._topic = coordinator, topic

    def leadership_gained(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        if topic_partition.topic == SHARE_STATE_TOPIC:
            self._coordinator.load(topic_partition.partition, leader_epoch)
            self._topic.leadership_gained(topic_partition.partition)

    def leadership_lost(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        if topic_partition.topic == SHARE_STATE_TOPIC:
            self._coordinator.unload(topic_partition.partition, leader_epoch)
            self._topic.leadership_lost(topic_partition.partition)

    def image_changed(self, delta: MetadataDelta) -> None:
        """Ends the waits for the topic; deletes the states of topics that are gone."""
        self._topic.image_changed()
        if delta.removed_topics:
            self._coordinator.topics_deleted()


def build_share_coordinator(
    runtime: Runtime,
    config: BrokerConfig,
    replicas: ReplicaManager,
    image_source: Any,
    create_topics: CreateTopics,
    turns: Turns,
    has_stale_roles: Callable[[], bool] = bool,
) -> ShareCoordinator:
    """A coordinator on these replicas, which follows what they lead from now on. `image_source`
    is a MetadataObserver (`image`, `subscribe`); `start` and `stop` of the result are the
    caller's.
    """
    topic = ShareStateTopic(image_source, config, create_topics, runtime.clock)
    coordinator = ShareCoordinator(
        ShareCoordinatorContext(
            runtime.clock,
            runtime.wall_ms,
            ReplicaOffsetsStore(replicas, image_source, config, SHARE_STATE_TOPIC, _PARTITIONS),
            share_coordinator_settings(config),
            turns,
            lambda: image_source.image,
            has_stale_roles,
        ),
        topic,
    )
    publisher = SharePublisher(coordinator, topic)
    replicas.subscribe(publisher)
    image_source.subscribe(publisher.image_changed)
    return coordinator
