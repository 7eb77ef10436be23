"""Reads topics of a running cluster through Spark's official Kafka connector.

1. A range is fixed before the read: every partition has a start and an end offset in the
   connector's own JSON. A partition that vanished or was truncated below its start fails the job
   (`failOnDataLoss`); nothing is skipped silently.
2. The consumer polls in large pieces. By default the connector sends ListOffsets twice for every
   500 records; with `max.poll.records` raised it rarely does. A piece is bounded in bytes too: an
   executor holds one, and one fetched ahead, for every partition that it read a moment ago.
3. The connector keeps consumers and what they fetched in pools, under the group id and the
   partition, and makes a group id for every read. Reads of one `Wanted.run` get one group id, so
   the next takes over what the last left; otherwise each read would leave a consumer per partition
   behind. `POOLS` bounds what idles there. No offset is committed, no group is joined.
4. The connector takes timestamps for those of Java's old calendar: before 1582-10-15 it changes the
   instant, and in other zones than UTC before 1900 too. What is read is turned back (`corrected`),
   but for one day in each of twelve years before 1582 (the old calendar's 29 February of 100, 200,
   300, 500 .. 1500), which the connector makes one with the next day, a day later. The zone is the
   JVM's; in one that somebody else began in another zone hours around 1900 are off by minutes.
5. A topic that is not there, or a broker that does not answer, is found before Spark plans
   anything, and is one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from replog_pipeline.columns import COLUMNS, Offsets
from replog_pipeline.errors import PipelineError
from replog_pipeline.segments.log_view import ISOLATION
from replog_pipeline.segments.options import ONLY_IN_BATCHES
from replog_pipeline.sources import kafka_admin
from replog_pipeline.sources.urls import KafkaSource
from replog_pipeline.sources.wanted import Wanted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_RECORDS, LEAST_POLL_RECORDS = 10_000, 500
POLLING = {
    "kafka.max.poll.records": str(POLL_RECORDS),
    "kafka.max.partition.fetch.bytes": str(2 << 20),
    "kafka.fetch.max.bytes": str(2 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
    "kafka.fetch.max.wait.ms": "20",
}
"""`fetch.max.wait.ms`: after the last record of a partition the consumer fetches once more, finds
nothing, and the connector's next question to that broker waits behind this fetch (500 ms by
default, for each partition of a batch).
"""
POOLS = {
    "spark.kafka.consumer.cache.capacity": "16",
    "spark.kafka.consumer.cache.timeout": "1m",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "10s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "1s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "1s",
}
"""For the session, since the pools are the executor's. Spark's own: 64 consumers, and five minutes
for both; the pool of fetched records has no other bound than the time.
"""
EARLIEST, LATEST = -2, -1
SAME_SINCE = "timestamp_seconds(-2177452800)"
"""1901: from then on both calendars, and all zones in them, agree."""
BACK = (
    "timestamp_micros(bigint(reflect('org.apache.spark.sql.catalyst.util.RebaseDateTime', "
    "'rebaseGregorianToJulianMicros', unix_micros(timestamp))))"
)
"""Spark's own inverse of what the connector does, in the same JVM and zone."""


def read(spark: SparkSession, source: KafkaSource, wanted: Wanted) -> DataFrame:
    """What the topics hold between start and end; see `sources.read`."""
    check(wanted)
    known = kafka_admin.partitions(spark, source.cluster, source.topics)
    own = shared(wanted, sum(map(len, known.values()))) | settings(source, wanted)
    if wanted.only_named:
        check_named(known, wanted.start)
        known = named(wanted.start)
        del own["subscribe"]
        own["assign"] = json.dumps(known)
    reader = spark.read.format("kafka").options(**own)
    if "startingOffsets" not in wanted.options and "startingTimestamp" not in wanted.options:
        reader = reader.option("startingOffsets", offsets_json(known, wanted.start, EARLIEST))
    if "endingOffsets" not in wanted.options and "endingTimestamp" not in wanted.options:
        reader = reader.option("endingOffsets", offsets_json(known, wanted.end, LATEST))
    return corrected(reader.load()).select(*wanted.columns)


