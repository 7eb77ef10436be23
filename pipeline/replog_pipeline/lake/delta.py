"""A Delta table whose commits carry the ledger.

1. A batch is one Delta commit. Its `userMetadata` is the ledger's text; its transaction identifier
   (`txn`, of the application below) has the number of the batch as version. Both are the commit's
   own, so they are there exactly when the rows are.
2. The ledger is read from the newest commit that carries one: a listing and a small file, no Spark
   job. Commits of others (OPTIMIZE, VACUUM, DELETE) are passed over.
3. Delta skips a batch whose number was committed, and of two that commit the same number at once
   one fails: both are seen here as `AnotherWriterError`, because the ledger found afterwards is not
   the writer's own.
4. A commit file that was truncated stops an archive: its ledger may stand there while its rows do
   not.
5. After each batch its ledger is written to `_replog/reached` too, which no clean-up of the log
   touches. When the log was cleaned of all commits with a ledger (its checkpoint keeps the `txn`),
   the copy of the batch that `txn` names is the ledger: whatever rows were deleted since, none of
   their records comes again. Without that copy (a table of an earlier version, or a kill between
   the commit and it, and no run before the clean-up) the offsets are the largest in the table, and
   no less than an older copy's; topic ids are then not known until the next batch.

6. A table of last values is not partitioned by date: a key's row moves with its timestamp. Its
   batches are commits of MERGE, with the same ledger and transaction.

By hand, though libraries read commits: a ledger is wanted before Spark runs, through the same
Hadoop settings and credentials as the rows, and a commit that was cut short must show; delta-spark
runs a job for its history, `deltalake` has its own settings of stores, and both take what is left
of a cut commit for the whole. Rows, merges and snapshots are delta-spark's.

Source: Delta's protocol ("Transaction Identifiers", "Commit Provenance Information").
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from replog_pipeline.columns import DECODED
from replog_pipeline.errors import PipelineError
from replog_pipeline.lake.conflict import AnotherWriterError
from replog_pipeline.lake.forgotten import Mark
from replog_pipeline.lake.last_values import merge
from replog_pipeline.lake.layout import Layout
from replog_pipeline.lake.ledger import Ledger, found_in
from replog_pipeline.lake.maintained import Maintained
from replog_pipeline.lake.session_settings import configured
from replog_pipeline.lake.spark_table import SparkTable
from replog_pipeline.lake.timestamps import in_microseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOG = "_delta_log"
REACHED = "_replog/reached"
APPLICATION = "replog-archive"
TXN_APPLICATION = "spark.databricks.delta.write.txnAppId"
TXN_VERSION = "spark.databricks.delta.write.txnVersion"
METADATA = "spark.databricks.delta.commitInfo.userMetadata"
NEW_FIELDS = "spark.databricks.delta.schema.autoMerge.enabled"
OPTIMIZED = "spark.databricks.delta.optimizeWrite.enabled"
"""What a writer's options are to an append, settings of the session are to a MERGE."""
MERGED = ("Inserted", "Updated", "Deleted")
VECTORS = "numTargetDeletionVectorsAdded"
COMMIT = re.compile(r"\d{20}\.json")
SIZES = tuple(f"spark.databricks.delta.optimize.{each}FileSize" for each in ("min", "max"))
LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
"""VACUUM lists with so many tasks however few folders there are: 10,000 unless said."""
UNCHECKED = "spark.databricks.delta.retentionDurationCheck.enabled"
CONFLICTS = ("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")


