"""Tells the transaction coordinator about this broker's roles and the metadata. Ring 1.

Owns `TransactionsTopic`, `TransactionPublisher` and `build_transaction_coordinator`, which puts a
coordinator together.

1. Only `__transaction_state` concerns it: its partitions are loaded where this broker begins to
   lead them, unloaded where it stops. Every change of the metadata may bring a leader that markers
   wait for.
2. The topic is compacted, never compressed, without unclean elections, under a minimum ISR of its
   own.

Source: Apache Kafka 4.3.1 `BrokerMetadataPublisher`,
`TransactionStateManager.transactionTopicConfigs`. Not here: when the topic is created
(`coordinator/offsets_topic.py`), reading and appending (`coordinator/offsets_store.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.features import transaction_version
from twisted_broker.coordinator.offsets_store import ReplicaOffsetsStore
from twisted_broker.coordinator.offsets_topic import CoordinatorTopic, CreateTopics
from twisted_broker.coordinator.transaction.transaction_context import (
    TransactionContext,
    transaction_settings,
)
from twisted_broker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from twisted_broker.coordinator.transaction.transaction_marker_sender import (
    Connect,
    TransactionMarkerSender,
)
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.topic_names import TRANSACTIONS_TOPIC
from twisted_broker.turns import Turns

if TYPE_CHECKING:
    from twisted_broker.image.metadata_image import MetadataDelta
    from twisted_broker.replication.replica_manager import ReplicaManager

_PARTITIONS = "transaction.state.log.num.partitions"


class TransactionsTopic(CoordinatorTopic):
    """`__transaction_state`."""

    __slots__ = ()

    name = TRANSACTIONS_TOPIC
    partitions_setting = _PARTITIONS
    replication_setting = "transaction.state.log.replication.factor"
    loss = "no transaction is served"

    def topic_settings(self) -> dict[str, str]:
        return {
            "unclean.leader.election.enable": "false",
            "compression.type": "uncompressed",
            "cleanup.policy": "compact",
            "min.insync.replicas": str(self._config["transaction.state.log.min.isr"]),
            "segment.bytes": str(self._config["transaction.state.log.segment.bytes"]),
        }


class TransactionPublisher:
    """A `LeadershipListener` of the replica manager and a subscriber of the metadata image, on
    behalf of the transaction coordinator.
    """

    __slots__ = ("_coordinator",)

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator

    def leadership_gained(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        if topic_partition.topic == TRANSACTIONS_TOPIC:
            self._coordinator.states.load(topic_partition.partition, leader_epoch)
            if self._coordinator.topic is not None:
                self._coordinator.topic.leadership_gained(topic_partition.partition)

    def leadership_lost(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        if topic_partition.topic == TRANSACTIONS_TOPIC:
            self._coordinator.states.unload(topic_partition.partition, leader_epoch)
            if self._coordinator.topic is not None:
                self._coordinator.topic.leadership_lost(topic_partition.partition)

    def image_changed(self, delta: MetadataDelta) -> None:
        """Ends the waits for the topic; sends markers that waited for a leader."""
        if self._coordinator.topic is not None:
            self._coordinator.topic.image_changed()
        self._coordinator.markers.image_changed(delta)


def build_transaction_coordinator(
    runtime: Runtime,
    config: BrokerConfig,
    replicas: ReplicaManager,
    image_source: Any,
    create_topics: CreateTopics,
    next_producer_id: Callable[[], Awaitable[int]],
    listener: str,
    connect: Connect,
    turns: Turns,
    has_stale_roles: Callable[[], bool] = bool,
) -> TransactionCoordinator:
    """A coordinator on these replicas, which follows what they lead from now on. `image_source`
    is a MetadataObserver (`image`, `subscribe`), `listener` the name of the listener between
    brokers; `start` and `stop` of the result are the caller's.
    """
    context = TransactionContext(
        runtime.clock,
        runtime.wall_ms,
        ReplicaOffsetsStore(replicas, image_source, config, TRANSACTIONS_TOPIC, _PARTITIONS),
        transaction_settings(config),
        turns,
        lambda: transaction_version(image_source.image),
        next_producer_id,
        has_stale_roles,
    )
    coordinator = TransactionCoordinator(
        context,
        lambda on_complete: TransactionMarkerSender(
            runtime.clock, image_source, listener, connect, on_complete
        ),
        TransactionsTopic(image_source, config, create_topics, runtime.clock),
    )
    publisher = TransactionPublisher(coordinator)
    replicas.subscribe(publisher)
    image_source.subscribe(publisher.image_changed)
    return coordinator
