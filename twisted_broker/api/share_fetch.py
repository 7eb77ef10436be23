"""ShareFetch and ShareAcknowledge (KIP-932): the wire's side of share partitions.

1. Checks in this order: share.version; the group's id; READ on the group; the member's id; what
   renewing forbids; the session. Then of each partition: its topic's id, the shape of its
   acknowledgements, READ on the topic, its existence, and its share partition.
2. Who is no member of the group is served all the same: the group's coordinator does not tell.
3. Acknowledgements are begun before the fetch, which does not wait for them; the answer waits for
   both. A request that closes its session, renews, or wants nothing is answered without a wait.
4. Without a free session the refusal comes after `max_wait_ms`, so that clients do not spin.
5. Records leave as file slices; an answer that is not made releases its slices.
6. A partition without another leader to name carries the leader -1 and epoch -1. Only what a share
   partition says of acknowledgements comes with a message.

Source: GN 1.9, 1.10, 1.17, 1.18, 3.30-3.48, 3.60; Apache Kafka 4.3.1
`KafkaApis.handleShareFetchRequest`, `handleShareAcknowledgeRequest`. Unlike there an unknown topic
id is UNKNOWN_TOPIC_ID for its partition alone. Not here: states and writes (`share`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import deferLater

from twisted_broker.api.leaders import LeaderHints
from twisted_broker.api.throttling import fetch_wait, most_of_fetch
from twisted_broker.cluster.features import serves_share_groups
from twisted_broker.coordinator.share_state.values import SharePartitionKey
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition.fetch_data import (
    CONSUMER,
    HIGH_WATERMARK,
    TXN_COMMITTED,
    FetchParams,
)
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.share.share_fetch import FetchedPartition, ShareFetch
from twisted_broker.share.share_partition import RENEW, Acknowledgement
from twisted_broker.share.share_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    SessionKey,
    SharePartitionId,
    ShareSession,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.share_fetch import (
    AcknowledgementBatch,
    AcquiredRecordsRange,
    ShareAcknowledgePartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    ShareFetchTopicResponse,
    ShareLeaderIdAndEpoch,
    ShareNodeEndpoint,
    SharePartitionData,
)

if TYPE_CHECKING:
    from twisted_broker.api.context import RequestContext

_LONGEST_MEMBER_ID = 36
_RENEWS_FROM = 2
_MOST_UNKNOWN = 10_000
"""A session may name so many partitions more than are held here."""
_OFFSETS_OF_AN_ELEMENT = 10
_HINTED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
Refusals = dict[SharePartitionId, "Deferred[BrokerError | None]"]


def _checked(context: RequestContext, group_id: str | None, member_id: str | None) -> SessionKey:
    """Raises BrokerError."""
    if not serves_share_groups(context.metadata.image):
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION)
    if group_id is None:
        raise BrokerError(ErrorCode.INVALID_REQUEST)
    if not context.may(Operation.READ, ResourceType.GROUP, group_id):
        raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not member_id or len(member_id) > _LONGEST_MEMBER_ID:
        raise BrokerError(ErrorCode.INVALID_REQUEST)
    return SessionKey(group_id, member_id)


def _named(topics: Iterable[ShareFetchTopic]) -> Iterable[tuple[SharePartitionId, Any]]:
    for topic in topics:
        for partition in topic.partitions:
            yield (topic.topic_id, partition.partition_index), partition


# fetching
async def share_fetch(context: RequestContext, request: ShareFetchRequest) -> ShareFetchResponse:
    """Answers when `min_bytes` may be acquired, a partition has an error, or after
    `max_wait_ms`.
    """
    try:
        key = _checked(context, request.group_id, request.member_id)
        _check_renewal(context, request)
        session = await _session_of(context, request, key)
    except BrokerError as refusal:
        if refusal.code == ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            wait_ms = context.bounded_wait(max(0, request.max_wait_ms))
            await deferLater(context.broker.runtime.clock, wait_ms / 1000)  # type: ignore[arg-type]
        return ShareFetchResponse(error_code=refusal.code)
    epoch = request.share_session_epoch
    names: dict[bytes, str | None] = {}
    refusals: Refusals = {}
    if any(partition.acknowledgement_batches for _, partition in _named(request.topics)):
        refusals = await _acknowledged(context, key, request.topics, request.is_renew_ack, names)
    found: list[FetchedPartition] = []
    renews = context.version >= _RENEWS_FROM and request.is_renew_ack
    if epoch != FINAL_EPOCH and not renews:
        found = await _fetched(context, request, session, names)
    try:
        refused = {partition: await refusal for partition, refusal in refusals.items()}
        if context.metered is not None:
            wait_ms = fetch_wait(context, [each.size for each in found])
            if wait_ms:
                _release(found)
                return ShareFetchResponse(throttle_time_ms=wait_ms)
        if epoch > INITIAL_EPOCH:
            if session.epoch != (1 if epoch == 0x7FFFFFFF else epoch + 1):
                raise BrokerError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
            shown = [
                each
                for each in found
                if session.must_show(each.id, bool(each.acquired), each.error is not None)
                or each.id in refused
            ]
        else:
            shown = found
        response = _fetch_response(context, key, shown, refused)
    except BrokerError as refusal:
        _release(found)
        return ShareFetchResponse(error_code=refusal.code)
    except BaseException:
        _release(found)  # each holds a file open
        raise
    if epoch == FINAL_EPOCH:
        context.share_partitions.end_session(key)
    return response


def _release(found: Iterable[FetchedPartition]) -> None:
    for each in found:
        each.release()


def _check_renewal(context: RequestContext, request: ShareFetchRequest) -> None:
    """Raises INVALID_REQUEST for a request that renews and waits: the lock might end meanwhile."""
    if context.version < _RENEWS_FROM or not request.is_renew_ack:
        return
    if request.max_bytes or request.min_bytes or request.max_records or request.max_wait_ms:
        raise BrokerError(ErrorCode.INVALID_REQUEST)


async def _session_of(
    context: RequestContext, request: ShareFetchRequest, key: SessionKey
) -> ShareSession:
    """The request's session, which has its partitions now. Raises BrokerError."""
    sessions = context.share_partitions.sessions
    epoch = request.share_session_epoch
    if epoch == FINAL_EPOCH:
        return sessions.get(key)
    named = {partition: asked async for partition, asked in context.each(_named(request.topics))}
    most = _MOST_UNKNOWN + len(context.replica_manager.partitions)
    if epoch == INITIAL_EPOCH:
        if any(asked.acknowledgement_batches for asked in named.values()):
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        if len(named) > most:
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        session = sessions.open(key, named, context.connection)
        if context.connection is not None:
            context.connection.tell_when_lost(context.share_partitions.connection_lost)
        return session
    session = sessions.get(key)
    session.next_epoch(epoch)
    for partition in named:
        session.partitions.setdefault(partition, True)
    for topic in request.forgotten_topics_data:
        for index in topic.partitions:
            session.partitions.pop((topic.topic_id, index), None)
    if len(session.partitions) > most:
        sessions.remove(key)
        raise BrokerError(ErrorCode.INVALID_REQUEST)
    return session


