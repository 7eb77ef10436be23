"""The controller's requests, carried out: roles taken, replicas stopped, images published.

Owns `ControlRequests`: one request at a time, in the order in which they came.

1. An answer comes when what it says is done. What could not be (a directory failed) is
   KAFKA_STORAGE_ERROR of its partition.
2. A stop without deletion ends fetching and whatever waits; partition and log stay, as in Kafka: a
   broker that shuts down is stopped so, and its high watermarks must be in the checkpoint. A
   deletion drops the partition, or a log that no partition holds, and is answered when the new
   name of its directory is durable: the controller forgets the topic then, and a log that a loss
   of power brought back would refuse the next topic of its name (INCONSISTENT_TOPIC_ID).
3. Many partitions are taken over in several turns.
4. A KRaft controller that migrates the cluster is refused, and said so once.

Source: RL 1.3, 1.5; Kafka 3.9's `KafkaApis`, `ReplicaManager`. Not here: what is refused
(`cluster_state.py`), what a role change does (`replication/role_change.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from twisted_broker.image.metadata_image import MetadataDelta, PartitionDelta
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.replication.partition.events import ReplicaStopped
from twisted_broker.replication.role_change import give_topic_id
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import zookeeper_controller as messages
from twisted_broker.zookeeper.cluster_state import (
    ClusterState,
    ControllerRequest,
    HeldPartition,
    Stops,
)
from twisted_broker.zookeeper.entity_writes import EntityWrites
from twisted_broker.zookeeper.membership import MIGRATED

if TYPE_CHECKING:
    from twisted_broker.log.log import Log
    from twisted_broker.log.log_manager import LogManager
    from twisted_broker.replication.replica_manager import ReplicaManager
    from twisted_broker.turns import Turns

_logger = Logger()
_PARTITIONS_A_PIECE = 10
_TOPIC_IDS_FROM = 5


class ControlRequests:
    """`replicas` take the roles that `state` decides on. `load_settings(topics)`: nobody announces
    the settings of a topic that was just made. `writes`: where clients' changes go.
    """

    def __init__(
        self,
        state: ClusterState,
        replicas: ReplicaManager,
        log_manager: LogManager,
        turns: Turns,
        load_settings: Callable[[Collection[str]], Awaitable[None]],
        writes: EntityWrites,
    ) -> None:
        self.writes = writes
        self._state, self._replicas, self._turns = state, replicas, turns
        self._load_settings = load_settings
        self._log_manager = log_manager
        self._lock: DeferredLock = DeferredLock()
        self._migration_is_told = False
        self._deleted: dict[TopicPartition, Log] = {}
        """whose new names are not known to be durable"""

    @property
    def controller_id(self) -> int:
        """-1 before it has sent anything."""
        return self._state.controller_id

    # `Held`

    def partition(self, name: TopicPartition) -> HeldPartition | None:
        return self._replicas.partitions.get(name)

    def topic_id_of_log(self, name: TopicPartition) -> bytes | None:
        log = self._log_manager.get(name)
        return None if log is None else log.topic_id

    # the three requests

    async def leader_and_isr(
        self, request: messages.LeaderAndIsrRequest, version: int
    ) -> messages.LeaderAndIsrResponse:
        """`version` decides on the shape of the answer."""
        await self._lock.acquire()
        try:
            refused = self._refusal(request)
            if refused is not ErrorCode.NONE:
                return _leader_and_isr_refused(request, version, refused)
            delta, errors, topic_ids = self._state.leader_and_isr(request, self)
            new = {
                change.topic
                for change in delta.partitions.values()
                if TopicPartition(change.topic, change.partition) not in self._replicas.partitions
            }
            await self._load_settings(new)
            await self._apply(delta)
            for number, (name, topic_id) in enumerate(topic_ids.items()):
                if number and number % _PARTITIONS_A_PIECE == 0:
                    await self._turns.next_turn()
                errors[name] = self._give_topic_id(name, topic_id)
            # Old versions do not say for which one.
            self._state.roles_epoch = (
                self._state.broker_epoch if request.broker_epoch < 0 else request.broker_epoch
            )
        finally:
            self._lock.release()
        for name, error in errors.items():
            held = self.partition(name)
            if error is ErrorCode.NONE and (held is None or held.offline):
                errors[name] = ErrorCode.KAFKA_STORAGE_ERROR
        return _leader_and_isr_answer(request, version, ErrorCode.NONE, errors)

    async def stop_replica(
        self, request: messages.StopReplicaRequest
    ) -> messages.StopReplicaResponse:
        await self._lock.acquire()
        try:
            refused = self._refusal(request)
            if refused is not ErrorCode.NONE:
                return messages.StopReplicaResponse(error_code=refused)
            stops = self._state.stop_replica(request, self)
            for name, deletes in stops.stopped.items():
                if deletes:
                    log = self._log_manager.get(name)
                    stops.errors[name] = self._delete(name)
                    if log is not None:
                        self._deleted[name] = log
                    await self._turns.next_turn()
                else:
                    self._stop(name)
        finally:
            self._lock.release()
        # Without the lock: other requests need not wait for a disk that stalls.
        await self._deletions_are_durable(stops)
        return messages.StopReplicaResponse(
            partition_errors=[
                messages.StopReplicaPartitionError(
                    topic_name=name.topic, partition_index=name.partition, error_code=error
                )
                for name, error in stops.errors.items()
            ]
        )

    async def _deletions_are_durable(self, stops: Stops) -> None:
        """Also those of the same request before: its connection broke, or its disk failed."""
        logs = {
            name: self._deleted[name]
            for name, deletes in stops.stopped.items()
            if deletes and name in self._deleted
        }
        await self._log_manager.names.sync_renames(logs.values())
        for name, log in logs.items():
            if not self._log_manager.is_set_aside(log):
                # Its files would come back with the disk: the controller must ask once more.
                stops.errors[name] = ErrorCode.KAFKA_STORAGE_ERROR
            elif self._deleted.get(name) is log:
                del self._deleted[name]

    async def update_metadata(
        self, request: messages.UpdateMetadataRequest
    ) -> messages.UpdateMetadataResponse:
        await self._lock.acquire()
        try:
            refused = self._refusal(request)
            if refused is ErrorCode.NONE:
                known = self._state.image.topics_by_name
                for _ in self._state.update_metadata(request):
                    await self._turns.next_turn()
                after = self._state.image.topics_by_name
                await self._load_settings(
                    {
                        topic.topic_name
                        for topic in request.topic_states
                        if topic.topic_name in after and topic.topic_name not in known
                    }
                )
        finally:
            self._lock.release()
        return messages.UpdateMetadataResponse(error_code=refused)

    def _refusal(self, request: ControllerRequest) -> ErrorCode:
        if request.is_k_raft_controller and not self._migration_is_told:
            self._migration_is_told = True
            _logger.error("{why}", why=MIGRATED)
        return self._state.refusal(request)

    # on the replicas

    async def _apply(self, delta: MetadataDelta) -> None:
        first = True
        for piece in delta.pieces(_PARTITIONS_A_PIECE):
            if not first:
                await self._turns.next_turn()
            first = False
            self._replicas.apply_delta(piece, self._state.image)

    def _give_topic_id(self, name: TopicPartition, topic_id: bytes) -> ErrorCode:
        try:
            give_topic_id(self._replicas, name, topic_id, self._state.image)
        except LogDirFailure as failure:
            self._replicas.directory_failed(failure.directory, failure.cause)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    def _stop(self, name: TopicPartition) -> None:
        partition = self._replicas.partitions.get(name)
        self._replicas.stop_fetching([name])
        if partition is not None:
            partition.emit(ReplicaStopped(partition))
            self._replicas.drain()

    def _delete(self, name: TopicPartition) -> ErrorCode:
        partition = self._replicas.partitions.get(name)
        try:
            if partition is not None:
                image = self._state.image
                gone = PartitionDelta(name.topic, partition.topic_id, name.partition, None, None)
                delta = MetadataDelta(image, image)
                delta.partitions[partition.topic_id, name.partition] = gone
                self._replicas.apply_delta(delta, image)
            if self._log_manager.get(name) is not None:
                # Held by no partition: a broker that had the replica before its last start.
                self._log_manager.delete(name)
        except LogDirFailure as failure:
            self._replicas.directory_failed(failure.directory, failure.cause)
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._state.forget(name)
        return ErrorCode.NONE


def _leader_and_isr_refused(
    request: messages.LeaderAndIsrRequest, version: int, refused: ErrorCode
) -> messages.LeaderAndIsrResponse:
    """Each partition has the error of the whole."""
    names = (
        TopicPartition(topic.topic_name, state.partition_index)
        for topic in request.topic_states
        for state in topic.partition_states
    )
    return _leader_and_isr_answer(request, version, refused, dict.fromkeys(names, refused))


def _leader_and_isr_answer(
    request: messages.LeaderAndIsrRequest,
    version: int,
    error: ErrorCode,
    errors: dict[TopicPartition, ErrorCode],
) -> messages.LeaderAndIsrResponse:
    """From version 5 on by topic id."""
    response = messages.LeaderAndIsrResponse(error_code=error)
    for topic in request.topic_states:
        found = [
            messages.LeaderAndIsrPartitionError(
                topic_name=topic.topic_name if version < _TOPIC_IDS_FROM else "",
                partition_index=state.partition_index,
                error_code=errors[TopicPartition(topic.topic_name, state.partition_index)],
            )
            for state in topic.partition_states
        ]
        if version < _TOPIC_IDS_FROM:
            response.partition_errors.extend(found)
        else:
            response.topics.append(
                messages.LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=found)
            )
    return response
