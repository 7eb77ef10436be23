"""`replog pipeline report`: what is in topics, as CSV tables and as one HTML page that opens
offline.

1. Traffic by minute, partitions, batch sizes and codecs (of log directories), keys, what compaction
   would leave, the lag of consumer groups.
2. All of it is of the offsets that the source had when the report began.
3. Everything is counted before anything is written. The directory is new, empty, or an earlier
   report's.

Source: our own. Not here: counting (`counts`, `transforms`), drawing (`pipeline.report`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from replog_pipeline import sources
from replog_pipeline.errors import PipelineError, as_pipeline_error
from replog_pipeline.jobs.report import counts
from replog_pipeline.lake.files import check_writable, local
from replog_pipeline.progress import Progress
from replog_pipeline.report import sections, tables
from replog_pipeline.report.numbers import minute_text, size_text
from replog_pipeline.report.page import Page, Section, render
from replog_pipeline.report.tables import Table
from replog_pipeline.sources import extents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = "report.html"


@dataclass(frozen=True)
class ReportConfig:
    """`to`: the directory for `report.html` and the tables, on the machine that runs this."""

    source: sources.Source
    to: str | Path
    quiet: bool = True


@dataclass
class ReportResult:
    """The report as written. It has no findings: it judges nothing."""

    source: str
    made: str
    page: Path
    files: list[Path]
    tables: dict[str, Table]
    findings: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """All tables but the minutes, which are in their file."""
        told = {name: table.records() for name, table in self.tables.items() if name != "minutes"}
        return {
            "source": self.source,
            "made": self.made,
            "page": str(self.page),
            "files": list(map(str, self.files)),
            **told,
        }


class Counted(NamedTuple):
    """All that is counted of a source; `lag` is None where nothing is known of consumer groups."""

    traffic: counts.Traffic
    keys: Table
    compaction: Table
    sizes: list[counts.Row]
    lag: Table | None

    def tables(self) -> list[Table]:
        told = [self.traffic.minutes, self.traffic.partitions]
        return [
            *told,
            sections.codec_table(self.sizes),
            self.keys,
            self.compaction,
            *([self.lag] if self.lag else []),
        ]


@as_pipeline_error
def run(spark: SparkSession, config: ReportConfig) -> ReportResult:
    """Counts, then writes.

    PipelineError: a source that is not there, a directory that must not be written to.
    """
    place = checked(config.to)
    found = count(spark, config.source, Progress(config.quiet))
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = Page(
        title(found.traffic.partitions),
        about(config.source, found.traffic, made),
        facts(found.traffic),
        draw(found),
    )
    files = write(place, render(page), found.tables())
    return ReportResult(
        str(config.source),
        made,
        place / PAGE,
        files,
        {table.name: table for table in found.tables()},
    )


def count(spark: SparkSession, source: sources.Source, told: Progress) -> Counted:
    """Of what the source holds now."""
    within = extents.extent(spark, source)
    with told.step("records by minute", spark):
        traffic = counts.traffic(spark, source, within)
    with told.step("keys", spark):
        top, compaction = counts.keys(spark, source, within)
    with told.step("batches", spark):
        sizes = counts.batches(spark, source, within)
    with told.step("committed offsets", spark):
        lag = counts.lag(spark, source, within)
    return Counted(traffic, top, compaction, sizes, lag)


def draw(found: Counted) -> list[Section]:
    why = "" if found.lag else "There is no __consumer_offsets beside these topics."
    return [
        sections.traffic(found.traffic.minutes, found.traffic.width),
        sections.partitions(found.traffic.partitions),
        *of_batches(found.sizes),
        sections.keys(found.keys, found.traffic.partitions),
        sections.compaction(found.compaction),
        sections.lag(found.lag, why),
    ]


def checked(to: str | Path) -> Path:
    """The directory, if it may and can be written to."""
    if not str(to).strip():
        raise PipelineError("--to: it is empty: name a directory")
    place = local(str(to))
    if place is None:
        raise PipelineError(f"--to: {to}: a report is written to a directory of this machine")
    if place.exists() and not place.is_dir():
        raise PipelineError(f"--to: {place} is a file: name a directory")
    if place.is_dir() and any(place.iterdir()) and not (place / PAGE).exists():
        raise PipelineError(
            f"--to: {place} holds other files: name a new directory, or that of an earlier report"
        )
    check_writable(place)
    return place


def write(place: Path, page: str, counted: list[Table]) -> list[Path]:
    try:
        place.mkdir(parents=True, exist_ok=True)
        files = [tables.write(table, place) for table in counted]
        (place / PAGE).write_text(page)
    except OSError as error:
        raise PipelineError(
            f"--to: {error.filename}: {error.strerror}: name a directory that can be written to"
        ) from error
    return [place / PAGE, *files]


def of_batches(sizes: list[counts.Row]) -> Iterator[Section]:
    yield sections.batches(sizes)
    if sizes:
        yield sections.compression(sections.codec_table(sizes))


def title(partitions: Table) -> str:
    topics = sorted({row[0] for row in partitions.rows})
    return ", ".join(topics[:3]) + (
        f" and {len(topics) - 3} more topics" if len(topics) > 3 else ""
    )


def about(source: sources.Source, traffic: counts.Traffic, made: str) -> list[str]:
    span = "No record has a timestamp."
    if traffic.first is not None and traffic.last is not None:
        span = f"Records from {minute_text(traffic.first)} to {minute_text(traffic.last)} UTC."
    return [f"What is in {source}, counted {made}.", span]


def facts(traffic: counts.Traffic) -> list[tuple[str, str]]:
    partitions = traffic.partitions
    records, size = (sum(row[at] for row in partitions.rows) for at in (2, 3))
    return [
        ("topics", f"{len({row[0] for row in partitions.rows}):,}"),
        ("partitions", f"{len(partitions.rows):,}"),
        ("records", f"{records:,}"),
        ("keys and values", size_text(size)),
        ("mean record", size_text(size / records) if records else "–"),
        ("busiest minute", f"{traffic.busiest:,}"),
    ]
