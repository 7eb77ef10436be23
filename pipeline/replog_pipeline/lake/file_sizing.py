"""How many files a batch becomes: one for each date, unless it is large.

1. Rows are brought together by date before they are written; otherwise every task that reads
   writes a file for every date that it meets. That costs a shuffle.
2. No shuffle where it would join little: a large batch whose records are all of one day, as the
   brokers say. Each task writes what it reads, a partition, into one file. If the brokers are wrong
   there are more files, and the same rows.
3. A date that is larger than the target is split, at the borders of what the reading tasks read:
   one task's rows of a date stay in one file.
4. The settings are the session's, so they are there only while the batch is written.
5. A file is small below half of the target. Merged are those of a date, if it has two or more.

Source: Spark's REBALANCE hint and its adaptive execution. Not here: a Delta table's files
(OPTIMIZE has its own rules).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

from replog_pipeline.lake.session_settings import configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPEN_WRITERS = "spark.sql.maxConcurrentOutputFileWriters"
DATES_AT_ONCE = "16"
TARGET_MB, MOST_MB = 128, 1 << 20
ROWS_A_MB = 2_000
"""For each MiB of the target a partition must have so many rows to be written without a shuffle:
of 100 bytes each, they are a fifth of it.
"""
SORTED_ROWS = 500_000
"""A task with at most so many rows sorts them by date in memory, which costs less than files held
open; with 1,250,000 it costs more (benchmarks/README.md).
"""
FILES_AT_ONCE = 1_000
"""Of a merge: bounds what is done again after a kill."""


def by_date(rows: DataFrame, columns: Sequence[str] = ("date",)) -> DataFrame:
    """The same rows, those of a date (or of one of each of other `columns`) together; write them
    within `sized`.
    """
    return rows.hint("rebalance", *columns)


def needs_no_shuffle(
    offsets: Iterable[int], file_mb: int, are_of_one_day: Callable[[], bool]
) -> bool:
    """`offsets`: how many a batch has of each partition. The question is asked only where all of
    these are large.
    """
    return min(offsets) >= file_mb * ROWS_A_MB and are_of_one_day()


@contextmanager
def sized(spark: SparkSession, target_mb: int, rows_of_task: int | None = None) -> Iterator[None]:
    """What is written in the block makes files of at most about `target_mb` MiB, as Spark's
    shuffle counts them. `rows_of_task`: at most so many in each task; None: not known.
    """
    wanted = {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": str(target_mb << 20),
    }
    is_small = rows_of_task is not None and rows_of_task <= SORTED_ROWS
    if not is_small and not int(spark.conf.get(OPEN_WRITERS, "0") or 0):
        # Else a task sorts its rows by date first, on disk where they are many.
        wanted[OPEN_WRITERS] = DATES_AT_ONCE
    with configured(spark, wanted):
        yield


def small_files(
    names: Sequence[str], size: Callable[[str], int], target_bytes: int
) -> Iterator[list[str]]:
    """Files to merge at once: whole dates, together at least one and up to about
    `FILES_AT_ONCE`.
    """
    found: list[str] = []
    for _, group in groupby(sorted(names), lambda name: name.rpartition("/")[0]):
        small = [name for name in group if size(name) < target_bytes // 2]
        if len(small) < 2:
            continue
        if found and len(found) + len(small) > FILES_AT_ONCE:
            yield found
            found = []
        found = found + small
    if found:
        yield found
