"""`--on-bad-record`: what becomes of a record that the table cannot have as it is.

| reason | the record |
|---|---|
| `timestamp` | has a timestamp that Spark cannot hold |
| `key` | has no key, and the table holds the last value of each |
| a code of `values.convert` | has a value that `--decode` cannot read |

1. `fail` stops at each of them. `null` keeps the row without what cannot be had: a null timestamp
   and date, a `decode_error`; a record without a key, which is no row, is left out. `dead-letter`
   keeps the record, bytes and all, beside the table and not in it. Not said: values as with `null`,
   the others as with `fail`.
2. Dead letters of batch N are files in `_replog/dead_letter/batch=N`, which readers of the table
   pass over. They are written before the batch is committed, in place of what an attempt of the
   same number left there: a killed run loses none, and has none twice.
3. What was bad is counted by reason, by the job that writes it.

Not here: how a record is read that the connector cannot hand on (`sources.own_fetches`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from replog_pipeline.columns import COLUMNS, ERROR
from replog_pipeline.errors import PipelineError, text_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

    from replog_pipeline.lake.forgotten import Mark
    from replog_pipeline.lake.table import ITable

FAIL, NULL, DEAD_LETTER = CHOICES = ("fail", "null", "dead-letter")
FOLDER = "_replog/dead_letter"
WRITTEN_WHOLE = "_SUCCESS"
"""What Spark writes into a folder last."""
TIMESTAMP, KEY = "timestamp", "key"
VALUE_CODES = (
    *("frame", "schema", "message", "malformed", "type", "range", "text", "depth", "internal"),
)
"""Those of `values.convert`, which needs more packages than an archive without `--decode`."""
REASONS = (TIMESTAMP, KEY, *VALUE_CODES)
WRITTEN_MS = "timestampMs"
MARK = "bad record: "
FOUND = re.compile(rf"{MARK}(\S+ at offset \d+): (\w+)")
PATIENCE_SECONDS, LOOK_SECONDS = 60.0, 0.02


def check(choice: str | None) -> None:
    """PipelineError for what is none."""
    if choice not in (None, *CHOICES):
        raise PipelineError(f"--on-bad-record: {choice!r} is none of {', '.join(CHOICES)}")


def reason(columns: list[str], *, needs_key: bool) -> Column:
    """Of a row: why it is bad; null where it is not."""
    from pyspark.sql import functions as f

    found = f.when(f.col("timestamp").isNull(), TIMESTAMP)
    if needs_key:
        found = found.when(f.col("key").isNull(), KEY)
    if ERROR in columns:
        found = found.otherwise(f.substring_index(ERROR, ":", 1))
    return found


def refusing(rows: DataFrame, why: Column) -> DataFrame:
    """The same rows; the job fails at a bad one: see `refused`."""
    from pyspark.sql import functions as f

    place = f.concat(
        *(f.lit(MARK), "topic", f.lit("-"), "partition", f.lit(" at offset "), "offset"),
        *(f.lit(": "), why),
    )
    topic = f.when(why.isNotNull(), f.raise_error(place)).otherwise(f.col("topic"))
    return rows.withColumn("topic", topic)


def refused(error: Exception) -> PipelineError | None:
    """The one line of a batch that had a bad record; None for any other failure."""
    found = FOUND.search(text_of(error))
    if found is None:
        return None
    return PipelineError(
        f"{found.group(1)} cannot be a row (reason: {found.group(2)}): --on-bad-record null keeps "
        "it without what cannot be read, dead-letter beside the table"
    )


class Counting:
    """Rows that are counted by reason while they are written."""

    def __init__(self, rows: DataFrame, why: Column) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        self.seen: Observation = Observation()
        self.rows = rows.observe(
            self.seen, *(f.count_if(why == each).alias(each) for each in REASONS)
        )

    def counts(self) -> dict[str, int]:
        """After they were written. Spark hands them on beside the job: a moment later."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        java: Any = self.seen._jo
        while not java.future().isCompleted():
            if time.monotonic() > deadline:
                raise PipelineError("Spark did not say how many records were bad: archive again")
            time.sleep(LOOK_SECONDS)
        return some(self.seen.get)


class DeadLetters:
    """Beside the table `target`."""

    def __init__(self, target: ITable) -> None:
        self.target = target

    def write(self, rows: DataFrame, why: Column, batch: int) -> dict[str, int]:
        """The bad ones among `rows`, as those of this batch; how many, by reason."""
        from pyspark.sql import functions as f

        from replog_pipeline.lake.timestamps import in_microseconds

        ms = f.col(WRITTEN_MS) if WRITTEN_MS in rows.columns else f.unix_millis("timestamp")
        path = f.col(ERROR) if ERROR in rows.columns else f.lit(None).cast("string")
        bad = rows.select(
            *(each for each in COLUMNS if each != "timestamp"),
            ms.alias(WRITTEN_MS),
            why.alias("reason"),
            path.alias(ERROR),
        ).where("reason is not null")
        name = f"{FOLDER}/batch={batch}"
        with in_microseconds(rows.sparkSession):
            bad.write.mode("overwrite").parquet(self.target.files.path(name))
        written = rows.sparkSession.read.schema(bad.schema).parquet(self.target.files.path(name))
        counts = {row.reason: row["count"] for row in written.groupBy("reason").count().collect()}
        if not counts:
            self.remove(batch)
        return {each: counts[each] for each in REASONS if each in counts}

    def remove(self, batch: int) -> None:
        """Of a batch that another writer has taken."""
        self.target.files.remove(f"{FOLDER}/batch={batch}")


def forget(target: ITable, spark: SparkSession, mark: Mark) -> int:
    """Dead letters of these keys, out of their files; how many. A batch's folder is written anew
    beside itself, and takes its place; what a killed run wrote whole, as its last file says, takes
    it first.
    """
    files, rows = target.files, 0
    for name in [each for each in files.names(FOLDER) if each.startswith(".")]:
        if files.exists(f"{FOLDER}/{name}/{WRITTEN_WHOLE}"):
            files.remove(f"{FOLDER}/{name[1:]}")
            files.move(f"{FOLDER}/{name}", f"{FOLDER}/{name[1:]}")
        else:
            files.remove(f"{FOLDER}/{name}")
    for name in files.names(FOLDER):
        place, new = f"{FOLDER}/{name}", f"{FOLDER}/.{name}"
        letters = spark.read.parquet(files.path(place))
        found = letters.where(mark.of_key()).count()
        if found:
            letters.where(f"not {mark.of_key()}").write.parquet(files.path(new))
            files.remove(place)
            files.move(new, place)
            rows += found
    return rows


def some(counts: Mapping[str, int]) -> dict[str, int]:
    """Those reasons that there were."""
    return {each: count for each, count in counts.items() if count}


def together(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return some({each: one.get(each, 0) + other.get(each, 0) for each in REASONS})


def said(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{each} {count:,}" for each, count in counts.items())
