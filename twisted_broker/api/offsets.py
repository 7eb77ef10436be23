"""OffsetCommit, OffsetFetch, OffsetDelete: the wire's side of committed offsets.

1. Permission on the group first, then on each topic, before anything tells whether it exists.
2. Topics and partitions must exist to be committed or deleted; what was committed is told whatever
   became of the topic.
3. With topic ids (v10) an unknown id is UNKNOWN_TOPIC_ID; a commit by name carries the topic's id
   of this moment.
4. An answer has the order of its request.

Source: Apache Kafka 4.3.1 `KafkaApis` (KIP-211, 447, 496, 709, 848); 3.9 for versions 0 and 1,
which this broker keeps in `__consumer_offsets` too. Leaves out offsets of transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from twisted_broker.api.context import RequestContext
from twisted_broker.api.groups import check_group
from twisted_broker.api.slices import SLICE_ELEMENTS
from twisted_broker.coordinator.offset_requests import CommitRequest, FetchedOffset, OffsetToCommit
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from twisted_broker.wire.primitives import NULL_UUID

FIRST_WITH_TOPIC_IDS = 10
FIRST_WITH_GROUP_ID_NOT_FOUND = 9
FIRST_WITH_SEVERAL_GROUPS = 8
FIRST_WITH_GROUP_ERROR = 2
NO_OFFSET = -1


# commit
async def offset_commit(
    context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    check_group(context, request.group_id, Operation.READ)
    names = [_name(context, topic.name, topic.topic_id) for topic in request.topics]
    refused: dict[tuple[int, int], ErrorCode] = {}
    offsets: dict[tuple[str, int], OffsetToCommit] = {}
    for row, (topic, name) in enumerate(zip(request.topics, names, strict=True)):
        topic_id, error = _topic_to_change(context, name)
        context.room -= 1
        for partition in topic.partitions:
            context.room -= 1
            if context.room < 0:
                await context.next_turn()
            wrong = error or _partition_error(context, name, partition.partition_index)
            if wrong:
                refused[row, partition.partition_index] = wrong
            else:
                offsets[name or "", partition.partition_index] = _offset(
                    name or "", topic_id, partition
                )  # named twice: the last counts
    told = await _commit(context, request, tuple(offsets.values())) if offsets else {}
    response = OffsetCommitResponse()
    for row, topic in enumerate(request.topics):
        context.room -= 1
        answers = []
        for p in topic.partitions:
            context.room -= 1
            if context.room < 0:
                await context.next_turn()
            error = refused.get((row, p.partition_index)) or told.get(
                (names[row] or "", p.partition_index), ErrorCode.NONE
            )
            answers.append(
                OffsetCommitResponsePartition(partition_index=p.partition_index, error_code=error)
            )
        response.topics.append(
            OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers)
        )
    return response


def _offset(name: str, topic_id: bytes, partition: OffsetCommitRequestPartition) -> OffsetToCommit:
    return OffsetToCommit(
        name,
        partition.partition_index,
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata or "",
        topic_id,
        partition.commit_timestamp,
    )


async def _commit(
    context: RequestContext, request: OffsetCommitRequest, offsets: tuple[OffsetToCommit, ...]
) -> dict[tuple[str, int], ErrorCode]:
    """An error per place; what refuses the whole commit is told for each of them."""
    is_new = context.version >= FIRST_WITH_GROUP_ID_NOT_FOUND
    try:
        told: dict[tuple[str, int], ErrorCode] = await context.groups.commit(
            CommitRequest(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id_or_member_epoch,
                request.retention_time_ms,
                offsets,
                ErrorCode.GROUP_ID_NOT_FOUND if is_new else ErrorCode.ILLEGAL_GENERATION,
            )
        )
    except BrokerError as refusal:
        return {(offset.topic, offset.partition): refusal.code for offset in offsets}
    return told


def _name(context: RequestContext, name: str, topic_id: bytes) -> str | None:
    """The topic's name; None for an id that nobody has."""
    if context.version < FIRST_WITH_TOPIC_IDS:
        return name
    topic = context.metadata.image.topics_by_id.get(bytes(topic_id))
    return None if topic is None else topic.name


def _topic_to_change(context: RequestContext, name: str | None) -> tuple[bytes, ErrorCode]:
    """(topic id, error) of a topic whose offsets are to be written."""
    if name is None:
        return NULL_UUID, ErrorCode.UNKNOWN_TOPIC_ID
    if not context.may(Operation.READ, ResourceType.TOPIC, name):
        return NULL_UUID, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = context.metadata.image.topics_by_name.get(name)
    return (
        (NULL_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic is None
        else (topic.id, ErrorCode.NONE)
    )


def _partition_error(context: RequestContext, name: str | None, partition: int) -> ErrorCode:
    topic = None if name is None else context.metadata.image.topics_by_name.get(name)
    return (
        ErrorCode.NONE
        if topic is not None and partition in topic.partitions
        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


# fetch
async def offset_fetch(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if context.version >= FIRST_WITH_SEVERAL_GROUPS:
        return OffsetFetchResponse(
            groups=[
                await _fetch_group(context, group, request.require_stable)
                for group in request.groups
            ]
        )
    topics = (
        None
        if request.topics is None
        else [
            OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes)
            for t in request.topics
        ]
    )
    fetched = await _fetch_group(
        context,
        OffsetFetchRequestGroup(group_id=request.group_id, topics=topics),
        request.require_stable,
    )
    if fetched.error_code:
        raise BrokerError(ErrorCode(fetched.error_code))  # type: ignore[call-arg]
    response = OffsetFetchResponse()
    for topic in fetched.topics:
        context.room -= 1
        answers = []
        for p in topic.partitions:
            context.room -= 1
            if context.room < 0:
                await context.next_turn()
            answers.append(
                OffsetFetchResponsePartition(
                    partition_index=p.partition_index,
                    committed_offset=p.committed_offset,
                    committed_leader_epoch=p.committed_leader_epoch,
                    metadata=p.metadata,
                    error_code=_error_of_old(context, p),
                )
            )
        response.topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=answers))
    return response


