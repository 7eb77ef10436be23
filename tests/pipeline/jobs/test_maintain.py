"""`maintain` on Spark: fewer files, the same rows, and an archive that goes on; killed anywhere."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from replog_pipeline.cli import pipeline
from replog_pipeline.jobs import archive, maintain
from replog_pipeline.jobs.archive.signals import Stopper
from replog_pipeline.lake import table
from replog_pipeline.lake.delta import DeltaTable
from replog_pipeline.lake.parquet import LEDGERS, STAGING
from replog_pipeline.progress import Progress
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables
from tests.pipeline.jobs.test_file_sizing import DAYS, FORMATS, PARTITIONS, files, over_days
from tests.pipeline.records import Written, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)
BATCHES = 3
PATIENCE_SECONDS = 300
LOOK_SECONDS = 0.01
ONE_EACH = {f"date=2023-01-{day:02d}": 1 for day in range(1, DAYS + 1)}


@pytest.fixture
def written() -> list[Written]:
    return over_days(300)


@pytest.fixture
def url(broker: BrokerProcess, topic: str, written: list[Written]) -> str:
    tables.create(broker.bootstrap, topic, PARTITIONS)
    produce(broker.bootstrap, topic, written)
    return f"kafka://{broker.bootstrap}/{topic}"


def archived(spark: SparkSession, url: str, lake: Path, form: str) -> None:
    """In so many batches, each with all days."""
    done = archive.run(spark, archive.ArchiveConfig(url, str(lake), form, max_records=100))
    assert done.batches == BATCHES
    assert files(lake) == dict.fromkeys(ONE_EACH, BATCHES)


def aged(lake: Path) -> None:
    """All that lies there, as if it had been for eight days."""
    back = time.time() - 8 * 24 * 3600
    for path in lake.rglob("*"):
        os.utime(path, (back, back))


def live(spark: SparkSession, lake: Path) -> int:
    """How many files the table has, whatever else lies in its folder."""
    return len(table.existing(spark, str(lake)).read().inputFiles())


@FORMATS
def test_small_files_become_one_for_each_date_and_the_archive_goes_on(
    spark: SparkSession,
    broker: BrokerProcess,
    topic: str,
    url: str,
    written: list[Written],
    tmp_path: Path,
    form: str,
) -> None:
    lake = tmp_path / "lake"
    archived(spark, url, lake, form)
    before = table.existing(spark, str(lake)).ledger()
    orphan = {
        "delta": "date=2023-01-01/part-7.parquet",
        "parquet": f"{STAGING}/9-killed/date=2023-01-01/part-7.parquet",
    }[form]
    (lake / orphan).parent.mkdir(parents=True, exist_ok=True)
    (lake / orphan).write_bytes(b"")
    aged(lake)
    told = CliRunner().invoke(pipeline, ["maintain", str(lake), "--json", "--quiet"])
    assert told.exit_code == 0, told.output
    done = json.loads(told.stdout)
    assert (done["format"], done["merged"], done["into"]) == (form, BATCHES * DAYS, DAYS)
    assert done["removed"] == 1 and not (lake / orphan).exists()
    assert live(spark, lake) == DAYS
    if form == "parquet":  # of a Delta table VACUUM keeps what was replaced just now
        assert files(lake) == ONE_EACH
    assert tables.table_rows(spark, lake) == tables.expected(written)
    assert table.existing(spark, str(lake)).ledger().next == before.next

    again = maintain.run(spark, maintain.MaintainConfig(str(lake)))
    assert (again.done.merged, again.done.into) == (0, 0)
    more = over_days(80)
    produce(broker.bootstrap, topic, more)
    assert archive.run(spark, archive.ArchiveConfig(url, str(lake))).rows == len(more)
    assert tables.table_rows(spark, lake) == tables.expected([*written, *more])


@contextmanager
def maintaining(lake: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process, killed at the end of the block with its JVM."""
    line = [sys.executable, "-m", "twisted_broker.cli.main", "pipeline", "maintain", str(lake)]
    child = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.kill()
        child.wait(PATIENCE_SECONDS)


