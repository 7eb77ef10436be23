"""`maintain`: small files of a table merged, orphans of killed runs removed.

1. The rows and the ledger's offsets stay what they are: an archive goes on afterwards where it was.
2. Killed at any point the table is whole, and a second run, or the next archive, finishes it.

Source: our own. Not here: how a format does it (`lake.delta`, `lake.parquet`).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from replog_pipeline.errors import as_pipeline_error
from replog_pipeline.lake import table
from replog_pipeline.lake.file_sizing import TARGET_MB
from replog_pipeline.lake.maintained import RETAIN_HOURS, Maintained
from replog_pipeline.progress import Progress
from replog_pipeline.stores import places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_HOURS = 1_000_000


@dataclass(frozen=True)
class MaintainConfig:
    """`place`: the table. Files are merged up to about `file_mb` MiB."""

    place: str
    file_mb: int = TARGET_MB
    retain_hours: int = RETAIN_HOURS


@dataclass(frozen=True)
class MaintainResult:
    """It has no findings: it judges nothing."""

    place: str
    done: Maintained

    def to_json(self) -> dict[str, object]:
        return {"table": self.place, **asdict(self.done), "findings": []}

    def __str__(self) -> str:
        return (
            f"{self.done.merged:,} small files of {self.place} merged into {self.done.into:,}, "
            f"{self.done.removed:,} left-overs removed ({self.done.format})"
        )


@as_pipeline_error
def run(
    spark: SparkSession, config: MaintainConfig, progress: Progress | None = None
) -> MaintainResult:
    """Maintain. Raises PipelineError."""
    target = found(spark, config.place)
    places.check_ledger(config.place, target.format, "maintain")
    # In an object store Delta has no mutual exclusion: a merge could lose an archive's commits.
    needs_lock = target.format == "parquet" or places.jars_of([config.place])
    alone = target.files.lock() if needs_lock else nullcontext()
    with alone, (progress or Progress(quiet=True)).step(f"maintain: {config.place}", spark):
        return MaintainResult(config.place, target.maintain(config.file_mb, config.retain_hours))


def check(place: str) -> None:
    """What can be known without Spark: PipelineError where there is no table, or a damaged one."""
    table.check_to(place, None, "maintain")
    if table.is_here(place):
        found(None, place).known()


def found(spark: SparkSession | None, place: str) -> table.ITable:
    return table.existing(spark, place, "maintain", "")
