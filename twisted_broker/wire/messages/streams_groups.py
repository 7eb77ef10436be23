"""StreamsGroupHeartbeat and StreamsGroupDescribe (KIP-1071).

Nothing but version 0 exists. Structures that the records of streams groups have as well are theirs
(`group_records.py`).
"""

from twisted_broker.wire.messages.group_records import (
    ClientTag,
    Subtopology,
    TaskIds,
    TopicInfo,
    UserEndpoint,
)
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
)


class TaskOffset(Struct):
    subtopology_id: str = string("0+")
    partition: int = int32("0+")
    offset: int = int64("0+")


class StreamsGroupHeartbeatTopology(Struct):
    epoch: int = int32("0+")
    subtopologies: list[Subtopology] = array(Subtopology, "0+")


class StreamsGroupHeartbeatRequest(Request, api_key=88, versions="0", flexible="0+"):
    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    endpoint_information_epoch: int = int32("0+")
    instance_id: str | None = string("0+", default=None, nullable="0+")
    rack_id: str | None = string("0+", default=None, nullable="0+")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    topology: StreamsGroupHeartbeatTopology | None = structure(
        StreamsGroupHeartbeatTopology, "0+", default=None, nullable="0+"
    )
    active_tasks: list[TaskIds] | None = array(TaskIds, "0+", default=None, nullable="0+")
    standby_tasks: list[TaskIds] | None = array(TaskIds, "0+", default=None, nullable="0+")
    warmup_tasks: list[TaskIds] | None = array(TaskIds, "0+", default=None, nullable="0+")
    process_id: str | None = string("0+", default=None, nullable="0+")
    user_endpoint: UserEndpoint | None = structure(UserEndpoint, "0+", default=None, nullable="0+")
    client_tags: list[ClientTag] | None = array(ClientTag, "0+", default=None, nullable="0+")
    task_offsets: list[TaskOffset] | None = array(TaskOffset, "0+", default=None, nullable="0+")
    task_end_offsets: list[TaskOffset] | None = array(TaskOffset, "0+", default=None, nullable="0+")
    shutdown_application: bool = boolean("0+")


class HeartbeatStatus(Struct):
    status_code: int = int8("0+")
    status_detail: str = string("0+")


class StreamsGroupHeartbeatTopicPartition(Struct):
    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class EndpointToPartitions(Struct):
    user_endpoint: UserEndpoint = structure(UserEndpoint, "0+")
    active_partitions: list[StreamsGroupHeartbeatTopicPartition] = array(
        StreamsGroupHeartbeatTopicPartition, "0+"
    )
    standby_partitions: list[StreamsGroupHeartbeatTopicPartition] = array(
        StreamsGroupHeartbeatTopicPartition, "0+"
    )


class StreamsGroupHeartbeatResponse(Response, api_key=88, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", default=None, nullable="0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    acceptable_recovery_lag: int = int32("0+")
    task_offset_interval_ms: int = int32("0+")
    status: list[HeartbeatStatus] | None = array(HeartbeatStatus, "0+", nullable="0+")
    active_tasks: list[TaskIds] | None = array(TaskIds, "0+", default=None, nullable="0+")
    standby_tasks: list[TaskIds] | None = array(TaskIds, "0+", default=None, nullable="0+")
    warmup_tasks: list[TaskIds] | None = array(TaskIds, "0+", default=None, nullable="0+")
    endpoint_information_epoch: int = int32("0+")
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = array(
        EndpointToPartitions, "0+", default=None, nullable="0+"
    )


class StreamsGroupDescribeRequest(Request, api_key=89, versions="0", flexible="0+"):
    group_ids: list[str] = array(string, "0+")
    include_authorized_operations: bool = boolean("0+")


class StreamsGroupDescribeAssignment(Struct):
    active_tasks: list[TaskIds] = array(TaskIds, "0+")
    standby_tasks: list[TaskIds] = array(TaskIds, "0+")
    warmup_tasks: list[TaskIds] = array(TaskIds, "0+")


class StreamsGroupDescribeSubtopology(Struct):
    subtopology_id: str = string("0+")
    source_topics: list[str] = array(string, "0+")
    repartition_sink_topics: list[str] = array(string, "0+")
    state_changelog_topics: list[TopicInfo] = array(TopicInfo, "0+")
    repartition_source_topics: list[TopicInfo] = array(TopicInfo, "0+")


class StreamsGroupDescribeTopology(Struct):
    epoch: int = int32("0+")
    subtopologies: list[StreamsGroupDescribeSubtopology] | None = array(
        StreamsGroupDescribeSubtopology, "0+", default=None, nullable="0+"
    )


class StreamsGroupDescribeMember(Struct):
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    instance_id: str | None = string("0+", default=None, nullable="0+")
    rack_id: str | None = string("0+", default=None, nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    topology_epoch: int = int32("0+")
    process_id: str = string("0+")
    user_endpoint: UserEndpoint | None = structure(UserEndpoint, "0+", default=None, nullable="0+")
    client_tags: list[ClientTag] = array(ClientTag, "0+")
    task_offsets: list[TaskOffset] = array(TaskOffset, "0+")
    task_end_offsets: list[TaskOffset] = array(TaskOffset, "0+")
    assignment: StreamsGroupDescribeAssignment = structure(StreamsGroupDescribeAssignment, "0+")
    target_assignment: StreamsGroupDescribeAssignment = structure(
        StreamsGroupDescribeAssignment, "0+"
    )
    is_classic: bool = boolean("0+")


class DescribedStreamsGroup(Struct):
    error_code: int = int16("0+")
    error_message: str | None = string("0+", default=None, nullable="0+")
    group_id: str = string("0+")
    group_state: str = string("0+")
    group_epoch: int = int32("0+")
    assignment_epoch: int = int32("0+")
    topology: StreamsGroupDescribeTopology | None = structure(
        StreamsGroupDescribeTopology, "0+", default=None, nullable="0+"
    )
    members: list[StreamsGroupDescribeMember] = array(StreamsGroupDescribeMember, "0+")
    authorized_operations: int = int32("0+", default=-0x80000000)


class StreamsGroupDescribeResponse(Response, api_key=89, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    groups: list[DescribedStreamsGroup] = array(DescribedStreamsGroup, "0+")
