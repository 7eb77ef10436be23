"""The requests of a broker to the controller: BrokerRegistration (62), BrokerHeartbeat (63),
AlterPartition (56), Envelope (58, a client's request forwarded with its principal,
`DefaultPrincipalData`). All flexible from 0.

BrokerRegistration: 1 migrating from ZooKeeper; 2 log directories (KIP-858); 3 previous broker epoch
(KIP-966); 4 features from 0. BrokerHeartbeat: 1 offline directories; 2 cordoned directories
(KIP-1066). AlterPartition: 0 and 1 topic names (left Kafka with 4.0); 1 leader recovery state; 2
topic ids; 3 broker epochs of the ISR (KIP-903).
"""

from twisted_broker.wire.schema import (
    Record,
    Request,
    Response,
    Struct,
    array,
    binary,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)


class BrokerRegistrationRequestListener(Struct):
    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")
    security_protocol: int = int16("0+")


class BrokerRegistrationRequestFeature(Struct):
    name: str = string("0+")
    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class BrokerRegistrationRequest(Request, api_key=62, versions="0-4", flexible="0+"):
    broker_id: int = int32("0+")
    cluster_id: str = string("0+")
    incarnation_id: bytes = uuid("0+")
    listeners: list[BrokerRegistrationRequestListener] = array(
        BrokerRegistrationRequestListener, "0+"
    )
    features: list[BrokerRegistrationRequestFeature] = array(BrokerRegistrationRequestFeature, "0+")
    rack: str | None = string("0+", nullable="0+")
    is_migrating_zk_broker: bool = boolean("1+")
    log_dirs: list[bytes] = array(uuid, "2+", ignorable=True)
    previous_broker_epoch: int = int64("3+", default=-1, ignorable=True)


class BrokerRegistrationResponse(Response, api_key=62, versions="0-4", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    broker_epoch: int = int64("0+", default=-1)


class ControllerRegistrationRequest(Request, api_key=70, versions="0", flexible="0+"):
    controller_id: int = int32("0+")
    incarnation_id: bytes = uuid("0+")
    zk_migration_ready: bool = boolean("0+")
    listeners: list[BrokerRegistrationRequestListener] = array(
        BrokerRegistrationRequestListener, "0+"
    )
    features: list[BrokerRegistrationRequestFeature] = array(BrokerRegistrationRequestFeature, "0+")


class ControllerRegistrationResponse(Response, api_key=70, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class BrokerHeartbeatRequest(Request, api_key=63, versions="0-2", flexible="0+"):
    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    current_metadata_offset: int = int64("0+")
    want_fence: bool = boolean("0+")
    want_shut_down: bool = boolean("0+")
    offline_log_dirs: list[bytes] = array(uuid, "1+", tag=0)
    cordoned_log_dirs: list[bytes] | None = array(uuid, "2+", default=None, nullable="2+", tag=1)


class BrokerHeartbeatResponse(Response, api_key=63, versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    is_caught_up: bool = boolean("0+")
    is_fenced: bool = boolean("0+", default=True)
    should_shut_down: bool = boolean("0+")


class BrokerState(Struct):
    broker_id: int = int32("3+")
    broker_epoch: int = int64("3+", default=-1)


class AlterPartitionRequestPartitionData(Struct):
    partition_index: int = int32("0+")
    leader_epoch: int = int32("0+")
    new_isr: list[int] = array(int32, "0-2")
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, "3+")
    leader_recovery_state: int = int8("1+")  # 0: recovered, 1: recovering after an unclean election
    partition_epoch: int = int32("0+")


class AlterPartitionRequestTopicData(Struct):
    topic_name: str = string("0-1", ignorable=True)
    topic_id: bytes = uuid("2+", ignorable=True)
    partitions: list[AlterPartitionRequestPartitionData] = array(
        AlterPartitionRequestPartitionData, "0+"
    )


class AlterPartitionRequest(Request, api_key=56, versions="0-3", flexible="0+"):
    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    topics: list[AlterPartitionRequestTopicData] = array(AlterPartitionRequestTopicData, "0+")


class AlterPartitionResponsePartitionData(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    isr: list[int] = array(int32, "0+")
    leader_recovery_state: int = int8(
        "1+", ignorable=True
    )  # 0: recovered, 1: recovering after an unclean election
    partition_epoch: int = int32("0+")


class AlterPartitionResponseTopicData(Struct):
    topic_name: str = string("0-1", ignorable=True)
    topic_id: bytes = uuid("2+", ignorable=True)
    partitions: list[AlterPartitionResponsePartitionData] = array(
        AlterPartitionResponsePartitionData, "0+"
    )


class AlterPartitionResponse(Response, api_key=56, versions="0-3", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    topics: list[AlterPartitionResponseTopicData] = array(AlterPartitionResponseTopicData, "0+")


class EnvelopeRequest(Request, api_key=58, versions="0", flexible="0+"):
    request_data: bytes = binary("0+")
    request_principal: bytes | None = binary("0+", nullable="0+")
    client_host_address: bytes = binary("0+")


class EnvelopeResponse(Response, api_key=58, versions="0", flexible="0+"):
    response_data: bytes | None = binary("0+", default=None, nullable="0+")
    error_code: int = int16("0+")


class DefaultPrincipalData(Record, versions="0", flexible="0+"):
    type: str = string("0+")
    name: str = string("0+")
    token_authenticated: bool = boolean("0+")
