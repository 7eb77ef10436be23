"""The same calls through Hadoop's FileSystem, here on the local one: what a URI with another
scheme goes through.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replog_pipeline.columns import COLUMNS
from replog_pipeline.lake import files as lake_files
from replog_pipeline.lake.conflict import AnotherWriterError
from replog_pipeline.lake.files import LocalFiles
from replog_pipeline.lake.hadoop_files import HadoopFiles
from replog_pipeline.lake.ledger import Ledger
from replog_pipeline.lake.parquet import SCHEMA, ParquetTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_calls_do_what_the_local_ones_do(spark: SparkSession, tmp_path: Path) -> None:
    hadoop, local = HadoopFiles(spark, f"file://{tmp_path}/lake/"), LocalFiles(tmp_path / "lake")
    assert hadoop.names() == [] and not hadoop.exists("a") and not hadoop.is_folder()
    assert hadoop.create("a/1.json", b"\0\xffone") and not hadoop.create("a/1.json", b"two")
    assert hadoop.read("a/1.json") == local.read("a/1.json") == b"\0\xffone"
    assert hadoop.size("a/1.json") == local.size("a/1.json") == 5
    assert abs(hadoop.modified("a/1.json") - local.modified("a/1.json")) < 1
    hadoop.sync("a")
    hadoop.create("a/b/2", b"")
    assert (
        hadoop.walk("a")
        == [name for name in local.walk("a") if not name.rpartition("/")[2].startswith(".")]
        == ["1.json", "b/2"]
    )
    hadoop.move("a/b/2", "c/2")
    assert hadoop.names("c") == ["2"] and hadoop.walk("a") == ["1.json"]
    hadoop.remove("a")
    hadoop.remove("a")
    assert hadoop.names() == ["c"]


def test_a_place_with_a_scheme_goes_through_hadoop(spark: SparkSession, tmp_path: Path) -> None:
    assert isinstance(lake_files.of(spark, str(tmp_path)), LocalFiles)
    assert lake_files.of(spark, f"file://{tmp_path}/x").path() == f"{tmp_path}/x"


def test_a_parquet_table_through_it(spark: SparkSession, tmp_path: Path) -> None:
    table = ParquetTable(spark, HadoopFiles(spark, f"file://{tmp_path}/lake"))
    rows = (
        spark.range(3)
        .selectExpr(
            "cast(id as string) key",
            "binary('v') value",
            "'t' topic",
            "0 partition",
            "id offset",
            "timestamp'2023-01-01' timestamp",
            "0 timestampType",
            "cast(null as array<struct<key:string,value:binary>>) headers",
            "date'2023-01-01' date",
        )
        .selectExpr("binary(key) key", *COLUMNS[1:], "date")
    )
    after = Ledger().after({"t": None}, {("t", 0): 3})
    assert table.append(rows, after) == 3
    assert table.ledger() == after
    assert [(row.offset, bytes(row.key)) for row in table.read().orderBy("offset").collect()] == [
        (0, b"0"),
        (1, b"1"),
        (2, b"2"),
    ]
    assert table.read().schema == spark.createDataFrame([], SCHEMA).schema
    with pytest.raises(AnotherWriterError):
        table.append(rows, Ledger().after({"t": None}, {("t", 0): 3}))
    assert table.read().count() == 3
