"""`archive`: a topic into a Delta or Parquet table, every record exactly once; or a Delta table at
the last value of each key.

1. A batch is: read the table's ledger, ask the source for its extent, let the guards decide the
   ranges, read them, append them with the new ledger in one atomic step. No other state is kept; a
   run that was killed at any point is started again.
2. The rows are read once, brought together by date (by a shuffle if need be, see
   `lake.file_sizing`) and written: no cache, no second pass to count (the commit's own count is
   reported).
3. All checks are made before the first row is written: a refusal writes nothing.
4. A bad record is what `--on-bad-record` makes of it (`bad_records`). Where the connector fails at
   a timestamp, and it is not to stop, the batch is read again by requests of our own, and so are
   those that follow in this run.
5. A batch that another writer took is planned again, because a writer that was killed may still
   have committed; the third time in a row it stops.

6. A continuous archive maintains its table (`maintain`) after every so many batches of the table,
   whichever run made them. A failure there loses nothing: one line, and the archive goes on.

Source: our own. Not here: decoding values (`value_columns`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from replog_pipeline import sources
from replog_pipeline.columns import COLUMNS, Offsets
from replog_pipeline.errors import PipelineError, as_pipeline_error, line_of, of_a_timestamp
from replog_pipeline.jobs.archive import bad_records, bounds
from replog_pipeline.jobs.archive.bounds import Bound
from replog_pipeline.jobs.archive.figures import Figures
from replog_pipeline.jobs.archive.group import Group
from replog_pipeline.jobs.archive.retry import look_again
from replog_pipeline.jobs.archive.signals import Stopper
from replog_pipeline.jobs.archive.value_columns import ValueColumns
from replog_pipeline.kafka_cluster import PLAINTEXT, ClientConfig, KafkaCluster
from replog_pipeline.lake import guards, layout, table
from replog_pipeline.lake.conflict import AnotherWriterError
from replog_pipeline.lake.file_sizing import TARGET_MB, by_date, needs_no_shuffle, sized
from replog_pipeline.lake.last_values import keyless, last_of_each_key
from replog_pipeline.lake.layout import Layout
from replog_pipeline.lake.ledger import Ledger
from replog_pipeline.lake.maintained import RETAIN_HOURS
from replog_pipeline.lake.parquet import NO_UPSERT
from replog_pipeline.progress import Progress
from replog_pipeline.sources import (
    KafkaPattern,
    SegmentsSource,
    Source,
    Wanted,
    extents,
    kafka_admin,
)
from replog_pipeline.sources.extents import Extent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from replog_pipeline.values.settings import Decoding

CONFLICTS_IN_A_ROW = 3
MAINTAIN_EVERY = 500
TIMESTAMP_FOUND = "a record has a timestamp that Spark cannot hold: reading it another way"


@dataclass(frozen=True)
class ArchiveConfig:
    """`source` and `to` as on the command line. `interval` (seconds): go on until stopped, looking
    so often; None: what is there now.

    `max_records` bounds a batch, not the run. `file_mb`: a date's rows of a batch are one file up
    to so many MiB. `group`: a consumer group whose committed offsets show what was reached.
    `decoding`: how values become columns; None: they stay bytes. `upsert`: the table holds the
    last value of each key, in place of every record. `on_bad_record`: see `bad_records`; `since`,
    `until`: see `bounds`. `maintain_every`: so many batches, where there is an `interval`; 0:
    never. `layout`: of a new table; None: the one that it has, or by date.
    """

    source: str
    to: str
    format: str | None = None
    interval: float | None = None
    max_records: int | None = None
    isolation: str = "read_uncommitted"
    allow_gaps: bool = False
    file_mb: int = TARGET_MB
    client: ClientConfig = PLAINTEXT
    group: str | None = None
    decoding: Decoding | None = None
    upsert: bool = False
    on_bad_record: str | None = None
    since: Bound | None = None
    until: Bound | None = None
    maintain_every: int = MAINTAIN_EVERY
    layout: Layout | None = None


@dataclass
class ArchiveResult:
    """What one run appended; `bad`: how many records were bad, by reason. `ledger` is the table's
    at the end.
    """

    to: str
    format: str
    rows: int = 0
    batches: int = 0
    gaps: list[guards.Gap] = field(default_factory=list)
    missed: list[guards.Missed] = field(default_factory=list)
    bad: dict[str, int] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def findings(self) -> list[str]:
        """The gaps that were allowed."""
        return [str(gap) for gap in self.gaps]

    @property
    def refused(self) -> dict[str, str]:
        """Nothing: what refuses the one table is raised."""
        return {}

    def __str__(self) -> str:
        bad = f"; bad records: {bad_records.said(self.bad)}" if self.bad else ""
        return f"{self.rows:,} records in {self.batches} batches to {self.to} ({self.format}){bad}"

    def to_json(self) -> dict[str, object]:
        topics = self.ledger.to_json()["topics"]
        return {
            "to": self.to,
            "format": self.format,
            "rows": self.rows,
            "batches": self.batches,
            "findings": self.findings,
            "bad_records": self.bad,
            "topics": topics,
            "deleted_before": {
                each.topic: {str(number): start for number, start in each.starts.items()}
                for each in self.missed
            },
        }


def transform(records: DataFrame) -> DataFrame:
    """The connector's columns and the UTC day; the timestamp as it was written, where that is
    there.
    """
    from pyspark.sql.functions import col, to_date

    more = [name for name in (bad_records.WRITTEN_MS,) if name in records.columns]
    return records.select(*COLUMNS, to_date(col("timestamp")).alias("date"), *more)


@as_pipeline_error
def run(
    spark: SparkSession,
    config: ArchiveConfig,
    progress: Progress | None = None,
    stopper: Stopper | None = None,
    figures: Figures | None = None,
) -> ArchiveResult:
    """Archive. Raises PipelineError, with nothing written by the batch that it stopped."""
    bad_records.check(config.on_bad_record)
    source = sources.parse(config.source, client=config.client)
    target = table.to_append(spark, config.to, config.format)
    check_upsert(config, target.format)
    archive = Archive(
        spark,
        config,
        source,
        target,
        progress or Progress(quiet=True),
        stopper or Stopper(),
        figures or Figures(),
        group_of(spark, config, source),
    )
    with target.files.lock():
        target.recover()
        archive.catch_up()
        if config.interval is not None:
            look_again(archive.catch_up, config.interval, archive.stopper, archive.progress)
    return archive.result


@contextmanager
def refusals() -> Iterator[None]:
    """What a job says of a record that it stopped at, as one line."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        refused = keyless(error) or bad_records.refused(error)
        if refused is None:
            raise
        raise refused from error


