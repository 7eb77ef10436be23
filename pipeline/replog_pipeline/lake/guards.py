"""What an archive may append next, and what must stop it: decided from the table's ledger and the
source's extent alone.

1. A batch begins where the table ends, per partition; a topic's first batch begins at the log
   start.
2. It stops, and nothing is written, when the topic is another one (id), the source ends below the
   table, a partition is gone, or records between the table and the log start were deleted. Only the
   last can be allowed, and is then reported.
3. A table's topics are chosen by its first batch. Records deleted from them before are no gap, but
   are reported (`Missed`).

Source: KIP-516. Not here: reading either side.
"""

from __future__ import annotations

from dataclasses import dataclass

from replog_pipeline.columns import Offsets
from replog_pipeline.errors import PipelineError
from replog_pipeline.lake.ledger import Ledger
from replog_pipeline.segments.log_view import UNCOMMITTED
from replog_pipeline.sources.extents import Extent
from replog_pipeline.sources.topics import Topics

NAMED = 3
"""Partitions that a line names; of more it says how many."""


@dataclass(frozen=True)
class Gap:
    """Offsets `first` to `last` of a partition were deleted before they were archived."""

    topic: str
    partition: int
    first: int
    last: int

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: offsets {self.first} to {self.last} were "
            "deleted before they were archived"
        )


@dataclass(frozen=True)
class Missed:
    """A topic's records that were deleted before its table began.

    `starts`: partition -> its log start, where that is above 0.
    """

    topic: str
    starts: dict[int, int]

    def __str__(self) -> str:
        begins = [
            f"{partition} begins at offset {start:,}" for partition, start in self.starts.items()
        ]
        more = f" and {len(begins) - NAMED} more" if len(begins) > NAMED else ""
        return (
            f"{self.topic}: {sum(self.starts.values()):,} records (by their offsets) had been "
            "deleted before the archive began: "
            f"partition {', '.join(begins[:NAMED])}{more}"
        )


def bounded(end: Offsets, until: Offsets) -> Offsets:
    """The ends, none of them above its bound."""
    return {key: min(offset, until.get(key, offset)) for key, offset in end.items()}


def missed(ledger: Ledger, start: Offsets) -> list[Missed]:
    """What a first batch that begins at `start` cannot have; nothing for a later one."""
    starts: dict[str, dict[int, int]] = {}
    for (topic, partition), first in sorted(start.items()):
        if first and not ledger.batch:
            starts.setdefault(topic, {})[partition] = first
    return [Missed(topic, found) for topic, found in starts.items()]


@dataclass(frozen=True)
class Plan:
    """The ranges of the next batch, for all partitions of the source; `gaps` are those that were
    allowed.
    """

    start: Offsets
    end: Offsets
    gaps: tuple[Gap, ...] = ()

    @property
    def offsets(self) -> int:
        """How many offsets the ranges span; at most so many records."""
        return sum(self.end.values()) - sum(self.start.values())


def plan(
    ledger: Ledger,
    extent: Extent,
    place: str,
    *,
    allow_gaps: bool = False,
    max_records: int | None = None,
    goal: Offsets | None = None,
    since: Offsets | None = None,
) -> Plan:
    """The next batch of the table at `place`, up to `goal` and no further; a first one from `since`
    on, where that is above the log start.

    The extent is newer than the ledger. PipelineError with the remedy.
    """
    if ledger.batch:
        check_topics(ledger, extent.topics, place)
    start = {}
    gaps = []
    for key, log_start in extent.start.items():
        begin = max(log_start, (since or {}).get(key, log_start))
        start[key] = ledger.next.get(key, 0 if ledger.batch else begin)
        check_end(key, start[key], extent.end[key], place)
        if start[key] < log_start:
            gaps.append(Gap(*key, start[key], log_start - 1))
            start[key] = log_start
    if gaps and not allow_gaps:
        raise PipelineError(
            f"{gaps[0]}{and_more(gaps)}: retention is shorter than the time between two runs; "
            "go on without them with --allow-gaps"
        )
    end = (
        extent.end
        if goal is None
        else {
            key: max(start[key], min(offset, goal.get(key, 0)))
            for key, offset in extent.end.items()
        }
    )
    return Plan(start, limited(start, end, max_records), tuple(gaps))


def check_topics(ledger: Ledger, found: Topics, place: str) -> None:
    """PipelineError unless the table at `place`, which has a batch, is one of these topics."""
    if set(ledger.ids) != set(found.ids):
        raise PipelineError(
            f"--to {place} is the table of {', '.join(ledger.topics)}, not of "
            f"{', '.join(sorted(found.ids))}: archive into another table"
        )
    for topic, held in ledger.ids.items():
        topic_id = found.ids[topic]
        if held and topic_id and held != topic_id:
            raise PipelineError(
                f"topic {topic} was created anew (its id is {topic_id}, the table's {held}), so "
                "its offsets mean other records: "
                f"archive it into another table than {place}"
            )
    gone = sorted(set(ledger.next) - found.partitions)
    if gone:
        topic, partition = gone[0]
        raise PipelineError(
            f"the table {place} holds partition {partition} of {topic}, which the source "
            "lacks: is --from another cluster or copy?"
        )


def check_mode(ledger: Ledger, upsert: bool, place: str) -> None:
    """PipelineError unless the table at `place` is of this mode, or has no batch."""
    if ledger.batch and ledger.upsert and not upsert:
        raise PipelineError(
            f"the table {place} holds the last value of each key: give --mode upsert, or archive "
            "into another table"
        )
    if ledger.batch and upsert and not ledger.upsert:
        raise PipelineError(
            f"--mode upsert: the table {place} holds every record: archive into another table"
        )


def check_isolation(ledger: Ledger, isolation: str, place: str) -> None:
    """PipelineError where the table's rows were read with another isolation; a ledger that does
    not say takes this one's.
    """
    if ledger.batch and ledger.isolation not in (None, isolation):
        before, cure = (
            ("with", "give it") if isolation == UNCOMMITTED else ("without", "leave it out")
        )
        raise PipelineError(
            f"the table {place} was archived {before} --read-committed: {cure} again, or archive "
            "into another table"
        )


def check_complete(ledger: Ledger, place: str) -> None:
    """PipelineError for a table that has not every record of its topic."""
    if ledger.upsert:
        raise PipelineError(
            f"--from {place} holds the last value of each key, not every record: a replay needs a "
            "table archived without --mode upsert"
        )


def check_end(key: tuple[str, int], position: int, end: int, place: str) -> None:
    if end < position:
        topic, partition = key
        raise PipelineError(
            f"{topic}-{partition} ends at offset {end}, below the {position} that the table "
            f"{place} has reached: "
            "the log was truncated, restored or is another copy; archive into another table"
        )


def limited(start: Offsets, end: Offsets, max_records: int | None) -> Offsets:
    """`end` moved back so that all ranges together span at most `max_records` offsets, each by
    its share but at least one in all.
    """
    total = sum(end.values()) - sum(start.values())
    if max_records is None or total <= max_records:
        return dict(end)
    taken = {key: start[key] + (end[key] - start[key]) * max_records // total for key in start}
    left = max_records - (sum(taken.values()) - sum(start.values()))
    for key in sorted(start):
        more = min(left, end[key] - taken[key])
        taken[key] += more
        left -= more
    return taken


def and_more(found: list[Gap]) -> str:
    return f" (and {len(found) - 1} more partitions)" if len(found) > 1 else ""
