"""OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete: the wire's side of committed offsets.

1. Permission on the group first, then on each topic, before any answer shows whether it exists.
2. Topics and partitions must exist to be committed or deleted; what was committed can be fetched
   whatever became of the topic.
3. With topic ids (v10) an unknown id is UNKNOWN_TOPIC_ID; a commit by name carries the topic's id
   of this moment. Nothing is committed for a topic that is deleted while a long request is
   processed, or while a transaction is verified.
4. An answer has the order of its request; all that is committed is in the order of topic and
   partition.
5. Every loop over what a client named, or over what a group holds, is in slices (`turns.py`).
6. A transaction's coordinator knows of a group's partition before offsets of the transaction are
   appended to it; from version 5 of TxnOffsetCommit on it is told by this call (KIP-890), which
   waits for the end of the transaction before as a Produce does (`transactional_produce.py`), for
   clients pause 100 ms at CONCURRENT_TRANSACTIONS. Kafka answers at once.

Source: Apache Kafka 4.3.1 `KafkaApis` (KIP-98, 211, 447, 496, 709, 848, 890); 3.9 for versions 0
and 1, which this broker keeps in `__consumer_offsets` too. Not here: the state of transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, TypeVar

from twisted.internet.defer import ensureDeferred

from twisted_broker.api import audit
from twisted_broker.api.context import RequestContext
from twisted_broker.api.groups import check_group
from twisted_broker.api.transactional_produce import EndOfTheOneBefore
from twisted_broker.coordinator.group_records import ProducerIdAndEpoch
from twisted_broker.coordinator.offset_metadata_manager import (
    CommitRequest,
    FetchedOffset,
    OffsetToCommit,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.verification import NOT_REQUIRED, Guard
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.topic_names import OFFSETS_TOPIC
from twisted_broker.turns import SLICE_ELEMENTS
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from twisted_broker.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from twisted_broker.wire.primitives import NULL_UUID
from twisted_broker.wire.records import NO_SEQUENCE

FIRST_WITH_TOPIC_IDS = 10
FIRST_WITH_GROUP_ID_NOT_FOUND = 9
FIRST_WITH_SEVERAL_GROUPS = 8
FIRST_WITH_ABORTABLE, FIRST_THAT_ADDS = 4, 5  # of TxnOffsetCommit
NO_OFFSET = -1
_REFUSED_FOR_GOOD = (
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
ELEMENTS_OF_A_SORT = 80
T = TypeVar("T")


async def _answers(
    context: RequestContext, topics: Sequence[Any], answer: Callable[[int, Any], T]
) -> list[list[T]]:
    """`answer(row of the topic, partition)` for every partition, by topic; in slices."""
    answers: list[list[T]] = []
    for row, topic in enumerate(topics):
        context.elements_left -= 1
        answers.append([])
        for partition in topic.partitions:
            if context.turn_is_over():
                await context.next_turn()
            answers[row].append(answer(row, partition))
    return answers


# commit
async def offset_commit(
    context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    check_group(context, request.group_id, Operation.READ)
    names = [_name(context, topic.name, topic.topic_id) for topic in request.topics]
    refused: dict[tuple[int, int], ErrorCode] = {}
    offsets: dict[tuple[str, int], OffsetToCommit] = {}
    topic_ids: dict[str, bytes] = {}
    for row, (topic, name) in enumerate(zip(request.topics, names, strict=True)):
        topic_id, error = _topic_to_change(context, name)
        topic_ids.setdefault(name or "", topic_id)
        context.elements_left -= 1
        for partition in topic.partitions:
            if context.turn_is_over():
                await context.next_turn()
            wrong = error or _partition_error(context, name, partition.partition_index)
            if wrong:
                refused[row, partition.partition_index] = wrong
            else:
                offsets[name or "", partition.partition_index] = _offset(
                    name or "", topic_id, partition
                )  # named twice: the last counts
    stored = _take_out_former(context, offsets, topic_ids) if context.sliced else {}
    if offsets:
        stored |= await _commit(context, request, tuple(offsets.values()))

    def answer(row: int, p: OffsetCommitRequestPartition) -> OffsetCommitResponsePartition:
        error = refused.get((row, p.partition_index)) or stored.get(
            (names[row] or "", p.partition_index), ErrorCode.NONE
        )
        return OffsetCommitResponsePartition(partition_index=p.partition_index, error_code=error)

    answers = await _answers(context, request.topics, answer)
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=its)
            for topic, its in zip(request.topics, answers, strict=True)
        ]
    )


# commit in a transaction
async def txn_offset_commit(
    context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    if not context.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        raise BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    check_group(context, request.group_id, Operation.READ)
    errors: dict[tuple[str, int], ErrorCode] = {}
    offsets: dict[tuple[str, int], OffsetToCommit] = {}
    topic_ids: dict[str, bytes] = {}
    for topic in request.topics:
        topic_id, error = _topic_to_change(context, topic.name)
        topic_ids.setdefault(topic.name, topic_id)
        context.elements_left -= 1
        for p in topic.partitions:
            if context.turn_is_over():
                await context.next_turn()
            wrong = error or _partition_error(context, topic.name, p.partition_index)
            if wrong:
                errors[topic.name, p.partition_index] = wrong
            else:
                offsets[topic.name, p.partition_index] = OffsetToCommit(
                    topic.name,
                    p.partition_index,
                    p.committed_offset,
                    p.committed_leader_epoch,
                    p.committed_metadata or "",
                    topic_id,
                )
    if offsets:
        errors |= await _commit_transactional(context, request, offsets, topic_ids)

    def answer(row: int, p: TxnOffsetCommitRequestPartition) -> TxnOffsetCommitResponsePartition:
        error = errors[request.topics[row].name, p.partition_index]
        return TxnOffsetCommitResponsePartition(partition_index=p.partition_index, error_code=error)

    answers = await _answers(context, request.topics, answer)
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(name=topic.name, partitions=its)
            for topic, its in zip(request.topics, answers, strict=True)
        ]
    )


async def _commit_transactional(
    context: RequestContext,
    request: TxnOffsetCommitRequest,
    offsets: dict[tuple[str, int], OffsetToCommit],
    topic_ids: dict[str, bytes],
) -> dict[tuple[str, int], ErrorCode]:
    """An error per partition; what refuses the whole commit is the error of each of them. Takes out
    of `offsets` those of topics that were deleted while the request was processed or the
    transaction verified.
    """
    gone: dict[tuple[str, int], ErrorCode] = {}

    def left() -> tuple[OffsetToCommit, ...]:
        gone.update(_take_out_former(context, offsets, topic_ids))
        return tuple(offsets.values())

    if request.producer_id < 0 or request.producer_epoch < 0:
        error = (
            ErrorCode.INVALID_PRODUCER_ID_MAPPING
            if request.producer_id < 0
            else ErrorCode.INVALID_PRODUCER_EPOCH
        )
        return dict.fromkeys(offsets, error)
    try:
        stored: dict[tuple[str, int], ErrorCode] = await context.groups.commit_transactional(
            CommitRequest(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id,
                offsets=tuple(offsets.values()),
                producer=ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            ),
            lambda index: ensureDeferred(_verify(context, request, index)),
            left,
        )
    except BrokerError as refusal:
        stored = dict.fromkeys(offsets, refusal.code)
    return gone | stored


async def _verify(context: RequestContext, request: TxnOffsetCommitRequest, index: int) -> Guard:
    """The guard with which offsets of the transaction may be appended to partition `index` of
    `__consumer_offsets`. Raises BrokerError.
    """
    add = context.version >= FIRST_THAT_ADDS
    verifies = context.broker.config.boolean("transaction.partition.verification.enable")
    if not add and not verifies:
        return NOT_REQUIRED
    partition = TopicPartition(OFFSETS_TOPIC, index)
    producer_id, producer_epoch = request.producer_id, request.producer_epoch
    end_of_the_one_before = EndOfTheOneBefore(context)
    while True:
        # A new guard each time: the marker that is waited for ends the one before.
        guard = context.replica_manager.begin_verification(
            partition, producer_id, producer_epoch, NO_SEQUENCE, add
        )
        if guard is None:
            return None
        codes = await context.add_partitions_to_txn.verify_or_add(
            request.transactional_id, producer_id, producer_epoch, [partition], add
        )
        if not add or not await end_of_the_one_before.is_worth_asking_again(
            codes, {partition: guard} if verifies else {}
        ):
            break
    code = codes[partition]
    if code is ErrorCode.NONE:
        return guard if verifies else NOT_REQUIRED
    if code in _REFUSED_FOR_GOOD:
        context.replica_manager.end_verification(partition, producer_id, guard, producer_epoch)
    if code is ErrorCode.TRANSACTION_ABORTABLE and context.version < FIRST_WITH_ABORTABLE:
        code = ErrorCode.INVALID_TXN_STATE
    raise BrokerError(code)


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
    """An error per partition; what refuses the whole commit is the error of each of them."""
    is_new = context.version >= FIRST_WITH_GROUP_ID_NOT_FOUND
    try:
        stored: dict[tuple[str, int], ErrorCode] = await context.groups.commit(
            CommitRequest(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id_or_member_epoch,
                request.retention_time_ms,
                offsets,
                ErrorCode.GROUP_ID_NOT_FOUND if is_new else ErrorCode.ILLEGAL_GENERATION,
                knows_member_epochs=is_new,
            )
        )
    except BrokerError as refusal:
        return {(offset.topic, offset.partition): refusal.code for offset in offsets}
    return stored


def _name(context: RequestContext, name: str, topic_id: bytes) -> str | None:
    """The topic's name; None for an unknown id."""
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


