"""`forget`: rows, older versions and dead letters of a key are gone; a replay obeys the mark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from pyarrow.parquet import read_table

from replog_pipeline.cli import pipeline
from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs import archive, replay
from replog_pipeline.jobs.archive import bad_records
from replog_pipeline.lake import forgotten, table
from replog_pipeline.lake.files import LocalFiles
from replog_pipeline.lake.ledger import Ledger
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables
from tests.pipeline.records import OLD_MS, Written, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = 86_400_000
ADA, BOB = b"ada@example.org", b"bob@example.org"


def of(*keys: bytes | None) -> list[Written]:
    return [Written(0, key, b"value", OLD_MS + n % 2 * DAY) for n, key in enumerate(keys)]


def keys_in_files(lake: Path) -> set[bytes | None]:
    return {
        key
        for path in lake.rglob("*.parquet")
        if "_delta_log" not in path.parts
        for key in read_table(path, partitioning=None)["key"].to_pylist()
    }


@pytest.mark.more
def test_a_key_is_gone_from_rows_files_and_dead_letters_and_is_not_replayed(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    tables.create(broker.bootstrap, topic, 1, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    first = of(ADA, BOB, None, ADA)
    late = Written(0, ADA, b"late", 1 << 62)
    produce(broker.bootstrap, topic, [*first, late, replace(late, key=BOB)])
    url = f"kafka://{broker.bootstrap}/{topic}"
    config = archive.ArchiveConfig(url, str(lake), on_bad_record="dead-letter")
    assert archive.run(spark, config).rows == 4
    assert ADA in keys_in_files(lake)

    letters = lake / bad_records.FOLDER
    copytree(letters / "batch=1", letters / ".batch=1")  # killed while the folder was removed
    for path in (letters / "batch=1").glob("*.parquet"):
        path.unlink()
    with LocalFiles(lake).lock():
        refused = CliRunner().invoke(pipeline, ["forget", str(lake), "--key", ADA.decode()])
        assert refused.exit_code == 2 and "another archive" in refused.stderr
    arguments = ["forget", str(lake), "--key", ADA.decode(), "--json", "--quiet"]
    told = CliRunner().invoke(pipeline, arguments)
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["rows"] == 3
    assert keys_in_files(lake) == {BOB, None}
    assert keys_in_files(letters) == {BOB}
    first_version = spark.read.option("versionAsOf", 0).format("delta").load(str(lake))
    with pytest.raises(Exception, match=r"does not exist|FAILED_READ_FILE"):
        first_version.collect()
    said = b"".join(path.read_bytes() for path in lake.rglob("*.json"))
    assert ADA not in said and ADA.hex().encode() not in said.lower()

    produce(broker.bootstrap, topic, of(ADA))  # archived later: a record like any other
    assert archive.run(spark, config).rows == 1
    back = table.existing(spark, str(lake)).read().where("offset = 1").withColumnRenamed("key", "k")
    back = back.selectExpr(f"X'{ADA.hex()}' as key", "* except (k)").replace(1, 0, ["offset"])
    back.write.format("delta").mode("append").save(str(lake))  # as from a copy
    again = f"kafka://{broker.bootstrap}/{topic}-again"
    assert replay.run(spark, replay.ReplayConfig(str(lake), again)).written == 3


def test_a_parquet_table_cannot_forget(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    ledger = Ledger().after({"t": None}, {("t", 0): 0}).to_json()
    entry = json.dumps({"replog": ledger, "files": []}).encode()
    files.create("_replog/ledger/00000000000000000001.json", entry)
    told = CliRunner().invoke(pipeline, ["forget", str(tmp_path), "--key", "a"])
    assert told.exit_code == 2 and "needs a Delta table" in told.stderr
    told = CliRunner().invoke(pipeline, ["forget", str(tmp_path), "--key-hex", "abc"])
    assert told.exit_code == 2 and "two hexadecimal digits" in told.stderr


def test_a_mark_comes_back_from_its_file_and_one_that_is_cut_short_is_named(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    mark = forgotten.of([ADA], {("t", 0): 5, ("t", 1): 6})
    forgotten.write(files, mark)
    assert forgotten.marks(files) == [mark] and ADA.decode() not in mark.to_text()
    (path,) = tmp_path.rglob("*.json")
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(PipelineError, match="is damaged, and says which keys"):
        forgotten.marks(files)
