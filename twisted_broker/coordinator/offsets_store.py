"""`__consumer_offsets`, or another coordinator's topic, on this broker's replicas. Ring 1.

Owns `ReplicaOffsetsStore`, the real `IOffsetsStore`.

1. Records of the coordinator are appended as COORDINATOR with acks=-1: the minimum ISR counts,
   clients' rules do not.
2. An append that timed out is still waited for, and one under which the ISR shrank counts as
   stored: memory follows the log, not the answer.
3. A load reads up to the log end, beyond the high watermark too; `committed` fires when the high
   watermark has reached that end. What is above it may still be lost with this leader. The high
   watermark stays while the ISR is below its minimum, so that may take long.

Source: Apache Kafka 4.3.1 `CoordinatorPartitionWriter`, `CoordinatorLoaderImpl`. Not here: creating
the topic (`offsets_topic.py`), which partitions are led here (`coordinator_publisher.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.coordinator_context import (
    AppendUndecided,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import AppendOrigin, EndMarker
from twisted_broker.log.verification import Guard
from twisted_broker.replication.purgatory.delayed_operations import AppendOutcome
from twisted_broker.topic_names import OFFSETS_TOPIC
from twisted_broker.wire.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from twisted_broker.log.log import Log
    from twisted_broker.replication.live_brokers import ImageSource
    from twisted_broker.replication.replica_manager import ReplicaManager

ALL_REPLICAS = -1
# Long enough to outlast any stall; then the wait begins again.
WAIT_ON_MS = 3_600_000
# The record is in the log: it may still be replicated, so the commit is neither done nor refused.
_UNDECIDED = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


def _not_committed(failure: Failure) -> bool:
    failure.trap(BrokerError)
    return False


class ReplicaOffsetsStore:
    """See `IOffsetsStore`. `topic`: a coordinator's. While it does not exist, its number of
    partitions is the value of the setting `partitions_setting`.
    """

    __slots__ = ("_config", "_image_source", "_partitions_setting", "_replicas", "_topic")

    def __init__(
        self,
        replicas: ReplicaManager,
        image_source: ImageSource,
        config: BrokerConfig,
        topic: str = OFFSETS_TOPIC,
        partitions_setting: str = "offsets.topic.num.partitions",
    ) -> None:
        self._replicas, self._image_source, self._config = replicas, image_source, config
        self._topic, self._partitions_setting = topic, partitions_setting

    def partitions_count(self) -> int:
        topic = self._image_source.image.topics_by_name.get(self._topic)
        return (
            len(topic.partitions)
            if topic is not None
            else self._config.integer(self._partitions_setting)
        )

    def append(
        self, index: int, batch: bytes, timeout_ms: int, guard: Guard = None
    ) -> Deferred[int]:
        topic_partition = TopicPartition(self._topic, index)
        outcomes = self._replicas.append(
            [(topic_partition, batch)],
            ALL_REPLICAS,
            origin=AppendOrigin.COORDINATOR,
            guards=None if guard is None else {topic_partition: guard},
        )
        return self._stored(outcomes, timeout_ms)

    def append_end_marker(self, index: int, marker: EndMarker, timeout_ms: int) -> Deferred[int]:
        outcomes = self._replicas.append_end_markers([(TopicPartition(self._topic, index), marker)])
        return self._stored(outcomes, timeout_ms)

    def _stored(self, outcomes: list[AppendOutcome], timeout_ms: int) -> Deferred[int]:
        return self._replicas.wait_for_replicas(outcomes, timeout_ms).addCallback(
            lambda _: self._base_offset(outcomes[0])
        )

    def _base_offset(self, outcome: AppendOutcome) -> int:
        if outcome.error is not ErrorCode.NONE:
            if outcome.error in _UNDECIDED and outcome.base_offset >= 0:
                raise AppendUndecided(
                    outcome.error, outcome.error_message, lambda: self._decided(outcome)
                )
            raise BrokerError(outcome.error, outcome.error_message)
        return outcome.base_offset

    def _decided(self, outcome: AppendOutcome) -> Deferred[int]:
        """Waits on, as long as this broker leads the partition: leadership lost ends every wait."""
        # The high watermark has passed it: a loader will read it.
        if outcome.error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
            return succeed(outcome.base_offset)
        again = outcome.again()

        def decide(_: None) -> int | Deferred[int]:
            try:
                return self._base_offset(again)
            except AppendUndecided as still:
                return still.outcome()

        return self._replicas.wait_for_replicas([again], WAIT_ON_MS).addCallback(decide)

    def most_bytes(self, index: int) -> int:
        return self._log(index).config.max_message_bytes

    def bounds(self, index: int) -> tuple[int, int]:
        log = self._log(index)
        return log.log_start_offset, log.log_end_offset

    def high_watermark(self, index: int) -> int:
        return self._log(index).high_watermark

    def committed(self, index: int) -> Deferred[bool]:
        log = self._log(index)
        last_offset = log.log_end_offset - 1
        if log.high_watermark > last_offset:
            return succeed(True)
        awaited = AppendOutcome(
            TopicPartition(self._topic, index), ErrorCode.NONE, last_offset, last_offset
        )
        return self._decided(awaited).addCallbacks(lambda _: True, _not_committed)

    def read(self, index: int, offset: int, max_bytes: int) -> bytes:
        found = self._log(index).read(offset, max_bytes).slice
        if found is None:
            return b""
        try:
            return found.read()
        finally:
            found.release()

    def delete_records(self, index: int, offset: int) -> None:
        """Moves the log start of partition `index` up. Raises BrokerError."""
        (outcome,) = self._replicas.delete_records(
            [(TopicPartition(self._topic, index), offset)], internal_too=True
        )
        if outcome.error is not ErrorCode.NONE:
            raise BrokerError(outcome.error, outcome.error_message)

    def _log(self, index: int) -> Log:
        partition = self._replicas.partition(TopicPartition(self._topic, index))
        if partition.log is None or partition.offline:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)
        return partition.log
