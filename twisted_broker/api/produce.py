"""Produce: appends batches, and answers when as many replicas have them as the producer requested.

Guards in this order: the transactional id, then per topic its id, permission, then per partition
existence and the records; what is left is appended.

1. Permission comes before existence. A refused partition does not stop the others.
2. acks=0 has no answer; when something was refused, the connection closes instead, so that the
   producer looks for its leader again.
3. With `flush.messages` an append that makes a sync due is answered when the leader's disk has it,
   with acks=1 as well.
4. The append comes before the first `await`, so that the next Produce of the connection may be
   appended meanwhile; but for a transaction's first append to a partition, which waits for its
   coordinator (`transactional_produce.py`), and for a batch of megabytes, which is written in
   pieces before it is appended (`log/write_ahead.py`), and the connection with it.
5. A transactional batch without a transactional id in the request is refused with
   TRANSACTIONAL_ID_AUTHORIZATION_FAILED: nobody's permission could be asked.
6. Records for a topic id go to that topic only, even when another topic has its name by then.

Source: RL 1.6, 1.7, 5.1; Kafka's `KafkaApis.handleProduceRequest`,
`ProduceRequest.validateRecords`; KIP-467, KIP-890, KIP-951. Not here: quotas
(`api/throttling.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twisted_broker.api.leaders import LeaderHints
from twisted_broker.interfaces import Buffer, TopicPartition
from twisted_broker.log.write_ahead import LONG_BYTES
from twisted_broker.replication.long_appends import write_ahead
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.batch_header import ATTRIBUTES_AT
from twisted_broker.wire.compression import ZSTD
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError, error_of
from twisted_broker.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from twisted_broker.wire.primitives import uuid_text
from twisted_broker.wire.records import (
    CODEC_MASK,
    HEADER_BYTES,
    TRANSACTIONAL_FLAG,
    check_first_entry,
)

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext
    from twisted_broker.log.log import Log
    from twisted_broker.log.verification import Guard
    from twisted_broker.log.write_ahead import WriteAhead
    from twisted_broker.replication.purgatory.delayed_operations import (
        AppendOutcome,
        DelayedProduce,
    )

_BATCHES_FROM, _ZSTD_FROM, _LEADER_FROM, _TOPIC_IDS_FROM = 3, 7, 10, 13
# The low byte holds codec and transactional flag: they are read without a view of the batch.
_LOW_ATTRIBUTES_AT = ATTRIBUTES_AT + 1

_AT_A_TIME, _BYTES_OF_AN_ELEMENT, _FEW = 200, 15, 50
"""Partitions that are appended to without a pause; 32 KiB (by a shift) count as much as one."""

_NONE = ErrorCode.NONE
_WRITE, _TOPIC = Operation.WRITE, ResourceType.TOPIC
_UNSAID = LeaderIdAndEpoch()  # shared by all answers that name no leader

_NO_RECORDS = BrokerError(
    ErrorCode.INVALID_RECORD, "a produce request carries one record batch per partition"
)
_OLD_FORMAT = BrokerError(
    ErrorCode.INVALID_RECORD, "from version 3 on records come in batches of magic 2"
)
_ZSTD_TOO_EARLY = BrokerError(
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs produce version 7"
)
_WITHOUT_TRANSACTIONAL_ID = BrokerError(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    "a transactional batch in a request without a transactional id",
)


async def produce(context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
    """Answers when the requested acks are there; None for acks=0."""
    transactional_id = request.transactional_id
    if transactional_id is not None and not context.may(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    ):
        raise BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    entries: list[tuple[TopicPartition, Buffer]] = []
    awaited: list[PartitionProduceResponse] = []
    topics: list[TopicProduceResponse] = []
    acks = request.acks
    replicas = context.broker.replica_manager  # no property: once a request
    assert replicas is not None
    outcomes: list[AppendOutcome] = []
    topic_ids: dict[str, bytes] = {}
    for topic in request.topic_data:
        context.elements_left -= 1
        for start in range(0, len(topic.partition_data) or 1, _AT_A_TIME):
            # Appends what is there before the pause: the order of the partitions is kept, and the
            # elements of the next turn are for new ones.
            if context.elements_left < 0:
                if transactional_id is None:
                    await _append_some(context, entries, acks, outcomes, topic_ids)
                else:
                    await context.next_turn()
            name = _topic_response(
                context, topic, start, topics, entries, awaited, transactional_id is not None
            )
            if context.version >= _TOPIC_IDS_FROM:
                # The first id of a name: between two turns another topic may have got it.
                topic_ids.setdefault(name, topic.topic_id)
    if transactional_id is not None:
        awaited, outcomes = await _append_transactional(
            context, transactional_id, entries, awaited, acks, topic_ids
        )
    elif entries and (context.elements_left < 0 or replicas.long_appends.held):
        outcomes += await _append_long(context, entries, acks, None, topic_ids)
    elif entries:
        outcomes += replicas.produce(entries, acks, topic_ids=topic_ids)
    # From here the connection's next Produce may start: this one is in the log.
    context.appended = True
    # Asked before any waiting is set up: with one replica, or acks=1, most requests end here.
    delayed = replicas.delayed_produce(outcomes, acks) if acks else None
    if delayed is not None:
        entries.clear()
        return await _when_replicated(context, request, delayed, topics, awaited, outcomes)
    # After the append: the partitions that were not refused are in their logs all the same.
    response = _answer(context, topics, awaited, outcomes)
    if acks == 0:
        _close_unless_all_went_in(topics)
        return None
    return response


def produce_at_once(context: RequestContext, request: ProduceRequest) -> Any:
    """As `produce` for the usual request, without a coroutine: the response, or a coroutine of it
    where something waits, or the request is not of the usual kind.
    """
    if request.transactional_id is not None or not request.acks or len(request.topic_data) != 1:
        return produce(context, request)
    topic = request.topic_data[0]
    if not 0 < len(topic.partition_data) <= _FEW:
        return produce(context, request)
    replicas = context.broker.replica_manager
    assert replicas is not None
    context.elements_left -= 1
    entries: list[tuple[TopicPartition, Buffer]] = []
    awaited: list[PartitionProduceResponse] = []
    topics: list[TopicProduceResponse] = []
    name = _topic_response(context, topic, 0, topics, entries, awaited, False)
    topic_ids = {name: topic.topic_id} if context.version >= _TOPIC_IDS_FROM else {}
    outcomes: list[AppendOutcome] = []
    if entries:
        if context.elements_left < 0 or replicas.long_appends.held:
            return _when_appended(context, request, topics, entries, awaited, topic_ids)
        outcomes = replicas.produce(entries, request.acks, topic_ids=topic_ids)
    context.appended = True
    delayed = replicas.delayed_produce(outcomes, request.acks)
    if delayed is not None:
        return _when_replicated(context, request, delayed, topics, awaited, outcomes)
    return _answer(context, topics, awaited, outcomes)


async def _when_appended(
    context: RequestContext,
    request: ProduceRequest,
    topics: list[TopicProduceResponse],
    entries: list[tuple[TopicPartition, Buffer]],
    awaited: list[PartitionProduceResponse],
    topic_ids: dict[str, bytes],
) -> ProduceResponse:
    """The answer of a request with a long batch, or behind one."""
    acks = request.acks
    outcomes = await _append_long(context, entries, acks, None, topic_ids)
    context.appended = True
    delayed = context.replica_manager.delayed_produce(outcomes, acks)
    if delayed is not None:
        entries.clear()
        return await _when_replicated(context, request, delayed, topics, awaited, outcomes)
    return _answer(context, topics, awaited, outcomes)


async def _when_replicated(
    context: RequestContext,
    request: ProduceRequest,
    delayed: DelayedProduce,
    topics: list[TopicProduceResponse],
    awaited: list[PartitionProduceResponse],
    outcomes: list[AppendOutcome],
) -> ProduceResponse:
    # They are in the log. Many requests may wait for as long as replicas are away.
    _drop_records(request)
    wait_ms = context.bounded_wait(request.timeout_ms)
    await context.replica_manager.wait_for(delayed, wait_ms)
    return _answer(context, topics, awaited, outcomes)


def _answer(
    context: RequestContext,
    topics: list[TopicProduceResponse],
    awaited: list[PartitionProduceResponse],
    outcomes: list[AppendOutcome],
) -> ProduceResponse:
    for answer, outcome in zip(awaited, outcomes, strict=True):
        answer.base_offset = outcome.base_offset
        answer.log_append_time_ms = outcome.log_append_time_ms
        answer.log_start_offset = outcome.log_start_offset
        if outcome.error is not _NONE:
            _fill_error(context, answer, outcome)
    response = ProduceResponse(responses=topics)
    if context.version >= _LEADER_FROM:
        _name_leaders(context, response)
    return response


def _drop_records(request: ProduceRequest) -> None:
    """The views of the frame, whose bytes could not be freed; a refusal mirrors the rest."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            data.records = None


