"""AppendMirrored (30000): batches of another cluster, with the offsets that they have there. Ours:
Apache Kafka has no such API, and does not list it in ApiVersions.

Without records a partition is only described. `log_end_offset` of the request: where the mirror
believes the log to end; nothing is appended where it ends before that. `truncate_to`: the source
lost what it had from there on (-1: did not); the leader is to truncate its log under a new epoch,
and answers LEADER_NOT_AVAILABLE until it did, FENCED_LEADER_EPOCH when it did. `differs_at`: with
INVALID_RECORD, the first batch sent that is another than the one that is there.
"""

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
    uuid,
)


class MirroredPartition(Struct):
    partition: int = int32("0+")
    leader_epoch: int = int32("0+", default=-1)
    log_end_offset: int = int64("0+")
    source_log_start_offset: int = int64("0+", default=-1)
    truncate_to: int = int64("0+", default=-1)
    records: Any = record_bytes("0+", nullable="0+")


class MirroredTopic(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[MirroredPartition] = array(MirroredPartition, "0+")


class AppendMirroredRequest(Request, api_key=30_000, versions="0", flexible="0+"):
    timeout_ms: int = int32("0+")
    topics: list[MirroredTopic] = array(MirroredTopic, "0+")


class MirroredPartitionResponse(Struct):
    partition: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", default=None, nullable="0+")
    leader_epoch: int = int32("0+", default=-1)
    log_start_offset: int = int64("0+", default=-1)
    high_watermark: int = int64("0+", default=-1)
    log_end_offset: int = int64("0+", default=-1)
    differs_at: int = int64("0+", default=-1)


class MirroredTopicResponse(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[MirroredPartitionResponse] = array(MirroredPartitionResponse, "0+")


class AppendMirroredResponse(Response, api_key=30_000, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    topics: list[MirroredTopicResponse] = array(MirroredTopicResponse, "0+")
