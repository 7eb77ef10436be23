"""AlterReplicaLogDirs (34), DescribeLogDirs (35), AssignReplicasToDirs (73, broker to controller,
KIP-858).

AlterReplicaLogDirs: 2 flexible. DescribeLogDirs: 2 flexible; 3 an error for the whole answer; 4
total and usable bytes (KIP-827); 5 cordoned directories (KIP-1066). Version 0 of both left Kafka
with 4.0.
"""

from twisted_broker.wire.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
    uuid,
)


class AlterReplicaLogDirTopic(Struct):
    name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class AlterReplicaLogDir(Struct):
    path: str = string("0+")
    topics: list[AlterReplicaLogDirTopic] = array(AlterReplicaLogDirTopic, "0+")


class AlterReplicaLogDirsRequest(Request, api_key=34, versions="1-2", flexible="2+"):
    dirs: list[AlterReplicaLogDir] = array(AlterReplicaLogDir, "0+")


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = string("0+")
    partitions: list[AlterReplicaLogDirPartitionResult] = array(
        AlterReplicaLogDirPartitionResult, "0+"
    )


class AlterReplicaLogDirsResponse(Response, api_key=34, versions="1-2", flexible="2+"):
    throttle_time_ms: int = int32("0+")
    results: list[AlterReplicaLogDirTopicResult] = array(AlterReplicaLogDirTopicResult, "0+")


class DescribableLogDirTopic(Struct):
    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class DescribeLogDirsRequest(Request, api_key=35, versions="0-5", flexible="2+"):
    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, "0+", nullable="0+")


class DescribeLogDirsPartition(Struct):
    partition_index: int = int32("0+")
    partition_size: int = int64("0+")
    offset_lag: int = int64("0+")
    is_future_key: bool = boolean("0+")


class DescribeLogDirsTopic(Struct):
    name: str = string("0+")
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition, "0+")


class DescribeLogDirsResult(Struct):
    error_code: int = int16("0+")
    log_dir: str = string("0+")
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic, "0+")
    total_bytes: int = int64("4+", default=-1, ignorable=True)
    usable_bytes: int = int64("4+", default=-1, ignorable=True)
    is_cordoned: bool = boolean("5+", ignorable=True)


class DescribeLogDirsResponse(Response, api_key=35, versions="0-5", flexible="2+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("3+", ignorable=True)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult, "0+")


class AssignReplicasToDirsRequestPartitionData(Struct):
    partition_index: int = int32("0+")


class AssignReplicasToDirsRequestTopicData(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[AssignReplicasToDirsRequestPartitionData] = array(
        AssignReplicasToDirsRequestPartitionData, "0+"
    )


class AssignReplicasToDirsRequestDirectoryData(Struct):
    id: bytes = uuid("0+")
    topics: list[AssignReplicasToDirsRequestTopicData] = array(
        AssignReplicasToDirsRequestTopicData, "0+"
    )


class AssignReplicasToDirsRequest(Request, api_key=73, versions="0", flexible="0+"):
    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    directories: list[AssignReplicasToDirsRequestDirectoryData] = array(
        AssignReplicasToDirsRequestDirectoryData, "0+"
    )


class AssignReplicasToDirsResponsePartitionData(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class AssignReplicasToDirsResponseTopicData(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[AssignReplicasToDirsResponsePartitionData] = array(
        AssignReplicasToDirsResponsePartitionData, "0+"
    )


class AssignReplicasToDirsResponseDirectoryData(Struct):
    id: bytes = uuid("0+")
    topics: list[AssignReplicasToDirsResponseTopicData] = array(
        AssignReplicasToDirsResponseTopicData, "0+"
    )


class AssignReplicasToDirsResponse(Response, api_key=73, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    directories: list[AssignReplicasToDirsResponseDirectoryData] = array(
        AssignReplicasToDirsResponseDirectoryData, "0+"
    )
