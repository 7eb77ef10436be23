"""Requests to the leader of the metadata log: Fetch and FetchSnapshot on the controller's
listener, and DescribeQuorum.

Owns the checks that lead an observer to the right epoch, the fetches that wait, and what is known
of observers.

1. Only what is below the high watermark is served; a waiting fetch is answered when it moves.
2. A reader under another epoch gets an error with the leader and its address: that is how the
   leader is found.
3. A reader from offset 0, or from before the log's start, is sent to the newest snapshot.
4. A reader with a negative replica id is not remembered. Of the others the last `MOST_OBSERVERS`
   heard are remembered, no more: anybody may make up ids.

Source: Kafka's `KafkaRaftClient` (fetch parts), KIP-595, KIP-630, KIP-1166; KRAFT 3.2; `RL 8.1`.
Not here: voters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from twisted_broker.cluster.snapshots import SnapshotId
from twisted_broker.log.errors import is_out_of_descriptors
from twisted_broker.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import cluster as cluster_messages
from twisted_broker.wire.messages import fetch as fetch_messages
from twisted_broker.wire.messages import quorum
from twisted_broker.wire.primitives import NULL_UUID

if TYPE_CHECKING:
    from twisted_broker.cluster.controller import Controller

_Piece = quorum.FetchSnapshotResponsePartitionSnapshot
MAX_FETCH_BYTES = 8 << 20
MAX_SNAPSHOT_BYTES = 1 << 20
MOST_OBSERVERS = 1000
_FORGET_OBSERVER_MS = 300_000
_ENDPOINTS_SINCE = 17  # of Fetch; Kafka 4.3.1 leaves them out of version 16, which has the field


class _Observer:
    __slots__ = ("caught_up_ms", "contact_ms", "directory_id", "end_offset", "fetch_ms")

    def __init__(self) -> None:
        self.end_offset = self.fetch_ms = self.caught_up_ms = self.contact_ms = -1
        self.directory_id = NULL_UUID


class RaftRequests:
    """What others request of this controller's log."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._log = controller.log
        self._waiting: list[Deferred[None]] = []
        self._observers: dict[int, _Observer] = {}

    def wake(self) -> None:
        """The high watermark moved: every waiting fetch is answered."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.called:
                waiter.callback(None)

    close = wake

    # Fetch

    async def fetch(
        self, request: fetch_messages.FetchRequest, version: int
    ) -> fetch_messages.FetchResponse:
        """Answers with batches, or what the reader must do instead.

        Waits up to `max_wait_ms` when there is nothing new.
        """
        requested = self._requested(request, version)
        answer = self._answer(request, requested)
        if (
            answer.error_code == ErrorCode.NONE
            and not self._has_news(answer, requested)
            and request.max_wait_ms > 0
        ):
            await self._moved(request.max_wait_ms)
            answer = self._answer(request, requested)
        listeners = self._controller.listeners[:1] if version >= _ENDPOINTS_SINCE else ()
        endpoints = [
            fetch_messages.NodeEndpoint(node_id=self._controller.node_id, host=e.host, port=e.port)
            for e in listeners
        ]
        topic = fetch_messages.FetchableTopicResponse(
            topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[answer]
        )
        return fetch_messages.FetchResponse(responses=[topic], node_endpoints=endpoints)

    def _requested(
        self, request: fetch_messages.FetchRequest, version: int
    ) -> fetch_messages.FetchPartition:
        """The one partition of a request. Raises BrokerError when it names anything else."""
        if request.cluster_id is not None and request.cluster_id != self._controller.cluster_id:
            raise BrokerError(ErrorCode.INCONSISTENT_CLUSTER_ID)
        if len(request.topics) == 1 and len(request.topics[0].partitions) == 1:
            topic = request.topics[0]
            named = (
                bytes(topic.topic_id) == METADATA_TOPIC_ID
                if version >= 13
                else topic.topic == METADATA_TOPIC
            )
            if named and topic.partitions[0].partition == 0:
                return topic.partitions[0]
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, f"this listener serves {METADATA_TOPIC} and nothing else"
        )

    def _answer(
        self, request: fetch_messages.FetchRequest, requested: fetch_messages.FetchPartition
    ) -> fetch_messages.PartitionData:
        log, epoch = self._log, self._controller.epoch
        leader = fetch_messages.LeaderIdAndEpoch(
            leader_id=self._controller.node_id, leader_epoch=epoch
        )
        answer = fetch_messages.PartitionData(
            high_watermark=log.high_watermark,
            log_start_offset=log.log.log_start_offset,
            current_leader=leader,
        )
        answer.error_code = self._epoch_error(request, requested)
        if answer.error_code != ErrorCode.NONE:
            answer.high_watermark = -1
            return answer
        self._note(request, requested)
        snapshot = self._snapshot_instead(requested)
        if snapshot is not None:
            answer.snapshot_id = fetch_messages.SnapshotId(
                end_offset=snapshot.end_offset, epoch=snapshot.epoch
            )
            return answer
        diverging = self._diverging(requested)
        if diverging is not None:
            answer.diverging_epoch = fetch_messages.EpochEndOffset(
                epoch=diverging[0], end_offset=diverging[1]
            )
            return answer
        # Not the partition's limit: an Apache Kafka replica sends 0 there and means the request's.
        limit = min(request.max_bytes, MAX_FETCH_BYTES)
        if requested.fetch_offset < log.high_watermark:
            answer.records = log.log.read(
                requested.fetch_offset, max(limit, 0), log.log.watermarks.high_watermark_metadata
            ).slice
        return answer

    def _epoch_error(
        self, request: fetch_messages.FetchRequest, requested: fetch_messages.FetchPartition
    ) -> ErrorCode:
        epoch = requested.current_leader_epoch
        negative = (
            min(request.max_wait_ms, requested.fetch_offset, requested.last_fetched_epoch, epoch)
            < 0
        )
        if negative or requested.last_fetched_epoch > epoch:
            return ErrorCode.INVALID_REQUEST
        if self._log.is_over:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if epoch != self._controller.epoch:
            return (
                ErrorCode.FENCED_LEADER_EPOCH
                if epoch < self._controller.epoch
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        return ErrorCode.NONE

    def _snapshot_instead(self, requested: fetch_messages.FetchPartition) -> SnapshotId | None:
        snapshots = self._log.snapshots
        if snapshots and (
            requested.fetch_offset == 0 or requested.fetch_offset < self._log.log.log_start_offset
        ):
            return snapshots[-1]
        return None

    def _diverging(self, requested: fetch_messages.FetchPartition) -> tuple[int, int] | None:
        """The end of the reader's last epoch here, when the reader is beyond it or that epoch is
        not known.
        """
        offset, epoch = requested.fetch_offset, requested.last_fetched_epoch
        if offset == 0:
            return None
        known_epoch, end = self._log.log.end_offset_for_epoch(
            epoch
        )  # not the high watermark: it may still be on its way after a restart
        return None if known_epoch == epoch and offset <= end else (known_epoch, end)

    @staticmethod
    def _has_news(
        answer: fetch_messages.PartitionData, requested: fetch_messages.FetchPartition
    ) -> bool:
        behind = requested.high_watermark < answer.high_watermark
        return (
            behind
            or answer.records is not None
            or answer.diverging_epoch.epoch >= 0
            or answer.snapshot_id.end_offset >= 0
        )

    def _moved(self, max_wait_ms: int) -> Deferred[None]:
        """Fires when the high watermark moves, or time is up."""
        waiter: Deferred[None] = Deferred()
        timer = self._controller.runtime.clock.callLater(max_wait_ms / 1000, self._time_up, waiter)
        self._waiting.append(waiter)

        def moved(result: Any) -> Any:
            if timer.active():
                timer.cancel()
            return result

        return waiter.addBoth(moved)

    def _time_up(self, waiter: Deferred[None]) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        if not waiter.called:
            waiter.callback(None)

    # observers

    def _note(
        self, request: fetch_messages.FetchRequest, requested: fetch_messages.FetchPartition
    ) -> None:
        replica = (
            request.replica_id if request.replica_id >= 0 else request.replica_state.replica_id
        )
        if replica < 0:
            return
        observer = self._observers[replica] = self._observers.pop(
            replica, _Observer()
        )  # the last heard comes last
        if len(self._observers) > MOST_OBSERVERS:
            del self._observers[next(iter(self._observers))]
        observer.fetch_ms, observer.contact_ms = (
            self._controller.runtime.wall_ms(),
            self._controller.runtime.now_ms(),
        )
        observer.end_offset, observer.directory_id = (
            requested.fetch_offset,
            bytes(requested.replica_directory_id),
        )
        if requested.fetch_offset >= self._log.high_watermark:
            observer.caught_up_ms = observer.fetch_ms

    def describe(
        self, request: cluster_messages.DescribeQuorumRequest, version: int
    ) -> cluster_messages.DescribeQuorumResponse:
        """The quorum as its leader knows it.

        In a request for anything else every partition gets UNKNOWN_TOPIC_OR_PARTITION.
        """
        topics = request.topics
        if not (
            len(topics) == 1
            and topics[0].topic_name == METADATA_TOPIC
            and [p.partition_index for p in topics[0].partitions] == [0]
        ):
            return cluster_messages.DescribeQuorumResponse(
                topics=[_no_quorum(topic) for topic in topics]
            )
        controller = self._controller
        listeners = [
            cluster_messages.Listener(name=e.name, host=e.host, port=e.port)
            for e in controller.listeners
        ]
        return cluster_messages.DescribeQuorumResponse(
            topics=[
                cluster_messages.DescribeQuorumResponseTopicData(
                    topic_name=METADATA_TOPIC, partitions=[self._quorum(version)]
                )
            ],
            nodes=[cluster_messages.Node(node_id=controller.node_id, listeners=listeners)]
            if version >= 2
            else [],
        )

    def _quorum(self, version: int) -> cluster_messages.DescribeQuorumResponsePartitionData:
        controller = self._controller
        now_ms, wall_ms = controller.runtime.now_ms(), controller.runtime.wall_ms()
        for node in [
            node
            for node, seen in self._observers.items()
            if now_ms - seen.contact_ms > _FORGET_OBSERVER_MS
        ]:
            del self._observers[node]
        others = sorted(
            (node, seen) for node, seen in self._observers.items() if node != controller.node_id
        )
        return cluster_messages.DescribeQuorumResponsePartitionData(
            leader_id=controller.node_id,
            leader_epoch=controller.epoch,
            high_watermark=self._log.high_watermark,
            current_voters=[
                _state(version, controller.node_id, self._log.end_offset, wall_ms, wall_ms)
            ],
            observers=[
                _state(
                    version,
                    node,
                    seen.end_offset,
                    seen.fetch_ms,
                    seen.caught_up_ms,
                    seen.directory_id,
                )
                for node, seen in others
            ],
        )

    # FetchSnapshot

    def fetch_snapshot(
        self, request: quorum.FetchSnapshotRequest, version: int
    ) -> quorum.FetchSnapshotResponse:
        """A piece of a snapshot's bytes, not aligned to batches.

        BrokerError(INCONSISTENT_CLUSTER_ID); all other refusals are in the answer.
        """
        if request.cluster_id is not None and request.cluster_id != self._controller.cluster_id:
            raise BrokerError(ErrorCode.INCONSISTENT_CLUSTER_ID)
        topics = []
        for topic in request.topics:
            answers = [
                self._piece(topic.name, requested, request.max_bytes)
                for requested in topic.partitions
            ]
            topics.append(
                quorum.FetchSnapshotResponseTopicSnapshot(name=topic.name, partitions=answers)
            )
        node, at = self._controller.node_id, self._controller.listeners[:1] if version >= 1 else ()
        endpoints = [
            quorum.FetchSnapshotResponseNodeEndpoint(node_id=node, host=e.host, port=e.port)
            for e in at
        ]
        return quorum.FetchSnapshotResponse(topics=topics, node_endpoints=endpoints)

    def _piece(
        self, topic: str, requested: quorum.FetchSnapshotRequestPartitionSnapshot, max_bytes: int
    ) -> _Piece:
        epoch = self._controller.epoch
        wanted = SnapshotId(requested.snapshot_id.end_offset, requested.snapshot_id.epoch)
        answer = quorum.FetchSnapshotResponsePartitionSnapshot(
            index=requested.partition,
            snapshot_id=quorum.FetchSnapshotResponseSnapshotId(
                end_offset=wanted.end_offset, epoch=wanted.epoch
            ),
            current_leader=quorum.LeaderIdAndEpoch(
                leader_id=self._controller.node_id, leader_epoch=epoch
            ),
            unaligned_records=b"",
        )
        if topic != METADATA_TOPIC or requested.partition != 0:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif requested.current_leader_epoch != epoch:
            older = requested.current_leader_epoch < epoch
            answer.error_code = (
                ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        elif wanted not in self._log.snapshots:
            answer.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
        else:
            self._read_piece(answer, wanted, requested.position, max_bytes)
        return answer

    def _read_piece(
        self, answer: _Piece, wanted: SnapshotId, position: int, max_bytes: int
    ) -> None:
        try:
            file = self._log.files.open(self._log.snapshot_path(wanted), read_only=True)
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise
            # The reader comes again.
            answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return
        try:
            size = file.size()
            if not 0 <= position < size:
                answer.error_code = ErrorCode.POSITION_OUT_OF_RANGE
                return
            answer.size, answer.position = size, position
            answer.unaligned_records = file.read_at(
                position, max(1, min(max_bytes, MAX_SNAPSHOT_BYTES))
            )
        finally:
            file.close()


def _state(
    version: int,
    node: int,
    end: int,
    fetch_ms: int,
    caught_up_ms: int,
    directory_id: bytes = NULL_UUID,
) -> cluster_messages.ReplicaState:
    """A voter or an observer, with the fields that the version has."""
    state = cluster_messages.ReplicaState(replica_id=node, log_end_offset=end)
    if version >= 1:
        state.last_fetch_timestamp, state.last_caught_up_timestamp = fetch_ms, caught_up_ms
    if version >= 2:
        state.replica_directory_id = directory_id
    return state


def _no_quorum(
    topic: cluster_messages.DescribeQuorumRequestTopicData,
) -> cluster_messages.DescribeQuorumResponseTopicData:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partitions = [
        cluster_messages.DescribeQuorumResponsePartitionData(
            partition_index=each.partition_index,
            error_code=unknown,
            error_message=unknown.sentence,
            leader_id=0,
            leader_epoch=0,
            high_watermark=0,
        )
        for each in topic.partitions
    ]
    return cluster_messages.DescribeQuorumResponseTopicData(
        topic_name=topic.topic_name, partitions=partitions
    )
