"""InitializeShareGroupState (83), ReadShareGroupState (84), WriteShareGroupState (85),
DeleteShareGroupState (86), ReadShareGroupStateSummary (87), sent by brokers to the share
coordinator (KIP-932).

WriteShareGroupState and ReadShareGroupStateSummary: 1 the count of finished offsets.
"""

from twisted_broker.wire.schema import (
    Request,
    Response,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    string,
    uuid,
)


class InitializeStatePartition(Struct):
    partition: int = int32("0+")
    state_epoch: int = int32("0+")
    start_offset: int = int64("0+")


class InitializeStateTopic(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[InitializeStatePartition] = array(InitializeStatePartition, "0+")


class InitializeShareGroupStateRequest(Request, api_key=83, versions="0", flexible="0+"):
    group_id: str = string("0+")
    topics: list[InitializeStateTopic] = array(InitializeStateTopic, "0+")


class StatePartitionResult(Struct):
    """Of those that only say whether it was done."""

    partition: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", default=None, nullable="0+")


class StateTopicResult(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[StatePartitionResult] = array(StatePartitionResult, "0+")


class InitializeShareGroupStateResponse(Response, api_key=83, versions="0", flexible="0+"):
    results: list[StateTopicResult] = array(StateTopicResult, "0+")


class ReadStatePartition(Struct):
    partition: int = int32("0+")
    leader_epoch: int = int32("0+")


class ReadStateTopic(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[ReadStatePartition] = array(ReadStatePartition, "0+")


class ReadShareGroupStateRequest(Request, api_key=84, versions="0", flexible="0+"):
    group_id: str = string("0+")
    topics: list[ReadStateTopic] = array(ReadStateTopic, "0+")


class ShareGroupStateBatch(Struct):
    first_offset: int = int64("0+")
    last_offset: int = int64("0+")
    delivery_state: int = int8("0+")
    delivery_count: int = int16("0+")


class ReadStatePartitionResult(Struct):
    partition: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", default=None, nullable="0+")
    state_epoch: int = int32("0+")
    start_offset: int = int64("0+")
    state_batches: list[ShareGroupStateBatch] = array(ShareGroupStateBatch, "0+")


class ReadStateTopicResult(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[ReadStatePartitionResult] = array(ReadStatePartitionResult, "0+")


class ReadShareGroupStateResponse(Response, api_key=84, versions="0", flexible="0+"):
    results: list[ReadStateTopicResult] = array(ReadStateTopicResult, "0+")


class WriteStatePartition(Struct):
    partition: int = int32("0+")
    state_epoch: int = int32("0+")
    leader_epoch: int = int32("0+")
    start_offset: int = int64("0+")
    delivery_complete_count: int = int32("1+", default=-1, ignorable=True)
    state_batches: list[ShareGroupStateBatch] = array(ShareGroupStateBatch, "0+")


class WriteStateTopic(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[WriteStatePartition] = array(WriteStatePartition, "0+")


class WriteShareGroupStateRequest(Request, api_key=85, versions="0-1", flexible="0+"):
    group_id: str = string("0+")
    topics: list[WriteStateTopic] = array(WriteStateTopic, "0+")


class WriteShareGroupStateResponse(Response, api_key=85, versions="0-1", flexible="0+"):
    results: list[StateTopicResult] = array(StateTopicResult, "0+")


class DeleteStatePartition(Struct):
    partition: int = int32("0+")


class DeleteStateTopic(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[DeleteStatePartition] = array(DeleteStatePartition, "0+")


class DeleteShareGroupStateRequest(Request, api_key=86, versions="0", flexible="0+"):
    group_id: str = string("0+")
    topics: list[DeleteStateTopic] = array(DeleteStateTopic, "0+")


class DeleteShareGroupStateResponse(Response, api_key=86, versions="0", flexible="0+"):
    results: list[StateTopicResult] = array(StateTopicResult, "0+")


class ReadShareGroupStateSummaryRequest(Request, api_key=87, versions="0-1", flexible="0+"):
    group_id: str = string("0+")
    topics: list[ReadStateTopic] = array(ReadStateTopic, "0+")


class ReadStateSummaryPartitionResult(Struct):
    partition: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", default=None, nullable="0+")
    state_epoch: int = int32("0+")
    leader_epoch: int = int32("0+")
    start_offset: int = int64("0+")
    delivery_complete_count: int = int32("1+", default=-1, ignorable=True)


class ReadStateSummaryTopicResult(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[ReadStateSummaryPartitionResult] = array(ReadStateSummaryPartitionResult, "0+")


class ReadShareGroupStateSummaryResponse(Response, api_key=87, versions="0-1", flexible="0+"):
    results: list[ReadStateSummaryTopicResult] = array(ReadStateSummaryTopicResult, "0+")
