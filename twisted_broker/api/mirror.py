"""AppendMirrored (key 30000, ours): appends the batches that `replog mirror` brings from another
cluster, and answers when all in-sync replicas have them.

1. A topic must be a mirrored one (`replog.mirror.source`), and the client may write and alter it.
2. Permission comes before existence. A refused partition does not stop the others.
3. The answer says where each log begins and ends, also of a partition that was refused: the mirror
   goes on from there. Without records that is all that happens.
4. Its bytes are charged as Produce's are (`api/throttling.py`): the mirror is a client.
5. A log is truncated (`truncate_to`) only under the leader epoch that the mirror names: once.

Source: none; the rules of Produce with acks=-1. Not here: what is appended
(`log/mirrored_batches.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.write_ahead import LONG_BYTES, portions
from twisted_broker.replication.long_appends import write_ahead
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.mirror import (
    AppendMirroredRequest,
    AppendMirroredResponse,
    MirroredPartitionResponse,
    MirroredTopic,
    MirroredTopicResponse,
)

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext
    from twisted_broker.replication.purgatory.delayed_operations import AppendOutcome
    from twisted_broker.replication.replica_manager import MirroredRecords

_AT_A_TIME, _BYTES_OF_AN_ELEMENT = 4, 15
"""Partitions that are appended to without a pause; 32 KiB (by a shift) count as much as one."""


async def append_mirrored(
    context: RequestContext, request: AppendMirroredRequest
) -> AppendMirroredResponse:
    """Answers when the batches are on all in-sync replicas."""
    replicas = context.replica_manager
    outcomes: list[AppendOutcome] = []
    answers: list[MirroredPartitionResponse] = []
    response = AppendMirroredResponse(topics=[])
    for topic in request.topics:
        answer = MirroredTopicResponse(topic_id=topic.topic_id, partitions=[])
        response.topics.append(answer)
        name, refusal = _guard(context, topic)
        for start in range(0, len(topic.partitions), _AT_A_TIME):
            if context.elements_left < 0:
                await context.next_turn()
            entries: list[MirroredRecords] = []
            for data in topic.partitions[start : start + _AT_A_TIME]:
                context.elements_left -= 1 + (
                    len(data.records) >> _BYTES_OF_AN_ELEMENT if data.records is not None else 0
                )
                one = MirroredPartitionResponse(partition=data.partition)
                answer.partitions.append(one)
                if refusal is not None:
                    one.error_code, one.error_message = refusal.code, refusal.message
                    continue
                answers.append(one)
                entries.append(
                    (
                        TopicPartition(name, data.partition),
                        data.records,
                        data.leader_epoch,
                        data.log_end_offset,
                        data.source_log_start_offset,
                        data.truncate_to,
                    )
                )
            if context.elements_left < 0:
                outcomes += await _append_long(context, entries, topic.topic_id)
            else:
                outcomes += replicas.append_mirrored(entries, topic.topic_id)
    # From here the connection's next one may start: a mirror's requests wait for replicas together.
    context.appended = True
    written = [outcome for outcome in outcomes if outcome.last_offset >= 0]
    delayed = replicas.delayed_produce(written) if written else None
    if delayed is not None:
        # They are in the log: the frame's bytes are not held while this waits.
        for topic in request.topics:
            for data in topic.partitions:
                data.records = None
        entries.clear()
        await replicas.wait_for(delayed, context.bounded_wait(request.timeout_ms))
    for one, outcome in zip(answers, outcomes, strict=True):
        one.error_code, one.error_message = outcome.error, outcome.error_message
        if outcome.error == ErrorCode.INVALID_RECORD:
            one.differs_at = outcome.base_offset
        _describe(context, one, outcome.topic_partition)
    return response


async def _append_long(
    context: RequestContext, entries: list[MirroredRecords], topic_id: bytes
) -> list[AppendOutcome]:
    """What is long goes in in portions, as if they had come one after the other: others are served
    between two.
    """
    replicas = context.replica_manager
    outcomes: list[AppendOutcome] = []
    for name, records, epoch, end, source_start, truncate_to in entries:
        first: AppendOutcome | None = None
        is_long = records is not None and len(records) >= LONG_BYTES
        for part in portions(records or b"") if is_long else (records,):
            log = replicas.led_log(name) if part is not None and len(part) >= LONG_BYTES else None
            ahead = None
            if log is not None and part is not None:
                turn = context.broker.turns.next_turn
                ahead = await write_ahead(log, part, context.broker.runtime.wall_ms(), turn)
            elif first is not None:
                await context.broker.turns.next_turn()
            try:
                entry = (name, part, epoch, end, source_start, truncate_to)
                (outcome,) = replicas.append_mirrored([entry], topic_id)
            finally:
                if log is not None and ahead is not None:
                    log.end_ahead(ahead)  # it was not appended
            if first is not None and outcome.error == ErrorCode.NONE:
                outcome.base_offset = first.base_offset
            first = outcome
            if outcome.error != ErrorCode.NONE:
                break
            end, truncate_to = outcome.last_offset + 1, -1
        assert first is not None
        outcomes.append(first)
    return outcomes


def _guard(context: RequestContext, topic: MirroredTopic) -> tuple[str, BrokerError | None]:
    """The topic's name, and why nothing may be appended to it."""
    found = context.metadata.image.topics_by_id.get(topic.topic_id)
    if found is None:
        return "", BrokerError(ErrorCode.UNKNOWN_TOPIC_ID)
    if not all(
        context.may(operation, ResourceType.TOPIC, found.name)
        for operation in (Operation.WRITE, Operation.ALTER)
    ):
        return found.name, BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return found.name, None


def _describe(
    context: RequestContext, answer: MirroredPartitionResponse, name: TopicPartition
) -> None:
    partition = context.replica_manager.partitions.get(name)
    log = None if partition is None or partition.offline else partition.leader_log
    if partition is None or log is None:
        return
    answer.leader_epoch = partition.leader_epoch
    answer.log_start_offset = log.log_start_offset
    answer.high_watermark = log.high_watermark
    answer.log_end_offset = log.log_end_offset