def begun(lake: Path, files_before: set[Path]) -> bool:
    """Whether new data files are being written; a Parquet table's in staging."""
    return bool({*lake.rglob("*.parquet")} - files_before)


@FORMATS
def test_killed_in_the_middle_it_loses_and_repeats_nothing(
    spark: SparkSession, url: str, written: list[Written], tmp_path: Path, form: str
) -> None:
    lake = tmp_path / "lake"
    archived(spark, url, lake, form)
    before = {*lake.rglob("*.parquet")}
    with maintaining(lake) as child:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not begun(lake, before):
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(LOOK_SECONDS)
    assert tables.table_rows(spark, lake) == tables.expected(written)
    maintain.run(spark, maintain.MaintainConfig(str(lake)))
    assert live(spark, lake) == DAYS
    assert tables.table_rows(spark, lake) == tables.expected(written)
    assert archive.run(spark, archive.ArchiveConfig(url, str(lake))).rows == 0
    if form == "parquet":
        assert files(lake) == ONE_EACH
        assert len([*(lake / LEDGERS).glob("0*.json")]) == BATCHES + 1


def test_several_tables(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """One after another; all of them are looked at before the first is changed."""
    lakes = [tmp_path / "first", tmp_path / "second"]
    for lake in lakes:
        archived(spark, url, lake, "parquet")
    refused = CliRunner().invoke(pipeline, ["maintain", *map(str, lakes), str(tmp_path / "none")])
    assert refused.exit_code == 2 and files(lakes[0]) != ONE_EACH
    told = CliRunner().invoke(pipeline, ["maintain", *map(str, lakes), "--json", "--quiet"])
    assert told.exit_code == 0, told.output
    assert [json.loads(line)["table"] for line in told.stdout.splitlines()] == [*map(str, lakes)]
    assert [files(lake) for lake in lakes] == [ONE_EACH] * 2


def test_a_merge_that_would_lose_rows_changes_nothing(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    archived(spark, url, lake, "parquet")
    before = sorted(lake.rglob("*"))
    monkeypatch.setattr(
        "replog_pipeline.lake.parquet.by_date", lambda rows: rows.where("partition > 0")
    )
    told = CliRunner().invoke(pipeline, ["maintain", str(lake), "--quiet"])
    assert told.exit_code == 2 and "gave 225 rows, not as many as they have" in told.stderr
    assert sorted(lake.rglob("*")) == before


@FORMATS
def test_a_continuous_archive_merges_small_files_itself(
    spark: SparkSession, url: str, written: list[Written], tmp_path: Path, form: str
) -> None:
    """After so many batches of the table; not where it ends, nor where it is not to."""

    class Once(Stopper):
        def wait(self, seconds: float) -> bool:
            return True

    def live_after(name: str, **more: Any) -> int:
        config = archive.ArchiveConfig(url, str(tmp_path / name), form, max_records=100, **more)
        archive.run(spark, config, stopper=Once())
        assert tables.table_rows(spark, tmp_path / name) == tables.expected(written)
        return live(spark, tmp_path / name)

    assert live_after("merged", interval=0.1, maintain_every=BATCHES) == DAYS
    assert live_after("ends", maintain_every=BATCHES) == BATCHES * DAYS


def test_a_merge_that_fails_stops_no_continuous_archive(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: DeltaTable, *_: int) -> None:
        raise OSError("the disk is full")

    class Once(Stopper):
        def wait(self, seconds: float) -> bool:
            return True

    monkeypatch.setattr(DeltaTable, "maintain", fail)
    said = io.StringIO()
    config = archive.ArchiveConfig(url, str(tmp_path / "lake"), interval=0.1, maintain_every=1)
    done = archive.run(spark, config, Progress(stream=said), Once())
    assert done.batches == 1
    assert "merging small files failed, later again: OSError: the disk is full" in said.getvalue()
