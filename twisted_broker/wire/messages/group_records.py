"""Records of `__consumer_offsets`.

1. A key is its `record_type` as a 16-bit number and then the key at version 0; a value is its
   version as a 16-bit number and then the value.
2. Types 0-2 belong to classic groups and to offsets of all groups, 3-8 and 16 to consumer groups
   (KIP-848), 10-15 to share groups (KIP-932), 17 and 19-23 to streams groups (KIP-1071).
OffsetCommitValue: 1 expiry, only there; 2 without; 3 leader epochs; 4 flexible, topic ids.
GroupMetadataValue: 1 rebalance timeout; 2 time of the state; 3 static members; 4 flexible.
"""

from twisted_broker.wire.schema import (
    Record,
    Struct,
    array,
    binary,
    int8,
    int16,
    int32,
    int64,
    string,
    structure,
    uint16,
    uuid,
)


class OffsetCommitKey(Record, record_type=1, versions="0"):
    group: str = string("0")
    topic: str = string("0")
    partition: int = int32("0")


class OffsetCommitValue(Record, record_type=1, versions="0-4", flexible="4+"):
    offset: int = int64("0+")
    leader_epoch: int = int32("3+", default=-1, ignorable=True)
    metadata: str = string("0+")
    commit_timestamp: int = int64("0+")
    expire_timestamp: int = int64("1", default=-1, ignorable=True)
    topic_id: bytes = uuid("4+", tag=0, ignorable=True)


class GroupMetadataKey(Record, record_type=2, versions="0"):
    group: str = string("0")


class MemberMetadata(Struct):
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", default=None, nullable="3+", ignorable=True)
    client_id: str = string("0+")
    client_host: str = string("0+")
    rebalance_timeout: int = int32("1+", default=-1, ignorable=True)
    session_timeout: int = int32("0+")
    subscription: bytes = binary("0+")
    assignment: bytes = binary("0+")


class GroupMetadataValue(Record, record_type=2, versions="0-4", flexible="4+"):
    protocol_type: str = string("0+")
    generation: int = int32("0+")
    protocol: str | None = string("0+", nullable="0+")
    leader: str | None = string("0+", nullable="0+")
    current_state_timestamp: int = int64("2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = array(MemberMetadata, "0+")


class ConsumerGroupMetadataKey(Record, record_type=3, versions="0"):
    group_id: str = string("0")


class ConsumerGroupMetadataValue(Record, record_type=3, versions="0", flexible="0+"):
    epoch: int = int32("0+")
    metadata_hash: int = int64("0+", tag=0)


class ConsumerGroupPartitionMetadataKey(Record, record_type=4, versions="0"):
    group_id: str = string("0")


class PartitionMetadata(Struct):
    partition: int = int32("0+")
    racks: list[str] = array(string, "0+")


class TopicMetadata(Struct):
    topic_id: bytes = uuid("0+")
    topic_name: str = string("0+")
    num_partitions: int = int32("0+")
    partition_metadata: list[PartitionMetadata] = array(PartitionMetadata, "0+")


class ConsumerGroupPartitionMetadataValue(Record, record_type=4, versions="0", flexible="0+"):
    topics: list[TopicMetadata] = array(TopicMetadata, "0+")


class ConsumerGroupMemberMetadataKey(Record, record_type=5, versions="0"):
    group_id: str = string("0")
    member_id: str = string("0")


class ClassicProtocol(Struct):
    name: str = string("0+")
    metadata: bytes = binary("0+")


class ClassicMemberMetadata(Struct):
    session_timeout_ms: int = int32("0+")
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol, "0+")