async def _fetched(
    context: RequestContext,
    request: ShareFetchRequest,
    session: ShareSession,
    names: dict[bytes, str | None],
) -> list[FetchedPartition]:
    """What each partition of the session answers."""
    replicas, manager = context.replica_manager, context.share_partitions
    refused: list[FetchedPartition] = []
    wanted: list[tuple[SharePartitionId, TopicPartition]] = []
    async for partition in context.each(session.rotated(request.share_session_epoch)):
        topic_id, index = partition
        refusal = _refusal(context, topic_id, index, names)
        name = TopicPartition(names[topic_id] or "", index)
        if refusal is None:
            wanted.append((partition, name))
        else:
            refused.append(FetchedPartition(partition, name, refusal))
    max_bytes = min(request.max_bytes, replicas.fetch_max_bytes)
    if context.metered is not None:
        max_bytes = most_of_fetch(context, max_bytes)
    if not wanted or request.max_records <= 0 or max_bytes <= 0:
        return refused
    key = session.key
    settings = manager.settings(key.group_id)
    connection = context.connection
    params = FetchParams(
        CONSUMER,
        -1,
        0 if refused else context.bounded_wait(request.max_wait_ms),
        min(request.min_bytes, max_bytes),
        max_bytes,
        TXN_COMMITTED if settings.reads_committed else HIGH_WATERMARK,
    )
    found = await manager.fetch(
        ShareFetch(
            key.group_id,
            key.member_id,
            params,
            request.share_acquire_mode,
            request.batch_size,
            request.max_records,
            wanted,
            lambda: connection is None or not connection.closing,
        )
    )
    return [*found, *refused]


def _refusal(
    context: RequestContext, topic_id: bytes, index: int, names: dict[bytes, str | None]
) -> BrokerError | None:
    """Why a partition is neither read nor acknowledged; `names` notes the topic's name, None where
    it must not be read.
    """
    image = context.metadata.image
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        names[topic_id] = None
        return BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, "")
    if topic_id not in names:
        may = context.may(Operation.READ, ResourceType.TOPIC, topic.name)
        names[topic_id] = topic.name if may else None
    if names[topic_id] is None:
        return BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "")
    if index not in topic.partitions:
        return BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
    return None


