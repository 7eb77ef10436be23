"""What a query may name: each topic of each source, each table, as a view.

1. A topic's view has its name, a table's that of its folder; `NAME=SOURCE` chooses another one for
   a source of one topic. No two views have the same name, in whatever case: Spark would not tell
   them apart.
2. A view of a topic holds the offsets that were there when the query began, and the connector's
   columns with `date`, the UTC day, as a table of `archive` has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from replog_pipeline import sources
from replog_pipeline.errors import PipelineError
from replog_pipeline.kafka_cluster import ClientConfig
from replog_pipeline.lake import files, table
from replog_pipeline.lake.delta import DeltaTable
from replog_pipeline.sources import KafkaSource, Source, Wanted, extents
from replog_pipeline.stores import places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
_AT = re.compile(r"(?P<place>.+)@(?P<at>v\d+|\d{4}-\d\d.*)", re.DOTALL)
_NAMED = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<place>.+)\Z", re.DOTALL)


@dataclass(frozen=True)
class Named:
    """A `--from`: `name` where it chooses one; of a table `source` is None, and `at` the version
    (`v12`) or the time that it is read at, None: now.
    """

    name: str | None
    place: str
    source: Source | None
    at: str | None = None


def given(texts: Sequence[str], client: ClientConfig) -> list[Named]:
    """Raises PipelineError for what is no source."""
    found = []
    for text in texts:
        match = _NAMED.match(text)
        _, is_named, rest = text.partition("=")
        if is_named and not match and rest.startswith(places.TOPICS):
            raise PipelineError(
                f"--from {text}: the name of a view is letters, digits and _, no digit first"
            )
        name, place = (match["name"], match["place"]) if match else (None, text)
        is_source = place.startswith(places.TOPICS)
        source = sources.parse(place, client=client) if is_source else None
        if name and isinstance(source, KafkaSource) and len(source.topics) > 1:
            raise PipelineError(
                f"--from {text}: one name for {len(source.topics)} topics; leave {name}= out"
            )
        place, at = (place, None) if source else travelled(place)
        found.append(Named(name, place, source, at))
    return found


def travelled(place: str) -> tuple[str, str | None]:
    """A table's place and what stands after its @, unless that is part of a folder's name."""
    match = _AT.fullmatch(place)
    folder = files.local(place)
    if match is None or (folder is not None and folder.exists()):
        return place, None
    if not match["at"].startswith("v"):
        try:
            instant(match["at"])
        except ValueError:
            raise PipelineError(
                f"--from {place}: {match['at']} is no time: write @2026-01-31T12:00:00Z, or @v12 "
                "for a version"
            ) from None
    return match["place"], match["at"]


def instant(text: str) -> datetime:
    """In UTC unless it says otherwise."""
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def check(named: Sequence[Named]) -> None:
    """What can be known of them without Spark. Raises PipelineError."""
    for each in named:
        if each.source is None:
            table.check_from(each.place)
            if each.at and table.is_here(each.place):
                delta_of(None, each)
        else:
            extents.check(each.source)


def view_name(named: Named) -> str:
    """Of a table."""
    return named.name or named.place.rstrip("/").rpartition("/")[2]


def named_once(found: Iterable[tuple[str, T]]) -> Iterator[tuple[str, T]]:
    """The same. PipelineError for two names that are one to a query."""
    taken: dict[str, str] = {}
    for name, each in found:
        if name.lower() in taken:
            raise PipelineError(
                f"--from: {taken[name.lower()]} and {name} would be one view: name one of "
                "them, as in --from other=SOURCE"
            )
        taken[name.lower()] = name
        yield name, each


@contextmanager
def created(spark: SparkSession, named: Sequence[Named]) -> Iterator[list[str]]:
    """The names of the views, which are there while the block runs."""
    taken: list[str] = []
    try:
        for name, frame in named_once(pair for each in named for pair in frames(spark, each)):
            frame.createOrReplaceTempView(quoted(name))
            taken.append(name)
        yield taken
    finally:
        for name in taken:
            spark.catalog.dropTempView(name)


def frames(spark: SparkSession, named: Named) -> list[tuple[str, DataFrame]]:
    """The views of one `--from`."""
    if named.source is None:
        if named.at is None:
            return [(view_name(named), table.existing(spark, named.place).read())]
        kept = delta_of(spark, named)
        if named.at.startswith("v"):
            return [(view_name(named), kept.read(versionAsOf=named.at[1:]))]
        time = instant(named.at).strftime("%Y-%m-%d %H:%M:%S.%f")
        return [(view_name(named), kept.read(timestampAsOf=time))]
    extent = extents.extent(spark, named.source)
    topics = sorted({topic for topic, _ in extent.end})
    if named.name and len(topics) > 1:
        raise PipelineError(
            f"--from {named.place}: one name for {len(topics)} topics; leave {named.name}= out, or "
            "add ?topics=TOPIC"
        )
    found = []
    for topic in topics:
        start, end = (
            {key: offset for key, offset in offsets.items() if key[0] == topic}
            for offsets in (extent.start, extent.end)
        )
        rows = sources.read(
            spark, only(named.source, topic), Wanted(start=start, end=end, only_named=True)
        )
        found.append((named.name or topic, with_date(rows)))
    return found


def delta_of(spark: SparkSession | None, named: Named) -> DeltaTable:
    """PipelineError for a table that keeps no versions."""
    found = table.existing(spark, named.place)
    if not isinstance(found, DeltaTable):
        raise PipelineError(
            f"--from {named.place}@{named.at}: only a Delta table has versions; leave it out from "
            "the @ on"
        )
    return found


def only(source: Source, topic: str) -> Source:
    if isinstance(source, KafkaSource):
        return sources.KafkaSource(source.bootstrap, (topic,), source.client)
    return sources.SegmentsSource(source.directories, (topic,))


def with_date(rows: DataFrame) -> DataFrame:
    from pyspark.sql.functions import col, to_date

    return rows.withColumn("date", to_date(col("timestamp")))


def quoted(name: str) -> str:
    """As SQL names what has a dot or a hyphen."""
    return "`" + name.replace("`", "``") + "`"
