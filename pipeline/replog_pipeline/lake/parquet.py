"""A Parquet table whose files become part of it by one ledger file each batch.

    date=2013-01-01/part-….parquet      committed rows
    _replog/ledger/00000000000000000008.json    batch 8: its offsets and its files
    _replog/staging/8-ATTEMPT/…         rows of an attempt that is not committed, or just has been

1. Rows are written to staging, which readers pass over (its name begins with `_`). Creating the
   ledger file commits them; then they are moved to their places. A writer that finds moves undone
   after a crash does them first.
2. So a reader that lists files (`spark.read.parquet`, DuckDB, pyarrow) sees committed rows only,
   each once; while a batch is being moved, or if its writer died right then, a part of it. A reader
   that takes the files named in the ledgers, as `read` does, sees whole batches.
3. Of two writers of a batch one fails to create its ledger file, and its rows stay in staging.
4. Data files come out of staging only after their ledger file is there, and ledger files are
   numbered without a hole. So a number that is missing, or a data file outside of staging that no
   ledger names, proves that a ledger file was lost (or that somebody else put the data file there):
   nothing is appended or read then. What a killed run left uncommitted is in staging. Not seen:
   newest ledger files that are gone with all of their data files; the table is then an older one of
   itself, and right.

5. `merge` is a batch of its own that brings no offset: its files have the rows of those that its
   ledger file names as replaced. They are synced before the commit; then the replaced ones are
   removed and the new ones moved, in this order, so that a reader who lists files never sees a row
   twice. A reader that took the old files' names meanwhile fails, and reads again.

By hand, because no library commits files of plain Parquet together with offsets: Spark's own commit
protocols make a job's files visible one by one. Whoever wants a library's commit takes Delta.

Not here: joining ledgers; safety against a loss of power between Spark's write of a batch and the
disk's.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from replog_pipeline.columns import COLUMNS, DECODED, ddl
from replog_pipeline.errors import PipelineError
from replog_pipeline.lake.conflict import AnotherWriterError
from replog_pipeline.lake.file_sizing import by_date, sized, small_files
from replog_pipeline.lake.files import LocalFiles
from replog_pipeline.lake.ledger import Ledger, found_in
from replog_pipeline.lake.maintained import Maintained
from replog_pipeline.lake.spark_table import SparkTable
from replog_pipeline.lake.timestamps import in_microseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

LEDGERS = "_replog/ledger"
STAGING = "_replog/staging"
NO_UPSERT = "--mode upsert needs a Delta table: rows of a Parquet table cannot be replaced"
LEDGER = re.compile(r"\d{20}\.json")
REPLACED = "replaced"
COLUMNS_KEY = "columns"
"""Of a ledger entry: Spark's schema of the table from this batch on, where it has more columns than
`SCHEMA`.
"""
SCHEMA = f"{ddl(COLUMNS)}, `date` date"


class ParquetTable(SparkTable):
    """The table in `files`."""

    format = "parquet"

    def batches(self) -> list[str]:
        return [name for name in self.files.names(LEDGERS) if LEDGER.fullmatch(name)]

    def entry(self, name: str) -> dict[str, object]:
        """A ledger file's content. PipelineError when it is damaged."""
        try:
            return dict(json.loads(self.files.read(f"{LEDGERS}/{name}")))
        except (ValueError, TypeError):
            where = f"{self.files.path(LEDGERS)}/{name}"
            raise PipelineError(
                f"{where} is damaged: restore it, the table's rows are counted there"
            ) from None

    def ledger(self) -> Ledger:
        """What the table has taken."""
        names = self.batches()
        if not names:
            return Ledger()
        place = f"{self.files.path(LEDGERS)}/{names[-1]}"
        found = found_in(json.dumps(self.entry(names[-1])), place)
        if found is None:
            raise PipelineError(
                f"{place} is no ledger of replog: restore it, the table's rows are counted there"
            )
        return found

    def known(self) -> Ledger:
        """The ledger. PipelineError when a ledger file was lost."""
        self.entries()
        return self.ledger()

    def recover(self) -> None:
        """Finish what a dead writer committed, and drop what it did not; only under the lock.

        PipelineError when a ledger file was lost.
        """
        entries = self.entries()
        if entries:
            self.publish(entries[-1])
        self.clean(len(entries))

    def entries(self) -> list[dict[str, object]]:
        """All ledger files, in order.

        PipelineError when one was lost. It reads them all, and lists all data files.
        """
        self.ledger()  # of another version it says so, whatever else that version has
        placed = self.placed()  # before the ledgers: another writer's files come after its ledger
        names = self.batches()
        for number, name in enumerate(names, 1):
            if int(name.partition(".")[0]) != number:
                raise PipelineError(
                    f"{self.files.path(LEDGERS)}/{number:020d}.json is gone, but later ones "
                    "are there: restore it"
                )
        entries = [self.entry(name) for name in names]
        unknown = sorted(placed.difference(*map(staged, entries)))
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise PipelineError(
                f"{self.files.path(unknown[0])}{more} is in no ledger, so "
                f"{LEDGERS}/{len(names) + 1:020d}.json was lost, and its rows would "
                "come twice: restore it; or, if the source still has the records, remove what "
                "no ledger names and archive again"
            )
        return entries

    def placed(self) -> set[str]:
        """The data files that a reader who lists files takes for the table's."""
        found = set[str]()
        for name in self.files.names():
            if name.startswith(("_", ".")):
                continue
            below = (
                [f"{name}/{file}" for file in self.files.walk(name)]
                if self.files.is_folder(name)
                else [name]
            )
            found.update(
                file for file in below if file.endswith(".parquet") and not is_hidden(file)
            )
        return found

    def append(self, rows: DataFrame, after: Ledger) -> int:
        """Append `rows` as the batch that `after` is the ledger of; how many they were.

        AnotherWriterError when that batch is taken.
        """
        entry = self.stage(rows, after)
        self.commit(after, entry)
        self.publish(entry)
        self.clean(after.batch)
        return int(str(entry["rows"]))

    def upsert(self, rows: DataFrame, after: Ledger) -> int:
        """Not with files that cannot change. PipelineError."""
        raise PipelineError(NO_UPSERT)

    def stage(self, rows: DataFrame, after: Ledger) -> dict[str, object]:
        """Write `rows` where readers pass over them; the ledger entry that would commit them."""
        staging = f"{STAGING}/{after.batch}-{after.attempt}"
        try:
            with in_microseconds(self.spark):
                rows.write.partitionBy("date").parquet(self.files.path(staging))
        except Exception:
            self.files.remove(staging)
            raise
        written = [name for name in self.files.walk(staging) if name.endswith(".parquet")]
        more = {COLUMNS_KEY: rows.schema.jsonValue()} if DECODED in rows.columns else {}
        return {
            **more,
            "replog": after.to_json(),
            "files": written,
            "staging": staging,
            "rows": sum(self.rows_of(f"{staging}/{name}") for name in written),
        }

    def rows_of(self, name: str) -> int:
        """As the footer of a Parquet file says."""
        if isinstance(self.files, LocalFiles):
            from pyarrow.parquet import read_metadata

            return int(read_metadata(self.files.path(name)).num_rows)
        jvm: Any = self.spark._jvm
        configuration = self.spark._jsc.hadoopConfiguration()
        place = jvm.org.apache.hadoop.fs.Path(self.files.path(name))
        parquet = jvm.org.apache.parquet.hadoop
        reader = parquet.ParquetFileReader.open(
            parquet.util.HadoopInputFile.fromPath(place, configuration)
        )
        try:
            return int(reader.getRecordCount())
        finally:
            reader.close()

    def maintain(self, target_mb: int, retain_hours: int) -> Maintained:
        """Merge small files, and remove what killed runs left more than `retain_hours` ago.

        The caller has the lock. AnotherWriterError when an archive elsewhere took the batch.
        """
        self.recover()
        merged, into = 0, 0
        for names in small_files(self.live(), self.files.size, target_mb << 20):
            merged, into = merged + len(names), into + self.merge(names, target_mb)
        return Maintained(self.format, merged, into, self.remove_orphans(retain_hours))

    def merge(self, names: list[str], target_mb: int) -> int:
        """Replace these files by as few as may be; how many those are."""
        after = self.ledger().after({}, {})
        with sized(self.spark, target_mb):
            entry = self.stage(by_date(self.load("", names, self.entries())), after)
        if entry["rows"] != self.load("", names).count():
            self.files.remove(str(entry["staging"]))
            raise PipelineError(
                f"merging files of {self.files.path()} gave {entry['rows']} rows, not as many "
                "as they have: nothing was changed; please report it"
            )
        self.files.sync(str(entry["staging"]))
        entry[REPLACED] = names
        self.commit(after, entry)
        self.publish(entry)
        self.clean(after.batch)
        return len(staged(entry))

    def remove_orphans(self, retain_hours: int) -> int:
        """Attempts and drafts of ledgers that were not committed, nor touched for so long; how
        many. A younger one may be another machine's, at work.
        """
        before = time.time() - retain_hours * 3600
        places = [f"{STAGING}/{name}" for name in self.files.names(STAGING)]
        drafts = [f"{LEDGERS}/{name}" for name in self.files.names(LEDGERS) if name.startswith(".")]
        old = [
            place
            for place in (*places, *drafts)
            if all(
                self.files.modified(each) < before
                for each in (place, *(f"{place}/{name}" for name in self.files.walk(place)))
            )
        ]
        for place in old:
            self.files.remove(place)
        return len(old)

    def commit(self, after: Ledger, entry: dict[str, object]) -> None:
        if not self.files.create(f"{LEDGERS}/{after.batch:020d}.json", json.dumps(entry).encode()):
            self.files.remove(str(entry["staging"]))
            raise AnotherWriterError(self.files.path(), after.batch)

    def publish(self, entry: dict[str, object]) -> None:
        """Move the files of a committed batch to where they belong; those that are there already
        stay.
        """
        for name in replaced(entry):
            self.files.remove(name)
        for name in staged(entry):
            if self.files.exists(f"{entry['staging']}/{name}"):
                self.files.move(f"{entry['staging']}/{name}", name)
            elif not self.files.exists(name):
                raise PipelineError(
                    f"{self.files.path(name)} is named by the table's ledger, but it is gone: "
                    "restore it"
                )

    def clean(self, committed: int) -> None:
        """Remove the staging of batches up to this one: moved, or of attempts that lost. A batch
        whose writer died elsewhere after its commit is moved first.
        """
        for name in self.files.names(STAGING):
            number, place = int(name.split("-")[0]), f"{STAGING}/{name}"
            if number > committed:
                continue
            entry = self.entry(f"{number:020d}.json")
            if entry["staging"] == place and any(
                self.files.exists(f"{place}/{each}") for each in staged(entry)
            ):
                self.publish(entry)
            self.files.remove(place)

    def read(self) -> DataFrame:
        """The committed rows, those of a batch that is still in staging included."""
        entries = self.entries()
        last = entries[-1] if entries else {"files": []}
        waiting = [name for name in staged(last) if not self.files.exists(name)]
        gone = {*waiting}
        parts = [self.load("", [name for name in live(entries) if name not in gone], entries)]
        if waiting:
            parts.append(self.load(f"{last['staging']}", waiting, entries))
        return reduce(lambda one, other: one.unionByName(other), parts)

    def committed_files(self) -> list[str]:
        """The places of what `read` reads."""
        entries = self.entries()
        waiting = {*staged(entries[-1])} if entries else set()
        base = str(entries[-1]["staging"]) if entries else ""
        return [
            self.files.path(
                f"{base}/{name}" if name in waiting and not self.files.exists(name) else name
            )
            for name in live(entries)
        ]

    def live(self) -> list[str]:
        """The committed files. PipelineError when a ledger file was lost."""
        return live(self.entries())

    def load(
        self, base: str, names: list[str], entries: Sequence[dict[str, object]] = ()
    ) -> DataFrame:
        """The rows of these files, with the columns that the table has by its `entries`."""
        schema = columns_of(entries)
        if not names:
            return self.spark.createDataFrame([], schema)
        prefix = f"{base}/" if base else ""
        return (
            self.spark.read.schema(schema)
            .option("basePath", self.files.path(base))
            .parquet(*(self.files.path(prefix + name) for name in names))
        )


