"""`archive` of several topics, a table each: by name and by pattern, new topics as they come.

1. A topic's table is the folder of its name in `--to`; it is what an archive of that topic alone
   would make, and each may go on with the other's.
2. One look lists the topics and their ends once; a table that is there already is passed over.
3. What refuses one table (its topic was created anew, records were deleted, another writer) stops
   that table and no other: a line says so when it begins, the next look tries again, and the
   command ends with status 2. A topic whose leader is away counts as such, as long as other brokers
   answer. What hits all tables ends the run, or is waited for as with one table.
4. A topic that is deleted is left out from then on; its table stays.
5. Each look begins at a topic drawn by lot and goes round: runs that are killed before they are
   through, again and again, still reach every table.

Not here: one table (`job`), which names match (`sources.urls`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

from replog_pipeline.errors import PipelineError, as_pipeline_error, line_of
from replog_pipeline.jobs.archive import bad_records, value_columns
from replog_pipeline.jobs.archive.bad_records import said, together
from replog_pipeline.jobs.archive.figures import Figures
from replog_pipeline.jobs.archive.job import (
    Archive,
    ArchiveConfig,
    ArchiveResult,
    check_layout,
    check_upsert,
    group_of,
)
from replog_pipeline.jobs.archive.retry import look_again
from replog_pipeline.jobs.archive.signals import Stopper
from replog_pipeline.lake import delta, guards, parquet, table
from replog_pipeline.lake import files as lake_files
from replog_pipeline.lake.ledger import Ledger
from replog_pipeline.progress import Progress
from replog_pipeline.sources import KafkaPattern, extents, kafka_admin, parse_pattern, reachable
from replog_pipeline.sources.away import are_away
from replog_pipeline.sources.extents import Extent
from replog_pipeline.sources.topics import missing
from replog_pipeline.stores import places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class TopicsResult:
    """What one run appended to each table; `refused`: topic -> why its table was left as it is."""

    to: str
    tables: dict[str, ArchiveResult] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.tables.values())

    @property
    def batches(self) -> int:
        return sum(each.batches for each in self.tables.values())

    @property
    def findings(self) -> list[str]:
        """The gaps that were allowed."""
        return [line for each in self.tables.values() for line in each.findings]

    @property
    def bad(self) -> dict[str, int]:
        """Bad records by reason."""
        return reduce(together, (each.bad for each in self.tables.values()), {})

    def to_json(self) -> dict[str, object]:
        return {
            "to": self.to,
            "rows": self.rows,
            "batches": self.batches,
            "findings": self.findings,
            "bad_records": self.bad,
            "refused": self.refused,
            "tables": [each.to_json() for each in self.tables.values()],
        }

    def __str__(self) -> str:
        bad = f"; bad records: {said(self.bad)}" if self.bad else ""
        return (
            f"{self.rows:,} records in {self.batches:,} batches to {len(self.tables):,} tables "
            f"in {self.to}{bad}"
        )


@as_pipeline_error
def run_topics(
    spark: SparkSession,
    config: ArchiveConfig,
    progress: Progress | None = None,
    stopper: Stopper | None = None,
    figures: Figures | None = None,
) -> TopicsResult:
    """Archive each topic into its table. Raises PipelineError where none can be."""
    bad_records.check(config.on_bad_record)
    pattern = parse_pattern(config.source, "--from", config.client)
    check_folder(spark, config.to)
    topics = Topics(
        spark,
        config,
        pattern,
        progress or Progress(quiet=True),
        stopper or Stopper(),
        figures or Figures(),
    )
    with closing(topics):
        topics.look()
        if config.interval is not None:
            look_again(topics.look, config.interval, topics.stopper, topics.progress)
        elif not topics.result.tables and not topics.result.refused:
            raise PipelineError(
                f"--from: no topic at {pattern.bootstrap} matches {', '.join(pattern.names)}"
            )
        return topics.result


def check(config: ArchiveConfig) -> None:
    """What can be known without Spark. PipelineError."""
    pattern = parse_pattern(config.source, "--from", config.client)
    check_folder(None, config.to)
    places.check_ledger(config.to, config.format, "--to")
    check_upsert(config, config.format)
    named = [name for name in pattern.names if name not in pattern.patterns]
    ledgers = {name: table.check_to(place_of(config.to, name), config.format) for name in named}
    if named:
        reachable.found(pattern.of(*named))
    else:
        reachable.check_address(pattern.of())
    value_columns.check_before(config.decoding, named, None, config.to)
    for name, ledger in ledgers.items():
        value_columns.check_before(config.decoding, (), ledger, place_of(config.to, name))
        guards.check_mode(ledger or Ledger(), config.upsert, place_of(config.to, name))
        guards.check_isolation(ledger or Ledger(), config.isolation, place_of(config.to, name))
        check_layout(config, config.format, ledger)


def check_folder(spark: SparkSession | None, place: str) -> None:
    """PipelineError unless tables can be made in `place`, as far as can be known."""
    places.check(place, "--to", is_table=False)
    folder = lake_files.local(place)
    if folder is None and spark is None:
        return
    if folder is not None:
        if folder.exists() and not folder.is_dir():
            raise PipelineError(f"--to: {place} is a file: name a folder for the tables")
        lake_files.check_writable(folder)
    files = lake_files.of(spark, place)
    if any(files.exists(name) for name in (delta.LOG, parquet.LEDGERS, table.CLAIM)):
        raise PipelineError(
            f"--to: {place} is a table; each topic gets one of its own: name the folder that they "
            "are to be in"
        )


def place_of(to: str, topic: str) -> str:
    """The table of a topic."""
    return f"{to.rstrip('/')}/{topic}"


class Topics:
    """One run over the topics of a pattern. `lot`: of so many topics the index of the first."""

    def __init__(
        self,
        spark: SparkSession,
        config: ArchiveConfig,
        pattern: KafkaPattern,
        progress: Progress,
        stopper: Stopper,
        figures: Figures,
        lot: Callable[[int], int] = random.randrange,
    ) -> None:
        self.spark, self.config, self.pattern, self.lot = spark, config, pattern, lot
        self.progress, self.stopper, self.figures = progress, stopper, figures
        self.group = group_of(spark, config, pattern)
        self.archives: dict[str, Archive] = {}
        self.locks: dict[str, ExitStack] = {}
        self.seen: set[str] = set()
        self.began = False
        self.result = TopicsResult(config.to)

    def close(self) -> None:
        """Unlocks the tables."""
        while self.locks:
            self.locks.popitem()[1].close()

    def look(self) -> None:
        """All topics up to where they end now."""
        found = self.listed()
        for topic in sorted(self.seen.difference(found)):
            self.gone(topic)
        self.seen = {*found}
        ends = self.ends(found)
        self.figures.tables = len(found)
        first = self.lot(len(found)) if found else 0
        for topic in found[first:] + found[:first]:
            if self.stopper.is_set():
                break
            if not self.is_reached(topic, ends):
                self.catch_up(topic)
        self.figures.failing = len(self.result.refused)

    def listed(self) -> list[str]:
        """The topics that are there. PipelineError for a name that was not there at the start."""
        there = kafka_admin.topics(self.spark, self.pattern.of().cluster)
        if not self.began:
            for name in self.pattern.names:
                if name not in there and name not in self.pattern.patterns:
                    raise missing(name, self.pattern.bootstrap)
            self.began = True
        return [topic for topic in there if self.pattern.matches(topic)]

    def ends(self, found: list[str]) -> Extent | None:
        """Of all topics at once; None when one of them cannot be had: then each is seen to."""
        if not found:
            return None
        try:
            return extents.of_cluster(self.spark, self.pattern.of(*found), self.config.isolation)
        except PipelineError:
            return None

    def is_reached(self, topic: str, ends: Extent | None) -> bool:
        """Whether this run has brought the table to the topic's end: then nothing is opened."""
        if ends is None or topic not in self.archives or topic in self.result.refused:
            return False
        archive = self.archives[topic]
        ledger = archive.result.ledger
        end = {key: offset for key, offset in ends.end.items() if key[0] == topic}
        if ledger.batch and ledger.ids.get(topic) != ends.ids[topic]:
            return False
        if any(ledger.next.get(key, 0) != offset for key, offset in end.items()):
            return False
        archive.shown(end, end)
        return True

    def catch_up(self, topic: str) -> None:
        try:
            if topic not in self.archives:
                self.archives[topic] = self.opened(topic)
            self.archives[topic].catch_up()
        except Exception as error:
            if are_away(error):
                kafka_admin.topics(self.spark, self.pattern.of().cluster)  # raises: all are away
            elif not isinstance(error, PipelineError):
                raise
            self.refused(topic, line_of(error))
        else:
            self.result.refused.pop(topic, None)

    def opened(self, topic: str) -> Archive:
        """The topic's table, locked until the run ends or the topic is gone."""
        place = place_of(self.config.to, topic)
        config = replace(self.config, source=str(self.pattern.of(topic)), to=place)
        target = table.to_append(self.spark, place, self.config.format)
        check_upsert(config, target.format)
        with ExitStack() as lock:
            lock.enter_context(target.files.lock())
            target.recover()
            self.locks[topic] = lock.pop_all()
        archive = Archive(
            self.spark,
            config,
            self.pattern.of(topic),
            target,
            self.progress,
            self.stopper,
            self.figures,
            self.group,
        )
        archive.about = f"{topic}, "
        archive.result = self.result.tables.setdefault(topic, archive.result)
        return archive

    def refused(self, topic: str, line: str) -> None:
        if self.result.refused.get(topic) != line:
            self.progress.say(f"archive: topic {topic}: {line}")
        self.result.refused[topic] = line

    def gone(self, topic: str) -> None:
        self.progress.say(f"archive: topic {topic} is gone; its table stays as it is")
        self.archives.pop(topic, None)
        self.locks.pop(topic, ExitStack()).close()
        self.result.refused.pop(topic, None)
        self.figures.forgotten(topic)
