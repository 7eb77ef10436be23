"""What all tables have: their files, and Spark for their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replog_pipeline.lake.files import IFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkTable:
    """The table in `files`; `spark` None: only its ledger is read."""

    def __init__(self, spark: SparkSession | None, files: IFiles) -> None:
        self.files = files
        self._spark = spark

    @property
    def spark(self) -> SparkSession:
        """Needed for rows alone: a ledger is read without it."""
        assert self._spark is not None, "rows were requested without Spark"
        return self._spark