class DeltaTable(SparkTable):
    """The table in `files`."""

    format = "delta"

    def commits(self) -> Iterator[dict[str, Any]]:
        """What the commits in the log say of themselves, newest first."""
        for name in reversed(self.commit_names()):
            yield commit_info(self.files.read(f"{LOG}/{name}"), self.files.path(f"{LOG}/{name}"))

    def commit_names(self) -> list[str]:
        return [name for name in self.files.names(LOG) if COMMIT.fullmatch(name)]

    def newest(self) -> tuple[Ledger, dict[str, Any]] | None:
        """The newest ledger in the log, and the commit that carries it."""
        for info in self.commits():
            found = found_in(
                info.get("userMetadata"), f"{self.files.path(LOG)}: {info.get('operation')}"
            )
            if found is not None:
                return found, info
        return None

    def ledger(self) -> Ledger:
        """What the table has taken.

        PipelineError for a Delta table that no archive of ours wrote.
        """
        if not self.commit_names():
            return Ledger()
        found = self.newest()
        return found[0] if found else self.recovered()

    def known(self) -> Ledger | None:
        """The ledger, without Spark; None where only the rows know it."""
        found = self.newest()
        return found[0] if found else None if self.commit_names() else Ledger()

    def recover(self) -> None:
        """The copy of the newest ledger, where a run was killed before it."""
        found = self.newest()
        if found is not None:
            self.remember(found[0])

    def remember(self, ledger: Ledger) -> None:
        """Keep a copy of this ledger beside the log, and no older one."""
        newest = f"{ledger.batch:020d}.json"
        if self.files.exists(f"{REACHED}/{newest}"):
            return
        self.files.create(f"{REACHED}/{newest}", ledger.to_text().encode())
        for name in self.files.names(REACHED):
            if name < newest:
                self.files.remove(f"{REACHED}/{name}")

    def remembered(self) -> Ledger | None:
        """The newest copy."""
        names = [name for name in self.files.names(REACHED) if COMMIT.fullmatch(name)]
        if not names:
            return None
        place = f"{REACHED}/{names[-1]}"
        return found_in(self.files.read(place).decode(errors="replace"), self.files.path(place))

    def append(self, rows: DataFrame, after: Ledger) -> int:
        """Append `rows` as the batch that `after` is the ledger of; how many they were.

        AnotherWriterError when that batch is taken.
        """
        self.files.check_lock()
        options = {
            "txnAppId": APPLICATION,
            "txnVersion": str(after.batch),
            "userMetadata": after.to_text(),
        }
        writer = rows.write.format("delta").mode("append").options(**options)
        if not after.upsert:
            writer = writer.partitionBy(*after.layout.partition_by)
        with in_microseconds(self.spark), conflicts(self, after):
            writer.option("mergeSchema", str(after.decoded)).save(self.files.path())
        count = self.committed_rows(after)
        self.remember(after)
        return count

    def upsert(self, rows: DataFrame, after: Ledger) -> int:
        """Bring `rows`, one for each key, into the table as the batch that `after` is the ledger
        of; how many rows were inserted, replaced and deleted. A row without value is a tombstone.

        AnotherWriterError when that batch is taken.
        """
        if not self.commit_names():
            return self.append(rows.where("value is not null"), after)
        self.files.check_lock()
        view = f"replog_{after.attempt}"
        rows.createOrReplaceTempView(view)
        wanted = {
            TXN_APPLICATION: APPLICATION,
            TXN_VERSION: str(after.batch),
            METADATA: after.to_text(),
            NEW_FIELDS: str(after.decoded).lower(),
            OPTIMIZED: "true",
        }
        try:
            with (
                in_microseconds(self.spark),
                configured(self.spark, wanted),
                conflicts(self, after),
            ):
                self.spark.sql(merge(self.place(), view)).collect()
        finally:
            self.spark.catalog.dropTempView(view)
        count = self.committed_rows(after)
        self.remember(after)
        return count

    def place(self) -> str:
        """As SQL names it."""
        return f"delta.`{self.files.path().replace('`', '``')}`"

    def committed_rows(self, after: Ledger) -> int:
        """How many rows Delta counted in the commit of this attempt."""
        for info in self.commits():
            found = found_in(info.get("userMetadata"), self.files.path(LOG))
            if found is not None and found.attempt == after.attempt:
                return changed_rows(info)
            if found is not None and found.batch <= after.batch:
                break
        raise AnotherWriterError(self.files.path(), after.batch)

    def recovered(self) -> Ledger:
        """The ledger by its copy, else by the rows themselves, of the batch that Delta knows."""
        from pyspark.sql import functions as f

        batch, kept = self.last_transaction(), self.remembered()
        if kept is not None and kept.batch == batch:
            return kept
        if batch is None:
            raise PipelineError(
                f"{self.files.path()} is a Delta table that no `replog pipeline archive` "
                "wrote: name another"
            )
        rows = self.read()
        found = rows.groupBy("topic", "partition").agg((f.max("offset") + 1).alias("next"))
        ends = {(row.topic, row.partition): row.next for row in found.collect()}
        for key, offset in (kept.next if kept else {}).items():
            ends[key] = max(offset, ends.get(key, 0))
        detail = self.spark.sql(f"describe detail {self.place()}").collect()[0]
        layout = Layout(tuple(detail["partitionColumns"]))
        return Ledger(
            batch,
            {topic: None for topic, _ in ends},
            ends,
            decoded=DECODED in rows.columns,
            upsert=layout == Layout(()),
            layout=layout,
        )

    def last_transaction(self) -> int | None:
        """The number of the last batch, as Delta's snapshot has it."""
        jvm: Any = self.spark._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            self.spark._jsparkSession, self.files.path()
        )
        found = log.unsafeVolatileSnapshot().transactions().get(APPLICATION)
        return int(found.get()) if found.isDefined() else None

    def maintain(self, target_mb: int, retain_hours: int) -> Maintained:
        """OPTIMIZE, then VACUUM: files that no version of the last `retain_hours` names. An
        archive may run meanwhile.
        """
        self.files.check_lock()
        place = self.place()
        sizes = dict.fromkeys(SIZES, str(target_mb << 20))
        with in_microseconds(self.spark), configured(self.spark, sizes):
            metrics = self.spark.sql(f"OPTIMIZE {place}").collect()[0].metrics
        before = self.data_files()
        with configured(self.spark, self.listing()):
            self.spark.sql(f"VACUUM {place} RETAIN {retain_hours} HOURS").collect()
        removed = len(before - self.data_files())
        return Maintained(self.format, metrics.numFilesRemoved, metrics.numFilesAdded, removed)

    def forget(self, mark: Mark) -> int:
        """Delete the rows of these keys, and every file that the newest version does not name; how
        many rows. The caller has the lock.
        """
        self.files.check_lock()
        rows = self.read().where(mark.of_key()).count()
        if rows:
            self.spark.sql(f"delete from {self.place()} where {mark.of_key()}").collect()  # noqa: S608  digests
        self.spark.sql(f"REORG TABLE {self.place()} APPLY (PURGE)").collect()
        with configured(self.spark, {UNCHECKED: "false", **self.listing()}):
            self.spark.sql(f"VACUUM {self.place()} RETAIN 0 HOURS").collect()
        return rows

    def listing(self) -> dict[str, str]:
        return {LISTING_TASKS: str(4 * self.spark.sparkContext.defaultParallelism)}

    def data_files(self) -> set[str]:
        """All that lie in the folder, also those that no version names."""
        return {name for name in self.files.walk("") if name.endswith(".parquet")}

    def read(self, **options: str) -> DataFrame:
        """The committed rows. `options` as Delta's reader has them: versionAsOf, timestampAsOf."""
        return self.spark.read.format("delta").options(**options).load(self.files.path())


