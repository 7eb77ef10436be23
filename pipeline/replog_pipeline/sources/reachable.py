"""Asks a cluster for its topics before Spark starts: a wrong address or topic is one line after a
second, not after a minute.

1. Refused is what is certain: no broker accepts a connection, or one says that a topic is not
   there. What this client cannot judge (TLS, a broker older than topic ids, a leader that is being
   elected) is left to the job: `found` gives None.
2. No topic is created by it.

Source: KIP-516 (topic ids in Metadata). Not here: offsets (`extents`), queries through Spark
(`kafka_admin`).
"""

from __future__ import annotations

from replog_pipeline.errors import PipelineError
from replog_pipeline.kafka_cluster import KafkaCluster
from replog_pipeline.replay.connection import Connection
from replog_pipeline.sources.topics import Topics, invalid, missing
from replog_pipeline.sources.urls import KafkaSource
from twisted_broker.wire.errors import ErrorCode, WireError
from twisted_broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from twisted_broker.wire.primitives import uuid_text

PATIENCE_SECONDS = 10.0


def found(source: KafkaSource) -> Topics | None:
    """The source's topics as a broker names them; None where only the job can tell."""
    answer = answered(source.cluster, source.topics)
    if answer is None:
        return None
    for topic in answer.topics:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise missing(str(topic.name), source.bootstrap)
        if topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION:
            raise invalid(str(topic.name))
        if topic.error_code:
            return None
    return Topics(
        {str(topic.name): uuid_text(topic.topic_id) for topic in answer.topics},
        frozenset(
            (str(topic.name), each.partition_index)
            for topic in answer.topics
            for each in topic.partitions
        ),
    )


def topic_ids(source: KafkaSource, setting: str = "--from") -> dict[str, str]:
    """Of those of its topics that are there, as far as a broker tells."""
    answer = answered(source.cluster, source.topics, setting)
    return {
        str(topic.name): uuid_text(topic.topic_id)
        for topic in (answer.topics if answer else ())
        if not topic.error_code
    }


def check_address(source: KafkaSource, setting: str = "--from") -> None:
    """PipelineError when no broker accepts a connection."""
    answered(source.cluster, (), setting)


def answered(
    cluster: KafkaCluster, topics: tuple[str, ...], setting: str = "--from"
) -> MetadataResponse | None:
    """The first answer of any broker; None when it is none that this client understands."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
    )
    failures = []
    for address in cluster.bootstrap.split(","):
        host, _, port = address.rpartition(":")
        try:
            connection = Connection(host.strip("[]"), int(port), cluster.client, PATIENCE_SECONDS)
        except OSError as error:
            failures.append(f"{address}: {error.strerror or error}")
            continue
        try:
            return connection.call(request, MetadataResponse)
        except (OSError, WireError):
            return None
        finally:
            connection.close()
    raise PipelineError(
        f"{setting}: no broker accepts a connection ({'; '.join(failures)}): is the address "
        "right, and do the brokers run?"
    )
