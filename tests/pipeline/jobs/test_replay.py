"""`replay` on Spark: records come back as they were, each once, however often it is started; and
what it refuses.
"""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from kafka import KafkaConsumer, TopicPartition

from replog_pipeline import sources
from replog_pipeline.cli import pipeline
from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs import archive, replay
from replog_pipeline.jobs.replay.target_topic import AFTER, BEFORE, DAY_MS, LONG_MAX, narrow_bounds
from replog_pipeline.kafka_cluster import KafkaCluster
from replog_pipeline.progress import Progress
from replog_pipeline.sources import kafka_admin
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.conftest import KafkaFiles
from tests.pipeline.jobs import tables
from tests.pipeline.records import Written, numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_SECONDS = 240
LOOK_SECONDS = 0.05


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    """The URL of a topic of three partitions, the last of them empty, with 40 records."""
    tables.create(broker.bootstrap, topic, 3)
    produce(broker.bootstrap, topic, numbered(40, 2))
    return f"kafka://{broker.bootstrap}/{topic}"


def test_archive_replay_archive_is_the_same_table(
    spark: SparkSession, broker: BrokerProcess, topic: str, filled: str, tmp_path: Path
) -> None:
    first, second, said = tmp_path / "first", tmp_path / "second", io.StringIO()
    archive.run(spark, archive.ArchiveConfig(filled, str(first)))
    config = replay.ReplayConfig(str(first), f"{filled}-again", compression="lz4")
    assert replay.run(spark, config, Progress(stream=said)).written == 40
    assert (
        f"topic {topic}-again is created with 3 partitions and retention.ms=-1, because "
        "records are up to" in said.getvalue()
    )
    assert replay.run(spark, config).to_json() | {"to": ""} == {
        "to": "",
        "topic": topic,
        "partitions": 3,
        "records": 40,
        "written": 0,
        "findings": [],
    }
    archive.run(spark, archive.ArchiveConfig(f"{filled}-again", str(second), "parquet"))
    assert (
        tables.table_rows(spark, second)
        == tables.table_rows(spark, first)
        == tables.expected(numbered(40, 2))
    )


