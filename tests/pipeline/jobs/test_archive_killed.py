"""`archive` as a process that is killed: whatever it was doing, and whatever its JVM still does,
each record is in the table once.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from replog_pipeline.jobs import archive
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables
from tests.pipeline.records import Written, numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_SECONDS = 240
LOOK_SECONDS = 0.05
FORMATS = pytest.mark.parametrize("form", ["delta", "parquet"])
LEDGERS = {"delta": "_delta_log", "parquet": "_replog/ledger"}


@contextmanager
def running(
    url: str, lake: Path, form: str, *more: str, batches: int = 1, told: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """The command, from its `batches`-th commit on; killed at the end, if it is still there."""
    line = [
        sys.executable,
        "-m",
        "twisted_broker.cli.main",
        "pipeline",
        "archive",
        "--from",
        url,
        "--to",
        str(lake),
        "--format",
        form,
        *more,
    ]
    child = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=told)
    try:
        await_batches(lake, form, batches, child)
        yield child
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(PATIENCE_SECONDS)


def committed(lake: Path, form: str) -> int:
    return len(
        [path for path in (lake / LEDGERS[form]).glob("*.json") if not path.name.startswith(".")]
    )


def await_batches(lake: Path, form: str, count: int, child: subprocess.Popen[bytes]) -> None:
    """Until so many are committed, or the archive is through."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while committed(lake, form) < count and child.poll() != 0:
        assert child.poll() is None, f"the archive ended with status {child.returncode}"
        assert time.monotonic() < deadline, f"no {count} batches"
        time.sleep(LOOK_SECONDS)


@pytest.fixture
def written() -> list[Written]:
    return numbered(600, 2)


@pytest.fixture
def url(broker: BrokerProcess, topic: str, written: list[Written]) -> str:
    """A topic of two partitions that holds `written`."""
    tables.create(broker.bootstrap, topic, 2)
    produce(broker.bootstrap, topic, written)
    return f"kafka://{broker.bootstrap}/{topic}"


def assert_complete(spark: SparkSession, url: str, lake: Path, written: list[Written]) -> None:
    """One more run, to the end: then each record is there once."""
    archive.run(spark, archive.ArchiveConfig(url, str(lake)))
    assert tables.table_rows(spark, lake) == tables.expected(written)


def test_kill_9_amid_batches(
    spark: SparkSession, url: str, written: list[Written], tmp_path: Path
) -> None:
    with running(url, tmp_path / "lake", "delta", "--max-records", "20", batches=2):
        pass
    assert_complete(spark, url, tmp_path / "lake", written)


def test_a_jvm_that_is_killed_ends_the_archive_with_one_line(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    """Amid its batches; no stack, and the line says what became of it."""
    more = ("--max-records", "4", "--quiet")
    with running(url, tmp_path / "lake", "parquet", *more, told=subprocess.PIPE) as child:
        for each in psutil.Process(child.pid).children(recursive=True):
            if each.name() == "java":
                each.kill()
        _, told = child.communicate(timeout=PATIENCE_SECONDS)
    line = told.decode()
    assert child.returncode == 2 and line.count("\n") == 1, line
    assert line.startswith("replog pipeline: Spark's Java has ended: it was killed, or had")


@pytest.mark.long
@FORMATS
@pytest.mark.parametrize("seed", range(5))
def test_kill_9_at_random_again_and_again(
    spark: SparkSession, url: str, written: list[Written], tmp_path: Path, form: str, seed: int
) -> None:
    chance = random.Random(seed)
    for number in range(1, 5):
        with running(url, tmp_path / "lake", form, "--max-records", "20", batches=number):
            time.sleep(
                chance.uniform(0, 3)
            )  # the moment of the kill is what is random here; nothing waits for it
    assert_complete(spark, url, tmp_path / "lake", written)


@pytest.mark.long
@FORMATS
def test_sigterm_ends_a_continuous_archive_after_its_batch(
    spark: SparkSession,
    broker: BrokerProcess,
    topic: str,
    url: str,
    written: list[Written],
    tmp_path: Path,
    form: str,
) -> None:
    lake, more = tmp_path / "lake", numbered(100, 2, first=600)
    with running(url, lake, form, "--continuous", "--interval", "0.5") as child:
        produce(broker.bootstrap, topic, more)
        await_batches(lake, form, 2, child)
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE_SECONDS) == 0
    assert tables.table_rows(spark, lake) == tables.expected([*written, *more])
