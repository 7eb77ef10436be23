"""`archive` as a process that is killed: whatever it was doing, and whatever its JVM still does, each record is in the table once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables
from tests.pipeline.records import Written, numbered, produce
from twisted_broker.pipeline.jobs import archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_SECONDS = 240
LOOK_SECONDS = 0.05
FORMATS = pytest.mark.parametrize("form", ["delta", "parquet"])
LEDGERS = {"delta": "_delta_log", "parquet": "_replog/ledger"}


def start(url: str, lake: Path, form: str, *more: str) -> subprocess.Popen[bytes]:
    """The command, with small batches so that there are many."""
    line = [sys.executable, "-m", "twisted_broker.cli.main", "pipeline", "archive", "--from", url, "--to", str(lake), "--format", form, *more]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGKILL)
    child.wait(PATIENCE_SECONDS)


def batches(lake: Path, form: str) -> int:
    return len([path for path in (lake / LEDGERS[form]).glob("*.json") if not path.name.startswith(".")])


def await_batches(lake: Path, form: str, count: int, child: subprocess.Popen[bytes]) -> None:
    """Until so many are committed, or the archive is through."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while batches(lake, form) < count and child.poll() != 0:
        assert child.poll() is None, f"the archive ended with status {child.returncode}"
        assert time.monotonic() < deadline, f"no {count} batches"
        time.sleep(LOOK_SECONDS)


def fill(broker: BrokerProcess, topic: str) -> tuple[str, list[Written]]:
    tables.create(broker.bootstrap, topic, 2)
    written = numbered(600, 2)
    produce(broker.bootstrap, topic, written)
    return f"kafka://{broker.bootstrap}/{topic}", written


def test_kill_9_amid_batches(spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    url, written = fill(broker, topic)
    child = start(url, tmp_path / "lake", "delta", "--max-records", "20")
    try:
        await_batches(tmp_path / "lake", "delta", 2, child)
    finally:
        kill(child)
    archive.run(spark, archive.ArchiveConfig(url, str(tmp_path / "lake")))
    assert tables.table_rows(spark, tmp_path / "lake") == tables.expected(written)


@pytest.mark.long
@FORMATS
@pytest.mark.parametrize("seed", range(5))
def test_kill_9_at_random_again_and_again(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, form: str, seed: int
) -> None:
    chance = random.Random(seed)
    url, written = fill(broker, topic)
    for round_number in range(4):
        child = start(url, tmp_path / "lake", form, "--max-records", "20")
        try:
            await_batches(tmp_path / "lake", form, round_number + 1, child)
            time.sleep(chance.uniform(0, 3))  # the moment of the kill is what is random here; nothing waits for it
        finally:
            kill(child)
    archive.run(spark, archive.ArchiveConfig(url, str(tmp_path / "lake")))
    assert tables.table_rows(spark, tmp_path / "lake") == tables.expected(written)


@pytest.mark.long
@FORMATS
def test_sigterm_ends_a_continuous_archive_after_its_batch(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, form: str
) -> None:
    url, written = fill(broker, topic)
    child = start(url, tmp_path / "lake", form, "--continuous", "--interval", "0.5")
    try:
        await_batches(tmp_path / "lake", form, 1, child)
        more = numbered(100, 2, first=600)
        produce(broker.bootstrap, topic, more)
        await_batches(tmp_path / "lake", form, 2, child)
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE_SECONDS) == 0
    finally:
        kill(child)
    assert tables.table_rows(spark, tmp_path / "lake") == tables.expected([*written, *more])
