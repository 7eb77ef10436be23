"""THE table of what may differ, each row with its reason. What no row allows fails the comparison;
so does, in a whole run, a row that allowed nothing.

1. A row names one API, its versions, the field and both values; the label of the case where that
   says more. Label, path and values are shell patterns: `*` stands for names and numbers that a
   case made up, never for a whole value that matters.
2. Rows of one reason stand together; what a user can meet has its line in docs/COMPATIBILITY.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from tests.compare.differences import ABSENT, ANSWER, SENTENCE, Difference
from tests.compare.side import ROUTE_OF
from twisted_broker.config import BROKER_SETTINGS
from twisted_broker.replication.replication_quota import FOLLOWER_RATE, LEADER_RATE
from twisted_broker.wire.schema import version_range

LIST, NO_ANSWER, NOTHING = "(a list)", "(no answer)", "None"
FAILS, NONE, REFUSED = "UNKNOWN_SERVER_ERROR", "NONE", "INVALID_REQUEST"
Field = tuple[str, str, str]


class Allowed(NamedTuple):
    """One row. `versions`: those at which it may differ, as "3", "2-5" or "4+"."""

    reason: str
    api: str
    versions: str
    label: str
    path: str
    kafka: str
    ours: str

    def matches(self, found: Difference) -> bool:
        return (
            found.api == self.api
            and version_range(self.versions).holds(found.version)
            and fnmatchcase(found.path, self.path)
            and fnmatchcase(found.label, self.label)
            and fnmatchcase(found.kafka, self.kafka)
            and fnmatchcase(found.ours, self.ours)
        )


def _case(reason: str, api: str, versions: str, label: str, *fields: Field) -> list[Allowed]:
    """Rows of one case: (path, kafka, ours)."""
    return [Allowed(reason, api, versions, label, *field) for field in fields]


# -- what is not served yet

_NOT_BY_CONTROLLER = {
    32: "1, max_version: 4",
    41: "1, max_version: 3",
    50: "0, max_version: 0",
}
_KAFKAS_LOWEST = {1: 4, 2: 1, 8: 2, 9: 1, 19: 2, 20: 1, 23: 2}
_KAFKAS_LOWEST |= {27: 1, 29: 1, 30: 1, 31: 1, 32: 1, 35: 1}
_FROM_0 = {key: (low, 0) for key, low in _KAFKAS_LOWEST.items()}


def _api_versions(
    api: str, lacking: dict[int, str], lowest: dict[int, tuple[int, int]]
) -> Iterator[Allowed]:
    """`lacking`: the versions of Kafka's; `lowest`: Kafka's and ours."""
    for key, versions in lacking.items():
        shown = f"{{api_key: {key}, min_version: {versions}}}"
        yield Allowed("not served yet", api, "0+", "*", f"api_keys.{key}", shown, ABSENT)
    for key, (kafka, ours) in lowest.items():
        reason = "only brokers fetch there" if ours else "served from 0 on, as Kafka 3.9 did"
        field = f"api_keys.{key}.min_version"
        yield Allowed(reason, api, "0+", "*", field, str(kafka), str(ours))


def _telemetry() -> Iterator[Allowed]:
    reason = "Kafka lists telemetry only with a plugin"
    for key in (71, 72):
        shown = f"{{api_key: {key}, min_version: 0, max_version: 0}}"
        yield Allowed(reason, "ApiVersions", "0+", "*", f"api_keys.{key}", ABSENT, shown)


_MIRRORS = "replog mirror has an API and a topic setting of ours"


def _mirrors() -> Iterator[Allowed]:
    yield Allowed(
        _MIRRORS,
        "ApiVersions",
        "0+",
        "*",
        "api_keys.30000",
        ABSENT,
        "{api_key: 30000, min_version: 0, max_version: 0}",
    )
    name = "replog.mirror.source"
    shown = f"{{name: '{name}', value: '', *}}"
    for api, path, versions in (
        ("CreateTopics", "topics.*.configs", "5+"),
        ("DescribeConfigs", "results.2/*.configs", "0+"),
    ):
        yield Allowed(_MIRRORS, api, versions, "*", f"{path}.'{name}'", ABSENT, shown)


# -- sentences

_OURS_HAS_ONE = "ours says why, Kafka leaves it to the client"
_KAFKAS_NONE = "a success has no sentence; Kafka has an empty one, or 'NONE'"


def _sentences() -> Iterator[Allowed]:
    for api, versions, path in (
        ("AlterPartitionReassignments", "0+", "responses.*.partitions.*.error_message"),
        ("CreatePartitions", "0+", "results.*.error_message"),
        ("DescribeProducers", "0", "topics.*.partitions.*.error_message"),
        ("IncrementalAlterConfigs", "0+", "responses.2/*.error_message"),
        ("Produce", "8+", "responses.*.partition_responses.0.error_message"),
    ):
        label = "no such operation" if api == "IncrementalAlterConfigs" else "*"
        yield Allowed(_OURS_HAS_ONE, api, versions, label, path, NOTHING, SENTENCE)
    for api, versions, path in (
        ("AlterPartitionReassignments", "0+", "error_message"),
        ("DescribeConfigs", "1+", "results.*.error_message"),
        ("FindCoordinator", "4+", "coordinators.*.error_message"),
    ):
        yield Allowed(_KAFKAS_NONE, api, versions, "*", path, "''", NOTHING)
    yield Allowed(
        _KAFKAS_NONE, "UpdateFeatures", "0-1", "*", "results.*.error_message", SENTENCE, NOTHING
    )
    yield Allowed(_KAFKAS_NONE, "FindCoordinator", "1-3", "*", "error_message", SENTENCE, NOTHING)
    yield Allowed(
        _OURS_HAS_ONE,
        "FindCoordinator",
        "6",
        "type 2*",
        "coordinators.*.error_message",
        "''",
        SENTENCE,
    )

    yield Allowed(
        _OURS_HAS_ONE,
        "DescribeConfigs",
        "1+",
        "no such topic",
        "results.2/'nobody'.error_message",
        "''",
        SENTENCE,
    )


# -- what a request names twice

_EACH = "each mention has an answer; Kafka answers once, or takes the last"


def _twice() -> Iterator[Allowed]:
    second = f"*error_code: {REFUSED}*}}"
    for api, versions, path in (
        ("CreateTopics", "2+", "topics.*#2"),
        ("CreatePartitions", "0+", "results.*#2"),
        ("DeleteTopics", "1+", "responses.*#2"),
        ("ListOffsets", "1+", "topics.*.partitions.0#2"),
    ):
        yield Allowed(_EACH, api, versions, "named twice", path, ABSENT, "{" + second)
    for api, versions, path, shown in (
        ("DeleteRecords", "0+", "topics.*.partitions.0#2", "*low_watermark: 5, error_code: NONE}"),
        ("Fetch", "4+", "responses.*.partitions.0#2", "*error_code: NONE, high_watermark: 5*}"),
    ):
        yield Allowed(_EACH, api, versions, "named twice", path, ABSENT, shown)
    yield Allowed(
        _EACH,
        "AlterPartitionReassignments",
        "0+",
        "named twice",
        "responses.*.partitions.0#2.error_code",
        NONE,
        REFUSED,
    )
    yield from _case(
        _EACH,
        "DeleteTopics",
        "6",
        "by name and by id",
        ("responses.'*'.topic_id", "'(id of *)'", "0" * 32),
        ("responses.None/*", ABSENT, f"{{name: None, *error_code: {REFUSED}*}}"),
    )


# -- what nobody could log in with


def _no_credentials() -> Iterator[Allowed]:
    code, sentence = "results.'bob'.error_code", "results.'bob'.error_message"
    for label, kafka in (
        ("without a salt", NONE),
        ("salted, 5 bytes", NONE),
        ("salted, empty", FAILS),  # "Empty key"
    ):
        yield from _case(
            "ours wants a salt, and a salted password as long as the digest",
            "AlterUserScramCredentials",
            "0",
            label,
            (code, kafka, "UNACCEPTABLE_CREDENTIAL"),
            (sentence, NOTHING, SENTENCE),
        )


# -- where Kafka fails or never answers

_FAILS = "Kafka has no check there, and fails"
_SILENT = "Kafka never answers"


def _kafka_fails() -> Iterator[Allowed]:
    yield Allowed(
        _SILENT, "AlterConfigs", "0+", "resource twice", "", NO_ANSWER, f"{ANSWER} {REFUSED})"
    )
    yield Allowed(_SILENT, "AddPartitionsToTxn", "4+", "none", "", NO_ANSWER, f"{ANSWER} {NONE})")
    for label, who in (("producer -1", "-1"), ("epoch -1", "[0-9]*")):
        yield Allowed(
            _FAILS,
            "WriteTxnMarkers",
            "1+",
            label,
            f"markers.{who}.topics.*.partitions.1.error_code",
            FAILS,
            "INVALID_PRODUCER_EPOCH",
        )
    yield Allowed(
        _SILENT, "Produce", "3+", "no records", "", NO_ANSWER, f"{ANSWER} INVALID_RECORD)"
    )
    yield Allowed(_SILENT, "JoinGroup", "0", "a protocol twice", "", NO_ANSWER, f"{ANSWER} {NONE})")
    yield Allowed(
        _FAILS,
        "DescribeTopicPartitions",
        "0",
        "name ''",
        "topics.*.error_code",
        FAILS,
        "INVALID_TOPIC_EXCEPTION",
    )
    yield Allowed(
        _FAILS,
        "DescribeTopicPartitions",
        "0",
        "name ''",
        "topics.*.topic_authorized_operations",
        "-2147483648",
        "3576",
    )
    yield Allowed(
        _FAILS,
        "IncrementalAlterConfigs",
        "0+",
        "no such operation",
        "responses.2/*.error_code",
        FAILS,
        REFUSED,
    )
    yield from _case(
        _FAILS,
        "Metadata",
        "12+",
        "neither name nor id",
        ("error_code", FAILS, REFUSED),
        ("topics.*", f"{{error_code: {FAILS}, name: '', *}}", ABSENT),
    )
    for label, code in (
        ("codec 7", "UNSUPPORTED_COMPRESSION_TYPE"),
        ("length 2147483647", "INVALID_RECORD"),
    ):
        yield Allowed(
            _FAILS, "Produce", "3+", label, "*.partition_responses.0.error_code", FAILS, code
        )
    for label, records in (("isolation level 7", "*751 bytes, *"), ("*max_bytes -1", "*90 bytes*")):
        reason = f"{_FAILS}; ours takes " + (
            "an unknown level as 0" if label.startswith("isolation") else "a limit below 0 as 0"
        )
        yield from _case(
            reason,
            "Fetch",
            "4+",
            label,
            ("responses.*.partitions.0.error_code", FAILS, NONE),
            ("responses.*.partitions.0.high_watermark", "-1", "5"),
            ("responses.*.partitions.0.last_stable_offset", "-1", "5"),
            ("responses.*.partitions.0.log_start_offset", "-1", "0"),
            ("responses.*.partitions.0.records", "", records),
        )
    reason = f"{_FAILS}; ours takes an unknown level as 0"
    yield from _case(
        reason,
        "Fetch",
        "4+",
        "isolation level 7",
        ("error_code", FAILS, NONE),
        ("responses.'(id of *", ABSENT, "{topic_id: *}"),
        ("responses.*.partitions.0.aborted_transactions", LIST, NOTHING),
    )
    yield from _case(
        reason,
        "ListOffsets",
        "2+",
        "isolation level 9",
        ("topics.*.partitions.0.error_code", FAILS, NONE),
        ("topics.*.partitions.0.leader_epoch", "-1", "0"),
        ("topics.*.partitions.0.offset", "-1", "4"),
    )


# -- what docs/COMPATIBILITY.md says of times

_AT_ONCE = "ours needs one turn for it; Kafka's controller looks at the time first"
_HEADER = "times of records are read where the header's are out of bounds"


def _times() -> Iterator[Allowed]:
    late = "REQUEST_TIMED_OUT"
    for api, versions, path in (
        ("CreateTopics", "2+", "topics.*.error_code"),
        ("CreatePartitions", "0+", "results.*.error_code"),
        ("DeleteTopics", "1+", "responses.*.error_code"),
    ):
        yield Allowed(_AT_ONCE, api, versions, "timeout 0", path, late, NONE)
    yield from _case(
        _AT_ONCE,
        "CreateTopics",
        "5+",
        "timeout 0",
        ("topics.*.num_partitions", "-1", "1"),
        ("topics.*.replication_factor", "-1", "1"),
        ("topics.*.configs.*", ABSENT, "{name: *}"),
    )
    for api, versions, path in (
        ("CreateTopics", "7", "topics.*.topic_id"),
        ("DeleteTopics", "6", "responses.*.topic_id"),
    ):
        yield Allowed(_AT_ONCE, api, versions, "timeout 0", path, "0" * 32, "'(id of *)'")
    part = "responses.*.partition_responses.0"
    for versions, fields in (
        ("3+", ((".base_offset", "-1", "0"), (".error_code", "INVALID_TIMESTAMP", NONE))),
        (
            "8+",
            (
                (".error_message", SENTENCE, NOTHING),
                (".record_errors.-", "{batch_index: 1, *}", ABSENT),
            ),
        ),
    ):
        label = "largest time understated"
        for path, kafka, ours in fields:
            yield Allowed(_HEADER, "Produce", versions, label, part + path, kafka, ours)


# -- requests that no client sends

_NOBODYS = "replica ids below -2 are nobody's: ours refuses them"


def _strange() -> Iterator[Allowed]:
    yield from _case(
        _NOBODYS,
        "Fetch",
        "4+",
        "replica -3",
        ("error_code", NONE, REFUSED),
        ("responses.*", "{topic*: *}", ABSENT),
        ("responses.*.partitions.0.aborted_transactions", NOTHING, LIST),
        ("responses.*.partitions.0.error_code", NONE, REFUSED),
        ("responses.*.partitions.0.high_watermark", "5", "-1"),
        ("responses.*.partitions.0.last_stable_offset", "5", "-1"),
        ("responses.*.partitions.0.records", "751 bytes, *", NOTHING),
    )
    yield from _case(
        _NOBODYS,
        "ListOffsets",
        "1+",
        "replica -3",
        ("topics.*.partitions.0.error_code", NONE, REFUSED),
        ("topics.*.partitions.0.leader_epoch", "0", "-1"),
        ("topics.*.partitions.0.offset", "4", "-1"),
    )
    yield from _case(
        "no epoch below 0 has an end; Kafka names the log's start",
        "OffsetForLeaderEpoch",
        "2+",
        "epoch -2",
        ("topics.*.partitions.0.end_offset", "0", "-1"),
        ("topics.*.partitions.0.leader_epoch", "-2", "-1"),
    )
    for label in ("no such partition", "no such topic", "partition -1"):
        yield Allowed(
            "no records, no list of aborted transactions; Kafka's is empty where it refuses",
            "Fetch",
            "4+",
            label,
            "responses.*.partitions.*.aborted_transactions",
            LIST,
            NOTHING,
        )
    for replica in ("replica 1", "replica 5"):
        yield Allowed(
            "NOT_LEADER_OR_FOLLOWER names the leader, and ours also where it is",
            "Fetch",
            "16+",
            replica,
            "node_endpoints.1",
            ABSENT,
            "{node_id: 1, host: '(host)', port: '(port)', rack: None}",
        )
    for api, versions, path, shown in (
        ("OffsetDelete", "0", "topics.*", "{name: '*', partitions: []}"),
        ("Produce", "3+", "responses.*", "{*, partition_responses: []}"),
        ("TxnOffsetCommit", "0+", "topics.*", "{name: '*', partitions: []}"),
        ("WriteTxnMarkers", "1+", "markers.*", "{producer_id: *, topics: []}"),
    ):
        reason = "a topic without partitions has an empty answer; Kafka leaves it out"
        yield Allowed(reason, api, versions, "no partitions", path, ABSENT, shown)
    yield Allowed(
        "a marker without topics has an empty answer; Kafka leaves it out",
        "WriteTxnMarkers",
        "1+",
        "no topics",
        "markers.*",
        ABSENT,
        "{producer_id: *, topics: []}",
    )
    for label in ("the same, in other letters", "with a detour"):
        yield Allowed(
            "a path names a directory however it is written; Kafka compares the letters",
            "AlterReplicaLogDirs",
            "1+",
            label,
            "results.*.partitions.0.error_code",
            "LOG_DIR_NOT_FOUND",
            NONE,
        )
    yield Allowed(
        "refused as a whole by the top error code, which both have; Kafka repeats it",
        "ElectLeaders",
        "1+",
        "type 5",
        "replica_election_results.*",
        "{topic: '*'}",
        ABSENT,
    )
    yield Allowed(
        "a batch too many is refused where the log's start is known",
        "Produce",
        "5+",
        "two batches",
        "*.partition_responses.0.log_start_offset",
        "-1",
        "0",
    )
    for label in ("idempotent: again", "idempotent: first again"):
        yield Allowed(
            "a duplicate has its producer's time; Kafka calls that the time of append",
            "Produce",
            "3+",
            label,
            "*.partition_responses.0.log_append_time_ms",
            "1[0-9]*",
            "-1",
        )


# -- settings


def _described() -> Iterator[Allowed]:
    """Of DescribeConfigs: what a broker's own file has, and rows that only one side knows."""

    def row(
        reason: str, name: str, *fields: Field, label: str = "the broker, *"
    ) -> Iterator[Allowed]:
        for field in fields:
            path = f"results.*.configs.'{name}'{field[0]}"
            yield Allowed(reason, "DescribeConfigs", "1+", label, path, *field[1:])

    where = "each where it runs"
    address, both = (
        "'PLAINTEXT://127.0.0.1:*'",
        "'PLAINTEXT://127.0.0.1:*,CONTROLLER://127.0.0.1:*'",
    )
    for name, kafka in (
        ("advertised.listeners", address),
        ("listeners", both),
        ("log.dirs", "'/*'"),
    ):
        yield from row(
            where,
            name,
            (".value", kafka, kafka),
            (f".synonyms.'{name}'/4.value", kafka, kafka),
        )
    protocols = "'SASL_SSL:SASL_SSL,*'"
    given = "'CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT'"
    name = "listener.security.protocol.map"
    yield from row(
        "Kafka must be given it; ours knows its own listener of controllers",
        name,
        (".config_source", "4", "5"),
        (".value", given, protocols),
        (f".synonyms.'{name}'/4", f"{{*value: {given}, source: 4}}", ABSENT),
    )
    voters = "'1@127.0.0.1:*'"
    yield from row(
        "ours needs no voters where it is the controller",
        "controller.quorum.voters",
        (".config_source", "4", "5"),
        (".value", voters, "''"),
        (".synonyms.'controller.quorum.voters'/4", f"{{*value: {voters}, source: 4}}", ABSENT),
    )
    for name, value in (
        ("controller.listener.names", "CONTROLLER"),
        ("node.id", "1"),
        ("process.roles", "broker,controller"),
    ):
        shown = f"{{name: '{name}', value: '{value}', source: 5}}"
        yield from row(
            "Kafka must be given it, ours has a default",
            name,
            (f".synonyms.'{name}'/5", ABSENT, shown),
            label="the broker, synonyms True",
        )
    for name in BROKER_SETTINGS:
        if name.startswith("replog."):
            yield from row("our own settings", name, ("", ABSENT, f"{{name: '{name}', *}}"))
    for name, value, reason in (
        ("leader.imbalance.per.broker.percentage", "10", "Kafka 3.9 had it, 4 has it no more"),
        ("producer.id.expiration.check.interval.ms", "600000", "internal in Kafka"),
        (
            "replica.alter.log.dirs.io.max.bytes.per.second",
            str(2**63 - 1),
            "Kafka shows it only where it is set",
        ),
        (LEADER_RATE, str(2**63 - 1), "Kafka shows it only where it is set"),
        (FOLLOWER_RATE, str(2**63 - 1), "Kafka shows it only where it is set"),
    ):
        yield from row(reason, name, ("", ABSENT, f"{{name: '{name}', value: '{value}', *}}"))
    yield from row(
        "bounded by default",
        "queued.max.request.bytes",
        (".value", "'-1'", "'134217728'"),
        (".synonyms.'queued.max.request.bytes'/5.value", "'-1'", "'134217728'"),
    )
    for pattern in (
        "ssl.*",
        "sasl.*",
        "principal.builder.class",
    ):
        yield from row(
            "most of TLS and SASL stays as it is while a broker runs",
            pattern,
            (".read_only", "False", "True"),
        )
    for name, behind, value in (
        ("flush.ms", "log.flush.scheduler.interval.ms", "9223372036854775807"),
        ("retention.ms", "log.retention.hours", "168"),
        ("segment.jitter.ms", "log.roll.jitter.hours", "0"),
        ("segment.ms", "log.roll.hours", "168"),
    ):
        shown = f"{{name: '{behind}', value: '{value}', source: 5}}"
        yield from row(
            "ours also names the coarser unit behind the value",
            name,
            (f".synonyms.'{behind}'/5", ABSENT, shown),
            label="a topic, synonyms True",
        )


