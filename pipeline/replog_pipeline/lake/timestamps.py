"""Timestamps in Parquet files, those of Delta tables included: microseconds in UTC.

Spark's default is INT96: deprecated, with no word on the zone, so that other readers take local
time. Files that were written so are read as before; a table may have both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from replog_pipeline.lake.session_settings import configured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTING = "spark.sql.parquet.outputTimestampType"
MICROSECONDS = "TIMESTAMP_MICROS"


@contextmanager
def in_microseconds(spark: SparkSession) -> Iterator[None]:
    """What is written in the block; afterwards the session's setting is what it was.

    Delta takes no writer's option for it.
    """
    with configured(spark, {SETTING: MICROSECONDS}):
        yield
