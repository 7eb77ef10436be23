"""Records of `__cluster_metadata`, by `record_type` (KIP-631).

1. On the log each is framed: frame version 1, record type and record version as unsigned varints,
   then the record.
2. All are flexible from version 0; what a change record leaves at its default did not change.
Versions above 0 follow the cluster's metadata.version: directories (3.7), eligible leader replicas
(KIP-966), cordoned directories (KIP-1066).
"""

from twisted_broker.wire.schema import (
    Record,
    Struct,
    array,
    binary,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)


class BrokerEndpoint(Struct):
    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")
    security_protocol: int = int16("0+")


class BrokerFeature(Struct):
    name: str = string("0+")
    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class RegisterBrokerRecord(Record, record_type=0, versions="0-4", flexible="0+"):
    broker_id: int = int32("0+")
    is_migrating_zk_broker: bool = boolean("2+")
    incarnation_id: bytes = uuid("0+")
    broker_epoch: int = int64("0+")
    end_points: list[BrokerEndpoint] = array(BrokerEndpoint, "0+")
    features: list[BrokerFeature] = array(BrokerFeature, "0+")
    rack: str | None = string("0+", nullable="0+")
    fenced: bool = boolean("0+", default=True)
    in_controlled_shutdown: bool = boolean("1+")
    log_dirs: list[bytes] = array(uuid, "3+", tag=0)
    cordoned_log_dirs: list[bytes] | None = array(uuid, "4+", default=None, nullable="4+", tag=1)


class UnregisterBrokerRecord(Record, record_type=1, versions="0", flexible="0+"):
    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+")


class TopicRecord(Record, record_type=2, versions="0", flexible="0+"):
    name: str = string("0+")
    topic_id: bytes = uuid("0+")


class PartitionRecord(Record, record_type=3, versions="0-2", flexible="0+"):
    partition_id: int = int32("0+", default=-1)
    topic_id: bytes = uuid("0+")
    replicas: list[int] = array(int32, "0+")
    isr: list[int] = array(int32, "0+")
    removing_replicas: list[int] = array(int32, "0+")
    adding_replicas: list[int] = array(int32, "0+")
    leader: int = int32("0+", default=-1)
    leader_recovery_state: int = int8("0+", tag=0)
    leader_epoch: int = int32("0+", default=-1)
    partition_epoch: int = int32("0+", default=-1)
    directories: list[bytes] = array(uuid, "1+")
    eligible_leader_replicas: list[int] | None = array(
        int32, "2+", default=None, nullable="2+", tag=1
    )
    last_known_elr: list[int] | None = array(int32, "2+", default=None, nullable="2+", tag=2)


class ConfigRecord(Record, record_type=4, versions="0", flexible="0+"):
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class PartitionChangeRecord(Record, record_type=5, versions="0-2", flexible="0+"):
    partition_id: int = int32("0+", default=-1)
    topic_id: bytes = uuid("0+")
    isr: list[int] | None = array(int32, "0+", default=None, nullable="0+", tag=0)
    leader: int = int32("0+", default=-2, tag=1)  # -2: no change, -1: no leader
    replicas: list[int] | None = array(int32, "0+", default=None, nullable="0+", tag=2)
    removing_replicas: list[int] | None = array(int32, "0+", default=None, nullable="0+", tag=3)
    adding_replicas: list[int] | None = array(int32, "0+", default=None, nullable="0+", tag=4)
    leader_recovery_state: int = int8("0+", default=-1, tag=5)
    directories: list[bytes] | None = array(uuid, "1+", default=None, nullable="1+", tag=8)
    eligible_leader_replicas: list[int] | None = array(
        int32, "2+", default=None, nullable="2+", tag=6
    )
    last_known_elr: list[int] | None = array(int32, "2+", default=None, nullable="2+", tag=7)


class FenceBrokerRecord(Record, record_type=7, versions="0", flexible="0+"):
    id: int = int32("0+")
    epoch: int = int64("0+")


