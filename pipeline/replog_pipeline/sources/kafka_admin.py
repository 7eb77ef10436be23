"""Queries a cluster about its topics, with the admin client of the connector's own kafka-clients,
through Spark's gateway.

1. No other client is needed: where Spark can read a topic, this works, too.
2. Every query opens a client, waits at most `PATIENCE_MS`, and closes it.
3. An unreachable broker, a missing topic, a refusal: each is one PipelineError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from replog_pipeline.columns import Offsets
from replog_pipeline.errors import PipelineError, root_line
from replog_pipeline.sources.away import BrokersAwayError
from replog_pipeline.sources.topics import invalid, missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_MS = 30_000
T = TypeVar("T")


def partitions(spark: SparkSession, bootstrap: str, topics: Sequence[str]) -> dict[str, list[int]]:
    """topic -> its partitions in order. Raises PipelineError for a topic that is not there."""
    return {
        name: sorted(each.partition() for each in told.partitions())
        for name, told in describe(spark, bootstrap, topics).items()
    }


def topic_ids(spark: SparkSession, bootstrap: str, topics: Sequence[str]) -> dict[str, str]:
    """topic -> topic id as Kafka writes it (22 characters).

    Raises PipelineError for a topic that is not there.
    """
    return {
        name: told.topicId().toString() for name, told in describe(spark, bootstrap, topics).items()
    }


def exists(spark: SparkSession, bootstrap: str, topic: str) -> bool:
    with client(spark, bootstrap) as admin:
        return bool(call(bootstrap, lambda: admin.listTopics().names().get().contains(topic)))


def offsets(
    spark: SparkSession,
    bootstrap: str,
    topics: Sequence[str],
    which: str = "latest",
    isolation: str = "read_uncommitted",
) -> Offsets:
    """The "earliest" or "latest" offset of every partition; latest is the high watermark, under
    read_committed the last stable offset.
    """
    kafka = spark._jvm.org.apache.kafka  # type: ignore[union-attr]
    asked = [
        (topic, number)
        for topic, numbers in partitions(spark, bootstrap, topics).items()
        for number in numbers
    ]
    spec = getattr(kafka.clients.admin.OffsetSpec, which)()
    level = kafka.clients.admin.ListOffsetsOptions(
        getattr(kafka.common.IsolationLevel, isolation.upper())
    )
    keys = {each: kafka.common.TopicPartition(*each) for each in asked}
    with client(spark, bootstrap) as admin:
        found = call(
            bootstrap,
            lambda: admin.listOffsets({key: spec for key in keys.values()}, level).all().get(),
        )
        return {each: found.get(key).offset() for each, key in keys.items()}


def topic_config(spark: SparkSession, bootstrap: str, topic: str) -> dict[str, str]:
    """The settings in force for a topic: name -> value."""
    java: Any = spark._jvm
    config = java.org.apache.kafka.common.config
    resource = config.ConfigResource(config.ConfigResource.Type.TOPIC, topic)
    with client(spark, bootstrap) as admin:
        found = call(bootstrap, lambda: admin.describeConfigs([resource]).all().get(), topic)
        return {
            entry.name(): entry.value()
            for entry in java.java.util.ArrayList(found.get(resource).entries())
        }


def create_topic(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    partitions: int,
    replication: int = 1,
    config: Mapping[str, str] | None = None,
) -> None:
    """Raises PipelineError if the cluster refuses: the topic exists, a setting is unknown, too
    few brokers.
    """
    admin_api = spark._jvm.org.apache.kafka.clients.admin  # type: ignore[union-attr]
    new = admin_api.NewTopic(topic, partitions, replication).configs(dict(config or {}))
    with client(spark, bootstrap) as admin:
        call(bootstrap, lambda: admin.createTopics([new]).all().get(), topic)


def describe(spark: SparkSession, bootstrap: str, topics: Sequence[str]) -> dict[str, Any]:
    """topic -> Kafka's TopicDescription, in the order asked."""
    with client(spark, bootstrap) as admin:
        futures = admin.describeTopics(list(topics)).topicNameValues()
        return {name: call(bootstrap, futures.get(name).get, name) for name in topics}


@contextmanager
def client(spark: SparkSession, bootstrap: str) -> Iterator[Any]:
    """An org.apache.kafka.clients.admin.Admin that is closed at the end."""
    java: Any = spark._jvm
    settings = {
        "bootstrap.servers": bootstrap,
        "request.timeout.ms": str(PATIENCE_MS // 2),
        "default.api.timeout.ms": str(PATIENCE_MS),
    }
    properties = java.java.util.Properties()
    properties.putAll(settings)
    admin = call(bootstrap, lambda: java.org.apache.kafka.clients.admin.Admin.create(properties))
    try:
        yield admin
    finally:
        admin.close()


def call(bootstrap: str, question: Callable[[], T], topic: str = "") -> T:
    """The answer; what Java throws becomes one line."""
    from py4j.protocol import Py4JJavaError

    try:
        return question()
    except Py4JJavaError as error:
        raise explained(error, bootstrap, topic) from None


def explained(error: Exception, bootstrap: str, topic: str) -> PipelineError:
    text = str(error)
    if "UnknownTopicOrPartitionException" in text:
        return missing(topic, bootstrap)
    if "InvalidTopicException" in text:
        return invalid(topic)
    if "TimeoutException" in text:
        return BrokersAwayError(
            f"no answer from the brokers at {bootstrap} within {PATIENCE_MS // 1000} s: is "
            "the address right, and do they run?"
        )
    if "No resolvable bootstrap urls" in text or "ConfigException" in text:
        return PipelineError(
            f"the brokers' address {bootstrap!r} cannot be used: write HOST:PORT[,HOST:PORT]"
        )
    return PipelineError(
        f"the brokers at {bootstrap} refused{f' for topic {topic!r}' if topic else ''}: "
        f"{root_line(error)}"
    )
