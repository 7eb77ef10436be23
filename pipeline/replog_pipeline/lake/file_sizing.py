"""How many files a batch becomes: one for each date, unless it is large.

1. Rows are brought together by date before they are written; otherwise every task that reads
   writes a file for every date that it meets. That costs a shuffle.
2. A date that is larger than the target is split, at the borders of what the reading tasks read:
   one task's rows of a date stay in one file.
3. The settings are the session's, so they are there only while the batch is written.


Source: Spark's REBALANCE hint and its adaptive execution. Not here: files that are there
already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from replog_pipeline.lake.session_settings import configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TARGET_MB = 128


def by_date(rows: DataFrame) -> DataFrame:
    """The same rows, those of a date together; write them within `sized`."""
    return rows.hint("rebalance", "date")


@contextmanager
def sized(spark: SparkSession, target_mb: int) -> Iterator[None]:
    """What is written in the block makes files of at most about `target_mb` MiB, as Spark's
    shuffle counts them.
    """
    wanted = {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": str(target_mb << 20),
    }
    with configured(spark, wanted):
        yield
