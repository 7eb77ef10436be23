"""ListOffsets: the offset for a timestamp, or for one of the special ones.

Guards in this order: the replica id, then per topic permission (Describe), then per partition:
named once, a timestamp that the version knows.

1. A consumer sees up to the high watermark, or the last stable offset when it reads committed; a
   follower up to the log end.
2. Version 0 lists the starts of segments instead.

Source: RL 2.7, 3.4; Kafka's `KafkaApis.handleListOffsetRequest`; KIP-734. Not here: the look-up
(`replication/partition/offset_lookup.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition.fetch_data import (
    DEBUGGING_CONSUMER,
    HIGH_WATERMARK,
    LOG_END,
    TXN_COMMITTED,
)
from twisted_broker.replication.partition.offset_lookup import (
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    known_offset,
    list_offset,
    segment_offsets_before,
)
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.turns import LOOK_ELEMENTS
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext
    from twisted_broker.replication.partition.partition import Partition

_KNOWN_FROM = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_LOWEST = min(_KNOWN_FROM)
_NOT_AVAILABLE_FROM = 5
_OF_A_SEARCH = 40
"""Elements that a look into the files counts for; each step of a long search counts for more."""
_LEADER_EPOCH_FROM = 4


async def list_offsets(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """One answer per partition; waits for nothing but its turns, and searches."""
    if request.replica_id < DEBUGGING_CONSUMER:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"invalid replica id {request.replica_id}")
    topics = [topic for topic in request.topics if topic.partitions]
    # Most requests are of one partition.
    is_one = len(topics) == 1 and len(topics[0].partitions) == 1
    repeated = set() if is_one else await _repeated(context, request)
    answers = []
    for topic in topics:
        context.elements_left -= 1
        allowed = context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        partitions = []
        for requested in topic.partitions:
            timestamp = requested.timestamp
            is_known = timestamp < 0 and timestamp != MAX_TIMESTAMP
            if context.turn_is_over(1 if is_known else _OF_A_SEARCH):
                await context.next_turn()
            answer = ListOffsetsPartitionResponse(partition_index=requested.partition_index)
            try:
                if not allowed:
                    raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                partition = _partition(context, topic.name, requested, repeated)
                if context.version == 0:
                    answer.old_style_offsets = segment_offsets_before(
                        partition,
                        timestamp,
                        requested.max_num_offsets,
                        request.replica_id < 0,
                        context.broker.runtime.wall_ms(),
                    )
                else:
                    isolation, epoch = _isolation(request), requested.current_leader_epoch
                    found = known_offset(partition, timestamp, isolation, epoch, True)
                    if found is None:
                        found = await context.in_slices(
                            list_offset(partition, timestamp, isolation, epoch, True),
                            LOOK_ELEMENTS,
                        )
                    answer.timestamp, answer.offset = found.timestamp, found.offset
                    if context.version >= _LEADER_EPOCH_FROM:
                        answer.leader_epoch = found.leader_epoch
            except BrokerError as refusal:
                answer.error_code = _code_for(context.version, refusal.code)
            partitions.append(answer)
        answers.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(topics=answers)


async def _repeated(context: RequestContext, request: ListOffsetsRequest) -> set[TopicPartition]:
    seen: set[TopicPartition] = set()
    repeated: set[TopicPartition] = set()
    for topic in request.topics:
        for requested in topic.partitions:
            if context.turn_is_over():
                await context.next_turn()
            topic_partition = TopicPartition(topic.name, requested.partition_index)
            (repeated if topic_partition in seen else seen).add(topic_partition)
    return repeated


def _partition(
    context: RequestContext,
    topic: str,
    requested: ListOffsetsPartition,
    repeated: set[TopicPartition],
) -> Partition:
    """Raises `BrokerError`."""
    topic_partition = TopicPartition(topic, requested.partition_index)
    version, timestamp = context.version, requested.timestamp
    if version > 0 and topic_partition in repeated:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{topic_partition} is named more than once")
    if (timestamp < _LOWEST and version > 0) or version < _KNOWN_FROM.get(timestamp, 0):
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"timestamp {timestamp} is not known to version {version}",
        )
    return context.replica_manager.partition(topic_partition)


def _isolation(request: ListOffsetsRequest) -> int:
    if request.replica_id >= 0:
        return LOG_END
    return TXN_COMMITTED if request.isolation_level == 1 else HIGH_WATERMARK


def _code_for(version: int, code: ErrorCode) -> ErrorCode:
    if code == ErrorCode.OFFSET_NOT_AVAILABLE and version < _NOT_AVAILABLE_FROM:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return code