def test_a_replay_goes_on_with_what_the_table_got_meanwhile(
    spark: SparkSession, broker: BrokerProcess, topic: str, filled: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    for number in range(2):
        archive.run(spark, archive.ArchiveConfig(filled, str(lake), "parquet"))
        replay.run(spark, replay.ReplayConfig(str(lake), f"{filled}-again"))
        if number == 0:
            produce(broker.bootstrap, topic, numbered(20, 2, first=40))
    assert tables.rows(sources.read(spark, sources.parse(f"{filled}-again"))) == tables.expected(
        numbered(60, 2)
    )


def test_log_directories_of_apache_kafka_come_back_without_control_records(
    spark: SparkSession, broker: BrokerProcess, topic: str, kafka_files: KafkaFiles
) -> None:
    url = f"segments:{kafka_files.directory}?topics=rich"
    replay.run(spark, replay.ReplayConfig(url, f"kafka://{broker.bootstrap}/{topic}"))
    before = tables.rows(sources.read(spark, sources.parse(url)))
    found = tables.rows(sources.read(spark, sources.parse(f"kafka://{broker.bootstrap}/{topic}")))
    assert [(row[0], *row[2:]) for row in found] == [(row[0], *row[2:]) for row in before]
    assert len(found) > 0 and [row[1] for row in found if row[0] == 0] == list(
        range(sum(row[0] == 0 for row in found))
    )


SLOW_REPLAY = """
import sys
from replog_pipeline import session
from replog_pipeline.jobs import replay
replay.job.LARGEST_BATCH = 100
spark = session.build("killed", conf={"spark.master": "local[1]"}, formats=("kafka", "delta"))
replay.run(spark, replay.ReplayConfig(sys.argv[1], sys.argv[2]))
"""


def test_a_replay_that_is_killed_repeats_nothing(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """Small batches make it slow; it is killed as soon as the first records are there.

    Some of its requests may still be on their way then.
    """
    many = [
        Written(0, b"%d" % number, b"v" * 10, 1_700_000_000_000 + number)
        for number in range(30_000)
    ]
    tables.create(broker.bootstrap, topic, 1)
    produce(broker.bootstrap, topic, many)
    url, again = f"kafka://{broker.bootstrap}/{topic}", f"{topic}-again"
    tables.create(broker.bootstrap, again, 1)
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW_REPLAY, url, f"kafka://{broker.bootstrap}/{again}"],
        stderr=subprocess.DEVNULL,
    )
    try:
        await_records(broker.bootstrap, again, child)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(PATIENCE_SECONDS)
    replay.run(spark, replay.ReplayConfig(url, f"kafka://{broker.bootstrap}/{again}"))
    assert tables.rows(
        sources.read(spark, sources.parse(f"kafka://{broker.bootstrap}/{again}"))
    ) == tables.expected(many)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_a_replay_and_its_broker_are_killed_again_and_again(
    spark: SparkSession, topic: str, tmp_path: Path, seed: int
) -> None:
    """A kill of the broker is survived by the replay itself, one of the replay by the next."""
    chance = random.Random(seed)
    many = [
        Written(0, b"%d" % number, b"v" * 10, 1_700_000_000_000 + number)
        for number in range(30_000)
    ]
    own = BrokerProcess(tmp_path / "broker", {"log.retention.ms": "-1"}).start()
    own.port = int(own.bootstrap.rpartition(":")[2])
    try:
        tables.create(own.bootstrap, topic, 1)
        tables.create(own.bootstrap, f"{topic}-again", 1)
        produce(own.bootstrap, topic, many)
        url, again = f"kafka://{own.bootstrap}/{topic}", f"kafka://{own.bootstrap}/{topic}-again"
        there = 0
        for _ in range(3):
            child = subprocess.Popen(
                [sys.executable, "-c", SLOW_REPLAY, url, again], stderr=subprocess.DEVNULL
            )
            try:
                there = await_records(own.bootstrap, f"{topic}-again", child, there)
                time.sleep(
                    chance.uniform(0, 1)
                )  # the moment of the kill is what is random here; nothing waits for it
                own.kill()
                own.start()
                time.sleep(chance.uniform(0, 2))
            finally:
                child.send_signal(signal.SIGKILL)
                child.wait(PATIENCE_SECONDS)
        replay.run(spark, replay.ReplayConfig(url, again))
        assert tables.rows(sources.read(spark, sources.parse(again))) == tables.expected(many)
    finally:
        own.stop()


def await_records(
    bootstrap: str, topic: str, child: subprocess.Popen[bytes], above: int = 0
) -> int:
    """Until the topic's first partition holds more than `above` records, or the replay is
    through; how many it holds.
    """
    consumer, deadline = (
        KafkaConsumer(bootstrap_servers=bootstrap),
        time.monotonic() + PATIENCE_SECONDS,
    )
    partition = TopicPartition(topic, 0)
    try:
        while (end := consumer.end_offsets([partition])[partition]) <= above and child.poll() != 0:
            assert child.poll() is None, f"the replay ended with status {child.returncode}"
            assert time.monotonic() < deadline, f"no more than {above} records"
            time.sleep(LOOK_SECONDS)
        return int(end)
    finally:
        consumer.close()


def refused(*arguments: str) -> str:
    """The one line of a replay that ends with status 2."""
    result = CliRunner().invoke(pipeline, ["replay", "--quiet", *arguments])
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1
    return result.stderr


def test_a_target_that_would_not_keep_the_records_is_refused(
    spark: SparkSession, broker: BrokerProcess, topic: str, filled: str
) -> None:
    settings = {
        "few": {},
        "short": {"retention.ms": "1000"},
        "compacted": {"cleanup.policy": "compact"},
    }
    for name, setting in settings.items():
        tables.create(broker.bootstrap, f"{topic}-{name}", 1 if name == "few" else 3, **setting)
    assert "has 1 partitions, the source 3" in refused("--from", filled, "--to", f"{filled}-few")
    assert "set retention.ms=-1 of it" in refused("--from", filled, "--to", f"{filled}-short")
    assert "cleanup.policy=compact, which removes records" in refused(
        "--from", filled, "--to", f"{filled}-compacted"
    )
    _, _, ends = kafka_admin.spans(
        spark, KafkaCluster(broker.bootstrap), [f"{topic}-{name}" for name in settings]
    )
    assert set(ends.values()) == {0}


