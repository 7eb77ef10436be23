"""The leader as a fetcher sees it.

Owns `LeaderEndPoint`, what a fetcher needs of one, and `RemoteLeaderEndPoint`, which sends requests
over a connection of its own.

1. Between brokers nothing is negotiated: versions follow from the finalised metadata.version, read
   at each request.
2. One connection and one fetch session per fetcher; an error of the session is no error of any
   partition: the next request is full.
3. The request carries our broker epoch (from Fetch 15 on), never the high watermark (KIP-1166 is
   for the metadata log).
4. A request and its answer cost what they name: with nothing changed and nothing answered no
   partition is looked at.

Source: RL 6.2, 8.6; KRAFT 3.7; Kafka's `LeaderEndPoint`, `RemoteLeaderEndPoint`, `MetadataVersion`
of 4.3.1. The twin in memory is `tests/replication/memory_leader.py`. Not here: what answers mean
(`fetcher_state`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol

from twisted.internet.defer import Deferred

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetcher.fetch_session_handler import (
    SESSION_ERRORS,
    FetchSessionHandler,
    RequestedPartition,
    RequestedPartitions,
    SessionRequest,
)
from twisted_broker.replication.fetcher.fetcher_state import FetchedPartition
from twisted_broker.replication.fetcher.truncation_decision import EpochEnd, LeaderEpochRequest
from twisted_broker.wire.errors import BrokerError, ErrorCode, error_of
from twisted_broker.wire.messages import fetch as fetch_messages
from twisted_broker.wire.messages import list_offsets as list_offsets_messages
from twisted_broker.wire.messages import offset_for_leader_epoch as epoch_messages

LATEST, EARLIEST = -1, -2
_REPLICA_STATE_FROM, _TOPIC_IDS_FROM, _LAST_FETCHED_EPOCH_FROM = 15, 13, 12
# (metadata.version, version), newest first: a broker that was not upgraded yet must understand what
# it is sent.
_FETCH_VERSIONS = ((27, 18), (21, 17), (19, 16), (10, 15), (9, 14))
_LIST_OFFSETS_VERSIONS = ((29, 11), (25, 10), (21, 9), (9, 8))
# The same for all supported levels of metadata.version.
OFFSET_FOR_LEADER_EPOCH_VERSION = 4


def fetch_version(metadata_version: int) -> int:
    """RL 8.6: the Fetch that brokers speak at a feature level of metadata.version."""
    return next((version for level, version in _FETCH_VERSIONS if metadata_version >= level), 13)


def list_offsets_version(metadata_version: int) -> int:
    """RL 8.6: the same for ListOffsets."""
    return next(
        (version for level, version in _LIST_OFFSETS_VERSIONS if metadata_version >= level), 7
    )


class BrokerEndPoint(NamedTuple):
    """A broker and where it is reached by other brokers."""

    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"broker {self.id} at {self.host}:{self.port}"


class LeaderEndPoint(Protocol):
    """One broker that leads partitions followed here.

    All methods raise `BrokerError`, `WireError` or what the connection raises.
    """

    @property
    def endpoint(self) -> BrokerEndPoint: ...

    @property
    def truncates_on_fetch(self) -> bool:
        """Whether its fetch answers say where logs diverge (from Fetch 12 on)."""
        ...

    def has_request(self, requested: RequestedPartitions) -> bool:
        """Whether there is anything to send."""
        ...

    async def fetch(self, requested: RequestedPartitions) -> dict[TopicPartition, FetchedPartition]:
        """What the leader answers for all that is requested; partitions where nothing changed may
        be missing.
        """
        ...

    async def fetch_offset(
        self, topic_partition: TopicPartition, leader_epoch: int, timestamp: int
    ) -> int:
        """The offset at LATEST (the log end) or EARLIEST (the log start)."""
        ...

    async def fetch_epoch_ends(
        self, epochs: Mapping[TopicPartition, LeaderEpochRequest]
    ) -> dict[TopicPartition, EpochEnd]:
        """Where epochs end in the leader's log."""
        ...

    def close(self) -> None:
        """Nothing is sent any more; what waits fails."""
        ...


