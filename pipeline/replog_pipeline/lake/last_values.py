"""What a batch makes of a table that holds the last value of each key.

1. Of a batch each key has one row: the record of the highest offset. Where a key is in several
   partitions (the number of partitions was changed), which Kafka does not order, it is the one of
   the latest timestamp.
2. A table's row is replaced, or by a tombstone deleted, only by a record that comes after it: of
   the same partition by its offset, of another by its timestamp. So a batch that comes again
   changes nothing.
3. A record without key is no row of such a table: it is an error, and nothing of the batch is
   written. Kafka's own compacted topics take none.

Source: KAFKA "Log Compaction"; Delta's MERGE. Not here: the commit (`delta`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from replog_pipeline.errors import PipelineError, text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WITHOUT_KEY = "record without a key: "
FOUND = re.compile(rf"{WITHOUT_KEY}([^\s'\"]+ at offset \d+)")
KEY = ("topic", "key")
AFTER = (
    "(new.partition = old.partition and new.offset > old.offset"
    " or new.partition <> old.partition and new.timestamp >= old.timestamp)"
)


def last_of_each_key(rows: DataFrame) -> DataFrame:
    """The same columns. The job fails at a record without key: see `keyless`."""
    from pyspark.sql import functions as f

    place = f.concat(
        f.lit(WITHOUT_KEY), "topic", f.lit("-"), "partition", f.lit(" at offset "), "offset"
    )
    key = f.when(f.col("key").isNull(), f.raise_error(place)).otherwise(f.col("key"))
    row = f.struct(*(f.col(name) for name in rows.columns))
    in_partition = (
        rows.withColumn("key", key)
        .groupBy(*KEY, "partition")
        .agg(f.max_by(row, "offset").alias("row"))
    )
    latest = f.struct("row.timestamp", "row.partition")
    return in_partition.groupBy(*KEY).agg(f.max_by("row", latest).alias("row")).select("row.*")


def merge(table: str, view: str) -> str:
    """The statement that brings the rows of `view`, one for each key, into `table`."""
    same = " and ".join(f"new.{name} = old.{name}" for name in KEY)
    return (
        f"merge into {table} as old using {view} as new on {same}"
        f" when matched and {AFTER} and new.value is null then delete"
        f" when matched and {AFTER} then update set *"
        " when not matched and new.value is not null then insert *"
    )


def keyless(error: Exception) -> PipelineError | None:
    """The one line of a batch that had a record without key; None for any other failure."""
    found = FOUND.search(text_of(error))
    if found is None:
        return None
    return PipelineError(
        f"{found.group(1)} has no key: --mode upsert keeps the last value of each key; archive "
        "this topic without it, into another table"
    )
