"""How many files a table has: counted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs import archive
from replog_pipeline.kafka_cluster import KafkaCluster
from replog_pipeline.lake import file_sizing
from replog_pipeline.sources import kafka_admin
from replog_pipeline.sources.away import BrokersAwayError
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables
from tests.pipeline.records import DAY_MS, OLD_MS, Written, numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = pytest.mark.parametrize("form", ["delta", "parquet"])
DAYS, PARTITIONS, BATCHES = 5, 4, 2


def over_days(count: int) -> list[Written]:
    """Each partition has each of the days."""
    return [
        replace(each, timestamp=OLD_MS + number // PARTITIONS % DAYS * DAY_MS)
        for number, each in enumerate(numbered(count, PARTITIONS))
    ]


def files(lake: Path) -> dict[str, int]:
    """Folder of a date -> how many data files it has."""
    return Counter(path.parent.name for path in lake.glob("date=*/*.parquet"))


@FORMATS
def test_a_batch_makes_one_file_for_each_date(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, form: str
) -> None:
    written = over_days(400)
    tables.create(broker.bootstrap, topic, PARTITIONS)
    produce(broker.bootstrap, topic, written)
    done = archive.run(
        spark,
        archive.ArchiveConfig(
            f"kafka://{broker.bootstrap}/{topic}", str(tmp_path / "lake"), form, max_records=200
        ),
    )
    assert done.batches == BATCHES
    assert files(tmp_path / "lake") == {
        f"date=2023-01-{day:02d}": BATCHES for day in range(1, DAYS + 1)
    }
    assert tables.table_rows(spark, tmp_path / "lake") == tables.expected(written)


@pytest.mark.parametrize(
    ("file_mb", "days", "of_each"),
    [
        (5, 1, PARTITIONS),  # as the tasks that read
        (6, 1, 1),  # 100 rows of a partition are less than 6 x 20
        (5, 2, 1),
    ],
)
def test_a_large_batch_of_one_day_is_not_shuffled(
    spark: SparkSession,
    broker: BrokerProcess,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file_mb: int,
    days: int,
    of_each: int,
) -> None:
    """Each task writes a file; what was archived on the day before does not count."""
    monkeypatch.setattr(file_sizing, "ROWS_A_MB", 20)
    source, to = f"kafka://{broker.bootstrap}/{topic}", str(tmp_path / "lake")
    config = archive.ArchiveConfig(source, to, file_mb=file_mb)
    tables.create(broker.bootstrap, topic, PARTITIONS)
    before = [replace(each, timestamp=OLD_MS - DAY_MS) for each in numbered(8, PARTITIONS)]
    produce(broker.bootstrap, topic, before)
    archive.run(spark, config)
    written = [
        replace(each, timestamp=OLD_MS + number // PARTITIONS % days * DAY_MS)
        for number, each in enumerate(numbered(400, PARTITIONS))
    ]
    produce(broker.bootstrap, topic, written)
    assert archive.run(spark, config).rows == len(written)
    assert files(tmp_path / "lake") == {"date=2022-12-31": 1} | {
        f"date=2023-01-{day:02d}": of_each for day in range(1, days + 1)
    }
    assert tables.table_rows(spark, tmp_path / "lake") == tables.expected(before + written)


@pytest.mark.parametrize(
    ("rows", "held_open"),
    [
        (None, file_sizing.DATES_AT_ONCE),
        (file_sizing.SORTED_ROWS + 1, file_sizing.DATES_AT_ONCE),
        (file_sizing.SORTED_ROWS, None),
    ],
)
def test_a_task_with_few_rows_sorts_them(
    spark: SparkSession, rows: int | None, held_open: str | None
) -> None:
    """As Spark does by itself; others hold the files of several dates open."""
    with file_sizing.sized(spark, 1, rows):
        assert spark.conf.get(file_sizing.OPEN_WRITERS, None) == held_open
    assert spark.conf.get(file_sizing.OPEN_WRITERS, None) is None


def test_what_is_of_one_day(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    """From given offsets on. Nothing there, or no timestamps: not known to be."""
    tables.create(broker.bootstrap, topic, 2)
    cluster = KafkaCluster(broker.bootstrap)

    def asked(first: int, second: int) -> bool:
        start = {(topic, 0): first, (topic, 1): second}
        return kafka_admin.are_of_one_day(spark, cluster, start)

    assert not asked(0, 0)
    day = [Written(0, None, b"", OLD_MS + at) for at in (-1, 0, DAY_MS - 1)]
    produce(broker.bootstrap, topic, day)
    assert not asked(0, 0), "nothing in the other"
    produce(broker.bootstrap, topic, [replace(each, partition=1) for each in day])
    assert [asked(*each) for each in [(0, 0), (1, 0), (0, 1), (1, 1), (2, 1)]] == [
        *(False, False, False),
        *(True, True),
    ]
    produce(broker.bootstrap, topic, [Written(1, None, b"", OLD_MS + DAY_MS)])
    assert not asked(1, 1) and not asked(1, 4)


def test_brokers_that_do_not_tell(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka before 3.0, old message formats: a shuffle. Brokers that are away stop the batch."""

    @contextmanager
    def admin(*_: object) -> Iterator[object]:
        yield object()

    def asked(error: PipelineError) -> bool:
        def call(*_: object) -> None:
            raise error

        monkeypatch.setattr(kafka_admin, "call", call)
        cluster = KafkaCluster("127.0.0.1:1")
        return kafka_admin.are_of_one_day(spark, cluster, {("t", 0): 0})

    monkeypatch.setattr(kafka_admin, "client", admin)
    assert not asked(PipelineError("refused"))
    with pytest.raises(BrokersAwayError):
        asked(BrokersAwayError("away"))


@pytest.mark.parametrize(("file_mb", "count"), [(1, PARTITIONS), (128, 1)])
def test_what_is_larger_than_the_target_is_split(
    spark: SparkSession,
    broker: BrokerProcess,
    topic: str,
    tmp_path: Path,
    file_mb: int,
    count: int,
) -> None:
    """900 KB a partition: more than half of the smaller target, so no two share a file."""
    chance = random.Random(3)
    tables.create(broker.bootstrap, topic, PARTITIONS)
    produce(
        broker.bootstrap,
        topic,
        [
            Written(number % PARTITIONS, None, chance.randbytes(90_000), OLD_MS)
            for number in range(40)
        ],
    )
    before = spark.conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes")
    source = f"kafka://{broker.bootstrap}/{topic}"
    archive.run(spark, archive.ArchiveConfig(source, str(tmp_path / "lake"), file_mb=file_mb))
    assert files(tmp_path / "lake") == {"date=2023-01-01": count}
    assert spark.conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes") == before
