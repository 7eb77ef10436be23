"""The metadata quorum (KIP-595): Vote (52), BeginQuorumEpoch (53), EndQuorumEpoch (54),
FetchSnapshot (59), AddRaftVoter (80), RemoveRaftVoter (81), UpdateRaftVoter (82).

Vote: 1 directory ids and endpoints (KIP-853); 2 pre-votes (KIP-996). BeginQuorumEpoch and
EndQuorumEpoch: 1 flexible, directory ids and endpoints. FetchSnapshot: 1 endpoints.
AddRaftVoter: 1 answers before the voters are committed (KIP-1186).
"""

from typing import Any

from twisted_broker.wire.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    record_bytes,
    string,
    structure,
    uint16,
    uuid,
)


class FetchSnapshotResponseNodeEndpoint(Struct):
    node_id: int = int32("1+")
    host: str = string("1+")
    port: int = uint16("1+")


class QuorumEndpoint(Struct):
    name: str = string("1+")
    host: str = string("1+")
    port: int = uint16("1+")


class VoteRequestPartitionData(Struct):
    partition_index: int = int32("0+")
    replica_epoch: int = int32("0+")
    replica_id: int = int32("0+")
    replica_directory_id: bytes = uuid("1+", ignorable=True)
    voter_directory_id: bytes = uuid("1+", ignorable=True)
    last_offset_epoch: int = int32("0+")
    last_offset: int = int64("0+")
    pre_vote: bool = boolean("2+")


class VoteRequestTopicData(Struct):
    topic_name: str = string("0+")
    partitions: list[VoteRequestPartitionData] = array(VoteRequestPartitionData, "0+")


class VoteRequest(Request, api_key=52, versions="0-2", flexible="0+"):
    cluster_id: str | None = string("0+", default=None, nullable="0+")
    voter_id: int = int32("1+", default=-1, ignorable=True)
    topics: list[VoteRequestTopicData] = array(VoteRequestTopicData, "0+")


