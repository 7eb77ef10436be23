"""Which table lies at a path, and what stands in the way of one.

A Delta table has `_delta_log`, a Parquet table of ours `_replog/ledger`. A folder with anything
else in it is nobody's table to append to, except what a first batch left behind that died: a folder
is claimed (`_replog/format`) before anything else is written to it.

A format is a class of `ITable` in `FORMATS`, and its jars in `machine.jars`. Iceberg would be one:
its table is known by `metadata/*.metadata.json`, its ledger would be a property of the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from replog_pipeline.errors import PipelineError
from replog_pipeline.lake import files as lake_files
from replog_pipeline.lake.delta import LOG, DeltaTable
from replog_pipeline.lake.files import IFiles, LocalFiles
from replog_pipeline.lake.ledger import Ledger
from replog_pipeline.lake.maintained import Maintained
from replog_pipeline.lake.parquet import LEDGERS, ParquetTable
from replog_pipeline.stores import places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CLAIM = "_replog/format"
FORMATS: dict[str, Callable[[SparkSession | None, IFiles], ITable]] = {
    "delta": DeltaTable,
    "parquet": ParquetTable,
}
ICEBERG = "iceberg"
NO_ICEBERG = (
    "Apache Iceberg has no runtime for Spark 4.2 yet (that of 4.1 fails on it): use delta or "
    "parquet, see docs/PIPELINE.md"
)
ICEBERG_METADATA = "metadata"


class ITable(Protocol):
    """A table of records."""

    format: str
    files: IFiles

    def ledger(self) -> Ledger: ...
    def known(self) -> Ledger | None: ...
    def recover(self) -> None: ...
    def append(self, rows: DataFrame, after: Ledger) -> int: ...
    def upsert(self, rows: DataFrame, after: Ledger) -> int: ...
    def maintain(self, target_mb: int, retain_hours: int) -> Maintained: ...
    def read(self) -> DataFrame: ...


def found_format(files: IFiles) -> str | None:
    """The format of the table in `files`, None where there is nothing yet.

    PipelineError for anything else.
    """
    if files.names(LOG):
        return "delta"
    if files.names(LEDGERS):
        return "parquet"
    if files.exists(CLAIM):
        return files.read(CLAIM).decode()
    if files.exists("") and not files.is_folder():
        raise PipelineError(f"{files.path()} is a file, not a table: name a folder")
    if any(name.endswith(".metadata.json") for name in files.names(ICEBERG_METADATA)):
        raise PipelineError(f"{files.path()} is an Iceberg table: {NO_ICEBERG}")
    tables = tables_in(files)
    if tables:
        raise PipelineError(
            f"{files.path()} is a folder of tables: name one of them, as {files.path(tables[0])}"
        )
    if files.names():
        raise PipelineError(
            f"{files.path()} holds {files.names()[0]} and is no table: name an empty folder "
            "or one that does not exist"
        )
    return None


def tables_in(files: IFiles) -> list[str]:
    """The folders in it that are tables."""
    return [
        name
        for name in files.names()
        if any(files.exists(f"{name}/{each}") for each in (LOG, LEDGERS, CLAIM))
    ]


def claim(table: ITable) -> None:
    """Say whose the folder is, before the first batch."""
    table.files.create(CLAIM, table.format.encode())


def is_here(place: str) -> bool:
    """Whether it is a folder of this machine, or of a mount."""
    return lake_files.local(place) is not None


def check_to(place: str, wanted: str | None, setting: str = "--to") -> Ledger | None:
    """What can be known of `--to` without Spark: its ledger, None if it is elsewhere or only the
    rows know it. PipelineError for a Parquet table on an object store, and for a folder here that
    is no table, of another format, whose ledger or commit is damaged, or that cannot be written
    to.
    """
    places.check(place, setting)
    places.check_ledger(place, wanted, setting)
    folder = lake_files.local(place)
    if folder is None:
        return None
    files = LocalFiles(folder)
    try:
        found = found_format(files)
        check_format(found, wanted, place)
        for name in ("", LOG, LEDGERS):
            if not name or files.exists(name):
                lake_files.check_writable(folder / name, setting)
        return of_format(None, files, found).known() if found else Ledger()
    except OSError as error:
        raise lake_files.not_writable(error, Path(error.filename or folder), setting) from error


def format_here(place: str) -> str | None:
    """The format of the table at `place`, None where there is none or it is elsewhere."""
    folder = lake_files.local(place)
    return None if folder is None else found_format(LocalFiles(folder))


def check_from(place: str) -> Ledger | None:
    """What can be known of a table to be read without Spark: its ledger, None if it is
    elsewhere. PipelineError where there is no table.
    """
    places.check(place, "--from")
    folder = lake_files.local(place)
    if folder is None:
        return None
    return existing(None, place).known()


def check_format(found: str | None, wanted: str | None, place: str) -> None:
    if found and wanted and found != wanted:
        raise PipelineError(f"--format {wanted}: the table {place} is {found}; leave --format out")


def to_append(spark: SparkSession, place: str, wanted: str | None) -> ITable:
    """The table at `place`, or a new one of the format `wanted` (delta unless said).

    PipelineError when it is of another format or no table.
    """
    files = lake_files.of(spark, place)
    found = found_format(files)
    check_format(found, wanted, place)
    form = found or wanted or "delta"
    places.check_ledger(place, form, "--to")
    return of_format(spark, files, form)


def existing(
    spark: SparkSession | None,
    place: str,
    setting: str = "--from",
    others: str = ", kafka://HOST:PORT/TOPIC or segments:DIR",
) -> ITable:
    """The table at `place`. PipelineError when there is none."""
    files = lake_files.of(spark, place)
    found = found_format(files)
    if found == "parquet" and not files.names(LEDGERS):
        ParquetTable(spark, files).entries()  # all of them may be lost
    if found is None or not (files.names(LOG) or files.names(LEDGERS)):
        raise PipelineError(
            f"{setting} {place}: there is no table; name the --to of an archive{others}"
        )
    return of_format(spark, files, found)


def of_format(spark: SparkSession | None, files: IFiles, name: str) -> ITable:
    return FORMATS[name](spark, files)
