"""The metadata quorum (KIP-595): FetchSnapshot (59). 1: endpoints."""

from typing import Any

from twisted_broker.wire.schema import (
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    int64,
    record_bytes,
    string,
    structure,
    uint16,
    uuid,
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


class FetchSnapshotResponseNodeEndpoint(Struct):
    node_id: int = int32("1+")
    host: str = string("1+")
    port: int = uint16("1+")


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