def check_upsert(config: ArchiveConfig, form: str | None) -> None:
    """PipelineError unless a table of this format can be kept at the last values."""
    if config.upsert and form == "parquet":
        raise PipelineError(NO_UPSERT)


def check_layout(config: ArchiveConfig, form: str | None, ledger: Ledger | None) -> None:
    """PipelineError for a layout that the table cannot have."""
    known = ledger or Ledger()
    layout.check(config.layout, form, config.upsert, known.batch, known.layout)


def group_of(
    spark: SparkSession, config: ArchiveConfig, source: Source | KafkaPattern
) -> Group | None:
    if config.group is None or isinstance(source, SegmentsSource):
        return None
    return Group(spark, KafkaCluster(source.bootstrap, source.client), config.group)


class Archive:
    """One run over one source and one table. `about`: what its progress lines begin with."""

    def __init__(
        self,
        spark: SparkSession,
        config: ArchiveConfig,
        source: Source,
        target: table.ITable,
        progress: Progress,
        stopper: Stopper,
        figures: Figures,
        group: Group | None = None,
    ) -> None:
        self.spark, self.config, self.source, self.target = spark, config, source, target
        self.progress, self.stopper = progress, stopper
        self.figures, self.group = figures, group
        self.result = ArchiveResult(config.to, target.format)
        self.columns = ValueColumns(config.decoding, target)
        self.name, self.about = uuid.uuid4().hex, ""
        self.goal: Offsets | None = None
        self.conflicts = 0
        self.goes_on = config.on_bad_record in (bad_records.NULL, bad_records.DEAD_LETTER)
        self.lenient = self.goes_on and isinstance(source, SegmentsSource)
        self.dead_letters = bad_records.DeadLetters(target)

    def catch_up(self) -> None:
        """Batches up to where the source ended at the first of them."""
        self.goal, self.conflicts = None, 0
        while not self.stopper.is_set() and self.advance():
            pass

    def advance(self) -> bool:
        """One batch, where there is one; whether another may follow."""
        extent, plan = self.next_plan()
        self.shown(extent.end, plan.start)
        is_begun = self.result.ledger.batch or self.config.since is None
        if not plan.offsets and not plan.gaps and is_begun and not self.missed(plan):
            return False  # a loss, or a chosen beginning, is a batch of its own, without rows
        try:
            self.batch(extent, plan)
        except AnotherWriterError:
            self.dead_letters.remove(self.result.ledger.batch + 1)
            self.columns.forget()
            self.conflicts += 1
            if self.conflicts == CONFLICTS_IN_A_ROW:
                raise
            return True
        except Exception as error:
            if self.lenient or not self.goes_on or not of_a_timestamp(error):
                raise
            self.lenient = True
            self.progress.say(f"archive: {self.about}{TIMESTAMP_FOUND}")
            return True
        self.conflicts = 0
        self.shown(extent.end, plan.end)
        self.maintain()
        return plan.end != self.goal

    def maintain(self) -> None:
        """Where it is time."""
        every = self.config.maintain_every
        if self.config.interval is None or not every or self.result.ledger.batch % every:
            return
        about = f"archive: {self.about}merging small files"
        try:
            with self.progress.step(about, self.spark):
                self.target.maintain(self.config.file_mb, RETAIN_HOURS)
        except Exception as error:
            self.progress.say(f"{about} failed, later again: {line_of(error)}")

    def shown(self, end: Offsets, reached: Offsets) -> None:
        """How far the table is."""
        self.figures.looked(end, reached)
        if self.group is not None and self.result.ledger.batch:
            self.group.reached(self.result.ledger.next)

    def next_plan(self) -> tuple[Extent, guards.Plan]:
        """The ledger first, then the extent: a log that is older than the ledger would look
        truncated.
        """
        self.result.ledger = self.target.ledger()
        guards.check_mode(self.result.ledger, self.config.upsert, self.config.to)
        guards.check_isolation(self.result.ledger, self.config.isolation, self.config.to)
        check_layout(self.config, self.target.format, self.result.ledger)
        extent = extents.extent(self.spark, self.source, self.config.isolation)
        since = {}
        if not self.result.ledger.batch:
            since = bounds.resolved(self.spark, self.source, self.config.since, extent)
        if self.goal is None:
            until = bounds.resolved(self.spark, self.source, self.config.until, extent)
            self.goal = guards.bounded(extent.end, until)
        plan = guards.plan(
            self.result.ledger,
            extent,
            self.config.to,
            allow_gaps=self.config.allow_gaps,
            max_records=self.config.max_records,
            goal=self.goal,
            since=since,
        )
        return extent, plan

    def missed(self, plan: guards.Plan) -> list[guards.Missed]:
        """What was deleted before the table began; nothing where its beginning was chosen."""
        return [] if self.config.since else guards.missed(self.result.ledger, plan.start)

    def batch(self, extent: Extent, plan: guards.Plan) -> None:
        """Append one range of every partition."""
        upsert = self.config.upsert
        after = replace(
            self.result.ledger.after(extent.ids, plan.end),
            decoded=self.config.decoding is not None,
            upsert=upsert,
            isolation=self.config.isolation,
            layout=self.config.layout or self.result.ledger.layout,
        )
        wanted = Wanted(
            (*COLUMNS, bad_records.WRITTEN_MS) if self.lenient else COLUMNS,
            plan.start,
            plan.end,
            only_named=True,
            isolation=self.config.isolation,
            run=self.name,
            at_most=self.config.max_records,
            lenient=self.lenient,
        )
        records = transform(sources.read(self.spark, self.source, wanted))
        if not self.result.ledger.batch:
            table.claim(self.target)
        missed = self.missed(plan)
        for line in (*plan.gaps, *missed):
            self.progress.say(f"archive: {line}")
        began = time.monotonic()
        with self.progress.step(
            f"archive: {self.about}batch {after.batch}, {plan.offsets:,} offsets", self.spark
        ):
            rows, counted = self.prepared(records, sorted(extent.ids), after)
            with refusals():
                count = self.upsert(rows, after) if upsert else self.append(rows, plan, after)
            bad = counted()
        self.figures.committed(count, time.monotonic() - began, bad)
        self.result.ledger, self.result.gaps = after, [*self.result.gaps, *plan.gaps]
        self.result.missed += missed
        self.result.rows, self.result.batches = self.result.rows + count, self.result.batches + 1
        self.result.bad = bad_records.together(self.result.bad, bad)

    def prepared(
        self, rows: DataFrame, topics: Sequence[str], after: Ledger
    ) -> tuple[DataFrame, Callable[[], dict[str, int]]]:
        """The rows of the batch, and what says after their commit how many were bad."""
        choice, upsert, ledger = self.config.on_bad_record, self.config.upsert, self.result.ledger
        if choice is None:
            rows = last_of_each_key(rows) if upsert else rows
            return self.columns.added(rows, topics, ledger), dict
        rows = self.columns.added(rows, topics, ledger)
        why = bad_records.reason(rows.columns, needs_key=upsert)
        counted: Callable[[], dict[str, int]] = dict
        if choice == bad_records.FAIL:
            rows = bad_records.refusing(rows, why)
        elif choice == bad_records.NULL:
            counting = bad_records.Counting(rows, why)
            rows, counted = counting.rows, counting.counts
            rows = rows.where("key is not null") if upsert else rows
        elif upsert or self.lenient or self.config.decoding:
            found = self.dead_letters.write(rows, why, after.batch)
            rows, counted = rows.where(why.isNull()), lambda: found
        rows = rows.drop(bad_records.WRITTEN_MS)
        return last_of_each_key(rows) if upsert else rows, counted

    def append(self, rows: DataFrame, plan: guards.Plan, after: Ledger) -> int:
        """How many rows."""
        source = self.source
        start = {key: each for key, each in plan.start.items() if each < plan.end[key]}

        def are_of_one_day() -> bool:
            return not isinstance(source, SegmentsSource) and kafka_admin.are_of_one_day(
                self.spark, source.cluster, start
            )

        offsets = [plan.end[key] - first for key, first in start.items()]
        columns = after.layout.partition_by
        if (
            offsets
            and "date" in columns
            and needs_no_shuffle(offsets, self.config.file_mb, are_of_one_day)
        ):
            with sized(self.spark, self.config.file_mb, max(offsets)):
                return self.target.append(rows, after)
        with sized(self.spark, self.config.file_mb):
            return self.target.append(by_date(rows, columns), after)

    def upsert(self, rows: DataFrame, after: Ledger) -> int:
        """How many rows of the table changed. PipelineError for a record without key."""
        with sized(self.spark, self.config.file_mb):
            return self.target.upsert(rows, after)
