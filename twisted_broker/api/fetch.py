"""Fetch: reads batches, waiting for them when there are too few.

Guards in this order: the replica id, the session, then per partition the topic's id and permission; what is left is read, and when that is
not enough, read once more after the wait.

1. Permission comes before existence: ClusterAction for followers, Read for consumers. A refused partition carries -1 for the watermarks;
   the others are served; with none left nothing is read.
2. Records leave as file slices; an answer that is not made gives its slices back.
3. Version 0-1 gets message sets of magic 0, version 2-3 of magic 1. A first batch that does not fit a hard limit (version <= 2) comes cut, as
   it is, so that the client sees that its limit is too small.

Source: RL 1.8, 1.9, 5.1, 5.2; Kafka's `KafkaApis.handleFetchRequest`; KIP-74, KIP-227, KIP-392, KIP-951. Leaves out: quotas, sessions'
rules (`fetch_session`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_broker.api.leaders import LeaderHints
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.segment_file import FileSlice, SliceGone
from twisted_broker.replication.fetch_data import (
    DEBUGGING_CONSUMER,
    HIGH_WATERMARK,
    LOG_END,
    TXN_COMMITTED,
    FetchParams,
    FetchPartitionRequest,
    FetchPartitionResult,
)
from twisted_broker.replication.fetch_session import FetchContext, PartitionKey, open_context
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError
from twisted_broker.wire.legacy import convert_down, iterate_entries
from twisted_broker.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext

_LIMIT_FROM, _BATCHES_FROM, _ZSTD_FROM, _FOLLOWERS_SERVE_FROM, _TOPIC_IDS_FROM, _REPLICA_STATE_FROM, _LEADER_FROM = 3, 4, 10, 11, 13, 15, 16
_READ_COMMITTED = 1
_HINTED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


async def fetch(context: RequestContext, request: FetchRequest) -> FetchResponse:
    """Answers when `min_bytes` are there, something is to be told, or `max_wait_ms` passed."""
    replicas = context.replica_manager
    params = _params(context, request)
    try:
        session = _open_session(context, request, params)
    except BrokerError as refusal:
        return FetchResponse(error_code=refusal.code)
    readable, refused = _guard(context, params, session)
    results = replicas.fetch(params, readable) if readable else []
    if not replicas.answers_at_once(params, results):
        await replicas.delayed_fetch(params, results)
        results = replicas.fetch(params, readable, record_progress=False)
    for index, result in refused:
        results.insert(index, result)
    error, session_id, shown = session.finish(results, context.runtime.now_ms())
    if error != ErrorCode.NONE:
        for result in results:
            result.release()
    return _response(context, error, session_id, shown)


def _params(context: RequestContext, request: FetchRequest) -> FetchParams:
    """Raises INVALID_REQUEST for a replica id that nobody on a socket may use."""
    version = context.version
    by_state = version >= _REPLICA_STATE_FROM
    replica_id = request.replica_state.replica_id if by_state else request.replica_id
    if replica_id < DEBUGGING_CONSUMER:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"replica id {replica_id}")
    is_follower = replica_id >= 0
    if is_follower:
        isolation = LOG_END
    else:
        isolation = TXN_COMMITTED if request.isolation_level == _READ_COMMITTED else HIGH_WATERMARK
    most = context.replica_manager.fetch_max_bytes
    max_bytes = most if version < _LIMIT_FROM else min(request.max_bytes, most)
    return FetchParams(
        replica_id,
        request.replica_state.replica_epoch if by_state else -1,
        request.max_wait_ms,
        min(request.min_bytes, max_bytes),
        max_bytes,
        isolation,
        version < _LIMIT_FROM,
        is_follower or version < _FOLLOWERS_SERVE_FROM,
        request.rack_id,
    )


def _open_session(context: RequestContext, request: FetchRequest, params: FetchParams) -> FetchContext:
    by_id = context.version >= _TOPIC_IDS_FROM
    requests: list[FetchPartitionRequest] = []
    for topic in request.topics:
        name = _name_of(context, topic.topic_id) if by_id else topic.topic
        topic_id = topic.topic_id if by_id else None
        for asked in topic.partitions:
            requests.append(
                FetchPartitionRequest(
                    TopicPartition(name, asked.partition),
                    topic_id,
                    asked.fetch_offset,
                    asked.partition_max_bytes,
                    asked.current_leader_epoch,
                    asked.last_fetched_epoch,
                    asked.log_start_offset,
                )
            )
    forgotten: list[PartitionKey] = [
        (topic.topic_id if by_id else topic.topic, partition) for topic in request.forgotten_topics_data for partition in topic.partitions
    ]
    cache = context.replica_manager.sessions
    now_ms = context.runtime.now_ms()
    return open_context(cache, request.session_id, request.session_epoch, by_id, params.from_follower, requests, forgotten, now_ms)


def _name_of(context: RequestContext, topic_id: bytes) -> str:
    found = context.metadata.image.topics_by_id.get(topic_id)
    return "" if found is None else found.name


def _guard(
    context: RequestContext, params: FetchParams, session: FetchContext
) -> tuple[list[FetchPartitionRequest], list[tuple[int, FetchPartitionResult]]]:
    """What may be read, and the refusals with their places in the answer."""
    readable: list[FetchPartitionRequest] = []
    refused: list[tuple[int, FetchPartitionResult]] = []
    may_replicate = params.from_follower and context.may_on_cluster(Operation.CLUSTER_ACTION)
    for index, request in enumerate(session.requests):
        code = _refusal(context, params, request, may_replicate)
        if code is None:
            readable.append(request)
        else:
            refused.append((index, FetchPartitionResult(request, code)))
    return readable, refused


def _refusal(context: RequestContext, params: FetchParams, request: FetchPartitionRequest, may_replicate: bool) -> ErrorCode | None:
    if params.from_follower and not may_replicate:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if request.topic_id is not None and not request.topic_partition.topic:
        # A session's partition whose topic was not known before may be known now.
        name = _name_of(context, request.topic_id)
        if not name:
            return ErrorCode.UNKNOWN_TOPIC_ID
        request.topic_partition = TopicPartition(name, request.topic_partition.partition)
    if not params.from_follower and not context.may(Operation.READ, ResourceType.TOPIC, request.topic_partition.topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if context.version < _ZSTD_FROM and context.replica_manager.stores_zstd(request.topic_partition):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return None


def _response(context: RequestContext, error: ErrorCode, session_id: int, shown: list[FetchPartitionResult]) -> FetchResponse:
    response = FetchResponse(error_code=error, session_id=session_id)
    hints = LeaderHints(context, NodeEndpoint) if context.version >= _LEADER_FROM else None
    topic: FetchableTopicResponse | None = None
    key: Any = None
    for result in shown:
        request = result.request
        if topic is None or key != (request.topic_id or request.topic_partition.topic):
            key = request.topic_id or request.topic_partition.topic
            topic = FetchableTopicResponse(topic=request.topic_partition.topic)
            if request.topic_id is not None:
                topic.topic_id = request.topic_id
            response.responses.append(topic)
        topic.partitions.append(_partition_data(context, result, hints))
    if hints is not None and hints.endpoints:
        response.node_endpoints = hints.endpoints
    return response


def _partition_data(context: RequestContext, result: FetchPartitionResult, hints: LeaderHints | None) -> PartitionData:
    request = result.request
    aborted = result.aborted_transactions
    records: Any = b""
    if result.slice is not None:
        records = result.slice if context.version >= _BATCHES_FROM else _converted(context.version, result)
    data = PartitionData(
        partition_index=request.topic_partition.partition,
        error_code=result.error,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        aborted_transactions=None
        if aborted is None
        else [AbortedTransaction(producer_id=producer_id, first_offset=first_offset) for producer_id, first_offset in aborted],
        preferred_read_replica=result.preferred_read_replica,
        records=records,
    )
    if result.diverging_epoch is not None:
        epoch, end_offset = result.diverging_epoch
        data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
    if hints is not None and result.error in _HINTED:
        leader_id, leader_epoch = hints.leader_of(*request.topic_partition)
        data.current_leader = LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
    return data


def _converted(version: int, result: FetchPartitionResult) -> list[bytes] | FileSlice | bytes:
    """The records for a client that knows no batches. What cannot go down (zstd, damage) makes the result an error."""
    file_slice = result.slice
    assert file_slice is not None
    try:
        batches = iterate_entries(file_slice.read(), partial_tail=True)
        pieces = list(convert_down(batches, 0 if version < 2 else 1, result.request.fetch_offset))
    except (SliceGone, OSError) as gone:
        result.release()
        raise WireError(f"records of an answer are gone: {gone}") from None
    except BrokerError as refusal:
        result.release()
        result.error, result.high_watermark, result.last_stable_offset = refusal.code, -1, -1
        return b""
    if not pieces and result.cut_short:
        return file_slice
    result.release()
    return pieces
