"""An archive of many batches leaves nothing behind on the heap: in its own process, with a heap
that is soon full otherwise.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replog_pipeline.jobs import archive
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables
from tests.pipeline.jobs.archive_heap import consumers
from tests.pipeline.records import OLD_MS, numbered, produce
from twisted_broker.wire.records import BatchBuilder, set_offsets_and_epoch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)
PARTITIONS = 4
BATCH_RECORDS, VALUE_BYTES = 1_000, 100
GROWTH_MB = 48
"""Allowed from the first measure, when all is loaded, to any later one.

One batch's consumers used to leave 52.
"""
STALE = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    ".kafka_cleanshutdown",
)


@contextmanager
def long_topic(directory: Path, topic: str, records: int) -> Iterator[str]:
    """A broker whose `topic` has so many records in every partition, written as files; the
    topic's URL.
    """
    process = BrokerProcess(directory / "broker", {"log.retention.ms": "-1"}).start()
    try:
        tables.create(process.bootstrap, topic, PARTITIONS)
        process.stop()
        for number in range(PARTITIONS):
            write_log(Path(process.data) / f"{topic}-{number}", records)
        for name in STALE:
            (Path(process.data) / name).unlink(missing_ok=True)
        process.start()
        yield f"kafka://{process.bootstrap}/{topic}"
    finally:
        process.stop()


def write_log(folder: Path, records: int) -> None:
    """One segment in place of the empty one. The batches differ in their offsets alone."""
    chance = random.Random(5)
    builder = BatchBuilder()
    for number in range(BATCH_RECORDS):
        builder.append(OLD_MS + number, None, chance.randbytes(VALUE_BYTES))
    batch = bytearray(builder.build())
    for path in folder.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    with (folder / f"{0:020d}.log").open("wb") as file:
        for base in range(0, records, BATCH_RECORDS):
            set_offsets_and_epoch(batch, base, 0)
            file.write(batch)


def megabytes_in_use(url: str, lake: Path, form: str, heap: str, *numbers: int) -> list[int]:
    """What an archive in its own process measured; see `archive_heap`."""
    line = [
        sys.executable,
        "-m",
        "tests.pipeline.jobs.archive_heap",
        url,
        str(lake),
        form,
        *map(str, numbers),
    ]
    environment = os.environ | {
        "PYSPARK_SUBMIT_ARGS": shlex.join(["--driver-memory", heap, "pyspark-shell"])
    }
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[int] = json.loads(done.stdout)
    return found


def test_thirty_batches_leave_a_small_heap_as_it_was(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    with long_topic(tmp_path, topic, 200_000) as url:
        found = megabytes_in_use(url, tmp_path / "lake", "parquet", "512m", 30, 4_000, 5)
    assert max(found) - found[0] <= GROWTH_MB, found


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_three_hundred_batches_leave_the_heap_as_it_was(
    spark: SparkSession, topic: str, tmp_path: Path, form: str
) -> None:
    with long_topic(tmp_path, topic, 800_000) as url:
        found = megabytes_in_use(url, tmp_path / "lake", form, "1g", 300, 10_000, 20)
    assert max(found) - found[0] <= GROWTH_MB, found


def test_the_batches_of_a_run_share_their_consumers(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    tables.create(broker.bootstrap, topic, 2)
    produce(broker.bootstrap, topic, numbered(40, 2))
    before = consumers(spark)
    done = archive.run(
        spark,
        archive.ArchiveConfig(
            f"kafka://{broker.bootstrap}/{topic}", str(tmp_path / "lake"), "parquet", max_records=8
        ),
    )
    assert done.batches == 5
    assert consumers(spark) - before <= 2