class ConsumerGroupMemberMetadataValue(Record, record_type=5, versions="0", flexible="0+"):
    instance_id: str | None = string("0+", nullable="0+")
    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array(string, "0+")
    subscribed_topic_regex: str | None = string("0+", nullable="0+")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    server_assignor: str | None = string("0+", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = structure(
        ClassicMemberMetadata, "0+", nullable="0+", tag=0
    )


class ConsumerGroupTargetAssignmentMetadataKey(Record, record_type=6, versions="0"):
    group_id: str = string("0")


class ConsumerGroupTargetAssignmentMetadataValue(
    Record, record_type=6, versions="0", flexible="0+"
):
    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", tag=0, ignorable=True)


class ConsumerGroupTargetAssignmentMemberKey(Record, record_type=7, versions="0"):
    group_id: str = string("0")
    member_id: str = string("0")


class TopicPartition(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[int] = array(int32, "0+")


class ConsumerGroupTargetAssignmentMemberValue(Record, record_type=7, versions="0", flexible="0+"):
    topic_partitions: list[TopicPartition] = array(TopicPartition, "0+")


class ConsumerGroupCurrentMemberAssignmentKey(Record, record_type=8, versions="0"):
    group_id: str = string("0")
    member_id: str = string("0")


class TopicPartitions(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[int] = array(int32, "0+")
    assignment_epochs: list[int] | None = array(int32, "0+", nullable="0+", tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Record, record_type=8, versions="0", flexible="0+"):
    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions, "0+")


class ConsumerGroupRegularExpressionKey(Record, record_type=16, versions="0"):
    group_id: str = string("0")
    regular_expression: str = string("0")


class ConsumerGroupRegularExpressionValue(Record, record_type=16, versions="0", flexible="0+"):
    topics: list[str] = array(string, "0+")
    version: int = int64("0+")
    timestamp: int = int64("0+")


class ShareGroupMemberMetadataKey(Record, record_type=10, versions="0"):
    group_id: str = string("0")
    member_id: str = string("0")


class ShareGroupMemberMetadataValue(Record, record_type=10, versions="0", flexible="0+"):
    rack_id: str | None = string("0+", default=None, nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array(string, "0+")


class ShareGroupMetadataKey(Record, record_type=11, versions="0"):
    group_id: str = string("0")


class ShareGroupMetadataValue(Record, record_type=11, versions="0", flexible="0+"):
    epoch: int = int32("0+")
    metadata_hash: int = int64("0+")


class ShareGroupTargetAssignmentMetadataKey(Record, record_type=12, versions="0"):
    group_id: str = string("0")


class ShareGroupTargetAssignmentMetadataValue(Record, record_type=12, versions="0", flexible="0+"):
    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", tag=0)


class ShareGroupTargetAssignmentMemberKey(Record, record_type=13, versions="0"):
    group_id: str = string("0")
    member_id: str = string("0")


class ShareTopicPartitions(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[int] = array(int32, "0+")


class ShareGroupTargetAssignmentMemberValue(Record, record_type=13, versions="0", flexible="0+"):
    topic_partitions: list[ShareTopicPartitions] = array(ShareTopicPartitions, "0+")


class ShareGroupCurrentMemberAssignmentKey(Record, record_type=14, versions="0"):
    group_id: str = string("0")
    member_id: str = string("0")


class ShareGroupCurrentMemberAssignmentValue(Record, record_type=14, versions="0", flexible="0+"):
    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: list[ShareTopicPartitions] = array(ShareTopicPartitions, "0+")


class ShareGroupStatePartitionMetadataKey(Record, record_type=15, versions="0"):
    group_id: str = string("0")


class ShareTopicPartitionsInfo(Struct):
    topic_id: bytes = uuid("0+")
    topic_name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class ShareTopicInfo(Struct):
    topic_id: bytes = uuid("0+")
    topic_name: str = string("0+")


class ShareGroupStatePartitionMetadataValue(Record, record_type=15, versions="0", flexible="0+"):
    initializing_topics: list[ShareTopicPartitionsInfo] = array(ShareTopicPartitionsInfo, "0+")
    initialized_topics: list[ShareTopicPartitionsInfo] = array(ShareTopicPartitionsInfo, "0+")
    deleting_topics: list[ShareTopicInfo] = array(ShareTopicInfo, "0+")


class LastAssignmentConfig(Struct):
    key: str = string("0+")
    value: str = string("0+")


class StreamsGroupMetadataKey(Record, record_type=17, versions="0"):
    group_id: str = string("0")


class StreamsGroupMetadataValue(Record, record_type=17, versions="0", flexible="0+"):
    epoch: int = int32("0+")
    metadata_hash: int = int64("0+")
    validated_topology_epoch: int = int32("0+", tag=0, default=-1)
    last_assignment_configs: list[LastAssignmentConfig] | None = array(
        LastAssignmentConfig, "0+", tag=1, default=None, nullable="0+"
    )


class StreamsGroupMemberMetadataKey(Record, record_type=19, versions="0"):
    group_id: str = string("0")
    member_id: str = string("0")


class UserEndpoint(Struct):
    host: str = string("0+")
    port: int = uint16("0+")


class ClientTag(Struct):
    key: str = string("0+")
    value: str = string("0+")


class StreamsGroupMemberMetadataValue(Record, record_type=19, versions="0", flexible="0+"):
    instance_id: str | None = string("0+", nullable="0+")
    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    topology_epoch: int = int32("0+")
    process_id: str = string("0+")
    user_endpoint: UserEndpoint | None = structure(UserEndpoint, "0+", default=None, nullable="0+")
    client_tags: list[ClientTag] = array(ClientTag, "0+")


class StreamsGroupTargetAssignmentMetadataKey(Record, record_type=20, versions="0"):
    group_id: str = string("0")


class StreamsGroupTargetAssignmentMetadataValue(
    Record, record_type=20, versions="0", flexible="0+"
):
    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", tag=0, ignorable=True)


class StreamsGroupTargetAssignmentMemberKey(Record, record_type=21, versions="0"):
    group_id: str = string("0")
    member_id: str = string("0")


class TaskIds(Struct):
    subtopology_id: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class StreamsGroupTargetAssignmentMemberValue(Record, record_type=21, versions="0", flexible="0+"):
    active_tasks: list[TaskIds] = array(TaskIds, "0+")
    standby_tasks: list[TaskIds] = array(TaskIds, "0+")
    warmup_tasks: list[TaskIds] = array(TaskIds, "0+")


class StreamsGroupCurrentMemberAssignmentKey(Record, record_type=22, versions="0"):
    group_id: str = string("0")
    member_id: str = string("0")


class TaskIdsWithEpochs(Struct):
    subtopology_id: str = string("0+")
    partitions: list[int] = array(int32, "0+")
    assignment_epochs: list[int] | None = array(int32, "0+", tag=0, default=None, nullable="0+")


class StreamsGroupCurrentMemberAssignmentValue(Record, record_type=22, versions="0", flexible="0+"):
    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    active_tasks: list[TaskIdsWithEpochs] = array(TaskIdsWithEpochs, "0+")
    standby_tasks: list[TaskIdsWithEpochs] = array(TaskIdsWithEpochs, "0+")
    warmup_tasks: list[TaskIdsWithEpochs] = array(TaskIdsWithEpochs, "0+")
    active_tasks_pending_revocation: list[TaskIdsWithEpochs] = array(TaskIdsWithEpochs, "0+")
    standby_tasks_pending_revocation: list[TaskIdsWithEpochs] = array(TaskIdsWithEpochs, "0+")
    warmup_tasks_pending_revocation: list[TaskIdsWithEpochs] = array(TaskIdsWithEpochs, "0+")


class StreamsGroupTopologyKey(Record, record_type=23, versions="0"):
    group_id: str = string("0")


class TopicConfig(Struct):
    key: str = string("0+")
    value: str = string("0+")


class TopicInfo(Struct):
    name: str = string("0+")
    partitions: int = int32("0+")
    replication_factor: int = int16("0+")
    topic_configs: list[TopicConfig] = array(TopicConfig, "0+")


class CopartitionGroup(Struct):
    source_topics: list[int] = array(int16, "0+")
    source_topic_regex: list[int] = array(int16, "0+")
    repartition_source_topics: list[int] = array(int16, "0+")


class Subtopology(Struct):
    subtopology_id: str = string("0+")
    source_topics: list[str] = array(string, "0+")
    source_topic_regex: list[str] = array(string, "0+")
    state_changelog_topics: list[TopicInfo] = array(TopicInfo, "0+")
    repartition_sink_topics: list[str] = array(string, "0+")
    repartition_source_topics: list[TopicInfo] = array(TopicInfo, "0+")
    copartition_groups: list[CopartitionGroup] = array(CopartitionGroup, "0+")


class StreamsGroupTopologyValue(Record, record_type=23, versions="0", flexible="0+"):
    epoch: int = int32("0+")
    subtopologies: list[Subtopology] = array(Subtopology, "0+")
