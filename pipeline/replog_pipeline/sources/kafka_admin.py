"""Queries a cluster about its topics, with the admin client of the connector's own kafka-clients,
through Spark's gateway.

1. No other client is needed: where Spark can read a topic, this works, too.
2. Every query opens a client, waits at most `PATIENCE_MS`, and closes it.
3. What is asked of many partitions comes back as one text: each call through the gateway costs a
   third of a millisecond, and each partition would take several.
4. An unreachable broker, a missing topic, a refusal: each is one PipelineError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from replog_pipeline.columns import Offsets
from replog_pipeline.errors import PipelineError, from_spark, root_line
from replog_pipeline.kafka_cluster import KafkaCluster
from replog_pipeline.sources.away import BrokersAwayError
from replog_pipeline.sources.topics import invalid, missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_MS = 30_000
DAY_MS = 86_400_000
DESERIALIZERS = {
    f"{each}.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    for each in ("key", "value")
}
SHOWN = re.compile(r"([\w.-]+)-(\d+)=(-?\d+)")
T = TypeVar("T")


def partitions(
    spark: SparkSession, cluster: KafkaCluster, topics: Sequence[str]
) -> dict[str, list[int]]:
    """topic -> its partitions in order. Raises PipelineError for a topic that is not there."""
    with client(spark, cluster) as admin:
        return {
            name: numbers(told) for name, told in described(admin, cluster, list(topics)).items()
        }


def spans(
    spark: SparkSession,
    cluster: KafkaCluster,
    topics: Sequence[str],
    isolation: str = "read_uncommitted",
) -> tuple[dict[str, str], Offsets, Offsets]:
    """topic -> topic id as Kafka writes it (22 characters); where each partition starts; where it
    ends: at the high watermark, under read_committed at the last stable offset.

    Raises PipelineError for a topic that is not there.
    """
    with client(spark, cluster) as admin:
        told = described(admin, cluster, list(topics))
        ids = {name: each.topicId().toString() for name, each in told.items()}
        known = {name: numbers(each) for name, each in told.items()}
    with consumer(spark, cluster, isolation) as asked:
        keys = collection(spark, known)
        return (
            ids,
            offsets_in(call(cluster, lambda: asked.beginningOffsets(keys).toString())),
            offsets_in(call(cluster, lambda: asked.endOffsets(keys).toString())),
        )


def collection(spark: SparkSession, known: Mapping[str, Sequence[int]]) -> Any:
    """A collection of Kafka's TopicPartition, made by what the connector reads its options with."""
    java: Any = spark._jvm
    text = json.dumps({name: dict.fromkeys(map(str, each), 0) for name, each in known.items()})
    found = java.org.apache.spark.sql.kafka010.JsonUtils.partitionOffsets(text)
    return java.scala.jdk.javaapi.CollectionConverters.asJavaCollection(found.keySet())


def offsets_in(text: str) -> Offsets:
    """Of what Java shows of a map from partitions to offsets: {orders-0=12, orders-1=7}."""
    return {(name, int(number)): int(offset) for name, number, offset in SHOWN.findall(text)}


def exists(spark: SparkSession, cluster: KafkaCluster, topic: str) -> bool:
    with client(spark, cluster) as admin:
        return bool(call(cluster, lambda: admin.listTopics().names().get().contains(topic)))


def topics(spark: SparkSession, cluster: KafkaCluster) -> list[str]:
    """All topics that are not internal, in order."""
    with client(spark, cluster) as admin:
        return sorted(call(cluster, lambda: admin.listTopics().names().get()))


