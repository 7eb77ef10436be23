"""The official connector against our broker: what every Spark job of a stranger does, and our
own way to call it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from replog_pipeline import sources
from replog_pipeline.columns import COLUMNS
from replog_pipeline.errors import PipelineError
from replog_pipeline.kafka_cluster import KafkaCluster
from replog_pipeline.segments.log_view import ISOLATION
from replog_pipeline.sources import kafka_admin
from tests.pipeline.kafka_files import TOPICS, expected
from tests.pipeline.records import OLD_MS, Written, numbered, produce

PARTITIONS = 3
ROWS = 60


@pytest.fixture(scope="module")
def filled(spark, broker) -> str:
    """A topic of three partitions with sixty records of January 2023."""
    kafka_admin.create_topic(
        spark, KafkaCluster(broker.bootstrap), "filled", PARTITIONS, config={"retention.ms": "-1"}
    )
    produce(broker.bootstrap, "filled", numbered(ROWS, PARTITIONS))
    return "filled"


@pytest.fixture
def plain(spark, broker):
    """The connector as anybody calls it, with options by name."""

    def read(**options: str):
        return (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .options(**options)
            .load()
        )

    return read


def source_of(broker, *topics: str) -> sources.KafkaSource:
    return sources.KafkaSource(broker.bootstrap, topics)


def values(frame) -> list[bytes | None]:
    return [row.value for row in frame.orderBy("partition", "offset").collect()]


def in_order(wanted=lambda record: True, count: int = ROWS) -> list[bytes | None]:
    """Values of the numbered records in the order of partition and offset."""
    return [
        each.value
        for number in range(PARTITIONS)
        for each in numbered(count, PARTITIONS)
        if each.partition == number and wanted(each)
    ]


def test_every_column_of_every_record_is_as_it_was_sent(spark, broker, filled):
    frame = sources.read(spark, source_of(broker, filled))
    assert tuple(frame.columns) == COLUMNS
    found = frame.orderBy("partition", "offset").collect()
    sent = [
        each
        for number in range(PARTITIONS)
        for each in numbered(ROWS, PARTITIONS)
        if each.partition == number
    ]
    assert [row.offset for row in found] == [*range(ROWS // PARTITIONS)] * PARTITIONS
    told = [
        Written(
            row.partition, row.key, row.value, milliseconds(row.timestamp), headers(row.headers)
        )
        for row in found
    ]
    assert told == sent
    assert {row.timestampType for row in found} == {0} and {row.topic for row in found} == {filled}


def milliseconds(moment: datetime) -> int:
    """Spark's Python side gives local time without a zone."""
    return round(moment.astimezone(UTC).timestamp() * 1000)


def headers(found) -> tuple[tuple[str, bytes], ...]:
    return tuple((each.key, bytes(each.value)) for each in found or ())


def test_only_the_columns_asked_for(spark, broker, filled):
    frame = sources.read(
        spark, source_of(broker, filled), sources.Wanted(columns=("offset", "value"))
    )
    assert frame.columns == ["offset", "value"] and frame.count() == ROWS


def test_between_explicit_offsets(spark, broker, filled):
    wanted = sources.Wanted(
        start={(filled, 0): 5, (filled, 1): 19}, end={(filled, 0): 8, (filled, 2): 1}
    )
    frame = sources.read(spark, source_of(broker, filled), wanted)
    assert {(row.partition, row.offset) for row in frame.collect()} == {
        (0, 5),
        (0, 6),
        (0, 7),
        (1, 19),
        (2, 0),
    }


def test_of_a_range_that_is_remembered_only_what_it_names(spark, broker, filled):
    wanted = sources.Wanted(
        start={(filled, 1): 18, (filled, 2): 20}, end={(filled, 2): 20}, only_named=True
    )
    frame = sources.read(spark, source_of(broker, filled), wanted)
    assert {(row.partition, row.offset) for row in frame.collect()} == {(1, 18), (1, 19)}


@pytest.mark.parametrize("only_named", [False, True])
def test_a_partition_that_is_not_there_is_one_line(spark, broker, filled, only_named):
    wanted = sources.Wanted(start={(filled, 9): 0}, only_named=only_named)
    with pytest.raises(PipelineError, match="filled-9 is no partition"):
        sources.read(spark, source_of(broker, filled), wanted)


def test_offsets_as_json_and_earliest_as_minus_two(plain, filled):
    start = json.dumps({filled: {"0": -2, "1": 18, "2": 20}})
    assert plain(subscribe=filled, startingOffsets=start).groupBy("partition").count().orderBy(
        "partition"
    ).collect() == [(0, 20), (1, 2)]


def test_start_and_end_by_timestamp(plain, filled):
    start, end = OLD_MS + 30_000, OLD_MS + 45_000
    found = values(plain(subscribe=filled, startingTimestamp=str(start), endingTimestamp=str(end)))
    assert found == in_order(lambda record: start <= record.timestamp < end)


