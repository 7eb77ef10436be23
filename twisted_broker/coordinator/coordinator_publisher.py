"""Tells the group coordinator about this broker's roles and the metadata. Ring 1.

Owns `CoordinatorPublisher` and `build_group_coordinator`, which puts a coordinator together.

1. Of this broker's roles only those in `__consumer_offsets` count: a partition is loaded when this
   broker begins to lead it, unloaded when it stops. Of the metadata, deleted topics count: offsets
   committed for them are removed; and topics that changed: the consumer groups that subscribe to
   them look at the metadata at their next heartbeat.

Source: Apache Kafka 4.3.1 `BrokerMetadataPublisher`. Not here: loading (`coordinator_runtime.py`),
reading and appending (`offsets_store.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.coordinator_context import (
    CoordinatorContext,
    coordinator_settings,
)
from twisted_broker.coordinator.group_coordinator import GroupCoordinator
from twisted_broker.coordinator.offsets_store import ReplicaOffsetsStore
from twisted_broker.coordinator.offsets_topic import CreateTopics, OffsetsTopic
from twisted_broker.coordinator.share_state.persister import IPersister
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.topic_names import OFFSETS_TOPIC
from twisted_broker.turns import Turns

if TYPE_CHECKING:
    from twisted_broker.image.metadata_image import MetadataDelta, PartitionDelta
    from twisted_broker.replication.replica_manager import ReplicaManager


class CoordinatorPublisher:
    """A `LeadershipListener` of the replica manager and a subscriber of the metadata image, on
    behalf of the group coordinator.
    """

    __slots__ = ("_coordinator",)

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def leadership_gained(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        if topic_partition.topic == OFFSETS_TOPIC:
            self._coordinator.runtime.load(topic_partition.partition, leader_epoch)
            if self._coordinator.offsets_topic is not None:
                self._coordinator.offsets_topic.leadership_gained(topic_partition.partition)

    def leadership_lost(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        if topic_partition.topic == OFFSETS_TOPIC:
            self._coordinator.runtime.unload(topic_partition.partition, leader_epoch)
            if self._coordinator.offsets_topic is not None:
                self._coordinator.offsets_topic.leadership_lost(topic_partition.partition)

    def image_changed(self, delta: MetadataDelta) -> None:
        """Removes offsets of deleted topics; ends the waits for `__consumer_offsets`."""
        if self._coordinator.offsets_topic is not None:
            self._coordinator.offsets_topic.image_changed()
        self._change_consumer_groups(delta)
        if delta.removed_topics:
            self._coordinator.cleanup.topics_deleted(
                {topic.name: topic.id for topic in delta.removed_topics.values()}
            )

    def _change_consumer_groups(self, delta: MetadataDelta) -> None:
        changed = {
            topic.name
            for topics in (delta.created_topics, delta.removed_topics)
            for topic in topics.values()
        }
        by_id = delta.after.topics_by_id
        changed.update(
            by_id[topic_id].name
            for (topic_id, _), change in delta.partitions.items()
            if topic_id in by_id and _is_seen_by_groups(change)
        )
        if changed:
            self._coordinator.topics_changed(changed, bool(delta.created_topics))


def _is_seen_by_groups(change: PartitionDelta) -> bool:
    """Whether the hash of the topic may differ: a new leader changes nothing for them."""
    before, after = change.before, change.after
    return before is None or after is None or before.replicas != after.replicas


def build_group_coordinator(
    runtime: Runtime,
    config: BrokerConfig,
    replicas: ReplicaManager,
    image_source: Any,
    create_topics: CreateTopics,
    turns: Turns,
    has_stale_roles: Callable[[], bool] = bool,
    persister: IPersister | None = None,
) -> GroupCoordinator:
    """A coordinator on these replicas, which follows what they lead from now on. `image_source`
    is a MetadataObserver (`image`, `subscribe`); `start` and `stop` of the result are the
    caller's.
    """
    store = ReplicaOffsetsStore(replicas, image_source, config)
    context = CoordinatorContext(
        runtime.clock,
        runtime.wall_ms,
        runtime.random,
        store,
        coordinator_settings(config),
        turns,
        has_stale_roles,
        lambda: image_source.image,
        persister,
    )
    coordinator = GroupCoordinator(
        context, OffsetsTopic(image_source, config, create_topics, runtime.clock)
    )
    publisher = CoordinatorPublisher(coordinator)
    replicas.subscribe(publisher)
    image_source.subscribe(publisher.image_changed)
    return coordinator