def are_of_one_day(spark: SparkSession, cluster: KafkaCluster, start: Offsets) -> bool:
    """Whether the records from `start` on are all of the newest one's UTC day, as far as the
    brokers' time indexes tell: where producers set timestamps out of order it may be wrong. False
    where brokers do not tell (Kafka before 3.0 has no such question, KIP-734).
    """
    kafka: Any = spark._jvm.org.apache.kafka  # type: ignore[union-attr]
    spec = kafka.clients.admin.OffsetSpec
    keys = {each: kafka.common.TopicPartition(*each) for each in start}
    with client(spark, cluster) as admin:

        def ask(which: Any) -> Any:
            wanted = {key: which for key in keys.values()}
            return call(cluster, lambda: admin.listOffsets(wanted).all().get())

        try:
            newest = ask(spec.maxTimestamp())
            newest_ms = max(newest.get(key).timestamp() for key in keys.values())
            if newest_ms < 0:  # no timestamps, or no records by now
                return False
            first = ask(spec.forTimestamp(newest_ms - newest_ms % DAY_MS))
        except BrokersAwayError:
            raise
        except PipelineError:
            return False  # what the batch cannot do without is refused elsewhere
    return all(0 <= first.get(key).offset() <= start[each] for each, key in keys.items())


def offsets_at(
    spark: SparkSession, cluster: KafkaCluster, keys: Iterable[tuple[str, int]], ms: int
) -> Offsets:
    """The first offset of this time or later in each partition; -1 where there is none."""
    kafka: Any = spark._jvm.org.apache.kafka  # type: ignore[union-attr]
    spec = kafka.clients.admin.OffsetSpec.forTimestamp(ms)
    wanted = {kafka.common.TopicPartition(*key): spec for key in keys}
    with client(spark, cluster) as admin:
        found = call(cluster, lambda: admin.listOffsets(wanted).all().get())
        return {(key.topic(), key.partition()): found.get(key).offset() for key in wanted}


def topic_config(spark: SparkSession, cluster: KafkaCluster, topic: str) -> dict[str, str]:
    """The settings in force for a topic: name -> value."""
    java: Any = spark._jvm
    config = java.org.apache.kafka.common.config
    resource = config.ConfigResource(config.ConfigResource.Type.TOPIC, topic)
    with client(spark, cluster) as admin:
        found = call(cluster, lambda: admin.describeConfigs([resource]).all().get(), topic)
        return {
            entry.name(): entry.value()
            for entry in java.java.util.ArrayList(found.get(resource).entries())
        }


def alter_topic(
    spark: SparkSession, cluster: KafkaCluster, topic: str, config: Mapping[str, str]
) -> None:
    """Set these settings of a topic. Raises PipelineError."""
    java: Any = spark._jvm
    kafka = java.org.apache.kafka
    resource = kafka.common.config.ConfigResource(
        kafka.common.config.ConfigResource.Type.TOPIC, topic
    )
    admin_api = kafka.clients.admin
    changes = [
        admin_api.AlterConfigOp(
            admin_api.ConfigEntry(name, value), admin_api.AlterConfigOp.OpType.SET
        )
        for name, value in config.items()
    ]
    with client(spark, cluster) as admin:
        call(cluster, lambda: admin.incrementalAlterConfigs({resource: changes}).all().get(), topic)