def _take_out_former(
    context: RequestContext,
    offsets: dict[tuple[str, int], OffsetToCommit],
    topic_ids: dict[str, bytes],
) -> dict[tuple[str, int], ErrorCode]:
    """Takes out of `offsets` those of topics that were looked up in an earlier turn and deleted
    since; returns their errors. What was committed for these topics was removed when they were
    deleted.
    """
    now = context.metadata.image.topics_by_name
    gone = {
        name
        for name, topic_id in topic_ids.items()
        if (topic := now.get(name)) is None or topic.id != topic_id
    }
    error = (
        ErrorCode.UNKNOWN_TOPIC_ID
        if context.version >= FIRST_WITH_TOPIC_IDS
        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    errors = {key: error for key in offsets if key[0] in gone} if gone else {}
    for key in errors:
        del offsets[key]
    return errors


def _partition_error(context: RequestContext, name: str | None, partition: int) -> ErrorCode:
    topic = None if name is None else context.metadata.image.topics_by_name.get(name)
    return (
        ErrorCode.NONE
        if topic is not None and partition in topic.partitions
        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


# fetch
class _Answers:
    """The classes of an answer's topics and partitions; up to version 7, for one group, they are
    others.
    """

    __slots__ = ("no_offset", "partition", "topic")

    def __init__(self, version: int) -> None:
        several = version >= FIRST_WITH_SEVERAL_GROUPS
        self.topic: Any = OffsetFetchResponseTopics if several else OffsetFetchResponseTopic
        self.partition: Any = (
            OffsetFetchResponsePartitions if several else OffsetFetchResponsePartition
        )
        # Version 0 names a partition without an offset by an error.
        self.no_offset = ErrorCode.NONE if version else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def fetched(self, found: FetchedOffset) -> Any:
        if found.committed is None:
            return self.missing(found.partition, found.error)
        return self.partition(
            partition_index=found.partition,
            committed_offset=found.committed.offset,
            committed_leader_epoch=found.committed.leader_epoch,
            metadata=found.committed.metadata,
            error_code=found.error,
        )

    def missing(self, index: int, error: ErrorCode) -> Any:
        return self.partition(
            partition_index=index,
            committed_offset=NO_OFFSET,
            metadata="",
            error_code=error or self.no_offset,
        )


async def offset_fetch(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if context.version < FIRST_WITH_SEVERAL_GROUPS:
        return OffsetFetchResponse(
            topics=await _fetch_group(
                context, request.group_id, request.topics, request.require_stable
            )
        )
    groups: list[OffsetFetchResponseGroup] = []
    for group in request.groups:
        answer = OffsetFetchResponseGroup(group_id=group.group_id)
        try:
            answer.topics = await _fetch_group(
                context,
                group.group_id,
                group.topics,
                request.require_stable,
                group.member_id,
                group.member_epoch,
            )
        except BrokerError as refusal:
            answer.error_code = refusal.code
        groups.append(answer)
    return OffsetFetchResponse(groups=groups)


async def _fetch_group(
    context: RequestContext,
    group_id: str,
    wanted: Sequence[Any] | None,
    require_stable: bool,
    member_id: str | None = None,
    member_epoch: int = -1,
) -> list[Any]:
    """The group's topics; raises BrokerError."""
    if context.turn_is_over(4):
        await context.next_turn()
    check_group(context, group_id, Operation.DESCRIBE)
    context.groups.check_fetch(group_id, member_id, member_epoch)
    answers = _Answers(context.version)
    if wanted is None:
        return await _all_topics(context, answers, group_id, require_stable)
    # Once without partitions: the group's own error comes even when no topic is named or all are
    # refused.
    context.groups.fetch_offsets(group_id, (), require_stable)
    return [
        await _fetch_topic(context, answers, group_id, topic, require_stable) for topic in wanted
    ]


async def _fetch_topic(
    context: RequestContext, answers: _Answers, group_id: str, topic: Any, require_stable: bool
) -> Any:
    context.elements_left -= 1
    topic_id = NULL_UUID
    if context.version >= FIRST_WITH_SEVERAL_GROUPS:
        topic_id = bytes(topic.topic_id)
    name = _name(context, topic.name, topic_id)
    error = ErrorCode.NONE
    if name is None:
        error = ErrorCode.UNKNOWN_TOPIC_ID
    elif not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    partitions: list[Any] = []
    for start in range(0, len(topic.partition_indexes), SLICE_ELEMENTS):
        if context.elements_left < 0:
            await context.next_turn()
        indexes = topic.partition_indexes[start : start + SLICE_ELEMENTS]
        context.elements_left -= len(indexes)
        if error or name is None:
            partitions += [answers.missing(index, error) for index in indexes]
        else:
            wanted = [(name, index, topic_id) for index in indexes]
            fetched = context.groups.fetch_offsets(group_id, wanted, require_stable)
            partitions += [answers.fetched(f) for f in fetched]
    answer = answers.topic(name=topic.name, partitions=partitions)
    if context.version >= FIRST_WITH_SEVERAL_GROUPS:
        answer.topic_id = topic_id
    return answer


async def _all_topics(
    context: RequestContext, answers: _Answers, group_id: str, require_stable: bool
) -> list[Any]:
    """All that is committed, by topic; without those that may not be seen and, where ids are
    requested, those that have none any more.
    """
    topics: list[Any] = []
    committed = await context.in_slices(
        context.groups.committed_partitions(group_id), ELEMENTS_OF_A_SORT
    )
    has_ids = context.version >= FIRST_WITH_TOPIC_IDS
    for name, some in groupby(committed, key=itemgetter(0)):
        if context.turn_is_over():
            await context.next_turn()
        topic = context.metadata.image.topics_by_name.get(name)
        if (has_ids and topic is None) or not context.may(
            Operation.DESCRIBE, ResourceType.TOPIC, name
        ):
            continue
        topic_id = topic.id if has_ids and topic is not None else NULL_UUID
        answer = answers.topic(name=name, partitions=[])
        if has_ids:
            answer.topic_id = topic_id
        while wanted := [(*each, NULL_UUID) for each in islice(some, SLICE_ELEMENTS)]:
            if context.elements_left < 0:
                await context.next_turn()
            found = context.groups.fetch_offsets(group_id, wanted, require_stable)
            context.elements_left -= len(found)
            answer.partitions += [
                answers.fetched(f)
                for f in found
                if not has_ids
                or f.committed is None
                or f.committed.topic_id in (NULL_UUID, topic_id)
            ]
        topics.append(answer)
    return topics


# delete
async def offset_delete(
    context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    check_group(context, request.group_id, Operation.DELETE)
    context.groups.check_delete_offsets(request.group_id)
    errors: dict[tuple[str, int], ErrorCode] = {}
    for topic in request.topics:
        error = _topic_to_change(context, topic.name)[1]
        context.elements_left -= 1
        for p in topic.partitions:
            if context.turn_is_over():
                await context.next_turn()
            errors[topic.name, p.partition_index] = error or _partition_error(
                context, topic.name, p.partition_index
            )
    wanted = [each for each, error in errors.items() if not error]
    errors |= await context.groups.delete_offsets(request.group_id, wanted) if wanted else {}
    deleted: dict[str, list[int]] = {}
    async for name, number in context.each(wanted):
        if not errors[name, number]:
            deleted.setdefault(name, []).append(number)
    async for name, numbers in context.each(deleted.items()):
        audit.offsets_deleted(context, request.group_id, name, numbers)

    def answer(row: int, p: OffsetDeleteRequestPartition) -> OffsetDeleteResponsePartition:
        error = errors[request.topics[row].name, p.partition_index]
        return OffsetDeleteResponsePartition(partition_index=p.partition_index, error_code=error)

    answers = await _answers(context, request.topics, answer)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(name=topic.name, partitions=its)
            for topic, its in zip(request.topics, answers, strict=True)
        ]
    )