class UnfenceBrokerRecord(Record, record_type=8, versions="0", flexible="0+"):
    id: int = int32("0+")
    epoch: int = int64("0+")


class RemoveTopicRecord(Record, record_type=9, versions="0", flexible="0+"):
    topic_id: bytes = uuid("0+")


class DelegationTokenRecord(Record, record_type=10, versions="0", flexible="0+"):
    owner: str = string("0+")
    requester: str = string("0+")
    renewers: list[str] = array(string, "0+")
    issue_timestamp: int = int64("0+")
    max_timestamp: int = int64("0+")
    expiration_timestamp: int = int64("0+")
    token_id: str = string("0+")


class UserScramCredentialRecord(Record, record_type=11, versions="0", flexible="0+"):
    name: str = string("0+")
    mechanism: int = int8("0+")
    salt: bytes = binary("0+")
    stored_key: bytes = binary("0+")
    server_key: bytes = binary("0+")
    iterations: int = int32("0+")


class FeatureLevelRecord(Record, record_type=12, versions="0", flexible="0+"):
    name: str = string("0+")
    feature_level: int = int16("0+")


class EntityData(Struct):
    entity_type: str = string("0+")
    entity_name: str | None = string("0+", nullable="0+")


class ClientQuotaRecord(Record, record_type=14, versions="0", flexible="0+"):
    entity: list[EntityData] = array(EntityData, "0+")
    key: str = string("0+")
    value: float = float64("0+")
    remove: bool = boolean("0+")


class ProducerIdsRecord(Record, record_type=15, versions="0", flexible="0+"):
    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    next_producer_id: int = int64("0+")


class BrokerRegistrationChangeRecord(Record, record_type=17, versions="0-3", flexible="0+"):
    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+")
    fenced: int = int8("0+", tag=0)  # -1: unfence, 0: no change, 1: fence
    in_controlled_shutdown: int = int8("1+", tag=1)  # 0: no change, 1: in controlled shutdown
    log_dirs: list[bytes] = array(uuid, "2+", tag=2)
    cordoned_log_dirs: list[bytes] | None = array(uuid, "3+", default=None, nullable="3+", tag=3)


class AccessControlEntryRecord(Record, record_type=18, versions="0", flexible="0+"):
    id: bytes = uuid("0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    pattern_type: int = int8("0+")
    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class RemoveAccessControlEntryRecord(Record, record_type=19, versions="0", flexible="0+"):
    id: bytes = uuid("0+")


class NoOpRecord(Record, record_type=20, versions="0", flexible="0+"): ...


class ZkMigrationRecord(Record, record_type=21, versions="0", flexible="0+"):
    zk_migration_state: int = int8("0+")


class RemoveUserScramCredentialRecord(Record, record_type=22, versions="0", flexible="0+"):
    name: str = string("0+")
    mechanism: int = int8("0+")


class BeginTransactionRecord(Record, record_type=23, versions="0", flexible="0+"):
    name: str | None = string("0+", default=None, nullable="0+", tag=0)


class EndTransactionRecord(Record, record_type=24, versions="0", flexible="0+"): ...


class AbortTransactionRecord(Record, record_type=25, versions="0", flexible="0+"):
    reason: str | None = string("0+", default=None, nullable="0+", tag=0)


class RemoveDelegationTokenRecord(Record, record_type=26, versions="0", flexible="0+"):
    token_id: str = string("0+")


class ControllerEndpoint(Struct):
    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")
    security_protocol: int = int16("0+")


class ControllerFeature(Struct):
    name: str = string("0+")
    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class RegisterControllerRecord(Record, record_type=27, versions="0", flexible="0+"):
    controller_id: int = int32("0+")
    incarnation_id: bytes = uuid("0+")
    zk_migration_ready: bool = boolean("0+")
    end_points: list[ControllerEndpoint] = array(ControllerEndpoint, "0+")
    features: list[ControllerFeature] = array(ControllerFeature, "0+")


class ClearElrRecord(Record, record_type=28, versions="0", flexible="0+"):
    topic_name: str = string("0+")