@contextmanager
def conflicts(table: DeltaTable, after: Ledger) -> Iterator[None]:
    """Delta's errors on another writer's commit become AnotherWriterError."""
    try:
        yield
    except Exception as error:
        if any(name in str(error) for name in CONFLICTS):
            raise AnotherWriterError(table.files.path(), after.batch) from error
        raise


def changed_rows(info: dict[str, Any]) -> int:
    """Of a commit: rows that it appended; of a merge those that it inserted, replaced, deleted."""
    metrics = info.get("operationMetrics", {})
    if info.get("operation") != "MERGE":
        return int(metrics.get("numOutputRows", 0))
    return sum(int(metrics.get(f"numTargetRows{each}", 0)) for each in MERGED)


def commit_info(content: bytes, place: str) -> dict[str, Any]:
    """The `commitInfo` action of a commit file; empty when it has none. PipelineError for a file
    that was truncated.

    An append, or a merge, has as many `add` actions as its `commitInfo`, which comes first, counts
    files: so a cut between two lines shows too.
    """
    try:
        actions = [json.loads(line) for line in content.splitlines()]
        info = dict(
            next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        )
        metrics = info.get("operationMetrics", {})
        is_merge, counted = info.get("operation") == "MERGE", None
        # Of an append without rows Delta counts the empty file that it then leaves out.
        if info.get("operation") == "WRITE" and metrics.get("numOutputRows") != "0":
            counted = metrics.get("numFiles")
        elif is_merge:
            counted = metrics.get("numTargetFilesAdded")
        adds = [action["add"] for action in actions if "add" in action]
        # A file whose rows a deletion vector marks is added again, and counted by its vector.
        marked = sum("deletionVector" in add for add in adds) if is_merge else 0
        is_whole = (
            bool(actions)
            and counted in (None, str(len(adds) - marked))
            and marked >= int(metrics.get(VECTORS, 0) if is_merge else 0)
        )
    except (ValueError, TypeError, AttributeError):
        is_whole = False
    if not is_whole:
        cure = (
            "restore it from a copy; or, if it is the newest one, remove it, and its rows "
            "are archived again"
        )
        raise PipelineError(f"{place} is cut short: {cure}")
    return info