async def _append_some(
    context: RequestContext,
    entries: list[tuple[TopicPartition, Buffer]],
    acks: int,
    outcomes: list[AppendOutcome],
    topic_ids: dict[str, bytes],
) -> None:
    """Appends the entries so far of a long request. The connection starts no other request before
    all of it is appended.
    """
    outcomes += await _append_long(context, entries, acks, None, topic_ids)
    entries.clear()
    topic_ids.clear()
    await context.next_turn()


async def _append_transactional(
    context: RequestContext,
    transactional_id: str,
    entries: list[tuple[TopicPartition, Buffer]],
    awaited: list[PartitionProduceResponse],
    acks: int,
    topic_ids: dict[str, bytes],
) -> tuple[list[PartitionProduceResponse], list[AppendOutcome]]:
    """Appends what the coordinator lets in; returns the answers to fill, and their outcomes."""
    from twisted_broker.api.transactional_produce import verify

    guards, refusals = await verify(context, transactional_id, entries)
    if refusals:
        for (topic_partition, _), answer in zip(entries, awaited, strict=True):
            if topic_partition in refusals:
                _refuse(answer, refusals[topic_partition])
        kept = [number for number, (each, _) in enumerate(entries) if each not in refusals]
        entries, awaited = [entries[number] for number in kept], [awaited[each] for each in kept]
    outcomes: list[AppendOutcome] = []
    for start in range(0, len(entries), _AT_A_TIME):
        if start:
            await context.next_turn()
        outcomes += await _append_long(
            context, entries[start : start + _AT_A_TIME], acks, guards, topic_ids
        )
    return awaited, outcomes


