"""DescribeCluster (60), DescribeQuorum (55), DescribeTopicPartitions (75), UnregisterBroker (64),
UpdateFeatures (57).

DescribeCluster: 1 controllers as well (KIP-919); 2 fenced brokers. DescribeQuorum: 1 fetch times; 2
endpoints and directory ids (KIP-853). UpdateFeatures: 1 kinds of change, validation alone; 2 no
results by feature. All of them flexible from 0.
"""

from twisted_broker.wire.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
    structure,
    uint16,
    uuid,
)


class DescribeClusterRequest(Request, api_key=60, versions="0-2", flexible="0+"):
    include_cluster_authorized_operations: bool = boolean("0+")
    endpoint_type: int = int8("1+", default=1)  # 1: brokers, 2: controllers
    include_fenced_brokers: bool = boolean("2+")


class DescribeClusterBroker(Struct):
    broker_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("0+", default=None, nullable="0+")
    is_fenced: bool = boolean("2+")


class DescribeClusterResponse(Response, api_key=60, versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", default=None, nullable="0+")
    endpoint_type: int = int8("1+", default=1)  # 1: brokers, 2: controllers
    cluster_id: str = string("0+")
    controller_id: int = int32("0+", default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker, "0+")
    cluster_authorized_operations: int = int32("0+", default=-0x80000000)


class DescribeQuorumRequestPartitionData(Struct):
    partition_index: int = int32("0+")


class DescribeQuorumRequestTopicData(Struct):
    topic_name: str = string("0+")
    partitions: list[DescribeQuorumRequestPartitionData] = array(
        DescribeQuorumRequestPartitionData, "0+"
    )


class DescribeQuorumRequest(Request, api_key=55, versions="0-2", flexible="0+"):
    topics: list[DescribeQuorumRequestTopicData] = array(DescribeQuorumRequestTopicData, "0+")


class ReplicaState(Struct):
    replica_id: int = int32("0+")
    replica_directory_id: bytes = uuid("2+")
    log_end_offset: int = int64("0+")
    last_fetch_timestamp: int = int64("1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = int64("1+", default=-1, ignorable=True)


class DescribeQuorumResponsePartitionData(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("2+", nullable="2+", ignorable=True)
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    high_watermark: int = int64("0+")
    current_voters: list[ReplicaState] = array(ReplicaState, "0+")
    observers: list[ReplicaState] = array(ReplicaState, "0+")


class DescribeQuorumResponseTopicData(Struct):
    topic_name: str = string("0+")
    partitions: list[DescribeQuorumResponsePartitionData] = array(
        DescribeQuorumResponsePartitionData, "0+"
    )


class Listener(Struct):
    name: str = string("2+")
    host: str = string("2+")
    port: int = uint16("2+")


class Node(Struct):
    node_id: int = int32("2+")
    listeners: list[Listener] = array(Listener, "2+")


class DescribeQuorumResponse(Response, api_key=55, versions="0-2", flexible="0+"):
    error_code: int = int16("0+")
    error_message: str | None = string("2+", nullable="2+", ignorable=True)
    topics: list[DescribeQuorumResponseTopicData] = array(DescribeQuorumResponseTopicData, "0+")
    nodes: list[Node] = array(Node, "2+")


class TopicRequest(Struct):
    name: str = string("0+")


class DescribeTopicPartitionsRequestCursor(Struct):
    topic_name: str = string("0+")
    partition_index: int = int32("0+")


class DescribeTopicPartitionsRequest(Request, api_key=75, versions="0", flexible="0+"):
    topics: list[TopicRequest] = array(TopicRequest, "0+")
    response_partition_limit: int = int32("0+", default=2000)
    cursor: DescribeTopicPartitionsRequestCursor | None = structure(
        DescribeTopicPartitionsRequestCursor, "0+", default=None, nullable="0+"
    )


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+", default=-1, ignorable=True)
    replica_nodes: list[int] = array(int32, "0+")
    isr_nodes: list[int] = array(int32, "0+")
    eligible_leader_replicas: list[int] | None = array(int32, "0+", default=None, nullable="0+")
    last_known_elr: list[int] | None = array(int32, "0+", default=None, nullable="0+")
    offline_replicas: list[int] = array(int32, "0+", ignorable=True)


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="0+")
    topic_id: bytes = uuid("0+", ignorable=True)
    is_internal: bool = boolean("0+", ignorable=True)
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition, "0+"
    )
    topic_authorized_operations: int = int32("0+", default=-0x80000000)


class DescribeTopicPartitionsResponseCursor(Struct):
    topic_name: str = string("0+")
    partition_index: int = int32("0+")


class DescribeTopicPartitionsResponse(Response, api_key=75, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+", ignorable=True)
    topics: list[DescribeTopicPartitionsResponseTopic] = array(
        DescribeTopicPartitionsResponseTopic, "0+"
    )
    next_cursor: DescribeTopicPartitionsResponseCursor | None = structure(
        DescribeTopicPartitionsResponseCursor, "0+", default=None, nullable="0+"
    )


class UnregisterBrokerRequest(Request, api_key=64, versions="0", flexible="0+"):
    broker_id: int = int32("0+")


class UnregisterBrokerResponse(Response, api_key=64, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class FeatureUpdateKey(Struct):
    feature: str = string("0+")
    max_version_level: int = int16("0+")
    allow_downgrade: bool = boolean("0")
    upgrade_type: int = int8("1+", default=1)


class UpdateFeaturesRequest(Request, api_key=57, versions="0-2", flexible="0+"):
    timeout_ms: int = int32("0+", default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey, "0+")
    validate_only: bool = boolean("1+")


class UpdatableFeatureResult(Struct):
    feature: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class UpdateFeaturesResponse(Response, api_key=57, versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, "0-1", ignorable=True)
