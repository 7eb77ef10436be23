"""Messages between the controller of a ZooKeeper cluster and its brokers: LeaderAndIsr (4),
StopReplica (5), UpdateMetadata (6), ControlledShutdown (7). They left Kafka with 4.0.

Versions from inter-broker protocol 2.6 on, all flexible. LeaderAndIsr: 4; 5 topic ids and type
(KIP-516); 6 leader recovery state (KIP-704); 7 whether the controller is KRaft's (KIP-866).
StopReplica: 3 a leader epoch per partition (KIP-570; -2 in it: the topic is being deleted); 4
KIP-866. UpdateMetadata: 6; 7 topic ids; 8 KIP-866. ControlledShutdown: 3.
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
    uuid,
)


class LeaderAndIsrPartitionState(Struct):
    partition_index: int = int32("0+")
    controller_epoch: int = int32("0+")
    leader: int = int32("0+")
    leader_epoch: int = int32("0+")
    isr: list[int] = array(int32, "0+")
    partition_epoch: int = int32("0+")
    replicas: list[int] = array(int32, "0+")
    adding_replicas: list[int] = array(int32, "3+", ignorable=True)
    removing_replicas: list[int] = array(int32, "3+", ignorable=True)
    is_new: bool = boolean("1+", ignorable=True)
    leader_recovery_state: int = int8("6+")  # 0: recovered, 1: after an unclean election


class LeaderAndIsrTopicState(Struct):
    topic_name: str = string("2+")
    topic_id: bytes = uuid("5+", ignorable=True)
    partition_states: list[LeaderAndIsrPartitionState] = array(LeaderAndIsrPartitionState, "2+")


class LeaderAndIsrLiveLeader(Struct):
    broker_id: int = int32("0+")
    host_name: str = string("0+")
    port: int = int32("0+")


class LeaderAndIsrRequest(Request, api_key=4, versions="4-7", flexible="4+"):
    controller_id: int = int32("0+")
    is_k_raft_controller: bool = boolean("7+")
    controller_epoch: int = int32("0+")
    broker_epoch: int = int64("2+", default=-1, ignorable=True)
    type: int = int8("5+")  # 1: some partitions, 2: all of this broker's
    topic_states: list[LeaderAndIsrTopicState] = array(LeaderAndIsrTopicState, "2+")
    live_leaders: list[LeaderAndIsrLiveLeader] = array(LeaderAndIsrLiveLeader, "0+")


class LeaderAndIsrPartitionError(Struct):
    topic_name: str = string("0-4", ignorable=True)
    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class LeaderAndIsrTopicError(Struct):
    topic_id: bytes = uuid("5+")
    partition_errors: list[LeaderAndIsrPartitionError] = array(LeaderAndIsrPartitionError, "5+")


class LeaderAndIsrResponse(Response, api_key=4, versions="4-7", flexible="4+"):
    error_code: int = int16("0+")
    partition_errors: list[LeaderAndIsrPartitionError] = array(LeaderAndIsrPartitionError, "0-4")
    topics: list[LeaderAndIsrTopicError] = array(LeaderAndIsrTopicError, "5+")


class StopReplicaPartitionState(Struct):
    partition_index: int = int32("3+")
    leader_epoch: int = int32("3+", default=-1)
    delete_partition: bool = boolean("3+")


class StopReplicaTopicState(Struct):
    topic_name: str = string("3+")
    partition_states: list[StopReplicaPartitionState] = array(StopReplicaPartitionState, "3+")


class StopReplicaRequest(Request, api_key=5, versions="3-4", flexible="2+"):
    controller_id: int = int32("0+")
    is_k_raft_controller: bool = boolean("4+")
    controller_epoch: int = int32("0+")
    broker_epoch: int = int64("1+", default=-1, ignorable=True)
    topic_states: list[StopReplicaTopicState] = array(StopReplicaTopicState, "3+")


class StopReplicaPartitionError(Struct):
    topic_name: str = string("0+")
    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class StopReplicaResponse(Response, api_key=5, versions="3-4", flexible="2+"):
    error_code: int = int16("0+")
    partition_errors: list[StopReplicaPartitionError] = array(StopReplicaPartitionError, "0+")


class UpdateMetadataPartitionState(Struct):
    partition_index: int = int32("0+")
    controller_epoch: int = int32("0+")
    leader: int = int32("0+")
    leader_epoch: int = int32("0+")
    isr: list[int] = array(int32, "0+")
    zk_version: int = int32("0+")
    replicas: list[int] = array(int32, "0+")
    offline_replicas: list[int] = array(int32, "4+", ignorable=True)


class UpdateMetadataTopicState(Struct):
    topic_name: str = string("5+")
    topic_id: bytes = uuid("7+", ignorable=True)
    partition_states: list[UpdateMetadataPartitionState] = array(UpdateMetadataPartitionState, "5+")


class UpdateMetadataEndpoint(Struct):
    port: int = int32("1+")
    host: str = string("1+")
    listener: str = string("3+", ignorable=True)
    security_protocol: int = int16("1+")


class UpdateMetadataBroker(Struct):
    id: int = int32("0+")
    endpoints: list[UpdateMetadataEndpoint] = array(UpdateMetadataEndpoint, "1+", ignorable=True)
    rack: str | None = string("2+", nullable="0+", ignorable=True)


class UpdateMetadataRequest(Request, api_key=6, versions="6-8", flexible="6+"):
    controller_id: int = int32("0+")
    is_k_raft_controller: bool = boolean("8+")
    type: int = int8("8+", tag=0)  # 0: not said, 1: a part, 2: all of the cluster
    controller_epoch: int = int32("0+")
    broker_epoch: int = int64("5+", default=-1, ignorable=True)
    topic_states: list[UpdateMetadataTopicState] = array(UpdateMetadataTopicState, "5+")
    live_brokers: list[UpdateMetadataBroker] = array(UpdateMetadataBroker, "0+")


class UpdateMetadataResponse(Response, api_key=6, versions="6-8", flexible="6+"):
    error_code: int = int16("0+")


class ControlledShutdownRequest(Request, api_key=7, versions="3", flexible="3+"):
    broker_id: int = int32("0+")
    broker_epoch: int = int64("2+", default=-1, ignorable=True)


class RemainingPartition(Struct):
    topic_name: str = string("0+")
    partition_index: int = int32("0+")


class ControlledShutdownResponse(Response, api_key=7, versions="3", flexible="3+"):
    error_code: int = int16("0+")
    remaining_partitions: list[RemainingPartition] = array(RemainingPartition, "0+")