def create_topic(
    spark: SparkSession,
    cluster: KafkaCluster,
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
    with client(spark, cluster) as admin:
        call(cluster, lambda: admin.createTopics([new]).all().get(), topic)


def check_group_is_free(spark: SparkSession, cluster: KafkaCluster, group: str) -> None:
    """PipelineError where a consumer group has members; one that is not there has none."""
    with client(spark, cluster) as admin:
        answer = admin.describeConsumerGroups([group]).describedGroups().get(group)
        try:
            members = answer.get().members().size()
        except Exception as error:
            if "GroupIdNotFoundException" in str(error):
                return
            raise group_error(error, cluster, group) from None
    if members:
        raise busy(group)


def commit_group(spark: SparkSession, cluster: KafkaCluster, group: str, offsets: Offsets) -> None:
    """Set the committed offsets of a group without members. Raises PipelineError."""
    kafka: Any = spark._jvm.org.apache.kafka  # type: ignore[union-attr]
    wanted = {
        kafka.common.TopicPartition(*key): kafka.clients.consumer.OffsetAndMetadata(offset)
        for key, offset in offsets.items()
    }
    with client(spark, cluster) as admin:
        try:
            admin.alterConsumerGroupOffsets(group, wanted).all().get()
        except Exception as error:
            raise group_error(error, cluster, group) from None


def group_error(error: Exception, cluster: KafkaCluster, group: str) -> Exception:
    """What it is for the user; itself when it is not Java's."""
    if "UnknownMemberIdException" in str(error):
        return busy(group)
    return explained(error, cluster, "") if from_spark(error) else error


def busy(group: str) -> PipelineError:
    return PipelineError(
        f"--group {group}: consumers are members of this group: choose a name that nobody else uses"
    )


def described(admin: Any, cluster: KafkaCluster, topics: list[str]) -> dict[str, Any]:
    """topic -> Kafka's TopicDescription, in the order asked."""
    futures = admin.describeTopics(topics).topicNameValues()
    return {name: call(cluster, futures.get(name).get, name) for name in topics}


def numbers(told: Any) -> list[int]:
    """The partitions of a TopicDescription, which Kafka counts from 0."""
    return list(range(told.partitions().size()))


@contextmanager
def consumer(spark: SparkSession, cluster: KafkaCluster, isolation: str) -> Iterator[Any]:
    """Kafka's own, of no group: it tells offsets of many partitions in one call."""
    java: Any = spark._jvm
    properties = java.java.util.Properties()
    properties.putAll(settings(cluster) | DESERIALIZERS | {"isolation.level": isolation})
    kafka = java.org.apache.kafka.clients.consumer
    found = call(cluster, lambda: kafka.KafkaConsumer(properties))
    try:
        yield found
    finally:
        found.close()


def settings(cluster: KafkaCluster) -> dict[str, str]:
    return dict(cluster.client.properties) | {
        "bootstrap.servers": cluster.bootstrap,
        "request.timeout.ms": str(PATIENCE_MS // 2),
        "default.api.timeout.ms": str(PATIENCE_MS),
    }


@contextmanager
def client(spark: SparkSession, cluster: KafkaCluster) -> Iterator[Any]:
    """An org.apache.kafka.clients.admin.Admin that is closed at the end."""
    java: Any = spark._jvm
    properties = java.java.util.Properties()
    properties.putAll(settings(cluster))
    admin = call(cluster, lambda: java.org.apache.kafka.clients.admin.Admin.create(properties))
    try:
        yield admin
    finally:
        admin.close()


def call(cluster: KafkaCluster, question: Callable[[], T], topic: str = "") -> T:
    """The answer; what Java throws becomes one line."""
    from py4j.protocol import Py4JJavaError

    try:
        return question()
    except Py4JJavaError as error:
        raise explained(error, cluster, topic) from None


def explained(error: Exception, cluster: KafkaCluster, topic: str) -> PipelineError:
    text = str(error)
    if "UnknownTopicOrPartitionException" in text:
        return missing(topic, cluster.bootstrap)
    if "InvalidTopicException" in text:
        return invalid(topic)
    if "TimeoutException" in text:
        return BrokersAwayError(
            f"no answer from the brokers at {cluster} within {PATIENCE_MS // 1000} s: is "
            "the address right, and do they run?"
        )
    if "No resolvable bootstrap urls" in text or "Invalid url in bootstrap" in text:
        return PipelineError(
            f"the brokers' address {cluster.bootstrap!r} cannot be used: "
            "write HOST:PORT[,HOST:PORT]"
        )
    if "ConfigException" in text:
        return PipelineError(f"--kafka-config, --kafka-option: {root_line(error)}")
    return PipelineError(
        f"the brokers at {cluster} refused{f' for topic {topic!r}' if topic else ''}: "
        f"{root_line(error)}"
    )
