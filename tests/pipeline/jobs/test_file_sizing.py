"""How many files a table has: counted."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replog_pipeline.jobs import archive
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
