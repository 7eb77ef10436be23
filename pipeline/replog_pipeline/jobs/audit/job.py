"""`replog pipeline audit`: checks that a log has every record once, in order and undamaged.

1. Of log directories: gaps, duplicates, order, sequences and epochs of producers and leaders, CRCs,
   record counts, torn segments, hanging and torn transactions; from the log start to the high
   watermark. Of a cluster's topics: gaps, duplicates and order of what a consumer gets.
2. The result names what was assumed (policy, ends). Nothing is written.
3. A path that is no directory is refused before Spark is started.

Source: our own. Not here: replicas among each other (`compare`), files beside the logs (`replog
verify`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from replog_pipeline import sources
from replog_pipeline.errors import as_pipeline_error
from replog_pipeline.jobs.audit import cleanup, directories, topics
from replog_pipeline.jobs.audit.check import Facts
from replog_pipeline.jobs.audit.cleanup import Policy
from replog_pipeline.jobs.audit.findings import Finding, Summary
from replog_pipeline.jobs.audit.metadata_policies import cleanup_policies
from replog_pipeline.progress import Progress
from replog_pipeline.segments.log_folder import Folder, folders
from replog_pipeline.sources import KafkaSource, SegmentsSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HANGING_AFTER_SECONDS = 900  # transaction.max.timeout.ms of a broker
METADATA = "__cluster_metadata"
"""The controllers' log: its high watermark is in no checkpoint."""
WIRE_LIMITS = (
    "read through a broker: gaps, duplicates and order only; batches, producers and "
    "transactions are seen with segments:DIRECTORY"
)


@dataclass(frozen=True)
class AuditConfig:
    """`policies`: POLICY or TOPIC=POLICY. `allow_holes`: offsets, in a cluster's topics.
    `hanging_after` a last record: seconds.
    """

    source: sources.Source
    policies: tuple[str, ...] = ()
    allow_holes: int = 0
    hanging_after: int = HANGING_AFTER_SECONDS
    quiet: bool = True


@dataclass
class AuditResult:
    """Findings by partition and offset, what was looked at, and what was taken for granted."""

    source: str
    findings: list[Finding]
    partitions: list[Summary]
    remarks: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "remarks": self.remarks,
            "partitions": [each._asdict() for each in self.partitions],
            "findings": [each._asdict() for each in self.findings],
        }


@as_pipeline_error
def run(spark: SparkSession, config: AuditConfig) -> AuditResult:
    """Audits; reads only."""
    said = cleanup.given(config.policies)
    with Progress(config.quiet).step(f"audited {config.source}", spark):
        if isinstance(config.source, KafkaSource):
            return of_topics(spark, config, config.source, said)
        return of_folders(spark, config, known_folders(config.source), said)


def of_topics(
    spark: SparkSession, config: AuditConfig, source: KafkaSource, said: dict[str, Policy]
) -> AuditResult:
    told = topics.run(spark, source, said, config.allow_holes)
    remarks = [
        WIRE_LIMITS,
        *(
            f"{topic}: cleanup.policy {policy} ({policy.source})"
            for topic, policy in told.policies.items()
        ),
    ]
    remarks += [
        f"{topic}: {count:,} offsets are end markers of transactions"
        for topic, count in told.markers.items()
    ]
    if config.allow_holes:
        remarks.append(f"holes up to {config.allow_holes} offsets were passed over")
    return AuditResult(str(source), told.findings, told.summaries, remarks)


def of_folders(
    spark: SparkSession, config: AuditConfig, found: Sequence[Folder], said: dict[str, Policy]
) -> AuditResult:
    recorded = {
        directory: cleanup_policies(directory) for directory in {each.directory for each in found}
    }
    policies = {
        _key(each): cleanup.of_folder(each, said, recorded[each.directory]) for each in found
    }
    facts = {_key(each): _facts(each, policies[_key(each)], config) for each in found}
    rows = directories.segment_rows(found)
    tasks = max(1, min(len(rows), 4 * spark.sparkContext.defaultParallelism))
    frame = spark.createDataFrame(rows, directories.SEGMENT).repartition(tasks)
    findings, summaries = directories.gathered(
        row.asDict() for row in directories.transform(frame, facts).collect()
    )
    return AuditResult(str(config.source), findings, summaries, [*_remarks(found, policies)])


def known_folders(source: SegmentsSource) -> list[Folder]:
    """The partitions of the directories. Raises PipelineError where there are none."""
    return [
        folder
        for directory in source.directories
        for folder in folders(directory, source.topics, internal=True)
    ]


def _key(folder: Folder) -> directories.Key:
    return folder.directory, folder.topic, folder.partition


def _facts(folder: Folder, policy: Policy, config: AuditConfig) -> Facts:
    end = None if folder.topic == METADATA else folder.high_watermark
    return Facts(
        folder.directory,
        folder.topic,
        folder.partition,
        folder.start,
        end,
        policy.compacts,
        policy.assumed,
        int(time.time() * 1000),
        config.hanging_after * 1000,
    )


def _remarks(found: Sequence[Folder], policies: dict[directories.Key, Policy]) -> list[str]:
    said = {
        (each.topic, policies[_key(each)]) for each in found if not policies[_key(each)].assumed
    }
    assumed = sorted({each.topic for each in found if policies[_key(each)].assumed})
    remarks = [
        f"{topic}: cleanup.policy {policy} ({policy.source})"
        for topic, policy in sorted(said, key=lambda pair: pair[0])
    ]
    if assumed:
        remarks.append(
            f"{', '.join(assumed)}: cleanup.policy delete is assumed (--cleanup-policy says "
            "else), unless batches show a cleaner's work"
        )
    endless = sorted({each.directory for each in found if each.high_watermark is None})
    if endless:
        remarks.append(
            f"no replication-offset-checkpoint in {', '.join(endless)}: audited to the log end"
        )
    return remarks