class Connection(Protocol):
    """What is used of a `BrokerConnection`."""

    def send(self, request: Any, version: int) -> Deferred[Any]: ...

    def close(self) -> None: ...


class FetchLimits(NamedTuple):
    """`replica.fetch.wait.max.ms`, `.min.bytes`, `.response.max.bytes`, `.max.bytes`."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    response_max_bytes: int = 10 << 20
    partition_max_bytes: int = 1 << 20


class RemoteLeaderEndPoint:
    """`broker_epoch` and `metadata_version` are called for each request."""

    truncates_on_fetch = True
    offset_for_leader_epoch_version = OFFSET_FOR_LEADER_EPOCH_VERSION

    def __init__(
        self,
        endpoint: BrokerEndPoint,
        connection: Connection,
        node_id: int,
        broker_epoch: Callable[[], int],
        metadata_version: Callable[[], int],
        limits: FetchLimits,
    ) -> None:
        self.endpoint = endpoint
        self._connection = connection
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._metadata_version = metadata_version
        self._limits = limits
        self._session = FetchSessionHandler()
        self._names: dict[bytes, str] = {}

    def has_request(self, requested: RequestedPartitions) -> bool:
        return self._session.has_request(requested)

    def close(self) -> None:
        self._connection.close()

    def fetch_version(self) -> int:
        """Of the next request."""
        return fetch_version(self._metadata_version())

    def list_offsets_version(self) -> int:
        """Of the next request."""
        return list_offsets_version(self._metadata_version())

    # Fetch
    def fetch(
        self, requested: RequestedPartitions
    ) -> Coroutine[Any, Any, dict[TopicPartition, FetchedPartition]]:
        return self._fetch(requested, self.fetch_version())

    async def _fetch(
        self, requested: RequestedPartitions, version: int
    ) -> dict[TopicPartition, FetchedPartition]:
        session = self._session.build_request(requested)
        if version < _TOPIC_IDS_FROM:
            # By name it would be the partition that is requested now under another topic id.
            forgotten = [each for each in session.forgotten if each[0] not in requested.current]
            session = session._replace(forgotten=forgotten)
        try:
            self._note_names(session, requested.current)
            response = await self._connection.send(self._fetch_request(session, version), version)
        except BaseException:
            # Cancelled, too: whether the leader has seen this epoch of the session is not known.
            self._session.handle_error()
            raise
        error = error_of(response.error_code)
        self._session.handle_response(error, response.session_id)
        # No failure of the leader: the next round sends a full request.
        if error in SESSION_ERRORS:
            return {}
        if error != ErrorCode.NONE:
            raise BrokerError(error)
        return self._fetched(response, requested.current)

    def _note_names(
        self, session: SessionRequest, current: Mapping[TopicPartition, RequestedPartition]
    ) -> None:
        """Answers name topics by id.

        Those of which nothing is requested any more are dropped when something is forgotten.
        """
        if session.forgotten or self._session.is_full:
            self._names = {each.topic_id: name.topic for name, each in current.items()}
        else:
            self._names.update(
                (each.topic_id, name.topic) for name, each in session.partitions.items()
            )

    def _fetch_request(self, session: SessionRequest, version: int) -> fetch_messages.FetchRequest:
        limits = self._limits
        request = fetch_messages.FetchRequest(
            max_wait_ms=limits.max_wait_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.response_max_bytes,
            session_id=session.session_id,
            session_epoch=session.epoch,
        )
        if version >= _REPLICA_STATE_FROM:
            request.replica_state = fetch_messages.ReplicaState(
                replica_id=self._node_id, replica_epoch=self._broker_epoch()
            )
        else:
            request.replica_id = self._node_id
        topics: dict[tuple[str, bytes], fetch_messages.FetchTopic] = {}
        for name, requested in session.partitions.items():
            topic = topics.get((name.topic, requested.topic_id))
            if topic is None:
                topic = topics[name.topic, requested.topic_id] = fetch_messages.FetchTopic(
                    topic=name.topic, topic_id=requested.topic_id
                )
            partition = _requested_partition(name.partition, requested)
            if version < _LAST_FETCHED_EPOCH_FROM:
                partition.last_fetched_epoch = -1
            topic.partitions.append(partition)
        request.topics = list(topics.values())
        forgotten: dict[tuple[str, bytes], fetch_messages.ForgottenTopic] = {}
        for name, topic_id in session.forgotten:
            forgotten_topic = forgotten.setdefault(
                (name.topic, topic_id),
                fetch_messages.ForgottenTopic(topic=name.topic, topic_id=topic_id),
            )
            forgotten_topic.partitions.append(name.partition)
        request.forgotten_topics_data = list(forgotten.values())
        return request

    def _fetched(
        self,
        response: fetch_messages.FetchResponse,
        current: Mapping[TopicPartition, RequestedPartition],
    ) -> dict[TopicPartition, FetchedPartition]:
        """The answers for partitions that are still requested, under the topic id answered."""
        answers: dict[TopicPartition, FetchedPartition] = {}
        for topic in response.responses:
            topic_id = bytes(topic.topic_id)
            # Below Fetch 13 topics are named.
            topic_name = topic.topic or self._names.get(topic_id)
            # Forgotten while the answer was on its way.
            if topic_name is None:
                continue
            for data in topic.partitions:
                name = TopicPartition(topic_name, data.partition_index)
                # Requested again under another topic id meanwhile: the answer is of the deleted
                # topic. An answer by name (below Fetch 13) does not show that.
                if name in current and (topic.topic or current[name].topic_id == topic_id):
                    answers[name] = _fetched_partition(data)
        return answers

    # offsets
    async def fetch_offset(
        self, topic_partition: TopicPartition, leader_epoch: int, timestamp: int
    ) -> int:
        partition = list_offsets_messages.ListOffsetsPartition(
            partition_index=topic_partition.partition,
            current_leader_epoch=leader_epoch,
            timestamp=timestamp,
        )
        request = list_offsets_messages.ListOffsetsRequest(
            replica_id=self._node_id,
            topics=[
                list_offsets_messages.ListOffsetsTopic(
                    name=topic_partition.topic, partitions=[partition]
                )
            ],
        )
        response = await self._connection.send(request, self.list_offsets_version())
        for topic in response.topics:
            for answer in topic.partitions:
                if (topic.name, answer.partition_index) == topic_partition:
                    if answer.error_code:
                        raise BrokerError(error_of(answer.error_code))
                    offset: int = answer.offset
                    return offset
        raise BrokerError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"broker {self.endpoint.id} left {topic_partition} out of its answer",
        )

    async def fetch_epoch_ends(
        self, epochs: Mapping[TopicPartition, LeaderEpochRequest]
    ) -> dict[TopicPartition, EpochEnd]:
        topics: dict[str, epoch_messages.OffsetForLeaderTopic] = {}
        for name, request in epochs.items():
            topic = topics.setdefault(
                name.topic, epoch_messages.OffsetForLeaderTopic(topic=name.topic)
            )
            topic.partitions.append(
                epoch_messages.OffsetForLeaderPartition(
                    partition=name.partition,
                    current_leader_epoch=request.leader_epoch,
                    leader_epoch=request.epoch,
                )
            )
        response = await self._connection.send(
            epoch_messages.OffsetForLeaderEpochRequest(
                replica_id=self._node_id, topics=list(topics.values())
            ),
            self.offset_for_leader_epoch_version,
        )
        return {
            TopicPartition(topic.topic, answer.partition): EpochEnd(
                error_of(answer.error_code), answer.leader_epoch, answer.end_offset
            )
            for topic in response.topics
            for answer in topic.partitions
        }


def _requested_partition(
    partition: int, requested: RequestedPartition
) -> fetch_messages.FetchPartition:
    return fetch_messages.FetchPartition(
        partition=partition,
        current_leader_epoch=requested.leader_epoch,
        fetch_offset=requested.fetch_offset,
        last_fetched_epoch=requested.last_fetched_epoch,
        log_start_offset=requested.log_start_offset,
        partition_max_bytes=requested.max_bytes,
    )


def _fetched_partition(data: fetch_messages.PartitionData) -> FetchedPartition:
    diverging = data.diverging_epoch
    records = data.records
    return FetchedPartition(
        error_of(data.error_code),
        data.high_watermark,
        data.log_start_offset,
        b"" if records is None else records,
        (diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
    )