def read_stream(spark: SparkSession, source: KafkaSource, wanted: Wanted) -> DataFrame:
    """What the topics hold from start on, and what comes; see `sources.read_stream`."""
    check(wanted)
    if wanted.only_named:
        raise PipelineError(ONLY_IN_BATCHES)
    known = kafka_admin.partitions(spark, source.cluster, source.topics)
    first = {
        "startingOffsets": offsets_json(known, wanted.start, EARLIEST)
        if wanted.start
        else "earliest"
    }
    records = (
        spark.readStream.format("kafka")
        .options(**first | POLLING | settings(source, wanted))
        .load()
    )
    return corrected(records).select(*wanted.columns)


def corrected(records: DataFrame) -> DataFrame:
    """The records with the timestamps that they have in the topic."""
    from pyspark.sql.functions import expr

    right = expr(f"if(timestamp < {SAME_SINCE}, {BACK}, timestamp)")
    return records.withColumn("timestamp", right)


def settings(source: KafkaSource, wanted: Wanted) -> dict[str, str]:
    """The connector's options; those of the caller win."""
    own = {
        "kafka.bootstrap.servers": source.bootstrap,
        "subscribe": ",".join(source.topics),
        "includeHeaders": str("headers" in wanted.columns).lower(),
        "kafka.isolation.level": wanted.isolation,
    }
    client = {f"kafka.{name}": value for name, value in source.client.properties}
    return own | client | dict(wanted.options)


def shared(wanted: Wanted, partitions: int) -> dict[str, str]:
    """How it polls, and as which group. Consumers of one group must poll alike, so the size of a
    poll is part of its id.

    A poll brings no more than a partition's even share of `wanted.at_most`: the rest would wait in
    the pool.
    """
    share = POLL_RECORDS if wanted.at_most is None else wanted.at_most // max(1, partitions)
    records = str(min(POLL_RECORDS, max(LEAST_POLL_RECORDS, share)))
    group = (
        {"kafka.group.id": f"replog-{wanted.run}-{wanted.isolation}-{records}"}
        if wanted.run
        else {}
    )
    return POLLING | group | {"kafka.max.poll.records": records}


def offsets_json(known: Mapping[str, Sequence[int]], given: Offsets, otherwise: int) -> str:
    """{"topic": {"0": 17, "1": -2}} over every known partition.

    Raises PipelineError for a partition that is not there.
    """
    check_named(known, given)
    return json.dumps(
        {
            topic: {str(number): given.get((topic, number), otherwise) for number in numbers}
            for topic, numbers in known.items()
        }
    )


def check_named(known: Mapping[str, Sequence[int]], given: Offsets) -> None:
    """PipelineError for a partition that is not there."""
    for topic, partition in given:
        if partition not in known.get(topic, ()):
            raise PipelineError(
                f"offsets: {topic}-{partition} is no partition of the topics that are read"
            )


def named(given: Offsets) -> dict[str, list[int]]:
    """topic -> the partitions that `given` names, in order."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(given):
        found.setdefault(topic, []).append(partition)
    return found


def check(wanted: Wanted) -> None:
    """Raises PipelineError for a column that the wire does not carry, or an isolation that there
    is none of.
    """
    unknown = [name for name in wanted.columns if name not in COLUMNS]
    if unknown:
        cure = f"read the log directory (segments:DIRECTORY), or one of {', '.join(COLUMNS)}"
        raise PipelineError(f"columns: {unknown[0]!r} cannot be read through a broker; {cure}")
    if wanted.isolation not in ISOLATION:
        raise PipelineError(
            f"isolation: {wanted.isolation!r} is neither {ISOLATION[0]} nor {ISOLATION[1]}"
        )