def _altered() -> Iterator[Allowed]:
    yield from _case(
        "Kafka takes them, and then refuses every change of a topic",
        "IncrementalAlterConfigs",
        "0+",
        "broker, compaction lags",
        ("responses.4/*.error_code", NONE, "INVALID_CONFIG"),
        ("responses.4/*.error_message", NOTHING, SENTENCE),
    )
    yield from _case(
        "without effect here, so not read",
        "IncrementalAlterConfigs",
        "0+",
        "broker, connections of an address",
        ("responses.4/*.error_code", REFUSED, NONE),
        ("responses.4/*.error_message", SENTENCE, NOTHING),
    )
    yield Allowed(
        "without effect here, so not read: what AlterConfigs would remove is checked first",
        "AlterConfigs",
        "0+",
        "broker, connections of an address",
        "responses.4/*.error_code",
        REFUSED,
        "INVALID_CONFIG",
    )


# -- the controller's listener

_BROKER_ONLY = ("no such operation", "resource twice", "broker, *")


def _at_the_controller() -> Iterator[Allowed]:
    """Rows of what an administrator's client may ask there, too, and those of its own."""
    served = {name for name, route in ROUTE_OF.items() if route.controller.max >= 0}
    for row in (*_mirrors(), *_sentences(), *_twice(), *_times(), *_strange()):
        forwarded = row.api in served and row.api not in ("Fetch", "ApiVersions")
        if forwarded and row.label not in _BROKER_ONLY:
            yield row._replace(api=f"{row.api}@controller")
    lowest = {1: (4, 12), 19: (2, 0), 20: (1, 0), 29: (1, 0), 30: (1, 0), 31: (1, 0)}
    yield from _api_versions("ApiVersions@controller", _NOT_BY_CONTROLLER, lowest)
    yield Allowed(
        "the controllers' voters are static",
        "ApiVersions@controller",
        "3+",
        "*",
        "supported_features.'kraft.version'.max_version",
        "1",
        "0",
    )
    for api in ("AlterConfigs@controller", "IncrementalAlterConfigs@controller"):
        for kind in ("-1", "0", "99"):
            yield Allowed(
                "the same code by both ways; Kafka's controller has another than its broker",
                api,
                "0+",
                f"type {kind}",
                f"responses.{kind}/'x'.error_code",
                "UNSUPPORTED_VERSION",
                REFUSED,
            )
    yield from _case(
        "Kafka advertises 4 to 12, and refuses them",
        "Fetch@controller",
        "12",
        "*",
        ("error_code", REFUSED, NONE),
        ("responses.'__cluster_metadata'", ABSENT, "{topic: '__cluster_metadata'}"),
    )
    reason = "Kafka fails while it writes a refusal (no unaligned records)"
    yield from _case(
        reason,
        "FetchSnapshot@controller",
        "0+",
        "*",
        ("error_code", FAILS, NONE),
        ("topics.*", ABSENT, "{name: '*'}"),
    )
    yield Allowed(
        reason,
        "FetchSnapshot@controller",
        "1",
        "*",
        "node_endpoints.1",
        ABSENT,
        "{node_id: 1, host: '(host)', port: 1}",
    )


ALLOWED: tuple[Allowed, ...] = (
    *_api_versions("ApiVersions", {}, _FROM_0),
    *_mirrors(),
    *_telemetry(),
    *_sentences(),
    *_no_credentials(),
    *_twice(),
    *_kafka_fails(),
    *_times(),
    *_strange(),
    *_described(),
    *_altered(),
    *_at_the_controller(),
)
