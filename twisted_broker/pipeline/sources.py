"""Where records come from: a cluster through the official connector, or log directories through our data source. Both give the same columns.

1. `parse` reads the URL of a command line, `read` and `read_stream` make a DataFrame of it; no job looks at which of the two it is.
2. Start offsets are inclusive, end offsets exclusive; a partition that is not named goes from its earliest to its latest offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from twisted_broker.pipeline.columns import COLUMNS
from twisted_broker.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Offsets = dict[tuple[str, int], int]
"""(topic, partition) -> offset."""

SHAPES = "kafka://HOST:PORT[,HOST:PORT]/TOPIC[,TOPIC] or segments:DIRECTORY[?topics=TOPIC[,TOPIC]]"


@dataclass(frozen=True)
class KafkaSource:
    """Topics of a running cluster. `bootstrap` is HOST:PORT[,HOST:PORT]."""

    bootstrap: str
    topics: tuple[str, ...]

    def __str__(self) -> str:
        return f"kafka://{self.bootstrap}/{','.join(self.topics)}"


@dataclass(frozen=True)
class SegmentsSource:
    """Log directories (holding TOPIC-PARTITION folders), or such folders themselves. No `topics`: all but the internal ones."""

    directories: tuple[str, ...]
    topics: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"segments:{','.join(self.directories)}" + (f"?topics={','.join(self.topics)}" if self.topics else "")


Source = KafkaSource | SegmentsSource


def parse(url: str, setting: str = "--from") -> Source:
    """The source that `url` names. Raises PipelineError, naming `setting`, for anything else."""
    if url.startswith("kafka://"):
        return parse_kafka(url, setting)
    if url.startswith("segments:"):
        return parse_segments(url, setting)
    raise PipelineError(f"{setting}: {url!r} is no source; write {SHAPES}")


def parse_kafka(url: str, setting: str) -> KafkaSource:
    bootstrap, _, names = url.removeprefix("kafka://").partition("/")
    topics = split(names)
    if not bootstrap or not all(is_address(each) for each in bootstrap.split(",")):
        raise PipelineError(f"{setting}: {url!r} has no HOST:PORT after kafka://; write kafka://HOST:PORT/TOPIC")
    if not topics:
        raise PipelineError(f"{setting}: {url!r} names no topic; write kafka://{bootstrap}/TOPIC[,TOPIC]")
    return KafkaSource(bootstrap, topics)


def is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon and port.isdigit() and int(port) < 65536)


def parse_segments(url: str, setting: str) -> SegmentsSource:
    place, _, query = url.removeprefix("segments:").partition("?")
    directories = split(place)
    options = dict(parse_qsl(query, keep_blank_values=True))
    topics = split(options.pop("topics", ""))
    if not directories:
        raise PipelineError(f"{setting}: {url!r} names no directory; write segments:DIRECTORY")
    if options:
        raise PipelineError(f"{setting}: {next(iter(options))!r} in {url!r} is not known; known is topics=TOPIC[,TOPIC]")
    return SegmentsSource(directories, topics)


def split(names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))


def read(
    spark: SparkSession,
    source: Source,
    *,
    columns: Sequence[str] = COLUMNS,
    start: Offsets | None = None,
    end: Offsets | None = None,
    isolation: str = "read_uncommitted",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """A batch of what `source` holds now, with `columns` in their order. `options` go to the source as they are."""
    frame: DataFrame = reader(source).read(spark, source, columns=columns, start=start, end=end, isolation=isolation, options=options or {})
    return frame


def read_stream(
    spark: SparkSession,
    source: Source,
    *,
    columns: Sequence[str] = COLUMNS,
    start: Offsets | None = None,
    isolation: str = "read_uncommitted",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """A streaming DataFrame of the same shape; it begins at `start`, or at the earliest offsets."""
    frame: DataFrame = reader(source).read_stream(spark, source, columns=columns, start=start, isolation=isolation, options=options or {})
    return frame


def reader(source: Source) -> Any:
    """The module that reads such a source; both have `read` and `read_stream` of one shape."""
    return import_module("twisted_broker.pipeline." + ("connector" if isinstance(source, KafkaSource) else "segments_source"))