def columns_of(entries: Sequence[dict[str, object]]) -> str | StructType:
    """As Spark takes them: those of the newest entry that names any; columns are only added."""
    from pyspark.sql.types import StructType

    for entry in reversed(entries):
        found = entry.get(COLUMNS_KEY)
        if isinstance(found, dict):
            return StructType.fromJson(found)
    return SCHEMA


def staged(entry: dict[str, object]) -> list[str]:
    """The files of a ledger entry, relative to the table as to its staging."""
    files = entry.get("files")
    if not isinstance(files, list):
        raise PipelineError(
            "a ledger file of the table names no files: restore it from a copy of the table"
        )
    return [str(name) for name in files]


def replaced(entry: dict[str, object]) -> list[str]:
    """The files whose rows a merge has taken over; none of a batch."""
    files = entry.get(REPLACED, [])
    return [str(name) for name in files] if isinstance(files, list) else []


def live(entries: list[dict[str, object]]) -> list[str]:
    """The files of all entries, without those that a merge replaced."""
    taken = {name for entry in entries for name in replaced(entry)}
    return [name for entry in entries for name in staged(entry) if name not in taken]


def is_hidden(file: str) -> bool:
    """Whether readers pass over it."""
    return any(part.startswith(("_", ".")) for part in file.split("/"))