async def _append_long(
    context: RequestContext,
    entries: Sequence[tuple[TopicPartition, Buffer]],
    acks: int,
    guards: Mapping[TopicPartition, Guard] | None,
    topic_ids: Mapping[str, bytes],
) -> list[AppendOutcome]:
    """Appends at once, unless a batch is long: others are served while it is checked and written,
    and other producers of its partition wait.
    """
    replicas = context.replica_manager
    long = [each for each in entries if len(each[1]) >= LONG_BYTES]
    held = replicas.long_appends
    if not long and not any(name in held.held for name, _ in entries):
        return replicas.produce(entries, acks, guards, topic_ids)
    names = [name for name, _ in entries]
    await held.begin(names)
    done: list[tuple[Log, WriteAhead]] = []
    try:
        for name, records in long:
            log = replicas.led_log(name)
            if log is not None:
                wall_ms, turn = context.broker.runtime.wall_ms(), context.broker.turns.next_turn
                ahead = await write_ahead(log, records, wall_ms, turn, is_clients=True)
                if ahead is not None:
                    done.append((log, ahead))
        return replicas.produce(entries, acks, guards, topic_ids)
    finally:
        for log, ahead in done:
            log.end_ahead(ahead)  # it was refused
        held.end(names)


def _refuse(answer: PartitionProduceResponse, refused: BrokerError) -> None:
    answer.error_code, answer.base_offset = refused.code, -1
    if refused.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:  # as Kafka: no sentence
        answer.error_message = refused.message


