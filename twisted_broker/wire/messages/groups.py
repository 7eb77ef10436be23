"""The classic group protocol: JoinGroup (11), SyncGroup (14), Heartbeat (12), LeaveGroup (13);
ListGroups (16), DescribeGroups (15), DeleteGroups (42).

JoinGroup: 1 rebalance timeout; 4 member id in two steps (KIP-394); 5 static members (KIP-345); 6
flexible; 7 protocol type (KIP-559); 8 reason (KIP-800); 9 skip assignment. SyncGroup: 3 static
members; 4 flexible; 5 protocol type. Heartbeat: 3 static members; 4 flexible. LeaveGroup: 3 several
members at once; 4 flexible; 5 reason. ListGroups: 3 flexible; 4 states; 5 types. DescribeGroups: 3
authorized operations; 4 static members; 5 flexible; 6 GROUP_ID_NOT_FOUND with a message.
"""

from twisted_broker.wire.schema import (
    Request,
    Response,
    Struct,
    array,
    binary,
    boolean,
    int8,
    int16,
    int32,
    string,
    structure,
    uuid,
)


class JoinGroupRequestProtocol(Struct):
    name: str = string("0+")
    metadata: bytes = binary("0+")


class JoinGroupRequest(Request, api_key=11, versions="0-9", flexible="6+"):
    group_id: str = string("0+")
    session_timeout_ms: int = int32("0+")
    rebalance_timeout_ms: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", default=None, nullable="5+")
    protocol_type: str = string("0+")
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol, "0+")
    reason: str | None = string("8+", default=None, nullable="8+", ignorable=True)


class JoinGroupResponseMember(Struct):
    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", default=None, nullable="5+", ignorable=True)
    metadata: bytes = binary("0+")


class JoinGroupResponse(Response, api_key=11, versions="0-9", flexible="6+"):
    throttle_time_ms: int = int32("2+", ignorable=True)
    error_code: int = int16("0+")
    generation_id: int = int32("0+", default=-1)
    protocol_type: str | None = string("7+", default=None, nullable="7+", ignorable=True)
    protocol_name: str | None = string("0+", nullable="7+")
    leader: str = string("0+")
    skip_assignment: bool = boolean("9+")
    member_id: str = string("0+")
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember, "0+")


class SyncGroupRequestAssignment(Struct):
    member_id: str = string("0+")
    assignment: bytes = binary("0+")


class SyncGroupRequest(Request, api_key=14, versions="0-5", flexible="4+"):
    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", default=None, nullable="3+")
    protocol_type: str | None = string("5+", default=None, nullable="5+", ignorable=True)
    protocol_name: str | None = string("5+", default=None, nullable="5+", ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment, "0+")


