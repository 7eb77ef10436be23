"""Fetch: reads batches, waiting for them when there are too few.

Guards in this order: the replica id, the session, then per partition the topic's id, permission and
existence; what is left is read, and when that is not enough, read once more after the wait.

1. Permission comes before existence: ClusterAction for followers, Read for consumers. A refused
   partition carries -1 for the watermarks; the others are served; with none left nothing is read.
2. Records leave as file slices; an answer that is not made releases its slices.
3. A consumer over its quota gets an answer without records (`api/throttling.py`), and its session
   stays as it was.

Source: RL 1.8, 1.9, 5.1, 5.2; Kafka's `KafkaApis.handleFetchRequest`; KIP-74, KIP-227, KIP-392,
KIP-951. Not here: the rules of sessions (`fetch_session`), old formats
(`down_conversion`).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from twisted_broker.api.down_conversion import convert_results
from twisted_broker.api.leaders import LeaderHints
from twisted_broker.api.throttling import fetch_wait, most_of_fetch
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetch_session import (
    FINAL_EPOCH,
    NO_SESSION,
    FetchContext,
    new_context,
)
from twisted_broker.replication.partition.fetch_data import (
    CONSUMER,
    DEBUGGING_CONSUMER,
    HIGH_WATERMARK,
    LOG_END,
    TXN_COMMITTED,
    ConsumerId,
    FetchParams,
    FetchPartitionRequest,
    FetchPartitionResult,
    FollowerId,
    PartitionKey,
)
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.turns import LOOK_ELEMENTS, SLICE_ELEMENTS
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError
from twisted_broker.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from twisted_broker.wire.primitives import NULL_UUID

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext

_MAGIC_1_FROM, _LIMIT_FROM, _BATCHES_FROM = 2, 3, 4
_ZSTD_FROM, _FOLLOWERS_SERVE_FROM, _TOPIC_IDS_FROM, _REPLICA_STATE_FROM, _LEADER_FROM = (
    10,
    11,
    13,
    15,
    16,
)
_READ_COMMITTED = 1
_READ, _TOPIC = Operation.READ, ResourceType.TOPIC
_FEW = 50
_MOST_UNKNOWN = 10_000
"""A fetch may name so many partitions more than are held here."""
_SAME_EPOCH, _UNSAID, _NO_SNAPSHOT = (
    EpochEndOffset(),
    LeaderIdAndEpoch(),
    SnapshotId(),
)  # shared by all answers that do not use them
_HINTED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


async def fetch(context: RequestContext, request: FetchRequest | None) -> FetchResponse:
    """Answers when `min_bytes` are there, a partition has an error, a diverging epoch or a
    preferred replica, or after `max_wait_ms`.
    """
    replicas = context.broker.replica_manager
    assert replicas is not None and request is not None
    params = _params(context, request, replicas.fetch_max_bytes)
    may_replicate = params.replica_id >= 0 and context.may_on_cluster(Operation.CLUSTER_ACTION)
    if may_replicate:
        replicas.stats.follower_fetches += 1
        if context.connection is not None:
            context.connection.is_follower = True
    try:
        session = await _open_session(context, request, params, may_replicate)
    except BrokerError as refusal:
        return FetchResponse(error_code=refusal.code)
    # A fetch may wait for half a minute, and thousands do: the decoded request need not.
    request = None
    requests = session.requests
    if len(requests) <= SLICE_ELEMENTS or session.reads_now:
        readable, refused = _guard(context, params, may_replicate, requests)
    else:
        readable, refused = await _guard_many(context, params, may_replicate, requests)
    results: list[FetchPartitionResult]
    if len(readable) <= SLICE_ELEMENTS or session.reads_now:
        results = replicas.fetch(params, readable) if readable else []
    else:
        results = await _read_many(context, params, readable)
    if not replicas.answers_at_once(params, results, session):
        # What is idle may all be woken while it waits.
        is_long = len(results) > SLICE_ELEMENTS or session.has_idle
        is_long = is_long and not session.reads_now
        read_again = partial(_read_many_again, context, params) if is_long else None
        second_read = replicas.delayed_fetch(params, results, session, read_again)
        del results, readable, requests  # many may wait: each keeps what it needs
        results = await second_read
    # Ascending, so that each index is right when it is used: the answer has the request's order.
    for index, result in refused:
        results.insert(index, result)
    try:
        if context.metered is not None:
            if may_replicate:
                context.metered.is_charged = True
            elif wait_ms := fetch_wait(context, [each.size for each in results]):
                for result in results:
                    result.release()
                error, session_id = session.throttled()
                return FetchResponse(
                    throttle_time_ms=wait_ms, error_code=error, session_id=session_id
                )
        # The session may have been evicted or used by a later request during the wait.
        if len(results) <= SLICE_ELEMENTS:
            error, session_id, shown = session.finish(results)
        else:
            # The wait may have ended in this turn, in which each partition was looked at.
            await context.next_turn()
            error, session_id, shown = await context.in_slices(session.finish_in_steps(results))
        if error != ErrorCode.NONE:
            for result in results:
                result.release()
        elif context.version < _BATCHES_FROM:
            await convert_results(
                shown,
                0 if context.version < _MAGIC_1_FROM else 1,
                context.broker.runtime.clock,
                replicas.converts_down,
            )
        if len(shown) > SLICE_ELEMENTS:
            # The answer is made in a turn of its own, and written in slices.
            await context.next_turn()
        if may_replicate and replicas.leader_quota.topics:
            replicas.record_sent(shown)
        return _response(context, error, session_id, shown)
    except BaseException:
        for result in results:
            result.release()  # each holds a file open
        raise


def fetch_at_once(context: RequestContext, request: FetchRequest) -> Any:
    """As `fetch` for the usual request, without a coroutine: a consumer's, without a session, of
    few partitions. The response, or a coroutine of it where it waits, or is not of that kind.
    """
    if (
        request.session_epoch != FINAL_EPOCH
        or request.session_id != NO_SESSION
        or context.version < _BATCHES_FROM
        or context.metered is not None
        or len(request.topics) > _FEW
    ):
        return fetch(context, request)
    replicas = context.broker.replica_manager
    assert replicas is not None
    params = _params(context, request, replicas.fetch_max_bytes)
    if params.replica_id >= 0:
        return fetch(context, request)
    requests = _few_requested(context, request)
    if requests is None:
        return fetch(context, request)
    readable, refused = _guard(context, params, False, requests)
    results: list[FetchPartitionResult] = replicas.fetch(params, readable) if readable else []
    if not replicas.answers_at_once(params, results):
        return _when_there_is_enough(context, params, results, FetchContext(requests), refused)
    return _shown(context, results, refused)


async def _when_there_is_enough(
    context: RequestContext,
    params: FetchParams,
    results: list[FetchPartitionResult],
    session: FetchContext,
    refused: Sequence[tuple[int, FetchPartitionResult]],
) -> FetchResponse:
    second_read = context.replica_manager.delayed_fetch(params, results, session, None)
    results = []  # many may wait: each keeps what it needs
    return _shown(context, await second_read, refused)


def _shown(
    context: RequestContext,
    results: list[FetchPartitionResult],
    refused: Sequence[tuple[int, FetchPartitionResult]],
) -> FetchResponse:
    """The answer of a fetch without a session."""
    for index, result in refused:
        results.insert(index, result)
    try:
        return _response(context, ErrorCode.NONE, NO_SESSION, results)
    except BaseException:
        for result in results:
            result.release()
        raise


def _params(context: RequestContext, request: FetchRequest, most: int) -> FetchParams:
    """`most`: the bytes that this broker gives in one answer.

    Raises INVALID_REQUEST for a replica id that no client may use.
    """
    version = context.version
    by_state = version >= _REPLICA_STATE_FROM
    replica_id = request.replica_state.replica_id if by_state else request.replica_id
    if replica_id < DEBUGGING_CONSUMER:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"invalid replica id {replica_id}")
    is_follower = replica_id >= 0
    if is_follower:
        isolation = LOG_END
    else:
        isolation = TXN_COMMITTED if request.isolation_level == _READ_COMMITTED else HIGH_WATERMARK
    max_bytes = most if version < _LIMIT_FROM else min(request.max_bytes, most)
    if context.metered is not None and not is_follower:
        max_bytes = most_of_fetch(context, max_bytes)
    return FetchParams(
        replica_id,
        request.replica_state.replica_epoch if by_state else -1,
        context.bounded_wait(request.max_wait_ms),
        # More than an answer can hold would wait to the end of its time.
        min(request.min_bytes, max_bytes),
        max_bytes,
        isolation,
        # Before version 3 there is no limit for the whole answer, so none for its first batch
        # either.
        version < _LIMIT_FROM,
        # Followers, and clients that know no follower fetching (KIP-392), read from the leader
        # only.
        is_follower or version < _FOLLOWERS_SERVE_FROM,
        request.rack_id,
    )


async def _open_session(
    context: RequestContext, request: FetchRequest, params: FetchParams, may_replicate: bool
) -> FetchContext:
    """Raises `BrokerError` for a session that is not there or not at that epoch."""
    by_id = context.version >= _TOPIC_IDS_FROM
    requests = _few_requested(context, request)
    if requests is None:
        requests = await _many_requested(context, request)
    # A full fetch without a session: nothing to look up in the cache.
    if request.session_epoch == FINAL_EPOCH and request.session_id == NO_SESSION:
        return FetchContext(requests)
    forgotten: list[PartitionKey] = [
        (topic.topic_id if by_id else topic.topic, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]
    cache = context.replica_manager.sessions
    now_ms = context.broker.runtime.now_ms()
    return new_context(
        cache,
        request.session_id,
        request.session_epoch,
        by_id,
        params.from_follower,
        requests,
        forgotten,
        now_ms,
        _reader(context, params, may_replicate),
    )


def _of_topic(
    context: RequestContext, topic: FetchTopic, partitions: Sequence[FetchPartition]
) -> list[FetchPartitionRequest]:
    by_id = context.version >= _TOPIC_IDS_FROM
    name = _name_of(context, topic.topic_id) if by_id else topic.topic
    topic_id = topic.topic_id if by_id else None
    return [
        FetchPartitionRequest(
            TopicPartition(name, requested.partition),
            topic_id,
            requested.fetch_offset,
            requested.partition_max_bytes,
            requested.current_leader_epoch,
            requested.last_fetched_epoch,
            requested.log_start_offset,
        )
        for requested in partitions
    ]


def _reader(
    context: RequestContext, params: FetchParams, may_replicate: bool
) -> FollowerId | ConsumerId | None:
    """For whom partitions of its session may be idle. Not for a consumer whose answers depend on
    more than its partitions: on other replicas (its rack), on a codec that it does not know.
    """
    if may_replicate:
        return FollowerId(params.replica_id, params.replica_epoch)
    if (
        params.replica_id != CONSUMER
        or context.version < _ZSTD_FROM
        or (params.rack and context.replica_manager.reads_nearby)
    ):
        return None
    return ConsumerId(
        context.principal,
        context.client_host,
        params.isolation,
        context.broker.authorizer.rules,
    )


def _few_requested(
    context: RequestContext, request: FetchRequest
) -> list[FetchPartitionRequest] | None:
    """Each partition once: the last mention counts, as in Kafka's map. None where they are too
    many for one slice.
    """
    requests: list[FetchPartitionRequest] = []
    if len(request.topics) > SLICE_ELEMENTS:
        return None
    for topic in request.topics:
        if len(requests) + len(topic.partitions) >= SLICE_ELEMENTS:
            return None
        requests += _of_topic(context, topic, topic.partitions)
    if len(requests) > 1:
        requests = list({each.key: each for each in requests}.values())
    return requests


async def _many_requested(
    context: RequestContext, request: FetchRequest
) -> list[FetchPartitionRequest]:
    """As `_few_requested`, in slices. Raises WireError for more than `_MOST_UNKNOWN` partitions
    beyond those held here.
    """
    found: dict[PartitionKey, FetchPartitionRequest] = {}
    for topic in request.topics:
        context.elements_left -= 1
        for start in range(0, len(topic.partitions) or 1, LOOK_ELEMENTS):
            some = _of_topic(context, topic, topic.partitions[start : start + LOOK_ELEMENTS])
            found.update([(each.key, each) for each in some])
            if context.turn_is_over(len(some)):
                await context.next_turn()
    most = _MOST_UNKNOWN + len(context.replica_manager.partitions)
    if len(found) > most:
        raise WireError(
            f"a fetch of {len(found)} partitions; this broker has {most - _MOST_UNKNOWN}"
        )
    return list(found.values())


def _name_of(context: RequestContext, topic_id: bytes) -> str:
    found = context.metadata.image.topics_by_id.get(topic_id)
    return "" if found is None else found.name


def _guard(
    context: RequestContext,
    params: FetchParams,
    may_replicate: bool,
    requests: Sequence[FetchPartitionRequest],
) -> tuple[Sequence[FetchPartitionRequest], Sequence[tuple[int, FetchPartitionResult]]]:
    """What may be read, and the refusals with their places in the answer."""
    is_follower = params.replica_id >= 0
    replicas = context.broker.replica_manager
    assert replicas is not None
    held = replicas.partitions
    codes = [_refusal(context, request, is_follower, may_replicate, held) for request in requests]
    # The usual case copies nothing.
    if not any(codes):
        return requests, ()
    readable = [request for request, code in zip(requests, codes, strict=True) if code is None]
    refused = [
        (index, FetchPartitionResult(request, code))
        for index, (request, code) in enumerate(zip(requests, codes, strict=True))
        if code is not None
    ]
    return readable, refused


async def _guard_many(
    context: RequestContext,
    params: FetchParams,
    may_replicate: bool,
    requests: Sequence[FetchPartitionRequest],
) -> tuple[list[FetchPartitionRequest], list[tuple[int, FetchPartitionResult]]]:
    """As `_guard`, in slices."""
    readable: list[FetchPartitionRequest] = []
    refused: list[tuple[int, FetchPartitionResult]] = []
    for start in range(0, len(requests), SLICE_ELEMENTS):
        if context.elements_left < 0:
            await context.next_turn()
        some = requests[start : start + SLICE_ELEMENTS]
        context.elements_left -= len(some)
        good, bad = _guard(context, params, may_replicate, some)
        readable += good
        refused += [(start + index, result) for index, result in bad]
    return readable, refused


def _read_many_again(
    context: RequestContext, params: FetchParams, requests: Sequence[FetchPartitionRequest]
) -> Deferred[list[FetchPartitionResult]]:
    return Deferred.fromCoroutine(_read_many(context, params, requests, record_progress=False))


async def _read_many(
    context: RequestContext,
    params: FetchParams,
    readable: Sequence[FetchPartitionRequest],
    record_progress: bool = True,
) -> list[FetchPartitionResult]:
    """As `ReplicaManager.fetch`, in slices: what was read goes off the limit of the next ones."""
    results: list[FetchPartitionResult] = []
    read = 0
    try:
        for start in range(0, len(readable), LOOK_ELEMENTS):
            if context.elements_left < 0:
                await context.next_turn()
            some = readable[start : start + LOOK_ELEMENTS]
            context.elements_left -= 2 * len(some)
            found = context.replica_manager.fetch(
                params, some, record_progress=record_progress, already_read=read
            )
            results += found
            read += sum(result.size for result in found)
    except BaseException:
        for result in results:
            result.release()  # each holds a file open
        raise
    return results


def _refusal(
    context: RequestContext,
    request: FetchPartitionRequest,
    is_follower: bool,
    may_replicate: bool,
    held: Container[TopicPartition],
) -> ErrorCode | None:
    if is_follower and not may_replicate:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = request.topic_partition.topic
    if not topic and request.topic_id is not None:
        # A session's partition whose topic was not known before may be known now.
        topic = _name_of(context, request.topic_id)
        if not topic:
            return ErrorCode.UNKNOWN_TOPIC_ID
        request.topic_partition = TopicPartition(topic, request.topic_partition.partition)
    # Permission before existence: who may not read a topic must not learn whether it exists.
    if not is_follower and not context.may(_READ, _TOPIC, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if (
        request.topic_partition not in held
        and context.metadata.image.partition(*request.topic_partition) is None
    ):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if context.version < _ZSTD_FROM and context.replica_manager.stores_zstd(
        request.topic_partition
    ):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return None


def _response(
    context: RequestContext, error: ErrorCode, session_id: int, shown: list[FetchPartitionResult]
) -> FetchResponse:
    response = FetchResponse(error_code=error, session_id=session_id)
    hints: LeaderHints | None = None
    partitions: list[PartitionData] = []
    key: Any = None
    for result in shown:
        request = result.request
        topic = request.topic_partition[0]
        if key is None or key != (request.topic_id or topic):
            key = request.topic_id or topic
            partitions = []
            response.responses.append(
                FetchableTopicResponse(
                    topic=topic, topic_id=request.topic_id or NULL_UUID, partitions=partitions
                )
            )
        data = _partition_data(result)
        partitions.append(data)
        if result.error in _HINTED and context.version >= _LEADER_FROM:
            hints = hints or LeaderHints(context, NodeEndpoint)
            leader_id, leader_epoch = hints.leader_of(*request.topic_partition)
            data.current_leader = LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
    if hints is not None:
        response.node_endpoints = hints.endpoints
    return response


def _partition_data(result: FetchPartitionResult) -> PartitionData:
    records: Any = result.slice or result.converted or b""
    data = PartitionData(
        partition_index=result.request.topic_partition[1],
        error_code=result.error,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        diverging_epoch=_SAME_EPOCH,
        current_leader=_UNSAID,
        snapshot_id=_NO_SNAPSHOT,
        aborted_transactions=None,
        preferred_read_replica=result.preferred_read_replica,
        records=records,
    )
    if result.aborted_transactions is not None:
        data.aborted_transactions = [
            AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
            for producer_id, first_offset in result.aborted_transactions
        ]
    if result.diverging_epoch is not None:
        epoch, end_offset = result.diverging_epoch
        data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return data
