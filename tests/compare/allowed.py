"""THE table of what may differ, each row with its reason. What no row allows fails the comparison.

A row matches by shell patterns on the API, the case's label and the field's path; `kafka` and
`ours` are patterns on the two values. A row that nothing matched is printed: it may go.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple

from tests.compare.differences import Difference


class Allowed(NamedTuple):
    """One row."""

    reason: str
    api: str = "*"
    label: str = "*"
    path: str = "*"
    kafka: str = "*"
    ours: str = "*"

    def matches(self, found: Difference) -> bool:
        return (
            fnmatchcase(found.path, self.path)
            and fnmatchcase(found.label, self.label)
            and fnmatchcase(found.api, self.api)
            and fnmatchcase(found.kafka, self.kafka)
            and fnmatchcase(found.ours, self.ours)
        )


ALLOWED: tuple[Allowed, ...] = (
    Allowed("sentences are our own; both have one, or only one", path="*error_message"),
    Allowed("not served yet", "ApiVersions", path="api_keys.*", ours="(absent)"),
    Allowed("not served yet", "ApiVersions", path="*_features.*", ours="(absent)"),
    Allowed("not served yet", "ApiVersions", path="*.count"),
    Allowed("transactions are not served yet", "InitProducerId", "transactional id"),
    Allowed("each mention has an answer; Kafka answers once, or takes the last", label="*twice"),
    Allowed("Kafka has no check there, and fails", kafka="UNKNOWN_SERVER_ERROR"),
    Allowed("Kafka fails where ours has a check", label="isolation level ?"),
    Allowed("Kafka fails where ours takes 0", "Fetch", "*max_bytes -1"),
    Allowed("Kafka never answers", kafka="(no answer)"),
    Allowed("Kafka never answers", "Produce", "no records"),
    Allowed("no records, no aborted ones", "Fetch", path="*aborted_transactions"),
    Allowed("a topic without partitions has an empty answer", label="no partitions"),
    Allowed("refused as a whole, in one place", "ElectLeaders", "type 5", "*replica_election*"),
    Allowed("refused as a whole, in one place", "Metadata", "neither name nor id"),
    Allowed("no client sends both: ours takes the name", "Metadata", "name of one*"),
    Allowed("each mention has an answer", "DeleteTopics", "by name and by id"),
    Allowed("the empty name fails in Kafka", "DescribeTopicPartitions", "name ''"),
    Allowed("ours also says where the leader is", "Fetch", "replica ?", "node_endpoints*"),
    Allowed("transactions are not served yet", "Produce", "transactional", "*error_code"),
    Allowed("a refusal knows the log's start", "Produce", "two batches", "*log_start_offset"),
    Allowed(
        "a duplicate has its producer's time; Kafka calls that the time of append",
        "Produce",
        "idempotent: * again",
        "*log_append_time_ms",
    ),
    Allowed(
        "a duplicate has its producer's time; Kafka calls that the time of append",
        "Produce",
        "idempotent: again",
        "*log_append_time_ms",
    ),
    Allowed("no epoch below 0 has an end", "OffsetForLeaderEpoch", "epoch -2"),
    *(
        Allowed("each where it runs", "DescribeConfigs", "the broker*", f"*.'{name}'.*")
        for name in (
            "advertised.listeners",
            "controller.quorum.voters",
            "listener.security.protocol.map",
            "listeners",
            "log.dirs",
        )
    ),
    Allowed("the older name of node.id", "DescribeConfigs", "the broker*", "*.'broker.id'.*"),
    Allowed("our own settings", "DescribeConfigs", "the broker*", "*.configs.'replog.*"),
    Allowed("not Kafka's any more", "DescribeConfigs", path="*'leader.imbalance.per.broker*"),
    Allowed("internal in Kafka", "DescribeConfigs", path="*'producer.id.expiration.check*"),
    Allowed("bounded by default", "DescribeConfigs", path="*'queued.max.request.bytes'*"),
    Allowed("the numbers of settings follow", path="*.configs.count"),
    *(
        Allowed(
            "TLS and SASL are not served: nothing of them changes while a broker runs",
            "DescribeConfigs",
            path=f"*.configs.'{protocol}.*'.read_only",
        )
        for protocol in ("ssl", "sasl")
    ),
    *(
        Allowed("Kafka must be given it", "DescribeConfigs", path=f"*'{name}'.synonyms.*")
        for name in ("controller.listener.names", "node.id", "process.roles")
    ),
    Allowed("not served", "DescribeConfigs", path="*'principal.builder.class'.read_only"),
    Allowed("not served", "DescribeConfigs", path="*'cordoned.log.dirs'.read_only"),
    Allowed(
        "ours also names the coarser unit behind the value",
        "DescribeConfigs",
        "a topic*",
        "*'.synonyms*",
    ),
    Allowed(
        "replication throttles are not served yet",
        path="*.'*.replication.throttled.replicas'.*",
        ours="(absent)",
    ),
    Allowed("each has its own loggers", "*Configs", "logger*"),
    Allowed(
        "Kafka takes them, and then refuses every change of a topic",
        "*AlterConfigs",
        "broker, compaction lags",
    ),
    Allowed("without effect here", "*AlterConfigs", "broker, connections of an address"),
    Allowed("ids below -2 are nobody's", label="replica -3"),
    Allowed(
        "Kafka takes the topic's replication throttles; ours does not serve them yet",
        path="*",
        label="*throttled*",
    ),
    Allowed(
        "served from 0 on, as Kafka 3.9 did", "ApiVersions", path="api_keys.*.min_version", ours="0"
    ),
)