def test_topics_by_pattern_and_by_assignment(spark, broker, plain):
    for name in ("pattern-a", "pattern-b", "other-pattern"):
        kafka_admin.create_topic(spark, KafkaCluster(broker.bootstrap), name, 2)
        produce(broker.bootstrap, name, numbered(4, 2))
    assert plain(subscribePattern="pattern-.*").groupBy("topic").count().orderBy(
        "topic"
    ).collect() == [("pattern-a", 4), ("pattern-b", 4)]
    assert plain(assign=json.dumps({"pattern-a": [1]})).count() == 2


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("isolation", ISOLATION)
def test_what_kafkas_own_clients_read_of_kafkas_own_files(spark, kafka_files, topic, isolation):
    found = (
        sources.read(
            spark, source_of(kafka_files.broker, topic), sources.Wanted(isolation=isolation)
        )
        .orderBy("offset")
        .collect()
    )
    assert list(map(as_expected, found)) == expected(kafka_files.directory, topic, isolation)


def as_expected(row) -> list[object]:
    named = [[each.key, text(each.value)] for each in row.headers or ()]
    return [row.offset, milliseconds(row.timestamp), text(row.key), text(row.value), named]


def text(content: bytearray | None) -> str | None:
    return None if content is None else content.decode()


def test_a_stream_takes_what_is_there_in_pieces_and_later_only_what_is_new(
    spark, broker, topic, tmp_path
):
    kafka_admin.create_topic(
        spark, KafkaCluster(broker.bootstrap), topic, PARTITIONS, config={"retention.ms": "-1"}
    )
    produce(broker.bootstrap, topic, numbered(ROWS, PARTITIONS))

    def run() -> int:
        """Streams to Parquet until nothing is left; the number of micro-batches that had rows."""
        frame = sources.read_stream(
            spark, source_of(broker, topic), sources.Wanted(options={"maxOffsetsPerTrigger": "25"})
        )
        writer = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / "table"))
            .option("checkpointLocation", str(tmp_path / "state"))
        )
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(100)
        return sum(1 for each in query.recentProgress if each.numInputRows)

    assert run() == 3
    assert run() == 0
    produce(broker.bootstrap, topic, numbered(9, PARTITIONS, first=ROWS))
    assert run() == 1
    assert values(spark.read.parquet(str(tmp_path / "table"))) == in_order(count=ROWS + 9)


def test_from_one_topic_into_another(spark, broker, filled, topic):
    kafka_admin.create_topic(
        spark, KafkaCluster(broker.bootstrap), topic, PARTITIONS, config={"retention.ms": "-1"}
    )
    rows = sources.read(spark, source_of(broker, filled))
    writer = (
        rows.select("key", "value", "headers", "partition")
        .write.format("kafka")
        .option("kafka.bootstrap.servers", broker.bootstrap)
    )
    writer.option("topic", topic).option("includeHeaders", "true").save()
    copied = sources.read(spark, source_of(broker, topic))
    told = [(row.partition, row.key, row.value, headers(row.headers)) for row in copied.collect()]
    assert sorted(told, key=repr) == sorted(
        (
            (each.partition, each.key, each.value, each.headers)
            for each in numbered(ROWS, PARTITIONS)
        ),
        key=repr,
    )


def test_the_cluster_is_asked_in_its_own_words(spark, broker, filled):
    cluster = KafkaCluster(broker.bootstrap)
    ids, start, end = kafka_admin.spans(spark, cluster, [filled])
    assert len(ids[filled]) == 22
    assert start == {(filled, number): 0 for number in range(PARTITIONS)}
    assert end == dict.fromkeys(start, ROWS // PARTITIONS)
    assert kafka_admin.topic_config(spark, cluster, filled)["retention.ms"] == "-1"
    assert kafka_admin.exists(spark, cluster, filled)
    assert not kafka_admin.exists(spark, cluster, "never-made")


PRODUCERS = sources.Wanted(columns=("producerId",))
WRONG = {
    "topic 'never-made' is not on the brokers": lambda spark, broker: sources.read(
        spark, source_of(broker, "never-made")
    ),
    "'a b' is no valid topic name": lambda spark, broker: kafka_admin.create_topic(
        spark, KafkaCluster(broker.bootstrap), "a b", 1
    ),
    "refused for topic 'filled'.*exists already": lambda spark, broker: kafka_admin.create_topic(
        spark, KafkaCluster(broker.bootstrap), "filled", 1
    ),
    "no answer from the brokers at 127.0.0.1:1": lambda spark, broker: sources.read(
        spark, sources.KafkaSource("127.0.0.1:1", ("any",))
    ),
    "address 'nowhere.invalid:9' cannot be used": lambda spark, broker: sources.read(
        spark, sources.KafkaSource("nowhere.invalid:9", ("any",))
    ),
    "isolation: 'none' is neither": lambda spark, broker: sources.read(
        spark, source_of(broker, "filled"), sources.Wanted(isolation="none")
    ),
    "'producerId' cannot be read through a broker": lambda spark, broker: sources.read(
        spark, source_of(broker, "filled"), PRODUCERS
    ),
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_one_line(spark, broker, filled, line, monkeypatch):
    monkeypatch.setattr(kafka_admin, "PATIENCE_MS", 60_000 if "127.0.0.1:1" not in line else 2_000)
    with pytest.raises(PipelineError, match=line) as raised:
        WRONG[line](spark, broker)
    assert "\n" not in str(raised.value) and "Exception" not in str(raised.value)
