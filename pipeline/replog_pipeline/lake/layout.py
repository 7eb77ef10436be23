"""By the values of which columns the rows of a Delta table that holds every record lie in folders.

It is chosen by the first batch, and stands in the ledger; later runs need not say it. Where it is
not said it is `date`.

Source: our own. Not here: how many files a batch becomes (`file_sizing`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from replog_pipeline.errors import PipelineError

FOLDERS = ("date", "topic", "partition")


@dataclass(frozen=True)
class Layout:
    """Of a table of the last values it is empty."""

    partition_by: tuple[str, ...] = ("date",)

    def to_json(self) -> dict[str, object]:
        return {"partition_by": [*self.partition_by]}

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Layout:
        return cls(tuple(found["partition_by"]))

    def __str__(self) -> str:
        return f"--partition-by {','.join(self.partition_by)}"


BY_DATE = Layout()


def parse(partition_by: str | None) -> Layout | None:
    """As the command line says it; None where it does not. PipelineError."""
    if partition_by is None:
        return None
    found = tuple(name.strip() for name in partition_by.split(","))
    for name in found:
        if name not in FOLDERS:
            raise PipelineError(f"--partition-by: {name!r} is none of {', '.join(FOLDERS)}")
    if len({*found}) < len(found):
        raise PipelineError(f"--partition-by {partition_by}: a column comes twice")
    return Layout(found)


def check(wanted: Layout | None, form: str | None, upsert: bool, batch: int, has: Layout) -> None:
    """PipelineError where a table cannot have it, or `has` another one since its first batch."""
    if wanted is None:
        return
    if form == "parquet" and wanted != BY_DATE:
        raise PipelineError(f"{wanted}: a Parquet table lies in folders by date; use Delta")
    if upsert:
        raise PipelineError(f"{wanted}: a table of the last values has no folders: leave it out")
    if batch and wanted != has:
        raise PipelineError(f"{wanted}: the table has {has} since its first batch: leave it out")
