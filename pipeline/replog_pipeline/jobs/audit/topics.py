"""`audit` of topics of a running cluster: the offsets of the records that come over the wire.

1. Gaps, repetitions and disorder only: a consumer does not see batches, producers and
   transactions.
2. Expected is every offset from the earliest to the high watermark, as the cluster named them
   before the read; a compacted topic may lack any.
3. The end marker of a transaction takes an offset that no consumer sees: gaps are looked up in the
   leaders' batches (`markers`). Gaps up to `allowed` offsets are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from replog_pipeline import sources
from replog_pipeline.columns import Offsets
from replog_pipeline.errors import PipelineError, raised_in_task
from replog_pipeline.jobs.audit.check import SHOWN
from replog_pipeline.jobs.audit.cleanup import Policy, of_topic
from replog_pipeline.jobs.audit.findings import Finding, Summary
from replog_pipeline.jobs.audit.markers import Markers
from replog_pipeline.sources import KafkaSource, Wanted, extents, kafka_admin
from replog_pipeline.transforms.spans import (
    GAP,
    HOLE,
    MARKER,
    SPANNED,
    ITaken,
    Span,
    joined,
    transform,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANY: Final = 1 << 62


class TopicsResult(NamedTuple):
    """`markers`: topic -> how many offsets end markers of transactions take, where there are
    any.
    """

    findings: list[Finding]
    summaries: list[Summary]
    policies: dict[str, Policy]
    markers: dict[str, int]


def run(
    spark: SparkSession, source: KafkaSource, said: Mapping[str, Policy], allowed: int
) -> TopicsResult:
    """What is found in all of the topics."""
    policies = {
        topic: of_topic(topic, said, kafka_admin.topic_config(spark, source.cluster, topic))
        for topic in source.topics
    }
    extent = extents.of_cluster(spark, source)
    rows = sources.read(
        spark,
        source,
        Wanted(("topic", "partition", "offset"), extent.start, extent.end, only_named=True),
    )
    widest = {topic: ANY if policy.compacts else allowed for topic, policy in policies.items()}
    taken = partial(Markers, source.cluster)
    try:
        found = [Span(*row) for row in transform(rows, widest, taken).collect()]
    except Exception as error:
        if raised_in_task(error):
            raise PipelineError(raised_in_task(error)) from None
        raise
    return judged(found, extent.start, extent.end, policies, widest, taken())


def judged(
    found: Sequence[Span],
    start: Offsets,
    end: Offsets,
    policies: Mapping[str, Policy],
    widest: Mapping[str, int],
    taken: ITaken,
) -> TopicsResult:
    """What the spans say of partitions that reach from `start` to `end`; `widest`: topic -> the
    widest gap that is no fault.
    """
    findings: list[Finding] = []
    summaries: list[Summary] = []
    markers: dict[str, int] = {}
    for topic, partition in sorted(start):
        own = [span for span in found if (span.topic, span.partition) == (topic, partition)]
        first, last = start[topic, partition], end[topic, partition]
        faults = list(_faults(topic, partition, own, first, last))
        left = [
            _without_markers(fault, taken)
            for fault in faults
            if fault.kind != GAP or fault.records > widest[topic]
        ]
        findings.extend(
            _findings(
                fault for fault, _ in left if fault.kind != GAP or fault.records > widest[topic]
            )
        )
        count = sum(removed for _, removed in left) + sum(
            span.records for span in own if span.kind == MARKER
        )
        if count:
            markers[topic] = markers.get(topic, 0) + count
        records = sum(span.records for span in own if span.kind == SPANNED)
        missing = sum(gap.records + gap.more_records for gap in faults if gap.kind == GAP)
        missing += sum(span.records for span in own if span.kind in (HOLE, MARKER))
        summaries.append(
            Summary(
                topic,
                partition,
                "",
                first,
                last,
                -1,
                records,
                -1,
                missing,
                -1,
                str(policies[topic]),
            )
        )
    taken.close()
    return TopicsResult(findings, summaries, dict(policies), markers)


def _faults(
    topic: str, partition: int, own: Sequence[Span], first: int, last: int
) -> Iterator[Span]:
    """Faults of the spans, and what is missing before the first and after the last."""
    spans = [span for span in own if span.kind == SPANNED]
    ends = [
        (first, min((span.first for span in spans), default=last)),
        (max((span.last + 1 for span in spans), default=last), last),
    ]
    faults = joined(own) + [
        Span(GAP, topic, partition, begin, after - 1, after - begin)
        for begin, after in ends
        if after > begin
    ]
    yield from sorted(faults, key=lambda span: (span.first, span.kind))


def _without_markers(fault: Span, taken: ITaken) -> tuple[Span, int]:
    """A gap without the markers at its ends, and how many offsets those are; other faults as
    they are.
    """

    def are_all(first: int, last: int) -> bool:
        return bool(
            taken.are_all(fault.topic, fault.partition, np.array([first]), np.array([last]))[0]
        )

    first, last = fault.first, fault.last
    if fault.kind != GAP:
        return fault, 0
    if are_all(first, last):
        return fault._replace(records=0), fault.records
    while are_all(first, first):
        first += 1
    while are_all(last, last):
        last -= 1
    records = last - first + 1
    return fault._replace(first=first, last=last, records=records), fault.records - records


def _findings(faults: Iterable[Span]) -> Iterator[Finding]:
    """At most `SHOWN`, and how many more there are."""
    every = list(faults)
    unlisted = sum(1 + fault.more for fault in every[SHOWN:])
    for number, fault in enumerate(every[:SHOWN], 1):
        more = fault.more + (unlisted if number == SHOWN else 0)
        yield Finding(
            fault.kind, fault.topic, fault.partition, fault.first, _problem(fault), more=more
        )


def _problem(fault: Span) -> str:
    count = f"{fault.records:,} record{'s' * (fault.records != 1)}"
    if fault.kind == GAP:
        return f"offsets {fault.first}..{fault.last} are missing ({fault.records:,})"
    return (
        f"{count} at offsets {fault.first}..{fault.last} came "
        f"{'twice' if fault.kind == 'duplicate' else 'out of order'}"
    )
