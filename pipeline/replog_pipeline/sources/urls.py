"""Where records come from, as a command line says it: a cluster's topics, or log directories.

Plain data. Not here: reading (`reading`), what is there now (`extents`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from replog_pipeline.errors import PipelineError
from replog_pipeline.kafka_cluster import PLAINTEXT, ClientConfig, KafkaCluster
from twisted_broker.topic_names import INTERNAL_TOPICS, name_problem

SHAPES = "kafka://HOST:PORT[,HOST:PORT]/TOPIC[,TOPIC] or segments:DIRECTORY[?topics=TOPIC[,TOPIC]]"


@dataclass(frozen=True)
class KafkaSource:
    """Topics of a running cluster."""

    bootstrap: str
    topics: tuple[str, ...]
    client: ClientConfig = field(default=PLAINTEXT, repr=False)

    @property
    def cluster(self) -> KafkaCluster:
        return KafkaCluster(self.bootstrap, self.client)

    def __str__(self) -> str:
        return f"kafka://{self.bootstrap}/{','.join(self.topics)}"


@dataclass(frozen=True)
class SegmentsSource:
    """Log directories (holding TOPIC-PARTITION folders), or such folders themselves.

    No `topics`: all but the internal ones.
    """

    directories: tuple[str, ...]
    topics: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"segments:{','.join(self.directories)}" + (
            f"?topics={','.join(self.topics)}" if self.topics else ""
        )


@dataclass(frozen=True)
class KafkaPattern:
    """The topics of a cluster that have one of these names, or match one that is a pattern: a
    regular expression over the whole name. Internal topics match none.
    """

    bootstrap: str
    names: tuple[str, ...]
    client: ClientConfig = field(default=PLAINTEXT, repr=False)

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if not is_topic_name(name))

    def matches(self, topic: str) -> bool:
        return topic in self.names or (
            topic not in INTERNAL_TOPICS
            and any(re.fullmatch(pattern, topic) for pattern in self.patterns)
        )

    def of(self, *topics: str) -> KafkaSource:
        """These topics of the cluster."""
        return KafkaSource(self.bootstrap, topics, self.client)

    def __str__(self) -> str:
        return f"kafka://{self.bootstrap}/{','.join(self.names)}"


Source = KafkaSource | SegmentsSource


def parse(url: str, setting: str = "--from", client: ClientConfig = PLAINTEXT) -> Source:
    """The source that `url` names. Raises PipelineError, naming `setting`, for anything else."""
    if url.startswith("kafka://"):
        return parse_kafka(url, setting, client)
    if url.startswith("segments:"):
        return parse_segments(url, setting)
    raise PipelineError(f"{setting}: {url!r} is no source; write {SHAPES}")


def parse_kafka(url: str, setting: str, client: ClientConfig = PLAINTEXT) -> KafkaSource:
    bootstrap, _, names = url.removeprefix("kafka://").partition("/")
    topics = split(names)
    if "@" in bootstrap:  # it is not repeated: a password stands before it
        raise PipelineError(
            f"{setting}: no user in a kafka:// URL: write sasl.jaas.config into a file for "
            "--kafka-config"
        )
    if not bootstrap or not all(is_address(each) for each in bootstrap.split(",")):
        raise PipelineError(
            f"{setting}: {url!r} has no HOST:PORT after kafka://; write kafka://HOST:PORT/TOPIC"
        )
    if not topics:
        raise PipelineError(
            f"{setting}: {url!r} names no topic; write kafka://{bootstrap}/TOPIC[,TOPIC]"
        )
    return KafkaSource(bootstrap, topics, client)


def parse_pattern(url: str, setting: str, client: ClientConfig = PLAINTEXT) -> KafkaPattern:
    """Names and patterns. Raises PipelineError."""
    if not url.startswith("kafka://"):
        raise PipelineError(
            f"{setting}: {url!r} has no topics of a cluster; write kafka://HOST:PORT/.."
        )
    source = parse_kafka(url, setting, client)
    found = KafkaPattern(source.bootstrap, source.topics, client)
    for pattern in found.patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise PipelineError(
                f"{setting}: {pattern!r} is no topic name, and no regular expression ({error.msg})"
            ) from None
    return found


def is_topic_name(name: str) -> bool:
    return name_problem(name) is None


def is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon and port.isascii() and port.isdigit() and int(port) < 65536)


def parse_segments(url: str, setting: str) -> SegmentsSource:
    place, _, query = url.removeprefix("segments:").partition("?")
    directories = split(place)
    options = dict(parse_qsl(query, keep_blank_values=True))
    topics = split(options.pop("topics", ""))
    if not directories:
        raise PipelineError(f"{setting}: {url!r} names no directory; write segments:DIRECTORY")
    if options:
        raise PipelineError(
            f"{setting}: {next(iter(options))!r} in {url!r} is not known; known is "
            "topics=TOPIC[,TOPIC]"
        )
    return SegmentsSource(directories, topics)


def split(names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