def _error_of_old(context: RequestContext, partition: OffsetFetchResponsePartitions) -> int:
    """Version 0 names a partition without an offset by an error."""
    if (
        context.version == 0
        and partition.committed_offset == NO_OFFSET
        and not partition.error_code
    ):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return partition.error_code


async def _fetch_group(
    context: RequestContext, request: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    context.room -= 4
    if context.room < 0:
        await context.next_turn()
    try:
        check_group(context, request.group_id, Operation.DESCRIBE)
        if request.topics is None:
            topics = await _all_topics(
                context, context.groups.fetch_offsets(request.group_id, None, require_stable)
            )
        else:
            context.groups.fetch_offsets(request.group_id, (), require_stable)
            topics = [
                await _fetch_topic(context, request.group_id, topic, require_stable)
                for topic in request.topics
            ]
    except BrokerError as refusal:
        return OffsetFetchResponseGroup(group_id=request.group_id, error_code=refusal.code)
    return OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)


async def _fetch_topic(
    context: RequestContext, group_id: str, topic: OffsetFetchRequestTopics, require_stable: bool
) -> OffsetFetchResponseTopics:
    name = _name(context, topic.name, topic.topic_id)
    if name is None:
        partitions = _refused(topic.partition_indexes, ErrorCode.UNKNOWN_TOPIC_ID)
    elif not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
        partitions = _refused(topic.partition_indexes, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    else:
        topic_id, partitions = bytes(topic.topic_id), []
        for start in range(0, len(topic.partition_indexes), SLICE_ELEMENTS):
            if context.room < 0:
                await context.next_turn()
            places = [
                (name, index, topic_id)
                for index in topic.partition_indexes[start : start + SLICE_ELEMENTS]
            ]
            partitions += [
                _fetched(f) for f in context.groups.fetch_offsets(group_id, places, require_stable)
            ]
            context.room -= len(places)
    context.room -= 1
    return OffsetFetchResponseTopics(
        name=topic.name, topic_id=topic.topic_id, partitions=partitions
    )


async def _all_topics(
    context: RequestContext, fetched: Iterable[FetchedOffset]
) -> list[OffsetFetchResponseTopics]:
    """Grouped by topic; without those that may not be seen and, where ids are asked for, those
    that have none any more.
    """
    by_name: dict[str, list[FetchedOffset]] = {}
    for each in fetched:
        context.room -= 1
        if context.room < 0:
            await context.next_turn()
        by_name.setdefault(each.topic, []).append(each)
    return list(_visible(context, by_name))


def _visible(
    context: RequestContext, by_name: dict[str, list[FetchedOffset]]
) -> Iterator[OffsetFetchResponseTopics]:
    for name, offsets in by_name.items():
        if not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            continue
        topic_id = NULL_UUID
        if context.version >= FIRST_WITH_TOPIC_IDS:
            topic = context.metadata.image.topics_by_name.get(name)
            if topic is None:
                continue
            topic_id = topic.id
            offsets = [
                f
                for f in offsets
                if f.committed is None or f.committed.topic_id in (NULL_UUID, topic_id)
            ]
        yield OffsetFetchResponseTopics(
            name=name, topic_id=topic_id, partitions=[_fetched(f) for f in offsets]
        )


def _fetched(found: FetchedOffset) -> OffsetFetchResponsePartitions:
    if found.committed is None:
        return OffsetFetchResponsePartitions(
            partition_index=found.partition,
            committed_offset=NO_OFFSET,
            metadata="",
            error_code=found.error,
        )
    return OffsetFetchResponsePartitions(
        partition_index=found.partition,
        committed_offset=found.committed.offset,
        committed_leader_epoch=found.committed.leader_epoch,
        metadata=found.committed.metadata,
        error_code=found.error,
    )


def _refused(indexes: Iterable[int], error: ErrorCode) -> list[OffsetFetchResponsePartitions]:
    return [
        OffsetFetchResponsePartitions(
            partition_index=i, committed_offset=NO_OFFSET, metadata="", error_code=error
        )
        for i in indexes
    ]


# delete
async def offset_delete(
    context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    check_group(context, request.group_id, Operation.DELETE)
    context.groups.check_delete_offsets(request.group_id)
    told: dict[tuple[str, int], ErrorCode] = {}
    for topic in request.topics:
        error = _topic_to_change(context, topic.name)[1]
        context.room -= 1
        for p in topic.partitions:
            context.room -= 1
            if context.room < 0:
                await context.next_turn()
            told[topic.name, p.partition_index] = error or _partition_error(
                context, topic.name, p.partition_index
            )
    wanted = [place for place, error in told.items() if not error]
    told |= await context.groups.delete_offsets(request.group_id, wanted) if wanted else {}
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=p.partition_index,
                        error_code=told[topic.name, p.partition_index],
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