class VoteResponsePartitionData(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    vote_granted: bool = boolean("0+")


class VoteResponseTopicData(Struct):
    topic_name: str = string("0+")
    partitions: list[VoteResponsePartitionData] = array(VoteResponsePartitionData, "0+")


class VoteResponse(Response, api_key=52, versions="0-2", flexible="0+"):
    error_code: int = int16("0+")
    topics: list[VoteResponseTopicData] = array(VoteResponseTopicData, "0+")
    node_endpoints: list[FetchSnapshotResponseNodeEndpoint] = array(
        FetchSnapshotResponseNodeEndpoint, "1+", tag=0
    )


class BeginQuorumEpochRequestPartitionData(Struct):
    partition_index: int = int32("0+")
    voter_directory_id: bytes = uuid("1+", ignorable=True)
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")


class BeginQuorumEpochRequestTopicData(Struct):
    topic_name: str = string("0+")
    partitions: list[BeginQuorumEpochRequestPartitionData] = array(
        BeginQuorumEpochRequestPartitionData, "0+"
    )


class BeginQuorumEpochRequest(Request, api_key=53, versions="0-1", flexible="1+"):
    cluster_id: str | None = string("0+", default=None, nullable="0+")
    voter_id: int = int32("1+", default=-1, ignorable=True)
    topics: list[BeginQuorumEpochRequestTopicData] = array(BeginQuorumEpochRequestTopicData, "0+")
    leader_endpoints: list[QuorumEndpoint] = array(QuorumEndpoint, "1+", ignorable=True)


class BeginQuorumEpochResponsePartitionData(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")


class BeginQuorumEpochResponseTopicData(Struct):
    topic_name: str = string("0+")
    partitions: list[BeginQuorumEpochResponsePartitionData] = array(
        BeginQuorumEpochResponsePartitionData, "0+"
    )


class BeginQuorumEpochResponse(Response, api_key=53, versions="0-1", flexible="1+"):
    error_code: int = int16("0+")
    topics: list[BeginQuorumEpochResponseTopicData] = array(BeginQuorumEpochResponseTopicData, "0+")
    node_endpoints: list[FetchSnapshotResponseNodeEndpoint] = array(
        FetchSnapshotResponseNodeEndpoint, "1+", tag=0
    )


class EndQuorumEpochReplicaInfo(Struct):
    candidate_id: int = int32("1+")
    candidate_directory_id: bytes = uuid("1+")


class EndQuorumEpochRequestPartitionData(Struct):
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    preferred_successors: list[int] = array(int32, "0", ignorable=True)
    preferred_candidates: list[EndQuorumEpochReplicaInfo] = array(
        EndQuorumEpochReplicaInfo, "1+", ignorable=True
    )


class EndQuorumEpochRequestTopicData(Struct):
    topic_name: str = string("0+")
    partitions: list[EndQuorumEpochRequestPartitionData] = array(
        EndQuorumEpochRequestPartitionData, "0+"
    )


class EndQuorumEpochRequest(Request, api_key=54, versions="0-1", flexible="1+"):
    cluster_id: str | None = string("0+", default=None, nullable="0+")
    topics: list[EndQuorumEpochRequestTopicData] = array(EndQuorumEpochRequestTopicData, "0+")
    leader_endpoints: list[QuorumEndpoint] = array(QuorumEndpoint, "1+", ignorable=True)


class EndQuorumEpochResponsePartitionData(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")


class EndQuorumEpochResponseTopicData(Struct):
    topic_name: str = string("0+")
    partitions: list[EndQuorumEpochResponsePartitionData] = array(
        EndQuorumEpochResponsePartitionData, "0+"
    )


class EndQuorumEpochResponse(Response, api_key=54, versions="0-1", flexible="1+"):
    error_code: int = int16("0+")
    topics: list[EndQuorumEpochResponseTopicData] = array(EndQuorumEpochResponseTopicData, "0+")
    node_endpoints: list[FetchSnapshotResponseNodeEndpoint] = array(
        FetchSnapshotResponseNodeEndpoint, "1+", tag=0
    )


class FetchSnapshotRequestSnapshotId(Struct):
    end_offset: int = int64("0+")
    epoch: int = int32("0+")


class FetchSnapshotRequestPartitionSnapshot(Struct):
    partition: int = int32("0+")
    current_leader_epoch: int = int32("0+")
    snapshot_id: FetchSnapshotRequestSnapshotId = structure(FetchSnapshotRequestSnapshotId, "0+")
    position: int = int64("0+")
    replica_directory_id: bytes = uuid("1+", tag=0, ignorable=True)


class FetchSnapshotRequestTopicSnapshot(Struct):
    name: str = string("0+")
    partitions: list[FetchSnapshotRequestPartitionSnapshot] = array(
        FetchSnapshotRequestPartitionSnapshot, "0+"
    )


class FetchSnapshotRequest(Request, api_key=59, versions="0-1", flexible="0+"):
    cluster_id: str | None = string("0+", default=None, nullable="0+", tag=0)
    replica_id: int = int32("0+", default=-1)
    max_bytes: int = int32("0+", default=0x7FFFFFFF)
    topics: list[FetchSnapshotRequestTopicSnapshot] = array(FetchSnapshotRequestTopicSnapshot, "0+")


class FetchSnapshotResponseSnapshotId(Struct):
    end_offset: int = int64("0+")
    epoch: int = int32("0+")


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")


class FetchSnapshotResponsePartitionSnapshot(Struct):
    index: int = int32("0+")
    error_code: int = int16("0+")
    snapshot_id: FetchSnapshotResponseSnapshotId = structure(FetchSnapshotResponseSnapshotId, "0+")
    current_leader: LeaderIdAndEpoch = structure(LeaderIdAndEpoch, "0+", tag=0)
    size: int = int64("0+")
    position: int = int64("0+")
    unaligned_records: Any = record_bytes("0+")


class FetchSnapshotResponseTopicSnapshot(Struct):
    name: str = string("0+")
    partitions: list[FetchSnapshotResponsePartitionSnapshot] = array(
        FetchSnapshotResponsePartitionSnapshot, "0+"
    )


class FetchSnapshotResponse(Response, api_key=59, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32("0+", ignorable=True)
    error_code: int = int16("0+")
    topics: list[FetchSnapshotResponseTopicSnapshot] = array(
        FetchSnapshotResponseTopicSnapshot, "0+"
    )
    node_endpoints: list[FetchSnapshotResponseNodeEndpoint] = array(
        FetchSnapshotResponseNodeEndpoint, "1+", tag=0
    )


class KRaftVersionFeature(Struct):
    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class RaftVoterListener(Struct):
    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")


class AddRaftVoterRequest(Request, api_key=80, versions="0-1", flexible="0+"):
    cluster_id: str | None = string("0+", nullable="0+")
    timeout_ms: int = int32("0+")
    voter_id: int = int32("0+")
    voter_directory_id: bytes = uuid("0+")
    listeners: list[RaftVoterListener] = array(RaftVoterListener, "0+")
    ack_when_committed: bool = boolean("1+", default=True)


class AddRaftVoterResponse(Response, api_key=80, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", ignorable=True)


class RemoveRaftVoterRequest(Request, api_key=81, versions="0", flexible="0+"):
    cluster_id: str | None = string("0+", nullable="0+")
    voter_id: int = int32("0+")
    voter_directory_id: bytes = uuid("0+")


class RemoveRaftVoterResponse(Response, api_key=81, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", ignorable=True)


class UpdateRaftVoterRequest(Request, api_key=82, versions="0", flexible="0+"):
    cluster_id: str | None = string("0+", nullable="0+")
    current_leader_epoch: int = int32("0+")
    voter_id: int = int32("0+")
    voter_directory_id: bytes = uuid("0+")
    listeners: list[RaftVoterListener] = array(RaftVoterListener, "0+")
    k_raft_version_feature: KRaftVersionFeature = structure(KRaftVersionFeature, "0+")


class UpdateRaftVoterResponseCurrentLeader(Struct):
    leader_id: int = int32("0+", default=-1)
    leader_epoch: int = int32("0+", default=-1)
    host: str = string("0+")
    port: int = int32("0+")


class UpdateRaftVoterResponse(Response, api_key=82, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    current_leader: UpdateRaftVoterResponseCurrentLeader = structure(
        UpdateRaftVoterResponseCurrentLeader, "0+", tag=0
    )