# acknowledging
async def share_acknowledge(
    context: RequestContext, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse:
    """Answers when all is persisted."""
    epoch = request.share_session_epoch
    manager = context.share_partitions
    try:
        key = _checked(context, request.group_id, request.member_id)
        if epoch == INITIAL_EPOCH:
            raise BrokerError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session = manager.sessions.get(key)
        if epoch != FINAL_EPOCH:
            session.next_epoch(epoch)
    except BrokerError as refusal:
        return ShareAcknowledgeResponse(error_code=refusal.code)
    refusals = await _acknowledged(context, key, request.topics, request.is_renew_ack, {})
    refused = {partition: await refusal for partition, refusal in refusals.items()}
    if epoch == FINAL_EPOCH:
        manager.end_session(key)
    return _acknowledge_response(context, key, refused)


async def _acknowledged(
    context: RequestContext,
    key: SessionKey,
    topics: Sequence[ShareFetchTopic],
    is_renewal: bool,
    names: dict[bytes, str | None],
) -> Refusals:
    """Begins all acknowledgements of a request."""
    most = RENEW if context.version >= _RENEWS_FROM else RENEW - 1
    manager = context.share_partitions
    refusals: Refusals = {}
    for partition, asked in _named(topics):
        batches = asked.acknowledgement_batches
        if context.turn_is_over(1 + _cost(asked) // _OFFSETS_OF_AN_ELEMENT):
            await context.next_turn()
        refusal = _refusal(context, *partition, names)
        is_known = refusal is None or refusal.code != ErrorCode.UNKNOWN_TOPIC_ID
        if is_known and not _are_well_formed(batches, most, is_renewal):
            refusal = BrokerError(ErrorCode.INVALID_REQUEST, "")
        if refusal is not None or not batches:
            refusals[partition] = succeed(refusal)
        else:
            refusals[partition] = manager.acknowledge(
                SharePartitionKey(key.group_id, *partition),
                key.member_id,
                [
                    Acknowledgement(each.first_offset, each.last_offset, each.acknowledge_types)
                    for each in batches
                ],
            )
    return refusals


def _cost(asked: ShareFetchPartition) -> int:
    return sum(1 + len(each.acknowledge_types) for each in asked.acknowledgement_batches)


def _are_well_formed(batches: Sequence[AcknowledgementBatch], most: int, is_renewal: bool) -> bool:
    before = -1
    for each in batches:
        types = each.acknowledge_types
        if (
            each.first_offset > each.last_offset
            or each.first_offset <= before
            or not types
            or (len(types) > 1 and len(types) != each.last_offset - each.first_offset + 1)
            or min(types) < 0
            or max(types) > most
            or (RENEW in types and not is_renewal)
        ):
            return False
        before = each.last_offset
    return True


# answers
class _Leaders:
    """Names the leaders of partitions that are led elsewhere."""

    __slots__ = ("_context", "_hints")

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._hints: LeaderHints | None = None

    def of(self, partition: SharePartitionId, error: ErrorCode) -> ShareLeaderIdAndEpoch:
        topic = self._context.metadata.image.topics_by_id.get(partition[0])
        if error not in _HINTED or topic is None:
            return ShareLeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)
        self._hints = self._hints or LeaderHints(self._context, ShareNodeEndpoint)
        leader_id, leader_epoch = self._hints.leader_of(topic.name, partition[1])
        return ShareLeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)

    @property
    def endpoints(self) -> list[ShareNodeEndpoint]:
        return [] if self._hints is None else self._hints.endpoints


def _fetch_response(
    context: RequestContext,
    key: SessionKey,
    shown: Iterable[FetchedPartition],
    refused: dict[SharePartitionId, BrokerError | None],
) -> ShareFetchResponse:
    limits = context.share_partitions.settings(key.group_id).limits
    response = ShareFetchResponse(acquisition_lock_timeout_ms=limits.record_lock_duration_ms)
    leaders = _Leaders(context)
    topics: dict[bytes, list[SharePartitionData]] = {}
    answered: dict[SharePartitionId, SharePartitionData] = {}
    for each in shown:
        code = ErrorCode.NONE if each.error is None else each.error.code
        answered[each.id] = data = SharePartitionData(
            partition_index=each.id[1],
            error_code=code,
            current_leader=leaders.of(each.id, code),
            records=each.slice or b"",
            acquired_records=[
                AcquiredRecordsRange(first_offset=first, last_offset=last, delivery_count=count)
                for first, last, count in each.acquired
            ],
        )
        topics.setdefault(each.id[0], []).append(data)
    for partition, refusal in refused.items():
        data = answered.get(partition)  # type: ignore[assignment]
        if data is None:
            code = ErrorCode.NONE if refusal is None else refusal.code
            data = SharePartitionData(
                partition_index=partition[1],
                current_leader=leaders.of(partition, code),
                records=b"",
            )
            topics.setdefault(partition[0], []).append(data)
        if refusal is not None:
            data.acknowledge_error_code = refusal.code
            data.acknowledge_error_message = refusal.message or None
    response.responses = [
        ShareFetchTopicResponse(topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in topics.items()
    ]
    response.node_endpoints = leaders.endpoints
    return response


def _acknowledge_response(
    context: RequestContext,
    key: SessionKey,
    refused: dict[SharePartitionId, BrokerError | None],
) -> ShareAcknowledgeResponse:
    limits = context.share_partitions.settings(key.group_id).limits
    leaders = _Leaders(context)
    topics: dict[bytes, list[ShareAcknowledgePartition]] = {}
    for partition, refusal in refused.items():
        code = ErrorCode.NONE if refusal is None else refusal.code
        topics.setdefault(partition[0], []).append(
            ShareAcknowledgePartition(
                partition_index=partition[1],
                error_code=code,
                error_message=None if refusal is None else refusal.message or None,
                current_leader=leaders.of(partition, code),
            )
        )
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=limits.record_lock_duration_ms,
        responses=[
            ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
        node_endpoints=leaders.endpoints,
    )