class SyncGroupResponse(Response, api_key=14, versions="0-5", flexible="4+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    protocol_type: str | None = string("5+", default=None, nullable="5+", ignorable=True)
    protocol_name: str | None = string("5+", default=None, nullable="5+", ignorable=True)
    assignment: bytes = binary("0+")


class HeartbeatRequest(Request, api_key=12, versions="0-4", flexible="4+"):
    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", default=None, nullable="3+")


class HeartbeatResponse(Response, api_key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")


class MemberIdentity(Struct):
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", default=None, nullable="3+")
    reason: str | None = string("5+", default=None, nullable="5+", ignorable=True)


class LeaveGroupRequest(Request, api_key=13, versions="0-5", flexible="4+"):
    group_id: str = string("0+")
    member_id: str = string("0-2")
    members: list[MemberIdentity] = array(MemberIdentity, "3+")


class MemberResponse(Struct):
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+")
    error_code: int = int16("3+")


class LeaveGroupResponse(Response, api_key=13, versions="0-5", flexible="4+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    members: list[MemberResponse] = array(MemberResponse, "3+")


class ListGroupsRequest(Request, api_key=16, versions="0-5", flexible="3+"):
    states_filter: list[str] = array(string, "4+")
    types_filter: list[str] = array(string, "5+")


class ListedGroup(Struct):
    group_id: str = string("0+")
    protocol_type: str = string("0+")
    group_state: str = string("4+", ignorable=True)
    group_type: str = string("5+", ignorable=True)


class ListGroupsResponse(Response, api_key=16, versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    groups: list[ListedGroup] = array(ListedGroup, "0+")


class DescribeGroupsRequest(Request, api_key=15, versions="0-6", flexible="5+"):
    groups: list[str] = array(string, "0+")
    include_authorized_operations: bool = boolean("3+")


class DescribedGroupMember(Struct):
    member_id: str = string("0+")
    group_instance_id: str | None = string("4+", default=None, nullable="4+", ignorable=True)
    client_id: str = string("0+")
    client_host: str = string("0+")
    member_metadata: bytes = binary("0+")
    member_assignment: bytes = binary("0+")


class DescribeGroupsResponseDescribedGroup(Struct):
    error_code: int = int16("0+")
    error_message: str | None = string("6+", default=None, nullable="6+")
    group_id: str = string("0+")
    group_state: str = string("0+")
    protocol_type: str = string("0+")
    protocol_data: str = string("0+")
    members: list[DescribedGroupMember] = array(DescribedGroupMember, "0+")
    authorized_operations: int = int32("3+", default=-0x80000000)


class DescribeGroupsResponse(Response, api_key=15, versions="0-6", flexible="5+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    groups: list[DescribeGroupsResponseDescribedGroup] = array(
        DescribeGroupsResponseDescribedGroup, "0+"
    )


class DeleteGroupsRequest(Request, api_key=42, versions="0-2", flexible="2+"):
    groups_names: list[str] = array(string, "0+")


class DeletableGroupResult(Struct):
    group_id: str = string("0+")
    error_code: int = int16("0+")


class DeleteGroupsResponse(Response, api_key=42, versions="0-2", flexible="2+"):
    throttle_time_ms: int = int32("0+")
    results: list[DeletableGroupResult] = array(DeletableGroupResult, "0+")


class ConsumerGroupDescribeResponseTopicPartitions(Struct):
    topic_id: bytes = uuid("0+")
    topic_name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class ConsumerGroupDescribeResponseAssignment(Struct):
    topic_partitions: list[ConsumerGroupDescribeResponseTopicPartitions] = array(
        ConsumerGroupDescribeResponseTopicPartitions, "0+"
    )


class ConsumerGroupHeartbeatTopicPartitions(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[int] = array(int32, "0+")


class ConsumerGroupHeartbeatRequest(Request, api_key=68, versions="0-1", flexible="0+"):
    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    instance_id: str | None = string("0+", default=None, nullable="0+")
    rack_id: str | None = string("0+", default=None, nullable="0+")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    subscribed_topic_names: list[str] | None = array(string, "0+", default=None, nullable="0+")
    subscribed_topic_regex: str | None = string("1+", default=None, nullable="1+")
    server_assignor: str | None = string("0+", default=None, nullable="0+")
    topic_partitions: list[ConsumerGroupHeartbeatTopicPartitions] | None = array(
        ConsumerGroupHeartbeatTopicPartitions, "0+", default=None, nullable="0+"
    )


class ConsumerGroupHeartbeatAssignment(Struct):
    topic_partitions: list[ConsumerGroupHeartbeatTopicPartitions] = array(
        ConsumerGroupHeartbeatTopicPartitions, "0+"
    )


class ConsumerGroupHeartbeatResponse(Response, api_key=68, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", default=None, nullable="0+")
    member_id: str | None = string("0+", default=None, nullable="0+")
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: ConsumerGroupHeartbeatAssignment | None = structure(
        ConsumerGroupHeartbeatAssignment, "0+", default=None, nullable="0+"
    )


class ConsumerGroupDescribeRequest(Request, api_key=69, versions="0-1", flexible="0+"):
    group_ids: list[str] = array(string, "0+")
    include_authorized_operations: bool = boolean("0+")


class Member(Struct):
    member_id: str = string("0+")
    instance_id: str | None = string("0+", default=None, nullable="0+")
    rack_id: str | None = string("0+", default=None, nullable="0+")
    member_epoch: int = int32("0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array(string, "0+")
    subscribed_topic_regex: str | None = string("0+", default=None, nullable="0+")
    assignment: ConsumerGroupDescribeResponseAssignment = structure(
        ConsumerGroupDescribeResponseAssignment, "0+"
    )
    target_assignment: ConsumerGroupDescribeResponseAssignment = structure(
        ConsumerGroupDescribeResponseAssignment, "0+"
    )
    member_type: int = int8("1+", default=-1, ignorable=True)


class DescribedConsumerGroup(Struct):
    error_code: int = int16("0+")
    error_message: str | None = string("0+", default=None, nullable="0+")
    group_id: str = string("0+")
    group_state: str = string("0+")
    group_epoch: int = int32("0+")
    assignment_epoch: int = int32("0+")
    assignor_name: str = string("0+")
    members: list[Member] = array(Member, "0+")
    authorized_operations: int = int32("0+", default=-0x80000000)


class ConsumerGroupDescribeResponse(Response, api_key=69, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    groups: list[DescribedConsumerGroup] = array(DescribedConsumerGroup, "0+")