def test_foreign_records_in_the_target_are_refused(
    spark: SparkSession, broker: BrokerProcess, topic: str, filled: str
) -> None:
    tables.create(broker.bootstrap, f"{topic}-used", 3)
    produce(broker.bootstrap, f"{topic}-used", numbered(1))
    assert f"{topic}-used-0 holds records that no replay wrote" in refused(
        "--from", filled, "--to", f"{filled}-used"
    )
    assert len(tables.rows(sources.read(spark, sources.parse(f"{filled}-used")))) == 1


def test_another_source_for_the_same_target_is_refused(
    spark: SparkSession, broker: BrokerProcess, topic: str, filled: str
) -> None:
    tables.create(broker.bootstrap, f"{topic}-other", 3)
    produce(broker.bootstrap, f"{topic}-other", numbered(60, 2, first=100))
    replay.run(spark, replay.ReplayConfig(filled, f"{filled}-again"))
    assert "is not the source's: another source was replayed into it" in refused(
        "--from", f"{filled}-other", "--to", f"{filled}-again"
    )
    assert len(tables.rows(sources.read(spark, sources.parse(f"{filled}-again")))) == 40


def test_a_wrong_question_is_one_line(
    spark: SparkSession, broker: BrokerProcess, topic: str, filled: str, tmp_path: Path
) -> None:
    lake, to = str(tmp_path / "none"), f"{filled}-again"
    assert "there is no table" in refused("--from", lake, "--to", to)
    assert "is no topic: write kafka" in refused("--from", filled, "--to", "segments:/tmp")
    assert "--topic other" in refused("--from", filled, "--to", to, "--topic", "other")
    assert "is no directory" in refused("--from", f"segments:{lake}", "--to", to)
    assert not kafka_admin.exists(spark, KafkaCluster(broker.bootstrap), f"{topic}-again")
    assert os.listdir(tmp_path) == []


def test_times_that_the_clusters_bounds_refuse_come_back(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """From a topic, and from a table, which knows days; the topic that is there is refused."""
    ahead = [Written(0, b"k", b"v", int(time.time() * 1000) + 30 * DAY_MS)]
    tables.create(broker.bootstrap, topic, 1, **{AFTER: str(LONG_MAX)})
    tables.create(broker.bootstrap, f"{topic}-narrow", 1)
    produce(broker.bootstrap, topic, ahead)
    url, lake = f"kafka://{broker.bootstrap}/{topic}", str(tmp_path / "lake")
    archive.run(spark, archive.ArchiveConfig(url, lake, "parquet"))
    for number, source in enumerate((url, lake)):
        assert replay.run(spark, replay.ReplayConfig(source, f"{url}-{number}")).written == 1
        found = tables.rows(sources.read(spark, sources.parse(f"{url}-{number}")))
        assert found == tables.expected(ahead)
    assert f"({AFTER}=3600000): set it to" in refused("--from", lake, "--to", f"{url}-narrow")


def test_a_topic_is_not_replayed_into_itself(
    spark: SparkSession, broker: BrokerProcess, topic: str, filled: str
) -> None:
    """Also under another name of its broker, and where it holds nothing but a replay."""
    replay.run(spark, replay.ReplayConfig(filled, f"{filled}-again"))
    itself = f"{filled.replace('127.0.0.1', 'localhost')}-again"
    assert "is the topic of --from itself" in refused("--from", f"{filled}-again", "--to", itself)
    with pytest.raises(PipelineError, match="is the topic of --from itself"):
        replay.run(spark, replay.ReplayConfig(f"{filled}-again", itself))


@pytest.mark.parametrize(
    ("config", "age", "ahead", "narrow"),
    [
        ({}, 1 << 60, 1 << 60, []),
        ({BEFORE: "10", AFTER: "10"}, 10, 10, []),
        ({BEFORE: "10", AFTER: "10"}, 11, 0, [BEFORE]),
        ({BEFORE: "10", AFTER: "10"}, 11, 11, [BEFORE, AFTER]),
    ],
)
def test_the_bounds_that_would_refuse_records(
    config: dict[str, str], age: int, ahead: int, narrow: list[str]
) -> None:
    assert narrow_bounds(config, age, ahead) == narrow


def test_a_codec_that_there_is_not_is_one_line(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="--compression: 'zip' is none of none, gzip, snappy"):
        replay.run(spark, replay.ReplayConfig("x", "kafka://127.0.0.1:1/t", compression="zip"))
