"""`forget`: the records of some keys are deleted from a Delta table, and from its files.

1. In this order: the mark (`lake.forgotten`), dead letters, rows, files of older versions. Killed
   at any point it is run again; `replay` leaves the rows out from the first step on.
2. No archive may run meanwhile: files that no version names yet would be removed. On this machine,
   and on an object store, the table's lock sees to it.
3. Older versions of the table are gone afterwards: readers of one fail, and read again.

Source: our own. Not here: the topic, copies and backups (docs/PIPELINE.md has the recipe).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from replog_pipeline.errors import PipelineError, as_pipeline_error
from replog_pipeline.jobs.archive import bad_records
from replog_pipeline.lake import forgotten, table
from replog_pipeline.lake.delta import DeltaTable
from replog_pipeline.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_PARQUET = "rows of a Parquet table cannot be deleted: `forget` needs a Delta table"


@dataclass(frozen=True)
class ForgetConfig:
    """`place`: the table."""

    place: str
    keys: tuple[bytes, ...]


@dataclass(frozen=True)
class ForgetResult:
    """`rows`: deleted by this run, dead letters among them."""

    place: str
    keys: int
    rows: int

    def to_json(self) -> dict[str, object]:
        return {"table": self.place, "keys": self.keys, "rows": self.rows, "findings": []}

    def __str__(self) -> str:
        return f"{self.rows:,} records of {self.keys:,} keys deleted from {self.place}"


@as_pipeline_error
def run(
    spark: SparkSession, config: ForgetConfig, progress: Progress | None = None
) -> ForgetResult:
    """Forget. Raises PipelineError."""
    if not config.keys:
        raise PipelineError("forget: name a key, with --key or --key-hex")
    target = existing(spark, config.place)
    with target.files.lock():
        ledger = target.ledger()
        mark = forgotten.of(config.keys, dict(ledger.next))
        forgotten.write(target.files, mark)
        progress = progress or Progress(quiet=True)
        with progress.step(f"forget: {config.place}", spark):
            rows = bad_records.forget(target, spark, mark) + target.forget(mark)
    return ForgetResult(config.place, len(config.keys), rows)


def check(place: str) -> None:
    """What can be known without Spark. PipelineError."""
    table.check_to(place, None, "forget")
    if table.is_here(place):
        existing(None, place).known()


def existing(spark: SparkSession | None, place: str) -> DeltaTable:
    found = table.existing(spark, place, "forget", "")
    if not isinstance(found, DeltaTable):
        raise PipelineError(f"forget {place}: {NO_PARQUET}")
    return found
