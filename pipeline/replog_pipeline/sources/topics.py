"""Which topics and partitions a source has, and the two errors of a topic that it has not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from replog_pipeline.errors import PipelineError


@dataclass(frozen=True)
class Topics:
    """`ids`: topic -> topic id as Kafka prints it, None: not known. `partitions`: (topic,
    partition).
    """

    ids: Mapping[str, str | None]
    partitions: frozenset[tuple[str, int]]


def missing(topic: str, bootstrap: str) -> PipelineError:
    return PipelineError(
        f"topic {topic!r} is not on the brokers at {bootstrap}: check its name, or produce to "
        "it first"
    )


def invalid(topic: str) -> PipelineError:
    return PipelineError(
        f"{topic!r} is no valid topic name: letters, digits, '.', '_' and '-', at most 249 of them"
    )
