"""What may differ besides when a client is asked that may do little (`permissions.py`)."""

from __future__ import annotations

from tests.compare.allowed import Allowed
from tests.compare.run import ON_CONTROLLER

BEFORE_THE_CONTROLLER = (
    "Kafka's own constructors refuse ANY and MATCH in an ACL, with an error of the server; ours "
    "answers as its controller would"
)
VALUES_LATER = (
    "Kafka's broker looks at the values before its controller asks for the permission; ours asks "
    "first"
)
UNREAD = "Kafka reads a batch's header before it asks for the permission; ours asks first"
MIRRORED = "Kafka names what was requested besides the request's own error; ours has that alone"
EACH_TIME = "what is named twice is refused once by one of the two, and each time by the other"
UNKNOWN_TO_KAFKA = "Kafka's broker does not know its authorizer's own settings, and hides them"
NO_CLIENTS = "a replica id that no client may use is refused before the permission"
EMPTY_USERS = "Kafka names users without names besides the error, and fails on all users"
TIMED_OUT = "a timeout of 0 is over before Kafka asks for the permission"
_WRONG_VALUES = ("no value", "named twice", "broker, *", "loggers", "type *", "resource twice")
_TWICE = "named twice"
ALLOWED_HERE = (
    Allowed(
        "no records, no list of aborted transactions",
        "Fetch",
        "4-18",
        "*",
        "responses.*.aborted_transactions",
        "(a list)",
        "None",
    ),
    *(
        Allowed(MIRRORED, f"AlterClientQuotas{where}", "0-1", "*", "entries.*", "{*", "(absent)")
        for where in ("", ON_CONTROLLER)
    ),
    Allowed(
        "Kafka has no sentence for it",
        "DescribeClientQuotas",
        "0-1",
        "*",
        "error_message",
        "None",
        "(a sentence)",
    ),
    *(
        Allowed(UNKNOWN_TO_KAFKA, "DescribeConfigs", "1-4", "the broker*", path, kafka, ours)
        for path, kafka, ours in (
            ("results.4/*.config_type", "0", "1"),
            ("results.4/*.is_sensitive", "True", "False"),
            ("results.4/*.value", "None", "'true'"),
            ("results.4/*.synonyms.*", "(absent)", "{name: 'allow.everyone.if.no.acl.found'*"),
        )
    ),
    Allowed(
        "Kafka has no sentence for it",
        "IncrementalAlterConfigs",
        "0-1",
        "*logger*",
        "responses.8/*.error_message",
        "None",
        "(a sentence)",
    ),
    *(
        Allowed(NO_CLIENTS, api, "1-18", "replica -3", path, "*", "*")
        for api, path in (("ListOffsets", "topics.*.error_code"), ("Fetch", "responses.*"))
    ),
    *(
        Allowed(EMPTY_USERS, "DescribeUserScramCredentials", "0", "*", path, kafka, ours)
        for path, kafka, ours in (
            ("", "(no answer)", "(an answer*"),
            ("error_message", "None", "(a sentence)"),
            ("results.*", "{user: ''*", "(absent)"),
        )
    ),
    Allowed(
        "Kafka counts no permissions of a name that is empty",
        "DescribeTopicPartitions",
        "0",
        "name ''",
        "topics.*.topic_authorized_operations",
        "-2147483648",
        "*",
    ),
    *(
        Allowed(VALUES_LATER, api, "0-2", label, f"responses.*.{field}", kafka, ours)
        for api in ("AlterConfigs", "IncrementalAlterConfigs")
        for label in _WRONG_VALUES
        for field, kafka, ours in (
            ("error_code", "INVALID_REQUEST", "TOPIC_AUTHORIZATION_FAILED"),
            ("error_code", "INVALID_REQUEST", "CLUSTER_AUTHORIZATION_FAILED"),
        )
    ),
    Allowed(VALUES_LATER, "AlterConfigs", "0-2", "resource twice", "", "(no answer)", "*"),
    *(
        Allowed(UNREAD, "Produce", "3-13", "*", f"responses.*.{field}", kafka, ours)
        for field, kafka, ours in (
            ("error_code", "CORRUPT_MESSAGE", "TOPIC_AUTHORIZATION_FAILED"),
            ("error_code", "UNKNOWN_SERVER_ERROR", "TOPIC_AUTHORIZATION_FAILED"),
            ("error_code", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"),
            ("error_message", "(a sentence)", "None"),
        )
    ),
    *(
        Allowed(MIRRORED, f"{api}{where}", versions, "*", path, "{*", "(absent)")
        for api, versions, path in (
            ("AlterPartitionReassignments", "0-1", "responses.*"),
            ("ElectLeaders", "1-2", "replica_election_results.*"),
            ("ListPartitionReassignments", "0", "topics.*"),
        )
        for where in ("", ON_CONTROLLER)
    ),
    Allowed(MIRRORED, "Fetch@controller", "12", "*", "responses.*", "{*", "(absent)"),
    Allowed(MIRRORED, "ListOffsets", "1-11", "no partitions", "topics.*", "{*", "(absent)"),
    *(
        Allowed(EACH_TIME, api, versions, label, path, kafka, ours)
        for api, versions, label, path, kafka, ours in (
            ("AlterReplicaLogDirs", "1-2", "*", "results.*", "{*", "(absent)"),
            ("DeleteRecords", "0-2", _TWICE, "topics.*", "(absent)", "{*"),
            ("Fetch", "4-18", _TWICE, "responses.*", "(absent)", "{*"),
            ("WriteTxnMarkers", "1-2", "two of one producer", "markers.*", "(absent)", "{*"),
            ("WriteTxnMarkers", "1-2", "two of one producer", "markers.*", "{*", "(absent)"),
            ("WriteTxnMarkers", "1-2", "no partitions", "markers.*", "(absent)", "{*"),
        )
    ),
    *(
        Allowed(TIMED_OUT, api, "1-6", "timeout 0", f"responses.*.{field}", kafka, ours)
        for api in ("DeleteTopics", "DeleteTopics@controller")
        for field, kafka, ours in (
            ("error_code", "REQUEST_TIMED_OUT", "TOPIC_AUTHORIZATION_FAILED"),
            ("error_message", "None", "(a sentence)"),
        )
    ),
    *(
        Allowed(BEFORE_THE_CONTROLLER, api, "1-3", label, f"results.-.{field}", kafka, ours)
        for api in ("CreateAcls", "CreateAcls@controller")
        for label in ("any *", "match pattern")
        for field, kafka, ours in (
            ("error_code", "UNKNOWN_SERVER_ERROR", "INVALID_REQUEST"),
            ("error_message", "None", "(a sentence)"),
        )
    ),
)
"""Besides `allowed.ALLOWED`."""
