"""ShareFetch (78) and ShareAcknowledge (79): what a share consumer asks of a partition's leader
(KIP-932).

Versions: 1 the first that counts; 2 renewing (KIP-1222) and the acquire mode (KIP-1206). 0 left
Kafka with 4.1.
"""

from typing import Any

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
    record_bytes,
    string,
    structure,
    uuid,
)


class AcknowledgementBatch(Struct):
    first_offset: int = int64("0+")
    last_offset: int = int64("0+")
    acknowledge_types: list[int] = array(int8, "0+")


class ShareFetchPartition(Struct):
    partition_index: int = int32("0+")
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch, "0+")


class ShareFetchTopic(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[ShareFetchPartition] = array(ShareFetchPartition, "0+")


class ShareForgottenTopic(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[int] = array(int32, "0+")


class ShareFetchRequest(Request, api_key=78, versions="1-2", flexible="0+"):
    group_id: str | None = string("0+", default=None, nullable="0+")
    member_id: str | None = string("0+", default="", nullable="0+")
    share_session_epoch: int = int32("0+")
    max_wait_ms: int = int32("0+")
    min_bytes: int = int32("0+")
    max_bytes: int = int32("0+", default=0x7FFFFFFF)
    max_records: int = int32("1+")
    batch_size: int = int32("1+")
    share_acquire_mode: int = int8("2+")  # 0 whole batches, 1 no more records than wanted
    is_renew_ack: bool = boolean("2+")
    topics: list[ShareFetchTopic] = array(ShareFetchTopic, "0+")
    forgotten_topics_data: list[ShareForgottenTopic] = array(ShareForgottenTopic, "0+")


class ShareLeaderIdAndEpoch(Struct):
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")


class AcquiredRecordsRange(Struct):
    first_offset: int = int64("0+")
    last_offset: int = int64("0+")
    delivery_count: int = int16("0+")


class SharePartitionData(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", default=None, nullable="0+")
    acknowledge_error_code: int = int16("0+")
    acknowledge_error_message: str | None = string("0+", default=None, nullable="0+")
    current_leader: ShareLeaderIdAndEpoch = structure(ShareLeaderIdAndEpoch, "0+")
    records: Any = record_bytes("0+")
    acquired_records: list[AcquiredRecordsRange] = array(AcquiredRecordsRange, "0+")


class ShareFetchTopicResponse(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[SharePartitionData] = array(SharePartitionData, "0+")


class ShareNodeEndpoint(Struct):
    node_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("0+", default=None, nullable="0+")


class ShareFetchResponse(Response, api_key=78, versions="1-2", flexible="0+"):
    throttle_time_ms: int = int32("0+", ignorable=True)
    error_code: int = int16("0+", ignorable=True)
    error_message: str | None = string("0+", default=None, nullable="0+")
    acquisition_lock_timeout_ms: int = int32("1+")
    responses: list[ShareFetchTopicResponse] = array(ShareFetchTopicResponse, "0+")
    node_endpoints: list[ShareNodeEndpoint] = array(ShareNodeEndpoint, "0+")


class ShareAcknowledgeRequest(Request, api_key=79, versions="1-2", flexible="0+"):
    group_id: str | None = string("0+", default=None, nullable="0+")
    member_id: str | None = string("0+", default="", nullable="0+")
    share_session_epoch: int = int32("0+")
    is_renew_ack: bool = boolean("2+")
    topics: list[ShareFetchTopic] = array(ShareFetchTopic, "0+")


class ShareAcknowledgePartition(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", default=None, nullable="0+")
    current_leader: ShareLeaderIdAndEpoch = structure(ShareLeaderIdAndEpoch, "0+")


class ShareAcknowledgeTopicResponse(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[ShareAcknowledgePartition] = array(ShareAcknowledgePartition, "0+")


class ShareAcknowledgeResponse(Response, api_key=79, versions="1-2", flexible="0+"):
    throttle_time_ms: int = int32("0+", ignorable=True)
    error_code: int = int16("0+", ignorable=True)
    error_message: str | None = string("0+", default=None, nullable="0+")
    acquisition_lock_timeout_ms: int = int32("2+", ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = array(ShareAcknowledgeTopicResponse, "0+")
    node_endpoints: list[ShareNodeEndpoint] = array(ShareNodeEndpoint, "0+")
