"""The ways a request can fail: Kafka's error codes, and the two exceptions that carry a failure
inside.

1. `BrokerError` is an expected refusal; it becomes a code in the answer. `WireError` is a broken
   peer; its connection closes.
2. Numbers, names and which codes a client may retry are those of Kafka 4.3.1
   (`org.apache.kafka.common.protocol.Errors`); sentences are ours.
Not here: which API answers what (api/).
"""

from enum import IntEnum


class ErrorCode(IntEnum):
    """Each has `.retriable` (the same request may succeed later) and `.sentence` (for people;
    sent where the protocol has a message field).
    """

    retriable: bool
    sentence: str

    def __new__(cls, number: int, retriable: int, sentence: str) -> "ErrorCode":
        member = int.__new__(cls, number)
        member._value_ = number
        member.retriable = bool(retriable)
        member.sentence = sentence
        return member

    UNKNOWN_SERVER_ERROR = -1, 0, "The server failed while it worked on this request."
    NONE = 0, 0, "No error."
    OFFSET_OUT_OF_RANGE = 1, 0, "The offset lies outside the range this replica holds."
    CORRUPT_MESSAGE = (
        2,
        1,
        "The records fail their checksum, have a bad size, or are otherwise damaged.",
    )
    UNKNOWN_TOPIC_OR_PARTITION = 3, 1, "This server does not host this topic partition."
    INVALID_FETCH_SIZE = 4, 0, "The fetch size is not valid."
    LEADER_NOT_AVAILABLE = 5, 1, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = (
        6,
        1,
        "This broker is not the leader, or not a replica, of this partition.",
    )
    REQUEST_TIMED_OUT = 7, 1, "The time allowed for the request is over."
    BROKER_NOT_AVAILABLE = 8, 0, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, 1, "The replica is not available on this broker."
    MESSAGE_TOO_LARGE = 10, 0, "The batch is larger than the topic allows."
    STALE_CONTROLLER_EPOCH = 11, 0, "The controller has been replaced by a newer one."
    OFFSET_METADATA_TOO_LARGE = 12, 0, "The text committed with the offset is too long."
    NETWORK_EXCEPTION = 13, 1, "The connection broke before an answer came."
    COORDINATOR_LOAD_IN_PROGRESS = 14, 1, "The coordinator is still loading its state."
    COORDINATOR_NOT_AVAILABLE = 15, 1, "The coordinator is not available."
    NOT_COORDINATOR = 16, 1, "This broker is not the coordinator asked for."
    INVALID_TOPIC_EXCEPTION = 17, 0, "The operation is not allowed on a topic of this name."
    RECORD_LIST_TOO_LARGE = 18, 0, "The records are larger than a segment of the log may be."
    NOT_ENOUGH_REPLICAS = (
        19,
        1,
        "Fewer replicas are in sync than the topic demands; nothing was written.",
    )
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        1,
        "The records were written, but fewer replicas were in sync than the topic demands.",
    )
    INVALID_REQUIRED_ACKS = 21, 0, "Acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, 0, "The generation is not the group's current one."
    INCONSISTENT_GROUP_PROTOCOL = (
        23,
        0,
        "The member's protocols fit none that the group's other members have.",
    )
    INVALID_GROUP_ID = 24, 0, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, 0, "The group does not know this member."
    INVALID_SESSION_TIMEOUT = 26, 0, "The session timeout is outside the range the broker allows."
    REBALANCE_IN_PROGRESS = 27, 0, "The group is rebalancing; join it again."
    INVALID_COMMIT_OFFSET_SIZE = 28, 0, "The offsets to commit do not fit into one batch."
    TOPIC_AUTHORIZATION_FAILED = 29, 0, "The principal has no permission for this topic."
    GROUP_AUTHORIZATION_FAILED = 30, 0, "The principal has no permission for this group."
    CLUSTER_AUTHORIZATION_FAILED = (
        31,
        0,
        "The principal has no permission for this operation on the cluster.",
    )
    INVALID_TIMESTAMP = 32, 0, "The timestamp of a record is outside the range the topic allows."
    UNSUPPORTED_SASL_MECHANISM = 33, 0, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, 0, "The request does not fit the state of the authentication."
    UNSUPPORTED_VERSION = 35, 0, "The broker does not serve this version of the API."
    TOPIC_ALREADY_EXISTS = 36, 0, "A topic of this name exists already."
    INVALID_PARTITIONS = 37, 0, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = (
        38,
        0,
        "The replication factor is below 1 or above the number of usable brokers.",
    )
    INVALID_REPLICA_ASSIGNMENT = 39, 0, "The assignment of replicas is not valid."
    INVALID_CONFIG = 40, 0, "The configuration is not valid."
    NOT_CONTROLLER = 41, 1, "This node is not the active controller."
    INVALID_REQUEST = 42, 0, "The request contradicts itself or the protocol."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = (
        43,
        0,
        "The format of the stored records does not support this.",
    )
    POLICY_VIOLATION = 44, 0, "A policy of the cluster forbids this."
    OUT_OF_ORDER_SEQUENCE_NUMBER = (
        45,
        0,
        "The sequence number does not follow the producer's last one.",
    )
    DUPLICATE_SEQUENCE_NUMBER = 46, 0, "The broker has this sequence number already."
    INVALID_PRODUCER_EPOCH = (
        47,
        0,
        "A newer producer of the same id has written with a higher epoch.",
    )
    INVALID_TXN_STATE = 48, 0, "The transaction is not in a state that allows this."
    INVALID_PRODUCER_ID_MAPPING = 49, 0, "The transactional id belongs to another producer id."
    INVALID_TRANSACTION_TIMEOUT = 50, 0, "The transaction timeout is longer than the broker allows."
    CONCURRENT_TRANSACTIONS = 51, 1, "The producer's previous transaction is not finished yet."
    TRANSACTION_COORDINATOR_FENCED = 52, 0, "A newer transaction coordinator has taken over."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = (
        53,
        0,
        "The principal has no permission for this transactional id.",
    )
    SECURITY_DISABLED = 54, 0, "The broker has no authorizer configured."
    OPERATION_NOT_ATTEMPTED = 55, 0, "Not attempted, because another part of the request failed."
    KAFKA_STORAGE_ERROR = 56, 1, "The disk holding this log failed."
    LOG_DIR_NOT_FOUND = 57, 0, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, 0, "Authentication failed."
    UNKNOWN_PRODUCER_ID = 59, 0, "The log holds nothing of this producer id any more."
    REASSIGNMENT_IN_PROGRESS = 60, 0, "The partition is being reassigned already."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, 0, "Delegation tokens are not enabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, 0, "The server knows no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = (
        63,
        0,
        "The principal is neither owner nor renewer of the token.",
    )
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        0,
        "Delegation tokens cannot be asked for over this connection.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = (
        65,
        0,
        "The principal has no permission for this delegation token.",
    )
    DELEGATION_TOKEN_EXPIRED = 66, 0, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, 0, "Principals of this type are not supported."
    NON_EMPTY_GROUP = 68, 0, "The group has members."
    GROUP_ID_NOT_FOUND = 69, 0, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, 1, "The broker has no fetch session of this id."
    INVALID_FETCH_SESSION_EPOCH = (
        71,
        1,
        "The epoch is not the one that comes next in the fetch session.",
    )
    LISTENER_NOT_FOUND = 72, 1, "The leader has no listener matching the one asked over."
    TOPIC_DELETION_DISABLED = 73, 0, "Deleting topics is not enabled."
    FENCED_LEADER_EPOCH = 74, 1, "The request names an older leader epoch than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, 1, "The request names a newer leader epoch than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = 76, 0, "The asker cannot read the compression of these records."
    STALE_BROKER_EPOCH = 77, 0, "The broker epoch is not the current one."
    OFFSET_NOT_AVAILABLE = 78, 1, "The new leader's high watermark has not caught up yet."
    MEMBER_ID_REQUIRED = 79, 0, "Join again with the member id given here."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, 1, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, 0, "The group has as many members as the broker allows."
    FENCED_INSTANCE_ID = 82, 0, "Another member has registered with the same group instance id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, 1, "No replica may be elected leader."
    ELECTION_NOT_NEEDED = 84, 1, "The partition's leader needs no election."
    NO_REASSIGNMENT_IN_PROGRESS = 85, 0, "The partition is not being reassigned."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, 0, "The group is subscribed to this topic."
    INVALID_RECORD = 87, 0, "A record was refused by the broker's validation."
    UNSTABLE_OFFSET_COMMIT = 88, 1, "Offsets of an unfinished transaction are in the way."
    THROTTLING_QUOTA_EXCEEDED = 89, 1, "The quota is used up; try again later."
    PRODUCER_FENCED = 90, 0, "A newer producer with the same transactional id has taken over."
    RESOURCE_NOT_FOUND = 91, 0, "There is no such resource."
    DUPLICATE_RESOURCE = 92, 0, "The request names a resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, 0, "The credential does not meet the demands."
    INCONSISTENT_VOTER_SET = 94, 0, "The sender or the receiver is not among the expected voters."
    INVALID_UPDATE_VERSION = 95, 0, "The version given for the update is not valid."
    FEATURE_UPDATE_FAILED = 96, 0, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, 0, "The forwarded principal cannot be read."
    SNAPSHOT_NOT_FOUND = 98, 0, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, 0, "The position is negative or beyond the end of the snapshot."
    UNKNOWN_TOPIC_ID = 100, 1, "This server hosts no topic of this id."
    DUPLICATE_BROKER_REGISTRATION = 101, 0, "A running broker has registered with this id."
    BROKER_ID_NOT_REGISTERED = 102, 0, "No broker has registered with this id."
    INCONSISTENT_TOPIC_ID = 103, 1, "The topic id in the log differs from the one in the request."
    INCONSISTENT_CLUSTER_ID = 104, 0, "The request belongs to another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, 0, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, 1, "The fetch session mixes topic ids and topic names."
    INELIGIBLE_REPLICA = 107, 0, "The replica must not be in the ISR now."
    NEW_LEADER_ELECTED = 108, 0, "The change of the partition made another replica its leader."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, 0, "The offset is in tiered storage only."
    FENCED_MEMBER_EPOCH = 110, 0, "The coordinator fenced this member epoch; rejoin with epoch 0."
    UNRELEASED_INSTANCE_ID = 111, 0, "The group instance id is still held by another member."
    UNSUPPORTED_ASSIGNOR = 112, 0, "The group cannot use this assignor."
    STALE_MEMBER_EPOCH = 113, 0, "The member epoch is behind; take the current one and try again."
    MISMATCHED_ENDPOINT_TYPE = (
        114,
        0,
        "The request reached an endpoint of another kind than it was meant for.",
    )
    UNSUPPORTED_ENDPOINT_TYPE = 115, 0, "Endpoints of this kind are not supported."
    UNKNOWN_CONTROLLER_ID = 116, 0, "No controller of this id is known."
    UNKNOWN_SUBSCRIPTION_ID = 117, 0, "The subscription id of these client metrics is out of date."
    TELEMETRY_TOO_LARGE = 118, 0, "The client metrics are larger than the broker accepts."
    INVALID_REGISTRATION = 119, 0, "The controller refuses this broker registration."
    TRANSACTION_ABORTABLE = (
        120,
        0,
        "The transaction must be aborted; the producer may go on after that.",
    )
    INVALID_RECORD_STATE = 121, 0, "The record is not in a state that allows this acknowledgement."
    SHARE_SESSION_NOT_FOUND = 122, 1, "The broker has no such share session."
    INVALID_SHARE_SESSION_EPOCH = (
        123,
        1,
        "The epoch is not the one that comes next in the share session.",
    )
    FENCED_STATE_EPOCH = 124, 0, "The share coordinator's state epoch is newer."
    INVALID_VOTER_KEY = 125, 0, "The voter's id or directory is not the receiver's."
    DUPLICATE_VOTER = 126, 0, "The voter is in the voter set already."
    VOTER_NOT_FOUND = 127, 0, "The voter is not in the voter set."
    INVALID_REGULAR_EXPRESSION = 128, 0, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = (
        129,
        0,
        "The client's metadata is of no use any more; start again from the bootstrap servers.",
    )
    STREAMS_INVALID_TOPOLOGY = 130, 0, "The topology of the streams application is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, 0, "The epoch of the streams topology is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, 0, "The epoch of the streams topology is out of date."
    SHARE_SESSION_LIMIT_REACHED = 133, 1, "The broker holds as many share sessions as it allows."


def error_of(code: int) -> ErrorCode:
    """The error with this number; UNKNOWN_SERVER_ERROR for one that a newer peer made up."""
    found = ErrorCode._value2member_map_.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert isinstance(found, ErrorCode)
    return found


class BrokerError(Exception):
    """An expected refusal: `code` goes into the answer, `message` (the code's sentence unless
    given) where the protocol has a place for it.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = code.sentence if message is None else message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class WireError(Exception):
    """What a peer sent is not Kafka's protocol: its connection closes."""


class ManyElements(WireError):
    """Not an error of the peer's: a request of more elements than are read at a stroke."""