def _topic_response(
    context: RequestContext,
    topic: TopicProduceData,
    start: int,
    topics: list[TopicProduceResponse],
    entries: list[tuple[TopicPartition, Buffer]],
    awaited: list[PartitionProduceResponse],
    transactional: bool,
) -> str:
    """One topic's part of the answer, from its partition number `start` on: refusals are in it,
    what may be appended goes into `entries`, its answers into `awaited`. Returns the topic's name
    at this moment.
    """
    name, refusal = _guard(context, topic)
    version = context.version
    if not start:
        topics.append(
            TopicProduceResponse(name=name, topic_id=topic.topic_id, partition_responses=[])
        )
    answers = topics[-1].partition_responses
    data_of = (
        topic.partition_data
        if len(topic.partition_data) <= _AT_A_TIME
        else topic.partition_data[start : start + _AT_A_TIME]
    )
    for data in data_of:
        context.elements_left -= 1 + (
            len(data.records) >> _BYTES_OF_AN_ELEMENT if data.records is not None else 0
        )
        refused = refusal or _records_refusal(data.records, version)
        if refused is not None and refusal is None:
            # Kafka's order: a partition that is not there counts before records that are wrong.
            # Looked up only after a refusal: the append checks it anyway.
            if context.metadata.image.partition(name, data.index) is None:
                refused = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif transactional and refused is _WITHOUT_TRANSACTIONAL_ID:
                refused = None
        answer = PartitionProduceResponse(index=data.index, current_leader=_UNSAID)
        answers.append(answer)
        if refused is None:
            entries.append((TopicPartition(name, data.index), data.records))
            awaited.append(answer)
        else:
            _refuse(answer, refused)
    return name


def _guard(context: RequestContext, topic: TopicProduceData) -> tuple[str, BrokerError | None]:
    """The topic's name, and why nothing may be appended to it."""
    name = topic.name
    if context.version >= _TOPIC_IDS_FROM:
        found = context.metadata.image.topics_by_id.get(topic.topic_id)
        if found is None:
            return "", BrokerError(ErrorCode.UNKNOWN_TOPIC_ID)
        name = found.name
    if not context.may(_WRITE, _TOPIC, name):
        return name, BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return name, None


def _records_refusal(records: Buffer | None, version: int) -> BrokerError | None:
    """Why the version forbids these records, if it does; the log checks whether they are sound."""
    if version < _BATCHES_FROM:
        return None if records is not None and len(records) else _NO_RECORDS
    try:
        magic = check_first_entry(records or b"")
    except BrokerError as refused:
        return refused
    if magic != 2:
        return _OLD_FORMAT
    attributes = (
        0 if records is None or len(records) < HEADER_BYTES else records[_LOW_ATTRIBUTES_AT]
    )
    if attributes & CODEC_MASK == ZSTD and version < _ZSTD_FROM:
        return _ZSTD_TOO_EARLY
    return _WITHOUT_TRANSACTIONAL_ID if attributes & TRANSACTIONAL_FLAG else None


def _fill_error(
    context: RequestContext, answer: PartitionProduceResponse, outcome: AppendOutcome
) -> None:
    answer.error_code = outcome.error
    if (
        outcome.error is ErrorCode.INVALID_REQUIRED_ACKS
        and context.metadata.image.partition(*outcome.topic_partition) is None
    ):
        # Kafka's order: whether it is there counts first. The append looks at acks alone.
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer.error_message = outcome.error_message
    answer.record_errors = [
        BatchIndexAndErrorMessage(
            batch_index=error.batch_index, batch_index_error_message=error.message
        )
        for error in outcome.record_errors
    ]


def _close_unless_all_went_in(topics: list[TopicProduceResponse]) -> None:
    refused = [
        (topic, answer)
        for topic in topics
        for answer in topic.partition_responses
        if answer.error_code != ErrorCode.NONE
    ]
    if refused:
        topic, answer = refused[0]
        name = topic.name or uuid_text(topic.topic_id)  # version 13 names topics by id
        raise WireError(
            f"acks=0 and {len(refused)} partitions refused, first {name}-{answer.index}: "
            f"{error_of(answer.error_code).name}"
        )


def _name_leaders(context: RequestContext, response: ProduceResponse) -> None:
    hints = None
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                hints = hints or LeaderHints(context, NodeEndpoint)
                leader_id, leader_epoch = hints.leader_of(topic.name, answer.index)
                answer.current_leader = LeaderIdAndEpoch(
                    leader_id=leader_id, leader_epoch=leader_epoch
                )
    if hints is not None:
        response.node_endpoints = hints.endpoints
