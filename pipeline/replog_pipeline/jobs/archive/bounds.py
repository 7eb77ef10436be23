"""`--since` and `--until`: where a new table begins, and where an archive ends.

1. A time is, in each partition, the first record of that time or later, by the brokers' indexes;
   where there is none, the partition's end. Offsets are `{"0": 1000}`, of several topics
   `{"orders": {"0": 1000}}`; a partition that they do not name has no bound.
2. `--since` is of a table's first batch alone: the same command goes on where the table ends.

Not here: what a batch takes (`lake.guards`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from replog_pipeline.columns import Offsets
from replog_pipeline.errors import PipelineError
from replog_pipeline.sources import KafkaSource, Source, kafka_admin
from replog_pipeline.sources.extents import Extent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Bound:
    """`ms` since 1970, or `offsets`: topic ("" is the only one) and partition -> offset."""

    setting: str
    ms: int | None = None
    offsets: Mapping[tuple[str, int], int] | None = None


def parse(text: str | None, setting: str) -> Bound | None:
    """PipelineError for what is neither a time nor offsets."""
    if text is None:
        return None
    try:
        if text.lstrip().startswith("{"):
            return Bound(setting, None, offsets_of(json.loads(text)))
        time = datetime.fromisoformat(text)
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        return Bound(setting, int(time.timestamp() * 1000))
    except (ValueError, TypeError, AttributeError):
        raise PipelineError(
            f"{setting} {text}: write a time, as 2026-01-31T12:00:00Z, or offsets, as "
            '{"0": 1000} or {"TOPIC": {"0": 1000}}'
        ) from None


def offsets_of(found: Mapping[str, object]) -> dict[tuple[str, int], int]:
    nested = found if all(isinstance(each, dict) for each in found.values()) else {"": found}
    offsets = {
        (topic, int(number)): offset
        for topic, numbers in nested.items()
        for number, offset in numbers.items()  # type: ignore[attr-defined]
    }
    if not all(isinstance(each, int) and each >= 0 for each in offsets.values()):
        raise ValueError
    return offsets


def resolved(spark: SparkSession, source: Source, bound: Bound | None, extent: Extent) -> Offsets:
    """The offsets that it means; of partitions that it does not bound none. PipelineError."""
    if bound is None:
        return {}
    if bound.ms is not None:
        if not isinstance(source, KafkaSource):
            raise PipelineError(
                f"{bound.setting}: times are looked up by brokers: give offsets for segments:"
            )
        found = kafka_admin.offsets_at(spark, source.cluster, extent.end, bound.ms)
        return {key: offset if offset >= 0 else extent.end[key] for key, offset in found.items()}
    topics, offsets = {topic for topic, _ in extent.end}, {}
    for (topic, number), offset in (bound.offsets or {}).items():
        key = (topic or (next(iter(topics)) if len(topics) == 1 else ""), number)
        if key not in extent.end or offset > extent.end[key]:
            there = f"ends at {extent.end[key]}" if key in extent.end else "is not there"
            raise PipelineError(
                f"{bound.setting}: {key[0] or 'a topic without a name'}-{number} {there}: name "
                "offsets that the source has"
            )
        offsets[key] = offset
    return offsets
