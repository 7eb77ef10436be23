"""Requests to a voter of the metadata log, as the controller's listener gets them: Fetch and
FetchSnapshot, the elections' Vote, BeginQuorumEpoch and EndQuorumEpoch, changes of the voters, and
DescribeQuorum.

Owns the translation between the wire and the quorum's core.

1. One log is served: another topic, more than one partition, another cluster's id are refused.
2. An answer names the leader, its epoch, and from the version of the protocol on that has it the
   leader's address: that is how it is found.

Source: Kafka's `KafkaRaftClient`, `RaftUtil`, KIP-595, KIP-630, KIP-996; KRAFT 3.2; `RL 8.1`;
QU 2.2, 2.3, 2.20 to 2.28. Not here: what is answered (`raft`), reading (`metadata_log.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import Deferred

from twisted_broker.log.segment_file import FileSlice
from twisted_broker.raft import messages
from twisted_broker.raft.control_records import in_order
from twisted_broker.raft.leader_state import LeaderState, ReplicaState
from twisted_broker.raft.log_view import OffsetAndEpoch
from twisted_broker.raft.messages import Answer
from twisted_broker.raft.replica_key import Endpoint, ReplicaKey
from twisted_broker.raft.voter_set import VoterNode
from twisted_broker.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import cluster as cluster_messages
from twisted_broker.wire.messages import fetch as fetch_messages
from twisted_broker.wire.messages import quorum
from twisted_broker.wire.primitives import NULL_UUID

if TYPE_CHECKING:
    from twisted_broker.cluster.controller import Controller

_Piece = quorum.FetchSnapshotResponsePartitionSnapshot
ResponseT = TypeVar("ResponseT")
_Form = tuple[Callable[..., ResponseT], Callable[..., Any], Callable[..., Any]]
_VOTE = (quorum.VoteResponse, quorum.VoteResponseTopicData, quorum.VoteResponsePartitionData)
_BEGIN = (
    quorum.BeginQuorumEpochResponse,
    quorum.BeginQuorumEpochResponseTopicData,
    quorum.BeginQuorumEpochResponsePartitionData,
)
_END = (
    quorum.EndQuorumEpochResponse,
    quorum.EndQuorumEpochResponseTopicData,
    quorum.EndQuorumEpochResponsePartitionData,
)
_ENDPOINTS_SINCE = 17  # of Fetch; Kafka 4.3.1 leaves them out of version 16, which has the field


class RaftRequests:
    """What others request of this voter's log: the core's answers, in the wire's form."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._log = controller.log

    def close(self) -> None:
        """Every fetch that waits is refused."""
        self._log.refuse_waiting()

    def _ask(self, request: messages.Request) -> Deferred[tuple[Answer, FileSlice | None]]:
        answered: Deferred[tuple[Answer, FileSlice | None]] = Deferred(
            lambda _: self._log.give_up(waiter)
        )

        def waiter(answer: Answer, data: FileSlice | None) -> None:
            if not answered.called:
                answered.callback((answer, data))
            elif data is not None:
                data.release()  # its client has gone

        self._log.request(request, waiter)
        return answered

    def _check_cluster(self, cluster_id: str | None) -> None:
        if cluster_id is not None and cluster_id != self._controller.cluster_id:
            raise BrokerError(ErrorCode.INCONSISTENT_CLUSTER_ID)

    @staticmethod
    def _endpoints(answer: Answer) -> list[tuple[int, str, int]]:
        at = answer.leader_address
        return [] if at is None or answer.leader_id < 0 else [(answer.leader_id, at.host, at.port)]

    # Fetch

    async def fetch(
        self, request: fetch_messages.FetchRequest, version: int
    ) -> fetch_messages.FetchResponse:
        """Answers with batches, or what the reader must do instead.

        Waits up to `max_wait_ms` when there is nothing new.
        """
        requested = self._requested(request, version)
        replica = (
            request.replica_id if request.replica_id >= 0 else request.replica_state.replica_id
        )
        answer, records = await self._ask(
            messages.Fetch(
                ReplicaKey(replica, bytes(requested.replica_directory_id)),
                requested.current_leader_epoch,
                OffsetAndEpoch(requested.fetch_offset, requested.last_fetched_epoch),
                # Not the partition's limit: an Apache Kafka replica sends 0 there and means this.
                request.max_bytes,
                request.max_wait_ms,
                requested.high_watermark,
            )
        )
        data = fetch_messages.PartitionData(
            error_code=answer.error,
            high_watermark=-1,
            log_start_offset=self._log.log.log_start_offset,
            current_leader=fetch_messages.LeaderIdAndEpoch(
                leader_id=answer.leader_id, leader_epoch=answer.epoch
            ),
            records=records,
        )
        if answer.fetched is not None:
            fetched = answer.fetched
            data.high_watermark = fetched.high_watermark
            if fetched.snapshot is not None:
                data.snapshot_id = fetch_messages.SnapshotId(
                    end_offset=fetched.snapshot.offset, epoch=fetched.snapshot.epoch
                )
            if fetched.diverging is not None:
                data.diverging_epoch = fetch_messages.EpochEndOffset(
                    epoch=fetched.diverging.epoch, end_offset=fetched.diverging.end_offset
                )
        endpoints = self._endpoints(answer) if version >= _ENDPOINTS_SINCE else []
        topic = fetch_messages.FetchableTopicResponse(
            topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[data]
        )
        return fetch_messages.FetchResponse(
            responses=[topic],
            node_endpoints=[
                fetch_messages.NodeEndpoint(node_id=node, host=host, port=port)
                for node, host, port in endpoints
            ],
        )

    def _requested(
        self, request: fetch_messages.FetchRequest, version: int
    ) -> fetch_messages.FetchPartition:
        """The one partition of a request. Raises BrokerError when it names anything else."""
        self._check_cluster(request.cluster_id)
        if len(request.topics) == 1 and len(request.topics[0].partitions) == 1:
            topic = request.topics[0]
            named = (
                bytes(topic.topic_id) == METADATA_TOPIC_ID
                if version >= 13
                else topic.topic == METADATA_TOPIC
            )
            if named and topic.partitions[0].partition == 0:
                return topic.partitions[0]
        raise _not_this_log()

    # elections

    async def vote(self, request: quorum.VoteRequest, version: int) -> quorum.VoteResponse:
        """A voter asks for this one's vote, or whether it would get it."""
        named = self._named(request)
        voter = ReplicaKey(request.voter_id, bytes(named.voter_directory_id))
        answer, _ = await self._ask(
            messages.Vote(
                ReplicaKey(named.replica_id, bytes(named.replica_directory_id)),
                named.replica_epoch,
                OffsetAndEpoch(named.last_offset, named.last_offset_epoch),
                named.pre_vote,
                voter,
            )
        )
        return self._of_election(_VOTE, answer, version, vote_granted=answer.granted)

    async def begin_quorum_epoch(
        self, request: quorum.BeginQuorumEpochRequest, version: int
    ) -> quorum.BeginQuorumEpochResponse:
        """Another voter leads."""
        named = self._named(request)
        voter = ReplicaKey(request.voter_id, bytes(named.voter_directory_id))
        endpoints = _endpoints_of(request)
        answer, _ = await self._ask(
            messages.BeginQuorumEpoch(named.leader_id, named.leader_epoch, endpoints, voter)
        )
        return self._of_election(_BEGIN, answer, version)

    async def end_quorum_epoch(
        self, request: quorum.EndQuorumEpochRequest, version: int
    ) -> quorum.EndQuorumEpochResponse:
        """The leader leads no more."""
        named = self._named(request)
        successors = [
            ReplicaKey(each.candidate_id, bytes(each.candidate_directory_id))
            for each in named.preferred_candidates
        ] or [ReplicaKey(each) for each in named.preferred_successors]
        answer, _ = await self._ask(
            messages.EndQuorumEpoch(
                named.leader_id, named.leader_epoch, tuple(successors), _endpoints_of(request)
            )
        )
        return self._of_election(_END, answer, version)

    def _of_election(
        self, form: _Form[ResponseT], answer: Answer, version: int, **more: bool
    ) -> ResponseT:
        """The answer to Vote, BeginQuorumEpoch or EndQuorumEpoch."""
        response, topic, partition = form
        found = partition(
            error_code=answer.error,
            leader_id=answer.leader_id,
            leader_epoch=answer.epoch,
            **more,
        )
        return response(
            topics=[topic(topic_name=METADATA_TOPIC, partitions=[found])],
            node_endpoints=self._node_endpoints(answer, version),
        )

    # the voters

    async def add_raft_voter(
        self, request: quorum.AddRaftVoterRequest
    ) -> quorum.AddRaftVoterResponse:
        """Answers once the voter is one, or, where that is wanted, before that is committed."""
        self._check_cluster(request.cluster_id)
        key = ReplicaKey(request.voter_id, bytes(request.voter_directory_id))
        voter = VoterNode(key, self._listeners(request.listeners))
        answer, _ = await self._ask(messages.AddRaftVoter(voter, request.ack_when_committed))
        return quorum.AddRaftVoterResponse(error_code=answer.error, error_message=_words(answer))

    async def remove_raft_voter(
        self, request: quorum.RemoveRaftVoterRequest
    ) -> quorum.RemoveRaftVoterResponse:
        """Answers once those who are left have committed it."""
        self._check_cluster(request.cluster_id)
        key = ReplicaKey(request.voter_id, bytes(request.voter_directory_id))
        answer, _ = await self._ask(messages.RemoveRaftVoter(key))
        return quorum.RemoveRaftVoterResponse(error_code=answer.error, error_message=_words(answer))

    def _listeners(self, named: list[quorum.RaftVoterListener]) -> tuple[Endpoint, ...]:
        found = (Endpoint(each.name, each.host, each.port) for each in named)
        return in_order(found, self._log.quorum.listener)

    async def update_raft_voter(
        self, request: quorum.UpdateRaftVoterRequest
    ) -> quorum.UpdateRaftVoterResponse:
        """A voter tells its leader of itself."""
        if request.cluster_id in (None, self._controller.cluster_id):
            versions = request.k_raft_version_feature
            voter = VoterNode(
                ReplicaKey(request.voter_id, bytes(request.voter_directory_id)),
                self._listeners(request.listeners),
                versions.min_supported_version,
                versions.max_supported_version,
            )
            asked = messages.UpdateRaftVoter(request.current_leader_epoch, voter)
            answer, _ = await self._ask(asked)
        else:  # this refusal names the leader, too
            answer = self._log.raft.node.answer(ErrorCode.INCONSISTENT_CLUSTER_ID)
        leader = quorum.UpdateRaftVoterResponseCurrentLeader(
            leader_id=answer.leader_id, leader_epoch=answer.epoch
        )
        if answer.leader_address is not None:
            leader.host, leader.port = answer.leader_address
        return quorum.UpdateRaftVoterResponse(error_code=answer.error, current_leader=leader)

    def _named(self, request: Any) -> Any:
        """The one partition of an election's request."""
        self._check_cluster(request.cluster_id)
        topics = request.topics
        if len(topics) == 1 and topics[0].topic_name == METADATA_TOPIC:
            partitions = topics[0].partitions
            if len(partitions) == 1 and partitions[0].partition_index == 0:
                return partitions[0]
        raise _not_this_log()

    def _node_endpoints(
        self, answer: Answer, version: int
    ) -> list[quorum.FetchSnapshotResponseNodeEndpoint]:
        found = self._endpoints(answer) if version >= 1 else []
        return [
            quorum.FetchSnapshotResponseNodeEndpoint(node_id=node, host=host, port=port)
            for node, host, port in found
        ]

    # DescribeQuorum

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
        listeners = {
            node.id: node.endpoints for node in self._log.history.voters.nodes if node.endpoints
        } | {controller.node_id: tuple(controller.listeners)}
        return cluster_messages.DescribeQuorumResponse(
            topics=[
                cluster_messages.DescribeQuorumResponseTopicData(
                    topic_name=METADATA_TOPIC, partitions=[self._quorum(version)]
                )
            ],
            nodes=[
                cluster_messages.Node(
                    node_id=node,
                    listeners=[
                        cluster_messages.Listener(name=e.name, host=e.host, port=e.port)
                        for e in listeners[node]
                    ],
                )
                for node in sorted(listeners)
            ]
            if version >= 2
            else [],
        )

    def _quorum(self, version: int) -> cluster_messages.DescribeQuorumResponsePartitionData:
        """As the leader knows it; another node says that it does not lead."""
        runtime, core = self._controller.runtime, self._log.raft
        state = core.quorum.state
        if not isinstance(state, LeaderState):
            refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return cluster_messages.DescribeQuorumResponsePartitionData(
                error_code=refusal,
                error_message=refusal.sentence,
                leader_id=0,
                leader_epoch=0,
                high_watermark=0,
            )
        now_ms, wall_ms = runtime.now_ms(), runtime.wall_ms()
        voters, observers = state.described(now_ms)

        def described(seen: ReplicaState) -> cluster_messages.ReplicaState:
            if seen.key.id == self._controller.node_id:
                own = seen.key.directory_id
                return _state(version, seen.key.id, self._log.end_offset, wall_ms, wall_ms, own)
            fetch_ms, caught_up_ms = (
                -1 if at < 0 else round(wall_ms - (now_ms - at))
                for at in (seen.fetch_ms, seen.caught_up_ms)
            )
            key = seen.key
            return _state(
                version, key.id, seen.end_offset, fetch_ms, caught_up_ms, key.directory_id
            )

        by_id = sorted(observers, key=lambda seen: seen.key)
        return cluster_messages.DescribeQuorumResponsePartitionData(
            leader_id=state.leader_id,
            leader_epoch=state.epoch,
            high_watermark=core.node.known_high_watermark,
            current_voters=[described(each) for each in voters],
            observers=[
                described(each) for each in by_id if each.key.id != self._controller.node_id
            ],
        )

    # FetchSnapshot

    async def fetch_snapshot(
        self, request: quorum.FetchSnapshotRequest, version: int
    ) -> quorum.FetchSnapshotResponse:
        """A piece of a snapshot's bytes, not aligned to batches.

        BrokerError(INCONSISTENT_CLUSTER_ID); all other refusals are in the answer.
        """
        self._check_cluster(request.cluster_id)
        topics = []
        for topic in request.topics:
            answers = [
                await self._piece(topic.name, requested, request) for requested in topic.partitions
            ]
            topics.append(
                quorum.FetchSnapshotResponseTopicSnapshot(name=topic.name, partitions=answers)
            )
        leader = self._log.leader() if version >= 1 else Answer()
        return quorum.FetchSnapshotResponse(
            topics=topics, node_endpoints=self._node_endpoints(leader, version)
        )

    async def _piece(
        self,
        topic: str,
        requested: quorum.FetchSnapshotRequestPartitionSnapshot,
        request: quorum.FetchSnapshotRequest,
    ) -> _Piece:
        wanted = OffsetAndEpoch(requested.snapshot_id.end_offset, requested.snapshot_id.epoch)
        replica = ReplicaKey(request.replica_id, bytes(requested.replica_directory_id))
        answer = self._log.leader()
        if topic != METADATA_TOPIC or requested.partition != 0:
            answer = answer._replace(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            epoch, position = requested.current_leader_epoch, requested.position
            asked = messages.FetchSnapshot(replica, epoch, wanted, position, request.max_bytes)
            answer, _ = await self._ask(asked)
        found = answer.piece
        return quorum.FetchSnapshotResponsePartitionSnapshot(
            index=requested.partition,
            error_code=answer.error,
            snapshot_id=quorum.FetchSnapshotResponseSnapshotId(
                end_offset=wanted.offset, epoch=wanted.epoch
            ),
            current_leader=quorum.LeaderIdAndEpoch(
                leader_id=answer.leader_id, leader_epoch=answer.epoch
            ),
            size=0 if found is None else found.size,
            position=found.position if found is not None and found.size else 0,
            unaligned_records=b"" if found is None else found.content,
        )


def _words(answer: Answer) -> str | None:
    """Why it is refused."""
    if answer.error is ErrorCode.NONE:
        return None
    return answer.message or answer.error.sentence


def _not_this_log() -> BrokerError:
    return BrokerError(
        ErrorCode.INVALID_REQUEST, f"this listener serves {METADATA_TOPIC} and nothing else"
    )


def _endpoints_of(
    request: quorum.BeginQuorumEpochRequest | quorum.EndQuorumEpochRequest,
) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(each.name, each.host, each.port) for each in request.leader_endpoints)


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
